"""The audit: runs with canaries, an attacker's guesses, and what these prove.

In memory::

    findings = audited([Requirement(40, 1.0)], mechanism="pba", extent=Extent(runs=20))
    findings.convicted, [(one.part, one.claim, one.times, one.visible) for one in findings.checks]

`make_driver` takes the place of the exact driver: see `runs.MakeDriver`.

Three things are looked at. Charges: those of a window must add up to its budget at most, which is
checked exactly in every run. Canaries of single slots: what a slot tells of them must be covered by
what it was charged. Canaries of whole windows: what the window tells must be covered by its budget.
Together the first two are the whole guarantee; the third one needs no faith in any charge.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.budgets import Requirements
from streamveil.mechanisms.core.records import ADD_REMOVE, REPLACE, Requirement
from streamveil.mechanisms.protocol import Population
from streamveil.mechanisms.randomness.noise import digest
from streamveil.mechanisms.registry import DEFAULT, can_revise, only_dynamic
from streamveil.pipelines.audit.canaries import Canaries
from streamveil.pipelines.audit.findings import CHARGE, WINDOW, Check, Findings, asked_of
from streamveil.pipelines.audit.groups import group_of_window, groups_of_slots
from streamveil.pipelines.audit.guesses import Doubt, Guesses, check
from streamveil.pipelines.audit.options import DEFAULT_BINS
from streamveil.pipelines.audit.replay import Play, Stage
from streamveil.pipelines.audit.replay_worlds import MOST_BINS, REVISED, stages_of
from streamveil.pipelines.audit.rounds import USUAL, Extent, found_by, left_out, watched
from streamveil.pipelines.audit.runs import (
    Driver,
    Exact,
    MakeDriver,
    Transcript,
    exact,
    fullest,
    public,
    run,
    spent_of,
)
from streamveil.pipelines.audit.scores import guesses_of
from streamveil.pipelines.audit.shown import learnt
from streamveil.pipelines.audit.whole_runs import release_stage, second
from streamveil.pipelines.audit.worlds import (
    BINS,
    KINDS,
    SLOTS,
    WINDOWS,
    World,
    crowd,
    saves_up,
    sizes_of,
    world_of,
)

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

# Checks of a class: see `_checks`.
_CHECKS = 5


def audited(
    requirements: Sequence[Requirement],
    *,
    mechanism: str = DEFAULT,
    sizes: Integers | None = None,
    guessed: int | None = None,
    bins: int = DEFAULT_BINS,
    sensitivity: int = 1,
    adjacency: str = ADD_REMOVE,
    counts: Integers | None = None,
    extent: Extent = USUAL,
    make_driver: MakeDriver = exact,
) -> Findings:
    """Audit a mechanism over fixed requirements.

    Args:
        requirements: of each class, K of them, all distinct.
        mechanism: a key of `MECHANISMS`, with options; or one of `DYNAMIC_MECHANISMS` alone, whose
            requirements then stay as they are.
        sizes: users of each class, shape (K,); in worst cases there are as many times more of all
            as these need.
        guessed: the class whose size is only a guess, as of :class:`Population`; None if all are
            known.
        bins: of the histogram, where there are no counts.
        sensitivity: as of `Population`.
        adjacency: what neighbouring streams differ in.
        counts: of a real stream, int64, shape (T, K, d), beside which canaries are put; worst cases
            without.
        extent: how long the audit goes on, in rounds of a run of each kind for each class.
        make_driver: what is audited in place of the exact driver.

    Raises ConfigurationError for a mechanism or requirements that cannot be.
    """
    asked = Requirements.of(requirements)
    users = sizes_of(asked, sizes)
    if counts is None:
        users = crowd(asked, users, bins)
    else:
        bins = counts.shape[2]
    population = Population(asked, users, bins, sensitivity, guessed=guessed)
    audit = Audit(mechanism, population, adjacency == REPLACE, counts, extent.seed, make_driver)
    return found_by(
        audit,
        mechanism,
        extent,
        own=counts is not None,
        notes=left_out(population, audit.classes),
        too_short=audit.too_short,
        stages=audit.stages(),
    )


class Audit:
    """Runs of one configuration, and the guesses about their canaries."""

    def __init__(
        self,
        mechanism: str,
        population: Population,
        moves: bool,
        counts: Integers | None,
        seed: int,
        make_driver: MakeDriver,
    ) -> None:
        self.runs = self.slots = 0
        self.overspent = 0.0
        self._mechanism, self._population = mechanism, population
        self._moves, self._counts, self._seed, self._make = moves, counts, seed, make_driver
        self.classes = watched(population)
        self._revises = can_revise(mechanism) and not only_dynamic(mechanism)
        self._groups: dict[tuple[int, str], tuple[int, int]] = {}
        self._guesses: dict[tuple[int, str], list[Guesses]] = {
            (k, kind): [] for k in self.classes for kind in KINDS
        }

    @property
    def too_short(self) -> dict[str, int]:
        """Windows that are longer than the real stream, and how long they are."""
        some = [self._population.requirements[k] for k in self.classes]
        slots = math.inf if self._counts is None else len(self._counts)
        return {f"windows of {asked_of(one)}": one.window for one in some if one.window > slots}

    def round(self, number: int, done: Callable[[int], object]) -> None:
        """Run every kind of world once for each class."""
        for (k, kind), guesses in self._guesses.items():
            guesses.append(self._guessed(k, kind, number))
            done(number)

    def stages(self) -> Iterator[Stage]:
        """Worlds to be replayed; in worst cases of few bins, which are soon run."""
        population = self._population
        if self._counts is None:
            population = replace(population, bins=min(population.bins, MOST_BINS))
        stages = stages_of(
            population,
            self.classes,
            partial(self._play, population),
            spent_of,
            self._seed,
            moves=self._moves,
            counts=self._counts,
            budgets=population.requirements.budgets.tolist(),
            charged=lambda spent: fullest(population.requirements, [(1, spent)]),
        )
        return second(stages, self._whole_runs) if self._make is exact else stages

    def _whole_runs(self) -> Stage:
        people = self._population
        guessed = self.classes.index(people.guessed) if people.guessed in self.classes else None
        return release_stage(
            [people.requirements[k] for k in self.classes],
            bins=people.bins,
            seed=self._seed,
            most=people.sensitivity // (2 if self._moves else 1),
            guessed=guessed,
            mechanism=self._mechanism,
            adjacency=REPLACE if self._moves else ADD_REMOVE,
            revise=REVISED if self._revises else None,
        )

    def _play(self, population: Population, counts: Integers, number: int) -> Play:
        key = digest(b"audit", b"%d" % self._seed, b"replay %d" % number)

        def played() -> Iterator[tuple[int, Any]]:
            if self._make is exact and self._revises and number % 2:
                driver: Driver = Exact(self._mechanism, population, key, REVISED)
            else:
                driver = self._make(self._mechanism, population, key)
            return public(driver, counts)

        return played

    def checks(self, doubt: Doubt) -> Iterator[Check]:
        """Each check may be wrong with an even part of the probability."""
        requirements = self._population.requirements
        each = doubt / (_CHECKS * len(self.classes))
        for k in self.classes:
            requirement = requirements[k]
            single = self._guesses[k, SLOTS]
            published, looks = (
                learnt([one.only(told) for one in single]) for told in (True, False)
            )
            wide, whole = (learnt(self._guesses[k, kind]) for kind in (BINS, WINDOWS))
            yield check("publications", CHARGE, requirement, published, each)
            yield check("looks", CHARGE, requirement, looks, each)
            yield check("bins", CHARGE, requirement, wide, each)
            yield check("windows", CHARGE, requirement, whole, each)
            against = [one.of_window(requirement.epsilon) for one in whole]
            yield check("windows", WINDOW, requirement, against, each)

    def _guessed(self, k: int, kind: str, number: int) -> Guesses:
        """Run a world with canaries of a class; what an attacker makes of it."""
        random = np.random.default_rng([self._seed, k, KINDS.index(kind), number])
        world = world_of(
            kind, self._mechanism, self._population, k, self._moves, number, random, self._counts
        )
        canaries = self._grouped(k, kind, world, random).flipped(random)
        seen = self._run(world, canaries, f"{k} {kind} {number}")
        return guesses_of(seen, world.others, canaries, alone=kind == SLOTS)

    def _grouped(self, k: int, kind: str, world: World, random: np.random.Generator) -> Canaries:
        """As many users in each canary as tell most."""
        if (k, kind) not in self._groups:
            self._groups[k, kind] = self._users(k, kind, world)
        users = random.choice(np.array(self._groups[k, kind]), world.plan.users.size)
        return world.plan.of_users(users)

    def _users(self, k: int, kind: str, world: World) -> tuple[int, int]:
        """Users of a canary that shows in publications, and of one that shows in looks."""
        people = int(self._population.sizes[k])
        if kind == WINDOWS:
            return group_of_window(self._population.requirements[k].epsilon, people)
        seen = self._run(world, world.plan, f"trial {k} {kind}")
        return groups_of_slots(kind, seen, world.plan, people, saves_up(self._mechanism))

    def _run(self, world: World, canaries: Canaries, name: str) -> Transcript:
        key = digest(b"audit", b"%d" % self._seed, name.encode())
        counts = canaries.add_to(world.others)
        seen = run(self._make, self._mechanism, self._population, key, counts)
        self.runs += 1
        self.slots += len(counts)
        charges = [(1, np.stack([one.spent for one in seen.releases]))]
        self.overspent = max(self.overspent, fullest(self._population.requirements, charges))
        return seen
