"""The bank of filters: what it tracks, and that its variances are variances."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from streamveil.mechanisms.adaptive import filter_bank
from streamveil.mechanisms.adaptive.filter_bank import BEND, DRIFT, GAPS, MEMBERS, WHITE, Bank

FLAKINESS = 1e-6
PROPERTY = settings(max_examples=60)
EXACT = 1e-6


def follow(bank, counts, noise, gap=1, other=0.0):
    """Observe every `gap`-th slot of counts (T, d); forecasts of every slot before it is seen."""
    state, forecasts, jumps = bank.start(), [], []
    for slot, now in enumerate(counts):
        if slot:
            bank.advance(state)
        forecasts.append(bank.forecast(state))
        if slot % gap == 0:
            error = np.full(bank.bins, other)
            jumps.append(bank.observe(state, now, noise, error, gap if slot else 0))
    return state, forecasts, jumps


def assert_covariances(state) -> None:
    """Level and slope have a covariance matrix, but for rounding."""
    for part in vars(state).values():
        assert np.isfinite(part).all()
    assert (state.level_var >= 0).all()
    assert (state.slope_var >= 0).all()
    product = state.level_var * state.slope_var
    assert (state.covariance**2 <= product * (1 + 1e-9) + 1e-200).all()
    assert (state.scale >= 0.5).all()


# ---- tracking -------------------------------------------------------------------------------


# Exact counts that stay, and exact counts that rise evenly, are forecast exactly.
@pytest.mark.parametrize("rise", [0.0, 3.0, -2.0])
@pytest.mark.parametrize("gap", [1, 5])
def test_exact_counts_are_tracked(rise, gap):
    bank = Bank(10_000, 2)
    one = 2000 + rise * np.arange(301)
    counts = np.stack([one, 10_000 - one], axis=1)
    state, forecasts, _ = follow(bank, counts, EXACT, gap)
    missed = np.abs(np.array([f.mean for f in forecasts]) - counts)[-gap:]
    assert missed.max() < (0.05 if rise == 0 else 0.1) * max(abs(rise) * gap, 1)
    mean, variance = bank.estimate(state, counts[-1], np.full(2, EXACT))
    np.testing.assert_allclose(mean, counts[-1], atol=1e-3)
    assert (variance < 1e-3).all()
    assert_covariances(state)


# A stream that one member describes is that member's; its forecast errors have the variance that
# was expected, up to 20 % for what the others add (500 slots of 30 bins).
@pytest.mark.parametrize(
    ("drift", "bend", "white"), [(1e-2, 0.0, 0.0), (1e-2, 0.0, 1.0), (0.0, 1e-4, 0.0)]
)
def test_a_member_recognises_its_stream(drift, bend, white):
    slots, bins, users = 600, 30, 1e6
    rng = np.random.default_rng(4)
    scale = users / bins
    slopes = np.cumsum(rng.normal(0, np.sqrt(bend * scale), (slots, bins)), axis=0)
    steps = rng.normal(0, np.sqrt(drift * scale), (slots, bins))
    curve = scale + np.cumsum(slopes + steps, axis=0)
    counts = curve + rng.normal(0, np.sqrt(white * scale), (slots, bins))
    noise = 0.1 * scale
    seen = counts + rng.laplace(0, np.sqrt(noise / 2), counts.shape)
    bank = Bank(users, bins)
    state, forecasts, _ = follow(bank, seen, noise)
    beliefs = bank.weights(state).mean(axis=1)
    assert (beliefs * WHITE[:, 0]).sum() == pytest.approx(white, abs=0.2)
    # A slow drift is hardly told from a slow bend in the releases that are remembered.
    trending = (beliefs * (BEND[:, 0] > 0)).sum()
    assert trending > 0.9 if bend else trending < 0.6
    expected = np.array([f.variance + f.white for f in forecasts])[100:]
    errors = np.array([f.mean for f in forecasts])[100:] - counts[100:]
    assert 0.8 < (errors**2).mean() / expected.mean() < 1.2


# A step is seen as a jump in its bins and slot, and forgotten soon; noise alone never jumps: its
# largest of 300 slots and 2 bins exceeds 7 standard deviations with probability 3 %, and 10, which
# would be needed on top of the rest, hardly ever (fixed seed).
def test_a_step_is_a_jump():
    rng = np.random.default_rng(3)
    counts = np.full((300, 3), 1000.0)
    counts[200:, 1] = 5000.0
    noise = 400.0
    seen = counts + rng.laplace(0, np.sqrt(noise / 2), counts.shape)
    _, forecasts, jumps = follow(Bank(10_000, 3), seen, noise)
    assert np.argwhere(np.array(jumps)[1:]).tolist() == [[199, 1]]
    missed = np.abs(forecasts[204].mean - counts[204])
    assert (missed < 5 * np.sqrt(noise)).all()


# ---- variances ------------------------------------------------------------------------------


def wander(users, noises, seed, slots=40) -> None:
    """Observe anything between nobody and everybody at any gap; check every belief."""
    rng = np.random.default_rng(seed)
    bank = Bank(users, bins := int(rng.integers(1, 4)))
    state, since = bank.start(), 0
    for slot in range(slots):
        for _ in range(int(rng.choice([1, 1, 2, 40])) if slot else 0):
            bank.advance(state)
            since += 1
        noise = float(rng.choice(noises))
        error = rng.choice([0.0, 1.0, 1e6], bins)
        counts = rng.choice([-0.1, 0.0, 0.3, 1.0], bins) * rng.choice([1.0, users / 100, users])
        bank.observe(state, counts, noise, error, since)
        since = 0
        assert_covariances(state)
        np.testing.assert_allclose(bank.weights(state).sum(axis=0), 1)
        forecast = bank.forecast(state)
        assert (forecast.variance >= 0).all()
        assert (forecast.white >= 0).all()
        mean, variance = bank.estimate(state, counts, noise + error)
        assert np.isfinite(mean).all()
        assert (variance >= 0).all()


# Whatever is observed, at whatever gap, with whatever noise: level and slope have a covariance
# matrix, weights are shares, and forecasts are numbers with a variance.
@PROPERTY
@given(users=st.sampled_from([0.0, 1.0, 50.0, 1e4]), seed=st.integers(0, 2**32))
def test_covariances_stay_covariances(users, seed):
    wander(users, [1e-3, 1.0, 1e6, 1e20], seed)


# Also where the square of a jump is 1e16 times the noise's variance, which rounding would eat.
@pytest.mark.parametrize(("users", "noise"), [(1e6, 1e-4), (1e9, 100.0)])
def test_covariances_stay_covariances_where_counts_are_large(users, noise):
    for seed in range(20):
        wander(users, [noise], seed)


# Bins know nothing of each other: an order of bins is an order of results.
def test_bins_are_independent():
    rng = np.random.default_rng(1)
    counts = rng.normal(1000, 100, (50, 4))
    order = [2, 0, 3, 1]
    state, _, _ = follow(Bank(5000, 4), counts, 100.0)
    other, _, _ = follow(Bank(5000, 4), counts[:, order], 100.0)
    for part, moved in zip(vars(state).values(), vars(other).values(), strict=True):
        np.testing.assert_array_equal(part[..., order], moved)


# ---- the table ------------------------------------------------------------------------------


def settled(gap, log_ratio, releases):
    """The bank's own mean variance of each member's level between releases, after so many."""
    bank = Bank(1.0, 1)
    state = bank.start()
    unit, none, error = np.ones(1), np.zeros(1), 2.0**log_ratio
    state.level_var = error + WHITE + DRIFT * gap + BEND * (gap - 1) * gap * (2 * gap - 1) / 6
    state.covariance, state.slope_var = 0 * BEND, 10 * BEND
    for _ in range(releases):
        state.scale = unit
        for _ in range(gap):
            bank.advance(state)
        bank.observe(state, bank.forecast(state).mean, error, none, gap)  # nothing jumps
    state.scale = unit
    levels = []
    for _ in range(gap):
        levels.append(state.level_var.copy())
        bank.advance(state)
    return np.mean(levels, axis=0)[:, 0]


def in_table(gap, log_ratio):
    place = int(np.flatnonzero(gap == GAPS)[0])
    return filter_bank._steady()[place, :, list(filter_bank._RATIOS).index(log_ratio)]


# The table of expected errors is what the filters themselves come to, slot by slot, in as many
# releases as it looks ahead.
@pytest.mark.parametrize("gap", [1, 2, 7, 24])
@pytest.mark.parametrize("log_ratio", [-12, -3, 0, 5, 12])
def test_the_table_is_that_of_the_filters(gap, log_ratio):
    found = settled(gap, log_ratio, releases=200)
    np.testing.assert_allclose(in_table(gap, log_ratio), found, rtol=1e-6)


# Where a release has at most 8 times a count's variance, 200 releases are as good as any number.
@pytest.mark.parametrize(("gap", "log_ratio"), [(1, 0), (1, 3), (7, 3), (7, 5), (24, 5)])
def test_the_table_has_settled(gap, log_ratio):
    np.testing.assert_allclose(in_table(gap, log_ratio), settled(gap, log_ratio, 2000), rtol=0.03)


# The expected error of one member is its curve's and the slot's own, less what releases tell of it.
def test_expected_error_of_one_member():
    for member in range(MEMBERS):
        weights = np.eye(MEMBERS)[member]
        ratios = np.full((len(GAPS), 2), 4.0)
        error, curve = filter_bank.expected_error(weights, ratios)
        table = filter_bank._steady()[:, member, list(filter_bank._RATIOS).index(2)]
        np.testing.assert_allclose(curve, np.stack([table, table], axis=1))
        white = float(WHITE[member, 0])
        told = white**2 / (white + 4.0 + curve) / GAPS[:, None] if white else 0
        np.testing.assert_allclose(error, curve + white - told)
        # Where releases do not get better by waiting, waiting only loses.
        assert (np.diff(curve, axis=0) > 0).all()


# Between the table's ratios, and beyond its ends, errors rise with the ratio.
def test_expected_error_rises_with_the_noise():
    beliefs = np.full(MEMBERS, 1 / MEMBERS)
    ratios = 2.0 ** np.linspace(-30, 30, 301)
    error, curve = filter_bank.expected_error(beliefs, np.tile(ratios, (len(GAPS), 1)))
    assert (np.diff(curve, axis=1) >= 0).all()
    assert (np.diff(error, axis=1) >= -1e-12).all()
    assert np.isfinite(error).all()


def test_members():
    assert DRIFT.shape == BEND.shape == WHITE.shape == (MEMBERS, 1)
    assert ((DRIFT > 0) != (BEND > 0)).all()
    assert GAPS[0] == 1
    assert (np.diff(GAPS) > 0).all()
    assert (
        stats.rankdata(-filter_bank.BELIEF[:, 0]).tolist() == stats.rankdata(DRIFT[:, 0]).tolist()
    )
