"""The filter of budgets forever: what was spent never comes back."""

import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms import (
    BudgetExceeded,
    ConfigurationError,
    Lifetime,
    NoiseSource,
    ReleaseStream,
    Requirement,
    WindowFilter,
    infinite_mechanism,
)
from streamveil.mechanisms.core.budgets import to_units

KEY = bytes(range(32))


def units(*values):
    return np.array(values, dtype=np.int64)


@given(
    epsilon=st.floats(1e-9, 4096, allow_nan=False),
    asked=st.lists(st.floats(0, 1.2), max_size=30),
)
@settings(max_examples=60)
def test_whatever_is_asked_the_sum_stays_within_epsilon(epsilon, asked):
    books = WindowFilter([Lifetime(epsilon)])
    cap, spent = to_units(epsilon), 0
    for part in asked:
        amount = int(part * cap)
        if spent + amount > cap:
            with pytest.raises(BudgetExceeded):
                books.charge(units(amount))
        else:
            books.charge(units(amount))
            spent += amount
        assert int(books.in_window[0]) == spent <= cap
    read = WindowFilter.decode(books.encode(), books.requirements)
    assert (read.in_window.tolist(), read.slots) == (books.in_window.tolist(), books.slots)


def test_the_last_unit_can_be_spent_once():
    books = WindowFilter([Lifetime(1.0), Lifetime(2.0)])
    books.charge(units(1 << 40, (2 << 40) - 1))
    with pytest.raises(BudgetExceeded, match="remaining 0 "):
        books.charge(units(1, 0))
    books.charge(units(0, 1))
    assert books.use() == 1.0
    for _ in range(100):
        books.charge(units(0, 0))
    with pytest.raises(BudgetExceeded):
        books.charge(units(0, 1))


@pytest.mark.parametrize("amounts", [units(-1), units(1, 1), np.array([1.0])])
def test_what_nothing_can_spend_is_refused(amounts):
    with pytest.raises(ValueError, match="none negative"):
        WindowFilter([Lifetime(1.0)]).charge(amounts)


# The state is the same few bytes after many slots.
def test_state_does_not_grow():
    books, one = WindowFilter([Lifetime(1.0)]), units(1)
    for _ in range(20_000):
        books.charge(one)
    assert int(books.in_window[0]) == 20_000
    assert len(books.encode()) < 20


def test_a_life_is_no_window():
    with pytest.raises(ConfigurationError, match="two streams"):
        WindowFilter([Lifetime(1.0), Requirement(5, 1.0)])
    assert Lifetime(1.0) != Requirement(Lifetime(1.0).window, 1.0)
    with pytest.raises(ConfigurationError, match="epsilon"):
        Lifetime(0.0)


def test_a_restart_is_seen_in_the_log_and_in_every_release(caplog):
    stream = ReleaseStream(infinite_mechanism("doubling", 4, 1.0), NoiseSource(KEY))
    counts = np.full((1, 4), 50, dtype=np.int64)
    state, spent, first = stream.start(), 0, []
    for slot in range(8):
        if slot == 4:
            with caplog.at_level(logging.WARNING):
                state = stream.restart(state)
            assert "up to 2 times the epsilon" in caplog.text
            assert state.filter.in_window.tolist() == [0]
        state, release = stream.release(state, slot, counts)
        assert release.diagnostics["restarts"] == (slot >= 4)
        spent += int(release.spent[0])
        if slot in (0, 4):
            first.append(release.counts.tolist())
        state = stream.decode(stream.encode(state))
    assert (1 << 40) < spent <= 2 << 40
    assert first[0] != first[1]  # no noise is used twice


def test_windows_cannot_be_restarted():
    from streamveil.mechanisms import Population, mechanism

    people = Population((Requirement(3, 1.0),), np.array([5]), 2)
    stream = ReleaseStream(mechanism("pba", people), NoiseSource(KEY))
    with pytest.raises(ConfigurationError, match="get their budgets back"):
        stream.restart(stream.start())
