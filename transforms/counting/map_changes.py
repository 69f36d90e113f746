"""From batches of changes of requirements to the changes of each shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.typehints import KV, Tuple

from streamveil.engine.count.changes import ChangeMapper, spread
from streamveil.engine.count.event_codes import Layout
from streamveil.engine.encode.dead_letters import reasons_of, tally_of
from streamveil.engine.messages import REJECTED, TALLIES, Kind
from streamveil.mechanisms.core.event_tallies import EventTally
from streamveil.transforms.on_beam import Message, metrics


def map_changes(
    batches: beam.PCollection[pa.RecordBatch],
    change_mapper: Callable[[], ChangeMapper],
    layout: Layout,
) -> Any:
    """Batches of changes to `changes`, (shard, Changes); dead letters and tallies on the side."""
    mapped = batches | "MapChanges" >> beam.ParDo(
        _MapChangesFn(change_mapper, layout)
    ).with_outputs(REJECTED, TALLIES, main="changes")
    mapped.changes.element_type = KV[Tuple[int, int], Message]
    mapped[REJECTED].element_type = pa.RecordBatch
    mapped[TALLIES].element_type = bytes
    return mapped


class _MapChangesFn(beam.DoFn):
    """Batches of changes to (shard, Changes); on the side dead letters, and tallies as bytes."""

    def __init__(self, change_mapper: Callable[[], ChangeMapper], layout: Layout) -> None:
        self._make_mapper = change_mapper
        self._layout = layout

    def setup(self) -> None:
        self._mapper = self._make_mapper()
        self._mapper.warm()

    def process(self, element: pa.RecordBatch) -> Iterator[Any]:
        taken = tally_of(element).messages
        if not element.num_rows:  # of no rows a column may have any type
            yield beam.pvalue.TaggedOutput(TALLIES, EventTally(messages=taken).to_bytes())
            return
        found, rejected = self._mapper.map(element)
        metrics.count(metrics.CHANGES_READ, element.num_rows)
        metrics.count(metrics.CHANGES_ACCEPTED, element.num_rows - rejected.num_rows)
        if rejected.num_rows:
            for reason, number in reasons_of(rejected):
                metrics.count(metrics.CHANGES_REJECTED_PREFIX + reason, number)
            yield beam.pvalue.TaggedOutput(REJECTED, rejected)
        shards = list(spread(found, self._layout.shards))
        yield beam.pvalue.TaggedOutput(TALLIES, EventTally(messages=taken + len(shards)).to_bytes())
        for key, changes in shards:
            data = changes.to_bytes()
            yield key, self._layout.message(Kind.CHANGES, changes.first, key, data)
