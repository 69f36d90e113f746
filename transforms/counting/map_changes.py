"""From batches of changes of requirements to the changes of each shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.typehints import KV, Tuple

from streamveil.engine.count.changes import ChangeMapper, map_changes
from streamveil.engine.count.event_codes import Layout
from streamveil.engine.messages import REJECTED, TALLIES
from streamveil.transforms.on_beam import Message, emitted


def changes_by_shard(
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
        yield from map(emitted, map_changes(self._mapper, self._layout, element))
