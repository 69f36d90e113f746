"""The local setting played through: what is released, and what crosses from edge to server."""

import json
from operator import attrgetter

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.pipeline import PipelineVisitor

from streamveil.engine.messages import Kind, Message
from streamveil.engine.stream.local_server import Transcript
from streamveil.mechanisms import Categories, ConfigurationError, Registry, Requirement, Slots
from streamveil.mechanisms.local.client.population import Devices
from streamveil.mechanisms.local.protocol import LocalRelease
from streamveil.mechanisms.randomness.noise import derived_key
from streamveil.transforms import CollectHistograms, Columns

KEY = bytes(range(50, 82))
N = 60
USERS = [f"u{i}" for i in range(N)]
REGISTRY = Registry.of({user: (2 + i % 3, 1.0 + i % 2) for i, user in enumerate(USERS)})
# So much budget that every report is the truth.
EXACT = Registry.of(dict.fromkeys(USERS, (1, 40.0)))
SLOTS = 6


def collecting(registry=REGISTRY, domain="ab", **options):
    options = {
        **{"noise_key": KEY, "mechanism": "plpa+", "first_slot": 0, "max_rejected": 1.0},
        **options,
    }
    slots, columns = Slots.of("1h"), Columns("user", ("value",), "time")
    return CollectHistograms(registry, Categories(tuple(domain)), slots, columns, **options)


def bounded(registry=REGISTRY, **options):
    return collecting(registry, last_slot=SLOTS - 1, **options)


def symbols(seed=0):
    """Symbol of each user in each slot, shape (T, n); 2 where there is no event."""
    return np.random.default_rng(seed).choice(3, size=(SLOTS, N), p=[0.6, 0.2, 0.2])


def rows(table, users=USERS):
    return [(users[u], "ab"[v], s) for (s, u), v in np.ndenumerate(table) if v < 2]


def played(transform, table):
    """The mechanism, its ledger and the devices without Beam: (asks, tallies, release) by slot."""
    stream = transform.setting.server()
    devices = Devices(stream.users, derived_key(KEY, "local devices"))
    state, found = stream.start(), []
    for slot, values in enumerate(table):
        asks, tallies = [], []
        state, answer = stream.begin(state, slot)
        while not isinstance(answer, LocalRelease):
            asks.append(answer)
            tallies.append(devices.report(answer, values))
            state, answer = stream.take(state, tallies[-1])
        found.append((asks, tallies, answer))
    return found


# ---- what is released ------------------------------------------------------------------------


def test_releases_are_those_of_the_mechanism_however_events_come(run_on, kit, usual_runner):
    table = symbols()
    expected = played(bounded(), table)
    assert {len(asks) for asks, _, _ in expected} == {1, 2}
    random = np.random.default_rng(1)
    events = [rows(table)[i] for i in random.permutation(len(rows(table)))]
    for runner, shards, parts in ((usual_runner, 1, 1), ("bundle_based", 3, 5)):
        batches = [kit.batch(events[i::parts]) for i in range(parts)]
        ran = run_on(runner, bounded(shards=shards), batches)
        assert ran.slots == list(range(SLOTS))
        for release, (_, _, local) in zip(ran.releases, expected, strict=True):
            np.testing.assert_array_equal(release.counts, np.rint(N * local.frequencies[:2]))
            np.testing.assert_array_equal(release.stderr, N * local.stderr[:2])
            assert (release.status, release.published_slot) == (local.status, local.published_slot)
            assert release.mechanism == "plpa+"
        assert ran.dead_letters == []
        assert sum(n for name, n in ran.counters.items() if name.startswith("slots_")) == SLOTS


def test_with_budget_enough_counts_are_true(here, kit):
    table = symbols(2)
    ran = here(bounded(EXACT, mechanism="plbu"), [kit.batch(rows(table))])
    truth = [[int((slot == b).sum()) for b in range(2)] for slot in table]
    assert [release.counts.tolist() for release in ran.releases] == truth


def test_the_ledger_has_the_most_that_a_slot_and_a_window_cost_anybody(run, kit):
    table = symbols(3)
    transform = bounded()
    ran = run(transform, [kit.batch(rows(table))])
    users = transform.setting.users
    spent = np.zeros((SLOTS, N), np.int64)
    for slot, (asks, _, _) in enumerate(played(transform, table)):
        for ask in asks:
            spent[slot, ask.users] += ask.epsilons[users.class_of[ask.users]]
    for entry in ran.ledger:
        assert entry.users.tolist() == REGISTRY.sizes.tolist()
        for k, requirement in enumerate(entry.classes):
            mine = spent[: entry.slot + 1, users.class_of == k]
            assert entry.spent[k] == mine[-1].max() / 2**40
            in_window = mine[-requirement.window :].sum(axis=0).max() / 2**40
            assert entry.spent_in_window[k] == in_window <= requirement.epsilon
    uses = [max(e.spent_in_window / [r.epsilon for r in e.classes]) for e in ran.ledger]
    assert ran.distributions["largest_window_use_ppm"].max == np.ceil(max(uses) * 1e6)


LAG = 2


def revised(ran):
    return [(r.slot, r.revised_slot, r.counts.tolist(), r.stderr.tolist()) for r in ran.revisions]


def pieces(run, kit, table, ends):
    """Revisions of the slots up to each of some ends, going on from state to state."""
    found, state, first = [], None, 0
    for last, ended in ends:
        asked = {"first_slot": first, "last_slot": last, "resume": state, "ends": ended}
        transform = collecting(mechanism="rotation", revise=LAG, **asked)
        ran = run(transform, [kit.batch([r for r in rows(table) if first <= r[2] <= last])])
        first, state = max(ran.state)
        found += revised(ran)
    return found


def test_every_slot_is_revised_once(here, kit):
    table = symbols(4)
    ran = here(bounded(mechanism="rotation", revise=LAG), [kit.batch(rows(table))])
    assert [slots for *slots, _, _ in revised(ran)] == [[s, min(s + LAG, 5)] for s in range(SLOTS)]
    plain = here(bounded(mechanism="rotation"), [kit.batch(rows(table))])
    kit.assert_same_releases(plain.releases, ran.releases)
    assert plain.revisions == []
    errors = zip(ran.releases[:-1], ran.revisions[:-1], strict=True)
    assert all((later.stderr < first.stderr).all() for first, later in errors)
    passes = [(0, False), (3, False), (SLOTS - 1, True)]
    assert pieces(here, kit, table, passes) == revised(ran)


# What was revised at an end is not revised again by a run that goes on after all.
def test_a_stream_that_goes_on_after_its_end_revises_nothing_twice(here, kit):
    found = pieces(here, kit, symbols(5), [(3, True), (SLOTS - 1, True)])
    assert [slots for *slots, _, _ in found] == [[0, 2], [1, 3], [2, 3], [3, 3], [4, 5], [5, 5]]


@pytest.mark.slow
@pytest.mark.parametrize("last", [None, SLOTS - 1])
def test_a_stream_in_time_revises_as_it_goes(run_on, kit, last):
    table = symbols(4)
    timeline = kit.timeline(collecting(mechanism="rotation", revise=LAG, last_slot=last))
    for slot in range(SLOTS):
        timeline.events(*(row for row in rows(table) if row[2] == slot)).advance(slot + 1)
    ran = run_on("bundle_based", timeline.transform, timeline, "--streaming")
    whole = run_on(
        "bundle_based",
        bounded(mechanism="rotation", revise=LAG, ends=last is not None),
        [kit.batch(rows(table))],
    )
    assert len(whole.revisions) == (SLOTS if last else SLOTS - LAG)
    assert revised(ran)[: len(whole.revisions)] == revised(whole)


def test_strangers_cannot_take_part(here, kit):
    table = symbols()
    ran = here(
        bounded(), [kit.batch([*rows(table), ("x", "a", 1), ("u1", "z", 1), ("u1", "a", 9)])]
    )
    alone = here(bounded(), [kit.batch(rows(table))])
    kit.assert_same_releases(ran.releases, alone.releases)
    reasons = {letter["reason"] for letter in ran.dead_letters}
    assert reasons == {"no requirement", "outside the domain", "outside the released slots"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"registry": Registry.of({"u": (1, 1.0)}, default=(Requirement(1, 1.0), 5))},
            "which users it",
        ),
        ({"mechanism": "pba"}, "'pba' is for requirements"),
        ({"registry": Registry.of({"u": (9, 1.0)})}, "window"),
        ({"shards": 0}, "shards"),
        ({"noise_key": b"short"}, "32"),
    ],
)
def test_what_cannot_work_is_refused(options, words):
    with pytest.raises(ConfigurationError, match=words):
        collecting(**options)


# ---- what crosses ----------------------------------------------------------------------------


class InputOf(PipelineVisitor):
    """Finds the transform of a step and checks that it has one input."""

    def __init__(self, label):
        self._label = label
        self.found = None

    def visit_transform(self, node):
        if f"/{self._label}/" in f"{node.full_label}/" and isinstance(node.transform, beam.ParDo):
            (self.found,) = node.inputs
            assert not node.side_inputs


class Tapped(beam.PTransform):
    """Gives what the server stage of a transform receives, in place of its ledger."""

    def __init__(self, transform):
        super().__init__()
        self._transform = transform

    def expand(self, batches):
        outputs = batches | "Tapped" >> self._transform
        finder = InputOf("Server")
        batches.pipeline.visit(finder)
        return outputs._replace(ledger=finder.found)


@pytest.fixture
def crossing(run, kit):
    """All elements that the server stage receives, in slot order, then that these are all."""

    def crossing(table, users=USERS, **options):
        registry = Registry.of({user: (2 + i % 3, 1.0 + i % 2) for i, user in enumerate(users)})
        ran = run(Tapped(bounded(registry, **options)), [kit.batch(rows(table, users))])
        assert ran.slots == list(range(SLOTS))
        ((stream, crossed),) = ran.ledger
        assert stream == "local histogram"
        return sorted(crossed, key=attrgetter("kind", "slot"))

    return crossing


def test_the_server_receives_tallies_of_reports_and_nothing_else(crossing):
    table = symbols()
    crossed = crossing(table)
    expected = played(bounded(), table)
    number = b"%d" % len(expected)  # of slots, which is public
    assert crossed.pop() == Message(Kind.WHOLE, payload=number)
    for slot, (message, (asks, tallies, _)) in enumerate(zip(crossed, expected, strict=True)):
        read = Transcript.from_bytes(message.payload)
        assert message[:3] == (Kind.COUNTS, slot, 0)
        # Not one byte but those of the tallies, whose size does not hang on the users.
        assert read.to_bytes() == message.payload
        for mine, theirs in zip(read.tallies, tallies, strict=True):
            np.testing.assert_array_equal(mine.supports, theirs.supports)
            np.testing.assert_array_equal(mine.reports, theirs.reports)
            assert mine.supports.shape == (len(REGISTRY.classes), 3)
        # Everybody who was asked reported, with an event or without.
        counted = sum(int(tally.reports.sum()) for tally in read.tallies)
        assert counted == sum(ask.users.size for ask in asks)


def test_who_is_not_asked_leaves_no_trace(crossing):
    table = symbols()
    before = crossing(table)
    first = played(bounded(), table)[0][0]
    idle = np.setdiff1d(np.arange(N), np.concatenate([ask.users for ask in first]))
    assert 0 < idle.size < N
    changed = table.copy()
    changed[0, idle] = (table[0, idle] + 1) % 3
    assert crossing(changed) == before
    # The values of those who are asked shape their reports.
    busy = np.setdiff1d(np.arange(N), idle)
    changed[0, busy] = (table[0, busy] + 1) % 3
    assert crossing(changed)[0] != before[0]


# Who is asked is drawn anew for another table; but for its digest, names shape nothing.
def test_names_of_users_do_not_cross(crossing, monkeypatch):
    table = symbols()
    assert crossing(table, [f"someone else {i}" for i in range(N)]) != crossing(table)
    monkeypatch.setattr(Registry, "fingerprint", "the same")
    assert crossing(table, [f"someone else {i}" for i in range(N)]) == crossing(table)


# ---- streams that never end --------------------------------------------------------------------


@pytest.fixture
def live(run_on):
    def live(timeline):
        return run_on("bundle_based", timeline.transform, timeline, "--streaming")

    return live


def test_slots_are_released_as_they_close(live, kit):
    transform = collecting(EXACT, mechanism="plbu", allowed_lateness="30m")
    line = kit.timeline(transform)
    line.events(("u1", "a", 2), ("u2", "b", 0), ("u3", "b", 1)).advance(1.4)
    line.events(("u4", "a", 0), ("u4", "b", 0), ("u9", "a", 1)).advance(1.6)
    line.events(("u5", "a", 0), ("u6", "b", 2)).advance(5.5)
    ran = live(line)
    assert ran.slots == [0, 1, 2, 3, 4, 5]
    counts = [release.counts.tolist() for release in ran.releases]
    assert counts[0] in ([1, 1], [0, 2])  # one of the two values of u4 counts
    assert counts[1:] == [[1, 1], [1, 1], [0, 0], [0, 0], [0, 0]]
    assert [json.loads(letter["record"]) for letter in ran.dead_letters] == [
        {"slot": 0, "events": 1}
    ]
    assert len(ran.ledger) == 6


def test_a_stream_releases_what_a_bounded_input_does(live, here, kit):
    table = symbols(4)
    expected = here(bounded(), [kit.batch(rows(table))])
    line = kit.timeline(bounded(shards=2))
    for slot in range(SLOTS):
        late = rows(table[[slot]])[::2]
        line.events(*[(u, v, slot) for u, v, _ in late]).advance(slot + 0.5)
        line.events(*[(u, v, slot) for u, v, _ in rows(table[[slot]])[1::2]]).advance(slot + 1)
    ran = live(line)
    kit.assert_same_releases(ran.releases, expected.releases)
    for mine, theirs in zip(ran.ledger, expected.ledger, strict=True):
        np.testing.assert_array_equal(mine.spent_in_window, theirs.spent_in_window)
