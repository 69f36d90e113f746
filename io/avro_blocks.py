"""Blocks of Avro as columns: one record of each block after the other, in all blocks at once.

Where a record begins is known only when the one before it was read. So many blocks are read side
by side, and each step of numpy takes the same field of one record of each. It pays from some dozens
of blocks on, as writers make them: of 16 to 64 kB.

What is not as the schema says is not read here at all: then nobody has to tell twice what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamveil.io.spans import MAX_BYTES, spans
from streamveil.mechanisms.core.arrays import Flags

MIN_BLOCKS = 40
"""Records by the largest number in one block: with fewer, one record after the other is as fast."""
_PADDING = 16  # bytes after the last block that a word may reach into

_At = npt.NDArray[np.int64]

_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_NUMBERS = ("int", "long", "enum")
_KINDS = ("string", "bytes", "fixed", *_NUMBERS, *_SIZES)
_MORE = np.uint64(0x8080808080808080)  # of a number: the bits that say that it goes on
# Pairs of 7, 14 and 28 bits that are brought together, and by how many bits the upper one moves.
_FOLDS = (
    (0x007F007F007F007F, 0x7F007F007F007F00, 1),
    (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
    (0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
)


class _MisfitError(Exception):
    """The bytes of a block are not as its schema says, or not as they are read here."""


class _Field(NamedTuple):
    """A value of each record, in the order of the bytes."""

    name: str | None
    """None of one inside another, which nobody asks for."""
    kind: str
    null: int | None = None
    """Which branch of a union with null the null is."""
    size: int = 0
    """Of a kind of fixed size, in bytes."""
    symbols: tuple[str, ...] = ()
    """Of an enum."""


class _Found(NamedTuple):
    """Where the values of a field begin and end, one of each block; which of them there are."""

    starts: _At
    ends: _At
    valid: Flags | None


def flat_fields(schema: Mapping[str, Any]) -> tuple[_Field, ...] | None:
    """The values of a record of that schema; None if it has lists, maps or larger unions.

    In the schema every type is spelt out where it is used.
    """
    try:
        return tuple(_flat(schema, lambda field: field["name"]))
    except _MisfitError:
        return None


def _flat(record: Mapping[str, Any], name_of: Callable[[Any], str | None]) -> Iterator[_Field]:
    for field in record["fields"]:
        kind, null = field["type"], None
        if isinstance(kind, list) and len(kind) == 2 and "null" in kind:
            null = kind.index("null")
            kind = kind[1 - null]
        about = kind if isinstance(kind, dict) else {"type": kind}
        what = about["type"]
        if what == "record" and null is None:
            yield from _flat(about, lambda inner: None)
        elif what in _KINDS:
            size = about.get("size", _SIZES.get(what, 0))
            yield _Field(name_of(field), what, null, size, tuple(about.get("symbols", ())))
        else:
            raise _MisfitError


def read_blocks(
    fields: Sequence[_Field], blocks: Sequence[bytes], counts: Sequence[int], columns: Sequence[str]
) -> list[pa.Array] | None:
    """The named columns of all records of some blocks, as they are stored.

    Text and bytes, of fixed size as well, come as binary, enums too; whole numbers as int64, others
    as float64.

    Args:
        fields: of :func:`flat_fields`.
        blocks: their bytes, unpacked.
        counts: how many records each has.
        columns: names of fields.

    Returns:
        An array for each column, in the order of the records; None for blocks that are not as the
        schema says, or too few to be read at once.
    """
    if min(counts) < 0 or not 0 < max(counts) * MIN_BLOCKS <= sum(counts):
        return None
    if sum(map(len, blocks)) > MAX_BYTES - _PADDING:
        return None
    try:
        with np.errstate(over="ignore"):
            return _Reader(blocks, np.array(counts, np.int64), columns).read(fields)
    except (_MisfitError, IndexError):  # a position is outside of all blocks
        return None


class _Reader:
    """Reads some blocks once."""

    def __init__(self, blocks: Sequence[bytes], counts: _At, columns: Sequence[str]) -> None:
        joined = b"".join((*blocks, bytes(_PADDING)))
        self._size = len(joined) - _PADDING
        self._joined = joined
        self._data = np.frombuffer(joined, np.uint8)
        self._words = np.ndarray(self._size + 8, np.dtype("<u8"), joined, strides=(1,))
        self._columns = columns
        order = np.argsort(-counts, kind="stable")  # those with records left stand in front
        ends = np.cumsum(np.fromiter(map(len, blocks), np.int64, len(blocks)))
        self._ends = ends[order]
        self._starts = np.append(0, ends[:-1])[order]
        self._counts = counts[order]
        self._first = (np.cumsum(counts) - counts)[order]

    def read(self, fields: Sequence[_Field]) -> list[pa.Array]:
        """Columns; raises _MisfitError or IndexError."""
        places, rows = self._places(fields), self._rows()
        order = np.empty(len(rows), np.int64)
        order[rows] = np.arange(len(rows))
        kinds = {field.name: field for field in fields}
        return [self._array(kinds[name], _in_order(places[name], order)) for name in self._columns]

    def _left(self) -> _At:
        """How many blocks have a record more, step by step."""
        return np.searchsorted(-self._counts, -np.arange(self._counts[0]), side="left")

    def _rows(self) -> _At:
        """Row of each record in the order in which they are read."""
        return np.concatenate([self._first[:n] + i for i, n in enumerate(self._left().tolist())])

    def _places(self, fields: Sequence[_Field]) -> dict[str, list[_Found]]:
        """Where the values of the columns are, step by step."""
        places: dict[str, list[_Found]] = {name: [] for name in self._columns}
        at = self._starts
        for left in self._left().tolist():
            at = at[:left]
            for field in fields:
                found = self._pass(field, at)
                at = found.ends
                if field.name in places:
                    places[field.name].append(found)
            if (at > self._ends[:left]).any():
                raise _MisfitError
        return places

    def _pass(self, field: _Field, at: _At) -> _Found:
        """Pass a value of each block."""
        if field.null is None:
            return _Found(*self._span(field, at), None)
        branch = self._data.take(at)
        if (branch & 0xFD).any():  # 0 or 1, of which the lowest bit is the sign
            raise _MisfitError
        valid = branch != 2 * field.null
        if valid.all():
            return _Found(*self._span(field, at + 1), None)
        starts = at + 1
        ends = starts.copy()
        some = np.flatnonzero(valid)
        starts[some], ends[some] = self._span(field, starts[some])
        return _Found(starts, ends, valid)

    def _span(self, field: _Field, at: _At) -> tuple[_At, _At]:
        """Where values begin, after their length if they have one, and end."""
        if field.kind in ("string", "bytes"):
            length = self._data.take(at)
            if not (length & 0x81).any():  # one byte, not negative
                starts = at + 1
                return starts, starts + (length >> 1)
            starts = self._after_number(at)
            lengths = self._numbers(at, starts)
            if ((lengths < 0) | (lengths > self._size)).any():
                raise _MisfitError
            return starts, starts + lengths
        if field.kind in _NUMBERS:
            return at, self._after_number(at)
        return at, at + field.size

    def _after_number(self, at: _At) -> _At:
        """Where numbers end that begin there: at their first byte that does not go on."""
        last = ~self._words[at] & _MORE
        last &= ~last + np.uint64(1)
        # The exponent of a power of two, which is 8 * bytes - 1.
        bits = (last.astype(np.float64).view(np.int64) >> 52) - 1023
        ends = at + ((bits + 1) >> 3)
        long = np.flatnonzero(last == 0)
        if len(long):
            for size in (9, 10):
                ends[long] = at[long] + size
                long = long[self._data[ends[long] - 1] >= 0x80]
            if len(long):
                raise _MisfitError
        return ends

    def _numbers(self, starts: _At, ends: _At) -> _At:
        """The whole numbers between, which are of 10 bytes at most."""
        sizes = ends - starts
        word = self._words[starts]
        kept = np.minimum(sizes, 8).astype(np.uint64) * np.uint64(8)
        word &= ~_MORE & (~np.uint64(0) >> (np.uint64(64) - kept))
        for low, high, shift in _FOLDS:
            word = (word & np.uint64(low)) | ((word & np.uint64(high)) >> np.uint64(shift))
        for more, shift in ((8, 56), (9, 63)):
            long = np.flatnonzero(sizes > more)
            if len(long):
                byte = self._data[starts[long] + more].astype(np.uint64) & np.uint64(0x7F)
                word[long] |= byte << np.uint64(shift)
        return ((word >> np.uint64(1)) ^ (~(word & np.uint64(1)) + np.uint64(1))).view(np.int64)

    def _array(self, field: _Field, found: _Found) -> pa.Array:
        starts, ends, valid = found
        if field.kind in ("string", "bytes", "fixed"):
            return spans(self._joined, starts, ends, valid)
        if field.kind == "null":
            return pa.nulls(len(starts))
        if valid is not None:  # a null has no bytes to be read
            starts, ends = np.where(valid, starts, 0), np.where(valid, ends, 1)
        mask = None if valid is None else ~valid
        if field.kind == "boolean":
            return pa.array(self._data[starts] != 0, mask=mask)
        if field.kind in ("float", "double"):
            kind = np.dtype("<f4" if field.kind == "float" else "<f8")
            every = np.ndarray(self._size + 8, kind, self._joined, strides=(1,))
            return pa.array(every[starts].astype(np.float64), mask=mask)
        numbers = self._numbers(starts, ends)
        if field.kind != "enum":
            return pa.array(numbers, mask=mask)
        at = numbers if valid is None else np.where(valid, numbers, 0)
        if ((at < 0) | (at >= len(field.symbols))).any():
            raise _MisfitError
        symbols = pa.array([symbol.encode() for symbol in field.symbols], pa.binary())
        return symbols.take(pa.array(at, mask=mask))


def _in_order(steps: Sequence[_Found], order: _At) -> _Found:
    """The values of all steps, as the records follow each other."""
    starts = np.concatenate([step.starts for step in steps])[order]
    ends = np.concatenate([step.ends for step in steps])[order]
    if all(step.valid is None for step in steps):
        return _Found(starts, ends, None)
    every = [np.ones(len(s.starts), bool) if s.valid is None else s.valid for s in steps]
    return _Found(starts, ends, np.concatenate(every)[order])
