"""Dead letters: what was rejected, why, and where it stood."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from streamveil.mechanisms.records import (
    REJECTED_COLUMNS,
    ROW_COLUMN,
    SOURCE_METADATA,
    ConfigurationError,
)

REJECTED_SCHEMA = pa.schema(REJECTED_COLUMNS)
LATE = "late"


def column_of(batch: pa.RecordBatch, name: str, what: str = "events") -> pa.Array:
    """A column by name; raises ConfigurationError when there is none."""
    at = batch.schema.get_field_index(name)
    if at < 0:
        raise ConfigurationError(
            f"the {what} have no column {name!r}; there are: "
            f"{', '.join(n for n in batch.schema.names if n != ROW_COLUMN)}"
        )
    return batch.column(at)


def source_of(batch: pa.RecordBatch) -> str | None:
    """Where a batch says that it was read."""
    metadata = batch.schema.metadata or {}
    source = metadata.get(SOURCE_METADATA)
    return None if source is None else source.decode()


@contextlib.contextmanager
def naming_source(batch: pa.RecordBatch) -> Iterator[None]:
    """Let a ConfigurationError inside say where the batch was read."""
    try:
        yield
    except ConfigurationError as error:
        source = source_of(batch)
        raise ConfigurationError(f"{source}: {error}" if source else str(error)) from error


def rejected_rows(
    batch: pa.RecordBatch,
    faults: Mapping[int, str],
    detail: Callable[[str, dict[str, Any]], str],
) -> pa.RecordBatch:
    """Dead letters of the faulty rows: where each stood, why, and the record as JSON.

    Args:
        batch: what the rows are of.
        faults: the reason of each faulty row, by row.
        detail: tells more, from the reason and the record.
    """
    rows = sorted(faults)
    names = [name for name in batch.schema.names if name != ROW_COLUMN]
    records = [
        dict(zip(names, values, strict=True))
        for values in zip(*(_json_values(batch.column(name), rows) for name in names), strict=True)
    ]
    at = batch.schema.get_field_index(ROW_COLUMN)
    places = batch.column(at).take(pa.array(rows, pa.int64())) if at >= 0 else None
    return pa.RecordBatch.from_arrays(
        [
            pa.array([source_of(batch)] * len(rows), pa.string()),
            pa.nulls(len(rows), pa.int64()) if places is None else places,
            pa.array([faults[row] for row in rows], pa.string()),
            pa.array(
                [detail(faults[row], record) for row, record in zip(rows, records, strict=True)],
                pa.string(),
            ),
            pa.array([json.dumps(record) for record in records], pa.string()),
        ],
        schema=REJECTED_SCHEMA,
    )


def rejected_slots(reason: str, detail: str, events: Mapping[int, int]) -> pa.RecordBatch:
    """Dead letters for events that are only counted: one a slot, with how many they were.

    `detail` says why with `{slot}` in it.
    """
    return pa.RecordBatch.from_pylist(
        [
            {
                "reason": reason,
                "detail": detail.format(slot=slot),
                "record": json.dumps({"slot": slot, "events": number}),
            }
            for slot, number in events.items()
        ],
        schema=REJECTED_SCHEMA,
    )


def late_slots(events: Mapping[int, int]) -> pa.RecordBatch:
    """Dead letters for events that came after their slot."""
    detail = "slot {slot} was closed before these events came, or never opened"
    return rejected_slots(LATE, detail, events)


def reasons_of(rejected: pa.RecordBatch) -> Iterator[tuple[str, int]]:
    """Each reason among dead letters, and how many have it."""
    for reason in rejected.column("reason").value_counts().to_pylist():
        yield reason["values"], reason["counts"]


def _json_values(column: pa.Array, rows: list[int]) -> list[Any]:
    """Values of some rows as strict JSON has them: times and what it lacks become text."""
    picked = column.take(pa.array(rows, pa.int64()))
    if pa.types.is_dictionary(picked.type):
        picked = picked.dictionary_decode()
    kind = picked.type
    if pa.types.is_temporal(kind):
        try:
            return picked.cast(pa.string()).to_pylist()  # Python's own times are narrower
        except pa.ArrowInvalid:
            return picked.cast(pa.int64()).cast(pa.string()).to_pylist()
    try:
        return [_plain(value) for value in picked.to_pylist()]
    except (OverflowError, ValueError):  # a far time inside a list or a struct
        return [str(scalar) for scalar in picked]


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
