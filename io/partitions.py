"""Columns that stand in the names of folders, as Hive and Spark write them: `country=DE/day=5/`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.mechanisms.core.records import ROW_COLUMN

_FOLDER = re.compile(r"(?:^|[/\\])([^/\\=]+)=([^/\\]*)(?=[/\\])")
_NULL = "__HIVE_DEFAULT_PARTITION__"


def partitions_of(path: str) -> dict[str, str | None]:
    """What the folders of a path say, by column: text, None for null; the innermost counts."""
    return {
        unquote(name): None if value == _NULL else unquote(value)
        for name, value in _FOLDER.findall(path)
    }


def with_partitions(
    batch: pa.RecordBatch, columns: Sequence[str], said: Mapping[str, str | None]
) -> pa.RecordBatch:
    """The named columns of a batch, in that order, and those that the path says among them.

    Where the batch has such a column of text too, the path says what is null or empty in it.
    """
    arrays = {}
    for name in (*columns, ROW_COLUMN):
        own = batch.column(name) if name in batch.schema.names else None
        arrays[name] = _filled(own, said[name], batch.num_rows) if name in said else own
    return pa.RecordBatch.from_arrays(
        list(arrays.values()), names=list(arrays), metadata=batch.schema.metadata
    )


def _filled(own: pa.Array | None, value: str | None, rows: int) -> pa.Array:
    if own is None:
        return _constant(value, rows)
    missing = pc.fill_null(pc.equal(pc.binary_length(own), 0), True)
    if pc.all(missing).as_py():
        return _constant(value, rows)
    return pc.if_else(missing, pa.scalar(value, own.type), own)


def _constant(value: str | None, rows: int) -> pa.Array:
    if value is None:
        return pa.nulls(rows, pa.string())
    return pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), pa.array([value], pa.string()))
