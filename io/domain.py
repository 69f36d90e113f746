"""The public domain, as text on a command line or as a file."""

from __future__ import annotations

import csv
import json
import os
import re
from decimal import Decimal
from typing import Any

from streamveil.io.events import columns_of
from streamveil.io.files import is_there, open_file, reading, refuse_bigquery
from streamveil.io.lines import BYTE_ORDER_MARK
from streamveil.io.public import read_public
from streamveil.mechanisms.core.boolean_text import boolean_text
from streamveil.mechanisms.core.domains import (
    FILE,
    Categories,
    Edges,
    Grid,
    domain_of_list,
    domain_of_numbers,
    is_list,
)
from streamveil.mechanisms.core.records import ConfigurationError

_LISTS = (".txt", ".csv")
_TABLES = (".parquet", ".avro", ".jsonl", ".ndjson")
_VALUE = "value"
_IS_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_IF_HEADER = "if it is a header, take it out, or name it 'value' in a .csv file; if it is a bin, \
write the bins as a JSON list in a .json file"


def read_domain(text: str, column: str | None = None) -> Categories | Edges | Grid:
    """Return the publicly known keys that a value of the option `--domain` lists.

    Args:
        text: the keys. Write ranges of numbers as `edges:0,10,20`, and map cells as
            `grid:WEST,SOUTH,EAST,NORTH,COLUMNS,ROWS`. Write other keys as a list of values,
            separated by commas, or give the name of a file that contains the keys. If the file name
            contains a comma, write `file:` before the name. Text without a comma is a file name if
            the file exists, or if the text contains a slash or ends like a file name. Any other
            text without a comma is a single key. A file contains one key per line (.txt, .csv), a
            JSON list (.json), or a table with a column `value` (.csv, .parquet, .avro, .jsonl).
        column: name of the event column that contains the keys. If the file of keys is a table, the
            table's column may have this name instead of `value`.

    Raises:
        ConfigurationError: if the file of keys cannot be read, a key is empty or repeated, a number
            is malformed or out of range, or the first line of a list looks like a header.
    """
    numbers = domain_of_numbers(text)
    if numbers is not None:
        return numbers
    if is_list(text):
        return domain_of_list(text)
    path = text.removeprefix(FILE)
    refuse_bigquery(path)
    if is_there(path):
        try:
            return Categories(tuple(_file_values(path, column)))
        except ConfigurationError as error:
            raise ConfigurationError(f"domain file {path}: {error}") from None
    if "/" in path or path != text or path.endswith((*_LISTS, ".json", *_TABLES)):
        raise ConfigurationError(
            f"domain file {path} does not exist: check its name; values are listed with commas"
        )
    return domain_of_list(text)


def _file_values(path: str, column: str | None) -> list[str]:
    if path.endswith(_TABLES):
        return _table_values(path, column)
    if os.path.isdir(path):
        raise ConfigurationError("it cannot be read, for it is a folder: name a file")
    with reading(path), open_file(path) as file:
        content = file.read().removeprefix(BYTE_ORDER_MARK)
    texts = [_decoded(line, number) for number, line in enumerate(content.split(b"\n"), 1)]
    if path.endswith(".json"):
        return _json_values("\n".join(texts))
    lines = [text.removesuffix("\r") for text in texts if text.strip()]
    if path.endswith(".csv") and lines and {_VALUE, column} & set(_fields(lines[0])):
        return _table_values(path, column)
    _refuse_header(lines, column)
    return lines


def _decoded(line: bytes, number: int) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"line {number} is not UTF-8 text ({error})") from None


def _fields(line: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []


def _refuse_header(lines: list[str], column: str | None) -> None:
    """A header would silently become a bin, and a bin taken for a header would be lost: ask."""
    if not lines:
        return
    first, *others = (line.strip() for line in lines)
    numbers = [bool(_IS_NUMBER.fullmatch(line)) for line in others]
    if first.strip('"').casefold() in {name.casefold() for name in (_VALUE, column) if name}:
        why = "which is the name of a column"
    elif others and all(numbers) and not _IS_NUMBER.fullmatch(first):
        why = "and all others are numbers"
    else:
        return
    raise ConfigurationError(f"its first line is {first!r}, {why}: {_IF_HEADER}")


def _json_values(content: str) -> list[str]:
    try:
        values = json.loads(content, parse_int=_Number, parse_float=_Number)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"it is not JSON ({error})") from None
    if not isinstance(values, list):
        raise ConfigurationError("its JSON is not a list of values")
    return [_json_text(value) for value in values]


class _Number(str):
    """A number as it is written."""


def _json_text(value: Any) -> str:
    """Text of a bin; a number that is whole has one text, as in events, written 7 or 7.0."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return boolean_text(value)
    if isinstance(value, _Number):
        number = Decimal(value)
        whole = number.is_finite() and abs(number.adjusted()) < 400 and number % 1 == 0
        return str(int(number)) if whole else repr(float(value))
    if isinstance(value, str) and not any("\ud800" <= each <= "\udfff" for each in value):
        return value
    raise ConfigurationError(
        f"its JSON list holds {json.dumps(value)}, which is neither text nor a number: write "
        "it as text"
    )


def _table_values(path: str, column: str | None) -> list[str]:
    """The column `value` of a table, or else the one named as that of the events."""
    present = columns_of(path)
    name = column if column in present and _VALUE not in present else _VALUE
    if name not in present:
        or_so = f" and no column {column!r}" if column and column != _VALUE else ""
        raise ConfigurationError(
            f"it has no column {_VALUE!r}{or_so}; there are: {', '.join(present)}"
        )
    return [
        value
        for rows in read_public(path, [name])
        for value in rows.names(name, rows.columns[0], "an empty value: name every bin").to_pylist()
    ]
