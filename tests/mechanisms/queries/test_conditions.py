"""Conditions: what meets them, and what a refusal says."""

import copy
import math

import numpy as np
import pytest

from streamveil.mechanisms import ConfigurationError
from streamveil.mechanisms.queries.conditions import Condition, conditions_of, where


def test_values():
    condition = Condition("kind", ("car", 7))
    assert condition.values == ("car", "7")
    assert condition.holds(["car", "Car", "7", None, ""]).tolist() == [1, 0, 1, 0, 0]
    assert condition.holds(np.array(["7", "8"], object)).tolist() == [True, False]
    assert condition.holds([]).dtype == np.bool_


# The lower bound is in the range, the upper one is not, as in the bins of a domain.
@pytest.mark.parametrize(
    ("low", "high", "held"),
    [(1, 3, [0, 1, 1, 0]), (None, 2, [1, 1, 0, 0]), (2, None, [0, 0, 1, 1])],
)
def test_ranges(low, high, held):
    assert Condition("km", low=low, high=high).holds([0.5, 1, 2, 3]).tolist() == held


def test_what_is_no_number_is_in_no_range():
    found = [None, math.nan, math.inf, -math.inf]
    for condition in (Condition("km", low=-1), Condition("km", high=1)):
        assert not condition.holds(found).any()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "where, column 'a': give the values that count, or the range"),
        ({"values": ("x",), "low": 1}, "give the values that count, or the range"),
        ({"values": ()}, "no values are listed"),
        ({"values": "x"}, "give a list of values"),
        ({"values": ("x", "x")}, "'x' is listed twice"),
        ({"values": ("x", "")}, "an empty value"),
        ({"values": (1.5,)}, "lists 1.5, of type float"),
        ({"low": math.nan}, "the bound nan is not a finite number"),
        ({"low": 1, "high": "2"}, "the bound '2' is not a finite number"),
        ({"low": True}, "the bound True is not a finite number"),
        ({"low": 2, "high": 2}, "no number is from 2 on and below 2"),
        ({"column": "", "low": 1}, "where is '', of type str: give the name of a column"),
    ],
)
def test_bad_conditions_are_named(given, message):
    with pytest.raises(ConfigurationError, match=message):
        Condition(**{"column": "a", **given})


def test_identities_differ():
    conditions = [
        Condition("a", ("1",)),
        Condition("b", ("1",)),
        Condition("a", low=1),
        Condition("a", high=1),
        Condition("a", low=0, high=1),
    ]
    assert len({condition.identity() for condition in conditions}) == len(conditions)


@pytest.mark.parametrize(
    ("written", "mapping", "text"),
    [
        (where.kind == "car", {"kind": "car"}, "where.kind == 'car'"),
        (where.year == 2024, {"year": 2024}, "where.year == '2024'"),
        (where.ok == False, {"ok": False}, "where.ok == 'false'"),  # noqa: E712
        (
            where.kind.isin(["car", "van"]),
            {"kind": ["car", "van"]},
            "where.kind.isin(['car', 'van'])",
        ),
        (where.kind.isin(np.array(["car"])), {"kind": ["car"]}, "where.kind == 'car'"),
        (where["of a car"] == "red", {"of a car": "red"}, "where['of a car'] == 'red'"),
        (where.speed >= 5, {"speed": {"from": 5}}, "where.speed >= 5.0"),
        (where.speed < 50.5, {"speed": {"to": 50.5}}, "where.speed < 50.5"),
        (5 <= where.speed, {"speed": {"from": 5}}, "where.speed >= 5.0"),  # noqa: SIM300
        (
            (where.speed >= 0) & (where.speed < 50),
            {"speed": {"from": 0, "to": 50}},
            "(where.speed >= 0.0) & (where.speed < 50.0)",
        ),
        (
            (where.speed < 50) & (where.kind == "car") & (where.speed >= 0),
            {"speed": {"from": 0, "to": 50}, "kind": "car"},
            "(where.speed >= 0.0) & (where.speed < 50.0) & (where.kind == 'car')",
        ),
    ],
)
def test_conditions_of_python_are_those_of_a_mapping(written, mapping, text):
    assert conditions_of(written) == conditions_of(mapping)
    assert repr(written) == text


def chained():
    return 0 <= where.speed < 50


def both():
    return where.speed >= 0 and where.speed < 50


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (chained, "combine conditions with & and parentheses"),
        (both, "combine conditions with & and parentheses"),
        (lambda: where.a == "x" & where.b == "y", "put each condition in brackets"),
        (lambda: where.a >= 3 & where.b < 4, "put each condition in brackets"),
        (lambda: setattr(where, "a", 3), "write == to compare, not ="),
        (lambda: where.a.isin({"from": 0, "to": 4}), "isin takes a list of values"),
        (lambda: where.a.isin("car"), "isin takes a list of values"),
        (lambda: not (where.a >= 1), "neither true nor false"),
        (lambda: where.a in [1, 2], "neither true nor false"),
        (lambda: bool(where.a), "it is compared with nothing"),
        (lambda: where.a > 5, "where, column 'a': > 5 is not possible: .* write >= 5"),
        (lambda: where.a <= 5, "where, column 'a': <= 5 is not possible: .* write < 5"),
        (lambda: where.a != "x", "!= 'x' is not possible: .* write isin"),
        (lambda: (where.a == 1) | (where.b == 2), r"cannot be combined with \|: list the values"),
        (lambda: True | (where.b == 2), r"cannot be combined with \|"),
        (lambda: ~(where.a == 1), "conditions cannot be negated"),
        (lambda: (where.a == 1) & True, "True is not a condition"),
        (lambda: (where.a == 1) & (where.a == 2), "column 'a': it has more than one condition"),
        (lambda: (where.a >= 1) & (where.a >= 2), "column 'a': it has more than one condition"),
        (lambda: (where.a >= 1) & (where.a == 2), "column 'a': it has more than one condition"),
        (lambda: (where.a >= 5) & (where.a < 2), "no number is from 5 on and below 2"),
        (lambda: where.a == 1.5, "column 'a' is 1.5: values are text or whole numbers"),
        (lambda: where.a == None, "column 'a' is None: write text"),  # noqa: E711
        (lambda: where.a.isin([]), r"column 'a' is \[\]: write a list"),
        (lambda: where.a >= "x", "column 'a': from is 'x': write a number"),
        (lambda: where.a < float("nan"), "column 'a': to is nan: write a finite number"),
        (lambda: where[5], "where is 5, of type int: give the name of a column"),
        (lambda: conditions_of(where), "where is not a condition: it is compared with nothing"),
    ],
)
def test_conditions_that_cannot_be_are_refused(write, message):
    with pytest.raises(ConfigurationError, match=message) as refused:
        write()
    assert str(refused.value).isprintable()


def test_names_of_python_itself_are_no_columns():
    with pytest.raises(AttributeError, match="where has no attribute '_id'; a column is where"):
        where._id  # noqa: B018
    assert repr(where["_id"] == "x") == "where['_id'] == 'x'"
    assert repr(where["class"] == "x") == "where['class'] == 'x'"
    assert copy.copy(where) is not None
