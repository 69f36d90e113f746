"""The Avro format: container files to and from Arrow."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, BinaryIO

import fastavro
import numpy as np
import pyarrow as pa
from fastavro.schema import SchemaParseException, expand_schema

from streamveil.io.files import (
    Columns,
    Reading,
    event_batch,
    open_file,
    plain_values,
    require_columns,
)
from streamveil.mechanisms.records import ConfigurationError

BATCH_ROWS = 1 << 16
UTC_MICROSECONDS = pa.timestamp("us", tz="UTC")

_ARROW_TYPES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int64(),
    "long": pa.int64(),
    "float": pa.float64(),
    "double": pa.float64(),
    "string": pa.string(),
    "enum": pa.string(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    "timestamp-millis": UTC_MICROSECONDS,
    "timestamp-micros": UTC_MICROSECONDS,
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}


def avro_schema_of(path: str) -> dict[str, Any]:
    """Record schema of a file; raises ConfigurationError when the header cannot be read."""
    with Reading(path), open_file(path) as handle:
        schema: Any = expand_schema(fastavro.reader(handle).writer_schema or "null")
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ConfigurationError(f"{path}: the Avro file does not hold records: {schema!r}")
    return schema


def avro_columns(path: str) -> list[str]:
    """Names of the columns; raises ConfigurationError when the header cannot be read."""
    return [field["name"] for field in avro_schema_of(path)["fields"]]


def read_avro(path: str, columns: Columns) -> Iterator[pa.RecordBatch]:
    """Read the named columns in batches of BATCH_ROWS rows; an empty file gives an empty batch.

    Raises ConfigurationError for a missing column, a column whose type has no Arrow counterpart
    here (records, unions of two types) or a file that cannot be read.
    """
    schema = avro_schema_of(path)
    fields = {field["name"]: field for field in schema["fields"]}
    require_columns(path, columns, list(fields))
    types = [_arrow_type(path, name, fields[name]["type"]) for name in columns]
    projection = _narrower(schema, [fields[name] for name in columns])
    row = 0
    with Reading(path, row=row) as place, open_file(path) as handle:
        records: Any = fastavro.reader(handle, projection)
        more = True
        while more:
            batch = list(islice(records, BATCH_ROWS))
            more = len(batch) == BATCH_ROWS
            arrays = [
                pa.array([_pairs(record[name]) for record in batch], kind)
                for name, kind in zip(columns, types, strict=True)
            ]
            yield event_batch(path, columns, arrays, np.arange(row, row + len(batch)))
            place.row = row = row + len(batch)


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
    with Reading(path), open_file(path) as handle:
        metadata = fastavro.reader(handle).metadata
    return {key: value for key, value in metadata.items() if not key.startswith("avro.")}


def _arrow_type(path: str, column: str, kind: Any) -> pa.DataType:
    if isinstance(kind, list):
        others = [option for option in kind if option != "null"]
        if len(others) == 1:
            return _arrow_type(path, column, others[0])
    elif isinstance(kind, dict):
        if kind.get("logicalType") in _ARROW_TYPES:
            return _ARROW_TYPES[kind["logicalType"]]
        if kind["type"] == "array":
            items = kind["items"]
            nullable = isinstance(items, list) and "null" in items
            item = pa.field("item", _arrow_type(path, column, items), nullable=nullable)
            return pa.list_(item)
        if kind["type"] == "map":
            values = kind["values"]
            nullable = isinstance(values, list) and "null" in values
            value = pa.field("value", _arrow_type(path, column, values), nullable=nullable)
            return pa.map_(pa.string(), value)
        if "logicalType" not in kind:
            return _arrow_type(path, column, kind["type"])
    elif kind in _ARROW_TYPES:
        return _ARROW_TYPES[kind]
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
                f"column {name!r} cannot be named so in Avro: use letters, digits and _"
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
