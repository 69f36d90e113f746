"""Slots of calendar days: against zoneinfo itself, moment by moment."""

import datetime as dt
import zoneinfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms.core.local_days import (
    CalendarMonths,
    CalendarSlots,
    count_in,
    lengths_near,
    multiple,
    zone_of,
)
from streamveil.mechanisms.core.records import (
    EPOCH,
    MICROSECONDS,
    ConfigurationError,
    Slots,
    format_time,
    parse_time,
)

DAY, HOUR, WEEK = MICROSECONDS["d"], MICROSECONDS["h"], MICROSECONDS["w"]
# Clocks that change at night, at midnight, a minute after it, by half an hour, or leave out a day.
ZONES = (
    *("UTC", "Europe/Berlin", "America/Sao_Paulo", "America/St_Johns", "Asia/Beirut"),
    *("Australia/Lord_Howe", "Pacific/Apia", "America/Havana", "Asia/Kolkata"),
)
TIMES = st.integers(parse_time("1950-01-01"), parse_time("2037-12-31"))


def date(time, zone):
    """What the clocks show: the day, counted from 1970-01-01."""
    shown = (EPOCH + dt.timedelta(microseconds=time)).astimezone(zoneinfo.ZoneInfo(zone))
    return shown.date().toordinal() - EPOCH.toordinal()


@settings(max_examples=300)
@given(st.sampled_from(ZONES), st.lists(TIMES, min_size=1, max_size=20), st.integers(1, 10))
def test_every_moment_is_in_the_slot_of_its_date(zone, times, days):
    slots = CalendarSlots(days * DAY, 4 * DAY, zone)
    found = slots.indices(np.array(times, np.int64)).tolist()
    for time, slot in zip(times, found, strict=True):
        assert slots.start(slot) <= time < slots.end(slot)
        assert slots.index(time) == slot
        if zone != "America/St_Johns":  # where a minute of the next day came twice
            assert slot == (date(time, zone) - 4) // days


@settings(max_examples=300)
@given(st.sampled_from(ZONES), st.integers(-7000, 24_000))
def test_a_day_begins_when_the_clocks_first_show_it(zone, day):
    slots = CalendarSlots(DAY, zone=zone)
    start = slots.start(day)
    assert date(start, zone) >= day > date(start - 1, zone)
    assert slots.end(day) == slots.start(day + 1) >= start


@pytest.mark.parametrize(
    ("day", "zone", "hours"),
    [
        ("2024-03-31", "Europe/Berlin", 23),
        ("2024-10-27", "Europe/Berlin", 25),
        ("2024-10-28", "Europe/Berlin", 24),
        ("2018-11-04", "America/Sao_Paulo", 23),  # midnight was skipped
        ("2023-11-05", "America/Havana", 25),  # midnight came twice
        ("2011-12-30", "Pacific/Apia", 0),  # the day was
    ],
)
def test_days_are_as_long_as_the_clocks_make_them(day, zone, hours):
    slots = CalendarSlots(DAY, zone=zone)
    slot = parse_time(day) // DAY
    assert slots.end(slot) - slots.start(slot) == hours * HOUR


@settings(max_examples=100)
@given(st.lists(TIMES, max_size=20), st.sampled_from([DAY, 3 * DAY, WEEK]))
def test_in_utc_they_are_plain_slots(times, length):
    plain, calendar = Slots(length, 4 * DAY), CalendarSlots(length, 4 * DAY)
    array = np.array(times, np.int64)
    np.testing.assert_array_equal(plain.indices(array), calendar.indices(array))
    assert [plain.index(t) for t in times] == plain.indices(array).tolist()


@pytest.mark.parametrize("time", ["0001-01-01", "9999-12-31T23:59:59"])
@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_the_ends_of_time(time, zone):
    slots, at = CalendarSlots(WEEK, zone=zone), parse_time(time)
    assert slots.start(slots.index(at)) <= at < slots.end(slots.index(at))


@pytest.mark.parametrize(
    ("length", "origin", "zone", "word"),
    [
        (HOUR, 0, "Europe/Berlin", "whole days"),
        (DAY, HOUR, "Europe/Berlin", "midnight"),
        (DAY, 0, "Europe/Berlun", "--slot_zone"),
    ],
)
def test_what_is_no_calendar_is_refused(length, origin, zone, word):
    with pytest.raises(ConfigurationError, match=word):
        CalendarSlots(length, origin, zone)


def test_weeks_begin_on_monday_unless_given():
    assert Slots.of("1w").start(0) == parse_time("1970-01-05")
    assert Slots.of("2w").start(1) == parse_time("1970-01-19")
    assert Slots.of("7d") == Slots(WEEK, 0)
    assert Slots.of("1w", "1970-01-01") == Slots(WEEK, 0)


# ---- months ---------------------------------------------------------------------------------


@settings(max_examples=200)
@given(
    st.sampled_from(ZONES), st.lists(TIMES, min_size=1, max_size=20), st.sampled_from([1, 3, 12])
)
def test_every_moment_is_in_the_month_of_its_date(zone, times, months):
    slots = CalendarMonths(months=months, zone=zone)
    for time, slot in zip(times, slots.indices(np.array(times)).tolist(), strict=True):
        assert slots.index(time) == slot
        assert slots.start(slot) <= time < slots.end(slot)
        day = CalendarSlots(DAY, zone=zone)
        first = dt.date.fromordinal(EPOCH.toordinal() + slots.shown(slot) // DAY)
        assert (first.day, (first.year - 1970) * 12 + first.month - 1) == (1, slot * months)
        assert slots.start(slot) == day.start(slots.shown(slot) // DAY)


def test_months_begin_at_local_midnight():
    berlin = CalendarMonths(zone="Europe/Berlin")
    march = (2024 - 1970) * 12 + 2
    assert [format_time(berlin.start(slot), "Europe/Berlin") for slot in (march, march + 1)] == [
        "2024-03-01T00:00:00+01:00",
        "2024-04-01T00:00:00+02:00",
    ]
    assert (berlin.text, berlin.of_days, CalendarMonths(months=24).text) == ("1mo", True, "2y")
    assert berlin.indices(np.zeros(0, np.int64)).shape == (0,)


# The Gregorian calendar repeats itself after 400 years.
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/Sao_Paulo"])
@pytest.mark.parametrize("months", [1, 3, 5, 12])
def test_slots_of_400_years_begin_with_the_months_of_python(months, zone):
    slots = CalendarMonths(months=months, zone=zone)
    clock, first = zoneinfo.ZoneInfo(zone), -160 * 12 // months
    starts = []
    for slot in range(first, first + 4800 // months + 1):
        year, month = divmod(slot * months, 12)
        midnight = dt.datetime(1970 + year, month + 1, 1, tzinfo=clock)
        starts.append((midnight - EPOCH) // dt.timedelta(microseconds=1))
        assert slots.start(slot) == starts[-1]
    numbers, begins = np.arange(first, first + len(starts)), np.array(starts)
    np.testing.assert_array_equal(slots.indices(begins), numbers)
    np.testing.assert_array_equal(slots.indices(begins[1:] - 1), numbers[:-1])
    assert [slots.end(slot) for slot in numbers[:-1].tolist()] == starts[1:]


def test_multiples_of_slots():
    quarters = CalendarMonths(months=3, zone="Europe/Berlin")
    assert multiple(quarters, 4) == CalendarMonths(months=12, zone="Europe/Berlin")
    assert multiple(Slots(HOUR, 5000), 24) == Slots(DAY, 5000)
    assert count_in(CalendarMonths(months=12), quarters) == 4
    # A month of average length has whole seconds, but no month has that length.
    for longer, slots in [("1mo", "1s"), ("1mo", "3mo"), ("4mo", "3mo"), ("1w", "1mo")]:
        assert count_in(Slots.of(longer), Slots.of(slots)) is None
    assert lengths_near(Slots.of("10mo"), quarters) == "9mo or 1y"
    assert lengths_near(Slots.of("1h"), Slots.of("1d")) == "1d"


def test_months_as_text():
    assert Slots.of(" 3mo ") == CalendarMonths(months=3)
    assert (zone_of(Slots.of("1y")), zone_of(CalendarMonths(zone="Asia/Tokyo"))) == (
        None,
        "Asia/Tokyo",
    )
    with pytest.raises(ConfigurationError, match=r"slots of 1y are counted from January 1970 on"):
        Slots.of("1y", "2024-01-01")


@pytest.mark.parametrize(("months", "zone"), [(0, "UTC"), (1201, "UTC"), (1, "Mars/Base")])
def test_months_that_cannot_be_are_refused(months, zone):
    with pytest.raises(ConfigurationError, match=r"hundred years|unknown"):
        CalendarMonths(months=months, zone=zone)
