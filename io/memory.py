"""Tables in memory, whosever they are: pandas', Polars', Arrow's, or a relation of DuckDB."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from streamveil.engine.messages import Output
from streamveil.io.cells import sound_batch
from streamveil.io.events import outputs_of
from streamveil.io.faults import fault_in_reading, words_of
from streamveil.io.files import Columns, distinct, require_columns
from streamveil.io.lines import Reject
from streamveil.mechanisms.core.cell_text import cell_text, shown_cell, wrong_cell
from streamveil.mechanisms.core.records import (
    FAULT_COLUMN,
    ConfigurationError,
    MachineFault,
    QueryColumn,
)

# What Arrow writes around the message of a stream: its kind of error, and a traceback of Python.
_AROUND = re.compile(r"^(IOError|Invalid|Unknown error): |\. Detail: Python exception:.*$")
_INTERRUPTED = re.compile(r"Python exception: (?s:.*)\nKeyboardInterrupt\b")
_STREAM, _ARRAY = "__arrow_c_stream__", "__arrow_c_array__"
# Rows of a batch that is worth the steps it takes; fewer are joined first.
_WORTH_A_BATCH = 1 << 14
_MOST_ROWS = 1 << 20
# Types of the cells of most columns of text: a float among them may be NaN, which is a missing one.
_TEXT_OR_MISSING = {"str", "NoneType", "float", "NaTType", "NAType"}


def is_table(data: Any) -> bool:
    """Whether :func:`table_of` accepts data of this type."""
    if hasattr(data, _STREAM) or hasattr(data, _ARRAY):
        return True
    listed = isinstance(data, (list, tuple)) and len(data) > 0
    return listed and all(hasattr(each, _ARRAY) for each in data)


def rereadable(data: Any, name: str) -> Any:
    """The data, or a table of it if it may be a stream, which can be read only once.

    Raises as :func:`table_of`.
    """
    framed = _is_frame(data) or _is_frame(data, "polars")
    return table_of(data, name) if hasattr(data, _STREAM) and not framed else data


def table_of(data: Any, name: str) -> pa.Table:
    """Convert a table in memory to Arrow, without a copy if possible.

    If a pandas column has the type object, every cell of this column is read as text.

    Args:
        data: a pandas, Polars, Arrow or DuckDB table, or a list of record batches with the same
            schema.
        name: name of the argument, for error messages.

    Raises:
        ConfigurationError: if `data` is not a table, or if Arrow has no type for one of the
            columns.
        MachineFault: if `data` produces batches one after another, and fails before the last batch.
    """
    with _refusing(name):
        if not _is_frame(data):
            return _arrow_table(data, name)
        frame = _with_index(data)
        arrays = []
        for at in range(frame.shape[1]):
            faults: dict[int, str] = {}
            array = _column_of_frame(frame, at, str(frame.columns[at]), faults)
            arrays.append(pa.array(frame.iloc[:, at], from_pandas=True) if faults else array)
        return pa.Table.from_arrays(arrays, names=_names(frame))


def event_table(data: Any, name: str, columns: Columns) -> tuple[pa.Table, dict[int, str]]:
    """Convert a table of events in memory to an Arrow table.

    Args:
        data: the events, as a table in any form that :func:`table_of` accepts.
        name: name of the argument, for error messages.
        columns: names of the columns to read. A pandas table may have other columns of any type.

    Returns:
        The Arrow table, and a mapping that describes unreadable cells. The keys of the mapping are
        the numbers of the rows that contain unreadable cells.

    Raises:
        ConfigurationError: if the table cannot be converted (see :func:`table_of`), or if a column
            is missing or repeated.
        MachineFault: if :func:`table_of` would raise this error.
    """
    faults: dict[int, str] = {}
    if _is_frame(data, "polars"):
        with _refusing(name):
            return _table_of_polars(data, name, columns, faults), faults
    if not _is_frame(data):
        return table_of(data, name), {}
    with _refusing(name):
        frame = _with_index(data)
        names = _names(frame)
        require_columns(name, columns, names, what="the table")
        arrays = [_column_of_frame(frame, names.index(each), each, faults) for each in columns]
        return pa.Table.from_arrays(arrays, names=list(columns)), faults


@contextlib.contextmanager
def _refusing(name: str) -> Iterator[None]:
    try:
        yield
    except ConfigurationError:
        raise
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        why = " ".join(str(error).split())
        raise ConfigurationError(
            f"{name} cannot be read as a table of Arrow: {why}: give a table, of the columns that "
            "are used"
        ) from error


def _arrow_table(data: Any, name: str) -> pa.Table:
    if hasattr(data, _STREAM):
        return _read_to_its_end(data, name)
    batches = [data] if hasattr(data, _ARRAY) else data
    return pa.Table.from_batches([pa.record_batch(batch) for batch in batches])


def _read_to_its_end(data: Any, name: str) -> pa.Table:
    """All batches of a stream, such as the rows that a database still sends."""
    reader = None
    try:
        reader = pa.RecordBatchReader.from_stream(data)
        return reader.read_all()
    except (pa.ArrowException, OSError) as error:
        if _INTERRUPTED.search(str(error)):
            raise KeyboardInterrupt from error
        if reader is None and not isinstance(error, OSError):  # it is no table
            raise
        why = fault_in_reading(error)
        if why is None:
            why = f"{_AROUND.sub('', words_of(error))}: fix that, open it anew, and run it again"
        raise MachineFault(f"{name} could not be read to its end: {why}") from error


def _is_frame(data: Any, library: str = "pandas") -> bool:
    """Whether it is a table of that library, which is not imported here."""
    module = sys.modules.get(library)
    return module is not None and isinstance(data, module.DataFrame)


def _with_index(frame: Any) -> Any:
    """The table with its index as columns, where that has names of its own."""
    names = [name for name in frame.index.names if name is not None]
    free = names and not set(names) & set(frame.columns)
    return frame.reset_index() if free and len(names) == frame.index.nlevels else frame


def _names(frame: Any) -> list[str]:
    return list(map(str, frame.columns))


def _column_of_frame(
    frame: Any, at: int, name: str, faults: dict[int, str]
) -> pa.Array | pa.ChunkedArray:
    """A column of pandas; of a cell that cannot be read what :func:`_texts` makes."""
    column = frame.iloc[:, at]
    values = getattr(column.dtype, "categories", column)
    few = values is not column and set(map(type, values)) <= {str}
    if values.dtype != object or few:
        return pa.array(column, from_pandas=True)
    cells = column.to_numpy(dtype=object)
    if {type(cell).__name__ for cell in cells} <= _TEXT_OR_MISSING:
        with contextlib.suppress(ValueError, pa.ArrowException):
            return pa.array(cells, pa.string(), from_pandas=True)
    return _texts(name, cells, faults)


def _table_of_polars(
    data: Any, argument: str, columns: Columns, faults: dict[int, str]
) -> pa.Table:
    """A table of Polars, whose columns of objects Arrow would have as addresses."""
    objects = [name for name, kind in data.schema.items() if str(kind) == "Object"]
    table = _arrow_table(data.drop(objects), argument)
    for name in columns:
        if name in objects:
            texts = _texts(name, data.get_column(name).to_list(), faults)
            table = table.append_column(name, texts)
    return table


def _texts(name: str, cells: Iterable[Any], faults: dict[int, str]) -> pa.Array:
    """Each cell as text; of one that cannot be read a null, and in `faults` why.

    Of a :class:`QueryColumn` such a cell becomes text that shows it.
    """
    texts: list[str | None] = []
    for row, cell in enumerate(cells):
        try:
            texts.append(cell_text(cell))
        except Exception:  # whatever a cell is, it stops no other
            if isinstance(name, QueryColumn):
                texts.append(shown_cell(cell))
                continue
            texts.append(None)
            faults.setdefault(row, wrong_cell(name, cell))
    return pa.array(texts, pa.string())


def rows_of_events(
    table: pa.Table, name: str, columns: Columns, faults: Mapping[int, str] | None = None
) -> pa.Table:
    """What is read of a table of events, with what is wrong with a row as `FAULT_COLUMN`.

    Args:
        table: see :func:`event_table`, which gives `faults` as well.
        name: what errors call it.
        columns: the columns to read, in the order wanted.
        faults: what is wrong with each row of which a cell could not be read.

    Raises:
        ConfigurationError: for a column that is missing, there twice, or named `__row__`.
    """
    names = distinct(columns)
    require_columns(name, names, table.column_names, what="the table")
    chosen = table.select(names)
    if faults:
        reasons = pa.array(map(faults.get, range(table.num_rows)), pa.string())
        chosen = chosen.append_column(FAULT_COLUMN, reasons)
    return chosen


def table_outputs(rows: pa.Table, name: str, silent: bool = False) -> Iterator[Output]:
    """Batches and dead letters of :func:`rows_of_events`, as :func:`outputs_of` gives them."""
    return outputs_of(name, partial(_batches, rows, name), silent)


def _batches(table: pa.Table, name: str, reject: Reject) -> Iterator[pa.RecordBatch]:
    if table.num_rows < _WORTH_A_BATCH * table.column(0).num_chunks:
        table = table.combine_chunks()
    start = 0
    for batch in table.to_batches(_MOST_ROWS):
        rows = np.arange(start, start + batch.num_rows)
        start += batch.num_rows
        yield sound_batch(name, table.column_names, batch.columns, rows, reject)
