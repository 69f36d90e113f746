"""Results drawn with matplotlib, which is not there unless somebody asked for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from streamveil.mechanisms.core.records import NOT_PRIVATE, TEST
from streamveil.mechanisms.core.tidy import NINETY_PERCENT
from streamveil.pipelines.reports.result import new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(
    tidy: pa.Table,
    bins: Sequence[str],
    ax: Axes | None = None,
    *,
    title: str = "",
    unit: str = "",
) -> Axes:
    """Draw a line for each bin and the interval around it.

    Args:
        tidy: releases, with the columns of `RESULT_SCHEMA`.
        bins: which.
        ax: the axes; new ones when None.
        title: of the query, above the axes.
        unit: of its results, beside the name of the statistic.

    Returns:
        The axes. Raises ImportError without matplotlib.
    """
    ax = ax or new_axes()
    ax.xaxis_date(tidy["start"].type.tz)
    for label in bins:
        rows = tidy.filter(pc.equal(tidy["key"], label))
        times = rows["start"].to_numpy()
        values, low, high = (rows[name].to_numpy() for name in ("value", "low", "high"))
        [line] = ax.plot(times, values, label=label, linewidth=1.2)
        ax.fill_between(times, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    statistic = tidy["statistic"][0].as_py() if tidy.num_rows else "count"
    is_test = pc.any(pc.equal(tidy["status"], TEST)).as_py()
    titles = [title, NOT_PRIVATE if is_test else ""]
    if any(titles):
        ax.set_title("\n".join(filter(None, titles)))
    return _dated(ax, f"released {statistic}{f' ({unit})' if unit else ''}")


def draw_statistics(table: pa.Table, keys: Sequence[str | None], ax: Axes | None = None) -> Axes:
    """Draw a line for each key, or a point where there is but one window, with its error bars.

    Args:
        table: statistics, of `PER_RECORD_SCHEMA`, sorted by window.
        keys: which; None stands for rows without a key.
        ax: the axes; new ones when None.

    Returns:
        The axes. Raises ImportError without matplotlib.
    """
    ax = ax or new_axes()
    windowed = table["start"].null_count == 0
    for key in keys:
        chosen = pc.is_null(table["key"]) if key is None else pc.equal(table["key"], key)
        rows = table.filter(chosen)
        label = rows["statistic"][0].as_py() if key is None else key
        places = rows["start"].to_numpy() if windowed else [label]
        half = NINETY_PERCENT * rows["stderr"].to_numpy()
        ax.errorbar(
            places, rows["estimate"].to_numpy(), half, fmt=".-", capsize=2, lw=1.2, label=label
        )
    statistic = table["statistic"][0].as_py().replace("_", " ")
    if windowed:
        return _dated(ax, f"released {statistic}")
    ax.set_ylabel(f"released {statistic}")
    return ax


def _dated(ax: Axes, title: str) -> Axes:
    ax.set_ylabel(title)
    ax.legend(frameon=False)
    ax.figure.autofmt_xdate()
    return ax
