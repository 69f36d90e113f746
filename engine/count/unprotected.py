"""The counts that a release hides: for comparing with it, never for publishing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamveil.engine.count.bounding import EVERYTHING, Bounding, runs
from streamveil.engine.count.event_codes import (
    MEMBERS,
    STRANGERS,
    Layout,
    Packed,
    Visits,
    bound_block,
    count,
    pack,
    read_codes,
    slot_tables,
)
from streamveil.engine.encode.event_mapper import EventMapper, Events
from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.domains import Domain
from streamveil.mechanisms.core.user_table import Registry

# Batches of many small files are counted together: what counting leaves behind of each batch and
# block would outweigh the events.
_EVENTS_TOGETHER = 1 << 18


class Counts(Protocol):
    """What says how to count: a `PrivateHistograms`."""

    registry: Registry
    domain: Domain

    def bounding(self) -> Bounding:
        """Which events of a user in a slot count."""

    def event_mapper(self) -> EventMapper:
        """What maps batches of events."""


class ExactSlot(NamedTuple):
    """A slot without any protection."""

    slot: int
    counts: Integers
    """Events that count, within the users' bound, by class and bin: int64, shape (K, d)."""
    events: Integers
    """Every event in a bin, whoever it is of: int64, shape (d,)."""


@dataclass
class Beyond:
    """What bounds on the events of a user in a slot leave out, added up over slots and bins."""

    accepted: int = 0
    """Events that would count if there were no bound."""
    dropped: int = 0
    """Those of them that are dropped by the bound of the transform."""
    squares: dict[int, float] = field(default_factory=dict)
    """By bound, a power of two or the transform's: the sum over slots and bins of the square of
    the events that it can be expected to leave out. A bound that leaves nothing out may lack."""

    def add(self, most: int, left_out: npt.NDArray[np.float64]) -> None:
        """Add what a bound leaves out of some bins, float64, shape (n,)."""
        self.squares[most] = self.squares.get(most, 0.0) + float(left_out @ left_out)


def exact_counts(
    transform: Counts, batches: Iterable[pa.RecordBatch], slots: Iterable[int]
) -> tuple[Integers, Integers]:
    """Counts of each slot in each bin, without any protection, all in memory and without Beam.

    Returns:
        What PrivateHistograms would count of the same batches, and every event in a bin, whoever
        it is of: both int64, shape (T, d).
    """
    quiet = np.zeros(transform.domain.bins, dtype=np.int64)
    found = {one.slot: (one.counts.sum(axis=0), one.events) for one in exact(transform, batches)}
    counted, events = zip(*(found.get(slot, (quiet, quiet)) for slot in slots), strict=True)
    return np.stack(counted), np.stack(events)


def exact(
    transform: Counts,
    batches: Iterable[pa.RecordBatch],
    rejected: Callable[[pa.RecordBatch], None] = lambda letters: None,
    beyond: Beyond | None = None,
    visited: Callable[[int, Visits, Layout], None] | None = None,
) -> Iterator[ExactSlot]:
    """Count events without any protection.

    Args:
        transform: says how to count.
        batches: events, read to their end before the first count comes.
        rejected: called with the dead letters of a batch, of `io.REJECTED_SCHEMA`, if any.
        beyond: takes what bounds leave out.
        visited: called with the events that count of each block, of members or of strangers.

    Yields:
        Slots, ascending. Those far from any event are left out, and some without may come.
    """
    layout = Layout.choose(transform.registry, transform.domain.bins, 1, timely=False)
    bounding = transform.bounding()
    everything = replace(bounding, most=EVERYTHING)
    class_of = transform.registry.classes_with_other
    parts: dict[int, dict[int, list[Packed]]] = {}
    whole: dict[int, Integers] = {}
    for events, slots, bins in _together(transform.event_mapper(), batches, rejected):
        for block, (kind, _), packed, _ in pack(events, layout, everything):
            parts.setdefault(block, {MEMBERS: [], STRANGERS: []})[kind].append(packed)
        _add_located(whole, slots, bins, layout)
    for block in sorted(whole):
        counted = []
        for kind, some in parts.pop(block, {}).items():
            if some:
                bounded = bound_block(kind, block, some, layout, bounding)
                counted.append(count(kind, bounded, layout, class_of))
                if visited is not None:
                    visited(kind, bounded, layout)
                if beyond is not None:
                    _add_beyond(
                        beyond,
                        kind,
                        bound_block(kind, block, some, layout, everything),
                        bounded.dropped,
                        layout,
                        bounding.most,
                    )
        table = whole.pop(block).reshape(layout.block, layout.bins)
        for (slot, counts), every in zip(slot_tables(block, counted, layout), table, strict=True):
            yield ExactSlot(slot, counts, every)


def _add_located(
    whole: dict[int, Integers], slots: Integers, bins: Integers, layout: Layout
) -> None:
    """Add every event to the table of its block: int64, shape (block * bins,)."""
    blocks, where = np.divmod(slots, layout.block)
    order = np.argsort(blocks, kind="stable")
    starts, lengths = runs(blocks[order])
    cells = (where * layout.bins + bins)[order]
    size = layout.block * layout.bins
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        block = int(blocks[order[start]])
        table = whole.setdefault(block, np.zeros(size, np.int64))
        table += np.bincount(cells[start : start + length], minlength=size)


def _add_beyond(
    beyond: Beyond, kind: int, visits: Visits, dropped: int, layout: Layout, most: int
) -> None:
    """Add what bounds leave out of the events of a block.

    Of a user with N events in a slot, a bound of m leaves out N - m: of n in one bin n (1 - m / N)
    are to be expected.
    """
    beyond.accepted += int(visits.kept.sum())
    beyond.dropped += dropped
    slots, users, bins = read_codes(kind, visits.codes, layout)
    fresh = (np.diff(slots) != 0) | (np.diff(users) != 0)
    starts = np.flatnonzero(np.append(True, fresh))
    sizes = np.diff(starts, append=len(slots))
    totals = np.repeat(np.add.reduceat(visits.kept, starts), sizes)
    cells = slots * layout.bins + bins
    largest = int(totals.max())
    for bound in sorted({most, *(1 << i for i in range(largest.bit_length()))}):
        some = totals > bound
        if some.any():
            left_out = visits.kept[some] * (1 - bound / totals[some])
            table: Any = np.bincount(cells[some], weights=left_out)  # float64, with weights
            beyond.add(bound, table)


def _together(
    mapper: EventMapper,
    batches: Iterable[pa.RecordBatch],
    rejected: Callable[[pa.RecordBatch], None],
) -> Iterator[tuple[Events, Integers, Integers]]:
    """Accepted events of some batches at a time, and slot and bin of every event in a bin."""
    waiting: list[tuple[Events, Integers, Integers]] = []
    number = 0
    for batch in batches:
        events, letters, slots, bins = mapper.map_located(batch)
        if letters.num_rows:
            rejected(letters)
        waiting.append((events, slots, bins))
        number += batch.num_rows
        if number >= _EVENTS_TOGETHER:
            yield _joined(waiting)
            waiting, number = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(
    waiting: list[tuple[Events, Integers, Integers]],
) -> tuple[Events, Integers, Integers]:
    events, slots, bins = zip(*waiting, strict=True)
    names = ("slots", "bins", "members", "strangers")
    joined = Events(*(np.concatenate([getattr(one, name) for one in events]) for name in names))
    return joined, np.concatenate(slots), np.concatenate(bins)
