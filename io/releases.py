"""Files of results: releases, what they cost, what was rejected, and the state to go on from."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from streamveil.io.formats import CSV, output_format_of
from streamveil.io.jsonlines import json_rows, json_text
from streamveil.io.tables import UTC_MICROSECONDS, TableForm, read_table
from streamveil.io.tidy import LAYOUTS, ROWS, TIDY, TIDY_SCHEMA, tidy_batch
from streamveil.mechanisms.core.records import (
    ConfigurationError,
    DynamicLedgerEntry,
    LedgerEntry,
    Lifetime,
    Release,
    Requirement,
)

BINS_METADATA = "streamveil.bins"


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
LEDGER_SCHEMA = pa.schema(
    [
        pa.field("slot", pa.int64(), nullable=False),
        pa.field("window", pa.int64()),
        pa.field("epsilon", pa.float64(), nullable=False),
        pa.field("users", pa.int64(), nullable=False),
        pa.field("spent", pa.float64(), nullable=False),
        pa.field("spent_in_window", pa.float64(), nullable=False),
    ]
)
DYNAMIC_LEDGER_SCHEMA = pa.schema(
    [
        pa.field("slot", pa.int64(), nullable=False),
        pa.field("window_backward", pa.int64(), nullable=False),
        pa.field("epsilon_backward", pa.float64(), nullable=False),
        pa.field("window_forward", pa.int64(), nullable=False),
        pa.field("epsilon_forward", pa.float64(), nullable=False),
        pa.field("users", pa.int64(), nullable=False),
        pa.field("spent", pa.float64(), nullable=False),
        pa.field("spent_backward", pa.float64(), nullable=False),
        pa.field("infeasible", pa.bool_(), nullable=False),
    ]
)
STATE_SCHEMA = pa.schema(
    [
        pa.field("next_slot", pa.int64(), nullable=False),
        pa.field("state", pa.binary(), nullable=False),
    ]
)


def release_schema(labels: Sequence[str] | None = None, *, shares: bool = False) -> pa.Schema:
    """Schema of a table of releases; the labels of the bins go to its metadata as a JSON list.

    With `shares` there is a column for the distributions that mechanisms with one budget release.
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


def release_json(release: Release) -> bytes:
    """The line that WriteReleases would write to a .jsonl file, without its end."""
    return json_text(release_row(release)).encode()


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


def ledger_to_batch(entries: Sequence[LedgerEntry]) -> pa.RecordBatch:
    """One row per slot and class of users, in the order given."""
    rows = [
        (entry.slot, _window(requirement), requirement.epsilon)
        for entry in entries
        for requirement in entry.classes
    ]
    slots, windows, epsilons = zip(*rows, strict=True) if rows else ((), (), ())
    columns: dict[str, Any] = {"slot": slots, "window": windows, "epsilon": epsilons}
    for name in ("users", "spent", "spent_in_window"):
        parts = [np.asarray(getattr(entry, name)) for entry in entries]
        columns[name] = np.concatenate(parts) if parts else []
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[field.name], field.type) for field in LEDGER_SCHEMA],
        schema=LEDGER_SCHEMA,
    )


def _window(requirement: Requirement) -> int | None:
    """None for the whole stream."""
    return None if isinstance(requirement, Lifetime) else requirement.window


def dynamic_ledger_to_batch(entries: Sequence[DynamicLedgerEntry]) -> pa.RecordBatch:
    """One row per slot and ledger with users, in the order given."""
    names = ("users", "spent", "spent_backward", "infeasible")
    columns = {name: np.concatenate([getattr(entry, name) for entry in entries]) for name in names}
    columns["slot"] = np.repeat([e.slot for e in entries], [len(e.users) for e in entries])
    asked = np.concatenate([entry.requirements for entry in entries])
    columns.update(zip(DYNAMIC_LEDGER_SCHEMA.names[1:5], asked.T, strict=True))
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[f.name]).cast(f.type) for f in DYNAMIC_LEDGER_SCHEMA],
        schema=DYNAMIC_LEDGER_SCHEMA,
    )


def ledger_table(
    entries: Sequence[LedgerEntry] | Sequence[DynamicLedgerEntry], *, dynamic: bool = False
) -> pa.Table:
    """The table that WriteLedger writes, in its order."""
    return ledger_form(dynamic).table(entries)


def ledger_form(dynamic: bool) -> TableForm:
    """How entries of a ledger become rows; `dynamic` where requirements change."""
    schema = DYNAMIC_LEDGER_SCHEMA if dynamic else LEDGER_SCHEMA
    convert = dynamic_ledger_to_batch if dynamic else ledger_to_batch
    return TableForm(schema, convert, ("slot", *schema.names[1 : schema.names.index("users")]))


def release_form(
    path: str, labels: Sequence[str] | None = None, *, shares: bool = False, layout: str = ROWS
) -> TableForm:
    """How releases become rows of a file: see :class:`streamveil.io.WriteReleases`.

    Raises ConfigurationError for a path or layout that cannot be.
    """
    rows = release_schema(labels, shares=shares), releases_to_batch
    return form_of_layout(path, labels, layout, rows, (TIDY_SCHEMA, tidy_batch))


def form_of_layout(
    path: str,
    labels: Sequence[str] | None,
    layout: str,
    rows: tuple[pa.Schema, Callable[..., pa.RecordBatch]],
    tidy: tuple[pa.Schema, Callable[..., pa.RecordBatch]],
) -> TableForm:
    """The form that a layout asks for: `rows`, one for each slot, or `tidy`.

    Each is the columns, and what makes a batch of them. Raises ConfigurationError for a path or
    layout that cannot be.
    """
    quoted = output_format_of(path) == CSV
    check_layout(layout, labels)
    if layout == TIDY:
        schema, convert = tidy
        convert = partial(convert, labels=labels or (), quoted=quoted)
    else:
        schema, convert = rows
        convert = partial(convert, schema=schema)
    return TableForm(schema, convert, ("slot",))


def check_layout(layout: str, labels: Sequence[str] | None) -> None:
    """Refuse one that there is not, or that needs labels. Raises ConfigurationError."""
    if layout not in LAYOUTS:
        raise ConfigurationError(
            f"layout {layout!r} (--layout) is unknown: choose {' or '.join(LAYOUTS)}"
        )
    if layout == TIDY and labels is None:
        raise ConfigurationError("a tidy table names the bin of each row: give the labels")


def states_to_batch(states: Sequence[tuple[int, bytes]]) -> pa.RecordBatch:
    """A row of `STATE_SCHEMA` for each (next slot, state)."""
    columns = dict(zip(STATE_SCHEMA.names, zip(*states, strict=True), strict=True))
    return pa.RecordBatch.from_pydict(columns, schema=STATE_SCHEMA)


STATE_FORM = TableForm(STATE_SCHEMA, states_to_batch, ("next_slot",))
"""Of the state that a run leaves: see :func:`read_state`."""


def read_state(path: str) -> tuple[int, bytes]:
    """The slot that comes next and the state before it, of the file that a pass left."""
    rows = read_table(path).to_pylist()
    return rows[-1]["next_slot"], rows[-1]["state"]
