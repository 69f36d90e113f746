"""Rows of statistics under per-record privacy, to files and streams."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from streamveil.io.jsonlines import json_rows
from streamveil.io.tables import UTC_MICROSECONDS, TableForm, read_table
from streamveil.mechanisms.core.records import PerRecordRow, parse_time

PER_RECORD_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("start", UTC_MICROSECONDS),
        pa.field("end", UTC_MICROSECONDS),
        pa.field("statistic", pa.string(), nullable=False),
        pa.field("mechanism", pa.string(), nullable=False),
        pa.field("estimate", pa.float64(), nullable=False),
        pa.field("stderr", pa.float64()),
        pa.field("epsilon_tau", pa.float64(), nullable=False),
        pa.field("dropped_bound", pa.float64()),
    ]
)
"""Arrow schema of per-record results, with a row for each window and key."""


def per_record_batch(rows: Sequence[PerRecordRow]) -> pa.RecordBatch:
    """One row of :data:`PER_RECORD_SCHEMA` each, in the order given; what is unknown is null."""
    columns: dict[str, list[Any]] = {
        name: [getattr(row, name) for row in rows] for name in PER_RECORD_SCHEMA.names
    }
    for name in ("stderr", "dropped_bound"):
        columns[name] = [None if math.isnan(value) else value for value in columns[name]]
    return pa.RecordBatch.from_pydict(columns, schema=PER_RECORD_SCHEMA)


PER_RECORD_FORM = TableForm(
    PER_RECORD_SCHEMA, per_record_batch, ("start", "end", "key"), batch=10_000
)


def per_record_object(row: PerRecordRow) -> dict[str, Any]:
    """The JSON object of a row: the columns of WritePerRecord, with times as ISO 8601 text."""
    return next(json_rows(per_record_batch([row])))


def read_per_record(path: str) -> list[PerRecordRow]:
    """Read a file of per-record results that WritePerRecord wrote, in any format.

    The results are returned in the order of the rows in the file.
    """
    return [
        PerRecordRow(
            key=None if row["key"] in (None, "") else str(row["key"]),
            start=_time(row["start"]),
            end=_time(row["end"]),
            statistic=row["statistic"],
            mechanism=row["mechanism"],
            estimate=float(row["estimate"]),
            stderr=_number(row["stderr"]),
            epsilon_tau=float(row["epsilon_tau"]),
            dropped_bound=_number(row["dropped_bound"]),
        )
        for row in read_table(path).to_pylist()
    ]


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _time(value: Any) -> int | None:
    return None if value in (None, "") else parse_time(value)
