"""The last slots of a stream, as they stand in the files of its passes: what was released.

Files are read when somebody looks at the page. The passes only say which there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.io import read_table
from streamveil.io.releases import json_values
from streamveil.mechanisms.core.records import (
    ConfigurationError,
    MachineFault,
    Slots,
    format_duration,
    parse_time,
)
from streamveil.mechanisms.core.tidy import interval
from streamveil.mechanisms.portfolio.questions import Question
from streamveil.pipelines.errors import in_one_line

Floats = npt.NDArray[np.float64]
T = TypeVar("T")

SLOTS_SHOWN = 60


@dataclass(frozen=True, eq=False)
class Figures:
    """Figures of all bins of a slot with their intervals of 90 %, each of shape (bins, figures).

    NaN where nothing is known.
    """

    values: Floats
    low: Floats
    high: Floats

    @classmethod
    def of_counts(cls, counts: Any, stderr: Any) -> Figures:
        """Of a row of releases or of revisions: lists, or their JSON from a CSV file."""
        values = np.array(json_values(counts), np.int64)
        ends = interval(values, np.array(json_values(stderr), np.float64))
        return cls(*(each[:, None] for each in (values.astype(np.float64), *ends)))


@dataclass(frozen=True, eq=False)
class ShownSlot:
    """What is shown of a slot."""

    slot: int
    start: int
    """Microseconds, as are `end` and `revised_at`."""
    end: int
    status: str
    """Of a revision there is none."""
    figures: Figures
    revised: Figures | None = None
    """As it was revised later."""
    revised_at: int | None = None
    notes: Sequence[str | None] = ()
    """What is to be said of each figure, bin by bin; empty where there is nothing."""
    ranks: Sequence[int | None] = ()
    """Of the bins, where a question asks for the largest."""


Rows = Callable[[pa.Table], Iterable[ShownSlot]]


Files = Mapping[str, Sequence[str]]
"""Paths of results that nobody has read yet, the newest first, by kind."""


def tables(paths: Iterable[str], of: Callable[[pa.Table], T]) -> Iterator[T | str]:
    """What `of` makes of each table with rows; of a file that cannot be read, why."""
    for path in paths:
        try:
            table = read_table(path)
            if table.num_rows:
                yield of(table)
        # Anything may be in a file that somebody put in its place.
        except (ConfigurationError, MachineFault, OSError, KeyError, ValueError) as error:
            yield f"{path} cannot be shown: {in_one_line(str(error))}"


@dataclass(eq=False)
class Series:
    """The last slots of one length, oldest first."""

    slots: Slots
    labels: Sequence[str]
    outputs: Sequence[str]
    """Names of the figures."""
    rows: Rows
    """What a table of results says of its slots, in their order."""
    shown: list[ShownSlot] = field(default_factory=list)

    def extend(self, newer: Iterable[ShownSlot]) -> None:
        """Take slots that come after those which are there."""
        self.shown = [*self.shown, *newer][-SLOTS_SHOWN:]

    def revise(self, revisions: Iterable[ShownSlot]) -> None:
        """Take what slots were revised to."""
        found = {one.slot: one for one in revisions}
        for i, one in enumerate(self.shown):
            new = found.get(one.slot)
            if new is not None:
                self.shown[i] = replace(one, revised=new.figures, revised_at=new.revised_at)


@dataclass(eq=False)
class History:
    """The last slots of one stream or question: in its own slots first, then in longer times."""

    name: str
    about: str
    """What its figures are, in a sentence."""
    unit: str
    """Of its figures."""
    largest: bool
    """Whether the largest bins matter most; else those with the narrowest intervals."""
    series: Sequence[Series]
    results: str
    """Kind of the files of results."""
    revisions: str | None = None
    """Kind of those of revisions."""

    def read(self, files: Files) -> list[str]:
        """Take the newest slots of these files; gives what cannot be read, and why."""
        newer: list[list[ShownSlot]] = [[] for _ in self.series]
        unread = []
        for found in tables(files.get(self.results, ()), self._of_all):
            if isinstance(found, str):
                unread.append(found)
                continue
            for mine, older in zip(newer, found, strict=True):
                mine[:0] = older
            if len(newer[0]) >= SLOTS_SHOWN:
                break
        for series, mine in zip(self.series, newer, strict=True):
            series.extend(mine)
        return unread + self._revise(files.get(self.revisions or "", ()))

    def _of_all(self, table: pa.Table) -> list[list[ShownSlot]]:
        return [list(series.rows(table)) for series in self.series]

    def _revise(self, paths: Sequence[str]) -> list[str]:
        own = self.series[0]
        found: list[ShownSlot] = []
        unread = []
        for some in tables(paths, lambda table: list(own.rows(table))):
            if isinstance(some, str):
                unread.append(some)
                continue
            found += some
            if len(found) >= SLOTS_SHOWN:
                break
        own.revise(found)
        return unread


def of_releases(slots: Slots, labels: Sequence[str]) -> Series:
    """The slots of a stream of histograms, from releases or revisions of either layout."""

    def rows(table: pa.Table) -> Iterator[ShownSlot]:
        return (_tidy if "bin" in table.column_names else _rows)(table, slots, len(labels))

    return Series(slots, labels, ("count",), rows)


def _rows(table: pa.Table, slots: Slots, _: int) -> Iterator[ShownSlot]:
    """Of a table with a row for each slot."""
    for row in _last(table, SLOTS_SHOWN).to_pylist():
        yield ShownSlot(
            row["slot"],
            slots.start(row["slot"]),
            slots.end(row["slot"]),
            row.get("status", ""),
            Figures.of_counts(row["counts"], row["stderr"]),
            revised_at=_time(row.get("revised_at")),
        )


def _tidy(table: pa.Table, slots: Slots, bins: int) -> Iterator[ShownSlot]:
    """Of a table with a row for each slot and bin."""
    table = _last(table, SLOTS_SHOWN * bins)
    counts, low, high = (_floats(table, name, (-1, bins, 1)) for name in ("count", "low", "high"))
    names = [name for name in ("slot", "status", "revised_at") if name in table.column_names]
    for i, row in enumerate(table.select(names).to_pylist()[::bins]):
        yield ShownSlot(
            row["slot"],
            slots.start(row["slot"]),
            slots.end(row["slot"]),
            row.get("status", ""),
            Figures(counts[i], low[i], high[i]),
            revised_at=_time(row.get("revised_at")),
        )


def of_answers(question: Question, slots: Slots) -> Series:
    """The answers to a question in slots of this length, as `WriteAnswers` writes them."""
    labels, outputs = question.tree.labels(question.domain), question.statistic.outputs
    shape = -1, len(labels), len(outputs)
    size = len(labels) * len(outputs)

    def rows(table: pa.Table) -> Iterator[ShownSlot]:
        own = table.filter(pc.equal(table["length"], format_duration(slots.length)))
        own = _last(own, SLOTS_SHOWN * size)
        values, low, high = (_floats(own, name, shape) for name in ("value", "low", "high"))
        notes = own["note"].to_pylist()
        ranks = own["rank"].to_pylist() if "rank" in own.column_names else []
        firsts = own.select(["slot", "start", "end", "status"]).to_pylist()[::size]
        for i, first in enumerate(firsts):
            part = slice(i * size, (i + 1) * size)
            yield ShownSlot(
                first["slot"],
                parse_time(first["start"]),
                parse_time(first["end"]),
                first["status"],
                Figures(values[i], low[i], high[i]),
                notes=notes[part] if any(notes[part]) else (),
                ranks=ranks[part][:: len(outputs)],
            )

    return Series(slots, labels, outputs, rows)


def _last(table: pa.Table, rows: int) -> pa.Table:
    return table.slice(max(0, table.num_rows - rows))


def _floats(table: pa.Table, name: str, shape: tuple[int, int, int]) -> Floats:
    """A column of numbers or nulls, which are NaN."""
    column = pc.fill_null(table[name].cast(pa.float64()), np.nan)
    floats: Floats = column.to_numpy().reshape(shape)
    return floats


def _time(told: Any) -> int | None:
    return None if told is None else parse_time(told)
