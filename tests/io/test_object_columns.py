"""Columns of objects of pandas: every cell is read by itself, whatever stands beside it."""

import datetime as dt
import math
from decimal import Decimal
from enum import Enum
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from apache_beam.utils.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st

import streamveil as sv
from streamveil.engine.encode.numbers import as_numbers
from streamveil.engine.encode.times import to_micros
from streamveil.io import event_table, table_of
from streamveil.mechanisms.core.cell_text import cell_text
from streamveil.mechanisms.core.records import parse_time

UTC = dt.timezone.utc
LMT = dt.timezone(dt.timedelta(minutes=53, seconds=28))


class Kind(str, Enum):
    CAR = "car"


TEXTS = [
    ("a", "a"),
    ("1.0", "1.0"),
    (Kind.CAR, "car"),
    (np.str_("b"), "b"),
    (1, "1"),
    (2**70, str(2**70)),
    (np.int8(-3), "-3"),
    (np.uint64(2**64 - 1), str(2**64 - 1)),
    (1.0, "1"),
    (2.5, "2.5"),
    (np.float32(0.5), "0.5"),
    (Decimal("1.0"), "1"),
    (Decimal("1E+3"), "1000"),
    (True, "true"),
    (np.False_, "false"),
    (None, None),
    (math.nan, None),
    (np.float64("nan"), None),
    (Decimal("nan"), None),
    (pd.NA, None),
    (pd.NaT, None),
    (np.datetime64("NaT"), None),
]
TIMES = [
    (dt.datetime(2024, 5, 1, 12), "2024-05-01T10:00Z"),  # without an offset: Berlin's
    (dt.datetime(2024, 5, 1, 12, tzinfo=UTC), "2024-05-01T12:00Z"),
    (
        dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
        "2024-10-27T01:30Z",
    ),
    (dt.datetime(1880, 1, 1, tzinfo=LMT), "1879-12-31T23:06:32Z"),
    (pd.Timestamp("2024-05-01 12:00:00.123456789"), "2024-05-01T10:00:00.123456Z"),
    (pd.Timestamp("2024-05-01 12:00", tz="America/Lima"), "2024-05-01T17:00Z"),
    (np.datetime64("2024-05-01T12", "h"), "2024-05-01T10:00Z"),
    (np.datetime64("2024-05-01T12:00:00", "ns"), "2024-05-01T10:00Z"),
    (np.datetime64("2024-05-01"), "2024-04-30T22:00Z"),
    (dt.date(2024, 5, 1), "2024-04-30T22:00Z"),
    ("2024-05-01T12:00", "2024-05-01T10:00Z"),
    ("2024-05-01T12:00+01:00", "2024-05-01T11:00Z"),
    (Timestamp(1714564800), "2024-05-01T12:00Z"),
]
ODD = [b"a", [1], {}, dt.time(9), dt.timedelta(1), 1j, math.inf, Decimal("inf"), "\ud800", object()]


def column(cells, dtype=object):
    frame = pd.DataFrame({"odd": pd.Series(list(cells), dtype=dtype), "list": [[1]] * len(cells)})
    table, faults = event_table(frame, "data", ("odd",))
    return table["odd"].combine_chunks(), faults


@given(st.lists(st.sampled_from([*TEXTS, *((cell, None) for cell in ODD)]), max_size=12))
def test_every_cell_is_read_by_itself(cells):
    found, faults = column([cell for cell, _ in cells])
    assert found.to_pylist() == [text for _, text in cells]
    odd = [row for row, (cell, _) in enumerate(cells) if any(cell is each for each in ODD)]
    assert list(faults) == odd
    for row in odd:
        assert faults[row].startswith("odd is ")
        assert faults[row].endswith("not text, a number, a boolean or a time")


@given(st.permutations(TIMES), st.sampled_from([object, "category"]))
def test_times_do_not_depend_on_the_first_one(times, dtype):
    if dtype == "category":  # which compares them
        times = [pair for pair in times if not isinstance(pair[0], Timestamp)]
    found, _ = column([cell for cell, _ in times], dtype)
    micros, reasons = to_micros(found, zone="Europe/Berlin")
    assert not reasons
    assert micros.tolist() == [parse_time(instant) for _, instant in times]


@pytest.mark.parametrize("first", [7, 7.0, "7", Decimal(7), None, math.nan, True, b"x"])
def test_numbers_do_not_depend_on_the_first_one(first):
    found, _ = column([first, 1, 2.5, "3e1", Decimal("0.1"), np.int64(4)])
    assert as_numbers(found)[1:].tolist() == [1, 2.5, 30, 0.1, 4]


def test_text_with_missing_cells_stays_whole():
    for missing in (None, math.nan, pd.NA, pd.NaT):
        assert column(["a", missing, "é"])[0].to_pylist() == ["a", None, "é"]
    assert pa.types.is_dictionary(column(["a", "b", "a"], "category")[0].type)


def test_rows_are_read_alike():
    """Dictionaries of a pipeline, but for NaN, which JSON has not."""
    for cell, text in TEXTS:
        assert cell_text(cell) == text


def test_one_cell_stops_no_other():
    rows = [dt.datetime(2024, 5, 1, 15, tzinfo=UTC)] * 3
    frame = pd.DataFrame(
        {"user": ["u0", 1, b"x"], "place": "cafe", "time": pd.Series(rows, dtype=object)}
    )
    found = sv.release(
        frame,
        **{"user": "user", "value": "place", "time": "time", "slot": "1h", "domain": ["cafe"]},
        **{"start": "2024-05-01T15:00Z", "end": "2024-05-01T16:00Z"},
        run=sv.RunOptions(max_rejected=1),
        requirements=pd.DataFrame({"user": ["u0", 1], "window": 1, "epsilon": 50.0}),
        mechanism="uniform",
    )
    assert found.to_pandas()["value"].tolist() == [2]
    (letter,) = found.rejected.to_pylist()
    assert letter["row"] == 2
    assert letter["reason"] == "wrong type"
    assert letter["detail"].startswith("user is b'x', of type bytes, not text, a number")


def test_an_index_with_a_name_is_a_column():
    frame = pd.DataFrame({"user": [1, "b"], "place": ["x", "y"]}).set_index("user")
    assert event_table(frame, "data", ("user",))[0].to_pydict() == {"user": ["1", "b"]}
    assert table_of(frame, "data").to_pydict() == {"user": ["1", "b"], "place": ["x", "y"]}


def test_a_missing_column_is_named():
    with pytest.raises(sv.ConfigurationError, match=r"data: the table has no column 'b'.* 'a'"):
        event_table(pd.DataFrame({"a": [1]}), "data", ("b",))


def test_objects_of_polars():
    polars = pytest.importorskip("polars")
    cells = [dt.datetime(2024, 5, 1, 12), dt.date(2024, 5, 1), "a", 1, 1.0, None, b"x"]
    odd = polars.Series(cells, dtype=polars.Object)
    table, faults = event_table(
        polars.DataFrame({"odd": odd, "n": 1, "other": odd}), "data", ("odd", "n")
    )
    assert table["odd"].to_pylist() == [
        "2024-05-01T12:00:00",
        "2024-05-01",
        "a",
        "1",
        "1",
        None,
        None,
    ]
    assert list(faults) == [6]
    assert table["n"].to_pylist() == [1] * 7
