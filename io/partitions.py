"""Columns that stand in the names of folders, as Hive and Spark write them: `country=DE/day=5/`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

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
    """The named columns of a batch, in that order, and those that the path says among them."""
    arrays = {name: batch.column(name) for name in (*columns, ROW_COLUMN) if name not in said} | {
        name: _constant(said[name], batch.num_rows) for name in columns if name in said
    }
    return pa.RecordBatch.from_arrays(
        [arrays[name] for name in (*columns, ROW_COLUMN)],
        names=[*columns, ROW_COLUMN],
        metadata=batch.schema.metadata,
    )


def _constant(value: str | None, rows: int) -> pa.Array:
    if value is None:
        return pa.nulls(rows, pa.string())
    return pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), pa.array([value], pa.string()))
