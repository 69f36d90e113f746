"""Google Cloud Pub/Sub: events from a subscription or topic, results to a topic."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import apache_beam as beam
from apache_beam.io.gcp.pubsub import ReadFromPubSub, WriteToPubSub
from apache_beam.pvalue import PBegin, PCollection

from streamveil.io.event_sources import Events
from streamveil.io.files import Columns, distinct
from streamveil.io.messages import ParseMessages, warn_of_given_times
from streamveil.io.optional import require_google
from streamveil.io.result_messages import ResultMessages
from streamveil.io.schema_registry import SchemaRegistry
from streamveil.mechanisms.core.records import ConfigurationError

_CLIENT = "google.cloud.pubsub"


@dataclass(eq=False)
class ReadPubSubEvents(beam.PTransform):
    """Read events from Pub/Sub. The output is :class:`Events`.

    A message may contain many events.

    All columns of the events are strings. An event or message that cannot be parsed becomes a dead
    letter, which is a rejected event with a reason. Pub/Sub may deliver the same message more than
    once.

    Raises:
        ConfigurationError: when you make the transform, if the name of the subscription or topic is
            malformed, if you give both a subscription and a topic or neither, if the format is
            unknown, or if the extra `gcp` is not installed.
    """

    _: KW_ONLY
    columns: Columns
    """The fields of an event to read."""
    subscription: str | None = None
    """`projects/PROJECT/subscriptions/NAME`."""
    topic: str | None = None
    """`projects/PROJECT/topics/NAME`. The runner creates a subscription, which receives only
    messages that are published after that."""
    timestamp_attribute: str | None = None
    """Attribute that contains the event time, in milliseconds since 1970 or as RFC 3339 text. The
    watermark then follows this time. Use it only with trusted producers; a warning says so. By
    default, the watermark follows the publishing time, so an event is late if it is published after
    its slot was released."""
    id_label: str | None = None
    """Attribute by which some runners detect messages that are delivered twice."""
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
        """Read and parse the messages."""
        if self.timestamp_attribute is not None:
            chosen = f"timestamp_attribute={self.timestamp_attribute}"
            warn_of_given_times(
                self._source, chosen, "leave it out: the time of publishing is Google's"
            )
        messages = pbegin | "Read" >> self._read
        return messages | "ParseMessages" >> self._parse


@dataclass(eq=False)
class WriteReleasesToPubSub(beam.PTransform):
    """Publish each release as one message, a JSON object that :func:`release_messages` describes.

    If a runner retries a step, the same release may be published twice. Messages with equal `slot`
    are duplicates.

    Raises:
        ConfigurationError: when you make the transform, if the name of the topic is malformed or
            the extra `gcp` is not installed.
    """

    topic: str
    """`projects/PROJECT/topics/NAME`."""
    _: KW_ONLY
    messages: ResultMessages
    """As for :class:`WriteReleasesToFolder`."""

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

    def expand(self, results: PCollection[Any]) -> PCollection[None]:
        """Convert and publish the results."""
        messages = results | "Convert" >> beam.Map(self.messages.message).with_output_types(bytes)
        return messages | "Write" >> self._write
