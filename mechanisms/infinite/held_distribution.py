"""What a stream releases until it measures anew: a distribution with an age."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.core.budgets import Units, to_epsilon
from streamveil.mechanisms.core.records import (
    PUBLISHED,
    SKIPPED,
    UNMEASURED,
    ConfigurationError,
    Lifetime,
)
from streamveil.mechanisms.protocol import Population, SlotRelease

# The fields of what is held in a mechanism's record.
FIELDS: dict[str, Any] = {
    "shares": "bytes",
    "stderr": "bytes",
    "counts": "bytes",
    "measured_slot": ["null", "long"],
    "epsilon": "double",
}


@dataclass(frozen=True)
class Held:
    """A released distribution and what is known of it: all of it public."""

    shares: Floats
    """Shares of the bins, none negative, summing to 1, shape (d,)."""
    counts: npt.NDArray[np.int64]
    """Shares times the total; zeros while no total is known, shape (d,)."""
    stderr: Floats
    """Expected standard error of the counts from noise, shape (d,); NaN if they are no measure."""
    slot: int | None = None
    """Last slot that it is measured on; None for a distribution made without any data."""
    epsilon: float = 0.0
    """What measuring cost."""

    def __post_init__(self) -> None:
        """Lock the arrays: later slots repeat these very ones, so no receiver may change them."""
        for array in (self.shares, self.counts, self.stderr):
            array.setflags(write=False)

    @classmethod
    def uniform(cls, bins: int, total: int = 0) -> Held:
        """All bins alike: what is held before anything is measured."""
        return cls.of(np.full(bins, 1 / bins), total)

    @classmethod
    def of(
        cls,
        shares: Floats,
        total: int,
        stderr: Floats | None = None,
        slot: int | None = None,
        epsilon: float = 0.0,
    ) -> Held:
        """Hold shares, with counts for a total."""
        counts = np.rint(shares * max(total, 0)).astype(np.int64)
        return cls(
            shares,
            counts,
            np.full(shares.size, np.nan) if stderr is None else stderr,
            slot,
            epsilon,
        )

    def measured(
        self, shares: Floats, total: int, stderr: Floats, slot: int, epsilon: float
    ) -> Held:
        """What is held after a measurement: the same, with its age, if that showed nothing new."""
        if np.array_equal(shares, self.shares):
            return self
        return Held.of(shares, total, stderr, slot, epsilon)

    def release(
        self, slot: int, lived: int, spent: int, diagnostics: Mapping[str, float]
    ) -> SlotRelease:
        """Make a slot's release of it.

        Args:
            slot: the slot.
            lived: slots from the first to this one: the age of what no slot is measured on.
            spent: units that the slot costs.
            diagnostics: what the mechanism reports beside the age.
        """
        age = lived if self.slot is None else slot - self.slot
        status = PUBLISHED if self.slot == slot else SKIPPED
        return SlotRelease(
            self.counts,
            UNMEASURED if self.slot is None else status,
            self.slot,
            self.epsilon,
            self.stderr,
            {"age": float(age), **diagnostics},
            spent=paid(spent),
            shares=self.shares,
        )

    def record(self) -> dict[str, Any]:
        """Values of `FIELDS`."""
        return {
            "shares": self.shares.astype("<f8").tobytes(),
            "stderr": self.stderr.astype("<f8").tobytes(),
            "counts": state_codec.table_to_bytes(self.counts),
            "measured_slot": self.slot,
            "epsilon": self.epsilon,
        }

    @classmethod
    def of_record(cls, record: Mapping[str, Any], bins: int) -> Held:
        """Read the values of `FIELDS` back.

        Raises ConfigurationError if they are for another number of bins.
        """
        shares, stderr = (np.frombuffer(record[name], "<f8") for name in ("shares", "stderr"))
        state_codec.check_length(shares, bins, "bins")
        counts = state_codec.table_from_bytes(record["counts"], (bins,))
        return cls(
            shares.astype(np.float64),
            counts,
            stderr.astype(np.float64),
            record["measured_slot"],
            record["epsilon"],
        )


def paid(units: int) -> Units:
    """What a slot costs the one class of users."""
    return np.array([units], dtype=np.int64)


def lifetime_of(name: str, population: Population) -> Lifetime:
    """The one requirement of a population; raises ConfigurationError for others."""
    (first, *others) = population.requirements
    if others or not isinstance(first, Lifetime):
        raise ConfigurationError(
            f"mechanism {name!r} needs a lifetime budget: give one Lifetime, not "
            f"{len(population.requirements)} requirements such as {first}"
        )
    return first


def simplex(values: Floats) -> Floats:
    """The distribution nearest to some values that sum to about 1: shape (d,)."""
    falling = np.sort(values)[::-1]
    excess = (np.cumsum(falling) - 1) / np.arange(1, values.size + 1)
    cut = excess[np.flatnonzero(falling > excess)[-1]]
    clipped = np.maximum(values - cut, 0)
    shares: Floats = clipped / clipped.sum()
    return shares


def spent_epsilon(units: int) -> float:
    """Epsilon of units, for people to read."""
    return float(to_epsilon(units))
