"""Sums are unbiased and intervals are honest on streams that are shaped like public files.

The slow tests take a sample of `benchmarks/real.py`: each stream with eight seeds, two or three of
each budget.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from tests.real.scores import EPSILONS, SEEDS, SLIGHT, grouped, scores
from tests.real.streams import STREAMS
from tests.real.truth import SUMS

LEAST, MOST = 0.85, 0.97
"""Coverage of intervals of 90 %. By 32 seeds those of payments cover 0.965 and of a standard
deviation of meters 0.954; single blocks of eight seeds 0.955 to 0.978 and 0.92 to 0.984."""
NOT_MET = {
    # Three weeks of a daily wave of 40 % in sums with much noise, one release a day: its hours have
    # been seen too seldom to know how far they differ.
    ("meters", "sum"): "coverage",
    # 35 events a day in 200 bins: a bin has 0.2, and no released count is below 0, so that noise
    # adds up to more than there is. Of 40 seeds the sum is 1.35 times the truth, at 3.9 standard
    # errors of it; that of groups of these bins (levels) is right.
    ("issues", "count of a bin"): "sum",
}
"""What does not hold yet of single figures, by stream and figure."""
HELD = 0.75
"""Least coverage of one figure with one budget: that of eight runs varies by chance."""
RECORDED = Path(__file__).parents[2] / "benchmarks" / "results" / "real.json"


@pytest.fixture(scope="module")
def sample():
    return [
        one
        for name in STREAMS
        for seed in SEEDS
        for one in scores(name, EPSILONS[seed % len(EPSILONS)], seed)
    ]


@pytest.mark.slow
def test_sums_are_those_of_the_events(sample):
    biased = {g.key: (g.ratio, g.bias) for g in grouped(sample, "stream", "figure") if g.is_biased}
    assert not {key for key in biased if "sum" not in NOT_MET.get(key, "")}, biased


@pytest.mark.slow
@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("by", ["figure", "epsilon", "stream"])
def test_intervals_hold_nine_tenths_of_the_truth(sample, by, later):
    for group in grouped(sample, by):
        held = np.array([one.held[later] for one in group.scores])
        slack = 3 * held.std(ddof=1) / math.sqrt(len(held))
        assert held.mean() >= LEAST - slack, group.key
        # In the first days an interval may be wider: less is known than is allowed for.
        some = [one for one in group.scores if not one.is_sparse and not one.is_hidden]
        held = np.array([one.held[later] for one in some])
        assert not later or not some or held.mean() <= MOST + slack, group.key


def test_the_recorded_table_is_of_all_streams_and_budgets():
    each, together = json.loads(RECORDED.read_text())[-1]["tables"]
    assert {tuple(row[i] for i in (0, 2)) for row in each["rows"]} == {
        (name, epsilon) for name in STREAMS for epsilon in EPSILONS
    }
    figures = {(stream, figure) for stream, figure, *_ in each["rows"]}
    assert sum(row[2] for row in together["rows"]) == len(figures) * len(EPSILONS)


# Each figure of each stream is held by itself, not on average over streams.
def test_each_recorded_figure_holds_but_for_those_that_are_named():
    each, _ = json.loads(RECORDED.read_text())[-1]["tables"]
    for stream, figure, epsilon, ratio, bias, *coverages in each["rows"]:
        missed = NOT_MET.get((stream, figure), "")
        if figure.split()[0] in SUMS and "sum" not in missed:
            assert abs(ratio - 1) <= SLIGHT or abs(bias) <= 3, (stream, figure, epsilon)
        if "coverage" not in missed:
            assert min(coverages) > HELD, (stream, figure, epsilon)
    recorded = {(stream, figure) for stream, figure, *_ in each["rows"]}
    assert set(NOT_MET) <= recorded
