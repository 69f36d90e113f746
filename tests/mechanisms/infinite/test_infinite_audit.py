"""Audits on neighbours of users forever: one user is in every slot, or in none.

Gated by what an attacker sees of many runs, DPI by its probabilities, which are known exactly.
Mechanisms that were broken on purpose must be convicted.
"""

from unittest.mock import patch

import numpy as np
import pytest

from streamveil.mechanisms import NoiseSource, SlotInput, infinite_mechanism
from streamveil.mechanisms.infinite import dpi as dpi_module
from streamveil.mechanisms.infinite.dpi import DPI
from streamveil.mechanisms.infinite.gated import Gated
from tests.mechanisms.test_audit import FLAKINESS, lower_bound

KEY = bytes(range(32))
RUNS = 2000


def proven(a, b):
    """Largest epsilon proven by a number seen in each run of two worlds, by events x >= cut.

    Half of the runs choose the cut, the others count.
    """
    half, best = len(a) // 2, []
    for x, y in ((a, b), (b, a), (-a, -b), (-b, -a)):
        cut = max(
            np.quantile(x[:half], np.linspace(0, 1, 40)),
            key=lambda cut: lower_bound(
                (x[:half] >= cut).sum(), (y[:half] >= cut).sum(), half, FLAKINESS / 4
            ),
        )
        hits = [int((w[half:] >= cut).sum()) for w in (x, y)]
        best.append(lower_bound(*hits, len(a) - half, FLAKINESS / 4))
    return max(best)


def world(text, epsilon, counts, present, seen):
    """What `seen` makes of the releases of a short stream, in every run."""
    machine = infinite_mechanism(text, counts.shape[1], epsilon)
    table = counts.copy()
    table[:, 0] += present
    outcomes = []
    for run in range(RUNS):
        source = NoiseSource(KEY, f"{present} {run}")
        state, releases = machine.start(), []
        for slot, row in enumerate(table):
            inputs = SlotInput(slot, row[None])
            state, release = machine.step(state, inputs, source.slot(slot, b""))
            releases.append(release)
        outcomes.append(seen(releases))
    return np.array(outcomes)


# The gate opens in slot 3, and the mean of three slots is released: one user is in all of them.
def released(epsilon):
    counts = np.array([[100, 100], [100, 100], [0, 4000]])
    text = "gated:p=4:latest=3:shrink=none:worth=0:total=200"

    def seen(releases):
        epochs = [one.diagnostics["epoch"] for one in releases]
        return releases[2].shares[0] if epochs == [1.0, 1.0, 2.0] else -1.0

    return proven(*(world(text, epsilon, counts, present, seen) for present in (0, 1)))


# Counts whose distance is about where the gate opens: what is seen is whether it does.
def opened(epsilon):
    machine = infinite_mechanism("gated:p=4:f_s=0.9:worth=0:chance=0:total=1000", 50, epsilon)
    counts = np.full((1, 50), 20)
    counts[:, 0] += int((machine.guard(machine.prices(1, 1000), 0) - 1) / 1.96)

    def seen(releases):
        return releases[0].diagnostics["epoch"]

    worlds = (world(machine.name, epsilon, counts, present, seen) for present in (0, 1))
    return proven(*worlds)


@pytest.mark.slow
@pytest.mark.parametrize(("look", "epsilon"), [(released, 2.0), (opened, 1.0)])
def test_what_gated_shows_is_within_epsilon(look, epsilon):
    assert look(epsilon) <= epsilon


@pytest.mark.slow
def test_noise_for_one_slot_of_three_is_convicted():
    with patch.object(Gated, "_width", lambda self, slots: 1):
        assert released(2.0) > 2.0


@pytest.mark.slow
def test_a_gate_for_another_sensitivity_is_convicted():
    with patch.object(Gated, "_step", 1):
        assert opened(1.0) > 1.0


# ---- DPI: the whole loss is the sum over slots of the largest log ratio ---------------------


def whole_loss(text, slots, others):
    """Loss of a user in every slot on the path that tells most, with 1 epsilon for all."""
    machine = infinite_mechanism(text, others.size, 1.0)
    logs = []
    for present in (0, 1):
        counts = others + np.eye(1, others.size, dtype=np.int64)[0] * present
        state, rows = machine.start(), []

        def kept(losses, rate, words, size=1, rows=rows):
            weights = -(losses - losses.min()) * (rate / 2**56)
            rows.append(weights - np.log(np.exp(weights).sum()))
            return np.zeros(size, np.int64)

        with patch.object(dpi_module, "draw", kept):
            for slot in range(slots):
                inputs = SlotInput(slot, counts[None])
                state, _ = machine.step(state, inputs, NoiseSource(KEY).slot(slot, b""))
        logs.append(np.array(rows))
    return float(np.abs(logs[0] - logs[1]).max(axis=1).sum())


TEXT = "dpi:pool=50:precision=10:total=6:mode="


@pytest.mark.parametrize("mode", ["instantaneous", "cumulative"])
@pytest.mark.parametrize("total", [6, 0])
def test_dpi_loses_no_more_than_epsilon_with_a_user_in_every_slot(mode, total):
    text = f"dpi:pool=50:precision=10:total={total}:mode={mode}"
    lost = whole_loss(text, 300, np.array([1, 3, 2]))
    assert 0.1 < lost <= 1.0


def test_dpi_without_the_factor_t_is_convicted():
    rate = DPI._rate
    with patch.object(DPI, "_rate", lambda self, units, rounds, width: rate(self, units, 1, width)):
        lost = [whole_loss(TEXT + "cumulative", slots, np.array([1, 3, 2])) for slots in (30, 300)]
    assert 1.0 < lost[0] < lost[1]
