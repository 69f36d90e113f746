"""Which bounds to choose: one private look at the numbers of a bounded input, before the rest.

Of each user one event is drawn, shard by shard, and counted by its cell; all are added up and asked
for with noise: see `mechanisms/portfolio/bounds.py`. What follows is told to the step that maps
events, which waits for it, and to the release stage, which keeps it in the state. So events go by
twice: once for the look, once to be counted. The first time it is also seen what all questions
lose, and nothing is asked if that is too much: a run that is refused costs nobody.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from apache_beam.typehints import KV, Tuple

from streamveil.engine.count.bounding import Bounding
from streamveil.engine.count.event_codes import (
    MEMBERS,
    Layout,
    Packed,
    bound_block,
    pack,
    read_codes,
)
from streamveil.engine.encode.dead_letters import losses_of, tally_of
from streamveil.engine.encode.event_mapper import Events
from streamveil.engine.encode.query_mapper import QuestionEvents, QuestionsMapper, with_questions
from streamveil.engine.messages import TALLIES, Kind, array_from_bytes, array_to_bytes
from streamveil.mechanisms.core.budgets import UNIT_BITS
from streamveil.mechanisms.core.event_tallies import EventTally
from streamveil.mechanisms.core.records import UNIFORM, NothingChosen
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.portfolio.bounds import (
    CELLS,
    Look,
    NoBoundsError,
    answer,
    choice,
    looks_at,
    paying,
    rate_of,
)
from streamveil.mechanisms.portfolio.questions import Portfolio
from streamveil.mechanisms.randomness.noise import NoiseKeys, NoiseSource, digest
from streamveil.transforms.counting.loss_limit import LossLimit, check_whole, refuse_loss
from streamveil.transforms.on_beam import Message

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_BOUNDS = "bounds"
_LOGGER = logging.getLogger("streamveil")


@dataclass(frozen=True)
class Sample:
    """What is drawn from the events, and how it is counted."""

    portfolio: Portfolio
    registry: Registry
    shards: int
    make_mapper: Callable[[Portfolio], QuestionsMapper]
    """Gives, on a worker, what reads the events that a portfolio asks about."""
    make_key: Callable[[], bytes]
    """Gives, on a worker, the secret of the draws, 32 bytes."""

    @cached_property
    def looks(self) -> tuple[Look, ...]:
        """What is asked."""
        return looks_at(self.portfolio)

    @cached_property
    def bounding(self) -> Bounding:
        """One event of a user counts: the guarantee of the look rests on it."""
        return Bounding(1, UNIFORM, self.make_key())

    @cached_property
    def layout(self) -> Layout:
        """How the events of one look become numbers: all of them are of slot 0."""
        return Layout.choose(self.registry, CELLS, self.shards, timely=True)

    @property
    def mapper(self) -> QuestionsMapper:
        """What maps batches as all questions do, but for the cells of looks.

        A question reads, and loses, the same events whatever is counted of its numbers.
        """
        samples = {name: look.sample for look in self.looks for name in look.names}
        asked = tuple(
            replace(samples[one.name], name=one.name) if one.name in samples else one
            for one in self.portfolio
        )
        return replace(self.make_mapper(Portfolio(self.portfolio.base, asked)), counts=False)

    def lost(
        self, batch: pa.RecordBatch, events: Sequence[QuestionEvents], rejected: pa.RecordBatch
    ) -> EventTally:
        """What becomes of a batch of which so much was mapped."""
        losses = losses_of(rejected) if rejected.num_rows else {}
        tally = with_questions(EventTally(batch.num_rows, losses), self.portfolio, events)
        return EventTally.total([tally_of(batch), tally])

    @property
    def rate(self) -> int:
        """Units that an event costs. Raises ConfigurationError where they are none."""
        return rate_of(len(self.looks), paying(self.registry.classes, self.registry.sizes)[1])

    @property
    def cost(self) -> float:
        """Epsilon that all looks cost each user who pays."""
        units = paying(self.registry.classes, self.registry.sizes)[1]
        return math.ldexp(units, -UNIT_BITS)

    def pack(self, events: Iterable[Events]) -> Iterator[tuple[tuple[int, int, int], Packed]]:
        """Those of a batch, for each look, kind of users and shard."""
        told = {one.name: some for one, some in zip(self.portfolio, events, strict=True)}
        for number, look in enumerate(self.looks):
            some = told[look.names[0]]
            one = Events(np.zeros_like(some.slots), some.bins % CELLS, some.members, some.strangers)
            for _, key, packed, _ in pack(one, self.layout, self.bounding):
                yield (number, *key), packed

    def cells(self, kind: int, parts: Iterable[Packed]) -> Integers:
        """One event of each user of a shard who pays, counted: shape (CELLS,)."""
        visits = bound_block(kind, 0, parts, self.layout, self.bounding)
        _, users, cells = read_codes(kind, visits.codes, self.layout)
        classes = self.registry.classes_with_other
        pays, _ = paying(self.registry.classes, self.registry.sizes)
        there = pays[classes[users] if kind == MEMBERS else np.full(len(users), classes[-1])]
        found = np.zeros(CELLS, np.int64)
        np.add.at(found, cells, np.where(there, visits.kept, 0))
        return found


class Chosen(NamedTuple):
    """What :class:`ChooseBounds` gives."""

    bounds: beam.PCollection[bytes]
    """One array, shape (looks, 2): see :func:`bounds_from`."""
    told: beam.PCollection[tuple[str, Message]]
    """The same, for the stream."""
    tallies: beam.PCollection[bytes]


@dataclass(eq=False)
class ChooseBounds(beam.PTransform):
    """From batches of a bounded input to the bounds of all questions that have none.

    The noise is derived from the digest of what is counted and of the configuration. Raises
    ConfigurationError on a worker where too few events can be told from noise.
    """

    sample: Sample
    noise_key: Callable[[], NoiseKeys]
    identity: bytes
    """Of the configuration."""
    stream: str
    slot: int
    """Which slot's noise key is taken."""
    limit: LossLimit
    """How much may be lost: where it is more, nothing is asked."""

    def __post_init__(self) -> None:
        """Name the transform. Raises ConfigurationError for too small a budget."""
        super().__init__()
        _ = self.sample.rate

    def expand(self, batches: beam.PCollection[pa.RecordBatch]) -> Chosen:
        """Build the steps: draw, count shard by shard, then choose once."""
        nothing = batches.pipeline | "NothingLookedAt" >> beam.Create(
            [(self.stream, Message(Kind.OPEN))], reshuffle=False
        ).with_output_types(KV[str, Message])
        drawn = batches | "MapSample" >> beam.ParDo(_MapSampleFn(self.sample)).with_outputs(
            TALLIES, main="codes"
        )
        drawn.codes.element_type = KV[Tuple[int, int, int], Message]
        drawn[TALLIES].element_type = bytes
        counted = (
            drawn.codes
            | "GatherSample" >> beam.GroupByKey()
            | "CountSample"
            >> beam.ParDo(_CountSampleFn(self.sample, self.stream)).with_outputs(
                TALLIES, main="counts"
            )
        )
        counted.counts.element_type = KV[str, Message]
        counted[TALLIES].element_type = bytes
        word = refuse_loss((drawn[TALLIES], counted[TALLIES]), self.limit, self.stream)
        chosen = (
            (counted.counts, nothing, word)
            | "AddNothing" >> beam.Flatten()
            | "GatherLooks" >> beam.GroupByKey()
            | "ChooseBounds"
            >> beam.ParDo(_ChooseFn(self)).with_outputs(TALLIES, _BOUNDS, main="told")
        )
        chosen.told.element_type = KV[str, Message]
        chosen[_BOUNDS].element_type = bytes
        chosen[TALLIES].element_type = bytes
        # BundleBasedDirectRunner tells the outputs of one step apart only where a step follows.
        bounds = chosen[_BOUNDS] | "Bounds" >> beam.Map(bytes).with_output_types(bytes)
        return Chosen(bounds, chosen.told, chosen[TALLIES])


def bounds_from(data: bytes) -> Floats:
    """The bounds, shape (looks, 2)."""
    return array_from_bytes(data)


class _MapSampleFn(beam.DoFn):
    """Batches to the events of each look and shard.

    On the side tallies of the look alone: dead letters are told where all is counted.
    """

    def __init__(self, sample: Sample) -> None:
        self._sample = sample

    def setup(self) -> None:
        self._mapper = self._sample.mapper

    def process(self, element: pa.RecordBatch) -> Iterator[Any]:
        if not element.num_rows:
            yield beam.pvalue.TaggedOutput(TALLIES, tally_of(element).to_bytes())
            return
        sent = 0
        events, rejected = self._mapper.map(element)
        for key, packed in self._sample.pack(events):
            sent += 1
            yield key, Message(Kind.EVENTS, payload=packed.to_bytes())
        lost = self._sample.lost(element, events, rejected)
        tally = replace(lost, messages=lost.messages + sent)
        yield beam.pvalue.TaggedOutput(TALLIES, tally.to_bytes())


class _CountSampleFn(beam.DoFn):
    """All events of a look and shard to (stream, cells of the look)."""

    def __init__(self, sample: Sample, stream: str) -> None:
        self._sample, self._stream = sample, stream

    def process(self, element: tuple[tuple[int, int, int], Iterable[Message]]) -> Iterator[Any]:
        (number, kind, _), messages = element
        parts = [Packed.from_bytes(message.payload) for message in messages]
        cells = self._sample.cells(kind, parts)
        yield self._stream, Message(Kind.COUNTS, number, payload=array_to_bytes(cells))
        tally = EventTally(messages=1 - len(parts))
        yield beam.pvalue.TaggedOutput(TALLIES, tally.to_bytes())


class _ChooseFn(beam.DoFn):
    """What all shards counted to the bounds: for the stream, and on the side for the mapping."""

    def __init__(self, choose: ChooseBounds) -> None:
        self._sample, self._slot = choose.sample, choose.slot
        self._noise_key, self._identity = choose.noise_key, choose.identity

    def process(self, element: tuple[str, Iterable[Message]]) -> Iterator[Any]:
        sample, (stream, messages) = self._sample, element
        cells, taken, sent = np.zeros((len(sample.looks), CELLS), np.int64), 0, list[int]()
        for message in messages:
            if message.kind is Kind.COUNTS:
                cells[message.slot] += array_from_bytes(message.payload)
                taken += 1
            elif message.kind is Kind.WHOLE:
                sent.append(int(message.payload))
        check_whole(sent, taken)
        noise = NoiseSource(self._noise_key(), stream).slot(
            self._slot, digest(self._identity, b"look at bounds", cells.tobytes())
        )
        found = []
        for number, look in enumerate(sample.looks):
            words = noise.words(f"bounds {number}")
            try:
                found.append(choice(answer(cells[number], sample.rate, words), sample.rate))
            except NoBoundsError as error:
                raise nothing_chosen(look, str(error), sample.cost) from None
        payload = array_to_bytes(np.array(found, np.float64))
        yield stream, Message(Kind.CHOICE, payload=payload)
        yield beam.pvalue.TaggedOutput(_BOUNDS, payload)
        yield beam.pvalue.TaggedOutput(TALLIES, EventTally(messages=1).to_bytes())


def nothing_chosen(look: Look, why: str, cost: float) -> NothingChosen:
    """Of a look, which and why: a text of :class:`NoBoundsError`; and the epsilon of all looks."""
    names, column = ", ".join(map(repr, look.names)), look.sample.statistic.column
    return NothingChosen(
        f"question {names}: bounds: auto {why.format(column=column)}: see by a dry run whether "
        "events are lost or misread, or give lower and upper. The look has cost epsilon "
        f"{cost:.3g} of everybody's budget all the same"
    )
