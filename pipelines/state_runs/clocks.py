"""The time that closes slots, and when it is not believed."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field

from streamveil.engine.slot_clock import MOST_AHEAD
from streamveil.io.faults import blaming
from streamveil.mechanisms.core.records import ConfigurationError, format_time, parse_time
from streamveil.mechanisms.core.wording import opt

# It counts through sleep; no setting of the clock moves it.
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

_LEAST_WAIT = 10_000  # microseconds
# How often an empty file is read again, in case it is being written, and seconds between.
_READS, _SECONDS_BETWEEN_READS = 10, 0.1


def _machine() -> int:
    return time.time_ns() // 1000


def _steady() -> int:
    return time.clock_gettime_ns(_STEADY) // 1000


@dataclass(frozen=True)
class Clock:
    """The time that closes slots: the machine's, or what a file says."""

    file: str | None = None
    begun: int = field(default_factory=lambda: _machine() - _steady())
    """What the machine's clock is ahead of its steady one, in microseconds, at first."""
    _said: list[int] = field(default_factory=list, compare=False)
    """The last time that the file gave, if any."""

    def __call__(self) -> int:
        """Microseconds since the epoch.

        A file that is empty for a while, since it is written anew, says what it said before. Raises
        ConfigurationError for a file without a time or with one that is to come, and for a machine
        whose clock was set by more than a day since the run began.
        """
        machine = _machine()
        if self.file is None:
            moved = machine - _steady() - self.begun
            if abs(moved) > MOST_AHEAD:
                raise ConfigurationError(
                    f"the clock of this machine was set {'forward' if moved > 0 else 'back'} by "
                    f"{abs(moved) / MOST_AHEAD:.1f} days while the stream ran, to "
                    f"{format_time(machine)}: no slot is released by it; correct it, and "
                    f"resume with {opt.resume}"
                )
            return machine
        now = self._read(self.file)
        if now > machine + MOST_AHEAD:
            raise ConfigurationError(
                f"{opt.clock_file}={self.file} says {format_time(now)}, which is "
                f"{(now - machine) / MOST_AHEAD:.1f} days ahead of the clock of this machine: no "
                "slot is released by it, because its events are still to come; write the time up "
                "to which they are complete"
            )
        self._said[:] = [now]
        return now

    def _read(self, file: str) -> int:
        """What the file says; while it is empty, what it said last. Raises ConfigurationError."""
        try:
            for read in range(_READS):
                if read:
                    time.sleep(_SECONDS_BETWEEN_READS)
                with (
                    blaming(f"{opt.clock_file}={file} could not be read"),
                    open(file, encoding="utf-8") as opened,
                ):
                    text = opened.read()
                if text.strip():
                    return parse_time(text)
                if self._said:  # a shell empties a file before it writes to it
                    return self._said[0]
            raise ConfigurationError("it is empty")
        except (OSError, UnicodeDecodeError, ConfigurationError) as error:
            raise ConfigurationError(
                f"{opt.clock_file}={file} gives no time: {error}: write one such as "
                "2024-05-01T12:00:00Z to another file and rename it into place"
            ) from error

    @property
    def silence(self) -> str | None:
        """What to say of a file that is empty, so that its time stands still."""
        if self.file is None:
            return None
        with suppress(OSError, UnicodeDecodeError), open(self.file, encoding="utf-8") as opened:
            if not opened.read().strip():
                return (
                    f"{opt.clock_file}={self.file} is empty: no slot is closed until it gives a "
                    f"time; write it to a file beside it and rename that into place"
                )
        return None

    def wait_for(self, when: int, most: int) -> int:
        """Microseconds until it will say `when`, but `most` of them where that is sooner.

        A file may say any time next, so that takes `most`. It is never next to nothing, or a
        machine whose clock stands still would be kept busy.
        """
        if self.file is not None:
            return most
        return min(most, max(when - self(), _LEAST_WAIT))

    def check(self, now: int, until: int, begun: bool = True) -> None:
        """Refuse a clock that went back, by which the stream would stand still unseen.

        Args:
            now: what it says.
            until: end of the last slot that is released, or start of the first one.
            begun: whether any is released.

        Raises ConfigurationError.
        """
        if now >= until - MOST_AHEAD:
            return
        if not begun:
            raise ConfigurationError(
                f"{self._name} says {format_time(now)}, but the stream begins at "
                f"{format_time(until)}, and no slot would close until then: correct it, give an "
                f"earlier {opt.start}, or begin within a day of it"
            )
        raise ConfigurationError(
            f"{self._name} says {format_time(now)}, but slots up to {format_time(until)} are "
            "released: the clock went back, or it was far ahead then, and no slot would close; "
            f"correct it, or if it is correct now, resume with {opt.resume} at that time"
        )

    def check_files(self, now: int, newest: int, path: str) -> None:
        """Refuse a machine's clock that is far behind the newest input file.

        Args:
            now: what it says.
            newest: when a file was last written, in microseconds.
            path: of that file.

        Raises ConfigurationError.
        """
        if self.file is None and newest > now + MOST_AHEAD:
            raise ConfigurationError(
                f"{self._name} says {format_time(now)}, but {path} was written at "
                f"{format_time(newest)}: one of these clocks is wrong, and no slot is released "
                "until they agree within a day; set the clock, or touch the file"
            )

    @property
    def _name(self) -> str:
        return "the clock of this machine" if self.file is None else f"{opt.clock_file}={self.file}"
