"""What travels between workers comes back as it was, in as few bytes as it needs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from streamveil.transforms.counting.event_codes import BlockCounts
from streamveil.transforms.messages import (
    array_from_bytes,
    array_to_bytes,
    block_of,
    compressed,
    counts_from_bytes,
    counts_to_bytes,
    expanded,
)

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
@given(CELLS, st.integers(-(2**62), 2**62), st.integers(0, 2**40))
def test_counts_round_trip(cells, block, dropped):
    places, numbers = np.array(cells, np.int64).reshape(-1, 2).T
    data = counts_to_bytes(BlockCounts(block, places, numbers, dropped))
    back = counts_from_bytes(data)
    assert (back.block, back.dropped) == (block, dropped) == (block_of(data), dropped)
    assert back.cells.dtype == back.counts.dtype == np.int64
    assert back.cells.tolist() == places.tolist()
    assert back.counts.tolist() == numbers.tolist()


def test_counts_of_an_empty_block_round_trip():
    data = counts_to_bytes(BlockCounts.empty(-7))
    back = counts_from_bytes(data)
    assert (back.block, back.cells.size, back.counts.size, back.dropped) == (-7, 0, 0, 0)
    assert back.cells.dtype == np.int64
    assert block_of(data) == -7


# The narrowest type that holds the largest number, on both sides of each boundary.
@pytest.mark.parametrize(
    ("largest", "width"),
    [(255, 1), (256, 2), (65_535, 2), (65_536, 4), (2**32 - 1, 4), (2**32, 8)],
)
def test_counts_travel_in_the_narrowest_type(largest, width):
    number = 1000

    def size(cells, counts):
        return len(counts_to_bytes(BlockCounts(0, cells, counts, 0)))

    ones = np.ones(number, np.int64)
    small = size(ones, ones)
    assert size(np.full(number, largest), ones) - small == number * (width - 1)
    assert size(ones, np.full(number, largest)) - small == number * (width - 1)


@PROPERTY
@given(st.binary())
def test_what_is_compressed_expands(data):
    assert expanded(compressed(data)) == data
