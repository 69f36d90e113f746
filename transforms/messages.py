"""Arrays and counts as bytes: what travels between workers is typed, narrow and never pickled."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from streamveil.mechanisms.core.cohorts import Moves
from streamveil.transforms.counting.event_codes import BlockCounts, Packed, ShardCounts, Visits

_HEADER = struct.Struct("<cBB")
_COUNTS = struct.Struct("<qqq")
_FIRST = struct.Struct("<q")
_TWO = struct.Struct("<qq")
_NO_BLOCK = -(1 << 63)
_KEY = struct.Struct("<qqq")
_PART = struct.Struct("<qii")


def array_to_bytes(array: np.ndarray[Any, Any]) -> bytes:
    """Header of type, size and dimensions, the shape, then the elements, little-endian."""
    dtype = array.dtype.newbyteorder("<")
    header = _HEADER.pack(dtype.kind.encode(), dtype.itemsize, array.ndim)
    shape = struct.pack(f"<{array.ndim}q", *array.shape)
    return header + shape + np.ascontiguousarray(array, dtype=dtype).tobytes()


def array_from_bytes(data: bytes | memoryview) -> np.ndarray[Any, Any]:
    """The array, read-only, over the bytes themselves."""
    kind, size, dimensions = _HEADER.unpack_from(data)
    shape = struct.unpack_from(f"<{dimensions}q", data, _HEADER.size)
    offset = _HEADER.size + 8 * dimensions
    return np.frombuffer(data, np.dtype(f"<{kind.decode()}{size}"), offset=offset).reshape(shape)


def arrays_to_bytes(*arrays: np.ndarray[Any, Any]) -> bytes:
    """Some arrays: how many, the size of each, then all of them."""
    parts = [array_to_bytes(array) for array in arrays]
    sizes = struct.pack(f"<{1 + len(parts)}q", len(parts), *map(len, parts))
    return sizes + b"".join(parts)


def arrays_from_bytes(data: bytes) -> list[np.ndarray[Any, Any]]:
    """The arrays, read-only, over the bytes themselves."""
    (number,) = _FIRST.unpack_from(data)
    sizes = struct.unpack_from(f"<{number}q", data, 8)
    ends = np.cumsum(sizes) + 8 * (1 + number)
    view = memoryview(data)
    return [array_from_bytes(view[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


def compressed(data: bytes) -> bytes:
    """The size of `data`, and `data` compressed by zstd."""
    return _FIRST.pack(len(data)) + pa.compress(data, codec="zstd", asbytes=True)


def expanded(data: bytes) -> bytes:
    """What :func:`compressed` was given."""
    (size,) = _FIRST.unpack_from(data)
    return pa.decompress(data[_FIRST.size :], size, codec="zstd", asbytes=True)


def packed_to_bytes(events: Packed) -> bytes:
    """The codes alone, where no group has more than one event."""
    more = (_narrow(events.at), _narrow(events.more)) if len(events.at) else ()
    return arrays_to_bytes(events.codes, *more)


def packed_from_bytes(data: bytes) -> Packed:
    """The events, the codes read-only over the bytes themselves."""
    codes, *more = arrays_from_bytes(data)
    return Packed(codes, *(array.astype(np.int64) for array in more))


def visits_to_bytes(visits: Visits) -> bytes:
    """Block and dropped, then the groups that keep events."""
    some = visits.kept > 0
    groups = arrays_to_bytes(visits.codes[some], _narrow(visits.kept[some]))
    return _TWO.pack(visits.block, visits.dropped) + groups


def visits_from_bytes(data: bytes) -> Visits:
    """The visits, without groups of nothing."""
    block, dropped = _TWO.unpack_from(data)
    codes, kept = arrays_from_bytes(data[_TWO.size :])
    return Visits(block, codes, kept.astype(np.int64), dropped)


def shard_counts_to_bytes(counts: ShardCounts) -> bytes:
    """Slot, shard, moves, then cohorts, cells and counts."""
    moves = counts.moves
    return _TWO.pack(counts.slot, counts.shard) + arrays_to_bytes(
        moves.parents,
        moves.children,
        moves.users,
        moves.requirements,
        counts.cohorts,
        _narrow(counts.cells),
        _narrow(counts.counts),
    )


def shard_counts_from_bytes(data: bytes) -> ShardCounts:
    """The counts, as int64 again."""
    slot, shard = _TWO.unpack_from(data)
    arrays = [array.astype(np.int64) for array in arrays_from_bytes(data[_TWO.size :])]
    return ShardCounts(slot, shard, Moves(*arrays[:4]), *arrays[4:])


def counts_to_bytes(counts: BlockCounts) -> bytes:
    """Block, dropped, size of the first array, then cells and counts in the smallest types."""
    cells, events = (array_to_bytes(_narrow(a)) for a in (counts.cells, counts.counts))
    return _COUNTS.pack(counts.block, counts.dropped, len(cells)) + cells + events


class Part(NamedTuple):
    """Which part of a slot a message is, or of a block of slots where these come together."""

    slot: int
    number: int
    """From 0."""
    parts: int
    """In how many parts every slot comes."""


def part_to_bytes(part: Part, content: bytes) -> bytes:
    """Which part it is, then its content: what goes to a stage that takes slots."""
    return _PART.pack(*part) + content


def part_of(data: bytes) -> Part:
    """Which part it is, without reading its content."""
    return Part(*_PART.unpack_from(data))


def content_of(data: bytes) -> bytes:
    """The content of a part."""
    return data[_PART.size :]


def block_of(data: bytes) -> int:
    """Block of counts or visits, or of a part, without reading them."""
    block: int = _FIRST.unpack_from(data)[0]
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


def kept_to_bytes(key: tuple[int, int], kept: bytes) -> bytes:
    """What a shard keeps for the run that goes on, among its counts."""
    return _KEY.pack(_NO_BLOCK, *key) + kept


def is_kept(data: bytes) -> bool:
    """Whether this is what a shard keeps, and no counts."""
    return block_of(data) == _NO_BLOCK


def kept_from_bytes(data: bytes) -> tuple[tuple[int, int], bytes]:
    """The shard, and what it keeps."""
    _, kind, shard = _KEY.unpack_from(data)
    return (kind, shard), data[_KEY.size :]


def start_to_bytes(slot: int) -> bytes:
    """The first slot of a stream, for where counts go: shorter than any."""
    return _FIRST.pack(slot)


def start_from_bytes(data: bytes) -> int | None:
    """The first slot, or None for counts."""
    if len(data) != _FIRST.size:
        return None
    slot: int = _FIRST.unpack(data)[0]
    return slot


def _narrow(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))
