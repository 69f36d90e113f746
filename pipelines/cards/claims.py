"""What a card states, as its writers and its check both read it: queries, slots, bins, spans.

A card of one count states one query, whose slots are the base slots.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streamveil.mechanisms.core.domains import Categories, Domain, Edges, Grid, with_bins
from streamveil.mechanisms.core.local_days import CalendarMonths, CalendarSlots
from streamveil.mechanisms.core.records import (
    Lifetime,
    Requirement,
    Slots,
    format_time,
    parse_months,
)
from streamveil.mechanisms.discovery.discovered_keys import DiscoveredKeys
from streamveil.mechanisms.discovery.key_groups import KeyGroups
from streamveil.mechanisms.queries import cuts
from streamveil.mechanisms.queries.cuts import Cut, Months, cut_of

Record = Mapping[str, Any]
Span = tuple[int, int]

FORMAT = "streamveil card 1"
RELEASES, ANSWERS = "releases", "answers-"
"""What the results of one count are called among files, and those of a query before its name."""
OPTIONS, EVENTS, CLOCK, STREAM = "options", "events", "clock", "stream"
"""What decides which slots there are."""
_MOST_NAMED = 5


@dataclass(frozen=True)
class StatedQuery:
    """What is released once for each of its slots."""

    kind: str
    """What its files are called."""
    length: int | Months
    """Base slots in one of its slots, or calendar months."""
    domain: Record
    name: str | None = None
    """None for the one count of a card."""

    def slots_named(
        self, slots: Collection[int], what: str | None = None, verb: str = "are"
    ) -> str:
        """Words for what was released of some of its slots, with the verb."""
        listed = sorted(slots)
        more = len(listed) - _MOST_NAMED
        shown = ", ".join(map(str, listed[:_MOST_NAMED])) + (f" and {more:,} more" * (more > 0))
        whose = "" if self.name is None else f" of query {self.name}"
        return f"{what or ('answers' if self.name else RELEASES)} of slots {shown}{whose} {verb}"

    def base_slots(self, span: Span) -> Span:
        """The first and the last base slot of a span of its slots."""
        return self.cut.first(span[0]), self.cut.last(span[1])

    @property
    def cut(self) -> Cut:
        """Which base slots each of its slots has."""
        return cut_of(self.length)

    def of_own_length(self, base: Slots, table: pa.Table) -> pa.Table:
        """The rows about its slots, without those of rollups."""
        if self.name is None:
            return table
        own = cuts.slots_of(self.length, base).text
        return table.filter(pc.equal(table.column("length").cast(pa.string()), own))


def queries_of(data: Record) -> list[StatedQuery]:
    """The queries of a card; none of records."""
    if "queries" in data:
        base = slots_of(data)
        return [
            StatedQuery(
                f"{ANSWERS}{one['name']}", _length(one["slots"], base), one["domain"], one["name"]
            )
            for one in data["queries"]
        ]
    return [] if "statistic" in data else [StatedQuery(RELEASES, 1, data["domain"])]


def _length(stated: int | str, base: Slots) -> int | Months:
    months = parse_months(stated) if isinstance(stated, str) else None
    return int(stated) if months is None else Months(months).on(base)


def spans_of(data: Record, tables: Mapping[str, Iterable[pa.Table]]) -> dict[str, Span]:
    """First and last slot of each query of which there are rows, by the kind of its files."""
    found: dict[str, Span] = {}
    for query in queries_of(data):
        base = slots_of(data)
        ends = [
            pc.min_max(own.column("slot").cast(pa.int64())).as_py()
            for table in tables.get(query.kind, ())
            if (own := query.of_own_length(base, table)).num_rows
        ]
        if ends:
            found[query.kind] = min(one["min"] for one in ends), max(one["max"] for one in ends)
    return found


def base_span(data: Record, spans: Mapping[str, Span]) -> Span | None:
    """First and last base slot of all; None where there is nothing."""
    each = [one.base_slots(spans[one.kind]) for one in queries_of(data) if one.kind in spans]
    return (min(a for a, _ in each), max(b for _, b in each)) if each else None


def answered(data: Record, spans: Mapping[str, Span]) -> dict[str, Any]:
    """The fact of a run that says which slots of each query were answered; none of one count."""
    if "queries" not in data:
        return {}
    queries = queries_of(data)
    return {"answered": {one.name: list(spans[one.kind]) for one in queries if one.kind in spans}}


def released_span(run: Record, query: StatedQuery) -> Span | None:
    """The first and the last slot of a query that a run released, by the card."""
    if query.name is None:
        return run["first_slot"], run["last_slot"]
    span = run["answered"].get(query.name)
    if span is None:
        return None
    first, last = span
    return first, last


def released_slots(card: Record, query: StatedQuery, kind: str) -> Iterator[int]:
    """Slots of a query that runs released which wrote files of a kind, or sent them elsewhere."""
    for run in card["runs"]:
        span = released_span(run, query) if kind in kinds_of(run) else None
        if span is not None:
            yield from range(span[0], span[1] + 1)


def facts_of_span(slots: Slots, first: int | None, last: int | None) -> dict[str, Any]:
    """The facts of a run that say from which slot on it released, and up to which, if known."""
    begin = {} if first is None else {"first_slot": first, "start": format_time(slots.start(first))}
    end = {} if last is None else {"last_slot": last, "end": format_time(slots.end(last))}
    return {**begin, **end}


def kinds_of(run: Record) -> list[str]:
    """What a run wrote, to files and elsewhere."""
    return [*run["files"], *run.get("streams", ())]


def is_endless(card: Record) -> bool:
    """Whether the input of its runs had no end, so that they could not write a ledger."""
    return bool(card["data"].get("range") == STREAM)


def slots_of(data: Record, query: StatedQuery | None = None) -> Slots:
    """How time is cut, of a query or in base slots. Raises ConfigurationError."""
    months, zone = parse_months(data["slot"]), data["slot_zone"]
    if months is not None:
        base: Slots = CalendarMonths(months=months, zone=zone or "UTC")
        return base if query is None else cuts.slots_of(query.length, base)
    base = Slots.of(data["slot"], data["origin"])
    if data["slot_zone"] is not None:
        base = CalendarSlots(base.length, base.origin, data["slot_zone"])
    return base if query is None else cuts.slots_of(query.length, base)


def domain_of(stated: Record) -> Domain:
    """The bins of a card. Raises ConfigurationError."""
    listed: Categories | Edges | Grid
    if "edges" in stated:
        listed = Edges(tuple(stated["edges"]))
    elif "grid" in stated:
        listed = Grid(**stated["grid"])
    elif "discovered" in stated:
        facts = {"found": True, **stated["discovered"]}
        since, groups = (tuple(facts.pop(name, ())) for name in ("since", "groups"))
        ended = tuple(tuple(one) for one in facts.pop("ended", ()))
        more = {**facts, "since": since, "ended": ended, "groups": KeyGroups(groups)}
        listed = DiscoveredKeys(tuple(stated["values"]), **more)
    else:
        listed = Categories(tuple(stated["values"]))
    return with_bins(listed, stated.get("other"), stated.get("null"))


def requirement_of(stated: Record) -> Requirement:
    """The requirement of a class of a card. Raises ConfigurationError for one that is none."""
    if stated["window"] is None:
        return Lifetime(stated["epsilon"])
    return Requirement(stated["window"], stated["epsilon"])
