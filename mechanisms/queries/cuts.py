"""How the slots of a query cut base slots: into runs of one length, or at calendar months.

Windows of requirements are counted in base slots, so what matters of a query is which of its slots
a window of w base slots meets, and how many at most (:meth:`Cut.most_in`).

Theorem. Let S(j) be the fewest base slots in any j slots in a row, S(0) = 0. Some window of w >= 1
base slots meets n slots exactly if n = 1, or n >= 2 and S(n - 2) + 2 <= w.
Proof. A window that meets n >= 2 slots meets slots in a row. It has all of the n - 2 between the
first and the last one, and a base slot or more of these two: S(n - 2) + 2 at least. If S(n - 2) + 2
<= w, take the n - 2 slots in a row that are the shortest, the base slot before them and the one
after them. That is a window which meets n slots and is no longer than w. To make it as long as w
takes none of them away.

Of slots of r base slots S(j) = j r, so the most is ceil((w - 1) / r) + 1. Of calendar months S(j)
is taken over all months that a run of j slots may begin with: the Gregorian calendar has the same
146,097 days in every 4,800 months (400 years), and beyond that repeats itself. So nothing is
assumed about when a stream runs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.identity import Form, Identified
from streamveil.mechanisms.core.local_days import (
    CalendarMonths,
    count_in,
    first_days,
    lengths_near,
    multiple,
    zone_of,
)
from streamveil.mechanisms.core.parameter_checks import whole
from streamveil.mechanisms.core.records import (
    MICROSECONDS,
    ConfigurationError,
    Slots,
    format_time,
    months_text,
)

_DAY = MICROSECONDS["d"]
_CYCLE = 4800
"""Months after which the calendar repeats itself."""
_CYCLE_DAYS = 146_097
_FEW = 1000
"""Base slots that are turned into dates one by one; of more, only the first days of months are."""


class Cut(ABC):
    """Which base slots a slot of a query has: all between its first one and the first of the next.

    Both are numbered by integers, which may be negative.
    """

    @abstractmethod
    def numbers(self, base_slots: Integers) -> Integers:
        """The slot of each base slot, of the same shape."""

    @abstractmethod
    def firsts(self, slots: Integers) -> Integers:
        """The first base slot of each slot, of the same shape."""

    @property
    @abstractmethod
    def longest(self) -> int:
        """Base slots in the longest slot."""

    @property
    @abstractmethod
    def mean(self) -> float:
        """Base slots in a slot, on average."""

    @abstractmethod
    def most_in(self, window: int) -> int:
        """How many slots a window of so many base slots meets at most: see the module."""

    @abstractmethod
    def longer(self, other: Cut) -> Cut | None:
        """How a cut into longer slots cuts the slots of this one; None where it divides any.

        Only slots of two or more are longer.
        """

    def of(self, base_slot: int) -> int:
        """The slot of a base slot."""
        return int(self.numbers(np.array(base_slot, np.int64)))

    def first(self, slot: int) -> int:
        """The first base slot of a slot."""
        return int(self.firsts(np.array(slot, np.int64)))

    def last(self, slot: int) -> int:
        """The last base slot of a slot: it ends with that one."""
        return self.first(slot + 1) - 1

    def size(self, slot: int) -> int:
        """Base slots in a slot."""
        return self.first(slot + 1) - self.first(slot)

    def end(self, base_slot: int) -> int:
        """The base slot with which the slot of a base slot ends."""
        return self.last(self.of(base_slot))

    def begins(self, base_slot: int) -> bool:
        """Whether a slot begins with a base slot."""
        return self.first(self.of(base_slot)) == base_slot

    def due(self, base_slot: int) -> bool:
        """Whether a slot ends with a base slot."""
        return self.begins(base_slot + 1)


@dataclass(frozen=True)
class Even(Cut):
    """Slots of one length: slot s is of base slots s r to (s + 1) r - 1."""

    slots: int
    """Base slots in a slot, r."""

    def numbers(self, base_slots: Integers) -> Integers:
        """As :class:`Cut`."""
        return base_slots // self.slots

    def firsts(self, slots: Integers) -> Integers:
        """As :class:`Cut`."""
        return slots * self.slots

    def of(self, base_slot: int) -> int:
        """As :class:`Cut`."""
        return base_slot // self.slots

    def first(self, slot: int) -> int:
        """As :class:`Cut`."""
        return slot * self.slots

    @property
    def longest(self) -> int:
        """As :class:`Cut`."""
        return self.slots

    @property
    def mean(self) -> float:
        """As :class:`Cut`."""
        return self.slots

    def most_in(self, window: int) -> int:
        """As :class:`Cut`."""
        return -(-(window - 1) // self.slots) + 1

    def longer(self, other: Cut) -> Cut | None:
        """As :class:`Cut`."""
        if isinstance(other, Even):
            ratio, rest = divmod(other.slots, self.slots)
            return None if rest or ratio < 2 else Even(ratio)
        if isinstance(other, Months) and not (
            other.per_day % self.slots or other.first_day % self.slots
        ):
            return Months(other.months, other.per_day // self.slots, other.first_day // self.slots)
        return None


@dataclass(frozen=True)
class Months(Cut, Identified):
    """Slots of so many calendar months, of which slot 0 begins with January 1970.

    Base slots cut days: which ones, the query set says (:meth:`on`). A day is one of a time zone
    where base slots are; nothing here depends on how many hours it has.

    Raises ConfigurationError for numbers that are not whole ones above 0.
    """

    IDENTITY = Form("months", ("months", "per_day", "first_day"))

    months: int
    per_day: int = 1
    """Base slots in a day."""
    first_day: int = 0
    """The base slot with which 1970-01-01 begins."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        whole("months", self.months)
        whole("per_day", self.per_day)

    @property
    def text(self) -> str:
        """As options write it: `1mo` or `1y`."""
        return months_text(self.months)

    def on(self, base: Slots) -> Months:
        """The same where time is cut into other base slots.

        Raises ConfigurationError if not every midnight is between two of them.
        """
        text = self.text
        if _DAY % base.length:
            raise ConfigurationError(
                f"slots of {text} are made of whole days, and base slots of {base.text} are not "
                "parts of a day: choose base slots of 1d, or of a part of it such as 1h"
            )
        if base.origin % base.length:
            raise ConfigurationError(
                f"slots of {text} begin at midnight, which is within a base slot: those of "
                f"{base.text} are counted from {format_time(base.origin)} on. Count them from a "
                "midnight on (origin), or choose shorter ones"
            )
        return Months(self.months, _DAY // base.length, -base.origin // base.length)

    def numbers(self, base_slots: Integers) -> Integers:
        """As :class:`Cut`."""
        if base_slots.size > _FEW:
            low, high = self._numbers(np.array([base_slots.min(), base_slots.max()])).tolist()
            later = self.firsts(np.arange(low + 1, high + 1))
            return low + np.searchsorted(later, base_slots, side="right")
        return self._numbers(base_slots)

    def _numbers(self, base_slots: Integers) -> Integers:
        days = (base_slots - self.first_day) // self.per_day
        months = np.asarray(days, "M8[D]").astype("M8[M]").astype(np.int64)
        found: Integers = months // self.months
        return found

    def firsts(self, slots: Integers) -> Integers:
        """As :class:`Cut`."""
        return first_days(slots * self.months) * self.per_day + self.first_day

    @property
    def longest(self) -> int:
        """As :class:`Cut`."""
        return int(_days(self.months, 1).max()) * self.per_day

    @property
    def mean(self) -> float:
        """As :class:`Cut`."""
        return self.months * self.per_day * _CYCLE_DAYS / _CYCLE

    def most_in(self, window: int) -> int:
        """As :class:`Cut`."""
        if window < 2:
            return window
        # S grows with j, and no month is shorter than 28 days.
        low, high = 0, (window - 2) // (28 * self.months * self.per_day)
        while low < high:
            middle = (low + high + 1) // 2
            if _fewest_days(self.months, middle) * self.per_day <= window - 2:
                low = middle
            else:
                high = middle - 1
        return low + 2

    def longer(self, other: Cut) -> Cut | None:
        """As :class:`Cut`."""
        if not isinstance(other, Months):
            return None
        same = (self.per_day, self.first_day) == (other.per_day, other.first_day)
        ratio, rest = divmod(other.months, self.months)
        return Even(ratio) if same and not rest and ratio > 1 else None


@lru_cache(maxsize=256)
def cut_of(length: int | Months) -> Cut:
    """How slots of a length cut base slots."""
    return length if isinstance(length, Months) else Even(length)


def length_in(slots: Slots, base: Slots) -> int | Months | None:
    """The length of slots in base slots; None where it is no multiple of theirs.

    Raises ConfigurationError for calendar months that base slots do not cut into days.
    """
    if isinstance(slots, CalendarMonths) and not isinstance(base, CalendarMonths):
        return Months(slots.months).on(base)
    return count_in(slots, base)


def fitted(length: int | Months, base: Slots) -> int | Months:
    """The same length in base slots of another kind, which may be months themselves.

    Raises ConfigurationError for calendar months that are not made of whole base slots.
    """
    if not isinstance(length, Months):
        return length
    longer = CalendarMonths(months=length.months)
    found = length_in(longer, base)
    if found is None:
        raise ConfigurationError(
            f"slots of {length.text} are not made of whole base slots of {base.text}: write "
            f"{lengths_near(longer, base)}, or choose other base slots"
        )
    return found


def slots_of(length: int | Months, base: Slots) -> Slots:
    """How time is cut into slots of so many base slots, or of calendar months."""
    if isinstance(length, Months):
        return CalendarMonths(months=length.months, zone=zone_of(base) or "UTC")
    return multiple(base, length)


@lru_cache(maxsize=64)
def _days(months: int, slots: int) -> Integers:
    """Days in so many slots in a row of so many months, whichever slot is the first."""
    begins = np.arange(_CYCLE // math.gcd(months, _CYCLE), dtype=np.int64) * months
    return first_days(begins + slots * months) - first_days(begins)


@lru_cache(maxsize=4096)
def _fewest_days(months: int, slots: int) -> int:
    """S of the module, in days."""
    return int(_days(months, slots).min())
