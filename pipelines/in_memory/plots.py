"""Results drawn with matplotlib, which is not there unless somebody asked for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.mechanisms.core.extras import install_line
from streamveil.mechanisms.core.tidy import NINETY_PERCENT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from streamveil.pipelines.evaluation.comparison import Comparison


def draw(tidy: pa.Table, bins: Sequence[str], ax: Axes | None = None) -> Axes:
    """Draw a line for each bin and the interval around it.

    Args:
        tidy: releases, of `TIDY_SCHEMA`.
        bins: which.
        ax: the axes; new ones when None.

    Returns:
        The axes. Raises ImportError without matplotlib.
    """
    ax = ax or _axes()
    for label in bins:
        rows = tidy.filter(pc.equal(tidy["bin"], label))
        times = rows["start"].to_numpy()
        counts, low, high = (rows[name].to_numpy() for name in ("count", "low", "high"))
        [line] = ax.plot(times, counts, label=label, linewidth=1.2)
        ax.fill_between(times, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    return _dated(ax, "released count")


def draw_statistics(table: pa.Table, keys: Sequence[str | None], ax: Axes | None = None) -> Axes:
    """Draw a line for each key, or a point where there is but one window, with its error bars.

    Args:
        table: statistics, of `PER_RECORD_SCHEMA`, sorted by window.
        keys: which; None stands for rows without a key.
        ax: the axes; new ones when None.

    Returns:
        The axes. Raises ImportError without matplotlib.
    """
    ax = ax or _axes()
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


def draw_comparison(comparison: Comparison, ax: Axes | None = None) -> Axes:
    """Draw the error of each mechanism, the first of the measures, in every case.

    Args:
        comparison: of one or more cases.
        ax: the axes; new ones when None.

    Returns:
        The axes. Raises ImportError without matplotlib.
    """
    ax = ax or _axes()
    error = comparison.family.measures[0]
    labels = list(comparison.labels.values())
    for mechanism in dict.fromkeys(row.mechanism for row in comparison.rows):
        rows = [row for row in comparison.rows if row.mechanism == mechanism]
        ax.errorbar(
            [row.means[error.name] for row in rows],
            [labels.index(comparison.labels[row.case]) for row in rows],
            xerr=np.nan_to_num([row.errors[error.name] for row in rows]),
            fmt="o",
            label=mechanism,
        )
    ax.set_yticks(range(len(labels)), labels)
    ax.set_ylim(len(labels) - 0.5, -0.5)  # the first case on top
    ax.set_xlabel(error.title)
    if error.name in comparison.family.log:
        ax.set_xscale("log")
    ax.legend(frameon=False)
    return ax


def _axes() -> Axes:
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise ImportError(f"plot() needs matplotlib: {install_line('demo')}") from None
    return plt.subplots(figsize=(9, 4))[1]


def _dated(ax: Axes, title: str) -> Axes:
    ax.set_ylabel(title)
    ax.legend(frameon=False)
    ax.figure.autofmt_xdate()
    return ax
