"""One client's device: it perturbs a value, and keeps its own filter.

Guarantee: whatever the server asks, reports cost at most `epsilon` in any `window` consecutive
slots, in exact integers: an assignment that would cost more is refused. Where the requirement
changes, a slot u in which (w, E) was in force leaves at most E in the slots from u to u + w - 1,
whatever is asked for later, and at most E in the w slots up to u if anything is spent in u.
Adjacency: any values of the user for any others. Sensitivity: the user has one symbol in a slot.
A device that tells one event of a window keeps (w, E) as `one_event` proves.

The device trusts its own clock, its own key and its own state, and nothing that the server says.
Write the state away (:meth:`Device.encode`) before a report is sent: a device that forgets what it
reported may report it again.
Sources: the frequency oracles in `oracles`; w-event privacy by Kellaris et al., "Differentially
private event sequences over infinite streams" (2014).
"""

from __future__ import annotations

import numpy as np

from streamveil.mechanisms.accounting.window_filter import refusal
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.budgets import to_epsilon, to_units
from streamveil.mechanisms.core.records import ConfigurationError, Requirement
from streamveil.mechanisms.core.state_codec import seal, unseal
from streamveil.mechanisms.local.accounting.one_event import price
from streamveil.mechanisms.local.messages import (
    Assignment,
    Report,
    decode_assignment,
    encode_report,
)
from streamveil.mechanisms.local.oracles import Oracle, check_symbols, perturb
from streamveil.mechanisms.local.protocol import GRR, OUE, OUE0
from streamveil.mechanisms.randomness.noise import NoiseSource, derived_key, digest

_PURPOSE = b"device"
_ALWAYS = np.iinfo(np.int64).min // 2


class AssignmentRefused(ValueError):  # noqa: N818 - it is the name of what happened
    """The server asks for what an honest one does not; nothing was reported or spent."""


class Device:
    """A client's device for one stream.

    All streams about the same user share the user's privacy: they need one budget, split up.
    """

    SCHEMAS = {
        version: state_codec.record_schema(
            "Device",
            stream="string",
            symbols="long",
            window="long",
            epsilon="double",
            since="long",
            longest_window="long",
            slot=["null", "long"],
            # By round of that slot: digest of the assignment, and the report.
            answers={
                "type": "array",
                "items": state_codec.record_schema(
                    "Answer", round="int", token="bytes", assignment="bytes", report="bytes"
                ),
            },
            # Slot and units of every report that windows still need.
            spending={"type": "array", "items": state_codec.LONGS},
            # Window, units, first slot in force, last slot of its last window.
            promises={"type": "array", "items": state_codec.LONGS},
            **more,
        )
        for version, more in ((1, {}), (2, {"one_event": "boolean", "silent": "long"}))
    }

    def __init__(
        self,
        key: bytes,
        requirement: Requirement,
        symbols: int,
        stream: str = "",
        longest_window: int | None = None,
        *,
        one_event: bool = False,
    ) -> None:
        """A device that has not reported yet.

        Args:
            key: 32 secret bytes of this device alone, never shown to the server.
            requirement: what the user asks for.
            symbols: number d of values that the stream distinguishes.
            stream: name of the stream that the device takes part in.
            longest_window: that the user may ever ask for, in slots: it says how long reports are
                remembered. By default that of the requirement.
            one_event: tell one event of a window, and that there is none (the last symbol) in all
                other slots; then it may be asked in each of them, for half the budget.

        Raises:
            ConfigurationError: for a window that is longer.
            ValueError: for a key that is not 32 bytes.
        """
        self.requirement = requirement
        self.symbols = symbols
        self.stream = stream
        self.longest_window = requirement.window if longest_window is None else longest_window
        self._key = bytes(key)
        self._noise = NoiseSource(self._key, f"device {stream}")
        self._since = _ALWAYS
        self._slot: int | None = None
        self._answers: dict[int, tuple[bytes, bytes, bytes]] = {}  # token, assignment, report
        self._spending: list[tuple[int, int]] = []
        self._promises: list[tuple[int, int, int, int]] = []
        self._one_event = one_event
        self._phase = int.from_bytes(derived_key(self._key, "blocks"), "little")
        self._silent = _ALWAYS  # first slot in which an event may be reported again
        self._check_window(requirement)

    def report(self, assignment: bytes, slot: int, value: int) -> bytes:
        """Answer an assignment; the same one again gets the same report and costs nothing more.

        Args:
            assignment: what the server sent: see `wire`.
            slot: the slot to report about, by the device's own clock: a server that could say
                which one it is could let windows pass at will.
            value: the user's symbol in that slot, from 0 to d - 1.

        Returns:
            The report to send: see `wire`.

        Raises:
            BudgetExceeded: when it would overspend a window; with requested, remaining, difference.
            AssignmentRefused: for an assignment that does not fit the device, the slot or what was
                answered before.
            ValueError: for bytes that are no assignment, or a value that is no symbol.
        """
        asked, identity = decode_assignment(assignment), digest(assignment)
        if slot == self._slot == asked.slot and asked.round in self._answers:
            _, answered, report = self._answers[asked.round]
            if answered == identity:
                return report
        self._check(asked, slot)
        check_symbols(np.array([value]), self.symbols)
        self._charge(slot, asked.price)
        reported = self._reported(slot, value) if self._one_event else value
        words = self._noise.slot(slot, digest(identity, b"%d" % reported)).words("report")
        oracle = Oracle.of(asked.oracle, asked.price, self.symbols)
        (chunk,) = perturb(oracle, np.array([reported]), words)
        answer = int(chunk[0]) if asked.oracle == GRR else chunk.tobytes()
        report = encode_report(Report(asked.token, slot, asked.round, answer))
        self._move(slot)
        self._spending.append((slot, asked.price))
        self._answers[asked.round] = (asked.token, identity, report)
        return report

    def change(self, slot: int, requirement: Requirement) -> None:
        """Ask for something else from a slot on; call it when that slot begins.

        What was promised before holds to its end, so a weaker requirement only counts later.

        Raises:
            ConfigurationError: for a window longer than the longest one, or a device that tells
                one event of a window.
            ValueError: for a slot that has passed or has a report.
        """
        if self._one_event:
            raise ConfigurationError(
                "a device that reports one event per window keeps its requirement: make another "
                "one when this one's window has passed"
            )
        if self._slot is not None and (slot < self._slot or (slot == self._slot and self._answers)):
            raise ValueError(
                f"the requirement changes from slot {slot} on, but slot {self._slot} has begun: "
                "let it change in a later slot"
            )
        self._check_window(requirement)
        self._move(slot)
        window = self.requirement.window
        cap = to_units(self.requirement.epsilon)
        self._promises.append((window, cap, self._since, slot + window - 2))
        self.requirement, self._since = requirement, slot

    def remaining(self, slot: int) -> int:
        """Units that a report in a slot may cost at most; 0 or less for nothing."""
        if self._one_event:
            return price(self.requirement.epsilon) - self._spent(slot)
        limits = [(self.requirement.window, to_units(self.requirement.epsilon), _ALWAYS)]
        limits += [promise[:3] for promise in self._promises if slot <= promise[3]]
        return min(cap - self._spent(max(first, slot - w + 1)) for w, cap, first in limits)

    def encode(self) -> bytes:
        """Bytes of everything but the key, with a checksum that takes it."""
        written = state_codec.pack(
            self.SCHEMAS,
            {
                "stream": self.stream,
                "symbols": self.symbols,
                "window": self.requirement.window,
                "epsilon": self.requirement.epsilon,
                "since": self._since,
                "longest_window": self.longest_window,
                "slot": self._slot,
                "answers": [
                    {"round": round_, "token": token, "assignment": assignment, "report": report}
                    for round_, (token, assignment, report) in self._answers.items()
                ],
                "spending": [list(spent) for spent in self._spending],
                "promises": [list(promise) for promise in self._promises],
                "one_event": self._one_event,
                "silent": self._silent,
            },
        )
        return seal(self._key, _PURPOSE, written)

    @classmethod
    def decode(cls, data: bytes, key: bytes) -> Device:
        """The device that wrote these bytes, made with the same key.

        Raises ConfigurationError for bytes that were changed, or another key.
        """
        written = unseal(key, _PURPOSE, data, "the state of the device")
        _, record = state_codec.unpack(cls.SCHEMAS, written)
        device = cls(
            key,
            Requirement(record["window"], record["epsilon"]),
            record["symbols"],
            record["stream"],
            record["longest_window"],
            one_event=record.get("one_event", False),
        )
        device._silent = record.get("silent", _ALWAYS)
        device._since, device._slot = record["since"], record["slot"]
        device._answers = {
            answer["round"]: (answer["token"], answer["assignment"], answer["report"])
            for answer in record["answers"]
        }
        device._spending = [(slot, units) for slot, units in record["spending"]]
        device._promises = [(w, cap, first, last) for w, cap, first, last in record["promises"]]
        return device

    def _reported(self, slot: int, value: int) -> int:
        """What is reported of a value; an event uses up its block."""
        window, nothing = self.requirement.window, self.symbols - 1
        if value == nothing or slot < self._silent:
            return nothing
        phase = self._phase % window
        self._silent = ((slot + phase) // window + 1) * window - phase
        return value

    def _check_window(self, requirement: Requirement) -> None:
        if requirement.window > self.longest_window:
            raise ConfigurationError(
                f"{requirement} has a longer window than the {self.longest_window} slots that this "
                "device remembers: make the device with a greater longest_window, or ask for a "
                "shorter window"
            )

    def _check(self, asked: Assignment, slot: int) -> None:
        """Refuse what does not fit."""
        answers = self._answers if slot == self._slot else {}
        oracles = (OUE0,) if self._one_event else (GRR, OUE)
        where = f"assignment for round {asked.round} of slot {asked.slot}"
        if asked.stream != self.stream:
            reason = f"is for stream {asked.stream!r}, this device reports to {self.stream!r}"
        elif asked.slot != slot:
            reason = f"is not for slot {slot}, of which the value is by the device's own clock"
        elif self._slot is not None and slot < self._slot:
            reason = f"goes back: the device was in slot {self._slot} already; check its clock"
        elif asked.round not in (1, 2):
            reason = "has a round that is neither 1 nor 2"
        elif self._one_event and asked.round != 1:
            reason = "is a second one for the slot: this device tells one event, once"
        elif asked.round <= max(answers, default=0):
            reason = "comes after another one for that round or a later one, which was answered"
        elif any(asked.token == token for token, _, _ in answers.values()):
            reason = "has the token of another round: ask with a new one"
        elif asked.oracle not in oracles:
            has = " and ".join(oracles)
            reason = f"names the oracle {asked.oracle!r}, this device has {has}"
        elif asked.symbols != self.symbols:
            reason = f"has {asked.symbols} symbols, this device reports one of {self.symbols}"
        elif asked.price <= 0:
            reason = f"pays {asked.price} units: a report costs 1 or more"
        else:
            return
        raise AssignmentRefused(f"{where} {reason}")

    def _charge(self, slot: int, price: int) -> None:
        remaining = self.remaining(slot)
        if price > remaining:
            former = [
                f"{to_epsilon(cap):g} over {window} slots"
                for window, cap, _, last in self._promises
                if slot <= last
            ]
            promised = f", before which it was {', '.join(former)}" if former else ""
            raise refusal(
                f"report refused in slot {slot} by a device with {self.requirement}{promised}",
                price,
                remaining,
            )

    def _spent(self, first: int) -> int:
        return sum(units for slot, units in self._spending if slot >= first)

    def _move(self, slot: int) -> None:
        """Go on to a slot, and forget what no window needs any more."""
        if slot != self._slot:
            self._slot, self._answers = slot, {}
        oldest = slot - self.longest_window
        self._spending = [spent for spent in self._spending if spent[0] > oldest]
        self._promises = [promise for promise in self._promises if slot <= promise[3]]
