"""Many devices at once: what a population of clients would report, and each one's filter.

Guarantee: whatever the server asks, a user who keeps the requirement (w, E) reports at a total
price of at most E in any w consecutive slots, in exact integers, each report through an
oracle that costs no more than its price. Where requirements change, a slot u in which (w, E) was
in force leaves at most E in the slots from u to u + w - 1, whatever is asked for later, and at most
E in the w slots up to u if anything is spent in u. An ask that would break this for any user is
refused as a whole. Adjacency: any values of one user for any others. Sensitivity: a user has one
symbol.

Where users tell one event of a window (`Users.asked`), (w, E) is kept as `one_event` proves.

Source: the filters are those of `user_filters`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.budgets import Units
from streamveil.mechanisms.core.identity import encoded
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.driver.saved_state import (
    BINS,
    KIND,
    LONGEST_WINDOW,
    REQUIREMENTS,
    USERS,
    Keeper,
)
from streamveil.mechanisms.local.accounting.one_event import OneEvent
from streamveil.mechanisms.local.accounting.promises import Promises
from streamveil.mechanisms.local.accounting.report_history import ENTRY, History, Indices
from streamveil.mechanisms.local.accounting.user_filters import UserFilters
from streamveil.mechanisms.local.oracles import (
    Integers,
    Oracle,
    Reports,
    check_symbols,
    perturb,
    supports,
)
from streamveil.mechanisms.local.protocol import OUE0, Ask, Tally, Users
from streamveil.mechanisms.randomness.noise import NoiseKeys, NoiseSource, digest


class Devices:
    """The devices of all users, who report together.

    They remember eight bytes for each user and what `History` needs. Noise is keyed: asked the same
    for the same values, they report the same; anything else gets independent noise.
    """

    SCHEMAS = {
        version: state_codec.record_schema(
            "Devices",
            slot=["null", "long"],
            round="long",
            spent="bytes",
            since="bytes",
            promises="bytes",
            history={"type": "array", "items": ENTRY},
            **more,
        )
        for version, more in ((2, {}), (3, {"silent": "bytes"}))
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
        self._filters = UserFilters(users, longest_window)
        self._round = 0
        self._one_event = OneEvent(users, bytes(32)) if users.asked else None

    @property
    def users(self) -> Users:
        """Who they are and what they ask for at present."""
        return self._filters.users

    @property
    def spent(self) -> Units:
        """What every user spent in the last slot, shape (n,), units."""
        return self._filters.spent

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
        if ask.slot != self._filters.slot:
            self._round = 0
        users, counts = self._filters.charge(ask, f"report refused in slot {ask.slot} by")
        self._round = ask.round
        reported = values[users]
        if self._one_event:
            reported = self._one_event.reported(ask.slot, users, reported)
        return self._perturbed(ask, oracles, users, counts, reported)

    def change(self, slot: int, users: Users) -> None:
        """Let requirements change from a slot on, which was not asked yet, and users come.

        See :meth:`UserFilters.change`.

        Raises:
            ConfigurationError: for a window longer than the longest one.
            ValueError: for a slot that was asked before, fewer users or other symbols.
        """
        filters = self._filters
        if filters.longest is None:
            raise ConfigurationError(
                "requirements change, but these devices only remember what fixed ones need: give "
                "them the longest window that a user may ask for (longest_window)"
            )
        if filters.slot is not None and (slot, 0) < (filters.slot, self._round):
            raise ValueError(
                f"requirements change from slot {slot} on, but slot {filters.slot} was asked: "
                "change those of later slots"
            )
        filters.change(slot, users)
        self._round = 0

    def remember(self, longest_window: int, asks: Iterable[Ask]) -> None:
        """Remember reports for so long from now on: see :meth:`UserFilters.remember`."""
        self._filters.remember(longest_window, asks)

    def encode(self) -> bytes:
        """Bytes of what the devices remember, without the users and the key."""
        filters = self._filters
        return self._keeper().write(
            state_codec.pack(
                self.SCHEMAS,
                {
                    "slot": filters.slot,
                    "round": self._round,
                    "spent": state_codec.table_to_bytes(filters.in_window),
                    "since": state_codec.table_to_bytes(filters.since),
                    "promises": filters.promises.to_bytes(),
                    "history": filters.history.to_records(self.users.class_of),
                    "silent": self._one_event.silent.tobytes() if self._one_event else b"",
                },
            )
        )

    @classmethod
    def decode(
        cls, data: bytes, users: Users, key: bytes | NoiseKeys, longest_window: int | None = None
    ) -> Devices:
        """Devices of bytes, and of what they were made with, users as they were last.

        Raises ConfigurationError for bytes that were changed, or that other users wrote.
        """
        devices = cls(users, key, longest_window)
        _, record = state_codec.unpack(cls.SCHEMAS, devices._keeper().read(data))
        filters, size = devices._filters, users.class_of.size
        filters.slot, devices._round = record["slot"], record["round"]
        filters.in_window = state_codec.table_from_bytes(record["spent"], (size,))
        filters.since = state_codec.table_from_bytes(record["since"], (-1,))
        filters.promises = Promises.from_bytes(record["promises"])
        filters.history = History.from_records(record["history"], users.class_of)
        if devices._one_event:
            devices._one_event.silent = np.frombuffer(record["silent"], np.int64).copy()
        return devices

    def _keeper(self) -> Keeper:
        return Keeper(
            self._noise,
            {
                KIND: encoded("devices"),
                REQUIREMENTS: encoded(self.users.classes),
                USERS: self.users.identity(),
                BINS: encoded(self.users.symbols),
                LONGEST_WINDOW: encoded(self._filters.longest),
            },
        )

    def _checked(self, ask: Ask, values: Integers) -> dict[int, Oracle]:
        """Refuse an ask that makes no sense; else the oracle of every class that is asked."""
        classes, size = len(self.users.classes), self.users.class_of.size
        last = self._filters.slot
        if last is not None and (ask.slot, ask.round) <= (last, self._round):
            raise ValueError(
                f"round {ask.round} of slot {ask.slot} does not follow round {self._round} of slot "
                f"{last}: a device reports once to a round, in the order of the rounds"
            )
        if self._one_event and (ask.round != 1 or set(ask.oracles) != {OUE0}):
            raise ValueError(
                f"round {ask.round} of slot {ask.slot} asks by {', '.join(set(ask.oracles))}: "
                f"devices that report one event per window answer once per slot, by {OUE0}"
            )
        if ask.round not in (1, 2):
            raise ValueError(f"round {ask.round} of slot {ask.slot} is neither 1 nor 2")
        if ask.epsilons.shape != (classes,) or len(ask.oracles) != classes:
            raise ValueError(
                f"an ask of {classes} classes has {len(ask.epsilons)} prices and "
                f"{len(ask.oracles)} oracles: give one of each for every class"
            )
        self._filters.check(ask)
        if values.shape != (size,) or not np.issubdtype(values.dtype, np.integer):
            raise ValueError(
                f"values must be {size} whole numbers, one for each user; got {values.dtype} of "
                f"shape {values.shape}"
            )
        check_symbols(values[ask.users], self.users.symbols)
        asked = np.unique(self.users.class_of[ask.users]).tolist()
        prices = ask.epsilons.tolist()
        return {k: Oracle.of(ask.oracles[k], prices[k], self.users.symbols) for k in asked}

    def _perturbed(
        self,
        ask: Ask,
        oracles: dict[int, Oracle],
        users: Indices,
        counts: npt.NDArray[np.int64],
        values: Integers,
    ) -> Iterator[tuple[int, Indices, Reports]]:
        asked = digest(
            encoded((ask.round, self.users.symbols, ask.oracles)),
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
