"""Slots of days and months as the clocks of a time zone count them, and their multiples.

A day has 23 or 25 hours now and then, and a month 28 to 31 days.
"""

from __future__ import annotations

import datetime as dt
import functools
import zoneinfo
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.identity import Form
from streamveil.mechanisms.core.records import (
    EPOCH,
    MICROSECONDS,
    ConfigurationError,
    Slots,
    check_zone,
    format_time,
    months_text,
)
from streamveil.mechanisms.core.wording import opt

_DAY = MICROSECONDS["d"]
_MONTH = 146_097 * _DAY // 4800
"""Of a month, on average: 400 years have as many days as any others."""
_MICROSECOND = dt.timedelta(microseconds=1)
_MOST_MONTHS = 1200
# No zone is further from UTC: a day there begins within two days of UTC.
_MARGIN = 2
# Days since 1970 that Python's dates hold with a margin; days beyond them begin in UTC.
_FIRST_DAY = 10 - EPOCH.toordinal()
_LAST_DAY = dt.date.max.toordinal() - 10 - EPOCH.toordinal()


@dataclass(frozen=True)
class CalendarSlots(Slots):
    """How time is cut into days, or so many days, of a time zone's own calendar.

    `length` counts 24 hours for each day, `origin` is the midnight that slot 0 begins with, as the
    clocks there show it: microseconds since their 1970-01-01T00:00. A slot begins at the first
    moment when the clocks show its date or a later one, and ends where the next one begins.

    Raises ConfigurationError for an unknown zone, or a length or origin that is not whole days.
    """

    IDENTITY = Form("calendar slots", ("length", "origin", "zone"))

    zone: str = "UTC"
    """IANA name."""

    def __post_init__(self) -> None:
        """Check all fields."""
        super().__post_init__()
        check_zone(self.zone, opt.slot_zone)
        if self.length % _DAY or self.origin % _DAY:
            raise ConfigurationError(
                f"slots of {self.length} us from {format_time(self.origin)} on are not whole days: "
                f"with a calendar ({opt.slot_zone}={self.zone}) give a length in days or weeks, "
                f"such as 1d or 1w, from a midnight on"
            )

    def start(self, slot: int) -> int:
        """First microsecond of a slot."""
        return _beginning(self.zone, self.shown(slot) // _DAY)

    def index(self, time: int) -> int:
        """Slot of a time in microseconds."""
        return int(self.indices(np.array([time], np.int64))[0])

    def indices(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Slot of each time in microseconds, int64, shape (n,)."""
        if not len(times):
            return np.zeros(0, np.int64)
        days = np.unique(times // _DAY)
        near = np.unique(days[:, None] + np.arange(-_MARGIN, _MARGIN + 1))
        slots = np.unique((near * _DAY - self.origin) // self.length)
        starts = np.array([self.start(slot) for slot in slots.tolist()], np.int64)
        return slots[np.searchsorted(starts, times, side="right") - 1]


@dataclass(frozen=True)
class CalendarMonths(Slots):
    """How time is cut into calendar months, or so many, from January 1970 on.

    `length` is the average, and `origin` is as the clocks there show it. A slot begins at the first
    moment when the clocks show the first day of its first month.

    Raises ConfigurationError for an unknown zone, or months that are not a whole number above 0 and
    at most a hundred years.
    """

    IDENTITY = Form("calendar months", ("months", "zone"), apart=("length", "origin"))

    length: int = field(init=False, default=0)
    origin: int = field(init=False, default=0)
    months: int = 1
    """In a slot."""
    zone: str = "UTC"
    """IANA name."""

    def __post_init__(self) -> None:
        """Check all fields."""
        if not 1 <= self.months <= _MOST_MONTHS:
            raise ConfigurationError(
                f"slots cannot have {self.months} months: write from one month to a hundred years, "
                "such as 1mo, 3mo or 1y"
            )
        check_zone(self.zone, opt.slot_zone)
        object.__setattr__(self, "length", self.months * _MONTH)

    @property
    def text(self) -> str:
        """As of :class:`Slots`."""
        return months_text(self.months)

    @property
    def of_days(self) -> bool:
        """As of :class:`Slots`."""
        return True

    @property
    def shortest(self) -> int:
        """A lower bound for the length of a slot, because a month has at least 28 days."""
        return 28 * _DAY * self.months

    def start(self, slot: int) -> int:
        """First microsecond of a slot."""
        return _beginning(self.zone, self.shown(slot) // _DAY)

    def shown(self, slot: int) -> int:
        """As of :class:`Slots`."""
        return int(first_days(np.array(slot * self.months))) * _DAY

    def index(self, time: int) -> int:
        """Slot of a time in microseconds."""
        return int(self.indices(np.array([time], np.int64))[0])

    def indices(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Slot of each time in microseconds, int64, shape (n,)."""
        days = CalendarSlots(_DAY, zone=self.zone).indices(times)
        return days.astype("M8[D]").astype("M8[M]").astype(np.int64) // self.months


def first_days(months: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The first day of months that are counted from January 1970, in days from its first one on.

    >>> first_days(np.array([-1, 0, 1, 12])).tolist()
    [-31, 0, 31, 365]
    """
    return np.asarray(months, "M8[M]").astype("M8[D]").astype(np.int64)


def zone_of(slots: Slots) -> str | None:
    """The zone whose days or months slots are; None where they are not of a calendar.

    Months of UTC need none.

    >>> zone_of(CalendarSlots(86_400_000_000, zone="Europe/Berlin")), zone_of(Slots.of("1h"))
    ('Europe/Berlin', None)
    """
    if isinstance(slots, CalendarMonths):
        return None if slots.zone == "UTC" else slots.zone
    return slots.zone if isinstance(slots, CalendarSlots) else None


def time_text(time: int, slots: Slots) -> str:
    """ISO 8601 of a time in microseconds, in the zone of calendar slots; of others in UTC.

    >>> time_text(0, CalendarSlots(86_400_000_000, zone="Europe/Berlin"))
    '1970-01-01T01:00:00+01:00'
    """
    return format_time(time, zone_of(slots) or "UTC")


def multiple(slots: Slots, count: int) -> Slots:
    """How time is cut into slots that have so many of others each.

    >>> multiple(Slots.of("1mo"), 12).text
    '1y'
    """
    if isinstance(slots, CalendarMonths):
        return replace(slots, months=slots.months * count)
    return replace(slots, length=slots.length * count)


def count_in(longer: Slots, slots: Slots) -> int | None:
    """How many slots a longer one has; None where they do not divide it, or not always.

    >>> count_in(Slots.of("1y"), Slots.of("3mo")), count_in(Slots.of("1mo"), Slots.of("1d"))
    (4, None)
    """
    of_months = {isinstance(one, CalendarMonths) for one in (longer, slots)}
    count, rest = divmod(longer.length, slots.length)
    return None if rest or not count or len(of_months) > 1 else count


def lengths_near(longer: Slots, slots: Slots) -> str:
    """The multiples of slots that are next to another length, for a message.

    >>> lengths_near(Slots.of("1mo"), Slots.of("1d"))
    '30d or 31d'
    """
    below = longer.length // slots.length
    return " or ".join(multiple(slots, count).text for count in (below, below + 1) if count)


@functools.lru_cache(maxsize=1 << 16)
def _beginning(zone: str, day: int) -> int:
    """The first microsecond when the clocks show the day, counted from 1970-01-01, or a later one.

    Clocks may skip midnight, or show it twice.
    """
    if not _FIRST_DAY <= day <= _LAST_DAY:
        return day * _DAY
    clock = zoneinfo.ZoneInfo(zone)
    midnight = dt.datetime.fromordinal(day + EPOCH.toordinal()).replace(tzinfo=clock)
    first, other = (_instant(midnight.replace(fold=fold)) for fold in (0, 1))
    # Where midnight is skipped, the clocks jump over it between the two readings of it.
    early, late = min(first, other), first
    while early < late:
        middle = (early + late) // 2
        if shown(middle, zone) >= day * _DAY:
            late = middle
        else:
            early = middle + 1
    return late


def shown(time: int, zone: str) -> int:
    """What the clocks of a zone show at a time, as microseconds since their 1970-01-01T00:00."""
    check_zone(zone, opt.slot_zone)
    clock = (EPOCH + time * _MICROSECOND).astimezone(zoneinfo.ZoneInfo(zone))
    return (clock.replace(tzinfo=None) - EPOCH.replace(tzinfo=None)) // _MICROSECOND


def _instant(time: dt.datetime) -> int:
    return (time - EPOCH) // _MICROSECOND
