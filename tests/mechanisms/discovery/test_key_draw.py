"""The draw of keys: bounds, independence of order and of other users, and counts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms.discovery import key_draw
from streamveil.mechanisms.discovery.key_draw import (
    Pairs,
    drawn,
    sampled_keys,
    weighted_counts,
)
from streamveil.mechanisms.discovery.price import Draw

SECRET = bytes(range(32))
WEIGHTS = np.array([1, 3])
DIGESTS = np.random.default_rng(3).integers(0, 1 << 62, (40, 2)).astype(np.uint64)
LENGTH = 3
DRAWS = [Draw(LENGTH, 2), Draw(LENGTH, 1, True)]


def pairs_of(rows, digests=DIGESTS):
    """Of rows (user, base slot, key); users of odd numbers are of class 1."""
    users, base_slots, keys = np.array(rows, np.int64).reshape(-1, 3).T
    words = np.column_stack([users // 3, users]).astype(np.uint64)  # some share the first one
    return Pairs(words, users % 2, base_slots, keys, digests)


def counts_of(rows, draws=DRAWS):
    return weighted_counts(drawn(pairs_of(rows), draws, SECRET), WEIGHTS)


rows_of_events = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, LENGTH - 1), st.integers(0, 7)), max_size=60
)


@settings(max_examples=150)
@given(rows_of_events)
def test_users_take_their_places_and_no_more(rows):
    found = drawn(pairs_of(rows), DRAWS, SECRET)
    kept = set(zip(found.users[:, 1].tolist(), found.keys.tolist(), strict=True))
    assert len(kept) == found.size
    for user in range(6):
        mine = {(slot, key) for one, slot, key in rows if one == user}
        keys = {key for _, key in mine}
        count = sum(one == user for one, _ in kept)
        if user % 2:
            by_slot = [{key for at, key in mine if at == slot} for slot in range(LENGTH)]
            assert count <= sum(map(bool, by_slot))
            assert count >= bool(keys)
        else:
            assert count == min(len(keys), 2)
        assert {key for one, key in kept if one == user} <= keys


@settings(max_examples=100)
@given(rows_of_events, st.randoms())
def test_order_and_repeats_have_no_part_in_it(rows, random):
    again = [*rows, *rows[:5]]
    random.shuffle(again)
    assert (counts_of(again) == counts_of(rows)).all()


def numbered(rows, key_order):
    """The same events where keys are numbered in another order."""
    places = {key: place for place, key in enumerate(key_order)}
    return pairs_of([(one, at, places[key]) for one, at, key in rows], DIGESTS[list(key_order)])


@settings(max_examples=100)
@given(rows_of_events, st.permutations(range(8)))
def test_numbers_of_keys_have_no_part_in_it(rows, order):
    other = weighted_counts(drawn(numbered(rows, order), DRAWS, SECRET), WEIGHTS)
    assert (other == counts_of(rows)[list(order)]).all()


@settings(max_examples=100)
@given(rows_of_events, st.integers(0, 3))
def test_users_with_the_same_hash_are_two_users(rows, bits):
    hashed = key_draw._hashed
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_draw, "_hashed", lambda columns: hashed(columns) & np.uint64(bits))
        alike = counts_of(rows)
    assert (alike == counts_of(rows)).all()


def test_keys_of_a_user_with_the_same_rank_are_two_keys(monkeypatch):
    rows = [(user, 0, key) for user in range(4) for key in range(5)] * 2
    monkeypatch.setattr(key_draw, "keyed_words", lambda key, one, two: np.zeros_like(one))
    assert (counts_of(rows) > 0).sum() == 2
    assert counts_of(rows).sum() == 2 * 2 + 2 * 3
    assert (counts_of(rows) == counts_of(rows[::-1])).all()


@pytest.mark.parametrize("draws", [DRAWS, [Draw(LENGTH, 4)] * 2, DRAWS[1:] * 2])
@pytest.mark.parametrize("bits", range(8))
def test_a_user_counts_once_for_a_key(monkeypatch, draws, bits):
    """Also if keys of a user have the same rank, of `bits` and no others."""
    ranked = key_draw.keyed_words
    monkeypatch.setattr(key_draw, "keyed_words", lambda *given: ranked(*given) & np.uint64(bits))
    for seed in range(9):
        rows = np.random.default_rng(seed).integers(0, (6, LENGTH, 8), (60, 3))
        found = drawn(pairs_of(rows), draws, SECRET)
        kept = set(zip(found.users[:, 1].tolist(), found.keys.tolist(), strict=True))
        assert len(kept) == found.size


def changes(rows, user, window, count):
    """Keys whose counts a user's events in some base slots change, where counts are per class."""
    rest = [one for one in rows if one[0] != user or one[1] not in window]
    return np.flatnonzero(count(rows) != count(rest))


@settings(max_examples=200)
@given(rows_of_events, st.integers(0, 5), st.integers(0, 2), st.integers(1, 3))
def test_a_user_changes_no_more_keys_than_is_paid_for(rows, user, first, length):
    window = range(first, min(first + length, LENGTH))
    draw = DRAWS[user % 2]
    assert len(changes(rows, user, window, counts_of)) <= draw.changed[len(window)]


# Mutants: what the tests above would find.
CROWD = [(user, 0, 0) for user in range(100, 130)]
NEW = [(1, 0, key) for key in range(1, 9)]


def capped(rows, most=5):
    """The mutant that keeps the last keys of all, so that new ones push others out."""
    kept = list(dict.fromkeys(key for _, _, key in reversed(rows)))[:most]
    return counts_of([row for row in rows if row[2] in kept])


def first_come(rows):
    """The mutant whose draw keeps the keys that came first."""
    kept, taken = [], {}
    for user, slot, key in rows:
        mine = taken.setdefault(user, [])
        if key in mine or len(mine) < 2:
            mine.append(key)
            kept.append((user, slot, key))
    return counts_of(kept)


def test_a_cap_that_evicts_is_found():
    evicted = CROWD + NEW
    assert capped(evicted)[0] == 0
    assert capped(CROWD)[0] > 30
    assert counts_of(evicted)[0] == counts_of(CROWD)[0] > 30


def test_a_draw_that_depends_on_order_is_found():
    rows = [(2, 0, key) for key in range(8)]
    assert (first_come(rows) != first_come(rows[::-1])).any()
    assert (counts_of(rows) == counts_of(rows[::-1])).all()


def test_weights_are_added_up_by_distinct_user():
    rows = [(0, 0, 4), (0, 1, 4), (2, 0, 4), (1, 0, 4), (3, 0, 5)]
    counts = counts_of(rows)
    assert counts[4] == 2 * 1 + 3
    assert counts[5] == 3
    assert counts.sum() == 8


def test_nothing_is_drawn_of_nothing():
    assert not counts_of([]).any()


def test_a_sample_of_keys_looks_at_each_key_alone():
    digests = np.random.default_rng(5).integers(0, 1 << 62, (20_000, 2)).astype(np.uint64)
    sampled = sampled_keys(digests, 0.25, SECRET)
    assert abs(sampled.mean() - 0.25) < 0.02
    assert (sampled_keys(digests[::-1], 0.25, SECRET) == sampled[::-1]).all()
    assert (sampled_keys(digests[:7], 0.25, SECRET) == sampled[:7]).all()
    assert sampled_keys(digests, 1.0, SECRET).all()
