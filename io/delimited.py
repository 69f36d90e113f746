"""The CSV format (RFC 4180): columns come as strings, every row knows its line."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from itertools import chain
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv

from streamveil.io.files import Columns, event_batch, plain_values, require_columns
from streamveil.io.jsonlines import iso_times, json_text
from streamveil.io.lines import Lines, Reject, is_utf8, read_lines
from streamveil.mechanisms.records import ConfigurationError

_Numbers = npt.NDArray[np.int64]

# An empty field is null, a quoted empty field is the empty string.
NULLS = {"null_values": [""], "strings_can_be_null": True, "quoted_strings_can_be_null": False}


def csv_columns(path: str) -> list[str]:
    """Names of the columns; raises ConfigurationError when the header cannot be read."""
    return _header(path, next(read_lines(path, quoted=True), Lines(1, b"\n")))[0]


def read_csv(path: str, columns: Columns, reject: Reject) -> Iterator[pa.RecordBatch]:
    """Read the named columns as strings, a batch for every block of lines.

    Rows with the wrong number of fields and lines that are not UTF-8 go to `reject`. Raises
    ConfigurationError for a missing column or a file that cannot be read.
    """
    blocks = read_lines(path, quoted=True)
    header, block = _header(path, next(blocks, Lines(1, b"\n")))
    require_columns(path, columns, header)
    parser = _Parser(len(header), tuple(header.index(name) for name in columns), reject)
    for lines in chain([block], blocks):
        arrays, numbers = parser.parse(lines)
        yield event_batch(path, columns, arrays, numbers)


def _header(path: str, block: Lines) -> tuple[list[str], Lines]:
    line, _, rest = block.block.partition(b"\n")
    try:
        header = next(csv.reader([line.decode().rstrip("\r")]), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigurationError(
            f"{path}: line 1 is not a CSV header: {error}: the first line must name the columns"
        ) from error
    if not header:
        raise ConfigurationError(f"{path}: line 1 is blank: the first line must name the columns")
    return header, Lines(block.first + 1, rest)


@dataclass(frozen=True)
class _Parser:
    fields: int
    """Number of fields that every row must have."""
    wanted: tuple[int, ...]
    reject: Reject

    def parse(self, lines: Lines) -> tuple[list[pa.Array], _Numbers]:
        """Wanted columns of the good rows of a block, and the number of the line of each."""
        open_end = len(lines) and _is_open(lines[len(lines) - 1])
        if is_utf8(lines.block) and not open_end:
            parsed = self._arrow(lines.block, len(lines))
            if parsed:
                arrays, bad = parsed
                for row, detail in bad:
                    self.reject(int(lines.numbers[row]), detail, lines[row])
                return arrays, np.delete(lines.numbers, [row for row, _ in bad])
        return self._search(list(self._records(lines)))

    def _arrow(self, data: bytes, rows: int) -> tuple[list[pa.Array], list[tuple[int, str]]] | None:
        """Parse at once; None unless there are exactly so many rows, good and bad."""
        bad: list[tuple[int, str]] = []

        def note(row: Any) -> str:
            bad.append((row.number - 1, self._miscounted(row.actual_columns)))
            return "skip"

        names = [str(index) for index in range(self.fields)]  # a header may repeat a name
        wanted = [names[index] for index in self.wanted]
        if not data.endswith(b"\n"):
            data += b"\n"  # Arrow takes an empty field for a quoted one at the very end
        try:
            table = pyarrow.csv.read_csv(
                pa.BufferReader(data),
                read_options=pyarrow.csv.ReadOptions(
                    use_threads=False, block_size=len(data) + 1, column_names=names
                ),
                parse_options=pyarrow.csv.ParseOptions(
                    newlines_in_values=True, invalid_row_handler=note
                ),
                convert_options=pyarrow.csv.ConvertOptions(
                    include_columns=wanted, column_types=dict.fromkeys(wanted, pa.string()), **NULLS
                ),
            )
        except pa.ArrowInvalid:
            return None
        if table.num_rows + len(bad) != rows:
            return None
        return [column.combine_chunks() for column in table.columns], bad

    def _records(self, lines: Lines) -> Iterator[tuple[int, bytes]]:
        """Good rows of a block as bytes, some over several lines; the bad ones are rejected."""
        texts = list(BytesIO(lines.block))
        end = 0
        while end < len(texts):
            base = start = end
            reader = csv.reader(_latin1(texts[base:]))
            try:
                for row in reader:
                    end = base + reader.line_num
                    raw = b"".join(texts[start:end])
                    if end == len(texts) and _is_open(raw):
                        raise csv.Error("a quoted field does not end")
                    if row and self._is_good(lines.first + start, raw, len(row)):
                        yield lines.first + start, raw
                    start = end
            except csv.Error as error:
                # The rows that an open quote swallowed are read again without its line.
                self.reject(lines.first + start, str(error), texts[start])
                end = start + 1

    def _is_good(self, number: int, raw: bytes, fields: int) -> bool:
        if not is_utf8(raw):
            self.reject(number, "not UTF-8", raw)
        elif fields != self.fields:
            self.reject(number, self._miscounted(fields), raw)
        else:
            return True
        return False

    def _search(self, records: list[tuple[int, bytes]]) -> tuple[list[pa.Array], _Numbers]:
        """Parse rows that were told apart; halve where Arrow tells them apart differently."""
        data = b"".join(raw if raw.endswith(b"\n") else raw + b"\n" for _, raw in records)
        parsed = self._arrow(data, len(records))
        if parsed and not parsed[1]:
            return parsed[0], np.array([number for number, _ in records], np.int64)
        if len(records) == 1:
            self.reject(records[0][0], "not one row of CSV", records[0][1])
            return self._search([])
        middle = len(records) // 2
        (left, above), (right, below) = map(self._search, (records[:middle], records[middle:]))
        arrays = [pa.concat_arrays(pair) for pair in zip(left, right, strict=True)]
        return arrays, np.concatenate([above, below])

    def _miscounted(self, fields: int) -> str:
        return f"{fields} fields where the header has {self.fields}"


def _latin1(lines: Iterable[bytes]) -> Iterator[str]:
    # Keeps every byte, so that bytes that are not UTF-8 do not stop the csv module.
    return (line.decode("latin-1") for line in lines)


def _is_open(row: bytes) -> bool:
    if row.count(b'"') % 2:
        try:
            list(csv.reader(_latin1(BytesIO(row)), strict=True))
        except csv.Error as error:
            return "unexpected end" in str(error)
    return False


def write_csv(handle: BinaryIO, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """Write batches of that schema under a header line.

    Lists and maps become JSON text in the cell, timestamps ISO 8601 in UTC with a Z.
    """
    handle.write((",".join(map(_quoted, schema.names)) + "\n").encode())
    options = pyarrow.csv.WriteOptions(include_header=False)
    for batch in batches:
        columns = dict(zip(schema.names, map(_cells, batch.columns), strict=True))
        pyarrow.csv.write_csv(pa.table(columns), handle, write_options=options)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if re.search(r'[",\r\n]', name) else name


def _cells(column: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(column.type):
        return pa.array(iso_times(column), pa.string())
    if pa.types.is_list(column.type) or pa.types.is_map(column.type):
        texts = (None if cell is None else json_text(cell) for cell in plain_values(column))
        return pa.array(texts, pa.string())
    return column
