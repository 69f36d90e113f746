"""Files of results: releases, what they cost, what was rejected, and the state to go on from."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.pvalue import PCollection

from streamveil.io.avro import UTC_MICROSECONDS
from streamveil.io.events import REJECTED_SCHEMA
from streamveil.io.formats import CSV, output_format_of
from streamveil.io.jsonlines import json_rows, json_text
from streamveil.io.tables import WriteTable, of_items, read_table
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
Entry = LedgerEntry | DynamicLedgerEntry
# Releases of 10,000 bins take 16 MB at this number.
BATCH_SLOTS = 100


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
_STATE_SCHEMA = pa.schema(
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
    schema, convert = ledger_of(dynamic)
    table = pa.Table.from_batches([convert(entries)] if entries else [], schema)
    return table.sort_by([(key, "ascending") for key in _ledger_keys(schema)])


def ledger_of(dynamic: bool) -> tuple[pa.Schema, Any]:
    """Its columns, and what makes a batch of them."""
    if dynamic:
        return DYNAMIC_LEDGER_SCHEMA, dynamic_ledger_to_batch
    return LEDGER_SCHEMA, ledger_to_batch


def _ledger_keys(schema: pa.Schema) -> tuple[str, ...]:
    """What its rows are sorted by."""
    return ("slot", *schema.names[1 : schema.names.index("users")])


@dataclass(eq=False)
class WriteItems(beam.PTransform):
    """Writes items to one file, some of them in a batch; as WriteTable if it is told their number.

    That is then the number of items, whatever rows they have.
    """

    path: str
    schema: pa.Schema
    convert: Callable[[Any], pa.RecordBatch]
    sort_by: str | tuple[str, ...]

    def __post_init__(self) -> None:
        """Be a PTransform."""
        super().__init__()

    def expand(
        self, inputs: PCollection[Any] | tuple[PCollection[Any], PCollection[int]]
    ) -> PCollection[str]:
        """Build the steps: batch, convert, write."""
        items, *number = inputs if isinstance(inputs, tuple) else (inputs,)
        batches = (
            items
            | "Batch" >> beam.BatchElements(min_batch_size=BATCH_SLOTS, max_batch_size=BATCH_SLOTS)
            | "Convert" >> beam.Map(_converted, self.convert).with_output_types(pa.RecordBatch)
        )
        table = (batches, *number) if number else batches
        return table | "Write" >> WriteTable(self.path, self.schema, sort_by=self.sort_by)


def _converted(
    items: Sequence[Any], convert: Callable[[Sequence[Any]], pa.RecordBatch]
) -> pa.RecordBatch:
    return of_items(convert(items), len(items))


def check_layout(layout: str, labels: Sequence[str] | None) -> None:
    """Refuse one that there is not, or that needs labels. Raises ConfigurationError."""
    if layout not in LAYOUTS:
        raise ConfigurationError(
            f"layout {layout!r} (--layout) is unknown: choose {' or '.join(LAYOUTS)}"
        )
    if layout == TIDY and labels is None:
        raise ConfigurationError("a tidy table names the bin of each row: give the labels")


@dataclass(eq=False)
class WriteReleases(beam.PTransform):
    """Writes releases to one file, sorted by slot; gives its path. See WriteTable.

    Input: releases, or a tuple of them and of their number, which the outputs of the transforms
    have as `done`: then what is not whole, because a step failed, is never written.

    Columns: slot int64, start and end timestamp[us, UTC], counts list<int64>, status string,
    published_slot int64 or null, epsilon double, stderr list<double or null>, mechanism string,
    alarm bool, diagnostics map<string, double or null>; with `shares` also shares list<double>. In
    the layout `tidy`, with a row for each bin: slot int64, start timestamp[us, UTC], bin string,
    count double (not rounded), low and high double or null (see :func:`tidy_batch`), status string;
    a CSV file has a quote before a bin that a spreadsheet would run as a formula.
    """

    path: str
    _: KW_ONLY
    labels: Sequence[str] | None = None
    """Names of the bins, kept in the metadata of a Parquet or Avro file."""
    shares: bool = False
    """Whether releases have them: those of one budget forever."""
    layout: str = ROWS
    """`rows`, one for each release, or `tidy`, one for each release and bin."""

    def __post_init__(self) -> None:
        """Check the name and the layout."""
        super().__init__()
        self._quoted = output_format_of(self.path) == CSV
        check_layout(self.layout, self.labels)

    def expand(
        self, inputs: PCollection[Release] | tuple[PCollection[Release], PCollection[int]]
    ) -> PCollection[str]:
        """Build the steps: batch, convert, write."""
        convert: Callable[[Sequence[Release]], pa.RecordBatch]
        if self.layout == TIDY:
            schema = TIDY_SCHEMA
            convert = partial(tidy_batch, labels=self.labels or (), quoted=self._quoted)
        else:
            schema = release_schema(self.labels, shares=self.shares)
            convert = partial(releases_to_batch, schema=schema)
        return inputs | "Write" >> WriteItems(self.path, schema, convert, "slot")


@dataclass(eq=False)
class WriteLedger(beam.PTransform):
    """Writes what every slot cost every class, sorted by slot and class; gives the path.

    Input: entries, or a tuple of them and of their number, as of WriteReleases.

    Columns: slot int64, window int64 (null: the whole stream), epsilon double, users int64 (public
    size of the class; 0 for the whole stream, where it is not asked for), spent double (in the
    slot), spent_in_window double (in the window that ends with it).

    Where requirements change, `dynamic`, a row is a ledger: slot int64, window_backward int64,
    epsilon_backward double, window_forward int64, epsilon_forward double, users int64, spent
    double (in the slot), spent_backward double (in the window that ends with it), infeasible bool
    (that is more than asked for, for earlier slots spent it).
    """

    path: str
    dynamic: bool = False

    def __post_init__(self) -> None:
        """Check the name."""
        super().__init__()
        output_format_of(self.path)

    def expand(
        self, inputs: PCollection[Entry] | tuple[PCollection[Entry], PCollection[int]]
    ) -> PCollection[str]:
        """Build the steps: batch, convert, write."""
        schema, convert = ledger_of(self.dynamic)
        return inputs | "Write" >> WriteItems(self.path, schema, convert, _ledger_keys(schema))


@dataclass(eq=False)
class WriteRejected(beam.PTransform):
    """Writes rejected events, batches of REJECTED_COLUMNS, as they come; gives the path.

    They are raw data: on a local filesystem the file is for its owner alone.
    """

    path: str

    def __post_init__(self) -> None:
        """Check the name."""
        super().__init__()
        output_format_of(self.path)

    def expand(self, batches: PCollection[pa.RecordBatch]) -> PCollection[str]:
        """Build the step: write."""
        return batches | "Write" >> WriteTable(self.path, REJECTED_SCHEMA, private=True)


@dataclass(eq=False)
class WriteState(beam.PTransform):
    """Writes (next slot, state of the release stream) to one file; gives the path.

    The file is private, on a local filesystem for its owner alone: the state holds a digest of
    the true counts. See :func:`read_state`.
    """

    path: str

    def __post_init__(self) -> None:
        """Check the name."""
        super().__init__()
        output_format_of(self.path)

    def expand(self, states: PCollection[tuple[int, bytes]]) -> PCollection[str]:
        """Build the steps: convert, write."""
        return (
            states
            | "Convert" >> beam.Map(_state_to_batch).with_output_types(pa.RecordBatch)
            | "Write" >> WriteTable(self.path, _STATE_SCHEMA, sort_by="next_slot", private=True)
        )


def _state_to_batch(state: tuple[int, bytes]) -> pa.RecordBatch:
    next_slot, data = state
    return pa.RecordBatch.from_pydict(
        {"next_slot": [next_slot], "state": [data]}, schema=_STATE_SCHEMA
    )


def read_state(path: str) -> tuple[int, bytes]:
    """The slot that comes next and the state before it, of a file that WriteState made."""
    rows = read_table(path).to_pylist()
    return rows[-1]["next_slot"], rows[-1]["state"]
