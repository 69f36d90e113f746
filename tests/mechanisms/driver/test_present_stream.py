"""Counts of users who count in a few slots only, scaled to all there was."""

import numpy as np
import pytest

from streamveil.mechanisms import ConfigurationError, Requirement
from streamveil.mechanisms.core.budgets import Requirements, to_units
from streamveil.mechanisms.driver.present_stream import Presence, PresentStream
from streamveil.mechanisms.presence import Limit, counted
from streamveil.mechanisms.presence.calendars import block_ends
from streamveil.mechanisms.presence.kept_share import layers
from streamveil.mechanisms.presence.limits import block_length
from streamveil.mechanisms.protocol import Population
from streamveil.mechanisms.randomness.noise import NoiseSource
from streamveil.mechanisms.registry import mechanism

KEY = bytes(range(32))
ASKED = Requirement(40, 2.0)
LIMIT = Limit(3, 2)


def stream(limit=LIMIT, asked=(ASKED,), sizes=(20_000,), name="adaptive", revise=0):
    priced = Requirements(limit.priced(one) for one in asked)
    population = Population(priced, np.array(sizes), 3)
    return PresentStream(
        mechanism(name, population, revise=revise),
        NoiseSource(KEY),
        {},
        Presence((limit,) * len(asked), Requirements(asked), "add_remove"),
    )


def present(users, slots, rate, seed=0):
    """Counts of all there was, of what counts, and layers of blocks by the slot that ends them."""
    random = np.random.default_rng(seed)
    who, when = np.nonzero(random.random((users, slots)) < rate)
    bins = random.choice(3, len(who), p=[0.6, 0.3, 0.1])
    length = block_length(ASKED.window, LIMIT.blocks)
    counts = counted(who, when, window=40, max_slots=3, blocks=2, key=KEY)
    ends = block_ends(KEY, who, when, np.full(len(who), length))
    everything, kept = np.zeros((2, slots, 1, 3), np.int64)
    np.add.at(everything, (when, 0, bins), 1)
    np.add.at(kept, (when[counts], 0, bins[counts]), 1)
    (_, end), there = np.unique((who, ends), axis=1, return_counts=True)
    told = np.zeros((slots, 1, 4), np.int64)
    inside = end <= slots
    np.add.at(told, (end[inside] - 1, 0), layers(there[inside], LIMIT.max_slots))
    return everything, kept, told


@pytest.fixture(scope="module")
def crowd():
    return present(20_000, 160, 0.11)


def run(made, kept, told, slots, restart=False):
    state, releases = made.start(), []
    for slot in range(slots):
        state, release = made.release(state, slot, kept[slot], told[slot])
        releases.append(release)
        if restart:
            state = made.unpack(made.pack(state))
    return state, releases


def test_what_is_left_out_is_made_up_for_and_the_error_knows_of_it(crowd):
    everything, kept, told = crowd
    share = kept.sum() / everything.sum()
    assert share < 0.9
    _, releases = run(stream(), kept, told, 160)
    late = releases[100:]
    counts = np.array([one.counts for one in late])
    true = everything[100:, 0]
    bias = counts.sum() / true.sum() - 1
    assert abs(bias) < 0.03 < 1 - share
    stderr = np.array([one.stderr for one in late])
    # Flakiness: the key is fixed.
    assert 0.8 < (np.abs(counts - true) < 1.645 * stderr).mean() <= 1
    known = late[-1].diagnostics
    assert known["kept_share"] == pytest.approx(share, abs=0.03)
    assert 0 < known["kept_share_stderr"] < 0.03
    assert releases[0].diagnostics["kept_share_stderr"] == pytest.approx(0.15)


def test_a_state_that_was_saved_goes_on_as_it_was(crowd):
    _, kept, told = crowd
    _, one = run(stream(revise=3), kept, told, 50)
    state, other = run(stream(revise=3), kept, told, 50, restart=True)
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_array_equal(mine.counts, theirs.counts)
        assert mine.diagnostics == theirs.diagnostics
    assert len(stream(revise=3).rest(state)) == 3
    with pytest.raises(ConfigurationError, match="another configuration"):
        stream(sizes=(20_001,)).unpack(stream().pack(state))


def test_revisions_are_scaled_as_releases_are(crowd):
    everything, kept, told = crowd
    _, releases = run(stream(revise=3), kept, told, 120)
    revised = np.array([one.revisions[0].counts for one in releases[100:]])
    assert abs(revised.sum() / everything[97:117].sum() - 1) < 0.05


def test_answers_are_noisy_and_bound_to_what_they_are_of(crowd):
    _, kept, told = crowd
    state, _ = run(stream(), kept, told, 40)
    again, _ = run(stream(), kept, told, 40)
    np.testing.assert_array_equal(state.shares[0].sums, again.shares[0].sums)
    assert not np.array_equal(state.shares[0].sums, np.round(state.shares[0].sums, -3))
    other = told.copy()
    other[30, 0, 0] += 1
    changed, _ = run(stream(), kept, other, 40)
    moved = np.abs(changed.shares[0].sums - state.shares[0].sums)
    assert moved.max() > 10  # fresh noise, not one more
    assert state.sums.sum() == told[40 - 40 % 20 : 40].sum() == 0


def test_classes_without_a_limit_are_not_scaled():
    short = Requirement(4, 2.0)
    made = stream(asked=(ASKED, short), sizes=(300, 100))
    nothing, told = np.zeros((2, 3), np.int64), np.zeros((2, 4), np.int64)
    _, release = made.release(made.start(), 0, nothing, told)
    assert release.diagnostics["kept_share"] == pytest.approx(1 - 0.75 * 0.1)
    alone = stream(asked=(short,), sizes=(100,))
    _, release = alone.release(alone.start(), 0, nothing[:1], told[:1])
    assert "kept_share" not in release.diagnostics


def test_a_budget_too_small_to_ask_anything_is_refused():
    with pytest.raises(ConfigurationError, match="too small to ask how much a limit"):
        stream(asked=(Requirement(40, 500 * 2.0**-40),))


def test_what_is_asked_for_costs_what_was_set_aside():
    made = stream()
    ((query, rates),) = made._queries.values()
    inside, above = query.sensitivities
    budget = int(to_units(2.0))
    assert rates.layers * inside + rates.rest * above <= budget // 20
    price = to_units(LIMIT.priced(ASKED).epsilon)
    assert price * LIMIT.slots(ASKED) + budget // 20 <= budget
