"""The mechanisms for comparison: prices, distributions, and what SPAS books."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from streamveil.mechanisms import MECHANISMS, SCHEDULES, NoiseSource, simulate
from streamveil.mechanisms.comparators.randomized_response import RandomizedResponse
from streamveil.mechanisms.comparators.spas import SPAS, booked, most_bookings
from streamveil.mechanisms.randomness import noise
from tests.mechanisms.streams import (
    FLAKINESS,
    KEY,
    SIGMAS,
    assert_within_budget,
    people,
    released,
    windows_and_epsilons,
)

UNIT = 2**40
COMPARATORS = ("uniform", "sample", "spas", "lbu", "plbu")
NAMES = pytest.mark.parametrize("name", COMPARATORS)


def slot_noise(name=""):
    return NoiseSource(KEY, name).slot(0, b"")


def test_they_are_registered():
    assert set(COMPARATORS) <= set(MECHANISMS) - set(SCHEDULES)


# ---- budgets --------------------------------------------------------------------------------


# No window of any class overspends, in exact integers, whatever the counts do: also where there
# are more events than users.
@pytest.mark.many
@NAMES
@settings(max_examples=40)
@given(
    requirements=windows_and_epsilons(),
    sensitivity=st.integers(1, 3),
    scale=st.sampled_from([0, 3, 200]),
    seed=st.integers(0, 2**32),
)
def test_no_window_overspends(name, requirements, sensitivity, scale, seed):
    rng = np.random.default_rng(seed)
    population = people(
        requirements, rng.choice([0, 1, 50, 300], len(requirements)), 2, sensitivity
    )
    counts = (rng.random((40, len(requirements), 2)) * scale).astype(np.int64)
    assert_within_budget(released(population, name, counts), population.requirements)


MIXED = [(3, 1.0), (7, 0.3), (1, 5.0)]


@pytest.mark.parametrize(
    ("name", "prices"),
    [
        ("uniform", [UNIT // 3, math.floor(Fraction(0.3) * UNIT) // 7, 5 * UNIT]),
        ("plbu", [UNIT // 3, math.floor(Fraction(0.3) * UNIT) // 7, 5 * UNIT]),
        ("lbu", [math.floor(Fraction(0.3) * UNIT) // 7] * 3),
    ],
)
def test_even_prices(name, prices):
    releases = released(people(MIXED, [20, 30, 10]), name, np.ones((10, 3, 2)))
    assert {release.status for release in releases} == {"published"}
    assert all(release.spent.tolist() == prices for release in releases)
    assert [release.published_slot for release in releases] == list(range(10))


# Whole budgets every seventh slot, the longest window; the slots between repeat and are free.
def test_sample_publishes_once_a_window():
    counts = np.arange(16)[:, None, None] * np.ones((1, 3, 2))
    releases = released(people(MIXED, [20, 30, 10]), "sample", counts)
    whole = [UNIT, math.floor(Fraction(0.3) * UNIT), 5 * UNIT]
    for slot, release in enumerate(releases):
        due = slot % 7 == 0
        assert release.status == ("published" if due else "skipped")
        assert release.spent.tolist() == (whole if due else [0, 0, 0])
        assert release.published_slot == slot - slot % 7
        np.testing.assert_array_equal(release.counts, releases[slot - slot % 7].counts)


# ---- errors ---------------------------------------------------------------------------------


# A class of which all are kept: released counts are unbiased, and their mean square error is what
# stderr says, in the local mechanisms too, up to the error of a mean of `runs` squares.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["uniform", "sample", "lbu", "plbu"])
@pytest.mark.parametrize("sensitivity", [1, 2])
@pytest.mark.parametrize("epsilon", [0.4, 3.0])
def test_stderr_is_calibrated(name, sensitivity, epsilon):
    bins, slots = 40, 300
    population = people([(1, epsilon)], [500], bins, sensitivity)
    counts = np.tile(np.arange(bins) % 20, (slots, 1, 1))
    releases = released(population, name, counts)
    error = np.array([release.counts for release in releases]) - counts[:, 0]
    expected = np.array([release.stderr for release in releases])
    assert (np.abs(error.mean(axis=0)) < SIGMAS * expected.mean(axis=0) / math.sqrt(slots)).all()
    # Bins of a slot are slightly dependent in GRR, so every slot is one sample of their mean.
    excess = (error**2 - expected**2).mean(axis=1)
    assert abs(excess.mean()) < SIGMAS * excess.std() / math.sqrt(slots)


# Uniform drops nearly all of the class below the threshold: what is missing is in its stderr.
def test_uniform_tells_its_bias():
    population = people([(1, 0.05), (1, 6.0)], [10, 1000], 50)
    counts = np.tile(np.array([[[5], [500]]]), (100, 1, 50))
    releases = released(population, "uniform", counts)
    error = np.array([release.counts for release in releases]) - 505
    expected = np.array([release.stderr for release in releases])
    assert -5.1 < error.mean() < -4.9
    assert 0.95 < math.sqrt((error**2).mean()) / expected.mean() < 1.05


# PLBU combines classes of different budgets: unbiased where their values are distributed alike,
# and better than LBU.
def test_plbu_combines_classes():
    requirements, sizes = [(2, 1.0), (1, 2.0), (4, 8.0)], [4000, 2000, 2000]
    counts = np.tile(np.array([[[800, 1600], [400, 800], [400, 800]]]), (400, 1, 1))
    true = counts[0].sum(axis=0)
    errors = {}
    for name in ("lbu", "plbu"):
        result = simulate(name, counts, requirements, sizes, KEY)
        error = result.released - true
        assert (np.abs(error.mean(axis=0)) < SIGMAS * result.stderr.mean(axis=0) / 20).all()
        excess = (error**2 - result.stderr**2).mean(axis=1)
        assert abs(excess.mean()) < SIGMAS * excess.std() / 20
        errors[name] = result.stderr.mean()
    assert errors["plbu"] < errors["lbu"] / 4


# ---- randomised response --------------------------------------------------------------------


# Frequencies of reports are those of GRR: a true symbol with p = e^eps / (e^eps + m - 1), every
# other with q = 1 / (e^eps + m - 1). The chi-square of each true symbol accepts at FLAKINESS.
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_reports_are_grr(epsilon):
    each = 200_000
    response = RandomizedResponse.choose(
        np.full(4, int(epsilon * UNIT)), people([(1, epsilon)] * 4, [each] * 4, bins=3)
    )
    symbols = np.eye(4, dtype=np.int64) * each
    reports = response.perturb(symbols, slot_noise())
    assert (reports.sum(axis=1) == each).all()
    q = 1 / (math.exp(epsilon) + 3)
    for k in range(4):
        expected = np.full(4, q)
        expected[k] = q * math.exp(epsilon)
        assert stats.chisquare(reports[k], expected * each).pvalue > FLAKINESS / 12


# Words of chance are not reduced modulo the symbols: the highest, which would favour the first
# symbols, are drawn again.
def test_symbols_are_exactly_uniform():
    class Words:
        given = iter([[2**64 - 1, 5, 2**64 - 2], [2**64 - 1], [7]])

        def draw(self, size):
            words = next(self.given)
            assert len(words) == size
            return np.array(words, dtype=np.uint64)

    assert noise.uniform(3, 3, Words()).tolist() == [7 % 3, 5 % 3, (2**64 - 2) % 3]


# Absence is a symbol; contributions beyond the public number of tickets are left out, and one
# contribution more or less changes one ticket at most, on any counts.
def test_one_contribution_is_one_ticket():
    response = RandomizedResponse.choose(
        np.full(2, UNIT), people([(1, 1.0), (1, 1.0)], [5, 3], bins=2, sensitivity=2)
    )
    assert response.tickets.tolist() == [10, 6]
    rng = np.random.default_rng(3)
    for _ in range(200):
        counts = rng.integers(0, 8, (2, 2))
        symbols = response.symbols(counts)
        assert (symbols >= 0).all()
        assert symbols.sum(axis=1).tolist() == [10, 6]
        if (counts.sum(axis=1) <= [10, 6]).all():
            np.testing.assert_array_equal(symbols[:, :2], counts)
        more = counts.copy()
        more[rng.integers(2), rng.integers(2)] += 1
        changed = response.symbols(more) - symbols
        assert np.abs(changed).sum() in (0, 2)


# A budget so large that no float tells it from certainty still gives randomised response, and one
# of a unit still gives whole numbers.
def test_extreme_budgets():
    huge = RandomizedResponse.choose(np.array([2**52]), people([(1, 4096.0)], [100]))
    assert huge.truth[0] < 1
    counts, stderr = huge.publish(np.array([[60, 30]]), slot_noise())
    assert counts.tolist() == [60, 30]
    assert (stderr < 0.3).all()
    tiny = RandomizedResponse.choose(np.array([1]), people([(1, 1.0)], [100]))
    counts, stderr = tiny.publish(np.array([[60, 30]]), slot_noise())
    assert counts.dtype == np.int64
    assert (np.abs(counts) < SIGMAS * stderr).all()


# A class without budget reports nothing, and weighs nothing.
def test_a_class_without_budget():
    population = people([(1, 1.0), (8, 1.0)], [100, 100])
    response = RandomizedResponse.choose(np.array([UNIT, 0]), population)
    assert response.weights.tolist() == [1.0, 0.0]
    assert response.tickets.tolist() == [100, 0]
    assert response.total == 200
    quiet, busy = np.array([[60, 30], [0, 0]]), np.array([[60, 30], [50, 50]])
    np.testing.assert_array_equal(
        response.publish(quiet, slot_noise())[0], response.publish(busy, slot_noise())[0]
    )


# ---- SPAS -----------------------------------------------------------------------------------


# The bookings of a run: whichever w consecutive slots are looked at, they hold one for every block
# they touch, and no more of them than the run's price is divided by.
@pytest.mark.parametrize("block", range(1, 14))
def test_every_window_holds_a_booking_of_every_run_it_touches(block):
    windows = np.arange(1, block + 1)
    one = np.array([booked(position, block, windows) for position in range(block)])
    table = np.tile(one, (4, 1))
    limit = most_bookings(block, windows)
    for k, window in enumerate(windows.tolist()):
        found = set()
        for start in range(block * 4 - window + 1):
            inside = np.arange(start, start + window)
            inside = inside[table[inside, k]]
            touched = {slot // block for slot in range(start, start + window)}
            assert touched <= set((inside // block).tolist())
            found.add(len(inside))
        assert max(found) <= limit[k]


# A run is booked whole, its answers and its threshold fit into its price, in whole units.
@pytest.mark.parametrize("sensitivity", [1, 2, 3])
def test_a_run_fits_its_price(sensitivity):
    machine = SPAS("spas", people([(12, 0.7), (5, 2.0)], [10, 10], 2, sensitivity))
    half = math.floor(Fraction(0.7) * UNIT) // 2
    assert machine.run == half // 3
    for planned in range(1, 13):
        threshold, answer = machine._shares(planned)
        assert threshold > 0
        assert answer > 0
        price = sensitivity * threshold + planned * 2 * sensitivity * answer
        assert machine.run * 0.999 < price <= machine.run


# The first window is published evenly from half of the budget; then a publication waits until its
# share is back; then runs ask, and steady counts are seldom published, moving ones often.
def test_spas_over_time():
    window = 20
    steady = np.full((400, 1, 30), 300)
    moving = steady + np.arange(400)[:, None, None] * 40
    errors = {}
    for name, counts in (("steady", steady), ("moving", moving)):
        releases = released(people([(window, 4.0)], [1000], 30), "spas", counts)
        statuses = [release.status for release in releases]
        assert set(statuses[:window]) == {"published"}
        assert all(r.spent[0] == 2 * UNIT // window for r in releases[:window])
        assert statuses[window] in ("nullified", "published")
        assert all(1 <= r.diagnostics["planned_publications"] <= window for r in releases[window:])
        errors[name] = (
            statuses[window:].count("published"),
            np.mean([r.diagnostics["planned_publications"] for r in releases[100:]]),
        )
    assert errors["steady"][0] < errors["moving"][0] / 2
    assert errors["steady"][1] < 3 < errors["moving"][1]
