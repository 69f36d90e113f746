"""Every row of a batch becomes an event or a dead letter with its place, reason and record."""

import json
import re
import subprocess
import sys
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.engine.encode.event_mapper import EventMapper
from streamveil.io import REJECTED_SCHEMA
from streamveil.mechanisms import (
    Categories,
    ConfigurationError,
    Edges,
    Grid,
    Registry,
    Requirement,
    Slots,
)
from streamveil.mechanisms.core.records import ROW_COLUMN, SOURCE_METADATA
from streamveil.transforms import Columns

HOUR = 3_600_000_000
KEY = bytes(32)
COLUMNS = Columns("user", ("value",), "time")
REGISTRY = Registry.of({"ann": (2, 1.0), "bob": (3, 2.0)})
OPEN = Registry.of({"ann": (2, 1.0)}, default=(Requirement(2, 1.0), 10))


def mapper(domain=None, registry=REGISTRY, columns=COLUMNS, **options):
    domain = domain or Categories(("a", "b"))
    return EventMapper(columns, Slots.of("1h"), domain, registry, KEY, **options)


def batch(rows, *, first_row=None, source=None, times=None):
    """A batch of (user, value, hours) rows, with or without provenance."""
    users, values, hours = zip(*rows, strict=True) if rows else ((), (), ())
    if times is None:
        times = pa.array([None if h is None else h * HOUR for h in hours], pa.timestamp("us"))
    columns = {"user": pa.array(users, pa.string()), "value": pa.array(values), "time": times}
    if first_row is not None:
        columns[ROW_COLUMN] = pa.array(range(first_row, first_row + len(rows)), pa.int64())
    made = pa.RecordBatch.from_pydict(columns)
    return made if source is None else made.replace_schema_metadata({SOURCE_METADATA: source})


def events_of(events):
    return sorted(
        zip(events.slots.tolist(), events.members.tolist(), events.bins.tolist(), strict=True)
    )


def test_good_rows_become_slots_members_and_bins():
    rows = [("bob", "a", 0), ("ann", "b", 5), ("ann", "a", -1), ("bob", "b", 5)]
    events, rejected = mapper().map(batch(rows))
    assert events_of(events) == [(-1, 0, 0), (0, 1, 0), (5, 0, 1), (5, 1, 1)]
    assert events.strangers.shape == (0, 2)
    assert rejected.num_rows == 0
    assert rejected.schema == REJECTED_SCHEMA


# ---- reasons --------------------------------------------------------------------------------

GOOD = ("ann", "a", 0)
# One fault each: the row, the reason and the detail.
FAULTY = [
    ((None, "a", 0), "null user", "user is null"),
    (("", "a", 0), "null user", "user is "),
    (("eve", "a", 0), "no requirement", "user is eve"),
    (("ann", None, 0), "null value", "value is null"),
    (("ann", "z", 0), "outside the domain", "value is z"),
    (("ann", "a", None), "null time", "time is null"),
    (("ann", "a", -1), "outside the released slots", "time is 1969-12-31 23:00:00.000000"),
    (("ann", "a", 3), "outside the released slots", "time is 1970-01-01 03:00:00.000000"),
]


@pytest.mark.parametrize(("row", "reason", "detail"), FAULTY)
def test_each_fault_is_reported_with_its_place(row, reason, detail):
    made = batch([GOOD, row, GOOD, row], first_row=70, source=b"part-3.parquet")
    events, rejected = mapper(first_slot=0, last_slot=2).map(made)
    assert events_of(events) == [(0, 0, 0)] * 2
    letters = rejected.to_pylist()
    assert [letter["row"] for letter in letters] == [71, 73]
    for letter in letters:
        assert letter["source"] == "part-3.parquet"
        assert letter["reason"] == reason
        assert letter["detail"] == detail
        record = json.loads(letter["record"])
        # The record is whole and holds nothing of the provenance.
        assert set(record) == {"user", "value", "time"}
        assert (record["user"], record["value"]) == row[:2]


def test_unparsable_and_ambiguous_times():
    columns = Columns("user", ("value",), "time", time_zone="Europe/Berlin")
    times = pa.array(["1970-01-01T01:00:00", "noon", "1990-09-30T02:30:00"])
    made = batch([("ann", "a", 0)] * 3, first_row=0, times=times)
    events, rejected = mapper(columns=columns).map(made)
    assert events_of(events) == [(0, 0, 0)]
    assert [(r["row"], r["reason"], r["detail"]) for r in rejected.to_pylist()] == [
        (1, "unparsable time", "time is noon"),
        (2, "ambiguous time", "time is 1990-09-30T02:30:00"),
    ]


@pytest.mark.parametrize("zone", ["Mars/Phobos", "+02:00", "../etc/passwd", "", "Europe", None])
def test_unknown_time_zone_is_named(zone):
    with pytest.raises(ConfigurationError, match=rf"time zone {re.escape(repr(zone))} .*Berlin"):
        Columns("user", ("value",), "time", time_zone=zone)


@pytest.mark.parametrize("unit", ["h", "seconds", "", 1])
def test_unknown_time_unit_is_named(unit):
    with pytest.raises(ConfigurationError, match=f"time unit {unit!r} .* s, ms, us, ns"):
        Columns("user", ("value",), "time", time_unit=unit)


@pytest.mark.parametrize("unit", [None, "s", "ms", "us", "ns"])
def test_known_zones_and_units(unit):
    columns = Columns("user", ("value",), "time", "America/New_York", unit)
    assert (columns.time_zone, columns.time_unit) == ("America/New_York", unit)


def test_not_a_number_and_both_columns_of_a_grid_in_the_detail():
    columns = Columns("user", ("x", "y"), "time")
    made = pa.RecordBatch.from_pydict(
        {
            "user": ["ann"] * 4,
            "x": [0.5, float("nan"), None, 7.0],
            "y": ["0.5", "0.5", "0.5", "0.5"],
            "time": pa.array([0] * 4, pa.timestamp("s")),
        }
    )
    _, rejected = mapper(Grid(0, 0, 1, 1, 2, 2), columns=columns).map(made)
    assert [(r["reason"], r["detail"]) for r in rejected.to_pylist()] == [
        ("not a number", "x is nan, y is 0.5"),
        ("null value", "x is null, y is 0.5"),
        ("outside the domain", "x is 7.0, y is 0.5"),
    ]


# Faults are looked for in this order: time, user absent, value, requirement, range.
def test_the_first_fault_wins():
    rows = [
        (None, None, None),
        ("eve", "z", None),
        (None, "z", 99),
        ("eve", None, 99),
        ("eve", "z", 99),
        ("eve", "a", 99),
        ("ann", "a", 99),
    ]
    _, rejected = mapper(last_slot=2).map(batch(rows))
    assert rejected.column("reason").to_pylist() == [
        "null time",
        "null time",
        "null user",
        "null value",
        "outside the domain",
        "no requirement",
        "outside the released slots",
    ]


def test_batch_without_provenance():
    _, rejected = mapper().map(batch([("eve", "a", 0), GOOD, (None, "a", 0)]))
    assert [(r["source"], r["row"]) for r in rejected.to_pylist()] == [(None, None)] * 2
    assert rejected.schema == REJECTED_SCHEMA


# A slice of a batch names the rows of its own file, since they travel as a column.
def test_slices_keep_their_rows():
    made = batch([GOOD, ("eve", "a", 0), GOOD, ("eve", "b", 0)], first_row=10)[2:]
    events, rejected = mapper().map(made)
    assert events_of(events) == [(0, 0, 0)]
    assert rejected.column("row").to_pylist() == [13]


def test_columns_that_are_not_read_are_in_the_record():
    made = batch([("eve", "é\0", 0)]).append_column("note", pa.array([{"k": [1, None]}]))
    made = made.append_column("raw", pa.array([b"\xff\x00"]))
    _, rejected = mapper().map(made)
    record = json.loads(rejected.column("record")[0].as_py())
    assert record["note"] == {"k": [1, None]}
    assert record["value"] == "é\0"
    assert "raw" in record


# ---- records that Python's own types cannot hold: a dead letter, never a crash ----------------


# Parquet files often hold nanoseconds; pandas, which reads them as objects, is not required.
WITHOUT_PANDAS = """
import sys
class Refuse:
    def find_spec(self, name, *args):
        if name.split(".")[0] == "pandas":
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import pyarrow as pa
from streamveil.mechanisms import Categories, Registry, Slots
from streamveil.transforms import Columns
from streamveil.engine.encode.event_mapper import EventMapper
columns, registry = Columns("user", ("value",), "time"), Registry.of({"ann": (2, 1.0)})
mapper = EventMapper(columns, Slots.of("1h"), Categories(("a",)), registry, bytes(32))
times = pa.array([1_700_000_000_123_456_789], pa.timestamp("ns"))
batch = pa.RecordBatch.from_pydict({"user": ["eve"], "value": ["a"], "time": times})
print(mapper.map(batch)[1].column("reason").to_pylist())
"""


def test_faulty_row_with_nanoseconds_needs_no_pandas():
    ran = subprocess.run([sys.executable, "-c", WITHOUT_PANDAS], capture_output=True, text=True)
    assert ran.stdout.strip() == "['no requirement']", ran.stderr[-500:]


@pytest.mark.parametrize(
    "times",
    [
        pa.array([10**15], pa.timestamp("s")),
        pa.array([2**31 - 1], pa.int32()).cast(pa.date32()),
        pa.array([10**15], pa.timestamp("s", "UTC")),
    ],
    ids=lambda times: str(times.type),
)
def test_faulty_row_with_a_time_beyond_the_calendar(times):
    _, rejected = mapper().map(batch([GOOD], times=times))
    assert rejected.column("reason").to_pylist() == ["unparsable time"]


# JSON has no NaN: what reads the dead letters may be strict.
def test_record_is_strict_json():
    made = batch([("eve", "a", 0)]).append_column("score", pa.array([float("nan")]))
    _, rejected = mapper().map(made)

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    json.loads(rejected.column("record")[0].as_py(), parse_constant=refuse)


# ---- users outside the registry ---------------------------------------------------------------


def test_strangers_are_accepted_when_there_is_a_default():
    rows = [("eve", "a", 0), GOOD, ("dan", "b", 1), ("eve", "b", 1), (None, "a", 0), ("", "a", 0)]
    events, rejected = mapper(registry=OPEN).map(batch(rows))
    assert rejected.column("reason").to_pylist() == ["null user"] * 2
    assert Counter(events.members.tolist()) == {-1: 3, 0: 1}
    # The digests stand in the order of the events without a member.
    strangers = [tuple(row) for row in events.strangers.tolist()]
    outside = events.members < 0
    by_user = list(zip(strangers, events.slots[outside].tolist(), strict=True))
    assert len(set(strangers)) == 2
    assert by_user[0] == (strangers[2], 0)
    assert [slot for _, slot in by_user] == [0, 1, 1]


# Rejected rows of strangers must not shift the digests of those accepted.
@settings(max_examples=80)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ann", "eve", "dan", "", None]),
            st.sampled_from(["a", "b", "z", None]),
            st.sampled_from([0, 1, 9, None]),
        ),
        max_size=25,
    )
)
def test_rows_are_split_and_never_mixed_up(rows):
    alone = mapper(registry=OPEN, last_slot=5)
    events, rejected = alone.map(batch(rows, first_row=0))
    good = [r for r in rows if r[0] and r[1] in ("a", "b") and r[2] in (0, 1)]
    bad = [i for i, r in enumerate(rows) if r not in good]
    assert rejected.column("row").to_pylist() == bad
    assert len(events.slots) == len(good)
    digests = iter(events.strangers.tolist())
    found = [
        (slot, bin_, "ann" if member == 0 else tuple(next(digests)))
        for slot, bin_, member in zip(events.slots, events.bins, events.members, strict=True)
    ]
    assert next(digests, None) is None
    digest = {"ann": "ann"}
    for user in ("eve", "dan"):
        digest[user] = tuple(alone.map(batch([(user, "a", 0)]))[0].strangers[0].tolist())
    assert Counter(found) == Counter((s, "ab".index(v), digest[u]) for u, v, s in good)


def test_users_as_numbers_and_dictionaries():
    registry = Registry.of({7: (2, 1.0), -3: (2, 1.0)})
    for users in (pa.array([-3, 7, 8, None]), pa.array([-3, 7, 8, None]).dictionary_encode()):
        made = batch([GOOD] * 4, first_row=0)
        made = made.set_column(made.schema.get_field_index("user"), "user", users)
        events, rejected = mapper(registry=registry).map(made)
        assert sorted(events.members.tolist()) == [0, 1]
        assert rejected.column("reason").to_pylist() == ["no requirement", "null user"]


# ---- ranges of slots ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, [-2, -1, 0, 1, 2]),
        ({"first_slot": 0}, [0, 1, 2]),
        ({"last_slot": 0}, [-2, -1, 0]),
        ({"first_slot": -1, "last_slot": 1}, [-1, 0, 1]),
        ({"first_slot": 0, "last_slot": 0}, [0]),
        ({"first_slot": 5}, []),
    ],
)
def test_range_is_inclusive_on_both_sides(options, kept):
    events, rejected = mapper(**options).map(batch([("ann", "a", h) for h in range(-2, 3)]))
    assert sorted(events.slots.tolist()) == kept
    assert rejected.num_rows == 5 - len(kept)


# An event ahead of time is rejected as that, also where it is outside the range.
def test_events_after_the_latest_slot_are_ahead_of_time():
    rows = [("ann", "a", slot) for slot in (2, 3, 4, 9)]
    events, rejected = mapper(last_slot=5).map(batch(rows), latest=3)
    assert [slot for slot, _, _ in events_of(events)] == [2, 3]
    assert rejected.column("reason").to_pylist() == ["ahead of time"] * 2
    assert rejected.column("detail")[0].as_py() == "time is 1970-01-01 04:00:00.000000"


def test_slots_start_at_the_origin_and_hold_their_start():
    slots = Slots.of("1h", "1970-01-01T00:30Z")
    made = EventMapper(COLUMNS, slots, Categories(("a",)), REGISTRY, KEY)
    half = HOUR // 2
    times = pa.array([0, half - 1, half, half + HOUR - 1, half + HOUR], pa.timestamp("us"))
    events, _ = made.map(batch([GOOD] * 5, times=times))
    assert events.slots.tolist() == [-1, -1, 0, 0, 1]


# ---- what stops the pipeline ------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["user", "value", "time"])
def test_missing_column_is_named_with_the_source_and_what_is_there(missing):
    made = batch([GOOD], first_row=0, source=b"part-3.csv")
    made = made.drop_columns([missing])
    there = ", ".join(n for n in made.schema.names if n != ROW_COLUMN)
    with pytest.raises(
        ConfigurationError,
        match=f"part-3.csv: the events have no column '{missing}'; there are: {there}$",
    ):
        mapper().map(made)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("user", pa.array([1.5])),
        ("user", pa.array([b"ann"])),
        ("value", pa.array([1.5])),
        ("time", pa.array([True])),
        ("time", pa.array([1])),
    ],
)
def test_column_of_a_wrong_type_is_named(name, array):
    made = batch([GOOD])
    made = made.set_column(made.schema.get_field_index(name), name, array)
    with pytest.raises(ConfigurationError, match=f"column '{name}' holds {array.type}"):
        mapper().map(made)


def test_one_column_may_serve_twice():
    columns = Columns("user", ("user",), "time")
    assert columns.names == ("user", "time")
    events, _ = mapper(Categories(("bob", "ann")), columns=columns).map(batch([GOOD]))
    assert events_of(events) == [(0, 0, 1)]


def test_empty_batch():
    for made in (batch([]), batch([], first_row=0, source=b"x")):
        typed = made.set_column(
            made.schema.get_field_index("value"), "value", pa.array([], "string")
        )
        events, rejected = mapper().map(typed)
        assert len(events.slots) == rejected.num_rows == 0


def test_numbers_in_a_numeric_domain():
    made = batch([("ann", 5, 0), ("ann", 10, 0), ("ann", -1, 0)], first_row=0)
    events, rejected = mapper(Edges((0, 5, 10))).map(made)
    assert events.bins.tolist() == [1]
    assert rejected.column("row").to_pylist() == [1, 2]
    assert np.issubdtype(events.bins.dtype, np.int64)
