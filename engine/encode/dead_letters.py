"""Dead letters: what was rejected, why, and where it stood."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streamveil.mechanisms.core.event_tallies import LATE, EventTally, Lost
from streamveil.mechanisms.core.records import (
    FAULT_COLUMN,
    LOST_METADATA,
    REJECTED_COLUMNS,
    ROW_COLUMN,
    SOURCE_METADATA,
    ConfigurationError,
)

# As `io.REJECTED_SCHEMA` has it, of which transforms know nothing.
_SCHEMA = pa.schema(REJECTED_COLUMNS)
_NONE = pa.RecordBatch.from_pylist([], _SCHEMA)

WRONG_TYPE = "wrong type"
_HIDDEN = (ROW_COLUMN, FAULT_COLUMN)


def column_of(batch: pa.RecordBatch, name: str, what: str = "events") -> pa.Array:
    """A column by name, as :func:`usable`; raises ConfigurationError when there is none."""
    at = batch.schema.get_field_index(name)
    if at < 0:
        raise ConfigurationError(
            f"the {what} have no column {name!r}; there are: "
            f"{', '.join(n for n in batch.schema.names if n not in _HIDDEN)}"
        )
    return usable(batch.column(at))


def usable(array: pa.Array) -> pa.Array:
    """The same values in a type that Arrow's functions know: views become large text or bytes.

    An index outside its dictionary becomes null, so that its row is at fault and no other.
    """
    kind = array.type
    if pa.types.is_string_view(kind):
        return array.cast(pa.large_string())
    if pa.types.is_binary_view(kind):
        return array.cast(pa.large_binary())
    if not pa.types.is_dictionary(kind):
        return array
    values, indices = usable(array.dictionary), array.indices
    ends = pc.min_max(indices)
    inside = len(indices) == indices.null_count or (
        ends["min"].as_py() >= 0 and ends["max"].as_py() < len(values)
    )
    if inside and values is array.dictionary:
        return array
    if not inside:
        good = pc.and_(pc.greater_equal(indices, 0), pc.less(indices, len(values)))
        indices = pc.if_else(good, indices, None)
    return pa.DictionaryArray.from_arrays(indices, values)


def unread_rows(batch: pa.RecordBatch) -> dict[int, str]:
    """What is wrong with each row that could not be read when the batch was made."""
    at = batch.schema.get_field_index(FAULT_COLUMN)
    faults = [] if at < 0 else batch.column(at).to_pylist()
    return {row: fault for row, fault in enumerate(faults) if fault is not None}


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
        detail: tells more, from the reason and the record; of a row of the wrong type the batch
            does.
    """
    if not faults:
        return _NONE
    rows = sorted(faults)
    unread = unread_rows(batch)
    names = [name for name in batch.schema.names if name not in _HIDDEN]
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
                [
                    unread[row] if faults[row] == WRONG_TYPE else detail(faults[row], record)
                    for row, record in zip(rows, records, strict=True)
                ],
                pa.string(),
            ),
            pa.array([json.dumps(record) for record in records], pa.string()),
        ],
        schema=_SCHEMA,
    )


def rejected_slots(reason: str, detail: str, events: Mapping[int, int]) -> pa.RecordBatch:
    """Dead letters for events that are only counted: one a slot, with how many they were.

    `detail` says why with `{slot}` in it.
    """
    return rejected_records(
        reason,
        (
            (detail.format(slot=slot), {"slot": slot, "events": number})
            for slot, number in events.items()
        ),
    )


def rejected_records(reason: str, records: Iterable[tuple[str, Any]]) -> pa.RecordBatch:
    """Dead letters of what stood in no row: each why, and what JSON can hold of it."""
    rows = [
        {"reason": reason, "detail": detail, "record": json.dumps(record)}
        for detail, record in records
    ]
    return pa.RecordBatch.from_pylist(rows, schema=_SCHEMA)


def late_slots(events: Mapping[int, int]) -> pa.RecordBatch:
    """Dead letters for events that came after their slot."""
    detail = "slot {slot} was closed before these events came, or never opened"
    return rejected_slots(LATE, detail, events)


def reasons_of(rejected: pa.RecordBatch) -> Iterator[tuple[str, int]]:
    """Each reason among dead letters, and how many have it."""
    for reason in rejected.column("reason").value_counts().to_pylist():
        yield reason["values"], reason["counts"]


def losses_of(rejected: pa.RecordBatch) -> dict[str, Lost]:
    """How many dead letters have each reason, and the first one that has it."""
    reasons = rejected.column("reason").to_pylist()
    found = {}
    for reason, number in reasons_of(rejected):
        first = rejected.slice(reasons.index(reason), 1).to_pylist()[0]
        row = -1 if first["row"] is None else first["row"]
        found[reason] = Lost(number, first["source"] or "", row, first["detail"] or "")
    return found


def tally_of(batch: pa.RecordBatch) -> EventTally:
    """What a batch says was lost on the way to it, and of messages on that way."""
    data = (batch.schema.metadata or {}).get(LOST_METADATA)
    return EventTally() if data is None else EventTally.of_bytes(data)


def with_tally(batch: pa.RecordBatch, tally: EventTally) -> pa.RecordBatch:
    """The batch, saying that this was lost on the way to it; without a word of it if nothing."""
    metadata = dict(batch.schema.metadata or {})
    metadata.pop(LOST_METADATA, None)
    if tally.read or tally.messages:
        metadata[LOST_METADATA] = tally.to_bytes()
    return batch.replace_schema_metadata(metadata)


def _json_values(column: pa.Array, rows: list[int]) -> list[Any]:
    """Values of some rows as strict JSON has them: times and what it lacks become text."""
    picked = usable(column).take(pa.array(rows, pa.int64()))
    if pa.types.is_dictionary(picked.type):
        picked = picked.dictionary_decode()
    kind = picked.type
    if pa.types.is_temporal(kind):
        try:
            return picked.cast(pa.string()).to_pylist()  # Python's own times are narrower
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            wide = pa.int32() if kind.bit_width == 32 else pa.int64()
            return picked.view(wide).cast(pa.string()).to_pylist()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        # Not all text that a caller makes is UTF-8.
        raw = picked.cast(pa.large_binary()).to_pylist()
        return [None if each is None else each.decode(errors="replace") for each in raw]
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
