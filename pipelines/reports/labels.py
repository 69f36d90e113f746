"""How pages speak of queries and slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from streamveil.mechanisms.core.records import Slots
from streamveil.mechanisms.queries.bounds import is_known
from streamveil.mechanisms.queries.conditions import Condition
from streamveil.mechanisms.queries.queries import Query

_SLOT_NAMES = {
    "1y": "year",
    "3mo": "quarter",
    "1mo": "month",
    "1w": "week",
    "1d": "day",
    "1h": "hour",
    "1m": "minute",
    "1s": "second",
}


@dataclass(frozen=True)
class Wording:
    """How a page speaks of a query."""

    title: str
    about: str
    unit: str
    """Of its figures."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Longer ones of some of its bins."""
    bin: str = "bin"
    """What one bin is called, in the singular."""
    why_dropped: str = ""
    """Which events noise is not added to, where that is known."""

    def full_name(self, label: str) -> str:
        """Label of a bin, with its longer name where it has one."""
        return f"{label}, {self.names[label]}" if label in self.names else label


def plain_wording(query: Query, bounds: Sequence[float] | None = None) -> Wording:
    """Words for a query of which nothing but itself is known, and bounds that a run chose."""
    statistic: Any = query.statistic
    column = statistic.column
    what, unit = {
        "count": ("Events", "events"),
        "distinct": ("Users, each counted once", "users"),
        "top": (f"The {getattr(statistic, 'k', '')} bins with the most events", "events"),
        "variance": (f"Variance of {column}", f"the square of the unit of {column}"),
        "stddev": (f"Standard deviation of {column}", f"the unit of {column}"),
    }.get(statistic.name, (f"{statistic.name.capitalize()} of {column}", f"the unit of {column}"))
    by = f", by {', '.join(query.value)}" if query.value else ""
    clipped = ""
    if bounds:
        clipped = " Numbers count from {:g} to {:g}, as the run chose.".format(*bounds)
    elif not is_known(query):
        clipped = " Numbers count within bounds that the run chose."
    elif hasattr(statistic, "lower"):
        clipped = f" Numbers count from {statistic.lower:g} to {statistic.upper:g}."
    where = " and ".join(map(_in_words, query.where))
    met = f" Only events with {where} are asked about." if where else ""
    return Wording(query.heading, f"{what}{by}.{clipped}{met}", query.unit or unit)


def _in_words(condition: Condition) -> str:
    if condition.values:
        return f"{condition.column} {' or '.join(condition.values)}"
    parts = [
        f"{word} {bound:g}"
        for word, bound in (("from", condition.low), ("below", condition.high))
        if bound is not None
    ]
    return f"{condition.column} {' and '.join(parts)}"


def slot_name(slots: Slots) -> str:
    """What a slot is called: a day, a slot of 6h."""
    length = slots.text
    return _SLOT_NAMES.get(length, f"slot of {length}")


def slot_names(slots: Slots) -> str:
    """What slots are called: days, slots of 6h."""
    length = slots.text
    return f"{_SLOT_NAMES[length]}s" if length in _SLOT_NAMES else f"slots of {length}"


def so_many(number: int, slots: Slots) -> str:
    """So many slots: 1 day, 48 slots of 6h."""
    return f"{number:,} {slot_name(slots) if number == 1 else slot_names(slots)}"
