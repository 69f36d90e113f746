"""Releases drawn with matplotlib, which is not there unless somebody asked for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def draw(tidy: pa.Table, bins: Sequence[str], ax: Any = None) -> Any:
    """Draw a line for each bin and the interval around it.

    Args:
        tidy: releases, of `TIDY_SCHEMA`.
        bins: which.
        ax: the axes; new ones when None.

    Returns:
        The axes. Raises ImportError without matplotlib.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise ImportError("plot() needs matplotlib: pip install 'streamveil[demo]'") from None
    if ax is None:
        _, ax = plt.subplots(figsize=(9, 4))
    for label in bins:
        rows = tidy.filter(pc.equal(tidy["bin"], label))
        times = rows["start"].to_numpy()
        counts, low, high = (rows[name].to_numpy() for name in ("count", "low", "high"))
        [line] = ax.plot(times, counts, label=label, linewidth=1.2)
        ax.fill_between(times, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    ax.set_ylabel("released count")
    ax.legend(frameon=False)
    ax.figure.autofmt_xdate()
    return ax
