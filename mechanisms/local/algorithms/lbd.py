"""LDP budget distribution (LBD): BD with reports for noise. For comparison only.

Guarantee, adjacency and sensitivity: those of `budget_division.py` and
`publication_strategy.py`, with the budgets of
`bd.py`: half of E for dissimilarities in equal shares, and to each publication half of what the
window leaves of the other half.
Source: Ren et al., "LDP-IDS: local differential privacy for infinite data streams" (2022).
"""

from __future__ import annotations

from streamveil.mechanisms.local.algorithms.budget_division import BudgetDivision
from streamveil.mechanisms.local.algorithms.publication_strategy import (
    Strategy,
    personalised_frequency_oracle,
)
from streamveil.mechanisms.local.protocol import Users
from streamveil.mechanisms.wevent.bd import BD


class LBD(Strategy):
    """Budget distribution under min E and max w."""

    def __init__(self, name: str, users: Users, *, project: bool = False) -> None:
        schedule = BudgetDivision(users, BD(users.classes))
        super().__init__(name, schedule, personalised_frequency_oracle, project)
