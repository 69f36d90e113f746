"""The domains: what they accept, their bins and labels, and what a refusal says."""

import math

import pytest

from streamveil.mechanisms import Categories, ConfigurationError, Edges, Grid
from streamveil.mechanisms.core.domains import MOST_GRID_CELLS, domain_of_list, list_text


@pytest.mark.parametrize(
    ("values", "message"),
    [((), "at least one"), (("a", ""), "empty"), (("a", "b", "a"), "'a' twice"), ((1, "1"), "'1'")],
)
def test_bad_categories_are_named(values, message):
    with pytest.raises(ConfigurationError, match=message):
        Categories(values)


def test_categories():
    domain = Categories([3, "b"])
    assert domain.values == domain.labels == ("3", "b")
    assert domain.bins == 2
    assert hash(domain) == hash(Categories(("3", "b")))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('bike,e-bike,"cargo, large"', ("bike", "e-bike", "cargo, large")),
        ('"a, b"', ("a, b",)),
        (' a , "b ""x""" ,c', ("a", 'b "x"', "c")),
        ('" a ",b', (" a ", "b")),
        ("it's,b", ("it's", "b")),
    ],
)
def test_a_list_is_a_csv_line(text, values):
    assert domain_of_list(text).values == values
    assert domain_of_list(list_text(values)).values == values


@pytest.mark.parametrize("text", ['a,"b', '5" pipe,x', '"a"b,c', 'a,b"'])
def test_a_stray_quote_is_refused_in_a_line(text):
    with pytest.raises(
        ConfigurationError, match="does not enclose a whole value: quote"
    ) as refused:
        domain_of_list(text)
    assert "JSON" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["a,,b", "a,", ',"a"', 'a,""'])
def test_an_empty_value_of_a_list_is_refused(text):
    with pytest.raises(ConfigurationError, match="empty value"):
        domain_of_list(text)


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ((), "two or more"),
        ((1.0,), r"\(1.0,\)"),
        ((0.0, math.inf), "inf"),
        ((0.0, math.nan, 1.0), "nan"),
        ((0.0, 2.0, 2.0), "2.0 comes before 2.0"),
        ((3.0, 1.5), "3.0 comes before 1.5"),
    ],
)
def test_bad_edges_are_named(edges, message):
    with pytest.raises(ConfigurationError, match=message):
        Edges(edges)


def test_edges():
    domain = Edges([0, 1, 2.5])
    assert domain.edges == (0.0, 1.0, 2.5)
    assert domain.bins == 2
    assert domain.labels == ("[0, 1)", "[1, 2.5)")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"west": 1.0, "east": 1.0}, r"\(1.0, 40.0, 1.0, 41.0\)"),
        ({"south": 42.0}, "42.0"),
        ({"west": -181.0}, "-181.0"),
        ({"north": 90.5}, "90.5"),
        ({"east": math.nan}, "nan"),
        ({"columns": 0}, "0 columns"),
        ({"rows": -1}, "-1 rows"),
        (
            {"columns": 40_000, "rows": 25_000},
            "grid of 40000 columns and 25000 rows has 1,000,000,000 cells, and at most 16,777,216 "
            "can be counted: give fewer columns or rows",
        ),
    ],
)
def test_bad_grid_is_named(change, message):
    good = {"west": -74.0, "south": 40.0, "east": -73.0, "north": 41.0, "columns": 3, "rows": 2}
    assert Grid(**good).bins == 6
    assert Grid(**{**good, "columns": 4096, "rows": 4096}).bins == MOST_GRID_CELLS
    with pytest.raises(ConfigurationError, match=message):
        Grid(**{**good, **change})


# Labels are in the order of the bins: row by row from the south-west corner.
def test_grid_labels():
    assert Grid(-74, 40, -73, 41, 2, 2).labels == ("r0c0", "r0c1", "r1c0", "r1c1")
