"""Budget distribution (BD): PBD when everybody asks for the strictest requirement.

Source: Kellaris et al., "Differentially private event sequences over infinite streams" (2014);
here as the baseline of Du et al., Section 6.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamveil.mechanisms.accounting.schedule import strictest
from streamveil.mechanisms.core.records import Requirement
from streamveil.mechanisms.wevent.pbd import PBD


class BD(PBD):
    """PBD with E = min E_i and w = max w_i for all: nobody is sampled, most budgets are wasted.

    Guarantee: PBD's under the strictest requirement, which implies everybody's own.
    """

    def __init__(self, requirements: Sequence[Requirement]) -> None:
        super().__init__(strictest(requirements))
