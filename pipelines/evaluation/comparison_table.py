"""What ran on which cases, what was measured, and the table of it.

A case is a stream, or data, in one setting, such as a budget and a window. On each of them every
mechanism runs once for each seed. Cases and measures are those of a family of mechanisms: see
`w_event.py`, `infinite.py` and `per_record.py`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.randomness.noise import KEY_BYTES
from streamveil.pipelines.reports.result import Result

if TYPE_CHECKING:
    import pyarrow as pa

Case = tuple[Any, ...]
"""What is compared with each other: values of the columns before the mechanism."""

MECHANISM, SEEDS, ADVICE = "mechanism", "seeds", "advice"
_STDERR = "_stderr"


class Measure(NamedTuple):
    """One figure of a run."""

    name: str
    """Key of what is measured and column of the table."""
    title: str
    """Its name for people."""
    meaning: str
    unit: str = "share"
    """Of its axis in a chart."""

    @property
    def axis(self) -> str:
        """The title of an axis with it."""
        return f"{self.title}, {self.unit}" if self.unit not in self.title else self.title


class Column(NamedTuple):
    """What the table tells of a row beside its figures."""

    name: str
    kind: type
    title: str = ""
    """In the table for people, which leaves it out without one."""
    word: str = "{}"
    """Format of a value in the label of a case; the name of a number comes first."""
    unless: str = ""
    """Text for a mechanism for which the value is false."""
    axis: str = ""
    """The title of an axis with it, of a number of the setting."""


@dataclass(frozen=True)
class Task:
    """What one process does at a time: mechanisms on one draw of a case."""

    source: Any
    """The stream or data; it has a `name`, and says `about` itself what it is."""
    setting: tuple[Any, ...]
    """What makes a case of it: values of the columns between source and mechanism."""
    seed: int
    mechanisms: tuple[str, ...]
    """Names with options."""


@dataclass(frozen=True, eq=False)
class Run:
    """One mechanism on one draw of a case."""

    facts: Mapping[str, Any]
    """The case, the mechanism and sizes, by column."""
    seed: int
    figures: Mapping[str, float]
    """By name of the measure; NaN where it is not known."""
    course: Floats | None = None
    """Errors one after the other: of each slot, or of each release of a draw; NaN where it is not
    known."""

    @property
    def mechanism(self) -> str:
        """Its name, with options."""
        return str(self.facts[MECHANISM])


@dataclass(frozen=True, eq=False)
class Row:
    """All runs of one mechanism on one case."""

    case: Case
    facts: Mapping[str, Any]
    """By column."""
    means: Mapping[str, float]
    """Mean over seeds of each measure, by name; seeds where it is NaN are left out."""
    errors: Mapping[str, float]
    """Standard error of each mean, NaN with fewer than two seeds."""

    @property
    def mechanism(self) -> str:
        """Its name, with options."""
        return str(self.facts[MECHANISM])


class Family:
    """Mechanisms that keep the same promise: how they run, and how the results are described.

    One without state, so that it can be sent to other processes.
    """

    columns: tuple[Column, ...]
    """Of the table, in order, before the figures; those before the mechanism make the case."""
    measures: tuple[Measure, ...]
    """The first one is the error."""
    log: tuple[str, ...]
    """Measures whose charts have logarithmic scales."""
    wide: tuple[str, ...]
    """Those whose charts are as wide as the page."""
    undrawn: tuple[str, ...] = ()
    """Those without a chart."""
    limits: Mapping[str, float] = {}
    """What a chart marks: the value that a measure should have, or must not exceed."""
    title: str
    """Of the page."""
    template: str
    """Of the body of the page: the name of a file beside this one."""
    coverages: tuple[str, ...] = ()
    """Measures of how much of the truth intervals hold: a low one keeps a mechanism from being
    advised."""
    coverages_of_parts: tuple[str, ...] = ()
    """The same of a part of the truth: advice reports a low one."""
    over_slots = False
    """Whether the page shows the error over the slots."""

    def check(self, source: Any, setting: tuple[Any, ...], mechanisms: Sequence[str]) -> None:
        """Raise ConfigurationError for what :meth:`run` could not do."""
        raise NotImplementedError

    def run(self, task: Task) -> list[Run]:
        """Do a task: a run of each mechanism. Raises BudgetExceeded when a filter refuses."""
        raise NotImplementedError

    def remarks(self, runs: Sequence[Run]) -> Mapping[tuple[Case, str], str]:
        """What the column `advice` says, by case and mechanism."""
        return {}

    def advice(self, comparison: ComparisonTable) -> list[str]:
        """The recommendation, as lines of text."""
        return []

    def findings(self, comparison: ComparisonTable) -> Mapping[str, Any]:
        """What the template needs in addition to the charts and the table."""
        return {}

    @property
    def case(self) -> tuple[Column, ...]:
        """The columns that make a case."""
        names = [column.name for column in self.columns]
        return self.columns[: names.index(MECHANISM)]

    def case_of(self, run: Run) -> Case:
        """The case of a run."""
        return tuple(run.facts[column.name] for column in self.case)

    def label(self, case: Case) -> str:
        """A case in words."""
        return ", ".join(c.word.format(v) for c, v in zip(self.case, case, strict=True))


@dataclass(frozen=True, repr=False, eq=False)
class ComparisonTable(Result):
    """The results of a comparison as a table.

    They are computed from true counts and are not private.
    """

    family: Family
    """The family of the mechanisms, with its columns and measures."""
    runs: Sequence[Run]
    """The runs. Each case has the same mechanisms and seeds."""
    abouts: Mapping[str, str]
    """A description of each stream or data set, by name; empty if its size says all."""
    notes: Sequence[str] = ()
    """Further remarks, as lines of text."""
    command: str = ""
    """The command that repeats the comparison."""

    @cached_property
    def rows(self) -> list[Row]:
        """The runs of each case and mechanism, averaged over seeds."""
        groups: dict[tuple[Case, str], list[Run]] = {}
        for run in self.runs:
            groups.setdefault((self.family.case_of(run), run.mechanism), []).append(run)
        remarks = self.family.remarks(self.runs)
        return [
            Row(
                key[0],
                {**group[0].facts, SEEDS: len(group), ADVICE: remarks.get(key, "")},
                *_means_and_errors(group),
            )
            for key, group in groups.items()
        ]

    @property
    def advice(self) -> list[str]:
        """The recommendation, as lines of text."""
        return [*self.family.advice(self), *self.notes]

    @property
    def summary(self) -> str:
        """The Markdown table and the recommendation."""
        return "\n".join([self.markdown, *self.advice])

    def __str__(self) -> str:
        return self.summary

    @cached_property
    def labels(self) -> dict[Case, str]:
        """A short name of each case, with the numbers that differ between cases."""
        cases = list(dict.fromkeys(row.case for row in self.rows))
        shown = [
            (i, column)
            for i, column in enumerate(self.family.case)
            if column.kind is str or len({case[i] for case in cases}) > 1
        ]
        return {case: ", ".join(c.word.format(case[i]) for i, c in shown) for case in cases}

    def mark_of(self, row: Row) -> str:
        """Remarks about the mechanism of a row, for example that it gives another guarantee."""
        return ", ".join(
            c.unless for c in self.family.columns if c.unless and not row.facts[c.name]
        )

    def figures_of(self, row: Row) -> list[str]:
        """Each measure of a row with its standard error, as text."""
        return [figure(row.means[one.name], row.errors[one.name]) for one in self.family.measures]

    def to_arrow(self) -> pa.Table:
        """Return an Arrow table with a row for each case and mechanism.

        After the columns of the case there are each measure and its standard error, NAME_stderr.
        Unknown values are null.
        """
        import pyarrow as pa

        kinds = {str: pa.string(), float: pa.float64(), int: pa.int64(), bool: pa.bool_()}
        columns = {
            column.name: pa.array([row.facts[column.name] for row in self.rows], kinds[column.kind])
            for column in self.family.columns
        }
        for name in (one.name for one in self.family.measures):
            for ending, values in (
                ("", [row.means[name] for row in self.rows]),
                (_STDERR, [row.errors[name] for row in self.rows]),
            ):
                columns[name + ending] = pa.array(np.array(values, float), from_pandas=True)
        return pa.table(columns)

    @cached_property
    def markdown(self) -> str:
        """A Markdown table. Numbers are rounded according to their standard error."""
        titled = [column for column in self.family.columns if column.title]
        behind = [column for column in titled if column.name == ADVICE]
        before = [column for column in titled if column not in behind]
        titles = [c.title for c in before] + [m.title for m in self.family.measures]
        rows = [
            [self._cell(row, column) for column in before]
            + self.figures_of(row)
            + [self._cell(row, column) for column in behind]
            for row in self.rows
        ]
        texts = [column.title for column in titled if column.kind is str]
        return _aligned(titles + [column.title for column in behind], rows, texts)

    def _cell(self, row: Row, column: Column) -> str:
        value = row.facts[column.name]
        if column.name == MECHANISM:
            mark = self.mark_of(row)
            return f"{value} ({mark})" if mark else str(value)
        return f"{value:g}" if column.kind is float else str(value)

    def write(self, path: str) -> None:
        """Write the Markdown table to a file ending in .md, or all numbers in another format.

        Raises:
            ConfigurationError: if the file exists, or its ending is unknown.
        """
        from streamveil.io import write_table, write_text

        if path.endswith(".md"):
            write_text(path, self.markdown)
        else:
            table = self.to_arrow()
            write_table(path, table.schema, table.to_batches())


def noise_key(seed: int, what: str = "streamveil") -> bytes:
    """The noise key of a seed: it is public, so never use it for a release that protects users."""
    return hashlib.blake2b(f"{what} evaluate {seed}".encode(), digest_size=KEY_BYTES).digest()


def _means_and_errors(runs: Sequence[Run]) -> tuple[dict[str, float], dict[str, float]]:
    """Mean and standard error of each measure, by name; the error of equal figures is 0."""
    means, errors = {}, {}
    for name in runs[0].figures:
        values = np.array([run.figures[name] for run in runs], dtype=float)
        known = values[~np.isnan(values)]
        means[name] = float(known.mean()) if len(known) else math.nan
        # The mean of equal figures may be rounded; their distance from the first is not.
        apart = known - known[:1]
        errors[name] = (
            float(apart.std(ddof=1)) / math.sqrt(len(known)) if len(known) > 1 else math.nan
        )
    return means, errors


def _aligned(titles: Sequence[str], rows: Sequence[Sequence[str]], texts: Sequence[str]) -> str:
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
