"""Values of queries as YAML, JSON or a program gives them, read into the types they stand for.

YAML reads `no` as false, 1.50 as a number and 2024-01-01 as a date. Where text is needed these are
refused, because the text that was written cannot be restored. Each refusal is a ConfigurationError
of one line with the key, its value and the remedy.
"""

from __future__ import annotations

import datetime as dt
import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, NoReturn

from streamveil.mechanisms.core.arguments import LISTING, columns_in, slots_of
from streamveil.mechanisms.core.boolean_text import boolean_text
from streamveil.mechanisms.core.parameter_checks import finite_number
from streamveil.mechanisms.core.records import ConfigurationError, Slots

_CALENDAR_WORDS = re.compile(r"\s*\d+\s*(months?|years?)\s*")
_LONGEST = 60  # characters of a value in a message


def refuse(key: str, value: Any, remedy: str) -> NoReturn:
    """Raise ConfigurationError for the value of a key."""
    text = " ".join(repr(value).split())
    shown = text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
    kind = f", of type {type(value).__name__}" if is_of_library(value) else ""
    raise ConfigurationError(f"{key} is {shown}{kind}: {remedy}")


def check_keys(
    found: Mapping[Any, Any], known: Collection[str], renamed: Mapping[str, str] | None = None
) -> None:
    """Refuse a key that is unknown.

    Args:
        found: the mapping.
        known: the keys that it may have.
        renamed: by a former or foreign name of a key, the key to write instead.

    Raises:
        ConfigurationError: with the key that was probably meant.
    """
    others = renamed or {}
    for key in found:
        if key in known:
            continue
        near = _nearest_of(key, (*known, *others))
        if near in others:
            remedy = f"write {others[near]}"
        else:
            remedy = f"did you mean {near}?" if near else f"known are {', '.join(known)}"
        raise ConfigurationError(f"the key {key!r} is unknown: {remedy}")


def nearest(given: Any, known: Collection[str]) -> str:
    """The question which of some names was meant; empty if none is near."""
    near = _nearest_of(given, known)
    return f"did you mean {near}?" if near else ""


def _nearest_of(given: Any, known: Collection[str]) -> str:
    near = difflib.get_close_matches(str(given).lower(), known, n=1)
    return near[0] if near else ""


def plain(value: Any) -> Any:
    """A value as files have it, from an array, a column or a number of a library."""
    if isinstance(value, Mapping):
        return {key: unpacked(each) for key, each in value.items()}
    return unpacked(value)


def unpacked(value: Any) -> Any:
    """The same, without looking into a mapping."""
    listed_by = _listed_by(value)
    return getattr(value, listed_by)() if listed_by else value


def is_of_library(value: Any) -> bool:
    """Whether a value is a table, a column or an array."""
    return bool(columns_in(value) or _listed_by(value))


def _listed_by(value: Any) -> str | None:
    """The method by which an array, a column or a number of a library becomes one of Python."""
    if columns_in(value) is not None:
        return None
    for name in LISTING:
        if callable(getattr(value, name, None)):
            return name
    return None


def slots(key: str, value: Any) -> Slots:
    """Slots of a length: text with its unit, or a timedelta. Raises ConfigurationError."""
    if not isinstance(value, (str, dt.timedelta)):
        refuse(key, value, "write a length with its unit, such as 1h, 1d, 1w, 1mo or 1y")
    if isinstance(value, str) and _CALENDAR_WORDS.fullmatch(value):
        refuse(key, value, "write calendar months as 1mo, 3mo for a quarter, and years as 1y")
    try:
        return slots_of(value)
    except ConfigurationError as error:
        raise ConfigurationError(f"{key}: {error}") from None


def columns(key: str, value: Any) -> tuple[str, ...]:
    """Names of columns: a list, or text with commas between as `--value_column` has it."""
    parts = value.split(",") if isinstance(value, str) else listed(key, value)
    return tuple(text(key, each) for each in parts)


def text(key: str, value: Any) -> str:
    """Text without white space around it. Raises ConfigurationError."""
    return _text(key, value).strip()


def _text(key: str, value: Any) -> str:
    """Text, unchanged."""
    if isinstance(value, bool):
        refuse(key, value, "without quotes YAML reads yes, no, on and off so: write it in quotes")
    if not isinstance(value, str) or not value.strip():
        refuse(key, value, "write text, in quotes if it looks like something else")
    if any("\ud800" <= each <= "\udfff" for each in value):
        refuse(key, value, "it has half of a character: write the whole of it")
    return value


def texts(key: str, value: Any) -> tuple[str, ...]:
    """Values as text, with whole numbers in decimal, and booleans as in JSON.

    Text is not changed. Blanks at its ends are part of a value, as they are in events.
    """
    return tuple(_category(key, each) for each in listed(key, value))


def _category(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return boolean_text(value)
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, Real):
        refuse(
            key,
            value,
            "values are text or whole numbers: write it in quotes, or ranges of numbers as edges: "
            "[0, 1.5, 3] in keys and {from: 0, to: 1.5} in where",
        )
    return _text(key, value)


def listed(key: str, value: Any, remedy: str = "write a list, such as [1, 2]") -> Sequence[Any]:
    """A list that is not empty. Raises ConfigurationError."""
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)) or not value:
        refuse(key, value, remedy)
    return value


def number(key: str, value: Any) -> float:
    """A finite number. Raises ConfigurationError."""
    if isinstance(value, str):
        refuse(key, value, "write a number without quotes; YAML reads 1.0e+3 as one, not 1e3")
    found = finite_number(unpacked(value))
    if found is None:
        refuse(key, value, "write a finite number")
    return found


def numbers(key: str, value: Any) -> tuple[float, ...]:
    """Finite numbers of a list. Raises ConfigurationError."""
    return tuple(
        number(f"number {at} of {key}", each) for at, each in enumerate(listed(key, value), 1)
    )
