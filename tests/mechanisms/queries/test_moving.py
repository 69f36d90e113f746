"""Users of a query set who move between classes: what they pay, and the filter."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms import BudgetExceeded, NoiseSource, Requirement
from streamveil.mechanisms.core.budgets import Requirements
from streamveil.mechanisms.core.records import ADD_REMOVE, REPLACE
from streamveil.mechanisms.driver.stream import ReleaseStream
from streamveil.mechanisms.protocol import Population
from streamveil.mechanisms.queries.limits import LimitedFilter, presences_of
from streamveil.mechanisms.queries.queries import QuerySet
from streamveil.mechanisms.queries.query_filter import Charge
from streamveil.mechanisms.queries.shares import plan_shares
from streamveil.mechanisms.registry import MECHANISMS, mechanism
from tests.mechanisms.queries.asking import query

WINDOW = 4
CLASSES = Requirements(Requirement(WINDOW, epsilon) for epsilon in (1.0, 2.0, 5.0))
SIZES = np.array([10, 20, 5])


def moving(query_set, adjacency=ADD_REMOVE):
    _, shares = plan_shares(query_set, CLASSES, SIZES, adjacency=adjacency)
    return presences_of(query_set, None, CLASSES, shares, adjacency, moving=True)


def test_without_a_limit_every_slot_counts_and_costs_what_it_did():
    asked = QuerySet("1h", (query("hours"), query("days", 24)))
    hours, days = moving(asked, adjacency=REPLACE)
    for one in (hours, days):
        assert one.moving
        assert all(limit.is_none for limit in one.limits)
        assert one.adjacency == REPLACE
    assert [one.window for one in days.requirements] == [2, 2, 2]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whoever_moves_up_to_a_class_pays_no_more_than_is_booked_for_it(data):
    """All ways through the classes up to each, over any window of base slots."""
    lengths = data.draw(st.sampled_from([(1,), (2,), (1, 3), (2, 3)]))
    asked = QuerySet("1h", tuple(query(f"q{r}", r) for r in lengths))
    filter_ = LimitedFilter(CLASSES, moving(asked), np.zeros(3, np.int64))
    caps, paid = CLASSES.budgets, []
    for base in range(10):
        charges = []
        for number, one in enumerate(asked):
            if one.cut.due(base):
                shown = st.integers(0, int(caps[-1]) // 6)
                units = np.array(data.draw(st.lists(shown, min_size=3, max_size=3)))
                charges.append(Charge(one.cut.first(one.cut.of(base)), base, units, number))
        before = filter_.encode()
        try:
            filter_.charge(base, charges)
        except BudgetExceeded:
            assert filter_.encode() == before
            filter_.charge(base, [one._replace(units=0 * one.units) for one in charges])
            continue
        paid += charges
        dearest = np.array([np.maximum.accumulate(one.units) for one in paid])
        for start in range(base + 1):
            meets = [one.first < start + WINDOW and start <= one.last for one in paid]
            most = dearest[meets].sum(axis=0)
            assert (most <= filter_.in_window).all()
            assert (most <= caps).all()


@pytest.mark.parametrize("name", MECHANISMS)
def test_what_a_slot_costs_never_falls_with_epsilon(name):
    """So what the filter books for a class is what the mechanism takes of it."""
    random, tried = np.random.default_rng(3), 0
    for window, sizes in ((3, (0, 40, 900)), (6, (2000, 1, 0)), (2, (50, 50, 50))):
        asked = Requirements(Requirement(window, epsilon) for epsilon in (0.2, 1.0, 4.0))
        population = Population(asked, np.array(sizes), 3, 1, joined=True)
        if name in ("lbu", "plbu"):  # which refuse users whose number is unknown
            population = Population(asked, np.array(sizes), 3, 1)
        stream = ReleaseStream(mechanism(name, population), NoiseSource(bytes(32), "x"))
        state = stream.start()
        for slot in range(5 * window):
            counts = random.binomial(np.array(sizes)[:, None], 0.1 * (slot % 7), (3, 3))
            state, release = stream.release(state, slot, counts.astype(np.int64))
            assert (np.diff(release.spent) >= 0).all()
            tried += release.spent.any()
    assert tried
