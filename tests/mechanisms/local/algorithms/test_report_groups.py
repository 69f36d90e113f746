"""Who reports when: once a window, and after a change of requirement as soon as promises allow."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms.core.records import Requirement
from streamveil.mechanisms.local.algorithms.report_groups import AWAY, Changes, Rota
from streamveil.mechanisms.local.algorithms.rotation import Rotation
from streamveil.mechanisms.local.client.population import Devices
from streamveil.mechanisms.local.protocol import Users
from streamveil.mechanisms.randomness.noise import NoiseSource, RandomWords
from tests.mechanisms.local.populations import population, populations

SLOTS = 30
# Every pair of: stricter in both, in one, in none.
CLASSES = tuple(
    Requirement(*one) for one in [(2, 1.0), (2, 2.0), (5, 1.0), (5, 2.0), (3, 1.5), (1, 0.5)]
)


def turns(rota, slots, changes=None) -> np.ndarray:
    """Whose turn it is in each slot, shape (T, n)."""
    table = np.zeros((slots, rota.users.class_of.size), bool)
    for slot, row in enumerate(table):
        row[rota.turn(slot, changes or Changes())] = True
    return table


def words(number=0) -> RandomWords:
    return NoiseSource(bytes([number]) * 32).slot(0, b"").words("groups")


# Once in every window, in a group as large as any other, give or take one.
@settings(max_examples=40)
@given(populations(), st.integers(0, 255))
def test_everybody_has_one_turn_a_window(users, number):
    longest = max(r.window for r in users.classes)
    table = turns(Rota(users, words(number)), 3 * longest)
    for k, requirement in enumerate(users.classes):
        mine, w = table[:, users.class_of == k], requirement.window
        for start in range(len(mine) - w + 1):
            assert (mine[start : start + w].sum(axis=0) == 1).all()
        sizes = mine.sum(axis=1)
        assert sizes.max() - sizes.min() <= 1


def test_few_users_are_spread_over_their_window():
    ((first, second, third),) = [
        np.flatnonzero(turns(Rota(population([(90, 1.0)] * 3), words()), 90).any(axis=1))
    ]
    assert second - first == third - second == 30


# All slots are as likely for a user, whatever the class's size: chi-squared with 9 degrees of
# freedom is above 50 with a probability of 1e-7.
def test_turns_are_drawn_evenly():
    users = population([(10, 1.0)] * 4 + [(3, 1.0)] * 50)
    small = np.flatnonzero(users.class_of == 1)
    assert small.size == 4
    found = [turns(Rota(users, words(n)), 10)[:, small[0]].argmax() for n in range(200)]
    counts = np.bincount(found, minlength=10)
    assert ((counts - 20) ** 2 / 20).sum() < 50


def test_the_same_words_draw_the_same_groups():
    users = population([(7, 1.0)] * 100)
    one, same, other = (turns(Rota(users, words(n)), 7) for n in (1, 1, 2))
    assert (one == same).all()
    assert (one != other).any()


# ---- requirements that change ---------------------------------------------------------------


def after_change(before, after, slot=7, users=200):
    """First turns of users who change in a slot, and their last ones before: shape (n,)."""
    members = Users((Requirement(*before), Requirement(*after)), np.zeros(users, np.int32), 2)
    rota, everybody = Rota(members, words()), np.arange(users, dtype=np.int32)
    changes = rota.change(Changes(), slot, everybody, np.ones(users, np.int32), words(1))
    last = slot - 1 - turns(rota, slot)[::-1].argmax(axis=0)
    first = turns(rota, 100, changes)[slot:].argmax(axis=0) + slot
    return first, last


# The longer window counts from the last turn: nobody waits for more than that and a group's turn.
def test_more_privacy_goes_on_without_a_pause():
    first, last = after_change((4, 2.0), (6, 1.0))
    assert (first >= np.maximum(last + 6, 7)).all()
    assert (first < np.maximum(last + 6, 7) + 6).all()
    assert (first == last + 6).any()


# Slot 6 promised one epsilon at most in the slots 6 to 9, whatever comes.
def test_less_privacy_waits_for_what_was_promised():
    first, _ = after_change((4, 1.0), (3, 2.0))
    assert set(first) == {10, 11, 12}


# Users of (5, 1) ask for (3, 3) and then for (3, 2): slot 6 still promises one epsilon until 10.
def test_promises_from_before_the_last_change_hold():
    classes = tuple(Requirement(*one) for one in [(5, 1.0), (3, 3.0), (3, 2.0)])
    rota = Rota(Users(classes, np.zeros(200, np.int32), 2), words())
    everybody, changes = np.arange(200, dtype=np.int32), Changes()
    for slot, k in ((7, 1), (10, 2)):
        changes = rota.change(changes, slot, everybody, np.full(200, k, np.int32), words(slot))
    first = turns(rota, 20, changes)[10:].argmax(axis=0) + 10
    assert set(first) == {11, 12, 13}


def test_who_never_had_a_turn_comes_at_once():
    users = population([(9, 1.0)] * 90)
    rota, everybody = Rota(users, words()), np.arange(90, dtype=np.int32)
    gone = rota.change(Changes(), 0, everybody, np.full(90, AWAY, np.int32), words(1))
    assert rota.sizes(gone).tolist() == [0]
    assert not turns(rota, 20, gone).any()
    back = rota.change(gone, 20, everybody[::2], np.zeros(45, np.int32), words(2))
    assert rota.sizes(back).tolist() == [45]
    table = turns(rota, 29, back)[20:]
    assert (table.sum(axis=0) == (np.arange(90) % 2 == 0)).all()


def test_who_asks_for_the_same_keeps_the_group():
    rota = Rota(population([(9, 1.0)] * 90), words())
    everybody = np.arange(90, dtype=np.int32)
    changes = rota.change(Changes(), 5, everybody, np.zeros(90, np.int32), words(1))
    assert changes.moved.users.size == 0


histories = st.lists(
    st.tuples(st.integers(0, SLOTS - 1), st.integers(0, 7), st.integers(AWAY, len(CLASSES) - 1)),
    max_size=40,
    unique_by=lambda change: change[:2],
)


class Follower:
    """One user, followed naively: what was in force and what it cost, slot by slot."""

    def __init__(self, k):
        self.k, self.here = k, True
        self.last, self.earliest = None, 0
        self.waits: int | None = CLASSES[k].window  # the next turn is before this slot
        self.former: list[tuple[int, int]] = []  # class, last slot in force
        self.force, self.spent = [], []

    def change(self, slot, k):
        if k == self.k and self.here:
            return
        if k == AWAY:
            self.here, self.waits = False, None
            return
        if k != self.k:
            self.former.append((self.k, slot - 1))
        self.k, self.here = k, True
        mine = CLASSES[k]
        bounds = [slot] if self.last is None else [slot, self.last + mine.window]
        for one, end in self.former:
            if CLASSES[one].epsilon < mine.epsilon or CLASSES[one].window > mine.window:
                bounds.append(end + CLASSES[one].window)
        self.earliest = max(bounds)
        self.waits = self.earliest + mine.window

    def live(self, slot, asked):
        if asked:
            assert self.here
            assert slot >= self.earliest
            self.last, self.waits = slot, slot + CLASSES[self.k].window + 1
        assert self.waits is None or slot < self.waits - 1, "too late"
        self.force.append(CLASSES[self.k])
        self.spent.append(CLASSES[self.k].epsilon * asked)

    def check(self, first):
        """Every promise, added up; the first requirement was in force before the first slot."""
        spent = np.array(self.spent)
        promises = [(slot, r) for slot, r in enumerate(self.force)]
        promises += [(slot, CLASSES[first]) for slot in range(-CLASSES[first].window, 0)]
        for slot, r in promises:
            assert spent[max(slot, 0) : max(slot + r.window, 0)].sum() <= r.epsilon
            if slot >= 0 and spent[slot]:
                assert spent[max(slot + 1 - r.window, 0) : slot + 1].sum() <= r.epsilon


# No promise is ever broken, by the naive sum and by the devices' filter. Everybody is asked
# within one window from the first slot that the rule allows, and then once a window. State goes
# through bytes between slots.
@settings(max_examples=80)
@given(st.lists(st.integers(0, len(CLASSES) - 1), min_size=8, max_size=8), histories)
def test_no_history_breaks_a_promise(start, history):
    class_of = np.array(start, np.int32)
    mechanism = Rotation("rotation", Users(CLASSES, class_of, 2))
    devices = Devices(Users(CLASSES, class_of, 2), bytes(32), longest_window=5)
    followers, values = [Follower(k) for k in start], np.zeros(8, np.int64)
    source, state = NoiseSource(bytes(32)), mechanism.start()
    for slot in range(SLOTS):
        random = source.slot(slot, b"")
        changed = {user: k for when, user, k in history if when == slot}
        if changed:
            who, what = list(changed), list(changed.values())
            state = mechanism.change(state, slot, who, what, random)
            for user, k in changed.items():
                followers[user].change(slot, k)
            class_of = np.array([one.k for one in followers], np.int32)
            devices.change(slot, Users(CLASSES, class_of, 2))
        state, ask = mechanism.begin(state, slot, random)
        for user, follower in enumerate(followers):
            follower.live(slot, user in ask.users)
        state, _ = mechanism.take(state, devices.report(ask, values), random)
        state = mechanism.decode(mechanism.encode(state))
    for follower, k in zip(followers, start, strict=True):
        follower.check(k)
