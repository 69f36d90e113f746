"""Which events a question is about: public conditions on their columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arguments import column_name, texts_of
from streamveil.mechanisms.core.boolean_text import spellings
from streamveil.mechanisms.core.identity import Form, Identified
from streamveil.mechanisms.core.parameter_checks import finite_number
from streamveil.mechanisms.core.records import ConfigurationError


@dataclass(frozen=True)
class Condition(Identified):
    """The value of a column is one of some, or a number from one on and below another.

    What is null meets no condition. Raises ConfigurationError for both, for neither, and for values
    or bounds that nothing meets.
    """

    IDENTITY = Form("condition", ("column", "values", "low", "high"))

    column: str
    values: tuple[str, ...] | None = None
    """Text of those that meet it, whole numbers in decimal, booleans as `true` or `false`, which
    events may write with letters of any case; None for a range."""
    low: float | None = None
    """The least number that meets it; None for all that are below `high`."""
    high: float | None = None
    """All numbers that meet it are below this one; None for all from `low` on."""

    def __post_init__(self) -> None:
        """Check all fields."""
        name = f"where, column {column_name(self.column, 'where')!r}"
        bounds = (self.low, self.high)
        if (self.values is None) == (bounds == (None, None)):
            raise ConfigurationError(
                f"{name}: give the values that count, or the range of numbers that do"
            )
        if self.values is None:
            for field, bound in zip(("low", "high"), bounds, strict=True):
                if bound is not None:
                    object.__setattr__(self, field, _finite(name, bound))
            if self.low is not None and self.high is not None and not self.low < self.high:
                raise ConfigurationError(
                    f"{name}: no number is from {self.low:g} on and below {self.high:g}: give the "
                    "smaller one first; the second is the first that does not count"
                )
            return
        values = texts_of(self.values, name)
        if not values:
            raise ConfigurationError(f"{name}: no values are listed, so no event counts: list some")
        for value in values:
            if not value:
                raise ConfigurationError(f"{name}: an empty value is listed: take it out")
            if values.count(value) > 1:
                raise ConfigurationError(f"{name}: {value!r} is listed twice: list it once")
        object.__setattr__(self, "values", values)

    @property
    def spellings(self) -> tuple[str, ...]:
        """All texts of the values."""
        every = (each for value in self.values or () for each in spellings(value))
        return tuple(dict.fromkeys(every))

    def holds(self, found: Sequence[Any] | npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Which events meet it.

        Args:
            found: of each event what the column says, shape (n,). For a range numbers, NaN or None
                where there is none; else text, None where there is none.

        Returns:
            bool, shape (n,).
        """
        if self.values is not None:
            wanted = frozenset(self.spellings)
            return np.fromiter((each in wanted for each in found), np.bool_, len(found))
        numbers = np.asarray(found, np.float64)
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        # Infinity is no number of a range without an end: it is a slip, like NaN.
        inside: npt.NDArray[np.bool_] = np.isfinite(numbers) & (low <= numbers) & (numbers < high)
        return inside


def _finite(name: str, bound: Any) -> float:
    number = finite_number(bound)
    if number is None:
        raise ConfigurationError(f"{name}: the bound {bound!r} is no finite number: give one")
    return number
