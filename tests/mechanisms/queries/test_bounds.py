"""Bounds that are chosen by a private look: what it costs, what it tells and what follows."""

from dataclasses import replace

import numpy as np
import pytest

from streamveil.mechanisms import Categories, ConfigurationError, Requirement, Slots
from streamveil.mechanisms.core.budgets import UNITS_PER_EPSILON, Requirements
from streamveil.mechanisms.queries import bounds
from streamveil.mechanisms.queries.bounds import CELLS, EDGES, AutoBounds, NoBoundsError
from streamveil.mechanisms.queries.conditions import Condition
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.query_stream import QueryStream
from streamveil.mechanisms.queries.shares import plan_shares
from streamveil.mechanisms.queries.statistics import Mean, Quantiles, Sum
from streamveil.mechanisms.randomness.noise import NoiseSource, RandomWords
from tests.mechanisms.test_audit import audit

SPEED = Query("speed", statistic=AutoBounds("mean", "speed"))
SPREAD = Query("spread", slots=24, statistic=AutoBounds("stddev", "speed"))
WAY = Query("way", statistic=AutoBounds("sum", "km"), where=(Condition("kind", ("car",)),))
VISITS = Query("visits")
QUERY_SET = QuerySet(Slots.of("1h"), (SPEED, VISITS, WAY, SPREAD))
ASKED = Requirements((Requirement(24, 1.0), Requirement(2, 0.25)))


def cells(numbers):
    return np.bincount(np.searchsorted(EDGES, numbers, side="right"), minlength=CELLS)


def chosen(numbers, scale, seed):
    rate = int(UNITS_PER_EPSILON / scale)
    words = RandomWords(seed.to_bytes(32, "big"))
    return bounds.choice(bounds.answer(cells(numbers), rate, words), rate)


# ---- what follows ----------------------------------------------------------------------------


SHAPES = {
    "lognormal": lambda draw, n: draw.lognormal(0, 1, n),
    "normal": lambda draw, n: draw.normal(20, 5, n),
    "below 0": lambda draw, n: -draw.lognormal(3, 2, n),
    "even": lambda draw, n: draw.uniform(-3, 100, n),
    "flags": lambda draw, n: draw.integers(0, 2, n).astype(float),
    "tiny": lambda draw, n: draw.uniform(0, 1e-3, n),
    "picoseconds": lambda draw, n: draw.lognormal(np.log(1e-12), 0.5, n),
    "nanoseconds": lambda draw, n: -draw.lognormal(np.log(1e13), 1, n),
    "huge": lambda draw, n: draw.normal(0, 1e60, n),
    "mostly zeros": lambda draw, n: draw.uniform(50, 100, n) * (draw.uniform(size=n) < 0.2),
}


# The mean of what is clipped is off by a tenth of the spread at most, and no range is wide.
@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("number", "scale"), [(100_000, 40), (20_000, 40), (1_000, 1)])
def test_bounds_hold_what_matters_and_not_much_more(shape, number, scale):
    draw = np.random.default_rng(10)
    for seed in range(20):
        numbers = SHAPES[shape](draw, number)
        lower, upper = chosen(numbers, scale, seed)
        off = np.clip(numbers, lower, upper).mean() - numbers.mean()
        assert abs(off) < 0.1 * numbers.std()
        assert upper <= 4 * max(numbers.max(), 0)
        assert lower >= 4 * min(numbers.min(), 0) - 0.25 * max(upper, 0)


def test_bounds_have_two_digits():
    lower, upper = chosen(np.random.default_rng(10).normal(0, 1000, 20_000), 10, 0)
    assert (float(f"{lower:.1e}"), float(f"{upper:.1e}")) == (lower, upper)


# A few users with numbers that are far off do not stretch the range.
def test_single_numbers_that_are_far_off_are_cut_off():
    numbers = np.concatenate([np.full(10_000, 5.0), np.full(20, 1e9), np.full(20, -1e9)])
    assert chosen(numbers, 2, 0) == (4.0, 8.0)


@pytest.mark.parametrize("number", [0, 10, 2_000])
def test_too_few_events_choose_nothing(number):
    for seed in range(50):
        with pytest.raises(NoBoundsError, match="too few numbers"):
            chosen(np.full(number, 5.0), 40, seed)


# Where an outer edge of the cells would be a bound, it says nothing of the numbers.
@pytest.mark.parametrize("size", [1e75, 1e200, -1e75, -np.finfo(float).max])
def test_numbers_beyond_all_cells_choose_nothing(size):
    for numbers in (np.full(10_000, size), np.tile([size, 5.0], 5_000)):
        with pytest.raises(NoBoundsError, match="beyond 5e"):
            chosen(numbers, 2, 0)


def test_numbers_that_are_as_good_as_zero_choose_nothing():
    for numbers in (np.zeros(10_000), np.full(10_000, -1e-80)):
        with pytest.raises(NoBoundsError, match="but 0 and what is closer"):
            chosen(numbers, 2, 0)


# A few amounts among zeros are what a sum is made of: they are not cut off as single ones are.
def test_a_few_amounts_among_zeros_are_kept():
    lower, upper = chosen(np.concatenate([np.zeros(99_800), np.full(200, 70.0)]), 2, 0)
    assert lower == 0
    assert 70 <= upper <= 130


def test_noise_alone_is_not_believed():
    for seed in range(500):
        with pytest.raises(NoBoundsError):
            chosen(np.zeros(0), 40, seed)


# ---- what it costs ---------------------------------------------------------------------------


def test_the_same_events_and_column_are_looked_at_once():
    looks = bounds.looks_at(QUERY_SET)
    assert [look.names for look in looks] == [("speed", "spread"), ("way",)]
    assert looks[1].sample.where == WAY.where
    other = replace(SPREAD, value=("place",), domain=Categories(("a", "b")))
    assert len(bounds.looks_at(QuerySet(Slots.of("1h"), (SPEED, other)))) == 2
    assert bounds.looks_at(QuerySet(Slots.of("1h"), (VISITS,))) == ()


# The sample is of users with enough budget, so that they and their budget are most.
@pytest.mark.parametrize(
    ("sizes", "units"),
    [((100, 100), (1 / 20, 0)), ((100, 900), (1 / 80, 1 / 80)), ((0, 1), (1 / 80, 1 / 80))],
)
def test_who_pays(sizes, units):
    aside = bounds.set_aside(QUERY_SET, ASKED, np.array(sizes))
    assert aside.tolist() == [int(one * UNITS_PER_EPSILON) for one in units]
    rate = bounds.rate_of(2, int(aside.max()))
    assert 2 * 2 * rate <= aside.max()


def test_a_budget_may_be_too_small():
    with pytest.raises(ConfigurationError, match="too small to choose bounds by"):
        bounds.rate_of(2, 3)


def test_nothing_is_set_aside_without_a_look():
    query_set = QuerySet(Slots.of("1h"), (VISITS,))
    assert not bounds.set_aside(query_set, ASKED, np.array([5, 5])).any()


# In every window, what is booked is what is set aside and what was released, and no more than all.
def test_what_is_set_aside_is_in_every_window():
    sizes = np.array([100, 100])
    query_set = bounds.with_bounds(QUERY_SET, np.array([[0.0, 100.0], [0.0, 9.0]]))
    _, shares = plan_shares(query_set, ASKED, sizes)
    aside = bounds.set_aside(query_set, ASKED, sizes)
    assert (shares.sum(axis=0) <= ASKED.budgets - aside).all()
    stream = QueryStream(query_set, ASKED, sizes, shares, NoiseSource(bytes(32)))
    state = stream.start()
    assert state.filter.in_window.tolist() == aside.tolist()
    spent = []
    for base_slot in range(72):
        counts = {
            q: np.zeros((2, query_set.queries[q].measure.size), np.int64)
            for q in stream.due(base_slot)
        }
        state, releases = stream.release(state, base_slot, counts)
        spent.append(sum(one.spent for one in releases.values()))
        in_window = [sum(int(one[k]) for one in spent[-w:]) for k, w in ((0, 24), (1, 2))]
        assert (state.filter.in_window >= np.array(in_window) + aside).all()
        assert (state.filter.in_window <= ASKED.budgets).all()
        state = stream.decode(stream.encode(state))
    assert (state.filter.in_window > aside).all()


def test_shares_of_all_of_the_budget_are_refused():
    shares = np.tile(ASKED.budgets // 4, (4, 1))
    with pytest.raises(ConfigurationError, match="more than all of it, less what is set aside"):
        QueryStream(QUERY_SET, ASKED, np.array([100, 100]), shares, NoiseSource(bytes(32)))


# ---- the statistic ---------------------------------------------------------------------------


def test_a_statistic_before_and_after_bounds_are_chosen():
    numbers = np.array([-5.0, 0, 30, 100])
    before, after = AutoBounds("mean", "speed"), AutoBounds("mean", "speed", 0, 60)
    assert before.weights.tolist() == after.weights.tolist() == Mean("a", 3, 4).weights.tolist()
    assert after.steps(numbers).tolist() == Mean("speed", 0, 60).steps(numbers).tolist()
    assert before.outputs == ("mean",)
    with pytest.raises(ValueError, match="not chosen yet"):
        before.steps(numbers)
    assert not bounds.are_known(QUERY_SET)
    chosen = np.array([[0.0, 60.0], [1.0, 2.0]])
    known = bounds.with_bounds(QUERY_SET, chosen)
    assert bounds.are_known(known)
    assert bounds.bounds_of(known).tolist() == chosen.tolist()
    assert known.queries[0].statistic == after
    assert known.queries[1] == VISITS
    assert len({one.identity() for one in (QUERY_SET, known)}) == 2
    assert after.identity() != AutoBounds("mean", "speed", 0, 61).identity()


def test_quantiles_have_even_intervals_between_bounds_that_are_chosen():
    before = AutoBounds("quantiles", "speed", quantiles=(0.5, 0.9))
    after = replace(before, lower=0.0, upper=64.0)
    known = Quantiles("speed", tuple(range(0, 65, 2)), (0.5, 0.9))
    numbers = np.array([-5.0, 0, 31, 64, 100])
    assert before.weights.tolist() == known.weights.tolist()
    assert after.steps(numbers).tolist() == known.steps(numbers).tolist()
    assert before.outputs == ("p50", "p90")
    assert before.identity() != AutoBounds("quantiles", "speed", quantiles=(0.5,)).identity()


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: AutoBounds("top", "a"), "bounds cannot be chosen for 'top', but for sum, mean"),
        (lambda: AutoBounds("sum", ""), "name the column"),
        (lambda: AutoBounds("sum", "a", 1), "one of lower and upper is given"),
        (lambda: AutoBounds("sum", "a", 2, 1), "lower is 2 and upper is 1"),
    ],
)
def test_what_does_not_fit_is_refused(made, message):
    with pytest.raises(ConfigurationError, match=message):
        made()


# ---- the guarantee ---------------------------------------------------------------------------


CLAIM = 2.0
RUNS = 200_000


def worlds(rate):
    """Answers of many looks at once: a user's event in the first of two cells, or the second."""
    for world, pair in enumerate(([1, 0], [0, 1])):
        words = RandomWords(bytes([world]) * 32)
        noisy = bounds.answer(np.tile(np.array(pair, np.int64), RUNS), rate, words)
        yield noisy.reshape(RUNS, 2)


# Half of the noise, as if an event that moves changed one cell alone, is convicted.
@pytest.mark.slow
def test_the_audit_of_a_look_convicts_half_of_the_noise():
    units = int(CLAIM * UNITS_PER_EPSILON)
    assert 0.75 * CLAIM < audit(*worlds(bounds.rate_of(1, units))) <= CLAIM
    assert audit(*worlds(2 * bounds.rate_of(1, units))) > CLAIM


def test_sums_reach_to_zero():
    chosen_sum = AutoBounds("sum", "a", 2, 5)
    numbers = np.array([2.0, 5.0])
    assert chosen_sum.steps(numbers).tolist() == Sum("a", 2, 5).steps(numbers).tolist()
