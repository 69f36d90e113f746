"""The tidy table of releases: a row for each slot and bin, in every format."""

import csv
import math

import apache_beam as beam
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamveil.io import RESULT_SCHEMA, WriteReleases, read_table
from streamveil.io.locations import sink_of
from streamveil.io.releases import release_form, release_schema
from streamveil.io.tables import write_table
from streamveil.io.tidy import LAYOUTS, quoted_label
from streamveil.mechanisms.core.local_days import CalendarSlots, zone_of
from streamveil.mechanisms.core.records import (
    ConfigurationError,
    Estimate,
    Release,
    Slots,
    parse_time,
)
from streamveil.mechanisms.core.tidy import interval
from streamveil.pipelines.options import declarations

DAY = 86_400_000_000
COLUMNS = [
    *("query", "slot", "start", "end", "key", "statistic", "value", "low", "high", "stderr"),
    "status",
]
LABELS = ("=1+2", "cafe", "-5", "'quoted", "@home", "a,b", "été")


def release(slot, counts, stderr, status="published", estimates=None):
    estimate = Estimate(np.array(counts), status, slot, 0.1, np.array(stderr), estimates=estimates)
    return Release.of(estimate, slot, Slots(DAY), "m")


RELEASES = [
    release(1, range(-3, 4), [2.0] * 7),
    release(0, [0] * 7, [math.nan] * 6 + [math.inf], "nullified"),
]


def write(path, releases=RELEASES, labels=LABELS):
    with beam.Pipeline(runner="BundleBasedDirectRunner") as pipeline:
        pipeline | beam.Create(releases) | WriteReleases(str(path), labels=labels)


@pytest.mark.parametrize("ending", ["parquet", "avro", "csv", "jsonl"])
def test_every_format_has_a_row_for_each_slot_and_bin(tmp_path, ending):
    path = tmp_path / f"out.{ending}"
    write(path)
    rows = read_table(str(path)).to_pylist()
    assert list(rows[0]) == COLUMNS
    assert [row["slot"] for row in rows] == [0] * 7 + [1] * 7
    shown = [quoted_label(label) for label in LABELS] if ending == "csv" else list(LABELS)
    assert [row["key"] for row in rows] == shown * 2
    assert [row["value"] for row in rows[7:]] == [-3, -2, -1, 0, 1, 2, 3]
    unknown = {(row["low"], row["high"], row["stderr"], row["status"]) for row in rows[:7]}
    assert unknown == {(None, None, None, "nullified")}
    for row in rows[7:]:
        assert row["low"] == 0
        assert row["high"] == pytest.approx(row["value"] + 3.29)
        assert (row["query"], row["statistic"], row["stderr"]) == ("count", "count", 2.0)
        assert row["start"].isoformat() == "1970-01-02T00:00:00+00:00"
        assert row["end"].isoformat() == "1970-01-03T00:00:00+00:00"


# Rounding would make sums of many small counts 0: tidy rows have what was estimated.
def test_counts_are_not_rounded(tmp_path):
    estimates = np.array([0.2, 0.4, 7.25, 0.0, 0.1, 0.3, 12.5])
    counts = np.rint(estimates).astype(np.int64)
    write(tmp_path / "out.csv", [release(1, counts, [2.0] * 7, estimates=estimates)])
    rows = read_table(str(tmp_path / "out.csv")).to_pylist()
    assert [row["value"] for row in rows] == estimates.tolist()
    assert rows[6]["low"] == pytest.approx(12.5 - 3.29)
    assert rows[0]["high"] == pytest.approx(0.2 + 3.29)


def test_the_types_are_those_of_the_schema(tmp_path):
    write(tmp_path / "out.parquet")
    assert read_table(str(tmp_path / "out.parquet")).schema.equals(RESULT_SCHEMA)
    write(tmp_path / "none.parquet", [])
    assert read_table(str(tmp_path / "none.parquet")).num_rows == 0


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_times_are_in_the_zone_of_the_slots(tmp_path, ending):
    """The day on which clocks in Berlin go forward has 23 hours."""
    days = CalendarSlots(DAY, zone="Europe/Berlin")
    first = days.index(parse_time("2024-03-31", "Europe/Berlin"))
    estimate = Estimate(np.array([4]), "published", first, 0.1, np.array([2.0]))
    path = tmp_path / f"out.{ending}"
    form = release_form(["cafe"], zone=zone_of(days))
    made = form.table([Release.of(estimate, first, days, "m")])
    write_table(str(path), made.schema, made.to_batches())
    [row] = read_table(str(path)).to_pylist()
    assert row["end"].timestamp() - row["start"].timestamp() == 23 * 3600
    if ending == "parquet":
        assert row["start"].isoformat() == "2024-03-31T00:00:00+01:00"
        assert row["end"].isoformat() == "2024-04-01T00:00:00+02:00"
    else:
        text = path.read_text()
        assert "2024-03-31T00:00:00+01:00" in text
        assert "2024-04-01T00:00:00+02:00" in text


def test_a_spreadsheet_runs_nothing(tmp_path):
    """Of text; a negative count is a number, which begins with a minus sign all the same."""
    write(tmp_path / "out.csv")
    with open(tmp_path / "out.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        assert row["key"][0] not in "=+-@\t\r\n"
        assert float(row["value"]) in range(-3, 4)
        assert row["low"] == "" or float(row["low"]) < float(row["high"])
    assert float(rows[7]["value"]) == -3


@given(st.text(min_size=1))
def test_a_label_comes_back(label):
    shown = quoted_label(label)
    assert (shown[1:] if shown.startswith("'") else shown) == label
    assert not shown.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))


def test_the_interval_is_the_one_whose_coverage_is_reported():
    """`evaluate` counts a true number as covered where the table says between which it is."""
    from streamveil.pipelines.evaluation.w_event import interval as measured

    assert measured is interval
    low, high = interval(np.array([10, 10]), np.array([2.0, math.nan]))
    np.testing.assert_array_equal(low, [10 - 1.645 * 2, math.nan])
    np.testing.assert_array_equal(high, [10 + 1.645 * 2, math.nan])


def test_neither_end_of_an_interval_is_below_0():
    low, high = interval(np.array([1, -9, -2]), np.array([2.0, 2.0, 2.0]))
    assert low.tolist() == [0, 0, 0]
    assert high == pytest.approx([1 + 3.29, 0, 1.29])


@pytest.mark.parametrize(
    ("arguments", "word"),
    [({"labels": LABELS, "layout": "wide"}, "tidy or rows"), ({}, "labels")],
)
def test_what_cannot_be_written_is_refused(arguments, word):
    with pytest.raises(ConfigurationError, match=word):
        WriteReleases("out.csv", **arguments)


def test_without_a_layout_files_and_streams_are_tidy():
    assert sink_of("out.csv", LABELS).layout == "tidy"
    assert sink_of("out.csv", LABELS, layout="rows").layout == "rows"
    schemas = [
        sink_of("folder:out", LABELS, layout=layout).messages.rows.schema.names
        for layout in ("tidy", "rows")
    ]
    assert schemas == [RESULT_SCHEMA.names, release_schema().names]
    assert sink_of("folder:out", LABELS).messages.rows.schema.names == RESULT_SCHEMA.names


def test_the_command_knows_the_layouts():
    assert declarations.LAYOUTS == LAYOUTS
