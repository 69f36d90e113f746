"""Formats of files, by their names, and how CSV files are written."""

from __future__ import annotations

from dataclasses import dataclass

from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.wording import opt

PARQUET, AVRO, CSV, JSON_LINES = "parquet", "avro", "csv", "json lines"
EXTENSIONS = {
    ".parquet": PARQUET,
    ".avro": AVRO,
    ".csv": CSV,
    ".jsonl": JSON_LINES,
    ".json": JSON_LINES,
    ".ndjson": JSON_LINES,
}
TEXT_FORMATS = (CSV, JSON_LINES)
COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
"""Endings of compressed files of text; those of Parquet and Avro are compressed inside."""
# What else people try, what parts its fields, and what helps there.
_DELIMITED = {".tsv": "tab", ".tab": "tab", ".psv": "'|'"}
_REMEDIES = {
    **dict.fromkeys((".xls", ".xlsx", ".ods"), "save the sheet as CSV"),
    **dict.fromkeys((".zip", ".7z", ".tar", ".tgz"), "unpack it, and name the files in it"),
    **dict.fromkeys((".orc", ".feather", ".arrow", ".ipc"), "write it as Parquet"),
}


@dataclass(frozen=True)
class CsvDialect:
    """Delimiter and column names of CSV files.

    Raises:
        ConfigurationError: if the delimiter is not a single ASCII character, if the delimiter is a
            quote or a line break, or if a column name is empty or repeated.
    """

    delimiter: str = ","
    """The character between two fields."""
    columns: tuple[str, ...] | None = None
    """Column names of files without a header. If None, the first line of a file is its header."""
    any_name: bool = False
    """Whether files with an unknown ending are CSV."""
    sql: str | None = None
    """A SELECT that computes the columns, for files of any format (see `io/sql.py`)."""

    def __post_init__(self) -> None:
        """Check both."""
        if len(self.delimiter) != 1 or not self.delimiter.isascii() or self.delimiter in '"\r\n\0':
            raise ConfigurationError(
                f"the delimiter {self.delimiter!r} ({opt.delimiter}) is not one character: write "
                f"it, such as ; or |, or the word tab"
            )
        names = self.columns
        if names is not None and (not names or not all(names) or len(set(names)) < len(names)):
            raise ConfigurationError(
                f"the columns {','.join(names)!r} ({opt.columns}) are not names of their own: name "
                "every field of a line once, as in user,place,time"
            )


def format_of(path: str, dialect: CsvDialect | None = None) -> str:
    """Format of an input file by its name; a text format may end in one of `COMPRESSIONS`.

    Raises ConfigurationError for an extension that is not known, but where `dialect` takes any.
    """
    plain = _uncompressed(path)
    known = _extension_format(plain)
    if known not in TEXT_FORMATS and plain != path:
        if known is not None:
            raise ConfigurationError(
                f"{path}: files of {plain[plain.rindex('.') :]} are compressed inside: decompress "
                "this one, and name the file that comes of it"
            )
        known = None
    if known is None and dialect is not None and dialect.any_name:
        return CSV
    if known is None:
        remedies = _REMEDIES | {
            ending: f"say {opt.delimiter}={sign}" for ending, sign in _DELIMITED.items()
        }
        remedy = next((remedies[e] for e in remedies if plain.lower().endswith(e)), None)
        raise ConfigurationError(
            f"{path}: the format of this file is not known by its name: {remedy}"
            if remedy
            else f"{path}: the format of this file is not known by its name: use one of "
            f"{', '.join(EXTENSIONS)}, a text format also with {', '.join(COMPRESSIONS)}; or say "
            f"{opt.delimiter}, if it is text of separated fields"
        )
    return known


def format_said(path: str) -> str | None:
    """The format of events that the name of a file says, if it does."""
    return _extension_format(_uncompressed(path))


def says_format(path: str) -> bool:
    """Whether the name of a file says a format of events."""
    return format_said(path) is not None


def output_format_of(path: str) -> str:
    """Format of an output file by its name; raises ConfigurationError when there is none."""
    known = _extension_format(path)
    if known is None:
        raise ConfigurationError(
            f"{path}: the format to write is not known by this name: end it in one of "
            f"{', '.join(EXTENSIONS)}"
        )
    return known


def _uncompressed(path: str) -> str:
    """The name without the ending of a compressed file."""
    ending = next((e for e in COMPRESSIONS if path.lower().endswith(e)), "")
    return path[: len(path) - len(ending)]


def _extension_format(path: str) -> str | None:
    return next((EXTENSIONS[e] for e in EXTENSIONS if path.lower().endswith(e)), None)


def typed_format_of(path: str) -> str | None:
    """Parquet or Avro, by the name of a file; None for text."""
    known = _extension_format(path)
    return None if known in TEXT_FORMATS else known


def row_word(path: str) -> str:
    """What the rows of a file are called: `line` (from 1) in text files, `row` (from 0) else."""
    return "line" if typed_format_of(path) is None else "row"
