"""The CSV format (RFC 4180): columns come as strings, every row knows its line.

A quoted field ends at its closing quote, whatever is in it: lines of a note that look like events
are part of that note. A quote that nobody closes could swallow the rows after it. So a row may go
over several lines only where it is written strictly by RFC 4180; else the quote was not meant, its
line is rejected, and the next line begins a row. Where lines inside a field look like rows, a
warning says so.
"""

from __future__ import annotations

import csv
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv

from streamveil.io.files import Columns, event_batch, plain_values, require_columns
from streamveil.io.formats import CsvDialect
from streamveil.io.jsonlines import iso_times, json_text
from streamveil.io.lines import Lines, Reject, is_utf8, read_lines
from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.wording import opt

_Numbers = npt.NDArray[np.int64]

# An empty field is null, a quoted empty field is the empty string, which means the same in events.
NULLS = {"null_values": [""], "strings_can_be_null": True, "quoted_strings_can_be_null": False}
# Of a row over several lines; a longer one has a quote that was not meant.
MAX_BYTES_OVER_LINES = 1 << 24

_OPEN_QUOTE = "a quoted field does not end"
_CARRIAGE_RETURN = "a carriage return inside a row"
# A quoted field; no other quote follows the last one, which would make them an escaped quote.
_QUOTED = rb'"[^"]*(?:""[^"]*)*"(?!")'
_BARE_RETURN = re.compile(rb"\r(?![\r\n]|\Z)")
_LOGGER = logging.getLogger("streamveil")
_OTHER_DELIMITERS = (",", ";", "\t", "|")


def csv_columns(path: str, dialect: CsvDialect | None = None) -> list[str]:
    """Names of the columns; raises ConfigurationError when the header cannot be read."""
    return _header(path, dialect or CsvDialect(), next(read_lines(path), Lines(1, b"\n")))[0]


def csv_remedy(dialect: CsvDialect | None, present: Sequence[str]) -> str:
    """What else may help where a column is missing; without a `dialect` there are no options."""
    known = dialect or CsvDialect()
    if known.columns is not None:
        return f"; the names are those of {opt.columns}"
    other = _other_delimiter(known, present)
    if other is not None:
        shown = {"\t": "tab", ",": "comma"}.get(other, other)
        say = "write commas" if dialect is None else f"say {opt.delimiter}={shown!r}"
        return f"; it seems to be parted by {shown!r}: {say}"
    if dialect is None:
        return ""
    return f"; if line 1 is an event already, name the columns in their order: {opt.columns}=A,B,C"


def _other_delimiter(dialect: CsvDialect, present: Sequence[str]) -> str | None:
    """What else the one column of a header could be parted by."""
    if len(present) != 1:
        return None
    found = [d for d in _OTHER_DELIMITERS if d != dialect.delimiter and d in present[0]]
    return max(found, key=present[0].count, default=None)


def read_csv(
    path: str, columns: Columns, reject: Reject, dialect: CsvDialect | None = None
) -> Iterator[pa.RecordBatch]:
    """Read the named columns as strings, a batch for every block of lines.

    Rows with the wrong number of fields, lines that are not UTF-8 and those with a quote that does
    not end go to `reject`. Raises ConfigurationError for a missing column or a file that cannot
    be read.
    """
    known = dialect or CsvDialect()
    blocks = read_lines(path)
    header, rest = _header(path, known, next(blocks, Lines(1, b"\n")))
    try:
        require_columns(path, columns, header)
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}{csv_remedy(dialect, header)}") from None
    wanted = tuple(header.index(name) for name in columns)
    parser = _Parser(path, known.delimiter, len(header), wanted, reject)
    for block in blocks:
        arrays, numbers, rest = parser.parse(rest, whole=False)
        yield event_batch(path, columns, arrays, numbers)
        rest = Lines(rest.first, rest.block + block.block) if rest.block else block
    arrays, numbers, _ = parser.parse(rest, whole=True)
    yield event_batch(path, columns, arrays, numbers)


def _header(path: str, dialect: CsvDialect, block: Lines) -> tuple[list[str], Lines]:
    """Names of the columns, and the lines after them."""
    if dialect.columns is not None:
        return list(dialect.columns), block
    line, rest, number = _first_row(block.block)
    try:
        text = line.decode().rstrip("\r")
        header = next(csv.reader([text], delimiter=dialect.delimiter), [])
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"{path}: line 1 is not UTF-8: {error}: convert the file, as by iconv -f WINDOWS-1252 "
            "-t UTF-8"
        ) from error
    except csv.Error as error:
        raise ConfigurationError(
            f"{path}: line 1 is not a CSV header: {error}: the first line must name the columns"
        ) from error
    if not header:
        raise ConfigurationError(f"{path}: line 1 is blank: the first line must name the columns")
    return header, Lines(block.first + number, rest)


def _first_row(block: bytes) -> tuple[bytes, bytes, int]:
    """The first row without its end, what follows it, and over how many lines it goes."""
    end = block.find(b"\n")
    number = 1
    while end >= 0 and block.count(b'"', 0, end) % 2:
        end = block.find(b"\n", end + 1)
        number += 1
    if end < 0:  # it is not closed, or there is no other line
        line, _, rest = block.partition(b"\n")
        return line, rest, 1
    return block[:end], block[end + 1 :], number


class _Rows(NamedTuple):
    """Rows of a block, by the index of their first line: those of one line, and those of more."""

    alone: _Numbers
    long: _Numbers
    after: _Numbers
    """Index after the last line of each of the long ones."""
    rest: int
    """Index of the first line that may be the begin of a row which goes on."""


@dataclass(frozen=True)
class _Parser:
    path: str
    delimiter: str
    fields: int
    """Number of fields that every row must have."""
    wanted: tuple[int, ...]
    reject: Reject
    _warned: list[int] = field(default_factory=list)
    """The line for which it was logged that lines inside a field look like rows."""

    def parse(self, lines: Lines, *, whole: bool) -> tuple[list[pa.Array], _Numbers, Lines]:
        """Wanted columns of the good rows of a block, and the number of the line of each.

        Last come the lines at its end that may be the begin of a row, if it is not the `whole` rest
        of the file.
        """
        block = lines.block
        bare = b"\r" in block and _BARE_RETURN.search(block)
        if not bare and is_utf8(block):
            every = np.arange(len(lines))
            parsed = self._at_once(lines, _Rows(every, every[:0], every[:0], len(lines)))
            if parsed is None:
                rows = self._rows_of(lines, whole)
                parsed = rows and self._at_once(lines, rows)
            if parsed is not None:
                return parsed
        return self._tell_apart(lines, whole)

    def _rows_of(self, lines: Lines, whole: bool) -> _Rows | None:
        """Rows by their quotes alone: every second one closes. None where they cannot be so."""
        quotes = np.flatnonzero(np.frombuffer(lines.block, np.uint8) == ord('"'))
        open_after = np.searchsorted(quotes, lines.ends) % 2 == 1
        first = np.flatnonzero(~np.append(False, open_after)[: len(lines)])
        after = np.append(first[1:], len(lines))[: len(first)]
        rest = len(lines)
        if len(lines) and open_after[-1]:
            rest = int(first[-1])
            if whole or len(lines.block) - int(lines.starts[rest]) > MAX_BYTES_OVER_LINES:
                return None
            first, after = first[:-1], after[:-1]
        over_lines = after - first > 1
        return _Rows(first[~over_lines], first[over_lines], after[over_lines], rest)

    def _at_once(self, lines: Lines, rows: _Rows) -> tuple[list[pa.Array], _Numbers, Lines] | None:
        """As :meth:`parse`; None where not all rows that go over lines are strictly written."""
        starts, ends, numbers = lines.starts, lines.ends, lines.numbers
        block, rest = lines.block, Lines(lines.first, b"")
        if rows.rest < len(lines):
            rest = Lines(int(numbers[rows.rest]), block[starts[rows.rest] :])
            block = block[: starts[rows.rest]]
        spans = list(zip(starts[rows.long].tolist(), ends[rows.after - 1].tolist(), strict=True))
        long = [block[start:end] for start, end in spans]
        if not all(len(r) <= MAX_BYTES_OVER_LINES and self._row.match(r) for r in long):
            return None
        if len(rows.alone) and self._is_open(lines[int(rows.alone[-1])]):
            return None
        borders = [0, *(at for span in spans for at in span), len(block)]
        pieces = zip(borders[::2], borders[1::2], strict=True)
        alone = b"".join(block[start:end] for start, end in pieces) if long else block
        parsed = self._arrow(alone, len(rows.alone))
        more = self._arrow(b"".join(long), len(long)) if long else None
        if parsed is None or (long and more is None):
            return None
        arrays, bad = parsed
        for row, detail in bad:
            index = int(rows.alone[row])
            self.reject(int(numbers[index]), detail, lines[index])
        kept = numbers[np.delete(rows.alone, [row for row, _ in bad])]
        if more is None:
            return arrays, kept, rest
        for begin, after in zip(rows.long.tolist(), rows.after.tolist(), strict=True):
            self._tell_of_rows_inside(lines, begin, after)
        kept = np.concatenate([kept, numbers[rows.long]])
        order = np.argsort(kept)
        joined = [pa.concat_arrays(pair) for pair in zip(arrays, more[0], strict=True)]
        return [each.take(pa.array(order)) for each in joined], kept[order], rest

    def _tell_of_rows_inside(self, lines: Lines, first: int, after: int) -> None:
        """Say once for a file that lines inside a quoted field look like rows of their own."""
        if self._warned:
            return
        inside = sum(bool(self._row.match(lines[at])) for at in range(first + 1, after - 1))
        if inside:
            self._warned.append(int(lines.numbers[first]))
            _LOGGER.warning(
                "%s: line %d begins a quoted field that goes on to line %d; %d of the lines in it "
                "look like rows, and are read as part of that field: if the quote was not meant, "
                "correct the file",
                self.path,
                lines.numbers[first],
                lines.numbers[after - 1],
                inside,
            )

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
                    delimiter=self.delimiter, newlines_in_values=True, invalid_row_handler=note
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

    def _tell_apart(self, lines: Lines, whole: bool) -> tuple[list[pa.Array], _Numbers, Lines]:
        """As :meth:`parse`, of a block in which not every line is a row."""
        starts, ends = lines.starts, lines.ends.copy()
        keep = np.ones(len(lines), bool)
        rest = Lines(lines.first, b"")
        bad: list[tuple[int, str, bytes]] = []
        after = 0  # the row looked at last
        for index in self._odd(lines):
            if index < after:
                continue
            after, fault = index + 1, None
            if self._is_open(lines[index]):
                end = self._end(lines, index, whole)
                if end is None:
                    keep[index:] = False
                    rest = Lines(int(lines.numbers[index]), lines.block[starts[index] :])
                    break
                fault = _OPEN_QUOTE if end == index else None
                after = max(end, index + 1)
                if fault is None:
                    self._tell_of_rows_inside(lines, index, after)
            elif _BARE_RETURN.search(lines[index]) and not self._row.match(lines[index]):
                fault = _CARRIAGE_RETURN
            ends[index] = ends[after - 1]
            raw = lines.block[starts[index] : ends[index]]
            if fault is None and not is_utf8(raw):
                fault = "not UTF-8"
            if fault:
                bad.append((int(lines.numbers[index]), fault, raw))
            keep[index:after] = False
            keep[index] = fault is None
        spans = zip(starts[keep].tolist(), ends[keep].tolist(), strict=True)
        rows = [lines.block[start:end] for start, end in spans]
        arrays, numbers = self._search(rows, lines.numbers[keep], bad)
        for number, detail, raw in sorted(bad):
            self.reject(number, detail, raw)
        return arrays, numbers, rest

    def _odd(self, lines: Lines) -> list[int]:
        """Lines, by index, that may not be a row of their own, or a bad one."""
        block = lines.block
        data = np.frombuffer(block, np.uint8)
        some = [np.flatnonzero(data == ord('"'))]
        if not is_utf8(block):
            some.append(np.flatnonzero(data >= 0x80))
        some.append(np.array([match.start() for match in _BARE_RETURN.finditer(block)], np.int64))
        at = np.searchsorted(lines.starts, np.concatenate(some), side="right") - 1
        found: list[int] = np.unique(at).tolist()
        return found

    def _end(self, lines: Lines, index: int, whole: bool) -> int | None:
        """Index after the last line of the row that begins there with an open quote.

        The index itself if the quote does not end, None if that is not known yet.
        """
        start = int(lines.starts[index])
        quotes = lines[index].count(b'"')
        for after in range(index + 1, len(lines) + 1):
            # In what is strictly written, every second quote closes.
            if quotes % 2 == 0:
                row = lines.block[start : int(lines.ends[after - 1])]
                return after if self._row.match(row) else index
            if after == len(lines):
                break
            if int(lines.ends[after]) - start > MAX_BYTES_OVER_LINES:
                return index
            quotes += lines[after].count(b'"')
        too_long = len(lines.block) - start > MAX_BYTES_OVER_LINES
        return index if whole or too_long else None

    def _is_open(self, line: bytes) -> bool:
        return b'"' in line and bool(self._open.match(line))

    @cached_property
    def _open(self) -> re.Pattern[bytes]:
        """A line that ends inside a quoted field, also where quotes stand inside of others."""
        d = re.escape(self.delimiter.encode())
        closed = rb'(?:%b[^%b]*|[^"%b][^%b]*|)%b' % (_QUOTED, d, d, d, d)
        return re.compile(rb'(?:%b)*"[^"]*(?:""[^"]*)*\Z' % closed)

    @cached_property
    def _row(self) -> re.Pattern[bytes]:
        """A row, strictly by RFC 4180, of the right number of fields."""
        d = re.escape(self.delimiter.encode())
        field = rb'(?:%b|[^"%b\r\n]*)' % (_QUOTED, d)
        return re.compile(rb"%b(?:%b%b){%d}\r*\n?\Z" % (field, d, field, self.fields - 1))

    def _search(
        self, rows: list[bytes], numbers: _Numbers, bad: list[tuple[int, str, bytes]]
    ) -> tuple[list[pa.Array], _Numbers]:
        """Parse rows that were split; halve where Arrow splits them differently."""
        parsed = self._arrow(
            b"".join(r if r.endswith(b"\n") else r + b"\n" for r in rows), len(rows)
        )
        if parsed:
            arrays, miscounted = parsed
            bad += [(int(numbers[row]), detail, rows[row]) for row, detail in miscounted]
            return arrays, np.delete(numbers, [row for row, _ in miscounted])
        if len(rows) == 1:
            bad.append((int(numbers[0]), "not one row of CSV", rows[0]))
            return self._search([], numbers[:0], bad)
        middle = len(rows) // 2
        left, above = self._search(rows[:middle], numbers[:middle], bad)
        right, below = self._search(rows[middle:], numbers[middle:], bad)
        arrays = [pa.concat_arrays(pair) for pair in zip(left, right, strict=True)]
        return arrays, np.concatenate([above, below])

    def _miscounted(self, fields: int) -> str:
        return f"{number_of(fields, 'field')} where the header has {self.fields}"


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
