"""Transforms of record batches, as transforms of the rows with a schema that Beam YAML has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.typehints.row_type import RowTypeConstraint
from apache_beam.typehints.schemas import named_fields_from_element_type
from apache_beam.utils.timestamp import Timestamp

from streamveil.io.files import event_batch
from streamveil.io.messages import gather
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.transforms.checks import refuse_windows

Objects = Iterable[Mapping[str, Any]]

_ARROW = {
    str: pa.string(),
    bytes: pa.binary(),
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    np.int64: pa.int64(),
    np.float64: pa.float64(),
    Timestamp: pa.timestamp("us", "UTC"),
}
_PYTHON = {pa.int64(): int, pa.float64(): float, pa.bool_(): bool, pa.string(): str}


@dataclass(frozen=True)
class Output:
    """One output of a transform, and the rows that are made of it."""

    elements: beam.PCollection[Any]
    objects: Callable[[Any], Objects]
    """JSON objects, one for each row of an element; times are text."""
    schema: pa.Schema
    """Of the rows."""


@dataclass(eq=False)
class OnRows(beam.PTransform):
    """Gathers rows to record batches, applies a transform, and makes rows of what it gives.

    Input: rows (beam.Row or a NamedTuple) with at least the fields in `columns`. Fields of another
    type than those of `_ARROW` are text, whatever a row holds: no row has an effect on another.

    Raises:
        ConfigurationError: when applied to rows without one of the fields, or to what is no rows.
        ValueError: when applied to a windowed or triggered input, which cannot be accounted for.
    """

    transform: beam.PTransform
    columns: Sequence[str]
    outputs: Callable[[Any], Mapping[str, Output]]
    """Names the outputs, given what the transform gives."""

    def __post_init__(self) -> None:
        """Let Beam know of it."""
        super().__init__()

    def expand(self, rows: beam.PCollection[Any]) -> dict[str, beam.PCollection[beam.Row]]:
        """Build the steps: rows -> record batches -> what the transform gives -> rows."""
        refuse_windows(rows)
        kinds = _kinds_of(rows.element_type, self.columns)
        batches = (
            rows
            | "Gather" >> gather().with_output_types(list[Any])
            | "ToBatch" >> beam.Map(_to_batch, kinds).with_output_types(pa.RecordBatch)
        )
        given = self.outputs(batches | type(self.transform).__name__ >> self.transform)
        return {
            name: output.elements
            | f"RowsOf{name}"
            >> beam.FlatMap(_rows, output.objects).with_output_types(_row_type(output.schema))
            for name, output in given.items()
        }


def _kinds_of(row_type: Any, columns: Sequence[str]) -> dict[str, pa.DataType | None]:
    """The Arrow type of each column; None for one that is taken as text."""
    try:
        fields = dict(named_fields_from_element_type(row_type))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"the input has elements of {row_type}, which are no rows: give the source a schema, "
            "or make rows with MapToFields"
        ) from error
    for name in columns:
        if name not in fields:
            raise ConfigurationError(
                f"the rows have no field {name!r}; there are: {', '.join(fields)}"
            )
    return {name: _ARROW.get(_not_null(fields[name])) for name in columns}


def _not_null(kind: Any) -> Any:
    some = [each for each in get_args(kind) if each is not type(None)]
    return some[0] if len(some) == 1 else kind


def _to_batch(rows: Sequence[Any], kinds: Mapping[str, pa.DataType | None]) -> pa.RecordBatch:
    arrays = [_array([getattr(row, name) for row in rows], kind) for name, kind in kinds.items()]
    return event_batch("rows", list(kinds), arrays)


def _array(values: list[Any], kind: pa.DataType | None) -> pa.Array:
    if kind is None:
        return pa.array(map(_text, values), pa.string(), from_pandas=True)
    if pa.types.is_timestamp(kind):
        values = [None if value is None else value.micros for value in values]
    return pa.array(values, kind, from_pandas=True)


def _text(value: Any) -> str | None:
    """Numbers that are whole have no point, so that 7 and 7.0 are the same."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return None if value is None or value != value else str(value)


def _rows(element: Any, objects: Callable[[Any], Objects]) -> Iterator[beam.Row]:
    for each in objects(element):
        yield beam.Row(**each)


def _row_type(schema: pa.Schema) -> RowTypeConstraint:
    return RowTypeConstraint.from_fields(
        [(each.name, _python_type(each.type, each.nullable)) for each in schema]
    )


def _python_type(kind: pa.DataType, nullable: bool = False) -> Any:
    """The type of a field of a row, for a column as JSON shows it."""
    if nullable:
        return _python_type(kind) | None
    if pa.types.is_list(kind):
        item = kind.value_field
        return Sequence[_python_type(item.type, item.nullable)]  # type: ignore[misc]
    if pa.types.is_map(kind):
        item = kind.item_field
        return Mapping[str, _python_type(item.type, item.nullable)]  # type: ignore[misc]
    return str if pa.types.is_timestamp(kind) else _PYTHON[kind]
