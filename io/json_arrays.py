"""Messages that are JSON arrays, taken apart into the bytes of their elements, all of them at once.

Brackets, quotes and commas alone say where an element ends, and every element is read by itself
afterwards: one that is no JSON, or not UTF-8, spoils no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamveil.io.json_objects import json_fault
from streamveil.mechanisms.core.arrays import Flags

BLANKS = b" \t\r\n"

_Rows = npt.NDArray[np.int64]

_QUOTE, _BACKSLASH, _COMMA, _CLOSE = b'"\\,]'


def _table(characters: bytes) -> Flags:
    flags = np.zeros(256, bool)
    flags[list(characters)] = True
    return flags


_MARKS = _table(b'",[]{}').tobytes()
_IS_BLANK = _table(BLANKS)
_STEPS = _table(b"[{").astype(np.int8) - _table(b"]}")


class Elements(NamedTuple):
    """Elements of some arrays."""

    records: pa.Array
    """The bytes of each, large_binary."""
    arrays: _Rows
    """Index of its array, ascending."""
    places: _Rows
    """Which element of its array it is, from 0."""
    broken: list[int]
    """The arrays that cannot be taken apart."""


def split_arrays(arrays: Sequence[bytes]) -> Elements:
    """Elements of one array or more, which begin with their bracket, without blanks at the end."""
    # A line break closes each: no string or backslash goes on in the next one.
    joined = b"\n".join(arrays)
    data = np.frombuffer(joined, np.uint8)
    lengths = np.fromiter(map(len, arrays), np.int64, len(arrays))
    starts = np.cumsum(lengths + 1) - lengths - 1

    marks = np.flatnonzero(np.frombuffer(joined.translate(_MARKS), bool))
    if b"\\" in joined:
        marks = marks[~_escaped(data)[marks]]
    kinds = data[marks]
    quotes = kinds == _QUOTE
    first, last = _ranges(marks, starts)
    inside = _anew(np.cumsum(quotes, dtype=np.int8) & 1, first) & 1
    good = inside[last] == 0
    outside = np.flatnonzero((inside == 0) & ~quotes)

    marks, kinds = marks[outside], kinds[outside]
    first, last = _ranges(marks, starts)
    depth = _anew(np.cumsum(_STEPS[kinds], dtype=np.int32), first)
    good &= marks[last] == starts + lengths - 1
    good &= (kinds[last] == _CLOSE) & (depth[last] == 0)
    closed = np.flatnonzero(depth < 1)  # by the last mark alone, in what is an array
    good &= np.searchsorted(closed, last) == np.searchsorted(closed, first)

    cut = (depth == 1) & (kinds == _COMMA)
    cut[first] = cut[last] = True
    if not good.all():
        cut &= np.repeat(good, last - first + 1)
    cuts = marks[cut]
    of = np.searchsorted(starts, cuts, side="right") - 1
    within = of[1:] == of[:-1]  # an element is between two cuts of its array
    records, kept = _records(joined, data, cuts[:-1][within] + 1, cuts[1:][within], of[1:][within])
    return Elements(records, *kept, np.flatnonzero(~good).tolist())


def array_fault(message: bytes) -> str:
    """What is wrong with an array that cannot be taken apart."""
    return json_fault(message) or "not JSON: its brackets or quotes do not close"


def _records(
    joined: bytes, data: npt.NDArray[np.uint8], begins: _Rows, ends: _Rows, of: _Rows
) -> tuple[pa.Array, tuple[_Rows, _Rows]]:
    """Elements between such bytes, and of which array and at which place they are."""
    first, last = _ranges(of, np.unique(of))
    places = np.arange(len(of)) - np.repeat(first, last - first + 1)
    begins = begins + (_IS_BLANK[data[begins]] & (begins < ends))  # as many write after a comma
    # Every other segment of the bytes is an element; what stands between two is left out.
    offsets = np.append(np.stack([begins, ends], axis=1), len(joined))
    segments = pa.Array.from_buffers(
        pa.large_binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(joined)]
    )
    alone = first[first == last]
    none = [row for row in alone.tolist() if not joined[begins[row] : ends[row]].strip(BLANKS)]
    kept = np.delete(np.arange(len(of)), none)
    return segments.take(pa.array(2 * kept)), (of[kept], places[kept])


def _ranges(at: _Rows, starts: _Rows) -> tuple[_Rows, _Rows]:
    """First and last index, into ascending positions, of those from each start up to the next."""
    first = np.searchsorted(at, starts)
    return first, np.append(first[1:], len(at))[: len(first)] - 1


def _anew(sums: npt.NDArray[Any], first: _Rows) -> npt.NDArray[Any]:
    """Running sums that begin anew at each index of `first`, which begins with 0."""
    before = np.append(0, sums[first[1:] - 1])
    if not before.any():
        return sums
    return sums - np.repeat(before, np.diff(first, append=len(sums))).astype(sums.dtype)


def _escaped(data: npt.NDArray[np.uint8]) -> Flags:
    """Which bytes stand after an odd number of backslashes in a row; one flag more than bytes."""
    slashes = np.flatnonzero(data == _BACKSLASH)
    begins = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)
    lengths = np.diff(begins, append=len(slashes))
    flags = np.zeros(len(data) + 1, bool)
    flags[(slashes[begins] + lengths)[lengths % 2 == 1]] = True
    return flags
