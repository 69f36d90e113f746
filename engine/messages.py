"""What the steps tell each other: one kind of message, and the names of what they give on the side.

What travels between workers is typed, narrow and never pickled: a payload is arrays as bytes, which
the class that it is of writes and reads.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# Outputs on the side.
REJECTED = "rejected"
TALLIES = "tallies"
LEDGER = "ledger"
REVISIONS = "revisions"
STATE = "state"
ASKS = "asks"
WAITING = "waiting"
FIRST_SLOT = "first slot"
DONE = "done"
BOOKED = "booked"
REVISED = "revised"


class Kind(IntEnum):
    """What a message says."""

    START = 0
    """The stream starts with this slot."""
    OPEN = 1
    """The slot is open: it is released, whatever comes of it."""
    EVENTS = 2
    """Events of the slot, as one batch has them."""
    COUNTS = 3
    """All that a shard has of the slot, once: counts, visits or tallies."""
    CHANGES = 4
    """Changes of requirements, the first of which is from this slot."""
    KEPT = 5
    """What a shard keeps for the run that goes on with this slot."""
    REPORT = 6
    """A device's answer."""
    PULSE = 7
    """It is time to look."""
    WHOLE = 8
    """All of a bounded input was sent; the payload says in how many messages, in digits."""
    CHOICE = 9
    """In how many slots users are to count, before the first is counted."""
    WAITING = 10
    """Events of a slot that is not over, which the run that goes on with this slot counts."""
    BOUNDS = 11
    """Bounds of numbers that were chosen before any event was counted."""


class Message(NamedTuple):
    """What a step receives about a slot, or about a block of slots that come together."""

    kind: Kind
    slot: int = 0
    shard: int = 0
    """Which of the shards emits, from 0."""
    payload: bytes = b""
    shards: int = 1
    """How many shards tell."""

    def to_bytes(self) -> bytes:
        """A header of the numbers, then the payload."""
        return _HEADER.pack(self.kind, self.slot, self.shard, self.shards) + self.payload

    @classmethod
    def from_bytes(cls, data: bytes) -> Message:
        """The message of some bytes."""
        kind, slot, shard, shards = _HEADER.unpack_from(data)
        return cls(Kind(kind), slot, shard, data[_HEADER.size :], shards)


_HEADER = struct.Struct("<Bqii")


class Output(NamedTuple):
    """What a step gives, for its host to carry."""

    value: Any
    tag: str | None = None
    """Of an output on the side."""
    at: int | None = None
    """Event time in microseconds; that of what the step was given when None."""


_ARRAY = struct.Struct("<cBB")
_NUMBER = struct.Struct("<q")


def array_to_bytes(array: np.ndarray[Any, Any]) -> bytes:
    """Header of type, size and dimensions, the shape, then the elements, little-endian."""
    dtype = array.dtype.newbyteorder("<")
    header = _ARRAY.pack(dtype.kind.encode(), dtype.itemsize, array.ndim)
    shape = struct.pack(f"<{array.ndim}q", *array.shape)
    return header + shape + np.ascontiguousarray(array, dtype=dtype).tobytes()


def array_from_bytes(data: bytes | memoryview) -> np.ndarray[Any, Any]:
    """The array, read-only, over the bytes themselves."""
    kind, size, dimensions = _ARRAY.unpack_from(data)
    shape = struct.unpack_from(f"<{dimensions}q", data, _ARRAY.size)
    offset = _ARRAY.size + 8 * dimensions
    return np.frombuffer(data, np.dtype(f"<{kind.decode()}{size}"), offset=offset).reshape(shape)


def arrays_to_bytes(*arrays: np.ndarray[Any, Any]) -> bytes:
    """Some arrays: how many, the size of each, then all of them."""
    parts = [array_to_bytes(array) for array in arrays]
    sizes = struct.pack(f"<{1 + len(parts)}q", len(parts), *map(len, parts))
    return sizes + b"".join(parts)


def arrays_from_bytes(data: bytes) -> list[np.ndarray[Any, Any]]:
    """The arrays, read-only, over the bytes themselves."""
    (number,) = _NUMBER.unpack_from(data)
    sizes = struct.unpack_from(f"<{number}q", data, _NUMBER.size)
    view, arrays = memoryview(data)[_NUMBER.size * (1 + number) :], []
    for size in sizes:
        arrays.append(array_from_bytes(view[:size]))
        view = view[size:]
    return arrays


def integers_from_bytes(data: bytes) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    """The arrays as int64, however narrow they travelled."""
    return [array.astype(np.int64) for array in arrays_from_bytes(data)]


def narrow(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Numbers from 0 on in the smallest type that holds the largest."""
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))


def several_to_bytes(*parts: bytes) -> bytes:
    """Some bytes in one."""
    return arrays_to_bytes(*(np.frombuffer(part, np.uint8) for part in parts))


def several_from_bytes(data: bytes) -> list[bytes]:
    """What :func:`several_to_bytes` was given."""
    return [part.tobytes() for part in arrays_from_bytes(data)]


def batch_to_bytes(batch: pa.RecordBatch) -> bytes:
    """A batch as a stream of Arrow. Of a slice it has only the rows."""
    # A slice has the whole dictionary of its parent, which may be far larger than its rows.
    for index, column in enumerate(batch.columns):
        if pa.types.is_dictionary(column.type) and len(column.dictionary) > len(column):
            small = pc.dictionary_encode(column.dictionary_decode()).cast(column.type)
            batch = batch.set_column(index, batch.schema.field(index), small)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def batch_from_bytes(data: bytes) -> pa.RecordBatch:
    """What :func:`batch_to_bytes` was given, over the bytes themselves."""
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_next_batch()


def compressed(data: bytes) -> bytes:
    """The size of `data`, and `data` compressed by zstd."""
    return _NUMBER.pack(len(data)) + pa.compress(data, codec="zstd", asbytes=True)


def expanded(data: bytes) -> bytes:
    """What :func:`compressed` was given."""
    (size,) = _NUMBER.unpack_from(data)
    return pa.decompress(data[_NUMBER.size :], size, codec="zstd", asbytes=True)
