"""Apache Kafka, by Beam's connector in Java: events from topics, results to a topic."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import apache_beam as beam
from apache_beam.io.kafka import ReadFromKafka, WriteToKafka, default_io_expansion_service
from apache_beam.pvalue import PBegin, PCollection

from streamveil.io.event_sources import Events
from streamveil.io.files import Columns, distinct
from streamveil.io.messages import ParseMessages, warn_of_given_times
from streamveil.io.optional import require_java
from streamveil.io.result_messages import ResultMessages
from streamveil.io.schema_registry import SchemaRegistry
from streamveil.mechanisms.core.records import ConfigurationError

_SERVERS = "bootstrap.servers"

_POLICIES = (
    ReadFromKafka.create_time_policy,
    ReadFromKafka.log_append_time,
    ReadFromKafka.processing_time_policy,
)


@dataclass(eq=False)
class ReadKafkaEvents(beam.PTransform):
    """Read events from Kafka. The output is :class:`Events`.

    A message may contain several events. All columns of the events are strings. The keys of
    messages are ignored. An event or message that cannot be parsed becomes a dead letter, which is
    a rejected event with a reason. The same message may be read more than once.

    Raises:
        ConfigurationError: when you make the transform, if no topic is given, or if the timestamp
            policy or the format is unknown; when you apply the transform, if Java is missing or the
            expansion service (Beam's Kafka connector) cannot be reached.
    """

    bootstrap_servers: str
    """`HOST:PORT` of the brokers, separated by commas."""
    topics: Sequence[str]
    """The topics to read."""
    _: KW_ONLY
    columns: Columns
    """The fields of an event to read."""
    consumer_config: Mapping[str, str] = field(default_factory=dict)
    """Settings of the Kafka consumer, such as `group.id` and `auto.offset.reset`."""
    timestamp_policy: str = ReadFromKafka.log_append_time
    """The time that the watermark follows. `LogAppendTime` is the time when the broker received a
    record, for topics that store this time. `ProcessingTime` is the time when the record is read.
    `CreateTime` is set by the producer. Use it only with trusted producers, because one record with
    a time far ahead makes the other records late; a warning says so. With `CreateTime`, an empty
    partition holds the watermark back forever."""
    expansion_service: str | None = None
    """`HOST:PORT` of a running expansion service. By default, Beam's option `beam_services` names
    it, or Beam downloads and starts an expansion service."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of Beam's ReadFromKafka."""
    silent: bool = False
    """As for :class:`ReadEvents`."""
    message_format: str = ParseMessages.message_format
    """Format of a message: `json`, `jsonl`, `arrow` or `avro`, or with a schema registry
    `protobuf`."""
    max_field_bytes: int = ParseMessages.max_field_bytes
    """Events with a longer field are dead letters."""
    registry: SchemaRegistry | None = None
    """The schema registry, for messages in Confluent's wire format."""

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
        """Read and parse the messages."""
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
    """Write each release to a Kafka topic, as one message.

    The key of the message is the slot number as decimal text. The value is a JSON object, which
    :func:`release_messages` describes. If a runner retries a step, a message may be written twice.
    Kafka then keeps only one of the two copies if the topic has log compaction.

    Raises:
        ConfigurationError: when you apply the transform, if Java is missing or the expansion
            service (Beam's Kafka connector) cannot be reached.
    """

    bootstrap_servers: str
    """`HOST:PORT` of the brokers, separated by commas."""
    topic: str
    """The topic to write to."""
    _: KW_ONLY
    messages: ResultMessages
    """As for :class:`WriteReleasesToFolder`."""
    producer_config: Mapping[str, str] = field(default_factory=dict)
    """Settings of the Kafka producer."""
    expansion_service: str | None = None
    """As for :class:`ReadKafkaEvents`."""

    def __post_init__(self) -> None:
        """Make it a transform."""
        super().__init__()

    @property
    def _sink(self) -> str:
        return f"kafka:{self.bootstrap_servers}/{self.topic}"

    def expand(self, results: PCollection[Any]) -> Any:
        """Convert and write the results."""
        convert = beam.Map(self.messages.record).with_output_types(tuple[bytes, bytes])
        records = results | "Convert" >> convert
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
