"""PLDP population absorption: PLPA and, with OPS and PUE, PLPA+.

Every slot has a share of z users for a publication. A publication absorbs the shares of the slots
skipped before it and nullifies as many slots after it.

Guarantee, adjacency and sensitivity: those of `population_division.py` and
`publication_strategy.py`.
Source: Du et al., "PLDP-IDS: personalized local differential privacy for infinite data stream",
Algorithms 6 and 4.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from streamveil.mechanisms.local.algorithms.population_division import (
    ForTheStrictest,
    OverChosenWindow,
    OverLongestWindow,
    Plan,
)


@dataclass(frozen=True)
class Absorbed:
    """When the last publication was and how many shares it took."""

    share: int
    """Users of one share."""
    gap: int
    shares: int = 0
    """Taken by the last publication."""
    since: int = 1
    """Slots from the last publication to the next slot; before the first publication, from the
    slot before the stream began, whose share is there to be absorbed."""


class Absorption:
    """The shares since the slots that the last publication paid with: see `Publications`.

    A publication of k shares, k <= gap, comes k slots after those and is followed by k - 1 slots
    without a publication, so any `gap` slots take at most `gap` shares: at most n / 2 users.
    """

    def start(self, plan: Plan, users: int) -> Absorbed:
        """Nothing published yet."""
        return Absorbed(plan.sample, plan.gap)

    def offer(self, state: Absorbed) -> int | None:
        """Users of min(t_A, w) shares, or None in a nullified slot."""
        nullifies = state.shares - 1  # t_N
        if state.since <= nullifies:
            return None
        return state.share * min(state.since - nullifies, state.gap)

    def commit(self, state: Absorbed, asked: int) -> Absorbed:
        """Remember a publication's shares; otherwise only time passes."""
        if asked:
            return replace(state, shares=asked // state.share, since=1)
        return replace(state, since=state.since + 1)

    def record(self, state: Absorbed) -> list[int]:
        """Shares and slots."""
        return [state.shares, state.since]

    def of_record(self, state: Absorbed, record: list[int]) -> Absorbed:
        """Read them back."""
        return replace(state, shares=record[0], since=record[1])


class PLPA(OverLongestWindow):
    """Population absorption over the longest window, reports combined by PFO."""

    publications = Absorption()


class PLPAPlus(OverChosenWindow):
    """Population absorption over the window that OPS chooses, reports enhanced by PUE."""

    publications = Absorption()


class LPA(ForTheStrictest):
    """LDP population absorption: PLPA, when everybody asks for the strictest."""

    publications = Absorption()
