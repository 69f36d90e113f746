"""Test mode on Beam: exact results of bounded and unbounded input, marked, without a state."""

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.mechanisms import Registry
from streamveil.mechanisms.core.records import NO_NOISE, TEST
from streamveil.mechanisms.presence import Limit
from streamveil.transforms import PrivateQueries
from streamveil.transforms.result_rows import rows_of
from tests.transforms.stand_ins import WithChanges

HOUR = 3_600_000_000
DAYS = [f"2024-05-0{day}" for day in range(1, 5)]
EVENTS = [
    {"user": f"u{n}", "place": ("cafe", "park")[n % 2], "delay": n % 9, "time": day}
    for n in range(40)
    for d, day in enumerate(DAYS)
    if (n + d) % 3
]
VISITS = sv.count("visits", by="place", keys=["cafe", "park"])
USERS = sv.distinct("users")
# So little that noise would be far above all counts.
ASKED = {
    **{"user": "user", "time": "time", "slot": "1d", "budget": "0.01/3d"},
    **{"start": "2024-05-01", "end": "2024-05-05", "test_mode": True},
}
WEAK = Registry.of({f"u{n}": (1 + n % 3, 0.01) for n in range(40)})


class Rows(beam.PTransform):
    """Gives the rows in place of the results."""

    def __init__(self, *queries):
        super().__init__()
        self._queries = queries

    def expand(self, events):
        made = events | PrivateQueries(*self._queries, **ASKED)
        return made._replace(results=made.rows)


def expected(query):
    """By day and key, from the rows by hand."""
    if query == "users":
        return {(day, "all"): len({e["user"] for e in EVENTS if e["time"] == day}) for day in DAYS}
    return {
        (day, place): sum(e["time"] == day and e["place"] == place for e in EVENTS)
        for day in DAYS
        for place in ("cafe", "park")
    }


@pytest.mark.parametrize("queries", [(VISITS,), (VISITS, USERS)], ids=["a count", "a set"])
def test_a_bounded_input(run_on, runner, queries):
    ran = run_on(runner, Rows(*queries), beam.Create(EVENTS))
    for query in queries:
        rows = [row for row in ran.results if row.query == query.name]
        found = {(row.start.to_utc_datetime().date().isoformat(), row.key): row for row in rows}
        assert {key: row.value for key, row in found.items()} == expected(query.name)
    assert {(row.status, row.stderr) for row in ran.results} == {(TEST, 0.0)}
    assert ran.state == []
    for entry in ran.ledger:
        assert {asked.epsilon for asked in entry.classes} == {0.0}
        assert not entry.spent.any()
        assert not entry.spent_in_window.any()
    assert ran.done == [len(DAYS) * len(queries)]


def test_rows_of_the_results_are_the_rows(run_on, usual_runner):
    """A pipeline under test needs no other step than one that is not."""

    class Again(beam.PTransform):
        def expand(self, events):
            made = events | PrivateQueries(VISITS, **ASKED)
            return made._replace(results=rows_of(made.results, ["cafe", "park"], "visits"))

    ran = run_on(usual_runner, Again(), beam.Create(EVENTS))
    assert {row.status for row in ran.results} == {TEST}


def test_an_unbounded_input(run_on, kit):
    """Slots are released as they close, and what is late stays late."""
    transform = kit.histograms(WEAK, first_slot=0, last_slot=2, test_mode=True)
    timeline = kit.timeline(transform)
    timeline.events(("u1", "a", 0), ("u2", "b", 0), ("u3", "a", 0)).advance(1.5)
    timeline.events(("u4", "a", 0), ("u5", "b", 1)).advance(3.5)
    ran = run_on("bundle_based", transform, timeline, "--streaming")
    assert [release.counts.tolist() for release in ran.releases] == [[2, 1], [0, 1], [0, 0]]
    assert {(r.status, r.mechanism, r.epsilon) for r in ran.releases} == {(TEST, NO_NOISE, 0.0)}
    assert [letter["reason"] for letter in ran.dead_letters] == ["late"]
    assert not any(entry.spent.any() for entry in ran.ledger)


def test_an_unbounded_input_of_queries(run_on, kit):
    made = PrivateQueries(
        sv.count("events", by="value", keys=["a", "b"]),
        sv.distinct("users", every="2h"),
        **{"user": "user", "time": "time", "slot": "1h", "requirements": WEAK},
        **{"start": "1970-01-01", "end": "1970-01-01T02:00", "test_mode": True},
    )
    timeline = kit.timeline(made.plan)
    timeline.events(("u1", "a", 0), ("u2", "b", 0), ("u3", "a", 0)).advance(1.5)
    timeline.events(("u3", "b", 1)).advance(3.5)
    ran = run_on("bundle_based", made.plan, timeline, "--streaming")
    values = {(one.query, one.slot): one.values.ravel().tolist() for one in ran.answers}
    assert values == {("events", 0): [2, 1], ("events", 1): [0, 1], ("users", 0): [3]}
    assert {(one.status, one.mechanism) for one in ran.answers} == {(TEST, NO_NOISE)}


CHANGES = pa.RecordBatch.from_pydict(
    {
        "user": ["u1", "u2"],
        "slot": [1, 2],
        **{f"window_{side}": [2, 2] for side in ("backward", "forward")},
        **{f"epsilon_{side}": [0.5, 0.5] for side in ("backward", "forward")},
    }
)


@pytest.mark.parametrize(
    "options",
    [{"mechanism": "dpbd"}, {"limit": Limit(1), "changing": True}, {"changing": True}],
    ids=["changes", "changes and a limit", "changes later"],
)
def test_requirements_that_change(kit, here, options):
    mechanism = options.get("mechanism", "adaptive")
    registry = Registry.of({f"u{n}": (12, 1.0) for n in range(40)})
    given = {"first_slot": 0, "last_slot": 3, "test_mode": True, **options, "mechanism": mechanism}
    transform = kit.histograms(registry, **given)
    rows = [(f"u{n}", "ab"[n % 2], slot) for n in range(40) for slot in range(4) if (n + slot) % 3]
    ran = here(WithChanges(transform, CHANGES), [kit.batch(rows)])
    counts = np.array([release.counts for release in ran.releases])
    if "limit" in options:
        assert counts.sum() == ran.counters["events_counted"] < len(rows)
    else:
        tables = kit.bounded_counts(rows, registry)
        assert counts.tolist() == [tables[slot].sum(axis=0).tolist() for slot in range(4)]
    assert {release.status for release in ran.releases} == {TEST}
    assert ran.state == []
    assert not any(entry.spent.any() for entry in ran.ledger)
