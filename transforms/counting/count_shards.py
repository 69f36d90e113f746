"""From the visits of shards to counts: at the end of a bounded input, and as slots close."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import apache_beam as beam
import pyarrow as pa
from apache_beam.typehints import KV, Tuple

from streamveil.engine.count.close_shards import CloseShards
from streamveil.engine.count.event_codes import Layout, ShardKey
from streamveil.engine.count.shards import ShardLogic, close_at_end
from streamveil.engine.messages import REJECTED, TALLIES, Kind
from streamveil.mechanisms.core.event_tallies import EventTally
from streamveil.transforms.at_end import AtEnd
from streamveil.transforms.counting.limit_choice import ChooseLimits
from streamveil.transforms.counting.map_changes import changes_by_shard
from streamveil.transforms.in_time import InTime
from streamveil.transforms.on_beam import Message

_BY_SHARD = KV[Tuple[int, int], Message]
_Collections = list[beam.PCollection[Any]]


class CountedShards(NamedTuple):
    """What :class:`CountShards` gives."""

    counts: beam.PCollection[tuple[str, Message]]
    """(stream, counts). In a stream one of each shard and slot. In a bounded input only those where
    a shard has something to emit; and as `Kind.KEPT` what a resumed run needs to know, if the logic
    `keeps` it."""
    rejected: Sequence[beam.PCollection[pa.RecordBatch]]
    """Dead letters: bad changes, and events of users without a requirement."""
    tallies: Sequence[beam.PCollection[bytes]] = ()
    """In a bounded input, what became of its events."""


@dataclass(eq=False)
class CountShards(beam.PTransform):
    """From (shard, Visits) to counts, shard by shard and in slot order.

    A bounded input is counted at its end, and nothing is late. In a stream there are visits,
    perhaps none, of every slot and shard, and a shard closes a slot when it has them and the
    watermark, of changes as well, has passed its closing time.
    """

    logic: ShardLogic
    starts: beam.PCollection[tuple[str, Message]] | None = None
    """Of a stream: which slot is the first. It goes to shards whose logic does not know it."""
    kept: Sequence[Message] = ()
    """What shards kept in the run that this one resumes from."""
    choice: ChooseLimits | None = None
    """Chooses the participation limits of a bounded input where they are not known; then nothing
    changes."""
    changes: beam.PCollection[pa.RecordBatch] | None = None
    """Batches of changes, where the logic knows how to map them."""

    def __post_init__(self) -> None:
        """Name the transform."""
        super().__init__()

    def expand(self, visits: beam.PCollection[tuple[ShardKey, Message]]) -> CountedShards:
        """Build the steps: gather by shard, count in slot order."""
        everything: _Collections = [visits]
        rejected: _Collections = []
        tallies: _Collections = []
        if self.changes is not None:
            assert self.logic.change_mapper is not None
            mapped = changes_by_shard(self.changes, self.logic.change_mapper, self.logic.layout)
            everything.append(mapped.changes)
            rejected.append(mapped[REJECTED])
            tallies.append(mapped[TALLIES])
        if self.starts is None:
            counted = self._at_end(everything, tallies)
        else:
            counted = self._in_time(everything, self.starts)
        return counted._replace(rejected=(*rejected, *counted.rejected))

    def _at_end(self, everything: _Collections, tallies: _Collections) -> CountedShards:
        """Of a bounded input; `everything` begins with the visits."""
        visits = everything[0]
        everything = [*everything, *self._kept_by_shard(visits.pipeline, self.kept)]
        chosen = None
        if self.choice is not None:
            chosen = visits | "ChooseLimits" >> self.choice
            everything.append(chosen.shards)
            tallies.append(chosen.tallies)
        counted = (
            everything
            | "AddState" >> beam.Flatten()
            | "GatherShards" >> beam.GroupByKey()
            | "CountAtEnd"
            >> beam.ParDo(AtEnd(partial(close_at_end, self.logic))).with_outputs(
                REJECTED, TALLIES, main="counts"
            )
        )
        counted[TALLIES].element_type = bytes
        counted[REJECTED].element_type = pa.RecordBatch
        counts = counted.counts
        counts.element_type = KV[str, Message]
        if chosen is not None:
            counts = (counts, chosen.messages) | "AddChoice" >> beam.Flatten()
        came = EventTally(messages=len(self.kept)).to_bytes()
        begin = visits.pipeline | "TallyState" >> beam.Create([came])
        return CountedShards(counts, [counted[REJECTED]], [*tallies, begin, counted[TALLIES]])

    def _in_time(
        self, everything: _Collections, starts: beam.PCollection[tuple[str, Message]]
    ) -> CountedShards:
        """Of a stream."""
        logic = self.logic
        pipeline = starts.pipeline
        if logic.first_slot is None:
            everything = [
                *everything,
                starts
                | "StartShards"
                >> beam.FlatMap(to_shards, logic.layout).with_output_types(_BY_SHARD),
            ]
        known = {}
        to_come = []
        for message in self.kept:
            key = logic.layout.key(message.shard)
            known[key], changes = logic.kept_parts(key[0], message.payload)
            if len(changes.users):
                to_come.append(message._replace(kind=Kind.CHANGES, payload=changes.to_bytes()))
        counted = (
            [*everything, *self._kept_by_shard(pipeline, to_come)]
            | "AddStart" >> beam.Flatten()
            | "CountInTime"
            >> beam.ParDo(InTime(CloseShards(logic, known))).with_outputs(REJECTED, main="counts")
        )
        counted.counts.element_type = KV[str, Message]
        counted[REJECTED].element_type = pa.RecordBatch
        return CountedShards(counted.counts, [counted[REJECTED]])

    def _kept_by_shard(self, pipeline: Any, kept: Sequence[Message]) -> _Collections:
        """What was kept, by shard: one collection, or none where there is nothing."""
        if not kept:
            return []
        by_shard = [(self.logic.layout.key(message.shard), message) for message in kept]
        return [pipeline | "KeptState" >> beam.Create(by_shard).with_output_types(_BY_SHARD)]


def to_shards(start: tuple[str, Message], layout: Layout) -> Iterator[tuple[ShardKey, Message]]:
    """Tell every shard which slot is the first of a stream."""
    for part in range(layout.parts):
        yield layout.key(part), start[1]
