"""The adaptive mechanism: weighted releases when they are worth it, a filter in between.

Nothing is sampled and no budget is switched between distribution and absorption: it is scheduled.
Each class of users has an exact ledger over its sliding window; a slot is released when the filter
expects that to lower the error most; every other slot gets the filter's forecast.

Guarantee: (w, E)-EPDP, pure: over any `window` consecutive slots, the releases of a user of class k
differ in distribution by at most a factor exp(epsilon_k).
Adjacency: streams that differ in one user's events, all added or removed (sensitivity 1 for one
contribution a slot); replaced with twice the sensitivity.
Sensitivity: of the weighted integer histogram and of its L1 distance from public integers alike,
m_k per contribution (`weighting.py`).
Proof: gaps, thresholds, weights, forecasts and alarms are functions of the public registry and of
earlier noisy results. So the likelihood ratio of a user's two worlds is a product of factors, one
for each noisy result, each at most exp(what it is charged). The charges of gate, releases, reserve
and audits in any window add up to at most E: the first two share `main_cap`, less the room that the
window has left; the reserve has a cap of its own; an audit costs `audit_cap` once in the longest
window. The odometer checks the sum.
Source: our own.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms import adaptive_state, kalman
from streamveil.mechanisms.adaptive_state import AdaptiveState
from streamveil.mechanisms.budgets import Units, to_epsilon
from streamveil.mechanisms.correlation import Correlation, Risk
from streamveil.mechanisms.kalman import Forecast
from streamveil.mechanisms.mechanism import Population, SlotInput, SlotRelease
from streamveil.mechanisms.noise import SlotNoise
from streamveil.mechanisms.planning import Plan
from streamveil.mechanisms.records import PREDICTED, PUBLISHED, SKIPPED, ConfigurationError
from streamveil.mechanisms.schedule import whole_budgets
from streamveil.mechanisms.weighting import Choices, Weighting
from streamveil.mechanisms.window_sums import WindowSums

Floats = npt.NDArray[np.float64]

# Share of the budget for the gate, for few bins and for many.
GATE_FEW_BINS, GATE_MANY_BINS, MANY_BINS = 0.2, 0.1, 10
# An alarm is a deviation so many noise scales and standard deviations above the expected one.
ALARM = 3.0
# The reserve is divided by these on an alarm, and when the plan turns to much shorter gaps.
RESERVE_ON_ALARM, RESERVE_ON_HASTE = 2, 4
HASTE = 0.6
AFTER_JUMP = 1
SLOW = 0.02
REPLAN_EVERY = 4
# A release whose noise variance exceeds the forecast's so many times tells nothing.
USELESS = 10.0
# A release comes early when the curve is so many times less certain than planned.
IMPATIENCE = 3.0
# Variance of rounding to whole counts.
ROUNDING = 1 / 12
# Squared beta (see `correlation.py`) that audits are made for.
AUDITED_BIAS = 0.05
NO_RISK = Risk(0.0, 0.0)
# Bias is not looked for where weights would be nearly equal even if there were none.
WORTH_LEARNING = 0.1
_MOST = np.iinfo(np.int64).max


class Adaptive:
    """See the module.

    Args:
        name: what releases say.
        population: public facts.
        assume_independent: weigh users by budget, which is unbiased if class and value are
            independent and corrected by audits if they are not; otherwise weigh all alike.
        gate: share of the budget for looking for jumps in every slot; -1 chooses by bins.
        audit: share of the budget for audits; nearly everybody gives as much as the least of them.
        reserve: share of the rest that waits for alarms.
    """

    def __init__(
        self,
        name: str,
        population: Population,
        *,
        assume_independent: bool = True,
        gate: float = -1.0,
        audit: float = 0.1,
        reserve: float = 0.15,
    ) -> None:
        if gate == -1.0:
            gate = GATE_FEW_BINS if population.bins < MANY_BINS else GATE_MANY_BINS
        for option, share in (("gate", gate), ("audit", audit), ("reserve", reserve)):
            if not 0 <= share < 1:
                raise ConfigurationError(
                    f"mechanism {name!r}: {option} is {share:g}, give a share from 0 to below 1"
                )
        if gate + audit >= 1:
            raise ConfigurationError(
                f"mechanism {name!r}: gate {gate:g} and audit {audit:g} leave no budget to release"
            )
        self.name = name
        self.population = population
        self.assume_independent = assume_independent
        self.windows = np.array([r.window for r in population.requirements], dtype=np.int64)
        self.longest = int(self.windows.max())
        budgets = whole_budgets(population.requirements)
        rates = Choices.of(budgets // self.windows, population)
        weighted = (
            assume_independent and rates.dispersion.size > 0 and rates.dispersion.max() > 1e-9
        )
        self.audit = self._audit(_part(budgets, audit)) if weighted else None
        self.audit_cap = self.audit.spent if self.audit else np.zeros_like(budgets)
        self.gate = _part(budgets, gate) // self.windows
        self.reserve_cap = _part(budgets - self.audit_cap - self.gate * self.windows, reserve)
        self.main_cap = budgets - self.audit_cap - self.reserve_cap
        self.rate = (self.main_cap - self.gate * self.windows) // self.windows
        most = float(population.sizes.sum()) * population.sensitivity
        self.bank = kalman.Bank(most, population.bins)
        self._sums = WindowSums(self.windows)
        self.correlation = Correlation(population.bins, float(rates.dispersion.max(initial=0.0)))
        self.plan = Plan([self._choices(self._accrued(gap, gap)) for gap in kalman.GAPS.tolist()])
        # Counts of a complete histogram add up: one of them is known from the others.
        self._freedom = population.bins / np.sqrt(max(population.bins - 1, 1))

    def start(self) -> AdaptiveState:
        """Nothing released yet."""
        bank = self.bank.start()
        return AdaptiveState(
            bank,
            self.correlation.start(bank.scale),
            self._sums.start(),
            self._sums.start(),
        )

    def step(
        self, state: AdaptiveState, slot_input: SlotInput, noise: SlotNoise
    ) -> tuple[AdaptiveState, SlotRelease]:
        """Release one slot."""
        counts = slot_input.counts
        if state.slots:
            self.bank.advance(state.bank)
        audit = self.audit if state.slots % self.longest == 0 else None
        forecast, risk = self.bank.forecast(state.bank), self._risk(state)
        due = (
            audit is not None or state.since >= state.gap or self._impatient(state, forecast, risk)
        )
        room = self.main_cap - state.spent.recent
        looked, surprise = np.zeros_like(room), 0.0
        if not due:
            offers = np.minimum(self.gate, room)
            looked, surprise = self._look(state, forecast, risk, offers, counts, noise)
        alarmed = surprise > ALARM or not state.slots
        weighting, regular = None, np.zeros_like(room)
        if due or alarmed:
            regular = np.minimum(room - looked, self._accrued(state.since, state.gap))
            offers = regular + self._from_reserve(state, alarmed)
            weighting = self._weighting(state, forecast, risk, offers, audit is not None)
        seen = self._observe(state, weighting, audit, counts, noise)
        jumped = False
        status = PUBLISHED
        if seen is None:
            status, mean, variance = self._predicted(state, forecast)
        else:
            estimate, laplace, other = seen
            started = state.published_slot is not None
            gap = state.unseen if started else 0
            jumps = self.bank.observe(state.bank, estimate, laplace, other, gap)
            jumped = started and bool(jumps.any())
            mean, variance = self.bank.estimate(state.bank, estimate, laplace + other)
            state.published_slot = slot_input.slot
        spent = weighting.spent if weighting else np.zeros_like(room)
        from_main = np.minimum(spent, regular)
        state.spent = self._sums.add(state.spent, looked + from_main)
        state.reserve = self._sums.add(state.reserve, spent - from_main)
        if weighting:
            state.epsilon, state.dispersion = weighting.epsilon, weighting.dispersion
        elif audit:
            state.epsilon, state.dispersion = audit.epsilon, 0.0
        state.since = 1 if weighting else state.since + 1
        state.unseen = 1 if seen is not None else state.unseen + 1
        if seen is not None or state.slots % REPLAN_EVERY == 0:
            self._replan(state)
        if jumped:  # to a new level or on a new slope: the next release tells
            state.gap = min(state.gap, AFTER_JUMP)
        state.slots += 1
        most = self.population.sizes.sum() * self.population.sensitivity
        return state, SlotRelease(
            np.rint(np.clip(mean, 0, most)).astype(np.int64),
            status,
            state.published_slot,
            state.epsilon,
            np.sqrt(variance + self._doubt(state) + ROUNDING),
            looked + spent + self.audit_cap * int(audit is not None),
            alarm=jumped,
            diagnostics=self._diagnostics(state, surprise),
        )

    def _predicted(self, state: AdaptiveState, forecast: Forecast) -> tuple[str, Floats, Floats]:
        """Status, mean and variance of a slot without a release; nothing is known before one."""
        if state.published_slot is None:
            return SKIPPED, np.zeros(self.bank.bins), np.full(self.bank.bins, np.nan)
        return PREDICTED, forecast.mean, forecast.variance + forecast.white

    def _audit(self, shares: Units) -> Weighting | None:
        """Weights of audits: alike, but for the few who would make the audit worthless."""
        choices = self._choices(shares)
        if not choices.thresholds.size:
            return None
        scale = float(self.population.sizes.sum()) / 10
        errors = choices.errors(scale, Risk(AUDITED_BIAS * scale**2, 0.0))
        return self._capped(int(choices.thresholds[errors.argmin()]), shares)

    def _accrued(self, since: int, gap: int) -> Units:
        """What classes saved up in so many slots; there is no gate when every slot is released."""
        rate = self.rate if gap > 1 else self.main_cap // self.windows
        return rate * np.minimum(since, self.windows)

    def _from_reserve(self, state: AdaptiveState, alarmed: bool) -> Units:
        """Part of the reserve: on alarm, or when the plan turns to much shorter gaps."""
        if not (alarmed or state.gap < HASTE * state.usual_gap):
            return np.zeros_like(self.rate)
        left = self.reserve_cap - state.reserve.recent
        part = left // (RESERVE_ON_ALARM if alarmed else RESERVE_ON_HASTE)
        # As many slots' worth for everybody, so that the weights stay what audits compare.
        able = (self.population.sizes > 0) & (self.rate > 0) & (self.reserve_cap > 0)
        if not able.any():
            return np.zeros_like(part)
        slots = (part[able] / self.rate[able]).min()
        return np.minimum(slots * self.rate, part).astype(np.int64)

    def _choices(self, offers: Units) -> Choices:
        each = offers // self.population.sensitivity
        if not self.assume_independent:
            each = np.full_like(each, each[self.population.sizes > 0].min(initial=_MOST))
        return Choices.of(each, self.population)

    def _chosen(
        self, state: AdaptiveState, offers: Units, choices: Choices, risk: Risk
    ) -> Weighting:
        errors = choices.errors(float(state.bank.scale.mean()), risk)
        return self._capped(int(choices.thresholds[errors.argmin()]), offers)

    def _capped(self, threshold: int, offers: Units) -> Weighting:
        return Weighting.at(threshold, offers // self.population.sensitivity, self.population)

    def _weighting(
        self, state: AdaptiveState, forecast: Forecast, risk: Risk, offers: Units, auditing: bool
    ) -> Weighting | None:
        """The best weighting for the offers, or None if its release would tell nothing."""
        choices = self._choices(offers)
        if not choices.thresholds.size:
            return None
        weighting = self._chosen(state, offers, choices, NO_RISK if auditing else risk)
        if auditing and weighting.dispersion > WORTH_LEARNING * self.correlation.reference:
            # What an audit shows is learnt of the most unequal weights.
            weighting = self._capped(int(choices.thresholds[-1]), offers)
        doubt = float((forecast.variance + forecast.white).mean())
        return weighting if weighting.noise_variance <= USELESS * doubt else None

    def _doubt(self, state: AdaptiveState) -> Floats:
        """Variance of the bias that releases like the last one have, shape (d,)."""
        return self.correlation.bias(state.correlation, state.bank.scale, state.dispersion)[1]

    def _risk(self, state: AdaptiveState) -> Risk:
        return self.correlation.risk(state.correlation, state.bank.scale)

    def _look(
        self,
        state: AdaptiveState,
        forecast: Forecast,
        risk: Risk,
        offers: Units,
        counts: npt.NDArray[np.int64],
        noise: SlotNoise,
    ) -> tuple[Units, float]:
        """The gate: how far the slot is from the forecast, privately.

        Returns:
            (units spent, shape (K,); surprise in noise scales above what is usual).
        """
        choices = self._choices(offers)
        if not choices.thresholds.size:
            return np.zeros_like(offers), 0.0
        weighting = self._chosen(state, offers, choices, risk)
        scale, dispersion = state.bank.scale, weighting.dispersion
        bias, doubt = self.correlation.bias(state.correlation, scale, dispersion)
        target = np.rint((forecast.mean + bias) / weighting.factor).astype(np.int64)
        distance = np.abs(weighting.histogram(counts) - target).sum(keepdims=True)
        noisy = weighting.add_noise(distance, noise, "gate", target.tobytes())
        deviation = float(noisy[0]) * weighting.factor
        spread = np.sqrt(forecast.variance + forecast.white + dispersion * scale + doubt)
        usual = np.sqrt(2 / np.pi) * spread.sum()
        varies = 3 * np.sqrt(1 - 2 / np.pi) * spread.mean() * self._freedom
        noise_scale = weighting.factor / float(to_epsilon(weighting.unit))
        return weighting.spent, float((deviation - usual - varies) / noise_scale)

    def _observe(
        self,
        state: AdaptiveState,
        weighting: Weighting | None,
        audit: Weighting | None,
        counts: npt.NDArray[np.int64],
        noise: SlotNoise,
    ) -> tuple[Floats, float, Floats] | None:
        """Make the slot's releases and put them together.

        Returns:
            (estimated counts, variance of the Laplace noise, variance of all other errors), or
            None if there is no release; counts and errors have shape (d,).
        """
        released = None
        if weighting:
            released = weighting.release(counts, noise, "release")
            if not audit:
                return self._corrected(state, weighting, released)
        elif not audit:
            return None
        audited, laplace = audit.release(counts, noise, "audit"), audit.noise_variance
        if weighting is None or released is None:
            return audited, laplace, np.zeros_like(audited)
        if state.published_slot is None:
            state.bank.scale = self.bank.scale(audited)
            state.correlation = self.correlation.start(state.bank.scale)
        scale = state.bank.scale
        error = laplace + weighting.noise_variance + weighting.dispersion * scale
        self.correlation.learn(
            state.correlation, released - audited, scale, weighting.dispersion, error
        )
        released, noise_variance, other = self._corrected(state, weighting, released)
        _, doubt = self.correlation.bias(state.correlation, scale, weighting.dispersion)
        share = laplace / (laplace + noise_variance + other + doubt)
        both = share * released + (1 - share) * audited
        laplaces = share**2 * noise_variance + (1 - share) ** 2 * laplace
        # What was released before has the bias that the audit has not.
        return both, float(laplaces.mean()), share**2 * other + (1 - share) ** 2 * doubt

    def _corrected(
        self, state: AdaptiveState, weighting: Weighting, released: Floats
    ) -> tuple[Floats, float, Floats]:
        """Take the expected bias off a release: (counts, variance of noise, other variance).

        The bias that remains is the same in all releases: the filter cannot average it out.
        """
        scale, dispersion = state.bank.scale, weighting.dispersion
        bias, _ = self.correlation.bias(state.correlation, scale, dispersion)
        return released - bias, weighting.noise_variance, dispersion * scale

    def _impatient(self, state: AdaptiveState, forecast: Forecast, risk: Risk) -> bool:
        """Whether the curve is much less certain than the plan expects between releases."""
        if not state.patience:
            return False
        scale = float(state.bank.scale.mean())
        error = self.plan.error_after(state.since, scale, risk)
        return bool(forecast.variance.mean() > IMPATIENCE * state.patience * error)

    def _replan(self, state: AdaptiveState) -> None:
        if self.plan.possible:
            state.gap, state.patience = self.plan.best_gap(
                self._beliefs(state), state.bank.scale, self._risk(state)
            )
        state.usual_gap += SLOW * (state.gap - state.usual_gap) if state.slots else state.gap

    def _beliefs(self, state: AdaptiveState) -> Floats:
        """Belief in each member of the bank over all bins, shape (members,)."""
        scale = state.bank.scale
        beliefs: Floats = self.bank.weights(state.bank) @ scale / scale.sum()
        return beliefs

    def _diagnostics(self, state: AdaptiveState, surprise: float) -> dict[str, float]:
        beliefs = self._beliefs(state)
        beta, _ = self.correlation.belief(state.correlation)
        return {
            "gap": float(state.gap),
            "surprise": surprise,
            "trend": float(beliefs @ kalman.TRENDING[:, 0]),
            "white": float(beliefs @ kalman.WHITE[:, 0]),
            "correlation": float(np.sqrt(np.mean(beta**2))),
        }

    def encode(self, state: AdaptiveState) -> bytes:
        """Bytes of the state."""
        return adaptive_state.pack(state, self._sums)

    def decode(self, data: bytes) -> AdaptiveState:
        """State of bytes. Raises ConfigurationError for another number of bins or classes."""
        return adaptive_state.unpack(data, self.start(), self._sums)


def _part(units: Units, share: float) -> Units:
    """A share of budgets, rounded down: exact, for the share is a whole number of 2**-20."""
    return (units >> 20) * int(share * (1 << 20))
