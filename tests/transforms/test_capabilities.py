"""The table of capabilities, cell by cell: a run for every yes, and the reason for every no."""

from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.engine.capabilities import STATISTICS, TABLE, YES, markdown
from streamveil.engine.run.release import release_plan
from streamveil.mechanisms import ConfigurationError, Slots
from streamveil.mechanisms.queries.reading import query_set, query_set_of
from streamveil.transforms import PrivateQueries

ROOT = Path(__file__).parents[2]
SLOTS, USERS = 16, 60
FIRST = {"1d": "2024-03-25", "1h": "1970-01-01"}  # days around one of 23 hours in Berlin
KEYS = {"by": "place", "keys": ["cafe", "park"]}
OF = {"of": "bill", "bounds": (0, 30)}
ASKED = {"user": "user", "time": "time", "budget": "40/8d", "noise_key": bytes(32)}
DAYS = {**ASKED, "slot": "1d", "start": FIRST["1d"], "end": "2024-04-10"}

BUILDERS = {
    "count": partial(sv.count, "q", **KEYS),
    "distinct": partial(sv.distinct, "q", **KEYS),
    "sum": partial(sv.sum, "q", **KEYS, **OF),
    "mean": partial(sv.mean, "q", **KEYS, **OF),
    "variance": partial(sv.variance, "q", **KEYS, **OF),
    "quantiles": partial(sv.quantiles, "q", **KEYS, **OF, quantiles=[0.5]),
    "top": partial(sv.top, "q", **KEYS, k=1),
}


def batch(rows, slot="1h"):
    """Of (user, place, kind, bill, slot) rows."""
    users, places, kinds, bills, slots = zip(*rows, strict=True) if rows else ((),) * 5
    length = Slots.of(slot).length
    start = np.datetime64(FIRST[slot], "us").astype(np.int64)
    times = start + np.array(slots, np.int64) * length + length // 2
    return pa.RecordBatch.from_pydict(
        {
            "user": pa.array(users, pa.string()),
            "place": pa.array(places, pa.string()),
            "kind": pa.array(kinds, pa.string()),
            "bill": pa.array(bills, pa.float64()),
            "time": pa.array(times, pa.timestamp("us", "UTC")),
        }
    )


def some_rows():
    random = np.random.default_rng(1)
    users, slots = np.nonzero(random.random((USERS, SLOTS)) < 0.5)
    return [
        (
            f"u{user}",
            "cafe" if random.random() < 0.7 else "park",
            "lunch" if random.random() < 0.5 else "dinner",
            float(random.uniform(5, 25)),
            int(slot),
        )
        for user, slot in zip(users, slots, strict=True)
    ]


ROWS = some_rows()


def released(statistic, builder=None, **asked):
    made = BUILDERS[statistic](**(builder or {}))
    queries = made if isinstance(made, list) else [made]
    return sv.release([batch(ROWS, "1d")], *queries, **{**DAYS, **asked})


# ---- a run for every yes ----------------------------------------------------------------------


def changing(statistic):
    figures = {f"window_{way}": [8] for way in ("backward", "forward")}
    figures |= {f"epsilon_{way}": [50.0] for way in ("backward", "forward")}
    changes = pa.table({"user": ["u1"], "slot": [19_812], **figures})
    found = released(statistic, requirement_changes=changes)
    assert found.card["promise"]["requirements_change"]
    assert found.summary["kept"] == len(ROWS)


def limit(statistic):
    found = released(statistic, max_slots="1,1", budget="40/16d")
    (promised,) = found.card["promise"]["classes"]
    assert promised["limits"][0]["max_slots"] == 1
    assert found.summary["dropped"] or found.summary["queries"]["q"]["beyond_limit"]


def chosen_limit(statistic):
    found = released(statistic, max_slots="auto", budget="40/16d")
    (promised,) = found.card["promise"]["classes"]
    assert promised["limits"][0]["chosen"]


def lifetime(statistic):
    found = released(statistic, guarantee="user", epsilon=40.0, max_slots=2, budget=None)
    assert found.card["promise"]["guarantee"] == "user"


def revise(statistic):
    found = released(statistic, run=sv.RunOptions(revise=3))
    assert found["q"].revisions_to_arrow().num_rows


def slot_zone(statistic):
    found = released(statistic, run=sv.RunOptions(slot_zone="Europe/Berlin"))
    starts = found.to_arrow()["start"].to_pylist()
    assert {one.utcoffset().seconds // 3600 for one in starts} == {1, 2}


def months(statistic):
    found = released(statistic, {"every": "1mo"})
    assert [(one.slot, one.length) for one in found["q"]] == [(650, "1mo"), (651, "1mo")]
    in_months = released(statistic, {"rollups": ["3mo"]}, slot="1mo", budget="40/1y")
    assert [one.slot for one in in_months["q"] if one.length == "1mo"] == [650, 651]


def auto_bounds(statistic):
    found = released(statistic, {"bounds": "auto"}, budget="4000/8d")
    low, high = found.summary["queries"]["q"]["bounds"]
    assert low < 10 < 20 < high


def levels(statistic):
    found = released(statistic, {"levels": {"both": ["cafe", "park"]}})
    assert set(found.to_arrow()["key"].to_pylist()) == {"both", "cafe", "park"}


def discover(statistic):
    found = released(statistic, {"keys": "discover"}, delta=1e-3, budget="4000/8d")
    assert set(found.to_arrow()["key"].to_pylist()) == {"cafe", "park", "unlisted"}
    assert found.card["promise"]["delta"] == 1e-3


def rollups(statistic):
    found = released(statistic, {"rollups": ["4d"]})
    assert any(one.length == "4d" for one in found["q"])


def where(statistic):
    found = released(statistic, {"where": sv.where.kind == "lunch"})
    lunches = sum(kind == "lunch" for _, _, kind, *_ in ROWS)
    assert found.summary["kept"] == lunches < len(ROWS)


def hourly(*statistics, **options):
    """A plan over hours from the first slot on: a set even of one count."""
    asked = query_set("1h", [replace(BUILDERS[one](), name=one) for one in statistics], None)
    given = {**ASKED, "budget": "40/8h", "max_rejected": 1.0, "start": FIRST["1h"]}
    return PrivateQueries(asked, **{**given, "end": "1970-01-01T16:00", **options}).plan


def results_of(plan, rows):
    """What is released by query and slot, and the state."""
    outputs = list(release_plan(plan, [batch(rows)]))
    results = [one.value for one in outputs if one.tag is None]
    return by_slot(results), [one.value for one in outputs if one.tag == "state"]


def by_slot(results):
    return {(one.query, one.slot): str(one.figures) for one in results}


@cache
def in_one_run(*statistics):
    """What one run releases of all rows."""
    return results_of(hourly(*statistics), ROWS)[0]


def state(statistic):
    begun = hourly(statistic, end="1970-01-01T07:00", final=False)
    first, ((following, saved),) = results_of(begun, [row for row in ROWS if row[-1] < 7])
    assert following == 7
    later = hourly(statistic, start="1970-01-01T07:00", resume=saved)
    rest, _ = results_of(later, [row for row in ROWS if row[-1] >= 7])
    assert first | rest == in_one_run(statistic)


def processes(statistic):
    shared, _ = results_of(hourly(statistic, shards=3), ROWS[::-1])
    assert shared == in_one_run(statistic)


STREAMED = {}
"""What a stream of all statistics released, which the tests of all of them look at."""


def unbounded(statistic, run_on, kit):
    together = [one for one in STATISTICS if CELLS["unbounded", one] == YES]
    if not STREAMED:
        line = kit.timeline(hourly(*together), batch=batch)
        for slot in range(SLOTS):
            line.events(*[row for row in ROWS if row[-1] == slot]).advance(slot + 1)
        line.advance(20)
        streamed = run_on("bundle_based", line.transform, line, "--streaming")
        STREAMED.update(by_slot(streamed.answers))
    own, whole = (
        {slot: found for (query, slot), found in results.items() if query == statistic}
        for results in (STREAMED, in_one_run(*together))
    )
    assert len(own) == SLOTS
    assert own == whole


RUNS = {
    one.__name__: one
    for one in (
        *(changing, limit, chosen_limit, lifetime, revise, slot_zone, auto_bounds, levels),
        *(discover, months, rollups, where, state, processes, unbounded),
    )
}
CELLS = {(row.name, one): row.cells[one] for row in TABLE for one in STATISTICS}
WORKS = [place for place, cell in CELLS.items() if cell == YES]


@pytest.mark.parametrize(("capability", "statistic"), WORKS)
def test_what_the_table_says_works(capability, statistic, request):
    fixtures = {"run_on", "kit"} if capability == "unbounded" else set()
    RUNS[capability](statistic, **{name: request.getfixturevalue(name) for name in fixtures})


# ---- the reason for every no ------------------------------------------------------------------

WRITTEN = {
    "auto_bounds": {"bounds": "auto"},
    "levels": {"k": 1, "levels": {"both": ["cafe", "park"]}},
}


@pytest.mark.parametrize(("capability", "statistic"), [one for one in CELLS if one not in WORKS])
def test_what_does_not_work_is_refused_with_the_reason_of_the_table(capability, statistic):
    def refused():
        if capability in WRITTEN:  # builders have no such argument
            written = {"name": "q", "statistic": statistic, **KEYS, **WRITTEN[capability]}
            query_set_of({"slot": "1d", "queries": [written]}, None)
        RUNS[capability](statistic)

    with pytest.raises(ConfigurationError) as error:
        refused()
    assert CELLS[capability, statistic] in str(error.value)


def test_the_docs_have_the_table():
    assert markdown() in (ROOT / "docs" / "reference" / "capabilities.md").read_text()
