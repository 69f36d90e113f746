"""The inputs of a slot of the adaptive mechanism, and what the slot spends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.adaptive.budget_plan import Terms
from streamveil.mechanisms.adaptive.cycle import CyclicBank
from streamveil.mechanisms.adaptive.factor import FactorBank
from streamveil.mechanisms.adaptive.filter_bank import Bank
from streamveil.mechanisms.adaptive.kalman import Forecast
from streamveil.mechanisms.adaptive.weighting import Risk
from streamveil.mechanisms.core.budgets import Units
from streamveil.mechanisms.randomness.noise import SlotNoise


class Slot(NamedTuple):
    """The inputs of a slot. All but the counts are public."""

    slot: int
    counts: npt.NDArray[np.int64]
    noise: SlotNoise
    terms: Terms
    bank: Bank | CyclicBank | FactorBank
    level: Forecast
    """Without factor or cycle."""
    forecast: Forecast
    risk: Risk


@dataclass
class Bill:
    """What the slot spends, each of shape (K,)."""

    main: Units
    reserve: Units
    audit: Units

    def add(self, spent: Units, main: Units) -> None:
        """Enter a release, which spends up to `main` of the main part, the rest of the reserve."""
        from_main = np.minimum(spent, main)
        self.main = self.main + from_main
        self.reserve = self.reserve + spent - from_main

    def saved(self, terms: Terms, slots: int, *, looks: bool) -> tuple[Units, Units]:
        """What a number of slots saved up in main part and reserve, as far as there is room.

        With `looks`, these slots may still have their looks.
        """
        slots_saved = np.minimum(slots, terms.windows)
        main, lent = terms.rates.saved(slots_saved, looks)
        room = terms.main - self.main
        if looks and slots > 1:
            room -= terms.rates.gate * (slots_saved - 1)
        return np.minimum(main, np.maximum(room, 0)), np.minimum(lent, terms.reserve)
