"""Rows of statistics under per-record privacy, to files and streams."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.pvalue import PCollection

from streamveil.io.avro import UTC_MICROSECONDS
from streamveil.io.formats import output_format_of
from streamveil.io.jsonlines import json_rows, json_text
from streamveil.io.tables import WriteTable, read_table
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
BATCH_ROWS = 10_000


def per_record_batch(rows: Sequence[PerRecordRow]) -> pa.RecordBatch:
    """One row of :data:`PER_RECORD_SCHEMA` each, in the order given; what is unknown is null."""
    columns: dict[str, list[Any]] = {
        name: [getattr(row, name) for row in rows] for name in PER_RECORD_SCHEMA.names
    }
    for name in ("stderr", "dropped_bound"):
        columns[name] = [None if math.isnan(value) else value for value in columns[name]]
    return pa.RecordBatch.from_pydict(columns, schema=PER_RECORD_SCHEMA)


def per_record_object(row: PerRecordRow) -> dict[str, Any]:
    """The JSON object of a row: the columns of WritePerRecord, with times as ISO 8601 text."""
    return next(json_rows(per_record_batch([row])))


def per_record_json(row: PerRecordRow) -> bytes:
    """The line that WritePerRecord would write to a .jsonl file, without its end."""
    return json_text(per_record_object(row)).encode()


@dataclass(eq=False)
class WritePerRecord(beam.PTransform):
    """Writes rows to one file, sorted by window and key; gives its path. See WriteTable.

    Input: rows, or a tuple of them and of their number, as of WriteTable.

    Columns: key string or null, start and end timestamp[us, UTC] or null, statistic string,
    mechanism string, estimate double, epsilon_tau double, stderr and dropped_bound double or null.
    """

    path: str

    def __post_init__(self) -> None:
        """Check the name."""
        super().__init__()
        output_format_of(self.path)

    def expand(
        self,
        inputs: PCollection[PerRecordRow] | tuple[PCollection[PerRecordRow], PCollection[int]],
    ) -> PCollection[str]:
        """Build the steps: batch, convert, write."""
        rows, *number = inputs if isinstance(inputs, tuple) else (inputs,)
        batches = (
            rows
            | "Batch" >> beam.BatchElements(min_batch_size=1, max_batch_size=BATCH_ROWS)
            | "Convert" >> beam.Map(per_record_batch).with_output_types(pa.RecordBatch)
        )
        table = (batches, *number) if number else batches
        return table | "Write" >> WriteTable(
            self.path, PER_RECORD_SCHEMA, sort_by=("start", "end", "key")
        )


def read_per_record(path: str) -> list[PerRecordRow]:
    """Rows of a file that WritePerRecord made, in its order, from any of its formats."""
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
