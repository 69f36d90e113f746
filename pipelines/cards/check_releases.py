"""Whether what was released is what the card is about: each slot once, at its time, in its bins."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from streamveil.engine.guarantees import PER_RECORD
from streamveil.io.formats import CSV, EXTENSIONS, format_of
from streamveil.io.releases import BINS_METADATA, json_values
from streamveil.io.tidy import quoted_label
from streamveil.mechanisms.core.domains import parts_of
from streamveil.mechanisms.core.records import Slots, format_time, parse_time
from streamveil.mechanisms.discovery.discovered_keys import DiscoveredKeys
from streamveil.pipelines.cards.check_input import Read, column, numbers
from streamveil.pipelines.cards.claims import (
    StatedQuery,
    domain_of,
    queries_of,
    released_slots,
    slots_of,
)

Record = Mapping[str, Any]
Tables = Sequence[tuple[str, pa.Table]]

_OF_ROWS = ("key", "statistic")
"""Columns that tell rows of one slot apart, in tables that have such."""
_OF_ANSWERS = ("length", "level", *_OF_ROWS)


def released_faults(card: Record, read: Read) -> Iterator[str]:
    """What is wrong with releases, revisions or answers."""
    if card["promise"]["guarantee"] == PER_RECORD:
        for path, table in read.of("releases"):
            yield from _wrong_records(card, path, table)
    for query in queries_of(card["data"]):
        yield from _wrong_results(card, read, query)


def _wrong_results(card: Record, read: Read, query: StatedQuery) -> Iterator[str]:
    """What is wrong with the results of a query, and with their revisions."""
    base, slots = slots_of(card["data"]), slots_of(card["data"], query)
    released = [
        (path, query.of_own_length(base, _with_columns(path, table, query, *_OF_ANSWERS)))
        for path, table in read.of(query.kind)
    ]
    revised = [(path, _of_query(path, table, query)) for path, table in read.of("revisions")]
    wanted = set(released_slots(card, query, query.kind))
    yield from _compared(_where(released), query.slots_named, _rows_of(released), wanted)
    yield from _revisions(_where(revised), query, _rows_of(revised), wanted)
    domain = domain_of(query.domain)
    keys = parts_of(domain).listed
    known = not isinstance(keys, DiscoveredKeys) or keys.found  # or they are found after the launch
    later = _listed_later(query)
    for path, table in released:
        yield from _times(path, table, slots)
        yield from _mechanism(card, path, table)
    for path, table in (*released, *(() if query.name else revised)):
        if known:
            yield from _bins(path, table, domain.labels, query)
        yield from _listed_early(path, table, later, query)


def _listed_later(query: StatedQuery) -> dict[str, list[tuple[int, float]]]:
    """Keys that were listed while the stream ran: the first slot, and the first one without it.

    A key that left and returned was listed more than once.
    """
    listed = parts_of(domain_of(query.domain)).listed
    found: dict[str, list[tuple[int, float]]] = {}
    if isinstance(listed, DiscoveredKeys):
        keys = listed.values[len(listed.values) - len(listed.since) :]
        for key, first, until in listed.ended:
            found.setdefault(key, []).append((query.cut.of(first), query.cut.of(until)))
        for key, first in zip(keys, listed.since, strict=True):
            found.setdefault(key, []).append((query.cut.of(first), math.inf))
    return found


def _listed_early(
    path: str,
    table: pa.Table,
    later: Mapping[str, list[tuple[int, float]]],
    query: StatedQuery,
) -> Iterator[str]:
    """Keys with results while they were not listed, or without results while they were."""
    if not later or not table.num_rows:
        return
    slots = numbers(path, table, "slot").tolist()
    found = set(zip(slots, column(path, table, "key"), strict=True))
    for key, times in later.items():
        for slot in sorted(set(slots)):
            listed = any(first <= slot < until for first, until in times)
            if ((slot, _quoted(path, key)) in found) != listed:
                verb, is_listed = (
                    ("has no result", "is listed") if listed else ("has a result", "is not listed")
                )
                yield (
                    f"{path}: the key {key!r} {verb} in slot {slot}, and by the card it "
                    f"{is_listed} there: {query.name} has other results than those of the run"
                )
                return


def _quoted(path: str, label: str) -> str:
    """A label in the form that files use."""
    of_csv = path.lower().endswith(tuple(EXTENSIONS)) and format_of(path) == CSV
    return quoted_label(label) if of_csv else label


def _with_columns(path: str, table: pa.Table, query: StatedQuery, *names: str) -> pa.Table:
    """The table, if it has what one of its kind has. Raises Fault."""
    numbers(path, table, "slot")
    for name in names if query.name else ():
        column(path, table, name)
    return table


def _of_query(path: str, table: pa.Table, query: StatedQuery) -> pa.Table:
    """The rows of revisions that are of a query. Raises Fault."""
    if query.name is None:
        return table
    names = column(path, _with_columns(path, table, query, *_OF_ROWS), "query")
    return table.filter(pa.array([name == query.name for name in names], pa.bool_()))


def _rows_of(tables: Tables) -> Counter[tuple[Any, ...]]:
    """How many rows there are of each slot, and of what else tells rows apart."""
    found: Counter[tuple[Any, ...]] = Counter()
    for path, table in tables:
        more = [column(path, table, name) for name in _OF_ROWS if name in table.column_names]
        found.update(zip(numbers(path, table, "slot").tolist(), *more, strict=True))
    return found


def _compared(
    where: str,
    named: Callable[[Collection[Any]], str],
    found: Counter[tuple[Any, ...]],
    wanted: set[Any],
) -> Iterator[str]:
    """What is missing, too much or there twice; found rows begin with what is wanted.

    `named` has words for some of that, with the verb.
    """
    units = {key[0] for key in found}
    for some, how in (
        (wanted - units, "missing, and the card says otherwise: bring back what the run wrote"),
        (units - wanted, "of no run of the card: take out what none wrote, or bring back its card"),
        (_doubled(found), _TWICE),
    ):
        if some:
            yield f"{where}: {named(some)} {how}"


_TWICE = (
    "there twice: a slot is released once, and to release it again costs its budget again; "
    "take the one out that the run did not write"
)


def _doubled(found: Counter[tuple[Any, ...]]) -> set[Any]:
    return {key[0] for key, times in found.items() if times > 1}


def _revisions(
    where: str, query: StatedQuery, found: Counter[tuple[Any, ...]], released: set[Any]
) -> Iterator[str]:
    """Revisions of slots that were never released, or that are there twice."""
    strange, twice = {key[0] for key in found} - released, _doubled(found)
    if strange:
        words = query.slots_named(strange, "revisions", "were")
        verb = "answered" if query.name else "released"
        yield f"{where}: {words} never {verb}: take them out"
    if twice:
        yield f"{where}: {query.slots_named(twice, 'revisions')} there twice: take one of them out"


def _where(tables: Tables) -> str:
    paths = [path for path, _ in tables] or ["no file"]
    return paths[0] if len(paths) == 1 else f"{paths[0]} to {paths[-1]}"


def _times(path: str, table: pa.Table, slots: Slots) -> Iterator[str]:
    rows = zip(numbers(path, table, "slot").tolist(), column(path, table, "start"), strict=True)
    for slot, start in rows:
        if parse_time(start) != slots.start(slot):
            yield (
                f"{path}: slot {slot} begins at {format_time(parse_time(start))}, and by the card "
                f"at {format_time(slots.start(slot))}: another slot length or origin"
            )
            return


def _mechanism(card: Record, path: str, table: pa.Table) -> Iterator[str]:
    if "mechanism" not in table.column_names:
        return
    names = {str(name).partition(":")[0] for name in table.column("mechanism").to_pylist()}
    meant = str(card["mechanism"]).partition(":")[0]
    if names != {meant}:
        yield f"{path}: releases are by {', '.join(sorted(names))}, and the card says {meant}"


def _bins(path: str, table: pa.Table, labels: Sequence[str], query: StatedQuery) -> Iterator[str]:
    """Whether a table is of the bins of the card."""
    if not table.num_rows:
        return
    if "key" in table.column_names:
        yield from _bins_in_rows(path, table, labels, query)
        return
    lengths = {len(json_values(counts)) for counts in column(path, table, "counts")}
    if lengths != {len(labels)}:
        other = next(iter(lengths - {len(labels)}))
        yield f"{path}: a slot has {other} counts, and the domain of the card {len(labels)} bins"
    named: list[Sequence[str]] = []
    if "bins" in table.column_names:  # of BigQuery's rows each names them
        named += [json_values(one) for one in table.column("bins").to_pylist()]
    bins = (table.schema.metadata or {}).get(BINS_METADATA.encode())
    if bins is not None:
        named.append(json_values(bins.decode()))
    other_bins = [one for one in named if tuple(one) != tuple(labels)]
    if other_bins:
        yield f"{path}: its bins are {list(other_bins[0])}, and those of the card are others"


def _bins_in_rows(
    path: str, table: pa.Table, labels: Sequence[str], query: StatedQuery
) -> Iterator[str]:
    """The same of rows of one bin each, or of one statistic of a bin."""
    keys = table.column("key")
    rows = table.num_rows / len(set(numbers(path, table, "slot").tolist()))
    if query.name is None and rows != len(labels):
        yield f"{path}: slots have {rows:g} bins, and the domain of the card {len(labels)}"
    if not pa.types.is_string(keys.type):  # a CSV file of numbers does not say how they are written
        return
    levels = column(path, table, "level") if query.name else [0] * table.num_rows
    later = {
        _quoted(path, label) for label in _listed_later(query)
    }  # which may come in other files
    known = {_quoted(path, label) for label in labels}
    named = {key for key, level in zip(keys.to_pylist(), levels, strict=True) if level == 0}
    if (named ^ known) - later:
        other = sorted((named ^ known) - later)[0]
        yield f"{path}: the bin {other!r} is not both among what was released and in the card"


# ---- records ---------------------------------------------------------------------------------


def _wrong_records(card: Record, path: str, table: pa.Table) -> Iterator[str]:
    """Of statistics of records: windows and keys that there should be, each once."""
    stated = card["data"]["statistic"]
    others = [one for one in column(path, table, "statistic") if one != stated]
    if others:
        yield f"{path}: a row is a {others[0]}, and the card says {stated}"
        return
    keys, starts, ends = (column(path, table, name) for name in ("key", "start", "end"))
    found = Counter(
        ((_text(key), _time(start), _time(end)),)
        for key, start, end in zip(keys, starts, ends, strict=True)
    )
    yield from _compared(path, _window_named, found, _windows_and_keys(card))


def _window_named(some: Collection[Any]) -> str:
    """Words for the first of some windows and keys."""
    key, start, _ = min(some, key=str)
    window = "all times" if start is None else format_time(start)
    return f"the row of key {key or 'none'} and the window of {window} is"


def _text(key: Any) -> str | None:
    return None if key in (None, "") else str(key)


def _time(value: Any) -> int | None:
    return None if value in (None, "") else parse_time(value)


def _windows_and_keys(card: Record) -> set[tuple[str | None, int | None, int | None]]:
    data = card["data"]
    keys: list[str | None] = data["keys"] or [None]
    if "slot" not in data:
        return {(key, None, None) for key in keys}
    slots, run = slots_of(data), card["runs"][0]
    first, last, length = run["first_slot"], run["last_slot"], data["window"]
    begins = [
        (first if data["running"] else pane - length + 1, pane)
        for pane in range(first if data["running"] else first + length - 1, last + 1)
    ]
    return {(key, slots.start(a), slots.end(b)) for key in keys for a, b in begins}
