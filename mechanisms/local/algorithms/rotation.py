"""Rotation: every user reports once per window with the whole budget, and a filter follows.

The error of a frequency oracle falls with the number of reports, linearly in its inverse, so that
saving users up for later gains nothing: an even stream of reports, filtered, holds as much as any
publication that they could be saved up for. There is no dissimilarity and no second round.

Reports of a slot are combined by inverse variance, or with `robust=True` each user's report stands
for w_k users of class k. The latter is a difference estimator: with the forecast g of earlier
slots,

    f = g + sum over reports of w_k / n (x - g),

where x is the unbiased estimate of one report. Every user has a turn in a slot with probability
1 / w_k, so it is unbiased however class and value hang together, and whatever the classes' sizes: a
class with fewer users than slots in its window is not heard in every slot, and what its report says
then counts more. Otherwise it is the average by class shares. The filter knows of each slot's
error, which contains perturbation and sampling.

Guarantee: (w, E)-local differential privacy of every user over any w consecutive slots, pure and
exact: see `report_groups.py`, which has the proof. All else is post-processing of reports.
Adjacency: any values of a user, in the slots of a window, for any others.
Sensitivity: a user has one symbol in a slot.
Source: our own. Oracles and inverse variances are those of Du et al., "PLDP-IDS: personalized local
differential privacy for infinite data stream" (PFO).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.adaptive import filter_bank
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.budgets import to_epsilon
from streamveil.mechanisms.core.records import PREDICTED, PUBLISHED, SKIPPED, ConfigurationError
from streamveil.mechanisms.local.algorithms.report_groups import Changes, Former, Moved, Rota
from streamveil.mechanisms.local.algorithms.schedule import best_oracles, oracles_of
from streamveil.mechanisms.local.protocol import GRR, OUE, Ask, LocalRelease, Tally, Users
from streamveil.mechanisms.local.server.combination import class_variances, combine
from streamveil.mechanisms.local.server.last_publication import FIELDS, LocalPublication
from streamveil.mechanisms.local.server.projection import on_simplex
from streamveil.mechanisms.randomness.noise import RandomWords, SlotNoise

Floats = npt.NDArray[np.float64]

# Every slot tells a little, so the filter judges its members by more of them than where releases
# are few and precise.
MEMORY = 0.99
BEST = "best"
_SEED_WORDS = 4


@dataclass(frozen=True, eq=False)
class RotationState:
    """All of it public but for who reports when, which only a forger would like to know."""

    bank: filter_bank.BankState
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

    Raises:
        ConfigurationError: for another oracle.
    """

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
        )
        for version, bank in (
            (1, {"type": "array", "items": "bytes"}),
            (2, filter_bank.SCHEMA),
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
    ) -> None:
        if oracle not in (BEST, GRR, OUE):
            raise ConfigurationError(
                f"{name}: oracle is {oracle!r}: give {BEST}, {GRR} or {OUE}, or leave it out"
            )
        self.name = name
        self.users = users
        self._robust = robust
        self._filtered = filtered
        self._project = project
        # A scale of frequencies, so that it must stay: whoever comes or leaves.
        scale = users.class_of[: users.begun].size
        self._bank = filter_bank.Bank(scale, users.symbols, MEMORY)
        self._windows = users.classes.windows
        self._prices = users.classes.budgets
        given = (oracle,) * len(users.classes)
        self._kinds = best_oracles(self._prices, users.symbols) if oracle == BEST else given
        self._nobody = Ask(0, 1, np.empty(0, np.int32), self._prices, self._kinds)
        self._oracles = oracles_of(self._nobody, users.symbols)
        self._drawn: tuple[bytes, Rota] | None = None

    def start(self) -> RotationState:
        """Nothing reported yet."""
        return RotationState(self._bank.start(), LocalPublication.nothing(self.users.symbols))

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
            raise ValueError("reports came before anybody was asked: begin the slot first")
        slot, bank = state.slot, state.bank
        if state.reached is not None:
            bank.elapsed += 1
        state = replace(state, slot=None, reached=slot)
        if not tally.reports.any():
            return state, self._predicted(state)
        forecast = self._bank.forecast(bank)
        n = self._bank.users
        frequencies, variances = self._estimate(state, tally, slot, forecast.mean / n)
        counts, error = frequencies * n, variances * n**2
        seen = self._bank.observe(bank, counts, 0.0, error)
        if self._filtered:
            frequencies, variances = seen.mean / n, seen.variance / n**2
        epsilon = float(to_epsilon(self._prices[tally.reports > 0].max()))
        last = LocalPublication.of(frequencies, variances, slot, epsilon, project=self._project)
        return replace(state, last=last, observed=slot), last.release(PUBLISHED)

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
            raise ValueError("nobody has turns before the first slot")
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

    def _predicted(self, state: RotationState) -> LocalRelease:
        if state.observed is None or not self._filtered:
            return state.last.release(SKIPPED)
        forecast, n = self._bank.forecast(state.bank), self._bank.users
        frequencies = forecast.mean / n
        return LocalRelease(
            on_simplex(frequencies) if self._project else frequencies,
            np.sqrt(forecast.variance + forecast.white) / n,
            PREDICTED,
            state.last.slot,
            state.last.epsilon,
        )

    def encode(self, state: RotationState) -> bytes:
        """Bytes of the state."""
        record: dict[str, Any] = {
            "bank": filter_bank.record(state.bank),
            **state.last.record(),
            "moved": _columns(state.changes.moved),
            "former": _columns(state.changes.former),
            **{name: getattr(state, name) for name in _PLAIN},
        }
        return state_codec.pack(self.SCHEMAS, record)

    def decode(self, data: bytes) -> RotationState:
        """State of bytes. Raises ConfigurationError for another number of symbols."""
        version, record = state_codec.unpack(self.SCHEMAS, data)
        state = self.start()
        last = LocalPublication.of_record(record, self.users.symbols)
        if version == 1:
            filter_bank.read_former(state.bank, record["bank"])
            state.bank.elapsed = 0 if record["reached"] is not None else 1
        else:
            filter_bank.read(state.bank, record["bank"])
        moved, former = (
            [np.frombuffer(column, "<i4").astype(np.int32) for column in record[name]]
            for name in ("moved", "former")
        )
        changes = Changes(Moved(*moved), Former(*former))
        plain = {name: record[name] for name in _PLAIN}
        return replace(state, last=last, changes=changes, **plain)


_PLAIN = ("seed", "first", "slot", "observed", "reached")


def _columns(table: Moved | Former) -> list[bytes]:
    return [np.ascontiguousarray(column, "<i4").tobytes() for column in vars(table).values()]
