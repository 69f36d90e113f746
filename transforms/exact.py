"""The counts that a release hides: for comparing with it, never for publishing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa

from streamveil.transforms.counting import (
    MEMBERS,
    STRANGERS,
    Codes,
    Integers,
    Layout,
    bound_block,
    count,
    pack,
    slot_tables,
)
from streamveil.transforms.histograms import PrivateHistograms
from streamveil.transforms.mapping import EventMapper, Events

# Batches of many small files are counted together: what counting leaves behind of each batch and
# block would outweigh the events.
_EVENTS_TOGETHER = 1 << 18


def exact_counts(
    transform: PrivateHistograms, batches: Iterable[pa.RecordBatch], slots: Iterable[int]
) -> Integers:
    """Bounded events of each slot in each bin, without any protection: int64, shape (T, d).

    What PrivateHistograms would count of the same batches, all in memory and without Beam.
    """
    tables = {slot: table.sum(axis=0) for slot, table in class_counts(transform, batches)}
    quiet = np.zeros(transform.domain.bins, dtype=np.int64)
    return np.stack([tables.get(slot, quiet) for slot in slots])


def class_counts(
    transform: PrivateHistograms,
    batches: Iterable[pa.RecordBatch],
    rejected: Callable[[pa.RecordBatch], None] = lambda letters: None,
) -> Iterator[tuple[int, Integers]]:
    """Bounded events of each slot by class and bin, without any protection.

    Args:
        transform: says how to count.
        batches: events, read to their end before the first count comes.
        rejected: called with the dead letters of a batch, of `REJECTED_SCHEMA`, if there are any.

    Yields:
        (slot, counts as int64 of shape (K, d)), slots ascending. Slots far from any event are
        left out, and some without events may come.
    """
    layout = Layout.choose(transform.registry, transform.domain.bins, 1, timely=False)
    most = transform.max_contributions
    parts: dict[int, dict[int, list[Codes]]] = {}
    for events in _together(transform.event_mapper(), batches, rejected):
        for block, (kind, _), codes, _ in pack(events, layout, most):
            parts.setdefault(block, {MEMBERS: [], STRANGERS: []})[kind].append(codes)
    class_of = transform.registry.classes_with_other()
    for block in sorted(parts):
        kinds = parts.pop(block)
        counted = [
            count(kind, bound_block(kind, block, arrays, layout, most), layout, class_of)
            for kind, arrays in kinds.items()
            if arrays
        ]
        yield from slot_tables(block, counted, layout)


def _together(
    mapper: EventMapper,
    batches: Iterable[pa.RecordBatch],
    rejected: Callable[[pa.RecordBatch], None],
) -> Iterator[Events]:
    """Accepted events of some batches at a time."""
    waiting: list[Events] = []
    number = 0
    for batch in batches:
        events, letters = mapper.map(batch)
        if letters.num_rows:
            rejected(letters)
        waiting.append(events)
        number += len(events.slots)
        if number >= _EVENTS_TOGETHER:
            yield _joined(waiting)
            waiting, number = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(events: list[Events]) -> Events:
    names = ("slots", "bins", "members", "strangers")
    return Events(*(np.concatenate([getattr(one, name) for one in events]) for name in names))
