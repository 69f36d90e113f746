"""Messages of typed columns, an Arrow IPC stream or an Avro container each, as columns of text.

Text, as all messages give it: so a schema that nobody expects is a dead letter, or its events are,
and stops nothing. Messages with columns of the same types are made text together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from struct import unpack_from
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.io.avro_containers import MAX_UNPACKED, read_container
from streamveil.io.cells import Faults, decoded, is_text, sound_batch
from streamveil.io.files import Columns
from streamveil.io.json_objects import plain_numbers
from streamveil.io.lines import Reject
from streamveil.mechanisms.core.records import ROW_COLUMN

ARROW, AVRO = "arrow", "avro"

# Called with the index of a message, which event of it, what is wrong and the bytes; None stands
# for a message that is one event, or cannot be taken apart.
RejectEvent = Callable[[int, int | None, str, bytes], None]

MOST_EVENTS = 1 << 17
"""Events that are read together: a message may say more than memory holds as dead letters."""
_MOST_BYTES = 1 << 24

_Rows = npt.NDArray[np.int64]


class _Found(NamedTuple):
    """Events of a message that stand one after the other."""

    message: int
    """Its index."""
    first: int
    """Place of the first one."""
    arrays: list[pa.Array]
    faults: Faults
    """What is wrong with some, by their place."""


_Reader = Callable[[bytes], tuple[list[pa.Array], Faults]]
"""Columns of a message, and what is wrong with some of its rows; raises for what is none."""

_READABLE = (
    pa.types.is_null,
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_timestamp,
    pa.types.is_date,
)
_MAX_SCALE = 38  # digits after the point; Arrow writes no decimal with more


def parts(number: int) -> Iterator[slice]:
    """So many events, no more than `MOST_EVENTS` of them at a time."""
    for first in range(0, number, MOST_EVENTS):
        yield slice(first, min(first + MOST_EVENTS, number))


def read_typed(
    kind: str, messages: Sequence[bytes], columns: Columns, reject: RejectEvent
) -> Iterator[tuple[list[pa.Array], _Rows, _Rows]]:
    """The named columns of messages of a kind, as strings; a missing column is null.

    A number or boolean is its text as in JSON, a time is ISO 8601. Messages that are not of the
    kind, or have a column of another type than text, numbers, booleans and times, go to `reject`,
    and so does an event that has text which is not UTF-8, or NaN.

    Yields:
        An array of string for each column, the index of the message of each row, and which event of
        it the row is, from 0.
    """
    names = tuple(columns)
    reader_of, name = _KINDS[kind]
    read = reader_of(names)
    alike: dict[tuple[pa.DataType, ...], list[_Found]] = {}
    events = size = 0

    def texts() -> Iterator[tuple[list[pa.Array], _Rows, _Rows]]:
        for found in alike.values():
            yield _as_texts(found, names, reject)
        alike.clear()

    for index, message in enumerate(messages):
        try:
            arrays, faults = read(message)
            check_types(arrays, names)
        except Exception as error:  # whatever a message holds, it stops nothing
            why = " ".join(str(error).split()) or type(error).__name__
            reject(index, None, f"not {name}: {why}", message)
        else:
            kinds = tuple(each.type for each in arrays)
            for part in parts(len(arrays[0])):
                some = [array[part] for array in arrays]
                alike.setdefault(kinds, []).append(_Found(index, part.start, some, faults))
                events += part.stop - part.start
                size += sum(array.nbytes for array in some)
                if events >= MOST_EVENTS or size >= _MOST_BYTES:
                    yield from texts()
                    events = size = 0
    yield from texts()


def _as_texts(
    found: Sequence[_Found], columns: Columns, reject: RejectEvent
) -> tuple[list[pa.Array], _Rows, _Rows]:
    """Rows of messages whose columns have the same types."""
    sizes = np.array([len(each.arrays[0]) for each in found])
    of = np.repeat([each.message for each in found], sizes)
    # From the place of an event to its row.
    shifts = np.cumsum(sizes) - sizes - [each.first for each in found]
    places = np.arange(len(of)) - np.repeat(shifts, sizes)
    faults = {
        shift + place: what
        for shift, size, each in zip(shifts.tolist(), sizes.tolist(), found, strict=True)
        for place, what in each.faults.items()
        if each.first <= place < each.first + size
    }
    arrays = [pa.concat_arrays([each.arrays[at] for each in found]) for at, _ in enumerate(columns)]

    def tell(row: int, detail: str, record: bytes) -> None:
        reject(int(of[row]), int(places[row]), detail, record)

    texts, kept = sound_texts(arrays, columns, faults, tell)
    return texts, of[kept], places[kept]


def sound_texts(
    arrays: Sequence[pa.Array], columns: Columns, faults: Faults, reject: Reject
) -> tuple[list[pa.Array], _Rows]:
    """Columns as text, of the rows that can be read, and which rows these are.

    The others go to `reject`, as do those that have faults already.
    """
    texts = [_text(array, name, faults) for name, array in zip(columns, arrays, strict=True)]
    batch = sound_batch("", columns, texts, np.arange(len(arrays[0])), reject, faults)
    return [batch.column(name) for name in columns], batch.column(ROW_COLUMN).to_numpy()


def check_types(arrays: Sequence[pa.Array], columns: Columns) -> None:
    """Raise ValueError for a column of neither text nor numbers nor booleans nor times."""
    for name, array in zip(columns, arrays, strict=True):
        kind = array.type
        readable = is_text(kind) or any(of(kind) for of in _READABLE)
        if not readable or (pa.types.is_decimal(kind) and abs(kind.scale) > _MAX_SCALE):
            raise ValueError(
                f"its column {name!r} holds {kind}: send text, numbers, booleans or times"
            )


def _text(array: pa.Array, name: str, faults: Faults) -> pa.Array:
    """Values as text; a number that is none becomes null, and a fault of its row."""
    kind = array.type
    if pa.types.is_floating(kind):
        odd = pc.fill_null(pc.invert(pc.is_finite(array)), False)
        for row in np.flatnonzero(odd.to_numpy(zero_copy_only=False)).tolist():
            value = "NaN" if np.isnan(array[row].as_py()) else "infinite"
            faults.setdefault(row, f"{name!r} is {value}, not a string, a number or a boolean")
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
        _check_parts(message)
        rows = size = 0
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
                raise ValueError(f"it continues after its end, at byte {source.tell()}")
        if not rows:
            return [pa.nulls(0, pa.string()) for _ in self._columns], {}
        if self._schema is None or not schema.equals(self._schema):
            self._places = [_place(schema, name) for name in self._columns]
            self._schema = schema
        if len(batches) != 1:
            batches = [batch for batch in batches if batch.num_rows]
        faults: Faults = {}
        arrays = []
        for name, place in zip(self._columns, self._places, strict=True):
            if place is None:
                arrays.append(pa.nulls(rows, pa.string()))
                continue
            chunks, first = [], 0
            for batch in batches:
                chunk, some = _plain(batch.column(place), MAX_UNPACKED)
                size += chunk.nbytes
                if size > MAX_UNPACKED:
                    raise ValueError(f"its columns take more than {MAX_UNPACKED} bytes")
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
    binary = {
        pa.string(): pa.binary(),
        pa.large_string(): pa.large_binary(),
        pa.string_view(): pa.binary_view(),
    }.get(array.type)
    (array if binary is None else array.view(binary)).validate(full=True)


def _check_parts(message: bytes) -> None:
    """Raise ValueError for a stream whose parts take far more memory than they have bytes.

    pyarrow unpacks a buffer to whatever size it claims, and keeps every dictionary that another one
    adds to. Raises struct.error for what is no stream.
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
                if (delta := _field(message, batch, 2)) and message[delta]:
                    raise ValueError("a dictionary adds to another one: write each as a whole")
                batch = _table_in(message, batch, 1)
            if _field(message, batch, 3):
                raise ValueError("its buffers are compressed: let the broker compress messages")
        body = _field(message, table, 3)
        at = start + size + (unpack_from("<Q", message, body)[0] if body else 0)


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
