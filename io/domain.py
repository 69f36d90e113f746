"""The public domain, as text on a command line or as a file."""

from __future__ import annotations

import json

import pyarrow as pa
from apache_beam.io.filesystems import FileSystems

from streamveil.io.tables import read_table
from streamveil.mechanisms.domains import Categories, Domain, Edges, Grid
from streamveil.mechanisms.records import ConfigurationError

_EDGES = "edges:"
_GRID = "grid:"
_TABLES = (".parquet", ".avro", ".jsonl", ".ndjson")
_VALUE = "value"


def read_domain(text: str) -> Domain:
    """Read a domain.

    Args:
        text: `edges:0,10,20` for numbers; `grid:WEST,SOUTH,EAST,NORTH,COLUMNS,ROWS` for map cells;
            the name of a file; or else the values themselves, separated by commas. A file lists
            one value a line (.txt, or .csv), is a JSON list (.json), or is a table with a
            column `value` (.csv, .parquet, .avro, .jsonl).

    Raises:
        ConfigurationError: for an unreadable file, a duplicate or empty value, wrong numbers.
    """
    if text.startswith(_EDGES):
        return Edges(tuple(_numbers(text, _EDGES)))
    if text.startswith(_GRID):
        numbers = _numbers(text, _GRID)
        if len(numbers) != 6 or not (numbers[4].is_integer() and numbers[5].is_integer()):
            raise ConfigurationError(
                f"domain {text!r} is not grid:WEST,SOUTH,EAST,NORTH,COLUMNS,ROWS"
            )
        west, south, east, north = numbers[:4]
        return Grid(west, south, east, north, int(numbers[4]), int(numbers[5]))
    if FileSystems.exists(text):
        try:
            return Categories(tuple(_file_values(text)))
        except ConfigurationError as error:
            raise ConfigurationError(f"domain file {text}: {error}") from None
    if "/" in text or text.endswith((".txt", ".csv", ".json", *_TABLES)):
        raise ConfigurationError(f"domain file {text} does not exist: check its name")
    return Categories(tuple(value.strip() for value in text.split(",")))


def _numbers(text: str, prefix: str) -> list[float]:
    try:
        return [float(part) for part in text.removeprefix(prefix).split(",")]
    except ValueError:
        raise ConfigurationError(f"domain {text!r} holds something that is no number") from None


def _file_values(path: str) -> list[str]:
    if path.endswith(_TABLES):
        return _column(read_table(path), path)
    try:
        with FileSystems.open(path) as file:
            content = file.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"it is not UTF-8 text ({error})") from None
    except OSError as error:
        raise ConfigurationError(f"it cannot be read ({error}): name a file") from None
    if path.endswith(".json"):
        try:
            values = json.loads(content)
        except ValueError as error:
            raise ConfigurationError(f"it is not JSON ({error})") from None
        if not isinstance(values, list):
            raise ConfigurationError("its JSON is no list of values")
        return ["" if value is None else str(value) for value in values]
    lines = content.splitlines()
    if path.endswith(".csv") and lines and _VALUE in lines[0].split(","):
        return _column(read_table(path), path)
    return [line.strip() for line in lines if line.strip()]


def _column(table: pa.Table, path: str) -> list[str]:
    if _VALUE not in table.column_names:
        raise ConfigurationError(
            f"it has no column {_VALUE!r}; there are: {', '.join(table.column_names)}"
        )
    return ["" if value is None else str(value) for value in table[_VALUE].to_pylist()]
