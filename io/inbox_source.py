"""The messages that an inbox keeps, as a Beam source of events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PBegin

from streamveil.engine.messages import REJECTED
from streamveil.io.event_sources import Events, sent_by_tag
from streamveil.io.inbox import inbox_file_outputs, inbox_parsers
from streamveil.io.pubsub import ReadPubSubEvents


@dataclass(eq=False)
class ReadInbox(beam.PTransform):
    """Reads events from files of an inbox, as :class:`ReadPubSubEvents` does from the messages.

    Dead letters name the file as their source.
    """

    files: Sequence[str]
    source: ReadPubSubEvents
    again: bool = False
    """Whether an earlier run read these files: what cannot be parsed was told there."""

    def __post_init__(self) -> None:
        """Be a PTransform."""
        super().__init__()

    def expand(self, pbegin: PBegin) -> Events:
        """Build the steps: name, spread over the workers, read."""
        return Events.of(
            pbegin
            | "Name" >> beam.Create(list(self.files), reshuffle=False)
            | "Spread" >> beam.Reshuffle()
            | "Read"
            >> beam.ParDo(_ReadMessagesFn(self.source, self.again)).with_outputs(
                REJECTED, main="batches"
            )
        )


class _ReadMessagesFn(beam.DoFn):
    def __init__(self, source: ReadPubSubEvents, again: bool) -> None:
        self._parser_of = inbox_parsers(source, again)

    def process(self, path: str) -> Iterator[Any]:
        return sent_by_tag(inbox_file_outputs(path, self._parser_of(path)))
