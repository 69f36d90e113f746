"""Columns of text and of user ids as integers, exactly and without a Python object per row.

An Arrow text array becomes 64-bit words: the bytes of each text and one end mark, eight at a time,
then zeros. Two texts are equal if and only if their words are.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.randomness.noise import RandomWords

NULL_USER = "null user"

Words = npt.NDArray[np.uint64]

# By the number of bytes left of a text, from none after the end mark (at -1, so last) to 8.
_BYTE_MASKS = np.array([(1 << (8 * n)) - 1 for n in range(9)] + [0], dtype=np.uint64)
_NO_WORD = np.uint64(0)
_LOW = np.uint64(0xFFFFFFFF)
_LANES = 4
_LONG = 256  # bytes of a text from which on it is digested by itself
_END_MARKS = np.array([0x80 << (8 * n) for n in range(8)] + [0, 0], dtype=np.uint64)


def as_text(array: pa.Array) -> pa.Array | None:
    """Canonical text of a column: text as it is, whole numbers in decimal, booleans; else None.

    A dictionary stays a dictionary of such text, so that each distinct value is looked at once.
    """
    kind = array.type
    if pa.types.is_dictionary(kind):
        values = as_text(array.dictionary)
        if values is array.dictionary:
            return array
        return None if values is None else pa.DictionaryArray.from_arrays(array.indices, values)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return array
    if pa.types.is_integer(kind) or pa.types.is_null(kind) or pa.types.is_boolean(kind):
        return array.cast(pa.string())
    if pa.types.is_string_view(kind):
        return array.cast(pa.large_string())
    return None


def text_words(array: pa.Array) -> list[Words]:
    """Words of a text array without nulls, as many columns as the longest text needs.

    Each uint64, of shape (len(array),); a shorter text has zeros in the columns after its end.
    """
    offset_type = np.dtype(np.int64 if pa.types.is_large_string(array.type) else np.int32)
    _, offset_buffer, data = array.buffers()
    skipped = array.offset * offset_type.itemsize
    ends = np.frombuffer(offset_buffer, offset_type, len(array) + 1, skipped).astype(np.int64)
    size = int(ends[-1] - ends[0])
    # Every text may be read eight bytes at a time, the last word past its end.
    padded = np.zeros(size + 8, dtype=np.uint8)
    if size:
        padded[:-8] = np.frombuffer(data, np.uint8, size, ends[0])
    at = np.ndarray(size + 1, np.dtype("<u8"), padded, strides=(1,))
    starts, lengths = ends[:-1] - ends[0], np.diff(ends)
    columns = []
    for done in range(0, int(lengths.max(initial=0)) + 1, 8):
        left = np.clip(lengths - done, -1, 8)
        columns.append(at[np.minimum(starts + done, size)] & _BYTE_MASKS[left] | _END_MARKS[left])
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
        self._longest = pc.max(pc.binary_length(array)).as_py() or 0
        # The multipliers only spread the texts over the table: they never show in a result.
        self._multipliers = np.frombuffer(secrets.token_bytes(8 * 16), np.uint64) | np.uint64(1)
        self._mask = np.int64((1 << max(4, (4 * len(array)).bit_length())) - 1)
        table = np.full(int(self._mask) + 1, -1, dtype=np.int32)
        place = self._hash(self._words)
        waiting = np.arange(len(array), dtype=np.int32)
        while waiting.size:
            free = table[place] < 0
            table[place[free]] = waiting[free]  # of several for one place, one stays
            lost = table[place] != waiting
            waiting, place = waiting[lost], (place[lost] + 1) & self._mask
        self._table = table

    def _hash(self, words: list[Words]) -> npt.NDArray[np.int64]:
        # A word of 0 adds 0: how far the longest text of a batch reaches must not matter.
        mixed = np.zeros_like(words[0])
        for i, word in enumerate(words, 1):
            term = word * self._multipliers[i % len(self._multipliers)]
            term ^= term >> np.uint64(29)
            term *= self._multipliers[0]
            mixed += term
        return (mixed >> np.uint64(32)).view(np.int64) & self._mask

    def find(self, array: pa.Array) -> npt.NDArray[np.int64]:
        """Position of each text of `array` (text, or a dictionary of it), -1 if not there.

        int64, shape (len(array),); a null is -1.
        """
        if pa.types.is_dictionary(array.type):
            indices = array.indices.fill_null(0) if array.indices.null_count else array.indices
            known = self.find(array.dictionary)
            if not len(known):
                return np.full(len(array), -1, dtype=np.int64)
            at = indices.to_numpy(zero_copy_only=False)
            found: npt.NDArray[np.int64] = known.take(at.astype(np.int64, copy=False))
            if array.null_count:
                found[array.is_null().to_numpy(zero_copy_only=False)] = -1
            return found
        found = np.full(len(array), -1, dtype=np.int64)
        # Texts that are too long are not there, and as words they would cost all others.
        looked_up = ~longer(array, self._longest)
        if array.null_count:
            looked_up &= array.is_valid().to_numpy(zero_copy_only=False)
        if not looked_up.all():
            found[looked_up] = self.find(array.filter(pa.array(looked_up)))
            return found
        words = text_words(array)
        place, asking = self._hash(words), np.arange(len(array))
        while asking.size:
            candidate = self._table.take(place)
            some = candidate >= 0
            if not some.all():
                asking, place, candidate = asking[some], place[some], candidate[some]
            equal, all_ask = np.ones(asking.size, dtype=bool), asking.size == len(array)
            for mine, theirs in itertools.zip_longest(words, self._words):
                # The side with fewer columns has zeros from there on.
                mine = _NO_WORD if mine is None else mine if all_ask else mine[asking]
                equal &= mine == (_NO_WORD if theirs is None else theirs.take(candidate))
            found[asking[equal]] = candidate[equal]
            missed = np.flatnonzero(~equal)
            asking, place = asking[missed], (place[missed] + 1) & self._mask
        return found


def longer(array: pa.Array, limit: int) -> npt.NDArray[np.bool_]:
    """Which texts have more bytes than that; shape (len(array),), False for a null."""
    return pc.fill_null(pc.greater(pc.binary_length(array), limit), False).to_numpy(
        zero_copy_only=False
    )


def keyed_digest(array: pa.Array, key: bytes) -> Words:
    """128-bit keyed digest of each text, without nulls: uint64, shape (len(array), 2).

    Multilinear hashing over 32-bit halves, four times 32 bits: for a random key, two different
    texts agree with probability 2**-128.
    """
    long = longer(array, _LONG)
    sums = np.empty((len(array), _LANES), np.uint64)
    sums[~long] = _sums(text_words(array.filter(pa.array(~long)) if long.any() else array), key)
    for row in np.flatnonzero(long).tolist():
        sums[row] = _sums_of_one(array[row].as_buffer().to_pybytes(), key)
    top = np.uint64(32)
    return np.stack(
        [sums[:, 2 * i] >> top << top | sums[:, 2 * i + 1] >> top for i in (0, 1)], axis=1
    )


def _keys(words: int, key: bytes) -> Words:
    """A number to begin with, and one for each half of a word, for each lane."""
    return RandomWords(key).draw(_LANES * (2 * words + 1)).reshape(-1, _LANES)


def _sums(words: list[Words], key: bytes) -> Words:
    """Sums of texts of about the same length, column by column: shape (n, _LANES)."""
    keys = _keys(len(words), key)
    sums = [np.full(len(words[0]), keys[0, lane], dtype=np.uint64) for lane in range(_LANES)]
    for i, word in enumerate(words):
        low, high = word & _LOW, word >> np.uint64(32)
        for lane in range(_LANES):
            sums[lane] += low * keys[2 * i + 1, lane] + high * keys[2 * i + 2, lane]
    return np.stack(sums, axis=1)


def _sums_of_one(text: bytes, key: bytes) -> Words:
    """The same of one text, all of its words at once: shape (_LANES,)."""
    marked = text + b"\x80"
    words = np.frombuffer(marked.ljust(-(-len(marked) // 8) * 8, b"\0"), "<u8")
    keys = _keys(len(words), key)
    halves = np.stack([words & _LOW, words >> np.uint64(32)], axis=1).reshape(-1, 1)
    total: Words = keys[0] + (halves * keys[1:]).sum(axis=0, dtype=np.uint64)
    return total


def user_texts(array: pa.Array, name: str) -> pa.Array:
    """User ids as text. Raises ConfigurationError for neither text nor whole numbers."""
    text = None if pa.types.is_boolean(array.type) else as_text(array)
    if text is None:
        raise ConfigurationError(
            f"column {name!r} holds {array.type}; user ids must be text or whole numbers: "
            f"convert the column{if_of_pandas(array)}"
        )
    return text


def if_of_pandas(array: pa.Array) -> str:
    """How to convert whole numbers that pandas makes fractions where one is missing."""
    floats = pa.types.is_floating(array.type)
    return " (whole numbers of pandas, one of them missing, by .astype('Int64'))" if floats else ""


def find_users(
    text: pa.Array, registered: TextIndex, stranger_key: bytes
) -> tuple[Integers, Words, Integers]:
    """Registry position of each row's user or -1, digests of those, and rows without user.

    Args:
        text: ids as text.
        registered: index of the registry's users.
        stranger_key: secret of the digests, 32 bytes.
    """
    members = registered.find(text)
    unknown = np.flatnonzero(members < 0)
    if not len(unknown):
        return members, np.zeros((0, 2), np.uint64), unknown
    names = text.take(pa.array(unknown))
    if pa.types.is_dictionary(names.type):
        names = names.dictionary_decode()
    names = pc.fill_null(names, "")
    nameless = unknown[pc.equal(names, "").to_numpy(zero_copy_only=False)]
    return members, keyed_digest(names, stranger_key), nameless
