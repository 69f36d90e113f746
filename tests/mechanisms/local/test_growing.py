"""Users who come, leave and ask for something else between runs that go on from a saved state."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms import BudgetExceeded, Requirement
from streamveil.mechanisms.driver.saved_state import REQUIREMENTS, USERS
from streamveil.mechanisms.local.accounting.user_filters import UserFilters
from streamveil.mechanisms.local.algorithms.report_groups import AWAY
from streamveil.mechanisms.local.client.population import Devices
from streamveil.mechanisms.local.protocol import GRR, Ask, LocalRelease, Tally, Users
from streamveil.mechanisms.local.stream import LocalStream
from streamveil.mechanisms.randomness.noise import NoiseSource
from streamveil.mechanisms.registry import local_mechanism
from tests.mechanisms.local.recount import Recount

KEY = bytes(range(32))
ASKED = [
    Requirement(w, e) for w, e in [(1, 0.5), (2, 1.0), (2, 4.0), (3, 0.25), (4, 2.0), (6, 1.0)]
]
LONGEST = 6
SYMBOLS = 3
# So that randomness is the same whatever is known of later users.
SAME = {USERS: b"", REQUIREMENTS: b""}

WANTED = st.integers(0, len(ASKED) - 1)
RUN = st.tuples(
    st.integers(1, 5),  # slots
    st.dictionaries(st.integers(0, 9), st.none() | WANTED, max_size=4),  # who changes
    st.lists(WANTED, max_size=3),  # who joins
)


def stream_of(users, longest=None):
    mechanism = local_mechanism("rotation", users)
    return LocalStream(mechanism, NoiseSource(KEY), context=SAME, longest_window=longest)


def reports_to(ask, class_of, count):
    """Some tally, the same whatever classes are known."""
    reports = np.bincount(class_of[ask.users], minlength=count)
    weights = np.arange(count)[:, None] + np.arange(SYMBOLS) + ask.slot
    return Tally(reports[:, None] * weights % (reports[:, None] + 1), reports)


class Runs:
    """A server and its devices, whose states go through bytes after every run."""

    def __init__(self, wanted):
        self.classes = tuple(sorted({ASKED[k] for k in wanted}))
        first = np.array([self.classes.index(ASKED[k]) for k in wanted], np.int32)
        self.begun = len(wanted)
        self.users = Users(self.classes, first, SYMBOLS, self.begun)
        self.present = set(range(self.begun))
        self.counts = [Recount(ASKED[k]) for k in wanted]
        self.stream = stream_of(self.users)
        self.state, self.devices = self.stream.start(), Devices(self.users, KEY)
        self.asks, self.released, self.moves, self.slot = [], [], [], 0

    def go_on(self, slots):
        for _ in range(slots):
            self.state, ask = self.stream.begin(self.state, self.slot)
            users = self.state.filter.users
            assert set(ask.users.tolist()) <= self.present
            for user in ask.users.tolist():
                price = int(ask.epsilons[users.class_of[user]])
                assert self.counts[user].allows(self.slot, price)
                self.counts[user].spend(self.slot, price)
            # Devices refuse nothing: their filters are theirs.
            self.devices.report(ask, np.zeros(users.class_of.size, np.int64))
            tally = reports_to(ask, users.class_of, len(users.classes))
            self.state, release = self.stream.take(self.state, tally)
            assert isinstance(release, LocalRelease)
            assert self.stream.sizes(self.state).sum() == len(self.present)
            assert self.state.filter.use() <= 1
            self.asks.append(ask.users.tolist())
            self.released.append(release.frequencies.tolist())
            self.slot += 1

    def saved(self):
        """Go on from what was written."""
        written = self.stream.encode(self.state), self.devices.encode()
        before = self.state
        self.state = self.stream.decode(written[0])
        now, longest = self.state.filter.users, self.state.filter.longest
        self.devices = Devices.decode(written[1], now, KEY, longest)
        np.testing.assert_array_equal(self.state.filter.in_window, before.filter.in_window)
        assert (self.stream.encode(self.state), self.devices.encode()) == written

    def change(self, changing, joining):
        size = len(self.counts)
        wanted = {
            u: k
            for u, k in changing.items()
            if u < size and (k, u in self.present) != (None, False)
        }
        wanted |= {size + i: k for i, k in enumerate(joining)}
        if not wanted:
            return
        if self.state.filter.longest is None:
            asks = self.stream.asked(self.state, LONGEST)
            self.state.filter.remember(LONGEST, asks)
            self.devices.remember(LONGEST, asks)
        later = {ASKED[k] for k in wanted.values() if k is not None} - set(self.classes)
        self.classes = (*self.classes, *sorted(later))
        class_of = np.append(self.users.class_of, np.zeros(len(joining), np.int32))
        self.users = Users(self.classes, class_of, SYMBOLS, self.begun)
        self.stream = stream_of(self.users, LONGEST)
        who = np.array(sorted(wanted), np.int32)
        what = np.array(
            [
                AWAY if wanted[u] is None else self.classes.index(ASKED[wanted[u]])
                for u in sorted(wanted)
            ],
            np.int32,
        )
        self.state = self.stream.change(self.state, who, what)
        self.devices.change(self.slot, self.state.filter.users)
        self.moves.append((self.slot, who, what))
        for user, k in sorted(wanted.items()):
            if user >= size:
                self.counts.append(Recount(ASKED[k]))
            elif k is not None:
                self.counts[user].change(self.slot, ASKED[k])
            (self.present.discard if k is None else self.present.add)(user)
        assert set(self.stream.away(self.state).tolist()) == (
            set(range(len(self.counts))) - self.present
        )

    def once(self):
        """Whom one run asks, and what it releases, that knows all from the beginning."""
        mechanism = local_mechanism("rotation", self.users)
        state, asks, released = mechanism.start(), [], []
        moves = {slot: (who, what) for slot, who, what in self.moves}
        class_of = self.users.class_of.copy()
        for slot in range(self.slot):
            random = self.stream._random(slot)
            if slot in moves:
                who, what = moves[slot]
                state = mechanism.change(state, slot, who, what, random)
                class_of[who[what != AWAY]] = what[what != AWAY]
            state, ask = mechanism.begin(state, slot, random)
            tally = reports_to(ask, class_of, len(self.classes))
            state, release = mechanism.take(state, tally, random)
            asks.append(ask.users.tolist())
            released.append(release.frequencies.tolist())
        return asks, released


# No promise to anybody is broken over any window, added up naively in exact integers; no device
# refuses; and the parts are one run that knows who will come.
@settings(max_examples=60)
@given(st.lists(WANTED, min_size=1, max_size=7), st.integers(1, 8), st.lists(RUN, max_size=6))
def test_runs_over_a_growing_population_keep_every_promise(wanted, first, runs):
    stream = Runs(wanted)
    stream.go_on(first)
    for slots, changing, joining in runs:
        stream.saved()
        stream.change(changing, joining)
        stream.saved()
        stream.go_on(slots)
    asks, released = stream.once()
    assert stream.asks == asks
    np.testing.assert_allclose(stream.released, released, atol=1e-12)


def test_whom_the_stream_began_with_has_the_same_turns_whoever_comes():
    wanted = [1, 2, 4] * 5
    stays, grows = Runs(wanted), Runs(wanted)
    for stream in (stays, grows):
        stream.go_on(5)
    grows.change({}, [0, 5, 2])
    for stream in (stays, grows):
        stream.go_on(12)
    assert [[u for u in asked if u < 15] for asked in grows.asks] == stays.asks
    assert {u for asked in grows.asks for u in asked} == set(range(18))


def filters(longest=None):
    users = Users((Requirement(1, 1.0), Requirement(2, 1.0)), np.zeros(2, np.int32), 2)
    return UserFilters(users, longest)


def ask_of(slot, users=(0, 1), units=2**40):
    prices = np.array([units, units], np.int64)
    return Ask(slot, 1, np.array(users, np.int32), prices, (GRR, GRR))


# What was spent before anybody could change counts against a longer window.
def test_filters_remember_what_is_replayed():
    asks = [ask_of(slot) for slot in range(4)]
    short = filters()
    for ask in asks:
        short.charge(ask, "no:")
    short.remember(2, asks[-2:])
    short.change(4, dataclasses.replace(short.users, class_of=np.array([1, 0], np.int32)))
    assert short.in_window.tolist() == [2**40, 0]
    assert short.since_change.tolist() == [0, 0]
    with pytest.raises(BudgetExceeded, match="no: user 0 with"):
        short.charge(ask_of(4, [0], 1), "no:")
    short.charge(ask_of(4, [1]), "no:")
    short.charge(ask_of(5, [0]), "no:")


@pytest.mark.parametrize("asks", [[], [ask_of(2)], [ask_of(3, [0])], [ask_of(3, units=2**39)]])
def test_filters_refuse_something_else(asks):
    short = filters()
    for slot in range(4):
        short.charge(ask_of(slot), "no:")
    with pytest.raises(ValueError, match="add up to something else"):
        short.remember(2, asks)


def test_filters_of_the_first_version_are_read(monkeypatch):
    books = filters()
    books.charge(ask_of(3, [1], 2**39), "no:")
    with monkeypatch.context() as patch:
        patch.setattr(UserFilters, "SCHEMAS", {1: UserFilters.SCHEMAS[1]})
        written = books.encode()
    read = UserFilters.decode(written, books.users)
    assert (read.slot, read.in_window.tolist(), read.longest) == (3, [0, 2**39], None)
