"""Batches of changes: which user, from which slot, what is asked for, or why not."""

import json

import numpy as np
import pyarrow as pa
import pytest

from streamveil.engine.count.changes import ChangeMapper, Changes, spread, stranger_keys, strictest
from streamveil.engine.count.event_codes import MEMBERS, STRANGERS
from streamveil.mechanisms import ConfigurationError, Registry, Requirement, Slots
from streamveil.mechanisms.core.budgets import to_units
from streamveil.mechanisms.core.records import REQUIREMENT_COLUMNS, SOURCE_METADATA

REGISTRY = Registry.of({"ann": (3, 1.0), "bob": (5, 2.0)})
HOUR = 3_600_000_000
ASKED = ("4", "0.5", "2", "0.25")
UNITS = [4, to_units(0.5), 2, to_units(0.25)]
LEAVES = ("", "", "", "")


def mapper(slots=None, *, zone="UTC", unit=None, longest=10, registry=REGISTRY):
    return ChangeMapper(slots or Slots.of("1h"), zone, unit, registry, bytes(32), longest)


def batch(rows, names=("user", "slot", *REQUIREMENT_COLUMNS), first_row=0):
    columns = {name: pa.array(c) for name, c in zip(names, zip(*rows, strict=True), strict=True)}
    columns["__row__"] = pa.array(range(first_row, first_row + len(rows)), pa.int64())
    made = pa.RecordBatch.from_pydict(columns)
    return made.replace_schema_metadata({SOURCE_METADATA: b"changes.csv"})


def members(found):
    changes, _ = found[MEMBERS]
    return [
        (REGISTRY.users[user], slot, asked)
        for user, slot, asked in zip(
            changes.users.tolist(),
            changes.slots.tolist(),
            changes.requirements.tolist(),
            strict=True,
        )
    ]


def test_rows_become_users_slots_and_units():
    rows = [
        ("ann", "7", *ASKED),
        ("bob", " -2 ", *ASKED),
        ("zoe", "7", *ASKED),
        ("bob", "9", *LEAVES),
    ]
    found, rejected = mapper().map(batch(rows))
    assert members(found) == [("ann", 7, UNITS), ("bob", -2, UNITS), ("bob", 9, [0] * 4)]
    strange, numbers = found[STRANGERS]
    assert (strange.slots.tolist(), strange.requirements.tolist()) == ([7], [UNITS])
    assert (strange.users.shape, strange.users.dtype, numbers.shape) == (
        (1,),
        np.dtype("S16"),
        (1,),
    )
    assert rejected.num_rows == 0


# Numbers as numbers, ids as numbers or dictionaries, nulls for blanks.
def test_types_of_columns():
    made = pa.RecordBatch.from_pydict(
        {
            "user": pa.array(["bob", "ann"]).dictionary_encode(),
            "slot": pa.array([3, 4], pa.int32()),
            "window_backward": pa.array([4.0, None]),
            "epsilon_backward": pa.array([0.5, None]),
            "window_forward": pa.array([2, None], pa.int8()),
            "epsilon_forward": pa.array(["2.5e-1", None]).dictionary_encode(),
        }
    )
    found, rejected = mapper().map(made)
    assert members(found) == [("bob", 3, UNITS), ("ann", 4, [0] * 4)]
    assert rejected.num_rows == 0


# ---- from which slot ------------------------------------------------------------------------


# A slot keeps the requirement that it began with.
@pytest.mark.parametrize(
    ("time", "slot"),
    [
        ("1970-01-01T03:00:00Z", 3),
        ("1970-01-01T03:00:00.000001Z", 4),
        ("1970-01-01T03:59:59Z", 4),
        ("1969-12-31T22:30:00Z", -1),
        ("1970-01-01T05:30:00+02:00", 4),
        ("1970-01-01", 0),
    ],
)
def test_a_time_means_the_first_slot_that_starts_then_or_later(time, slot):
    found, _ = mapper().map(batch([("ann", time, *ASKED)], ("user", "time", *REQUIREMENT_COLUMNS)))
    assert members(found) == [("ann", slot, UNITS)]


def test_times_are_read_as_those_of_events():
    names = ("user", "time", *REQUIREMENT_COLUMNS)
    slots = Slots.of("1h", "1970-01-01T00:15:00Z")
    found, _ = mapper(slots, zone="Europe/Berlin").map(
        batch([("ann", "1970-01-01 04:15", *ASKED)], names)
    )
    assert members(found) == [("ann", 3, UNITS)]
    found, _ = mapper(unit="s").map(batch([("ann", 3 * 3600, *ASKED)], names))
    assert members(found) == [("ann", 3, UNITS)]


def test_every_row_has_a_slot_or_a_time():
    names = ("user", "slot", "time", *REQUIREMENT_COLUMNS)
    rows = [
        ("ann", "3", "", *ASKED),
        ("bob", "", "1970-01-01T03:10Z", *ASKED),
        ("ann", "3", "1970-01-01T03:00Z", *ASKED),
        ("bob", "", " ", *ASKED),
    ]
    found, rejected = mapper().map(batch(rows, names))
    assert members(found) == [("ann", 3, UNITS), ("bob", 4, UNITS)]
    assert [(r["row"], r["reason"], r["detail"]) for r in rejected.to_pylist()] == [
        (2, "no slot", "slot is 3, time is 1970-01-01T03:00Z"),
        (3, "no slot", "slot is , time is  "),
    ]


# ---- bad rows -------------------------------------------------------------------------------

GOOD = ("ann", "7", *ASKED)
FAULTY = [
    (("", "7", *ASKED), "null user", "user is "),
    ((None, "7", *ASKED), "null user", "user is null"),
    (("ann", "", *ASKED), "no slot", "slot is "),
    (("ann", "soon", *ASKED), "no slot", "slot is soon"),
    (("ann", "1.5", *ASKED), "no slot", "slot is 1.5"),
    (("ann", "1e18", *ASKED), "no slot", "slot is 1e18"),
    *(
        (("ann", "7", *figures), "requirement out of range", None)
        for figures in [
            ("0", "1", "1", "1"),
            ("1.5", "1", "1", "1"),
            ("two", "1", "1", "1"),
            ("2000000", "1", "1", "1"),
            ("1", "0", "1", "1"),
            ("1", "-1", "1", "1"),
            ("1", "nan", "1", "1"),
            ("1", "1e999", "1", "1"),
            ("1", "4097", "1", "1"),
            ("1", "1", "", "1"),
            ("", "", "", "1"),
            ("1", "1", "1", None),
            ("1", "1", "1", "1e-12"),  # nothing is left for a slot of the longest window
        ]
    ),
    (("ann", "7", "11", "1", "1", "1"), "window longer than the longest", None),
    (("ann", "7", "1", "1", "11", "1"), "window longer than the longest", None),
]


@pytest.mark.parametrize(("row", "reason", "detail"), FAULTY)
def test_a_bad_row_is_a_dead_letter(row, reason, detail):
    found, rejected = mapper().map(batch([GOOD, row, GOOD], first_row=5))
    assert members(found) == [("ann", 7, UNITS)] * 2
    (letter,) = rejected.to_pylist()
    assert (letter["source"], letter["row"], letter["reason"]) == ("changes.csv", 6, reason)
    figures = ", ".join(
        f"{name} is {'null' if value is None else value}"
        for name, value in zip(REQUIREMENT_COLUMNS, row[2:], strict=True)
    )
    assert letter["detail"] == (figures if detail is None else detail)
    assert json.loads(letter["record"])["user"] == row[0]


@pytest.mark.parametrize(
    ("time", "reason"),
    [("noon", "unparsable time"), ("1990-09-30T02:30:00", "ambiguous time"), (None, "no slot")],
)
def test_a_bad_time_is_a_dead_letter(time, reason):
    names = ("user", "time", *REQUIREMENT_COLUMNS)
    made = batch([("ann", time, *ASKED), ("ann", "1970-01-01T08:00", *ASKED)], names)
    found, rejected = mapper(zone="Europe/Berlin").map(made)
    assert members(found) == [("ann", 7, UNITS)]
    assert [(r["row"], r["reason"]) for r in rejected.to_pylist()] == [(0, reason)]


# In a stream the types of one batch must not stop the others.
@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("user", [1.5], "unreadable user"),
        ("user", [["ann"]], "unreadable user"),
        ("slot", [True], "no slot"),
        ("time", [12], "unparsable time"),
        ("time", [True], "unparsable time"),
        ("window_forward", [[1]], "requirement out of range"),
        ("epsilon_backward", [True], "requirement out of range"),
        ("epsilon_backward", ["true"], "requirement out of range"),
    ],
)
def test_a_column_of_a_wrong_type_is_the_fault_of_its_rows(name, values, reason):
    columns = dict(zip(("user", "slot", *REQUIREMENT_COLUMNS), ([v] for v in GOOD), strict=True))
    if name == "time":
        del columns["slot"]
    found, rejected = mapper().map(pa.RecordBatch.from_pydict({**columns, name: values}))
    assert all(len(changes.users) == 0 for changes, _ in found.values())
    assert rejected.column("reason").to_pylist() == [reason]


@pytest.mark.parametrize("missing", ["user", "slot", *REQUIREMENT_COLUMNS])
def test_a_missing_column_is_named(missing):
    with pytest.raises(ConfigurationError, match=f"requirements have n.*'{missing}'"):
        mapper().map(batch([GOOD]).drop_columns([missing]))


def test_an_empty_batch():
    found, rejected = mapper().map(batch([GOOD]).slice(0, 0))
    assert list(spread(found, 4)) == []
    assert rejected.num_rows == 0


# ---- several of one user, and what travels --------------------------------------------------


def test_strictest_keeps_all():
    rows = np.array([[2, 50, 9, 70], [3, 60, 4, 10], [1, 5, 1, 5], [0, 0, 0, 0], [1, 5, 1, 5]])
    expected = [[3, 50, 9, 10], [0, 0, 0, 0], [1, 5, 1, 5]]
    assert strictest(rows, np.array([0, 2, 4])).tolist() == expected
    assert strictest(rows[:0], np.array([], int)).shape == (0, 4)


# Keys sort and compare as the numbers do, zero bytes included.
def test_keys_of_strangers_are_distinct_and_ordered():
    digests = np.array([[0, 0], [0, 1], [0, 256], [1, 0], [256, 0], [2**63, 2**64 - 1]], np.uint64)
    keys = stranger_keys(digests)
    assert (np.sort(keys) == keys).all()
    assert len(np.unique(keys)) == len(keys)
    assert (np.searchsorted(keys, keys[::-1]) == np.arange(len(keys))[::-1]).all()


@pytest.mark.parametrize("kind", [MEMBERS, STRANGERS])
def test_changes_travel_and_spread(kind):
    name = "ann" if kind == MEMBERS else "x"
    rows = [(f"{name}{'' if kind == MEMBERS else i}", str(i), *ASKED) for i in range(50)]
    found, _ = mapper(registry=Registry.of({"ann": (1, 1.0)})).map(batch(rows))
    parts = list(spread(found, 3))
    assert {key[0] for key, _ in parts} == {kind}
    slots = []
    for _, changes in parts:
        back = Changes.from_bytes(changes.to_bytes())
        assert isinstance(back, Changes)
        assert back.users.dtype == changes.users.dtype
        np.testing.assert_array_equal(back.users, changes.users)
        np.testing.assert_array_equal(back.requirements, changes.requirements)
        slots += back.slots.tolist()
    assert sorted(slots) == list(range(50))
    assert len(parts) == (1 if kind == MEMBERS else 3)


def test_requirement_of_the_sensitivity():
    made = batch([("ann", "1", "1", "4e-11", "1", "1")])
    slots = Slots.of("1h")
    for sensitivity, rejected in ((1, 0), (4, 1)):
        one = ChangeMapper(slots, "UTC", None, REGISTRY, bytes(32), 10, sensitivity)
        assert one.map(made)[1].num_rows == rejected
    assert Requirement(10, 4e-11)
