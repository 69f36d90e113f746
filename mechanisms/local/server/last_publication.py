"""The last published frequencies: what a slot that does not publish repeats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.budgets import Units
from streamveil.mechanisms.local.protocol import LocalRelease, LocalRevised
from streamveil.mechanisms.local.server.projection import on_simplex
from streamveil.mechanisms.protocol import SlotRelease, SlotRevision

# The fields of a publication in a mechanism's record.
FIELDS: dict[str, Any] = {
    "frequencies": {"type": "array", "items": "double"},
    "stderr": {"type": "array", "items": "double"},
    "published_slot": ["null", "long"],
    "epsilon": "double",
}


@dataclass(frozen=True, eq=False)
class LocalPublication:
    """Estimated frequencies and what is known of their error: all of it public."""

    frequencies: npt.NDArray[np.float64]
    """Shape (d,); zeros before the first publication."""
    stderr: npt.NDArray[np.float64]
    """Expected standard error, shape (d,); NaN before the first."""
    slot: int | None = None
    epsilon: float = 0.0
    """Largest price of a report."""

    def __post_init__(self) -> None:
        """Lock the arrays: later slots repeat these very ones, so no receiver may change them."""
        self.frequencies.setflags(write=False)
        self.stderr.setflags(write=False)

    @classmethod
    def nothing(cls, symbols: int) -> LocalPublication:
        """Nothing published yet: the estimate is zero everywhere."""
        return cls(np.zeros(symbols), np.full(symbols, np.nan))

    @classmethod
    def of(
        cls,
        frequencies: npt.NDArray[np.float64],
        variances: npt.NDArray[np.float64],
        slot: int,
        epsilon: float,
        *,
        project: bool,
    ) -> LocalPublication:
        """Publish what was estimated, with `project` the nearest frequencies that are possible.

        The standard error is that of the estimate: projection does not make it larger.
        """
        published = on_simplex(frequencies) if project else frequencies
        return cls(published, np.sqrt(variances), slot, epsilon)

    def release(self, status: str, diagnostics: Mapping[str, float] | None = None) -> LocalRelease:
        """Make a slot's release of it."""
        return LocalRelease(
            self.frequencies, self.stderr, status, self.slot, self.epsilon, diagnostics or {}
        )

    def record(self) -> dict[str, Any]:
        """Values of `FIELDS`."""
        return {
            "frequencies": self.frequencies.tolist(),
            "stderr": self.stderr.tolist(),
            "published_slot": self.slot,
            "epsilon": self.epsilon,
        }

    @classmethod
    def of_record(cls, record: Mapping[str, Any], symbols: int) -> LocalPublication:
        """Read the values of `FIELDS` back.

        Raises ConfigurationError if they are for another number of symbols.
        """
        for values in (record["frequencies"], record["stderr"]):
            state_codec.check_length(values, symbols, "symbols")
        return cls(
            np.array(record["frequencies"], np.float64),
            np.array(record["stderr"], np.float64),
            record["published_slot"],
            record["epsilon"],
        )


def as_counts(release: LocalRelease, users: int, spent: Units) -> SlotRelease:
    """What is published of a release: frequencies scaled up to counts of the bins.

    Args:
        release: of bins, and last of that there was no event, which is left out.
        users: how many there are.
        spent: what the slot cost each class, shape (K,).
    """
    estimates = users * release.frequencies[:-1]
    return SlotRelease(
        np.rint(estimates).astype(np.int64),
        release.status,
        release.published_slot,
        release.epsilon,
        users * release.stderr[:-1],
        release.diagnostics,
        spent=spent,
        revisions=tuple(map(revised_counts, release.revisions)),
        estimates=estimates,
    )


def revised_counts(revised: LocalRevised) -> SlotRevision:
    """What is published of a revision: as :func:`as_counts`, of those who took part then."""
    estimates = revised.users * revised.frequencies[:-1]
    stderr = revised.users * revised.stderr[:-1]
    return SlotRevision(revised.slot, np.rint(estimates).astype(np.int64), stderr, estimates)
