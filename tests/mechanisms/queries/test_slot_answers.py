"""What is published of a slot: bins and groups that add up, whatever was released."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamveil.mechanisms import Categories
from streamveil.mechanisms.queries.queries import Query
from streamveil.mechanisms.queries.slot_answers import answer_of
from streamveil.mechanisms.queries.statistics import (
    Count,
    DistinctUsers,
    Mean,
    Quantiles,
    Sum,
    Variance,
)
from streamveil.mechanisms.queries.trees import Tree

PLACES = Categories(("cafe", "park", "zoo"))
LEVELS = Tree.of(PLACES, [{"in": ["cafe"], "out": ["park", "zoo"]}, "all"])
OF_TREES = (
    Count(),
    DistinctUsers(),
    Sum("x", -3, 7),
    Mean("x", 2, 10),
    Variance("x", 0, 10),
    Quantiles("x", (0, 1, 5), (0.5,)),
)


# Whatever is released: noise of any size, negative counts, bins that are none.
@pytest.mark.property
@given(st.sampled_from(OF_TREES), st.integers(0, 2**32), st.sampled_from([0.0, 1.0, 1e3, 1e6]))
def test_rows_of_every_slot_add_up(statistic, seed, noise):
    query = Query("q", value="place", domain=PLACES, tree=LEVELS, statistic=statistic)
    random, size = np.random.default_rng(seed), query.measure.size
    stderr = noise * random.exponential(1, size)
    counts = np.rint(random.integers(0, 1000, size) + stderr * random.normal(size=size))
    found = answer_of(query, counts.astype(np.int64), stderr)
    cafe, park, zoo, inside, outside, everything = found.values[:, 0]
    np.testing.assert_array_equal(inside, cafe)
    if statistic.name in ("count", "distinct"):
        assert (outside, everything) == (park + zoo, cafe + park + zoo)
        assert min(cafe, park, zoo) >= 0
        assert everything == int(everything)
    elif statistic.name == "sum":
        assert outside == pytest.approx(park + zoo, rel=1e-9, abs=1e-6)
        assert everything == pytest.approx(cafe + park + zoo, rel=1e-9, abs=1e-6)
    elif not np.isnan([park, zoo]).any() and statistic.name == "mean":
        # Each is pulled towards what is usual, the less sure the more.
        low, high = found.low[4, 0], found.high[4, 0]
        assert low <= max(park, zoo) + 1e-9
        assert high >= min(park, zoo) - 1e-9
        if not noise:
            assert min(park, zoo) - 1e-9 <= outside <= max(park, zoo) + 1e-9


def test_figures_of_a_tree_agree():
    query = Query("places", value="place", domain=PLACES, tree=LEVELS)
    values = answer_of(query, [10, 20, 30, 70], np.full(4, 2.0)).values[:, 0]
    assert values[0] == values[3]
    assert values[1] + values[2] == values[4]
    assert values[3] + values[4] == values[5]


def test_figures_of_a_mean_are_means():
    query = Query("delay", statistic=Mean("delay", 0, 10))
    exact = query.measure
    table = np.zeros((1, exact.size), np.int64)
    steps = query.statistic.steps(np.array([2.0, 4.0]))
    exact.add(np.zeros(2, np.int64), steps, np.ones(2, np.int64), table)
    found = answer_of(query, table[0], np.zeros(exact.size))
    assert found.values[0, 0] == pytest.approx(3.0, abs=0.01)
