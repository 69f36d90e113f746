"""Records to audit: of the values at which a budget function, and what is made of it, turn.

A record is there or not. What protects it best and least are at the ends of a budget function, and
what is divided into domains or nodes of budgets may go wrong at their edges: so there is one record
of the largest value, one of the largest budget, and some at and between edges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.per_record.budget_functions import BudgetFunction
from streamveil.mechanisms.per_record.domains import partition
from streamveil.mechanisms.per_record.protocol import Bounds

MOST = 5
# Where between two edges: of a domain's smallest budget, a little above it, and in its middle.
_INSIDE = (1 + 1e-9, 1.5)
_HALVINGS = 80


@dataclass(frozen=True)
class Canary:
    """One record."""

    name: str
    """What it is, for people."""
    value: float
    budget: float
    """Its claim, epsilon."""


def of_values(function: BudgetFunction, bounds: Bounds) -> list[Canary]:
    """Records whose budget is a falling function of the value.

    Args:
        function: budgets of values.
        bounds: of what is released.
    """
    low = partition(bounds.epsilon_min, bounds.epsilon_max)
    wanted = [part * edge for edge in low[1:].tolist() for part in _INSIDE]
    inner = [wanted[i] for i in _spread(len(wanted), MOST - 2)]
    budgets = np.array([bounds.epsilon_min, *inner, bounds.epsilon_max])
    values = _largest(function, np.minimum(budgets, bounds.epsilon_max), bounds.value_max)
    return of_records(values, function(values), bounds)


def of_budgets(budgets: Floats, bounds: Bounds) -> list[Canary]:
    """Records of the largest value whose budget is one of some, whatever it is a function of."""
    known = np.unique(np.minimum(budgets, bounds.epsilon_max))
    return [
        Canary(f"record with epsilon = {known[i]:.4g}", bounds.value_max, float(known[i]))
        for i in _spread(known.size, MOST)
    ]


def of_records(values: Floats, budgets: Floats, bounds: Bounds) -> list[Canary]:
    """Some of these records that count, the largest and the least protected among them."""
    usable = bounds.usable(values, budgets)
    both = np.stack([np.minimum(budgets[usable], bounds.epsilon_max), values[usable]])
    known = np.unique(both, axis=1)
    return [
        Canary(f"record of {value:.6g}, epsilon = {budget:.4g}", value, budget)
        for budget, value in known[:, _spread(known.shape[1], MOST)].T.tolist()
    ]


def _spread(number: int, most: int) -> list[int]:
    """Places among so many, the first and the last among them."""
    places: list[int] = np.unique(np.linspace(0, number - 1, most).round().astype(int)).tolist()
    return places if number else []


def _largest(function: Any, budgets: Floats, value_max: float) -> Floats:
    """The largest value with each of some budgets or more, shape (n,): a falling function."""
    enough, above = np.zeros(budgets.shape), np.full(budgets.shape, value_max)
    whole = function(above) >= budgets
    for _ in range(_HALVINGS):
        middle = (enough + above) / 2
        here = function(middle) >= budgets
        enough, above = np.where(here, middle, enough), np.where(here, above, middle)
    return np.where(whole, value_max, enough)
