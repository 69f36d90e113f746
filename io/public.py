"""Public tables, such as requirements: every row must be good, or the table is refused by name.

What names a user, a bin or a category is text as it is written: `01234` and `true` are what they
look like.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.io.cells import without_views
from streamveil.io.events import read_part, split_file
from streamveil.io.files import require_columns
from streamveil.io.formats import row_word
from streamveil.io.lines import refusing
from streamveil.mechanisms.core.records import ConfigurationError

_INFINITE = r"(?i)^[+-]?inf(inity)?$"
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


@dataclass(frozen=True)
class Rows:
    """Some rows of a public table, and where they stand in it."""

    path: str
    columns: tuple[pa.Array, ...]
    """The columns asked for, not checked."""
    rows: npt.NDArray[np.int64]
    """Row or line of each, shape (n,)."""
    word: str = "row"
    """What each of `rows` is."""

    def names(self, name: str, column: pa.Array, remedy: str) -> pa.Array:
        """A column of names as text; whole numbers are their decimal text.

        Raises ConfigurationError for a null, an empty name and another type.
        """
        column = _plain(column)
        if not (_is_text(column.type) or pa.types.is_integer(column.type)):
            self._wrong_type(name, column.type, "text or an integer")
        names = column.cast(pa.string())
        self.refuse(names.is_null(), name, names, f"is missing: {remedy}")
        self.refuse(pc.equal(names, ""), name, names, f"is empty: {remedy}")
        return names

    def numbers(self, name: str, column: pa.Array) -> npt.NDArray[np.float64]:
        """A column of numbers. Raises ConfigurationError for a row that holds none."""
        self.refuse(column.is_null(), name, column, "is missing: write a number")
        column = _plain(column)
        if _is_text(column.type):
            text = pc.utf8_trim_whitespace(column)
            good = pc.match_substring_regex(text, _NUMBER)
            endless = pc.match_substring_regex(text, _INFINITE)
            self.refuse(endless, name, column, "is not a finite number: write one")
            self.refuse(pc.invert(good), name, column, "is not a number: write one")
            column = text
        elif not (
            pa.types.is_integer(column.type)
            or pa.types.is_floating(column.type)
            or pa.types.is_decimal(column.type)
        ):
            self._wrong_type(name, column.type, "a number")
        return column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)

    def numbers_or_blank(self, name: str, column: pa.Array) -> npt.NDArray[np.float64]:
        """A column of numbers, NaN where it is blank: null, or a text of blanks.

        Raises ConfigurationError for a row that holds anything else.
        """
        column = _plain(column)
        blank = column.is_null()
        if _is_text(column.type):
            blank = pc.or_kleene(blank, pc.equal(pc.utf8_trim_whitespace(column), ""))
        values = np.full(len(column), np.nan)
        stated = pc.invert(blank)
        rows = np.asarray(stated)
        some = replace(self, rows=self.rows[rows])
        values[rows] = some.numbers(name, column.filter(stated))
        return values

    def refuse(
        self, bad: pa.Array | npt.NDArray[np.bool_], name: str, values: pa.Array, why: str
    ) -> None:
        """Raise ConfigurationError for the first bad row, if there is one."""
        found = np.flatnonzero(np.asarray(bad))
        if len(found):
            index = int(found[0])
            raise ConfigurationError(
                f"{self.path}: {self.word} {self.rows[index]}: {name} "
                f"{values[index].as_py()!r} {why}"
            )

    def _wrong_type(self, name: str, kind: pa.DataType, wanted: str) -> NoReturn:
        raise ConfigurationError(
            f"{self.path}: column {name!r} has the type {kind}, which cannot be read as a {name}: "
            f"write it as {wanted}"
        )


def read_public(path: str, columns: Sequence[str]) -> Iterator[Rows]:
    """Read columns of a public file, such as a requirements table, in any format for event files.

    Raises:
        ConfigurationError: if the public file or one of its rows cannot be read.
    """
    for part in split_file(path, columns):
        for batch in read_part(part, columns, refusing(path)):
            *arrays, places = batch.columns
            yield Rows(path, tuple(arrays), places.to_numpy(), row_word(path))


def public_rows(name: str, table: pa.Table, columns: Sequence[str]) -> Iterator[Rows]:
    """The named columns of a table in memory; rows count from 0.

    Raises ConfigurationError for a column that is missing or there twice.
    """
    require_columns(name, columns, table.column_names, what="the table")
    start = 0
    for batch in table.select(list(columns)).to_batches():
        rows = np.arange(start, start + batch.num_rows)
        start += batch.num_rows
        yield Rows(name, tuple(map(without_views, batch.columns)), rows)


def _plain(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        return column.dictionary_decode()
    # No row, or none with a value: of no type of its own.
    return column.cast(pa.string()) if pa.types.is_null(column.type) else column


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)
