"""The filter of discovery against sums over every window of base slots."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms import BudgetExceeded, ConfigurationError
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.discovery.discovery_filter import DiscoveryFilter
from streamveil.mechanisms.discovery.price import Draw

SCHEMAS = {1: DiscoveryFilter.SCHEMA}


def amounts(*units):
    return np.array(units, np.int64)


def cost(window, start, draw, booked, k):
    """What a window costs a user of class k: epsilon and delta."""
    spent = [0, 0]
    for slot, epsilon, delta in booked:
        slots = range(slot * draw.length, (slot + 1) * draw.length)
        covered = sum(start <= base_slot < start + window for base_slot in slots)
        spent[0] += int(epsilon[k]) * int(draw.changed[covered])
        spent[1] += int(delta[k]) * int(draw.removed[covered])
    return spent


@st.composite
def ledgers(draw):
    length = draw(st.integers(1, 4))
    row = st.tuples(st.integers(1, 9), st.integers(1, 60), st.integers(1, 60))
    classes = draw(st.lists(row, min_size=1, max_size=2))
    draws = [Draw(length, draw(st.integers(1, 2)), draw(st.booleans())) for _ in classes]
    spent = st.lists(st.integers(0, 12), min_size=len(classes), max_size=len(classes))
    steps = st.tuples(st.integers(1, 3), st.booleans(), spent, spent)
    steps = draw(st.lists(steps, max_size=10))
    return classes, draws, steps


@settings(max_examples=200, deadline=None)
@given(ledgers())
def test_a_slot_is_refused_exactly_if_a_window_would_overflow(ledger):
    classes, draws, steps = ledger
    windows, epsilons, deltas = (np.array(one) for one in zip(*classes, strict=True))
    books = DiscoveryFilter(windows, epsilons, deltas, draws)
    booked, slot = [], -2
    for gap, saved, *some in steps:
        slot += gap
        if saved:  # a run ends, and another one resumes
            record = books.record()
            books = DiscoveryFilter(windows, epsilons, deltas, draws)
            books.read(state_codec.unpack(SCHEMAS, state_codec.pack(SCHEMAS, record))[1])
        charge = (slot, *(amounts(*units) for units in some))
        spent = [
            (pair, (epsilons[k], deltas[k]))
            for k, draw in enumerate(draws)
            for start in range(slot * draw.length - 12, (slot + 1) * draw.length + 12)
            for pair in [cost(int(windows[k]), start, draw, [*booked, charge], k)]
        ]
        if any(one > cap for pair, caps in spent for one, cap in zip(pair, caps, strict=True)):
            with pytest.raises(BudgetExceeded):
                books.charge(*charge)
            slot -= gap  # nothing was booked
        else:
            books.charge(*charge)
            booked.append(charge)


@pytest.mark.parametrize("name", ["epsilon", "delta"])
def test_the_error_says_what_was_requested(name):
    one = math.floor(math.ldexp(0.25, 40 if name == "epsilon" else 62))
    cap = amounts(3 * one)
    other = amounts(1 << 50)
    caps = (cap, other) if name == "epsilon" else (other, cap)
    books = DiscoveryFilter(amounts(1), *caps, [Draw(1, 1)])
    spent = (amounts(4 * one), amounts(0)) if name == "epsilon" else (amounts(0), amounts(4 * one))
    with pytest.raises(BudgetExceeded, match=rf"{name}.*0\.75|0\.75.*{name}|1 {name}.*0\.75"):
        books.charge(0, *spent)


def test_large_amounts_do_not_overflow():
    most = amounts(1 << 62)
    books = DiscoveryFilter(amounts(7), most, most, [Draw(7, 1 << 20)])
    with pytest.raises(BudgetExceeded):
        books.charge(0, amounts(1 << 61), amounts(0))


def test_slots_are_charged_in_order():
    books = DiscoveryFilter(amounts(1), amounts(9), amounts(9), [Draw(1, 1)])
    books.charge(3, amounts(1), amounts(1))
    with pytest.raises(ValueError, match="slot 3 is charged after slot 3"):
        books.charge(3, amounts(1), amounts(1))


def test_slots_that_were_drawn_in_another_way_are_refused():
    """They would be priced as if they had been drawn as later slots are."""
    budgets = amounts(7), amounts(7000), amounts(7000)
    books = DiscoveryFilter(*budgets, [Draw(7, 1, by_base_slot=True)])
    books.charge(0, amounts(1000), amounts(1000))
    with pytest.raises(ConfigurationError, match="draws the keys of users in another way"):
        DiscoveryFilter(*budgets, [Draw(7, 1)]).read(books.record())


def test_a_lifetime_has_room_for_one_discovery():
    # As `Discoverer` makes it: the whole input is slot 0, of one base slot.
    draws = [Draw(1, 3)]
    books = DiscoveryFilter(np.array([1 << 20]), np.array([30]), np.array([9]), draws)
    books.charge(0, np.array([10]), np.array([3]))
    for epsilon, delta in ((1, 0), (0, 1)):
        with pytest.raises(BudgetExceeded):
            books.charge(1, np.array([epsilon]), np.array([delta]))
    fresh = DiscoveryFilter(np.array([1 << 20]), np.array([30]), np.array([9]), draws)
    fresh.charge(-1, np.array([10]), np.array([3]))
    with pytest.raises(BudgetExceeded):
        fresh.charge(0, np.array([1]), np.array([0]))
