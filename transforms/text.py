"""Text columns as integers, exactly and without a Python object per row.

An Arrow text array becomes 64-bit words: the bytes of each text, eight at a time, and its length.
Two texts are equal if and only if their words are.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.mechanisms.noise import RandomWords

Words = npt.NDArray[np.uint64]

_BYTE_MASKS = np.array([(1 << (8 * n)) - 1 for n in range(9)], dtype=np.uint64)


def as_text(array: pa.Array) -> pa.Array | None:
    """Canonical text of an id column: text as it is, whole numbers in decimal; else None.

    A dictionary stays a dictionary of such text, so that each distinct value is looked at once.
    """
    kind = array.type
    if pa.types.is_dictionary(kind):
        values = as_text(array.dictionary)
        return None if values is None else pa.DictionaryArray.from_arrays(array.indices, values)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return array
    if pa.types.is_integer(kind) or pa.types.is_null(kind):
        return array.cast(pa.string())
    if pa.types.is_string_view(kind):
        return array.cast(pa.large_string())
    return None


def text_words(array: pa.Array) -> list[Words]:
    """Words of a text array without nulls: column 0 the length in bytes, then its bytes.

    As many columns as the longest text needs, uint64, each of shape (len(array),).
    """
    wide = pa.types.is_large_string(array.type)
    _, offset_buffer, data = array.buffers()
    ends = np.frombuffer(
        offset_buffer,
        np.int64 if wide else np.int32,
        len(array) + 1,
        array.offset * (8 if wide else 4),
    ).astype(np.int64)
    starts, lengths = ends[:-1], np.diff(ends)
    columns = [lengths.astype(np.uint64)]
    if not len(array) or not lengths.max():
        return columns
    # Every text may be read eight bytes at a time, the last one past its end.
    padded = np.zeros(ends[-1] - ends[0] + 8, dtype=np.uint8)
    padded[:-8] = np.frombuffer(data, np.uint8, ends[-1] - ends[0], ends[0])
    starts = starts - ends[0]
    at = np.ndarray(padded.size - 7, np.dtype("<u8"), padded, strides=(1,))
    for done in range(0, int(lengths.max()), 8):
        left = np.clip(lengths - done, 0, 8)
        columns.append(at[np.where(left > 0, starts + done, 0)] & _BYTE_MASKS[left])
    return columns


class TextIndex:
    """Finds the position of a text in a list of distinct texts: an open-addressing hash table.

    Arrow can do the same (`index_in`), but builds its table anew for every batch.
    """

    def __init__(self, texts: Sequence[str] | pa.Array) -> None:
        array = texts if isinstance(texts, pa.Array) else pa.array(texts, pa.large_string())
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
        self._words = text_words(array)
        # The multipliers only spread the texts over the table: they never show in a result.
        self._multipliers = np.frombuffer(secrets.token_bytes(8 * 16), np.uint64) | np.uint64(1)
        self._mask = np.uint64((1 << max(4, (2 * len(array)).bit_length())) - 1)
        self._table = self._build(len(array))

    def _build(self, size: int) -> npt.NDArray[np.int32]:
        table = np.full(int(self._mask) + 1, -1, dtype=np.int32)
        place = self._hash(self._words)
        waiting = np.arange(size, dtype=np.int32)
        while waiting.size:
            free = table[place] < 0
            table[place[free]] = waiting[free]  # of several for one place, one stays
            lost = table[place] != waiting
            waiting, place = waiting[lost], (place[lost] + np.uint64(1)) & self._mask
        return table

    def _hash(self, words: list[Words]) -> Words:
        # A word of 0 adds 0: how far the longest text of a batch reaches must not matter.
        mixed = words[0] * self._multipliers[0]
        for i, word in enumerate(words[1:], 1):
            term = word * self._multipliers[i % len(self._multipliers)]
            term ^= term >> np.uint64(29)
            term *= self._multipliers[0]
            mixed += term
        return (mixed >> np.uint64(32)) & self._mask

    def find(self, array: pa.Array) -> npt.NDArray[np.int64]:
        """Position of each text of `array` (text, or a dictionary of it), -1 if not there.

        int64, shape (len(array),); a null is -1.
        """
        if pa.types.is_dictionary(array.type):
            found = np.append(self.find(array.dictionary), -1)
            indices = array.indices
            if indices.null_count:
                indices = indices.fill_null(len(array.dictionary))
            return found[indices.to_numpy(zero_copy_only=False)]
        if array.null_count:
            found = self.find(pc.fill_null(array, ""))
            found[array.is_null().to_numpy(zero_copy_only=False)] = -1
            return found
        return self._find_words(text_words(array), len(array))

    def _find_words(self, words: list[Words], size: int) -> npt.NDArray[np.int64]:
        found = np.full(size, -1, dtype=np.int64)
        place = self._hash(words)
        asking = np.arange(size)
        while asking.size:
            candidate = self._table[place]
            some = candidate >= 0
            if not some.all():
                asking, place, candidate = asking[some], place[some], candidate[some]
            equal = np.ones(asking.size, dtype=bool)
            # Where one side has no more words, the other is longer: column 0 told them apart.
            for mine, theirs in zip(words, self._words, strict=False):
                equal &= theirs[candidate] == (mine if asking.size == size else mine[asking])
            found[asking[equal]] = candidate[equal]
            asking, place = asking[~equal], (place[~equal] + np.uint64(1)) & self._mask
        return found


def keyed_digest(array: pa.Array, key: bytes) -> Words:
    """128-bit keyed digest of each text, without nulls: uint64, shape (len(array), 2).

    Multilinear hashing over 32-bit halves, four times 32 bits: for a random key, two different
    texts agree with probability 2**-128.
    """
    words = text_words(array)
    keys = RandomWords(key).draw(4 * (2 * len(words) + 1)).reshape(-1, 4)
    sums = [np.full(len(array), keys[0, lane], dtype=np.uint64) for lane in range(4)]
    for i, word in enumerate(words):
        low, high = word & np.uint64(0xFFFFFFFF), word >> np.uint64(32)
        for lane in range(4):
            sums[lane] += low * keys[2 * i + 1, lane] + high * keys[2 * i + 2, lane]
    top = np.uint64(32)
    return np.stack([sums[2 * i] >> top << top | sums[2 * i + 1] >> top for i in (0, 1)], axis=1)
