"""The shared record types: what they accept, how they read it, and what a refusal says."""

import datetime as dt
import math
import re
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms import ConfigurationError, Requirement, Slots
from streamveil.mechanisms.core.records import as_requirement, format_time, parse_time

PROPERTY = settings(max_examples=150)

# ---- requirements ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "window", [0, -1, 2**20 + 1, 1.5, math.nan, math.inf, True, np.True_, "3", None]
)
def test_bad_window_is_named(window):
    with pytest.raises(ConfigurationError, match=rf"window {re.escape(repr(window))} is not"):
        Requirement(window, 1.0)


EPSILONS = [0, -0.5, 4097.0, math.nan, math.inf, True, "1", None, 10**400, 1j]
EPSILONS += [Decimal("4097"), Decimal("NaN"), Decimal("sNaN"), Decimal("Infinity")]


@pytest.mark.parametrize("epsilon", EPSILONS, ids=repr)
def test_bad_epsilon_is_named(epsilon):
    with pytest.raises(ConfigurationError, match=rf"epsilon {re.escape(repr(epsilon))} is not"):
        Requirement(1, epsilon)


# Numbers of any kind become plain ones, so that equal requirements are one class.
def test_requirement_is_normalised():
    exotic = Requirement(np.int32(3), np.float64(0.5))
    assert exotic == Requirement(3.0, 0.5)
    assert hash(exotic) == hash(Requirement(3, 0.5))
    assert (type(exotic.window), type(exotic.epsilon)) == (int, float)
    assert type(Requirement(1, 2).epsilon) is float
    assert Requirement(1, Decimal("0.1")) == Requirement(1, Fraction(1, 10)) == Requirement(1, 0.1)
    assert Requirement(2**20, 4096).window == 2**20


@pytest.mark.parametrize("value", [3, (1,), (1, 2.0, 3), None, "ab c"])
def test_what_is_no_requirement_is_named(value):
    with pytest.raises(ConfigurationError, match=re.escape(repr(value))):
        as_requirement(value)


# ---- time -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("1w", 604_800_000_000),
        ("1d", 86_400_000_000),
        ("1h", 3_600_000_000),
        ("5m", 300_000_000),
        ("60s", 60_000_000),
        ("500ms", 500_000),
        (" 2 h ", 7_200_000_000),
    ],
)
def test_slot_lengths(text, microseconds):
    assert Slots.of(text).length == microseconds


@pytest.mark.parametrize(
    "text", ["0h", "0ms", "", "1", "h", "-1h", "1.5h", "1mon", "1H", "1h30m", "one hour", "1 h x"]
)
def test_bad_slot_length_is_named(text):
    with pytest.raises(ConfigurationError, match=rf"{re.escape(repr(text))}.*write 1w, 1d, 1h"):
        Slots.of(text)


@pytest.mark.parametrize(("length", "origin"), [(0, 0), (-1000, 0), (1500, 0), (1000, 1), (999, 0)])
def test_slots_are_whole_milliseconds(length, origin):
    with pytest.raises(ConfigurationError, match=f"{length} us and origin {origin} us"):
        Slots(length, origin)


# An origin without an offset is UTC; with one it is that instant.
@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("2024-03-31", 0),
        ("2024-03-31T00:00:00", 0),
        ("2024-03-31T00:00:00Z", 0),
        ("2024-03-31T00:00:00z", 0),
        ("2024-03-31T00:00:00+02:00", -2),
        ("2024-03-30T19:30:00-05:00", 0.5),
        (" 2024-03-31T01:00 ", 1),
        ("2024/03/31", 0),
        ("20240331T020000Z", 2),
        ("20240331T0200+02:00", 0),
        ("2024-03-31 01:00:00 UTC", 1),
        (dt.datetime(2024, 3, 31), 0),
        (dt.datetime(2024, 3, 31, tzinfo=dt.timezone(dt.timedelta(hours=2))), -2),
    ],
)
def test_origins(text, hours):
    midnight = 1_711_843_200_000_000
    assert Slots.of("1h", text).origin == midnight + hours * 3_600_000_000


@pytest.mark.parametrize(
    "text",
    [
        *("yesterday", "", "31.03.2024", "2024-13-01", "2024-02-30T00:00", "20240331", "2024/3/1"),
        *("31/03/2024", "2024-03-31 UTC", "20240331T1"),
    ],
)
def test_bad_time_is_named(text):
    with pytest.raises(ConfigurationError, match=rf"{re.escape(repr(text))} is not ISO 8601"):
        Slots.of("1h", text)


# No origin is the epoch, and a microsecond that slots cannot start at is refused.
def test_origin_ends():
    assert Slots.of("1h").origin == 0
    assert Slots.of("1h", "1969-12-31T23:00Z").origin == -3_600_000_000
    with pytest.raises(ConfigurationError, match="whole milliseconds"):
        Slots.of("1h", "2024-03-31T00:00:00.000001")


# Slots tile all of time, before the origin as after it: every time is in the slot of its index,
# from the first microsecond to before the end.
@PROPERTY
@given(st.integers(1, 10**8), st.integers(-(10**12), 10**12), st.integers(-(10**16), 10**16))
def test_slots_tile_time(length, origin, time):
    slots = Slots(length * 1000, origin * 1000)
    slot = slots.index(time)
    assert slots.start(slot) <= time < slots.end(slot)
    assert slots.end(slot) == slots.start(slot + 1)


def test_floor_before_the_origin():
    slots = Slots.of("1h", "2024-03-31T00:00Z")
    assert [slots.index(slots.origin + us) for us in (-1, 0, 1)] == [-1, 0, 0]
    assert slots.index(slots.origin - 3_600_000_000) == -1
    assert slots.index(slots.origin - 3_600_000_001) == -2


@PROPERTY
@given(st.integers(-(10**16), 10**16))
def test_time_round_trip(time):
    assert format_time(time).endswith("Z")
    assert parse_time(format_time(time)) == time
