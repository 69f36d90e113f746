"""The week of each bin: how far a bin differs by day from what its level and the factor expect.

The common factor gives the weeks of all bins the same shape, larger or smaller by the loading of
the bin. Where shapes differ, each bin has an effect for each phase of the week, relative to its
level. It is the mean difference between releases of slots of this phase and what a slow average of
the bin and the factor expect. The level of the filter bank would not do as an average: a level
that follows each release absorbs the week. The effects of a bin are shrunk together, by as much as
their noise requires, and what noise leaves uncertain of them is part of the variance of a count.

Forecasts use the effects only on evidence: if earlier releases of all bins together would have been
nearer to the expectation with the effects than without.

Everything here is post-processing of releases.
Sources: our own; W. James and C. Stein, "Estimation with quadratic loss" (1961); of variances,
C. Morris, "Parametric empirical Bayes inference: theory and applications" (1983).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streamveil.mechanisms.adaptive.kalman import single
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.arrays import Floats, Singles

# The weight of a release after the next release of its phase, relative to that of the next one.
MEMORY = 0.99
# The least weight of a release in the slow average and in the variance, and the releases that begin
# the average, before anything else is learnt.
SLOW, BEGINNING = 1 / 28, 14
# Releases of each phase that effects need.
FEWEST = 2.0
# A difference counts up to this many standard deviations.
TAIL = 2.5
# Effects are used from this log-likelihood ratio on, until it falls below the second number. The
# third is its weight after the next release, and no release adds or takes more than the fourth.
FOUND, LOST, KEPT, MOST = 10.0, 0.0, 0.97, 4.0
# The largest effect, relative to the level: a bin has no more than twice its level.
LARGEST = 1.0
_LEAST = 1e-6


@dataclass
class PhaseEffects:
    """What is known of the effects of some phases on d bins."""

    average: Singles
    """Slow average of each bin at the usual total, shape (d,)."""
    variance: Singles
    """Mean squared difference of releases from the means below, shape (d,)."""
    mean: Singles
    """Mean difference of releases from what is expected of the average, shape (phases, d)."""
    releases: Singles
    """Number of releases of each phase, older ones discounted: shape (phases,)."""
    begun: int = 0
    """Releases, up to `BEGINNING`."""
    evidence: float = 0.0
    """Discounted log-likelihood ratio of the releases with the effects and without."""
    used: bool = False
    """Whether forecasts use the effects."""
    known: tuple[Floats, Floats] | None = field(default=None, init=False)
    """What :meth:`_shrunk` returned last: not saved."""

    SCHEMA = state_codec.record_schema(
        "PhaseEffects",
        **dict.fromkeys(("average", "variance", "mean", "releases"), "bytes"),
        begun="long",
        evidence="double",
        used="boolean",
    )

    @classmethod
    def start(cls, phases: int, bins: int) -> PhaseEffects:
        """Nothing known.

        Args:
            phases: slots in a week; 0 if slots are no days.
            bins: how many there are.
        """
        shapes = bins, bins, (phases, bins), phases
        average, variance, mean, releases = (np.zeros(shape, np.float32) for shape in shapes)
        return cls(average, variance, mean, releases)

    def record(self) -> dict[str, Any]:
        """Avro record, under `SCHEMA`."""
        return {
            name: part.tobytes() if isinstance(part, np.ndarray) else part
            for name, part in vars(self).items()
            if name != "known"
        }

    def read(self, written: dict[str, Any]) -> None:
        """Read a record into fresh effects of as many phases and bins."""
        for name, part in written.items():
            known = getattr(self, name)
            if isinstance(known, np.ndarray):
                part = np.frombuffer(part, np.float32).reshape(known.shape).copy()
            setattr(self, name, part)

    def _shrunk(self) -> tuple[Floats, Floats]:
        """The effects of each phase on each bin, in counts, and their variances: shape (phases, d).

        The variances are those of Morris: of an effect that is known by its noisy mean and by how
        far all means of the bin spread, and of that spread, which is known from few means only.
        """
        if self.known is None:
            if self.releases.min() < FEWEST:
                return np.zeros(self.mean.shape), np.zeros(self.mean.shape)
            means = self.mean.astype(np.float64)
            means -= means.sum(axis=0) / len(means)
            noise = self.variance / float(self.releases.sum() / len(means))
            squares, left = np.maximum((means**2).sum(axis=0), _LEAST), len(means) - 3
            shrunk = np.minimum(left * noise / squares, 1.0)
            centred = 1 - 1 / len(means)
            variances = centred * noise * (1 - shrunk) + 2 / left * (shrunk * means) ** 2
            self.known = means * (1 - shrunk), variances
        return self.known

    def at(self, slot: int, shares: Floats) -> tuple[Floats, Floats]:
        """The effects on a mean of the last slots with these shares up to `slot`, and variances.

        Both are relative to the levels of the bins, shape (d,).
        """
        slots = np.arange(slot + 1 - len(shares), slot + 1)
        of_phases = np.bincount(slots % len(self.mean), shares, len(self.mean)).astype(np.float64)
        effects, variances = self._shrunk()
        levels = np.maximum(self.average.astype(np.float64), _LEAST)
        relative = np.minimum(np.maximum(effects / levels, -LARGEST), LARGEST)
        doubt = of_phases**2 @ variances / levels**2
        return of_phases @ relative, np.minimum(doubt, LARGEST**2)

    def multiply(self, by: Floats) -> None:
        """Multiply the levels of bins by these numbers, shape (d,)."""
        self.average, self.mean = single(self.average * by), single(self.mean * by)
        self.variance = single(self.variance * by**2)
        self.known = None

    def learn(self, slot: int, counts: Floats, expected: Floats, jumped: Floats) -> None:
        """Learn from a release of one slot.

        Args:
            slot: the slot.
            counts: the release, shape (d,).
            expected: what the factor alone multiplies a level by in this slot, shape (d,).
            jumped: levels of bins that jumped, with which their averages begin again, 0 of all
                others: shape (d,).
        """
        average = np.where(jumped > 0, jumped, self.average).astype(np.float64)
        away, phase = counts - average * expected, slot % len(self.releases)
        if self.begun < BEGINNING:
            self.begun += 1
            self.average = single(average + away / self.begun)
            return
        effect, variance = self._shrunk()[0][phase], self.variance.astype(np.float64)
        before = self.mean[phase].astype(np.float64)
        missed = away - before
        if np.count_nonzero(variance):
            spread = np.maximum(variance, _LEAST)
            reach = TAIL * np.sqrt(spread)
            missed = np.minimum(np.maximum(missed, -reach), reach)
            # From halfway between both expectations, so that the bound favours neither.
            apart = np.minimum(np.maximum(away - effect / 2, -reach), reach)
            gain = float((apart * effect / spread).sum())
            self.evidence = KEPT * self.evidence + min(max(gain, -MOST), MOST)
            self.used = self.evidence > (LOST if self.used else FOUND)
        if self.releases[phase]:
            weight = 1 / max(float(self.releases.sum()) - len(self.releases) + 1, 1.0)
            self.variance = single(variance + max(SLOW, weight) * (missed**2 - variance))
        self.releases[phase] = MEMORY * self.releases[phase] + 1
        self.mean[phase] += missed / self.releases[phase]
        self.average = single(average + SLOW * (before + missed - effect))
        self.known = None
