"""Changes of requirement as integers: user, slot and requirement of every row, or why not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.engine import metrics
from streamveil.engine.count.event_codes import MEMBERS, STRANGERS, Layout, ShardKey
from streamveil.engine.encode.dead_letters import (
    WRONG_TYPE,
    column_of,
    reasons_of,
    rejected_rows,
    tally_of,
    unread_rows,
)
from streamveil.engine.encode.numbers import as_numbers
from streamveil.engine.encode.text import NULL_USER, TextIndex, as_text, find_users
from streamveil.engine.encode.times import EARLIEST, LATEST, UNPARSABLE_TIME, to_micros
from streamveil.engine.messages import (
    REJECTED,
    TALLIES,
    Kind,
    Output,
    arrays_from_bytes,
    arrays_to_bytes,
)
from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.budgets import to_units
from streamveil.mechanisms.core.event_tallies import EventTally
from streamveil.mechanisms.core.records import (
    CHANGE_COLUMNS,
    REQUIREMENT_COLUMNS,
    ConfigurationError,
    Slots,
    leave_shares,
    valid_epsilons,
    valid_windows,
)
from streamveil.mechanisms.core.user_table import Registry

UNREADABLE_USER = "unreadable user"
NO_SLOT = "no slot"
BAD_REQUIREMENT = "requirement out of range"
WINDOW_TOO_LONG = "window longer than the longest"

NEVER = np.iinfo(np.int64).max

Keys = npt.NDArray[Any]
"""Users of one kind as what sorts: int64 for members, 16 bytes (`S16`) for strangers."""


@dataclass(frozen=True, eq=False)
class Changes:
    """What users of one kind ask for, in no particular order; see :func:`strictest`."""

    users: Keys
    """Shape (m,); a user may have several."""
    slots: Integers
    """First slot of each, shape (m,)."""
    requirements: Integers
    """window_backward, epsilon_backward, window_forward, epsilon_forward, epsilons in units of
    2**-40: shape (m, 4). All 0: the user leaves."""

    @classmethod
    def none(cls, kind: int) -> Changes:
        """No changes of MEMBERS, or of STRANGERS."""
        users: Keys = np.zeros(0, np.int64 if kind == MEMBERS else "S16")
        return cls(users, np.zeros(0, np.int64), np.zeros((0, 4), np.int64))

    @classmethod
    def joined(cls, parts: Sequence[Changes]) -> Changes:
        """All of one part or more."""
        names = ("users", "slots", "requirements")
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    @property
    def first(self) -> int:
        """The first slot of any, `NEVER` without any."""
        return int(self.slots.min(initial=NEVER))

    def split(self, slot: int) -> tuple[Changes, Changes]:
        """Those from slots up to this one, and the others."""
        due = self.slots <= slot
        return self[due], self[~due]

    def __getitem__(self, rows: npt.NDArray[np.bool_] | Integers) -> Changes:
        """Some of them."""
        return Changes(self.users[rows], self.slots[rows], self.requirements[rows])

    def to_bytes(self) -> bytes:
        """The three arrays."""
        return arrays_to_bytes(self.users, self.slots, self.requirements)

    @classmethod
    def from_bytes(cls, data: bytes) -> Changes:
        """The changes, over the bytes themselves."""
        return cls(*arrays_from_bytes(data))


def stranger_keys(digests: npt.NDArray[np.uint64]) -> Keys:
    """Digests of shape (n, 2) as n keys."""
    return np.ascontiguousarray(digests, dtype=">u8").view("S16").reshape(-1)


def strictest(requirements: Integers, starts: Integers) -> Integers:
    """What keeps all of some requirements: shape (len(starts), 4).

    The longest windows and the smallest epsilons of each run of rows; 0 where one row leaves.
    """
    all_kept = np.minimum.reduceat(requirements, starts, axis=0)
    all_kept[:, ::2] = np.maximum.reduceat(requirements, starts, axis=0)[:, ::2]
    all_kept[all_kept[:, 1] == 0] = 0
    return all_kept


class _Faults(dict[int, str]):
    """What is wrong with each bad row; the first fault found is the one reported."""

    def add(self, rows: Integers, reason: str) -> None:
        for row in rows.tolist():
            self.setdefault(row, reason)


@dataclass(frozen=True)
class ChangeMapper:
    """Maps batches of changes.

    The columns are `CHANGE_COLUMNS`; of `slot` and `time` one may be missing, and every row has
    one of them. A time means the first slot that starts then or later: a slot that began before
    keeps the requirement that it began with. A row without any of the four figures says that the
    user leaves.
    """

    slots: Slots
    time_zone: str
    time_unit: str | None
    registry: Registry
    stranger_key: bytes
    longest_window: int
    sensitivity: int = 1

    @cached_property
    def _users(self) -> TextIndex:
        return TextIndex(self.registry.users)

    def warm(self) -> None:
        """Build the index now rather than in the first batch."""
        _ = self._users

    def check(self, batch: pa.RecordBatch) -> None:
        """Raise ConfigurationError for a missing column."""
        self._slots(batch, _Faults())
        self._requirements(batch, _Faults())
        _column(batch, "user")

    def map(
        self, batch: pa.RecordBatch
    ) -> tuple[dict[int, tuple[Changes, npt.NDArray[np.uint64]]], pa.RecordBatch]:
        """Split a batch into changes by kind of user and rejected rows (`io.REJECTED_SCHEMA`).

        The changes come with a number for each that spreads users over shards.

        Raises ConfigurationError for a missing column; all else is the fault of a row.
        """
        faults = _Faults(dict.fromkeys(unread_rows(batch), WRONG_TYPE))
        users = _column(batch, "user")
        text = as_text(users)
        members, digests, nameless = find_users(
            pa.nulls(len(users), pa.string()) if text is None else text,
            self._users,
            self.stranger_key,
        )
        faults.add(nameless, UNREADABLE_USER if text is None else NULL_USER)
        slots = self._slots(batch, faults)
        requirements = self._requirements(batch, faults)

        good = np.ones(batch.num_rows, bool)
        good[list(faults)] = False
        registered, strange = good & (members >= 0), good & (members < 0)
        digests = digests[strange[members < 0]]
        found = {
            MEMBERS: (
                Changes(members[registered], slots[registered], requirements[registered]),
                members[registered].astype(np.uint64),
            ),
            STRANGERS: (
                Changes(stranger_keys(digests), slots[strange], requirements[strange]),
                digests[:, 0],
            ),
        }
        return found, rejected_rows(batch, faults, _detail)

    def _slots(self, batch: pa.RecordBatch, faults: _Faults) -> Integers:
        """First slot of each change."""
        columns = [name for name in ("slot", "time") if name in batch.schema.names]
        if not columns:
            raise ConfigurationError(
                "the changes of requirements have neither a column 'slot' nor 'time': give one"
            )
        slots = np.zeros(batch.num_rows, np.int64)
        given = np.zeros((2, batch.num_rows), bool)
        if "slot" in columns:
            column = _column(batch, "slot")
            given[0] = _given(column)
            values = as_numbers(column, booleans=False)
            first, last = self.slots.index(EARLIEST), self.slots.index(LATEST)
            if values is None:
                values = np.full(len(column), np.nan)
            whole = (values == np.floor(values)) & (values >= first) & (values <= last)
            slots[whole] = values[whole].astype(np.int64)
            faults.add(np.flatnonzero(given[0] & ~whole), NO_SLOT)
        if "time" in columns:
            column = _column(batch, "time")
            given[1] = _given(column)
            try:
                micros, bad = to_micros(column, zone=self.time_zone, unit=self.time_unit)
            except ConfigurationError:  # of another type in this batch only: its rows are at fault
                micros, bad = slots, dict.fromkeys(range(len(column)), UNPARSABLE_TIME)
            for row, reason in bad.items():
                if given[1, row]:
                    faults.add(np.array([row]), reason)
            started = self.slots.indices(micros - 1) + 1
            slots[given[1]] = started[given[1]]
        faults.add(np.flatnonzero(given[0] == given[1]), NO_SLOT)
        return slots

    def _requirements(self, batch: pa.RecordBatch, faults: _Faults) -> Integers:
        """What each row asks for, all 0 for who leaves."""
        columns = [_column(batch, name) for name in REQUIREMENT_COLUMNS]
        leaves = ~np.any([_given(column) for column in columns], axis=0)
        found = np.zeros((batch.num_rows, 4), np.int64)
        for side in (0, 2):
            windows, epsilons = (
                np.full(len(column), np.nan) if numbers is None else numbers
                for column in columns[side : side + 2]
                for numbers in (as_numbers(column, booleans=False),)
            )
            good = valid_windows(windows) & valid_epsilons(epsilons)
            # Any two changes may have to be kept together: see `strictest`.
            good &= leave_shares(epsilons, self.longest_window, self.sensitivity)
            faults.add(np.flatnonzero(~good & ~leaves), BAD_REQUIREMENT)
            faults.add(np.flatnonzero(good & (windows > self.longest_window)), WINDOW_TOO_LONG)
            good &= ~leaves
            found[good, side] = windows[good].astype(np.int64)
            found[good, side + 1] = to_units(epsilons[good])
        return found


def spread(
    found: dict[int, tuple[Changes, npt.NDArray[np.uint64]]], shards: int, queries: int = 1
) -> Iterator[tuple[ShardKey, Changes]]:
    """(shard, changes) of the shards that have some, which are those of `event_codes.pack`.

    Each of several queries has shards of all users.
    """
    for kind, (changes, numbers) in found.items():
        shard = (numbers % np.uint64(shards)).astype(np.int64)
        for number in np.unique(shard).tolist():
            some = changes[shard == number]
            for query in range(queries):
                yield (kind, query * shards + number), some


def map_changes(mapper: ChangeMapper, layout: Layout, batch: pa.RecordBatch) -> Iterator[Output]:
    """A batch of changes to (shard, Changes); on the side dead letters, and a tally as bytes."""
    taken = tally_of(batch).messages
    if not batch.num_rows:  # of no rows a column may have any type
        yield Output(EventTally(messages=taken).to_bytes(), TALLIES)
        return
    found, rejected = mapper.map(batch)
    metrics.count(metrics.CHANGES_READ, batch.num_rows)
    metrics.count(metrics.CHANGES_ACCEPTED, batch.num_rows - rejected.num_rows)
    if rejected.num_rows:
        for reason, number in reasons_of(rejected):
            metrics.count(metrics.CHANGES_REJECTED_PREFIX + reason, number)
        yield Output(rejected, REJECTED)
    shards = list(spread(found, *layout.shards_of_all_users))
    yield Output(EventTally(messages=taken + len(shards)).to_bytes(), TALLIES)
    for key, changes in shards:
        data = changes.to_bytes()
        yield Output((key, layout.message(Kind.CHANGES, changes.first, key, data)))


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """A column, decoded, blank text as null."""
    array = column_of(batch, name, "changes of requirements")
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_string_view(array.type):
        array = array.cast(pa.large_string())
    if name != "user" and (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
        array = pc.if_else(pc.equal(pc.utf8_trim_whitespace(array), ""), None, array)
    return array


def _given(column: pa.Array) -> npt.NDArray[np.bool_]:
    valid: npt.NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _detail(reason: str, record: dict[str, Any]) -> str:
    if reason in (NULL_USER, UNREADABLE_USER):
        names: tuple[str, ...] = ("user",)
    elif reason in (BAD_REQUIREMENT, WINDOW_TOO_LONG):
        names = REQUIREMENT_COLUMNS
    else:
        names = ("slot", "time")
    return ", ".join(
        f"{name} is {'null' if record[name] is None else record[name]}"
        for name in CHANGE_COLUMNS
        if name in names and name in record
    )
