"""Releases as tables, a row for each slot or tidy, and the state that a run leaves."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from streamveil.io.jsonlines import json_rows
from streamveil.io.tables import UTC_MICROSECONDS, TableForm, read_table
from streamveil.io.tidy import LAYOUTS, TIDY, result_schema, tidy_batch
from streamveil.mechanisms.core.records import (
    COUNT,
    ConfigurationError,
    Release,
    parse_time,
)
from streamveil.mechanisms.core.wording import opt

BINS_METADATA = "streamveil.bins"
"""Key of the names of the bins in the metadata of a Parquet or Avro file."""


# What is unknown, NaN in a Release, is null in a table: tools take NaN for a number.
_NUMBERS_BY_NAME = pa.map_(pa.string(), pa.float64())


def _list_of(kind: pa.DataType, *, nullable: bool = False) -> pa.DataType:
    return pa.list_(pa.field("item", kind, nullable=nullable))


_RELEASE_FIELDS = (
    pa.field("slot", pa.int64(), nullable=False),
    pa.field("start", UTC_MICROSECONDS, nullable=False),
    pa.field("end", UTC_MICROSECONDS, nullable=False),
    pa.field("counts", _list_of(pa.int64()), nullable=False),
    pa.field("status", pa.string(), nullable=False),
    pa.field("published_slot", pa.int64()),
    pa.field("epsilon", pa.float64(), nullable=False),
    pa.field("stderr", _list_of(pa.float64(), nullable=True), nullable=False),
    pa.field("mechanism", pa.string(), nullable=False),
    pa.field("alarm", pa.bool_(), nullable=False),
    pa.field("diagnostics", _NUMBERS_BY_NAME, nullable=False),
)
_SHARES = pa.field("shares", _list_of(pa.float64()), nullable=False)
STATE_SCHEMA = pa.schema(
    [
        pa.field("next_slot", pa.int64(), nullable=False),
        pa.field("state", pa.binary(), nullable=False),
    ]
)


def release_schema(labels: Sequence[str] | None = None, *, shares: bool = False) -> pa.Schema:
    """Return the schema of a table of releases in the layout `rows` (a row for each slot).

    Args:
        labels: the names of the keys. The metadata of the schema stores these names as a JSON list.
        shares: whether the table has a column with each key's fraction of the total count.
    """
    return labelled((*_RELEASE_FIELDS, _SHARES) if shares else _RELEASE_FIELDS, labels)


def labelled(fields: Iterable[pa.Field], labels: Sequence[str] | None) -> pa.Schema:
    """A schema of these fields, with the labels of the bins in its metadata."""
    metadata: dict[Any, Any] | None = None
    if labels is not None:
        metadata = {BINS_METADATA: json.dumps(list(labels), ensure_ascii=False)}
    return pa.schema(fields, metadata=metadata)


def releases_to_batch(releases: Sequence[Release], schema: pa.Schema) -> pa.RecordBatch:
    """One row per release, in the order given; errors and diagnostics that are unknown are null."""
    columns: dict[str, Any] = {
        name: [getattr(release, name) for release in releases] for name in schema.names
    }
    columns["diagnostics"] = [
        [(name, value if math.isfinite(value) else None) for name, value in facts.items()]
        for facts in columns["diagnostics"]
    ]
    for name in ("counts", "stderr", "shares"):
        if name in columns:
            columns[name] = figure_lists(columns[name], schema.field(name))
    arrays = [
        columns[field.name]
        if isinstance(columns[field.name], pa.Array)
        else pa.array(columns[field.name], field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def release_row(release: Release) -> dict[str, Any]:
    """The JSON object of a release: the columns of WriteReleases, with times as ISO 8601 text."""
    schema = release_schema(shares=release.shares is not None)
    return next(json_rows(releases_to_batch([release], schema)))


def figure_lists(rows: Sequence[np.ndarray], field: pa.Field) -> pa.Array:
    """A column of lists of figures; those that are not finite are null if the field takes it."""
    offsets = np.cumsum([0, *map(len, rows)]).astype(np.int32)
    every = np.concatenate(rows) if rows else np.zeros(0)
    unknown = ~np.isfinite(every) if field.type.value_field.nullable else None
    values = pa.array(every, field.type.value_type, mask=unknown)
    return pa.ListArray.from_arrays(offsets, values, type=field.type)


def json_values(value: Any) -> list[Any]:
    """What a column of lists holds, of a table of any format; NaN where it is null."""
    values: list[Any] = json.loads(value) if isinstance(value, str) else value
    return [np.nan if v is None else v for v in values]


def release_form(
    labels: Sequence[str] | None = None,
    *,
    shares: bool = False,
    layout: str = TIDY,
    zone: str | None = None,
    query: str = COUNT,
    quoted: bool = False,
) -> TableForm:
    """How releases become rows: see :class:`streamveil.io.WriteReleases`.

    `quoted` is that of :func:`tidy_batch`. Raises ConfigurationError for a layout that cannot be.
    """
    rows = release_schema(labels, shares=shares), releases_to_batch
    tidy = result_schema(zone), partial(tidy_batch, zone=zone, query=query, quoted=quoted)
    return form_of_layout(labels, layout, rows, tidy)


def form_of_layout(
    labels: Sequence[str] | None,
    layout: str,
    rows: tuple[pa.Schema, Callable[..., pa.RecordBatch]],
    tidy: tuple[pa.Schema, Callable[..., pa.RecordBatch]],
) -> TableForm:
    """The form that a layout asks for: `rows`, one for each slot, or `tidy`.

    Each is the columns, and what makes a batch of them. Raises ConfigurationError for a layout
    that cannot be.
    """
    check_layout(layout, labels)
    if layout == TIDY:
        schema, convert = tidy
        convert = partial(convert, labels=labels or ())
    else:
        schema, convert = rows
        convert = partial(convert, schema=schema)
    return TableForm(schema, convert, ("slot",))


def check_layout(layout: str, labels: Sequence[str] | None) -> None:
    """Refuse one that there is not, or that needs labels. Raises ConfigurationError."""
    if layout not in LAYOUTS:
        raise ConfigurationError(
            f"layout {layout!r} ({opt.layout}) is unknown: choose {' or '.join(LAYOUTS)}"
        )
    if layout == TIDY and labels is None:
        raise ConfigurationError("a tidy table names the bin of each row: give the labels")


def read_releases(path: str) -> list[Release]:
    """Read the releases in a file that WriteReleases wrote, in the order of slots."""
    return releases_of(read_table(path))


def releases_of(table: pa.Table) -> list[Release]:
    """Releases of a table in the layout `rows`, in its order."""
    return [
        Release(
            slot=int(row["slot"]),
            start=parse_time(row["start"]),
            end=parse_time(row["end"]),
            counts=np.array(json_values(row["counts"]), dtype=np.int64),
            status=row["status"],
            published_slot=_optional(row["published_slot"]),
            epsilon=float(row["epsilon"]),
            stderr=np.array(json_values(row["stderr"]), dtype=np.float64),
            mechanism=row["mechanism"],
            alarm=bool(row["alarm"]),
            diagnostics=_numbers_by_name(row["diagnostics"]),
            shares=np.array(json_values(row["shares"]), np.float64) if "shares" in row else None,
        )
        for row in table.to_pylist()
    ]


def _numbers_by_name(value: Any) -> dict[str, float]:
    pairs = json.loads(value).items() if isinstance(value, str) else value
    return {name: np.nan if number is None else float(number) for name, number in pairs}


def _optional(value: Any) -> int | None:
    return None if value is None or value == "" else int(value)


def states_to_batch(states: Sequence[tuple[int, bytes]]) -> pa.RecordBatch:
    """A row of `STATE_SCHEMA` for each (next slot, state)."""
    columns = dict(zip(STATE_SCHEMA.names, zip(*states, strict=True), strict=True))
    return pa.RecordBatch.from_pydict(columns, schema=STATE_SCHEMA)


STATE_FORM = TableForm(STATE_SCHEMA, states_to_batch, ("next_slot",))
"""Of the state that a run leaves: see :func:`read_state`."""


def read_state(path: str) -> tuple[int, bytes]:
    """Read the state file of an earlier run, and return the next slot to release and the state."""
    rows = read_table(path).to_pylist()
    return rows[-1]["next_slot"], rows[-1]["state"]
