"""Worlds: who else is in the streams, and where canaries can be, slot by slot.

A `World` is all that a run of any kind of audit is made of; those of windows and queries are here.

Worst cases are streams on which mechanisms tell much: nobody else at all, others who leap so far
that a mechanism is in doubt, or farther. A real stream is taken as it is, or a stretch of it.

There may be several streams over the same base slots, as the queries of a set have. Canaries of
`SLOTS` and `BINS` are of one slot of one stream each, of all streams in one run. Those of `WINDOWS`
are in all base slots of a window, and in all streams at once: a bin of each is theirs. A window
begins with the last base slot of the longest slots, so that it meets as many slots of every stream
as there can be, and has a part of the first one. Without its canary, other events of the same users
count there in its place, as they do where neighbours replace events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import lcm

import numpy as np

from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.budgets import Requirements, Units, to_epsilon
from streamveil.mechanisms.presence.kept_share import Beyond
from streamveil.mechanisms.protocol import Population
from streamveil.mechanisms.registry import DYNAMIC_MECHANISMS, MECHANISMS, only_dynamic, parse
from streamveil.pipelines.audit.canaries import Canaries, Mark

Random = np.random.Generator
Spans = Sequence[tuple[int, int]]

SLOTS, BINS, WINDOWS = "slots", "bins", "windows"
"""Canaries of one slot each, one at a time; the same in all bins at once; or of a window each, in
all bins at once."""
KINDS = (SLOTS, BINS, WINDOWS)

# Slots of a run, at least; and slots of the longest stream, where there are several.
LENGTH, LONGEST = 480, 4
# Part of the slots in which the others leap.
LEAPING = 0.25
# Leaps of a run that come at known times, at least, of all streams and of each; and their size, in
# noise scales of a publication with the least that it can have.
LEAST_LEAPS, LEAST_OF_EACH, FAR = 12, 4, 5.0
# Slots between publications, in windows, and from how long a window on one is enough: what a look
# costs is little beside what a publication has saved up by then.
RESTS, LONG = 2, 20
# Runs over a real stream are of so many windows at most, or of `LENGTH` slots.
MOST_WINDOWS = 4


@dataclass(frozen=True, eq=False)
class Place:
    """Where groups can be in a stream, each of them in cells of its own."""

    there: tuple[tuple[Integers, int], ...]
    """Cells of each group, shape (places,), and what a user adds to one of them in a slot."""
    instead: tuple[tuple[Integers, int], ...]
    """The same of events that count if the others do not."""
    replaced: bool
    """Whether neighbours replace events, in all slots."""
    most: int
    """As much as a user may change in a slot, whatever a mechanism takes it for."""
    length: int = 1
    """Base slots of a slot."""

    @classmethod
    def in_bins(cls, bins: int, each: int, moves: bool) -> Place:
        """Of a histogram: in all bins; where neighbours replace events, others take the next."""
        own = np.arange(0, bins - bins % 2, 2) if moves else np.arange(bins)
        instead = ((own + 1, each),) if moves else ()
        return cls(((own, each),), instead, moves, 2 * each if moves else each)

    @property
    def number(self) -> int:
        """How many groups can be there at a time."""
        return self.there[0][0].size

    def marks(self, which: Integers, spans: Spans, parts: Spans, shift: Integers) -> Iterator[Mark]:
        """What groups add: `which` place each, slots `spans` and those of which they have a part.

        Slots are counted from `shift` on, of each group: shape (n,).
        """
        groups = np.arange(which.size)[:, None]
        for some, there, cells in (
            (spans, True, self.there),
            (spans if self.replaced else parts, False, self.instead),
        ):
            for first, end in some:
                slots = shift[:, None] + np.arange(first, end)
                for each, amount in cells:
                    yield Mark.of(groups, slots, each[which][:, None], amount, there)

    def of_slots(self, class_index: int, slots: Integers, which: Integers) -> Canaries:
        """Groups of one slot each, of which they have a part if it is longer than a base slot."""
        part = [(0, 1)] if self.length > 1 else []
        marks = tuple(self.marks(which, [(0, 1)], part, slots))
        return Canaries.nobody(class_index, marks, slots, slots + 1)


@dataclass(frozen=True, eq=False)
class Scene:
    """What worlds are made of: all of it is public."""

    requirements: Requirements
    """What users ask for over base slots, of each class."""
    mechanisms: tuple[str, ...]
    """Of each stream, with options."""
    populations: tuple[Population, ...]
    places: tuple[Place, ...]

    @property
    def lengths(self) -> list[int]:
        """Base slots of a slot of each stream."""
        return [one.length for one in self.places]

    @property
    def round_trip(self) -> int:
        """Base slots after which slots of all streams begin together again."""
        return lcm(*self.lengths)

    def period(self, class_index: int) -> int:
        """Base slots between windows that share no slot of any stream."""
        window, trip = self.requirements[class_index].window, self.round_trip
        return trip * (-(-(window - 1) // trip) + 1)


@dataclass(frozen=True, eq=False)
class Story:
    """What the groups of a story ask for, and when they have events."""

    change: int
    """The slot from which on they ask for something else."""
    later: Units
    """What that is, shape (4,)."""
    first: int
    end: int
    """Of the slots of the window with their events; `end` is the slot after it."""
    promised: int
    """Units that were asked for it."""
    back: bool
    """Whether it looks back: then it is kept only where its last slot costs anything."""

    def kept(self, spent: Units) -> bool:
        """Whether so much is promised, where slots cost its column that: shape (T,)."""
        return not self.back or bool(spent[self.end - 1] > 0)


@dataclass(frozen=True, eq=False)
class World:
    """A run to be."""

    others: tuple[Integers, ...]
    """Counts of each stream without canaries, shape (T, K, cells)."""
    plans: tuple[Canaries, ...]
    """Of each stream: of one user each, none of them there; of `WINDOWS` the same groups in all
    streams."""
    first: int = 0
    """Base slot of a real stream with which it begins."""
    beyond: Sequence[Beyond] = ()
    """Of others, what does not count, by slot; empty where all counts."""

    stories: Sequence[Story] = ()
    """Of users in columns of counts behind those of the classes, who ask for something else."""
    of_class: int = 0
    """What they are of before that."""
    life: int = 0
    """Slots after which streams begin anew, with a budget of their own; 0 for never."""

    def counts(self, plans: Sequence[Canaries]) -> list[Integers]:
        """Of each stream, with canaries that are there."""
        return [plan.add_to(table) for plan, table in zip(plans, self.others, strict=True)]

    def left_out(self, plan: Canaries) -> list[Beyond]:
        """By slot, what does not count, of others and of canaries."""
        some = plan.beyond(len(self.others[0]))
        if not self.beyond:
            return some
        both = zip(some, self.beyond, strict=True)
        return [Beyond(*np.concatenate(pair, axis=1)) for pair in both]


def world_of(
    kind: str,
    scene: Scene,
    class_index: int,
    number: int,
    random: Random,
    counts: Sequence[Integers] | None,
) -> World:
    """The world of a run.

    Args:
        kind: one of `KINDS`.
        scene: of all worlds.
        class_index: class of the canaries.
        number: of the run: others leap in every second one.
        random: where worlds are drawn from.
        counts: of real streams, shape (T, K, cells); None for worst cases.
    """
    first, pauses = 0, [1] * len(scene.places)
    if counts is None:
        wanted = [
            pause(kind, mechanism, population.requirements[class_index].window)
            for mechanism, population in zip(scene.mechanisms, scene.populations, strict=True)
        ]
        base_slots = _length(kind, scene, class_index, wanted)
        pauses = [
            min(every, base_slots // length)
            for every, length in zip(wanted, scene.lengths, strict=True)
        ]
        others = tuple(
            leaping(
                *(population, base_slots // length, every),
                *(bool(number % 2) or saves_up(mechanism), random),
            )
            for mechanism, population, length, every in zip(
                scene.mechanisms, scene.populations, scene.lengths, pauses, strict=True
            )
        )
    else:
        first, others = _stretch(scene, counts, class_index, random)
        base_slots = len(others[0]) * scene.lengths[0]
    if kind == WINDOWS:
        return World(others, _windows(scene, class_index, base_slots), first)
    plans = []
    for place, every, table in zip(scene.places, pauses, others, strict=True):
        slots, which = _slots_of(kind, place, len(table), every)
        plans.append(place.of_slots(class_index, slots, which))
    return World(others, tuple(plans), first)


def _slots_of(kind: str, place: Place, length: int, every: int) -> tuple[Integers, Integers]:
    """Slot and place of each group of one slot: one at a time, or all places at once."""
    if kind == SLOTS and place.number:
        slots = np.arange(length, dtype=np.int64)
        return slots, slots % place.number
    slots = np.arange(every - 1, length, every, dtype=np.int64)
    return np.repeat(slots, place.number), np.tile(np.arange(place.number), slots.size)


def _windows(scene: Scene, class_index: int, base_slots: int) -> tuple[Canaries, ...]:
    """Groups of a window each, as many at a time as every stream has places for."""
    window, trip = scene.requirements[class_index].window, scene.round_trip
    number, period = min(place.number for place in scene.places), scene.period(class_index)
    starts = np.arange(trip - 1, base_slots - period + trip, period, dtype=np.int64)
    which, at = np.tile(np.arange(number), starts.size), np.repeat(starts, number)
    plans = []
    for place in scene.places:
        slots = place.length
        met = (trip - 1) // slots, (trip + window - 2) // slots + 1
        parts = [
            (slot - met[0], slot - met[0] + 1)
            for slot in dict.fromkeys((met[0], met[1] - 1))
            if slot * slots < trip - 1 or (slot + 1) * slots > trip - 1 + window
        ]
        span, first = met[1] - met[0], at // slots
        marks = tuple(place.marks(which, [(0, span)], parts, first))
        plans.append(Canaries.nobody(class_index, marks, first, first + span))
    return tuple(plans)


def _length(kind: str, scene: Scene, class_index: int, pauses: Sequence[int]) -> int:
    """Base slots of a run of worst cases, in which all slots end."""
    trip = scene.round_trip
    if kind == WINDOWS:
        period = scene.period(class_index)
        return -(-LENGTH // period) * period
    leaps = max(LEAST_LEAPS // len(pauses), LEAST_OF_EACH)
    saved = [
        leaps * every * length
        for every, length in zip(pauses, scene.lengths, strict=True)
        if every > 1
    ]
    return -(-max(LENGTH, LONGEST * trip, *saved, 1) // trip) * trip


def _stretch(
    scene: Scene, counts: Sequence[Integers], class_index: int, random: Random
) -> tuple[int, tuple[Integers, ...]]:
    """Of real streams as long as windows of the canaries need, or longer; and where it begins."""
    trip = scene.round_trip
    known = len(counts[0]) * scene.lengths[0] // trip
    wanted = -(-max(LENGTH, MOST_WINDOWS * scene.period(class_index)) // trip)
    first = int(random.integers(max(known - wanted, 0) + 1)) * trip
    end = first + min(known, wanted) * trip
    return first, tuple(
        table[first // each : end // each]
        for table, each in zip(counts, scene.lengths, strict=True)
    )


def sizes_of(requirements: Requirements, sizes: Integers | None) -> Integers:
    """Users of each class, shape (K,): one each where it is not said."""
    return np.ones(len(requirements), np.int64) if sizes is None else np.asarray(sizes, np.int64)


def crowd(requirements: Requirements, sizes: Integers, bins: int) -> Integers:
    """As many times more users of all classes as worst cases need, shape (K,)."""
    needed = 4 * FAR / float(to_epsilon(requirements.shares).min()) * bins
    return sizes * max(1, -int(-needed // max(int(sizes.min()), 1)))


def saves_up(mechanism: str) -> bool:
    """Whether what a slot does not publish is saved for later slots, by a schedule."""
    known = DYNAMIC_MECHANISMS if only_dynamic(mechanism) else MECHANISMS
    return known[parse(mechanism, known)[0]].schedule


def pause(kind: str, mechanism: str, window: int) -> int:
    """Slots between canaries: 1 but in all bins, of a mechanism that saves up for publications."""
    if kind != BINS or not saves_up(mechanism):
        return 1
    return RESTS * window if window < LONG else window


def _richest(population: Population) -> tuple[int, float]:
    """The class that may spend most in a slot, and epsilon that it may.

    Others are of this class: so none of them is left out where events are sampled.
    """
    shares = to_epsilon(population.requirements.shares)
    return int(shares.argmax()), float(shares.max())


def leaping(
    population: Population, length: int, every: int, leaps: bool, random: Random
) -> Integers:
    """Counts of others in worst cases, shape (length, K, d).

    Args:
        population: the public facts.
        length: of the run, slots.
        every: slots between canaries; where there are some, others leap then.
        leaps: whether they leap now and then in other cases.
        random: where leaps are drawn from.
    """
    others = np.zeros((length, len(population.requirements), population.bins), np.int64)
    if every > 1:
        _leap(others, population, every)
    elif leaps:
        _leap_now_and_then(others, population, random)
    return others


def _leap_now_and_then(others: Integers, population: Population, random: Random) -> None:
    """Let others leap by about what a mechanism can tell from noise."""
    k, share = _richest(population)
    least, most = 2 / share / population.requirements[k].window, 2 / share
    level = 0
    for slot in range(len(others)):
        if random.random() < LEAPING:
            drawn = least * (most / least) ** random.random()
            level = 0 if level else round(population.sensitivity * drawn)
        others[slot, k] = level


def _leap(others: Integers, population: Population, every: int) -> None:
    """Let others leap every so many slots, far enough for any publication."""
    k, share = _richest(population)
    high = (np.arange(1, len(others) + 1) // every) % 2 == 1
    others[high, k] = round(2 * FAR * population.sensitivity / share)
