"""The filter where presence is limited, against brute force over every choice of slots."""

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms import BudgetExceeded, ConfigurationError, Lifetime, Requirement
from streamveil.mechanisms.accounting.presence_filter import FOREVER, PresenceTerms

PROPERTY = settings(max_examples=150)


@st.composite
def ledgers(draw):
    """Terms of a few classes in units, and what is charged."""
    classes = draw(st.integers(1, 3))
    caps = [draw(st.integers(1, 40)) for _ in range(classes)]
    reach = [draw(st.sampled_from([FOREVER, 1, 2, 4, 7])) for _ in range(classes)]
    most = [draw(st.integers(1, one or 5)) for one in reach]
    asked = tuple(Requirement(3, math.ldexp(cap, -40)) for cap in caps)
    row = st.lists(st.integers(0, 15), min_size=classes, max_size=classes)
    rows = draw(st.lists(row, min_size=1, max_size=14))
    aside = [draw(st.integers(0, cap)) for cap in caps]
    terms = PresenceTerms(asked, tuple(most), tuple(reach), tuple(aside))
    return terms, caps, rows


def dearest(amounts, most, reach):
    """The most that so many slots cost of any stretch that ends with the last one."""
    recent = amounts if reach == FOREVER else amounts[-reach:]
    return max(sum(some) for some in combinations(recent, min(most, len(recent))))


@PROPERTY
@given(ledgers(), st.data())
def test_against_brute_force(ledger, data):
    terms, caps, rows = ledger
    door, booked = terms.unspent(), []
    for row in rows:
        costs = [
            terms.aside[k] + dearest([*(old[k] for old in booked), row[k]], most, reach)
            for k, (most, reach) in enumerate(zip(terms.most, terms.reach, strict=True))
        ]
        if any(cost > cap for cost, cap in zip(costs, caps, strict=True)):
            before = door.encode()
            with pytest.raises(BudgetExceeded):
                door.charge(np.array(row))
            assert door.encode() == before
        else:
            door.charge(np.array(row))
            booked.append(row)
            assert door.in_window.tolist() == costs
            assert door.use() == max(cost / cap for cost, cap in zip(costs, caps, strict=True))
        if data.draw(st.booleans()):
            door = terms.decode(door.encode())
    assert door.slots == len(booked)


@PROPERTY
@given(ledgers(), st.data())
def test_who_moves_between_classes_pays_no_more_than_the_dearest_of_them_asks_for(ledger, data):
    terms, _, rows = ledger
    terms = replace(terms, moving=True)
    door, k, paid = terms.unspent(), len(terms.most) - 1, []
    for row in rows:
        try:
            door.charge(np.array(row))
        except BudgetExceeded:
            continue
        paid.append(row[data.draw(st.integers(0, k))])
        most = dearest(paid, terms.most[k], terms.reach[k])
        assert terms.aside[k] + most <= door.in_window[k] <= door.requirements.budgets[k]


def test_a_long_life_costs_no_more_than_the_slots_there_were():
    """30 million rows would take seconds a slot to sort."""
    terms = PresenceTerms((Lifetime(1.0),), (30_000_000,), (FOREVER,), (0,))
    door = terms.unspent()
    for slot in range(300):
        door.charge(np.array([slot % 7]))
    assert door.in_window.tolist() == [sum(slot % 7 for slot in range(300))]


def test_a_history_too_long_is_refused():
    with pytest.raises(ConfigurationError, match="more than 33554432 cells"):
        PresenceTerms((Requirement(3, 1.0),), (1,), (1 << 26,), (0,)).unspent()


def test_bytes_of_another_limit_are_refused():
    asked = (Requirement(3, 1.0),)
    written = PresenceTerms(asked, (2,), (5,), (0,)).unspent().encode()
    with pytest.raises(ConfigurationError, match="slots of spending"):
        PresenceTerms(asked, (2,), (6,), (0,)).decode(written)
