"""From the codes of events to the counts of slots: all at once, or of each slot as it closes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

import apache_beam as beam
import pyarrow as pa
from apache_beam.typehints import KV, Tuple

from streamveil.transforms.checks import refuse_windows
from streamveil.transforms.columns.event_mapper import EventMapper
from streamveil.transforms.counting.count_steps import (
    BlockKey,
    Counter,
    _CountBlocksFn,
    _CountSlotsFn,
    _MapEventsFn,
    open_blocks,
)
from streamveil.transforms.counting.event_codes import Layout
from streamveil.transforms.counting.loss_limit import TALLIES
from streamveil.transforms.messages import start_to_bytes
from streamveil.transforms.release.release_steps import REJECTED
from streamveil.transforms.slots.clock import Clock
from streamveil.transforms.slots.heartbeat import open_slots

_CODES = KV[Tuple[int, int, int], bytes]

_LOGGER = logging.getLogger("streamveil")


class Counted(NamedTuple):
    """What there is to release."""

    counts: beam.PCollection[tuple[str, bytes]]
    """(stream, part of BlockCounts), or ShardCounts where requirements change: in a bounded
    input where there is anything to tell, in one without end of every slot from each of the
    `layout.parts` shards."""
    ticks: tuple[beam.PCollection[tuple[str, bytes]], ...]
    """More of them: empty ones for slots of a bounded input that are released in any case, and
    what tells the first slot of one without end."""
    rejected: tuple[beam.PCollection[pa.RecordBatch], ...]
    tallies: tuple[beam.PCollection[bytes], ...]
    """Of a bounded input: what became of its events."""
    clock: Clock
    layout: Layout
    bounded: bool


class Asked(NamedTuple):
    """The range of slots to release, as far as it is given."""

    first_slot: int | None
    last_slot: int | None


def count_events(
    batches: beam.PCollection[pa.RecordBatch],
    make_mapper: Callable[[], EventMapper],
    counter: Counter,
    clock: Clock,
    asked: Asked,
    heartbeat: beam.PTransform | None,
    *,
    bounded: bool,
) -> Counted:
    """Batches -> codes -> counts. Raises ValueError for a windowed or triggered input.

    Args:
        batches: the events.
        make_mapper: gives, on a worker, what turns a batch into integers.
        counter: says what is told of a block.
        clock: says when slots close, where there is no end.
        asked: the range of slots.
        heartbeat: what opens the slots of an input without end; real time when None.
        bounded: whether the input, with all that goes with it, ends.
    """
    refuse_windows(batches)
    real_time = not bounded and heartbeat is None
    mapped = batches | "MapEvents" >> beam.ParDo(
        _MapEventsFn(make_mapper, counter, bounded=bounded, real_time=real_time)
    ).with_outputs(REJECTED, TALLIES, main="codes")
    mapped.codes.element_type = _CODES
    mapped[REJECTED].element_type = pa.RecordBatch
    mapped[TALLIES].element_type = bytes
    if bounded:
        counted = count_at_end(mapped.codes, counter, clock, asked)
    else:
        counted = count_in_time(mapped.codes, counter, clock, asked, heartbeat)
    return counted._replace(
        rejected=(mapped[REJECTED], *counted.rejected),
        tallies=(mapped[TALLIES], *counted.tallies) if bounded else (),
    )


def count_at_end(
    codes: beam.PCollection[tuple[BlockKey, bytes]],
    counter: Counter,
    clock: Clock,
    asked: Asked,
) -> Counted:
    """Count a bounded input, all at once."""
    if None in asked:
        _LOGGER.warning(
            "the range of slots is taken from the events, so a single event can extend it: "
            "give its start and end to keep that private"
        )
    counted = (
        codes
        | "GatherBlocks" >> beam.GroupByKey()
        | "CountBlocks" >> beam.ParDo(_CountBlocksFn(counter)).with_outputs(TALLIES, main="counts")
    )
    counted.counts.element_type = counter.told_type
    counted[TALLIES].element_type = bytes
    return Counted(
        counted.counts,
        tuple(_ticks(codes.pipeline, counter, asked)),
        (),
        (counted[TALLIES],),
        clock,
        counter.layout,
        bounded=True,
    )


def count_in_time(
    codes: beam.PCollection[tuple[BlockKey, bytes]],
    counter: Counter,
    clock: Clock,
    asked: Asked,
    heartbeat: beam.PTransform | None,
) -> Counted:
    """Count an input without end, each slot as it closes."""
    slots, first = open_slots(codes.pipeline, heartbeat, clock.slots, *asked, counter.stream)
    shards = slots | "OpenShards" >> beam.FlatMap(open_blocks, counter.layout).with_output_types(
        tuple[BlockKey, bytes]
    )
    counted = (
        (codes, shards)
        | "AddHeartbeat" >> beam.Flatten()
        | "CountSlots"
        >> beam.ParDo(_CountSlotsFn(counter, clock)).with_outputs(REJECTED, main="counts")
    )
    counted.counts.element_type = counter.told_type
    counted[REJECTED].element_type = pa.RecordBatch
    start = first | "Start" >> beam.MapTuple(_start).with_output_types(tuple[str, bytes])
    return Counted(
        counted.counts, (start,), (counted[REJECTED],), (), clock, counter.layout, bounded=False
    )


def _ticks(
    pipeline: beam.Pipeline, counter: Counter, asked: Asked
) -> Iterator[beam.PCollection[tuple[str, bytes]]]:
    """Empty counts at the given ends of a bounded range: it is released without events too."""
    ends = [slot for slot in asked if slot is not None]
    if ends:
        yield pipeline | "Ticks" >> beam.Create(
            [(counter.stream, data) for data in counter.nothing(ends)]
        ).with_output_types(tuple[str, bytes])


def _start(stream: str, slot: int) -> tuple[str, bytes]:
    return stream, start_to_bytes(slot)
