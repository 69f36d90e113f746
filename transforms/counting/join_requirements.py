"""Requirements that change: from batches of changes and bounded events to counts by cohort."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import apache_beam as beam
import pyarrow as pa

from streamveil.transforms import metrics
from streamveil.transforms.columns.dead_letters import reasons_of
from streamveil.transforms.counting.changes import changes_to_bytes, spread
from streamveil.transforms.counting.join_steps import (
    CHANGES,
    KEPT,
    REJECTED,
    VISITS,
    JoinConfig,
    ShardKey,
    _JoinAtEndFn,
    _JoinInTimeFn,
)
from streamveil.transforms.counting.loss_limit import TALLIES


class Joined(NamedTuple):
    """What :class:`JoinRequirements` gives."""

    counts: beam.PCollection[tuple[str, bytes]]
    """(stream, part of ShardCounts). In a stream one of each shard and slot; in a bounded input
    only those where a shard has anything to tell, all before its end."""
    rejected: beam.PCollection[pa.RecordBatch]
    """Dead letters: bad changes, and events of users without a requirement."""
    tallies: tuple[beam.PCollection[bytes], ...]
    """In a bounded input, what became of its events."""


@dataclass(eq=False)
class JoinRequirements(beam.PTransform):
    """Joins bounded events with what their users ask for in the slot.

    Input: ((kind, shard), Visits as bytes) and batches of changes. Bounded inputs are joined at
    their end, in slot order, and nothing is late. In a stream there are visits, perhaps none, of
    every slot and shard; the shard closes the slot when it has them and the watermark of changes
    has passed the closing time as well.
    """

    config: JoinConfig
    kept: Sequence[tuple[ShardKey, bytes]] = ()
    """What shards kept in the run that this one goes on from."""

    def __post_init__(self) -> None:
        """Name the transform."""
        super().__init__()

    def expand(
        self,
        inputs: tuple[beam.PCollection[tuple[ShardKey, bytes]], beam.PCollection[pa.RecordBatch]],
    ) -> Joined:
        """Build the steps: map the changes, gather by shard, join."""
        visits, batches = inputs
        config = self.config
        tallies: tuple[beam.PCollection[bytes], ...] = ()
        mapped = batches | "MapChanges" >> beam.ParDo(_MapChangesFn(config)).with_outputs(
            REJECTED, main="changes"
        )
        mapped.changes.element_type = tuple[ShardKey, bytes]
        mapped[REJECTED].element_type = pa.RecordBatch
        tagged = visits | "TagVisits" >> beam.MapTuple(_tag_visits).with_output_types(
            tuple[ShardKey, bytes]
        )
        everything = [tagged, mapped.changes]
        if self.kept:
            tagged_kept = [(key, KEPT + data) for key, data in self.kept]
            everything.append(
                visits.pipeline
                | "Kept" >> beam.Create(tagged_kept).with_output_types(tuple[ShardKey, bytes])
            )
        everything = everything | "AddChanges" >> beam.Flatten()
        if visits.is_bounded and batches.is_bounded:
            gathered = everything | "GatherShards" >> beam.GroupByKey()
            joined = gathered | "JoinAtEnd" >> beam.ParDo(_JoinAtEndFn(config)).with_outputs(
                REJECTED, TALLIES, main="counts"
            )
            joined[TALLIES].element_type = bytes
            tallies = (joined[TALLIES],)
        else:
            joined = everything | "JoinInTime" >> beam.ParDo(_JoinInTimeFn(config)).with_outputs(
                REJECTED, main="counts"
            )
        joined.counts.element_type = tuple[str, bytes]
        joined[REJECTED].element_type = pa.RecordBatch
        rejected = (mapped[REJECTED], joined[REJECTED]) | "AllRejected" >> beam.Flatten()
        return Joined(joined.counts, rejected, tallies)


def _tag_visits(key: ShardKey, data: bytes) -> tuple[ShardKey, bytes]:
    return key, VISITS + data


class _MapChangesFn(beam.DoFn):
    """Batches of changes to ((kind, shard), Changes as bytes), and dead letters on the side."""

    def __init__(self, config: JoinConfig) -> None:
        self._make_mapper = config.change_mapper
        self._shards = config.layout.shards

    def setup(self) -> None:
        self._mapper = self._make_mapper()
        self._mapper.warm()

    def process(self, element: pa.RecordBatch) -> Iterator[Any]:
        if not element.num_rows:  # of no rows a column may have any type
            return
        found, rejected = self._mapper.map(element)
        metrics.count(metrics.CHANGES_READ, element.num_rows)
        metrics.count(metrics.CHANGES_ACCEPTED, element.num_rows - rejected.num_rows)
        if rejected.num_rows:
            for reason, number in reasons_of(rejected):
                metrics.count(metrics.CHANGES_REJECTED_PREFIX + reason, number)
            yield beam.pvalue.TaggedOutput(REJECTED, rejected)
        for key, changes in spread(found, self._shards):
            yield key, CHANGES + changes_to_bytes(changes)
