"""Counts of real events for a comparison: read once, counted by class, kept in a file.

Nothing here is private: it is for data that whoever compares mechanisms may see.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamveil.engine.count.changes import stranger_keys
from streamveil.engine.count.event_codes import MEMBERS, Layout, Visits, read_codes
from streamveil.engine.count.unprotected import Beyond, exact
from streamveil.engine.encode.event_mapper import Columns
from streamveil.engine.encode.numbers import as_numbers
from streamveil.engine.stream.histogram_plan import HistogramPlan
from streamveil.io import REJECTED_SCHEMA, CsvDialect, read_events, read_requirements, write_table
from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.core.domains import Categories
from streamveil.mechanisms.core.records import (
    ADD_REMOVE,
    UNIFORM,
    ConfigurationError,
    Slots,
    parse_time,
)
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.core.wording import opt
from streamveil.mechanisms.randomness.noise import KEY_BYTES
from streamveil.mechanisms.registry import DEFAULT
from streamveil.pipelines.console.progress import progress
from streamveil.pipelines.evaluation.sources import Bound, Counted, Original
from streamveil.pipelines.plans.inputs import Inputs
from streamveil.pipelines.sample_data.flights import (
    DESTINATIONS,
    TIME,
    USER,
    VALUE,
    YEAR,
    write_demo_input,
)
from streamveil.pipelines.sample_data.streams import REAL, population

C = TypeVar("C")

# Requirements of users without a table, to be scaled to each (E, w): nine kinds, all distinct.
_UNIT_EPSILON, _UNIT_WINDOW, _KINDS = 1.0, 3, 9
_MOST_BYTES = 1 << 35


@dataclass
class Letters:
    """Dead letters: counted, and kept if somebody wants them."""

    keep: bool
    reasons: Counter[str] = field(default_factory=Counter)
    batches: list[pa.RecordBatch] = field(default_factory=list)

    def add(self, letters: pa.RecordBatch) -> None:
        """Take a batch of `REJECTED_SCHEMA`."""
        for found in letters.column("reason").value_counts().to_pylist():
            self.reasons[found["values"]] += found["counts"]
        if self.keep:
            self.batches.append(letters)

    @property
    def listed(self) -> str:
        """How many there are of each reason."""
        return ", ".join(f"{reason} {n:,}" for reason, n in sorted(self.reasons.items()))

    def counted(
        self,
        files: str,
        names: Sequence[str],
        dialect: CsvDialect | None,
        dataset: str | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Batches of events of files that can be read: see :func:`streamveil.io.read_events`."""
        for batch, rejected in read_events(files, names, dataset, dialect):
            if rejected is not None:
                self.add(rejected)
            if batch.num_rows:
                yield batch

    def none_left(self, files: str, what: str, range_: str) -> ConfigurationError:
        """Says that no event of files is left to count."""
        return ConfigurationError(
            f"{files}: {what}; rejected: {self.listed or 'none'}. Correct the events or the "
            f"options, or give {range_} ({opt.start} and {opt.end})"
        )


def counted_with_notes(count: Callable[[Letters], C], given: Any) -> tuple[C, list[str]]:
    """Count events. Also returns notes about events that could not be counted (--rejected)."""
    letters, notes = Letters(keep=bool(given.rejected)), []
    counted = count(letters)
    if letters.reasons:
        where = "" if given.rejected else f" (give {opt.rejected}=FILE to keep them)"
        notes.append(f"rejected: {letters.listed}{where}")
    if given.rejected:
        write_table(given.rejected, REJECTED_SCHEMA, letters.batches, private=True)
    return counted, notes


def numbers_of(batch: pa.RecordBatch, name: str) -> Floats:
    """The numbers of a column, NaN for nulls. Raises ConfigurationError for other values."""
    numbers = as_numbers(batch.column(name))
    if numbers is None:
        raise ConfigurationError(
            f"{opt.value_column}={name} holds {batch.column(name).type}: name a column of numbers"
        )
    return numbers


@dataclass
class Visitors:
    """Writes the users of kept events by block, to compare limits. Never published."""

    class_of: npt.NDArray[np.int32]
    """Class of each registered user. The last element is the class of all other users."""
    parts: list[tuple[Any, ...]] = field(default_factory=list)
    """For each block, the kind of users, and the slots, users, bins and kept events of groups."""

    def add(self, kind: int, visits: Visits, layout: Layout) -> None:
        """Take a block."""
        slots, users, bins = read_codes(kind, visits.codes, layout)
        names = users if kind == MEMBERS else stranger_keys(visits.strangers)[users]
        some = visits.kept > 0
        slots = slots + visits.block * layout.block
        self.parts.append((kind, slots[some], names[some], bins[some], visits.kept[some]))

    def write(self, path: str, first: int, last: int) -> None:
        """Write the blocks of a range of slots, with users as numbers."""
        members = len(self.class_of) - 1
        strangers = [part[2] for part in self.parts if part[0] != MEMBERS]
        names = np.unique(np.concatenate([np.zeros(0, "S16"), *strangers]))
        rows = [np.zeros((4, 0), np.int64)]
        for kind, slots, users, bins, kept in self.parts:
            numbers = users if kind == MEMBERS else members + np.searchsorted(names, users)
            inside = (slots >= first) & (slots <= last)
            rows.append(np.stack([slots - first, numbers, bins, kept])[:, inside])
        class_of = np.append(self.class_of[:-1], np.full(len(names), self.class_of[-1]))
        np.savez(path, rows=np.concatenate(rows, axis=1), class_of=class_of)


@dataclass(frozen=True)
class Data:
    """Events to count."""

    name: str
    """What they are called in tables."""
    files: str
    """A path or glob."""
    dataset: str | None
    """A key of `streamveil.io.DATASETS`; None where the names of the files say the format."""
    inputs: Inputs
    registry: Registry | None
    """Who asks for what; None spreads the users that are found over nine kinds of requirements."""
    dialect: CsvDialect | None = None
    """How CSV files are written, where that is said."""
    by_user: bool = False
    """Whether it is kept who is where, for an audit of devices."""
    command: str = "evaluate"
    """Which command counts: progress says so."""

    def count(self, folder: Path, letters: Letters) -> Counted:
        """Count all events by slot, class and bin into a file.

        Args:
            folder: where the file goes; it must outlive what is returned.
            letters: takes what cannot be counted.

        Raises:
            ConfigurationError: for events that cannot be read or counted, or none at all.
        """
        registry = self.registry
        if registry is None:
            with progress(f"streamveil {self.command}, looking for users"):
                registry = spread(self._users())
        transform = self.inputs.plan(
            registry,
            DEFAULT,
            bytes(KEY_BYTES),  # the same draws
            kind=HistogramPlan,
            max_contributions=self.inputs.max_contributions,
            adjacency=self.inputs.adjacency,
        )
        path, events_path = folder / "counts.npy", folder / "events.npy"
        beyond = Beyond()
        registry = transform.registry
        visitors = Visitors(registry.classes_with_other) if self.by_user else None
        visits_path = folder / "visits.npz"
        with progress(f"streamveil {self.command}, counting"):
            cells, first, last = self._write(
                transform, path, events_path, letters, beyond, visitors
            )
        if visitors is not None:
            visitors.write(str(visits_path), first, last)
        return Counted(
            self.name,
            str(path),
            str(events_path),
            registry.classes,
            registry.sizes,
            transform.population.sensitivity,
            Bound(
                transform.max_contributions,
                beyond.accepted,
                beyond.dropped,
                {most: square / cells for most, square in sorted(beyond.squares.items())},
            ),
            self.inputs.slots.length,
            visits_path=str(visits_path) if self.by_user else None,
            adjacency=self.inputs.adjacency,
            guessed=registry.guessed,
            original=Original(transform, partial(self._batches, Letters(keep=False))),
        )

    def _batches(self, letters: Letters) -> Iterator[pa.RecordBatch]:
        names = self.inputs.columns.names
        return letters.counted(self.files, names, self.dialect, self.dataset)

    def _users(self) -> pa.Array:
        """Every user that the events name, as text, each once."""
        column = self.inputs.columns.user
        found: dict[Any, None] = {}
        for batch, _ in read_events(self.files, [column], self.dataset, self.dialect):
            found.update(dict.fromkeys(batch.column(0).unique().to_pylist()))
        users = list(dict.fromkeys(str(user) for user in found if user not in (None, "")))
        if not users:
            raise ConfigurationError(
                f"{self.files}: no event names a user in column {column!r}: check {opt.user_column}"
            )
        return pa.array(users, pa.string())

    def _write(
        self,
        transform: HistogramPlan,
        path: Path,
        events_path: Path,
        letters: Letters,
        beyond: Beyond,
        visitors: Visitors | None,
    ) -> tuple[int, int, int]:
        """Write counts from the first slot to the last, in as few bytes as hold them.

        Returns the number of slots and bins, and the first and the last slot.
        """
        found = {
            one.slot: (_narrow(one.counts), _narrow(one.events))
            for one in exact(
                transform,
                self._batches(letters),
                letters.add,
                beyond,
                visitors.add if visitors else None,
            )
            if one.events.any()
        }
        first, last = transform.first_slot, transform.last_slot
        busy = [slot for slot, (counts, _) in found.items() if counts.any()]
        if not busy and None in (first, last):
            raise letters.none_left(self.files, "no event was accepted", "the range to count")
        first = min(busy) if first is None else first
        last = max(busy) if last is None else last
        found = {slot: tables for slot, tables in found.items() if first <= slot <= last}
        shape = (last - first + 1, len(transform.registry.classes), transform.domain.bins)
        for place, file, form in ((0, path, shape), (1, events_path, (shape[0], shape[2]))):
            dtype = np.result_type(np.uint8, *{tables[place].dtype for tables in found.values()})
            size = int(np.prod(form, dtype=object)) * dtype.itemsize
            if size > _MOST_BYTES:
                raise ConfigurationError(
                    f"{self.files}: counts of {shape[0]:,} slots, {shape[1]} classes and "
                    f"{shape[2]:,} bins need {size / 1e9:,.0f} GB: shorten the range ({opt.start} "
                    f"and {opt.end}), or use longer slots or fewer bins"
                )
            written = np.lib.format.open_memmap(file, mode="w+", dtype=dtype, shape=form)
            for slot, tables in found.items():
                written[slot - first] = tables[place]
            written.flush()
        return shape[0] * shape[2], first, last


def _narrow(table: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    return table.astype(np.min_scalar_type(int(table.max())))


def spread(users: pa.Array) -> Registry:
    """Spread users over nine kinds of requirements by a hash of the id that anybody can repeat.

    Args:
        users: distinct ids, as text.
    """
    requirements, _ = population(_UNIT_EPSILON, _UNIT_WINDOW, _KINDS)
    kinds: npt.NDArray[np.int64] = np.array(
        [
            int.from_bytes(hashlib.blake2b(user.encode(), digest_size=8).digest(), "little")
            % len(requirements)
            for user in users.to_pylist()
        ],
        dtype=np.int64,
    )
    return Registry.build(
        users,
        np.array([one.window for one in requirements])[kinds],
        np.array([one.epsilon for one in requirements])[kinds],
    )


def real_stream(name: str, folder: Path) -> Counted:
    """Count a year of flights from New York: 105 airports, 4,043 aircraft, each a user.

    Args:
        name: a key of `REAL`.
        folder: where the counts go; it must outlive what is returned.

    Raises:
        ConfigurationError: when the flights are not installed.
    """
    folder = folder / name
    folder.mkdir()
    slots = Slots.of(REAL[name])
    events, requirements = write_demo_input(folder, hourly=name == "flights-hourly")
    inputs = Inputs(
        Columns(USER, (VALUE,), TIME),
        slots,
        Categories(DESTINATIONS),
        max_contributions=1,
        keep=UNIFORM,
        adjacency=ADD_REMOVE,
        first_slot=slots.index(parse_time(YEAR[0])),
        last_slot=slots.index(parse_time(YEAR[1])),
    )
    registry = read_requirements(str(requirements))
    data = Data(name, str(events), None, inputs, registry)
    return data.count(folder, Letters(keep=False))
