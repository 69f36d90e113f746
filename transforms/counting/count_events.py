"""From batches of events to the counts of slots, around the one shuffle of the pipeline.

An input that ends is counted at its end, an unbounded one slot by slot as these close.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import apache_beam as beam
import pyarrow as pa
from apache_beam.typehints import KV, Tuple

from streamveil.engine.count.close_slots import CloseSlots
from streamveil.engine.count.counter import (
    BlockKey,
    Counter,
    Maps,
    count_block,
    map_batch,
    warn_of_range,
)
from streamveil.engine.count.event_codes import Layout
from streamveil.engine.count.loss_limit import LossWatch
from streamveil.engine.encode.dead_letters import tally_of
from streamveil.engine.messages import REJECTED, TALLIES, Kind
from streamveil.engine.stream.steps import CountSteps
from streamveil.mechanisms.core.event_tallies import EventTally
from streamveil.transforms.at_end import AtEnd
from streamveil.transforms.checks import refuse_windows
from streamveil.transforms.in_time import InTime
from streamveil.transforms.on_beam import Message, emitted
from streamveil.transforms.slots.clock import latest_slot
from streamveil.transforms.slots.heartbeat import open_slots

_CODES = KV[Tuple[int, int, int], Message]


class Counted(NamedTuple):
    """What there is to release."""

    counts: beam.PCollection[tuple[str, Message]]
    """(stream, BlockCounts), or ShardCounts where requirements change: in a bounded input where
    there is anything to tell, in an unbounded one of every slot from each of the `layout.parts`
    shards."""
    ticks: tuple[beam.PCollection[tuple[str, Message]], ...]
    """More of them: that slots of a bounded input are open, whatever comes, and which is the first
    of an unbounded one."""
    rejected: tuple[beam.PCollection[pa.RecordBatch], ...]
    tallies: tuple[beam.PCollection[bytes], ...]
    """Of a bounded input: what became of its events."""


def count_events(
    batches: beam.PCollection[pa.RecordBatch],
    steps: CountSteps,
    heartbeat: beam.PTransform | None,
    chosen: beam.PCollection[bytes] | None = None,
) -> Counted:
    """Batches -> codes -> counts. Raises ValueError for a windowed or triggered input.

    Args:
        batches: the events.
        steps: what is done with them.
        heartbeat: what opens the slots of an unbounded input; real time when None.
        chosen: one element to pass to `make_mapper`, if bounds or keys are chosen first.
    """
    refuse_windows(batches)
    side = () if chosen is None else (beam.pvalue.AsSingleton(chosen),)
    bounded, kept = steps.bounded, steps.waiting
    real_time = not bounded and heartbeat is None
    mapped = batches | "MapEvents" >> beam.ParDo(
        _MapEventsFn(steps.make_mapper, steps.counter, bounded=bounded, real_time=real_time),
        *side,
    ).with_outputs(REJECTED, TALLIES, main="codes")
    mapped.codes.element_type = _CODES
    mapped[REJECTED].element_type = pa.RecordBatch
    mapped[TALLIES].element_type = bytes
    codes, tallies = mapped.codes, [mapped[TALLIES]]
    if kept:
        earlier = batches.pipeline | "KeptEvents" >> beam.Create(
            kept, reshuffle=False
        ).with_output_types(_CODES)
        codes = (codes, earlier) | "AddKeptEvents" >> beam.Flatten()
        came = EventTally(messages=len(kept)).to_bytes()
        tallies.append(batches.pipeline | "TallyKept" >> beam.Create([came], reshuffle=False))
    if bounded:
        counted = _count_at_end(codes, steps, side if steps.key_choice else ())
    else:
        counted = _count_in_time(codes, steps, heartbeat)
    return counted._replace(
        rejected=(mapped[REJECTED], *counted.rejected),
        tallies=(*tallies, *counted.tallies) if bounded else (),
    )


def _count_at_end(
    codes: beam.PCollection[tuple[BlockKey, Message]], steps: CountSteps, side: Sequence[Any]
) -> Counted:
    """Count a bounded input, all at once; by keys that are a side input, if they are discovered."""
    counter = steps.counter
    warn_of_range(steps.first_slot, steps.last_slot)
    counted = (
        codes
        | "GatherBlocks" >> beam.GroupByKey()
        | "CountBlocks"
        >> beam.ParDo(AtEnd(partial(count_block, counter)), *side).with_outputs(
            TALLIES, main="counts"
        )
    )
    counted.counts.element_type = _counts_type(counter)
    counted[TALLIES].element_type = bytes
    return Counted(counted.counts, tuple(_ticks(codes.pipeline, steps)), (), (counted[TALLIES],))


def _count_in_time(
    codes: beam.PCollection[tuple[BlockKey, Message]],
    steps: CountSteps,
    heartbeat: beam.PTransform | None,
) -> Counted:
    """Count an unbounded input, each slot as it closes."""
    counter, clock = steps.counter, steps.clock
    ends = steps.first_slot, steps.last_slot
    slots, first = open_slots(codes.pipeline, heartbeat, clock.slots, *ends, counter.stream)
    shards = slots | "OpenShards" >> beam.FlatMap(open_blocks, counter.layout).with_output_types(
        _CODES
    )
    counted = (
        (codes, shards)
        | "AddHeartbeat" >> beam.Flatten()
        | "CountSlots"
        >> beam.ParDo(InTime(CloseSlots(counter, clock))).with_outputs(REJECTED, main="counts")
    )
    counted.counts.element_type = _counts_type(counter)
    counted[REJECTED].element_type = pa.RecordBatch
    return Counted(counted.counts, (first,), (counted[REJECTED],), ())


def _counts_type(counter: Counter) -> Any:
    """Type of what goes on: to a shard, or to the stream."""
    return KV[Tuple[int, int], Message] if counter.by_shard else KV[str, Message]


def _ticks(
    pipeline: beam.Pipeline, steps: CountSteps
) -> Iterator[beam.PCollection[tuple[str, Message]]]:
    """That the given ends of a bounded range are open: it is released without events too."""
    ends = [slot for slot in (steps.first_slot, steps.last_slot) if slot is not None]
    if ends:
        yield pipeline | "Ticks" >> beam.Create(
            [(steps.counter.stream, Message(Kind.OPEN, slot)) for slot in ends]
        ).with_output_types(KV[str, Message])


def open_blocks(tick: tuple[str, Message], layout: Layout) -> Iterator[tuple[BlockKey, Message]]:
    """Tell every shard that a slot is open; blocks are of one slot."""
    slot = tick[1].slot
    for part in range(layout.parts):
        key = layout.key(part)
        yield (*key, slot), layout.message(Kind.OPEN, slot, key)


class _MapEventsFn(beam.DoFn):
    """Record batches to the events of each block and shard.

    On the side dead letters, and of a bounded input tallies as bytes.
    """

    def __init__(
        self,
        make_mapper: Callable[..., Maps],
        counter: Counter,
        *,
        bounded: bool,
        real_time: bool,
    ) -> None:
        self._make_mapper = make_mapper
        self._declared = self._counter = counter
        self._bounded = bounded
        self._real_time = real_time

    def setup(self) -> None:
        self._mapper = self._make_mapper()
        self._watch = LossWatch(self._counter.max_rejected)
        self._chosen: bytes | None = None

    def process(self, element: pa.RecordBatch, chosen: bytes | None = None) -> Iterator[Any]:
        if chosen is not None and chosen != self._chosen:
            self._mapper, self._chosen = self._make_mapper(chosen), chosen
            self._counter = self._declared.of(chosen)
        lost = tally_of(element)
        if not element.num_rows:  # of no rows a column may have any type
            if self._bounded and (lost.read or lost.messages):
                yield beam.pvalue.TaggedOutput(TALLIES, lost.to_bytes())
            return
        latest = latest_slot(self._mapper.slots) if self._real_time else None
        for output in map_batch(self._mapper, self._counter, element, latest):
            if output.tag != TALLIES:
                yield emitted(output)
            elif self._bounded:
                total = EventTally.total([lost, output.value]).to_bytes()
                yield beam.pvalue.TaggedOutput(TALLIES, total)
            else:
                self._watch.see(output.value)
