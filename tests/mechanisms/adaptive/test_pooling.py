"""Beliefs that bins share: what is learnt, that it helps, and who is left out."""

import numpy as np
import pytest

from streamveil.mechanisms import NoiseSource, Population, ReleaseStream, Requirement, simulate
from streamveil.mechanisms.adaptive import filter_bank
from streamveil.mechanisms.adaptive.fixed import Adaptive
from streamveil.mechanisms.adaptive.kalman import EVEN, MEMBERS
from streamveil.mechanisms.adaptive.pooling import FEWEST_BINS, FLOOR, PER_BIN, STEPS, pooled
from tests.mechanisms.streams import KEY

ASKED, SIZES = ((14, 1.0),), np.array([5000])


def sparse(seed=1, slots=300, bins=60) -> np.ndarray:
    """Counts far below the noise, which do not change."""
    levels = 40 / np.arange(1, bins + 1)
    return np.random.default_rng(seed).poisson(levels, (slots, 1, bins))


def released(counts, monkeypatch, pools):
    """With the pool or without; neither has a factor."""
    with monkeypatch.context() as patch:
        patch.setattr(Adaptive, "look_for_factor", lambda *_: None)
        if not pools:
            patch.setattr(filter_bank, "pooled", lambda likelihoods, prior: prior)
        return simulate("adaptive", counts, ASKED, SIZES, KEY)


# Of bins that all follow one member the prior says so, as far as the even one allows; on what
# scale likelihoods are does not matter.
def test_the_prior_is_what_bins_are_described_by():
    bins = 50
    likelihoods = np.full((MEMBERS, bins), 1e-6)
    likelihoods[3] = 1.0
    prior = pooled(likelihoods, EVEN) / MEMBERS
    floor = FLOOR + PER_BIN * bins
    assert prior.sum() == pytest.approx(1.0)
    assert prior[3] == pytest.approx((bins + floor / MEMBERS) / (bins + floor), rel=1e-3)
    scaled = pooled(likelihoods * np.random.default_rng(1).uniform(1, 9, bins), EVEN) / MEMBERS
    np.testing.assert_allclose(prior, scaled, rtol=1e-5)


# Where releases tell nothing the prior stays even.
def test_nothing_is_learnt_of_nothing():
    prior = EVEN
    for _ in range(5):
        prior = pooled(np.ones((MEMBERS, 8)), prior)
    np.testing.assert_allclose(prior, EVEN, rtol=1e-6)


# Each step is one of expectation maximization: the penalized likelihood never falls.
def test_steps_raise_the_likelihood(monkeypatch):
    likelihoods = np.random.default_rng(2).exponential(1.0, (MEMBERS, 30)) ** 3
    floor = FLOOR + PER_BIN * 30

    def objective(prior):
        share = prior.astype(float) / MEMBERS
        return np.log(share @ likelihoods).sum() + floor / MEMBERS * np.log(share).sum()

    monkeypatch.setattr("streamveil.mechanisms.adaptive.pooling.STEPS", 1)
    priors = [EVEN]
    for _ in range(10 * STEPS):
        priors.append(pooled(likelihoods, priors[-1]))
    reached = np.array([objective(prior) for prior in priors])
    assert (np.diff(reached) > -1e-3).all()
    assert reached[-1] > reached[0] + 1


# Sparse bins err less together than each for itself, and intervals hold what they say.
@pytest.mark.slow
def test_sparse_bins_err_less(monkeypatch):
    ratios, held = [], []
    for seed in range(4):
        counts = sparse(seed)
        truth = counts.sum(axis=1)
        simulations = [released(counts, monkeypatch, pools) for pools in (True, False)]
        errors = [((one.estimates - truth) ** 2).mean() for one in simulations]
        ratios.append(errors[0] / errors[1])
        held.append(
            (np.abs(simulations[0].estimates - truth) <= 1.645 * simulations[0].stderr)[30:].mean()
        )
    assert np.mean(ratios) < 0.97
    assert np.mean(held) > 0.87


# A bin that alone has waves among calm ones keeps its coverage.
@pytest.mark.slow
def test_a_bin_unlike_all_others_keeps_its_coverage(monkeypatch):
    held = []
    for seed in range(4):
        counts = sparse(seed, bins=40)
        wave = 150 * (1 + np.sin(2 * np.pi * np.arange(300) / 20 + seed))
        counts[:, 0, 5] = np.random.default_rng(seed).poisson(wave)
        simulation = released(counts, monkeypatch, True)
        missed = np.abs(simulation.estimates - counts.sum(axis=1))[30:, 5]
        held.append((missed <= 1.645 * simulation.stderr[30:, 5]).mean())
    assert np.mean(held) > 0.8


@pytest.mark.parametrize(
    ("pools", "more"),
    [
        (True, {}),
        (False, {"bins": FEWEST_BINS - 1}),
        (True, {"quantum": 2}),
        (True, {"totals": 1}),
        (False, {"totals": 2}),
        (False, {"ratio": 2, "graded": (True, False)}),
    ],
)
def test_who_shares(pools, more):
    people = Population((Requirement(14, 1.0),), SIZES, **{"bins": 8, **more})
    assert Adaptive("adaptive", people).bank.pools is pools


# A former state has no prior: it begins with the even one.
def test_the_prior_is_kept_and_former_states_are_read():
    machine = Adaptive("adaptive", Population((Requirement(14, 1.0),), SIZES, 8))
    stream = ReleaseStream(machine, NoiseSource(KEY))
    state = stream.start()
    for slot, table in enumerate(sparse(bins=8, slots=20)):
        state, _ = stream.release(state, slot, table)
    bank = state.mechanism.bank
    assert (bank.prior != EVEN).any()
    read = machine.decode(machine.encode(state.mechanism)).bank
    assert read.prior.tobytes() == bank.prior.tobytes()
    written = filter_bank.kalman.record(bank)
    former = machine.bank.start()
    filter_bank.kalman.read(former, {**written, "parts": written["parts"][:-1]})
    assert (former.prior == EVEN).all()
    assert former.level.tobytes() == bank.level.tobytes()
