"""Columns that are computed before reading, by one SELECT over the input files, with DuckDB.

What a record gives depends on that record alone. The files are read as any other input: text as
text, each record by itself, and what cannot be parsed goes to the dead letters. Then DuckDB, which
may open nothing itself, computes the columns of a batch. Before anything is read, what is not a
function of one record is refused: of the tree that DuckDB's own parser makes of the statement, only
what is known to be one passes. A record of which an expression fails is a dead letter, and no other
record is touched by that.
"""

from __future__ import annotations

import copy
import json
import os
import textwrap
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from streamveil.io.cells import NOT_UTF8, record_json, sound_batch
from streamveil.io.files import Columns
from streamveil.io.formats import AVRO, CSV, JSON_LINES, PARQUET, CsvDialect, format_said
from streamveil.io.lines import Reject
from streamveil.io.places import is_stream
from streamveil.mechanisms.core.records import ROW_COLUMN, ConfigurationError
from streamveil.mechanisms.core.wording import install_line, opt

_Node = dict[str, Any]

_BATCH, _SOURCE, _KEPT = "__batch__", "__source__", "__kept__"
_ONE_RECORD = (
    "each row must come from one record alone, so that no record changes how another is read"
)

_READERS = {"read_csv": CSV, "read_parquet": PARQUET, "read_json": JSON_LINES, "read_avro": AVRO}
_ALIASES = {"parquet_scan": "read_parquet", "read_ndjson": "read_json"}
_CSV_SETTINGS = ("delim", "header", "columns", "types", "all_varchar", "auto_detect")
_SETTINGS = {
    CSV: (*_CSV_SETTINGS, "hive_partitioning", "hive_types"),
    JSON_LINES: ("columns", "format", "auto_detect", "hive_partitioning", "hive_types"),
    PARQUET: ("hive_partitioning", "hive_types"),
    AVRO: (),
}
_OTHER_NAMES = {"sep": "delim", "delimiter": "delim", "dtypes": "types"}
_TYPES = ("columns", "types", "hive_types")
_GUESSING = "guesses from the data, so that one record changes how others are read"
_BAD_RECORDS = "is not needed, since bad records go to the dead letters"
_REFUSED_SETTINGS = {
    "sample_size": _GUESSING,
    "maximum_depth": _GUESSING,
    "map_inference_threshold": _GUESSING,
    "field_appearance_threshold": _GUESSING,
    "ignore_errors": _BAD_RECORDS,
    "store_rejects": _BAD_RECORDS,
    "union_by_name": "is not needed, since each file is read by its own columns",
    "compression": "is not needed, since a file shows by its beginning how it is compressed",
    "file_row_number": "depends on other records",
}

# What a SELECT has beside its columns, its condition and where it reads, by what it is called.
_CLAUSES = {
    "group_expressions": "GROUP BY",
    "group_sets": "GROUP BY",
    "having": "HAVING",
    "qualify": "QUALIFY",
    "sample": "SAMPLE",
}
_MODIFIERS = {
    "LIMIT_MODIFIER": "LIMIT or OFFSET",
    "LIMIT_PERCENT_MODIFIER": "LIMIT",
    "DISTINCT_MODIFIER": "DISTINCT",
    "ORDER_MODIFIER": "ORDER BY",
}
_SELECT_KEYS = {
    *("type", "modifiers", "cte_map", "select_list", "from_table", "where_clause"),
    *("aggregate_handling", *_CLAUSES),
}
_SOURCES = {
    "JOIN": "a join",
    "SUBQUERY": "a SELECT inside FROM",
    "PIVOT": "PIVOT",
    "EXPRESSION_LIST": "VALUES",
    "EMPTY": "a SELECT without FROM",
}
_EXPRESSIONS = {
    *("BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION"),
    *("CONSTANT", "FUNCTION", "LAMBDA", "OPERATOR", "TYPE"),
}
_REFUSED_EXPRESSIONS = {
    "WINDOW": "a window function",
    "SUBQUERY": "a SELECT inside an expression",
    "PARAMETER": "a parameter",
    "POSITIONAL_REFERENCE": "a column by its number",
    "STAR": "COLUMNS, or a star inside an expression,",
}
# Macros of DuckDB's own that take one record, beside those on lists.
_MACROS = {"date_add", "days_in_month", "fdiv", "if", "nullif", "split_part"}
_MOST_MICROSECONDS = (1 << 63) - 1
_DAY_SECONDS = 24 * 60 * 60
_IN_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_NOT_OF_RECORDS = {"json_serialize_sql", "json_serialize_plan", "json_deserialize_sql"}


@dataclass(frozen=True)
class Query:
    """One SELECT over files, checked; raises ConfigurationError as :func:`query_of`."""

    text: str
    path: str
    """A path, a folder or a glob."""
    format: str
    """Of the files; a folder may have others, which are refused."""
    types: Mapping[str, _Node]
    """By column that is said to have one its type, as DuckDB's parser has it."""
    keys: tuple[str, ...]
    """The columns that `columns` names."""
    dialect: CsvDialect
    """How CSV files are written."""
    _select: _Node = field(repr=False)
    """The SELECT of DuckDB's parser."""
    _alias: str

    @property
    def computes(self) -> str:
        """The statement without the place of its files and how it is spaced.

        It is the text that was written, since DuckDB's own may differ from version to version.
        """
        place = "'" + self.path.replace("'", "''") + "'"
        text = self.text.replace(place, "FILES").replace(_quoted(self.path), "FILES")
        return " ".join(text.split()).rstrip("; ")

    def columns(self, path: str, present: Sequence[str]) -> list[str]:
        """Names of the columns that it makes of a file with these. Raises ConfigurationError."""
        self.sources(path, present)
        names: list[str] = []
        for item in self._select["select_list"]:
            names += self._starred(item, present) if _is(item, "STAR") else [_name_of(item)]
        return names

    def sources(self, path: str, present: Sequence[str]) -> tuple[str, ...]:
        """Which columns of a file it reads. Raises ConfigurationError for one that is not there."""
        if ROW_COLUMN in present:
            raise ConfigurationError(
                f"{path}: a column named {ROW_COLUMN!r} cannot be read, the name is reserved: "
                "rename the column"
            )
        known = {name.lower(): name for name in present}
        if len(known) < len(present):
            lower = [name.lower() for name in present]
            twice = next(name for name in lower if lower.count(name) > 1)
            raise ConfigurationError(
                f"{path}: {opt.sql} does not distinguish upper and lower case in names, and "
                f"there is more than one column {twice!r}: rename one"
            )
        missing = [name for name in self.types if name.lower() not in known]
        read: list[str] = []
        earlier: set[str] = set()  # names of the list, which later columns may use
        for item in [*self._select["select_list"], self._select["where_clause"]]:
            for name in self._names_in(item):
                if name.lower() in known:
                    read.append(known[name.lower()])
                elif name.lower() not in earlier:
                    missing.append(name)
            if item and not _is(item, "STAR"):
                earlier.add(_name_of(item).lower())
        if missing:
            raise ConfigurationError(
                f"{path}: {opt.sql} reads a column {missing[0]!r}, and the columns of the file are "
                f"{', '.join(map(repr, present)) or 'none'}: name one of them"
            )
        if any(_is(item, "STAR") for item in self._select["select_list"]):
            return tuple(present)
        # There is a row for each record, also where none of its columns is used.
        return tuple(dict.fromkeys(read)) or tuple(present[:1])

    def check(self, path: str, schema: pa.Schema) -> None:
        """Let DuckDB look whether the types fit. Raises ConfigurationError."""
        none = schema.empty_table()
        for faults in (False, True):
            self._run(path, none, faults=faults)

    def compute(
        self, path: str, batch: pa.RecordBatch, columns: Columns, reject: Reject
    ) -> pa.RecordBatch:
        """The named columns of a batch, and where its records stood.

        A record of which an expression or the condition fails, or whose cell is not of the type
        that was said, goes to `reject`. Raises ConfigurationError.
        """
        numbers = batch.column(ROW_COLUMN).to_numpy()
        table = pa.table(batch.columns, names=batch.schema.names)

        def keep(table: pa.Table, faults: Mapping[int, str]) -> pa.Table:
            if not faults:
                return table
            at = np.ones(table.num_rows, bool)
            for row in sorted(faults):
                number = table.column(ROW_COLUMN)[row].as_py()
                own = int(np.searchsorted(numbers, number))
                reject(number, faults[row], _record(batch, own))
                at[row] = False
            return table.filter(pa.array(at))

        table = keep(table, _unsound(table))
        try:
            made = self._made(path, keep(table, self._faults(path, table)))
        except _FailedError:
            self.check(path, table.schema)  # or no record is to blame
            table = keep(table, self._failing(path, table))
            made = self._made(path, keep(table, self._faults(path, table)))
        arrays = [_one_array(made.column(name)) for name in columns]
        rows = _one_array(made.column(ROW_COLUMN)).to_numpy()
        return sound_batch(path, columns, arrays, rows, reject)

    def _made(self, path: str, table: pa.Table) -> pa.Table:
        return self._run(path, table, faults=False).combine_chunks()

    def _failing(self, path: str, table: pa.Table) -> dict[int, str]:
        """Rows at which DuckDB stops, such as for a time that it has not, and what it says.

        Each is found by itself, so that no other has to do with it.
        """
        faults: dict[int, str] = {}
        waiting = [np.arange(table.num_rows)]
        while waiting:
            rows = waiting.pop()
            some = table.take(pa.array(rows))
            try:
                good = np.ones(len(rows), bool)
                good[list(self._faults(path, some))] = False
                self._made(path, some.filter(pa.array(good)))
            except _FailedError as error:
                if len(rows) == 1:
                    faults[int(rows[0])] = str(error).removeprefix(f"{path}: ")
                else:
                    waiting += np.array_split(rows, 2)
        return faults

    def _faults(self, path: str, table: pa.Table) -> dict[int, str]:
        """What is wrong with each row of which something cannot be computed."""
        if not (self._fallible or self.types or self._select["where_clause"]):
            return {}
        names = _read(table)
        found = self._run(path, table, faults=True)
        kept = np.ones(table.num_rows, bool)
        faults: dict[int, str] = {}

        def note(bad: Any, what: str) -> None:
            for row in np.flatnonzero(bad).tolist():
                faults.setdefault(row, what)

        for name in self._typed(names):
            detail = f"{name!r} is not of the type that {opt.sql} says"
            note(_flags(found, f"__type_{name}__") == 1, detail)
        if self._select["where_clause"]:
            where = _flags(found, _KEPT)
            note(where < 0, f"the condition of {opt.sql} fails")
            for at in self._in_condition(names):  # it is computed of all records for that
                note(_flags(found, f"__fails_{at}__") == 1, self._failed(at))
            kept = where == 1
        for at in self._fallible:
            note(kept & (_flags(found, f"__fails_{at}__") == 1), self._failed(at))
        return faults

    def _failed(self, at: int) -> str:
        return f"{_name_of(self._fallible[at])!r} of {opt.sql} fails"

    def _in_condition(self, names: Sequence[str]) -> set[int]:
        """Which columns of the list the condition is computed of, by way of others too."""
        known = {name.lower() for name in names}
        by_name = {_name_of(item).lower(): at for at, item in self._fallible.items()}
        found: set[int] = set()
        waiting = [self._select["where_clause"]]
        while waiting:
            read = {parts[0].lower() for parts in _references(waiting.pop(), frozenset())}
            fresh = {by_name[name] for name in read - known if name in by_name} - found
            found |= fresh
            waiting += [self._fallible[at] for at in fresh]
        return found

    def _names_in(self, item: _Node | None) -> Iterator[str]:
        """Names that an expression uses: of columns of the file, or of the list."""
        for parts in _references(item, frozenset()):
            if len(parts) > 1 and parts[0].lower() == self._alias.lower():
                parts = parts[1:]
            yield parts[0]

    @cached_property
    def _fallible(self) -> dict[int, _Node]:
        """Columns that are more than a column of the file, by where they stand."""
        listed = enumerate(self._select["select_list"])
        plain = ("COLUMN_REF", "CONSTANT", "STAR")
        return {at: item for at, item in listed if item["class"] not in plain}

    def _starred(self, item: _Node, present: Sequence[str]) -> list[str]:
        left_out = {name.lower() for name in item["exclude_list"]}
        renamed = {each["key"]["column"].lower(): each["value"] for each in item["rename_list"]}
        names = [name for name in present if name.lower() not in left_out]
        return [renamed.get(name.lower(), name) for name in names]

    def _typed(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if self._type_of(name) is not None]

    def _type_of(self, name: str) -> _Node | None:
        """The type that is said of a column, if it has to become that."""
        found = next((t for n, t in self.types.items() if n.lower() == name.lower()), None)
        is_text = found is not None and found["type_name"].upper() in ("VARCHAR", "JSON")
        return None if is_text else found

    def statement(self, names: Sequence[str], *, faults: bool) -> str:
        """The text that is computed of a batch of these columns, or that finds its faults."""
        return self._finding_faults(names) if faults else self._computing(names)

    def _computing(self, names: Sequence[str]) -> str:
        """The SELECT over a batch, with where its records stood."""
        select = copy.deepcopy(self._select)
        if not any(_is(item, "STAR") for item in select["select_list"]):
            select["select_list"] += _select_of(f"SELECT {ROW_COLUMN}")["select_list"]
        return self._over(select, names, faults=False)

    def _finding_faults(self, names: Sequence[str]) -> str:
        """A SELECT that says of each record, one row for each, what of it cannot be computed.

        TRY makes null of what fails, and a row is never null by itself.
        """
        flags = [_quoted(f"__type_{name}__") for name in self._typed(names)]
        select = _select_of(f"SELECT {', '.join(flags or ['1'])}")
        listed = select["select_list"]
        for at, item in self._fallible.items():
            inner = item["arguments"][0]["expression"] if _is_unnest(item) else item
            value = _filled("SELECT TRY(x)", inner, _name_of(item))
            listed += [value, _filled("SELECT TRY(row(x)) IS NULL", inner, f"__fails_{at}__")]
        if self._select["where_clause"]:
            where = self._select["where_clause"]
            listed.append(_filled("SELECT TRY(coalesce(x, false))", where, _KEPT))
        return self._over(select, names, faults=True)

    def _over(self, select: _Node, names: Sequence[str], *, faults: bool) -> str:
        """The text of a SELECT over the columns of a batch, which have their types."""
        columns = [ROW_COLUMN]
        for name in names:
            own = _quoted(name)
            kind = self._type_of(name)
            if kind is None:
                columns.append(own)
                continue
            cast = f"TRY_CAST({_as_json(own, kind, self.format)} AS {_type_text(kind)})"
            columns.append(f"{cast} AS {own}")
            if faults:
                bad = f"{own} IS NOT NULL AND {cast} IS NULL"
                columns.append(f"{bad} AS {_quoted(f'__type_{name}__')}")
        source = f"(SELECT {', '.join(columns)} FROM {_BATCH}) AS {_quoted(self._alias)}"
        select["from_table"] = _select_of(f"SELECT 1 FROM {source}")["from_table"]
        return _text_of(select)

    def _run(self, path: str, table: pa.Table, *, faults: bool) -> pa.Table:
        sql = _statement(self.text, tuple(_read(table)), faults)
        if ROW_COLUMN not in table.column_names:  # of none, to look at the types
            table = table.append_column(ROW_COLUMN, pa.nulls(0, pa.int64()))
        connection = _connection()
        try:
            connection.register(_BATCH, table)
            made = connection.sql(sql).to_arrow_table()
        except _duckdb().Error as error:
            if not isinstance(error, _duckdb().DataError | _duckdb().ProgrammingError):
                _OPEN.process = None  # others may leave it unable to answer
            message = str(error).partition("\n")[0].rstrip(".")
            raise _FailedError(
                f"{path}: {opt.sql} cannot be computed: {message}{self._remedy(message)}"
            ) from error
        connection.unregister(_BATCH)
        return made

    def _remedy(self, message: str) -> str:
        if self.format not in (CSV, JSON_LINES) or "VARCHAR" not in message:
            return ""
        return (
            ": columns of text files are text until a type is said, as in "
            "read_csv('...', types = {'started_at': 'TIMESTAMP'}) or TRY_CAST(started_at AS "
            "TIMESTAMP)"
        )


@lru_cache(maxsize=64)
def _statement(text: str, names: tuple[str, ...], faults: bool) -> str:
    """As :meth:`Query.statement`, which takes as long as to compute a small batch."""
    return query_of(text).statement(names, faults=faults)


class _FailedError(ConfigurationError):
    """DuckDB failed at a statement that it could parse."""


def _read(table: pa.Table) -> list[str]:
    """Names of the columns of a file that a table has."""
    return [name for name in table.column_names if name != ROW_COLUMN]


def _record(batch: pa.RecordBatch, row: int) -> bytes:
    """A row as JSON, for the dead letters; without lists and objects that Python cannot have."""
    own = {name: batch.column(name) for name in batch.schema.names if name != ROW_COLUMN}
    try:
        return record_json(list(own), list(own.values()), row)
    except (ArithmeticError, ValueError):
        plain = {name: cells for name, cells in own.items() if not pa.types.is_nested(cells.type)}
        return record_json(list(plain), list(plain.values()), row)


def _unsound(table: pa.Table) -> dict[int, str]:
    """What is wrong with each row that holds a time which DuckDB does not have, or no text.

    DuckDB would stop at it, and to find such rows by that takes long where there are many. Text is
    looked at inside lists and objects: where it is a column of its own, the readers have looked.
    """
    faults: dict[int, str] = {}
    for name in _read(table):
        column = table.column(name)
        for row in np.flatnonzero(_beyond(column)).tolist():
            faults[row] = f"{name!r} is a time that DuckDB does not have"
        waiting = [np.arange(len(column))] if pa.types.is_nested(column.type) else []
        while waiting:
            rows = waiting.pop()
            try:
                column.take(pa.array(rows)).validate(full=True)
            except pa.ArrowInvalid:
                if len(rows) == 1:
                    faults[int(rows[0])] = f"{name!r} {NOT_UTF8}"
                else:
                    waiting += np.array_split(rows, 2)
    return faults


def _beyond(column: pa.ChunkedArray) -> Any:
    """Which rows hold a time outside what DuckDB can make of it."""
    kind = column.type
    counted = pa.types.is_timestamp(kind) or pa.types.is_duration(kind)
    if counted and kind.unit in ("s", "ms"):  # it counts microseconds
        most = _MOST_MICROSECONDS // _IN_SECOND["us"] * _IN_SECOND[kind.unit]
        least = -most
    elif pa.types.is_time(kind):
        least, most = 0, _DAY_SECONDS * _IN_SECOND[kind.unit]
    else:
        return np.zeros(len(column), bool)
    whole = column.cast(pa.int32() if pa.types.is_time32(kind) else pa.int64())
    values = whole.fill_null(0).to_numpy()
    return (values < least) | (values > most)


def query_in(dialect: CsvDialect | None) -> Query | None:
    """The query by which files are read, if there is one."""
    return None if dialect is None or dialect.sql is None else query_of(dialect.sql)


@lru_cache(maxsize=8)
def query_of(text: str) -> Query:
    """The query of a text, checked.

    Raises ConfigurationError, which says what and why, for what is not one SELECT whose rows each
    come of one record of the files, and where DuckDB is not installed.
    """
    select = _select_of(text, quoted=True)
    if select["type"] != "SELECT_NODE":
        what = "UNION" if select["type"] == "SET_OPERATION_NODE" else select["type"]
        raise _refused(f"{what} is more than one SELECT", "name all files by one glob")
    for modifier in select["modifiers"]:
        raise _refused_for(_MODIFIERS.get(modifier["type"], modifier["type"]))
    if select["cte_map"]["map"]:
        raise _refused(
            "WITH is more than one SELECT",
            "write one; a column may use those before it in the list by their names",
        )
    for key, what in _CLAUSES.items():
        if select[key]:
            raise _refused_for(what)
    if select["aggregate_handling"] != "STANDARD_HANDLING":
        raise _refused_for("GROUP BY")
    if unknown := set(select) - _SELECT_KEYS:
        raise _refused_for(sorted(unknown)[0])
    for item in select["select_list"]:
        _check_item(item)
    if select["where_clause"]:
        _check(select["where_clause"])
    names = [_name_of(i).lower() for i in select["select_list"] if not _is(i, "STAR")]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise _refused(f"two columns are named {twice!r}", "give each a name of its own (AS)")
    stars = sum(_is(item, "STAR") for item in select["select_list"])
    if stars > 1:
        raise _refused("the star stands there twice", "write it once")
    return _with_source(text, select)


def _with_source(text: str, select: _Node) -> Query:
    """The query, when what it reads is understood. Raises ConfigurationError."""
    source = select["from_table"]
    kind = source["type"]
    for key in ("sample", "at_clause", "column_name_alias"):
        if source.get(key):
            raise _refused_for("SAMPLE" if key == "sample" else "a list of names after FROM")
    if kind == "BASE_TABLE":
        path, settings = source["table_name"], dict[str, Any]()
        said = format_said(path)
        if source.get("schema_name") or said is None:
            known = ", ".join(f"{name}('...')" for name in _READERS)
            raise _refused(f"FROM {path} is no file whose name says its format", f"write {known}")
        reader = next(name for name, each in _READERS.items() if each == said)
    elif kind == "TABLE_FUNCTION":
        if source.get("with_ordinality", "WITHOUT_ORDINALITY") != "WITHOUT_ORDINALITY":
            raise _refused_for("WITH ORDINALITY")
        reader, path, settings = _call_of(source["function"])
    else:
        raise _refused_for(_SOURCES.get(kind, kind))
    form = _READERS[reader]
    if is_stream(path):
        raise _refused(f"{path} is a stream", f"name files, or give {opt.input}, without {opt.sql}")
    said = format_said(path)
    if said not in (None, form):
        right = next(name for name, each in _READERS.items() if each == said)
        raise _refused(
            f"{reader} does not read {path}, which is {said}", f"write {right}('{path}')"
        )
    types = _types_of(form, path, settings)
    columns = None
    if form == CSV and settings.get("header") is False:
        if "columns" not in settings:
            raise _refused(
                f"{path} is said to have no header", "name all columns in order, by columns = {...}"
            )
        columns = tuple(settings["columns"])
    delimiter = settings.get("delim", ",")
    dialect = CsvDialect(
        {"\\t": "\t"}.get(delimiter, delimiter), columns, any_name=form == CSV, sql=text
    )
    keys = tuple(settings.get("columns", ()))
    return Query(text, path, form, types, keys, dialect, select, source["alias"] or _SOURCE)


def _call_of(function: _Node) -> tuple[str, str, dict[str, Any]]:
    """A reading function, its path and its settings. Raises ConfigurationError."""
    name = function["function_name"].lower()
    reader = _ALIASES.get(name, name)
    if name in ("read_csv_auto", "read_json_auto", "read_ndjson_auto"):
        raise _refused(f"{name} {_GUESSING}", f"write {name.removesuffix('_auto')}")
    if reader not in _READERS:
        known = ", ".join(_READERS)
        raise _refused(f"FROM {name}(...) is not known here", f"read files by one of {known}")
    path, settings = None, {}
    for argument in function["arguments"]:
        key, value = argument["name"], argument["expression"]
        if value["class"] == "COMPARISON" and _is(value["left"], "COLUMN_REF"):
            key, value = value["left"]["column_names"][0], value["right"]
        if not key:
            if path is not None or not isinstance(_constant(value), str):
                raise _refused(
                    f"{name} takes one path here",
                    "name all files by one glob, such as 'trips/*.csv'",
                )
            path = _constant(value)
            continue
        key = _OTHER_NAMES.get(key.lower(), key.lower())
        if why := _REFUSED_SETTINGS.get(key):
            raise _refused(f"{key} of {name} {why}", "leave it out")
        if key not in _SETTINGS[_READERS[reader]]:
            known = ", ".join(_SETTINGS[_READERS[reader]]) or "none"
            raise _refused(f"{name} has no setting {key} here", f"there are: {known}")
        settings[key] = _setting(name, key, value)
    if path is None:
        raise _refused(f"{name} names no file", f"write {name}('trips/*.csv')")
    if settings.get("auto_detect"):
        raise _refused(f"auto_detect of {name} {_GUESSING}", "leave it out")
    if settings.get("auto_detect") is False and reader == "read_csv" and "header" not in settings:
        raise _refused("auto_detect is false", "say whether there is a header: header = true")
    if settings.get("hive_partitioning") is False:
        raise _refused(
            "hive_partitioning is false", "leave it out, and do not name the columns of the folders"
        )
    if settings.get("format", "auto") not in ("auto", "newline_delimited", "nd"):
        raise _refused(f"format = {settings['format']!r} is not known here", "leave it out")
    return reader, path, settings


def _setting(function: str, key: str, value: _Node) -> Any:
    if key in _TYPES:
        if _is(value, "FUNCTION") and value["function_name"] == "struct_pack":
            return {
                each["name"]: _type_of_text(each["name"], _constant(each["expression"]))
                for each in value["arguments"]
            }
        raise _refused(
            f"{key} of {function} is no list of types", f"write {key} = {{'a': 'BIGINT'}}"
        )
    constant = _constant(value)
    wanted = str if key in ("delim", "format") else bool
    if not isinstance(constant, wanted):
        what = "a text" if wanted is str else "true or false"
        raise _refused(f"{key} of {function} is not {what}", f"write {what}, as it is")
    return constant


def _types_of(form: str, path: str, settings: Mapping[str, Any]) -> dict[str, _Node]:
    """Types that are said and are not those that columns have anyway. Raises ConfigurationError."""
    if form == JSON_LINES and "columns" not in settings:
        raise _refused(
            f"read_json('{path}') without columns {_GUESSING}",
            f"write read_json('{path}', columns = {{'user_id': 'VARCHAR', 'trip': 'JSON'}})",
        )
    types = {name: kind for key in _TYPES for name, kind in settings.get(key, {}).items()}
    return types


def _check_item(item: _Node) -> None:
    """Refuse a column that is not a function of one record, or has no name."""
    if _is(item, "STAR"):
        if (
            item["columns"]
            or item["expr"]
            or item["replace_list"]
            or item["qualified_exclude_list"]
        ):
            raise _refused_for("COLUMNS or REPLACE")
        return
    if _is_unnest(item):
        if len(item["arguments"]) != 1:
            raise _refused("unnest has settings", "leave them out")
        _check(item["arguments"][0]["expression"])
    else:
        _check(item)
    if not item["alias"] and not _is(item, "COLUMN_REF"):
        raise _refused(f"{_shown(item)} has no name", f"write {_shown(item)} AS NAME")
    if _name_of(item).startswith("__"):
        raise _refused(f"the name {_name_of(item)} begins with __", "choose another one")


def _check(node: Any) -> None:
    """Refuse an expression that is not a function of one record."""
    if isinstance(node, list):
        for each in node:
            _check(each)
    if not isinstance(node, dict):
        return
    kind: str = node.get("class", "CONSTANT")  # parts of an expression have none
    if kind not in _EXPRESSIONS:
        raise _refused_for(_REFUSED_EXPRESSIONS.get(kind, kind))
    if kind == "FUNCTION":
        _check_function(node)
    if kind == "COLUMN_REF" and any(name.startswith("__") for name in node["column_names"]):
        raise _refused(f"the name {node['column_names'][-1]} begins with __", "choose another one")
    for value in node.values():
        _check(value)


def _check_function(node: _Node) -> None:
    name = node["function_name"].lower()
    if node["schema"] or node["catalog"]:
        raise _refused(f"{name} is named with its schema", "leave that out")
    if name == "unnest":
        raise _refused("unnest stands inside an expression", "write it as a column of its own")
    if node["filter"] or node["distinct"] or node["order_bys"]["orders"] or node["export_state"]:
        raise _refused_for(f"{name} with FILTER, DISTINCT or ORDER BY")
    kinds = _functions().get(name)
    if name in _MACROS or (name.startswith(("list_", "array_")) and kinds == {("macro", None)}):
        return
    if kinds is None:
        raise _refused(f"there is no function {name} in DuckDB", "write one that there is")
    if any(kind == "aggregate" for kind, _ in kinds) or name in ("list", "array_agg"):
        raise _refused(f"{name} is an aggregate function: {_ONE_RECORD}", "leave it out")
    of_today = name == "age" and len(node["arguments"]) != 2
    fit = {("scalar", "CONSISTENT")} <= kinds and ("scalar", "VOLATILE") not in kinds
    if of_today or not fit or name in _NOT_OF_RECORDS or name.startswith("__"):
        raise _refused(
            f"{name} is not a function of one record alone",
            "write one that gives the same each time",
        )


def _references(node: Any, own: frozenset[str]) -> Iterator[list[str]]:
    """Columns that an expression names, each as its parts; not parameters of its lambdas."""
    if isinstance(node, list):
        for each in node:
            yield from _references(each, own)
    if not isinstance(node, dict):
        return
    if node.get("class") == "LAMBDA" and node["syntax_type"] == "LAMBDA_KEYWORD":
        # Several parameters are a row of them.
        named = {parts[0].lower() for parts in _references(node["lhs"], frozenset())}
        yield from _references(node["expr"], own | named)
        return
    if node.get("class") == "COLUMN_REF" and node["column_names"][0].lower() not in own:
        yield node["column_names"]
    for value in node.values():
        yield from _references(value, own)


def _is(node: _Node, kind: str) -> bool:
    return node["class"] == kind


def _is_unnest(node: _Node) -> bool:
    return _is(node, "FUNCTION") and node["function_name"].lower() == "unnest"


def _name_of(item: _Node) -> str:
    """The name of a column of the list; of the condition, none."""
    return item["alias"] or (item["column_names"][-1] if _is(item, "COLUMN_REF") else "")


def _constant(node: _Node) -> Any:
    """The value of a text or a boolean; of anything else None."""
    literal = node.get("literal") if _is(node, "CONSTANT") else None
    if literal is None:
        return None
    if literal["kind"] == "BOOLEAN":
        return literal["text"].lower() == "true"
    return literal["text"] if literal["kind"] == "STRING" else None


def _type_of_text(column: str, text: Any) -> _Node:
    """A type that is said, as DuckDB's parser has it. Raises ConfigurationError."""
    why, listed = "", []
    try:
        listed = _select_of(f"SELECT TRY_CAST(x AS {text})")["select_list"]
    except ConfigurationError as error:
        message = str(error).removeprefix(f"{opt.sql}: ")
        why = f" ({message.partition(': write')[0]})"
    if len(listed) != 1 or not _is(listed[0], "CAST") or not _is(listed[0]["child"], "COLUMN_REF"):
        raise _refused(
            f"the type {text!r} of {column!r} is none{why}", "write one, such as 'TIMESTAMP'"
        )
    kind: _Node = listed[0]["type_expr"]
    _check(kind)
    return kind


def _type_text(kind: _Node) -> str:
    cast = _select_of("SELECT TRY_CAST(x AS INT)")
    cast["select_list"][0]["type_expr"] = kind
    return _text_of(cast).removeprefix("SELECT TRY_CAST(x AS ").removesuffix(")")


def _as_json(column: str, kind: _Node, form: str) -> str:
    """A column of text as what is cast: objects and lists of JSON are written as JSON."""
    nested = kind["type_name"].upper() in ("STRUCT", "LIST", "ARRAY", "MAP")
    return f"TRY_CAST({column} AS JSON)" if nested and form == JSON_LINES else column


def _filled(template: str, inner: _Node, alias: str) -> _Node:
    """The column of a template with an expression in place of its x."""
    item: _Node = _select_of(template)["select_list"][0]
    item["alias"] = alias
    inner = {**copy.deepcopy(inner), "alias": ""}

    def fill(node: Any) -> Any:
        if isinstance(node, list):
            return [fill(each) for each in node]
        if not isinstance(node, dict):
            return node
        if node.get("class") == "COLUMN_REF":
            return inner
        return {key: fill(value) for key, value in node.items()}

    filled: _Node = fill(item)
    return filled


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _flags(table: pa.Table, name: str) -> Any:
    """A column of booleans as 1, 0 and for null -1."""
    return table.column(name).cast(pa.int8()).fill_null(-1).to_numpy()


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return (
        column.chunk(0)
        if column.num_chunks == 1
        else pa.concat_arrays(column.chunks or [pa.array([], column.type)])
    )


def _shown(item: _Node) -> str:
    return _text_of({**_select_of("SELECT x"), "select_list": [item]}).removeprefix("SELECT ")


def _refused(what: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"{opt.sql}: {what}: {remedy}")


def _refused_for(what: str) -> ConfigurationError:
    """Of what mixes records."""
    return _refused(f"{what} cannot be taken, since {_ONE_RECORD}", "leave it out")


def _select_of(text: str, *, quoted: bool = False) -> _Node:
    """The one SELECT of a text, as DuckDB's parser has it.

    Raises ConfigurationError, which quotes the text with `quoted`.
    """
    answer = _connection().execute("SELECT json_serialize_sql(?::VARCHAR)", [text]).fetchall()
    parsed = json.loads(answer[0][0])
    if parsed["error"]:
        why = parsed["error_message"].partition("\n")[0]
        if "Only SELECT" in why:
            why = "this is no SELECT"
        raise _refused(
            f"{why} in {textwrap.shorten(text, 80)!r}" if quoted else why,
            "write one SELECT ... FROM read_csv(...)",
        )
    statements = parsed["statements"]
    if len(statements) != 1:
        raise _refused(f"there are {len(statements)} statements", "write one SELECT")
    if statements[0].get("named_param_map"):
        raise _refused("there is a parameter", "write its value")
    node: _Node = statements[0]["node"]
    return node


def _text_of(select: _Node) -> str:
    """The text of a SELECT."""
    tree = json.dumps({"error": False, "statements": [{"node": select, "named_param_map": []}]})
    answer = _connection().execute("SELECT json_deserialize_sql(?::JSON)", [tree]).fetchall()
    text: str = answer[0][0]
    return text


@cache
def _functions() -> dict[str, set[tuple[str, str | None]]]:
    """What kinds of functions there are by a name."""
    found: dict[str, set[tuple[str, str | None]]] = {}
    listed = "SELECT lower(function_name), function_type, stability FROM duckdb_functions()"
    for name, kind, stability in _connection().execute(listed).fetchall():
        found.setdefault(name, set()).add((kind, stability))
    return found


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise ConfigurationError(
            f"{opt.sql} needs DuckDB, which is not installed: {install_line('sql')}, with Python "
            f"3.11 or later"
        ) from error
    if int(duckdb.__version__.partition(".")[0]) < 2:  # whose parser makes other trees
        raise ConfigurationError(
            f"{opt.sql} needs DuckDB 2.0.1 or later, and {duckdb.__version__} is installed: "
            f"{install_line('sql')}"
        )
    return duckdb


_OPEN = threading.local()
_SANDBOX = {
    "enable_external_access": "false",
    "python_enable_replacements": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "threads": "1",
}


def _connection() -> Any:
    """DuckDB in memory, of this thread, which opens no file and no other place."""
    if getattr(_OPEN, "process", None) != os.getpid():
        connection = _duckdb().connect(config=_SANDBOX)
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET lock_configuration = true")
        _OPEN.connection, _OPEN.process = connection, os.getpid()
    return _OPEN.connection
