"""The loadings of the bins on the common factor: how far each rises and falls with the total.

A loading of 1 means that a bin changes by the same ratio as the total, 0 that it does not follow
it. Each loading is learnt by least squares from how far releases were from their forecasts. Two
things must not be mistaken for a loading:

- A level that follows the releases closely absorbs the factor. So the derivative of the level with
  respect to the loading is followed too, and a release counts by what is left of it.
- A bin is a part of the total, so its own noise and its own changes move the total. The covariance
  that this causes is known, and it is subtracted. Bins that are independent of each other therefore
  show no evidence of a factor, whatever their total does.

Loadings are shrunk to one that they have in common, and that one to 1.

Everything here is post-processing of releases.
Source: our own; least squares with forgetting, and shrinkage as in a random-coefficient model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.adaptive.kalman import single
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.arrays import Floats, Singles

# Variance of the loadings around the common one, and of the common one around 1.
SPREAD, AROUND = 0.1, 0.02
# The weight of a release after the next release, relative to that of the next one.
MEMORY = 0.998
# The largest loading.
LARGEST = 2.0
# A forecast error counts up to this many standard deviations.
TAIL = 2.0
_LEAST = 1e-9


@dataclass(frozen=True, eq=False)
class Lesson:
    """What a release shows of the loadings; arrays have shape (d,)."""

    away: Floats
    """Level times (ratio - 1): what a loading of 1 adds to the forecast if the level stays."""
    scale: Floats
    """What the level was multiplied by."""
    missed: Floats
    """Release less forecast."""
    variance: Floats
    """Variance of `missed`."""
    itself: Floats
    """Covariance of `missed` and the lever that arises because the bin is a part of the total."""
    gain: Floats
    """The part of `missed` / `scale` that the level took over, from 0 to 1."""
    able: npt.NDArray[np.bool_]
    """Whether the bin learns: not after a jump."""


@dataclass
class Loadings:
    """What is known of the loadings; arrays have shape (d,)."""

    information: Singles
    """Precision of each loading, from the releases alone."""
    product: Singles
    """That precision times the loading."""
    of_level: Singles
    """Derivative of the level with respect to the loading."""
    known: tuple[Floats, Floats] | None = field(default=None, init=False)
    """What :meth:`estimates` returned last: not saved."""

    SCHEMA = state_codec.record_schema(
        "Loadings", information="bytes", product="bytes", of_level="bytes"
    )

    @classmethod
    def start(cls, bins: int) -> Loadings:
        """Nothing known."""
        return cls(*(np.zeros(bins, np.float32) for _ in range(3)))

    def record(self) -> dict[str, Any]:
        """Avro record, under `SCHEMA`."""
        parts = self.information, self.product, self.of_level
        names = "information", "product", "of_level"
        return {name: part.tobytes() for name, part in zip(names, parts, strict=True)}

    @classmethod
    def read(cls, written: dict[str, Any]) -> Loadings:
        """The loadings of a record."""
        return cls(**{name: np.frombuffer(part, np.float32) for name, part in written.items()})

    def _common(self) -> tuple[float, float]:
        """The precision of the common loading, from the releases alone, and that times it."""
        known = 1 + SPREAD * self.information.astype(np.float64)
        return float((self.information / known).sum()), float((self.product / known).sum())

    @property
    def evidence(self) -> float:
        """How far the common loading is above 0, in standard errors."""
        precision, product = self._common()
        return product / max(precision, _LEAST) ** 0.5

    def estimates(self) -> tuple[Floats, Floats]:
        """The loadings and their variances, both of shape (d,)."""
        if self.known is None:
            precision, product = self._common()
            common = (product + 1 / AROUND) / (precision + 1 / AROUND)
            variance = 1 / (self.information.astype(np.float64) + 1 / SPREAD)
            each = (self.product + common / SPREAD) * variance
            self.known = np.minimum(np.maximum(each, 0.0), LARGEST), variance
        return self.known

    def lever(self, away: Floats, scale: Floats) -> Floats:
        """What 1 more of the loading adds to a forecast, the level's response included."""
        return np.asarray(away + scale * self.of_level)

    def learn(self, seen: Lesson, loading: Floats) -> None:
        """Learn from a release.

        Args:
            seen: what it shows.
            loading: what its forecast was made with, shape (d,).
        """
        lever = self.lever(seen.away, seen.scale)
        reach = TAIL * np.sqrt(seen.variance)
        missed = np.minimum(np.maximum(seen.missed, -reach), reach)
        product = lever * (missed + loading * lever) - seen.itself
        more, able = MEMORY * self.information, seen.able
        self.information = single(more + np.where(able, lever**2 / seen.variance, 0))
        kept = MEMORY * self.product
        self.product = single(kept + np.where(able, product / seen.variance, 0))
        absorbed = (1 - seen.gain) * self.of_level - seen.gain * seen.away / seen.scale
        self.of_level = single(absorbed)
        self.known = None

    def move(self, away: Floats, scale: Floats) -> None:
        """Go on with levels that are multiplied by a factor.

        Args:
            away: what a loading of 1 more adds to each level, shape (d,).
            scale: the factors, shape (d,).
        """
        self.of_level = single(scale * self.of_level + away)
