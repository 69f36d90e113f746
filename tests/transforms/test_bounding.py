"""Contribution bounding keeps so many events of a visit, by a rule that sees that visit alone.

A visit is what one user sent in one slot.
"""

import itertools
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from streamveil.transforms.bounding import bound, mix, runs
from streamveil.transforms.counting import MEMBERS, STRANGERS, Layout, bound_block, count, pack
from streamveil.transforms.mapping import Events

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
    return bound(visits, repeats, most, lambda rows: mix(codes[rows])).tolist()


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


def kept_bins(kind, slots, users, bins, layout, most, seed=None, batches=1):
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
        for block, key, codes, _ in pack(events, layout, most):
            parts[block, key].append(codes)
    found = Counter()
    for (block, (got, _)), arrays in parts.items():
        assert got == kind
        counts = count(kind, bound_block(kind, block, arrays, layout, most), layout, CLASS_OF)
        slots_of = layout.slots_of(counts).tolist()
        for slot, cell, n in zip(
            slots_of, counts.cells.tolist(), counts.counts.tolist(), strict=True
        ):
            found[slot, cell % layout.bins] += n
    return found


@PROPERTY
@given(
    st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 4), st.integers(0, 3)), max_size=60),
    st.integers(1, 3),
    st.sampled_from([MEMBERS, STRANGERS]),
    st.integers(1, 5),
    st.sampled_from([1, 3]),
    st.integers(0, 2**32),
)
def test_order_and_batches_do_not_change_what_is_kept(events, most, kind, batches, shards, seed):
    slots, users, bins = np.array(events, np.int64).reshape(-1, 3).T
    layout = Layout(block=4, users=5, classes=1, bins=4, shards=shards)
    whole = kept_bins(kind, slots, users, bins, layout, most)
    assert kept_bins(kind, slots, users, bins, layout, most, seed, batches) == whole
    sent = Counter((slot, user) for slot, user, _ in events)
    assert sum(whole.values()) == sum(min(n, most) for n in sent.values())


@PROPERTY
@given(
    st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 3)), min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(-3, 3), st.integers(1, 4), st.integers(0, 3)), max_size=40),
    st.integers(1, 3),
    st.sampled_from([MEMBERS, STRANGERS]),
)
def test_the_choice_for_a_user_ignores_everyone_else(mine, others, most, kind):
    layout = Layout(block=4, users=5, classes=1, bins=4, shards=1)
    with_me = [(slot, 0, bin_) for slot, bin_ in mine]
    counts = [
        kept_bins(kind, *np.array(events, np.int64).reshape(-1, 3).T, layout, most)
        for events in (with_me, others, with_me + others)
    ]
    assert counts[0] + counts[1] == counts[2]


# Over many users the bin that is kept is uniform over those sent, however often each was
# repeated: no bin is favoured by its place. The ranks are fixed, so this is not flaky; the
# threshold is the one of a random choice.
@pytest.mark.parametrize("kind", [MEMBERS, STRANGERS])
@pytest.mark.parametrize("most", [1, 2])
def test_the_kept_bin_is_uniform(kind, most):
    users, slots, bins = 2000, np.array([-5, 0, 1, 70]), 5
    layout = Layout(block=64, users=users, classes=1, bins=bins, shards=1)
    slot, user, bin_ = (
        grid.ravel() for grid in np.meshgrid(slots, np.arange(users), np.arange(bins))
    )
    repeats = 1 + 3 * (bin_ == 2)  # repeats of one bin do not make it likelier
    events = [np.repeat(column, repeats) for column in (slot, user, bin_)]
    found = kept_bins(kind, *events, layout, most)
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
def test_choices_in_two_slots_are_independent():
    bins, users = 3, 2000
    layout = Layout(block=2, users=users, classes=1, bins=bins, shards=1)
    pairs = Counter()
    for user in range(users):
        slot, bin_ = np.divmod(np.arange(2 * bins), bins)
        found = kept_bins(MEMBERS, slot, np.full(2 * bins, user), bin_, layout, 1)
        pairs[tuple(b for s in (0, 1) for b in range(bins) if found[s, b])] += 1
    observed = np.array([pairs[a, b] for a in range(bins) for b in range(bins)])
    expected = users / bins**2
    assert observed.sum() == users
    assert ((observed - expected) ** 2 / expected).sum() < chi2.ppf(1 - 1e-6, bins**2 - 1)
