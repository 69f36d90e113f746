"""Sums of numbers in quanta: the adaptive mechanism sees them as it sees counts of events."""

import numpy as np
import pytest

from streamveil.mechanisms import NoiseSource, Population, ReleaseStream, Requirement, mechanism
from streamveil.mechanisms.core.records import ConfigurationError
from tests.mechanisms.streams import KEY

QUANTUM, SLOTS, BINS = 1024, 80, 6
# Waves that begin at other times in each bin, so that the total tells nothing of them.
COUNTS = np.random.default_rng(10).poisson(
    100 * (1.5 + np.sin(np.arange(SLOTS)[:, None] / 15 + np.arange(BINS)))
)


def released(
    quantum, stated=None, *, classes=((24, 1.0), (6, 3.0)), name="adaptive", revise=0, key=KEY
):
    """Releases of events that add `quantum` each; the mechanism is given `stated`."""
    asked = tuple(Requirement(*one) for one in classes)
    sizes = np.full(len(asked), 5000)
    population = Population(
        asked, sizes, BINS, sensitivity=quantum, quantum=quantum if stated is None else stated
    )
    made = mechanism(name, population, revise=revise)
    stream = ReleaseStream(made, NoiseSource(key))
    state, releases, revisions = stream.start(), [], []
    for slot, counts in enumerate(COUNTS):
        table = np.stack([counts // 2, counts - counts // 2])[: len(asked)] * quantum
        state, release = stream.release(state, slot, table.astype(np.int64))
        releases.append(release)
        revisions += release.revisions
    return releases, [*revisions, *stream.rest(state)]


def figures(releases, quantum):
    estimates = np.array([one.counts for one in releases][10:]) / quantum
    errors = np.array([one.stderr for one in releases][10:]) / quantum
    return np.sqrt(((estimates - COUNTS[10:]) ** 2).mean()), np.median(errors)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adaptive", "adaptive:cycle=24"])
def test_quanta_change_neither_errors_nor_stated_errors(name):
    keys = [bytes([number] * 32) for number in range(4)]
    ones = [figures(released(1, name=name, key=key)[0], 1) for key in keys]
    every = [released(QUANTUM, name=name, key=key)[0] for key in keys]
    in_quanta = np.mean([figures(releases, QUANTUM) for releases in every], axis=0)
    assert in_quanta == pytest.approx(np.mean(ones, axis=0), rel=0.15)
    releases = every[0]
    # Releases are rounded to whole numbers, not to events.
    assert (np.array([one.counts for one in releases[1:]]) % QUANTUM != 0).mean() > 0.9


def test_who_takes_sums_for_counts_of_as_many_events_follows_them_too_slowly():
    error, _ = figures(released(QUANTUM)[0], QUANTUM)
    assert figures(released(QUANTUM, 1)[0], QUANTUM)[0] > 1.25 * error


def test_revisions_are_in_the_same_units_as_releases():
    error, stated = figures(released(1, revise=8)[1], 1)
    assert figures(released(QUANTUM, revise=8)[1], QUANTUM) == pytest.approx(
        (error, stated), rel=0.15
    )


def test_states_belong_to_a_quantum():
    def stream(quantum):
        population = Population((Requirement(4, 1.0),), np.array([9]), 2, 64, quantum=quantum)
        return ReleaseStream(mechanism("adaptive", population), NoiseSource(KEY))

    saved = stream(64).encode(stream(64).start())
    assert stream(64).decode(saved).next_slot is None
    with pytest.raises(ConfigurationError, match="most that an event adds to a bin"):
        stream(1).decode(saved)


@pytest.mark.parametrize("quantum", [0, -1])
def test_a_quantum_is_1_or_more(quantum):
    with pytest.raises(ConfigurationError, match="quantum"):
        Population((Requirement(1, 1.0),), np.array([1]), 1, 1, quantum=quantum)


@pytest.mark.parametrize(("events", "sums"), [(20, True), (3000, False)])
def test_where_noise_hides_how_ratios_move_windows_are_summed_up(events, sums):
    population = Population(
        (Requirement(12, 1.0),), np.array([10_000]), 2, quantum=4, sensitivity=4, ratio=2
    )
    stream = ReleaseStream(mechanism("adaptive", population), NoiseSource(bytes(32)))
    state, seen = stream.start(), []
    for slot in range(60):
        counts = np.array([[events * 3, events]])
        state, release = stream.release(state, slot, counts)
        seen += release.observed
    assert (seen[-1].slots == 12) is sums
    assert seen[-1].counts == pytest.approx(counts[0], abs=6 * seen[-1].variances.max() ** 0.5)
