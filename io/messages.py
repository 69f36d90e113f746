"""Messages of a broker to events: batched first, then parsed column by column."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import MAX_TIMESTAMP
from apache_beam.utils.windowed_value import WindowedValue

from streamveil.io.events import REJECTED_TAG, Events, dead_letters, rejected_batch
from streamveil.io.files import Columns, event_batch
from streamveil.io.jsonlines import parse_messages

_LOGGER = logging.getLogger("streamveil")

# More would only cost memory: from here on the fixed costs of a batch vanish.
BATCH_MESSAGES = 10_000
BATCH_BYTES = 1 << 24


@dataclass(eq=False)
class ParseMessages(beam.PTransform):
    """Messages, each one event as a JSON object, to :class:`Events`; all columns are strings.

    Messages that cannot be parsed are dead letters. The messages must be in the global window.
    """

    source: str
    """Name of the source, for dead letters."""
    columns: Columns
    silent: bool = False
    """As of :class:`ReadEvents`."""

    def expand(self, messages: PCollection[bytes]) -> Events:
        """Build the steps: gather, parse."""
        return Events.of(
            messages
            | "Gather" >> gather(len).with_output_types(list[bytes])
            | "Parse"
            >> beam.ParDo(_ParseFn(self.source, self.columns, self.silent)).with_outputs(
                REJECTED_TAG, main="batches"
            )
        )


def warn_of_given_times(source: str, chosen: str, otherwise: str) -> None:
    """Log that the watermark follows times that come with the messages."""
    _LOGGER.warning(
        "%s: with %s the times that producers give decide when slots close, so one user's message "
        "can make those of others late: only for producers whose clocks are yours; otherwise %s",
        source,
        chosen,
        otherwise,
    )


def gather(bytes_of: Callable[[Any], int] | None = None) -> beam.PTransform:
    """Messages or other elements in the global window, to lists of them.

    `bytes_of` tells the size of an element; None where elements are small.
    """
    return beam.ParDo(_GatherFn(bytes_of))


class _GatherFn(beam.DoFn):
    """Messages to lists of them, each at the event time of its earliest message.

    A list ends with the runner's bundle, if it is not full before: nothing waits for messages that
    may not come, and no state is kept. The messages of a bundle hold the watermark, and the list
    that takes their place holds it at the earliest of them, so no event is made late by its
    neighbours. (Beam's BatchElements puts its lists at the end of the window, where they hold
    nothing.)
    """

    _messages: list[Any]
    _bytes: int
    _earliest: Any

    def __init__(self, bytes_of: Callable[[Any], int] | None) -> None:
        self._bytes_of = bytes_of

    def start_bundle(self) -> None:
        self._clear()

    def process(self, message: Any, time: Any = beam.DoFn.TimestampParam) -> Iterator[Any]:
        self._messages.append(message)
        self._bytes += self._bytes_of(message) if self._bytes_of else 0
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


class _ParseFn(beam.DoFn):
    def __init__(self, source: str, columns: Columns, silent: bool) -> None:
        self._source = source
        self._columns = columns
        self._silent = silent

    def process(self, messages: list[bytes]) -> Iterator[Any]:
        rejected: list[tuple[None, str, bytes]] = []

        def reject(_: int, detail: str, message: bytes) -> None:
            rejected.append((None, detail, message))

        arrays = parse_messages(messages, self._columns, reject)
        if rejected and not self._silent:
            yield dead_letters(rejected_batch(self._source, rejected))
        if len(rejected) < len(messages):
            yield event_batch(self._source, self._columns, arrays)
