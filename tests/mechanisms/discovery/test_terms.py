"""Weights and noise: what is spent fits what is granted, and users that a key needs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms import ConfigurationError
from streamveil.mechanisms.core.budgets import to_units
from streamveil.mechanisms.core.records import ADD_REMOVE, REPLACE
from streamveil.mechanisms.discovery.deltas import delta_units
from streamveil.mechanisms.discovery.discovery_filter import DiscoveryFilter
from streamveil.mechanisms.discovery.price import Draw, cheapest_draw
from streamveil.mechanisms.discovery.terms import DiscoveryTerms

DELTA = 1e-9
SHARE = 0.2


def terms(draws, windows, epsilons, deltas, sizes):
    return DiscoveryTerms.of(
        tuple(draws),
        np.array(windows),
        to_units([SHARE * epsilon for epsilon in epsilons]),
        np.array([delta_units(delta) for delta in deltas]),
        np.array(sizes),
    )


# The specification has these for a window that meets so many discovery slots, each in full.
@pytest.mark.parametrize(
    ("epsilon", "met", "places", "users"),
    [(1, 7, 1, 646), (1, 2, 1, 185), (1, 2, 4, 738), (1, 2, 16, 2948), (4, 2, 1, 51)],
)
def test_users_for_half_a_chance(epsilon, met, places, users):
    found = terms([Draw(1, places)], [met], [epsilon], [DELTA], [1000])
    assert found.users_for_half_chance == users


@pytest.mark.parametrize(
    ("length", "places", "users"),
    [(1, 1, 646), (7, 1, 356), (168, 1, 356), (1, 4, 2580), (7, 4, 646), (7, 16, 1935)],
)
def test_users_for_half_a_chance_where_windows_cover_slots_in_part(length, places, users):
    window = max(7, length)
    draw = cheapest_draw(length, window, places, ADD_REMOVE)
    found = terms([draw], [window], [1], [DELTA], [1000])
    assert found.users_for_half_chance == users


def test_half_a_chance_is_one():
    found = terms([Draw(7, 1)], [7], [1], [DELTA], [1000])
    steps = found.users_for_half_chance / found.users_per_step
    words = np.random.default_rng(1)  # the noise is symmetric and far from its bound
    rate = found.noise.unit / 2**40
    noise = words.geometric(-np.expm1(-rate), 20_000) - words.geometric(-np.expm1(-rate), 20_000)
    assert np.mean(steps + noise > found.noise.bound) == pytest.approx(0.5, abs=0.02)


classes = st.lists(
    st.tuples(
        st.integers(1, 20),
        st.floats(0.01, 20),
        st.sampled_from([1e-15, 1e-12, 1e-9, 1e-5]),
        st.integers(0, 5000),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=60, deadline=None)
@given(classes, st.integers(1, 8), st.integers(1, 5))
def test_no_class_spends_more_than_it_grants(classes, length, places):
    windows, epsilons, deltas, sizes = map(list, zip(*classes, strict=True))
    draws = [cheapest_draw(length, window, places, ADD_REMOVE) for window in windows]
    found = terms(draws, windows, epsilons, deltas, sizes)
    granted = to_units([SHARE * epsilon for epsilon in epsilons])
    for k, draw in enumerate(draws):
        keys = draw.in_window(draw.changed, windows[k])
        assert int(found.epsilon[k]) * keys <= granted[k]
        alone = draw.in_window(draw.removed, windows[k])
        assert int(found.delta[k]) * alone <= delta_units(deltas[k])
    assert found.weights.any()


@settings(max_examples=40, deadline=None)
@given(classes, st.integers(1, 8), st.integers(1, 5), st.booleans())
def test_the_filter_never_refuses_what_the_terms_allow(classes, length, places, replaced):
    windows, epsilons, deltas, sizes = map(list, zip(*classes, strict=True))
    adjacency = REPLACE if replaced else ADD_REMOVE
    draws = [cheapest_draw(length, window, places, adjacency) for window in windows]
    found = terms(draws, windows, epsilons, deltas, sizes)
    granted = to_units([SHARE * epsilon for epsilon in epsilons])
    allowed = np.array([delta_units(delta) for delta in deltas])
    books = DiscoveryFilter(np.array(windows), granted, allowed, draws)
    for slot in range(25):
        books.charge(slot, found.epsilon, found.delta)


def test_equal_classes_weigh_the_same_and_lose_nothing():
    found = terms([Draw(1, 1)] * 2, [1, 1], [5, 5], [DELTA] * 2, [10, 10])
    assert len(set(found.weights.tolist())) == 1
    assert found.epsilon[0] >= to_units(1.0) * (1 - 1e-9)


def test_a_class_with_half_the_budget_weighs_half():
    found = terms([Draw(1, 1)] * 2, [1, 1], [10, 5], [DELTA] * 2, [10, 10])
    assert found.weights[0] == 2 * found.weights[1]


def test_few_users_with_little_budget_do_not_hold_others_back():
    alone = terms([Draw(1, 1)], [1], [5], [DELTA], [1000])
    found = terms([Draw(1, 1)] * 2, [1, 1], [5, 0.05], [DELTA, 1e-15], [1000, 10])
    assert found.users_for_half_chance < 1.05 * alone.users_for_half_chance


def test_a_class_without_probability_is_not_counted():
    """A window of its users meets more discovery slots than its delta has units."""
    met = delta_units(1e-15) + 1
    found = terms([Draw(1, 1)] * 2, [1, met], [5, 5], [DELTA, 1e-15], [10, 10])
    assert found.weights[0] > 0
    assert (found.weights[1], found.delta[1]) == (0, 0)


def test_few_users_with_a_small_delta_do_not_hold_others_back():
    alone = terms([Draw(1, 1)], [1], [5], [1e-5], [1000])
    found = terms([Draw(1, 1)] * 2, [1, 1], [5, 5], [1e-5, 1e-15], [1000, 10])
    assert found.users_for_half_chance <= 1.02 * alone.users_for_half_chance
    assert (found.weights[1], found.delta[1], found.epsilon[1]) == (0, 0, 0)


def test_many_users_with_a_small_delta_are_counted():
    found = terms([Draw(1, 1)] * 2, [1, 1], [5, 5], [1e-5, 1e-9], [10, 1000])
    assert found.weights.all()
    assert int(found.delta.max()) <= delta_units(1e-9)


def test_a_class_with_delta_0_is_not_counted():
    draws = (Draw(1, 1),) * 2
    deltas = np.array([delta_units(1e-9), 0])
    found = DiscoveryTerms.of(
        draws, np.ones(2, np.int64), to_units([1.0, 1.0]), deltas, np.full(2, 10)
    )
    assert found.weights[0] > 0
    assert (found.weights[1], found.delta[1], found.epsilon[1]) == (0, 0, 0)


def test_a_budget_for_no_noise_is_refused():
    with pytest.raises(ConfigurationError, match="too small to discover keys"):
        terms([Draw(1, 1)], [1 << 20], [1e-12], [DELTA], [10])
