"""The cycle of a local stream, such as the hours of a day: how each symbol's share rises and falls.

Every slot has reports, so a cycle costs nothing: it is learnt from the estimates that there are,
and taken off them before the filter sees them. Whatever phase of the cycle a symbol is most
frequent in, its deviations from the mean of a cycle are averaged over cycles, phase by phase, and
shrunk as far as noise may have made them. There is no cycle until evidence is strong enough: phases
must differ in the same way cycle after cycle, beyond noise and trend. And a symbol has one only
where that is known better than the filter alone knows the symbol.

Guarantee: post-processing of reports, which costs nothing.
Source: our own.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.arrays import Floats

LONGEST = 672
"""Slots of a cycle, at most."""
# Standard deviations of evidence that a cycle takes to be found, and below which it is lost.
FOUND, LOST = 4.0, 1.0
# What evidence counts for one cycle later.
MEMORY = 0.97
# Variance of a phase's step from cycle to cycle, in parts of the variance between phases.
STEP = 0.01
# Share of the present slot in what is usual.
SLOW = 0.02


@dataclass
class Seasons:
    """What is known of a cycle; arrays of phases have shape (length, d), others (d,).

    All of it is public, and changed in place.
    """

    mean: Floats
    """Deviation of each phase from the mean of a cycle."""
    variance: Floats
    """Of `mean`."""
    now: Floats
    """Estimates of the cycle that runs."""
    error: Floats
    """Variance of `now`."""
    level: Floats
    """Mean of the last cycle."""
    usual: Floats
    """Variance of what is released without a cycle."""
    begun: int = 0
    """Number of the cycle that runs."""
    seen: int = 0
    """Its slots that had estimates."""
    cycles: int = 0
    """That were complete."""
    evidence: float = 0.0
    """Discounted sum of how cycles agreed, in standard deviations."""
    weight: float = 0.0
    """Discounted sum of squares of what they count for."""
    found: bool = False

    SCHEMA: ClassVar[state_codec.Schema] = state_codec.record_schema(
        "Seasons",
        **dict.fromkeys(("mean", "variance", "now", "error", "level", "usual"), "bytes"),
        begun="long",
        seen="long",
        cycles="long",
        evidence="double",
        weight="double",
        found="boolean",
    )

    @classmethod
    def start(cls, length: int, symbols: int) -> Seasons:
        """Nothing known of a cycle of so many slots."""
        mean, variance, now, error = np.zeros((4, length, symbols))
        return cls(mean, variance, now, error, np.zeros(symbols), np.zeros(symbols))

    def record(self) -> dict[str, Any]:
        """Avro record, under `SCHEMA`."""
        values = vars(self).items()
        return {name: v.tobytes() if isinstance(v, np.ndarray) else v for name, v in values}

    @classmethod
    def read(cls, record: dict[str, Any], length: int, symbols: int) -> Seasons:
        """What :meth:`record` gave.

        Raises ConfigurationError for a cycle of another length, or other symbols.
        """
        read = cls.start(length, symbols)
        for one in fields(cls):
            value, fresh = record[one.name], getattr(read, one.name)
            if isinstance(value, bytes):
                flat = np.frombuffer(value)
                state_codec.check_length(flat, fresh.size, "phases and symbols of the cycle")
                value = flat.reshape(fresh.shape).copy()
            setattr(read, one.name, value)
        return read

    def expected(self, slot: int) -> tuple[Floats, Floats]:
        """Deviation of a slot from the mean of its cycle, and its variance, both of shape (d,)."""
        if not self.found:
            return np.zeros_like(self.level), np.zeros_like(self.level)
        between, noise = self._between, self.variance.mean(axis=0)
        sure = between / np.maximum(between + noise, 1e-300)
        sure = np.where(sure * noise < self.usual, sure, 0)
        deviation: Floats = sure * self.mean[slot % len(self.mean)]
        return deviation, sure * noise

    def released(self, variance: Floats) -> None:
        """Note with which variance a slot is released, shape (d,)."""
        if not self.found:
            self.usual += (SLOW if self.cycles else 1) * (variance - self.usual)

    def learn(self, slot: int, frequencies: Floats, variance: Floats) -> None:
        """Learn from a slot's own estimates, shape (d,), and their variance."""
        length = len(self.mean)
        number, phase = divmod(slot, length)
        if number != self.begun:
            self.begun, self.seen = number, 0
        self.now[phase], self.error[phase] = frequencies, variance
        self.seen += 1
        if phase < length - 1 or self.seen < length:
            return
        level = self.now.mean(axis=0)
        now = self.now - level
        if self.cycles:
            slope = (level - self.level) / length
            now -= slope * (np.arange(length)[:, None] - (length - 1) / 2)
            self._compare(now)
        else:
            self.mean, self.variance = now, self.error.copy()
        self.level = level
        self.cycles += 1

    @property
    def _between(self) -> Floats:
        """Variance between phases, less that of noise."""
        between: Floats = self.mean.var(axis=0, ddof=1) - self.variance.mean(axis=0)
        return np.maximum(between, 0)

    def _compare(self, now: Floats) -> None:
        """Learn whether, and how, phases differ as they did before."""
        freedom = len(now) - 1
        alike = (self.mean * now).sum(axis=0) / freedom
        # What neither noise nor the cycle explains, such as a curve that wanders.
        known = np.maximum(alike, 0) + (self.error + self.variance).mean(axis=0)
        noise = self.error + np.maximum((now**2).sum(axis=0) / freedom - known, 0)
        # What one symbol gains another one loses, so that there is less evidence than it seems.
        chance = float(2 * (self.mean**2 * noise).sum()) ** 0.5 / freedom
        self.evidence = MEMORY * self.evidence + (float(alike.sum()) / chance if chance else 0)
        self.weight = MEMORY**2 * self.weight + 1
        variance = self.variance + STEP * self._between
        gain = variance / (variance + noise)
        self.mean = self.mean + gain * (now - self.mean)
        self.mean -= self.mean.mean(axis=0)
        self.variance = variance * (1 - gain)
        self.found = self.evidence > (LOST if self.found else FOUND) * self.weight**0.5
