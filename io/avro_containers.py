"""Avro containers from hands that are not ours: whole in memory, and bounded in what they take.

A container can be small and say that it holds more than memory does: a block that unpacks to a
thousand times its size, records of no byte, a type inside itself. Such a one is refused.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from functools import lru_cache
from io import BytesIO
from typing import Any, NamedTuple

import fastavro
import pyarrow as pa

from streamveil.io.avro import BLOCK, HEADER, MAGIC, PRIMITIVES, Cells, stored_schema
from streamveil.io.cells import Faults
from streamveil.io.json_objects import plain_numbers

MAX_UNPACKED = 1 << 26
"""Bytes that a message may unpack to. No multiple of its own: one user's long text that packs well
would push out all others."""
MAX_VALUES = 1 << 22
"""Values that the records of a message may have, all together."""
MAX_SCHEMA_BYTES = 1 << 18
MAX_NESTED = 16
"""Types inside each other."""


class _Layout(NamedTuple):
    """How the records of a schema are read."""

    records: Any
    """Schema of an array of them, as they are stored."""
    values: int
    """How many values a record has at most, lists aside."""
    cells: tuple[Cells | None, ...]
    """Of each column wanted; None where there is none."""


def read_container(data: bytes, columns: tuple[str, ...]) -> tuple[list[pa.Array], Faults]:
    """The named columns of all records, as :func:`read_avro` reads them; a missing one is null.

    Raises ValueError for what is no such container, or is one that is not read here.
    """
    handle = BytesIO(data)
    header: Any = fastavro.schemaless_reader(handle, HEADER, None)
    if header["magic"] != MAGIC:
        raise ValueError("it does not begin as one")
    layout = _layout(header["meta"]["avro.schema"], columns)
    codec = header["meta"].get("avro.codec", b"null").decode()
    rows: list[Any] = []
    for number, block in _blocks(handle, len(data), header["sync"], codec):
        if not 0 <= number <= min(len(block), MAX_VALUES // layout.values - len(rows)):
            raise ValueError(f"a block of {len(block)} bytes says that it holds {number} records")
        if number:
            # A block is an array as Avro writes one, but for its number and its end.
            array = BytesIO(_long(number) + block + b"\0")
            rows += fastavro.schemaless_reader(
                array, layout.records, None, handle_unicode_errors="replace"
            )
            if array.read(1):
                raise ValueError(f"a block has bytes after its {number} records")
    faults: Faults = {}
    return [
        pa.nulls(len(rows), pa.string())
        if cells is None
        else column_array(cells, [row[name] for row in rows], name, faults)
        for name, cells in zip(columns, layout.cells, strict=True)
    ], faults


def column_array(cells: Cells, values: list[Any], name: str, faults: Faults) -> pa.Array:
    """Values of a column; a decimal is text as a number in JSON is."""
    array = cells.array(cells.stored(values), name, faults)
    return array if cells.scale is None else plain_numbers(array)


def _blocks(handle: BytesIO, size: int, sync: bytes, codec: str) -> Iterator[tuple[int, bytes]]:
    """Number of records and unpacked bytes of each block."""
    left = MAX_UNPACKED
    while handle.tell() < size:
        block: Any = fastavro.schemaless_reader(handle, BLOCK, None)
        if block["sync"] != sync:
            raise ValueError("a block does not end as the header says")
        data = block["data"]
        if codec == "deflate":
            unpacked = zlib.decompressobj(-zlib.MAX_WBITS)
            data = unpacked.decompress(data, left + 1)
            if not unpacked.eof and len(data) <= left:
                raise ValueError("a block is cut off")
        elif codec != "null":
            raise ValueError(f"its codec {codec!r} is not read in messages: use null or deflate")
        left -= len(data)
        if left < 0:
            raise ValueError(f"its blocks unpack to more than {MAX_UNPACKED} bytes")
        yield block["records"], data


def _long(number: int) -> bytes:
    """A number that is not negative, as Avro writes it."""
    number *= 2
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


@lru_cache(maxsize=64)  # producers have few schemas, and every message repeats its own
def _layout(text: bytes, columns: tuple[str, ...]) -> _Layout:
    if len(text) > MAX_SCHEMA_BYTES:
        raise ValueError(f"its schema has {len(text)} bytes, more than {MAX_SCHEMA_BYTES}")
    plain = json.loads(text)
    values = json.dumps(plain).count('"name"')  # however it was escaped
    schema: Any = fastavro.parse_schema(plain)
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ValueError("it does not hold records")
    enums: dict[str, Any] = {}
    if least_size(schema, {}, enums) == 0:
        raise ValueError("its records may take no byte")
    fields = {field["name"]: spelt_out(field["type"], enums) for field in schema["fields"]}
    records = fastavro.parse_schema({"type": "array", "items": stored_schema(plain)})
    cells = [Cells.of("its schema", n, fields[n]) if n in fields else None for n in columns]
    return _Layout(records, values, tuple(cells))


def spelt_out(kind: Any, enums: dict[str, Any]) -> Any:
    """A type with the enums that it names; others need not be known, for none is a cell."""
    if isinstance(kind, list):
        return [spelt_out(each, enums) for each in kind]
    return enums.get(kind, kind) if isinstance(kind, str) else kind


def least_size(kind: Any, named: dict[str, int], enums: dict[str, Any], depth: int = 0) -> int:
    """How many bytes a value takes at least; `named` and `enums` are the types named so far.

    `enums` has the fixed types, too.

    Raises ValueError for what has no bound: a type inside itself, and what takes no byte inside
    another, which may be there any number of times.
    """
    if depth > MAX_NESTED:
        raise ValueError(f"its types are nested deeper than {MAX_NESTED} levels")

    def inner(each: Any) -> int:
        size = least_size(each, named, enums, depth + 1)
        if size == 0 and depth:
            raise ValueError("it has types in each other that take no byte")
        return size

    if isinstance(kind, list):
        for each in kind:
            least_size(each, named, enums, depth + 1)
        return 1
    if isinstance(kind, str):
        if kind not in named and kind not in PRIMITIVES:
            raise ValueError(f"its type {kind!r} is inside itself")
        return named[kind] if kind in named else int(kind != "null")
    what = kind["type"]
    if what == "record":
        size = sum(inner(field["type"]) for field in kind["fields"])
    elif what in ("array", "map"):
        inner(kind["items" if what == "array" else "values"])
        return 1
    elif what in ("enum", "fixed"):
        size = kind.get("size", 1)
        enums[kind["name"]] = kind
    else:
        return least_size(what, named, enums, depth + 1)
    named[kind["name"]] = size
    return size
