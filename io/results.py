"""Releases and ledgers read back from files, for pages, tests and notebooks."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np

from streamveil.io.releases import json_values
from streamveil.io.tables import read_table
from streamveil.mechanisms.core.records import (
    LedgerEntry,
    Lifetime,
    Release,
    Requirement,
    parse_time,
)


def read_releases(path: str) -> list[Release]:
    """Releases of a file that WriteReleases made, in slot order, from any of its formats."""
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
        for row in read_table(path).to_pylist()
    ]


def read_ledger(path: str) -> list[LedgerEntry]:
    """Ledger entries of a file that WriteLedger made, one for each slot, in slot order."""
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
            )
        )
    return entries


def _requirement(window: int | None, epsilon: float) -> Requirement:
    return Lifetime(epsilon) if window is None else Requirement(window, epsilon)


def _numbers_by_name(value: Any) -> dict[str, float]:
    pairs = json.loads(value).items() if isinstance(value, str) else value
    return {name: np.nan if number is None else float(number) for name, number in pairs}


def _optional(value: Any) -> int | None:
    return None if value is None or value == "" else int(value)
