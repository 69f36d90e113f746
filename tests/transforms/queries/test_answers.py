"""One pass over the events for many queries: what is counted, answered, spent and lost.

`EXACT` asks for so much budget that counts are released as they are.
"""

import collections
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from streamveil.engine import metrics
from streamveil.engine.count.chosen_limits import choice_message
from streamveil.engine.messages import Kind, Message, array_to_bytes
from streamveil.engine.stream.query_plan import columns_for
from streamveil.mechanisms import Categories, ConfigurationError, Registry, Requirement, Slots
from streamveil.mechanisms.core.budgets import Requirements
from streamveil.mechanisms.core.records import ADD_REMOVE, PUBLISHED, REPLACE, Lifetime
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.presence.choice import Auto
from streamveil.mechanisms.presence.limits import LOOK
from streamveil.mechanisms.queries.bounds import AutoBounds, set_aside
from streamveil.mechanisms.queries.conditions import Condition
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.query_stream import QueryStream
from streamveil.mechanisms.queries.shares import plan_shares
from streamveil.mechanisms.queries.statistics import DistinctUsers, Mean
from streamveil.mechanisms.queries.trees import Tree
from streamveil.transforms import Columns
from streamveil.transforms.release_plan import PrivateAnswers

HOUR = 3_600_000_000
USERS = [f"u{i}" for i in range(40)]
EXACT = Registry.of(dict.fromkeys(USERS, (1, 4096.0)))
USUAL = Registry.of({u: (1 + i % 3, 50.0 + i % 2) for i, u in enumerate(USERS)})
AB = Categories(("a", "b"))

HOURLY = Query("hourly", value=("value",), domain=AB, mechanism="pba")
DAILY = Query(
    "daily",
    slots=24,
    statistic=DistinctUsers(),
    where=(Condition("kind", ("car",)),),
    mechanism="pba",
)
SHIFT = replace(DAILY, name="shift", slots=6)
SPEED = Query(
    "speed", slots=3, value=("value",), domain=AB, statistic=Mean("speed", 0, 100), mechanism="ba"
)


WINDOWS = {
    "registry": Registry.of(
        dict.fromkeys(USERS[:30], (2, 60.0)), default=(Requirement(3, 40.0), 10)
    )
}
LONG = Registry.of(dict.fromkeys(USERS[:30], (24, 900.0)), default=(Requirement(24, 800.0), 10))
LIMITED = {"registry": LONG, "limit": Limit(1)}
LIVES = {
    "registry": Registry.of(default=(Lifetime(900.0), 0)),
    "limit": Limit(None, in_life=2),
}


def even(queries, registry):
    budgets = Requirements.of(registry.classes).budgets
    return np.tile(budgets // len(queries), (len(queries), 1))


def answers(*queries, registry=EXACT, **options):
    """The transform over hours, with the budget in equal shares. Whatever is lost is no fault."""
    query_set = QuerySet(Slots.of("1h"), queries)
    options = {"noise_key": bytes(32), "max_rejected": 1.0, **options}
    return PrivateAnswers(
        query_set,
        registry,
        columns_for(query_set, "user", "time"),
        even(queries, registry),
        **options,
    )


def batch(rows):
    """Of (user, value, slot, kind, speed) rows: one event a millisecond into its hour."""
    users, values, slots, kinds, speeds = zip(*rows, strict=True) if rows else ((),) * 5
    times = np.array(slots, np.int64) * HOUR + 1000
    return pa.RecordBatch.from_pydict(
        {
            "user": pa.array(users, pa.string()),
            "value": pa.array(values, pa.string()),
            "time": pa.array(times, pa.timestamp("us", "UTC")),
            "kind": pa.array(kinds, pa.string()),
            "speed": pa.array(speeds, pa.float64()),
        }
    )


def random_rows(number, slots, seed=10):
    draw = np.random.default_rng(seed)
    return [
        (
            USERS[draw.integers(len(USERS))],
            "ab"[draw.integers(2)],
            int(draw.integers(slots)),
            ("car", "bus")[draw.integers(2)],
            float(draw.integers(100)),
        )
        for _ in range(number)
    ]


def by_query(ran):
    found = collections.defaultdict(dict)
    for answer in ran.answers:
        found[answer.query][answer.slot] = answer
    return found


def test_one_query_counts_what_histograms_count(here, kit):
    rows = random_rows(2000, 12)
    more = {"max_contributions": 2, "keep": "distinct"}
    one = Query("one", value=("value",), domain=AB, mechanism="pba", **more)
    ran = here(answers(one), [batch(rows[:900]), batch(rows[900:])])
    plain = here(
        kit.histograms(EXACT, **more),
        [kit.batch([row[:3] for row in some]) for some in (rows[:900], rows[900:])],
    )
    assert [answer.values[:, 0].tolist() for answer in ran.answers] == [
        release.counts.tolist() for release in plain.releases
    ]
    for name in ("events_counted", "events_bounded_away"):
        assert ran.counters[name] == plain.counters[name] > 0
        assert ran.counters[f"{name} of query one"] == plain.counters[name]


def test_queries_of_different_slots_are_counted_in_one_pass(here):
    rows = random_rows(1500, 48)
    transform = answers(HOURLY, DAILY, SPEED, shards=2, first_slot=0, last_slot=47)
    ran = here(transform, [batch(rows[:700]), batch(rows[700:])])
    found = by_query(ran)
    assert [len(found[name]) for name in ("hourly", "daily", "speed")] == [48, 2, 16]
    for slot, answer in found["hourly"].items():
        assert answer.values.sum() == len({user for user, _, at, *_ in rows if at == slot})
        assert (answer.start, answer.end) == (slot * HOUR, (slot + 1) * HOUR)
        assert answer.labels == ("a", "b")
    for slot, answer in found["daily"].items():
        cars = {user for user, _, at, kind, _ in rows if at // 24 == slot and kind == "car"}
        assert answer.values.tolist() == [[len(cars)]]
        assert answer.outputs == ("users",)
    assert found["daily"][1].start == 24 * HOUR
    assert ran.done == [66]
    assert ran.state[0][0] == 48
    counted = [(one.query, one.first_base_slot, one.last_base_slot) for one in ran.ledger]
    assert counted[2:4] == [("hourly", 2, 2), ("speed", 0, 2)]
    assert counted[-2:] == [("daily", 24, 47), ("speed", 45, 47)]
    assert all(one.spent_in_window <= 4096 for one in ran.ledger)
    assert ran.counters["events_counted"] == 1500
    assert "events_bounded_away" not in ran.counters
    assert "events_unasked" not in ran.counters


# Each event once: rejected, or taken by any query, or of no query's kind.
def test_what_became_of_events_adds_up_over_queries(here):
    rows = random_rows(300, 6)
    cars = Condition("kind", ("car",))
    some = [Query(name, where=(cars,), mechanism="ba") for name in ("one", "other")]
    for asked in (some, some[:1]):
        ran = here(answers(*asked, first_slot=0, last_slot=3), [batch(rows)])
        inside = [kind == "car" for _, _, at, kind, *_ in rows if at <= 3]
        assert ran.counters["events_unasked"] == len(inside) - sum(inside)
        dropped = ran.counters.get("events_bounded_away", 0)
        assert ran.counters["events_counted"] + dropped == sum(inside)
        assert ran.counters["events_read"] == 300


# 40 users with one number each, so that nothing is drawn.
def test_a_mean_is_that_of_the_numbers_within_its_bounds(here):
    rows = [(user, "ab"[i % 2], 0, "car", 3.0 * i - 5) for i, user in enumerate(USERS)]
    (answer,) = here(answers(SPEED, first_slot=0, last_slot=2), [batch(rows)]).answers
    numbers = np.clip([row[4] for row in rows], 0, 100)
    expected = [numbers[i::2].mean() for i in (0, 1)]
    np.testing.assert_allclose(answer.values[:, 0], expected, atol=0.1)
    assert (answer.low[:, 0] <= answer.values[:, 0]).all()
    assert (answer.high[:, 0] >= answer.values[:, 0]).all()


def test_a_user_counts_once_in_a_slot_and_bin_and_in_so_many_bins(here):
    rows = [("u1", "a", 0, "car", 0.0)] * 5 + [("u1", "b", 1, "car", 0.0), ("u2", "a", 2, "", 0.0)]
    people = Query(
        "people",
        slots=3,
        value=("value",),
        domain=AB,
        statistic=DistinctUsers(),
        max_contributions=2,
        mechanism="pba",
    )
    ran = here(answers(people, first_slot=0, last_slot=2), [batch(rows[:3]), batch(rows[3:])])
    assert ran.answers[0].values.tolist() == [[2], [1]]
    assert ran.counters["events_bounded_away of query people"] == 4


# Groups of one bin each, and one bin under `all`: nodes are as many as bins times levels.
@pytest.mark.parametrize("labels", ["ab", "a"])
def test_groups_of_one_bin_each_hold_what_their_bin_holds_whatever_users_ask_for(here, labels):
    asked = replace(
        HOURLY, domain=Categories(tuple(labels)), tree=Tree((tuple(f"just {x}" for x in labels),))
    )
    exact = Registry.of({u: (1 + i % 3, 4096.0) for i, u in enumerate(USERS)})
    rows = [(u, labels[i % 3 % len(labels)], 0, None, 0.0) for i, u in enumerate(USERS)]
    (answer,) = here(answers(asked, registry=exact), [batch(rows)]).answers
    counts = [sum(row[1] == label for row in rows) for label in labels]
    assert answer.values[:, 0].tolist() == counts * 2


def test_strangers_count_with_their_class(here):
    registry = Registry.of({"u0": (1, 4096.0)}, default=(Requirement(1, 2048.0), 10))
    rows = [(f"s{i % 4}", "a", i % 6, "car", 0.0) for i in range(24)] + random_rows(0, 1)
    ran = here(
        answers(HOURLY, DAILY, registry=registry, shards=3, first_slot=0, last_slot=23),
        [batch(rows[:9]), batch(rows[9:])],
    )
    found = by_query(ran)
    there = {(slot, user) for user, _, slot, *_ in rows}
    assert [found["hourly"][slot].values[0, 0] for slot in range(24)] == [
        len([user for at, user in there if at == slot]) for slot in range(24)
    ]
    assert found["daily"][0].values.tolist() == [[4]]


def figures(ran):
    return {
        (one.query, one.slot): (one.values.tolist(), one.stderr.tolist(), one.status)
        for one in ran.answers
    }


# Whatever the order of the events, the batches and the shards: the same answers.
@pytest.mark.parametrize("more", [{"registry": USUAL}, LIMITED, LIVES])
def test_a_replay_gives_the_same(here, more):
    rows = random_rows(300, 6)
    asked = {**more, "first_slot": 0, "last_slot": 5}
    one = here(answers(HOURLY, SHIFT, SPEED, **asked), [batch(rows)])
    other = here(
        answers(HOURLY, SHIFT, SPEED, shards=3, **asked),
        [batch(rows[200:][::-1]), batch(rows[:200])],
    )
    assert str(figures(one)) == str(figures(other))
    assert PUBLISHED in str(figures(one))


def test_passes_go_on_from_each_other(here):
    rows = random_rows(300, 12)
    three, asked = (HOURLY, SHIFT, SPEED), {"registry": USUAL}
    whole = here(answers(*three, first_slot=0, last_slot=11, **asked), [batch(rows)])
    parts = [[row for row in rows if row[2] // 6 == part] for part in (0, 1)]
    first = here(answers(*three, first_slot=0, last_slot=5, ends=False, **asked), [batch(parts[0])])
    ((at, state),) = first.state
    then = {"first_slot": at, "last_slot": 11, "resume": state}
    second = here(answers(*three, **then, **asked), [batch(parts[1])])
    assert str(figures(whole)) == str(figures(first) | figures(second))
    assert PUBLISHED in str(figures(second))
    assert whole.state == second.state
    with pytest.raises(ConfigurationError, match="continues with slot 6"):
        answers(*three, **{**then, "first_slot": 7}, **asked)
    with pytest.raises(ConfigurationError, match="query speed"):
        answers(HOURLY, SHIFT, **then, **asked)


# Passes may end within slots of longer queries: their events go on with the state, also of users
# with many of them, of whom some are drawn when all are there, of strangers, and to other shards.
@pytest.mark.slow
@pytest.mark.parametrize("asked_for", [WINDOWS, LIMITED, LIVES])
def test_slots_that_are_not_over_go_on_in_the_next_pass(here, asked_for):
    few = replace(SPEED, slots=5, max_contributions=2)
    distinct = replace(SHIFT, name="distinct", slots=6, max_contributions=2, keep="distinct")
    asked = (HOURLY, few, distinct, replace(DAILY, value=("value",), domain=AB))
    rows = random_rows(900, 30)
    whole = here(answers(*asked, **asked_for, first_slot=0, last_slot=29), [batch(rows)])
    found, at, state = {}, 0, None
    # Who counted in which slots is kept by shard.
    for end, shards in ((6, 1), (7, 1 if "limit" in asked_for else 2), (27, 1)):
        more = {"first_slot": at, "last_slot": end, "resume": state, "ends": False}
        some = [row for row in rows if at <= row[2] <= end]
        ran = here(answers(*asked, **asked_for, shards=shards, **more), [batch(some)])
        assert (ran.done, ran.booked) == ([len(ran.answers)], [len(ran.ledger)])
        found |= figures(ran)
        ((at, state),) = ran.state
        assert at == end + 1
    expected = {key: one for key, one in figures(whole).items() if key in found}
    assert str(sorted(found.items())) == str(sorted(expected.items()))
    # The first day is answered by the last pass; slots that are not over, where a stream ends.
    assert ("daily", 0) in found
    rest = [("daily", 1), ("distinct", 4), ("hourly", 28), ("hourly", 29), ("speed", 5)]
    assert sorted(figures(whole).keys() - found.keys()) == rest


# Slots of queries that the range cuts count what is within; later ones have no result.
def test_a_range_within_slots_of_queries(here, caplog):
    rows = [("u1", "a", slot, "car", 0.0) for slot in range(2, 30)]
    ran = here(answers(HOURLY, DAILY, first_slot=4, last_slot=26), [batch(rows)])
    found = by_query(ran)
    assert list(found["hourly"]) == list(range(4, 27))
    assert {slot: one.values.tolist() for slot, one in found["daily"].items()} == {
        0: [[1]],
        1: [[1]],
    }
    assert [one.figures.notes.tolist() for one in found["daily"].values()] == [
        [["a part of the time: 20 of its 24 slots of 1h"]],
        [["a part of the time: 3 of its 24 slots of 1h"]],
    ]
    assert len(ran.ledger) == len(ran.answers) == 25
    assert ran.state == []
    assert {letter["reason"] for letter in ran.dead_letters} == {"outside the released slots"}
    assert [record.message for record in caplog.records if record.name == "streamveil"] == [
        "the range starts at 1970-01-01T04:00:00Z, within a slot of daily: of the first slot of "
        "each a part counts",
        "the range ends at 1970-01-02T03:00:00Z, within a slot of daily: of the last slot of each "
        "a part counts",
    ]


IN_TIMES = replace(HOURLY, times=(3, 6), mechanism="adaptive")


def times(ran):
    return {(one.length, one.slot): one for one in ran.answers if one.length != "1h"}


def test_longer_times_add_up_to_the_end_of_the_range(here, caplog):
    rows = random_rows(400, 12)
    transform = answers(IN_TIMES, DAILY, registry=USUAL, first_slot=1, last_slot=9)
    ran = here(transform, [batch(rows)])
    hours = {one.slot: one for one in ran.answers if one.length == "1h"}
    found = times(ran)
    del found["1d", 0]
    assert list(found) == [("3h", 0), ("3h", 1), ("6h", 0), ("3h", 2), ("3h", 3), ("6h", 1)]
    for (length, slot), one in found.items():
        size = int(length[0])
        those = [hours[hour].values for hour in hours if hour // size == slot]
        np.testing.assert_array_equal(one.values, np.sum(those, axis=0))
        assert (one.start, one.end) == (slot * size * HOUR, (slot + 1) * size * HOUR)
        cut = len(those) < size
        note = f"a part of the time: {len(those)} of its {size} slots of 1h" if cut else ""
        assert one.figures.notes[0, 0].endswith(note)
        assert cut == ((length, slot) in [("3h", 0), ("6h", 0), ("3h", 3), ("6h", 1)])
    assert len(ran.ledger) == len(hours) + 1 == ran.booked[0]
    assert ran.done == [len(ran.answers)]
    assert "within a slot of daily, hourly by 3h, hourly by 6h: of the first" in caplog.text


def test_longer_times_go_on_in_the_next_pass(here):
    rows, asked = random_rows(300, 10), {"registry": USUAL}
    whole = here(answers(IN_TIMES, first_slot=0, last_slot=9, **asked), [batch(rows)])
    parts = [[row for row in rows if (row[2] < 5) == first] for first in (True, False)]
    first = here(
        answers(IN_TIMES, first_slot=0, last_slot=4, ends=False, **asked), [batch(parts[0])]
    )
    ((at, state),) = first.state
    second = here(
        answers(IN_TIMES, first_slot=at, last_slot=9, resume=state, **asked), [batch(parts[1])]
    )
    assert list(times(first)) == [("3h", 0)]
    pieces = times(first) | times(second)
    assert list(pieces) == list(times(whole))
    for key, one in times(whole).items():
        np.testing.assert_array_equal(one.values, pieces[key].values)
        np.testing.assert_array_equal(one.stderr, pieces[key].stderr)
    assert whole.state == second.state


def test_without_a_range_the_last_times_are_reported_as_far_as_they_go(here):
    ran = here(answers(IN_TIMES), [batch([("u1", "a", slot, "car", 0.0) for slot in (4, 7)])])
    assert list(times(ran)) == [("3h", 1), ("6h", 0), ("3h", 2), ("6h", 1)]
    assert times(ran)["6h", 1].values[0, 0] == pytest.approx(1, abs=0.01)
    assert ran.done == [len(ran.answers)]


# Longer times cost nothing and change nothing: the same noise, slot by slot.
def test_slots_are_released_as_without_longer_times(here):
    rows, asked = random_rows(200, 6), {"registry": USUAL, "first_slot": 0, "last_slot": 5}
    with_them = here(answers(IN_TIMES, **asked), [batch(rows)])
    without = here(answers(replace(IN_TIMES, times=()), **asked), [batch(rows)])
    hours = [one for one in with_them.answers if one.length == "1h"]
    assert [one.values.tolist() for one in hours] == [
        one.values.tolist() for one in without.answers
    ]
    assert [one.spent.tolist() for one in with_them.ledger] == [
        one.spent.tolist() for one in without.ledger
    ]


def test_the_range_may_be_that_of_the_events(here):
    ran = here(answers(HOURLY, DAILY), [batch([("u1", "a", 30, "car", 0.0)])])
    found = by_query(ran)
    assert list(found["hourly"]) == list(range(30, 48))
    assert list(found["daily"]) == [1]
    assert ran.state[0][0] == 48


def test_an_event_is_lost_once_and_counts_where_it_can_be_read(here):
    rows = [("u1", "a", 0, "car", float("nan")), ("u2", "c", 0, "car", 1.0)]
    ran = here(answers(HOURLY, DAILY, SPEED, first_slot=0, last_slot=23), [batch(rows)])
    assert sorted(letter["reason"] for letter in ran.dead_letters) == [
        "not a finite number (query speed, counted in others)",
        "outside the domain (query hourly, counted in others)",
    ]
    found = by_query(ran)
    assert found["hourly"][0].values.tolist() == [[1], [0]]
    assert found["daily"][0].values.tolist() == [[2]]
    assert ran.counters["events_read"] == 2


def test_most_events_lost_to_all_queries_stop_the_run(here):
    rows = [("u1", "c", slot, "car", 1.0) for slot in range(4)]
    lossy = {"first_slot": 0, "last_slot": 23, "max_rejected": 0.5}
    with pytest.raises(Exception, match=r"outside the domain \(query hourly\) \(4\)"):
        here(answers(HOURLY, **lossy), [batch(rows)])


def test_a_query_that_can_read_nothing_stops_the_run_unless_anything_may_be_lost(here):
    rows = [("u1", "c", slot, "car", 1.0) for slot in range(4)]
    asked = answers(HOURLY, DAILY, first_slot=0, last_slot=23, max_rejected=0.5)
    with pytest.raises(Exception, match="query 'hourly' asks about 4 events and can read none"):
        here(asked, [batch(rows)])
    # One of them is enough, or that nobody minds.
    here(asked, [batch([*rows, ("u2", "a", 1, "car", 1.0)])])
    ran = here(replace(asked, max_rejected=1.0), [batch(rows)])
    assert by_query(ran)["daily"][0].values.tolist() == [[1]]


# ---- inputs without end ------------------------------------------------------------------------


@pytest.fixture
def live(run_on, kit, monkeypatch):
    """Run what happens to queries from base slot 0 on; give what ran, and all that was counted.

    The runner loses the metrics of all but a first bundle and of timers, so the calls are counted.
    """

    def live(happens, *queries, **options):
        counted = collections.Counter()

        def note(name, amount):
            counted[name] += amount

        monkeypatch.setattr(metrics, "count", note)
        line = kit.timeline(answers(*queries, **{"first_slot": 0, **options}), batch=batch)
        happens(line)
        return run_on("bundle_based", line.transform, line, "--streaming"), counted

    return live


def event(user, slot):
    return (user, "a", slot, "car", 1.0)


# The shift's slot is open for as long as it lasts: an event may be late for the hours alone.
def test_queries_are_answered_as_their_slots_close(live):
    def happens(line):
        line.events(event("u1", 0), event("u2", 4)).advance(2.5)
        line.events(event("u3", 1), event("u4", 2)).advance(6.5)
        line.events(event("u5", 5), event("u6", 8)).advance(12)

    ran, counted = live(happens, HOURLY, SHIFT, shards=2)
    found = by_query(ran)
    hours = [found["hourly"][slot].values.sum() for slot in range(12)]
    assert hours == [1, 0, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0]
    assert [found["shift"][slot].values.sum() for slot in range(2)] == [4, 1]
    # What is due with the same base slot is answered together.
    assert [one.query for one in ran.answers][5:8] == ["hourly", "shift", "hourly"]
    assert sorted(
        (row["reason"], row["detail"].split(" that ")[0]) for row in ran.dead_letters
    ) == [
        ("late", "the slot of query 'hourly'"),
        ("late", "the slot of query 'hourly'"),
        ("late", "the slot of query 'shift'"),
    ]
    assert counted[metrics.EVENTS_LATE] == 3
    assert counted["events_late of query hourly"] == 2
    assert counted["events_late of query shift"] == 1
    for name in ("hourly", "shift"):
        of_query = f" of query {name}"
        assert (
            sum(n for which, n in counted.items() if of_query in which and "slots" not in which)
            == 6
        )
    assert counted["events_counted of query shift"] == 5
    assert counted["events_counted"] == 6


@pytest.mark.parametrize("more", [{"registry": USUAL}, LIMITED, LIVES])
def test_a_stream_answers_as_a_run_over_a_file_does(live, here, more):
    rows = random_rows(100, 4)
    both, asked = (HOURLY, SPEED), {**more, "last_slot": 3}

    def happens(line):
        for hour in range(4):
            line.events(*[row for row in rows if row[2] == hour]).advance(hour + 1)
        line.advance(10)

    streamed, _ = live(happens, *both, **asked)
    at_once = here(answers(*both, first_slot=0, **asked), [batch(rows)])
    assert str(figures(streamed)) == str(figures(at_once))
    assert [one.query for one in streamed.answers][-2:] == ["hourly", "speed"]
    assert PUBLISHED in str(figures(streamed))
    assert (streamed.done, at_once.done) == ([], [6])


# What waits is as of any run before, whose blocks and shards were others.
@pytest.mark.parametrize("more", [{"registry": USUAL}, {**LIMITED, "shards": 2}])
def test_a_stream_goes_on_from_slots_that_are_not_over(live, here, more):
    rows = random_rows(200, 12)
    both, asked = (HOURLY, SHIFT), more
    whole = here(answers(*both, first_slot=0, last_slot=11, **asked), [batch(rows)])
    begun = answers(*both, first_slot=0, last_slot=3, ends=False, **{**asked, "shards": 2})
    first = here(begun, [batch([row for row in rows if row[2] < 4])])
    ((at, state),) = first.state

    def happens(line):
        for hour in range(at, 12):
            line.events(*[row for row in rows if row[2] == hour]).advance(hour + 1)
        line.advance(20)

    streamed, _ = live(happens, *both, first_slot=at, last_slot=11, resume=state, **asked)
    assert str(sorted((figures(first) | figures(streamed)).items())) == str(
        sorted(figures(whole).items())
    )


# ---- participation limits ---------------------------------------------------------------------


# The same key gives users of a set the calendars that users of a single count have.
def test_a_query_counts_in_the_slots_in_which_histograms_count(here, kit):
    rows = random_rows(2000, 48)
    one = replace(HOURLY, name="one")
    ran = here(answers(one, **LIMITED), [batch(rows[:900]), batch(rows[900:])])
    plain = here(kit.histograms(LONG, limit=Limit(1)), [kit.batch([row[:3] for row in rows])])
    for name in ("events_counted", "events_beyond_limit", "events_bounded_away"):
        assert ran.counters[name] == plain.counters[name] > 0
        assert ran.counters[f"{name} of query one"] == plain.counters[name]
    assert ran.counters["events_read"] == 2000


# Each query has counters of its own; of all queries an event is counted where any takes it.
def test_every_query_counts_users_in_slots_of_its_own(here):
    rows = [(user, "a", slot, "car", 1.0) for user in USERS for slot in range(48)]
    halves = replace(SHIFT, name="halves", slots=12)
    some = answers(HOURLY, SHIFT, halves, **LIMITED, first_slot=0, last_slot=47, shards=2)
    ran = here(some, [batch(rows)])
    assert [one.limits[0].is_none for one in some.presences] == [False, True, True]
    counted = {
        name: ran.counters[f"events_counted of query {name}"] for name in ("hourly", "shift")
    }
    assert counted["shift"] == 40 * 8
    assert 40 * 4 <= counted["hourly"] <= 40 * 5  # blocks of twelve hours begin at any
    beyond = ran.counters["events_beyond_limit of query hourly"]
    assert beyond + counted["hourly"] == len(rows) == ran.counters["events_counted"]
    assert "events_beyond_limit" not in ran.counters
    hours = [one for one in ran.answers if one.query == "hourly"]
    assert np.mean([one.values.sum() for one in hours[24:]]) == pytest.approx(40, rel=0.3)
    assert all((one.spent_in_window <= [900.0, 800.0]).all() for one in ran.ledger)


# In each query the first two slots of a lifetime, whatever the others count.
def test_a_lifetime_counts_in_the_first_slots_of_each_query(here):
    rows = [(user, "a", slot, "car", 1.0) for user in USERS for slot in range(48)]
    ran = here(answers(HOURLY, SHIFT, **LIVES, first_slot=0, last_slot=47), [batch(rows)])
    for name in ("hourly", "shift"):
        assert ran.counters[f"events_counted of query {name}"] == 40 * 2
    assert all(one.users == [0] for one in ran.ledger)
    spent = [one.spent_in_window[0] for one in ran.ledger]
    assert 890 < max(spent) <= 900


# 0.7 slots of a block of 24 hours: one or two count, and of shifts, eight in a window, all do.
RARE = Registry.of(dict.fromkeys(USERS, (48, 4000.0)))
CHOSEN = {"registry": RARE, "limit": Auto(), "first_slot": 0}


def rare_rows():
    random = np.random.default_rng(5)
    users, slots = np.nonzero(random.random((len(USERS), 96)) < 0.03)
    return [(USERS[u], "a", int(s), "car", 1.0) for u, s in zip(users, slots, strict=True)]


def chosen(ran):
    start = "users limited to "
    return {name.removeprefix(start) for name in ran.counters if name.startswith(start)}


def test_a_look_chooses_a_limit_for_each_query(here):
    plan = answers(HOURLY, SHIFT, **CHOSEN, last_slot=95)
    hourly, shift = plan.looks
    assert (hourly.adjacency, hourly.every) == (ADD_REMOVE, 24)
    assert (shift.adjacency, shift.every, shift.most) == (REPLACE, 5, 1)
    assert hourly.requirement.epsilon == 2000
    whole = here(plan, [batch(rare_rows())])
    assert chosen(whole) & {f"{most} of 24 of query hourly" for most in (2, 3)}
    other = here(answers(HOURLY, SHIFT, **CHOSEN, last_slot=95, shards=2), [batch(rare_rows())])
    assert str(figures(whole)) == str(figures(other))
    exact = here(answers(HOURLY, SHIFT, **CHOSEN, last_slot=95, test_mode=True), [])
    assert chosen(exact) == {f"1 of 1 of query {name}" for name in ("hourly", "shift")}


def test_the_next_pass_goes_on_under_the_limits_that_were_chosen(here):
    asked, rows = {**CHOSEN, "ends": False}, rare_rows()
    parts = [[row for row in rows if row[2] // 48 == part] for part in (0, 1)]
    first = here(answers(HOURLY, SHIFT, **asked, last_slot=47), [batch(parts[0])])
    ((at, state),) = first.state
    later = {**asked, "first_slot": at, "last_slot": 95, "resume": state}
    plan = answers(HOURLY, SHIFT, **later)
    assert plan.looks == ()
    limit = plan.presences[0].limits[0]
    assert limit.chosen
    assert f"{limit.max_slots} of 24 of query hourly" in chosen(first)
    second = here(plan, [batch(parts[1])])
    whole = here(answers(HOURLY, SHIFT, **{**asked, "limit": limit}, last_slot=95), [batch(rows)])
    for name in ("events_counted of query hourly", "events_beyond_limit of query hourly"):
        assert first.counters[name] + second.counters[name] == whole.counters[name]
    with pytest.raises(ConfigurationError, match="participation limit"):
        answers(HOURLY, SHIFT, **{**later, "limit": Limit(2)})
    with pytest.raises(ConfigurationError, match="participation limit"):
        answers(HOURLY, SHIFT, **{**later, "limit": Auto(blocks=3)})
    other = Registry.of({**dict.fromkeys(USERS, (48, 4000.0)), "u1": (48, 9.0)})
    for changed in ((HOURLY, SHIFT, SPEED), (HOURLY,)):
        with pytest.raises(ConfigurationError, match="another configuration"):
            answers(*changed, **later)
    with pytest.raises(ConfigurationError, match="another configuration"):
        answers(HOURLY, SHIFT, **{**later, "registry": other})


LOOKED_AT = replace(SPEED, statistic=AutoBounds("mean", "speed"), slots=1)


def both_chosen(**options):
    """A plan of which both bounds and limits are chosen, with shares that leave room for both."""
    query_set = QuerySet(Slots.of("1h"), (HOURLY, LOOKED_AT))
    options = {"noise_key": bytes(32), **CHOSEN, "last_slot": 95, **options}
    registry = options.pop("registry")
    return PrivateAnswers(query_set, registry, columns_for(query_set, "user", "time"), **options)


def fast_rows():
    draw = np.random.default_rng(6)
    return [(*row[:4], float(draw.uniform(20, 30))) for row in rare_rows()]


# The look at numbers is first, and its bounds are what is counted under; then limits are chosen.
def test_bounds_and_limits_are_both_chosen(here, run_on):
    rows = fast_rows()
    alone = here(both_chosen(), [batch(rows)])
    ran = run_on("bundle_based", both_chosen(shards=2), [batch(rows[::2]), batch(rows[1::2])])
    assert str(figures(ran)) == str(figures(alone))
    assert chosen(ran) == chosen(alone)
    assert {one.partition(" of query ")[2] for one in chosen(alone)} == {"hourly", "speed"}
    assert "1 of 1 of query hourly" not in chosen(alone)
    (bounds,) = [name for name in alone.counters if name.startswith("bounds chosen")]
    assert bounds == "bounds chosen of query speed: 16 to 32"
    assert alone.counters[bounds] == ran.counters[bounds] == 1
    assert all((one.spent_in_window <= 4000).all() for one in alone.ledger)
    exact = here(both_chosen(test_mode=True), [batch(rows)])
    assert [name for name in exact.counters if name.startswith("bounds chosen")]


def test_both_looks_are_booked_before_anything_is_released():
    plan = both_chosen()
    driver = plan.ledgers(plan.layout(bounded=True)).make()
    aside = set_aside(plan.query_set, RARE.classes, RARE.sizes)
    looks = [units // LOOK for units in plan.units]
    assert aside.sum() > 0
    booked = driver.start().filter.in_window
    assert (booked >= aside + np.sum(looks, axis=0)).all()
    assert ((aside + np.sum(plan.units, axis=0)) <= Requirements.of(RARE.classes).budgets).all()


# They come to the release stage in any order.
def test_what_was_chosen_may_come_in_any_order():
    plan = both_chosen()
    driver = plan.ledgers(plan.layout(bounded=True)).make()
    bounds = Message(Kind.BOUNDS, payload=array_to_bytes(np.array([[16.0, 32.0]])))
    limits = choice_message([Limit(2, chosen=True), Limit(3, chosen=True)])
    one = driver.chosen(bounds).chosen(limits)
    other = driver.chosen(limits).chosen(bounds)
    assert one.encode(one.start()) == other.encode(other.start())
    assert one.layout.query_set == other.layout.query_set
    assert [p.limits[0].max_slots for p in one.ledgers.presences] == [2, 3]


def test_the_next_pass_keeps_both(here):
    asked, rows = {"ends": False}, fast_rows()
    begun = both_chosen(**asked, last_slot=47)
    first = here(begun, [batch([row for row in rows if row[2] < 48])])
    ((at, state),) = first.state
    plan = both_chosen(**asked, first_slot=at, resume=state)
    assert plan.looks == ()
    assert plan.query_set.queries[1].statistic.upper == 32
    second = here(plan, [batch([row for row in rows if row[2] >= 48])])
    assert not chosen(second)
    found = {one.slot for ran in (first, second) for one in ran.answers if one.query == "speed"}
    assert found == set(range(96))


def test_a_look_that_cannot_be_is_refused():
    with pytest.raises(ConfigurationError, match=r"no window shorter than 48: begin with 48 slots"):
        answers(HOURLY, **CHOSEN, last_slot=46).check_look()
    with pytest.raises(ConfigurationError, match="so the input must be bounded"):
        answers(HOURLY, **CHOSEN).steps(bounded=False, changes=False)
    poor = Registry.of(dict.fromkeys(USERS, (48, 2**-33)))
    with pytest.raises(ConfigurationError, match="too small a budget to estimate a limit"):
        answers(HOURLY, **{**CHOSEN, "registry": poor}, last_slot=95)


def test_limits_that_do_not_fit_are_refused(here):
    rows, asked = random_rows(100, 6), {**LIMITED, "shards": 2}
    begun = answers(HOURLY, SHIFT, **asked, first_slot=0, last_slot=5, ends=False)
    ((at, state),) = here(begun, [batch(rows)]).state
    later = {"first_slot": at, "last_slot": 11, "resume": state}
    with pytest.raises(ConfigurationError, match="--shards=2, and this run has 3"):
        answers(HOURLY, SHIFT, **{**asked, "shards": 3}, **later)
    with pytest.raises(ConfigurationError, match="participation limit"):
        answers(HOURLY, SHIFT, **{**asked, "limit": Limit(2)}, **later)
    with pytest.raises(ConfigurationError, match="give one Limit for all users"):
        answers(HOURLY, **{**asked, "limit": [Limit(1), Limit(2)]})
    with pytest.raises(ConfigurationError, match="at most max_slots"):
        answers(HOURLY, **{**asked, "limit": Limit(9)})


# Later versions may plan others; a stream keeps those that it began with.
def test_a_run_that_goes_on_keeps_the_shares_that_were_planned(here, monkeypatch):
    query_set = QuerySet(Slots.of("1h"), (HOURLY, replace(SPEED, weight=3.0)))
    columns = columns_for(query_set, "user", "time")
    options = {"noise_key": bytes(32), "first_slot": 0, "last_slot": 1, "ends": False}
    begun = PrivateAnswers(query_set, USUAL, columns, **options)
    ((at, state),) = here(begun, [batch(random_rows(50, 2))]).state
    monkeypatch.setattr(
        "streamveil.engine.stream.query_plan.plan_shares",
        lambda *_, **__: (None, even(query_set.queries, USUAL)),
    )
    later = {**options, "first_slot": at, "last_slot": 5, "resume": state}
    assert (PrivateAnswers(query_set, USUAL, columns, **later).units == begun.units).all()
    assert (replace(begun, **later).units == begun.units).all()
    with pytest.raises(ConfigurationError, match="the shares of the budget changed since"):
        PrivateAnswers(query_set, USUAL, columns, even(query_set.queries, USUAL), **later)


def test_a_longer_time_of_a_stream_comes_with_its_last_slot(live):
    def happens(line):
        line.events(event("u1", 0), event("u2", 2)).advance(2.5)
        line.events(event("u3", 2), event("u4", 3)).advance(6.5)

    ran, _ = live(happens, replace(HOURLY, times=(3,)))
    answers = [(one.length, one.slot, int(one.values[0, 0])) for one in ran.answers]
    assert answers[:8] == [
        *(("1h", 0, 1), ("1h", 1, 0), ("1h", 2, 2), ("3h", 0, 3)),
        *(("1h", 3, 1), ("1h", 4, 0), ("1h", 5, 0), ("3h", 1, 1)),
    ]


def test_shares_are_planned_unless_given(here):
    query_set = QuerySet(Slots.of("1h"), (HOURLY, SHIFT))
    rows = random_rows(50, 2)
    options = {"noise_key": bytes(32), "first_slot": 0, "last_slot": 1}
    columns = columns_for(query_set, "user", "time")
    planned, units = plan_shares(query_set, USUAL.classes, USUAL.sizes)
    ran = here(PrivateAnswers(query_set, USUAL, columns, **options), [batch(rows)])
    given = PrivateAnswers(query_set, USUAL, columns, units, **options)
    assert str(figures(ran)) == str(figures(here(given, [batch(rows)])))
    assert planned.sum() <= 1


def test_a_stream_needs_to_know_its_first_slot(run_on, kit):
    line = kit.timeline(answers(HOURLY), batch=batch).events(event("u1", 0)).advance(2)
    with pytest.raises(ConfigurationError, match="give --start"):
        run_on("bundle_based", line.transform, line, "--streaming")


# ---- refusals ----------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused():
    query_set = QuerySet(Slots.of("1h"), (HOURLY, SPEED))
    with pytest.raises(ConfigurationError, match="query 'speed' reads the column 'speed'"):
        PrivateAnswers(
            query_set, EXACT, Columns("user", "value", "time"), even((HOURLY, SPEED), EXACT)
        )
    columns = columns_for(query_set, "user", "time")
    with pytest.raises(ConfigurationError, match=r"shares.*give an array of units"):
        PrivateAnswers(query_set, EXACT, columns, [[1], [1]])
    forever = Registry.of({}, default=(Lifetime(1.0), 5))
    with pytest.raises(ConfigurationError, match="limit the slots of each user's lifetime"):
        PrivateAnswers(query_set, forever, columns, even((HOURLY, SPEED), forever))
    limited = Registry.build(
        ["u"], np.array([3]), np.array([1.0]), max_slots=np.array([2], np.int64)
    )
    with pytest.raises(ConfigurationError, match=r"user 'u' .*: max_slots=2 .* saves nothing"):
        PrivateAnswers(query_set, limited, columns)
    with pytest.raises(ConfigurationError, match="query_set"):
        PrivateAnswers([HOURLY], EXACT, Columns("user", "value", "time"), even((HOURLY,), EXACT))


# The last slot of a query may end much later than the range: nothing is released on the way there.
def test_the_end_of_a_long_slot_is_reached_at_once(here, monkeypatch):
    taken, release = [], QueryStream.release

    def release_and_tell(stream, state, base_slot, counts, beyond):
        taken.append((base_slot, sorted(counts)))
        return release(stream, state, base_slot, counts, beyond)

    monkeypatch.setattr(QueryStream, "release", release_and_tell)
    centuries = replace(DAILY, name="long", slots=876_600)
    rows = [("u1", "a", slot, "car", 0.0) for slot in (4, 26)]
    ran = here(answers(HOURLY, DAILY, centuries, first_slot=4, last_slot=26), [batch(rows)])
    assert taken == [
        *((slot, [0]) for slot in range(4, 23)),
        *((23, [0, 1]), (24, [0]), (25, [0]), (26, [0]), (47, [1]), (876_599, [2])),
    ]
    (long,) = by_query(ran)["long"].values()
    assert (long.slot, long.values.tolist()) == (0, [[1]])
    assert long.figures.notes.tolist() == [["a part of the time: 23 of its 876600 slots of 1h"]]
