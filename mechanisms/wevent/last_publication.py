"""The last publication: what a slot that does not publish repeats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.budgets import Units
from streamveil.mechanisms.protocol import SlotRelease, carried
from streamveil.mechanisms.randomness.noise import SlotNoise

# The fields of a publication in a mechanism's record.
FIELDS: dict[str, Any] = {
    "counts": state_codec.LONGS,
    "stderr": {"type": "array", "items": "double"},
    "published_slot": ["null", "long"],
    "epsilon": "double",
}


class Publisher(Protocol):
    """Makes private counts of a slot's counts at a price that is known before."""

    @property
    def epsilon(self) -> float:
        """Largest budget that a publication costs anybody; 0 when it cannot be made."""

    def publish(
        self, counts: npt.NDArray[np.int64], noise: SlotNoise
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Private counts and their expected standard error, shape (d,), of counts (K, d)."""


@dataclass(frozen=True)
class Publication:
    """Private counts and what is known of their error: all of it public."""

    counts: npt.NDArray[np.int64]
    """Shape (d,); zeros before the first publication."""
    stderr: npt.NDArray[np.float64]
    """Expected standard error, shape (d,); NaN before the first."""
    slot: int | None = None
    epsilon: float = 0.0

    def __post_init__(self) -> None:
        """Lock the arrays: later slots repeat these very ones, so no receiver may change them."""
        self.counts.setflags(write=False)
        self.stderr.setflags(write=False)

    @classmethod
    def nothing(cls, bins: int) -> Publication:
        """Nothing published yet: the estimate is zero everywhere."""
        return cls(np.zeros(bins, np.int64), np.full(bins, np.nan))

    @classmethod
    def by(
        cls,
        publisher: Publisher,
        slot: int,
        counts: npt.NDArray[np.int64],
        noise: SlotNoise,
    ) -> Publication:
        """Publish a slot's counts of shape (K, d)."""
        return cls(*publisher.publish(counts, noise), slot, publisher.epsilon)

    def release(
        self, status: str, spent: Units, diagnostics: Mapping[str, float] | None = None
    ) -> SlotRelease:
        """Make a slot's release of it."""
        return SlotRelease(
            self.counts,
            status,
            self.slot,
            self.epsilon,
            self.stderr,
            diagnostics or {},
            spent=spent,
        )

    def grown(self, origin: npt.NDArray[np.int64]) -> Publication:
        """Other bins: see :meth:`streamveil.mechanisms.protocol.Growing.grown`."""
        fresh = Publication.nothing(len(origin))
        counts = carried(fresh.counts, self.counts, origin)
        stderr = carried(fresh.stderr, self.stderr, origin)
        return replace(self, counts=counts, stderr=stderr)

    def record(self) -> dict[str, Any]:
        """Values of `FIELDS`."""
        return {
            "counts": self.counts.tolist(),
            "stderr": self.stderr.tolist(),
            "published_slot": self.slot,
            "epsilon": self.epsilon,
        }

    @classmethod
    def of_record(cls, record: Mapping[str, Any], bins: int) -> Publication:
        """Read the values of `FIELDS` back.

        Raises ConfigurationError if they are for another number of bins.
        """
        for values in (record["counts"], record["stderr"]):
            state_codec.check_length(values, bins, "bins")
        return cls(
            np.array(record["counts"], dtype=np.int64),
            np.array(record["stderr"], dtype=np.float64),
            record["published_slot"],
            record["epsilon"],
        )
