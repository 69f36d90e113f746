"""LDP budget uniform (LBU): PLBU when everybody asks for the strictest. For comparison only.

Guarantee, adjacency and sensitivity: PLBU's under the strictest requirement, which implies
everybody's own.
Source: Ren et al., "LDP-IDS: local differential privacy for infinite data streams" (2022).
"""

from __future__ import annotations

from streamveil.mechanisms.accounting.schedule import even_budgets, strictest
from streamveil.mechanisms.local.algorithms.plbu import Uniform
from streamveil.mechanisms.local.protocol import Users


class LBU(Uniform):
    """Every user reports in every slot at min E / max w."""

    def __init__(self, name: str, users: Users, *, project: bool = False) -> None:
        super().__init__(name, users, even_budgets(strictest(users.classes)), project)
