"""The bank of filters: what it tracks, and that its variances are variances."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from streamveil.mechanisms.adaptive import kalman
from streamveil.mechanisms.adaptive.filter_bank import LEAST_SCALE, SEVERAL, Bank
from streamveil.mechanisms.adaptive.kalman import BEND, DRIFT, MEMBERS, SLOPED, WHITE, present

FLAKINESS = 1e-6
PROPERTY = settings(max_examples=60)
EXACT = 1e-6


def follow(bank, counts, noise, gap=1, other=0.0):
    """Observe every `gap`-th slot of counts (T, d); forecasts of every slot before it is seen."""
    state, forecasts, seen = bank.start(), [], []
    for slot, now in enumerate(counts):
        forecasts.append(bank.forecast(state))
        if slot % gap == 0:
            seen.append(bank.observe(state, now, noise, np.full(bank.bins, other)))
        state.elapsed += 1
    return state, forecasts, seen


def assert_covariances(state) -> None:
    """Level and slope have a covariance matrix, but for rounding."""
    for name, part in vars(state).items():
        assert name == "mixture" or np.isfinite(part).all()
    now = present(state)
    assert (now.level_var >= 0).all()
    assert (now.slope_var >= 0).all()
    product = now.level_var[SLOPED] * now.slope_var
    assert (now.covariance**2 <= product * (1 + 1e-9) + 1e-200).all()
    assert (state.scale >= LEAST_SCALE).all()


# What is foreseen of several slots at once is what is foreseen of each alone, bit for bit.
def test_slots_are_foreseen_alike_alone_and_together():
    bank, counts = Bank(10_000, 3), np.array([2000.0, 5000.0, 3000.0])
    apart, together = bank.start(), bank.start()
    for state in (apart, together):
        bank.observe(state, counts, 400.0, np.zeros(3))
    several = []
    for slot in range(2 * SEVERAL):
        apart.elapsed = together.elapsed = slot + 1
        apart.mixture = None
        alone, both = bank.forecast(apart), bank.forecast(together, 2 * SEVERAL - slot)
        assert alone.mean.tolist() == both.mean.tolist()
        assert alone.variance.tolist() == both.variance.tolist()
        several.append(both.several)
    assert len(set(map(id, several))) == 3  # the first one by itself


# ---- tracking -------------------------------------------------------------------------------


# Exact counts that stay, and exact counts that rise evenly, are forecast exactly.
@pytest.mark.many
@pytest.mark.parametrize("rise", [0.0, 3.0, -2.0])
@pytest.mark.parametrize("gap", [1, 5])
def test_exact_counts_are_tracked(rise, gap):
    bank = Bank(10_000, 2)
    one = 2000 + rise * np.arange(301)
    counts = np.stack([one, 10_000 - one], axis=1)
    state, forecasts, seen = follow(bank, counts, EXACT, gap)
    missed = np.abs(np.array([f.mean for f in forecasts]) - counts)[-gap:]
    assert missed.max() < (0.05 if rise == 0 else 0.1) * max(abs(rise) * gap, 1)
    np.testing.assert_allclose(seen[-1].mean, counts[-1], atol=1e-3)
    assert (seen[-1].variance < 1e-3).all()
    assert_covariances(state)


# A stream that one member describes is that member's; its forecast errors have the variance that
# was expected, up to 20 % for what the others add (500 slots of 30 bins).
@pytest.mark.slow
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
    beliefs = bank.mixture(state).weights.mean(axis=1)
    assert (beliefs * WHITE[:, 0]).sum() == pytest.approx(white, abs=0.2)
    # A slow drift is hardly distinguished from a slow bend in the releases that are remembered.
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
    _, forecasts, observed = follow(Bank(10_000, 3), seen, noise)
    jumps = np.array([one.jumped for one in observed])
    assert np.argwhere(jumps[1:]).tolist() == [[199, 1]]
    missed = np.abs(forecasts[204].mean - counts[204])
    assert (missed < 5 * np.sqrt(noise)).all()


# ---- variances ------------------------------------------------------------------------------


def wander(users, noises, seed, slots=40) -> None:
    """Observe any count up to all users at any gap; check every belief."""
    rng = np.random.default_rng(seed)
    bank = Bank(users, bins := int(rng.integers(1, 4)))
    state = bank.start()
    for slot in range(slots):
        state.elapsed += int(rng.choice([1, 1, 2, 40])) if slot else 0
        noise = float(rng.choice(noises))
        error = rng.choice([0.0, 1.0, 1e6], bins)
        counts = rng.choice([-0.1, 0.0, 0.3, 1.0], bins) * rng.choice([1.0, users / 100, users])
        shares = rng.random(int(rng.integers(1, state.elapsed + 1)))
        seen = bank.observe(state, counts, noise, error, shares / shares.sum())
        assert_covariances(state)
        np.testing.assert_allclose(bank.mixture(state).weights.sum(axis=0), 1)
        forecast = bank.forecast(state)
        assert (forecast.variance >= 0).all()
        assert (forecast.white >= 0).all()
        assert np.isfinite(seen.mean).all()
        assert (seen.variance >= 0).all()


# Whatever is observed, at whatever gap, with whatever noise: level and slope have a covariance
# matrix, weights are shares, and forecasts are numbers with a variance.
@PROPERTY
@given(users=st.sampled_from([0.0, 1.0, 50.0, 1e4]), seed=st.integers(0, 2**32))
def test_covariances_stay_covariances(users, seed):
    wander(users, [1e-3, 1.0, 1e6, 1e20], seed)


# Also where the square of a jump is 1e16 times the noise's variance, which rounding would eat.
@pytest.mark.slow
@pytest.mark.parametrize(("users", "noise"), [(1e6, 1e-4), (1e9, 100.0)])
def test_covariances_stay_covariances_where_counts_are_large(users, noise):
    for seed in range(20):
        wander(users, [noise], seed)


# Members are mixed once after a release, and that foresees any later slot as they do one by one.
def test_forecasts_mix_what_members_believe_of_the_slot():
    rng = np.random.default_rng(5)
    bank = Bank(5000, 3)
    state, _, _ = follow(bank, rng.normal([900, 50, 3], [100, 20, 1], (30, 3)), 40.0, gap=3)
    for _ in range(3):
        for state.elapsed in (0, 1, 2, 7, 40):
            weights, now = bank.mixture(state).weights, present(state)
            mean = (weights * now.level).sum(axis=0)
            spread = (weights * (now.level_var + (now.level - mean) ** 2)).sum(axis=0)
            forecast = bank.forecast(state)
            np.testing.assert_allclose(forecast.mean, mean, rtol=1e-12)
            np.testing.assert_allclose(forecast.variance, spread, rtol=1e-9)
        # After a release, and with another scale, nothing of the mixture before is left.
        bank.observe(state, rng.normal(500, 100, 3), 40.0, np.ones(3))


# Bins know nothing of each other: an order of bins is an order of results.
def test_bins_are_independent():
    rng = np.random.default_rng(1)
    counts = rng.normal(1000, 100, (50, 4))
    order = [2, 0, 3, 1]
    state, _, _ = follow(Bank(5000, 4), counts, 100.0)
    other, _, _ = follow(Bank(5000, 4), counts[:, order], 100.0)
    for name, part in vars(state).items():
        if name not in ("elapsed", "mixture", "prior"):
            np.testing.assert_array_equal(part[..., order], getattr(other, name))


# ---- what counts vary by ---------------------------------------------------------------------


def parts(random, drawn):
    """Mean and variance of what some 600 numbers add: 1 - t and t, and 1 if they are above 1."""
    counts = []
    for _ in range(4000):
        numbers = drawn(random.poisson(600))
        inside = numbers[numbers <= 1]
        counts.append([(1 - inside).sum(), inside.sum(), (numbers > 1).sum()])
    return np.mean(counts, axis=0), np.var(counts, axis=0)


def test_parts_to_which_events_add_more_or_less_vary_less_than_counts():
    random = np.random.default_rng(9)
    bank, counts = Bank(1e9, 6, graded=(True, True, False)), Bank(1e9, 3)
    mean, variance = parts(random, lambda size: random.exponential(0.2, size))
    scale = bank.scale(np.tile(mean, 2))
    assert scale[:3].tolist() == scale[3:].tolist()
    assert scale[2] == counts.scale(mean)[2]
    assert variance[1] < 0.75 * scale[1] < 0.5 * counts.scale(mean)[1]
    # Numbers that are 0 or 1 vary as counts do.
    mean, variance = parts(random, lambda size: (random.random(size) < 0.2).astype(float))
    assert variance[:2] == pytest.approx(counts.scale(mean)[:2], rel=0.1)
    assert (bank.scale(np.tile(mean, 2))[:2] > 0.55 * variance[:2]).all()


# A draw of noise of six standard deviations below nothing once opened a level, and was followed by
# a slope upwards, without end, of what nobody was counted in.
@pytest.mark.parametrize(("far", "jumped"), [(-500.0, False), (500.0, True)])
def test_no_count_jumps_below_nothing(far, jumped):
    noise, counts = 81.0, np.array([480.0, 110.0, 0.0, 0.0])
    bank, random = Bank(5000, 4), np.random.default_rng(3)
    state, _, _ = follow(bank, counts + random.laplace(0, 10, (60, 4)), 200.0)
    before = bank.forecast(state).mean[3]
    released = counts + np.array([0.0, 0.0, 0.0, far])
    seen = bank.observe(state, released, noise**2, np.zeros(4), alarmed=True)
    assert seen.jumped.tolist() == [False, False, False, jumped]
    assert (abs(seen.mean[3] - before) < 10) is not jumped


# ---- sums -----------------------------------------------------------------------------------


def slot_by_slot(bank, shares, seen, noise):
    """Level and slope, means and covariance, of each member in the only bin, after one sum.

    As the textbook has it: level, slope and the sum so far are a state of three, advanced slot by
    slot, of which the last is observed.
    """
    start, moments = bank.start(), []
    now = present(start)
    for member in range(MEMBERS):
        drift, bend = DRIFT[member, 0] * start.scale[0], BEND[member, 0] * start.scale[0]
        sloped = member - len(kalman.LEVELS)
        mean = np.array([float(start.level[member, 0]), 0.0, 0.0])
        covariance = np.diag([float(start.level_var[member, 0]), 0.0, 0.0])
        if sloped >= 0:
            covariance[1, 1] = start.slope_var[sloped, 0]
        for share in shares:
            step = np.array([[1, 1, 0], [0, 1, 0], [share, share, 1.0]])
            steps = np.array([[1, 0], [0, 1], [share, 0.0]])
            mean = step @ mean
            covariance = step @ covariance @ step.T + steps @ np.diag([drift, bend]) @ steps.T
        error = noise + (shares @ shares) * WHITE[member, 0] * start.scale[0]
        gain = covariance[:, 2] / (covariance[2, 2] + error)
        mean = mean + gain * (seen - mean[2])
        covariance = covariance - np.outer(gain, covariance[2])
        moments.append((mean, covariance))
    assert now.level.shape == (MEMBERS, 1)
    return moments


# What is believed after a sum, of any lengths and shares, is what a filter of level, slope and sum
# comes to slot by slot.
@pytest.mark.parametrize(
    "shares", [np.full(5, 0.2), np.arange(1, 8) / 28, np.array([0.0, 0.5, 0.5, 0.0])], ids=len
)
def test_a_sum_is_observed_as_slot_by_slot(shares):
    bank = Bank(1000.0, 1)
    expected = slot_by_slot(bank, shares, 400.0, 900.0)
    state = bank.start()
    state.elapsed = len(shares)
    bank.observe(state, np.array([400.0]), 900.0, np.zeros(1), shares)
    assert state.elapsed == 0
    now = present(state)
    for member, (mean, covariance) in enumerate(expected):
        assert now.level[member, 0] == pytest.approx(mean[0], rel=1e-5)
        assert now.level_var[member, 0] == pytest.approx(covariance[0, 0], rel=1e-5)
        sloped = member - len(kalman.LEVELS)
        if sloped >= 0:
            assert now.slope[sloped, 0] == pytest.approx(mean[1], rel=1e-3, abs=1e-4)
            assert now.slope_var[sloped, 0] == pytest.approx(covariance[1, 1], rel=1e-3)
            together = np.sqrt(covariance[0, 0] * covariance[1, 1])
            assert abs(now.covariance[sloped, 0] - covariance[0, 1]) < 1e-3 * together


# A sum of one slot is a release of that slot.
def test_a_sum_of_one_slot_is_a_release():
    states = []
    for shares in (kalman.LAST_SLOT, np.array([0.0, 0.0, 1.0])):
        bank = Bank(1000.0, 2)
        state = bank.start()
        bank.observe(state, np.array([300.0, 20.0]), 50.0, np.ones(2))
        state.elapsed = 3
        seen = bank.observe(state, np.array([310.0, 30.0]), 50.0, np.ones(2), shares)
        states.append((state, seen))
    (one, seen), (other, also) = states
    np.testing.assert_allclose(seen.mean, also.mean, rtol=1e-6)
    np.testing.assert_allclose(seen.variance, also.variance, rtol=1e-6)
    np.testing.assert_allclose(present(one).level, present(other).level, rtol=1e-6)
    np.testing.assert_allclose(present(one).level_var, present(other).level_var, rtol=1e-5)


# Slots are foreseen in closed form: as many steps at once are as good as one by one.
def test_slots_pass_at_once():
    bank = Bank(1000.0, 1)
    state = bank.start()
    bank.observe(state, np.array([100.0]), 50.0, np.zeros(1))
    level, slope = present(state).level.copy(), np.zeros((MEMBERS, 1))
    slope[SLOPED] = present(state).slope
    for slots in range(1, 6):
        state.elapsed = slots
        level += slope
        np.testing.assert_allclose(present(state).level, level)


def test_members():
    assert DRIFT.shape == BEND.shape == WHITE.shape == (MEMBERS, 1)
    assert ((DRIFT > 0) != (BEND > 0)).all()
    assert stats.rankdata(-kalman.BELIEF[:, 0]).tolist() == stats.rankdata(DRIFT[:, 0]).tolist()


# What an alarm makes of two bins it must not make of many: of a hundred one is that far off by
# chance at nearly every alarm, and each would be opened.
def test_chance_is_no_jump_in_many_bins():
    jumps = {}
    for bins in (2, 100):
        rng, bank, jumps[bins] = np.random.default_rng(3), Bank(1e5, bins), 0
        state = bank.start()
        for slot in range(60):
            counts = 500 + rng.laplace(0, 10, bins)
            seen = bank.observe(state, counts, 200.0, np.zeros(bins), alarmed=slot > 20)
            jumps[bins] += int(seen.jumped.sum()) if slot > 20 else 0
            state.elapsed += 1
    assert max(jumps.values()) <= 2


# No release tells members apart where noise hides hardly anybody; where it does, it is believed.
@pytest.mark.parametrize(("count", "believed"), [(0.3, 0.01), (1000.0, 0.1)])
def test_hardly_anybody_is_not_believed_to_move_fast_for_want_of_evidence(count, believed):
    bank = Bank(10_000, 2)
    state = bank.start()
    state.scale = bank.scale(np.full(2, count))
    fast = bank.mixture(state).weights[(DRIFT >= 0.1)[:, 0]].sum(axis=0)
    assert ((fast < believed) == (count < 1)).all()


# One of many bins is far off in some release by chance, and by an alarm it was taken for a jump.
@pytest.mark.parametrize(("of_noise", "jumps"), [(8.0, False), (10.0, True)])
def test_what_is_more_than_there_is_in_all_bins_is_noise_rather_than_a_jump(of_noise, jumps):
    bank = Bank(10_000, 100)
    state, _, _ = follow(bank, np.ones((40, 100)), noise=0.01)
    released = np.ones(100)
    released[3] += of_noise * 50
    seen = bank.observe(state, released, 50.0**2, np.zeros(100), alarmed=True)
    assert seen.jumped.sum() == jumps


def test_an_alarm_takes_less_than_all_there_is_for_a_jump_sooner():
    bank = Bank(10_000, 100)
    state, _, _ = follow(bank, np.full((40, 100), 10.0), noise=0.01)
    released = np.full(100, 10.0)
    released[3] += 425
    seen = bank.observe(state, released, 50.0**2, np.zeros(100), alarmed=True)
    assert seen.jumped.tolist() == [i == 3 for i in range(100)]
