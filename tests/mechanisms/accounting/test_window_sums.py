"""Sliding sums of several lengths against sums that are added up anew."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms import ConfigurationError
from streamveil.mechanisms.accounting.window_sums import WindowSums

PROPERTY = settings(max_examples=150)
WINDOWS = st.lists(st.integers(1, 20), min_size=1, max_size=5)


def amounts_of(seed, slots, classes) -> np.ndarray:
    """Amounts with runs of equal rows, up to the largest budget there is."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 1 << 52, (slots, classes)) >> rng.integers(0, 52, (slots, 1))
    rows[rng.random(slots) < 0.3] = 0
    return np.repeat(rows, 1 + rng.integers(0, 3, slots), axis=0)[:slots]


def left(amounts, slot, window) -> int:
    """What was spent in the window - 1 slots before this one, from Python's integers."""
    return sum(int(one) for one in amounts[max(0, slot - window + 1) : slot])


# What counts for the next slot is what the w - 1 slots before it spent, for every class and slot.
@PROPERTY
@given(WINDOWS, st.integers(0, 70), st.integers(0, 2**32))
def test_sums_are_those_of_a_window(windows, slots, seed):
    sums_of = WindowSums(np.array(windows))
    amounts, sums = amounts_of(seed, slots, len(windows)), sums_of.start()
    for slot in range(slots + 1):
        for k, window in enumerate(windows):
            assert sums.recent[k] == left(amounts[:, k], slot, window)
        if slot < slots:
            sums = sums_of.add(sums, amounts[slot])
            assert sums.slots == slot + 1


# Whoever spends what a window has left, in every slot, spends the cap exactly and never more.
@PROPERTY
@given(WINDOWS, st.integers(0, 2**32))
def test_a_cap_that_is_asked_for_is_kept(windows, seed):
    rng = np.random.default_rng(seed)
    caps = rng.integers(1, 1 << 52, len(windows))
    sums_of = WindowSums(np.array(windows))
    sums, spent = sums_of.start(), []
    for _ in range(60):
        spent.append(np.where(rng.random(len(windows)) < 0.5, caps - sums.recent, 0))
        assert (spent[-1] >= 0).all()
        sums = sums_of.add(sums, spent[-1])
    table = np.array(spent)
    for k, window in enumerate(windows):
        within = [sum(table[i : i + window, k].tolist()) for i in range(60)]
        assert max(within) <= caps[k]


# A record that was written and read at any slot has the same future.
@PROPERTY
@given(WINDOWS, st.integers(0, 60), st.integers(0, 2**32))
def test_a_record_keeps_the_future(windows, read_at, seed):
    sums_of = WindowSums(np.array(windows))
    amounts = amounts_of(seed, 100, len(windows))
    kept, read = sums_of.start(), sums_of.start()
    for slot in range(100):
        if slot == read_at:
            record = sums_of.record(read)
            read = WindowSums(np.array(windows)).read(record)
            assert sums_of.record(read) == record
        np.testing.assert_array_equal(read.recent, kept.recent)
        kept, read = sums_of.add(kept, amounts[slot]), sums_of.add(read, amounts[slot])


def test_a_record_of_other_classes_is_refused():
    two = WindowSums(np.array([2, 3]))
    record = two.record(two.add(two.start(), np.array([1, 2])))
    with pytest.raises(ConfigurationError, match="for 2 classes of users, not 1"):
        WindowSums(np.array([2])).read(record)


def test_a_record_of_another_window_is_refused():
    three, four = (WindowSums(np.array([window])) for window in (3, 4))
    sums = three.start()
    for _ in range(5):
        sums = three.add(sums, np.array([7]))
    with pytest.raises(ConfigurationError, match="3 slots of spending, not 4"):
        four.read(three.record(sums))
