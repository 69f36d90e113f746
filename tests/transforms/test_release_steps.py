"""The release stage: the releases of ReleaseStream, in slot order, each slot once.

`EXACT` asks for so much budget that releases equal the counts; the other registry is for comparing
with ReleaseStream driven without Beam.
"""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from streamveil.engine.stream import release_slots
from streamveil.mechanisms import Categories, Registry, Slots
from streamveil.mechanisms.core.budgets import to_epsilon
from streamveil.mechanisms.core.records import PUBLISHED, SKIPPED
from streamveil.mechanisms.registry import MECHANISMS
from streamveil.mechanisms.wevent.pwsm import PWSM
from streamveil.transforms import Columns
from streamveil.transforms.release_plan import PrivateHistograms

USERS = [f"u{i}" for i in range(40)]
REGISTRY = Registry.of({u: (1 + i % 3, 0.5 + i % 2) for i, u in enumerate(USERS)})
EXACT = Registry.of(dict.fromkeys(USERS, (1, 4096.0)))
HOUR = 3600  # seconds

# The stage works in blocks of 64 slots: negative ones, neighbours, both sides of a block's edge,
# a gap within a block and a gap of several blocks.
BUSY = [-70, -65, -64, -1, 0, 1, 2, 63, 64, 65, 260]
ROWS = [(u, "ab"[(i * slot) % 2], slot) for slot in BUSY for i, u in enumerate(USERS) if i % 5 != 1]


def assert_equals_direct(ran, expected):
    """Releases and ledger are those of ReleaseStream: (slot, release, spent in the window)."""
    assert [r.slot for r in ran.releases] == [slot for slot, _, _ in expected]
    for mine, entry, (slot, theirs, in_window) in zip(
        ran.releases, ran.ledger, expected, strict=True
    ):
        np.testing.assert_array_equal(mine.counts, theirs.counts)
        np.testing.assert_array_equal(mine.stderr, theirs.stderr)
        assert mine.status == theirs.status
        assert mine.published_slot == theirs.published_slot
        assert mine.epsilon == theirs.epsilon
        assert (mine.alarm, mine.diagnostics) == (theirs.alarm, theirs.diagnostics)
        assert entry.slot == slot
        np.testing.assert_array_equal(entry.spent, to_epsilon(theirs.spent))
        np.testing.assert_array_equal(entry.spent_in_window, to_epsilon(in_window))


# ---- equality with ReleaseStream ------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_releases_what_it_does_without_beam(run, kit, name):
    transform = kit.histograms(REGISTRY, mechanism=name, noise_key=bytes(range(32)))
    ran = run(transform, [kit.batch(ROWS[::2]), kit.batch(ROWS[1::2])])
    expected = kit.direct(kit.bounded_counts(ROWS, REGISTRY), range(-70, 261), transform)
    assert_equals_direct(ran, expected)
    assert {r.mechanism for r in ran.releases} == {name}


def test_quiet_slots_are_released_on_each_runner(run_on, kit, runner):
    transform = kit.histograms(REGISTRY)
    ran = run_on(runner, transform, [kit.batch(ROWS)])
    expected = kit.direct(kit.bounded_counts(ROWS, REGISTRY), range(-70, 261), transform)
    assert_equals_direct(ran, expected)
    # The stream is not trivial: all that can happen to a slot happens, also between the events.
    assert len({r.status for r in ran.releases}) == 3
    assert any(r.status == PUBLISHED and r.slot not in BUSY for r in ran.releases)


def test_release_tells_slot_bounds_classes_and_sizes(here, kit):
    slots = Slots.of("1h", "1970-01-01T00:15Z")
    ran = here(kit.histograms(REGISTRY, slots=slots), [kit.batch([("u1", "a", 3)])])
    (release,), (entry,) = ran.releases, ran.ledger
    assert (release.slot, release.start, release.end) == (2, slots.start(2), slots.end(2))
    assert entry.classes == REGISTRY.classes
    np.testing.assert_array_equal(entry.users, REGISTRY.sizes)


# With windows of one slot a publication refers to its own slot, a skip to an earlier one.
def test_status_and_published_slot(run_on, kit, runner):
    rows = [(u, "a", s) for u in USERS[:5] for s in (0, 1, 4)]
    ran = run_on(runner, kit.histograms(EXACT), [kit.batch(rows)])
    published = [(r.slot, r.status, r.published_slot, r.counts.tolist()) for r in ran.releases]
    assert published == [
        (0, PUBLISHED, 0, [5, 0]),
        (1, SKIPPED, 0, [5, 0]),
        (2, PUBLISHED, 2, [0, 0]),
        (3, SKIPPED, 2, [0, 0]),
        (4, PUBLISHED, 4, [5, 0]),
    ]


# Before the first publication nothing is repeated and no error is known.
def test_before_the_first_publication(here, kit):
    ran = here(kit.histograms(EXACT, first_slot=0, last_slot=1), [kit.batch([("u1", "a", 1)])])
    before, after = ran.releases
    assert (before.status, before.published_slot, before.epsilon) == (SKIPPED, None, 0)
    assert np.isnan(before.stderr).all()
    assert (after.status, after.published_slot) == (PUBLISHED, 1)
    assert (after.stderr >= 0).all()


# What a mechanism says of a slot reaches the release.
def test_alarm_and_diagnostics_pass_through(here, kit, monkeypatch):
    step = PWSM.step

    def telling(self, state, slot_input, noise):
        state, release = step(self, state, slot_input, noise)
        alarm = slot_input.slot == 1
        return state, replace(release, alarm=alarm, diagnostics={"slot": slot_input.slot / 2})

    monkeypatch.setattr(PWSM, "step", telling)
    ran = here(kit.histograms(EXACT, first_slot=0, last_slot=1), [kit.batch([("u1", "a", 1)])])
    assert [(r.alarm, r.diagnostics) for r in ran.releases] == [
        (False, {"slot": 0.0}),
        (True, {"slot": 0.5}),
    ]


# ---- which slots are released ---------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "last"),
    [(0, 0), (-3, 200), (63, 64), (-200, -130)],
)
@pytest.mark.parametrize("busy", ["empty", "middle", "outside"])
def test_a_given_range_is_released_exactly(here, kit, first, last, busy):
    middle = (first + last) // 2
    rows = {"empty": [], "middle": [("u1", "a", middle)], "outside": [("u1", "a", last + 1)]}[busy]
    ran = here(kit.histograms(EXACT, first_slot=first, last_slot=last), [kit.batch(rows)])
    assert ran.slots == list(range(first, last + 1))
    assert [entry.slot for entry in ran.ledger] == ran.slots
    counted = {r.slot for r in ran.releases if r.status == PUBLISHED and r.counts.any()}
    assert counted == ({middle} if busy == "middle" else set())
    assert [letter["reason"] for letter in ran.dead_letters] == (
        ["outside the released slots"] if busy == "outside" else []
    )


def test_a_given_range_without_any_batch(run_on, kit, runner):
    assert run_on(runner, kit.histograms(EXACT, first_slot=-1, last_slot=70), []).slots == list(
        range(-1, 71)
    )


# One end alone is taken as given, the other from the events.
def test_first_slot_alone(here, kit):
    ran = here(kit.histograms(EXACT, first_slot=-100), [kit.batch([("u1", "a", 3)])])
    assert ran.slots == list(range(-100, 4))


def test_last_slot_alone(here, kit):
    ran = here(kit.histograms(EXACT, last_slot=150), [kit.batch([("u1", "a", 3)])])
    assert ran.slots == list(range(3, 151))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "options"),
    [
        ([], {}),
        ([("eve", "a", 0), ("u1", "z", 0)], {}),
        ([], {"first_slot": 0}),
        ([], {"last_slot": 9}),
    ],
    ids=["nothing", "all rejected", "first slot alone", "last slot alone"],
)
def test_no_event_and_no_range_is_refused(run_on, kit, runner, rows, options):
    with pytest.raises(Exception, match="no event was accepted"):
        run_on(runner, kit.histograms(EXACT, **options), [kit.batch(rows)])


# A single wrong time must not make a million releases: as many quiet slots as allowed, or one more.
def test_a_gap_too_long_is_refused(here, kit, monkeypatch):
    assert release_slots.MOST_QUIET_SLOTS == 100_000
    monkeypatch.setattr(release_slots, "MOST_QUIET_SLOTS", 100)
    gap = [[("u1", "a", 0), ("u1", "a", last)] for last in (101, 102)]
    assert here(kit.histograms(EXACT), [kit.batch(gap[0])]).slots == list(range(102))
    with pytest.raises(Exception, match="quiet slots are a wrong time"):
        here(kit.histograms(EXACT), [kit.batch(gap[1])])
    # A given range says that so many are meant.
    ran = here(kit.histograms(EXACT, first_slot=0, last_slot=150), [kit.batch(gap[1])])
    assert ran.slots == list(range(151))


# Slots that do not divide the block, and an origin that is no multiple of a slot.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("length", "origin"),
    [("7m", "1970-01-01T00:00Z"), ("7m", "2024-02-29T13:07:11.123Z"), ("1d", "1969-07-20T20:17Z")],
)
def test_blocks_start_at_the_origin(here, length, origin):
    slots = Slots.of(length, origin)
    wanted = [-65, -64, -1, 0, 63, 64]
    edges = [t for s in wanted for t in (slots.start(s), slots.end(s) - 1)]
    made = pa.RecordBatch.from_pydict(
        {
            "user": [f"u{i % 2}" for i in range(12)],
            "value": ["a"] * 12,
            "time": pa.array(edges, pa.timestamp("us", "UTC")),
        }
    )
    columns = Columns("user", ("value",), "time")
    transform = PrivateHistograms(EXACT, Categories(("a",)), slots, columns, noise_key=bytes(32))
    ran = here(transform, [made])
    assert ran.slots == list(range(-65, 65))
    counted = {r.slot: int(r.counts[0]) for r in ran.releases}
    assert {slot: n for slot, n in counted.items() if n} == dict.fromkeys(wanted, 2)


# The first and the last slot of the calendar are in reach of Beam's timestamps and timers.
@pytest.mark.many
@pytest.mark.parametrize("year", [1, 9999])
def test_times_at_both_ends_of_the_calendar(run_on, kit, runner, year):
    day = {1: "0001-01-01T00:00:00Z", 9999: "9999-12-31T23:59:58Z"}[year]
    made = pa.RecordBatch.from_pydict({"user": ["u1"], "value": ["a"], "time": [day]})
    ran = run_on(runner, kit.histograms(EXACT), [made])
    assert [r.counts.tolist() for r in ran.releases] == [[1, 0]]
