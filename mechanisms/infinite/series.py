"""Convergent series of budgets: infinitely many terms that together never exceed a whole.

Terms are rounded down, in integers: however many of them are spent, in whatever order, they cost at
most the whole. Terms that would be less than a unit are 0: they buy nothing and cost nothing.
"""

from __future__ import annotations

import decimal
from fractions import Fraction
from functools import lru_cache

from streamveil.mechanisms.core.records import ConfigurationError

# Terms of zeta added up one by one; the rest is bounded by an integral.
_TERMS = 500
# A power is a fraction with at most this denominator: roots are then cheap to take exactly.
_LARGEST_DENOMINATOR = 100


class Series:
    """Terms k**-power of a whole, for k = 1, 2, ...

    Term k of u units is floor(u * k**-power / Z), with Z an upper bound of zeta(power).

    Args:
        units: the whole.
        power: p above 1: the nearer to 1, the slower terms decay and the smaller is the first.

    Raises:
        ConfigurationError: for a power that is not above 1 and at most 4, or that has more than
            two decimals.
    """

    def __init__(self, units: int, power: float) -> None:
        self.units = units
        self.power = as_power(power)
        self._zeta = zeta_above(self.power)

    def term(self, k: int) -> int:
        """Units of term k, from 1 on."""
        whole, zeta, power = self.units, self._zeta, self.power
        # term**b * k**a * zeta**b <= units**b decides; the float is a first guess.
        a, b = power.numerator, power.denominator
        limit = (whole * zeta.denominator) ** b
        factor = k**a * zeta.numerator**b
        term = max(0, int(whole / (float(k) ** float(power) * float(zeta))))
        while term**b * factor > limit:
            term -= 1
        while (term + 1) ** b * factor <= limit:
            term += 1
        return term


class Harmonic:
    """Terms of a whole of which the first n take the part n / (n + half), for every n.

    They hardly decay up to number `half`, by when half of the whole is spent, and then with the
    power 2. Term k is half / ((k - 1 + half) (k + half)) of the whole, rounded down.

    Args:
        units: the whole.
        half: how many terms take half of it, from 1 on.
    """

    def __init__(self, units: int, half: int) -> None:
        self.units = units
        self.half = half

    def term(self, k: int) -> int:
        """Units of term k, from 1 on."""
        return self.units * self.half // ((k - 1 + self.half) * (k + self.half))


def as_power(power: float) -> Fraction:
    """A power as an exact fraction; raises ConfigurationError as :class:`Series` does."""
    exact = Fraction(str(power)) if 1 < power <= 4 else Fraction(0)
    if not exact > 1 or exact.denominator > _LARGEST_DENOMINATOR:
        raise ConfigurationError(
            f"a power of {power!r} is not above 1, at most 4 and of two decimals at most: the "
            "budgets of a series k**-power add up to something finite only above 1"
        )
    return exact


@lru_cache(maxsize=16)
def zeta_above(power: Fraction) -> Fraction:
    """An upper bound of zeta(power), near to it.

    The terms from k on are at most the integral from k - 1/2, since they are convex. Decimals are
    right to far more digits than they are raised by.
    """
    with decimal.localcontext() as context:
        context.prec = 50
        p = decimal.Decimal(power.numerator) / power.denominator
        head = sum((decimal.Decimal(k) ** -p for k in range(1, _TERMS)), decimal.Decimal(0))
        rest = (decimal.Decimal(_TERMS) - decimal.Decimal("0.5")) ** (1 - p) / (p - 1)
        above = (head + rest) * (1 + decimal.Decimal(10) ** -40)
        scaled = (above * 2**64).to_integral_value(decimal.ROUND_CEILING)
    return Fraction(int(scaled), 2**64)
