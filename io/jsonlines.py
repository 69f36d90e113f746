"""The JSON Lines format: one object on every line, or in every message."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.json

from streamveil.io.files import Columns, event_batch, plain_values
from streamveil.io.lines import Lines, Reject, is_utf8, read_lines
from streamveil.mechanisms.records import ConfigurationError, format_time

SAMPLE_LINES = 100  # a first guess of the types; a wrong one costs time, never a row
_TYPES = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}


def json_columns(path: str) -> list[str]:
    """Keys of the objects in the first lines of a file.

    Raises ConfigurationError when none of them is a JSON object.
    """
    keys: dict[str, None] = {}
    found = False
    for value in _sample(next(read_lines(path), Lines(1, b""))):
        found = True
        keys.update(dict.fromkeys(value))
    if not found:
        raise ConfigurationError(
            f"{path}: the first {SAMPLE_LINES} lines hold no JSON object: write one object on "
            "every line"
        )
    return list(keys)


def read_json(path: str, columns: Columns, reject: Reject) -> Iterator[pa.RecordBatch]:
    """Read the named keys, a batch for every block of lines; a missing key is null.

    A column has the type of its values in the block: bool is not read, int64, float64 or string,
    and string for a mixture of strings and numbers, where 7.0 is written 7. Lines that are not an
    object, or that hold a boolean, list or object under a named key, go to `reject`. Raises
    ConfigurationError for a file that cannot be read.
    """
    schema: pa.Schema | None = None
    for lines in read_lines(path):
        if schema is None:
            schema = _guess(lines, columns)
        arrays, numbers = _arrow(lines, schema), lines.numbers
        if arrays is None:
            numbered = zip(lines.numbers.tolist(), lines, strict=True)
            written = ((number, line) for number, line in numbered if line.strip())
            arrays, numbers = _one_by_one(written, columns, reject)
            schema = pa.schema(
                [
                    (name, array.type if array.null_count < len(array) else pa.string())
                    for name, array in zip(columns, arrays, strict=True)
                ]
            )
        yield event_batch(path, columns, arrays, numbers)


def parse_messages(messages: Sequence[bytes], columns: Columns, reject: Reject) -> list[pa.Array]:
    """The named keys of messages, each one object, as strings; a missing key is null.

    Always strings, as in CSV, where 7.0 is written 7: a stream has no end at which to find out what
    type a key has, and one odd message must not make a batch unlike all others. Messages that are
    not an object, or that hold a boolean, list or object under a named key, go to `reject` by their
    index.
    """
    lines = Lines(0, b"\n".join(messages))
    arrays = None
    if all(map(bytes.strip, messages)) and lines.block.count(b"\n") == len(messages) - 1:
        arrays = _arrow(lines, _guess(lines, columns))
    if arrays is None:
        arrays, _ = _one_by_one(enumerate(messages), columns, reject)
    return [_as_text(array) for array in arrays]


def text_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch of :func:`read_json` with its columns as :func:`parse_messages` would give them.

    So their types do not depend on what else is in the block.
    """
    *arrays, rows = batch.columns
    *fields, last = batch.schema
    schema = pa.schema(
        [*(pa.field(field.name, pa.string()) for field in fields), last], batch.schema.metadata
    )
    return pa.RecordBatch.from_arrays([*map(_as_text, arrays), rows], schema=schema)


def _as_text(array: pa.Array) -> pa.Array:
    if pa.types.is_floating(array.type):
        return pa.array(map(_text, array.to_pylist()), pa.string())
    return array.cast(pa.string())


def _sample(lines: Lines) -> Iterator[dict[str, Any]]:
    for line in islice(lines, SAMPLE_LINES):
        value = _parse(line)
        if isinstance(value, dict):
            yield value


def _parse(line: bytes) -> Any:
    """Value of a line, or the text of what is wrong with it."""
    try:
        value = json.loads(line.decode())
    except UnicodeDecodeError as error:
        return f"not UTF-8: {error.reason} at byte {error.start}"
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"
    return value if isinstance(value, dict) else "not a JSON object"


def _guess(lines: Lines, columns: Columns) -> pa.Schema:
    """Explicit types: pyarrow's own guess would make timestamps of some strings."""
    kinds: dict[str, set[type]] = {name: set() for name in columns}
    for value in _sample(lines):
        for name in columns:
            kinds[name].add(type(value.get(name)))
    return pa.schema([(name, _common_type(kinds[name])) for name in columns])


def _common_type(kinds: set[type]) -> pa.DataType:
    kinds = kinds - {type(None)}
    if kinds and kinds <= {int, float}:
        return _TYPES[float if float in kinds else int]
    return pa.string()


def _arrow(lines: Lines, schema: pa.Schema) -> list[pa.Array] | None:
    """Parse at once; None unless every line is one good object of those types."""
    if not is_utf8(lines.block) or not len(lines):
        return None
    try:
        table = pyarrow.json.read_json(
            pa.BufferReader(lines.block),
            read_options=pyarrow.json.ReadOptions(
                use_threads=False, block_size=len(lines.block) + 1
            ),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="ignore"
            ),
        )
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None
    if table.num_rows != len(lines):
        return None
    return [table.column(name).combine_chunks() for name in schema.names]


def _one_by_one(
    numbered: Iterable[tuple[int, bytes]], columns: Columns, reject: Reject
) -> tuple[list[pa.Array], npt.NDArray[np.int64]]:
    values: dict[str, list[Any]] = {name: [] for name in columns}
    numbers = []
    for number, line in numbered:
        row = _parse(line)
        problem = row if isinstance(row, str) else _problem(row, columns)
        if problem:
            reject(number, problem, line)
            continue
        numbers.append(number)
        for name in columns:
            values[name].append(row.get(name))
    arrays = [_column(values[name]) for name in columns]
    return arrays, np.array(numbers, np.int64)


def _problem(row: Mapping[str, Any], columns: Columns) -> str | None:
    for name in columns:
        value = row.get(name)
        if isinstance(value, (bool, list, dict)):
            kind = {bool: "boolean", list: "list", dict: "object"}[type(value)]
            return f"{name!r} is a {kind}, not a string or a number"
        if isinstance(value, str) and not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                return f"{name!r} holds half of a surrogate pair"
    return None


def _column(values: list[Any]) -> pa.Array:
    kind = _common_type(set(map(type, values)))
    try:
        if kind != pa.string():
            return pa.array(values, kind)
    except (OverflowError, pa.ArrowInvalid):  # an integer of more than 64 bits
        pass
    return pa.array(map(_text, values), pa.string())


def _text(value: str | float | None) -> str | None:
    """Text of a value; a whole number has one text, written 7 or 7.0: it may be a user's id."""
    if value is None or isinstance(value, str):
        return value
    return repr(int(value) if isinstance(value, float) and value.is_integer() else value)


def write_json(handle: BinaryIO, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """Write batches of that schema, an object on every line."""
    for batch in batches:
        for row in json_rows(batch):
            handle.write(json_text(row).encode() + b"\n")


def json_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Rows as JSON objects; timestamps are ISO 8601 in UTC with a Z."""
    columns = [
        iso_times(column) if pa.types.is_timestamp(column.type) else plain_values(column)
        for column in batch.columns
    ]
    for row in zip(*columns, strict=True):
        yield dict(zip(batch.schema.names, row, strict=True))


def iso_times(column: pa.Array) -> list[str | None]:
    """ISO 8601 in UTC of a timestamp column; a time without a zone is taken as UTC."""
    times = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist()
    return [None if time is None else format_time(time) for time in times]


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
