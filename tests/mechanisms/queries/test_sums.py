"""Sums whose parts noise makes negative: cutting those off at 0 would add to every sum."""

import numpy as np

from streamveil.mechanisms import Requirement, Slots
from streamveil.mechanisms.core.budgets import UNITS_PER_EPSILON
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.simulated import answers_of, simulate_query_set
from streamveil.mechanisms.queries.statistics import Sum

SUM = Sum("x", 0, 100)
SLOTS, EVENTS, USERS, SEEDS = 20, 420, 1800, 24


def released(numbers, epsilon, seed):
    """Answers of slots in a row about numbers."""
    query = Query("x", statistic=SUM)
    cells = np.array([SUM.weights[SUM.steps(one)].sum(axis=0) for one in numbers])
    found = simulate_query_set(
        QuerySet(Slots.of("1d"), (query,)),
        {"x": cells[:, None]},
        [Requirement(5, epsilon)],
        [USERS],
        key=bytes([seed]) * 32,
        shares=np.array([[int(epsilon * UNITS_PER_EPSILON)]]),
    )
    return list(answers_of(query, found.releases["x"]))


# Numbers at a twentieth of the range: what is above it, and at its upper end, is mostly noise.
def test_sums_of_small_numbers_are_not_too_large():
    ratios, held = [], []
    for seed in range(SEEDS):
        draw = np.random.default_rng(seed)
        numbers = [draw.uniform(0, 10, draw.poisson(EVENTS)) for _ in range(SLOTS)]
        for one, found in zip(numbers, released(numbers, 0.5, seed), strict=True):
            ratios.append(found.values[0, 0] / one.sum())
            held.append(found.low[0, 0] <= one.sum() <= found.high[0, 0])
            assert 0 <= found.low[0, 0] <= found.values[0, 0] <= found.high[0, 0]
    assert abs(np.mean(ratios) - 1) < 0.2  # 60 seeds: 0.95, with a standard error of 0.033
    assert np.mean(held) > 0.85
