"""Columns of records as numbers and codes; what cannot be read is marked, and nothing reports it.

The names and types of columns are public, so those that cannot serve raise. What stands in a row
is secret: an error over it makes the row bad, and no other one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.engine.encode.dead_letters import column_of
from streamveil.engine.encode.numbers import as_numbers
from streamveil.engine.encode.times import to_micros
from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.core.records import ConfigurationError

NOWHERE = -1
NO_TIME = np.iinfo(np.int64).min  # far before the year 1


def by_pieces(
    read: Callable[[pa.RecordBatch], npt.NDArray[Any]], rows: pa.RecordBatch, bad: Any
) -> npt.NDArray[Any]:
    """What `read` gives for rows, with `bad` for each row that it raises on if that is alone.

    Args:
        read: gives an array of one value a row.
        rows: the rows.
        bad: in place of what a bad row has.
    """
    if not rows.num_rows:
        return np.full(0, bad)
    try:
        return read(rows)
    except Exception:
        if rows.num_rows == 1:
            return np.full(1, bad)
    rows = plain(rows)  # a dictionary would bring the bad value into every piece
    half = rows.num_rows // 2
    return np.concatenate(
        [by_pieces(read, part, bad) for part in (rows.slice(0, half), rows.slice(half))]
    )


def plain(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows, with dictionaries decoded."""
    arrays = [
        column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        for column in rows.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, rows.schema.names)


def numbers_of(batch: pa.RecordBatch, name: str) -> Floats:
    """A column as numbers, NaN for what is none: shape (n,).

    Raises ConfigurationError for a column that is missing or of a type that holds no numbers.
    """
    column = column_of(batch, name, "records")
    if as_numbers(column.slice(0, 0)) is None:
        raise ConfigurationError(
            f"column {name!r} holds {column.type}, which is not a number: convert it"
        )

    def read(rows: pa.RecordBatch) -> Floats:
        numbers = as_numbers(rows.column(0))
        assert numbers is not None
        return numbers

    return by_pieces(read, _alone(column), np.nan)


def positions_of(batch: pa.RecordBatch, name: str, known: tuple[str, ...]) -> Integers:
    """Position in `known` of a column's text, NOWHERE for another or a null: shape (n,).

    Whole numbers are taken as their text. Raises ConfigurationError for a column that is missing
    or of another type.
    """
    column = column_of(batch, name, "records")
    values = pa.array(known, pa.large_string())
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_null(kind)
    ):
        raise ConfigurationError(
            f"column {name!r} holds {column.type}: give text or whole numbers, or convert it"
        )

    def read(rows: pa.RecordBatch) -> Integers:
        return _found(rows.column(0), values)

    return by_pieces(read, _alone(column), NOWHERE)


def _found(column: pa.Array, values: pa.Array) -> Integers:
    if pa.types.is_dictionary(column.type):
        inside = np.append(_found(column.dictionary, values), NOWHERE)  # last: that of a null
        at = pc.fill_null(column.indices.cast(pa.int64()), len(column.dictionary))
        return inside[at.to_numpy(zero_copy_only=False)]
    found = pc.index_in(column.cast(pa.large_string()), value_set=values)
    return pc.fill_null(found, NOWHERE).to_numpy(zero_copy_only=False).astype(np.int64)


def nulls_of(batch: pa.RecordBatch, name: str) -> npt.NDArray[np.bool_]:
    """Which rows of a column are null, shape (n,)."""
    (column,) = plain(_alone(column_of(batch, name, "records"))).columns
    return column.is_null().to_numpy(zero_copy_only=False)


def micros_of(
    batch: pa.RecordBatch, name: str, zone: str, unit: str | None, form: str | None = None
) -> Integers:
    """A column as microseconds, NO_TIME for what is none: shape (n,).

    Raises ConfigurationError for a column that is missing or of a type that holds no times.
    """
    column = column_of(batch, name, "records")
    to_micros(column.slice(0, 0), zone=zone, unit=unit, form=form, name=name)

    def read(rows: pa.RecordBatch) -> Integers:
        micros, reasons = to_micros(rows.column(0), zone=zone, unit=unit, form=form)
        if reasons:
            micros = micros.copy()
            micros[np.fromiter(reasons, np.int64, len(reasons))] = NO_TIME
        return micros

    return by_pieces(read, _alone(column), NO_TIME)


def _alone(column: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([column], ["column"])
