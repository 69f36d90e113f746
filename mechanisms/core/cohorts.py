"""Cohorts: users who asked for the same since the stream began, as the counting side names them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamveil.mechanisms.core.arrays import Integers

NEWCOMER = -1
"""In place of a cohort: users who were in none."""
GONE = -1
"""In place of a cohort: users who left so long ago that nothing of them is remembered."""


@dataclass(frozen=True, eq=False)
class Moves:
    """Users who ask for something else from a slot on: public, as requirements are.

    Row i says that `users[i]` users leave cohort `parents[i]` and make up cohort `children[i]`,
    new in this slot, which asks for `requirements[i]`. A child keeps its parent's history. Rows
    with the same child have the same parent and requirement. Cohorts 0 to K - 1 are the classes of
    the registry; other numbers are given by the sender and never used again for another cohort.
    """

    parents: Integers
    """Shape (m,); `NEWCOMER` for users without a history."""
    children: Integers
    """Shape (m,); `GONE` for users to be forgotten, who have left at least a horizon ago."""
    users: Integers
    """Shape (m,), above 0."""
    requirements: Integers
    """window_backward, epsilon_backward, window_forward, epsilon_forward, epsilons in units of
    2**-40 (`budgets.to_units`): shape (m, 4). All 0: the user has left and is not counted, but
    what was asked for earlier stays in force."""

    @classmethod
    def none(cls) -> Moves:
        """Nobody moves."""
        nobody = np.zeros(0, np.int64)
        return cls(nobody, nobody, nobody, np.zeros((0, 4), np.int64))
