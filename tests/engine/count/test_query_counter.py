"""Counting query by query: what travels, which blocks and shards there are, what is sent."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.engine.count import event_codes
from streamveil.engine.count.bounding import Bounding
from streamveil.engine.count.event_codes import MEMBERS, STRANGERS, Layout, Packed
from streamveil.engine.count.query_counter import (
    PackedSmall,
    QueryCounter,
    QueryLayout,
    _added_up,
    _slots_in_a_block,
    pack_queries,
    slot_counts,
)
from streamveil.engine.encode.event_mapper import Events
from streamveil.engine.encode.query_mapper import QueriesMapper
from streamveil.engine.messages import Kind, arrays_to_bytes, compressed
from streamveil.engine.stream.query_plan import columns_for
from streamveil.mechanisms import Categories, Registry, Requirement, Slots
from streamveil.mechanisms.queries.conditions import Condition
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.statistics import DistinctUsers, Mean, Quantiles
from streamveil.mechanisms.queries.trees import Tree

USERS = 7
REGISTRY = Registry.of({f"u{i}": (1 + i % 3, 1.0) for i in range(USERS)})
ABC = Categories(("a", "b", "c"))
TREE = Tree((("x", "x", "y"), ("all",) * 3))
QUERIES = (
    Query("count", value=("v",), domain=ABC, tree=TREE, max_contributions=9),
    Query("mean", 3, ("v",), ABC, Mean("n", 0, 10), max_contributions=9),
    Query("people", 5, ("v",), ABC, DistinctUsers(), max_contributions=9),
    Query("median", 1, statistic=Quantiles("n", (0, 5, 10)), max_contributions=9),
)
QUERY_SET = QuerySet(Slots.of("1h"), QUERIES)

ROWS = st.lists(
    st.tuples(
        st.integers(-20, 20), st.integers(0, USERS - 1), st.integers(0, 2), st.floats(-2, 12)
    ),
    min_size=1,
    max_size=40,
)


def counter(shards=1, timely=False):
    layout = QueryLayout.of(QUERY_SET, REGISTRY, shards, timely)
    return QueryCounter(
        REGISTRY, layout, lambda: Bounding(1), "s", by_user=False, pack=pack_queries
    )


def events_of(rows):
    """Of (base slot, user, bin, number) rows, for each query."""
    slots, users, bins, numbers = map(np.array, zip(*rows, strict=True))
    none = np.zeros((0, 2), np.uint64)
    found = []
    for query in QUERIES:
        steps = query.statistic.steps(numbers.astype(float))
        own = (bins if query.value else 0 * bins) * query.measure.steps + steps
        found.append(Events(slots // query.slots, own, users, none))
    return found


def by_hand(rows):
    """Histograms by base slot with which a slot ends and query, event by event."""
    found, seen = {}, set()
    for base_slot, user, bin_, number in rows:
        for q, query in enumerate(QUERIES):
            measure = query.measure
            slot = base_slot // query.slots
            if query.statistic.once:
                if (q, slot, user, bin_) in seen:
                    continue
                seen.add((q, slot, user, bin_))
            end = (slot + 1) * query.slots - 1
            shape = (3, measure.nodes, measure.parts)
            table = found.setdefault(end, {}).setdefault(q, np.zeros(shape, np.int64))
            step = query.statistic.steps(np.array([number]))[0]
            for node in measure.above[bin_ if query.value else 0]:
                table[user % 3, node] += measure.weights[step]
    return found


@settings(max_examples=30, deadline=None)
@given(rows=ROWS, batches=st.integers(1, 3), shards=st.integers(1, 2), timely=st.booleans())
def test_histograms_are_those_of_each_event_by_hand(rows, batches, shards, timely):
    made, blocks = counter(shards, timely), {}
    for part in range(batches):
        some = rows[part::batches]
        if not some:
            continue
        for block, key, packed, _ in made.pack(events_of(some), made.layout, made.bounding):
            message = made.layout.message(Kind.EVENTS, block, key, packed.to_bytes())
            blocks.setdefault((*key, block), []).append(message)
    messages_of = {}
    for key, messages in blocks.items():
        for _, message in made.messages(key, made.bound(key, messages)):
            assert not timely or message.slot == key[2]
            messages_of.setdefault(message.slot, []).append(message)
    expected = by_hand(rows)
    assert messages_of.keys() == expected.keys()
    for end, messages in messages_of.items():
        found = slot_counts(messages, made.layout).histograms
        assert found.keys() == expected[end].keys()
        for q, table in found.items():
            np.testing.assert_array_equal(table, expected[end][q].reshape(3, -1))


COUNT, MEAN, PEOPLE, MEDIAN = (replace(query, max_contributions=1) for query in QUERIES)
DRAWN = (
    COUNT,
    replace(COUNT, name="again"),
    replace(COUNT, name="places", keep="distinct", max_contributions=2),
    MEAN,
    replace(PEOPLE, where=(Condition("n", low=3.0),)),
    replace(MEDIAN, max_contributions=2),
)


def counts_of(queries, batches):
    """By name of a query and end of its slot, its histograms."""
    query_set = QuerySet(Slots.of("1h"), queries)
    known = {f"u{i}": (1 + i % 3, 1.0) for i in range(USERS)}
    registry = Registry.of(known, default=(Requirement(1, 1.0), 2))
    layout = QueryLayout.of(query_set, registry, 1, timely=False)
    made = QueryCounter(registry, layout, lambda: Bounding(1), "s", by_user=False)
    mapper = QueriesMapper(query_set, columns_for(query_set, "u", "t"), registry, bytes(32))
    blocks, messages_of = {}, {}
    for batch in batches:
        for block, key, packed, _ in pack_queries(mapper.map(batch)[0], layout, made.bounding):
            message = layout.message(Kind.EVENTS, block, key, packed.to_bytes())
            blocks.setdefault((*key, block), []).append(message)
    for key, messages in blocks.items():
        for _, message in made.messages(key, made.bound(key, messages)):
            messages_of.setdefault(message.slot, []).append(message)
    return {
        (queries[q].name, end): table.tolist()
        for end, messages in messages_of.items()
        for q, table in slot_counts(messages, layout).histograms.items()
        if table.any()
    }


# What one query counts, draws among a user's events included, hangs on no other query.
@settings(max_examples=30, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 90),
            st.integers(0, USERS + 1),
            st.sampled_from("abcx"),
            st.one_of(st.none(), st.floats(-2, 12)),
        ),
        min_size=1,
        max_size=60,
    ),
    batches=st.integers(1, 3),
    ordered=st.booleans(),
    at_once=st.sampled_from([1, 3, 1 << 16]),
)
def test_a_query_set_counts_what_its_queries_count_alone(rows, batches, ordered, at_once):
    parts = [(sorted(rows) if ordered else rows)[i::batches] for i in range(batches)]
    made = [
        pa.record_batch(
            {
                "t": pa.array([row[0] * 3_600_000_000 for row in part], pa.timestamp("us", "UTC")),
                "u": pa.array([f"u{row[1]}" for row in part]),
                "v": pa.array([row[2] for row in part]),
                "n": pa.array([row[3] for row in part], pa.float64()),
            }
        )
        for part in parts
        if part
    ]
    alone = {}
    for query in DRAWN:
        alone |= counts_of((query,), made)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(event_codes, "_BOUND_AT_ONCE", at_once)
        together = counts_of(DRAWN, made)
    assert together == alone
    assert {key[1]: table for key, table in together.items() if key[0] == "again"} == {
        key[1]: table for key, table in together.items() if key[0] == "count"
    }


# Whoever has all parts of a base slot need not know which queries end with it.
@given(st.lists(st.tuples(st.integers(5, 40), st.integers(1, 3)), min_size=1, max_size=60))
def test_cells_are_added_up_where_there_are_fewer_of_them(groups):
    cells, events = (np.array(some, np.int64) for some in zip(*groups, strict=True))
    found = _added_up(cells, events)
    sums = Counter()
    for cell, number in zip(*found, strict=True):
        sums[int(cell)] += int(number)
    wanted = Counter()
    for cell, number in groups:
        wanted[cell] += number
    assert sums == wanted
    few = max(cells) - min(cells) < len(cells)
    assert len(found[0]) == (len(wanted) if few else len(groups))


def test_shards_tell_of_base_slots_in_which_nothing_ends():
    made = counter(shards=2, timely=True)
    assert made.layout.parts == 2 * 2 * len(QUERIES)
    messages = []
    for part in range(made.layout.parts):
        key = (*made.layout.key(part), 3)
        ((stream, message),) = made.messages(key, made.bound(key, []))
        assert (stream, message.slot, message.shard) == ("s", 3, part)
        messages.append(message)
    assert slot_counts(messages, made.layout) == ({}, {})


# Blocks are about as long in time, so that those of long slots do not hold all events.
def test_blocks_of_long_slots_have_few_of_them():
    assert [one.block for one in counter().layout.queries] == [16, 5, 3, 16]
    assert [one.block for one in counter(timely=True).layout.queries] == [1] * 4


@given(
    codes=st.lists(st.integers(0, (1 << 40) - 1), min_size=1, max_size=50, unique=True),
    wide=st.booleans(),
    repeated=st.booleans(),
)
def test_packed_events_are_what_they_were(codes, wide, repeated):
    layout = Layout(block=1, users=1 << 30 if wide else 1 << 20, classes=1, bins=1 << 10, shards=1)
    own = np.unique(np.array(codes, np.uint64) % np.uint64(layout.span)).astype(layout.dtype)
    repeats = np.arange(len(own)) + 1 if repeated else np.ones(len(own), np.int64)
    packed = Packed.of(own, repeats)
    small = PackedSmall(packed.codes, packed.at, packed.more)
    read = PackedSmall.read(small.to_bytes(), MEMBERS, layout)
    assert read.codes.dtype == layout.dtype
    for mine, theirs in ((read.codes, own), (read.at, packed.at), (read.more, packed.more)):
        np.testing.assert_array_equal(mine, theirs)


def test_steps_take_no_more_bytes_for_a_first_code_that_is_large():
    random = np.random.default_rng(1)
    near = np.cumsum(random.integers(1, 256, 1000)).astype(np.uint32)
    small, far = (PackedSmall(near + np.uint32(first)).to_bytes() for first in (0, 1 << 31))
    assert len(far) <= len(small) < 1100


@pytest.mark.parametrize("wide", [False, True])
def test_packed_events_of_an_earlier_version_are_read(wide):
    layout = Layout(block=1, users=1 << 30 if wide else 1 << 20, classes=1, bins=1 << 10, shards=1)
    codes = np.array([7, 300, 301, layout.span - 1], layout.dtype)
    steps = np.diff(codes, prepend=codes.dtype.type(0))
    lanes = np.ascontiguousarray(steps.view(np.uint8).reshape(len(steps), steps.itemsize).T)
    at, more = np.array([1], np.uint8), np.array([2], np.uint8)
    read = PackedSmall.read(compressed(arrays_to_bytes(lanes, at, more)), MEMBERS, layout)
    np.testing.assert_array_equal(read.codes, codes)
    np.testing.assert_array_equal(read.events, [1, 3, 1, 1])


def test_no_events_are_packed_and_read():
    layout = counter().layout.queries[0]
    read = PackedSmall.read(PackedSmall(np.zeros(0, layout.dtype)).to_bytes(), MEMBERS, layout)
    assert not len(read.codes)


@pytest.mark.parametrize(
    ("users", "slots", "block"),
    [(1 << 20, 1, 16), (1 << 27, 1, 8), (1 << 28, 1, 4), (1 << 29, 1, 16), (1 << 29, 4, 2)],
)
def test_blocks_are_shorter_where_that_makes_codes_narrow(users, slots, block):
    chosen = Layout(block=64, users=users, classes=1, bins=4, shards=1)
    assert _slots_in_a_block(chosen, Query("one", slots)) == block


def test_packed_strangers_are_what_they_were():
    rows = np.arange(12, dtype=np.uint64).reshape(4, 3)
    layout = counter().layout.queries[0]
    read = PackedSmall.read(PackedSmall(rows).to_bytes(), STRANGERS, layout)
    np.testing.assert_array_equal(read.codes, rows)


@pytest.mark.parametrize("keep", ["uniform", "distinct"])
def test_once_counts_before_any_are_drawn(keep):
    visits, repeats = np.array([1, 1, 1, 2]), np.array([5, 1, 1, 4])

    def rank(groups):
        return groups.astype(np.uint64)

    kept = Bounding(2, keep, once=True)(visits, repeats, rank, rank)
    assert (kept[:3] <= 1).all()
    assert kept[:3].sum() == 2
    assert kept[3] == 1
