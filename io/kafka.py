"""Apache Kafka, by Beam's connector in Java: events from topics, results to a topic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import apache_beam as beam
from apache_beam.io.kafka import ReadFromKafka, WriteToKafka
from apache_beam.pvalue import PBegin, PCollection

from streamveil.io.events import Events
from streamveil.io.files import Columns, distinct
from streamveil.io.jsonlines import json_text
from streamveil.io.messages import ParseMessages
from streamveil.io.optional import require_java
from streamveil.io.per_record import per_record_json
from streamveil.io.releases import release_json
from streamveil.mechanisms.records import ConfigurationError, PerRecordRow, Release, format_time

_SERVERS = "bootstrap.servers"


def release_record(release: Release) -> tuple[bytes, bytes]:
    """The slot, in digits, and the release as JSON."""
    return str(release.slot).encode(), release_json(release)


def per_record_record(row: PerRecordRow) -> tuple[bytes, bytes]:
    """Key and end of the window, as a JSON list, and the row as JSON."""
    end = None if row.end is None else format_time(row.end)
    return json_text([row.key, end]).encode(), per_record_json(row)


@dataclass(eq=False)
class ReadKafkaEvents(beam.PTransform):
    """Reads events from Kafka: each value one JSON object; the outputs are as of ReadEvents.

    Columns are strings; keys are not read. What is no JSON object is a dead letter. A record may
    come more than once. Raises ConfigurationError at construction without Java or a topic, and
    when applied if the expansion service cannot be reached.
    """

    bootstrap_servers: str
    """`HOST:PORT`, or several with commas."""
    topics: Sequence[str]
    _: KW_ONLY
    columns: Columns
    """The keys of the JSON object to read."""
    consumer_config: Mapping[str, str] = field(default_factory=dict)
    """Kafka's own settings, such as `group.id` and `auto.offset.reset`."""
    expansion_service: str | None = None
    """HOST:PORT of a running one; by default Beam starts one, and downloads it once."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of Beam's ReadFromKafka. The watermark goes by the time that the producer
    gave a record (`timestamp_policy` CreateTime), where Beam would take the time of reading."""
    silent: bool = False
    """As of :class:`ReadEvents`."""

    def __post_init__(self) -> None:
        """Check the columns, the topics and the installation."""
        super().__init__()
        self.columns = distinct(self.columns)
        if isinstance(self.topics, str) or not self.topics:
            raise ConfigurationError(
                f"topics {self.topics!r} must be a list of one Kafka topic or more"
            )
        if self.expansion_service is None:
            require_java(f"reading from {self._source}")

    @property
    def _source(self) -> str:
        return f"kafka:{self.bootstrap_servers}/{','.join(self.topics)}"

    def expand(self, pbegin: PBegin) -> Events:
        """Build the steps: read, parse."""
        arguments = {"timestamp_policy": ReadFromKafka.create_time_policy, **self.arguments}
        with _connector(self._source):
            records = pbegin | "Read" >> ReadFromKafka(
                {_SERVERS: self.bootstrap_servers, **self.consumer_config},
                list(self.topics),
                expansion_service=self.expansion_service,
                **arguments,
            )
        return (
            records
            | "Values" >> beam.Map(_value).with_output_types(bytes)
            | "ParseMessages" >> ParseMessages(self._source, self.columns, self.silent)
        )


@dataclass(eq=False)
class WriteReleasesToKafka(beam.PTransform):
    """Writes each release as one record.

    Its key is the slot, in digits, its value the JSON object that WriteReleases writes as a line. A
    runner that tries again may write a release twice, both alike; a compacted topic keeps one.
    Raises ConfigurationError at construction without Java, and when applied if the expansion
    service cannot be reached.
    """

    bootstrap_servers: str
    """`HOST:PORT`, or several with commas."""
    topic: str
    _: KW_ONLY
    producer_config: Mapping[str, str] = field(default_factory=dict)
    """Kafka's own settings."""
    expansion_service: str | None = None
    """HOST:PORT of a running one; by default Beam starts one, and downloads it once."""
    to_record: Callable[[Any], tuple[bytes, bytes]] = release_record
    """Makes key and value of a result, if it is another than a release."""

    def __post_init__(self) -> None:
        """Check the installation."""
        super().__init__()
        if self.expansion_service is None:
            require_java(f"writing to {self._sink}")

    @property
    def _sink(self) -> str:
        return f"kafka:{self.bootstrap_servers}/{self.topic}"

    def expand(self, releases: PCollection[Release]) -> Any:
        """Build the steps: convert, write."""
        convert = beam.Map(self.to_record).with_output_types(tuple[bytes, bytes])
        records = releases | "Convert" >> convert
        with _connector(self._sink):
            return records | "Write" >> WriteToKafka(
                {_SERVERS: self.bootstrap_servers, **self.producer_config},
                self.topic,
                expansion_service=self.expansion_service,
            )


def _value(record: tuple[bytes | None, bytes | None]) -> bytes:
    return record[1] or b""  # a record without a value is a dead letter


@contextmanager
def _connector(place: str) -> Iterator[None]:
    """Setting up the connector in Java; any failure becomes a ConfigurationError."""
    try:
        yield
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ConfigurationError(
            f"{place}: Beam's Kafka connector cannot be set up: {reason[-1]}: check that Java "
            "runs and that Beam may download its expansion service, or name one that is running"
        ) from error
