"""Requirements that change: from batches of changes and bounded events to counts by cohort."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import apache_beam as beam
import pyarrow as pa

from streamveil.transforms import metrics
from streamveil.transforms.changes import changes_to_bytes, spread
from streamveil.transforms.counting import CohortCounts
from streamveil.transforms.joining import (
    CHANGES,
    REJECTED,
    TICK,
    VISITS,
    JoinConfig,
    ShardKey,
    _JoinAtEndFn,
    _JoinInTimeFn,
)
from streamveil.transforms.rejects import reasons_of
from streamveil.transforms.wire import block_of, cohort_counts_to_bytes


class Joined(NamedTuple):
    """What :class:`JoinRequirements` gives."""

    counts: beam.PCollection[tuple[str, bytes]]
    """(stream, CohortCounts as bytes). In a stream one of each shard and slot; in a bounded input
    only those where a shard has anything to tell, all before its end."""
    ticks: beam.PCollection[tuple[str, bytes]]
    """The same for every slot ticked, from `NO_SHARD`."""
    shards: int
    """How many shards tell every slot of a stream."""
    rejected: beam.PCollection[pa.RecordBatch]
    """Dead letters: bad changes, and events of users without a requirement."""


@dataclass(eq=False)
class JoinRequirements(beam.PTransform):
    """Joins bounded events with what their users ask for in the slot.

    Input: ((kind, shard), Visits as bytes), batches of changes, and ticks, (stream, BlockCounts
    as bytes). Bounded inputs are joined at their end, in slot order, and nothing is late. In a
    stream every shard closes each slot from the first to the last one that was ticked, or visited
    by anybody, at its :func:`closing_time` or when it hears of it later.
    """

    config: JoinConfig

    def __post_init__(self) -> None:
        """Name the transform."""
        super().__init__()

    def expand(
        self,
        inputs: tuple[
            beam.PCollection[tuple[ShardKey, bytes]],
            beam.PCollection[pa.RecordBatch],
            beam.PCollection[tuple[str, bytes]],
        ],
    ) -> Joined:
        """Build the steps: map the changes, gather by shard, join."""
        visits, batches, ticks = inputs
        config = self.config
        mapped = batches | "MapChanges" >> beam.ParDo(_MapChangesFn(config)).with_outputs(
            REJECTED, main="changes"
        )
        mapped.changes.element_type = tuple[ShardKey, bytes]
        mapped[REJECTED].element_type = pa.RecordBatch
        if visits.is_bounded and batches.is_bounded:
            tagged = visits | "TagVisits" >> beam.MapTuple(_tag_visits).with_output_types(
                tuple[ShardKey, bytes]
            )
            joined = (
                (tagged, mapped.changes)
                | "AddChanges" >> beam.Flatten()
                | "GatherShards" >> beam.GroupByKey()
                | "JoinAtEnd"
                >> beam.ParDo(_JoinAtEndFn(config)).with_outputs(REJECTED, main="counts")
            )
        else:
            told = visits | "TellVisits" >> beam.FlatMap(
                _tell_visits, config.shard_keys
            ).with_output_types(tuple[ShardKey, bytes])
            every = ticks | "TickShards" >> beam.FlatMap(
                _tick_shards, config.layout.block, config.shard_keys
            ).with_output_types(tuple[ShardKey, bytes])
            joined = (
                (told, mapped.changes, every)
                | "AddChanges" >> beam.Flatten()
                | "JoinInTime"
                >> beam.ParDo(_JoinInTimeFn(config)).with_outputs(REJECTED, main="counts")
            )
        joined.counts.element_type = tuple[str, bytes]
        joined[REJECTED].element_type = pa.RecordBatch
        rejected = (mapped[REJECTED], joined[REJECTED]) | "AllRejected" >> beam.Flatten()
        quiet = ticks | "QuietSlots" >> beam.Map(
            _quiet_slot, config.layout.block
        ).with_output_types(tuple[str, bytes])
        return Joined(joined.counts, quiet, len(config.shard_keys), rejected)


def _tag_visits(key: ShardKey, data: bytes) -> tuple[ShardKey, bytes]:
    return key, VISITS + data


def _tell_visits(
    element: tuple[ShardKey, bytes], keys: list[ShardKey]
) -> Iterator[tuple[ShardKey, bytes]]:
    """Visits of a slot to their shard, and to the others that there are some."""
    key, data = element
    for other in keys:
        yield other, TICK + b"%d" % block_of(data) if other != key else VISITS + data


def _tick_shards(
    tick: tuple[str, bytes], block: int, keys: list[ShardKey]
) -> Iterator[tuple[ShardKey, bytes]]:
    """Tell all shards the last slot of a block."""
    for key in keys:
        yield key, TICK + b"%d" % _last_slot(tick[1], block)


def _quiet_slot(tick: tuple[str, bytes], block: int) -> tuple[str, bytes]:
    """The last slot of a block, without moves and events."""
    stream, data = tick
    return stream, cohort_counts_to_bytes(CohortCounts.mention(_last_slot(data, block)))


def _last_slot(data: bytes, block: int) -> int:
    return (block_of(data) + 1) * block - 1


class _MapChangesFn(beam.DoFn):
    """Batches of changes to ((kind, shard), Changes as bytes), and dead letters on the side."""

    def __init__(self, config: JoinConfig) -> None:
        self._make_mapper = config.change_mapper
        self._shards = config.layout.shards

    def setup(self) -> None:
        self._mapper = self._make_mapper()
        self._mapper.warm()

    def process(self, element: pa.RecordBatch) -> Iterator[Any]:
        found, rejected = self._mapper.map(element)
        metrics.count(metrics.CHANGES_READ, element.num_rows)
        metrics.count(metrics.CHANGES_ACCEPTED, element.num_rows - rejected.num_rows)
        if rejected.num_rows:
            for reason, number in reasons_of(rejected):
                metrics.count(metrics.CHANGES_REJECTED_PREFIX + reason, number)
            yield beam.pvalue.TaggedOutput(REJECTED, rejected)
        for key, changes in spread(found, self._shards):
            yield key, CHANGES + changes_to_bytes(changes)
