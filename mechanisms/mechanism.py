"""What a mechanism is: counts of one slot in, a private histogram and its price out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.budgets import Units
from streamveil.mechanisms.noise import SlotNoise
from streamveil.mechanisms.records import ConfigurationError, Requirement

S = TypeVar("S")


@dataclass(frozen=True)
class Population:
    """The public facts a mechanism may steer by."""

    requirements: tuple[Requirement, ...]
    """Requirement of each class, shape (K,)."""
    sizes: npt.NDArray[np.int64]
    """Public number of users in each class, shape (K,)."""
    bins: int
    """Number of bins d of the histogram."""
    sensitivity: int = 1
    """How much one user can change a slot's histogram in L1: contributions per slot, doubled
    when neighbouring inputs replace a user rather than add one."""

    def __post_init__(self) -> None:
        """Check that the fields fit together."""
        if not self.requirements:
            raise ConfigurationError("there are no requirements: nobody could be counted")
        if self.sizes.shape != (len(self.requirements),) or (self.sizes < 0).any():
            raise ConfigurationError(
                f"{len(self.requirements)} requirements need as many sizes, none negative; "
                f"got {self.sizes.tolist()}"
            )
        if self.bins < 1 or self.sensitivity < 1:
            raise ConfigurationError(
                f"bins {self.bins} and sensitivity {self.sensitivity} must be 1 or more"
            )


@dataclass(frozen=True)
class SlotInput:
    """The bounded counts of one slot: private."""

    slot: int
    counts: npt.NDArray[np.int64]
    """Events of each class in each bin, shape (K, d)."""


@dataclass(frozen=True)
class SlotRelease:
    """What a mechanism makes of a slot: public, with the price for the odometer."""

    counts: npt.NDArray[np.int64]
    """Private counts, shape (d,)."""
    status: str
    published_slot: int | None
    epsilon: float
    stderr: npt.NDArray[np.float64]
    """Expected standard error, shape (d,)."""
    spent: Units
    """Units that this slot costs every user of each class, present or not, shape (K,)."""
    alarm: bool = False
    """True when the mechanism saw a jump in this slot."""
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    """What the mechanism wants the analyst to know of this slot, by name; as public as counts."""
    alarm: bool = False
    """Whether the mechanism saw a jump in this slot."""


class Mechanism(Protocol[S]):
    """A release mechanism over fixed requirements: frozen configuration, state apart.

    `step` must steer by `population`, its own state's released values and the noisy results of
    this slot only. Its `spent` is what the odometer books before anything leaves.
    """

    name: str
    population: Population

    def start(self) -> S:
        """State before the first slot."""

    def step(self, state: S, slot_input: SlotInput, noise: SlotNoise) -> tuple[S, SlotRelease]:
        """Release one slot; `state` is consumed."""

    def encode(self, state: S) -> bytes:
        """Bytes of the state, with a version."""

    def decode(self, data: bytes) -> S:
        """State of bytes."""


def population_of(
    requirements: Sequence[Requirement], sizes: npt.ArrayLike, bins: int, sensitivity: int = 1
) -> Population:
    """Make a Population from plain sequences."""
    return Population(tuple(requirements), np.asarray(sizes, dtype=np.int64), bins, sensitivity)
