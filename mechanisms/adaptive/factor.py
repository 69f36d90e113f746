"""The common factor of a stream: its counts rise and fall with their total.

The count of bin j in slot t is modelled as L_jt (1 + d_j (r_t - 1) + s_jp). r_t is the total of the
slot relative to its usual size, as `total_filter.py` estimates it. L_jt is the level that the
filter bank follows, and d_j the loading of the bin (`loadings.py`). On a weekday with half of the
usual events, a bin with a loading of 1 is expected to have half of its level. s_jp is the effect of
day p in the bin's own week (`phase_effects.py`): 0 without evidence, with a factor or without.

The total comes from two sources. A release of all bins also releases their sum. And every slot may
measure its total: one more noisy result, at a planned share of what the slot may spend.

Sensitivity of the measured total: that of the histogram. A user's events of a slot change their
weighted sum by at most as much as the weighted histogram in L1, m_k per contribution.

Without evidence of a factor, forecasts do not use it, and the measured total costs little or
nothing. If noise hides the total of short slots, their totals are summed by phase (`cycle.py`).
Shares, weights and evidence are functions of noisy results: see `fixed.py`.
Source: our own.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.adaptive.budget_plan import AUDITED_BIAS, Terms, part
from streamveil.mechanisms.adaptive.filter_bank import RARE, Bank, Observed
from streamveil.mechanisms.adaptive.gap_errors import GAPS
from streamveil.mechanisms.adaptive.kalman import LAST_SLOT, BankState, Forecast, multiplied, single
from streamveil.mechanisms.adaptive.loadings import Lesson, Loadings
from streamveil.mechanisms.adaptive.own_slot import of_the_slot
from streamveil.mechanisms.adaptive.phase_effects import PhaseEffects
from streamveil.mechanisms.adaptive.revisions import Ring
from streamveil.mechanisms.adaptive.slot_total import UNKNOWN, SlotTotal, by_first
from streamveil.mechanisms.adaptive.total_filter import Ratio, TotalFilter, TotalModel
from streamveil.mechanisms.adaptive.weighting import Risk, Weighting
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.arrays import Floats, Singles
from streamveil.mechanisms.core.budgets import Units
from streamveil.mechanisms.core.records import MICROSECONDS
from streamveil.mechanisms.randomness.noise import SlotNoise

# Slots of a season that is looked for: the days of a week, also where the length of a slot is not
# known.
WEEK = 7
# The shares of what a slot may spend that its total can get, and the one without evidence.
SHARES, UNPROVEN = np.array([0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.18, 0.25]), 0.03
# If the total is a separate cell: its possible shares, and its share until the total is known.
WITH_TOTAL, UNKNOWN_SIZE = np.append(SHARES, [0.35, 0.5]), 0.25
# To look for evidence, a total is measured if its standard error is at most this part of it.
TELLING = 0.3
# The usual size is the mean of the first totals: of `FIRST` at least, and of more until it is
# `ABOVE_ZERO` standard errors above 0. At most `MOST_FIRST` are kept for that.
FIRST, MOST_FIRST, ABOVE_ZERO = 7, 64, 3.0
# The usual size is renewed once the level of the total is this many times as large, or as small.
FAR = 1.25
# The factor is used from this evidence on, in standard errors, until it falls below the second.
FOUND, LOST = 2.5, 1.0
# The least and the most that a level is multiplied by; beyond that it is the level that changes.
LEAST, MOST = 0.1, 10.0
# The number of ratios that are kept: no sum has more slots.
MOST_RATIOS = int(GAPS[-1])
# If less than this part of a level is expected, a linear effect of the loading is a poor model.
# Then the difference to this part is added to the error.
FAINT = 0.3
# Standard error of a loading from slot to slot: no bin follows the total exactly.
MISFIT = 0.15
_LEAST = 1e-9


def _tells(variance: float, size: float) -> bool:
    """Whether a measured total with this size and variance can show how slots differ."""
    return variance <= (TELLING * size) ** 2


class Past(NamedTuple):
    """How the counts of a slot follow from its levels, kept until the slot is revised.

    Shape (d,), or empty where counts are the levels. A slot that was itself released keeps its
    estimate: later releases show its level, but little of its own deviation.
    """

    estimate: Singles
    scale: Singles
    """What levels are multiplied by, before the estimate is added."""
    doubt: Singles
    """Variance of the counts, given the levels."""

    @classmethod
    def of(cls, estimate: Floats, scale: Floats, doubt: Floats) -> Past:
        """Rounded to the precision of records."""
        return cls(single(estimate), single(scale), single(doubt))

    def record(self) -> dict[str, Any]:
        """Avro record, under `PAST`."""
        return {name: part.tobytes() for name, part in self._asdict().items()}

    @classmethod
    def read(cls, written: dict[str, Any]) -> Past:
        """The past of a record."""
        return cls(*(np.frombuffer(written[name], np.float32) for name in cls._fields))

    def divided(self, by: Floats) -> Past:
        """The same for levels that are multiplied by these factors, shape (d,)."""
        if not len(self.scale):
            return Past.of(np.zeros_like(by), 1 / by, np.zeros_like(by))
        return self._replace(scale=single(self.scale / by))

    def counts(self, level: Forecast) -> Forecast:
        """The counts of the slot, given their levels."""
        if not len(self.scale):
            return level
        mean, variance = self.estimate + level.mean * self.scale, level.variance * self.scale**2
        white, scale = level.white * self.scale, level.scale * np.where(self.scale, self.scale, 1)
        return Forecast(mean, variance + self.doubt, white, scale)


PAST = state_codec.record_schema("Past", **dict.fromkeys(Past._fields, "bytes"))
LEVELS = Past(*(np.zeros(0, np.float32) for _ in Past._fields))


class Total(NamedTuple):
    """A noisy total."""

    slot: int
    total: float
    variance: float


@dataclass
class FactorState:
    """What is known of the factor."""

    total: TotalFilter
    loadings: Loadings
    phases: PhaseEffects
    """How the weeks of bins differ from what the factor makes of them."""
    usual: float = 0.0
    """The usual size of the total; 0 until it is known."""
    first: list[Total] = field(default_factory=list)
    """Totals from before that."""
    ratios: list[float] = field(default_factory=list)
    """Of the slots since the last release and of the present one, at most `MOST_RATIOS`."""
    past: list[Past] = field(default_factory=list)
    """Of the last slots, the present one included, as far as they are still to be revised."""
    used: bool = False
    """Whether forecasts use the factor."""
    share: float = UNPROVEN
    """Of what a slot may spend, for its total."""
    variance: float = 0.0
    """Of the present slot's ratio: not saved, like what follows."""
    by_counts: float = 0.0
    """How much that ratio follows the slot's own counts, from 0 to 1."""
    by_release: float = 0.0
    """How much it follows the slot's own release, whose noise it then contains."""
    doubt: float = 0.0
    """Variance of the bias that may remain in the sum of the slot's own release. Not saved."""
    released: Observed | None = None
    """What the slot's own release showed of it, where counts differ from levels. Not saved."""
    totals: list[SlotTotal] = field(default_factory=list)
    """If totals are results, those of the last slots, which are still to be revised."""
    here: SlotTotal = UNKNOWN
    """The total of the current slot. Not saved."""

    @property
    def ratio(self) -> float:
        """Of the present slot."""
        return self.ratios[-1]

    @property
    def bends(self) -> bool:
        """Whether counts are expected to differ from their levels."""
        return self.used or self.phases.used

    def last(self, slots: int) -> Floats:
        """Ratios of the last slots; 1 of those before the factor was followed."""
        ratios = np.array(self.ratios[-slots:])
        return np.concatenate([np.ones(slots - len(ratios)), ratios])

    def record(self) -> dict[str, Any]:
        """Avro record, under `SCHEMA`."""
        return {
            "total": self.total.record(),
            "loadings": self.loadings.record(),
            "usual": self.usual,
            "first": [one._asdict() for one in self.first],
            "ratios": self.ratios,
            "past": [one.record() for one in self.past],
            "used": self.used,
            "share": self.share,
            "totals": [{"mean": one.mean, "variance": one.variance} for one in self.totals],
            "phases": self.phases.record(),
        }

    def read(self, written: dict[str, Any]) -> None:
        """Read a record into a fresh state of the same factor.

        Raises ConfigurationError for another number of bins.
        """
        self.total.read(written["total"])
        loadings = Loadings.read(written["loadings"])
        state_codec.check_length(loadings.information, len(self.loadings.information), "bins")
        self.loadings = loadings
        self.first = [Total(**one) for one in written["first"]]
        self.past = [Past.read(one) for one in written["past"]]
        self.totals = [SlotTotal(**one) for one in written.get("totals", ())]
        if "phases" in written:
            self.phases.read(written["phases"])
        for name in ("usual", "ratios", "used", "share"):
            setattr(self, name, written[name])

    _FORMER: ClassVar[dict[str, Any]] = {
        "total": TotalFilter.SCHEMA,
        "loadings": Loadings.SCHEMA,
        "usual": "double",
        "first": {
            "type": "array",
            "items": state_codec.record_schema(
                "Total", slot="long", total="double", variance="double"
            ),
        },
        "ratios": {"type": "array", "items": "double"},
        "past": {"type": "array", "items": PAST},
        "used": "boolean",
        "share": "double",
    }
    _WITH_TOTALS: ClassVar[dict[str, Any]] = {
        **_FORMER,
        "totals": {
            "type": "array",
            "items": state_codec.record_schema("SlotTotal", mean="double", variance="double"),
        },
    }
    FORMER_SCHEMAS: ClassVar[tuple[state_codec.Schema, ...]] = (
        state_codec.record_schema("Factor", **_FORMER),
        state_codec.record_schema("Factor", **_WITH_TOTALS),
    )
    SCHEMA: ClassVar[state_codec.Schema] = state_codec.record_schema(
        "Factor", **_WITH_TOTALS, phases=PhaseEffects.SCHEMA
    )


class Factor:
    """Follows the total of a stream, and how its bins follow that.

    Args:
        bins: how many there are.
        slot_length: of a slot in microseconds, if it is known: days have a week.
        tells_total: whether the total is a separate cell. The plan then gives its error the same
            weight as the error of a bin.
    """

    def __init__(self, bins: int, slot_length: int | None, tells_total: bool = False) -> None:
        self.bins = bins
        self.tells_total = tells_total
        self._shares = WITH_TOTAL if tells_total else SHARES
        days = slot_length in (None, MICROSECONDS["d"])
        self.model = TotalModel(WEEK if days else 0, jumps=tells_total)

    def start(self) -> FactorState:
        """Nothing known."""
        phases = PhaseEffects.start(self.model.phases, self.bins)
        known = FactorState(self.model.start(), Loadings.start(self.bins), phases)
        known.share = UNKNOWN_SIZE if self.tells_total else UNPROVEN
        return known

    def begin(self, state: FactorState, slot: int, elapsed: int) -> None:
        """Go on to a slot, `elapsed` slots after the last release."""
        state.by_counts, state.by_release, state.released = 0.0, 0.0, None
        if state.usual:
            self.model.advance(state.total, slot)
        kept = min(elapsed, MOST_RATIOS) - 1
        state.ratios = [*state.ratios[-kept:], 1.0] if kept else [1.0]

    def end(self, bank: FactorBank, level: Forecast, revise: int) -> None:
        """End the slot.

        Args:
            bank: as it sees the slot.
            level: of the slot.
            revise: how many slots later the slot is revised; 0 for never.
        """
        state = bank.state
        state.total.round()
        state.past = [*state.past, bank.past(level)][-1 - revise :] if revise else []
        if self.tells_total:
            state.here = self._total(state, bank.slot)
            state.totals = [*state.totals, state.here][-1 - revise :] if revise else []

    def _total(self, state: FactorState, slot: int) -> SlotTotal:
        """Estimate and variance of the total of the current slot."""
        if not state.usual:
            return by_first(state.first, slot)
        # Unlike the ratio that levels are multiplied by, the total has no bounds.
        stated = self.model.stated(state.total, slot)
        variance = min(stated.variance, MOST**2)
        return SlotTotal(stated.mean * state.usual, variance * state.usual**2, state.by_counts)

    def measure(
        self,
        state: FactorState,
        slot: int,
        counts: npt.NDArray[np.int64],
        noise: SlotNoise,
        terms: Terms,
        size: float,
    ) -> Units:
        """Measure the total of the slot, unless it would not be worth its price.

        After this the ratio of the slot is known.

        Args:
            state: changed in place.
            slot: the present one, which has begun.
            counts: of each class in each bin, shape (K, d): private, unlike the rest.
            noise: of the slot.
            terms: what the slot may spend.
            size: what the total is expected to be.

        Returns the units that it costs a user of each class, shape (K,).
        """
        spent: Units = np.zeros(terms.main.shape, np.int64)
        weighting = None
        if state.share and size >= 1:
            offers = np.minimum(part(terms.rates.main, state.share), terms.main)
            weighting = self._weighting(terms, offers, size)
        if weighting:
            variance = weighting.noise_variance + weighting.dispersion * size
            if state.used or self.tells_total or _tells(variance, size):
                total = weighting.release(counts.sum(axis=1, keepdims=True), noise, "total")
                state.by_counts = self._learn(state, Total(slot, float(total[0]), variance))
                spent = weighting.spent
        self._follow(state, slot)
        return spent

    def telling(self, terms: Terms, size: float) -> bool:
        """Whether a total of this size is worth measuring before there is evidence of a factor."""
        if size < 1:
            return False
        weighting = self._weighting(terms, part(terms.rates.main, UNPROVEN), size)
        if weighting is None:
            return False
        return _tells(weighting.noise_variance + weighting.dispersion * size, size)

    def _weighting(self, terms: Terms, offers: Units, size: float) -> Weighting | None:
        """Weights for a total of this size: nearly alike, for their bias would be in all bins."""
        fair = terms.fair(offers)
        found = terms.choices(fair)
        if not found.thresholds.size:
            return None
        return terms.weighting(found.best(size, Risk(AUDITED_BIAS * size**2, 0.0)), fair)

    def learn_release(self, state: FactorState, slot: int, total: float, variance: float) -> None:
        """Learn from the sum of a release of the present slot."""
        follows = state.by_release = self._learn(state, Total(slot, total, variance))
        state.by_counts = follows + (1 - follows) * state.by_counts
        self._follow(state, slot)

    def _learn(self, state: FactorState, one: Total) -> float:
        """Learn from a total: how much the ratio of its slot follows it, from 0 to 1."""
        if state.usual:
            return self._observe(state, one)
        state.first = [*state.first, one][-MOST_FIRST:]
        return self._settle(state)

    def _observe(self, state: FactorState, one: Total) -> float:
        ratio = Ratio(one.total / state.usual, one.variance / state.usual**2)
        return self.model.observe(state.total, one.slot, ratio)

    def _settle(self, state: FactorState) -> float:
        """Find the usual size, once the first totals show it, and learn from them."""
        _, totals, variances = np.array(state.first).T
        if len(totals) < FIRST or totals.sum() <= ABOVE_ZERO * float(variances.sum()) ** 0.5:
            return 0.0
        state.usual, found = float(totals.mean()), 0.0
        last = state.first[0].slot - 1
        for one in state.first:
            for slot in range(last + 1, one.slot + 1):
                self.model.advance(state.total, slot)
            last, found = one.slot, self._observe(state, one)
        state.first = []
        return found

    def _follow(self, state: FactorState, slot: int) -> None:
        """Take over what is known of the present slot's ratio."""
        if state.usual:
            ratio = self.model.ratio(state.total, slot)
            state.ratios[-1] = min(max(ratio.mean, LEAST), MOST)
            state.variance = min(ratio.variance, MOST**2)

    def over(self, state: FactorState, bank: Bank, slot: int) -> FactorBank:
        """The bank as it sees a slot."""
        return FactorBank(self, state, bank, slot)

    def plan(
        self, state: FactorState, terms: Terms, level: Forecast, gap: int, point: bool, begins: bool
    ) -> bool:
        """Decide whether the factor is used, and on which share its total is measured.

        The share is the one with the least expected error of a count: it takes budget from releases
        of the bins, and improves the estimate of the factor. The gap was planned for levels alone.
        If totals cannot be measured well enough for it, every slot is released.

        Args:
            state: changed in place.
            terms: what a slot may spend.
            level: of the present slot.
            gap: planned slots from release to release.
            point: whether these are of one slot each, and not of sums.
            begins: whether the gap is still to begin.

        Returns whether it is better to release every slot.
        """
        used = bool(state.usual) and state.loadings.evidence > (LOST if state.used else FOUND)
        if used is not state.used:  # effects are differences from what the factor expects
            state.used, state.phases = used, PhaseEffects.start(self.model.phases, self.bins)
        if self.tells_total and not state.usual:
            state.share = UNKNOWN_SIZE
            return False
        if not (state.used or self.tells_total):
            state.share = UNPROVEN if gap > 1 else 0.0
            return False
        weighting = self._weighting(terms, terms.rates.main, state.usual)
        if weighting is None:
            return False
        noise, gap = weighting.noise_variance, max(gap, 1)
        costs, better = self._costs(state, noise, level, gap, point), False
        if state.used and begins and gap > 1:
            every = self._costs(state, noise, level, 1, True)
            better = float(every.min()) < float(costs.min())
            costs = every if better else costs
        state.share = float(self._shares[costs.argmin()])
        return better

    def _costs(
        self, state: FactorState, noise: float, level: Forecast, gap: int, point: bool
    ) -> Floats:
        """Expected error of a count at each share, given the noise of all that a slot saves up."""
        shares = self._shares
        each = noise / ((1 - shares) * gap) ** 2
        blur = noise / np.maximum(shares * state.usual, _LEAST) ** 2
        if gap == 1:  # each release contains a total
            blur = 1 / (1 / blur + state.usual**2 / (self.bins * each))
        loading = uncertain = np.zeros(self.bins)
        if state.used:
            loading, uncertain = state.loadings.estimates()
            uncertain = (uncertain + MISFIT**2) * self.model.swing(state.total)
        ratio = self.model.left(state.total, blur)
        left = (ratio[:, None] * loading**2 + uncertain) * level.mean**2
        unsure = level.variance / (1 - shares)[:, None] + left
        found: Floats = unsure
        if point:
            own = unsure + level.white
            released = own * each[:, None] / (own + each[:, None])
            found = 1 / gap * released + (1 - 1 / gap) * unsure
        of_total = ratio * state.usual**2 / self.bins if self.tells_total else 0.0
        return np.asarray(found.sum(axis=1) / self.bins + of_total)


@dataclass(frozen=True, eq=False)
class FactorBank:
    """A bank of filters whose counts are levels times what the factor makes of a slot."""

    factor: Factor
    state: FactorState
    bank: Bank
    slot: int

    def renewed(self, state: BankState, ring: Ring | None) -> BankState:
        """Take the level of the total for its usual size, if these are far apart by now.

        Levels of bins then become those at this size, so that forecasts stay as they are.

        Args:
            state: of the bank, after a release.
            ring: of levels that are still to be revised, changed in place.

        Returns the bank's state from then on.
        """
        known = self.state
        size = self.factor.model.size(known.total)
        sure = size.mean > ABOVE_ZERO * size.variance**0.5
        if not (known.usual and sure) or 1 / FAR <= size.mean <= FAR:
            return state
        grown = min(max(size.mean, LEAST), MOST)
        by = self._scale(grown)
        known.loadings.move(self.bank.forecast(state).mean * (grown - 1), by)
        known.phases.multiply(by)
        known.past = [one.divided(by) for one in known.past]
        self.factor.model.renew(known.total, grown)
        known.total.round()
        known.usual *= grown
        if ring:
            ring.multiply(by)
        return multiplied(state, by)

    def forecast(self, state: BankState) -> Forecast:
        """As the bank's."""
        return self.of_level(self.bank.forecast(state))

    def of_level(self, level: Forecast) -> Forecast:
        """What a level makes the counts of the present slot."""
        return _counts(level, *self._here(level.mean)) if self.state.bends else level

    def past(self, level: Forecast) -> Past:
        """How the counts of the present slot follow from a level."""
        if found := self.state.released:
            return Past.of(found.mean, np.zeros_like(found.mean), found.variance)
        if not self.state.bends:
            return LEVELS
        scale, doubt = self._here(level.mean)
        return Past.of(np.zeros_like(scale), scale, doubt)

    def _here(self, level: Floats) -> tuple[Floats, Floats]:
        """What a level is multiplied by in the present slot, and the variance that this adds."""
        return self._scaled(level, self.state.ratio, self.state.variance, LAST_SLOT)

    def _scale(self, ratio: float, of_week: Floats | float = 0.0) -> Floats:
        """What a level is multiplied by where the total has this ratio, shape (d,).

        Args:
            ratio: of one or more slots.
            of_week: the effects of their phases.
        """
        scale = np.ones(self.bank.bins)
        if self.state.used:
            scale += self.state.loadings.estimates()[0] * (ratio - 1)
        return np.minimum(np.maximum(scale + of_week, LEAST), MOST)

    def _scaled(
        self, level: Floats, ratio: float, variance: float, shares: Floats
    ) -> tuple[Floats, Floats]:
        """What a level is multiplied by, and the variance that this adds, shape (d,) each.

        Ratio, loadings and effects of phases are uncertain.

        Args:
            level: the level, shape (d,).
            ratio: of one or more slots.
            variance: of that.
            shares: of the last slots, for the effects of their phases.
        """
        effects: Floats | float = 0.0
        of_week = np.zeros(len(level))
        if self.state.phases.used:
            effects, uncertain_effects = self.state.phases.at(self.slot, shares)
            of_week = uncertain_effects * level**2
        scale = self._scale(ratio, effects)
        if not self.state.used:
            return scale, of_week
        loading, uncertain = self.state.loadings.estimates()
        lever = self.state.loadings.lever(level * (ratio - 1), scale)
        found: Floats = variance * (loading * level) ** 2 + (uncertain + MISFIT**2) * lever**2
        return scale, np.asarray(found + of_week + (level * np.maximum(FAINT - scale, 0.0)) ** 2)

    def observe(
        self,
        state: BankState,
        counts: Floats,
        noise: float | Floats,
        error: Floats,
        shares: Floats = LAST_SLOT,
        *,
        alarmed: bool = False,
        rarity: float = RARE,
    ) -> Observed:
        """As the bank's."""
        level, own, factor = self.bank.forecast(state), len(shares) == 1, self.state
        blur, bends = noise + error, factor.bends
        if own:
            total, unsure = float(counts.sum()), float(blur.sum()) + factor.doubt
            self.factor.learn_release(factor, self.slot, total, unsure)
            whole, parts = factor.ratio, shares
            scale, doubt = self._here(level.mean)
            now = _counts(level, scale, doubt)
        else:
            parts, now = shares * factor.last(len(shares)), self.of_level(level)
            whole = float(parts.sum())
            parts = parts / whole if factor.used else shares
            scale, doubt = self._scaled(level.mean, whole, 0.0, shares)
        squared = scale**2
        seen = self.bank.observe(
            state,
            counts / scale,
            noise / squared,
            (error + doubt) / squared,
            parts,
            alarmed=alarmed,
            rarity=rarity,
        )
        after = self.bank.forecast(state).mean
        if factor.usual:
            curve = level.variance * squared + level.white * scale * float(shares @ shares)
            self._learn(seen, level.mean, after, counts, whole, scale, curve, blur, own)
        if own and self.factor.model.phases:
            factor.phases.learn(self.slot, counts, self._scale(whole), after * seen.jumped)
        if not bends:
            return seen
        before = foreseen = now.variance + now.white
        mean, variance, expected = seen.mean, seen.variance, now.mean
        if not own:
            each, left = self._here(seen.mean)
            mean, variance = seen.mean * each, seen.variance * each**2 + left
            expected, foreseen = seen.expected * scale, seen.foreseen * squared
        of_bins = replace(
            seen,
            mean=mean,
            variance=variance,
            before=before,
            observed=counts,
            expected=expected,
            foreseen=foreseen,
            noise=noise,
            error=error,
        )
        if not own or seen.taken is None:
            return of_bins
        shared: Floats | float = 0.0
        if factor.used:
            loading, _ = factor.loadings.estimates()
            shared = loading * level.mean * factor.by_release * blur / factor.usual
        factor.released = of_the_slot(of_bins, seen.taken.opened * squared, shared)
        return factor.released

    def _learn(
        self,
        seen: Observed,
        before: Floats,
        after: Floats,
        counts: Floats,
        whole: float,
        scale: Floats,
        curve: Floats,
        blur: Floats,
        own: bool,
    ) -> None:
        """Learn loadings from a release.

        Args:
            seen: what the bank made of it.
            before: levels before it, shape (d,).
            after: levels after it, shape (d,).
            counts: the release, shape (d,).
            whole: ratio of all its slots together.
            scale: what levels were multiplied by, shape (d,).
            curve: variance of what was foreseen of it, shape (d,).
            blur: variance of its errors, shape (d,).
            own: whether it is of the present slot alone.
        """
        missed = counts / scale - before
        away = np.where(np.abs(missed) > _LEAST, missed, np.inf)
        part_taken = np.minimum(np.maximum((after - before) / away, 0.0), 1.0)
        gain = np.where(seen.jumped, 1.0, part_taken)
        itself = np.zeros(len(before))
        if own:
            itself = self.state.by_counts * curve + self.state.by_release * blur
            itself = itself * before / self.state.usual
        loading = np.zeros(len(before))
        if self.state.used:
            loading, _ = self.state.loadings.estimates()
        lesson = Lesson(
            before * (whole - 1), scale, missed * scale, curve + blur, itself, gain, ~seen.jumped
        )
        self.state.loadings.learn(lesson, loading)


def _counts(level: Forecast, scale: Floats, doubt: Floats) -> Forecast:
    """Levels times numbers, both of shape (d,), where that adds such variances."""
    variance = level.variance * scale**2 + doubt
    return Forecast(level.mean * scale, variance, level.white * scale, level.scale * scale)
