"""Queries by calendar months: on Beam and without, in passes that end within one, as a stream."""

from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from apache_beam.utils.timestamp import Timestamp

from streamveil.engine.stream.query_plan import columns_for
from streamveil.mechanisms import Categories, ConfigurationError, Registry, Requirement, Slots
from streamveil.mechanisms.core.local_days import CalendarMonths
from streamveil.mechanisms.core.records import parse_time
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.queries.cuts import Months
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.statistics import DistinctUsers, Mean
from streamveil.transforms.release_plan import PrivateAnswers
from streamveil.transforms.slots.heartbeat import _nearest

HOUR = 3_600_000_000
BASE = Slots.of("6h")
USERS = [f"u{i}" for i in range(40)]
REGISTRY = Registry.of(dict.fromkeys(USERS[:30], (744, 90.0)), default=(Requirement(400, 80.0), 10))
AB = Categories(("a", "b"))
MONTH, QUARTER = Months(1, 4), Months(3, 4)
DAYS = Query("days", 4, ("place",), AB, times=(28, MONTH), mechanism="pba")
SPEED = Query("speed", MONTH, statistic=Mean("speed", 0, 100), times=(QUARTER,))
PEOPLE = Query("people", MONTH, ("place",), AB, statistic=DistinctUsers(), max_contributions=2)
LIMITED = {"limit": Limit(1)}
FIRST = BASE.index(parse_time("2024-01-20"))
LAST = BASE.index(parse_time("2024-04-10")) - 1


def answers(*queries, base=BASE, **options):
    query_set = QuerySet(base, queries or (DAYS, SPEED, PEOPLE))
    options = {"noise_key": bytes(32), "first_slot": FIRST, "last_slot": LAST, **options}
    return PrivateAnswers(query_set, REGISTRY, columns_for(query_set, "user", "time"), **options)


def rows_of(first=FIRST, last=LAST):
    """Of (user, place, base slot, speed)."""
    found = []
    for slot in range(first, last + 1):
        draw = np.random.default_rng([7, slot])
        for user in draw.choice(USERS, 6, replace=False):
            found.append((str(user), "ab"[draw.integers(2)], slot, float(draw.integers(100))))
    return found


def batch(rows, hours=6):
    users, places, slots, speeds = zip(*rows, strict=True) if rows else ((),) * 4
    times = pa.array(np.array(slots, np.int64) * hours * HOUR + 1000, pa.timestamp("us", "UTC"))
    return pa.RecordBatch.from_pydict(
        {
            "user": pa.array(users, pa.string()),
            "place": pa.array(places, pa.string()),
            "time": times,
            "speed": pa.array(speeds, pa.float64()),
        }
    )


def published(*runs):
    """All of answers and of the ledger, in an order of their own."""
    found = [
        (one.query, one.length, one.slot, one.start, one.end, one.status, str(one.values.tolist()))
        for ran in runs
        for one in ran.answers
    ]
    booked = [
        (one.query, one.slot, one.first_base_slot, one.last_base_slot, str(one.spent.tolist()))
        for ran in runs
        for one in ran.ledger
    ]
    return sorted(found), sorted(booked)


@pytest.mark.parametrize("more", [{}, LIMITED])
def test_beam_gives_what_a_call_gives(run_on, here, more):
    rows = rows_of()
    alone = here(answers(**more), [batch(rows)])
    ran = run_on("bundle_based", answers(shards=2, **more), [batch(rows[::2]), batch(rows[1::2])])
    assert published(ran) == published(alone)
    lengths = {(one.query, one.length): one for one in alone.answers}
    assert set(lengths) == {
        *(("days", "1d"), ("days", "1w"), ("days", "1mo")),
        *(("speed", "1mo"), ("speed", "3mo"), ("people", "1mo")),
    }
    months = [one for one in alone.ledger if one.query == "people"]
    assert [one.slot for one in months] == [648, 649, 650, 651]
    assert [one.last_base_slot - one.first_base_slot + 1 for one in months] == [124, 116, 124, 120]


# The second pass begins and ends within February, the third one within the slots of all queries.
@pytest.mark.parametrize("more", [{}, LIMITED])
def test_passes_that_end_within_months_add_up(here, more):
    whole = here(answers(ends=False, **more), [batch(rows_of())])
    ends = [
        BASE.index(parse_time(time)) for time in ("2024-02-10T18:00", "2024-02-29", "2024-03-13")
    ]
    at, state, runs = FIRST, None, []
    for end, shards in zip([*ends, LAST], (1, 1, 1, 1) if more else (1, 2, 3, 1), strict=True):
        given = {"first_slot": at, "last_slot": end, "resume": state, "ends": False}
        runs.append(here(answers(shards=shards, **given, **more), [batch(rows_of(at, end))]))
        ((at, state),) = runs[-1].state
        assert at == end + 1
    assert published(*runs) == published(whole)
    assert [(one.query, one.slot) for one in runs[-1].answers if one.length == "1mo"] == [
        *(("days", 650), ("speed", 650), ("people", 650))
    ]


# A timeline is in hours.
@pytest.mark.parametrize(
    "more", [{}, pytest.param({**LIMITED, "shards": 2}, marks=pytest.mark.slow)]
)
def test_a_stream_answers_a_month_when_it_is_over(run_on, kit, here, more):
    first, end = 30 * 24, 31 * 24 + 3
    rows = rows_of(first, end - 1)
    days = replace(DAYS, slots=24, times=())
    asked = {"base": Slots.of("1h"), "first_slot": first, "last_slot": end - 1, "ends": False}
    hours = partial(batch, hours=1)
    line = kit.timeline(answers(days, PEOPLE, **asked, **more), start=first, batch=hours)
    for slot in range(first, end, 3):
        line.events(*[row for row in rows if slot <= row[2] < slot + 3]).advance(slot + 3)
    streamed = run_on("bundle_based", line.transform, line.advance(end + 5), "--streaming")
    alone = here(answers(days, PEOPLE, **asked, **more), [hours(rows)])
    assert published(streamed) == published(alone)
    assert [one.slot for one in streamed.answers if one.query == "people"] == [0]


# ---- months as base slots ----------------------------------------------------------------------

MONTHS = CalendarMonths(zone="Europe/Berlin")
YEARLY = Registry.of(dict.fromkeys(USERS[:30], (12, 90.0)), default=(Requirement(6, 80.0), 10))
MONTHLY = (
    Query("visits", 1, ("place",), AB, times=(3, 12)),
    Query("speed", 3, statistic=Mean("speed", 0, 100)),
)


def monthly(base=MONTHS, **options):
    query_set = QuerySet(base, MONTHLY)
    given = {"noise_key": bytes(32), "first_slot": 648, "last_slot": 653, **options}
    columns = columns_for(query_set, "user", "time")
    return PrivateAnswers(query_set, YEARLY, columns, **given)


def in_months(rows):
    """Rows whose slot is a month; half of them are of its first hour and half of its last one."""
    made = batch(rows)
    times = [
        MONTHS.start(slot) + HOUR // 2 if at % 2 else MONTHS.end(slot) - HOUR // 2
        for at, (_, _, slot, _) in enumerate(rows)
    ]
    at = made.schema.get_field_index("time")
    return made.set_column(at, made.schema.field(at), pa.array(times, pa.timestamp("us", "UTC")))


@pytest.mark.parametrize("more", [{}, LIMITED])
def test_base_slots_may_be_months_on_beam_and_in_a_call(run_on, here, more):
    rows = rows_of(648, 653)
    alone = here(monthly(**more), [in_months(rows)])
    ran = run_on("bundle_based", monthly(shards=2, **more), [in_months(rows)])
    assert published(ran) == published(alone)
    days = [(one.query, one.length, one.slot) for one in alone.answers]
    assert [slot for query, length, slot in days if length == "1mo"] == [*range(648, 654)]
    assert {(query, slot) for query, length, slot in days if length == "3mo"} == {
        *(("visits", 216), ("visits", 217), ("speed", 216), ("speed", 217))
    }
    (year,) = [one for one in alone.answers if one.length == "1y"]
    assert (year.slot, year.start) == (54, parse_time("2024-01-01", "Europe/Berlin"))


def test_a_state_of_months_is_resumed_and_none_of_days_is(here):
    whole = here(monthly(), [in_months(rows_of(648, 653))])
    begun = here(monthly(last_slot=649, ends=False), [in_months(rows_of(648, 649))])
    ((at, state),) = begun.state
    later = {"first_slot": at, "resume": state}
    rest = here(monthly(**later), [in_months(rows_of(at, 653))])
    assert (at, published(begun, rest)) == (650, published(whole))
    by_day = monthly(Slots.of("1d"), first_slot=640, last_slot=649, ends=False, max_rejected=1.0)
    days = here(by_day, [in_months(rows_of(648, 649))]).state[0][1]
    with pytest.raises(ConfigurationError, match="configuration: the slots changed"):
        here(monthly(**{**later, "resume": days}), [])


# Slots begin and close in real time: here as a heartbeat and a watermark say.
def test_a_stream_closes_each_month_when_it_is_over(run_on, kit, here):
    rows = rows_of(648, 653)
    begins = {"moment": lambda slot: Timestamp(micros=MONTHS.start(slot))}
    line = kit.timeline(monthly(), start=648, batch=in_months, **begins)
    for slot in range(648, 654):
        line.events(*[row for row in rows if row[2] == slot]).advance(slot + 1)
    streamed = run_on("bundle_based", line.transform, line.advance(655), "--streaming")
    assert published(streamed) == published(here(monthly(), [in_months(rows)]))


# Beam's impulse has one interval, the average length; the nearest slot is the one that begins.
@pytest.mark.parametrize("length", ["1mo", "3mo", "1y"])
def test_a_heartbeat_of_one_interval_finds_every_slot_of_400_years(length):
    slots = Slots.of(length)
    for first in (0, 5, 10):
        start, last = slots.start(first) / 1e6, 4800 // slots.months
        beats = [_nearest(start + at * slots.length / 1e6, slots) for at in range(last)]
        assert beats == [*range(first, first + last)]
