"""What the reports of n devices tell under per-record local privacy.

Reports add up to totals by node, whose noise is the sum of n Laplace noises. The statistic chooses
the nodes to sum up as it does of any totals with noise of such a variance, or else the first one
does that reaches a threshold.

Guarantee: none to give; reports are private already (see :mod:`.randomizer`), and n is public.
Source: Chen, Sun, Xu, Dong, "A general framework for per-record differential privacy" (2025),
Algorithm 4.
Changed: gap selection, of hats; or thresholds of which noise reaches any with probability `beta` at
most, by Chernoff's bound for such sums: half of the source's or less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.per_record.domains import select_domain
from streamveil.mechanisms.per_record.node_totals import NodeTotals
from streamveil.mechanisms.per_record.protocol import Noisy, PerRecordRelease
from streamveil.mechanisms.randomness.noise import FINE_BITS


def printed_thresholds(low: Floats, devices: int, beta: float) -> Floats:
    """sqrt(8 n) ln(K / beta) / low_i, as Algorithm 4 has them: shape (K,)."""
    return math.sqrt(8 * devices) * math.log(len(low) / beta) / low


def root_thresholds(low: Floats, devices: int, beta: float) -> Floats:
    """sqrt(8 n ln(2 K / beta)) / low_i, which give the source's figures: shape (K,)."""
    return math.sqrt(8 * devices * math.log(2 * len(low) / beta)) / low


def chernoff_thresholds(low: Floats, devices: int, beta: float) -> Floats:
    """What n noises of scale 1 / low_i each add up to with probability beta / K: shape (K,).

    P(sum >= x) <= exp(-t x) / (1 - t**2)**n for scale 1 and every t from 0 to 1; of all t that
    is tried which gives the smallest x.
    """
    t = np.geomspace(1e-9, 1 - 1e-9, 1 << 12)
    reach = (math.log(len(low) / beta) - devices * np.log1p(-(t**2))) / t
    return float(reach.min()) / low


THRESHOLDS = {
    "chernoff": chernoff_thresholds,
    "printed": printed_thresholds,
    "root": root_thresholds,
}


@dataclass(frozen=True)
class Analyzer:
    """Estimates from added reports of the statistic that devices randomise.

    Raises ConfigurationError for unknown thresholds.
    """

    statistic: NodeTotals
    thresholds: str | None = None
    """A key of `THRESHOLDS`; None leaves the choice to the statistic."""

    def __post_init__(self) -> None:
        """Check the thresholds."""
        if self.thresholds is not None and self.thresholds not in THRESHOLDS:
            raise ConfigurationError(
                f"thresholds {self.thresholds!r} are unknown: choose one of {', '.join(THRESHOLDS)}"
            )

    def noisy(self, totals: Integers, devices: int) -> Noisy:
        """Totals in units of the statistic, with the variance of their noise, shape (nodes,)."""
        nodes = self.statistic.nodes
        unit = np.ldexp(1.0, self.statistic.grid.exponent + nodes.shifts)
        scales = np.ldexp(1.0, FINE_BITS) / nodes.rates * unit
        return Noisy(totals.astype(np.float64) * unit, 2 * devices * scales**2)

    def estimate(self, totals: Integers, devices: int) -> PerRecordRelease:
        """The statistic of the records of some devices.

        Args:
            totals: their reports added up, int64, shape (nodes,).
            devices: how many they are: public, all of them, those with the dummy as well.
        """
        noisy = self.noisy(totals, devices)
        if self.thresholds is None:
            return self.statistic.estimate(noisy)
        budgets = np.sqrt(2 * devices / noisy.variances)
        limits = THRESHOLDS[self.thresholds](budgets, devices, self.statistic.beta)
        first = int(select_domain(noisy.totals, limits)) - 1
        return self.statistic.summed(noisy, first)
