"""A watched folder: events from files as they appear."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any

import apache_beam as beam
from apache_beam.io.fileio import EmptyMatchTreatment, MatchContinuously
from apache_beam.io.filesystem import FileMetadata
from apache_beam.pvalue import PBegin
from apache_beam.utils.timestamp import MAX_TIMESTAMP, Timestamp

from streamveil.io.events import (
    REJECTED_TAG,
    Events,
    dead_letters,
    read_with_rejected,
    rejected_batch,
    split_file,
)
from streamveil.io.files import Columns, distinct, input_files
from streamveil.mechanisms.records import ConfigurationError

UNREADABLE = "unreadable file"


@dataclass(eq=False)
class WatchEvents(beam.PTransform):
    """Reads every file that matches, each once, as it appears; formats and outputs of ReadEvents.

    A file must be whole when it gets its name: write it under a name that does not match, then
    rename it. One that cannot be read, or not to its end, does not stop the stream: it is a dead
    letter, reason `unreadable file`, and events before the fault count. Files do not say how far
    events have come, so the watermark is the clock: an event is late when its file appears after
    its slot was released. The names of all files seen are kept, as hashes.

    Raises ConfigurationError at construction for an interval that is not above 0.
    """

    file_pattern: str
    """A path or glob on any filesystem of Beam."""
    _: KW_ONLY
    columns: Columns
    """The columns to read, in the order wanted."""
    interval: float = 10.0
    """Seconds between two looks at the folder."""
    stop: Timestamp = MAX_TIMESTAMP
    """Time at which to stop looking; never by default."""

    def __post_init__(self) -> None:
        """Check the columns and the interval."""
        super().__init__()
        self.columns = distinct(self.columns)
        if not self.interval > 0:
            raise ConfigurationError(
                f"the interval to watch {self.file_pattern} is {self.interval} s: give more than 0"
            )

    def expand(self, pbegin: PBegin) -> Events:
        """Build the steps: watch, spread over the workers, read."""
        return Events.of(
            pbegin
            | "Watch"
            >> MatchContinuously(
                self.file_pattern,
                self.interval,
                start_timestamp=Timestamp.now(),
                stop_timestamp=self.stop,
                empty_match_treatment=EmptyMatchTreatment.ALLOW,
            )
            | "Spread" >> beam.Reshuffle()
            | "Read"
            >> beam.ParDo(_ReadFileFn(self.columns)).with_outputs(REJECTED_TAG, main="batches")
        )


class _ReadFileFn(beam.DoFn):
    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def process(self, file: FileMetadata) -> Iterator[Any]:
        try:
            for path in input_files(file.path):
                for part in split_file(path, self._columns):
                    yield from read_with_rejected(part, self._columns)
        except ConfigurationError as error:
            yield dead_letters(rejected_batch(file.path, [(None, str(error), b"")], UNREADABLE))
