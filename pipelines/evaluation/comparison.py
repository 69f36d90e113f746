"""A comparison: mechanisms that ran on the same cases, with its plot and its page."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from streamveil.pipelines.evaluation.comparison_table import ComparisonTable, Family, Task
from streamveil.pipelines.evaluation.workers import all_results
from streamveil.pipelines.reports.result import new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Comparison(ComparisonTable):
    """The results of :func:`evaluate`, as a table, a chart and a page.

    The results are computed from true counts, so the results are not private.
    """

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the error of each mechanism by stream and requirement. This needs matplotlib.

        Args:
            ax: the matplotlib axes on which the chart is drawn. If None, a new figure is made.

        Returns:
            The axes.

        Raises:
            ImportError: if matplotlib is not installed.
        """
        ax = ax or new_axes()
        error = self.family.measures[0]
        labels = list(self.labels.values())
        for mechanism in dict.fromkeys(row.mechanism for row in self.rows):
            rows = [row for row in self.rows if row.mechanism == mechanism]
            ax.errorbar(
                [row.means[error.name] for row in rows],
                [labels.index(self.labels[row.case]) for row in rows],
                xerr=np.nan_to_num([row.errors[error.name] for row in rows]),
                fmt="o",
                label=mechanism,
            )
        ax.set_yticks(range(len(labels)), labels)
        ax.set_ylim(len(labels) - 0.5, -0.5)  # the first case on top
        ax.set_xlabel(error.title)
        if error.name in self.family.log:
            ax.set_xscale("log")
        ax.legend(frameon=False)
        return ax

    @property
    def page(self) -> str:
        """Return a self-contained HTML page with the results. This needs jinja2.

        The page is computed from TRUE counts, so the page is not private.
        """
        from streamveil.pipelines.evaluation.page import page_of

        return page_of(self)

    def write_page(self, path: str) -> None:
        """Write the HTML page. Raises ConfigurationError if the file exists."""
        from streamveil.io import write_text

        write_text(path, self.page)


def tasks(
    family: Family,
    sources: Iterable[tuple[Any, Sequence[tuple[Any, ...]]]],
    mechanisms: Sequence[str],
    seeds: int,
) -> list[Task]:
    """Lay out a comparison and check all of it before anything runs.

    Args:
        family: of the mechanisms.
        sources: each with the settings to run it in.
        mechanisms: names with options.
        seeds: how many draws and noises of each.

    Raises:
        ConfigurationError: for an unknown mechanism or option, or a setting out of range.
    """
    laid = []
    for source, settings in sources:
        for setting in settings:
            family.check(source, setting, mechanisms)
        laid += [
            Task(source, setting, seed, tuple(mechanisms))
            for seed, setting in itertools.product(range(seeds), settings)
        ]
    return laid


def compare(
    family: Family,
    todo: Sequence[Task],
    processes: int = 1,
    done: Callable[[int], None] = lambda runs: None,
    command: str = "",
) -> Comparison:
    """Do all tasks; the runs come in the order of the tasks, whoever did them.

    Args:
        family: of the mechanisms.
        todo: the tasks, one or more.
        processes: how many at a time; with 1 they run in this process.
        done: called with the number of runs that were just finished.
        command: what does the same again.

    Raises:
        BudgetExceeded: when a filter refuses a release.
    """
    runs = all_results(family.run, todo, processes, done)
    abouts = {task.source.name: task.source.about for task in todo}
    return Comparison(family, runs, abouts, command=command)
