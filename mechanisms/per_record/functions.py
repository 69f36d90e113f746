"""Budget functions: what protection a record gets, as a public function of its value.

Each maps values, float64 of shape (n,), to budgets in epsilon, float64 of shape (n,): NaN where a
value is NaN or outside [0, value_max], at most `epsilon_max`. They are at least
`epsilon_min`, the budget of the largest value.

Source: Chen, Sun, Xu, Dong, "A general framework for per-record differential privacy" (2025),
Equation 1 and Section 8.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamveil.mechanisms.per_record.protocol import Bounds, Floats


@dataclass(frozen=True)
class _Decreasing:
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
        with np.errstate(all="ignore"):
            smallest = float(self._plain(np.float64(self.value_max)))
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

    def _plain(self, values: Floats) -> Floats:
        return self.scale / np.abs(values)


@dataclass(frozen=True)
class SquareRoot(_Decreasing):
    """scale / sqrt(v)."""

    def _plain(self, values: Floats) -> Floats:
        return self.scale / np.sqrt(values)


@dataclass(frozen=True)
class Logarithmic(_Decreasing):
    """scale / ln(v)**power, which is `epsilon_max` up to v = 1."""

    power: float = 4.0

    def _plain(self, values: Floats) -> Floats:
        return self.scale / np.log(np.maximum(values, 1.0)) ** self.power
