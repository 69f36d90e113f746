"""Devices of many users: no window is ever overspent, and nothing is refused without need."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms import BudgetExceeded, ConfigurationError, Requirement
from streamveil.mechanisms.local.client.population import Devices
from streamveil.mechanisms.local.oracles import supports
from streamveil.mechanisms.local.protocol import GRR, OUE, Ask, Tally, Users
from tests.mechanisms.local.recount import Recount

KEY = bytes(range(32))
UNIT = 2**40
SINGLE = 2.0**-40  # the smallest budget
LONGEST = 5


def ask(slot, users, prices, *, round_=1, oracles=None) -> Ask:
    kinds = oracles or (GRR,) * len(prices)
    return Ask(slot, round_, np.array(users, np.int32), np.array(prices, np.int64), kinds)


def same(a: Tally, b: Tally) -> bool:
    return (a.supports == b.supports).all() and (a.reports == b.reports).all()


# ---- the filter ---------------------------------------------------------------------------

requirements = st.builds(
    Requirement, st.integers(1, LONGEST), st.integers(1, 6).map(lambda units: units * SINGLE)
)


@st.composite
def populations(draw, size):
    classes = draw(st.lists(requirements, min_size=1, max_size=3, unique=True))
    class_of = draw(st.lists(st.integers(0, len(classes) - 1), min_size=size, max_size=size))
    return Users(tuple(classes), np.array(class_of, np.int32), 2)


@st.composite
def stories(draw):
    """A population, and what happens to it: who is asked for what, who changes, restarts."""
    size = draw(st.integers(1, 3))
    users = draw(populations(size))
    everybody = st.just(list(range(size)))
    some = st.lists(st.integers(0, size - 1), unique=True).map(sorted)
    asking = st.tuples(
        st.just("ask"),
        st.integers(0, 1) | st.integers(0, 7),  # slots later
        everybody | some,
        st.lists(st.integers(1, 2) | st.integers(1, 6), min_size=3, max_size=3),
    )
    changing = st.tuples(st.just("change"), st.integers(1, 3), populations(size))
    event = st.one_of(asking, asking, asking, changing, st.just(("restart",)))
    events = st.lists(event, min_size=5, max_size=30)
    return users, draw(events)


def live(users, events, longest):
    """Drive devices and a naive recount side by side."""
    devices = Devices(users, KEY, longest)
    naive = [Recount(users.classes[k]) for k in users.class_of]
    values = np.zeros(len(naive), np.int64)
    slot, round_ = -3, 0
    for kind, *event in events:
        if kind == "restart":
            devices = Devices.decode(devices.encode(), users, KEY, longest)
        elif kind == "change":
            gap, users = event
            slot, round_ = slot + gap, 0
            devices.change(slot, users)
            for user, one in enumerate(naive):
                wanted = users.classes[users.class_of[user]]
                if one.in_force(slot) != wanted:
                    one.change(slot, wanted)
        else:
            gap, asked, units = event
            if gap == 0 and round_ == 2:
                continue
            slot, round_ = slot + gap, round_ + 1 if gap == 0 else 1
            prices = np.array(units[: len(users.classes)])
            wanted = prices[users.class_of]
            fits = all(naive[user].allows(slot, wanted[user]) for user in asked)
            query = ask(slot, asked, prices, round_=round_)
            if fits:
                tally = devices.report(query, values)
                assert tally.reports.sum() == len(asked)
                for user in asked:
                    naive[user].spend(slot, wanted[user])
            else:
                with pytest.raises(BudgetExceeded):
                    devices.report(query, values)
                round_ -= 1
        assert devices.spent.tolist() == [one.spent.get(slot, 0) for one in naive]


# Devices refuse exactly what the naive recount finds too much for anybody: under any asks, changes
# of requirement and restarts.
@settings(max_examples=250)
@given(stories())
def test_devices_refuse_exactly_what_overspends(story):
    users, events = story
    live(users, events, LONGEST)


# The same where requirements are fixed, and reports are forgotten as soon as can be.
@settings(max_examples=100)
@given(stories())
def test_devices_of_fixed_requirements(story):
    users, events = story
    live(users, [event for event in events if event[0] != "change"], None)


def refusal_free_slot(devices, first, price) -> int:
    """First slot in which the only user can pay a price."""
    for slot in range(first, first + 100):
        try:
            devices.report(ask(slot, [0], [price]), np.zeros(1, np.int64))
        except BudgetExceeded:
            continue
        return slot
    raise AssertionError("never")


# What was promised holds to its end, and the new requirement looks back: with the last report in
# slot 0 and a change in slot b, all of the new budget can be paid when both allow.
@pytest.mark.parametrize("old", [(1, 1.0), (3, 1.0), (8, 1.0), (8, 4.0)])
@pytest.mark.parametrize("new", [(3, 4.0), (8, 4.0), (2, 9.0)])
@pytest.mark.parametrize("change", [1, 2, 6])
def test_who_changes_waits(old, new, change):
    devices = Devices(only(old), KEY, 8)
    devices.report(ask(0, [0], [int(old[1] * UNIT)]), np.zeros(1, np.int64))
    devices.change(change, only(new))
    paid = refusal_free_slot(devices, change, int(new[1] * UNIT))
    promised = change - 1 + old[0] if new[1] > old[1] else change
    assert paid == (max(promised, old[0], new[0]) if old != new else max(change, old[0]))


# A requirement promises nothing about slots before it was in force: what was spent then fills no
# window of it that opened later.
def test_a_promise_begins_with_its_requirement():
    devices, values = Devices(only((1, 6.0)), KEY, 5), np.zeros(1, np.int64)
    devices.report(ask(0, [0], [6 * UNIT]), values)
    devices.change(1, only((5, 1.0)))
    devices.change(2, only((1, 6.0)))
    with pytest.raises(BudgetExceeded, match="was promised 1 over 5 slots before"):
        devices.report(ask(2, [0], [2 * UNIT]), values)
    devices.report(ask(2, [0], [UNIT]), values)
    assert refusal_free_slot(devices, 3, UNIT) == 6


def only(requirement) -> Users:
    return Users((Requirement(*requirement),), np.zeros(1, np.int32), 2)


def test_refusals_name_user_and_figures():
    users = Users((Requirement(3, 1.0), Requirement(5, 2.0)), np.array([0, 1], np.int32), 2)
    devices, values = Devices(users, KEY, 5), np.zeros(2, np.int64)
    devices.report(ask(0, [0, 1], [UNIT, UNIT]), values)
    with pytest.raises(
        BudgetExceeded,
        match=r"slot 3 by user 1 with Requirement\(window=5, epsilon=2.0\): requested 1.5 epsilon, "
        r"remaining 1 in their window, difference 0.5",
    ):
        devices.report(ask(3, [0, 1], [UNIT, 3 * UNIT // 2]), values)
    assert devices.spent.tolist() == [0, 0]  # nobody reported
    devices.change(4, Users((Requirement(1, 9.0),), np.zeros(2, np.int32), 2))
    with pytest.raises(BudgetExceeded, match="by user 0, who was promised 1 over 3 slots before"):
        devices.report(ask(4, [0], [2 * UNIT]), values)


# ---- what makes no sense --------------------------------------------------------------------

PEOPLE = Users((Requirement(2, 1.0), Requirement(3, 2.0)), np.array([0, 1, 1], np.int32), 3)


@pytest.mark.parametrize(
    ("query", "values", "message"),
    [
        (ask(4, [0], [1, 1], round_=1), [0, 0, 0], "round 1 of slot 4 does not follow round 1"),
        (ask(3, [0], [1, 1], round_=2), [0, 0, 0], "slot 3 does not follow round 1 of slot 4"),
        (ask(5, [0], [1, 1], round_=3), [0, 0, 0], "round 3 of slot 5 is neither 1 nor 2"),
        (ask(5, [1, 0], [1, 1]), [0, 0, 0], "ascending users from 0 to 2"),
        (ask(5, [1, 1], [1, 1]), [0, 0, 0], "ascending users from 0 to 2"),
        (ask(5, [3], [1, 1]), [0, 0, 0], "ascending users from 0 to 2"),
        (ask(5, [-1], [1, 1]), [0, 0, 0], "ascending users from 0 to 2"),
        (ask(5, [0], [1]), [0, 0, 0], "an ask of 2 classes has 1 prices and 1 oracles"),
        (ask(5, [0], [0, 1]), [0, 0, 0], "no oracle 'grr' for 0 units"),
        (ask(5, [0], [-1, 1]), [0, 0, 0], "amounts, none negative"),
        (ask(5, [0], [1, 1], oracles=("x", GRR)), [0, 0, 0], "no oracle 'x'"),
        (ask(5, [0], [1, 1]), [0, 0], "values must be 3 whole numbers"),
        (ask(5, [0], [1, 1]), [0.5, 0, 0], "values must be 3 whole numbers"),
        (ask(5, [1], [1, 1]), [0, 3, 0], "value 3 is none of the 3 symbols"),
    ],
)
def test_asks_that_make_no_sense_cost_nothing(query, values, message):
    devices = Devices(PEOPLE, KEY)
    devices.report(ask(4, [0, 1], [UNIT, UNIT]), np.zeros(3, np.int64))
    before = devices.encode()
    with pytest.raises(ValueError, match=message):
        devices.report(query, np.array(values))
    assert devices.encode() == before


def test_changes_that_cannot_be():
    with pytest.raises(ConfigurationError, match="longest window that a user may ask for"):
        Devices(PEOPLE, KEY).change(1, PEOPLE)
    with pytest.raises(ConfigurationError, match="window of 3 slots is longer than the 2"):
        Devices(PEOPLE, KEY, 2)
    devices = Devices(PEOPLE, KEY, 3)
    devices.report(ask(4, [0], [1, 1]), np.zeros(3, np.int64))
    with pytest.raises(ConfigurationError, match="window of 4 slots is longer than the 3"):
        devices.change(5, Users((Requirement(4, 1.0),), np.zeros(3, np.int32), 3))
    with pytest.raises(ValueError, match="2 users take the place of 3"):
        devices.change(5, Users(PEOPLE.classes, np.zeros(2, np.int32), 3))
    with pytest.raises(ValueError, match="from slot 4 on, but slot 4 was asked"):
        devices.change(4, PEOPLE)


def test_state_of_other_users_is_refused():
    state = Devices(PEOPLE, KEY).encode()
    others = Users(PEOPLE.classes, np.array([0, 0, 1], np.int32), 3)
    with pytest.raises(ConfigurationError, match="another configuration"):
        Devices.decode(state, others, KEY)


# ---- reports --------------------------------------------------------------------------------


# Who is asked the same for the same values reports the same, in any process; anything else has
# other noise.
@pytest.mark.parametrize("kind", [GRR, OUE])
def test_noise_is_replayed_for_the_same_input_only(kind):
    n = 400
    users = Users((Requirement(1, 1.0),) * 2, np.arange(n, dtype=np.int32) % 2, 9)
    values = np.arange(n) % 9
    everybody = np.arange(n)

    def tally(key=KEY, slot=0, round_=1, who=everybody, prices=(UNIT, UNIT), values=values):
        return Devices(users, key).report(
            ask(slot, who, prices, round_=round_, oracles=(kind, kind)), values
        )

    first = tally()
    assert same(first, tally())
    assert same(first, tally(values=values.astype(np.int16)))
    moved = np.roll(values, 18)  # as many of each class and value
    changed = [
        {"key": bytes(32)},
        {"slot": 1},
        {"round_": 2},
        {"prices": (UNIT - 1, UNIT)},
        {"values": moved},
    ]
    for other in changed:
        assert not same(first, tally(**other)), other


# Summed up, or one by one: the same reports.
def test_a_tally_is_the_sum_of_reports():
    rng = np.random.default_rng(0)
    users = Users(
        tuple(Requirement(1, e) for e in (1.0, 2.0, 3.0)), rng.integers(0, 3, 500).astype("i4"), 20
    )
    values = rng.integers(0, 20, 500)
    who = np.flatnonzero(rng.random(500) < 0.5)
    query = ask(0, who, [UNIT, 2 * UNIT, 3 * UNIT], oracles=(OUE, GRR, OUE))
    tally = Devices(users, KEY).report(query, values)
    counted = Tally(np.zeros((3, 20), np.int64), np.zeros(3, np.int64))
    asked = []
    for k, reporters, reports in Devices(users, KEY).reports(query, values):
        assert (users.class_of[reporters] == k).all()
        assert len(reporters) == len(reports)
        counted.supports[k] += supports(query.oracles[k], 20, reports)
        counted.reports[k] += len(reports)
        asked.extend(reporters.tolist())
    assert sorted(asked) == who.tolist()
    assert same(tally, counted)


def test_nobody_is_asked():
    devices = Devices(PEOPLE, KEY)
    tally = devices.report(ask(0, [], [0, 0]), np.zeros(3, np.int64))
    assert not tally.reports.any()
    assert not devices.spent.any()


# A user's history takes less than 16 bytes, where all report once in a window, or everybody does in
# every slot.
@pytest.mark.slow
@pytest.mark.parametrize("by_turns", [True, False])
def test_little_memory_for_each_user(by_turns):
    n, windows = 100_000, (40, 80, 120)
    rng = np.random.default_rng(0)
    users = Users(
        tuple(Requirement(w, 1.0) for w in windows), rng.integers(0, 3, n).astype(np.int32), 2
    )
    values, turns = np.zeros(n, np.int8), rng.integers(0, 240, n)
    window_of = np.array(windows)[users.class_of]
    tracemalloc.start()
    try:
        devices = Devices(users, KEY)
        for slot in range(125):
            who = np.flatnonzero((turns - slot) % window_of == 0) if by_turns else np.arange(n)
            prices = [UNIT // (1 if by_turns else w) for w in windows]
            devices.reports(ask(slot, who, prices), values)
        del who
        assert tracemalloc.get_traced_memory()[0] < 16 * n
    finally:
        tracemalloc.stop()
    assert len(devices.encode()) < 16 * n
