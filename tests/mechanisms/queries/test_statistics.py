"""What can be asked: steps and parts by hand, and what is refused."""

import math

import numpy as np
import pytest

from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.queries.statistics import (
    Count,
    DistinctUsers,
    Mean,
    Quantiles,
    StandardDeviation,
    Sum,
    TopK,
    Variance,
    log_edges,
)

HUGE = 1.7e308


def test_counts_ask_no_column_and_distinct_users_count_once():
    for statistic in (Count(), DistinctUsers(), TopK(2)):
        assert statistic.column is None
        assert statistic.weights.tolist() == [[1]]
        assert statistic.steps(np.array([1.0, -5.0])).tolist() == [0, 0]
    assert [one.once for one in (Count(), DistinctUsers(), TopK(2))] == [False, True, False]
    assert not Mean("x", 0, 1).once
    assert not Quantiles("x", (0, 1)).once


@pytest.mark.parametrize(
    ("statistic", "number", "parts"),
    [
        # The range is 1024 quanta of 1: at 256 a quarter of an event is up.
        (Mean("x", 0, 1024), 256.0, [768, 256, 0, 0]),
        (Mean("x", 0, 1024), 0.0, [1024, 0, 0, 0]),
        (Mean("x", 0, 1024), 1024.0, [0, 1024, 0, 0]),
        (Mean("x", 0, 1024), -0.25, [0, 0, 1024, 0]),
        (Mean("x", 0, 1024), 1024.5, [0, 0, 0, 1024]),
        (Mean("x", 0, 1024), 0.6, [1023, 1, 0, 0]),
        (Mean("x", -512, 512), 0.0, [512, 512, 0, 0]),
        (Mean("x", -1e74, 1e74), HUGE, [0, 0, 0, 1024]),
        # A sum's range reaches to 0.
        (Sum("x", 512, 1024), 512.0, [512, 512, 0, 0]),
        (Sum("x", 512, 1024), 511.0, [0, 0, 1024, 0]),
        (Sum("x", -1024, -512), -256.0, [0, 0, 0, 1024]),
        (Sum("x", -1024, -512), -768.0, [768, 256, 0, 0]),
        (Sum("x", -512, 512), 256.0, [256, 768, 0, 0]),
        # 256 quanta, and squares of them.
        (Variance("x", 0, 256), 64.0, [192**2, 2 * 192 * 64, 64**2, 0, 0]),
        (Variance("x", 0, 256), -1.0, [0, 0, 0, 65536, 0]),
        (StandardDeviation("x", 0, 256), 257.0, [0, 0, 0, 0, 65536]),
        # Below, two intervals, above; the last interval holds its upper edge.
        (Quantiles("x", (0, 10, 20)), -1.0, [1, 0, 0, 0]),
        (Quantiles("x", (0, 10, 20)), 0.0, [0, 1, 0, 0]),
        (Quantiles("x", (0, 10, 20)), 10.0, [0, 0, 1, 0]),
        (Quantiles("x", (0, 10, 20)), 20.0, [0, 0, 1, 0]),
        (Quantiles("x", (0, 10, 20)), 20.5, [0, 0, 0, 1]),
    ],
)
def test_what_a_number_adds_by_hand(statistic, number, parts):
    (step,) = statistic.steps(np.array([number]))
    assert statistic.weights[step].tolist() == parts


@pytest.mark.parametrize("number", [2, 5, 32, 33, 400])
def test_intervals_are_the_same_however_they_are_found(number):
    edges = np.linspace(-3, 5, number)
    numbers = np.concatenate([edges, edges - 1e-9, edges + 1e-9, [-1e300, 1e300, -0.0]])
    above = [sum(edge <= each for edge in edges) - (each == edges[-1]) for each in numbers]
    assert Quantiles("x", tuple(edges)).steps(numbers).tolist() == above


def test_names_and_figures_are_those_of_files():
    named = {
        Count(): ("count", ("count",)),
        DistinctUsers(): ("distinct", ("users",)),
        TopK(3): ("top", ("count",)),
        Sum("x", 0, 1): ("sum", ("sum",)),
        Mean("x", 0, 1): ("mean", ("mean",)),
        Variance("x", 0, 1): ("variance", ("variance",)),
        StandardDeviation("x", 0, 1): ("stddev", ("stddev",)),
        Quantiles("x", (0, 1), (0.5, 0.95, 0.999)): ("quantiles", ("p50", "p95", "p99.9")),
    }
    for statistic, (name, outputs) in named.items():
        assert (statistic.name, statistic.outputs) == (name, outputs)


def test_numbers_may_be_written_as_other_numbers():
    assert Mean("x", 0, 1) == Mean("x", np.float64(0), np.int64(1))
    assert Quantiles("x", [0, 1], [0.5]) == Quantiles("x", (0.0, 1.0), 0.5)


@pytest.mark.parametrize("kind", [Sum, Mean, Variance, StandardDeviation])
@pytest.mark.parametrize(
    ("lower", "upper", "words"),
    [
        (5, 1, "lower is 5 and upper is 1: give a lower bound below the upper one"),
        (2, 2, "lower is 2 and upper is 2: give a lower bound below the upper one"),
        (math.nan, 1, "lower is nan: give a finite number"),
        (0, math.inf, "upper is inf: give a finite number"),
        (-math.inf, 1, "lower is -inf: give a finite number"),
        ("low", 1, "lower is 'low': give a number"),
        (0, None, "upper is None: give a number"),
        (0, True, "upper is True: give a number"),
        (0, 10**400, "give a finite number"),
        (-HUGE, HUGE, "too far apart"),
        (0, 1e76, "too far apart"),
        (0, 1e-320, "too close together"),
    ],
)
def test_bounds_that_are_none_are_refused(kind, lower, upper, words):
    with pytest.raises(ConfigurationError, match=words):
        kind("x", lower, upper)


@pytest.mark.parametrize("column", ["", None, 3])
def test_a_column_has_a_name(column):
    for make in (lambda: Mean(column, 0, 1), lambda: Quantiles(column, (0, 1))):
        with pytest.raises(ConfigurationError, match="name the column of numbers"):
            make()


@pytest.mark.parametrize(
    ("edges", "quantiles", "words"),
    [
        ((), 0.5, "two or more finite numbers"),
        ((1,), 0.5, "two or more finite numbers"),
        ((0, math.nan), 0.5, "two or more finite numbers"),
        ((0, math.inf), 0.5, "two or more finite numbers"),
        ((1, 0), 0.5, "must rise strictly"),
        ("none", 0.5, "must be two or more numbers"),
        (None, 0.5, "must be two or more numbers"),
        ((-HUGE, 0, 1), 0.5, "and 0 are too far apart to compute with"),
        ((0, 5e-324, 1), 0.5, "edges 0 and 4.94066e-324 are too close together to compute with"),
        ((0, 1), (), "list at least one"),
        ((0, 1), 0, "not between 0 and 1"),
        ((0, 1), 1.0, "not between 0 and 1"),
        ((0, 1), (0.5, 95), "quantile 95 is not between 0 and 1: write 0.95 for 95 %"),
        ((0, 1), (-0.1,), "not between 0 and 1"),
        ((0, 1), (math.nan,), "quantile is nan: give a finite number"),
        ((0, 1), ("p50",), "quantile is 'p50': give a number"),
        ((0, 1), "p50", "quantiles are 'p50': list numbers between 0 and 1"),
        ((0, 1), None, "quantiles are None: list numbers between 0 and 1"),
        ((0, 1), (0.5, 0.5), "listed twice"),
        ((0, 1), (0.5, 0.5 + 1e-14), "quantile 0.5 is listed twice, as p50"),
        (range(20_000), 0.5, "there are 19,999 intervals, and .* give at most 1,024"),
    ],
)
def test_edges_and_quantiles_that_are_none_are_refused(edges, quantiles, words):
    with pytest.raises(ConfigurationError, match=words):
        Quantiles("x", edges, quantiles)


@pytest.mark.parametrize("k", [0, -1, 2.5, True, "3", None])
def test_a_k_is_a_whole_number_from_1_on(k):
    with pytest.raises(ConfigurationError, match="whole number, 1 or more"):
        TopK(k)


def test_log_spaced_edges_grow_by_one_factor():
    assert log_edges(1, 1000, 3) == pytest.approx((1, 10, 100, 1000))
    assert log_edges(0.1, 7.3, 5)[::5] == (0.1, 7.3)
    for lower, upper in ((0, 10), (-1, 10), (5, 5), (6, 5)):
        with pytest.raises(ConfigurationError, match="give 0 < lower < upper"):
            log_edges(lower, upper, 4)
    with pytest.raises(ConfigurationError, match="intervals is 0"):
        log_edges(1, 2, 0)


def test_two_parts_tell_a_mean_better_than_a_sum_around_the_midpoint_with_a_count():
    # What is said at the top of statistics.py, with noise in proportion to the sensitivity.
    shares = np.linspace(0, 1, 1001)[:, None]
    lean, weights = (2 * shares - 1) ** 2, np.linspace(0.01, 2, 2000)
    around = (1 + weights) ** 2 * (2 + lean / weights**2) / 4
    best = around.mean(axis=0).argmin()
    assert weights[best] == pytest.approx((1 / 6) ** (1 / 3), abs=0.002)
    more = around[:, best] / ((1 - shares) ** 2 + shares**2)[:, 0]
    assert (round(more.min(), 1), round(more.max(), 1)) == (2.4, 3.2)
