"""A page for people: which mechanism errs least, how sure that is, and all figures.

One HTML file that needs nothing else: charts are inline SVG, there is no script and no address.
Its figures are computed from TRUE counts, so it is as raw as the data it was made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
from markupsafe import Markup

from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.core.number_text import number_of
from streamveil.pipelines.evaluation.charts import Dots, Look, draw_course, draw_trend, looks
from streamveil.pipelines.evaluation.comparison_table import ComparisonTable, Measure, Row
from streamveil.pipelines.pages.document import document, stylesheet
from streamveil.pipelines.pages.sheet import Sheet, chart
from streamveil.pipelines.pages.templates import template

# More charts of the same kind than this are not read: the table has the rest.
MOST_LINES = 12
# Points of a line over the slots.
_POINTS = 40
_HERE = Path(__file__).parent
_SIZES = ("users", "slots", "bins", "records")

_Drawn = tuple[str, str, Markup]
"""Headline of a chart, what it is about, and the chart."""


def page_of(comparison: ComparisonTable) -> str:
    """The page as HTML."""
    rows, labels, family = comparison.rows, comparison.labels, comparison.family
    styles = looks(list(dict.fromkeys(row.mechanism for row in rows)))
    shown = [measure for measure in family.measures if measure.name not in family.undrawn]
    drawn = {one.name: _dots(comparison, styles, one) for one in shown}
    body = template(_HERE / family.template).render(
        looks=styles,
        marks={row.mechanism: comparison.mark_of(row) for row in rows},
        seeds=rows[0].facts["seeds"],
        wide=[drawn[name] for name in family.wide],
        narrow=[svg for name, svg in drawn.items() if name not in family.wide],
        trends=list(_trends(comparison, styles)),
        courses=list(_courses(comparison, styles)) if family.over_slots else [],
        measures=family.measures,
        measured=list(labels.values()),
        rows=[(row.mechanism, labels[row.case], comparison.figures_of(row)) for row in rows],
        notes=comparison.notes,
        facts={row.case[0]: _fact(comparison, row) for row in rows},
        version=version("streamveil"),
        command=comparison.command,
        **family.findings(comparison),
    )
    return document(family.title, stylesheet(_HERE / "comparison.css"), body)


def _fact(comparison: ComparisonTable, row: Row) -> str:
    """What a stream is, and its size."""
    sizes = [number_of(row.facts[one], one[:-1]) for one in _SIZES if one in row.facts]
    about = comparison.abouts.get(row.case[0])
    return "; ".join(part for part in (about, ", ".join(sizes)) if part)


def _dots(comparison: ComparisonTable, styles: dict[str, Look], measure: Measure) -> _Drawn:
    name, family = measure.name, comparison.family
    log, limit = name in family.log, family.limits.get(name)
    cases = ", ".join(column.title for column in family.case)
    dots = Dots(comparison.rows, comparison.labels, styles, measure, cases, log, limit)
    width = 1100 if name in family.wide else 540
    svg = chart(
        f"{measure.title} of each mechanism, by stream",
        dots.draw,
        wide=(width, dots.height(width)),
        narrow=(350, dots.height(350)),
    )
    return measure.title[:1].upper() + measure.title[1:], measure.meaning, svg


def _lines(title: str, draw: Callable[[Sheet], object]) -> Markup:
    return chart(title, draw, wide=(540, 250), narrow=(350, 230))


def _trends(comparison: ComparisonTable, styles: dict[str, Look]) -> Iterator[_Drawn]:
    """The error over each number of the setting of which several were run, the rest as it is."""
    error, columns = comparison.family.measures[0], comparison.family.case
    groups: dict[tuple[int, str], list[Row]] = {}
    for i in (i for i, column in enumerate(columns) if column.kind is not str):
        for row in comparison.rows:
            rest = [
                column.word.format(value).replace(" ", " " if column.kind is str else " = ", 1)
                for j, (column, value) in enumerate(zip(columns, row.case, strict=True))
                if j != i
            ]
            groups.setdefault((i, ", ".join(rest)), []).append(row)
    several = [
        (key, rows) for key, rows in groups.items() if len({r.case[key[0]] for r in rows}) > 1
    ]
    for (i, title), rows in several[:MOST_LINES]:
        column = columns[i]
        draw = partial(draw_trend, rows=rows, looks=styles, over=column, measure=error)
        name, _, _ = column.word.partition(" ")  # of the number, as in labels of cases
        about = f"{error.title} over {name} on {title}"
        yield title, error.title, _lines(about, draw)


def _courses(comparison: ComparisonTable, styles: dict[str, Look]) -> Iterator[_Drawn]:
    """The error over the slots in each case."""
    error = comparison.family.measures[0]
    for case, label in list(comparison.labels.items())[:MOST_LINES]:
        found: dict[str, list[Floats]] = {name: [] for name in styles}
        for run in comparison.runs:
            if comparison.family.case_of(run) == case and run.course is not None:
                found[run.mechanism].append(run.course)
        stretch = -(-len(next(iter(found.values()))[0]) // _POINTS)
        courses = {name: course_of(one, stretch) for name, one in found.items()}
        draw = partial(draw_course, courses=courses, looks=styles, stretch=stretch, measure=error)
        yield label, error.title, _lines(f"{error.title} over the slots, {label}", draw)


def course_of(courses: Sequence[Floats], stretch: int) -> Floats:
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
