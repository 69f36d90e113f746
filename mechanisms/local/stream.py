"""A stream of local releases: the server's mechanism and its ledger, driven slot by slot.

This is the one way from tallies of reports to a release in pipelines: the stage that plays the
devices, which must foresee whom the server asks, and the server itself both take it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streamveil.mechanisms import state as state_bytes
from streamveil.mechanisms.budgets import Units
from streamveil.mechanisms.local.ask_ledger import AskLedger, AskLedgerState
from streamveil.mechanisms.local.awaited import ASKED, asked_of, asked_record
from streamveil.mechanisms.local.protocol import Ask, LocalMechanism, LocalRelease, Tally
from streamveil.mechanisms.noise import NoiseSource, SlotNoise, digest
from streamveil.mechanisms.stream import check_configuration, check_order


@dataclass
class LocalStreamState:
    """All that the server remembers."""

    mechanism: Any
    ledger: AskLedgerState
    next_slot: int | None = None
    """The slot to begin next, None before the first."""
    asked: Ask | None = None
    """The ask whose reports are awaited; None between slots."""


class LocalStream:
    """Asks and releases slots in order, each once, through the ledger.

    Whom a slot asks follows from the key, the configuration and earlier tallies. State of one
    configuration is refused by another.
    """

    SCHEMAS = {
        1: {
            "type": "record",
            "name": "LocalStream",
            "fields": [
                {"name": "configuration", "type": "bytes"},
                {"name": "next_slot", "type": ["null", "long"]},
                {"name": "ledger", "type": "bytes"},
                {"name": "mechanism", "type": "bytes"},
                ASKED,
            ],
        }
    }

    def __init__(
        self, mechanism: LocalMechanism[Any], noise: NoiseSource, *, context: bytes = b""
    ) -> None:
        """Drive a mechanism.

        Args:
            mechanism: what asks and releases.
            noise: where its randomness comes from.
            context: everything else that shapes what is released, such as what the bins mean.
        """
        self.mechanism = mechanism
        self.users = mechanism.users
        self.ledger = AskLedger(mechanism.users)
        self._noise = noise
        self._configuration = digest(_public_facts(mechanism), context)

    def start(self) -> LocalStreamState:
        """State before the first slot."""
        return LocalStreamState(self.mechanism.start(), self.ledger.start())

    def begin(self, state: LocalStreamState, slot: int) -> tuple[LocalStreamState, Ask]:
        """Ask for the first reports of the next slot; `state` is consumed.

        Raises:
            BudgetExceeded: when the ledger refuses; nothing is asked then.
            ValueError: for a slot out of order, or while reports are awaited.
        """
        check_order(state.next_slot, slot)
        if state.asked is not None:
            raise ValueError(f"slot {slot} cannot begin: slot {state.asked.slot} waits for reports")
        inner, ask = self.mechanism.begin(state.mechanism, slot, self._random(slot))
        ledger = self.ledger.book(self.ledger.open(state.ledger, slot), ask)
        return LocalStreamState(inner, ledger, slot + 1, ask), ask

    def take(
        self, state: LocalStreamState, tally: Tally
    ) -> tuple[LocalStreamState, Ask | LocalRelease]:
        """Use the reports to the last ask; `state` is consumed.

        Raises:
            BudgetExceeded: when the ledger refuses a second ask.
            ValueError: for a tally that is none of reports to that ask.
        """
        asked = state.asked
        if asked is None:
            raise ValueError("reports came before anybody was asked: begin the slot first")
        self._check(asked, tally)
        inner, answer = self.mechanism.take(state.mechanism, tally, self._random(asked.slot))
        if isinstance(answer, LocalRelease):
            return LocalStreamState(inner, state.ledger, state.next_slot), answer
        ledger = self.ledger.book(state.ledger, answer)
        return LocalStreamState(inner, ledger, state.next_slot, answer), answer

    def _random(self, slot: int) -> SlotNoise:
        return self._noise.slot(slot, self._configuration)

    def _check(self, asked: Ask, tally: Tally) -> None:
        classes, symbols = len(self.users.classes), self.users.symbols
        most = np.bincount(self.users.class_of[asked.users], minlength=classes)
        fits = tally.supports.shape == (classes, symbols) and tally.reports.shape == (classes,)
        if (
            not fits
            or (tally.reports > most).any()
            or (tally.supports < 0).any()
            or (tally.supports > tally.reports[:, None]).any()
        ):
            raise ValueError(
                f"this is no tally of the reports to round {asked.round} of slot {asked.slot}: "
                f"{tally}"
            )

    def spent(self, state: LocalStreamState) -> Units:
        """Largest price of the slot begun last to any user of each class, shape (K,), units."""
        return self.ledger.spent(state.ledger)

    def encode(self, state: LocalStreamState) -> bytes:
        """Bytes of the state, readable by this and later versions."""
        return state_bytes.pack(
            self.SCHEMAS,
            {
                "configuration": self._configuration,
                "next_slot": state.next_slot,
                "ledger": self.ledger.encode(state.ledger),
                "mechanism": self.mechanism.encode(state.mechanism),
                "asked": asked_record(state.asked),
            },
        )

    def decode(self, data: bytes) -> LocalStreamState:
        """State of bytes. Raises ConfigurationError when another configuration wrote them."""
        _, record = state_bytes.unpack(self.SCHEMAS, data)
        check_configuration(record["configuration"], self._configuration)
        return LocalStreamState(
            self.mechanism.decode(record["mechanism"]),
            self.ledger.decode(record["ledger"]),
            record["next_slot"],
            asked_of(record["asked"]),
        )


def _public_facts(mechanism: LocalMechanism[Any]) -> bytes:
    users = mechanism.users
    of_users = digest(np.ascontiguousarray(users.class_of, "<i4").tobytes())
    return repr((mechanism.name, users.classes, of_users, users.symbols)).encode()
