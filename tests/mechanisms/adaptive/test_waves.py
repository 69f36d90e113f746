"""Waves that no option names: releases see all of their hours, and intervals hold them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamveil.mechanisms.adaptive import kalman
from streamveil.mechanisms.adaptive.algorithm import _drawn
from streamveil.mechanisms.adaptive.filter_bank import Bank
from streamveil.mechanisms.core.tidy import interval
from streamveil.mechanisms.simulation import simulate

DAY = np.array([0, 0, 4, 14, 9, 16, 8, 1])
WEEK = np.array([700, 720, 710, 730, 690, 320, 250])


def released(wave, cycles, users, window, epsilon, seed):
    """(released, counts, which slots were published, intervals) of a wave in one bin."""
    counts = np.random.default_rng(seed).poisson(np.tile(wave, cycles))[:, None]
    key = bytes([seed]) * 32
    simulation = simulate("adaptive", counts[:, None], [(window, epsilon)], [users], key)
    low, high = interval(simulation.released, simulation.stderr)
    held = (low <= counts) & (counts <= high)
    return simulation.released[:, 0], counts[:, 0], simulation.status == "published", held[:, 0]


@given(st.integers(1, 672), st.integers(1, 672), st.binary(min_size=4, max_size=4))
def test_a_gap_is_as_planned_or_up_to_a_half_longer(gap, window, level):
    drawn = _drawn(gap, np.frombuffer(level, np.float32), window)
    assert gap <= drawn <= gap + 1 + gap // 2
    assert drawn == 1 or gap > 1


@pytest.mark.parametrize(("gap", "lengths"), [(2, {2, 3}), (8, {8, 9, 10, 11, 12})])
def test_now_and_then_a_gap_is_longer(gap, lengths):
    levels = np.random.default_rng(0).normal(size=(400, 3)).astype(np.float32)
    drawn = [_drawn(gap, level, 8) for level in levels]
    assert set(drawn) == lengths
    assert 0.25 < np.mean(np.array(drawn) > gap) < 0.6


def shares(wave, cycles, users, window, epsilon, seed):
    """What part of the releases of a run each slot of the wave has, once it has settled."""
    *_, published, _ = released(wave, cycles, users, window, epsilon, seed)
    phases = np.flatnonzero(published[5 * len(wave) :]) % len(wave)
    return np.bincount(phases, minlength=len(wave)) / len(phases)


# A window as long as a wave has room for one release a day, which saw the same hour every day.
@pytest.mark.slow
def test_releases_see_all_hours_of_a_wave_as_long_as_the_window():
    for seed in range(6):
        parts = shares(DAY, 40, 400, 8, 1.0, seed)
        assert parts.min() > 0.02
        assert parts.max() < 0.35


# A release that took all that was saved up kept one slot of every window without budget for ever.
@pytest.mark.slow
def test_no_day_of_a_week_is_left_out_for_ever():
    assert all(shares(WEEK, 20, 1500, 7, 0.3, seed).min() > 0.08 for seed in range(6))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wave", "cycles", "users", "window", "epsilon"),
    [(DAY, 30, 400, 8, 1.0), (DAY, 30, 400, 8, 4.0), (WEEK, 12, 1500, 7, 0.3)],
)
def test_sums_and_intervals_of_waves(wave, cycles, users, window, epsilon):
    runs = [released(wave, cycles, users, window, epsilon, seed) for seed in range(8)]
    off = np.array([values.sum() - counts.sum() for values, counts, *_ in runs])
    true = np.mean([counts.sum() for _, counts, *_ in runs])
    assert abs(off.mean()) <= max(3 * off.std(ddof=1) / 8**0.5, 0.03 * true)
    assert 0.79 <= np.mean([held for *_, held in runs]) <= 0.97


def test_waves_are_not_believed_in_where_counts_are_small():
    bank = Bank(10_000, 2)
    state = bank.start()
    bank.observe(state, np.array([0.5, 4000.0]), 1e6, np.zeros(2))
    weights = bank.mixture(state).weights
    waves = slice(len(kalman.PLAIN), len(kalman.LEVELS))
    assert weights[waves, 0].sum() < 0.03
    assert weights[waves, 1].sum() > 0.1


def test_a_state_from_before_waves_is_read():
    bank = Bank(10_000, 2)
    state = bank.start()
    for counts in ([40.0, 4000.0], [90.0, 3000.0], [20.0, 4100.0]):
        bank.observe(state, np.array(counts), 50.0, np.zeros(2))
        state.elapsed += 1
    waves = np.arange(len(kalman.PLAIN), len(kalman.LEVELS))
    former = kalman.record(state)
    for place, kind in ((0, "<f4"), (1, "<f4"), (6, "<f2")):  # level, level_var, scores
        rows = np.frombuffer(former["parts"][place], kind).reshape(-1, 2)
        former["parts"][place] = np.delete(rows, waves, axis=0).tobytes()
    again = bank.start()
    kalman.read(again, former)
    like = kalman.PLAIN.index((1e-2, 0.0, 1.0))
    for name in ("level", "level_var", "scores"):
        read, kept = getattr(again, name), getattr(state, name)
        assert (read[waves] == read[like]).all()
        np.testing.assert_array_equal(np.delete(read, waves, 0), np.delete(kept, waves, 0))
