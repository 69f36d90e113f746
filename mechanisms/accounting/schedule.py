"""What a budget schedule is: how much a slot may spend, whatever is then done with it.

A schedule reads requirements and its own earlier decisions, never data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.budgets import Requirements, Units, asked_units, to_epsilon
from streamveil.mechanisms.core.records import ConfigurationError, Requirement

S = TypeVar("S")


@dataclass(frozen=True)
class Offer:
    """What the next slot may spend, in units, for each class: arrays of shape (K,)."""

    dissimilarity: Units
    """Spent by the slot in any case."""
    publication: Units
    """Spent on top if the slot publishes; 0 when it is nullified."""
    nullified: bool
    """True when the slot must repeat the last publication."""
    limit: Units | None = None
    """What the window that looks back leaves for both together, at least 0; None where the two
    are within it anyway."""
    infeasible: npt.NDArray[np.bool_] | None = None
    """Where the past has already broken what is asked of the window that looks back, shape (K,)."""

    def within_limit(self) -> Offer:
        """The same without what would go beyond `limit`: the dissimilarity is served first."""
        if self.limit is None:
            return self
        dissimilarity = np.minimum(self.dissimilarity, self.limit)
        publication = np.minimum(self.publication, self.limit - dissimilarity)
        return replace(self, dissimilarity=dissimilarity, publication=publication)


class Schedule(Protocol[S]):
    """A budget schedule over fixed requirements, with its state apart."""

    requirements: Requirements

    def start(self) -> S:
        """State before the first slot."""

    def offer(self, state: S) -> Offer:
        """What the next slot may spend."""

    def commit(self, state: S, offer: Offer, published: bool) -> S:
        """State after the slot."""

    def encode(self, state: S) -> bytes:
        """Bytes of the state, with a version."""

    def decode(self, data: bytes) -> S:
        """State of bytes."""


class DynamicSchedule(Protocol[S]):
    """A budget schedule over requirements that change, for ledgers that come and go."""

    def __init__(self, horizon: int) -> None:
        """Allow windows of up to so many slots."""

    def start(self, ledgers: int = 0) -> S:
        """State before the first slot, of ledgers without a history."""

    def regroup(self, state: S, parents: npt.NDArray[np.int64]) -> S:
        """Continue ledger `parents[j]` as ledger j; see `open_windows.py`."""

    def canonical(self, state: S, ledgers: npt.NDArray[np.int64]) -> Units:
        """All that the future of some ledgers depends on, shape (A, S)."""

    def offer(self, state: S, asked: Units) -> Offer:
        """Begin the next slot with the requirements of each ledger; see `cohorts.Moves`: (L, 4)."""

    def commit(self, state: S, offer: Offer, published: bool) -> S:
        """State after the slot."""

    def encode(self, state: S) -> bytes:
        """Bytes of the state, with a version."""

    def decode(self, data: bytes) -> S:
        """State of bytes."""


class FixedBudgets:
    """What all schedules over fixed requirements share: half of E is for the dissimilarity."""

    def __init__(self, requirements: Sequence[Requirement]) -> None:
        self.requirements = Requirements.of(requirements)
        self.windows = self.requirements.windows
        self.publication_cap = self.requirements.budgets // 2
        self.share = self.requirements.budgets // (2 * self.windows)
        """E / (2 w): the dissimilarity of every slot costs one such share, shape (K,)."""


@dataclass(frozen=True)
class OfferedEpsilon:
    """An offer for people and tests: epsilon as float64, one entry for each requirement given."""

    status_if_asked: str
    """`open` when the slot may publish, `nullified` when it must repeat."""
    dissimilarity: npt.NDArray[np.float64]
    publication: npt.NDArray[np.float64]
    infeasible: npt.NDArray[np.bool_]
    """Where the past has already broken the backward requirement, so that part of it is 0."""

    @classmethod
    def of(cls, offer: Offer) -> OfferedEpsilon:
        """Read an offer."""
        broken = offer.infeasible
        return cls(
            "nullified" if offer.nullified else "open",
            to_epsilon(offer.dissimilarity),
            to_epsilon(offer.publication),
            np.zeros(offer.publication.shape, bool) if broken is None else broken,
        )


class ScheduleRun(Generic[S]):
    """A schedule over fixed requirements driven by given decisions, slot by slot."""

    def __init__(self, schedule: Schedule[S]) -> None:
        self._schedule = schedule
        self._state: S = schedule.start()

    def offer(self) -> OfferedEpsilon:
        """What the next slot may spend; asking again gives the same answer."""
        return OfferedEpsilon.of(self._schedule.offer(self._state))

    def commit(self, published: bool) -> None:
        """Close the slot. Raises ValueError when a nullified slot is said to have published."""
        offer = self._schedule.offer(self._state)
        _check_decision(offer, published)
        self._state = self._schedule.commit(self._state, offer, bool(published))


class DynamicScheduleRun:
    """A schedule over changing requirements driven by given decisions, slot by slot.

    Args:
        kind: the schedule.
        usual: requirements of slots that name none, shape (n, 4), or None.
    """

    def __init__(
        self, kind: Callable[[int], DynamicSchedule[Any]], usual: npt.ArrayLike | None = None
    ) -> None:
        self._kind = kind
        self._usual = usual
        self._users: int | None = None
        self._horizon = 0
        self._schedule = kind(1)
        self._state: Any = None
        self._past: list[tuple[Units, bool]] = []
        self._asked: Units | None = None

    def offer(self, requirements: npt.ArrayLike | None = None) -> OfferedEpsilon:
        """What the next slot may spend; asking again gives the same answer.

        Args:
            requirements: of each user in this slot: window_backward, epsilon_backward,
                window_forward, epsilon_forward, shape (n, 4), n and the order of users the same
                in all slots; a row of zeros for a user who has left.

        Raises:
            ConfigurationError: for figures out of range, or a window longer than all before when
                slots that it reaches back to are forgotten.
            ValueError: for another shape, or other requirements when asked again.
        """
        wanted = self._usual if requirements is None else requirements
        if wanted is None:
            raise ValueError("the slot's requirements are missing: offer(requirements)")
        asked = asked_units(wanted)
        if self._users not in (None, len(asked)):
            raise ValueError(
                f"{len(asked)} requirements for {self._users} users: give each user's in every "
                "slot, a row of zeros for who has left"
            )
        if self._asked is None:
            self._users = len(asked)
            self._reach(int(asked[:, [0, 2]].max(initial=1)), len(asked))
            self._offer = self._schedule.offer(self._state, asked)
            self._asked = asked
        elif not np.array_equal(asked, self._asked):
            raise ValueError("the slot was begun with other requirements: commit it first")
        return OfferedEpsilon.of(self._offer)

    def commit(self, published: bool) -> None:
        """Close the slot. Raises ValueError when a nullified slot is said to have published."""
        if self._asked is None:
            self.offer()
        asked = self._asked
        assert asked is not None
        _check_decision(self._offer, published)
        self._state = self._schedule.commit(self._state, self._offer, bool(published))
        if len(self._past) < self._horizon:
            self._past.append((asked, bool(published)))
        self._asked = None

    def _reach(self, window: int, users: int) -> None:
        """Remember slots as far back as the window reaches."""
        if window <= self._horizon:
            return
        if self._horizon and self._state.slots > self._horizon:
            raise ConfigurationError(
                f"a window of {window} slots is longer than all before, the longest of which was "
                f"{self._horizon}: what was spent earlier is forgotten; ask for it at the start"
            )
        self._horizon = max(window, 2 * self._horizon)
        self._schedule = self._kind(self._horizon)
        self._state = self._schedule.start(users)
        for asked, published in self._past:
            offer = self._schedule.offer(self._state, asked)
            self._state = self._schedule.commit(self._state, offer, published)


def _check_decision(offer: Offer, published: bool) -> None:
    if published and offer.nullified:
        raise ValueError("a nullified slot cannot publish: commit(False)")
