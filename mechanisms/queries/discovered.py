"""Queries whose keys are discovered: the cost of the discovery, and the keys that are listed.

Keys are discovered from a whole bounded input, before anything else is released, or while a stream
runs, in one discovery slot after the other. In a stream, a key is listed from the base slot after
its discovery slot. At the end of each later discovery slot it leaves if its released estimates were
below their errors. Listed keys are public, and the query counts them like any other keys. All other
keys are in one bin.

Guarantee: (w, epsilon, delta). Over any `window` consecutive base slots, all that a run publishes
differs in distribution by at most a factor exp(epsilon_k), except with probability delta_k, for a
user of class k.
Proof: discoveries of different queries, of different discovery slots, and the releases compose. The
cost of a discovery in epsilon and delta is proved in `discovery/terms.py`. Its part of epsilon is
reserved (`set_aside`), and is included in the cost of every window. So is the cost of choosing
bounds privately (`bounds.py`), whose sample does not depend on the keys. Given the keys and bounds,
the releases cost the rest of epsilon, and no delta. In a stream, the keys that are listed in a base
slot are a function of what was published before this slot: of the keys that were found, and for
keys that leave of the released estimates and their errors (`Excess`). They only decide in which
bins events are counted, so a histogram has the same sensitivity as with keys that the query lists.
This holds for levels as well, because the names of groups are public, and the group of an event
follows from its key alone. `adaptive/growth.py` proves that mechanisms may continue with other
bins. No account of spent budget depends on the bins. A key that left is unlisted like any other
key, so the cost of later discoveries is the same.

Participation limits only apply to the releases. Neighbouring inputs are the same with limits, and
the cost of a discovery covers all events of a user in a window, whether the releases count them or
not. Given the keys, `limits.py` proves that the releases cost no more than the shares of the
queries, for any domain. So the sum is the same as without limits, and `LimitedFilter` adds up both
parts.

With a lifetime budget, neighbouring inputs differ in all events of a user. The whole bounded input
is one discovery slot, with the cost that `price.py` gives for a slot that is covered completely.
The filter remembers this cost for the longest possible window, so it refuses a second discovery.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.arrays import Flags, Floats, Integers
from streamveil.mechanisms.core.budgets import Requirements, Units
from streamveil.mechanisms.core.domains import Categories, parts_of, with_bins
from streamveil.mechanisms.core.records import REPLACE, ConfigurationError
from streamveil.mechanisms.discovery.deltas import delta_units
from streamveil.mechanisms.discovery.discovered_keys import DiscoveredKeys
from streamveil.mechanisms.discovery.discovery_filter import DiscoveryFilter
from streamveil.mechanisms.discovery.price import Draw, cheapest_draw
from streamveil.mechanisms.discovery.terms import DiscoveryTerms
from streamveil.mechanisms.protocol import carried
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.statistics import Count, Statistic, TopK
from streamveil.mechanisms.queries.trees import ALL, FLAT, Tree


def discovered_keys(query: Query) -> DiscoveredKeys | None:
    """The keys of a query that are discovered, or are to be; None if they are given."""
    listed = parts_of(query.domain).listed
    return listed if isinstance(listed, DiscoveredKeys) else None


def discovering(query_set: QuerySet) -> list[Query]:
    """Queries whose keys are discovered, or were."""
    return [query for query in query_set if discovered_keys(query) is not None]


def undiscovered(query_set: QuerySet) -> list[Query]:
    """Queries whose keys are still to be discovered."""
    both = ((query, discovered_keys(query)) for query in query_set)
    return [query for query, keys in both if keys is not None and not keys.found]


_ENDED = ("key", "since", "until")


@dataclass(frozen=True)
class Listed:
    """The keys of a query that are listed so far. They are public."""

    keys: tuple[str, ...]
    """In the order in which they were listed."""
    since: tuple[int, ...] = ()
    """As in :class:`DiscoveredKeys`."""
    ended: tuple[tuple[str, int, int], ...] = ()
    """As in :class:`DiscoveredKeys`."""

    def record(self) -> dict[str, Any]:
        """As it is saved."""
        ended = [dict(zip(_ENDED, one, strict=True)) for one in self.ended]
        return {"keys": self.keys, "since": self.since, "ended": ended}

    @classmethod
    def of_record(cls, record: Mapping[str, Any], slot: int | None) -> Listed:
        """Read :meth:`record`, of a state after a base slot.

        Earlier versions saved found keys before they were listed. These are to be found again.
        """
        since = [one for one in record["since"] if slot is not None and one <= slot]
        keys = record["keys"][: len(record["keys"]) - len(record["since"]) + len(since)]
        ended = (tuple(one[name] for name in _ENDED) for one in record.get("ended", ()))
        return cls(tuple(keys), tuple(since), tuple(ended))

    def with_found(self, found: Sequence[str], base_slot: int) -> Listed:
        """Add keys that are listed from a base slot on."""
        keys, since = (*self.keys, *found), (*self.since, *[base_slot] * len(found))
        return replace(self, keys=keys, since=since)

    def without(self, low: Flags, base_slot: int) -> Listed:
        """Take keys away that are not listed from a base slot on.

        Keys that are listed from the first slot on stay.

        Args:
            low: for each key, whether it leaves, shape (keys,).
            base_slot: the first one without them.
        """
        always = len(self.keys) - len(self.since)
        found = list(zip(self.keys[always:], self.since, low[always:].tolist(), strict=True))
        return Listed(
            (*self.keys[:always], *(key for key, _, leaves in found if not leaves)),
            tuple(since for _, since, leaves in found if not leaves),
            (*self.ended, *((key, since, base_slot) for key, since, leaves in found if leaves)),
        )


@dataclass(frozen=True, eq=False)
class Excess:
    """By how much the released estimates of bins exceed their errors in a discovery slot.

    A key leaves if the sum of its estimates is below the sum of their standard errors. However the
    errors are correlated, the second sum is at least the standard error of the first. We considered
    two alternatives, which keep keys without events. Under a bound for independent errors, a key
    stays because forecasts have almost the same error in all slots, and estimates that are clamped
    at 0 are too large on average. If every single estimate had to be below its error, a key would
    stay because noise exceeds its standard error in one slot of six.
    """

    SCHEMA = state_codec.record_schema(
        "Excess", slot=["null", "long"], by_bin={"type": "array", "items": "double"}
    )

    slot: int | None
    """The discovery slot; None before the first release."""
    by_bin: Floats
    """Sum over the releases of this slot, shape (bins,); NaN where an error is unknown."""

    @classmethod
    def start(cls, query: Query) -> Excess | None:
        """Before the first release; None if the query discovers no keys."""
        if discovered_keys(query) is None:
            return None
        return cls(None, np.zeros(query.domain.bins))

    def after(self, slot: int, values: Floats, stderr: Floats) -> Excess:
        """Add a release.

        Args:
            slot: its discovery slot.
            values: released estimates of cells, shape (nodes, parts). The parts of a bin add up to
                a multiple of its events.
            stderr: their standard errors, of the same shape.
        """
        excess = (values - stderr).sum(axis=1)[: len(self.by_bin)]
        return Excess(slot, self.by_bin + excess if slot == self.slot else excess)

    def grown(self, origin: Integers) -> Excess:
        """The same for other bins, as of :func:`nodes_before`."""
        return Excess(self.slot, carried(np.zeros(len(origin)), self.by_bin, origin))

    def record(self) -> dict[str, Any]:
        """Values of `SCHEMA`."""
        return {"slot": self.slot, "by_bin": self.by_bin.tolist()}

    def low(self, slot: int, keys: int) -> Flags:
        """For each of the first bins, whether its key leaves after a discovery slot: (keys,)."""
        return (self.by_bin[:keys] < 0) & (slot == self.slot)


def listed_of(query_set: QuerySet) -> dict[str, Listed]:
    """The keys that were discovered, by the name of the query."""
    both = ((query, discovered_keys(query)) for query in query_set)
    return {
        query.name: Listed(keys.values, keys.since, keys.ended)
        for query, keys in both
        if keys is not None and keys.found
    }


def with_keys(query_set: QuerySet, found: Mapping[str, Listed]) -> QuerySet:
    """The query set with the keys that were discovered, by the name of the query."""

    def listed(query: Query) -> DiscoveredKeys:
        own = found[query.name]
        keys = _keys(query)
        return replace(keys, values=own.keys, found=True, since=own.since, ended=own.ended)

    return _replaced(query_set, listed)


def declared(query: Query) -> Query:
    """A query as it was before any keys were discovered."""
    keys = discovered_keys(query)
    return query if keys is None else _with_listed(query, keys.declared)


def before_discovery(query_set: QuerySet) -> QuerySet:
    """The query set as it was before any keys were discovered."""
    return _replaced(query_set, lambda query: _keys(query).declared)


def nodes_before(before: Query, query: Query, nodes: int) -> Integers:
    """For each node of a query, its number in the query `before`, or -1 for a new key.

    A key that left and was found again later is a new key. Only keys come and go, so all other bins
    and all groups keep their order.

    Args:
        before: the query with the keys that were listed before.
        query: the query with other keys.
        nodes: how many nodes this query has: bins, or bins and groups, or only those that are
            measured (see :meth:`Tree.measured`).
    """
    old, new = _keys(before).values, _keys(query).values
    place = {key: number for number, key in enumerate(old)}
    listed = np.array([place.get(key, -1) for key in new], np.int64)
    return np.concatenate([listed, len(old) + np.arange(nodes - len(new))])


def _replaced(query_set: QuerySet, listed: Callable[[Query], DiscoveredKeys]) -> QuerySet:
    """Replace the keys of all queries that discover keys."""
    some = {query.name for query in discovering(query_set)}
    queries = (
        _with_listed(query, listed(query)) if query.name in some else query for query in query_set
    )
    return replace(query_set, queries=tuple(queries))


def _with_listed(query: Query, listed: DiscoveredKeys) -> Query:
    _, other, null = parts_of(query.domain)
    tree = query.tree.with_keys(listed.unlisted_bins)
    return replace(query, domain=with_bins(listed, other, null), tree=tree)


def with_one_key(query_set: QuerySet) -> QuerySet:
    """The query set with a single listed key in place of discovered keys, to predict its errors.

    No budget is reserved for a discovery. The error of `top` is that of its counts. Predict errors
    with :func:`adjacency_of_one_key`.
    """
    some = {query.name for query in discovering(query_set)}
    one, above = Categories(("key",)), Tree(((ALL,),))
    queries = [
        replace(
            each,
            domain=one,
            statistic=_without_ranks(each.statistic),
            tree=above if each.tree.levels else FLAT,
        )
        if each.name in some
        else each
        for each in query_set
    ]
    return replace(query_set, queries=tuple(queries))


def adjacency_of_one_key(query: Query, adjacency: str) -> str:
    """The adjacency with which the single key of :func:`with_one_key` has the noise of a release.

    A release has at least two bins, a key and `unlisted`. In slots of several base slots, a removed
    event may therefore be replaced by one of another bin, which takes the noise of `REPLACE` (see
    `windows.py`). A histogram of a single bin would be released with half of this noise.
    """
    return REPLACE if discovered_keys(query) is not None and query.cut.longest > 1 else adjacency


def _without_ranks(statistic: Statistic) -> Statistic:
    return Count() if isinstance(statistic, TopK) else statistic


def discovery_budgets(query_set: QuerySet, requirements: Requirements) -> Units:
    """Units of each class's budget that discoveries may spend in a window, shape (K,).

    Raises:
        ConfigurationError: if nothing would be left for the releases.
    """
    total = np.zeros(len(requirements), np.int64)
    for query in discovering(query_set):
        total += _keys(query).budgets(requirements.budgets)
    if (total >= requirements.budgets).any():
        raise ConfigurationError(
            "the shares of the budget for discovering keys add up to all of it: give each of them "
            "a smaller share"
        )
    return total


def discovery_length(query: Query, requirements: Requirements) -> int:
    """Base slots of a discovery slot."""
    return requirements.longest * _keys(query).windows


class Discoverer:
    """The public facts that decide how the keys of one query are discovered.

    Args:
        query: one of those that discover keys.
        query_set: all queries. Each delta is divided evenly among those that discover keys.
        requirements: of each class, windows in base slots.
        sizes: public number of users of each class, shape (K,).
        deltas: of all discoveries in a window, for each class, shape (K,). Users of a class with 0
            are not counted.
        adjacency: what neighbouring inputs differ in.
    """

    def __init__(
        self,
        query: Query,
        query_set: QuerySet,
        requirements: Requirements,
        sizes: Integers,
        deltas: Sequence[float],
        adjacency: str,
    ) -> None:
        self.query, self.keys = query, _keys(query)
        self.whole = requirements.forever
        """Whether the whole input is one discovery slot, which has the number 0."""
        self.length = discovery_length(query, requirements)
        """Base slots of a discovery slot, unless it is the whole input."""
        self._windows = requirements.windows
        places = self.keys.max_keys
        if self.whole:
            _check_whole(query)
            priced = np.ones_like(self._windows)
            self._draws = (Draw(1, places, replaced=adjacency == REPLACE),) * len(priced)
        else:
            priced = self._windows
            by_window = {
                window: cheapest_draw(self.length, window, places, adjacency)
                for window in np.unique(priced).tolist()
            }
            self._draws = tuple(by_window[window] for window in priced.tolist())
        self._budgets = np.array(self.keys.budgets(requirements.budgets), np.int64)
        units = {delta: delta_units(delta) if delta else 0 for delta in set(deltas)}
        queries = len(discovering(query_set))
        self._deltas = np.array([units[delta] // queries for delta in deltas], np.int64)
        try:
            facts = (tuple(one.tolist()) for one in (priced, self._budgets, self._deltas, sizes))
            self.terms = _terms_of(self._draws, *facts)
        except ConfigurationError as error:
            raise ConfigurationError(f"query {query.name!r}: {error}") from None

    def slots_of(self, base_slots: Integers) -> Integers:
        """The discovery slot of each base slot."""
        return np.zeros_like(base_slots) if self.whole else base_slots // self.length

    def filter(self) -> DiscoveryFilter:
        """A filter that has booked nothing."""
        return DiscoveryFilter(self._windows, self._budgets, self._deltas, self._draws)


@lru_cache(maxsize=64)
def _terms_of(draws: tuple[Draw, ...], *facts: tuple[int, ...]) -> DiscoveryTerms:
    """As :meth:`DiscoveryTerms.of`, once for all plans of a stream: each pass makes several."""
    return DiscoveryTerms.of(draws, *(np.array(one, np.int64) for one in facts))


def _check_whole(query: Query) -> None:
    """Raise ConfigurationError if `windows` is given, and the whole input is one discovery slot."""
    if _keys(query).windows != 1:
        raise ConfigurationError(
            f"query {query.name!r}: windows is {_keys(query).windows}, and with a lifetime budget "
            "all of the input is one discovery slot: leave windows out"
        )


def _keys(query: Query) -> DiscoveredKeys:
    keys = discovered_keys(query)
    assert keys is not None
    return keys
