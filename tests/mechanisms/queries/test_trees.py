"""Trees over bins: their nodes and labels, and what a refusal says."""

import numpy as np
import pytest

from streamveil.mechanisms import Categories, ConfigurationError, Edges
from streamveil.mechanisms.queries.trees import ALL, FLAT, ROOT, Tree, levels_of, parents_of

BINS = Categories(("a", "b", "c", "d"))
CITY = Tree((("east", "west", "east", "north"), ("near", "far", "near", "far"), (ALL,) * 4))


def test_nodes_are_numbered_level_by_level():
    above = CITY.above(4)
    assert above.tolist() == [[0, 4, 7, 9], [1, 5, 8, 9], [2, 4, 7, 9], [3, 6, 8, 9]]
    labels = ("a", "b", "c", "d", "east", "west", "north", "near", "far", "all")
    assert CITY.labels(BINS) == labels
    assert parents_of(above).tolist() == [4, 5, 4, 6, 7, 8, 8, 9, 9, ROOT]
    assert levels_of(above).tolist() == [0] * 4 + [1] * 3 + [2] * 2 + [3]


def test_bins_and_the_top_are_measured():
    assert CITY.measured(4).tolist() == [[0, 4], [1, 4], [2, 4], [3, 4]]
    groups = Tree((("east", "west", "east", "north"), ("near", "far", "near", "far")))
    assert groups.measured(4).tolist() == [[0, 4], [1, 5], [2, 4], [3, 5]]
    assert FLAT.measured(2).tolist() == [[0], [1]]


def test_nothing_is_above_the_bins_of_a_flat_domain():
    assert FLAT.above(2).tolist() == [[0], [1]]
    assert FLAT.labels(BINS) == BINS.labels
    assert parents_of(FLAT.above(2)).tolist() == [ROOT, ROOT]


def test_a_tree_of_what_is_in_each_group():
    groups = {"east": ["a", "c"], "west": ["b"], "north": ["d"]}
    assert Tree.of(BINS, [groups, {"near": ["east"], "far": ["north", "west"]}, ALL]) == CITY
    assert Tree.of(Edges((0, 1, 2)), [{"low": ["[0, 1)"], "high": ["[1, 2)"]}]).levels == (
        ("low", "high"),
    )


def test_the_order_of_groups_does_not_depend_on_discovered_keys():
    tree = Tree((("east", "west"), (ALL, ALL)))
    grown = tree.with_keys([1, 0, 1])
    assert grown.levels == (("west", "east", "west", "east", "west"), (ALL,) * 5)
    names = Categories(("k1", "k2", "k3", "other east", "other west"))
    assert grown.labels(names)[5:] == ("east", "west", "all")
    assert grown.above(5)[:, 1].tolist() == [6, 5, 6, 5, 6]
    assert grown.measured(5).tolist() == [[bin_, 5] for bin_ in range(5)]
    assert grown.with_keys([]) == tree
    assert FLAT.with_keys([0, 0]) == FLAT


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ([{"x": ["a", "b"], "y": ["c"]}], "'d' is in none of 'x', 'y'"),
        ([{"x": ["a", "b", "c"], "y": ["c", "d"]}], "'c' is listed in 'x' and in 'y'"),
        ([{"x": ["a", "a", "b", "c", "d"]}], "'a' is listed in 'x' and in 'x'"),
        ([{"x": ["a", "b", "c", "d", "e"]}], "'x' lists 'e', which is neither"),
        ([{"x": ["a", "b", "c", "d"], "y": []}], "'y' is empty"),
        ([{"x": ["a", "b"], "y": ["c", "d"]}, {"z": ["a", "b", "c", "d"]}], "'z' lists 'a'"),
        ([{"x": ["a", "b"], "y": ["c", "d"]}, {"x": ["x", "y"]}], "'x' names groups of two"),
        ([{"a": ["a", "b", "c", "d"]}], "the group 'a' is called as a bin is"),
        (["most"], "'most' is not a level"),
    ],
)
def test_what_is_in_two_groups_or_none_is_named(levels, message):
    with pytest.raises(ConfigurationError, match=message):
        Tree.of(BINS, levels)


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ((("x", "y"), ("z",)), "one is above 2 bins, another above 1"),
        ((("x", "x"), ("y", "z")), "'x' is in 'y' and in 'z'"),
        ((("x", ""),), "'' is not a name of a group"),
        ((("x", 3),), "3 is not a name of a group"),
    ],
)
def test_levels_that_are_not_nested_are_named(levels, message):
    with pytest.raises(ConfigurationError, match=message):
        Tree(levels)


def test_a_tree_is_for_its_own_number_of_bins():
    with pytest.raises(ConfigurationError, match="above 4 bins, but the domain has 3"):
        CITY.above(3)


# Bins that are released apart count what their groups count, whatever the tree.
def test_every_event_is_in_one_node_of_each_level():
    above = CITY.above(4)
    for level in above.T:
        assert np.bincount(level, minlength=10).sum() == 4
