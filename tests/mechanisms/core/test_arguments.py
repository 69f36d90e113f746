"""What public arguments are taken as, and what a refusal of others says."""

import datetime as dt

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from streamveil.mechanisms import Categories, ConfigurationError, Edges, Registry, Slots
from streamveil.mechanisms.core import arguments

USERS = ["ann", "bob"]
TABLE = {"user": USERS, "window": [7, 3], "epsilon": [1.0, 2.0]}
REGISTRY = Registry.of({"ann": (7, 1.0), "bob": (3, 2.0)})


@pytest.mark.parametrize(
    "given",
    [
        REGISTRY,
        {"ann": (7, 1.0), "bob": [3, 2]},
        pd.DataFrame(TABLE),
        pa.table(TABLE),
        pa.RecordBatch.from_pydict(TABLE),
        pd.DataFrame({**TABLE, "window": [7.0, 3.0], "note": "x"}),
    ],
    ids=lambda given: type(given).__name__,
)
def test_a_registry_may_be_a_mapping_or_a_table(given):
    assert arguments.registry_of(given).fingerprint == REGISTRY.fingerprint


@pytest.mark.parametrize("table", [pd.DataFrame, pa.table])
def test_a_table_may_have_limits_on_presence(table):
    made = arguments.registry_of(table({**TABLE, "max_slots": [None, 1]}))
    assert made.max_slots == (1, None)  # of windows of 3 and of 7


@pytest.mark.parametrize("table", [pd.DataFrame, pa.table])
def test_a_table_may_have_deltas(table):
    made = arguments.registry_of(table({**TABLE, "delta": [None, 1e-9]}))
    assert made.deltas == (1e-9, None)  # of windows of 3 and of 7
    assert arguments.registry_of({"ann": (7, 1.0, 1e-9)}).deltas == (1e-9,)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            "requirements.csv",
            ["registry is 'requirements.csv'", "of type str", "read_requirements"],
        ),
        ((7, 1.0), ["of type tuple", "Registry.of(default="]),
        (7, ["of type int", "a mapping user -> (window, epsilon)"]),
        (None, ["of type NoneType"]),
        ({"ann": 7}, ["registry, user 'ann'", "7"]),
        ({"ann": (7, -1.0)}, ["registry, user 'ann'", "-1.0"]),
        ({"ann": (7, 1.0, 0.5)}, ["registry, user 'ann'", "delta 0.5 is neither 0 nor"]),
        ({"ann": (7, 1.0, "x")}, ["registry, user 'ann'", "delta 'x' is neither 0 nor"]),
        ({"ann": (7, 1.0, True)}, ["registry, user 'ann'", "delta True is neither 0 nor"]),
        (pa.table({**TABLE, "delta": [0.0, 0.5]}), ["delta 0.5 in row 1", "or nothing"]),
        (pa.table({**TABLE, "delta": [False, None]}), ["delta False in row 0", "or nothing"]),
        (pd.DataFrame({"user": USERS}), ["without one column 'window'", "columns are user:"]),
        (pd.DataFrame({**TABLE, "window": [7, 2.5]}), ["window 2.5 in row 1", "whole number"]),
        (pd.DataFrame({**TABLE, "window": [7, None]}), ["window nan in row 1"]),
        (pa.table({**TABLE, "epsilon": [0.0, None]}), ["epsilon 0.0 in row 0"]),
        (pa.table({**TABLE, "epsilon": ["a", "b"]}), ["'epsilon' that is not of numbers"]),
        (pa.table({**TABLE, "max_slots": [1, 0]}), ["max_slots 0 in row 1", "or nothing"]),
        (pa.table({**TABLE, "max_slots": [True, None]}), ["max_slots True in row 0", "or nothing"]),
        (pa.table({**TABLE, "max_slots": ["a", "b"]}), ["'max_slots' that is not of numbers"]),
        (pa.table({**TABLE, "user": ["ann", "ann"]}), ["'ann' is in the registry twice"]),
    ],
)
def test_another_registry_is_refused(given, words):
    refused(arguments.registry_of, given, words)


@pytest.mark.parametrize(
    "given",
    [
        Categories(("1", "2")),
        ["1", "2"],
        ("1", 2),
        range(1, 3),
        np.array([1, 2]),
        pd.Series([1, 2]),
        pa.array(["1", "2"]),
    ],
    ids=lambda given: type(given).__name__,
)
def test_a_domain_may_be_a_list(given):
    assert arguments.domain_of(given) == Categories(("1", "2"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("cafe", ["domain is 'cafe', of type str", "['cafe']"]),
        ({"cafe", "park"}, ["no order"]),
        ({"cafe": 1}, ["of type dict", "give a list"]),
        (7, ["domain is 7, of type int"]),
        (None, ["of type NoneType"]),
        ([0.0, 0.5], ["lists 0.0, of type float", "Edges"]),
        (["a", None], ["lists None"]),
        ([], ["no bins"]),
        (["a", "a"], ["'a' twice"]),
    ],
)
def test_another_domain_is_refused(given, words):
    refused(arguments.domain_of, given, words)


def test_other_domains_stay_as_they_are():
    edges = Edges((0.0, 1.0))
    assert arguments.domain_of(edges) is edges


@pytest.mark.parametrize("given", [Slots.of("30d"), "30d", dt.timedelta(days=30)])
def test_slots_may_be_a_length(given):
    assert arguments.slots_of(given) == Slots.of("30d")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (30, ["slots is 30, of type int", "1d"]),
        (None, ["of type NoneType"]),
        ("monthly", ["'monthly'", "1d"]),
        (dt.timedelta(0), ["above 0"]),
    ],
)
def test_other_slots_are_refused(given, words):
    refused(arguments.slots_of, given, words)


def test_one_column_may_be_a_text():
    assert arguments.column_names("rating", "value") == ("rating",)
    assert arguments.column_names(["lon", "lat"], "value") == ("lon", "lat")


@pytest.mark.parametrize("given", [None, 5, (), "", ("a", 5), {"rating"}])
def test_other_columns_are_refused(given):
    refused(lambda given: arguments.column_names(given, "value"), given, ["value is"])


def test_a_slot_is_a_whole_number_and_a_flag_is_true_or_false():
    assert arguments.slot_number(np.int64(5), "first_slot") == 5
    assert arguments.slot_number(None, "first_slot") is None
    assert arguments.is_true(np.True_, "changing") is True
    wrong = {"first_slot": "2024-05-01", "last_slot": 5.0, "changing": "False"}
    for name, value in wrong.items():
        read = arguments.is_true if name == "changing" else arguments.slot_number
        refused(lambda given, name=name, read=read: read(given, name), value, [f"{name} is"])


def test_long_values_are_not_shown():
    refused(arguments.slots_of, ["a" * 100], ["slots is given, of type list"])


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Categories("cafe"), "letters"),
        (lambda: Edges("0,1"), "'0,1'"),
        (lambda: Edges(None), "None"),
        (lambda: Slots("1d"), "Slots.of"),
        (lambda: Slots(1000, "2024-05-01"), "Slots.of"),
    ],
)
def test_records_of_other_types_are_refused(make, word):
    with pytest.raises(ConfigurationError, match=word):
        make()


def refused(read, given, words):
    """One line, that says all these words."""
    with pytest.raises(ConfigurationError) as error:
        read(given)
    text = str(error.value)
    assert "\n" not in text
    for word in words:
        assert word in text


def test_booleans_of_a_domain_have_the_text_that_events_have():
    assert arguments.domain_of([True, False]).labels == ("true", "false")
