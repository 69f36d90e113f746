"""Laplace noise that spends an exact budget on an integer, whatever its sensitivity and scale.

Budgets are integers in units of 2**-56 epsilon (`FINE_BITS`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.randomness.noise import FINE_BITS, FINE_RATES, RandomWords, fine_laplace

# Bits of a rate: a step is at most 2**-15 of the noise's scale, unless that is below 2**16 steps.
_RATE_BITS = 41


def fine_units(epsilon: float | Fraction) -> int:
    """Whole units of 2**-56 in `epsilon`, rounded down."""
    return math.floor(Fraction(epsilon) * (1 << FINE_BITS))


def fine_epsilon(units: int) -> float:
    """The largest float that is at most a budget in units of 2**-56."""
    surplus = max(0, units.bit_length() - 53)
    return math.ldexp(units >> surplus, surplus - FINE_BITS)


@dataclass(frozen=True)
class Laplace:
    """Noise for an integer that one record changes by at most 2**`sensitivity_bits`.

    The integer is rounded down to steps of 2**(sensitivity_bits - bits), which one record changes
    by at most 2**bits steps, and each step costs `rate`. The loss is rate * 2**bits.
    """

    rate: int
    bits: int

    @classmethod
    def of(cls, budget: int) -> Laplace:
        """Noise for a budget in units of 2**-56; raises ConfigurationError for less than 8."""
        if budget < FINE_RATES[0]:
            raise ConfigurationError(
                f"a budget of {fine_epsilon(budget):g} is too small for any noise: raise "
                "epsilon_min, or give it a larger share of the budget"
            )
        bits = max(0, budget.bit_length() - _RATE_BITS)
        return cls(budget >> bits, bits)

    @property
    def loss(self) -> int:
        """What a record pays at most, in units of 2**-56."""
        return self.rate << self.bits

    @property
    def scale(self) -> float:
        """Scale of the noise, in units of the sensitivity."""
        return math.ldexp(1.0, FINE_BITS) / self.loss

    def draw(self, words: RandomWords, size: int = 1) -> Integers:
        """Noise in steps, shape (size,)."""
        return fine_laplace(np.array([self.rate]), words, size)[:, 0]

    def noisy(self, value: int, sensitivity_bits: int, words: RandomWords, size: int = 1) -> Floats:
        """The integer with noise, `size` times: float64, shape (size,)."""
        shift = sensitivity_bits - self.bits
        steps = value >> shift if shift >= 0 else value << -shift
        return np.ldexp((self.draw(words, size) + steps).astype(np.float64), shift)
