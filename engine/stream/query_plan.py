"""What a release of a query set is made of, on any host: public facts, and how they are used."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from streamveil.engine.capabilities import (
    AUTO_BOUNDS_OF_CHANGING,
    OF_DISCOVERED,
    OF_GROWING,
    OF_SETS,
)
from streamveil.engine.count.bounding import Bounding
from streamveil.engine.count.bounds_choice import BoundsChoice, Sample, bounds_from
from streamveil.engine.count.counter import BlockKey
from streamveil.engine.count.limit_choice import LimitChoice
from streamveil.engine.count.query_counter import (
    QueryCounter,
    QueryLayout,
    going_on,
    pack_queries,
)
from streamveil.engine.count.query_limits import QueryLimits
from streamveil.engine.description import (
    Description,
    Facts,
    classes_of,
    data_of,
    facts_of_domain,
    facts_of_limit,
    promised,
)
from streamveil.engine.encode.event_mapper import Columns
from streamveil.engine.encode.query_mapper import QueriesMapper, columns_read
from streamveil.engine.guarantees import guarantee_to_users
from streamveil.engine.messages import Kind, Message
from streamveil.engine.plan_kinds import PlanKind
from streamveil.engine.slot_clock import SlotClock
from streamveil.engine.stream.central_plan import CentralPlan
from streamveil.engine.stream.drivers import one_driver
from streamveil.engine.stream.guessed_users import GuessedUsers
from streamveil.engine.stream.noise_keys import NoiseKey, SameKey
from streamveil.engine.stream.plan_checks import (
    check_first_slot,
    check_last_slot,
    check_limit,
    check_look,
    check_resume,
    check_shards,
    check_test_mode,
    ignoring_deltas,
    refuse_endless_look,
    take_options,
)
from streamveil.engine.stream.query_driver import PublishAnswers, QueryDriver, QueryLedgers
from streamveil.engine.stream.release_slots import ReleaseConfig
from streamveil.engine.stream.saved_queries import Saved
from streamveil.engine.stream.steps import Steps
from streamveil.mechanisms.core.arguments import is_true, refuse, registry_of
from streamveil.mechanisms.core.budgets import Units, to_epsilon
from streamveil.mechanisms.core.identity import encoded
from streamveil.mechanisms.core.parameter_checks import (
    MAX_REJECTED,
    check_range,
    share,
    whole,
)
from streamveil.mechanisms.core.records import (
    ADD_REMOVE,
    DISTINCT,
    UNIFORM,
    ConfigurationError,
    QueryColumn,
    Requirement,
    Slots,
    format_time,
)
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.core.wording import opt
from streamveil.mechanisms.driver.present_stream import Presence
from streamveil.mechanisms.driver.saved_state import (
    CHANGING,
    COLUMNS,
    LIMIT,
    STREAM,
    TEST_MODE,
    USERS,
    Parts,
    of_parts,
)
from streamveil.mechanisms.presence.choice import Auto, Look
from streamveil.mechanisms.presence.limits import EVERY_SLOT, Limit, expected_sizes
from streamveil.mechanisms.queries.bounds import are_known, looks_at, set_aside, with_bounds
from streamveil.mechanisms.queries.cuts import cut_of
from streamveil.mechanisms.queries.discovered import (
    Discoverer,
    Excess,
    Listed,
    declared,
    discovering,
    undiscovered,
    with_keys,
)
from streamveil.mechanisms.queries.limits import all_limits, presences_of, under_limits
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.query_stream import QueryEntry
from streamveil.mechanisms.queries.shares import plan_shares
from streamveil.mechanisms.queries.slot_answers import RevisedAnswer, SlotAnswer
from streamveil.mechanisms.randomness.noise import NoiseKeys, NoiseSource
from streamveil.mechanisms.registry import MECHANISMS, parse

if TYPE_CHECKING:
    from streamveil.engine.count.changes import ChangeMapper

QUERIES = "queries"
"""Name of the stream."""

_LOGGER = logging.getLogger("streamveil")


@dataclass(eq=False)
class QueryPlan(CentralPlan):
    """Answers to many queries from one pass over the events: see :class:`PrivateAnswers`.

    Raises ConfigurationError at construction for options that do not fit.
    """

    plan_kind: ClassVar[Literal[PlanKind.QUERIES]] = PlanKind.QUERIES
    RECORDS: ClassVar[tuple[type, type, type]] = SlotAnswer, QueryEntry, RevisedAnswer
    """Types of a result, of an entry of the ledger and of a revision."""

    query_set: QuerySet
    """What is asked."""
    registry: Registry
    """The public table of users and requirements, windows in base slots: see
    :class:`PrivateHistograms`."""
    columns: Columns
    """Which columns hold user and time, and as values all that queries read: see
    :func:`columns_for`."""
    shares: Units | None = None
    """Units of the budget for each query and class, for good, int64, shape (Q, K). When None
    they are planned by :func:`plan_shares`, from public facts alone, and again from answers."""
    adjacency: str = ADD_REMOVE
    """What neighbouring inputs differ in: see :class:`PrivateHistograms`."""
    noise_key: NoiseKey | None = field(default=None, repr=False)
    """32 secret bytes, or a picklable way to get them, which is asked here and by every worker;
    fresh ones when None."""
    first_slot: int | None = None
    """First base slot; events before it are rejected. An unbounded input needs one."""
    last_slot: int | None = None
    """Last base slot; events after it are rejected."""
    shards: int = 1
    """Parts into which the users of a busy slot are split while counting, by query."""
    max_rejected: float = MAX_REJECTED
    """Share of the events of a bounded input, from 0 to 1, that may be rejected: see
    :class:`PrivateHistograms`. An event that meets no query's conditions is no loss."""
    may_be_empty: bool = False
    """Whether a bounded input without any event is quiet, rather than lost."""
    resume: bytes | None = field(default=None, repr=False)
    """The state of an earlier run, whose users' ledgers go on in this one, as do slots that were
    not over; `first_slot` must be the base slot that came next there, and all else of the release
    the same."""
    ends: bool = True
    """Whether the stream ends with the last slot. Where a run goes on from this one, slots of
    queries that are not over then are answered there, and the state keeps their events."""
    stream_start: int | None = None
    """First base slot of the stream that is resumed, if it is known: the result of a slot which
    that cuts says so."""
    limit: Limit | Auto | None = None
    """In how many slots of each query a user counts: then these may cost more, and noise is less.
    See `mechanisms/queries/limits.py`. It is left out for queries and classes where it does not
    pay. With a `Lifetime` it is one of lifetimes (`in_life`)."""
    revise: int = 0
    """How many of its own slots later every slot of every query is revised, for `revisions`, which
    costs no budget; 0 for never. All queries must be of mechanisms that can. Longer times are not
    revised."""
    revise_rest: bool | None = None
    """Whether the slots that are still to be revised are revised with the last slot, with what
    there is; None if the stream ends there."""
    changing: bool = False
    """Whether requirements change, in this run or a later one that goes on from its state; what
    goes on from such a state does so in any case. A user pays in each slot of a query by the
    smallest epsilon that was in force a longest window back: see `mechanisms/queries/limits.py`.
    Then the limit is one for all, as for a single count."""
    longest_window: int | None = None
    """The longest window that a change of requirement may ask for, in base slots: public. The
    longest of the registry when None."""
    test_mode: bool = False
    """Whether exact counts are released in place of private ones: see :class:`HistogramPlan`."""
    delta: float | None = None
    """The probability with which the discovery of keys may fail, over any window, for users whose
    requirement gives no delta; None where no keys are discovered."""
    growing: bool = False
    """Whether keys are discovered while the stream runs, as in a stream that is released in passes.
    Each key is then listed from the base slot after the discovery slot in which it was found, until
    it leaves at the end of another one. Otherwise, all keys of a bounded input are listed from its
    first slot on."""
    discovery: bytes = field(default=b"", repr=False)
    """State of the discovery of keys for the next pass. Its pairs are SECRET."""
    units: Units = field(init=False, repr=False)
    """What each query may cost each class at first, shape (Q, K)."""
    presences: tuple[Presence, ...] | None = field(init=False, repr=False)
    """The limits of each query; None where users count in every slot."""

    def __post_init__(self) -> None:
        """Refuse at once what cannot work."""
        if not isinstance(self.query_set, QuerySet):
            refuse("query_set", self.query_set, "give a QuerySet of queries")
        self.registry = registry_of(self.registry)
        if not discovering(self.query_set):
            self.registry = ignoring_deltas(self.registry)
        take_options(self)
        check_test_mode(self)
        self.ends = is_true(self.ends, "ends")
        self.columns = Columns.of(self.columns)
        self._check_columns()
        self._take_changes()
        self._check_discovered()
        if self._dynamic:
            self._check_dynamic()
            self._known = self._up_to_longest()
        self._key = SameKey.of(self.noise_key)
        self.shards = whole("shards", self.shards)
        self.max_rejected = share("max_rejected", self.max_rejected)
        check_range(self.slots, self.first_slot, self.last_slot)
        saved = None
        self.excess: Sequence[Excess | None] = ()
        """Of each query, which of its keys are to leave, if an earlier run has released anything.
        """
        if self.resume is not None:
            saved = Saved.read(self.resume, NoiseSource(self._key(), QUERIES).sealing_key)
            self._take_listed(saved)
        if self.shares is not None and not isinstance(self.shares, np.ndarray):
            refuse("shares", self.shares, "give an array of units, such as plan_shares makes")
        self.units = self._at_first(saved)
        self.presences = self._limited(saved)
        _ = self.looks  # refuses what is too small
        driver = self.ledgers(self.layout(bounded=True)).make()
        self._kept: list[Message] = []
        if self.resume is not None:
            state = driver.decode(self.resume)
            check_resume(driver.next_slot(state), self.first_slot)
            self.excess = state.excess
            self._kept = driver.kept(self.resume)
            for message in self.counters:
                check_shards(message.shards, 2 * len(self.query_set.queries), self.shards)

    def _take_listed(self, saved: Saved) -> None:
        """Use the bounds that were chosen earlier, and the keys that were found earlier."""
        if undiscovered(self.query_set):
            if self.growing and not saved.discovery:  # nobody knows what its discovery has spent
                raise ConfigurationError(
                    "this state is not of a stream whose keys are discovered in passes: use the "
                    "options that it was written with, or start a new stream, which spends the "
                    "users' budgets again"
                )
            self.discovery = saved.discovery
        self.query_set = saved.asked(self.query_set)

    def _check_discovered(self) -> None:
        """Refuse what cannot be combined with the discovery of keys. Raises ConfigurationError."""
        names = [query.name for query in discovering(self.query_set)]
        if not names:
            if self.delta is not None:
                raise ConfigurationError(
                    f"delta is {self.delta} ({opt.delta}), and no keys are discovered: leave it "
                    "out, because all results have delta 0, or write keys: discover"
                )
            return
        refused = {
            "delta": self.delta is None,
            "changing": self._dynamic,
            "state": not self.growing and (self.resume is not None or not self.ends),
        }
        for name, given in refused.items():
            if given:
                raise ConfigurationError(f"query {names[0]!r}: {OF_DISCOVERED[name]}")
        if self.growing:
            self._check_growing()
        elif undiscovered(self.query_set):
            self.discoverers()  # refuses a budget that is too small

    def _check_growing(self) -> None:
        """Refuse what is not possible if keys are found later. Raises ConfigurationError."""
        for one in self.discoverers():
            query, slots = one.query, one.query.slots
            name, _ = parse(query.mechanism, MECHANISMS)
            refused = {
                "test_mode": self.test_mode,
                "lifetime": one.whole,
                "revise": bool(self.revise),
                "limit": self.limit is not None or bool(self.registry.max_slots),
                "rollups": bool(query.times),
                "slots": not isinstance(slots, int) or one.length % slots > 0,
                "keep": query.keep == DISTINCT,
                "mechanism": not MECHANISMS[name].grows,
            }
            stated = {
                "slots": f"; a slot of this query is {self.query_set.slots_of(query).text}, and a "
                f"discovery slot is {one.length} times {self.slots.text}",
                "mechanism": f"; the mechanism of this query is {name}",
            }
            for reason, given in refused.items():
                if given:
                    raise ConfigurationError(
                        f"query {query.name!r}: {OF_GROWING[reason]}{stated.get(reason, '')}"
                    )

    def next_slot(self, state: bytes) -> int | None:
        """The base slot after the last one of a state; None if the state has no slot.

        Raises ConfigurationError for bytes that were changed.
        """
        slot = Saved.read(state, NoiseSource(self._key(), QUERIES).sealing_key).slot
        return None if slot is None else slot + 1

    @property
    def discovers(self) -> bool:
        """Whether keys must be discovered before the events are released."""
        some = discovering if self.growing else undiscovered
        return bool(some(self.query_set))

    def discoverers(self) -> list[Discoverer]:
        """What discovers, or has discovered, the keys of each query that has none of its own."""
        known, deltas = self._known.classes, self._deltas
        return [
            Discoverer(query, self.query_set, known, self._sizes, deltas, self.adjacency)
            for query in discovering(self.query_set)
        ]

    @property
    def _deltas(self) -> tuple[float, ...]:
        """The delta of each class, if keys are discovered, shape (K,)."""
        assert self.delta is not None
        return self._known.deltas_or(self.delta)

    @property
    def largest_delta(self) -> float:
        """The largest delta of a class; 0 where no keys are discovered."""
        return 0.0 if self.delta is None else max(self._deltas)

    @property
    def discovery_ranges(self) -> list[int]:
        """The last base slot of each part of the range in which the same keys are listed."""
        if not self.growing or self.first_slot is None or self.last_slot is None:
            return []
        first, last = self.first_slot, self.last_slot
        lengths = {one.length for one in self.discoverers()}
        ends = {end for one in lengths for end in range(first + (-first - 1) % one, last, one)}
        return sorted({*ends, last})

    def discovery_key(self) -> NoiseKeys:
        """The secret from which the draws and the noise of a discovery are derived."""
        return self._key().derived("discovery of keys")

    def discovery_identity(self, query: Query) -> bytes:
        """All public facts that shape the discovery of a query's keys."""
        return of_parts({**self.context, "query": encoded(declared(query))})

    def with_keys(self, found: Mapping[str, Listed], discovery: bytes = b"") -> QueryPlan:
        """The same plan with the keys that were discovered, by query, and with the same secret.

        Args:
            found: all keys that are listed, by the name of the query.
            discovery: state of the discovery for the next pass.
        """
        query_set = with_keys(self.query_set, found)
        made = replace(self, query_set=query_set, discovery=discovery)
        made._key = self._key
        return made

    def _check_dynamic(self) -> None:
        """Refuse budgets and bounds with which nothing can change. Raises ConfigurationError."""
        if self.registry.classes.forever:
            raise ConfigurationError(
                "requirements change, and the budget is for a lifetime, which nothing that is "
                "spent leaves: give budgets over windows, or leave out the changes"
            )
        if not are_known(self.query_set):
            raise ConfigurationError(AUTO_BOUNDS_OF_CHANGING)

    def _limited(self, saved: Saved | None) -> tuple[Presence, ...] | None:
        """The limits of each query and class; None where there are none."""
        known = self._known
        check_limit(self.limit, known.classes.forever)
        limit = self.limit
        if isinstance(limit, Sequence):
            refuse("limit", limit, "give one Limit for all users, in the slots of each query")
        if limit is None and known.classes.forever:
            raise ConfigurationError(OF_SETS["infinite"])
        made = presences_of(
            *(self.query_set, limit, known.classes, self.units, self.adjacency),
            own=known.max_slots,
            named=known.named,
            moving=self._dynamic,
        )
        if made is None or not isinstance(limit, Auto) or limit.rate is not None:
            return made
        if saved is not None:
            return under_limits(made, saved.limits) if self._fit(made, saved.limits) else made
        return self._long_enough(made)

    @staticmethod
    def _fit(presences: tuple[Presence, ...], saved: tuple[Limit, ...]) -> bool:
        """Whether limits of a state are of these queries, classes and blocks; else it is refused.

        That is done where the whole configurations are compared.
        """
        asked = all_limits(presences)
        blocks = {one.blocks for one in asked if one.chosen}
        same = {one.blocks for one in saved if one.chosen}
        return len(asked) == len(saved) and blocks == same

    def _long_enough(self, presences: tuple[Presence, ...]) -> tuple[Presence, ...]:
        """Looks over windows that are no longer than the range alone; all of them if none is."""
        slots = self._range
        if slots is None:
            return presences
        limits = [
            EVERY_SLOT if one.chosen and _base_slots(query, over) > slots else one
            for query, presence in zip(self.query_set, presences, strict=True)
            for one, over in zip(presence.limits, presence.requirements, strict=True)
        ]
        return under_limits(presences, limits) if any(o.chosen for o in limits) else presences

    @cached_property
    def looks(self) -> tuple[Look | None, ...]:
        """At which classes a run will look to choose their limits, of one query after another.

        Raises ConfigurationError for a budget that is too small to ask anything.
        """
        if self.resume is not None or self.presences is None:
            return ()
        made = tuple(
            Look(over, one.blocks, presence.adjacency) if one.chosen else None
            for presence in self.presences
            for one, over in zip(presence.limits, presence.requirements, strict=True)
        )
        for look in made:
            if look is not None:
                look.check()
        return made if any(made) else ()

    def check_look(self, slots_per_pass: int | None = None) -> None:
        """Refuse a range that is too short to look at users in: see :func:`check_look`."""
        classes = len(self._known.classes)
        windows = [
            _base_slots(self.query_set.queries[number // classes], look.requirement)
            for number, look in enumerate(self.looks)
            if look is not None
        ]
        if windows:
            check_look(windows, self._range, self.ends, slots_per_pass)

    def _at_first(self, saved: Saved | None) -> Units:
        """What each query may cost each class at first: if planned, as the stream began."""
        if self.shares is not None:
            return self.shares
        known = self._known.classes
        size = len(self.query_set.queries), len(known)
        if saved is not None and saved.shares.shape == size:
            may_be = (saved.shares.sum(axis=0) <= known.budgets).all()
            if may_be:  # else the state is refused, as that of another configuration
                return saved.shares
        _, units = plan_shares(self.query_set, known, self._sizes, adjacency=self.adjacency)
        return units

    @property
    def _sizes(self) -> npt.NDArray[np.int64]:
        """Users of each class that may come, shape (K,)."""
        return expected_sizes(self._known.classes, self._known.sizes)

    @property
    def slots(self) -> Slots:
        """How base slots cut time."""
        return self.query_set.base

    def _check_columns(self) -> None:
        """Refuse columns among which one is missing that a query reads."""
        for query in self.query_set:
            for name in columns_read(query):
                if name not in self.columns.names:
                    raise ConfigurationError(
                        f"query {query.name!r} reads the column {name!r}, which is not among "
                        f"the columns {', '.join(self.columns.names)}: name it as a value"
                    )

    def describe(self) -> Description:
        """What is promised to whom, of all queries; of limits to choose, all that they may be."""
        known = self._known
        looks = to_epsilon(set_aside(self.query_set, known.classes, self._sizes)).tolist()
        more: list[Facts] = [{"look": look} if any(looks) else {} for look in looks]
        for k, facts in enumerate(more if self.presences else ()):
            facts["limits"] = self._limits_stated(k)
        for facts, delta in zip(more, self._deltas if known.deltas else (), strict=False):
            facts["delta"] = delta
        limited = self.presences is not None
        guarantee = guarantee_to_users(forever=known.classes.forever, limited=limited)
        promise = promised(
            guarantee, self.adjacency, self.largest_delta, classes=classes_of(known, more)
        )
        queries = [_facts_of(query) for query in self.query_set]
        return Description(promise, {**data_of(self.columns, self.slots), "queries": queries}, None)

    def _limits_stated(self, k: int) -> list[Facts]:
        """In how many slots of each query the users of a class count, for which part of epsilon."""
        presences = self.presences or ()
        looks = self.looks[k :: len(self._known.classes)] or (None,) * len(presences)
        return [
            facts_of_limit(presence.limits[k], look, query.name, presence.requirements[k].epsilon)
            for query, presence, look in zip(self.query_set, presences, looks, strict=True)
        ]

    def bounding(self) -> Bounding:
        """The secret of the draws; how many events are kept is up to each query."""
        return Bounding(1, UNIFORM, self._key.derived("bounding"))

    def counter(self, layout: QueryLayout) -> QueryCounter:
        """What counts events for each query."""
        return QueryCounter(
            self._known,
            layout,
            self.bounding,
            QUERIES,
            by_user=self.presences is not None,
            max_rejected=self.max_rejected,
            pack=pack_queries,
            until=None if self.ends else self.last_slot,
        )

    def event_mapper(self, bounds: bytes | None = None) -> QueriesMapper:
        """What maps batches of events, under bounds that were chosen."""
        asked = self.query_set
        if bounds is not None:
            asked = with_bounds(asked, bounds_from(bounds))
        return self._mapper(asked)

    def trial_mapper(self) -> QueriesMapper:
        """What maps a sample to see what would be lost; bounds that are not chosen yet are any."""
        looks = 0 if are_known(self.query_set) else len(looks_at(self.query_set))
        any_bounds = np.tile([0.0, 1.0], (looks, 1))
        return self._mapper(with_bounds(self.query_set, any_bounds) if looks else self.query_set)

    def _mapper(self, query_set: QuerySet) -> QueriesMapper:
        """What maps batches of events for some queries."""
        return QueriesMapper(
            query_set,
            self.columns,
            self.registry,
            self._key.derived("strangers"),
            self.first_slot,
            self.last_slot,
            self._dynamic,
        )

    def change_mapper(self) -> ChangeMapper:
        """What maps batches of changes of requirements, with the users as events have them."""
        return self._mapper_of_changes(self.slots)

    @property
    def context(self) -> Parts:
        """What the counts mean, beyond the queries: the noise is bound to all of it."""
        return {
            STREAM: encoded(QUERIES),
            COLUMNS: self.columns.identity(),
            USERS: self._known.identity(),
            **({CHANGING: encoded(True)} if self._dynamic else {}),
            **({TEST_MODE: encoded(True)} if self.test_mode else {}),
            **({} if self.delta is None else {"delta": encoded(self.delta)}),
        }

    @cached_property
    def end(self) -> int | None:
        """The last base slot: with which the last slot of any query ends, if the stream does."""
        if self.last_slot is None or not self.ends:
            return self.last_slot
        return max(query.cut.end(self.last_slot) for query in self.query_set)

    def layout(self, bounded: bool) -> QueryLayout:
        """How codes of events are laid out, of a bounded input or of a stream."""
        in_passes = not self.ends or self.resume is not None
        return QueryLayout.of(self.query_set, self._known, self.shards, not bounded, in_passes)

    def ledgers(self, layout: Any) -> QueryLedgers:
        """What is released and how it is accounted for."""
        asked = self._known
        return QueryLedgers(
            layout,
            asked.classes,
            self._sizes,
            self.units,
            self.adjacency,
            self._key,
            QUERIES,
            self.context,
            self.shares is None,
            asked.guessed,
            self.presences,
            self.revise,
            self.test_mode,
            asked.unknown,
            self._dynamic,
            self.last_slot if self.ends else None,
            self.discovery,
        )

    def within(self, slot: int) -> list[str]:
        """Queries, and their longer times, of which no slot begins with a base slot: names."""
        return [one.name for one in self.query_set if not one.cut.begins(slot)] + [
            f"{one.name} by {self.query_set.of_length(longer).text}"
            for one in self.query_set
            for longer in one.times
            if not cut_of(longer).begins(slot)
        ]

    def kept(self, layout: QueryLayout) -> list[tuple[BlockKey, Message]]:
        """Events of slots that were not over when the run before ended."""
        waiting = [one for one in self._kept if one.kind is Kind.WAITING]
        return list(going_on(waiting, layout))

    @property
    def counters(self) -> list[Message]:
        """What shards kept in the run before of who counted in which slots."""
        return [one for one in self._kept if one.kind is Kind.KEPT]

    def shard_logic(self, layout: QueryLayout, clock: SlotClock, *, bounded: bool) -> QueryLimits:
        """How shards count under participation limits."""
        assert self.presences is not None
        return QueryLimits(
            registry=self._known,
            layout=layout,
            clock=clock,
            change_mapper=self.change_mapper if self._dynamic else None,
            first_slot=self.first_slot,
            last_slot=self.end,
            stream=QUERIES,
            keeps=bounded and self.keeps_state,
            resumed=self.resume is not None,
            presences=self.presences,
            make_key=partial(self._key.derived, "presence"),
        )

    @property
    def keeps_state(self) -> bool:
        """Whether a bounded input gives its state: its end cuts no slot of a query off."""
        return self.end == self.last_slot and not self.test_mode

    def _sample_key(self) -> bytes:
        """The secret of the draws of the sample from which bounds are chosen."""
        return self._key.derived("sample")

    @property
    def _identity(self) -> bytes:
        """Of all that shapes a look."""
        return of_parts({**self.context, "queries": encoded(self.query_set)})

    def _tell_of_parts(self) -> None:
        """Say which queries' first and last slots are in the range in part, and stay so."""
        first = self.first_slot if self.resume is None else None
        last = self.last_slot if self.ends else None
        for end, verb, slot in (
            ("first", "starts", None if first is None else first),
            ("last", "ends", None if last is None else last + 1),
        ):
            if slot is None:
                continue
            names = self.within(slot)
            if names:
                _LOGGER.warning(
                    "the range %s at %s, within a slot of %s: of the %s slot of each a part counts",
                    verb,
                    format_time(self.slots.start(slot)),
                    ", ".join(names),
                    end,
                )

    def steps(
        self,
        *,
        bounded: bool,
        changes: bool,
        lateness: int = 0,
        on_workers: QueryPlan | None = None,
    ) -> Steps:
        """How events become answers: arguments are those of :meth:`HistogramPlan.steps`."""
        if changes and not self._dynamic:
            raise ConfigurationError(
                "changes of requirements came with the events: declare this from the first slot "
                "on (changing=True)"
            )
        self.check(bounded=bounded)
        assert not undiscovered(self.query_set), "hosts discover keys before they count"
        layout = self.layout(bounded)
        clock = SlotClock(self.slots, 0 if bounded else lateness)
        on_workers = on_workers or self
        logic = None
        if self.presences is not None:
            logic = on_workers.shard_logic(layout, clock, bounded=bounded)
        return Steps(
            stream=QUERIES,
            bounded=bounded,
            layout=layout,
            clock=clock,
            first_slot=self.first_slot,
            last_slot=self.end,
            make_mapper=on_workers.event_mapper,
            counter=on_workers.counter(layout),
            config=self.release_config(layout, clock),
            in_slices=True,
            bounds_choice=self.bounds_choice(on_workers),
            waiting=self.kept(layout),
            shard_logic=logic,
            limit_choice=self.limit_choice(logic),
            kept=self.counters,
        )

    def limit_choice(self, logic: QueryLimits | None) -> LimitChoice | None:
        """What chooses participation limits from a bounded input; None where all are known."""
        if logic is None or not self.looks:
            return None
        parts = {
            **self.context,
            QUERIES: encoded(self.query_set),
            LIMIT: encoded(self.limit),
            "budgets and neighbours": encoded((self.units, self.adjacency)),
        }
        return LimitChoice(logic, self.looks, self._key, of_parts(parts), self.test_mode)

    def check(self, *, bounded: bool) -> None:
        """Refuse what a stream cannot do; say which slots are in the range in part."""
        self.check_look()
        if self._dynamic:
            check_first_slot(self.first_slot)
            if bounded:
                check_last_slot(self.last_slot)
        if self.looks and not bounded:
            refuse_endless_look()
        if not bounded and not are_known(self.query_set):
            raise ConfigurationError(
                "the input is unbounded, so no bounds can be estimated before the first slot: "
                "give bounds: [LOW, HIGH] in place of auto, or resume from the state of a run "
                "that chose them"
            )
        if not bounded and self.first_slot is None:
            raise ConfigurationError(
                "the input is unbounded, so the base slot with which it begins must be known: give "
                f"{opt.start}"
            )
        self._tell_of_parts()

    def bounds_choice(self, on_workers: QueryPlan) -> BoundsChoice | None:
        """What chooses bounds from a bounded input; None where all are known.

        `on_workers` is the plan without what workers need not have.
        """
        if are_known(self.query_set):
            return None
        sample = Sample(
            self.query_set,
            self._known,
            self.shards,
            on_workers._mapper,
            on_workers._sample_key,
        )
        first, test_mode = self.first_slot or 0, self.test_mode
        return BoundsChoice(sample, self._key, self._identity, QUERIES, first, test_mode)

    def release_config(self, layout: Any, clock: SlotClock) -> ReleaseConfig:
        """What the release stage is made of."""
        rest = self.ends if self.revise_rest is None else self.revise_rest
        publish = PublishAnswers(
            self.first_slot if self.resume is None else self.stream_start,
            self.last_slot,
            self.ends,
            GuessedUsers.of(self._known),
            revise_rest=rest and self.revise > 0,
        )
        return ReleaseConfig(
            partial(one_driver, self.ledgers(layout)),
            clock,
            publish,
            self.first_slot,
            self.end,
            self.resume,
            keeps=self.keeps_state,
            emit_rest=publish.rest,
            ends=self.ends,
            tells_booked=True,
            passed=QueryDriver.passed,
        )


def _base_slots(query: Query, over: Requirement) -> int:
    """Base slots of a window that is counted in slots of a query."""
    return math.ceil(over.window * query.cut.mean)


def _facts_of(query: Query) -> Facts:
    """What a query is about, and how it is answered."""
    return {
        "name": query.name,
        "slots": query.slots if isinstance(query.slots, int) else query.slots.text,
        "value": list(query.value),
        "domain": facts_of_domain(query.domain),
        "statistic": query.statistic.name,
        "mechanism": query.mechanism,
        "max_contributions": query.max_contributions,
        "keep": query.keep,
        "conditions": len(query.where),
    }


def columns_for(query_set: QuerySet, user: str, time: str, **reading: Any) -> Columns:
    """Columns of user and time, and as values all that queries read, each once.

    What one query cannot read is no fault of the event for another.

    Args:
        query_set: what is asked.
        user: column of the user.
        time: column of the time.
        reading: how times are read, as :class:`Columns` has it.
    """
    every = (name for query in query_set for name in columns_read(query))
    names = dict.fromkeys(map(QueryColumn, every))
    return Columns(user, tuple(names) or (user,), time, **reading)
