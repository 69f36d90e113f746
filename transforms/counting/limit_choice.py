"""Choosing participation limits on Beam: one private look at all of a bounded input.

See :mod:`streamveil.engine.count.limit_choice`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import apache_beam as beam
from apache_beam.typehints import KV, Tuple

from streamveil.engine.count.event_codes import ShardKey
from streamveil.engine.count.limit_choice import FOR_STREAM, LimitChoice
from streamveil.engine.count.loss_limit import LossLimit
from streamveil.engine.messages import TALLIES, Kind
from streamveil.transforms.at_end import AtEnd
from streamveil.transforms.counting.loss_limit import refuse_loss
from streamveil.transforms.on_beam import Message


class Chosen(NamedTuple):
    """What :class:`ChooseLimits` gives."""

    shards: beam.PCollection[tuple[ShardKey, Message]]
    """The limits, for each shard."""
    messages: beam.PCollection[tuple[str, Message]]
    """The limits, for the stream."""
    tallies: beam.PCollection[bytes]


@dataclass(eq=False)
class ChooseLimits(beam.PTransform):
    """From (shard, Visits) of a bounded input to the limits of all classes."""

    choice: LimitChoice
    tallies: Sequence[beam.PCollection[bytes]]
    """What became of the events up to the visits."""
    limit: LossLimit
    """How much of them may be lost: where it is more, nothing is asked."""

    def __post_init__(self) -> None:
        """Name the transform."""
        super().__init__()

    def expand(self, visits: beam.PCollection[tuple[ShardKey, Message]]) -> Chosen:
        """Build the steps: look, shard by shard, then choose once."""
        stream = self.choice.logic.stream
        nothing = visits.pipeline | "NobodyLookedAt" >> beam.Create(
            [(stream, Message(Kind.OPEN))]
        ).with_output_types(KV[str, Message])
        looked = (
            visits
            | "GatherForLook" >> beam.GroupByKey()
            | "LookAtUsers"
            >> beam.ParDo(AtEnd(self.choice.look)).with_outputs(TALLIES, main="looked")
        )
        looked.looked.element_type = KV[str, Message]
        looked[TALLIES].element_type = bytes
        word = refuse_loss((*self.tallies, looked[TALLIES]), self.limit, stream)
        chosen = (
            (looked.looked, nothing, word)
            | "AddNobody" >> beam.Flatten()
            | "GatherLooks" >> beam.GroupByKey()
            | "Choose"
            >> beam.ParDo(AtEnd(self.choice.choose)).with_outputs(
                TALLIES, FOR_STREAM, main="shards"
            )
        )
        chosen.shards.element_type = KV[Tuple[int, int], Message]
        chosen[FOR_STREAM].element_type = KV[str, Message]
        chosen[TALLIES].element_type = bytes
        return Chosen(chosen.shards, chosen[FOR_STREAM], chosen[TALLIES])
