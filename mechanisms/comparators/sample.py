"""Sample: the whole budget for one slot of each window. For comparison only.

Guarantee: (w, E)-EPDP, pure: publications are max w_k slots apart, so any w_k slots hold at most
one, which costs class k its E_k.
Adjacency: streams that differ in one user's events, all added or removed; replaced with twice the
sensitivity.
Sensitivity: 1 per contribution; above 1, budgets are divided by it (see `sampling.py`).
Source: Kellaris et al., "Differentially private event sequences over infinite streams" (2014),
for one requirement; users with different budgets are sampled as in Du et al.,
"Personalized w-event privacy for infinite stream estimation", Section 4.2.
Changed: budgets are the users' own, the period is the longest window, and noise is discrete.
"""

from __future__ import annotations

from streamveil.mechanisms.accounting.schedule import whole_budgets
from streamveil.mechanisms.comparators.calendar import Periodic
from streamveil.mechanisms.protocol import Population
from streamveil.mechanisms.wevent.sampling import Sampling


class Sample(Periodic):
    """One publication every max w_k slots with E_k, repeated in between (status `skipped`).

    Its `stderr` is that of the publication; a repeated count also misses what changed since.
    """

    def __init__(self, name: str, population: Population) -> None:
        price = whole_budgets(population.requirements)
        period = max(requirement.window for requirement in population.requirements)
        super().__init__(name, population, Sampling.choose(price, population), price, period)
