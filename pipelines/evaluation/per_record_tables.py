"""The table of a comparison under per-record privacy, as CSV or Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pyarrow as pa

from streamveil.pipelines.evaluation.per_record import MEASURES, PerRecordResult
from streamveil.pipelines.evaluation.tables import aligned, figure

_PLAIN: Mapping[str, pa.DataType] = {
    "data": pa.string(),
    "statistic": pa.string(),
    "mechanism": pa.string(),
    "records": pa.int64(),
    "seeds": pa.int64(),
    "runs": pa.int64(),
}
SCHEMA = pa.schema(
    [
        *_PLAIN.items(),
        *((name + end, pa.float64()) for name, *_ in MEASURES for end in ("", "_stderr")),
    ]
)
"""Columns of the CSV: what was run, and each measure with its standard error."""


def batch_of(results: Sequence[PerRecordResult]) -> pa.RecordBatch:
    """All results with all figures, of `SCHEMA`; what is not known is null."""
    rows = []
    for one in results:
        figures = {**one.means, **{f"{name}_stderr": v for name, v in one.errors.items()}}
        known = {name: None if math.isnan(value) else value for name, value in figures.items()}
        rows.append({**{name: getattr(one, name) for name in _PLAIN}, **known})
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def markdown(results: Sequence[PerRecordResult]) -> str:
    """A table for people, aligned, with the figures rounded to what their noise allows."""
    texts = ("data", "statistic", "mechanism")
    titles = [*texts, *(measure.title for measure in MEASURES)]
    return aligned(titles, [[*_names(one), *figures_of(one)] for one in results], texts)


def _names(one: PerRecordResult) -> tuple[str, str, str]:
    return one.data, one.statistic, one.mechanism


def figures_of(one: PerRecordResult) -> list[str]:
    """Each of `MEASURES` with its standard error, as text."""
    return [figure(one.means[measure.name], one.errors[measure.name]) for measure in MEASURES]
