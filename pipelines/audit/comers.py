"""Worlds of users who come and go, where each counts in a few slots only.

Whoever counts is decided by the counters of a pipeline. Users of a group come together and have one
calendar, chosen among those there may be: so one of them stands for all. A group is asked about in
two stories, of which a fair coin tells one. What counts in one of them alone is what releases may
tell of it; what does not count is told beside that, in layers.

- Of a life with M slots the stories are to come in 3 M + 1 slots in a row, or never: all layers.
- Of a window they are to be there in all of its slots or not, and behind it in either. The window
  begins with the last slots of a block that count, and ends where others of its block can count in
  the place of those that it has; or the user comes again only a slot later, and then for long.
- What does not count is told of a group that counts alike in both stories: besides, it comes or
  does not come in slots in which none of it counts any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.records import REPLACE, Lifetime, Requirement
from streamveil.mechanisms.presence import Counters, Limit
from streamveil.mechanisms.presence.calendars import Rules, phases
from streamveil.mechanisms.presence.kept_share import LAYERS, Beyond
from streamveil.mechanisms.presence.life_share import EVERY
from streamveil.pipelines.audit.canaries import Canaries, Mark

Integers = npt.NDArray[np.int64]

# Blocks in which a user comes behind a window.
_AFTER = 2


@dataclass(frozen=True, eq=False)
class Visits:
    """When a user comes, in slots from the beginning of a story, and if in the next bin: (v,)."""

    slots: Integers
    moved: npt.NDArray[np.bool_]

    @classmethod
    def at(cls, *spans: tuple[int, int], moved: bool = False) -> Visits:
        """In all slots of some spans."""
        slots = np.concatenate([np.arange(*span, dtype=np.int64) for span in spans])
        return cls(slots, np.full(slots.size, moved))

    def and_at(self, other: Visits) -> Visits:
        """Both, which have no slot in common."""
        slots = np.append(self.slots, other.slots)
        order = np.argsort(slots, kind="stable")
        return Visits(slots[order], np.append(self.moved, other.moved)[order])


@dataclass(frozen=True, eq=False)
class Pair:
    """Two stories of a user."""

    there: Visits
    instead: Visits
    offset: int
    """Of the first slot in its block."""


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
        """Slots that count: of a life, or of a block."""
        of_life = isinstance(self.requirement, Lifetime)
        return int((self.rules.in_life if of_life else self.rules.most)[self.class_index])

    @property
    def limited(self) -> bool:
        """Whether anything is left out."""
        return isinstance(self.requirement, Lifetime) or self.block > 1

    def pairs(self) -> list[Pair]:
        """Stories that differ in all that is promised."""
        most, nobody = self.most, Visits.at((0, 0))
        if isinstance(self.requirement, Lifetime):
            life = Visits.at((0, LAYERS * most + 1))
            moved = replace(life, moved=np.ones(life.slots.size, np.bool_))
            return [Pair(life, moved if self.moves else nobody, 0)]
        window = self.requirement.window
        stay = Visits.at((0, window))
        instead = Visits.at((0, window), moved=True) if self.moves else nobody
        if not self.limited:
            return [Pair(stay, instead, 0)]
        long = _AFTER * self.block
        behind = Visits.at((window, window + most)), Visits.at((window + 1, window + 1 + long))
        return [Pair(stay.and_at(one), instead.and_at(one), self.block - most) for one in behind]

    def besides(self) -> Pair:
        """Stories that differ in what does not count."""
        most = self.most
        if isinstance(self.requirement, Lifetime):
            return Pair(Visits.at((0, LAYERS * most + 1)), Visits.at((0, most)), 0)
        window, block = self.requirement.window, self.block
        counting = [(begin, min(begin + most, window)) for begin in range(0, window, block)]
        return Pair(Visits.at((0, window)), Visits.at(*counting), 0)

    def layers(self, key: bytes, user: int, visits: Visits, first: int, end: int) -> Integers:
        """In which layer each visit is, of a story that begins with a slot: shape (v,)."""
        who = np.full(visits.slots.size, user, np.int64)
        classes = np.full(visits.slots.size, self.class_index, np.int64)
        return Counters(self.rules, key, who[:0]).layers(who, first + visits.slots, classes, end)

    def user(self, key: bytes, first: int, offset: int, after: int) -> int:
        """A number from `after` on of a user in whose calendar a slot is so far in its block."""
        if self.block == 1:
            return after
        users = np.arange(after, after + 64 * self.block, dtype=np.int64)
        calendars = phases(key, users, np.full(users.size, self.block))
        return int(users[((first + calendars) % self.block == offset).argmax()])


@dataclass(frozen=True, eq=False)
class Told:
    """Events that do not count, of groups: arrays of shape (n,)."""

    groups: Integers
    slots: Integers
    layers: Integers
    bins: Integers
    there: npt.NDArray[np.bool_]
    """Whether with the story of which the coin says that it is there, or with the other."""


@dataclass(frozen=True, eq=False)
class Comers:
    """Groups of users of one class, and what counts of them."""

    canaries: Canaries
    """Marks are of what counts in one story alone."""
    always: tuple[Mark, ...]
    """What counts in either story."""
    told: Told
    differing: Integers
    """Slots of each group that count in one story alone: shape (n, most), -1 for none."""

    def of_users(self, users: Integers) -> Comers:
        """The same groups with so many users each."""
        return replace(self, canaries=self.canaries.of_users(users))

    def flipped(self, random: np.random.Generator) -> Comers:
        """The same groups with new coins."""
        return replace(self, canaries=self.canaries.flipped(random))

    def beside(self, counts: Integers) -> Integers:
        """Counts (T, K, d) of everybody else, and of what counts of groups in either story."""
        nobody = replace(self.canaries, marks=self.always, there=np.ones_like(self.canaries.there))
        return nobody.add_to(counts)

    def beyond(self, each: int, slots: int) -> list[Beyond]:
        """What does not count, by slot, of users with so many events in a slot."""
        told, canaries = self.told, self.canaries
        here = canaries.there[told.groups] == told.there
        events = canaries.users[told.groups] * each
        rows = np.stack([told.layers, np.full(here.size, canaries.class_index), told.bins, events])[
            :, here
        ]
        return [Beyond(*rows[:, told.slots[here] == slot]) for slot in range(slots)]

    def charged(self, spent: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """What the slots in which stories differ were charged a user, of (T,): shape (n,)."""
        found: npt.NDArray[np.float64] = np.append(spent, 0.0)[self.differing].sum(axis=1)
        return found


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
    both = []
    for number, first in enumerate(starts.tolist()):
        pair = pairs[number % len(pairs)]
        user = rule.user(key, first, pair.offset % rule.block, number << 32)
        told = pair.there, pair.instead
        end = first + 1 + max(int(one.slots.max(initial=0)) for one in told)
        both.append(tuple(_Story.of(rule, key, user, one, first, end) for one in told))
    return _made(rule.class_index, both, starts, at, each)


@dataclass(frozen=True, eq=False)
class _Story:
    """Visits of a user: arrays of shape (v,)."""

    slots: Integers
    moved: npt.NDArray[np.bool_]
    layers: Integers

    @classmethod
    def of(cls, rule: Rule, key: bytes, user: int, visits: Visits, first: int, end: int) -> _Story:
        layers = rule.layers(key, user, visits, first, end)
        return cls(first + visits.slots, visits.moved, layers)

    @property
    def counting(self) -> set[tuple[int, bool]]:
        """Slots that count, and whether in the next bin."""
        some = self.layers == 0
        return set(zip(self.slots[some].tolist(), self.moved[some].tolist(), strict=True))


_THERE, _INSTEAD, _ALWAYS = range(3)


def _made(
    k: int, both: Sequence[tuple[_Story, ...]], starts: Integers, at: Integers, each: int
) -> Comers:
    places = at.shape[1]
    cells = []
    for there, instead in both:
        one, other = there.counting, instead.counting
        cells.append((one - other, other - one, one & other))
    marks: dict[int, list[Mark]] = {kind: [] for kind in (_THERE, _INSTEAD, _ALWAYS)}
    for kind, made in marks.items():
        for moved in (False, True):
            spans = [_spans(slot for slot, other in one[kind] if other == moved) for one in cells]
            for span in _in_turn(spans, starts):
                first, end = np.repeat(span, places, axis=0).T
                made.append(Mark(at.reshape(-1) + moved, first, end, each, kind != _INSTEAD))
    first = np.repeat(starts, places)
    last = [max(int(one.slots.max(initial=0)) for one in pair) for pair in both]
    canaries = Canaries(
        *(k, (*marks[_THERE], *marks[_INSTEAD]), first),
        np.maximum(np.repeat(np.array(last, np.int64), places), first) + 1,
        *(np.ones(first.size, np.int64), np.zeros(first.size, np.bool_)),
    )
    differing = [sorted({slot for slot, _ in one[_THERE] | one[_INSTEAD]}) for one in cells]
    return Comers(canaries, tuple(marks[_ALWAYS]), _told(both, at), _padded(differing, places))


def _told(both: Sequence[tuple[_Story, ...]], at: Integers) -> Told:
    """What does not count, and is in a layer."""
    rows = [np.zeros((5, 0), np.int64)]
    for number, pair in enumerate(both):
        for there, story in zip((True, False), pair, strict=True):
            some = np.flatnonzero((story.layers > 0) & (story.layers <= LAYERS))
            groups = number * at.shape[1] + np.arange(at.shape[1])
            bins = at[number][:, None] + story.moved[some]
            columns = groups[:, None], story.slots[some], story.layers[some], bins, int(there)
            rows.append(np.stack([np.broadcast_to(one, bins.shape).ravel() for one in columns]))
    groups, slots, layers, bins, there_too = np.concatenate(rows, axis=1)
    return Told(groups, slots, layers, bins, there_too.astype(np.bool_))


def _spans(slots: Iterable[int]) -> list[tuple[int, int]]:
    """Slots in a row as the first of each row and the one after the last."""
    spans: list[tuple[int, int]] = []
    for slot in sorted(slots):
        if spans and spans[-1][1] == slot:
            spans[-1] = spans[-1][0], slot + 1
        else:
            spans.append((slot, slot + 1))
    return spans


def _in_turn(spans: Sequence[list[tuple[int, int]]], starts: Integers) -> Iterator[Integers]:
    """The i-th span of each start, for every i, shape (s, 2); empty where there are fewer."""
    for i in range(max(map(len, spans), default=0)):
        yield np.array(
            [some[i] if i < len(some) else (at, at) for some, at in zip(spans, starts, strict=True)]
        )


def _padded(slots: Sequence[Sequence[int]], places: int) -> Integers:
    """Slots of each start for each of its places, -1 behind them."""
    found = np.full((len(slots), max(map(len, slots), default=0)), -1, np.int64)
    for row, some in zip(found, slots, strict=True):
        row[: len(some)] = some
    return np.repeat(found, places, axis=0)


def spacing(rule: Rule, pairs: Sequence[Pair], alone: bool) -> int:
    """Slots from the first slot of a story to that of the next one.

    Where one is alone, no answer about what does not count has a part of two.
    """
    span = max(
        int(one.slots.max(initial=0)) for pair in pairs for one in (pair.there, pair.instead)
    )
    if not alone:
        return span + 1
    every = EVERY if isinstance(rule.requirement, Lifetime) else rule.block
    return every * -(-(span + 1) // every)


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
        told = (layers > 0) & (layers <= LAYERS)
        beside = np.stack([layers, classes, bins, kept])
        return cls(counts, [Beyond(*beside[:, told & (slots == slot)]) for slot in range(shape[0])])

    def stretch(self, slots: int, random: np.random.Generator) -> Real:
        """So many slots of it."""
        slots = min(slots, len(self.counts))
        first = int(random.integers(len(self.counts) - slots + 1))
        return Real(self.counts[first : first + slots], self.beyond[first : first + slots])
