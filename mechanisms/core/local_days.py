"""Slots of whole days as the clocks of a time zone count them: of 23 or 25 hours now and then."""

from __future__ import annotations

import datetime as dt
import functools
import zoneinfo
from dataclasses import dataclass

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
)

_DAY = MICROSECONDS["d"]
_MICROSECOND = dt.timedelta(microseconds=1)
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
        check_zone(self.zone, "--slot_zone")
        if self.length % _DAY or self.origin % _DAY:
            raise ConfigurationError(
                f"slots of {self.length} us from {format_time(self.origin)} on are not whole days: "
                f"with a calendar (--slot_zone={self.zone}) give a length in days or weeks, such "
                "as 1d or 1w, from a midnight on"
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
    check_zone(zone, "--slot_zone")
    clock = (EPOCH + time * _MICROSECOND).astimezone(zoneinfo.ZoneInfo(zone))
    return (clock.replace(tzinfo=None) - EPOCH.replace(tzinfo=None)) // _MICROSECOND


def _instant(time: dt.datetime) -> int:
    return (time - EPOCH) // _MICROSECOND
