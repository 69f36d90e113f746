"""Ledgers as tables: what releases cost every class of users."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from streamveil.io.tables import TableForm, read_table
from streamveil.mechanisms.core.records import (
    DynamicLedgerEntry,
    LedgerEntry,
    Lifetime,
    Requirement,
)

if TYPE_CHECKING:
    from streamveil.mechanisms.queries.query_stream import QueryEntry

LEDGER_SCHEMA = pa.schema(
    [
        pa.field("query", pa.string(), nullable=False),
        pa.field("slot", pa.int64(), nullable=False),
        pa.field("first_base_slot", pa.int64(), nullable=False),
        pa.field("last_base_slot", pa.int64(), nullable=False),
        pa.field("window", pa.int64()),
        pa.field("epsilon", pa.float64(), nullable=False),
        pa.field("users", pa.int64(), nullable=False),
        pa.field("spent", pa.float64(), nullable=False),
        pa.field("spent_in_window", pa.float64(), nullable=False),
    ]
)
"""Arrow schema of the ledger, with a row for each query, slot and class of requirements."""
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
_OF_SLOT = ("query", "slot", "first_base_slot", "last_base_slot")
_FIGURES = ("users", "spent", "spent_in_window")


def ledger_to_batch(entries: Sequence[LedgerEntry] | Sequence[QueryEntry]) -> pa.RecordBatch:
    """One row per entry and class of users, in the order given."""
    sizes = [len(entry.classes) for entry in entries]
    classes = [one for entry in entries for one in entry.classes]
    columns: dict[str, Any] = {
        "window": [_window(one) for one in classes],
        "epsilon": [one.epsilon for one in classes],
    }
    for name in _OF_SLOT:
        values = [getattr(entry, name) for entry in entries]
        columns[name] = [value for value, k in zip(values, sizes, strict=True) for _ in range(k)]
    for name in _FIGURES:
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
    entries: Sequence[LedgerEntry] | Sequence[QueryEntry] | Sequence[DynamicLedgerEntry],
    *,
    dynamic: bool = False,
) -> pa.Table:
    """The table that WriteLedger writes, in its order."""
    return ledger_form(dynamic).table(entries)


def ledger_form(dynamic: bool = False) -> TableForm:
    """How entries of a ledger become rows; `dynamic` where requirements change."""
    if dynamic:
        names = DYNAMIC_LEDGER_SCHEMA.names
        order = names[: names.index("users")]
        return TableForm(DYNAMIC_LEDGER_SCHEMA, dynamic_ledger_to_batch, tuple(order))
    order = ("last_base_slot", "query", "window", "epsilon")
    return TableForm(LEDGER_SCHEMA, ledger_to_batch, order)


def read_ledger(path: str) -> list[LedgerEntry]:
    """Read a ledger file that WriteLedger wrote, and return one entry for each slot, in order."""
    entries = []
    rows = read_table(path).to_pylist()
    for slot, group in itertools.groupby(rows, key=lambda row: int(row["slot"])):
        classes = list(group)
        entries.append(
            LedgerEntry(
                slot,
                tuple(_requirement(_optional(r["window"]), float(r["epsilon"])) for r in classes),
                np.array([int(r["users"]) for r in classes], dtype=np.int64),
                np.array([float(r["spent"]) for r in classes]),
                np.array([float(r["spent_in_window"]) for r in classes]),
                classes[0]["query"],
            )
        )
    return entries


def _requirement(window: int | None, epsilon: float) -> Requirement:
    return Lifetime(epsilon) if window is None else Requirement(window, epsilon)


def _optional(value: Any) -> int | None:
    return None if value is None or value == "" else int(value)
