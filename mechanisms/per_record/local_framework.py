"""The general framework of per-record local privacy: any local protocol on top, in two rounds.

Round 1: every device reports to a count with half of its budget E; that tells epsilon_tau, the
budget from which on devices are worth hearing. Round 2: every device answers a local protocol with
budget epsilon_tau / 2, one whose E is below epsilon_tau as if it had the dummy record.

Guarantee: E-per-record local privacy, exact. A record r costs at most E(r) / 2 in round 1; in
round 2 epsilon_tau / 2 <= E(r) / 2, or nothing. That is against the dummy; between two records it
is at most E(r) + E(r'). Adjacency: a record for the dummy. Sensitivity: that of the protocol.
Source: Chen, Sun, Xu, Dong, "A general framework for per-record differential privacy" (2025),
Algorithm 5.
Changed: round 1 counts by hats and gap selection; the example of a protocol is one bit a device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np

from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.core.budgets import to_units
from streamveil.mechanisms.local.oracles import Oracle, perturb, supports
from streamveil.mechanisms.local.protocol import GRR
from streamveil.mechanisms.per_record.analyzer import Analyzer
from streamveil.mechanisms.per_record.framework import largest_values
from streamveil.mechanisms.per_record.hat import HatCount
from streamveil.mechanisms.per_record.protocol import Bounds
from streamveil.mechanisms.per_record.randomizer import Randomizer
from streamveil.mechanisms.randomness.noise import RandomWords


class LocalProtocol(Protocol):
    """A local protocol, private for any two inputs, of which NaN, the dummy, is one."""

    def reports(self, values: Floats, epsilon: float, words: RandomWords) -> Iterator[Integers]:
        """Reports of devices in chunks, in order; each costs `epsilon`."""

    def add(self, reports: Integers) -> Integers:
        """What estimates take of some reports: such sums add up."""

    def estimate(self, total: Integers, devices: int, epsilon: float) -> tuple[float, float]:
        """Estimate and standard error from all reports; the number of devices is public."""


@dataclass(frozen=True)
class OneBitSum:
    """The sum of values, of one bit each: rounded at random to 0 or the clip, then randomised.

    Guarantee: the budget, exactly, between any two values or the dummy. Sensitivity: one bit.
    Source: randomised response as in :mod:`streamveil.mechanisms.local.oracles`, after Duchi,
    Jordan, Wainwright, "Minimax optimal procedures for locally private estimation" (2018).
    """

    value_max: float
    budget: Callable[[Floats], Floats] | None = None
    """The budget function: values are clipped at the largest that it gives twice the budget."""

    def reports(self, values: Floats, epsilon: float, words: RandomWords) -> Iterator[Integers]:
        """Bits: see `LocalProtocol.reports`."""
        shares = np.minimum(np.nan_to_num(values) / self._clip(epsilon), 1.0)
        ones = np.ldexp((words.draw(len(values)) >> np.uint64(11)).astype(np.float64), -53) < shares
        reports = perturb(self._oracle(epsilon), ones.astype(np.int64), words)
        yield from cast(Iterator[Integers], reports)

    def add(self, reports: Integers) -> Integers:
        """Zeros and ones: see `LocalProtocol.add`."""
        return supports(GRR, 2, reports)

    def estimate(self, total: Integers, devices: int, epsilon: float) -> tuple[float, float]:
        """Estimate and standard error, that of rounding included: see `LocalProtocol.estimate`."""
        oracle, clip = self._oracle(epsilon), self._clip(epsilon)
        share = float(oracle.frequencies(total, devices)[1])
        likely = min(max(share, 0.0), 1.0)
        variance = float(oracle.variance(likely)) + likely * (1 - likely)
        return share * devices * clip, math.sqrt(variance * devices) * clip

    def _oracle(self, epsilon: float) -> Oracle:
        return Oracle.of(GRR, to_units(epsilon), 2)

    def _clip(self, epsilon: float) -> float:
        return float(largest_values(self.budget, np.array([2 * epsilon]), self.value_max)[0])


@dataclass(frozen=True)
class LocalFramework:
    """The two rounds of a local protocol."""

    bounds: Bounds
    protocol: LocalProtocol
    beta: float = 0.1

    @property
    def first(self) -> Randomizer:
        """What devices run in round 1, on :meth:`halves`."""
        bounds = self.bounds
        half = Bounds(bounds.epsilon_min / 2, bounds.epsilon_max / 2, bounds.value_max)
        return Randomizer(HatCount("hat", half, beta=self.beta / 2))

    @staticmethod
    def halves(budgets: Floats) -> Floats:
        """What devices may spend in each round: exact halves."""
        return budgets / 2

    def epsilon_tau(self, totals: Integers, devices: int) -> float:
        """The smallest budget worth hearing, from the added reports of round 1."""
        return 2 * Analyzer(self.first.statistic).estimate(totals, devices).epsilon_tau

    def reports(
        self, values: Floats, budgets: Floats, epsilon_tau: float, words: RandomWords
    ) -> Iterator[Integers]:
        """Reports of round 2, in chunks: one for each record, good or bad."""
        heard = self.bounds.usable(values, budgets) & (budgets >= epsilon_tau)
        return self.protocol.reports(np.where(heard, values, np.nan), epsilon_tau / 2, words)

    def estimate(self, total: Integers, devices: int, epsilon_tau: float) -> tuple[float, float]:
        """Estimate and standard error from the added reports of round 2."""
        return self.protocol.estimate(total, devices, epsilon_tau / 2)
