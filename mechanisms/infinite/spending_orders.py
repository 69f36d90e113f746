"""In which order the terms of a convergent series are spent.

An order is drawn from a public seed, never from data, and takes no term twice: whatever it is, all
slots together cost at most what the whole series costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.randomness.noise import RandomWords, digest

# Terms that are taken: pairs of the first one and the first one after them, ascending.
Taken = tuple[tuple[int, int], ...]


class Order(Protocol):
    """Which term a slot takes."""

    def take(self, slot: int, taken: Taken) -> tuple[int, Taken]:
        """Term of the slot that comes after `slot` others, and all that are then taken."""


@dataclass(frozen=True)
class Decaying:
    """The terms as they are: the first slots get the most."""

    seed: int = 0
    scale: float = 0.0

    def take(self, slot: int, taken: Taken) -> tuple[int, Taken]:
        """Term slot + 1."""
        return slot + 1, with_term(taken, slot + 1)


@dataclass(frozen=True)
class Exponential:
    """Algorithm 3 of DPI, random budget allocation without replacement.

    The term that is nearest to an exponentially distributed sample of mean `scale`, in parts of
    the first term, among those not yet taken.
    """

    seed: int
    scale: float = 1e-8

    def take(self, slot: int, taken: Taken) -> tuple[int, Taken]:
        """The nearest term that is left, for terms in proportion to 1 / k**2."""
        sample = -math.log(1 - _uniform(self.seed, slot)) * self.scale
        wanted = sample**-0.5 if sample > 0 else 1e15
        below = max(1, math.floor(min(wanted, 1e15)))
        candidates = _left_beside(below, taken) + _left_beside(below + 1, taken)
        term = min(candidates, key=lambda k: (abs(k**-2.0 - sample), k))
        return term, with_term(taken, term)


@dataclass(frozen=True)
class Ranges:
    """Algorithm 4 of DPI: a queue of large, of medium and of small terms, one chosen at random.

    Large ones are the first 10, medium ones the next 990, small ones all others. An empty queue is
    not chosen.
    """

    seed: int
    scale: float = 0.0

    def take(self, slot: int, taken: Taken) -> tuple[int, Taken]:
        """The first term that is left in the queue of the slot."""
        queues = ((1, 11), (11, 1001), (1001, math.inf))
        heads = [(_first_left(first, taken), end) for first, end in queues]
        open_heads = [head for head, end in heads if head < end]
        term = open_heads[int(_uniform(self.seed, slot) * len(open_heads))]
        return term, with_term(taken, term)


ORDERS: Mapping[str, Callable[[int, float], Order]] = {
    "decaying": Decaying,
    "exponential": Exponential,
    "ranges": Ranges,
}


def order(name: str, seed: int, scale: float) -> Order:
    """Make an order; raises ConfigurationError for an unknown one or a scale that is none."""
    if name not in ORDERS or not 0 < scale <= 1:
        raise ConfigurationError(
            f"order {name!r} with a scale of {scale!r}: choose one of {', '.join(ORDERS)}, and a "
            "scale above 0 and at most 1"
        )
    return ORDERS[name](seed, scale)


def with_term(taken: Taken, term: int) -> Taken:
    """What is taken when a term is taken too; raises ValueError for one that is taken."""
    before = [run for run in taken if run[1] <= term]
    after = [run for run in taken if run[0] > term]
    if len(before) + len(after) < len(taken):
        raise ValueError(f"term {term} is taken")
    first, end = term, term + 1
    if before and before[-1][1] == first:
        first = before.pop()[0]
    if after and after[0][0] == end:
        end = after.pop(0)[1]
    return (*before, (first, end), *after)


def _first_left(term: int, taken: Taken) -> int:
    """The first term from this one on that is not taken."""
    return next((end for first, end in taken if first <= term < end), term)


def _left_beside(term: int, taken: Taken) -> list[int]:
    """The nearest terms on either side, or this one, that are not taken."""
    for first, end in taken:
        if first <= term < end:
            return [end] if first == 1 else [first - 1, end]
    return [term]


def _uniform(seed: int, slot: int) -> float:
    """A public random number in [0, 1)."""
    words = RandomWords(digest(b"order", b"%d" % seed, b"%d" % slot))
    return float(words.draw(1)[0] >> np.uint64(11)) * 2.0**-53
