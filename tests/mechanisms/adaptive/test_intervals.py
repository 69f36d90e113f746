"""How wide intervals are follows from how far releases were from what had been foreseen."""

import numpy as np
import pytest

from streamveil.mechanisms import NoiseSource, Population, ReleaseStream, Requirement, mechanism
from streamveil.mechanisms.adaptive import intervals
from streamveil.mechanisms.adaptive.filter_bank import Bank, Observed, Taken
from streamveil.mechanisms.adaptive.intervals import Misfit
from streamveil.mechanisms.adaptive.kalman import Forecast
from streamveil.mechanisms.core.tidy import NINETY_PERCENT

NOISE = 2.0


def innovations(random, stated, true, releases, jumps=0.0):
    """Releases of bins whose stated and true variances are arrays (d,) or functions of nothing."""
    for _ in range(releases):
        foreseen = stated() if callable(stated) else stated
        error = random.normal(0, np.sqrt(true))
        error = np.where(random.random(len(error)) < jumps, 100 * error, error)
        noise = random.laplace(0, np.sqrt(NOISE / 2), len(error))
        yield observed(error + noise, foreseen), error


def observed(missed, foreseen, noise=NOISE):
    zeros = np.zeros(len(missed))
    kept = foreseen * noise / (foreseen + noise)
    gone = zeros > 0
    return Observed(gone, zeros, kept, foreseen, missed, zeros, foreseen, noise, zeros)


def foreseen(variance):
    """A forecast of a curve with this variance, without a white part."""
    zeros = np.zeros(len(variance))
    return Forecast(zeros, variance, zeros, zeros + 1)


def learnt(observations, bins):
    """A misfit after all innovations, and the share of errors that its last intervals covered."""
    misfit, covered = Misfit.start(bins), []
    for seen, error in observations:
        reach = NINETY_PERCENT * np.sqrt(misfit.of(foreseen(seen.foreseen)))
        covered.append(np.abs(error) <= reach)
        misfit.learn(seen)
    return misfit, np.array(covered[len(covered) // 2 :])


@pytest.mark.parametrize("times", [0.25, 1.0, 4.0])
def test_intervals_cover_whatever_variance_is_stated(times):
    random = np.random.default_rng(1)
    true = np.full(40, 3.0)
    misfit, covered = learnt(innovations(random, true / times, true, 300), 40)
    assert 2.4 < np.median(misfit.of(foreseen(true / times))) < 4.5
    assert 0.885 < covered.mean() < 0.92
    assert covered.mean(axis=0).min() > 0.75


def test_each_bin_has_a_factor_of_its_own():
    random = np.random.default_rng(2)
    true = np.repeat([1.5, 13.5], 20)
    _, covered = learnt(innovations(random, np.full(40, 4.5), true, 400), 40)
    for part in (covered[:, :20], covered[:, 20:]):
        assert 0.88 < part.mean() < 0.95


def test_rare_jumps_widen_nothing():
    random = np.random.default_rng(3)
    true = np.full(40, 3.0)
    misfit, _ = learnt(innovations(random, true, true, 300, jumps=0.02), 40)
    assert np.median(misfit.of(foreseen(true))) < 1.5 * 3


# A level that is uncertain makes the variance of its drift go up and down, which means nothing.
def test_ups_and_downs_that_mean_nothing_are_not_believed():
    random = np.random.default_rng(4)
    true = np.full(60, 3.0)
    observations = list(
        innovations(random, lambda: 3.0 * np.exp(random.uniform(-2, 2, 60)), true, 300)
    )
    misfit, covered = learnt(observations, 60)
    stated = np.stack([seen.foreseen for seen, _ in observations[150:]])
    assert misfit.common[1] < -0.4
    assert covered[stated < 1].mean() > 0.8
    raw = np.stack([error for _, error in observations[150:]])
    assert (np.abs(raw) <= NINETY_PERCENT * np.sqrt(stated))[stated < 1].mean() < 0.6


def test_what_lies_outside_of_sums_of_a_normal_error_and_noise():
    random = np.random.default_rng(5)
    draws = 400_000
    normal, laplace = random.normal(size=draws), random.laplace(0, 0.5**0.5, draws)
    for i in (1, 3, 6, 9):
        share = intervals._SHARES[i]
        both = share**0.5 * normal + (1 - share) ** 0.5 * laplace
        # Six standard deviations of a share of 10 %: 0.0029.
        assert (np.abs(both) > NINETY_PERCENT).mean() == pytest.approx(
            intervals._OUTSIDE[i], abs=0.003
        )


def test_where_variances_are_right_a_release_leaves_what_the_filter_says():
    misfit = Misfit.start(3)
    misfit.own_variance[:] = 0
    misfit.covariance[:] = 0
    seen = observed(np.zeros(3), np.array([0.5, 2.0, 8.0]))
    assert misfit.after(seen, foreseen(seen.before)) == pytest.approx(seen.variance)
    misfit.common[0] = 1.0
    assert (misfit.after(seen, foreseen(seen.before)) > seen.variance).all()


# Filters that state too much or too little take too large or too small a part of a surprise.
@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.5, 4.0, 30.0])
@pytest.mark.parametrize("factor", [0.2, 1.0, 5.0])
def test_stated_errors_are_how_far_estimates_are(factor, noise):
    random, bins, stated = np.random.default_rng(7), 100_000, 3.0
    misfit = Misfit.start(bins)
    misfit.own_variance[:] = 0
    misfit.covariance[:] = 0
    misfit.common[0] = np.log(factor)
    counts = random.normal(0, np.sqrt(factor * stated), bins)
    seen = observed(counts + random.normal(0, np.sqrt(noise), bins), np.full(bins, stated), noise)
    estimates = stated / (stated + noise) * seen.observed
    left = misfit.after(seen, foreseen(seen.before))
    assert left == pytest.approx(((estimates - counts) ** 2).mean(), rel=0.03)


# The first release tells nearly all: next to what was foreseen, what is left may be 10**-30 of it.
@pytest.mark.parametrize("users", [1e6, 1e9, 1e15])
@pytest.mark.parametrize("noise", [0.02, 20.0])
def test_rounding_leaves_what_is_published_of_a_first_release(users, noise):
    bank = Bank(users, 3)
    state, misfit = bank.start(), Misfit.start(3)
    forecast = bank.forecast(state)
    most = min(users / 3, 1e12)  # floats tell larger counts apart by more than the noise
    seen = bank.observe(state, np.array([3.0, 200.0, most]), noise, np.zeros(3))
    assert misfit.after(seen, forecast, every=True) == pytest.approx(noise, rel=0.25)


def test_of_a_slot_with_a_jump_its_release_tells_alone():
    misfit, zeros, noise = Misfit.start(1), np.zeros(1), 20.0
    misfit.own_variance[:] = 0
    misfit.covariance[:] = 0
    misfit.common[0] = np.log(0.5)
    left, before = zeros + 19, zeros + 3
    figures = (left, before, zeros + 100, zeros, before, noise, zeros)
    seen = Observed(zeros == 0, zeros + 95, *figures)
    assert misfit.after(seen, foreseen(before)) == pytest.approx(left)


def test_nothing_is_lost_in_writing_and_it_is_short():
    random = np.random.default_rng(6)
    misfit, _ = learnt(innovations(random, np.ones(10_000), np.ones(10_000), 3), 10_000)
    written = misfit.record()
    again = Misfit.read(written, 10_000)
    assert again.record() == written
    assert (again.of(foreseen(np.ones(10_000))) == misfit.of(foreseen(np.ones(10_000)))).all()
    assert sum(map(len, written["parts"])) < 130_000


# Releases of sums hardly tell whether there is a white part; see `_white`.
def test_half_a_belief_in_white_deviations_is_stated_as_nearly_all_of_them():
    misfit, zeros = Misfit.start(3), np.zeros(3)
    white = 100 * np.array([0.0, 0.5, 1.0])
    assert misfit.of(Forecast(zeros, zeros, white, zeros + 100)) == pytest.approx([0, 98.4375, 100])


# Where every slot is released, its own deviation shows as the curve does, but for noise.
@pytest.mark.parametrize("blur", [0.0, 100.0, 1e9])
def test_deviations_of_slots_that_are_all_released_have_the_same_factor(blur):
    misfit, zeros = Misfit.start(2), np.zeros(2)
    misfit.own_variance[:] = 0
    misfit.covariance[:] = 0
    misfit.common[0] = np.log(0.5)
    misfit.blur[:] = blur
    forecast = Forecast(zeros, zeros + 10, zeros + 30, zeros + 100)
    shown, hidden = 100 / (100 + blur), 100 * (1 - 0.7**6)
    expected = 5 + shown * 15 + (1 - shown) * hidden
    assert misfit.of(forecast, every=True) == pytest.approx([expected, expected])
    assert misfit.of(forecast) == pytest.approx([5 + hidden, 5 + hidden])


def test_the_noise_that_hides_deviations_is_that_of_the_last_release():
    misfit = Misfit.start(2)
    for noise in (3.0, 7.0):
        misfit.learn(observed(np.zeros(2), np.ones(2), noise))
    assert misfit.blur == pytest.approx([7.0])


def test_an_interval_around_nothing_reaches_1_where_single_slots_may_deviate():
    misfit, zeros = Misfit.start(2), np.zeros(2)
    variance = misfit.of(Forecast(zeros, zeros, zeros + 0.1, zeros + 0.1))
    assert (NINETY_PERCENT * np.sqrt(variance) >= 1).all()


# Filters that see too much and, beside that, doubt the white part: the release has that part, too.
@pytest.mark.slow
@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_what_is_stated_of_deviations_is_in_the_release_too(factor, slots):
    random, bins = np.random.default_rng(8), 100_000
    misfit, zeros, shares = Misfit.start(bins), np.zeros(bins), np.full(slots, 1 / slots)
    misfit.releases = 10_000  # no wave is left to be shown
    misfit.own_variance[:] = 0
    misfit.covariance[:] = 0
    misfit.common[0] = np.log(factor)
    curve, white, scale, noise = 130.0, 20.0, 60.0, 40.0
    stated = scale * (1 - (1 - white / scale) ** intervals.CERTAIN)
    level = random.normal(0, np.sqrt(factor * curve), bins)
    deviations = random.normal(0, np.sqrt(stated), (slots, bins))
    counts = level + deviations[-1]
    released = level + deviations.mean(axis=0) + random.normal(0, np.sqrt(noise), bins)

    before, foreseen = zeros + curve + white, zeros + curve + white / slots
    gain = foreseen / (foreseen + noise)
    taken = Taken(zeros, zeros + noise, shares, zeros)
    variance = before - gain * foreseen
    figures = (before, released, zeros, foreseen, noise, zeros, taken)
    seen = Observed(zeros > 0, gain * released, variance, *figures)
    left = misfit.after(seen, Forecast(zeros, zeros + curve, zeros + white, zeros + scale))
    assert left == pytest.approx(((seen.mean - counts) ** 2).mean(), rel=0.03)


# What is released may shift weights between filters, to those that leave more than there was, or to
# those that leave less than its noise allows: without a floor nothing or less would be left then.
@pytest.mark.parametrize(("factor", "kept", "floor"), [(0.25, 60.0, 15.0), (4.0, 1.0, 1.0)])
def test_a_release_leaves_no_less_than_the_filters_say(factor, kept, floor):
    misfit, zeros, noise = Misfit.start(1), np.zeros(1), 20.0
    misfit.own_variance[:] = 0
    misfit.covariance[:] = 0
    misfit.common[0] = np.log(factor)
    before, taken = zeros + 3.0, Taken(zeros, zeros + noise, np.full(4, 1 / 4), zeros)
    seen = Observed(
        zeros > 0, zeros, zeros + kept, before, zeros, zeros, before, noise, zeros, taken
    )
    assert misfit.after(seen, foreseen(before)) == pytest.approx(floor)


# Before releases have shown how far counts vary, waves of 30 % are assumed, which is much here.
@pytest.mark.parametrize("seed", range(3))
def test_a_released_slot_is_known_as_well_as_its_own_release_tells(seed):
    population = Population((Requirement(7, 1.0),), np.array([2000]), 6)
    key = bytes([seed]) * 32
    stream = ReleaseStream(mechanism("adaptive", population), NoiseSource(key))
    state, random = stream.start(), np.random.default_rng(seed)
    for slot in range(14):
        counts = random.poisson([550, 330, 180, 1, 45, 10])
        state, release = stream.release(state, slot, counts[None, :])
        own = [one for one in release.observed if one.slots == 1]
        if own:
            missed = np.array(release.counts) - own[-1].counts
            most = np.sqrt(own[-1].variances + (np.abs(missed) + 0.5) ** 2 + 1 / 12)
            assert (np.array(release.stderr) <= 1.05 * most).all()
