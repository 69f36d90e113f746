"""A stream of releases under requirements that change, driven slot by slot.

As `stream.py` for fixed requirements: the one way from counts to a release.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.accounting.changing_filter import ChangingFilter
from streamveil.mechanisms.accounting.open_windows import MOST_IN_HORIZON
from streamveil.mechanisms.accounting.shared_ledgers import Interned
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.budgets import Units
from streamveil.mechanisms.core.cohorts import Moves
from streamveil.mechanisms.core.identity import encoded
from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.records import ConfigurationError, Revised
from streamveil.mechanisms.driver.saved_state import (
    LONGEST_WINDOW,
    NOTHING_MORE,
    SENSITIVITY,
    Keeper,
    Parts,
    of_parts,
    public_facts,
)
from streamveil.mechanisms.driver.stream import beyond_price, check_order, rest_of
from streamveil.mechanisms.protocol import DynamicMechanism, Members, SlotInput, SlotRelease
from streamveil.mechanisms.randomness.noise import NoiseSource, digest

Integers = npt.NDArray[np.int64]

MERGE_EVERY = 8
"""Slots from one search for ledgers that have become equal to the next."""


@dataclass(frozen=True, eq=False)
class CohortCounts:
    """Bounded events of a slot by cohort and bin: private."""

    cohorts: Integers
    """Shape (m,); a cohort may come in several entries."""
    bins: Integers
    """Shape (m,)."""
    counts: Integers
    """Events, shape (m,)."""


@dataclass(frozen=True, eq=False)
class Begun:
    """A slot in which users have moved, but whose counts are not known yet: public."""

    slot: int
    moves: Moves
    members: Members
    price: Units
    """The most that it can cost a user of each ledger, shape (L,), units."""


@dataclass
class DynamicState:
    """All that a stream remembers between slots."""

    interned: Interned
    mechanism: Any
    filter: ChangingFilter
    history: bytes
    """Digest of the configuration and of every input so far. It is private and never released."""
    next_slot: int | None = None
    begun: Begun | None = None
    """The slot that has begun, until it is released."""


class DynamicStream:
    """Releases slots in order, each once, through the filter.

    Noise and state are bound to the configuration and the whole history as those of
    :class:`~streamveil.mechanisms.driver.stream.ReleaseStream`, and to who moved when.

    Args:
        mechanism: what releases a slot.
        asked: what the classes of the registry ask for (`cohorts.Moves.requirements`), (K, 4).
        sizes: users of each class, shape (K,).
        default: the class of users outside the registry, if they have one.
        noise: where randomness comes from.
        context: everything else that shapes what is released, by name, as in
            :class:`~streamveil.mechanisms.driver.stream.ReleaseStream`.
    """

    SCHEMAS = {
        2: state_codec.record_schema(
            "DynamicStream",
            next_slot=["null", "long"],
            history="bytes",
            filter="bytes",
            mechanism="bytes",
            **Interned.FIELDS,
        )
    }

    def __init__(
        self,
        mechanism: DynamicMechanism[Any],
        asked: Units,
        sizes: Integers,
        noise: NoiseSource,
        *,
        default: int | None = None,
        context: Parts = NOTHING_MORE,
    ) -> None:
        self.mechanism = mechanism
        self.setting = mechanism.setting
        self._classes = Interned.of_classes(asked, sizes)
        self._check_asked(asked)
        self._default = default
        self._guess = 0 if default is None else int(sizes[default])
        self._noise = noise
        parts = {
            **public_facts(
                "changing requirements",
                mechanism.name,
                asked,
                encoded((sizes, default)),
                self.setting.bins,
            ),
            SENSITIVITY: encoded(self.setting.sensitivity),
            LONGEST_WINDOW: encoded(self.setting.horizon),
            **context,
        }
        self._configuration = of_parts(parts)
        self.keeper = Keeper(noise, parts)

    def start(self) -> DynamicState:
        """State before the first slot."""
        new = np.full(len(self._classes.asked), -1)
        return DynamicState(
            self._classes,
            self.mechanism.regroup(self.mechanism.start(), new),
            ChangingFilter(self.setting.horizon, len(new)),
            self._configuration,
        )

    def price(self, state: DynamicState, slot: int, moves: Moves) -> Units:
        """The most that the next slot can cost a user of each ledger, before its counts are known.

        The slot begins by that: users move. What is asked again is told again, until the slot is
        released.

        Args:
            state: after the slots before, changed in place.
            slot: the first slot, or the one after the last.
            moves: who asks for something else from this slot on.

        Returns units, shape (L,); `state.interned` says who is in which ledger. A release that
        costs more is refused.

        Raises:
            ConfigurationError: for a requirement beyond the horizon.
            ValueError: for a slot out of order, moves that do not fit, or others than before.
        """
        if state.begun is None:
            state.begun = self._begin(state, slot, moves)
        elif state.begun.slot != slot or state.begun.moves is not moves:
            raise ValueError(f"slot {state.begun.slot} has begun with its moves: release it first")
        return state.begun.price

    def _begin(self, state: DynamicState, slot: int, moves: Moves) -> Begun:
        check_order(state.next_slot, slot)
        self._check_asked(moves.requirements)
        self._move(state, moves)
        if slot % MERGE_EVERY == 0:
            self._merge(state)
        asked, sizes = state.interned.asked, state.interned.sizes
        members = Members(
            asked,
            sizes,
            self.setting.bins,
            self.setting.sensitivity,
            guessed=state.interned.ledger_of(self._default),
            guessed_users=self._guess,
        )
        return Begun(slot, moves, members, self.mechanism.price(state.mechanism, members))

    def release(
        self, state: DynamicState, slot: int, counts: CohortCounts, moves: Moves
    ) -> tuple[DynamicState, SlotRelease]:
        """Release the next slot.

        Args:
            state: after the slots before.
            slot: the first slot, or the one after the last.
            counts: bounded events, after the moves.
            moves: who asks for something else from this slot on.

        Raises:
            BudgetExceeded: when the filter refuses, or the mechanism takes more than it said
                before; nothing is released then.
            ConfigurationError: for a requirement beyond the horizon.
            ValueError: for a slot out of order, or moves and counts that do not fit.
        """
        price, interned = self.price(state, slot, moves), state.interned
        assert state.begun is not None
        members = state.begun.members
        table = self._table(interned, counts)
        history = digest(
            state.history,
            b"%d" % slot,
            *_canonical_counts(counts, self.setting.bins),
            *_canonical_moves(moves),
        )
        state.mechanism, release = self.mechanism.step(
            state.mechanism,
            SlotInput(slot, table, members),
            self._noise.slot(slot, history),
        )
        if (release.spent > price).any():
            raise beyond_price(self.mechanism.name, price, release.spent)
        state.filter.charge(release.spent, interned.asked)
        return DynamicState(interned, state.mechanism, state.filter, history, slot + 1), release

    def rest(self, state: DynamicState) -> tuple[Revised, ...]:
        """As :meth:`ReleaseStream.rest`."""
        return rest_of(self.mechanism, state.mechanism)

    def _table(self, interned: Interned, counts: CohortCounts) -> Integers:
        """Counts by ledger and bin, shape (L, d)."""
        bins = self.setting.bins
        if ((counts.bins < 0) | (counts.bins >= bins) | (counts.counts < 0)).any():
            raise ValueError(f"counts must be in bins 0 to {bins - 1}, none negative")
        table = np.zeros((len(interned.asked), bins), np.int64)
        cells = interned.ledgers_of(counts.cohorts) * bins + counts.bins
        np.add.at(table.reshape(-1), cells, counts.counts)
        return table

    def _check_asked(self, asked: Units) -> None:
        horizon = self.setting.horizon
        longest = int(asked[:, [0, 2]].max(initial=0))
        if longest > horizon:
            raise ConfigurationError(
                f"a window of {longest} slots is longer than the longest window of {horizon}: "
                "allow it from the start (--longest_window)"
            )
        if asked[:, [1, 3]].max(initial=0) > MOST_IN_HORIZON // horizon:
            raise ConfigurationError(
                f"an epsilon above {MOST_IN_HORIZON // horizon / 2**40:g} is too much with windows "
                f"of up to {number_of(horizon, 'slot')}: ask for less, or allow shorter ones only"
            )

    def _move(self, state: DynamicState, moves: Moves) -> None:
        state.interned, parents = state.interned.move(moves, self._default)
        self._regroup(state, parents)

    def _merge(self, state: DynamicState) -> None:
        some = state.interned.alike(state.filter.glance())
        if not some.size:
            return
        found = state.interned.merge(
            some,
            np.concatenate(
                [
                    self.mechanism.canonical(state.mechanism, some),
                    state.filter.canonical(some),
                ]
            ),
        )
        if found:
            state.interned, parents = found
            self._regroup(state, parents)

    def _regroup(self, state: DynamicState, parents: Integers) -> None:
        if np.array_equal(parents, np.arange(state.filter.ledgers)):
            return
        state.mechanism = self.mechanism.regroup(state.mechanism, parents)
        state.filter.regroup(parents)

    def encode(self, state: DynamicState) -> bytes:
        """Bytes of the state, readable by this and later versions."""
        return self.keeper.write(self.pack(state))

    def decode(self, data: bytes) -> DynamicState:
        """State of bytes.

        Raises ConfigurationError for bytes that were changed, or that another configuration wrote:
        see :meth:`Keeper.read`.
        """
        return self.unpack(self.keeper.read(data))

    def pack(self, state: DynamicState) -> bytes:
        """What :meth:`encode` gives to the `keeper`.

        Raises ValueError while a slot has begun.
        """
        if state.begun:
            raise ValueError(f"slot {state.begun.slot} has begun: release it, then save the state")
        return state_codec.pack(
            self.SCHEMAS,
            {
                "next_slot": state.next_slot,
                "history": state.history,
                "filter": state.filter.encode(),
                "mechanism": self.mechanism.encode(state.mechanism),
                **state.interned.record(),
            },
        )

    def unpack(self, data: bytes) -> DynamicState:
        """The state of what the `keeper` gives back."""
        _, record = state_codec.unpack(self.SCHEMAS, data)
        return DynamicState(
            Interned.of_record(record),
            self.mechanism.decode(record["mechanism"]),
            ChangingFilter.decode(record["filter"], self.setting.horizon),
            record["history"],
            record["next_slot"],
        )


def _canonical_counts(counts: CohortCounts, bins: int) -> list[bytes]:
    """The counts whatever the order and parts in which they came."""
    cells, place = np.unique(counts.cohorts * bins + counts.bins, return_inverse=True)
    sums = np.zeros(len(cells), np.int64)
    np.add.at(sums, place, counts.counts)
    return [cells[sums > 0].tobytes(), sums[sums > 0].tobytes()]


def _canonical_moves(moves: Moves) -> list[bytes]:
    """The moves whatever the order and parts in which they came."""
    order = np.lexsort((moves.parents, moves.children))
    rows = np.column_stack([moves.parents, moves.children, moves.requirements])[order]
    other = np.append(True, (rows[1:] != rows[:-1]).any(axis=1))[: len(rows)]
    users = np.zeros(int(other.sum()), np.int64)
    np.add.at(users, np.cumsum(other) - 1, moves.users[order])
    return [rows[other].tobytes(), users.tobytes()]
