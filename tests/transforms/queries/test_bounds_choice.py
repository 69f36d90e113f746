"""Bounds that a run chooses itself: by which events, what is logged, kept and refused."""

import re
from dataclasses import replace

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamveil.engine.count import bounds_choice
from streamveil.engine.count.bounds_choice import BoundsChoice, Sample
from streamveil.engine.count.event_codes import Packed
from streamveil.engine.encode.query_mapper import QueriesMapper
from streamveil.engine.messages import Kind, Message, array_to_bytes
from streamveil.engine.stream.query_plan import columns_for
from streamveil.mechanisms import Categories, ConfigurationError, Registry, Requirement, Slots
from streamveil.mechanisms.core.budgets import Requirements, to_epsilon
from streamveil.mechanisms.core.records import InputLost
from streamveil.mechanisms.queries.bounds import CELLS, EDGES, AutoBounds, set_aside
from streamveil.mechanisms.queries.conditions import Condition
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.shares import plan_shares
from streamveil.mechanisms.queries.statistics import Mean
from streamveil.mechanisms.randomness.noise import NoiseKeys
from streamveil.transforms.release_plan import PrivateAnswers

HOUR = 3_600_000_000
USERS = [f"u{i}" for i in range(40)]
EXACT = Registry.of(dict.fromkeys(USERS, (4, 4096.0)))
AB = Categories(("a", "b"))

SPEED = Query("speed", statistic=AutoBounds("mean", "speed"), mechanism="ba")
CARS = Query(
    "cars",
    slots=3,
    value=("value",),
    domain=AB,
    statistic=AutoBounds("sum", "speed"),
    where=(Condition("kind", ("car",)),),
    mechanism="ba",
)
VISITS = Query("visits", mechanism="ba")


def answers(*queries, registry=EXACT, **options):
    query_set = QuerySet(Slots.of("1h"), queries)
    _, shares = plan_shares(query_set, Requirements.of(registry.classes), registry.sizes)
    options = {"noise_key": bytes(32), "max_rejected": 1.0, **options}
    columns = columns_for(query_set, "user", "time")
    return PrivateAnswers(query_set, registry, columns, shares, **options)


def batch(rows):
    """Of (user, value, slot, kind, speed) rows: one event a millisecond into its hour."""
    users, values, slots, kinds, speeds = zip(*rows, strict=True) if rows else ((),) * 5
    return pa.RecordBatch.from_pydict(
        {
            "user": pa.array(users, pa.string()),
            "value": pa.array(values, pa.string()),
            "time": pa.array(np.array(slots, np.int64) * HOUR + 1000, pa.timestamp("us", "UTC")),
            "kind": pa.array(kinds, pa.string()),
            "speed": pa.array(speeds, pa.float64()),
        }
    )


def rows_of(slots, low=20.0, high=30.0, seed=10):
    """Each user once in each slot: cars are faster."""
    draw = np.random.default_rng(seed)
    return [
        (user, "ab"[i % 2], slot, kind, float(draw.uniform(low, high) * (4 if i % 3 else 1)))
        for slot in range(slots)
        for i, user in enumerate(USERS)
        for kind in (("car",) if i % 3 else ("bus",))
    ]


def bounds_chosen(ran):
    prefix = "bounds chosen of query "
    return sorted(name.removeprefix(prefix) for name in ran.counters if name.startswith(prefix))


def figures(ran):
    return str([(one.query, one.slot, one.values, one.stderr, one.status) for one in ran.answers])


def test_bounds_are_chosen_reported_and_used(here, caplog):
    caplog.set_level("INFO", "streamveil")
    ran = here(answers(SPEED, VISITS, CARS, first_slot=0, last_slot=5), [batch(rows_of(6))])
    assert bounds_chosen(ran) == ["cars: 64 to 130", "speed: 0 to 130"]
    assert "bounds of query speed: 0 to 130, chosen by a private look" in caplog.text
    assert ran.counters["events_read"] == 240
    assert (ran.counters["events_counted"], "events_bounded_away" in ran.counters) == (240, False)
    assert ran.counters["events_bounded_away of query cars"] > 0
    assert ran.done == [14]
    # With the same bounds from the beginning, nothing else is released.
    known = (
        replace(SPEED, statistic=AutoBounds("mean", "speed", 0, 130)),
        VISITS,
        replace(CARS, statistic=AutoBounds("sum", "speed", 64, 130)),
    )
    given_bounds = here(answers(*known, first_slot=0, last_slot=5), [batch(rows_of(6))])
    assert figures(given_bounds) == figures(ran)
    assert bounds_chosen(given_bounds) == []
    speeds = [row[4] for row in rows_of(6) if row[2] == 0]
    assert ran.answers[0].values[0, 0] == pytest.approx(np.mean(speeds), abs=1)


def test_the_look_comes_first_on_every_runner(run_on, runner):
    rows = rows_of(1)
    ran = run_on(
        runner, answers(SPEED, first_slot=0, last_slot=0), [batch(rows[:9]), batch(rows[9:])]
    )
    assert bounds_chosen(ran) == ["speed: 0 to 130"]
    assert ran.answers[0].values[0, 0] == pytest.approx(np.mean([row[4] for row in rows]), abs=1)


def test_what_the_look_cost_is_in_the_ledger(here):
    transform = answers(SPEED, first_slot=0, last_slot=3)
    ran = here(transform, [batch(rows_of(4))])
    aside = set_aside(transform.query_set, EXACT.classes, EXACT.sizes)
    assert aside.tolist() == [(4096 << 40) // 20]
    spent = np.cumsum([entry.spent for entry in ran.ledger], axis=0)
    for entry, so_far in zip(ran.ledger, spent, strict=True):
        np.testing.assert_allclose(entry.spent_in_window, so_far + to_epsilon(aside))
        assert (entry.spent_in_window <= 4096).all()


# Whatever the order of the events, the batches and the shards.
def test_a_replay_chooses_the_same(here):
    rows = rows_of(3)
    options = {"first_slot": 0, "last_slot": 2}
    one = here(answers(SPEED, CARS, **options), [batch(rows)])
    other = here(
        answers(SPEED, CARS, shards=3, **options), [batch(rows[50:][::-1]), batch(rows[:50])]
    )
    assert bounds_chosen(one) == bounds_chosen(other)
    assert figures(one) == figures(other)


def test_a_run_that_goes_on_keeps_the_bounds(here):
    asked = (SPEED, CARS)
    first = here(answers(*asked, first_slot=0, last_slot=2, ends=False), [batch(rows_of(3))])
    ((at, state),) = first.state
    later = [(*row[:2], row[2] + 3, *row[3:]) for row in rows_of(3, 2000, 3000)]
    going_on = answers(*asked, first_slot=at, last_slot=5, resume=state)
    assert going_on.query_set.queries[0].statistic == AutoBounds("mean", "speed", 0, 130)
    second = here(going_on, [batch(later)])
    assert bounds_chosen(first) == ["cars: 64 to 130", "speed: 0 to 130"]
    assert bounds_chosen(second) == []
    assert max(one.values.max() for one in second.answers if one.query == "speed") < 131
    ((at, state),) = second.state
    third = answers(*asked, first_slot=at, last_slot=8, resume=state)
    assert third.query_set == going_on.query_set


def test_a_state_belongs_to_its_bounds(here):
    first = here(answers(SPEED, first_slot=0, last_slot=2, ends=False), [batch(rows_of(3))])
    ((at, state),) = first.state
    fixed = replace(SPEED, statistic=Mean("speed", 0, 130))
    options = {"first_slot": at, "last_slot": 5}
    with pytest.raises(ConfigurationError, match="bounds of numbers were chosen when"):
        answers(fixed, resume=state, **options)
    wider = state.replace(np.array([130.0]).tobytes(), np.array([120.0]).tobytes(), 1)
    assert wider != state
    for changed in (wider, state[:25]):
        with pytest.raises(ConfigurationError, match="wrong checksum"):
            answers(SPEED, resume=changed, **options)
    with pytest.raises(ConfigurationError, match="bounds of numbers were chosen for other quer"):
        answers(SPEED, replace(CARS, name="more"), resume=state, **options)
    plain = here(answers(fixed, first_slot=0, last_slot=2, ends=False), [batch(rows_of(3))])
    with pytest.raises(ConfigurationError, match="were given when it was written"):
        answers(SPEED, resume=plain.state[0][1], **options)


# Events go by twice: what a query cannot read is reported once, whatever it is called.
def test_a_look_tells_no_counters(here):
    rows = [*rows_of(1), ("u0", "a", 0, "car", float("nan"))]
    asked = replace(SPEED, name="look-0")
    ran = here(answers(asked, first_slot=0, last_slot=0), [batch(rows)])
    unread = {name: n for name, n in ran.counters.items() if name.startswith("events_unread")}
    assert unread == {"events_unread of query look-0: not a finite number": 1}


# Two looks at the same counts, and one look at other ones, have different noise.
def test_every_look_has_noise_of_its_own(monkeypatch):
    seen = []
    monkeypatch.setattr(
        bounds_choice, "choice", lambda counts, rate: seen.append(counts) or (0.0, 1.0)
    )
    choice = BoundsChoice(sample(), lambda: NoiseKeys(bytes(32)), b"", "queries", 0)

    def noise(events, *words):
        cells = np.full(CELLS, events)
        messages = [Message(Kind.COUNTS, look, payload=array_to_bytes(cells)) for look in range(2)]
        messages += [Message(Kind.WHOLE, payload=word) for word in words]
        list(choice.choose("", messages))
        return [(noisy - cells).tolist() for noisy in seen[-2:]]

    once, again, other = noise(100, b"2"), noise(100, b"2"), noise(101, b"2")
    assert once == again
    assert len({str(each) for each in (*once, *other, [0] * CELLS)}) == 5
    for words in ([], [b"3"]):  # a step failed, and a runner went on
        with pytest.raises(InputLost, match="2 messages of counts came"):
            noise(100, *words)
    assert len(seen) == 6


LOST = {
    "users": (0, None),
    "times": (2, 7),
    "bins": (1, "z"),
    "numbers": (4, float("nan")),
}


@pytest.fixture
def draws(monkeypatch):
    """Looks for which noise is drawn."""
    seen = []
    monkeypatch.setattr(bounds_choice, "answer", lambda *asked: seen.append(asked))
    return seen


def lost_rows(column, bad, share=1.0):
    rows = rows_of(2)
    much = int(share * len(rows))
    return [(*row[:column], bad, *row[column + 1 :]) for row in rows[:much]] + rows[much:]


@pytest.mark.parametrize("what", LOST)
def test_where_the_input_is_lost_nothing_is_looked_at(here, draws, what):
    binned = replace(SPEED, value=("value",), domain=AB)
    asked = answers(binned, CARS, first_slot=0, last_slot=2, max_rejected=0.5)
    with pytest.raises(Exception, match=r"all 80 events were rejected.*Found: 80 read, 80 rej"):
        here(asked, [batch(lost_rows(*LOST[what]))])
    assert not draws


# One query has bounds to choose, and another one is what the run is refused for.
def test_nothing_is_looked_at_where_another_query_reads_nothing(here, draws):
    places = Query("places", value=("value",), domain=AB, mechanism="ba")
    asked = answers(SPEED, places, VISITS, first_slot=0, last_slot=2, max_rejected=0.5)
    with pytest.raises(Exception, match="query 'places' asks about 80 events and can read none"):
        here(asked, [batch(lost_rows(1, "z"))])
    assert not draws


@pytest.mark.parametrize("share", [0.5, 0.525])
def test_a_run_that_chooses_is_refused_as_one_that_knows(here, share):
    known = (
        replace(SPEED, statistic=AutoBounds("mean", "speed", 0, 130)),
        replace(CARS, statistic=AutoBounds("sum", "speed", 64, 130)),
    )
    lost, messages = [batch(lost_rows(4, float("nan"), share))], []
    for asked in ((SPEED, CARS), known):
        try:
            here(answers(*asked, first_slot=0, last_slot=2, max_rejected=0.5), lost)
        except Exception as error:
            messages.append(re.search("4. of 80 events .*counted", str(error))[0])
    assert messages == ([] if share == 0.5 else [messages[0], messages[0]])


# In nanoseconds, and in terabytes per second: the cells go far beyond what people have at hand.
@pytest.mark.parametrize("unit", [1e12, -1e-14])
def test_numbers_of_any_size_have_bounds(here, unit):
    rows = [(*row[:4], row[4] * unit) for row in rows_of(1)]
    ran = here(answers(SPEED, first_slot=0, last_slot=0), [batch(rows)])
    mean = np.mean([row[4] for row in rows])
    assert ran.answers[0].values[0, 0] == pytest.approx(mean, rel=0.02)
    assert ran.answers[0].low[0, 0] <= mean <= ran.answers[0].high[0, 0]


def test_numbers_beyond_what_can_be_computed_with_are_refused(here):
    rows = [(*row[:4], row[4] * 1e80) for row in rows_of(1)]
    with pytest.raises(Exception, match=r"beyond 5e\+74 in column 'speed'.* cost epsilon 205 "):
        here(answers(SPEED, first_slot=0, last_slot=0), [batch(rows)])


def test_too_few_numbers_are_refused(here):
    registry = Registry.of(dict.fromkeys(USERS, (4, 1.0)))
    with pytest.raises(
        Exception, match=r"'speed', 'again': bounds: auto found too few numbers in column 'speed'"
    ):
        here(
            answers(
                SPEED,
                replace(SPEED, name="again", slots=3),
                registry=registry,
                first_slot=0,
                last_slot=2,
            ),
            [batch(rows_of(3))],
        )


def test_an_input_without_end_is_refused():
    transform = answers(SPEED, first_slot=0)
    pipeline = beam.Pipeline()
    events = pipeline | beam.Create([], reshuffle=False)
    events.element_type, events.is_bounded = pa.RecordBatch, False
    with pytest.raises(ConfigurationError, match="unbounded, so no bounds can be estimated"):
        events | transform


# ---- the sample ------------------------------------------------------------------------------


TABLE = Registry.of(
    {"u0": (2, 1.0), "u1": (2, 1.0), "u2": (2, 1.0), "poor": (2, 0.01)},
    default=(Requirement(2, 1.0), 9),
)


def sample(shards=1):
    query_set = QuerySet(Slots.of("1h"), (SPEED, CARS))
    columns = columns_for(query_set, "user", "time")

    def mapper(asked):
        return QueriesMapper(asked, columns, TABLE, bytes(32), 0, 9)

    return Sample(query_set, TABLE, shards, mapper, lambda: bytes(32))


def cells_of(rows, shards=1, batches=1):
    """What each look counts, shape (looks, CELLS)."""
    drawn, found = sample(shards), np.zeros((2, CELLS), np.int64)
    parts = {}
    for number in range(batches):
        events, _ = drawn.mapper.map(batch(rows[number::batches]))
        for key, packed in drawn.pack(events):
            parts.setdefault(key, []).append(Packed.from_bytes(packed.to_bytes()))
    for (number, kind, _), some in parts.items():
        found[number] += drawn.cells(kind, some)
    return found


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["u0", "u1", "u2", "poor", "s0", "s1"]),
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 11),
        st.sampled_from(["car", "bus"]),
        st.sampled_from([-5.0, 0.0, 1e-9, 3.0, 40.0, 1e15, float("nan")]),
    ),
    max_size=20,
)


# One event of each user who pays, whatever the events of others and in which batches they came.
@pytest.mark.property
@given(ROWS, st.integers(1, 3), st.integers(1, 3))
def test_one_event_of_each_user_is_in_the_sample(rows, shards, batches):
    there = {
        user: {np.searchsorted(EDGES, one[4], side="right") for one in rows if good(one, user)}
        for user in {row[0] for row in rows} - {"poor"}
    }
    found = cells_of(rows, shards, batches)
    assert found[0].sum() == sum(bool(cells) for cells in there.values())
    assert set(np.flatnonzero(found[0])) <= set().union(*there.values(), set())
    assert (found == cells_of(rows[::-1])).all()
    cars = [row for row in rows if row[3] == "car" and row[1] != "c"]
    assert (found[1] == cells_of(cars)[0]).all()


def good(row, user):
    return row[0] == user and row[2] <= 9 and row[4] == row[4]


# The sensitivity: with a user's events in some base slots removed or replaced, 2 at most in L1.
@pytest.mark.property
@example(
    [("u1", "a", slot, "car", number) for slot, number in enumerate((-5.0, 3.0))],
    *(0, 2),
    [("u1", "a", slot, "car", number) for slot, number in enumerate((0.0, 40.0))],
)
@given(ROWS.filter(len), st.integers(0, 9), st.integers(1, 5), ROWS)
def test_a_user_changes_a_sample_by_two_at_most(rows, first, window, others):
    rows = [("u1" if i % 4 else row[0], *row[1:]) for i, row in enumerate(rows)]
    mine = [row for row in rows if row[0] == "u1" and first <= row[2] < first + window]
    removed = [row for row in rows if row not in mine]
    replaced = removed + [("u1", *row[1:]) for row in others if first <= row[2] < first + window]
    for other in (removed, replaced):
        assert (np.abs(cells_of(rows) - cells_of(other)).sum(axis=1) <= 2).all()
