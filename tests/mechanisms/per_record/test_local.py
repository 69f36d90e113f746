"""Per-record local privacy: reports, what they tell, and the framework in two rounds."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.per_record import (
    Analyzer,
    Bounds,
    Inverse,
    LocalFramework,
    Randomizer,
    partition,
    select_domain,
)
from streamveil.mechanisms.per_record.analyzer import (
    THRESHOLDS,
    chernoff_thresholds,
    printed_thresholds,
    root_thresholds,
)
from streamveil.mechanisms.per_record.hat import HatCount, HatSum
from streamveil.mechanisms.per_record.local_framework import OneBitSum
from streamveil.mechanisms.per_record.prdp import PrdpCount
from streamveil.mechanisms.randomness.noise import NoiseSource

FLAKINESS = 1e-6
BOUNDS = Bounds(0.001, 10.0, 1e6)
RANDOMIZERS = {
    kind.__name__: Randomizer(kind("x", BOUNDS)) for kind in (HatCount, PrdpCount, HatSum)
}


def words(slot=0):
    return NoiseSource(bytes(range(32))).slot(slot, b"local").words("test")


def added(reports):
    return sum(chunk.sum(axis=0) for chunk in reports)


def test_golden(golden):
    cases = [case for case in golden("per_record")["cases"] if case["kind"] == "prldp_analyzer"]
    assert cases
    for case in cases:
        low, expected = partition(case["eps_check"], case["eps_hat"]), case["expect"]
        limits = printed_thresholds(low, case["n"], case["beta"])
        assert limits == pytest.approx(expected["thresholds"], rel=1e-12)
        totals = np.array(case["totals"])
        assert select_domain(totals, limits) == expected["ell"]
        # The same through the analyser, whose totals are in steps, and whose domains cost less by
        # one part in 2**30.
        statistic = PrdpCount(
            "count", Bounds(case["eps_check"], case["eps_hat"]), beta=case["beta"]
        )
        steps = np.rint(np.ldexp(totals, 16)).astype(np.int64)
        released = Analyzer(statistic, "printed").estimate(steps, case["n"])
        assert released.epsilon_tau == pytest.approx(expected["eps_tau"], rel=1e-12)
        assert released.estimate == pytest.approx(expected["released"], rel=1e-6)


@pytest.mark.parametrize("kind", RANDOMIZERS)
def test_a_record_costs_at_most_its_budget(kind):
    randomizer = RANDOMIZERS[kind]
    nodes = randomizer.statistic.nodes
    random = np.random.default_rng(3)
    budgets = np.exp(random.uniform(np.log(5e-4), np.log(20), 2000))
    edges = np.concatenate([randomizer.statistic.bounds.epsilon_min * 2.0 ** np.arange(14), [10.0]])
    budgets = np.concatenate([budgets, edges, np.nextafter(edges, 0), np.nextafter(edges, 99)])
    values = random.uniform(0, 1e6, len(budgets)) * random.integers(0, 2, len(budgets))
    exact = randomizer.exact(values, budgets)
    # Shifted contributions, each rounded down, cost less than what `Nodes.loss` accounts for.
    losses = exact.astype(object) @ nodes.rates.astype(object)
    good = budgets >= BOUNDS.epsilon_min
    for loss, budget in zip(losses[good], budgets[good], strict=True):
        assert Fraction(int(loss), 1 << 56) <= Fraction(float(budget))
    assert not exact[~good].any()


@pytest.mark.parametrize("kind", RANDOMIZERS)
def test_bad_records_and_the_dummy_answer_alike(kind):
    randomizer = RANDOMIZERS[kind]
    values = np.array([np.nan, -1.0, 2e6, np.inf, 5.0, 5.0, 5.0])
    budgets = np.array([1.0, 1.0, 1.0, 1.0, np.nan, 0.0, 9e-4])
    with np.errstate(all="raise"):
        reports = np.concatenate(list(randomizer.reports(values, budgets, words())))
    nothing = np.full(len(values), np.nan)
    assert reports.shape == (len(values), len(randomizer.statistic.nodes.rates))
    assert (reports == np.concatenate(list(randomizer.reports(nothing, nothing, words())))).all()
    assert (randomizer.report(np.nan, np.nan, words()) != 0).all()


def test_reports_are_the_record_and_its_noise():
    randomizer = RANDOMIZERS["PrdpCount"]
    budgets = np.full(20_000, 0.7)
    reports = np.concatenate(list(randomizer.reports(np.zeros(20_000), budgets, words())))
    nodes = randomizer.statistic.nodes
    mine = int(np.flatnonzero(randomizer.exact(np.zeros(1), budgets[:1])[0])[0])
    assert nodes.budgets[mine] * 2**16 == pytest.approx(0.512, rel=1e-6)
    for node in (0, mine, len(nodes.rates) - 1):
        noise = reports[:, node] / 2**16 - (node == mine)
        scale = 1 / (nodes.budgets[node] * 2**16)
        assert stats.kstest(noise / scale, "laplace").pvalue > FLAKINESS


def test_chernoff_thresholds_hold_and_are_the_smallest():
    low, devices, beta = partition(0.01, 1.0), 400, 0.2
    limits = chernoff_thresholds(low, devices, beta)
    sums = np.random.default_rng(4).laplace(size=(4000, devices)).sum(axis=1)
    failures = int((sums >= limits[0] * low[0]).sum())
    assert failures <= stats.binom.ppf(1 - FLAKINESS, 4000, beta / len(low))
    assert (limits < root_thresholds(low, devices, beta)).all()
    assert (limits < printed_thresholds(low, devices, beta)).all()
    # Of one device it is Laplace's tail, within what Chernoff's bound loses.
    one = chernoff_thresholds(low, 1, beta) * low
    assert (np.log(len(low) / (2 * beta)) < one).all()


@pytest.mark.parametrize("thresholds", [None, *THRESHOLDS])
def test_counting_devices(thresholds):
    """Estimates are right for those heard, whose budgets are at least epsilon_tau."""
    statistic = HatCount("count", Bounds(0.01, 10.0))
    devices = 3000
    budgets = np.full(devices, 5.12)
    reports = Randomizer(statistic).reports(np.zeros(devices), budgets, words())
    released = Analyzer(statistic, thresholds).estimate(added(reports), devices)
    assert abs(released.estimate - devices) < 6 * released.stderr
    assert 0.32 < released.epsilon_tau < 10.0
    # The nodes at 5.12 and at 10.24 have noise of variance 2 / node**2 a device.
    if released.epsilon_tau == pytest.approx(5.12):
        spread = math.sqrt(2 * devices * (5.12**-2 + 10.24**-2))
        assert released.stderr == pytest.approx(spread, rel=1e-3)


def test_unknown_thresholds_are_refused():
    with pytest.raises(ConfigurationError, match="chernoff"):
        Analyzer(HatCount("count", BOUNDS), "none")


def test_framework_in_two_rounds():
    budget = Inverse(1e4, 1e9, 10.0)
    framework = LocalFramework(budget.bounds, OneBitSum(1e9, budget))
    devices = 30_000
    values = np.random.default_rng(5).uniform(0, 4000, devices)
    values[:500] = 1e8  # too strict to be heard
    budgets = budget(values)
    first = added(framework.first.reports(values, framework.halves(budgets), words(1)))
    epsilon_tau = framework.epsilon_tau(first, devices)
    assert 0.5 < epsilon_tau <= 3.0
    total = sum(
        framework.protocol.add(chunk)
        for chunk in framework.reports(values, budgets, epsilon_tau, words(2))
    )
    assert total.sum() == devices
    estimate, stderr = framework.estimate(total, devices, epsilon_tau)
    true = values[budgets >= epsilon_tau].sum()
    assert abs(estimate - true) < 6 * stderr < 0.1 * true


def test_devices_of_less_than_epsilon_tau_answer_as_the_dummy():
    budget = Inverse(1e4, 1e9, 10.0)
    framework = LocalFramework(budget.bounds, OneBitSum(1e9, budget))
    tau = 1.0
    strict = np.full(2000, 10_001.0)
    none = np.full(2000, np.nan)
    answers = [
        np.concatenate(list(framework.reports(values, budget(values), tau, words())))
        for values in (strict, none)
    ]
    assert (answers[0] == answers[1]).all()
    loud = np.concatenate(list(framework.reports(strict - 1, budget(strict - 1), tau, words())))
    assert loud.sum() > answers[0].sum() + 100


def test_one_bit_sums_are_unbiased_with_the_stated_error():
    protocol, epsilon = OneBitSum(100.0), 1.2
    values = np.tile([0.0, 30.0, 90.0, np.nan], 500)
    off = []
    for slot in range(300):
        total = sum(protocol.add(chunk) for chunk in protocol.reports(values, epsilon, words(slot)))
        estimate, stderr = protocol.estimate(total, len(values), epsilon)
        off.append((estimate - np.nansum(values)) / stderr)
    assert stats.ttest_1samp(off, 0).pvalue > FLAKINESS
    assert 0.7 < np.std(off) < 1.2
