"""What is refused of the parameters of a release before anything runs."""

from __future__ import annotations

import math
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

import numpy as np

from streamveil.mechanisms.core.records import (
    MAX_SLOT,
    MAX_WINDOW,
    ConfigurationError,
    Slots,
    format_time,
    parse_duration,
)
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.core.wording import opt

LONGEST_RANGE = 10_000_000  # slots
MAX_REJECTED = 0.5
"""Share of the events of an input that may be lost, unless another is asked for."""


def finite_number(value: Any) -> float | None:
    """A number of Python or numpy, also a Decimal or a Fraction; None for anything else.

    None as well for one that is not finite, or too large for a float.
    """
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (Real, Decimal)):
        return None
    try:
        number = float(value)
    except (OverflowError, ValueError):
        return None
    return number if math.isfinite(number) else None


def whole(name: str, value: Any) -> int:
    """A whole number from 1 on. Raises ConfigurationError."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ConfigurationError(f"{name} is {value!r}: give a whole number, 1 or more")
    return int(value)


def share(name: str, value: Any) -> float:
    """A number from 0 to 1. Raises ConfigurationError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ConfigurationError(f"{name} is {value!r} ({opt[name]}): give a number from 0 to 1")
    return float(value)


def lateness(value: int | str, name: str = "allowed_lateness") -> int:
    """Microseconds of a lateness, or another delay. Raises ConfigurationError."""
    micros = parse_duration(value) if isinstance(value, str) else value
    if isinstance(micros, bool) or not isinstance(micros, Integral) or not 0 <= micros <= MAX_SLOT:
        raise ConfigurationError(
            f"{name} is {value!r} ({opt[name]}): write 0s, 10m or 2h, or give "
            "microseconds; at most a hundred years"
        )
    if micros % 1000:
        raise ConfigurationError(f"{name} is {value} us ({opt[name]}): give whole milliseconds")
    return int(micros)


def check_range(slots: Slots, first: int | None, last: int | None) -> None:
    """Refuse a range of slots that is empty or a slip. Raises ConfigurationError."""
    if first is None or last is None:
        return
    if first > last:
        raise ConfigurationError(
            f"the range of slots is empty: it starts at {format_time(slots.start(first))} and ends "
            f"at {format_time(slots.end(last))}: give an end ({opt.end}) after the start "
            f"({opt.start})"
        )
    if last - first >= LONGEST_RANGE:
        raise ConfigurationError(
            f"the range from {format_time(slots.start(first))} to {format_time(slots.end(last))} "
            f"has {last - first + 1} slots, more than {LONGEST_RANGE}: shorten it ({opt.start} and "
            f"{opt.end}), or use longer slots"
        )


def check_horizon(longest_window: int, registry: Registry) -> None:
    """Refuse a longest window that somebody's is longer than. Raises ConfigurationError."""
    longest = registry.classes.longest
    if not longest <= longest_window <= MAX_WINDOW:
        raise ConfigurationError(
            f"the longest window allowed is {longest_window} ({opt.longest_window}), but {longest} "
            f"is asked for and {MAX_WINDOW} is the most: give a number between"
        )
