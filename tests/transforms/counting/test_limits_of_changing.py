"""Requirements change while users count in a few slots only: on real runners, against the rule."""

import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from streamveil.engine import metrics
from streamveil.engine.count.changes import stranger_keys
from streamveil.engine.count.event_codes import MEMBERS, Layout
from streamveil.engine.count.participants import ParticipationLimits
from streamveil.engine.messages import Kind, Message
from streamveil.engine.slot_clock import SlotClock
from streamveil.mechanisms import ConfigurationError, Registry, Requirement, Slots
from streamveil.mechanisms.accounting.presence_filter import PresenceTerms
from streamveil.mechanisms.core.budgets import to_units
from streamveil.mechanisms.core.records import CHANGE_COLUMNS
from streamveil.mechanisms.driver.present_stream import Presence, PresentStream
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.presence.calendars import phases
from streamveil.mechanisms.presence.choice import Auto
from streamveil.mechanisms.presence.kept_share import Beyond
from streamveil.mechanisms.randomness.noise import NoiseSource
from streamveil.mechanisms.registry import mechanism
from tests.transforms.counting.test_participation_limits import Shaken, Shard, given_key, visits
from tests.transforms.stand_ins import WithChanges

KEY = bytes(range(32))
USERS = [f"u{i}" for i in range(24)]
STRANGERS = [f"x{i}" for i in range(5)]
LEVELS = [300.0, 900.0, 2700.0]
REGISTRY = Registry.of({u: (12 if i % 2 else 24, LEVELS[i % 3]) for i, u in enumerate(USERS)})
LIMIT = Limit(1, 2)
LONGEST, LENGTH, DIFFER, LAST = 24, 12, 4, 69
NOBODY = (None,) * 4


def both(window, epsilon):
    return (window, epsilon, window, epsilon)


CHANGES = [
    *((u, 20, both(24, 300.0)) for u in USERS[1:6]),
    ("u1", 0, both(12, 2700.0)),
    ("u2", 23, both(12, 2700.0)),
    ("u2", 26, (24, 900.0, 12, 2000.0)),
    ("u6", 30, both(24, 7.0)),
    ("u6", 40, both(24, 2700.0)),
    ("u7", 10, NOBODY),
    ("u7", 15, both(12, 900.0)),
    ("u8", 33, NOBODY),
    ("x0", 0, both(24, 900.0)),
    ("x1", 5, both(24, 4000.0)),
    ("x1", 50, NOBODY),
    ("x2", 17, both(12, 300.0)),
    ("x2", 44, both(12, 2700.0)),
]


def change_batch(rows):
    """One batch of (user, slot, four figures)."""
    names = ("user", "slot", *CHANGE_COLUMNS[-4:])
    figures = [[row[0], row[1], *row[2]] for row in rows]
    return pa.RecordBatch.from_pylist([dict(zip(names, row, strict=True)) for row in figures])


def rows_of(seed=0):
    random = np.random.default_rng(seed)
    rows = []
    for number, user in enumerate([*USERS, *STRANGERS]):
        for slot in np.flatnonzero(random.random(LAST + 1) < (0.9, 0.3, 0.1)[number % 3]):
            values = random.integers(2, size=random.integers(1, 3))
            rows += [(user, "ab"[value], int(slot)) for value in values]
    return [rows[i] for i in random.permutation(len(rows))]


ROWS = rows_of()


@pytest.fixture
def made(kit):
    def made(**options):
        given = {"first_slot": 0, "last_slot": LAST, "limit": LIMIT, "changing": True}
        given |= options
        return kit.histograms(REGISTRY, noise_key=KEY, max_contributions=2, **given)

    return made


def number(user, made, kit):
    if user in USERS:
        return np.array([USERS.index(user)])
    events, _ = made.event_mapper(True).map(kit.batch([(user, "a", 0)]))
    return stranger_keys(events.strangers)


def level_of(user, slot, phase):
    """Class of a user in a slot by the rule, -1 for none in force and -2 below all."""
    table = LEVELS[USERS.index(user) % 3] if user in USERS else 0.0
    asked = sorted((at, min(one[1], one[3]) if one[1] else 0.0)
                   for who, at, one in CHANGES if who == user)  # fmt: skip
    now, waits, reported, force = table, table, table, []
    for t in range(slot + 1):
        if (t + phase) % LENGTH == 0:
            now = waits
        for at, epsilon in asked:
            if at == t:
                waits = reported = epsilon
                if t == 0 or (t + phase) % LENGTH == 0 or not now:
                    now = epsilon
        force.append(now)
    if not now or not reported:
        return -1
    begin = slot - (slot + phase) % LENGTH
    smallest = min(one for one in force[max(begin - LONGEST + 1, 0) :] if one)
    return max((k for k, level in enumerate(LEVELS) if level <= smallest), default=-2)


def counted(made, kit, rows):
    """(slot, class, bin) of rows that count, and of each layer; rows of none, rows left out."""
    key = made._key.derived("presence")
    mine = {
        user: int(phases(key, number(user, made, kit), np.array([LENGTH]))[0])
        for user in [*USERS, *STRANGERS]
    }
    used, there = Counter(), {}
    found = {layer: [] for layer in (0, 1, 2, 3)}
    homeless, strict = Counter(), 0
    for user, value, slot in sorted(rows, key=lambda row: (row[2], row[0])):
        level = level_of(user, slot, mine[user])
        if level == -1:
            homeless[slot] += 1
        elif level == -2:
            strict += 1
        else:
            if (user, slot) not in there:
                block = (slot + mine[user]) // LENGTH
                there[user, slot] = min(used[user, block], 3)
                used[user, block] += 1
            found[there[user, slot]].append((slot, level, "ab".index(value)))
    return found, homeless, strict


def expected(made, kit, rows):
    found, homeless, strict = counted(made, kit, rows)
    known = REGISTRY.up_to(LONGEST)
    tables = np.zeros((4, LAST + 1, 3, 2), np.int64)
    for layer, some in found.items():
        np.add.at(tables[layer], tuple(np.array(some).T), 1)
    stream = PresentStream(
        mechanism(made.mechanism, made.population),
        NoiseSource(KEY, "histogram"),
        made.context,
        Presence((LIMIT,) * 3, known.classes, "add_remove", moving=True),
    )
    state, outputs = stream.start(), []
    for slot in range(LAST + 1):
        above = []
        for layer in (1, 2, 3):
            classes, bins = np.nonzero(tables[layer, slot])
            counts = tables[layer, slot][classes, bins]
            above.append(np.stack((np.full(len(bins), layer), classes, bins, counts)))
        beyond = Beyond(*np.hstack(above))
        state, release = stream.release(state, slot, tables[0, slot], beyond)
        outputs.append(release)
    return outputs, found, homeless, strict


def letters(ran):
    slots = Counter()
    for one in ran.dead_letters:
        record = json.loads(one["record"])
        assert one["reason"] == "no requirement"
        slots[record["slot"]] += record["events"]
    return slots


def test_at_the_end_users_are_in_the_classes_of_their_blocks(here, kit, made):
    transform = made()
    parts = [kit.batch(ROWS[part::3]) for part in range(3)]
    ran = here(WithChanges(transform, change_batch(CHANGES[::-1])), parts)
    releases, found, homeless, strict = expected(transform, kit, ROWS)
    assert strict > 0
    assert [one.counts.tolist() for one in ran.releases] == [
        one.counts.tolist() for one in releases
    ]
    assert letters(ran) == homeless
    kept, beyond = len(found[0]), sum(len(found[layer]) for layer in (1, 2, 3))
    assert ran.counters[metrics.EVENTS_COUNTED] == kept
    assert ran.counters[metrics.EVENTS_BEYOND_LIMIT] == beyond + strict
    assert kept + beyond + strict + homeless.total() == len(ROWS)
    asked = tuple(Requirement(LONGEST, level) for level in LEVELS)
    assert {entry.classes for entry in ran.ledger} == {asked}
    prices = [(to_units(level) - to_units(level) // 20) // DIFFER / 2**40 for level in LEVELS]
    assert (np.array([entry.spent for entry in ran.ledger]) <= prices).all()
    assert (np.array([entry.spent_in_window for entry in ran.ledger]) <= LEVELS).all()


def in_time(kit, transform, rows, first=0):
    line = kit.timeline(transform, start=first)
    for slot in range(first, transform.last_slot + 1):
        line.events(*(row for row in rows if row[2] == slot)).advance(slot + 1)
    return line


@pytest.mark.slow
def test_pieces_of_a_stream_count_as_one_run_does(here, kit, made):
    changes = change_batch(CHANGES)
    whole = here(WithChanges(made(shards=2), changes), [kit.batch(ROWS)])
    releases, state = [], None
    for first, last in ((0, 21), (22, 63), (64, LAST)):
        options = {"first_slot": first, "last_slot": last, "resume": state, "shards": 2}
        rows = [kit.batch([row for row in ROWS if first <= row[2] <= last])]
        transform = made(**options, changing=state is None)
        # What is to come is in the state.
        ran = here(transform if state else WithChanges(transform, changes), rows)
        releases += ran.releases
        _, state = max(ran.state)
    kit.assert_same_releases(releases, whole.releases)
    options = {"first_slot": LAST + 1, "last_slot": None, "resume": state, "shards": 2}
    with pytest.raises(ConfigurationError, match="the participation limit"):
        made(**options, limit=None, mechanism="dpbd")
    with pytest.raises(ConfigurationError, match="the participation limit"):
        made(**options, limit=Limit(1, 3))


JOINS = [("x0", 4, both(24, 900.0)), ("u0", 4, NOBODY)]
LATER = [(*one, slot) for one in (("x0", "a"), ("u0", "a"), ("u0", "b")) for slot in (3, 4)]
"""That of `x0` counts when it has joined, and both of `u0` before it leaves."""


@pytest.fixture
def begun(run, kit, made):
    """State of a short run that knew changes to come."""
    first = made(last_slot=2)
    ran = run(WithChanges(first, change_batch(JOINS)), [kit.batch([("u1", "a", 0)])])
    return max(ran.state)[1]


def test_a_run_goes_on_with_the_changes_that_the_one_before_got(here, kit, made, begun):
    """Though nobody says again that requirements change."""
    after = made(first_slot=3, last_slot=4, resume=begun, changing=False)
    ran = here(after, [kit.batch(LATER)])
    assert ran.counters[metrics.EVENTS_COUNTED] == 3
    assert letters(ran) == {3: 1, 4: 2}


def test_a_stream_goes_on_with_the_changes_that_a_run_got(run_on, kit, made, begun):
    after = made(first_slot=3, last_slot=4, resume=begun, changing=False)
    stream = run_on("bundle_based", after, in_time(kit, after, LATER, 3), "--streaming")
    assert letters(stream) == {3: 1, 4: 2}


def test_the_last_door_knows_that_users_move_from_class_to_class(here, kit, made, monkeypatch):
    """What a slot costs one class, users of a later class may have paid as well."""
    built, unspent = [], PresenceTerms.unspent
    monkeypatch.setattr(
        PresenceTerms, "unspent", lambda terms: built.append(terms) or unspent(terms)
    )
    here(WithChanges(made(last_slot=0), change_batch(JOINS)), [kit.batch([("u1", "a", 0)])])
    assert built
    for terms in built:
        door = unspent(terms)
        door.charge(np.array([5, 0, 0]))
        assert (door.in_window - np.array(terms.aside)).tolist() == [5, 5, 5]


def test_without_an_end_nothing_is_released(here, kit, made):
    """A shard would not know up to which slot changes came in time: others' visits would tell."""
    transform = WithChanges(made(last_slot=None), change_batch(JOINS))
    with pytest.raises(ConfigurationError, match="the last slot must be known: give --end"):
        here(transform, [kit.batch(LATER)])


@pytest.mark.slow
def test_in_time_users_are_in_the_same_classes(here, run_on, kit, made):
    last, cut = 35, 21
    rows = [row for row in ROWS if row[2] <= last]
    changes = change_batch(CHANGES)
    whole = here(WithChanges(made(last_slot=last), changes), [kit.batch(rows)])
    transform = made(last_slot=last, shards=2)
    stream = run_on(
        "bundle_based",
        WithChanges(transform, changes),
        in_time(kit, transform, rows),
        "--streaming",
    )
    kit.assert_same_releases(stream.releases, whole.releases)
    assert letters(stream) == letters(whole)

    first = here(
        WithChanges(made(last_slot=cut), changes), [kit.batch([r for r in rows if r[2] <= cut])]
    )
    _, state = max(first.state)
    later = {"first_slot": cut + 1, "last_slot": last, "resume": state}
    transform = made(**later)
    late = WithChanges(transform, change_batch([("u9", 3, both(12, 300.0))]))
    rest = run_on("bundle_based", transform, in_time(kit, transform, rows, cut + 1), "--streaming")
    kit.assert_same_releases([*first.releases, *rest.releases], whole.releases)
    resumed = here(late, [kit.batch([row for row in rows if row[2] > cut])])
    assert resumed.counters[metrics.CHANGES_LATE] == 1


def test_what_does_not_fit_is_refused(kit, made, here):
    with pytest.raises(ConfigurationError, match="the same participation limit"):
        made(limit=[LIMIT, LIMIT])
    with pytest.raises(ConfigurationError, match="the same participation limit"):
        made(limit=Limit(1, 2, in_life=5))
    for auto in (Auto(), Auto(0.05)):
        with pytest.raises(ConfigurationError, match="max_slots=auto is for requirements that nev"):
            made(limit=auto)
    with pytest.raises(ConfigurationError, match="does not support a participation limit"):
        made(mechanism="dpbd")
    with pytest.raises(ConfigurationError, match="longest window allowed is 20"):
        made(longest_window=20)
    with pytest.raises(ConfigurationError, match="changing=True"):
        here(WithChanges(made(changing=False), change_batch(CHANGES)), [kit.batch(ROWS)])
    table = Registry.build(["a"], np.array([24]), np.array([9.0]), max_slots=np.array([1]))
    with pytest.raises(ConfigurationError, match="leave out the column max_slots"):
        kit.histograms(table, noise_key=KEY, changing=True, first_slot=0)


@pytest.mark.parametrize("seed", range(3))
def test_a_shard_that_is_shaken_prices_blocks_as_one_that_is_not(kit, made, seed):
    """Late changes too: what is known as a slot closes decides."""
    random = np.random.default_rng(seed)
    transform = made()
    known = REGISTRY.up_to(LONGEST)
    layout = Layout.choose(known, 2, 1, timely=True)
    config = ParticipationLimits(
        registry=known,
        layout=layout,
        limits=(LIMIT,) * 3,
        adjacency="add_remove",
        make_key=given_key,
        clock=SlotClock(Slots.of("1h")),
        first_slot=0,
        stream="s",
        change_mapper=transform.change_mapper,
    )
    mapped, _ = transform.change_mapper().map(change_batch(CHANGES))
    changes, _ = mapped[MEMBERS]
    slots_visited = [
        visits(config, slot, *np.flatnonzero(random.random(24) < 0.6)) for slot in range(40)
    ]
    due = {}
    for row, slot in enumerate(changes.slots.tolist()):
        some = changes[np.arange(len(changes.slots)) == row]
        late = slot + int(random.integers(0, 4))
        message = layout.message(Kind.CHANGES, some.first, (MEMBERS, 0), some.to_bytes())
        due.setdefault(late, []).append(message)
    calm, shaken = Shard(config), Shaken(config, random)
    found = []
    for shard in (calm, shaken):
        shard.take(Message(Kind.START, 0))
        found.append([])
        for slot in range(40):
            order = random.permutation(len(due.get(slot, [])))
            for i in order:
                shard.take(due[slot][i])
            shard.take(slots_visited[slot])
            found[-1] += shard.run()
    assert found[0] == found[1]
    assert len(found[0]) == 40


def test_who_joins_is_counted_beyond_the_number_of_the_table(here, kit):
    """Sizes of the table bound no count where others may join."""
    many = [f"x{i}" for i in range(60)]
    table = Registry.of(dict.fromkeys(USERS[:4], (24, 900.0)))
    transform = kit.histograms(
        table,
        mechanism="adaptive",
        noise_key=KEY,
        first_slot=0,
        last_slot=5,
        limit=LIMIT,
        changing=True,
    )
    changes = change_batch([(user, 2, both(24, 900.0)) for user in many])
    rows = [(user, "a", 3 + i % 3) for i, user in enumerate(many)]
    ran = here(WithChanges(transform, changes), [kit.batch(rows)])
    assert all(release.counts[0] >= 20 for release in ran.releases[3:])
