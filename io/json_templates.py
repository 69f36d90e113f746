"""JSON objects of one template, distinguished by their marks alone.

Whoever writes objects writes the same bytes between the values of each: these are the pieces of a
template. A mark is a quote, a backslash or a control character. A record that has as many marks as
its pieces have, and these pieces in their order, has no mark in its values: so its strings are
their own text, and where they end is known without reading them byte by byte. Any other record is
left to whoever reads all of JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.io.spans import MAX_BYTES, spans
from streamveil.mechanisms.core.arrays import Flags

_At = npt.NDArray[np.int64]

_STRING = re.compile(rb'("[^"\\\x00-\x1f]*")')
_MARK = re.compile(rb'["\\\x00-\x1f]')
# What stands between a key and the next one where the value is no string.
_BARE = re.compile(rb"([ ]*:[ ]*)([^\s,:{}\[\]]+)([ ]*[,}]\s*)")
_COLON = re.compile(rb"[ ]*:[ ]*")
# Numbers that are their own text: without exponent, a zero at the end of a fraction or -0.
USUAL_NUMBER = r"^(?:0|-?[1-9][0-9]*|-?(?:0|[1-9][0-9]*)[.][0-9]*[1-9])$"
# Those and booleans, whose text is as they are written too.
USUAL_TEXT = rf"{USUAL_NUMBER}|^true$|^false$"
_BARE_VALUE = r"^(?:-?(?:0|[1-9][0-9]*)(?:[.][0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null)$"
_WIDTHS = (8, 4, 2, 1)
_SLICE_BYTES = 1 << 20  # of records that are read together: what is made of them stays in the cache


class Template(NamedTuple):
    """What the objects of one writer have in common."""

    pieces: tuple[bytes, ...]
    """Bytes before, between and after the values."""
    keys: tuple[str, ...]
    quoted: tuple[bool, ...]
    """Whether the value of each key is a string."""


def template_of(record: bytes) -> Template | None:
    """Template of a flat object that is sound JSON; None where it has escapes, or no or equal keys.

    What is not sound JSON has no template that it would be matched by, or none at all.
    """
    outside, *others = _STRING.split(record)
    pieces, keys, quoted = [outside], [], []
    awaits_value = False
    for string, outside in zip(others[::2], others[1::2], strict=True):
        if awaits_value:
            quoted.append(True)
            pieces[-1] += b'"'
            pieces.append(b'"' + outside)
            awaits_value = False
            continue
        keys.append(string)
        pieces[-1] += string
        if bare := _BARE.fullmatch(outside):
            quoted.append(False)
            pieces[-1] += bare[1]
            pieces.append(bare[3])
        elif _COLON.fullmatch(outside):
            pieces[-1] += outside
            awaits_value = True
        else:
            return None
    if not keys or awaits_value or len(set(keys)) < len(keys):
        return None
    return Template(tuple(pieces), tuple(json.loads(key) for key in keys), tuple(quoted))


def read_template(
    records: pa.Array, template: Template, columns: Sequence[str]
) -> tuple[Flags, list[pa.Array]]:
    """Which records are of a template, and the named keys of those as text; one it lacks is null.

    Args:
        records: large_string.
        template: of a sound object.
        columns: the keys.

    Returns:
        Flags, shape (len(records),), and for each column an array of string, of those records.
    """
    most = max(1, len(records) * _SLICE_BYTES // max(records.nbytes, 1))
    parts = [
        _read_slice(records[first : first + most], template, columns)
        for first in range(0, len(records), most)
    ]
    if not parts:
        return np.zeros(0, bool), [pa.nulls(0, pa.string()) for _ in columns]
    arrays = [pa.concat_arrays(each) for each in zip(*(part[1] for part in parts), strict=True)]
    return np.concatenate([part[0] for part in parts]), arrays


def _read_slice(
    records: pa.Array, template: Template, columns: Sequence[str]
) -> tuple[Flags, list[pa.Array]]:
    _, offsets, buffer = records.buffers()
    bounds = np.frombuffer(offsets, np.int64, len(records) + 1, 8 * records.offset)
    good = np.zeros(len(records), bool)
    if buffer is None or buffer.size > MAX_BYTES:
        return good, [pa.nulls(0, pa.string()) for _ in columns]
    data = np.frombuffer(buffer, np.uint8)
    rows, places = _places(data, bounds, template.pieces)
    same = np.ones(len(rows), bool)
    for piece, at in zip(template.pieces, places, strict=True):
        same &= _are_at(data, at, piece)
    if not same.all():
        rows, places = rows[same], [at[same] for at in places]
    values = {
        key: (places[i] + len(template.pieces[i]), places[i + 1], template.quoted[i])
        for i, key in enumerate(template.keys)
    }
    usual = np.ones(len(rows), bool)
    for key, (starts, ends, quoted) in values.items():
        if not quoted:
            bare = spans(buffer, starts, ends).view(pa.string())
            form = USUAL_TEXT if key in columns else _BARE_VALUE
            usual &= pc.match_substring_regex(bare, form).to_numpy(zero_copy_only=False)
    good[rows[usual]] = True
    return good, [
        spans(buffer, values[name][0][usual], values[name][1][usual]).view(pa.string())
        if name in values
        else pa.nulls(int(usual.sum()), pa.string())
        for name in columns
    ]


def _places(
    data: npt.NDArray[np.uint8], bounds: _At, pieces: Sequence[bytes]
) -> tuple[_At, list[_At]]:
    """Rows with as many marks as the pieces have, and where each piece of theirs must be."""
    numbers = [len(_MARK.findall(piece)) for piece in pieces]
    rows, marks = _rows_of(data, bounds, sum(numbers))
    places = [bounds[rows]]
    for piece, before in zip(pieces[1:-1], accumulate(numbers), strict=False):
        first = _MARK.search(piece)
        assert first is not None  # the quote of a key
        places.append(marks[:, before] - first.start())
    places.append(bounds[rows + 1] - len(pieces[-1]))
    apart = np.ones(len(rows), bool)
    for piece, at, following in zip(pieces, places, places[1:], strict=False):
        apart &= at + len(piece) <= following
    if apart.all():
        return rows, places
    return rows[apart], [at[apart] for at in places]


def _rows_of(data: npt.NDArray[np.uint8], bounds: _At, number: int) -> tuple[_At, _At]:
    """Rows that have so many marks, and where these are: shape (rows, number)."""
    begin, end = int(bounds[0]), int(bounds[-1])
    part = data[begin:end]
    marks = np.flatnonzero((part == ord('"')) | (part < 0x20) | (part == ord("\\")))
    marks += begin
    size = len(bounds) - 1
    if len(marks) == size * number:  # as where all records are of the template
        every = marks.reshape(size, number)
        if (every[:, 0] >= bounds[:-1]).all() and (every[:, -1] < bounds[1:]).all():
            return np.arange(size), every
    first = np.searchsorted(marks, bounds)
    rows = np.flatnonzero(np.diff(first) == number)
    return rows, marks[first[rows][:, None] + np.arange(number)]


def _are_at(data: npt.NDArray[np.uint8], at: _At, piece: bytes) -> Flags:
    """Whether a piece, not an empty one, is at each of some places."""
    width = next(width for width in _WIDTHS if width <= len(piece))
    words = np.ndarray(len(data) - width + 1, f"<u{width}", data, strides=(1,))
    same = np.ones(len(at), bool)
    # The last word may overlap the one before it.
    for first in {*range(0, len(piece) - width, width), len(piece) - width}:
        same &= words[at + first] == int.from_bytes(piece[first : first + width], "little")
    return same
