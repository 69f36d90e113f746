"""The Parquet format: row groups read in parallel, cheap dictionaries kept as dictionaries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streamveil.io.cells import sound_batch
from streamveil.io.files import Columns, Stamp, open_file, reading, require_columns
from streamveil.io.formats import CsvDialect
from streamveil.io.lines import Reject

if TYPE_CHECKING:
    from streamveil.io.bigquery_tables import Rows

# Larger batches bound more before the shuffle when input is not sorted by time; smaller ones only
# save memory.
BATCH_ROWS = 1 << 20
# Reading a string column as a dictionary is several times faster while ids repeat, and slower
# when nearly every row has its own; the size of the encoded column tells which it is.
DICTIONARY_BYTES_PER_VALUE = 4.0


class Part(NamedTuple):
    """What one worker reads in one go: row groups of a Parquet file, rows of a table, or a file."""

    path: str
    groups: tuple[int, ...] = ()
    first_row: int = 0
    """Row index in the file of the first row."""
    dictionaries: tuple[str, ...] = ()
    """Columns worth reading as Arrow dictionaries."""
    dialect: CsvDialect | None = None
    """How a CSV file is written, where that is said."""
    stamp: Stamp | None = None
    """What the file was when it was cut into parts; None where nobody looks whether it still is."""
    rows: Rows | None = None
    """Of a table of BigQuery; then the path only names it."""


def parquet_columns(path: str) -> list[str]:
    """Names of the columns; raises ConfigurationError when the footer cannot be read."""
    return list(parquet_schema(path).names)


def parquet_schema(path: str) -> pa.Schema:
    """The columns and their types; raises ConfigurationError when the footer cannot be read."""
    with reading(path), open_file(path) as handle, pq.ParquetFile(handle) as file:
        return file.schema_arrow


def split_parquet(path: str, columns: Columns) -> list[Part]:
    """Cut a file into parts of about BATCH_ROWS rows, at the borders of its row groups.

    Raises ConfigurationError when the footer cannot be read or a column is missing.
    """
    with reading(path), open_file(path) as handle, pq.ParquetFile(handle) as file:
        schema, metadata = file.schema_arrow, file.metadata
    require_columns(path, columns, schema.names)
    parts: list[Part] = []
    run: list[int] = []
    row = rows = 0
    strings = [name for name in columns if schema.field(name).type == pa.string()]

    def close() -> None:
        if run:
            parts.append(Part(path, tuple(run), row, _cheap(metadata, run, strings)))

    for group in range(metadata.num_row_groups):
        more = metadata.row_group(group).num_rows
        if rows + more > BATCH_ROWS:
            close()
            row, rows, run = row + rows, 0, []
        rows += more
        run.append(group)
    close()
    return parts


def _cheap(metadata: pq.FileMetaData, groups: list[int], strings: list[str]) -> tuple[str, ...]:
    size = dict.fromkeys(strings, 0)
    values = dict.fromkeys(strings, 0)
    leaves = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
    for group in groups:
        row_group = metadata.row_group(group)
        for name in strings:
            chunk = row_group.column(leaves[name])
            size[name] += chunk.total_uncompressed_size
            values[name] += chunk.num_values
    return tuple(s for s in strings if size[s] <= DICTIONARY_BYTES_PER_VALUE * values[s])


def read_parquet(part: Part, columns: Columns, reject: Reject) -> Iterator[pa.RecordBatch]:
    """Read the row groups of a part in batches of up to BATCH_ROWS rows.

    Rows with text that is not UTF-8, or with an index outside their dictionary, go to `reject`.
    Raises ConfigurationError when the file cannot be read.
    """
    row = part.first_row
    names = list(columns)
    with reading(part.path, row=row) as place, open_file(part.path) as handle:
        metadata = pq.read_metadata(handle)
        rows = sum(metadata.row_group(group).num_rows for group in part.groups)
        file = pq.ParquetFile(
            handle,
            metadata=metadata,
            read_dictionary=list(part.dictionaries),
            # Saves small reads, but holds all of the columns: not for a huge row group.
            pre_buffer=rows <= BATCH_ROWS,
        )
        batches: Iterable[pa.RecordBatch] = file.iter_batches(
            BATCH_ROWS, row_groups=list(part.groups), columns=names, use_threads=False
        )
        if len(part.groups) > 1:  # one batch of many small row groups
            batches = pa.Table.from_batches(batches).combine_chunks().to_batches()
        for batch in batches:
            if batch.num_rows:
                after = row + batch.num_rows
                arrays = [batch.column(name) for name in names]
                yield sound_batch(part.path, names, arrays, np.arange(row, after), reject)
                place.row = row = after


def write_parquet(handle: BinaryIO, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """Write batches of that schema, each as a row group; the schema's metadata is kept."""
    with pq.ParquetWriter(handle, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
