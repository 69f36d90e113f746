"""Arguments of what is public: what is plain is taken, all else is refused before anything runs.

Each function takes what a caller gave and the name of the argument, and gives the type that the
rest of the house works on. What it cannot take is a ConfigurationError of one line, with the
argument, what was given and the remedy. Beam, Arrow and pandas are not imported: a table is what
gives columns by name.
"""

from __future__ import annotations

import datetime as dt
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from numbers import Integral
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.boolean_text import boolean_text
from streamveil.mechanisms.core.domains import Categories, Domain, Edges, Grid, WithNull, WithOther
from streamveil.mechanisms.core.records import (
    LEAST_DELTA,
    MAX_EPSILON,
    MAX_WINDOW,
    MOST_DELTA,
    ConfigurationError,
    Requirement,
    Slots,
    requirement_and_delta,
    valid_deltas,
    valid_epsilons,
    valid_windows,
)
from streamveil.mechanisms.core.user_table import Registry

_TABLE = ("user", "window", "epsilon")
_MAX_SLOTS = "max_slots"
_DELTA = "delta"
_LONGEST = 60  # characters of a value in a message


def refuse(name: str, value: Any, remedy: str) -> NoReturn:
    """Raise ConfigurationError for an argument of a type that cannot be taken."""
    text = repr(value)
    shown = text if len(text) <= _LONGEST and "\n" not in text else "given"
    raise ConfigurationError(f"{name} is {shown}, of type {type(value).__name__}: {remedy}")


def registry_of(value: Any, name: str = "registry") -> Registry:
    """The public table of users.

    Args:
        value: a Registry; a mapping user -> Requirement, (window, epsilon) or (window, epsilon,
            delta); or a table with the columns `user`, `window` and `epsilon`, and perhaps
            `max_slots` and `delta`: of pandas, Polars or Arrow.
        name: of the argument.

    Raises:
        ConfigurationError: for anything else, and for what :meth:`Registry.build` refuses.
    """
    if isinstance(value, Registry):
        return value
    _refuse_lazy(value, name)
    if isinstance(value, Mapping):
        for user, asked in value.items():
            _check_asked(name, user, asked)
        return Registry.of(value)
    if (columns := columns_in(value)) is not None:
        return _registry_of_table(value, columns, name)
    if isinstance(value, (str, os.PathLike)):
        remedy = f"read the file with streamveil.io.read_requirements({os.fspath(value)!r})"
    elif isinstance(value, (Requirement, tuple)):
        remedy = (
            "for one requirement of everybody give Registry.of(default=(Requirement(window, "
            "epsilon), number of users))"
        )
    else:
        remedy = (
            "give a Registry, a mapping user -> (window, epsilon), or a table with the columns "
            "user, window and epsilon"
        )
    refuse(name, value, remedy)


def domain_of(value: Any, name: str = "domain", column: str | None = None) -> Domain:
    """The public bins.

    Args:
        value: Categories, Edges, Grid, WithOther or WithNull; or the values of the bins in order,
            as text or whole numbers: a sequence, a column of numpy, pandas, Polars or Arrow, or a
            table as of :func:`column_of_table`.
        name: of the argument.
        column: the column of the events that the values are of.

    Raises:
        ConfigurationError: for anything else, and for what Categories refuses.
    """
    if isinstance(value, (Categories, Edges, Grid, WithOther, WithNull)):
        return value
    _refuse_lazy(value, name)
    return Categories(texts_of(column_of_table(value, name, column), name))


def column_of_table(value: Any, name: str, column: str | None = None) -> Any:
    """Of a table the column `value`, or that of this name, or the only one; all else as it is.

    Raises ConfigurationError for a table that has none of these, or has it twice.
    """
    columns = None if isinstance(value, Mapping) else columns_in(value)
    if columns is None:
        return value
    listed = [one for one in ("value", column) if columns.count(str(one)) == 1]
    if not listed and len(columns) != 1:
        or_so = f" or {column!r}" if column else ""
        raise ConfigurationError(
            f"{name} is a table of the columns {', '.join(columns) or 'none'}: give a list of "
            f"values, or a table with a column 'value'{or_so}"
        )
    [label] = listed[:1] or _labels_in(value) or []
    return value[label]


def texts_of(value: Any, name: str) -> tuple[str, ...]:
    """Public values in order, as events have them: text, whole numbers in decimal, booleans.

    Raises ConfigurationError for one text, for what has no order, and for other values.
    """
    if isinstance(value, (str, bytes)):
        refuse(name, value, f"give a list of values, such as [{value!r}]")
    if isinstance(value, Set):
        refuse(name, value, "a set has no order, which must stay the same: give a list of values")
    values = _listed(value)
    if isinstance(value, Mapping) or values is None:
        refuse(name, value, "give a list of values")
    for each in values:
        if not isinstance(each, (str, Integral)):
            raise ConfigurationError(
                f"{name} lists {each!r}, of type {type(each).__name__}: give text or whole "
                "numbers; bins of other numbers are Edges((0.0, 0.5, 1.0))"
            )
    return tuple(boolean_text(each) if isinstance(each, bool) else str(each) for each in values)


def slots_of(value: Any, name: str = "slots") -> Slots:
    """How time is cut.

    Args:
        value: Slots; a length as :meth:`Slots.of` reads it, such as `1d` or `1mo`; or a timedelta,
            for slots that are counted from 1970-01-01.
        name: of the argument.

    Raises:
        ConfigurationError: for anything else, and for a length that cannot be.
    """
    if isinstance(value, Slots):
        return value
    if isinstance(value, str):
        return Slots.of(value)
    if isinstance(value, dt.timedelta):
        return Slots(value // dt.timedelta(microseconds=1))
    refuse(name, value, "write the length with its unit, such as 1mo, 1d, 1h or 60s, or give Slots")


def column_name(value: Any, name: str) -> str:
    """The name of a column. Raises ConfigurationError for anything else."""
    if not isinstance(value, str) or not value:
        refuse(name, value, "give the name of a column")
    return value


def user_column(value: Any, name: str = "user") -> str:
    """The name of the one column of users. Raises ConfigurationError for anything else."""
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 1:
        raise ConfigurationError(
            f"{name} names {len(value)} columns ({', '.join(map(str, value))}), and a user id is "
            "a single column: join them into one column first, such as card || '/' || device in "
            "SQL; each pair then has a budget of its own"
        )
    return column_name(value, name)


def column_names(value: Any, name: str) -> tuple[str, ...]:
    """Names of columns; one text is one name. Raises ConfigurationError for anything else."""
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, Sequence) or not names:
        refuse(name, value, "give the name of a column, or a tuple of names")
    return tuple(column_name(each, name) for each in names)


def slot_number(value: Any, name: str) -> int | None:
    """The number of a slot, or None. Raises ConfigurationError for anything else."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Integral):
        refuse(name, value, "give the number of a slot, as Slots.index(parse_time(...)) tells it")
    return int(value)


def is_true(value: Any, name: str) -> bool:
    """Whether True was given rather than False. Raises ConfigurationError for anything else."""
    if not isinstance(value, (bool, np.bool_)):
        refuse(name, value, "give True or False")
    return bool(value)


def text_of(value: Any, name: str, remedy: str) -> str:
    """A text. Raises ConfigurationError, with the remedy, for anything else."""
    if not isinstance(value, str):
        refuse(name, value, remedy)
    return value


def _check_asked(name: str, user: Any, asked: Any) -> None:
    try:
        requirement_and_delta(asked)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}, user {user!r}: {error}") from None


def _refuse_lazy(value: Any, name: str) -> None:
    """Refuse a plan of Polars or Spark, not its rows. Raises ConfigurationError."""
    if callable(getattr(value, "collect", None)):
        raise ConfigurationError(
            f"{name} is of type {type(value).__name__}: collect it first (.collect())"
        )


def columns_in(table: Any) -> list[str] | None:
    """Names of the columns of a table of pandas, Polars or Arrow; None for anything else."""
    names = _labels_in(table)
    return None if names is None else list(map(str, names))


def _labels_in(table: Any) -> list[Any] | None:
    """The same as the table has them: those of pandas may be numbers."""
    names = getattr(table, "column_names", None)  # Arrow; others have `columns`
    if names is None and hasattr(table, "__getitem__"):
        names = getattr(table, "columns", None)
    return list(names) if isinstance(names, Iterable) else None


def _registry_of_table(table: Any, columns: list[str], name: str) -> Registry:
    for column in _TABLE:
        if columns.count(column) != 1:
            raise ConfigurationError(
                f"{name} is a table without one column {column!r}; its columns are "
                f"{', '.join(columns) or 'none'}: give user, window and epsilon"
            )
    users, windows, epsilons = (_listed(table[column]) or [] for column in _TABLE)
    lengths = _numbers(name, "window", windows)
    _check(valid_windows(lengths), name, "window", windows, f"a whole number 1 to {MAX_WINDOW}")
    budgets = _numbers(name, "epsilon", epsilons)
    most = f"a number above 0 and at most {MAX_EPSILON:g}"
    _check(valid_epsilons(budgets), name, "epsilon", epsilons, most)
    wanted = f"a whole number 1 to {MAX_WINDOW}, or nothing"
    limits = _optional(table, columns, name, _MAX_SLOTS, valid_windows, wanted)
    if limits is not None:
        limits = np.nan_to_num(limits).astype(np.int64)
    wanted = f"0, a number from {LEAST_DELTA:g} to {MOST_DELTA:g}, or nothing"
    deltas = _optional(table, columns, name, _DELTA, valid_deltas, wanted)
    return Registry.build(users, lengths.astype(np.int64), budgets, max_slots=limits, deltas=deltas)


def _optional(
    table: Any,
    columns: list[str],
    name: str,
    column: str,
    valid: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.bool_]],
    wanted: str,
) -> npt.NDArray[Any] | None:
    """Numbers of a column, NaN where it is blank; None if the table has no such column."""
    if not has_optional(column, columns, name):
        return None
    values = _listed(table[column]) or []
    truths = np.array([isinstance(each, (bool, np.bool_)) for each in values], np.bool_)
    _check(~truths, name, column, values, wanted)
    found = _numbers(name, column, values)
    _check(np.isnan(found) | valid(found), name, column, values, wanted)
    return found


def has_optional(column: str, columns: Collection[str], table: str) -> bool:
    """Whether a table of requirements has an optional column.

    Args:
        column: name of the optional column.
        columns: names of all columns of the table.
        table: name of the table for error messages.

    Raises:
        ConfigurationError: if the table has the column twice, or a column whose name differs only
            in case, blanks or a typing error. Otherwise, what users asked for would be ignored.
    """
    near = [one for one in columns if _nearly(one.strip().lower(), column)]
    if near not in ([], [column]):
        raise ConfigurationError(
            f"{table}: the table has {', '.join(map(repr, near))}, and only one column {column!r} "
            "is read: rename or drop all others"
        )
    return bool(near)


def _nearly(given: str, wanted: str) -> bool:
    """Whether a character is missing, added or wrong, or two neighbours are swapped, at most."""
    alike = itertools.takewhile(lambda both: both[0] == both[1], zip(given, wanted, strict=False))
    same = len(list(alike))
    left, right = given[same:], wanted[same:]
    swapped = left[1::-1] + left[2:]
    return right in (left, left[1:], swapped) or left[1:] == right[1:] or left == right[1:]


def _numbers(name: str, column: str, values: list[Any]) -> npt.NDArray[np.float64]:
    try:
        return np.array([np.nan if value is None else value for value in values], np.float64)
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"{name} has a column {column!r} that is not of numbers: convert it"
        ) from None


def _check(
    good: npt.NDArray[np.bool_], name: str, column: str, values: list[Any], wanted: str
) -> None:
    if not good.all():
        row = int(np.argmin(good))
        raise ConfigurationError(
            f"{name} has {column} {values[row]!r} in row {row}, counted from 0: give {wanted}"
        )


LISTING = ("to_pylist", "tolist", "to_list")
"""Methods by which columns and arrays become lists: of Arrow, of numpy and pandas, of Polars."""


def _listed(values: Any) -> list[Any] | None:
    """Python's own values of a sequence or a column; None for what is neither."""
    for method in LISTING:
        if hasattr(values, method):
            found = getattr(values, method)()
            return found if isinstance(found, list) else None
    return list(values) if isinstance(values, Iterable) else None
