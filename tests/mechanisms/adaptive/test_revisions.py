"""Revisions: what is expected of a slot given the releases after it, once for each slot."""

import numpy as np
import pytest

from streamveil.mechanisms import (
    MECHANISMS,
    ConfigurationError,
    NoiseSource,
    ReleaseStream,
    mechanism,
    simulate,
    simulate_dynamic,
)
from streamveil.mechanisms.adaptive.filter_bank import Bank, Taken
from streamveil.mechanisms.adaptive.kalman import BEND, DRIFT, LAST_SLOT, MEMBERS, WHITE
from streamveil.mechanisms.adaptive.revisions import Ring
from streamveil.mechanisms.protocol import Setting
from streamveil.mechanisms.registry import LONGEST_LAG, dynamic_mechanism
from tests.mechanisms.streams import KEY, people

SCALE = 50.0
LEVEL, SLOPE = 80.0, 1.0
LEVEL_VAR, BOTH, SLOPE_VAR = 400.0, 10.0, 4.0  # a correlation of 1/4
LAST = 10


# ---- the mathematics ------------------------------------------------------------------------


def posterior(releases, m):
    """Mean and variance of each slot's count by a member, given all releases, written out.

    Members without a slope have none before slot 0 either.

    What is unknown: level and slope before slot 0; in each slot a step of the level, one of the
    slope, and the slot's own deviation.
    """
    slots = LAST + 1
    unknown = 2 + 3 * slots
    spread = np.zeros((unknown, unknown))
    sloped = BEND[m, 0] > 0
    spread[:2, :2] = [[LEVEL_VAR, BOTH * sloped], [BOTH * sloped, SLOPE_VAR * sloped]]
    steps = np.repeat([DRIFT[m, 0], BEND[m, 0], WHITE[m, 0]], slots) * SCALE
    spread[2:, 2:] = np.diag(steps)
    mean = np.zeros(unknown)
    mean[:2] = LEVEL, SLOPE * sloped
    each = np.eye(unknown)
    level, slope, counts = each[0], each[1], []
    for slot in range(slots):
        level = level + slope + each[2 + slot]
        slope = slope + each[2 + slots + slot]
        counts.append(level + each[2 + 2 * slots + slot])
    counts = np.array(counts)
    for slot, shares, count, error in releases:
        measured = shares @ counts[slot - len(shares) + 1 : slot + 1]
        gain = spread @ measured / (measured @ spread @ measured + error)
        mean = mean + gain * (count - measured @ mean)
        spread = spread - np.outer(gain, measured @ spread)
    return counts @ mean, np.einsum("ti,ij,tj->t", counts, spread, counts)


def evenly(slots):
    return np.full(slots, 1 / slots)


RELEASES = {
    "none": [],
    "points": [(0, evenly(1), 100.0, 9.0), (3, evenly(1), 110.0, 20.0), (9, evenly(1), 140.0, 1.0)],
    "sums": [(2, evenly(3), 100.0, 30.0), (8, evenly(6), 140.0, 10.0)],
    "both": [(2, evenly(3), 100.0, 30.0), (3, evenly(1), 110.0, 2.0), (9, evenly(6), 140.0, 10.0)],
    "unequal": [
        (3, np.array([0.2, 0.3, 0.5]), 100.0, 5.0),
        (8, np.array([0.5, 0.2, 0.3, 0]), 130.0, 9.0),
    ],
    # An audit of a slot that is the last one of a sum.
    "exact": [(4, evenly(5), 120.0, 1e-6), (9, evenly(1), 90.0, 1e-6)],
}


@pytest.mark.parametrize("releases", RELEASES.values(), ids=RELEASES)
def test_a_slot_is_revised_to_what_is_expected_given_all_releases(releases):
    state = Bank(1000, 1).start()
    figures = {"level": LEVEL, "level_var": LEVEL_VAR}
    correlation = BOTH / (LEVEL_VAR * SLOPE_VAR) ** 0.5
    sloped = {"slope": SLOPE, "correlation": correlation, "slope_var": SLOPE_VAR}
    for name, figure in {**figures, **sloped}.items():
        getattr(state, name)[:] = figure
    ring = Ring.start(state, 0)
    scale, before = np.array([SCALE]), -1
    for slot, shares, count, error in releases:
        taken = Taken(np.array([count]), np.array([error]), shares, np.zeros(1))
        ring.note(slot, slot - before, scale, taken)
        before = slot
    expected = [posterior(releases, m) for m in range(MEMBERS)]
    evenly_believed = np.full((MEMBERS, 1), 1 / MEMBERS)
    for slot in range(LAST + 1):
        means, variances = np.array([(m[slot], v[slot]) for m, v in expected]).T
        revised, known = ring.revise(evenly_believed, scale)
        assert revised == slot
        np.testing.assert_allclose(known.mean, means.mean(), rtol=1e-4)
        mixed = variances.mean() + means.var()
        np.testing.assert_allclose(known.variance + known.white, mixed, rtol=1e-3, atol=1e-3)
    assert not ring.releases


def observed(bank, state, ring, slot, counts, noise, shares=LAST_SLOT):
    """Let the bank and the ring have a release."""
    elapsed, scale = state.elapsed, state.scale
    seen = bank.observe(state, counts, noise, np.zeros(bank.bins), shares)
    ring.note(slot, elapsed, scale, seen.taken)
    return seen


def test_the_ring_believes_what_the_bank_does():
    """After jumps, sums and two releases of a slot the beliefs are the bank's own."""
    bank, rng = Bank(10_000, 3), np.random.default_rng(1)
    state = bank.start()
    ring = Ring.start(state, 0)
    jumps = 0
    for slot in range(60):
        counts = rng.poisson([900, 500, 4000 if slot >= 30 else 60]).astype(float)
        if slot % 7 == 0 and state.elapsed > 1:
            jumps += observed(bank, state, ring, slot, counts, 50.0, evenly(state.elapsed)).jumped
        if slot % 5 == 0:
            jumps += observed(bank, state, ring, slot, counts, 90.0).jumped
        if state.elapsed == 0:
            now = Ring.start(state, slot)
        state.elapsed += 1
        ring.passed(slot, 10_000, np.zeros(3))
        ring.revise(bank.mixture(state).weights, state.scale.astype(float))
        for name in ("level", "level_var", "slope", "slope_var"):
            both = getattr(ring.kept, name), getattr(now.kept, name)
            np.testing.assert_allclose(*both, rtol=2e-3, atol=1e-3)
        assert ring.since == now.since
    assert jumps[2]


# ---- the releases ---------------------------------------------------------------------------

REQUIREMENTS = [(6, 1.0), (12, 2.0)]
SIZES = [2000, 1000]


def counts_of(slots, seed=0):
    """A drifting stream of two classes and three bins, with a jump."""
    rng = np.random.default_rng(seed)
    level = 250 + np.cumsum(rng.normal(0, 3, (slots, 1, 3)), axis=0)
    level[slots // 2 :, :, 0] += 300
    return rng.poisson(np.maximum(level, 1) * [[1.0], [0.5]])


def stream_of(revise, key=KEY):
    population = people(REQUIREMENTS, SIZES, bins=3)
    return ReleaseStream(mechanism("adaptive", population, revise=revise), NoiseSource(key))


def run(counts, revise=7, restart=None):
    """Releases, and revisions with the slot after which they came; None for the end.

    `restart` gives the stream that goes on from the saved state, by slot.
    """
    stream = stream_of(revise)
    state, releases, revisions = stream.start(), [], []
    for slot, table in enumerate(counts):
        if restart:
            saved, stream = stream.encode(state), restart(slot)
            state = stream.decode(saved)
        state, release = stream.release(state, slot, table)
        releases.append(release)
        revisions += [(slot, one) for one in release.revisions]
    revisions += [(None, one) for one in stream.rest(state)]
    assert stream.rest(state) == ()
    return releases, revisions


def assert_same(some, others):
    assert [at for at, _ in some] == [at for at, _ in others]
    for (_, one), (_, other) in zip(some, others, strict=True):
        assert one.slot == other.slot
        np.testing.assert_array_equal(one.counts, other.counts)
        np.testing.assert_array_equal(one.stderr, other.stderr)


@pytest.mark.parametrize("lag", [1, 7, 100])
def test_every_slot_is_revised_once_and_released_as_ever(lag):
    counts = counts_of(40)
    plain, none = run(counts, revise=0)
    releases, revisions = run(counts, revise=lag)
    assert not none
    assert [one.slot for _, one in revisions] == list(range(40))
    assert [at for at, _ in revisions] == [t + lag if t + lag < 40 else None for t in range(40)]
    for one, other in zip(plain, releases, strict=True):
        np.testing.assert_array_equal(one.counts, other.counts)
        np.testing.assert_array_equal(one.stderr, other.stderr)
        np.testing.assert_array_equal(one.spent, other.spent)


def test_a_restart_in_any_slot_changes_nothing():
    counts = counts_of(40)
    assert_same(run(counts)[1], run(counts, restart=lambda _: stream_of(7))[1])


def test_a_stream_may_ask_later_for_another_lag_or_no_longer():
    counts = counts_of(60)
    lags = lambda slot: 0 if slot < 10 or 40 <= slot < 50 else 7 if slot < 20 else 3  # noqa: E731
    releases, revisions = run(counts, 0, restart=lambda slot: stream_of(lags(slot)))
    plain, _ = run(counts, 0)
    assert [r.counts.tolist() for r in releases] == [r.counts.tolist() for r in plain]
    # Those that were not revised when it ended are not: from 50 on it begins anew.
    slots = [one.slot for _, one in revisions]
    assert slots == [*range(10, 37), *range(50, 60)]
    # With the lag shortened, all that are due are revised at once.
    assert [one.slot for at, one in revisions if at == 20] == [13, 14, 15, 16, 17]


def test_a_state_without_revisions_stays_small():
    counts = counts_of(20)
    sizes = []
    for lag in (0, 7):
        stream = stream_of(lag)
        state = stream.start()
        for slot, table in enumerate(counts):
            state, _ = stream.release(state, slot, table)
        assert (state.mechanism.ring is None) == (lag == 0)
        sizes.append(len(stream.encode(state)))
    assert sizes[0] < sizes[1]


def test_revisions_err_less_and_know_their_error():
    """Of a drifting curve 7 slots later less than 0.9 of the error, over 300 slots and 5 bins."""
    rng = np.random.default_rng(3)
    level = 1000 + np.cumsum(rng.normal(0, 12, (300, 1, 5)), axis=0)
    counts = np.rint(np.abs(level)).astype(np.int64)
    simulation = simulate("adaptive", counts, [(60, 0.6)], [10_000], KEY, revise=7)
    true = counts.sum(axis=1)
    errors = [((one - true) ** 2).mean() for one in (simulation.revised, simulation.released)]
    assert errors[0] < 0.9 * errors[1]
    covered = (np.abs(simulation.revised - true) <= 1.645 * simulation.revised_stderr).mean()
    assert 0.8 < covered < 0.99
    assert (simulation.revised_stderr.mean(axis=0) < simulation.stderr.mean(axis=0)).all()


def test_a_slot_of_which_nothing_is_known_is_not_made_up():
    """Nobody spends enough for a release: zeros of unknown error, as they were released."""
    simulation = simulate("adaptive:gate=0", counts_of(12), [(6, 1e-9)] * 2, SIZES, KEY, revise=3)
    unknown = np.isnan(simulation.revised_stderr).all(axis=1)
    np.testing.assert_array_equal(unknown, np.isnan(simulation.stderr).all(axis=1))
    assert (simulation.revised[unknown] == 0).all()


def test_requirements_that_change_are_revised_too():
    counts = counts_of(40)
    asked = np.array([[6, 1.0, 6, 1.0], [12, 2.0, 12, 2.0]])
    each = np.tile(asked, (40, 1, 1))
    each[20:, 0, [1, 3]] = 0.5
    simulation = simulate_dynamic("adaptive", counts, each, SIZES, KEY, revise=7)
    plain = simulate_dynamic("adaptive", counts, each, SIZES, KEY)
    np.testing.assert_array_equal(simulation.released, plain.released)
    assert plain.revised is None
    assert simulation.revised.shape == simulation.released.shape
    assert np.isfinite(simulation.revised_stderr).all()


def test_what_cannot_revise_says_which_can():
    for name in MECHANISMS:
        if name != "adaptive":
            with pytest.raises(ConfigurationError, match=rf"'{name}' cannot revise.* adaptive, or"):
                simulate(name, counts_of(3), REQUIREMENTS, SIZES, KEY, revise=7)
    with pytest.raises(ConfigurationError, match="'dpbd' cannot revise"):
        dynamic_mechanism("dpbd", Setting(3, 12), revise=7)
    for lag in (-1, 2.5, True, LONGEST_LAG + 1):
        with pytest.raises(ConfigurationError, match=f"revise is {lag}"):
            simulate("adaptive", counts_of(3), REQUIREMENTS, SIZES, KEY, revise=lag)


@pytest.mark.slow
def test_a_cycle_is_in_revisions_as_in_forecasts():
    """Of counts that rise and fall by two thirds, revised counts are about as near to the truth."""
    rng = np.random.default_rng(5)
    phases = 1 + 2 / 3 * np.sin(2 * np.pi * np.arange(240) / 8)
    level = 800 + np.cumsum(rng.normal(0, 6, (240, 1, 4)), axis=0)
    counts = np.rint(level * phases[:, None, None]).astype(np.int64)
    true, late = counts.sum(axis=1), slice(80, None)
    revised, released = [], []
    for key in range(4):
        simulation = simulate(
            "adaptive:cycle=8", counts, [(40, 1.0)], [10_000], bytes([key]) * 32, revise=7
        )
        for one, errors in ((simulation.revised, revised), (simulation.released, released)):
            errors.append(((one - true)[late] ** 2).mean())
    assert np.mean(revised) < 1.1 * np.mean(released)
    assert np.mean(revised) < 0.1 * ((true[late] - true[late].mean(axis=0)) ** 2).mean()


# Where budgets are tiny, variances are beyond single precision: what is kept stays a number.
def test_huge_errors_leave_numbers():
    bank = Bank(1.0, 2)
    state = bank.start()
    ring = Ring.start(state, 0)
    for slot in range(4):
        elapsed, scale = state.elapsed, state.scale
        seen = bank.observe(state, np.array([1e25, 3.0]), 1e45, np.full(2, 1e40))
        ring.note(slot, elapsed, scale, seen.taken)
        ring.passed(slot, 10, np.zeros(2))
        state.elapsed += 1
    for slot in range(4):
        revised_slot, expected = ring.revise(
            bank.mixture(state).weights, state.scale.astype(np.float64)
        )
        assert revised_slot == slot
        assert np.isfinite([expected.mean, expected.variance, expected.white]).all()
