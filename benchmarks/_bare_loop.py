"""The end-to-end job without Beam, budgets or noise: a plain loop over pyarrow and numpy.

It counts what the release stage would be given: at most one event of a user in a slot, per slot,
class and bin. It trusts its input (time order, known users and values, no nulls) and keeps one of
a user's events as it comes, where streamveil draws one by a rule that order cannot change.
Run by end_to_end.py as `python _bare_loop.py --case=JSON`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from _measure import asked_case

HOUR = 3_600_000_000
GROUPS = 10  # Arrow builds its table of users anew for every look-up: look up many rows at once
MOST_VISITS = 1 << 22  # beyond this a table of visits leaves the cache, and sorting is faster


def count(events: str, requirements: str, values: list[str], dictionary: bool) -> np.ndarray:
    """Counts of shape (slots, classes, bins)."""
    table = pq.read_table(requirements)
    _, window = np.unique(table["window"].to_numpy(), return_inverse=True)
    kinds, epsilon = np.unique(table["epsilon"].to_numpy(), return_inverse=True)
    class_of = (window * len(kinds) + epsilon).astype(np.int32)
    classes, bins, users = int(class_of.max()) + 1, len(values), len(class_of)
    file = pq.ParquetFile(events, read_dictionary=["user", "value"] if dictionary else ["value"])
    ends = file.num_row_groups - 1
    first = file.read_row_group(0, columns=["time"])["time"][0].value // HOUR
    last = file.read_row_group(ends, columns=["time"])["time"][-1].value // HOUR
    counts = np.zeros((last - first + 1, classes * bins), np.int64)
    ids, kept = table["user"].combine_chunks(), np.zeros((3, 0), np.int32)
    for time, user, value in _row_groups(file, ids, pa.array(values)):
        edges = np.searchsorted(time, np.arange(first, last + 2) * HOUR)
        begin = int(np.searchsorted(edges, 0, side="right")) - 1
        stop = int(np.searchsorted(edges, len(time)))
        slot = np.repeat(np.arange(begin, stop, dtype=np.int32), np.diff(edges[begin : stop + 1]))
        # A slot may have begun in the row group before: its events go along once more.
        slot, user, value = np.concatenate((kept, (slot, user, value)), axis=1)
        begin = int(slot[0])
        chosen = _one_each((slot - begin), user, users, stop - begin)
        slot, user, value = slot[chosen], user[chosen], value[chosen]
        final = slot < stop - 1
        kept = np.stack((slot, user, value))[:, ~final]
        cells = ((slot - begin) * classes + class_of[user]) * bins + value
        if len(time) and time[-1] // HOUR < last:
            cells = cells[final]
        table = np.bincount(cells, minlength=(stop - begin) * classes * bins)
        counts[begin:stop] += table.reshape(stop - begin, -1)
    return counts.reshape(-1, classes, bins)


def _row_groups(file: pq.ParquetFile, ids: pa.Array, values: pa.Array) -> Iterator[tuple]:
    for start in range(0, file.num_row_groups, GROUPS):
        groups = range(start, min(start + GROUPS, file.num_row_groups))
        parts = [
            file.read_row_group(g, columns=["user", "value", "time"], use_threads=False)
            for g in groups
        ]
        users = pa.chunked_array([c for part in parts for c in part["user"].chunks])
        if not pa.types.is_dictionary(users.type):
            found, row = pc.index_in(users, ids).combine_chunks().to_numpy(), 0
        for part in parts:
            if pa.types.is_dictionary(users.type):
                user = _positions(part["user"], ids)
            else:
                user, row = found[row : row + len(part)], row + len(part)
            time = part["time"].combine_chunks().view(pa.int64()).to_numpy()
            yield time, user, _positions(part["value"], values)


def _positions(column: pa.ChunkedArray, wanted: pa.Array) -> np.ndarray:
    """Where each value of a dictionary column stands in `wanted`."""
    column = column.combine_chunks()
    return pc.index_in(column.dictionary, wanted).to_numpy()[column.indices.to_numpy()]


def _one_each(slot: np.ndarray, user: np.ndarray, users: int, slots: int) -> np.ndarray:
    """Rows to keep: one of each user in each slot."""
    if slots * users <= MOST_VISITS:
        visit = slot * np.int32(users) + user
        winner, row = np.empty(slots * users, np.int32), np.arange(len(visit), dtype=np.int32)
        winner[visit] = row
        return np.flatnonzero(winner[visit] == row)
    bits = len(user).bit_length()
    coded = ((slot.astype(np.int64) * users + user) << bits) | np.arange(len(user))
    coded.sort()
    visit = coded >> bits
    return coded[np.append(True, visit[1:] != visit[:-1])] & ((1 << bits) - 1)


if __name__ == "__main__":
    counted = count(**asked_case())
    print(json.dumps({"counted": int(counted.sum()), "slots": len(counted)}))
