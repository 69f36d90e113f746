"""Choosing bounds on Beam: one private look at the numbers of a bounded input, before the rest.

See :mod:`streamveil.engine.count.bounds_choice`. The chosen bounds go to the step that maps
events, which waits for it, and to the release stage, which keeps it in the state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import apache_beam as beam
import pyarrow as pa
from apache_beam.typehints import KV, Tuple

from streamveil.engine.count.bounds_choice import BOUNDS, BoundsChoice, Sample
from streamveil.engine.count.loss_limit import LossLimit
from streamveil.engine.messages import TALLIES, Kind
from streamveil.transforms.at_end import AtEnd
from streamveil.transforms.counting.loss_limit import refuse_loss
from streamveil.transforms.on_beam import Message, emitted


class Chosen(NamedTuple):
    """What :class:`ChooseBounds` gives."""

    bounds: beam.PCollection[bytes]
    """One array, shape (looks, 2): see :func:`bounds_from` of the engine."""
    messages: beam.PCollection[tuple[str, Message]]
    """The same, for the stream."""
    tallies: beam.PCollection[bytes]


@dataclass(eq=False)
class ChooseBounds(beam.PTransform):
    """From batches of a bounded input to the bounds of all queries that have none.

    Raises NothingChosen on a worker where too few events stand out from noise.
    """

    choice: BoundsChoice
    limit: LossLimit
    """How much may be lost: where it is more, nothing is asked."""

    def __post_init__(self) -> None:
        """Name the transform. Raises ConfigurationError for too small a budget."""
        super().__init__()
        _ = self.choice.sample.rate

    def expand(self, batches: beam.PCollection[pa.RecordBatch]) -> Chosen:
        """Build the steps: draw, count shard by shard, then choose once."""
        stream = self.choice.stream
        nothing = batches.pipeline | "NothingLookedAt" >> beam.Create(
            [(stream, Message(Kind.OPEN))], reshuffle=False
        ).with_output_types(KV[str, Message])
        drawn = batches | "MapSample" >> beam.ParDo(_MapSampleFn(self.choice.sample)).with_outputs(
            TALLIES, main="codes"
        )
        drawn.codes.element_type = KV[Tuple[int, int, int], Message]
        drawn[TALLIES].element_type = bytes
        counted = (
            drawn.codes
            | "GatherSample" >> beam.GroupByKey()
            | "CountSample"
            >> beam.ParDo(AtEnd(self.choice.count)).with_outputs(TALLIES, main="counts")
        )
        counted.counts.element_type = KV[str, Message]
        counted[TALLIES].element_type = bytes
        word = refuse_loss((drawn[TALLIES], counted[TALLIES]), self.limit, stream)
        chosen = (
            (counted.counts, nothing, word)
            | "AddNothing" >> beam.Flatten()
            | "GatherLooks" >> beam.GroupByKey()
            | "ChooseBounds"
            >> beam.ParDo(AtEnd(self.choice.choose)).with_outputs(TALLIES, BOUNDS, main="messages")
        )
        chosen.messages.element_type = KV[str, Message]
        chosen[BOUNDS].element_type = bytes
        chosen[TALLIES].element_type = bytes
        # BundleBasedDirectRunner tells the outputs of one step apart only where a step follows.
        bounds = chosen[BOUNDS] | "Bounds" >> beam.Map(bytes).with_output_types(bytes)
        return Chosen(bounds, chosen.messages, chosen[TALLIES])


class _MapSampleFn(beam.DoFn):
    """Batches to the events of each look and shard, by :meth:`Sample.map_batch`."""

    def __init__(self, sample: Sample) -> None:
        self._sample = sample

    def setup(self) -> None:
        self._mapper = self._sample.mapper

    def process(self, element: pa.RecordBatch) -> Iterator[Any]:
        yield from map(emitted, self._sample.map_batch(self._mapper, element))
