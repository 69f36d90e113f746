"""Worlds: who else is in the stream, and which canaries are, slot by slot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.budgets import to_epsilon
from streamveil.mechanisms.protocol import Population
from streamveil.pipelines.audit.canaries import Canaries

Integers = npt.NDArray[np.int64]
Random = np.random.Generator

SLOTS, BINS, WINDOWS = "slots", "bins", "windows"
"""Canaries of one slot each, one at a time; the same in all bins at once; or of a window each, in
all bins at once."""

# Slots of a run, at least.
LENGTH = 240
# Part of the slots in which the others leap.
LEAPING = 0.25
# Leaps of a run that come at known times, at least; and their size, in noise scales of a
# publication with the least that it can have.
LEAST_LEAPS, FAR = 12, 5.0


@dataclass(frozen=True, eq=False)
class World:
    """The others of a run, and a plan for canaries."""

    others: Integers
    """Counts without canaries, shape (T, K, d)."""
    plan: Canaries
    """Of one user each, with no coins flipped yet."""
    alone: bool
    """Whether one canary is there at a time."""


def length_of(kind: str, window: int, every: int) -> int:
    """Slots of a run: whole windows, and enough of what comes every so many slots only."""
    if kind == WINDOWS:
        return -(-LENGTH // window) * window
    return max(LENGTH, LEAST_LEAPS * every)


def plan_of(
    kind: str, population: Population, class_index: int, moves: bool, slots: int, every: int
) -> Canaries:
    """Where and when canaries of a class may be; every so many slots if they are in all bins."""
    window, bins = population.requirements[class_index].window, population.bins
    if kind == SLOTS:
        first = np.arange(slots, dtype=np.int64)
        at, end = first % bins, first + 1
    else:
        if kind == BINS:
            window = 1
        starts = np.arange(every - 1, slots - window + 1, max(every, window), dtype=np.int64)
        usable = np.arange(0, bins - bins % 2, 2) if moves else np.arange(bins)
        first, at = np.repeat(starts, usable.size), np.tile(usable, starts.size)
        end = first + window
    events = population.sensitivity // 2 if moves else population.sensitivity
    ones, never = np.ones(first.size, dtype=np.int64), np.zeros(first.size, dtype=bool)
    return Canaries(class_index, events, at, first, end, ones, never, moves)


def leaping(population: Population, slots: int, random: Random) -> Integers:
    """Others who leap by about what a mechanism can tell from noise: counts (T, K, d).

    They are of the class that may spend most in a slot, so that none of them is left out where
    events are sampled.
    """
    shares = to_epsilon(population.requirements.shares)
    k = int(shares.argmax())
    least, most = 2.0 / shares[k], 2.0 / shares[k] / population.requirements[k].window
    counts = np.zeros((slots, len(shares), population.bins), dtype=np.int64)
    level = 0
    for slot in range(slots):
        if random.random() < LEAPING:
            level = (
                0
                if level
                else round(population.sensitivity * most * (least / most) ** random.random())
            )
        counts[slot, k] = level
    return counts


def leaps(population: Population, slots: int, every: int) -> Integers:
    """Others who leap every so many slots, far enough for any publication: counts (T, K, d)."""
    shares = to_epsilon(population.requirements.shares)
    k = int(shares.argmax())
    counts = np.zeros((slots, len(shares), population.bins), dtype=np.int64)
    high = (np.arange(1, slots + 1) // every) % 2 == 1
    counts[high, k] = round(2 * FAR * population.sensitivity / shares[k])
    return counts


def calm(population: Population, slots: int) -> Integers:
    """Nobody else: counts (T, K, d)."""
    return np.zeros((slots, len(population.requirements), population.bins), dtype=np.int64)
