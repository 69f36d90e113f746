"""A stream of releases under requirements that change, driven slot by slot.

As `stream.py` for fixed requirements: the one way from counts to a release.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streamveil.mechanisms.accounting.changing_filter import ChangingFilter
from streamveil.mechanisms.accounting.open_windows import MOST_IN_HORIZON
from streamveil.mechanisms.accounting.shared_ledgers import Interned
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.budgets import Units
from streamveil.mechanisms.core.cohorts import Moves
from streamveil.mechanisms.core.identity import encoded
from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.wording import opt
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
from streamveil.mechanisms.protocol import (
    DynamicMechanism,
    Members,
    SlotInput,
    SlotRelease,
    SlotRevision,
)
from streamveil.mechanisms.randomness.noise import NoiseSource, digest

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
    """A mechanism for changing requirements, combined with a privacy filter and a source of noise.

    Users whose requirements changed in the same way share a ledger, which records the budget that
    they spend. The noise and the saved state depend on the configuration, on all earlier slots and
    on all changes of requirements, as in
    :class:`~streamveil.mechanisms.driver.stream.ReleaseStream`.

    Args:
        mechanism: the mechanism.
        asked: the requirement of each class at the start, as four numbers (see
            `cohorts.Moves.requirements`), shape (K, 4).
        sizes: number of users of each class, shape (K,).
        default: the class of unregistered users, or None if unregistered users are rejected.
        noise: the source of randomness.
        context: all other settings that affect the results, by name, for example the meaning of the
            bins.
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
        """Return the state before the first slot."""
        new = np.full(len(self._classes.asked), -1)
        return DynamicState(
            self._classes,
            self.mechanism.regroup(self.mechanism.start(), new),
            ChangingFilter(self.setting.horizon, len(new)),
            self._configuration,
        )

    def price(self, state: DynamicState, slot: int, moves: Moves) -> Units:
        """Begin the next slot, and return an upper bound on the budget that each ledger will spend.

        The method first applies the changes of requirements. If you call the method again before
        the slot is released, you get the same result. A release that would spend more than the
        returned upper bound is refused. `state.interned` shows which users share which ledger.

        Args:
            state: the state of the stream after all earlier slots. The method changes this object
                in place.
            slot: number of the slot, which must be the first slot or the slot after the last
                released slot.
            moves: the users whose requirements change at the start of this slot.

        Returns:
            For each of the L ledgers, an upper bound on the budget that the slot spends, in units,
            shape (L,). One unit is an epsilon of 2**-40.

        Raises:
            ConfigurationError: if a requirement has a longer window than the stream allows.
            ValueError: if the slot is out of order, or if the changes in `moves` are not valid or
                differ from those in an earlier call for this slot.
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
            state: the state after all earlier slots.
            slot: number of the slot, which must be the first slot or the slot after the last
                released slot.
            counts: the number of events that contribution bounding kept, by bin and requirement
                class. The requirement classes are the classes after the changes in `moves`.
            moves: the users whose requirements change at the start of this slot.

        Raises:
            BudgetExceeded: if the privacy filter refuses the slot, or if the slot would spend more
                than the upper bound that :meth:`price` returned. Nothing is released.
            ConfigurationError: if a requirement has a longer window than the stream allows.
            ValueError: if the slot is out of order, or if the changes in `moves` or the counts are
                not valid.
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

    def rest(self, state: DynamicState) -> tuple[SlotRevision, ...]:
        """Return the remaining revisions at the end of a stream. See :meth:`ReleaseStream.rest`."""
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
                f"allow it from the start ({opt.longest_window})"
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
        """Encode the state as bytes, which this and later versions of streamveil can decode."""
        return self.keeper.write(self.pack(state))

    def decode(self, data: bytes) -> DynamicState:
        """Decode a state.

        Raises:
            ConfigurationError: if the bytes of the state were modified, or if a stream with a
                different configuration saved them.
        """
        return self.unpack(self.keeper.read(data))

    def pack(self, state: DynamicState) -> bytes:
        """Return the state as bytes without a checksum. :meth:`encode` adds the checksum.

        Raises:
            ValueError: if a slot has begun (see :meth:`price`) but is not released yet.
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
        """Convert the bytes that :meth:`pack` made to a state.

        :meth:`decode` verifies their checksum first.
        """
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
