"""The Avro format: container files to and from Arrow."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import MAX_PREC, Context, Decimal
from io import BytesIO
from itertools import chain, islice
from typing import Any, BinaryIO, cast

import fastavro
import numpy as np
import pyarrow as pa
from fastavro.schema import SchemaParseException, expand_schema

from streamveil.io.avro_blocks import flat_fields, read_blocks
from streamveil.io.cells import Faults, as_utf8, sound_batch
from streamveil.io.files import Columns, open_file, plain_values, reading, require_columns
from streamveil.io.lines import Reject
from streamveil.mechanisms.core.records import ConfigurationError, QueryColumn

BATCH_ROWS = 1 << 16
# Unpacked bytes of the blocks that are read side by side: hundreds, as most writers make them.
GROUP_BYTES = 1 << 24
_ONE_READ = 1 << 24  # bytes

PRIMITIVES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int64(),
    "long": pa.int64(),
    "float": pa.float64(),
    "double": pa.float64(),
    "string": pa.string(),
    "enum": pa.string(),
    "bytes": pa.binary(),
}
# Logical types that mean more than the integers they are stored as: what an array of them is, and
# what an integer is multiplied by to be in its unit.
_LOGICAL_TYPES = {
    "date": (pa.date32(), 1),
    **{
        f"{local}timestamp-{name}": (pa.timestamp(unit, tz=None if local else "UTC"), factor)
        for local in ("", "local-")
        for name, (unit, factor) in {
            "millis": ("us", 1000),
            "micros": ("us", 1),
            "nanos": ("ns", 1),
        }.items()
    },
}
MAX_DECIMAL_BYTES = 1 << 10  # the time to make digits of them grows with their square
MAGIC = b"Obj\x01"
_SYNC = {"type": "fixed", "name": "Sync", "size": 16}
HEADER = fastavro.parse_schema(
    {
        "type": "record",
        "name": "Header",
        "fields": [
            {"name": "magic", "type": {"type": "fixed", "name": "Magic", "size": len(MAGIC)}},
            {"name": "meta", "type": {"type": "map", "values": "bytes"}},
            {"name": "sync", "type": _SYNC},
        ],
    }
)
BLOCK = fastavro.parse_schema(
    {
        "type": "record",
        "name": "Block",
        "fields": [
            {"name": "records", "type": "long"},
            {"name": "data", "type": "bytes"},
            {"name": "sync", "type": _SYNC},
        ],
    }
)


def avro_schema_of(path: str) -> dict[str, Any]:
    """Record schema of a file; raises ConfigurationError when the header cannot be read."""
    with reading(path), open_file(path) as handle:
        reader = fastavro.reader(cast(BinaryIO, _Pieces(handle)))
        schema: Any = expand_schema(reader.writer_schema or "null")
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ConfigurationError(f"{path}: the Avro file does not hold records: {schema!r}")
    return schema


def avro_columns(path: str) -> list[str]:
    """Names of the columns; raises ConfigurationError when the header cannot be read."""
    return [field["name"] for field in avro_schema_of(path)["fields"]]


def read_avro(path: str, columns: Columns, reject: Reject) -> Iterator[pa.RecordBatch]:
    """Read the named columns in batches of BATCH_ROWS rows; an empty file gives an empty batch.

    Times and dates are taken as the integers they are stored as, so that none is too far away to be
    read; a decimal is its text. Rows with text that is not UTF-8, or with a time that Arrow cannot
    hold, go to `reject`. Raises ConfigurationError for a missing column, a column whose type has
    no Arrow counterpart here (records, unions of two types) or a file that cannot be read.
    """
    schema = avro_schema_of(path)
    fields = {field["name"]: field for field in schema["fields"]}
    require_columns(path, columns, list(fields))
    cells = [Cells.of(path, name, fields[name]["type"]) for name in columns]
    row = 0
    with reading(path, row=row) as place, open_file(path) as handle:
        for stored in _stored_columns(handle, stored_schema(schema), columns, cells):
            faults: Faults = {}
            arrays = [
                each.array(array, name, {} if isinstance(name, QueryColumn) else faults)
                for name, array, each in zip(columns, stored, cells, strict=True)
            ]
            rows = np.arange(row, row + len(stored[0]))
            yield sound_batch(path, columns, arrays, rows, reject, faults)
            place.row = row = row + len(stored[0])


def _stored_columns(
    handle: BinaryIO, schema: dict[str, Any], columns: Columns, cells: Sequence[Cells]
) -> Iterator[list[pa.Array]]:
    """The named columns as they are stored, in batches; an empty one of a file without any."""
    projection = _narrower(schema, [f for f in schema["fields"] if f["name"] in columns])
    blocks: Any = fastavro.block_reader(
        _as_stored(handle), projection, handle_unicode_errors="replace"
    )
    flat = flat_fields(schema)
    empty = True
    for some in _in_groups(blocks):
        found = None if flat is None else _side_by_side(flat, some, columns)
        if found is not None:
            empty = False
            yield found
            continue
        records = chain.from_iterable(some)
        while batch := list(islice(records, BATCH_ROWS)):
            empty = False
            yield [
                each.stored([record[name] for record in batch])
                for name, each in zip(columns, cells, strict=True)
            ]
    if empty:
        yield [each.stored([]) for each in cells]


def _in_groups(blocks: Iterable[Any]) -> Iterator[list[Any]]:
    """The blocks that are read together, by their unpacked size."""
    group: list[Any] = []
    size = 0
    for block in blocks:
        group.append(block)
        size += block.bytes_.getbuffer().nbytes
        if size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _side_by_side(
    flat: Sequence[Any], blocks: Sequence[Any], columns: Columns
) -> list[pa.Array] | None:
    counts = [block.num_records for block in blocks]
    return read_blocks(flat, [block.bytes_.getvalue() for block in blocks], counts, columns)


@dataclass(frozen=True)
class Cells:
    """How the values of a column, as they are stored, become an array."""

    kind: pa.DataType
    factor: int | None = None
    """Of a time or a date: what its integers are multiplied by."""
    scale: int | None = None
    """Of a decimal: digits after the point."""

    @classmethod
    def of(cls, path: str, column: str, kind: Any) -> Cells:
        """Of a column of some Avro type. Raises ConfigurationError."""
        plain = _not_null(kind)
        logical = plain.get("logicalType") if isinstance(plain, dict) else None
        if logical == "decimal":
            return cls(pa.string(), scale=plain.get("scale", 0))
        if logical in _LOGICAL_TYPES:
            return cls(*_LOGICAL_TYPES[logical])
        return cls(_arrow_type(path, column, kind))

    def stored(self, values: Sequence[Any]) -> pa.Array:
        """An array of values as fastavro gives those that are stored."""
        if pa.types.is_string(self.kind):
            raw = [value.encode() if isinstance(value, str) else value for value in values]
            return pa.array(raw, pa.binary())
        if self.factor is not None:
            return pa.array(values, pa.int64())
        return pa.array([_pairs(value) for value in values], self.kind)

    def array(self, stored: pa.Array, name: str, faults: Faults) -> pa.Array:
        """What is stored as what it means.

        A time too far away becomes null, and a fault of its row; so does a decimal too long.
        """
        if self.scale is not None:
            return _decimals(stored, self.scale, name, faults)
        if self.factor is not None:
            return _times(stored, self.kind, self.factor, name, faults)
        return as_utf8(stored) if pa.types.is_string(self.kind) else stored


def _decimals(stored: pa.Array, scale: int, name: str, faults: Faults) -> pa.Array:
    values = stored.to_pylist()
    for row, value in enumerate(values):
        if value is not None and len(value) > MAX_DECIMAL_BYTES:
            faults[row] = f"{name!r} is a decimal of {len(value)} bytes"
            values[row] = None
    return pa.array([_decimal(value, scale) for value in values], pa.string())


def _times(stored: pa.Array, kind: pa.DataType, factor: int, name: str, faults: Faults) -> pa.Array:
    """Times or dates of whole numbers that count units of `kind` times `factor`."""
    width = np.int32 if kind.bit_width == 32 else np.int64
    limits = np.iinfo(width)
    null = stored.is_null().to_numpy(zero_copy_only=False)
    counts = stored.fill_null(0).to_numpy()
    far = (counts < -(-limits.min // factor)) | (counts > limits.max // factor)
    for row in np.flatnonzero(far).tolist():
        faults[row] = f"{name!r} is {counts[row]}, which is too far away"
    scaled = (np.where(far, 0, counts) * factor).astype(width)
    return pa.array(scaled, mask=null | far).view(kind)


def _not_null(kind: Any) -> Any:
    """The type of a union with null; any other type as it is."""
    others = [option for option in kind if option != "null"] if isinstance(kind, list) else []
    return others[0] if len(others) == 1 else kind


def _decimal(unscaled: bytes | None, scale: int) -> str | None:
    if unscaled is None:
        return None
    number = int.from_bytes(unscaled, "big", signed=True)
    return str(Decimal(number).scaleb(-scale, Context(prec=MAX_PREC)))


def stored_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """The types that values are stored as; a text is stored as bytes are."""
    fields = [
        {**field, "type": _as_bytes(_without_logic(field["type"]))} for field in schema["fields"]
    ]
    return {**schema, "fields": fields}


def _without_logic(kind: Any) -> Any:
    if isinstance(kind, list):
        return [_without_logic(each) for each in kind]
    if isinstance(kind, dict):
        return {key: _without_logic(each) for key, each in kind.items() if key != "logicalType"}
    return kind


def _as_bytes(kind: Any) -> Any:
    if isinstance(kind, list):
        return [_as_bytes(each) for each in kind]
    if kind == "string" or (isinstance(kind, dict) and kind["type"] == "string"):
        return "bytes"
    return kind


def _as_stored(handle: BinaryIO) -> BinaryIO:
    """The file as if its schema were the one of the stored types."""
    rest = cast(BinaryIO, _Pieces(handle))
    header: Any = fastavro.schemaless_reader(rest, HEADER, None)
    schema = stored_schema(json.loads(header["meta"]["avro.schema"]))
    header["meta"]["avro.schema"] = json.dumps(schema).encode()
    start = BytesIO()
    fastavro.schemaless_writer(start, HEADER, header)
    start.seek(0)
    return cast(BinaryIO, _Joined(start, rest))


class _Pieces:
    """A file that gives no more memory to a length, which may be damaged, than it has bytes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        """At most so many bytes."""
        if size < _ONE_READ:
            return self._file.read(size)
        pieces = []
        while size > 0 and (piece := self._file.read(min(size, _ONE_READ))):
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)


class _Joined:
    """Two files, one after the other."""

    def __init__(self, first: BinaryIO, second: BinaryIO) -> None:
        self._first, self._second = first, second
        self._read = 0

    def read(self, size: int = -1) -> bytes:
        """At most so many bytes: first those of the first file."""
        data = self._first.read(size)
        if not 0 <= size <= len(data):
            data += self._second.read(size - len(data) if size >= 0 else size)
        self._read += len(data)
        return data

    def tell(self) -> int:
        """Bytes read so far."""
        return self._read


def _pairs(value: Any) -> Any:
    return list(value.items()) if isinstance(value, dict) else value


def _narrower(schema: dict[str, Any], fields: list[Any]) -> dict[str, Any] | None:
    """Schema of those fields only; None where it is better or needed to read them all."""
    if len(fields) == len(schema["fields"]):
        return None  # reading by another schema is twice as slow
    narrower = {**schema, "fields": fields}
    try:
        fastavro.parse_schema(narrower)
    except SchemaParseException:
        return None  # one named type in two columns is spelt out in both
    return narrower


def avro_metadata(path: str) -> dict[str, str]:
    """Metadata that the writer of a file left in its header."""
    with reading(path), open_file(path) as handle:
        metadata = fastavro.reader(cast(BinaryIO, _Pieces(handle))).metadata
    return {key: value for key, value in metadata.items() if not key.startswith("avro.")}


def _arrow_type(path: str, column: str, kind: Any) -> pa.DataType:
    plain = _not_null(kind)
    if isinstance(plain, dict):
        if plain.get("logicalType") in _LOGICAL_TYPES:
            return _LOGICAL_TYPES[plain["logicalType"]][0]
        if plain["type"] == "array":
            items = plain["items"]
            nullable = isinstance(items, list) and "null" in items
            item = pa.field("item", _arrow_type(path, column, items), nullable=nullable)
            return pa.list_(item)
        if plain["type"] == "map":
            values = plain["values"]
            nullable = isinstance(values, list) and "null" in values
            value = pa.field("value", _arrow_type(path, column, values), nullable=nullable)
            return pa.map_(pa.string(), value)
        # A reader takes a logical type that it does not know for the type below.
        return _arrow_type(path, column, plain["type"])
    if isinstance(plain, str) and plain in PRIMITIVES:
        return PRIMITIVES[plain]
    raise ConfigurationError(
        f"{path}: column {column!r} has the Avro type {kind!r}, which cannot be read: use a "
        "string, a number, a boolean or a timestamp, or null in union with one of them"
    )


def avro_schema_for(schema: pa.Schema) -> dict[str, Any]:
    """Avro record schema for an Arrow schema; a nullable field becomes a union with null.

    Raises ConfigurationError for a type or a column name that Avro cannot hold.
    """
    for name in schema.names:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ConfigurationError(
                f"column {name!r} is not a valid name in Avro: use letters, digits and _"
            )
    fields = [{"name": field.name, "type": _avro_type(field)} for field in schema]
    return {"type": "record", "name": "Row", "namespace": "streamveil", "fields": fields}


def _avro_type(field: pa.Field) -> Any:
    kind: Any
    if pa.types.is_integer(field.type):
        kind = "long"
    elif pa.types.is_floating(field.type):
        kind = "double"
    elif pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
        kind = "string"
    elif pa.types.is_boolean(field.type):
        kind = "boolean"
    elif pa.types.is_timestamp(field.type):
        local = "" if field.type.tz else "local-"
        kind = {"type": "long", "logicalType": f"{local}timestamp-micros"}
    elif pa.types.is_list(field.type):
        kind = {"type": "array", "items": _avro_type(field.type.value_field)}
    elif pa.types.is_map(field.type) and pa.types.is_string(field.type.key_type):
        kind = {"type": "map", "values": _avro_type(field.type.item_field)}
    else:
        raise ConfigurationError(
            f"column {field.name!r} of type {field.type} cannot be written to Avro: use Parquet"
        )
    return ["null", kind] if field.nullable else kind


def write_avro(handle: BinaryIO, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """Write batches of that schema; the schema's metadata goes to the header.

    The same rows give the same bytes: what stands between blocks is of the schema, not random.
    """
    metadata = {k.decode(): v.decode() for k, v in (schema.metadata or {}).items()}
    rows = (dict(zip(schema.names, row, strict=True)) for b in batches for row in _rows(b))
    header = avro_schema_for(schema)
    marker = hashlib.sha256(json.dumps(header).encode()).digest()[:16]
    fastavro.writer(handle, header, rows, "deflate", metadata=metadata, sync_marker=marker)


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    # fastavro takes microseconds as they are; datetime objects would be made twice in vain.
    columns = [
        column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
        if pa.types.is_timestamp(column.type)
        else column
        for column in batch.columns
    ]
    return zip(*map(plain_values, columns), strict=True)
