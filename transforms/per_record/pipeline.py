"""From records to rows: a bounded input at its end, one without end pane by pane."""

from __future__ import annotations

import apache_beam as beam
import pyarrow as pa
from apache_beam.typehints import KV, Tuple

from streamveil.mechanisms.core.records import PerRecordRow, Slots
from streamveil.transforms.per_record.plan import Plan
from streamveil.transforms.per_record.stages import (
    _AddPartsFn,
    _ClosePaneFn,
    _MapRecordsFn,
    _RowsAtOnceFn,
    _RowsInTimeFn,
    apart,
    opened,
    started,
)
from streamveil.transforms.per_record.wire import pane_to_bytes
from streamveil.transforms.release.release_steps import ReleaseConfig
from streamveil.transforms.slots.checkpoint_hold import settled
from streamveil.transforms.slots.clock import Clock
from streamveil.transforms.slots.heartbeat import open_slots

_PART = KV[Tuple[int, int], bytes]
_PANE = KV[int, bytes]
_STREAM = "panes"
_ALL_TIMES = Clock(Slots(1000))  # there is only pane 0, which no timer closes


def release_at_end(
    batches: beam.PCollection[pa.RecordBatch], plan: Plan
) -> beam.PCollection[PerRecordRow]:
    """Add up a bounded input, and release all panes of each key at once."""
    source = plan.source
    first, last = (0, 0) if source.slots is None else (source.first_slot, source.last_slot)
    assert first is not None
    assert last is not None
    clock = _ALL_TIMES if source.slots is None else Clock(source.slots)
    parts = (
        batches
        | "MapRecords" >> beam.ParDo(_MapRecordsFn(plan, real_time=False)).with_output_types(_PART)
        | "AddParts" >> beam.CombinePerKey(_AddPartsFn(plan)).with_output_types(_PART)
        | "ByKey" >> beam.Map(apart).with_output_types(_PANE)
    )
    every_key = batches.pipeline | "EveryKey" >> beam.Create(
        [(position, pane_to_bytes(first)) for position in range(source.number)]
    ).with_output_types(_PANE)
    return (
        (parts, every_key)
        | "AddKeys" >> beam.Flatten()
        | "GatherPanes" >> beam.GroupByKey()
        | "ReleasePanes"
        >> beam.ParDo(_RowsAtOnceFn(ReleaseConfig(plan, clock, first, last))).with_output_types(
            PerRecordRow
        )
    )


def release_in_time(
    batches: beam.PCollection[pa.RecordBatch],
    plan: Plan,
    clock: Clock,
    heartbeat: beam.PTransform | None,
    settle: int | str | beam.PTransform | None,
) -> beam.PCollection[PerRecordRow]:
    """Add up an input without end, and release each pane of each key as it closes."""
    source = plan.source
    keys = source.number
    parts = batches | "MapRecords" >> beam.ParDo(
        _MapRecordsFn(plan, real_time=heartbeat is None)
    ).with_output_types(_PART)
    slots, first = open_slots(
        batches.pipeline, heartbeat, clock.slots, source.first_slot, source.last_slot, _STREAM
    )
    open_panes = slots | "OpenPanes" >> beam.FlatMap(opened, keys).with_output_types(_PART)
    panes = (
        (parts, open_panes)
        | "AddHeartbeat" >> beam.Flatten()
        | "ClosePanes" >> beam.ParDo(_ClosePaneFn(plan, clock)).with_output_types(_PANE)
    )
    start = first | "Start" >> beam.FlatMap(started, keys).with_output_types(_PANE)
    config = ReleaseConfig(plan, clock, source.first_slot, source.last_slot)
    return (
        (settled(panes, range(keys), settle), start)
        | "AddStart" >> beam.Flatten()
        | "ReleasePanes" >> beam.ParDo(_RowsInTimeFn(config)).with_output_types(PerRecordRow)
    )
