"""Messages that are JSON arrays, taken apart into the bytes of their elements, all of them at once.

Brackets, quotes and commas alone say where an element ends, and every element is read by itself
afterwards: one that is no JSON, or not UTF-8, spoils no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamveil.io.json_objects import json_fault

BLANKS = b" \t\r\n"

_Rows = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]

_QUOTE, _BACKSLASH, _COMMA, _OPEN, _CLOSE = b'"\\,[]'


def _table(characters: bytes) -> _Flags:
    flags = np.zeros(256, bool)
    flags[list(characters)] = True
    return flags


_IS_MARK = _table(b'",[]{}')
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
    """Elements of one array or more, given without blanks around them."""
    # A line break closes each: no string or backslash goes on in the next one.
    joined = b"\n".join(arrays)
    data = np.frombuffer(joined, np.uint8)
    lengths = np.fromiter(map(len, arrays), np.int64, len(arrays))
    starts = np.cumsum(lengths + 1) - lengths - 1

    marks = np.flatnonzero(_IS_MARK[data])
    if _BACKSLASH in joined:
        marks = marks[~_escaped(data)[marks]]
    kinds = data[marks]
    before, inside = _within(np.cumsum(kinds == _QUOTE), marks, starts)
    even = (inside - before) % 2 == 0
    closed = _last(even, marks, starts, lengths)
    outside = even & (kinds != _QUOTE)

    marks, kinds = marks[outside], kinds[outside]
    before, depth = _within(np.cumsum(_STEPS[kinds], dtype=np.int64), marks, starts)
    depth = depth - before
    first = np.searchsorted(marks, starts)
    ends = np.searchsorted(marks, starts + lengths)
    good = closed & (ends - first >= 2)
    at, until = first[good], ends[good] - 1
    sound = (
        (marks[at] == starts[good])
        & (kinds[at] == _OPEN)
        & (marks[until] == (starts + lengths)[good] - 1)
        & (kinds[until] == _CLOSE)
        & (depth[until] == 0)
    )
    good[good] = sound
    # Depth 0 is reached by the last mark alone.
    ups = np.concatenate(([0], np.cumsum(depth < 1)))
    good[good] = (ups[ends] - ups[first])[good] == 1

    of = np.searchsorted(starts, marks, side="right") - 1
    cut = good[of] & ((depth == 1) & (kinds == _COMMA))
    cut[first[good]] = cut[ends[good] - 1] = True
    cuts, owner = marks[cut], of[cut]
    same = owner[1:] == owner[:-1]
    begins, stops, owner = cuts[:-1][same] + 1, cuts[1:][same], owner[:-1][same]
    return Elements(*_records(joined, data, begins, stops, owner), np.flatnonzero(~good).tolist())


def array_fault(message: bytes) -> str:
    """What is wrong with an array that cannot be taken apart."""
    return json_fault(message) or "not JSON: its brackets or quotes do not close"


def _records(
    joined: bytes, data: npt.NDArray[np.uint8], begins: _Rows, stops: _Rows, owner: _Rows
) -> tuple[pa.Array, _Rows, _Rows]:
    """Elements between such bytes; an array of nothing but blanks has none."""
    begins = begins + (_IS_BLANK[data[begins]] & (begins < stops))  # as many write after a comma
    alone = np.ones(len(owner), bool)
    alone[1:] = owner[1:] != owner[:-1]
    starts = np.flatnonzero(alone)
    places = np.arange(len(owner)) - np.repeat(starts, np.diff(np.append(starts, len(owner))))
    alone[:-1] &= owner[1:] != owner[:-1]
    empty = [
        row
        for row in np.flatnonzero(alone & ((stops == begins) | _IS_BLANK[data[begins]])).tolist()
        if not joined[begins[row] : stops[row]].strip(BLANKS)
    ]
    # Every other segment of the bytes is an element; what stands between two is left out.
    offsets = np.stack([begins, stops], axis=1).reshape(-1)
    if not len(offsets):
        return pa.array([], pa.large_binary()), owner, places
    segments = pa.Array.from_buffers(
        pa.large_binary(),
        len(offsets) - 1,
        [None, pa.py_buffer(offsets.astype(np.int64)), pa.py_buffer(joined)],
    )
    kept = np.delete(np.arange(len(owner)), empty)
    return segments.take(pa.array(2 * kept)), owner[kept], places[kept]


def _escaped(data: npt.NDArray[np.uint8]) -> _Flags:
    """Which bytes stand after an odd number of backslashes in a row; one flag more than bytes."""
    slashes = np.flatnonzero(data == _BACKSLASH)
    begins = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)
    lengths = np.diff(np.append(begins, len(slashes)))
    flags = np.zeros(len(data) + 1, bool)
    flags[(slashes[begins] + lengths)[lengths % 2 == 1]] = True
    return flags


def _within(sums: _Rows, marks: _Rows, starts: _Rows) -> tuple[_Rows, _Rows]:
    """By mark: the running sum before its array, and the one at the mark itself."""
    first = np.searchsorted(marks, starts)
    padded = np.concatenate(([0], sums))
    return np.repeat(padded[first], np.diff(np.append(first, len(marks)))), sums


def _last(flags: _Flags, marks: _Rows, starts: _Rows, lengths: _Rows) -> _Flags:
    """The flag at the last mark of each array, False where it has none."""
    ends = np.searchsorted(marks, starts + lengths)
    found: _Flags = np.append(flags, False)[ends - 1] & (ends > np.searchsorted(marks, starts))
    return found
