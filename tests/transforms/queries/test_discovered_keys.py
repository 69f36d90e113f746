"""Keys that are discovered on Beam: the same as in passes over a stream, or in this process."""

from dataclasses import fields

import numpy as np
import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.engine import metrics
from streamveil.engine.capabilities import OF_DISCOVERED, OF_GROWING
from streamveil.engine.encode.text import NULL_USER
from streamveil.engine.messages import LEDGER, REVISIONS, STATE
from streamveil.engine.run.discover import discover_keys
from streamveil.engine.run.one_by_one import release_by_discovery_slot
from streamveil.engine.run.release import release_plan
from streamveil.engine.stream.query_plan import QueryPlan
from streamveil.mechanisms import ConfigurationError
from streamveil.mechanisms.core.records import InputLost
from streamveil.mechanisms.queries.discovered import discovered_keys
from streamveil.transforms import PrivateQueries

SLOTS, WINDOW, USERS = 18, 4, 90
HOUR = 3_600_000_000
KEYS = {"by": "place", "keys": "discover"}


def rows():
    random = np.random.default_rng(2)
    return [
        (f"u{user}", f"key {min(int(random.geometric(0.5)), 1 + slot // 5)}", int(slot))
        for slot in range(SLOTS)
        for user in random.permutation(USERS)[: USERS // 2].tolist()
    ]


ROWS = rows()


def batch(some):
    users, places, slots = zip(*some, strict=True) if some else ((),) * 3
    times = np.array(slots, np.int64) * HOUR + HOUR // 2
    return pa.RecordBatch.from_pydict(
        {
            "user": pa.array(users, pa.string()),
            "place": pa.array(places, pa.string()),
            "time": pa.array(times, pa.timestamp("us", "UTC")),
        }
    )


def transform(*queries, **options):
    asked = queries or (
        sv.count("visits", **KEYS),
        sv.distinct("users", every="2h", levels="all", **KEYS),
        sv.count("all"),
    )
    given = {"delta": 1e-6, "start": "1970-01-01", "end": "1970-01-01T18:00"}
    given = {**given, "budget": f"60/{WINDOW}h", **options}
    return PrivateQueries(
        *asked,
        user="user",
        time="time",
        slot="1h",
        noise_key=bytes(32),
        **given,
    )


def plan_of(made, **options):
    names = [one.name for one in fields(QueryPlan) if one.init]
    given = {name: getattr(made.plan, name) for name in names}
    lenient = {"may_be_empty": True, "max_rejected": 1.0, "growing": True}
    return QueryPlan(**{**given, **lenient, **options})


def in_passes(made, *edges, last=SLOTS, ends=False, some=ROWS):
    """What passes give, as text, and the state that they leave."""
    rows, state = [], made.plan.resume
    first = made.plan.first_slot
    for after in (*edges, last):
        own = [batch([row for row in some if first <= row[-1] < after])]
        due = plan_of(
            made,
            first_slot=first,
            last_slot=after - 1,
            resume=state,
            ends=ends and after == last,
            stream_start=made.plan.first_slot,
        )
        outputs = list(release_by_discovery_slot(due, own))
        rows += [repr(one.value) for one in outputs if one.tag in (None, LEDGER)]
        state = next((one.value[1] for one in outputs if one.tag == STATE), state)
        first = after
    return sorted(rows), state


def streamed(made, run_on, kit, some=ROWS, runner="bundle_based"):
    line = kit.timeline(made.plan, batch=batch)
    for slot in range(SLOTS):
        here = [row for row in some if row[-1] == slot]
        line.events(*here[::2]).events(*here[1::2]).advance(slot + 1)
    line.advance(SLOTS + 3)
    return run_on(runner, line.transform, line, "--streaming")


def test_users_have_deltas_of_their_own(run_on, kit):
    asked = {f"u{user}": (WINDOW, 60.0, (1e-3, 0)[user % 2]) for user in range(USERS)}
    asked = {"budget": None, "requirements": asked}
    made = transform(sv.count("visits", **KEYS), **asked)
    (one,) = made.plan.discoverers()
    assert [bool(weight) for weight in one.terms.weights] == [False, True]
    assert one.terms.uncounted == USERS // 2
    found = streamed(made, run_on, kit)
    rows = sorted(repr(one) for one in (*found.answers, *found.ledger))
    assert rows == in_passes(made, 5, 11)[0]


def test_keys_come_and_leave_on_beam_as_they_do_in_passes(run_on, kit):
    some = [row for row in ROWS if row[1] != "key 1" or row[-1] not in range(WINDOW, 3 * WINDOW)]
    some += [(f"u{user}", "key 1", slot) for slot in range(13, SLOTS) for user in range(50)]
    found = streamed(transform(), run_on, kit, some)
    passes, state = in_passes(transform(), 5, 11, some=some)
    assert sorted(repr(one) for one in (*found.answers, *found.ledger)) == passes
    after = plan_of(transform(), resume=state, first_slot=SLOTS, last_slot=None)
    listed = discovered_keys(after.query_set.queries[0])
    assert len(set(listed.since)) > 1
    assert ("key 1", WINDOW, 2 * WINDOW) in listed.ended
    assert "key 1" in listed.values


def test_a_stream_that_ends_within_a_slot_of_a_query_gives_what_there_is(run_on, kit):
    made = transform(sv.distinct("users", every="2h", **KEYS), end="1970-01-01T17:00")
    found = streamed(made, run_on, kit)
    passes, _ = in_passes(made, 6, last=17, ends=True)
    assert sorted(repr(one) for one in (*found.answers, *found.ledger)) == passes
    assert "a part of the time" in "".join(passes)


def test_a_stream_resumes_from_the_state_of_passes(run_on, kit):
    first, state = in_passes(transform(final=False), 3, last=7)
    later = transform(start="1970-01-01T07:00", resume=state)
    found = streamed(later, run_on, kit, [row for row in ROWS if row[-1] >= 7])
    rows = [repr(one) for one in (*found.answers, *found.ledger)]
    whole, _ = in_passes(transform())
    assert sorted([*first, *rows]) == whole


def test_each_event_is_judged_once(run_on, kit):
    made = transform(sv.count("visits", **KEYS), sv.count("all"))
    line = kit.timeline(made.plan, batch=batch)
    line.events(("u1", "key 1", 0), (None, "key 1", 0), ("u2", None, 0)).advance(1)
    line.advance(3)
    line.events(("u3", "key 1", 0), ("u4", "key 1", 1)).advance(SLOTS + 3)
    found = run_on("bundle_based", line.transform, line, "--streaming")
    reasons = [one["reason"] for batch in found.rejected for one in batch.to_pylist()]
    unread = "null value (query visits, counted in others)"
    assert sorted(reasons) == sorted(["late", "late", NULL_USER, unread])
    assert found.counters[metrics.EVENTS_COUNTED] == 2  # of the first batch
    assert len([one for one in found.answers if one.query == "visits"]) == SLOTS


def here(made, batches):
    """What a run in this process gives of a bounded input, and its event accounting."""
    plan = plan_of(made, growing=False, max_rejected=made.plan.max_rejected)
    with metrics.counting() as counts:
        outputs = list(release_plan(discover_keys(plan, batches), batches))
    rows = sorted(repr(one.value) for one in outputs if one.tag in (None, LEDGER, REVISIONS))
    return rows, dict(counts.counters)


def on_beam(found):
    return sorted(map(repr, (*found.results, *found.ledger, *found.revisions)))


def test_a_bounded_input_on_beam_gives_the_same_as_in_this_process(run_on, runner):
    bad = [(None, "key 1", 3), ("u1", "key 1", 99), ("u2", None, 4), ("u3", " ", 4)]
    rows = [*ROWS, *bad]
    parts = [batch(rows[::2]), batch(rows[1::2]), batch([])]
    found = run_on(runner, transform(), parts)
    expected, counters = here(transform(), parts[::-1])
    assert on_beam(found) == expected
    assert "key 2" in "".join(expected)
    if runner != "bundle_based":  # it has no counters of steps with side inputs
        assert {name: found.counters[name] for name in counters} == counters
    assert found.done == [len(found.results)]


def test_a_batch_that_is_read_twice_finds_the_same_keys(run_on):
    """Pairs are a set: a runner that repeats a bundle, or a user with many events, adds nothing."""
    query = sv.count("visits", max_contributions=1, keep="distinct", **KEYS)
    once, twice = ([batch(ROWS)] * number for number in (1, 2))
    keys = [
        {key for one in run_on("fn_api", transform(query), parts).results for key in one.labels}
        for parts in (once, twice)
    ]
    assert keys[0] == keys[1] > {"key 1", "unlisted"}


def test_a_bounded_input_may_have_what_needs_all_keys_first(run_on):
    """Revisions, rollups, several shards and a mechanism that cannot take more keys later."""
    made = transform(
        sv.count("visits", rollups=["6h"], **KEYS),
        sv.count("parts", mechanism="ba", **KEYS),
        revise=0,
        shards=3,
    )
    found = run_on("fn_api", made, [batch(ROWS)])
    assert on_beam(found) == here(made, [batch(ROWS)])[0]
    revised = transform(sv.count("visits", **KEYS), revise=2)
    found = run_on("fn_api", revised, [batch(ROWS)])
    assert found.revisions
    assert on_beam(found) == here(revised, [batch(ROWS)])[0]


def test_all_statistics_of_found_keys_are_the_same_on_beam(run_on):
    of = {"of": "time_of_day", "bounds": (0, 24)}
    keys = {"by": "place", "keys": {"discover": {"share": 0.05}}}
    made = transform(
        sv.sum("sum", **of, **keys),
        sv.mean("mean", **of, **keys),
        sv.variance("variance", **of, **keys),
        sv.quantiles("quantiles", **of, **keys, quantiles=[0.5]),
        sv.top("top", **keys, k=1),
        sv.distinct("distinct", **keys),
    )
    rows = batch(ROWS)
    hours = pa.array([float(slot) for *_, slot in ROWS])
    rows = pa.RecordBatch.from_arrays([*rows.columns, hours], [*rows.schema.names, of["of"]])
    found = run_on("fn_api", made, [rows.slice(0, 400), rows.slice(400)])
    expected, _ = here(made, [rows])
    assert on_beam(found) == expected
    assert {"key 1", "unlisted"} < {key for one in found.results for key in one.labels}


def test_an_input_without_events_finds_no_keys(run_on):
    made = transform(sv.count("visits", **KEYS), may_be_empty=True)
    assert on_beam(run_on("fn_api", made, [])) == here(made, [])[0]
    with pytest.raises(InputLost, match="no event was read"):
        run_on("fn_api", transform(), [])


def test_a_bounded_input_cannot_be_resumed(run_on):
    with pytest.raises(ConfigurationError) as error:
        run_on("fn_api", transform(final=False), [batch(ROWS)])
    assert OF_DISCOVERED["state"] in str(error.value)


@pytest.mark.parametrize(
    ("why", "options"),
    [
        ("shards", {"shards": 2}),
        ("revise", {"revise": 2}),
        ("test_mode", {"test_mode": True}),
    ],
)
def test_what_streams_cannot_have_is_refused(run_on, kit, why, options):
    with pytest.raises(ConfigurationError) as error:
        streamed(transform(**options), run_on, kit)
    assert OF_GROWING[why] in str(error.value)


def test_changes_of_requirements_are_refused(run_on, kit):
    made = transform().plan
    with pytest.raises(ConfigurationError, match="changes of requirements came"):
        made.steps(bounded=False, changes=True)


def test_delta_is_for_keys_that_are_discovered():
    listed = sv.count("visits", by="place", keys=["key 1"])
    with pytest.raises(ConfigurationError, match="no keys are discovered"):
        transform(listed)
