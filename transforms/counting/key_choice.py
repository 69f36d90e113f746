"""Discovering keys on Beam, before the events of a bounded input are counted.

See :mod:`streamveil.engine.run.key_choice`. The keys are a side input of the steps that map, count
and release the events.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.typehints import KV

from streamveil.engine.count.loss_limit import LossLimit
from streamveil.engine.messages import TALLIES
from streamveil.engine.stream.steps import ChoosesKeys
from streamveil.transforms.at_end import AtEnd
from streamveil.transforms.counting.loss_limit import refuse_loss
from streamveil.transforms.on_beam import Message, emitted


@dataclass(eq=False)
class DiscoverKeys(beam.PTransform):
    """From batches of a bounded input to one element, the keys of all queries that discover them.

    Raises on a worker what :meth:`KeyChoice.choose` raises.
    """

    choice: ChoosesKeys
    limit: LossLimit
    """The loss limit of the plan. Here, only an input without events is refused, because later
    steps count the events that are lost."""

    def __post_init__(self) -> None:
        """Name the transform."""
        super().__init__()

    def expand(self, batches: beam.PCollection[pa.RecordBatch]) -> beam.PCollection[bytes]:
        """Build the steps: gather the pairs of a key and a user, then find the keys."""
        mapped = batches | "MapKeys" >> beam.ParDo(_MapKeysFn(self.choice)).with_outputs(
            TALLIES, main="pairs"
        )
        mapped.pairs.element_type = KV[str, Message]
        mapped[TALLIES].element_type = bytes
        limit = replace(self.limit, max_rejected=1.0)
        word = refuse_loss((mapped[TALLIES],), limit, self.choice.stream)
        return (
            (mapped.pairs, word)
            | "AddWord" >> beam.Flatten()
            | "GatherPairs" >> beam.GroupByKey()
            | "FindKeys" >> beam.ParDo(AtEnd(self.choice.choose)).with_output_types(bytes)
        )


class _MapKeysFn(beam.DoFn):
    """Batches to pairs of a key and a user, by :meth:`KeyChoice.map_batch`."""

    def __init__(self, choice: ChoosesKeys) -> None:
        self._choice = choice

    def setup(self) -> None:
        self._mapper = self._choice.mapper()

    def process(self, element: pa.RecordBatch) -> Iterator[Any]:
        yield from map(emitted, self._choice.map_batch(self._mapper, element))
