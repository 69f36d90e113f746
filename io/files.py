"""Finding and opening files on any filesystem that Beam knows, with errors that name the file."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import glob
import gzip
import lzma
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamveil.io import filesystems
from streamveil.io.faults import blaming, fault_in_reading, fault_of_service, is_absent
from streamveil.io.filesystems import is_local, looked_at, require_filesystem, translated
from streamveil.io.formats import (
    EXTENSIONS,
    CsvDialect,
    format_of,
    row_word,
    says_format,
    typed_format_of,
)
from streamveil.io.found_file import FoundFile
from streamveil.io.places import is_bigquery
from streamveil.mechanisms.core.records import (
    ROW_COLUMN,
    SOURCE_METADATA,
    ConfigurationError,
    MachineFault,
)
from streamveil.mechanisms.core.wording import opt

Columns = Sequence[str]
Patterns = str | Sequence[str]

_WILDCARD = re.compile(r"[*?\[]")


def _zstd(raw: Any) -> Any:
    return pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")


# How compressed files begin, by the ending of their names, and what reads them. All of these notice
# where one is cut off.
_COMPRESSED: Mapping[str, tuple[re.Pattern[bytes], Callable[[Any], Any]]] = {
    ".gz": (re.compile(rb"\x1f\x8b"), lambda raw: gzip.GzipFile(fileobj=raw)),
    ".bz2": (re.compile(rb"BZh[1-9]1AY&SY"), bz2.BZ2File),
    ".xz": (re.compile(rb"\xfd7zXZ\x00"), lzma.LZMAFile),
    ".zst": (re.compile(rb"\x28\xb5\x2f\xfd"), _zstd),
}
_ZIP = b"PK\x03\x04"
_LOOK = 64  # bytes, in which what is compressed is no text


def match_files(pattern: Patterns) -> list[FoundFile]:
    """List the files that match one or several globs, with their sizes in bytes.

    Each file is listed once.

    Raises:
        ConfigurationError: if a pattern matches no file, or names an unknown filesystem.
    """
    patterns = [pattern] if isinstance(pattern, str) else list(pattern)
    if not patterns:
        raise ConfigurationError("no file pattern was given: name at least one file")
    found: dict[str, FoundFile] = {}
    for each in patterns:
        matched = list_files(each)
        if not matched:
            raise ConfigurationError(
                f"the folder {each!r} holds no file whose name says a format "
                f"({', '.join(EXTENSIONS)}): name its files by a glob, such as {each}/*.txt"
                if os.path.isdir(each)
                else f"no file matches {each!r}: check the path, and that this machine may read it"
            )
        found.update((metadata.path, metadata) for metadata in matched)
    return [found[path] for path in sorted(found)]


def list_files(pattern: str) -> list[FoundFile]:
    """List the files that currently match a glob, with their sizes in bytes. The list may be empty.

    If the pattern is the path of an existing local file, only this file is listed. If the pattern
    is the path of a local folder, the files in the folder and its subfolders are listed, except
    hidden files and files of unknown formats.

    Raises:
        ConfigurationError: for an unknown filesystem.
        MachineFault: if a local folder cannot be listed.
    """
    refuse_bigquery(pattern)
    require_filesystem(pattern)
    # Beam takes a local glob without a folder for one of the root.
    bare = "/" not in pattern and "\\" not in pattern
    place = f"./{pattern}" if bare else pattern
    with _looking_up(f"files {pattern!r} cannot be listed", pattern):
        if is_local(place):
            _check_listing(place)
            if os.path.isfile(place):
                return [looked_at(place)]
            if os.path.isdir(place):
                return _in_folder(place)
        found = filesystems.match(place)
        if not found and is_local(place):  # folders of partitions, such as day=*
            folders = sorted(each for each in glob.glob(place) if os.path.isdir(each))
            found = [file for folder in folders for file in _in_folder(folder)]
        return found
    return []  # not even the bucket is there


@contextlib.contextmanager
def _looking_up(what: str, place: str) -> Iterator[None]:
    """Context that ends early where a service says that nothing is there.

    Any other failure becomes an error of ours, which begins with `what` could not be done.
    """
    try:
        with blaming(what, place):
            yield
    except (ConfigurationError, MachineFault):
        raise
    except Exception as error:
        if not is_absent(error):
            raise ConfigurationError(
                f"{what}: {error}: check the scheme of the path and that Beam's package for that "
                "filesystem is installed"
            ) from error


def refuse_bigquery(place: str) -> None:
    """Raise ConfigurationError for a table of BigQuery where a file is needed."""
    if is_bigquery(place):
        raise ConfigurationError(
            f"{' '.join(place.split())}: a table of BigQuery is read as events ({opt.input}) only: "
            "export it to a file here, and name that"
        )


class Stamp(NamedTuple):
    """The size and the modification time of a file, which show whether the file has changed."""

    size: int
    """Size of the file in bytes."""
    modified: float
    """Time of the last change, in seconds since 1970, or 0 if the filesystem does not report it."""

    @classmethod
    def of(cls, file: FoundFile) -> Stamp:
        """Make the stamp of a file from the size and the modification time in a file listing."""
        return cls(file.size_in_bytes, file.last_updated_in_seconds)

    @classmethod
    def now(cls, path: str) -> Stamp:
        """Return the current stamp of a file.

        This method raises ConfigurationError if the file does not exist, and MachineFault if the
        size of the file cannot be read.
        """
        try:
            with blaming(f"{path} could not be looked at", path):
                file = looked_at(path)
        except MachineFault:
            raise
        except Exception as error:
            raise ConfigurationError(f"{path} disappeared while it was read: restore it") from error
        return cls.of(file)

    def refuse_other(self, path: str, now: Stamp, then: str) -> None:
        """Raise ConfigurationError if the file has changed since this stamp was made.

        The argument `then` is the end of the error message. It says what to do once the file has
        been written completely.
        """
        if now != self:
            raise ConfigurationError(
                f"{path} was written to while it was read, so nothing is released: put new events "
                f"into files of their own, renamed into place when they are whole, and {then}"
            )


def is_in_folder(path: str, folder: str) -> bool:
    """Whether :func:`list_files` includes the file `path` when it lists the folder `folder`.

    Both paths are absolute.
    """
    top = os.path.join(folder, "")
    if not path.startswith(top):
        return False
    parts = path.removeprefix(top).split("/")
    return says_format(path) and not any(part.startswith((".", "_")) for part in parts)


def _in_folder(folder: str) -> list[FoundFile]:
    """Files below a folder that say a format; others leave marks there, such as `_SUCCESS`."""
    found = []
    for base, folders, names in os.walk(folder, onerror=_refuse_fault):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        for name in sorted(names):
            if not name.startswith((".", "_")) and says_format(name):
                with _looking():
                    found.append(looked_at(os.path.join(base, name)))
    return found


def _check_listing(pattern: str) -> None:
    """Raise OSError where the machine fails at a folder or a file that matches so far.

    Beam leaves these out, as if they were not there.
    """
    wildcard = _WILDCARD.search(pattern)
    with _looking():
        os.stat(pattern)
        return
    if wildcard is None:
        return
    folder, _, rest = pattern[: wildcard.start()].rpartition("/")
    names = (rest + pattern[wildcard.start() :]).split("/")
    _check_folder(folder or ("/" if pattern.startswith("/") else "."), names)


def _check_folder(folder: str, names: Sequence[str]) -> None:
    below = names if "**" in names[0] else names[1:]
    with _looking(), os.scandir(folder) as entries:
        for entry in entries:
            if not _matches(entry.name, names[0]):
                continue
            with _looking():
                if not entry.is_dir(follow_symlinks=False):
                    entry.stat()
                elif below:
                    _check_folder(entry.path, below)


@contextlib.contextmanager
def _looking() -> Iterator[None]:
    """Raise what the machine is to blame for; what is gone, or is no folder, is none of that."""
    try:
        yield
    except OSError as error:
        _refuse_fault(error)


def _refuse_fault(error: OSError) -> None:
    """Raise it if the machine is to blame."""
    if fault_in_reading(error) is not None:
        raise error


def _matches(name: str, pattern: str) -> bool:
    """Whether a name may match a part of a glob between slashes."""
    if "**" in pattern or pattern.count("[") != pattern.count("]"):
        return True
    return re.match(translated(pattern), name) is not None


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


def is_there(path: str) -> bool:
    """Whether a file, or a folder of this machine, is there.

    Raises ConfigurationError when its filesystem is not known, and MachineFault where that does
    not say.
    """
    require_filesystem(path)
    with _looking_up(f"{path} cannot be looked up", path):
        return filesystems.exists(path)
    return False


def storing(path: str) -> contextlib.AbstractContextManager[None]:
    """Context in which a service that does not store a file raises MachineFault, with its path."""
    return blaming(f"{path} could not be written", path, fault_of_service)


@contextlib.contextmanager
def open_file(path: str) -> Iterator[BinaryIO]:
    """Open for reading; the bytes of compressed text come decompressed, whatever its name is.

    Raises ConfigurationError for an archive, and for a compressed file of Parquet or Avro.
    """
    require_filesystem(path)
    raw = filesystems.open_to_read(path)
    with contextlib.closing(raw):
        decompress = _decompression(path, raw)
        yield raw if decompress is None else cast(BinaryIO, decompress(raw))


def _decompression(path: str, raw: BinaryIO) -> Callable[[Any], Any] | None:
    """What decompresses a file, by its name or by how it begins. Raises ConfigurationError."""
    typed = typed_format_of(path)
    if typed and "://" in path:
        return None  # a look at it may fetch megabytes; its own reader says what it is not
    begin = raw.read(_LOOK)
    raw.seek(0)
    if begin.startswith(_ZIP):
        raise ConfigurationError(
            f"{path}: this is a ZIP archive or a workbook of a spreadsheet: unpack it, or save the "
            "sheet as CSV, and name the files that come of it"
        )
    # Beam's own decompression takes a truncated file for a complete one.
    named = (read for ending, (_, read) in _COMPRESSED.items() if path.lower().endswith(ending))
    found = [read for magic, read in _COMPRESSED.values() if magic.match(begin)]
    with contextlib.suppress(UnicodeDecodeError):
        codecs.getincrementaldecoder("utf-8")().decode(begin)
        found = []  # it is text: bzip2 begins with letters, which a user may be called
    decompress = next(named, None) or next(iter(found), None)
    if decompress is not None and typed:
        raise ConfigurationError(
            f"{path}: this file is compressed as a whole, and files of {typed} are compressed "
            "inside: decompress it, and name the file that comes of it"
        )
    return decompress


@dataclass
class Place:
    """Where reading stands; the reader moves it on."""

    row: int | None


@contextlib.contextmanager
def reading(path: str, row: int | None = None) -> Iterator[Place]:
    """Context in which any failure becomes an error of ours with the file and the place.

    That is a ConfigurationError for what is wrong with the file, and a MachineFault for what the
    machine lacked, so that no good file is given up for a fault that passes.
    """
    place = Place(row)
    try:
        yield place
    except (ConfigurationError, MachineFault):
        raise
    except Exception as error:
        where = "" if place.row is None else f" from {row_word(path)} {place.row} on"
        fault = fault_in_reading(error, path)
        if fault is not None:
            raise MachineFault(f"{path} could not be read{where}: {fault}") from error
        why = " ".join(str(error).split())
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
            if count == 0 and set(parts := column.split(",")) <= set(present):
                remedy = f", after you have joined {' and '.join(map(repr, parts))} into one column"
            outer = column.partition(".")[0]
            if count == 0 and outer != column and outer in present:
                remedy = f", after you have moved it from inside {outer!r} to a key of its own"
            raise ConfigurationError(
                f"{path}: {what} {found} {column!r}; its columns are "
                f"{', '.join(map(repr, present)) or 'none'}: name one of them{remedy}"
            )


def label_of(path: str) -> str:
    """Return a path as text. Bytes that are not UTF-8 are escaped."""
    return path.encode(errors="backslashreplace").decode()


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
            f"a column named {ROW_COLUMN!r} cannot be read, the name is reserved: rename the column"
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
    metadata: dict[Any, Any] = {SOURCE_METADATA: label_of(source).encode()}
    places = pa.nulls(len(arrays[0]), pa.int64()) if rows is None else pa.array(rows, pa.int64())
    schema = pa.schema(fields, metadata=metadata)
    return pa.RecordBatch.from_arrays([*arrays, places], schema=schema)
