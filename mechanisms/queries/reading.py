"""Query sets from definitions, and as files have them: mappings that YAML or JSON reads.

    slot: 1h
    queries:
      - {name: places, by: dest, keys: [ORD, ATL], weight: 2}
      - {name: delay, by: carrier, keys: [AA, UA], every: 1d, statistic: mean, of: dep_delay,
         bounds: [-30, 180]}

The keys of a query are those of `definitions.py`, and the arguments of `builders.py`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from streamveil.mechanisms.core.arguments import refuse as refuse_argument
from streamveil.mechanisms.core.local_days import CalendarMonths
from streamveil.mechanisms.core.records import MONDAY, ConfigurationError, Slots
from streamveil.mechanisms.queries.definitions import QueryDefinition, TextDomain, plain_domain
from streamveil.mechanisms.queries.plain_values import check_keys, is_of_library, refuse, slots
from streamveil.mechanisms.queries.queries import QuerySet

SLOT, QUERIES = "slot", "queries"
_RENAMED = dict.fromkeys(("base_slot", "base"), SLOT)
_EXAMPLE = "{slot: 1h, queries: [{name: visits, every: 1d}]}"


def query_set(
    slot: str | dt.timedelta | Slots,
    definitions: QueryDefinition | Iterable[QueryDefinition],
    read_domain: TextDomain = plain_domain,
) -> QuerySet:
    """The query set of some definitions.

    Slots are counted from 1970-01-01. If any length is written in weeks, they are counted from the
    Monday after it, so that weeks begin on Mondays.

    Args:
        slot: length of the slots that windows of requirements are counted in, such as `1h` or
            `1mo`; or `Slots`, which say where slots begin. Queries may have calendar months (`1mo`,
            `1y`) if these cut time into days, or into months.
        definitions: of the queries, as `builders.py` makes them; one by itself, too.
        read_domain: reads keys that are given as the name of a file.

    Raises:
        ConfigurationError: for queries that do not fit together or into these slots.

    Example:
        >>> delay = sv.mean("delay", of="delay", bounds=(0, 30), every="1d")
        >>> {query.name: query.slots for query in query_set("1h", [sv.count("all"), delay])}
        {'all': 1, 'delay': 24}
    """
    base = slot if isinstance(slot, Slots) else slots(SLOT, slot)
    if isinstance(definitions, QueryDefinition):
        definitions = [definitions]
    elif isinstance(definitions, str) or not isinstance(definitions, Iterable):
        refuse_argument(QUERIES, definitions, "give definitions such as count('visits')")
    several = tuple(definitions)
    for each in several:
        if not isinstance(each, QueryDefinition):
            refuse_argument("a query", each, "give a definition such as count('visits')")
    if not isinstance(slot, Slots) and not isinstance(base, CalendarMonths):
        lengths = [base, *(one for each in several for one in (each.every, *each.rollups) if one)]
        base = Slots(base.length, MONDAY if any(each.origin for each in lengths) else 0)
    return QuerySet(base, tuple(each.query(base, read_domain) for each in several))


def query_set_of(found: Any, read_domain: TextDomain = plain_domain) -> QuerySet:
    """The query set that a file describes: see :func:`query_set`.

    Args:
        found: what a reader of YAML or JSON made of the file. Its list of queries may hold
            definitions as well.
        read_domain: reads keys that are given as the name of a file.

    Raises:
        ConfigurationError: for whatever is wrong.
    """
    if found is None:
        raise ConfigurationError(f"it is empty: write {SLOT} and {QUERIES}, such as {_EXAMPLE}")
    if not isinstance(found, Mapping):
        wanted = f"write a mapping of {SLOT} and {QUERIES}"
        if is_of_library(found):
            kind = type(found).__name__
            raise ConfigurationError(f"these are of type {kind}: {wanted}, such as {_EXAMPLE}")
        refuse("the file of queries", found, wanted)
    check_keys(found, (SLOT, QUERIES), _RENAMED)
    for key in (SLOT, QUERIES):
        if found.get(key) is None:
            raise ConfigurationError(
                f"{key} is missing: a file of queries has a {SLOT}, such as 1h, and a list of "
                f"{QUERIES}"
            )
    several = found[QUERIES]
    if not isinstance(several, Sequence) or isinstance(several, str):
        refuse(QUERIES, several, "write a list of queries, each with a name")
    definitions = [_definition(number, each) for number, each in enumerate(several, 1)]
    return query_set(found[SLOT], definitions, read_domain)


def _definition(number: int, found: Any) -> QueryDefinition:
    if isinstance(found, QueryDefinition):
        return found
    place = f"query {number} of the list"
    if not isinstance(found, Mapping) or not found:
        refuse(place, found, "write a mapping, such as {name: visits, every: 1d}")
    try:
        return QueryDefinition.of(found)
    except ConfigurationError as error:
        message = str(error)
        raise ConfigurationError(
            message if message.startswith("query '") else f"{place}: {message}"
        ) from None
