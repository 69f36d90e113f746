"""Weeks of bins that differ in shape: what is learnt of them, and that it needs evidence."""

import numpy as np
import pytest

from streamveil.mechanisms import Requirement
from streamveil.mechanisms.adaptive import phase_effects
from streamveil.mechanisms.adaptive.phase_effects import PhaseEffects
from streamveil.mechanisms.core import state_codec
from tests.mechanisms.adaptive.test_factor import counts_of, run, run_through_bytes, weeks

BINS = 20
LEVELS = 1000 + 50 * np.arange(BINS)
# Of each phase and bin: sums over a week are 0, and so are those over bins.
SHAPES = 0.3 * np.sin(2 * np.pi * (np.arange(7)[:, None] / 7 + np.arange(BINS) / BINS))


def own_weeks(number, seed=1, depth=1.0, levels=LEVELS):
    """Counts of three classes whose bins have weeks of different shapes: (slots, 3, bins)."""
    each = levels * (1 + depth * np.tile(SHAPES, (number, 1)))
    random = np.random.default_rng(seed)
    return random.poisson(np.repeat(each[:, None] / 3, 3, axis=1))


def learnt(counts, expected=None):
    """Effects after releases of these counts, (slots, bins), and whether they were used."""
    known, used = PhaseEffects.start(7, counts.shape[1]), []
    for slot, release in enumerate(counts):
        factor = 1.0 if expected is None else expected[slot]
        known.learn(slot, release, np.full(len(release), factor), np.zeros(len(release)))
        used.append(known.used)
    return known, np.array(used)


def effects(known):
    """The effects of each phase and their variances, relative to levels, (7, bins) each."""
    of_phases = [known.at(phase, np.ones(1)) for phase in range(7)]
    return tuple(np.array(part) for part in zip(*of_phases, strict=True))


def estimates_and_errors(releases, counts, first=70):
    """Errors of the estimates, shape (slots, bins), and the share of intervals that hold."""
    missed = np.array([one.estimates for one in releases]) - counts.sum(axis=1)
    held = np.abs(missed) <= 1.645 * np.array([one.stderr for one in releases])
    return missed[first:], held[first:].mean()


# ---- what is learnt -------------------------------------------------------------------------


# Shapes are found in addition to a week that all bins have in common, as the factor describes it.
@pytest.mark.parametrize("common", [False, True])
def test_shapes_are_found(common):
    random, levels = np.random.default_rng(2), np.linspace(500.0, 2000.0, BINS)
    expected = weeks(30) if common else np.ones(210)
    truth = levels * (expected[:, None] + np.tile(SHAPES, (30, 1)))
    known, used = learnt(truth + random.normal(0, 50, truth.shape), expected)
    assert used[-100:].all()
    found, variances = effects(known)
    assert np.abs(found - SHAPES).mean() < 0.02
    assert np.allclose(found.mean(axis=0), 0)
    # Slots 3 to 10 see phase 3 twice, and what is uncertain of it twice as well.
    shares = np.append([0.25], np.full(7, 0.75 / 7))
    of_phases = np.where(np.arange(7) == 3, 0.25 + 0.75 / 7, 0.75 / 7)
    mean, variance = known.at(10, shares)
    np.testing.assert_allclose(mean, of_phases @ found)
    np.testing.assert_allclose(variance, of_phases**2 @ variances)


# Variances are those that errors have, whether noise leaves much or little of the effects.
@pytest.mark.parametrize("noise", [100, 300, 1000])
def test_variances_are_those_of_errors(noise):
    levels, errors, variances = np.linspace(500.0, 2000.0, BINS), [], []
    for seed in range(20):
        random = np.random.default_rng(seed)
        truth = levels * (1 + np.tile(SHAPES, (15, 1)))
        found, variance = effects(learnt(truth + random.normal(0, noise, truth.shape))[0])
        errors.append((found - SHAPES) ** 2 * levels**2)
        variances.append(variance * levels**2)
    assert 0.8 < np.mean(variances) / np.mean(errors) < 1.25


# Bins without a week have no effects, or nearly none, and those are not used.
@pytest.mark.parametrize("seed", range(5))
def test_noise_is_no_evidence(seed):
    random, levels = np.random.default_rng(seed), np.linspace(50.0, 2000.0, BINS)
    known, used = learnt(levels + random.laplace(0, 30, (300, BINS)))
    assert not used.any()
    assert np.abs(effects(known)[0] * levels).mean() < 2


# Nor is one outlier in all bins, such as a holiday.
def test_a_holiday_is_no_evidence():
    random, levels = np.random.default_rng(6), np.full(BINS, 1000.0)
    counts = levels + random.normal(0, 30, (300, BINS))
    counts[100:103] *= random.uniform(0, 2, (3, BINS))
    assert not learnt(counts)[1].any()


# Once weeks are alike, effects are given up.
def test_effects_are_given_up():
    random, levels = np.random.default_rng(7), np.full(BINS, 1000.0)
    truth = np.concatenate([levels * (1 + np.tile(SHAPES, (20, 1))), np.full((210, BINS), 1000.0)])
    _, used = learnt(truth + random.normal(0, 50, truth.shape))
    assert used[100:140].all()
    assert not used[-140:].any()


# A bin that jumps goes on with its new level as the average.
def test_an_average_begins_again():
    known, _ = learnt(np.tile([100.0, 200.0], (28, 1)))
    known.learn(28, np.array([500.0, 200.0]), np.ones(2), np.array([500.0, 0.0]))
    np.testing.assert_allclose(known.average, [500, 200])
    assert not known.mean.any()


# Effects are relative to a level, so a new usual size of the total does not change them.
def test_effects_are_relative():
    counts = 1000 * (1 + np.tile(SHAPES, (10, 1)))
    known, _ = learnt(counts + np.random.default_rng(8).normal(0, 50, counts.shape))
    before = effects(known)
    known.multiply(np.full(BINS, 3.0))
    np.testing.assert_allclose(effects(known), before, rtol=1e-5)


# ---- streams --------------------------------------------------------------------------------


# Errors fall where weeks differ; intervals hold, and sums of bins are not biased.
def test_errors_fall_where_weeks_differ(monkeypatch):
    counts = own_weeks(30)
    _, state, releases = run(counts)
    assert state.factor.phases.used
    missed, held = estimates_and_errors(releases, counts)
    assert 0.87 < held < 0.95
    total = missed.sum(axis=1)
    assert abs(total.mean()) < 3 * total.std() / len(total) ** 0.5
    monkeypatch.setattr(phase_effects, "FOUND", np.inf)
    without, _ = estimates_and_errors(run(counts)[2], counts)
    assert (missed**2).mean() < 0.85 * (without**2).mean()


# Also beside so much noise that effects stay uncertain. If they counted as known,
# intervals would hold .81.
def test_intervals_hold_beside_much_noise():
    counts = own_weeks(60, levels=2000 / np.arange(1, BINS + 1) ** 0.8, depth=4 / 3)
    weak = tuple(Requirement(window, 0.1) for window in (7, 14, 21))
    _, state, releases = run(counts, requirements=weak)
    assert state.factor.phases.used
    _, held = estimates_and_errors(releases, counts)
    assert 0.87 < held < 0.95


# Nothing changes where they do not differ.
def test_errors_stay_where_weeks_are_alike(monkeypatch):
    for counts in (counts_of(weeks(15)), own_weeks(15, depth=0.0)):
        _, state, releases = run(counts)
        assert not state.factor.phases.used
        monkeypatch.setattr(phase_effects, "FOUND", np.inf)
        for one, other in zip(releases, run(counts)[2], strict=True):
            assert one.estimates.tobytes() == other.estimates.tobytes()
        monkeypatch.undo()


# A stream that goes through bytes in every slot goes on as one that never did, revisions as well.
@pytest.mark.parametrize("revise", [0, 3])
def test_bytes_in_every_slot_keep_the_future(revise):
    assert run_through_bytes(own_weeks(8), revise).factor.phases.used


# A state from before there were effects is read, and they are learnt from then on.
def test_former_states_have_no_effects():
    machine, state, _ = run(own_weeks(8))
    record = state_codec.unpack(machine.SCHEMAS, machine.encode(state))[1]
    former = {4: machine.SCHEMAS[4]}
    read = machine.decode(state_codec.pack(former, record))
    assert read.factor.ratios == state.factor.ratios
    assert not read.factor.phases.used
    assert not read.factor.phases.releases.any()
