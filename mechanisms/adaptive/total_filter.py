"""A filter of the total of all bins: its level, its season and the deviation of each slot.

The total is given relative to its usual size. Small Kalman filters follow it side by side. Each
assumes another speed of the level, another size of the deviations, and a season or none. They are
mixed by how well they predicted.

If the total is a result of its own, it is followed where it jumps: after a total that is much
further from its forecast than the filters assume, as after a jump or on a holiday, each of them is
as uncertain as the total is far away. A total that only helps to estimate the bins is not followed
there: with bursts of a day, which are no change of the level, errors of the bins grew by 27 %
(stars of benchmarks/factor.py).

Everything here is post-processing of releases.
Source: our own; Kalman, "A new approach to linear filtering and prediction problems" (1960).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from streamveil.mechanisms.adaptive.filter_bank import RARE, reach, surprisal
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.arrays import Floats

# What members assume: variance of the level's step, standard deviation of a slot's own deviation,
# and of the season.
DRIFTS, DEVIATIONS, SEASONS = (1e-5, 1e-3), (0.02, 0.06, 0.2), (0.0, 0.2)
# Variance of the step of a phase from season to season, relative to that of the season.
SEASON_STEP = 1e-4
# The weight of a prediction after the next observation, relative to that of the next one.
MEMORY = 0.985
# Power of the likelihood of a member in the stated variance of a ratio.
CAUTION = 0.5
# Variance of the level before any observation.
LEVEL = 1.0
# No total is taken to be known better: records round to single precision.
CLOSEST = 1e-6
# No jump is taken for larger, in usual sizes: covariances must stay exact enough.
LARGEST_JUMP = 100.0
# Places in a state: the level, the slot's own deviation, and the first phase of the season.
_LEVEL, _DEVIATION, _SEASON = 0, 1, 2


class Ratio(NamedTuple):
    """The total of a slot, relative to its usual size."""

    mean: float
    variance: float


class TotalModel:
    """The members; with `phases` slots in a season, or 0 for none.

    Attributes have shape (members,). If the model `jumps`, it follows a total that jumps.
    """

    def __init__(self, phases: int, jumps: bool = False) -> None:
        self.phases = phases
        self.jumps = jumps
        each = product(DRIFTS, DEVIATIONS, SEASONS if phases else (0.0,))
        self.drift, deviation, season = np.array(list(each)).T
        self.deviation, self.season = deviation**2, season**2
        self._selectors = np.zeros((max(phases, 1), _SEASON + phases))
        self._selectors[:, [_LEVEL, _DEVIATION]] = 1.0
        self._selectors[:phases, _SEASON:] = np.eye(phases)
        self._mean = self._selectors.mean(axis=0)
        self._mean[_DEVIATION] = 0.0

    def start(self) -> TotalFilter:
        """Before any observation."""
        members, size = len(self.drift), _SEASON + self.phases
        mean, covariance = np.zeros((members, size)), np.zeros((members, size, size))
        mean[:, _LEVEL], covariance[:, _LEVEL, _LEVEL] = 1.0, LEVEL
        places = np.arange(_SEASON, size)
        covariance[:, places, places] = self.season[:, None]
        return TotalFilter(mean, covariance, np.zeros(members))

    def _sums(self, slot: int) -> Floats:
        """What is added up to the ratio of a slot: 1 at these places, shape (2 + phases,)."""
        return self._selectors[slot % len(self._selectors)]

    def advance(self, state: TotalFilter, slot: int) -> None:
        """Go on to a slot, the one after the last."""
        covariance = state.covariance
        covariance[:, _LEVEL, _LEVEL] += self.drift
        state.mean[:, _DEVIATION] = 0.0
        covariance[:, _DEVIATION, :] = covariance[:, :, _DEVIATION] = 0.0
        covariance[:, _DEVIATION, _DEVIATION] = self.deviation
        if self.phases:
            place = _SEASON + slot % self.phases
            covariance[:, place, place] += SEASON_STEP * self.season

    def observe(self, state: TotalFilter, slot: int, seen: Ratio) -> float:
        """Learn from a noisy total of the slot.

        Returns how much the ratio of the slot follows it, from 0 to 1.
        """
        sums, blur = self._sums(slot), max(seen.variance, CLOSEST)
        missed = seen.mean - state.mean @ sums
        seen_with = state.covariance @ sums
        total = np.maximum(seen_with @ sums, 0.0) + blur
        scores = MEMORY * state.scores - surprisal(missed, total)
        if self.jumps:
            foreseen = self.ratio(state, slot)
            surprise = (seen.mean - foreseen.mean) ** 2
            if surprise > float(reach(1, RARE, np.array(foreseen.variance), blur)):
                self._open(state, sums, surprise)
                seen_with = state.covariance @ sums
                total = np.maximum(seen_with @ sums, 0.0) + blur
        state.scores = scores - scores.max()
        gain = seen_with / total[:, None]
        state.mean = state.mean + gain * missed[:, None]
        # A product in either order, so that the covariance stays symmetric to the last bit.
        taken = seen_with[:, :, None] * seen_with[:, None, :]
        state.covariance = state.covariance - taken / total[:, None, None]
        return float(state.weights @ (gain @ sums))

    def _open(self, state: TotalFilter, sums: Floats, surprise: float) -> None:
        """Expect a jump of this squared size, because a total is so far from its forecast.

        The level may have jumped, the season may be different, or the slot alone may deviate. The
        next totals show which. Until then, each is as likely as its variance was large.
        """
        places = np.arange(len(sums))
        doubted = np.maximum(state.covariance[:, places, places], 0.0) * sums
        parts = doubted / np.maximum(doubted.sum(axis=1, keepdims=True), CLOSEST)
        state.covariance[:, places, places] += min(surprise, LARGEST_JUMP**2) * parts

    def ratio(self, state: TotalFilter, slot: int) -> Ratio:
        """What is known of a slot."""
        sums, weights = self._sums(slot), state.weights
        each = state.mean @ sums
        variance = np.maximum(state.covariance @ sums @ sums, 0.0)
        mean = float(weights @ each)
        return Ratio(mean, float(weights @ (variance + (each - mean) ** 2)))

    def stated(self, state: TotalFilter, slot: int) -> Ratio:
        """The ratio of a slot, with the variance for its standard error.

        Because of noise, the size of the deviations of slots is uncertain, and the most likely size
        is too small as often as too large. Each filter is therefore weighted by the square root of
        its likelihood.
        """
        sums, weights = self._sums(slot), state.weights
        each = state.mean @ sums
        mean = float(weights @ each)
        variance = np.maximum(state.covariance @ sums @ sums, 0.0)
        cautious = weights**CAUTION
        cautious = cautious / cautious.sum()
        return Ratio(mean, float(cautious @ (variance + (each - mean) ** 2)))

    def size(self, state: TotalFilter) -> Ratio:
        """What is known of the ratio of a slot without deviation, over all phases of the season."""
        each, weights = state.mean @ self._mean, state.weights
        mean = float(weights @ each)
        variance = np.maximum(state.covariance @ self._mean @ self._mean, 0.0) + (each - mean) ** 2
        return Ratio(mean, float(weights @ variance))

    def swing(self, state: TotalFilter) -> float:
        """Variance of the ratio from slot to slot: of the season and of the deviations."""
        seasons = state.mean @ self._selectors.T
        slots = seasons.shape[1]
        away = seasons - seasons.sum(axis=1, keepdims=True) / slots
        return float(state.weights @ ((away**2).sum(axis=1) / slots + self.deviation))

    def renew(self, state: TotalFilter, size: float) -> None:
        """Go on with another usual size, relative to the one before.

        Phases of the season become deviations from their mean, which goes to the level. They stay
        as they are: a season is relative to the size.
        """
        move = np.eye(len(self._mean))
        move[_LEVEL] = self._mean / size
        move[_SEASON:, _SEASON:] -= self._mean[_SEASON:]
        state.mean = state.mean @ move.T
        moved = move @ state.covariance @ move.T
        state.covariance = (moved + moved.transpose(0, 2, 1)) / 2

    def left(self, state: TotalFilter, blur: Floats) -> Floats:
        """Variance of the ratio after observations with errors of this variance, once settled."""
        drift, deviation, error = self.drift, self.deviation, blur[..., None]
        prior = deviation + drift / 2 + np.sqrt(drift * (drift / 4 + deviation + error))
        variance: Floats = (prior * error / (prior + error)) @ state.weights
        return variance


@dataclass
class TotalFilter:
    """What the members believe of the present slot."""

    mean: Floats
    """Of level, deviation and the phases of the season, shape (members, 2 + phases)."""
    covariance: Floats
    """Shape (members, 2 + phases, 2 + phases)."""
    scores: Floats
    """Discounted log-likelihood, 0 for the best: shape (members,)."""

    SCHEMA = state_codec.record_schema(
        "TotalFilter", mean="bytes", covariance="bytes", scores="bytes"
    )

    @property
    def weights(self) -> Floats:
        """Belief in each member, shape (members,)."""
        weights = np.exp(self.scores)
        return np.asarray(weights / weights.sum())

    def round(self) -> None:
        """Round to the precision of records, so that a state that is read again is the same."""
        for name in ("mean", "covariance", "scores"):
            setattr(self, name, getattr(self, name).astype(np.float32).astype(np.float64))

    def record(self) -> dict[str, Any]:
        """Avro record, under `SCHEMA`: of covariances, one of each pair."""
        rows, columns = np.triu_indices(self.covariance.shape[1])
        half = self.covariance[:, rows, columns]
        parts = {"mean": self.mean, "covariance": half, "scores": self.scores}
        return {name: part.astype("<f4").tobytes() for name, part in parts.items()}

    def read(self, written: dict[str, Any]) -> None:
        """Read a record into a fresh filter of the same model.

        Raises ConfigurationError for another number of members.
        """
        stored = {name: np.frombuffer(part, "<f4") for name, part in written.items()}
        state_codec.check_length(stored["scores"], len(self.scores), "members")
        self.scores = stored["scores"].astype(np.float64)
        self.mean = stored["mean"].astype(np.float64).reshape(self.mean.shape)
        rows, columns = np.triu_indices(self.covariance.shape[1])
        half: Floats = stored["covariance"].astype(np.float64).reshape(-1, rows.size)
        for place, (row, column) in enumerate(zip(rows.tolist(), columns.tolist(), strict=True)):
            self.covariance[:, row, column] = self.covariance[:, column, row] = half[:, place]
