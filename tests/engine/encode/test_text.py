"""Text as words: lookups agree with a Python dict, digests depend on the text and key alone."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamveil.engine.encode import text as text_module
from streamveil.engine.encode.text import TextIndex, as_text, keyed_digest, text_words

PROPERTY = settings(max_examples=120)
KEY = bytes(range(32))

# Any text that UTF-8 can hold, with many that differ in their ends, NULs or lengths only.
ANY = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
NEAR = st.text("a\0é", max_size=20)
TEXTS = st.one_of(ANY, NEAR, st.sampled_from(["", "\0", "\0\0", "a" * 8, "a" * 7 + "\0", "x" * 99]))
TYPES = st.sampled_from([pa.string(), pa.large_string()])


def positions(known, asked):
    table = {text: i for i, text in enumerate(known)}
    return [table.get(text, -1) for text in asked]


# ---- TextIndex ------------------------------------------------------------------------------


@PROPERTY
@given(st.lists(TEXTS, unique=True), st.lists(st.none() | TEXTS), TYPES, TYPES, st.data())
@example([], ["", None, "a"], pa.string(), pa.string(), None)
@example([""], ["", "\0", None], pa.large_string(), pa.string(), None)
@example(["a" * 8], ["a" * 9, "a" * 16, "a" * 8 + "\0", "a" * 7], pa.string(), pa.string(), None)
def test_find_equals_a_dict(known, asked, known_type, asked_type, data):
    if data is not None and known:
        asked = asked + data.draw(st.lists(st.sampled_from(known)))
    index = TextIndex(pa.array(known, known_type))
    found = index.find(pa.array(asked, asked_type))
    assert found.dtype == np.int64
    assert found.tolist() == positions(known, asked)


@PROPERTY
@given(
    st.lists(TEXTS, unique=True, max_size=20), st.lists(st.none() | TEXTS, max_size=20), st.data()
)
def test_find_respects_slices_on_both_sides(known, asked, data):
    def cut(texts):
        start = data.draw(st.integers(0, len(texts)))
        return start, data.draw(st.integers(start, len(texts)))

    (a, b), (c, d) = cut(known), cut(asked)
    index = TextIndex(pa.array(known, pa.string())[a:b])
    found = index.find(pa.array(asked, pa.string())[c:d])
    assert found.tolist() == positions(known[a:b], asked[c:d])


@PROPERTY
@given(
    st.lists(TEXTS, unique=True, max_size=20),
    st.lists(TEXTS, unique=True, max_size=8),
    st.lists(st.none() | st.integers(0, 7), max_size=30),
    st.data(),
)
def test_find_through_a_dictionary(known, values, indices, data):
    values = values + data.draw(st.lists(st.sampled_from(known), unique=True)) if known else values
    indices = [None if not values or i is None else i % len(values) for i in indices]
    start = data.draw(st.integers(0, len(indices)))
    asked = pa.DictionaryArray.from_arrays(
        pa.array(indices, pa.int8()), pa.array(values, pa.string())
    )[start:]
    expected = [None if i is None else values[i] for i in indices[start:]]
    assert TextIndex(known).find(asked).tolist() == positions(known, expected)


# A dictionary may hold a null value besides null indices: both are nobody.
def test_null_in_the_dictionary_itself_is_not_found():
    asked = pa.DictionaryArray.from_arrays(pa.array([1, 0, None, 1]), pa.array(["a", None]))
    assert TextIndex(["", "a"]).find(asked).tolist() == [-1, 1, -1, -1]


@pytest.mark.parametrize(
    "index_type", [pa.int8(), pa.uint8(), pa.int16(), pa.uint32(), pa.int64(), pa.uint64()]
)
def test_every_index_type_of_a_dictionary_is_read(index_type):
    indices = pa.array([0, None, 1, 127 % 2], index_type)
    asked = pa.DictionaryArray.from_arrays(indices, pa.array(["b", "a"]))
    assert TextIndex(["a", "b"]).find(asked).tolist() == [1, -1, 0, 0]


# The null's place is one past the dictionary: a full int8 dictionary leaves no such index.
def test_null_index_into_a_dictionary_that_fills_its_index_type():
    values = [f"v{i}" for i in range(128)]
    indices = pa.array([*range(128), None], pa.int8())
    asked = pa.DictionaryArray.from_arrays(indices, pa.array(values))
    assert TextIndex(values).find(asked).tolist() == [*range(128), -1]


def test_nulls_are_no_empty_text():
    index = TextIndex(["", "a"])
    assert index.find(pa.array(["", None, "a"])).tolist() == [0, -1, 1]
    assert index.find(pa.array([None, None], pa.string())).tolist() == [-1, -1]


# A null slot may cover bytes; they must not be read as a text.
def test_bytes_under_a_null_do_not_count():
    texts = pa.array(["a", "b"])
    validity = pa.py_buffer(bytes([0b01]))
    hidden = pa.StringArray.from_buffers(2, *texts.buffers()[1:], validity)
    assert hidden.to_pylist() == ["a", None]
    assert TextIndex(["b", "a"]).find(hidden).tolist() == [1, -1]


def test_chunks_and_plain_lists_make_an_index():
    chunks = pa.chunked_array([["a"], [], ["b", "c"]], pa.string())
    for texts in (chunks, ["a", "b", "c"]):
        found = TextIndex(texts.combine_chunks() if texts is chunks else texts)
        assert found.find(pa.array(["c", "b", "x"])).tolist() == [2, 1, -1]


# Far more texts than cells of the smallest table, and far more queries than texts.
def test_large_index_and_large_query():
    known = [f"user{i}" for i in range(20_000)]
    index = TextIndex(known)
    assert index.find(pa.array(known[::-1])).tolist() == list(range(20_000))[::-1]
    assert index.find(pa.array(["user7", "user", "user20000"])).tolist() == [7, -1, -1]
    asked = np.arange(50_000) % 25_000
    found = index.find(pa.array([f"user{i}" for i in asked]))
    np.testing.assert_array_equal(found, np.where(asked < 20_000, asked, -1))


def test_words_mark_the_end_of_a_text():
    texts = ["", "a", "\0", "eight by", "nine byte"]
    first, second = (column.tolist() for column in text_words(pa.array(texts)))
    eight = int.from_bytes(b"eight by", "little")
    assert first == [0x80, 0x8061, 0x8000, eight, int.from_bytes(b"nine byt", "little")]
    assert second == [0, 0, 0, 0x80, 0x8065]
    assert [column.tolist() for column in text_words(pa.array([], pa.string()))] == [[]]


# A file may hold bytes that are no UTF-8: a text that ends in the end mark's byte is another text.
def test_the_end_mark_is_not_mistaken_for_text():
    texts = [b"a", b"a\x80", b"a\x80" + bytes(6), b"a\x80" + bytes(6) + b"b"]
    array = pa.array(texts, pa.binary()).view(pa.string())
    for known in range(1, 4):
        found = TextIndex(array[:known]).find(array).tolist()
        assert found == [*range(known), *[-1] * (4 - known)]


# ---- keyed_digest ---------------------------------------------------------------------------


def digests(texts, key=KEY, kind=None):
    return [tuple(row) for row in keyed_digest(pa.array(texts, kind or pa.string()), key).tolist()]


@PROPERTY
@given(st.lists(TEXTS, unique=True, min_size=1, max_size=30), st.data())
def test_digest_is_distinct_and_a_function_of_the_text_alone(texts, data):
    whole = digests(texts)
    assert len(set(whole)) == len(texts)
    # Alone, in a slice, in another type or next to longer texts: always the same.
    i = data.draw(st.integers(0, len(texts) - 1))
    assert digests([texts[i]]) == [whole[i]]
    assert digests([texts[i], "long" * 50], kind=pa.large_string())[0] == whole[i]
    sliced = keyed_digest(pa.array(texts, pa.string())[i:], KEY)
    assert [tuple(row) for row in sliced.tolist()] == whole[i:]


def test_digest_depends_on_the_key_and_has_128_random_bits():
    texts = [f"{i}" for i in range(3000)]
    mine, other = (
        np.array(digests(texts), np.uint64),
        np.array(digests(texts, bytes(32)), np.uint64),
    )
    assert not (mine == other).any()
    bits = np.unpackbits(mine.view(np.uint8).reshape(3000, 16), axis=1).mean(axis=0)
    assert bits.shape == (128,)
    # Deterministic, and far looser than six standard deviations of a fair bit.
    assert (abs(bits - 0.5) < 0.06).all()


def test_digest_of_no_text_and_of_empty_text():
    assert keyed_digest(pa.array([], pa.string()), KEY).shape == (0, 2)
    assert len(set(digests(["", "\0", "\0" * 8, "\0" * 9]))) == 4
    assert digests([""]) == digests(["", "x" * 100])[:1]


# ---- as_text --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "array",
    [
        pa.array([-1, 0, None, 7], pa.int8()),
        pa.array([-1, 0, None, 7], pa.int64()),
        pa.array(["-1", "0", None, "7"]),
        pa.array(["-1", "0", None, "7"], pa.large_string()),
        pa.array(["-1", "0", None, "7"], pa.string_view()),
        pa.array(["-1", "0", None, "7"]).dictionary_encode(),
        pa.array([-1, 0, None, 7], pa.int32()).dictionary_encode(),
    ],
    ids=lambda array: str(array.type),
)
def test_as_text_is_canonical(array):
    text = as_text(array)
    assert text.to_pylist() == ["-1", "0", None, "7"]
    assert pa.types.is_dictionary(text.type) == pa.types.is_dictionary(array.type)
    assert TextIndex(["7", "-1"]).find(text).tolist() == [1, -1, -1, 0]


def test_as_text_of_extreme_numbers_and_of_nothing():
    assert as_text(pa.array([2**64 - 1], pa.uint64())).to_pylist() == [str(2**64 - 1)]
    assert as_text(pa.array([-(2**63)], pa.int64())).to_pylist() == [str(-(2**63))]
    assert as_text(pa.nulls(2)).to_pylist() == [None, None]
    assert TextIndex(["a"]).find(as_text(pa.nulls(2))).tolist() == [-1, -1]


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1.0]),
        pa.array([b"a"]),
        pa.array([[1]]),
        pa.array([1], pa.timestamp("s")),
        pa.array([1.5]).dictionary_encode(),
    ],
    ids=lambda array: str(array.type),
)
def test_as_text_refuses_what_is_no_id(array):
    assert as_text(array) is None


# ---- one long text among others ---------------------------------------------------------------


def test_how_a_text_is_digested_does_not_hang_on_the_way(monkeypatch):
    texts = ["", "a", "é" * 127, "x" * 255, "x" * 256, "x" * 257, "y" * 263, "z\0" * 3_000]
    apart = digests(texts)
    assert [digests([text])[0] for text in texts] == apart
    monkeypatch.setattr(text_module, "_LONG", 1 << 30)  # all of them column by column
    assert digests(texts) == apart


# One text of a million bytes gave every other one as many columns: 58 seconds for ten thousand.
def test_a_long_text_makes_no_columns_for_others(monkeypatch):
    texts = pa.array(["a", "b" * 1_000_000, "c", None])
    most = []

    def counted(array):
        most.append(len(words := text_words(array)))
        return words

    monkeypatch.setattr(text_module, "text_words", counted)
    assert TextIndex(["c", "a"]).find(texts).tolist() == [1, -1, 0, -1]
    assert len(digests(["a", "b" * 1_000_000])) == 2
    assert max(most) == 1
