"""What the adaptive mechanism may spend in a slot and on whom, and when it releases next.

The gap to the next release is the one that the filters expect to lower the error most. A longer
gap saves budget: the noise variance falls with its square, faster than the curve drifts. Everything
here is computed from public requirements and from releases.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.adaptive import filter_bank
from streamveil.mechanisms.adaptive.filter_bank import Bank
from streamveil.mechanisms.adaptive.weighting import Choices, Correlation, Risk, Weighting
from streamveil.mechanisms.core.budgets import Units
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.protocol import Crowd

Floats = npt.NDArray[np.float64]


class Plan:
    """The releases that are possible after gaps.

    Args:
        after: what a release can be after a gap, one of `filter_bank.GAPS`; asked once for each.
    """

    def __init__(self, after: Callable[[int], Choices]) -> None:
        self.choices = cache(after)

    def error_after(self, since: int, scale: float, risk: Risk) -> float:
        """Expected squared error of a count in a release after `since` slots; inf if impossible."""
        place = min(int(np.searchsorted(filter_bank.GAPS, since)), len(filter_bank.GAPS) - 1)
        found = self.choices(int(filter_bank.GAPS[place])).errors(scale, risk)
        return float(found.min(initial=np.inf))

    def best_gap(self, beliefs: Floats, scale: Floats, risk: Risk) -> tuple[int, float] | None:
        """Choose the gap.

        Args:
            beliefs: in each member of the bank, shape (members,).
            scale: s of each bin, shape (d,).
            risk: of bias.

        Returns:
            (gap, expected variance of the curve between releases in parts of a release's error),
            or None unless a release is possible after any gap.
        """
        found = [self.choices(gap) for gap in filter_bank.GAPS.tolist()]
        if not all(one.thresholds.size for one in found):
            return None
        errors = [choices.errors(float(scale.mean()), risk) for choices in found]
        best = [int(one.argmin()) for one in errors]
        noise = np.array([c.noise[i] for c, i in zip(found, best, strict=True)])
        # What is not noise is taken to be proportional to s.
        other = np.array([one[i] for one, i in zip(errors, best, strict=True)]) - noise
        # Bins of about the same scale are planned for together.
        exponents, bins = np.unique(np.rint(2 * np.log2(scale)), return_counts=True)
        scales = 2 ** (exponents / 2)
        ratios = noise[:, None] / scales + other[:, None] / float(scale.mean())
        expected, curve = filter_bank.expected_error(beliefs, ratios)
        weight = scales * bins
        place = int(np.argmin(expected @ weight))
        patience = float(curve[place] @ weight / (ratios[place] @ weight))
        return int(filter_bank.GAPS[place]), patience


# Share of the budget for the gate, for few bins and for many.
GATE_FEW_BINS, GATE_MANY_BINS, MANY_BINS = 0.2, 0.1, 10
# Squared beta (see `weighting.py`) that audits are made for.
AUDITED_BIAS = 0.05
_STEPS = 20
_MOST = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Shares:
    """How a budget is divided: shares from 0 to below 1."""

    gate: float
    audit: float
    reserve: float
    """Of what gate and audits leave."""

    @classmethod
    def of(cls, name: str, gate: float, audit: float, reserve: float, bins: int) -> Shares:
        """Check the options of a mechanism; a gate of -1 is chosen by bins.

        Raises ConfigurationError.
        """
        if gate == -1.0:
            gate = GATE_FEW_BINS if bins < MANY_BINS else GATE_MANY_BINS
        for option, share in (("gate", gate), ("audit", audit), ("reserve", reserve)):
            if not 0 <= share < 1:
                raise ConfigurationError(
                    f"mechanism {name!r}: {option} is {share:g}, give a share from 0 to below 1"
                )
        if gate + audit >= 1:
            raise ConfigurationError(
                f"mechanism {name!r}: gate {gate:g} and audit {audit:g} leave no budget to release"
            )
        return cls(gate, audit, reserve)


def part(units: Units, share: float) -> Units:
    """A share of budgets, rounded down: exact, for the share is a whole number of 2**-20."""
    steps = int(share * (1 << _STEPS))
    low = units & ((1 << _STEPS) - 1)
    return (units >> _STEPS) * steps + (low * steps >> _STEPS)


@dataclass(frozen=True, eq=False)
class Terms:
    """Public facts of a slot; arrays have shape (K,), budgets are in units."""

    crowd: Crowd
    assume_independent: bool
    windows: Units
    """Slots that a class saves up for at most."""
    gate: Units
    """For a look."""
    rate: Units
    """Saved up for releases in a slot."""
    full_rate: Units
    """The same where nothing is spent on looks."""
    main: Units
    """Left for looks and releases."""
    reserve: Units
    """Left of the reserve."""
    keeps_reserve: npt.NDArray[np.bool_]
    """Whose reserve tells how much of it all may give."""
    audit: Weighting | None
    """The audit that is due, if one is."""
    bank: Bank
    correlation: Correlation
    plan: Plan

    def from_reserve(self, divisor: int) -> Units:
        """A part of the reserve: as many slots' worth for all, so that weights stay the same."""
        some = self.reserve // divisor
        able = (self.crowd.sizes > 0) & (self.rate > 0) & self.keeps_reserve
        if not able.any():
            return np.zeros_like(some)
        slots = (some[able] / self.rate[able]).min()
        return np.minimum(slots * self.rate, some).astype(np.int64)


def choices(offers: Units, crowd: Crowd, assume_independent: bool) -> Choices:
    """What a release can be: as weighted as is best, or all alike."""
    each = offers // crowd.sensitivity
    if not assume_independent:
        each = np.full_like(each, each[crowd.sizes > 0].min(initial=_MOST))
    return Choices.of(each, crowd)


def audit_of(shares: Units, crowd: Crowd, assume_independent: bool) -> Weighting | None:
    """Weights of audits: alike, but for the few who would make the audit worthless."""
    found = choices(shares, crowd, assume_independent)
    if not found.thresholds.size:
        return None
    scale = float(crowd.sizes.sum()) / 10
    errors = found.errors(scale, Risk(AUDITED_BIAS * scale**2, 0.0))
    return Weighting.at(int(found.thresholds[errors.argmin()]), shares, crowd)
