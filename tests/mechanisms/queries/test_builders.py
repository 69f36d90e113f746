"""Queries that are defined in Python: the same as those of files, checked when they are made."""

import datetime as dt
import doctest
import inspect
import pickle

import numpy as np
import pytest

import streamveil as sv
from streamveil.mechanisms import Categories, ConfigurationError, Edges, Grid, Slots
from streamveil.mechanisms.core.local_days import CalendarSlots
from streamveil.mechanisms.core.records import MICROSECONDS, MONDAY
from streamveil.mechanisms.queries import builders, conditions, definitions, reading
from streamveil.mechanisms.queries.definitions import KEYS, STATISTICS
from streamveil.mechanisms.queries.reading import query_set, query_set_of

BY = {"by": "place", "keys": ["cafe", "park"]}
OF = {"of": "delay", "bounds": (0, 30)}
REST = {
    **BY,
    **{"other": "else", "null": "none", "where": {"kind": "car"}, "every": "1d", "rollups": ["1w"]},
    **{"max_contributions": 2, "mechanism": "uniform", "weight": 2, "share": 0.5},
    **{"title": "Some query", "unit": "parts"},
}
BUILDERS = {
    "count": (sv.count, {**REST, "levels": ["all"], "keep": "distinct"}),
    "distinct": (sv.distinct, {**REST, "keep": "distinct"}),
    "sum": (sv.sum, {**REST, **OF, "levels": [{"g": ["cafe", "park", "else"], "h": ["none"]}]}),
    "mean": (sv.mean, {**REST, **OF, "levels": "all"}),
    "variance": (sv.variance, {**REST, **OF}),
    "stddev": (sv.stddev, {**REST, "of": "delay", "bounds": "auto"}),
    "quantiles": (sv.quantiles, {**REST, "of": "delay", "edges": [0, 5], "quantiles": [0.5]}),
    "top": (sv.top, {**REST, "k": 2}),
}


@pytest.mark.parametrize("module", [builders, conditions, definitions, reading])
def test_the_examples_run(module):
    found = doctest.testmod(module, extraglobs={"sv": sv})
    assert found.failed == 0
    assert found.attempted or module is definitions


@pytest.mark.parametrize("statistic", STATISTICS)
def test_a_builder_makes_what_a_file_with_its_arguments_as_keys_does(statistic):
    build, given = BUILDERS[statistic]
    made = build("q", **given)
    entry = {"name": "q", "statistic": statistic, **given}
    entry |= {"bounds": list(given["bounds"])} if given.get("bounds") == (0, 30) else {}
    read = query_set_of({"slot": "1h", "queries": [entry]})
    for same in (query_set("1h", made), query_set_of({"slot": "1h", "queries": [made]})):
        assert same == read
        assert same.identity() == read.identity()
    (query,) = read
    assert (query.slots, query.times, query.title, query.unit) == (
        24,
        (168,),
        "Some query",
        "parts",
    )
    assert pickle.loads(pickle.dumps(made)) == made


@pytest.mark.parametrize("statistic", STATISTICS)
def test_a_builder_has_the_keys_that_its_statistic_can_have(statistic):
    build, given = BUILDERS[statistic]
    named = set(inspect.signature(build).parameters)
    assert set(given) < named <= set(KEYS)
    others = {"statistic", "of", "bounds", "edges", "quantiles", "k", "levels"}
    assert set(KEYS) - named <= others


def test_a_median_is_a_quantile():
    given = {"of": "delay", "edges": [0, 5], "every": "1d"}
    assert sv.median("q", **given) == sv.quantiles("q", **given, quantiles=[0.5])


def test_definitions_and_mappings_may_be_mixed():
    mixed = query_set_of({"slot": "1h", "queries": [sv.count("a"), {"name": "b", "every": "1d"}]})
    assert [(query.name, query.slots) for query in mixed] == [("a", 1), ("b", 24)]


@pytest.mark.parametrize(
    ("keys", "domain"),
    [
        (["a", "b"], Categories(("a", "b"))),
        (np.array([1, 2]), Categories(("1", "2"))),
        ("a,b", Categories(("a", "b"))),
        ("edges:0,1", Edges((0, 1))),
        (Edges((0, 1)), Edges((0, 1))),
        ({"edges": np.linspace(0, 1, 3)}, Edges((0, 0.5, 1))),
    ],
)
def test_keys_may_be_written_in_several_ways(keys, domain):
    (query,) = query_set("1h", sv.count("q", by="a", keys=keys))
    assert query.domain == domain


def test_a_grid_has_two_columns():
    (query,) = query_set("1h", sv.count("q", by=("x", "y"), keys={"grid": [4, 50, 5, 51, 3, 2]}))
    assert (query.value, query.domain) == (("x", "y"), Grid(4, 50, 5, 51, 3, 2))


def test_a_file_of_keys_is_read_when_the_query_set_is_made():
    asked = []

    def read_domain(text, column):
        asked.append((text, column))
        return Categories(("x", "y"))

    made = sv.top("q", k=2, by="a", keys="places.txt", other="z")
    grouped = sv.count("r", by="a", keys="places.txt", levels=[{"g": ["x", "y"]}])
    assert asked == []
    first, second = query_set("1h", [made, grouped], read_domain)
    assert asked == [("places.txt", "a")] * 2
    assert first.domain.labels == ("x", "y", "z")
    assert second.tree.levels == (("g", "g"),)
    with pytest.raises(ConfigurationError, match="query 'q': k is 4, and there are 3 bins"):
        query_set("1h", sv.top("q", k=4, by="a", keys="places.txt", other="z"), read_domain)
    with pytest.raises(ConfigurationError, match="query 'q': levels: 'y' is in none of 'g'"):
        query_set(
            "1h", sv.count("q", by="a", keys="places.txt", levels=[{"g": ["x"]}]), read_domain
        )


def test_lengths_may_be_timedeltas():
    hour, day = dt.timedelta(hours=1), dt.timedelta(days=1)
    made = sv.count("q", every=6 * hour, rollups=[day, 7 * day])
    found = query_set(hour, [made])
    assert found.base == Slots(MICROSECONDS["h"])  # weeks that are written as days begin anywhere
    assert [(query.slots, query.times) for query in found] == [(6, (24, 168))]
    assert query_set(hour, sv.count("q", every="1w")).base.origin == MONDAY
    assert query_set("1d", sv.count("q", rollups=day * 2)).queries[0].times == (2,)


def test_slots_say_themselves_where_they_begin():
    base = Slots(MICROSECONDS["h"], 60_000_000)
    assert query_set(base, sv.count("q", every="1w")).base == base
    days = CalendarSlots(MICROSECONDS["d"], 0, "Europe/Berlin")
    weeks = query_set(days, sv.count("q", every="1w"))
    assert weeks.slots_of(weeks.queries[0]) == CalendarSlots(MICROSECONDS["w"], 0, "Europe/Berlin")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sv.count("a/b"), "query name 'a/b' cannot be that of a file"),
        (lambda: sv.count("q", by="a"), "the keys of a are missing: give the public values (keys)"),
        (lambda: sv.count("q", keys=["a"]), "it has keys, but no column that has them as values"),
        (lambda: sv.count("q", keys="f.txt"), "it has keys, but no column that has them as values"),
        (lambda: sv.count("q", by="a", keys="f.txt", weight=0), "weight is 0: give a number"),
        (
            lambda: sv.count("q", by="a", keys=["x", "x"]),
            "keys: the domain lists the bin 'x' twice",
        ),
        (lambda: sv.count("q", by="a", keys=["x"], levels=[{"g": ["y"]}]), "levels: "),
        (lambda: sv.count("q", every=3600), "every is 3600: write a length with its unit"),
        (lambda: sv.count("q", every=dt.timedelta()), "every: slot length 0 us"),
        (
            lambda: sv.count("q", every="1 month"),
            "every is '1 month': write calendar months as 1mo",
        ),
        (lambda: sv.count("q", rollups=["1d", "12h"]), "rollups: 12h is not made of two or more"),
        (lambda: sv.count("q", every="1d", rollups="36h"), "rollups: 36h is not made of two or"),
        (lambda: sv.count("q", where="car"), "where is 'car': write columns and what counts"),
        (
            lambda: sv.count("q", where=sv.where.kind),
            ("where.kind is not a condition: it is compared"),
        ),
        (lambda: sv.mean("q", of="a", bounds=(3, 1)), "bounds are [3, 1]: write the smaller"),
        (lambda: sv.mean("q", of="a", bounds=3), "bounds is 3: write [LOW, HIGH], or auto"),
        (lambda: sv.mean("q", of="a", bounds=("0", 1)), "number 1 of bounds is '0': write a"),
        (lambda: sv.sum("q", of=5, bounds=(0, 1)), "of is 5: write text"),
        (lambda: sv.quantiles("q", of="a"), "edges are missing: write either edges"),
        (lambda: sv.quantiles("q", of="a", edges=[0, 1], bounds=(0, 1)), "both edges and bounds"),
        (lambda: sv.quantiles("q", of="a", edges=[0, 1], quantiles=[50]), "quantile 50 is not"),
        (lambda: sv.top("q", k=3, by="a", keys=["x", "y"]), "k is 3, and there are 2 bins"),
        (lambda: sv.top("q", k=0, by="a", keys=["x"]), "k is 0: give a whole number, 1 or more"),
        (lambda: sv.distinct("q", share=2), "share is 2: give a number above 0 and at most 1"),
        (lambda: sv.distinct("q", mechanism="best"), "mechanism 'best' is unknown"),
        (lambda: sv.count("q", title=5), "title is 5: write text"),
    ],
)
def test_what_is_wrong_is_refused_when_a_definition_is_made(make, message):
    with pytest.raises(ConfigurationError) as refused:
        make()
    text = str(refused.value)
    assert message in text
    assert text.isprintable()
    assert text.count("query 'q'") == ("a/b" not in text)


@pytest.mark.parametrize(
    ("slot", "given", "message"),
    [
        ("1h", sv.count("q", every="90m"), "query 'q': every is 90m, which is not a multiple of"),
        ("1d", sv.count("q", rollups="1d"), "query 'q': rollups: 1d is not made of two or more"),
        ("1h", [], "the query set has no queries: ask at least one"),
        ("1h", [sv.count("q"), sv.distinct("q")], "two queries are called 'q'"),
        ("1h", [{"name": "q"}], "a query is {'name': 'q'}, of type dict: give a definition"),
        ("1h", "q", "queries is 'q', of type str: give definitions"),
        ("1x", sv.count("q"), "slot: slot length '1x'"),
        (1, sv.count("q"), "slot is 1: write a length with its unit"),
    ],
)
def test_what_does_not_fit_together_is_refused_by_the_query_set(slot, given, message):
    with pytest.raises(ConfigurationError) as refused:
        query_set(slot, given)
    assert str(refused.value).startswith(message)
