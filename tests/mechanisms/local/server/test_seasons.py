"""Cycles of frequencies: found where they are, and nowhere else, whatever is missing."""

import numpy as np
import pytest

from streamveil.mechanisms import ConfigurationError
from streamveil.mechanisms.local.server.seasons import Seasons

ERROR = 0.03


def learnt(truth, length, random, heard=1.0) -> Seasons:
    """What is known after estimates of these frequencies, (T, d), in some of the slots."""
    seasons = Seasons.start(length, truth.shape[1])
    for slot, row in enumerate(truth):
        seasons.released(np.full(truth.shape[1], ERROR**2))
        if random.random() < heard:
            noisy = row + random.normal(0, ERROR, row.shape)
            seasons.learn(slot, noisy, np.full(row.shape, ERROR**2))
    return seasons


def daily(slots, length=24) -> np.ndarray:
    wave = 0.1 * np.sin(2 * np.pi * np.arange(slots) / length)
    return np.stack([0.3 + wave, 0.2 + np.roll(wave, 5), 0.5 + 0 * wave], axis=1)


def test_a_cycle_is_learnt_where_a_symbol_has_one():
    truth, random = daily(24 * 30), np.random.default_rng(1)
    seasons = learnt(truth, 24, random)
    assert seasons.found
    known = np.array([seasons.expected(slot)[0] for slot in range(24)])
    errors = known - (truth[:24] - truth[:24].mean(axis=0))
    assert np.abs(errors[:, :2]).max() < 0.03
    assert np.abs(known[:, 2]).max() < 0.01
    stated = seasons.expected(0)[1]
    assert 0.5 < (errors[:, :2] ** 2).mean() / stated[:2].mean() < 2


# Noise, a walk or a trend are no cycle: in 40 runs of each, at most one is taken for one.
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["still", "walk", "trend"])
def test_nothing_else_is_a_cycle(kind):
    found = 0
    for seed in range(40):
        random = np.random.default_rng(seed)
        steps = {"still": 0.0, "walk": 0.01, "trend": 0.0}[kind]
        path = np.cumsum(random.normal(0, 1, (480, 2)), axis=0) * steps
        path += np.linspace(0, 0.5, 480)[:, None] * (kind == "trend")
        found += learnt(0.3 + path, 24, random).found
    assert found <= 1


# Cycles with a slot that nobody reported in teach nothing, and do no harm.
def test_only_whole_cycles_count():
    random = np.random.default_rng(2)
    seasons = learnt(daily(24 * 30), 24, random, heard=0.98)
    assert 10 < seasons.cycles < 30
    assert seasons.found
    assert learnt(daily(24 * 5), 24, random, heard=0.5).cycles == 0


# A cycle that is over is forgotten.
def test_a_cycle_that_ends_is_forgotten():
    random = np.random.default_rng(3)
    truth = np.concatenate([daily(24 * 10), np.tile(daily(24).mean(axis=0), (24 * 30, 1))])
    seasons = learnt(truth, 24, random)
    left = [np.abs(seasons.expected(slot)[0]).max() for slot in range(24)]
    assert max(left) < 0.03


def test_a_record_of_another_length_is_refused():
    record = Seasons.start(24, 3).record()
    np.testing.assert_array_equal(Seasons.read(record, 24, 3).mean, np.zeros((24, 3)))
    with pytest.raises(ConfigurationError, match="phases and symbols of the cycle"):
        Seasons.read(record, 12, 3)
