"""Releases of a query set: budgets of all queries together, noise apart, states, refusals."""

import numpy as np
import pytest

from streamveil.mechanisms import (
    MECHANISMS,
    BudgetExceeded,
    Categories,
    ConfigurationError,
    Lifetime,
    NoiseSource,
    Requirement,
    Slots,
    WindowFilter,
)
from streamveil.mechanisms.comparators import randomized_response
from streamveil.mechanisms.core.budgets import Requirements
from streamveil.mechanisms.queries.cuts import Even
from streamveil.mechanisms.queries.fusing import observed_parts
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.query_filter import QueryFilter
from streamveil.mechanisms.queries.query_stream import (
    QueryStream,
    check_mechanism,
    usual_at_start,
)
from streamveil.mechanisms.queries.statistics import Mean, Quantiles, Sum
from streamveil.mechanisms.randomness.noise import NoiseKeys
from streamveil.mechanisms.wevent import sampling

KEY = bytes(range(32))
PLACE = ("place",)
PLACES = Categories(("cafe", "park", "zoo"))
BASE = Slots.of("1h")
ASKED = Requirements((Requirement(24, 1.0), Requirement(10, 3.0)))
HOUR = Query("hour", value=PLACE, domain=PLACES)
SHIFT = Query("shift", slots=3, value=PLACE, domain=PLACES, mechanism="pba")
DAY = Query("day", slots=24, value=PLACE, domain=PLACES)


def even(queries, requirements=ASKED) -> np.ndarray:
    return np.tile(requirements.budgets // len(queries), (len(queries), 1))


def stream_of(*queries, requirements=ASKED, shares=None, key=KEY, base=BASE, **more):
    shares = even(queries, requirements) if shares is None else shares
    sizes = np.full(len(requirements), 100)
    query_set = QuerySet(base, queries)
    return QueryStream(query_set, requirements, sizes, shares, NoiseSource(key), **more)


def counts_at(stream, base_slot, scale=1000):
    shape = (len(stream.requirements), 3)
    return {
        q: np.full(shape, scale * stream.query_set.queries[q].slots, np.int64)
        for q in stream.due(base_slot)
    }


def run(stream, slots=60, state=None, first=0, scale=1000):
    state, found = state or stream.start(), []
    for base_slot in range(first, first + slots):
        state, releases = stream.release(state, base_slot, counts_at(stream, base_slot, scale))
        found.append({q: (one.counts.tolist(), one.spent.tolist()) for q, one in releases.items()})
    return state, found


def test_each_query_is_released_when_its_slot_ends():
    stream = stream_of(HOUR, SHIFT, DAY)
    state, found = run(stream, 48)
    assert [slot for slot, one in enumerate(found) if 1 in one] == list(range(2, 48, 3))
    assert [slot for slot, one in enumerate(found) if 2 in one] == [23, 47]
    assert all(0 in one for one in found)
    assert [one.next_slot for one in state.queries] == [48, 16, 2]
    assert stream.price(state, 48).keys() == {0}
    assert stream.price(state, 50).keys() == {0, 1}


def test_what_is_usual_of_a_mean_is_part_of_the_state():
    mean = Query("mean", statistic=Mean("x", 0, 10))
    stream = stream_of(HOUR, mean, requirements=ASKED)
    parts = {0: np.zeros((2, 3), np.int64), 1: np.full((2, 4), 50 * 1024, np.int64)}
    state, releases = stream.release(stream.start(), 0, parts)
    assert state.usual[0] is None
    assert state.usual[1].settled().parts.any()
    again = stream.decode(stream.encode(state))
    counts_of = [one.counts.reshape(1, -1) for one in (releases[1], releases[1])]
    errors = releases[1].stderr.reshape(1, -1) ** 2
    first, second = (
        mean.statistic.answer(counts.astype(float), errors, one.usual[1]).values
        for counts, one in zip(counts_of, (state, again), strict=True)
    )
    assert first == second
    assert again.usual[0] is None


# What is usual is a function of what was released: the true counts have no part in it.
def test_what_is_usual_follows_from_what_was_released():
    mean = Query("mean", statistic=Mean("x", 0, 10))
    stream = stream_of(mean)
    state, expected = stream.start(), usual_at_start(mean)
    true = np.full((2, 4), 50 * 1024, np.int64)
    for base_slot in range(3):
        state, releases = stream.release(state, base_slot, {0: true})
        release = releases[0]
        assert (release.counts != true.sum(axis=0)).any()
        expected = expected.after(observed_parts(mean, release))
        assert state.usual[0].encode() == expected.encode()


# Two queries whose counts are equal, one after the other, have noise of their own.
def test_noise_is_independent_by_query():
    _, found = run(
        stream_of(*(Query(name, value=PLACE, domain=PLACES, mechanism="uniform") for name in "ab"))
    )
    assert all(one[0][1] == one[1][1] for one in found)
    assert not any(one[0][0] == one[1][0] for one in found)


# A replay is the same release; anything else has other noise, of every query.
def test_noise_belongs_to_the_counts_and_the_configuration():
    _, found = run(stream_of(HOUR, SHIFT))
    assert run(stream_of(HOUR, SHIFT))[1] == found
    others = [stream_of(HOUR, SHIFT, key=bytes(32)), stream_of(HOUR, SHIFT, context={"a": b"b"})]
    for other in others:
        assert run(other)[1][2][1][0] != found[2][1][0]


# A key that takes the place of the first one in base slot 4 is that of the shift of 3 to 5.
def test_noise_keys_change_with_base_slots():
    queries = [
        Query("hour", value=PLACE, domain=PLACES, mechanism="uniform"),
        Query("shift", slots=3, value=PLACE, domain=PLACES, mechanism="uniform"),
    ]

    def released(keys):
        return run(stream_of(*queries, key=keys), 9)[1]

    first, both = released(KEY), released(NoiseKeys(KEY, ((4, bytes(32)),)))
    assert first[:4] == both[:4]
    assert first[5][1] != both[5][1]
    assert first[4][0] != both[4][0]
    later = NoiseKeys(KEY, ((5, bytes(32)), (6, bytes(range(1, 33))))).of_slots(Even(3).of)
    assert [later.at(slot)[0] for slot in range(3)] == [0, 0, 1]
    assert NoiseKeys(KEY, ((4, bytes(32)), (5, b"x" * 32))).of_slots(Even(3).of).at(1) == b"x" * 32


@pytest.mark.many
@pytest.mark.parametrize("stop", [1, 23, 24, 37])
def test_a_saved_state_goes_on_as_it_was(stop):
    stream = stream_of(HOUR, SHIFT, DAY)
    _, found = run(stream)
    state, begun = run(stream, stop)
    data = stream.encode(state)
    again = stream_of(HOUR, SHIFT, DAY)
    assert again.encode(again.decode(data)) == data
    assert begun + run(again, 60 - stop, again.decode(data), stop)[1] == found


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (
            {"queries": (HOUR, DAY)},
            "the query shift, the shares of the budget and the weights",
        ),
        ({"queries": (DAY, SHIFT, HOUR)}, "the query day and the query hour changed"),
        (
            {"queries": (HOUR, SHIFT, Query("day", slots=12, value=PLACE, domain=PLACES))},
            "query day",
        ),
        ({"adjacency": "replace"}, "the sensitivity changed"),
        ({"base": Slots.of("30m")}, "the slots changed"),
        ({"requirements": Requirements((Requirement(24, 1.0), Requirement(9, 3.0)))}, "requirem"),
        ({"shares": even((1, 2, 3)) - 1}, "the shares of the budget changed"),
        ({"context": {"columns": b"x"}}, "the columns changed"),
        ({"key": bytes(32)}, "wrong checksum"),
    ],
)
def test_state_of_another_configuration_is_refused(other, what):
    stream = stream_of(HOUR, SHIFT, DAY)
    data = stream.encode(run(stream, 3)[0])
    with pytest.raises(ConfigurationError, match=what):
        stream_of(*other.pop("queries", (HOUR, SHIFT, DAY)), **other).decode(data)


# The shares of a stream stay, so another weight would go unheard.
@pytest.mark.parametrize("asked", [{"weight": 3.0}, {"share": 0.5}])
def test_a_state_is_of_the_weights_that_were_asked_for(asked):
    stream = stream_of(HOUR)
    data = stream.encode(stream.start())
    with pytest.raises(ConfigurationError, match="the weights or shares asked for changed since"):
        stream_of(Query("hour", value=PLACE, domain=PLACES, **asked)).decode(data)


# ---- filters --------------------------------------------------------------------------------


def spend_twice(stream) -> None:
    """Break all mechanisms: each believes that it has twice its share, and says so before."""
    for one in stream.streams:
        made = one.mechanism
        made.main_cap = made.main_cap * 2
        made.rate = made.rate * 2
        made._rates.clear()


def no_queries_filter(patch) -> None:
    patch.setattr(WindowFilter, "charge", lambda *_: None)


def no_query_filter(patch) -> None:
    patch.setattr(QueryFilter, "charge", lambda *_: None)


# Where one of the filters is broken the other one still refuses; without both nothing does.
@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ((no_queries_filter,), "a window of all queries"),
        ((no_query_filter,), "their window"),
        ((), "their window"),
        ((no_queries_filter, no_query_filter), None),
    ],
)
def test_either_filter_refuses(monkeypatch, broken, message):
    for breakage in broken:
        breakage(monkeypatch)
    stream = stream_of(HOUR, DAY)
    spend_twice(stream)
    if message is None:
        run(stream)
        return
    with pytest.raises(BudgetExceeded, match=message):
        run(stream)


# Shares that add up to more than there is: every query keeps its own, all together do not.
def test_shares_beyond_all_are_refused_by_the_filter_over_all(monkeypatch):
    stream = stream_of(HOUR, Query("too", value=PLACE, domain=PLACES))
    for one in stream.streams:
        one._unspent = lambda: WindowFilter([Requirement(24, 1.0), Requirement(10, 3.0)])
    spend_twice(stream)
    with pytest.raises(BudgetExceeded, match="a window of all queries"):
        run(stream)


# ---- the ledger and revisions ---------------------------------------------------------------


def test_entries():
    stream = stream_of(HOUR, DAY)
    assert stream.entries(stream.start(), {}) == ()
    state, _ = run(stream, 23)
    state, releases = stream.release(state, 23, counts_at(stream, 23))
    hour, day = stream.entries(state, releases)
    assert [(one.query, one.first_base_slot, one.last_base_slot) for one in (hour, day)] == [
        ("hour", 23, 23),
        ("day", 0, 23),
    ]
    assert hour.classes == tuple(ASKED)
    assert hour.users.tolist() == [100, 100]
    assert (day.spent == releases[1].spent / 2**40).all()
    assert (hour.spent_in_window == state.filter.in_window / 2**40).all()
    assert (hour.spent_in_window >= hour.spent + day.spent).all()
    assert (day.spent_in_window >= hour.spent_in_window).all()


# Added up from outside: a release counts in every window that meets one of its base slots.
def test_the_ledger_is_that_of_the_fullest_window(monkeypatch):
    charged, charge = [], QueryFilter.charge

    def noted(books, base_slot, charges):
        charged.extend((first, last, (units / 2**40).tolist()) for first, last, units, _ in charges)
        charge(books, base_slot, charges)

    monkeypatch.setattr(QueryFilter, "charge", noted)
    names = {"hour": 1, "shift": 3, "day": 24}
    stream = stream_of(
        *(
            Query(name, slots=slots, value=PLACE, domain=PLACES, mechanism="uniform")
            for name, slots in names.items()
        )
    )
    state, booked = stream.start(), []
    for base_slot in range(50):
        state, releases = stream.release(state, base_slot, counts_at(stream, base_slot))
        entries = stream.entries(state, releases)
        booked += [(one.first_base_slot, one.last_base_slot, one.spent) for one in entries]
        for one in entries:
            assert one.last_base_slot - one.first_base_slot + 1 == names[one.query]
            for k, asked in enumerate(ASKED):
                fullest = max(
                    sum(
                        spent[k]
                        for first, last, spent in booked
                        if first < start + asked.window and last >= start
                    )
                    for start in range(one.first_base_slot - asked.window + 1, base_slot + 1)
                )
                assert one.spent_in_window[k] == pytest.approx(fullest, abs=1e-12)
        state = stream.decode(stream.encode(state))
    assert charged == [(first, last, spent.tolist()) for first, last, spent in booked]
    assert all(spent.all() for _, _, spent in booked)


def test_what_is_still_to_be_revised():
    stream = stream_of(HOUR, DAY, revise=3)
    state, _ = run(stream, 30)
    assert [one.slot for one in stream.rest(state, 0)] == [27, 28, 29]
    assert [one.slot for one in stream.rest(state, 1)] == [0]
    assert stream.rest(state, 0) == stream.rest(state, 1) == ()


# ---- refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "more", "message"),
    [
        (Query("q", mechanism="pba"), {"revise": 2}, "query 'q': .*cannot revise"),
        (HOUR, {"adjacency": "swap"}, "query 'hour': adjacency 'swap' is unknown"),
        (HOUR, {"shares": np.array([[0, 9]])}, "query 'hour' has no share of the budget"),
        (HOUR, {"shares": ASKED.budgets[None] + [0, 1]}, "more than all of it"),
        (HOUR, {"shares": np.array([[47, 47]])}, "query 'hour': .*leaves less than 2"),
        (HOUR, {"requirements": Requirements((Lifetime(1.0),))}, "for epsilon in a window"),
    ],
)
def test_what_cannot_be_is_refused_with_words(query, more, message):
    with pytest.raises(ConfigurationError, match=message):
        stream_of(query, **more)


def test_counts_are_of_what_is_due():
    stream = stream_of(HOUR, SHIFT)
    state = stream.start()
    with pytest.raises(ValueError, match=r"base slot 0, queries \[0\] are due; got counts of \["):
        stream.release(state, 0, counts_at(stream, 2))
    state, _ = stream.release(state, 0, counts_at(stream, 0))
    with pytest.raises(ValueError, match="slot 0 is out of order: 1 comes next"):
        stream.release(state, 0, counts_at(stream, 0))
    with pytest.raises(ValueError, match="slot 2 is out of order: 1 comes next"):
        stream.release(state, 2, counts_at(stream, 2))


# A stream need not see base slots with which nothing is due.
def test_base_slots_with_which_nothing_is_due_may_be_passed():
    long = Query("long", slots=50, value=PLACE, domain=PLACES, mechanism="pba")
    asked = SHIFT, long
    one_by_one, passing = stream_of(*asked), stream_of(*asked)
    expected, found = run(one_by_one, 100)[1], []
    state = passing.start()
    state, _ = passing.release(state, 0, {})
    for slot in passing.due_slots(1, 100):
        state, releases = passing.release(state, slot, counts_at(passing, slot))
        found.append({q: (one.counts.tolist(), one.spent.tolist()) for q, one in releases.items()})
    assert found == [one for one in expected if one]
    assert len(found) == 33 + 2


def test_slots_that_begin_after_the_end_are_not_released():
    stream = stream_of(HOUR, SHIFT, Query("long", slots=10**5), until=3)
    assert [*stream.due_slots(0, 10**7)] == [0, 1, 2, 3, 5, 10**5 - 1]
    assert (stream.due(3), stream.due(4), stream.due(5), stream.due(8)) == ((0,), (), (1,), ())


def test_lots_for_every_unit_are_refused_where_events_add_many():
    heavy, light = Sum("x", 0.0, 10.0), Quantiles("x", (0.0, 1.0, 2.0), (0.5,))
    for name in ("pba", "pbd", "uniform", "sample", "lbu", "plbu", "ablation:ledger=saving"):
        check_mechanism(Query("q", statistic=light, mechanism=name))
        with pytest.raises(
            ConfigurationError, match="an event adds many to a sum: choose adaptive"
        ):
            check_mechanism(Query("q", statistic=heavy, mechanism=name))
    for name in ("adaptive:gate=0.5", "ba", "bd", "spas"):
        check_mechanism(Query("q", statistic=heavy, mechanism=name))


def test_mechanisms_get_the_most_that_an_event_adds_to_a_cell():
    queries = (HOUR, Query("sum", statistic=Sum("x", 0.0, 10.0), max_contributions=3))
    populations = [one.mechanism.population for one in stream_of(*queries).streams]
    assert [(one.quantum, one.sensitivity) for one in populations] == [(1, 1), (1024, 3 * 1024)]


class DrawnError(Exception):
    """Lots were drawn."""


def drawn(_):
    raise DrawnError


# The registry says who draws lots, where users ask for different budgets.
@pytest.mark.parametrize("name", list(MECHANISMS))
def test_who_draws_lots(monkeypatch, name):
    for module in (sampling, randomized_response):
        monkeypatch.setattr(module, "probability_threshold", drawn)
    requirements = Requirements((Requirement(5, 0.1), Requirement(5, 3.0)))
    stream = QueryStream(
        QuerySet(BASE, (Query("q", value=PLACE, domain=PLACES, mechanism=name),)),
        requirements,
        np.array([1, 10**4]),
        requirements.budgets[None],
        NoiseSource(KEY),
    )
    if MECHANISMS[name].draws:
        with pytest.raises(DrawnError):
            run(stream, 12)
    else:
        run(stream, 12)
