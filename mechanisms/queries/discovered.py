"""Queries whose keys are discovered: what that costs, and the query set once they are found.

Keys are discovered once, from all of a bounded input, before anything else is released. From then
on they are public, and the query counts them as it would count any other keys.

Guarantee: (w, epsilon, delta). Over any `window` consecutive base slots, all that a run publishes
differs in distribution by at most a factor exp(epsilon_k), except with probability delta_k, for a
user of class k.
Proof: discoveries of different queries and the releases compose. A discovery costs a part of
epsilon and of delta, by `discovery/terms.py`; its part of epsilon is set aside (`set_aside`) and
counts in every window. Given the keys, the releases cost the rest of epsilon, and nothing of delta.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.budgets import Requirements, Units
from streamveil.mechanisms.core.domains import Categories, parts_of, with_bins
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.discovery.deltas import delta_units
from streamveil.mechanisms.discovery.discovered_keys import DiscoveredKeys
from streamveil.mechanisms.discovery.discovery_filter import DiscoveryFilter
from streamveil.mechanisms.discovery.price import cheapest_draw
from streamveil.mechanisms.discovery.terms import DiscoveryTerms
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.statistics import Count, Statistic, TopK


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


def with_keys(query_set: QuerySet, found: Mapping[str, Sequence[str]]) -> QuerySet:
    """The query set with the keys that were discovered, by the name of the query."""
    return replace(query_set, queries=tuple(_with_keys(query, found) for query in query_set))


def _with_keys(query: Query, found: Mapping[str, Sequence[str]]) -> Query:
    keys = discovered_keys(query)
    if keys is None:
        return query
    _, other, null = parts_of(query.domain)
    listed = replace(keys, values=tuple(found[query.name]), found=True)
    return replace(query, domain=with_bins(listed, other, null))


def with_one_key(query_set: QuerySet) -> QuerySet:
    """The query set with one given key in place of all that are discovered, to predict its errors.

    No budget is set aside for a discovery. The error of `top` is that of its counts.
    """
    some = {query.name for query in discovering(query_set)}
    one = Categories(("key",))
    queries = [
        replace(each, domain=one, statistic=_without_ranks(each.statistic))
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
        query_set: all of them, among which delta is divided evenly.
        requirements: of each class, windows in base slots.
        sizes: public number of users of each class, shape (K,).
        delta: of all discoveries in a window.
        adjacency: what neighbouring inputs differ in.
    """

    def __init__(
        self,
        query: Query,
        query_set: QuerySet,
        requirements: Requirements,
        sizes: Integers,
        delta: float,
        adjacency: str,
    ) -> None:
        self.query, self.keys = query, _keys(query)
        self.length = requirements.longest * self.keys.windows
        """Base slots of a discovery slot."""
        self._windows = requirements.windows
        self._draws = tuple(
            cheapest_draw(self.length, window, self.keys.max_keys, adjacency)
            for window in self._windows.tolist()
        )
        self._budgets = np.array(self.keys.budgets(requirements.budgets), np.int64)
        units = delta_units(delta) // len(discovering(query_set))
        self._deltas = np.full(len(requirements), units, np.int64)
        try:
            self.terms = DiscoveryTerms.of(
                self._draws, self._windows, self._budgets, self._deltas, sizes
            )
        except ConfigurationError as error:
            raise ConfigurationError(f"query {query.name!r}: {error}") from None

    def filter(self) -> DiscoveryFilter:
        """A filter that has booked nothing."""
        return DiscoveryFilter(self._windows, self._budgets, self._deltas, self._draws)


def _keys(query: Query) -> DiscoveredKeys:
    keys = discovered_keys(query)
    assert keys is not None
    return keys
