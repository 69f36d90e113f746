"""What the release stage drives for a query set: one stream in base slots, of all queries."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from streamveil.engine import metrics
from streamveil.engine.count.bounds_choice import bounds_from
from streamveil.engine.count.chosen_limits import count_chosen, limits_from
from streamveil.engine.count.query_counter import QueryLayout, SlotCounts, slot_counts
from streamveil.engine.messages import (
    LEDGER,
    REVISIONS,
    Kind,
    Message,
    Output,
    several_from_bytes,
    several_to_bytes,
)
from streamveil.engine.stream.drivers import JOINED
from streamveil.engine.stream.guessed_users import GuessedUsers
from streamveil.engine.stream.saved_queries import Saved
from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.core.budgets import Requirements, Units
from streamveil.mechanisms.core.user_table import stated_users
from streamveil.mechanisms.driver.present_stream import Presence
from streamveil.mechanisms.driver.saved_state import Parts
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.protocol import SlotRelease, SlotRevision
from streamveil.mechanisms.queries.bounds import AutoBounds, bounds_of, with_bounds
from streamveil.mechanisms.queries.cuts import Cut, cut_of
from streamveil.mechanisms.queries.discovered import (
    Listed,
    listed_of,
    with_keys,
)
from streamveil.mechanisms.queries.limits import all_limits, under_limits
from streamveil.mechanisms.queries.queries import QuerySet
from streamveil.mechanisms.queries.query_stream import QueryState, QueryStream
from streamveil.mechanisms.queries.slot_answers import RevisedAnswer, SlotAnswer, noted
from streamveil.mechanisms.queries.times import TimeSum
from streamveil.mechanisms.randomness.noise import NoiseKeys, NoiseSource

_PROGRESS = logging.getLogger("streamveil.progress")

_LOGGER = logging.getLogger("streamveil")

_AnyAnswer = TypeVar("_AnyAnswer", SlotAnswer, RevisedAnswer)


@dataclass(frozen=True)
class QueryLedgers:
    """What makes the driver on a worker: public, but for the key."""

    layout: QueryLayout
    requirements: Requirements
    sizes: Integers
    shares: Units
    adjacency: str
    noise_key: Callable[[], NoiseKeys]
    stream: str
    context: Parts
    replan: bool
    """Whether shares are planned again from answers."""
    guessed: int | None
    """The class whose size is only a guess."""
    presences: tuple[Presence, ...] | None = None
    """In how many slots of each query users count; None where they count in all."""
    revise: int = 0
    """How many of its own slots later a slot of a query is revised; 0 for never."""
    test_mode: bool = False
    """Whether exact counts are released in place of private ones: NOT private."""
    unknown: int | None = None
    """The class of which nobody said how many users it has; its size is what is assumed."""
    changing: bool = False
    """Whether requirements may change."""
    until: int | None = None
    """Last base slot that is asked about, if the stream ends there: later slots of queries are not
    released."""
    discovery: bytes = b""
    """State of the discovery of keys for a later run. It is saved with the other state."""

    def make(self) -> QueryDriver:
        """Make it. Raises ConfigurationError for queries that do not fit."""
        noise = NoiseSource(self.noise_key(), self.stream)
        stream = QueryStream(
            self.layout.query_set,
            self.requirements,
            self.sizes,
            self.shares,
            noise,
            adjacency=self.adjacency,
            context=self.context,
            revise=self.revise,
            guessed=self.guessed,
            replan=self.replan,
            presences=self.presences,
            test_mode=self.test_mode,
            until=self.until,
        )
        return QueryDriver(stream, self.layout, self, noise.sealing_key)

    @property
    def chosen_limits(self) -> tuple[Limit, ...]:
        """Those of all classes and queries, if a look at users chooses them; else none."""
        limits = all_limits(self.presences or ())
        return limits if any(one.chosen for one in limits) else ()

    def limited(self, limits: Sequence[Limit]) -> QueryLedgers:
        """The same under limits that were chosen."""
        assert self.presences is not None
        return replace(self, presences=under_limits(self.presences, limits))

    def listed(self, found: Mapping[str, Listed]) -> QueryLedgers:
        """The same with other keys that are listed, by the name of the query."""
        query_set = with_keys(self.layout.query_set, found)
        measures = tuple(query.measure for query in query_set)
        return replace(self, layout=replace(self.layout, query_set=query_set, measures=measures))

    def under(self, bounds: Floats) -> QueryLedgers:
        """The same under bounds that were chosen, shape (looks, 2)."""
        query_set = with_bounds(self.layout.query_set, bounds)
        return replace(self, layout=replace(self.layout, query_set=query_set))


@dataclass(frozen=True)
class QueryDriver:
    """Takes base slots in order; the counts of one are histograms of the queries due with it."""

    stream: QueryStream
    layout: QueryLayout
    ledgers: QueryLedgers
    key: bytes = field(repr=False)
    """Of the checksum of its states."""

    def chosen(self, choice: Message) -> QueryDriver:
        """The same under bounds, or participation limits, that were chosen."""
        if choice.kind is Kind.BOUNDS:
            return self.ledgers.under(bounds_from(choice.payload)).make()
        return self.ledgers.limited(limits_from(choice)).make()

    def tell_chosen(self) -> None:
        """Say what was chosen, which is public: bounds in the log, and all as names of counters."""
        if self.ledgers.chosen_limits:
            for query, one in zip(self.layout.query_set, self.ledgers.presences or (), strict=True):
                of_query = f"{metrics.OF_QUERY}{query.name}"
                count_chosen(self.ledgers.sizes, one.limits, one.requirements, of_query)
        tell_bounds(self.layout.query_set, test_mode=self.ledgers.test_mode)

    @property
    def parts(self) -> int:
        """Shards of all queries, each of which tells every base slot of a stream."""
        return self.layout.parts

    @property
    def quiet(self) -> SlotCounts:
        """Counts of a slot without events."""
        return SlotCounts({}, {})

    def start(self) -> QueryState:
        """State before the first base slot."""
        return self.stream.start()

    def encode(self, state: QueryState, kept: Iterable[Message] = ()) -> bytes:
        """Bytes of the state, as of :class:`Saved`.

        With it go events of slots that are not over, in any order.
        """
        messages = sorted(message.to_bytes() for message in kept)
        written = several_to_bytes(self.stream.pack(state), *messages)
        bounds = bounds_of(self.layout.query_set)
        written = self.stream.keeper.write(written)
        saved = Saved(
            self.ledgers.shares,
            bounds,
            self.ledgers.chosen_limits,
            written,
            listed_of(self.layout.query_set),
            None if state.next_slot is None else state.next_slot - 1,
            self.ledgers.discovery,
        )
        return (JOINED if self.ledgers.changing else b"") + saved.sealed(self.key)

    def decode(self, data: bytes) -> QueryState:
        """State of bytes, with the keys of this driver.

        Raises ConfigurationError for that of another configuration.
        """
        before, parts = self._parts(data)
        state = before.stream.unpack(parts[0])
        return self.stream.grown(state, before.layout.query_set)

    def kept(self, data: bytes) -> list[Message]:
        """Events of slots that were not over, and what shards kept, of the bytes of a state."""
        return list(map(Message.from_bytes, self._parts(data)[1][1:]))

    def _parts(self, data: bytes) -> tuple[QueryDriver, list[bytes]]:
        """The driver that wrote a state, whose keys may be others, and what it wrote."""
        saved = Saved.read(data, self.key)
        listed = saved.listed_of(self.layout.query_set)
        same = not saved.listed or listed == listed_of(self.layout.query_set)
        before = self if same else self.ledgers.listed(listed).make()
        return before, several_from_bytes(before.stream.keeper.read(saved.state))

    def slots(
        self, block: int, parts: Iterable[Message]
    ) -> Iterator[tuple[int, SlotCounts | None]]:
        """A base slot with what came of it; None if that is nothing."""
        found = slot_counts(parts, self.layout)
        yield block, found if any(found) else None

    def release(
        self, state: QueryState, slot: int, counted: SlotCounts
    ) -> tuple[QueryState, dict[int, SlotRelease]]:
        """Release all queries that are due with the next base slot, whether anybody was there."""
        due = self.stream.due(slot)
        nothing = {
            q: np.zeros((self.layout.classes, self.layout.measures[q].size), np.int64)
            for q in due
            if q not in counted.histograms
        }
        histograms = {**counted.histograms, **nothing}
        return self.stream.release(state, slot, histograms, counted.beyond)

    def next_slot(self, state: QueryState) -> int | None:
        """The base slot that comes next."""
        return state.next_slot

    def passed(self, start: int, stop: int) -> Iterator[int]:
        """Of quiet base slots those with which anything is released."""
        return self.stream.due_slots(start, stop)


@dataclass(frozen=True)
class PublishAnswers:
    """Gives what is answered of the queries that are due and, on the side, what that cost."""

    first_slot: int | None = None
    """First base slot of the stream, if it is known."""
    last_slot: int | None = None
    """Last base slot that is asked about."""
    ends: bool = True
    """Whether the stream ends there: rollups that are not complete are then published in part."""
    guessed: GuessedUsers | None = None
    """What is assumed of the number of users, if it is only assumed."""
    revise_rest: bool = False
    """Whether slots that are still to be revised are revised at the end, with what there is."""

    def __call__(
        self,
        driver: QueryDriver,
        state: QueryState,
        slot: int,
        releases: Mapping[int, SlotRelease],
        at: int,
    ) -> Iterator[Output]:
        """A `SlotAnswer` and a `QueryEntry` of each, and answers of longer times and revisions."""
        tested = driver.ledgers.test_mode
        if not tested:
            metrics.observe(metrics.WINDOW_USE, int(np.ceil(state.filter.use() * 1e6)))
        _PROGRESS.info("released slot %d", slot, extra={"slots": 1})
        for entry, (q, release) in zip(
            driver.stream.entries(state, releases), releases.items(), strict=True
        ):
            query = driver.layout.query_set.queries[q]
            metrics.count(metrics.SLOTS_PREFIX + release.status, 1)
            of_query = f"{release.status}{metrics.OF_QUERY}{query.name}"
            metrics.count(metrics.SLOTS_PREFIX + of_query, 1)
            if self.guessed is not None:
                self.guessed.check(release, query.sensitivity)
            answer = SlotAnswer.of(
                *(release, query.cut.of(slot), query, driver.layout.query_set),
                state.usual[q],
            )
            yield Output(self._noted(driver, query.cut, answer), at=at)
            entry = replace(entry, users=stated_users(entry.users, driver.ledgers.unknown))
            yield Output(entry.unpromised if tested else entry, LEDGER, at)
            yield from self._revisions(driver, state, q, release.revisions, at)
            last = self.last_slot is not None and entry.last_base_slot >= self.last_slot
            for one in _by_end(state.times[q]):
                if one.ended or (last and self.ends):
                    yield self._time(driver, state, q, one, at)
        if self.revise_rest and self.last_slot is not None:
            for q, query in enumerate(driver.layout.query_set):
                over = query.cut.end(self.last_slot) if self.ends else self.last_slot
                if slot == over:
                    yield from self._rest(driver, state, q, at)

    def rest(self, driver: QueryDriver, state: QueryState, at: int) -> Iterator[Output]:
        """What is still to be given at the end of an input without a range.

        A `RevisedAnswer` of each slot that is still to be revised, and a `SlotAnswer` of each
        longer time that is not over.
        """
        if self.last_slot is None:
            for q, sums in enumerate(state.times):
                if self.revise_rest:
                    yield from self._rest(driver, state, q, at)
                for one in _by_end(sums):
                    if one.unfinished:
                        yield self._time(driver, state, q, one, at)

    def _rest(self, driver: QueryDriver, state: QueryState, q: int, at: int) -> Iterator[Output]:
        return self._revisions(driver, state, q, driver.stream.rest(state, q), at)

    def _revisions(
        self,
        driver: QueryDriver,
        state: QueryState,
        q: int,
        revisions: Iterable[SlotRevision],
        at: int,
    ) -> Iterator[Output]:
        query_set = driver.layout.query_set
        query, last = query_set.queries[q], state.next_slot
        for one in revisions:
            assert last is not None
            answer = SlotAnswer.of_revision(
                one,
                query.cut.of(last) - 1,
                query,
                query_set,
                driver.stream.usual_of(state, q, one.slot),
            )
            yield Output(self._noted(driver, query.cut, answer), REVISIONS, at)

    def _time(
        self, driver: QueryDriver, state: QueryState, q: int, total: TimeSum, at: int
    ) -> Output:
        query_set = driver.layout.query_set
        query = query_set.queries[q]
        answer = SlotAnswer.of_time(total, query, query_set, state.usual[q])
        if total.added == total.cut.size(total.number):  # else the note names the missing slots
            cut = cut_of(query.times[query.longer.index(total.cut)])
            answer = self._noted(driver, cut, answer)
        return Output(answer, at=at)

    def _noted(self, driver: QueryDriver, cut: Cut, answer: _AnyAnswer) -> _AnyAnswer:
        """The same, which says if the range has only a part of its slot."""
        first, last = cut.first(answer.slot), cut.last(answer.slot)
        begins = first if self.first_slot is None else max(first, self.first_slot)
        ends = min(last, self.last_slot) if self.ends and self.last_slot is not None else last
        if (begins, ends) == (first, last):
            return answer
        base, size = driver.layout.query_set.base.text, last - first + 1
        words = f"a part of the time: {ends - begins + 1} of its {size} slots of {base}"
        return replace(answer, figures=noted(answer.figures, words))


def _by_end(sums: Iterable[TimeSum]) -> list[TimeSum]:
    """Longer times in the order in which they end, as in files: weeks may end after months."""
    return sorted(sums, key=lambda one: one.cut.end(one.last))


def tell_bounds(query_set: QuerySet, *, test_mode: bool) -> None:
    """Say which bounds were chosen, as :meth:`QueryDriver.tell_chosen` does."""
    for query in query_set:
        statistic = query.statistic
        if isinstance(statistic, AutoBounds):
            bounds = f"{query.name}: {statistic.lower:g} to {statistic.upper:g}"
            metrics.count(f"{metrics.BOUNDS_PREFIX}{metrics.OF_QUERY}{bounds}", 1)
            how = "without noise" if test_mode else "by a private look"
            _LOGGER.info("bounds of query %s, chosen %s", bounds, how)
