"""The whole transform: the same releases whatever the runner and the order; options; metrics."""

import logging

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.transforms import trigger, window

from streamveil.engine import metrics
from streamveil.engine.count import unprotected
from streamveil.engine.count.unprotected import exact_counts
from streamveil.mechanisms import (
    Categories,
    ConfigurationError,
    Edges,
    Grid,
    Registry,
    Requirement,
    Slots,
)
from streamveil.mechanisms.accounting.window_filter import BudgetExceeded
from streamveil.mechanisms.core.records import NULLIFIED, PUBLISHED, SKIPPED
from streamveil.mechanisms.driver.saved_state import of_parts
from streamveil.mechanisms.randomness.noise import derived_key
from streamveil.mechanisms.wevent.pba import PBA, AbsorptionState
from streamveil.transforms import ADD_REMOVE, REPLACE, Columns
from streamveil.transforms.release_plan import PrivateHistograms

KEY = bytes(range(100, 132))
USERS = [f"u{i}" for i in range(30)]
TABLE = {user: (1 + i % 3, 0.5 + i % 2) for i, user in enumerate(USERS)}
CLOSED = Registry.of(TABLE)
OPEN = Registry.of(TABLE, default=(Requirement(2, 1.0), 20))
EXACT = Registry.of(dict.fromkeys(USERS, (1, 4096.0)))
SLOTS = 6


def crowd(seed=0):
    """Events of members and strangers, many in one slot by one user, and some to be rejected."""
    generator = np.random.default_rng(seed)
    users = [*USERS, *(f"x{i}" for i in range(8)), "", None]
    return [
        (users[u], "abz"[v], int(s))
        for u, v, s in zip(
            generator.integers(len(users), size=900),
            generator.choice(3, size=900, p=[0.7, 0.25, 0.05]),
            generator.integers(SLOTS, size=900),
            strict=True,
        )
    ]


@pytest.fixture(scope="module")
def rows():
    return crowd()


def split(rows, batches, seed):
    """The rows in another order, in so many batches."""
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(rows))
    return [[rows[i] for i in part] for part in np.array_split(order, batches)]


def letters(ran):
    return sorted((letter["reason"], letter["record"]) for letter in ran.dead_letters)


# ---- one input, one output ------------------------------------------------------------------


# Members and strangers, more events than count, rejected ones: nothing of how they come matters.
@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 2])
def test_releases_do_not_depend_on_how_events_come(run_on, kit, rows, usual_runner, most):
    def go(batches, runner, shards, seed):
        transform = kit.histograms(OPEN, noise_key=KEY, max_contributions=most, shards=shards)
        made = [kit.batch(part) for part in split(rows, batches, seed)]
        return run_on(runner, transform, made)

    first = go(1, usual_runner, 1, 0)
    assert first.slots == list(range(SLOTS))
    others = [("bundle_based", 3, 1, 2), ("bundle_based", 40, 4, 3), (usual_runner, 5, 4, 1)]
    for runner, batches, shards, seed in others:
        other = go(batches, runner, shards, seed)
        kit.assert_same_releases(first.releases, other.releases)
        for mine, theirs in zip(first.ledger, other.ledger, strict=True):
            assert mine.slot == theirs.slot
            np.testing.assert_array_equal(mine.spent, theirs.spent)
            np.testing.assert_array_equal(mine.spent_in_window, theirs.spent_in_window)
        assert letters(first) == letters(other)


def test_another_key_gives_other_releases(here, kit, rows):
    runs = [
        here(kit.histograms(CLOSED, noise_key=key, mechanism="bd"), [kit.batch(rows)])
        for key in (KEY, bytes(32), None, None)
    ]
    counts = [tuple(r.counts.tobytes() for r in ran.releases) for ran in runs]
    assert len(set(counts)) == 4


# One key on two streams whose counts happen to be equal gives no equal noise: that would tell
# that the counts are equal.
BOUND = {
    "bins": {"domain": "cb"},
    "edges": {"domain": Edges((0, 1, 2))},
    "grid": {"domain": Grid(0, 0, 2, 1, 2, 1)},
    "slot length": {"slots": Slots.of("30m")},
    "origin": {"slots": Slots.of("1h", "1970-01-01T00:30")},
    "column": {"columns": Columns("user", ("place",), "time")},
    "time zone": {"columns": Columns("user", ("value",), "time", "Europe/Berlin")},
    "adjacency": {"adjacency": REPLACE},
    "contributions": {"max_contributions": 2},
    "classes": {"registry": Registry.of({**TABLE, "u0": TABLE["u1"], "u1": TABLE["u0"]})},
}


def configured(kit, change):
    options = {"registry": CLOSED, **change}
    if isinstance(options.get("domain"), Edges | Grid):
        value = ("x", "y") if isinstance(options["domain"], Grid) else ("value",)
        return PrivateHistograms(
            CLOSED, options["domain"], Slots.of("1h"), Columns("user", value, "time")
        )
    return kit.histograms(options.pop("registry"), noise_key=KEY, **options)


def test_noise_is_bound_to_all_that_counts_mean(kit):
    contexts = {name: of_parts(configured(kit, change).context) for name, change in BOUND.items()}
    contexts["as it is"] = of_parts(configured(kit, {}).context)
    assert len(set(contexts.values())) == len(contexts)
    # How the work is split, and how far the range goes, changes no release.
    for change in ({}, {"shards": 4}, {"first_slot": 0, "last_slot": 9}):
        assert of_parts(configured(kit, change).context) == contexts["as it is"]


def test_equal_counts_of_other_bins_get_other_noise(here, kit, monkeypatch):
    monkeypatch.setattr(
        "streamveil.mechanisms.wevent.pwsm.dissimilarity", lambda *args: float("inf")
    )
    events = [kit.batch([(user, "b", slot) for user in USERS for slot in range(SLOTS)])]
    one, two = (
        here(kit.histograms(CLOSED, noise_key=KEY, mechanism="bd", domain=domain), events).releases
        for domain in ("ab", "cb")
    )
    assert [(r.slot, r.status, r.epsilon) for r in one] == [
        (r.slot, r.status, r.epsilon) for r in two
    ]
    assert any((a.counts != b.counts).any() for a, b in zip(one, two, strict=True))


# A key may come from a callable, which the worker asks; it is the same key then.
def test_key_from_a_callable(run, kit, rows):
    given, asked = (
        run(kit.histograms(CLOSED, noise_key=key), [kit.batch(rows)]) for key in (KEY, ask_for_key)
    )
    kit.assert_same_releases(given.releases, asked.releases)


def ask_for_key():
    return KEY


def test_short_key_from_a_callable_is_refused_at_construction(kit):
    with pytest.raises(ConfigurationError, match="noise key has 5 bytes"):
        kit.histograms(CLOSED, noise_key=lambda: b"short")


# A worker whose key is not that of the launch fails before anything is released.
def test_a_key_that_changed_after_the_launch_fails_before_any_release(
    run_on, kit, rows, runner, tmp_path
):
    path = tmp_path / "key"
    path.write_bytes(KEY)
    transform = kit.histograms(CLOSED, noise_key=path.read_bytes)
    path.write_bytes(bytes(32))
    with pytest.raises(Exception, match="not the one that the launch got") as raised:
        run_on(runner, transform, [kit.batch(rows)])
    assert "ConfigurationError" in repr(raised.value) + str(raised.value)
    assert kit.collected(tmp_path / "run0" / "results") == []


# What the strangers' digests are keyed with is not what the noise is keyed with.
def test_stranger_key_is_derived():
    assert derived_key(KEY, "strangers") != KEY


# ---- users outside the registry -------------------------------------------------------------


def test_strangers_count_only_with_a_default_requirement(run_on, kit, runner):
    events = [("u1", "a", 0), ("x", "a", 0), ("y", "b", 0)]
    some = {"u1": (1, 4096.0)}
    closed = run_on(runner, kit.histograms(Registry.of(some)), [kit.batch(events)])
    assert [r.counts.tolist() for r in closed.releases] == [[1, 0]]
    assert [letter["reason"] for letter in closed.dead_letters] == ["no requirement"] * 2
    registry = Registry.of(some, default=(Requirement(1, 4096.0), 5))
    opened = run_on(runner, kit.histograms(registry), [kit.batch(events)])
    assert [r.counts.tolist() for r in opened.releases] == [[2, 1]]
    assert opened.dead_letters == []


def test_registry_of_nobody_but_a_default(here, kit):
    registry = Registry.of(default=(Requirement(1, 4096.0), 5))
    ran = here(kit.histograms(registry), [kit.batch([("x", "b", 0), ("x", "b", 0)])])
    assert [r.counts.tolist() for r in ran.releases] == [[0, 1]]


# What a release is compared with must be what it hides, also where bounding chose.
@pytest.mark.parametrize("most", [1, 2])
def test_exact_counts_are_those_that_are_released(here, kit, most):
    registry = Registry.of({"u0": (1, 4096.0)}, default=(Requirement(1, 4096.0), 99))
    users = ["u0", *(f"x{i}" for i in range(60))]
    events = [(u, bin_, s) for u in users for bin_ in "abc" for s in (0, 2)]
    transform = kit.histograms(registry, domain="abc", max_contributions=most)
    ran = here(transform, [kit.batch(events)])
    batches = [kit.batch(events[::2]), kit.batch([*events[1::2], (None, "a", 1)])]
    counts, every = exact_counts(transform, batches, range(3))
    assert [r.counts.tolist() for r in ran.releases] == counts.tolist()
    assert counts.sum(axis=1).tolist() == [61 * most, 0, 61 * most]
    # Every event in a bin, beyond the bound or of nobody.
    assert every.tolist() == [[61, 61, 61], [1, 0, 0], [61, 61, 61]]


# Batches are joined before they are counted: how many at a time must not show.
@pytest.mark.parametrize("together", [1, 100, 1 << 18])
def test_counts_by_class_do_not_depend_on_the_batches(kit, monkeypatch, together):
    monkeypatch.setattr(unprotected, "_EVENTS_TOGETHER", together)
    registry = Registry.of({"ann": (1, 1.0), "bob": (3, 1.0)}, default=(Requirement(2, 1.0), 9))
    events = [("ann", "a", 70), ("bob", "b", 0), ("x", "b", 0), ("ann", "a", 70), ("y", "b", 0)]
    transform = kit.histograms(registry)
    letters, beyond = [], unprotected.Beyond()
    batches = [kit.batch([event]) for event in [*events, ("bob", "q", 0)]]
    slots = list(unprotected.exact(transform, batches, letters.append, beyond))
    found = {one.slot: one.counts.tolist() for one in slots if one.counts.any()}
    # Classes by window: Ann's, Bob's, then that of everybody else.
    assert found == {0: [[0, 0], [0, 1], [0, 2]], 70: [[1, 0], [0, 0], [0, 0]]}
    every = {one.slot: one.events.tolist() for one in slots if one.events.any()}
    assert every == {0: [0, 3], 70: [2, 0]}
    assert beyond == unprotected.Beyond(accepted=5, dropped=1, squares={1: 1.0})
    assert [batch.column("reason").to_pylist() for batch in letters] == [["outside the domain"]]


# ---- metrics --------------------------------------------------------------------------------


def test_counters_tell_what_became_of_every_event(run_on, kit, runner):
    events = [
        *[("u1", "a", 0)] * 3,
        ("u2", "a", 1),
        ("u2", "b", 1),
        ("eve", "a", 0),
        ("eve", "b", 0),
        (None, "a", 0),
        ("u1", "z", 0),
        ("u1", "a", 7),
    ]
    batches = [kit.batch(events[:2]), kit.batch(events[2:])]
    ran = run_on(runner, kit.histograms(EXACT, first_slot=0, last_slot=3), batches)
    expected = {
        metrics.EVENTS_READ: 10,
        metrics.EVENTS_COUNTED: 2,
        metrics.EVENTS_BOUNDED_AWAY: 3,
        "rejected: no requirement": 2,
        "rejected: null user": 1,
        "rejected: outside the domain": 1,
        "rejected: outside the released slots": 1,
    }
    statuses = [r.status for r in ran.releases]
    for status in (PUBLISHED, SKIPPED, NULLIFIED):
        if status in statuses:
            expected[metrics.SLOTS_PREFIX + status] = statuses.count(status)
    assert ran.counters == expected
    assert sum(r.counts.sum() for r in ran.releases if r.status == PUBLISHED) == 2


def test_window_use_is_that_of_the_ledger_and_never_above_all(run, kit, rows):
    ran = run(kit.histograms(CLOSED, noise_key=KEY), [kit.batch(rows)])
    use = ran.distributions[metrics.WINDOW_USE]
    assert use.count == len(ran.ledger) == SLOTS
    caps = np.array([requirement.epsilon for requirement in CLOSED.classes])
    largest = [float((entry.spent_in_window / caps).max()) for entry in ran.ledger]
    assert use.max == int(np.ceil(max(largest) * 1e6))
    assert use.max <= 1_000_000
    assert (np.array([entry.spent_in_window for entry in ran.ledger]) <= caps).all()


# ---- sensitivity ----------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 3])
@pytest.mark.parametrize("adjacency", [ADD_REMOVE, REPLACE])
def test_sensitivity_is_contributions_times_adjacency(kit, most, adjacency):
    transform = kit.histograms(CLOSED, max_contributions=most, adjacency=adjacency)
    assert transform.population.sensitivity == most * (2 if adjacency == REPLACE else 1)


# One class, all published whole: the error of a release is that of its noise, and the noise of
# sensitivity s at epsilon is the noise of sensitivity 1 at epsilon / s.
def test_noise_grows_with_the_sensitivity(here, kit, monkeypatch):
    always = "streamveil.mechanisms.wevent.pwsm.dissimilarity"
    monkeypatch.setattr(always, lambda *args: float("inf"))
    registry = Registry.of(dict.fromkeys(USERS, (1, 1.0)))
    events = [(user, "a", 0) for user in USERS]

    def stderr(**options):
        ran = here(kit.histograms(registry, noise_key=KEY, **options), [kit.batch(events)])
        (release,) = ran.releases
        assert release.status == PUBLISHED
        assert release.epsilon == pytest.approx(0.5)
        return release.stderr[0]

    plain = stderr()
    for options, sensitivity in (
        ({"adjacency": REPLACE}, 2),
        ({"max_contributions": 3}, 3),
        ({"max_contributions": 3, "adjacency": REPLACE}, 6),
    ):
        q, grown = np.exp(-0.5 / sensitivity), stderr(**options)
        # Standard deviation of discrete Laplace noise: sqrt(2 q) / (1 - q).
        assert grown == pytest.approx(np.sqrt(2 * q) / (1 - q), rel=0.05)
        assert grown == pytest.approx(plain * sensitivity, rel=0.1)


# ---- what is refused when the pipeline is built -----------------------------------------------


REFUSED = [
    ({"max_contributions": 0}, "max_contributions is 0: give a whole number, 1 or more"),
    ({"max_contributions": 1.5}, "max_contributions is 1.5"),
    ({"max_contributions": 2.0}, "max_contributions is 2.0"),
    ({"max_contributions": True}, "max_contributions is True"),
    ({"max_contributions": "2"}, "max_contributions is '2'"),
    ({"max_contributions": None}, "max_contributions is None"),
    ({"adjacency": "swap"}, "adjacency 'swap' is unknown"),
    ({"shards": 0}, "shards is 0"),
    ({"shards": 1.5}, "shards is 1.5"),
    ({"first_slot": 3, "last_slot": 2}, "range of slots is empty: it starts at 1970-01-01T03"),
    ({"mechanism": "laplace"}, "mechanism 'laplace' is unknown"),
    ({"noise_key": b"short"}, "noise key has 5 bytes"),
    ({"columns": Columns("user", ("x", "y"), "time")}, "values of one column are counted"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_bad_options_are_refused_at_construction(kit, options, message):
    with pytest.raises(ConfigurationError, match=message) as raised:
        kit.histograms(CLOSED, **options)
    assert "short" not in str(raised.value)


# What is enough for one contribution is not for two.
def test_a_budget_too_small_for_the_sensitivity_is_refused(kit):
    registry = Registry.of({**TABLE, "shy": (8, 2.0**-36)})
    assert kit.histograms(registry).population.sensitivity == 1
    for options in ({"max_contributions": 2}, {"adjacency": REPLACE}):
        with pytest.raises(ConfigurationError, match=r"window=8, .* at sensitivity 2"):
            kit.histograms(registry, **options)


def test_whole_numbers_of_any_kind_are_plain_ones(kit):
    transform = kit.histograms(CLOSED, max_contributions=np.int32(2), shards=np.int64(3))
    assert (type(transform.max_contributions), type(transform.shards)) == (int, int)


def test_grid_with_one_column_is_refused_at_construction():
    columns = Columns("user", ("x",), "time")
    with pytest.raises(ConfigurationError, match=r"a grid reads two columns \(given: x\)"):
        PrivateHistograms(CLOSED, Grid(0, 0, 1, 1, 2, 2), Slots.of("1h"), columns)


WINDOWS = {
    "fixed": beam.WindowInto(window.FixedWindows(3600)),
    "sliding": beam.WindowInto(window.SlidingWindows(3600, 60)),
    "sessions": beam.WindowInto(window.Sessions(60)),
    "triggered": beam.WindowInto(
        window.GlobalWindows(),
        trigger=trigger.Repeatedly(trigger.AfterCount(1)),
        accumulation_mode=trigger.AccumulationMode.DISCARDING,
    ),
    "accumulating": beam.WindowInto(
        window.GlobalWindows(),
        trigger=trigger.DefaultTrigger(),
        accumulation_mode=trigger.AccumulationMode.ACCUMULATING,
    ),
}


@pytest.mark.parametrize("windows", WINDOWS.values(), ids=WINDOWS)
def test_windowed_or_triggered_input_is_refused_at_construction(kit, windows):
    pipeline = beam.Pipeline()
    events = pipeline | beam.Create([kit.batch([("u1", "a", 0)])]) | windows
    with pytest.raises(ValueError, match=r"in windows|have a trigger"):
        events | kit.histograms(CLOSED)


# The default windowing, even when it is asked for, is none.
def test_global_window_is_accepted(kit):
    pipeline = beam.Pipeline()
    events = pipeline | beam.Create([]) | beam.WindowInto(window.GlobalWindows())
    outputs = events | kit.histograms(CLOSED)
    assert outputs._fields == (
        *("results", "ledger", "rejected", "state", "revisions"),
        *("done", "booked", "revised"),
    )


def test_wrong_columns_fail_before_any_release(run, kit, tmp_path):
    made = pa.RecordBatch.from_pydict({"user": ["u1"], "value": [1.5], "time": ["2024-01-01"]})
    with pytest.raises(Exception, match="column 'value' holds double"):
        run(kit.histograms(CLOSED), [kit.batch([("u1", "a", 0)]), made])
    assert kit.collected(tmp_path / "run0" / "results") == []


# ---- the filter is the last door ------------------------------------------------------------


@pytest.fixture
def rigged(monkeypatch):
    """A mechanism that publishes always and forgets that it did."""

    def forget(self, state, offer, published):
        return AbsorptionState(state.shares, state.since + 1)

    monkeypatch.setattr(PBA, "commit", forget)
    monkeypatch.setattr(
        "streamveil.mechanisms.wevent.pwsm.dissimilarity", lambda *args: float("inf")
    )


# Nothing is written, neither for the refused slot nor for those before it in the same bundle.
def test_a_broken_budget_stops_the_pipeline_and_writes_nothing(
    kit, rigged, tmp_path, pipeline_on, runner
):
    registry = Registry.of(dict.fromkeys(USERS, (3, 1.0)))
    transform = kit.histograms(registry, first_slot=0, last_slot=5, noise_key=KEY)
    pipeline = pipeline_on(runner)
    outputs = pipeline | beam.Create([kit.batch([("u1", "a", 0)])]) | transform
    outputs.results | beam.Map(str) | beam.io.WriteToText(str(tmp_path / "out" / "releases"))
    with pytest.raises(Exception, match=r"release refused for users with .* remaining") as raised:
        pipeline.run().wait_until_finish()
    assert isinstance(raised.value, BudgetExceeded) or "BudgetExceeded" in str(raised.value)
    assert list((tmp_path / "out").glob("releases*")) == []


# Even a sink that writes at once gets no release of the refused slot.
def test_the_refused_slot_never_leaves(run, kit, rigged, tmp_path):
    registry = Registry.of(dict.fromkeys(USERS, (3, 1.0)))
    transform = kit.histograms(registry, first_slot=0, last_slot=5, noise_key=KEY)
    # Of six shares in a window the dissimilarity takes one a slot, and the publications of the
    # forgetful schedule one, two and three: after slot 1 a single share is left.
    message = r"requested 0\.6666\d* epsilon, remaining 0\.1666\d* .* difference 0\.(5|4999)"
    with pytest.raises(Exception, match=message):
        run(transform, [])
    left = kit.collected(tmp_path / "run0" / "results")
    assert [r.slot for r in left] == [0, 1]
    assert [e.slot for e in kit.collected(tmp_path / "run0" / "ledger")] == [0, 1]


# ---- the key is a secret ----------------------------------------------------------------------

SECRET = b"never-show-this-key-to-anyone-!!"
FORMS = [SECRET.decode(), repr(SECRET)[2:-1], SECRET.hex(), str(list(SECRET))[1:-1]]


def shows_secret(text):
    return [form for form in FORMS if form in text]


def causes(error):
    """The error and what caused it; no tracebacks: a worker's thread may be formatting its own,
    and two threads that parse code at once can fail in Python 3.11 (SystemError)."""
    while error:
        yield error
        error = error.__cause__ or error.__context__


def test_key_is_not_in_a_repr(kit):
    transform = kit.histograms(CLOSED, noise_key=SECRET)
    pipeline = beam.Pipeline()
    outputs = pipeline | beam.Create([]) | transform
    shown = [repr(transform), str(transform), transform.default_label(), repr(outputs)]
    shown += [repr(transform.display_data()), repr(transform.population)]
    for text in shown:
        assert not shows_secret(text)


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True], ids=["works", "fails"])
def test_key_is_not_in_logs_or_errors(run_on, kit, caplog, capfd, rows, runner, fails):
    caplog.set_level(logging.DEBUG)
    transform = kit.histograms(CLOSED, noise_key=SECRET)
    error = ""
    if fails:
        with pytest.raises(Exception, match="no event was accepted") as raised:
            run_on(runner, transform, [kit.batch([])])
        error = "".join(repr(e) + str(e) for e in causes(raised.value))
    else:
        assert run_on(runner, transform, [kit.batch(rows)]).slots
    assert caplog.records
    shown = "".join(capfd.readouterr()) + caplog.text + error
    shown += "".join(repr(record.args) for record in caplog.records)
    assert not shows_secret(shown)


# Several categories, text domain in any order: the bins of a release are those of the domain.
def test_bins_are_in_the_order_of_the_domain(here, kit):
    events = [(user, "a", 0) for user in USERS[:3]] + [(user, "c", 0) for user in USERS[3:8]]
    ran = here(kit.histograms(EXACT, domain="cba"), [kit.batch(events)])
    assert [r.counts.tolist() for r in ran.releases] == [[5, 0, 3]]
    assert Categories(tuple("cba")).labels == ("c", "b", "a")
