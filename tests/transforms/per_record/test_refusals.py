"""What cannot be accounted for is refused before anything runs, with what to do about it."""

import re

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.transforms.trigger import AccumulationMode, AfterCount
from apache_beam.transforms.window import FixedWindows, GlobalWindows, Sessions, SlidingWindows

from streamveil.mechanisms import ConfigurationError, Slots
from streamveil.transforms import (
    PerRecordCount,
    PerRecordDistinctCount,
    PerRecordMax,
    PerRecordRunningTotal,
    PerRecordSum,
)

EVERYTHING = (PerRecordCount, PerRecordSum, PerRecordMax, PerRecordDistinctCount)
WINDOWS = {
    "merging": Sessions(60),
    "fixed": FixedWindows(60),
    "sliding": SlidingWindows(60, 20),
}


def value_of(transform):
    return {} if transform is PerRecordCount else {"value": "amount"}


@pytest.mark.parametrize("transform", [*EVERYTHING, PerRecordRunningTotal])
@pytest.mark.parametrize("kind", [*WINDOWS, "triggered", "accumulating"])
def test_windows_and_triggers(records, transform, kind):
    if kind in WINDOWS:
        windows = beam.WindowInto(WINDOWS[kind])
    else:
        mode = AccumulationMode.DISCARDING if kind == "triggered" else AccumulationMode.ACCUMULATING
        windows = beam.WindowInto(GlobalWindows(), trigger=AfterCount(1), accumulation_mode=mode)
    made = transform(records.noisy, **value_of(transform), **records.windows())
    batches = beam.Pipeline() | beam.Create([], reshuffle=False).with_output_types(pa.RecordBatch)
    with pytest.raises(ValueError, match=r"the records (are in windows|have a trigger)"):
        batches | windows | made


REFUSED = {
    "--key_column": {"key": "key"},
    "--keys": {"keys": ("a",)},
    "key 'a' is listed twice": {"key": "key", "keys": ("a", "b", "a")},
    "--time_column": {"time": "time"},
    "--slot": {"slots": Slots(1000)},
    "leave out --start": {"first_slot": 3},
    "need a length": {"sliding": 2},
    "whole number": {"sliding": 0},
    "max_records_per_user is 0": {"max_records_per_user": 0},
    "--allowed_lateness": {"allowed_lateness": "soon"},
    "time zone 'Mars' (--time_zone)": {"time_zone": "Mars"},
    "time unit 'h' (--time_unit)": {"time_unit": "h"},
    "the range of slots is empty": {
        "time": "t",
        "slots": Slots(1000),
        "first_slot": 2,
        "last_slot": 1,
    },
    "fewer than the 3 of a window": {
        "time": "t",
        "slots": Slots(1000),
        "first_slot": 1,
        "last_slot": 2,
        "sliding": 3,
    },
    "has 3 bytes": {"noise_key": b"abc"},
    "unknown": {"mechanism": "magic"},
    "beta is given twice": {"mechanism": "hat:beta=0.1", "beta": 0.2},
    "leave it out, or sum it": {"value": "amount"},
}


@pytest.mark.parametrize("message", REFUSED)
def test_options_that_do_not_fit(records, message):
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        PerRecordCount(records.noisy, **REFUSED[message])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda r: PerRecordSum(r.noisy), "--value_column"),
        (lambda r: PerRecordSum(r.exact, "amount"), "--value_max"),
        (lambda r: PerRecordMax(r.noisy, "other"), "--value_max"),
        (lambda r: PerRecordRunningTotal(r.noisy), "--slot"),
        (lambda r: PerRecordRunningTotal(r.noisy, **r.windows(first=None)), "--start"),
        (lambda r: PerRecordRunningTotal(r.noisy, **r.windows(sliding=2)), "--window"),
        (
            lambda r: PerRecordDistinctCount(r.noisy, "amount", **r.windows(sliding=2)),
            "distinct values",
        ),
    ],
)
def test_statistics_that_cannot_be(records, make, message):
    with pytest.raises(ConfigurationError, match=message):
        make(records)


@pytest.mark.parametrize("missing", ["first", "last"])
def test_the_range_of_an_input_that_ends_is_public(release, records, missing):
    made = PerRecordCount(records.noisy, **records.windows(**{missing: None}))
    with pytest.raises(ConfigurationError, match="--start and --end"):
        release(made, [records.batch(records.some(9))])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": "where", "keys": ("a",)}, "the records have no column 'where'; there are: amount"),
        ({"key": "time", "keys": ("a",)}, "column 'time' holds timestamp.*: give text"),
        ({"time": "key2", "slots": Slots(1000), "first_slot": 0, "last_slot": 1}, "'key2'"),
        ({"time": "amount", "slots": Slots(1000), "first_slot": 0, "last_slot": 1}, "time_unit"),
    ],
)
def test_columns_that_cannot_serve(release, records, options, message):
    with pytest.raises(Exception, match=message):
        release(PerRecordCount(records.noisy, **options), [records.batch(records.some(9))])
