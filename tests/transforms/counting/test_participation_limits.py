"""Users count in a few slots only: against the rule written out, on real runners and by hand."""

import copy
import pickle
from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from streamveil.engine import metrics
from streamveil.engine.count.changes import stranger_keys
from streamveil.engine.count.close_shards import CloseShards, ShardProgress
from streamveil.engine.count.event_codes import MEMBERS, BlockCounts, Layout, Visits
from streamveil.engine.count.participants import ParticipationLimits
from streamveil.engine.count.shards import close_at_end
from streamveil.engine.messages import TALLIES, Kind, Message
from streamveil.engine.slot_clock import SlotClock
from streamveil.engine.stream_step import StateWentBack
from streamveil.mechanisms import BudgetExceeded, ConfigurationError, Registry, Requirement, Slots
from streamveil.mechanisms.core.budgets import to_units
from streamveil.mechanisms.core.event_tallies import EventTally
from streamveil.mechanisms.driver.present_stream import Presence, PresentStream
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.presence.calendars import phases
from streamveil.mechanisms.presence.counters import Tally
from streamveil.mechanisms.presence.kept_share import Beyond
from streamveil.mechanisms.presence.limits import EVERY_SLOT, terms
from streamveil.mechanisms.randomness.noise import NoiseSource
from streamveil.mechanisms.registry import mechanism
from streamveil.transforms.at_end import AtEnd
from tests.transforms.stand_ins import Hosted

KEY = bytes(range(32))
USERS = [f"u{i}" for i in range(24)]
STRANGERS = [f"x{i}" for i in range(6)]
# Windows of 20 and 24 slots are limited; one of 6 is not: it would gain nothing.
ASKED = [(20, 900.0), (24, 1800.0), (6, 600.0)]
REGISTRY = Registry.of(
    {u: ASKED[i % 3] for i, u in enumerate(USERS)}, default=(Requirement(20, 900.0), 20)
)
LIMIT = Limit(2, 2)
SLOTS = 75


def rows_of(seed=0, slots=SLOTS):
    """Some users are there all the time, some twice in a slot, most rarely."""
    random = np.random.default_rng(seed)
    rows = []
    for number, user in enumerate([*USERS, *STRANGERS]):
        for slot in np.flatnonzero(random.random(slots) < (0.9, 0.3, 0.1)[number % 4 % 3]):
            rows += [(user, "ab"[random.integers(2)], int(slot))] * random.integers(1, 3)
    return [rows[i] for i in random.permutation(len(rows))]


ROWS = rows_of()


def transform(kit, limit=LIMIT, registry=REGISTRY, **options):
    limits = limit and [limit] * len(registry.classes)  # whether they pay or not
    return kit.histograms(registry, limit=limits, noise_key=KEY, max_contributions=2, **options)


def numbers(made, kit):
    """User in the calendar of the transform: position, or digest."""
    found = {user: np.array([place]) for place, user in enumerate(USERS)}
    for user in STRANGERS:
        events, _ = made.event_mapper().map(kit.batch([(user, "a", 0)]))
        found[user] = stranger_keys(events.strangers)
    return found


def counted(made, kit, rows, in_life=10**9):
    """The rows that count, one slot after the other, and those in the layers above."""
    known, key = numbers(made, kit), made._key.derived("presence")
    used, lives, there, kept = Counter(), Counter(), {}, []
    beyond = {1: [], 2: [], 3: []}
    for user, value, slot in sorted(rows, key=lambda row: (row[2], row[0])):
        asked = ASKED[USERS.index(user) % 3] if user in USERS else ASKED[0]
        block = ("every", slot)
        if asked[0] > 6:
            length = asked[0] // 2
            phase = phases(key, known[user], np.array([length]))[0]
            block = (slot + phase) // length
        if (user, slot) not in there:
            there[user, slot] = min(used[user, block] // 2, 3)
            used[user, block] += 1
            if not there[user, slot]:
                lives[user] += 1
                if lives[user] > in_life:
                    there[user, slot] = 4
        beyond.get(there[user, slot], kept if not there[user, slot] else []).append(
            (user, value, slot)
        )
    return kept, beyond


def within(kit, rows, first=0, last=SLOTS, parts=1):
    some = [row for row in rows if first <= row[2] <= last]
    return [kit.batch(some[part::parts]) for part in range(parts)]


@pytest.fixture(scope="module")
def known():
    """What was expected before, by what it is of."""
    return {}


def expected(kit, known, made, rows, slots=SLOTS, **how):
    at = (len(rows), slots, *how.items())
    if at not in known:
        kept, beyond = counted(made, kit, rows, **how)
        tables = kit.bounded_counts(kept, made.registry)
        above = {k: kit.bounded_counts(some, made.registry) for k, some in beyond.items()}
        population = made.population
        stream = PresentStream(
            mechanism(made.mechanism, population),
            NoiseSource(KEY, "histogram"),
            made.context,
            Presence(made.limits, made.registry.classes, made.adjacency),
        )
        state, known[at] = stream.start(), []
        for slot in range(slots):
            cells = []
            for layer, some in above.items():
                classes, bins = np.nonzero(some[slot])
                cells.append((np.full(len(bins), layer), classes, bins, some[slot][classes, bins]))
            state, release = stream.release(
                state, slot, tables[slot], Beyond(*np.hstack([*map(np.stack, cells)]))
            )
            known[at].append(release)
    return known[at]


def same(ran, releases):
    assert [one.counts.tolist() for one in ran.releases] == [
        one.counts.tolist() for one in releases
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("shards", "parts"), [(1, 1), (3, 4)])
def test_at_the_end_those_count_who_should(run_on, kit, known, runner, shards, parts):
    made = transform(kit, first_slot=0, last_slot=SLOTS - 1, shards=shards)
    ran = run_on(runner, made, within(kit, ROWS, parts=parts))
    same(ran, expected(kit, known, made, ROWS))
    kept, _ = counted(made, kit, ROWS)
    assert ran.counters[metrics.EVENTS_COUNTED] == len(kept)
    assert ran.counters[metrics.EVENTS_BEYOND_LIMIT] == len(ROWS) - len(kept) > 0


def test_the_ledger_tells_what_is_asked_for_and_what_a_present_user_paid(here, kit):
    made = transform(kit, first_slot=0, last_slot=SLOTS - 1)
    ran = here(made, within(kit, ROWS))
    assert {entry.classes for entry in ran.ledger} == {tuple(REGISTRY.classes)}
    assert made.population.requirements == (
        Requirement(6, 600.0),
        Requirement(1, 855.0 / 8),  # 5 % are for the share that is kept
        Requirement(1, 1710.0 / 8),
    )
    for k, (most, reach, kept) in enumerate([(6, 6, 0), (8, 29, 45), (8, 35, 90)]):
        spent = [entry.spent[k] for entry in ran.ledger]
        for slot, entry in enumerate(ran.ledger):
            dearest = sorted(spent[max(slot - reach + 1, 0) : slot + 1])[-most:]
            assert entry.spent_in_window[k] == pytest.approx(sum(dearest) + kept, abs=1e-9)
            assert entry.spent_in_window[k] <= REGISTRY.classes[k].epsilon


@pytest.mark.parametrize(
    "limit", [LIMIT, pytest.param(Limit(2, 2, in_life=5), marks=pytest.mark.slow)]
)
def test_pieces_of_a_stream_count_as_one_run_does(here, kit, limit):
    whole = here(transform(kit, limit, first_slot=0, last_slot=75), within(kit, ROWS))
    releases, state = [], None
    for first, last in ((0, 3), (4, 63), (64, 75)):
        made = transform(kit, limit, first_slot=first, last_slot=last, resume=state)
        ran = here(made, within(kit, ROWS, first, last))
        next_slot, state = max(ran.state)
        assert next_slot == last + 1
        releases += ran.releases
    kit.assert_same_releases(releases, whole.releases)


def test_a_state_is_for_the_limit_that_it_was_written_with(here, kit):
    _, state = max(here(transform(kit, first_slot=0, last_slot=3), within(kit, ROWS, 0, 3)).state)
    said = r": the participation limit \(--max_slots\) changed since it"  # and nobody's requirement
    with pytest.raises(ConfigurationError, match=said):
        transform(kit, Limit(2, 3), first_slot=4, resume=state)
    with pytest.raises(ConfigurationError, match="the participation limit"):
        transform(kit, None, first_slot=4, resume=state)


def test_the_table_may_say_who_is_limited(kit):
    asked = np.array([20, 20, 6])
    table = Registry.build(["a", "b", "c"], asked, np.full(3, 900.0), max_slots=np.array([0, 1, 0]))
    made = kit.histograms(table, noise_key=KEY)
    assert made.limits == (EVERY_SLOT, EVERY_SLOT, Limit(1))
    assert made.population.requirements == (
        Requirement(6, 900.0),
        Requirement(20, 900.0),
        Requirement(1, 855.0 / 4),
    )
    with pytest.raises(ConfigurationError, match="2 limits for 3 classes"):
        kit.histograms(table, noise_key=KEY, limit=[LIMIT, LIMIT])
    with pytest.raises(ConfigurationError, match="a column max_slots of the table"):
        kit.histograms(table, noise_key=KEY, mechanism="dpbd")


@pytest.mark.slow
def test_in_time_those_count_who_should(run_on, kit, known):
    slots = 40
    rows = [row for row in ROWS if row[2] < slots]
    made = transform(kit, first_slot=0, last_slot=slots - 1, shards=2)
    line = kit.timeline(made)
    for slot in range(slots):
        line.events(*(row for row in rows if row[2] == slot)).advance(slot + 1)
    ran = run_on("bundle_based", made, line, "--streaming")
    same(ran, expected(kit, known, made, rows, slots))


def test_a_state_is_for_as_many_shards(here, kit):
    _, state = max(here(transform(kit, first_slot=0, last_slot=3), within(kit, ROWS, 0, 3)).state)
    with pytest.raises(ConfigurationError, match="--shards=1, and this run has 2: use the"):
        transform(kit, first_slot=4, resume=state, shards=2)


@pytest.mark.parametrize(
    ("limit", "shards"),
    [(LIMIT, 2), pytest.param(Limit(2, 2, in_life=5), 1, marks=pytest.mark.slow)],
)
def test_a_stream_without_end_goes_on_from_a_state(run_on, here, kit, known, limit, shards):
    options = {"limit": limit, "shards": shards}
    before, last = 12, 17  # within a block of everybody
    made = transform(kit, first_slot=0, last_slot=before - 1, **options)
    first = here(made, within(kit, ROWS, 0, before - 1))
    _, state = max(first.state)
    made = transform(kit, first_slot=before, last_slot=last, resume=state, **options)
    line = kit.timeline(made, start=before)
    for slot in range(before, last + 1):
        line.events(*(row for row in ROWS if row[2] == slot)).advance(slot + 1)
    rest = run_on("bundle_based", made, line, "--streaming")
    whole = here(
        transform(kit, first_slot=0, last_slot=last, **options), within(kit, ROWS, 0, last)
    )
    kit.assert_same_releases([*first.releases, *rest.releases], whole.releases)


@pytest.mark.slow
def test_in_time_what_comes_late_was_never_there(run_on, kit, known):
    slots = 12
    rows = [row for row in ROWS if row[2] < slots]
    late = [row for row in rows if row[2] % 5 == 2]
    made = transform(kit, first_slot=0, last_slot=slots - 1)
    line = kit.timeline(made)
    for slot in range(slots):
        line.events(*(row for row in rows if row[2] == slot and row not in late)).advance(slot + 1)
        line.events(*(row for row in late if row[2] == slot))
    ran = run_on("bundle_based", made, line, "--streaming")
    in_time = [row for row in rows if row not in late]
    same(ran, expected(kit, known, made, in_time, slots))
    assert {letter["reason"] for letter in ran.dead_letters} == {"late"}


# ---- the steps by hand ------------------------------------------------------------------------


def given_key():
    return KEY


def config(**options):
    layout = Layout.choose(REGISTRY, 2, 1, timely=True)
    clock = SlotClock(Slots.of("1h"))
    return ParticipationLimits(
        registry=REGISTRY,
        layout=layout,
        limits=(LIMIT,) * 3,
        adjacency="add_remove",
        make_key=given_key,
        clock=clock,
        stream="s",
        **{"keeps": True, **options},
    )


def visits(made, slot, *users):
    """Message of one event of each of some members in bin 0."""
    codes = np.array(sorted(users), made.layout.dtype) * 2
    of_slot = Visits(slot, codes, np.ones(len(codes), np.int64))
    return made.layout.message(Kind.COUNTS, slot, (MEMBERS, 0), of_slot.to_bytes())


class Shard(Hosted):
    """The step in time with its state, driven by hand."""

    def __init__(self, made):
        super().__init__(CloseShards(made), (MEMBERS, 0))

    def take(self, message):
        self.fn.start_bundle()
        super().take(message)
        self.fn.finish_bundle()

    def fire(self):
        self.fn.start_bundle()
        outputs = super().fire()
        self.fn.finish_bundle()
        return [one.value[1] for one in outputs if getattr(one, "tag", None) is None]

    def run(self):
        fired = []
        while self.timer.time is not None:
            fired += self.fire()
        return fired


def test_slots_are_decided_in_order_whatever_order_they_come_in():
    made = config()
    in_order, mixed = Shard(made), Shard(made)
    fired = []
    for shard, order in ((in_order, range(12)), (mixed, [3, 1, 2, 0, 7, 4, 5, 6, 11, 10, 9, 8])):
        shard.take(Message(Kind.START, 0))
        found = []
        for slot in order:
            shard.take(visits(made, slot, *range(slot % 3, 6)))
            found += shard.run()
        fired.append(found)
    assert [one.slot for one in fired[0]] == list(range(12))
    assert fired[0] == fired[1]


class Shaken(Shard):
    """A shard whose bundles fail now and then at their end, and whose workers go and come."""

    def __init__(self, made, random):
        super().__init__(made)
        self.random = random

    def _fail_first(self, bundle, *given):
        if self.random.random() < 0.3:
            cells = "waiting", "changes", "progress", "state", "timer"
            before = {name: copy.deepcopy(getattr(self, name)) for name in cells}
            self.fn.finish_bundle = lambda: None
            bundle(*given)
            vars(self).update(before)
            del self.fn.finish_bundle
        if self.random.random() < 0.3:
            self.fn = pickle.loads(pickle.dumps(self.fn))
        return bundle(*given)

    def take(self, message):
        self._fail_first(super().take, message)

    def fire(self):
        return self._fail_first(super().fire)


@pytest.mark.parametrize("seed", range(5))
def test_a_shard_that_is_shaken_decides_as_one_that_is_not(seed):
    made, random = config(), np.random.default_rng(seed)
    messages = [visits(made, slot, *np.flatnonzero(random.random(24) < 0.6)) for slot in range(30)]
    calm, shaken = Shard(made), Shaken(config(), random)
    expected, found = [], []
    for message in [Message(Kind.START, 0), *messages]:
        calm.take(message)
        expected += calm.run()
    again = [messages[i] for i in random.integers(0, 30, 10)]
    order = random.permutation(30 + len(again))
    shaken.take(Message(Kind.START, 0))
    for message in ([*messages, *again][i] for i in order):
        shaken.take(message)
        found += shaken.run()
    assert found == expected


def test_nothing_is_decided_before_the_start_is_known():
    made = config()
    shard = Shard(made)
    shard.take(visits(made, 5, 1))
    assert shard.timer.time is None
    shard.take(Message(Kind.START, 5))
    assert [one.slot for one in shard.run()] == [5]
    shard.take(Message(Kind.START, 5))  # again: no harm
    with pytest.raises(ConfigurationError, match="start with slot 6, and it started with slot 5"):
        shard.take(Message(Kind.START, 6))


def test_a_part_that_comes_again_is_dropped_or_refused():
    made = config()
    shard = Shard(made)
    shard.take(Message(Kind.START, 0))
    for _ in range(2):
        shard.take(visits(made, 0, 1, 2))
    once = shard.run()
    assert len(once) == 1
    shard.take(visits(made, 0, 3))  # after it was decided
    assert shard.timer.time is None
    shard.take(visits(made, 1, 1))
    shard.take(visits(made, 1, 2))
    with pytest.raises(ConfigurationError, match="came twice with different content"):
        shard.fire()


def test_state_that_went_back_is_refused():
    made = config()
    shard = Shard(made)
    shard.take(Message(Kind.START, 0))
    shard.take(visits(made, 0, 1))
    shard.run()
    before = shard.state.value
    shard.take(visits(made, 1, 1))
    shard.run()
    shard.take(visits(made, 2, 1))
    shard.state.value = before  # somebody may count again
    with pytest.raises(StateWentBack, match="after slot 0 is read, and that after slot 1"):
        shard.fire()
    shard.state.value = (1, before[1][:-1] + b"?")
    with pytest.raises(ConfigurationError, match="wrong checksum"):
        shard.fire()


def test_a_timer_that_fires_again_decides_nothing():
    made = config()
    shard = Shard(made)
    shard.take(Message(Kind.START, 0))
    for slot in (0, 2):  # visits of slot 1 come later
        shard.take(visits(made, slot, 1))
    assert len(shard.fire()) == 1
    before = shard.state.value
    assert shard.fire() == []
    assert shard.state.value == before
    shard.take(visits(made, 1, 1))
    assert [one.slot for one in shard.run()] == [1, 2]


def test_a_shard_that_is_quiet_for_long_forgets_everybody():
    """As soon as their blocks are over, and without an event of anybody; then all count again."""
    made = config()
    shard = Shard(made)
    shard.take(Message(Kind.START, 0))
    sizes = []
    for slot in range(40):
        shard.take(visits(made, slot, *range(24) if slot in (0, 1, 39) else ()))
        messages = shard.run()
        sizes.append(len(shard.state.value[1]))
    assert sizes[38] == min(sizes) < sizes[1] - 24  # 12 slots are the longest block
    assert sizes[12:38] == [sizes[38]] * 26
    assert BlockCounts.of(messages[0]).events == 24


def test_what_waits_must_all_be_there():
    made = config()
    shard = Shard(made)
    shard.take(Message(Kind.START, 0))
    shard.take(visits(made, 0, 1))
    shard.take(visits(made, 1, 1))
    shard.waiting.bag.pop()
    with pytest.raises(StateWentBack, match="1 messages of visits wait where 2 came"):
        shard.fire()


def test_messages_and_events_add_up_at_the_end():
    made = config(last_slot=11)
    messages = [visits(made, slot, *range(6)) for slot in range(12)]
    outputs = list(AtEnd(partial(close_at_end, made)).process(((MEMBERS, 0), messages)))
    tallies = [one.value for one in outputs if getattr(one, "tag", None) == TALLIES]
    sent = [one[1] for one in outputs if getattr(one, "tag", None) is None]
    tally = EventTally.of_bytes(tallies[0])
    assert tally.counted + tally.beyond_limit == 72
    assert tally.messages == len(sent) - 12
    assert [one.kind for one in sent[:-1]] == [Kind.COUNTS] * (len(sent) - 1)
    assert sent[-1].kind is Kind.KEPT
    counts = [BlockCounts.of(one) for one in sent[:-1]]
    assert sum(one.events for one in counts) == tally.counted
    assert sum(int(one.beyond[1].sum()) for one in counts if one.beyond) == tally.beyond_limit


def test_where_nothing_goes_on_no_counters_are_sent():
    made = config(last_slot=11)
    messages = [visits(made, slot, *range(6)) for slot in range(12)]
    shard = ((MEMBERS, 0), messages)
    both = [
        list(AtEnd(partial(close_at_end, replace(made, keeps=keeps))).process(shard))
        for keeps in (True, False)
    ]
    tallies = [EventTally.of_bytes(outputs.pop().value) for outputs in both]
    assert both[1] == both[0][:-1]
    assert tallies[1].messages == tallies[0].messages - 1
    assert tallies[1].counted == tallies[0].counted


@pytest.fixture
def broken(monkeypatch):
    """A decision that lets everybody count once too often in a block."""
    add = Tally.add

    def one_less(*given):
        return np.maximum(add(*given) - 1, 0)

    monkeypatch.setattr(Tally, "add", one_less)


@pytest.mark.usefixtures("broken")
def test_a_decision_that_is_broken_fails_at_the_end():
    made = config(last_slot=11)
    messages = [visits(made, slot, *range(6)) for slot in range(12)]
    with pytest.raises(
        BudgetExceeded, match="more than 2 slots of a block, so nothing is released"
    ):
        list(AtEnd(partial(close_at_end, made)).process(((MEMBERS, 0), messages)))


@pytest.mark.usefixtures("broken")
def test_a_decision_that_is_broken_tells_nothing_in_time():
    made = config()
    shard = Shard(made)
    shard.take(Message(Kind.START, 0))
    for slot in range(12):
        shard.take(visits(made, slot, *range(6)))
    with pytest.raises(
        BudgetExceeded, match="more than 2 slots of a block, so nothing is released"
    ):
        shard.run()
    decided, _ = shard.state.value
    assert decided < 11  # of the slot that was refused, nothing is kept
    assert ShardProgress(*shard.progress.value[1]).next_slot == decided + 1


# ---- the last door ----------------------------------------------------------------------------


def test_the_last_door_refuses_what_is_too_dear():
    """It knows what is asked for and how presence is limited, not what a slot may cost."""
    asked = [Requirement(20, 8.0), Requirement(3, 3.0)]
    known = replace(terms((LIMIT, LIMIT), asked), aside=(0, 0))
    door = known.unspent()
    one = to_units(1.0)
    for _ in range(40):
        door.charge(np.array([one, one]))
    with pytest.raises(BudgetExceeded, match="remaining 1 in their dearest 8 slots"):
        door.charge(np.array([one + 1, one]))
    door.charge(np.array([0, one]))
    for _ in range(26):
        door.charge(np.array([0, 0]))
    door = known.decode(door.encode())
    assert door.in_window.tolist() == [2 * one, 0]  # within 20 + 9 slots
    with pytest.raises(BudgetExceeded):
        door.charge(np.array([7 * one + 1, 0]))
    door.charge(np.array([7 * one, 3 * one]))
