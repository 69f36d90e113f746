"""Every bundle of a stage of a query set fails once at its end and is run again: nothing shows.

As `tests/transforms/test_bundle_retries.py` has it for one query.
"""

import pytest

from streamveil.engine.count.close_slots import CloseSlots
from streamveil.engine.stream.query_plan import columns_for
from streamveil.engine.stream.release_in_time import ReleaseInTime
from streamveil.mechanisms import Registry, Requirement, Slots
from streamveil.mechanisms.queries.bounds import AutoBounds
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.statistics import Mean
from streamveil.transforms.at_end import AtEnd
from streamveil.transforms.counting.bounds_choice import _MapSampleFn
from streamveil.transforms.counting.count_events import _MapEventsFn
from streamveil.transforms.release_plan import PrivateAnswers
from streamveil.transforms.slots.heartbeat import _OpenSlotsFn
from tests.transforms.queries.test_answers import AB, batch, random_rows
from tests.transforms.test_bundle_retries import RELEASE, fail_every_bundle_once

pytestmark = pytest.mark.slow  # whole runs, each bundle twice

# The last slot of the longest query ends later than what is asked about.
LAST, SLOTS_IN_ALL = 10, 11 + 4 + 2
REGISTRY = Registry.of(
    {f"u{i}": (1 + i % 4, 300.0 + i % 2) for i in range(30)}, default=(Requirement(3, 300.0), 20)
)
BOUNDED = (_MapSampleFn, _MapEventsFn, AtEnd)
UNBOUNDED = (_MapEventsFn, _OpenSlotsFn, CloseSlots, ReleaseInTime)


def transform(statistic) -> PrivateAnswers:
    query_set = QuerySet(
        Slots.of("1h"),
        (
            Query("hours", value=("value",), domain=AB),
            Query("shifts", slots=3, statistic=statistic),
            Query("days", slots=6, value=("value",), domain=AB, mechanism="pba"),
        ),
    )
    columns = columns_for(query_set, "user", "time")
    asked = {"noise_key": bytes(range(32)), "first_slot": 0, "last_slot": LAST, "max_rejected": 1.0}
    return PrivateAnswers(query_set, REGISTRY, columns, **asked)


def plain_values(ran):
    """All that came out, as plain values; dead letters in any order."""
    return (
        [
            (one.query, one.slot, one.status, one.values.tolist(), str(one.stderr), one.epsilon)
            for one in ran.answers
        ],
        [str(vars(entry)) for entry in ran.ledger],
        sorted(str(letter) for letter in ran.dead_letters),
        ran.state,
    )


@pytest.mark.parametrize("stage", BOUNDED)
def test_a_file_whose_bundles_all_fail_once(run_on, monkeypatch, stage):
    rows = random_rows(400, LAST + 2)

    def once():
        asked = transform(AutoBounds("mean", "speed"))
        return plain_values(run_on("bundle_based", asked, [batch(rows[:99]), batch(rows[99:])]))

    calm = once()
    happened = fail_every_bundle_once(monkeypatch, stage)
    assert once() == calm
    assert happened["ends"] >= 2
    assert happened["ends"] % 2 == 0
    assert happened["slots"] == SLOTS_IN_ALL * (2 if stage in RELEASE else 1)


@pytest.mark.parametrize("stage", UNBOUNDED)
def test_a_stream_whose_bundles_all_fail_once(run_on, kit, monkeypatch, stage):
    rows = random_rows(200, LAST + 1)

    def once():
        line = kit.timeline(transform(Mean("speed", 0, 100)), batch=batch)
        for hour in range(LAST + 1):
            line.events(*[row for row in rows if row[2] == hour])
            line.events(("u1", "a", max(hour - 3, 0), "car", 3.0)).advance(hour + 1)
        return plain_values(run_on("bundle_based", line.transform, line.advance(20), "--streaming"))

    calm = once()
    assert any("late" in letter for letter in calm[2])
    happened = fail_every_bundle_once(monkeypatch, stage)
    assert once() == calm
    assert happened["ends"] >= 2
    assert happened["slots"] == SLOTS_IN_ALL * (2 if stage in RELEASE else 1)
