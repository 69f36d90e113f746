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
    """Read each file that matches a pattern as soon as the file appears.

    The output is :class:`Events`. Each file is read once, so a file must be complete when it gets a
    name that matches the pattern. Write the file under a different name and then rename it. If a
    file cannot be read to its end, the events before the fault are used, and the file is reported
    as a dead letter with the reason `unreadable file`. The watermark is the current time. An event
    is therefore late if the file that contains the event appears after the slot of the event was
    released. The runner stores the name of every file that it has read.

    Raises:
        ConfigurationError: when you make the transform, if the interval is 0 or negative, or if the
            pattern is a folder.
    """

    file_pattern: str
    """A path or glob on any filesystem of Beam."""
    _: KW_ONLY
    columns: Columns
    """The columns to read, in the order of the output."""
    interval: float = 10.0
    """Seconds between two listings of the files."""
    stop: Timestamp = MAX_TIMESTAMP
    """Time at which to stop. By default, the transform never stops."""
    silent: bool = False
    """As for :class:`ReadEvents`. A file that cannot be read leaves no trace either."""
    dialect: CsvDialect | None = None
    """As for :class:`ReadEvents`."""

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
        """List, filter and read the files."""
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
