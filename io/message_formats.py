"""What a message may hold: one event or many, in one of a few formats; always columns of text.

How an event is read depends on that event alone. So the format of a source is said once, never
guessed from its bytes, and a bad event is one dead letter, as is a message that cannot be taken
apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamveil.io.files import Columns
from streamveil.io.framed_messages import read_framed, unframed
from streamveil.io.json_arrays import BLANKS, array_fault, split_arrays
from streamveil.io.json_objects import read_objects
from streamveil.io.lines import Lines
from streamveil.io.schema_registry import SchemaRegistry, schemas_of
from streamveil.io.typed_messages import ARROW, AVRO, RejectEvent, parts, read_typed

EMPTY = "an empty message"

_Rows = npt.NDArray[np.int64]


class Parsed(NamedTuple):
    """Events of some messages, or of a part of one."""

    arrays: Sequence[pa.Array]
    """A column of strings for each name, of n rows."""
    messages: _Rows
    """Index of the message of each row, shape (n,)."""
    places: _Rows | None
    """Which event of its message each row is, shape (n,); None if each is a message of its own."""


def read_json_messages(
    messages: Sequence[bytes], columns: Columns, reject: RejectEvent
) -> Iterator[Parsed]:
    """Messages of one JSON object, or of an array of them, whose places count from 0."""
    arrays: list[int] = []
    objects: list[int] = []
    for index, message in enumerate(messages):
        (arrays if message.lstrip(BLANKS)[:1] == b"[" else objects).append(index)
    if objects:

        def tell(row: int, detail: str, record: bytes) -> None:
            reject(objects[row], None, detail, record)

        texts, rows = read_objects([messages[index] for index in objects], columns, tell)
        yield Parsed(texts, np.array(objects)[rows], None)
    if arrays:
        elements = split_arrays([messages[index].strip(BLANKS) for index in arrays])
        for at in elements.broken:
            message = messages[arrays[at]]
            reject(arrays[at], None, array_fault(message), message)
        of = np.array(arrays)[elements.arrays]
        yield from _parsed(elements.records, of, elements.places, columns, reject)


def read_json_lines(
    messages: Sequence[bytes], columns: Columns, reject: RejectEvent
) -> Iterator[Parsed]:
    """Messages of lines, each one JSON object or blank; places are lines, from 1."""
    for index, message in enumerate(messages):
        if not message.strip(BLANKS):
            reject(index, None, EMPTY, message)
    lines = Lines(1, b"\n".join(messages))  # a line ends with its message
    numbers = np.array([message.count(b"\n") + 1 for message in messages])
    after = np.cumsum(numbers)
    of = np.searchsorted(after, lines.numbers)

    def tell(index: int, place: int | None, detail: str, record: bytes) -> None:
        if record.strip(BLANKS):
            reject(index, place, detail, record)

    yield from _parsed(lines.array, of, lines.numbers - (after - numbers)[of], columns, tell)


def _parsed(
    records: pa.Array, of: _Rows, places: _Rows, columns: Columns, reject: RejectEvent
) -> Iterator[Parsed]:
    """Objects, each an event of that message at that place."""
    for part in parts(len(records)):
        yield _part(records[part], of[part], places[part], columns, reject)


def _part(
    records: pa.Array, of: _Rows, places: _Rows, columns: Columns, reject: RejectEvent
) -> Parsed:
    def tell(row: int, detail: str, record: bytes) -> None:
        reject(int(of[row]), int(places[row]), detail, record)

    arrays, rows = read_objects(records, columns, tell)
    return Parsed(arrays, of[rows], places[rows])


def read_framed_messages(
    kind: str,
    registry: SchemaRegistry,
    messages: Sequence[bytes],
    columns: Columns,
    reject: RejectEvent,
) -> Iterator[Parsed]:
    """Messages in Confluent's wire format, whose schemas are in a registry.

    Each of Avro or Protobuf is an event; JSON is read as :func:`read_json_messages` reads it.
    Raises MachineFault if the registry is away.
    """
    schemas = schemas_of(registry)
    if kind != "json":
        for arrays, rows in read_framed(kind, messages, columns, schemas, reject):
            yield Parsed(arrays, rows, None)
        return
    framed = [each for _, some in unframed(kind, messages, schemas, reject) for each in some]
    of = np.array([each.message for each in framed], np.int64)

    def tell(index: int, place: int | None, detail: str, record: bytes) -> None:
        reject(framed[index].message, place, detail, record)

    for parsed in read_json_messages([each.body for each in framed], columns, tell):
        yield parsed._replace(messages=of[parsed.messages])


def _read_typed(
    kind: str, messages: Sequence[bytes], columns: Columns, reject: RejectEvent
) -> Iterator[Parsed]:
    return (Parsed(*found) for found in read_typed(kind, messages, columns, reject))


FORMATS: Mapping[str, Callable[[Sequence[bytes], Columns, RejectEvent], Iterator[Parsed]]] = {
    "json": read_json_messages,
    "jsonl": read_json_lines,
    ARROW: partial(_read_typed, ARROW),
    AVRO: partial(_read_typed, AVRO),
}
