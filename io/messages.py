"""Messages of a broker to events, on Beam: gathered to lists first, which are parsed together."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import MAX_TIMESTAMP
from apache_beam.utils.windowed_value import WindowedValue

from streamveil.engine.messages import REJECTED
from streamveil.io.event_sources import Events, sent_by_tag
from streamveil.io.files import Columns
from streamveil.io.framed_messages import FRAMED_KINDS, PROTOBUF
from streamveil.io.message_batches import (
    BATCH_BYTES,
    BATCH_MESSAGES,
    MAX_FIELD_BYTES,
    MessageParser,
)
from streamveil.io.message_formats import FORMATS
from streamveil.io.optional import require_registry_client
from streamveil.io.schema_registry import SchemaRegistry
from streamveil.mechanisms.core.records import ConfigurationError

_LOGGER = logging.getLogger("streamveil")

_SUCH = f"of bytes, such as {MAX_FIELD_BYTES}"
_REGISTRY_SETTINGS = ("schema_registry", "schema_registry_credentials", "reader_schema")
READING_SETTINGS = ("message_format", "max_field_bytes", *_REGISTRY_SETTINGS)


@dataclass(eq=False)
class ParseMessages(beam.PTransform):
    """Messages, each of one event or many, to :class:`Events`; all columns are strings.

    `__row__` is which event of its message a row is, null for a message that is one JSON object.
    What cannot be parsed is a dead letter: the event, or the message if that cannot be taken apart.
    The messages must be in the global window. Raises ConfigurationError at construction for an
    unknown format and a limit below 1.
    """

    source: str
    """Name of the source, for dead letters."""
    columns: Columns
    silent: bool = False
    """As of :class:`ReadEvents`."""
    message_format: str = "json"
    """A key of `FORMATS`: `json`, an object or an array of them; `jsonl`, an object on every line;
    `arrow`, an Arrow IPC stream; `avro`, an Avro container. With a registry `avro`, `json` or
    `protobuf`, each in Confluent's wire format."""
    max_field_bytes: int = MAX_FIELD_BYTES
    """Events with a longer field, in bytes of UTF-8, are dead letters."""
    registry: SchemaRegistry | None = None
    """Where the schemas of messages in Confluent's wire format are."""

    def __post_init__(self) -> None:
        """Check the format, the limit and the registry."""
        super().__init__()
        _check_format(self.message_format, self.registry)
        if self.max_field_bytes < 1:
            raise ConfigurationError(
                f"max_field_bytes {self.max_field_bytes} is too small for any field: give a "
                "number of bytes, 1 or more"
            )

    def expand(self, messages: PCollection[bytes]) -> Events:
        """Build the steps: gather, parse."""
        parser = MessageParser(
            self.source,
            self.columns,
            self.silent,
            self.message_format,
            self.max_field_bytes,
            self.registry,
        )
        return Events.of(
            messages
            | "Gather" >> beam.ParDo(_GatherFn()).with_output_types(list[bytes])
            | "Parse" >> beam.ParDo(ParseFn(parser)).with_outputs(REJECTED, main="batches")
        )


def _check_format(kind: str, registry: SchemaRegistry | None) -> None:
    """Raise ConfigurationError for a format that there is not, or for what it needs."""
    if registry is None:
        if kind == PROTOBUF:
            raise ConfigurationError(
                f"message_format {kind!r} needs the registry that has the schemas "
                "(schema_registry=http://HOST:PORT)"
            )
        if kind not in FORMATS:
            known = ", ".join((*FORMATS, PROTOBUF))
            raise ConfigurationError(f"message_format {kind!r} is unknown: choose of {known}")
        return
    if kind not in FRAMED_KINDS:
        raise ConfigurationError(
            f"message_format {kind!r} has no schemas in a registry: choose of "
            f"{', '.join(FRAMED_KINDS)}, or leave out schema_registry"
        )
    if kind == "json" and registry.reader_schema is not None:
        raise ConfigurationError(
            "message_format 'json' is read without a schema: leave out reader_schema"
        )
    require_registry_client(f"schema_registry={registry.url}", protobuf=kind == PROTOBUF)


def reading_of(settings: dict[str, str]) -> dict[str, Any]:
    """The fields of :class:`ParseMessages` among settings given as text, which they leave.

    Raises ConfigurationError for a number that is no whole one, and for a registry that is none.
    """
    found: dict[str, Any] = {
        name: settings.pop(name) for name in READING_SETTINGS if name in settings
    }
    of_registry = {name: found.pop(name) for name in _REGISTRY_SETTINGS if name in found}
    if "max_field_bytes" in found:
        found["max_field_bytes"] = _whole(found, "max_field_bytes", _SUCH)
    if not of_registry:
        return found
    if "schema_registry" not in of_registry:
        raise ConfigurationError(
            f"{', '.join(of_registry)} needs a registry: name it (schema_registry=http://HOST:PORT)"
        )
    if "message_format" not in found:
        raise ConfigurationError(
            f"schema_registry needs the format of the messages: add message_format=, one of "
            f"{', '.join(FRAMED_KINDS)}"
        )
    reader = _whole(of_registry, "reader_schema", "") if "reader_schema" in of_registry else None
    found["registry"] = SchemaRegistry(
        of_registry["schema_registry"], of_registry.get("schema_registry_credentials"), reader
    )
    return found


def _whole(settings: dict[str, str], name: str, such: str) -> int:
    text = settings[name]
    if not (text.isascii() and text.isdigit()):
        raise ConfigurationError(
            f"{name} {text!r} is no whole number: name a number {such}".rstrip()
        )
    return int(text)


def warn_of_given_times(source: str, chosen: str, otherwise: str) -> None:
    """Log that the watermark follows times that come with the messages."""
    _LOGGER.warning(
        "%s: with %s the times that producers give decide when slots close, so one user's message "
        "can make those of others late: only for producers whose clocks are yours; otherwise %s",
        source,
        chosen,
        otherwise,
    )


class _GatherFn(beam.DoFn):
    """Messages to lists of them, each at the event time of its earliest message.

    A list ends with the runner's bundle, if it is not full before: nothing waits for messages that
    may not come, and no state is kept. The messages of a bundle hold the watermark, and the list
    that takes their place holds it at the earliest of them, so no event is made late by its
    neighbours. (Beam's BatchElements puts its lists at the end of the window, where they hold
    nothing.)
    """

    _messages: list[bytes]
    _bytes: int
    _earliest: Any

    def start_bundle(self) -> None:
        self._clear()

    def process(self, message: bytes, time: Any = beam.DoFn.TimestampParam) -> Iterator[Any]:
        self._messages.append(message)
        self._bytes += len(message)
        self._earliest = min(self._earliest, time)
        if len(self._messages) >= BATCH_MESSAGES or self._bytes >= BATCH_BYTES:
            yield from self.finish_bundle()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        if self._messages:
            yield WindowedValue(self._messages, self._earliest, (GlobalWindow(),))
        self._clear()

    def _clear(self) -> None:
        self._messages = []
        self._bytes = 0
        self._earliest = MAX_TIMESTAMP


class ParseFn(beam.DoFn):
    """Lists of messages to what a parser yields of them, dead letters to their output."""

    def __init__(self, parser: MessageParser) -> None:
        self._parser = parser

    def process(self, messages: list[bytes]) -> Iterator[Any]:
        """The events of some messages."""
        return sent_by_tag(self._parser.parse(messages))
