"""Events as integers for many queries: conditions, numbers, and what one cannot read."""

import json

import numpy as np
import pyarrow as pa
import pytest

from streamveil.engine.encode import query_mapper
from streamveil.engine.encode.dead_letters import tally_of, with_tally
from streamveil.engine.encode.query_mapper import QueriesMapper, slices_of
from streamveil.engine.stream.query_plan import columns_for
from streamveil.mechanisms import (
    Categories,
    ConfigurationError,
    Edges,
    Registry,
    Requirement,
    Slots,
)
from streamveil.mechanisms.core.event_tallies import EventTally
from streamveil.mechanisms.queries.conditions import Condition
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.statistics import Mean, Quantiles

HOUR = 3_600_000_000
AB = Categories(("a", "b"))
COUNT = Query("count", value=("value",), domain=AB)
SPEED = Query("speed", slots=3, value=("value",), domain=AB, statistic=Mean("speed", 0, 100))


def mapper(*queries, users=("ann", "bob"), default=None, **options):
    query_set = QuerySet(Slots.of("1h"), queries)
    registry = Registry.of(dict.fromkeys(users, (1, 1.0)), default=default)
    columns = columns_for(query_set, "user", "time")
    return QueriesMapper(query_set, columns, registry, bytes(32), **options)


def batch(number, **columns):
    """Of so many events of ann in place a, an hour apart, but for what is given."""
    table = {
        "user": pa.array(["ann"] * number),
        "value": pa.array(["a"] * number),
        "time": pa.array(np.arange(number) * HOUR, pa.timestamp("us", "UTC")),
        **columns,
    }
    return pa.RecordBatch.from_pydict(table)


def letters(rejected):
    return [(row["reason"], row["detail"]) for row in rejected.to_pylist()]


def test_slots_and_bins_are_those_of_each_query():
    speeds = pa.array([0.0, 50.0, 100.0, 100.1, -1.0])
    made = mapper(COUNT, SPEED)
    (counted, measured), rejected = made.map(batch(5, speed=speeds, value=pa.array(list("abaab"))))
    assert counted.slots.tolist() == [0, 1, 2, 3, 4]
    assert counted.bins.tolist() == [0, 1, 0, 0, 1]
    assert measured.slots.tolist() == [0, 0, 0, 1, 1]
    assert measured.bins.tolist() == [0, 1027 + 512, 1024, 1026, 1027 + 1025]
    assert rejected.num_rows == 0


# That of a list of many bins takes long, and there is a batch after another.
def test_a_worker_asks_for_the_identity_of_a_domain_once(monkeypatch):
    made = mapper(COUNT, SPEED)

    def twice(self):
        raise AssertionError("for a batch")

    monkeypatch.setattr(Categories, "identity", twice)
    (counted, measured), _ = made.map(batch(5, speed=pa.array(np.ones(5))))
    assert len(counted.slots) == len(measured.slots) == 5


TEXT = pa.array(["1", "x", None, "inf", "1e999"])
NUMBERS = pa.array([1.0, float("nan"), None, float("inf"), -float("inf")])
ODD = {
    "text": TEXT,
    "large text": TEXT.cast(pa.large_string()),
    "dictionary": TEXT.dictionary_encode(),
    "null in a dictionary": pa.DictionaryArray.from_arrays(
        pa.array([0, 1, 2, 3, 3]), pa.array(["1", "x", None, "inf"])
    ),
    "numbers": NUMBERS,
    "narrow numbers": NUMBERS.cast(pa.float32()),
}


# What is not a number is not a number of one query; the others count the event all the same.
@pytest.mark.parametrize("speeds", ODD.values(), ids=ODD.keys())
def test_what_is_no_finite_number_is_lost_to_its_query_alone(speeds):
    (counted, measured), rejected = mapper(COUNT, SPEED).map(batch(5, speed=speeds))
    assert len(counted.slots) == 5
    assert len(measured.slots) == 1
    assert [reason for reason, _ in letters(rejected)] == [
        "not a finite number (query speed, counted in others)",
        "null number (query speed, counted in others)",
        *["not a finite number (query speed, counted in others)"] * 2,
    ]
    assert letters(rejected)[1][1] == "speed is null"
    assert json.loads(rejected.to_pylist()[0]["record"])["user"] == "ann"


# An event that two queries cannot read is one dead letter, of the first of them.
def test_an_event_is_rejected_once():
    other = Query(
        "other", value=("speed",), domain=Edges((0.0, 1.0)), statistic=Quantiles("speed", (0, 1))
    )
    values, speeds = pa.array(["a", "c", None, "c"]), pa.array([0.5, 0.5, 7.0, 0.5])
    (counted, measured, third), rejected = mapper(COUNT, SPEED, other).map(
        batch(4, value=values, speed=speeds)
    )
    assert [len(one.slots) for one in (counted, measured, third)] == [1, 1, 3]
    assert letters(rejected) == [
        ("outside the domain (query count, counted in others)", "value is c"),
        ("null value (query count)", "value is null"),
        ("outside the domain (query count, counted in others)", "value is c"),
    ]


KINDS = pa.array(["car", "bus", None, "car"])
WHERE = {
    "text": (KINDS, Condition("kind", ("car",)), [0, 3]),
    "dictionary": (KINDS.dictionary_encode(), Condition("kind", ("car", "van")), [0, 3]),
    "null in a dictionary": (
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 1, 0]), pa.array(["car", None])),
        Condition("kind", ("car",)),
        [0, 3],
    ),
    "empty dictionary": (
        pa.DictionaryArray.from_arrays(pa.array([None] * 4, pa.uint8()), pa.array([], pa.string())),
        Condition("kind", ("car",)),
        [],
    ),
    "whole numbers": (pa.array([1, 2, None, 1]), Condition("kind", ("1",)), [0, 3]),
    "range": (pa.array([1.0, 2.0, float("nan"), None]), Condition("kind", low=1, high=2), [0]),
    "open range": (pa.array([1.0, float("inf"), None, -5.0]), Condition("kind", high=2), [0, 3]),
    "range of text": (pa.array(["1", "x", None, "3"]), Condition("kind", low=2), [3]),
    "all null": (pa.nulls(4), Condition("kind", ("car",)), []),
}


@pytest.mark.parametrize(("kinds", "condition", "expected"), WHERE.values(), ids=WHERE.keys())
def test_events_that_do_not_meet_a_condition_are_no_losses(kinds, condition, expected):
    asked = Query("asked", value=("value",), domain=AB, where=(condition,))
    (events, everything), rejected = mapper(asked, COUNT).map(batch(4, kind=kinds))
    assert events.slots.tolist() == expected
    assert everything.slots.tolist() == [0, 1, 2, 3]
    assert rejected.num_rows == 0


# What one query cannot read is no fault where the query is not about the event.
def test_faults_count_where_conditions_are_met():
    asked = Query(
        "asked",
        value=("value",),
        domain=AB,
        statistic=Mean("speed", 0, 1),
        where=(Condition("kind", ("car",)), Condition("speed", high=9.0)),
    )
    (events,), rejected = mapper(asked).map(
        batch(4, kind=KINDS, value=pa.array(["a", "c", "c", "c"]), speed=pa.array([1.0] * 4))
    )
    assert events.slots.tolist() == [0]
    assert letters(rejected) == [("outside the domain (query asked)", "value is c")]


def test_strangers_are_the_same_in_all_queries():
    names = pa.array(["ann", "eve", "mal", "eve"])
    other = (Requirement(1, 1.0), 5)
    asked = Query("cars", where=(Condition("kind", ("car",)),))
    made = mapper(COUNT, asked, default=other)
    (counted, cars), _ = made.map(batch(4, user=names, kind=KINDS))
    assert counted.members.tolist() == [0, -1, -1, -1]
    assert counted.strangers.shape == (3, 2)
    assert cars.members.tolist() == [0, -1]
    np.testing.assert_array_equal(cars.strangers, counted.strangers[[2]])


def test_what_is_wrong_with_an_event_is_wrong_for_all_queries():
    made = mapper(COUNT, SPEED, first_slot=1, last_slot=3)
    names = pa.array(["ann", "eve", None, "ann", "ann"])
    events, rejected = made.map(batch(5, user=names, speed=pa.array([1.0] * 5)), latest=2)
    assert [one.slots.tolist() for one in events] == [[], []]
    assert [reason for reason, _ in letters(rejected)] == [
        "outside the released slots",
        "no requirement",
        "null user",
        "ahead of time",
        "ahead of time",
    ]


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("speed", "column 'speed' holds binary, and numbers are asked for"),
        ("kind", "column 'kind' holds double; a condition on values"),
    ],
)
def test_columns_of_a_wrong_type_are_refused(column, words):
    asked = Query("asked", where=(Condition("kind", ("car",)),), statistic=Mean("speed", 0, 1))
    columns = {"kind": KINDS, "speed": pa.array([1.0] * 4)}
    columns[column] = pa.array([b"1"] * 4) if column == "speed" else pa.array([0.5] * 4)
    for read in (mapper(asked).check, mapper(asked).map):
        with pytest.raises(ConfigurationError, match=words):
            read(batch(4, **columns))


def test_columns_that_queries_read_are_named_once():
    asked = Query("asked", where=(Condition("speed", low=1),))
    assert mapper(COUNT, SPEED, asked).columns.names == ("user", "value", "speed", "time")
    assert mapper(Query("all")).columns.names == ("user", "time")


def test_batches_come_in_slices_that_say_once_what_was_lost(monkeypatch):
    monkeypatch.setattr(query_mapper, "_ROWS", 2)
    lost = EventTally(read=3, messages=1)
    whole = with_tally(batch(5), lost)
    slices = list(slices_of(whole))
    assert [one.num_rows for one in slices] == [2, 2, 1]
    assert pa.Table.from_batches([one.replace_schema_metadata() for one in slices]).equals(
        pa.Table.from_batches([batch(5)])
    )
    assert [tally_of(one) for one in slices] == [lost, EventTally(), EventTally()]
    (empty,) = slices_of(with_tally(batch(0, time=pa.array([], pa.timestamp("us", "UTC"))), lost))
    assert (empty.num_rows, tally_of(empty)) == (0, lost)
