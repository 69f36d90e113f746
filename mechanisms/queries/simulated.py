"""Query sets on counts in memory: what a run releases and spends, without Beam."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.budgets import Requirements, Units
from streamveil.mechanisms.core.records import (
    ADD_REMOVE,
    ConfigurationError,
    Requirement,
    as_requirement,
)
from streamveil.mechanisms.protocol import SlotRelease, SlotRevision
from streamveil.mechanisms.queries.answers import Answer
from streamveil.mechanisms.queries.cuts import Months
from streamveil.mechanisms.queries.fusing import observed_parts
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.query_stream import (
    QueryEntry,
    QueryStream,
    usual_at_start,
)
from streamveil.mechanisms.queries.shares import plan_shares
from streamveil.mechanisms.queries.slot_answers import answer_of, figures_of
from streamveil.mechanisms.queries.times import sums_after, sums_at_start
from streamveil.mechanisms.randomness.noise import NoiseSource


@dataclass(frozen=True, eq=False)
class QuerySimulation:
    """What a simulated query set released and spent."""

    releases: Mapping[str, tuple[SlotRelease, ...]]
    """Of each query by name, one for each of its slots."""
    entries: tuple[QueryEntry, ...]
    """What each release cost, in the order of releases."""
    shares: Units
    """Units of each query and class at first, shape (Q, K)."""
    last_shares: Units
    """In the end."""
    rest: Mapping[str, tuple[SlotRevision, ...]]
    """Of each query by name what is revised after the last release."""

    def counts(self, query: str) -> Integers:
        """Released histograms of a query, shape (slots, cells)."""
        return np.array([release.counts for release in self.releases[query]])


def simulate_query_set(
    query_set: QuerySet,
    counts: Mapping[str, npt.ArrayLike],
    requirements: Sequence[Requirement | tuple[int, float]],
    sizes: npt.ArrayLike,
    key: bytes,
    *,
    shares: Units | None = None,
    adjacency: str = ADD_REMOVE,
    guessed: int | None = None,
    first_slot: int = 0,
    revise: int = 0,
) -> QuerySimulation:
    """Run a query set over whole streams.

    Args:
        query_set: what is asked.
        counts: by the name of each query its bounded histograms by slot, class and cell of its
            measure, whole numbers, shape (slots, K, cells). They are those of the slots that end
            with `first_slot` or later, as many as the longest of all streams holds.
        requirements: of each class, K of them, windows in base slots.
        sizes: public number of users of each class, shape (K,).
        key: 32 secret bytes; the same key and counts give the same result.
        shares: units of each query and class, int64, shape (Q, K), for good; if None they are
            planned, and planned again from what is released.
        adjacency: what neighbouring streams differ in.
        guessed: the class whose size is only a guess; None if all are known.
        first_slot: base slot with which the streams begin.
        revise: how many of its own slots later a slot of a query is revised; 0 for never.

    Raises:
        ConfigurationError: for what a query or its mechanism cannot do, or counts of other
            queries.
        ValueError: for counts of another shape or length, or a key that is not 32 bytes.
    """
    asked = Requirements([as_requirement(one) for one in requirements])
    people = np.asarray(sizes, np.int64)
    replan = shares is None
    if shares is None:
        _, shares = plan_shares(query_set, asked, people, adjacency=adjacency)
    stream = QueryStream(
        *(query_set, asked, people, shares, NoiseSource(key)),
        adjacency=adjacency,
        revise=revise,
        guessed=guessed,
        replan=replan,
    )
    tables = _checked(query_set, counts, len(asked), first_slot)
    state = stream.start()
    releases: dict[str, list[SlotRelease]] = {query.name: [] for query in query_set}
    entries: list[QueryEntry] = []
    firsts = [query.cut.of(first_slot) for query in query_set]
    for base_slot in range(first_slot, _end(query_set, tables, first_slot)):
        due = {
            q: tables[q][query_set.queries[q].cut.of(base_slot) - firsts[q]]
            for q in stream.due(base_slot)
        }
        state, released = stream.release(state, base_slot, due)
        entries += stream.entries(state, released)
        for q, release in released.items():
            releases[query_set.queries[q].name].append(release)
    found = {name: tuple(each) for name, each in releases.items()}
    last = state.plan.caps if state.plan else shares
    rest = {query.name: stream.rest(state, q) for q, query in enumerate(query_set)}
    return QuerySimulation(found, tuple(entries), shares, last, rest)


def answers_of(
    query: Query,
    releases: Sequence[SlotRelease],
    some: Collection[int] | None = None,
) -> Iterator[Answer]:
    """The figures of slots in a row, as a run tells them.

    Args:
        query: what was asked.
        releases: of each slot from the first on.
        some: slots of which to tell; all if None.
    """
    usual = usual_at_start(query)
    for slot, release in enumerate(releases):
        usual = usual and usual.after(observed_parts(query, release))
        if some is None or slot in some:
            known = release.unshrunk, release.common
            yield answer_of(query, release.values, release.stderr, usual, *known)


def times_of(
    query: Query, query_set: QuerySet, releases: Iterable[SlotRelease], first: int
) -> dict[int | Months, list[Answer]]:
    """The figures of longer times that are over, as a run tells them, by their length.

    Args:
        query: what was asked.
        query_set: it is a query of.
        releases: of its slots in a row.
        first: number of the first slot.
    """
    usual, sums = usual_at_start(query), sums_at_start(query)
    found: dict[int | Months, list[Answer]] = {longer: [] for longer in query.times}
    for slot, release in enumerate(releases, first):
        usual = usual and usual.after(observed_parts(query, release))
        sums = sums_after(sums, query, slot, release)
        for longer, one in zip(query.times, sums, strict=True):
            if one.ended:
                found[longer].append(figures_of(one, query, query_set, usual))
    return found


def _checked(
    query_set: QuerySet, counts: Mapping[str, npt.ArrayLike], classes: int, first_slot: int
) -> list[Integers]:
    names = [query.name for query in query_set]
    if set(counts) != set(names):
        raise ConfigurationError(
            f"counts are of the queries {', '.join(counts)}; the query set asks "
            f"{', '.join(names)}: give those of each"
        )
    tables = []
    for query in query_set:
        table, size = np.asarray(counts[query.name]), query.measure.size
        if table.ndim != 3 or table.shape[1:] != (classes, size):
            raise ValueError(
                f"counts of query {query.name!r} have shape {table.shape}; give (slots, "
                f"{classes} classes, {size} cells)"
            )
        if not np.issubdtype(table.dtype, np.integer):
            raise ValueError(
                f"counts of query {query.name!r} are {table.dtype}; give whole numbers"
            )
        tables.append(table.astype(np.int64))
    end = _end(query_set, tables, first_slot)
    for query, table in zip(query_set, tables, strict=True):
        slots = query.cut.of(end) - query.cut.of(first_slot)
        if len(table) != slots:
            raise ValueError(
                f"counts of query {query.name!r} are of {len(table)} slots; "
                f"{end - first_slot} base slots have {slots}"
            )
    return tables


def _end(query_set: QuerySet, tables: Sequence[Integers], first_slot: int) -> int:
    """The base slot after those that the longest stream covers."""
    covered = zip(query_set, tables, strict=True)
    return max(query.cut.first(query.cut.of(first_slot) + len(table)) for query, table in covered)
