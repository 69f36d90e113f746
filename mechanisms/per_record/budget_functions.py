"""Budget functions: what protection a record gets, as a public function of its value.

Each maps values, float64 of shape (n,), to budgets in epsilon, float64 of shape (n,): NaN where a
value is NaN or outside [0, value_max], at most `epsilon_max`. They are at least
`epsilon_min`, the budget of the largest value. :class:`Lookup` maps categories.

Source: Chen, Sun, Xu, Dong, "A general framework for per-record differential privacy" (2025),
Equation 1 and Section 8.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.core.identity import Form, Identified
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.per_record.protocol import Bounds

_GRID = 4096  # values on which a function is tried


_FIGURES = ("scale", "value_max", "epsilon_max")


class BudgetFunction(Protocol):
    """Budgets of values: looks at each by itself, and writes and warns of nothing."""

    @property
    def bounds(self) -> Bounds:
        """Of values and of budgets."""

    def __call__(self, values: Floats) -> Floats:
        """Budgets of values, float64, both of shape (n,)."""


@dataclass(frozen=True)
class _Decreasing(Identified):
    """A budget that falls with the value: the larger, the better protected."""

    scale: float
    value_max: float
    epsilon_max: float

    def __post_init__(self) -> None:
        """Check the figures."""
        _ = self.bounds

    @property
    def bounds(self) -> Bounds:
        """Between the budget of the largest value and `epsilon_max`. Raises ConfigurationError."""
        with np.errstate(all="ignore"):  # an array: numpy's powers of scalars differ in a bit
            smallest = float(self._plain(np.array([self.value_max], np.float64))[0])
        return Bounds(min(smallest, self.epsilon_max), self.epsilon_max, self.value_max)

    def __call__(self, values: Floats) -> Floats:
        """Budgets of values."""
        with np.errstate(all="ignore"):
            budgets = np.minimum(self._plain(values), self.epsilon_max)
            return np.where((values >= 0) & (values <= self.value_max), budgets, np.nan)

    def _plain(self, values: Floats) -> Floats:
        raise NotImplementedError


@dataclass(frozen=True)
class Inverse(_Decreasing):
    """scale / v."""

    IDENTITY = Form("inverse", _FIGURES)

    def _plain(self, values: Floats) -> Floats:
        return self.scale / np.abs(values)


@dataclass(frozen=True)
class SquareRoot(_Decreasing):
    """scale / sqrt(v)."""

    IDENTITY = Form("square root", _FIGURES)

    def _plain(self, values: Floats) -> Floats:
        return self.scale / np.sqrt(values)


@dataclass(frozen=True)
class Logarithmic(_Decreasing):
    """scale / ln(v)**power, which is `epsilon_max` up to v = 1."""

    IDENTITY = Form("logarithmic", (*_FIGURES, "power"))

    power: float = 4.0

    def _plain(self, values: Floats) -> Floats:
        return self.scale / np.log(np.maximum(values, 1.0)) ** self.power


@dataclass(frozen=True)
class Lookup(Identified):
    """A budget for each category. Raises ConfigurationError for budgets that cannot be."""

    IDENTITY = Form("lookup", ("table", "default"))

    table: Mapping[str, float]
    """Epsilon by category."""
    default: float | None = None
    """Epsilon of all others; None: they are bad records, and count nowhere."""

    def __post_init__(self) -> None:
        """Check the figures."""
        if not self.table:
            raise ConfigurationError("the table of budgets is empty: give category and epsilon")
        _ = self.bounds

    @property
    def bounds(self) -> Bounds:
        """The smallest and the largest budget."""
        epsilons = [e for e in (*self.table.values(), self.default) if e is not None]
        for epsilon in epsilons:  # a NaN among others could hide in the smallest and the largest
            Bounds(epsilon, epsilon)
        return Bounds(min(epsilons), max(epsilons))

    def __call__(self, positions: Integers) -> Floats:
        """Budgets of positions in the table, of -1 for other categories: shape (n,)."""
        last = np.nan if self.default is None else self.default
        return np.array([*self.table.values(), last], np.float64)[positions]


@dataclass(frozen=True)
class Divided(Identified):
    """A share of a budget, for somebody who has several records."""

    IDENTITY = Form("divided", ("function", "by"))

    function: BudgetFunction
    by: int

    @property
    def bounds(self) -> Bounds:
        """Shares of those of the function."""
        return divided_bounds(self.function.bounds, self.by)

    def __call__(self, values: Floats) -> Floats:
        """Shares of the budgets of values."""
        return divided(self.function(values), self.by)


def divided(budgets: Floats, by: int) -> Floats:
    """Shares of budgets, rounded down: together they are never above the budget."""
    return budgets if by == 1 else np.nextafter(budgets / by, 0.0)


def divided_bounds(bounds: Bounds, by: int) -> Bounds:
    """Bounds of :func:`divided` budgets."""
    low, high = divided(np.array([bounds.epsilon_min, bounds.epsilon_max]), by).tolist()
    return Bounds(low, high, bounds.value_max)


def check_budgets(budgets: Floats, bounds: Bounds, what: Callable[[int], str]) -> None:
    """Refuse a budget function by the budgets of examples that are no bad records.

    Args:
        budgets: of the examples, shape (n,).
        bounds: stated.
        what: names the example at an index.

    Raises:
        ConfigurationError: for a budget that is not finite or not within the bounds.
    """
    good = (budgets >= bounds.epsilon_min) & (budgets <= bounds.epsilon_max)
    if not good.all():
        first = int(np.flatnonzero(~good)[0])
        raise ConfigurationError(
            f"the budget function gives {float(budgets[first])!r} for {what(first)}, which is "
            f"not from {bounds.epsilon_min!r} to {bounds.epsilon_max!r}: correct it, or give "
            "other bounds"
        )


def check_on_values(function: BudgetFunction) -> None:
    """Try a budget function on 0 and on values up to the largest.

    Raises ConfigurationError for a budget that is not finite or not within its bounds.
    """
    bounds = function.bounds
    top = bounds.value_max
    values = np.concatenate([[0.0], np.geomspace(top * 2.0**-60, top, _GRID), [top]])
    check_budgets(function(values), bounds, lambda i: f"the value {float(values[i])!r}")
