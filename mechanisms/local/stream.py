"""A stream of local releases: the server's mechanism and its filter, driven slot by slot.

This is the one way from tallies of reports to a release in pipelines: the stage that plays the
devices, which must foresee whom the server asks, and the server itself both take it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.driver.saved_state import (
    NOTHING_MORE,
    Keeper,
    Parts,
    of_parts,
    public_facts,
)
from streamveil.mechanisms.driver.stream import check_order
from streamveil.mechanisms.local.accounting.user_filters import UserFilters
from streamveil.mechanisms.local.algorithms.report_groups import AWAY
from streamveil.mechanisms.local.algorithms.rotation import Rotation
from streamveil.mechanisms.local.protocol import (
    Ask,
    LocalMechanism,
    LocalRelease,
    LocalRevised,
    Tally,
    Users,
    rest_of,
)
from streamveil.mechanisms.local.server.open_ask import ASKED, asked_of, asked_record
from streamveil.mechanisms.randomness.noise import NoiseSource, SlotNoise


@dataclass
class LocalStreamState:
    """All that the server remembers."""

    mechanism: Any
    filter: UserFilters
    """What was asked of every user."""
    next_slot: int | None = None
    """The slot to begin next, None before the first."""
    asked: Ask | None = None
    """The ask whose reports are awaited; None between slots."""


class LocalStream:
    """Asks and releases slots in order, each once, through the filter.

    Whom a slot asks follows from the key, the configuration and earlier tallies. State of one
    configuration is refused by another.
    """

    SCHEMAS = {
        2: state_codec.record_schema(
            "LocalStream",
            next_slot=["null", "long"],
            filter="bytes",
            mechanism="bytes",
            asked=ASKED,
        )
    }

    def __init__(
        self,
        mechanism: LocalMechanism[Any],
        noise: NoiseSource,
        *,
        context: Parts = NOTHING_MORE,
        longest_window: int | None = None,
    ) -> None:
        """Drive a mechanism.

        Args:
            mechanism: what asks and releases.
            noise: where its randomness comes from.
            context: everything else that shapes what is released, such as what the bins mean, by
                name; what it says of a part takes the place of what is known without it.
            longest_window: of any requirement, at any time, in slots; None while none changes.
        """
        self.mechanism = mechanism
        self.users = users = mechanism.users
        self._longest = longest_window
        self._noise = noise
        facts = public_facts(
            "server of devices", mechanism.name, users.classes, users.identity(), users.symbols
        )
        parts = {**facts, **context}
        self._configuration = of_parts(parts)
        self._keeper = Keeper(noise, parts)

    def start(self) -> LocalStreamState:
        """State before the first slot."""
        return LocalStreamState(self.mechanism.start(), UserFilters(self.users, self._longest))

    def begin(self, state: LocalStreamState, slot: int) -> tuple[LocalStreamState, Ask]:
        """Ask for the first reports of the next slot.

        Raises:
            BudgetExceeded: when the filter refuses; nothing is asked then.
            ValueError: for a slot out of order, or while reports are awaited.
        """
        check_order(state.next_slot, slot)
        if state.asked is not None:
            raise ValueError(f"slot {slot} cannot begin: slot {state.asked.slot} waits for reports")
        inner, ask = self.mechanism.begin(state.mechanism, slot, self._random(slot))
        _book(state.filter, ask)
        return LocalStreamState(inner, state.filter, slot + 1, ask), ask

    def take(
        self, state: LocalStreamState, tally: Tally
    ) -> tuple[LocalStreamState, Ask | LocalRelease]:
        """Use the reports to the last ask.

        Raises:
            BudgetExceeded: when the filter refuses a second ask.
            ValueError: for a tally that is none of reports to that ask.
        """
        asked = state.asked
        if asked is None:
            raise ValueError("reports arrived before any user was asked: begin the slot first")
        self._check(state.filter.users, asked, tally)
        inner, answer = self.mechanism.take(state.mechanism, tally, self._random(asked.slot))
        if isinstance(answer, LocalRelease):
            return LocalStreamState(inner, state.filter, state.next_slot), answer
        _book(state.filter, answer)
        return LocalStreamState(inner, state.filter, state.next_slot, answer), answer

    def _random(self, slot: int) -> SlotNoise:
        return self._noise.slot(slot, self._configuration)

    def rest(self, state: LocalStreamState) -> tuple[LocalRevised, ...]:
        """The slots that are still to be revised, with what there is: the stream ends.

        The state remembers that it was done.
        """
        return rest_of(self.mechanism, state.mechanism)

    def asked(self, state: LocalStreamState, slots: int) -> list[Ask]:
        """The asks of the last slots, so many or since the beginning, while nobody changed."""
        assert state.next_slot is not None
        last = state.next_slot - 1
        return list(self._rotation().asked(state.mechanism, last - slots + 1, last))

    def change(
        self, state: LocalStreamState, users: npt.NDArray[np.int32], classes: npt.NDArray[np.int32]
    ) -> LocalStreamState:
        """Let users come, leave or ask for something else from the next slot on.

        Args:
            state: between two slots; it may be that of a stream with fewer users and
                classes, the first ones of this one. Its filter remembers the longest window.
            users: who, ascending, each once, shape (c,).
            classes: the new class of each, or `rota.AWAY` for one who leaves.

        Raises:
            ConfigurationError: for a mechanism that does not follow changes.
        """
        assert state.next_slot is not None
        slot, booked = state.next_slot, state.filter
        inner = self._rotation().change(state.mechanism, slot, users, classes, self._random(slot))
        size = booked.users.class_of.size
        class_of = np.append(booked.users.class_of, self.users.class_of[size:])
        here = classes != AWAY
        class_of[users[here]] = classes[here]
        booked.change(slot, replace(self.users, class_of=class_of, begun=None))
        return LocalStreamState(inner, booked, slot)

    def sizes(self, state: LocalStreamState) -> npt.NDArray[np.int64]:
        """Users of each class who take part, shape (K,)."""
        if isinstance(self.mechanism, Rotation):
            return self.mechanism.sizes(state.mechanism)
        return self.users.sizes

    def away(self, state: LocalStreamState) -> npt.NDArray[np.int32]:
        """Users who take no part, ascending; `state` is not before the first slot."""
        if isinstance(self.mechanism, Rotation):
            return self.mechanism.away(state.mechanism)
        return np.zeros(0, np.int32)

    def _rotation(self) -> Rotation:
        if not isinstance(self.mechanism, Rotation) or self.users.asked:
            raise ConfigurationError(
                f"{self.mechanism.name} does not follow requirements that change: use the "
                "mechanism rotation, without turns"
            )
        return self.mechanism

    def _check(self, users: Users, asked: Ask, tally: Tally) -> None:
        classes, symbols = len(users.classes), users.symbols
        most = np.bincount(users.class_of[asked.users], minlength=classes)
        fits = tally.supports.shape == (classes, symbols) and tally.reports.shape == (classes,)
        if (
            not fits
            or (tally.reports > most).any()
            or (tally.supports < 0).any()
            or (tally.supports > tally.reports[:, None]).any()
        ):
            raise ValueError(
                f"this is not a tally of the reports to round {asked.round} of slot {asked.slot}: "
                f"{tally}"
            )

    def encode(self, state: LocalStreamState) -> bytes:
        """Bytes of the state, readable by this and later versions."""
        return self._keeper.write(
            state_codec.pack(
                self.SCHEMAS,
                {
                    "next_slot": state.next_slot,
                    "filter": state.filter.encode(),
                    "mechanism": self.mechanism.encode(state.mechanism),
                    "asked": asked_record(state.asked),
                },
            )
        )

    def decode(self, data: bytes) -> LocalStreamState:
        """State of bytes.

        Raises ConfigurationError for bytes that were changed, or that another configuration wrote:
        see :meth:`Keeper.read`.
        """
        _, record = state_codec.unpack(self.SCHEMAS, self._keeper.read(data))
        return LocalStreamState(
            self.mechanism.decode(record["mechanism"]),
            UserFilters.decode(record["filter"], self.users),
            record["next_slot"],
            asked_of(record["asked"]),
        )


def _book(booked: UserFilters, ask: Ask) -> None:
    """Book an ask, or refuse it. Raises BudgetExceeded when it would break any requirement."""
    booked.charge(ask, f"round {ask.round} of slot {ask.slot} was not asked:")
