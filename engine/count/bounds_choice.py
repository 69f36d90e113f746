"""Which bounds to choose: one private look at the numbers of a bounded input, before the rest.

Of each user one event is drawn, shard by shard, and counted by its cell; all are added up and asked
for with noise: see `mechanisms/queries/bounds.py`. The chosen bounds go to the step that maps
events, which waits for it, and to the release stage, which keeps it in the state. So events go by
twice: once for the look, once to be counted. The first time it is also seen what all queries
lose, and nothing is asked if that is too much: a run that is refused costs nobody.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from streamveil.engine.count.bounding import Bounding
from streamveil.engine.count.event_codes import (
    MEMBERS,
    Layout,
    Packed,
    bound_block,
    pack,
    read_codes,
)
from streamveil.engine.count.loss_limit import whole_counts
from streamveil.engine.encode.dead_letters import losses_of, tally_of
from streamveil.engine.encode.event_mapper import Events
from streamveil.engine.encode.query_mapper import QueriesMapper, QueryEvents, with_queries
from streamveil.engine.messages import (
    TALLIES,
    Kind,
    Message,
    Output,
    array_from_bytes,
    array_to_bytes,
)
from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.core.budgets import UNIT_BITS, UNITS_PER_EPSILON
from streamveil.mechanisms.core.event_tallies import EventTally
from streamveil.mechanisms.core.records import UNIFORM, NothingChosen
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.queries.bounds import (
    CELLS,
    Look,
    NoBoundsError,
    answer,
    choice,
    looks_at,
    paying,
    rate_of,
)
from streamveil.mechanisms.queries.discovered import discovering
from streamveil.mechanisms.queries.queries import QuerySet
from streamveil.mechanisms.randomness.noise import NoiseKeys, NoiseSource, digest

BOUNDS = "bounds"
WITHOUT_NOISE = UNITS_PER_EPSILON << 20
"""Units that an event costs where noise is next to nothing: a look in test mode has none."""


@dataclass(frozen=True)
class Sample:
    """What is drawn from the events, and how it is counted."""

    query_set: QuerySet
    registry: Registry
    shards: int
    make_mapper: Callable[[QuerySet], QueriesMapper]
    """Gives, on a worker, what reads the events that a query set asks about."""
    make_key: Callable[[], bytes]
    """Gives, on a worker, the secret of the draws, 32 bytes."""

    @cached_property
    def looks(self) -> tuple[Look, ...]:
        """What is asked."""
        return looks_at(self.query_set)

    @cached_property
    def bounding(self) -> Bounding:
        """One event of a user counts: the guarantee of the look rests on it."""
        return Bounding(1, UNIFORM, self.make_key())

    @cached_property
    def layout(self) -> Layout:
        """How the events of one look become numbers: all of them are of slot 0."""
        return Layout.choose(self.registry, CELLS, self.shards, timely=True)

    @property
    def mapper(self) -> QueriesMapper:
        """What maps batches as all queries do, but for the cells of looks.

        A query reads, and loses, the same events whatever is counted of its numbers.
        """
        samples = {name: look.sample for look in self.looks for name in look.names}
        asked = tuple(
            replace(samples[one.name], name=one.name) if one.name in samples else one
            for one in self.query_set
        )
        return replace(self.make_mapper(QuerySet(self.query_set.base, asked)), counts=False)

    def lost(
        self, batch: pa.RecordBatch, events: Sequence[QueryEvents], rejected: pa.RecordBatch
    ) -> EventTally:
        """What becomes of a batch of which so much was mapped."""
        losses = losses_of(rejected) if rejected.num_rows else {}
        tally = with_queries(EventTally(batch.num_rows, losses), self.query_set, events)
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
        events_of = {one.name: some for one, some in zip(self.query_set, events, strict=True)}
        for number, look in enumerate(self.looks):
            some = events_of[look.names[0]]
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

    def map_batch(self, mapper: QueriesMapper, batch: pa.RecordBatch) -> Iterator[Output]:
        """The events of each look and shard; on the side a tally of the look alone.

        Dead letters are written when all events are counted.
        """
        if not batch.num_rows:
            yield Output(tally_of(batch).to_bytes(), TALLIES)
            return
        sent = 0
        events, rejected = mapper.map(batch)
        for key, packed in self.pack(events):
            sent += 1
            yield Output((key, Message(Kind.EVENTS, payload=packed.to_bytes())))
        lost = self.lost(batch, events, rejected)
        yield Output(replace(lost, messages=lost.messages + sent).to_bytes(), TALLIES)


@dataclass(frozen=True)
class BoundsChoice:
    """Chooses the bounds of all queries that have none, from a sample.

    The noise is derived from the digest of what is counted and of the configuration.
    """

    sample: Sample
    noise_key: Callable[[], NoiseKeys]
    identity: bytes
    """Of the configuration."""
    stream: str
    slot: int
    """Which slot's noise key is taken."""
    test_mode: bool = False
    """Whether they are chosen without noise: NOT private."""

    def count(self, key: tuple[int, int, int], messages: Iterable[Message]) -> Iterator[Output]:
        """All events of a look and shard to (stream, cells of the look); and a tally."""
        number, kind, _ = key
        parts = [Packed.from_bytes(message.payload) for message in messages]
        cells = self.sample.cells(kind, parts)
        message = Message(Kind.COUNTS, number, payload=array_to_bytes(cells))
        yield Output((self.stream, message))
        yield Output(EventTally(messages=1 - len(parts)).to_bytes(), TALLIES)

    def choose(self, _: str, messages: Iterable[Message]) -> Iterator[Output]:
        """What all shards counted to the bounds: for the stream, and on the side for the mapping.

        Raises NothingChosen where too few events stand out from noise.
        """
        sample = self.sample
        cells = np.zeros((len(sample.looks), CELLS), np.int64)
        for message in whole_counts(messages):
            cells[message.slot] += array_from_bytes(message.payload)
        noise = NoiseSource(self.noise_key(), self.stream).slot(
            self.slot, digest(self.identity, b"look at bounds", cells.tobytes())
        )
        chosen = []
        for number, look in enumerate(sample.looks):
            answered, rate, cost = cells[number], WITHOUT_NOISE, 0.0
            if not self.test_mode:
                rate, cost = sample.rate, sample.cost
                answered = answer(answered, rate, noise.words(f"bounds {number}"))
            try:
                chosen.append(choice(answered, rate))
            except NoBoundsError as error:
                found = bool(discovering(sample.query_set))
                raise nothing_chosen(look, str(error), cost, discovered=found) from None
        payload = array_to_bytes(np.array(chosen, np.float64))
        yield Output((self.stream, Message(Kind.BOUNDS, payload=payload)))
        yield Output(payload, BOUNDS)
        yield Output(EventTally(messages=1).to_bytes(), TALLIES)


def bounds_from(data: bytes) -> Floats:
    """The bounds, shape (looks, 2)."""
    return array_from_bytes(data)


def nothing_chosen(look: Look, why: str, cost: float, *, discovered: bool = False) -> NothingChosen:
    """Of a look, which and why: a text of :class:`NoBoundsError`; and the epsilon of all looks.

    The discovery of keys, if there was one, has spent its own share of the budget.
    """
    names, column = ", ".join(map(repr, look.names)), look.sample.statistic.column
    spent = f". The look has cost epsilon {cost:.3g} of everybody's budget all the same"
    spent += ", and the discovery of keys has spent its share" if discovered else ""
    return NothingChosen(
        f"query {names}: bounds: auto {why.format(column=column)}: see by a dry run whether "
        f"events are lost or misread, or give bounds: [LOW, HIGH]{spent if cost else ''}"
    )
