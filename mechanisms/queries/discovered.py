"""Queries whose keys are discovered: what that costs, and the query set once they are found.

Keys are discovered from a whole bounded input, before anything else is released, or while a stream
runs, in one discovery slot after the other. In a stream, a key is listed from the base slot after
its discovery slot, and stays listed. Listed keys are public, and the query counts them like any
other keys. All other keys are in one bin.

Guarantee: (w, epsilon, delta). Over any `window` consecutive base slots, all that a run publishes
differs in distribution by at most a factor exp(epsilon_k), except with probability delta_k, for a
user of class k.
Proof: discoveries of different queries, of different discovery slots, and the releases compose. The
cost of a discovery in epsilon and delta is proved in `discovery/terms.py`. Its part of epsilon is
reserved (`set_aside`), and is included in the cost of every window. So is the cost of choosing
bounds privately (`bounds.py`), whose sample does not depend on the keys. Given the keys and bounds,
the releases cost the rest of epsilon, and no delta. In a stream, the keys that are listed in a base
slot are a function of what was published before this slot. They only decide in which bins events
are counted, so a histogram has the same sensitivity as with keys that the query lists. This holds
for levels as well, because the names of groups are public, and the group of an event follows from
its key alone. `adaptive/growth.py` proves that mechanisms may continue with more bins. No account
of spent budget depends on the bins.

Participation limits only apply to the releases. Neighbouring inputs are the same with limits, and
the cost of a discovery covers all events of a user in a window, whether the releases count them or
not. Given the keys, `limits.py` proves that the releases cost no more than the shares of the
queries, for any domain. So the sum is the same as without limits, and `LimitedFilter` adds up both
parts.

With a lifetime budget, neighbouring inputs differ in all events of a user. The whole bounded input
is one discovery slot, which costs what `price.py` has for a slot that is covered entirely. It is
discovered once. The filter remembers it for the longest window that there is, and refuses another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.budgets import Requirements, Units
from streamveil.mechanisms.core.domains import Categories, parts_of, with_bins
from streamveil.mechanisms.core.records import REPLACE, ConfigurationError
from streamveil.mechanisms.discovery.deltas import delta_units
from streamveil.mechanisms.discovery.discovered_keys import LATEST, DiscoveredKeys
from streamveil.mechanisms.discovery.discovery_filter import DiscoveryFilter
from streamveil.mechanisms.discovery.price import Draw, cheapest_draw
from streamveil.mechanisms.discovery.terms import DiscoveryTerms
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


@dataclass(frozen=True)
class Listed:
    """The keys of a query that are listed so far. They are public."""

    keys: tuple[str, ...]
    """In the order in which they were listed."""
    since: tuple[int, ...] = ()
    """As in :class:`DiscoveredKeys`."""

    def with_found(self, found: Sequence[str], base_slot: int) -> Listed:
        """Add keys that are listed from a base slot on."""
        return Listed((*self.keys, *found), (*self.since, *[base_slot] * len(found)))


def listed_of(query_set: QuerySet) -> dict[str, Listed]:
    """The keys that were discovered, by the name of the query."""
    both = ((query, discovered_keys(query)) for query in query_set)
    return {
        query.name: Listed(keys.values, keys.since)
        for query, keys in both
        if keys is not None and keys.found
    }


def with_keys(query_set: QuerySet, found: Mapping[str, Listed]) -> QuerySet:
    """The query set with the keys that were discovered, by the name of the query."""

    def listed(query: Query) -> DiscoveredKeys:
        own = found[query.name]
        return replace(_keys(query), values=own.keys, found=True, since=own.since)

    return _replaced(query_set, listed)


def listed_at(query_set: QuerySet, base_slot: int | None) -> QuerySet:
    """The query set with the keys that are listed in a base slot, or before the first (None)."""
    return _replaced(query_set, lambda query: _keys(query).at(base_slot))


def listed_numbers(query_set: QuerySet, base_slot: int | None = LATEST) -> tuple[int, ...]:
    """For each query that discovers keys, how many are listed in a base slot.

    None means before the first slot. By default, all listed keys are counted.
    """
    return tuple(_keys(query).number_at(base_slot) for query in discovering(query_set))


def declared(query: Query) -> Query:
    """A query as it was before any keys were discovered."""
    keys = discovered_keys(query)
    return query if keys is None else _with_listed(query, keys.declared)


def before_discovery(query_set: QuerySet) -> QuerySet:
    """The query set as it was before any keys were discovered."""
    return _replaced(query_set, lambda query: _keys(query).declared)


def nodes_before(before: Query, query: Query, nodes: int) -> Integers:
    """For each node of a query, its number in the query `before`, or -1 for a new key.

    Only keys are added, so all other bins and all groups keep their order.

    Args:
        before: the query with fewer keys.
        query: the query with all keys.
        nodes: how many nodes this query has: bins, or bins and groups, or only those that are
            measured (see :meth:`Tree.measured`).
    """
    first, keys = len(_keys(before).values), len(_keys(query).values)
    others = first + np.arange(nodes - keys)
    return np.concatenate([np.arange(first), np.full(keys - first, -1), others])


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

    No budget is reserved for a discovery. The error of `top` is that of its counts.
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


class Discoverer:
    """What discovers the keys of one query: public facts alone.

    Args:
        query: one of those that discover keys.
        query_set: all of them, among which each delta is divided evenly.
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
        """Whether the whole input is one discovery slot, with the number 0."""
        self.length = requirements.longest * self.keys.windows
        """Base slots of a discovery slot, unless it is the whole input."""
        self._windows = requirements.windows
        places = self.keys.max_keys
        if self.whole:
            _check_whole(query)
            length, priced = 1, np.ones_like(self._windows)
            self._draws = (Draw(length, places, replaced=adjacency == REPLACE),) * len(priced)
        else:
            priced = self._windows
            self._draws = tuple(
                cheapest_draw(self.length, window, places, adjacency) for window in priced.tolist()
            )
        self._budgets = np.array(self.keys.budgets(requirements.budgets), np.int64)
        units = {delta: delta_units(delta) if delta else 0 for delta in set(deltas)}
        queries = len(discovering(query_set))
        self._deltas = np.array([units[delta] // queries for delta in deltas], np.int64)
        try:
            self.terms = DiscoveryTerms.of(self._draws, priced, self._budgets, self._deltas, sizes)
        except ConfigurationError as error:
            raise ConfigurationError(f"query {query.name!r}: {error}") from None

    def slots_of(self, base_slots: Integers) -> Integers:
        """The discovery slot of each base slot."""
        return np.zeros_like(base_slots) if self.whole else base_slots // self.length

    def filter(self) -> DiscoveryFilter:
        """A filter that has booked nothing."""
        return DiscoveryFilter(self._windows, self._budgets, self._deltas, self._draws)


def _check_whole(query: Query) -> None:
    """Refuse an option of discovery slots where the whole input is one. Raises."""
    if _keys(query).windows != 1:
        raise ConfigurationError(
            f"query {query.name!r}: windows is {_keys(query).windows}, and with a lifetime budget "
            "all of the input is one discovery slot: leave it out"
        )


def _keys(query: Query) -> DiscoveredKeys:
    keys = discovered_keys(query)
    assert keys is not None
    return keys
