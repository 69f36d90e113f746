"""Worlds of a portfolio: who else is in the streams of all questions, and where canaries can be.

Canaries of `SLOTS` and `BINS` are of one slot of one question each, of all questions in one run.
Those of `WINDOWS` are in all base slots of a window, and in all questions at once: a bin of each is
theirs. A window begins with the last base slot of the longest slots, so that it meets as many slots
of every question as there can be, and has a part of the first one. Without its canary, other events
of the same users count there in its place, as they do where neighbours replace events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.records import REPLACE
from streamveil.mechanisms.portfolio.questions import Question
from streamveil.mechanisms.protocol import Population
from streamveil.pipelines.audit.asked import LONGEST, Asked
from streamveil.pipelines.audit.canaries import Canaries, Mark
from streamveil.pipelines.audit.worlds import (
    BINS,
    LENGTH,
    MOST_WINDOWS,
    SLOTS,
    WINDOWS,
    leaping,
    pause,
    saves_up,
)

Integers = npt.NDArray[np.int64]
Random = np.random.Generator
Spans = Sequence[tuple[int, int]]

# Pauses of mechanisms that save up, in a run.
PAUSES = 4


@dataclass(frozen=True, eq=False)
class AskedWorld:
    """A run to be."""

    others: tuple[Integers, ...]
    """Counts of each question without canaries, shape (T, K, cells)."""
    plans: tuple[Canaries, ...]
    """Of each question: of one user each, none of them there; of `WINDOWS` the same groups in all
    questions."""


def asked_world(
    kind: str,
    asked: Asked,
    populations: Sequence[Population],
    class_index: int,
    number: int,
    random: Random,
    counts: Sequence[Integers] | None,
) -> AskedWorld:
    """The world of a run.

    Args:
        kind: one of `worlds.KINDS`.
        asked: what of whom.
        populations: the public facts of each question.
        class_index: class of the canaries.
        number: of the run: others leap in every second one.
        random: where worlds are drawn from.
        counts: of real streams by question, shape (T, K, cells); None for worst cases.
    """
    pauses = [1] * len(populations)
    if counts is None:
        base_slots = _length(kind, asked, populations, class_index)
        pauses = list(_pauses(kind, asked, populations, class_index, base_slots))
        others = tuple(
            leaping(
                *(population, base_slots // question.slots, every),
                *(bool(number % 2) or saves_up(question.mechanism), random),
            )
            for question, population, every in zip(
                asked.portfolio, populations, pauses, strict=True
            )
        )
    else:
        others = _stretch(asked, counts, class_index, random)
        base_slots = len(others[0]) * asked.portfolio.questions[0].slots
    places = [_places(question, asked.adjacency) for question in asked.portfolio]
    if kind == WINDOWS:
        return AskedWorld(others, _windows(asked, places, class_index, base_slots))
    plans = []
    for place, every, table in zip(places, pauses, others, strict=True):
        slots, which = _slots_of(kind, place, len(table), every)
        plans.append(place.of_slots(class_index, slots, which))
    return AskedWorld(others, tuple(plans))


@dataclass(frozen=True, eq=False)
class Place:
    """Where groups can be in a question, each of them in cells of its own."""

    question: Question
    there: tuple[tuple[Integers, int], ...]
    """Cells of each group, shape (places,), and what a user adds to one of them in a slot."""
    instead: tuple[tuple[Integers, int], ...]
    """The same of events that count if the others do not."""
    replaced: bool
    """Whether neighbours replace events, in all slots."""

    @property
    def number(self) -> int:
        """How many groups can be there at a time."""
        return self.there[0][0].size

    def marks(self, which: Integers, spans: Spans, parts: Spans, shift: Integers) -> Iterator[Mark]:
        """What groups add: `which` place each, slots `spans` and those of which they have a part.

        Slots are counted from `shift` on, of each group: shape (n,).
        """
        for some, there, cells in (
            (spans, True, self.there),
            (spans if self.replaced else parts, False, self.instead),
        ):
            for first, end in some:
                for each, amount in cells:
                    yield Mark(each[which], shift + first, shift + end, amount, there)

    def of_slots(self, class_index: int, slots: Integers, which: Integers) -> Canaries:
        """Groups of one slot each, of which they have a part if it is longer than a base slot."""
        part = [(0, 1)] if self.question.slots > 1 else []
        marks = tuple(self.marks(which, [(0, 1)], part, slots))
        return _nobody(class_index, marks, slots, slots + 1)


def _nobody(k: int, marks: tuple[Mark, ...], first: Integers, end: Integers) -> Canaries:
    """Groups of one user each, none of them there."""
    return Canaries(
        *(k, marks, first, end), np.ones(first.size, np.int64), np.zeros(first.size, dtype=bool)
    )


def _places(question: Question, adjacency: str) -> Place:
    """Groups add as much to a question as users may; others are in the next bin, or say less."""
    weights, bins = question.measure.weights, question.domain.bins
    replaced = adjacency == REPLACE
    step = int(weights.sum(axis=1).argmax())
    both = (replaced or question.slots > 1) and question.measure.size > 1
    own = np.arange(0, bins - bins % 2, 2) if both and bins > 1 else np.arange(bins)
    there = _cells(question, own, step)
    if not both:
        return Place(question, there, (), replaced)
    if bins > 1:
        return Place(question, there, _cells(question, own + 1, step), replaced)
    farthest = int(np.abs(weights - weights[step]).sum(axis=1).argmax())
    return Place(question, there, _cells(question, own, farthest), replaced)


def _cells(question: Question, bins: Integers, step: int) -> tuple[tuple[Integers, int], ...]:
    """Cells to which events of a step add in each of some bins, and how much all of a user's do."""
    measure = question.measure
    added = measure.weights[step]
    return tuple(
        (nodes * measure.parts + part, int(added[part]) * question.max_contributions)
        for nodes in measure.above[bins].T
        for part in np.flatnonzero(added).tolist()
    )


def _slots_of(kind: str, place: Place, length: int, every: int) -> tuple[Integers, Integers]:
    """Slot and place of each group of one slot: one at a time, or all places at once."""
    if kind == SLOTS:
        slots = np.arange(length, dtype=np.int64)
        return slots, slots % place.number
    slots = np.arange(every - 1, length, every, dtype=np.int64)
    return np.repeat(slots, place.number), np.tile(np.arange(place.number), slots.size)


def _windows(
    asked: Asked, places: Sequence[Place], class_index: int, base_slots: int
) -> tuple[Canaries, ...]:
    """Groups of a window each, as many at a time as every question has places for."""
    window, trip = asked.requirements[class_index].window, asked.round_trip
    number, period = min(place.number for place in places), _period(asked, class_index)
    starts = np.arange(trip - 1, base_slots - period + trip, period, dtype=np.int64)
    which, at = np.tile(np.arange(number), starts.size), np.repeat(starts, number)
    plans = []
    for place in places:
        slots = place.question.slots
        met = (trip - 1) // slots, (trip + window - 2) // slots + 1
        parts = [
            (slot - met[0], slot - met[0] + 1)
            for slot in dict.fromkeys((met[0], met[1] - 1))
            if slot * slots < trip - 1 or (slot + 1) * slots > trip - 1 + window
        ]
        span, first = met[1] - met[0], at // slots
        marks = tuple(place.marks(which, [(0, span)], parts, first))
        plans.append(_nobody(class_index, marks, first, first + span))
    return tuple(plans)


def _period(asked: Asked, class_index: int) -> int:
    """Base slots between windows that share no slot of any question."""
    window, trip = asked.requirements[class_index].window, asked.round_trip
    return trip * (-(-(window - 1) // trip) + 1)


def _length(kind: str, asked: Asked, populations: Sequence[Population], class_index: int) -> int:
    """Base slots of a run of worst cases, in which all slots end."""
    if kind == WINDOWS:
        period = _period(asked, class_index)
        return max(LENGTH // period, 1) * period
    trip = asked.round_trip
    pauses = [
        PAUSES
        * pause(kind, question.mechanism, population.requirements[class_index].window)
        * question.slots
        for question, population in zip(asked.portfolio, populations, strict=True)
        if kind == BINS and saves_up(question.mechanism)
    ]
    return -(-max(LENGTH, LONGEST * trip, *pauses, 1) // trip) * trip


def _pauses(
    kind: str, asked: Asked, populations: Sequence[Population], class_index: int, base_slots: int
) -> Iterator[int]:
    """Of each question, slots between canaries in a run of worst cases."""
    for question, population in zip(asked.portfolio, populations, strict=True):
        window = population.requirements[class_index].window
        yield min(pause(kind, question.mechanism, window), base_slots // question.slots)


def _stretch(
    asked: Asked, counts: Sequence[Integers], class_index: int, random: Random
) -> tuple[Integers, ...]:
    """Of real streams as long as windows of the canaries need, or longer."""
    trip, slots = asked.round_trip, [one.slots for one in asked.portfolio]
    known = len(counts[0]) * slots[0] // trip
    wanted = -(-max(LENGTH, MOST_WINDOWS * _period(asked, class_index)) // trip)
    first = int(random.integers(max(known - wanted, 0) + 1)) * trip
    end = first + min(known, wanted) * trip
    return tuple(
        table[first // each : end // each] for table, each in zip(counts, slots, strict=True)
    )


def padded(asked: Asked, counts: Sequence[Integers], first_slot: int) -> tuple[Integers, ...]:
    """Counts with empty slots before and after, so that slots of all questions begin and end there.

    Args:
        asked: what of whom.
        counts: as of :func:`simulate_portfolio`.
        first_slot: base slot with which they begin.

    Returns counts that hold a window of every class.
    """
    trip = asked.round_trip
    begin = first_slot // trip * trip
    tables = list(zip(asked.portfolio, counts, strict=True))
    end = max((first_slot // one.slots + len(table)) * one.slots for one, table in tables)
    longest = max(_period(asked, k) for k in range(len(asked.requirements)))
    end = begin + max(-(-(end - begin) // trip) * trip, longest)
    found = []
    for one, table in tables:
        before = first_slot // one.slots - begin // one.slots
        after = (end - begin) // one.slots - before - len(table)
        found.append(np.pad(table, ((before, after), (0, 0), (0, 0))))
    return tuple(found)
