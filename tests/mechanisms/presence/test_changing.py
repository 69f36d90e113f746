"""What blocks cost where requirements change: for all ways to be there, and by the plain rule."""

from functools import cache
from itertools import combinations, product
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms.presence.calendars import phases
from streamveil.mechanisms.presence.changing import NOTHING_ASKED, TOO_STRICT, Asking, Prices
from streamveil.mechanisms.presence.limits import block_length
from streamveil.mechanisms.queries.cuts import Cut, Even

KEY = bytes(range(32))
SLOTS = 13
WAYS = np.arange(1 << SLOTS)
BITS = (WAYS[:, None] >> np.arange(SLOTS) & 1).astype(np.int8)
LEVELS = np.array([2, 10, 30])
LEFT = (1, 0)
"""A requirement of who leaves: (window, epsilon)."""


class Limit(NamedTuple):
    """One for all."""

    longest: int
    blocks: int
    max_slots: int
    replaced: bool = False

    @property
    def length(self):
        return block_length(self.longest, self.blocks)

    @property
    def differ(self):
        """Slots, or units under `replace`, in which neighbours differ."""
        return (self.blocks + (1 if self.replaced else 2)) * self.max_slots


LIMITS = [Limit(4, 2, 1), Limit(5, 2, 2), Limit(5, 1, 1), Limit(6, 3, 1), Limit(5, 2, 1, True)]


@cache
def someone(length, phase):
    """A user whose blocks begin so."""
    users = np.arange(500)
    return int(users[phases(KEY, users, np.full(500, length)) == phase][0])


def prices(limit, usual=1, first_slot=0):
    """Users of the table are in one class; `NOTHING_ASKED` if they are strangers."""
    return Prices(
        KEY,
        limit.length,
        limit.longest,
        LEVELS,
        lambda users: np.full(len(users), usual),
        first_slot,
    )


def classes_by_slot(limit, phase, changes, usual=1):
    """Class of a user in each slot; changes are (slot, (window, epsilon)), in order."""
    user = someone(limit.length, phase)
    asking = Asking(prices(limit, usual), np.zeros(0, np.int64))
    found = []
    for slot in range(SLOTS):
        due = [(at, asked[1]) for at, asked in changes if at == slot]
        if due:
            slots, epsilons = np.array(due).T
            asking.ask(slot, np.full(len(due), user), slots, epsilons)
        found.append(int(asking.classes(np.array([user]), np.array([slot]))[0]))
        asking.forget(slot + 1)
    return np.array(found)


def in_force(limit, phase, changes, usual):
    """(window, epsilon) ahead in each slot, None for none: from the user's next block on."""
    now = usual
    waits = usual
    found = []
    for slot in range(SLOTS):
        starts = (slot + phase) % limit.length == 0
        if starts:
            now = waits
        for at, asked in changes:
            if at == slot:
                waits = asked
                if starts or slot == 0 or now in (None, LEFT):
                    now = asked
        found.append(None if now == LEFT else now)
    return found


class Ways:
    """What counts of all ways to be there, and what neighbours differ by.

    A way is a number whose bits are slots, and so is what counts of it.
    """

    def __init__(self, limit, phase, classes):
        there, self.limit = BITS * (classes >= 0), limit
        counts = np.zeros_like(BITS)
        for begin in range(-phase, SLOTS, limit.length):
            inside = slice(max(begin, 0), max(begin + limit.length, 0))
            here = there[:, inside]
            counts[:, inside] = here & (here.cumsum(axis=1) <= limit.max_slots)
        cost = np.where(classes >= 0, LEVELS[np.maximum(classes, 0)], 0)
        self.counts = counts @ (1 << np.arange(SLOTS))
        self.cost = BITS @ cost
        """Of the slots of a number."""

    def worst(self, start, window):
        """The most that neighbours differ by, as a share of what a budget has for all slots."""
        end = min(start + window, SLOTS)
        removed = (1 << end) - (1 << max(start, 0))
        if not self.limit.replaced:
            return int(self.cost[self.counts ^ self.counts[WAYS & ~removed]].max())
        outside, units = WAYS & ~removed, 0
        for rest in np.unique(outside):
            mine = np.unique(self.counts[outside == rest])
            units = max(units, int(self._apart(mine[:, None], mine, removed, end).max()))
        return (units + 1) // 2

    def _apart(self, mine, other, removed, end):
        """Units between two that do different things in some slots, up to this one less.

        Between two that count in one of these it changes by two units, where one counts by one.
        """
        inside = self.cost[mine & removed] + self.cost[other & removed]
        return inside + self.cost[(mine ^ other) >> end << end]


def broken(limit, phase, classes, promises):
    """Slots in which a promise is not kept: ahead, and back."""
    ways = Ways(limit, phase, classes)
    ahead = [
        slot
        for slot, asked in enumerate(promises)
        if asked
        and slot + asked[0] <= SLOTS
        and ways.worst(slot, asked[0]) > asked[1] * limit.differ
    ]
    back = [
        slot
        for slot in range(SLOTS)
        for asked in [promises[max(slot - limit.longest + 1, 0)]]
        if asked and ways.worst(slot - asked[0] + 1, asked[0]) > asked[1] * limit.differ
    ]
    return ahead, back


def asked_of(limit):
    """Requirements with windows long and short, and one between two classes."""
    longest = limit.longest
    return [(longest, 2), (2, 2), (longest, 30), (longest - 1, 12), (1, 30), LEFT]


CASES = [
    pytest.param(limit, *asked, marks=() if place == 0 and limit == LIMITS[0] else pytest.mark.slow)
    for limit in LIMITS
    for place, asked in enumerate(
        [(first, last) for first in asked_of(limit) for last in asked_of(limit) if first != last]
    )
    if not limit.replaced or place % 7 == 0
]


@pytest.mark.parametrize(("limit", "first", "last"), CASES)
def test_promises_are_kept_whoever_is_there_and_whatever_is_asked_for(limit, first, last):
    for phase in range(limit.length):
        for usual in (1, NOTHING_ASKED):
            changes = [(2, first), (2 + limit.length, last)]
            classes = classes_by_slot(limit, phase, changes, usual)
            table = (limit.longest, int(LEVELS[1])) if usual >= 0 else None
            promises = in_force(limit, phase, changes, table)
            assert broken(limit, phase, classes, promises) == ([], [])


def test_to_switch_at_once_is_convicted():
    """What is asked for now is what a slot costs: windows that have begun are overspent."""
    limit, changes = LIMITS[0], [(0, (4, 2)), (5, (4, 30))]
    at_once = np.where(np.arange(SLOTS) < 5, 0, 2)
    ahead, back = broken(limit, 1, at_once, in_force(limit, 1, changes, None))
    assert ahead
    assert back


def test_to_price_a_block_by_what_is_in_force_as_it_begins_is_convicted():
    """Windows that began before look ahead into it."""
    limit, changes = LIMITS[0], [(0, (4, 2)), (5, (4, 30))]
    promises = in_force(limit, 1, changes, None)
    by_block = np.array([np.searchsorted(LEVELS, one[1]) for one in promises])
    assert broken(limit, 1, by_block, promises)[0]
    assert broken(limit, 1, classes_by_slot(limit, 1, changes, NOTHING_ASKED), promises) == ([], [])


def test_a_horizon_one_slot_shorter_is_convicted():
    limit = LIMITS[0]
    found = []
    for phase in range(limit.length):
        changes = [(0, (4, 2)), (4, (4, 30))]
        shorter = limit._replace(longest=limit.longest - 1)
        assert shorter.length == limit.length
        classes = classes_by_slot(shorter, phase, changes, NOTHING_ASKED)
        ahead, _ = broken(limit, phase, classes, in_force(limit, phase, changes, None))
        found += ahead
    assert found


def plain(limit, phase, said, usual):
    """Class in each slot, read off the rule; `said` are (slot, for which slot, epsilon)."""
    epsilon = int(LEVELS[usual]) if usual >= 0 else 0
    asked, latest = [], -1
    for slot, meant, wanted in said:
        now = asked[-1][1] if asked else epsilon
        if meant < latest or (not asked and usual < 0 and not wanted):
            continue
        asked.append((slot, min(now, wanted) if meant == latest else wanted))
        latest = meant
    changes = [(slot, (1, wanted) if wanted else LEFT) for slot, wanted in asked]
    promises = in_force(limit, phase, changes, (1, epsilon) if epsilon else None)
    found = []
    for slot in range(SLOTS):
        begin = slot - (slot + phase) % limit.length
        near = promises[max(begin - limit.longest + 1, 0) : slot + 1]
        last = [wanted for at, wanted in asked if at <= slot]
        if promises[slot] is None or (last and not last[-1]):
            found.append(NOTHING_ASKED)
            continue
        smallest = min(one[1] for one in near if one)
        fits = np.flatnonzero(smallest >= LEVELS)
        found.append(int(fits[-1]) if len(fits) else TOO_STRICT)
    return found


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_slot_by_slot_or_at_once_it_is_the_rule(data):
    limit = data.draw(st.sampled_from(LIMITS[:4]))
    usual = data.draw(st.sampled_from([NOTHING_ASKED, 0, 1, 2]))
    late = st.integers(0, 3)
    change = st.tuples(st.integers(0, SLOTS - 1), late, st.sampled_from([0, 1, 2, 5, 10, 29, 40]))
    users = [someone(limit.length, phase) for phase in range(limit.length)]
    said = {}
    for user in users:
        drawn = data.draw(st.lists(change, max_size=5, unique_by=lambda one: one[0]))
        said[user] = sorted((slot, max(slot - by, 0), wanted) for slot, by, wanted in drawn)
    by_slot = Asking(prices(limit, usual), np.zeros(0, np.int64))
    at_once = Asking(prices(limit, usual), np.zeros(0, np.int64))
    found = []
    for slot in range(SLOTS):
        due = [(user, meant, e) for user in users for at, meant, e in said[user] if at == slot]
        if due:
            for one in (by_slot, at_once):
                one.ask(slot, *np.array(due).T)
        found.append(by_slot.classes(np.array(users), np.full(len(users), slot)).tolist())
        by_slot.forget(slot + 1)
        again = Asking(prices(limit, usual, None if slot else 0), np.zeros(0, np.int64))
        again.resume(by_slot.arrays())
        by_slot = again
    assert len(by_slot.arrays()[0]) <= len(at_once.arrays()[0])
    by_turns = Asking(prices(limit, usual), np.zeros(0, np.int64))
    for turn in range(max(map(len, said.values()))):
        due = [(one[turn][0], user, *one[turn][1:]) for user, one in said.items() if one[turn:]]
        by_turns.ask(*np.array(due).T)
    for mine, theirs in zip(by_turns.arrays(), at_once.arrays(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    for place, user in enumerate(users):
        mine = [row[place] for row in found]
        assert mine == plain(limit, place, said[user], usual)
        all_at_once = at_once.classes(np.full(SLOTS, user), np.arange(SLOTS))
        assert all_at_once.tolist() == mine


# ---- slots of several base slots ----------------------------------------------------------------

BASE = 12
"""Base slots of the cases below."""
WINDOW = 4
"""Base slots of the longest window."""
ASKED = (0, 1, 2, 12, 30)
"""Epsilons: of who leaves, below all classes, of one, between two and of the last."""


class Coarse(NamedTuple):
    """How slots cut base slots, and how many of them are in a block."""

    cut: Cut
    length: int

    @property
    def longest(self):
        return self.cut.most_in(WINDOW)


COARSE = [Coarse(Even(2), 1), Coarse(Even(3), 1), Coarse(Even(2), 2), Coarse(Even(5), 1)]


def coarse_classes(case, users, changes, usual, within=True):
    """Class of each user in each slot that ends, shape (n, slots).

    Changes of a user: base slots and epsilons, shape (n, c); -1 for none.
    """
    asked = Prices(
        *(KEY, case.length, case.longest, LEVELS),
        lambda users: np.full(len(users), usual),
        0,
        within=within,
    )
    asking, found = Asking(asked, np.zeros(0, np.int64)), []
    times, epsilons = changes
    for base in range(BASE):
        slot = case.cut.of(base)
        rows, columns = np.nonzero(times == base)
        inside = within and not case.cut.begins(base)
        due = np.full(len(rows), base), epsilons[rows, columns]
        asking.ask(slot, users[rows], *due, inside)
        if case.cut.due(base):
            found.append(asking.classes(users, np.full(len(users), slot)))
            asking.forget(slot + 1)
    return np.stack(found, 1)


def epsilons_in_force(case, users, changes, usual):
    """Epsilons in force in each base slot, by the plain rule: a list for each user and base slot.

    What is asked for is in force from the first block on that begins with the slot of it or later,
    at once where nothing was in force; and until what is asked for next is.
    """
    rows = []
    phase = phases(KEY, users, np.full(len(users), case.length))
    for shift, times, wanted in zip(
        phase.tolist(), *(one.tolist() for one in changes), strict=True
    ):
        first = [(-1, -1, int(LEVELS[usual]))] if usual >= 0 else []
        for at, epsilon in sorted(zip(times, wanted, strict=True)):
            slot = case.cut.of(at)
            ahead = -(slot + shift) % case.length
            now = [one for begins, base, one in first if begins <= slot and base <= at]
            if first or epsilon:
                waits = at > 0 and now and now[-1]
                first.append((slot + ahead if waits else slot, at, epsilon))
        rows.append(
            [
                [one for begins, at, one in first if begins <= case.cut.of(base) and at <= base][
                    -1:
                ]
                for base in range(BASE)
            ]
        )
    return rows


def all_changes(number):
    """All ways in which a user can ask so often, at different base slots: two arrays (n, c)."""
    times = np.array(list(combinations(range(BASE), number)))
    asked = np.array(list(product(ASKED, repeat=number)))
    return np.repeat(times, len(asked), axis=0), np.tile(asked, (len(times), 1))


def coarsely_broken(case, usual, changes, within=True):
    """Users of whom a promise is not kept, ahead or back; and who count where they may not."""
    users = np.arange(len(changes[0]))
    classes = coarse_classes(case, users, changes, usual, within)
    costs = np.where(classes >= 0, LEVELS[np.maximum(classes, 0)], 0)
    ended = classes.shape[1]
    ahead, back, alone = set(), set(), set()
    for user, promised in enumerate(epsilons_in_force(case, users, changes, usual)):
        for base, now in enumerate(promised):
            slot = case.cut.of(base)
            if slot < ended and classes[user, slot] >= 0 and not (now and now[0]):
                alone.add(user)
            for epsilon in filter(None, now):
                if costs[user, slot : case.cut.of(base + WINDOW - 1) + 1].max(initial=0) > epsilon:
                    ahead.add(user)
            for epsilon in filter(None, promised[max(base - WINDOW + 1, 0)]):
                begins = case.cut.of(max(base - WINDOW + 1, 0))
                if costs[user, begins : slot + 1].max(initial=0) > epsilon:
                    back.add(user)
    return ahead, back, alone


@pytest.mark.parametrize("usual", [NOTHING_ASKED, 1])
@pytest.mark.parametrize("case", COARSE)
@pytest.mark.parametrize("number", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_changes_within_slots_keep_promises_over_base_slots(case, usual, number):
    ahead, back, alone = coarsely_broken(case, usual, all_changes(number))
    assert not ahead
    assert not back
    if case.length == 1:  # with blocks, who leaves is still promised what was asked for before
        assert not alone


def test_changes_taken_for_those_of_the_slot_that_begins_are_convicted():
    """What was asked for in the first part of a slot is then in force in no slot at all."""
    ahead, _, _ = coarsely_broken(COARSE[0], 1, all_changes(2), within=False)
    assert ahead
    _, _, alone = coarsely_broken(COARSE[0], NOTHING_ASKED, all_changes(2), within=False)
    assert alone


def test_base_slots_by_base_slots_or_at_once_is_the_same():
    case, (times, epsilons) = COARSE[0], all_changes(3)
    users = np.arange(len(times))
    slowly = coarse_classes(case, users, (times, epsilons), 1)
    prices = Prices(
        *(KEY, 1, case.longest, LEVELS), lambda users: np.full(len(users), 1), 0, within=True
    )
    at_once = Asking(prices, np.zeros(0, np.int64))
    for turn in range(3):
        base = times[:, turn]
        slots = case.cut.numbers(base)
        inside = case.cut.firsts(slots) != base
        at_once.ask(slots, users, base, epsilons[:, turn], inside)
    for slot in range(slowly.shape[1]):
        found = at_once.classes(users, np.full(len(users), slot))
        np.testing.assert_array_equal(found, slowly[:, slot])
