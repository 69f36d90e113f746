"""Reading the public table of requirements: who asks for what protection."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.io.events import check_events, read_part, split_file
from streamveil.io.files import Patterns, input_files, row_word
from streamveil.mechanisms.records import (
    MAX_EPSILON,
    MAX_WINDOW,
    ConfigurationError,
    Requirement,
    leave_shares,
    valid_epsilons,
    valid_windows,
)
from streamveil.mechanisms.users import Registry

COLUMNS = ("user", "window", "epsilon")
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


@dataclass(frozen=True)
class _ReadAgain:
    """Reads the same table, and refuses it when it is no longer the same."""

    path: str | tuple[str, ...]
    default: tuple[Requirement, int] | None
    digest: str

    def __call__(self) -> Registry:
        registry = read_requirements(self.path, default=self.default)
        if registry.reload != self:
            raise ConfigurationError(
                f"{self.path}: the table of requirements changed after the pipeline was built: "
                "launch the pipeline again"
            )
        return registry


class _Rows(NamedTuple):
    """Checked rows of one batch: all of the same length."""

    path: str
    users: pa.Array
    windows: npt.NDArray[np.int64]
    epsilons: npt.NDArray[np.float64]
    rows: npt.NDArray[np.int64]


def read_requirements(
    path: Patterns, *, default: tuple[Requirement, int] | None = None
) -> Registry:
    """Read a table with the columns `user` (text or integer), `window` and `epsilon`.

    Args:
        path: a path or glob, in any format that ReadEvents knows.
        default: requirement of users outside the table and the public number of them.

    Returns:
        The registry, with `users` as pa.StringArray in the table's order; pickled, it is the way
        to read the table again, and unpickling fails when the table has changed.

    Raises:
        ConfigurationError: for a missing column or one of a wrong type; a row that cannot be
            parsed or that has no user, a window that is not a whole number from 1 to MAX_WINDOW,
            or an epsilon that is not above 0 and at most MAX_EPSILON; a user with two different
            requirements; an empty table without a default.
    """
    path = path if isinstance(path, str) else tuple(path)
    check_events(path, COLUMNS)
    parts = [rows for file in input_files(path) for rows in _read(file)]
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
    if len(users) < len(codes):  # somebody is listed again
        first = np.empty(len(users), np.int64)
        first[codes[::-1]] = np.arange(len(codes))[::-1]  # the last assignment stays
        differs = (windows[first[codes]] != windows) | (epsilons[first[codes]] != epsilons)
        if differs.any():
            again = int(np.argmax(differs))
            _refuse_pair(parts, users[int(codes[again])].as_py(), int(first[codes[again]]), again)
        windows, epsilons = windows[first], epsilons[first]
    digest = _digest(users, windows, epsilons)
    return Registry.build(
        users, windows, epsilons, default=default, reload=_ReadAgain(path, default, digest)
    )


def _read(path: str) -> Iterator[_Rows]:
    def reject(row: int, detail: str, record: bytes) -> NoReturn:
        text = record[:200].decode(errors="replace").rstrip("\r\n")
        raise ConfigurationError(
            f"{path}: line {row} cannot be parsed: {detail}: {text!r}: correct the line or "
            "take it out"
        )

    for part in split_file(path, COLUMNS):
        for batch in read_part(part, COLUMNS, reject):
            check = _Check(path, batch.column(len(COLUMNS)).to_numpy())
            users, windows, epsilons = batch.columns[: len(COLUMNS)]
            lengths = check.windows(windows)
            budgets = check.epsilons(epsilons, lengths)
            yield _Rows(path, check.users(users), lengths, budgets, check.rows)


@dataclass(frozen=True)
class _Check:
    path: str
    rows: npt.NDArray[np.int64]

    def users(self, column: pa.Array) -> pa.Array:
        column = _plain(column)
        if not (_is_text(column.type) or pa.types.is_integer(column.type)):
            self._wrong_type("user", column.type, "text or an integer")
        users = column.cast(pa.string())
        self._refuse(users.is_null(), "user", users, "is missing: name the user")
        self._refuse(pc.equal(users, ""), "user", users, "is empty: name the user")
        return users

    def windows(self, column: pa.Array) -> npt.NDArray[np.int64]:
        values = self._numbers("window", column)
        remedy = f"is not a whole number of slots from 1 to {MAX_WINDOW}: write one"
        self._refuse(~valid_windows(values), "window", column, remedy)
        return values.astype(np.int64)

    def epsilons(self, column: pa.Array, windows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        values = self._numbers("epsilon", column)
        remedy = f"is not a number above 0 and at most {MAX_EPSILON:g}: write one"
        self._refuse(~valid_epsilons(values), "epsilon", column, remedy)
        remedy = "leaves less than 2**-40 for a slot of its window: ask for more"
        self._refuse(~leave_shares(values, windows), "epsilon", column, remedy)
        return values

    def _numbers(self, name: str, column: pa.Array) -> npt.NDArray[np.float64]:
        self._refuse(column.is_null(), name, column, "is missing: write a number")
        column = _plain(column)
        if _is_text(column.type):
            text = pc.utf8_trim_whitespace(column)
            good = pc.match_substring_regex(text, _NUMBER)
            self._refuse(pc.invert(good), name, column, "is not a number: write one")
            column = text
        elif not (
            pa.types.is_integer(column.type)
            or pa.types.is_floating(column.type)
            or pa.types.is_decimal(column.type)
        ):
            self._wrong_type(name, column.type, "a number")
        return column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)

    def _refuse(
        self, bad: pa.Array | npt.NDArray[np.bool_], name: str, values: pa.Array, why: str
    ) -> None:
        found = np.flatnonzero(np.asarray(bad))
        if len(found):
            index = int(found[0])
            raise ConfigurationError(
                f"{self.path}: {row_word(self.path)} {self.rows[index]}: {name} "
                f"{values[index].as_py()!r} {why}"
            )

    def _wrong_type(self, name: str, kind: pa.DataType, wanted: str) -> NoReturn:
        raise ConfigurationError(
            f"{self.path}: column {name!r} has the type {kind}, which cannot be read as a {name}: "
            f"write it as {wanted}"
        )


def _plain(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        return column.dictionary_decode()
    # No row, or none with a value: of no type of its own.
    return column.cast(pa.string()) if pa.types.is_null(column.type) else column


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _refuse_pair(parts: list[_Rows], user: str, one: int, other: int) -> NoReturn:
    texts = []
    for index in (one, other):
        for part in parts:
            if index < len(part.rows):
                break
            index -= len(part.rows)
        texts.append(
            f"window {part.windows[index]}, epsilon {part.epsilons[index]} in {part.path} "
            f"{row_word(part.path)} {part.rows[index]}"
        )
    raise ConfigurationError(
        f"user {user!r} is listed with two different requirements: {' and '.join(texts)}: keep one"
    )


def _digest(
    users: pa.Array, windows: npt.NDArray[np.int64], epsilons: npt.NDArray[np.float64]
) -> str:
    digest = hashlib.blake2b(digest_size=16)
    if len(users):
        ends = pc.cumulative_sum(pc.binary_length(users)).to_numpy()
        digest.update(ends.tobytes())
        digest.update(memoryview(users.buffers()[2])[: ends[-1]])
    digest.update(windows.tobytes())
    digest.update(epsilons.tobytes())
    return digest.hexdigest()
