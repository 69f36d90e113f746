"""Reading the public table of requirements: who asks for what protection."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamveil.io.events import check_events, columns_of
from streamveil.io.files import Patterns, input_files
from streamveil.io.formats import JSON_LINES, format_of
from streamveil.io.json_objects import parse_object
from streamveil.io.lines import read_lines
from streamveil.io.partitions import partitions_of
from streamveil.io.public import Rows, public_rows, read_public
from streamveil.mechanisms.core.arguments import has_optional
from streamveil.mechanisms.core.records import (
    LEAST_DELTA,
    MAX_EPSILON,
    MAX_WINDOW,
    MOST_DELTA,
    ConfigurationError,
    Requirement,
    leave_shares,
    valid_deltas,
    valid_epsilons,
    valid_windows,
)
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.core.wording import opt

COLUMNS: tuple[str, ...] = ("user", "window", "epsilon")
MAX_SLOTS, DELTA = "max_slots", "delta"
"""Columns that are read where there are some."""
_NEAR = re.compile(rf'"\s*(?:{MAX_SLOTS}|{DELTA})\s*"'.encode(), re.IGNORECASE)


class _Names(NamedTuple):
    """Names of the columns that are read of a table."""

    user: str
    window: str
    epsilon: str
    max_slots: str | None
    """None if the table has no participation limits."""
    delta: str | None
    """None if the table has no deltas."""

    @classmethod
    def of(cls, columns: tuple[str, ...], present: Collection[str], table: str) -> _Names:
        """The columns asked for, and of the optional ones those that are there.

        Raises ConfigurationError as :func:`has_optional`.
        """
        user, window, epsilon, *limit = columns
        others = [one for one in present if one not in columns]
        if not limit and has_optional(MAX_SLOTS, others, table):
            limit = [MAX_SLOTS]
        delta = DELTA if has_optional(DELTA, others, table) else None
        return cls(user, window, epsilon, limit[0] if limit else None, delta)

    @property
    def read(self) -> tuple[str, ...]:
        """Those that are there."""
        return tuple(one for one in self if one is not None)


@dataclass(frozen=True)
class _ReadAgain:
    """Reads the table again; the registry's fingerprint tells whether it is the same."""

    path: str | tuple[str, ...]
    default: tuple[Requirement, int | None] | None
    columns: tuple[str, ...] = COLUMNS

    def __call__(self) -> Registry:
        return read_requirements(self.path, default=self.default, columns=self.columns)

    def place_of(self, user: str) -> str:
        """The file and the row of a user, for what is refused later; they are read again."""
        name, *_ = self.columns
        for file in input_files(self.path):
            for read in read_public(file, (name,)):
                at = read.names(name, read.columns[0], "name the user").index(user).as_py()
                if at >= 0:
                    return f"{read.path}: {read.word} {read.rows[at]}"
        return str(self.path)


class _Rows(NamedTuple):
    """Checked rows of one batch: all of the same length."""

    path: str
    word: str
    """What its rows are called."""
    users: pa.Array
    windows: npt.NDArray[np.int64]
    epsilons: npt.NDArray[np.float64]
    max_slots: npt.NDArray[np.int64]
    """0 where it is blank."""
    deltas: npt.NDArray[np.float64]
    """NaN where it is blank."""
    rows: npt.NDArray[np.int64]


def read_requirements(
    path: Patterns,
    *,
    default: tuple[Requirement, int | None] | None = None,
    columns: tuple[str, ...] = COLUMNS,
) -> Registry:
    """Read the public requirements table from files.

    The table has the columns `user` (text or whole numbers), `window` (in slots) and `epsilon`. A
    user's events within any `window` consecutive slots are protected by the budget `epsilon`. An
    optional column `max_slots` contains participation limits. A user with a limit M contributes to
    at most M slots in each block of the timeline. A block is half of the user's window, rounded up,
    unless you divide the window into more parts. Leave the cell blank for a user without a limit.

    An optional column `delta` contains the probability with which the discovery of keys may fail to
    protect a user. Leave the cell blank for a user to whom the delta of the run applies. A user
    with 0 is not counted in the discovery of keys.

    Args:
        path: the path or glob of the files, in any format that :class:`ReadEvents` reads.
        default: the requirement of unregistered users (users who are not in the table), followed by
            the assumed number of unregistered users. This number is public, and may be None. If you
            leave out `default`, events of unregistered users are rejected.
        columns: names of the columns that contain users, windows and epsilons, in this order, if
            they differ from `user`, `window` and `epsilon`. You may add a fourth name, for the
            column that contains participation limits.

    Returns:
        The requirements table. Its attribute `users` lists the users in the order of the files. If
        you pickle the table and unpickle it, the files are read again. This fails if the files have
        changed.

    Raises:
        ConfigurationError: if a column is missing or has a wrong type; if a row cannot be parsed or
            has no user; if a window or a participation limit is not a whole number from 1 to 2**20;
            if an epsilon is 0, negative or above 4096; if a delta is neither 0 nor from 1e-15 to
            0.1; if a user has two different requirements; or if the table is empty and there is no
            default.

    Example:
        >>> import pyarrow.parquet as pq
        >>> table = pa.table({"user": ["ann", "bob"], "window": [7, 30], "epsilon": [1.0, 0.5]})
        >>> pq.write_table(table, "requirements.parquet")
        >>> read_requirements("requirements.parquet").sizes.tolist()
        [1, 1]
    """
    path = path if isinstance(path, str) else tuple(path)
    check_events(path, columns, remedy=f" in {opt.requirement_columns}")
    parts: list[_Rows] = []
    for file in input_files(path):
        names = _Names.of(columns, _present(file), file)
        parts += _checked(read_public(file, names.read), names)
    return _registry(path, parts, default, _ReadAgain(path, default, columns))


def _present(file: str) -> Collection[str]:
    """Columns of a file. Any line of JSON may have the optional ones; elsewhere, they are null."""
    if format_of(file) != JSON_LINES:
        return columns_of(file)
    keys = dict.fromkeys((MAX_SLOTS, DELTA, *partitions_of(file)))
    exact = {f'"{key}"'.encode() for key in (MAX_SLOTS, DELTA)}
    for lines in read_lines(file):
        for line in lines if set(_NEAR.findall(lines.block)) - exact else ():
            value = parse_object(line)
            keys.update(dict.fromkeys(value) if isinstance(value, dict) else {})
    return keys


def requirements_of(
    table: pa.Table,
    *,
    default: tuple[Requirement, int | None] | None = None,
    columns: tuple[str, ...] = COLUMNS,
    name: str = "requirements",
) -> Registry:
    """Make the requirements table of a run from a table in memory, such as a pandas DataFrame.

    Args:
        table: the table, with a row for each user.
        default: the requirement of unregistered users (users who are not in the table), followed by
            the assumed number of unregistered users. This number is public, and may be None. If you
            leave out `default`, events of unregistered users are rejected.
        columns: names of the columns that contain users, windows and epsilons, in this order. You
            may add a fourth name, for the column that contains participation limits.
        name: name of the table for error messages.
    """
    names = _Names.of(columns, table.column_names, name)
    parts = list(_checked(public_rows(name, table, names.read), names))
    return _registry(name, parts, default)


def _registry(
    path: Patterns,
    parts: list[_Rows],
    default: tuple[Requirement, int | None] | None,
    reload: _ReadAgain | None = None,
) -> Registry:
    if not sum(len(part.rows) for part in parts) and default is None:
        raise ConfigurationError(
            f"{path}: the table of requirements has no rows and there is no default requirement: "
            "add rows, or give a default"
        )
    encoded = pa.concat_arrays([pa.array([], pa.string()), *(p.users for p in parts)])
    encoded = encoded.dictionary_encode()
    users, codes = encoded.dictionary, encoded.indices.to_numpy()
    windows = np.concatenate([np.zeros(0, np.int64), *(part.windows for part in parts)])
    epsilons = np.concatenate([np.zeros(0), *(part.epsilons for part in parts)])
    limits = np.concatenate([np.zeros(0, np.int64), *(part.max_slots for part in parts)])
    deltas = np.concatenate([np.zeros(0), *(part.deltas for part in parts)])
    if len(users) < len(codes):  # somebody is listed again
        first = np.empty(len(users), np.int64)
        first[codes[::-1]] = np.arange(len(codes))[::-1]  # the last assignment stays
        differs = (windows[first[codes]] != windows) | (epsilons[first[codes]] != epsilons)
        differs |= limits[first[codes]] != limits
        differs |= np.nan_to_num(deltas[first[codes]], nan=-1) != np.nan_to_num(deltas, nan=-1)
        if differs.any():
            again = int(np.argmax(differs))
            _refuse_pair(parts, users[int(codes[again])].as_py(), int(first[codes[again]]), again)
        windows, epsilons = windows[first], epsilons[first]
        limits, deltas = limits[first], deltas[first]
    return Registry.build(
        *(users, windows, epsilons),
        max_slots=limits,
        deltas=deltas,
        default=default,
        reload=reload,
    )


def _checked(found: Iterable[Rows], names: _Names) -> Iterator[_Rows]:
    for read in found:
        users, windows, epsilons, *_ = read.columns
        optional = dict(zip(names.read[len(COLUMNS) :], read.columns[len(COLUMNS) :], strict=True))
        lengths = _windows(read, names.window, windows)
        budgets = _epsilons(read, names.epsilon, epsilons, lengths)
        ids = read.names(names.user, users, "name the user")
        limits, deltas = np.zeros(len(ids), np.int64), np.full(len(ids), np.nan)
        if names.max_slots is not None:
            limits = _max_slots(read, names.max_slots, optional[names.max_slots])
        if names.delta is not None:
            deltas = _deltas(read, names.delta, optional[names.delta])
        yield _Rows(read.path, read.word, ids, lengths, budgets, limits, deltas, read.rows)


def _deltas(read: Rows, name: str, column: pa.Array) -> npt.NDArray[np.float64]:
    values = read.numbers_or_blank(name, column)
    remedy = (
        f"is neither 0 nor a number from {LEAST_DELTA:g} to {MOST_DELTA:g}: write one, such as "
        "1e-9, or nothing"
    )
    read.refuse(~(np.isnan(values) | valid_deltas(values)), name, column, remedy)
    return values


def _max_slots(read: Rows, name: str, column: pa.Array) -> npt.NDArray[np.int64]:
    """Limits of presence in a table, shape (n,), 0 where they are blank.

    Raises ConfigurationError for what is no whole number from 1 to MAX_WINDOW.
    """
    values = read.numbers_or_blank(name, column)
    blank = np.isnan(values)
    remedy = f"is not a whole number of slots from 1 to {MAX_WINDOW}: write one, or nothing"
    read.refuse(~(blank | valid_windows(values)), name, column, remedy)
    return np.where(blank, 0, values).astype(np.int64)


def _windows(read: Rows, name: str, column: pa.Array) -> npt.NDArray[np.int64]:
    values = read.numbers(name, column)
    remedy = f"is not a whole number of slots from 1 to {MAX_WINDOW}: write one"
    read.refuse(~valid_windows(values), name, column, remedy)
    return values.astype(np.int64)


def _epsilons(
    read: Rows, name: str, column: pa.Array, windows: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    values = read.numbers(name, column)
    remedy = f"is not a number above 0 and at most {MAX_EPSILON:g}: write one"
    read.refuse(~valid_epsilons(values), name, column, remedy)
    remedy = "leaves less than 2**-40 for a slot of its window: ask for more"
    read.refuse(~leave_shares(values, windows), name, column, remedy)
    return values


def _refuse_pair(parts: list[_Rows], user: str, one: int, other: int) -> NoReturn:
    texts = []
    for index in (one, other):
        for part in parts:
            if index < len(part.rows):
                break
            index -= len(part.rows)
        texts.append(
            f"window {part.windows[index]}, epsilon {part.epsilons[index]}"
            f"{f', max_slots {part.max_slots[index]}' if part.max_slots[index] else ''}"
            f"{'' if np.isnan(part.deltas[index]) else f', delta {part.deltas[index]:g}'} in "
            f"{part.path} {part.word} {part.rows[index]}"
        )
    raise ConfigurationError(
        f"user {user!r} is listed with two different requirements: {' and '.join(texts)}: keep one"
    )
