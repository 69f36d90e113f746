"""A budget as people write it: `1/7d` for epsilon 1 over any 7 consecutive days."""

from __future__ import annotations

import re
from contextlib import suppress

from streamveil.mechanisms.core.local_days import count_in, lengths_near
from streamveil.mechanisms.core.records import (
    MAX_EPSILON,
    ConfigurationError,
    Requirement,
    Slots,
    check_shares,
)

_NUMBER = re.compile(r"\s*\d*\.?\d+(e[+-]?\d+)?\s*", re.ASCII | re.IGNORECASE)


def requirement_of_budget(text: str, slots: Slots) -> Requirement:
    """The requirement that a budget is.

    Args:
        text: epsilon and a period of whole slots, such as `1/7d`; or `1/1y` where slots are
            months.
        slots: how time is cut.

    Returns:
        Epsilon over as many slots as the period has.

    Raises:
        ConfigurationError: for another text, or a period that is not of whole slots.

    Example:
        >>> requirement_of_budget("0.5/1d", Slots.of("1h"))
        Requirement(window=24, epsilon=0.5)
    """
    epsilon, period = budget_parts(text)
    window = count_in(period, slots)
    if window is None:
        near = lengths_near(period, slots).replace(" or ", f" or {epsilon:g}/")
        raise ConfigurationError(
            f"budget={text} is not over whole slots of {slots.text}: write {epsilon:g}/{near}"
        )
    try:
        requirement = Requirement(window, epsilon)
        check_shares([requirement])
    except ConfigurationError as error:
        raise ConfigurationError(f"budget={text}: {error}") from None
    return requirement


def budget_parts(text: str) -> tuple[float, Slots]:
    """Epsilon and the period of a budget. Raises ConfigurationError."""
    epsilon, _, period = str(text).partition("/")
    number = float(epsilon) if _NUMBER.fullmatch(epsilon) else 0.0
    with suppress(ConfigurationError):
        length = Slots.of(period)
        if 0 < number <= MAX_EPSILON:
            return number, length
    raise ConfigurationError(
        f"budget={text} is not EPSILON/PERIOD: write for example 1/7d for epsilon 1 over any 7 "
        "consecutive days, or 0.5/24h"
    )
