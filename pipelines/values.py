"""What the values of options say, read and checked without Beam: a wrong one is told at once."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Sequence
from typing import Any

from streamveil.mechanisms.core.local_days import CalendarSlots, shown
from streamveil.mechanisms.core.records import (
    MICROSECONDS,
    ConfigurationError,
    Lifetime,
    Requirement,
    Slots,
    check_shares,
    check_zone,
    parse_duration,
    parse_time,
)
from streamveil.pipelines.guarantees import INFINITE, epsilons_of
from streamveil.pipelines.options import REQUIRED, TABLE_OPTIONS

_DAY = MICROSECONDS["d"]

# Beam may know such a place, or find files by such a pattern: it is asked later.
_NOT_A_PLAIN_PATH = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:|.*[*?\[{]", re.DOTALL)


def check_required(
    command: str, given: Any, names: Sequence[str] = ("input", "output", *REQUIRED)
) -> None:
    """Raise ConfigurationError where an option is missing that has no default."""
    for name in names:
        if not getattr(given, name):
            raise ConfigurationError(f"--{name} is missing: see streamveil {command} --help")


def range_of(given: Any) -> tuple[Slots, int | None, int | None]:
    """How time is cut, and the first and the last slot, None where not given.

    Without an origin a slot begins at the start; slot numbers are as if 1970-01-01 were the origin.

    Raises ConfigurationError.
    """
    zone, usual = given.slot_zone, Slots.of(given.slot)
    if zone is not None:
        check_zone(zone, "--slot_zone")
    start = None if given.start is None else _time("start", given.start, zone)
    end = None if given.end is None else _time("end", given.end, zone)
    if zone is not None:
        first = None if start is None else shown(start, zone) // _DAY * _DAY
        origin = None if given.origin is None else shown(_time("origin", given.origin, zone), zone)
        slots: Slots = CalendarSlots(usual.length, _origin(usual, origin, first), zone)
    else:
        # Beam's windows count in milliseconds.
        first = None if start is None else start // 1000 * 1000
        origin = None if given.origin is None else _time("origin", given.origin)
        slots = Slots(usual.length, _origin(usual, origin, first))
    return (
        slots,
        None if start is None else slots.index(start),
        None if end is None else slots.index(end - 1),
    )


def _origin(usual: Slots, origin: int | None, start: int | None) -> int:
    """What is asked for; or else the first time from 1970 on that has a slot begin at the start."""
    if origin is not None:
        return origin
    return usual.origin if start is None else start % usual.length


def _time(option: str, text: str, zone: str | None = None) -> int:
    try:
        return parse_time(text, zone or "UTC")
    except ConfigurationError as error:
        raise ConfigurationError(f"--{option}: {error}") from None


def duration_of(name: str, text: str, least: int = 0) -> int:
    """Microseconds of an option that is a length of time. Raises ConfigurationError."""
    micros = parse_duration(text)
    if micros is None or micros < least:
        above = " above 0" if least else ""
        raise ConfigurationError(
            f"--{name}={text} is not a whole number{above} with a unit: write 10s, 5m or 2h"
        )
    return micros


def default_requirement_of(text: str | None) -> tuple[Requirement, int] | None:
    """The requirement of users outside the table, and how many they are.

    Raises ConfigurationError.
    """
    if text is None:
        return None
    try:
        window, epsilon, users = (float(part) for part in text.split(","))
        if not users.is_integer():
            raise ValueError
    except ValueError:
        raise ConfigurationError(
            f"--default_requirement={text} is not WINDOW,EPSILON,USERS: write for example "
            "7,1.0,5000 for 5000 users with epsilon 1 over 7 slots"
        ) from None
    try:
        requirement = Requirement(window, epsilon)  # type: ignore[arg-type]
        check_shares([requirement])
        return requirement, int(users)
    except ConfigurationError as error:
        raise ConfigurationError(f"--default_requirement={text}: {error}") from None


def requirement_columns_of(text: str | None) -> tuple[str, str, str]:
    """Names of the columns of users, windows and epsilons. Raises ConfigurationError."""
    user, window, epsilon, *more = (*(text or "user,window,epsilon").split(","), "", "")
    if not all((user, window, epsilon)) or any(more) or len({user, window, epsilon}) < 3:
        raise ConfigurationError(
            f"--requirement_columns={text} are not the names of three columns: write "
            "USER,WINDOW,EPSILON, such as id,days,eps"
        )
    return user, window, epsilon


def budget_for_ever(given: Any, own: Any) -> Lifetime:
    """The one budget of all users with --guarantee=infinite, where nothing is about windows.

    Raises ConfigurationError.
    """
    for holder, names in (
        (given, TABLE_OPTIONS),
        (own, ("requirement_changes", "longest_window")),
    ):
        for name in names:
            if getattr(holder, name) is not None:
                raise ConfigurationError(
                    f"--{name}={getattr(holder, name)} is about windows: leave it out with "
                    f"--guarantee={INFINITE}, where everybody has the budget --epsilon for ever"
                )
    epsilons = epsilons_of(own.epsilon)
    if len(epsilons) > 1:
        raise ConfigurationError(
            f"--epsilon={own.epsilon} are several budgets: a release has one, which all users share"
        )
    return Lifetime(epsilons[0])


def check_summary_apart(given: Any) -> None:
    """Refuse a summary, which replaces what is there, in the place of another file of the run.

    Raises ConfigurationError that names the other option.
    """
    if given.summary is None:
        return
    own = os.path.realpath(given.summary)
    for name, value in vars(given).items():
        if name == "summary" or not isinstance(value, str) or not value:
            continue
        place = os.path.realpath(value.removeprefix("file:"))
        if own == place or fnmatch.fnmatchcase(own, place):
            raise ConfigurationError(
                f"--summary={given.summary} is a file of --{name}={value} too, and would be "
                "replaced: choose another name"
            )


def check_files(given: Any, there: Sequence[str], new: Sequence[str]) -> None:
    """Refuse plain paths of this machine: inputs that are missing, outputs that are there already.

    Args:
        given: the options.
        there: the names of the options for inputs.
        new: the names of the options for outputs.

    Raises:
        ConfigurationError: that names the option.
    """
    for name in there:
        path = getattr(given, name)
        if path and not _NOT_A_PLAIN_PATH.match(path) and not os.path.exists(path):
            raise ConfigurationError(
                f"--{name}: no file matches {path!r}: check the path, and that this machine may "
                "read it"
            )
    for name in new:
        path = getattr(given, name)
        if path and not _NOT_A_PLAIN_PATH.match(path) and os.path.exists(path):
            raise ConfigurationError(
                f"--{name}={path}: the output exists already and is never overwritten: delete it, "
                "or choose another name"
            )
