"""Worlds of users who come and go, where each counts in a few slots only.

Whoever counts is decided by the counters of a pipeline. Users of a group come together and have one
calendar, chosen among those there may be: so one of them stands for all. A group is asked about in
two stories, of which a fair coin tells one. What counts in one of them alone is what releases may
tell of it; what does not count is counted apart, in layers.

- Of a life with M slots the stories are to come in 3 M + 1 slots in a row, or never: all layers.
- Of a window they are to be there in all of its slots or not, and behind it in either. The window
  begins with the last slots of a block that count, and ends where others of its block can count in
  the place of those that it has; or the user comes again only a slot later, and then for long.
- What does not count comes from a group that counts alike in both stories: besides, it comes or
  does not come in slots in which none of it counts any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streamveil.mechanisms.core.arrays import Flags, Floats, Integers
from streamveil.mechanisms.core.records import REPLACE, Lifetime, Requirement
from streamveil.mechanisms.presence import Counters, Limit
from streamveil.mechanisms.presence.calendars import Rules, phases
from streamveil.mechanisms.presence.kept_share import LAYERS, Beyond
from streamveil.mechanisms.presence.life_share import EVERY
from streamveil.pipelines.audit.canaries import Canaries, Mark

# Blocks in which a user comes behind a window.
_AFTER = 2


def visits(*spans: tuple[int, int], moved: bool = False) -> Integers:
    """A story: slots from its beginning in which a user comes, and whether to the next bin: (v, 2).

    Spans are in order.
    """
    slots = np.concatenate([np.arange(*span, dtype=np.int64) for span in spans])
    return np.column_stack([slots, np.full(slots.size, int(moved))])


@dataclass(frozen=True, eq=False)
class Pair:
    """Two stories of a user."""

    there: Integers
    instead: Integers
    offset: int = 0
    """Of the first slot in its block."""

    @property
    def span(self) -> int:
        """Slots from the first to the last."""
        return 1 + max(int(one[:, 0].max(initial=0)) for one in (self.there, self.instead))


@dataclass(frozen=True)
class Rule:
    """In which slots users of a class count."""

    rules: Rules
    """Of all classes."""
    class_index: int
    requirement: Requirement
    moves: bool
    """Whether neighbours replace a user's events."""

    @classmethod
    def of(
        cls, limits: Sequence[Limit], asked: Sequence[Requirement], adjacency: str, k: int
    ) -> Rule:
        """Of a class, as a pipeline has it."""
        return cls(Rules.of(limits, asked, adjacency), k, asked[k], adjacency == REPLACE)

    @property
    def block(self) -> int:
        """Slots of a block; 1 where blocks have no limit."""
        return int(self.rules.lengths[self.class_index])

    @property
    def most(self) -> int:
        """Slots that count: of a lifetime, or of a block."""
        of_life = isinstance(self.requirement, Lifetime)
        return int((self.rules.in_life if of_life else self.rules.most)[self.class_index])

    @property
    def limited(self) -> bool:
        """Whether anything is left out."""
        return isinstance(self.requirement, Lifetime) or self.block > 1

    def pairs(self) -> list[Pair]:
        """Stories that differ in all that is promised."""
        most, nobody = self.most, visits((0, 0))
        if isinstance(self.requirement, Lifetime):
            life = (0, LAYERS * most + 1)
            return [Pair(visits(life), visits(life, moved=True) if self.moves else nobody)]
        window = self.requirement.window
        stay = visits((0, window))
        instead = visits((0, window), moved=True) if self.moves else nobody
        if not self.limited:
            return [Pair(stay, instead)]
        behind = (
            visits((window, window + most)),
            visits((window + 1, window + 1 + _AFTER * self.block)),
        )
        return [
            Pair(np.concatenate([stay, one]), np.concatenate([instead, one]), self.block - most)
            for one in behind
        ]

    def besides(self) -> Pair:
        """Stories that differ in what does not count."""
        most = self.most
        if isinstance(self.requirement, Lifetime):
            return Pair(visits((0, LAYERS * most + 1)), visits((0, most)))
        window, block = self.requirement.window, self.block
        counting = [(begin, min(begin + most, window)) for begin in range(0, window, block)]
        return Pair(visits((0, window)), visits(*counting))

    def layers(self, key: bytes, user: int, slots: Integers, end: int) -> Integers:
        """In which layer each visit of a user is, who comes in some slots: shape (v,)."""
        who, classes = np.full(slots.size, user), np.full(slots.size, self.class_index)
        return Counters(self.rules, key, who[:0]).layers(who, slots, classes, end)

    def user(self, key: bytes, first: int, offset: int, after: int) -> int:
        """A number from `after` on of a user in whose calendar a slot is so far in its block."""
        if self.block == 1:
            return after
        users = np.arange(after, after + 64 * self.block, dtype=np.int64)
        calendars = phases(key, users, np.full(users.size, self.block))
        return int(users[((first + calendars) % self.block == offset).argmax()])


@dataclass(frozen=True, eq=False)
class Outside:
    """Events that do not count, of groups: arrays of shape (n,)."""

    groups: Integers
    slots: Integers
    layers: Integers
    bins: Integers
    there: Flags
    """Whether with the story of which the coin says that it is there, or with the other."""


@dataclass(frozen=True, eq=False)
class Comers(Canaries):
    """Groups of users who come and go: marks are of what counts in one story alone."""

    always: Mark
    """What counts in either story."""
    outside: Outside

    def beside(self, counts: Integers) -> Integers:
        """Counts (T, K, d) of everybody else, and of what counts of groups in either story."""
        filled = counts.copy()
        self._add(filled, self.always, self.added(self.always))
        return filled

    def add_to(self, counts: Integers) -> Integers:
        """See :class:`Canaries`."""
        return super().add_to(self.beside(counts))

    def halved(self, counts: Integers) -> Floats:
        """See :class:`Canaries`."""
        return super().halved(self.beside(counts))

    def beyond(self, slots: int) -> list[Beyond]:
        """See :class:`Canaries`."""
        outside = self.outside
        here = self.there[outside.groups] == outside.there
        events = self.users[outside.groups] * self.always.amount
        rows = np.stack([outside.layers, self.columns[outside.groups], outside.bins, events])[
            :, here
        ]
        return [Beyond(*rows[:, outside.slots[here] == slot]) for slot in range(slots)]


def comers(
    rule: Rule, pairs: Sequence[Pair], starts: Integers, at: Integers, each: int, key: bytes
) -> Comers:
    """Groups whose stories begin with some slots, in some bins each: one user each, nobody there.

    Args:
        rule: in which slots they count.
        pairs: stories, of one start after the other.
        starts: first slots, ascending, shape (s,); stories do not overlap.
        at: bins of each start, shape (s, places).
        each: events of a user in a slot.
        key: of the calendars, 32 bytes.
    """
    which = np.arange(starts.size) % len(pairs)
    spans, rows = np.array([pair.span for pair in pairs])[which], [np.zeros((5, 0), np.int64)]
    for number, first in enumerate(starts.tolist()):
        pair = pairs[which[number]]
        user = rule.user(key, first, pair.offset % rule.block, number << 32)
        for here, story in ((1, pair.there), (0, pair.instead)):
            when = first + story[:, 0]
            layer = rule.layers(key, user, when, first + int(spans[number]))
            rows.append(np.stack(np.broadcast_arrays(number, when, story[:, 1], layer, here)))
    start, slots, moved, layers, there = np.concatenate(rows, axis=1)
    places, visit = at.shape[1], ((start << 32) + slots) * 2 + moved
    groups, bins = start[:, None] * places + np.arange(places), at[start] + moved[:, None]

    def mark(some: Flags, there: bool = True) -> Mark:
        return Mark.of(groups[some], slots[some, None], bins[some], each, there)

    one, other = ((layers == 0) & (there == here) for here in (1, 0))
    always = one & np.isin(visit, visit[other])
    alone = mark(one & ~always), mark(other & ~np.isin(visit, visit[one]), there=False)
    in_layers = (layers > 0) & (layers <= LAYERS)
    columns = (
        slots[in_layers, None],
        layers[in_layers, None],
        bins[in_layers],
        there[in_layers, None] == 1,
    )
    beside = Outside(*(each.ravel() for each in np.broadcast_arrays(groups[in_layers], *columns)))
    first, span = np.repeat(starts, places), np.repeat(spans, places)
    more = {"always": mark(always), "outside": beside}
    return Comers.nobody(rule.class_index, alone, first, first + span, **more)


def spacing(rule: Rule, pairs: Sequence[Pair], alone: bool) -> int:
    """Slots from the first slot of a story to that of the next one.

    Where one is alone, no answer about what does not count has a part of two.
    """
    span = max(pair.span for pair in pairs)
    if not alone:
        return span
    every = EVERY if isinstance(rule.requirement, Lifetime) else rule.block
    return every * -(-span // every)


@dataclass(frozen=True, eq=False)
class Real:
    """Events of somebody's own, of users who count in a few slots only."""

    counts: Integers
    """What counts, shape (T, K, d)."""
    beyond: list[Beyond]
    """What does not, by slot."""

    @classmethod
    def of(
        cls,
        rows: Integers,
        class_of: Integers,
        shape: tuple[int, int, int],
        rules: Rules,
        key: bytes,
    ) -> Real:
        """Decide who counts, as a pipeline does.

        Args:
            rows: slot, user, bin and number of events of each group of events, shape (4, n).
            class_of: class of each user, shape (U,).
            shape: slots, classes and bins.
            rules: of each class.
            key: of the calendars, 32 bytes.
        """
        slots, users, bins, kept = rows
        pairs, which = np.unique(users * shape[0] + slots, return_inverse=True)
        who, when = pairs // shape[0], pairs % shape[0]
        layers = Counters(rules, key, who[:0]).layers(who, when, class_of[who], shape[0])[which]
        counts, classes = np.zeros(shape, np.int64), class_of[users]
        some = layers == 0
        np.add.at(counts, (slots[some], classes[some], bins[some]), kept[some])
        in_layers = (layers > 0) & (layers <= LAYERS)
        beside = np.stack([layers, classes, bins, kept])
        return cls(
            counts, [Beyond(*beside[:, in_layers & (slots == slot)]) for slot in range(shape[0])]
        )

    def stretch(self, slots: int, random: np.random.Generator) -> Real:
        """So many slots of it."""
        slots = min(slots, len(self.counts))
        first = int(random.integers(len(self.counts) - slots + 1))
        return Real(self.counts[first : first + slots], self.beyond[first : first + slots])
