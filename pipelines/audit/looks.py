"""What an attacker reads off the looks of a mechanism: how far a slot is from what was released.

PBA, PBD and their like add noise to the distance of a slot from the last publication and tell only
whether that was far enough to publish; the adaptive mechanism tells the noisy distance from its
forecast as the surprise of the slot. As of `readings.py`: an error here costs power alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.records import NULLIFIED, PUBLISHED
from streamveil.mechanisms.wevent.obs import keep_probability, optimal_budget_selection
from streamveil.pipelines.audit.readings import Reading, looked
from streamveil.pipelines.audit.runs import Transcript

Floats = npt.NDArray[np.float64]

SURPRISE = "surprise"
# Looks on either side that tell what is usual.
_NEAR = 10


@dataclass(frozen=True, eq=False)
class Look:
    """A slot that was looked at."""

    slot: int
    shifts: Floats
    """By how much an event of each class moves its bin, shape (K,)."""
    last: Floats
    """What the slot was compared with, shape (d,)."""
    per_count: float
    """Noise scales to a difference of 1."""
    seen: float
    """The noisy distance in noise scales, but for what is the same in all looks around; or 1 where
    it was above the limit, 0 where it was not."""
    limit: float | None = None
    """In noise scales, where only the side of a limit is told."""

    def odds(self, without: Floats, with_canary: Floats) -> float:
        """Log-likelihood of what was seen with a canary, less that without; counts (K, d) each."""
        far, farther = (
            float(np.abs(self.shifts @ counts - self.last).sum() * self.per_count)
            for counts in (without, with_canary)
        )
        if self.limit is None:
            # `seen` has the usual distance off, of which a half is the canary's.
            middle = (far + farther) / 2
            return abs(self.seen - far + middle) - abs(self.seen - farther + middle)
        return _log_side(self.limit - farther, self.seen) - _log_side(self.limit - far, self.seen)


def _log_side(limit: float, above: float) -> float:
    """Log of the probability that standard Laplace noise is above a limit, or not."""
    tail = -abs(limit) - np.log(2)
    beyond = tail if limit >= 0 else np.log1p(-np.exp(tail))
    within = np.log1p(-np.exp(tail)) if limit >= 0 else tail
    return float(beyond if above else within)


def looks(seen: Transcript, found: list[Reading], usual: Floats) -> dict[int, Look]:
    """All looks of a run, by slot.

    Args:
        seen: the run.
        found: its readings.
        usual: counts (T, K, d) with a half of each canary.
    """
    if any(SURPRISE in one.diagnostics for one in seen.releases):
        return {one.slot: one for one in _surprises(seen, found, usual)}
    return {one.slot: one for one in _decisions(seen)}


def _before(seen: Transcript, slot: int) -> Floats:
    if slot == 0:
        return np.zeros(seen.population.bins)
    return seen.releases[slot - 1].counts.astype(np.float64)


def _decisions(seen: Transcript) -> Iterator[Look]:
    """Of mechanisms that tell whether they publish."""
    population, looking = seen.population, looked(seen)
    if not looking.any():
        return
    each, sizes = looking / population.sensitivity, population.sizes
    threshold, _ = optimal_budget_selection(each, sizes)
    kept = keep_probability(each, threshold)
    for slot, release in enumerate(seen.releases):
        offered = np.maximum(seen.prices[slot] - looking, 0.0) / population.sensitivity
        if release.status == NULLIFIED or not offered.any():
            continue
        _, error = optimal_budget_selection(offered, sizes)
        yield Look(
            slot,
            kept,
            _before(seen, slot),
            threshold,
            float(release.status == PUBLISHED),
            float(np.sqrt(error)) * population.bins * threshold,
        )


def _surprises(seen: Transcript, found: list[Reading], usual: Floats) -> Iterator[Look]:
    """Of mechanisms that tell the noisy distance itself."""
    spent, sizes = seen.spent, seen.population.sizes
    in_sums = np.zeros(len(seen.releases), dtype=bool)
    for one in found:
        in_sums[one.first : one.end] = True
    slots = [t for t, one in enumerate(seen.releases) if one.diagnostics[SURPRISE] != 0.0]
    price, plain = np.zeros(len(sizes)), []
    for slot in slots:
        if not in_sums[slot]:
            price = spent[slot]
        if not price.any():
            continue
        per_count = float((sizes * price).sum() / sizes.sum())
        shifts, last = price / per_count, _before(seen, slot)
        distance = float(np.abs(shifts @ usual[slot] - last).sum() * per_count)
        told = float(seen.releases[slot].diagnostics[SURPRISE])
        plain.append((Look(slot, shifts, last, per_count, told), told - distance))
    for place, (look, _) in enumerate(plain):
        near = [rest for _, rest in plain[max(0, place - _NEAR) : place + _NEAR + 1]]
        distance = float(np.abs(look.shifts @ usual[look.slot] - look.last).sum() * look.per_count)
        yield Look(
            look.slot,
            look.shifts,
            look.last,
            look.per_count,
            look.seen - float(np.median(near)) - distance,
        )
