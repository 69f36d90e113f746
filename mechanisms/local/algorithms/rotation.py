"""Rotation: every user reports once per window with the whole budget, and a filter follows.

The error of a frequency oracle falls with the number of reports, linearly in its inverse, so that
saving users up for later gains nothing: an even stream of reports, filtered, holds as much as any
publication that they could be saved up for. There is no dissimilarity and no second round.

What repeats itself, such as the hours of a day, is learnt from the estimates and foreseen, with
`cycle=24` (`seasons.py`); later slots can revise earlier ones (`adaptive/revisions.py`).

Reports of a slot are combined by inverse variance, or with `robust=True` each user's report stands
for w_k users of class k. The latter is a difference estimator: with the forecast g of earlier
slots,

    f = g + sum over reports of w_k / n (x - g),

where x is the unbiased estimate of one report. Every user has a turn in a slot with probability
1 / w_k, so it is unbiased however class and value hang together, and whatever the classes' sizes: a
class with fewer users than slots in its window is not heard in every slot, and what its report says
then counts more. Otherwise it is the average by class shares. The filter knows of each slot's
error, which contains perturbation and sampling.

With `turns=50`, users who are rarely there are asked 50 times in a window, for half the budget, and
their devices tell the first event alone (`accounting/one_event.py`). Frequencies are scaled by the
share of events that is reported (`server/reported_share.py`). What is rare then errs less, as more
reports are about it; for what is frequent it is the other way round.

Guarantee: (w, E)-local differential privacy of every user over any w consecutive slots, pure and
exact: see `report_groups.py`, which has the proof, or with turns `accounting/one_event.py`. All
else is post-processing of reports.
Adjacency: any values of a user, in the slots of a window, for any others.
Sensitivity: a user has one symbol in a slot.
Source: our own. Oracles and inverse variances are those of Du et al., "PLDP-IDS: personalized local
differential privacy for infinite data stream" (PFO).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.adaptive import filter_bank, kalman
from streamveil.mechanisms.adaptive.revisions import Ring
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.core.budgets import to_epsilon
from streamveil.mechanisms.core.records import PREDICTED, PUBLISHED, SKIPPED, ConfigurationError
from streamveil.mechanisms.local.accounting.one_event import telling_one_event
from streamveil.mechanisms.local.algorithms.report_groups import Changes, Former, Moved, Rota
from streamveil.mechanisms.local.algorithms.schedule import best_oracles, oracles_of
from streamveil.mechanisms.local.protocol import (
    GRR,
    OUE,
    OUE0,
    Ask,
    LocalRelease,
    LocalRevised,
    Tally,
    Users,
)
from streamveil.mechanisms.local.server import seasons
from streamveil.mechanisms.local.server.combination import class_variances, combine
from streamveil.mechanisms.local.server.last_publication import FIELDS, LocalPublication
from streamveil.mechanisms.local.server.projection import on_simplex
from streamveil.mechanisms.local.server.reported_share import ReportedShare
from streamveil.mechanisms.local.server.seasons import Seasons
from streamveil.mechanisms.randomness.noise import RandomWords, SlotNoise

# Every slot tells a little, so the filter judges its members by more of them than where releases
# are few and precise.
MEMORY = 0.99
BEST = "best"
_SEED_WORDS = 4


@dataclass(frozen=True, eq=False)
class Past:
    """What is remembered of a slot that is still to be revised, beside what the ring has."""

    foreseen: Floats
    """What the cycle was taken for: deviations and their variances, shape (2, d)."""
    users: int
    """How many took part."""

    SCHEMA: ClassVar[state_codec.Schema] = state_codec.record_schema(
        "Past", foreseen="bytes", users="long"
    )


@dataclass(frozen=True, eq=False)
class RotationState:
    """All of it public but for who reports when, which only a forger would like to know."""

    bank: kalman.BankState
    last: LocalPublication
    seed: bytes | None = None
    """Where the groups come from; None before the first slot."""
    first: int = 0
    """The stream's first slot."""
    changes: Changes = field(default_factory=Changes)
    slot: int | None = None
    """The slot whose reports are awaited; None between slots."""
    observed: int | None = None
    """Last slot that had any report."""
    reached: int | None = None
    """Last slot up to which the filter went."""
    seasons: Seasons | None = None
    """What is known of the cycle; None without one."""
    ring: Ring | None = None
    """What revisions need; None without any."""
    past: list[Past] = field(default_factory=list)
    """One for each slot that is still to be revised; changed in place, as bank and ring are."""
    share: ReportedShare | None = None
    """Of events that devices tell, changed in place; None without turns."""


_KEPT: dict[str, Any] = {
    "seasons": ["null", Seasons.SCHEMA],
    "ring": ["null", Ring.SCHEMA],
    "past": {"type": "array", "items": Past.SCHEMA},
}


class Rotation:
    """The default of the local mechanisms.

    Args:
        name: what releases say.
        users: the population. Those who come later may belong to it from the beginning, and be
            away, or be appended to it between two slots: see :meth:`change` and `Users.begun`.
        robust: weigh classes by their numbers of users, not by how much their reports tell.
        filtered: release what the filter makes of a slot and those before it, not the slot alone.
        project: release the nearest frequencies that are possible.
        oracle: how everybody reports, `grr` or `oue`; `best` is what errs less at a class's budget.
        cycle: slots after which frequencies repeat themselves, such as 24 for hours; 0 for none.
        turns: how often users are asked in a window who tell one event of it, the last symbol being
            that there is none; 0 for once, with the whole budget.

    Raises:
        ConfigurationError: for another oracle, or a cycle or turns out of range.
    """

    revise = 0
    """How many slots later a slot is revised; 0 for never."""

    SCHEMAS = {
        version: state_codec.record_schema(
            "Rotation",
            bank=bank,
            **FIELDS,
            seed=["null", "bytes"],
            first="long",
            moved={"type": "array", "items": "bytes"},
            former={"type": "array", "items": "bytes"},
            slot=["null", "long"],
            observed=["null", "long"],
            reached=["null", "long"],
            **more,
        )
        for version, bank, more in (
            (1, {"type": "array", "items": "bytes"}, {}),
            (2, kalman.SCHEMA, _KEPT),
            (3, kalman.SCHEMA, {**_KEPT, "likely": ["null", "bytes"]}),
        )
    }

    def __init__(
        self,
        name: str,
        users: Users,
        *,
        robust: bool = False,
        filtered: bool = True,
        project: bool = True,
        oracle: str = BEST,
        cycle: int = 0,
        turns: int = 0,
    ) -> None:
        if oracle not in (BEST, GRR, OUE):
            raise ConfigurationError(
                f"oracle is {oracle!r}: give {BEST}, {GRR} or {OUE}, or leave it out"
            )
        if cycle and not 2 <= cycle <= seasons.LONGEST:
            raise ConfigurationError(
                f"cycle is {cycle}, give a number of slots from 2 to {seasons.LONGEST}, or "
                "0 for none"
            )
        if turns and oracle != BEST:
            raise ConfigurationError(f"with turns devices report by {OUE0}: leave oracle out")
        self.name = name
        self._turns = turns
        self.users = users = telling_one_event(users, turns) if turns else users
        self._cycle = cycle if filtered else 0
        self._robust = robust
        self._filtered = filtered
        self._project = project
        # A scale of frequencies, so that it must stay: whoever comes or leaves.
        scale = users.class_of[: users.begun].size
        self._bank = filter_bank.Bank(scale, users.symbols, MEMORY)
        self._windows = users.classes.windows
        self._prices = users.classes.budgets
        given = (OUE0 if turns else oracle,) * len(users.classes)
        best = oracle == BEST and not turns
        self._kinds = best_oracles(self._prices, users.symbols) if best else given
        self._nobody = Ask(0, 1, np.empty(0, np.int32), self._prices, self._kinds)
        self._oracles = oracles_of(self._nobody, users.symbols)
        self._drawn: tuple[bytes, Rota] | None = None

    def start(self) -> RotationState:
        """Nothing reported yet."""
        symbols = self.users.symbols
        known = Seasons.start(self._cycle, symbols) if self._cycle else None
        share = self._share() if self._turns else None
        nothing = LocalPublication.nothing(symbols)
        return RotationState(self._bank.start(), nothing, seasons=known, share=share)

    def _share(self) -> ReportedShare:
        """What is known of the events that devices tell, before any."""
        blocks = self.users.promised.windows
        sizes = self.users.sizes / self.users.class_of.size
        return ReportedShare(float(sizes @ (blocks / self._windows)), float(sizes @ blocks))

    def begin(
        self, state: RotationState, slot: int, random: SlotNoise
    ) -> tuple[RotationState, Ask]:
        """Ask the users whose turn it is."""
        state = self._opened(state, slot, random)
        users = self._rota(state).turn(slot - state.first, state.changes)
        return replace(state, slot=slot), replace(self._nobody, slot=slot, users=users)

    def take(
        self, state: RotationState, tally: Tally, random: SlotNoise
    ) -> tuple[RotationState, LocalRelease]:
        """Publish; without any report, predict. Raises ValueError when no ask is open."""
        if state.slot is None:
            raise ValueError("reports arrived before any user was asked: begin the slot first")
        slot, bank = state.slot, state.bank
        if state.reached is not None:
            bank.elapsed += 1
        state = self._noting(replace(state, slot=None, reached=slot), slot)
        foreseen = self._foreseen(state, slot)
        if not tally.reports.any():
            release = self._predicted(state, slot, foreseen)
        else:
            state = self._observed(state, tally, slot, foreseen)
            release = state.last.release(PUBLISHED, _known(state, slot))
        if state.ring is None:
            return state, release
        state.ring.passed(slot, int(self._bank.users), np.zeros(self.users.symbols))
        state.past.append(Past(foreseen, int(self.sizes(state).sum())))
        return state, replace(release, revisions=self._revised(state, slot - self.revise))

    def _observed(
        self, state: RotationState, tally: Tally, slot: int, foreseen: Floats
    ) -> RotationState:
        """Learn from the reports of a slot, and publish it."""
        bank, n = state.bank, self._bank.users
        deviation, doubt = foreseen
        expected = self._bank.forecast(bank).mean / n + deviation
        frequencies, variances = self._estimate(state, tally, slot, expected)
        if state.share:
            frequencies, variances = _learnt(
                state.share, frequencies, variances, slot - state.first
            )
        counts, error = (frequencies - deviation) * n, variances * n**2
        elapsed, scale = bank.elapsed, bank.scale
        seen = self._bank.observe(bank, counts, 0.0, error)
        if state.ring and seen.taken:
            state.ring.note(slot, elapsed, scale, seen.taken)
        known = state.seasons
        if known:
            known.learn(slot, frequencies, variances)
        if self._filtered:
            frequencies, variances = seen.mean / n + deviation, seen.variance / n**2
            if known:
                known.released(variances)
        epsilon = float(to_epsilon(self._prices[tally.reports > 0].max()))
        variances = variances + doubt + _doubt(state, frequencies, slot)
        last = LocalPublication.of(frequencies, variances, slot, epsilon, project=self._project)
        return replace(state, last=last, observed=slot)

    def _foreseen(self, state: RotationState, slot: int) -> Floats:
        """What the cycle makes of a slot: deviations and their variances, shape (2, d)."""
        if state.seasons is None:
            return np.zeros((2, self.users.symbols))
        return np.stack(state.seasons.expected(slot))

    def _noting(self, state: RotationState, slot: int) -> RotationState:
        """The state with what revisions need, from a slot on that nothing is known of yet."""
        if not self.revise:
            return replace(state, ring=None, past=[])
        return state if state.ring else replace(state, ring=Ring.start(state.bank, slot))

    def rest(self, state: RotationState) -> tuple[LocalRevised, ...]:
        """The slots that are still to be revised, with what there is: the stream ends."""
        return self._revised(state, state.ring.last_slot) if state.ring else ()

    def _revised(self, state: RotationState, until: int) -> tuple[LocalRevised, ...]:
        """Revise all slots up to one that have not been."""
        ring, bank, n, found = state.ring, state.bank, self._bank.users, []
        weights = self._bank.mixture(bank).weights
        while ring is not None and ring.next_slot <= until:
            slot, expected = ring.revise(weights, bank.scale.astype(np.float64))
            past = state.past.pop(0)
            deviation, doubt = past.foreseen
            frequencies = expected.mean / n + deviation
            variance = (expected.variance + expected.white) / n**2 + doubt
            variance = variance + _doubt(state, frequencies, slot)
            if self._project:
                frequencies = on_simplex(frequencies)
            if state.observed is None:  # nothing is known before a report
                frequencies, variance = 0 * frequencies, np.full_like(variance, np.nan)
            found.append(LocalRevised(slot, frequencies, np.sqrt(variance), past.users))
        return tuple(found)

    def change(
        self,
        state: RotationState,
        slot: int,
        users: npt.ArrayLike,
        classes: npt.ArrayLike,
        random: SlotNoise,
    ) -> RotationState:
        """Let users come, leave or ask for something else from a slot on: see `report_groups.py`.

        Args:
            state: between two slots.
            slot: one that has not begun; change each user once a slot.
            users: who, each once, shape (c,).
            classes: the new class of each, or `rota.AWAY` for one who takes no part.
            random: where groups are drawn from.

        Raises:
            ValueError: for a slot that has begun, or users or classes that are not there.
        """
        if (state.reached is not None and slot <= state.reached) or state.slot is not None:
            raise ValueError(
                f"requirements change from slot {slot} on, but a slot as late has begun: change "
                "those of later slots, between slots"
            )
        who, what = np.asarray(users, np.int32), np.asarray(classes, np.int32)
        n, count = self.users.class_of.size, len(self.users.classes)
        order = np.argsort(who)
        who, what = who[order], what[order]
        if who.size and not (who[0] >= 0 and who[-1] < n and (np.diff(who) > 0).all()):
            raise ValueError(f"users who change must differ and be from 0 to {n - 1}")
        if what.size and not (what.min() >= -1 and what.max() < count):
            raise ValueError(f"classes must be from 0 to {count - 1}, or -1 for who is away")
        state = self._opened(state, slot, random)
        words = random.words("groups of users who change")
        changes = self._rota(state).change(state.changes, slot - state.first, who, what, words)
        return replace(state, changes=changes)

    def sizes(self, state: RotationState) -> npt.NDArray[np.int64]:
        """Users of each class who take part, shape (K,)."""
        if state.seed is None:
            return np.bincount(
                self.users.class_of[: self.users.begun], minlength=len(self.users.classes)
            )
        return self._rota(state).sizes(state.changes)

    def away(self, state: RotationState) -> npt.NDArray[np.int32]:
        """Users who take no part, ascending. Raises ValueError before the first slot."""
        if state.seed is None:
            raise ValueError("no user has turns before the first slot")
        return self._rota(state).away(state.changes)

    def asked(self, state: RotationState, first: int, last: int) -> Iterator[Ask]:
        """The asks of slots from `first` to `last` that the stream has, while nobody changed."""
        rota = self._rota(state)
        for slot in range(max(first, state.first), last + 1):
            users = rota.turn(slot - state.first, state.changes)
            yield replace(self._nobody, slot=slot, users=users)

    def _opened(self, state: RotationState, slot: int, random: SlotNoise) -> RotationState:
        """The state with groups: they are drawn when the first slot begins or changes."""
        if state.seed is not None:
            return state
        seed = random.words("groups").draw(_SEED_WORDS).tobytes()
        return replace(state, seed=seed, first=slot)

    def _rota(self, state: RotationState) -> Rota:
        """The turns: a function of the seed, computed once."""
        assert state.seed is not None
        if self._drawn is None or self._drawn[0] != state.seed:
            self._drawn = state.seed, Rota(self.users, RandomWords(state.seed))
        return self._drawn[1]

    def _estimate(
        self, state: RotationState, tally: Tally, slot: int, expected: Floats
    ) -> tuple[Floats, Floats]:
        """Frequencies of all users from one slot's reports, and their variances: shape (d,).

        The error of a report's user standing for others is counted in: a report of weight b makes
        up for b - 1 / n of somebody's value that was not asked for.
        """
        rota = self._rota(state)
        if state.share:  # reports are of the reported events alone
            expected = _scaled(expected, state.share.estimate(slot - state.first)[0])
        sizes = rota.sizes(state.changes)
        n = max(int(sizes.sum()), 1)
        reports, symbols = tally.reports, self.users.symbols
        heard = reports > 0
        if self._robust:
            asked = rota.turn(slot - state.first, state.changes)
            turns = np.bincount(
                rota.classes(asked, state.changes), minlength=len(self.users.classes)
            )
            weights = np.where(heard, turns * self._windows / n, 0)
        else:
            weights = 1 / class_variances(reports, self._oracles, symbols)
            weights /= weights.sum()
        whole = float(weights.sum())
        combined, _ = combine(tally, self._oracles, weights)
        frequencies = expected + whole * (combined - expected)
        f = np.clip(expected, 0, 1)
        squares = np.divide(weights**2, reports, out=np.zeros(len(reports)), where=heard)
        variances = f * (1 - f) * max(float(squares.sum()) - (2 * whole - 1) / n, 0)
        for k in np.flatnonzero(heard):
            oracle = self._oracles[k]
            assert oracle is not None
            variances += squares[k] * oracle.variance(f)
        return frequencies, variances

    def _predicted(self, state: RotationState, slot: int, foreseen: Floats) -> LocalRelease:
        if state.observed is None or not self._filtered:
            return state.last.release(SKIPPED)
        forecast, n = self._bank.forecast(state.bank), self._bank.users
        deviation, doubt = foreseen
        frequencies = forecast.mean / n + deviation
        variance = (forecast.variance + forecast.white) / n**2 + doubt
        return LocalRelease(
            on_simplex(frequencies) if self._project else frequencies,
            np.sqrt(variance + _doubt(state, frequencies, slot)),
            PREDICTED,
            state.last.slot,
            state.last.epsilon,
            _known(state, slot),
        )

    def encode(self, state: RotationState) -> bytes:
        """Bytes of the state."""
        record: dict[str, Any] = {
            "bank": kalman.record(state.bank),
            **state.last.record(),
            "moved": _columns(state.changes.moved),
            "former": _columns(state.changes.former),
            **{name: getattr(state, name) for name in _PLAIN},
            "seasons": state.seasons and state.seasons.record(),
            "ring": state.ring and state.ring.record(),
            "past": [
                {"foreseen": one.foreseen.tobytes(), "users": one.users} for one in state.past
            ],
            "likely": state.share and state.share.likely.tobytes(),
        }
        return state_codec.pack(self.SCHEMAS, record)

    def decode(self, data: bytes) -> RotationState:
        """State of bytes. Raises ConfigurationError for another number of symbols."""
        version, record = state_codec.unpack(self.SCHEMAS, data)
        state = self.start()
        last = LocalPublication.of_record(record, self.users.symbols)
        if version == 1:
            kalman.read_former(state.bank, record["bank"])
            state.bank.elapsed = 0 if record["reached"] is not None else 1
        else:
            kalman.read(state.bank, record["bank"])
        moved, former = (
            [np.frombuffer(column, "<i4").astype(np.int32) for column in record[name]]
            for name in ("moved", "former")
        )
        changes = Changes(Moved(*moved), Former(*former))
        plain = {name: record[name] for name in _PLAIN}
        state = replace(state, last=last, changes=changes, **plain)
        return state if version == 1 else replace(state, **self._kept(record))

    def _kept(self, record: dict[str, Any]) -> dict[str, Any]:
        """What a record has of the cycle and of revisions."""
        symbols = self.users.symbols
        known, ring = record["seasons"], record["ring"]
        share = self._share() if self._turns else None
        if share:
            share.likely = np.frombuffer(record["likely"]).reshape(share.likely.shape).copy()
        past = [
            Past(np.frombuffer(one["foreseen"]).reshape(2, symbols), one["users"])
            for one in record["past"]
        ]
        return {
            "seasons": known and Seasons.read(known, self._cycle, symbols),
            "ring": ring and Ring.read(ring, symbols),
            "past": past,
            "share": share,
        }


def _scaled(frequencies: Floats, factor: float) -> Floats:
    """Frequencies of events so many times as large; the rest is that there is none."""
    scaled = frequencies * factor
    scaled[-1] = 1 - scaled[:-1].sum()
    return scaled


def _learnt(
    share: ReportedShare, counts: Floats, variances: Floats, elapsed: int
) -> tuple[Floats, Floats]:
    """Frequencies of all events from those reported, and variances; the share learns from them."""
    events = float(variances[:-1].sum())
    share.learn(float(counts[:-1].sum()), events, elapsed)
    factor = 1 / share.estimate(elapsed)[0]
    return _scaled(counts, factor), np.append(variances[:-1], events) * factor**2


def _doubt(state: RotationState, frequencies: Floats, slot: int) -> Floats:
    """Variance of frequencies because of the share of events that is reported, shape (d,)."""
    if not state.share:
        return np.zeros_like(frequencies)
    events = np.append(frequencies[:-1], 1 - frequencies[-1])
    return np.asarray(events**2 * state.share.estimate(slot - state.first)[1])


def _known(state: RotationState, slot: int) -> dict[str, float]:
    """Diagnostics: the share of events that is reported."""
    if not state.share:
        return {}
    share, doubt = state.share.estimate(slot - state.first)
    return {"reported_share": share, "reported_share_stderr": share * doubt**0.5}


_PLAIN = ("seed", "first", "slot", "observed", "reached")


def _columns(table: Moved | Former) -> list[bytes]:
    return [np.ascontiguousarray(column, "<i4").tobytes() for column in vars(table).values()]
