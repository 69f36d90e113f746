"""Participation limits of a plan, and when they reduce errors: all of it is public."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from streamveil.engine.plan_kinds import PlanKind
from streamveil.mechanisms.core.records import Requirement
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.presence.choice import Auto

if TYPE_CHECKING:
    from streamveil.engine.stream.histogram_plan import HistogramPlan
    from streamveil.engine.stream.query_plan import QueryPlan


class Limited(NamedTuple):
    """The participation limits of what is counted."""

    query: str | None
    """None for a single count."""
    limits: Sequence[Limit]
    """Of each class."""
    requirements: Sequence[Requirement]
    """The same, in slots of the query."""
    adjacency: str
    """What neighbouring inputs differ in, in these slots."""


def limited_of(plan: HistogramPlan | QueryPlan) -> list[Limited]:
    """What has limits; empty where users count in every slot."""
    if plan.plan_kind is PlanKind.HISTOGRAMS:
        limits, classes = plan.limits or (), plan.known.classes
        by_class = len(limits) == len(classes)  # of requirements that change there is one for all
        return [Limited(None, limits, classes, plan.adjacency)] if by_class else []
    both = zip(plan.query_set, plan.presences or (), strict=False)
    return [Limited(query.name, one.limits, one.requirements, one.adjacency) for query, one in both]


def most_present(plan: HistogramPlan | QueryPlan) -> float | None:
    """In which fraction of the slots users may be present so that every given limit helps.

    None where no limit is given for windows; one that is chosen by a rate or by the run helps.
    """
    found = (
        limit.most_present(over, adjacency)
        for one in limited_of(plan)
        for limit, over, adjacency in _given(plan, one)
    )
    return min(found, default=None)


def kept_shares_needed(plan: HistogramPlan | QueryPlan) -> dict[str | None, float]:
    """By query, the fraction of events that limits must keep so that errors are sure to fall."""
    needed = {}
    for one in limited_of(plan):
        shares = (limit.kept_share_needed(over, how) for limit, over, how in _given(plan, one))
        needed[one.query] = max(shares, default=0.0)
    return {query: share for query, share in needed.items() if share}


def _given(
    plan: HistogramPlan | QueryPlan, one: Limited
) -> Iterator[tuple[Limit, Requirement, str]]:
    """Limits that the user gave, each with the requirement over which it applies."""
    if isinstance(plan.limit, Auto):
        return
    for limit, over in zip(one.limits, one.requirements, strict=True):
        if limit.applies(over, one.adjacency):
            yield limit, over, one.adjacency
