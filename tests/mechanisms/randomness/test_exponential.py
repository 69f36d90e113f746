"""Draws of the exponential mechanism, and the coin behind them."""

import math

import numpy as np
from scipy import stats

from streamveil.mechanisms.randomness.exponential import draw
from streamveil.mechanisms.randomness.noise import NoiseSource, bernoulli_exp

FLAKINESS = 1e-6


def words():
    return NoiseSource(bytes(range(32))).slot(0, b"").words("draws")


def test_bernoulli_exp():
    losses = np.array([0, 1 << 50, 1 << 55, 3 << 55, 5 << 56, 1 << 62])
    runs = 20_000
    happy = bernoulli_exp(np.tile(losses, runs), words()).reshape(runs, -1).sum(axis=0)
    assert happy[0] == runs
    assert happy[-1] == 0
    for loss, hits in zip(losses[1:-1], happy[1:-1], strict=True):
        p = math.exp(-loss / 2**56)
        assert stats.binomtest(int(hits), runs, p).pvalue > FLAKINESS


def test_draws_have_the_distribution_of_the_exponential_mechanism():
    distances = np.array([40, 7, 3, 0, 1, 2, 2, 10**6])
    rate = round(0.4 * 2**56)
    found = np.bincount(draw(distances + 5, rate, words(), 20_000), minlength=8)
    weights = np.exp(-0.4 * distances)
    likely = weights * 20_000 / weights.sum() > 1
    assert (
        stats.chisquare(
            found[likely], weights[likely] / weights[likely].sum() * found[likely].sum()
        ).pvalue
        > FLAKINESS
    )
    # However large the budget or the distance, products do not overflow.
    assert (draw(distances * 2**40, 4096 << 56, words(), 50) == 3).all()
    assert len(np.unique(draw(distances, 0, words(), 500))) == 8
