"""The audit: runs with canaries, an attacker's guesses, and what these prove.

In memory::

    findings = audited([Requirement(40, 1.0)], mechanism="pba", runs=20, seed=0)
    findings.convicted, [(one.part, one.claim, one.times, one.visible) for one in findings.checks]

`make_driver` takes the place of the exact driver: see `runs.MakeDriver`.

Three things are looked at. Charges: those of a window must add up to its budget at most, which is
checked exactly in every run. Canaries of single slots: what a slot tells of them must be covered by
what it was charged. Canaries of whole windows: what the window tells must be covered by its budget.
Together the first two are the whole guarantee; the third one needs no faith in any charge.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.budgets import Requirements
from streamveil.mechanisms.core.records import (
    ADD_REMOVE,
    PUBLISHED,
    REPLACE,
    ConfigurationError,
    Requirement,
)
from streamveil.mechanisms.protocol import Population
from streamveil.mechanisms.randomness.noise import digest
from streamveil.mechanisms.registry import DEFAULT, MECHANISMS, parse
from streamveil.pipelines.audit.canaries import Canaries
from streamveil.pipelines.audit.findings import CHARGE, WINDOW, Check, Findings
from streamveil.pipelines.audit.guesses import Guesses, check
from streamveil.pipelines.audit.runs import Exact, MakeDriver, Transcript, run
from streamveil.pipelines.audit.scores import scores
from streamveil.pipelines.audit.worlds import (
    BINS,
    SLOTS,
    WINDOWS,
    World,
    calm,
    leaping,
    length_of,
    plan_of,
)

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

DEFAULT_RUNS = 30
DEFAULT_CONFIDENCE = 0.95
DEFAULT_BINS = 16
LEAST_RUNS = 4
# Loss of a canary that tells most per guess.
_TELLING = {SLOTS: 2.0, BINS: 2.0, WINDOWS: 3.0}
# Slots between publications, in windows, and from how long a window on one is enough: what looks
# cost of a publication's slot is little beside what it has saved up by then.
RESTS, LONG = 2, 20
# Least users of a class in a worst case.
_CROWD = 1000


def audited(
    requirements: Sequence[Requirement],
    *,
    mechanism: str = DEFAULT,
    sizes: Integers | None = None,
    bins: int = DEFAULT_BINS,
    sensitivity: int = 1,
    adjacency: str = ADD_REMOVE,
    counts: Integers | None = None,
    runs: int | None = DEFAULT_RUNS,
    seconds: float | None = None,
    seed: int = 0,
    confidence: float = DEFAULT_CONFIDENCE,
    make_driver: MakeDriver = Exact,
) -> Findings:
    """Audit a mechanism over fixed requirements.

    Args:
        requirements: of each class, K of them, all distinct.
        mechanism: a key of `MECHANISMS`, with options.
        sizes: users of each class, shape (K,); without, as many as the worst cases need.
        bins: of the histogram, where there are no counts.
        sensitivity: as of `Population`.
        adjacency: what neighbouring streams differ in.
        counts: of a real stream, int64, shape (T, K, d), beside which canaries are put; worst cases
            without.
        runs: with canaries of each class and of each kind; None for as many as `seconds` allow.
        seconds: to stop after, about.
        seed: the same seed gives the same audit, but for where `seconds` stop it.
        confidence: probability, at least, that no bound is above the truth.
        make_driver: what is audited in place of the exact driver.

    Raises ConfigurationError for a mechanism or requirements that cannot be.
    """
    asked = Requirements.of(requirements)
    if runs is not None and runs < LEAST_RUNS:
        raise ConfigurationError(f"runs is {runs}: an audit needs {LEAST_RUNS} or more")
    if sizes is None:
        sizes = np.full(len(asked), _CROWD, dtype=np.int64)
    if counts is not None:
        bins = counts.shape[2]
    population = Population(asked, np.asarray(sizes, dtype=np.int64), bins, sensitivity)
    audit = Audit(mechanism, population, adjacency == REPLACE, counts, seed, make_driver)
    started = time.monotonic()
    guesses: dict[tuple[int, str], list[Guesses]] = {}
    done = 0
    while runs is None or done < runs:
        for k in range(len(asked)):
            for kind in (SLOTS, BINS, WINDOWS):
                guesses.setdefault((k, kind), []).append(audit.guesses(k, kind, done))
        done += 1
        if seconds is not None and time.monotonic() - started > seconds and done >= LEAST_RUNS:
            break
    checks = tuple(_checks(population, guesses, 1 - confidence))
    return Findings(
        mechanism,
        confidence,
        audit.runs,
        audit.slots,
        time.monotonic() - started,
        checks,
        audit.overspent,
    )


def _checks(
    population: Population, guesses: dict[tuple[int, str], list[Guesses]], flakiness: float
) -> Iterator[Check]:
    """Each check may be wrong with an even part of the probability."""
    each = flakiness / (5 * len(population.requirements))
    for k, requirement in enumerate(population.requirements):
        single, whole = guesses[k, SLOTS], guesses[k, WINDOWS]
        for part, published in (("publications", True), ("looks", False)):
            some = [one.only(published) for one in single]
            yield check(part, CHARGE, requirement, some, each)
        yield check("bins", CHARGE, requirement, guesses[k, BINS], each)
        yield check("windows", CHARGE, requirement, whole, each)
        yield check(
            "windows",
            WINDOW,
            requirement,
            [one.of_window(requirement.epsilon) for one in whole],
            each,
        )


class Audit:
    """Runs of one configuration."""

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
        self._scheduled = MECHANISMS[parse(mechanism)[0]].schedule
        self._groups: dict[tuple[int, str], tuple[Integers, Integers]] = {}

    def guesses(self, k: int, kind: str, number: int) -> Guesses:
        """Run a world with canaries of a class; what an attacker makes of it."""
        random = np.random.default_rng([self._seed, k, (SLOTS, BINS, WINDOWS).index(kind), number])
        world = self._world(k, kind, number, random)
        canaries = self._grouped(k, kind, world, random).flipped(random)
        seen = self._run(world, canaries, f"{k} {kind} {number}")
        found = scores(seen, world.others, canaries, alone=world.alone)
        return Guesses(
            found,
            canaries.there,
            canaries.charged(seen.spent[:, k]),
            canaries.users,
            np.array(
                [_published(seen, *span) for span in zip(canaries.first, canaries.end, strict=True)]
            ),
        )

    def _world(self, k: int, kind: str, number: int, random: np.random.Generator) -> World:
        window = self._population.requirements[k].window
        every = 1
        if kind == BINS and self._scheduled:
            every = RESTS * window if window < LONG else window
        slots = length_of(kind, window, every)
        if self._counts is not None:
            others = self._counts
            slots = len(others)
        elif kind == BINS and self._scheduled:
            others = leaps(self._population, slots, every)
        elif number % 2 or self._scheduled:
            others = leaping(self._population, slots, random)
        else:
            others = calm(self._population, slots)
        plan = plan_of(kind, self._population, k, self._moves, slots, every)
        return World(others, plan, kind == SLOTS)

    def _grouped(self, k: int, kind: str, world: World, random: np.random.Generator) -> Canaries:
        """As many users in each canary as tell most: by what is charged for one in a trial run."""
        if kind == WINDOWS:
            epsilon = self._population.requirements[k].epsilon
            users = max(1, round(_TELLING[kind] / epsilon))
            return replace(world.plan, users=np.full_like(world.plan.users, users))
        if (k, kind) not in self._groups:
            self._groups[k, kind] = self._trial(k, world)
        sizes = self._groups[k, kind]
        users = random.choice(np.array(sizes[: 1 if kind == BINS else 2]), world.plan.users.size)
        return replace(world.plan, users=users)

    def _trial(self, k: int, world: World) -> tuple[int, int]:
        """Users of a canary that shows in publications, and of one that shows in looks."""
        flipped = world.plan.flipped(np.random.default_rng([self._seed, k]))
        others = leaping(self._population, len(world.others), np.random.default_rng([self._seed]))
        seen = self._run(
            replace(world, others=others if self._counts is None else self._counts),
            flipped,
            f"trial {k}",
        )
        spent = seen.spent[:, k]
        published = np.array([one.status == PUBLISHED for one in seen.releases])
        most = max(1, int(self._population.sizes[k]))
        found = []
        for which in (published, ~published):
            costs = spent[which & (spent > 0)]
            wanted = round(_TELLING[SLOTS] / float(np.median(costs))) if costs.size else 1
            found.append(min(max(1, wanted), most))
        return found[0], found[1]

    def _run(self, world: World, canaries: Canaries, name: str) -> Transcript:
        key = digest(b"audit", b"%d" % self._seed, name.encode())
        counts = canaries.add_to(world.others)
        seen = run(self._make, self._mechanism, self._population, key, counts)
        self.runs += 1
        self.slots += len(counts)
        self.overspent = max(self.overspent, _overspent(seen))
        return seen


def _published(seen: Transcript, first: int, end: int) -> bool:
    return any(one.status == PUBLISHED for one in seen.releases[first:end])


def _overspent(seen: Transcript) -> float:
    """Largest charge of a window in parts of its budget, in whole units."""
    asked, most = seen.population.requirements, 0.0
    units = np.stack([one.spent for one in seen.releases])
    sums = np.concatenate([np.zeros((1, units.shape[1]), np.int64), units.cumsum(axis=0)])
    for k, (window, budget) in enumerate(zip(asked.windows, asked.budgets, strict=True)):
        ends = np.arange(1, len(sums))
        spent = sums[ends, k] - sums[np.maximum(ends - window, 0), k]
        most = max(most, int(spent.max()) / int(budget))
    return most
