"""What parts tell of a statistic: figures by hand, few events, clipping, and coverage."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.interpolate import PchipInterpolator

from streamveil.mechanisms import NoiseSource, Population, ReleaseStream, Requirement, mechanism
from streamveil.mechanisms.core.records import Slots
from streamveil.mechanisms.core.tidy import NINETY_PERCENT
from streamveil.mechanisms.protocol import Observed
from streamveil.mechanisms.queries import answers
from streamveil.mechanisms.queries.answers import BEYOND, EMPTY, FEW, MAYBE, TAILS, UNKNOWN
from streamveil.mechanisms.queries.definitions import OF_NUMBERS
from streamveil.mechanisms.queries.measures import Measure
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.simulated import answers_of, simulate_query_set
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
from streamveil.mechanisms.queries.usual import Usual

RANDOM = 10


def parts_of(statistic, *nodes):
    """The parts of the numbers in each node, without noise: shape (nodes, parts)."""
    measure = Measure(statistic.weights, np.arange(len(nodes))[:, None])
    table = np.zeros((1, measure.size), np.int64)
    for node, numbers in enumerate(nodes):
        steps = statistic.steps(np.array(numbers, np.float64))
        bins = np.full(len(steps), node)
        measure.add(bins, steps, np.ones(len(steps), np.int64), table)
    return table.reshape(len(nodes), -1).astype(np.float64)


def answered(statistic, *nodes, variance=0.0):
    parts = parts_of(statistic, *nodes)
    return statistic.answer(parts, np.full(parts.shape, float(variance)))


# ---- by hand -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statistic", "numbers", "value"),
    [
        (Mean("x", 0, 1024), [256, 512, 768], 512),
        (Mean("x", 0, 1024), [256, 512, 5000], (256 + 512 + 1024) / 3),
        (Mean("x", -512, 512), [-9e9, 128], -192),
        (Sum("x", 0, 1024), [256, 512, 768], 1536),
        (Sum("x", 512, 1024), [0, 768], 512 + 768),
        (Sum("x", -1024, -512), [-768, 0], -768 - 512),
        (Sum("x", -512, 512), [100, -50, 600], 100 - 50 + 512),
        (Sum("x", 0, 1), [], 0),
        (Variance("x", 0, 256), [64, 128, 192], 2 * 64**2 / 3),
        (Variance("x", 0, 256), [77, 77], 0),
        (Variance("x", 0, 256), [-5, 300], 128**2),
        (StandardDeviation("x", 0, 256), [64, 192], 64),
        (Quantiles("x", (0, 10, 20), 0.5), [1] * 5 + [11] * 5, 10),
        (Quantiles("x", (0, 10, 20), 0.25), [1] * 5 + [11] * 5, 5),
        (Quantiles("x", (0, 10, 20), 0.9), [1] * 5 + [11] * 5, 18),
    ],
)
def test_figures_by_hand(statistic, numbers, value):
    found = answered(statistic, numbers)
    assert found.values == pytest.approx(value)
    assert found.outputs == statistic.outputs
    parts = parts_of(statistic, numbers)
    beyond = 0 if isinstance(statistic, Quantiles) else parts[0, -2:].sum() / max(parts.sum(), 1)
    about = TAILS.format(f"{float(f'{100 * beyond:.1g}'):g} %")
    assert found.notes.tolist() == [[about if beyond else ""]]
    assert found.low[0, 0] <= value <= found.high[0, 0]


def test_intervals_of_counts_begin_at_0():
    for statistic in (Count(), DistinctUsers()):
        found = statistic.answer(np.array([[1.5], [-20.0]]), np.array([[4.0], [9.0]]))
        assert found.low[:, 0].tolist() == [0, 0]
        assert found.high[:, 0] == pytest.approx([1.5 + 2 * NINETY_PERCENT, 0])


# Nobody knows how far numbers beyond the bounds are: not even noise that would hide that there are
# any lets it go unsaid.
@pytest.mark.parametrize("kind", [Sum, Mean, Variance, StandardDeviation])
@pytest.mark.parametrize("noise", [1e-6, 3, 10, 30])
def test_numbers_that_are_or_may_be_beyond_the_bounds_are_reported(kind, noise):
    statistic = kind("x", 0, 2000)
    inside, some = [100.0] * 500, [100.0] * 480 + [5000.0] * 20
    for numbers in (inside, some):
        parts = parts_of(statistic, numbers)
        one = parts.sum() / len(numbers)
        (note,) = statistic.answer(parts, np.full(parts.shape, (noise * one) ** 2)).notes[0]
        beyond = "of the numbers are beyond", "of the numbers may be beyond"
        assert any(text in note for text in beyond) == (numbers is some or noise > 1), note


def test_counts_are_published_as_they_are():
    for statistic in (Count(), DistinctUsers()):
        found = statistic.answer(np.array([[5.0], [-1.0]]), np.array([[4.0], [9.0]]))
        assert found.values.tolist() == [[5], [-1]]
        assert found.stderr.tolist() == [[2], [3]]
        assert found.high[:, 0] == pytest.approx([5 + 2 * NINETY_PERCENT, -1 + 3 * NINETY_PERCENT])


def test_errors_by_hand():
    # Three events at the middle: each part errs by 1 % of all, half the range from the mean.
    variance = (3 * 1024 / 100) ** 2
    found = answered(Mean("x", 0, 1024), [512] * 3, variance=variance)
    # The pull towards what is usual takes half a percent of it.
    assert found.stderr**2 == pytest.approx(4 * 5.12**2 + 1 / 12, rel=7e-3)
    # A sum: the parts of the upper end err by 1 % of three times the range, those of 0 do not.
    found = answered(Sum("x", 0, 1024), [512] * 3, variance=variance)
    assert found.stderr**2 == pytest.approx(2 * (0.03 * 1024) ** 2 + 3**2 / 12, rel=2e-3)
    # Two equal intervals: the median moves by 10 for half of the events.
    errs = np.array([[0.0, 1e4, 1e4, 0.0]])
    parts = np.array([[0.0, 5e3, 5e3, 0.0]])
    found = Quantiles("x", (0, 10, 20)).answer(parts, errs)
    noise = np.sqrt(0.5**2 * 2e4) / 1e4 * 20
    # Shares err less the nearer they are to 0 or 1.
    assert found.stderr == pytest.approx(noise, rel=0.07)
    # Without noise it is known at an edge; in one interval that holds all, it may be elsewhere.
    known = [[0.0, 5e3, 5e3, 0.0], [0.0, 1e4, 0.0, 0.0]]
    found = Quantiles("x", (0, 10, 20)).answer(np.array(known), np.zeros((2, 4)))
    assert found.stderr[0] == pytest.approx(0, abs=0.05)
    straight = found.values[1] - 5
    assert found.stderr[1] == pytest.approx(np.hypot(straight, answers.SHAPELESS * 10), rel=0.1)


def test_an_interval_holds_a_value_that_is_an_edge_but_for_rounding():
    low, high = -1e9, -999999999.999
    below = np.array([[0.0, 0.0, 10.0]])
    found = Quantiles("x", (low, high), (0.05, 0.5)).answer(below, np.full((1, 3), 1e-12))
    assert (found.values == high).all()
    assert ((found.low <= found.values) & (found.values <= found.high)).all()


def test_a_median_in_a_wide_interval_is_held_wherever_events_pile_up():
    random = np.random.default_rng(RANDOM)
    piles = (-random.exponential(6, (50, 550)), -30 + random.exponential(12, (50, 550)))
    for pile in piles:
        late = random.exponential(40, (50, 450))
        nodes = np.hstack([np.clip(pile, -30, -0.01), late])
        found = answered(Quantiles("x", (-30, 0, 15, 30, 60, 120, 180)), *nodes)
        truth = np.quantile(nodes, 0.5, axis=1, method="inverted_cdf")
        held = (found.low[:, 0] <= truth) & (truth <= found.high[:, 0])
        assert held.mean() >= 0.88


@pytest.mark.parametrize("statistic", [Mean, Sum])
def test_intervals_hold_figures_of_heavy_tails(statistic):
    random = np.random.default_rng(RANDOM)
    nodes = np.exp(random.normal(3, 1, (200, 400)))
    upper = float(np.quantile(nodes, 0.9))
    found = answered(statistic("x", 0, upper), *nodes)
    truth = TRUTH[statistic("x", 0, 1).name](nodes, axis=1)
    held = (found.low[:, 0] <= truth) & (truth <= found.high[:, 0])
    assert held.mean() >= 0.85


def test_edges_tell_how_smooth_numbers_are():
    edges = np.linspace(-2.4, 2.4, 13)
    smooth = stats.norm.cdf(edges)
    # Every second interval holds all.
    piled = np.repeat(smooth[::2], 2)[:13]
    few, much = np.zeros((1, 13)), np.full((1, 13), 0.3)
    (found,), (rough,), (unknown,) = (
        answers._rough(curve[None], spread, edges)
        for curve, spread in ((smooth, few), (piled, few), (smooth, much))
    )
    assert np.sqrt(answers.THOUGHT / (answers.THOUGHT + 9)) <= found < 0.3
    assert rough == 1
    assert unknown > 0.9
    assert answers._rough(smooth[None, :4], few[:, :4], edges[:4]) == 1


def test_numbers_that_begin_at_once_may_be_smooth_elsewhere():
    """One edge in five where the curve breaks suggested that nothing is smooth: 0.83."""
    curve = np.maximum(1 - (np.array(HEAVY) / 15) ** -2.5, 0.0)
    (found,) = answers._rough(curve[None], np.full((1, len(HEAVY)), 0.005), np.array(HEAVY))
    smooth = answers._rough(
        curve[None, 1:], np.full((1, len(HEAVY) - 1), 0.005), np.array(HEAVY[1:])
    )
    assert smooth[0] < found < 0.6


def test_a_curve_through_smooth_edges_is_not_doubted_as_far_as_a_straight_line():
    edges = np.arange(-3.0, 3.5, 0.5)
    parts = 1e9 * np.diff(stats.norm.cdf(edges), prepend=0.0, append=1.0)[None]
    found = Quantiles("x", tuple(edges), (0.95,)).answer(parts, np.ones(parts.shape))
    straight = answers._at(stats.norm.cdf(edges), edges, 0.95)
    away = abs(straight - found.values[0, 0])
    assert abs(found.values[0, 0] - stats.norm.ppf(0.95)) < away / 5
    assert found.high[0, 0] - found.low[0, 0] < NINETY_PERCENT * away


def test_edges_halfway_between_whole_numbers_say_that_numbers_are_whole():
    errors, counts = np.full((1, 6), 25.0), np.array([[0.0, 200.0, 300.0, 300.0, 200.0, 0.0]])
    halfway, others = (
        Quantiles("x", (-2.5 + a, -0.5 + a, 0.5 + a, 1.5 + a, 3.5 + a), 0.5).answer(counts, errors)
        for a in (0.0, 1e-6)
    )
    assert halfway.values == pytest.approx(others.values, abs=1e-5)
    assert halfway.stderr**2 - others.stderr**2 == pytest.approx(1 / 12, rel=1e-3)


def test_the_curve_between_edges_is_that_of_fritsch_and_butland():
    random = np.random.default_rng(RANDOM)
    for _ in range(20):
        edges = np.cumsum(random.uniform(0.5, 3, 8))
        curve = np.sort(random.random(8).round(1))
        expected = PchipInterpolator(edges, curve)(answers._finer(edges))
        assert answers._smooth(curve, edges) == pytest.approx(expected, abs=1e-12)


def test_noise_that_hides_a_tail_makes_no_interval_certain():
    """Where noise had taken the tail, its share was cut off at 0: p95 was surely below it."""
    statistic = Quantiles("x", tuple(range(0, 170, 10)), (0.95,))
    parts = np.array([[0, *[45.0] * 8, *[-5.0] * 8, 0]])
    found = statistic.answer(parts, np.full(parts.shape, 12.0**2))
    assert found.low[0, 0] < 75
    assert found.high[0, 0] > 130


def test_where_in_an_interval_events_are_is_a_matter_of_chance():
    """No noise, but the median of 40 events of an interval may be anywhere near its middle."""
    parts = np.array([[0.0, 40, 40, 40, 40, 40, 0]])
    found = Quantiles("x", (0, 10, 20, 30, 40, 50), (0.5,)).answer(parts, np.zeros(parts.shape))
    assert found.stderr[0, 0] > 10 * 0.5 / np.sqrt(40)


# ---- few events, none, and what no figure may be -------------------------------------------------

RATIOS = (
    Mean("x", -30, 180),
    Variance("x", -30, 180),
    StandardDeviation("x", -30, 180),
    Quantiles("x", (-30, 0, 60, 180), (0.05, 0.5, 0.95)),
)


@pytest.mark.parametrize("statistic", RATIOS, ids=repr)
def test_where_events_may_be_none_that_is_said(statistic):
    parts = parts_of(statistic, [], [20.0], [20.0] * 100)
    one = parts[1].sum()
    found = statistic.answer(parts, np.full(parts.shape, one**2))
    assert set(found.notes[0]) == {FEW}
    assert set(found.notes[1]) == {FEW}
    assert all(note in ("", MAYBE.format("2 %")) for note in found.notes[2])
    assert (found.stderr[1] > found.stderr[2]).all()
    sure = statistic.answer(parts, np.zeros(parts.shape))
    assert set(sure.notes[0]) == {EMPTY}
    assert np.isnan(sure.values[0]).all()
    assert np.isnan(sure.stderr[0]).all()
    nothing = statistic.answer(parts, np.full(parts.shape, np.nan))
    assert set(nothing.notes.reshape(-1)) == {UNKNOWN}
    assert np.isnan(nothing.values).all()


def test_an_interval_of_few_events_is_what_may_be_thought_without_any():
    for statistic, one in ((Mean("x", -30, 180), 1024), (Quantiles("x", (-30, 0, 60, 180)), 1)):
        found = answered(statistic, [20.0], variance=one**2)
        assert found.low[0, 0] < 0
        assert found.high[0, 0] > 40


@pytest.mark.slow
@pytest.mark.property
@pytest.mark.parametrize("statistic", RATIOS, ids=repr)
@settings(max_examples=100)
@given(data=st.data())
def test_no_figure_is_wild(statistic, data):
    size = statistic.weights.shape[1]
    some = st.floats(-1e9, 1e9) | st.sampled_from([0.0, -1.0, 1.0])
    parts = data.draw(st.lists(some, min_size=2 * size, max_size=2 * size))
    errors = data.draw(st.lists(st.floats(1e-3, 1e12), min_size=2 * size, max_size=2 * size))
    found = statistic.answer(np.reshape(parts, (2, -1)), np.reshape(errors, (2, -1)))
    lower, upper = (-30, 180) if statistic.name in ("mean", "quantiles") else (0, 105.0**2)
    values = found.values[~np.isnan(found.values)]
    assert ((lower <= values) & (values <= upper)).all()
    there = ~np.isnan(found.values)
    assert (found.low <= found.values + 1e-9)[there].all()
    assert (found.values <= found.high + 1e-9)[there].all()
    assert np.isfinite(found.stderr[there]).all()
    if statistic.name == "quantiles":
        assert (np.diff(found.values, axis=1)[there[:, 1:]] >= -1e-9).all()


@pytest.mark.parametrize("kind", [Sum, Mean, Variance, StandardDeviation])
@pytest.mark.parametrize("width", [1e-60, 1e75])
def test_figures_are_finite_however_wide_the_range(kind, width):
    found = answered(kind("x", 0, width), [0, width, width], variance=1e4)
    for figure in (found.values, found.stderr, found.low, found.high):
        assert np.isfinite(figure).all()


def test_quantiles_beyond_the_edges_are_reported_as_such():
    found = answered(Quantiles("x", (0, 10, 20), (0.1, 0.5, 0.9)), [-5, -5, 5, 15, 30, 30])
    assert found.values.tolist() == [[0, 10, 20]]
    assert found.notes.tolist() == [[BEYOND, "", BEYOND]]


def test_an_interval_reaches_as_far_beyond_the_edges_as_an_exponential_tail_may():
    numbers = np.random.default_rng(RANDOM).exponential(50.0, 100_000)
    truth = np.quantile(numbers, 0.95)
    for sign, quantile in ((1, 0.95), (-1, 0.05)):
        edges = sorted(sign * edge for edge in (0, 20, 40, 60, 80, 100))
        found = answered(Quantiles("x", edges, (quantile,)), sign * numbers)
        assert (found.values[0, 0], found.notes[0, 0]) == (sign * 100, BEYOND)
        near, far = sorted(abs(end) for end in (found.low[0, 0], found.high[0, 0]))
        assert near <= 100
        beyond = (1 + NINETY_PERCENT * answers.DOUBT) * (truth - 100)
        assert far - 100 == pytest.approx(beyond, rel=0.15)


def test_single_events_beyond_a_bound_vary_and_less_so_the_more_there_are():
    few, many = ([20.0] * 95 * times + [150.0] * 5 * times for times in (1, 100))
    for statistic in (Mean("x", 0, 100), Variance("x", 0, 100)):
        scarce, plenty = (answered(statistic, one) for one in (few, many))
        assert scarce.clipping == pytest.approx(plenty.clipping, rel=0.02)
        assert scarce.stderr > 1.02 * plenty.stderr


# ---- clipping ------------------------------------------------------------------------------------


def test_what_clipping_hides_is_extrapolated_from_an_exponential_tail():
    random = np.random.default_rng(RANDOM)
    numbers = random.exponential(50.0, 200_000)
    for statistic, truth in (
        (Mean("x", 0, 150), numbers.mean()),
        (Sum("x", 0, 150), numbers.sum()),
    ):
        found = answered(statistic, numbers)
        value, missing = found.values[0, 0], found.clipping[0, 0]
        assert missing == pytest.approx(truth - value, rel=0.4)
        assert found.stderr[0, 0] > missing
        assert found.low[0, 0] <= truth <= found.high[0, 0]
    found = answered(Variance("x", 0, 150), numbers)
    assert found.clipping[0, 0] == pytest.approx(numbers.var() - found.values[0, 0], rel=0.4)
    # Below, clipping makes a mean larger.
    found = answered(Mean("x", -150, 0), -numbers)
    assert found.clipping[0, 0] == pytest.approx(-numbers.mean() - found.values[0, 0], rel=0.4)
    assert found.clipping[0, 0] < 0


def test_nothing_is_missing_where_nothing_is_clipped():
    for statistic in (Mean("x", 0, 150), Sum("x", 0, 150), Variance("x", 0, 150)):
        assert answered(statistic, [0, 75, 150]).clipping.tolist() == [[0]]


def test_an_interval_holds_its_value_and_90_percent_of_what_may_be():
    shifts = np.array([-50.0, -3.0, -1.0, 0.0, 0.5, 2.0, 4.0, 100.0])
    half = np.full(len(shifts), NINETY_PERCENT)
    low, high = answers._interval(np.zeros(len(shifts)), half, half, shifts)
    held = stats.norm.cdf(high - shifts) - stats.norm.cdf(low - shifts)
    assert held == pytest.approx(0.9, abs=1e-3)
    assert ((low <= 0) & (high >= 0)).all()


# Heavy and light tails, skewed and even ones.
FAMILIES = {
    "normal": stats.norm,
    "exponential": stats.expon,
    "gamma 2": stats.gamma(2),
    "gamma 0.6": stats.gamma(0.6),
    "Weibull 0.7": stats.weibull_min(0.7),
    "lognormal 0.6": stats.lognorm(0.6),
    "lognormal 0.9": stats.lognorm(0.9),
    "lognormal 1.2": stats.lognorm(1.2),
    "Pareto 4": stats.pareto(4),
    "Pareto 3": stats.pareto(3),
    "t 5": stats.t(5),
    "Laplace": stats.laplace,
    "logistic": stats.logistic,
}


@pytest.mark.slow
def test_how_far_numbers_within_a_bound_are_from_what_its_tail_tells():
    """What `BODIES` says, for the shape that hides as much variance as a distribution does."""
    places, apart = (np.arange(200_000) + 0.5) / 200_000, {True: [], False: []}
    for family in FAMILIES.values():
        numbers = family.ppf(places)
        for share in (0.05, 0.02, 0.01, 0.005):
            bound = family.ppf(1 - share)
            inside = np.minimum(numbers, bound)
            mean, near = inside.mean(), bound - inside.mean()
            hidden = family.expect(lambda x, m=mean, n=near: (x - m) ** 2 - n**2, lb=bound)
            away, begins = (one[0] for one in answers._within(np.array([share])))
            scale = near / begins * share**-answers._SHAPES
            excess = scale / (1 - answers._SHAPES)
            each = 2 * excess * (near + scale / (1 - 2 * answers._SHAPES))
            shape = np.interp(hidden / share, each, answers._SHAPES)
            expected = np.interp(shape, answers._SHAPES, away)
            apart[family.support()[0] == -np.inf].append(near / inside.std() / expected - 1)
    two, one = (np.sqrt(np.mean(np.square(apart[each]))) for each in (True, False))
    assert (round(one, 2), round(two, 2)) == (0.05, 0.26)
    assert one < answers.BODIES < two


@pytest.mark.parametrize(
    ("family", "least", "most"),
    [("exponential", 0.8, 1.25), ("lognormal 0.9", 0.65, 1.5), ("Pareto 4", 0.65, 1.5)],
)
@pytest.mark.parametrize("share", [0.005, 0.02])
def test_a_variance_hides_what_its_tail_has_whatever_its_shape(family, least, most, share):
    """Of an exponential tail alone 0.3 to 0.4 of that were stated for the last two."""
    drawn = FAMILIES[family]
    numbers = drawn.ppf((np.arange(400_000) + 0.5) / 400_000)
    found = answered(Variance("x", 0, float(drawn.ppf(1 - share))), numbers)
    hidden = drawn.var() - found.values[0, 0]
    assert least < found.clipping[0, 0] / hidden < most
    assert found.low[0, 0] <= drawn.var() <= found.high[0, 0]


# ---- top k ---------------------------------------------------------------------------------------


def test_ranks_and_their_chances():
    means = np.array([[10.0], [40.0], [12.0], [1.0], [3.0]])
    found = TopK(3).answer(means, np.full((5, 1), 4.0))
    assert found.ranks.tolist() == [3, 1, 2, 0, 0]
    random = np.random.default_rng(RANDOM)
    drawn = means[:, 0] + 2 * random.standard_normal((400_000, 5))
    order = np.argsort(-drawn, axis=1)
    assert found.order == pytest.approx((order[:, :3] == [1, 2, 0]).all(axis=1).mean(), abs=0.005)
    places = np.argsort(order, axis=1)
    for node in (0, 1, 2):
        before, rest = places[:, node], found.ranks[node]
        held = (before == rest - 1).mean()
        assert found.chances[node] == pytest.approx(held, abs=0.03)
    assert np.isnan(found.chances[3:]).all()
    assert found.values.tolist() == means.tolist()


def test_ranks_where_counts_are_far_apart_equal_or_unknown():
    found = TopK(2).answer(np.array([[1e9], [5.0], [1e6]]), np.array([[100.0], [1.0], [9.0]]))
    assert (found.ranks.tolist(), round(found.order, 6)) == ([1, 0, 2], 1)
    found = TopK(5).answer(np.array([[3.0], [3.0]]), np.ones((2, 1)))
    assert found.ranks.tolist() == [1, 2]
    assert found.chances == pytest.approx(0.5, abs=0.01)
    assert found.order == pytest.approx(0.5, abs=0.01)
    found = TopK(1).answer(np.zeros((2, 1)), np.full((2, 1), np.nan))
    assert found.order is not None
    assert np.isnan(found.order)
    assert np.isnan(found.chances).all()


# ---- coverage ------------------------------------------------------------------------------------

DRAWN = {
    "normal": lambda random, n: random.normal(70, 40, n),
    "exponential": lambda random, n: -30 + random.exponential(40, n),
    "uniform": lambda random, n: random.uniform(-30, 180, n),
    "delays": lambda random, n: -20 + random.gamma(0.6, 45, n),
    "lognormal": lambda random, n: -30 + np.exp(random.normal(3.5, 0.6, n)),
}
EDGES = (0, 5, 10, 20, 30, 45, 60, 90, 120, 160)
ASKED = (
    Mean("x", -30, 180),
    Sum("x", -30, 180),
    Variance("x", -30, 180),
    StandardDeviation("x", -30, 180),
    Quantiles("x", (-30, -15, 0, 15, 30, 45, 60, 90, 120, 180), (0.25, 0.5, 0.75)),
)
TRUTH = {"mean": np.mean, "sum": np.sum, "variance": np.var, "stddev": np.std}


def truth_of(statistic, numbers):
    """Of the numbers as they are, without bounds."""
    if statistic.name == "quantiles":
        return np.quantile(numbers, statistic.quantiles, method="inverted_cdf")
    return np.array([TRUTH[statistic.name](numbers)])


def test_intervals_of_every_statistic_of_numbers_are_tested():
    assert {one.name for one in ASKED} == set(OF_NUMBERS)


# By default numbers of one distribution, so that a wrong interval of a new statistic fails.
@pytest.mark.parametrize("statistic", ASKED, ids=lambda one: one.name)
@pytest.mark.parametrize(
    "draws", [["delays"], pytest.param([*DRAWN], marks=pytest.mark.slow)], ids=["one", "all"]
)
def test_intervals_hold_the_figures_of_numbers_that_are_not_clipped(statistic, draws):
    random = np.random.default_rng(RANDOM)
    held = []
    for draw in (DRAWN[name] for name in draws):
        nodes = [draw(random, 1500) for _ in range(300)]
        parts = parts_of(statistic, *nodes)
        scale = 12.0 * statistic.weights.sum(axis=1).max()
        noisy = parts + random.laplace(0, scale, parts.shape)
        found = statistic.answer(noisy, np.full(parts.shape, 2 * scale**2))
        truth = np.stack([truth_of(statistic, numbers) for numbers in nodes])
        held.append(((found.low <= truth) & (truth <= found.high)).mean())
    # Errors of noise that is drawn anew are not together, so quantiles tell too large ones; tails
    # of these are no heavier than others may be.
    most = {"mean": 0.93, "sum": 0.93, "quantiles": 0.99}.get(statistic.name, 0.97)
    least = 0.88
    assert least <= np.mean(held) <= most


def observed_slots(statistic, draw, noise, slots, seed=RANDOM):
    """Of slots that are observed with noise the truth, value, low and high, each (slots, outputs).

    Args:
        statistic: what is asked.
        draw: numbers of a slot, of a generator and the number of the slot.
        noise: standard deviation of that of a part, in events.
    """
    random, whole, rows = np.random.default_rng(seed), statistic.weights.sum(axis=1).max(), []
    usual = Usual.start(1, statistic.weights.shape[1], statistic.ratios)
    for slot in range(slots):
        numbers = draw(random, slot)
        parts = parts_of(statistic, numbers)
        parts += random.laplace(0, noise * whole / np.sqrt(2), parts.shape)
        variances = np.full(parts.shape, (noise * whole) ** 2)
        usual = usual.after([Observed(parts, variances)])
        found = statistic.answer(parts, variances, usual)
        truth = truth_of(statistic, numbers)
        rows.append([truth, found.values[0], found.low[0], found.high[0]])
    return np.swapaxes(rows, 0, 1)


def amounts(random, slot):
    return np.exp(random.normal(3.3, 0.9, random.poisson(800)))


def heavy(random, slot):
    return 15 * (1 + random.pareto(2.5, random.poisson(800)))


def minutes(random, slot):
    return np.round(random.normal(-4, 5, 800) + random.gamma(0.35, 40, 800))


AMOUNTS = (0, 5, 10, 20, 30, 45, 60, 90, 120, 160, 200)
HEAVY = (10, 15, 18, 22, 27, 35, 50, 75, 120, 200)
MINUTES = (-30.5, -15.5, -10.5, -5.5, -2.5, 0.5, 5.5, 10.5, 15.5, 30.5, 60.5, 120.5, 180.5)


# With exponential tails alone, variances of such amounts were held in 0.84 of the slots; and
# medians in 0.99 before edges showed how smooth numbers are, and in 0.95 while a smooth curve was
# doubted as far as it is from a straight line.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("statistic", "draw", "noise", "least", "most"),
    [
        (Variance("x", 0, 200), amounts, 4, 0.88, 0.96),
        (StandardDeviation("x", 0, 200), amounts, 4, 0.88, 0.96),
        (Mean("x", 0, 200), amounts, 11.5, 0.88, 0.95),
        (Quantiles("x", AMOUNTS, (0.5,)), amounts, 4, 0.88, 0.95),
        (Quantiles("x", MINUTES, (0.5,)), minutes, 4, 0.88, 0.95),
        (Quantiles("x", HEAVY, (0.5,)), heavy, 11.5, 0.88, 0.99),
    ],
    ids=[
        *("variance", "stddev", "mean", "median", "median of whole numbers"),
        "median of numbers that begin at once",
    ],
)
def test_intervals_hold_nine_in_ten_where_slots_are_alike(statistic, draw, noise, least, most):
    runs = [observed_slots(statistic, draw, noise, 200, seed)[:, 20:] for seed in range(6)]
    held = [(low <= truth) & (truth <= high) for truth, _, low, high in runs]
    assert least <= np.mean(held) <= most


@pytest.mark.slow
@pytest.mark.parametrize(("draw", "times"), [(amounts, 0.77), (heavy, 1.33)])
def test_what_not_to_know_a_tail_costs_a_variance(draw, times):
    """Beside the shortest interval around values that would have held 0.9, known afterwards."""
    runs = [observed_slots(Variance("x", 0, 200), draw, 4, 200, seed)[:, 20:] for seed in range(6)]
    truth, value, low, high = np.concatenate(runs, axis=1)[..., 0]
    missing = np.sort(truth - value)
    several = int(0.9 * len(missing))
    shortest = (missing[several:] - missing[:-several]).min()
    assert shortest / (high - low).mean() == pytest.approx(times, abs=0.05)


# Slots, users, bins; what a slot adds to its numbers and how many come.
SLOTS, USERS, BINS = 100, 30_000, 3


def stream_of(draw, seed):
    """Of each slot and bin the numbers of its events."""
    random = np.random.default_rng(seed)
    for slot in range(SLOTS):
        crowd = USERS / 2 * (1 + 0.4 * np.sin(2 * np.pi * slot / 24)) * np.array([0.5, 0.3, 0.2])
        moved = 6 * np.sin(2 * np.pi * slot / 60)
        yield [draw(random, size) + moved for size in random.poisson(crowd)]


def coverage(statistic, draw, seed, *, name="adaptive", epsilon=1.0, window=24):
    """Share of intervals that hold the truth, after the first slots."""
    measure = Measure(statistic.weights, np.arange(BINS)[:, None])
    population = Population(
        (Requirement(window, epsilon),),
        np.array([USERS]),
        measure.size,
        measure.sensitivity,
        quantum=measure.quantum,
        ratio=measure.parts if statistic.ratios else 0,
        graded=measure.graded,
    )
    stream = ReleaseStream(mechanism(name, population), NoiseSource(bytes([seed]) * 32))
    state, held = stream.start(), []
    usual = Usual.start(BINS, measure.parts, statistic.ratios) if statistic.ratios else None
    for slot, nodes in enumerate(stream_of(draw, seed)):
        counts = parts_of(statistic, *nodes).reshape(1, -1).astype(np.int64)
        state, release = stream.release(state, slot, counts)
        shape = (BINS, measure.parts)
        figures = (
            release.counts.astype(np.float64).reshape(shape),
            release.stderr.reshape(shape) ** 2,
        )
        usual = usual and usual.after(
            Observed(one.counts.reshape(shape), one.variances.reshape(shape), one.slots)
            for one in release.observed
        )
        found = statistic.answer(*figures, usual)
        truth = np.stack([truth_of(statistic, numbers) for numbers in nodes])
        held.append((found.low <= truth) & (truth <= found.high))
    return np.mean(held[10:])


@pytest.mark.slow
@pytest.mark.parametrize("statistic", ASKED, ids=lambda one: one.name)
def test_intervals_of_the_adaptive_mechanism_hold_what_they_should(statistic):
    seeds = [(RANDOM, draw) for draw in DRAWN.values()] + [(20, draw) for draw in DRAWN.values()]
    held = [coverage(statistic, draw, seed) for seed, draw in seeds]
    # Where numbers could lie worse between edges or in tails than these do, intervals hold more.
    # Variances depend most on what is beyond the bounds, and the doubt about that is larger than
    # these light tails ask for: of variances and of their roots 0.986 were held.
    most = {"mean": 0.92, "sum": 0.93}.get(statistic.name, 0.99)
    assert 0.88 <= np.mean(held) <= most, held


def crowd(random, slot):
    return random.gamma(1.5, 18, random.poisson(600))


def all_or_nothing(random, slot):
    return 150.0 * (random.random(random.poisson(600)) < 0.1)


# Before what releases leave was by what filters take of them, and parts of numbers were thought to
# vary less than counts, sums of amounts were held in 0.84 of the slots and others in 0.87; and with
# less budget in 0.985, by intervals that were wider by a quarter. Since parts of a sum may be
# negative, which sums without bias need, heavy tails are held in 0.951.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("draw", "upper", "epsilon", "least", "most"),
    [
        (amounts, 200, 3.0, 0.86, 0.93),
        (heavy, 200, 3.0, 0.89, 0.96),
        (crowd, 150, 3.0, 0.89, 0.95),
        (crowd, 150, 1.0, 0.89, 0.977),
        (all_or_nothing, 150, 3.0, 0.855, 0.95),
    ],
)
def test_intervals_of_sums_hold_nine_in_ten(draw, upper, epsilon, least, most):
    statistic, held = Sum("x", 0, upper), []
    query = Query("asked", statistic=statistic)
    asked = QuerySet(base=Slots.of("1h"), queries=[query])
    for seed in range(8):
        random = np.random.default_rng(seed)
        numbers = [draw(random, slot) for slot in range(300)]
        counts = np.array([parts_of(statistic, one) for one in numbers]).astype(np.int64)
        key = bytes([seed]) * 32
        found = simulate_query_set(asked, {"asked": counts}, [(24, epsilon)], [5000], key)
        results = list(answers_of(query, found.releases["asked"]))[10:]
        low, high = (
            np.array([getattr(one, end)[0, 0] for one in results]) for end in ("low", "high")
        )
        truth = np.array([one.sum() for one in numbers[10:]])
        held.append(((low <= truth) & (truth <= high)).mean())
    assert least <= np.mean(held) <= most, held


# ---- coverage where noise is large and figures move ----------------------------------------------


def held_beside_noise(statistic, seed):
    """For each figure, the share of slots 60 to 299 whose interval holds it."""
    measure = Measure(statistic.weights, np.zeros((1, 1), np.int64))
    population = Population(
        (Requirement(24, 1.0),),
        np.array([5000]),
        measure.size,
        measure.sensitivity,
        quantum=measure.quantum,
        ratio=measure.parts,
        graded=measure.graded,
    )
    stream = ReleaseStream(mechanism("adaptive", population), NoiseSource(bytes([seed]) * 32))
    state, usual = stream.start(), Usual.start(1, measure.parts, statistic.ratios)
    random, held = np.random.default_rng(seed), []
    for slot in range(300):
        crowd = int(750 * (1 + 0.5 * np.sin(2 * np.pi * slot / 24)))
        numbers = random.gamma(2.0, 14 + 4 * np.sin(2 * np.pi * slot / 60), crowd)
        counts = parts_of(statistic, numbers).reshape(1, -1).astype(np.int64)
        state, release = stream.release(state, slot, counts)
        released = release.counts.astype(np.float64)[None], release.stderr[None] ** 2
        usual = usual.after(
            Observed(one.counts[None], one.variances[None], one.slots) for one in release.observed
        )
        found, truth = statistic.answer(*released, usual), truth_of(statistic, numbers)
        held.append((found.low[0] <= truth) & (truth <= found.high[0]))
    return np.mean(held[60:], axis=0)


# The errors of one stream go on for tens of slots, so the share of one stream varies much: in 24
# streams from 0.64 to 0.97 for the mean, 0.90 on average, and from 0.80 to 0.98 for the quantiles,
# 0.90 and 0.92 on average. Hence twelve streams; their average has a standard error of 0.023.
@pytest.mark.slow
@pytest.mark.parametrize("statistic", [Mean("x", 0, 150), Quantiles("x", EDGES, (0.5, 0.95))])
def test_intervals_of_figures_that_move_hold_them_beside_much_noise(statistic):
    """Numbers whose mean goes up and down, at noise of a budget of 1 over 24 slots."""
    each = np.mean([held_beside_noise(statistic, seed) for seed in range(1, 13)], axis=0)
    assert (each >= 0.86).all(), each
    assert (each <= 0.985).all(), each
