"""What a function gives in place of a command: a table, and how it shows itself in a notebook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from html import escape
from typing import TYPE_CHECKING, Any

from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.wording import install_line
from streamveil.pipelines.pages.document import visible

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from matplotlib.axes import Axes

_MOST_ROWS = 10
"""Rows that a notebook shows."""


class Result(ABC):
    """What is released, as a table; with it what there is to tell of the run."""

    @abstractmethod
    def to_arrow(self) -> pa.Table:
        """All that is released, as a table of Arrow."""

    @abstractmethod
    def __str__(self) -> str:
        """A few lines about it."""

    def to_pandas(self) -> pd.DataFrame:
        """The same as :meth:`to_arrow`, as pandas has it. Raises ImportError without pandas."""
        try:
            import pandas  # noqa: F401
        except ImportError:
            raise ImportError(
                "to_pandas() needs pandas: pip install pandas; to_arrow() needs nothing more"
            ) from None
        return self.to_arrow().to_pandas()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """What a notebook shows: the lines, and the first rows."""
        table = self.to_arrow()
        head = "".join(f"<th>{escape(name)}</th>" for name in table.column_names)
        rows = "".join(
            f"<tr>{''.join(f'<td>{escape(_shown(cell))}</td>' for cell in row.values())}</tr>"
            for row in table.slice(0, _MOST_ROWS).to_pylist()
        )
        more = table.num_rows - _MOST_ROWS
        rest = f"<p>and {number_of(more, 'row')} more: .to_pandas()</p>" if more > 0 else ""
        return visible(
            f"<pre>{escape(str(self))}</pre><table><thead><tr>{head}</tr></thead>"
            f"<tbody>{rows}</tbody></table>{rest}"
        )


def new_axes() -> Axes:
    """Axes to draw a result on. Raises ImportError without matplotlib."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise ImportError(f"plot() needs matplotlib: {install_line('demo')}") from None
    return plt.subplots(figsize=(9, 4))[1]


def _shown(cell: Any) -> str:
    if cell is None:
        return ""
    return f"{cell:.6g}" if isinstance(cell, float) else str(cell)
