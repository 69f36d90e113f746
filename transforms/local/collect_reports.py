"""The local setting for real: devices are elsewhere, and what they say comes and goes as bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import apache_beam as beam
import pyarrow as pa
from apache_beam.transforms.window import TimestampedValue
from apache_beam.typehints import KV
from apache_beam.utils.timestamp import Timestamp

from streamveil.engine.messages import ASKS, LEDGER, REJECTED, Kind
from streamveil.engine.stream.local_server import LocalSetting
from streamveil.engine.stream.noise_keys import NoiseKey, SameKey
from streamveil.engine.stream.plan_checks import refuse_limits, take_public
from streamveil.engine.stream.release_slots import Publish
from streamveil.engine.stream.report_rounds import (
    FORGED,
    MALFORMED,
    Answer,
    ReportRounds,
    ask_from_bytes,
    rejected_reports,
)
from streamveil.mechanisms.core.domains import Domain
from streamveil.mechanisms.core.identity import encoded
from streamveil.mechanisms.core.parameter_checks import check_range, lateness
from streamveil.mechanisms.core.records import ConfigurationError, LedgerEntry, Release, Slots
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.driver.saved_state import BINS, SLOTS, STREAM, USERS
from streamveil.mechanisms.local.messages import (
    Assignment,
    check_answer,
    decode_report,
    encode_assignment,
    largest_report,
)
from streamveil.mechanisms.registry import LOCAL_DEFAULT
from streamveil.transforms.checks import check_heartbeat, refuse_windows
from streamveil.transforms.in_time import InTime
from streamveil.transforms.on_beam import Message, metrics
from streamveil.transforms.result_rows import rows_of
from streamveil.transforms.slots.heartbeat import open_slots

_BY_STREAM = KV[str, Message]

# Of a message that cannot be read so many bytes are kept, in a dead letter.
_MOST_BYTES = 64


class _CollectedReports(NamedTuple):
    assignments: beam.PCollection[tuple[str, bytes]]
    """(user id, assignment as `messages.encode_assignment` has it): for that user's device only."""
    results: beam.PCollection[Release]
    """One for each slot: safe to publish."""
    ledger: beam.PCollection[LedgerEntry]
    """One for each slot: for every class, what the slot and the window that ends with it cost the
    user of the class of whom most was asked. Public as well."""
    rejected: beam.PCollection[pa.RecordBatch]
    """Reports that do not count, as dead letters of `io.REJECTED_SCHEMA`: for the operator."""


class CollectedReports(_CollectedReports):
    """The outputs of :class:`CollectReports`. The fields are PCollections."""

    _labels: Sequence[str] = ()

    def named(self, labels: Sequence[str]) -> CollectedReports:
        """Set the names of the keys for the property `rows`, and return this object."""
        self._labels = labels
        return self

    @cached_property
    def rows(self) -> beam.PCollection[beam.Row]:
        """A PCollection of rows for each slot and key, with the columns of `io.RESULT_SCHEMA`.

        The step of the pipeline that makes these rows is added when you first use this property.
        """
        return rows_of(self.results, self._labels)


@beam.typehints.with_input_types(bytes)
@dataclass(eq=False)
class CollectReports(beam.PTransform):
    """Request reports from devices, and release a count under local differential privacy.

    The input is a PCollection of reports in the global window. Each report is encoded as bytes by
    `messages.encode_report`. The output is :class:`CollectedReports`.

    In each slot, the server requests reports from devices in one or two rounds. The first round
    opens when the slot has begun and the previous slot is released. The server then sends
    assignments, each of which requests a report from a device. The first round closes when the
    watermarks of the reports and of the heartbeat are both later than the slot's end plus
    `first_deadline`. Then either the slot is released, or a second round opens. The second round
    closes when both watermarks are later than the slot's end plus `second_deadline`.

    Neither deadline may be longer than a slot, so each slot is released before the next slot ends.
    The estimate for a slot does not include devices that did not answer.

    **Guarantee.** Users need not trust the server, because each device adds noise to its report
    before it sends the report. The device has its own privacy filter, and refuses a request that
    exceeds its remaining budget. The server's ledger records all requests, including requests that
    no device answered.

    The server accepts each report only once. The report must contain the token of its assignment
    and arrive before the round of the assignment closes. Otherwise the server rejects the report
    for one of these reasons: `malformed`, `forged` (the token was not made by the server for that
    slot and round), `unsolicited` (the server did not request the report), `duplicate` or `late`.

    Raises:
        ConfigurationError: when you make the transform, if an option is not valid.
        ValueError: when you apply the transform to a PCollection that has windows or triggers.
    """

    registry: Registry
    """The public requirements table. It lists all users."""
    domain: Domain
    """The public keys. A device reports the number of a key. If the device has no event, it reports
    the number of keys."""
    slots: Slots
    """The slots of the stream."""
    first_deadline: int | str
    """Time from the end of a slot to the close of its first round, in microseconds or as text such
    as `10m`."""
    second_deadline: int | str
    """Time from the end of a slot to the close of its second round, in microseconds or as text. It
    must be longer than `first_deadline` and at most the length of a slot."""
    mechanism: str = LOCAL_DEFAULT
    """A name in `LOCAL_MECHANISMS`, with options."""
    stream: str = "local histogram"
    """Name of the stream. Devices keep a privacy filter for each stream."""
    noise_key: NoiseKey | None = field(default=None, repr=False)
    """The noise key, as for :class:`PrivateQueries`. It determines all tokens and which devices are
    selected."""
    first_slot: int | None = None
    """First slot to release. If None, it is the slot in which the pipeline is launched."""
    last_slot: int | None = None
    """Last slot to release. If None, the stream has no end."""
    heartbeat: beam.PTransform | None = None
    """The heartbeat, as for :class:`PrivateQueries`. If None, slots begin in real time."""

    def __post_init__(self) -> None:
        """Refuse at once what cannot work."""
        super().__init__()
        take_public(self)
        check_heartbeat(self.heartbeat)
        refuse_limits(self.registry)
        first = self.first_deadline = lateness(self.first_deadline, "first_deadline")
        second = self.second_deadline = lateness(self.second_deadline, "second_deadline")
        if not first < second <= self.slots.shortest:
            raise ConfigurationError(
                f"first_deadline is {first} us and second_deadline {second} us after the end of a "
                f"slot of {self.slots.shortest} us or more: give a later second one, at most that, "
                "so that a slot is released before the next one ends"
            )
        check_range(self.slots, self.first_slot, self.last_slot)
        self._key = SameKey.of(self.noise_key)
        self.setting.server()

    @property
    def setting(self) -> LocalSetting:
        """The settings of the server."""
        context = {
            STREAM: encoded(self.stream),
            BINS: self.domain.identity(),
            SLOTS: self.slots.identity(),
            USERS: self.registry.identity(),
        }
        return LocalSetting(
            self.mechanism,
            self.registry,
            self.domain.bins,
            self._key,
            self.stream,
            context,
        )

    def expand(self, reports: beam.PCollection[bytes]) -> CollectedReports:
        """Build the pipeline."""
        refuse_windows(reports, "reports")
        checked = reports | "CheckReports" >> beam.ParDo(
            _CheckReportsFn(self.setting)
        ).with_outputs(REJECTED, main="answers")
        checked.answers.element_type = _BY_STREAM
        checked[REJECTED].element_type = pa.RecordBatch
        slots, first = open_slots(
            reports.pipeline,
            self.heartbeat,
            self.slots,
            self.first_slot,
            self.last_slot,
            self.stream,
        )
        publish = Publish(self.slots, self.mechanism)
        rounds = (
            (checked.answers, first, slots)
            | "AddSlots" >> beam.Flatten()
            | "Rounds"
            >> beam.ParDo(
                InTime(
                    ReportRounds(
                        self.setting,
                        publish,
                        int(self.first_deadline),
                        int(self.second_deadline),
                    )
                )
            ).with_outputs(ASKS, LEDGER, REJECTED, main="releases")
        )
        rounds.releases.element_type = Release
        rounds[ASKS].element_type = bytes
        rounds[LEDGER].element_type = LedgerEntry
        rounds[REJECTED].element_type = pa.RecordBatch
        assignments = rounds[ASKS] | "Assign" >> beam.ParDo(
            _AssignFn(self.setting)
        ).with_output_types(KV[str, bytes])
        rejected = (checked[REJECTED], rounds[REJECTED]) | "AllRejected" >> beam.Flatten()
        outputs = CollectedReports(assignments, rounds.releases, rounds[LEDGER], rejected)
        return outputs.named(self.domain.labels)


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
                    f"a message of {len(element)} bytes is not a report of {self._symbols} "
                    f"symbols, which has {self._most} at most"
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


class _AssignFn(beam.DoFn):
    """A part of an ask, as bytes, to (user id, assignment as bytes) of everybody asked."""

    def __init__(self, setting: LocalSetting) -> None:
        self._setting = setting

    def setup(self) -> None:
        self._tokens = self._setting.tokens()
        self._users = self._setting.users

    def process(self, element: bytes) -> Iterator[tuple[str, bytes]]:
        ask, names = ask_from_bytes(element), self._setting.registry.users
        prices = ask.epsilons.tolist()
        for user in ask.users.tolist():
            k = self._users.class_of[user]
            assignment = Assignment(
                self._setting.name,
                ask.slot,
                ask.round,
                self._tokens.token(ask.slot, ask.round, user),
                prices[k],
                ask.oracles[k],
                self._users.symbols,
            )
            yield str(names[user]), encode_assignment(assignment)
