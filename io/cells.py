"""Cells that a file of typed columns holds but nobody can read: their rows are rejected, no others.

A Parquet or an Avro file may hold bytes in a column of text that are not UTF-8, and a damaged one
indices outside their dictionary. Arrow hands both on, and whatever touches them later fails for
the whole batch; so this is where they stop.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.io.files import Columns, event_batch
from streamveil.io.lines import Reject
from streamveil.mechanisms.core.records import QueryColumn

NOT_UTF8 = "is not UTF-8"
NO_ENTRY = "is an index outside its dictionary"
_ANY_SIZE = 1 << 62

# What is wrong with a row, by row.
Faults = dict[int, str]


def sound_batch(
    source: str,
    columns: Columns,
    arrays: list[pa.Array],
    rows: npt.NDArray[np.int64],
    reject: Reject,
    faults: Faults | None = None,
) -> pa.RecordBatch:
    """Batch of the rows whose every cell can be read; the others go to `reject`.

    Of a :class:`QueryColumn` text that is not UTF-8 is read with its faults replaced, and an index
    outside a dictionary is null: no fault for those who do not read it.

    Args:
        source: the file.
        columns: names of the arrays.
        arrays: the columns, of n rows each; view types become large ones.
        rows: where each row stood in the source, shape (n,).
        reject: called for each row left out, with the named columns as JSON.
        faults: what is wrong with rows that must be left out besides.
    """
    arrays = [without_views(array) for array in arrays]
    found = dict(faults or {})
    for at, name in enumerate(columns):
        bad = _faults(arrays[at])
        if bad and isinstance(name, QueryColumn):
            arrays[at] = _readable(arrays[at], sorted(bad))
            continue
        for row, what in bad.items():
            found.setdefault(row, f"{name!r} {what}")
    if found:
        for row in sorted(found):
            reject(int(rows[row]), found[row], record_json(columns, arrays, row))
        keep = np.ones(len(rows), bool)
        keep[list(found)] = False
        arrays = [_kept(array, keep) for array in arrays]
        rows = rows[keep]
    return event_batch(source, columns, arrays, rows)


def _readable(array: pa.Array, bad: Sequence[int]) -> pa.Array:
    """The same without a dictionary, and of the given rows the text as far as it can be read."""
    texts = [_cell(array, row) for row in bad]
    array, _ = decoded(array, _ANY_SIZE)
    if not is_text(array.type):
        return array
    raw = pa.large_binary() if pa.types.is_large_string(array.type) else pa.binary()
    mask = np.zeros(len(array), bool)
    mask[bad] = True
    as_bytes = pa.array([None if text is None else text.encode() for text in texts], raw)
    return pc.replace_with_mask(array.view(raw), pa.array(mask), as_bytes).view(array.type)


def without_views(array: pa.Array) -> pa.Array:
    """The same values; Arrow has few functions on views, so they become large text or bytes."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        values = without_views(array.dictionary)
        if values is array.dictionary:
            return array
        return pa.DictionaryArray.from_arrays(array.indices, values, safe=False)
    if pa.types.is_string_view(kind):
        return array.cast(pa.large_string())
    return array.cast(pa.large_binary()) if pa.types.is_binary_view(kind) else array


def as_utf8(array: pa.Array) -> pa.Array:
    """Bytes taken for text, without a look at them."""
    return array.view(pa.string())


def decoded(array: pa.Array, most: int) -> tuple[pa.Array, Faults]:
    """The values of a dictionary or of views, and the rows with an index outside, which are null.

    Raises ValueError if it stands for more than `most` bytes of text.
    """
    if _view_bytes(array) > most:
        raise ValueError(f"its views stand for more than {most} bytes of text")
    array = without_views(array)
    if not pa.types.is_dictionary(array.type):
        return array, {}
    values = array.dictionary
    at, outside = _indices(array)
    if is_text(values.type):
        lengths = np.append(pc.fill_null(pc.binary_length(values), 0).to_numpy(), 0)
        if int(lengths[at].sum()) > most:
            raise ValueError(f"its dictionaries stand for more than {most} bytes of text")
    null = at == len(values)
    faults = dict.fromkeys(np.flatnonzero(outside).tolist(), NO_ENTRY)
    return values.take(pa.array(np.where(null, 0, at), mask=null)), faults


def _view_bytes(array: pa.Array) -> int:
    """Bytes that all views of an array show, which may be the same ones."""
    if pa.types.is_dictionary(array.type):
        return _view_bytes(array.dictionary)
    if not (pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type)):
        return 0
    views = np.frombuffer(array.buffers()[1], np.int32).reshape(-1, 4)
    lengths = views[array.offset : array.offset + len(array), 0]
    return int(lengths[array.is_valid().to_numpy(zero_copy_only=False)].sum(dtype=np.int64))


def is_text(kind: pa.DataType) -> bool:
    """Whether a type is text with offsets."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_sound(array: pa.Array) -> bool:
    try:
        if pa.types.is_dictionary(array.type) and _all_inside(array):
            array.validate()
            array = array.dictionary  # Arrow's look at each index takes ten times as long
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _all_inside(array: pa.DictionaryArray) -> bool:
    """Whether no row has an index outside its dictionary."""
    ends = pc.min_max(array.indices)
    first, last = ends["min"].as_py(), ends["max"].as_py()
    return first is None or (first >= 0 and last < len(array.dictionary))


def _faults(array: pa.Array) -> Faults:
    kind = array.type
    if not (is_text(kind) or pa.types.is_dictionary(kind)) or _is_sound(array):
        return {}
    if is_text(kind):
        return dict.fromkeys(not_utf8(array), NOT_UTF8)
    at, nowhere = _indices(array)
    bad = np.zeros(len(array.dictionary) + 1, bool)
    if is_text(array.dictionary.type):
        bad[list(not_utf8(array.dictionary))] = True
    return {
        **dict.fromkeys(np.flatnonzero(bad[at]).tolist(), NOT_UTF8),
        **dict.fromkeys(np.flatnonzero(nowhere).tolist(), NO_ENTRY),
    }


def _indices(array: pa.DictionaryArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Index of each row, one past the last for a null and for one outside; which are outside."""
    size = len(array.dictionary)
    null = array.indices.is_null().to_numpy(zero_copy_only=False)
    at = array.indices.fill_null(0).cast(pa.int64()).to_numpy(zero_copy_only=False)
    outside = ~null & ((at < 0) | (at >= size))
    return np.where(null | outside, size, at), outside


def not_utf8(array: pa.Array, first: int = 0) -> list[int]:
    """Positions of the texts that are not UTF-8: Arrow tells that there is one, so halve."""
    if _is_sound(array):
        return []
    if len(array) == 1:
        return [first]
    half = len(array) // 2
    return not_utf8(array[:half], first) + not_utf8(array[half:], first + half)


def _kept(array: pa.Array, keep: npt.NDArray[np.bool_]) -> pa.Array:
    """Some rows; a dictionary loses the entries that cannot be read, which none of them has."""
    if not pa.types.is_dictionary(array.type):
        return array.filter(pa.array(keep))
    values = array.dictionary
    if is_text(values.type) and (bad := not_utf8(values)):
        good = np.ones(len(values), bool)
        good[bad] = False
        order = pa.array(np.where(good, np.cumsum(good) - 1, 0), mask=~good)
        values = values.filter(pa.array(good)).take(order)
    return pa.DictionaryArray.from_arrays(array.indices.filter(pa.array(keep)), values)


def record_json(columns: Columns, arrays: Sequence[pa.Array], row: int) -> bytes:
    """A row as JSON, for the dead letters."""
    values = {name: _cell(array, row) for name, array in zip(columns, arrays, strict=True)}
    return json.dumps(values, ensure_ascii=False, default=str).encode(errors="replace")


def _cell(array: pa.Array, row: int) -> Any:
    if pa.types.is_dictionary(array.type):
        at, outside = _indices(array.slice(row, 1))
        if outside[0] or at[0] == len(array.dictionary):
            return None
        return _cell(array.dictionary, int(at[0]))
    if is_text(array.type):
        raw = array.slice(row, 1).cast(pa.large_binary())[0].as_py()
        return None if raw is None else raw.decode(errors="replace")
    if pa.types.is_temporal(array.type):  # Python's own times are narrower
        width = pa.int32() if array.type.bit_width == 32 else pa.int64()
        return array.slice(row, 1).view(width)[0].as_py()
    return array[row].as_py()
