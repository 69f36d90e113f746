"""Who asks for what goes on with the state: a stream in pieces is one, and keeps every promise.

Most of it drives the steps by hand, a pass in some milliseconds; the last tests run pipelines.
"""

import dataclasses
from collections import defaultdict
from functools import partial

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest

from streamveil.engine.count.changes import spread, stranger_keys
from streamveil.engine.count.counter import Counter
from streamveil.engine.count.event_codes import MEMBERS, STRANGERS, Layout, pack
from streamveil.engine.count.shards import close_at_end
from streamveil.engine.encode.text import find_users
from streamveil.engine.messages import LEDGER, REJECTED, STATE, Kind, several_from_bytes
from streamveil.engine.slot_clock import SlotClock
from streamveil.engine.stream.drivers import one_driver
from streamveil.engine.stream.release_slots import Publish, ReleaseConfig, release_at_end
from streamveil.mechanisms import ConfigurationError, Registry, Requirement
from streamveil.mechanisms.core.budgets import to_units
from streamveil.mechanisms.core.cohorts import GONE
from streamveil.mechanisms.core.records import CHANGE_COLUMNS
from streamveil.transforms.at_end import AtEnd
from tests.transforms.stand_ins import whole

KEY = bytes(range(50, 82))
USERS = [f"u{i}" for i in range(10)]
STRANGE = [f"x{i}" for i in range(6)]
PEOPLE = [*USERS, *STRANGE]
TABLE = {user: (1 + i % 4, 5.0 + 10 * (i % 2)) for i, user in enumerate(USERS)}
LEAVE = (None,) * 4
WISHES = [
    *[(4, 3.0, 4, 4.0), (2, 10.0, 3, 10.0), (1, 20.0, 2, 20.0), (3, 5.0, 3, 5.0)],
    *[(6, 2.0, 1, 40.0), (2, 1e-6, 3, 1e-6), LEAVE, LEAVE],
]
SOME = [("u1", 1, WISHES[0]), ("x1", 2, WISHES[1]), ("u2", 9, LEAVE)]
HORIZON = 6
LAST = 24
KINDS = pytest.mark.parametrize(
    ("name", "default"),
    [("adaptive", False), ("adaptive", True), ("dpbd", False), ("dpba", True)],
)
DEFAULTS = pytest.mark.parametrize("default", [False, True], ids=["strict", "default"])
STREAM = "histogram"


def change_batch(rows):
    """One batch of (user, slot, four figures)."""
    kinds = [pa.string(), pa.int64(), *[pa.float64()] * 4]
    names = ("user", "slot", *CHANGE_COLUMNS[-4:])
    columns = zip(*((user, slot, *asked) for user, slot, asked in rows), strict=True)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names)


def registry_of(default):
    return Registry.of(TABLE, default=(Requirement(3, 10.0), 9) if default else None)


def history(seed, changes=40):
    """Events and changes drawn at random, of members and of others; nobody changes twice a slot."""
    random = np.random.default_rng(seed)
    events = [
        (user, "ab"[int(random.random() < 0.3)], slot)
        for slot in range(LAST + 1)
        for user in PEOPLE
        if random.random() < 0.8
    ]
    drawn = {
        (PEOPLE[random.integers(len(PEOPLE))], int(slot)): WISHES[random.integers(len(WISHES))]
        for slot in random.integers(0, LAST + 1, changes)
    }
    return events, [(user, slot, asked) for (user, slot), asked in drawn.items()]


# ---- the steps, driven by hand -----------------------------------------------------------------


@dataclasses.dataclass
class Piece:
    """What one run gave, and where it left off."""

    releases: list
    ledger: list
    state: bytes
    homeless: int


def run_piece(transform, kit, events, changes=()):
    """A run over some slots, from the events in them and changes that come now."""
    dynamic = transform.changing
    layout = Layout.choose(transform.registry, 2, transform.shards, timely=False)
    clock = SlotClock(transform.slots)
    counter = Counter(transform.registry, layout, transform.bounding, STREAM, dynamic)
    mapped, _ = transform.event_mapper(dynamic).map(kit.batch(events))
    parts = defaultdict(list)
    for block, key, packed, _ in pack(mapped, layout, counter.bounding):
        parts[(*key, block)].append(layout.message(Kind.EVENTS, block, key, packed.to_bytes()))
    sent = [
        one
        for key, codes in parts.items()
        for one in counter.messages(key, counter.bound(key, codes))
    ]
    messages, homeless = [data for _, data in sent], 0
    if dynamic:
        messages, homeless = join(transform, layout, clock, sent, changes)
    config = ReleaseConfig(
        partial(one_driver, transform.ledgers(layout, dynamic)),
        clock,
        Publish(transform.slots, transform.mechanism),
        transform.first_slot,
        transform.last_slot,
        transform.resume,
        keeps=True,
    )
    step = AtEnd(partial(release_at_end, config))
    found = defaultdict(list)
    for output in step.process((STREAM, whole(messages))):
        tagged = isinstance(output, beam.pvalue.TaggedOutput)
        value = getattr(output.value, "value", output.value)
        found[output.tag if tagged else "releases"].append(value)
    ((following, state),) = found[STATE]
    assert following == transform.last_slot + 1
    return Piece(found["releases"], found[LEDGER], state, homeless)


def join(transform, layout, clock, sent, changes):
    shards = defaultdict(list)
    for key, message in sent:
        shards[key].append(message)
    for message in transform._kept:
        shards[layout.key(message.shard)].append(message)
    if changes:
        found, rejected = transform.change_mapper().map(change_batch(changes))
        assert not rejected.num_rows
        for key, some in spread(found, transform.shards):
            shards[key].append(layout.message(Kind.CHANGES, some.first, key, some.to_bytes()))
    step = AtEnd(
        partial(close_at_end, transform.shard_logic(layout, clock, changes=True, keeps=True))
    )
    messages, homeless = [], 0
    for output in (output for shard in shards.items() for output in step.process(shard)):
        if isinstance(output, beam.pvalue.TaggedOutput):
            homeless += output.tag == REJECTED
        else:
            messages.append(getattr(output, "value", output)[1])
    return messages, homeless


def run_pieces(kit, make, cuts, events, changes, ahead=0):
    """Pieces that end before each cut; changes come up to `early` slots early."""
    pieces, state, waiting = [], None, list(changes)
    for first, last in zip([0, *cuts], [*(cut - 1 for cut in cuts), LAST], strict=True):
        now = [change for change in waiting if change[1] <= last + ahead]
        waiting = [change for change in waiting if change[1] > last + ahead]
        transform = make(first, last, state)
        there = [event for event in events if first <= event[2] <= last]
        pieces.append(run_piece(transform, kit, there, now))
        state = pieces[-1].state
    return pieces


def published(pieces):
    """All that is published, figure by figure."""
    everything = []
    for piece in pieces:
        for one in (*piece.releases, *piece.ledger):
            values = [getattr(one, field.name) for field in dataclasses.fields(one)]
            everything.append(
                [value.tolist() if isinstance(value, np.ndarray) else value for value in values]
            )
    return sorted(map(repr, everything))


def maker(kit, default, name, **options):
    given = {"noise_key": KEY, "mechanism": name, "longest_window": HORIZON, **options}

    def make(first, last, state, **more):
        return kit.histograms(
            registry_of(default), first_slot=first, last_slot=last, resume=state, **given, **more
        )

    return make


# ---- who is in which ledger --------------------------------------------------------------------


def spending(transform, piece):
    """What the last slot of a piece cost every user who was counted in it: units, by user."""
    entry = piece.ledger[-1]
    spent = (entry.spent * 2**40).astype(np.int64)
    if not hasattr(entry, "infeasible"):
        found = dict(zip(USERS, spent[transform.registry.class_of].tolist(), strict=True))
        if transform.registry.default_class is not None:
            found.update(dict.fromkeys(STRANGE, int(spent[transform.registry.default_class])))
        return found
    after = dataclasses.replace(
        transform, first_slot=transform.last_slot + 1, last_slot=None, resume=piece.state
    )
    layout = Layout.choose(transform.registry, 2, transform.shards, timely=False)
    ledgers = after.ledgers(layout, True).make()
    interned = ledgers.decode(piece.state).interned
    place = np.cumsum(interned.sizes > 0) - 1
    logic = after.shard_logic(layout, SlotClock(after.slots), changes=True, keeps=True)
    states = {layout.key(message.shard): message.payload for message in after._kept}
    mapper = after.change_mapper()
    members, digests, _ = find_users(pa.array(PEOPLE), mapper._users, mapper.stranger_key)
    assert members.tolist() == [*range(len(USERS)), *[-1] * len(STRANGE)]
    keys = {user: (MEMBERS, i, np.uint64(i)) for i, user in enumerate(USERS)}
    strange = zip(STRANGE, stranger_keys(digests), digests[:, 0], strict=True)
    keys |= {user: (STRANGERS, key, number) for user, key, number in strange}
    found = {}
    for user, (kind, key, number) in keys.items():
        shard = (kind, int(number % np.uint64(transform.shards)))
        cohorts = logic.cohorts(shard)
        state = cohorts.start()
        if shard in states:
            state = cohorts.decode(several_from_bytes(states[shard])[0])
        cohort, _ = cohorts._now(state, np.array([key]))
        if cohort[0] != GONE and cohorts._asked(state)[cohorts._places(state, cohort)][0, 1]:
            ledger = int(interned.ledgers_of(cohort)[0])
            found[user] = int(spent[place[ledger]])
    return found


def units(asked):
    back, back_cap, ahead, ahead_cap = asked
    return back, to_units(back_cap), ahead, to_units(ahead_cap)


def asked_in(slots, default, changes):
    """By slot, what every user asks for in units, None for who is not counted."""
    now = {user: (w, e, w, e) for user, (w, e) in TABLE.items()}
    if default:
        now |= dict.fromkeys(STRANGE, (3, 10.0, 3, 10.0))
    by_slot = []
    for slot in range(slots):
        now |= {user: asked for user, at, asked in changes if at == slot}
        by_slot.append(
            {
                user: None
                if asked == LEAVE
                else [to_units(a) if i % 2 else a for i, a in enumerate(asked)]
                for user, asked in now.items()
            }
        )
    return by_slot


def assert_promises_kept(by_slot, spent):
    """Every window of every user, added up in Python's integers."""
    for user in PEOPLE:
        costs = [slot.get(user, 0) for slot in spent]
        for slot, asked in enumerate(by_slot):
            if asked.get(user) is None:
                assert costs[slot] == 0, (user, slot)
                continue
            back, back_cap, ahead, ahead_cap = asked[user]
            assert sum(costs[slot : slot + ahead]) <= ahead_cap, (user, slot)
            if costs[slot]:
                assert sum(costs[max(slot - back + 1, 0) : slot + 1]) <= back_cap, (user, slot)


# ---- with changes from the start ---------------------------------------------------------------


@pytest.mark.slow
@KINDS
def test_a_stream_with_changes_in_pieces_is_one_stream(kit, name, default):
    events, changes = history(0)
    make = maker(kit, default, name, changing=True, shards=2)
    whole = run_pieces(kit, make, [], events, changes)
    random = np.random.default_rng(100)
    for _ in range(2):
        cuts = sorted({*random.integers(1, LAST + 1, 5).tolist()})
        pieces = run_pieces(kit, make, cuts, events, changes, ahead=int(random.integers(0, 9)))
        assert published(pieces) == published(whole)
        assert pieces[-1].state == whole[-1].state
    assert "published" in {release.status for piece in whole for release in piece.releases}


@pytest.mark.slow
@KINDS
def test_every_user_keeps_every_promise_slot_by_slot(kit, name, default):
    events, changes = history(10)
    make = maker(kit, default, name, changing=True, shards=2)
    pieces = run_pieces(kit, make, range(1, LAST + 1), events, changes)
    spent, state = [], None
    for slot, piece in enumerate(pieces):
        spent.append(spending(make(slot, slot, state), piece))
        state = piece.state
    assert any(cost for slot in spent for cost in slot.values())
    assert_promises_kept(asked_in(LAST + 1, default, changes), spent)
    assert published(pieces) == published(run_pieces(kit, make, [], events, changes))


# ---- a stream of fixed requirements, whose users then change -----------------------------------


@pytest.mark.slow
@DEFAULTS
@pytest.mark.parametrize(
    ("since", "longest", "name"),
    [(1, 6, "adaptive"), (4, 4, "adaptive"), (9, 11, "adaptive"), (4, 6, "adaptive:cycle=3")],
)
def test_a_fixed_stream_goes_on_with_changes_and_keeps_every_promise(
    kit, default, since, longest, name
):
    events, changes = history(since)
    fits = [c for c in changes if c[2] == LEAVE or max(c[2][0], c[2][2]) <= longest]
    longer = [
        ("u1", since, (longest, 9.0, longest, 11.0)),
        ("x0", since + 1, (longest, 9.0, 1, 9.0)),
    ]
    changes = {change[:2]: change for change in [*fits, *longer] if change[1] >= since}.values()
    changes = list(changes)
    make = maker(kit, default, name, longest_window=longest, shards=2)

    def by_hand(first, last, state):
        return make(first, last, state, changing=first >= since)

    fixed = run_pieces(kit, make, [], [e for e in events if e[2] < since], ())
    pieces = run_pieces(kit, by_hand, range(1, LAST + 1), events, changes)
    # Until somebody changes it is the stream that it would have been.
    before = [repr(piece.releases[0].counts) for piece in pieces[:since]]
    assert before == [repr(release.counts) for release in fixed[0].releases[:since]]
    spent, state = [], None
    for slot, piece in enumerate(pieces):
        spent.append(spending(by_hand(slot, slot, state), piece))
        state = piece.state
    assert sum(bool(cost) for slot in spent[since:] for cost in slot.values()) > 10
    assert_promises_kept(asked_in(LAST + 1, default, changes), spent)
    # It matters where the changes begin, not in what pieces the stream is released.
    cuts = sorted({since, *np.random.default_rng(since).integers(since, LAST, 3).tolist()})
    assert published(run_pieces(kit, by_hand, cuts, events, changes)) == published(pieces)


# Slots that fixed ledgers have forgotten count as if all that was promised had been spent in them.
def test_a_window_longer_than_anybody_had_looks_back_on_the_worst(kit):
    events, _ = history(0)
    make = maker(kit, False, "adaptive", longest_window=12)

    def by_hand(first, last, state):
        return make(first, last, state, changing=first >= 12)

    wish = (12, 5.0, 12, 5.0)
    changes = [("u3", 12, wish), ("x1", 12, wish)]
    pieces = run_pieces(kit, by_hand, range(1, LAST + 1), events, changes)
    costs, state = [], None
    for slot, piece in enumerate(pieces):
        found = spending(by_hand(slot, slot, state), piece)
        costs.append((found.get("u3", 0), found.get("x1", 0)))
        state = piece.state
    member, newcomer = zip(*costs, strict=True)
    assert not any(member[12:20])  # windows of 12 that reach back before slot 8
    assert any(member[20:])
    assert any(newcomer[12:20])


def test_a_fixed_stream_refuses_what_it_cannot_follow(kit):
    events, _ = history(0)
    make = maker(kit, False, "pba")
    state = run_pieces(kit, make, [], events, ())[0].state
    with pytest.raises(ConfigurationError, match="'pba' is for requirements that never change"):
        make(LAST + 1, LAST + 2, state, changing=True)
    changed = maker(kit, False, "adaptive", changing=True)
    state = run_pieces(kit, changed, [], events, ())[0].state
    with pytest.raises(ConfigurationError, match="longest window"):
        maker(kit, False, "adaptive", longest_window=7)(LAST + 1, LAST + 2, state)


# Who is in which ledger is under the same checksum as the ledgers.
@pytest.mark.parametrize("name", ["adaptive", "dpbd"])
def test_no_flipped_bit_is_accepted(kit, name):
    events, changes = history(0)
    make = maker(kit, False, name, changing=True)
    state = run_piece(make(0, 7, None), kit, [e for e in events if e[2] <= 7], changes).state
    layout = Layout.choose(registry_of(False), 2, 1, timely=False)
    ledgers = make(8, 9, state).ledgers(layout, True).make()
    random = np.random.default_rng(0)
    for bit in [*range(16), *random.integers(0, 8 * len(state), 200).tolist()]:
        flipped = bytearray(state)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ConfigurationError):
            ledgers.decode(bytes(flipped))


# A state that does not say who is in which ledger would count users against other ledgers.
def test_a_pipeline_tells_a_state_with_changes_only_if_it_goes_on(run, kit):
    class WithChanges(beam.PTransform):
        def __init__(self, transform):
            super().__init__()
            self.transform = transform

        def expand(self, events):
            changes = events.pipeline | beam.Create([change_batch(SOME)], reshuffle=False)
            return (events, changes) | "Histograms" >> self.transform

    make = maker(kit, False, "dpbd")
    events = [(user, "a", slot) for user in PEOPLE for slot in range(4)]
    alone = run(WithChanges(make(0, 3, None)), [kit.batch(events)])
    kept = run(WithChanges(make(0, 3, None, changing=True)), [kit.batch(events)])
    kit.assert_same_releases(alone.releases, kept.releases)
    assert alone.state == []
    ((following, state),) = kept.state
    assert following == 4
    by_hand = run_piece(make(0, 3, None, changing=True), kit, events, SOME)
    assert state == by_hand.state
    assert make(4, 5, state)._kept
