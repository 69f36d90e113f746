"""Reading events: files in, Arrow record batches out, what cannot be parsed to one side."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from streamveil.engine.encode.dead_letters import losses_of
from streamveil.engine.messages import REJECTED, Output
from streamveil.io.bigquery_tables import (
    check_table,
    label_of_table,
    read_rows,
    split_table,
    table_columns,
)
from streamveil.io.datasets import DATASETS
from streamveil.io.delimited import csv_columns, csv_remedy, read_csv
from streamveil.io.files import (
    Columns,
    Patterns,
    Stamp,
    check_file,
    distinct,
    input_files,
    label_of,
    match_files,
    require_columns,
)
from streamveil.io.formats import AVRO, CSV, JSON_LINES, PARQUET, CsvDialect, format_of
from streamveil.io.jsonlines import json_columns, read_json
from streamveil.io.lines import Reject
from streamveil.io.parquet import Part, parquet_columns, parquet_schema, read_parquet, split_parquet
from streamveil.io.partitions import partitions_of, with_partitions
from streamveil.io.places import is_bigquery
from streamveil.io.sql import Query, query_in
from streamveil.io.tables import as_they_come
from streamveil.mechanisms.core.event_tallies import EventTally
from streamveil.mechanisms.core.records import (
    LOST_METADATA,
    REJECTED_COLUMNS,
    ConfigurationError,
    MachineFault,
    QueryColumn,
)
from streamveil.mechanisms.core.wording import opt

UNPARSABLE = "unparsable"
NOT_UTF8 = "not UTF-8"
"""The reason in the dead letter for text of another encoding, such as Windows-1252."""
UNREADABLE = "unreadable file"
"""The reason in the dead letter for a file that cannot be read."""
REJECTED_SCHEMA = pa.schema([pa.field(n, pa.type_for_alias(t)) for n, t in REJECTED_COLUMNS])
"""Arrow schema of dead letters."""
REJECTED_FORM = as_they_come(REJECTED_SCHEMA)
"""Of batches of dead letters."""
# A line of another kind of file, read as text, may be the whole file.
MAX_RECORD_BYTES = 1 << 16

# Of a line or a message, and of a cell.
_OF_ENCODING = re.compile(rf"(?:.* is )?{NOT_UTF8}\b")
_AGAIN = "run again"
_NAMED = ", or compute it: EXPRESSION AS NAME"

_PROGRESS = logging.getLogger("streamveil.progress")


def check_events(
    pattern: Patterns,
    columns: Columns,
    silent: bool = False,
    dialect: CsvDialect | None = None,
    remedy: str = "",
) -> None:
    """Check before a run that all matching files can be read and have the requested columns.

    Args:
        pattern: paths or globs.
        columns: the columns that the files must have.
        silent: if true, the content of rows never causes an error, as per-record privacy requires.
            The fields of JSON Lines files are then not checked, because these files have no header.
            If false, each requested field must occur in at least one of the JSON Lines files.
        dialect: the form of the CSV files, for example their delimiter and column names.
        remedy: text that is added to the error message about a missing column.

    Raises:
        ConfigurationError: if no file matches, or if a file is empty, is truncated, has a different
            format than the ending of its name says, or lacks one of the columns.
    """
    names = distinct(columns)
    if is_bigquery(pattern):
        (place,) = places_of(pattern, dialect)
        check_table(place, names, remedy)
        return
    paths = input_files(pattern, dialect)
    query = query_in(dialect)
    if query is not None:
        _check_query(query, paths, names, silent)
        return
    kinds = {format_of(path, dialect) for path in paths}
    if dialect is not None and dialect.any_name and CSV not in kinds:
        raise ConfigurationError(
            f"{paths[0]}: {opt.delimiter} and {opt.columns} apply to CSV files only, and there "
            "are none: leave them out"
        )
    for path in paths:
        kind = format_of(path, dialect)
        if kind != JSON_LINES:
            present = columns_of(path, names, dialect)
            more = csv_remedy(dialect, present) if kind == CSV else ""
            require_columns(path, names, present, remedy + more)
    if not silent:
        _check_keys(
            [path for path in paths if format_of(path, dialect) == JSON_LINES], names, remedy
        )


def _check_query(query: Query, paths: Sequence[str], names: Columns, silent: bool) -> None:
    """Refuse files that a query cannot be computed of, or of which it has not these columns."""
    for path in paths:
        present = _present(path, query)
        own = _sources(path, query, present)
        made = query.columns(path, present)
        require_columns(path, names, made, _NAMED, what=f"what {opt.sql} gives")
        said = _said(path, own, query.dialect)[0]
        if query.format == PARQUET:
            typed = parquet_schema(path)
            fields = [(n, pa.string() if n in said else typed.field(n).type) for n in own]
        elif query.format == AVRO:  # whose types are looked at when it is read
            continue
        else:
            fields = [(name, pa.string()) for name in own]
        query.check(path, pa.schema(fields))
    if query.format == JSON_LINES and not silent:
        _check_keys(paths, query.keys, "")


def _present(path: str, query: Query) -> list[str]:
    """Columns of a file that a query may read."""
    if query.format != format_of(path, query.dialect):
        raise ConfigurationError(
            f"{path}: {opt.sql} reads files of {query.format}, and this is none: name others apart"
        )
    if query.format == JSON_LINES:  # a line may have a key, or lack it
        return [*query.keys, *(name for name in partitions_of(path) if name not in query.keys)]
    return columns_of(path, (), replace(query.dialect, sql=None))


def _sources(path: str, query: Query, present: Sequence[str]) -> Columns:
    """The columns of a file that a query reads; of JSON an object or a list is text."""
    names = query.sources(path, present)
    return [QueryColumn(name) for name in names] if query.format == JSON_LINES else names


def _check_keys(paths: Sequence[str], names: Columns, remedy: str) -> None:
    """Refuse JSON Lines files, by what is wrong with the first, where none has one of the keys."""
    found: set[str] = set()
    refusal: ConfigurationError | None = None
    for path in paths:
        try:
            present = columns_of(path, names)
            found.update(present)
            require_columns(path, names, present, remedy)
        except ConfigurationError as error:
            refusal = refusal or error
    if refusal is not None and not found.issuperset(names):
        raise refusal


def places_of(pattern: Patterns, dialect: CsvDialect | None = None) -> list[str]:
    """Paths of the files that match, or the one place that is a table of BigQuery.

    Raises ConfigurationError as :func:`input_files`, and for a dialect of CSV files where there are
    none.
    """
    if not is_bigquery(pattern):
        return input_files(pattern, dialect)
    if dialect is not None and dialect.any_name:
        raise ConfigurationError(
            f"{label_of_table(pattern)}: {opt.delimiter} and {opt.columns} apply to CSV files "
            "only, and this is a table: leave them out"
        )
    return [pattern]


def columns_of(path: str, wanted: Columns = (), dialect: CsvDialect | None = None) -> list[str]:
    """Columns of a file; raises ConfigurationError for one that cannot be read.

    JSON Lines have no header: those of the first lines, and of `wanted` those of any line. After
    those of the file come those that its folders say.
    """
    if is_bigquery(path):
        return table_columns(path)
    said = partitions_of(path)
    found = _own_columns(path, [name for name in wanted if name not in said], dialect)
    return [*found, *(name for name in said if name not in found)]


def _own_columns(path: str, wanted: Columns, dialect: CsvDialect | None) -> list[str]:
    kind = format_of(path, dialect)
    if kind == CSV:
        return csv_columns(path, dialect)
    if kind == JSON_LINES:
        return json_columns(path, wanted)
    if kind == PARQUET:
        return parquet_columns(path)
    from streamveil.io.avro import avro_columns  # whose library takes long to import

    return avro_columns(path)


def _said(
    path: str, columns: Columns, dialect: CsvDialect | None
) -> tuple[dict[str, str | None], Columns]:
    """What the folders of a file say of the columns that it lacks, and those to read in it.

    JSON Lines have no header, so there every row may have a column or lack it.
    """
    said = {name: value for name, value in partitions_of(path).items() if name in columns}
    if not said or format_of(path, dialect) == JSON_LINES:
        return said, columns
    found = _own_columns(path, (), dialect)
    said = {name: value for name, value in said.items() if name not in found}
    return said, [name for name in columns if name not in said] or found[:1]


def split_file(path: str, columns: Columns, dialect: CsvDialect | None = None) -> list[Part]:
    """Divide a file or a BigQuery table into parts that can be read independently."""
    if is_bigquery(path):
        label = label_of_table(path)
        return [Part(label, rows=rows) for rows in split_table(path, columns)]
    stamp = Stamp.now(path)
    query = query_in(dialect)
    if query is not None:
        columns = _sources(path, query, _present(path, query))
    if format_of(path, dialect) == PARQUET:
        parts = split_parquet(path, _said(path, columns, dialect)[1])
    else:
        parts = [Part(path)]
    return [part._replace(stamp=stamp, dialect=dialect) for part in parts]


def parts_of(pattern: Patterns, columns: Columns, dialect: CsvDialect | None = None) -> list[Part]:
    """Parts of all files that match, as they are now, in order of their paths."""
    return [
        part for path in places_of(pattern, dialect) for part in split_file(path, columns, dialect)
    ]


def read_part(part: Part, columns: Columns, reject: Reject) -> Iterator[pa.RecordBatch]:
    """Read a part of a file, in batches with the requested columns and `__row__`.

    The batches, and the rows within each batch, are in the order of the file.

    Args:
        part: the part, from :func:`split_file`.
        columns: the columns to read.
        reject: function that is called for each line or row that cannot be parsed. The function's
            arguments are the number of the line or row, the reason and the bytes of the line or
            row. The function is called before the batch with the surrounding rows is yielded.

    Raises:
        ConfigurationError: if the file cannot be read to its end, or has changed since it was
            divided into parts.
    """
    if part.rows is not None:
        yield from read_rows(part.path, part.rows, columns, reject)
        return
    query = query_in(part.dialect)
    wanted = columns
    if query is not None:
        wanted = _sources(part.path, query, _present(part.path, query))
    said, own = _said(part.path, wanted, part.dialect)
    for batch in _read(part, own, reject):
        if said:
            batch = with_partitions(batch, wanted, said)
        yield batch if query is None else query.compute(part.path, batch, columns, reject)
    if part.stamp is not None:
        part.stamp.refuse_other(part.path, Stamp.now(part.path), _AGAIN)


def _read(part: Part, columns: Columns, reject: Reject) -> Iterator[pa.RecordBatch]:
    kind = format_of(part.path, part.dialect)
    if kind == PARQUET:
        return read_parquet(part, columns, reject)
    if kind == AVRO:
        from streamveil.io.avro import read_avro

        return read_avro(part.path, columns, reject)
    if kind == CSV:
        return read_csv(part.path, columns, reject, part.dialect)
    return read_json(part.path, columns, reject)


def read_events(
    pattern: Patterns,
    columns: Columns,
    dataset: str | None = None,
    dialect: CsvDialect | None = None,
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch | None]]:
    """Read all matching files in this process, in the order of their paths and without Beam.

    Args:
        pattern: paths or globs.
        columns: the columns to read.
        dataset: name of the data set from which the files come, if `DATASETS` lists this data set.
            The name determines the format of the files. If None, the endings of the file names
            determine the format.
        dialect: the form of the CSV files, for example their delimiter and column names.

    Yields:
        An iterator of pairs. The first part of each pair is a batch of events, which may be empty.
        The second part is a batch of dead letters (rejected rows, in `REJECTED_SCHEMA`), or None if
        no row was rejected.

    Raises:
        ConfigurationError: if no file matches the pattern, or if a file cannot be read to its end.
    """
    names = distinct(columns)
    if dataset is None:
        for part in parts_of(pattern, names, dialect):
            yield from _with_rejected(part.path, partial(read_part, part, names))
        return
    for metadata in match_files(pattern):
        read, stamp = partial(DATASETS[dataset], metadata.path, names), Stamp.now(metadata.path)
        yield from _with_rejected(metadata.path, read)
        stamp.refuse_other(metadata.path, Stamp.now(metadata.path), _AGAIN)


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
        tell_read(events)


def tell_read(events: int) -> None:
    """Tell those who wait how many events were read, those that are rejected among them."""
    _PROGRESS.info("read %d events", events, extra={"events": events})


def file_outputs(
    pattern: Patterns,
    columns: Columns,
    silent: bool = False,
    dialect: CsvDialect | None = None,
) -> Iterator[Output]:
    """Read all files that match, in order of their paths: what :func:`part_outputs` gives of each.

    All files are looked at before the first one is read, so that one that is written to meanwhile
    is refused. Raises ConfigurationError as :func:`read_events`.

    Args:
        pattern: as of :func:`read_events`.
        columns: the columns to read.
        silent: whether there are no dead letters, such as of files that an earlier run read.
        dialect: how CSV files are written, where that is said.
    """
    names = distinct(columns)
    for part in parts_of(pattern, names, dialect):
        yield from part_outputs(part, names, silent)


def lenient_outputs(
    pattern: Patterns,
    columns: Columns,
    silent: bool = False,
    dialect: CsvDialect | None = None,
) -> Iterator[Output]:
    """Read all files that match, as :func:`file_outputs`, but go on after one that cannot be read.

    Each file is as of :func:`lenient_file_outputs`. Raises ConfigurationError when nothing matches.
    """
    names = distinct(columns)
    for file in match_files(pattern):
        yield from lenient_file_outputs(file.path, file.size_in_bytes, names, silent, dialect)


def lenient_file_outputs(
    path: str,
    size: int,
    columns: Columns,
    silent: bool = False,
    dialect: CsvDialect | None = None,
) -> Iterator[Output]:
    """Read a file: what :func:`part_outputs` gives of its parts, and what is wrong with the file.

    A file of `size` bytes that cannot be read to its end gives a dead letter with the reason
    `unreadable file` after the events before the fault. If `silent`, there are no dead letters.
    Raises MachineFault for a file that is gone, and for what the machine lacks to read it: there is
    nothing wrong with the file.
    """
    try:
        check_file(path, size, dialect)
        for part in split_file(path, columns, dialect):
            yield from part_outputs(part, columns, silent)
    except ConfigurationError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            raise MachineFault(f"{path} was there, and is not now: {error}") from error
        if not silent:
            yield Output(rejected_batch(path, [(None, str(error), b"")], UNREADABLE), REJECTED)


def part_outputs(part: Part, columns: Columns, silent: bool = False) -> Iterator[Output]:
    """What :func:`outputs_of` gives of a part of a file."""
    return outputs_of(part.path, partial(read_part, part, columns), silent)


def outputs_of(
    source: str, read: Callable[[Reject], Iterator[pa.RecordBatch]], silent: bool = False
) -> Iterator[Output]:
    """Batches that are not empty, and dead letters (`REJECTED`).

    A batch says by `LOST_METADATA` what could not be parsed before it; then it may be empty. If
    `silent`, there are no dead letters.
    """
    if silent:
        yield from (Output(batch) for batch in read(drop_silently) if batch.num_rows)
        return
    for batch, rejected in _with_rejected(source, read):
        if rejected is not None:
            batch = _saying(batch, rejected)
            yield Output(rejected, REJECTED)
        if batch.num_rows or rejected is not None:
            yield Output(batch)


def _saying(batch: pa.RecordBatch, rejected: pa.RecordBatch) -> pa.RecordBatch:
    """The batch, telling whoever counts its events how many could not be parsed before it."""
    tally = EventTally(rejected.num_rows, losses_of(rejected))
    return batch.replace_schema_metadata(
        {**(batch.schema.metadata or {}), LOST_METADATA: tally.to_bytes()}
    )


def drop_silently(row: int, detail: str, record: bytes) -> None:
    """Reject a record without a trace."""


def rejected_batch(
    source: str, records: Sequence[tuple[int | None, str, bytes]], reason: str = UNPARSABLE
) -> pa.RecordBatch:
    """Dead-letter batch of records given as (row, what is wrong, bytes).

    What is unparsable because of its encoding has a reason of its own.
    """
    rows, details, raw = zip(*records, strict=True)
    texts = [r[:MAX_RECORD_BYTES].decode(errors="replace").rstrip("\r\n") for r in raw]
    count = len(records)
    return pa.RecordBatch.from_pydict(
        {
            "source": [label_of(source)] * count,
            "row": rows,
            "reason": [
                NOT_UTF8 if reason == UNPARSABLE and _OF_ENCODING.match(detail) else reason
                for detail in details
            ],
            "detail": map(label_of, details),
            "record": texts,
        },
        schema=REJECTED_SCHEMA,
    )
