"""Hours of a day without the option `cycle`: when they are looked for, found and followed."""

import numpy as np
import pytest

from streamveil.mechanisms import NoiseSource, Population, ReleaseStream, Requirement
from streamveil.mechanisms.adaptive.cycle import LEAST, UNASKED, UNASKED_CYCLES, Cycle
from streamveil.mechanisms.adaptive.fixed import Adaptive
from tests.mechanisms.streams import KEY, assert_within_budget

HOUR = 3_600_000_000
REQUIREMENTS = (Requirement(7, 1.0), Requirement(14, 1.0), Requirement(21, 1.0))
SIZES = np.array([200, 200, 200])
DAYS = 30


def hourly(events, depth, bins=20, seed=1) -> np.ndarray:
    """Counts of three classes that rise and fall with the hour: (T, 3, d)."""
    levels = events / bins / 3 * (1 + depth * np.sin(np.pi * np.arange(24 * DAYS) / 12))
    random = np.random.default_rng(seed)
    return random.poisson(np.broadcast_to(levels[:, None, None], (24 * DAYS, 3, bins)))


def stream_of(slot_length=HOUR, bins=20, revise=0) -> ReleaseStream:
    machine = Adaptive("adaptive", Population(REQUIREMENTS, SIZES, bins, slot_length=slot_length))
    machine.revise = revise
    return ReleaseStream(machine, NoiseSource(KEY))


def released(stream, counts, state=None, first=0):
    """The releases of counts, and the state after them."""
    state, releases = state or stream.start(), []
    for slot, here in enumerate(counts):
        state, release = stream.release(state, first + slot, here)
        releases.append(release)
    return releases, state


@pytest.mark.parametrize(
    ("slot_length", "lengths"),
    [
        (None, None),
        (24 * HOUR, None),
        (6 * HOUR, None),
        (5 * HOUR, None),
        (HOUR // 60, None),
        (2 * HOUR, (12,)),
        (HOUR, (24,)),
        (HOUR // 4, (96,)),
    ],
)
def test_days_are_looked_for_where_slots_are_hours(slot_length, lengths):
    cycle = stream_of(slot_length).mechanism.cycle
    assert (cycle and cycle.lengths) == lengths
    assert stream_of(slot_length, bins=4).mechanism.cycle is None


# Noise hides the total of an hour of 60 events, so phases are summed up.
def test_hours_are_found_where_totals_cannot_be_measured():
    counts = hourly(60, 0.8)
    releases, state = released(stream_of(), counts)
    assert_within_budget(releases, REQUIREMENTS)
    assert releases[-1].diagnostics["cycle"] == 24
    assert not state.mechanism.factor.used
    each = [stream_of(length) for length in (HOUR, None)]
    truth = counts.sum(axis=1)
    errors = [
        np.mean([(one.estimates - there) ** 2 for one, there in zip(many, truth, strict=True)])
        for many in (released(stream, counts)[0] for stream in each)
    ]
    assert errors[0] < 0.9 * errors[1]


# The total of an hour of 6,000 events is measured: nothing is spent on phases.
def test_totals_that_can_be_measured_are():
    releases, state = released(stream_of(), hourly(6000, 0.8)[: 24 * 8])
    assert state.mechanism.cycle.candidates[0].spans == 0
    assert state.mechanism.cycle.candidates[0].running is None
    assert releases[-1].diagnostics["factor"] == 1


# What is not there is looked for at less and less of the budget.
def test_looking_for_hours_costs_little_in_the_end():
    _, state = released(stream_of(), hourly(60, 0.0))
    one = state.mechanism.cycle.candidates[0]
    assert state.mechanism.cycle.found is None
    assert one.cycles > UNASKED_CYCLES
    assert LEAST <= one.share < UNASKED
    asked, unasked = (Cycle([24], unasked=each) for each in (False, True))
    for cycles, share in ((1, UNASKED), (8, UNASKED), (16, UNASKED / 2), (64, UNASKED / 8)):
        one.cycles, one.evidence = cycles, 0.0
        assert unasked._share(state.mechanism.cycle, one, 1.0) == share
        assert asked._share(state.mechanism.cycle, one, 1.0) > UNASKED


# A state of a stream that is looking, or has found, goes on as if it had not been saved.
@pytest.mark.parametrize("days", [2, 25])
def test_states_go_on(days):
    counts, stream = hourly(60, 0.8), stream_of(revise=3)
    here = 24 * days + 5
    _, state = released(stream, counts[:here])
    read = stream.decode(stream.encode(state))
    assert (state.mechanism.cycle.found is None) == (days == 2)
    going, ours = (
        released(stream, counts[here : here + 40], one, here)[0] for one in (state, read)
    )
    for one, other in zip(going, ours, strict=True):
        assert one.counts.tolist() == other.counts.tolist()
        assert one.stderr.tolist() == other.stderr.tolist()


# Versions before looked for no hours: their states go on, and look for them from then on.
def test_states_that_looked_for_no_hours_are_read():
    counts, stream = hourly(60, 0.8), stream_of()
    former, mechanism = stream_of(), stream.mechanism
    former.mechanism.cycle = None
    _, state = released(former, counts[:30])
    read = mechanism.decode(former.mechanism.encode(state.mechanism))
    assert [one.length for one in read.cycle.candidates] == [24]
    assert len(read.cycle.depths.mean) == 20
