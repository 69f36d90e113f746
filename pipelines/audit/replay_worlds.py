"""Worlds that are replayed: long runs that meet rare paths, and neighbours of them.

Others come and go, leap, shift their level for good, fall silent and come back, so that alarms,
reserves, audits, sums and changes of plans all happen; and the run is long. Of each class there is
a neighbour who is there in every slot and one who is there for a window; and there is a world that
has nothing in common with the first one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.protocol import Population
from streamveil.pipelines.audit.canaries import Canaries, Mark
from streamveil.pipelines.audit.findings import asked_of
from streamveil.pipelines.audit.worlds import FAR, Scene, Spans, World, leaping

Random = np.random.Generator

# Slots of a run, at least; and at most, however long windows are.
LENGTH, LONGEST = 504, 2000
# Runs that are replayed, where no seconds say when to stop.
STAGES = 2
# Bins of worst cases, at most: these runs are long.
MOST_BINS = 8
# Slots after which a release is revised, where a mechanism can.
REVISED = 7


@dataclass(frozen=True, eq=False)
class Neighbours:
    """A world, and others in which one user more is there, or does something else."""

    made: World
    """Its plans have a group of each of these users."""
    strangers: World
    """One that has nothing in common with it."""
    whose: Mapping[int, str]
    """Who they are, for people, by the number of their group."""
    promised: Sequence[int]
    """Of each group, units that all its slots may cost; 0 where only charges are promised."""
    aside: Sequence[int] = ()
    """Of each group, units that are charged besides its slots, where there are any."""


def length_of(scene: Scene) -> int:
    """Base slots of a run of worst cases, in which all slots end."""
    asked, trip = scene.requirements, scene.round_trip
    longest = 0 if asked.forever else min(2 * asked.longest, LONGEST)
    return -(-max(LENGTH, longest) // trip) * trip


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


def strangers(others: Integers, random: Random) -> Integers:
    """Counts of a world in which everything is different."""
    level = np.maximum(others.mean(axis=0), 1.0)
    return random.poisson(level * random.uniform(0.2, 3.0, others.shape)).astype(np.int64)


def users_in(
    columns: Sequence[int], spans: Spans, cells: int, most: int, random: Random
) -> Canaries:
    """Users of some columns who are there in all slots of a span, as much as they may change.

    In each slot all of that is in one cell, whichever it is.
    """
    first, end = np.array(spans, np.int64).reshape(-1, 2).T
    mark = Mark.spanning(first, end, first, most)
    mark = replace(mark, cells=random.integers(cells, size=mark.slots.size))
    return Canaries.nobody(np.array(columns, np.int64), (mark,), first, end)


def neighbours_of(
    scene: Scene, classes: Sequence[int], random: Random, counts: Sequence[Integers] | None
) -> Neighbours:
    """Of streams of counts: a user of each class in a window, and one in all slots.

    Args:
        scene: of the streams, in worst cases of few bins, which are soon run.
        classes: that users are of.
        random: where all is drawn from.
        counts: of real streams, shape (T, K, cells); worst cases without.
    """
    if counts is None:
        end = length_of(scene)
        others = [
            scripted(population, end // length, random)
            for population, length in zip(scene.populations, scene.lengths, strict=True)
        ]
    else:
        trip = scene.round_trip
        end = min(len(counts[0]) * scene.lengths[0], -(-LENGTH // trip) * trip)
        others = [
            table[: end // length].astype(np.int64)
            for table, length in zip(counts, scene.lengths, strict=True)
        ]
    users = [(k, span) for k in classes for span in _spans(scene, k, end, random)]
    plans = []
    for table, place in zip(others, scene.places, strict=True):
        slots = [(a // place.length, (b - 1) // place.length + 1) for _, (a, b) in users]
        who = [k for k, _ in users]
        plans.append(users_in(who, slots, table.shape[2], place.most, random))
    made = World(tuple(others), tuple(plans))
    return Neighbours(
        made,
        World(tuple(strangers(table, random) for table in others), made.plans),
        {i: _whose(scene, k, span, end) for i, (k, span) in enumerate(users)},
        [_promised(scene, k, span) for k, span in users],
    )


def _spans(scene: Scene, k: int, end: int, random: Random) -> list[tuple[int, int]]:
    """Base slots of a user: all, and a window that meets as many slots of all streams as any."""
    if scene.requirements.forever:
        return [(0, end)]
    window, trip = scene.requirements[k].window, scene.round_trip
    first = trip * int(random.integers(max((end - window) // trip, 0) + 1)) + trip - 1
    first = min(first, max(end - window, 0))
    return [(0, end), (first, min(first + window, end))]


def _whose(scene: Scene, k: int, span: tuple[int, int], end: int) -> str:
    slot = "slots" if len(scene.places) == 1 else "base slots"
    where = f"all {slot}" if span == (0, end) else f"{slot} {span[0]} to {span[1] - 1}"
    return f"a user with {asked_of(scene.requirements[k])} in {where}"


def _promised(scene: Scene, k: int, span: tuple[int, int]) -> int:
    """The budget, of all slots there are or of a window."""
    within = scene.requirements.forever or span[1] - span[0] <= scene.requirements[k].window
    return int(scene.requirements.budgets[k]) if within else 0
