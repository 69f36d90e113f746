"""A watched folder: events from files as they appear."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any

import apache_beam as beam
from apache_beam.coders import BooleanCoder
from apache_beam.io.fileio import MatchContinuously
from apache_beam.io.filesystem import FileMetadata
from apache_beam.pvalue import PBegin
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec
from apache_beam.utils.timestamp import MAX_TIMESTAMP, Timestamp

from streamveil.engine.messages import REJECTED
from streamveil.io.event_sources import Events, ReadFileFn
from streamveil.io.files import Columns, distinct
from streamveil.io.formats import CsvDialect
from streamveil.mechanisms.core.records import ConfigurationError


@dataclass(eq=False)
class WatchEvents(beam.PTransform):
    """Reads every file that matches, each once, as it appears; formats and outputs of ReadEvents.

    A file must be whole when it gets its name: write it under a name that does not match, then
    rename it. One that cannot be read, or not to its end, does not stop the stream: it is a dead
    letter, reason `unreadable file`, and events before the fault count. Files do not say how far
    events have come, so the watermark is the clock: an event is late when its file appears after
    its slot was released. A runner keeps the name of every file seen.

    Raises ConfigurationError at construction for an interval that is not above 0, and for a folder.
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
    silent: bool = False
    """As of :class:`ReadEvents`; a file that cannot be read leaves no trace either."""
    dialect: CsvDialect | None = None
    """As of :class:`ReadEvents`."""

    def __post_init__(self) -> None:
        """Check the columns and the interval."""
        super().__init__()
        self.columns = distinct(self.columns)
        if os.path.isdir(self.file_pattern):
            raise ConfigurationError(
                f"{self.file_pattern} is a folder, and what is watched is a path or glob: name the "
                f"files in it, such as {os.path.join(self.file_pattern, '*.csv')}"
            )
        if not self.interval > 0:
            raise ConfigurationError(
                f"the interval to watch {self.file_pattern} is {self.interval} s: give more than 0"
            )

    def expand(self, pbegin: PBegin) -> Events:
        """Build the steps: look, drop what was seen, read."""
        # Beam's own deduplication looks without a pause on its local runner.
        found = pbegin | "Look" >> MatchContinuously(
            self.file_pattern,
            self.interval,
            has_deduplication=False,
            start_timestamp=Timestamp.now(),
            stop_timestamp=self.stop,
        )
        return Events.of(
            found
            | "Key" >> beam.Map(_path_and_size).with_output_types(tuple[str, int])
            | "Once" >> beam.ParDo(_OnceFn()).with_output_types(tuple[str, int])
            | "Read"
            >> beam.ParDo(ReadFileFn(self.columns, self.silent, self.dialect)).with_outputs(
                REJECTED, main="batches"
            )
        )


def _path_and_size(file: FileMetadata) -> tuple[str, int]:
    return file.path, file.size_in_bytes


class _OnceFn(beam.DoFn):
    """Passes the first element of each key on."""

    SEEN = ReadModifyWriteStateSpec("seen", BooleanCoder())

    def process(
        self, element: tuple[str, int], seen: Any = beam.DoFn.StateParam(SEEN)
    ) -> Iterator[tuple[str, int]]:
        if not seen.read():
            seen.write(True)
            yield element
