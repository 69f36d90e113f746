"""Portfolios as files have them: mappings, lists, text and numbers, as YAML or JSON reads them.

    base_slot: 1h
    questions:
      - {name: places, value: dest, domain: [ORD, ATL], slot: 1h, weight: 2}
      - {name: delay, value: carrier, domain: [AA, UA], slot: 1d,
         statistic: mean, column: dep_delay, lower: -30, upper: 180}

In place of `lower` and `upper` a question may have `bounds: auto`: see `bounds.py`.

What is wrong is told in one line with the question, the key, its value and the remedy. YAML reads
`no` as false, 1.50 as a number and 2024-01-01 as a date: they are refused where text is asked for,
as nobody can tell any more what was written.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, fields
from numbers import Integral, Real
from typing import Any, NoReturn

from streamveil.mechanisms.core.arguments import LISTING, column_of_table, columns_in
from streamveil.mechanisms.core.boolean_text import boolean_text
from streamveil.mechanisms.core.domains import (
    Categories,
    Domain,
    Edges,
    Grid,
    domain_of_list,
    domain_of_numbers,
    with_bins,
)
from streamveil.mechanisms.core.parameter_checks import finite_number, whole
from streamveil.mechanisms.core.records import MONDAY, ConfigurationError, Slots, format_duration
from streamveil.mechanisms.portfolio import statistics
from streamveil.mechanisms.portfolio.bounds import KINDS, AutoBounds
from streamveil.mechanisms.portfolio.conditions import Condition
from streamveil.mechanisms.portfolio.questions import EVERYTHING, Portfolio, Question, check_name
from streamveil.mechanisms.portfolio.trees import ALL, FLAT, Tree

TextDomain = Callable[[str, str | None], Categories | Edges | Grid]
"""Reads the domain that a text is or names, given the column whose values these are."""

BASE_SLOT, QUESTIONS = "base_slot", "questions"
STATISTICS: Mapping[str, Callable[..., statistics.Statistic]] = {
    "count": statistics.Count,
    "distinct": statistics.DistinctUsers,
    "sum": statistics.Sum,
    "mean": statistics.Mean,
    "variance": statistics.Variance,
    "stddev": statistics.StandardDeviation,
    "quantiles": statistics.Quantiles,
    "top": statistics.TopK,
}
"""By name. A statistic's fields are its keys in a file."""

_MEDIAN = "write statistic: quantiles with edges, and quantiles: [0.5]"
_CALLED = {
    **dict.fromkeys(("median", "percentile", "percentiles", "quantile"), _MEDIAN),
    **dict.fromkeys(("average", "avg"), "write mean"),
    **dict.fromkeys(("std", "sd"), "write stddev"),
    **dict.fromkeys(("unique", "users", "count_distinct"), "write distinct"),
}
"""What statistics are called elsewhere: what is written like it may be another one."""

_EXAMPLE = "{base_slot: 1h, questions: [{name: visits, slot: 1d}]}"
_FROM, _TO = "from", "to"
_LONGEST = 60  # characters of a value in a message


def plain_domain(text: str, column: str | None = None) -> Categories | Edges | Grid:
    """The domain that a text writes itself; `io.read_domain` reads files besides."""
    return domain_of_numbers(text) or domain_of_list(text)


def portfolio_of(found: Any, read_domain: TextDomain = plain_domain) -> Portfolio:
    """The portfolio that a file describes.

    Base slots are counted from 1970-01-01. If any length is in weeks, they are counted from the
    Monday after it, so that weeks begin on Mondays.

    Args:
        found: what a reader of YAML or JSON made of the file.
        read_domain: reads a domain that is given as text.

    Raises:
        ConfigurationError: for whatever is wrong.
    """
    if found is None:
        raise ConfigurationError(
            f"it is empty: write {BASE_SLOT} and {QUESTIONS}, such as {_EXAMPLE}"
        )
    if not isinstance(found, Mapping):
        wanted = f"write a mapping of {BASE_SLOT} and {QUESTIONS}"
        if columns_in(found) or _listed_by(found):
            kind = type(found).__name__
            raise ConfigurationError(f"these are of type {kind}: {wanted}, such as {_EXAMPLE}")
        _refuse("the file of questions", found, wanted)
    _check_keys(found, (BASE_SLOT, QUESTIONS))
    for key in (BASE_SLOT, QUESTIONS):
        if found.get(key) is None:
            raise ConfigurationError(
                f"{key} is missing: a file of questions has a {BASE_SLOT}, such as 1h, and a list "
                f"of {QUESTIONS}"
            )
    base = _slots(BASE_SLOT, found[BASE_SLOT])
    listed = found[QUESTIONS]
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        _refuse(QUESTIONS, listed, "write a list of questions, each with a name")
    questions = tuple(
        _question(number, each, base.length, read_domain) for number, each in enumerate(listed, 1)
    )
    lengths = [found[BASE_SLOT], *(each["slot"] for each in listed if "slot" in each)]
    lengths += [length for each in listed for length in _times(each)]
    weekly = any(text.strip().endswith("w") for text in lengths)
    return Portfolio(Slots(base.length, MONDAY if weekly else 0), questions)


def _question(number: int, found: Any, base: int, read_domain: TextDomain) -> Question:
    place = f"question {number} of the list"
    if not isinstance(found, Mapping) or not found:
        _refuse(place, found, "write a mapping, such as {name: visits, slot: 1d}")
    if found.get("name") is None:
        raise ConfigurationError(f"{place} has no name: give it one, such as name: visits")
    name = found["name"]
    try:
        check_name(name)
    except ConfigurationError as error:
        raise ConfigurationError(f"{place}: {error}") from None
    try:
        told = _told(found, base, read_domain)
    except ConfigurationError as error:
        raise ConfigurationError(f"question {name!r}: {error}") from None
    return Question(name=name, **told)


def _told(found: Mapping[str, Any], base: int, read_domain: TextDomain) -> dict[str, Any]:
    """What a question is made of, but for its name: some of it is checked there."""
    _check_keys(found, _KEYS)
    found = {key: _plain(value) for key, value in found.items()}
    for key, value in found.items():
        if value is None or (isinstance(value, (str, list, dict)) and not value):
            raise ConfigurationError(f"{key} is empty: write a value, or leave {key} out")
    told = {key: found[key] for key in _AS_GIVEN if key in found}
    if "value" in found:
        told["value"] = _columns("value", found["value"])
    if "slot" in found:
        told["slots"] = _base_slots(found["slot"], base)
    if "times" in found:
        told["times"] = _longer(found, base)
    if "where" in found:
        told["where"] = _conditions(found["where"])
    domain = _domain(found, read_domain, told.get("value", ()))
    told.update(domain=domain, statistic=_statistic(found), tree=_tree(found, domain))
    return told


def _plain(value: Any) -> Any:
    """A value as files have it, where a program gives an array, a column or a number of numpy."""
    if isinstance(value, Mapping):
        return {key: _unpacked(one) for key, one in value.items()}
    return _unpacked(value)


def _unpacked(value: Any) -> Any:
    listed_by = _listed_by(value)
    return getattr(value, listed_by)() if listed_by else value


def _listed_by(value: Any) -> str | None:
    """The method by which an array, a column or a number of a library becomes one of Python."""
    if columns_in(value) is not None:
        return None
    for name in LISTING:
        if callable(getattr(value, name, None)):
            return name
    return None


def _base_slots(text: Any, base: int) -> int:
    """Base slots in a slot of so long."""
    length = _slots("slot", text).length
    if length % base:
        below = length // base * base
        near = " or ".join(format_duration(each) for each in (below, below + base) if each)
        raise ConfigurationError(
            f"slot is {text!r}, which is not a multiple of {BASE_SLOT} {format_duration(base)}: "
            f"write {near}, or choose another {BASE_SLOT}"
        )
    return length // base


def _times(found: Mapping[str, Any]) -> Sequence[Any]:
    """Longer times as they are written: a list of lengths, or one."""
    value = _unpacked(found.get("times", []))
    return [value] if isinstance(value, str) else _list("times", value) if value else []


def _longer(found: Mapping[str, Any], base: int) -> tuple[int, ...]:
    """Base slots of each longer time: see `Question.times`."""
    below = _slots("slot", found["slot"]).length if "slot" in found else base
    called, times = "the question's slots", []
    for text in _times(found):
        length = _slots("times", text).length
        if length <= below or length % below:
            least = format_duration(max(length // below, 2) * below)
            raise ConfigurationError(
                f"times: {text!r} is not made of two or more whole times of "
                f"{format_duration(below)}, which {called} have: write such as {least}, from the "
                "shortest to the longest, or leave it out"
            )
        times.append(length // base)
        below, called = length, "those before it in the list"
    return tuple(times)


def _slots(key: str, value: Any) -> Slots:
    if not isinstance(value, str):
        _refuse(key, value, "write a length with its unit, such as 1h, 1d or 1w")
    try:
        return Slots.of(value)
    except ConfigurationError as error:
        raise ConfigurationError(f"{key}: {error}") from None


def _domain(found: Mapping[str, Any], read_domain: TextDomain, columns: Sequence[str]) -> Domain:
    other, null = (_text(key, found[key]) if key in found else None for key in ("other", "null"))
    if "domain" in found:
        try:
            column = columns[0] if len(columns) == 1 else None
            return with_bins(_bins(found["domain"], read_domain, column), other, null)
        except ConfigurationError as error:
            if str(error).startswith("domain "):
                raise
            raise ConfigurationError(f"domain: {error}") from None
    for key, name, what in (
        ("other", other, "outside the domain"),
        ("null", null, "that are null"),
    ):
        if name is not None:
            raise ConfigurationError(
                f"{key} is {name!r}, the bin of values {what}, and there is no domain: give one, "
                f"or leave {key} out"
            )
    return EVERYTHING


def _bins(value: Any, read_domain: TextDomain, column: str | None) -> Categories | Edges | Grid:
    if isinstance(value, str):
        return read_domain(value, column)
    if isinstance(value, (Categories, Edges, Grid)):
        return value
    if not isinstance(value, Mapping):
        return Categories(_texts("domain", _unpacked(column_of_table(value, "domain", column))))
    _check_keys(value, ("edges", "grid"))
    if len(value) > 1:
        raise ConfigurationError("it has both edges and a grid: leave one out")
    if "edges" in value:
        return Edges(_numbers("edges", value["edges"]))
    box = _numbers("grid", value["grid"])
    if len(box) != 6:
        _refuse("grid", value["grid"], "write [WEST, SOUTH, EAST, NORTH, COLUMNS, ROWS]")
    west, south, east, north = box[:4]
    across, up = value["grid"][4:]
    return Grid(west, south, east, north, whole("grid: COLUMNS", across), whole("grid: ROWS", up))


def _conditions(value: Any) -> tuple[Condition, ...]:
    if not isinstance(value, Mapping):
        _refuse("where", value, "write columns and what counts, such as {kind: car}")
    return tuple(_condition(_text("where", column), wanted) for column, wanted in value.items())


def _condition(column: str, wanted: Any) -> Condition:
    place = f"where, column {column!r}"
    if not isinstance(wanted, Mapping):
        listed = isinstance(wanted, Sequence) and not isinstance(wanted, str)
        return Condition(column, _texts(place, wanted if listed else [wanted]))
    try:
        _check_keys(wanted, (_FROM, _TO))
    except ConfigurationError as error:
        raise ConfigurationError(f"{place}: {error}") from None
    bounds = {key: _number(f"{place}: {key}", bound) for key, bound in wanted.items()}
    return Condition(column, low=bounds.get(_FROM), high=bounds.get(_TO))


def _tree(found: Mapping[str, Any], domain: Domain) -> Tree:
    if "levels" not in found:
        return FLAT
    if domain == EVERYTHING:
        raise ConfigurationError("levels are groups of bins, and there are none: give a domain")
    value = found["levels"]
    one = value == ALL or isinstance(value, Mapping)
    example = "[{east: [A, B], west: [C]}, all]"
    listed = [value] if one else _list("levels", value, f"write groups of bins, such as {example}")
    return Tree.of(domain, [_level(each) for each in listed])


def _level(value: Any) -> Mapping[str, tuple[str, ...]] | str:
    if value == ALL:
        return ALL
    if not isinstance(value, Mapping) or not value:
        _refuse("levels", value, "write what is in each group, such as {east: [A, B], west: [C]}")
    names = _texts("levels", list(value))
    return {
        name: _texts(f"levels: {name}", members)
        for name, members in zip(names, value.values(), strict=True)
    }


def _statistic(found: Mapping[str, Any]) -> statistics.Statistic:
    name = found.get("statistic", "count")
    if not isinstance(name, str) or name not in STATISTICS:
        others = _nearest(name, STATISTICS) or f"choose one of {', '.join(STATISTICS)}"
        remedy = _CALLED.get(str(name).lower(), others)
        _refuse("statistic", name, remedy)
    auto = _is_auto(found, name)
    own = {"column": True} if auto else _keys_of(name)
    for key in _OF_STATISTICS:
        if key in found and key not in _keys_of(name):
            those = ", ".join(each for each in STATISTICS if key in _keys_of(each))
            raise ConfigurationError(
                f"{key} is for the statistics {those}, and not for {name}: leave {key} out, or "
                f"write statistic: {those.partition(',')[0]}"
            )
    for key, needed in own.items():
        if needed and key not in found:
            remedy = ": give it, or write bounds: auto" if key in _BOUNDS else ""
            raise ConfigurationError(f"{key} is missing, which the statistic {name} needs{remedy}")
    given = {key: _OF_STATISTICS[key](key, found[key]) for key in own if key in found}
    return AutoBounds(name, **given) if auto else STATISTICS[name](**given)


def _is_auto(found: Mapping[str, Any], statistic: str) -> bool:
    """Whether the bounds are to be chosen."""
    if "bounds" not in found:
        return False
    if statistic not in KINDS:
        raise ConfigurationError(
            f"bounds are for the statistics {', '.join(KINDS)}, and not for {statistic}: leave "
            "bounds out"
        )
    if found["bounds"] != "auto":
        _refuse("bounds", found["bounds"], "write auto, or give lower and upper instead")
    for key in _BOUNDS:
        if key in found:
            raise ConfigurationError(
                f"bounds is auto, and {key} is {found[key]!r}: leave one of them out"
            )
    return True


def _keys_of(statistic: str) -> dict[str, bool]:
    """Keys of a statistic, and whether it cannot do without."""
    made: Any = STATISTICS[statistic]
    return {each.name: each.default is MISSING for each in fields(made)}


def _edges(key: str, value: Any) -> tuple[float, ...]:
    """Edges as they are listed, or evenly spaced on a logarithmic scale."""
    if not isinstance(value, Mapping):
        return _numbers(key, value)
    log = ("lower", "upper", "intervals")
    try:
        _check_keys(value, log)
        for each in log:
            if each not in value:
                raise ConfigurationError(f"{each} is missing: give {', '.join(log)}, or list edges")
        return statistics.log_edges(*(value[each] for each in log))
    except ConfigurationError as error:
        raise ConfigurationError(f"{key}: {error}") from None


def _columns(key: str, value: Any) -> tuple[str, ...]:
    """Names of columns: a list, or text with commas between as `--value` has it."""
    parts = value.split(",") if isinstance(value, str) else _list(key, value)
    return tuple(_text(key, each) for each in parts)


def _text(key: str, value: Any) -> str:
    if isinstance(value, bool):
        _refuse(key, value, "without quotes YAML reads yes, no, on and off so: write it in quotes")
    if not isinstance(value, str) or not value.strip():
        _refuse(key, value, "write text, in quotes if it looks like something else")
    if any("\ud800" <= each <= "\udfff" for each in value):
        _refuse(key, value, "it has half of a character: write the whole of it")
    return value.strip()


def _texts(key: str, value: Any) -> tuple[str, ...]:
    """Values as events have them: text, whole numbers in decimal, and booleans as JSON has them."""
    return tuple(_category(key, each) for each in _list(key, value))


def _category(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return boolean_text(value)
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, Real):
        _refuse(
            key,
            value,
            "values are text or whole numbers: write it in quotes, or ranges of numbers as edges: "
            "[0, 1.5, 3] in a domain and {from: 0, to: 1.5} in where",
        )
    return _text(key, value)


def _list(key: str, value: Any, remedy: str = "write a list, such as [1, 2]") -> Sequence[Any]:
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)) or not value:
        _refuse(key, value, remedy)
    return value


def _number(key: str, value: Any) -> float:
    if isinstance(value, str):
        _refuse(key, value, "write a number without quotes; YAML reads 1.0e+3 as one, not 1e3")
    number = finite_number(_unpacked(value))
    if number is None:
        _refuse(key, value, "write a finite number")
    return number


def _numbers(key: str, value: Any) -> tuple[float, ...]:
    listed = enumerate(_list(key, value), 1)
    return tuple(_number(f"number {at} of {key}", each) for at, each in listed)


def _whole(key: str, value: Any) -> int:
    return whole(key, value)


def _check_keys(found: Mapping[Any, Any], known: Collection[str]) -> None:
    for key in found:
        if key not in known:
            remedy = _nearest(key, known) or f"known are {', '.join(known)}"
            raise ConfigurationError(f"the key {key!r} is unknown: {remedy}")


def _nearest(given: Any, known: Collection[str]) -> str:
    near = difflib.get_close_matches(str(given).lower(), known, n=1)
    return f"did you mean {near[0]}?" if near else ""


def _refuse(key: str, value: Any, remedy: str) -> NoReturn:
    text = " ".join(repr(value).split())
    shown = text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
    kind = f", of type {type(value).__name__}" if columns_in(value) or _listed_by(value) else ""
    raise ConfigurationError(f"{key} is {shown}{kind}: {remedy}")


# Keys of a question that its own checks are for.
_AS_GIVEN = ("mechanism", "max_contributions", "keep", "weight", "share")
# How the keys of statistics are read.
_OF_STATISTICS: Mapping[str, Callable[[str, Any], Any]] = {
    "column": _text,
    "lower": _number,
    "upper": _number,
    "edges": _edges,
    "quantiles": _numbers,
    "k": _whole,
}
_BOUNDS = ("lower", "upper")
_KEYS = (
    *("name", "value", "domain", "other", "null", "slot", "times", "where", "levels", "statistic"),
    "bounds",
    *_OF_STATISTICS,
    *_AS_GIVEN,
)
