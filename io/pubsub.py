"""Google Cloud Pub/Sub: events from a subscription or topic, results to a topic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import apache_beam as beam
from apache_beam.io.gcp.pubsub import ReadFromPubSub, WriteToPubSub
from apache_beam.pvalue import PBegin, PCollection

from streamveil.io.event_sources import Events
from streamveil.io.files import Columns, distinct
from streamveil.io.messages import ParseMessages, warn_of_given_times
from streamveil.io.optional import require_google
from streamveil.io.releases import release_json
from streamveil.io.schema_registry import SchemaRegistry
from streamveil.mechanisms.core.records import ConfigurationError, Release

_CLIENT = "google.cloud.pubsub"


@dataclass(eq=False)
class ReadPubSubEvents(beam.PTransform):
    """Reads events from Pub/Sub: each message holds one or many; the outputs are as of ReadEvents.

    Columns are strings. An event that cannot be read is a dead letter, as is a message that cannot
    be taken apart. Pub/Sub may deliver a message more than once. Raises ConfigurationError at
    construction for a malformed name, for both or neither of subscription and topic, as
    :class:`ParseMessages` does, and without the extra `gcp`.
    """

    _: KW_ONLY
    columns: Columns
    """The keys or columns to read."""
    subscription: str | None = None
    """`projects/PROJECT/subscriptions/NAME`."""
    topic: str | None = None
    """`projects/PROJECT/topics/NAME`; the runner makes a subscription, which sees no message older
    than itself."""
    timestamp_attribute: str | None = None
    """Attribute with the event time, as milliseconds since 1970 or RFC 3339 text, by which the
    watermark goes: only where producers are trusted with it, which a warning says. By the time of
    publishing if None: then an event is late when it is published after its slot was released."""
    id_label: str | None = None
    """Attribute by which messages delivered twice are told, by runners that do that."""
    silent: bool = False
    """As of :class:`ReadEvents`."""
    message_format: str = ParseMessages.message_format
    """What a message is: `json`, `jsonl`, `arrow` or `avro`, or `protobuf` with a registry, as of
    :class:`ParseMessages`."""
    max_field_bytes: int = ParseMessages.max_field_bytes
    """Events with a longer field are dead letters."""
    registry: SchemaRegistry | None = None
    """Where the schemas of messages in Confluent's wire format are."""

    def __post_init__(self) -> None:
        """Check the columns, the names and how messages are read."""
        super().__init__()
        self.columns = distinct(self.columns)
        self._parse = ParseMessages(
            self._source,
            self.columns,
            self.silent,
            self.message_format,
            self.max_field_bytes,
            self.registry,
        )
        require_google(_CLIENT, f"reading from Pub/Sub ({self.subscription or self.topic})")
        try:
            self._read = ReadFromPubSub(
                topic=self.topic,
                subscription=self.subscription,
                id_label=self.id_label,
                timestamp_attribute=self.timestamp_attribute,
            )
        except ValueError as error:
            raise ConfigurationError(
                f"events cannot be read from Pub/Sub: {error}: give one of subscription, as "
                "projects/PROJECT/subscriptions/NAME, and topic, as projects/PROJECT/topics/NAME"
            ) from error

    @property
    def _source(self) -> str:
        return f"pubsub:{self.subscription or self.topic}"

    def expand(self, pbegin: PBegin) -> Events:
        """Build the steps: read, parse."""
        if self.timestamp_attribute is not None:
            chosen = f"timestamp_attribute={self.timestamp_attribute}"
            warn_of_given_times(
                self._source, chosen, "leave it out: the time of publishing is Google's"
            )
        messages = pbegin | "Read" >> self._read
        return messages | "ParseMessages" >> self._parse


@dataclass(eq=False)
class WriteReleasesToPubSub(beam.PTransform):
    """Publishes each release as one message: the JSON object that WriteReleases writes as a line.

    A runner that tries again may publish a release twice, both alike: tell them by `slot`. Raises
    ConfigurationError at construction for a malformed name and without the extra `gcp`.
    """

    topic: str
    """`projects/PROJECT/topics/NAME`."""
    _: KW_ONLY
    to_json: Callable[[Any], bytes] = release_json
    """Makes a message of a result, if it is another than a release."""

    def __post_init__(self) -> None:
        """Check the name."""
        super().__init__()
        require_google(_CLIENT, f"writing to Pub/Sub ({self.topic})")
        try:
            self._write = WriteToPubSub(self.topic)
        except ValueError as error:
            raise ConfigurationError(
                f"releases cannot be written to Pub/Sub: {error}: name the topic as "
                "projects/PROJECT/topics/NAME"
            ) from error

    def expand(self, releases: PCollection[Release]) -> PCollection[None]:
        """Build the steps: convert, publish."""
        messages = releases | "Convert" >> beam.Map(self.to_json).with_output_types(bytes)
        return messages | "Write" >> self._write
