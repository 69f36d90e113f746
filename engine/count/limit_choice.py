"""Which participation limits to choose: one private look at all of a bounded input.

In a query set that is one for each query, in slots of its own and for its share of the budget. The
blocks of users are counted by their slots with events, shard by shard, added up and asked for
with noise: see `mechanisms/presence/choice.py`. The chosen limits go to every shard, which decides
by it who counts, and to the release stage, which prices slots by it and keeps it in the state.
Nothing is asked before it is known that the input is not lost: a run that is refused costs nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from streamveil.engine.count.chosen_limits import choice_message
from streamveil.engine.count.event_codes import Layout, ShardKey, Visits
from streamveil.engine.count.loss_limit import whole_counts
from streamveil.engine.count.participants import ParticipationLimits
from streamveil.engine.messages import (
    TALLIES,
    Kind,
    Message,
    Output,
    array_from_bytes,
    array_to_bytes,
)
from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.event_tallies import EventTally
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.presence.choice import Look
from streamveil.mechanisms.randomness.noise import NoiseKeys, NoiseSource, digest

FOR_STREAM = "for the stream"


class LimitingLogic(Protocol):
    """How shards count under participation limits, of one count or of queries."""

    @property
    def layout(self) -> Layout:
        """How codes of events are laid out."""

    @property
    def stream(self) -> str:
        """Key of what is counted."""

    @property
    def first_slot(self) -> int | None:
        """The first slot, or base slot."""

    @property
    def all_limits(self) -> tuple[Limit, ...]:
        """Of each class; in a query set, of the classes of one query after another."""

    def query(self, key: ShardKey) -> tuple[int, ParticipationLimits]:
        """The number of the query that a shard is of, and the limits of that query."""

    def visits(self, key: ShardKey, message: Message) -> Visits:
        """What a shard was sent of a block, numbered as blocks of its query are."""


@dataclass(frozen=True, eq=False)
class LimitChoice:
    """Chooses the participation limits of all classes, of each query.

    The noise is derived from the digest of what is asked and of the configuration.
    """

    logic: LimitingLogic
    """Under the limits that are known: of users who are looked at, none."""
    looks: Sequence[Look | None]
    """What is asked of each class; in a query set, of the classes of one query after another."""
    noise_key: Callable[[], NoiseKeys]
    identity: bytes
    """Of the configuration."""
    test_mode: bool = False
    """Whether they are chosen without noise: NOT private."""

    def look(self, key: ShardKey, messages: Iterable[Message]) -> Iterator[Output]:
        """All visits of a shard to (stream, cells of each class that is looked at).

        On the side a tally, of the look alone: events are counted once limits are known.
        """
        number, logic = self.logic.query(key)
        came = list(messages)
        visits = [self.logic.visits(key, one) for one in came if one.kind is Kind.COUNTS]
        there = [logic.visitors(key[0], some) for some in visits]
        users, slots = (np.concatenate(parts) for parts in zip(*there, strict=True))
        classes, cells = logic.classes_of(key[0], users), self._nothing()
        asked = logic.first_slot, logic.last_slot
        first = number * len(logic.limits)
        for k, look in enumerate(self.looks[first : first + len(logic.limits)]):
            if look is not None:
                mine = classes == k
                by_cell = look.cells(look.used(logic.key, users[mine], slots[mine], asked))
                cells[first + k, : len(by_cell)] = by_cell
        yield Output((logic.stream, Message(Kind.COUNTS, payload=array_to_bytes(cells))))
        counted = sum(int(some.kept.sum()) for some in visits)
        tally = EventTally(counted=counted, messages=1 - len(came))
        yield Output(tally.to_bytes(), TALLIES)

    def choose(self, _: str, messages: Iterable[Message]) -> Iterator[Output]:
        """What all shards saw to the limits: for each shard; on the side the stream, and a tally.

        Raises InputLost where a message is missing.
        """
        logic, layout = self.logic, self.logic.layout
        cells = self._nothing()
        for message in whole_counts(messages):
            cells += array_from_bytes(message.payload)
        noise = NoiseSource(self.noise_key(), logic.stream).slot(
            logic.first_slot or 0, digest(self.identity, b"look at presence", cells.tobytes())
        )
        limits = list(logic.all_limits)
        for k, look in enumerate(self.looks):
            if look is not None:
                asked = cells[k, : len(look.limits) + 2]
                noisy = look.answer(asked, noise.words(f"presence {k}"))
                limits[k] = look.choice(asked if self.test_mode else noisy)
        for part in range(layout.parts):
            yield Output((layout.key(part), choice_message(limits, part, layout.parts)))
        yield Output((logic.stream, choice_message(limits)), FOR_STREAM)
        yield Output(EventTally(messages=layout.parts + 1).to_bytes(), TALLIES)

    def _nothing(self) -> Integers:
        """Cells of nobody, shape (looks, most cells)."""
        most = max(len(look.limits) + 2 for look in self.looks if look is not None)
        return np.zeros((len(self.looks), most), np.int64)
