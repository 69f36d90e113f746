"""Which slots of a user count: the first few of each block of the user's calendar, or of a life.

Several events of a user in a slot count together, or not at all: the rules are on slots.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Flags, Integers
from streamveil.mechanisms.presence.calendars import (
    Keys,
    Rules,
    block_ends,
    inserted,
    keys_of,
    placed,
    steps,
)
from streamveil.mechanisms.presence.counted_filter import CountedFilter
from streamveil.mechanisms.presence.kept_share import LAYERS
from streamveil.mechanisms.presence.limits import UNLIMITED, block_length, effective_window

NEVER = np.iinfo(np.int64).max
IN_NO_LAYER = LAYERS + 1


def counted(
    users: npt.ArrayLike,
    slots: npt.ArrayLike,
    *,
    window: int,
    max_slots: int,
    blocks: int,
    key: bytes,
) -> Flags:
    """Which events count under rule 1 of `limits.py`.

    Args:
        users: number of each event's user, integers, shape (n,).
        slots: slot of each, integers, shape (n,). In any order; several events of a user in a slot
            are as one.
        window: slots of the requirement.
        max_slots: slots of a block in which a user counts.
        blocks: blocks of a window.
        key: of the phases, 32 bytes.

    Returns:
        bool, shape (n,). All of them where the limit gains nothing: see `effective_window`.

    Raises:
        ConfigurationError: for a limit that is no whole number from 1 on.
        ValueError: for arrays that do not fit.
    """
    people, times = _integers(users, "users"), _integers(slots, "slots")
    if people.shape != times.shape or people.ndim != 1:
        raise ValueError(
            f"users {people.shape} and slots {times.shape} must be alike, of shape (n,)"
        )
    if effective_window(window, max_slots, blocks) == window or not len(people):
        return np.ones(len(people), np.bool_)
    order, people, times = _in_order(people, times)
    visits = np.flatnonzero(np.append(True, steps(people) | steps(times)))
    people, times = people[visits], times[visits]
    ends = block_ends(key, people, times, np.full(len(people), block_length(window, blocks)))
    most = np.full(len(people), max_slots)
    counts = Tally.empty(people).add(people, ends, most) < max_slots
    in_order = np.empty(len(order), np.bool_)
    in_order[order] = np.repeat(counts, np.diff(visits, append=len(order)))
    return in_order


@dataclass(eq=False)
class Tally:
    """In how many slots users were since their blocks began. All arrays have shape (n,)."""

    users: Keys
    """Ascending, each once: those who were there in a block that has not ended."""
    used: npt.NDArray[np.unsignedinteger]
    """Slots with events, up to as many as are of interest."""
    ends: Integers
    """First slot after the block."""

    @classmethod
    def empty(cls, like: Keys) -> Tally:
        """Of nobody; users are of the type of some."""
        return cls(like[:0], np.zeros(0, np.uint8), np.zeros(0, np.int64))

    def add(
        self, users: Keys, ends: Integers, noted: Integers, names: Keys | None = None
    ) -> Integers:
        """In how many slots of its block the user of each visit was there before: shape (n,).

        Args:
            users: of each visit, ascending; those of a user in order of slots, each slot once.
            ends: first slot after the user's block, ascending for each user, shape (n,).
            noted: slots with events up to which these are remembered, shape (n,).
            names: ascending, each once; users are numbers of these, if they are given.
        """
        if not len(users):
            return np.zeros(0, np.int64)
        new_user = steps(users)
        starts = np.flatnonzero(np.append(True, new_user | steps(ends)))
        sizes, ends = np.diff(starts, append=len(users)), ends[starts]
        first = np.flatnonzero(np.append(True, new_user[starts[1:] - 1]))  # blocks of each user
        last = np.append(first[1:], len(starts)) - 1
        keys = keys_of(users[starts[first]], names)
        at, known = placed(self.users, keys)
        before = np.zeros(len(starts), np.int64)
        goes_on = known.copy()
        goes_on[known] = self.ends[at[known]] == ends[first[known]]
        before[first[goes_on]] = self.used[at[goes_on]]
        places: Integers = np.arange(len(users)) + np.repeat(before - starts, sizes)
        used = np.minimum(before[last] + sizes[last], noted[starts[last]])
        self._put(at, known, keys, used, ends[last])
        return places

    def _put(self, at: Integers, known: Flags, users: Keys, used: Integers, ends: Integers) -> None:
        kind = np.promote_types(self.used.dtype, np.min_scalar_type(int(used.max())))
        used = used.astype(kind)
        self.used = self.used.astype(kind, copy=False)
        self.used[at[known]], self.ends[at[known]] = used[known], ends[known]
        if not known.all():
            old, new = (self.users, self.used, self.ends), (users, used, ends)
            merged = inserted(at[~known], old, [array[~known] for array in new])
            self.users, self.used, self.ends = merged

    def forget(self, slot: int) -> None:
        """Drop those whose block has ended when this slot begins."""
        alive = self.ends > slot
        if not alive.all():
            self.users, self.used = self.users[alive], self.used[alive]
            self.ends = self.ends[alive]


class Counters:
    """Decides which visits count, in slot order; forgets users when their blocks end (`skip`).

    Decisions depend on the key and on the user's own visits alone. They are the same however visits
    come in batches, if each batch has all of its slots. A filter that counts for itself
    (`counted_filter.py`) refuses those that let anybody count more often than the rules say.

    Args:
        rules: of each class.
        key: of the phases, 32 bytes.
        like: users of the type of those to come.
    """

    def __init__(self, rules: Rules, key: bytes, like: Keys) -> None:
        self.rules = rules
        self._key = key
        self.blocks = Tally.empty(like)
        """Of the users' present blocks."""
        self.lives = Tally.empty(like)
        """Of all users who ever counted, where lives have a limit."""
        self._filter = CountedFilter(rules, like)
        self.next_slot: int | None = None
        """First slot that is not decided; None before the first."""

    def layers(
        self,
        users: Keys,
        slots: Integers,
        classes: npt.NDArray[np.integer],
        next_slot: int,
        names: Keys | None = None,
    ) -> Integers:
        """In which layer visits of some slots are: all before `next_slot` since the last call.

        Args:
            users: of each visit, shape (n,).
            slots: of each, shape (n,); a user has one visit in a slot.
            classes: of the user, shape (n,).
            next_slot: the first slot that the next call may be about.
            names: ascending, each once; users are numbers of these, if they are given. Numbers are
                sorted and compared faster than strangers are.

        Returns:
            int64, shape (n,): 0 where the visit counts; 1 where it is one of the m slots of the
            block above those that count, 2 in the next m, 3 above these (see `kept_share.py`). Of a
            life without blocks the same, and 3 of the first visit above alone (`life_share.py`).
            `IN_NO_LAYER` for what does not count and is in no layer.

        Raises:
            ValueError: for a slot that was decided before.
            BudgetExceeded: if a user would count in more slots than may: nothing is released then.
        """
        first, last = slots.min(initial=NEVER), slots.max(initial=-NEVER)
        if (self.next_slot is not None and first < self.next_slot) or last >= next_slot:
            raise ValueError(f"slots {first} to {last}: those from {self.next_slot} on are next")
        order, people, times = _in_order(users, slots)
        found, ends = self._decided(people, times, classes[order], names)
        counts = found == 0
        self._filter.charge(users, slots, classes, ends[counts], order[counts], names)
        self.next_slot = next_slot
        in_order = np.empty_like(found)
        in_order[order] = found
        return in_order

    def _decided(
        self,
        users: Keys,
        slots: Integers,
        classes: npt.NDArray[np.integer],
        names: Keys | None,
    ) -> tuple[Integers, Integers]:
        """Layers of visits, and where their blocks end; of users in order, then of slots."""
        rules, (found, ends) = self.rules, np.zeros((2, len(users)), np.int64)
        some = _rows(rules.lengths > 1, classes)
        lengths, most = rules.lengths[classes[some]], rules.most[classes[some]]
        ends[some] = block_ends(self._key, users[some], slots[some], lengths, names)
        noted = np.minimum(LAYERS * most, lengths)
        places = self.blocks.add(users[some], ends[some], noted, names)
        for layer in range(1, LAYERS + 1):
            found[some] += places >= layer * most
        if (rules.in_life < UNLIMITED).any():
            some = np.flatnonzero((found == 0) & (rules.in_life < UNLIMITED)[classes])
            forever = np.full(len(some), NEVER)
            most = rules.in_life[classes[some]]
            lived = self.lives.add(users[some], forever, LAYERS * most + 1, names)
            layers = np.where(lived > LAYERS * most, IN_NO_LAYER, lived // most)
            in_blocks = (rules.lengths > 1)[classes[some]]
            found[some] = np.where(in_blocks & (layers > 0), IN_NO_LAYER, layers)
        return found, ends

    def skip(self, next_slot: int) -> None:
        """No visits come of slots before this one: forget users whose block has ended."""
        self.next_slot = next_slot
        self._filter.forget(next_slot)
        self.blocks.forget(next_slot)

    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """All that is remembered, as narrow as it goes: see :meth:`resume`.

        Raises BudgetExceeded if anybody who counted would be forgotten.
        """
        assert self.next_slot is not None
        blocks, lives = self.blocks, self.lives
        left = blocks.ends - self.next_slot
        known = (blocks.users, blocks.used, left, lives.users, lives.used)
        booked = self._filter.beside(blocks.users, blocks.ends, lives.users)
        return np.array([self.next_slot]), *map(_narrow, (*known, *booked))

    def resume(self, arrays: Iterable[npt.NDArray[Any]]) -> None:
        """Go on from what :meth:`arrays` gave."""
        next_slot, users, used, left, seen, lived, *booked = arrays
        self.next_slot = int(next_slot[0])
        kind = self.blocks.users.dtype
        ends = left.astype(np.int64) + self.next_slot
        self.blocks = Tally(users.astype(kind), used.copy(), ends)
        self.lives = Tally(seen.astype(kind), lived.copy(), np.full(len(seen), NEVER))
        self._filter.resume(self.blocks.users, ends, self.lives.users, *booked)


def _narrow(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Numbers from 0 on in the smallest type that holds the largest."""
    if values.dtype.kind == "S":
        return values
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))


def _integers(values: npt.ArrayLike, name: str) -> Integers:
    array = np.asarray(values)
    if array.size and array.dtype.kind not in "iu":
        raise ValueError(f"{name} are {array.dtype}: give whole numbers")
    return array.astype(np.int64, copy=False)


def _rows(wanted: Flags, classes: npt.NDArray[np.integer]) -> Integers | slice:
    """Rows of wanted classes."""
    return slice(None) if wanted.all() else np.flatnonzero(wanted[classes])


def _in_order(users: Keys, slots: Integers) -> tuple[Integers, Keys, Integers]:
    """Rows by user, then by slot; and both of these in that order."""
    later = (users[1:] == users[:-1]) & (slots[1:] > slots[:-1])
    if (later | (users[1:] > users[:-1])).all():  # as strangers of a block of slots are
        return np.arange(len(users)), users, slots
    if users.dtype.kind != "S":
        low, first = users.min(), slots.min()
        bits = [int(most).bit_length() for most in (slots.max() - first, len(users) - 1)]
        if (int(users.max()) - int(low)).bit_length() + sum(bits) < 63:
            # Numbers that hold all three are sorted several times faster than rows are by them.
            packed = ((users - low) << bits[0] | (slots - first)) << bits[1]
            packed |= np.arange(len(users))
            packed.sort()
            order = packed & ((1 << bits[1]) - 1)
            packed >>= bits[1]
            return order, (packed >> bits[0]) + low, (packed & ((1 << bits[0]) - 1)) + first
    order = np.lexsort((slots, users))
    return order, users[order], slots[order]
