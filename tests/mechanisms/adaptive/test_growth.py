"""Bins that come and go in a stream: losses are counted from outside (`recount.py`)."""

from fractions import Fraction

import numpy as np
import pytest

from streamveil.mechanisms import (
    BudgetExceeded,
    NoiseSource,
    Population,
    ReleaseStream,
    Requirement,
)
from streamveil.mechanisms.adaptive import fixed, growth
from streamveil.mechanisms.adaptive.fixed import Adaptive
from streamveil.mechanisms.adaptive.gap_errors import SUM
from streamveil.mechanisms.protocol import Growing, SlotInput, carried
from streamveil.mechanisms.registry import mechanism
from tests.mechanisms.adaptive.recount import ANSWERS, GAPS, KINDS, Slot, Tape, World
from tests.mechanisms.adaptive.test_fixed import OPTIONS
from tests.mechanisms.adaptive.test_losses import counts, population, with_sum
from tests.mechanisms.streams import KEY

SLOTS, SAMPLE = 24, 12


def origin_of(before, after, last=1):
    """Bins come before the last ones and leave there, as keys do before the bin of all others."""
    old, more = min(before, after) - last, after - before
    return np.array([*range(old), *[-1] * more, *range(before - last, before)])


class GrowingWorld(World):
    def __init__(self, streams, slots, tape, origins):
        super().__init__(streams, slots, tape)
        self.origins = origins
        """Of the bins of each slot; None where they are those of the slot before."""

    def _migrated(self, state, number):
        origin = self.origins[number]
        return state if origin is None else self.streams[number].grown(state, origin)


def case_of(seed):
    random = np.random.default_rng([seed, 7])
    tape = Tape(seed, random.choice(ANSWERS), random.choice(GAPS), random.choice(KINDS), SLOTS)
    bins, sensitivity, pairs, sizes = population(random)
    options = OPTIONS[random.choice(len(OPTIONS))]
    cycle = random.choice(["none", "none", "3"])
    # Of budgets of a few units, a cycle may need one more than it named, and is refused.
    few = min(epsilon for _, epsilon in pairs) < 1e-9
    options = {**options, "cycle": "none" if few else cycle}
    total = seed % 2 == 0  # of all bins, in one more cell
    if total:
        bins, sensitivity, options["cycle"] = min(bins, 4), 2 * sensitivity, "none"
    streams, slots, origins, made = [], [], [], {}
    for slot in range(SLOTS):
        origin = None
        if slot and random.random() < 0.2:
            stay = np.flatnonzero(random.random(bins - 1) < random.choice([0.5, 1]))
            came = int(random.integers(0, 5))
            origin = np.array([*stay, *[-1] * came, bins - 1, *[bins] * total])
            bins = len(origin) - total
        origins.append(origin)
        if bins not in made:
            people = Population(
                tuple(Requirement(*pair) for pair in pairs),
                sizes,
                bins + total,
                sensitivity,
                totals=int(total),
            )
            made[bins] = ReleaseStream(Adaptive("adaptive", people, **options), NoiseSource(KEY))
        streams.append(made[bins])
        slots.append(Slot(counts(random, range(len(pairs)), bins, total)))
    world = GrowingWorld(streams, slots, tape, origins).run(random)
    return world, pairs, sensitivity


def check(seeds):
    """No user loses more than what is booked, or than epsilon in a window, in any bins."""
    for seed in seeds:
        world, pairs, sensitivity = case_of(seed)
        random = np.random.default_rng([seed, 1])

        def events(slot, world=world, random=random, sensitivity=sensitivity):
            people = world.streams[slot].mechanism.population
            bins, size = people.bins - people.totals, sensitivity // (1 + people.totals)
            some = random.multinomial(size, np.full(bins, 1 / bins)).astype(np.int64)
            return with_sum(some) if people.totals else some

        for k, (window, epsilon) in enumerate(pairs):
            booked = [slot[k] for slot in world.booked]
            for start in range(SLOTS):
                spent = sum(booked[start : start + window])
                assert Fraction(spent, 2**40) <= Fraction(epsilon)
            slot = int(random.integers(SLOTS))
            lost = sum(loss for _, loss in world.losses({slot: (k, events(slot))}))
            assert lost <= booked[slot]
            start = int(random.integers(SLOTS))
            path = {slot: (k, events(slot)) for slot in range(start, min(start + window, SLOTS))}
            lost = sum(loss for _, loss in world.losses(path))
            assert Fraction(lost, 2**40) <= Fraction(epsilon)


def test_nobody_loses_more_than_is_booked_while_bins_come_and_go():
    check(range(SAMPLE))


def test_accounts_that_are_forgotten_are_found(monkeypatch):
    def forgetful(state, fresh, origin, *, at_once):
        made = growth.grown(state, fresh, origin, at_once=at_once)
        made.accounts = fresh.accounts
        return made

    monkeypatch.setattr(fixed, "grown", forgetful)
    with pytest.raises(BudgetExceeded):
        check(range(3 * SAMPLE))


@pytest.mark.slow
def test_the_same_of_many_configurations():
    check(range(SAMPLE, 20 * SAMPLE))


def grown_stream(name, before=3, after=5, slots=7, seed=0):
    """A stream that has run for some slots, its state with more bins, and what comes next."""
    random = np.random.default_rng(seed)
    made = [
        ReleaseStream(
            mechanism(name, Population((Requirement(4, 2.0),), np.array([500]), bins)),
            NoiseSource(KEY),
        )
        for bins in (before, after)
    ]
    state = made[0].start()
    for slot in range(slots):
        state, _ = made[0].release(state, slot, random.integers(20, 60, (1, before)))
    return made[1], made[1].grown(state, origin_of(before, after)), slots, random


@pytest.mark.parametrize("name", ["adaptive", "adaptive:cycle=3", "pba", "pbd", "ba", "bd"])
@pytest.mark.parametrize(("before", "after"), [(3, 5), (4, 3)])
def test_a_state_with_other_bins_is_saved_and_read(name, before, after):
    stream, state, slot, random = grown_stream(name, before, after)
    assert isinstance(stream.mechanism, Growing)
    again = stream.decode(stream.encode(state))
    for at in range(slot, slot + 6):
        table = random.integers(20, 60, (1, after))
        state, release = stream.release(state, at, table)
        again, same = stream.release(again, at, table)
        assert release.counts.tobytes() == same.counts.tobytes()
        assert release.stderr.tobytes() == same.stderr.tobytes()
        assert release.counts.shape == (after,)


def test_hours_are_looked_for_once_there_are_enough_bins():
    """Whether a run is interrupted or not: a state that is read looks for them."""
    random = np.random.default_rng(0)
    people = [
        Population((Requirement(24, 2.0),), np.array([2000]), bins, slot_length=3_600_000_000)
        for bins in (3, 6)
    ]
    before, after = (ReleaseStream(mechanism("adaptive", one), NoiseSource(KEY)) for one in people)
    state = before.start()
    for slot in range(30):
        state, _ = before.release(state, slot, random.poisson(3, (1, 3)))
    state = after.grown(state, origin_of(3, 6))
    again = after.decode(after.encode(state))
    for slot in range(30, 60):
        table = random.poisson(3, (1, 6))
        state, release = after.release(state, slot, table)
        again, same = after.release(again, slot, table)
        assert (release.spent.tolist(), release.counts.tolist()) == (
            same.spent.tolist(),
            same.counts.tolist(),
        )
    assert any(one.running for one in state.mechanism.cycle.candidates)


def test_a_factor_that_begins_with_more_bins_is_as_it_is_saved():
    stream, state, *_ = grown_stream("adaptive")
    mine = state.mechanism.factor.total
    read = stream.decode(stream.encode(state)).mechanism.factor.total
    assert (mine.covariance == read.covariance).all()


def test_old_bins_keep_what_is_known_and_new_ones_know_nothing():
    stream, state, *_ = grown_stream("adaptive")
    fresh, bank = stream.mechanism.start().bank, state.mechanism.bank
    assert (bank.level[:, 2:4] == fresh.level[:, 2:4]).all()
    assert (bank.level_var[:, 2:4] == fresh.level_var[:, 2:4]).all()
    assert (bank.level_var[:, [0, 1, 4]] < fresh.level_var[:, [0, 1, 4]]).all()


def test_a_total_is_followed_with_many_bins_and_measured_with_few():
    random = np.random.default_rng(0)
    streams = {
        bins: ReleaseStream(
            mechanism(
                "adaptive",
                Population((Requirement(4, 2.0),), np.array([500]), bins + 1, 2, totals=1),
            ),
            NoiseSource(KEY),
        )
        for bins in (3, 6)
    }
    state, before = streams[3].start(), 3
    for slot, bins in enumerate([3] * 6 + [6] * 6 + [3] * 6):
        if bins != before:
            origin = origin_of(4, 7, 2) if bins == 6 else np.array([0, 1, 5, 6])
            state, before = streams[bins].grown(state, origin), bins
            assert bool(state.mechanism.factor) == (bins == 6)
        cells = state.mechanism.bank.level.shape[1]
        assert cells == (6 if bins == 6 else 4)
        state, release = streams[bins].release(
            state, slot, with_sum(random.integers(20, 60, bins))[None]
        )
        assert len(release.counts) == bins + 1
        state = streams[bins].decode(streams[bins].encode(state))
    assert (state.filter.in_window <= Requirement(4, 2.0).epsilon * 2**40).all()


def test_a_bin_that_returns_is_a_new_bin():
    _, state, *_ = grown_stream("adaptive", before=4, after=3)
    back = mechanism("adaptive", Population((Requirement(4, 2.0),), np.array([500]), 4))
    bank = back.grown(state.mechanism, origin_of(3, 4)).bank
    assert (bank.level_var[:, 2] == back.start().bank.level_var[:, 2]).all()


def test_before_the_first_slot_nothing_is_carried():
    stream, state, *_ = grown_stream("adaptive", slots=0)
    mine = stream.mechanism.start()
    assert stream.mechanism.encode(state.mechanism) == stream.mechanism.encode(mine)


def test_a_sum_that_has_begun_is_dropped():
    one = mechanism("adaptive", Population((Requirement(4, 2.0),), np.array([500]), 3))
    state = one.start()
    for slot in range(40):
        state.gap, state.kind = 6, SUM
        noise = NoiseSource(KEY).slot(slot, b"")
        state, _ = one.step(state, SlotInput(slot, np.full((1, 3), 40)), noise)
        if state.running and state.since > 3:
            break
    assert state.running is not None
    more = mechanism("adaptive", Population((Requirement(4, 2.0),), np.array([500]), 4))
    grown = more.grown(state, origin_of(3, 4))
    assert grown.running is None
    assert grown.since == grown.gap == 1


# With noise of many keys: the first estimates of new bins are right on average.
@pytest.mark.slow
def test_the_first_estimates_of_new_bins_have_no_bias():
    true, errors = np.array([[30, 45, 12, 25, 60]]), []
    for number in range(300):
        stream, state, slot, _ = grown_stream("adaptive", seed=number)
        stream._noise = NoiseSource(number.to_bytes(32, "big"))
        _, release = stream.release(state, slot, true)
        errors.append(release.counts[2:4] - true[0, 2:4])
    errors = np.array(errors)
    assert (abs(errors.mean(axis=0)) < 4 * errors.std(axis=0) / 300**0.5).all()


def test_values_are_carried_by_bin():
    origin = np.array([0, 1, -1, 2])
    values = carried(np.full((2, 4), 9.0), np.arange(6.0).reshape(2, 3), origin)
    assert values.tolist() == [[0, 1, 9, 2], [3, 4, 9, 5]]
