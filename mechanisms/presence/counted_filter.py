"""The filter of a user's slots: nobody counts in more of them than the limit says.

It is the last door where users are known; the last one before a release
(`accounting/presence_filter.py`) relies on it. What was decided is counted once more, by a count of
its own. It stays beside what the decision remembers, so whoever counted and is forgotten there is
missed here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.accounting.window_filter import BudgetExceeded
from streamveil.mechanisms.core.arrays import Flags, Integers
from streamveil.mechanisms.presence.calendars import Keys, Rules, inserted, keys_of, placed, steps
from streamveil.mechanisms.presence.limits import UNLIMITED

_FAULT = "nothing is released about these slots. It is a fault of streamveil: please report it"


@dataclass(eq=False)
class _Booked:
    """Slots in which users counted. All arrays have shape (n,)."""

    users: Keys
    """Ascending, each once."""
    counted: Integers
    ends: Integers
    """First slot after the block that is counted; any number for a life."""

    @classmethod
    def nobody(cls, like: Keys) -> _Booked:
        """Nobody; users are of the type of some."""
        return cls(like[:0], np.zeros(0, np.int64), np.zeros(0, np.int64))

    def put(
        self, at: Integers, there: Flags, users: Keys, counted: Integers, ends: Integers
    ) -> None:
        """Set what is counted of users, who were placed so."""
        self.counted[at[there]], self.ends[at[there]] = counted[there], ends[there]
        if not there.all():
            old, new = (self.users, self.counted, self.ends), (users, counted, ends)
            merged = inserted(at[~there], old, [array[~there] for array in new])
            self.users, self.counted, self.ends = merged

    def beside(self, users: Keys, ends: Integers | None) -> Integers:
        """What is counted of each of some users, ascending, each once, among whom are all here."""
        at = np.searchsorted(users, self.users)
        here = at < len(users)
        here[here] = users[at[here]] == self.users[here]
        if not here.all() or (ends is not None and (ends[at] != self.ends).any()):
            raise BudgetExceeded(f"users who counted would be forgotten, so {_FAULT}")
        counted = np.zeros(len(users), np.int64)
        counted[at] = self.counted
        return counted


class CountedFilter:
    """Books in which slots users count, and refuses more of them than the rules say.

    Guarantee: as long as nothing raised, every user has counted in at most `most` slots of each
    block of the user's calendar, and in at most `in_life` in all.

    Args:
        rules: of each class.
        like: users of the type of those to come.
    """

    def __init__(self, rules: Rules, like: Keys) -> None:
        self._rules = rules
        self._blocks = _Booked.nobody(like)
        self._lives = _Booked.nobody(like)

    def charge(
        self,
        users: Keys,
        slots: Integers,
        classes: npt.NDArray[np.integer],
        ends: Integers,
        rows: Integers,
        names: Keys | None = None,
    ) -> None:
        """Book the visits that count of some slots, or refuse them.

        Args:
            users: of each visit, shape (n,).
            slots: of each, shape (n,); what comes later is of later slots.
            classes: of the user, shape (n,).
            ends: first slot after the user's block of each visit that counts, shape (m,).
            rows: those visits, by user and then by slot, shape (m,). That they are is checked,
                which is faster than to sort once more.
            names: ascending, each once, which is checked as well; users are numbers of these, if
                they are given.

        Raises BudgetExceeded if a user would count in too many slots, or twice in one.
        """
        users, slots, classes = users[rows], slots[rows], classes[rows]
        same = users[1:] == users[:-1]
        if not ((same & (slots[1:] > slots[:-1])) | (users[1:] > users[:-1])).all():
            raise BudgetExceeded(f"visits are not in order, or come twice, so {_FAULT}")
        other = np.append(True, ~same)[: len(rows)]
        if names is not None and ((users[:1] < 0).any() or not (names[1:] > names[:-1]).all()):
            raise BudgetExceeded(f"a user may have two numbers, so {_FAULT}")
        limited = self._rules.lengths[classes] > 1
        if limited.all():
            self._charge_blocks(users, slots, classes, ends, other, names)
        else:
            who, when, ends = users[limited], slots[limited], ends[limited]
            self._charge_blocks(who, when, classes[limited], ends, other[limited], names)
        if (self._rules.in_life < UNLIMITED).any():
            limited = self._rules.in_life[classes] < UNLIMITED
            self._charge_lives(users[limited], classes[limited], other[limited], names)

    def _charge_blocks(
        self,
        users: Keys,
        slots: Integers,
        classes: npt.NDArray[np.integer],
        ends: Integers,
        other: Flags,
        names: Keys | None,
    ) -> None:
        if not len(users):
            return
        starts = np.flatnonzero(other | np.append(True, steps(ends)))
        counted = np.diff(starts, append=len(users))
        classes, ends = classes[starts], ends[starts]
        heads = np.flatnonzero(other[starts])
        tails = np.append(heads[1:], len(starts)) - 1
        users = keys_of(users[starts[heads]], names)
        at, there = placed(self._blocks.users, users)
        before = np.append(ends[:1], ends[:-1])  # of the same user
        before[heads] = ends[heads]
        before[heads[there]] = self._blocks.ends[at[there]]
        first, last = slots[starts], slots[starts + counted - 1]
        lengths = self._rules.lengths[classes]
        outside = (last >= ends) | (first < ends - lengths)
        moved = np.flatnonzero(ends != before)
        apart = (ends[moved] - before[moved]) % lengths[moved]
        if outside.any() or apart.any():
            raise BudgetExceeded(f"visits are not in the blocks of their users, so {_FAULT}")
        goes_on = there & (before[heads] == ends[heads])
        counted[heads[goes_on]] += self._blocks.counted[at[goes_on]]
        _check(counted, self._rules.most[classes], "a block")
        self._blocks.put(at, there, users, counted[tails], ends[tails])

    def _charge_lives(
        self,
        users: Keys,
        classes: npt.NDArray[np.integer],
        other: Flags,
        names: Keys | None,
    ) -> None:
        if not len(users):
            return
        heads = np.flatnonzero(other)
        counted = np.diff(heads, append=len(users))
        users = keys_of(users[heads], names)
        at, there = placed(self._lives.users, users)
        counted[there] += self._lives.counted[at[there]]
        _check(counted, self._rules.in_life[classes[heads]], "a life")
        self._lives.put(at, there, users, counted, np.zeros_like(counted))

    def forget(self, slot: int) -> None:
        """Drop those whose block has ended when this slot begins."""
        booked, alive = self._blocks, self._blocks.ends > slot
        if not alive.all():
            self._blocks = _Booked(booked.users[alive], booked.counted[alive], booked.ends[alive])

    def beside(self, users: Keys, ends: Integers, seen: Keys) -> tuple[Integers, Integers]:
        """In how many slots users counted, for :meth:`resume`.

        Args:
            users: all that are remembered of blocks, ascending, shape (n,).
            ends: first slot after the block of each, shape (n,).
            seen: all that are remembered of lives, ascending, shape (m,).

        Returns:
            Slots of each in the block, shape (n,), and in life, shape (m,).

        Raises BudgetExceeded if anybody who counted is not among them.
        """
        return self._blocks.beside(users, ends), self._lives.beside(seen, None)

    def resume(
        self,
        users: Keys,
        ends: Integers,
        seen: Keys,
        in_block: npt.NDArray[np.integer],
        in_life: npt.NDArray[np.integer],
    ) -> None:
        """Go on from what :meth:`beside` gave of these users."""
        self._blocks = _Booked(users, in_block.astype(np.int64), ends.copy())
        self._lives = _Booked(seen, in_life.astype(np.int64), np.zeros(len(seen), np.int64))


def _check(counted: Integers, most: Integers, where: str) -> None:
    over = np.flatnonzero(counted > most)
    if over.size:
        raise BudgetExceeded(
            f"a user would count in more than {most[over[0]]} slots of {where}, so {_FAULT}"
        )
