"""Rows to record batches: what other transforms of Beam give, read column by column.

Rows with a schema (beam.Row, NamedTuples, dataclasses) have columns of the types that it declares.
Dictionaries, and fields that are declared as anything, are read as JSON objects are: text is as it
is, a number is its decimal text, a boolean `true` or `false`, a time is ISO 8601. So how a record
is read depends on that record and on what is declared, never on its neighbours. A cell that cannot
be read is null, and the batch says of its row what is wrong.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from types import UnionType
from typing import Any, Protocol, Union, get_args, get_origin

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.transforms.window import GlobalWindow
from apache_beam.typehints import typehints
from apache_beam.typehints.native_type_compatibility import convert_to_beam_type
from apache_beam.typehints.schemas import named_fields_from_element_type
from apache_beam.utils.timestamp import MAX_TIMESTAMP, Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from streamveil.mechanisms.core.cell_text import WANTED, cell_text, shown_cell, wrong_cell
from streamveil.mechanisms.core.records import FAULT_COLUMN, ConfigurationError, QueryColumn
from streamveil.transforms.checks import refuse_windows

# More would only cost memory: from here on the fixed costs of a batch vanish.
BATCH_ROWS = 10_000
BATCH_CHARACTERS = 1 << 24


class Mapper(Protocol):
    """What reads record batches."""

    def check(self, batch: pa.RecordBatch) -> None:
        """Raise ConfigurationError for a missing column or one of a type that cannot be read."""


Columns = Mapping[str, pa.DataType | None]
"""The type of each column; None for one that is read cell by cell, as text."""

_INSTANT = pa.timestamp("us", "UTC")
_ARROW = {
    str: pa.string(),
    bytes: pa.binary(),
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    Timestamp: _INSTANT,
}
_AS_TEXT = (Any, object, Decimal, dt.datetime, dt.date)
_PYTHON = {kind: python for python, kind in _ARROW.items()}


def as_batches(
    elements: beam.PCollection[Any],
    names: Sequence[str],
    make_mapper: Callable[[], Mapper],
    *,
    what: str = "events",
    optional: Sequence[str] | None = None,
    types: Mapping[str, pa.DataType] | None = None,
) -> beam.PCollection[pa.RecordBatch]:
    """Record batches of the named columns; a PCollection of batches stays as it is.

    Args:
        elements: record batches, rows with a schema, or dictionaries. Where nothing is declared,
            each may be any of these. In the global window.
        names: the columns.
        make_mapper: gives what reads the batches, and knows which types of columns can serve.
        what: what the elements are called in errors.
        optional: columns that a row may lack, which are then null. A dictionary may lack any where
            this is None.
        types: what columns that are not declared are read as, rather than as text.

    Raises:
        ConfigurationError: for elements of another type; rows without one of the columns; a field
            of a type that cannot serve.
        ValueError: for a windowed or triggered PCollection.
    """
    refuse_windows(elements, what)
    if elements.element_type is pa.RecordBatch:
        return elements
    columns = {
        name: (types or {}).get(name) if kind is None else kind
        for name, kind in _columns(elements.element_type, names, what, optional or ()).items()
    }
    needed = () if optional is None else tuple(name for name in names if name not in optional)
    make_mapper().check(_batch(columns, []))
    batches = elements | f"Batch{what.capitalize()}" >> beam.ParDo(_BatchRowsFn(columns, needed))
    batches.element_type = pa.RecordBatch
    return batches


def _columns(
    element_type: Any, names: Sequence[str], what: str, optional: Sequence[str]
) -> dict[str, pa.DataType | None]:
    """What is known of each column by the declared type of the elements."""
    if _is_undeclared(convert_to_beam_type(element_type)):
        return dict.fromkeys(names)
    try:
        fields = dict(named_fields_from_element_type(element_type))
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"the {what} are elements of type {_type_name(element_type)}: give rows (beam.Row or a "
            "NamedTuple), dictionaries or Arrow record batches, such as by beam.Map, and declare "
            "their type with with_output_types"
        ) from None
    for name in names:
        if name not in fields and name not in optional:
            raise ConfigurationError(
                f"the {what} have no field {name!r}; there are: {', '.join(fields)}: name one of "
                "them, or rename it"
            )
    return {name: _arrow_type(name, fields[name], what) for name in names if name in fields}


def _is_undeclared(kind: Any) -> bool:
    """Whether elements say of themselves alone what they hold."""
    if isinstance(kind, typehints.UnionConstraint):
        return all(map(_is_undeclared, kind.union_types))
    open_kinds = (
        typehints.AnyTypeConstraint,
        typehints.DictConstraint,
        typehints.MappingTypeConstraint,
        typehints.TypeVariable,
    )
    return kind in (object, pa.RecordBatch) or isinstance(kind, open_kinds)


def _arrow_type(name: str, declared: Any, what: str) -> pa.DataType | None:
    """Type of the column that holds a field; None for one that is read cell by cell."""
    kind = declared
    if get_origin(declared) in (Union, UnionType):
        some = [each for each in get_args(declared) if each is not type(None)]
        kind = some[0] if len(some) == 1 else Any
    if kind in _AS_TEXT:
        return None
    if kind in _ARROW:
        return _ARROW[kind]
    if isinstance(kind, type) and issubclass(kind, np.number):
        return pa.from_numpy_dtype(kind)
    raise ConfigurationError(
        f"the field {name!r} of the {what} is of type {_type_name(declared)}: make it text, a "
        "number or a time, such as by beam.Map or MapToFields"
    )


def _type_name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)


class _BatchRowsFn(beam.DoFn):
    """Rows to record batches, each at the event time of its earliest row.

    A batch ends with the runner's bundle, if it is not full before: nothing waits for rows that may
    not come, and no state is kept. The rows of a bundle hold the watermark, and the batch that
    takes their place holds it at the earliest of them, so no row is made late by its neighbours.
    Where nothing is declared, record batches pass through as they are.
    """

    _rows: list[tuple[Any, ...]]
    _characters: int
    _earliest: Any

    def __init__(self, columns: Columns, needed: Collection[str] = ()) -> None:
        self._columns = columns
        self._needed = needed

    def start_bundle(self) -> None:
        self._clear()

    def process(self, element: Any, time: Any = beam.DoFn.TimestampParam) -> Iterator[Any]:
        if isinstance(element, pa.RecordBatch):
            yield element
            return
        cells = _cells(element, self._columns, self._needed)
        self._rows.append(cells)
        self._characters += sum(len(cell) for cell in cells if isinstance(cell, (str, bytes)))
        self._earliest = min(self._earliest, time)
        if len(self._rows) >= BATCH_ROWS or self._characters >= BATCH_CHARACTERS:
            yield from self.finish_bundle()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        if self._rows:
            batch = _batch(self._columns, self._rows)
            yield WindowedValue(batch, self._earliest, (GlobalWindow(),))
        self._clear()

    def _clear(self) -> None:
        self._rows = []
        self._characters = 0
        self._earliest = MAX_TIMESTAMP


class _Missing(str):
    """In place of a cell that is not there: why."""


def _cells(element: Any, columns: Columns, needed: Collection[str] = ()) -> tuple[Any, ...]:
    if isinstance(element, Mapping):
        return tuple(
            element.get(name, _Missing("a key that is needed") if name in needed else None)
            for name in columns
        )
    try:
        return tuple(getattr(element, name) for name in columns)
    except AttributeError:
        why = f"the element is no row with such a field, but of type {type(element).__name__}"
        return (_Missing(why),) * len(columns)


def _batch(columns: Columns, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """A batch of the columns and, if any row could not be read, of what is wrong with each."""
    faults: dict[int, str] = {}
    cells = zip(*rows, strict=True) if rows else [()] * len(columns)
    arrays = {
        name: _column(name, values, kind, faults)
        for (name, kind), values in zip(columns.items(), cells, strict=True)
    }
    if faults:
        arrays[FAULT_COLUMN] = pa.array(map(faults.get, range(len(rows))), pa.string())
    return pa.RecordBatch.from_pydict(arrays)


def _column(
    name: str, values: Sequence[Any], kind: pa.DataType | None, faults: dict[int, str]
) -> pa.Array:
    """Cells as an array; of a cell that cannot be read a null, and in `faults` why."""
    held = pa.string() if kind is None else kind
    if set(map(type, values)) <= _taken(held):
        try:
            return pa.array(values, held)
        except (ValueError, OverflowError, pa.ArrowException):
            pass  # of one of the cells: it is found below
    cells = []
    for row, value in enumerate(values):
        try:
            cells.append(_text(value) if kind is None else _typed(value, kind))
        except Exception:  # whatever a cell is, it stops no other
            if kind is None and isinstance(name, QueryColumn) and not isinstance(value, _Missing):
                cells.append(shown_cell(value))
                continue
            cells.append(None)
            faults.setdefault(row, _fault(name, value, kind))
    return pa.array(cells, held)


def _taken(kind: pa.DataType) -> set[type]:
    """Types of cells that a column holds as they are."""
    if pa.types.is_integer(kind):
        return {int, type(None)}
    if pa.types.is_floating(kind):
        return {float, type(None)}
    return set() if kind == _INSTANT else {_PYTHON.get(kind, str), type(None)}


def _text(value: Any) -> str | None:
    """A cell as JSON objects have it. Raises ValueError for what is none, TypeError for a type."""
    if isinstance(value, _Missing) or (isinstance(value, (float, np.floating)) and value != value):
        raise TypeError
    return cell_text(value)


def _typed(value: Any, kind: pa.DataType) -> Any:
    """A cell of a declared type, None where none is given. Raises as Arrow does, and TypeError."""
    if isinstance(value, _Missing):
        raise TypeError
    if isinstance(value, Timestamp) and kind == _INSTANT:
        return value.micros
    if value is None or (value != value and not pa.types.is_floating(kind)):  # as pandas has it
        return None
    clock_time = isinstance(value, dt.datetime) and value.tzinfo is None
    boolean = isinstance(value, (bool, np.bool_))
    if boolean != pa.types.is_boolean(kind) or (
        pa.types.is_temporal(kind) and (clock_time or not isinstance(value, dt.date))
    ):
        raise TypeError
    (cell,) = pa.array([value], kind)
    return cell.as_py()


def _fault(name: str, value: Any, kind: pa.DataType | None) -> str:
    """What is wrong with a cell."""
    if isinstance(value, _Missing):
        return f"{name} is missing: {value}"
    return wrong_cell(name, value, WANTED if kind is None else f"{kind} as is declared")
