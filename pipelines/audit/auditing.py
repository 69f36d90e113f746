"""The audit of requirements over windows: of one stream of counts, or of many queries.

In memory::

    findings = audited([Requirement(40, 1.0)], mechanism="pba", extent=Extent(runs=20))
    findings.violated, [(one.part, one.claim, one.times, one.visible) for one in findings.checks]
    findings = audited_queries(query_set, [Requirement(24, 1.0)], extent=Extent(runs=20))

Three things are looked at. Charges: those of a window must add up to its budget at most, which is
checked exactly in every run. Canaries of single slots: what a slot tells of them must be covered by
what it was charged. Canaries of whole windows: what the window tells must be covered by its budget.
Together the first two are the whole guarantee; the third one needs no faith in any charge.

Of many queries, one user's budget over base slots is of all together. So canaries of windows are in
all queries at once, and scores of the queries' answers, whose noise is independent, are added up:
that must be covered by the budget. What one query tells in a window must be covered by its share.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import numpy as np

from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.budgets import Requirements
from streamveil.mechanisms.core.records import ADD_REMOVE, Requirement
from streamveil.mechanisms.queries.queries import QuerySet
from streamveil.mechanisms.registry import DEFAULT, only_dynamic
from streamveil.pipelines.audit.audits import Audit, Part, left_out, watched
from streamveil.pipelines.audit.audits import World as WorldOf
from streamveil.pipelines.audit.canaries import Canaries
from streamveil.pipelines.audit.facts import Facts
from streamveil.pipelines.audit.findings import Findings, asked_of
from streamveil.pipelines.audit.guesses import Guesses, joined
from streamveil.pipelines.audit.replay import Neighbour, Play, Stage
from streamveil.pipelines.audit.replay_worlds import STAGES, Neighbours, neighbours_of
from streamveil.pipelines.audit.rounds import USUAL, Extent, found_by
from streamveil.pipelines.audit.runs import (
    Exact,
    MakeDriver,
    Public,
    Transcript,
    published_in,
    releases_of,
    spent_of,
)
from streamveil.pipelines.audit.shown import guesses_of
from streamveil.pipelines.audit.streams import ChangingStream, OneStream, Queries, Streams
from streamveil.pipelines.audit.worlds import (
    BINS,
    KINDS,
    SLOTS,
    WINDOWS,
    World,
    saves_up,
    sizes_of,
    world_of,
)
from streamveil.pipelines.evaluation.window_use import fullest
from streamveil.pipelines.options.audit_options import DEFAULT_BINS_OF_QUERIES

# Loss of a canary of a window, and of one of a slot, that tells most per guess; and where canaries
# in all bins that are gone again would make a mechanism publish soon.
TELLING, _TELLING, _TELLING_AND_GONE = 3.0, 2.0, 1.0

OF_SLOTS: Mapping[str, Sequence[Part]] = {
    SLOTS: (Part("publications", published=True), Part("looks", published=False)),
    BINS: (Part("bins"),),
}
"""What canaries of single slots meet."""


def audited(
    requirements: Sequence[Requirement],
    *,
    mechanism: str = DEFAULT,
    counts: Integers | None = None,
    extent: Extent = USUAL,
    make_driver: MakeDriver = Exact,
    **facts: Any,
) -> Findings:
    """Audit a mechanism over fixed requirements.

    Args:
        requirements: of each class, K of them, all distinct.
        mechanism: a key of `MECHANISMS`, with options; or one of `DYNAMIC_MECHANISMS` alone, whose
            requirements then stay as they are.
        counts: of a real stream, int64, shape (T, K, d), beside which canaries are put; worst cases
            without.
        extent: how long the audit goes on, in rounds of a run of each kind for each class.
        make_driver: what is audited in place of the exact driver.
        facts: others of :class:`Facts`.

    Raises ConfigurationError for a mechanism or requirements that cannot be.
    """
    if counts is not None:
        facts["bins"] = counts.shape[2]
    audit_facts = Facts(mechanism=mechanism, requirements=requirements, **facts)
    real, people = (
        None if counts is None else [counts],
        audit_facts.population(own=counts is not None),
    )
    streams = OneStream(audit_facts, people, make_driver)
    if only_dynamic(mechanism):
        streams = ChangingStream(audit_facts, people, horizon=people.requirements.longest)
    return found_by(StreamsAudit(mechanism, streams, real, extent.seed), extent)


def audited_queries(
    query_set: QuerySet,
    requirements: Sequence[Requirement],
    *,
    name: str = "the query set",
    sizes: Integers | None = None,
    guessed: int | None = None,
    bins: int = DEFAULT_BINS_OF_QUERIES,
    adjacency: str = ADD_REMOVE,
    counts: Mapping[str, Integers] | None = None,
    first_slot: int = 0,
    extent: Extent = USUAL,
) -> Findings:
    """Audit a query set, with the shares that are planned for it.

    Args:
        query_set: what is asked; bounds of numbers are known.
        requirements: of each class, K of them, all distinct, windows in base slots.
        name: of the query set, in the findings.
        sizes: as of :class:`Facts`.
        guessed: as of :class:`Facts`.
        bins: of every query in worst cases, in place of its own.
        adjacency: what neighbouring streams differ in.
        counts: of real streams by query, beside which canaries are put, as of
            :func:`simulate_query_set`; worst cases without.
        first_slot: base slot with which these begin.
        extent: how long the audit goes on, in rounds of a run of each kind for each class.

    Raises ConfigurationError for queries or requirements that cannot be.
    """
    known = Requirements.of(requirements)
    queries = Queries.of(query_set, known, sizes_of(known, sizes), adjacency, guessed)
    real, notes = None, list[str]()
    if counts is None:
        queries = queries.widened(bins)
        notes = list(_narrowed(queries.query_set, bins))
    else:
        tables = [np.asarray(counts[query.name], np.int64) for query in query_set]
        real = queries.padded(tables, first_slot)
    return found_by(StreamsAudit(name, queries, real, extent.seed, notes), extent)


def telling_group(telling: float, epsilon: float, people: int) -> int:
    """Users of a canary who lose so much together, of so many, where each loses epsilon."""
    return min(max(1, round(telling / epsilon)), max(1, people))


def _narrowed(query_set: QuerySet, bins: int) -> Iterator[str]:
    """Which worst cases have fewer bins than was said."""
    for query in query_set:
        if query.domain.bins < bins:
            yield (
                f"query {query.name!r} is asked of {query.domain.bins} bins: more would "
                "not fit into memory; canaries of windows are as few"
            )


class StreamsAudit(Audit):
    """Of streams of counts over the same base slots.

    Streams say how a run is made of a world. A kind of guarantee says which worlds there are, how
    large groups of canaries are, what is promised of them, how charges are recounted and which
    users are replayed; the same canaries stand in worlds for guesses and for replays.

    Args:
        name: of what is audited.
        streams: how they are run.
        counts: of real streams, shape (T, K, cells); worst cases without.
        seed: of all that is drawn.
        notes: of what is not audited.
    """

    kinds: Sequence[str] = KINDS
    """Of worlds."""
    times: Mapping[str, int] = MappingProxyType({})
    """Runs of a kind of world in a round, where these may be several."""

    def __init__(
        self,
        name: str,
        streams: Streams,
        counts: Sequence[Integers] | None,
        seed: int,
        notes: Sequence[str] = (),
    ) -> None:
        self.streams, self.counts = streams, counts
        self.classes = watched(streams.people)
        worlds = {(k, kind): parts for k in self.classes for kind, parts in self.parts(k).items()}
        super().__init__(name, seed, worlds)
        self.queries, self.own = streams.names, counts is not None
        self.notes = (*left_out(streams.people, self.classes), *notes)
        self._groups: dict[WorldOf, list[tuple[int, int]]] = {}

    def requirement(self, k: int) -> Requirement:
        """See :class:`Audit`."""
        return self.streams.people.requirements[k]

    @property
    def too_short(self) -> Mapping[str, int]:
        """Windows that are longer than the real streams."""
        slots = math.inf
        if self.counts is not None:
            slots = len(self.counts[0]) * self.streams.scene.lengths[0]
        some = [self.requirement(k) for k in self.classes]
        return {f"windows of {asked_of(one)}": one.window for one in some if one.window > slots}

    # ---- what a kind of guarantee has in its place --------------------------------------------

    def parts(self, k: int) -> Mapping[str, Sequence[Part]]:
        """By kind of world, what canaries of a class meet."""
        return {**OF_SLOTS, WINDOWS: (Part("windows", whole=self.streams.whole),)}

    def made(self, world: WorldOf, number: int, random: np.random.Generator) -> World:
        """A run to be, by its number."""
        k, kind = world
        return world_of(kind, self.streams.scene, k, number, random, self.counts)

    def flipped(
        self, world: WorldOf, made: World, random: np.random.Generator
    ) -> tuple[Canaries, ...]:
        """Groups that tell most, with coins: of windows the same groups in all streams."""
        if world not in self._groups:
            self._groups[world] = self.users(world, made)
        groups = self._groups[world]
        if world[1] == WINDOWS:
            first, *others = made.plans
            flipped = first.of_users(np.full(first.users.size, groups[0][0])).flipped(random)
            users, there = flipped.users, flipped.there
            return (flipped, *(replace(one, users=users, there=there) for one in others))
        return tuple(
            plan.of_users(random.choice(np.array(users), plan.users.size)).flipped(random)
            for plan, users in zip(made.plans, groups, strict=True)
        )

    def transcript(self, outputs: Sequence[Public], q: int, plan: Canaries) -> Transcript:
        """What a stream showed of a run with these canaries."""
        population = self.streams.scene.populations[q]
        return Transcript(releases_of(outputs, q), population.sizes, population.sensitivity)

    def scored(
        self, world: WorldOf, made: World, plan: Canaries, outputs: Sequence[Public], q: int
    ) -> Guesses:
        """What an attacker makes of the canaries of a stream."""
        k, kind = world
        seen = self.transcript(outputs, q, plan)
        found = guesses_of(seen, made.others[q], plan, alone=kind == SLOTS)
        return found.promised(plan.largest(self.streams.promised(outputs, q, k)))

    def fullest(self, outputs: Sequence[Public]) -> float:
        """Largest charge of a window of a run in parts of its budget."""
        charges = [
            (length, spent_of(outputs, q)) for q, length in enumerate(self.streams.scene.lengths)
        ]
        return fullest(self.streams.people.requirements, charges)

    def neighbours(self, random: np.random.Generator) -> Iterator[Neighbours]:
        """Worlds that are replayed, with neighbours of each; worst cases have few bins."""
        yield neighbours_of(self._replayed.scene, self.classes, random, self.counts)

    def claims(self, some: Neighbours, number: int, outputs: Sequence[Public]) -> dict[str, int]:
        """Units that one of them may lose, by what was claimed."""
        charged = sum(
            int(plan.charged(spent_of(outputs, q))[number])
            for q, plan in enumerate(some.made.plans)
        )
        claim, whole = "what the slots were charged", some.promised[number]
        if some.aside:
            claim = "what slots and what is left out were charged"
            charged += some.aside[number]
        return {claim: charged, **({"the budget": whole} if whole else {})}

    # ---- worlds that are replayed -------------------------------------------------------------

    @cached_property
    def _replayed(self) -> Streams:
        return self.streams if self.own else self.streams.narrowed()

    def stages(self) -> Iterator[Stage]:
        """See :class:`Audit`."""
        for number in range(STAGES):
            for some in self.neighbours(np.random.default_rng([self.seed, 911, number])):
                yield self._stage(some, number)

    def _stage(self, some: Neighbours, number: int) -> Stage:
        made, key = some.made, self.key(f"replay {number}")

        def play(world: World, plans: Sequence[Canaries]) -> Play:
            return lambda: self._replayed.public(key, world, plans, number)

        users = [
            Neighbour(
                whose,
                play(made, [plan.alone(i) for plan in made.plans]),
                partial(self.claims, some, i),
            )
            for i, whose in some.whose.items()
        ]
        everybody = Neighbour("everybody", play(some.strangers, made.plans))
        return Stage(play(made, made.plans), (everybody, *users), self.fullest)

    def whole_runs(self) -> Stage | None:
        """See :class:`Audit`."""
        return self.streams.whole_runs(self.classes, self.seed)

    # ---- runs with canaries -------------------------------------------------------------------

    def guessed(self, world: WorldOf, number: int) -> tuple[Guesses, ...]:
        """See :class:`Audit`."""
        k, kind = world
        random = np.random.default_rng([self.seed, k, self.kinds.index(kind), number])
        name, runs = f"{k} {kind} {number}", []
        several = [f"{name} {i}" for i in range(self.times.get(kind, 0))]
        for each in several or [name]:
            made = self.made(world, number, random)
            plans = self.flipped(world, made, random)
            outputs = self.run(made, plans, each)
            runs.append(
                [self.scored(world, made, plan, outputs, q) for q, plan in enumerate(plans)]
            )
        return tuple(map(joined, zip(*runs, strict=True)))

    def run(self, made: World, plans: Sequence[Canaries], name: str) -> list[Public]:
        """Release all slots of a world. Raises BudgetExceeded when a filter refuses."""
        outputs = published_in(self.streams.public(self.key(name), made, plans))
        self.ran(sum(map(len, made.others)), self.fullest(outputs))
        return outputs

    def users(self, world: WorldOf, made: World) -> list[tuple[int, int]]:
        """Of each stream, users of a canary that shows in publications, and in looks."""
        k, kind = world
        people, scene = int(self.streams.people.sizes[k]), self.streams.scene
        if kind == WINDOWS:
            return [(telling_group(TELLING, self.requirement(k).epsilon, people),) * 2]
        outputs, found = self.run(made, made.plans, f"trial {k} {kind}"), []
        for q, (mechanism, plan) in enumerate(zip(scene.mechanisms, made.plans, strict=True)):
            slots, seen = np.unique(plan.first), self.transcript(outputs, q, plan)
            spent, published = seen.spent[slots, k], seen.published[slots]
            telling = _TELLING_AND_GONE if kind == BINS and saves_up(mechanism) else _TELLING
            users = [
                telling_group(telling, float(np.median(costs)) if costs.size else telling, people)
                for costs in (spent[published & (spent > 0)], spent[~published & (spent > 0)])
            ]
            found.append((users[0], users[0 if kind == BINS else 1]))
        return found
