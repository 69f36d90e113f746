"""The expected cost of jumps that are not detected at once, estimated from earlier jumps.

A jump is a shift of level or slope. It is detected by a look, if it is large compared with the
look's noise, or by the next release. Until then, the error of every slot is the size of the jump.
How many slots that takes follows from how often there are looks and releases, and from the
probability that one of them detects a jump of this size. So for each earlier jump, the cost with
other looks and other gaps can be computed. A plan weighs this cost against the budget that looks
take from releases.

Sizes of jumps are known from releases: everything here is post-processing of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.adaptive import filter_bank
from streamveil.mechanisms.adaptive.gap_errors import GAPS, SUM
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.arrays import Floats

# How much of the gate's share, and of the reserve, may be kept for jumps.
ALERTS = np.array([0.125, 0.25, 0.5, 1.0, 1.5, 2.0])
# Slots that may be from one look to the next.
WATCHES = np.array([1, 2, 4, 8, 16])
# An alarm is a deviation this many noise scales, and standard deviations, above the expected one.
ALARM = 2.2
VARIES = 3.0
# Prior: `WARY` of a jump, `CLEARLY` times as large as the least that looks with the gate's full
# share detect, but no larger than all counts together. If these are below the noise of looks, a
# larger jump is not plausible, and watching for it takes budget from releases.
WARY, CLEARLY = 0.01, 2.0
# Prior for the rate of jumps: half a jump in this many slots.
CALM, HALF = 200, 0.5
# Jumps are assumed to be at least this many slots apart on average. If more are detected, they are
# a quick drift or a cycle, and a lower threshold would detect still more.
OFTEN = 250
# Number of jumps that are remembered.
MOST = 8
# Slots after which filters have followed a jump that was not detected.
FOLLOWED = 32
# Additional slots after a sum: it shows a part of a jump, and the next release shows the rest.
PARTLY = 1.0
_CHANCES = np.linspace(0, 1, 17)


@dataclass
class Jumps:
    """The last jumps, newest last, and how many there were."""

    seen: int = 0
    sizes: list[float] = field(default_factory=list)
    """How much counts moved, over all bins."""
    squares: list[float] = field(default_factory=list)
    """Sum of their squares."""

    SCHEMA = state_codec.record_schema(
        "Jumps",
        seen="long",
        sizes={"type": "array", "items": "double"},
        squares={"type": "array", "items": "double"},
    )

    def record(self) -> dict[str, Any]:
        """Avro record, under `SCHEMA`."""
        return dict(vars(self))

    def rarity(self, slots: int) -> float:
        """Log of the mean slots from one jump to the next, estimated after `slots` slots."""
        return float(np.log(max((slots + CALM) / (self.seen + HALF), OFTEN)))

    def note(self, moved: Floats) -> None:
        """Remember a jump that moved the counts of bins by `moved`, shape (d,)."""
        self.seen += 1
        self.sizes = [*self.sizes, float(np.abs(moved).sum())][-MOST:]
        self.squares = [*self.squares, float((moved**2).sum())][-MOST:]


class Watch:
    """What jumps cost until they are seen, at each of some alerts.

    Args:
        jumps: so far.
        slots: in which they were seen; later it may be set to more.
        look_scale: noise scale of a look with the gate's full share of one slot.
        spread: standard deviation of what a look sees without a jump.
        blur: variance of a count without noise.
        bins: how many.
        noise: of releases at each of `ALERTS`, in parts of what it is.
        alert: the one that is settled; None for any.
        largest: size that a jump is assumed to have at most, before any was seen.
    """

    def __init__(
        self,
        jumps: Jumps,
        slots: int,
        look_scale: float,
        spread: float,
        blur: float,
        bins: int,
        noise: Floats,
        alert: float | None = None,
        *,
        largest: float,
    ) -> None:
        self.slots = slots
        self.chosen = slice(None)
        if alert is not None:
            place = ALERTS.tolist().index(alert)
            self.chosen = slice(place, place + 1)
        self.alerts: Floats = ALERTS[self.chosen]
        self.noise = noise
        likely = min(CLEARLY * (ALARM * look_scale + VARIES * spread), largest)
        if not np.isfinite(look_scale):
            likely = 0.0
        # What one bin gains another loses.
        self._sizes = np.array([likely, *jumps.sizes])
        self._squares = np.array([likely**2 / 2, *jumps.squares])
        weights = np.full(len(self._sizes), jumps.seen / max(len(jumps.sizes), 1))
        weights[0] = WARY
        self._weighed = weights * self._squares
        self._blur, self._bins, self._jumps = blur, bins, jumps
        self._known: tuple[tuple[int, bytes, bytes], Floats] | None = None
        scale = look_scale / (self.alerts[:, None] * WATCHES)
        above = (self._sizes[:, None, None] - VARIES * spread) / scale - ALARM
        shown = np.maximum(_beyond(above) - _BY_CHANCE, 0.0) / (1 - _BY_CHANCE)
        missed = _AFTER_LOOKS.take(_place(shown), axis=0)
        self._missed = missed.reshape(len(self._sizes), -1, FOLLOWED)

    def costs(self, kind: int, noise: Floats) -> tuple[Floats, npt.NDArray[np.int64]]:
        """Expected squared error per slot, over all bins, until jumps are seen.

        Args:
            kind: what gaps end with.
            noise: variance of the noise of a count by gap, shape (gaps,).

        Returns:
            (errors, slots from look to look), by alert and gap, of shape (alerts, gaps).
        """
        rarity = self._jumps.rarity(self.slots)
        reach = filter_bank.reach(self._bins, rarity, np.array(self._blur), noise) ** 0.5
        key = kind, noise.tobytes(), reach.tobytes()
        if self._known is None or self._known[0] != key:
            typical = self._squares / np.maximum(self._sizes, 1e-9)
            visible = _beyond((typical[:, None] - reach) / np.sqrt(noise / 2))
            hidden = _AFTER_RELEASES.take(_place(visible), axis=0)
            delay = (self._missed @ hidden.transpose(0, 2, 1)).reshape(len(self._sizes), -1)
            self._known = key, delay + PARTLY * (kind == SUM)
        every = self._weighed / (self.slots + CALM) @ self._known[1]
        cost = every.reshape(len(self.alerts), len(WATCHES), len(GAPS))
        best = cost.argmin(axis=1)
        return cost.min(axis=1), WATCHES[best]


def _beyond(above: Floats) -> Floats:
    """Probability that a noisy value passes a threshold, `above` noise scales below the value."""
    tail = np.exp(-np.abs(above)) / 2
    return np.where(above > 0, 1 - tail, tail)


def _place(chances: Floats) -> npt.NDArray[np.int64]:
    """Rows of a table by trial and chance, for chances by trial: shape (..., trials)."""
    place = np.rint(chances * (len(_CHANCES) - 1)).astype(np.int64)
    return place + np.arange(chances.shape[-1]) * len(_CHANCES)


def _survival(steps: npt.NDArray[np.int64]) -> Floats:
    """The chance that a jump is still not seen after 1, 2, ... slots.

    By slots from one trial to the next, and within that by the chance of each: shape
    (steps * chances, FOLLOWED).
    """
    whole, begun = np.divmod(np.arange(1, FOLLOWED + 1), steps[:, None])
    hidden = 1 - _CHANCES[:, None]
    part = begun / steps[:, None]
    chances: Floats = hidden ** whole[:, None] * (1 - part[:, None] * _CHANCES[:, None])
    return chances.reshape(-1, FOLLOWED)


_AFTER_LOOKS, _AFTER_RELEASES = _survival(WATCHES), _survival(GAPS)
_BY_CHANCE = float(_beyond(np.array(-ALARM)))
