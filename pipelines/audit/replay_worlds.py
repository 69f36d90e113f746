"""Worlds that are replayed: long runs that meet rare paths, and neighbours of them.

Others come and go, leap, shift their level for good, fall silent and come back, so that alarms,
reserves, audits, sums and changes of plans all happen; and the run is long. Of each class there is
a neighbour who is there in every slot, one who is there for a window and one who is there for a
slot; and there is a world that has nothing in common with the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.protocol import Population
from streamveil.pipelines.audit.findings import asked_of
from streamveil.pipelines.audit.replay import Neighbour, Play, Stage
from streamveil.pipelines.audit.worlds import FAR, leaping

Integers = npt.NDArray[np.int64]
Random = np.random.Generator

# Slots of a run, at least; and at most, however long windows are.
LENGTH, LONGEST = 504, 2000
# Runs that are replayed, where no seconds say when to stop.
STAGES = 2
# Bins of worst cases, at most: these runs are long.
MOST_BINS = 8
# Slots after which a release is revised, where a mechanism can.
REVISED = 7


def length_of(population: Population) -> int:
    """Slots of a run."""
    if population.requirements.forever:
        return LENGTH
    return max(LENGTH, min(2 * population.requirements.longest, LONGEST))


def scripted(population: Population, slots: int, random: Random) -> Integers:
    """Counts of others, int64, shape (slots, K, d)."""
    shares = population.requirements.shares / 2.0**40
    k = int(shares.argmax())
    far = max(round(2 * FAR * population.sensitivity / float(shares.max())), 8)
    counts = leaping(population, slots, 1, True, random)
    counts[slots // 3 :, k] += far
    counts[slots // 2 :, k, ::2] += 4 * far
    counts[2 * slots // 3 :, k] //= 8
    counts[5 * slots // 6 :, k] += 16 * far
    counts += random.poisson(3.0, counts.shape)
    counts[: slots // 3] = 0  # nobody: releases are far apart
    counts[-slots // 20 :] = 0
    return counts


def stages_of(
    population: Population,
    classes: Sequence[int],
    play: Callable[[Integers, int], Play],
    spent: Callable[[list[Any]], npt.NDArray[np.int64]],
    seed: int,
    *,
    moves: bool,
    counts: Integers | None = None,
    budgets: Sequence[int] | None = None,
    charged: Callable[[npt.NDArray[np.int64]], float] = lambda _: 0.0,
    in_windows: bool = True,
) -> Iterator[Stage]:
    """Stages of a stream of counts (T, K, d): as many as are asked for.

    Args:
        population: the public facts.
        classes: that neighbours are of.
        play: makes a run of counts, of a number.
        spent: what each slot was charged, units of each class, shape (T, K), from what was
            published.
        seed: of all that is drawn.
        moves: whether neighbours replace a user.
        counts: of a real stream; worst cases without.
        budgets: units of a window of each class.
        charged: the largest charge of a window in parts of its budget, of charges (T, K).
        in_windows: whether charges are of the slots that users are in: else of all slots.
    """
    for number in range(STAGES):
        random = np.random.default_rng([seed, 911, number])
        if counts is None:
            others = scripted(population, length_of(population), random)
        else:
            others = counts[:LENGTH].astype(np.int64)
        neighbours = [
            Neighbour("everybody", play(_strangers(others, random), number)),
            *(
                one
                for k in classes
                for one in _neighbours(
                    *(population, k, others, play, spent, number, random, moves, budgets),
                    in_windows=in_windows,
                )
            ),
        ]
        yield Stage(play(others, number), tuple(neighbours), lambda seen: charged(spent(seen)))


def _strangers(others: Integers, random: Random) -> Integers:
    """A world in which everything is different."""
    level = np.maximum(others.mean(axis=0), 1.0)
    return random.poisson(level * random.uniform(0.2, 3.0, others.shape)).astype(np.int64)


def _neighbours(
    population: Population,
    k: int,
    others: Integers,
    play: Callable[[Integers, int], Play],
    spent: Callable[[list[Any]], npt.NDArray[np.int64]],
    number: int,
    random: Random,
    moves: bool,
    budgets: Sequence[int] | None,
    *,
    in_windows: bool,
) -> Iterator[Neighbour]:
    slots, window = len(others), population.requirements[k].window
    first = int(random.integers(max(slots - window, 0) + 1))
    whose = f"a user with {asked_of(population.requirements[k])}"
    spans = {f"{whose} in all slots": (0, slots)}
    if in_windows:
        last = min(first + window, slots)
        spans[f"{whose} in slots {first} to {last - 1}"] = first, last
    for whose, (begin, end) in spans.items():
        counts = others.copy()
        _add(counts[begin:end, k], population.sensitivity, random, moves)

        def claims(
            published: list[Any], begin: int = begin, end: int = end, k: int = k
        ) -> dict[str, int]:
            found = {"what the slots were charged": int(spent(published)[begin:end, k].sum())}
            if budgets is not None and end - begin <= window:
                found["the budget of a window"] = int(budgets[k])
            return found

        yield Neighbour(whose, play(counts, number), claims)


def _add(counts: Integers, sensitivity: int, random: Random, moves: bool) -> None:
    """Put a user into each of some slots, counts of shape (slots, d), or move one."""
    slots, bins = np.arange(len(counts)), counts.shape[1]
    at = random.integers(bins, size=len(counts))
    if not moves:
        counts[slots, at] += sensitivity
        return
    # Somebody's events are in another bin: as many as there are, at most.
    other = (at + 1) % bins
    moved = np.minimum(counts[slots, at], sensitivity // 2)
    counts[slots, at] -= moved
    counts[slots, other] += moved
