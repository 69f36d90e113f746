"""Slots that should be released while the budget of their windows is spent."""

import numpy as np

from streamveil.mechanisms import Population, Requirement, mechanism
from streamveil.mechanisms.driver.stream import ReleaseStream
from streamveil.mechanisms.randomness.noise import NoiseSource
from tests.mechanisms.streams import KEY

WINDOWS, BINS, SLOTS, BURST = (7, 14, 21), 50, 260, 3000


def test_a_burst_is_seen_when_no_release_can_be_afforded():
    """After long gaps, a plan for releases of every slot must wait until windows have room."""
    random = np.random.default_rng(3)
    levels = 2000 / np.arange(1, BINS + 1) ** 0.8
    requirements = tuple(Requirement(window, 0.3) for window in WINDOWS)
    people = Population(requirements, np.full(3, 6000), BINS, slot_length=86_400_000_000)
    stream = ReleaseStream(mechanism("adaptive", people), NoiseSource(KEY))
    state, burst, alarms, unwatched = stream.start(), 0, [], 0
    for slot in range(SLOTS):
        counts = random.poisson(np.tile(levels / 3, (3, 1)))
        if slot % 13 == 12:
            burst = slot + 4
        if slot < burst:
            counts[:, 5] += BURST // 3
        calm = slot >= burst
        before = stream.encode(state)
        state, release = stream.release(state, slot, counts)
        if calm and slot > 20 and release.status == "predicted" and state.mechanism.gap == 1:
            unwatched += 1
            counts[:, 20] += BURST // 3
            _, other = stream.release(stream.decode(before), slot, counts)
            alarms.append(other.alarm)
    assert unwatched >= 5
    assert np.mean(alarms) > 0.8
