"""A decision that is broken lets nobody count in too many slots: a count of its own stops it."""

import numpy as np
import pytest

from streamveil.mechanisms import BudgetExceeded
from streamveil.mechanisms.core.records import ADD_REMOVE, Requirement
from streamveil.mechanisms.presence import Counters, Limit, counters
from streamveil.mechanisms.presence.calendars import Rules, inserted
from streamveil.mechanisms.presence.counted_filter import CountedFilter
from streamveil.mechanisms.presence.counters import Tally

KEY = bytes(range(32))
SLOTS = 40
KINDS = ["members", "strangers", "numbers"]
ADD, FORGET, RESUME, ENDS = (
    Tally.add,
    Tally.forget,
    Counters.resume,
    counters.block_ends,
)


def one_more(tally, users, ends, noted, names):
    return np.maximum(ADD(tally, users, ends, noted, names) - 1, 0)


def one_more_of_a_life(tally, users, ends, noted, names):
    return np.maximum(ADD(tally, users, ends, noted, names) - (ends == counters.NEVER), 0)


def of_this_batch_alone(tally, users, ends, noted, names):
    tally.used[:] = 0
    return ADD(tally, users, ends, noted, names)


def of_everybody_together(tally, users, ends, noted, names):
    return np.zeros(len(users), int)


def too_early(tally, slot):
    return FORGET(tally, slot + 3)


def without_what_was_used(mine, arrays):
    next_slot, users, used, *rest = arrays
    RESUME(mine, (next_slot, users, np.zeros_like(used), *rest))


def as_they_came(users, slots):
    return np.arange(len(users)), users, slots


def another_calendar(key, users, slots, lengths, names):
    return ENDS(bytes([slots.min() % 7] * 32), users, slots, lengths, names)


def drive(limit, cuts, restart, kind="members"):
    """Everybody is there all the time, and some users come in any order.

    Strangers come as digests, or as numbers of theirs.
    """
    random = np.random.default_rng(3)
    names = np.arange(30)
    if kind != "members":
        names = np.sort(np.frombuffer(random.bytes(16 * 30), "S16"))
    users, slots = (one.ravel() for one in np.indices((30, SLOTS)))
    order = random.permutation(len(users))
    users, slots = users[order], slots[order]
    rules = Rules.of([limit] * 2, [Requirement(18, 1.0), Requirement(2, 1.0)], ADD_REMOVE)
    mine, last, counted = Counters(rules, KEY, names), 0, 0
    for cut in cuts:
        rows = np.flatnonzero((slots >= last) & (slots < cut))
        there = users[rows]
        if kind == "numbers":
            counted += (mine.layers(there, slots[rows], there % 2, cut, names) == 0).sum()
        else:
            counted += (mine.layers(names[there], slots[rows], there % 2, cut) == 0).sum()
        mine.skip(cut)
        last = cut
        if restart:
            arrays = mine.arrays()
            mine = Counters(rules, KEY, names)
            mine.resume(arrays)
    return counted


AT_ONCE, SOME, ONE_BY_ONE = [SLOTS], [5, 6, 17, 30, SLOTS], range(1, SLOTS + 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", [Limit(2, 2), Limit(None, in_life=9), Limit(2, 2, 5)])
def test_it_lets_everything_through_that_is_decided_as_it_should(limit, kind):
    found = {drive(limit, cuts, True, kind) for cuts in (AT_ONCE, SOME, ONE_BY_ONE)}
    assert len(found) == 1
    assert drive(limit, ONE_BY_ONE, False, kind) in found


@pytest.mark.parametrize(
    ("where", "name", "broken", "limit", "said"),
    [
        (Tally, "add", one_more, Limit(2, 2), "more than 2 slots of a block"),
        (Tally, "add", one_more_of_a_life, Limit(None, in_life=9), "more than 9 slots of a life"),
        (Tally, "add", one_more_of_a_life, Limit(2, 2, 5), "more than 5 slots of a life"),
        (Tally, "add", of_everybody_together, Limit(2, 2), "of a block"),
        (counters, "_in_order", as_they_came, Limit(2, 2), "not in order, or come twice"),
    ],
)
@pytest.mark.parametrize("cuts", [AT_ONCE, SOME, ONE_BY_ONE])
@pytest.mark.parametrize("kind", KINDS)
def test_a_broken_decision_is_refused(monkeypatch, where, name, broken, limit, said, cuts, kind):
    monkeypatch.setattr(where, name, broken)
    with pytest.raises(BudgetExceeded, match=said):
        drive(limit, cuts, False, kind)


@pytest.mark.parametrize(
    ("where", "name", "broken", "limit", "restart"),
    [
        (Tally, "add", of_this_batch_alone, Limit(2, 2), False),
        (Tally, "add", of_this_batch_alone, Limit(None, in_life=9), True),
        (Tally, "forget", too_early, Limit(2, 2), False),
        (Tally, "forget", too_early, Limit(2, 2), True),
        (Counters, "resume", without_what_was_used, Limit(2, 2), True),
        (counters, "block_ends", another_calendar, Limit(2, 2), False),
        (counters, "block_ends", another_calendar, Limit(2, 2), True),
    ],
)
@pytest.mark.parametrize("cuts", [SOME, ONE_BY_ONE])
@pytest.mark.parametrize("kind", ["members", "numbers"])
def test_so_is_one_that_forgets(monkeypatch, where, name, broken, limit, restart, cuts, kind):
    monkeypatch.setattr(where, name, broken)
    with pytest.raises(BudgetExceeded, match="It is a fault of streamveil: please report it"):
        drive(limit, cuts, restart, kind)


def test_who_counted_and_is_forgotten_is_missed():
    rules = Rules.of([Limit(2, 2)], [Requirement(18, 1.0)], ADD_REMOVE)
    door = CountedFilter(rules, np.arange(1))
    users, slots, ends = np.array([4, 7]), np.array([1, 1]), np.array([5, 6])
    door.charge(users, slots, np.zeros(2, np.int64), ends, np.arange(2))
    assert [one.tolist() for one in door.beside(users, ends, users[:0])] == [[1, 1], []]
    assert door.beside(np.array([1, 4, 7]), np.array([2, 5, 6]), users[:0])[0].tolist() == [0, 1, 1]
    for users_known, ends_known in ((users[:1], ends[:1]), (users, ends + 1)):
        with pytest.raises(BudgetExceeded, match="users who counted would be forgotten"):
            door.beside(users_known, ends_known, users[:0])


@pytest.mark.parametrize(
    ("names", "users"), [([b"a", b"a"], [0, 1]), ([b"b", b"a"], [0, 1]), ([b"a", b"b"], [-1, 1])]
)
def test_nobody_has_two_numbers(names, users):
    rules = Rules.of([Limit(2, 2)], [Requirement(18, 1.0)], ADD_REMOVE)
    names = np.array(names, "S16")
    door = CountedFilter(rules, names[:0])
    users, slots, ends = np.array(users), np.array([1, 1]), np.array([5, 5])
    with pytest.raises(BudgetExceeded, match="a user may have two numbers"):
        door.charge(users, slots, np.zeros(2, np.int64), ends, np.arange(2), names)


@pytest.mark.parametrize("end", [1, 11])
def test_a_visit_is_in_the_block_of_its_user(end):
    rules = Rules.of([Limit(2, 2)], [Requirement(18, 1.0)], ADD_REMOVE)
    door = CountedFilter(rules, np.arange(1))
    one = np.ones(1, np.int64)
    with pytest.raises(BudgetExceeded, match="not in the blocks of their users"):
        door.charge(one, one, one - 1, np.array([end]), np.zeros(1, np.int64))


def test_values_are_inserted_as_numpy_does():
    random = np.random.default_rng(5)
    at = np.sort(random.integers(0, 11, 7))
    old, new = [np.arange(10), np.arange(10.0)], [np.arange(7) + 100, np.arange(7.0)]
    for merged, before, values in zip(inserted(at, old, new), old, new, strict=True):
        np.testing.assert_array_equal(merged, np.insert(before, at, values))
