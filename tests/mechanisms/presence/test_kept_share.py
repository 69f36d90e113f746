"""The share that is kept: what questions cost, by enumeration, and how far answers are right."""

import numpy as np
import pytest

from streamveil.mechanisms.presence.kept_share import (
    DOUBT,
    GUESS,
    LAYERS,
    KeptShare,
    ShareQuery,
    layers,
    scaled,
)
from streamveil.mechanisms.presence.limits import aside
from streamveil.mechanisms.randomness.noise import RandomWords
from tests.mechanisms.presence.all_ways import mask

QUERIES = [
    ShareQuery(*rule)
    for rule in [(4, 1, 1), (6, 1, 1), (5, 1, 2), (6, 1, 2), (8, 1, 2), (6, 2, 1), (9, 1, 3)]
]


def answers(slots, query, phase):
    """Layers of each block of all ways to be there: shape (ways, blocks, 4)."""
    ways = np.arange(1 << slots)
    blocks = (np.arange(slots) + phase) // query.every
    found = []
    for block in range(blocks[-1] + 1):
        here = int(sum(1 << slot for slot in np.flatnonzero(blocks == block)))
        there = np.bitwise_count(ways & here).astype(np.int64)
        found.append(layers(there, query.max_slots))
    return np.stack(found, axis=1)


@pytest.mark.parametrize("query", QUERIES)
def test_neighbours_change_answers_by_no_more_than_is_paid_for(query):
    slots = min(query.window + 2 * (query.every - 1), 14)
    ways = np.arange(1 << slots)
    start = query.every - 1
    worst = np.zeros(2)
    for phase in range(query.every):
        table = answers(slots, query, phase)
        for inside in (0, mask(start, query.window), 0b010101010101 & mask(start, query.window)):
            other = table[ways & ~mask(start, query.window) | inside & (len(ways) - 1)]
            change = np.abs(table - other).sum(axis=1)
            both = np.column_stack((change[:, :LAYERS].sum(axis=1), change[:, LAYERS]))
            worst = np.maximum(worst, both.max(axis=0))
    assert (worst <= query.sensitivities).all()
    if slots == query.window + 2 * (query.every - 1):
        assert worst[0] >= query.sensitivities[0] - 1  # as good as tight


@pytest.mark.parametrize("query", [ShareQuery(120, 6), ShareQuery(120, 25), ShareQuery(9, 1, 3)])
@pytest.mark.parametrize("budget", [aside(1.0), 12_345])
def test_questions_cost_no_more_than_their_budget(query, budget):
    rates, (inside, above) = query.rates(budget), query.sensitivities
    cost = rates.layers * inside + rates.rest * above
    assert 0.99 * budget < cost <= budget


def test_layers_add_up_to_all_slots():
    random = np.random.default_rng(0)
    slots = random.integers(0, 40, 1000)
    found = layers(slots, 4).sum(axis=0)
    np.testing.assert_array_equal(layers(slots, np.full(1000, 4)), layers(slots, 4))
    assert found.sum() == slots.sum()
    assert found[0] == np.minimum(slots, 4).sum()
    assert found[LAYERS] == np.maximum(slots - 12, 0).sum()
    assert (np.diff(found[:LAYERS]) <= 0).all()


def visits(kind, random, users, length):
    """Slots with events in a block of users who come alike, unlike each other, or always."""
    rates = {
        "alike": np.full(users, 0.05),
        "unlike": np.minimum(random.gamma(0.5, 0.1, users), 1),
        "a few always": np.where(random.random(users) < 0.03, 0.9, 0.05),
    }[kind]
    return random.binomial(length, rates)


# Of 30 runs each with a nominal coverage of 90 %; the runs have a fixed key.
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("alike", marks=pytest.mark.slow),
        pytest.param("unlike", marks=pytest.mark.slow),
        "a few always",
    ],
)
def test_the_share_is_right_within_its_own_error(kind):
    random, query = np.random.default_rng(1), ShareQuery(120, 6)
    rates = query.rates(aside(1.0))
    errors, stated = [], []
    for run in range(30):
        known, kept, there = KeptShare.unknown(), 0, 0
        for block in range(4):
            slots = visits(kind, random, 100_000, query.every)
            key = (100 * run + block + 1).to_bytes(32, "little")
            known = known.told(
                query.answer(layers(slots, 6).sum(axis=0), rates, RandomWords(key)), rates
            )
            kept, there = kept + np.minimum(slots, 6).sum(), there + slots.sum()
        share, variance = known.estimate(query)
        errors.append(share - kept / there)
        stated.append(np.sqrt(variance))
    assert np.sqrt(np.mean(np.square(errors))) < 0.03 * kept / there
    assert 0.75 <= np.mean(np.abs(errors) < 1.645 * np.array(stated)) <= 1


def test_before_anything_is_known_it_is_what_is_to_be_expected():
    assert KeptShare.unknown().estimate(ShareQuery(120, 6)) == (GUESS, DOUBT**2)


def test_few_users_leave_it_there():
    query = ShareQuery(120, 6)
    rates = query.rates(aside(0.1))
    words = RandomWords(bytes(32))
    answer = query.answer(layers(np.array([1, 0, 2]), 6).sum(axis=0), rates, words)
    share, variance = KeptShare.unknown().told(answer, rates).estimate(query)
    assert 0.5 < share <= 1
    assert variance > 0.8 * DOUBT**2


def test_where_blocks_have_no_rest_all_goes_to_the_layers():
    query = ShareQuery(12, 2)
    rates = query.rates(900)
    assert query.sensitivities == (12, 0)
    assert (rates.layers, rates.rest) == (75, 0)
    answer = query.answer(layers(np.full(50, 6), 2).sum(axis=0), rates, RandomWords(bytes(32)))
    assert answer[LAYERS] == 0
    share, _ = KeptShare.unknown().told(answer, rates).estimate(query)
    assert 0 < share <= 1


def test_counts_are_scaled_and_say_how_uncertain_the_share_is():
    counts, variances = scaled([90, 0], [4.0, 4.0], 0.9, 0.0081)
    np.testing.assert_allclose(counts, [100, 0])
    np.testing.assert_allclose(variances, [(4 + 81) / 0.81, 4 / 0.81])
