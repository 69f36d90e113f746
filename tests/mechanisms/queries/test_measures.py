"""What an event adds to histograms: exactly, and never more than the sensitivity."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms.queries.measures import Measure
from streamveil.mechanisms.queries.statistics import (
    Count,
    DistinctUsers,
    Mean,
    Quantiles,
    StandardDeviation,
    Sum,
    TopK,
    Variance,
)

STATISTICS = (
    Count(),
    DistinctUsers(),
    TopK(3),
    Sum("x", -30.0, 180.0),
    Sum("x", 5.0, 20.0),
    Sum("x", -7.5, -0.5),
    Mean("x", -30.0, 180.0),
    Variance("x", 0.0, 1.0),
    StandardDeviation("x", -5.0, 3.0),
    Quantiles("x", (-30.0, 0.0, 15.0, 60.0, 180.0), (0.5, 0.95)),
)
# Three bins, the last two under one node, and all under another.
ABOVE = {
    "flat": np.arange(3)[:, None],
    "tree": np.array([[0, 3, 5], [1, 4, 5], [2, 4, 5]]),
    "a group for each": np.array([[0, 3], [1, 4], [2, 5]]),
}
NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False), st.floats(-40.0, 200.0), st.integers(-40, 200)
)
EVENTS = st.lists(st.tuples(st.integers(0, 2), NUMBERS, st.integers(1, 3)), max_size=8)


def table_of(measure, statistic, events):
    bins, numbers, groups = zip(*events, strict=True) if events else ((), (), ())
    table = np.zeros((1, measure.size), np.int64)
    steps = statistic.steps(np.array(numbers, np.float64))
    measure.add(np.array(bins, np.int64), steps, np.array(groups, np.int64), table)
    return table[0]


@pytest.mark.property
@pytest.mark.parametrize("above", ABOVE.values(), ids=ABOVE)
@pytest.mark.parametrize("statistic", STATISTICS, ids=repr)
@settings(max_examples=100)
@given(events=EVENTS, more=st.tuples(st.integers(0, 2), NUMBERS))
def test_one_event_changes_a_histogram_by_no_more_than_the_sensitivity(
    statistic, above, events, more
):
    measure = Measure(statistic.weights, above)
    before = table_of(measure, statistic, events)
    after = table_of(measure, statistic, [*events, (*more, 1)])
    changed = after - before
    assert (changed >= 0).all()
    assert changed.sum() <= measure.sensitivity
    assert changed.max() <= measure.quantum
    # Nothing of it is given away: every event changes it by as much.
    assert changed.sum() == measure.sensitivity


@pytest.mark.parametrize("statistic", STATISTICS, ids=repr)
def test_the_sensitivity_is_the_most_that_an_event_of_any_step_and_bin_changes(statistic):
    for above in ABOVE.values():
        measure = Measure(statistic.weights, above)
        most = 0
        for own in range(len(above)):
            steps = np.arange(measure.steps)
            rows = np.zeros((measure.steps, measure.size), np.int64)
            ones = np.ones(measure.steps, np.int64)
            measure.add(steps * len(above) + own, steps, ones, rows)
            most = max(most, int(np.abs(rows).sum(axis=1).max()))
        assert most == measure.sensitivity


def test_an_event_adds_to_its_bin_and_to_all_nodes_above_it():
    measure = Measure(Sum("x", 0.0, 1024.0).weights, ABOVE["tree"])
    table = np.zeros((2, measure.size), np.int64)
    # Two events of 3 in bin 1 of row 0, one of 1000 in bin 2 of row 1.
    measure.add(np.array([1, 3 + 2]), np.array([3, 1000]), np.array([2, 1]), table)
    each = table.reshape(2, measure.nodes, 4)
    assert each[0, :, 1].tolist() == [0, 6, 0, 0, 6, 6]
    assert each[0, :, 0].tolist() == [0, 2042, 0, 0, 2042, 2042]
    assert each[1, :, 1].tolist() == [0, 0, 1000, 0, 1000, 1000]
    assert not each[:, :, 2:].any()
    assert (measure.nodes, measure.size, measure.sensitivity) == (6, 24, 3 * 1024)


# A class of users is a row: where nodes are as many as pairs of a bin and a level, too, events are
# those of their class, in all nodes above their bin.
@pytest.mark.parametrize("bins", [1, 3])
def test_a_tree_with_a_group_for_each_bin_is_a_tree(bins):
    above = np.column_stack([np.arange(bins), np.arange(bins, 2 * bins)])
    measure = Measure(Count().weights, above)
    table = np.zeros((4, measure.size), np.int64)
    row, own = 2, bins - 1
    measure.add(np.array([row * bins + own]), np.zeros(1, np.int64), np.array([5]), table)
    assert np.argwhere(table).tolist() == [[row, own], [row, bins + own]]
    assert table.sum() == 5 * measure.sensitivity


def test_large_counts_of_large_squares_are_added_up_exactly():
    measure = Measure(Variance("x", 0.0, 1.0).weights, ABOVE["flat"])
    table = np.zeros((1, measure.size), np.int64)
    crowd = 2**33 + 1
    measure.add(np.array([0]), np.array([1]), np.array([crowd]), table)
    assert table[0, :3].tolist() == [255**2 * crowd, 2 * 255 * crowd, crowd]


# Of a pickled array numpy's `add.at` takes 15 times as long: its type is equal, but not the same.
def test_what_a_worker_adds_is_of_the_type_that_is_fast():
    asked = Measure(Mean("x", 0.0, 1.0).weights, ABOVE["flat"])
    assert all(array.dtype is np.dtype(np.int64) for array in asked._added)
    there = pickle.loads(pickle.dumps(asked))
    assert there.weights.dtype is not np.dtype(np.int64)
    assert all(array.dtype is np.dtype(np.int64) for array in there._added)


@pytest.mark.parametrize(
    ("statistic", "graded"),
    [
        (Count(), [False]),
        (Sum("x", -30.0, 180.0), [True, True, False, False]),
        (Mean("x", -30.0, 180.0), [True, True, False, False]),
        (Variance("x", 0.0, 1.0), [True, True, True, False, False]),
        (Quantiles("x", (0.0, 1.0), (0.5,)), [False, False, False]),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
def test_parts_of_numbers_are_graded_and_others_are_not(statistic, graded):
    assert list(Measure(statistic.weights, ABOVE["flat"]).graded) == graded
