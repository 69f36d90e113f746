"""The join of changes with events: against one dictionary per user, in any order, on real runners.

What the shards tell is read as a release stage would read it: which cohort comes from which, how
many users each has, and how many events. A cohort is known by its history, the class it comes
from and all that its users asked for since, so shards can be added up.
"""

import copy
import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import partial

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.testing.test_stream import TestStream as Stream
from apache_beam.transforms.window import TimestampedValue
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.engine import metrics
from streamveil.engine.count.bounding import Bounding
from streamveil.engine.count.changes import spread
from streamveil.engine.count.changing_requirements import ChangingRequirements
from streamveil.engine.count.close_shards import CloseShards
from streamveil.engine.count.event_codes import (
    MEMBERS,
    STRANGERS,
    Layout,
    ShardCounts,
    Visits,
    bound_block,
    pack,
)
from streamveil.engine.count.shards import close_at_end
from streamveil.engine.messages import REJECTED, TALLIES, Kind, Message
from streamveil.engine.slot_clock import SlotClock
from streamveil.engine.stream.steps import Steps
from streamveil.engine.stream_step import StateWentBack
from streamveil.mechanisms import ConfigurationError, Registry, Requirement
from streamveil.mechanisms.core.budgets import to_units
from streamveil.mechanisms.core.cohorts import GONE, NEWCOMER
from streamveil.mechanisms.core.records import REQUIREMENT_COLUMNS
from streamveil.transforms.at_end import AtEnd
from streamveil.transforms.in_time import InTime
from tests.transforms.stand_ins import Hosted

HOUR = 3_600_000_000
HORIZON = 4
LAST = 11
ASKED = [(1, 1.0, 1, 1.0), (2, 1.0, 2, 1.0), (4, 0.5, 1, 2.0), (3, 0.25, 4, 0.5)]
LEAVE = None
TABLE = {f"m{i}": ASKED[i % 2][:2] for i in range(6)}
REGISTRIES = {
    "strict": Registry.of(TABLE),
    "default": Registry.of(TABLE, default=(Requirement(2, 1.0), 3)),
}
USERS = [*TABLE, *(f"s{i}" for i in range(5))]


# ---- the truth, user by user ----------------------------------------------------------------


def units(asked):
    return (
        (0, 0, 0, 0)
        if asked is LEAVE
        else (asked[0], to_units(asked[1]), asked[2], to_units(asked[3]))
    )


def both(one, other):
    """What keeps both of two requirements in units."""
    if not any(one) or not any(other):
        return units(LEAVE)
    return (
        max(one[0], other[0]),
        min(one[1], other[1]),
        max(one[2], other[2]),
        min(one[3], other[3]),
    )


@dataclass
class User:
    history: tuple
    """None: in no cohort. Else the class or None, then (slot, requirement) of each change."""
    asked: tuple
    since: float = -np.inf
    left: int | None = None


@dataclass
class Seen:
    """What is known of the slots: by slot, events by history and bin, and users by history."""

    events: dict = field(default_factory=lambda: defaultdict(Counter))
    sizes: dict = field(default_factory=dict)
    homeless: Counter = field(default_factory=Counter)


def first_of(registry, name):
    users = list(registry.users)
    k = registry.class_of[users.index(name)] if name in users else registry.default_class
    if k is None:
        return User(None, units(LEAVE))
    window, epsilon = registry.classes[k].window, registry.classes[k].epsilon
    return User((int(k),), units((window, epsilon, window, epsilon)))


def truth(registry, events, changes, first=0, last=LAST):
    """One dictionary per user. Changes are (user, slot, asked, first slot open when it came)."""
    people = {}
    expected = Seen()
    for slot in range(first, last + 1):
        due = defaultdict(list)
        for name, at, asked, came in changes:
            if max(at, came, first) == slot:
                due[name].append((at, units(asked)))
        for name, asked in due.items():
            user = people.setdefault(name, first_of(registry, name))
            newest = max(at for at, _ in asked)
            wanted = None
            for at, one in asked:
                if at == newest:
                    wanted = one if wanted is None else both(wanted, one)
            if newest < user.since or (user.history is None and not any(wanted)):
                continue
            if newest == user.since:
                wanted = both(wanted, user.asked)
            user.since = newest
            if wanted != user.asked:
                user.history = (*(user.history or (None,)), (slot, wanted))
                user.asked = wanted
                user.left = None if any(wanted) else slot
        for name, user in list(people.items()):
            if user.left is not None and slot >= user.left + HORIZON:
                user.history, user.left = None, None
                if name not in registry.users and registry.default_class is None:
                    del people[name]
        expected.sizes[slot] = Counter(
            user.history for user in people.values() if user.history and len(user.history) > 1
        )
        for name, value, at in events:
            if at == slot:
                user = people.get(name, first_of(registry, name))
                if any(user.asked):
                    expected.events[slot][user.history, value] += 1
                else:
                    expected.homeless[slot] += 1
    return expected


def read(registry, messages, last=LAST, first=0, letters=()):
    """What ShardCounts as bytes say, as Seen."""
    counted, histories, sizes = Seen(), {k: (k,) for k in range(len(registry.classes))}, Counter()
    by_slot = defaultdict(list)
    numbers = Counter()
    for data in messages:
        counts = ShardCounts.of(data)
        by_slot[counts.slot].append(counts)
    assert all(first <= slot <= last for slot in by_slot)
    for slot in range(first, last + 1):
        for counts in by_slot[slot]:
            moves = counts.moves
            asked_of = {}
            for parent, child, users, asked in zip(
                moves.parents.tolist(),
                moves.children.tolist(),
                moves.users.tolist(),
                map(tuple, moves.requirements.tolist()),
                strict=True,
            ):
                assert users > 0
                assert (
                    asked_of.setdefault(child, (parent, asked)) == (parent, asked) or child == GONE
                )
                sizes[parent] -= users
                if child == GONE:
                    assert asked == (0, 0, 0, 0)
                    continue
                numbers[child] += 1
                assert child >= len(registry.classes)
                before = (None,) if parent == NEWCOMER else histories[parent]
                histories[child] = (*before, (slot, asked))
                sizes[child] += users
            for cell, events in zip(counts.cells.tolist(), counts.counts.tolist(), strict=True):
                cohort = int(counts.cohorts[cell // 2])
                counted.events[slot][histories[cohort], "ab"[cell % 2]] += events
        made = [c for c, n in sizes.items() if c >= len(registry.classes) and n]
        assert all(sizes[c] > 0 for c in made)
        counted.sizes[slot] = Counter()
        for cohort in made:
            counted.sizes[slot][histories[cohort]] += sizes[cohort]
    assert set(numbers.values()) <= {1}  # a number is never used again
    for letter in letters:
        record = json.loads(letter["record"])
        counted.homeless[record["slot"]] += record["events"]
    return counted


def assert_same(mine, theirs):
    for slot, sizes in theirs.sizes.items():
        assert mine.sizes[slot] == sizes, slot
        assert mine.events[slot] == theirs.events[slot], slot
    assert mine.homeless == theirs.homeless


# ---- the steps, driven by hand --------------------------------------------------------------


def change_batch(changes):
    """Batch of changes (user, slot, asked, ...)."""
    rows = [
        (name, slot, *((None,) * 4 if asked is LEAVE else asked))
        for name, slot, asked, *_ in changes
    ]
    columns = tuple(zip(*rows, strict=True)) or ((),) * 6
    names = ("user", "slot", *REQUIREMENT_COLUMNS)
    types = (pa.string(), pa.int64(), *(pa.float64(),) * 4)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)], names
    )


def join_of(kit, registry, *, timely, shards=2, last=LAST, first=0):
    transform = kit.histograms(
        registry, shards=shards, longest_window=HORIZON, first_slot=first, last_slot=last
    )
    layout = Layout.choose(registry, 2, shards, timely=timely)
    config = ChangingRequirements(
        registry=registry,
        clock=SlotClock(transform.slots),
        layout=layout,
        change_mapper=transform.change_mapper,
        longest_window=HORIZON,
        first_slot=first,
        last_slot=last,
        stream="s",
    )
    return transform, config


def visit_elements(kit, transform, config, rows):
    """What the join gets of events, by slot: (slot, key, message)."""
    events, rejected = transform.event_mapper(True).map(kit.batch(rows))
    assert not rejected.num_rows
    parts = defaultdict(list)
    for block, key, codes, _ in pack(events, config.layout, Bounding(1)):
        parts[block, key].append(codes)
    for (block, key), codes in parts.items():
        visits = bound_block(key[0], block, codes, config.layout, Bounding(1))
        yield block, key, config.layout.message(Kind.COUNTS, block, key, visits.to_bytes())


def nobody(config, slot, key):
    """That nobody was there."""
    visits = Visits.none(key[0], slot, config.layout)
    return config.layout.message(Kind.COUNTS, slot, key, visits.to_bytes())


def change_elements(transform, config, changes):
    for change in changes:
        found, rejected = transform.change_mapper().map(change_batch([change]))
        assert not rejected.num_rows
        for key, one in spread(found, config.layout.shards):
            yield key, config.layout.message(Kind.CHANGES, one.first, key, one.to_bytes())


def split(outputs):
    """Messages and dead letters among the outputs of a step."""
    messages, letters = [], []
    for output in outputs:
        if isinstance(output, beam.pvalue.TaggedOutput):
            if output.tag == TALLIES:
                continue
            assert output.tag == REJECTED
            letters += getattr(output.value, "value", output.value).to_pylist()
        else:
            stream, data = getattr(output, "value", output)
            assert stream == "s"
            messages.append(data)
    return messages, letters


def at_end(kit, registry, events, changes):
    transform, config = join_of(kit, registry, timely=False)
    shards = defaultdict(list)
    for _, key, message in visit_elements(kit, transform, config, events):
        shards[key].append(message)
    for key, message in change_elements(transform, config, changes):
        shards[key].append(message)
    outputs = [
        o
        for element in shards.items()
        for o in AtEnd(partial(close_at_end, config)).process(element)
    ]
    return split(outputs)


class Shard(Hosted):
    """The join in time, and its state for one shard."""

    def __init__(self, config, key):
        super().__init__(CloseShards(config), key)
        self.take(Message(Kind.START, config.first_slot))

    def on_another_worker(self):
        """Go on with a copy of the step, as every bundle may."""
        self.fn = InTime(self.fn.step)

    def values(self):
        return [vars(cell) for cell in self.cells]


def in_time(kit, registry, events, changes, *, seed=0, retry=False, checked=None):
    """Drive every shard slot by slot: a change comes when the slot it says is the next to close."""
    transform, config = join_of(kit, registry, timely=True)
    shards = {(k, n): Shard(config, (k, n)) for k in (MEMBERS, STRANGERS) for n in (0, 1)}
    random = np.random.default_rng(seed)
    outputs = []

    def run(shard, step):
        shard.on_another_worker()
        again = copy.deepcopy(shard)
        made = step(shard)
        if retry:  # the bundle was run before, and its state was not committed
            assert [split([o]) for o in step(again)] == [split([o]) for o in made]
            assert again.values() == shard.values()
        outputs.extend(made)

    arrivals = defaultdict(list)
    busy = {(slot, key): m for slot, key, m in visit_elements(kit, transform, config, events)}
    for slot in range(LAST + 1):
        for key in shards:
            message = busy.get((slot, key), nobody(config, slot, key))
            arrivals[0 if slot % 2 else slot].append((key, message))  # early or just in time
    for change in changes:
        for key, message in change_elements(transform, config, [change]):
            arrivals[change[3]].append((key, message))
    for slot in range(LAST + 1):
        for i in random.permutation(len(arrivals[slot])):
            key, message = arrivals[slot][i]
            run(shards[key], lambda shard, message=message: shard.take(message))
        for shard in shards.values():
            assert shard.timer.time.micros == config.clock.closing(slot)
            run(shard, Shard.fire)
            if checked is not None:
                checked.append(sum(len(cell.bag) for cell in (shard.waiting, shard.changes)))
    assert all(shard.timer.time is None for shard in shards.values())
    return split(outputs)


def test_visits_that_come_again_count_once_or_fail(kit):
    """Twice the same would count its users twice."""
    transform, config = join_of(kit, STRICT, timely=True)
    ((_, key, message),) = visit_elements(kit, transform, config, [("m0", "a", 0)])
    ((_, _, other),) = visit_elements(kit, transform, config, [("m0", "b", 0)])

    def arrive(*messages):
        shard = Shard(config, key)
        for one in messages:
            shard.take(one)
        return shard, split(shard.fire())

    _, once = arrive(message)
    shard, twice = arrive(message, message)
    assert once == twice
    assert shard.take(other) == []
    assert shard.waiting.bag == []
    with pytest.raises(ConfigurationError, match="of slot 0 came twice with different content"):
        arrive(message, other)


def test_a_timer_that_fires_again_decides_nothing(kit):
    """What comes of the next slot after it must still count."""
    transform, config = join_of(kit, STRICT, timely=True)
    seen = [("m0", "a", 0), ("m0", "a", 1)]
    (_, key, first), (_, _, second) = visit_elements(kit, transform, config, seen)
    shard = Shard(config, key)
    shard.take(first)
    released = shard.fire()
    assert shard.fire() == []
    shard.take(second)
    messages, letters = split([*released, *shard.fire()])
    assert [one.slot for one in messages] == [0, 1]
    assert letters == []


@pytest.mark.parametrize("cell", ["waiting", "changes", "progress", "state"])
def test_state_of_a_time_before_is_refused(kit, cell):
    """One cell of it, as it was one slot before; of the numbered one in the same bundle."""
    transform, config = join_of(kit, STRICT, timely=True)
    key = (MEMBERS, 0)
    shard = Shard(config, key)

    def come(slot):
        shard.take(nobody(config, slot, key))
        asked = [(name, max(0, slot - 1), ASKED[(slot + 2) % 4]) for name in TABLE]
        for to, message in change_elements(transform, config, asked):
            if to == key:
                shard.take(message)

    come(0)
    come(1)
    shard.fire()
    before = copy.deepcopy(getattr(shard, cell))
    come(2)
    shard.fire()
    come(3)
    setattr(shard, cell, before)
    with pytest.raises(StateWentBack, match="the runner loses updates of state"):
        shard.fire()


# ---- against the truth ----------------------------------------------------------------------

NAMES = st.sampled_from(USERS)
WANTED = st.sampled_from([*ASKED, LEAVE])
SLOTS = st.integers(0, LAST)
EVENTS = st.lists(
    st.tuples(NAMES, st.sampled_from("ab"), SLOTS), max_size=60, unique_by=lambda e: (e[0], e[2])
)
# Few users and slots, so that a user often has several changes for one of them.
MOVERS, ASKED_SLOTS = st.sampled_from(["m0", "m3", "s0", "s4"]), st.sampled_from([-2, 1, 3, 4, 9])
CHANGE = st.tuples(MOVERS, ASKED_SLOTS, WANTED)
PROPERTY = settings(max_examples=150)


@pytest.fixture(scope="module", params=REGISTRIES)
def registry(request):
    return REGISTRIES[request.param]


@pytest.mark.slow
def test_random_histories_of_a_bounded_input(kit, registry):
    @PROPERTY
    @given(EVENTS, st.lists(CHANGE, max_size=40))
    def check(events, changes):
        known = [(*change, 0) for change in changes]
        messages, letters = at_end(kit, registry, events, known)
        assert {letter["reason"] for letter in letters} <= {"no requirement"}
        assert_same(read(registry, messages, letters=letters), truth(registry, events, known))

    check()


# Whatever came late, in any order, and although every bundle runs twice.
@pytest.mark.slow
def test_random_histories_of_a_stream(kit, registry):
    @settings(PROPERTY, max_examples=100)
    @given(
        EVENTS,
        st.lists(st.tuples(MOVERS, ASKED_SLOTS, WANTED, SLOTS), max_size=40),
        st.integers(0, 9),
    )
    def check(events, changes, seed):
        messages, letters = in_time(kit, registry, events, changes, seed=seed, retry=True)
        assert_same(read(registry, messages, letters=letters), truth(registry, events, changes))

    check()


# Outputs are the same to the last byte, in whatever order it came.
@pytest.mark.slow
def test_order_of_arrival_does_not_matter(kit, registry):
    random = np.random.default_rng(5)
    events = [(name, "ab"[i % 2], slot) for i, name in enumerate(USERS) for slot in range(LAST + 1)]
    changes = [
        (str(random.choice(USERS)), slot, [*ASKED, LEAVE][random.integers(5)], max(0, slot - 2))
        for slot in range(LAST + 1)
        for _ in range(6)
    ]
    runs = [in_time(kit, registry, events, changes, seed=seed) for seed in range(4)]
    assert runs[0][0]
    assert all(run == runs[0] for run in runs)


def test_a_bounded_input_tells_the_same_as_a_stream(kit, registry):
    random = np.random.default_rng(6)
    events = [(name, "ab"[i % 2], slot) for i, name in enumerate(USERS) for slot in range(LAST + 1)]
    changes = [
        (str(random.choice(USERS)), slot, [*ASKED, LEAVE][random.integers(5)], 0)
        for slot in range(LAST + 1)
        for _ in range(6)
    ]
    stream, bounded = (
        in_time(kit, registry, events, changes),
        at_end(kit, registry, events, changes),
    )
    assert sorted(stream[0]) == sorted(bounded[0])
    assert len(stream[0]) > LAST


# ---- single rules ---------------------------------------------------------------------------


def moves_of(messages):
    """(slot, parent, child, users, requirement) of all messages."""
    found = []
    for data in messages:
        counts = ShardCounts.of(data)
        m = counts.moves
        found += [
            (counts.slot, int(p), int(c), int(n), tuple(asked))
            for p, c, n, asked in zip(
                m.parents, m.children, m.users, m.requirements.tolist(), strict=True
            )
        ]
    return sorted(found)


STRICT, DEFAULT = REGISTRIES["strict"], REGISTRIES["default"]
THIRD = ASKED[2]


def only_moves(kit, registry, changes):
    return moves_of(at_end(kit, registry, [], changes)[0])


def test_what_is_asked_for_already_moves_nobody(kit):
    assert only_moves(kit, STRICT, [("m0", 2, ASKED[0], 0), ("s1", 2, LEAVE, 0)]) == []
    twice = [("m0", 2, THIRD, 0), ("m0", 3, THIRD, 0), ("m0", 5, LEAVE, 0), ("m0", 6, LEAVE, 0)]
    assert [(slot, asked) for slot, _, _, _, asked in only_moves(kit, STRICT, twice)] == [
        (2, units(THIRD)),
        (5, units(LEAVE)),
        (9, units(LEAVE)),
    ]


# One row for all who move alike, of a class or of strangers; a number for each.
def test_users_who_move_alike_are_one_cohort(kit):
    transform, config = join_of(kit, STRICT, timely=False, shards=1)
    changes = [(f"m{i}", 1, THIRD, 0) for i in range(6)] + [
        ("s0", 1, THIRD, 0),
        ("s1", 1, THIRD, 0),
    ]
    shards = defaultdict(list)
    for key, message in change_elements(transform, config, changes):
        shards[key].append(message)
    found = moves_of(
        split(
            o
            for element in shards.items()
            for o in AtEnd(partial(close_at_end, config)).process(element)
        )[0]
    )
    moves = [(parent, users, asked) for _, parent, _, users, asked in found]
    assert moves == [(NEWCOMER, 2, units(THIRD)), (0, 3, units(THIRD)), (1, 3, units(THIRD))]
    assert len({child for _, _, child, _, _ in found}) == 3


def test_who_left_is_forgotten_after_the_horizon(kit):
    changes = [("s0", 1, THIRD, 0), ("s0", 3, LEAVE, 0), ("s0", 9, THIRD, 0)]
    found = only_moves(kit, STRICT, changes)
    assert [(slot, parent == NEWCOMER, child == GONE) for slot, parent, child, _, _ in found] == [
        (1, True, False),
        (3, False, False),
        (3 + HORIZON, False, True),
        (9, True, False),
    ]
    # Whoever comes back before is known.
    early = [*changes[:2], ("s0", 6, THIRD, 0)]
    assert [p == NEWCOMER for _, p, _, _, _ in only_moves(kit, STRICT, early)] == [
        True,
        False,
        False,
    ]


# Nobody falls back to a class after having left, in the table or by default.
@pytest.mark.parametrize("name", ["m0", "s0"])
def test_who_left_is_never_counted_again(kit, name):
    events = [(name, "a", slot) for slot in range(LAST + 1)]
    messages, letters = at_end(kit, DEFAULT, events, [(name, 2, LEAVE, 0)])
    counted = read(DEFAULT, messages, letters=letters)
    assert counted.homeless == dict.fromkeys(range(2, LAST + 1), 1)
    assert letters[0]["detail"] == "slot 2: these events are of users with no requirement in force"


def test_two_changes_for_one_slot_are_both_kept(kit):
    changes = [("m0", 2, ASKED[2], 0), ("m0", 2, ASKED[3], 0)]
    for order in (changes, changes[::-1]):
        ((_, _, _, _, asked),) = only_moves(kit, STRICT, order)
        assert asked == (4, to_units(0.25), 4, to_units(0.5))
    ((_, _, _, _, asked), _) = only_moves(kit, STRICT, [*changes, ("m0", 2, LEAVE, 0)])
    assert asked == units(LEAVE)


def test_a_late_change_applies_from_the_next_open_slot_and_is_counted(kit, monkeypatch):
    counted = Counter()
    monkeypatch.setattr(metrics, "count", lambda name, n: counted.update({name: n}))
    events = [("m0", "a", slot) for slot in range(LAST + 1)]
    messages, _ = in_time(
        kit, STRICT, events, [("m0", 1, THIRD, 4), ("m1", 4, THIRD, 4), ("m2", -1, THIRD, 0)]
    )
    assert {slot for slot, *_ in moves_of(messages)} == {0, 4}
    assert counted[metrics.CHANGES_LATE] == 1
    # One that a newer one overtook is late, too, and changes nothing.
    messages, _ = in_time(kit, STRICT, [], [("m0", 3, THIRD, 0), ("m0", 2, ASKED[3], 5)])
    assert [slot for slot, *_ in moves_of(messages)] == [3]
    assert counted[metrics.CHANGES_LATE] == 2


# The second of two changes for one slot may come late: then both are kept from there on.
def test_a_late_change_for_the_slot_of_the_one_in_force(kit):
    messages, _ = in_time(kit, STRICT, [], [("m0", 2, ASKED[2], 0), ("m0", 2, ASKED[3], 6)])
    kept = (4, to_units(0.25), 4, to_units(0.5))
    moves = [(slot, asked) for slot, _, _, _, asked in moves_of(messages)]
    assert moves == [(2, units(ASKED[2])), (6, kept)]


SEALED = ConfigurationError, "wrong checksum"


# Whose budget pays depends on who is in which cohort. With it goes the slot of the last move.
def test_cohorts_that_were_changed_are_refused(kit):
    transform, config = join_of(kit, REGISTRIES["strict"], timely=True)
    shards = {key: Shard(config, key) for key in ((MEMBERS, 0), (MEMBERS, 1))}

    def close(shard, slot):
        shard.take(nobody(config, slot, shard.key))
        return shard.fire()

    for key, message in change_elements(
        transform, config, [(name, 0, ASKED[3]) for name in ("m0", "m1", "m2", "m3")]
    ):
        shards[key].take(message)
    for shard in shards.values():
        close(shard, 0)
    (slot, one), (_, other) = (shard.state.value for shard in shards.values())
    close(copy.deepcopy(shards[MEMBERS, 0]), 1)
    flipped = [bytes([*one[:i], one[i] ^ 1 << i % 8, *one[i + 1 :]]) for i in range(len(one))]
    cases = [(slot, data) for data in (*flipped, one[:-1], other)]
    for case in ((slot + 1, one), *cases):
        shard = copy.deepcopy(shards[MEMBERS, 0])
        shard.state.value = case
        error, words = (StateWentBack, "slot 0 was written") if case[0] != slot else SEALED
        with pytest.raises(error, match=words):
            close(shard, 1)


def test_nothing_waits_for_long(kit):
    waiting = []
    events = [(name, "a", slot) for name in USERS for slot in range(LAST + 1)]
    changes = [("m0", slot, ASKED[slot % 4], slot) for slot in range(LAST + 1)]
    in_time(kit, STRICT, events, changes, checked=waiting)
    assert waiting[-4:] == [0] * 4


# ---- on runners -----------------------------------------------------------------------------


class Joins(beam.PTransform):
    """Runs the transform up to what its release stage gets."""

    def __init__(self, transform):
        super().__init__()
        self.transform = transform

    def expand(self, inputs):
        bounded = all(one.is_bounded for one in inputs)
        made = self.transform
        made.check_changes(changes=True, bounded=bounded)
        # Of a mechanism that need not be one of changing requirements: nothing is released.
        clock = SlotClock(made.slots, 0 if bounded else made.allowed_lateness)
        layout = made.layout(bounded)
        steps = Steps(
            stream="histogram",
            bounded=bounded,
            layout=layout,
            clock=clock,
            first_slot=made.first_slot,
            last_slot=made.last_slot,
            make_mapper=partial(made.event_mapper, True),
            counter=made.counter(layout, by_user=True),
            config=None,
            shard_logic=made.shard_logic(layout, clock, changes=True, keeps=False),
        )
        counted = made._count(*inputs, steps)
        return counted.counts, counted.rejected | "All rejected" >> beam.Flatten()


class Slots(beam.PTransform):
    """A heartbeat of all slots at once: what closes them is the watermark of events and changes."""

    def expand(self, pipeline):
        return pipeline | beam.Create(range(LAST + 1))


@pytest.fixture
def joined(tmp_path, kit, pipeline_on):
    """Run a pipeline of (events, changes); give messages and dead letters."""

    def joined(runner, transform, source, *flags):
        folder = tmp_path / f"{runner}{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        pipeline = pipeline_on(runner, *flags)
        for name, output in zip(
            ("counts", "rejected"), source(pipeline) | Joins(transform), strict=True
        ):
            output | f"Collect {name}" >> kit.collect(folder / name)
        pipeline.run().wait_until_finish()
        counts, rejected = (kit.collected(folder / n) for n in ("counts", "rejected"))
        return (
            [data for _, data in counts],
            [letter for batch in rejected for letter in batch.to_pylist()],
        )

    return joined


ROWS = [
    (name, "ab"[(i + slot) % 2], slot)
    for i, name in enumerate(USERS)
    for slot in range(LAST + 1)
    if (i * slot) % 3 != 1
]
CHANGED = [
    ("m0", 0, THIRD, 0),
    ("m1", 3, THIRD, 0),
    ("m1", 4, ASKED[3], 0),
    ("s0", 2, ASKED[1], 0),
    ("s0", 6, LEAVE, 0),
    ("m2", 5, LEAVE, 0),
    ("m2", 7, ASKED[0], 0),
    ("m3", -2, THIRD, 0),
    ("m4", LAST + 1, THIRD, 0),
]


def bounded_source(kit, batches=1):
    def source(pipeline):
        rows = [kit.batch(ROWS[i::batches]) for i in range(batches)]
        changes = [change_batch(CHANGED[i::batches]) for i in range(batches)]
        return (
            pipeline | "Events" >> beam.Create(rows, reshuffle=False),
            pipeline | "Changes" >> beam.Create(changes, reshuffle=False),
        )

    return source


def transform_of(kit, registry, **options):
    options = {
        "first_slot": 0,
        "last_slot": LAST,
        "shards": 2,
        "longest_window": HORIZON,
        "heartbeat": Slots(),
        **options,
    }
    return kit.histograms(registry, **options)


@pytest.mark.many
def test_a_bounded_pipeline_joins_as_the_truth(joined, kit, runner, registry):
    messages, letters = joined(runner, transform_of(kit, registry), bounded_source(kit, 3))
    assert_same(read(registry, messages, letters=letters), truth(registry, ROWS, CHANGED))


def hours(slot):
    return slot * 3600


def two_of(everything):
    """Events and changes of a stream of both."""
    return tuple(
        everything
        | f"Only {kind}" >> beam.Filter(lambda e, kind=kind: e[0] == kind)
        | f"{kind} batches" >> beam.Map(lambda e: e[1]).with_output_types(pa.RecordBatch)
        for kind in ("events", "changes")
    )


@pytest.fixture
def live(joined, kit):
    """Run a TestStream of ("events" or "changes", rows); the pipeline is one without end."""

    def live(transform, stream):
        def source(pipeline):
            return two_of(pipeline | stream)

        return joined("bundle_based", transform, source, "--streaming")

    return live


def events_at(slot, rows, kit):
    return TimestampedValue(("events", kit.batch(rows)), hours(slot))


def changes_at(slot, rows):
    return TimestampedValue(("changes", change_batch(rows)), hours(slot))


# The same data, changes in time but in no order, tells the same as the bounded pipeline.
def test_a_stream_tells_the_same_as_a_bounded_input(joined, live, kit, registry):
    stream = Stream().advance_watermark_to(0)
    stream = stream.add_elements([changes_at(0, CHANGED[::-2])])
    waiting = CHANGED[-2::-2]
    for slot in range(LAST + 1):
        due = [change for change in waiting if max(change[1], 0) == slot]
        stream = stream.add_elements(
            [
                events_at(slot, [row for row in ROWS if row[2] == slot], kit),
                *([changes_at(slot, due)] if due else []),
            ]
        )
        stream = stream.advance_watermark_to(hours(slot + 1) + (slot % 3) * 0.5)
    messages, letters = live(transform_of(kit, registry), stream.advance_watermark_to_infinity())
    assert_same(read(registry, messages, letters=letters), truth(registry, ROWS, CHANGED))
    bounded, _ = joined("fn_api", transform_of(kit, registry), bounded_source(kit))
    assert sorted(messages) == sorted(bounded)


# On both sides of the end of slot 2: a change for slot 2 is in time, or from the next slot on.
@pytest.mark.parametrize(("watermark", "applies"), [(3 * 3600 - 0.001, 2), (3 * 3600 + 0.001, 3)])
def test_changes_around_the_border_of_a_slot(live, kit, watermark, applies):
    events = [("m0", "a", slot) for slot in range(5)]
    stream = (
        Stream()
        .advance_watermark_to(0)
        .add_elements([events_at(slot, [events[slot]], kit) for slot in range(5)])
        .advance_watermark_to(watermark)
        .add_elements([changes_at(2, [("m0", 2, THIRD)])])
        .advance_watermark_to_infinity()
    )
    messages, _ = live(transform_of(kit, STRICT, last_slot=4), stream)
    known = [("m0", 2, THIRD, applies)]
    assert_same(read(STRICT, messages, last=4), truth(STRICT, events, known, last=4))


# Quiet slots are closed as well: nothing came for them, and still a change for them is late.
def test_a_change_for_a_quiet_slot_that_was_closed_is_late(live, kit):
    stream = (
        Stream()
        .advance_watermark_to(0)
        .add_elements([events_at(0, [("m0", "a", 0)], kit)])
        .advance_watermark_to(hours(5) + 1)
        .add_elements([changes_at(5, [("m1", 1, THIRD), ("s1", 3, THIRD)])])
        .advance_watermark_to(hours(7))
        .add_elements([events_at(8, [("m1", "a", 8)], kit)])
        .advance_watermark_to_infinity()
    )
    messages, _ = live(transform_of(kit, STRICT), stream)
    assert [slot for slot, *_ in moves_of(messages)] == [5, 5]


# Whatever jumps the watermark makes, every shard tells every slot, once and in full.
@pytest.mark.slow
@pytest.mark.parametrize("jumps", [[1, 2, 3, 4, 9], [0.5, 5], []])
@pytest.mark.parametrize("ends", [{}, {"last_slot": None}], ids=["with an end", "without"])
def test_all_shards_tell_all_slots_of_a_stream(live, kit, jumps, ends):
    stream = Stream().advance_watermark_to(0)
    stream = stream.add_elements([changes_at(0, CHANGED)])
    stream = stream.add_elements(
        [events_at(s, [r for r in ROWS if r[2] == s], kit) for s in range(LAST + 1)]
    )
    for slot in jumps:
        stream = stream.advance_watermark_to(hours(slot))
    transform = transform_of(kit, STRICT, **ends)
    messages, letters = live(transform, stream.advance_watermark_to_infinity())
    assert_same(read(STRICT, messages, letters=letters), truth(STRICT, ROWS, CHANGED))
    counts = [ShardCounts.of(data) for data in messages]
    counted = Counter((one.slot, one.shard) for one in counts)
    assert counted == Counter((slot, shard) for slot in range(LAST + 1) for shard in range(4))


# ---- what cannot be joined ------------------------------------------------------------------


def test_the_first_slot_must_be_known(joined, kit):
    transform = transform_of(kit, STRICT, first_slot=None)
    with pytest.raises(ConfigurationError, match="--start"):
        joined("fn_api", transform, bounded_source(kit))


@pytest.mark.parametrize("longest", [1, 0, 2**20 + 1, 2.5])
def test_the_longest_window_holds_those_of_the_table(kit, longest):
    with pytest.raises(ConfigurationError, match="longest"):
        kit.histograms(STRICT, longest_window=longest)
