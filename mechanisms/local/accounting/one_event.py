"""Devices that tell one event of a window, and may be asked often: for users who are rarely there.

A device has a calendar of blocks of w slots, from a phase that depends on nothing else. In each
block it tells the first event that it is asked about. All other answers are that there was none,
and it answers whenever it is asked: silence would tell when there is an event.

Theorem. If each report costs at most E / 2, by OUE0 and one in a slot, then all reports together
keep (w, E)-local differential privacy, whomever the server asks when.
Proof. Fix what the server asks: it knows answers alone. Let the values of a window of w slots be
any others. It touches at most two blocks, and what is reported in a block depends on the values of
that block alone. So each input tells at most two events that the other does not, or has otherwise.
All other answers are alike, and those two and two cost 2 (E / 2): see `oracles.py`.

With a symbol for "no event", as GRR and OUE have, it would be four reports that differ, at E / 4.
`tests/mechanisms/local/test_presence.py` enumerates this, and convicts devices that keep a sliding
window of what they reported.

Source: our own, as `presence/limits.py`, of which it is rule 1 with one block and one slot.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.budgets import UNIT_BITS, Requirements, to_units
from streamveil.mechanisms.core.records import ConfigurationError, Requirement
from streamveil.mechanisms.local.protocol import Users
from streamveil.mechanisms.presence.calendars import block_ends

EVENTS = 2
"""That the values of a window can add, or change, in what a device tells."""


def price(epsilon: float) -> int:
    """Units that a report may cost. Raises ConfigurationError for none."""
    units = to_units(epsilon) // EVENTS
    if not units:
        raise ConfigurationError(f"an epsilon of {epsilon:g} leaves nothing for a report")
    return units


def telling_one_event(users: Users, turns: int) -> Users:
    """The same users, asked so many times in a window.

    Their classes say what reports may cost: at most a price in so many slots.

    Raises ConfigurationError for fewer than two turns, or users who come later.
    """
    if turns < 2:
        raise ConfigurationError(
            f"turns is {turns}: give 2 or more for devices that are asked this often in a window "
            "and report one event of it, or 0 for one turn per window"
        )
    if users.begun not in (None, len(users.class_of)):
        raise ConfigurationError(
            "turns is for users and requirements that never change: leave it out, or start a new "
            "stream with the new table"
        )
    costs = Requirements(
        Requirement(-(-one.window // turns), math.ldexp(price(one.epsilon), -UNIT_BITS))
        for one in users.classes
    )
    return replace(users, classes=costs, asked=users.classes)


class OneEvent:
    """What devices tell of their users' values.

    Args:
        users: who they are, with what they ask for.
        key: of the phases, 32 bytes; it need not be secret.
    """

    def __init__(self, users: Users, key: bytes) -> None:
        self._key = key
        self._nothing = users.symbols - 1
        self._lengths = users.promised.windows[users.class_of]
        self.silent = np.full(len(users.class_of), np.iinfo(np.int64).min)
        """First slot in which each user may tell an event again, shape (n,)."""

    def reported(
        self, slot: int, users: npt.NDArray[np.integer], values: npt.NDArray[np.integer]
    ) -> npt.NDArray[np.integer]:
        """What those tell who are asked in a slot; their events use up their blocks.

        Args:
            slot: no earlier than the last one.
            users: ascending, each once, shape (m,).
            values: symbol of each, the last one for no event, shape (m,).
        """
        telling = (values != self._nothing) & (self.silent[users] <= slot)
        who = users[telling].astype(np.int64)
        slots = np.full(len(who), slot, np.int64)
        self.silent[who] = block_ends(self._key, who, slots, self._lengths[who])
        return np.where(telling, values, self._nothing)
