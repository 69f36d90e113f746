"""Shares of queries: what is given stays, nothing is lost, and what is planned is worth it."""

from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms import Requirement, Slots
from streamveil.mechanisms.core.budgets import Requirements
from streamveil.mechanisms.core.records import ADD_REMOVE, REPLACE
from streamveil.mechanisms.queries.queries import QuerySet
from streamveil.mechanisms.queries.shares import (
    EVEN,
    Expected,
    feared,
    plan_shares,
    surest,
)
from tests.mechanisms.queries.asking import query

BASE = Slots.of("1h")
ASKED = Requirements((Requirement(168, 1.0), Requirement(24, 3.0)))
SIZES = np.array([1000, 4000])


def planned(*queries, requirements=ASKED, sizes=SIZES, **more):
    return plan_shares(QuerySet(BASE, queries), requirements, sizes, **more)


HOURS, DAYS, WEEKS = (
    query(name, slots, 20) for name, slots in (("hours", 1), ("days", 24), ("weeks", 168))
)


def test_queries_alike_share_evenly():
    shares, units = planned(*(query(name) for name in "abc"))
    np.testing.assert_allclose(shares, 1 / 3, atol=2**-16)
    assert (units == units[0]).all()


@pytest.mark.parametrize("weights", [(1e12, 1e-12), (1e12, 1e12), (1e-12, 1e-12)])
def test_weights_far_apart_leave_everybody_a_share(weights):
    shares, units = planned(*(query(f"{n}", weight=weight) for n, weight in enumerate(weights)))
    assert shares.min() > 0.1
    assert (units > 0).all()
    assert (units.sum(axis=0) <= ASKED.budgets).all()


def test_one_query_has_everything():
    shares, units = planned(HOURS)
    assert shares.tolist() == [1.0]
    assert units.tolist() == [ASKED.budgets.tolist()]


# A plan is part of what identifies a stream: another one would refuse its states.
def test_a_plan_stays_what_it_is():
    shares, _ = planned(HOURS, DAYS, query("weeks", 168, 20, weight=4.0))
    assert (shares * 2**16).tolist() == [21845, 21133, 22557]


def test_weights_draw_shares():
    found = [planned(query("a", bins=20, weight=weight), HOURS)[0] for weight in (0.1, 1.0, 10.0)]
    first = [shares[0] for shares in found]
    assert first[0] < 0.4
    assert abs(first[1] - 0.5) < 1e-4
    assert first[2] > 0.6


# Shares that are given stay to the last digit, and ten times 0.1 is all there is.
def test_given_shares_stay():
    shares, units = planned(query("a", bins=20, share=0.3), HOURS, DAYS)
    assert shares[0] == 0.3
    assert units[0].tolist() == [int(Fraction(3, 10) * int(cap)) for cap in ASKED.budgets]
    assert 0.7 - 2**-15 < shares[1:].sum() <= 0.7
    shares, units = planned(*(query(f"q{n}", share=0.1) for n in range(10)))
    assert set(shares) == {0.1}
    assert (ASKED.budgets - units.sum(axis=0) < 10).all()


@settings(max_examples=60)
@given(
    slots=st.lists(st.integers(1, 400), min_size=1, max_size=8),
    weights=st.lists(st.floats(1e-6, 1e6), min_size=8, max_size=8),
    given=st.lists(st.sampled_from([None, 0.01, 0.1, 0.125]), min_size=8, max_size=8),
    asked=st.lists(st.tuples(st.integers(1, 2000), st.floats(1e-3, 100)), min_size=1, max_size=3),
    users=st.integers(0, 10**7),
    adjacency=st.sampled_from([ADD_REMOVE, REPLACE]),
)
def test_nothing_is_shared_twice(slots, weights, given, asked, users, adjacency):
    requirements = Requirements(Requirement(*pair) for pair in asked)
    queries = [
        query(f"q{n}", r, n + 1, weight=weights[n], share=given[n]) for n, r in enumerate(slots)
    ]
    shares, units = planned(
        *queries,
        requirements=requirements,
        sizes=np.full(len(requirements), users),
        adjacency=adjacency,
    )
    assert (units > 0).all()
    assert (units.sum(axis=0) <= requirements.budgets).all()
    rest = 1 - sum(one.fixed_share for one in queries)
    alone = sum(one.share is None for one in queries) == 1
    exact = [
        one.fixed_share or (rest if alone else Fraction(share))
        for one, share in zip(queries, shares, strict=True)
    ]
    for row, share in zip(units, exact, strict=True):
        assert row.tolist() == [int(share * int(cap)) for cap in requirements.budgets]
    open_ones = [share for one, share in zip(queries, exact, strict=True) if one.share is None]
    if open_ones:
        assert rest - Fraction(len(slots), 2**16) < sum(open_ones) <= rest
        assert min(open_ones) > rest / len(open_ones) / 4 - Fraction(1, 2**16)


# No other split is surer, by much: nudges from one query to another.
def test_the_surest_shares():
    errors, now = np.array([1.0, 20.0, 3.0]), np.full(3, 1 / 3)
    shares = surest(errors, now, EVEN * now)
    np.testing.assert_allclose(shares.sum(), 1.0)
    assert shares[1] > 0.45
    for taken, lent in product(range(3), repeat=2):
        nudge = np.zeros(3)
        nudge[taken] -= 0.01
        nudge[lent] += 0.01
        nudged = (shares + nudge) / now
        assert feared(errors, shares / now) <= feared(errors, nudged) + 1e-6
    assert surest(np.array([1.0, 3.0, 2.0]), now, EVEN * now) == pytest.approx(now)  # unsure
    assert surest(np.array([1.0, 1e9, 1.0]), now, EVEN * now)[0] >= EVEN / 3 - 1e-9


# Whatever the rate, and whatever the powers, a plan is not feared to be worse than even shares.
@pytest.mark.parametrize("weights", [(1, 1, 1), (1, 1, 3), (1, 20, 1)])
def test_no_plan_is_worse_than_even_shares_by_the_model(weights):
    pairs = zip((HOURS, DAYS, WEEKS), weights, strict=True)
    query_set = QuerySet(BASE, [replace(one, weight=float(weight)) for one, weight in pairs])
    model = Expected.of(query_set, ASKED, SIZES, ADD_REMOVE)
    even = np.full(3, 1 / 3)
    errors = model.at(even) * np.array(weights)[:, None]
    shares, _ = planned(*query_set)
    assert (feared(errors.T, shares / even) <= errors.sum(axis=0) * 1.001).all()


@pytest.mark.parametrize("sizes", [[0, 0], [0, 10]])
def test_nobody_is_there(sizes):
    _, units = planned(HOURS, DAYS, sizes=np.array(sizes))
    assert (units > 0).all()
