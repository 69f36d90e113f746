"""What transforms give, as the rows with a schema that Beam YAML has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.typehints.row_type import RowTypeConstraint

Objects = Iterable[Mapping[str, Any]]

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
    """Applies a transform of events to rows, and makes rows of what it gives.

    Input: rows, as the transform takes them. Raises as that does.
    """

    transform: beam.PTransform
    outputs: Callable[[Any], Mapping[str, Output | beam.PCollection[beam.Row]]]
    """Names the outputs, given what the transform gives."""

    def __post_init__(self) -> None:
        """Let Beam know of it."""
        super().__init__()

    def expand(self, rows: beam.PCollection[Any]) -> dict[str, beam.PCollection[beam.Row]]:
        """Build the steps: rows -> what the transform gives -> rows."""
        given = self.outputs(rows | type(self.transform).__name__ >> self.transform)
        return {
            name: _as_rows(output, name) if isinstance(output, Output) else output
            for name, output in given.items()
        }


def _as_rows(output: Output, name: str) -> beam.PCollection[beam.Row]:
    return output.elements | f"RowsOf{name}" >> beam.FlatMap(
        _rows, output.objects
    ).with_output_types(_row_type(output.schema))


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
