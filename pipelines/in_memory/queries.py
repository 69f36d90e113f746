"""The queries of a call, as one query set."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping, Sequence
from typing import Any

from streamveil.io.domain import read_domain
from streamveil.mechanisms.core.arguments import slots_of
from streamveil.mechanisms.core.local_days import CalendarMonths, zone_of
from streamveil.mechanisms.core.records import EPOCH, ConfigurationError, Slots
from streamveil.mechanisms.queries.definitions import QueryDefinition
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.reading import query_set
from streamveil.mechanisms.registry import DEFAULT
from streamveil.pipelines.plans.user_plans import query_set_of


def queries_of_call(
    queries: Sequence[Any], given: Mapping[str, Any]
) -> tuple[QuerySet, Query | None]:
    """The query set of a call; and the query by itself, where it is defined as a single count.

    A file of queries, and what else is a whole set, is released as the command does it.

    Args:
        queries: definitions, one or more, or a list of them; or a path, a mapping or a query set
            alone.
        given: the other arguments.

    Raises:
        ConfigurationError: for queries beside the short form, or that do not fit together.
    """
    only = queries[0] if len(queries) == 1 else None
    if isinstance(only, (list, tuple)):
        queries = only
    for name in ("value", "domain"):
        if given[name] is not None:
            raise ConfigurationError(
                f"{name} is for one count without queries: leave it out, or write "
                "sv.count(name, by=..., keys=...) and leave the others"
            )
    slot = given["slot"]
    if len(queries) == 1 and not isinstance(queries[0], QueryDefinition):
        return _whole_set(queries[0], slot), None
    if slot is None:
        raise ConfigurationError("slot is missing: give the length of a slot, such as slot='1h'")
    made = query_set(slot, queries, read_domain)
    return made, made.single_count


def _whole_set(found: Any, slot: Any) -> QuerySet:
    """A query set that is there, or in a file or a mapping."""
    made = query_set_of(os.fspath(found) if isinstance(found, os.PathLike) else found)
    if slot is not None and slots_of(slot, "slot").text != made.base.text:
        length = made.base.text
        raise ConfigurationError(
            f"slot is {slot}, and the queries have slots of {length}: leave slot out"
        )
    return made


def arguments_of(count: Query) -> dict[str, Any]:
    """The arguments of a call that release a single count."""
    return {
        "value": count.value[0] if len(count.value) == 1 else count.value,
        "domain": count.domain,
        "mechanism": None if count.mechanism == DEFAULT else count.mechanism,
        "max_contributions": count.max_contributions,
        "keep": count.keep,
    }


def arguments_of_slots(slots: Slots, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call that cut time as a query set does, whatever the start."""
    origin = given["origin"]
    if origin is None and not isinstance(slots, CalendarMonths):
        origin = (EPOCH + dt.timedelta(microseconds=slots.origin)).replace(tzinfo=None)
    return {
        "slot": slots.text,
        "origin": origin,
        "slot_zone": given["slot_zone"] or zone_of(slots),
    }
