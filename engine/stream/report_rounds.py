"""The rounds of the local protocol: requests go out, reports come back, releases leave."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from streamveil.engine import metrics
from streamveil.engine.arrivals import another_start
from streamveil.engine.encode.dead_letters import rejected_records
from streamveil.engine.messages import (
    ASKS,
    REJECTED,
    Kind,
    Message,
    Output,
    arrays_from_bytes,
    arrays_to_bytes,
)
from streamveil.engine.stream.local_server import LocalSetting
from streamveil.engine.stream.release_slots import Publish
from streamveil.engine.stream_step import KeyState, went_back
from streamveil.mechanisms.core.event_tallies import LATE
from streamveil.mechanisms.local.messages import read_answer
from streamveil.mechanisms.local.oracles import Reports, supports
from streamveil.mechanisms.local.protocol import GRR, OUE, OUE0, Ask, LocalRelease, Tally, Users
from streamveil.mechanisms.local.stream import LocalStreamState

MALFORMED = "malformed"
FORGED = "forged"
UNSOLICITED = "unsolicited"
DUPLICATE = "duplicate"

_HEADER = struct.Struct("<qii")
_ASK = struct.Struct("<qi")
_SYMBOL = struct.Struct("<i")

_ORACLES = (GRR, OUE, OUE0)

# Reports of those asked may come again. So many times as many as were asked wait for the end of the
# round, then one of each user is kept.
_MOST_EACH = 2

# Users whose assignments are made together.
_USERS_IN_A_PART = 10_000


@dataclass(frozen=True)
class Answer:
    """A report whose token is right."""

    slot: int
    round: int
    user: int
    answer: int | bytes

    def to_bytes(self) -> bytes:
        """Slot, round and user, then the symbol or bits."""
        symbol = isinstance(self.answer, int)
        answer = _SYMBOL.pack(self.answer) if isinstance(self.answer, int) else self.answer
        return _HEADER.pack(self.slot, self.round, self.user) + bytes([symbol]) + answer

    @classmethod
    def from_bytes(cls, data: bytes) -> Answer:
        """The answer."""
        answer = data[_HEADER.size + 1 :]
        symbol = data[_HEADER.size]
        slot, round, user = _HEADER.unpack_from(data)
        return cls(slot, round, user, _SYMBOL.unpack(answer)[0] if symbol else answer)


def rejected_reports(reason: str, detail: str, records: Iterable[Any]) -> pa.RecordBatch:
    """Dead letters of reports, which are counted; a record is what JSON can hold."""
    letters = rejected_records(reason, ((detail, record) for record in records))
    metrics.count(metrics.REPORTS_REJECTED_PREFIX + reason, letters.num_rows)
    return letters


def tally_of(
    ask: Ask, users: Users, reports: Iterable[bytes]
) -> tuple[Tally, list[pa.RecordBatch]]:
    """Sum the answers to an ask up, one of each user, and reject the others.

    Of different answers of one user one counts, whatever the order in which they came.
    """
    taken, rejected = one_each(ask, users, reports)
    answers: list[list[Any]] = [[] for _ in users.classes]
    for user, (_, read) in taken.items():
        answers[users.class_of[user]].append(read)
    tally = Tally(
        np.zeros((len(users.classes), users.symbols), np.int64),
        np.array([len(some) for some in answers], np.int64),
    )
    for k in np.flatnonzero(tally.reports):
        tally.supports[k] = supports(ask.oracles[k], users.symbols, np.concatenate(answers[k]))
    return tally, rejected


def one_each(
    ask: Ask, users: Users, reports: Iterable[bytes]
) -> tuple[dict[int, tuple[bytes, Reports]], list[pa.RecordBatch]]:
    """One answer of each user to an ask, as it came and as it is read; the others' letters.

    Done again with some more answers, it gives what it would have given of all at once.
    """
    asked = set(ask.users.tolist())
    taken: dict[int, tuple[bytes, Reports]] = {}
    rejected: dict[tuple[str, str], list[Any]] = {}
    for data in sorted(reports):
        answer = Answer.from_bytes(data)
        record = {"slot": answer.slot, "round": answer.round, "user": answer.user}
        if answer.user not in asked:
            fault = UNSOLICITED, "the user was not asked"
        else:
            kind = ask.oracles[users.class_of[answer.user]]
            try:
                one = data, read_answer(kind, users.symbols, answer.answer)
                if taken.setdefault(answer.user, one) is one:
                    continue
                fault = DUPLICATE, "the user's report to this ask counts already"
            except ValueError as error:
                fault = MALFORMED, str(error)
        rejected.setdefault(fault, []).append(record)
    return taken, [rejected_reports(*fault, found) for fault, found in rejected.items()]


def ask_parts(ask: Ask) -> Iterator[bytes]:
    """The ask as bytes, in parts of some users each."""
    oracles = np.array([_ORACLES.index(oracle) for oracle in ask.oracles], np.uint8)
    for start in range(0, ask.users.size, _USERS_IN_A_PART):
        users = ask.users[start : start + _USERS_IN_A_PART]
        arrays = arrays_to_bytes(users, ask.epsilons, oracles)
        yield _ASK.pack(ask.slot, ask.round) + arrays


def ask_from_bytes(data: bytes) -> Ask:
    """A part of an ask."""
    slot, round = _ASK.unpack_from(data)
    users, epsilons, oracles = arrays_from_bytes(data[_ASK.size :])
    return Ask(slot, round, users, epsilons, tuple(_ORACLES[i] for i in oracles))


class RoundProgress(NamedTuple):
    """Where the server stands."""

    first: int | None = None
    """First slot of the stream; None before it is known."""
    next_slot: int | None = None
    """First slot of which nobody was asked."""
    last_begun: int | None = None
    """Last slot that has begun."""
    open_round: tuple[int, int] | None = None
    """Slot and number of the round that is open."""
    asked: int = 0
    """Users asked in it."""
    waiting: int = 0
    """Reports to it that wait."""


@dataclass(eq=False)
class ReportRounds:
    """Asks for reports and releases slots, in order, each once.

    Takes which slot is the first, that a slot is open, and answers, in any order. Gives what
    `publish` does; on the side parts of requests as bytes, and rejected reports. Keeps, per stream:
    the server's bytes; the reports of the round that is open, of which there are at most about
    twice as many as users asked; its progress.

    The first round of a slot opens when the slot has begun and the one before it is released, and
    closes `first` after its end; the second opens then, and closes `second` after the end. The
    release leaves when the last round closes, which is its event time.
    """

    setting: LocalSetting
    publish: Publish
    first: int
    """Microseconds from the end of a slot to the close of its first round."""
    second: int
    """Microseconds from there to the close of its second round."""

    @cached_property
    def _server(self) -> Any:
        return self.setting.make()

    def take(self, key: str, message: Message, at: int | None, kept: KeyState) -> Iterator[Output]:
        """An answer comes, a slot has begun, or the stream starts."""
        server = RoundProgress(*(kept.progress.read() or ()))
        slot = message.slot
        if message.kind is Kind.REPORT:
            fault = self._misplaced(Answer.from_bytes(message.payload), server)
            if fault is not None:
                yield _letters(fault, kept)
                return
            kept.waiting.add(message)
            server = server._replace(waiting=server.waiting + 1)
            if server.waiting > _MOST_EACH * server.asked:
                rejected, waiting = self._thin_out(server, kept)
                server = server._replace(waiting=waiting)
                yield from rejected
            kept.progress.write(tuple(server))
            return
        if message.kind is Kind.OPEN:
            before = slot if server.last_begun is None else server.last_begun
            server = server._replace(last_begun=max(slot, before))
        elif server.first is None:
            server = server._replace(first=slot, next_slot=slot)
        elif server.first != slot:
            raise another_start(slot, server.first)
        kept.progress.write(tuple(server))
        if server.open_round is None:
            yield from self._begin(self._state(server, kept), kept)

    def close(self, key: str, kept: KeyState) -> Iterator[Output]:
        """Close the round that is open."""
        server = self._server
        at = RoundProgress(*(kept.progress.read() or ()))
        state = self._state(at, kept)
        assert state.asked is not None
        slot, round = state.asked.slot, state.asked.round
        waiting = self._waiting(at, kept)
        tally, rejected = tally_of(state.asked, server.stream.users, waiting)
        kept.waiting.clear()
        metrics.count(metrics.REPORTS_ACCEPTED, int(tally.reports.sum()))
        for letters in rejected:
            yield _letters(letters, kept)
        state, answer = server.stream.take(state, tally)
        if not isinstance(answer, LocalRelease):
            yield from self._opened(state, answer, kept)
            return
        counted = server.counted(state, answer)
        yield from self.publish(server, state, slot, counted, self._closing(slot, round))
        at = RoundProgress(*kept.progress.read())
        kept.progress.write(tuple(at._replace(open_round=None, asked=0, waiting=0)))
        kept.state.write(server.encode(state))
        yield from self._begin(state, kept)

    def _state(self, at: RoundProgress, kept: KeyState) -> LocalStreamState:
        """The server's state. Raises StateWentBack for one that is not of this time."""
        written = kept.state.read()
        state: LocalStreamState = (
            self._server.start() if written is None else self._server.decode(written)
        )
        asked = None if state.asked is None else (state.asked.slot, state.asked.round)
        begun = at.next_slot == at.first and at.open_round is None
        if asked != at.open_round or (written is None) is not begun:
            raise went_back(f"round {at.open_round} is open, and the server's is {asked}")
        if asked is None and written is not None and state.next_slot != at.next_slot:
            raise went_back(
                f"slot {at.next_slot} comes next, and the server's is {state.next_slot}"
            )
        return state

    @staticmethod
    def _waiting(at: RoundProgress, kept: KeyState) -> list[bytes]:
        """The reports that wait. Raises StateWentBack if some are missing, or of another round."""
        there = [message.payload for message in kept.waiting.read()]
        rounds = {_HEADER.unpack_from(data)[:2] for data in there}
        if len(there) != at.waiting or rounds - {at.open_round}:
            raise went_back(f"{len(there)} reports wait where {at.waiting} came to one round")
        return there

    def _thin_out(self, at: RoundProgress, kept: KeyState) -> tuple[list[Output], int]:
        """Keep one report of each user; the rejected others, and how many are kept."""
        asked = self._state(at, kept).asked
        assert asked is not None
        waiting = self._waiting(at, kept)
        taken, rejected = one_each(asked, self._server.stream.users, waiting)
        kept.waiting.clear()
        for data, _ in taken.values():
            kept.waiting.add(Message(Kind.REPORT, asked.slot, payload=data))
        return [_letters(letters, kept) for letters in rejected], len(taken)

    def _misplaced(self, answer: Answer, at: RoundProgress) -> pa.RecordBatch | None:
        """Dead letters of a report to any round but the open one."""
        if (answer.slot, answer.round) == at.open_round:
            return None
        opens = at.open_round or (at.next_slot, 1)
        record = {"slot": answer.slot, "round": answer.round, "user": answer.user}
        if at.next_slot is None or (answer.slot, answer.round) > opens:
            return rejected_reports(UNSOLICITED, "nobody was asked in this round", [record])
        return rejected_reports(LATE, "the round was closed before", [record])

    def _begin(self, state: LocalStreamState, kept: KeyState) -> Iterator[Output]:
        """Open the first round of the next slot, if it has begun."""
        at = RoundProgress(*kept.progress.read())
        if at.next_slot is None or at.last_begun is None or at.last_begun < at.next_slot:
            return
        state, ask = self._server.stream.begin(state, at.next_slot)
        yield from self._opened(state, ask, kept)

    def _opened(self, state: LocalStreamState, ask: Ask, kept: KeyState) -> Iterator[Output]:
        at = RoundProgress(*kept.progress.read())
        at = at._replace(next_slot=ask.slot + 1, open_round=(ask.slot, ask.round))
        kept.progress.write(tuple(at._replace(asked=ask.users.size, waiting=0)))
        kept.state.write(self._server.encode(state))
        kept.close_at(self._closing(ask.slot, ask.round))
        for part in ask_parts(ask):
            yield Output(part, ASKS)

    def _closing(self, slot: int, round: int) -> int:
        return self.publish.slots.end(slot) + (self.first if round == 1 else self.second)


def _letters(letters: pa.RecordBatch, kept: KeyState) -> Output:
    # Their own time may be behind the watermark: windows after this would drop them.
    return Output(letters, REJECTED, kept.now)
