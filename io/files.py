"""Finding and opening files on any filesystem that Beam knows, with errors that name the file."""

from __future__ import annotations

import contextlib
import gzip
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from apache_beam.io.filesystem import CompressionTypes, FileMetadata
from apache_beam.io.filesystems import FileSystems

import streamveil.io.coders  # noqa: F401 - batches of events travel as Arrow writes them
from streamveil.io.formats import CsvDialect, format_of, row_word
from streamveil.mechanisms.core.extras import install_line
from streamveil.mechanisms.core.records import ROW_COLUMN, SOURCE_METADATA, ConfigurationError

Columns = Sequence[str]
Patterns = str | Sequence[str]

# The extra that a filesystem of Beam needs, by the scheme of a path, and a module of it.
_FILESYSTEMS = {
    "s3": ("aws", "boto3"),
    "gs": ("gcp", "google.cloud.storage"),
    "azfs": ("azure", "azure.storage.blob"),
    "hdfs": ("hadoop", "hdfs"),
}


def match_files(pattern: Patterns) -> list[FileMetadata]:
    """Files that match a glob, or any of several: path and size in bytes, by path, each once.

    Raises ConfigurationError when a pattern matches nothing or its filesystem is not known.
    """
    patterns = [pattern] if isinstance(pattern, str) else list(pattern)
    if not patterns:
        raise ConfigurationError("no file pattern was given: name at least one file")
    found: dict[str, FileMetadata] = {}
    for glob in patterns:
        matched = list_files(glob)
        if not matched:
            raise ConfigurationError(
                f"no file matches {glob!r}: check the path, and that this machine may read it"
            )
        found.update((metadata.path, metadata) for metadata in matched)
    return [found[path] for path in sorted(found)]


def list_files(glob: str) -> list[FileMetadata]:
    """Files that match a glob now, perhaps none: path and size in bytes.

    Raises ConfigurationError when its filesystem is not known.
    """
    require_filesystem(glob)
    try:
        # Beam takes a local glob without a folder for one of the root.
        bare = "/" not in glob and "\\" not in glob
        found: list[FileMetadata] = FileSystems.match([f"./{glob}" if bare else glob])[
            0
        ].metadata_list
        return found
    except Exception as error:
        raise ConfigurationError(
            f"files {glob!r} cannot be listed: {error}: check the scheme of the path and that "
            "Beam's package for that filesystem is installed"
        ) from error


def input_files(pattern: Patterns, dialect: CsvDialect | None = None) -> list[str]:
    """Paths that match; raises ConfigurationError for one of no bytes or of unknown format."""
    found = match_files(pattern)
    for metadata in found:
        check_file(metadata.path, metadata.size_in_bytes, dialect)
    return [metadata.path for metadata in found]


def check_file(path: str, size: int, dialect: CsvDialect | None = None) -> None:
    """Raise ConfigurationError for a file of no bytes or of unknown format."""
    format_of(path, dialect)
    if size == 0:
        raise ConfigurationError(
            f"{path}: the file is empty (0 bytes): write it again or leave it out"
        )


def require_filesystem(path: str) -> None:
    """Raise ConfigurationError where a path's filesystem needs what is not installed."""
    scheme = path.partition("://")[0] if "://" in path else ""
    if scheme not in _FILESYSTEMS:
        return
    extra, module = _FILESYSTEMS[scheme]
    try:
        importlib.import_module(module)
    except ImportError:
        raise ConfigurationError(
            f"{path}: files of {scheme}:// need an extra that is not installed: "
            f"{install_line(extra)}"
        ) from None


@contextlib.contextmanager
def open_file(path: str) -> Iterator[BinaryIO]:
    """Open for reading; the bytes of a `.gz` file come decompressed."""
    raw = FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)
    with contextlib.closing(raw):
        # Beam's own decompression takes a truncated file for a complete one.
        gz = path.lower().endswith(".gz")
        yield cast(BinaryIO, gzip.GzipFile(fileobj=raw) if gz else raw)


@dataclass
class Place:
    """Where reading stands; the reader moves it on."""

    row: int | None


@contextlib.contextmanager
def reading(path: str, row: int | None = None) -> Iterator[Place]:
    """Context in which any failure becomes a ConfigurationError with the file and the place."""
    place = Place(row)
    try:
        yield place
    except ConfigurationError:
        raise
    except Exception as error:
        why = " ".join(str(error).split())
        where = "" if place.row is None else f" from {row_word(path)} {place.row} on"
        raise ConfigurationError(
            f"{path}: the file cannot be read{where}: {type(error).__name__}: {why}: "
            "check that it is complete and of the format that its name says"
        ) from error


def require_columns(
    path: str, columns: Columns, present: Sequence[str], remedy: str = "", what: str = "the file"
) -> None:
    """Raise ConfigurationError when a file lacks one of the columns, or has it twice.

    `remedy` is what else may help, and `what` that which is no file.
    """
    for column in columns:
        count = list(present).count(column)
        if count != 1:
            found = "has no column" if count == 0 else f"has {count} columns named"
            raise ConfigurationError(
                f"{path}: {what} {found} {column!r}; its columns are "
                f"{', '.join(map(repr, present)) or 'none'}: name one of them{remedy}"
            )


def plain_values(column: pa.Array) -> list[Any]:
    """Python's own values of a column; a map becomes a dict."""
    values: list[Any] = column.to_pylist()
    if pa.types.is_map(column.type):
        return [None if value is None else dict(value) for value in values]
    return values


def distinct(columns: Columns) -> tuple[str, ...]:
    """The columns to read, each once.

    Raises ConfigurationError for none, or one whose name is taken.
    """
    if isinstance(columns, str) or not columns:
        raise ConfigurationError(f"columns {columns!r} must be a list of one name or more")
    if ROW_COLUMN in columns:
        raise ConfigurationError(
            f"a column named {ROW_COLUMN!r} cannot be read, the name is taken: rename the column"
        )
    return tuple(dict.fromkeys(columns))


def event_batch(
    source: str,
    columns: Columns,
    arrays: Sequence[pa.Array],
    rows: npt.NDArray[np.int64] | None = None,
) -> pa.RecordBatch:
    """Batch of the named columns and where each row stood in the source; null without `rows`."""
    fields = [pa.field(name, array.type) for name, array in zip(columns, arrays, strict=True)]
    fields.append(pa.field(ROW_COLUMN, pa.int64(), nullable=rows is None))
    metadata: dict[Any, Any] = {SOURCE_METADATA: source.encode()}
    places = pa.nulls(len(arrays[0]), pa.int64()) if rows is None else pa.array(rows, pa.int64())
    schema = pa.schema(fields, metadata=metadata)
    return pa.RecordBatch.from_arrays([*arrays, places], schema=schema)
