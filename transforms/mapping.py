"""Events as integers: slot, user and bin of every row of a batch, or a reason to reject it."""

from __future__ import annotations

import json
import math
import zoneinfo
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.mechanisms.domains import Domain
from streamveil.mechanisms.records import (
    REJECTED_COLUMNS,
    ROW_COLUMN,
    SOURCE_METADATA,
    ConfigurationError,
    Slots,
)
from streamveil.mechanisms.users import Registry
from streamveil.transforms.bins import REASON_OF_CODE, DomainMap
from streamveil.transforms.text import TextIndex, as_text, keyed_digest
from streamveil.transforms.times import UNITS, to_micros

NULL_USER = "null user"
NO_REQUIREMENT = "no requirement"
OUTSIDE_RANGE = "outside the released slots"
AHEAD = "ahead of time"

REJECTED_SCHEMA = pa.schema(REJECTED_COLUMNS)

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Columns:
    """Which columns of a batch hold what, and how times are read.

    Raises ConfigurationError for an unknown time zone or unit.
    """

    user: str
    value: tuple[str, ...]
    """One column, or longitude and latitude for a grid."""
    time: str
    time_zone: str = "UTC"
    """IANA zone of times without an offset."""
    time_unit: str | None = None
    """Unit of times given as numbers: `s`, `ms`, `us` or `ns`."""

    def __post_init__(self) -> None:
        """Check how times are read."""
        if self.time_unit not in (None, *UNITS):
            raise ConfigurationError(
                f"time unit {self.time_unit!r} (--time_unit) is unknown: choose {', '.join(UNITS)}"
            )
        try:
            zoneinfo.ZoneInfo(self.time_zone)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError, TypeError):
            raise ConfigurationError(
                f"time zone {self.time_zone!r} (--time_zone) is unknown: write an IANA name such "
                "as Europe/Berlin"
            ) from None

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that are read, each once."""
        return tuple(dict.fromkeys((self.user, *self.value, self.time)))


@dataclass(frozen=True, eq=False)
class Events:
    """Accepted events of a batch, in no particular order."""

    slots: Integers
    """Shape (n,)."""
    bins: Integers
    """Shape (n,)."""
    members: Integers
    """Position of each user in the registry, shape (n,), or -1 for a user outside it."""
    strangers: npt.NDArray[np.uint64]
    """128-bit keyed digest of each user outside the registry, in order, shape (number of -1, 2)."""

    def without(self, rows: Integers) -> Events:
        """All events but those in the given rows."""
        keep = np.ones(len(self.slots), dtype=bool)
        keep[rows] = False
        return Events(
            self.slots[keep],
            self.bins[keep],
            self.members[keep],
            self.strangers[keep[self.members < 0]],
        )


@dataclass(frozen=True)
class EventMapper:
    """Maps batches of events; the registry and the domain are indexed once per worker."""

    columns: Columns
    slots: Slots
    domain: Domain
    registry: Registry
    stranger_key: bytes
    """Secret for the digests of users outside the registry: 32 bytes."""
    first_slot: int | None = None
    """Events before this slot are rejected."""
    last_slot: int | None = None
    """Events after this slot are rejected."""

    @cached_property
    def _users(self) -> TextIndex:
        return TextIndex(self.registry.users)

    @cached_property
    def _bins(self) -> DomainMap:
        return DomainMap(self.domain, self.columns.value)

    def warm(self) -> None:
        """Build the indexes now rather than in the first batch."""
        _ = self._users, self._bins

    def map(
        self, batch: pa.RecordBatch, latest: int | None = None
    ) -> tuple[Events, pa.RecordBatch]:
        """Split a batch into accepted events and rejected rows (`REJECTED_SCHEMA`).

        Events after the slot `latest` are rejected, where there is one: they are ahead of time.

        Raises ConfigurationError for a missing column or one of a type that cannot be read.
        """
        try:
            return self._map(batch, latest)
        except ConfigurationError as error:
            source = _source(batch)
            raise ConfigurationError(f"{source}: {error}" if source else str(error)) from error

    def _map(self, batch: pa.RecordBatch, latest: int | None) -> tuple[Events, pa.RecordBatch]:
        columns = self.columns
        arrays = {name: self._column(batch, name) for name in columns.names}
        micros, bad_times = to_micros(
            arrays[columns.time], zone=columns.time_zone, unit=columns.time_unit, name=columns.time
        )
        slots = (micros - self.slots.origin) // self.slots.length
        bins = self._bins.bins([arrays[name] for name in columns.value])
        members, strangers, nameless = self._find_users(arrays[columns.user])

        # What is wrong with each bad row; the first fault found is the one reported.
        faults: dict[int, str] = dict(bad_times)

        def fault(rows: Integers, reason: str) -> None:
            for row in rows.tolist():
                faults.setdefault(row, reason)

        fault(nameless, NULL_USER)
        if (bins < 0).any():
            for code, reason in REASON_OF_CODE.items():
                fault(np.flatnonzero(bins == code), reason)
        if self.registry.default_class is None:
            fault(np.flatnonzero(members < 0), NO_REQUIREMENT)
        if latest is not None:
            fault(np.flatnonzero(slots > latest), AHEAD)
        for bound, outside in ((self.first_slot, np.less), (self.last_slot, np.greater)):
            if bound is not None:
                fault(np.flatnonzero(outside(slots, bound)), OUTSIDE_RANGE)

        events = Events(slots, bins, members, strangers)
        if faults:
            events = events.without(np.fromiter(faults, np.int64, len(faults)))
        return events, self._rejected(batch, faults)

    def _column(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        at = batch.schema.get_field_index(name)
        if at < 0:
            raise ConfigurationError(
                f"the events have no column {name!r}; there are: "
                f"{', '.join(n for n in batch.schema.names if n != ROW_COLUMN)}"
            )
        return batch.column(at)

    def _find_users(self, array: pa.Array) -> tuple[Integers, npt.NDArray[np.uint64], Integers]:
        """Registry position of each row's user or -1, digests of those, and rows without user."""
        text = as_text(array)
        if text is None:
            raise ConfigurationError(
                f"column {self.columns.user!r} holds {array.type}; user ids must be text or whole "
                "numbers: convert the column"
            )
        members = self._users.find(text)
        unknown = np.flatnonzero(members < 0)
        if not len(unknown):
            return members, np.zeros((0, 2), np.uint64), unknown
        names = text.take(pa.array(unknown))
        if pa.types.is_dictionary(names.type):
            names = names.dictionary_decode()
        names = pc.fill_null(names, "")
        nameless = unknown[pc.equal(names, "").to_numpy(zero_copy_only=False)]
        return members, keyed_digest(names, self.stranger_key), nameless

    def _rejected(self, batch: pa.RecordBatch, faults: dict[int, str]) -> pa.RecordBatch:
        """Dead letters of the faulty rows: where each stood, why, and the record as JSON."""
        rows = sorted(faults)
        names = [name for name in batch.schema.names if name != ROW_COLUMN]
        records = [
            dict(zip(names, values, strict=True))
            for values in zip(
                *(_json_values(batch.column(name), rows) for name in names), strict=True
            )
        ]
        at = batch.schema.get_field_index(ROW_COLUMN)
        places = batch.column(at).take(pa.array(rows, pa.int64())) if at >= 0 else None
        return pa.RecordBatch.from_arrays(
            [
                pa.array([_source(batch)] * len(rows), pa.string()),
                pa.nulls(len(rows), pa.int64()) if places is None else places,
                pa.array([faults[row] for row in rows], pa.string()),
                pa.array(
                    [self._detail(faults[row], r) for row, r in zip(rows, records, strict=True)],
                    pa.string(),
                ),
                pa.array([json.dumps(record) for record in records], pa.string()),
            ],
            schema=REJECTED_SCHEMA,
        )

    def _detail(self, reason: str, record: dict[str, Any]) -> str:
        columns = self.columns
        if reason in (NULL_USER, NO_REQUIREMENT):
            names: tuple[str, ...] = (columns.user,)
        elif reason in REASON_OF_CODE.values():
            names = columns.value
        else:
            names = (columns.time,)
        return ", ".join(
            f"{name} is {'null' if record[name] is None else record[name]}" for name in names
        )


def _json_values(column: pa.Array, rows: list[int]) -> list[Any]:
    """Values of some rows as strict JSON has them: times and what it lacks become text."""
    picked = column.take(pa.array(rows, pa.int64()))
    if pa.types.is_dictionary(picked.type):
        picked = picked.dictionary_decode()
    kind = picked.type
    if pa.types.is_temporal(kind):
        try:
            return picked.cast(pa.string()).to_pylist()  # Python's own times are narrower
        except pa.ArrowInvalid:
            return picked.cast(pa.int64()).cast(pa.string()).to_pylist()
    try:
        return [_plain(value) for value in picked.to_pylist()]
    except (OverflowError, ValueError):  # a far time inside a list or a struct
        return [str(scalar) for scalar in picked]


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _source(batch: pa.RecordBatch) -> str | None:
    metadata = batch.schema.metadata or {}
    source = metadata.get(SOURCE_METADATA)
    return None if source is None else source.decode()
