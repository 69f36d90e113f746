"""How pages speak of the questions of a portfolio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from streamveil.mechanisms.portfolio.bounds import is_known
from streamveil.mechanisms.portfolio.conditions import Condition
from streamveil.mechanisms.portfolio.questions import Question


@dataclass(frozen=True)
class Wording:
    """How a page speaks of a question."""

    title: str
    about: str
    unit: str
    """Of its figures."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Longer ones of some of its bins."""


def plain_wording(question: Question, bounds: Sequence[float] | None = None) -> Wording:
    """Words for a question of which nothing but itself is known, and bounds that a run chose."""
    statistic: Any = question.statistic
    column = statistic.column
    what, unit = {
        "count": ("Events", "events"),
        "distinct": ("Users, each counted once", "users"),
        "top": (f"The {getattr(statistic, 'k', '')} bins with the most events", "events"),
        "sum": (f"Sum of {column}", f"the unit of {column}"),
        "mean": (f"Mean of {column}", f"the unit of {column}"),
        "variance": (f"Variance of {column}", f"the square of the unit of {column}"),
        "stddev": (f"Standard deviation of {column}", f"the unit of {column}"),
        "quantiles": (f"Quantiles of {column}", f"the unit of {column}"),
    }[statistic.name]
    by = f", by {', '.join(question.value)}" if question.value else ""
    clipped = ""
    if bounds:
        clipped = " Numbers count from {:g} to {:g}, as the run chose.".format(*bounds)
    elif not is_known(question):
        clipped = " Numbers count within bounds that the run chose."
    elif hasattr(statistic, "lower"):
        clipped = f" Numbers count from {statistic.lower:g} to {statistic.upper:g}."
    where = " and ".join(map(_in_words, question.where))
    met = f" Only events with {where} are asked about." if where else ""
    return Wording(question.name, f"{what}{by}.{clipped}{met}", unit)


def _in_words(condition: Condition) -> str:
    if condition.values:
        return f"{condition.column} {' or '.join(condition.values)}"
    parts = [
        f"{word} {bound:g}"
        for word, bound in (("from", condition.low), ("below", condition.high))
        if bound is not None
    ]
    return f"{condition.column} {' and '.join(parts)}"
