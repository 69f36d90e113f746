"""Estimates that are mostly noise are shrunk, and never have more error than zeros."""

import numpy as np

from streamveil.mechanisms.adaptive.filter_bank import Observed
from streamveil.mechanisms.adaptive.shrinkage import Shrinkage

BINS = 100


def observed(released, expected, foreseen, noise):
    zeros = np.zeros(len(released))
    each = zeros + foreseen
    return Observed(zeros > 0, zeros, each, each, released, expected, each, noise, zeros)


def simulated(true, noise, kept, releases=200, seed=1):
    """Errors of estimates shrunk and unshrunk, and of zeros: a filter that averages `kept`."""
    random = np.random.default_rng(seed)
    shrinkage, estimate, errors = Shrinkage(), np.zeros(len(true)), []
    for i in range(releases):
        released = true + random.laplace(0, np.sqrt(noise / 2), len(true))
        weight = max(1 / (i + 1), 1 / kept)
        variance = np.full(len(true), noise * weight)
        if i:
            shrinkage.learn(observed(released, estimate, variance[0], noise))
        estimate = estimate + weight * (released - estimate)
        counts, stated, share = shrinkage.shrunk(estimate, variance, variance)
        assert (counts >= 0).all()
        assert (stated <= 2 * variance).all()
        errors.append([((x - true) ** 2).sum() for x in (counts, estimate.clip(0), 0 * true)])
    return np.array(errors), shrinkage, share


def test_no_worse_than_zeros_where_counts_are_far_below_the_noise():
    means = []
    for seed in range(8):
        true = np.random.default_rng(seed).exponential(0.6, BINS)
        errors, _, share = simulated(true, 400.0, 30, seed=seed)
        means.append(errors.mean(axis=0))
        assert share < 0.25
    shrunk, plain, zeros = np.mean(means, axis=0)
    assert shrunk < 1.02 * zeros
    assert plain > 3 * zeros


def test_estimates_that_stand_out_are_hardly_shrunk():
    true = np.random.default_rng(1).exponential(2.0, BINS)
    errors, _, share = simulated(true, 40.0, 20)
    shrunk, plain, zeros = errors[50:].mean(axis=0)
    assert shrunk < 1.02 * plain < zeros
    assert share > 0.6


def test_clear_estimates_are_left_as_they_are():
    random = np.random.default_rng(2)
    for true in (np.array([9000.0, 1000.0]), random.exponential(100, BINS)):
        errors, _, share = simulated(true, 9.0, 5)
        assert share == 1
        assert (errors[:, 0] == errors[:, 1]).all()


# A Laplace draw of ten standard deviations comes once in a million: a stream has as many.
def test_one_large_draw_of_noise_is_not_released_as_a_crowd():
    true = np.random.default_rng(3).exponential(0.3, BINS)
    _, shrinkage, _ = simulated(true, 400.0, 30)
    estimate, variance = true.copy(), np.full(BINS, 13.0)
    estimate[7], variance[7] = 200.0, 350.0
    counts, _, _ = shrinkage.shrunk(estimate, variance, variance)
    assert counts.max() < 5


def test_nothing_is_believed_before_it_is_certain_enough():
    random = np.random.default_rng(4)
    noisy = random.laplace(0, 20 / 2**0.5, BINS)
    counts, variance, share = Shrinkage().shrunk(noisy, *[np.full(BINS, 400.0)] * 2)
    assert share < 0.2
    assert counts.max() < 10
    # It says how little is known.
    assert (variance > 100).all()


def test_a_stream_that_grows_is_believed_again():
    random = np.random.default_rng(5)
    _, shrinkage, share = simulated(random.exponential(0.3, BINS), 400.0, 30)
    assert share < 0.2
    crowd = random.exponential(300.0, BINS)
    for _ in range(3):
        released = crowd + random.laplace(0, 14, BINS)
        shrinkage.learn(observed(released, crowd, 100.0, 400.0))
    assert shrinkage.shrunk(crowd, *[np.full(BINS, 100.0)] * 2)[2] == 1
    assert Shrinkage(**shrinkage.record()) == shrinkage


# A total is no bin: it is released unchanged, and bins are shrunk as they are without it.
def test_totals_are_not_shrunk_with_their_bins():
    random = np.random.default_rng(1)
    alone, beside = Shrinkage(), Shrinkage()
    for _ in range(5):
        bins, estimate = random.normal(2, 20, (2, BINS))
        both, total = np.append(bins, bins.sum()), np.append(estimate, 200.0)
        alone.learn(observed(bins, estimate, 400.0, 400.0))
        beside.learn(observed(both, total, 400.0, 400.0), 1)
        assert vars(alone) == vars(beside)
        each = np.full(BINS + 1, 400.0)
        counts, stated, share = beside.shrunk(total, each, each, 1)
        apart = alone.shrunk(estimate, each[1:], each[1:])
        assert (counts[-1], stated[-1], share) == (200.0, 400.0, apart[2])
        assert share < 1
        assert counts[:-1].tolist() == apart[0].tolist()


# Deviations of single slots say nothing against an estimate of the level.
def test_only_the_error_of_estimates_speaks_against_them():
    estimate = np.linspace(0.5, 2.0, BINS)
    shrinkage = Shrinkage()
    counts, variance, share = shrinkage.shrunk(estimate, np.full(BINS, 2.0), np.full(BINS, 0.01))
    assert share == 1
    assert (counts == estimate).all()
    assert (variance == 2.0).all()
    assert shrinkage.shrunk(estimate, np.full(BINS, 2.0), np.full(BINS, 2.0))[2] < 0.5
