"""The JSON Lines format: one object on every line."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, BinaryIO

import pyarrow as pa

from streamveil.io.files import Columns, event_batch, plain_values
from streamveil.io.json_objects import parse_object, read_objects
from streamveil.io.lines import Lines, Reject, read_lines
from streamveil.mechanisms.core.records import ConfigurationError, format_time

SAMPLE_LINES = 100


def json_columns(path: str, wanted: Columns = ()) -> list[str]:
    """Keys of the objects in the first lines of a file; of `wanted` those in any line.

    So it does not hang on one line more or less whether a key is found. Raises ConfigurationError
    when no line is a JSON object.
    """
    keys: dict[str, None] = {}
    found = 0
    for line in chain.from_iterable(read_lines(path)):
        if found >= SAMPLE_LINES and keys.keys() >= set(wanted):
            break
        value = parse_object(line)
        if isinstance(value, dict):
            found += 1
            keys.update({key: None for key in value if found <= SAMPLE_LINES or key in wanted})
    if not found:
        raise ConfigurationError(
            f"{path}: the file has no JSON object: write one object on every line"
        )
    return list(keys)


def read_json(path: str, columns: Columns, reject: Reject) -> Iterator[pa.RecordBatch]:
    """Read the named keys as strings, a batch for every block of lines; a missing key is null.

    What a line gives depends on that line alone, as of :func:`read_objects`. Lines that are not an
    object, that hold a list or object under a named key, or that have such a key twice, go to
    `reject`. Raises ConfigurationError for a file that cannot be read.
    """
    for lines in read_lines(path):

        def tell(row: int, detail: str, record: bytes, lines: Lines = lines) -> None:
            if record.strip(b" \t\r\n"):  # a blank line is no record
                reject(int(lines.numbers[row]), detail, lines[row])

        arrays, rows = read_objects(lines.array, columns, tell)
        yield event_batch(path, columns, arrays, lines.numbers[rows])


def write_json(handle: BinaryIO, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """Write batches of that schema, an object on every line."""
    for batch in batches:
        for row in json_rows(batch):
            handle.write(json_text(row).encode() + b"\n")


def json_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Rows as JSON objects; timestamps are ISO 8601, as of :func:`iso_times`."""
    columns = [
        iso_times(column) if pa.types.is_timestamp(column.type) else plain_values(column)
        for column in batch.columns
    ]
    for row in zip(*columns, strict=True):
        yield dict(zip(batch.schema.names, row, strict=True))


def iso_times(column: pa.Array) -> list[str | None]:
    """ISO 8601 of a timestamp column: in UTC with a Z, or in its zone with the offset there.

    A time without a zone is taken as UTC.
    """
    times = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist()
    zone = column.type.tz or "UTC"
    return [None if time is None else format_time(time, zone) for time in times]


def json_text(value: Any) -> str:
    """JSON without spaces; NaN and the infinities become null."""
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), separators=(",", ":"), ensure_ascii=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
