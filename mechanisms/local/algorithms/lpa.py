"""LDP population absorption (LPA): PLPA when everybody asks for the strictest.

For comparison only.

Guarantee, adjacency and sensitivity: PLPA's under the strictest requirement, which implies
everybody's own.
Source: Ren et al., "LDP-IDS: local differential privacy for infinite data streams" (2022).
"""

from __future__ import annotations

from streamveil.mechanisms.accounting.schedule import strictest
from streamveil.mechanisms.local.algorithms.plpa import Absorption
from streamveil.mechanisms.local.algorithms.population_division import Plan, PopulationDivision
from streamveil.mechanisms.local.algorithms.publication_strategy import (
    Strategy,
    personalised_frequency_oracle,
)
from streamveil.mechanisms.local.protocol import Users


class LPA(Strategy):
    """Population absorption under min E and max w."""

    def __init__(self, name: str, users: Users, *, project: bool = False) -> None:
        plan = Plan.longest(users, strictest(users.classes))
        schedule = PopulationDivision(users, plan, Absorption())
        super().__init__(name, schedule, personalised_frequency_oracle, project)
