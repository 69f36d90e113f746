"""What travels between workers comes back as it was, in as few bytes as it needs."""

import numpy as np
import pytest
from apache_beam.coders import registry
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from streamveil.engine.count.event_codes import BlockCounts
from streamveil.engine.messages import (
    Kind,
    Message,
    array_from_bytes,
    array_to_bytes,
    compressed,
    expanded,
)
from streamveil.transforms.on_beam import MessageCoder

PROPERTY = settings(max_examples=120)
TYPES = [np.uint8, np.uint16, np.uint32, np.uint64, np.int64, np.float64]
HEADER = 3  # type, size and dimensions


@PROPERTY
@given(
    hnp.arrays(
        st.sampled_from(TYPES), hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=9)
    )
)
def test_arrays_round_trip(array):
    data = array_to_bytes(array)
    back = array_from_bytes(data)
    assert isinstance(data, bytes)
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(back, array)
    assert len(data) == HEADER + 8 * array.ndim + array.nbytes


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), ()])
def test_empty_arrays_keep_shape_and_type(shape):
    array = np.zeros(shape, np.uint32)
    back = array_from_bytes(array_to_bytes(array))
    assert (back.shape, back.dtype) == (shape, np.uint32)


# Slices, transposed and big-endian arrays are written in order and little-endian.
def test_memory_layout_does_not_matter():
    array = np.arange(24, dtype=np.uint64).reshape(4, 6)
    for view in (
        array[::2, 1::2],
        array.T,
        array[::-1],
        array.astype(">u8"),
        np.asfortranarray(array),
    ):
        back = array_from_bytes(array_to_bytes(view))
        np.testing.assert_array_equal(back, view)
        assert back.dtype.newbyteorder("<") == back.dtype
        assert array_to_bytes(back) == array_to_bytes(view)


def test_a_read_array_is_over_the_bytes_and_read_only():
    back = array_from_bytes(array_to_bytes(np.arange(3)))
    with pytest.raises(ValueError, match="read-only"):
        back[0] = 1


CELLS = st.lists(st.tuples(st.integers(0, 2**40), st.integers(1, 2**33)), max_size=20)


@PROPERTY
@given(CELLS, st.integers(-(2**62), 2**62))
def test_counts_round_trip(cells, block):
    places, numbers = np.array(cells, np.int64).reshape(-1, 2).T
    counts = BlockCounts(block, places, numbers)
    back = BlockCounts.of(Message(Kind.COUNTS, block, payload=counts.to_bytes()))
    assert back.block == block
    assert back.cells.dtype == back.counts.dtype == np.int64
    assert back.cells.tolist() == places.tolist()
    assert back.counts.tolist() == numbers.tolist()


NUMBERS = st.integers(0, 2**20)


@PROPERTY
@given(st.sampled_from(Kind), st.integers(-(2**62), 2**62), NUMBERS, st.binary(), NUMBERS)
def test_messages_round_trip(kind, slot, shard, payload, shards):
    message = Message(kind, slot, shard, payload, shards)
    coder = registry.get_coder(tuple[str, Message])
    assert Message.from_bytes(message.to_bytes()) == message
    assert coder.decode(coder.encode(("key", message))) == ("key", message)
    assert registry.get_coder(Message) == MessageCoder()


# State of streams that run holds messages: no byte of them may change.
def test_the_bytes_of_a_message():
    assert {kind.name: int(kind) for kind in Kind} == {
        **{"START": 0, "OPEN": 1, "EVENTS": 2, "COUNTS": 3, "CHANGES": 4, "KEPT": 5, "REPORT": 6},
        **{"PULSE": 7, "WHOLE": 8, "CHOICE": 9, "WAITING": 10, "BOUNDS": 11},
    }
    counts = Message(Kind.COUNTS, -2, 1, b"payload", 3).to_bytes()
    assert counts == bytes.fromhex("03 feffffffffffffff 01000000 03000000") + b"payload"
    whole = Message(Kind.WHOLE, payload=b"12").to_bytes()
    assert whole == bytes.fromhex("08 0000000000000000 00000000 01000000") + b"12"


# The narrowest type that holds the largest number, on both sides of each boundary.
@pytest.mark.parametrize(
    ("largest", "width"),
    [(255, 1), (256, 2), (65_535, 2), (65_536, 4), (2**32 - 1, 4), (2**32, 8)],
)
def test_counts_travel_in_the_narrowest_type(largest, width):
    number = 1000

    def size(cells, counts):
        return len(BlockCounts(0, cells, counts).to_bytes())

    ones = np.ones(number, np.int64)
    small = size(ones, ones)
    assert size(np.full(number, largest), ones) - small == number * (width - 1)
    assert size(ones, np.full(number, largest)) - small == number * (width - 1)


@PROPERTY
@given(st.binary())
def test_what_is_compressed_expands(data):
    assert expanded(compressed(data)) == data
