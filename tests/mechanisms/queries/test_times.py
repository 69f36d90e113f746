"""Longer times: what slots add up to, by hand and whatever is released; how far sums may err."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamveil.mechanisms import Categories, ConfigurationError, Slots
from streamveil.mechanisms.core.budgets import Requirements
from streamveil.mechanisms.core.records import PREDICTED, PUBLISHED, SKIPPED, Requirement
from streamveil.mechanisms.protocol import Lasting, SlotRelease
from streamveil.mechanisms.queries.answers import UNKNOWN
from streamveil.mechanisms.queries.cuts import Even
from streamveil.mechanisms.queries.fusing import parts_of
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.query_stream import QueryStream
from streamveil.mechanisms.queries.reading import query_set_of
from streamveil.mechanisms.queries.simulated import simulate_query_set, times_of
from streamveil.mechanisms.queries.slot_answers import SlotAnswer, answer_of
from streamveil.mechanisms.queries.statistics import (
    Count,
    DistinctUsers,
    Mean,
    Quantiles,
    Sum,
    TopK,
)
from streamveil.mechanisms.queries.times import TimeSum, lasting_of, sums_at_start, sums_of
from streamveil.mechanisms.queries.trees import Tree
from streamveil.mechanisms.randomness.noise import NoiseSource
from streamveil.pipelines.sample_data.streams import make_stream, population

PLACES = Categories(("cafe", "park", "zoo"))
LEVELS = Tree.of(PLACES, [{"in": ["cafe"], "out": ["park", "zoo"]}, "all"])
SIX, TWELVE = 6, 12


def query(statistic=None, tree=LEVELS, times=(SIX, TWELVE), **options):
    return Query(
        "q",
        value="place",
        domain=PLACES,
        tree=tree,
        statistic=statistic or Count(),
        times=times,
        slots=2,
        **options,
    )


def query_set(asked):
    return QuerySet(Slots.of("1h"), (asked,))


def release(counts, stderr=1.0, status=PUBLISHED, lasting=None):
    counts = np.asarray(counts, np.int64)
    spent, errors = np.zeros(1, np.int64), np.full(counts.shape, 1.0) * stderr
    return SlotRelease(counts, status, 0, 0.5, errors, spent=spent, lasting=lasting)


def answers(asked, releases, first=0):
    """Of slots, and of longer times that are over, as (length, number, answer)."""
    sums, found = sums_at_start(asked), []
    for slot, one in enumerate(releases, first):
        parts = parts_of_release(asked, one)
        sums = tuple(each.after(slot, *parts, lasting_of(asked, one), one.status) for each in sums)
        results = (SlotAnswer.of_time(each, asked, query_set(asked)) for each in sums if each.ended)
        found += [(answer.length, answer.slot, answer) for answer in results]
    return found


def parts_of_release(asked, one):
    return parts_of(asked, one.counts, one.stderr)


def test_times_by_hand():
    asked = query(tree=Tree())
    releases = [release([1, slot, 0]) for slot in range(6)]
    found = answers(asked, releases, first=6)
    assert [(length, number) for length, number, _ in found] == [("6h", 2), ("6h", 3), ("12h", 1)]
    assert [one.values[:, 0].tolist() for *_, one in found] == [[3, 3, 0], [3, 12, 0], [6, 15, 0]]
    first = found[0][2]
    assert (first.start, first.end) == (12 * 3_600_000_000, 18 * 3_600_000_000)
    assert (first.status, first.epsilon, first.figures.notes[0, 0]) == (PUBLISHED, 0.0, "")
    # Each was published anew: errors are new as well.
    np.testing.assert_allclose(first.stderr[:, 0], 3**0.5)


def test_errors_of_what_is_repeated_are_alike():
    asked = query(tree=Tree())
    repeated = [release([5, 5, 5], 2.0)] + [release([5, 5, 5], 2.0, SKIPPED)] * 2
    anew = [release([5, 5, 5], 2.0), release([6, 5, 5], 2.0), release([6, 5, 5], 2.0, SKIPPED)]
    (_, _, one), (_, _, other), _ = answers(asked, repeated + anew)
    np.testing.assert_allclose(one.stderr[:, 0], 3 * 2.0)
    np.testing.assert_allclose(other.stderr[:, 0], (4 + 16) ** 0.5)


def test_errors_that_fade():
    """By hand: v = 1 each, half of it may last, and half of that is kept: 1, then 2 * 0.25, ..."""
    asked = query(tree=Tree(), times=(SIX,))
    fading = Lasting(np.full(3, 0.5), np.full(3, 0.5))
    (_, _, one), *_ = answers(asked, [release([1, 1, 1], lasting=fading)] * 3)
    np.testing.assert_allclose(one.stderr[:, 0] ** 2, 1 + (1 + 2 * 0.25) + (1 + 2 * 0.375))


def test_a_time_of_unknown_slots_has_no_error():
    asked = query(tree=Tree())
    releases = [release([0, 0, 0], np.nan, SKIPPED), *[release([1, 1, 1])] * 2]
    ((_, _, one),) = answers(asked, releases)
    assert np.isnan(one.stderr).all()
    assert one.figures.notes[0, 0] == UNKNOWN
    assert one.status == PUBLISHED
    ((_, _, one),) = answers(asked, [release([1, 1, 1], 1.0, PREDICTED)] * 3)
    assert one.status == PREDICTED


def test_results_of_users_and_of_parts():
    asked = query(DistinctUsers())
    sums = sums_at_start(asked)[0]
    one = release([1, 2, 3, 6])
    sums = sums.after(1, *parts_of_release(asked, one), lasting_of(asked, one), one.status)
    assert sums.unfinished
    note = SlotAnswer.of_time(sums, asked, query_set(asked)).figures.notes[0, 0]
    assert note.endswith(
        "a part of the time: 1 of its 3 slots of 2h; users of each slot of 2h, added up: who is in "
        "two counts twice"
    )


STATISTICS = (
    *(Count(), DistinctUsers(), Sum("x", -3, 7), Mean("x", 2, 10)),
    Quantiles("x", (0, 1, 5), (0.5,)),
)


# Whatever is released: noise of any size, negative counts, errors that last or not.
@pytest.mark.property
@given(st.sampled_from(STATISTICS), st.integers(0, 2**32), st.sampled_from([0.0, 1.0, 1e3, 1e6]))
def test_figures_add_up_over_times_and_groups(statistic, seed, noise):
    asked, random = query(statistic), np.random.default_rng(seed)
    size, releases = asked.measure.size, []
    for _ in range(6):
        stderr = noise * random.exponential(1, size)
        counts = np.rint(random.integers(0, 1000, size) + stderr * random.normal(size=size))
        lasting = Lasting(*random.uniform(size=(2, size)))
        releases.append(release(counts, stderr, lasting=lasting))
    slots = [answer_of(asked, one.counts, one.stderr) for one in releases]
    (*_, early), (*_, late), (*_, both) = answers(asked, releases)
    for one in (early, late, both):
        cafe, park, zoo, inside, outside, everything = one.values[:, 0]
        assert inside == cafe or np.isnan(cafe)
        if statistic.name in ("count", "distinct"):
            assert (outside, everything) == (park + zoo, cafe + park + zoo)
            assert (one.values == np.rint(one.values)).all()
            assert (one.values >= 0).all()
        assert (np.nan_to_num(one.stderr) >= 0).all()
    if statistic.name in ("count", "distinct", "sum"):
        close = {"rtol": 1e-9, "atol": 1e-6} if statistic.name == "sum" else {"rtol": 0}
        per_slot = np.array([one.values for one in slots])
        for figures, those in ((early, per_slot[:3]), (late, per_slot[3:]), (both, per_slot)):
            np.testing.assert_allclose(figures.values, those.sum(axis=0), **close)
        np.testing.assert_allclose(both.values, early.values + late.values, **close)
    if statistic.name in ("count", "distinct"):
        most = np.sum([one.stderr for one in slots], axis=0)
        assert (both.stderr <= most * (1 + 1e-9) + 1e-6).all()


def test_a_mean_is_that_of_all_events_of_the_time():
    asked = replace(query(Mean("x", 0, 10), Tree(), (SIX,)), value=(), domain=query_domain())
    rows = []
    for numbers in ([2.0], [4.0, 6.0], [8.0] * 5):
        table = np.zeros((1, asked.measure.size), np.int64)
        steps, ones = asked.statistic.steps(np.array(numbers)), np.ones(len(numbers), np.int64)
        asked.measure.add(np.zeros(len(numbers), np.int64), steps, ones, table)
        rows.append(release(table[0], 1e-6))
    ((*_, one),) = answers(asked, rows)
    assert one.values[0, 0] == pytest.approx((2 + 4 + 6 + 40) / 8, abs=0.02)


def query_domain():
    return Query("q").domain


def test_the_largest_of_a_time_are_those_of_the_sums():
    asked = query(TopK(1), Tree(), (SIX,))
    rows = [release([9, 0, 0]), release([0, 5, 0]), release([0, 5, 0])]
    ((*_, one),) = answers(asked, rows)
    assert one.figures.ranks.tolist() == [0, 1, 0]


def stream_of(asked, mechanism="adaptive"):
    requirements = Requirements([Requirement(6, 1.0)])
    made = replace(asked, mechanism=mechanism)
    return QueryStream(
        query_set(made),
        requirements,
        np.array([50]),
        requirements.budgets[None],
        NoiseSource(bytes(32)),
    )


def test_state_goes_on_and_times_may_be_added_and_left_out():
    stream = stream_of(query(times=(SIX,)))
    state, counts = stream.start(), {0: np.array([[3, 4, 5, 12]])}
    for base_slot in range(4):
        state, _ = stream.release(state, base_slot, counts if base_slot % 2 else {})
    (total,) = state.times[0]
    assert (total.added, total.last, total.cut) == (2, 1, Even(3))
    written = stream.encode(state)
    (again,) = stream.decode(written).times[0]
    for name, value in vars(total).items():
        np.testing.assert_array_equal(getattr(again, name), value)
    other = stream_of(query(times=(SIX, TWELVE)))  # times are no part of what is released
    same, fresh = other.decode(written).times[0]
    np.testing.assert_array_equal(same.counts, total.counts)
    assert (fresh.cut, fresh.added) == (Even(6), 0)
    assert stream_of(query(times=())).decode(written).times == [()]


def test_sums_of_a_state_are_found_by_length():
    asked = query(times=(TWELVE,))
    six = TimeSum.start(Even(3), 6, 1)
    twelve = replace(TimeSum.start(Even(6), 6, 1), last=4, added=2)
    (found,) = sums_of([six.encode(), twelve.encode()], asked)
    assert (found.last, found.added) == (4, 2)


# A stream with a tree, of noise that the mechanism smooths: sums of 24 slots hold what they should.
@pytest.mark.slow
def test_intervals_of_sums_hold_the_truth():
    held, slots_alone = [], []
    for seed in (31, 32):
        requirements, sizes = population(0.6, 120, 10_000)
        counts = np.array(list(make_stream("city", sizes, 240, seed)))
        bins = counts.shape[2]
        domain = Categories(tuple(f"b{i}" for i in range(bins)))
        asked = Query("q", value="bin", domain=domain, times=(24,))
        done = simulate_query_set(
            query_set(asked), {"q": counts}, requirements, sizes, bytes([seed]) * 32
        )
        truth = counts.sum(axis=1).reshape(10, 24, bins).sum(axis=1)
        results = times_of(asked, query_set(asked), done.releases["q"], 0)[24]
        low, high = (
            np.array([getattr(one, end)[:, 0] for one in results]) for end in ("low", "high")
        )
        held.append(((low <= truth) & (truth <= high))[1:].mean())
        stderr = np.array([one.stderr for one in done.releases["q"]])
        spread = 1.645 * (stderr**2).reshape(10, 24, bins).sum(axis=1) ** 0.5
        values = np.array([one.values[:, 0] for one in results])
        slots_alone.append((np.abs(values - truth) <= spread)[1:].mean())
    assert 0.84 < np.mean(held) < 0.96
    assert np.mean(slots_alone) < 0.6  # as if errors of slots were independent


FILE = {"slot": "1h", "queries": [{"name": "q", "every": "2h", "rollups": ["6h", "1d"]}]}


def asking(**changes):
    return {**FILE, "queries": [{**FILE["queries"][0], **changes}]}


def test_a_file_names_rollups():
    (asked,) = query_set_of(FILE).queries
    assert (asked.slots, asked.times) == (2, (6, 24))
    (asked,) = query_set_of(asking(rollups="1d")).queries
    assert asked.times == (24,)
    weekly = query_set_of(asking(rollups=["1d", "1w"]))
    assert weekly.of_length(168).start(0) == weekly.base.origin == 4 * 24 * 3_600_000_000


@pytest.mark.parametrize(
    ("rollups", "message"),
    [
        (["3h"], "rollups: 3h is not made of two or more whole times of 2h, which the query's"),
        (["2h"], "rollups: 2h is not made of two or more .*: write such as 4h"),
        (["1h"], "rollups: 1h.*write such as 4h"),
        (["6h", "15h"], "rollups: 15h .* of 6h, which those before it .*: write such as 12h"),
        (["1d", "6h"], "rollups: 6h .* of 1d, which .*: write such as 2d, from the shortest"),
        (["1d", "1d"], "rollups: 1d"),
        ([24], "rollups is 24: write a length with its unit"),
        (24, "rollups is 24: write a list"),
        ([True], "rollups is True"),
        (["soon"], "rollups: .*'soon'"),
        ({"1d": 1}, "rollups is {'1d': 1}: write a list"),
        ([], "rollups is empty: write a value, or leave rollups out"),
        (None, "rollups is empty"),
    ],
)
def test_wrong_rollups_are_refused_in_a_line(rollups, message):
    with pytest.raises(ConfigurationError, match=rf"query 'q': {message}") as refused:
        query_set_of(asking(rollups=rollups))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("times", [(3,), (2,), (6, 9), (12, 6), (0,), (1.5,), "1d", 6])
def test_wrong_times_are_refused_in_python(times):
    with pytest.raises(ConfigurationError, match="query 'q': times"):
        query(times=times)
