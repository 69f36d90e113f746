"""Slots of queries that are revised: the same statistics by what was learnt since, and honest."""

import numpy as np
import pytest

from streamveil.mechanisms import Categories, NoiseSource, Requirement, Slots
from streamveil.mechanisms.core.budgets import Requirements
from streamveil.mechanisms.protocol import Observed
from streamveil.mechanisms.queries.fusing import observed_parts
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.query_stream import QueryStream, usual_at_start
from streamveil.mechanisms.queries.replanning import Replanning
from streamveil.mechanisms.queries.shares import plan_shares
from streamveil.mechanisms.queries.simulated import answers_of, simulate_query_set
from streamveil.mechanisms.queries.slot_answers import SlotAnswer, answer_of
from streamveil.mechanisms.queries.statistics import (
    DistinctUsers,
    Mean,
    Quantiles,
    StandardDeviation,
    Sum,
    TopK,
    Variance,
)
from streamveil.mechanisms.queries.trees import Tree

KEY = bytes(range(32))
BASE = Slots.of("1h")
ASKED = Requirements((Requirement(24, 2.0), Requirement(10, 3.0)))
SIZES = np.array([300, 300])
PLACES = Categories(("cafe", "park", "pier", "zoo"))
SHORES = Tree.of(PLACES, [{"town": ("cafe", "park"), "shore": ("pier", "zoo")}, "all"])
EDGES = tuple(range(0, 151, 10))
LAG = 3

STATISTICS = {
    "count": {},
    "distinct": {"statistic": DistinctUsers()},
    "sum": {"statistic": Sum("x", 0, 150)},
    "mean": {"statistic": Mean("x", 0, 150)},
    "variance": {"statistic": Variance("x", 0, 150)},
    "stddev": {"statistic": StandardDeviation("x", 0, 150)},
    "quantiles": {"statistic": Quantiles("x", EDGES, (0.5, 0.95))},
    "top": {"statistic": TopK(2)},
}


def revised_answers_of(query, releases, rest):
    """The figures of slots in a row as they are revised, `rest` after the last one."""
    usual, seen = usual_at_start(query), {}
    first = min((one.slot for last in releases for one in last.revisions), default=0)
    for slot, release in enumerate(releases, first):
        usual = usual and usual.after(observed_parts(query, release))
        seen |= {slot: usual.seen} if usual else {}
        last = slot == first + len(releases) - 1
        for one in (*release.revisions, *(rest if last else ())):
            known = usual and usual.of_earlier(seen[one.slot], slot - one.slot)
            yield answer_of(query, one.values, one.stderr, known, one.unshrunk, one.common)


def query(name, slots=1, **more) -> Query:
    return Query(name, slots, ("place",), PLACES, **{**STATISTICS[name], **more})


def stream_of(*queries, revise=LAG, **more) -> QueryStream:
    query_set = QuerySet(BASE, queries)
    _, units = plan_shares(query_set, ASKED, SIZES)
    return QueryStream(query_set, ASKED, SIZES, units, NoiseSource(KEY), revise=revise, **more)


def counts_at(stream, base_slot):
    random = np.random.default_rng(base_slot)
    return {
        q: random.poisson(40 * one.slots, (2, one.measure.size)) * one.measure.quantum
        for q, one in ((q, stream.query_set.queries[q]) for q in stream.due(base_slot))
    }


def played(stream, slots, state=None, first=0):
    """The state in the end, and all that is answered first, and of revisions."""
    state, answers, revised = state or stream.start(), [], []
    for base_slot in range(first, first + slots):
        state, releases = stream.release(state, base_slot, counts_at(stream, base_slot))
        for q, one in releases.items():
            query_set, slot = stream.query_set, base_slot // stream.query_set.queries[q].slots
            answers.append(
                SlotAnswer.of(one, slot, query_set.queries[q], query_set, state.usual[q])
            )
            revised += answered(stream, state, q, slot, one.revisions)
    return state, [shown(one) for one in answers], [shown(one) for one in revised]


def answered(stream, state, q, slot, revisions):
    query_set = stream.query_set
    return [
        SlotAnswer.of_revision(
            *(one, slot, query_set.queries[q], query_set),
            stream.usual_of(state, q, one.slot),
        )
        for one in revisions
    ]


def shown(answer):
    figures = answer.values, answer.stderr, answer.low, answer.high
    at = getattr(answer, "revised_slot", None)
    return answer.query, answer.slot, answer.status, at, [one.tolist() for one in figures]


# ---- what is revised ------------------------------------------------------------------------


@pytest.mark.parametrize("name", STATISTICS)
def test_every_statistic_is_revised_so_many_of_its_slots_later(name):
    stream = stream_of(query(name), query("count", 6) if name != "count" else query("sum", 6))
    state, answers, revised = played(stream, 30)
    for q, (one, slots) in enumerate(zip(stream.query_set, (30, 5), strict=True)):
        own = [row for row in revised if row[0] == one.name]
        assert [(slot, at) for _, slot, _, at, _ in own] == [(s, s + LAG) for s in range(slots - 3)]
        assert {status for _, _, status, _, _ in own} == {"revised"}
        rest = answered(stream, state, q, slots - 1, stream.rest(state, q))
        assert [(r.slot, r.revised_slot) for r in rest] == [
            (s, slots - 1) for s in range(-3, 0)
        ] or [(r.slot - slots, r.revised_slot) for r in rest] == [
            (s, slots - 1) for s in range(-3, 0)
        ]
        assert rest[0].revised_at == stream.query_set.slots_of(one).end(slots - 1)
        first = [row for row in answers if row[0] == one.name]
        assert np.shape(own[0][-1]) == np.shape(first[0][-1])
    # The first answers are the same as without revisions.
    assert played(stream_of(*stream.query_set, revise=0), 30)[1] == answers


# Recorded: the same key, counts and lag give the same revisions for good.
def test_revisions_are_those_that_were_recorded():
    *_, revised = played(stream_of(query("mean"), query("sum", 3)), 8)
    values = [values for name, _, _, _, (values, *_) in revised if name == "mean"]
    assert np.array(values)[:3, :, 0] == pytest.approx(
        np.array(
            [
                [67.628699, 75.305048, 75.527169, 74.970946],
                [77.861947, 68.960189, 84.048713, 78.408068],
                [74.774348, 83.586143, 69.684791, 75.543532],
            ]
        )
    )


def test_a_saved_state_revises_as_it_would_have():
    queries = [query("mean"), query("sum", 3), query("quantiles", 2, tree=SHORES)]

    def fresh():
        return stream_of(*queries)

    _, answers, revised = played(fresh(), 30)
    for stop in (2, 17):
        begun, *firsts = played(fresh(), stop)
        data, again = fresh().encode(begun), fresh()
        assert again.encode(again.decode(data)) == data
        _, *more = played(again, 30 - stop, again.decode(data), stop)
        assert [one + other for one, other in zip(firsts, more, strict=True)] == [answers, revised]


def test_states_go_on_with_and_without_revisions():
    plain, revising = (stream_of(query("mean"), revise=lag) for lag in (0, LAG))
    state, _, none = played(plain, 10)
    assert none == []
    assert state.past == [{}]
    _, _, revised = played(revising, 10, revising.decode(plain.encode(state)), 10)
    assert [slot for _, slot, *_ in revised] == list(range(10, 17))
    state, *_ = played(revising, 10)
    state, _, none = played(plain, 10, plain.decode(revising.encode(state)), 10)
    assert none == []
    assert state.past == [{}]
    shorter = stream_of(query("mean"), revise=1)
    state, *_ = played(revising, 10)
    _, _, revised = played(shorter, 2, shorter.decode(revising.encode(state)), 10)
    assert [slot for _, slot, *_ in revised] == [7, 8, 9, 10]


def test_what_is_remembered_does_not_grow():
    stream = stream_of(query("mean"))
    state, *_ = played(stream, 20)
    assert [list(one) for one in state.past] == [[16, 17, 18, 19]]
    stream.rest(state, 0)
    state, *_ = played(stream, 20, state, 20)
    assert [list(one) for one in state.past] == [[36, 37, 38, 39]]


def test_groups_of_revised_bins_add_up():
    stream = stream_of(query("count", tree=SHORES))
    *_, revised = played(stream, 30)
    for *_, (values, *_) in revised:
        cafe, park, pier, zoo, town, shore, top = (value for (value,) in values)
        assert (cafe + park, pier + zoo, town + shore) == (town, shore, top)


# ---- shares that are planned again ------------------------------------------------------------


# The state of a query is replaced when its share changes: what is to be revised stays in it.
def test_revisions_outlive_new_shares(monkeypatch):
    def turned(planning, plan):
        return np.array([0.9, 0.1] if (plan.slots // 6) % 2 else [0.1, 0.9])

    monkeypatch.setattr(Replanning, "_wanted", turned)
    queries = query("mean"), query("count")
    stream = stream_of(*queries, replan=True)
    state, answers, revised = played(stream, 30)
    assert len({one.history for one in state.queries}) == 2
    assert (state.plan.pace != stream.start().plan.pace).any()
    for one in queries:
        slots = [slot for name, slot, *_ in revised if name == one.name]
        assert slots == list(range(30 - LAG))
    assert [one.slot for q in (0, 1) for one in stream.rest(state, q)] == [27, 28, 29] * 2
    assert played(stream_of(*queries, replan=True, revise=0), 30)[1] == answers
    half, *firsts = played(stream, 13)
    again = stream_of(*queries, replan=True)
    _, *more = played(again, 17, again.decode(stream.encode(half)), 13)
    assert [one + other for one, other in zip(firsts, more, strict=True)] == [answers, revised]


# ---- what is usual of an earlier slot ----------------------------------------------------------


def test_what_is_usual_of_an_earlier_slot_is_by_all_others():
    asked = query("mean")
    random = np.random.default_rng(1)
    shape = len(PLACES.labels), asked.measure.parts
    seen = [Observed(random.normal(100, 9, shape), random.uniform(50, 90, shape)) for _ in "abcd"]
    whole = others = usual_at_start(asked)
    for number, one in enumerate(seen):
        whole = whole.after([one])
        others = others.after([one] if number != 1 else [])
        if number == 1:
            own = whole.seen
    found = whole.of_earlier(own, 2)
    assert found.last is seen[1]
    assert found.own == 1
    for name in ("parts", "noise"):
        assert getattr(found, name) == pytest.approx(getattr(others.settled(), name))
    last = whole.of_earlier(whole.seen, 0)
    assert last.parts == pytest.approx(whole.parts)


# ---- errors -----------------------------------------------------------------------------------

SLOTS, LEARNT, SEEDS, DAY = 200, 10, 6, 24


def moving(random, slot):
    """Numbers of a slot whose size and number go up and down."""
    size = int(750 * (1 + 0.5 * np.sin(2 * np.pi * slot / DAY)))
    return random.gamma(2.0, 14 + 4 * np.sin(2 * np.pi * slot / 60), size).clip(0, 150)


def still(random, slot):
    return random.gamma(1.5, 18, random.poisson(600)).clip(0, 150)


TRUTH = {
    "sum": np.sum,
    "mean": np.mean,
    "quantiles": lambda numbers: np.quantile(numbers, (0.5, 0.95), method="inverted_cdf"),
}


def first_and_revised(name, draw, epsilon, seed):
    """Of first answers and of revised ones the part that intervals hold, and squared errors."""
    random = np.random.default_rng(seed)
    asked = Query(name, **STATISTICS[name])
    numbers = [draw(random, slot) for slot in range(SLOTS)]
    statistic = asked.statistic
    cells = [statistic.weights[statistic.steps(one)].sum(axis=0) for one in numbers]
    done = simulate_query_set(
        QuerySet(BASE, (asked,)),
        {name: np.array(cells)[:, None].astype(np.int64)},
        [(24, epsilon)],
        [5000],
        bytes([seed]) * 32,
        revise=6,
    )
    releases, rest = done.releases[name], done.rest[name]
    truth = np.array([TRUTH[name](one) for one in numbers]).reshape(SLOTS, -1)
    for answers in (answers_of(asked, releases), revised_answers_of(asked, releases, rest)):
        low, value, high = (
            np.array([getattr(one, end)[0] for one in some])
            for some in [list(answers)]
            for end in ("low", "values", "high")
        )
        held = (low <= truth) & (truth <= high)
        yield held[LEARNT:].mean(axis=0), ((value - truth)[LEARNT:] ** 2).mean(axis=0)


# By twelve seeds, where numbers move, the shares held of sum, mean, median and p95 are .96, .92,
# .91 and .89, and of first answers .91, .89, .85 and .84. Where they are still, all are .93 to .98.
# Squared errors are .51, .80, .71 and .83 of those of first answers, or .91, .92, .95 and .82.
@pytest.mark.slow
@pytest.mark.parametrize("draw", [moving, still])
@pytest.mark.parametrize("name", TRUTH)
def test_intervals_of_revised_figures_hold_nine_in_ten_and_errors_are_smaller(name, draw):
    rows = [list(first_and_revised(name, draw, 1.0, seed)) for seed in range(SEEDS)]
    held, errors = (np.array([[one[i] for one in row] for row in rows]) for i in (0, 1))
    assert (held[:, 1].mean(axis=0) > 0.85).all(), held.mean(axis=0)
    first, revised = errors.mean(axis=0)
    assert (revised <= first).all(), (first, revised)
