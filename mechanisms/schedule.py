"""What a budget schedule is: how much a slot may spend, whatever is then done with it.

A schedule reads requirements and its own earlier decisions, never data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.budgets import Units, to_epsilon, to_units
from streamveil.mechanisms.records import Requirement

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


class Schedule(Protocol[S]):
    """A budget schedule over fixed requirements, with its state apart."""

    requirements: tuple[Requirement, ...]

    def start(self) -> S:
        """State before the first slot."""

    def offer(self, state: S) -> Offer:
        """What the next slot may spend."""

    def commit(self, state: S, offer: Offer, published: bool) -> S:
        """State after the slot; `state` is consumed."""

    def encode(self, state: S) -> bytes:
        """Bytes of the state, with a version."""

    def decode(self, data: bytes) -> S:
        """State of bytes."""


class FixedBudgets:
    """What all schedules over fixed requirements share: half of E is for the dissimilarity."""

    def __init__(self, requirements: Sequence[Requirement]) -> None:
        self.requirements = tuple(requirements)
        self.windows = np.array([r.window for r in requirements], dtype=np.int64)
        budgets = whole_budgets(requirements)
        self.publication_cap = budgets // 2
        self.share = budgets // (2 * self.windows)
        """E / (2 w): the dissimilarity of every slot costs one such share, shape (K,)."""


def whole_budgets(requirements: Sequence[Requirement]) -> Units:
    """E of each class in units, shape (K,)."""
    return np.array([to_units(r.epsilon) for r in requirements], dtype=np.int64)


def even_budgets(requirements: Sequence[Requirement]) -> Units:
    """E / w of each class in units, shape (K,): what every slot may spend."""
    return whole_budgets(requirements) // np.array([r.window for r in requirements])


def strictest(requirements: Sequence[Requirement]) -> tuple[Requirement, ...]:
    """Ask for the smallest budget over the longest window in every class's name."""
    requirement = Requirement(
        max(r.window for r in requirements), min(r.epsilon for r in requirements)
    )
    return (requirement,) * len(requirements)


@dataclass(frozen=True)
class OfferedEpsilon:
    """An offer for people and tests: epsilon as float64, one entry for each requirement given."""

    status_if_asked: str
    """`open` when the slot may publish, `nullified` when it must repeat."""
    dissimilarity: npt.NDArray[np.float64]
    publication: npt.NDArray[np.float64]


class ScheduleRun(Generic[S]):
    """A schedule driven by given decisions, slot by slot."""

    def __init__(self, schedule: Schedule[S]) -> None:
        self._schedule = schedule
        self._state: Any = schedule.start()

    def offer(self) -> OfferedEpsilon:
        """What the next slot may spend; asking again gives the same answer."""
        offer = self._schedule.offer(self._state)
        return OfferedEpsilon(
            "nullified" if offer.nullified else "open",
            to_epsilon(offer.dissimilarity),
            to_epsilon(offer.publication),
        )

    def commit(self, published: bool) -> None:
        """Close the slot. Raises ValueError when a nullified slot is said to have published."""
        offer = self._schedule.offer(self._state)
        if published and offer.nullified:
            raise ValueError("a nullified slot cannot publish: commit(False)")
        self._state = self._schedule.commit(self._state, offer, bool(published))
