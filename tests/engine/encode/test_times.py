"""Times as microseconds: every Arrow type and unit, clock times of a zone, and ISO 8601 text."""

import datetime as dt
import re
from decimal import Decimal
from fractions import Fraction
from math import floor
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.engine.encode.times import (
    AMBIGUOUS_TIME,
    EARLIEST,
    LATEST,
    NULL_TIME,
    UNPARSABLE_TIME,
    to_micros,
)
from streamveil.mechanisms import ConfigurationError
from streamveil.mechanisms.core.local_days import CalendarSlots

PROPERTY = settings(max_examples=120)
UTC = dt.timezone.utc
EPOCH = dt.datetime(1970, 1, 1, tzinfo=UTC)
PER_SECOND = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}
BERLIN = "Europe/Berlin"


def micros_of(time):
    """Microseconds since the epoch of an aware datetime, exactly."""
    return (time - EPOCH) // dt.timedelta(microseconds=1)


def utc(*fields):
    return micros_of(dt.datetime(*fields, tzinfo=UTC))


def read(values, kind, **options):
    """The micros of good rows and None for bad ones, and the reasons."""
    column = values if isinstance(values, pa.Array) else pa.array(values, kind)
    micros, reasons = to_micros(column, **options)
    assert micros.dtype == np.int64
    assert micros.shape == (len(column),)
    return [None if i in reasons else m for i, m in enumerate(micros.tolist())], reasons


# ---- timestamps and dates -------------------------------------------------------------------


@pytest.mark.parametrize("unit", PER_SECOND)
@pytest.mark.parametrize("tz", [None, "UTC", BERLIN, "+05:30"])
def test_timestamps_of_every_unit(unit, tz):
    second = PER_SECOND[unit]
    raw = [0, 3 * second, -7 * second, None]
    values, reasons = read(pa.array(raw, pa.int64()).cast(pa.timestamp(unit, tz)), None)
    assert values == [0, 3_000_000, -7_000_000, None]
    assert reasons == {3: NULL_TIME}


# A timestamp with a zone is an instant already: the zone of times without offset is not for it.
@pytest.mark.parametrize("unit", PER_SECOND)
def test_zoned_timestamp_is_an_instant_whatever_the_zone(unit):
    column = pa.array([1_711_846_800], pa.int64()).cast(pa.timestamp("s", BERLIN))
    column = column.cast(pa.timestamp(unit, BERLIN))
    assert read(column, None, zone="America/New_York")[0] == [1_711_846_800_000_000]


def test_nanoseconds_are_floored_below_zero_too():
    values, _ = read([-1, -999, -1000, -1001, 0, 999, 1000], pa.timestamp("ns"))
    assert values == [-1, -1, -1, -2, 0, 0, 1]


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64()], ids=str)
def test_dates_are_midnights(kind):
    days = [dt.date(1969, 12, 31), dt.date(2024, 2, 29), None]
    values, reasons = read(days, kind)
    assert values == [-86_400_000_000, utc(2024, 2, 29), None]
    assert reasons == {2: NULL_TIME}
    # In a zone it is that zone's midnight.
    values, _ = read([dt.date(2024, 7, 1)], kind, zone=BERLIN)
    assert values == [utc(2024, 6, 30, 22)]


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_times_outside_the_years_1_to_9999_are_refused(unit):
    second = PER_SECOND[unit]
    first, last = EARLIEST // 10**6 * second, LATEST // 10**6 * second
    raw = [first, last, first - 1, last + 1, 2**63 - 1, -(2**63)]
    values, reasons = read(raw, pa.timestamp(unit))
    assert values == [EARLIEST, LATEST, None, None, None, None]
    assert set(reasons.values()) == {UNPARSABLE_TIME}


# All that 64 bits of nanoseconds can hold lies inside: 1677 to 2262.
def test_nanoseconds_at_the_ends_of_int64():
    values, reasons = read([2**63 - 1, -(2**63) + 1], pa.timestamp("ns"))
    assert values == [(2**63 - 1) // 1000, (-(2**63) + 1) // 1000]
    assert not reasons


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64()], ids=str)
def test_far_dates_are_refused_not_wrapped(kind):
    per_day = 1 if kind == pa.date32() else 86_400_000
    last_day = (LATEST // 86_400_000_000) * per_day
    raw = [2**31 - 1 if per_day == 1 else (2**53 // per_day) * per_day, last_day]
    column = pa.array(raw, pa.int32() if per_day == 1 else pa.int64()).cast(kind)
    values, reasons = read(column, None)
    assert values == [None, utc(9999, 12, 31)]
    assert reasons == {0: UNPARSABLE_TIME}


def test_slices_keep_their_rows():
    column = pa.array([1, None, 3, None], pa.timestamp("us"))[1:]
    values, reasons = read(column, None)
    assert values == [None, 3, None]
    assert reasons == {0: NULL_TIME, 2: NULL_TIME}


# ---- clock times of a zone ------------------------------------------------------------------

# In Berlin the clock skips 02:00 to 03:00 on 2024-03-31 and shows 02:00 to 03:00 twice on
# 2024-10-27.
CLOCK = [
    ("2024-03-31T01:59:59.999999", utc(2024, 3, 31, 0, 59, 59, 999999)),
    ("2024-03-31T02:00:00", None),
    ("2024-03-31T02:30:00", None),
    ("2024-03-31T02:59:59.999999", None),
    ("2024-03-31T03:00:00", utc(2024, 3, 31, 1)),
    ("2024-07-01T12:00:00", utc(2024, 7, 1, 10)),
    ("2024-10-27T01:59:59.999999", utc(2024, 10, 26, 23, 59, 59, 999999)),
    ("2024-10-27T02:00:00", None),
    ("2024-10-27T02:59:59.999999", None),
    ("2024-10-27T03:00:00", utc(2024, 10, 27, 2)),
]


@pytest.mark.parametrize("form", ["text", "dictionary", "timestamp"])
def test_clock_times_that_a_zone_shows_twice_or_never_are_ambiguous(form):
    texts = pa.array([text for text, _ in CLOCK])
    column = {
        "text": texts,
        "dictionary": texts.dictionary_encode(),
        "timestamp": texts.cast(pa.timestamp("us")),
    }[form]
    values, reasons = read(column, None, zone=BERLIN)
    assert values == [time for _, time in CLOCK]
    assert reasons == {i: AMBIGUOUS_TIME for i, (_, time) in enumerate(CLOCK) if time is None}


# A date has no clock time: it is the day, from its first moment on, whatever clocks do at midnight.
DAYS = [
    ("Africa/Cairo", "2024-04-26", utc(2024, 4, 25, 22)),  # midnight is skipped
    ("Asia/Beirut", "2022-03-27", utc(2022, 3, 26, 22)),
    ("America/Santiago", "2022-09-11", utc(2022, 9, 11, 4)),
    ("America/Sao_Paulo", "2018-11-04", utc(2018, 11, 4, 3)),
    ("America/Asuncion", "2023-10-01", utc(2023, 10, 1, 4)),
    ("America/Havana", "2024-03-10", utc(2024, 3, 10, 5)),
    ("America/Havana", "2024-11-03", utc(2024, 11, 3, 4)),  # midnight is shown twice
    ("America/St_Johns", "2005-10-30", utc(2005, 10, 30, 2, 30)),
    ("America/Sao_Paulo", "2018-02-18", utc(2018, 2, 18, 3)),  # 23:00 is
    (BERLIN, "2024-03-31", utc(2024, 3, 30, 23)),
    ("Pacific/Apia", "2011-12-29", utc(2011, 12, 29, 10)),
    ("Pacific/Apia", "2011-12-31", utc(2011, 12, 30, 10)),
    ("Pacific/Apia", "2011-12-30", None),  # the whole day is skipped
    ("Pacific/Kwajalein", "1993-08-21", None),
]


@pytest.mark.parametrize("form", ["text", "date32", "date64", "own form"])
def test_a_date_is_the_first_moment_of_its_day(form):
    for zone, day, instant in DAYS:
        column = pa.array([day, day])
        if form.startswith("date"):
            column = column.cast(pa.date32()).cast(form)
        options = {}
        if form == "own form":
            column = pa.array([f"{day[8:]}.{day[5:7]}.{day[:4]}"] * 2)
            options = {"form": "%d.%m.%Y"}
        values, reasons = read(column, None, zone=zone, **options)
        assert values == [instant, instant], (zone, day)
        assert reasons == ({} if instant else dict.fromkeys([0, 1], AMBIGUOUS_TIME)), (zone, day)


# Around all days above, in each of their zones.
@pytest.mark.parametrize("zone", sorted({zone for zone, _, _ in DAYS}))
def test_dates_begin_the_days_of_a_calendar(zone):
    marked = np.array(sorted({day for _, day, _ in DAYS}), "datetime64[D]").astype(int)
    days = np.unique(marked[:, None] + np.arange(-3, 4)).tolist()
    values, reasons = read(pa.array(days, pa.int32()).cast(pa.date32()), None, zone=zone)
    calendar = CalendarSlots(86_400_000_000, 0, zone)
    for row, (day, value) in enumerate(zip(days, values, strict=True)):
        if row not in reasons:
            assert value == calendar.start(day)
            assert calendar.index(value) == day
        else:
            assert calendar.start(day) == calendar.start(day + 1)  # it has no moment


# A clock time of midnight is one as any other.
@pytest.mark.parametrize("kind", ["timestamp", "text"])
def test_a_clock_time_of_midnight_is_no_date(kind):
    column = pa.array(["2024-04-26T00:00:00"])
    column = column.cast(pa.timestamp("us")) if kind == "timestamp" else column
    assert read(column, None, zone="Africa/Cairo")[1] == {0: AMBIGUOUS_TIME}


def test_numbers_count_from_the_epoch_in_any_zone():
    assert read([1_711_850_400], pa.int64(), unit="s", zone=BERLIN)[0] == [1_711_850_400_000_000]


def test_an_offset_makes_any_clock_time_clear():
    texts = ["2024-10-27T02:30:00+02:00", "2024-10-27T02:30:00+01:00", "2024-03-31T02:30:00Z"]
    values, reasons = read(texts, pa.string(), zone=BERLIN)
    assert values == [utc(2024, 10, 27, 0, 30), utc(2024, 10, 27, 1, 30), utc(2024, 3, 31, 2, 30)]
    assert not reasons


@PROPERTY
@given(
    st.lists(st.datetimes(dt.datetime(1980, 1, 1), dt.datetime(2037, 1, 1)), min_size=1),
    st.sampled_from([BERLIN, "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]),
)
def test_zones_agree_with_zoneinfo(times, zone):
    values, reasons = read(times, pa.timestamp("us"), zone=zone)
    for row, (time, value) in enumerate(zip(times, values, strict=True)):
        sides = {micros_of(time.replace(tzinfo=ZoneInfo(zone), fold=fold)) for fold in (0, 1)}
        if len(sides) == 1:
            assert value in sides
        else:
            assert reasons[row] == AMBIGUOUS_TIME


# ---- text -----------------------------------------------------------------------------------

ISO = {
    "2024-02-29": utc(2024, 2, 29),
    "2024-02-29T12:34": utc(2024, 2, 29, 12, 34),
    "2024-02-29 12:34:56": utc(2024, 2, 29, 12, 34, 56),
    "2024-02-29T12:34:56.7": utc(2024, 2, 29, 12, 34, 56, 700_000),
    "2024-02-29T12:34:56.789": utc(2024, 2, 29, 12, 34, 56, 789_000),
    "2024-02-29T12:34:56.789012": utc(2024, 2, 29, 12, 34, 56, 789_012),
    "2024-02-29T12:34Z": utc(2024, 2, 29, 12, 34),
    "2024-02-29T12:34:56Z": utc(2024, 2, 29, 12, 34, 56),
    "2024-02-29 12:34:56.5Z": utc(2024, 2, 29, 12, 34, 56, 500_000),
    "2024-02-29T12:34:56+02:00": utc(2024, 2, 29, 10, 34, 56),
    "2024-02-29T12:34:56+0530": utc(2024, 2, 29, 7, 4, 56),
    "2024-02-29T12:34:56-08": utc(2024, 2, 29, 20, 34, 56),
    "2024-02-29T12:34:56.123456-03:30": utc(2024, 2, 29, 16, 4, 56, 123_456),
    "0001-01-01": utc(1, 1, 1),
    "1677-09-21T00:12:43.145223": utc(1677, 9, 21, 0, 12, 43, 145_223),
    "1900-01-01T00:00:00": utc(1900, 1, 1),
    "1969-12-31T23:59:59.999999Z": -1,
    "2262-04-11T23:47:16.854776": utc(2262, 4, 11, 23, 47, 16, 854_776),
    "9999-12-31T23:59:59": utc(9999, 12, 31, 23, 59, 59),
    # What others write: basic ISO 8601, slashes, names of UTC, a comma, RFC 2822 and 1123.
    "20240229T123456Z": utc(2024, 2, 29, 12, 34, 56),
    "20240229T1234": utc(2024, 2, 29, 12, 34),
    "20240229T123456.789+0530": utc(2024, 2, 29, 7, 4, 56, 789_000),
    "2024/02/29": utc(2024, 2, 29),
    "2024/02/29 12:34:56": utc(2024, 2, 29, 12, 34, 56),
    "2024/02/29T12:34+02:00": utc(2024, 2, 29, 10, 34),
    "2024-02-29 12:34:56 UTC": utc(2024, 2, 29, 12, 34, 56),
    "2024-02-29 12:34:56.789012 UTC": utc(2024, 2, 29, 12, 34, 56, 789_012),
    "2024-02-29 12:34:56 GMT": utc(2024, 2, 29, 12, 34, 56),
    "2024-02-29 12:34:56 Z": utc(2024, 2, 29, 12, 34, 56),
    "2024-02-29 12:34:56,789": utc(2024, 2, 29, 12, 34, 56, 789_000),
    "Thu, 29 Feb 2024 12:34:56 +0200": utc(2024, 2, 29, 10, 34, 56),
    "Thu, 29 Feb 2024 12:34:56 GMT": utc(2024, 2, 29, 12, 34, 56),
    "Fri, 1 Mar 2024 00:30 -0000": utc(2024, 3, 1, 0, 30),
    "29 Feb 2024 12:34:56 UT": utc(2024, 2, 29, 12, 34, 56),
}


# Read one by one, and all together: the forms of one column may differ from row to row.
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_iso_text_in_many_forms(kind):
    assert read(list(ISO), kind) == (list(ISO.values()), {})
    assert [read([text], kind)[0][0] for text in ISO] == list(ISO.values())


def test_space_around_and_before_the_offset():
    texts = ["  2024-02-29T12:34:56Z ", "\t2024-02-29\n", "2024-02-29 12:34:56 +02:00"]
    values, reasons = read(texts, pa.string())
    assert values == [utc(2024, 2, 29, 12, 34, 56), utc(2024, 2, 29), utc(2024, 2, 29, 10, 34, 56)]
    assert not reasons


def test_digits_beyond_microseconds_are_cut():
    texts = [
        "2024-01-01T00:00:00.123456789Z",
        "1969-12-31T23:59:59.9999999",
        "2024-01-01T00:00:00.0000009",
    ]
    values, _ = read(texts, pa.string())
    assert values == [utc(2024, 1, 1, 0, 0, 0, 123456), -1, utc(2024, 1, 1)]


BAD = [
    "",
    "   ",
    "yesterday",
    "2024-02-30",
    "2023-02-29T00:00:00",
    "2024-13-01",
    "2024-01-01T24:30:00",
    "2024-01-01T12:60:00",
    "2024-01-01T12:00:61Z",
    "2024-01-01T12:00:00+",
    "2024-01-01T12:00:00+99:00",
    "01/02/2024",
    "2024/2/1",
    "2024-02-30 12:00:00 UTC",
    "2024-02-29 12:00:00 CET",
    "2024-02-29 UTC",
    "20240230T123456Z",
    "20240229T1",
    "Fri, 29 Feb 2024 12:00:00 GMT",  # a Thursday
    "Thu, 30 Feb 2024 12:00:00 GMT",
    "Thu, 29 Feb 2024 12:00:00",
    # ISO 8601 has more forms; Python reads them only from 3.11 on.
    "20240229",
    "2024-W09-4",
    "2024-01-01+02:00",
    "2024-1-1",
    "1711846800",
    "12:00:00",
    "2024-01-01T12:00:00 Europe/Berlin",
    "99999-01-01T00:00:00",
    "2024\0-01-01T12:00:00Z",
    "\uff12\uff10\uff12\uff14-01-01",
]


# A bad row must not shift or spoil its neighbours, wherever it stands.
@pytest.mark.parametrize("zone", ["UTC", BERLIN])
def test_bad_text_is_reported_at_its_row(zone):
    for bad in BAD:
        texts = ["2024-07-01T00:00:00Z", bad, None, "2024-07-02T00:00:00Z", bad]
        values, reasons = read(texts, pa.string(), zone=zone)
        assert values == [utc(2024, 7, 1), None, None, utc(2024, 7, 2), None], bad
        assert reasons == {1: UNPARSABLE_TIME, 2: NULL_TIME, 4: UNPARSABLE_TIME}, bad


@PROPERTY
@given(
    st.lists(
        st.one_of(
            st.none(),
            st.sampled_from(BAD),
            st.datetimes(dt.datetime(1, 1, 3), dt.datetime(9999, 12, 29)),
        )
    ),
    st.sampled_from(["T", " "]),
    st.integers(-23 * 60, 23 * 60),
    st.booleans(),
    st.booleans(),
)
def test_text_round_trip_among_bad_rows(times, separator, offset, zoned, encoded):
    zone = dt.timezone(dt.timedelta(minutes=offset)) if zoned else UTC
    texts, expected = [], []
    for time in times:
        good = isinstance(time, dt.datetime)
        aware = time.replace(tzinfo=zone) if good else None
        texts.append((aware if zoned else time).isoformat(separator) if good else time)
        expected.append(micros_of(aware) if good else None)
    column = pa.array(texts, pa.string())
    values, reasons = read(column.dictionary_encode() if encoded else column, None)
    assert values == expected
    assert reasons == {
        i: NULL_TIME if text is None else UNPARSABLE_TIME
        for i, (text, value) in enumerate(zip(texts, expected, strict=True))
        if value is None
    }


# Whatever the text, there is a time or a reason, never an error.
@PROPERTY
@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"])) | st.text("0123456789-:T.+Z ")),
    st.sampled_from(["UTC", BERLIN]),
)
def test_any_text_is_read_or_refused(texts, zone):
    values, reasons = read(texts, pa.string(), zone=zone)
    assert all(value is None or EARLIEST <= value <= LATEST + 10**6 for value in values)
    assert set(reasons.values()) <= {UNPARSABLE_TIME, AMBIGUOUS_TIME}


# An offset may move a time out of the years 1 to 9999, and Arrow knows a year 0: text must keep
# to the range that timestamps and numbers keep to.
@pytest.mark.parametrize(
    "text", ["0000-01-01", "0001-01-01T00:00:00+00:01", "9999-12-31T23:59:59-00:01"]
)
def test_text_outside_the_years_1_to_9999_is_refused(text):
    assert read([text], pa.string()) == ([None], {0: UNPARSABLE_TIME})


# A zone may move a clock time out of them as well.
def test_clock_time_of_a_zone_outside_the_years_1_to_9999_is_refused():
    texts = ["0001-01-01", "0001-01-02", "9999-12-31T23:59:59"]
    values, reasons = read(texts, pa.string(), zone=BERLIN)
    assert [value is None for value in values] == [True, False, False]
    assert reasons == {0: UNPARSABLE_TIME}
    assert read(["9999-12-31T23:59:59"], pa.string(), zone="America/New_York")[0] == [None]


# More digits than Arrow reads are no reason to refuse a clock time that UTC accepts.
def test_clock_time_with_many_digits_is_read_in_a_zone_as_in_utc():
    texts = ["2024-07-01T12:00:00.123456789"]
    assert read(texts, pa.string()) == ([utc(2024, 7, 1, 12, 0, 0, 123456)], {})
    assert read(texts, pa.string(), zone=BERLIN) == ([utc(2024, 7, 1, 10, 0, 0, 123456)], {})


# ---- dictionaries ---------------------------------------------------------------------------


def test_dictionary_with_null_index_null_value_and_unused_bad_value():
    values = pa.array(["2024-01-01", "bad", None, "never used and bad"])
    column = pa.DictionaryArray.from_arrays(pa.array([1, None, 0, 2, 0], pa.int8()), values)
    times, reasons = read(column, None)
    assert times == [None, None, utc(2024, 1, 1), None, utc(2024, 1, 1)]
    assert reasons == {0: UNPARSABLE_TIME, 1: NULL_TIME, 3: NULL_TIME}
    assert read(column[2:], None)[1] == {1: NULL_TIME}


def test_dictionary_without_values():
    column = pa.DictionaryArray.from_arrays(
        pa.array([None, None], pa.int32()), pa.array([], "string")
    )
    assert read(column, None) == ([None, None], {0: NULL_TIME, 1: NULL_TIME})


def test_dictionary_of_numbers_needs_the_unit_too():
    column = pa.array([5, 5, None], pa.int64()).dictionary_encode()
    assert read(column, None, unit="s") == ([5_000_000, 5_000_000, None], {2: NULL_TIME})
    with pytest.raises(ConfigurationError, match="--time_unit"):
        to_micros(column)


# ---- numbers --------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", PER_SECOND)
@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), pa.float64(), pa.float32()], ids=str)
def test_numbers_of_every_unit(unit, kind):
    raw = [0, 5, -5, None]
    per_micro = PER_SECOND[unit] / 1e6
    values, reasons = read(raw, kind, unit=unit)
    assert values == [0, int(np.floor(5 / per_micro)), int(np.floor(-5 / per_micro)), None]
    assert reasons == {3: NULL_TIME}


def test_integers_are_exact_beyond_2_to_the_53():
    raw = [2**53 + 1, -(2**53) - 1]
    assert read(raw, pa.int64(), unit="us")[0] == raw
    nanos = [2**62 + 1, -(2**62) - 1]
    assert read(nanos, pa.int64(), unit="ns")[0] == [n // 1000 for n in nanos]


# 64 bits without a sign reach the year 2554 in nanoseconds.
def test_unsigned_nanoseconds_do_not_wrap():
    assert read([2**63 + 5], pa.uint64(), unit="ns")[0] == [(2**63 + 5) // 1000]


def test_negative_nanoseconds_are_floored():
    assert read([-1, -1000, -1001], pa.int64(), unit="ns")[0] == [-1, -1, -2]
    assert read([-0.5, 0.5], pa.float64(), unit="us")[0] == [-1, 0]


# 8e9 seconds fit a time, 8e9 milliseconds' worth of seconds do not: both ends, and no wrapping.
@pytest.mark.parametrize(
    ("value", "kind", "unit"),
    [
        (2**63 - 1, pa.int64(), "s"),
        (-(2**63), pa.int64(), "ms"),
        (2**64 - 1, pa.uint64(), "us"),
        (LATEST // 10**6 + 1, pa.int64(), "s"),
        (EARLIEST // 10**6 - 1, pa.int64(), "s"),
        (float("nan"), pa.float64(), "s"),
        (float("inf"), pa.float64(), "s"),
        (-1e300, pa.float64(), "us"),
    ],
)
def test_numbers_that_are_no_time(value, kind, unit):
    values, reasons = read([7, value], kind, unit=unit)
    assert values[1] is None
    assert reasons == {1: UNPARSABLE_TIME}


def test_numbers_at_both_ends_of_time():
    raw = [LATEST // 10**6, EARLIEST // 10**6]
    assert read(raw, pa.int64(), unit="s")[0] == [LATEST, EARLIEST]


# Floats hold neither of the long ones: text is read digit by digit, and rounded down.
@pytest.mark.parametrize(
    ("text", "unit", "micros"),
    [
        ("5", "us", 5),
        ("-5", "us", -5),
        ("+5", "us", 5),
        ("007", "us", 7),
        ("-0", "us", 0),
        ("9" * 17, "us", 99999999999999999),
        ("1714521600123456789", "ns", 1714521600123456),
        ("-1714521600123456789", "ns", -1714521600123457),
        ("1714521600123456789.99", "ns", 1714521600123456),
        ("1714521600.123456", "s", 1714521600123456),
        ("1714521600.1234569", "s", 1714521600123456),
        ("-1.0000001", "s", -1000001),
        ("-1.0000000", "s", -1000000),
        ("-0.5", "us", -1),
        ("1714521600123.4567", "ms", 1714521600123456),
        ("5.", "s", 5000000),
        (".5", "s", 500000),
        ("1.7145216001234567e9", "s", 1714521600123456),
        ("17145216001234567e-7", "s", 1714521600123456),
        ("1e-99999999999999999999", "s", 0),
        ("-1e-99999999999999999999", "s", -1),
        ("0e99999999999999999999", "s", 0),
        ("0" * 5000 + "7", "s", 7000000),
        ("7" + "0" * 5000 + "e-5000", "s", 7000000),
        (" 7 ", "s", 7000000),
        ("20240501", "s", 20240501000000),  # digits are a number, never a date
    ],
)
def test_numbers_in_text_are_exact(text, unit, micros):
    assert read([text, "noon", None], pa.string(), unit=unit) == (
        [micros, None, None],
        {1: UNPARSABLE_TIME, 2: NULL_TIME},
    )


@pytest.mark.parametrize(
    "text",
    [
        *("--5", "5 5", "-", "e5", "1e", "0x5", "1_000", "NaN", "inf", "\u0665"),
        *("9" * 19, "9" * 5000, "1e400", "1e99999999999999999999", "-1e30"),
    ],
)
def test_no_times_among_numbers_in_text(text):
    assert read(["1", text], pa.string(), unit="us") == ([1, None], {1: UNPARSABLE_TIME})


@PROPERTY
@given(
    st.lists(
        st.tuples(
            st.decimals(-(10**19), 10**19, allow_nan=False) | st.integers(-(10**20), 10**20),
            st.sampled_from(["{:f}", "{:e}", "{}", "{:+}"]),
        )
    ),
    st.sampled_from(list(PER_SECOND)),
)
def test_numbers_in_text_agree_with_fractions(numbers, unit):
    """Each alone, and all together among dates."""
    texts = [form.format(Decimal(number)) for number, form in numbers]
    exact = [floor(Fraction(Decimal(text)) * 10**6 / PER_SECOND[unit]) for text in texts]
    expected = [time if EARLIEST <= time <= LATEST else None for time in exact]
    assert [read([text], pa.string(), unit=unit)[0][0] for text in texts] == expected
    mixed = [text for number in texts for text in (number, "2024-05-01")]
    values, _ = read(mixed, pa.string(), unit=unit)
    assert values[::2] == expected
    assert set(values[1::2]) <= {utc(2024, 5, 1)}


def test_numbers_in_text_are_no_times_without_a_unit():
    assert read(["5", "5.5"], pa.string())[1] == dict.fromkeys((0, 1), UNPARSABLE_TIME)


# A number outside the range must not disturb a null's reason, nor the other way round.
def test_null_beats_unparsable_among_numbers():
    _, reasons = read([None, 2**62, 1], pa.int64(), unit="s")
    assert reasons == {0: NULL_TIME, 1: UNPARSABLE_TIME}


@pytest.mark.parametrize("kind", [pa.int32(), pa.float64()], ids=str)
def test_numbers_without_a_unit_are_refused_by_name(kind):
    with pytest.raises(ConfigurationError, match=re.escape(f"'when' holds {kind}")):
        to_micros(pa.array([1], kind), name="when")


@pytest.mark.parametrize(
    "column",
    [
        pa.array([True]),
        pa.array([b"2024-01-01"]),
        pa.array([dt.time(1)], pa.time64("us")),
        pa.array([1], pa.duration("s")),
        pa.array([["2024-01-01"]]),
        pa.array([True]).dictionary_encode(),
    ],
    ids=lambda column: str(column.type),
)
def test_columns_that_hold_no_times_are_refused_by_name(column):
    with pytest.raises(ConfigurationError, match="column 'when' holds"):
        to_micros(column, name="when")


def test_columns_without_rows_or_values():
    for kind in (pa.null(), pa.string(), pa.timestamp("ns"), pa.date32()):
        assert read([], kind, zone=BERLIN) == ([], {})
    assert read([None, None], pa.null())[1] == {0: NULL_TIME, 1: NULL_TIME}


# ---- round trip of instants -----------------------------------------------------------------


@PROPERTY
@given(st.lists(st.none() | st.integers(EARLIEST, LATEST)), st.sampled_from(["s", "ms", "us"]))
def test_timestamps_and_numbers_agree(times, unit):
    per_unit = 10**6 // PER_SECOND[unit]
    raw = [None if time is None else time // per_unit for time in times]
    if any(r is not None and r * per_unit < EARLIEST for r in raw):
        return
    expected = [None if r is None else r * per_unit for r in raw]
    assert read(raw, pa.timestamp(unit))[0] == expected
    assert read(raw, pa.int64(), unit=unit)[0] == expected


# ---- serial dates of spreadsheets ---------------------------------------------------------------

SERIALS = {
    61: utc(1900, 3, 1),
    25569: utc(1970, 1, 1),
    45413: utc(2024, 5, 1),
    45413.375: utc(2024, 5, 1, 9),
    45413.041666666664: utc(2024, 5, 1, 1),  # of which a double is a little less
    2958465.5: utc(9999, 12, 31, 12),
    60: None,  # 1900-02-29
    0.5: None,
    -1: None,
    2958466: None,
}


def test_serial_dates():
    expected = list(SERIALS.values())
    bad = dict.fromkeys([row for row, time in enumerate(expected) if time is None], UNPARSABLE_TIME)
    for column in (
        pa.array(list(SERIALS), pa.float64()),
        pa.array(list(map(str, SERIALS))),
        pa.array(list(map(str, SERIALS))).dictionary_encode(),
    ):
        assert read(column, None, unit="excel") == (expected, bad)
    assert read([45413, None], pa.int32(), unit="excel") == (
        [utc(2024, 5, 1), None],
        {1: NULL_TIME},
    )


def test_serial_dates_are_clock_times_of_the_zone():
    """Whole ones are dates, which have no clock time."""
    serials = [45408, 45408.5, 45408.01]  # 2024-04-26, whose first hour is skipped
    for column in (pa.array(serials), pa.array(list(map(str, serials)))):
        values, reasons = read(column, None, unit="excel", zone="Africa/Cairo")
        assert values == [utc(2024, 4, 25, 22), utc(2024, 4, 26, 9), None]
        assert reasons == {2: AMBIGUOUS_TIME}


def test_text_that_is_no_serial_date_is_read_as_ever():
    values, _ = read(["45413", "2024-05-01T12:00Z"], pa.string(), unit="excel")
    assert values == [utc(2024, 5, 1), utc(2024, 5, 1, 12)]
