"""Counting in two steps around a shuffle equals counting with a dict, whatever the layout."""

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.engine.count.bounding import DISTINCT, KEEPS, UNIFORM, Bounding, mix
from streamveil.engine.count.event_codes import (
    MEMBERS,
    STRANGERS,
    BlockCounts,
    Layout,
    Packed,
    bound_block,
    count,
    pack,
    slot_tables,
)
from streamveil.engine.encode.event_mapper import Events
from streamveil.mechanisms import Registry, Requirement
from streamveil.mechanisms.randomness.noise import keyed_words

PROPERTY = settings(max_examples=120)
KEY = bytes(range(32))

# As many users as make codes of these layouts narrow (32 bits) or wide, in blocks of 1 or more.
# At 2**32 codes a block's own codes are narrow, but those of two blocks are not.
LAYOUTS = {
    "one slot": Layout(block=1, users=6, classes=3, bins=4, shards=1),
    "narrow": Layout(block=16, users=6, classes=3, bins=4, shards=1),
    "narrow, odd": Layout(block=5, users=7, classes=3, bins=3, shards=3),
    "just narrow": Layout(block=4, users=2**28, classes=3, bins=4, shards=1),
    "just narrow by slot": Layout(block=1, users=2**30, classes=3, bins=4, shards=1),
    "just wide": Layout(block=4, users=2**28 + 1, classes=3, bins=4, shards=1),
    "wide, but narrow by slot": Layout(block=16, users=2**29, classes=3, bins=4, shards=1),
    "wide": Layout(block=16, users=2**31, classes=3, bins=4, shards=1),
    "wide, sharded": Layout(block=16, users=2**31, classes=3, bins=4, shards=3),
}
DEFAULT_CLASS = 1

# Beside slots around 0, some so far away that codes counted from the first would not fit.
NEAR = st.integers(-40, 40)
FAR = NEAR | st.sampled_from([-(2**40), -(2**40) + 1, 2**40])
# Users 0 to 2 and the registry's last three are members, the others are not.
EVENTS = st.lists(st.tuples(FAR, st.integers(-3, 5), st.integers(0, 2)), max_size=60)


class Classes:
    """The class of a user without a table of 2**31 of them; at -1 the default class."""

    def take(self, users):
        assert np.can_cast(users.dtype, np.intp)
        return users % 3

    def __getitem__(self, last):
        assert last == -1
        return np.int32(DEFAULT_CLASS)


def as_events(rows, layout):
    """Events of (slot, person, bin) rows; person -3 to 2 is a member, 3 to 5 is not."""
    slots, people, bins = np.array(rows, np.int64).reshape(-1, 3).T
    members = np.where(people > 2, -1, people % layout.users)
    return Events(slots, bins, members, digests_of(people[people > 2]))


def digests_of(people):
    words = people.astype(np.uint64)
    return np.column_stack((mix(words), words))


def drawn_by_hand(sent, most, visitor):
    """Events of each bin that are kept: drawn one by one, or those that are dropped if fewer."""
    line = sorted(sent.elements())
    size, taken, tried = len(line), set(), 0
    if size <= most:
        return sent
    while len(taken) < min(most, size - most):
        words = [np.array([number % 2**64], np.uint64) for number in (visitor, tried)]
        word = int(keyed_words(KEY, *words)[0])
        tried += 1
        if word < 2**64 - 2**64 % size:
            taken.add(word % size)
    chosen = Counter(line[i] for i in taken)
    return sent - chosen if size - most < most else chosen


def by_dict(rows, layout, most, keep):
    """Counts by (slot, class, bin), each visit bounded on its own."""
    visits = defaultdict(Counter)
    for slot, person, bin_ in rows:
        visits[slot, person][bin_] += 1
    found = Counter()
    for (slot, person), sent in visits.items():
        member = person <= 2
        user = person % layout.users
        if keep == UNIFORM:
            visitor = slot * layout.users + user
            if not member:
                first, second = digests_of(np.array([person]))[0]
                digest = int(mix(mix(np.array([first])) ^ second)[0])
                visitor = int(mix(np.array([(digest + slot) % 2**64], np.uint64))[0])
            for bin_, n in drawn_by_hand(sent, most, visitor).items():
                found[slot, user % 3 if member else DEFAULT_CLASS, bin_] += n
            continue

        def rank(bin_, slot=slot, person=person, member=member, user=user):
            if member:
                code = (slot * layout.users + user) * layout.bins + bin_
            else:
                first, second = digests_of(np.array([person]))[0]
                code = int(mix(mix(np.array([first])) ^ second)[0]) + slot * layout.bins + bin_
            return int(mix(np.array([code % 2**64], np.uint64))[0])

        events = sorted((i, rank(bin_), bin_) for bin_, n in sent.items() for i in range(n))
        for _, _, bin_ in events[:most]:
            found[slot, user % 3 if member else DEFAULT_CLASS, bin_] += 1
    return found


def in_two_steps(rows, layout, most, batches=1, keep=UNIFORM):
    """Counts by (slot, class, bin), and how many events were dropped on the way."""
    bounding = Bounding(most, keep, KEY)
    parts, dropped = defaultdict(list), 0
    for i in range(batches):
        for block, key, packed, lost in pack(as_events(rows[i::batches], layout), layout, bounding):
            kind, shard = key
            codes = packed.codes
            assert kind in (MEMBERS, STRANGERS)
            assert 0 <= shard < layout.shards
            assert len(codes)
            parts[block, key].append(Packed.from_bytes(packed.to_bytes()))
            dropped += lost
            if kind == MEMBERS:
                assert codes.dtype == layout.dtype
                assert (codes[1:] > codes[:-1]).all()
            else:
                assert (codes.dtype, codes.shape[1]) == (np.uint64, 3)
    by_block = defaultdict(list)
    for (block, (kind, _)), codes in parts.items():
        visits = bound_block(kind, block, codes, layout, bounding)
        counts = count(kind, visits, layout, Classes())
        assert counts.block == block
        assert (counts.counts > 0).all()
        assert (np.diff(counts.cells) > 0).all()
        dropped += visits.dropped
        by_block[block].append(counts)
    found = Counter()
    for block, counts in by_block.items():
        tables = list(slot_tables(block, counts, layout))
        # Every slot of the block once, in order, busy or not.
        assert [slot for slot, _ in tables] == [
            block * layout.block + i for i in range(layout.block)
        ]
        for slot, table in tables:
            assert (table.shape, table.dtype) == ((layout.classes, layout.bins), np.int64)
            for k, bin_ in np.argwhere(table).tolist():
                found[slot, k, bin_] += int(table[k, bin_])
    return found, dropped


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@settings(max_examples=40)
@given(EVENTS, st.integers(1, 3), st.integers(1, 3), st.sampled_from(KEEPS))
def test_two_steps_equal_a_dict(layout, rows, most, batches, keep):
    expected = by_dict(rows, layout, most, keep)
    found, dropped = in_two_steps(rows, layout, most, batches, keep)
    assert found == expected
    # No event is lost without being counted as dropped.
    assert dropped == len(rows) - sum(expected.values())


# The type of a batch's codes must not depend on which of a block's slots it happens to hold.
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("slot", [0, -1, 15, 10**9])
def test_a_single_event_travels(layout, slot):
    found, dropped = in_two_steps([(slot, 1, 2)], layout, 1)
    assert (found, dropped) == ({(slot, 1, 2): 1}, 0)


# A batch of one member event per block; the blocks are too far apart for one code.
def test_slots_so_far_apart_that_codes_overflow():
    rows = [(slot, 2, 1) for slot in (-(2**45), -1, 0, 2**45) for _ in range(3)]
    found, dropped = in_two_steps(rows, LAYOUTS["wide"], 2)
    assert found == {(slot, 2, 1): 2 for slot, _, _ in rows}
    assert dropped == 4


# Busy slots in order of time are sorted block by block.
@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS.values() if layout.shards == 1])
def test_events_in_order_of_time_make_the_same_codes(layout):
    random = np.random.default_rng(5)
    slots = np.repeat(np.arange(-3, 3), 600)
    users = random.integers(max(layout.users - 40, 0), layout.users, len(slots))
    bins = random.integers(0, layout.bins, len(slots))
    nobody = np.zeros((0, 2), np.uint64)
    shuffled = random.permutation(len(slots))
    packs = [
        list(pack(Events(slots[at], bins[at], users[at], nobody), layout, Bounding(1)))
        for at in (np.arange(len(slots)), shuffled)
    ]
    for in_order, other in zip(*packs, strict=True):
        assert in_order[:2] == other[:2]
        assert in_order[2].to_bytes() == other[2].to_bytes()
        assert in_order[2].codes.dtype == layout.dtype


@given(st.lists(st.integers(0, 9), max_size=40))
def test_like_events_are_a_group(numbers):
    codes = np.sort(np.array(numbers, np.uint32))
    packed, (distinct, events) = Packed.of_events(codes), np.unique(codes, return_counts=True)
    expected = Packed.of(distinct, events)
    for name in ("codes", "at", "more"):
        np.testing.assert_array_equal(getattr(packed, name), getattr(expected, name))
    np.testing.assert_array_equal(packed.events, events)
    odd = packed.some(distinct % 2 == 1)
    np.testing.assert_array_equal(odd.codes, distinct[distinct % 2 == 1])
    np.testing.assert_array_equal(odd.events, events[distinct % 2 == 1])


@PROPERTY
@given(EVENTS, st.integers(1, 3), st.sampled_from(KEEPS))
def test_shards_do_not_change_the_counts(rows, most, keep):
    one, three = (Layout(8, 6, 3, 4, shards) for shards in (1, 3))
    whole = in_two_steps(rows, one, most, keep=keep)
    assert in_two_steps(rows, three, most, batches=3, keep=keep) == whole


# A user's events of a block must meet in one shard, or bounding would miss some.
@PROPERTY
@given(EVENTS)
def test_a_user_is_in_one_shard(rows):
    layout = Layout(8, 6, 3, 4, 3)
    shards = defaultdict(set)
    for _, (kind, shard), packed, _ in pack(as_events(rows, layout), layout, Bounding(5)):
        codes = packed.codes
        users = codes[:, 1] if kind == STRANGERS else codes // 4 % 6
        for user in users.tolist():
            shards[kind, user].add(shard)
    assert all(len(where) == 1 for where in shards.values())


def test_no_events_make_no_codes():
    for layout in LAYOUTS.values():
        assert list(pack(as_events([], layout), layout, Bounding(1, DISTINCT))) == []


def test_only_members_or_only_strangers():
    layout = LAYOUTS["narrow"]
    for person, kind in ((0, MEMBERS), (4, STRANGERS)):
        packed = list(pack(as_events([(3, person, 1)] * 2, layout), layout, Bounding(1)))
        assert [key for _, key, _, _ in packed] == [(kind, 0)]


def test_parts_of_a_block_add_up():
    layout = Layout(block=2, users=1, classes=2, bins=2, shards=1)
    parts = [
        BlockCounts(-3, np.array([0, 7]), np.array([1, 2])),
        BlockCounts(-3, np.array([5, 7]), np.array([3, 4])),
    ]
    tables = [(slot, table.tolist()) for slot, table in slot_tables(-3, parts, layout)]
    assert tables == [(-6, [[1, 0], [0, 0]]), (-5, [[0, 3], [0, 6]])]
    assert [table.sum() for _, table in slot_tables(5, [], layout)] == [0, 0]


def test_slots_of_cells():
    layout = Layout(block=4, users=1, classes=2, bins=3, shards=1)
    counts = BlockCounts(-2, np.array([0, 5, 6, 23]), np.ones(4, np.int64))
    assert layout.slots_of(counts).tolist() == [-8, -8, -7, -5]


# ---- Layout.choose --------------------------------------------------------------------------


def registry_of(users, classes):
    return Registry.build(
        range(users), np.ones(users, np.int64), 1 + np.arange(users) % classes, default=None
    )


@PROPERTY
@given(st.integers(1, 20), st.integers(1, 6), st.integers(1, 10**7), st.integers(1, 8))
def test_chosen_layout_keeps_tables_small_and_codes_narrow_if_it_can(users, classes, bins, shards):
    registry = registry_of(users, min(users, classes))
    layout = Layout.choose(registry, bins, shards, timely=False)
    assert (layout.users, layout.classes) == (users, len(registry.classes))
    assert (layout.bins, layout.shards) == (bins, shards)
    assert layout.block in (1, 2, 4, 8, 16, 32, 64)
    cells = layout.classes * bins
    assert layout.block * cells <= 2**22 or layout.block == 1
    # Codes are wide only where 16 slots would not fit 32 bits, and the block is then the largest.
    if layout.dtype == np.uint64:
        assert 16 * users * bins > 2**32 or layout.block < 16
        assert layout.block == 64 or 2 * layout.block * cells > 2**22
    else:
        assert layout.span <= 2**32
    assert Layout.choose(registry, bins, shards, timely=True).block == 1


def test_chosen_layouts_of_known_sizes():
    few = registry_of(10, 2)
    assert Layout.choose(few, 10, 1, timely=False).block == 64
    assert Layout.choose(few, 2**17, 1, timely=False).block == 16
    assert Layout.choose(few, 2**22, 1, timely=False).block == 1
    # Nobody registered: everyone is of the default class.
    empty = Registry.of(default=(Requirement(1, 1.0), 5))
    assert Layout.choose(empty, 10, 1, timely=False) == Layout(64, 1, 1, 10, 1)


# 2**26 users and bins fill 32 bits with a block of 64; beyond it the block shrinks down to 16.
@pytest.mark.parametrize(
    ("users", "block", "dtype"),
    [
        (2**22, 64, np.uint32),
        (2**22 + 1, 32, np.uint32),
        (2**24, 16, np.uint32),
        (2**24 + 1, 64, np.uint64),
    ],
)
def test_chosen_blocks_of_many_users(users, block, dtype):
    class Crowd:
        """A registry of so many users, without them."""

        classes = (None,)

    Crowd.users = range(users)
    layout = Layout.choose(Crowd, 16, 1, timely=False)
    assert (layout.block, layout.dtype) == (block, dtype)
