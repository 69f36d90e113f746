"""Revisions: what later releases tell of earlier slots, by smoothing over a fixed lag.

All of it is post-processing of releases, as the filters are: it costs no budget, and the first
release of a slot stays as it is. A slot is revised once, so many slots later. The members'
recursion is run again over the releases from that slot on, and back: the adjoint of each innovation
is carried to the slot, and corrects level and variance there. Members are mixed as they are
believed in when the slot is revised.

A release measures a slot, or the mean of all slots since the release before. Between two releases
means and covariances follow in closed form, so only releases are remembered: the members' beliefs
after one of them, and what the others measured.

Source: Bierman, Fixed interval smoothing with discrete measurements, International Journal of
Control 18 (1973): the modified Bryson-Frazier form, which inverts no covariance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.adaptive.filter_bank import (
    BEND,
    DRIFT,
    MEMBERS,
    SLOPE_OF_JUMP,
    TRENDING,
    WHITE,
    BankState,
)
from streamveil.mechanisms.core import state_codec

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]

# Places in a state: the level, the slope, the sum of the levels since the last release.
LEVEL, SLOPE, SUM = range(3)
# What is kept of beliefs: means of level and slope, their variances and covariance.
_KEPT = ("level", "slope", "level_var", "covariance", "slope_var")


@dataclass(frozen=True)
class Measured:
    """A release as the bank took it; figures of bins have the shape (d,)."""

    slot: int
    spans: int
    """Slots whose mean it measures, up to its own."""
    gap: int
    """Slots since the release before; 0 for the first one."""
    counts: Singles
    error: Singles
    """Variance of all its errors."""
    opened: Singles
    """Variance by which a jump opened the level, 0 without one."""
    scale: Singles
    """The bank's, up to this slot."""

    SCHEMA: ClassVar[state_codec.Schema] = state_codec.record_schema(
        "Measured",
        **dict.fromkeys(("slot", "spans", "gap"), "long"),
        **dict.fromkeys(("counts", "error", "opened", "scale"), "bytes"),
    )


@dataclass(frozen=True)
class _Beliefs:
    """Of all members: means of the state, (3, members, d), and covariances, (3, 3, members, d)."""

    mean: Floats
    covariance: Floats

    @classmethod
    def of(cls, kept: Singles) -> _Beliefs:
        """What is remembered: after a release, where the sum is 0."""
        level, slope, level_var, both, slope_var = kept.astype(np.float64)
        none = np.zeros_like(level)
        rows = [[level_var, both, none], [both, slope_var, none], [none, none, none]]
        return cls(np.array([level, slope, none]), np.array(rows))

    @property
    def kept(self) -> Singles:
        """What is remembered after a release, shape (5, members, d)."""
        mean, covariance = self.mean, self.covariance
        return np.array(
            [
                mean[LEVEL],
                mean[SLOPE],
                covariance[LEVEL, LEVEL],
                covariance[LEVEL, SLOPE],
                covariance[SLOPE, SLOPE],
            ],
            np.float32,
        )

    def after(self, slots: int, scale: Floats) -> _Beliefs:
        """Some slots later, without a release."""
        moves = _moves(slots)
        # Steps of level and slope in the last slot, in the one before it, and so on.
        age = np.arange(slots)
        one = np.ones(slots)
        of_level = np.array([one, 0 * one, age + 1])
        of_slope = np.array([age, one, age * (age + 1) / 2])
        drift, bend = of_level @ of_level.T, of_slope @ of_slope.T
        steps = drift[:, :, None, None] * DRIFT + bend[:, :, None, None] * BEND
        return _Beliefs(_times(moves, self.mean), _between(moves, self.covariance) + steps * scale)

    def opened(self, release: Measured) -> _Beliefs:
        """With the uncertainty that a jump brought."""
        if not release.opened.any():
            return self
        jump = release.opened.astype(np.float64)
        covariance = self.covariance.copy()
        covariance[LEVEL, LEVEL] += jump
        if release.gap:
            bent = SLOPE_OF_JUMP * TRENDING * jump / release.gap
            covariance[LEVEL, SLOPE] += bent
            covariance[SLOPE, LEVEL] += bent
            covariance[SLOPE, SLOPE] += bent / release.gap
        if release.spans > 1:
            covariance[LEVEL, SUM] += release.spans * jump
            covariance[SUM, LEVEL] += release.spans * jump
            covariance[SUM, SUM] += release.spans**2 * jump
        return _Beliefs(self.mean, covariance)


def _moves(slots: int) -> Floats:
    """What a state becomes some slots later, a matrix (3, 3)."""
    return np.array([[1, slots, 0], [0, 1, 0], [slots, slots * (slots + 1) / 2, 1]], np.float64)


def _times(matrix: Floats, states: Floats) -> Floats:
    product: Floats = np.tensordot(matrix, states, 1)
    return product


def _between(matrix: Floats, covariance: Floats) -> Floats:
    """The product matrix @ covariance @ matrix.T for each member and bin."""
    return np.tensordot(matrix, np.tensordot(matrix, covariance, 1), (1, 1)).swapaxes(0, 1)


@dataclass(frozen=True)
class _Update:
    """What a release did to the members, arrays of shape (members, d) or (3, members, d)."""

    release: Measured
    pull: Floats
    """Innovation over its variance."""
    weight: Floats
    """One over that variance."""
    gain: Floats

    @property
    def place(self) -> int:
        """What of the state is measured."""
        return LEVEL if self.release.spans == 1 else SUM


def _updated(before: _Beliefs, release: Measured) -> tuple[_Beliefs, _Update]:
    """Beliefs after a release, from those of its slot before it."""
    spans = release.spans
    place = LEVEL if spans == 1 else SUM
    blurred = release.error + WHITE * release.scale / spans
    measured = before.covariance[:, place] / spans
    weight = 1 / (measured[place] / spans + blurred)
    missed = release.counts - before.mean[place] / spans
    gain = measured * weight
    gain[SUM] = 0  # it begins anew
    mean = before.mean + gain * missed
    mean[SUM] = 0
    covariance = before.covariance - gain[:, None] * measured[None]
    covariance[SUM] = covariance[:, SUM] = 0
    if spans == 1:  # a product: what is left may be much smaller than what is taken off
        kept = blurred * weight
        covariance[LEVEL] = before.covariance[LEVEL] * kept
        covariance[LEVEL, SUM] = 0
        covariance[SLOPE, LEVEL] = covariance[LEVEL, SLOPE]
    for variance in (covariance[LEVEL, LEVEL], covariance[SLOPE, SLOPE]):
        np.maximum(variance, 0, out=variance)
    return _Beliefs(mean, covariance), _Update(release, missed * weight, weight, gain)


@dataclass(frozen=True)
class _Adjoint:
    """How later releases pull at the state of a slot."""

    pull: Floats
    """How far, shape (3, members, d)."""
    firmness: Floats
    """How firmly, shape (3, 3, members, d)."""

    @classmethod
    def none(cls, beliefs: _Beliefs) -> _Adjoint:
        """Of the last release on."""
        return cls(np.zeros_like(beliefs.mean), np.zeros_like(beliefs.covariance))

    def before(self, update: _Update) -> tuple[_Adjoint, _Own]:
        """As of the moment before a release, and how it pulls at what it measures."""
        place, share = update.place, 1 / update.release.spans
        held = (self.firmness * update.gain[None]).sum(axis=1)
        own = _Own(
            update.pull - (update.gain * self.pull).sum(axis=0),
            update.weight + (update.gain * held).sum(axis=0),
            -held,
        )
        pull, firmness = self.pull.copy(), self.firmness.copy()
        # The sum begins anew with a release: nothing later pulls at it.
        pull[SUM] = 0
        firmness[SUM] = firmness[:, SUM] = 0
        held[SUM] = 0
        pull[place] += share * own.pull
        firmness[:, place] -= share * held
        firmness[place] -= share * held
        firmness[place, place] += share**2 * own.firmness
        own.tie[SUM] = 0
        own.tie[place] += share * own.firmness
        return _Adjoint(pull, firmness), own

    def earlier(self, slots: int) -> _Adjoint:
        """As of some slots before, without a release."""
        back = _moves(slots).T
        return _Adjoint(_times(back, self.pull), _between(back, self.firmness))


@dataclass(frozen=True)
class _Own:
    """How a release and all later ones pull at what it measures, and how firmly."""

    pull: Floats
    firmness: Floats
    tie: Floats
    """Firmness between that and the state, (3, members, d)."""


def smoothed(
    kept: Singles, since: int, slot: int, releases: Sequence[Measured], scale: Floats
) -> tuple[Floats, Floats]:
    """Mean and variance of a slot's counts by every member, both of shape (members, d).

    Args:
        kept: beliefs after the release of slot `since`, or before the first slot.
        since: before `slot`.
        slot: whose counts.
        releases: all that came after `since`, in order, none between it and `slot`.
        scale: the bank's after the last of them, shape (d,).
    """
    now = releases[0].scale.astype(np.float64) if releases else scale
    begun = _Beliefs.of(kept)
    there = begun.after(slot - since, now)
    white = np.broadcast_to(WHITE * now, there.mean[LEVEL].shape)
    if not releases:
        return there.mean[LEVEL], there.covariance[LEVEL, LEVEL] + white
    updates: list[_Update] = []
    beliefs, at = begun, since
    for release in releases:
        before = beliefs.after(release.slot - at, release.scale.astype(np.float64)).opened(release)
        if release.slot == slot:
            there = before
        beliefs, update = _updated(before, release)
        updates.append(update)
        at = release.slot
    adjoint = _Adjoint.none(beliefs)
    for i in range(len(updates) - 1, 0, -1):
        adjoint, _ = adjoint.before(updates[i])
        adjoint = adjoint.earlier(updates[i].release.slot - updates[i - 1].release.slot)
    first = releases[0]
    adjoint, own = adjoint.before(updates[0])
    adjoint = adjoint.earlier(first.slot - slot)
    covered = slot > first.slot - first.spans
    share = white / first.spans if covered else np.zeros_like(white)
    spread = there.covariance[LEVEL]
    tie = _times(_moves(first.slot - slot).T, own.tie)
    mean = there.mean[LEVEL] + (spread * adjoint.pull).sum(axis=0) + share * own.pull
    told = (spread[:, None] * spread[None] * adjoint.firmness).sum(axis=(0, 1))
    told += 2 * share * (spread * tie).sum(axis=0) + share**2 * own.firmness
    return mean, np.maximum(spread[LEVEL] + white - told, 0)


@dataclass
class Ring:
    """What is remembered of slots that are still to be revised.

    Figures are 32-bit floats, in memory as in a saved state: a restart changes nothing.
    """

    next_slot: int
    """The slot that is revised next."""
    since: int
    """The slot of the last release before it, or the one before the first slot."""
    kept: Singles
    """The members' beliefs after it, shape (5, members, d)."""
    releases: list[Measured] = field(default_factory=list)
    """All later ones."""
    last_slot: int = 0
    """The last slot that was released."""
    most: int = 0
    """The largest count that there can be, as of that slot."""
    doubt: Singles = field(default_factory=lambda: np.zeros(0, np.float32))
    """Variance of what may remain of a bias of all releases, as of that slot, shape (d,)."""

    SCHEMA: ClassVar[state_codec.Schema] = state_codec.record_schema(
        "Ring",
        next_slot="long",
        since="long",
        kept="bytes",
        last_slot="long",
        most="long",
        doubt="bytes",
        releases={"type": "array", "items": Measured.SCHEMA},
    )

    @classmethod
    def start(cls, state: BankState, slot: int) -> Ring:
        """Of a bank that has released nothing since the slot before this one."""
        return cls(slot, slot - 1, np.array([getattr(state, name) for name in _KEPT], np.float32))

    def note(
        self,
        slot: int,
        spans: int,
        gap: int,
        counts: Floats,
        error: Floats,
        opened: Floats,
        scale: Floats,
    ) -> None:
        """Remember a release: see :class:`Measured`."""
        figures = (each.astype(np.float32) for each in (counts, error, opened, scale))
        self.releases.append(Measured(slot, spans, gap, *figures))

    def passed(self, slot: int, most: int, doubt: Floats) -> None:
        """A slot was released."""
        self.last_slot, self.most, self.doubt = slot, most, doubt.astype(np.float32)

    def revise(self, weights: Floats, scale: Floats) -> tuple[int, Floats, Floats]:
        """The next slot, and mean and variance of its counts, both of shape (d,).

        Args:
            weights: belief in each member in each bin, shape (members, d).
            scale: the bank's now, shape (d,).
        """
        slot = self.next_slot
        each, spread = smoothed(self.kept, self.since, slot, self.releases, scale)
        mean = (weights * each).sum(axis=0)
        variance = (weights * (spread + (each - mean) ** 2)).sum(axis=0)
        self.next_slot += 1
        if self.releases and self.releases[0].slot == slot:
            self._pass(self.releases.pop(0))
        return slot, mean, variance

    def _pass(self, release: Measured) -> None:
        """Go on from the beliefs after a release."""
        scale = release.scale.astype(np.float64)
        before = _Beliefs.of(self.kept).after(release.slot - self.since, scale).opened(release)
        self.kept, self.since = _updated(before, release)[0].kept, release.slot

    def record(self) -> dict[str, Any]:
        """Of `SCHEMA`."""
        releases = [_written(release) for release in self.releases]
        return {**_written(self), "releases": releases}

    @classmethod
    def read(cls, record: dict[str, Any], bins: int) -> Ring:
        """What :meth:`record` gave."""
        ring = cls(**_read(record))
        ring.kept = ring.kept.reshape(len(_KEPT), MEMBERS, bins)
        ring.releases = [Measured(**_read(one)) for one in record["releases"]]
        return ring


def _written(what: Ring | Measured) -> dict[str, Any]:
    return {
        name: value.tobytes() if isinstance(value, np.ndarray) else value
        for name, value in vars(what).items()
    }


def _read(record: dict[str, Any]) -> dict[str, Any]:
    return {
        name: np.frombuffer(value, np.float32) if isinstance(value, bytes) else value
        for name, value in record.items()
    }
