"""Estimates that are brought to agree: their stated errors, and in whole numbers."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamveil.mechanisms.core.domains import Categories
from streamveil.mechanisms.core.records import PUBLISHED, SKIPPED
from streamveil.mechanisms.protocol import Observed, SlotRelease
from streamveil.mechanisms.queries.fusing import agreed, fuse_alike, observed_parts, whole_counts
from streamveil.mechanisms.queries.queries import Query
from streamveil.mechanisms.queries.statistics import Mean
from streamveil.mechanisms.queries.trees import ROOT, Tree, parents_of

CITY = Tree((("a", "a", "b"), ("all",) * 3))


@st.composite
def trees(draw):
    """Nodes above each node, with one to four levels."""
    parents, level = [], draw(st.integers(1, 6))
    while True:
        above = draw(st.integers(1, level)) if len(parents) < 12 else 0
        following = len(parents) + level
        if not above:
            return np.array(parents + [ROOT] * level)
        chosen = [*range(above), *draw(st.lists(st.integers(0, above - 1), max_size=level))]
        parents += [following + each for each in chosen[:level]]
        parents += [following] * (level - len(chosen[:level]))
        level = above
        if draw(st.booleans()) and len(parents) > 2:
            return np.array(parents + [ROOT] * level)


def children_of(parents):
    return {
        int(parent): np.flatnonzero(parents == parent) for parent in set(parents[parents != ROOT])
    }


def leaves_under(parents):
    """Which leaves each node is the sum of: shape (nodes, leaves)."""
    leaves = np.setdiff1d(np.arange(len(parents)), parents)
    design = np.zeros((len(parents), len(leaves)))
    for column, node in enumerate(leaves):
        while node != ROOT:
            design[node, column] = 1
            node = parents[node]
    return design


def drawn(parents, seed, parts=1):
    random = np.random.default_rng(seed)
    shape = (len(parents), parts)
    return random.normal(5, 10, shape), random.exponential(4, shape) + 1e-3


# The estimates are linear in the means: their true variance follows from that of the means. Some
# nodes above the bins are not measured.
@pytest.mark.property
@given(trees(), st.integers(0, 2**32), st.sampled_from([0.0, 0.3, 0.9, 1.0]))
def test_stated_variances_hold_for_errors_that_are_alike_and_for_those_that_are_not(
    parents, seed, correlation
):
    _, variances = drawn(parents, seed)
    random = np.random.default_rng(seed)
    unmeasured = (random.random(len(parents)) < 0.3) & np.isin(np.arange(len(parents)), parents)
    variances[unmeasured] = np.nan
    each = np.eye(len(parents))
    found, stated = fuse_alike(each, np.repeat(variances, len(parents), axis=1), parents)
    assert np.allclose(stated, stated[:, :1])
    for parent, children in children_of(parents).items():
        np.testing.assert_allclose(found[children].sum(axis=0), found[parent], atol=1e-9)
    stderr = np.sqrt(np.where(unmeasured, 0, variances[:, 0]))
    alike = np.outer(stderr, stderr)
    errors = correlation * alike + (1 - correlation) * np.diag(stderr**2)
    assert (np.diag(found @ errors @ found.T) <= stated[:, 0] * (1 + 1e-9) + 1e-9).all()
    if correlation == 1:
        grown = np.diag(found @ errors @ found.T) > variances[:, 0] * (1 + 1e-9) + 1e-9
        assert not grown[~unmeasured].any()
    top = (parents == ROOT) & ~unmeasured
    assert (stated[top, 0] <= variances[top, 0]).all()


def test_the_surer_one_of_a_parent_and_its_children_is_kept():
    # Two bins with a standard error of 1 and 3: together they have at most one of 4.
    parents = np.array([2, 2, ROOT])
    found, left = fuse_alike([[10], [20], [38]], [[1], [9], [15]], parents)
    assert found[:, 0].tolist() == [12, 26, 38]
    assert left[:, 0].tolist() == [1 - 2 / 4 + 25 / 16, 9 - 18 * 3 / 4 + 9 * 25 / 16, 15]
    found, left = fuse_alike([[10], [20], [38]], [[1], [9], [17]], parents)
    assert found[:, 0].tolist() == [10, 20, 30]
    assert left[:, 0].tolist() == [1, 9, 16]


def test_results_of_a_tree():
    # Measured are three bins and the top: `a` and `b` are sums.
    counts, variances = agreed([[10], [20], [30], [66]], [[1], [1], [1], [1]], CITY, 3)
    assert counts[:, 0].tolist() == [12, 22, 32, 34, 32, 66]
    bin_variance = 1 - 2 / 3 + 4 / 9
    pair_variance = 2 * (1 - 4 / 3) + 4 / 9 * 4
    wanted = [bin_variance] * 3 + [pair_variance, bin_variance, 1]
    np.testing.assert_allclose(variances[:, 0], wanted)


def test_what_is_reported_before_the_first_release_and_without_a_tree():
    counts, variances = agreed(np.zeros((4, 2), int), np.full((4, 2), np.nan), CITY, 3)
    assert counts.shape == (6, 2)
    assert not counts.any()
    assert np.isnan(variances).all()
    counts, variances = agreed([[-2], [3]], [[1], [2]], Tree(), 2)
    assert counts.tolist() == [[-2], [3]]
    assert variances.tolist() == [[1], [4]]


@pytest.mark.property
@given(trees(), st.integers(0, 2**32), st.integers(1, 3))
def test_whole_counts_add_up_exactly_and_none_is_negative(parents, seed, parts):
    means, _ = fuse_alike(*drawn(parents, seed, parts), parents)
    whole = whole_counts(means, parents)
    assert whole.dtype == np.int64
    assert (whole >= 0).all()
    for parent, children in children_of(parents).items():
        np.testing.assert_array_equal(whole[children].sum(axis=0), whole[parent])


# A parent is moved by less than 1, so its children are by less than that and 1 of their own.
@pytest.mark.property
@given(trees(), st.integers(0, 2**32))
def test_whole_counts_are_near_where_nothing_is_negative(parents, seed):
    random = np.random.default_rng(seed)
    means = leaves_under(parents) @ random.uniform(20, 30, (leaves_under(parents).shape[1], 2))
    moved = np.abs(whole_counts(means, parents) - means).max()
    assert moved < 5
    exact = np.rint(leaves_under(parents) @ np.rint(means[: leaves_under(parents).shape[1]]))
    np.testing.assert_array_equal(whole_counts(exact, parents), exact)


def test_the_nearest_from_zero():
    # 7 is to be reached from -3, 4 and 6: the first is 0, and the others lose 1.5 each.
    parents = np.array([3, 3, 3, ROOT])
    assert whole_counts(np.array([[-3.0], [4.2], [6], [7]]), parents)[:, 0].tolist() == [0, 3, 4, 7]
    assert not whole_counts(np.array([[-3.0], [2], [0], [-1]]), parents).any()


@pytest.mark.parametrize("unmeasured", [math.inf, math.nan])
def test_what_was_not_measured_is_what_the_others_leave(unmeasured):
    parents = np.array([3, 3, 3, ROOT])
    found, left = fuse_alike([[1], [2], [0], [10]], [[1], [2], [unmeasured], [4]], parents)
    assert found[:, 0].tolist() == [1, 2, 7, 10]
    assert left[:, 0].tolist() == [1, 2, math.inf, 4]
    found, left = fuse_alike([[1], [0], [0], [10]], [[1], [unmeasured], [unmeasured], [4]], parents)
    assert found[:, 0].tolist() == [1, 4.5, 4.5, 10]
    assert left[:, 0].tolist() == [1, math.inf, math.inf, 4]
    found, left = fuse_alike([[1], [2], [3], [0]], [[1], [1], [1], [unmeasured]], parents)
    assert found[:, 0].tolist() == [1, 2, 3, 6]
    # The errors of three bins may be alike, so that their sum has one of 3.
    assert left[:, 0].tolist() == [1, 1, 1, 9]


def test_before_the_first_release_nothing_is_known():
    parents = parents_of(CITY.above(3))
    found, left = fuse_alike(np.zeros((6, 2)), np.full((6, 2), np.nan), parents)
    assert not found.any()
    assert np.isinf(left).all()
    assert not whole_counts(found, parents).any()


def test_what_is_certain_stays():
    parents = np.array([2, 2, ROOT])
    found, left = fuse_alike([[3], [4], [9]], [[0], [0], [5]], parents)
    assert found[:, 0].tolist() == [3, 4, 7]
    assert not left.any()
    found, left = fuse_alike([[3], [4], [9]], [[0], [2], [0]], parents)
    assert found[:, 0].tolist() == [3, 6, 9]
    assert not left.any()


def test_a_flat_domain_stays_as_it_is():
    means, variances = np.array([[1.5], [-2]]), np.array([[1.0], [np.inf]])
    found, left = fuse_alike(means, variances, np.array([ROOT, ROOT]))
    assert found[0, 0] == 1.5
    assert np.array_equal(left, variances)


# Large counts, such as sums in quanta, add up as exactly.
def test_large_counts_add_up():
    random = np.random.default_rng(3)
    parents = np.append(np.repeat(50 + np.arange(5), 10), [55] * 5 + [ROOT])
    leaves = random.uniform(0, 1e12, (50, 1))
    means, _ = fuse_alike(
        np.vstack([leaves, random.normal(1e12, 1e9, (6, 1))]), np.ones((56, 1)), parents
    )
    whole = whole_counts(means, parents)
    for parent, children in children_of(parents).items():
        assert whole[children].sum() == whole[parent].sum()


def test_groups_are_observed_as_the_sums_of_what_is_in_them():
    query = Query(
        "delay",
        value=("place",),
        domain=Categories(("p", "q", "r")),
        statistic=Mean("delay", 0, 1),
        tree=CITY,
    )
    cells = np.arange(16.0)  # of three bins and the top
    seen = Observed(cells, cells + 1, 24)
    release = SlotRelease(
        *(cells.astype(np.int64), PUBLISHED, 0, 1.0, np.full(16, 2.0)),
        spent=np.zeros(1, np.int64),
        observed=(seen,),
    )
    (observed,) = observed_parts(query, release)
    assert observed.slots == 24
    assert observed.counts[:, 0].tolist() == [0, 4, 8, 0 + 4, 8, 12]
    assert observed.variances[:, 0].tolist() == [1, 5, 9, 1 + 5, 9, 13]
    # Of mechanisms that say nothing more it is what they publish, and what they repeat is nothing.
    (observed,) = observed_parts(query, replace(release, observed=None))
    assert observed.variances[:, 0].tolist() == [4, 4, 4, 8, 4, 4]
    assert not list(observed_parts(query, replace(release, observed=None, status=SKIPPED)))
