"""State bytes: versions, and runs of equal rows."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from streamveil.mechanisms.core import state_codec

OLD = {
    "type": "record",
    "name": "Thing",
    "fields": [{"name": "count", "type": "long"}],
}
NEW = {
    "type": "record",
    "name": "Thing",
    "fields": [{"name": "count", "type": "long"}, {"name": "rows", "type": state_codec.RUNS}],
}


# The first byte is the newest version, and reading gives back what was written.
def test_round_trip_under_the_newest_version():
    record = {"count": 7, "rows": [{"repeat": 3, "row": [1, -2]}]}
    data = state_codec.pack({1: OLD, 2: NEW}, record)
    assert data[0] == 2
    assert state_codec.unpack({1: OLD, 2: NEW}, data) == (2, record)


# A later release still reads what an earlier one wrote, and gets the number of its version.
def test_older_version_is_readable():
    data = state_codec.pack({1: OLD}, {"count": 7})
    assert data[0] == 1
    assert state_codec.unpack({1: OLD, 2: NEW}, data) == (1, {"count": 7})


# An earlier release refuses what a later one wrote, and says what to do.
def test_newer_version_is_refused():
    data = state_codec.pack({1: OLD, 2: NEW}, {"count": 7, "rows": []})
    with pytest.raises(ValueError, match=r"version 2 .*\[1\].*newer streamveil.*later"):
        state_codec.unpack({1: OLD}, data)


@pytest.mark.parametrize("data", [b"", b"\x00", b"\xffjunk"])
def test_what_is_no_state_is_refused(data):
    with pytest.raises(ValueError, match="it is not state"):
        state_codec.unpack({1: OLD}, data)


TABLES = npst.arrays(
    np.int64,
    npst.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=12),
    # Few values, so that neighbours are often equal, and the ends of int64.
    elements=st.sampled_from([0, 0, 0, 1, 2**52, -(2**63), 2**63 - 1]),
)


# Rows survive being written as runs; no two neighbouring runs are equal.
@settings(max_examples=200)
@given(TABLES)
def test_runs_round_trip(rows):
    runs = state_codec.runs_of(rows)
    assert sum(run["repeat"] for run in runs) == len(rows)
    assert all(a["row"] != b["row"] for a, b in itertools.pairwise(runs))
    packed = state_codec.pack({1: NEW}, {"count": 0, "rows": runs})
    _, record = state_codec.unpack({1: NEW}, packed)
    np.testing.assert_array_equal(state_codec.rows_of(record["rows"], rows.shape[1]), rows)


def test_no_rows():
    empty = np.zeros((0, 3), dtype=np.int64)
    assert state_codec.runs_of(empty) == []
    assert state_codec.rows_of([], 3).shape == (0, 3)


# Equal neighbours cost nothing: a million equal rows are a few bytes.
def test_runs_are_small():
    rows = np.full((1_000_000, 3), 5, dtype=np.int64)
    assert len(state_codec.pack({1: NEW}, {"count": 0, "rows": state_codec.runs_of(rows)})) < 32
