"""Users count in a few slots of each query: the theorem over all small cases, and the filter."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms import (
    BudgetExceeded,
    ConfigurationError,
    Lifetime,
    NoiseSource,
    Requirement,
)
from streamveil.mechanisms.core.budgets import Requirements, to_units
from streamveil.mechanisms.core.records import ADD_REMOVE, REPLACE
from streamveil.mechanisms.driver.present_stream import Presence
from streamveil.mechanisms.presence.choice import Auto
from streamveil.mechanisms.presence.kept_share import Beyond
from streamveil.mechanisms.presence.limits import EVERY_SLOT, Limit
from streamveil.mechanisms.protocol import SlotRelease
from streamveil.mechanisms.queries.cuts import Months, cut_of
from streamveil.mechanisms.queries.limits import (
    LimitedFilter,
    LimitedQuery,
    LivedQuery,
    neighbours_of,
    presences_of,
    requirements_of,
)
from streamveil.mechanisms.queries.queries import QuerySet
from streamveil.mechanisms.queries.query_filter import Charge
from streamveil.mechanisms.queries.query_stream import QueryStream
from streamveil.mechanisms.queries.shares import plan_shares
from streamveil.mechanisms.queries.slot_answers import SlotAnswer
from streamveil.mechanisms.queries.statistics import Mean, Sum
from tests.mechanisms.presence.all_ways import calendar
from tests.mechanisms.queries.asking import query

BASE = 8
"""Base slots of all small cases."""


# ---- the theorem ----------------------------------------------------------------------------


def contents(slots: int) -> np.ndarray:
    """What a user did in each slot of a query: the base slots with events, as bits.

    For all ways to be there in base slots, shape (2**BASE, slots of the query).
    """
    ways = np.arange(1 << BASE)
    return np.stack([(ways >> first) & ((1 << slots) - 1) for first in range(0, BASE, slots)], 1)


def contributed(slots: int, window: int, limit: Limit, phase: int) -> np.ndarray:
    """The same, 0 in slots of the query that do not count."""
    found = contents(slots)
    number = found.shape[1]
    there = ((found > 0) << np.arange(number)).sum(axis=1)
    counts = calendar(number, cut_of(slots).most_in(window), limit.max_slots, limit.blocks, phase)
    return np.where(counts[there][:, None] >> np.arange(number) & 1, found, 0)


def most_units(slots: int, window: int, limit: Limit, adjacency: str) -> int:
    """By how many units two inputs differ at most, whatever the user did in a window and around it.

    A unit is what one input contributes to a slot.
    """
    length, ways, most = -(-cut_of(slots).most_in(window) // limit.blocks), np.arange(1 << BASE), 0
    for phase, start in itertools.product(range(length), range(BASE - window + 1)):
        table = contributed(slots, window, limit, phase)
        inside = ((1 << window) - 1) << start
        others = np.unique(ways & inside) if adjacency == REPLACE else [0]
        for other in others:
            beside = table[ways & ~inside | other]
            units = np.where(table == beside, 0, (table > 0).astype(int) + (beside > 0))
            most = max(most, int(units.sum(axis=1).max()))
    return most


CASES = [
    (slots, window, limit, adjacency)
    for slots, window in itertools.product((1, 2, 3, 4), (2, 3, 4, 5, 6))
    for limit in (Limit(1, 1), Limit(1, 2), Limit(2, 1), Limit(2, 2))
    for adjacency in (ADD_REMOVE, REPLACE)
    if limit.applies(
        Requirement(cut_of(slots).most_in(window), 1.0), neighbours_of(query("q", slots), adjacency)
    )
]


# What `presence/limits.py` prices, in the slots of a query: under `replace` a price is for a change
# of two units.
@pytest.mark.parametrize(("slots", "window", "limit", "adjacency"), CASES)
def test_no_window_changes_more_than_is_paid_for(slots, window, limit, adjacency):
    neighbours = neighbours_of(query("q", slots), adjacency)
    over = Requirement(cut_of(slots).most_in(window), 1.0)
    paid = limit.slots(over, neighbours) * (2 if neighbours == REPLACE else 1)
    assert most_units(slots, window, limit, adjacency) <= paid


# A mutant that prices the slots of a longer query as if their events were removed whole.
def test_slots_that_a_window_has_in_part_cost_more():
    limit, slots, window = Limit(1, 1), 2, 4
    over = Requirement(cut_of(slots).most_in(window), 1.0)
    assert most_units(slots, window, limit, ADD_REMOVE) > limit.slots(over, ADD_REMOVE)


# Of a lifetime: all that the user did is removed, or replaced. A slot is met whole or not at all.
def lived(slots: int, in_life: int) -> np.ndarray:
    """What a user contributes to each slot of a query, 0 after the first few: as `contributed`."""
    found = contents(slots)
    return np.where((found > 0).cumsum(axis=1) <= in_life, found, 0)


@pytest.mark.parametrize("slots", [1, 2, 3, 4])
@pytest.mark.parametrize("in_life", [1, 2, 3])
def test_no_lifetime_changes_more_than_is_paid_for(slots, in_life):
    limit, table = Limit(None, in_life=in_life), lived(slots, in_life)
    paid = limit.slots(Lifetime(1.0))
    assert int((table > 0).sum(axis=1).max()) == min(paid, table.shape[1])
    counted = (table > 0).astype(int)
    most = 0
    for other, there in zip(table, counted, strict=True):
        units = np.where(table == other, 0, counted + there)
        most = max(most, int(units.sum(axis=1).max()))
    assert most <= 2 * paid  # under `replace` a price is for a change of two units


# A mutant that takes a part of a lifetime for all of it: what stays counts in place of the rest.
def test_a_part_of_a_lifetime_costs_more():
    table = lived(1, 1)
    ways = np.arange(1 << BASE)
    units = ((table[ways] > 0) != (table[ways & ~1] > 0)).sum(axis=1)
    assert units.max() > Limit(None, in_life=1).slots(Lifetime(1.0))


# ---- limits of queries and classes ----------------------------------------------------------

ASKED = Requirements([Requirement(48, 1.0), Requirement(7, 0.5)])
SIZES = np.array([400, 300])
LIFE = Requirements([Lifetime(1.0)])


def presences(queries, limit, requirements=ASKED, adjacency=ADD_REMOVE):
    query_set = QuerySet("1h", queries)
    _, shares = plan_shares(query_set, requirements, SIZES[: len(requirements)])
    return query_set, shares, presences_of(query_set, limit, requirements, shares, adjacency)


def test_limits_are_in_slots_of_each_query_and_left_out_where_they_do_not_pay():
    queries = [query("hour"), query("shift", 4), query("day", 24)]
    _, shares, found = presences(queries, Limit(2))
    assert [one.adjacency for one in found] == [ADD_REMOVE, REPLACE, REPLACE]
    assert [one.limits for one in found] == [
        (Limit(2), EVERY_SLOT),
        (EVERY_SLOT, EVERY_SLOT),
        (EVERY_SLOT, EVERY_SLOT),
    ]
    for one, asked, units in zip(found, queries, shares, strict=True):
        assert one.requirements == requirements_of(asked, ASKED, units)
        assert (to_units([each.epsilon for each in one.requirements]) == units).all()
    _, _, (_, shift, _) = presences(queries, Limit(1))
    assert shift.limits == (Limit(1), EVERY_SLOT)


def test_what_limits_nobody_is_refused():
    with pytest.raises(ConfigurationError, match=r"max_slots=20 .* at most max_slots=4"):
        presences([query("hour"), query("day", 24)], Limit(20))
    with pytest.raises(ConfigurationError, match="the limit is for a lifetime"):
        presences([query("hour")], Limit(None, in_life=3))
    with pytest.raises(ConfigurationError, match=r"give Limit\(None, in_life=2\)"):
        presences([query("hour")], Limit(2), requirements=LIFE)


def test_users_have_numbers_of_their_own_where_these_pay_for_a_query():
    query_set = QuerySet("1h", [query("hour"), query("day", 24)])
    requirements = Requirements([Requirement(48, 1.0), Requirement(24, 0.5)])
    _, shares = plan_shares(query_set, requirements, SIZES)
    asked = (query_set, None, requirements, shares, ADD_REMOVE)
    hour, day = presences_of(*asked, own=(3, None))
    assert hour.limits == (Limit(3), EVERY_SLOT)
    assert day.limits == (EVERY_SLOT, EVERY_SLOT)
    assert presences_of(*asked, own=(None, None)) is None
    hour, _ = presences_of(query_set, Limit(1), *asked[2:], own=(3, None))
    assert hour.limits == (Limit(3), Limit(1))
    with pytest.raises(ConfigurationError, match=r"ann: max_slots=9 .* of query 'hour', of 1h"):
        presences_of(*asked, own=(3, 9), named=["ben", "ann"].__getitem__)


def test_a_public_rate_chooses_by_the_length_of_slots():
    query_set = QuerySet("1h", [query("hour"), query("shift", 4), query("day", 24)])
    requirements = Requirements([Requirement(480, 1.0)])
    _, shares = plan_shares(query_set, requirements, SIZES[:1])
    made = presences_of(query_set, Auto(0.01), requirements, shares, ADD_REMOVE)
    most = [one.limits[0].max_slots for one in made]
    assert most[0] == most[1] == 6  # slots of 4 hours are fewer, and users are in more of them
    assert made[2].limits[0].is_none
    assert presences_of(query_set, Auto(0.9), requirements, shares, ADD_REMOVE) is None


def test_of_a_lifetime_each_query_limits_its_slots_alike():
    queries = [query("hour"), query("day", 24)]
    _, shares, found = presences(queries, Limit(None, in_life=3), LIFE)
    for one, units in zip(found, shares, strict=True):
        assert one.adjacency == ADD_REMOVE
        assert one.requirements == Requirements([Lifetime(math.ldexp(int(units[0]), -40))])
        assert one.limits == (Limit(None, in_life=3),)


# ---- the filter -----------------------------------------------------------------------------


def of_units(window: int, units: int) -> Requirement:
    return Requirement(window, math.ldexp(units, -40))


def reached(booked: list[int], first: int, last: int, most: int, reach: int) -> int:
    """The dearest slots of a query that the events of its slots `first` to `last` can reach."""
    there = booked[max(first, 0) : max(first, 0) + reach]
    return sum(sorted(there, reverse=True)[:most])


def charged(books, cuts, end, random):
    """Charge anything for so many base slots: gives the filter and what each query was charged."""
    booked: list[list[int]] = [[] for _ in cuts]
    for base_slot in range(end):
        charges = [
            Charge(cut.first(cut.of(base_slot)), base_slot, random.integers(0, 13, 1), q)
            for q, cut in enumerate(cuts)
            if cut.due(base_slot)
        ]
        try:
            books.charge(base_slot, charges)
        except BudgetExceeded:
            charges = [one._replace(units=np.zeros(1, np.int64)) for one in charges]
            books.charge(base_slot, charges)
        for one in charges:
            booked[one.query].append(int(one.units[0]))
        if random.integers(2):
            books = books.decode(books.encode())
        yield books, booked


# Whatever is charged: what one window of base slots can reach of all queries is within the budget.
@settings(max_examples=100)
@given(st.data())
def test_no_window_of_base_slots_is_charged_more_than_its_budget(data):
    some = st.integers(1, 3) | st.just(Months(1))
    lengths = data.draw(st.lists(some, min_size=1, max_size=3))
    cuts = [cut_of(one) for one in lengths]
    end = 24 if max(one.longest for one in cuts) < 28 else 130
    window, budget = (
        data.draw(st.integers(3, 9 if end == 24 else 70)),
        data.draw(st.integers(1, 60)),
    )
    requirements = Requirements([of_units(window, budget)])
    made = []
    for number, slots in enumerate(lengths):
        limit = data.draw(st.sampled_from([Limit(1, 1), Limit(1), Limit(2), EVERY_SLOT]))
        over = Requirements([of_units(cut_of(slots).most_in(window), max(budget // 3, 1))])
        made.append(Presence((limit,), over, neighbours_of(query(f"q{number}", slots), ADD_REMOVE)))
    books = LimitedFilter(requirements, made, np.zeros(1, np.int64))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    *_, (books, booked) = charged(books, cuts, end, random)
    most = 0
    for start in range(-window, end):
        total = 0
        for cut, one, spent in zip(cuts, made, booked, strict=True):
            limit, over = one.limits[0], one.requirements[0]
            first, last = cut.of(start), cut.of(start + window - 1)
            slots_paid, reach = limit.slots(over, one.adjacency), limit.reach(over, one.adjacency)
            total += reached(spent, first, last, slots_paid, reach)
            total += limit.aside(over, one.adjacency)
        most = max(most, total)
    assert most <= int(books.in_window[0]) <= budget or not any(map(any, booked))


@settings(max_examples=100)
@given(st.data())
def test_no_lifetime_is_charged_more_than_its_budget(data):
    lengths = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    budget = data.draw(st.integers(1, 60))
    requirements = Requirements([Lifetime(math.ldexp(budget, -40))])
    most = [data.draw(st.integers(1, 4)) for _ in lengths]
    over = Requirements([Lifetime(math.ldexp(max(budget // 3, 1), -40))])
    made = [Presence((Limit(None, in_life=one),), over, ADD_REMOVE) for one in most]
    books = LimitedFilter(requirements, made, np.zeros(1, np.int64))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    for filter_, booked in charged(books, list(map(cut_of, lengths)), 24, random):
        total = sum(sum(sorted(one)[-m:]) for one, m in zip(booked, most, strict=True))
        total += sum(one.limits[0].aside(over[0]) for one in made)
        assert total == int(filter_.in_window[0]) <= budget or not any(map(any, booked))


def test_a_refused_base_slot_books_nothing_of_any_query():
    over = Requirements([of_units(4, 10)])
    made = [Presence((EVERY_SLOT,), over, ADD_REMOVE)] * 2
    books = LimitedFilter(over, made, np.zeros(1, np.int64))
    books.charge(0, [Charge(0, 0, np.array([6]), 0)])
    written = books.encode()
    with pytest.raises(BudgetExceeded, match="dearest slots of all queries"):
        books.charge(1, [Charge(1, 1, np.array([2]), 0), Charge(1, 1, np.array([3]), 1)])
    assert books.encode() == written
    with pytest.raises(ValueError, match="out of order"):
        books.charge(0, [])


# ---- streams --------------------------------------------------------------------------------

ONE = Limit(1)
QUERIES = (
    query("hour"),
    query("sum", 2, statistic=Sum("x", -1, 3)),
    query("mean", 3, bins=2, statistic=Mean("x", 0, 1)),
)


def stream_of(limit=ONE, queries=QUERIES, key=bytes(32), requirements=ASKED, **more):
    query_set, shares, found = presences(queries, limit, requirements=requirements)
    sizes = SIZES[: len(requirements)]
    return QueryStream(
        *(query_set, requirements, sizes, shares, NoiseSource(key)), presences=found, **more
    )


def counted(stream, base_slot, seed=0):
    """Counts and what does not count, of the queries that are due with a base slot."""
    random = np.random.default_rng((seed, base_slot))
    classes, counts, beyond = len(stream.requirements), {}, {}
    for q in stream.due(base_slot):
        size = stream.query_set.queries[q].measure.size
        counts[q] = random.integers(0, 50, (classes, size))
        some = random.integers(0, [3, classes, size], (5, 3))
        beyond[q] = Beyond(some[:, 0] + 1, some[:, 1], some[:, 2], random.integers(1, 9, 5))
    return counts, beyond


def test_releases_keep_every_budget_and_go_on_from_states():
    stream, again = stream_of(), stream_of()
    state, other = stream.start(), again.start()
    spent = []
    for base_slot in range(60):
        prices = stream.price(state, base_slot)
        state, releases = stream.release(state, base_slot, *counted(stream, base_slot))
        other = again.decode(again.encode(other))
        other, same = again.release(other, base_slot, *counted(stream, base_slot))
        for q, release in releases.items():
            np.testing.assert_array_equal(release.values, same[q].values)
            assert (release.spent <= prices[q]).all()
            spent.append((q, release.spent))
        for entry in stream.entries(state, releases):
            assert (entry.spent_in_window <= [1.0, 0.5]).all()
    assert stream.encode(state) == again.encode(other)
    assert 0.5 < state.filter.use() <= 1
    limited = [one for one in stream.streams if isinstance(one, LimitedQuery)]
    assert len(limited) == len(stream.streams)


def test_releases_of_lifetimes_keep_the_budget_and_go_on_from_states():
    stream = stream_of(Limit(None, in_life=3), requirements=LIFE)
    assert all(isinstance(one, LivedQuery) for one in stream.streams)
    state, saved, spent = stream.start(), stream.start(), [[] for _ in stream.streams]
    for base_slot in range(60):
        state, releases = stream.release(state, base_slot, *counted(stream, base_slot))
        saved = stream.decode(stream.encode(saved))
        saved, same = stream.release(saved, base_slot, *counted(stream, base_slot))
        for q, release in releases.items():
            np.testing.assert_array_equal(release.values, same[q].values)
            spent[q].append(int(release.spent[0]))
    assert stream.encode(state) == stream.encode(saved)
    aside = sum(one.limits[0].aside(one.requirements[0]) for one in stream.presences)
    dearest = sum(sum(sorted(one)[-3:]) for one in spent)
    assert 0.99 * 2**40 < aside + dearest == int(state.filter.in_window[0]) <= 2**40


def test_other_limits_refuse_the_state():
    state = stream_of().encode(stream_of().start())
    with pytest.raises(ConfigurationError, match="participation limit"):
        stream_of(Limit(2)).decode(state)


def test_a_mechanism_that_takes_more_is_refused(monkeypatch):
    release = LimitedQuery.release

    def dearer(self, state, slot, counts, beyond):
        state, found = release(self, state, slot, counts, beyond)
        return state, replace(found, spent=found.spent * 4)

    monkeypatch.setattr(LimitedQuery, "release", dearer)
    stream = stream_of()

    def run():
        state = stream.start()
        for base_slot in range(48):
            state, _ = stream.release(state, base_slot, *counted(stream, base_slot))

    with pytest.raises(BudgetExceeded, match="dearest"):
        run()


# Half of all events are left out: counts and sums are scaled, means are not.
def test_counts_and_sums_are_scaled_and_ratios_are_not():
    queries = (
        query("hour", bins=1, mechanism="ba"),
        query("mean", bins=1, statistic=Mean("x", 0, 1), mechanism="ba"),
    )
    asked = Requirements([Requirement(48, 4e3)])
    stream = stream_of(Limit(2), queries, requirements=asked)
    state = stream.start()
    found: list[dict[int, SlotRelease]] = []
    for base_slot in range(96):
        counts = {0: np.array([[1000]]), 1: np.array([[250 * 1024, 750 * 1024, 0, 0]])}
        beyond = {
            0: Beyond(*np.array([[1], [0], [0], [1000]])),
            1: Beyond(*np.array([[1, 1], [0, 0], [0, 1], [250 * 1024, 750 * 1024]])),
        }
        state, releases = stream.release(state, base_slot, counts, beyond)
        found.append(releases)
    last = found[-1]
    assert last[0].values == pytest.approx(2000, rel=0.02)
    assert last[1].values[1] / last[1].values[:2].sum() == pytest.approx(0.75, rel=0.02)
    assert 0 < last[0].common < found[0][0].common


# Users who come often have larger numbers: of the sum three quarters are left out, of events half.
def test_a_sum_is_scaled_by_what_it_lacks_and_not_by_events():
    queries = (
        query("count", bins=1, mechanism="ba"),
        query("sum", bins=1, statistic=Sum("x", 0, 1), mechanism="ba"),
        query("mean", bins=1, statistic=Mean("x", 0, 1), mechanism="ba"),
    )
    stream = stream_of(Limit(2), queries, requirements=Requirements([Requirement(48, 4e3)]))
    state, quarter = stream.start(), 250 * 1024
    small, large = [3 * quarter, quarter, 0, 0], [quarter, 3 * quarter, 0, 0]
    for base_slot in range(96):
        counts = {q: np.array([cells]) for q, cells in enumerate(([1000], small, small))}
        left = {
            0: Beyond(*np.array([[1], [0], [0], [1000]])),
            1: Beyond(*np.array([[1, 1], [0, 0], [0, 1], large[:2]])),
        }
        left[2] = left[1]
        state, releases = stream.release(state, base_slot, counts, left)
    answers = [
        SlotAnswer.of(releases[q], 95, asked, stream.query_set, state.usual[q])
        for q, asked in enumerate(stream.query_set)
    ]
    assert [float(one.values[0, 0]) for one in answers] == pytest.approx(
        [2000, 1000, 0.25], rel=0.02
    )
    count, total, mean = (str(one.figures.notes[0, 0]) for one in answers)
    assert count.endswith("for what is beyond max_slots")
    assert total.startswith("scaled by ")
    assert mean.endswith("of the events that count, without those beyond max_slots")
