"""Arrays and counts as bytes: what travels between workers is typed, narrow and never pickled."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from streamveil.transforms.counting import BlockCounts

_HEADER = struct.Struct("<cBB")
_COUNTS = struct.Struct("<qqq")
_START = struct.Struct("<q")


def array_to_bytes(array: np.ndarray[Any, Any]) -> bytes:
    """Header of type, size and dimensions, the shape, then the elements, little-endian."""
    dtype = array.dtype.newbyteorder("<")
    header = _HEADER.pack(dtype.kind.encode(), dtype.itemsize, array.ndim)
    shape = struct.pack(f"<{array.ndim}q", *array.shape)
    return header + shape + np.ascontiguousarray(array, dtype=dtype).tobytes()


def array_from_bytes(data: bytes) -> np.ndarray[Any, Any]:
    """The array, read-only, over the bytes themselves."""
    kind, size, dimensions = _HEADER.unpack_from(data)
    shape = struct.unpack_from(f"<{dimensions}q", data, _HEADER.size)
    offset = _HEADER.size + 8 * dimensions
    return np.frombuffer(data, np.dtype(f"<{kind.decode()}{size}"), offset=offset).reshape(shape)


def counts_to_bytes(counts: BlockCounts) -> bytes:
    """Block, dropped, size of the first array, then cells and counts in the smallest types."""
    cells, events = (array_to_bytes(_narrow(a)) for a in (counts.cells, counts.counts))
    return _COUNTS.pack(counts.block, counts.dropped, len(cells)) + cells + events


def block_of(data: bytes) -> int:
    """Block of the counts, without reading them."""
    block: int = _COUNTS.unpack_from(data)[0]
    return block


def counts_from_bytes(data: bytes) -> BlockCounts:
    """The counts, as int64 again."""
    block, dropped, size = _COUNTS.unpack_from(data)
    middle = _COUNTS.size + size
    cells, events = (
        array_from_bytes(part).astype(np.int64)
        for part in (data[_COUNTS.size : middle], data[middle:])
    )
    return BlockCounts(block, cells, events, dropped)


def start_to_bytes(slot: int) -> bytes:
    """The first slot of a stream, for where counts go: shorter than any."""
    return _START.pack(slot)


def start_from_bytes(data: bytes) -> int | None:
    """The first slot, or None for counts."""
    if len(data) != _START.size:
        return None
    slot: int = _START.unpack(data)[0]
    return slot


def _narrow(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))
