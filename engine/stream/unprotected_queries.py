"""What queries count, and what is true of all events: to compare with answers, never to publish.

All events are held in memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.engine.count.counter import BlockKey
from streamveil.engine.count.query_counter import pack_queries
from streamveil.engine.encode.event_mapper import keys_of_texts, not_discovered
from streamveil.engine.encode.query_mapper import KeyEvents, Located, slices_of
from streamveil.engine.messages import Kind, Message
from streamveil.engine.stream.query_plan import QueryPlan
from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.core.records import InputLost
from streamveil.mechanisms.queries.bounds import AutoBounds
from streamveil.mechanisms.queries.cuts import Cut
from streamveil.mechanisms.queries.discovered import Discoverer, declared
from streamveil.mechanisms.queries.queries import Query
from streamveil.mechanisms.queries.statistics import Quantiles


class ExactQuery(NamedTuple):
    """A query without any protection, slot by slot from the first on."""

    counts: Integers
    """Cells of its measure, of the events that count: shape (slots, K, cells)."""
    figures: Floats
    """What is true of all events, whoever they are of and however many each user has, of bins and
    groups: shape (slots, nodes, outputs), NaN where there is nothing to compute a figure of. There
    are fewer slots than in `counts`, which go on to the end of the longest slot of all queries.
    """
    longer: tuple[Floats, ...]
    """The same of each of its longer times, from the one on that holds the first slot. Counts, sums
    and users are those of slots added up."""


def exact_answers(
    plan: QueryPlan,
    batches: Iterable[pa.RecordBatch],
    rejected: Callable[[pa.RecordBatch], None] = lambda letters: None,
) -> tuple[int, list[ExactQuery]]:
    """Count events for all queries without any protection.

    Args:
        plan: says what is asked. Without a range it is that of the events that count.
        batches: events.
        rejected: called with the dead letters of a batch, of `io.REJECTED_SCHEMA`, if any.

    Returns:
        The first base slot, and what came of each query.

    Raises:
        InputLost: for events none of which counts, without a range.
    """
    counter, mapper = plan.counter(plan.layout(bounded=True)), plan.event_mapper()
    query_set, layout = plan.query_set, counter.layout
    parts: dict[BlockKey, list[Message]] = defaultdict(list)
    located: list[list[Located]] = []
    for batch in (part for whole in batches for part in slices_of(whole)):
        events, letters = mapper.map(batch)
        if letters.num_rows:
            rejected(letters)
        for block, shard, packed, _ in pack_queries(events, layout, counter.bounding):
            message = layout.message(Kind.EVENTS, block, shard, packed.to_bytes())
            parts[(*shard, block)].append(message)
        located.append(mapper.located(batch))
    tables: list[dict[int, Integers]] = [{} for _ in query_set]
    for key, messages in parts.items():
        number, _ = layout.query(key[:2])
        visits = counter.bound(key, messages)
        found = counter.histograms(key[0], number, visits)
        for slot in np.flatnonzero(found.any(axis=(1, 2))).tolist():
            at = visits.block * layout.queries[number].block + slot
            tables[number][at] = tables[number].get(at, 0) + found[slot]
    first, last = _range(plan, tables)
    end = max(one.cut.end(last) + 1 for one in query_set)
    exact = []
    for number, (query, some) in enumerate(zip(query_set, tables, strict=True)):
        begin = query.cut.of(first)
        slots = query.cut.of(end) - begin
        counts = np.zeros((slots, layout.classes, layout.measures[number].size), np.int64)
        for at, table in some.items():
            if at < begin + slots:
                counts[at - begin] = table
        events_of = [each[number] for each in located]
        length = query.cut.of(last) - begin + 1
        figures = true_figures(query, events_of, begin, length)
        longer = tuple(_true_of_time(query, events_of, figures, begin, one) for one in query.longer)
        exact.append(ExactQuery(counts, figures, longer))
    return first, exact


class TrueKeys(NamedTuple):
    """The true keys of a query that discovers keys, with the keys of most users first."""

    texts: tuple[str, ...]
    users: Integers
    """Distinct users of each key, over all slots."""
    most: Integers
    """Distinct users of each key, in the discovery slot in which they are most."""
    needed: int
    """The number of users with which a key is found with probability 1/2."""


def true_keys(
    plan: QueryPlan,
    batches: Iterable[pa.RecordBatch],
    rejected: Callable[[pa.RecordBatch], None] = lambda letters: None,
) -> dict[str, TrueKeys]:
    """The true keys of all queries that discover keys, by the name of the query.

    Args:
        plan: with the queries.
        batches: events.
        rejected: as for :func:`exact_answers`.
    """
    mapper, discoverers = plan.trial_mapper(), plan.discoverers()
    found: list[list[Integers]] = [[] for _ in discoverers]
    numbers: list[dict[str, int]] = [{} for _ in discoverers]
    for batch in (part for whole in batches for part in slices_of(whole)):
        letters = mapper.map(batch)[1]
        if letters.num_rows:
            rejected(letters)
        for one, rows, known, events in zip(
            discoverers, found, numbers, mapper.keys_of(batch), strict=True
        ):
            rows.append(_pairs(one, known, events))
    return {
        one.query.name: _ranked(one, known, np.concatenate([np.zeros((0, 4), np.int64), *rows]))
        for one, rows, known in zip(discoverers, found, numbers, strict=True)
    }


def _pairs(discoverer: Discoverer, numbers: dict[str, int], events: KeyEvents) -> Integers:
    """Distinct rows of a key, a discovery slot and a user. New keys get new numbers."""
    rules = discoverer.keys.rules
    never = {None, *not_discovered(declared(discoverer.query), rules)}
    texts = keys_of_texts(events.texts, rules)
    places = [
        -1 if text in never else numbers.setdefault(text, len(numbers))
        for text in texts.dictionary.to_pylist()
    ]
    at = texts.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    keys = np.array([*places, -1], np.int64)[at]
    slots = discoverer.slots_of(events.base_slots)
    rows = np.column_stack([keys, slots, events.users.astype(np.int64)])
    return np.unique(rows[keys >= 0], axis=0)


def _ranked(discoverer: Discoverer, numbers: dict[str, int], rows: Integers) -> TrueKeys:
    """The keys of rows that :func:`_pairs` gave."""
    size, texts = len(numbers), np.array([*numbers], object)
    in_slots, counts = np.unique(np.unique(rows, axis=0)[:, :2], axis=0, return_counts=True)
    most = np.zeros(size, np.int64)
    np.maximum.at(most, in_slots[:, 0], counts)
    users = np.bincount(np.unique(rows[:, [0, 2, 3]], axis=0)[:, 0], minlength=size)
    order = np.lexsort((texts.astype(str), -users))
    needed = discoverer.terms.users_for_half_chance
    return TrueKeys(tuple(texts[order].tolist()), users[order], most[order], needed)


def _range(plan: QueryPlan, tables: Sequence[dict[int, Integers]]) -> tuple[int, int]:
    """The first and the last base slot: as was asked, or those in which a slot with events ends."""
    first, last = plan.first_slot, plan.last_slot
    queries = zip(plan.query_set, tables, strict=True)
    ends = [one.cut.last(slot) for one, some in queries for slot in some]
    if not ends and None in (first, last):
        raise InputLost("no event counts for any query")
    return min(ends) if first is None else first, max(ends) if last is None else last


def true_figures(query: Query, parts: Sequence[Located], first: int, slots: int) -> Floats:
    """A statistic of numbers as they are, of bins and groups: see :class:`ExactQuery`.

    Args:
        query: what is asked.
        parts: its events.
        first: slot of the query.
        slots: how many from there on.
    """
    above = query.tree.above(query.domain.bins)
    nodes = int(above.max()) + 1
    empty = np.zeros(0, np.int64)
    at = np.concatenate([empty, *(one.slots for one in parts)]) - first
    bins = np.concatenate([empty, *(one.bins for one in parts)])
    some = (at >= 0) & (at < slots)
    # Every event once for each node that it is in, or every user.
    cells = (at[some, None] * nodes + above[bins[some]]).ravel()
    if query.statistic.once:
        users = np.repeat(_numbered(parts)[some], above.shape[1])
        cells = np.unique(np.stack([cells, users])[:, users >= 0], axis=1)[0]
    size = slots * nodes
    events = np.bincount(cells, minlength=size)
    if query.statistic.column is None:
        return events.reshape(slots, nodes, 1).astype(np.float64)
    given = [one.numbers for one in parts if one.numbers is not None]
    numbers = np.repeat(np.concatenate([np.zeros(0), *given])[some], above.shape[1])
    if isinstance(query.statistic, Quantiles | AutoBounds) and query.statistic.quantiles:
        figures = _quantiles(cells, numbers, events, query.statistic.quantiles)
    else:
        figures = _moment(query.statistic.name, cells, numbers, events)
    return figures.reshape(slots, nodes, -1)


def _true_of_time(
    query: Query, parts: Sequence[Located], figures: Floats, first: int, cut: Cut
) -> Floats:
    """Of longer times, where slots from the first on have these figures."""
    slots = np.arange(first, first + len(figures))
    begin, end = cut.of(first), cut.of(first + len(figures) - 1)
    if query.statistic.column is None or query.statistic.name == "sum":
        found = np.zeros((end - begin + 1, *figures.shape[1:]))
        np.add.at(found, cut.numbers(slots) - begin, figures)
        return found
    by_time = [one._replace(slots=cut.numbers(one.slots)) for one in parts]
    return true_figures(query, by_time, begin, end - begin + 1)


def _numbered(parts: Sequence[Located]) -> Integers:
    """A number for the user of each event, -1 for nobody."""
    texts = [pa.array([], pa.large_string())]
    for one in parts:
        coded = pa.types.is_dictionary(one.users.type)
        texts.append((one.users.dictionary_decode() if coded else one.users).cast(texts[0].type))
    numbers = pa.chunked_array(texts).combine_chunks().dictionary_encode().indices
    return np.asarray(pc.fill_null(numbers, -1).to_numpy(), np.int64)


def _moment(name: str, cells: Integers, numbers: Floats, events: Integers) -> Floats:
    """Sum, mean, variance or standard deviation of each cell, shape (cells,)."""
    sums: Floats = np.bincount(cells, numbers, len(events)).astype(np.float64)
    if name == "sum":
        return sums
    known = np.where(events > 0, events, np.nan)
    means: Floats = sums / known
    if name == "mean":
        return means
    variances: Floats = np.bincount(cells, (numbers - means[cells]) ** 2, len(events)) / known
    return {"variance": variances, "stddev": np.sqrt(variances)}[name]


def _quantiles(
    cells: Integers, numbers: Floats, events: Integers, shares: Sequence[float]
) -> Floats:
    """Quantiles of each cell, linear between numbers: shape (cells, quantiles)."""
    found = np.full((len(events), len(shares)), np.nan)
    order = np.lexsort((numbers, cells))
    numbers, filled = numbers[order], np.flatnonzero(events)
    first = (np.cumsum(events) - events)[filled]
    for column, share in enumerate(shares):
        place = share * (events[filled] - 1)
        below = np.floor(place).astype(np.int64)
        after = np.minimum(below + 1, events[filled] - 1)
        low, high = numbers[first + below], numbers[first + after]
        found[filled, column] = low + (place - below) * (high - low)
    return found
