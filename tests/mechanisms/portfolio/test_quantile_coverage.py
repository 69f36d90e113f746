"""Intervals of quantiles where noise hides much: also of predicted and early slots."""

import numpy as np
import pytest

from streamveil.mechanisms import Requirement, Slots
from streamveil.mechanisms.core.budgets import UNITS_PER_EPSILON
from streamveil.mechanisms.portfolio.questions import Portfolio, Question
from streamveil.mechanisms.portfolio.simulated import answers_of, simulate_portfolio
from streamveil.mechanisms.portfolio.statistics import Quantiles, log_edges

STATISTIC = Quantiles("x", log_edges(100, 1e6, 24), (0.5, 0.95))
QUESTION = Question("x", slots=6, statistic=STATISTIC)
PORTFOLIO = Portfolio(Slots.of("1h"), (QUESTION,))
SLOTS, EVENTS, USERS, SEEDS = 12, 420, 1800, 5


# Once a slot of which nothing was known had a median of 10,000 with a standard error of 3.6.
@pytest.mark.parametrize(("epsilon", "median", "spread"), [(0.15, 1e4, 1.5), (0.6, 6e4, 0.7)])
def test_intervals_of_quantiles_hold_what_is_hidden(epsilon, median, spread):
    held, wide = {True: [], False: []}, {True: [], False: []}
    for seed in range(SEEDS):
        draw = np.random.default_rng(seed)
        numbers = [
            draw.lognormal(np.log(median), spread, draw.poisson(EVENTS)) for _ in range(SLOTS)
        ]
        parts = len(STATISTIC.weights)
        cells = np.array([np.bincount(STATISTIC.steps(one), minlength=parts) for one in numbers])
        releases = simulate_portfolio(
            PORTFOLIO,
            {"x": cells[:, None]},
            [Requirement(24, epsilon)],
            [USERS],
            key=bytes([seed]) * 32,
            shares=np.array([[int(epsilon * UNITS_PER_EPSILON)]]),
        ).releases["x"]
        for one, found, release in zip(
            numbers, answers_of(QUESTION, releases), releases, strict=True
        ):
            true, published = np.quantile(one, STATISTIC.quantiles), release.status == "published"
            held[published].append((found.low[0] <= true) & (true <= found.high[0]))
            wide[published].append(found.stderr[0, 0])
    medians, tails = np.mean(held[True] + held[False], axis=0)
    assert medians > 0.85
    assert tails > 0.75
    assert np.mean(held[False], axis=0)[0] > 0.85
    assert min(wide[False]) > 0.3 * min(wide[True])
