"""Bounds from guesses: near the truth, and above it no more often than they say."""

import math

import numpy as np
import pytest

from streamveil.pipelines.audit.bounds import (
    MOST,
    mean_right,
    times_at_least,
    times_of,
    visible_from,
)

FLAKINESS = 0.05


@pytest.mark.parametrize("losses", [np.full(400, 1.5), np.linspace(0.2, 4.0, 400)])
def test_luck_alone_gives_a_bound_above_the_truth_as_rarely_as_was_said(losses):
    random, tries = np.random.default_rng(1), 4000
    chances = 1 / (1 + np.exp(-losses))
    right = (random.random((tries, losses.size)) < chances).sum(axis=1)
    bounds = {n: times_at_least(n, losses, FLAKINESS) for n in np.unique(right).tolist()}
    wrong = np.mean([bounds[n] > 1.0 for n in right.tolist()])
    # Coins of one odds lie on the edge; a binomial count of 4000 is within 4 sigmas of 5 %.
    assert wrong <= FLAKINESS + 4 * math.sqrt(FLAKINESS * (1 - FLAKINESS) / tries)
    assert wrong > 0.01


def test_many_guesses_prove_nearly_all_that_is_lost():
    losses = np.full(100_000, 2.0)
    right = round(mean_right(1.2, losses) * losses.size)
    assert 1.17 < times_at_least(right, losses, FLAKINESS) < 1.2


def test_guesses_that_are_mostly_wrong_prove_nothing():
    assert times_at_least(0, np.ones(10), FLAKINESS) == 0.0
    assert times_at_least(5, np.ones(10), FLAKINESS) == 0.0
    assert times_of(0.9, np.zeros(0)) == 0.0


def test_the_loss_that_a_share_of_right_guesses_needs():
    assert times_of(1 / (1 + math.exp(-3.0)), np.full(7, 2.0)) == pytest.approx(1.5)
    assert times_of(1.0 - 1e-15, np.full(7, 1e-6)) == MOST


def test_a_violation_that_would_have_been_seen_is_seen_four_times_in_five():
    losses, random = np.full(2000, 1.5), np.random.default_rng(2)
    visible = visible_from(0.95, losses, FLAKINESS)
    assert 1.0 < visible < 1.3
    chance = mean_right(visible * 0.95, losses)
    right = random.binomial(losses.size, chance, 2000)
    bounds = {n: times_at_least(n, losses, FLAKINESS) for n in np.unique(right).tolist()}
    seen = np.mean([bounds[n] > 1.0 for n in right.tolist()])
    assert 0.75 < seen < 0.85


def test_few_guesses_would_have_seen_nothing():
    assert visible_from(1.0, np.full(3, 1.0), FLAKINESS) == math.inf
    assert visible_from(0.0, np.full(3000, 1.0), FLAKINESS) == math.inf
