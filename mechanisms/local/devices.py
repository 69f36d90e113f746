"""Many devices at once: what a population of clients would report, and each one's odometer.

Guarantee: whatever the server asks, a user who keeps the requirement (w, E) reports at a total
price of at most E in any w consecutive slots, in exact integers, each report through an
oracle that costs no more than its price. Where requirements change, a slot u in which (w, E) was
in force leaves at most E in the slots from u to u + w - 1, whatever is asked for later, and at most
E in the w slots up to u if anything is spent in u. An ask that would break this for any user is
refused as a whole. Adjacency: any values of one user for any others. Sensitivity: a user has one
symbol.

Source: the odometer is that of `device`, for a single client, on arrays.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms import state as state_bytes
from streamveil.mechanisms.budgets import Units, to_units
from streamveil.mechanisms.local.history import ENTRY, Entry, History, Indices
from streamveil.mechanisms.local.oracles import (
    Integers,
    Oracle,
    Reports,
    check_symbols,
    perturb,
    supports,
)
from streamveil.mechanisms.local.promises import Promises
from streamveil.mechanisms.local.protocol import Ask, Tally, Users
from streamveil.mechanisms.noise import NoiseKeys, NoiseSource, digest
from streamveil.mechanisms.odometer import refusal
from streamveil.mechanisms.records import ConfigurationError
from streamveil.mechanisms.stream import check_configuration

_ALWAYS = np.iinfo(np.int64).min // 2


class Devices:
    """The devices of all users, who report together.

    They remember eight bytes for each user and what `History` needs. Noise is keyed: asked the same
    for the same values, they report the same; anything else gets independent noise.
    """

    SCHEMAS = {
        1: {
            "type": "record",
            "name": "Devices",
            "fields": [
                {"name": "configuration", "type": "bytes"},
                {"name": "slot", "type": ["null", "long"]},
                {"name": "round", "type": "long"},
                {"name": "spent", "type": "bytes"},
                {"name": "since", "type": "bytes"},
                {"name": "promises", "type": "bytes"},
                {"name": "history", "type": {"type": "array", "items": ENTRY}},
            ],
        }
    }

    def __init__(
        self, users: Users, key: bytes | NoiseKeys, longest_window: int | None = None
    ) -> None:
        """Devices that have not reported yet.

        Args:
            users: who they are and what they ask for.
            key: 32 secret bytes, or those of each slot.
            longest_window: of any requirement, at any time, in slots: it says how long reports are
                remembered. None if requirements never change.

        Raises:
            ConfigurationError: for a window that is longer.
        """
        self._noise = NoiseSource(key, "devices")
        self._longest = longest_window
        self._spent = np.zeros(len(users.class_of), np.int64)  # in the window up to _slot
        self._since = np.zeros(0, np.int64)  # first slot of each requirement, once one changed
        self._promises = Promises.none()
        self._history = History()
        self._slot: int | None = None
        self._round = 0
        self._check_windows(users)
        self._follow(users)

    def report(self, ask: Ask, values: Integers) -> Tally:
        """Report to the server, summed up by class.

        Args:
            ask: whom it asks for what.
            values: symbol of every user in this slot, shape (n,); only those asked must have one.

        Raises:
            BudgetExceeded: when it would overspend a window of any user; nobody reports.
            ValueError: for an ask that does not follow the last one, or that makes no sense.
        """
        shape = (len(self.users.classes), self.users.symbols)
        tally = Tally(np.zeros(shape, np.int64), np.zeros(shape[0], np.int64))
        for k, users, reports in self.reports(ask, values):
            tally.supports[k] += supports(ask.oracles[k], self.users.symbols, reports)
            tally.reports[k] += users.size
        return tally

    def reports(self, ask: Ask, values: Integers) -> Iterator[tuple[int, Indices, Reports]]:
        """Report one by one: chunks of a class, its users and their reports.

        Budgets are spent when this is called. Raises as :meth:`report` does.
        """
        oracles = self._checked(ask, values)
        classes = self.users.class_of[ask.users]
        order = np.argsort(
            classes.astype(np.min_scalar_type(len(self.users.classes))), kind="stable"
        )
        counts = np.bincount(classes, minlength=len(self.users.classes))
        users = ask.users[order]
        self._charge(ask, users, counts)
        return self._perturbed(ask, oracles, users, counts, values[users])

    @property
    def spent(self) -> Units:
        """What every user spent in the last slot, shape (n,), units."""
        total = np.zeros(self._spent.size, np.int64)
        if self._slot is not None:
            for entry in self._history.between(self._slot, self._slot):
                users, amounts = entry.spending()
                total[users] += amounts
        return total

    def change(self, slot: int, users: Users) -> None:
        """Let requirements of the same users change from a slot on, which was not asked yet.

        A user who leaves (w, E) for (w', E') and whose last report was in slot l can pay all of E'
        again in slot max(slot - 1 + w, l + w'): by then what was promised has ended. A device
        without any report has kept its requirement for ever.

        Raises:
            ConfigurationError: for a window longer than the longest one.
            ValueError: for a slot that was asked before, or other users.
        """
        if self._longest is None:
            raise ConfigurationError(
                "requirements change, but these devices only remember what fixed ones need: give "
                "them the longest window that anybody may ask for (longest_window)"
            )
        if self._slot is not None and (slot, 0) < (self._slot, self._round):
            raise ValueError(
                f"requirements change from slot {slot} on, but slot {self._slot} was asked: change "
                "those of later slots"
            )
        if users.class_of.size != self._spent.size or users.symbols != self.users.symbols:
            raise ValueError(
                f"{users.class_of.size} users take the place of {self._spent.size}, or they report "
                "other symbols: only requirements can change"
            )
        self._check_windows(users)
        self._advance(slot)
        before, windows, caps = self.users, self._windows, self._caps
        self._follow(users)
        old, new = before.class_of, self.users.class_of
        moved = np.flatnonzero(
            (windows[old] != self._windows[new]) | (caps[old] != self._caps[new])
        )
        windows, caps = windows[old[moved]], caps[old[moved]]
        if not self._since.size:
            self._since = np.full(self._spent.size, _ALWAYS)
        since = self._since[moved]
        spent = self._history.spent(moved, np.maximum(since, slot - windows + 1))
        self._promises = self._promises.add(moved, windows, caps, since, slot + windows - 2, spent)
        self._since[moved] = slot
        firsts = slot - self._windows[new[moved]] + 1
        self._spent[moved] = self._history.spent(moved, firsts)

    def encode(self) -> bytes:
        """Bytes of what the devices remember, without the users and the key."""
        return state_bytes.pack(
            self.SCHEMAS,
            {
                "configuration": self._configuration(),
                "slot": self._slot,
                "round": self._round,
                "spent": state_bytes.table_to_bytes(self._spent),
                "since": state_bytes.table_to_bytes(self._since),
                "promises": self._promises.to_bytes(),
                "history": self._history.to_records(self.users.class_of),
            },
        )

    @classmethod
    def decode(
        cls, data: bytes, users: Users, key: bytes | NoiseKeys, longest_window: int | None = None
    ) -> Devices:
        """Devices of bytes, and of what they were made with, users as they were last.

        Raises ConfigurationError when other users wrote them.
        """
        devices = cls(users, key, longest_window)
        _, record = state_bytes.unpack(cls.SCHEMAS, data)
        check_configuration(record["configuration"], devices._configuration())
        size = devices._spent.size
        devices._slot, devices._round = record["slot"], record["round"]
        devices._spent = state_bytes.table_from_bytes(record["spent"], (size,))
        devices._since = state_bytes.table_from_bytes(record["since"], (-1,))
        devices._promises = Promises.from_bytes(record["promises"])
        devices._history = History.from_records(record["history"], users.class_of)
        return devices

    def _check_windows(self, users: Users) -> None:
        longest = max(r.window for r in users.classes)
        if self._longest is not None and longest > self._longest:
            raise ConfigurationError(
                f"a window of {longest} slots is longer than the {self._longest} that reports are "
                "remembered: raise the longest window (longest_window) and start anew, or ask for "
                "a shorter one"
            )

    def _follow(self, users: Users) -> None:
        self.users = users
        self._windows = np.array([r.window for r in users.classes], np.int64)
        self._caps = np.array([to_units(r.epsilon) for r in users.classes], np.int64)

    def _configuration(self) -> bytes:
        facts = repr((self.users.classes, self.users.symbols, self._longest)).encode()
        return digest(facts, self.users.class_of.astype("<i4").tobytes())

    def _checked(self, ask: Ask, values: Integers) -> dict[int, Oracle]:
        """Refuse an ask that makes no sense; else the oracle of every class that is asked."""
        classes, size = len(self.users.classes), self._spent.size
        if self._slot is not None and (ask.slot, ask.round) <= (self._slot, self._round):
            raise ValueError(
                f"round {ask.round} of slot {ask.slot} does not follow round {self._round} of slot "
                f"{self._slot}: a device reports once to a round, in the order of the rounds"
            )
        if ask.round not in (1, 2):
            raise ValueError(f"round {ask.round} of slot {ask.slot} is neither 1 nor 2")
        users = ask.users
        if users.size and not (users[0] >= 0 and users[-1] < size and (np.diff(users) > 0).all()):
            raise ValueError(f"those asked must be ascending users from 0 to {size - 1}")
        if ask.epsilons.shape != (classes,) or len(ask.oracles) != classes:
            raise ValueError(
                f"an ask of {classes} classes has {len(ask.epsilons)} prices and "
                f"{len(ask.oracles)} oracles: give one of each for every class"
            )
        if values.shape != (size,) or not np.issubdtype(values.dtype, np.integer):
            raise ValueError(
                f"values must be {size} whole numbers, one for each user; got {values.dtype} of "
                f"shape {values.shape}"
            )
        check_symbols(values[users], self.users.symbols)
        asked = np.unique(self.users.class_of[users]).tolist()
        prices = ask.epsilons.tolist()
        return {k: Oracle.of(ask.oracles[k], prices[k], self.users.symbols) for k in asked}

    def _charge(self, ask: Ask, users: Indices, counts: npt.NDArray[np.int64]) -> None:
        """Book a report of each of these users, in the order of their classes, or refuse all."""
        self._advance(ask.slot)
        amounts = np.repeat(ask.epsilons, counts)
        remaining = np.repeat(self._caps, counts) - self._spent[users]
        over = np.flatnonzero(amounts > remaining)
        if over.size:
            user = users[over[0]]
            requirement = self.users.classes[self.users.class_of[user]]
            raise refusal(
                f"report refused in slot {ask.slot} by user {user} with {requirement}",
                int(amounts[over[0]]),
                int(remaining[over[0]]),
            )
        self._promises.check(users, amounts, ask.slot)
        self._history.add(Entry.of(ask, self.users, users, counts))
        self._spent[users] += amounts
        self._promises.book(users, amounts)
        self._round = ask.round

    def _perturbed(
        self,
        ask: Ask,
        oracles: dict[int, Oracle],
        users: Indices,
        counts: npt.NDArray[np.int64],
        values: Integers,
    ) -> Iterator[tuple[int, Indices, Reports]]:
        asked = digest(
            repr((ask.round, self.users.symbols, ask.oracles)).encode(),
            *(np.ascontiguousarray(part, "<i8").tobytes() for part in (ask.epsilons, counts)),
            *(np.ascontiguousarray(part, "<i4").tobytes() for part in (users, values)),
        )
        words = self._noise.slot(ask.slot, asked).words("reports")
        ends = np.cumsum(counts)
        for k, oracle in oracles.items():
            start = int(ends[k] - counts[k])
            for reports in perturb(oracle, values[start : ends[k]], words):
                yield k, users[start : start + len(reports)], reports
                start += len(reports)

    def _advance(self, slot: int) -> None:
        """Go on to a slot: earlier ones leave the windows."""
        before, self._slot = self._slot, slot
        if before is None or before == slot:
            return
        self._round = 0
        for window in np.unique(self._windows).tolist():
            first, last = before - window + 1, slot - window
            same = self._windows == window
            for entry in self._history.between(first, last):
                if entry.class_of is self.users.class_of:
                    users, amounts = entry.spending(same)
                else:
                    users, amounts = entry.spending()
                    now = same[self.users.class_of[users]]
                    users, amounts = users[now], amounts[now]
                self._spent[users] -= amounts
            if self._longest is None:
                self._history.forget(first, last, same)
        self._promises = self._promises.advance(self._history, before, slot)
        if self._longest is not None:
            self._history.forget(before - self._longest + 1, slot - self._longest)
