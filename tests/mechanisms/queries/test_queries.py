"""Queries and query sets: what they add up to, and what a refusal says."""

from fractions import Fraction

import pytest

from streamveil.mechanisms import Categories, ConfigurationError, Grid, Slots
from streamveil.mechanisms.core.local_days import CalendarSlots
from streamveil.mechanisms.core.records import MICROSECONDS, parse_time
from streamveil.mechanisms.queries.conditions import Condition
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.statistics import DistinctUsers, Mean, Quantiles, TopK
from streamveil.mechanisms.queries.trees import Tree

BASE = Slots.of("1h")
BINS = Categories(("x", "y"))


@pytest.mark.parametrize("name", ["visits", "2", "a-b_C", "x" * 100])
def test_names(name):
    assert Query(name).name == name


@pytest.mark.parametrize(
    "name", ["", "-a", "_a", ".", "a.b", "a b", "é", "a\n", "x" * 101, None, 5]
)
def test_names_that_no_file_can_have(name):
    with pytest.raises(ConfigurationError, match="cannot be that of a file"):
        Query(name)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"slots": 0}, "slots is 0: give a whole number"),
        ({"slots": 1.5}, "slots is 1.5: give a whole number"),
        ({"max_contributions": 0}, "max_contributions is 0"),
        ({"keep": "some"}, "keep 'some' is unknown"),
        (
            {"keep": "distinct", "statistic": Mean("speed", 0, 1)},
            "keep 'distinct' chooses by bins alone, and events differ in their speed",
        ),
        ({"value": ("a",)}, "the domain of a is missing"),
        ({"domain": BINS}, "it has a domain of 2 bins, but no column"),
        (
            {"value": ("a", "b"), "domain": BINS},
            r"one column are counted \(given: a, b\)",
        ),
        (
            {"value": ("a",), "domain": Grid(0, 0, 1, 1, 2, 2)},
            r"a grid reads two columns \(given: a\)",
        ),
        ({"value": ("a", 5), "domain": BINS}, "value is 5, of type int: give the name"),
        ({"domain": "x,y"}, "domain is 'x,y', of type str: give a list"),
        ({"statistic": "count"}, "statistic is 'count', of type str: give one, such as Count"),
        ({"statistic": Quantiles}, "statistic is .*Quantiles.*, of type type: give one"),
        ({"where": ({"a": 1},)}, "where is {'a': 1}, of type dict: give conditions"),
        ({"statistic": TopK(2)}, "k is 2, and there are 1 bins: give at most as many"),
        (
            {"statistic": TopK(1), "value": "a", "domain": BINS, "tree": Tree((("all",) * 2,))},
            "a group is at least as large as each of its bins, so groups would rank first",
        ),
        ({"where": 5}, "where is 5, of type int: give conditions"),
        ({"tree": ("all",)}, "tree is .'all',., of type tuple: give one, such as Tree.of"),
        ({"tree": Tree((("city",) * 3,))}, "above 3 bins, but the domain has 1"),
        ({"value": ("a",), "domain": BINS, "tree": Tree((("x", "x"),))}, "'x' is called as a bin"),
        (
            {"mechanism": "rotation"},
            r"'rotation' is for devices that report \(streamveil collect\)",
        ),
        ({"weight": -1}, "weight is -1: give a number above 0"),
        ({"weight": float("inf")}, "weight is inf"),
        ({"share": 0}, "share is 0: give a number above 0 and at most 1"),
        ({"share": "all"}, "share is 'all'"),
    ],
)
def test_bad_queries_are_named(given, message):
    with pytest.raises(ConfigurationError, match=message) as caught:
        Query("asked", **given)
    assert str(caught.value).startswith("query 'asked': ")


def test_plain_arguments_are_taken():
    query = Query("q", value="a", domain=["x", "y"], where=Condition("b", ("1",)))
    assert query == Query("q", value=("a",), domain=BINS, where=(Condition("b", ("1",)),))


def test_users_of_a_group_are_not_those_of_its_bins():
    with pytest.raises(ConfigurationError, match="a user who is in two bins of a group"):
        Query(
            "q", 1, ("a",), BINS, DistinctUsers(), tree=Tree((("all",) * 2,)), max_contributions=2
        )
    Query("q", 1, ("a",), BINS, DistinctUsers(), tree=Tree((("all",) * 2,)))


def test_sensitivity_is_of_all_levels_and_contributions():
    tree = Tree((("all", "all"),))
    assert Query("q", 1, ("a",), BINS, tree=tree, max_contributions=3).sensitivity == 6
    between = Tree((("one", "two"), ("all", "all")))
    assert Query("q", 1, ("a",), BINS, tree=between, max_contributions=3).sensitivity == 6
    quantiles = Quantiles("b", (0, 1, 2), (0.5,))
    assert Query("q", 1, ("a",), BINS, quantiles, tree=tree).sensitivity == 2


@pytest.mark.parametrize(
    ("queries", "message"),
    [
        ((), "the query set has no queries"),
        ((Query("a"), Query("b"), Query("a", 2)), "two queries are called 'a'"),
        ((Query("a"), Query("A")), "'a' and 'A' differ only in upper and lower case"),
        (("a",), "a query is 'a', of type str: give a list of Query"),
        (Query("a"), "give a list of queries"),
        (5, "give a list of queries"),
        ((Query("a", share=0.6), Query("b", share=0.41)), "add up to 1.01, more than"),
        ((Query("a", share=1.0), Query("b")), "leaves nothing for query 'b'"),
        ((Query("a", 10**7),), "query 'a': slot length"),
    ],
)
def test_bad_query_sets_are_named(queries, message):
    with pytest.raises(ConfigurationError, match=message):
        QuerySet(BASE, queries)


# The sum of ten floats 0.1 is below 1, and the sum of their exact values above it.
def test_shares_are_added_up_as_they_are_written():
    assert sum(Fraction(0.1) for _ in range(10)) > 1
    tenths = [Query(f"q{number}", share=0.1) for number in range(10)]
    assert sum(query.fixed_share for query in QuerySet(BASE, tenths)) == 1
    with pytest.raises(ConfigurationError, match=r"add up to 1\.0000000000000001, more than"):
        QuerySet(BASE, [*tenths[1:], Query("more", share=0.1000000000000001)])
    assert Query("q").fixed_share == 0
    assert Query("q", share=1e-5).fixed_share == Fraction(1, 100_000)


def test_slots_of_a_query_are_of_base_slots():
    query_set = QuerySet("1w", [Query("q", 2)])
    slots = query_set.slots_of(query_set.queries[0])
    assert slots == Slots(2 * MICROSECONDS["w"], 4 * MICROSECONDS["d"])
    assert slots.start(5) == query_set.base.start(10)


def test_days_of_a_calendar_stay_days_of_a_calendar():
    query_set = QuerySet(CalendarSlots(MICROSECONDS["d"], zone="Europe/Paris"), [Query("q", 2)])
    slots = query_set.slots_of(query_set.queries[0])
    assert slots == CalendarSlots(2 * MICROSECONDS["d"], zone="Europe/Paris")


def test_a_range_is_of_whole_slots_of_every_query():
    query_set = QuerySet(BASE, [Query("hours"), Query("days", 24)])
    first = BASE.index(parse_time("2024-04-01"))
    query_set.check_range(first, first + 47)
    query_set.check_range(None, first - 1)
    with pytest.raises(ConfigurationError) as caught:
        query_set.check_range(first + 1, first + 47)
    assert str(caught.value) == (
        "query 'days' has slots of 1d, and the range starts at 2024-04-01T01:00:00Z, within "
        "one: start at 2024-04-01T00:00:00Z or 2024-04-02T00:00:00Z (--start)"
    )
    with pytest.raises(ConfigurationError) as caught:
        query_set.check_range(first, first + 46)
    assert str(caught.value) == (
        "query 'days' has slots of 1d, and the range ends at 2024-04-02T23:00:00Z, within "
        "one: end at 2024-04-02T00:00:00Z or 2024-04-03T00:00:00Z (--end)"
    )
