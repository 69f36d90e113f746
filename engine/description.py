"""What a plan says of itself, as plain facts that JSON has: who is promised what, of which data.

All of it is public. Each plan describes itself (`describe`), and whoever states, compares or checks
promises reads these facts and need not know the plan.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from streamveil.engine.encode.event_mapper import Columns
from streamveil.engine.guarantees import GUARANTEES, INFINITE
from streamveil.mechanisms.core.domains import Domain, Edges, Grid, parts_of
from streamveil.mechanisms.core.local_days import zone_of
from streamveil.mechanisms.core.records import Lifetime, Slots, format_time
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.discovery.discovered_keys import DiscoveredKeys
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.presence.choice import Look

Facts = dict[str, Any]


class Description(NamedTuple):
    """What is promised, of which data, by what."""

    promise: Facts
    data: Facts
    mechanism: str | None
    """With its options; None of queries, each of which has its own."""


def promised(guarantee: str, adjacency: str, delta: float = 0, **more: Any) -> Facts:
    """A promise: to whom follows, as classes of users or as budgets of records."""
    kind = GUARANTEES[guarantee]
    again = {"granted_again": 0} if guarantee == INFINITE else {}
    stated = {"guarantee": kind.name, "setting": kind.setting, "unit": kind.unit}
    return {**stated, "adjacency": adjacency, "delta": delta, **more, **again}


def classes_of(registry: Registry, more: Sequence[Facts]) -> list[Facts]:
    """The classes of a table of users in the order of a ledger, each with more facts of it."""
    listed = [
        {
            "window": None if isinstance(one, Lifetime) else one.window,
            "epsilon": one.epsilon,
            "users": int(size),
            **facts,
        }
        for one, size, facts in zip(registry.classes, registry.stated_sizes, more, strict=True)
    ]
    return sorted(listed, key=class_key)


def class_key(stated: Mapping[str, Any]) -> tuple[float, float]:
    """What classes are sorted by, in cards and ledgers."""
    window = stated["window"]
    return (float("inf") if window is None else window, stated["epsilon"])


def data_of(columns: Columns, slots: Slots) -> Facts:
    """Columns and slots of events of users."""
    named = {"user": columns.user, "value": list(columns.value), "time": columns.time}
    return {"columns": named, **facts_of_slots(slots)}


def facts_of_slots(slots: Slots) -> Facts:
    """How time is cut, in words of the options; the origin of a calendar is as its clocks show."""
    zone = zone_of(slots)
    origin = format_time(slots.origin)
    return {
        "slot": slots.text,
        "slot_zone": zone,
        "origin": origin if zone is None else origin.removesuffix("Z"),
    }


def facts_of_limit(limit: Limit, look: Look | None, query: str | None, epsilon: float) -> Facts:
    """In how many slots of a query users count, for which part of their budget.

    Of a limit that a look will choose, all that it may be. A single count has no query.
    """
    return {
        "query": query,
        "epsilon": epsilon,
        "max_slots": limit.stated if look is None else look.stated,
        "blocks": limit.blocks,
        "in_life": limit.in_life,
        "chosen": limit.chosen,
    }


def facts_of_domain(domain: Domain) -> Facts:
    """What the bins are."""
    listed, *names = parts_of(domain)
    named = zip(("other", "null"), names, strict=True)
    more: Facts = {key: name for key, name in named if name is not None}
    if isinstance(listed, Edges):
        return {"edges": list(listed.edges), **more}
    if isinstance(listed, Grid):
        return {"grid": dataclasses.asdict(listed), **more}
    if isinstance(listed, DiscoveredKeys):
        more["discovered"] = {
            "share": listed.share,
            "max_keys": listed.max_keys,
            "windows": listed.windows,
        }
        if not listed.found:  # when a job is launched
            more["discovered"]["found"] = False
        if listed.groups.bins:
            more["discovered"]["groups"] = list(listed.groups.bins)
        if listed.stay:
            more["discovered"]["stay"] = True
        if listed.since:
            more["discovered"]["since"] = list(listed.since)
        if listed.ended:
            more["discovered"]["ended"] = [list(one) for one in listed.ended]
    return {"values": list(listed.values), **more}
