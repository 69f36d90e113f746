"""A page for people: what one budget for a whole stream buys, how old it is, and what is left.

One HTML file that needs nothing else. Its figures are computed from TRUE counts, so it is as raw
as the data it was made of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from streamveil.pipelines.charts import PALETTE, STYLE, chart
from streamveil.pipelines.evaluation.charts import (
    SERIES,
    SERIES_PALETTE,
    Dots,
    Look,
    draw_course,
    looks,
)
from streamveil.pipelines.evaluation.infinite import MEASURES, NO_DATA, InfiniteRun
from streamveil.pipelines.evaluation.infinite_tables import (
    NOT_INFINITE,
    InfiniteRow,
    rows_of,
    worthless,
)
from streamveil.pipelines.evaluation.tables import figures_of
from streamveil.pipelines.html import template

Case = tuple[str, float]
# More charts of the same kind than this are not read: the table has the rest.
MOST_COURSES = 12
_POINTS = 40
_COLOURS = PALETTE | SERIES_PALETTE


class _Figure(NamedTuple):
    """A measure that has a chart: its width and scale, and what must not be exceeded."""

    name: str
    width: int
    log: bool
    limit: float | None = None


_DRAWN = (
    _Figure("mse_millionths", 1100, True),
    _Figure("kl", 540, True),
    _Figure("age", 540, False),
    _Figure("spent", 540, False, 1.0),
)


def page_of(runs: Sequence[InfiniteRun], abouts: Mapping[str, str], command: str = "") -> str:
    """The page as HTML.

    Args:
        runs: one or more, of the same mechanisms and seeds in every case.
        abouts: what each stream is, by name.
        command: what to run to make the page again.
    """
    rows = rows_of(runs)
    styles = looks(list(dict.fromkeys(row.mechanism for row in rows)))
    labels = _labels(rows)
    with matplotlib.rc_context(STYLE):
        drawn = [_dots(rows, labels, styles, one) for one in _DRAWN]
        courses = list(_courses(runs, labels, styles))
    measures = {measure.name: measure for measure in MEASURES}
    return template(Path(__file__).parent / "infinite.html.jinja").render(
        palette=_COLOURS,
        dark={f"series{i}": dark for i, (_, dark) in enumerate(SERIES)},
        looks=styles,
        ending=list(dict.fromkeys(row.mechanism for row in rows if not row.infinite)),
        not_infinite=NOT_INFINITE,
        streams=list(abouts),
        budgets=[f"{epsilon:g}" for epsilon in dict.fromkeys(row.epsilon for row in rows)],
        seeds=rows[0].seeds,
        charts=[(measures[one.name], svg) for one, svg in zip(_DRAWN, drawn, strict=True)],
        courses=courses,
        measures=MEASURES,
        rows=[(row, labels[row.case], figures_of(row, MEASURES)) for row in rows],
        no_data=NO_DATA,
        worthless={labels[case]: names for case, names in worthless(rows).items()},
        facts=abouts,
        version=version("streamveil"),
        command=command,
    )


def _labels(rows: Sequence[InfiniteRow]) -> dict[Case, str]:
    """A short name for each case: the stream, and epsilon if it differs."""
    several = len({row.epsilon for row in rows}) > 1
    return {
        row.case: f"{row.stream}, epsilon {row.epsilon:g}" if several else row.stream
        for row in rows
    }


def _dots(
    rows: Sequence[InfiniteRow],
    labels: Mapping[Case, str],
    styles: Mapping[str, Look],
    one: _Figure,
) -> Markup:
    (title,) = (measure.title for measure in MEASURES if measure.name == one.name)
    dots = Dots(rows, labels, styles, one.name, one.log, one.limit)
    return chart(
        one.name,
        f"{title} of each mechanism, by stream",
        dots.draw,
        wide=(one.width, dots.height(one.width)),
        narrow=(350, dots.height(350)),
        palette=_COLOURS,
    )


def _courses(
    runs: Sequence[InfiniteRun], labels: Mapping[Case, str], styles: Mapping[str, Look]
) -> Iterator[tuple[str, Markup]]:
    """Error over the slots in each case, with its label."""
    for i, (case, label) in enumerate(list(labels.items())[:MOST_COURSES]):
        mine = [run for run in runs if run.case == case]
        stretch = -(-mine[0].slots // _POINTS)
        courses = {
            name: course_of([run.course for run in mine if run.mechanism == name], stretch)
            for name in styles
        }
        svg = chart(
            f"course{i}",
            f"{MEASURES[0].title} over the slots, {label}",
            partial(draw_course, courses=courses, looks=styles, stretch=stretch),
            wide=(540, 230),
            narrow=(350, 210),
            palette=_COLOURS,
        )
        yield label, svg


def course_of(courses: Sequence[npt.NDArray[np.float64]], stretch: int) -> npt.NDArray[np.float64]:
    """Mean of all runs in each stretch of slots, NaN where nothing is known.

    Args:
        courses: of each run, shape (T,), NaN where nothing is known.
        stretch: slots of each; the last one may have fewer.
    """
    table = np.stack(courses)
    starts = np.arange(0, table.shape[1], stretch)
    known = ~np.isnan(table)
    sums = np.add.reduceat(np.where(known, table, 0.0).sum(axis=0), starts)
    numbers = np.add.reduceat(known.sum(axis=0), starts)
    return np.where(numbers > 0, sums / np.maximum(numbers, 1), np.nan)
