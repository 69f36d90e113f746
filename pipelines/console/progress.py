"""What a person sees while a pipeline runs: a bar on a terminal, plain lines elsewhere.

Sources and the release stage log to `streamveil.progress` how many events they read and slots
they released. A local run shows that; on a cluster it is in the workers' logs.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from streamveil.mechanisms.core.number_text import number_of
from streamveil.pipelines.console.logs import is_bare, tell_aside

if TYPE_CHECKING:
    from tqdm import tqdm

PROGRESS = "streamveil.progress"
"""Name of the logger."""

_LOGGER = logging.getLogger(PROGRESS)
_SECONDS_BETWEEN_LINES = 5.0


class Seldom:
    """Whether an interval (seconds) has passed since it last said so or was reset."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.reset()

    def reset(self) -> None:
        """Count the seconds from now on."""
        self._since = time.monotonic()

    def is_time(self) -> bool:
        """Whether they have passed; then they are counted anew."""
        passed = time.monotonic() - self._since > self._seconds
        if passed:
            self.reset()
        return passed


def _bar(title: str, unit: str, total: int | None = None) -> tqdm[NoReturn]:
    from tqdm import tqdm  # not before it is needed: to import it takes 0.02 CPU seconds

    return tqdm(desc=title, unit=f" {unit}", total=total, unit_scale=total is None, leave=False)


class _ProgressHandler(logging.Handler):
    """Adds up log records that carry `events` or `slots`."""

    def __init__(self, title: str) -> None:
        super().__init__(logging.INFO)
        self._title = title
        self._totals = {"events": 0, "slots": 0}
        self._lines = Seldom(_SECONDS_BETWEEN_LINES)
        self._bar = _bar(title, "events") if sys.stderr.isatty() and is_bare() else None

    def emit(self, record: logging.LogRecord) -> None:
        for unit in self._totals:
            self._totals[unit] += getattr(record, unit, 0)
        if self._bar is not None:
            self._bar.update(getattr(record, "events", 0))
            if self._totals["slots"]:
                self._bar.set_postfix_str(number_of(self._totals["slots"], "slot"), refresh=False)
        elif self._lines.is_time():
            events, slots = self._totals["events"], self._totals["slots"]
            tell_aside(
                f"{self._title}: {number_of(events, 'event')} read, {number_of(slots, 'slot')}"
            )

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        super().close()


@contextmanager
def progress(title: str) -> Iterator[None]:
    """Show progress while the block runs."""
    handler = _ProgressHandler(title)
    level, propagate = _LOGGER.level, _LOGGER.propagate
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.INFO)
    _LOGGER.propagate = False
    try:
        yield
    finally:
        _LOGGER.removeHandler(handler)
        _LOGGER.setLevel(level)
        _LOGGER.propagate = propagate
        handler.close()


@contextmanager
def steps(title: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Show progress towards a known end; gives what to call with how many more are done."""
    if sys.stderr.isatty() and is_bare():
        with _bar(title, unit, total) as bar:
            yield bar.update
        return
    done, lines = 0, Seldom(_SECONDS_BETWEEN_LINES)

    def more(number: int) -> None:
        nonlocal done
        done += number
        if lines.is_time():
            tell_aside(f"{title}: {done:,} of {total:,} {unit}")

    yield more
