"""LDP budget division (LBD, LBA): every slot asks all users, each for a part of the budget.

For comparison only.

Guarantee: the budgets that a budget schedule offers over any w slots add up to at most E, in exact
integers; see there. All users are asked as the strictest requirement allows, which implies
everybody's own.

Source: Ren et al., "LDP-IDS: local differential privacy for infinite data streams" (2022).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from streamveil.mechanisms.accounting.schedule import Offer, Schedule
from streamveil.mechanisms.accounting.window_sums import Sums
from streamveil.mechanisms.core.budgets import Units
from streamveil.mechanisms.local.algorithms.publication_strategy import (
    Strategy,
    personalised_frequency_oracle,
)
from streamveil.mechanisms.local.algorithms.schedule import best_oracles
from streamveil.mechanisms.local.protocol import Ask, Users
from streamveil.mechanisms.randomness.noise import RandomWords
from streamveil.mechanisms.wevent.pba import PBA, AbsorptionState
from streamveil.mechanisms.wevent.pbd import PBD

S = TypeVar("S")


@dataclass(frozen=True, eq=False)
class BudgetState(Generic[S]):
    """What the budgets are and what the present slot was offered of them."""

    budgets: S
    offer: Offer


class BudgetDivision(Generic[S]):
    """Everybody reports at what a budget schedule over the same classes offers."""

    def __init__(self, users: Users, budgets: Schedule[S]) -> None:
        self.users = users
        self._budgets = budgets
        self._everybody = np.arange(users.class_of.size, dtype=np.int32)

    def start(self) -> BudgetState[S]:
        """Nothing spent yet."""
        return self._offered(self._budgets.start())

    def _offered(self, budgets: S) -> BudgetState[S]:
        return BudgetState(budgets, self._budgets.offer(budgets))

    def dissimilarity(
        self, state: BudgetState[S], slot: int, words: RandomWords
    ) -> tuple[BudgetState[S], Ask]:
        """Ask everybody at E / (2 w)."""
        return state, self._ask(slot, 1, state.offer.dissimilarity)

    def publication(self, state: BudgetState[S], slot: int, words: RandomWords) -> Ask | None:
        """Ask everybody at the budget of a publication."""
        return None if state.offer.nullified else self._ask(slot, 2, state.offer.publication)

    def commit(self, state: BudgetState[S], published: Ask | None) -> BudgetState[S]:
        """Close the slot of the budgets."""
        budgets = self._budgets.commit(state.budgets, state.offer, published is not None)
        return self._offered(budgets)

    def _ask(self, slot: int, round: int, prices: Units) -> Ask:
        asked = self._everybody if prices.all() else self._everybody[:0]
        oracles = best_oracles(np.maximum(prices, 1), self.users.symbols)
        return Ask(slot, round, asked, prices, oracles)

    def encode(self, state: BudgetState[S]) -> bytes:
        """Bytes of the state: what the present slot is offered follows from the rest."""
        return self._budgets.encode(state.budgets)

    def decode(self, data: bytes) -> BudgetState[S]:
        """State of bytes."""
        return self._offered(self._budgets.decode(data))


class LBD(Strategy[BudgetState[Sums]]):
    """Budget distribution under min E and max w: BD with reports for noise.

    Half of E is for dissimilarities in equal shares, and each publication takes half of what the
    window leaves of the other half.
    """

    def __init__(self, name: str, users: Users, *, project: bool = False) -> None:
        schedule = BudgetDivision(users, PBD(users.classes.strictest))
        super().__init__(name, schedule, personalised_frequency_oracle, project)


class LBA(Strategy[BudgetState[AbsorptionState]]):
    """Budget absorption under min E and max w: BA with reports for noise.

    Half of E is for dissimilarities in equal shares; a publication absorbs the shares of the slots
    skipped before it and nullifies as many slots after it.
    """

    def __init__(self, name: str, users: Users, *, project: bool = False) -> None:
        schedule = BudgetDivision(users, PBA(users.classes.strictest))
        super().__init__(name, schedule, personalised_frequency_oracle, project)
