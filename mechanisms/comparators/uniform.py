"""Uniform: the same share of the budget for every slot. For comparison only.

Guarantee: (w, E)-EPDP, pure: any w_k slots cost class k at most w_k * floor(E_k / w_k) units.
Adjacency: streams that differ in one user's events, all added or removed; replaced with twice the
sensitivity.
Sensitivity: 1 per contribution; above 1, budgets are divided by it (see `sampling.py`).
Source: Kellaris et al., "Differentially private event sequences over infinite streams" (2014),
for one requirement; users with different shares are sampled as in Du et al.,
"Personalized w-event privacy for infinite stream estimation", Section 4.2.
Changed: shares are the users' own, and noise is discrete.
"""

from __future__ import annotations

from streamveil.mechanisms.accounting.schedule import even_budgets
from streamveil.mechanisms.comparators.calendar import Periodic
from streamveil.mechanisms.protocol import Population
from streamveil.mechanisms.wevent.sampling import Sampling


class Uniform(Periodic):
    """Every slot publishes with E_k / w_k, by SM at the threshold that OBS chooses.

    Its `stderr` is complete: noise, sampling, and the bias of sampling if classes are equally busy.
    """

    def __init__(self, name: str, population: Population) -> None:
        price = even_budgets(population.requirements)
        super().__init__(name, population, Sampling.choose(price, population), price, period=1)
