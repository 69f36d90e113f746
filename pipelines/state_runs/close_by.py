"""What closes the slots of a run with a state: the clock alone, or the names of files as well.

Names only, never what is in the files: a user's events must not move the time of a release.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from streamveil.io import list_files
from streamveil.mechanisms.core.local_days import time_text
from streamveil.mechanisms.core.records import (
    EPOCH,
    MICROSECONDS,
    ConfigurationError,
    Slots,
)
from streamveil.mechanisms.core.wording import opt
from streamveil.pipelines.options.parsers import CLOCK, FILES, MARKER, close_rule_of

# Names of slots so far apart must differ.
_DAYS_APART = (1, 7, 28, 29, 30, 31, 365, 366, 1461)
# Of a slot that waits, so many later ones are looked at.
_LATER = 100


@dataclass(frozen=True)
class CloseBy:
    """When a slot closes whose time is over.

    By the clock: at once. By markers: when its own is there, in order, so that a slot whose marker
    is missing holds all later ones back. By files: when a file of a later slot is there; that of
    its own is not waited for.
    """

    rule: str = CLOCK
    pattern: str = ""
    """Of names, with the codes of `strftime` for the start of a slot; a glob. In UTC, or for
    slots by a calendar the day as it has it."""

    @classmethod
    def of(cls, text: str) -> CloseBy:
        """Read the option. Raises ConfigurationError."""
        return cls(*close_rule_of(text))

    def name(self, slots: Slots, slot: int) -> str:
        """What a file is called that tells of the slot."""
        return (EPOCH + dt.timedelta(microseconds=slots.shown(slot))).strftime(self.pattern)

    def check(self, slots: Slots, first: int) -> None:
        """Raise ConfigurationError where slots from the first on share a name."""
        if self.rule == CLOCK:
            return
        start = slots.start(first)
        apart = (slots.index(start + days * MICROSECONDS["d"]) for days in _DAYS_APART)
        for slot in (first + 1, *apart):
            name = self.name(slots, slot)
            if slot != first and name == self.name(slots, first):
                raise ConfigurationError(
                    f"{opt.close_by}={self.rule}:{self.pattern} gives the slots of "
                    f"{time_text(start, slots)} and {time_text(slots.start(slot), slots)} one "
                    f"name, {name}: write the year and everything that distinguishes slots, such "
                    "as %Y-%m-%dT%H"
                )

    def until(self, slots: Slots, first: int, last: int, now: int) -> int:
        """The last slot that is closed, `first - 1` if none is.

        Args:
            slots: how time is cut.
            first: first slot that is not released.
            last: last slot whose time is over.
            now: the slot of the clock: files of later ones tell nothing.
        """
        if self.rule == MARKER:
            until = first - 1
            while until < last and self._there(slots, until + 1):
                until += 1
            return until
        if self.rule == FILES and first <= last:
            later = range(now, first, -1)
            found = next((slot for slot in later if self._there(slots, slot)), first)
            return min(found - 1, last)
        return last

    def waits_for(self, slots: Slots, slot: int, last: int) -> str:
        """What a slot waits for whose time is over, as are those up to `last`."""
        start = time_text(slots.start(slot), slots)
        if self.rule == FILES:
            return (
                f"the slot of {start} waits for a file of a later slot, such as "
                f"{self.name(slots, slot + 1)}"
            )
        text = f"the slot of {start} waits for its marker {self.name(slots, slot)}"
        later = range(slot + 1, min(last, slot + _LATER) + 1)
        found = next((one for one in later if self._there(slots, one)), None)
        if found is None:
            return text
        return (
            f"{text}; that of a later slot, {self.name(slots, found)}, is there: if nothing will "
            "come for this one, make its marker"
        )

    def _there(self, slots: Slots, slot: int) -> bool:
        return bool(list_files(self.name(slots, slot)))
