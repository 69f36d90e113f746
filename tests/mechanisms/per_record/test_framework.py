"""The framework and its base mechanisms: what they compute, what they spend, how parts add up."""

import doctest
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.per_record import (
    Bounds,
    Framework,
    Inverse,
    Own,
    own_mechanism,
    select_domain,
)
from streamveil.mechanisms.per_record.base_distinct import Distinct
from streamveil.mechanisms.per_record.base_max import Max
from streamveil.mechanisms.per_record.base_sum import Sum
from streamveil.mechanisms.per_record.framework import largest_values, thresholds
from streamveil.mechanisms.per_record.laplace import Laplace, fine_epsilon, fine_units
from streamveil.mechanisms.randomness.noise import NoiseSource, fine_laplace
from streamveil.mechanisms.registry import statistic

FLAKINESS = 1e-6
BUDGET = Inverse(1e3, 1e6, 10.0)
MECHANISMS = {
    "sum": lambda: statistic("sum", "framework", BUDGET.bounds, budget=BUDGET),
    "max": lambda: statistic("max", None, BUDGET.bounds, budget=BUDGET),
    "distinct": lambda: statistic("distinct", None, BUDGET.bounds, budget=BUDGET),
    "own": lambda: Framework("own", BUDGET.bounds, Own(noisy_length), BUDGET),
}


def noisy_length(values, epsilon, beta, words):
    """A private count, as an own mechanism."""
    return len(values) + Laplace.of(fine_units(epsilon)).noisy(0, 0, words)[0]


def noise(slot=0):
    return NoiseSource(bytes(range(32))).slot(slot, b"framework")


def words(slot=0):
    return noise(slot).words("test")


def whole(made, values, budgets=None):
    """The part of all records."""
    values = np.asarray(values, np.float64)
    budgets = BUDGET(values) if budgets is None else np.asarray(budgets, np.float64)
    return made.tally(values, budgets, np.zeros(len(values), np.int64), 1)[0]


def test_golden(golden):
    cases = [case for case in golden("per_record")["cases"] if case["kind"] == "framework"]
    assert cases
    for case in cases:
        given_, expected = case["input"], case["expect"]
        budget = Inverse(case["alpha"], case["U"], case["eps_hat"])
        options = {"beta": given_["beta"], "rho": given_["rho"], "select": "first"}
        made = Framework("sum", budget.bounds, Sum(budget.bounds), budget, **options)
        part = whole(made, given_["records"], budget(np.array(given_["records"], float)))
        limits = thresholds(made.low, given_["beta"], given_["rho"])
        assert limits == pytest.approx(expected["thresholds"], rel=1e-12)
        noisy = made.base.counts(part, len(made.low)) + np.array(given_["noise"])
        first = int(made.first(noisy))
        assert first + 1 == select_domain(noisy, limits) == expected["ell"]
        assert made.low[first] == pytest.approx(expected["eps_tau"], rel=1e-12)
        kept = made.kept(first)
        assert fine_epsilon(kept.budget) == pytest.approx(expected["eps_M"], rel=1e-12)
        assert made.base.counts(part, len(made.low))[first:].sum() == expected["kept"]
        steps = made.base.clipped(part, first, 40)
        kept_sum = math.ldexp(steps, made.base.grid.exponent)
        assert kept_sum == expected["kept_sum"]
        scale = Laplace.of(kept.budget).scale
        unit = given_["base_unit_noise"]
        largest = case["alpha"] / made.low[first]
        assert largest <= kept.largest <= 1.02 * largest
        released = kept_sum + unit * scale * largest
        assert released == pytest.approx(expected["sum_lap_vmax_released"], rel=1e-11)
        other = Framework("distinct", budget.bounds, Distinct(), budget, **options)
        part = whole(other, given_["records"], budget(np.array(given_["records"], float)))
        distinct = other.base.exact(part, first)
        assert distinct == expected["distinct_true"]
        assert distinct + unit * scale == pytest.approx(expected["distinct_released"], rel=1e-11)


@given(
    st.floats(1e-12, 10.0),
    st.floats(1.0, 1e6),
    st.floats(1e-3, 0.999),
    st.floats(0.0, 0.9),
)
def test_no_record_pays_more_than_the_smallest_budget_of_its_domain(low, ratio, rho, share):
    bounds = Bounds(low, min(low * ratio, 4096.0), 1e6)
    made = Framework("sum", bounds, Sum(bounds, share), rho=rho)
    for first in range(len(made.low)):
        kept = made.kept(first)
        spent = made.base._clip_noise(kept)
        clip = 2 * spent.loss if spent else 0
        assert clip + Laplace.of(kept.budget - clip).loss <= kept.budget
        for domain in range(first, len(made.low)):
            loss = made.selection_noise[domain].loss + kept.budget
            assert Fraction(loss, 1 << 56) <= Fraction(float(made.low[domain]))


@pytest.mark.slow
def test_every_record_is_in_a_domain_below_its_budget():
    made = MECHANISMS["own"]()
    budgets = np.exp(np.random.default_rng(1).uniform(np.log(1e-3), np.log(20), 100_000))
    edges = np.concatenate([made.low, np.nextafter(made.low, 0), np.nextafter(made.low, 99)])
    budgets = np.concatenate([budgets, edges])
    parts = made.tally(np.zeros(len(budgets)), budgets, np.arange(len(budgets)), len(budgets))
    domains = [int(part[0, 1]) if len(part) else -1 for part in parts]
    counted = np.array(domains) >= 0
    assert (counted == (budgets >= made.low[0])).all()
    assert (made.low[np.array(domains)[counted]] <= budgets[counted]).all()


@given(st.integers(0, 2**60), st.integers(0, 2**48), st.integers(8, 2**68))
def test_a_record_changes_what_gets_noise_by_its_sensitivity_at_most(total, added, budget):
    laplace = Laplace.of(budget)
    shift = 48 - laplace.bits
    before, after = (
        value >> shift if shift >= 0 else value << -shift for value in (total, total + added)
    )
    assert 0 <= after - before <= 1 << laplace.bits
    assert budget * (1 - 2.0**-39) < laplace.loss <= budget


RECORDS = st.lists(
    st.tuples(st.sampled_from([0.0, -0.0, 1.0, 3.5, 800.0, 3e4, 1e6]), st.integers(0, 2)),
    max_size=30,
)


@pytest.mark.parametrize("kind", MECHANISMS)
@given(RECORDS, st.integers(1, 5))
def test_parts_of_any_batches_add_up_to_the_part_of_all(kind, records, size):
    made = MECHANISMS[kind]()
    values = np.array([value for value, _ in records], np.float64)
    cells = np.array([cell for _, cell in records], np.int64)
    parts = made.tally(values, BUDGET(values), cells, 3)
    batches = [slice(i, i + size) for i in range(0, len(values), size)]
    for cell in range(3):
        mine = [made.tally(values[b], BUDGET(values[b]), cells[b], 3)[cell] for b in batches]
        assert made.add(mine[::-1]).tolist() == made.add([parts[cell]]).tolist()
        assert made.add(mine).dtype == np.int64


@pytest.mark.parametrize("kind", MECHANISMS)
def test_bad_records_leave_no_trace(kind):
    made = MECHANISMS[kind]()
    good = np.array([5.0, 700.0, 1e6])
    bad = np.array([np.nan, -1.0, 1.1e6, np.inf, 3.0, 3.0, 3.0, 3.0])
    budgets = np.concatenate([BUDGET(bad[:4]), [np.nan, 0.0, -1.0, 9e-4], BUDGET(good)])
    with np.errstate(all="raise"):
        part = whole(made, np.concatenate([bad, good]), budgets)
        assert part.tolist() == whole(made, good).tolist()
        assert made.release(part, noise()) == pytest.approx(
            made.release(whole(made, good), noise()), nan_ok=True
        )
        made.release(made.add([]), noise())


@pytest.mark.parametrize("kind", MECHANISMS)
def test_estimates_are_about_right(kind):
    made = MECHANISMS[kind]()
    values = np.random.default_rng(2).integers(1, 5000, 40_000).astype(np.float64)
    released = made.release(whole(made, values), noise())
    true = {"sum": values.sum(), "max": 5000.0, "own": 40_000, "distinct": 4999.0}[kind]
    assert released.estimate == pytest.approx(true, rel=0.15)
    assert released.epsilon_tau <= 0.25
    assert 0 <= released.dropped_bound < math.inf


def test_dropped_bound_holds():
    made = MECHANISMS["distinct"]()
    # A handful of strict records, who are left out.
    values = np.concatenate([np.full(3000, 150.0), 1e5 + np.arange(30.0)])
    part = whole(made, values)
    failed = 0
    for slot in range(200):
        released = made.release(part, noise(slot))
        left_out = (BUDGET(values) < released.epsilon_tau).sum()
        failed += released.dropped_bound < left_out
    assert failed <= stats.binom.ppf(1 - FLAKINESS, 200, made.beta)


def test_a_value_counts_once_whatever_domains_its_records_are_in():
    made = MECHANISMS["distinct"]()
    part = whole(made, [7.0, 7.0, 7.0, 8.0], [0.001, 0.5, 9.0, 0.002])
    assert [made.base.exact(part, first) for first in (0, 1, 2, 14)] == [2, 1, 1, 0]


def test_sums_are_clipped_at_powers_of_two():
    made = MECHANISMS["sum"]()
    values = np.array([3.0, 100.0, 900.0, 1e6])
    part = whole(made, values)
    for clip in range(41):
        end = math.ldexp(1.0, clip + 8 + made.base.grid.exponent)
        got = math.ldexp(made.base.clipped(part, 0, clip), made.base.grid.exponent)
        assert got == np.minimum(values, end).sum()


def test_the_clip_follows_the_values():
    bounds = Bounds(1.0, 1.0, 1e6)
    made = Framework("sum", bounds, Sum(bounds))
    part = whole(made, np.full(5000, 1000.0), np.ones(5000))
    clips = made.base.clips(part, made.kept(0), words(), 1000)
    ends = np.ldexp(1.0, clips + 8 + made.base.grid.exponent)
    wrong = int((ends != 1024.0).sum())
    assert wrong <= stats.binom.ppf(1 - FLAKINESS, 1000, made.beta / 2)


# Many ties and a large budget: the target rank is far nearer than the next grid point.
@pytest.mark.parametrize("budget", [4.096, 80.0, 4096.0])
def test_the_maximum_of_many_equal_values_is_one_of_them(budget):
    made = statistic("max", None, Bounds(budget, budget, 200.0))
    (part,) = made.tally(np.full(400, 150.0), np.full(400, budget), np.zeros(400, np.int64), 1)
    source = NoiseSource(bytes(range(32)))
    for slot in range(20):
        assert made.release(part, source.slot(slot, b"")).estimate == pytest.approx(150, rel=2**-10)


@given(st.floats(0, 1e6), st.integers(1, 16))
def test_the_grid_of_the_maximum_is_as_fine_as_stated(value, bits):
    grid = Max(1e6, bits)
    code = grid.codes(np.array([value]))
    below, above = grid.points(code)[0], grid.points(code + 1)[0]
    assert below <= value < above
    if code[0] > 0:
        assert above - below <= below * 2.0**-bits
    assert grid.codes(np.array([1e6]))[0] <= 41 << bits


def test_what_a_budget_function_tells_of_values():
    epsilons = np.array([0.001, 0.5, 5.0])
    found = largest_values(BUDGET, epsilons, 1e6)
    assert ((1e3 / epsilons <= found) & (found <= 1.02e3 / epsilons)).all()
    assert largest_values(None, epsilons, 7.0).tolist() == [7.0] * 3
    rising = largest_values(lambda values: 0.001 + values, epsilons, 10.0)
    assert (rising == 10.0).all()


def test_the_example_of_an_own_mechanism():
    assert doctest.testmod(own_mechanism, raise_on_error=True).attempted


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("max", "framework:rho=1", "rho"),
        ("max", "framework:beta=0", "beta"),
        ("max", "framework:bits=0", "bits"),
        ("distinct", "framework:select=best", "select"),
        ("sum", "framework:clip_share=1", "share"),
    ],
)
def test_wrong_options_are_refused(kind, text, message):
    with pytest.raises(ConfigurationError, match=message):
        statistic(kind, text, BUDGET.bounds)


def test_budgets_too_small_for_noise_are_refused():
    with pytest.raises(ConfigurationError, match="too small"):
        statistic("distinct", None, Bounds(1e-17, 1.0))


def test_releases_are_a_function_of_key_and_input():
    for make in MECHANISMS.values():
        made = make()
        part = whole(made, np.arange(2000.0))
        first, second = (made.release(part, noise(1)) for _ in range(2))
        assert first == pytest.approx(second, nan_ok=True)
        assert made.release(part, noise(2)).estimate != first.estimate


def test_laplace_noise_on_integers_is_laplace():
    for budget in (fine_units(1e-9), fine_units(0.7), fine_units(30.0)):
        laplace = Laplace.of(budget)
        got = laplace.noisy(1 << 20, 20, words(budget.bit_length()), 20_000) / 2**20 - 1
        assert stats.kstest(got / laplace.scale, "laplace").pvalue > FLAKINESS
    assert fine_laplace(np.array([Laplace.of(8).rate]), words()).shape == (1, 1)
