"""Apache Kafka, by Beam's connector in Java: events from topics, results to a topic."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import apache_beam as beam
from apache_beam.io.kafka import ReadFromKafka, WriteToKafka, default_io_expansion_service
from apache_beam.pvalue import PBegin, PCollection

from streamveil.io.answers import answer_json
from streamveil.io.event_sources import Events
from streamveil.io.files import Columns, distinct
from streamveil.io.jsonlines import json_text
from streamveil.io.messages import ParseMessages, warn_of_given_times
from streamveil.io.optional import require_java
from streamveil.io.per_record import per_record_json
from streamveil.io.releases import release_json
from streamveil.io.revisions import revision_json
from streamveil.io.schema_registry import SchemaRegistry
from streamveil.mechanisms.core.records import (
    ConfigurationError,
    PerRecordRow,
    Release,
    Revision,
    format_time,
)
from streamveil.mechanisms.portfolio.slot_answers import SlotAnswer

_SERVERS = "bootstrap.servers"

_POLICIES = (
    ReadFromKafka.create_time_policy,
    ReadFromKafka.log_append_time,
    ReadFromKafka.processing_time_policy,
)


def release_record(release: Release) -> tuple[bytes, bytes]:
    """The slot, in digits, and the release as JSON."""
    return str(release.slot).encode(), release_json(release)


def answer_record(answer: SlotAnswer) -> tuple[bytes, bytes]:
    """The question, the length of its slot and the slot, such as `late/1h/7`, and JSON."""
    return f"{answer.question}/{answer.length}/{answer.slot}".encode(), answer_json(answer)


def revision_record(revision: Revision) -> tuple[bytes, bytes]:
    """The slot, in digits, and the revision as JSON."""
    return str(revision.slot).encode(), revision_json(revision)


def per_record_record(row: PerRecordRow) -> tuple[bytes, bytes]:
    """Key and end of the window, as a JSON list, and the row as JSON."""
    end = None if row.end is None else format_time(row.end)
    return json_text([row.key, end]).encode(), per_record_json(row)


@dataclass(eq=False)
class ReadKafkaEvents(beam.PTransform):
    """Reads events from Kafka: each value holds one or many; the outputs are as of ReadEvents.

    Columns are strings; keys are not read. An event that cannot be read is a dead letter, as is a
    value that cannot be taken apart. A record may come more than once. Raises ConfigurationError at
    construction without a topic, for another policy and as :class:`ParseMessages` does, and when
    applied without Java or if the expansion service cannot be reached.
    """

    bootstrap_servers: str
    """`HOST:PORT`, or several with commas."""
    topics: Sequence[str]
    _: KW_ONLY
    columns: Columns
    """The keys or columns to read."""
    consumer_config: Mapping[str, str] = field(default_factory=dict)
    """Kafka's own settings, such as `group.id` and `auto.offset.reset`."""
    timestamp_policy: str = ReadFromKafka.log_append_time
    """What the watermark goes by: `LogAppendTime`, the time at which the broker took a record, for
    topics that keep it; `ProcessingTime`, the time of reading; or `CreateTime`, the time that the
    producer gave a record, only where producers are trusted with it, which a warning says: one
    record ahead of its neighbours, up to the clock, makes these late. By CreateTime a partition
    that never had a record holds the watermark back forever."""
    expansion_service: str | None = None
    """HOST:PORT of a running one; by default that of Beam's option `beam_services`, or else Beam
    starts one, and downloads it once."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of Beam's ReadFromKafka."""
    silent: bool = False
    """As of :class:`ReadEvents`."""
    message_format: str = ParseMessages.message_format
    """What a value is: `json`, `jsonl`, `arrow` or `avro`, or `protobuf` with a registry, as of
    :class:`ParseMessages`."""
    max_field_bytes: int = ParseMessages.max_field_bytes
    """Events with a longer field are dead letters."""
    registry: SchemaRegistry | None = None
    """Where the schemas of messages in Confluent's wire format are."""

    def __post_init__(self) -> None:
        """Check the columns, the topics, the policy and how values are read."""
        super().__init__()
        self.columns = distinct(self.columns)
        if isinstance(self.topics, str) or not self.topics:
            raise ConfigurationError(
                f"topics {self.topics!r} must be a list of one Kafka topic or more"
            )
        if self.timestamp_policy not in _POLICIES:
            raise ConfigurationError(
                f"timestamp_policy {self.timestamp_policy!r} is unknown: choose of "
                f"{', '.join(_POLICIES)}"
            )
        self._parse = ParseMessages(
            self._source,
            self.columns,
            self.silent,
            self.message_format,
            self.max_field_bytes,
            self.registry,
        )

    @property
    def _source(self) -> str:
        return f"kafka:{self.bootstrap_servers}/{','.join(self.topics)}"

    def expand(self, pbegin: PBegin) -> Events:
        """Build the steps: read, parse."""
        if self.timestamp_policy == ReadFromKafka.create_time_policy:
            warn_of_given_times(self._source, "timestamp_policy=CreateTime", "take LogAppendTime")
        with _connector(self._source, self.expansion_service) as service:
            records = pbegin | "Read" >> ReadFromKafka(
                {_SERVERS: self.bootstrap_servers, **self.consumer_config},
                list(self.topics),
                timestamp_policy=self.timestamp_policy,
                expansion_service=service,
                **self.arguments,
            )
        return (
            records
            | "Values" >> beam.Map(_value).with_output_types(bytes)
            | "ParseMessages" >> self._parse
        )


@dataclass(eq=False)
class WriteReleasesToKafka(beam.PTransform):
    """Writes each release as one record.

    Its key is the slot, in digits, its value the JSON object that WriteReleases writes as a line. A
    runner that tries again may write a release twice, both alike; a compacted topic keeps one.
    Raises ConfigurationError when applied without Java or if the expansion service cannot be
    reached.
    """

    bootstrap_servers: str
    """`HOST:PORT`, or several with commas."""
    topic: str
    _: KW_ONLY
    producer_config: Mapping[str, str] = field(default_factory=dict)
    """Kafka's own settings."""
    expansion_service: str | None = None
    """As of :class:`ReadKafkaEvents`."""
    to_record: Callable[[Any], tuple[bytes, bytes]] = release_record
    """Makes key and value of a result, if it is another than a release."""

    def __post_init__(self) -> None:
        """Make it a transform."""
        super().__init__()

    @property
    def _sink(self) -> str:
        return f"kafka:{self.bootstrap_servers}/{self.topic}"

    def expand(self, releases: PCollection[Release]) -> Any:
        """Build the steps: convert, write."""
        convert = beam.Map(self.to_record).with_output_types(tuple[bytes, bytes])
        records = releases | "Convert" >> convert
        with _connector(self._sink, self.expansion_service) as service:
            return records | "Write" >> WriteToKafka(
                {_SERVERS: self.bootstrap_servers, **self.producer_config},
                self.topic,
                expansion_service=service,
            )


def _value(record: tuple[bytes | None, bytes | None]) -> bytes:
    return record[1] or b""  # a record without a value is a dead letter


@contextmanager
def _connector(place: str, expansion_service: str | None) -> Iterator[Any]:
    """The expansion service that sets up the connector; a failure becomes a ConfigurationError."""
    try:
        if expansion_service:
            yield expansion_service
            return
        service = default_io_expansion_service()
        if service.is_existing_service():
            _check_answers(service.path_to_jar)
        else:
            require_java(place)
        yield service
    except ConfigurationError:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ConfigurationError(
            f"{place}: Beam's Kafka connector cannot be set up: {reason[-1]}: check that Java "
            "runs and that Beam may download its expansion service, or name one that is running "
            "(--beam_services)"
        ) from error


def _check_answers(address: str) -> None:
    """Raise OSError if nothing listens there: Beam would wait forever."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10):
        pass
