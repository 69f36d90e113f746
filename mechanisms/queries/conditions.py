"""Which events a query is about: public conditions on their columns.

In Python they are written with :data:`where` (`import streamveil as sv`):

>>> sv.where.kind == "car"
where.kind == 'car'
>>> sv.where.kind.isin(["car", "van"]) & (sv.where.speed >= 0) & (sv.where.speed < 50)
where.kind.isin(['car', 'van']) & (where.speed >= 0.0) & (where.speed < 50.0)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from keyword import iskeyword
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arguments import column_name, texts_of
from streamveil.mechanisms.core.boolean_text import spellings
from streamveil.mechanisms.core.identity import Form, Identified
from streamveil.mechanisms.core.parameter_checks import finite_number
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.queries.plain_values import (
    check_keys,
    number,
    refuse,
    text,
    texts,
    unpacked,
)

_FROM, _TO = "from", "to"


@dataclass(frozen=True)
class Condition(Identified):
    """The value of a column is one of some, or a number from one on and below another.

    What is null meets no condition. Raises ConfigurationError for both, for neither, and for values
    or bounds that nothing meets.
    """

    IDENTITY = Form("condition", ("column", "values", "low", "high"))

    column: str
    values: tuple[str, ...] | None = None
    """Text of those that meet it, whole numbers in decimal, booleans as `true` or `false`, which
    events may write with letters of any case; None for a range."""
    low: float | None = None
    """The least number that meets it; None for all that are below `high`."""
    high: float | None = None
    """All numbers that meet it are below this one; None for all from `low` on."""

    def __post_init__(self) -> None:
        """Check all fields."""
        name = f"where, column {column_name(self.column, 'where')!r}"
        bounds = (self.low, self.high)
        if (self.values is None) == (bounds == (None, None)):
            raise ConfigurationError(
                f"{name}: give the values that count, or the range of numbers that do"
            )
        if self.values is None:
            for field, bound in zip(("low", "high"), bounds, strict=True):
                if bound is not None:
                    object.__setattr__(self, field, _finite(name, bound))
            if self.low is not None and self.high is not None and not self.low < self.high:
                raise ConfigurationError(
                    f"{name}: no number is from {self.low:g} on and below {self.high:g}: give the "
                    "smaller one first; the second is the first that does not count"
                )
            return
        values = texts_of(self.values, name)
        if not values:
            raise ConfigurationError(f"{name}: no values are listed, so no event counts: list some")
        for value in values:
            if not value:
                raise ConfigurationError(f"{name}: an empty value is listed: take it out")
            if values.count(value) > 1:
                raise ConfigurationError(f"{name}: {value!r} is listed twice: list it once")
        object.__setattr__(self, "values", values)

    @property
    def spellings(self) -> tuple[str, ...]:
        """All texts of the values."""
        every = (each for value in self.values or () for each in spellings(value))
        return tuple(dict.fromkeys(every))

    def holds(self, found: Sequence[Any] | npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Which events meet it.

        Args:
            found: of each event what the column says, shape (n,). For a range numbers, NaN or None
                where there is none; else text, None where there is none.

        Returns:
            bool, shape (n,).
        """
        if self.values is not None:
            wanted = frozenset(self.spellings)
            return np.fromiter((each in wanted for each in found), np.bool_, len(found))
        numbers = np.asarray(found, np.float64)
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        # Infinity is not a number of a range without an end: it is a slip, like NaN.
        inside: npt.NDArray[np.bool_] = np.isfinite(numbers) & (low <= numbers) & (numbers < high)
        return inside


def _finite(name: str, bound: Any) -> float:
    number = finite_number(bound)
    if number is None:
        raise ConfigurationError(f"{name}: the bound {bound!r} is not a finite number: give one")
    return number


@dataclass(frozen=True)
class Conditions:
    """Conditions that an event must all meet, as :data:`where` makes them; `&` combines them."""

    conditions: tuple[Condition, ...]
    """At most one of each column."""

    def __and__(self, other: Conditions) -> Conditions:
        """Both; two bounds of one column become a range. Raises ConfigurationError."""
        if not isinstance(other, Conditions):
            raise ConfigurationError(
                f"where: {other!r} is not a condition: write such as (where.kind == 'car') & "
                "(where.speed >= 0)"
            )
        found = {each.column: each for each in self.conditions}
        for each in other.conditions:
            before = found.get(each.column)
            found[each.column] = each if before is None else _range_of(before, each)
        return Conditions(tuple(found.values()))

    def __or__(self, other: Any) -> NoReturn:
        """Refused. Raises ConfigurationError."""
        raise ConfigurationError(
            "where: conditions cannot be combined with |: list the values of one column with isin, "
            "such as where.kind.isin(['car', 'van']), or write two queries"
        )

    __ror__ = __or__

    def __invert__(self) -> NoReturn:
        """Refused. Raises ConfigurationError."""
        raise ConfigurationError(
            "where: conditions cannot be negated: list the values that count with isin"
        )

    def __bool__(self) -> bool:
        """Refused, because `and` or `0 <= speed < 50` would drop one half. ConfigurationError."""
        raise ConfigurationError(
            "where: a condition is neither true nor false before events are read: combine "
            "conditions with & and parentheses, such as (where.speed >= 0) & (where.speed < 50), "
            "rather than with and, or, not, in or 0 <= where.speed < 50"
        )

    def __repr__(self) -> str:
        parts = [part for each in self.conditions for part in _written(each)]
        return parts[0] if len(parts) == 1 else " & ".join(map(_enclosed, parts))


class Column:
    """A column of the events, which :data:`where` compares with public values."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._place = f"where, column {name!r}"

    def __eq__(self, value: Any) -> Conditions:  # type: ignore[override]
        """Events with this value. Raises ConfigurationError for anything but public values."""
        return _condition(self._name, [value])

    def _between(self, other: Any) -> NoReturn:
        raise ConfigurationError(
            f"{self._place}: & binds before the comparison: put each condition in brackets, such "
            "as (where.kind == 'car') & (where.speed >= 0)"
        )

    __and__ = __rand__ = __or__ = __ror__ = _between

    def isin(self, values: Sequence[Any]) -> Conditions:
        """Keep events with one of these values.

        Args:
            values: a list, array or column of text, whole numbers or booleans.

        Raises:
            ConfigurationError: if there are no values, or values of another type.
        """
        if isinstance(values, (str, Mapping)):
            raise ConfigurationError(
                f"{self._place}: isin takes a list of values, and was given {values!r}: write such "
                "as isin(['car', 'van'])"
            )
        return _condition(self._name, unpacked(values))

    def __ge__(self, bound: float) -> Conditions:
        """Events with a number from this one on. Raises ConfigurationError."""
        return _condition(self._name, {_FROM: bound})

    def __lt__(self, bound: float) -> Conditions:
        """Events with a number below this one. Raises ConfigurationError."""
        return _condition(self._name, {_TO: bound})

    def __gt__(self, bound: Any) -> NoReturn:
        """Refused. Raises ConfigurationError."""
        self._refuse(">", bound, f">= {bound!r}, from this number on")

    def __le__(self, bound: Any) -> NoReturn:
        """Refused. Raises ConfigurationError."""
        self._refuse("<=", bound, f"< {bound!r}, below this number")

    def __ne__(self, value: Any) -> NoReturn:
        """Refused. Raises ConfigurationError."""
        self._refuse("!=", value, "isin([...]) with the values that count")

    def __bool__(self) -> bool:
        """Refused. Raises ConfigurationError."""
        raise ConfigurationError(f"{self._place}: {NO_COMPARISON}")

    def __repr__(self) -> str:
        name = self._name
        plain = name.isidentifier() and not name.startswith("_") and not iskeyword(name)
        return f"where.{name}" if plain else f"where[{name!r}]"

    def _refuse(self, operator: str, value: Any, remedy: str) -> NoReturn:
        raise ConfigurationError(
            f"{self._place}: {operator} {value!r} is not possible: ranges are from a number on "
            f"(>=) and below another (<); write {remedy}"
        )


NO_COMPARISON = "it is compared with nothing: write such as where.kind == 'car' or where.speed >= 0"


class Where:
    """The columns of the events, by attribute or by name in brackets: see :data:`where`."""

    def __getattr__(self, name: str) -> Column:
        if name.startswith("_"):
            raise AttributeError(f"where has no attribute {name!r}; a column is where[{name!r}]")
        return Column(name)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        """Refuse what is meant to compare. Raises ConfigurationError."""
        raise ConfigurationError(f"where, column {name!r}: write == to compare, not =")

    def __getitem__(self, name: str) -> Column:
        """The column of this name. Raises ConfigurationError for what is no text."""
        return Column(column_name(name, "where"))

    def __repr__(self) -> str:
        return "where"


where = Where()
"""Filters on the columns of events, for the argument `where` of a query.

Name the column as an attribute or in brackets, and compare it by `==`, `isin`, `>=` or `<`. Join
conditions by `&`, with each in parentheses. Anything else raises ConfigurationError.

Example:
    >>> cars = where.kind == "car"
    >>> slow = (where.speed >= 0) & (where.speed < 50)
    >>> wheels = where["kind of car"].isin(["car", "van"])
"""


def conditions_of(value: Any) -> tuple[Condition, ...]:
    """Conditions from what :data:`where` makes, or from a mapping as files have it.

    Args:
        value: for example `where.kind == "car"`, `{"kind": ["car", "van"]}` or
            `{"speed": {"from": 0, "to": 50}}`.

    Raises:
        ConfigurationError: for anything else.
    """
    if isinstance(value, Conditions):
        return value.conditions
    if isinstance(value, (Column, Where)):
        raise ConfigurationError(f"{value!r} is not a condition: {NO_COMPARISON}")
    if not isinstance(value, Mapping):
        refuse("where", value, "write columns and what counts, such as {kind: car}")
    found = (_condition(text("where", column), wanted) for column, wanted in value.items())
    return tuple(each for one in found for each in one.conditions)


def _condition(column: str, wanted: Any) -> Conditions:
    place = f"where, column {column!r}"
    if not isinstance(wanted, Mapping):
        several = isinstance(wanted, Sequence) and not isinstance(wanted, str)
        return Conditions((Condition(column, texts(place, wanted if several else [wanted])),))
    try:
        check_keys(wanted, (_FROM, _TO))
    except ConfigurationError as error:
        raise ConfigurationError(f"{place}: {error}") from None
    bounds = {key: number(f"{place}: {key}", bound) for key, bound in wanted.items()}
    return Conditions((Condition(column, low=bounds.get(_FROM), high=bounds.get(_TO)),))


def _range_of(one: Condition, other: Condition) -> Condition:
    """The range of two bounds of a column. Raises ConfigurationError for anything else."""
    if one.values is None and other.values is None:
        if one.high is None and other.low is None:
            return replace(one, high=other.high)
        if one.low is None and other.high is None:
            return replace(other, high=one.high)
    raise ConfigurationError(
        f"where, column {one.column!r}: it has more than one condition: write one isin([...]), or "
        "one >= and one <"
    )


def _written(condition: Condition) -> list[str]:
    column = repr(Column(condition.column))
    if condition.values is not None:
        one = len(condition.values) == 1
        values = list(condition.values)
        return [f"{column} == {values[0]!r}" if one else f"{column}.isin({values!r})"]
    low = [] if condition.low is None else [f"{column} >= {condition.low!r}"]
    return low if condition.high is None else [*low, f"{column} < {condition.high!r}"]


def _enclosed(part: str) -> str:
    return part if part.endswith(")") else f"({part})"
