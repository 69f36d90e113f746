"""The server driven slot by slot: its ledger, its state between rounds, tokens."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms import BudgetExceeded, ConfigurationError, Requirement
from streamveil.mechanisms.local.accounting.user_filters import UserFilters
from streamveil.mechanisms.local.client.population import Devices
from streamveil.mechanisms.local.protocol import GRR, Ask, LocalRelease, Tally, Users
from streamveil.mechanisms.local.stream import LocalStream
from streamveil.mechanisms.local.tokens import Tokens
from streamveil.mechanisms.randomness.noise import NoiseSource
from streamveil.mechanisms.registry import LOCAL_MECHANISMS, local_mechanism

KEY = bytes(range(32))
CLASSES = (Requirement(2, 1.0), Requirement(3, 1.0), Requirement(5, 2.0))
CAPS = [2**40, 2**40, 2**41]


def people(n=60):
    return Users(CLASSES, np.arange(n, dtype=np.int32) % 3, 4)


def stream_of(name="plpa+", users=None, context=()):
    users = users or people()
    return LocalStream(local_mechanism(name, users), NoiseSource(KEY), context=dict(context))


# ---- the ledger --------------------------------------------------------------------------------

ROUND = st.tuples(
    st.lists(st.integers(0, 11), unique=True).map(sorted) | st.just(list(range(12))),
    st.lists(st.integers(0, 3).map(lambda quarters: quarters * 2**38), min_size=3, max_size=3),
)


# Against brute force: an ask is refused exactly if it would break somebody's window.
@settings(max_examples=100)
@given(st.lists(st.lists(ROUND, max_size=2), min_size=1, max_size=9), st.integers(0, 8))
def test_no_window_of_any_user_is_overspent_and_nothing_else_is_refused(slots, written):
    users = people(12)
    books, spent = UserFilters(users), np.zeros((len(slots), 12), np.int64)
    windows = np.array([r.window for r in CLASSES])[users.class_of]
    for slot, rounds in enumerate(slots):
        books.advance(slot)
        for number, (asked, prices) in enumerate(rounds, start=1):
            ask = Ask(slot, number, np.array(asked, np.int32), np.array(prices), (GRR,) * 3)
            tried = spent.copy()
            tried[slot, asked] += ask.epsilons[users.class_of[asked]]
            sums = [tried[max(slot - w + 1, 0) :, u].sum() for u, w in enumerate(windows)]
            if (sums > np.array(CAPS)[users.class_of]).any():
                with pytest.raises(BudgetExceeded, match=f"slot {slot}"):
                    books.charge(ask, f"slot {slot}:")
                continue
            books.charge(ask, f"slot {slot}:")
            spent = tried
        if slot == written:
            books = UserFilters.decode(books.encode(), users)
        sums = np.array([spent[max(slot - w + 1, 0) :, u].sum() for u, w in enumerate(windows)])
        np.testing.assert_array_equal(books.in_window, sums)
        assert books.spent_by_class().tolist() == [spent[slot, k::3].max() for k in range(3)]
        assert books.spent_in_window().tolist() == [sums[k::3].max() for k in range(3)]
        assert books.use() == max(sums[k::3].max() / CAPS[k] for k in range(3))


@pytest.mark.parametrize(
    ("users", "price", "slot", "words"),
    [
        ([0, 0], 2**38, 4, "ascending users"),
        ([3, 0], 2**38, 4, "ascending users"),
        ([-1], 2**38, 4, "ascending users"),
        ([12], 2**38, 4, "ascending users"),
        ([0], -(2**38), 4, "none negative"),
        ([0], 2**38, 3, "slot 3 is out of order: slot 4"),
    ],
)
def test_what_would_be_booked_for_less_than_it_costs_is_refused(users, price, slot, words):
    """The last door trusts no mechanism: whoever is asked twice at once would pay once."""
    books = UserFilters(people(12), longest_window=9)
    books.charge(Ask(4, 1, np.array([0], np.int32), np.full(3, 2**39), (GRR,) * 3), "slot 4:")
    before = books.encode()
    ask = Ask(slot, 2, np.array(users, np.int32), np.full(3, price), (GRR,) * 3)
    with pytest.raises(ValueError, match=words):
        books.charge(ask, f"slot {slot}:")
    assert books.encode() == before


# ---- the stream --------------------------------------------------------------------------------


def run(stream, slots=12, rewrite=False):
    """Releases; with `rewrite` the state goes through bytes wherever it can."""
    devices = Devices(stream.users, bytes(32))
    random = np.random.default_rng(5)
    state, released = stream.start(), []
    for slot in range(slots):
        values = random.integers(4, size=stream.users.class_of.size)
        state, answer = stream.begin(state, slot)
        while not isinstance(answer, LocalRelease):
            if rewrite:
                state = stream.decode(stream.encode(state))
                assert state.asked.users.tolist() == answer.users.tolist()
            state, answer = stream.take(state, devices.report(answer, values))
        if rewrite:
            state = stream.decode(stream.encode(state))
        released.append(
            (answer.status, answer.frequencies.tolist(), state.filter.spent_by_class().tolist())
        )
    return released


@pytest.mark.parametrize("name", LOCAL_MECHANISMS)
def test_every_ask_of_a_slot_is_booked(name):
    """The charges, recomputed from what was asked, are what the filter remembers."""
    stream = stream_of(name)
    users, slots, rounds = stream.users, 12, 0
    windows = np.array([r.window for r in CLASSES])[users.class_of]
    spent = np.zeros((slots, users.class_of.size), np.int64)
    devices, state = Devices(users, bytes(32)), stream.start()
    for slot in range(slots):
        values = np.full(users.class_of.size, slot % 4)  # all move, so that something is published
        state, answer = stream.begin(state, slot)
        while not isinstance(answer, LocalRelease):
            rounds = max(rounds, answer.round)
            spent[slot, answer.users] += answer.epsilons[users.class_of[answer.users]]
            state, answer = stream.take(state, devices.report(answer, values))
        booked = [spent[max(slot - w + 1, 0) : slot + 1, u].sum() for u, w in enumerate(windows)]
        assert state.filter.in_window.tolist() == booked
    assert rounds == (1 if name in ("plbu", "lbu", "rotation") else 2)


@pytest.mark.parametrize("name", [name for name in LOCAL_MECHANISMS if name[:3] in ("rot", "plp")])
def test_state_may_be_written_at_any_time(name):
    assert run(stream_of(name), rewrite=True) == run(stream_of(name))


def test_state_of_another_configuration_is_refused():
    stream = stream_of()
    written = stream.encode(stream.start())
    fewer = dataclasses.replace(people(), class_of=people().class_of[::-1].copy())
    for other in (stream_of("plpa"), stream_of(context={"x": b"x"}), stream_of(users=fewer)):
        with pytest.raises(ConfigurationError, match="another configuration"):
            other.decode(written)


def test_slots_and_tallies_out_of_order_are_refused():
    stream = stream_of()
    with pytest.raises(ValueError, match="before any user was asked"):
        stream.take(stream.start(), Tally(np.zeros((3, 4), np.int64), np.zeros(3, np.int64)))
    state, _ = stream.begin(stream.start(), 7)
    with pytest.raises(ValueError, match="out of order"):
        stream.begin(state, 9)
    with pytest.raises(ValueError, match="waits for reports"):
        stream.begin(state, 8)


@pytest.mark.parametrize(
    ("supports", "reports"),
    [
        (np.zeros((3, 5)), np.zeros(3)),
        (np.zeros((3, 4)), np.zeros(2)),
        (np.zeros((3, 4)), np.full(3, 61)),
        (np.ones((3, 4)), np.zeros(3)),
        (np.full((3, 4), -1), np.zeros(3)),
    ],
)
def test_what_is_no_tally_of_the_ask_is_refused(supports, reports):
    stream = stream_of()
    state, _ = stream.begin(stream.start(), 0)
    with pytest.raises(ValueError, match="not a tally"):
        stream.take(state, Tally(supports.astype(np.int64), reports.astype(np.int64)))


def test_nobody_answers():
    stream = stream_of()
    state, _ = stream.begin(stream.start(), 0)
    nothing = Tally(np.zeros((3, 4), np.int64), np.zeros(3, np.int64))
    _, release = stream.take(state, nothing)
    assert isinstance(release, LocalRelease)
    assert release.status == "skipped"


# ---- tokens ------------------------------------------------------------------------------------


def test_a_token_fits_one_user_slot_round_stream_and_key():
    tokens = Tokens(KEY, "s")
    token = tokens.token(5, 1, 9)
    assert tokens.user_of(5, 1, token) == 9
    others = [(4, 1, token), (5, 2, token), (5, 1, token[:-1]), (5, 1, b""), (2**70, 1, token)]
    for i, byte in enumerate(token):
        others.append((5, 1, token[:i] + bytes([byte ^ 1]) + token[i + 1 :]))
    assert [tokens.user_of(*other) for other in others] == [None] * len(others)
    assert Tokens(KEY, "t").user_of(5, 1, token) is None
    assert Tokens(bytes(32), "s").user_of(5, 1, token) is None
    with pytest.raises(ValueError, match="5 bytes"):
        Tokens(b"short", "s")
