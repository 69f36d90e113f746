"""A comparison drawn with matplotlib, which is not there unless it was installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from streamveil.pipelines.reports.result import new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from streamveil.pipelines.evaluation.comparison_table import ComparisonTable


def draw_comparison(comparison: ComparisonTable, ax: Axes | None = None) -> Axes:
    """Draw the error of each mechanism, the first of the measures, in every case.

    Args:
        comparison: of one or more cases.
        ax: the axes; new ones when None.

    Returns:
        The axes. Raises ImportError without matplotlib.
    """
    ax = ax or new_axes()
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
