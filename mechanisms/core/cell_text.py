"""Cells of any type of Python as text: each by itself, whatever stands beside it."""

from __future__ import annotations

import datetime as dt
import math
import reprlib
from decimal import Decimal
from typing import Any

import numpy as np

from streamveil.mechanisms.core.boolean_text import boolean_text
from streamveil.mechanisms.core.number_text import number_text

WANTED = "text, a number, a boolean or a time"
"""What a cell should be."""

_MINUTE = dt.timedelta(minutes=1)
_MISSING = ("NaTType", "NAType")  # of pandas, which is not imported here


def cell_text(value: Any) -> str | None:
    """A cell as JSON objects have it; None for a missing one, as None, NaN, NaT and NA are.

    Text is as it is, a number is its decimal text (1, 1.0 and Decimal("1.0") are all 1), a boolean
    is `true` or `false`, a time is ISO 8601, and a date has no clock time.

    Raises ValueError for text that is none, TypeError for a value of another type.
    """
    if value is None or type(value).__name__ in _MISSING:
        return None
    if isinstance(value, str):
        value.encode()  # half of a surrogate pair is no text
        return str.__str__(value)
    if isinstance(value, (bool, np.bool_)):
        return boolean_text(bool(value))
    if isinstance(value, (int, np.integer)):
        return str(int(value))
    if isinstance(value, (float, np.floating, Decimal)):
        return _number_text(value)
    if isinstance(value, np.datetime64):
        return _clock_text(value)
    if isinstance(value, dt.datetime):
        offset = value.utcoffset()
        if offset is None:
            value = value.replace(tzinfo=None)
        elif offset % _MINUTE:  # of clocks before there were zones, which ISO 8601 cannot write
            value = value.astimezone(dt.timezone.utc)
        return value.isoformat()
    if isinstance(value, dt.date):
        return value.isoformat()
    if hasattr(value, "to_rfc3339"):  # a timestamp of Beam
        return str(value.to_rfc3339())
    raise TypeError


def shown_cell(value: Any) -> str:
    """A cell of any type as short text for people."""
    try:
        return reprlib.repr(value).encode(errors="replace").decode()
    except Exception:
        return "something that cannot be shown"


def wrong_cell(name: str, value: Any, wanted: str = WANTED) -> str:
    """What is wrong with a cell that cannot be read.

    Args:
        name: its column.
        value: the cell.
        wanted: what it should be.
    """
    return f"{name} is {shown_cell(value)}, of type {type(value).__name__}, not {wanted}"


def _number_text(value: Any) -> str | None:
    if math.isnan(value):
        return None
    if not math.isfinite(value):
        raise TypeError
    return number_text(str(value) if isinstance(value, Decimal) else repr(float(value)))


def _clock_text(value: np.datetime64) -> str | None:
    """A time of numpy, to the second at least, or a date."""
    if np.isnat(value):
        return None
    unit, _ = np.datetime_data(value.dtype)
    if unit in ("generic", "Y", "M", "W"):
        raise TypeError
    return str(value.astype("datetime64[s]") if unit in ("h", "m") else value)
