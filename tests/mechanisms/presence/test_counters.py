"""What counts of whom: as the rules say, in whatever order and batches events come."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms.core.budgets import to_units
from streamveil.mechanisms.core.records import ADD_REMOVE, REPLACE, ConfigurationError, Requirement
from streamveil.mechanisms.presence import Counters, Limit, counted, effective_window
from streamveil.mechanisms.presence.calendars import Rules, block_ends, phases, placed
from streamveil.mechanisms.presence.counters import IN_NO_LAYER
from streamveil.mechanisms.presence.kept_share import LAYERS
from streamveil.mechanisms.presence.limits import block_length
from tests.mechanisms.presence.all_ways import calendar

KEY = bytes(range(32))
PROPERTY = settings(max_examples=100)


def bits(numbers, slots):
    """Rows and columns of the bits that are set."""
    return np.nonzero(numbers[:, None] >> np.arange(slots) & 1)


@pytest.mark.parametrize(
    "rule", [(5, 1, 1), (6, 1, 2), (9, 2, 2), (9, 1, 3), (7, 1, 3), (12, 2, 3)]
)
def test_every_way_to_be_there_counts_as_the_rule_says(rule):
    window, max_slots, blocks = rule
    slots = 11
    users, times = bits(np.arange(1 << slots), slots)
    length = block_length(window, blocks)
    shifts = phases(KEY, np.arange(1 << slots), np.full(1 << slots, length))
    assert set(shifts) == set(range(length))
    tables = np.array([calendar(slots, *rule, phase) for phase in range(length)])
    should = tables[shifts[users], users] >> times & 1
    found = counted(users, times, window=window, max_slots=max_slots, blocks=blocks, key=KEY)
    np.testing.assert_array_equal(found, should.astype(bool))


def test_all_events_count_where_a_limit_gains_nothing():
    users, times = bits(np.arange(1 << 8), 8)
    assert counted(users, times, window=5, max_slots=2, blocks=1, key=KEY).all()


def test_nobody_is_there():
    nothing = counted([], [], window=9, max_slots=1, blocks=2, key=KEY)
    assert nothing.dtype == bool
    assert nothing.shape == (0,)


@pytest.mark.parametrize(
    ("users", "slots", "said"),
    [
        ([1.5], [1], "users are float64"),
        ([1], ["a"], "slots are <U1"),
        ([1, 2], [1], "be alike"),
    ],
)
def test_what_is_no_event_is_refused(users, slots, said):
    with pytest.raises(ValueError, match=said):
        counted(users, slots, window=9, max_slots=1, blocks=2, key=KEY)


def test_a_limit_that_is_none_is_refused():
    with pytest.raises(ConfigurationError, match="max_slots is 0"):
        counted([1], [1], window=9, max_slots=0, blocks=2, key=KEY)


def test_far_apart_users_and_slots():
    users = np.array([-(1 << 62), 1 << 62, -(1 << 62), 1 << 62])
    slots = np.array([-(1 << 61), 1 << 61, -(1 << 61) + 1, 1 << 61])
    assert counted(users, slots, window=9, max_slots=1, blocks=1, key=KEY).sum() in (2, 3, 4)


def test_phases_are_of_the_key_and_the_user_alone():
    users = np.arange(10_000)
    lengths = np.full(len(users), 7)
    some = phases(KEY, users, lengths)
    order = np.random.default_rng(0).permutation(len(users))
    np.testing.assert_array_equal(phases(KEY, users[order], lengths), some[order])
    assert (phases(bytes(32), users, lengths) != some).mean() > 0.8
    # Flakiness below 1e-6: a count of 1 / 7 of 10,000 has a standard error of 35.
    assert abs(np.bincount(some) - 10_000 / 7).max() < 200
    strangers = np.frombuffer(np.random.default_rng(1).bytes(16 * 1000), "S16")
    found = phases(KEY, strangers, np.full(1000, 7))
    np.testing.assert_array_equal(phases(KEY, strangers[:3], np.full(3, 7)), found[:3])
    assert abs(np.bincount(found) - 1000 / 7).max() < 66


@st.composite
def streams(draw):
    """Events of some users, and slots after which batches end."""
    visits = draw(st.sets(st.tuples(st.integers(0, 5), st.integers(-9, 40)), max_size=120))
    cuts = draw(st.sets(st.integers(-9, 40)))
    return np.array(sorted(visits), np.int64).reshape(-1, 2).T, sorted(cuts | {41})


def layered(counters, users, slots, classes, cuts, restart):
    """Layers batch by batch, from saved arrays each time if that is asked for; and the counters."""
    layers, last = np.zeros(len(users), int), -100
    for cut in cuts:
        rows = np.flatnonzero((slots >= last) & (slots < cut))
        layers[rows] = counters.layers(users[rows], slots[rows], classes[rows], cut)
        counters.skip(cut)
        last = cut
        if restart:
            arrays = counters.arrays()
            counters = Counters(counters.rules, KEY, users)
            counters.resume(arrays)
    return layers, counters


@PROPERTY
@given(streams(), st.booleans(), st.integers(1, 3), st.integers(1, 3), st.randoms())
def test_batches_restarts_and_order_change_nothing(stream, restart, max_slots, blocks, random):
    (users, slots), cuts = stream
    rules = Rules.of([Limit(max_slots, blocks)], [Requirement(18, 1.0)], ADD_REMOVE)
    whole = counted(users, slots, window=18, max_slots=max_slots, blocks=blocks, key=KEY)
    rows = list(range(len(users)))
    random.shuffle(rows)
    rows = np.array(rows, np.int64)
    classes = np.zeros(len(users), np.int64)
    fresh = Counters(rules, KEY, users)
    layers, left = layered(fresh, users[rows], slots[rows], classes, cuts, restart)
    np.testing.assert_array_equal(layers == 0, whole[rows])
    assert (left.blocks.ends > 41).all()
    length, there = block_length(18, blocks), Counter()
    if effective_window(18, max_slots, blocks) < 18:
        ends = block_ends(KEY, users, slots, np.full(len(users), length))
        found = np.zeros(len(users), int)
        found[rows] = layers
        for user, end, layer in zip(users, ends, found, strict=True):  # in order of slots
            assert layer == min(there[user, end] // max_slots, LAYERS)
            there[user, end] += 1
    # Several events of a user in a slot count together.
    twice = np.repeat(rows, 2)
    again = counted(
        users[twice], slots[twice], window=18, max_slots=max_slots, blocks=blocks, key=KEY
    )
    np.testing.assert_array_equal(again, whole[twice])


@PROPERTY
@given(streams(), st.booleans(), st.integers(1, 4))
def test_of_those_that_pass_the_first_count_for_life(stream, restart, in_life):
    (users, slots), cuts = stream
    limit = Limit(2, 2, in_life)
    rules = Rules.of([limit] * 2, [Requirement(18, 1.0), Requirement(2, 1.0)], ADD_REMOVE)
    classes = users % 2  # of the second class, rule 1 limits nobody
    layers, _ = layered(Counters(rules, KEY, users), users, slots, classes, cuts, restart)
    kept = layers == 0
    passes = counted(users, slots, window=18, max_slots=2, blocks=2, key=KEY) | (classes == 1)
    for user in range(6):
        mine = np.flatnonzero((users == user) & passes)  # the events are in order of slots
        should = np.zeros(len(users), bool)
        should[mine[:in_life]] = True
        np.testing.assert_array_equal(kept[users == user], should[users == user])
        if user % 2:  # without blocks, the layers are those of the life
            visits = np.arange(len(mine))
            beyond = np.where(visits > LAYERS * in_life, IN_NO_LAYER, visits // in_life)
            np.testing.assert_array_equal(layers[mine], beyond)
    np.testing.assert_array_equal(
        (layers == IN_NO_LAYER)[classes == 0], (passes & ~kept)[classes == 0]
    )


def test_who_is_a_stranger_is_decided_alike():
    random = np.random.default_rng(2)
    names = np.sort(np.frombuffer(random.bytes(16 * 50), "S16"))
    users, slots = np.divmod(np.unique(random.integers(0, 50 * 60, 1500)), 60)
    rules = Rules.of([Limit(2, 3)], [Requirement(30, 1.0)], ADD_REMOVE)
    classes = np.zeros(len(users), np.int64)
    at_once, _ = layered(Counters(rules, KEY, names), names[users], slots, classes, [60], False)
    by_slot, left = layered(
        Counters(rules, KEY, names), names[users], slots, classes, range(1, 61), True
    )
    np.testing.assert_array_equal(at_once, by_slot)
    lengths = np.full(50, 10)
    for user in range(50):
        blocks = (slots[users == user] + phases(KEY, names, lengths)[user]) // 10
        counts = at_once[users == user] == 0
        for block in np.unique(blocks):
            mine = counts[blocks == block]
            assert mine[:2].all()
            assert not mine[2:].any()
    assert 0 < len(left.blocks.users) <= 50


def test_a_slot_is_decided_once():
    counters = Counters(Rules.of([Limit(1)], [Requirement(9, 1.0)], ADD_REMOVE), KEY, np.arange(3))
    nothing = np.zeros(0, np.int64)
    counters.layers(np.arange(3), np.array([4, 4, 5]), np.zeros(3, np.int64), 6)
    with pytest.raises(ValueError, match="slots 5 to 5: those from 6 on are next"):
        counters.layers(np.arange(1), np.array([5]), np.zeros(1, np.int64), 7)
    with pytest.raises(ValueError, match="slots 8 to 8"):
        counters.layers(np.arange(1), np.array([8]), np.zeros(1, np.int64), 8)
    assert counters.layers(nothing, nothing, nothing, 100).shape == (0,)
    assert len(counters.blocks.users) == 3
    counters.skip(100)
    assert not len(counters.blocks.users)  # every block has ended


@PROPERTY
@given(streams(), st.integers(1, 3), st.sampled_from([None, 4]), st.randoms())
def test_strangers_are_the_same_by_digest_and_by_number(stream, max_slots, in_life, random):
    (users, slots), cuts = stream
    digests = np.sort(np.frombuffer(np.random.default_rng(2).bytes(16 * 8), "S16"))
    rules = Rules.of([Limit(max_slots, 2, in_life)], [Requirement(18, 1.0)], ADD_REMOVE)
    by_digest, by_number = (Counters(rules, KEY, digests) for _ in range(2))
    last = -100
    for cut in cuts:
        rows = np.flatnonzero((slots >= last) & (slots < cut))
        rows = rows[random.sample(range(len(rows)), len(rows))]
        classes = np.zeros(len(rows), np.int64)
        # Some of the names are of nobody who comes, and other batches have other numbers.
        here = np.unique(np.append(users[rows], last % 8))
        np.testing.assert_array_equal(
            by_digest.layers(digests[users[rows]], slots[rows], classes, cut),
            by_number.layers(
                np.searchsorted(here, users[rows]), slots[rows], classes, cut, digests[here]
            ),
        )
        for one in (by_digest, by_number):
            one.skip(cut)
        for one, other in zip(by_digest.arrays(), by_number.arrays(), strict=True):
            np.testing.assert_array_equal(one, other)
        last = cut


def test_a_user_who_is_active_takes_few_bytes():
    """Beyond who it is: one for each count, and two at most for the end of the block."""
    rules = Rules.of([Limit(2, 2)], [Requirement(10_000, 1.0)], ADD_REMOVE)
    counters = Counters(rules, KEY, np.arange(1))
    users = np.arange(100_000)
    counters.layers(users, np.zeros_like(users), np.zeros_like(users), 1)
    counters.skip(1)
    _, names, *rest = counters.arrays()
    assert names.nbytes == 4 * len(names)
    assert sum(array.nbytes for array in rest) <= 4 * len(names)


# Prices below the most that a slot may cost, whatever they are, never add up to more than the
# budget over the slots in which two neighbours differ, where events of one window come late and
# are not counted, or never were. The same is true of the layers above what counts.
@PROPERTY
@given(
    streams(),
    st.integers(1, 2),
    st.integers(1, 3),
    st.integers(-9, 40),
    st.lists(st.integers(0, 1 << 40), min_size=60, max_size=60),
    st.sampled_from([ADD_REMOVE, REPLACE]),
    st.booleans(),
    st.integers(0, LAYERS - 1),
)
def test_no_pair_of_neighbours_differs_by_more_than_the_budget(
    stream, max_slots, blocks, start, amounts, adjacency, restart, layer
):
    (users, slots), cuts = stream
    asked = Requirement(20, 1.0)
    limit = Limit(max_slots, blocks)
    rules = Rules.of([limit], [asked], adjacency)
    most = to_units(limit.priced(asked, adjacency).epsilon)
    prices = np.minimum(np.array(amounts), most)
    inside = (slots >= start) & (slots < start + asked.window)
    beside = [~inside]
    if adjacency == REPLACE:  # two others who were there at different times of the window
        beside = [~inside | (slots % 2 == 0), ~inside | (slots % 3 == 0)]
    worlds = [np.ones(len(users), bool), *beside]
    published = []
    for world in worlds:
        rows = np.flatnonzero(world)
        classes = np.zeros(len(rows), np.int64)
        fresh = Counters(rules, KEY, users)
        layers, _ = layered(fresh, users[rows], slots[rows], classes, cuts, restart)
        counts = layers == layer
        mine = np.zeros((6, 60), np.int64)
        mine[users[rows[counts]], slots[rows[counts]] + 9] = 1
        published.append(mine)
    for other in published[1:]:
        units = np.abs(published[0] - other)
        if adjacency == REPLACE:  # where both count, the events may be others
            window = slice(max(start + 9, 0), start + 9 + asked.window)
            units[:, window] = (published[0] + other)[:, window]
        scale = 2 if adjacency == REPLACE else 1
        assert (units @ prices).max() <= scale * to_units(asked.epsilon)


def test_saving_up_over_windows_of_as_many_slots_would_not_be_private():
    """A price for each slot is what a limit gives, and no budget for consecutive slots."""
    window, max_slots, blocks = 16, 1, 2
    slots = effective_window(window, max_slots, blocks)
    assert slots == 4
    prices = np.zeros(60)
    prices[::slots] = 1.0  # all of the budget in each fourth slot, and in no other
    assert max(prices[t : t + slots].sum() for t in range(60)) == 1.0
    users, times = np.repeat(np.arange(8), 15), np.tile(np.arange(0, 60, slots), 8)
    full = counted(users, times, window=window, max_slots=max_slots, blocks=blocks, key=KEY)
    left = np.flatnonzero((times < 20) | (times >= 36))
    less = np.zeros(len(users), bool)
    less[left] = counted(
        users[left], times[left], window=window, max_slots=max_slots, blocks=blocks, key=KEY
    )
    lost = np.zeros((8, 60))
    lost[users, times] = full != less
    assert (lost @ prices).max() >= 2.0


@pytest.mark.parametrize("alike", [0, 8, 15])
def test_digests_are_placed_as_a_plain_search_places_them(alike):
    """Their first 8 bytes are looked at first, and may be the same."""
    random = np.random.default_rng(alike)
    rows = random.integers(0, 3, (400, 16)).astype(np.uint8) + 1
    rows[:, :alike] = 7
    digests = np.unique(rows.view("S16"))
    known, wanted = digests[::3], np.sort(np.append(digests[1::2], digests[::6]))
    at, there = placed(known, wanted)
    assert (at == np.searchsorted(known, wanted)).all()
    assert (there == np.isin(wanted, known)).all()
    assert not placed(known[:0], wanted)[1].any()
