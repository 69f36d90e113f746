"""Releases under requirements that change: from events and changes to private histograms."""

import dataclasses
import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from streamveil.engine import metrics
from streamveil.mechanisms import (
    DYNAMIC_MECHANISMS,
    ConfigurationError,
    DynamicStream,
    NoiseSource,
    Registry,
    dynamic_mechanism,
)
from streamveil.mechanisms.core.cohorts import Moves
from streamveil.mechanisms.core.records import CHANGE_COLUMNS
from streamveil.mechanisms.driver.dynamic_stream import CohortCounts
from streamveil.mechanisms.protocol import Setting
from tests.transforms.stand_ins import WithChanges

pytestmark = pytest.mark.slow  # whole runs, pass after pass

KEY = bytes(range(50, 82))
USERS = [f"u{i}" for i in range(30)]
REGISTRY = Registry.of({user: (1 + i % 4, 0.5 + i % 2) for i, user in enumerate(USERS)})
LAST = 70
NAMES = pytest.mark.parametrize("name", list(DYNAMIC_MECHANISMS))
NOBODY = (None,) * 4


def change_batch(rows):
    """One batch of (user, slot, four figures)."""
    names = ("user", "slot", *CHANGE_COLUMNS[-4:])
    figures = [[row[0], row[1], *row[2]] for row in rows]
    return pa.RecordBatch.from_pylist([dict(zip(names, row, strict=True)) for row in figures])


CHANGES = [
    *((f"u{i}", 3, (4, 0.3, 4, 0.4)) for i in range(0, 12, 2)),
    *((f"x{i}", 5 + i % 2, (2, 1.0, 3, 1.0)) for i in range(4)),
    ("u7", 9, NOBODY),
    ("u7", 40, (1, 2.0, 2, 2.0)),
    ("x1", 30, NOBODY),
    *((f"u{i}", 10 + i, (1 + i % 4, 1.0 + i / 10, 4, 2.0)) for i in range(20)),
]


def events(seed=0):
    random = np.random.default_rng(seed)
    everybody = [*USERS, *(f"x{i}" for i in range(4))]
    return [
        (user, "ab"[int(random.random() < 0.3)], slot)
        for slot in range(LAST + 1)
        for user in everybody
        if random.random() < (0.9 if slot < 50 else 0.05)
    ]


@pytest.fixture
def made(kit):
    def made(**options):
        given = {"noise_key": KEY, "first_slot": 0, "last_slot": LAST, **options}
        return kit.histograms(given.pop("registry", REGISTRY), **given)

    return made


def ledger(ran):
    return [
        [getattr(entry, field.name) for field in dataclasses.fields(entry)] for entry in ran.ledger
    ]


def assert_same(kit, one, other):
    kit.assert_same_releases(one.releases, other.releases)
    for a, b in zip(ledger(one), ledger(other), strict=True):
        for mine, theirs in zip(a, b, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def letters_of(ran):
    """Dead letters, those for one slot and reason as one."""
    return sorted((letter["reason"], letter["record"]) for letter in ran.dead_letters)


# The same whatever the runner, the order and the batches, and whether the input ends.
@NAMES
def test_runners_orders_and_streams_agree(here, run_on, kit, made, name):
    rows = events()
    split = [change_batch(CHANGES[::-1][i::3]) for i in range(3)]
    whole = here(WithChanges(made(mechanism=name), change_batch(CHANGES)), [kit.batch(rows)])
    assert whole.slots == list(range(LAST + 1))
    assert {r.status for r in whole.releases} >= {"published"}
    assert {reason for reason, _ in letters_of(whole)} == {"no requirement"}
    batches = [kit.batch(rows[i::4]) for i in (2, 0, 3, 1)]
    other = run_on("bundle_based", WithChanges(made(mechanism=name), *split), batches)
    assert_same(kit, other, whole)
    assert letters_of(other) == letters_of(whole)
    transform = made(mechanism=name)
    line = kit.timeline(transform)
    for slot in range(0, LAST + 1, 5):
        line.events(*(row for row in rows if slot <= row[2] < slot + 5)).advance(slot + 5)
    stream = run_on("bundle_based", WithChanges(transform, *split), line, "--streaming")
    assert_same(kit, stream, whole)
    assert letters_of(stream) == letters_of(whole)


# Nothing of the way there matters: a stream of cohorts made by hand releases the same.
@NAMES
def test_a_pipeline_releases_what_a_stream_by_hand_does(run, kit, made, name):
    rows = [row for row in events() if row[0] in USERS]
    transform = made(mechanism=name)
    changes = [("u1", 4, (4, 0.3, 4, 0.4)), ("u5", 4, (4, 0.3, 4, 0.4))]
    ran = run(WithChanges(transform, change_batch(changes)), [kit.batch(rows)])
    asked = transform.population.requirements.as_changing
    stream = DynamicStream(
        dynamic_mechanism(name, Setting(2, 4)),
        asked,
        REGISTRY.sizes,
        NoiseSource(KEY, "histogram"),
        context=transform.context,
    )
    parent = int(REGISTRY.class_of[1])
    assert parent == REGISTRY.class_of[5]
    child = len(REGISTRY.classes)
    wish = [[4, int(0.3 * 2**40), 4, int(0.4 * 2**40)]]
    moves = Moves(np.array([parent]), np.array([child]), np.array([2]), np.array(wish))
    state = stream.start()
    for slot, release in enumerate(ran.releases):
        present = [row for row in rows if row[2] == slot]
        cohorts = [
            child if slot >= 4 and user in ("u1", "u5") else REGISTRY.class_of[USERS.index(user)]
            for user, _, _ in present
        ]
        bins = ["ab".index(value) for _, value, _ in present]
        counts = CohortCounts(*(np.array(a, np.int64) for a in (cohorts, bins, [1] * len(present))))
        state, mine = stream.release(state, slot, counts, moves if slot == 4 else Moves.none())
        assert (release.status, release.counts.tolist()) == (mine.status, mine.counts.tolist())


# With so much budget that nothing is sampled, everybody in force is counted and nobody else.
def test_those_in_force_are_counted(here, kit, made):
    much = (1, 4096.0, 1, 4096.0)
    registry = Registry.of(dict.fromkeys(USERS, (1, 4096.0)))
    changes = [("x0", 2, much), ("u3", 4, NOBODY), ("x0", 6, NOBODY), ("u3", 7, much)]
    rows = [(user, "a", slot) for slot in range(9) for user in (*USERS, "x0", "x1")]
    ran = here(
        WithChanges(made(registry=registry, mechanism="dpbd", last_slot=8), change_batch(changes)),
        [kit.batch(rows)],
    )
    expected = [30, 30, 31, 31, 30, 30, 29, 30, 30]
    # A slot that differs by less than its error repeats the one before.
    found = [release.counts[0] for release in ran.releases]
    assert np.abs(np.array(found) - expected).max() <= 1
    assert [entry.users.sum() for entry in ran.ledger] == expected
    homeless = Counter()
    for _, record in letters_of(ran):  # one of members, one of strangers
        homeless[json.loads(record)["slot"]] += json.loads(record)["events"]
    assert homeless == {slot: 32 - n for slot, n in enumerate(expected)}
    assert ran.counters["changes_accepted"] == 4
    assert ran.counters["rejected: no requirement"] == sum(32 - n for n in expected)


# A requirement that the past has broken is marked in the ledger, and costs nothing until it is met.
@NAMES
def test_a_broken_requirement_is_reported(here, kit, made, name):
    changes = [("u3", 8, (4, 1e-6, 4, 1.0))]
    ran = here(
        WithChanges(made(mechanism=name, last_slot=14), change_batch(changes)),
        [kit.batch([row for row in events() if row[2] <= 14])],
    )
    entries = [
        (entry.slot, entry.infeasible.sum(), entry.spent[entry.infeasible].sum())
        for entry in ran.ledger
    ]
    assert [slot for slot, infeasible, _ in entries if infeasible] == [8, 9, 10]
    assert all(spent == 0 for _, _, spent in entries)
    assert [r.diagnostics.get("infeasible") for r in ran.releases if r.slot == 8] in (
        [1.0],
        [None],
    )


# Without any change, the dynamic mechanisms run the table's requirements, and go on from a state.
@pytest.mark.parametrize("name", ["dpbd", "dpba"])
def test_dynamic_mechanisms_run_constant_requirements(here, kit, made, name):
    rows = [row for row in events() if row[0] in USERS]
    whole = here(made(mechanism=name), [kit.batch(rows)])
    assert whole.slots == list(range(LAST + 1))
    first = here(
        made(mechanism=name, last_slot=30), [kit.batch([row for row in rows if row[2] <= 30])]
    )
    ((following, state),) = first.state
    assert following == 31
    rest = here(
        made(mechanism=name, first_slot=31, resume=state),
        [kit.batch([row for row in rows if row[2] > 30])],
    )
    kit.assert_same_releases([*first.releases, *rest.releases], whole.releases)


# A stream without end goes on from who was in which cohort, and from changes that were to come.
def test_a_stream_goes_on_from_a_state_of_cohorts(here, run_on, kit, made, monkeypatch):
    changes = change_batch([*CHANGES, ("u5", 65, (4, 0.2, 4, 0.2))])
    rows, last = events(), 60
    whole = here(WithChanges(made(mechanism="dpbd"), changes), [kit.batch(rows)])
    earlier = made(mechanism="dpbd", last_slot=last, changing=True)
    first = here(WithChanges(earlier, changes), [kit.batch([r for r in rows if r[2] <= last])])
    _, state = max(first.state)
    # The runner's own counters lack what a step counts after its first bundle.
    counted = Counter()
    monkeypatch.setattr(metrics, "count", lambda name, n: counted.update({name: n}))
    for late in ([], [("u8", 50, (1, 9.0, 1, 9.0)), ("u9", 99, (1, 9.0, 1, 9.0))]):
        transform = made(mechanism="dpbd", first_slot=last + 1, resume=state)
        line = kit.timeline(transform, start=last + 1)
        for slot in range(last + 1, LAST + 1):
            line.events(*(row for row in rows if row[2] == slot)).advance(slot + 1)
        given = WithChanges(transform, change_batch(late)) if late else transform
        counted.clear()
        rest = run_on("bundle_based", given, line, "--streaming")
        assert counted[metrics.CHANGES_LATE] == len(late) // 2
        if not late:
            kit.assert_same_releases([*first.releases, *rest.releases], whole.releases)


def test_what_does_not_fit_is_refused(here, kit, made):
    batches = [kit.batch([("u1", "a", 0)])]
    with pytest.raises(ConfigurationError, match=r"'pba' is for requirements that never change"):
        here(WithChanges(made(mechanism="pba"), change_batch(CHANGES)), batches)
    with pytest.raises(ConfigurationError, match="dpbd has no option 'x'"):
        made(mechanism="dpbd:x=1")
    with pytest.raises(ConfigurationError, match="longest window allowed is 3"):
        made(mechanism="dpbd", longest_window=3)
