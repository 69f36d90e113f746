"""Conditions: what meets them, and what a refusal says."""

import math

import numpy as np
import pytest

from streamveil.mechanisms import ConfigurationError
from streamveil.mechanisms.portfolio.conditions import Condition


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
        ({"low": math.nan}, "the bound nan is no finite number"),
        ({"low": 1, "high": "2"}, "the bound '2' is no finite number"),
        ({"low": True}, "the bound True is no finite number"),
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
