"""The adaptive mechanism over fixed requirements; its algorithm is in `algorithm.py`.

Each class of users has an exact ledger over its sliding window.

Guarantee: (w, E)-EPDP, pure: over any `window` consecutive slots, the releases of a user of class k
differ in distribution by at most a factor exp(epsilon_k).
Adjacency: streams that differ in one user's events, all added or removed (sensitivity 1 for one
contribution a slot); replaced with twice the sensitivity.
Sensitivity: of the weighted integer histogram and of its L1 distance from public integers alike,
m_k per contribution (`weighting.py`); of a sum over slots, the same slot by slot
(`running_sum.py`); of the total of a slot, that of its histogram (`factor.py`). If the last cell
is the sum of all bins, and totals are followed, this cell is not part of any noisy result. The
sensitivity is then that of the bins, half of that of all cells (`slot_total.py`).
Proof: gaps, thresholds, weights, forecasts and alarms are functions of the public registry and of
earlier noisy results. So the likelihood ratio of a user's two worlds is a product of factors, one
for each noisy result, each at most exp(what it is charged): a sum to the slots of the user's window
that are in it, any other result to its slot. The charges of gate, totals, releases, sums, reserve
and audits in any window add up to at most E: the first four share `main_cap`, less the room that
the window has left; the reserve has a cap of its own; an audit costs `audit_cap` once in the
longest window. The privacy filter checks the sum. After :meth:`Adaptive.resized` a slot costs
something only where the window that it ends stays below the caps in force: what main part and
reserve have cost before, together, is subtracted from what remains of either, and an audit needs
room for both.
Source: our own.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.accounting.window_sums import Sums, WindowSums
from streamveil.mechanisms.adaptive import filter_bank
from streamveil.mechanisms.adaptive.algorithm import AdaptiveRelease
from streamveil.mechanisms.adaptive.budget_plan import (
    AtOnce,
    Plan,
    Rates,
    Shares,
    Terms,
    audit_of,
    choices,
    part,
)
from streamveil.mechanisms.adaptive.cycle import NONE, Cycle
from streamveil.mechanisms.adaptive.growth import grown
from streamveil.mechanisms.adaptive.pooling import FEWEST_BINS
from streamveil.mechanisms.adaptive.slot_total import tells_total
from streamveil.mechanisms.adaptive.state import AdaptiveState, pack, schemas, unpack
from streamveil.mechanisms.adaptive.totals import Layout
from streamveil.mechanisms.adaptive.weighting import Choices, Correlation, guessed_bias
from streamveil.mechanisms.core.budgets import Requirements, Units, to_epsilon
from streamveil.mechanisms.core.records import Requirement
from streamveil.mechanisms.protocol import Members, Population


@dataclass
class Spending:
    """What classes with fixed requirements spent."""

    main: Sums
    """By looks and releases, from `main_cap`."""
    reserve: Sums


class Adaptive(AdaptiveRelease):
    """Over fixed requirements: every part has a cap in the sliding window of each class.

    Args:
        name: what releases say.
        population: public facts.
        assume_independent: weigh users by budget, which is unbiased if class and value are
            independent and corrected by audits if they are not; otherwise weigh all alike.
        gate: share of the budget for looking for jumps; -1 chooses by the number of bins. While
            there are no jumps, releases get what gate and reserve do not need.
        audit: share of the budget for audits, to which nearly all users give as much as the user
            with the smallest budget. If all windows are one slot long, it is the share of sums that
            are audits, and gate and reserve get nothing.
        reserve: share of the rest that waits for alarms.
        cycle: slots after which counts repeat, such as 24; `auto` looks for it, `none` for nothing.
    """

    SCHEMAS = schemas(spent=WindowSums.SCHEMA, reserve="WindowSums")

    def __init__(
        self,
        name: str,
        population: Population,
        *,
        assume_independent: bool = True,
        gate: float = -1.0,
        audit: float = 0.1,
        reserve: float = 0.15,
        cycle: str = NONE,
    ) -> None:
        super().__init__(name, Cycle.of(name, cycle, population.slot_length))
        parts = len(population.graded)
        self.population = population
        self.layout = Layout(parts, population.totals, bool(population.ratio))
        followed = self.layout == Layout(totals=1) and tells_total(population.slot_length)
        if followed or self.layout == Layout():
            self.look_for_factor(
                population.bins - population.totals,
                population.slot_length,
                population.requirements.longest,
                followed,
            )
        if self.factor and self.factor.tells_total:
            population, self.layout = _without_total(population), Layout()
        self._counted = population
        shares = Shares.of(name, gate, audit, reserve, population.bins)
        self.quantum = population.quantum
        self.ratio = population.ratio
        plain = self.layout == Layout()
        self.assume_independent = assume_independent
        self.windows = population.requirements.windows
        self.longest = population.requirements.longest
        budgets = population.requirements.budgets
        dispersion = float(
            Choices.of(budgets // self.windows, population).dispersion.max(initial=0)
        )
        self.audit, self.at_once = None, None
        unequal = assume_independent and dispersion > 1e-9
        if self.longest == 1:
            kept = shares if unequal else replace(shares, audit=0.0)
            self.at_once, shares = AtOnce.of(kept)
        elif unequal:
            self.audit = audit_of(part(budgets, shares.audit), population, True)
        self.audit_cap = self.audit.spent if self.audit else np.zeros_like(budgets)
        if self.audit and population.guessed is not None:
            # An audit must not leave out a class because its guessed size is small.
            self.audit = audit_of(self.audit_cap, population, False)
        self._shares = shares
        self._divide(budgets, budgets)
        self.bank = filter_bank.Bank(
            float(population.sizes.sum()) * population.sensitivity / population.quantum,
            population.bins,
            graded=population.graded,
            assumed=population.assumed,
            pools=plain and population.bins >= FEWEST_BINS,
        )
        unknown = guessed_bias(budgets // self.windows, population) if assume_independent else 0.0
        self.correlation = Correlation(population.bins, dispersion, unknown)
        self._most = int(population.sizes.sum()) * population.sensitivity
        self._sums = WindowSums(self.windows)

    def _divide(self, caps: Units, pace: Units) -> None:
        """Divide what a window may cost and, slot by slot, what it is to cost: both (K,)."""
        _, _, self.main_cap, self.reserve_cap = self._parts(caps)
        self.gate, self.rate, _, reserve = self._parts(pace)
        self.lent = reserve // self.windows
        self._rates: dict[float, tuple[Rates, Plan, npt.NDArray[np.int64]]] = {}

    def _parts(self, budgets: Units) -> tuple[Units, Units, Units, Units]:
        """Of a slot the gate and the rate of releases, of a window the main part and the reserve.

        Audits cost what they always do.
        """
        gate = part(budgets, self._shares.gate) // self.windows
        reserve = part(budgets - self.audit_cap - gate * self.windows, self._shares.reserve)
        main = budgets - self.audit_cap - reserve
        return gate, (main - gate * self.windows) // self.windows, main, reserve

    @property
    def least(self) -> Units:
        """What a window costs whatever the budget: audits, shape (K,)."""
        return self.audit_cap

    def resized(self, caps: Units, pace: Units) -> Adaptive:
        """The same with other budgets, from the next slot of a state on.

        Audits stay as they are, so budgets must be a few times `least`. Where a window has cost
        more than the cap already, slots cost nothing until it has not.

        Args:
            caps: what a window may cost a user of each class, shape (K,).
            pace: what a window costs if every slot gets an even part; `caps` at most.
        """
        other = copy(self)
        pairs = zip(self.windows.tolist(), to_epsilon(caps).tolist(), strict=True)
        requirements = Requirements(Requirement(window, epsilon) for window, epsilon in pairs)
        other.population = replace(self.population, requirements=requirements)
        other._counted = replace(self._counted, requirements=requirements)
        other._divide(caps, pace)
        return other

    def grown(self, state: AdaptiveState, origin: npt.NDArray[np.int64]) -> AdaptiveState:
        """Turn a state with other bins into a state of this mechanism: see `growth.py`."""
        # A total that is followed is no cell of the state, before or after.
        cells = state.bank.level.shape[1]
        origin = np.where(origin < cells, origin, -1)[: self._counted.bins]
        return grown(state, self.start(), origin, at_once=self.at_once is not None)

    def _rates_at(self, alert: float) -> tuple[Rates, Plan, npt.NDArray[np.int64]]:
        """Rates at a level of alert, the plan for them, and the classes of `Terms.givers`."""
        if alert not in self._rates:
            rates = Rates.at(alert, self.gate, self.rate, self.lent)

            def possible(offers: Units) -> Choices:
                return choices(offers, self._counted, self.assume_independent)

            plan = Plan(
                lambda gap: possible(rates.offers(np.minimum(gap, self.windows), gap > 1)),
                possible(rates.offers(1)),
                lambda slots: possible(rates.gate * slots),
            )
            givers = (self._counted.sizes > 0) & (rates.main > 0) & (self.reserve_cap > 0)
            self._rates[alert] = rates, plan, np.flatnonzero(givers)
        return self._rates[alert]

    def start(self) -> AdaptiveState:
        """Nothing released yet."""
        accounts = Spending(self._sums.start(), self._sums.start())
        return AdaptiveState.start(self.bank, self.correlation, self.cycle, self.factor, accounts)

    def terms(self, state: AdaptiveState, members: Members | None) -> Terms:
        """What is left of every part in the window of each class."""
        rates, plan, givers = self._rates_at(state.alert)
        main = self.main_cap - state.accounts.main.recent
        reserve = self.reserve_cap - state.accounts.reserve.recent
        room = True
        if min(*main.tolist(), *reserve.tolist()) < 0:
            # After caps fell, one part may have cost too much: then less remains of the other one.
            room = bool((main + reserve >= 0).all())
            left = np.maximum(main + reserve, 0)
            main = np.minimum(np.maximum(main, 0), left)
            reserve = np.minimum(np.maximum(reserve, 0), left)
        return Terms(
            self._counted,
            self.assume_independent,
            self.windows,
            rates,
            main,
            reserve,
            givers,
            self.audit if room and state.slots % self.longest == 0 else None,
            self.bank,
            self.correlation,
            plan,
            self._most,
            self.at_once,
        )

    def book(self, state: AdaptiveState, main: Units, reserve: Units, audit: Units) -> None:
        """Enter the slot into the windows; audits need no account."""
        accounts = state.accounts
        accounts.main = self._sums.add(accounts.main, main)
        accounts.reserve = self._sums.add(accounts.reserve, reserve)

    def encode(self, state: AdaptiveState) -> bytes:
        """Bytes of the state."""
        accounts = {
            "spent": self._sums.record(state.accounts.main),
            "reserve": self._sums.record(state.accounts.reserve),
        }
        return pack(state, self.SCHEMAS, accounts)

    def decode(self, data: bytes) -> AdaptiveState:
        """State of bytes. Raises ConfigurationError for another number of bins or classes."""
        return unpack(
            data,
            self.SCHEMAS,
            self.start(),
            lambda record: Spending(
                self._sums.read(record["spent"]), self._sums.read(record["reserve"])
            ),
        )


def _without_total(population: Population) -> Population:
    """The public facts without the last cell, which is the sum of all others.

    An event changes this sum by as much as it changes its bin, so the sensitivity is halved.
    """
    sensitivity = (population.sensitivity + 1) // 2
    return replace(population, bins=population.bins - 1, sensitivity=sensitivity, totals=0)
