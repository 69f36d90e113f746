"""Writing one table to one file, whole or not at all, and reading it back."""

from __future__ import annotations

import contextlib
import json
import os
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from io import BytesIO
from operator import itemgetter
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from streamveil.io import filesystems
from streamveil.io.delimited import NULLS, write_csv
from streamveil.io.files import is_there, open_file, reading, storing
from streamveil.io.filesystems import is_local, require_filesystem
from streamveil.io.formats import AVRO, CSV, JSON_LINES, PARQUET, format_of, output_format_of
from streamveil.io.jsonlines import write_json
from streamveil.io.lines import refusing
from streamveil.io.parquet import write_parquet
from streamveil.io.places import EXISTS, may_hold_files
from streamveil.io.sealed import naming
from streamveil.mechanisms.core.records import ConfigurationError

UTC_MICROSECONDS = pa.timestamp("us", tz="UTC")
"""The type of times in all tables that are written."""

# Of a Parquet row group, unless the batches come larger.
GROUP_ROWS, _GROUP_BYTES = 1 << 16, 1 << 25
_TIME = r"^\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)$"
_BEGUN = re.compile(r"\.(.+)\.[0-9a-f]{32}\.part")


class TableForm(NamedTuple):
    """How results of a kind become the rows of a table."""

    schema: pa.Schema
    convert: Callable[[Sequence[Any]], pa.RecordBatch]
    """Makes a batch of that schema."""
    sort_by: tuple[str, ...]
    """Columns that say the order of the rows."""
    batch: int = 100
    """Results that are converted together: releases of 10,000 bins take 16 MB at this number."""

    def table(self, items: Sequence[Any]) -> pa.Table:
        """All of some results, in the order of a file of them."""
        table = pa.Table.from_batches([self.convert(items)] if items else [], self.schema)
        return _sorted(table, self.sort_by)


def as_they_come(schema: pa.Schema) -> TableForm:
    """The form of results that are batches of rows already."""
    return TableForm(schema, itemgetter(0), (), batch=1)


def check_output(path: str) -> None:
    """Check that an output file can be written, before a run begins.

    Raises:
        ConfigurationError: if the format of the file is unknown, the file already exists, or its
            local folder does not exist or is not writable.
    """
    output_format_of(path)
    check_place(path)


def check_outputs(paths: Sequence[str]) -> None:
    """Check the output files of a run by :func:`check_output`, and check that all paths differ.

    Raises:
        ConfigurationError: if an output file cannot be written, or if two outputs have the same
            path.
    """
    places = [path if "://" in path else os.path.realpath(path) for path in paths]
    for path, place in zip(paths, places, strict=True):
        if places.count(place) > 1:
            raise ConfigurationError(f"two outputs are named {path}: give them different names")
        check_output(path)


def check_place(path: str) -> None:
    """Check that no file exists at a path, and that the local folder of the path is writable.

    Raises:
        ConfigurationError: if a file exists at the path, or if the local folder of the path is not
            writable.
        MachineFault: if the filesystem does not respond.
    """
    if is_there(path):
        raise ConfigurationError(f"{path}: {EXISTS}")
    folder = os.path.dirname(os.path.abspath(path))
    if is_local(path) and not may_hold_files(folder):
        raise ConfigurationError(
            f"{path}: {folder} is not a directory that may be written to: create it, let this user "
            "write there, or choose another path"
        )


def write_table(
    path: str,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    *,
    sort_by: Sequence[str] = (),
    private: bool = False,
) -> None:
    """Write record batches to a file. The ending of the file name determines the format.

    The file is written under a temporary name and then renamed, so that a file with the final name
    is always complete. An existing file is replaced.

    Args:
        path: the file.
        schema: schema of the batches.
        batches: the rows.
        sort_by: names of the columns by which the rows are sorted in memory. By default, rows are
            not sorted.
        private: if true, only the owner may read the file. Only local filesystems support this.

    Raises:
        ConfigurationError: if the format of the file is unknown, or if this format cannot store the
            type of a column.
        TypeError: if a batch has a schema that differs from the argument `schema`.
    """
    with contextlib.ExitStack() as block:
        stage_table(block, path, schema, batches, sort_by=sort_by, private=private)


def stage_table(
    block: contextlib.ExitStack,
    path: str,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    *,
    sort_by: Sequence[str] = (),
    private: bool = False,
) -> None:
    """Write a file as :func:`write_table` does, which gets its name when the block ends.

    Of several in one block none gets its name before all are written; the last one is the first.
    """
    write = _writer(path)
    if sort_by:
        batches = _sorted(pa.Table.from_batches(batches, schema), sort_by).to_batches()
    with _staged(block, path, private) as handle:
        write(handle, schema, _grouped(schema, batches))


def _sorted(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """The rows in order: the table itself if they are, as results mostly come."""
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in columns])
    if order.equals(pa.array(np.arange(len(order), dtype=np.uint64))):
        return table
    return table.take(order)


def _writer(path: str) -> Callable[[BinaryIO, pa.Schema, Iterable[pa.RecordBatch]], None]:
    kind = output_format_of(path)
    if kind == PARQUET:
        return write_parquet
    if kind == CSV:
        return write_csv
    if kind == JSON_LINES:
        return write_json
    from streamveil.io.avro import write_avro  # whose library takes long to import

    return write_avro


def write_text(path: str, text: str, private: bool = False) -> None:
    """Write a text file in UTF-8.

    The text is written to a temporary file, which is then renamed. Other programs therefore never
    see an incomplete file.
    """
    with contextlib.ExitStack() as block, _staged(block, path, private) as handle:
        handle.write(text.encode())


@contextlib.contextmanager
def _staged(block: contextlib.ExitStack, path: str, private: bool = False) -> Iterator[BinaryIO]:
    """A file to write, under a temporary name until the block has ended well."""
    require_filesystem(path)
    folder, name = filesystems.split(path)
    temporary = filesystems.join(folder, f".{name}.{uuid.uuid4().hex}.part")
    block.push(partial(_end, temporary, path))
    with storing(path):
        handle = _created(temporary, private)
        with naming(path), contextlib.closing(handle):
            yield handle
            _send_empty(handle, temporary)


def _end(temporary: str, path: str, fault: type[BaseException] | None, *_: object) -> None:
    """Give a file its name, or where there was a fault delete it."""
    try:
        if fault is None:
            with storing(path):
                filesystems.give_name(temporary, path)
            return
    except BaseException:
        _delete(temporary)
        raise
    _delete(temporary)


def _delete(temporary: str) -> None:
    with contextlib.suppress(Exception):
        filesystems.delete(temporary)


def _send_empty(handle: Any, path: str) -> None:
    """Send the one part of a file without content, which S3 demands and Beam does not send."""
    if path.startswith("s3://") and not handle.tell():
        handle.raw._uploader._write_to_s3(b"")


def begun_name(name: str) -> str | None:
    """The name that an unfinished file of :func:`write_table` is to get; None for another file."""
    match = _BEGUN.fullmatch(name)
    return None if match is None else match[1]


def remove_unfinished(path: str) -> int:
    """Remove what a run that is gone has begun of a local file; gives the number."""
    folder, name = os.path.split(os.path.abspath(path))
    removed = 0
    with contextlib.suppress(OSError):
        for found in os.listdir(folder):
            if begun_name(found) == name:
                os.unlink(os.path.join(folder, found))
                removed += 1
    return removed


def _created(path: str, private: bool) -> BinaryIO:
    if private and is_local(path):
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    return filesystems.create(path)


def _grouped(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches, for every row group of a Parquet file has a price."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.schema.equals(schema):
            raise TypeError(f"a batch has the schema\n{batch.schema}\nin place of\n{schema}")
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= GROUP_ROWS or size >= _GROUP_BYTES:
            yield from _joined(schema, waiting)
            waiting, rows, size = [], 0, 0
    yield from _joined(schema, waiting)


def _joined(schema: pa.Schema, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    table = pa.Table.from_batches(batches, schema)
    return table.combine_chunks().to_batches() if table.num_rows else []


def read_table(path: str, columns: Collection[str] | None = None) -> pa.Table:
    """Read a whole file into memory, in any format that :func:`write_table` writes.

    Text formats do not store types, so the types of the columns are inferred. ISO 8601 times with a
    UTC offset become timestamp[us, UTC]. JSON lists in CSV cells become lists. In JSON Lines,
    objects that contain numbers become maps.

    Args:
        path: the file.
        columns: names of the columns to read. Names that are not in the file are ignored. If None,
            all columns are read.

    Raises:
        ConfigurationError: if the file cannot be read.
    """
    if format_of(path) == PARQUET:
        with reading(path), open_file(path) as handle:
            # A thread that reads ahead may still wait for the lock of Python as Python exits.
            file = pq.ParquetFile(handle, pre_buffer=False)
            return file.read(_those(file.schema_arrow.names, columns), use_threads=False)
    table = _read_table(path)
    return table.select(_those(table.column_names, columns))


def _those(names: Sequence[str], wanted: Collection[str] | None) -> list[str]:
    return [name for name in names if wanted is None or name in wanted]


def _read_table(path: str) -> pa.Table:
    kind = format_of(path)
    if kind == AVRO:
        from streamveil.io.avro import avro_columns, avro_metadata, read_avro

        names = avro_columns(path)
        return (
            pa.Table.from_batches(read_avro(path, names, refusing(path)))
            .select(names)
            .replace_schema_metadata(avro_metadata(path))
        )
    with reading(path), open_file(path) as handle:
        return _read_text(handle, kind)


def read_json_files(paths: Sequence[str]) -> pa.Table:
    """Read files of JSON Lines as one table, such as those of a folder of results, in order.

    Raises ConfigurationError when one of them cannot be read.
    """
    lines = []
    for path in paths:
        with reading(path), open_file(path) as handle:
            lines += [json.dumps(json.loads(line)) for line in handle.read().splitlines() if line]
    with reading(paths[0] if paths else ""):
        return _read_text(BytesIO("\n".join(lines).encode()), JSON_LINES)


def _read_text(handle: BinaryIO, kind: str) -> pa.Table:
    data = handle.read()
    if not data.strip():
        return pa.table({})
    if kind == CSV:
        table = pyarrow.csv.read_csv(
            pa.BufferReader(data),
            read_options=pyarrow.csv.ReadOptions(use_threads=False),
            parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
            convert_options=pyarrow.csv.ConvertOptions(**NULLS),
        )
    else:
        rows = [json.loads(line) for line in data.splitlines() if line]
        table = pa.table({name: _array([row.get(name) for row in rows]) for name in rows[0]})
    columns = [_restored(column, lists=kind == CSV) for column in table.columns]
    return pa.table(columns, names=table.column_names)


def _array(values: list[Any]) -> pa.Array:
    """Array of values from JSON; objects of numbers become maps."""
    if any(isinstance(value, dict) for value in values):
        with contextlib.suppress(pa.ArrowException, AttributeError):
            pairs = [None if value is None else list(value.items()) for value in values]
            return pa.array(pairs, pa.map_(pa.string(), pa.float64()))
    return pa.array(values)


def _restored(column: pa.ChunkedArray, *, lists: bool) -> pa.ChunkedArray | pa.Array:
    if pa.types.is_timestamp(column.type):
        return column.cast(UTC_MICROSECONDS)
    if pa.types.is_string(column.type) and column.null_count < len(column):
        if pc.all(pc.match_substring_regex(column, _TIME)).as_py():
            return column.cast(UTC_MICROSECONDS)
        if lists and pc.all(pc.match_substring_regex(column, r"^\[.*\]$")).as_py():
            with contextlib.suppress(ValueError):
                return pa.array([cell and json.loads(cell) for cell in column.to_pylist()])
    return column
