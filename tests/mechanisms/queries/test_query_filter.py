"""The filter over all queries against a brute-force sum over every window of base slots."""

import math
import re
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms import BudgetExceeded, ConfigurationError, Lifetime, Requirement
from streamveil.mechanisms.queries.query_filter import Charge, QueryFilter

PROPERTY = settings(max_examples=150)


def of_units(window: int, units: int) -> Requirement:
    return Requirement(window, math.ldexp(units, -40))


def amounts(*units: int) -> np.ndarray:
    return np.array(units, dtype=np.int64)


def overflows(booked, requirements, caps, slots) -> bool:
    """Whether the releases that meet any window, in any base slots at all, cost too much."""
    for k, requirement in enumerate(requirements):
        for start in range(-40, slots + 40):
            end = start + requirement.window - 1
            met = [units[k] for first, last, units, _ in booked if first <= end and last >= start]
            if sum(met) > caps[k]:
                return True
    return False


@st.composite
def ledgers(draw):
    """Releases of small budgets and of a few base slots each, until they overflow."""
    caps = draw(st.lists(st.integers(1, 60), min_size=1, max_size=3))
    requirements = [of_units(draw(st.integers(1, 8)), cap) for cap in caps]
    row = st.lists(st.integers(0, 25), min_size=len(caps), max_size=len(caps))
    length = st.integers(1, 5)
    release = st.tuples(length, row)
    steps = st.lists(st.tuples(st.integers(1, 3), st.lists(release, max_size=3)), max_size=12)
    return requirements, caps, draw(steps)


# Releases are refused exactly when some window would overflow, and a refusal books nothing.
@PROPERTY
@given(ledgers(), st.data())
def test_against_brute_force(ledger, data):
    requirements, caps, steps = ledger
    books = QueryFilter(requirements, 5)
    booked, slot = [], -3
    for gap, releases in steps:
        slot += gap
        fresh = [Charge(slot - length + 1, slot, amounts(*units)) for length, units in releases]
        if overflows([*booked, *fresh], requirements, caps, slot):
            with pytest.raises(BudgetExceeded):
                books.charge(slot, fresh)
            books.charge(slot, [])
        else:
            books.charge(slot, fresh)
            booked += fresh
        if data.draw(st.booleans()):
            written = books.encode()
            books = QueryFilter.decode(written, requirements, 5)
            assert books.encode() == written
        for k, requirement in enumerate(requirements):
            met = [each[k] for _, last, each, _ in booked if last > slot - requirement.window]
            assert books.in_window[k] == sum(met)


# Base slots with which nothing ends, passed at once and one by one.
@PROPERTY
@given(ledgers(), st.lists(st.integers(1, 30), min_size=12, max_size=12))
def test_quiet_base_slots_may_be_passed_at_once(ledger, gaps):
    requirements, _, steps = ledger
    both = at_once, one_by_one = QueryFilter(requirements, 5), QueryFilter(requirements, 5)
    slot = -3
    for books in both:
        books.charge(slot, [])
    for gap, (_, releases) in zip(gaps, steps, strict=False):
        for quiet in range(slot + 1, slot + gap):
            one_by_one.charge(quiet, [])
        slot += gap
        charges = [Charge(slot - length + 1, slot, amounts(*units)) for length, units in releases]
        for books in both:
            with suppress(BudgetExceeded):
                books.charge(slot, charges)
                continue
            books.charge(slot, [])
        assert at_once.encode() == one_by_one.encode()


# An hour's release and a day's that ends later: windows that ended in between hold both.
def test_a_long_release_counts_in_windows_that_are_past():
    books = QueryFilter([of_units(2, 10)], 24)
    books.charge(3, [Charge(3, 3, amounts(6))])
    for slot in range(4, 23):
        books.charge(slot, [])
    assert books.in_window[0] == 0
    with pytest.raises(BudgetExceeded):
        books.charge(23, [Charge(0, 23, amounts(5))])
    books.charge(23, [Charge(0, 23, amounts(4))])
    books.charge(24, [Charge(24, 24, amounts(6))])
    with pytest.raises(BudgetExceeded):
        books.charge(25, [Charge(25, 25, amounts(5))])


def test_refusal_names_the_numbers():
    books = QueryFilter([Requirement(10, 4.0), Requirement(3, 1.0)], 2)
    books.charge(0, [Charge(0, 0, amounts(2**40, 2**39))])
    with pytest.raises(BudgetExceeded) as refused:
        books.charge(1, [Charge(0, 1, amounts(2**40, 3 * 2**38))])
    message = str(refused.value)
    assert "base slots 0 to 1 refused for users with Requirement(window=3, epsilon=1.0)" in message
    numbers = re.search(r"requested (\S+) epsilon, remaining (\S+) in .*difference (\S+)", message)
    assert [float(number) for number in numbers.groups()] == [0.75, 0.5, 0.25]


# No amount is too large to be refused: sums do not wrap around.
@pytest.mark.parametrize("spent", [0, 1, 2**39])
def test_largest_amounts_are_refused(spent):
    books = QueryFilter([Requirement(5, 1.0)], 3)
    books.charge(0, [Charge(0, 0, amounts(spent))])
    with pytest.raises(BudgetExceeded):
        books.charge(1, [Charge(0, 1, amounts(2**63 - 1)), Charge(0, 1, amounts(2**63 - 1))])


@pytest.mark.parametrize("charge", [(1, 1), (3, 2), (-1, 2)])
def test_what_is_no_release_of_this_base_slot_is_refused(charge):
    books = QueryFilter([Requirement(5, 1.0)], 3)
    with pytest.raises(ValueError, match="does not end there, or is too long"):
        books.charge(2, [Charge(*charge, amounts(1))])


def test_what_is_no_amount_is_refused():
    books = QueryFilter([Requirement(5, 1.0)], 3)
    for units in (amounts(-1), amounts(1, 1), np.array([0.5])):
        with pytest.raises(ValueError, match="1 int64 amounts, none negative"):
            books.charge(2, [Charge(2, 2, units)])


def test_no_base_slot_is_charged_twice():
    books = QueryFilter([Requirement(5, 1.0)], 3)
    books.charge(2, [])
    with pytest.raises(ValueError, match="slot 2 is out of order: 3 comes next"):
        books.charge(2, [])


def test_use():
    books = QueryFilter([Requirement(5, 1.0), Requirement(1, 2.0)], 3)
    assert books.use() == 0.0
    books.charge(2, [Charge(0, 2, amounts(2**38, 2**40)), Charge(2, 2, amounts(2**38, 0))])
    assert books.use() == 0.5
    books.charge(4, [Charge(3, 4, amounts(0, 2**38))])
    assert books.in_window.tolist() == [2**39, 2**38]
    assert books.most(2).tolist() == [2**39, 2**38]
    assert books.most(3).tolist() == [2**39, 2**40]
    assert books.use() == 0.5
    books.charge(5, [])
    assert books.most(1).tolist() == [2**39, 0]


def test_what_cannot_be_accounted_for_is_refused():
    with pytest.raises(ConfigurationError, match="not for a lifetime budget"):
        QueryFilter([Lifetime(1.0)], 3)
    with pytest.raises(ConfigurationError, match="use longer base slots"):
        QueryFilter([of_units(2**20, k + 1) for k in range(33)], 3)


@pytest.mark.parametrize(
    ("requirements", "longest"),
    [([Requirement(4, 1.0)], 3), ([Requirement(5, 1.0)], 2), ([Requirement(5, 1.0)] * 2, 3)],
)
def test_state_of_another_filter_is_refused(requirements, longest):
    books = QueryFilter([Requirement(5, 1.0)], 3)
    books.charge(2, [Charge(0, 2, amounts(7))])
    with pytest.raises(ConfigurationError, match="belongs to another configuration"):
        QueryFilter.decode(books.encode(), requirements, longest)
