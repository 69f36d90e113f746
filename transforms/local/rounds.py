"""The rounds of the local protocol: asks go out, reports come back, releases leave."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.coders import BytesCoder, FastPrimitivesCoder
from apache_beam.transforms.userstate import (
    BagStateSpec,
    ReadModifyWriteStateSpec,
    TimerSpec,
    on_timer,
)
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from streamveil.engine.encode.dead_letters import rejected_records
from streamveil.engine.messages import ASKS, REJECTED, Kind, arrays_from_bytes, arrays_to_bytes
from streamveil.engine.stream.local_server import LocalSetting
from streamveil.engine.stream.release_slots import Publish
from streamveil.mechanisms.core.event_tallies import LATE
from streamveil.mechanisms.local.messages import (
    check_answer,
    decode_report,
    largest_report,
    read_answer,
)
from streamveil.mechanisms.local.oracles import Reports, supports
from streamveil.mechanisms.local.protocol import GRR, OUE, OUE0, Ask, LocalRelease, Tally, Users
from streamveil.mechanisms.local.server.stream import LocalStreamState
from streamveil.transforms.on_beam import Message, emitted, metrics
from streamveil.transforms.slots.arrivals import another_start
from streamveil.transforms.slots.state_fence import Fence, Fenced, went_back

MALFORMED = "malformed"
FORGED = "forged"
UNSOLICITED = "unsolicited"
DUPLICATE = "duplicate"

_HEADER = struct.Struct("<qii")
_ASK = struct.Struct("<qi")
_SYMBOL = struct.Struct("<i")

_ORACLES = (GRR, OUE, OUE0)

# Of a message that cannot be read so many bytes are kept, in a dead letter.
_MOST_BYTES = 64

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
        told = _SYMBOL.pack(self.answer) if isinstance(self.answer, int) else self.answer
        return _HEADER.pack(self.slot, self.round, self.user) + bytes([symbol]) + told

    @classmethod
    def from_bytes(cls, data: bytes) -> Answer:
        """The answer."""
        told = data[_HEADER.size + 1 :]
        symbol = data[_HEADER.size]
        slot, round, user = _HEADER.unpack_from(data)
        return cls(slot, round, user, _SYMBOL.unpack(told)[0] if symbol else told)


def rejected_reports(reason: str, detail: str, records: Iterable[Any]) -> pa.RecordBatch:
    """Dead letters of reports, which are counted; a record is what JSON can hold."""
    letters = rejected_records(reason, ((detail, record) for record in records))
    metrics.count(metrics.REPORTS_REJECTED_PREFIX + reason, letters.num_rows)
    return letters


class _CheckReportsFn(beam.DoFn):
    """Messages of devices to (stream, Answer); what is none leaves on the side.

    What is longer than any report of so many symbols is not even read, and only what has a right
    token goes on: nobody else can make the state of the server grow.
    """

    def __init__(self, setting: LocalSetting) -> None:
        self._setting = setting

    def setup(self) -> None:
        self._tokens = self._setting.tokens()
        self._symbols = self._setting.users.symbols
        self._most = largest_report(self._symbols)

    def process(self, element: bytes) -> Iterator[Any]:
        metrics.count(metrics.REPORTS_READ, 1)
        try:
            if len(element) > self._most:
                raise ValueError(
                    f"a message of {len(element)} bytes is no report of {self._symbols} symbols, "
                    f"which has {self._most} at most"
                )
            report = decode_report(element)
        except ValueError as error:
            record = {"bytes": element[:_MOST_BYTES].hex(), "size": len(element)}
            yield _aside(rejected_reports(MALFORMED, str(error), [record]))
            return
        user = self._tokens.user_of(report.slot, report.round, report.token)
        if user is None:
            place = {"slot": report.slot, "round": report.round, "token": report.token.hex()}
            detail = "the token is not that of an assignment for this slot and round"
            yield _aside(rejected_reports(FORGED, detail, [place]))
            return
        try:
            check_answer(self._symbols, report.answer)
        except ValueError as error:
            record = {"slot": report.slot, "round": report.round, "user": user}
            yield _aside(rejected_reports(MALFORMED, str(error), [record]))
            return
        answer = Answer(report.slot, report.round, user, report.answer)
        yield self._setting.name, Message(Kind.REPORT, answer.slot, payload=answer.to_bytes())


def _aside(letters: pa.RecordBatch) -> beam.pvalue.TaggedOutput:
    # Their own time may be behind the watermark: windows after this would drop them.
    return beam.pvalue.TaggedOutput(REJECTED, TimestampedValue(letters, Timestamp.now()))


def tally_of(ask: Ask, users: Users, told: Iterable[bytes]) -> tuple[Tally, list[pa.RecordBatch]]:
    """Sum the answers to an ask up, one of each user, and reject the others.

    Of different answers of one user one counts, whatever the order in which they came.
    """
    taken, rejected = one_each(ask, users, told)
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
    ask: Ask, users: Users, told: Iterable[bytes]
) -> tuple[dict[int, tuple[bytes, Reports]], list[pa.RecordBatch]]:
    """One answer of each user to an ask, as it was told and as it is read; the others' letters.

    Done again with some more answers, it gives what it would have given of all at once.
    """
    asked = set(ask.users.tolist())
    taken: dict[int, tuple[bytes, Reports]] = {}
    rejected: dict[tuple[str, str], list[Any]] = {}
    for data in sorted(told):
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


class _Progress(NamedTuple):
    """Where the server stands."""

    first: int | None = None
    """First slot of the stream; None before it is told."""
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


class _AskFn(Fenced, beam.DoFn):
    """Asks for reports and releases slots, in order, each once.

    Input: (stream, which slot is the first, that a slot is open, or an Answer), in any order.
    Output: what `publish` gives; on the side parts of asks as bytes, and rejected reports.

    State, per stream: the server's bytes; the reports of the round that is open, of which there are
    at most about twice as many as users asked; :class:`_Progress`, in the cell that is fenced.

    Timer `deadline`, in event time, armed when a round opens: closes it. The first round of a slot
    opens when the slot has begun and the one before it is released, and closes `first` after its
    end; the second opens then, and closes `second` after the end. The release leaves when the
    last round closes, which is its event time.
    """

    REPORTS = BagStateSpec("reports", BytesCoder())
    PROGRESS = ReadModifyWriteStateSpec("progress", FastPrimitivesCoder())
    STREAM = ReadModifyWriteStateSpec("stream", BytesCoder())
    DEADLINE = TimerSpec("deadline", beam.TimeDomain.WATERMARK)

    def __init__(self, setting: LocalSetting, publish: Publish, first: int, second: int) -> None:
        """Make it; `first` and `second` are microseconds."""
        self._setting, self._publish = setting, publish
        self._fence = Fence()
        self._delays = {1: first, 2: second}

    def setup(self) -> None:
        self._server = self._setting.make()

    def process(
        self,
        element: tuple[str, Message],
        stream: Any = beam.DoFn.StateParam(STREAM),
        reports: Any = beam.DoFn.StateParam(REPORTS),
        progress: Any = beam.DoFn.StateParam(PROGRESS),
        deadline: Any = beam.DoFn.TimerParam(DEADLINE),
    ) -> Iterator[Any]:
        progress = self._fence.cell(element[0], progress)
        at = _Progress(*(progress.read() or ()))
        kind, slot, _, data, _ = element[1]
        if kind is Kind.REPORT:
            fault = self._misplaced(Answer.from_bytes(data), at)
            if fault is not None:
                yield fault
                return
            reports.add(data)
            at = at._replace(waiting=at.waiting + 1)
            if at.waiting > _MOST_EACH * at.asked:
                rejected, waiting = self._thin_out(at, stream, reports)
                at = at._replace(waiting=waiting)
                yield from rejected
            progress.write(tuple(at))
            return
        if kind is Kind.OPEN:
            at = at._replace(last_begun=max(slot, slot if at.last_begun is None else at.last_begun))
        elif at.first is None:
            at = at._replace(first=slot, next_slot=slot)
        elif at.first != slot:
            raise another_start(slot, at.first)
        progress.write(tuple(at))
        if at.open_round is None:
            yield from self._begin(self._state(at, stream), stream, progress, deadline)

    def _state(self, at: _Progress, stream: Any) -> LocalStreamState:
        """The server's state. Raises StateWentBack for one that is not of this time."""
        written = stream.read()
        state = self._server.start() if written is None else self._server.decode(written)
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
    def _waiting(at: _Progress, reports: Any) -> list[bytes]:
        """The reports that wait. Raises StateWentBack if some are missing, or of another round."""
        there = list(reports.read())
        rounds = {_HEADER.unpack_from(data)[:2] for data in there}
        if len(there) != at.waiting or rounds - {at.open_round}:
            raise went_back(f"{len(there)} reports wait where {at.waiting} came to one round")
        return there

    def _thin_out(
        self, at: _Progress, stream: Any, reports: Any
    ) -> tuple[list[beam.pvalue.TaggedOutput], int]:
        """Keep one report of each user; the rejected others, and how many are kept."""
        asked = self._state(at, stream).asked
        assert asked is not None
        waiting = self._waiting(at, reports)
        taken, rejected = one_each(asked, self._server.stream.users, waiting)
        reports.clear()
        for data, _ in taken.values():
            reports.add(data)
        return list(map(_aside, rejected)), len(taken)

    def _misplaced(self, answer: Answer, at: _Progress) -> beam.pvalue.TaggedOutput | None:
        """Reject a report to any round but the open one."""
        if (answer.slot, answer.round) == at.open_round:
            return None
        opens = at.open_round or (at.next_slot, 1)
        record = {"slot": answer.slot, "round": answer.round, "user": answer.user}
        if at.next_slot is None or (answer.slot, answer.round) > opens:
            return _aside(rejected_reports(UNSOLICITED, "nobody was asked in this round", [record]))
        return _aside(rejected_reports(LATE, "the round was closed before", [record]))

    def _begin(
        self, state: LocalStreamState, stream: Any, progress: Any, deadline: Any
    ) -> Iterator[Any]:
        """Open the first round of the next slot, if it has begun."""
        at = _Progress(*progress.read())
        if at.next_slot is None or at.last_begun is None or at.last_begun < at.next_slot:
            return
        state, ask = self._server.stream.begin(state, at.next_slot)
        yield from self._opened(state, ask, stream, progress, deadline)

    def _opened(
        self, state: LocalStreamState, ask: Ask, stream: Any, progress: Any, deadline: Any
    ) -> Iterator[Any]:
        at = _Progress(*progress.read())
        at = at._replace(next_slot=ask.slot + 1, open_round=(ask.slot, ask.round))
        progress.write(tuple(at._replace(asked=ask.users.size, waiting=0)))
        stream.write(self._server.encode(state))
        deadline.set(self._closing(ask.slot, ask.round))
        for part in ask_parts(ask):
            yield beam.pvalue.TaggedOutput(ASKS, part)

    def _closing(self, slot: int, round: int) -> Timestamp:
        return Timestamp(micros=self._publish.slots.end(slot) + self._delays[round])

    @on_timer(DEADLINE)
    def _close_round(
        self,
        key: Any = beam.DoFn.KeyParam,
        stream: Any = beam.DoFn.StateParam(STREAM),
        reports: Any = beam.DoFn.StateParam(REPORTS),
        progress: Any = beam.DoFn.StateParam(PROGRESS),
        deadline: Any = beam.DoFn.TimerParam(DEADLINE),
    ) -> Iterator[Any]:
        server = self._server
        progress = self._fence.cell(key, progress)
        at = _Progress(*(progress.read() or ()))
        state = self._state(at, stream)
        assert state.asked is not None
        slot, round = state.asked.slot, state.asked.round
        waiting = self._waiting(at, reports)
        tally, rejected = tally_of(state.asked, server.stream.users, waiting)
        reports.clear()
        metrics.count(metrics.REPORTS_ACCEPTED, int(tally.reports.sum()))
        for letters in rejected:
            yield _aside(letters)
        state, answer = server.stream.take(state, tally)
        if not isinstance(answer, LocalRelease):
            yield from self._opened(state, answer, stream, progress, deadline)
            return
        closed = self._closing(slot, round)
        counted = server.counted(state, answer)
        yield from map(emitted, self._publish(server, state, slot, counted, closed.micros))
        at = _Progress(*progress.read())
        progress.write(tuple(at._replace(open_round=None, asked=0, waiting=0)))
        stream.write(server.encode(state))
        yield from self._begin(state, stream, progress, deadline)
