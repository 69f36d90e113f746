"""The definition of one query, as an entry of a file or a function of `builders.py` gives it.

    {name: delay, by: carrier, keys: [AA, UA], every: 1d, statistic: mean, of: dep_delay,
     bounds: [-30, 180]}

A definition is checked when it is made. Only the query set says how long a slot is; then `every`
and `rollups` become whole numbers of slots, or calendar months that slots cut into days. In place
of numbers `bounds` may be `auto`: see `bounds.py`. What is wrong is reported in one line with the
query, the key, its value and the remedy.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from streamveil.mechanisms.core.arguments import column_of_table
from streamveil.mechanisms.core.domains import (
    Categories,
    Domain,
    Edges,
    Grid,
    check_value_columns,
    domain_of_list,
    domain_of_numbers,
    is_list,
    parts_of,
    with_bins,
)
from streamveil.mechanisms.core.local_days import CalendarMonths, lengths_near, multiple
from streamveil.mechanisms.core.parameter_checks import whole
from streamveil.mechanisms.core.records import (
    MICROSECONDS,
    UNIFORM,
    ConfigurationError,
    Slots,
)
from streamveil.mechanisms.discovery.discovered_keys import DISCOVER, UNLISTED, DiscoveredKeys
from streamveil.mechanisms.discovery.key_groups import KeyGroups
from streamveil.mechanisms.discovery.key_rules import KeyRules
from streamveil.mechanisms.queries import statistics
from streamveil.mechanisms.queries.bounds import KINDS, AutoBounds
from streamveil.mechanisms.queries.conditions import Condition, conditions_of
from streamveil.mechanisms.queries.cuts import Months, cut_of, length_in
from streamveil.mechanisms.queries.plain_values import (
    check_keys,
    columns,
    listed,
    nearest,
    number,
    numbers,
    plain,
    refuse,
    slots,
    text,
    texts,
    unpacked,
)
from streamveil.mechanisms.queries.queries import (
    EVERYTHING,
    Query,
    check_name,
)
from streamveil.mechanisms.queries.statistics import Count, Statistic, TopK
from streamveil.mechanisms.queries.trees import ALL, FLAT, Tree
from streamveil.mechanisms.registry import DEFAULT

TextDomain = Callable[[str, str | None], Categories | Edges | Grid]
"""Reads the domain that a text is or names, given the column whose values these are."""
Level = Mapping[str, tuple[str, ...]] | str

AUTO = "auto"
_RULES, _DISCOVERY = (
    ("allow", "deny", "fold_case", "longest"),
    ("max_keys", "windows", "share", "sample", "stay"),
)
"""The options of keys that are to be discovered."""

_STATISTICS: Mapping[str, tuple[str, ...]] = {
    "count": (),
    "distinct": (),
    **dict.fromkeys(KINDS, ("of", "bounds")),
    "quantiles": ("of", "edges", "bounds", "quantiles"),
    "top": ("k",),
}
"""The keys of each statistic."""
STATISTICS = tuple(_STATISTICS)
OF_NUMBERS = tuple(name for name, keys in _STATISTICS.items() if "of" in keys)
"""The statistics that read a column of numbers."""
KEYS = (
    *("name", "by", "keys", "other", "null", "every", "rollups", "where", "levels", "statistic"),
    *("of", "bounds", "edges", "quantiles", "k"),
    *("mechanism", "max_contributions", "keep", "weight", "share", "title", "unit"),
)
"""Of an entry of a file."""

_BOUNDS = "bounds: [LOW, HIGH]"
NO_NUMBERS = "this statistic counts events or users, and reads no column of numbers"
_RENAMED = {
    **dict.fromkeys(("value", "group_by", "groupby", "dimension"), "by"),
    **dict.fromkeys(("domain", "categories", "bins"), "keys"),
    **dict.fromkeys(("slot", "interval", "period", "freq"), "every"),
    **dict.fromkeys(("times", "rollup"), "rollups"),
    **dict.fromkeys(("column", "field"), "of"),
    **dict.fromkeys(("lower", "upper", "min", "max", "clip"), _BOUNDS),
    **dict.fromkeys(("filter", "condition"), "where"),
    **dict.fromkeys(("label", "description"), "title"),
    **dict.fromkeys(("aggregation", "metric", "type"), "statistic"),
    "max_slots": "it as an option of the release, --max_slots or max_slots=, for all queries",
    "delta": "it as an option of the release, --delta or delta=, for all queries",
    "max_keys": "keys: {discover: {max_keys: 2}}",
}
"""What keys were called before, or are called elsewhere, and what to write."""
_MEDIAN = "write statistic: quantiles with edges, and quantiles: [0.5]"
_CALLED = {
    **dict.fromkeys(("median", "percentile", "percentiles", "quantile"), _MEDIAN),
    **dict.fromkeys(("average", "avg"), "write mean"),
    **dict.fromkeys(("std", "sd"), "write stddev"),
    **dict.fromkeys(("unique", "users", "count_distinct"), "write distinct"),
}
"""What statistics are called elsewhere, where a similar name may be another statistic."""


def plain_domain(written: str, column: str | None = None) -> Categories | Edges | Grid:
    """The domain that a text writes itself; `io.read_domain` reads files besides."""
    return domain_of_numbers(written) or domain_of_list(written)


@dataclass(frozen=True)
class QueryDefinition:
    """The definition of a query, before it is checked against the base slot of a query set.

    To make a definition, call a function such as `sv.count`, or :meth:`of` with a mapping.

    Raises:
        ConfigurationError: if two of the query's settings cannot be combined. The error message
            names the query.
    """

    name: str
    """Name of the query and of its result file."""
    statistic: Statistic = field(default_factory=Count)
    """The statistic, with its column and bounds."""
    by: tuple[str, ...] = ()
    """Columns to group by."""
    keys: Categories | Edges | Grid | str | None = None
    """The public keys, or the name of their file, which is read when a query set is made."""
    other: str | None = None
    """Name of an extra key for values that are not in `keys`."""
    null: str | None = None
    """Name of an extra key for null values."""
    where: tuple[Condition, ...] = ()
    """Filters. An event is kept if it meets all of them."""
    levels: tuple[Level, ...] = field(default=(), hash=False)
    """Groups of keys for which results are also reported, as :meth:`Tree.of` takes them."""
    every: Slots | None = None
    """Slots of the query. If None, the query has the base slots of the query set."""
    rollups: tuple[Slots, ...] = ()
    """Lengths of rollups, which are longer slots for which results are also reported."""
    mechanism: str = DEFAULT
    """Name of the mechanism, with its options."""
    max_contributions: int = 1
    """The largest number of events that are kept per user and slot."""
    keep: str = UNIFORM
    """Which events are kept if a user has more than `max_contributions` events: `uniform` or
    `distinct`."""
    weight: float = 1.0
    """Importance of the query's squared error relative to other queries."""
    share: float | None = None
    title: str = ""
    unit: str = ""

    def __post_init__(self) -> None:
        """Check all fields, as far as no file must be read for it."""
        check_name(self.name)
        if not isinstance(self.keys, str):
            self.query(self._any_base)
            return
        # A file of keys may hold any number of them.
        with _named(self.name):
            if not self.by:
                raise ConfigurationError(_NO_COLUMN)
        statistic = Count() if isinstance(self.statistic, TopK) else self.statistic
        self._query(self._any_base, (), EVERYTHING, FLAT, statistic)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> QueryDefinition:
        """Make a query's definition from one entry of a query file.

        Args:
            given: the entry of the query file as a mapping. The page `docs/reference/queries.md`
                lists the keys that this mapping may have.

        Raises:
            ConfigurationError: if the entry of the query file is not valid. The error message names
                the query.
        """
        if given.get("name") is None:
            raise ConfigurationError("it has no name: give it one, such as name: visits")
        check_name(given["name"])
        with _named(given["name"]):
            fields = _fields_of(given)
        return cls(**fields)

    @property
    def _any_base(self) -> Slots:
        """Base slots that fit, before those of the query set are known."""
        lengths = self.every, *self.rollups
        if self.every is None or any(isinstance(one, CalendarMonths) for one in lengths):
            return Slots(MICROSECONDS["ms"])
        return self.every

    def query(self, base: Slots, read_domain: TextDomain = plain_domain) -> Query:
        """Check the definition against the base slots of a query set, and return the query.

        Args:
            base: the base slots of the query set.
            read_domain: function that reads the keys of the query from a file. The function is
                called if `keys` is a file name.

        Raises:
            ConfigurationError: if the length of a slot or rollup is not a multiple of the base
                slot, or if the keys or the levels are not valid.
        """
        with _named(self.name):
            domain = self._domain(read_domain)
            tree = self._tree(domain)
        return self._query(base, self.by, domain, tree, self.statistic)

    def _query(
        self, base: Slots, by: tuple[str, ...], domain: Domain, tree: Tree, statistic: Statistic
    ) -> Query:
        with _named(self.name):
            every, rollups = self._slots(base), self._rollups(base)
        return Query(
            self.name,
            every,
            by,
            domain,
            statistic,
            self.where,
            tree,
            rollups,
            mechanism=self.mechanism,
            max_contributions=self.max_contributions,
            keep=self.keep,
            weight=self.weight,
            share=self.share,
            title=self.title,
            unit=self.unit,
        )

    def _slots(self, base: Slots) -> int | Months:
        """The query's slots in those of the query set."""
        every = self.every or base
        found = length_in(every, base)
        if found is None:
            raise ConfigurationError(
                f"every is {every.text}, which is not a multiple of slot {base.text}: write "
                f"{lengths_near(every, base)}, or choose another slot"
            )
        return found

    def _rollups(self, base: Slots) -> tuple[int | Months, ...]:
        """The longer ones in slots of the query set: see `Query.times`."""
        own = self.every or base
        below, called, found = own, "the query's slots", list[int | Months]()
        for rollup in self.rollups:
            if isinstance(rollup, CalendarMonths) and not isinstance(below, CalendarMonths):
                below, called = own, "the query's slots"
            now = length_in(rollup, base)
            if now is None or not _is_whole(rollup, below, base):
                raise ConfigurationError(
                    f"rollups: {rollup.text} is not made of two or more whole times of "
                    f"{below.text}, which {called} have: write such as {_near(rollup, below)}, "
                    "from the shortest to the longest, or leave it out"
                )
            found.append(now)
            below, called = rollup, "those before it in the list"
        return tuple(found)

    def _domain(self, read_domain: TextDomain) -> Domain:
        if self.keys is None:
            if self.by:
                raise ConfigurationError(
                    f"the keys of {', '.join(self.by)} are missing: give the public values (keys), "
                    "or leave by out to ask about all events"
                )
            for key, name, what in (
                ("other", self.other, "that are none of the keys"),
                ("null", self.null, "that are null"),
            ):
                if name is not None:
                    raise ConfigurationError(
                        f"{key} is {name!r}, the key of values {what}, and there are no keys: give "
                        f"some, or leave {key} out"
                    )
            return EVERYTHING
        if not self.by:
            raise ConfigurationError(_NO_COLUMN)
        try:
            found = self.keys
            if isinstance(found, str):
                found = read_domain(found, self.by[0] if len(self.by) == 1 else None)
            check_value_columns(found, self.by)
            other = self.other
            if isinstance(found, DiscoveredKeys):
                other = UNLISTED if other is None else other
                found = self._grouped(found, other)
                _check_names(found, {other, self.null, *found.groups.bins, *self._named_groups})
            return with_bins(found, other, self.null)
        except ConfigurationError as error:
            raise ConfigurationError(f"keys: {error}") from None

    @property
    def _named_groups(self) -> Iterator[str]:
        """Names of the groups of all levels."""
        for level in self.levels:
            yield from [ALL] if isinstance(level, str) else level

    def _grouped(self, keys: DiscoveredKeys, other: str) -> DiscoveredKeys:
        """The keys with the groups of the lowest level, each with a bin for unlisted keys."""
        if not self.levels or isinstance(self.levels[0], str):
            return keys
        bins = {other, self.null}
        keys_of = {
            name: [text for text in members if text not in bins]
            for name, members in self.levels[0].items()
        }
        groups = {_unlisted(other, name): texts for name, texts in keys_of.items() if texts}
        return replace(keys, groups=KeyGroups.of(groups, keys.rules))

    def _tree(self, domain: Domain) -> Tree:
        if not self.levels:
            return FLAT
        if domain == EVERYTHING:
            raise ConfigurationError("levels are groups of keys, and there are none: give keys")
        listed, other, null = parts_of(domain)
        levels = self.levels
        if isinstance(listed, DiscoveredKeys) and other and not isinstance(levels[0], str):
            known, bins = listed.groups.bins, (other, null)
            # In place of keys, a group has the bin of its unlisted keys.
            lowest = {
                name: (
                    *(one for one in [_unlisted(other, name)] if one in known),
                    *(text for text in members if text in bins),
                )
                for name, members in levels[0].items()
            }
            levels = lowest, *levels[1:]
        return Tree.of(domain, levels)


def _unlisted(other: str, group: str) -> str:
    """The name of the bin of the unlisted keys of a group."""
    return f"{other}: {group}"


_NO_COLUMN = "it has keys, but no column that has them as values: name the column (by)"


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Errors inside say of which query they are."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"query {name!r}: {error}") from None


def _is_whole(rollup: Slots, below: Slots, base: Slots) -> bool:
    """Whether slots of a length have two or more whole ones of another one."""
    lengths = length_in(rollup, base), length_in(below, base)
    longer, shorter = (None if one is None else cut_of(one) for one in lengths)
    return bool(longer and shorter and shorter.longer(longer))


def _near(rollup: Slots, below: Slots) -> str:
    """A length that would do, near another one."""
    return multiple(below, max(rollup.length // below.length, 2)).text


def _fields_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a definition, from the keys of an entry."""
    check_keys(given, KEYS, _RENAMED)
    found = {key: plain(value) for key, value in given.items()}
    for key, value in found.items():
        if value is None or (isinstance(value, (str, list, dict)) and not value):
            raise ConfigurationError(f"{key} is empty: write a value, or leave {key} out")
    made = {key: _READERS[key](key, value) for key, value in found.items() if key in _READERS}
    if "keys" in found:
        made["keys"] = _keys(found["keys"], made.get("by", ()))
    return {**made, "statistic": _statistic(found)}


def _keys(value: Any, by: Sequence[str]) -> Categories | Edges | Grid | str:
    try:
        return _domain_of(value, by[0] if len(by) == 1 else None)
    except ConfigurationError as error:
        message = str(error)
        named = message if message.startswith("keys is") else f"keys: {message}"
        raise ConfigurationError(named) from None


def _domain_of(value: Any, column: str | None) -> Categories | Edges | Grid | str:
    if isinstance(value, str) and value == DISCOVER:
        return DiscoveredKeys()
    if isinstance(value, str) and value.strip().lower() in (DISCOVER, "discovered", AUTO):
        refuse("keys", value, f"write keys: {DISCOVER}, or a list of keys, such as [{value}]")
    if isinstance(value, str):
        return domain_of_numbers(value) or (domain_of_list(value) if is_list(value) else value)
    if isinstance(value, (Categories, Edges, Grid)):
        return value
    if not isinstance(value, Mapping):
        return Categories(texts("keys", unpacked(column_of_table(value, "keys", column))))
    check_keys(value, ("edges", "grid", DISCOVER))
    if len(value) != 1:
        raise ConfigurationError(
            f"write one of edges, grid and {DISCOVER}, such as {{edges: [0, 10, 20]}}"
        )
    if DISCOVER in value:
        return _discovered(value[DISCOVER])
    if "edges" in value:
        return Edges(numbers("edges", value["edges"]))
    box = numbers("grid", value["grid"])
    if len(box) != 6:
        refuse("grid", value["grid"], "write [WEST, SOUTH, EAST, NORTH, COLUMNS, ROWS]")
    west, south, east, north = box[:4]
    across, up = value["grid"][4:]
    return Grid(west, south, east, north, whole("grid: COLUMNS", across), whole("grid: ROWS", up))


def _check_names(keys: DiscoveredKeys, names: set[str | None]) -> None:
    """Refuse keys that are named and have the name of another bin or of a group."""
    listed = {"allow": keys.rules.allow, "levels": itertools.chain(*keys.groups.members)}
    for place, key in ((place, key) for place, some in listed.items() for key in some):
        if key in names:
            raise ConfigurationError(
                f"{place} has {key!r}, which is the name of a group or a bin, such as that for "
                "other values: give that group or bin another name"
            )


def _discovered(value: Any) -> DiscoveredKeys:
    """Keys that are to be discovered, from the mapping of their options."""
    if not isinstance(value, Mapping):
        refuse(DISCOVER, value, "write a mapping, such as {max_keys: 2}, or keys: discover alone")
    try:
        check_keys(value, (*_RULES, *_DISCOVERY))
    except ConfigurationError as error:
        raise ConfigurationError(f"{DISCOVER}: {error}") from None
    rules = {name: value[name] for name in _RULES if name in value}
    for name in ("allow", "deny"):
        if name in rules:
            given = unpacked(column_of_table(rules[name], name))
            remedy = "write a list of keys, such as [tea, milk], or leave it out"
            rules[name] = texts(name, listed(name, given, remedy))
    options = {name: value[name] for name in _DISCOVERY if name in value}
    for name in ("share", "sample"):
        if name in options:
            number(name, options[name])  # refuses text that YAML does not read as a number
    return DiscoveredKeys(rules=KeyRules(**rules), **options)


def _rollups(key: str, value: Any) -> tuple[Slots, ...]:
    """A list of lengths, or one."""
    one = isinstance(value, (str, dt.timedelta))
    return tuple(slots(key, each) for each in ([value] if one else value and listed(key, value)))


def _levels(key: str, value: Any) -> tuple[Level, ...]:
    one = value == ALL or isinstance(value, Mapping)
    example = "[{east: [A, B], west: [C]}, all]"
    several = [value] if one else listed(key, value, f"write groups of keys, such as {example}")
    return tuple(map(_level, several))


def _level(value: Any) -> Level:
    if value == ALL:
        return ALL
    if not isinstance(value, Mapping) or not value:
        refuse(
            "levels",
            value,
            "write what is in each group, such as {east: [A, B], west: [C]}; to group by another "
            "column, add a query by this column",
        )
    names = texts("levels", list(value))
    return {
        name: texts(f"levels: {name}", members)
        for name, members in zip(names, value.values(), strict=True)
    }


def _statistic(found: Mapping[str, Any]) -> Statistic:
    name = found.get("statistic", "count")
    if not isinstance(name, str) or name not in _STATISTICS:
        others = nearest(name, STATISTICS) or f"choose one of {', '.join(STATISTICS)}"
        refuse("statistic", name, _CALLED.get(str(name).lower(), others))
    for key in ("of", "bounds", "edges", "quantiles", "k"):
        if key in found and key not in _STATISTICS[name]:
            those = [each for each in STATISTICS if key in _STATISTICS[each]]
            why = f" ({NO_NUMBERS})" if name not in OF_NUMBERS and key != "k" else ""
            raise ConfigurationError(
                f"{key} is for the statistics {', '.join(those)}, and not for {name}{why}: leave "
                f"{key} out, or write statistic: {those[0]}"
            )
    if name == "count":
        return Count()
    if name == "distinct":
        return statistics.DistinctUsers()
    if name == "top":
        if "k" not in found:
            raise ConfigurationError("k is missing, the number of keys to name: write such as k: 5")
        return TopK(whole("k", found["k"]))
    if "of" not in found:
        raise ConfigurationError(
            f"of is missing, the column of numbers that the statistic {name} needs: write such as "
            "of: delay"
        )
    column = text("of", found["of"])
    return _quantiles(column, found) if name == "quantiles" else _bounded(name, column, found)


def _bounded(name: str, column: str, found: Mapping[str, Any]) -> Statistic:
    if "bounds" not in found:
        raise ConfigurationError(
            f"bounds are missing, which the statistic {name} needs: write {_BOUNDS}, or "
            f"bounds: {AUTO}"
        )
    if _is_auto(found["bounds"]):
        return AutoBounds(name, column)
    lower, upper = _pair(found["bounds"], f"write [LOW, HIGH], or {AUTO}")
    return KINDS[name](column, lower, upper)


def _quantiles(column: str, found: Mapping[str, Any]) -> Statistic:
    if ("edges" in found) == ("bounds" in found):
        which = "both edges and bounds are given" if "edges" in found else "edges are missing"
        raise ConfigurationError(
            f"{which}: write either edges, such as edges: [0, 5, 10, 60], or {_BOUNDS} for "
            f"{statistics.INTERVALS} intervals evenly spaced between, or bounds: {AUTO}"
        )
    shares = numbers("quantiles", found["quantiles"]) if "quantiles" in found else statistics.MEDIAN
    if "edges" in found:
        return statistics.Quantiles(column, _edges(found["edges"]), shares)
    if _is_auto(found["bounds"]):
        return AutoBounds("quantiles", column, quantiles=shares)
    bounds = _pair(found["bounds"], f"write [LOW, HIGH] or {AUTO}, or edges in place of bounds")
    return statistics.Quantiles(column, statistics.even_edges(*bounds), shares)


def _is_auto(bounds: Any) -> bool:
    return isinstance(bounds, str) and bounds == AUTO


def _pair(value: Any, remedy: str) -> tuple[float, float]:
    """Bounds, the lower one first. Raises ConfigurationError."""
    if len(listed("bounds", value, remedy)) != 2:
        refuse("bounds", value, remedy)
    low, high = numbers("bounds", value)
    if not low < high:
        raise ConfigurationError(
            f"bounds are [{low:g}, {high:g}]: write the smaller number first, and the larger second"
        )
    return low, high


def _edges(value: Any) -> tuple[float, ...]:
    """Edges as they are listed, or evenly spaced on a logarithmic scale."""
    if not isinstance(value, Mapping):
        return numbers("edges", value)
    parts = ("lower", "upper", "intervals")
    try:
        check_keys(value, parts)
        for each in parts:
            if each not in value:
                raise ConfigurationError(
                    f"{each} is missing: give {', '.join(parts)}, or list edges"
                )
        return statistics.log_edges(*(value[each] for each in parts))
    except ConfigurationError as error:
        raise ConfigurationError(f"edges: {error}") from None


def _as_given(key: str, value: Any) -> Any:
    """What :class:`Query` checks itself."""
    return value


_READERS: Mapping[str, Callable[[str, Any], Any]] = {
    "by": columns,
    **dict.fromkeys(("other", "null", "title", "unit"), text),
    "every": slots,
    "rollups": _rollups,
    "where": lambda key, value: conditions_of(value),
    "levels": _levels,
    **dict.fromkeys(
        ("name", "mechanism", "max_contributions", "keep", "weight", "share"), _as_given
    ),
}
"""How the keys that are fields of a definition are read."""
