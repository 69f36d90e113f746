"""Weights of the requirement classes in the discovery, and its noise: both from public facts only.

A key's weighted count is the sum over classes of m_k times its distinct users of class k, where the
weights m_k are integers, as in `adaptive/weighting.py`: a class with less budget weighs less.

Guarantee: over any `window` consecutive base slots, all that discovery publishes differs in
distribution by at most a factor exp(epsilon_k), except with probability delta_k, for a user of
class k, in both directions of the inequality. `epsilon_k` and `delta_k` are those of `budgets` and
`deltas`.
Proof: `price.py` bounds the number of a user's keys that change in a window by n_k, and the number
of those that only one input has by r_k. By `truncated_noise.py`, each key that changes costs
m_k * unit. So all of them cost n_k * m_k * unit, and m_k is chosen so that this is at most
epsilon_k. Each key that the user has only in the input on the left of the inequality costs a
probability of at most p_k. So all of them cost r_k * p_k, and the bound of the noise is chosen so
that this is at most delta_k. All of these are exact integers. The noise of each key and of each
discovery slot is independent, so the losses of keys and slots compose.
Source: our own, with the noise of `truncated_noise.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.budgets import Units, to_epsilon
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.discovery.deltas import DELTA_BITS, to_delta
from streamveil.mechanisms.discovery.price import Draw
from streamveil.mechanisms.discovery.truncated_noise import TruncatedNoise, smallest_noise

MOST_WEIGHT = 64
"""The largest weight of a class. With this many weights, rounding to one of them loses little."""
MOST_UNITS = 24
"""How many budgets are tried as that of the classes with the largest weight."""
MOST_LEAST = 4
"""How many deltas are tried as the smallest delta of the classes that are counted."""
_MOST_UNIT = 1 << 52
"""The largest unit of :class:`TruncatedNoise`."""


@dataclass(frozen=True, eq=False)
class DiscoveryTerms:
    """Weights and noise of discovery, for K classes."""

    draws: tuple[Draw, ...]
    """How keys of users of each class are drawn."""
    weights: Integers
    """m_k, shape (K,); 0 for a class whose users are not counted."""
    noise: TruncatedNoise
    sizes: Integers
    """Public number of users of each class, at least 1, shape (K,)."""

    @classmethod
    def of(
        cls, draws: tuple[Draw, ...], windows: Integers, budgets: Units, deltas: Units, sizes: Units
    ) -> DiscoveryTerms:
        """The terms under which the fewest users are needed to publish a key.

        The smallest delta of the classes that are counted decides how much noise all keys get.
        Therefore, classes with a smaller delta than others are left out if this needs fewer users.

        All arguments are public, so the choice costs no budget. Floats are only used to choose
        among weights. The bound of the noise is then computed with integers.

        Args:
            draws: how keys of users of each class are drawn.
            windows: base slots of each class, shape (K,).
            budgets: what discovery may cost in a window, in units of 2**-40 epsilon, shape (K,).
            deltas: the same in units of 2**-62, shape (K,).
            sizes: public number of users of each class, shape (K,). If it is 0, because it is not
                known, the class is still counted.

        Raises:
            ConfigurationError: if the budgets are too small for any noise.
        """
        sizes = np.maximum(sizes, 1)
        pairs = list(zip(draws, windows.tolist(), strict=True))
        changed = np.array([draw.in_window(draw.changed, window) for draw, window in pairs])
        removed = np.array([draw.in_window(draw.removed, window) for draw, window in pairs])
        offers = np.minimum(budgets // changed, _MOST_UNIT)
        offers[deltas < removed] = 0  # no probability is left for a single key
        tried = [
            (_users_needed(weights, unit, removed, deltas, sizes), unit, weights)
            for least in _spread(np.unique(deltas[offers > 0]), MOST_LEAST).tolist()
            for counted in [np.where(deltas < least, 0, offers)]
            for most in _spread(np.unique(counted[counted > 0]), MOST_UNITS).tolist()
            for unit in {max(most // steps, 1) for steps in range(1, MOST_WEIGHT + 1)}
            if (weights := np.minimum(counted, most) // unit).any()
        ]
        if not tried:
            if not deltas.any():
                raise ConfigurationError(
                    "delta is 0 for all users, so the discovery of keys would count no user: give "
                    "a small probability, such as 1e-9, or list the keys"
                )
            raise ConfigurationError(
                f"epsilon {to_epsilon(budgets.max()):.3g} and delta {to_delta(deltas.max()):.3g} "
                "in a window are too small to discover keys: give more epsilon or more delta, a "
                "larger share of the budget for the discovery, or list the keys"
            )
        needed, unit, weights = min(tried, key=lambda one: one[:2])
        used = np.flatnonzero(weights)
        rules = {(int(weights[k]), int(removed[k]), int(deltas[k])) for k in used}
        mean = float((sizes * weights).sum() / sizes.sum())
        noise = smallest_noise(unit, sorted(rules), needed * mean)
        return cls(draws, weights, noise, sizes)

    @cached_property
    def epsilon(self) -> Units:
        """What each key that changes costs a user of each class, in units of 2**-40: shape (K,)."""
        return self.weights * self.noise.unit

    @cached_property
    def delta(self) -> Units:
        """The probability that a key of one user is found, by class, in units of 2**-62: (K,)."""
        distinct, places = np.unique(self.weights, return_inverse=True)
        return np.array([self.noise.tail(weight) for weight in distinct.tolist()], np.int64)[places]

    @property
    def users_per_step(self) -> float:
        """Users for each step of a weighted count, if all classes have the same keys."""
        return float(self.sizes.sum() / (self.sizes * self.weights).sum())

    @property
    def uncounted(self) -> int:
        """Users who are not counted, because their budget or their delta is too small."""
        return int(self.sizes[self.weights == 0].sum())

    @property
    def users_for_half_chance(self) -> int:
        """How many users a key needs to be published with a probability of at least a half.

        The noise is 0 or more with a probability just above a half.
        """
        return math.ceil((self.noise.bound + 1) * self.users_per_step)


def _users_needed(
    weights: Integers, unit: int, removed: Integers, deltas: Units, sizes: Integers
) -> float:
    """About how many users a key needs to be found with probability 1/2, with these weights."""
    rate = float(to_epsilon(unit))
    used = weights > 0
    heaviest = weights[used].astype(np.float64)
    odds = removed[used] / np.ldexp(deltas[used].astype(np.float64), -DELTA_BITS)
    tails = -np.expm1(-rate * heaviest) / (1 + math.exp(-rate)) * odds
    bound = float((heaviest - 1 + np.maximum(np.log(tails), 0) / rate).max())
    return (bound + 1) * float(sizes.sum() / (sizes * weights).sum())


def _spread(values: Units, most: int) -> Units:
    """All values if there are at most `most`, or as many that are evenly spread among them."""
    if len(values) <= most:
        return values
    return values[np.linspace(0, len(values) - 1, most).astype(np.int64)]
