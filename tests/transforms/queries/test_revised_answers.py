"""Slots of queries that are revised: on Beam and without, as a stream goes and at its end."""

import numpy as np
import pyarrow as pa
import pytest

from streamveil.engine.stream.query_plan import columns_for
from streamveil.mechanisms import Categories, ConfigurationError, Registry, Slots
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.queries.bounds import AutoBounds
from streamveil.mechanisms.queries.conditions import Condition
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.statistics import Mean
from streamveil.mechanisms.queries.trees import Tree
from streamveil.transforms.release_plan import PrivateAnswers

HOUR = 3_600_000_000
USERS = [f"u{i}" for i in range(60)]
REGISTRY = Registry.of({u: (2 + i % 2, 30.0) for i, u in enumerate(USERS)})
PLACES = Categories(("a", "b", "c"))
GROUPS = Tree.of(PLACES, [{"west": ("a", "b"), "east": ("c",)}, "all"])
VISITS = Query(
    "visits", value=("place",), domain=PLACES, tree=GROUPS, where=(Condition("kind", ("car",)),)
)
SPEED = Query("speed", slots=3, statistic=Mean("speed", 0, 100), times=(12,))
LAG, LAST = 2, 19
"""The last base slot is within a slot of the speed, which ends one later."""


def answers(*queries, registry=REGISTRY, **options):
    query_set = QuerySet(Slots.of("1h"), queries or (VISITS, SPEED))
    options = {"noise_key": bytes(32), "max_rejected": 1.0, "revise": LAG, **options}
    return PrivateAnswers(query_set, registry, columns_for(query_set, "user", "time"), **options)


def rows_of(first, last):
    found = []
    for slot in range(first, last + 1):
        draw = np.random.default_rng([5, slot])
        for user in draw.choice(USERS, 40, replace=False):
            kind, place = ("car", "bus")[draw.integers(2)], "abc"[draw.integers(3)]
            found.append((str(user), place, slot, kind, float(draw.integers(100))))
    return found


def batch(rows):
    users, places, slots, kinds, speeds = zip(*rows, strict=True)
    times = pa.array(np.array(slots, np.int64) * HOUR + 1000, pa.timestamp("us", "UTC"))
    columns = {"user": users, "place": places, "time": times, "kind": kinds, "speed": speeds}
    return pa.RecordBatch.from_pydict(columns)


def plain_values(some):
    """All of answers, in an order of their own."""
    return sorted(
        str(
            [one.query, one.slot, one.length, one.status, getattr(one, "revised_slot", None)]
            + [part.tolist() for part in (one.values, one.stderr, one.low, one.high)]
        )
        for one in some
    )


def slots_of(revisions, query):
    return [(one.slot, one.revised_slot) for one in revisions if one.query == query]


def test_every_slot_is_revised_so_many_of_its_slots_later(here):
    transform = answers(first_slot=0, last_slot=LAST)
    ran = here(transform, [batch(rows_of(0, LAST))])
    assert slots_of(ran.revisions, "visits") == [(s, min(s + LAG, LAST)) for s in range(LAST + 1)]
    assert slots_of(ran.revisions, "speed") == [(s, min(s + LAG, 6)) for s in range(7)]
    assert {one.status for one in ran.revisions} == {"revised"}
    assert ran.revised == [len(ran.revisions)]
    assert ran.revisions[0].revised_at == transform.slots.end(LAG)
    # A longer time is answered once, and first answers are as they would have been.
    assert {one.length for one in ran.revisions} == {"1h", "3h"}
    plain = here(answers(first_slot=0, last_slot=LAST, revise=0), [batch(rows_of(0, LAST))])
    assert plain_values(plain.answers) == plain_values(ran.answers)
    assert plain.revisions == []
    for one in ran.revisions:
        if one.query == "visits":
            a, b, c, west, east, every = one.values[:, 0]
            assert (a + b, c, west + east) == (west, east, every)


def test_a_range_that_events_say_is_revised_to_its_end(here):
    ran = here(answers(), [batch(rows_of(0, LAST))])
    assert slots_of(ran.revisions, "visits") == [(s, min(s + LAG, 20)) for s in range(21)]
    assert slots_of(ran.revisions, "speed") == [(s, min(s + LAG, 6)) for s in range(7)]


def test_bounds_that_are_chosen_are_those_of_revisions(here):
    chosen = Query("speed", slots=3, statistic=AutoBounds("mean", "speed"))
    much = Registry.of(dict.fromkeys(USERS, (2, 400.0)))
    made = answers(VISITS, chosen, last_slot=17, registry=much)
    ran = here(made, [batch(rows_of(0, 17))])
    speeds = [one for one in ran.revisions if one.query == "speed"]
    assert len(speeds) == 6
    assert all(0 < one.values[0, 0] < 200 for one in speeds)


def pieces(run, *queries, cuts=((0, 3), (4, 10), (11, LAST))):
    results, revisions, state = [], [], None
    for first, last in cuts:
        given = {"first_slot": first, "last_slot": last, "ends": False, "resume": state}
        made = answers(*queries, **given, revise_rest=last == LAST)
        ran = run(made, [batch(rows_of(first, last))])
        ((_, state),) = ran.state
        results, revisions = results + ran.answers, revisions + ran.revisions
    return results, revisions


# The slot that the end cuts waits for a later run: all others are revised by the last one.
def test_pieces_revise_what_one_run_does(here):
    whole = answers(first_slot=0, last_slot=LAST, ends=False, revise_rest=True)
    ran = here(whole, [batch(rows_of(0, LAST))])
    assert slots_of(ran.revisions, "speed") == [(s, min(s + LAG, 5)) for s in range(6)]
    found, revisions = pieces(here)
    assert plain_values(found) == plain_values(ran.answers)
    assert plain_values(revisions) == plain_values(ran.revisions)


# Under a participation limit cells are scaled, those of revisions by what is known by then.
def test_revisions_are_scaled_as_first_answers_are(here):
    rare = Registry.of(dict.fromkeys(USERS, (24, 400.0)))
    seldom = [row for row in rows_of(0, LAST) if (int(row[0][1:]) + row[2]) % 12 == 0]
    most = {"first_slot": 0, "last_slot": LAST, "registry": rare, "limit": Limit(2)}

    def ran(**options):
        return here(answers(**{**most, **options}), [batch(seldom)])

    assert answers(**most).presences is not None
    limited = ran()
    assert slots_of(limited.revisions, "visits") == [
        (s, min(s + LAG, LAST)) for s in range(LAST + 1)
    ]
    assert plain_values(ran(revise=0).answers) == plain_values(limited.answers)
    first = {(one.query, one.slot): one for one in limited.answers if one.length in ("1h", "3h")}
    for one in limited.revisions:
        assert np.isfinite(one.values).all()
        if one.query == "visits" and one.slot == LAST:
            # The top is the sum of what is scaled.
            assert one.values[5, 0] == one.values[:3, 0].sum()
            assert (one.stderr > 0).all()
            assert one.labels == first[one.query, one.slot].labels


@pytest.mark.slow
def test_beam_revises_as_the_engine_does(here, run):
    transform = answers(first_slot=0, last_slot=LAST)
    batches = [batch(rows_of(0, 9)), batch(rows_of(10, LAST))]
    expected, ran = here(transform, batches), run(transform, batches)
    assert plain_values(ran.revisions) == plain_values(expected.revisions)
    assert plain_values(ran.answers) == plain_values(expected.answers)
    assert ran.revised == expected.revised == [LAST + 1 + 7]


@pytest.mark.slow
@pytest.mark.parametrize("last", [None, LAST])
def test_a_stream_in_time_revises_as_it_goes(run_on, here, kit, last):
    queries = (VISITS, Query("speed", slots=3, statistic=Mean("speed", 0, 100)))
    line = kit.timeline(answers(*queries, first_slot=0, last_slot=last), batch=batch)
    for slot in range(LAST + 1):
        line.events(*rows_of(slot, slot)).advance(slot + 1)
    line.advance(LAST + 2)
    ran = run_on("bundle_based", line.transform, line, "--streaming")
    bounded = here(answers(*queries, first_slot=0, last_slot=LAST), [batch(rows_of(0, LAST))])
    # Without an end more base slots may close, and nothing is revised with what there is.
    if last is None:
        until = (LAST - LAG - 3) * HOUR
        ran.revisions, bounded.revisions = (
            [one for one in some if one.end <= until] for some in (ran.revisions, bounded.revisions)
        )
    assert plain_values(ran.revisions) == plain_values(bounded.revisions)
    assert len(ran.revisions) > 15


def test_a_query_whose_mechanism_cannot_revise_is_refused_with_its_name():
    with pytest.raises(ConfigurationError, match="query 'visits': mechanism 'pba' cannot revise"):
        answers(Query("visits", mechanism="pba"), SPEED)
