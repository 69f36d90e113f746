"""Revisions: what later releases tell of earlier slots, by smoothing over a fixed lag.

All of it is post-processing of releases, as the filters are: it costs no budget, and the first
release of a slot stays as it is. A slot is revised once, so many slots later. The members'
recursion is run again over the releases from that slot on, and back: the adjoint of each innovation
is carried to the slot, and corrects level and slope there. Members are mixed as they are believed
in when the slot is revised.

A release measures a mean of the slots since the one before. Between two releases means and
covariances follow in closed form, so only releases are remembered: the members' beliefs after one
of them, and what the others measured.

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
    SLOPED,
    TRENDING,
    WHITE,
    BankState,
)
from streamveil.mechanisms.core import state_codec

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]

# Places in a state: the level, the slope, and what has been measured since the last release: the
# sum of the levels, each times the share that its slot has in the next release.
LEVEL, SLOPE, SUM = range(3)


@dataclass(frozen=True)
class Measured:
    """A release as the bank took it; figures of bins have the shape (d,)."""

    slot: int
    shares: Singles
    """What each slot since the release before contributes, up to its own, shape (slots,); none of
    a further release of a slot, which measures that slot alone."""
    counts: Singles
    error: Singles
    """Variance of all its errors."""
    opened: Singles
    """Variance by which a jump opened the level, 0 without one."""
    scale: Singles
    """The bank's, up to this slot."""

    SCHEMA: ClassVar[state_codec.Schema] = state_codec.record_schema(
        "Measured",
        slot="long",
        **dict.fromkeys(("shares", "counts", "error", "opened", "scale"), "bytes"),
    )

    @property
    def measures(self) -> Floats:
        """What of a state is measured, shape (3,)."""
        return np.array([0.0 if len(self.shares) else 1.0, 0.0, 1.0])

    @property
    def white(self) -> Floats:
        """Variance that the slots' own deviations give to it, shape (members, d)."""
        shares = self.shares.astype(np.float64)
        return (float(shares @ shares) if len(shares) else 1.0) * WHITE * self.scale

    def share(self, slot: int) -> float:
        """What a slot since the release before contributes."""
        return float(self.shares[slot - self.slot - 1]) if len(self.shares) else 1.0


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

    def after(self, shares: Floats, scale: Floats) -> _Beliefs:
        """Some slots later, which have these shares in the next release, shape (slots,)."""
        slots = len(shares)
        moves, one = _moves(shares), np.ones(slots)
        # What a step of the level, or of the slope, in each slot adds up to.
        by_step = np.cumsum(shares[::-1])[::-1]
        by_bend = np.cumsum(by_step[::-1])[::-1] - by_step
        of_level = np.array([one, 0 * one, by_step])
        of_slope = np.array([np.arange(slots)[::-1], one, by_bend])
        drift, bend = of_level @ of_level.T, of_slope @ of_slope.T
        steps = drift[:, :, None, None] * DRIFT + bend[:, :, None, None] * BEND
        return _Beliefs(_times(moves, self.mean), _between(moves, self.covariance) + steps * scale)

    def opened(self, release: Measured) -> _Beliefs:
        """With the uncertainty that a jump brought, as the bank has it."""
        if not release.opened.any():
            return self
        jump, covariance = release.opened.astype(np.float64), self.covariance.copy()
        slots = len(release.shares)
        measured = 1.0 if slots else 0.0
        covariance[LEVEL, LEVEL] += jump
        covariance[LEVEL, SUM] += measured * jump
        covariance[SUM, LEVEL] += measured * jump
        covariance[SUM, SUM] += measured * jump
        if slots:
            bent = SLOPE_OF_JUMP * TRENDING * jump / slots
            part = _moves(release.shares.astype(np.float64))[SUM, SLOPE] / slots
            covariance[LEVEL, SLOPE] += bent
            covariance[SLOPE, LEVEL] += bent
            covariance[SLOPE, SLOPE] += bent / slots
            covariance[SLOPE, SUM] += part * bent
            covariance[SUM, SLOPE] += part * bent
        return _Beliefs(self.mean, covariance)


def _moves(shares: Floats) -> Floats:
    """What a state becomes over slots with these shares, a matrix (3, 3)."""
    slots = len(shares)
    reach = float(shares @ np.arange(1, slots + 1))
    return np.array([[1, slots, 0], [0, 1, 0], [shares.sum(), reach, 1]], np.float64)


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


def _updated(before: _Beliefs, release: Measured) -> tuple[_Beliefs, _Update]:
    """Beliefs after a release, from those of its slot before it."""
    measures = release.measures
    by_state = _times(measures, before.covariance)
    weight = 1 / (_times(measures, by_state) + release.error + release.white)
    missed = release.counts - _times(measures, before.mean)
    gain = by_state * weight
    gain[SUM] = 0  # it begins anew
    mean = before.mean + gain * missed
    covariance = before.covariance - gain[:, None] * by_state[None]
    mean[SUM] = covariance[SUM] = covariance[:, SUM] = 0
    for place in (LEVEL, SLOPE):
        covariance[place, place] = np.maximum(covariance[place, place], 0)
    return _Beliefs(mean, covariance), _Update(release, missed * weight, weight, gain)


@dataclass(frozen=True)
class _Adjoint:
    """How releases from some point on pull at the state there."""

    pull: Floats
    """How far, shape (3, members, d)."""
    firmness: Floats
    """How firmly, shape (3, 3, members, d)."""

    @classmethod
    def none(cls, beliefs: _Beliefs) -> _Adjoint:
        """After the last release."""
        return cls(np.zeros_like(beliefs.mean), np.zeros_like(beliefs.covariance))

    def before(self, update: _Update) -> tuple[_Adjoint, _Own]:
        """Before a release, and how it and all later ones pull at what it measures."""
        measures = update.release.measures[:, None, None]
        # After a release the sum begins anew: nothing later pulls at what it was.
        pull, firmness = self.pull.copy(), self.firmness.copy()
        pull[SUM] = firmness[SUM] = firmness[:, SUM] = 0
        held = (firmness * update.gain[None]).sum(axis=1)
        own = update.pull - (update.gain * pull).sum(axis=0)
        firm = update.weight + (update.gain * held).sum(axis=0)
        tie = measures * firm - held
        pull += measures * own
        firmness += tie[:, None] * measures[None] - measures[:, None] * held[None]
        return _Adjoint(pull, firmness), _Own(own, firm, tie)

    def earlier(self, shares: Floats) -> _Adjoint:
        """Before some slots, which have these shares in the next release."""
        back = _moves(shares).T
        return _Adjoint(_times(back, self.pull), _between(back, self.firmness))


@dataclass(frozen=True)
class _Own:
    """How a release and all later ones pull at what it measures."""

    pull: Floats
    firmness: Floats
    """Both of shape (members, d)."""
    tie: Floats
    """Firmness between that and the state, (3, members, d)."""


def smoothed(
    kept: Singles, since: int, slot: int, releases: Sequence[Measured], scale: Floats
) -> tuple[Floats, Floats]:
    """Mean and variance of a slot's counts by every member, both of shape (members, d).

    Args:
        kept: beliefs after a release of slot `since`, or before the first slot.
        since: up to `slot`.
        slot: whose counts.
        releases: all that came after those beliefs, in order: the first of them not before `slot`.
        scale: the bank's after the last of them, shape (d,).
    """
    begun = _Beliefs.of(kept)
    if not releases:
        there = begun.after(np.zeros(slot - since), scale)
        return there.mean[LEVEL], there.covariance[LEVEL, LEVEL] + WHITE * scale
    first, updates = releases[0], []
    shares = first.shares.astype(np.float64)
    there = begun.after(shares[: slot - since], first.scale.astype(np.float64))
    if first.slot == slot:
        there = there.opened(first)
    beliefs = begun
    for release in releases:
        beliefs, update = _passed(beliefs, release)
        updates.append(update)
    adjoint = _Adjoint.none(beliefs)
    for update in reversed(updates[1:]):
        adjoint, _ = adjoint.before(update)
        adjoint = adjoint.earlier(update.release.shares.astype(np.float64))
    adjoint, own = adjoint.before(updates[0])
    left = shares[slot - since :]
    adjoint = adjoint.earlier(left)
    tie = _times(_moves(left).T, own.tie)
    white = WHITE * first.scale.astype(np.float64)
    part = first.share(slot) * white
    spread = there.covariance[LEVEL]
    mean = there.mean[LEVEL] + (spread * adjoint.pull).sum(axis=0) + part * own.pull
    told = (spread[:, None] * spread[None] * adjoint.firmness).sum(axis=(0, 1))
    told += 2 * part * (spread * tie).sum(axis=0) + part**2 * own.firmness
    return mean, np.maximum(spread[LEVEL] + white - told, 0)


def _passed(beliefs: _Beliefs, release: Measured) -> tuple[_Beliefs, _Update]:
    """Beliefs after a release, from those after the one before."""
    shares, scale = release.shares.astype(np.float64), release.scale.astype(np.float64)
    return _updated(beliefs.after(shares, scale).opened(release), release)


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
    """The members' beliefs after that release: means of level and slope, variance of the level,
    covariance, variance of the slope, shape (5, members, d)."""
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
        """Slots are revised from this one on, the present one, where nothing was learnt yet."""
        kept = np.zeros((5, *state.level.shape), np.float32)
        kept[0], kept[2] = state.level, state.level_var
        kept[1, SLOPED], kept[3, SLOPED] = state.slope, state.covariance
        kept[4, SLOPED] = state.slope_var
        return cls(slot, slot - state.elapsed, kept)

    def note(
        self,
        slot: int,
        elapsed: int,
        shares: Floats,
        counts: Floats,
        error: Floats,
        opened: Floats,
        scale: Singles,
    ) -> None:
        """Remember a release: see :class:`Measured`.

        Args:
            slot: the present one.
            elapsed: slots since the release before.
            shares: as :meth:`Bank.observe` takes them.
            counts: the release, shape (d,), like the rest.
            error: variance of all its errors.
            opened: variance by which a jump opened the level.
            scale: the bank's before it.
        """
        each = np.append(np.zeros(elapsed - len(shares)), shares) if elapsed else np.zeros(0)
        figures = (part.astype(np.float32) for part in (each, counts, error, opened, scale))
        self.releases.append(Measured(slot, *figures))

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
        while len(self.releases) > 1 and self.releases[1].slot == slot:
            self._pass()  # of several releases of a slot the last one measures it
        each, spread = smoothed(self.kept, self.since, slot, self.releases, scale)
        mean = (weights * each).sum(axis=0)
        variance = (weights * (spread + (each - mean) ** 2)).sum(axis=0)
        self.next_slot += 1
        if self.releases and self.releases[0].slot == slot:
            self._pass()
        return slot, mean, variance

    def _pass(self) -> None:
        """Go on from the beliefs after the first release."""
        release = self.releases.pop(0)
        beliefs, _ = _passed(_Beliefs.of(self.kept), release)
        self.kept, self.since = beliefs.kept, release.slot

    def record(self) -> dict[str, Any]:
        """Of `SCHEMA`."""
        releases = [_written(release) for release in self.releases]
        return {**_written(self), "releases": releases}

    @classmethod
    def read(cls, record: dict[str, Any], bins: int) -> Ring:
        """What :meth:`record` gave."""
        ring = cls(**_read(record))
        ring.kept = ring.kept.reshape(5, MEMBERS, bins)
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
