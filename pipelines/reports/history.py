"""The last slots of a stream, as they stand in the files of its passes: what was released.

Files are read when somebody looks at the page. The passes only say which there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.io import read_table
from streamveil.io.revisions import tidy_table
from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.core.records import (
    ConfigurationError,
    MachineFault,
    Slots,
    parse_time,
)
from streamveil.mechanisms.queries.queries import Query
from streamveil.pipelines.console.errors import in_one_line

T = TypeVar("T")

SLOTS_SHOWN = 60
_CELL = ("value", "low", "high")


@dataclass(frozen=True, eq=False)
class ShownSlot:
    """What is shown of a slot."""

    slot: int
    status: str
    """Of a revision it says nothing more."""
    cells: Floats
    """Each figure, then the ends of its interval of 90 %, shape (bins, figures, 3); NaN where
    nothing is known."""
    revised: Floats | None = None
    """The same as it was revised later."""
    revised_at: int | None = None
    """Microseconds."""
    notes: Sequence[str | None] = ()
    """What is to be said of each figure, bin by bin; empty where there is nothing."""
    ranks: Sequence[int | None] = ()
    """Of the bins, where a query asks for the largest."""


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
    rows: Callable[[pa.Table], pa.Table]
    """The tidy rows about these slots in a table of results or revisions."""
    shown: list[ShownSlot] = field(default_factory=list)

    def of(self, table: pa.Table) -> list[ShownSlot]:
        """The last slots of a table, in their order."""
        size = len(self.labels) * len(self.outputs)
        rows = self.rows(table)
        rows = rows.slice(max(0, rows.num_rows - SLOTS_SHOWN * size))
        shape = -1, len(self.labels), len(self.outputs)
        cells = np.stack([_floats(rows, name).reshape(shape) for name in _CELL], axis=-1)
        names = set(rows.column_names)
        notes = rows["note"].to_pylist() if "note" in names else []
        ranks = rows["rank"].to_pylist() if "rank" in names else []
        firsts = rows.select(sorted(names & {"slot", "status", "revised_at"})).to_pylist()[::size]
        found = []
        for i, first in enumerate(firsts):
            part = slice(i * size, (i + 1) * size)
            revised_at = first.get("revised_at")
            found.append(
                ShownSlot(
                    first["slot"],
                    first["status"],
                    cells[i],
                    revised_at=None if revised_at is None else parse_time(revised_at),
                    notes=notes[part] if any(notes[part]) else (),
                    ranks=ranks[part][:: len(self.outputs)],
                )
            )
        return found

    def extend(self, newer: Iterable[ShownSlot]) -> None:
        """Take slots that come after those which are there."""
        self.shown = [*self.shown, *newer][-SLOTS_SHOWN:]

    def revise(self, revisions: Iterable[ShownSlot]) -> None:
        """Take what slots were revised to."""
        found = {one.slot: one for one in revisions}
        for i, one in enumerate(self.shown):
            new = found.get(one.slot)
            if new is not None:
                self.shown[i] = replace(one, revised=new.cells, revised_at=new.revised_at)


@dataclass(eq=False)
class History:
    """The last slots of one stream or query: in its own slots first, then in longer times."""

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
        found, unread = _newest(files.get(self.results, ()), self.series)
        for series, newer in zip(self.series, found, strict=True):
            series.extend(newer)
        (revised,), more = _newest(files.get(self.revisions or "", ()), self.series[:1])
        self.series[0].revise(revised)
        return unread + more


def _newest(
    paths: Sequence[str], series: Sequence[Series]
) -> tuple[list[list[ShownSlot]], list[str]]:
    """The newest slots of each series in these files, and what cannot be read."""
    found: list[list[ShownSlot]] = [[] for _ in series]
    unread = []
    for read in tables(paths, lambda table: [one.of(table) for one in series]):
        if isinstance(read, str):
            unread.append(read)
            continue
        for mine, older in zip(found, read, strict=True):
            mine[:0] = older
        if len(found[0]) >= SLOTS_SHOWN:
            break
    return found, unread


def of_releases(slots: Slots, labels: Sequence[str]) -> Series:
    """The slots of a stream of histograms, from releases or revisions of either layout."""

    def rows(table: pa.Table) -> pa.Table:
        if "key" not in table.column_names:  # each row is a slot
            table = table.slice(max(0, table.num_rows - SLOTS_SHOWN))
        return tidy_table(table, labels)

    return Series(slots, labels, ("count",), rows)


def of_answers(query: Query, slots: Slots) -> Series:
    """The answers to a query in slots of this length, as `WriteAnswers` writes them."""

    def rows(table: pa.Table) -> pa.Table:
        of_query = pc.equal(table["query"], query.name)  # a file of revisions has those of all
        return table.filter(pc.and_(of_query, pc.equal(table["length"], slots.text)))

    return Series(slots, query.tree.labels(query.domain), query.statistic.outputs, rows)


def _floats(table: pa.Table, name: str) -> Floats:
    """A column of numbers or nulls, which are NaN."""
    column = pc.fill_null(table[name].cast(pa.float64()), np.nan)
    floats: Floats = column.to_numpy()
    return floats
