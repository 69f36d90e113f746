"""Who reports when in rotation: every class is split into as many groups as its window has slots.

The users of class k take turns in w_k groups, drawn once at random, as even in size as can be and
spread evenly over the window where there are fewer users than slots. In any w_k slots each of them
has one turn, so a turn may cost the whole budget.

Promises. A slot u in which (v, F) is in force leaves a user at most F in the slots from u to
u + v - 1, whatever is asked for later; if anything is spent in u, at most F was in the v slots that
end with u. A user's first requirement counts as in force ever since.

Re-assignment. A user whose requirement becomes (w, E) in slot t is drawn into a group of the new
class and takes the first of its turns that is no sooner than

- t, and w slots after the user's last turn, and
- v slots after the last slot in which (v, F) was in force, for every former requirement that was
  stricter in any respect: F < E or v > w.

So who asks for more privacy goes on without a pause, and who asks for less waits until nothing is
left of what was promised.

Proof. Look at any window that a promise (v, F) of slot u covers, and at the last turn in it: slot
s, under (w, E), which cost E. If (v, F) is the requirement of s, or a former one no stricter than
that, then F >= E and v <= w. The turn before s was at least w >= v slots earlier, hence before the
window, so that the window costs E <= F. A former requirement that was stricter cannot cover s: by
the rule, s is v slots or more after u. The w slots that end with a turn have no other turn either.
Away or not, a user's requirement stays in force until it changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.budgets import Units
from streamveil.mechanisms.local.algorithms.user_draws import Indexes, generator
from streamveil.mechanisms.local.protocol import Users
from streamveil.mechanisms.randomness.noise import RandomWords

Table = TypeVar("Table", "Moved", "Former")

# In place of a class: the user takes no part.
AWAY = -1
# Turns in slots that never are: of who never had one, and of who is away.
_NEVER, _NO_TURN = -(1 << 30), (1 << 31) - 1


def _none() -> Indexes:
    return np.empty(0, np.int32)


@dataclass(frozen=True, eq=False)
class Moved:
    """Users who came, left or changed their requirement at some time: 16 bytes for each.

    Slots are counted from the first one of the stream; arrays have one shape.
    """

    users: Indexes = field(default_factory=_none)
    """Ascending."""
    classes: Indexes = field(default_factory=_none)
    """Whose requirement is in force."""
    first: Indexes = field(default_factory=_none)
    """First turn since; in a slot that never is for users who are away."""
    last: Indexes = field(default_factory=_none)
    """Last turn before; far below 0 for none."""

    def find(self, users: Indexes) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.intp]]:
        """Whether each user is among them, and the places of those who are."""
        place = np.searchsorted(self.users, users)
        found = place < self.users.size
        found[found] = self.users[place[found]] == users[found]
        return found, place[found]


@dataclass(frozen=True, eq=False)
class Former:
    """Requirements of the past that still bind: 12 bytes for each; a user may have several."""

    users: Indexes = field(default_factory=_none)
    classes: Indexes = field(default_factory=_none)
    ends: Indexes = field(default_factory=_none)
    """First slot that no promise of it covers."""


@dataclass(frozen=True, eq=False)
class Changes:
    """All that is not as it was in the beginning."""

    moved: Moved = field(default_factory=Moved)
    former: Former = field(default_factory=Former)


class Rota:
    """The turns of all users.

    Args:
        users: the population, as it was in the beginning. Users who joined later, and classes,
            leave the turns of those who began as they are.
        words: where the groups come from: the same words give the same groups.
    """

    def __init__(self, users: Users, words: RandomWords) -> None:
        random = generator(words)
        self.users = users
        self._windows = users.classes.windows
        self._budgets: Units = users.classes.budgets
        begun = users.class_of[: users.begun]
        self._begun, count = begun.size, self._windows.size
        known = count if users.begun is None else int(begun.max()) + 1
        self._offsets = np.zeros(count, np.int64)
        self._offsets[:known] = random.integers(0, self._windows[:known])
        self._sizes = np.bincount(begun, minlength=count).astype(np.int64)
        self._starts = np.cumsum(self._sizes) - self._sizes
        shuffled = random.permutation(begun.size).astype(np.int32)
        # By class, at random within it: 4 bytes a user, and all that is kept for them.
        self._order = shuffled[np.argsort(begun[shuffled], kind="stable")]

    @cached_property
    def _places(self) -> Indexes:
        """Where each user is in the order: 4 more bytes a user, from the first change on."""
        places = np.empty_like(self._order)
        places[self._order] = np.arange(self._order.size, dtype=np.int32)
        return places

    def turn(self, slot: int, changes: Changes) -> Indexes:
        """Users whose turn it is in a slot, ascending."""
        group = (slot - self._offsets) % self._windows
        # Of n users, the one at place i is in the group floor(i w / n).
        begin = self._starts - (-group * self._sizes) // self._windows
        end = self._starts - (-(group + 1) * self._sizes) // self._windows
        parts = [self._order[a:b] for a, b in zip(begin.tolist(), end.tolist(), strict=True)]
        users = np.concatenate(parts)
        moved = changes.moved
        if moved.users.size:
            users = users[~moved.find(users)[0]]
            since = slot - moved.first.astype(np.int64)
            due = (since >= 0) & (since % self._windows[moved.classes] == 0)
            users = np.concatenate([users, moved.users[due]])
        return np.sort(users)

    def classes(self, users: Indexes, changes: Changes) -> Indexes:
        """Class of each of some users, away or not, who have joined: shape (m,)."""
        classes = self.users.class_of[users].astype(np.int32)
        found, place = changes.moved.find(users)
        classes[found] = changes.moved.classes[place]
        return classes

    def sizes(self, changes: Changes) -> Integers:
        """Users of each class who are not away, shape (K,)."""
        moved, count = changes.moved, len(self._sizes)
        begun = moved.users[moved.users < self._begun]
        before = np.bincount(self.users.class_of[begun], minlength=count)
        here = moved.classes[moved.first != _NO_TURN]
        return np.asarray(self._sizes - before + np.bincount(here, minlength=count))

    def change(
        self, changes: Changes, slot: int, users: Indexes, classes: Indexes, words: RandomWords
    ) -> Changes:
        """Re-assign users.

        Args:
            changes: so far.
            slot: from which on the new requirements are in force, counted from the first one.
            users: ascending, each once, shape (c,).
            classes: the new class of each, or `AWAY`.
            words: where groups are drawn from.
        """
        moved = changes.moved
        old, here = self.classes(users, changes), users < self._begun
        found, place = moved.find(users)
        new = ~here & ~found
        old[new] = classes[new]
        here[found] = moved.first[place] != _NO_TURN
        now = np.where(classes == AWAY, old, classes)
        fresh = np.where(classes == AWAY, here, (now != old) | ~here)
        users, classes, old, now = (part[fresh] for part in (users, classes, old, now))
        former = self._bind(changes.former, slot, users, old, now)
        last = self._last(moved, slot, users, old)
        windows = self._windows[now]
        earliest = np.maximum(last + windows, slot)
        self._hold_back(earliest, former, users, now)
        group = generator(words).integers(0, windows)
        first = np.where(classes == AWAY, _NO_TURN, earliest + (group - earliest) % windows)
        entries = Moved(users, now, first.astype(np.int32), last.astype(np.int32))
        kept = _chosen(moved, ~entries.find(moved.users)[0])
        joined = _joined(kept, entries)
        return Changes(_chosen(joined, np.argsort(joined.users, kind="stable")), former)

    def away(self, changes: Changes) -> Indexes:
        """Users who have left, or not joined yet: ascending."""
        later = np.arange(self._begun, self.users.class_of.size, dtype=np.int32)
        never = later[~changes.moved.find(later)[0]]
        left = changes.moved.users[changes.moved.first == _NO_TURN]
        return np.sort(np.concatenate([left, never]))

    def _bind(
        self, former: Former, slot: int, users: Indexes, old: Indexes, now: Indexes
    ) -> Former:
        """Former requirements that still bind, those of users who change now among them."""
        leaving = old != now
        ends = slot - 1 + self._windows[old[leaving]]
        fresh = Former(users[leaving], old[leaving], ends.astype(np.int32))
        return _joined(_chosen(former, former.ends > slot), fresh)

    def _hold_back(
        self, earliest: Integers, former: Former, users: Indexes, classes: Indexes
    ) -> None:
        """Wait for the ends of stricter requirements: `earliest`, one for each user, is raised."""
        place = np.searchsorted(users, former.users)
        mine = place < users.size
        mine[mine] = users[place[mine]] == former.users[mine]
        place, before, ends = place[mine], former.classes[mine], former.ends[mine]
        after = classes[place]
        stricter = (self._budgets[before] < self._budgets[after]) | (
            self._windows[before] > self._windows[after]
        )
        np.maximum.at(earliest, place[stricter], ends[stricter])

    def _last(self, moved: Moved, slot: int, users: Indexes, classes: Indexes) -> Integers:
        """The last turn of each user before a slot."""
        found, place = moved.find(users)
        windows = self._windows[classes]
        begun = users < self._begun
        base = self.users.class_of[users[begun]]
        spread = (self._places[users[begun]] - self._starts[base]) * self._windows[base]
        turn = self._offsets[base] + spread // self._sizes[base]
        first, before = np.full((2, users.size), [[_NO_TURN], [_NEVER]], np.int64)
        first[begun] = turn % self._windows[base]
        first[found], before[found] = moved.first[place], moved.last[place]
        last = slot - 1 - (slot - 1 - first) % windows
        return np.where(last < first, before, last)


def _chosen(table: Table, rows: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> Table:
    """Some rows of a table of columns."""
    return replace(table, **{name: column[rows] for name, column in vars(table).items()})


def _joined(one: Table, other: Table) -> Table:
    """The rows of both tables."""
    columns = {name: np.concatenate([a, vars(other)[name]]) for name, a in vars(one).items()}
    return replace(one, **columns)
