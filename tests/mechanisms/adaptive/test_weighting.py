"""Weighted releases: what they cost exactly, what they estimate, whose noise is whose."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from streamveil.mechanisms import NoiseSource, Population, Requirement
from streamveil.mechanisms.adaptive import weighting
from streamveil.mechanisms.adaptive.weighting import (
    MOST_CANDIDATES,
    Choices,
    Risk,
    Weighting,
    candidates,
)
from tests.mechanisms.streams import FLAKINESS, KEY, SIGMAS

UNIT = 2**40
PROPERTY = settings(max_examples=200)

# Budgets of every magnitude, the ends among them.
OFFERS = st.lists(
    st.one_of(
        st.integers(0, 2**52),
        st.integers(0, 52).map(lambda bits: 2**bits),
        st.integers(0, 70_000),
        st.sampled_from([0, 1, 2**16 - 1, 2**16, 2**17 - 1, 2**52]),
    ),
    min_size=1,
    max_size=6,
)


def people(classes, sizes=None, bins=3, sensitivity=1) -> Population:
    sizes = [10] * classes if sizes is None else sizes
    return Population((Requirement(1, 1.0),) * classes, np.array(sizes), bins, sensitivity)


def slot(name="", number=0):
    return NoiseSource(KEY, name).slot(number, b"")


# ---- costs ----------------------------------------------------------------------------------


# A release costs m_k * u * sensitivity, in exact integers: never more than the class's offer nor
# than the threshold, and but for 2**-16 of it or a unit as much as that.
@PROPERTY
@given(OFFERS, st.integers(1, 4), st.integers(0, 5), st.integers(0, 2**52))
def test_no_release_costs_more_than_was_offered(offers, sensitivity, place, other):
    units = np.array(offers, dtype=np.int64)
    population = people(len(offers), sensitivity=sensitivity)
    threshold = offers[place % len(offers)] // sensitivity if place < 5 else other
    chosen = Weighting.at(threshold, units, population)
    assert chosen.unit >= 1
    for k, offer in enumerate(offers):
        weight, spent = int(chosen.weights[k]), int(chosen.spent[k])
        assert weight >= 0
        assert spent == weight * chosen.unit * sensitivity
        assert spent <= offer
        assert spent <= threshold * sensitivity
        most = min(offer // sensitivity, threshold)
        assert most - weight * chosen.unit < chosen.unit <= max(1, threshold / 2**16)
    assert chosen.spent.dtype == np.int64


# The same for the thresholds that are chosen: every candidate is one of the offers.
@PROPERTY
@given(OFFERS, st.integers(1, 4), st.integers(0, 2**32))
def test_no_choice_costs_more_than_was_offered(offers, sensitivity, seed):
    sizes = np.random.default_rng(seed).choice([0, 1, 50, 10**6], len(offers))
    units, population = np.array(offers), people(len(offers), sizes, sensitivity=sensitivity)
    choices = Choices.of(units // sensitivity, population)
    counted = (units // sensitivity)[sizes > 0]
    assert set(choices.thresholds.tolist()) <= set(counted[counted > 0].tolist())
    assert (choices.thresholds.size > 0) == bool((counted > 0).any())
    for threshold, noise, dispersion in zip(
        choices.thresholds, choices.noise, choices.dispersion, strict=True
    ):
        chosen = Weighting.at(int(threshold), units, population)
        assert (chosen.spent <= units).all()
        assert math.isfinite(chosen.factor)
        assert chosen.epsilon == chosen.spent.max() / UNIT
        # The estimates that choose a threshold are those of what is released; noise of less than
        # a step is discrete, weights of few units are rounded.
        if threshold >= 2**20 and not ((units > 0) & (units < 2**20)).any():
            assert chosen.dispersion == pytest.approx(dispersion, rel=0.01, abs=1e-3)
            assert chosen.noise_variance == pytest.approx(noise, rel=0.01)


# One contribution of class k moves the integer histogram by m_k in L1, and its distance from any
# public integers by at most m_k; what is charged is that times the unit of the noise.
@PROPERTY
@given(OFFERS, st.integers(0, 2**32))
def test_one_contribution_moves_what_it_is_charged_for(offers, seed):
    rng = np.random.default_rng(seed)
    population = people(len(offers))
    chosen = Weighting.at(max(offers), np.array(offers), population)
    counts = rng.integers(0, 1000, (len(offers), 3))
    target = rng.integers(-(10**9), 10**9, 3)
    for k in range(len(offers)):
        more = counts.copy()
        more[k, rng.integers(3)] += 1
        moved = np.abs(chosen.weights @ (more - counts)).sum()
        assert moved * chosen.unit == chosen.spent[k] <= offers[k]
        distances = [np.abs(chosen.weights @ table - target).sum() for table in (more, counts)]
        assert abs(distances[0] - distances[1]) * chosen.unit <= chosen.spent[k]


# The noise is that of the unit that is charged, and nothing but noise is added.
def test_noise_is_drawn_at_the_unit_that_is_charged(monkeypatch):
    asked = []

    def drawn(units, size, words):
        asked.append((units, size))
        return np.arange(size)

    monkeypatch.setattr(weighting, "discrete_laplace", drawn)
    chosen = Weighting.at(2**30, np.array([2**30, 2**28]), people(2, sensitivity=2))
    assert chosen.unit == 2**14
    assert (chosen.spent == chosen.weights * 2**15).all()
    noisy = chosen.add_noise(np.array([7, 7, 7]), slot(), "any")
    assert noisy.tolist() == [7, 8, 9]
    assert asked == [(2**14, 3)]


# ---- estimates ------------------------------------------------------------------------------


# Where class and value are independent, releases are unbiased, and their mean square error is the
# noise plus `dispersion` times the variance of a count. Users draw their bin anew in every slot;
# errors of a slot's bins depend on each other, so every slot is one sample of their mean.
@pytest.mark.slow
@pytest.mark.parametrize("sensitivity", [1, 2])
@pytest.mark.parametrize("offers", [[1.0, 1.0, 1.0], [0.02, 0.1, 0.3], [0.0, 0.5, 4.0]])
def test_releases_are_calibrated(sensitivity, offers):
    slots, sizes, chances = 3000, [4000, 1000, 500], np.array([0.5, 0.3, 0.2])
    population = people(3, sizes, sensitivity=sensitivity)
    units = np.array([int(offer * UNIT) for offer in offers])
    chosen = Weighting.at(int(units.max()) // sensitivity, units, population)
    rng = np.random.default_rng(5)
    counts = rng.multinomial(sizes, chances, (slots, 3))
    error = np.array(
        [
            chosen.release(table, slot("calibrated", t), "release") - table.sum(axis=0)
            for t, table in enumerate(counts)
        ]
    )
    variance = sum(sizes) * chances * (1 - chances)
    expected = chosen.noise_variance + chosen.dispersion * variance
    assert (np.abs(error.mean(axis=0)) < SIGMAS * np.sqrt(expected / slots)).all()
    excess = (error**2 - expected).mean(axis=1)
    assert abs(excess.mean()) < SIGMAS * excess.std() / math.sqrt(slots)
    assert excess.std() / math.sqrt(slots) < 0.05 * expected.mean()  # so it can fail


# Equal weights estimate without dispersion; unequal ones have that of the formula.
def test_dispersion():
    assert Weighting.at(2**20, np.full(3, 2**20), people(3)).dispersion == 0
    chosen = Weighting.at(4 * 2**16, np.array([1, 4]) * 2**16, people(2, [30, 10]))
    assert chosen.weights.tolist() == [2**14, 2**16]
    mean, square = (30 * 0.25 + 10) / 40, (30 * 0.25**2 + 10) / 40
    assert chosen.dispersion == pytest.approx(square / mean**2 - 1)
    assert chosen.factor == pytest.approx(1 / (mean * 2**16))


# ---- whose noise ----------------------------------------------------------------------------


def noise_of(chosen, source, purpose, *shaping) -> np.ndarray:
    return chosen.add_noise(np.zeros(4000, dtype=np.int64), source, purpose, *shaping)


# The same weights, purpose and public figures give the same noise; anything else independent noise.
def test_noise_belongs_to_all_that_shaped_it():
    population = people(2)
    chosen = Weighting.at(2**36, np.array([2**36, 2**35]), population)
    first = noise_of(chosen, slot(), "gate", b"target")
    same = Weighting.at(2**36, np.array([2**36, 2**35]), population)
    np.testing.assert_array_equal(first, noise_of(same, slot(), "gate", b"target"))
    less = Weighting.at(2**36, np.array([2**36, 2**34]), population)
    assert less.unit == chosen.unit
    others = [
        noise_of(chosen, slot(), "release", b"target"),
        noise_of(chosen, slot(), "gate", b"others"),
        noise_of(chosen, slot(), "gate"),
        noise_of(chosen, slot(), "gate", b"target", b""),
        noise_of(chosen, slot(), "gate", b"tar", b"get"),
        noise_of(chosen, slot(number=1), "gate", b"target"),
        noise_of(chosen, slot("other"), "gate", b"target"),
        noise_of(less, slot(), "gate", b"target"),
        # The same weights with another unit.
        noise_of(Weighting(chosen.weights, chosen.unit + 1, population), slot(), "gate", b"target"),
    ]
    for i, other in enumerate(others):
        for known in (first, *others[:i]):
            related = np.corrcoef(known, other)[0, 1] * math.sqrt(first.size)
            assert abs(related) < stats.norm.isf(FLAKINESS / 2 / 45)


# ---- thresholds -----------------------------------------------------------------------------


@PROPERTY
@given(st.lists(st.integers(0, 2**52), max_size=80))
def test_candidates_are_few_distinct_offers(offers):
    thresholds = candidates(np.array(offers, dtype=np.int64))
    distinct = sorted(set(offers) - {0})
    assert set(thresholds.tolist()) <= set(distinct)
    assert len(thresholds) == min(len(distinct), MOST_CANDIDATES)
    assert (np.diff(thresholds) > 0).all()
    if distinct:
        assert (thresholds[0], thresholds[-1]) == (distinct[0], distinct[-1])


# Little noise is worth more than even weights where counts vary little, and the other way round.
def test_the_threshold_follows_what_counts_vary():
    choices = Choices.of(np.array([UNIT // 20, UNIT]), people(2, [100, 100]))
    still, varied = (choices.errors(scale, Risk(0.0, 0.0)) for scale in (0.5, 10_000.0))
    assert choices.thresholds[still.argmin()] == UNIT
    assert choices.thresholds[varied.argmin()] == UNIT // 20
    assert choices.dispersion[0] == pytest.approx(0, abs=1e-12)
    biased = choices.errors(0.5, Risk(10_000.0, 0.0))
    assert choices.thresholds[biased.argmin()] == UNIT // 20
