"""Which limits on presence to choose: one private look at all of a bounded input, before the rest.

The blocks of users are counted by their slots with events, shard by shard, added up and asked for
with noise: see `mechanisms/presence/choice.py`. What follows is told to every shard, which decides
by it who counts, and to the release stage, which prices slots by it and keeps it in the state.
Nothing is asked before it is known that the input is not lost: a run that is refused costs nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import numpy.typing as npt
from apache_beam.typehints import KV, Tuple

from streamveil.engine.count.chosen_limits import choice_message
from streamveil.engine.count.event_codes import ShardKey, Visits
from streamveil.engine.count.participants import ParticipationLimits
from streamveil.engine.messages import TALLIES, Kind, array_from_bytes, array_to_bytes
from streamveil.mechanisms.core.event_tallies import EventTally
from streamveil.mechanisms.presence.choice import Look
from streamveil.mechanisms.randomness.noise import NoiseKeys, NoiseSource, digest
from streamveil.transforms.counting.loss_limit import LossLimit, check_whole, refuse_loss
from streamveil.transforms.on_beam import Message

Integers = npt.NDArray[np.int64]

_TOLD = "told"


class Chosen(NamedTuple):
    """What :class:`ChooseLimits` gives."""

    shards: beam.PCollection[tuple[ShardKey, Message]]
    """The limits, for each shard."""
    told: beam.PCollection[tuple[str, Message]]
    """The limits, for the stream."""
    tallies: beam.PCollection[bytes]


@dataclass(eq=False)
class ChooseLimits(beam.PTransform):
    """From (shard, Visits) of a bounded input to the limits of all classes.

    The noise is derived from the digest of what is asked and of the configuration.
    """

    logic: ParticipationLimits
    """Under the limits that are known: of whoever is looked at, none."""
    looks: Sequence[Look | None]
    """What is asked of each class."""
    noise_key: Callable[[], NoiseKeys]
    identity: bytes
    """Of the configuration."""
    tallies: Sequence[beam.PCollection[bytes]]
    """What became of the events up to the visits."""
    limit: LossLimit
    """How much of them may be lost: where it is more, nothing is asked."""

    def __post_init__(self) -> None:
        """Name the transform."""
        super().__init__()

    def expand(self, visits: beam.PCollection[tuple[ShardKey, Message]]) -> Chosen:
        """Build the steps: look, shard by shard, then choose once."""
        stream = self.logic.stream
        nothing = visits.pipeline | "NobodyLookedAt" >> beam.Create(
            [(stream, Message(Kind.OPEN))]
        ).with_output_types(KV[str, Message])
        looked = (
            visits
            | "GatherForLook" >> beam.GroupByKey()
            | "LookAtUsers"
            >> beam.ParDo(_LookFn(self.logic, self.looks)).with_outputs(TALLIES, main="looked")
        )
        looked.looked.element_type = KV[str, Message]
        looked[TALLIES].element_type = bytes
        word = refuse_loss((*self.tallies, looked[TALLIES]), self.limit, stream)
        chosen = (
            (looked.looked, nothing, word)
            | "AddNobody" >> beam.Flatten()
            | "GatherLooks" >> beam.GroupByKey()
            | "Choose"
            >> beam.ParDo(
                _ChooseFn(self.logic, self.looks, self.noise_key, self.identity)
            ).with_outputs(TALLIES, _TOLD, main="shards")
        )
        chosen.shards.element_type = KV[Tuple[int, int], Message]
        chosen[_TOLD].element_type = KV[str, Message]
        chosen[TALLIES].element_type = bytes
        return Chosen(chosen.shards, chosen[_TOLD], chosen[TALLIES])


class _LookFn(beam.DoFn):
    """All visits of a shard to (stream, cells of each class that is looked at).

    On the side a tally, of the look alone: what counts is told where limits are known.
    """

    def __init__(self, logic: ParticipationLimits, looks: Sequence[Look | None]) -> None:
        self._logic, self._looks = logic, looks

    def process(self, element: tuple[ShardKey, Iterable[Message]]) -> Iterator[Any]:
        logic, key = self._logic, element[0]
        visits = [Visits.of(message) for message in element[1]]
        there = [logic.visitors(key[0], some) for some in visits]
        users, slots = (np.concatenate(parts) for parts in zip(*there, strict=True))
        classes, cells = logic.classes_of(key[0], users), _nothing(self._looks)
        asked = logic.first_slot, logic.last_slot
        for k, look in enumerate(self._looks):
            if look is not None:
                mine = classes == k
                told = look.cells(look.used(logic.key, users[mine], slots[mine], asked))
                cells[k, : len(told)] = told
        yield logic.stream, Message(Kind.COUNTS, payload=array_to_bytes(cells))
        counted = sum(int(some.kept.sum()) for some in visits)
        tally = EventTally(counted=counted, messages=1 - len(visits))
        yield beam.pvalue.TaggedOutput(TALLIES, tally.to_bytes())


class _ChooseFn(beam.DoFn):
    """What all shards saw to the limits: for each shard; on the side the stream, and a tally."""

    def __init__(
        self,
        logic: ParticipationLimits,
        looks: Sequence[Look | None],
        noise_key: Callable[[], NoiseKeys],
        identity: bytes,
    ) -> None:
        self._logic, self._looks = logic, looks
        self._noise_key, self._identity = noise_key, identity

    def process(self, element: tuple[str, Iterable[Message]]) -> Iterator[Any]:
        logic, layout, (stream, messages) = self._logic, self._logic.layout, element
        cells, taken, sent = _nothing(self._looks), 0, list[int]()
        for message in messages:
            if message.kind is Kind.COUNTS:
                cells += array_from_bytes(message.payload)
                taken += 1
            elif message.kind is Kind.WHOLE:
                sent.append(int(message.payload))
        check_whole(sent, taken)
        noise = NoiseSource(self._noise_key(), stream).slot(
            logic.first_slot or 0, digest(self._identity, b"look at presence", cells.tobytes())
        )
        limits = list(logic.limits)
        for k, look in enumerate(self._looks):
            if look is not None:
                asked = cells[k, : len(look.limits) + 2]
                limits[k] = look.choice(look.answer(asked, noise.words(f"presence {k}")))
        for part in range(layout.parts):
            yield layout.key(part), choice_message(limits, part, layout.parts)
        yield beam.pvalue.TaggedOutput(_TOLD, (stream, choice_message(limits)))
        tally = EventTally(messages=layout.parts + 1)
        yield beam.pvalue.TaggedOutput(TALLIES, tally.to_bytes())


def _nothing(looks: Sequence[Look | None]) -> Integers:
    """Cells of nobody, shape (K, most cells)."""
    most = max(len(look.limits) + 2 for look in looks if look is not None)
    return np.zeros((len(looks), most), np.int64)
