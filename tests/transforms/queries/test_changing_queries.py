"""Query sets under requirements that change: what users pay, on every host, from state to state."""

from unittest import mock

import numpy as np
import pytest

from streamveil.engine.count.query_limits import QueryShard
from streamveil.engine.stream.query_plan import columns_for
from streamveil.mechanisms import (
    Categories,
    ConfigurationError,
    InputLost,
    Registry,
    Requirement,
    Slots,
)
from streamveil.mechanisms.core.records import parse_time
from streamveil.mechanisms.presence import Limit, changing
from streamveil.mechanisms.queries.conditions import Condition
from streamveil.mechanisms.queries.cuts import Months
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.statistics import DistinctUsers, Mean
from streamveil.transforms.release_plan import PrivateAnswers
from tests.transforms.queries.test_months import batch, published
from tests.transforms.stand_ins import WithChanges
from tests.transforms.test_changing import NOBODY, change_batch

DAY = Slots.of("1d")
FIRST = DAY.index(parse_time("2024-01-20"))
LAST = DAY.index(parse_time("2024-03-20")) - 1
USERS = [f"u{i}" for i in range(30)]
LEVELS = (2.0, 6.0, 20.0)
WINDOW = 20
REGISTRY = Registry.of({user: (WINDOW - i % 3, LEVELS[i % 3]) for i, user in enumerate(USERS)})
AB = Categories(("a", "b"))
QUERIES = (
    Query("days", 1, ("place",), AB),
    Query("speed", 7, statistic=Mean("speed", 0, 100)),
    Query("people", Months(1, 1), ("place",), AB, statistic=DistinctUsers(), max_contributions=2),
)


def plan(*, queries=QUERIES, registry=REGISTRY, **options):
    asked = QuerySet(DAY, queries)
    options = {"noise_key": bytes(32), "first_slot": FIRST, "last_slot": LAST, **options}
    columns = columns_for(asked, "user", "time")
    return PrivateAnswers(asked, registry, columns, **{"changing": True, **options})


def rows_of(first=FIRST, last=LAST, users=(*USERS, "x0", "x1")):
    found = []
    for slot in range(first, last + 1):
        draw = np.random.default_rng([11, slot])
        for user in draw.choice(users, 12, replace=False):
            found.append((str(user), "ab"[draw.integers(2)], slot, float(draw.integers(100))))
    return found


CHANGES = [
    ("u0", FIRST, (20, 20.0, 20, 20.0)),
    ("u1", FIRST + 3, (20, 2.5, 20, 2.5)),
    ("u1", FIRST + 5, (20, 20.0, 20, 20.0)),
    ("u2", FIRST + 9, NOBODY),
    ("u2", FIRST + 11, (4, 6.0, 4, 6.0)),
    ("u3", FIRST + 13, (20, 20.0, 20, 6.0)),
    ("u4", FIRST + 20, (20, 0.5, 20, 0.5)),
    ("x0", FIRST + 15, (20, 6.0, 20, 6.0)),
    ("x0", FIRST + 30, NOBODY),
]


# ---- what users pay ------------------------------------------------------------------------------


def classes_of_run(here, made, changes, rows):
    """The run, and the class of each user in each slot of each query who is there."""
    found, before = {}, QueryShard._layers

    def layers(self, users, slots, names):
        classes, layer = before(self, users, slots, names)
        if names is None:
            for user, slot, k in zip(users.tolist(), slots.tolist(), classes.tolist(), strict=True):
                found[self._number, slot, str(self._logic.registry.users[user])] = k
        return classes, layer

    with mock.patch.object(QueryShard, "_layers", layers):
        ran = here(WithChanges(made, change_batch(changes)), [batch(rows, 24)])
    return ran, found


def promises_of(user, changes):
    """Window and epsilon in force in each base slot, ahead and back; None where there is none."""
    one = REGISTRY.classes[REGISTRY.class_of[USERS.index(user)]]
    now, found = (one.window, one.epsilon, one.window, one.epsilon), []
    mine = {slot: asked for name, slot, asked in changes if name == user}
    for slot in range(FIRST, LAST + 1):
        now = mine.get(slot, now)
        found.append(None if None in now else now)
    return found


def overspent(ran, classes, changes, queries=QUERIES):
    """Windows of users of which all queries together cost more than was promised."""
    paid = {}
    for entry in ran.ledger:
        number = [one.name for one in queries].index(entry.query)
        for user in USERS:
            k = classes.get((number, entry.slot, user), -1)
            if k >= 0:
                booked = entry.first_base_slot, entry.last_base_slot, float(entry.spent[k])
                paid.setdefault(user, []).append(booked)
    broken = set()
    for user, costs in paid.items():
        promised = promises_of(user, changes)
        for slot, asked in enumerate(promised, FIRST):
            back = promised[max(slot - WINDOW + 1 - FIRST, 0)]
            for start, end, most in (
                (slot, slot + asked[2], asked[3]) if asked else (0, 0, 0),
                (slot - back[0] + 1, slot + 1, back[1]) if back else (0, 0, 0),
            ):
                cost = sum(units for first, last, units in costs if first < end and start <= last)
                if cost > most * (1 + 1e-9):
                    broken.add((user, slot))
    return broken


def random_changes(seed):
    random = np.random.default_rng(seed)
    levels = [2.0, 2.5, 6.0, 7.0, 20.0, None]
    found = {}
    for user in USERS[:20]:
        for slot in random.choice(np.arange(FIRST, LAST), random.integers(1, 6), replace=False):
            level = levels[random.integers(len(levels))]
            window = int(random.integers(1, WINDOW + 1))
            asked = NOBODY if level is None else (window, level, window, level)
            found[user, int(slot)] = asked
    return [(user, slot, asked) for (user, slot), asked in sorted(found.items())]


ALL_THERE = [(user, "a", slot, 1.0) for user in USERS for slot in range(FIRST, LAST + 1)]


@pytest.mark.parametrize("seed", range(3))
def test_no_window_of_a_user_costs_more_than_was_promised(here, seed):
    changes = random_changes(seed)
    ran, classes = classes_of_run(here, plan(), changes, ALL_THERE)
    assert len(ran.ledger) == 60 + 9 + 3
    assert not overspent(ran, classes, changes)


def without_overlap(self):
    same = np.append(self._users[1:] == self._users[:-1], False)[: len(self._users)]
    return np.where(same, np.append(self._starts[1:], changing.NEVER)[: len(same)], changing.NEVER)


def forgetting(self, slot):
    self._take(array[:0] for array in self.arrays())


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param({"_until": without_overlap}, id="a requirement ends within the slot"),
        pytest.param({"forget": forgetting}, id="what was asked for is forgotten"),
    ],
)
def test_mutants_are_convicted(here, mutant):
    with mock.patch.multiple(changing.Asking, **mutant):
        found = [
            overspent(
                *classes_of_run(here, plan(), random_changes(seed), ALL_THERE), random_changes(seed)
            )
            for seed in range(3)
        ]
    assert any(found)


def test_what_is_asked_for_as_the_stream_begins_is_in_force_within_a_slot(here):
    """No earlier base slot of the slot is in the stream, so nobody waits for the next one."""
    asked = [("u1", FIRST, (20, 2.0, 20, 2.0)), ("x0", FIRST, (20, 6.0, 20, 6.0))]
    rows = [(user, "a", slot, 1.0) for user in ("u1", "x0") for slot in range(FIRST, LAST + 1)]
    for more in ({}, LIMITED):
        _, classes = classes_of_run(here, plan(**more), asked, rows)
        assert {k for (_, _, user), k in classes.items() if user == "u1"} == {0}
    ran = here(WithChanges(plan(), change_batch(asked)), [batch(rows, 24)])
    assert not ran.dead_letters


# ---- hosts and states ----------------------------------------------------------------------------

LIMITED = {"limit": Limit(1), "longest_window": 90}


def letters(ran):
    return sorted((letter["reason"], letter["record"]) for letter in ran.dead_letters)


@pytest.mark.parametrize("more", [{}, LIMITED])
def test_beam_and_streams_give_what_a_call_gives(run_on, here, kit, more):
    rows = rows_of()
    whole = here(WithChanges(plan(**more), change_batch(CHANGES)), [batch(rows, 24)])
    split = [change_batch(CHANGES[::-1][i::2]) for i in range(2)]
    ran = run_on(
        "bundle_based",
        WithChanges(plan(shards=2, **more), *split),
        [batch(rows[::2], 24), batch(rows[1::2], 24)],
    )
    assert published(ran) == published(whole)
    assert sum(len(one) for one in letters(whole))


@pytest.mark.parametrize("more", [{}, pytest.param(LIMITED, marks=pytest.mark.slow)])
def test_a_stream_follows_changes_within_a_day(run_on, kit, here, more):
    """A timeline is in hours."""
    queries = (Query("hours", 1, ("place",), AB), Query("days", 24, ("place",), AB))
    query_set = QuerySet(Slots.of("1h"), queries)
    given = {"noise_key": bytes(32), "changing": True, "first_slot": 0, "last_slot": 47, **more}

    def made():
        return PrivateAnswers(query_set, REGISTRY, columns_for(query_set, "user", "time"), **given)

    def hours(rows):
        return batch(rows, 1)

    changes = [(user, slot - FIRST + 1, asked) for user, slot, asked in CHANGES]
    rows = rows_of(0, 47)
    whole = here(WithChanges(made(), change_batch(changes)), [hours(rows)])
    transform = made()
    line = kit.timeline(transform, batch=hours)
    for slot in range(0, 48, 3):
        line.events(*[row for row in rows if slot <= row[2] < slot + 3]).advance(slot + 3)
    split = [change_batch(changes[i::2]) for i in range(2)]
    streamed = run_on("bundle_based", WithChanges(transform, *split), line, "--streaming")
    assert published(streamed) == published(whole)


@pytest.mark.parametrize("more", [{}, LIMITED])
def test_states_go_on_in_the_middle_of_slots(here, more):
    rows = rows_of()
    whole = here(WithChanges(plan(ends=False, **more), change_batch(CHANGES)), [batch(rows, 24)])
    runs, resume, first = [], None, FIRST
    for last in (FIRST + 4, FIRST + 10, FIRST + 31, LAST):
        made = plan(
            first_slot=first, last_slot=last, ends=False, resume=resume, changing=not runs, **more
        )
        now = [one for one in CHANGES if first <= one[1] <= last]
        later = [row for row in rows if first <= row[2] <= last]
        runs.append(here(WithChanges(made, change_batch(now)), [batch(later, 24)]))
        ((first, resume),) = runs[-1].state
    assert published(*runs) == published(whole)


def test_changes_of_later_slots_wait_in_the_state(here):
    rows, early = rows_of(), FIRST + 4
    options = {"ends": False}
    whole = here(WithChanges(plan(**options), change_batch(CHANGES)), [batch(rows, 24)])
    begun = plan(last_slot=early, **options)
    some = [row for row in rows if row[2] <= early]
    first = here(WithChanges(begun, change_batch(CHANGES)), [batch(some, 24)])
    ((following, state),) = first.state
    later = plan(first_slot=following, resume=state, changing=False, **options)
    rest = here(later, [batch([row for row in rows if row[2] > early], 24)])
    assert published(first, rest) == published(whole)


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"registry": Registry.of(default=(Requirement(8, 1.0), 9)), "longest_window": 4},
            "longest",
        ),
        ({"last_slot": None}, "the last slot must be known"),
        ({"first_slot": None}, "give --start"),
    ],
)
def test_what_cannot_follow_changes_says_so(here, options, words):
    with pytest.raises(ConfigurationError, match=words):
        here(WithChanges(plan(**options), change_batch(CHANGES)), [batch(rows_of(), 24)])


def test_changes_of_a_stream_that_began_without_are_refused(here):
    rows = rows_of()
    still = plan(changing=False, ends=False, last_slot=FIRST + 9)
    with pytest.raises(ConfigurationError, match="changing=True"):
        here(WithChanges(still, change_batch(CHANGES)), [batch(rows, 24)])
    ((following, state),) = here(still, [batch([r for r in rows if r[2] < FIRST + 9], 24)]).state
    with pytest.raises(ConfigurationError, match="another configuration"):
        plan(first_slot=following, resume=state)


def test_events_without_a_requirement_are_lost_by_query_and_reported_once_each(here):
    rows = [("x9", "a", FIRST, 1.0), ("u0", "a", FIRST, 1.0)]
    ran = here(WithChanges(plan(), change_batch([])), [batch(rows, 24)])
    assert [reason for reason, _ in letters(ran)] == [
        f"no requirement (query {name}, perhaps counted in others)"
        for name in ("days", "people", "speed")
    ]
    for query in ("days", "speed", "people"):
        assert ran.counters[f"events_unread of query {query}: no requirement"] == 1
    with pytest.raises(InputLost, match=r"1 of 1 events of query 'days' .* column of the user"):
        here(WithChanges(plan(), change_batch([])), [batch(rows[:1], 24)])
    few = [*((user, "a", FIRST, 1.0) for user in ("x7", "x8", "x9")), rows[1]]
    with pytest.raises(InputLost, match="3 of 4 events"):
        here(WithChanges(plan(), change_batch([])), [batch(few, 24)])


def test_a_query_all_of_whose_users_left_stops_no_other(here):
    rare = Query("rare", where=(Condition("place", ("b",)),))
    rows = [("u2", "b", FIRST + 9, 1.0), ("u0", "a", FIRST, 1.0)]
    made = plan(queries=(QUERIES[0], rare))
    ran = here(WithChanges(made, change_batch(CHANGES)), [batch(rows, 24)])
    assert ran.counters["events_unread of query rare: no requirement"] == 1
    assert ran.counters["events_counted of query days"] == 1


def test_what_was_read_by_an_earlier_run_is_no_loss_of_this_one(here):
    """A month of events of which most are of users in no table, and a pass with one event."""
    made = {"queries": QUERIES[2:], "ends": False}
    rows = [("u0", "a", FIRST, 1.0), ("x9", "a", FIRST, 1.0), ("x8", "a", FIRST, 1.0)]
    begun = plan(last_slot=FIRST + 2, **made)
    ((following, state),) = here(WithChanges(begun, change_batch([])), [batch(rows, 24)]).state
    again = plan(first_slot=following, resume=state, max_rejected=0.9, **made)
    ran = here(WithChanges(again, change_batch([])), [batch([("u1", "a", LAST - 20, 1.0)], 24)])
    assert [one.slot for one in ran.answers] == [648, 649]
