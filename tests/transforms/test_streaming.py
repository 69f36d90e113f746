"""Streams that never end: what is released when, and what becomes of every event.

Time moves by TestStream on the BundleBasedDirectRunner; `EXACT` asks for so much budget that
releases equal the counts.
"""

import json
from collections import Counter

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.transforms.periodicsequence import PeriodicImpulse
from apache_beam.transforms.window import FixedWindows
from apache_beam.utils.timestamp import Timestamp

from streamveil.engine import metrics
from streamveil.mechanisms import ConfigurationError, Registry, Requirement, Slots
from streamveil.mechanisms.core.records import PUBLISHED, Lifetime
from streamveil.mechanisms.registry import INFINITE_MECHANISMS
from streamveil.transforms import Heartbeat
from streamveil.transforms.slots import heartbeat

USERS = [f"u{i}" for i in range(40)]
REGISTRY = Registry.of({u: (1 + i % 3, 0.5 + i % 2) for i, u in enumerate(USERS)})
EXACT = Registry.of(dict.fromkeys(USERS, (1, 4096.0)))
HOUR = 3_600_000_000


class Noted(beam.PTransform):
    """Notes in a file what comes in and what goes out, in the order in which it happens."""

    def __init__(self, transform, path, collect):
        super().__init__()
        self.transform, self.path, self.collect = transform, path, collect

    def expand(self, batches):
        noted = batches | "Tell in" >> beam.Map(lambda batch: ("in", batch.num_rows))
        noted | "Note in" >> self.collect(self.path)
        outputs = batches | self.transform
        slots = outputs.results | "Tell out" >> beam.Map(lambda r: ("out", r.slot))
        slots | "Note out" >> self.collect(self.path)
        return outputs


@pytest.fixture
def live(run_on, kit, tmp_path, monkeypatch):
    """Run what happens; give what ran, the order of things, and all that was counted.

    The runner loses the metrics of all but a first bundle and of timers, so the calls are counted.
    """

    def live(timeline):
        counted = Counter()

        def note(name, amount):
            counted[name] += amount

        monkeypatch.setattr(metrics, "count", note)
        path = tmp_path / "ticks"
        path.unlink(missing_ok=True)
        transform = Noted(timeline.transform, path, kit.collect)
        ran = run_on("bundle_based", transform, timeline, "--streaming")
        order = [slot if kind == "out" else "in" for kind, slot in kit.collected(path)]
        return ran, order, counted

    return live


@pytest.fixture
def begin(kit):
    """Begin a timeline of a transform over hours, all of whose releases are exact."""

    def begin(registry=EXACT, start=0, **options):
        return kit.timeline(kit.histograms(registry, **options), start)

    return begin


def counts(ran):
    return [release.counts.tolist() for release in ran.releases]


def late(ran):
    """Slots and numbers of events of the dead letters, all of which are late."""
    assert {letter["reason"] for letter in ran.dead_letters} <= {"late"}
    return sorted(letter["record"] for letter in ran.dead_letters)


# ---- slots are released as time passes --------------------------------------------------------


def test_slots_are_released_as_the_watermark_passes_them(live, begin):
    line = begin().events(("u1", "a", 0), ("u2", "b", 1)).events(("u3", "a", 2))
    line.advance(1).events(("u4", "b", 1), ("u4", "b", 1)).advance(2.5)
    line.events(("u5", "a", 4)).advance(4).events(("u6", "a", 4))
    ran, order, counted = live(line)
    assert order == ["in", "in", 0, "in", 1, "in", 2, 3, "in", 4]
    assert counts(ran) == [[1, 0], [0, 2], [1, 0], [0, 0], [2, 0]]
    assert ran.dead_letters == []
    assert counted[metrics.EVENTS_READ] == 7
    assert counted[metrics.EVENTS_COUNTED] == 6
    assert counted[metrics.EVENTS_BOUNDED_AWAY] == 1
    assert counted[metrics.EVENTS_LATE] == 0
    assert counted[metrics.SLOTS_PREFIX + PUBLISHED] == 5


# Batches without events mark the time here.
EVENTS = {
    "nobody": [[], [], []],
    "early": [[("u1", "a", 0)], [], []],
    "late": [[], [("u1", "a", 0), ("u2", "b", 9)], []],
    "ahead": [[("u1", "a", 3)], [("u2", "b", 900)], [("u2", "b", 5), ("u3", "a", 4)]],
}


# The moment of a release, and which slots there are, must not tell that an event came.
@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"first_slot": -2}, {"last_slot": 4}], ids=str)
def test_events_do_not_change_what_is_released_when(live, begin, options):
    orders = []
    for one, two, three in EVENTS.values():
        line = begin(**options).events(*one).advance(3.5).events(*two).advance(5).events(*three)
        orders.append(live(line.advance(6.5))[1])
    before = [-2, -1] if options == {"first_slot": -2} else []
    last = options.get("last_slot", 6)
    expected = [*before, "in", 0, 1, 2, "in", 3, 4, "in", *range(5, last + 1)]
    assert orders == [expected] * len(EVENTS)


@pytest.mark.parametrize("rows", [[], [("u1", "a", 2)], [("u1", "a", 99)]], ids=str)
def test_a_given_range_is_released_exactly(live, begin, rows):
    ran, _, _ = live(begin(first_slot=1, last_slot=6).events(*rows).advance(3).advance(60))
    assert ran.slots == list(range(1, 7))
    counted = {r.slot for r in ran.releases if r.counts.any()}
    assert counted == ({2} if rows and rows[0][2] == 2 else set())


# ---- events out of order, twice, late ---------------------------------------------------------


def test_events_may_come_in_any_order_until_their_slot_closes(live, begin):
    line = begin().events(("u1", "a", 3), ("u2", "b", 1)).events(("u3", "a", 0)).advance(0.9)
    line.events(("u4", "b", 0), ("u4", "b", 2), ("u1", "b", 1)).advance(2.9)
    line.events(("u5", "a", 2)).advance(3)
    ran, _, counted = live(line)
    assert counts(ran) == [[1, 1], [0, 2], [1, 1], [1, 0]]
    assert counted[metrics.EVENTS_LATE] == 0


# What is delivered twice counts twice, up to the bound: that is all the harm that it can do.
@pytest.mark.slow
@pytest.mark.parametrize(("most", "expected"), [(1, [1, 0]), (2, [2, 0]), (5, [3, 0])])
def test_an_event_that_comes_again_counts_within_the_bound(live, begin, most, expected):
    line = begin(max_contributions=most).events(("u1", "a", 0), ("u1", "a", 0)).advance(0.5)
    ran, _, counted = live(line.events(("u1", "a", 0)).advance(1))
    assert counts(ran)[0] == expected
    assert counted[metrics.EVENTS_BOUNDED_AWAY] == 3 - expected[0]


# How late may be is up to the watermark, never to what else is in the slot.
@pytest.mark.slow
@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize(
    ("passed", "lateness", "counted_late"),
    [
        (0.999, 0, 0),
        (1, 0, 1),
        (1.001, 0, 1),
        (1, 10 * 60_000_000, 0),
        (1.16, "10m", 0),
        (1.17, "10m", 1),
        (24, "10m", 1),
        (1 + 24 * 400, "10m", 1),
        (1 + 24 * 399, "400d", 0),
    ],
)
def test_a_slot_closes_when_the_lateness_has_passed(
    live, begin, passed, lateness, counted_late, others
):
    line = begin(allowed_lateness=lateness, last_slot=2).events(*[("u2", "b", 0)] * others)
    line.advance(passed).events(("u1", "a", 0), ("u3", "a", 0)).advance(24 * 500)
    ran, _, counted = live(line)
    assert ran.slots == [0, 1, 2]
    assert counts(ran)[0] == [2 * (1 - counted_late), others]
    assert counted[metrics.EVENTS_LATE] == 2 * counted_late
    assert late(ran) == ['{"slot": 0, "events": 2}'] * counted_late


def test_the_lateness_delays_every_slot(live, begin):
    line = begin(allowed_lateness="90m").events().advance(2.4).events(("u1", "a", 1))
    ran, order, _ = live(line.advance(2.5).events().advance(3.5))
    assert order == ["in", "in", 0, "in", 1, 2, 3]
    assert counts(ran)[1] == [1, 0]


def test_late_events_among_others_are_reported_by_slot(live, begin):
    line = begin().events(("u1", "a", 0)).advance(4.5)
    line.events(("u2", "b", 0), ("u3", "a", 4), ("u3", "a", 2), ("u4", "b", 2)).advance(5)
    ran, _, counted = live(line)
    assert counts(ran) == [[1, 0], [0, 0], [0, 0], [0, 0], [1, 0], [0, 0]]
    assert late(ran) == ['{"slot": 0, "events": 1}', '{"slot": 2, "events": 2}']
    detail = "slot 0 was closed before these events came, or never opened"
    assert detail in {letter["detail"] for letter in ran.dead_letters}
    assert counted[metrics.EVENTS_LATE] == 3
    assert counted[metrics.EVENTS_READ] == 5 == 3 + counted[metrics.EVENTS_COUNTED]


# All of a late user's events are late: none is counted as dropped by contribution bounding.
def test_late_events_beyond_the_bound_are_late(live, begin):
    line = begin().events(("u1", "a", 0)).advance(2.5)
    _, _, counted = live(line.events(("u2", "b", 0), ("u2", "b", 0), ("u2", "a", 0)).advance(3))
    assert counted[metrics.EVENTS_LATE] == 3
    assert counted[metrics.EVENTS_BOUNDED_AWAY] == 0
    assert counted[metrics.EVENTS_READ] == 4 == 3 + counted[metrics.EVENTS_COUNTED]


# A late event whose own time is that of its coming is no less late.
def test_the_event_time_of_a_batch_does_not_matter(live, begin):
    line = begin().advance(1.5).events(("u1", "a", 1), at=0).events(("u2", "a", 0), at=1.5)
    ran, _, _ = live(line.advance(3).events(("u3", "a", 3), at=-50))
    assert counts(ran) == [[0, 0], [1, 0], [0, 0], [1, 0]]
    assert late(ran) == ['{"slot": 0, "events": 1}']


# Against brute force: who came in time is counted, whatever came when, and nobody else is.
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_random_arrivals_count_as_brute_force_says(live, begin, seed):
    random = np.random.default_rng(seed)
    line = begin(allowed_lateness="90m", shards=2)
    counted, missed, now = {slot: set() for slot in range(12)}, set(), 0.0
    while now < 11:
        rows = [
            (f"u{i}", "ab"[i % 2], max(int(now) + shift, 0))
            for i, shift in zip(random.integers(40, size=9), random.integers(-4, 3, 9), strict=True)
        ]
        for user, _, slot in rows:
            (counted[slot] if now < slot + 2.5 and slot < 12 else missed).add((user, slot))
        line.events(*rows)
        now = min(round(now + random.exponential(0.6), 3), 11)
        line.advance(now)
    ran, _, _ = live(line)
    users = {slot: [int(user[1:]) for user, _ in counted[slot]] for slot in counted}
    assert counts(ran) == [[sum(u % 2 == b for u in users[s]) for b in (0, 1)] for s in range(12)]
    slots = {json.loads(letter["record"])["slot"] for letter in ran.dead_letters}
    assert slots == {slot for _, slot in missed}
    assert min(slots) < 11


# ---- the watermark stalls and jumps -----------------------------------------------------------


def test_nothing_is_released_or_lost_while_the_watermark_stalls(live, begin):
    line = begin().events(("u1", "a", 0)).advance(1).heartbeat(30.5)
    for slot in (20, 3, 29, 1):
        line.events(("u2", "b", slot))
    ran, order, counted = live(line.watermark(30.5).advance(31))
    assert order == ["in", 0, *["in"] * 4, *range(1, 32)]
    assert counts(ran) == [
        [1, 0] if slot == 0 else [0, 1] if slot in (20, 3, 29, 1) else [0, 0] for slot in range(32)
    ]
    assert counted[metrics.EVENTS_LATE] == 0


# Events may run ahead of the heartbeat, which alone says which slots there are.
def test_nothing_is_released_while_the_heartbeat_stalls(live, begin):
    line = begin().events(("u1", "a", 0)).watermark(10).events(("u2", "b", 5), ("u2", "b", 0))
    ran, order, _ = live(line.heartbeat(10))
    assert order == ["in", "in", *range(11)]
    assert counts(ran)[0] == [1, 1]
    assert counts(ran)[5] == [0, 1]


def test_a_jump_releases_many_slots_in_order(live, begin):
    line = begin().events(*[("u1", "ab"[slot % 2], slot) for slot in range(0, 300, 7)])
    ran, order, _ = live(line.advance(300.5))
    assert order == ["in", *range(301)]
    expected = [[0, 0] if s % 7 else [[1, 0], [0, 1]][s % 2] for s in range(300)]
    assert counts(ran)[:300] == expected


# ---- one wrong time ---------------------------------------------------------------------------


# An event far in the future spends nothing and holds nothing up: it waits, and becomes a dead
# letter in the end.
def test_an_event_far_ahead_changes_nothing(live, begin):
    rows = [("u1", "a", 0), ("u2", "b", 2)]
    plain, order, _ = live(begin().events(*rows).advance(3))
    far = [("u3", "a", 10**6), ("u3", "a", 7), ("u4", "b", 7)]
    ran, same, counted = live(begin().events(*rows, *far).advance(3))
    assert (counts(ran), order) == (counts(plain), same)
    assert late(ran) == ['{"slot": 1000000, "events": 1}', '{"slot": 7, "events": 2}']
    assert counted[metrics.EVENTS_LATE] == 3


# It counts if its time comes, however long that takes.
def test_an_event_ahead_of_time_counts_in_its_slot(live, begin):
    ran, _, _ = live(
        begin().events(("u1", "a", 40)).advance(20).events(("u1", "b", 19)).advance(41)
    )
    assert {r.slot for r in ran.releases if r.counts.any()} == {40}
    assert late(ran) == ['{"slot": 19, "events": 1}']


# ---- where the stream starts and ends ---------------------------------------------------------


def test_without_a_start_the_stream_starts_with_the_heartbeat(live, begin):
    line = begin(start=5).events(("u1", "a", 4), ("u1", "a", 5), ("u2", "b", 8)).advance(7)
    ran, _, _ = live(line)
    assert ran.slots == [5, 6, 7]
    assert counts(ran)[0] == [1, 0]
    assert late(ran) == ['{"slot": 4, "events": 1}', '{"slot": 8, "events": 1}']


# The slots since then are released as they close, the first ones at once.
@pytest.mark.parametrize("first", [-3, 5, 7])
def test_a_start_slot_is_kept_whenever_the_heartbeat_begins(live, begin, first):
    rows = [("u1", "a", slot) for slot in (-4, -3, 4, 5, 6, 7)]
    ran, _, _ = live(begin(start=5, first_slot=first).events(*rows).advance(8))
    assert ran.slots == list(range(first, 9))
    reasons = Counter(letter["reason"] for letter in ran.dead_letters)
    assert reasons["outside the released slots"] == sum(slot < first for _, _, slot in rows)


def test_a_drain_releases_what_waits_and_stops(live, begin):
    line = begin().advance(2.5).events(("u1", "a", 2), ("u2", "b", 3))
    ran, order, _ = live(line)
    assert order == [0, 1, "in", 2]
    assert counts(ran)[2] == [1, 0]
    assert late(ran) == ['{"slot": 3, "events": 1}']


def test_a_stream_drained_before_any_heartbeat_releases_nothing(run, kit, live, begin):
    line = begin(first_slot=3).events(("u1", "a", 4))
    ran, _, _ = live(line)
    assert ran.slots == []
    assert late(ran) == ['{"slot": 4, "events": 1}']


# A heartbeat of another make: ticks that come twice, too late or not at all.
def test_the_heartbeat_may_come_twice_or_leave_slots_out(live, begin):
    line = begin().tick(0, 2).events(("u1", "a", 0), ("u2", "b", 1)).tick(2, 1, 0).advance(5)
    ran, order, _ = live(line.tick(3).events(("u3", "a", 3)).advance(5.5))
    assert order == ["in", 0, 1, 2, 3, 4, "in", 5]
    assert counts(ran)[:2] == [[1, 0], [0, 1]]
    assert late(ran) == ['{"slot": 3, "events": 1}']


# ---- the same as a bounded input --------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shards", "mechanism"), [(1, "pba"), (3, "pbd"), (2, "adaptive"), (2, "gated"), (1, "dpi")]
)
def test_the_same_events_give_the_same_releases_as_a_bounded_input(
    live, run, kit, shards, mechanism
):
    registry = Registry.of(
        {u: (1 + i % 3, 0.5 + i % 2) for i, u in enumerate(USERS)},
        default=(Requirement(2, 1.0), 9),
    )
    if mechanism in INFINITE_MECHANISMS:
        registry = Registry.of(default=(Lifetime(50.0), 0))
    people = [*USERS, *(f"x{i}" for i in range(9))]
    rows = [(u, "ab"[(i + s) % 2], s) for s in range(8) for i, u in enumerate(people[: 7 * s])]
    options = {"mechanism": mechanism, "shards": shards, "noise_key": bytes(range(32))}
    options |= {"first_slot": 0, "last_slot": 9}
    order = np.random.default_rng(3).permutation(len(rows))
    line = kit.timeline(kit.histograms(registry, allowed_lateness="4h", **options))
    for slot in range(11):
        mine = [rows[i] for i in order if slot <= rows[i][2] + i % 4 < slot + 1]
        line.advance(slot + 0.5).events(*mine)
    ran, _, counted = live(line.advance(30))
    bounded = run(kit.histograms(registry, **options), [kit.batch(rows)])
    kit.assert_same_releases(ran.releases, bounded.releases)
    assert counted[metrics.EVENTS_LATE] == 0
    for mine, theirs in zip(ran.ledger, bounded.ledger, strict=True):
        np.testing.assert_array_equal(mine.spent_in_window, theirs.spent_in_window)


# ---- where releases stand in event time -------------------------------------------------------


class Grouped(beam.PTransform):
    """Windows of an hour after the transform, which drop what comes behind the watermark."""

    def __init__(self, transform):
        super().__init__()
        self.transform = transform

    def expand(self, batches):
        outputs = batches | self.transform
        kept = (
            outputs.results
            | beam.WindowInto(FixedWindows(3600))
            | beam.Map(lambda release: ("all", release.slot))
            | beam.GroupByKey()
            | beam.Map(lambda of, at=beam.DoFn.TimestampParam: (list(of[1]), at.micros))
        )
        return outputs._replace(results=kept)


# This runner's watermark does not wait for timers as Beam's does, so time passes step by step.
def test_windows_after_the_transform_drop_no_release(run_on, kit):
    transform = kit.histograms(EXACT)
    line = kit.timeline(transform).events(("u1", "a", 0))
    for slot in range(1, 10):
        line.advance(slot)
    published = run_on("bundle_based", Grouped(transform), line, "--streaming").releases
    ends = [((slot + 2) * HOUR - 1) // 1000 for slot in range(9)]
    assert [(slots, end // 1000) for slots, end in published[:9]] == [
        ([slot], end) for slot, end in enumerate(ends)
    ]


# ---- real time --------------------------------------------------------------------------------


def now(slots):
    return slots.index(Timestamp.now().micros)


# On the other runner, whose event time is not to be trusted, but whose clock is.
def test_the_heartbeat_tells_every_slot_of_its_range(tmp_path, kit, new_pipeline):
    slots = Slots.of("100ms")
    first = now(slots) - 50
    pipeline = new_pipeline()
    ticks = pipeline | Heartbeat(slots, first, first + 59)
    ticks | kit.collect(tmp_path / "ticks")
    pipeline.run().wait_until_finish()
    assert kit.collected(tmp_path / "ticks") == list(range(first, first + 60))


@pytest.mark.slow
def test_the_heartbeat_starts_with_the_slot_of_the_launch(tmp_path, kit, new_pipeline):
    slots = Slots.of("250ms")
    before = now(slots)
    pipeline = new_pipeline()
    ticks = pipeline | Heartbeat(slots, None, before + 8)
    after = now(slots)
    ticks | kit.collect(tmp_path / "ticks")
    pipeline.run().wait_until_finish()
    first, *_ = found = kit.collected(tmp_path / "ticks")
    assert before <= first <= after
    assert found == list(range(first, before + 9))


class RealTime(beam.PTransform):
    """An unbounded source: one batch, again and again for a second."""

    def __init__(self, batch):
        super().__init__()
        self._batch = batch

    def expand(self, pipeline):
        start = Timestamp.now()
        batch = self._batch
        ticks = pipeline | PeriodicImpulse(start, start + 1, 0.5)
        return ticks | beam.Map(lambda _: batch).with_output_types(pa.RecordBatch)


@pytest.mark.slow
def test_without_events_the_default_heartbeat_releases_its_range(run, kit):
    slots = Slots.of("250ms")
    first = now(slots) - 3
    batch = pa.RecordBatch.from_pydict(
        {"user": ["u1"], "value": ["a"], "time": ["9999-12-31T00:00:00Z"]}
    )
    transform = kit.histograms(EXACT, slots=slots, first_slot=first, last_slot=first + 7)
    ran = run(transform, RealTime(batch))
    assert ran.slots == list(range(first, first + 8))
    assert {letter["reason"] for letter in ran.dead_letters} == {"ahead of time"}


def test_a_stream_without_a_start_says_from_when_on_events_count(caplog):
    slots = Slots.of("1d")
    beam.Pipeline() | Heartbeat(slots, now(slots))
    assert not caplog.records
    beam.Pipeline() | Heartbeat(slots)
    (record,) = (r for r in caplog.records if r.name == "streamveil")
    for words in ("the stream starts at 20", "from before are late", "--start"):
        assert words in record.getMessage()


# ---- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize("lateness", ["soon", "", -1, 1.5, "-1h", True, None, "36526d"])
def test_a_lateness_that_cannot_be_read_is_refused(kit, lateness):
    with pytest.raises(ConfigurationError, match=r"allowed_lateness is .* \(--allowed_lateness\)"):
        kit.histograms(EXACT, allowed_lateness=lateness)


def test_a_lateness_finer_than_beams_clock_is_refused(kit):
    with pytest.raises(ConfigurationError, match="give whole milliseconds"):
        kit.histograms(EXACT, allowed_lateness=1500)
    assert kit.histograms(EXACT, allowed_lateness="2s").allowed_lateness == 2_000_000


def test_a_start_too_long_ago_is_refused(kit, monkeypatch):
    monkeypatch.setattr(heartbeat, "MOST_SLOTS_BEHIND", 100)
    slots = Slots.of("1h")
    pipeline = beam.Pipeline()
    with pytest.raises(ConfigurationError, match=r"\(--start\), 101 slots ago, more than 100"):
        pipeline | "Far" >> Heartbeat(slots, now(slots) - 101)
    pipeline | "Near" >> Heartbeat(slots, now(slots) - 99)


def test_an_end_before_the_launch_is_refused_without_a_start(kit):
    slots = Slots.of("1d")
    pipeline = beam.Pipeline()
    with pytest.raises(ConfigurationError, match=r"\(--end\), before it starts .* --start"):
        pipeline | "Past" >> Heartbeat(slots, None, now(slots) - 1)
    pipeline | "Today" >> Heartbeat(slots, None, now(slots))
