"""Reading events: files in, Arrow record batches out, what cannot be parsed to one side.

Streams, which give the same outputs, are read in the modules `pubsub`, `kafka` and `watch`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, NamedTuple

import apache_beam as beam
import pyarrow as pa
from apache_beam.metrics import Metrics
from apache_beam.pvalue import DoOutputsTuple, PBegin, PCollection, TaggedOutput

from streamveil.io.avro import avro_columns, read_avro
from streamveil.io.delimited import csv_columns, read_csv
from streamveil.io.files import (
    AVRO,
    CSV,
    JSON_LINES,
    PARQUET,
    Columns,
    Patterns,
    distinct,
    format_of,
    input_files,
    match_files,
    require_columns,
)
from streamveil.io.foursquare import read_foursquare
from streamveil.io.jsonlines import json_columns, read_json, text_batch
from streamveil.io.lines import Reject
from streamveil.io.parquet import Part, parquet_columns, read_parquet, split_parquet
from streamveil.io.tdrive import read_tdrive
from streamveil.mechanisms.records import (
    EVENTS_READ,
    METRICS_NAMESPACE,
    REJECTED_COLUMNS,
    REJECTED_PREFIX,
)

UNPARSABLE = "unparsable"
REJECTED_SCHEMA = pa.schema([pa.field(n, pa.type_for_alias(t)) for n, t in REJECTED_COLUMNS])
REJECTED_TAG = "rejected"
# A line of another kind of file, read as text, may be the whole file.
MAX_RECORD_BYTES = 1 << 16

_COLUMNS = {
    PARQUET: parquet_columns,
    AVRO: avro_columns,
    CSV: csv_columns,
    JSON_LINES: json_columns,
}
# Published data sets, whose files do not say by their names what they are.
DATASETS: Mapping[str, Callable[[str, Columns, Reject], Iterator[pa.RecordBatch]]] = {
    "tdrive": read_tdrive,
    "foursquare": read_foursquare,
}
_PROGRESS = logging.getLogger("streamveil.progress")


class Events(NamedTuple):
    """What comes out of ReadEvents and every other source of events."""

    batches: PCollection[pa.RecordBatch]
    """The named columns and `__row__`, int64, null where the source does not count its rows; the
    schema's metadata names the source."""
    rejected: PCollection[pa.RecordBatch]
    """Lines or messages that cannot be parsed, as batches of REJECTED_COLUMNS."""

    @classmethod
    def of(cls, read: DoOutputsTuple) -> Events:
        """Outputs of a DoFn that gives batches and, by :func:`dead_letters`, what it rejects."""
        main = read[read._main_tag]
        main.element_type = read[REJECTED_TAG].element_type = pa.RecordBatch
        return cls(main, read[REJECTED_TAG])


def check_events(pattern: Patterns, columns: Columns, silent: bool = False) -> None:
    """Open the header of every file that matches, before anything runs.

    Raises ConfigurationError when nothing matches, or for a file that is empty, cut off, not of
    the format that its name says, or without one of the columns. If `silent`, nothing is raised
    that depends on a row: JSON Lines have no header, so their columns are not looked up.
    """
    names = distinct(columns)
    for path in input_files(pattern):
        if not (silent and format_of(path) == JSON_LINES):
            require_columns(path, names, columns_of(path))


def columns_of(path: str) -> list[str]:
    """Columns of a file; raises ConfigurationError for one that cannot be read."""
    return _COLUMNS[format_of(path)](path)


def split_file(path: str, columns: Columns) -> list[Part]:
    """Parts of a file that can be read independently of each other."""
    return split_parquet(path, columns) if format_of(path) == PARQUET else [Part(path)]


def read_part(part: Part, columns: Columns, reject: Reject) -> Iterator[pa.RecordBatch]:
    """Read a part of a file in batches of the named columns and `__row__`, in the file's order.

    `reject` is called with (line number, what is wrong, bytes) for a line that cannot be parsed,
    always before the batch of its neighbours, which may be empty.
    Raises ConfigurationError when the file cannot be read to its end.
    """
    kind = format_of(part.path)
    if kind == PARQUET:
        return read_parquet(part, columns)
    if kind == AVRO:
        return read_avro(part.path, columns)
    return (read_csv if kind == CSV else read_json)(part.path, columns, reject)


def read_events(
    pattern: Patterns, columns: Columns, dataset: str | None = None
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch | None]]:
    """Read all files that match, here and in order of their paths, without Beam.

    Args:
        pattern: paths or globs.
        columns: the columns to read.
        dataset: a key of `DATASETS`; None where the names say the format.

    Yields:
        A batch as of :func:`read_part`, perhaps empty, and the dead letters that go with it, of
        `REJECTED_SCHEMA`, if there are any.

    Raises:
        ConfigurationError: when nothing matches or a file cannot be read to its end.
    """
    names = distinct(columns)
    if dataset is None:
        for path in input_files(pattern):
            for part in split_file(path, names):
                yield from _with_rejected(path, partial(read_part, part, names))
        return
    for metadata in match_files(pattern):
        read = partial(DATASETS[dataset], metadata.path, names)
        yield from _with_rejected(metadata.path, read)


def _with_rejected(
    path: str, read: Callable[[Reject], Iterator[pa.RecordBatch]]
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch | None]]:
    """Batches with the dead letters that were rejected before each."""
    rejected: list[tuple[int, str, bytes]] = []

    def reject(row: int, detail: str, record: bytes) -> None:
        rejected.append((row, detail, record))

    for batch in read(reject):
        events = batch.num_rows + len(rejected)
        yield batch, rejected_batch(path, rejected) if rejected else None
        rejected.clear()
        _PROGRESS.info("read %d events", events, extra={"events": events})


@dataclass(eq=False)
class ReadEvents(beam.PTransform):
    """Reads the named columns of all files that match, in parallel.

    Formats go by the name: .parquet, .avro, .csv, .jsonl, .json and .ndjson, and .gz after a text
    format. Columns keep the type that they have in the file; those of CSV are strings, and a
    string column of Parquet whose values repeat is a dictionary. `__row__` is the index of the
    row, from 0, in Parquet and Avro, and the number of the line, from 1, in text files. Raises
    ConfigurationError at construction for a column `__row__`, and while it runs for what
    :func:`check_events` finds earlier.
    """

    file_pattern: Patterns
    """A path or glob on any filesystem of Beam, or several."""
    _: KW_ONLY
    columns: Columns
    """The columns to read, in the order wanted."""
    silent: bool = False
    """Whether what cannot be parsed leaves no trace: no dead letter, no counter, no progress, no
    effect on the type of a column. For statistics that must not tell even that it was there."""

    def __post_init__(self) -> None:
        """Check the columns."""
        super().__init__()
        self.columns = distinct(self.columns)

    def expand(self, pbegin: PBegin) -> Events:
        """Build the steps: match, split, spread over the workers, read."""
        return Events.of(
            pbegin
            | "Pattern" >> beam.Create([self.file_pattern])
            | "Split" >> beam.FlatMap(_split, self.columns).with_output_types(Part)
            | "Spread" >> beam.Reshuffle()
            | "Read"
            >> beam.ParDo(_ReadFn(self.columns, self.silent)).with_outputs(
                REJECTED_TAG, main="batches"
            )
        )


def _split(pattern: Patterns, columns: Columns) -> Iterator[Part]:
    for path in input_files(pattern):
        yield from split_file(path, columns)


class _ReadFn(beam.DoFn):
    def __init__(self, columns: Columns, silent: bool):
        self._columns = columns
        self._silent = silent

    def process(self, part: Part) -> Iterator[Any]:
        yield from read_outputs(part, self._columns, self._silent)


def read_outputs(part: Part, columns: Columns, silent: bool = False) -> Iterator[Any]:
    """Batches of :func:`read_part` that are not empty, and the dead letters, to their output.

    If `silent` there are no dead letters, and columns of JSON Lines are strings, whatever is there.
    """
    if silent:
        batches = read_part(part, columns, drop_silently)
        as_text = format_of(part.path) == JSON_LINES
        yield from (text_batch(b) if as_text else b for b in batches if b.num_rows)
        return
    for batch, rejected in _with_rejected(part.path, partial(read_part, part, columns)):
        if batch.num_rows:
            yield batch
        if rejected is not None:
            yield dead_letters(rejected)


def drop_silently(row: int, detail: str, record: bytes) -> None:
    """Reject a record without a trace."""


def dead_letters(rejected: pa.RecordBatch) -> TaggedOutput:
    """Count the letters, of one reason, and send them to the output for them."""
    reason = rejected.column("reason")[0].as_py()
    for name in (EVENTS_READ, REJECTED_PREFIX + reason):
        Metrics.counter(METRICS_NAMESPACE, name).inc(rejected.num_rows)
    return TaggedOutput(REJECTED_TAG, rejected)


def rejected_batch(
    source: str, records: Sequence[tuple[int | None, str, bytes]], reason: str = UNPARSABLE
) -> pa.RecordBatch:
    """Dead-letter batch of records given as (row, what is wrong, bytes)."""
    rows, details, raw = zip(*records, strict=True)
    texts = [r[:MAX_RECORD_BYTES].decode(errors="replace").rstrip("\r\n") for r in raw]
    count = len(records)
    return pa.RecordBatch.from_pydict(
        {
            "source": [source] * count,
            "row": rows,
            "reason": [reason] * count,
            "detail": details,
            "record": texts,
        },
        schema=REJECTED_SCHEMA,
    )
