"""The record types that every part of streamveil shares: what goes in, what comes out.

Nothing here computes a release. Times are integers in microseconds since 1970-01-01T00:00Z;
a slot is an integer; budgets are floats here and exact integers in
:mod:`streamveil.mechanisms.budgets`.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import itertools
import math
import re
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

MICROSECONDS = {
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)

# Above this, an epsilon is a typing error: exp(MAX_EPSILON) is no protection at all. The bound
# keeps integer budgets below 2**53, where a float still holds them exactly.
MAX_EPSILON = 2.0**12
MAX_WINDOW = 2**20
# Half of a budget is spent in equal shares over the window. A share below one unit of budget is
# nothing: such a user would never count, so tables that ask for it are refused.
SMALLEST_SHARE = 2.0**-40

MAX_SLOT = 36_525 * MICROSECONDS["d"]  # a hundred years

# A date, or a date and a clock time with or without an offset. Python would read more, such as
# an offset right after a date as a clock time.
_ISO_TIME = re.compile(
    r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}([.]\d{1,6})?)?(Z|z|[+-]\d{2}:\d{2})?)?"
)

PUBLISHED = "published"
SKIPPED = "skipped"
NULLIFIED = "nullified"
PREDICTED = "predicted"
STATUSES = (PUBLISHED, PREDICTED, SKIPPED, NULLIFIED)

# Columns of the dead-letter output, as (name, Arrow type): where the record stood, why it was
# rejected, what was found there, and the record itself as JSON or as the raw line.
REJECTED_COLUMNS = (
    ("source", "string"),
    ("row", "int64"),
    ("reason", "string"),
    ("detail", "string"),
    ("record", "string"),
)

# Beam's counters, in one namespace.
METRICS_NAMESPACE = "streamveil"
EVENTS_READ = "events_read"
REJECTED_PREFIX = "rejected: "

# A batch of events may say where its rows stood: this key of the schema's metadata names the
# source, this column (int64) the row in it.
SOURCE_METADATA = b"streamveil.source"
ROW_COLUMN = "__row__"


class ConfigurationError(ValueError):
    """Something the caller asked for cannot be done; raised before any budget is spent."""


@dataclass(frozen=True, order=True)
class Requirement:
    """A user's privacy requirement: at most `epsilon` over any `window` consecutive slots.

    Raises ConfigurationError for a window that is not a whole number from 1 to 2**20, or an
    epsilon that is not finite, not above 0, or above 4096.
    """

    window: int
    """Length of the window, in slots."""
    epsilon: float
    """Budget in any such window, in nats (the epsilon of pure differential privacy)."""

    def __post_init__(self) -> None:
        """Check and normalise both fields."""
        window, epsilon = self.window, self.epsilon
        if isinstance(window, bool) or not _is_whole(window) or not 1 <= window <= MAX_WINDOW:
            raise ConfigurationError(
                f"window {window!r} is not a whole number of slots from 1 to {MAX_WINDOW}"
            )
        if isinstance(epsilon, bool) or not isinstance(epsilon, (int, float, np.number)):
            raise ConfigurationError(f"epsilon {epsilon!r} is not a number")
        if not (math.isfinite(epsilon) and 0 < epsilon <= MAX_EPSILON):
            raise ConfigurationError(
                f"epsilon {epsilon!r} is not a finite number above 0 and at most {MAX_EPSILON:g}"
            )
        object.__setattr__(self, "window", int(window))
        object.__setattr__(self, "epsilon", float(epsilon))


def _is_whole(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and float(value).is_integer()


@dataclass(frozen=True)
class Slots:
    """How time is cut: slot = floor((event time - origin) / length).

    Raises ConfigurationError for a length that is not a positive number of milliseconds.
    """

    length: int
    """Length of a slot, in microseconds."""
    origin: int = 0
    """Start of slot 0, in microseconds since 1970-01-01T00:00Z."""

    def __post_init__(self) -> None:
        """Check both fields: Beam's windows count in milliseconds."""
        if not 0 < self.length <= MAX_SLOT or self.length % 1000 or self.origin % 1000:
            raise ConfigurationError(
                f"slot length {self.length} us and origin {self.origin} us must be whole "
                "milliseconds, the length above 0 and at most a hundred years"
            )

    @classmethod
    def of(cls, length: str, origin: str | dt.datetime | None = None) -> Slots:
        """Make slots from text: a length such as `1d`, `1h`, `5m`, `60s`, and an ISO 8601 origin.

        An origin without an offset is read as UTC.
        """
        match = re.fullmatch(r"\s*(\d+)\s*(ms|s|m|h|d)\s*", length)
        if not match or int(match[1]) == 0:
            raise ConfigurationError(
                f"slot length {length!r} is not a whole number above 0 with a unit: "
                "write 1d, 1h, 5m, 60s or 500ms"
            )
        size = int(match[1]) * MICROSECONDS[match[2]]
        if size > MAX_SLOT:
            raise ConfigurationError(
                f"slot length {length!r} is more than a hundred years: use shorter slots"
            )
        return cls(size, 0 if origin is None else parse_time(origin))

    def start(self, slot: int) -> int:
        """First microsecond of a slot."""
        return self.origin + slot * self.length

    def end(self, slot: int) -> int:
        """First microsecond after a slot."""
        return self.start(slot + 1)

    def index(self, time: int) -> int:
        """Slot of a time in microseconds."""
        return (time - self.origin) // self.length


def parse_time(text: str | dt.datetime) -> int:
    """Microseconds since 1970-01-01T00:00Z of an ISO 8601 time; without an offset it is UTC."""
    if isinstance(text, str):
        try:
            if not _ISO_TIME.fullmatch(text.strip()):
                raise ValueError
            # Python 3.10 reads neither a final Z nor a fraction of other than 3 or 6 digits.
            full = re.sub(r"[.]\d+", lambda m: m[0].ljust(7, "0"), text.strip())
            value = dt.datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", full))
        except ValueError:
            raise ConfigurationError(
                f"time {text!r} is not ISO 8601: write 2024-03-31 or 2024-03-31T00:00:00+02:00"
            ) from None
    else:
        value = text
    if value.tzinfo is None:
        value = value.replace(tzinfo=dt.timezone.utc)
    return (value - EPOCH) // dt.timedelta(microseconds=1)


def format_time(time: int) -> str:
    """ISO 8601 in UTC of a time in microseconds."""
    return (EPOCH + dt.timedelta(microseconds=time)).isoformat().replace("+00:00", "Z")


@dataclass(frozen=True)
class Categories:
    """A domain of listed values: one bin for each, in the order given.

    Integer values in the data are matched by their decimal text. Raises ConfigurationError for an
    empty list, an empty value or a duplicate.
    """

    values: tuple[str, ...]
    """The text of each bin, in order."""

    def __post_init__(self) -> None:
        """Check the list."""
        object.__setattr__(self, "values", tuple(str(value) for value in self.values))
        if not self.values:
            raise ConfigurationError("the domain has no bins: list at least one value")
        seen: set[str] = set()
        for value in self.values:
            if not value:
                raise ConfigurationError("the domain lists an empty value: name every bin")
            if value in seen:
                raise ConfigurationError(
                    f"the domain lists the bin {value!r} twice: list every value once"
                )
            seen.add(value)

    @property
    def bins(self) -> int:
        """Number of bins."""
        return len(self.values)

    @property
    def labels(self) -> tuple[str, ...]:
        """A name for each bin."""
        return self.values


@dataclass(frozen=True)
class Edges:
    """A numeric domain: bin j holds edges[j] <= value < edges[j + 1].

    Raises ConfigurationError unless there are at least two finite, strictly rising edges.
    """

    edges: tuple[float, ...]
    """The bounds of the bins, one more than there are bins."""

    def __post_init__(self) -> None:
        """Check the edges."""
        edges = tuple(float(edge) for edge in self.edges)
        object.__setattr__(self, "edges", edges)
        if len(edges) < 2 or not all(map(math.isfinite, edges)):
            raise ConfigurationError(f"numeric edges {edges} must be two or more finite numbers")
        for low, high in itertools.pairwise(edges):
            if low >= high:
                raise ConfigurationError(
                    f"numeric edges must rise strictly: {low!r} comes before {high!r}"
                )

    @property
    def bins(self) -> int:
        """Number of bins."""
        return len(self.edges) - 1

    @property
    def labels(self) -> tuple[str, ...]:
        """A name for each bin: its bounds."""
        return tuple(f"[{a:g}, {b:g})" for a, b in itertools.pairwise(self.edges))


@dataclass(frozen=True)
class Grid:
    """A domain of map cells: rows x columns over a box of longitude and latitude, in degrees.

    Bin = row * columns + column, from the south-west corner; a cell holds its west and south
    bounds. Raises ConfigurationError for an empty box or grid.
    """

    west: float
    south: float
    east: float
    north: float
    columns: int
    rows: int

    def __post_init__(self) -> None:
        """Check the box."""
        box = (self.west, self.south, self.east, self.north)
        inside = -180 <= self.west < self.east <= 180 and -90 <= self.south < self.north <= 90
        if not inside:
            raise ConfigurationError(
                f"grid box {box} must be west < east within 180 degrees and south < north within 90"
            )
        if self.columns < 1 or self.rows < 1:
            raise ConfigurationError(
                f"grid of {self.columns} columns and {self.rows} rows has no cell"
            )

    @property
    def bins(self) -> int:
        """Number of bins."""
        return self.columns * self.rows

    @property
    def labels(self) -> tuple[str, ...]:
        """A name for each bin: its row and column."""
        return tuple(f"r{row}c{col}" for row in range(self.rows) for col in range(self.columns))


Domain = Categories | Edges | Grid


@dataclass(frozen=True, eq=False)
class Registry:
    """The PUBLIC table user -> requirement, as classes of users who ask for the same.

    Thresholds, budgets and class sizes are computed from this table alone, so it must not depend
    on who is present in the data. Make one with :meth:`build`, :meth:`of` or
    `streamveil.io.read_requirements`.
    """

    users: Sequence[str]
    """The registered user ids, distinct, as text (a list, or an Arrow string array)."""
    class_of: npt.NDArray[np.int32]
    """Class of each of `users`, shape (users,)."""
    classes: tuple[Requirement, ...]
    """The distinct requirements, shape (K,): those of the table sorted, then one that only users
    outside it have."""
    sizes: npt.NDArray[np.int64]
    """Public number of users in each class, shape (K,)."""
    default_class: int | None = None
    """Class of a user who is not in the table, or None when such users are rejected."""
    reload: Callable[[], Registry] | None = field(default=None, repr=False)
    """How a worker gets this registry without it travelling in the pipeline's graph."""

    def __post_init__(self) -> None:
        """Remember a registry that can be reloaded: unpickled in this process, it is found."""
        if self.reload is not None:
            _LIVING[self.fingerprint] = self

    @classmethod
    def build(
        cls,
        users: Sequence[str],
        windows: npt.NDArray[np.int64],
        epsilons: npt.NDArray[np.float64],
        *,
        default: tuple[Requirement, int] | None = None,
        reload: Callable[[], Registry] | None = None,
    ) -> Registry:
        """Group users by requirement.

        Args:
            users: distinct ids, length n.
            windows: slots, shape (n,).
            epsilons: budgets, shape (n,).
            default: requirement of users outside the table and the public number of them.
            reload: see the field.

        Raises:
            ConfigurationError: for a requirement out of range or an empty registry.
        """
        lengths, window_of = _distinct(windows)
        budgets, budget_of = _distinct(epsilons)
        asked, class_of = _distinct(window_of * len(budgets) + budget_of)
        classes = [
            Requirement(int(lengths[pair // len(budgets)]), float(budgets[pair % len(budgets)]))
            for pair in asked.tolist()
        ]
        sizes = np.bincount(class_of, minlength=len(classes)).astype(np.int64)
        default_class = None
        if default is not None:
            requirement, count = default
            if count < 1:
                raise ConfigurationError(
                    f"the default requirement is for {count} users: give their public number, "
                    "1 or more"
                )
            if requirement not in classes:
                classes.append(requirement)
                sizes = np.append(sizes, 0)
            default_class = classes.index(requirement)
            sizes[default_class] += count
        if not classes:
            raise ConfigurationError(
                "the table of requirements is empty and there is no default requirement: "
                "nobody could be counted"
            )
        return cls(users, class_of.astype(np.int32), tuple(classes), sizes, default_class, reload)

    @classmethod
    def of(
        cls,
        requirements: Mapping[str, Requirement | tuple[int, float]] | Iterable[Any] = (),
        *,
        default: tuple[Requirement, int] | None = None,
    ) -> Registry:
        """Make a small registry from a mapping user -> Requirement or (window, epsilon)."""
        table = {str(user): as_requirement(r) for user, r in dict(requirements).items()}
        return cls.build(
            list(table),
            np.array([r.window for r in table.values()], np.int64),
            np.array([r.epsilon for r in table.values()], np.float64),
            default=default,
        )

    def classes_with_other(self) -> npt.NDArray[np.int32]:
        """`class_of`, and last the class of users outside the table (0 if they are rejected)."""
        return np.append(self.class_of, np.int32(self.default_class or 0))

    @property
    def fingerprint(self) -> str:
        """Digest of everything but the ids themselves: two loads of one table agree on it."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(repr((len(self.users), self.classes, self.default_class)).encode())
        digest.update(np.ascontiguousarray(self.sizes).tobytes())
        digest.update(np.ascontiguousarray(self.class_of).tobytes())
        return digest.hexdigest()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the way to load it again, when there is one."""
        if self.reload is not None:
            return _reload_registry, (self.reload, self.fingerprint)
        return Registry, (self.users, self.class_of, self.classes, self.sizes, self.default_class)


def _distinct(values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Distinct values, ascending, and where each value is among them."""
    distinct = np.unique(values)
    return distinct, np.searchsorted(distinct, values)


_LIVING: weakref.WeakValueDictionary[str, Registry] = weakref.WeakValueDictionary()


def _reload_registry(reload: Callable[[], Registry], fingerprint: str) -> Registry:
    living = _LIVING.get(fingerprint)
    if living is not None and living.reload == reload:
        return living
    loaded = reload()
    if loaded.fingerprint != fingerprint:
        raise ConfigurationError(
            f"the table of requirements changed after the pipeline was built ({reload}): "
            "launch the pipeline again"
        )
    return loaded


def as_requirement(value: Requirement | Sequence[float]) -> Requirement:
    """Read a Requirement or a (window, epsilon) pair."""
    if isinstance(value, Requirement):
        return value
    try:
        window, epsilon = value
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"requirement {value!r} is neither a Requirement nor a (window, epsilon) pair"
        ) from None
    return Requirement(window, epsilon)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Release:
    """What is published for one slot: safe to show to anyone."""

    slot: int
    start: int
    """Start of the slot, microseconds since the epoch."""
    end: int
    """First microsecond after the slot."""
    counts: npt.NDArray[np.int64]
    """Private count of each bin, shape (bins,); noise may make it negative."""
    status: str
    """`published`, `skipped` (the last publication is repeated), `nullified` (it had to be), or
    `predicted` (`counts` are a forecast from earlier publications)."""
    published_slot: int | None
    """Slot of the publication that `counts` repeats or continues; None before the first one."""
    epsilon: float
    """Threshold budget of that publication: its noise has scale sensitivity / epsilon."""
    stderr: npt.NDArray[np.float64]
    """Expected standard error of each count at its publication, shape (bins,); NaN before one."""
    mechanism: str
    alarm: bool = False
    """Whether the mechanism saw a jump in this slot."""
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    """What the mechanism says of itself in this slot, by name."""


@dataclass(frozen=True, eq=False)
class LedgerEntry:
    """What one slot cost every class of users, as the odometer booked it."""

    slot: int
    classes: tuple[Requirement, ...]
    users: npt.NDArray[np.int64]
    """Public class sizes, shape (K,)."""
    spent: npt.NDArray[np.float64]
    """Epsilon spent in this slot, shape (K,)."""
    spent_in_window: npt.NDArray[np.float64]
    """Epsilon spent in the window of each class that ends with this slot, shape (K,)."""
