"""Events as integers for all queries: what they have in common is read once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.engine import metrics
from streamveil.engine.encode.dead_letters import (
    WRONG_TYPE,
    column_of,
    losses_of,
    naming_source,
    rejected_rows,
    unread_rows,
    with_tally,
)
from streamveil.engine.encode.event_mapper import (
    AHEAD,
    NO_REQUIREMENT,
    OUTSIDE_RANGE,
    REASON_OF_CODE,
    Columns,
    DomainMap,
    Events,
    nulls_of,
    slots_of,
)
from streamveil.engine.encode.numbers import NOT_FINITE, NULL_NUMBER, as_numbers
from streamveil.engine.encode.text import NULL_USER, TextIndex, as_text, find_users, user_texts
from streamveil.mechanisms.core.arrays import Flags, Integers
from streamveil.mechanisms.core.event_tallies import (
    ELSEWHERE,
    OF_QUERY,
    EventTally,
    Lost,
    query_of,
)
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.queries.conditions import Condition
from streamveil.mechanisms.queries.discovered import discovering
from streamveil.mechanisms.queries.queries import Query, QuerySet

_ROWS = 1 << 18  # mapped at once

_OF_NUMBERS = (NULL_NUMBER, NOT_FINITE)


@dataclass(frozen=True, eq=False)
class QueryEvents(Events):
    """Events of a batch that a query asks about and can read."""

    unread: Mapping[str, Lost]
    """What it asks about and cannot read, by reason, which names the query."""
    first: int
    """How many of the events no query before this one takes."""


@dataclass(frozen=True)
class QueriesMapper:
    """Maps batches of events for a query set; users and domains are indexed once per worker."""

    query_set: QuerySet
    columns: Columns
    registry: Registry
    stranger_key: bytes
    """Secret for the digests of users outside the registry: 32 bytes."""
    first_slot: int | None = None
    """Events before this base slot are rejected."""
    last_slot: int | None = None
    """Events after this base slot are rejected."""
    dynamic: bool = False
    """Whether users outside the registry may have joined, so that none is rejected here."""
    counts: bool = True
    """Whether counters get what each query cannot read: not if events are read twice."""

    _users: TextIndex = field(init=False, repr=False, compare=False)
    _bins: Mapping[str, DomainMap] = field(init=False, repr=False, compare=False)
    """Of each query with a domain, by name; one for all that ask about the same bins."""

    def __post_init__(self) -> None:
        """Index users, and each domain once."""
        object.__setattr__(self, "_users", TextIndex(self.registry.users))
        made: dict[Any, DomainMap] = {}
        bins = {}
        for one in self.query_set:
            if one.value:
                place = one.domain.identity(), one.value
                if place not in made:
                    made[place] = DomainMap(one.domain, one.value)
                bins[one.name] = made[place]
        object.__setattr__(self, "_bins", bins)

    @property
    def slots(self) -> Any:
        """Base slots."""
        return self.query_set.base

    def check(self, batch: pa.RecordBatch) -> None:
        """Raise ConfigurationError for a missing column or one of a type that cannot be read."""
        user_texts(column_of(batch, self.columns.user), self.columns.user)
        slots_of(batch, self.columns, self.slots)
        read = _Read(batch, self._bins)
        for query in self.query_set:
            read.check(query)

    def map(
        self, batch: pa.RecordBatch, latest: int | None = None
    ) -> tuple[list[QueryEvents], pa.RecordBatch]:
        """Split a batch into the events of each query and rejected rows (`io.REJECTED_SCHEMA`).

        Slots of events are those of their query, and bins are `bin * steps + step`. An event
        that meets the conditions of a query which cannot read it is rejected once, with the name
        of the first such query; others count it all the same, and the reason says so where one
        does.

        Raises ConfigurationError for a missing column or one of a type that cannot be read.
        """
        with naming_source(batch):
            return self._map(batch, latest)

    def _map(
        self, batch: pa.RecordBatch, latest: int | None
    ) -> tuple[list[QueryEvents], pa.RecordBatch]:
        slots, members, strangers, faults = self._read(batch, latest)
        good = np.ones(len(slots), np.bool_)
        good[list(faults)] = False

        read = _Read(batch, self._bins)
        results = []
        counted, unread_by = np.zeros(len(slots), np.bool_), dict[int, str]()
        foreign = np.cumsum(members < 0) - 1 if len(strangers) else None
        for query in self.query_set:
            asked = good & read.meets(query)
            bins, unread = read.cells(query)
            losses = dict[str, Lost]()
            for rows, reason in unread:
                named = f"{reason}{OF_QUERY}{query.name})"
                lost = rows[asked[rows]]
                asked[lost] = False
                if self.counts:
                    which = f"{metrics.OF_QUERY}{query.name}: {reason}"
                    metrics.count(metrics.EVENTS_UNREAD + which, len(lost))
                for row in lost.tolist():
                    unread_by.setdefault(row, named)
                if len(lost):
                    first = rejected_rows(batch, {int(lost[0]): named}, self._detail)
                    losses[named] = replace(losses_of(first)[named], events=len(lost))
            first = int(np.count_nonzero(asked & ~counted))
            counted |= asked
            some: slice | Integers = slice(None)
            names = strangers
            if not asked.all():
                some = np.flatnonzero(asked)
                if foreign is not None:
                    names = strangers[foreign[asked & (members < 0)]]
            own = slots[some]
            results.append(
                QueryEvents(
                    own if query.slots == 1 else query.cut.numbers(own),
                    bins[some],
                    members[some],
                    names,
                    losses,
                    first,
                )
            )
        for row, reason in unread_by.items():
            faults[row] = reason.removesuffix(")") + ELSEWHERE if counted[row] else reason
        return results, rejected_rows(batch, faults, self._detail)

    def _read(
        self, batch: pa.RecordBatch, latest: int | None = None
    ) -> tuple[Integers, Integers, npt.NDArray[np.uint64], dict[int, str]]:
        """Base slots and users of all rows, and why rows cannot be used, by row.

        Users are as in :class:`Events`.
        """
        columns = self.columns
        slots, bad_times = slots_of(batch, columns, self.slots)
        users = user_texts(column_of(batch, columns.user), columns.user)
        members, strangers, nameless = find_users(users, self._users, self.stranger_key)
        bad = [(nameless, NULL_USER)]
        if self.registry.default_class is None and not self.dynamic:
            bad.append((np.flatnonzero(members < 0), NO_REQUIREMENT))
        if latest is not None:
            bad.append((np.flatnonzero(slots > latest), AHEAD))
        for bound, outside in ((self.first_slot, np.less), (self.last_slot, np.greater)):
            if bound is not None:
                bad.append((np.flatnonzero(outside(slots, bound)), OUTSIDE_RANGE))
        faults: dict[int, str] = dict(bad_times) | dict.fromkeys(unread_rows(batch), WRONG_TYPE)
        for rows, reason in bad:
            for row in rows.tolist():
                faults.setdefault(row, reason)
        return slots, members, strangers, faults

    def by_slot(
        self, batch: pa.RecordBatch, latest: int | None = None, ends: Sequence[int] = ()
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows of each base slot that :meth:`map` can use, before conditions of queries.

        With `ends`, rows are together from after one of these base slots to the next of them.
        """
        slots, _, _, faults = self._read(batch, latest)
        good = np.ones(len(slots), np.bool_)
        good[list(faults)] = False
        rows = np.flatnonzero(good)
        own = np.array(ends)[np.searchsorted(ends, slots[rows])] if ends else slots[rows]
        order = np.argsort(own, kind="stable")
        found, starts, sizes = np.unique(own[order], return_index=True, return_counts=True)
        ordered = batch.take(pa.array(rows[order]))
        for slot, start, size in zip(found.tolist(), starts, sizes, strict=True):
            yield slot, ordered.slice(start, size)

    def located(self, batch: pa.RecordBatch) -> list[Located]:
        """All events of each query that have a time in the range and can be read.

        Raises ConfigurationError as :meth:`map`.
        """
        slots, bad_times = slots_of(batch, self.columns, self.slots)
        users = user_texts(column_of(batch, self.columns.user), self.columns.user)
        good = np.ones(len(slots), np.bool_)
        good[[*dict(bad_times), *unread_rows(batch)]] = False
        if self.first_slot is not None:
            good &= slots >= self.first_slot
        if self.last_slot is not None:
            good &= slots <= self.last_slot
        read = _Read(batch, self._bins)
        found = []
        for query in self.query_set:
            asked = good & read.meets(query)
            fine, unread = read.cells(query)
            for rows, _ in unread:
                asked[rows] = False
            column = query.statistic.column
            found.append(
                Located(
                    query.cut.numbers(slots[asked]),
                    fine[asked] // len(query.statistic.weights),
                    users.filter(pa.array(asked)),
                    None if column is None else read.numbers(column)[asked],
                )
            )
        return found

    def keys_of(self, batch: pa.RecordBatch) -> list[KeyEvents]:
        """The users and keys of a batch, for each query that discovers keys, in their order.

        Raises ConfigurationError as :meth:`map`, and for a column that is not text.
        """
        with naming_source(batch):
            slots, members, strangers, faults = self._read(batch)
            good = np.ones(len(slots), np.bool_)
            good[list(faults)] = False
            users = np.zeros((len(members), 2), np.uint64)
            users[:, 0] = members.astype(np.uint64)
            users[members < 0] = strangers
            read, found = _Read(batch, self._bins), []
            for query in discovering(self.query_set):
                asked = good & read.meets(query)
                for rows, _ in read.unread(query):
                    asked[rows] = False
                text = as_text(column_of(batch, *query.value))
                assert text is not None  # or the domain could not be read
                own = text.filter(pa.array(asked))
                found.append(KeyEvents(slots[asked], users[asked], members[asked], own))
            return found

    def _detail(self, reason: str, record: dict[str, Any]) -> str:
        """What the columns say that a reason is about."""
        why, query = query_of(reason)
        if query:
            (asked,) = (one for one in self.query_set if one.name == query)
            number = asked.statistic.column
            names = (number,) if number and why in _OF_NUMBERS else asked.value
        elif why in (NULL_USER, NO_REQUIREMENT):
            names = (self.columns.user,)
        else:
            names = (self.columns.time,)
        return ", ".join(
            f"{name} is {'null' if record[name] is None else record[name]}" for name in names
        )


def with_queries(
    tally: EventTally, query_set: QuerySet, events: Sequence[QueryEvents]
) -> EventTally:
    """The tally of mapped events, with what each query could read; all that any takes count."""
    events_of = {one.name: some for one, some in zip(query_set, events, strict=True)}
    return replace(
        tally,
        beyond_bound=0,
        counted=sum(some.first for some in events),
        read_by={name: len(some.slots) for name, some in events_of.items()},
        unread_by={name: some.unread for name, some in events_of.items() if some.unread},
    )


class Located(NamedTuple):
    """Events that a query is about, whoever they are of: arrays of shape (n,)."""

    slots: Integers
    """In slots of the query."""
    bins: Integers
    users: pa.Array
    """As text; null for an event of nobody."""
    numbers: npt.NDArray[np.float64] | None
    """What the statistic is of; None where events are counted."""


class KeyEvents(NamedTuple):
    """Events from which a query is to discover keys: arrays of shape (n,)."""

    base_slots: Integers
    users: npt.NDArray[np.uint64]
    """Two words of each user, which no other user has: shape (n, 2)."""
    members: Integers
    """Position of each user in the registry, or -1."""
    texts: pa.Array
    """Value of the column of keys, as text or as a dictionary of it."""


class _Read:
    """The columns of a batch that queries ask for, each read once."""

    def __init__(self, batch: pa.RecordBatch, domains: Mapping[str, DomainMap]) -> None:
        self._batch = batch
        self._domains = domains
        self._known: dict[Any, Any] = {}

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What was made for a key before, or else now."""
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def meets(self, query: Query) -> Flags | bool:
        """Which events a query is about, shape (n,)."""
        found: Flags | bool = True
        for condition in query.where:
            found = found & self._once(condition, partial(self._holds, condition))
        return found

    def _holds(self, condition: Condition) -> Flags:
        """Which events meet a condition; those in which its column says nothing do not."""
        column = column_of(self._batch, condition.column)
        if condition.values is None:
            return condition.holds(self.numbers(condition.column))
        text = as_text(column)
        if text is None:
            raise ConfigurationError(
                f"column {condition.column!r} holds {column.type}; a condition on values matches "
                "text, whole numbers or booleans: convert it, or give a range"
            )
        if pa.types.is_dictionary(text.type):
            known = np.append(_flags(_among(text.dictionary, condition.spellings)), False)
            holds: Flags = known[text.indices.fill_null(0).to_numpy(zero_copy_only=False)]
            return holds & ~nulls_of(text) if text.null_count else holds
        return _flags(_among(text, condition.spellings))

    def numbers(self, name: str) -> npt.NDArray[np.float64]:
        """Numbers of a column, NaN where there is none."""
        column = column_of(self._batch, name)
        numbers = self._once(("numbers", name), lambda: as_numbers(column))
        if numbers is None:
            raise ConfigurationError(
                f"column {name!r} holds {column.type}, and numbers are asked for: convert it"
            )
        return numbers

    def check(self, query: Query) -> None:
        """Raise ConfigurationError for columns of a type that cannot be read."""
        self.meets(query)
        self._bins(query)
        if query.statistic.column is not None:
            self.numbers(query.statistic.column)

    def cells(self, query: Query) -> tuple[Integers, list[tuple[Integers, str]]]:
        """Fine bin of every event for a query, shape (n,), and rows that have none, with why."""
        bins, unread = self._bins(query)[0], self.unread(query)
        if query.statistic.column is None:
            return bins, unread
        steps = self._once(query.statistic, lambda: self._steps(query))
        return bins * len(query.statistic.weights) + steps, unread

    def unread(self, query: Query) -> list[tuple[Integers, str]]:
        """Rows that a query cannot read, with why, whatever its bounds are."""
        bad, column = self._bins(query)[1], query.statistic.column
        if column is None:
            return bad
        return [*bad, *self._once(("lost", column), lambda: self._lost(column))]

    def _bins(self, query: Query) -> tuple[Integers, list[tuple[Integers, str]]]:
        if not query.value:
            return self._once("no bins", lambda: np.zeros(self._batch.num_rows, np.int64)), []
        domain = self._domains[query.name]
        return self._once(domain, lambda: self._mapped(domain))

    def _mapped(self, domain: DomainMap) -> tuple[Integers, list[tuple[Integers, str]]]:
        bins = domain.bins([column_of(self._batch, name) for name in domain.columns])
        if not (bins < 0).any():
            return bins, []
        return bins, [(np.flatnonzero(bins == code), why) for code, why in REASON_OF_CODE.items()]

    def _steps(self, query: Query) -> Integers:
        """Step of each number, of any number where there is none."""
        name = query.statistic.column
        assert name is not None
        numbers = self.numbers(name)
        finite = np.isfinite(numbers)
        return query.statistic.steps(numbers if finite.all() else np.where(finite, numbers, 0.0))

    def _lost(self, name: str) -> list[tuple[Integers, str]]:
        """Rows without a number in a column, with why."""
        finite = np.isfinite(self.numbers(name))
        if finite.all():
            return []
        null = nulls_of(column_of(self._batch, name))
        lost = [(null, NULL_NUMBER), (~finite & ~null, NOT_FINITE)]
        return [(np.flatnonzero(rows), why) for rows, why in lost]


def slices_of(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in pieces: what queries make of all its rows at once would cost memory.

    What it says of others, which were lost on the way to it, the first one says.
    """
    yield batch.slice(0, _ROWS)
    for begin in range(_ROWS, batch.num_rows, _ROWS):
        yield with_tally(batch.slice(begin, _ROWS), EventTally())


def columns_read(query: Query) -> tuple[str, ...]:
    """Names of the columns that a query reads, beside user and time."""
    number = query.statistic.column
    where = (condition.column for condition in query.where)
    return (*query.value, *(() if number is None else (number,)), *where)


def _among(text: pa.Array, values: Iterable[str]) -> pa.Array:
    return pc.is_in(text, pa.array(values, text.type))


def _flags(array: pa.Array) -> Flags:
    found: Flags = pc.fill_null(array, False).to_numpy(zero_copy_only=False)
    return found
