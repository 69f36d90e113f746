"""Messages of typed columns, an Arrow IPC stream or an Avro container each, as columns of text.

Text, as all messages give it: so a schema that nobody expects is a dead letter, or its events are,
and stops nothing. Messages with columns of the same types are made text together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from struct import unpack_from

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.io.avro_containers import MAX_EXPANSION, read_container
from streamveil.io.cells import Faults, decoded, is_text, sound_batch
from streamveil.io.files import Columns
from streamveil.io.json_objects import plain_numbers
from streamveil.mechanisms.records import ROW_COLUMN

ARROW, AVRO = "arrow", "avro"

# Called with the index of a message, which event of it, what is wrong and the bytes; None stands
# for a message that is one event, or cannot be taken apart.
RejectEvent = Callable[[int, int | None, str, bytes], None]

_Rows = npt.NDArray[np.int64]
_Found = tuple[int, list[pa.Array], Faults]
"""Index of a message, its columns, and what is wrong with some of its rows."""

_Reader = Callable[[bytes], tuple[list[pa.Array], Faults]]
"""Columns of a message, and what is wrong with some of its rows; raises for what is none."""

_READABLE = (
    pa.types.is_null,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_timestamp,
    pa.types.is_date,
)


def read_typed(
    kind: str, messages: Sequence[bytes], columns: Columns, reject: RejectEvent
) -> Iterator[tuple[list[pa.Array], _Rows, _Rows]]:
    """The named columns of messages of a kind, as strings; a missing column is null.

    A number is its text as in JSON, a time is ISO 8601. Messages that are not of the kind, or have
    a column of another type than text, numbers and times, go to `reject`, and so does an event that
    has text which is not UTF-8, or NaN.

    Yields:
        An array of string for each column, the index of the message of each row, and which event of
        it the row is, from 0.
    """
    names = tuple(columns)
    reader_of, name = _KINDS[kind]
    read = reader_of(names)
    alike: dict[tuple[pa.DataType, ...], list[_Found]] = {}
    for index, message in enumerate(messages):
        try:
            arrays, faults = read(message)
            _check_types(arrays, names)
        except Exception as error:  # whatever a message holds, it stops nothing
            why = " ".join(str(error).split()) or type(error).__name__
            reject(index, None, f"not {name}: {why}", message)
        else:
            alike.setdefault(tuple(each.type for each in arrays), []).append(
                (index, arrays, faults)
            )
    for found in alike.values():
        yield _as_texts(found, names, reject)


def _as_texts(
    found: Sequence[_Found], columns: Columns, reject: RejectEvent
) -> tuple[list[pa.Array], _Rows, _Rows]:
    """Rows of messages whose columns have the same types."""
    sizes = np.array([len(arrays[0]) for _, arrays, _ in found])
    first = np.cumsum(sizes) - sizes
    of = np.repeat([index for index, _, _ in found], sizes)
    places = np.arange(len(of)) - np.repeat(first, sizes)
    faults = {
        start + row: what
        for start, (_, _, some) in zip(first.tolist(), found, strict=True)
        for row, what in some.items()
    }
    texts = [
        _text(pa.concat_arrays([arrays[at] for _, arrays, _ in found]), name, faults)
        for at, name in enumerate(columns)
    ]

    def tell(row: int, detail: str, record: bytes) -> None:
        reject(int(of[row]), int(places[row]), detail, record)

    batch = sound_batch("", columns, texts, np.arange(len(of)), tell, faults)
    kept = batch.column(ROW_COLUMN).to_numpy()
    return [batch.column(name) for name in columns], of[kept], places[kept]


def _check_types(arrays: Sequence[pa.Array], columns: Columns) -> None:
    """Raise ValueError for a column that is neither text nor numbers nor times."""
    for name, array in zip(columns, arrays, strict=True):
        if not (is_text(array.type) or any(of(array.type) for of in _READABLE)):
            raise ValueError(f"its column {name!r} holds {array.type}: send text, numbers or times")


def _text(array: pa.Array, name: str, faults: Faults) -> pa.Array:
    """Values as text; a number that is none becomes null, and a fault of its row."""
    kind = array.type
    if pa.types.is_floating(kind):
        odd = pc.fill_null(pc.invert(pc.is_finite(array)), False)
        for row in np.flatnonzero(odd.to_numpy(zero_copy_only=False)).tolist():
            value = "NaN" if np.isnan(array[row].as_py()) else "infinite"
            faults.setdefault(row, f"{name!r} is {value}, not a string or a number")
        array = pc.if_else(odd, None, array)
    elif pa.types.is_timestamp(kind) and kind.tz:
        array = array.cast(pa.timestamp(kind.unit, "UTC"))
    text = array.cast(pa.string())
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        text = plain_numbers(text).cast(pa.string())
    return text


# Arrow ----------------------------------------------------------------------------------------

_DICTIONARIES, _ROWS = 2, 3  # kinds of the parts of a stream that hold buffers


class _Arrow:
    """Reads Arrow IPC streams; of those with one schema after the other, it is looked at once."""

    def __init__(self, columns: tuple[str, ...]) -> None:
        self._columns = columns
        self._schema: pa.Schema | None = None
        self._places: list[int | None] = []

    def read(self, message: bytes) -> tuple[list[pa.Array], Faults]:
        """The named columns, without dictionaries or views. Raises ValueError."""
        if _names_codec(message):
            raise ValueError("its buffers are compressed: let the broker compress messages")
        rows = 0
        batches = []
        source = pa.BufferReader(message)
        with pa.ipc.open_stream(source) as reader:
            schema = reader.schema
            for batch in reader:
                rows += batch.num_rows
                if rows > len(message):
                    raise ValueError(f"{len(message)} bytes say that they hold {rows} events")
                batches.append(batch)
            if source.tell() != len(message):
                raise ValueError(f"it goes on after its end, at byte {source.tell()}")
        if self._schema is None or not schema.equals(self._schema):
            self._places = [_place(schema, name) for name in self._columns]
            self._schema = schema
        if len(batches) != 1:
            batches = [batch for batch in batches if batch.num_rows] or [_none_of(schema)]
        faults: Faults = {}
        arrays = []
        for name, place in zip(self._columns, self._places, strict=True):
            if place is None:
                arrays.append(pa.nulls(rows, pa.string()))
                continue
            chunks, first = [], 0
            for batch in batches:
                chunk, some = _plain(batch.column(place), MAX_EXPANSION * len(message))
                faults.update({first + row: f"{name!r} {what}" for row, what in some.items()})
                first += batch.num_rows
                chunks.append(chunk)
            arrays.append(chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks))
        return arrays, faults


def _place(schema: pa.Schema, name: str) -> int | None:
    """Where a column is, None if it is not there. Raises ValueError if it is there twice."""
    places = schema.get_all_field_indices(name)
    if len(places) > 1:
        raise ValueError(f"it has {len(places)} columns named {name!r}")
    return places[0] if places else None


def _none_of(schema: pa.Schema) -> pa.RecordBatch:
    """A batch of no rows."""
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)


def _plain(array: pa.Array, most: int) -> tuple[pa.Array, Faults]:
    """A column whose memory is sound, without a dictionary or views.

    Text need not be UTF-8. Raises ValueError for one that is not sound, or of more bytes than that.
    """
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        _check_memory(array)
    return decoded(array, most)


def _check_memory(array: pa.Array) -> None:
    """Raise ValueError for offsets that point elsewhere; bytes of text may be any.

    So may days that are not whole, and numbers with more digits than their type has.
    """
    if pa.types.is_dictionary(array.type):
        array = array.dictionary  # its indices are looked at one by one
    if pa.types.is_date(array.type) or pa.types.is_decimal(array.type):
        array.validate()
        return
    binary = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}.get(array.type)
    (array if binary is None else array.view(binary)).validate(full=True)


def _names_codec(message: bytes) -> bool:
    """Whether a part of an Arrow IPC stream names a codec for its buffers.

    pyarrow does not tell, and unpacks a buffer to whatever size it claims. Raises struct.error for
    what is no stream.
    """
    at = 0
    while at + 8 <= len(message):
        start, size = at + 8, unpack_from("<I", message, at + 4)[0]
        if message[at : at + 4] != b"\xff" * 4:
            raise ValueError("it does not begin as one")
        if size == 0:
            break
        table = start + unpack_from("<I", message, start)[0]
        kind = message[_field(message, table, 1)]
        if kind in (_DICTIONARIES, _ROWS):
            batch = _table_in(message, table, 2)
            if kind == _DICTIONARIES:
                batch = _table_in(message, batch, 1)
            if _field(message, batch, 3):
                return True
        body = _field(message, table, 3)
        at = start + size + (unpack_from("<Q", message, body)[0] if body else 0)
    return False


def _table_in(data: bytes, table: int, number: int) -> int:
    """Position of the table that a field of a flatbuffer's table holds."""
    at = _field(data, table, number)
    position: int = at + unpack_from("<I", data, at)[0]
    return position


def _field(data: bytes, table: int, number: int) -> int:
    """Position of a field of a flatbuffer's table, 0 if it is not there."""
    fields = table - unpack_from("<i", data, table)[0]
    size, entry = unpack_from("<H", data, fields)[0], 4 + 2 * number
    offset = unpack_from("<H", data, fields + entry)[0] if entry < size else 0
    return table + offset if offset else 0


def _arrow_reader(columns: tuple[str, ...]) -> _Reader:
    return _Arrow(columns).read


def _avro_reader(columns: tuple[str, ...]) -> _Reader:
    return partial(read_container, columns=columns)


_KINDS: dict[str, tuple[Callable[[tuple[str, ...]], _Reader], str]] = {
    ARROW: (_arrow_reader, "an Arrow IPC stream"),
    AVRO: (_avro_reader, "an Avro container"),
}
