"""Parquet files of random events and requirements for the benchmarks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

BINS = 100
HOUR = 3_600_000_000
START = 1_704_067_200_000_000  # 2024-01-01T00:00Z
ROW_GROUP = 1_000_000
WINDOWS = (40, 80, 120)
EPSILONS = (0.6, 0.8, 1.0)


def user_ids(numbers: np.ndarray) -> pa.Array:
    """Ids such as user-0001234."""
    digits = (numbers[:, None] // 10 ** np.arange(6, -1, -1)) % 10 + ord("0")
    text = np.empty((len(numbers), 12), np.uint8)
    text[:, :5] = np.frombuffer(b"user-", np.uint8)
    text[:, 5:] = digits
    offsets = np.arange(len(numbers) + 1, dtype=np.int32) * 12
    return pa.StringArray.from_buffers(
        len(numbers), pa.py_buffer(offsets), pa.py_buffer(text.tobytes())
    )


def write_requirements(path: Path, users: int) -> None:
    """Every combination of WINDOWS and EPSILONS is a class, all equally large."""
    numbers = np.arange(users)
    table = pa.table(
        {
            "user": user_ids(numbers),
            "window": np.array(WINDOWS)[numbers % 3],
            "epsilon": np.array(EPSILONS)[numbers // 3 % 3],
        }
    )
    pq.write_table(table, path)


def write_events(path: Path, events: int, users: int, slots: int, ordered: bool) -> None:
    """Write `events` events, spread evenly over `slots` hours, by users and bins at random.

    In time order, or each row group over the whole range of time in no order.
    """
    random = np.random.default_rng(events + users)
    names = user_ids(np.arange(users))
    values = pa.array([f"value-{b:02}" for b in range(BINS)])
    schema = pa.schema(
        [("user", pa.string()), ("value", pa.string()), ("time", pa.timestamp("us", "UTC"))]
    )
    with pq.ParquetWriter(path, schema) as writer:
        for row in range(0, events, ROW_GROUP):
            rows = np.arange(row, min(row + ROW_GROUP, events))
            times = rows * (slots * HOUR // events)
            if not ordered:
                times = random.integers(0, slots * HOUR, len(rows))
            columns = [
                names.take(pa.array(random.integers(0, users, len(rows)))),
                values.take(pa.array(random.integers(0, BINS, len(rows)))),
                pa.array(START + times, pa.timestamp("us", "UTC")),
            ]
            writer.write_table(pa.table(columns, schema=schema), row_group_size=ROW_GROUP)
