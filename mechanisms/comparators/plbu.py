"""Personalised LDP budget uniform (PLBU), debiased. For comparison only.

Guarantee: (w, E)-EPDP, pure, and in the local model: any w_k slots cost class k at most
w_k * floor(E_k / w_k) units, even towards whoever collects the reports. Here the reports are only
simulated from the true counts.
Adjacency: streams that differ in one user's events, all added, removed or (with twice the
sensitivity) replaced.
Sensitivity: 1 per contribution; above 1, a user sends so many reports a slot and divides the budget
among them (see `randomized_response.py`).
Source: Du et al., "Personalized w-event privacy for infinite stream estimation" (journal version),
Section 6, after LBU.
Changed: in print the reports are counted as they are and never debiased; absent users report too,
so that reporting tells nobody who is present; classes are weighted by their precision.
"""

from __future__ import annotations

from streamveil.mechanisms.accounting.schedule import even_budgets
from streamveil.mechanisms.comparators.calendar import Periodic
from streamveil.mechanisms.comparators.randomized_response import RandomizedResponse
from streamveil.mechanisms.protocol import Population


class PLBU(Periodic):
    """Every user reports in every slot by randomised response with E_k / w_k."""

    def __init__(self, name: str, population: Population) -> None:
        price = even_budgets(population.requirements)
        publisher = RandomizedResponse.choose(price, population)
        super().__init__(name, population, publisher, price, period=1)
