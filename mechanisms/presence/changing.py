"""What a block of a user may cost where users count in a few slots only and requirements change.

**Blocks.** All users have blocks of one length B = ceil(W / j), where W is the longest window that
anybody may ask for, and count in m slots of each. So the calendar follows from the key and the user
alone and never changes. What changes is the price of the slots of a block.

**When a requirement is in force.** What is asked for from slot t on is in force from the user's
first block that begins in t or later, until what is asked for next is. It is in force at once where
nothing was asked for before, since then no slot of the block has counted; and as the stream begins.
Who leaves does not count from that slot on, but what was asked for before stays in force to the end
of the block.

**Prices.** In a block that begins in slot b each slot costs at most (E - what is set aside) /
((j + 2) m). Here E is the smallest of all epsilons, ahead and back, that were in force in any slot
from b - W + 1 on. The price stays for the whole block.

Theorem. Remove all of a user's events in w consecutive slots, which end with slot t. The releases
change by E at most
- ahead: if (w, E) is in force ahead in the first of these slots, whatever is asked for later;
- back: if (w, E) is in force back in slot t - W + 1.
Proof. As w <= W <= j B, the window touches at most j + 1 blocks, and by the proof of `limits.py` at
most (j + 2) m slots differ, all in these blocks. So it is enough that E was among the epsilons by
which each of them was priced. Let f be the slot in which (w, E) is in force: the first of the
window, or t - W + 1. The block of f was priced by E, or E would not be in force in f. Any later one
begins in a slot b with b - W + 1 <= f: ahead because b is in the window and w <= W, back because
b <= t. An earlier one is not touched, since f is not behind the window's first slot.
That users leave or come, which cuts what counts of a block, is public and the same in both inputs.
Under `replace` the same holds with (j + 1) m.

A stream whose requirements did not change so far may go on so if all had the window W: its blocks
were these, none was dearer, and what the table says was in force in all slots before.

**Classes.** For a release stage a user is, block by block, in the class of those who may pay so
much for each slot. The classes are the epsilons of the table: what lies between two of them is
rounded down, and who asks for less than all of them does not count.

**The share that is kept.** The sums by which it is estimated are of classes too, and a block is in
one class. Each layer of it differs in the same number of slots whatever the class. What these slots
cost in all layers together, asked by bin or not, never falls from a class to the next, and nor does
what the rest costs (`ShareQuery.rates`). So a user who moves pays no more than is set aside in the
dearest class.

**Slots that hold several base slots**, as those of a query may (`queries/cuts.py`). Requirements
are over base slots and change with them, so a change can come within a slot. What was asked for
before is then in force in this slot as well as what is asked for now: in a slot all is in force
that is in force in any of its base slots. Who joins within a slot counts from the next one on, and
who leaves within one does not count in it, as events of one slot cannot be distinguished. W is the
most slots that the longest window of base slots meets.

Theorem. The same holds of a window of w base slots, which ends with base slot t, for the E that is
in force in its first base slot; or, back, as many base slots before t as the longest window has.
Proof. A window of w base slots meets at most W slots in a row, the first of which holds its first
base slot, so E is in force in it, and the proof above goes on from there. Looking back, let f be
the slot of that base slot. From it to t is a longest window, which meets W slots at most, so a
block that begins in b, no later than the slot of t, has b - W + 1 <= f.

`tests/mechanisms/presence/test_changing.py` enumerates this.

Source: our own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Flags, Integers
from streamveil.mechanisms.presence.calendars import Keys, block_ends, steps

NEVER = np.iinfo(np.int64).max
ALWAYS = np.iinfo(np.int64).min

NOTHING_ASKED = -1
"""In place of a class: no requirement is in force, or the user has left."""
TOO_STRICT = -2
"""In place of a class: the user asks for less than all classes."""


@dataclass(frozen=True, eq=False)
class Prices:
    """What blocks are and what they may cost: public, but for the key."""

    key: bytes
    """Of the phases, 32 bytes."""
    length: int
    """Slots B of all blocks."""
    longest: int
    """Slots W of the longest window."""
    epsilons: Integers
    """Of the classes, ascending, in units of 2**-40: shape (K,)."""
    class_of: Callable[[Keys], npt.NDArray[np.integer]]
    """Class of users by the table; `NOTHING_ASKED` of those who are not in it."""
    first_slot: int | None
    """First slot of the stream; None if an earlier run released some."""
    within: bool = False
    """Whether changes may come within a slot, which holds several base slots."""

    def usual(self, users: Keys) -> tuple[Integers, Flags]:
        """The epsilon of users who never asked for another, 0 for none, and who has one."""
        classes = self.class_of(users)
        return np.where(classes >= 0, self.epsilons[classes], 0), classes >= 0

    def begins(self, users: Keys, slots: Integers) -> Integers:
        """First slot of the block of each visit: shape (n,)."""
        return self.next_block(users, slots) - self.length

    def next_block(self, users: Keys, slots: Integers) -> Integers:
        """First slot after the block of each visit: shape (n,)."""
        return block_ends(self.key, users, slots, np.full(len(users), self.length))


def _each(low: Integers, high: Integers) -> tuple[Integers, Integers, Integers]:
    """Rows from low to high of all, one after the other: whose, which; and where each begins."""
    sizes = high - low
    firsts = np.cumsum(sizes) - sizes
    owners = np.repeat(np.arange(len(sizes)), sizes)
    return owners, np.arange(len(owners)) - np.repeat(firsts - low, sizes), firsts


class Asking:
    """What users ask for who ever asked for something else than the table says.

    A function of the public changes alone: who is present steers nothing. Of a user there is what
    is asked for now, and what was as long as it makes blocks cheaper.

    Args:
        prices: of blocks.
        like: users of the type of those to come.
    """

    def __init__(self, prices: Prices, like: Keys) -> None:
        self.prices = prices
        nothing = np.zeros(0, np.int64)
        self._users: Keys = like[:0]
        """Of each requirement, ascending, those of a user in the order of slots: shape (n,)."""
        self._meant = nothing
        """The slot that the change was for, which may be earlier than that in which it came."""
        self._said = nothing
        """First slot that knows of it."""
        self._starts = nothing
        """First slot in which it is in force; `ALWAYS` if it was from the start."""
        self._epsilons = nothing
        """The smaller of both, in units of 2**-40; 0 for who leaves."""

    def ask(
        self,
        said: int | Integers,
        users: Keys,
        slots: Integers,
        epsilons: Integers,
        within: bool | Flags = False,
    ) -> None:
        """Take changes as slots begin, or base slots within them.

        Of two changes of a user the one from the later slot counts, and of two from one slot the
        smaller epsilon.

        Args:
            said: the slot that begins, of all or of each, shape (m,). Those of a user are in one,
                which is none before the last one of that user.
            users: in any order, shape (m,).
            slots: that each is for, or base slots, no later than what begins, shape (m,).
            epsilons: units of 2**-40, the smaller of ahead and back; 0 for who leaves. (m,).
            within: whether a base slot begins that is not the first one of its slot, of all or of
                each.
        """
        if not len(users):
            return
        newest = _newest(users, slots, epsilons)
        begun: Integers = np.broadcast_to(np.asarray(said, np.int64), users.shape)[newest]
        inside: Flags = np.broadcast_to(np.asarray(within, np.bool_), users.shape)[newest]
        users, last, wanted = users[newest], slots[newest], epsilons[newest]
        usual, in_table = self.prices.usual(users)
        low, high = self._rows(users)
        asked = high > low
        now, meant = usual.copy(), np.full(len(users), ALWAYS)
        now[asked], meant[asked] = self._epsilons[high[asked] - 1], self._meant[high[asked] - 1]
        wanted = np.where(last == meant, np.minimum(wanted, now), wanted)
        # A change from before the last one was overtaken; who was never here cannot leave.
        heard = (last >= meant) & (asked | in_table | (wanted > 0))
        owners, rows, firsts = _each(low, high)
        reached = self._starts[rows] <= begun[owners]
        before = self._latest(reached, self._epsilons[rows], firsts, firsts + high - low, usual)
        starts = np.where(before > 0, self.prices.next_block(users, begun - 1), begun)
        if self.prices.first_slot is not None:
            starts[(begun == self.prices.first_slot) & ~inside] = ALWAYS
        knows = begun + (inside & (now == 0))  # of one who joins the next slot
        knows[asked] = np.maximum(knows[asked], self._said[high[asked] - 1])
        at = high[heard]
        self._users = np.insert(self._users, at, users[heard])
        self._meant = np.insert(self._meant, at, last[heard])
        self._said = np.insert(self._said, at, knows[heard])
        self._starts = np.insert(self._starts, at, starts[heard])
        self._epsilons = np.insert(self._epsilons, at, wanted[heard])

    def _rows(self, users: Keys) -> tuple[Integers, Integers]:
        """First row of each user, and the one after the last."""
        known = self._users
        return np.searchsorted(known, users, "left"), np.searchsorted(known, users, "right")

    @staticmethod
    def _latest(
        reached: Flags, values: Integers, low: Integers, high: Integers, others: Integers
    ) -> Integers:
        """Value of the last row from low to high that is reached, as all before it are."""
        before = np.append(0, np.cumsum(reached))
        rows = before[high] - before[low]
        found = others.copy()
        some = rows > 0
        found[some] = values[(low + rows - 1)[some]]
        return found

    def classes(self, users: Keys, slots: Integers) -> Integers:
        """Class by which each visit is paid for: int64, shape (n,).

        All visits of a block have the same, or `NOTHING_ASKED` in slots in which the user asks for
        nothing; or all have `TOO_STRICT`.

        Args:
            users: of each visit, shape (n,).
            slots: of each, from the last one on in which anybody asked for something, shape (n,);
                or earlier ones of which this knows all that was asked for.
        """
        found = self.prices.class_of(users).astype(np.int64)
        low, high = self._rows(users)
        some = np.flatnonzero(high > low)
        if len(some):
            found[some] = self._changed(users[some], slots[some], low[some], high[some])
        return found

    def _changed(self, users: Keys, slots: Integers, low: Integers, high: Integers) -> Integers:
        """The same of users who ever asked, whose rows are from low to high."""
        prices = self.prices
        usual, in_table = prices.usual(users)
        oldest = prices.begins(users, slots) - prices.longest + 1
        visits, rows, firsts = _each(low, high)
        starts, epsilons = self._starts[rows], self._epsilons[rows]
        until = self._until()[rows]
        reaches = (starts <= slots[visits]) & (until > np.maximum(starts, oldest[visits]))
        smallest = np.minimum.reduceat(np.where(reaches & (epsilons > 0), epsilons, NEVER), firsts)
        from_table = in_table & (self._starts[low] + prices.within > oldest)
        smallest = np.where(from_table, np.minimum(smallest, usual), smallest)
        there = np.ones(len(users), np.bool_)
        ends = firsts + high - low
        for since in (starts, self._said[rows]):
            there &= self._latest(since <= slots[visits], epsilons, firsts, ends, usual) > 0
        found = np.searchsorted(prices.epsilons, smallest, side="right") - 1
        return np.where(there, np.where(found < 0, TOO_STRICT, found), NOTHING_ASKED)

    def _until(self) -> Integers:
        """First slot in which each requirement is not in force any more."""
        same = np.append(self._users[1:] == self._users[:-1], False)[: len(self._users)]
        next_one = np.append(self._starts[1:] + self.prices.within, NEVER)[: len(same)]
        return np.where(same, next_one, NEVER)

    def forget(self, slot: int) -> None:
        """Drop what makes no block cheaper that ends after this slot begins, and who left by then.

        Who is in the table and asked for something else is remembered forever.
        """
        until, prices = self._until(), self.prices
        # Blocks of visits to come begin in slot - length + 1 or later.
        oldest = slot - prices.length - prices.longest + 2
        gone = until <= oldest
        ended = self._starts + prices.within <= oldest  # so is all that was asked for before
        last = (until == NEVER) & (self._epsilons == 0) & ended
        if last.any():
            last[last] = prices.class_of(self._users[last]) < 0
        kept = ~(gone | last)
        if not kept.all():
            self._take(array[kept] for array in self.arrays())

    def _take(self, arrays: Iterable[npt.NDArray[Any]]) -> None:
        self._users, self._meant, self._said, self._starts, self._epsilons = arrays

    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """All that is remembered: see :meth:`resume`."""
        return self._users, self._meant, self._said, self._starts, self._epsilons

    def resume(self, arrays: Iterable[npt.NDArray[Any]]) -> None:
        """Go on from what :meth:`arrays` gave."""
        users, *others = arrays
        self._take((users.astype(self._users.dtype), *(one.astype(np.int64) for one in others)))


def _newest(users: Keys, slots: Integers, epsilons: Integers) -> Integers:
    """Of some changes the row of the one that counts of each user; users ascend."""
    order = np.lexsort((epsilons, -slots, users))
    return order[np.append(True, steps(users[order]))]
