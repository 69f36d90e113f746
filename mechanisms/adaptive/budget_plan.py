"""What the adaptive mechanism may spend in a slot and on whom, and when it releases next.

The gap to the next release is the one that the filters expect to lower the error most. A longer
gap saves budget: the noise variance falls with its square, faster than the curve drifts. What is
saved up buys a release of the gap's last slot, or of all its slots together, whichever errs less.
Everything here is computed from public requirements and from releases.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.adaptive.filter_bank import Bank
from streamveil.mechanisms.adaptive.gap_errors import GAPS, POINT, SUM, expected_error
from streamveil.mechanisms.adaptive.jumps import ALERTS, Watch
from streamveil.mechanisms.adaptive.weighting import Choices, Correlation, Risk, Weighting
from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.core.budgets import Units
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.protocol import Crowd

_GAPS: list[int] = GAPS.tolist()


class Planned(NamedTuple):
    """A gap to the next release."""

    gap: int
    """Slots."""
    kind: int
    """Whether its last slot is released or all of them together: POINT or SUM."""
    patience: float
    """Expected variance of the curve between releases, in parts of a release's error."""
    alert: float = 1.0
    """How much of the shares of gate and reserve is kept for jumps."""
    watch: int = 1
    """Slots from one look to the next."""


@dataclass(frozen=True, eq=False)
class ChoicesByGap:
    """The same choices as :class:`Choices`, after every gap at once."""

    noise: Floats
    """Variance of the noise, shape (gaps, c); infinite where a gap has fewer choices."""
    dispersion: Floats
    """Shape (gaps, c)."""
    nearness: Floats
    """Shape (gaps, c)."""
    slots: npt.NDArray[np.int64]
    """How many give to a release, shape (gaps, 1)."""
    known: dict[tuple[float, Risk], tuple[Floats, Floats]] = field(default_factory=dict)
    """The last result of :meth:`best`."""

    @classmethod
    def of(cls, choices: Sequence[Choices], slots: npt.NDArray[np.int64]) -> ChoicesByGap | None:
        """None where a gap has no choice at all."""
        sizes = [of_gap.noise.size for of_gap in choices]
        if not min(sizes):
            return None
        noise = np.full((len(sizes), max(sizes)), np.inf)
        dispersion, nearness = np.zeros_like(noise), np.zeros_like(noise)
        for row, (of_gap, size) in enumerate(zip(choices, sizes, strict=True)):
            noise[row, :size] = of_gap.noise
            dispersion[row, :size] = of_gap.dispersion
            nearness[row, :size] = of_gap.nearness
        return cls(noise / slots[:, None] ** 2, dispersion, nearness, slots[:, None])

    def best(self, scale: float, risk: Risk) -> tuple[Floats, Floats]:
        """The least error, and the noise that is part of it; shape (gaps,)."""
        least = self.known.get((scale, risk))
        if least is None:
            bias = risk.here + risk.elsewhere * (1 - self.nearness)
            errors = self.noise + self.dispersion * (scale / self.slots + bias)
            rows, choice = np.arange(len(errors)), errors.argmin(axis=1)
            least = errors[rows, choice], self.noise[rows, choice]
            self.known.clear()
            self.known[scale, risk] = least
        return least


@dataclass(frozen=True, eq=False)
class _Costs:
    """Expected errors of gaps without jumps: the same until something is observed."""

    beliefs: Floats
    scale: Floats
    risk: Risk
    alerts: Floats
    """Variances of noise at each of `ALERTS`. The costs are for this and the three fields above."""
    noise: Floats
    """Variance of the noise of the best release, shape (gaps,)."""
    every: Floats
    """Error of a release in parts of s, by alert, gap and group of bins."""
    curves: Floats
    """Variance of the curve between releases, likewise."""
    weight: Floats
    """What a group counts for, shape (groups,)."""
    expected: Floats
    """Expected squared error of a count, by alert, gap and group."""

    @classmethod
    def of(
        cls,
        table: ChoicesByGap,
        kind: int,
        beliefs: Floats,
        scale: Floats,
        risk: Risk,
        alerts: Floats,
    ) -> _Costs:
        """Compute them."""
        # Bins of about the same scale are planned for together.
        exponents = np.rint(2 * np.log2(scale)).astype(np.int64)
        least = min(exponents.tolist())
        bins = np.bincount(exponents - least)
        groups = bins.nonzero()[0]
        scales, bins = 2 ** ((groups + least) / 2), bins[groups]
        weight, mean = scales * bins, float(scale.sum() / len(scale))
        errors, noise = table.best(mean, risk)
        # What is not noise is taken to be proportional to s.
        other = (errors - noise)[:, None] / mean
        every = alerts[:, None, None] * noise[:, None] / scales + other
        expected, curves = expected_error(kind, beliefs, every)
        known = beliefs, scale, risk, alerts
        return cls(*known, noise, every, curves, weight, expected)

    def hold(self, beliefs: Floats, scale: Floats, risk: Risk, alerts: Floats) -> bool:
        """Whether they were computed for these."""
        return (
            self.beliefs is beliefs
            and self.scale is scale
            and self.risk == risk
            and self.alerts.tobytes() == alerts.tobytes()
        )


class Plan:
    """The releases that are possible after gaps, and looks in between.

    Args:
        after: possible releases of the last slot of a gap, one of `gap_errors.GAPS`; called once
            for each.
        every: what each slot can give to a release of all slots.
        looks: possible looks for which a number of slots saved up, one of `jumps.WATCHES`; called
            once for each.
    """

    def __init__(
        self,
        after: Callable[[int], Choices],
        every: Choices,
        looks: Callable[[int], Choices],
    ) -> None:
        self.points = cache(after)
        self.sums = every
        self.looks = cache(looks)
        self._tables: dict[int, ChoicesByGap | None] = {}
        self._costs: dict[int, _Costs] = {}
        self.choices: dict[bytes, Choices] = {}
        """What releases can be, by what is offered for them: see :meth:`Terms.choices`."""
        self.weightings: dict[tuple[int, bytes], Weighting] = {}
        """By threshold and offers: see :meth:`Terms.weighting`."""

    def errors(self, kind: int, gap: int, scale: float, risk: Risk) -> Floats:
        """Expected squared error of a count in a release after a gap, by threshold: shape (c,)."""
        if kind == POINT:
            return self.points(gap).errors(scale, risk)
        return self.sums.errors(scale, risk, gap)

    def error_after(self, kind: int, since: int, scale: float, risk: Risk) -> float:
        """Expected squared error of a count in a release after `since` slots; inf if impossible."""
        place = min(bisect_left(_GAPS, since), len(_GAPS) - 1)
        table = self._tables.get(kind)
        if table is not None:
            return float(table.best(scale, risk)[0][place])
        return float(self.errors(kind, _GAPS[place], scale, risk).min(initial=np.inf))

    def best_gap(
        self,
        beliefs: Floats,
        scale: Floats,
        risk: Risk,
        jumps: Watch,
        kinds: Sequence[int] = (POINT, SUM),
    ) -> Planned | None:
        """Choose the gap, what is released after it, and how much looks may take of that.

        Args:
            beliefs: in each member of the bank, shape (members,).
            scale: s of each bin, shape (d,).
            risk: of bias.
            jumps: what they cost until they are seen.
            kinds: to choose from.

        Returns None unless a release is possible after any gap.
        """
        best: tuple[float, Planned] | None = None
        for kind in kinds:
            table = self._table(kind)
            if table is None:
                return None
            costs = self._costs.get(kind)
            if costs is None or not costs.hold(beliefs, scale, risk, jumps.noise):
                costs = _Costs.of(table, kind, beliefs, scale, risk, jumps.noise)
                self._costs[kind] = costs
            late, watches = jumps.costs(kind, costs.noise)
            chosen = jumps.chosen
            errors = costs.expected[chosen] @ costs.weight + late
            row, place = divmod(int(errors.argmin()), len(GAPS))
            if best is None or errors[row, place] < best[0]:
                curve, release = (each[chosen][row, place] for each in (costs.curves, costs.every))
                patience = float(curve @ costs.weight / (release @ costs.weight))
                watch = float(jumps.alerts[row]), int(watches[row, place])
                plan = Planned(_GAPS[place], kind, patience, *watch)
                best = float(errors[row, place]), plan
        return best[1] if best else None

    def _table(self, kind: int) -> ChoicesByGap | None:
        """What can be released after every gap; None if there is nothing after one of them."""
        if kind not in self._tables:
            points = [self.points(gap) if kind == POINT else self.sums for gap in GAPS.tolist()]
            slots = GAPS if kind == SUM else np.ones_like(GAPS)
            self._tables[kind] = ChoicesByGap.of(points, slots)
        return self._tables[kind]


# Share of the budget for the gate, for few bins and for many.
GATE_FEW_BINS, GATE_MANY_BINS, MANY_BINS = 0.2, 0.1, 10
# Squared beta (see `weighting.py`) that audits are made for.
AUDITED_BIAS = 0.05
_STEPS = 20
# Releases whose weights are remembered: offers are often the same.
MOST_KNOWN = 64


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


@dataclass(frozen=True)
class AtOnce:
    """Windows of one slot: budget that a slot does not spend is lost.

    So every slot gives its entire budget to a sum. There are no looks and no reserve, because they
    lose as much in streams without jumps as they gain in streams with jumps. Audits of single slots
    would show little compared with sums. Instead, one in `audit_every` sums has equal weights.
    """

    audit_every: int
    """0 for no audits."""

    @classmethod
    def of(cls, shares: Shares) -> tuple[AtOnce, Shares]:
        """The audits for these shares, and shares that leave the entire budget to sums."""
        every = round(1 / shares.audit) if shares.audit else 0
        return cls(every), Shares(0.0, 0.0, 0.0)

    def audits(self, releases: int) -> bool:
        """Whether the sum is an audit, given the number of releases before it."""
        every = self.audit_every
        return bool(every) and releases % every == 1 % every


def part(units: Units, share: float) -> Units:
    """A share of budgets, rounded down. It is exact, as the share is a multiple of 2**-20."""
    steps = int(share * (1 << _STEPS))
    low = units & ((1 << _STEPS) - 1)
    return (units >> _STEPS) * steps + (low * steps >> _STEPS)


def _divided(alert: float, gate: Units, main: Units, reserve: Units) -> tuple[Units, Units, Units]:
    """What of these is for looks, what for releases, and what is lent of the reserve."""
    kept = part(gate, min(alert, 1.0))
    # More than its share may take half of what is for releases at most.
    kept = kept + np.minimum(part(gate, max(alert - 1.0, 0.0)), main // 2)
    return kept, main + gate - kept, reserve - part(reserve, min(alert, 1.0))


@dataclass(frozen=True, eq=False)
class Rates:
    """What a slot may use of the parts of a budget, in units, shape (K,)."""

    gate: Units
    """Saved up for looks."""
    main: Units
    """Saved up for releases."""
    lent: Units
    """Saved up for releases, of the reserve."""
    alert: float
    noise: Floats
    """Variance of noise of releases at each of `ALERTS`, in parts of that at this alert."""

    @classmethod
    def at(cls, alert: float, gate: Units, main: Units, reserve: Units) -> Rates:
        """The rates at one of `ALERTS`."""
        each = [_divided(one, gate, main, reserve) for one in (alert, *ALERTS)]
        offers = np.array([float((main + lent).sum()) for _, main, lent in each])
        return cls(*each[0], alert, (offers[0] / np.maximum(offers[1:], 1.0)) ** 2)

    def saved(self, slots: npt.NDArray[np.int64] | int, looks: bool) -> tuple[Units, Units]:
        """What a number of slots saves up for releases, of main part and reserve."""
        return (self.main if looks else self.main + self.gate) * slots, self.lent * slots

    def offers(self, slots: npt.NDArray[np.int64] | int, looks: bool = True) -> Units:
        """The sum of :meth:`saved`."""
        main, lent = self.saved(slots, looks)
        return main + lent


@dataclass(frozen=True, eq=False)
class Terms:
    """Public facts of a slot; arrays have shape (K,), budgets are in units."""

    crowd: Crowd
    assume_independent: bool
    windows: Units
    """Slots that a class saves up for at most."""
    rates: Rates
    main: Units
    """Left for looks and releases."""
    reserve: Units
    """Left of the reserve."""
    givers: npt.NDArray[np.int64]
    """Classes whose reserve limits how much all classes may take from theirs."""
    audit: Weighting | None
    """The audit that is due, if one is."""
    bank: Bank
    correlation: Correlation
    plan: Plan
    most: int
    """The largest count that there can be."""
    at_once: AtOnce | None = None
    """Where every window is of one slot."""

    def less(self, share: float, spent: Units | int = 0) -> Terms:
        """The terms if a share of what is saved for releases is for something else.

        Args:
            share: of what a slot saves up.
            spent: what was spent on that in this slot.
        """
        rates = replace(self.rates, main=self.rates.main - part(self.rates.main, share))
        return replace(self, rates=rates, main=self.main - spent)

    def choices(self, offers: Units) -> Choices:
        """Possible releases: see :func:`choices`, computed once for the same offers."""
        key, known = offers.tobytes(), self.plan.choices
        result = known.get(key)
        if result is None:
            if len(known) >= MOST_KNOWN:
                known.clear()
            result = known[key] = choices(offers, self.crowd, self.assume_independent)
        return result

    def weighting(self, threshold: int, offers: Units) -> Weighting:
        """Weights for offers, made once for the same: see :meth:`Weighting.at`."""
        key, known = (threshold, offers.tobytes()), self.plan.weightings
        result = known.get(key)
        if result is None:
            if len(known) >= MOST_KNOWN:
                known.clear()
            result = known[key] = Weighting.at(threshold, offers, self.crowd)
        return result

    def fair(self, offers: Units) -> Units:
        """What may be used of the offers: as much of all if they must weigh alike."""
        if self.assume_independent:
            return offers
        return np.minimum(offers, alike(offers, self.crowd))

    def from_reserve(self, divisor: int) -> Units:
        """A part of the reserve: worth the same number of slots for all, so weights stay equal."""
        some = self.reserve // divisor
        rate = self.rates.main
        if not self.givers.size:
            return np.zeros_like(some)
        slots = min((some[self.givers] / rate[self.givers]).tolist())
        return np.minimum(slots * rate, some).astype(np.int64)


def alike(offers: Units, crowd: Crowd) -> Units:
    """The smallest offer of classes with users, for all classes; 0 if there are no users."""
    counted = offers[crowd.sizes > 0]
    return np.full_like(offers, counted.min() if counted.size else 0)


def choices(offers: Units, crowd: Crowd, assume_independent: bool) -> Choices:
    """Possible releases: with the best weights, or with equal weights."""
    each = offers // crowd.sensitivity
    return Choices.of(each if assume_independent else alike(each, crowd), crowd)


def audit_of(shares: Units, crowd: Crowd, assume_independent: bool) -> Weighting | None:
    """Weights of audits: equal, except for the few users whose budget would make it worthless."""
    possible = choices(shares, crowd, assume_independent)
    if not possible.thresholds.size:
        return None
    scale = float(crowd.sizes.sum()) / 10
    threshold = possible.best(scale, Risk(AUDITED_BIAS * scale**2, 0.0))
    return Weighting.at(threshold, shares, crowd)
