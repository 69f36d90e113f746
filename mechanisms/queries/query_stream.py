"""Releases of a query set: a stream for each query, and the filter over all of them.

Guarantee: over any `window` consecutive base slots, the releases of all queries that meet them
differ in distribution by at most a factor exp(epsilon_k) for a user of class k.
Adjacency: streams that differ in what one user did in these base slots: all of it added or removed;
or replaced.
Sensitivity: of a query's histogram in one of its slots, as `windows.py` has it.
Proof: a query with share a of the budget has the requirement (`Cut.most_in`, a epsilon_k) over its
own slots, which its own stream keeps. The window meets at most so many of these, however long each
of them is. Shares add up to 1 or less, each rounded down to whole units, and noise is independent
by query: the losses add up. The filter over all queries checks that on its own arithmetic.
Where shares are planned again, requirements of queries change: `replanning.py` has the proof.
Where bounds are chosen, what the look costs (`bounds.py`) is no part of what shares are of, and
counts in every window.
Where users count in a few slots only, of a window or of their lifetimes, `limits.py` has the proof.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.budgets import Requirements, Units, to_epsilon
from streamveil.mechanisms.core.identity import encoded
from streamveil.mechanisms.core.records import (
    ADD_REMOVE,
    ConfigurationError,
    Requirement,
    check_shares,
    unpromised,
)
from streamveil.mechanisms.driver.exact import Exact
from streamveil.mechanisms.driver.present_stream import Presence
from streamveil.mechanisms.driver.saved_state import (
    KIND,
    LIMIT,
    NOTHING_MORE,
    REQUIREMENTS,
    SENSITIVITY,
    SLOTS,
    USERS,
    Keeper,
    Parts,
)
from streamveil.mechanisms.driver.stream import ReleaseStream, check_order
from streamveil.mechanisms.presence.kept_share import Beyond
from streamveil.mechanisms.presence.limits import check_prices, known_sizes
from streamveil.mechanisms.protocol import Mechanism, Population, SlotRelease, SlotRevision
from streamveil.mechanisms.queries.bounds import set_aside
from streamveil.mechanisms.queries.cuts import Cut
from streamveil.mechanisms.queries.discovered import Excess, discovery_length, nodes_before
from streamveil.mechanisms.queries.fusing import observed_parts
from streamveil.mechanisms.queries.limits import (
    LimitedFilter,
    LimitedQuery,
    LivedQuery,
    priced_of,
    requirements_of,
)
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.query_filter import Charge, QueryFilter
from streamveil.mechanisms.queries.replanning import Plan, Replanning
from streamveil.mechanisms.queries.shares import Expected
from streamveil.mechanisms.queries.times import TimeSum, sums_after, sums_at_start, sums_of
from streamveil.mechanisms.queries.usual import Seen, Usual
from streamveil.mechanisms.queries.windows import sensitivity_of
from streamveil.mechanisms.randomness.noise import NoiseSource
from streamveil.mechanisms.registry import MECHANISMS, mechanism, parse

_LOG = logging.getLogger(__name__)

Counts = Integers
AnyStream = ReleaseStream | LimitedQuery

SHARES = "shares of the budget"
WEIGHTS = "weights or shares asked for"


@dataclass(frozen=True, eq=False)
class QueryEntry:
    """What one release of a query cost every class of users, as the filter booked it."""

    query: str
    """Its name."""
    slot: int
    """The slot of the query."""
    first_base_slot: int
    last_base_slot: int
    classes: tuple[Requirement, ...]
    """Windows in base slots."""
    users: npt.NDArray[np.int64]
    """Public class sizes, shape (K,)."""
    spent: npt.NDArray[np.float64]
    """Epsilon, shape (K,)."""
    spent_in_window: npt.NDArray[np.float64]
    """Epsilon of all releases so far, of all queries, in the fullest window of each class that
    meets these base slots, shape (K,)."""

    @property
    def unpromised(self) -> QueryEntry:
        """As of :class:`LedgerEntry`."""
        nothing = np.zeros_like(self.spent)
        classes = tuple(map(unpromised, self.classes))
        return replace(self, classes=classes, spent=nothing, spent_in_window=nothing)


NOTHING_BEYOND: Mapping[int, Beyond] = MappingProxyType({})


@dataclass
class QueryState:
    """All that a query set remembers between base slots."""

    queries: list[Any]
    """In the order of the query set: a `StreamState` of each, or a `PresentState` under a limit."""
    filter: QueryFilter | LimitedFilter
    usual: list[Usual | None]
    """Of each query whose figures are ratios, what is usual of it."""
    times: list[tuple[TimeSum, ...]]
    """Of each query what its longer times add up to so far."""
    plan: Plan | None = None
    """The shares in force, where they are planned again."""
    next_slot: int | None = None
    """The base slot that is due next; None before the first."""
    past: list[dict[int, Seen]] = field(default_factory=list)
    """Of each query whose figures are ratios, what was observed with its slots that are still to be
    revised, and with those that were revised last."""
    excess: list[Excess | None] = field(default_factory=list)
    """Of each query that discovers keys, which of them are to leave."""


class QueryStream:
    """Releases what is due with each base slot, in order, each query's slot once.

    The noise of a query is bound to the query, and to all of its counts so far: see
    :class:`ReleaseStream`. State of one configuration is refused by another.

    Args:
        query_set: what is asked.
        requirements: of each class, K of them, windows in base slots.
        sizes: public number of users of each class, shape (K,).
        shares: units of each query and class, int64, shape (Q, K): see `plan_shares`.
        noise: where randomness comes from; its slots are base slots.
        adjacency: what neighbouring streams differ in.
        context: everything else that shapes what is released, by name.
        revise: how many of its own slots later a slot of a query is revised, with no part in the
            budget (`SlotAnswer.of_revision` has the reason); 0 for never.
        guessed: as in :class:`Population`.
        replan: whether shares are planned again from what is released: see `replanning.py`. Under
            a limit they stay as they are.
        presences: in how many slots of each query users count, as `limits.presences_of` has it of
            these shares; None where they count in all.
        test_mode: whether exact counts are released in place of private ones: NOT private.
        until: no slot that begins after this base slot is released; None where the stream goes on.

    Raises ConfigurationError, with the query's name, for what a query or its mechanism cannot
    do, and for shares that are more than there is, or nothing.
    """

    SCHEMAS = {
        1: state_codec.record_schema(
            "QuerySet",
            next_slot=["null", "long"],
            filter="bytes",
            queries={"type": "array", "items": "bytes"},
            usual={"type": "array", "items": ["null", "bytes"]},
            times={"type": "array", "items": {"type": "array", "items": "bytes"}},
            plan=["null", Plan.SCHEMA],
            past={"type": "array", "items": {"type": "array", "items": Seen.SCHEMA}},
        )
    }
    SCHEMAS[2] = {
        **SCHEMAS[1],
        "fields": [
            *SCHEMAS[1]["fields"],
            {"name": "excess", "type": {"type": "array", "items": ["null", Excess.SCHEMA]}},
        ],
    }

    # From here on the prior of ratios has three averages.
    SCHEMAS[3] = SCHEMAS[2]

    def __init__(
        self,
        query_set: QuerySet,
        requirements: Requirements,
        sizes: npt.NDArray[np.int64],
        shares: Units,
        noise: NoiseSource,
        *,
        adjacency: str = ADD_REMOVE,
        context: Parts = NOTHING_MORE,
        revise: int = 0,
        guessed: int | None = None,
        replan: bool = False,
        presences: Sequence[Presence] | None = None,
        test_mode: bool = False,
        until: int | None = None,
    ) -> None:
        self.query_set = query_set
        self._until = until
        self.requirements = Requirements.of(requirements)
        self.sizes = sizes
        self._revise = revise
        self._longest = max(query.cut.longest for query in query_set)
        self._aside = set_aside(query_set, self.requirements, sizes)
        self.presences = presences
        self._test_mode = test_mode
        self._filter()  # refuses what cannot be accounted for
        _check_units(shares, query_set, self.requirements, self._aside)
        known: dict[str, Any] = {"adjacency": adjacency, "context": context, "guessed": guessed}
        limited: Sequence[Presence | None] = presences or [None] * len(shares)
        self.streams = tuple(
            self._stream(query, units, noise, revise=revise, presence=presence, **known)
            for query, units, presence in zip(query_set, shares, limited, strict=True)
        )
        self._replanning = None
        if replan and presences is None and not test_mode:
            self._replanning = self._replanned(sizes, adjacency, shares)
        self._in_force: tuple[Plan | None, tuple[AnyStream, ...]] = None, self.streams
        parts = {
            KIND: encoded("query set"),
            REQUIREMENTS: encoded(self.requirements),
            USERS: encoded(sizes),
            SLOTS: encoded(query_set.base),
            SENSITIVITY: encoded(adjacency),
            SHARES: encoded((shares, replan)),
            WEIGHTS: encoded(tuple((one.weight, one.share or 0.0) for one in query_set)),
            **{
                f"query {query.name}": encoded((number, query))
                for number, query in enumerate(query_set)
            },
            **({} if presences is None else {LIMIT: encoded([p.limits for p in presences])}),
            **context,
        }
        self.keeper = Keeper(noise, parts)

    def _replanned(self, sizes: Integers, adjacency: str, shares: Units) -> Replanning | None:
        """What plans shares again, if mechanisms can go on with others."""
        rates = Expected.of(self.query_set, self.requirements, sizes, adjacency)
        budgets = self.requirements.budgets - self._aside
        mechanisms = [stream.mechanism for stream in self.streams]
        made = Replanning(self.query_set, self.requirements, rates, budgets, shares, mechanisms)
        return made if made.able else None

    def _stream(
        self,
        query: Query,
        units: Units,
        noise: NoiseSource,
        *,
        adjacency: str,
        context: Parts,
        revise: int,
        guessed: int | None,
        presence: Presence | None,
    ) -> AnyStream:
        """The stream of a query over slots of its own, with its part of the budget."""
        try:
            check_mechanism(query)
            asked = requirements_of(query, self.requirements, units)
            neighbours = presence.adjacency if presence else adjacency
            lifetime = self.requirements.forever
            sensitivity = sensitivity_of(query, neighbours, lifetime=lifetime)
            if presence is None:
                check_shares(asked, sensitivity)
            else:
                check_prices(presence.limits, asked, presence.adjacency, sensitivity)
                asked = priced_of(presence)
            population = Population(
                asked,
                self.sizes,
                query.measure.size,
                sensitivity,
                self.query_set.slots_of(query).length,
                joined=presence is not None and presence.moving,
                quantum=query.measure.quantum,
                ratio=query.measure.parts if query.statistic.ratios else 0,
                summed=bool(query.times),
                graded=query.measure.graded,
                totals=query.measure.totals,
                guessed=guessed,
            )
            made: Mechanism[Any] = mechanism(query.mechanism, population, revise=revise)
        except ConfigurationError as error:
            raise ConfigurationError(f"query {query.name!r}: {error}") from error
        if self._test_mode:
            made = Exact(population)
        parts = {**context, "query": encoded(query)}
        noise = noise.of_slots(query.cut.of)
        if presence is None:
            return ReleaseStream(made, noise, context=parts)
        parts = {**parts, LIMIT: encoded(presence.limits)}
        limited = LivedQuery if lifetime else LimitedQuery
        return limited(made, noise, parts, presence, query)

    def _filter(self) -> QueryFilter | LimitedFilter:
        if self.presences is not None:
            return LimitedFilter(self.requirements, self.presences, self._aside)
        return QueryFilter(self.requirements, self._longest, self._aside)

    def start(self) -> QueryState:
        """State before the first base slot."""
        usual = [usual_at_start(query) for query in self.query_set]
        times = [sums_at_start(query) for query in self.query_set]
        plan = self._replanning.start() if self._replanning else None
        states = [stream.start() for stream in self.streams]
        past = [dict[int, Seen]() for _ in self.query_set]
        excess = [Excess.start(query) for query in self.query_set]
        return QueryState(states, self._filter(), usual, times, plan, past=past, excess=excess)

    def grown(self, state: QueryState, before: QuerySet) -> QueryState:
        """The state of a query set with other keys, with which this one continues.

        Args:
            state: of the query set `before`. It is not used again.
            before: the same query set with the keys that were listed before.
        """
        queries, usual, excess = list(state.queries), list(state.usual), list(state.excess)
        streams = self._under(state.plan)
        for q, (old, query) in enumerate(zip(before, self.query_set, strict=True)):
            if old == query:
                continue
            measure, known = query.measure, usual[q]
            origin = nodes_before(old, query, measure.nodes)
            cells = origin[:, None] * measure.parts + np.arange(measure.parts)
            stream = streams[q]
            assert isinstance(stream, ReleaseStream)
            cells[origin < 0] = -1
            queries[q] = stream.grown(queries[q], cells.ravel())
            nodes = len(query.tree.labels(query.domain))
            usual[q] = known and known.grown(nodes_before(old, query, nodes))
            so_far = excess[q]
            excess[q] = so_far and so_far.grown(nodes_before(old, query, query.domain.bins))
        return replace(state, queries=queries, usual=usual, excess=excess)

    def _under(self, plan: Plan | None) -> tuple[AnyStream, ...]:
        """The streams of the queries under a plan."""
        last, found = self._in_force
        if plan is None or plan.same(last):
            return found
        streams = [one for one in self.streams if isinstance(one, ReleaseStream)]
        budgets = zip(streams, plan.caps, plan.pace, strict=True)  # limited ones have no plan
        found = tuple(stream.resized(caps, pace) for stream, caps, pace in budgets)
        self._in_force = plan, found
        return found

    def due(self, base_slot: int) -> tuple[int, ...]:
        """Numbers of the queries of which a slot is released with a base slot, the slot's last."""
        return tuple(number for number, cut in self._asked_at(base_slot) if cut.due(base_slot))

    def due_slots(self, start: int, stop: int) -> Iterator[int]:
        """Base slots from one to before another with which any slot is released."""
        slot = start
        while asked := [cut for _, cut in self._asked_at(slot)]:
            slot = min(cut.end(slot) for cut in asked)
            if slot >= stop:
                return
            yield slot
            slot += 1

    def _asked_at(self, base_slot: int) -> list[tuple[int, Cut]]:
        """Queries, by number, of which the slot with a base slot is released, and their cuts."""
        cuts = enumerate(query.cut for query in self.query_set)
        if self._until is None or base_slot <= self._until:
            return list(cuts)
        return [(q, cut) for q, cut in cuts if cut.first(cut.of(base_slot)) <= self._until]

    def price(self, state: QueryState, base_slot: int) -> dict[int, Units]:
        """The most that a base slot can cost a user of each class, before its counts are known.

        Returns units by the number of each query that is due, shape (K,).
        """
        streams = self._under(state.plan)
        return {q: streams[q].price(state.queries[q]) for q in self.due(base_slot)}

    def release(
        self,
        state: QueryState,
        base_slot: int,
        counts: Mapping[int, Counts],
        beyond: Mapping[int, Beyond] = NOTHING_BEYOND,
    ) -> tuple[QueryState, dict[int, SlotRelease]]:
        """Release all that is due with the next base slot.

        Args:
            state: after the base slots before.
            base_slot: the first one, or a later one than before: nothing was due between.
            counts: by the number of each query that is due, its histogram by class over all base
                slots of its slot, int64, shape (K, size of its measure).
            beyond: of queries under a limit what does not count, in cells of the measure.

        Returns the state, and releases by query; their slots are those of the query.

        Raises:
            BudgetExceeded: when the filter of a query refuses, or the one over all of them;
                nothing of this base slot is released then.
            ValueError: for a base slot out of order, counts of other queries than those that are
                due, or counts that do not fit.
        """
        if state.next_slot is not None and state.next_slot != base_slot:
            skipped = self.due_slots(state.next_slot, base_slot)
            if base_slot < state.next_slot or any(True for _ in skipped):
                check_order(state.next_slot, base_slot)
        asked = self.due(base_slot)
        if set(counts) != set(asked):
            raise ValueError(
                f"with base slot {base_slot}, queries {list(asked)} are due; got counts of "
                f"{sorted(counts)}"
            )
        queries, releases, charges = list(state.queries), {}, []
        usual, times, past = list(state.usual), list(state.times), list(state.past)
        excess = list(state.excess)
        streams = self._under(state.plan)
        for q in asked:
            stream, (slot, first, last) = streams[q], self._places(q, base_slot)
            if isinstance(stream, LimitedQuery):
                above = beyond.get(q, Beyond.none())
                queries[q], releases[q] = stream.release(queries[q], slot, counts[q], above)
            else:
                queries[q], releases[q] = stream.release(queries[q], slot, counts[q])
            charges.append(Charge(first, last, releases[q].spent, q))
            known = usual[q]
            query, release = self.query_set.queries[q], releases[q]
            usual[q] = known and known.after(observed_parts(query, release))
            past[q] = self._past_after(past[q], slot, release, usual[q])
            times[q] = sums_after(times[q], query, slot, release)
            so_far = excess[q]
            if so_far is not None:
                length = discovery_length(query, self.requirements)
                cells = (
                    one.reshape(-1, query.measure.parts) for one in (release.values, release.stderr)
                )
                excess[q] = so_far.after(base_slot // length, *cells)
        state.filter.charge(base_slot, charges)
        plan = self._planned(state.plan, queries, releases)
        state = QueryState(queries, state.filter, usual, times, plan, base_slot + 1, past, excess)
        return state, releases

    def _planned(
        self,
        plan: Plan | None,
        queries: list[Any],
        releases: Mapping[int, SlotRelease],
    ) -> Plan | None:
        """The plan for the next base slot; states of queries whose share changes are replaced."""
        if self._replanning is None or plan is None:
            return None
        if not releases:
            return plan  # a pass may end with such a base slot, and shares do not depend on passes
        cost = {q: queries[q].filter.in_window for q in releases}
        later = self._replanning.after(plan, releases, cost)
        if not later.same(plan):
            _LOG.info("shares of the budget: %s", self._replanning.described(later))
            for q, stream in enumerate(self._under(later)):
                assert isinstance(stream, ReleaseStream)
                caps, pace = later.caps[q], later.pace[q]
                if (caps != plan.caps[q]).any() or (pace != plan.pace[q]).any():
                    queries[q] = stream.taking_over(queries[q], caps, pace)
        return later

    def _places(self, number: int, last: int) -> tuple[int, int, int]:
        """The slot of a query that ends with a base slot, with its first base slot and the last."""
        cut = self.query_set.queries[number].cut
        slot = cut.of(last)
        return slot, cut.first(slot), last

    def entries(
        self, state: QueryState, releases: Mapping[int, SlotRelease]
    ) -> tuple[QueryEntry, ...]:
        """The ledger of what was released last: `state` and `releases` of :meth:`release`."""
        if state.next_slot is None:
            return ()
        entries = []
        for q, release in releases.items():
            slot, first, last = self._places(q, state.next_slot - 1)
            entries.append(
                QueryEntry(
                    *(self.query_set.queries[q].name, slot, first, last),
                    tuple(self.requirements),
                    known_sizes(self.sizes),
                    to_epsilon(release.spent),
                    to_epsilon(state.filter.most(last - first + 1)),
                )
            )
        return tuple(entries)

    def usual_of(self, state: QueryState, number: int, slot: int) -> Usual | None:
        """What is usual of a slot that is revised now; None of figures that are no ratios."""
        usual, past = state.usual[number], state.past[number]
        return usual and usual.of_earlier(past[slot], max(past) - slot)

    def _past_after(
        self, past: dict[int, Seen], slot: int, release: SlotRelease, usual: Usual | None
    ) -> dict[int, Seen]:
        """What is remembered of a query's slots, with one more."""
        if usual is None or not self._revise:
            return {}
        first = release.revisions[0].slot if release.revisions else min(past, default=slot)
        return {one: seen for one, seen in (past | {slot: usual.seen}).items() if one >= first}

    def rest(self, state: QueryState, number: int) -> tuple[SlotRevision, ...]:
        """Revise the slots of a query that are still to be revised, with what there is.

        For the end of what is released of it. The state remembers that it was done.
        """
        return self._under(state.plan)[number].rest(state.queries[number])

    def encode(self, state: QueryState) -> bytes:
        """Bytes of the state, readable by this and later versions."""
        return self.keeper.write(self.pack(state))

    def decode(self, data: bytes) -> QueryState:
        """State of bytes.

        Raises ConfigurationError for bytes that were changed, or that another configuration wrote:
        see :meth:`Keeper.read`.
        """
        return self.unpack(self.keeper.read(data))

    def pack(self, state: QueryState) -> bytes:
        """The state as a record, for whoever seals it together with more."""
        record: dict[str, Any] = {
            "next_slot": state.next_slot,
            "filter": state.filter.encode(),
            "queries": [
                stream.encode(one)
                for stream, one in zip(self._under(state.plan), state.queries, strict=True)
            ],
            "usual": [one and one.encode() for one in state.usual],
            "times": [[one.encode() for one in sums] for sums in state.times],
            "plan": state.plan and state.plan.record(),
            "past": [[seen.record(slot) for slot, seen in one.items()] for one in state.past],
            "excess": [one and one.record() for one in state.excess],
        }
        return state_codec.pack(self.SCHEMAS, record)

    def unpack(self, data: bytes) -> QueryState:
        """The state of a record."""
        version, record = state_codec.unpack(self.SCHEMAS, data)
        excess = record["excess"] if version > 1 else [None] * len(self.query_set.queries)
        plan = self._replanning.start().read(record["plan"]) if self._replanning else None
        return QueryState(
            [
                stream.decode(one)
                for stream, one in zip(self._under(plan), record["queries"], strict=True)
            ],
            self._decoded_filter(record["filter"]),
            [
                one and one.decode(sums, averages=3 if version > 2 else 2)
                for one, sums in zip(self.start().usual, record["usual"], strict=True)
            ],
            [
                sums_of(sums, query)
                for sums, query in zip(record["times"], self.query_set, strict=True)
            ],
            plan,
            record["next_slot"],
            [
                {row["slot"]: Seen.read(row, usual.parts.shape[1:]) for row in rows if usual}
                for usual, rows in zip(self.start().usual, record["past"], strict=True)
            ],
            [
                Excess(one["slot"], np.array(one["by_bin"])) if one else Excess.start(query)
                for one, query in zip(excess, self.query_set, strict=True)
            ],
        )

    def _decoded_filter(self, written: bytes) -> QueryFilter | LimitedFilter:
        if self.presences is not None:
            return LimitedFilter(self.requirements, self.presences, self._aside).decode(written)
        return QueryFilter.decode(written, self.requirements, self._longest)


def usual_at_start(query: Query) -> Usual | None:
    """What is usual before the first slot; None of figures that are no ratios."""
    ratios = query.statistic.ratios
    if ratios is None:
        return None
    nodes = len(query.tree.labels(query.domain))
    return Usual.start(nodes, query.measure.parts, ratios)


def check_mechanism(query: Query) -> None:
    """Refuse a mechanism that draws lots for every unit, where an event adds more than one.

    Such a draw is private for any whole numbers, unit by unit. But it would take a thousand draws
    for an event's number, and keep some quanta of an event and others not.

    Raises ConfigurationError.
    """
    name, _ = parse(query.mechanism, MECHANISMS)
    if MECHANISMS[name].draws and query.statistic.weights.sum(axis=1).max() > 1:
        able = " or ".join(one.name for one in MECHANISMS.values() if not one.draws)
        raise ConfigurationError(
            f"mechanism {query.mechanism!r} draws lots for every unit of a count, and an event "
            f"adds many to a {query.statistic.name}: choose {able}"
        )


def _check_units(
    shares: Units, query_set: QuerySet, requirements: Requirements, aside: Units
) -> None:
    """Refuse shares that are no amounts, are nothing, or are more than is not set aside."""
    queries = len(query_set.queries)
    if shares.shape != (queries, len(requirements)) or shares.dtype != np.int64:
        raise ValueError(
            f"shares of {queries} queries and {len(requirements)} classes must be int64 units "
            f"of that shape; got {shares.dtype} of shape {shares.shape}"
        )
    if (shares <= 0).any():
        name = query_set.queries[int((shares <= 0).any(axis=1).argmax())].name
        raise ConfigurationError(f"query {name!r} has no share of the budget: give it some")
    left = requirements.budgets - aside
    for row in shares:
        if (row > left).any():
            k = int((row > left).argmax())
            raise ConfigurationError(
                f"the queries' shares of the budget of {requirements[k]} are more than all of it"
                f"{', less what is set aside' if aside.any() else ''}"
            )
        left -= row
