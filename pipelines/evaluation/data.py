"""Counts of real events for a comparison: read once, counted by class, kept in a file.

Nothing here is private: it is for data that whoever compares mechanisms may see.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamveil.io import read_events
from streamveil.mechanisms.records import ConfigurationError
from streamveil.mechanisms.registry import DEFAULT
from streamveil.mechanisms.users import Registry
from streamveil.pipelines.evaluation.populations import population
from streamveil.pipelines.evaluation.sources import Counted
from streamveil.pipelines.inputs import Inputs
from streamveil.pipelines.progress import progress
from streamveil.transforms import PrivateHistograms
from streamveil.transforms.exact import class_counts

# Requirements of users without a table, to be scaled to each (E, w): nine kinds, all distinct.
_UNIT_EPSILON, _UNIT_WINDOW, _KINDS = 1.0, 3, 9
_MOST_BYTES = 1 << 35


@dataclass
class Letters:
    """Dead letters: counted, and kept if somebody wants them."""

    keep: bool
    reasons: Counter[str] = field(default_factory=Counter)
    batches: list[pa.RecordBatch] = field(default_factory=list)

    def add(self, letters: pa.RecordBatch) -> None:
        """Take a batch of `REJECTED_SCHEMA`."""
        for found in letters.column("reason").value_counts().to_pylist():
            self.reasons[found["values"]] += found["counts"]
        if self.keep:
            self.batches.append(letters)


@dataclass(frozen=True)
class Data:
    """Events to count."""

    name: str
    """What they are called in tables."""
    files: str
    """A path or glob."""
    dataset: str | None
    """A key of `streamveil.io.DATASETS`; None where the names of the files say the format."""
    inputs: Inputs
    registry: Registry | None
    """Who asks for what; None spreads the users that are found over nine kinds of requirements."""

    def count(self, folder: Path, letters: Letters) -> Counted:
        """Count all events by slot, class and bin into a file.

        Args:
            folder: where the file goes; it must outlive what is returned.
            letters: takes what cannot be counted.

        Raises:
            ConfigurationError: for events that cannot be read or counted, or none at all.
        """
        registry = self.registry
        if registry is None:
            with progress("streamveil evaluate, looking for users"):
                registry = spread(self._users())
        transform = self.inputs.transform(registry, DEFAULT)
        path = folder / "counts.npy"
        with progress("streamveil evaluate, counting"):
            self._write(transform, path, letters)
        return Counted(
            self.name,
            str(path),
            registry.classes,
            registry.sizes,
            transform.population.sensitivity,
        )

    def _users(self) -> pa.Array:
        """Every user that the events name, as text, each once."""
        column = self.inputs.columns.user
        found: dict[Any, None] = {}
        for batch, _ in read_events(self.files, [column], self.dataset):
            found.update(dict.fromkeys(batch.column(0).unique().to_pylist()))
        users = list(dict.fromkeys(str(user) for user in found if user not in (None, "")))
        if not users:
            raise ConfigurationError(
                f"{self.files}: no event names a user in column {column!r}: check --user_column"
            )
        return pa.array(users, pa.string())

    def _batches(self, letters: Letters) -> Iterator[pa.RecordBatch]:
        names = self.inputs.columns.names
        for batch, rejected in read_events(self.files, names, self.dataset):
            if rejected is not None:
                letters.add(rejected)
            if batch.num_rows:
                yield batch

    def _write(self, transform: PrivateHistograms, path: Path, letters: Letters) -> None:
        """Write the counts from the first slot to the last, in as few bytes as hold them."""
        found = {
            slot: table.astype(np.min_scalar_type(int(table.max())))
            for slot, table in class_counts(transform, self._batches(letters), letters.add)
            if table.any()
        }
        first, last = transform.first_slot, transform.last_slot
        if not found and (first is None or last is None):
            listed = ", ".join(f"{reason} {n:,}" for reason, n in sorted(letters.reasons.items()))
            raise ConfigurationError(
                f"{self.files}: no event was accepted; rejected: {listed or 'none'}. Mend the "
                "events or the options, or give the range to count (--start and --end)"
            )
        first = min(found) if first is None else first
        last = max(found) if last is None else last
        dtype = np.result_type(np.uint8, *{table.dtype for table in found.values()})
        shape = (last - first + 1, len(transform.registry.classes), transform.domain.bins)
        size = int(np.prod(shape, dtype=object)) * dtype.itemsize
        if size > _MOST_BYTES:
            raise ConfigurationError(
                f"{self.files}: counts of {shape[0]:,} slots, {shape[1]} classes and {shape[2]:,} "
                f"bins need {size / 1e9:,.0f} GB: shorten the range (--start and --end), or use "
                "longer slots or fewer bins"
            )
        counts = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
        for slot, table in found.items():
            counts[slot - first] = table
        counts.flush()


def spread(users: pa.Array) -> Registry:
    """Spread users over nine kinds of requirements by a hash of the id that anybody can repeat.

    Args:
        users: distinct ids, as text.
    """
    requirements, _ = population(_UNIT_EPSILON, _UNIT_WINDOW, _KINDS)
    kinds: npt.NDArray[np.int64] = np.array(
        [
            int.from_bytes(hashlib.blake2b(user.encode(), digest_size=8).digest(), "little")
            % len(requirements)
            for user in users.to_pylist()
        ],
        dtype=np.int64,
    )
    return Registry.build(
        users,
        np.array([one.window for one in requirements])[kinds],
        np.array([one.epsilon for one in requirements])[kinds],
    )
