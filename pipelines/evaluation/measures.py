"""What is measured of a run: how far the releases were from the truth, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.intervals import interval
from streamveil.mechanisms.core.records import PUBLISHED, Requirement
from streamveil.mechanisms.core.units import to_units
from streamveil.mechanisms.protocol import SlotRelease

Counts = npt.NDArray[np.int64]


class Measure(NamedTuple):
    """One figure of a run."""

    name: str
    """Field of what is measured and column of the table."""
    title: str
    """Its name for people."""
    meaning: str


MEASURES = (
    Measure("amre", "AMRE", "mean squared error of a count, per bin and slot"),
    Measure("bounding", "of bounding", "what the users' bound alone makes of AMRE"),
    Measure("noise", "of noise", "what the mechanism alone makes of AMRE"),
    Measure("amse", "AMSE", "the same of a share of all users: AMRE / users squared"),
    Measure("relative_error", "relative error", "sum of absolute errors / sum of true counts"),
    Measure("ajsd", "AJSD", "mean Jensen-Shannon divergence of the shares of the bins, 0 to ln 2"),
    Measure("published", "published", "share of the slots with a fresh publication"),
    Measure("window_use", "window use", "largest share of a budget spent in a window: at most 1"),
    Measure("coverage", "coverage", "share of true counts within released ± 1.645 stderr"),
    Measure("seconds", "seconds", "CPU seconds that the mechanism took"),
)


@dataclass(frozen=True)
class Measured:
    """The figures of one run; see `MEASURES`."""

    amre: float
    """Against every event; so are all but the next two."""
    bounding: float
    """Between every event and those that count: 0 where nobody is beyond the bound."""
    noise: float
    """Between those that count and the release."""
    amse: float
    relative_error: float
    """NaN when nothing was counted."""
    ajsd: float
    published: float
    window_use: float
    coverage: float
    """NaN when no release had a finite standard error."""
    seconds: float


class Meter:
    """Adds up the figures of one run slot by slot: memory for what was spent, not for counts."""

    def __init__(self, requirements: Sequence[Requirement], users: int) -> None:
        """Of a population of so many users, classes with these requirements."""
        self._requirements = requirements
        self._users = users
        self._spent: list[Counts] = []
        self._squares = self._bounding = self._noise = 0.0
        self._distance = self._divergence = 0.0
        self._true = self._published = self._cells = self._known = self._covered = 0

    def add(self, true: Counts, counted: Counts, release: SlotRelease) -> None:
        """Add the next slot.

        Args:
            true: every event, before any protection, int64, shape (d,).
            counted: those within the users' bound, all classes together, int64, shape (d,).
            release: what was made of these.
        """
        error = (release.counts - true).astype(np.float64)
        self._squares += _square(release.counts - true)
        self._bounding += _square(counted - true)
        self._noise += _square(release.counts - counted)
        self._distance += float(np.abs(error).sum())
        self._true += int(true.sum())
        self._divergence += divergence(true, release.counts)
        self._published += release.status == PUBLISHED
        self._cells += true.size
        low, high = interval(release.counts, release.stderr)
        known = np.isfinite(low)
        within = (low <= true) & (true <= high)  # false for NaN
        self._known += int(known.sum())
        self._covered += int((within & known).sum())
        self._spent.append(release.spent)

    def measured(self, seconds: float) -> Measured:
        """The figures of all slots so far, one or more."""
        slots = len(self._spent)
        return Measured(
            amre=self._squares / self._cells,
            bounding=self._bounding / self._cells,
            noise=self._noise / self._cells,
            amse=self._squares / self._cells / self._users**2,
            relative_error=self._distance / self._true if self._true else math.nan,
            ajsd=self._divergence / slots,
            published=self._published / slots,
            window_use=largest_window_use(np.stack(self._spent), self._requirements),
            coverage=self._covered / self._known if self._known else math.nan,
            seconds=seconds,
        )


def _square(difference: Counts) -> float:
    wide = difference.astype(np.float64)
    return float(wide @ wide)


def divergence(true: Counts, released: Counts) -> float:
    """Jensen-Shannon divergence between two histograms as distributions, in nats: 0 to ln 2.

    Released counts below 0 are taken as 0. A histogram without any count is no distribution: two
    such agree (0), one of them and any other differ as much as can be (ln 2).
    """
    positive = np.maximum(released, 0)
    totals = int(true.sum()), int(positive.sum())
    if not all(totals):
        return 0.0 if not any(totals) else math.log(2)
    p, q = true / totals[0], positive / totals[1]
    middle = (p + q) / 2
    # A share of 0 adds nothing; its middle is above 0 wherever the other's share is.
    each = [float((a[a > 0] * np.log(a[a > 0] / middle[a > 0])).sum()) for a in (p, q)]
    return max(sum(each) / 2, 0.0)


def largest_window_use(spent: Counts, requirements: Sequence[Requirement]) -> float:
    """Largest share of a class's budget spent in any window, added up anew from what slots cost.

    Args:
        spent: units of budget that each slot cost each class, int64, shape (T, K).
        requirements: requirement of each class, K of them.
    """
    # Sums over a window are exact even where the running sum wraps around 64 bits.
    before = np.zeros((1, spent.shape[1]), dtype=np.int64)
    running = np.concatenate([before, np.cumsum(spent, axis=0, dtype=np.int64)])
    largest = 0.0
    for k, requirement in enumerate(requirements):
        ends = np.arange(1, len(running))
        starts = np.maximum(ends - requirement.window, 0)
        within = running[ends, k] - running[starts, k]
        largest = max(largest, int(within.max()) / to_units(requirement.epsilon))
    return largest
