"""Limits on presence that are chosen: by all shards together, once, and then they are fixed."""

import numpy as np
import pytest

from streamveil.engine import metrics
from streamveil.engine.count.chosen_limits import choice_message
from streamveil.engine.stream.by_presence import ByPresence
from streamveil.mechanisms.core.records import ConfigurationError, Lifetime, Requirement
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.presence.choice import Auto, Look
from streamveil.mechanisms.presence.limits import EVERY_SLOT

KEY = bytes(range(32))
SLOTS = 100
RARE = [f"r{i}" for i in range(30)]
OFTEN = [f"o{i}" for i in range(12)]
STRANGERS = [f"x{i}" for i in range(10)]
# One class is rarely there, one often; windows of the third are too short for any limit.
ASKED = {**dict.fromkeys(RARE, (48, 900.0)), **dict.fromkeys(OFTEN, (60, 900.0)), "b": (6, 600.0)}
REGISTRY = Registry.of(ASKED, default=(Requirement(48, 900.0), 10))


def rows_of(seed=0):
    random = np.random.default_rng(seed)
    rows = []
    for user in [*RARE, *STRANGERS, *OFTEN, "b"]:
        rate = 0.7 if user in OFTEN else 0.05
        for slot in np.flatnonzero(random.random(SLOTS) < rate):
            rows.append((user, "ab"[random.integers(2)], int(slot)))
    return [rows[i] for i in random.permutation(len(rows))]


ROWS = rows_of()


def transform(kit, limit=None, **options):
    options = {"first_slot": 0, "last_slot": SLOTS - 1, "noise_key": KEY, **options}
    return kit.histograms(REGISTRY, limit=limit or Auto(), **options)


def chosen_of(made, state):
    """The limits that a state is under."""
    ledgers = made.ledgers(made.layout(bounded=True)).make()
    assert isinstance(ledgers, ByPresence)
    return ledgers.gone_on(state).limits


def events(kit, rows, first=0, last=SLOTS - 1):
    return kit.batch([row for row in rows if first <= row[2] <= last])


def test_each_class_has_the_limit_that_it_should(here, kit):
    made = transform(kit)
    assert [look and look.requirement.window for look in made._looks] == [None, 48, 60]
    ran = here(made, [events(kit, ROWS)])
    _, state = max(ran.state)
    none, rare, often = chosen_of(made, state)
    assert none == EVERY_SLOT
    assert not rare.is_none
    assert often == Limit(EVERY_SLOT.max_slots, chosen=True)
    assert rare.chosen
    for k, asked in enumerate(REGISTRY.classes):
        spent = [entry.spent_in_window[k] for entry in ran.ledger]
        assert max(spent) <= asked.epsilon + 1e-9
        aside = (0, 0.09, 0.04)[k] * asked.epsilon
        assert spent[0] - ran.ledger[0].spent[k] == pytest.approx(aside)


@pytest.mark.parametrize("shards", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_shards_choose_as_one(here, kit, shards):
    whole = here(transform(kit, shards=shards), [events(kit, ROWS)])
    batches = [events(kit, ROWS[start::5]) for start in range(5)]
    parts = here(transform(kit, shards=shards), batches)
    kit.assert_same_releases(parts.releases, whole.releases)


@pytest.mark.slow
def test_who_counts_is_decided_by_what_was_chosen(here, kit):
    made = transform(kit)
    ran = here(made, [events(kit, ROWS)])
    chosen = chosen_of(made, max(ran.state)[1])
    given = here(transform(kit, chosen), [events(kit, ROWS)])
    beyond = [one.counters.get(metrics.EVENTS_BEYOND_LIMIT, 0) for one in (ran, given)]
    assert beyond[0] == beyond[1] > 0


def test_under_other_limits_the_same_counts_draw_other_noise(kit):
    made = transform(kit)
    ledgers = made.ledgers(made.layout(bounded=True)).make()
    limits = [(EVERY_SLOT, Limit(most, chosen=True), Limit(2)) for most in (2, 2, 3)]
    started = [ledgers.chosen(choice_message(one)).start() for one in limits]
    one, same, other = [state.stream.history for state in started]
    assert one == same != other


@pytest.mark.slow
def test_runners_choose_alike(run_on, kit):
    ran = [
        run_on(runner, transform(kit, shards=2), [events(kit, ROWS)])
        for runner in ("fn_api", "bundle_based")
    ]
    kit.assert_same_releases(ran[0].releases, ran[1].releases)


@pytest.mark.slow
def test_a_run_goes_on_under_the_limits_of_the_first(here, kit):
    releases, state, made = [], None, []
    for first, last in ((0, 69), (70, 79), (80, SLOTS - 1)):
        piece = transform(kit, first_slot=first, last_slot=last, resume=state)
        ran = here(piece, [events(kit, ROWS, first, last)])
        _, state = max(ran.state)
        releases += ran.releases
        made.append(chosen_of(transform(kit, last_slot=69), state))
    assert made[0] == made[1] == made[2]
    assert len(releases) == SLOTS
    with pytest.raises(ConfigurationError, match="the participation limit"):
        transform(kit, Limit(2), first_slot=SLOTS, last_slot=SLOTS + 9, resume=state)
    with pytest.raises(ConfigurationError, match="the participation limit"):
        transform(kit, Auto(blocks=3), first_slot=SLOTS, last_slot=SLOTS + 9, resume=state)


def test_where_nobody_comes_no_limit_is_chosen(here, kit):
    made = transform(kit, may_be_empty=True)
    _, state = max(here(made, [kit.batch([])]).state)
    assert all(one.is_none for one in chosen_of(made, state))


@pytest.mark.parametrize("good", [0, 40])
def test_where_the_input_is_lost_nobody_is_looked_at(here, kit, monkeypatch, good):
    asked = []
    monkeypatch.setattr(Look, "answer", lambda *given: asked.append(given))
    lost = [(user, "z", slot) for user, _, slot in ROWS[good:100]]
    found = f"Found: 100 read, {100 - good} rejected .*, {good} counted"
    with pytest.raises(Exception, match=found):
        here(transform(kit, max_rejected=0.5), [events(kit, ROWS[:good] + lost)])
    assert not asked


def test_a_stream_without_end_needs_given_limits(run, kit):
    made = transform(kit)
    line = kit.timeline(made)
    with pytest.raises(ConfigurationError, match=r"so the input must be bounded.*auto:0.05"):
        run(line.transform, line, "--streaming")
    rated = transform(kit, Auto(0.05))
    assert rated.limits == (EVERY_SLOT, *(Look(REGISTRY.classes[k]).expected(0.05) for k in (1, 2)))


@pytest.mark.parametrize("wrong", [2, True, "auto", (2, 2), [2], iter([Limit(2)])])
def test_what_is_no_limit_is_refused(kit, wrong):
    with pytest.raises(ConfigurationError, match=r"^limit is .*give Limit\(3\), Auto\(\), or"):
        transform(kit, wrong)


def test_of_a_life_nothing_is_chosen(kit):
    forever = Registry.of(default=(Lifetime(1.0), 0))
    for auto in (Auto(), Auto(0.1)):
        with pytest.raises(ConfigurationError, match=r"Limit\(None, in_life=5\)"):
            kit.histograms(forever, limit=auto, noise_key=KEY)


def test_a_range_without_a_window_is_refused(kit):
    with pytest.raises(ConfigurationError, match=r"40 slots .* than 48: begin with 48 .*--end"):
        transform(kit, last_slot=39).check_look()
    with pytest.raises(ConfigurationError, match="than 48: wait until 48 slots have closed"):
        transform(kit, last_slot=39, ends=False).check_look()
    for last in (None, SLOTS - 1):
        with pytest.raises(
            ConfigurationError, match=r"20 slots .* give --slots_per_pass=48 or more"
        ):
            transform(kit, last_slot=last).check_look(20)
    transform(kit).check_look(48)
    assert [look is not None for look in transform(kit, last_slot=49)._looks] == [0, 1, 0]
