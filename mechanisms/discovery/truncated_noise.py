"""Noise for the counts of keys that are not public: geometric noise that is truncated above.

A key is published if its weighted count plus noise exceeds the bound of the noise. So a key that
no user has is never published, and a key that one user has only if the noise is very close to its
bound.

Guarantee: let one user of weight a be added to a key, or removed from it. What is published of the
key, its noisy count or nothing, then differs in distribution by at most a factor exp(a * rate),
where `rate` is `unit` / 2**40, except for an event whose probability is at most
p = P(noise > bound - a). This event needs the user, that is, it is a part of the distribution with
the user, and without the user it is impossible. Where several keys change, the rates add up over
all of them, but p only adds up over those keys that the user has in the input whose probability is
on the left of the inequality.
Proof: the noise Y has the probabilities f(y) in proportion to exp(-rate * |y|) for y <= bound, and
0 above. Let c be the count without the user.
With the user on the left: published values above c + bound are impossible without the user. They
have the probability P(Y > bound - a) = p, whatever c is. For any other published value v,
f(v - c - a) <= exp(a * rate) * f(v - c), because v - c <= bound. Nothing is published with
probability P(Y <= bound - c - a) <= P(Y <= bound - c).
Without the user on the left: if f(v - c) > 0, then v - c <= bound, so that
f(v - c) <= exp(a * rate) * f(v - c - a). The sum of these inequalities over v <= bound says the
same of nothing being published. No event is excepted.

Why the noise is not truncated below as well, as k-TSGD in the source is: then a small value without
the user would be impossible with the user, which is one more event of probability p in the second
direction. If a user covers a discovery slot in part, some keys of the user go and others come
(`price.py`), and both directions meet. So symmetric truncation has probability 2 p there, and
truncation above p at the same threshold. The threshold is that of the source, because the tail
below the negative bound is as small as p.

Source: Desfontaines, Voss, Gipson, Mandayam, "Differentially private partition selection" (2022),
arXiv 2006.03684, Definition 7 and Theorem 4.
"""

from __future__ import annotations

import decimal
from dataclasses import dataclass

import numpy as np

from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.budgets import UNIT_BITS
from streamveil.mechanisms.discovery.deltas import DELTA_BITS, DELTA_ONE
from streamveil.mechanisms.randomness.noise import RandomWords, discrete_laplace

# Probabilities are bounded by fractions with this many binary digits, from decimals of more than
# twice as many digits: these hold every exponent in full, and their rounding cannot be seen.
_BITS = 256
_SCALE = 1 << _BITS
_DIGITS = 200


@dataclass(frozen=True)
class TruncatedNoise:
    """Counts y <= bound with probability proportional to exp(-|y| * unit / 2**40)."""

    unit: int
    """Budget units that a step of 1 costs, from 1 to 2**52."""
    bound: int
    """The largest value, from 0 on. A key is published if count plus noise exceeds it."""

    def draw(self, size: int, words: RandomWords) -> Integers:
        """Sample exactly, by rejection: shape (size,)."""
        samples = discrete_laplace(self.unit, size, words)
        while (over := np.flatnonzero(samples > self.bound)).size:
            samples[over] = discrete_laplace(self.unit, over.size, words)
        return samples

    def tail(self, weight: int) -> int:
        """The probability that a key with a count of `weight` is published, rounded up.

        This is P(noise > bound - weight) in units of 2**-62. With q = exp(-unit / 2**40), the
        probabilities of all values add up to (1 + q - q**(bound + 1)) / (1 - q) before they are
        normalised, and those of the `weight` largest values to
        q**(bound - weight + 1) * (1 - q**weight) / (1 - q). Numerator and denominator are bounded
        by integers from above and from below.
        """
        if weight <= 0:
            return 0
        if weight > self.bound:
            return DELTA_ONE
        _, reach = _exp_bounds(self.unit * (self.bound - weight + 1))
        least_lost, _ = _exp_bounds(self.unit * weight)
        least_step, _ = _exp_bounds(self.unit)
        _, most_cut = _exp_bounds(self.unit * (self.bound + 1))
        whole = _SCALE + least_step - most_cut
        return -(-(reach * (_SCALE - least_lost) << DELTA_BITS) // (whole << _BITS))


def smallest_noise(unit: int, rules: list[tuple[int, int, int]], guess: float) -> TruncatedNoise:
    """The noise with the smallest bound that keeps some rules, in exact integers.

    Args:
        unit: see :class:`TruncatedNoise`.
        rules: (weight, times, delta) for each class: `times` keys of this weight may have at most
            probability `delta` together, in units of 2**-62, which is above 0.
        guess: where to start to search.
    """

    def kept(bound: int) -> bool:
        noise = TruncatedNoise(unit, bound)
        return all(times * noise.tail(weight) <= delta for weight, times, delta in rules)

    step = 1
    high = max(int(guess), 1)
    while not kept(high):
        high, step = high + step, step * 2
    low, step = high - 1, 1
    while low >= 0 and kept(low):
        high, low, step = low, low - step, step * 2
    low = max(low, -1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if kept(middle) else (middle, high)
    return TruncatedNoise(unit, high)


def _exp_bounds(units: int) -> tuple[int, int]:
    """Counts that are at most and at least exp(-units / 2**40) * 2**256.

    Decimal exponentials are rounded correctly, and 256 bits need fewer digits by far.
    """
    with decimal.localcontext() as context:
        context.prec = _DIGITS
        exact = (decimal.Decimal(-units) / (1 << UNIT_BITS)).exp() * _SCALE
        found = int(exact.to_integral_value(decimal.ROUND_FLOOR))
    return max(found - 1, 0), found + 2
