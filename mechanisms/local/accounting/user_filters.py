"""What every user of a population spent, and may spend yet: a filter for each, on arrays.

Guarantee: after any sequence of calls that did not raise, a user who keeps the requirement (w, E)
is charged at most E in any w consecutive slots, in exact integers. Where requirements change, a
slot u in which (w, E) was in force leaves at most E in the slots from u to u + w - 1, whatever is
asked for later, and at most E in the w slots up to u if anything is spent in u. What would break
this for any user is refused as a whole.

Source: the filter of `device`, for a single client, on arrays.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.accounting.window_filter import check_amounts, refusal
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.budgets import Units
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.local.accounting.one_event import EVENTS
from streamveil.mechanisms.local.accounting.promises import Promises
from streamveil.mechanisms.local.accounting.report_history import ENTRY, Entry, History, Indices
from streamveil.mechanisms.local.protocol import Ask, Users

_ALWAYS = np.iinfo(np.int64).min // 2


_ASKED: dict[str, Any] = {
    "slot": ["null", "long"],
    "history": {"type": "array", "items": ENTRY},
}
_UNCHANGED = {
    "longest": None,
    "class_of": b"",
    "since": b"",
    "promises": Promises.none().to_bytes(),
}


class UserFilters:
    """They remember eight bytes for each user and what `History` needs.

    They are kept by devices, of their reports, and by the server, of what it asked: public facts,
    which hold whatever devices answer.

    Args:
        users: who they are and what they ask for.
        longest_window: of any requirement, at any time, in slots: it says how long reports are
            remembered. None while requirements do not change.

    Raises:
        ConfigurationError: for a window that is longer.
    """

    SCHEMAS = {
        1: state_codec.record_schema("UserFilters", **_ASKED),
        2: state_codec.record_schema(
            "UserFilters",
            **_ASKED,
            longest=["null", "long"],
            class_of="bytes",
            since="bytes",
            promises="bytes",
        ),
    }

    def __init__(self, users: Users, longest_window: int | None = None) -> None:
        self.longest = longest_window
        self.slot: int | None = None
        """The slot charged or opened last."""
        self.in_window: Units = np.zeros(len(users.class_of), np.int64)
        """Charged to each user in the window that ends with that slot, shape (n,), units."""
        self.since = np.zeros(0, np.int64)
        """First slot of each requirement, once one changed."""
        self.promises = Promises.none()
        self.history = History()
        self._check_windows(users)
        self._follow(users)

    @property
    def spent(self) -> Units:
        """What every user was charged in the last slot, shape (n,), units."""
        total = np.zeros(self.in_window.size, np.int64)
        if self.slot is not None:
            for entry in self.history.between(self.slot, self.slot):
                users, amounts = entry.spending()
                total[users] += amounts
        return total

    @property
    def since_change(self) -> Units:
        """As `in_window`, of who changed within the window since then only: never above E."""
        total = self.in_window
        if self.slot is not None and self.since.size:
            firsts = self.slot - self.windows[self.users.class_of] + 1
            changed = np.flatnonzero(self.since > firsts)
            total = total.copy()
            total[changed] = self.history.spent(changed, self.since[changed])
        return total

    def spent_by_class(self) -> Units:
        """The largest `spent` of each class, shape (K,), units."""
        return self._largest(self.spent)

    def spent_in_window(self) -> Units:
        """The most charged to any user of each class in the window of the last slot, shape (K,).

        Of who asked for something else before, it is what was charged since. Where devices tell
        one event of a window, it is what the events of a window can have cost.
        """
        return self._largest(self.since_change) * (EVENTS if self.users.asked else 1)

    def _largest(self, amounts: Units) -> Units:
        largest = np.zeros(len(self.caps), np.int64)
        np.maximum.at(largest, self.users.class_of, amounts)
        return largest

    def use(self) -> float:
        """Largest share of anybody's window that is spent, from 0 to 1."""
        caps = self.users.promised.budgets
        return float((self.spent_in_window() / np.maximum(caps, 1)).max())

    def charge(self, ask: Ask, refused: str) -> tuple[Indices, npt.NDArray[np.int64]]:
        """Book a report of each user who is asked, or refuse all.

        Args:
            ask: whom, at what price, in the last slot or a later one.
            refused: what a refusal begins with, before the user.

        Returns:
            (those asked, class by class, ascending in each; how many they are of each class).

        Raises:
            BudgetExceeded: when it would overspend a window of any user.
            ValueError: for what cannot be booked: see :meth:`check`.
        """
        self.check(ask)
        classes, count = self.users.class_of[ask.users], len(self.caps)
        order = np.argsort(classes.astype(np.min_scalar_type(count)), kind="stable")
        users, counts = ask.users[order], np.bincount(classes, minlength=count)
        self.advance(ask.slot)
        amounts = np.repeat(ask.epsilons, counts)
        remaining = np.repeat(self.caps, counts) - self.in_window[users]
        over = np.flatnonzero(amounts > remaining)
        if over.size:
            user = users[over[0]]
            requirement = self.users.classes[self.users.class_of[user]]
            raise refusal(
                f"{refused} user {user} with {requirement}",
                int(amounts[over[0]]),
                int(remaining[over[0]]),
            )
        self.promises.check(users, amounts, refused)
        self.history.add(Entry.of(ask, self.users, users, counts))
        self.in_window[users] += amounts
        self.promises.book(users, amounts)
        return users, counts

    def check(self, ask: Ask) -> None:
        """Refuse, whatever is left, an ask that would be booked for less than it costs.

        Raises ValueError for users who are not ascending, each once; for prices that nothing can
        have; and for a slot before the last one, whose reports have left the windows.
        """
        users, size = ask.users, self.in_window.size
        if users.size and not (users[0] >= 0 and users[-1] < size and (np.diff(users) > 0).all()):
            raise ValueError(f"those asked must be ascending users from 0 to {size - 1}")
        check_amounts(ask.epsilons, len(self.caps))
        if self.slot is not None and ask.slot < self.slot:
            raise ValueError(f"slot {ask.slot} is out of order: slot {self.slot} was charged")

    def advance(self, slot: int) -> None:
        """Go on to a slot: earlier ones leave the windows."""
        before, self.slot = self.slot, slot
        if before is None or before == slot:
            return
        for window in np.unique(self.windows).tolist():
            first, last = before - window + 1, slot - window
            same = self.windows == window
            for entry in self.history.between(first, last):
                if entry.class_of is self.users.class_of:
                    users, amounts = entry.spending(same)
                else:
                    users, amounts = entry.spending()
                    now = same[self.users.class_of[users]]
                    users, amounts = users[now], amounts[now]
                self.in_window[users] -= amounts
            if self.longest is None:
                self.history.forget(first, last, same)
        self.promises = self.promises.advance(self.history, before, slot)
        if self.longest is not None:
            self.history.forget(before - self.longest + 1, slot - self.longest)

    def remember(self, longest_window: int, asks: Iterable[Ask]) -> None:
        """Remember reports for the longest window from now on, and those before, replayed.

        Args:
            longest_window: of any requirement from now on, in slots; that of nobody so far is
                longer.
            asks: all that was charged in the last slots, at least as many as the longest window
                has, or since the beginning; one for each slot, in order.

        Raises:
            BudgetExceeded: for asks that cannot have been charged.
            ValueError: for asks that add up to something else than what is remembered.
        """
        again = UserFilters(self.users, longest_window)
        for ask in asks:
            again.charge(ask, f"slot {ask.slot} replayed:")
        if again.slot != self.slot or (again.in_window != self.in_window).any():
            raise ValueError(
                f"slots up to {again.slot} replayed add up to something else than what is "
                f"remembered up to slot {self.slot}"
            )
        self.longest, self.history = longest_window, again.history

    def change(self, slot: int, users: Users) -> None:
        """Let requirements change from a slot on, which was not charged yet.

        A user who leaves (w, E) for (w', E') and whose last report was in slot l can pay all of E'
        again in slot max(slot - 1 + w, l + w'): by then what was promised has ended. A filter
        without any report has kept its requirement forever.

        Args:
            slot: the first one.
            users: as they are from then on. Users and classes that are new are behind the others.

        Raises:
            ConfigurationError: for a window longer than the longest one.
            ValueError: for fewer users, or other symbols.
        """
        old, size = self.users.class_of, self.in_window.size
        if users.class_of.size < size or users.symbols != self.users.symbols:
            raise ValueError(
                f"{users.class_of.size} users take the place of {size}, or they report "
                "other symbols: only requirements can change, and users come"
            )
        self._check_windows(users)
        self.advance(slot)
        windows, caps = self.windows, self.caps
        self._follow(users)
        new = self.users.class_of[:size]
        moved = np.flatnonzero((windows[old] != self.windows[new]) | (caps[old] != self.caps[new]))
        if not self.since.size:
            self.since = np.full(size, _ALWAYS)
        bound = moved[windows[old[moved]] > 1]  # a window of one slot has ended before this one
        windows, caps, since = windows[old[bound]], caps[old[bound]], self.since[bound]
        spent = self.history.spent(bound, np.maximum(since, slot - windows + 1))
        self.promises = self.promises.add(bound, windows, caps, since, slot + windows - 2, spent)
        self.since[moved] = slot
        firsts = slot - self.windows[new[moved]] + 1
        self.in_window[moved] = self.history.spent(moved, firsts)
        came = users.class_of.size - size
        self.since = np.append(self.since, np.full(came, slot))
        self.in_window = np.append(self.in_window, np.zeros(came, np.int64))

    def _check_windows(self, users: Users) -> None:
        longest = users.classes.longest
        if self.longest is not None and longest > self.longest:
            raise ConfigurationError(
                f"a window of {longest} slots is longer than the {self.longest} that reports are "
                "remembered: raise the longest window (longest_window) and start anew, or ask for "
                "a shorter one"
            )

    def _follow(self, users: Users) -> None:
        self.users = users
        self.windows = users.classes.windows
        self.caps = users.classes.budgets

    def encode(self) -> bytes:
        """Bytes of what was charged, of which the sums follow, and of what changed."""
        class_of = self.users.class_of
        return state_codec.pack(
            self.SCHEMAS,
            {
                "slot": self.slot,
                "history": self.history.to_records(class_of),
                "longest": self.longest,
                "class_of": class_of.astype("<i4").tobytes() if self.since.size else b"",
                "since": state_codec.table_to_bytes(self.since),
                "promises": self.promises.to_bytes(),
            },
        )

    @classmethod
    def decode(cls, data: bytes, users: Users) -> UserFilters:
        """The filters of bytes and of the users that they began with, sums added up anew."""
        _, known = state_codec.unpack(cls.SCHEMAS, data)
        record = {**_UNCHANGED, **known}
        if record["class_of"]:
            class_of = np.frombuffer(record["class_of"], "<i4").astype(np.int32)
            users = Users(users.classes, class_of, users.symbols)
        made = cls(users, record["longest"])
        made.slot = record["slot"]
        made.history = History.from_records(record["history"], users.class_of)
        made.since = state_codec.table_from_bytes(record["since"], (-1,))
        made.promises = Promises.from_bytes(record["promises"])
        if made.slot is not None:
            everybody = np.arange(users.class_of.size)
            firsts = made.slot - made.windows[users.class_of] + 1
            made.in_window = made.history.spent(everybody, firsts)
        return made
