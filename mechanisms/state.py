"""State as bytes that a later release of streamveil can still read.

The bytes are one version byte and an Avro record. A module that changes its record adds a schema
under the next version and keeps the old one.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import fastavro
import numpy as np
import numpy.typing as npt

Schema = dict[str, Any]

LONGS: Schema = {"type": "array", "items": "long"}

# Rows of a table of amounts, equal neighbours written once.
RUNS: Schema = {
    "type": "array",
    "items": {
        "type": "record",
        "name": "Run",
        "fields": [{"name": "repeat", "type": "long"}, {"name": "row", "type": LONGS}],
    },
}


def pack(schemas: Mapping[int, Schema], record: Mapping[str, Any]) -> bytes:
    """Encode a record under the newest of the versioned schemas."""
    version = max(schemas)
    buffer = io.BytesIO()
    buffer.write(bytes([version]))
    fastavro.schemaless_writer(buffer, schemas[version], record)
    return buffer.getvalue()


def unpack(schemas: Mapping[int, Schema], data: bytes) -> tuple[int, dict[str, Any]]:
    """Decode bytes into (version, record).

    Raises ValueError when they were written by a release newer than this one.
    """
    version = data[0] if data else -1
    if version not in schemas:
        raise ValueError(
            f"state version {version} is not among {sorted(schemas)}: it was written by a newer "
            "streamveil, or it is not state; run the version that wrote it, or a later one"
        )
    buffer = io.BytesIO(data)
    buffer.seek(1)
    record: Any = fastavro.schemaless_reader(buffer, schemas[version], None)
    return version, record


def runs_of(rows: npt.NDArray[np.int64]) -> list[dict[str, Any]]:
    """Write rows of shape (T, K) as runs of equal neighbours."""
    if not len(rows):
        return []
    starts = np.flatnonzero(np.append(True, (rows[1:] != rows[:-1]).any(axis=1)))
    lengths = np.diff(starts, append=len(rows))
    return [
        {"repeat": int(n), "row": rows[start].tolist()}
        for start, n in zip(starts, lengths, strict=True)
    ]


def rows_of(runs: list[dict[str, Any]], width: int) -> npt.NDArray[np.int64]:
    """Read rows of shape (T, width) back from runs. Raises ValueError for another width."""
    if not runs:
        return np.zeros((0, width), dtype=np.int64)
    rows = np.array([run["row"] for run in runs], dtype=np.int64)
    if rows.shape[1:] != (width,):
        raise ValueError(
            f"the state is for {rows.shape[1]} classes of users, not {width}: it belongs to "
            "another table of requirements"
        )
    return np.repeat(rows, [run["repeat"] for run in runs], axis=0)
