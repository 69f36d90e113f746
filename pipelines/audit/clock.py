"""The clock of an audit: whatever takes long asks it, and stops when time is over."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_UNTIL: ContextVar[float] = ContextVar("until", default=math.inf)


class TimeOver(Exception):  # noqa: N818
    """There is not a time left for what is going on."""


@contextmanager
def stopping_at(moment: float) -> Iterator[None]:
    """Stop what goes on inside at a moment, by `time.monotonic`, or earlier if that is said."""
    before = _UNTIL.set(min(moment, _UNTIL.get()))
    try:
        yield
    finally:
        _UNTIL.reset(before)


def check_clock() -> None:
    """Go on if there is time. Raises TimeOver where there is none."""
    if time.monotonic() > _UNTIL.get():
        raise TimeOver


def part_of_time(part: float) -> float:
    """The moment until which so much of the time that is left has gone by."""
    now = time.monotonic()
    return now + part * max(_UNTIL.get() - now, 0.0)
