"""Totals of levels where noise hides most bins: what these are shrunk by is not missing."""

import numpy as np
import pytest

from streamveil.mechanisms import Categories, Requirement, Slots
from streamveil.mechanisms.core.budgets import UNITS_PER_EPSILON
from streamveil.mechanisms.core.records import SKIPPED
from streamveil.mechanisms.protocol import Observed
from streamveil.mechanisms.queries.fusing import agreed
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.simulated import answers_of, simulate_query_set, times_of
from streamveil.mechanisms.queries.trees import Tree

BINS = tuple(f"s{i:02}" for i in range(40))
GROUPS = {"top": BINS[:4], "middle": BINS[4:16], "low": BINS[16:]}
USERS, SLOTS, EVENTS, SEEDS = 800, 42, 500, 5


def zipf(seed):
    """True counts of each slot and bin, one event of a user in each slot."""
    draw = np.random.default_rng(seed)
    share = 1 / np.arange(1, len(BINS) + 1)
    return draw.multinomial(draw.poisson(EVENTS, SLOTS), share / share.sum())


@pytest.mark.slow
@pytest.mark.parametrize("contributions", [1, 4])
def test_totals_of_levels_are_those_of_the_stream(contributions):
    domain = Categories(BINS)
    query = Query(
        "places",
        value=("place",),
        domain=domain,
        tree=Tree.of(domain, [GROUPS, "all"]),
        times=(7,),
        max_contributions=contributions,
    )
    query_set = QuerySet(Slots.of("1d"), (query,))
    shares = np.array([[int(0.3 * UNITS_PER_EPSILON)]])
    above = query.tree.above(len(BINS))
    runs, held = [], []
    for seed in range(SEEDS):
        of_levels = []
        bins = zipf(seed)
        nodes = np.zeros((SLOTS, int(above.max()) + 1), np.int64)
        for level in above.T:
            np.add.at(nodes, (slice(None), level), bins)
        cells = nodes[:, [*range(len(BINS)), -1]]
        releases = simulate_query_set(
            query_set,
            {"places": cells[:, None]},
            [Requirement(7, 0.3)],
            [USERS],
            key=bytes([seed]) * 32,
            shares=shares,
        ).releases["places"]
        found = [
            (figures, nodes[slot])
            for slot, figures in enumerate(answers_of(query, releases))
            if releases[slot].status != SKIPPED
        ]
        weeks = times_of(query, query_set, releases, 0)[7]
        found += [(one, nodes[7 * n : 7 * n + 7].sum(axis=0)) for n, one in enumerate(weeks)]
        for figures, exact in found:
            inside = (figures.low[:, 0] <= exact) & (exact <= figures.high[:, 0])
            held.append(inside[len(BINS) :])
            of_levels.append(figures.values[len(BINS) :, 0] / exact[len(BINS) :])
        runs.append(np.mean(of_levels, axis=0))
    ratios, coverage = np.mean(runs, axis=0), np.mean(held, axis=0)
    assert ratios[-1] == pytest.approx(1, abs=0.08)
    # Of groups the noise is large.
    assert (np.abs(ratios - 1) < 0.05 + 3 * np.std(runs, axis=0, ddof=1) / SEEDS**0.5).all()
    assert (coverage > 0.84).all()


# What groups have more than the shrunk bins is spread over these, as far as they may err.
def test_shrunk_bins_are_brought_to_agree_with_groups_that_are_not():
    tree = Tree.of(Categories(("a", "b", "c", "d")), [{"x": ("a", "b"), "y": ("c", "d")}, "all"])
    plain = Observed(np.array([[60.0], [20], [-6], [10], [90]]), np.full((5, 1), 25.0))
    shrunk = np.array([[30], [10], [0], [5], [90]])
    counts, variances = agreed(shrunk, np.full((5, 1), 5.0), tree, 4, plain)
    assert counts[:, 0].tolist() == [52, 31, 1, 6, 83, 7, 90]
    assert variances[:4, 0].tolist() == [25.0] * 4
    without, _ = agreed(shrunk, np.full((5, 1), 5.0), tree, 4)
    assert without[4, 0] < counts[4, 0]
