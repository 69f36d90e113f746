"""The record types that every part of streamveil shares: requirements, slots and what comes out.

Nothing here computes a release. Times are integers in microseconds since 1970-01-01T00:00Z;
a slot is an integer; budgets are floats here and exact integers in
:mod:`streamveil.mechanisms.core.budgets`.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import zoneinfo
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.identity import Form, Identified
from streamveil.mechanisms.core.wording import opt

MICROSECONDS = {
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}
MONDAY = 4 * MICROSECONDS["d"]
"""Start of 1970-01-05, where weeks begin unless something else is asked for."""
# Units of times that are given as numbers.
EXCEL = "excel"
UNITS = ("s", "ms", "us", "ns", EXCEL)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)

# Above this, an epsilon is a typing error: exp(MAX_EPSILON) is no protection at all. The bound
# keeps integer budgets below 2**53, where a float still holds them exactly.
MAX_EPSILON = 2.0**12
MAX_WINDOW = 2**20
LEAST_DELTA, MOST_DELTA = 1e-15, 0.1
"""A smaller delta would be lost to rounding, and a larger one protects very little."""
# Half of a budget is spent in equal shares over the window. A share below one unit of budget is
# nothing: such a user would never count, and silence all others where one schedule is for all.
SMALLEST_SHARE = 2.0**-40

ADD_REMOVE = "add_remove"
"""Adjacency in which all events of a user in a window are added or removed (unbounded DP)."""
REPLACE = "replace"
"""Adjacency in which any events of a user in a window are replaced by other events (bounded DP)."""

MAX_SLOT = 36_525 * MICROSECONDS["d"]  # a hundred years

# A date, or a date and a clock time with or without an offset. Python would read more, such as
# an offset right after a date as a clock time.
_ISO_TIME = re.compile(
    r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}([.]\d{1,6})?)?(Z|z|[+-]\d{2}:\d{2})?)?"
)

# Other ways to write such a time, and what takes their place: for re and for RE2.
TIME_VARIANTS = (
    (r"^(\d{4})/(\d{2})/(\d{2})", r"\1-\2-\3"),
    (r"^(\d{4})(\d{2})(\d{2})T(\d{2})(\d{2})(\d{2})", r"\1-\2-\3T\4:\5:\6"),
    (r"^(\d{4})(\d{2})(\d{2})T(\d{2})(\d{2})", r"\1-\2-\3T\4:\5"),
    (r"(:\d{2}),(\d+)", r"\1.\2"),
    (r"(\d) ?(?i:utc|gmt|ut|z)$", r"\1Z"),
)

COUNT = "count"
"""The query, and the statistic, of a single count in tables."""

PUBLISHED = "published"
SKIPPED = "skipped"
NULLIFIED = "nullified"
PREDICTED = "predicted"
UNMEASURED = "unmeasured"
TEST = "test"
STATUSES = (PUBLISHED, PREDICTED, SKIPPED, NULLIFIED, UNMEASURED, TEST)

NO_NOISE = "no noise: test mode"
"""Mechanism of results in test mode."""
NOT_PRIVATE = "test mode: no noise is added, and the results are NOT private: never publish them"
"""Warning that goes with them."""

# Columns of the dead-letter output, as (name, Arrow type): where the record stood, why it was
# rejected, what was found there, and the record itself as JSON or as the raw line.
REJECTED_COLUMNS = (
    ("source", "string"),
    ("row", "int64"),
    ("reason", "string"),
    ("detail", "string"),
    ("record", "string"),
)

# Columns of a change of requirement, as DynamicRequirement has them; from a slot, or from a time.
REQUIREMENT_COLUMNS = (
    "window_backward",
    "epsilon_backward",
    "window_forward",
    "epsilon_forward",
)
CHANGE_COLUMNS = ("user", "slot", "time", *REQUIREMENT_COLUMNS)


class QueryColumn(str):
    """Name of a column that only some queries read.

    A cell of it that is no text, number or boolean becomes text, which those queries cannot use,
    rather than a fault of its event, which others count.
    """

    __slots__ = ()


# Beam's counters, in one namespace.
METRICS_NAMESPACE = "streamveil"
EVENTS_READ = "events_read"
REJECTED_PREFIX = "rejected: "

# A batch of events may say where its rows stood: this key of the schema's metadata names the
# source, this column (int64) the row in it.
SOURCE_METADATA = b"streamveil.source"
ROW_COLUMN = "__row__"
# This one says how many events were lost on the way to the batch, as an `EventTally`.
LOST_METADATA = b"streamveil.lost"
# A batch that was made of rows says in this column (string) what is wrong with those that could not
# be read, null for all others; it is not there if all could.
FAULT_COLUMN = "__fault__"


# Which of more events of a user count than may: any, all as likely, or those in different bins.
UNIFORM = "uniform"
DISTINCT = "distinct"
KEEPS = (UNIFORM, DISTINCT)


class ConfigurationError(ValueError):
    """The error for an option or argument that is not valid or cannot be combined with another one.

    This error is raised before any budget is spent. The only exception is a private estimate that
    you requested, for example with `bounds="auto"`, because the estimate spends its part of the
    budget first.

    Example:
        >>> try:
        ...     Requirement(7, epsilon=-1)
        ... except ConfigurationError as error:
        ...     print(error)
        epsilon -1 is not a finite number above 0 and at most 4096
    """


class InputLost(ConfigurationError):  # noqa: N818
    """The error for a bounded input if too many of its events were rejected, late or lost.

    The error is raised if more than the fraction `max_rejected` of the events was rejected or late,
    if no event was accepted, or if a runner lost part of the input. Nothing is then released, and
    no budget is spent.

    Example:
        >>> issubclass(InputLost, ConfigurationError)
        True
    """


class NothingChosen(ConfigurationError):  # noqa: N818
    """Noise hides the numbers of a look, which is paid all the same."""


class MachineFault(RuntimeError):  # noqa: N818
    """The machine or a service failed, not the input or the options. Try the same run again."""


@dataclass(frozen=True, order=True)
class Requirement(Identified):
    """A user's privacy budget, which is at most `epsilon` over any `window` consecutive slots.

    Raises:
        ConfigurationError: if the window is not a whole number from 1 to 2**20, or if epsilon is 0,
            negative or above 4096.

    Example:
        >>> Requirement(window=7, epsilon=0.5)
        Requirement(window=7, epsilon=0.5)
    """

    IDENTITY = Form("requirement", ("window", "epsilon"))

    window: int
    """Length of the window, in slots."""
    epsilon: float
    """Budget in each window of this length. It is the ε of pure differential privacy, in nats."""

    def __post_init__(self) -> None:
        """Check and normalise both fields."""
        window, epsilon = self.window, self.epsilon
        if isinstance(window, bool) or not _is_whole(window) or not 1 <= window <= MAX_WINDOW:
            raise ConfigurationError(
                f"window {window!r} is not a whole number of slots from 1 to {MAX_WINDOW}"
            )
        if isinstance(epsilon, bool) or not isinstance(epsilon, (Real, Decimal)):
            raise ConfigurationError(f"epsilon {epsilon!r} is not a number")
        try:
            number = float(epsilon)
        except (OverflowError, ValueError):  # beyond what a float holds, or a signalling NaN
            number = math.inf
        if not 0 < number <= MAX_EPSILON:
            raise ConfigurationError(
                f"epsilon {epsilon!r} is not a finite number above 0 and at most {MAX_EPSILON:g}"
            )
        object.__setattr__(self, "window", int(window))
        object.__setattr__(self, "epsilon", number)


@dataclass(frozen=True, order=True)
class Lifetime(Requirement):
    """A lifetime budget, which is at most `epsilon` over the whole stream (user-level privacy).

    docs/explanation/lifetime-budgets.md explains how much accuracy a lifetime budget costs.

    Example:
        >>> Lifetime(2.0).epsilon
        2.0
    """

    IDENTITY = Form("lifetime", ("epsilon",), apart=("window",))

    window: int = field(default=MAX_WINDOW, init=False, repr=False)
    """The largest possible window, which stands for the whole stream."""


def _is_whole(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and float(value).is_integer()


def unpromised(requirement: Requirement) -> Requirement:
    """The requirement with epsilon 0, which cannot be asked for: nothing is promised."""
    made = copy(requirement)
    object.__setattr__(made, "epsilon", 0.0)
    return made


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


def requirement_and_delta(value: Requirement | Sequence[Any]) -> tuple[Requirement, float]:
    """Read a Requirement, (window, epsilon) or (window, epsilon, delta).

    Returns:
        The requirement and the delta, which is NaN if it is not given.

    Raises:
        ConfigurationError: for anything else.
    """
    if isinstance(value, Requirement) or not isinstance(value, Sequence) or len(value) != 3:
        return as_requirement(value), math.nan
    *requirement, delta = value
    is_number = isinstance(delta, (Real, Decimal)) and not isinstance(delta, bool)
    if not is_number or not valid_deltas(np.array([delta], np.float64)).all():
        raise ConfigurationError(
            f"delta {delta!r} is neither 0 nor a number from {LEAST_DELTA:g} to {MOST_DELTA:g}"
        )
    return as_requirement(requirement), float(delta)


@dataclass(frozen=True, order=True)
class DynamicRequirement:
    """A user's privacy budget from a given slot onwards, for requirements that change.

    The requirement has two budgets, one for a window that ends with the current slot and one for a
    window that begins with the current slot. Let t be any slot in which the requirement is in
    force. The `window_backward` slots that end with t spend at most `epsilon_backward`. The
    `window_forward` slots that begin with t spend at most `epsilon_forward`, even if a different
    requirement follows. A fixed :class:`Requirement` with the window w is equivalent to a changing
    requirement with both windows equal to w and both budgets equal to `epsilon`.

    Raises:
        ConfigurationError: if a window or an epsilon is outside the range that :class:`Requirement`
            allows.

    Example:
        >>> DynamicRequirement.constant(Requirement(7, 1.0)).epsilon_forward
        1.0
    """

    window_backward: int
    """Length of the backward window in slots, including the current slot."""
    epsilon_backward: float
    """Budget of that window."""
    window_forward: int
    """Length of the forward window in slots, including the current slot."""
    epsilon_forward: float
    """Budget of that window."""

    def __post_init__(self) -> None:
        """Check and normalise all fields."""
        for side in ("backward", "forward"):
            names = (f"window_{side}", f"epsilon_{side}")
            try:
                checked = Requirement(*(getattr(self, name) for name in names))
            except ConfigurationError as error:
                raise ConfigurationError(f"looking {side}: {error}") from None
            for name, value in zip(names, (checked.window, checked.epsilon), strict=True):
                object.__setattr__(self, name, value)

    @classmethod
    def constant(cls, requirement: Requirement) -> DynamicRequirement:
        """Return the changing requirement that is equivalent to a fixed requirement."""
        return cls(*(requirement.window, requirement.epsilon) * 2)


def as_dynamic_requirement(
    value: DynamicRequirement | Requirement | Sequence[float],
) -> DynamicRequirement:
    """Read a requirement of four figures, or a fixed one as (window, epsilon)."""
    if isinstance(value, DynamicRequirement):
        return value
    if not isinstance(value, Requirement) and len(value) == 4:
        return DynamicRequirement(*value)  # type: ignore[arg-type]
    return DynamicRequirement.constant(as_requirement(value))


def valid_windows(
    windows: npt.NDArray[np.float64], longest: int = MAX_WINDOW
) -> npt.NDArray[np.bool_]:
    """Which numbers are whole numbers of slots from 1 to `longest`; NaN is none."""
    return (windows == np.floor(windows)) & (windows >= 1) & (windows <= longest)


def valid_epsilons(epsilons: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Which numbers are above 0 and at most `MAX_EPSILON`; NaN is none."""
    return (epsilons > 0) & (epsilons <= MAX_EPSILON)


def valid_deltas(deltas: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Which numbers may be the delta of a user: 0, or from `LEAST_DELTA` to `MOST_DELTA`.

    NaN is none.
    """
    return (deltas == 0) | ((deltas >= LEAST_DELTA) & (deltas <= MOST_DELTA))


def leave_shares(
    epsilons: npt.NDArray[np.float64], windows: npt.ArrayLike, sensitivity: int = 1
) -> npt.NDArray[np.bool_]:
    """Which budgets leave at least `SMALLEST_SHARE` for every slot of their windows."""
    shares = 2 * sensitivity * np.asarray(windows, np.float64)
    enough: npt.NDArray[np.bool_] = epsilons >= shares * SMALLEST_SHARE
    return enough


def check_shares(requirements: Iterable[Requirement], sensitivity: int = 1) -> None:
    """Refuse a requirement that leaves nothing to spend in a slot, for any unit of sensitivity.

    Raises ConfigurationError.
    """
    for requirement in requirements:
        least = 2 * requirement.window * sensitivity * SMALLEST_SHARE
        if requirement.epsilon < least and isinstance(requirement, Lifetime):
            raise ConfigurationError(
                f"epsilon {requirement.epsilon:g} as a lifetime budget is too small to release "
                f"anything at sensitivity {sensitivity}: give {least:.3g} or more"
            )
        if requirement.epsilon < least:
            raise ConfigurationError(
                f"{requirement} leaves less than 2**-40 for a slot of its window at sensitivity "
                f"{sensitivity}, so such users could never be counted: ask for more epsilon or a "
                "shorter window"
            )


@dataclass(frozen=True)
class Slots(Identified):
    """Time slots, which are tumbling windows of equal length.

    An event belongs to the slot with the number floor((event time - origin) / length). The origin
    is the start of slot 0.

    Raises:
        ConfigurationError: if the length or the origin is not a whole number of milliseconds, or if
            the length is 0, negative or more than a hundred years.

    Example:
        >>> hours = Slots.of("1h", origin="2024-05-01")
        >>> format_time(hours.start(2))
        '2024-05-01T02:00:00Z'
    """

    IDENTITY = Form("slots", ("length", "origin"))

    length: int
    """Length of a slot, in microseconds."""
    origin: int = 0
    """Start of slot 0, in microseconds since 1970-01-01T00:00Z."""

    def __post_init__(self) -> None:
        """Check both fields: Beam's windows count in milliseconds."""
        for value in (self.length, self.origin):
            if isinstance(value, bool) or not isinstance(value, Integral):
                raise ConfigurationError(
                    f"slot length {self.length!r} and origin {self.origin!r} must be whole numbers "
                    "of microseconds: write text with its unit as Slots.of('1d')"
                )
        if not 0 < self.length <= MAX_SLOT or self.length % 1000 or self.origin % 1000:
            raise ConfigurationError(
                f"slot length {self.length} us and origin {self.origin} us must be whole "
                "milliseconds, the length above 0 and at most a hundred years"
            )

    @classmethod
    def of(cls, length: str, origin: str | dt.datetime | None = None) -> Slots:
        """Make slots from text.

        Args:
            length: length of a slot, such as `1w`, `1d`, `1h` or `60s`, or calendar months or years
                such as `1mo`, `3mo` or `1y`. Months and years are in UTC and are counted from
                January 1970.
            origin: start of slot 0, as ISO 8601 text or as a datetime. A time without a UTC offset
                is in UTC. The default is 1970-01-01. If the slots are weeks, the default is
                1970-01-05, which is a Monday.

        Raises:
            ConfigurationError: if the length or the origin of the slots is not valid, or if you
                give an origin for calendar months.
        """
        months = parse_months(length)
        if months is not None:
            # It stands on this module.
            from streamveil.mechanisms.core.local_days import CalendarMonths

            if origin is not None:
                raise ConfigurationError(
                    f"slots of {length.strip()} are counted from January 1970 on, and cannot begin "
                    f"at the origin {origin}: leave it out, or write such as 30d"
                )
            return CalendarMonths(months=months)
        size = parse_duration(length)
        if not size:
            raise ConfigurationError(
                f"slot length {length!r} is not a whole number above 0 with a unit: "
                "write 1w, 1d, 1h, 5m, 60s or 500ms, or calendar months and years as 1mo, 3mo or 1y"
            )
        if size > MAX_SLOT:
            raise ConfigurationError(
                f"slot length {length!r} is more than a hundred years: use shorter slots"
            )
        if origin is None:
            return cls(size, MONDAY % size if length.strip().endswith("w") else 0)
        return cls(size, parse_time(origin))

    @property
    def text(self) -> str:
        """The length of a slot as text, such as `1d`. Options such as `--slot` accept this text."""
        return format_duration(self.length)

    @property
    def shortest(self) -> int:
        """The length of the shortest slot in microseconds, as if the local clock never changed."""
        return self.length

    @property
    def of_days(self) -> bool:
        """Whether each slot consists of whole days."""
        return self.length % MICROSECONDS["d"] == 0

    def start(self, slot: int) -> int:
        """The first microsecond that belongs to the given slot."""
        return self.shown(slot)

    def shown(self, slot: int) -> int:
        """The local time at which the given slot begins, in microseconds since 1970."""
        return self.origin + slot * self.length

    def end(self, slot: int) -> int:
        """The first microsecond after the given slot."""
        return self.start(slot + 1)

    def index(self, time: int) -> int:
        """Number of the slot that contains a given time, in microseconds."""
        return (time - self.origin) // self.length

    def indices(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Numbers of the slots that contain the given times, in microseconds, int64, shape (n,)."""
        return (times - self.origin) // self.length


def parse_duration(text: str) -> int | None:
    """Microseconds of text such as `1w`, `1d`, `1h`, `5m`, `60s`, `500ms`; None for another one."""
    match = re.fullmatch(r"\s*(\d+)\s*(ms|s|m|h|d|w)\s*", text)
    return int(match[1]) * MICROSECONDS[match[2]] if match else None


def parse_months(text: str) -> int | None:
    """Calendar months of text such as `1mo` or `1y`; None for another one."""
    match = re.fullmatch(r"\s*(\d+)\s*(mo|y)\s*", text)
    return int(match[1]) * (12 if match[2] == "y" else 1) if match else None


def months_text(months: int) -> str:
    """Text that :func:`parse_months` reads."""
    return f"{months}mo" if months % 12 else f"{months // 12}y"


def format_duration(micros: int) -> str:
    """Text that :func:`parse_duration` reads, such as `1d`, for whole milliseconds above 0."""
    unit = next(u for u in ("w", "d", "h", "m", "s", "ms") if micros % MICROSECONDS[u] == 0)
    return f"{micros // MICROSECONDS[unit]}{unit}"


def parse_time(text: str | dt.datetime, zone: str = "UTC") -> int:
    """Microseconds since 1970-01-01T00:00Z of an ISO 8601 time; without an offset it is in a zone.

    Raises ConfigurationError.
    """
    if isinstance(text, str):
        try:
            tidy = text.strip()
            for variant, usual in TIME_VARIANTS:
                tidy = re.sub(variant, usual, tidy, flags=re.ASCII)
            if not _ISO_TIME.fullmatch(tidy):
                raise ValueError
            # Python 3.10 reads neither a final Z nor a fraction of other than 3 or 6 digits.
            full = re.sub(r"[.]\d+", lambda m: m[0].ljust(7, "0"), tidy)
            value = dt.datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", full))
        except ValueError:
            raise ConfigurationError(
                f"time {text!r} is not ISO 8601: write 2024-03-31 or 2024-03-31T00:00:00+02:00"
            ) from None
    else:
        value = text
    if value.tzinfo is None:
        check_zone(zone)
        value = value.replace(tzinfo=zoneinfo.ZoneInfo(zone))
    return (value - EPOCH) // dt.timedelta(microseconds=1)


def check_zone(zone: str, option: str = "") -> None:
    """Refuse an unknown time zone. Raises ConfigurationError, which names the option."""
    try:
        zoneinfo.ZoneInfo(zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError, TypeError):
        raise ConfigurationError(
            f"time zone {zone!r} ({option or opt.time_zone}) is unknown: write an IANA name such "
            f"as Europe/Berlin"
        ) from None


def format_time(time: int, zone: str = "UTC") -> str:
    """ISO 8601 of a time in microseconds: in UTC with a Z, or in a zone with its offset."""
    utc = EPOCH + dt.timedelta(microseconds=time)
    if zone == "UTC":
        return utc.isoformat().replace("+00:00", "Z")
    return utc.astimezone(zoneinfo.ZoneInfo(zone)).isoformat()


@dataclass(frozen=True, eq=False)
class Estimate:
    """What is released of the counts of one slot: safe to show to anyone."""

    counts: npt.NDArray[np.int64]
    """Private count of each bin, shape (bins,); noise may make it negative."""
    status: str
    """`published`, `skipped` (the last publication is repeated), `nullified` (it had to be),
    `predicted` (`counts` are a forecast from earlier publications), `unmeasured` (with one
    budget forever: nothing is known of the bins so far, they are all alike), or `test` (test mode:
    exact counts, not private)."""
    published_slot: int | None
    """Slot of the publication that `counts` repeats or continues; None before the first one."""
    epsilon: float
    """Largest budget that this publication cost anybody."""
    stderr: npt.NDArray[np.float64]
    """Expected standard error of each count, shape (bins,); NaN before the first publication. Of
    counts that are repeated it is that of the publication."""
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    """What the mechanism says of itself in this slot, by name; as public as counts."""
    alarm: bool = False
    """Whether the mechanism saw a jump in this slot."""
    shares: npt.NDArray[np.float64] | None = None
    """The released distribution over bins, shape (bins,), of a mechanism that releases one."""
    estimates: npt.NDArray[np.float64] | None = None
    """`counts` before they were rounded, shape (bins,); None where they never were anything but
    whole numbers."""

    @property
    def values(self) -> npt.NDArray[np.float64]:
        """The unrounded count of each bin, shape (bins,): what sums and intervals are made of."""
        return self.counts.astype(np.float64) if self.estimates is None else self.estimates


_ESTIMATE = tuple(one.name for one in fields(Estimate))


@dataclass(frozen=True, eq=False, kw_only=True)
class Release(Estimate):
    """The private counts of one slot, with their standard errors. A release is safe to publish."""

    slot: int
    """Number of the slot."""
    start: int
    """Start of the slot, in microseconds since 1970."""
    end: int
    """First microsecond after the slot."""
    mechanism: str
    """Name of the mechanism."""

    @classmethod
    def of(cls, estimate: Estimate, slot: int, slots: Slots, mechanism: str) -> Release:
        """Make a release from a mechanism's estimate for a slot, and add the times of the slot."""
        fields = {name: getattr(estimate, name) for name in _ESTIMATE}
        start, end = slots.start(slot), slots.end(slot)
        return cls(**fields, slot=slot, start=start, end=end, mechanism=mechanism)


@dataclass(frozen=True, eq=False)
class Revised:
    """What later releases tell of the counts of an earlier slot: as public as they are."""

    slot: int
    counts: npt.NDArray[np.int64]
    """Of each bin, shape (bins,)."""
    stderr: npt.NDArray[np.float64]
    """Expected standard error of each count, shape (bins,); NaN before the first publication."""
    estimates: npt.NDArray[np.float64] | None = None
    """As of :class:`Estimate`."""

    @property
    def values(self) -> npt.NDArray[np.float64]:
        """As of :class:`Estimate`."""
        return self.counts.astype(np.float64) if self.estimates is None else self.estimates


@dataclass(frozen=True, eq=False, kw_only=True)
class Revision(Revised):
    """What is published of a slot for the second and last time: safe to show to anyone.

    Its release stays as it is.
    """

    start: int
    """Start of the slot, microseconds since the epoch."""
    end: int
    """First microsecond after the slot."""
    revised_slot: int
    """The last slot whose release it takes into account."""
    revised_at: int
    """The end of that one, microseconds since the epoch."""
    mechanism: str

    @classmethod
    def of(cls, revised: Revised, revised_slot: int, slots: Slots, mechanism: str) -> Revision:
        """What a mechanism revised when it released a slot, with its times."""
        return cls(
            revised.slot,
            revised.counts,
            revised.stderr,
            revised.estimates,
            start=slots.start(revised.slot),
            end=slots.end(revised.slot),
            revised_slot=revised_slot,
            revised_at=slots.end(revised_slot),
            mechanism=mechanism,
        )


@dataclass(frozen=True, eq=False)
class LedgerEntry:
    """The epsilon that one slot spent from the budget of each class of users.

    This information is public.
    """

    slot: int
    """The slot of the query."""
    classes: tuple[Requirement, ...]
    """The requirement of each of the K classes."""
    users: npt.NDArray[np.int64]
    """Public number of users of each class, shape (K,)."""
    spent: npt.NDArray[np.float64]
    """Epsilon spent in this slot, shape (K,)."""
    spent_in_window: npt.NDArray[np.float64]
    """Epsilon spent in the window of each class that ends with this slot, shape (K,)."""
    query: str = COUNT
    """Name of the query."""

    @property
    def first_base_slot(self) -> int:
        """The first base slot that the ledger entry covers. For a single count, this is `slot`."""
        return self.slot

    @property
    def last_base_slot(self) -> int:
        """The last base slot that the ledger entry covers. For a single count, this is `slot`."""
        return self.slot

    @property
    def unpromised(self) -> LedgerEntry:
        """Return a copy with all epsilons set to 0, for the ledger of a run in test mode."""
        nothing = np.zeros_like(self.spent)
        classes = tuple(map(unpromised, self.classes))
        return replace(self, classes=classes, spent=nothing, spent_in_window=nothing)


@dataclass(frozen=True, eq=False)
class DynamicLedgerEntry:
    """What one slot cost every ledger where requirements change, as the filter booked it.

    A ledger is shared by users with the same history; it has no name that lasts.
    """

    slot: int
    requirements: npt.NDArray[np.float64]
    """window_backward, epsilon_backward, window_forward, epsilon_forward in force, shape (L, 4)."""
    users: npt.NDArray[np.int64]
    """Public number of users of each ledger, shape (L,)."""
    spent: npt.NDArray[np.float64]
    """Epsilon spent in this slot, shape (L,)."""
    spent_backward: npt.NDArray[np.float64]
    """Epsilon spent in the window that ends with this slot, shape (L,)."""
    infeasible: npt.NDArray[np.bool_]
    """Where that is more than asked for, because earlier slots spent it; then `spent` is 0."""

    @property
    def unpromised(self) -> DynamicLedgerEntry:
        """As of :class:`LedgerEntry`."""
        nothing = np.zeros_like(self.spent)
        windows = self.requirements * [1.0, 0.0, 1.0, 0.0]
        return replace(self, requirements=windows, spent=nothing, spent_backward=nothing)


@dataclass(frozen=True)
class PerRecordRow:
    """A statistic under per-record privacy of one window and key: safe to show to anyone."""

    key: str | None
    """One of the public keys; None where there are none."""
    start: int | None
    """Start of the window, microseconds since the epoch; None for the window of all times."""
    end: int | None
    """First microsecond after the window; None for the window of all times."""
    statistic: str
    """`count`, `sum`, `max`, `distinct`, `running_count` or `running_sum`."""
    mechanism: str
    """With its options, as it was asked for."""
    estimate: float
    stderr: float
    """Expected standard error that noise puts on `estimate`, for the records that it covers."""
    epsilon_tau: float
    """Records whose budget is below this are left out of `estimate`, in part or entirely."""
    dropped_bound: float
    """What the records left out add up to at most, except with the probability asked for; NaN
    where nothing can be said."""
