"""Tables in memory, whosever they are: pandas', Polars', Arrow's, or a relation of DuckDB."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.pvalue import PBegin

from streamveil.io.cells import sound_batch
from streamveil.io.events import REJECTED_TAG, Events, outputs_of
from streamveil.io.files import Columns, distinct, require_columns
from streamveil.io.lines import Reject
from streamveil.mechanisms.core.records import ConfigurationError

_STREAM, _ARRAY = "__arrow_c_stream__", "__arrow_c_array__"
# Rows of a batch that is worth the steps it takes; fewer are joined first.
_WORTH_A_BATCH = 1 << 14
_MOST_ROWS = 1 << 20


def is_table(data: Any) -> bool:
    """Whether :func:`table_of` takes it."""
    if hasattr(data, _STREAM) or hasattr(data, _ARRAY):
        return True
    listed = isinstance(data, (list, tuple)) and len(data) > 0
    return listed and all(hasattr(each, _ARRAY) for each in data)


def table_of(data: Any, name: str) -> pa.Table:
    """A table as Arrow's; values are shared where they can be.

    Args:
        data: what gives itself by the Arrow PyCapsule interface, as tables of pandas, Polars and
            Arrow and relations of DuckDB do, or a list of record batches of one schema.
        name: of the argument, for errors.

    Raises:
        ConfigurationError: for what is no table, or has a column that Arrow cannot hold.
    """
    try:
        if hasattr(data, _STREAM):
            return pa.RecordBatchReader.from_stream(data).read_all()
        batches = [data] if hasattr(data, _ARRAY) else data
        return pa.Table.from_batches([pa.record_batch(batch) for batch in batches])
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        why = " ".join(str(error).split())
        raise ConfigurationError(
            f"{name} cannot be read as a table of Arrow: {why}: give a table, of the columns that "
            "are used"
        ) from error


@dataclass(eq=False)
class ReadTable(beam.PTransform):
    """Reads the named columns of a table in memory, as ReadEvents those of files.

    `__row__` is the index of the row, from 0. The table does not travel with the pipeline: only
    steps in this process can read it. Raises ConfigurationError at construction for a column that
    is missing, there twice, or named `__row__`.
    """

    table: pa.Table
    name: str
    """What errors and dead letters call it."""
    _: KW_ONLY
    columns: Columns
    """The columns to read, in the order wanted."""
    silent: bool = False
    """As of ReadEvents."""

    def __post_init__(self) -> None:
        """Check the columns."""
        super().__init__()
        self.columns = distinct(self.columns)
        require_columns(self.name, self.columns, self.table.column_names, what="the table")

    def expand(self, pbegin: PBegin) -> Events:
        """Build the step."""
        read = _ReadTableFn(self.table.select(self.columns), self.name, self.silent)
        return Events.of(
            pbegin
            | "Impulse" >> beam.Impulse()
            | "Read" >> beam.ParDo(read).with_outputs(REJECTED_TAG, main="batches")
        )


class _Held:
    """A table that is pickled by a number which this process knows."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self._number = next(_NUMBERS)
        _HELD[self._number] = self

    def __reduce__(self) -> Any:
        return _held, (self._number,)


def _held(number: int) -> _Held:
    if number not in _HELD:
        raise ConfigurationError("a table in memory is read in another process: write it to a file")
    return _HELD[number]


_NUMBERS = itertools.count()
_HELD: weakref.WeakValueDictionary[int, _Held] = weakref.WeakValueDictionary()


class _ReadTableFn(beam.DoFn):
    def __init__(self, table: pa.Table, name: str, silent: bool) -> None:
        self._held = _Held(table)
        self._name = name
        self._silent = silent

    def process(self, element: bytes) -> Iterator[Any]:
        read = partial(_batches, self._held.table, self._name)
        yield from outputs_of(self._name, read, self._silent)


def _batches(table: pa.Table, name: str, reject: Reject) -> Iterator[pa.RecordBatch]:
    if table.num_rows < _WORTH_A_BATCH * table.column(0).num_chunks:
        table = table.combine_chunks()
    start = 0
    for batch in table.to_batches(_MOST_ROWS):
        rows = np.arange(start, start + batch.num_rows)
        start += batch.num_rows
        yield sound_batch(name, table.column_names, batch.columns, rows, reject)
