"""The share that is kept: what queries cost, by enumeration, and how far answers are right."""

from itertools import pairwise

import numpy as np
import pytest

from streamveil.mechanisms.core.records import ADD_REMOVE, REPLACE
from streamveil.mechanisms.presence import effective_window
from streamveil.mechanisms.presence.kept_share import (
    COARSE,
    LAYERS,
    NEAR,
    Beyond,
    KeptShare,
    ShareQuery,
    drawn,
)
from streamveil.mechanisms.presence.limits import aside
from streamveil.mechanisms.randomness.noise import RandomWords
from tests.mechanisms.presence.all_ways import calendar, removed, replaced

RULES = [(4, 1, 1), (6, 1, 1), (5, 1, 2), (6, 1, 2), (8, 1, 2), (6, 2, 1), (9, 1, 3)]


def query_of(window, max_slots, blocks, adjacency=ADD_REMOVE, bins=1):
    slots = effective_window(window, max_slots, blocks, adjacency)
    sensitivity = 2 if adjacency == REPLACE else 1
    return ShareQuery(window, max_slots, slots, blocks, bins, sensitivity)


def layer_tables(slots, window, max_slots, blocks, phase):
    """What is in each layer, and in the rest, of all ways to be there."""
    up_to = [
        calendar(slots, window, places * max_slots, blocks, phase) for places in range(LAYERS + 1)
    ]
    tables = [upper & ~lower for lower, upper in pairwise(up_to)]
    return [*tables, np.arange(1 << slots) & ~up_to[-1]]


# Every slot is counted by itself here, in a bin of its own: a sum over slots changes by no more.
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("adjacency", "change"), [(ADD_REMOVE, removed), (REPLACE, replaced)])
def test_neighbours_change_answers_by_no_more_than_is_paid_for(rule, adjacency, change):
    window, _, blocks = rule
    length = -(-window // blocks)
    slots = min(window + 2 * (length - 1), 11 if adjacency == REPLACE else 14)
    query = query_of(*rule, adjacency)
    worst = np.zeros(LAYERS + 1, int)
    for phase in range(length):
        for place, table in enumerate(layer_tables(slots, *rule, phase)):
            found = change(table, min(length - 1, slots - window), window)
            worst[place] = max(worst[place], found)
    layer, rest = query.sensitivities
    assert worst[:LAYERS].max() <= layer
    assert worst[LAYERS] <= rest
    if adjacency == ADD_REMOVE and slots == window + 2 * (length - 1) and query.slots < window:
        assert worst[1] == layer  # the second layer is as dear as the first


def test_the_rest_never_rises_when_events_are_removed():
    for phase in range(5):
        rest = layer_tables(10, 10, 1, 2, phase)[LAYERS]
        ways = np.arange(1 << 10)
        for event in range(10):
            assert not (rest[ways & ~(1 << event)] & ~rest).any()


@pytest.mark.parametrize("bins", [1, 10])
@pytest.mark.parametrize("rule", [(120, 6, 2), (120, 25, 2), (9, 1, 3), (12, 2, 2)])
@pytest.mark.parametrize("budget", [aside(1.0), 12_345_678])
def test_queries_cost_no_more_than_their_budget(rule, bins, budget):
    query = query_of(*rule, bins=bins)
    rates, (layer, rest) = query.rates(budget), query.sensitivities
    parts = [rates.kept, *[rates.layers] * 2, *[rates.bins] * 2]  # two layers are in both
    cost = layer * sum(parts) + rest * rates.rest
    assert 0.99 * budget < cost <= budget
    assert (rates.rest > 0) == (rest > 0)
    assert (rates.bins > 0) == (bins > 1)


def test_the_answer_is_noisy_and_of_that_width():
    query = query_of(120, 6, 2, bins=5)
    sums = np.arange(8) * 1000
    noise = query.answer(sums, query.rates(aside(1.0)), RandomWords(bytes(32))) - sums
    assert noise.shape == (8,) == (query.width,)
    assert (noise != 0).all()
    # Flakiness: the key is fixed.
    sizes = np.mean([np.abs(noisy_of(query, key)) for key in range(1, 200)], axis=0)
    rates = query.rates(aside(1.0))
    should = [rates.kept, rates.layers, rates.rest, *[rates.bins] * 5]
    np.testing.assert_allclose(sizes * np.array(should) / 2**40, 1, atol=0.3)


def noisy_of(query, key):
    words = RandomWords(key.to_bytes(32, "little"))
    return query.answer(np.zeros(query.width, np.int64), query.rates(aside(1.0)), words)


def present(kind, random, users, length):
    """Slots with events in a block of users who come alike, unlike each other, or always."""
    rates = {
        "alike": np.full(users, 0.05),
        "unlike": np.minimum(random.gamma(0.5, 0.1, users), 1),
        "a few always": np.where(random.random(users) < 0.03, 0.9, 0.05),
    }[kind]
    return random.binomial(length, rates)


def sums_of(slots, query, random):
    """What is asked for where users are in so many slots of a block, in any bins."""
    most = query.max_slots
    up_to = [np.minimum(slots, most * places).sum() for places in range(LAYERS + 1)]
    near = int(up_to[3] - up_to[1])
    sums = [up_to[1], near, slots.sum() - up_to[3]]
    return np.array([*sums, *random.multinomial(near, np.full(query.bins, 1 / query.bins))])


# Of 30 runs each with a nominal coverage of 90 %; the runs have a fixed key.
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["alike", "unlike", "a few always"])
def test_the_share_is_right_within_its_own_error(kind):
    random, query = np.random.default_rng(1), query_of(120, 6, 2, bins=4)
    rates = query.rates(aside(1.0))
    errors, stated = [], []
    for run in range(30):
        known, kept, there = KeptShare.unknown(query), 0, 0
        for block in range(5):
            slots = present(kind, random, 100_000, query.every)
            key = (100 * run + block + 1).to_bytes(32, "little")
            known = known.updated(
                query.answer(sums_of(slots, query, random), rates, RandomWords(key)), rates
            )
            kept, there = kept + np.minimum(slots, 6).sum(), there + slots.sum()
        odds = known.odds()
        errors.append((1 + odds.all) * kept / there - 1)
        stated.append(np.sqrt(odds.variance) * kept / there)
    assert np.sqrt(np.mean(np.square(errors))) < 0.04
    assert 0.75 <= np.mean(np.abs(errors) < 1.645 * np.array(stated)) <= 1


def test_before_anything_is_known_it_is_what_is_to_be_expected():
    odds = KeptShare.unknown(query_of(120, 6, 2)).odds()
    assert odds.near == NEAR[0] + COARSE[0] / 36
    assert 0 < odds.rest < odds.near
    assert NEAR[1] < np.sqrt(odds.variance) < 0.4
    assert KeptShare.unknown(query_of(12, 2, 2)).odds().rest_variance == 0  # no slots are above


@pytest.mark.parametrize("users", [1, 50, 500])
def test_few_users_leave_it_there(users):
    query = query_of(120, 6, 2)
    rates = query.rates(aside(0.1))
    slots = np.minimum(np.arange(users) % 9, 7)
    sums = sums_of(slots, query, np.random.default_rng(0))[:3]
    before = KeptShare.unknown(query)
    after = before.updated(query.answer(sums, rates, RandomWords(bytes(32))), rates)
    assert after.odds() == before.odds()


def test_of_the_first_answer_nothing_stays():
    query = query_of(120, 6, 2)
    rates = query.rates(aside(1.0))
    first, second = np.array([5000, 100, 0]), np.array([50_000, 9_100, 0])
    known = KeptShare.unknown(query).updated(first, rates)
    assert known.slots == 60
    known = known.updated(second, rates)
    np.testing.assert_array_equal(known.sums, second)
    assert known.slots == 60
    assert known.updated(second, rates).slots == pytest.approx(60 * 1.9)


def test_what_is_measured_is_drawn_to_what_is_likely():
    assert drawn(0.9, np.inf, 0.1, 0.01)[0] == 0.1
    mean, variance = drawn(0.12, 1e-6, 0.1, 0.01)
    assert mean == pytest.approx(0.12, abs=1e-4)
    assert variance == pytest.approx(1e-6, rel=1e-2)
    near, _ = drawn(0.3, 0.09, 0.1, 0.01)  # as noise explains it
    assert near < 0.15
    far, doubt = drawn(3.0, 0.09, 0.1, 0.01)  # as nothing does
    assert far > 2
    assert doubt < 0.1
    assert drawn(-5.0, 1e-3, 0.0, 0.01)[0] == 0.0
    assert drawn(0.0, 0.0, 0.0, 0.0) == (0.0, pytest.approx(0, abs=1e-9))


def test_with_any_budget_at_all_it_is_exact():
    query = query_of(120, 6, 2, bins=3)
    sums = np.array([10_000, 1000, 0, 500, 300, 200])
    known = KeptShare(query, sums.astype(float), np.zeros(4), 3)
    odds = known.odds()
    assert odds.all == pytest.approx(0.1)
    assert odds.variance == pytest.approx(0, abs=1e-9)


def test_the_fewer_slots_count_the_wider_the_guess():
    few, some, many = (KeptShare.unknown(query_of(120, most, 2)).odds() for most in (1, 2, 6))
    assert few.all > some.all > many.all
    assert few.variance > some.variance > many.variance


def test_what_both_parts_have_of_one_error_is_counted_twice():
    """Where much is left out, all that is not known is how much counts."""
    query = query_of(120, 6, 2)
    noise = np.array([1e6, 0, 0, 0])
    odds = KeptShare(query, np.array([1e4, 8e3, 6e3]), noise, 3).odds()
    assert np.sqrt(odds.variance) == pytest.approx(1.4 * 0.1, rel=0.15)


def test_nothing_is_beyond():
    assert [len(one) for one in Beyond.none()] == [0] * 4


def test_no_rate_is_more_for_less_budget():
    """So a user who moves between classes pays no more than in the dearest."""
    for query in (ShareQuery(30, 2, 8), ShareQuery(30, 2, 8, bins=5), ShareQuery(8, 2, 4, 1)):
        rates = np.array([query.rates(budget) for budget in range(20_000)])
        assert (np.diff(rates, axis=0) >= 0).all()


@pytest.mark.parametrize("rule", [(30, 2, 2), (120, 6, 2), (12, 2, 2)])
def test_who_moves_between_classes_pays_no_more_than_is_set_aside_in_the_dearest(rule):
    """Some classes ask for bins and some do not: a user is in each of them in some blocks."""
    queries = [query_of(*rule, bins=bins) for bins in (1, 5)]
    dearest_layers = dearest_rest = 0
    for budget in range(20_000):
        for query in queries:
            rates = query.rates(budget)
            in_all = rates.kept + 2 * (rates.layers + rates.bins)
            dearest_layers = max(dearest_layers, in_all)
            dearest_rest = max(dearest_rest, rates.rest)
        layer, rest = queries[0].sensitivities
        assert layer * dearest_layers + rest * dearest_rest <= budget
