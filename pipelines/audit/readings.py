"""What an attacker reads off the releases of a run: noisy counts, how users shift them, the noise.

All of it follows from releases, charges and the public facts alone. A reading that is wrong makes
the attacker weaker, and never a bound wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.records import PUBLISHED
from streamveil.mechanisms.wevent.obs import keep_probability
from streamveil.pipelines.audit.runs import Transcript

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Reading:
    """Noisy counts of some slots in a row."""

    first: int
    shifts: Floats
    """By how much an event of each class in each of the slots moves its bin, shape (slots, K)."""
    values: Floats
    """The noisy counts, shape (d,)."""
    blur: Floats
    """Scale of their Laplace noise, shape (d,)."""
    kept: Floats | None = None
    """Probability that an event of each class is kept, shape (K,), where events are sampled."""

    @property
    def end(self) -> int:
        """The slot after the last one."""
        return self.first + len(self.shifts)

    def expected(self, counts: Floats) -> Floats:
        """What the counts (T, K, d) of a run would be without noise, shape (d,)."""
        found: Floats = np.einsum("tk,tkd->d", self.shifts, counts[self.first : self.end])
        return found


def readings(seen: Transcript) -> Iterator[Reading]:
    """All readings of a run."""
    idle = looked(seen)
    for slot, release in enumerate(seen.releases):
        if release.status == PUBLISHED:
            yield _published(seen, slot, idle)


def _published(seen: Transcript, slot: int, idle: Floats) -> Reading:
    """Of a mechanism that samples events and publishes their number."""
    sensitivity, release = seen.population.sensitivity, seen.releases[slot]
    threshold = release.epsilon / sensitivity
    offered = np.maximum(seen.spent[slot] - idle, 0.0) / sensitivity
    kept = keep_probability(offered, threshold)
    values = release.counts.astype(np.float64)
    return Reading(slot, kept[None], values, np.full(values.shape, 1 / threshold), kept)


def looked(seen: Transcript) -> Floats:
    """What slots that publish nothing cost, in the middle: epsilon, shape (K,)."""
    idle = [
        spent
        for spent, one in zip(seen.spent, seen.releases, strict=True)
        if one.status != PUBLISHED and spent.any()
    ]
    return np.median(idle, axis=0) if idle else np.zeros(len(seen.population.sizes))
