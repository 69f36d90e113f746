"""Messages in the wire format of Confluent's Schema Registry: a byte 0, the id of a schema, a body.

Each message is read by the schema that it names, whatever stands beside it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from io import BytesIO
from typing import Any, NamedTuple

import fastavro
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamveil.io.avro import Cells, stored_schema
from streamveil.io.avro_containers import MAX_SCHEMA_BYTES, column_array, least_size, spelt_out
from streamveil.io.cells import Faults
from streamveil.io.files import Columns
from streamveil.io.protobuf_schemas import protobuf_reader, split_indexes
from streamveil.io.schema_registry import Schemas, Stored
from streamveil.io.typed_messages import RejectEvent, check_types, sound_texts
from streamveil.mechanisms.core.records import MachineFault

PROTOBUF = "protobuf"
FRAMED_KINDS = {"avro": "AVRO", "json": "JSON", PROTOBUF: "PROTOBUF"}
"""What a registry calls the schemas of each format."""
HEADER_BYTES = 5

_Rows = npt.NDArray[np.int64]


class Framed(NamedTuple):
    """A message taken out of its frame."""

    message: int
    """Its index."""
    body: bytes


def unframed(
    kind: str, messages: Sequence[bytes], schemas: Schemas, reject: RejectEvent
) -> Iterator[tuple[Stored, list[Framed]]]:
    """The messages of each schema; those without a frame or a schema of the kind go to `reject`.

    Raises MachineFault if the registry does not say what it knows.
    """
    by_id: dict[int, list[Framed]] = {}
    for index, message in enumerate(messages):
        if not message:
            reject(index, None, "an empty message", message)
        elif len(message) < HEADER_BYTES or message[0]:
            detail = "it does not begin with a byte 0 and four bytes of a schema's id"
            reject(index, None, f"not in Confluent's wire format: {detail}", message)
        else:
            schema_id = int.from_bytes(message[1:HEADER_BYTES], "big")
            by_id.setdefault(schema_id, []).append(Framed(index, message[HEADER_BYTES:]))
    wanted = FRAMED_KINDS[kind]
    for schema_id, stored in schemas.of(by_id).items():
        if not isinstance(stored, str) and stored.kind == wanted:
            yield stored, by_id[schema_id]
            continue
        detail = stored if isinstance(stored, str) else f"schema {schema_id} is of {stored.kind}"
        for each in by_id[schema_id]:
            reject(each.message, None, f"not {kind}: {detail}", messages[each.message])


def read_framed(
    kind: str, messages: Sequence[bytes], columns: Columns, schemas: Schemas, reject: RejectEvent
) -> Iterator[tuple[list[pa.Array], _Rows]]:
    """The named columns of Avro or Protobuf messages, as strings; a missing column is null.

    Yields:
        An array of string for each column, and the index of the message of each row.
    """
    names = tuple(columns)
    by = schemas.reader()
    read = _avro_columns if kind == "avro" else _protobuf_columns

    def refuse(framed: Framed, error: Exception) -> None:
        why = " ".join(str(error).split()) or type(error).__name__
        reject(framed.message, None, f"not {kind}: {why}", messages[framed.message])

    for stored, some in unframed(kind, messages, schemas, reject):
        for arrays, rows, faults in read(stored, some, names, by, refuse):
            if len(rows):
                texts, kept = sound_texts(arrays, names, faults, partial(_tell, reject, rows))
                yield texts, rows[kept]


def _tell(reject: RejectEvent, rows: _Rows, row: int, detail: str, record: bytes) -> None:
    reject(int(rows[row]), None, detail, record)


_Refuse = Callable[[Framed, Exception], None]
_Found = tuple[list[pa.Array], _Rows, Faults]


def _together(
    some: Sequence[tuple[Framed, list[Any]]],
    names: Sequence[str],
    array_of: Callable[[int, list[Any], Faults], pa.Array],
    refuse: _Refuse,
) -> Iterator[_Found]:
    """Columns of values of some messages; a value that does not fit rejects its message alone."""
    if not some:
        return
    faults: Faults = {}
    try:
        arrays = [
            array_of(at, [values[at] for _, values in some], faults) for at in range(len(names))
        ]
        check_types(arrays, names)
    except Exception as error:  # whatever a message holds, it stops no other one
        if len(some) == 1:
            refuse(some[0][0], error)
            return
        for each in some:
            yield from _together([each], names, array_of, refuse)
    else:
        yield arrays, np.array([framed.message for framed, _ in some]), faults


# Protobuf -------------------------------------------------------------------------------------


def _protobuf_columns(
    stored: Stored,
    some: Sequence[Framed],
    names: tuple[str, ...],
    by: Stored | None,
    refuse: _Refuse,
) -> Iterator[_Found]:
    alike: dict[tuple[int, ...], list[tuple[Framed, list[Any]]]] = {}
    for framed in some:
        try:
            path, body = split_indexes(framed.body)
            row = _usable(protobuf_reader(stored, path, names, by)).row(body)
        except MachineFault:
            raise
        except Exception as error:  # whatever a message holds, it stops nothing
            refuse(framed, error)
        else:
            alike.setdefault(path, []).append((framed, row))
    for path, rows in alike.items():
        kinds = _usable(protobuf_reader(stored, path, names, by)).kinds

        def array_of(
            at: int, values: list[Any], _: Faults, kinds: Sequence[pa.DataType] = kinds
        ) -> pa.Array:
            return pa.array(values, kinds[at])

        yield from _together(rows, names, array_of, refuse)


def _usable(reader: Any) -> Any:
    """A reader; raises what it is if it is none."""
    if isinstance(reader, Exception):
        raise reader
    return reader


# Avro -----------------------------------------------------------------------------------------


class _AvroReader(NamedTuple):
    """How messages of a schema are read."""

    writer: Any
    reader: Any
    """The fields wanted: others are passed over, and take no memory."""
    fields: tuple[str | None, ...]
    """Name of the field of each column; None where there is none."""
    cells: tuple[Cells | None, ...]

    def row(self, body: bytes) -> list[Any]:
        """The values of a message as they are stored. Raises what its bytes make fastavro raise."""
        handle = BytesIO(body)
        record: Any = fastavro.schemaless_reader(
            handle, self.writer, self.reader, handle_unicode_errors="replace"
        )
        if handle.tell() != len(body):
            raise ValueError(f"{len(body) - handle.tell()} bytes follow its end")
        return [None if name is None else record[name] for name in self.fields]


def _avro_columns(
    stored: Stored,
    some: Sequence[Framed],
    names: tuple[str, ...],
    by: Stored | None,
    refuse: _Refuse,
) -> Iterator[_Found]:
    reader = _avro_reader(stored, names, by)
    rows = []
    for framed in some:
        try:
            rows.append((framed, _usable(reader).row(framed.body)))
        except Exception as error:  # whatever a message holds, it stops nothing
            refuse(framed, error)

    def array_of(at: int, values: list[Any], faults: Faults) -> pa.Array:
        cells = _usable(reader).cells[at]
        if cells is None:
            return pa.nulls(len(values), pa.string())
        return column_array(cells, values, names[at], faults)

    yield from _together(rows, names, array_of, refuse)


@lru_cache(maxsize=1024)  # of schemas in use, also of those that cannot be used
def _avro_reader(
    stored: Stored, columns: tuple[str, ...], by: Stored | None
) -> _AvroReader | Exception:
    try:
        return _new_avro_reader(stored, columns, by)
    except Exception as error:  # whatever a schema holds, it stops nothing
        return error


def _new_avro_reader(stored: Stored, columns: tuple[str, ...], by: Stored | None) -> _AvroReader:
    """How messages of a schema are read, by itself or by another one.

    By itself a column is the field of that name, or else the one that has it as an alias: so a
    field that was renamed is found under the name that it had.
    """
    writer, _ = _record(stored)
    reader, named = _record(stored if by is None else by)
    fields: list[Any] = []
    names: list[str | None] = []
    cells: list[Cells | None] = []
    for column in columns:
        field = _field(reader["fields"], column, aliases=by is None)
        names.append(None if field is None else field["name"])
        if field is None:
            cells.append(None)
            continue
        kind = spelt_out(field["type"], named)
        cells.append(Cells.of("its schema", column, kind))
        if all(field["name"] != other["name"] for other in fields):
            fields.append({**field, "type": kind})
    defined: set[str] = set()
    once = [{**each, "type": _spelt_out_once(each["type"], {}, defined)} for each in fields]
    chosen = {**reader, "fields": once}
    return _AvroReader(
        fastavro.parse_schema(stored_schema(writer)),
        fastavro.parse_schema(stored_schema(chosen)),
        tuple(names),
        tuple(cells),
    )


def _field(fields: Sequence[Any], column: str, aliases: bool) -> Any:
    for field in fields:
        if field["name"] == column:
            return field
    found = (field for field in fields if aliases and column in field.get("aliases", ()))
    return next(found, None)


def _record(stored: Stored) -> tuple[Any, dict[str, Any]]:
    """A record schema with all types that it names in it, and its enums and fixed types by name."""
    known: dict[str, Any] = {}
    for _, text in stored.references:
        fastavro.parse_schema(json.loads(text), named_schemas=known)
    others = dict(known)
    parsed = fastavro.parse_schema(json.loads(stored.text), named_schemas=known)
    schema = _spelt_out_once(parsed, others, set())
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ValueError("its schema is not one of records")
    if len(json.dumps(schema)) > MAX_SCHEMA_BYTES:
        raise ValueError(f"its schema has more than {MAX_SCHEMA_BYTES} bytes")
    named: dict[str, Any] = {}
    least_size(schema, {}, named)
    return schema, named


def _spelt_out_once(kind: Any, others: Mapping[str, Any], defined: set[str]) -> Any:
    """A type in which each named one is spelt out where it comes first, and named elsewhere.

    Args:
        kind: the type.
        others: types of other schemas, by name.
        defined: names of what is spelt out so far; grows.
    """
    if isinstance(kind, list):
        return [_spelt_out_once(each, others, defined) for each in kind]
    if isinstance(kind, str):
        return _spelt_out_once(others[kind], others, defined) if kind in others else kind
    inner = {key: value for key, value in kind.items() if not key.startswith("__")}
    if "name" in inner:
        if inner["name"] in defined:
            return inner["name"]
        defined.add(inner["name"])
    for key in ("type", "items", "values"):
        if key in inner:
            inner[key] = _spelt_out_once(inner[key], others, defined)
    if "fields" in inner:
        inner["fields"] = [
            {**field, "type": _spelt_out_once(field["type"], others, defined)}
            for field in inner["fields"]
        ]
    return inner
