"""The table of users as a stream with a kept state remembers it: at its start, and now."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streamveil.io.tables import write_table
from streamveil.mechanisms.core.budgets import Requirements
from streamveil.mechanisms.core.records import REQUIREMENT_COLUMNS, ConfigurationError, Requirement
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.core.wording import opt

_FIGURES = ("window", "epsilon", "max_slots")
_KINDS = (pa.int64(), pa.float64(), pa.int64())
_SCHEMA = pa.schema(
    [
        pa.field("user", pa.string(), nullable=False),
        # As the stream began, and now; a window of 0 where the user is not in the table, and a
        # limit of 0 where it has none. Tables of earlier versions have no limits.
        *(
            pa.field(f"{name}_{when}", kind, nullable=False)
            for when in ("begun", "now")
            for name, kind in zip(_FIGURES, _KINDS, strict=True)
        ),
    ]
)
_FACTS = b"streamveil.users"


@dataclass(frozen=True, eq=False)
class Asked:
    """What the users of a table ask for."""

    windows: npt.NDArray[np.int64]
    """Shape (n,), 0 for a user who is not in the table."""
    epsilons: npt.NDArray[np.float64]
    """Shape (n,)."""
    max_slots: npt.NDArray[np.int64]
    """Slots of a block in which they count, shape (n,), 0 where the table does not say."""

    @classmethod
    def of(cls, registry: Registry) -> Asked:
        """Those of a registry's users, in their order."""
        windows = registry.classes.windows
        epsilons = np.array([r.epsilon for r in registry.classes], np.float64)
        limits = np.array(registry.max_slots or (None,) * len(windows), np.float64)
        most = np.nan_to_num(limits).astype(np.int64)
        classes = registry.class_of
        return cls(windows[classes], epsilons[classes], most[classes])

    def __getitem__(self, rows: Any) -> Asked:
        """Some of them."""
        return Asked(self.windows[rows], self.epsilons[rows], self.max_slots[rows])

    def __setitem__(self, rows: Any, other: Asked) -> None:
        """Some of them now ask for this."""
        self.windows[rows], self.epsilons[rows] = other.windows, other.epsilons
        self.max_slots[rows] = other.max_slots

    def followed_by(self, other: Asked) -> Asked:
        """These and then others."""
        return Asked(
            np.concatenate([self.windows, other.windows]),
            np.concatenate([self.epsilons, other.epsilons]),
            np.concatenate([self.max_slots, other.max_slots]),
        )

    @classmethod
    def nothing(cls, users: int) -> Asked:
        """Of users who are not in the table."""
        return cls(np.zeros(users, np.int64), np.zeros(users), np.zeros(users, np.int64))


@dataclass(frozen=True, eq=False)
class TableChanges:
    """The public differences between two requirements tables of a stream."""

    users: pa.StringArray
    """Users who are new or whose requirement changes, followed by users who left, each user
    once."""
    asked: Asked
    """New requirement of each of `users`. The window is 0 for a user who leaves."""
    joining: int
    """Number of users who join."""
    leaving: int
    """Number of users who leave."""

    def __len__(self) -> int:
        return len(self.users)

    def __str__(self) -> str:
        others = len(self) - self.joining - self.leaving
        return f"{self.joining:,} joined, {self.leaving:,} left, {others:,} ask for something else"

    def batch(self, slot: int) -> pa.RecordBatch:
        """Return the differences as changes of requirements that apply from `slot` onwards.

        The result is an Arrow record batch.
        """
        window, epsilon = (
            pa.array(values.astype(np.float64), mask=self.asked.windows == 0)
            for values in (self.asked.windows, self.asked.epsilons)
        )
        return pa.RecordBatch.from_arrays(
            [self.users, pa.array(np.full(len(self), slot)), window, epsilon, window, epsilon],
            names=["user", "slot", *REQUIREMENT_COLUMNS],
        )


@dataclass(frozen=True)
class _ReadAgain:
    """Reads the table that a stream began with."""

    path: str

    def __call__(self) -> Registry:
        return UserTable.read(Path(self.path)).registry(Path(self.path))


@dataclass(frozen=True, eq=False)
class UserTable:
    """The users of a stream and their requirements. The requirements table may change between runs.

    Requirements are public, but user ids may be personal data. The stream stores its first
    requirements table, and stores later tables as changes of requirements.
    """

    users: pa.StringArray
    """Users of the first table in its order, including users who left, followed by users who joined
    later."""
    begun: Asked
    """The first table."""
    now: Asked
    """The last table."""
    default: tuple[Requirement, int | None] | None
    """Requirement of unregistered users, and the number of these users that was given."""
    longest_window: int | None = None
    """The longest window that a change may set, in slots, if this option was given."""
    classes: Requirements | None = None
    """In the local model, all requirements that were ever used, beginning with the requirements of
    the first table. Otherwise None."""

    @classmethod
    def begin(cls, registry: Registry, *, local: bool = False) -> UserTable:
        """Return the table of a new stream."""
        asked, classes = Asked.of(registry), registry.classes if local else None
        return cls(_as_array(registry.users), asked, asked, registry.default, classes=classes)

    @property
    def members(self) -> int:
        """Number of users in the first table."""
        return int((self.begun.windows > 0).sum())

    @property
    def longest(self) -> int:
        """The longest window in the first requirements table or in the default requirement."""
        windows = [int(self.begun.windows.max(initial=0))]
        return max(windows + ([self.default[0].window] if self.default else []))

    @property
    def least(self) -> float:
        """The smallest epsilon in the first requirements table or in the default requirement."""
        usual = self.default[0].epsilon if self.default else np.inf
        return float(self.begun.epsilons[self.begun.windows > 0].min(initial=usual))

    def registry(self, path: Path | None = None) -> Registry:
        """Return the requirements table of the stream.

        If you give the path of a file that :meth:`write` wrote, workers read the table from this
        file. In the local model, users who joined after the start of the stream are at the end of
        the table.
        """
        reload = None if path is None else _ReadAgain(str(path))
        first = self.begun.windows > 0
        if self.classes is not None:
            class_of = _classes(self.begun, self.classes)
            class_of[~first] = 0
            sizes = np.bincount(class_of, minlength=len(self.classes))
            return Registry(self.users, class_of, self.classes, sizes, reload=reload)
        return Registry.build(
            self.users.filter(pa.array(first)),
            self.begun.windows[first],
            self.begun.epsilons[first],
            max_slots=self.begun.max_slots[first],
            default=self.default,
            reload=reload,
        )

    def changed_to(self, registry: Registry) -> tuple[UserTable, TableChanges]:
        """Return a copy with a new requirements table, and the changes from the earlier table.

        A user who is not in the new table gets the default requirement. If there is no default
        requirement, the user leaves the stream.

        Raises:
            ConfigurationError: if the new table has a different requirement for unregistered users.
        """
        if registry.default != self.default:
            raise ConfigurationError(
                f"users outside the table have {_words(self.default)} in this stream, and "
                f"{_words(registry.default)} now ({opt.default_requirement}, {opt.budget}): that "
                "cannot change while the stream runs; use the values that it started with"
            )
        users, asked = _as_array(registry.users), Asked.of(registry)
        at = pc.fill_null(pc.index_in(users, value_set=self.users), -1).to_numpy()
        known = at >= 0
        before = Asked.nothing(len(users))
        before[known] = self.now[at[known]]
        differs = (before.windows != asked.windows) | (before.epsilons != asked.epsilons)
        differs |= before.max_slots != asked.max_slots
        missing = self.now.windows > 0
        missing[at[known]] = False
        gone = Asked.nothing(int(missing.sum()))
        if self.default is not None:
            gone.windows[:], gone.epsilons[:] = self.default[0].window, self.default[0].epsilon
        changes = TableChanges(
            pa.concat_arrays(
                [users.filter(pa.array(differs)), self.users.filter(pa.array(missing))]
            ),
            asked[differs].followed_by(gone),
            int((before.windows == 0).sum()),
            len(gone.windows),
        )
        now = Asked.nothing(len(self.users))
        now[at[known]] = asked[known]
        new = ~known
        everybody = replace(
            self,
            users=pa.concat_arrays([self.users, users.filter(pa.array(new))]),
            begun=self.begun.followed_by(Asked.nothing(int(new.sum()))),
            now=now.followed_by(asked[new]),
        )
        if self.classes is not None:
            later = {Requirement(*pair) for pair in _pairs(asked)} - set(self.classes)
            return replace(
                everybody, classes=Requirements((*self.classes, *sorted(later)))
            ), changes
        return everybody._without(
            (everybody.begun.windows == 0) & (everybody.now.windows == 0)
        ), changes

    def moves(self, changes: TableChanges) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Return the positions and new requirement classes of the users whose requirements change.

        If c users change, the positions and the classes are two arrays of shape (c,). The positions
        are in ascending order. The class of a user who leaves is -1. Call this method only in the
        local model, on the object that :meth:`changed_to` returned.
        """
        assert self.classes is not None
        at = pc.index_in(changes.users, value_set=self.users).to_numpy().astype(np.int32)
        order = np.argsort(at)
        return at[order], _classes(changes.asked, self.classes)[order]

    def _without(self, rows: npt.NDArray[np.bool_]) -> UserTable:
        return replace(
            self,
            users=self.users.filter(pa.array(~rows)),
            begun=self.begun[~rows],
            now=self.now[~rows],
        )

    def write(self, path: Path) -> None:
        """Write the requirements table to a Parquet file.

        Other programs never see an incomplete file.
        """
        default = self.default and (
            self.default[0].window,
            self.default[0].epsilon,
            self.default[1],
        )
        classes = self.classes and [(r.window, r.epsilon) for r in self.classes]
        facts = json.dumps(
            {"default": default, "longest_window": self.longest_window, "classes": classes}
        )
        schema = _SCHEMA.with_metadata({_FACTS: facts})
        asked = [
            figures
            for when in (self.begun, self.now)
            for figures in (when.windows, when.epsilons, when.max_slots)
        ]
        columns = [self.users, *map(pa.array, asked)]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        write_table(str(path), schema, [batch], private=True)

    @classmethod
    def read(cls, path: Path) -> UserTable:
        """Read a file that :meth:`write` wrote."""
        table = pq.read_table(path, use_threads=False)
        facts = json.loads(table.schema.metadata[_FACTS])
        default, classes = facts["default"], facts.get("classes")
        if default is not None:
            default = (Requirement(*default[:2]), default[2])
        return cls(
            table.column("user").combine_chunks().cast(pa.string()),
            _asked(table, "begun"),
            _asked(table, "now"),
            default,
            facts["longest_window"],
            None if classes is None else Requirements(Requirement(*pair) for pair in classes),
        )


def _asked(table: pa.Table, when: str) -> Asked:
    windows, epsilons = (table.column(f"{name}_{when}").to_numpy() for name in _FIGURES[:2])
    limits = np.zeros(len(windows), np.int64)
    if f"{_FIGURES[2]}_{when}" in table.column_names:
        limits = table.column(f"{_FIGURES[2]}_{when}").to_numpy()
    return Asked(windows, epsilons, limits)


def _as_array(users: Sequence[str] | pa.Array) -> pa.StringArray:
    return users.cast(pa.string()) if isinstance(users, pa.Array) else pa.array(users, pa.string())


def _pairs(asked: Asked) -> set[tuple[int, float]]:
    """The different requirements of the users who have one."""
    here = asked.windows > 0
    return set(zip(asked.windows[here].tolist(), asked.epsilons[here].tolist(), strict=True))


def _classes(asked: Asked, classes: Sequence[Requirement]) -> npt.NDArray[np.int32]:
    """The class of each user, -1 for one who has no requirement: shape (n,)."""
    found = np.full(len(asked.windows), -1, np.int32)
    for k, one in enumerate(classes):
        found[(asked.windows == one.window) & (asked.epsilons == one.epsilon)] = k
    return found


def _words(default: tuple[Requirement, int | None] | None) -> str:
    if default is None:
        return "no requirement"
    requirement, users = default
    number = "" if users is None else f",{users}"
    return f"{requirement.window},{requirement.epsilon:g}{number}"
