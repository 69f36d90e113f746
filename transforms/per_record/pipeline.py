"""From records to rows: a bounded input at its end, one without end pane by pane.

No step tells anything of records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.coders import BytesCoder, TupleCoder, VarIntCoder
from apache_beam.typehints import KV, Tuple

from streamveil.engine.encode.dead_letters import tally_of
from streamveil.engine.messages import TALLIES, Kind, array_from_bytes, array_to_bytes
from streamveil.engine.per_record.close_panes import ClosePanes, by_key
from streamveil.engine.per_record.mapper import PaneKey
from streamveil.engine.per_record.plan import Plan, added
from streamveil.engine.slot_clock import SlotClock
from streamveil.engine.stream import release_slots
from streamveil.engine.stream.release_in_time import ReleaseInTime
from streamveil.mechanisms.core.records import PerRecordRow
from streamveil.transforms.at_end import AtEnd
from streamveil.transforms.counting.loss_limit import added_up
from streamveil.transforms.in_time import InTime
from streamveil.transforms.on_beam import Message
from streamveil.transforms.slots.checkpoint_hold import settled
from streamveil.transforms.slots.clock import latest_slot
from streamveil.transforms.slots.heartbeat import open_slots

_PART = KV[Tuple[int, int], Message]
_PANE = KV[int, Message]
_Added = tuple[int, bytes]
"""How many parts, and all of them as one.

A tally here is, for each key, how many messages were sent on to be added up and released, less
those that were taken, as bytes; see `EventTally.messages`.
"""
_STREAM = "panes"


def release_at_end(
    batches: beam.PCollection[pa.RecordBatch], plan: Plan
) -> beam.PCollection[PerRecordRow]:
    """Add up a bounded input, and release all panes of each key at once."""
    source = plan.source
    mapped = batches | "MapRecords" >> beam.ParDo(
        _MapRecordsFn(plan, bounded=True, real_time=False)
    ).with_outputs(TALLIES, main="parts")
    mapped.parts.element_type = _PART
    mapped[TALLIES].element_type = bytes
    parts = (
        mapped.parts
        | "AddParts"
        >> beam.CombinePerKey(_AddPartsFn(plan)).with_output_types(
            KV[Tuple[int, int], Tuple[int, bytes]]
        )
        | "ByKey" >> beam.ParDo(_ByKeyFn()).with_outputs(TALLIES, main="panes")
    )
    parts.panes.element_type = _PANE
    parts[TALLIES].element_type = bytes
    every_key = batches.pipeline | "EveryKey" >> beam.Create(
        [(position, Message(Kind.OPEN, plan.first_pane)) for position in range(source.number)]
    ).with_output_types(_PANE)
    none = array_to_bytes(np.zeros((0, 2), np.int64))
    tallies = mapped[TALLIES], parts[TALLIES]
    whole = added_up(tallies, none, partial(_sum_tallies, source.number)) | (
        "TellWhole" >> beam.FlatMap(_whole).with_output_types(_PANE)
    )
    return (
        (parts.panes, every_key, whole)
        | "AddKeys" >> beam.Flatten()
        | "GatherPanes" >> beam.GroupByKey()
        | "ReleasePanes"
        >> beam.ParDo(
            AtEnd(partial(release_slots.release_at_end, plan.release_config()))
        ).with_output_types(PerRecordRow)
    )


def release_in_time(
    batches: beam.PCollection[pa.RecordBatch],
    plan: Plan,
    clock: SlotClock,
    heartbeat: beam.PTransform | None,
    settle: int | str | beam.PTransform | None,
) -> beam.PCollection[PerRecordRow]:
    """Add up an unbounded input, and release each pane of each key as it closes."""
    source = plan.source
    keys = source.number
    parts = batches | "MapRecords" >> beam.ParDo(
        _MapRecordsFn(plan, bounded=False, real_time=heartbeat is None)
    ).with_output_types(_PART)
    slots, first = open_slots(
        batches.pipeline, heartbeat, clock.slots, source.first_slot, source.last_slot, _STREAM
    )
    open_panes = slots | "OpenPanes" >> beam.FlatMap(_open_panes, keys).with_output_types(_PART)
    panes = (
        (parts, open_panes)
        | "AddHeartbeat" >> beam.Flatten()
        | "ClosePanes" >> beam.ParDo(InTime(ClosePanes(plan, clock))).with_output_types(_PANE)
    )
    start = first | "Start" >> beam.FlatMap(_to_keys, keys).with_output_types(_PANE)
    config = plan.release_config(clock)
    return (
        (settled(panes, range(keys), settle), start)
        | "AddStart" >> beam.Flatten()
        | "ReleasePanes"
        >> beam.ParDo(InTime(ReleaseInTime(config))).with_output_types(PerRecordRow)
    )


class _MapRecordsFn(beam.DoFn):
    """Record batches to ((position of key, pane), part).

    On the side, of a bounded input, tallies.
    """

    def __init__(self, plan: Plan, *, bounded: bool, real_time: bool) -> None:
        self._plan = plan
        self._bounded = bounded
        self._real_time = real_time

    def setup(self) -> None:
        self._statistic = self._plan.statistic()

    def process(self, element: pa.RecordBatch) -> Iterator[Any]:
        source = self._plan.source
        messages = np.full(source.number, tally_of(element).messages)
        latest, slots = None, source.slots
        if self._real_time and slots is not None:
            latest = latest_slot(slots)
        if element.num_rows:  # or it may have no columns
            for key, part in source.parts(element, self._statistic, latest):
                messages[key[0]] += 1
                yield key, Message(Kind.EVENTS, key[1], payload=array_to_bytes(part))
        if self._bounded and messages.any():
            yield beam.pvalue.TaggedOutput(TALLIES, array_to_bytes(messages))


class _AddPartsFn(beam.CombineFn):
    """Adds up the parts of a key in a pane, as bytes, and tells how many there were."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def setup(self) -> None:
        self._statistic = self._plan.statistic()

    def create_accumulator(self) -> _Added:
        return 0, b""

    def add_input(self, accumulator: _Added, element: Message) -> _Added:
        return self.merge_accumulators((accumulator, (1, element.payload)))

    def merge_accumulators(self, accumulators: Iterable[_Added]) -> _Added:
        some = list(accumulators)
        return sum(number for number, _ in some), added(self._statistic, (part for _, part in some))

    def extract_output(self, accumulator: _Added) -> _Added:
        return accumulator

    def get_accumulator_coder(self) -> TupleCoder:
        return TupleCoder([VarIntCoder(), BytesCoder()])


class _ByKeyFn(beam.DoFn):
    """The parts of panes on their way to their keys; on the side tallies."""

    def process(self, element: tuple[PaneKey, _Added]) -> Iterator[Any]:
        key, (number, part) = element
        messages = array_to_bytes(np.array([[key[0], 1 - number]]))
        yield beam.pvalue.TaggedOutput(TALLIES, messages)
        yield by_key((key, part))


def _sum_tallies(keys: int, tallies: Iterable[bytes]) -> bytes:
    """Of all keys, from tallies of all, or of some as rows (position, messages)."""
    total = np.zeros(keys, np.int64)
    for tally in map(array_from_bytes, tallies):
        if tally.ndim == 1:
            total += tally
        else:
            np.add.at(total, *tally.T)
    return array_to_bytes(total)


def _whole(tally: bytes) -> Iterator[tuple[int, Message]]:
    """Emit every key how many parts there must be."""
    for position, messages in enumerate(array_from_bytes(tally).tolist()):
        yield position, Message(Kind.WHOLE, payload=b"%d" % messages)


def _open_panes(tick: tuple[str, Message], keys: int) -> Iterator[tuple[PaneKey, Message]]:
    """Emit every key that a pane is open."""
    for position in range(keys):
        yield (position, tick[1].slot), tick[1]


def _to_keys(keyed: tuple[str, Message], keys: int) -> Iterator[tuple[int, Message]]:
    """Emit every key the same."""
    for position in range(keys):
        yield position, keyed[1]
