"""Revisions: estimates of earlier slots from later releases, by smoothing over a fixed lag.

All of it is post-processing of releases, as the filters are: it costs no budget, and the first
release of a slot does not change. A slot is revised once, a fixed number of slots later. The
members' recursion is run again over the releases from that slot on, and back: the adjoint of each
innovation is carried to the slot, and corrects level and slope there. Members are mixed as they are
believed in when the slot is revised.

A release measures a mean of the slots since the one before. Between two releases means and
covariances follow in closed form, so only releases are remembered: the members' beliefs after one
of them, and what the others measured.

Source: Bierman, Fixed interval smoothing with discrete measurements, International Journal of
Control 18 (1973): the modified Bryson-Frazier form, which inverts no covariance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.adaptive import kalman
from streamveil.mechanisms.adaptive.filter_bank import Bank, Taken
from streamveil.mechanisms.adaptive.kalman import (
    BEND,
    DRIFT,
    MEMBERS,
    SLOPED,
    WHITE,
    BankState,
    Forecast,
)
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.arrays import Floats, Singles

_SLOPES = len(range(MEMBERS)[SLOPED])


class _Reach(NamedTuple):
    """What is measured of level and slope before some slots: by how much of each."""

    slots: int
    part: float
    """Of the level."""
    reach: float
    """Of the slope."""

    @classmethod
    def of(cls, shares: npt.NDArray[Any]) -> _Reach:
        """Over slots with these shares."""
        slots = len(shares)
        return cls(slots, float(shares.sum()), float(shares @ np.arange(1, slots + 1)))


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

    def multiplied(self, by: Floats) -> Measured:
        """The release after levels were multiplied by these factors, shape (d,)."""
        return replace(
            self,
            counts=kalman.single(self.counts * by),
            error=kalman.single(self.error * by**2),
            opened=kalman.single(self.opened * by**2),
            scale=kalman.single(self.scale * by),
        )

    def share(self, slot: int) -> float:
        """What a slot since the release before contributes."""
        return float(self.shares[slot - self.slot - 1]) if len(self.shares) else 1.0

    def reach(self, done: int = 0) -> _Reach:
        """Over the slots since the release before, but for the first ones."""
        shares = self.shares.astype(np.float64)
        return _Reach.of(shares[done:]) if len(shares) else _Reach(0, 1.0, 0.0)


class _Update(NamedTuple):
    """What a release did to the members, arrays of shape (members, d) or (sloped members, d)."""

    pull: Floats
    """Innovation over its variance."""
    weight: Floats
    """One over that variance."""
    level_gain: Floats
    slope_gain: Floats
    after: BankState
    """Beliefs after it."""


def _updated(before: BankState, release: Measured) -> _Update:
    """Learn from a release what the bank learnt; `before` is of the release before."""
    slots = len(release.shares)
    shares = release.shares.astype(np.float64) if slots else np.ones(1)
    state = _later(before, slots, release.scale)
    now = kalman.present(state)
    window = kalman.window_of(state, shares, now)
    if release.opened.any():
        now, window = kalman.opened(now, window, release.opened.astype(np.float64), slots)
    blurred = release.error + float(shares @ shares) * WHITE * release.scale
    missed, total = release.counts - window.mean, window.variance + blurred
    after = kalman.learnt(now, window, missed, blurred, total)
    return _Update(
        missed / total,
        1 / total,
        window.with_level / total,
        window.with_slope / total[SLOPED],
        kalman.kept(after, np.zeros_like(total), release.scale.astype(np.float64)),
    )


def _later(state: BankState, slots: int, scale: npt.NDArray[Any]) -> BankState:
    """A state as it is some slots later, without a release."""
    return replace(state, scale=scale, elapsed=slots)


class _Adjoint(NamedTuple):
    """How releases from some point on pull at level and slope there, and how firmly.

    Arrays of shape (members, d), or (sloped members, d) where a slope is concerned.
    """

    level: Floats
    slope: Floats
    level_level: Floats
    level_slope: Floats
    slope_slope: Floats


class _Own(NamedTuple):
    """How a release and all later ones pull at what it measures, and how firmly."""

    pull: Floats
    firmness: Floats
    level_held: Floats
    slope_held: Floats
    """Firmness of later releases on level and slope, times the gains."""


def _nothing(bins: int) -> _Adjoint:
    """After the last release."""
    every, sloped = np.zeros((MEMBERS, bins)), np.zeros((_SLOPES, bins))
    return _Adjoint(every, sloped, every, sloped, sloped)


def _own(after: _Adjoint, update: _Update) -> _Own:
    """Of a release, given how later ones pull after it."""
    pull = update.pull - update.level_gain * after.level
    pull[SLOPED] -= update.slope_gain * after.slope
    level_held = after.level_level * update.level_gain
    level_held[SLOPED] += after.level_slope * update.slope_gain
    slope_held = after.level_slope * update.level_gain[SLOPED]
    slope_held += after.slope_slope * update.slope_gain
    firmness = update.weight + update.level_gain * level_held
    firmness[SLOPED] += update.slope_gain * slope_held
    return _Own(pull, firmness, level_held, slope_held)


def _before(after: _Adjoint, own: _Own, back: _Reach) -> _Adjoint:
    """Before the slots up to a release, given how later ones pull after it."""
    slots, part, reach = back
    level = after.level + part * own.pull
    slope = after.slope + slots * after.level[SLOPED] + reach * own.pull[SLOPED]
    level_level = after.level_level - 2 * part * own.level_held + part**2 * own.firmness
    held, firmness = own.level_held[SLOPED], own.firmness[SLOPED]
    both = slots * held + own.slope_held
    level_slope = slots * after.level_level[SLOPED] + after.level_slope
    slope_slope = slots * (level_slope + after.level_slope) + after.slope_slope
    level_slope = level_slope - reach * held - part * both + part * reach * firmness
    slope_slope = slope_slope - 2 * reach * both + reach**2 * firmness
    return _Adjoint(level, slope, level_level, level_slope, slope_slope)


def _with_sum(state: BankState, shares: Floats) -> Floats:
    """Covariance of the level of the present slot with the levels so far, times their shares.

    Shape (members, d).
    """
    slots, part, reach = _Reach.of(shares)
    by_step = np.cumsum(shares[::-1])[::-1]
    by_bend = np.cumsum(by_step[::-1])[::-1] - by_step
    to_go = np.arange(slots)[::-1]
    _, together, slope_var = kalman.slopes(state)
    covariance: Floats = part * state.level_var + reach * DRIFT * state.scale
    covariance[SLOPED] += (part * slots + reach) * together + slots * reach * slope_var
    covariance[SLOPED] += float(by_bend @ to_go) * BEND[SLOPED] * state.scale
    return covariance


def smoothed(
    kept: BankState,
    since: int,
    slot: int,
    first: Measured,
    update: _Update,
    later: _Adjoint,
) -> tuple[Floats, Floats]:
    """Mean and variance of a slot's counts by every member, both of shape (members, d).

    Args:
        kept: beliefs after a release of slot `since`, or before the first slot.
        since: up to `slot`.
        slot: whose counts.
        first: the next release, not before `slot`.
        update: what it did.
        later: how the releases after it pull.
    """
    shares, done = first.shares.astype(np.float64), slot - since
    state = _later(kept, done, first.scale)
    there, with_sum = kalman.present(state), _with_sum(state, shares[:done])
    if first.slot == slot and first.opened.any():
        window = kalman.window_of(state, shares if done else np.ones(1), there)
        there, _ = kalman.opened(there, window, first.opened.astype(np.float64), done)
        with_sum = with_sum + (first.opened if done else 0)
    white = WHITE * first.scale
    own = _own(later, update)
    left = first.reach(done)
    pulled = _before(later, own, left)
    # The counts go with what is measured through the levels so far and their own deviation.
    measured = with_sum + first.share(slot) * white
    both = there.level_var[SLOPED]
    mean = there.level + there.level_var * pulled.level + measured * own.pull
    mean[SLOPED] += there.covariance * pulled.slope
    tie = there.level_var * (left.part * own.firmness - own.level_held)
    slope_tie = left.reach * own.firmness[SLOPED] - left.slots * own.level_held[SLOPED]
    tie[SLOPED] += there.covariance * (slope_tie - own.slope_held)
    explained = there.level_var**2 * pulled.level_level + measured * (
        2 * tie + measured * own.firmness
    )
    explained[SLOPED] += there.covariance * (
        2 * both * pulled.level_slope + there.covariance * pulled.slope_slope
    )
    return mean, np.maximum(there.level_var + white - explained, 0)


@dataclass
class Ring:
    """What is remembered of slots that are still to be revised.

    Figures are 32-bit floats, in memory as in a saved state: a restart changes nothing.
    """

    next_slot: int
    """The slot that is revised next."""
    since: int
    """The slot of the last release before it, or the one before the first slot."""
    kept: BankState
    """Beliefs after that release; their scores are not used."""
    releases: list[Measured] = field(default_factory=list)
    """All later ones."""
    last_slot: int = 0
    """The last slot that was released."""
    most: int = 0
    """The largest count that there can be, as of that slot."""
    doubt: Singles = field(default_factory=lambda: np.zeros(0, np.float32))
    """Variance of what may remain of a bias of all releases, as of that slot, shape (d,)."""
    _updates: list[_Update] = field(default_factory=list)
    """What the first of the releases did, so far as that was computed: not saved."""
    _later: _Adjoint | None = None
    """How the releases after the first one pull, if that was computed: not saved."""

    SCHEMA: ClassVar[state_codec.Schema] = state_codec.record_schema(
        "Ring",
        **dict.fromkeys(("next_slot", "since", "last_slot", "most"), "long"),
        kept="Bank",  # a name that the schema of the state defines
        releases={"type": "array", "items": Measured.SCHEMA},
        doubt="bytes",
    )

    @classmethod
    def start(cls, state: BankState, slot: int) -> Ring:
        """Slots are revised from this one on, the present one, where nothing was learnt yet."""
        return cls(slot, slot - state.elapsed, replace(state))

    def note(self, slot: int, elapsed: int, scale: npt.NDArray[Any], taken: Taken) -> None:
        """Remember a release.

        Args:
            slot: the present one.
            elapsed: slots since the release before.
            scale: the bank's before it, shape (d,).
            taken: what the bank took it for.
        """
        shares = np.zeros(elapsed)
        if elapsed:
            shares[-len(taken.shares) :] = taken.shares
        figures = (shares, taken.counts, taken.error, taken.opened, scale)
        self.releases.append(Measured(slot, *map(kalman.single, figures)))
        self._later = None

    def multiply(self, by: Floats) -> None:
        """Continue with levels that are multiplied by these factors, shape (d,)."""
        self.kept = kalman.multiplied(self.kept, by)
        self.releases = [release.multiplied(by) for release in self.releases]
        self._updates, self._later = [], None

    def passed(self, slot: int, most: int, doubt: Floats) -> None:
        """A slot was released."""
        self.last_slot, self.most, self.doubt = slot, most, doubt.astype(np.float32)

    def revise(self, weights: Floats, scale: Floats) -> tuple[int, Forecast]:
        """The next slot, and what is expected of it now.

        Args:
            weights: belief in each member in each bin, shape (members, d).
            scale: the bank's now, shape (d,).
        """
        slot = self.next_slot
        self._learn()
        while len(self.releases) > 1 and self.releases[1].slot == slot:
            self._pass()  # of several releases of a slot the last one measures it
        if self.releases:
            scale = self.releases[0].scale.astype(np.float64)
        each, spread = self._smoothed(slot, scale)
        mean = (weights * each).sum(axis=0)
        variance = (weights * (spread + (each - mean) ** 2)).sum(axis=0)
        white = np.minimum((weights * WHITE).sum(axis=0) * scale, variance)
        self.next_slot += 1
        if self.releases and self.releases[0].slot == slot:
            self._pass()
        return slot, Forecast(mean, variance - white, white, scale)

    def _learn(self) -> None:
        """Learn from the releases that came since."""
        for release in self.releases[len(self._updates) :]:
            before = self._updates[-1].after if self._updates else self.kept
            self._updates.append(_updated(before, release))

    def _pass(self) -> None:
        """Go on from the beliefs after the first release."""
        self.kept, self.since = self._updates.pop(0).after, self.releases.pop(0).slot
        self._later = None

    def _smoothed(self, slot: int, scale: Floats) -> tuple[Floats, Floats]:
        if not self.releases:
            there = kalman.present(_later(self.kept, slot - self.since, scale))
            return there.level, there.level_var + WHITE * scale
        if self._later is None:
            self._later = _pulling(self.releases[1:], self._updates[1:], len(scale))
        first, update = self.releases[0], self._updates[0]
        return smoothed(self.kept, self.since, slot, first, update, self._later)

    def record(self) -> dict[str, Any]:
        """Of `SCHEMA`."""
        releases = [_written(release) for release in self.releases]
        return {**_written(self), "kept": kalman.record(self.kept), "releases": releases}

    @classmethod
    def read(cls, written: dict[str, Any], bins: int) -> Ring:
        """What :meth:`record` gave."""
        kept = Bank(1.0, bins).start()
        kalman.read(kept, written["kept"])
        releases = [Measured(**_read(release)) for release in written["releases"]]
        return cls(**_read({**written, "kept": kept, "releases": releases}))


def _pulling(releases: Sequence[Measured], updates: Sequence[_Update], bins: int) -> _Adjoint:
    """How releases pull at the state after the one before them."""
    adjoint = _nothing(bins)
    for release, update in reversed(list(zip(releases, updates, strict=True))):
        adjoint = _before(adjoint, _own(adjoint, update), release.reach())
    return adjoint


def _written(what: Ring | Measured) -> dict[str, Any]:
    return {
        name: value.tobytes() if isinstance(value, np.ndarray) else value
        for name, value in vars(what).items()
        if not name.startswith("_")
    }


def _read(written: dict[str, Any]) -> dict[str, Any]:
    return {
        name: np.frombuffer(value, np.float32) if isinstance(value, bytes) else value
        for name, value in written.items()
    }
