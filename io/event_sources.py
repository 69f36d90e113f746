"""Beam sources of events: files, and tables in memory, as Arrow record batches.

Streams, which give the same outputs, are read in the modules `pubsub`, `kafka` and `watch`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple

import apache_beam as beam
import pyarrow as pa
from apache_beam.metrics import Metrics
from apache_beam.pvalue import DoOutputsTuple, PBegin, PCollection, TaggedOutput

import streamveil.io.coders  # noqa: F401 - batches of events travel as Arrow writes them
from streamveil.engine.encode.dead_letters import reasons_of
from streamveil.engine.messages import REJECTED, Output
from streamveil.io.events import lenient_file_outputs, part_outputs, parts_of
from streamveil.io.files import Columns, Patterns, distinct
from streamveil.io.formats import CsvDialect
from streamveil.io.held import Held
from streamveil.io.memory import rows_of_events, table_outputs
from streamveil.io.parquet import Part
from streamveil.mechanisms.core.event_tallies import EventTally
from streamveil.mechanisms.core.records import (
    EVENTS_READ,
    LOST_METADATA,
    METRICS_NAMESPACE,
    REJECTED_PREFIX,
)

_NUMBER_TAG = "number"
_NO_ROWS = pa.RecordBatch.from_pylist([], pa.schema([]))


class Events(NamedTuple):
    """The outputs of every transform that reads events, such as :class:`ReadEvents`."""

    batches: PCollection[pa.RecordBatch]
    """Arrow record batches with the requested columns and `__row__` (int64), which is null if the
    source does not number its rows. The metadata of the schema has the name of the source."""
    rejected: PCollection[pa.RecordBatch]
    """Dead letters, which are lines or messages that cannot be parsed, with the columns of
    REJECTED_SCHEMA."""

    @classmethod
    def of(cls, read: DoOutputsTuple) -> Events:
        """Convert the outputs of a Beam DoFn that yields batches and dead letters to `Events`."""
        main = read[read._main_tag]
        main.element_type = read[REJECTED].element_type = pa.RecordBatch
        return cls(main, read[REJECTED])


@dataclass(eq=False)
class ReadEvents(beam.PTransform):
    """Read the given columns of all files that match a pattern, in parallel.

    The ending of a file's name determines its format. The endings are .parquet, .avro, .csv,
    .jsonl, .json and .ndjson. Text files may be compressed, with .gz, .bz2, .xz or .zst at the end
    of the name. Values of a column may also be in the names of folders, as in `country=DE/`.

    The output is :class:`Events`, with Arrow record batches and dead letters (rejected rows).
    Columns keep their type, but all columns of CSV and JSON Lines files are strings. The batches
    have an additional column `__row__` with the position of each event in its file. In Parquet and
    Avro files, this position is the index of the row, counted from 0. In text files, the position
    is the line number, counted from 1.

    Raises:
        ConfigurationError: when you make the transform, if a column is called `__row__`; when the
            pipeline runs, if the files have a problem that :func:`check_events` would report, such
            as a missing column.

    Example:
        >>> ReadEvents("events/*.parquet", columns=["user", "place", "time"]).columns
        ('user', 'place', 'time')
    """

    file_pattern: Patterns
    """One or several paths, folders or globs on any Beam filesystem; or a BigQuery table or query,
    as `bigquery:PROJECT.DATASET.TABLE` or `bigquery:SELECT ...`."""
    _: KW_ONLY
    columns: Columns
    """The columns to read, in the order of the output."""
    silent: bool = False
    """Whether records that cannot be parsed are dropped silently, as per-record privacy needs.
    There are then no dead letters, counters or progress messages."""
    dialect: CsvDialect | None = None
    """Delimiter and column names of CSV files. If None, the delimiter is a comma and the first line
    is a header."""
    counted: bool = False
    """Whether batches are numbered, so that streamveil's transforms notice if a runner loses a
    batch. A few empty batches are then added."""

    def __post_init__(self) -> None:
        """Check the columns."""
        super().__init__()
        self.columns = distinct(self.columns)

    def expand(self, pbegin: PBegin) -> Events:
        """Build the Beam steps that list the files, split them into parts and read each part."""
        split = (
            pbegin
            | "Impulse" >> beam.Impulse()
            | "Split"
            >> beam.FlatMap(_split, self.file_pattern, self.columns, self.dialect).with_outputs(
                _NUMBER_TAG, main="parts"
            )
        )
        split.parts.element_type = Part
        split[_NUMBER_TAG].element_type = pa.RecordBatch
        events = Events.of(
            split.parts
            | "Spread" >> beam.Reshuffle()
            | "Read"
            >> beam.FlatMap(_read_part, self.columns, self.silent, self.counted).with_outputs(
                REJECTED, main="batches"
            )
        )
        if not self.counted:
            return events
        first = pbegin | "Begin" >> beam.Create([_counted(_NO_ROWS, 1)], reshuffle=False)
        first.element_type = pa.RecordBatch
        every = (first, split[_NUMBER_TAG], events.batches) | "AddNumbers" >> beam.Flatten()
        return events._replace(batches=every)


def _split(
    _: bytes, pattern: Patterns, columns: Columns, dialect: CsvDialect | None
) -> Iterator[Any]:
    """Parts of all files, and on the side a batch that says how many they are."""
    parts = parts_of(pattern, columns, dialect)
    yield from parts
    yield TaggedOutput(_NUMBER_TAG, _counted(_NO_ROWS, len(parts) - 1))


def _read_part(part: Part, columns: Columns, silent: bool, counted: bool) -> Iterator[Any]:
    """What :func:`part_outputs` gives of a part; if `counted`, the last says how many there are."""
    sent = 0
    for output in sent_by_tag(part_outputs(part, columns, silent)):
        if counted and not isinstance(output, TaggedOutput):
            sent += 1
            output = _counted(output, -1)
        yield output
    if counted:
        yield _counted(_NO_ROWS, sent - 1)


def _counted(batch: pa.RecordBatch, messages: int) -> pa.RecordBatch:
    """The batch, telling whoever counts messages that so many more were sent than were taken."""
    metadata = batch.schema.metadata or {}
    tally = EventTally(messages=messages)
    if LOST_METADATA in metadata:
        tally = EventTally.total([EventTally.of_bytes(metadata[LOST_METADATA]), tally])
    return batch.replace_schema_metadata({**metadata, LOST_METADATA: tally.to_bytes()})


class ReadFileFn(beam.DoFn):
    """Reads whole files, given as path and size, as of :func:`lenient_file_outputs`."""

    def __init__(self, columns: Columns, silent: bool, dialect: CsvDialect | None) -> None:
        self._columns = columns
        self._silent = silent
        self._dialect = dialect

    def process(self, element: tuple[str, int]) -> Iterator[Any]:
        """Batches of events; dead letters to their output."""
        outputs = lenient_file_outputs(*element, self._columns, self._silent, self._dialect)
        return sent_by_tag(outputs)


def sent_by_tag(outputs: Iterable[Output]) -> Iterator[Any]:
    """The same as a DoFn yields it; dead letters are counted."""
    for output in outputs:
        yield output.value if output.tag is None else dead_letters(output.value)


def dead_letters(rejected: pa.RecordBatch) -> TaggedOutput:
    """Count the letters and send them to the output for them."""
    Metrics.counter(METRICS_NAMESPACE, EVENTS_READ).inc(rejected.num_rows)
    for reason, number in reasons_of(rejected):
        Metrics.counter(METRICS_NAMESPACE, REJECTED_PREFIX + reason).inc(number)
    return TaggedOutput(REJECTED, rejected)


@dataclass(eq=False)
class ReadTable(beam.PTransform):
    """Read the given columns of a table in memory. The output is :class:`Events`.

    The events have an additional column `__row__` with the index of the row, counted from 0. The
    table is not sent to other processes, so this transform works only with runners that run in this
    process.

    Raises:
        ConfigurationError: when you make the transform, if a column is missing, repeated or called
            `__row__`.
    """

    table: pa.Table
    """The table."""
    name: str
    """Name of the table in errors and dead letters."""
    _: KW_ONLY
    columns: Columns
    """The columns to read, in the order of the output."""
    silent: bool = False
    """As for :class:`ReadEvents`."""
    faults: Mapping[int, str] = field(default_factory=dict)
    """For each row with a cell that could not be read, a description of the problem."""

    def __post_init__(self) -> None:
        """Check the columns."""
        super().__init__()
        self.columns = distinct(self.columns)
        self._rows = rows_of_events(self.table, self.name, self.columns, self.faults)

    def expand(self, pbegin: PBegin) -> Events:
        """Read the table."""
        read = _ReadTableFn(self._rows, self.name, self.silent)
        return Events.of(
            pbegin
            | "Impulse" >> beam.Impulse()
            | "Read" >> beam.ParDo(read).with_outputs(REJECTED, main="batches")
        )


class _ReadTableFn(beam.DoFn):
    def __init__(self, table: pa.Table, name: str, silent: bool) -> None:
        elsewhere = "a table in memory is read in another process: write it to a file"
        self._held = Held(table, elsewhere)
        self._name = name
        self._silent = silent

    def process(self, element: bytes) -> Iterator[Any]:
        yield from sent_by_tag(table_outputs(self._held.value, self._name, self._silent))
