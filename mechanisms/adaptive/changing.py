"""The adaptive mechanism over requirements that change; its algorithm is in `algorithm.py`.

Guarantee: pure. For every user and slot t with the requirement (w_B, E_B, w_F, E_F), the releases
of the slots t to t + w_F - 1 differ in distribution by at most exp(E_F), and those of
t - w_B + 1 to t by at most exp(E_B) unless earlier slots have already spent more: then slot t
costs the user nothing.
Adjacency, sensitivity and proof: as in `fixed.py`. Every window that a slot opens has a cap for
looks and releases, one for the reserve and one for audits, which add up to E_F; a slot spends of
each part at most what the tightest open window leaves, and of all parts together at most what the
window looking back leaves. Requirements, and when they change, are public. A ledger's weight in a
slot of a sum follows from what it may spend in that slot, not from the gap's beginning: ledgers
remember nothing of a running sum but what they spent.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.accounting.open_windows import OpenWindows
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
from streamveil.mechanisms.adaptive.fixed import Adaptive
from streamveil.mechanisms.adaptive.pooling import FEWEST_BINS
from streamveil.mechanisms.adaptive.state import AdaptiveState, pack, schemas, unpack
from streamveil.mechanisms.adaptive.weighting import Choices, Correlation, Weighting, guessed_bias
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.budgets import Units
from streamveil.mechanisms.protocol import Members, Setting

# Parts of a budget: looks and releases, reserve, audits.
MAIN, RESERVE, AUDIT = 0, 1, 2
# Up to this many ledgers are planned for one by one; more are grouped by about equal budgets.
FEW_LEDGERS = 64
# Ledgers whose reserve is less than this part of the average do not limit that of others.
LITTLE_RESERVE = 0.5


class DynamicAdaptive(AdaptiveRelease):
    """See the module.

    Args:
        name: what releases say.
        setting: public facts.
        assume_independent: as for
            :class:`~streamveil.mechanisms.adaptive.fixed.Adaptive`, like the rest.
        gate: share of the budget for looking for jumps; -1 chooses by bins.
        audit: share of the budget for audits, one in every `horizon` slots.
        reserve: share of the rest that waits for alarms.
        cycle: slots after which counts repeat, such as 24; `auto` looks for it, `none` for nothing.
    """

    SCHEMAS = schemas(windows=state_codec.record_schema("OpenWindows", **OpenWindows.FIELDS))

    def __init__(
        self,
        name: str,
        setting: Setting,
        *,
        assume_independent: bool = True,
        gate: float = -1.0,
        audit: float = 0.1,
        reserve: float = 0.15,
        cycle: str = NONE,
    ) -> None:
        super().__init__(name, Cycle.of(name, cycle, setting.slot_length))
        self.look_for_factor(setting.bins, setting.slot_length, setting.horizon)
        self.setting = setting
        self.assume_independent = assume_independent
        self.shares = Shares.of(
            name, gate, audit if assume_independent else 0.0, reserve, setting.bins
        )
        self.at_once = None
        if setting.horizon == 1:
            self.at_once, self.shares = AtOnce.of(self.shares)
        self.windows = OpenWindows(setting.horizon, parts=3, rates=1)

    def start(self) -> AdaptiveState:
        """Nothing released yet, and no ledger."""
        bank = filter_bank.Bank(1.0, self.setting.bins)
        correlation = Correlation(self.setting.bins, 0.0)
        return AdaptiveState.start(bank, correlation, self.cycle, self.factor, self.windows.start())

    def regroup(self, state: AdaptiveState, parents: npt.NDArray[np.int64]) -> AdaptiveState:
        """Fork, merge and drop ledgers."""
        state.accounts = self.windows.regroup(state.accounts, parents)
        return state

    def canonical(self, state: AdaptiveState, ledgers: npt.NDArray[np.int64]) -> Units:
        """All that the future of some ledgers depends on, shape (A, S)."""
        return self.windows.canonical(state.accounts, ledgers)

    def terms(self, state: AdaptiveState, members: Members | None) -> Terms:
        """Begin the slot: what the tightest window of each ledger leaves of every part."""
        assert members is not None
        windows = state.accounts
        back, back_cap, ahead, ahead_cap = members.asked.T
        pace = ahead_cap // np.maximum(ahead, 1)
        self.windows.open(windows, ahead, self._parts(ahead_cap), pace[None])
        past = self.windows.past(windows, back)
        behind = self._parts(back_cap) - past
        left = [np.minimum(self.windows.left(windows, p), behind[p]) for p in range(3)]
        # Zero for ledgers whose users have left, and where the past exceeds the requirement.
        main, reserve, audits = (np.maximum(each, 0) for each in left)
        limit = np.maximum(back_cap - past.sum(axis=0), 0)
        pace = np.minimum(self.windows.rate(windows, 0), back_cap // np.maximum(back, 1))
        gate = part(pace, self.shares.gate)
        rest = pace - gate - part(pace, self.shares.audit)
        kept = part(rest, self.shares.reserve)
        rates = Rates.at(state.alert, gate, rest - kept, kept)
        audit = None
        if self.shares.audit and state.slots % self.setting.horizon == 0:
            audit = self._audit(np.minimum(audits, limit), pace, members)
            limit = limit - audit.spent if audit else limit
        main = np.minimum(main, limit)
        reserve = np.minimum(reserve, limit - main)
        most = int(members.sizes.sum()) * members.sensitivity
        bins = self.setting.bins
        bank = filter_bank.Bank(
            float(most), bins, assumed=members.assumed, pools=bins >= FEWEST_BINS
        )
        saved = _Saved(rates, ahead, members, self.assume_independent)
        plan = Plan(
            saved,
            saved.every(),
            lambda slots: choices(rates.gate * slots, members, self.assume_independent),
        )
        dispersion = float(plan.points(1).dispersion.max(initial=0.0))
        unknown = guessed_bias(rates.offers(1), members) if self.assume_independent else 0.0
        return Terms(
            members,
            self.assume_independent,
            ahead,
            rates,
            main,
            reserve,
            _plenty(reserve, rates.main, members.sizes).nonzero()[0],
            audit,
            bank,
            Correlation(self.setting.bins, dispersion, unknown),
            plan,
            most,
            self.at_once,
        )

    def taken_over(
        self, fixed: Adaptive, state: AdaptiveState, spent: Units, unknown: Units
    ) -> AdaptiveState:
        """Continue from the state of a mechanism over fixed requirements, each class a ledger.

        Windows that are open keep the caps that they were opened with.

        Args:
            fixed: the mechanism so far.
            state: its state.
            spent: by each class in the last slots, oldest first, shape (T, K).
            unknown: what each class is assumed to have spent before them, shape (K,).
        """
        budgets = fixed.population.requirements.budgets
        caps = np.stack([fixed.main_cap, fixed.reserve_cap, budgets - fixed.main_cap])
        caps[AUDIT] -= fixed.reserve_cap
        rate = budgets // fixed.windows
        windows = self.windows.start(len(budgets))
        for row, total in enumerate(spent):
            slot = state.slots - len(spent) + row
            main, reserve = (
                sums.ring[slot % len(sums.ring)]
                for sums in (state.accounts.main, state.accounts.reserve)
            )
            self.windows.open(windows, fixed.windows, caps, rate[None])
            self.windows.close(windows, np.stack([main, reserve, total - main - reserve]))
        self.windows.assume(windows, MAIN, unknown)
        state.accounts = windows
        if self.factor is None:
            state.factor = None
        elif state.factor is None:  # windows of one slot had no use for it
            state.factor = self.factor.start()
            if self.cycle:
                state.cycle = self.cycle.start(self.setting.bins)
        return state

    def _parts(self, budgets: Units) -> Units:
        """Caps of all parts, shape (3, L), of budgets (L,)."""
        audits = part(budgets, self.shares.audit)
        reserve = part(budgets - audits - part(budgets, self.shares.gate), self.shares.reserve)
        return np.stack([budgets - audits - reserve, reserve, audits])

    def _audit(self, shares: Units, pace: Units, members: Members) -> Weighting | None:
        """The audit that is due, unless budgets hardly differ: then nothing can be learnt."""
        unequal = choices(pace, members, self.assume_independent).dispersion.max(initial=0.0)
        weighted = self.assume_independent and members.guessed is None
        return audit_of(shares, members, weighted) if unequal > 1e-9 else None

    def book(self, state: AdaptiveState, main: Units, reserve: Units, audit: Units) -> None:
        """Enter the slot into all windows."""
        self.windows.close(state.accounts, np.stack([main, reserve, audit]))

    def encode(self, state: AdaptiveState) -> bytes:
        """Bytes of the state."""
        accounts = {"windows": self.windows.record(state.accounts)}
        return pack(state, self.SCHEMAS, accounts)

    def decode(self, data: bytes) -> AdaptiveState:
        """State of bytes. Raises ConfigurationError for another number of bins."""
        return unpack(
            data, self.SCHEMAS, self.start(), lambda record: self.windows.read(record["windows"])
        )


def _plenty(reserve: Units, rate: Units, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which ledgers have not much less reserve than the average, in slots of saving."""
    slots = reserve / np.maximum(rate, 1)
    saving = sizes * (rate > 0)
    usual = float((slots * saving).sum()) / max(int(saving.sum()), 1)
    plenty: npt.NDArray[np.bool_] = (reserve > 0) & (slots >= LITTLE_RESERVE * usual)
    plenty &= saving > 0
    return plenty


class _Saved:
    """Possible releases when ledgers have saved up over a gap."""

    def __init__(self, rates: Rates, windows: Units, members: Members, independent: bool) -> None:
        self._independent = independent
        group, first = np.arange(len(windows)), np.arange(len(windows))
        if len(windows) > FEW_LEDGERS:
            scale = np.rint(4 * np.log2(np.maximum(rates.main, 1))).astype(np.int64)
            length = np.rint(4 * np.log2(np.maximum(windows, 1))).astype(np.int64)
            kinds = scale << 32 | length
            _, first, group = np.unique(kinds, return_index=True, return_inverse=True)
        sizes = np.bincount(group, members.sizes, minlength=len(first)).astype(np.int64)
        gate, main, lent = (each[first] for each in (rates.gate, rates.main, rates.lent))
        self._rates = replace(rates, gate=gate, main=main, lent=lent)
        self._windows = windows[first]
        self._crowd = Members(members.asked[:0], sizes, members.bins, members.sensitivity)

    def every(self) -> Choices:
        """All weights of a slot of a sum."""
        return choices(self._rates.offers(1), self._crowd, self._independent)

    def __call__(self, gap: int) -> Choices:
        """All weights after a gap."""
        offers = self._rates.offers(np.minimum(gap, self._windows), gap > 1)
        return choices(offers, self._crowd, self._independent)
