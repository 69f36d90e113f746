"""Worlds: who else is in the stream, and where canaries can be, slot by slot.

Worst cases are streams on which mechanisms tell much: nobody else at all, others who leap so far
that a mechanism is in doubt, or farther. A real stream is taken as it is, or a stretch of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.budgets import Requirements, to_epsilon
from streamveil.mechanisms.protocol import Population
from streamveil.mechanisms.registry import DYNAMIC_MECHANISMS, MECHANISMS, only_dynamic, parse
from streamveil.pipelines.audit.canaries import Canaries, Mark

Integers = npt.NDArray[np.int64]
Random = np.random.Generator

SLOTS, BINS, WINDOWS = "slots", "bins", "windows"
"""Canaries of one slot each, one at a time; the same in all bins at once; or of a window each, in
all bins at once."""
KINDS = (SLOTS, BINS, WINDOWS)

# Slots of a run, at least.
LENGTH = 480
# Part of the slots in which the others leap.
LEAPING = 0.25
# Leaps of a run that come at known times, at least; and their size, in noise scales of a
# publication with the least that it can have.
LEAST_LEAPS, FAR = 12, 5.0
# Slots between publications, in windows, and from how long a window on one is enough: what a look
# costs is little beside what a publication has saved up by then.
RESTS, LONG = 2, 20
# Runs over a real stream are of so many windows at most, or of `LENGTH` slots.
MOST_WINDOWS = 4


@dataclass(frozen=True, eq=False)
class World:
    """A run to be."""

    others: Integers
    """Counts without canaries, shape (T, K, d)."""
    plan: Canaries
    """Of one user each, none of them there."""


def world_of(
    kind: str,
    mechanism: str,
    population: Population,
    class_index: int,
    moves: bool,
    number: int,
    random: Random,
    counts: Integers | None,
) -> World:
    """The world of a run.

    Args:
        kind: one of `KINDS`.
        mechanism: with its options.
        population: the public facts.
        class_index: class of the canaries.
        moves: whether neighbours replace a user.
        number: of the run: one half of them is calm, where that tells anything.
        random: where worlds are drawn from.
        counts: of a real stream, shape (T, K, d); None for worst cases.
    """
    window = population.requirements[class_index].window
    every = pause(kind, mechanism, window)
    if counts is not None:
        others = _stretch(counts, window, random)
        every = 1
    else:
        leaps = bool(number % 2) or saves_up(mechanism)
        others = leaping(population, _length(kind, window, every), every, leaps, random)
    plan = _plan(kind, population, class_index, moves, len(others), every)
    return World(others, plan)


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


def _length(kind: str, window: int, every: int) -> int:
    """Slots of a run: whole windows, and enough of what comes every so many slots only."""
    if kind == WINDOWS:
        return -(-LENGTH // window) * window
    return max(LENGTH, LEAST_LEAPS * every)


def _stretch(counts: Integers, window: int, random: Random) -> Integers:
    slots = min(len(counts), max(LENGTH, MOST_WINDOWS * window))
    first = int(random.integers(len(counts) - slots + 1))
    return counts[first : first + slots]


def _plan(
    kind: str, population: Population, class_index: int, moves: bool, slots: int, every: int
) -> Canaries:
    """Where and when canaries of a class may be; every so many slots if they are in all bins."""
    bins = population.bins
    length = population.requirements[class_index].window if kind == WINDOWS else 1
    if kind == SLOTS:
        first = np.arange(slots, dtype=np.int64)
        at = first % bins
    else:
        starts = np.arange(every - 1, slots - length + 1, max(every, length), dtype=np.int64)
        usable = np.arange(0, bins - bins % 2, 2) if moves else np.arange(bins)
        first, at = np.repeat(starts, usable.size), np.tile(usable, starts.size)
    events = population.sensitivity // 2 if moves else population.sensitivity
    marks = [Mark(at, first, first + length, events)]
    if moves:
        next_bins = np.where(at % 2 == 0, at + 1, at - 1) % bins
        marks.append(Mark(next_bins, first, first + length, events, there=False))
    ones, nobody = np.ones(first.size, dtype=np.int64), np.zeros(first.size, dtype=bool)
    return Canaries(class_index, tuple(marks), first, first + length, ones, nobody)


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
