"""LDP budget uniform (LBU): PLBU when everybody asks for the strictest. For comparison only.

Guarantee, adjacency and sensitivity: PLBU's under the strictest requirement, which implies
everybody's own.
Source: Ren et al., "LDP-IDS: local differential privacy for infinite data streams" (2022).
Changed: absent users report too, so that reporting tells nobody who is present.
"""

from __future__ import annotations

from streamveil.mechanisms.accounting.schedule import even_budgets, strictest
from streamveil.mechanisms.comparators.calendar import Periodic
from streamveil.mechanisms.comparators.randomized_response import RandomizedResponse
from streamveil.mechanisms.protocol import Population


class LBU(Periodic):
    """Every user reports in every slot by randomised response with min E / max w."""

    def __init__(self, name: str, population: Population) -> None:
        price = even_budgets(strictest(population.requirements))
        publisher = RandomizedResponse.choose(price, population)
        super().__init__(name, population, publisher, price, period=1)
