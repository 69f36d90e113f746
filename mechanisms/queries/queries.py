"""What is asked of one stream of events: queries, and a query set of them.

All of it is public. Beam, files and clocks are not known here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

from streamveil.mechanisms.core.arguments import column_names, domain_of, refuse, slots_of, text_of
from streamveil.mechanisms.core.domains import (
    Categories,
    Domain,
    check_value_columns,
    parts_of,
)
from streamveil.mechanisms.core.identity import Form, Identified
from streamveil.mechanisms.core.parameter_checks import finite_number, whole
from streamveil.mechanisms.core.records import (
    DISTINCT,
    KEEPS,
    UNIFORM,
    ConfigurationError,
    Slots,
    format_time,
)
from streamveil.mechanisms.core.wording import opt
from streamveil.mechanisms.discovery.discovered_keys import DiscoveredKeys
from streamveil.mechanisms.queries import cuts
from streamveil.mechanisms.queries.conditions import Condition
from streamveil.mechanisms.queries.cuts import Cut, Even, Months, cut_of
from streamveil.mechanisms.queries.measures import Measure
from streamveil.mechanisms.queries.statistics import Count, Statistic, TopK
from streamveil.mechanisms.queries.trees import ALL, FLAT, Tree
from streamveil.mechanisms.registry import DEFAULT, parse

EVERYTHING = Categories((ALL,))
"""The one bin of a query without a domain."""

MOST_CELLS = 1 << 22
"""Of a query's histogram: more would not fit into the memory of a worker."""
LEAST_WEIGHT, MOST_WEIGHT = 1e-12, 1e12
"""Weights further apart are no floats any more where they meet squares of budgets."""
NO_GROUPS_OF_TOP = "a group is at least as large as each of its bins, so groups would rank first"
LONGEST_TITLE, LONGEST_UNIT = 200, 40
"""Characters."""
_LONGEST = 60  # of a value in a message

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


@dataclass(frozen=True)
class Query(Identified):
    """A query in a query set, which computes one statistic, such as a mean, by slot and key.

    It is easier to define queries with functions such as `sv.count`. streamveil checks the
    definitions and converts them to `Query` objects, which mechanisms and result files use.

    Raises:
        ConfigurationError: if a field of the query is not valid. The error message names the query.

    Example:
        >>> Query("visits", value="place", domain=Categories(("cafe", "park"))).sensitivity
        1
    """

    IDENTITY = Form(
        "query",
        (
            *("name", "slots", "value", "domain", "statistic", "where", "tree"),
            *("mechanism", "max_contributions", "keep"),
        ),
        apart=("weight", "share", "times", "title", "unit"),
    )

    name: str
    """Name of the query and of its result file. It has letters, digits, `-` and `_`, and begins
    with a letter or a digit."""
    slots: int | Months = 1
    """Number of base slots in a slot of the query. If the slots are calendar months, the query set
    converts them to base slots."""
    value: tuple[str, ...] = ()
    """Columns to group by; empty without keys."""
    domain: Domain = EVERYTHING
    """The public keys."""
    statistic: Statistic = field(default_factory=Count)
    """The statistic, with its column and bounds."""
    where: tuple[Condition, ...] = ()
    """Filters. An event is kept if it meets all of them."""
    tree: Tree = FLAT
    """Groups of keys for which results are also reported."""
    times: tuple[int | Months, ...] = ()
    """Length of each rollup in base slots, or in calendar months. Each is a multiple of the query's
    slot and of the rollup before it. Calendar months come last."""
    mechanism: str = DEFAULT
    """Name of the mechanism, with its options."""
    max_contributions: int = 1
    """The largest number of events that are kept per user and slot of the query."""
    keep: str = UNIFORM
    """Which events are kept if a user has more than `max_contributions` events: `uniform` or
    `distinct`."""
    weight: float = 1.0
    """Importance of the query's squared error, in squares of the most that one event may add."""
    share: float | None = None
    """Fraction of the privacy budget, above 0 and at most 1. If None, the fraction is planned."""
    title: str = ""
    """Text to show instead of the name. It may change at any time."""
    unit: str = ""
    """Unit of the results, such as `minutes`, shown on pages."""

    def __post_init__(self) -> None:
        """Check all fields."""
        check_name(self.name)
        try:
            self._check()
        except ConfigurationError as error:
            raise ConfigurationError(f"query {self.name!r}: {error}") from None

    def _check(self) -> None:
        if not isinstance(self.slots, Months):
            whole("slots", self.slots)
        whole("max_contributions", self.max_contributions)
        if self.keep not in KEEPS:
            raise ConfigurationError(f"keep {self.keep!r} is unknown: choose {' or '.join(KEEPS)}")
        object.__setattr__(self, "domain", domain_of(self.domain))
        if self.value:
            object.__setattr__(self, "value", column_names(self.value, "value"))
            if self.domain == EVERYTHING:
                raise ConfigurationError(
                    f"the domain of {', '.join(self.value)} is missing: give the public bins "
                    "(domain), or leave the value out to ask about all events"
                )
            check_value_columns(self.domain, self.value)
        elif self.domain != EVERYTHING:
            raise ConfigurationError(
                f"it has a domain of {self.domain.bins} bins, but no column that is in one of "
                "them: name the column (value)"
            )
        if isinstance(self.statistic, type) or not hasattr(self.statistic, "weights"):
            refuse("statistic", self.statistic, "give one, such as Count()")
        discovered = isinstance(parts_of(self.domain).listed, DiscoveredKeys)
        cells = self.domain.bins * self.statistic.weights.shape[1]
        if cells > MOST_CELLS:
            raise ConfigurationError(
                f"its histogram has {cells:,} cells, and at most {MOST_CELLS:,} can be counted: "
                "ask for fewer bins"
            )
        if not isinstance(self.tree, Tree):
            refuse("tree", self.tree, "give one, such as Tree.of(domain, levels)")
        if self.statistic.once and self.tree.levels and self.max_contributions > 1:
            raise ConfigurationError(
                "a user who is in two bins of a group would be two users of the group: leave "
                f"max_contributions={self.max_contributions} out, or the levels"
            )
        if self.keep == DISTINCT and self.statistic.column is not None:
            raise ConfigurationError(
                f"keep 'distinct' chooses by bins alone, and events differ in their "
                f"{self.statistic.column} as well: leave keep out, or ask for counts"
            )
        if isinstance(self.statistic, TopK):
            if self.tree.levels:
                raise ConfigurationError(
                    f"{NO_GROUPS_OF_TOP}: leave the levels out, or ask for them in a query of "
                    "their own"
                )
            if self.statistic.k > self.domain.bins and not discovered:
                raise ConfigurationError(
                    f"k is {self.statistic.k}, and there are {self.domain.bins} bins: give at most "
                    "as many"
                )
        self._check_times()
        conditions = tuple(self.where) if isinstance(self.where, Iterable) else (self.where,)
        for condition in conditions:
            if not isinstance(condition, Condition):
                refuse("where", condition, "give conditions, such as Condition('kind', ('car',))")
        object.__setattr__(self, "where", conditions)
        self.tree.labels(self.domain)
        self.tree.above(self.domain.bins)
        parse(text_of(self.mechanism, "mechanism", "give the name of a mechanism"))
        wanted = f"a number above 0, from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}"
        weight = _positive("weight", self.weight, LEAST_WEIGHT, MOST_WEIGHT, wanted)
        object.__setattr__(self, "weight", weight)
        if self.share is not None:
            wanted = "a number above 0 and at most 1, or none to plan it"
            object.__setattr__(self, "share", _positive("share", self.share, 0, 1, wanted))
        for key, longest in (("title", LONGEST_TITLE), ("unit", LONGEST_UNIT)):
            text = text_of(getattr(self, key), key, "write text")
            if len(text) > longest or not text.isprintable():
                raise ConfigurationError(
                    f"{key} is {text[:_LONGEST]!r}: write one line of at most {longest} characters"
                )

    def _check_times(self) -> None:
        if not isinstance(self.times, Iterable) or isinstance(self.times, str):
            refuse("times", self.times, "list how many base slots each has")
        times = (one if isinstance(one, Months) else whole("times", one) for one in self.times)
        object.__setattr__(self, "times", tuple(times))
        below, called = self.cut, "the query's slot has"
        for longer in self.times:
            now = cut_of(longer)
            if isinstance(now, Months) and isinstance(below, Even):
                below, called = self.cut, "the query's slot has"
            if below.longer(now) is None:
                raise ConfigurationError(
                    f"times: {_called(now, 'base slots')} are not two or more times the "
                    f"{_called(below)} that {called}: give times from the shortest to the longest, "
                    "each of whole ones of the one before"
                )
            below, called = now, "the time before has"

    def on(self, base: Slots) -> Query:
        """Return the query, adapted to the base slots of a query set.

        Raises:
            ConfigurationError: if the query has slots of calendar months, and a month does not
                consist of whole base slots.
        """
        if not any(isinstance(one, Months) for one in (self.slots, *self.times)):
            return self
        try:
            slots, *times = (cuts.fitted(one, base) for one in (self.slots, *self.times))
        except ConfigurationError as error:
            raise ConfigurationError(f"query {self.name!r}: {error}") from None
        return replace(self, slots=slots, times=tuple(times))

    @property
    def cut(self) -> Cut:
        """The base slots that belong to each slot of the query."""
        return cut_of(self.slots)

    @property
    def longer(self) -> tuple[Cut, ...]:
        """For each rollup, which slots of the query make up a slot of the rollup.

        The rollups are in the same order as their lengths in `times`.
        """
        found = (self.cut.longer(cut_of(one)) for one in self.times)
        return tuple(one for one in found if one is not None)  # all are: see _check_times

    @property
    def fixed_slots(self) -> int:
        """Number of base slots in each slot.

        Raises:
            ConfigurationError: if the slots are calendar months, because months do not all have the
                same length.
        """
        if isinstance(self.slots, Months):
            raise ConfigurationError(
                f"query {self.name!r} has slots of calendar months, which is for slots of one "
                "length only: write such as 30d or 4w in their place, or months as base slots"
            )
        return self.slots

    @property
    def heading(self) -> str:
        """The title of the query, or its name if it has no title."""
        return self.title or self.name

    @property
    def fixed_share(self) -> Fraction:
        """The query's share of the budget as a Fraction, or 0 if streamveil chooses the share.

        The share is a fraction because ten fractions of 1/10 add up to exactly 1. Ten floats of 0.1
        add up to slightly less than 1.
        """
        return Fraction(0) if self.share is None else Fraction(str(float(self.share)))

    @property
    def measure(self) -> Measure:
        """The amount that each event adds to each bin of the query's histogram."""
        return Measure(self.statistic.weights, self.tree.measured(self.domain.bins))

    @property
    def sensitivity(self) -> int:
        """The most by which one user can change a slot's histogram (L1 sensitivity)."""
        return self.measure.sensitivity * self.max_contributions


@dataclass(frozen=True)
class QuerySet(Identified):
    """Queries that share each user's privacy budget.

    Raises:
        ConfigurationError: if there are no queries, if two queries have the same name or title, if
            the shares add up to more than 1, or if the shares add up to 1 but some queries have no
            share.

    Example:
        >>> visits = Query("visits", value="place", domain=Categories(("cafe", "park")))
        >>> QuerySet(Slots.of("1h"), [visits]).slots_of(visits).text
        '1h'
    """

    IDENTITY = Form("query set", ("base", "queries"))

    base: Slots
    """The base slots, in which the windows of requirements are counted."""
    queries: tuple[Query, ...]
    """The queries, in the order of the results."""

    def __post_init__(self) -> None:
        """Check the queries together."""
        object.__setattr__(self, "base", slots_of(self.base, "base"))
        if isinstance(self.queries, Query) or not isinstance(self.queries, Iterable):
            refuse("queries", self.queries, "give a list of queries")
        queries = (one.on(self.base) if isinstance(one, Query) else one for one in self.queries)
        object.__setattr__(self, "queries", tuple(queries))
        if not self.queries:
            raise ConfigurationError("the query set has no queries: ask at least one")
        named: dict[str, str] = {}
        for query in self.queries:
            if not isinstance(query, Query):
                refuse("a query", query, "give a list of Query(name, ...)")
            other = named.setdefault(query.name.lower(), query.name)
            if other != query.name:
                raise ConfigurationError(
                    f"queries {other!r} and {query.name!r} differ only in upper and lower case, "
                    "which some file systems do not tell apart: rename one"
                )
        if len(named) < len(self.queries):
            names = [query.name for query in self.queries]
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigurationError(f"two queries are called {twice!r}: rename one")
        headings = [query.heading for query in self.queries]
        for heading in headings:
            if headings.count(heading) > 1:
                raise ConfigurationError(
                    f"two queries are headed {heading!r} on pages: give one of them another title"
                )
        self._check_shares()
        for query in self.queries:
            try:
                for slots in (query.slots, *query.times):
                    self.of_length(slots)
            except ConfigurationError as error:
                raise ConfigurationError(f"query {query.name!r}: {error}") from None

    def _check_shares(self) -> None:
        total = sum((query.fixed_share for query in self.queries), Fraction(0))
        if total > 1:
            raise ConfigurationError(
                f"the shares add up to {Decimal(total.numerator) / total.denominator}, more than "
                "the whole budget: make them 1 or less together"
            )
        unplanned = [query.name for query in self.queries if query.share is None]
        if total == 1 and unplanned:
            raise ConfigurationError(
                f"the shares add up to 1, which leaves nothing for query {unplanned[0]!r}: give "
                "it a share, and others less"
            )

    def __iter__(self) -> Iterator[Query]:
        return iter(self.queries)

    @property
    def single_count(self) -> Query | None:
        """The query, if the set consists of a single plain count by slot and given key.

        Otherwise None.
        """
        first, *others = self.queries
        simple = (
            isinstance(first.statistic, Count)
            and bool(first.value)
            and not isinstance(parts_of(first.domain).listed, DiscoveredKeys)
            and first.slots == 1
            and first.share is None
            and not (first.where or first.times)
            and first.tree == FLAT
        )
        return first if simple and not others else None

    def slots_of(self, query: Query) -> Slots:
        """Return the slots (time windows) of a query of this set."""
        return self.of_length(query.slots)

    def of_length(self, slots: int | Months) -> Slots:
        """Return slots that consist of the given number of base slots or calendar months."""
        return cuts.slots_of(slots, self.base)

    def check_range(self, first: int | None, last: int | None) -> None:
        """Check that a range of base slots contains only whole slots of every query.

        Args:
            first: first base slot of the range. If None, the range has no beginning.
            last: last base slot of the range. If None, the range has no end.

        Raises:
            ConfigurationError: if the range of base slots begins or ends in the middle of a slot of
                a query.
        """
        for query in self.queries:
            cut = query.cut
            for slot, verb in ((first, "start"), (None if last is None else last + 1, "end")):
                if slot is None or cut.begins(slot):
                    continue
                before = cut.of(slot)
                near, here, following = (
                    format_time(self.base.start(each))
                    for each in (cut.first(before), slot, cut.first(before + 1))
                )
                raise ConfigurationError(
                    f"query {query.name!r} has slots of {self.slots_of(query).text}, and the range "
                    f"{verb}s at {here}, within one: {verb} at {near} or {following} ({opt[verb]})"
                )


def _called(cut: Cut, unit: str = "") -> str:
    """What a message calls a length."""
    return cut.text if isinstance(cut, Months) else f"{cut.longest} {unit}".strip()


def check_name(name: Any) -> None:
    """Refuse a name of a query that no file can have. Raises ConfigurationError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"query name {name!r} cannot be that of a file: write at most 100 letters a to z, "
            "digits, '-' and '_', beginning with a letter or a digit"
        )


def _positive(name: str, value: Any, least: float, most: float, wanted: str) -> float:
    number = finite_number(value)
    if number is None or not (number > 0 and least <= number <= most):
        raise ConfigurationError(f"{name} is {value!r}: give {wanted}")
    return value if isinstance(value, (int, float)) else number
