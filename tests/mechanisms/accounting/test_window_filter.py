"""The filter against a brute-force sum over every window."""

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms import BudgetExceeded, ConfigurationError, Requirement, WindowFilter

PROPERTY = settings(max_examples=150)


def of_units(window: int, units: int) -> Requirement:
    return Requirement(window, math.ldexp(units, -40))


def amounts(*units: int) -> np.ndarray:
    return np.array(units, dtype=np.int64)


def overflows(booked, row, requirements, caps) -> bool:
    """Whether any window that ends with `row` would exceed its cap."""
    for k, requirement in enumerate(requirements):
        recent = [old[k] for old in booked[max(0, len(booked) - requirement.window + 1) :]]
        if sum(recent) + row[k] > caps[k]:
            return True
    return False


@st.composite
def ledgers(draw):
    """Small windows and budgets of a few units, spent against until they overflow."""
    caps = draw(st.lists(st.integers(1, 60), min_size=1, max_size=4))
    requirements = [of_units(draw(st.integers(1, 8)), cap) for cap in caps]
    row = st.lists(st.integers(0, 25), min_size=len(caps), max_size=len(caps))
    return requirements, caps, draw(st.lists(row, min_size=1, max_size=40))


# A slot is refused exactly when some window would overflow. A refusal changes nothing: the next
# amounts are judged as if it had not been asked.
@PROPERTY
@given(ledgers(), st.data())
def test_against_brute_force(ledger, data):
    requirements, caps, rows = ledger
    books = WindowFilter(requirements)
    booked = []
    for row in rows:
        if overflows(booked, row, requirements, caps):
            before = books.encode()
            with pytest.raises(BudgetExceeded):
                books.charge(amounts(*row))
            assert books.encode() == before
        else:
            books.charge(amounts(*row))
            booked.append(row)
        if data.draw(st.booleans()):
            books = WindowFilter.decode(books.encode(), requirements)
    for k, requirement in enumerate(requirements):
        recent = [row[k] for row in booked[-requirement.window :]]
        assert books.in_window[k] == sum(recent)
    assert books.slots == len(booked)


# A state that was written and read is the same state: bytes, sums and what is left.
@PROPERTY
@given(ledgers())
def test_state_bytes_round_trip(ledger):
    requirements, caps, rows = ledger
    books = WindowFilter(requirements)
    booked = []
    for row in rows:
        data = books.encode()
        read = WindowFilter.decode(data, requirements)
        assert read.encode() == data
        np.testing.assert_array_equal(read.in_window, books.in_window)
        np.testing.assert_array_equal(read.ring, books.ring)
        if not overflows(booked, row, requirements, caps):
            books.charge(amounts(*row))
            booked.append(row)


# The message says for whom, and requested, remaining and difference add up.
def test_refusal_names_the_numbers():
    books = WindowFilter([Requirement(10, 4.0), Requirement(3, 1.0)])
    books.charge(amounts(2**40, 2**39))
    with pytest.raises(BudgetExceeded) as refused:
        books.charge(amounts(2**40, 3 * 2**38))
    message = str(refused.value)
    assert "Requirement(window=3, epsilon=1.0)" in message
    numbers = re.search(r"requested (\S+) epsilon, remaining (\S+) in .*difference (\S+)", message)
    assert [float(number) for number in numbers.groups()] == [0.75, 0.5, 0.25]


# One unit is enough to be refused, and the exact budget is not.
def test_last_unit():
    books = WindowFilter([Requirement(2, 4096.0)])
    books.charge(amounts(2**52 - 1))
    with pytest.raises(BudgetExceeded):
        books.charge(amounts(2))
    books.charge(amounts(1))
    with pytest.raises(BudgetExceeded):
        books.charge(amounts(2**52))
    books.charge(amounts(2**52 - 1))


# No amount is too large to be refused: sums do not wrap around.
@pytest.mark.parametrize("spent", [0, 1, 2**39])
def test_largest_amount_is_refused(spent):
    books = WindowFilter([Requirement(5, 1.0)])
    books.charge(amounts(spent))
    with pytest.raises(BudgetExceeded):
        books.charge(amounts(2**63 - 1))


# A window longer than the stream counts all of it, before and after the state is written.
def test_window_longer_than_the_stream():
    books = WindowFilter([of_units(1000, 10), of_units(2, 10)])
    for _ in range(5):
        books.charge(amounts(2, 5))
        books = WindowFilter.decode(books.encode(), books.requirements)
    with pytest.raises(BudgetExceeded, match="window=1000"):
        books.charge(amounts(1, 0))
    books.charge(amounts(0, 5))


@pytest.mark.parametrize(
    "row",
    [
        np.array([1, -1], dtype=np.int64),
        np.array([1.0, 0.0]),
        np.array([1, 0], dtype=np.int32),
        np.array([1, 0], dtype=np.uint64),
        np.array([True, False]),
        np.array([1], dtype=np.int64),
        np.array([[1, 0]], dtype=np.int64),
        np.array(1, dtype=np.int64),
    ],
)
def test_what_is_no_amount_is_refused(row):
    books = WindowFilter([Requirement(2, 1.0), Requirement(3, 1.0)])
    with pytest.raises(ValueError, match="2 int64 amounts, none negative"):
        books.charge(row)
    assert books.slots == 0
    assert not books.ring.any()


def test_unknown_version_is_refused():
    requirements = [Requirement(2, 1.0)]
    data = WindowFilter(requirements).encode()
    with pytest.raises(ValueError, match="version 77"):
        WindowFilter.decode(b"\x4d" + data[1:], requirements)


# A history that would not fit is refused when the filter is made, not when memory is gone.
def test_too_much_history_is_refused():
    with pytest.raises(ConfigurationError, match="use longer slots"):
        WindowFilter([of_units(2**20, k + 1) for k in range(33)])


def test_largest_use():
    books = WindowFilter([Requirement(2, 1.0), Requirement(4, 2.0)])
    books.charge(amounts(2**38, 2**40))
    assert books.use() == 0.5
    books.charge(amounts(2**38 + 2**39, 0))
    assert books.use() == 1.0


def test_state_of_other_classes_is_refused():
    books = WindowFilter([Requirement(2, 1.0), Requirement(3, 1.0)])
    books.charge(np.ones(2, np.int64))
    with pytest.raises(
        ConfigurationError, match=r"for 2 classes of users, not 1: .*start a new stream"
    ):
        WindowFilter.decode(books.encode(), [Requirement(2, 1.0)])


@pytest.mark.parametrize("window", [2, 4])
def test_state_of_another_window_is_refused(window):
    """A longer one would take what is not remembered for nothing spent."""
    books = WindowFilter([Requirement(3, 1.0)])
    for _ in range(5):
        books.charge(amounts(2**38))
    with pytest.raises(ConfigurationError, match=rf"3 slots of spending, not {window}"):
        WindowFilter.decode(books.encode(), [Requirement(window, 1.0)])


# Under less than was spent already, nothing is spent until the window has room again.
def test_under_other_epsilons():
    ledger = WindowFilter([of_units(3, 10), of_units(2, 4)])
    ledger.charge(amounts(8, 1))
    less = ledger.under([of_units(3, 5), of_units(2, 4)])
    with pytest.raises(BudgetExceeded):
        less.charge(amounts(1, 0))
    less.charge(amounts(0, 3))
    less.charge(amounts(0, 1))
    less.charge(amounts(5, 3))
    with pytest.raises(BudgetExceeded):
        less.charge(amounts(1, 0))
    again = WindowFilter.decode(less.encode(), less.requirements)
    assert again.in_window.tolist() == less.in_window.tolist() == [5, 4]
