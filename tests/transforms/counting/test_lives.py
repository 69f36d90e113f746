"""Users count in so many slots of their lives: against the rule written out, on real runners."""

from collections import defaultdict

import numpy as np
import pytest

from streamveil.engine import metrics
from streamveil.mechanisms import ConfigurationError, Lifetime, Registry, Requirement
from streamveil.mechanisms.core.budgets import to_units
from streamveil.mechanisms.driver.life_stream import LifeStream
from streamveil.mechanisms.driver.present_stream import Presence
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.presence.limits import aside
from streamveil.mechanisms.randomness.noise import NoiseSource
from streamveil.mechanisms.registry import mechanism
from tests.mechanisms.presence.lives import beyond

KEY = bytes(range(32))
IN_LIFE, EVENTS, SLOTS, EPSILON = 3, 2, 40, 1500.0
REGISTRY = Registry.of(default=(Lifetime(EPSILON), 0))


def rows_of(seed=0):
    """Some users are there all the time, some twice in a slot, most rarely."""
    random = np.random.default_rng(seed)
    rows = []
    for number, user in enumerate(f"x{i}" for i in range(26)):
        for slot in np.flatnonzero(random.random(SLOTS) < (0.9, 0.3, 0.1)[number % 3]):
            rows += [(user, "ab"[random.integers(2)], int(slot))] * random.integers(1, 3)
    return [rows[i] for i in random.permutation(len(rows))]


ROWS = rows_of()


def transform(kit, limit=IN_LIFE, registry=REGISTRY, **options):
    return kit.histograms(
        registry,
        limit=Limit(None, in_life=limit),
        noise_key=KEY,
        max_contributions=EVENTS,
        **options,
    )


def within(kit, first=0, last=SLOTS, parts=1):
    some = [row for row in ROWS if first <= row[2] <= last]
    return [kit.batch(some[part::parts]) for part in range(parts)]


@pytest.fixture
def expected(kit):
    """What a stream makes of the rule written out."""
    lives, tables = defaultdict(list), np.zeros((SLOTS, 1, 2), np.int64)
    layers = np.zeros((SLOTS, 1, 4), np.int64)
    for user, value, slot in sorted(ROWS, key=lambda row: row[2]):
        if slot not in lives[user]:
            lives[user].append(slot)
        visit = len(lives[user]) - 1
        layer = visit // IN_LIFE
        if layer < 3 or visit == 3 * IN_LIFE:
            layers[slot, 0, layer] += 1
        if layer == 0:
            tables[slot, 0, "ab".index(value)] += 1
    made = transform(kit, first_slot=0, last_slot=SLOTS - 1)
    stream = LifeStream(
        mechanism(made.mechanism, made.population),
        NoiseSource(KEY, "histogram"),
        made.context,
        Presence(made.limits, made.registry.classes, made.adjacency),
    )
    state, releases = stream.start(), []
    for slot in range(SLOTS):
        state, release = stream.release(state, slot, tables[slot], beyond(layers[slot]))
        releases.append(release)
    return releases, int(tables.sum()), int(layers[..., 3].sum())


def same(ran, releases):
    assert [one.counts.tolist() for one in ran.releases] == [
        one.counts.tolist() for one in releases
    ]
    shares = [one.diagnostics["kept_share"] for one in ran.releases]
    assert shares == [one.diagnostics["kept_share"] for one in releases]


@pytest.mark.slow
@pytest.mark.parametrize(("shards", "parts"), [(1, 1), (3, 4)])
def test_everybody_counts_in_the_first_slots_of_a_life(
    run_on, kit, runner, expected, shards, parts
):
    made = transform(kit, first_slot=0, last_slot=SLOTS - 1, shards=shards)
    ran = run_on(runner, made, within(kit, parts=parts))
    releases, counted, beyond = expected
    same(ran, releases)
    assert ran.counters[metrics.EVENTS_COUNTED] == counted
    assert ran.counters[metrics.EVENTS_BEYOND_LIMIT] == len(ROWS) - counted > 0
    # So much budget tells it almost exactly.
    assert ran.releases[-1].diagnostics["events_beyond"] == pytest.approx(beyond, abs=4)


def test_the_ledger_tells_what_a_life_has_cost(here, kit):
    made = transform(kit, first_slot=0, last_slot=SLOTS - 1)
    ran = here(made, within(kit))
    price = (int(to_units(EPSILON)) - int(aside(EPSILON))) // IN_LIFE
    (asked,) = made.population.requirements
    assert (asked.window, int(to_units(asked.epsilon))) == (1, price)
    spent = [entry.spent[0] for entry in ran.ledger]
    for slot, entry in enumerate(ran.ledger):
        assert tuple(entry.classes) == (Lifetime(EPSILON),)
        assert entry.users.tolist() == [0]  # nobody knows who will come
        dearest = sum(sorted(spent[: slot + 1])[-IN_LIFE:])
        assert entry.spent_in_window[0] == pytest.approx(dearest + EPSILON / 20, abs=1e-9)
        assert entry.spent_in_window[0] <= EPSILON


@pytest.mark.parametrize("cuts", [(20,), pytest.param((4, 5, 31), marks=pytest.mark.slow)])
def test_pieces_of_a_stream_count_as_one_run_does(here, kit, expected, cuts):
    releases, state, first = [], None, 0
    for last in (*cuts, SLOTS - 1):
        made = transform(kit, first_slot=first, last_slot=last, resume=state, shards=2)
        ran = here(made, within(kit, first, last))
        next_slot, state = max(ran.state)
        assert next_slot == last + 1
        releases, first = [*releases, *ran.releases], next_slot
    assert [one.counts.tolist() for one in releases] == [one.counts.tolist() for one in expected[0]]


def test_who_used_up_a_life_never_counts_again(here, kit):
    """Nor after a long time without an event, nor where a run has none."""
    made = transform(kit, first_slot=0, last_slot=3)
    rows = [("x0", "a", slot) for slot in range(4)]
    state = max(here(made, [kit.batch(rows)]).state)[1]
    made = transform(kit, first_slot=4, last_slot=60, resume=state, may_be_empty=True)
    state = max(here(made, []).state)[1]
    made = transform(kit, first_slot=61, last_slot=61, resume=state)
    ran = here(made, [kit.batch([("x0", "a", 61), ("x1", "a", 61)])])
    assert ran.counters[metrics.EVENTS_COUNTED] == 1


@pytest.mark.slow
def test_in_time_those_count_who_should(run_on, kit, expected):
    slots = 24
    made = transform(kit, first_slot=0, last_slot=slots - 1, shards=2)
    line = kit.timeline(made)
    for slot in range(slots):
        line.events(*(row for row in ROWS if row[2] == slot)).advance(slot + 1)
    ran = run_on("bundle_based", made, line, "--streaming")
    same(ran, expected[0][:slots])


def test_lives_and_windows_are_two_streams(kit):
    registry = Registry.of({"u0": Requirement(7, 1.0)}, default=(Lifetime(1.0), 0))
    with pytest.raises(ConfigurationError, match="release them as two streams"):
        transform(kit, registry=registry)


def test_a_budget_of_lives_cannot_be_granted_again(kit):
    made = transform(kit, first_slot=0)
    with pytest.raises(ConfigurationError, match="each user has one, and uses it up"):
        made.restarted(b"")
