"""Contribution bounding keeps so many events of a visit, by a rule that sees that visit alone.

A visit is what one user sent in one slot.
"""

import itertools
import math
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from streamveil.engine.count import bounding as bounding_rules
from streamveil.engine.count import event_codes
from streamveil.engine.count.bounding import (
    DISTINCT,
    KEEPS,
    UNIFORM,
    Bounding,
    bound_distinct,
    bound_uniform,
    mix,
    runs,
)
from streamveil.engine.count.event_codes import (
    MEMBERS,
    STRANGERS,
    Layout,
    Packed,
    bound_block,
    bound_members,
    count,
    pack,
)
from streamveil.engine.encode.event_mapper import Events
from streamveil.mechanisms.randomness.noise import keyed_words

PROPERTY = settings(max_examples=150)
MASK = (1 << 64) - 1

# Events of one visit by bin, as (visit, bin, repeats).
GROUPS = st.dictionaries(
    st.tuples(st.integers(0, 5), st.integers(0, 6)), st.integers(1, 5), max_size=30
).map(lambda table: sorted((visit, bin_, n) for (visit, bin_), n in table.items()))


def mix_by_hand(value):
    """SplitMix64's finaliser on Python integers."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & MASK
    return value ^ value >> 31


def brute_force(groups, most, rank_of):
    """Kept events of each group: per visit, sort its events and take the first ones."""
    by_visit = defaultdict(list)
    for visit, bin_, n in groups:
        by_visit[visit] += [(repeat, rank_of(visit, bin_), bin_) for repeat in range(n)]
    kept = Counter()
    for visit, events in by_visit.items():
        for _, _, bin_ in sorted(events)[:most]:
            kept[visit, bin_] += 1
    return [kept[visit, bin_] for visit, bin_, _ in groups]


def bounded(groups, most):
    visits, bins, repeats = np.array(groups, np.int64).reshape(-1, 3).T
    codes = (visits * 7 + bins).astype(np.uint64)
    return bound_distinct(visits, repeats, most, lambda rows: mix(codes[rows])).tolist()


@PROPERTY
@given(GROUPS, st.integers(1, 8))
def test_bound_equals_brute_force(groups, most):
    kept = bounded(groups, most)
    assert kept == brute_force(groups, most, lambda visit, bin_: mix_by_hand(visit * 7 + bin_))
    # Never more than asked for, never less than could be kept.
    per_visit, sent = Counter(), Counter()
    for (visit, _, n), k in zip(groups, kept, strict=True):
        assert 0 <= k <= n
        per_visit[visit] += k
        sent[visit] += n
    assert all(per_visit[visit] == min(most, sent[visit]) for visit in sent)


# Another user's events, and the same user's events in another slot, are other visits.
@PROPERTY
@given(GROUPS, st.integers(1, 4))
def test_a_visit_is_bounded_as_if_it_were_alone(groups, most):
    together = bounded(groups, most)
    for visit in {group[0] for group in groups}:
        alone = [group for group in groups if group[0] == visit]
        expected = [k for k, group in zip(together, groups, strict=True) if group[0] == visit]
        assert bounded(alone, most) == expected


@PROPERTY
@given(GROUPS, st.integers(1, 4), st.data())
def test_bounding_parts_first_changes_nothing(groups, most, data):
    left = [(v, b, data.draw(st.integers(0, n))) for v, b, n in groups]
    parts = [left, [(v, b, n - m) for (v, b, n), (_, _, m) in zip(groups, left, strict=True)]]
    merged = Counter()
    for part in parts:
        part = [group for group in part if group[2]]
        for (visit, bin_, _), k in zip(part, bounded(part, most), strict=True):
            merged[visit, bin_] += k
    again = sorted((visit, bin_, n) for (visit, bin_), n in merged.items() if n)
    twice = {g[:2]: k for g, k in zip(again, bounded(again, most), strict=True) if k}
    once = {g[:2]: k for g, k in zip(groups, bounded(groups, most), strict=True) if k}
    assert twice == once


@given(st.lists(st.integers(0, MASK)))
@settings(max_examples=50)
def test_mix_is_splitmix(values):
    assert mix(np.array(values, np.uint64)).tolist() == [mix_by_hand(v) for v in values]


@given(st.lists(st.integers(0, 3)))
@settings(max_examples=50)
def test_runs_cover_the_values(values):
    starts, lengths = runs(np.array(values, np.int64))
    spread = np.repeat(np.array(values, np.int64)[starts], lengths)
    assert spread.tolist() == values
    assert all(values[a] != values[b] for a, b in itertools.pairwise(starts))


# ---- through pack and count -----------------------------------------------------------------

CLASS_OF = np.zeros(2001, np.int32)
BOUNDINGS = st.builds(Bounding, st.integers(1, 3), st.sampled_from(KEEPS))


def kept_bins(kind, slots, users, bins, layout, bounding, seed=None, batches=1):
    """(slot, bin) counts after both steps, the events shuffled and split into batches."""
    order, split = np.arange(len(slots)), np.zeros(len(slots), np.int64)
    if seed is not None:
        generator = np.random.default_rng(seed)
        order, split = generator.permutation(order), generator.integers(batches, size=len(slots))
    columns = [np.asarray(column, np.int64)[order] for column in (slots, users, bins)]
    parts = defaultdict(list)
    for i in range(batches):
        slot, user, bin_ = (column[split == i] for column in columns)
        if kind == STRANGERS:
            words = np.column_stack((mix(user.astype(np.uint64)), user.astype(np.uint64)))
            events = Events(slot, bin_, np.full(len(slot), -1), words)
        else:
            events = Events(slot, bin_, user, np.zeros((0, 2), np.uint64))
        for block, key, codes, _ in pack(events, layout, bounding):
            parts[block, key].append(codes)
    found = Counter()
    for (block, (got, _)), arrays in parts.items():
        assert got == kind
        counts = count(kind, bound_block(kind, block, arrays, layout, bounding), layout, CLASS_OF)
        slots_of = layout.slots_of(counts).tolist()
        for slot, cell, n in zip(
            slots_of, counts.cells.tolist(), counts.counts.tolist(), strict=True
        ):
            found[slot, cell % layout.bins] += n
    return found


@PROPERTY
@given(
    st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 4), st.integers(0, 3)), max_size=60),
    BOUNDINGS,
    st.sampled_from([MEMBERS, STRANGERS]),
    st.integers(1, 5),
    st.sampled_from([1, 3]),
    st.integers(0, 2**32),
)
def test_order_and_batches_do_not_change_what_is_kept(
    events, bounding, kind, batches, shards, seed
):
    slots, users, bins = np.array(events, np.int64).reshape(-1, 3).T
    layout = Layout(block=4, users=5, classes=1, bins=4, shards=shards)
    whole = kept_bins(kind, slots, users, bins, layout, bounding)
    assert kept_bins(kind, slots, users, bins, layout, bounding, seed, batches) == whole
    sent = Counter((slot, user) for slot, user, _ in events)
    assert sum(whole.values()) == sum(min(n, bounding.most) for n in sent.values())


@PROPERTY
@given(
    st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 3)), min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(-3, 3), st.integers(1, 4), st.integers(0, 3)), max_size=40),
    BOUNDINGS,
    st.sampled_from([MEMBERS, STRANGERS]),
)
def test_the_choice_for_a_user_ignores_everyone_else(mine, others, bounding, kind):
    layout = Layout(block=4, users=5, classes=1, bins=4, shards=1)
    with_me = [(slot, 0, bin_) for slot, bin_ in mine]
    counts = [
        kept_bins(kind, *np.array(events, np.int64).reshape(-1, 3).T, layout, bounding)
        for events in (with_me, others, with_me + others)
    ]
    assert counts[0] + counts[1] == counts[2]


# Over many users the distinct bin that is kept is uniform over those sent, however often each was
# repeated: no bin is favoured by its place. The ranks are fixed, so this is not flaky; the
# threshold is the one of a random choice.
# A visit of more groups than a piece has is a piece of its own.
@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_pieces_of_a_block_are_bounded_as_the_whole(keep, size, monkeypatch):
    layout = Layout(block=4, users=9, classes=1, bins=20, shards=1)
    random = np.random.default_rng(size)
    codes = np.flatnonzero(random.random(layout.span) < 0.3).astype(np.uint32)
    repeats, bounding = random.integers(1, 4, len(codes)), Bounding(2, keep)
    whole = bound_members(codes, repeats, 5, layout, bounding)
    monkeypatch.setattr(event_codes, "_BOUND_AT_ONCE", size)
    # Each event is in one of three parts, where it may be the only one of its group or another.
    where = random.integers(0, 3, int(repeats.sum()))
    sent = [
        np.unique(np.repeat(codes, repeats)[where == part], return_counts=True)
        for part in (0, 1, 2)
    ]
    for parts in ([(codes, repeats)], sent):
        packed = [Packed.of(some, events) for some, events in parts]
        found = bound_block(MEMBERS, 5, packed, layout, bounding)
        np.testing.assert_array_equal(found.codes, codes)
        np.testing.assert_array_equal(found.kept, whole)
        assert found.dropped == repeats.sum() - whole.sum()


@pytest.mark.parametrize("kind", [MEMBERS, STRANGERS])
@pytest.mark.parametrize("most", [1, 2])
def test_the_kept_distinct_bin_is_uniform(kind, most):
    users, slots, bins = 2000, np.array([-5, 0, 1, 70]), 5
    layout = Layout(block=64, users=users, classes=1, bins=bins, shards=1)
    slot, user, bin_ = (
        grid.ravel() for grid in np.meshgrid(slots, np.arange(users), np.arange(bins))
    )
    repeats = 1 + 3 * (bin_ == 2)  # repeats of one bin do not make it likelier
    events = [np.repeat(column, repeats) for column in (slot, user, bin_)]
    found = kept_bins(kind, *events, layout, Bounding(most, DISTINCT))
    for s in slots.tolist():
        observed = np.array([found[s, b] for b in range(bins)])
        assert observed.sum() == users * most
        expected = users * most / bins
        # Drawing `most` of the bins without replacement varies less than independent draws.
        statistic = ((observed - expected) ** 2 / expected).sum()
        assert statistic < chi2.ppf(1 - 1e-6, bins - 1)
    # Nor does a user keep the same bin in every slot.
    table = np.array([[found[s, b] for b in range(bins)] for s in slots.tolist()])
    assert len({tuple(row) for row in table.tolist()}) == len(slots)


# The same user's choices in different slots are independent: pairs of kept bins are uniform.
@pytest.mark.parametrize("keep", KEEPS)
def test_choices_in_two_slots_are_independent(keep):
    bins, users = 3, 2000
    layout = Layout(block=2, users=users, classes=1, bins=bins, shards=1)
    pairs = Counter()
    for user in range(users):
        slot, bin_ = np.divmod(np.arange(2 * bins), bins)
        found = kept_bins(MEMBERS, slot, np.full(2 * bins, user), bin_, layout, Bounding(1, keep))
        pairs[tuple(b for s in (0, 1) for b in range(bins) if found[s, b])] += 1
    observed = np.array([pairs[a, b] for a in range(bins) for b in range(bins)])
    expected = users / bins**2
    assert observed.sum() == users
    assert ((observed - expected) ** 2 / expected).sum() < chi2.ppf(1 - 1e-6, bins**2 - 1)


# ---- drawn from all of a visit --------------------------------------------------------------


def draws(key=bytes(32)):
    def draw(rows, numbers):
        return keyed_words(key, rows.astype(np.uint64), numbers.astype(np.uint64))

    return draw


# Every set of events is as likely as any other, so the counts by bin are hypergeometric. Many
# visits of one kind, each with draws of its own; the key is fixed, so this is not flaky, and the
# threshold is one that random draws pass but once in a million.
@pytest.mark.parametrize("most", [1, 3])
def test_long_lines_of_events_are_drawn_from_like_short_ones(most, monkeypatch):
    random = np.random.default_rng(3)
    visits = np.sort(random.integers(0, 200, 1000))
    repeats = random.integers(1, 6, 1000)
    counted = bound_uniform(visits, repeats, most, draws())
    monkeypatch.setattr(bounding_rules, "_FEW_EVENTS", 0)
    searched = bound_uniform(visits, repeats, most, draws())
    assert counted.tolist() == searched.tolist()


@pytest.mark.parametrize(
    ("repeats", "most"),
    [((3, 1), 1), ((3, 1), 2), ((1, 2, 2), 3), ((2, 2, 1), 4), ((9, 1, 5), 1), ((30, 10), 2)],
)
def test_every_set_of_events_is_as_likely(repeats, most):
    visits, bins = 20_000, len(repeats)
    kept = bound_uniform(
        np.repeat(np.arange(visits), bins), np.tile(repeats, visits), most, draws()
    ).reshape(visits, bins)
    assert (kept.sum(axis=1) == most).all()
    ways = {
        split: math.prod(math.comb(n, k) for n, k in zip(repeats, split, strict=True))
        for split in itertools.product(*(range(min(n, most) + 1) for n in repeats))
        if sum(split) == most
    }
    observed = Counter(map(tuple, kept.tolist()))
    assert set(observed) <= set(ways)
    expected = {split: visits * n / sum(ways.values()) for split, n in ways.items()}
    statistic = sum((observed[split] - n) ** 2 / n for split, n in expected.items())
    assert statistic < chi2.ppf(1 - 1e-6, len(ways) - 1)


# As many draws of one visit as of another, however large the first: time must not grow with a user.
def test_a_user_with_very_many_events_costs_no_more_than_others():
    kept = bound_uniform(np.zeros(2, np.int64), np.array([10**15, 3 * 10**15]), 1000, draws())
    assert kept.sum() == 1000
    assert 150 < kept[0] < 350  # 250 are expected, the standard deviation is 14


@PROPERTY
@given(GROUPS, st.booleans(), st.sampled_from([0, 1, 2]))
def test_one_event_is_drawn_alike_from_events_and_from_groups(groups, once, unfair):
    """What others sent decides which way is taken: how many repeats, and whether words are fair."""

    def words(key, visits, draws):
        """The first word of every `unfair`th user is one that no three events can share."""
        there = (visits % np.uint64(unfair) == 0) if unfair else np.zeros(len(visits), bool)
        return np.where(there & (draws == 0), ~np.uint64(0), keyed_words(key, visits, draws))

    layout = Layout(block=1, users=6, classes=1, bins=7, shards=1)
    codes = np.array([visit * 7 + bin_ for visit, bin_, _ in groups], np.uint32)
    more = np.array([n - 1 for *_, n in groups], np.int64)
    rule = Bounding(1, UNIFORM, bytes(range(32)), once)

    def kept():
        found, events = event_codes._bound_piece(codes, codes, more, 0, layout, rule)
        return found[events > 0].tolist(), events[events > 0].tolist()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounding_rules, "keyed_words", words)
        from_events = kept()
        patch.setattr(event_codes, "draw_one", lambda *_: None)
        assert kept() == from_events
    assert len(from_events[0]) == len({visit for visit, *_ in groups})


@pytest.mark.parametrize("lengths", [(1, 1), (3, 1, 3), (2, 5), (2, 4)])
def test_a_word_that_is_not_fair_leaves_the_draw_to_the_groups(lengths, monkeypatch):
    visits = np.repeat(np.arange(len(lengths)), lengths)

    def name(rows):
        return visits[rows].astype(np.uint64)

    assert bounding_rules.draw_one(visits, name, bytes(32)) is not None
    monkeypatch.setattr(
        bounding_rules, "keyed_words", lambda key, names, _: np.full(len(names), ~np.uint64(0))
    )
    unfair = any(length % 2 and length > 1 for length in lengths)
    assert (bounding_rules.draw_one(visits, name, bytes(32)) is None) == unfair


@PROPERTY
@given(GROUPS, st.integers(1, 8))
def test_all_but_crowded_visits_keep_everything(groups, most):
    visits, _, repeats = np.array(groups, np.int64).reshape(-1, 3).T
    kept = bound_uniform(visits, repeats, most, draws())
    assert ((kept >= 0) & (kept <= repeats)).all()
    for visit in set(visits.tolist()):
        there = visits == visit
        assert kept[there].sum() == min(most, repeats[there].sum())


# Who knows the rule but not the key cannot tell which of their events will count.
def test_the_draws_hang_on_the_key():
    visits, repeats = np.repeat(np.arange(300), 2), np.ones(600, np.int64)
    one, other = (bound_uniform(visits, repeats, 1, draws(bytes([i]) * 32)) for i in (1, 2))
    assert not np.array_equal(one, other)


# A user of MovieLens rates 20 to 700 films, all in one slot. Whoever rates much rates low here, so
# that bins kept for being there would tell other shares than the events.
def test_shares_are_those_of_the_events():
    random = np.random.default_rng(5)
    users, bins = 943, 5
    rates = np.minimum(20 + random.exponential(85, users), 700).astype(np.int64)
    user = np.repeat(np.arange(users), rates)
    usual = np.array([0.06, 0.11, 0.27, 0.34, 0.22])
    bin_ = random.choice(bins, size=len(user), p=usual)
    layout = Layout(block=1, users=users, classes=1, bins=bins, shards=1)
    mine = np.zeros((users, bins))
    np.add.at(mine, (user, bin_), 1)
    mine /= mine.sum(axis=1, keepdims=True)  # what a user is expected to give when one counts

    def shares(keep, most):
        found = kept_bins(
            MEMBERS, np.zeros_like(user), user, bin_, layout, Bounding(most, keep), 1, 4
        )
        return np.array([found[0, b] for b in range(bins)]) / sum(found.values())

    for most in (1, 3, 10):
        error = np.abs(shares(UNIFORM, most) - mine.mean(axis=0))
        assert (error < 5 * np.sqrt(usual * (1 - usual) / (users * most))).all()
    assert shares(DISTINCT, 3)[0] > 0.1  # as it was: nearly as often as any other bin
