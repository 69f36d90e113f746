"""Streams of counts that are audited, and how a pipeline runs them: one, or those of queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.core.budgets import Requirements, Units, to_epsilon
from streamveil.mechanisms.core.cohorts import Moves
from streamveil.mechanisms.core.records import ADD_REMOVE, REPLACE
from streamveil.mechanisms.driver.dynamic_stream import DynamicStream
from streamveil.mechanisms.protocol import Population, Setting
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.query_stream import QueryStream
from streamveil.mechanisms.queries.shares import plan_shares
from streamveil.mechanisms.queries.simulated import answers_of, times_of
from streamveil.mechanisms.queries.windows import sensitivity_of
from streamveil.mechanisms.randomness.noise import NoiseSource
from streamveil.mechanisms.registry import can_revise, dynamic_mechanism, only_dynamic
from streamveil.pipelines.audit.canaries import Canaries
from streamveil.pipelines.audit.facts import Facts
from streamveil.pipelines.audit.findings import SHARE, WINDOW
from streamveil.pipelines.audit.replay import Stage
from streamveil.pipelines.audit.replay_worlds import MOST_BINS, REVISED
from streamveil.pipelines.audit.runs import (
    Exact,
    MakeDriver,
    Public,
    public,
    public_of_columns,
    releases_of,
)
from streamveil.pipelines.audit.whole_runs import answers_stage, of_bins, release_stage
from streamveil.pipelines.audit.worlds import LENGTH, LONGEST, Place, Scene, World, crowd

# Counts of a stream in a run of worst cases, of all slots, classes and cells: 128 MiB.
MOST_COUNTS = 1 << 24


@dataclass(frozen=True, eq=False)
class OneStream:
    """A mechanism over fixed requirements."""

    facts: Facts
    people: Population
    """The users and their requirements."""
    make: MakeDriver = Exact
    """What is audited in place of the exact driver."""
    names = ("",)
    """The names of the queries, if there are any."""
    whole = WINDOW
    """The claim about what one stream reveals of a window."""

    @cached_property
    def scene(self) -> Scene:
        """What worlds are made of."""
        place = Place.in_bins(self.people.bins, self.facts.each, self.facts.moves)
        return Scene(self.people.requirements, (self.facts.mechanism,), (self.people,), (place,))

    def narrowed(self) -> OneStream:
        """The same with few bins, which runs fast."""
        return replace(self, people=replace(self.people, bins=min(self.people.bins, MOST_BINS)))

    def public(
        self, key: bytes, made: World, plans: Sequence[Canaries], number: int = 0
    ) -> Iterator[tuple[int, Public]]:
        """Everything that a run publishes, for one base slot after the other.

        Args:
            key: 32 bytes.
            made: the input, from base slot 0 on.
            plans: the canaries of each stream.
            number: number of a replayed run, which decides if slots are revised.

        Raises BudgetExceeded when a filter refuses.
        """
        (counts,), text = made.counts(plans), self.facts.mechanism
        if self.make is Exact and can_revise(text) and number % 2:
            return public(Exact(text, self.people, key, REVISED), counts)
        return public(self.make(text, self.people, key), counts)

    def promised(self, outputs: Sequence[Public], q: int, k: int) -> Floats:
        """The largest possible cost for a user of a class in each slot's window, shape (T,)."""
        return np.full(len(releases_of(outputs)), self.people.requirements[k].epsilon)

    def whole_runs(self, classes: Sequence[int], seed: int) -> Stage | None:
        """Whole runs that begin with events; None for a driver without a pipeline."""
        if self.make is not Exact:
            return None
        facts, asked, guessed = self.facts, self.asked, self.people.guessed
        return release_stage(
            [asked[k] for k in classes],
            bins=self.people.bins,
            seed=seed,
            most=facts.each,
            guessed=classes.index(guessed) if guessed in classes else None,
            mechanism=facts.mechanism,
            adjacency=facts.adjacency,
            **self.arguments(classes),
        )

    @property
    def asked(self) -> Requirements:
        """What users ask for."""
        return self.people.requirements

    def arguments(self, classes: Sequence[int]) -> dict[str, Any]:
        """Others of :func:`streamveil.release`, where users are of these classes."""
        text = self.facts.mechanism
        return {"revise": REVISED if can_revise(text) and not only_dynamic(text) else None}


@dataclass(frozen=True, eq=False)
class ChangingStream(OneStream):
    """A mechanism over requirements that may change; where a world has no stories, they stay."""

    horizon: int = field(kw_only=True)
    """The longest window that may be asked for."""

    def public(
        self, key: bytes, made: World, plans: Sequence[Canaries], number: int = 0
    ) -> Iterator[tuple[int, Public]]:
        """See :class:`OneStream`. `asked` is the requirement of each column of counts."""
        (counts,), people = made.counts(plans), self.people
        asked, known = people.requirements.as_changing, len(people.requirements)
        users = self.users(plans[0], counts.shape[1])[known:]
        sizes = people.sizes.copy()
        sizes[made.of_class] += users.sum()
        setting = Setting(people.bins, self.horizon, people.sensitivity)
        stream = DynamicStream(
            *(dynamic_mechanism(self.facts.mechanism, setting), asked, sizes, NoiseSource(key)),
            default=people.guessed,
        )
        moves = {}
        for slot in {one.change for one in made.stories}:
            some = [i for i, one in enumerate(made.stories) if one.change == slot and users[i]]
            if some:
                later = np.stack([made.stories[i].later for i in some])
                children = known + np.array(some)
                parents = np.full(children.size, made.of_class)
                moves[slot] = Moves(parents, children, users[some], later)
        cohorts = np.append(np.arange(known), np.full(users.size, made.of_class))
        return public_of_columns(stream, counts, asked[cohorts], cohorts, moves)

    def users(self, plan: Canaries, columns: int) -> Integers:
        """Of each of so many columns of counts, those of canaries behind those of classes."""
        known = self.people.sizes
        sizes = np.append(known, np.zeros(columns - known.size, np.int64))
        own = plan.columns >= known.size
        np.add.at(sizes, plan.columns[own], plan.users[own])
        return sizes


@dataclass(frozen=True, eq=False)
class Queries:
    """A query set and whom it is asked about: all of it is public."""

    query_set: QuerySet
    requirements: Requirements
    """Of each class, K of them, windows in base slots."""
    sizes: Integers
    """Users of each class, shape (K,)."""
    shares: Units
    """Of each query and class at first, shape (Q, K): they are planned again from answers."""
    adjacency: str = ADD_REMOVE
    guessed: int | None = None
    """The class whose size is only a guess, as of :class:`Population`."""
    whole = SHARE

    @classmethod
    def of(
        cls,
        query_set: QuerySet,
        requirements: Requirements,
        sizes: Integers,
        adjacency: str,
        guessed: int | None = None,
    ) -> Queries:
        """With the shares that a pipeline plans. Raises ConfigurationError."""
        _, shares = plan_shares(query_set, requirements, sizes, adjacency=adjacency)
        return cls(query_set, requirements, sizes, shares, adjacency, guessed)

    @property
    def people(self) -> Population:
        """See :class:`OneStream`."""
        return Population(self.requirements, self.sizes, 1)

    @property
    def names(self) -> Sequence[str]:
        """See :class:`OneStream`."""
        return tuple(query.name for query in self.query_set)

    @cached_property
    def scene(self) -> Scene:
        """See :class:`OneStream`."""
        return Scene(
            self.requirements,
            tuple(query.mechanism for query in self.query_set),
            tuple(one.mechanism.population for one in self.stream(bytes(32)).streams),
            tuple(_place(query, self.adjacency) for query in self.query_set),
        )

    def stream(self, key: bytes) -> QueryStream:
        """As a pipeline drives it. Raises ConfigurationError for what a query cannot do."""
        return QueryStream(
            *(self.query_set, self.requirements, self.sizes, self.shares, NoiseSource(key)),
            adjacency=self.adjacency,
            guessed=self.guessed,
            replan=True,
        )

    def widened(self, bins: int) -> Queries:
        """The same of worst cases: every query has so many bins, and there are users enough.

        Of queries that would take too much memory for a run there are fewer.
        """
        trip = self.scene.round_trip
        slots = max(LENGTH, LONGEST * trip, self.requirements.longest + 2 * trip)
        most = [  # two bins are needed to move events
            max(2, 2 * MOST_COUNTS // (slots // one.fixed_slots * cells))
            for one in self.query_set
            for cells in (len(self.requirements) * of_bins(one, 2).measure.size,)
        ]
        wide = self._of_bins([min(bins, one) for one in most])
        asked = [population.requirements for population in wide.scene.populations]
        sizes = np.max([crowd(one, self.sizes, bins) for one in asked], axis=0)
        return replace(wide, sizes=sizes)

    def narrowed(self) -> Queries:
        """See :class:`OneStream`."""
        return self._of_bins([min(one.domain.bins, MOST_BINS) for one in self.query_set])

    def _of_bins(self, bins: Sequence[int]) -> Queries:
        queries = tuple(
            one if one.domain.bins == number else of_bins(one, number)
            for one, number in zip(self.query_set, bins, strict=True)
        )
        return replace(self, query_set=replace(self.query_set, queries=queries))

    def public(
        self, key: bytes, made: World, plans: Sequence[Canaries], number: int = 0
    ) -> Iterator[tuple[int, Public]]:
        """See :class:`OneStream`. Ends with all answers, for slots and for rollups."""
        stream, published, counts = self.stream(key), list[Public](), made.counts(plans)
        state, done = stream.start(), [0] * len(counts)
        for base_slot in range(len(counts[0]) * self.scene.lengths[0]):
            caps = state.plan.caps if state.plan else self.shares
            prices = stream.price(state, base_slot)
            due = {q: counts[q][done[q]] for q in stream.due(base_slot)}
            state, released = stream.release(state, base_slot, due)
            for q in released:
                done[q] += 1
            ledger = stream.entries(state, released)
            published.append(
                {"prices": prices, "caps": caps, "releases": released, "ledger": ledger}
            )
            yield base_slot, published[-1]
        yield len(published), {"answers": list(self._answers(published))}

    def _answers(self, outputs: Sequence[Public]) -> Iterator[object]:
        for q, query in enumerate(self.query_set):
            releases = releases_of(outputs, q)
            yield list(answers_of(query, releases))
            yield list(times_of(query, self.query_set, releases, 0).items())

    def promised(self, outputs: Sequence[Public], q: int, k: int) -> Floats:
        """See :class:`OneStream`. Uses the share of the budget that is planned for the query."""
        caps = [one["caps"][q, k] for one in outputs if q in one.get("releases", ())]
        return to_epsilon(np.array(caps, np.int64))

    def whole_runs(self, classes: Sequence[int], seed: int) -> Stage:
        """See :class:`OneStream`."""
        return answers_stage(
            self.query_set,
            [self.requirements[k] for k in classes],
            seed=seed,
            guessed=classes.index(self.guessed) if self.guessed in classes else None,
            adjacency=self.adjacency,
        )

    def padded(self, counts: Sequence[Integers], first_slot: int) -> tuple[Integers, ...]:
        """Counts with empty slots before and after, so that all slots begin and end there.

        Args:
            counts: as of :func:`simulate_query_set`.
            first_slot: base slot with which they begin.

        Returns counts that hold a window of every class.
        """
        trip = self.scene.round_trip
        begin = first_slot // trip * trip
        tables = list(zip(self.query_set, counts, strict=True))
        end = max(
            (first_slot // one.fixed_slots + len(table)) * one.fixed_slots for one, table in tables
        )
        longest = max(self.scene.period(k) for k in range(len(self.requirements)))
        end = begin + max(-(-(end - begin) // trip) * trip, longest)
        found = []
        for one, table in tables:
            before = first_slot // one.fixed_slots - begin // one.fixed_slots
            after = (end - begin) // one.fixed_slots - before - len(table)
            found.append(np.pad(table, ((before, after), (0, 0), (0, 0))))
        return tuple(found)


Streams: TypeAlias = OneStream | Queries
"""What is audited: streams over the same base slots, which share the budgets of users."""


def _place(query: Query, adjacency: str) -> Place:
    """Groups add as much to a query as users may; others are in the next bin, or say less."""
    weights, bins = query.measure.weights, query.domain.bins
    replaced = adjacency == REPLACE
    step = int(weights.sum(axis=1).argmax())
    both = (replaced or query.fixed_slots > 1) and query.measure.size > 1
    own = np.arange(0, bins - bins % 2, 2) if both and bins > 1 else np.arange(bins)
    instead: tuple[tuple[Integers, int], ...] = ()
    if both and bins > 1:
        instead = _cells(query, own + 1, step)
    elif both:
        instead = _cells(query, own, int(np.abs(weights - weights[step]).sum(axis=1).argmax()))
    most = sensitivity_of(query, adjacency)
    return Place(_cells(query, own, step), instead, replaced, most, query.fixed_slots)


def _cells(query: Query, bins: Integers, step: int) -> tuple[tuple[Integers, int], ...]:
    """Cells to which events of a step add in each of some bins, and how much all of a user's do."""
    measure = query.measure
    added = measure.weights[step]
    return tuple(
        (nodes * measure.parts + part, int(added[part]) * query.max_contributions)
        for nodes in measure.above[bins].T
        for part in np.flatnonzero(added).tolist()
    )
