"""A guess of how many users there are bounds nothing, and costs hardly anything if it is wrong."""

import numpy as np
import pytest

from streamveil.mechanisms.adaptive.filter_bank import Bank
from streamveil.mechanisms.adaptive.weighting import CAUTION, Correlation, Mixed, guessed_bias
from streamveil.mechanisms.core.budgets import Requirements
from streamveil.mechanisms.core.cohorts import Moves
from streamveil.mechanisms.core.records import ConfigurationError, Requirement
from streamveil.mechanisms.driver.dynamic_stream import CohortCounts, DynamicStream
from streamveil.mechanisms.driver.stream import ReleaseStream
from streamveil.mechanisms.protocol import Population, Setting
from streamveil.mechanisms.randomness.noise import NoiseSource
from streamveil.mechanisms.registry import dynamic_mechanism, mechanism

USERS, SLOTS, NINETY = 1000, 40, 1.645
SEEDS = 8
NOBODY = Moves(*np.zeros((3, 0), np.int64), np.zeros((0, 4), np.int64))


def counts_of(bins, users, seed, share=0.8):
    """Counts of each class in each slot, shape (slots, K, bins)."""
    random = np.random.default_rng(seed)
    likely = 1 / np.arange(1, bins + 1)
    return np.array(
        [
            [random.multinomial(random.binomial(n, share), likely / likely.sum()) for n in users]
            for _ in range(SLOTS)
        ]
    )


def released(requirements, sizes, counts, seed, *, guessed, text="adaptive", revise=0):
    """The releases of a stream."""
    asked = Requirements([Requirement(*one) for one in requirements])
    people = Population(asked, np.array(sizes), counts.shape[2], guessed=guessed)
    stream = ReleaseStream(mechanism(text, people, revise=revise), NoiseSource(bytes([seed]) * 32))
    state, releases = stream.start(), []
    for slot, table in enumerate(counts):
        state, one = stream.release(state, slot, table.astype(np.int64))
        releases.append(one)
    return releases


def judged(requirements, sizes, users, bins, **more):
    """Root mean squared error, coverage of 90 % intervals, and total over the true one."""
    squares, held, totals = [], [], []
    for seed in range(1, SEEDS + 1):
        counts = counts_of(bins, users, seed)
        releases = released(requirements, sizes, counts, seed, **more)
        truth = counts.sum(axis=1)
        errors = np.array([one.estimates for one in releases]) - truth
        stderr = np.array([one.stderr for one in releases])
        squares.append((errors**2).mean())
        held.append((np.abs(errors) <= NINETY * stderr + 0.5).mean())
        totals.append(1 + errors.sum() / truth.sum())
    return np.mean(squares) ** 0.5, np.mean(held), np.mean(totals)


# 800 of 1,000 users are there in each slot.
@pytest.mark.slow
@pytest.mark.parametrize("bins", [1, 20])
@pytest.mark.parametrize("requirement", [(1, 1.0), (7, 1.0)])
def test_a_wrong_guess_costs_hardly_anything(bins, requirement):
    right, _, _ = judged([requirement], [USERS], [USERS], bins, guessed=0)
    for guess in (100, 10_000):
        error, held, total = judged([requirement], [guess], [USERS], bins, guessed=0)
        assert error < 1.4 * right
        assert held > 0.83
        assert 0.95 < total < 1.05


@pytest.mark.parametrize("text", ["adaptive:cycle=4", "uniform", "pbd", "pba", "ablation"])
def test_a_guess_bounds_no_count(text):
    counts = counts_of(1, [USERS], 1)
    releases = released([(1, 10.0)], [10], counts, 1, guessed=0, text=text)
    last = [one.counts.sum() for one in releases[-4:]]
    assert np.abs(np.array(last) - counts[-4:].sum(axis=(1, 2))).max() < 100


def test_a_known_number_of_users_bounds_counts():
    counts = counts_of(1, [USERS], 1)
    for one in released([(1, 1.0)], [700], counts, 1, guessed=None):
        assert one.counts.sum() <= 700


def test_a_guess_bounds_no_revision():
    counts = counts_of(2, [USERS], 1)
    releases = released([(2, 4.0)], [10], counts, 1, guessed=0, revise=3)
    revised = [one for release in releases for one in release.revisions]
    assert len(revised) == SLOTS - 3
    for one in revised:
        assert np.abs(one.counts - counts[one.slot].sum(axis=0)).max() < 100


# The class outside the table may be ten times smaller or larger than it is thought to be.
@pytest.mark.slow
@pytest.mark.parametrize("asked", [[(7, 0.5), (7, 1.0)], [(7, 1.0), (7, 0.2)]])
@pytest.mark.parametrize("guess", [100, 10_000])
def test_weights_do_not_rely_on_a_guess(asked, guess):
    right, _, _ = judged(asked, [USERS, USERS], [USERS, USERS], 2, guessed=1)
    error, held, total = judged(asked, [USERS, guess], [USERS, USERS], 2, guessed=1)
    assert error < 3 * right
    assert held > 0.8
    assert 0.93 < total < 1.07


def test_so_it_is_where_requirements_change():
    stream = DynamicStream(
        dynamic_mechanism("adaptive", Setting(2, 3)),
        Requirements([Requirement(3, 8.0)]).as_changing,
        np.array([10]),
        NoiseSource(bytes(32)),
        default=0,
    )
    state = stream.start()
    for slot in range(6):
        counts = CohortCounts(np.zeros(2, np.int64), np.arange(2), np.array([700, 300]))
        state, one = stream.release(state, slot, counts, NOBODY)
    assert np.abs(one.counts - [700, 300]).max() < 50


def test_the_variance_of_a_count_does_not_end_at_a_guess():
    mean = np.array([5.0, 90.0, 100.0, 4000.0])
    known, guessed = (Bank(100.0, 4, assumed=assumed).scale(mean) for assumed in (False, True))
    assert known == pytest.approx([4.75, 9.0, 0.1, 0.1])
    assert guessed == pytest.approx([4.75, 45.0, 50.0, 2000.0])


# What is thought of a class of unknown size is in its weights, and in nothing else.
def test_what_follows_from_a_guess():
    def bias(sizes, guessed, offers=(100, 20)):
        people = Population(
            Requirements([Requirement(1, 1.0)] * 2), np.array(sizes), 1, guessed=guessed
        )
        return guessed_bias(np.array(offers), people)

    assert bias([1000, 1000], None) == 0
    assert bias([1000, 1000], 1, (100, 100)) == 0
    assert bias([1000, 0], 1) == 0
    # Ten times as many would weigh 0.27 on average, a tenth of them 0.93, where 0.6 is thought.
    wrong = np.array([(1000 + 2000) / 11_000, (1000 + 20) / 1100]) / 0.6 - 1
    spread = (1 + 0.04) / 2 / 0.36 - 1
    assert bias([1000, 1000], 1) == pytest.approx((wrong**2).mean() / spread)


def test_a_guess_is_risky_for_the_sum_of_all_bins():
    scale = np.full(9, 50.0)
    known, guessed = (Correlation(9, 0.3, unknown) for unknown in (0.0, 1.0))
    risks = [Mixed.of(one.start(scale), scale, one.unknown).risk for one in (known, guessed)]
    variance = Mixed.of(guessed.start(scale), scale, 1.0).variance
    assert risks[1].here == pytest.approx(9 * CAUTION**2 * variance[0] * 50**2, rel=1e-2)
    assert risks[0].here < risks[1].here / 100


def test_randomised_response_must_know_its_users():
    people = Population(Requirements([Requirement(1, 1.0)]), np.array([9]), 2, guessed=0)
    with pytest.raises(ConfigurationError, match="list all of them in the table"):
        mechanism("lbu", people)
