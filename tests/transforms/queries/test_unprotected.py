"""What queries count and what is true, without protection: against releases, and by hand."""

import collections
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from streamveil.engine.stream.query_plan import columns_for
from streamveil.engine.stream.unprotected_queries import exact_answers
from streamveil.mechanisms import Categories, Registry, Slots
from streamveil.mechanisms.core.records import InputLost
from streamveil.mechanisms.queries.conditions import Condition
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.statistics import (
    Count,
    DistinctUsers,
    Mean,
    Quantiles,
    StandardDeviation,
    Sum,
    Variance,
)
from streamveil.mechanisms.queries.trees import Tree
from streamveil.transforms.release_plan import PrivateAnswers

HOUR = 3_600_000_000
USERS = [f"u{i}" for i in range(20)]
ABC = Categories(("a", "b", "c"))
LEVELS = Tree.of(ABC, [{"in": ["a"], "out": ["b", "c"]}, "all"])
GROUPS = {"a": "a", "b": "b", "c": "c", "in": "a", "out": "bc", "all": "abc"}
PLACES = Query("places", value=("value",), domain=ABC, mechanism="pba", max_contributions=2)
FIGURES = {
    Count(): len,
    Sum("speed", 10, 20): sum,
    Mean("speed", 10, 20): np.mean,
    Variance("speed", 10, 20): np.var,
    StandardDeviation("speed", 10, 20): np.std,
    Quantiles("speed", (10, 20), (0.25,)): lambda numbers: np.quantile(numbers, 0.25),
}


def asking(*queries, **options):
    """Budgets are so large that counts are released as they are."""
    query_set = QuerySet(Slots.of("1h"), queries)
    options = {"noise_key": bytes(32), "max_rejected": 1.0, **options}
    registry = Registry.of(dict.fromkeys(USERS, (1, 4096.0)))
    return PrivateAnswers(query_set, registry, columns_for(query_set, "user", "time"), **options)


def rows_of(number, slots, seed=10):
    """(user, value, slot, kind, speed); some users are not registered, some values unknown."""
    draw = np.random.default_rng(seed)
    return [
        (
            f"u{draw.integers(25)}",
            "abc?"[draw.integers(4)],
            int(draw.integers(slots)),
            ("car", "bus")[draw.integers(2)],
            float(draw.integers(100)),
        )
        for _ in range(number)
    ]


def batch(rows):
    users, values, slots, kinds, speeds = zip(*rows, strict=True)
    times = pa.array(np.array(slots, np.int64) * HOUR + 1000, pa.timestamp("us", "UTC"))
    return pa.RecordBatch.from_pydict(
        {"user": users, "value": values, "time": times, "kind": kinds, "speed": speeds}
    )


def test_what_counts_is_what_is_released(here):
    rows = rows_of(900, 24)
    batches = [batch(rows[:400]), batch(rows[400:])]
    daily = Query("daily", slots=12, statistic=Mean("speed", 0, 100), mechanism="ba")
    transform = asking(PLACES, daily, first_slot=2, last_slot=21)
    letters = []
    first, (places, days) = exact_answers(transform, batches, letters.append)
    ran = here(transform, batches)
    found = collections.defaultdict(list)
    for answer in ran.answers:
        found[answer.query].append(answer.values)
    assert first == 2
    counts = np.array(found["places"])[..., 0]
    # Places go on to the end of the second half of the day, which nobody asked about.
    assert (len(places.counts), len(places.figures)) == (22, 20)
    np.testing.assert_array_equal(places.counts.sum(axis=1)[:20], counts)
    assert not places.counts[20:].any()
    assert len(days.counts) == len(days.figures) == len(found["daily"]) == 2
    parts = days.counts.sum(axis=1).reshape(2, -1)
    means = parts @ daily.statistic.ends / parts.sum(axis=1)
    np.testing.assert_allclose(np.array(found["daily"])[:, 0, 0], means, rtol=1e-3)
    assert sum(one.num_rows for one in letters) == sum(one.num_rows for one in ran.rejected)


def test_longer_times_are_those_of_slots_but_for_means(here):
    rows = rows_of(600, 10)
    users = replace(PLACES, name="users", statistic=DistinctUsers(), times=(4,))
    speed = replace(
        PLACES, name="speed", statistic=Mean("speed", 0, 100), times=(4,), mechanism="ba"
    )
    transform = asking(users, speed, first_slot=2, last_slot=9)
    first, (users, speed) = exact_answers(transform, [batch(rows)])
    assert (first, len(users.figures)) == (2, 8)
    (added,), (means,) = users.longer, speed.longer
    parts = users.figures[:2], users.figures[2:6], users.figures[6:]
    np.testing.assert_array_equal(added, [part.sum(axis=0) for part in parts])
    of_day = [row for row in rows if 4 <= row[2] < 8 and row[1] == "a"]
    assert means[1, 0, 0] == pytest.approx(np.mean([row[4] for row in of_day]))


@pytest.mark.parametrize("statistic", FIGURES, ids=lambda one: one.name)
def test_what_is_true_is_of_all_events_as_they_are(statistic):
    rows = rows_of(300, 9)
    cars = Query(
        "cars",
        slots=3,
        value=("value",),
        domain=ABC,
        statistic=statistic,
        tree=LEVELS,
        where=(Condition("kind", ("car",)),),
    )
    _, (exact,) = exact_answers(asking(cars), [batch(rows[:100]), batch(rows[100:])])
    numbers = [
        [row[4] for row in rows if row[2] // 3 == slot and row[1] in group and row[3] == "car"]
        for slot in range(3)
        for group in GROUPS.values()
    ]
    expected = np.array([FIGURES[statistic](some) for some in numbers])
    np.testing.assert_allclose(exact.figures.ravel(), expected)


def test_users_of_a_group_are_each_one():
    people = Query("people", 1, ("value",), ABC, DistinctUsers(), tree=LEVELS)
    rows = [(user, value, 0, "", 0.0) for user, value in ("xb", "xc", "xb", "yc", ("u1", "a"))]
    rows += [(None, "b", 0, "", 0.0)]
    _, (exact,) = exact_answers(asking(people), [batch(rows)])
    assert exact.figures[0, :, 0].tolist() == [1, 1, 2, 1, 2, 3]


def test_nothing_to_compute_of():
    speed = Query("speed", statistic=Mean("speed", 0, 9))
    late = Query("late", statistic=Quantiles("speed", (0, 9)))
    transform = asking(speed, late, first_slot=0, last_slot=1)
    _, exact = exact_answers(transform, [batch([("u1", "a", 1, "", 3.0)])])
    for one in exact:
        np.testing.assert_array_equal(one.figures[:, 0, 0], [np.nan, 3])
    with pytest.raises(InputLost, match="no event counts"):
        exact_answers(asking(speed), [batch([("stranger", "a", 1, "", 3.0)])])


def test_without_a_range_slots_are_those_that_are_released(here):
    daily = Query("daily", slots=5, mechanism="ba")
    rows = [row for row in rows_of(300, 18, seed=11) if row[2] >= 7]
    transform = asking(PLACES, daily)
    first, exact = exact_answers(transform, [batch(rows)])
    slots = collections.Counter(one.query for one in here(transform, [batch(rows)]).answers)
    assert first == 7
    assert [len(one.figures) for one in exact] == [slots["places"], slots["daily"]]
