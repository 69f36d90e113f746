"""The table of a comparison: a row for each stream, E, w and mechanism, as CSV or Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from streamveil.io import write_table, write_text
from streamveil.pipelines.evaluation.choose import Choice, choose, errors_by_case
from streamveil.pipelines.evaluation.compare import Run
from streamveil.pipelines.evaluation.measures import MEASURES, Measure

_STDERR = "_stderr"

BEST, TIED, BETTER_COMPARATOR = "choose", "tie", "less error, comparator"


@dataclass(frozen=True)
class Row:
    """All runs of one mechanism on one stream under one requirement."""

    stream: str
    epsilon: float
    window: int
    mechanism: str
    users: int
    slots: int
    bins: int
    seeds: int
    means: Mapping[str, float]
    """Mean over seeds of each of `MEASURES`, by name; seeds where it is NaN left out."""
    errors: Mapping[str, float]
    """Standard error of each mean, NaN with fewer than two seeds."""
    advice: str
    """`choose`, `tie` (both are advised alike), `less error, comparator`, or nothing."""

    @property
    def case(self) -> tuple[str, float, int]:
        """What the row is compared on."""
        return self.stream, self.epsilon, self.window


def rows_of(runs: Sequence[Run]) -> list[Row]:
    """Sum the runs up, in their order."""
    groups: dict[tuple[str, float, int, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.stream, run.epsilon, run.window, run.mechanism), []).append(run)
    choices = {case: choose(errors) for case, errors in errors_by_case(runs).items()}
    return [
        Row(
            *key,
            group[0].users,
            group[0].slots,
            group[0].bins,
            len(group),
            *means_and_errors([run.measured for run in group], MEASURES),
            _advice(choices[key[:3]], key[3]),
        )
        for key, group in groups.items()
    ]


def means_and_errors(
    measured: Sequence[object], measures: Sequence[Measure]
) -> tuple[dict[str, float], dict[str, float]]:
    """Mean and standard error of each measure, by name.

    Args:
        measured: have an attribute of each name; those where it is NaN are left out.
        measures: what to take.
    """
    means, errors = {}, {}
    for measure in measures:
        values = np.array([getattr(one, measure.name) for one in measured], dtype=float)
        known = values[~np.isnan(values)]
        means[measure.name] = float(known.mean()) if len(known) else math.nan
        spread = float(known.std(ddof=1)) / math.sqrt(len(known)) if len(known) > 1 else math.nan
        errors[measure.name] = spread
    return means, errors


def _advice(choice: Choice, mechanism: str) -> str:
    if mechanism in choice.better_comparators:
        return BETTER_COMPARATOR
    if mechanism in choice.advised:
        return TIED if choice.tied else BEST
    return ""


class Compared(Protocol):
    """All runs of one thing: what it was, in fields of its own, and what came out."""

    @property
    def means(self) -> Mapping[str, float]:
        """By name of the measure."""

    @property
    def errors(self) -> Mapping[str, float]:
        """Standard errors of the means."""


def schema_of(plain: Mapping[str, pa.DataType], measures: Sequence[Measure]) -> pa.Schema:
    """Columns of a table: what was run, and each measure with its standard error."""
    figures = [(one.name + end, pa.float64()) for one in measures for end in ("", _STDERR)]
    return pa.schema([*plain.items(), *figures])


def batch_of(rows: Sequence[Compared], schema: pa.Schema) -> pa.RecordBatch:
    """All rows with all figures, in columns of :func:`schema_of`; what is not known is null."""

    def cell(row: Compared, column: str) -> object:
        measure = column.removesuffix(_STDERR)
        if measure not in row.means:
            return getattr(row, column)
        value = (row.means if column == measure else row.errors)[measure]
        return None if math.isnan(value) else value

    cells = [{column: cell(row, column) for column in schema.names} for row in rows]
    return pa.RecordBatch.from_pylist(cells, schema=schema)


def write_rows(path: str, rows: Sequence[Compared], schema: pa.Schema, text: str) -> None:
    """Write the table: `text`, which is for people, to a name in .md, else all figures."""
    if path.endswith(".md"):
        write_text(path, text)
    else:
        write_table(path, schema, [batch_of(rows, schema)])


SCHEMA = schema_of(
    {
        "stream": pa.string(),
        "epsilon": pa.float64(),
        "window": pa.int64(),
        "mechanism": pa.string(),
        "users": pa.int64(),
        "slots": pa.int64(),
        "bins": pa.int64(),
        "seeds": pa.int64(),
        "advice": pa.string(),
    },
    MEASURES,
)


def markdown(rows: Sequence[Row]) -> str:
    """A table for people, aligned, with the figures rounded to what their noise allows."""
    titles = ["stream", "E", "w", "mechanism", *(m.title for m in MEASURES), "advice"]
    cells = [
        [
            *(row.stream, f"{row.epsilon:g}", str(row.window), row.mechanism),
            *(*figures_of(row, MEASURES), row.advice),
        ]
        for row in rows
    ]
    return aligned(titles, cells, ("stream", "mechanism", "advice"))


def aligned(titles: Sequence[str], rows: Sequence[Sequence[str]], texts: Sequence[str]) -> str:
    """A Markdown table in which the columns named in `texts` stand left, numbers right."""
    cells = [titles, *rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(titles))]
    right = [title not in texts for title in titles]

    def line(one: Sequence[str]) -> str:
        padded = (
            text.rjust(width) if number else text.ljust(width)
            for text, width, number in zip(one, widths, right, strict=True)
        )
        return f"| {' | '.join(padded)} |"

    rule = (
        "-" * (width - 1) + (":" if number else "-")
        for width, number in zip(widths, right, strict=True)
    )
    return "\n".join([line(titles), f"| {' | '.join(rule)} |", *map(line, cells[1:])]) + "\n"


def figures_of(row: Compared, measures: Sequence[Measure]) -> list[str]:
    """Each measure with its standard error, as text."""
    return [figure(row.means[one.name], row.errors[one.name]) for one in measures]


def figure(mean: float, error: float) -> str:
    """A mean with its standard error, as in `1,478 ± 20`; a dash when it is not known."""
    if math.isnan(mean):
        return "-"
    text = number(mean)
    return text if math.isnan(error) else f"{text} ± {number(error, 2)}"


def number(value: float, digits: int = 3) -> str:
    """So many digits, or all before the point if they are not too many."""
    if abs(value) >= 1e7:
        return f"{value:.{digits}g}"
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"
