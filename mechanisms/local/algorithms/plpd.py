"""PLDP population distribution: PLPD and, with OPS and PUE, PLPD+.

A publication asks half of the users whom the publications of the window have left.

Guarantee, adjacency and sensitivity: those of `population_division.py` and
`publication_strategy.py`.
Source: Du et al., "PLDP-IDS: personalized local differential privacy for infinite data stream",
Algorithms 5 and 3.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from streamveil.mechanisms.local.algorithms.population_division import (
    ForTheStrictest,
    OverChosenWindow,
    OverLongestWindow,
    Plan,
)

# n_min of the paper: a publication of fewer users is not worth it.
FEWEST_USERS = 10


@dataclass(frozen=True)
class Distributed:
    """The publications that the window can still see."""

    capacity: int
    """Users that all publications of a window may ask together: n / 2."""
    gap: int
    asked: tuple[tuple[int, int], ...] = ()
    """(slots ago, users asked) of the publications within `gap` slots, oldest first."""


class Distribution:
    """Half of what is left of n / 2: see `population.Publications`.

    What any publication takes is at most half of what others within the window left, so they never
    add up to more than n / 2.
    """

    def start(self, plan: Plan, users: int) -> Distributed:
        """Nothing published yet."""
        return Distributed(users // 2, plan.gap)

    def offer(self, state: Distributed) -> int | None:
        """Half of what is left, or 0 where that is too few."""
        left = state.capacity - sum(asked for _, asked in state.asked)
        return left // 2 if left // 2 >= FEWEST_USERS else 0

    def commit(self, state: Distributed, asked: int) -> Distributed:
        """Remember the publication for `gap` slots."""
        both = (*state.asked, (0, asked)) if asked else state.asked
        kept = tuple((ago + 1, users) for ago, users in both if ago + 1 < state.gap)
        return replace(state, asked=kept)

    def record(self, state: Distributed) -> list[int]:
        """Slots ago and users asked, in turns."""
        return [number for pair in state.asked for number in pair]

    def of_record(self, state: Distributed, record: list[int]) -> Distributed:
        """Read the publications back."""
        return replace(state, asked=tuple(zip(record[::2], record[1::2], strict=True)))


class PLPD(OverLongestWindow):
    """Population distribution over the longest window, reports combined by PFO."""

    publications = Distribution()


class PLPDPlus(OverChosenWindow):
    """Population distribution over the window that OPS chooses, reports enhanced by PUE."""

    publications = Distribution()


class LPD(ForTheStrictest):
    """LDP population distribution: PLPD, when everybody asks for the strictest."""

    publications = Distribution()
