"""DPI repaired: exact draws, losses of the stated sensitivity, orders that spend no term twice."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from streamveil.mechanisms import ConfigurationError, infinite_mechanism, simulate_infinite
from streamveil.mechanisms.infinite import spending_orders
from streamveil.mechanisms.infinite.query_pool import SCALE, queries, with_top
from streamveil.mechanisms.infinite.synopses import synopses
from streamveil.mechanisms.randomness.exponential import draw
from streamveil.mechanisms.randomness.noise import RandomWords

KEY = bytes(range(32))
MODES = ("instantaneous", "cumulative")


# ---- the draw -------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0, 1 << 50, 1 << 54, 1 << 56, 1 << 63])
def test_candidates_are_drawn_as_often_as_their_weights_say(rate):
    losses = np.array([7, 7, 8, 10, 40, 1 << 40]) + (1 << 59)
    drawn = draw(losses, rate, RandomWords(KEY), 20_000)
    weights = np.exp(-(losses - losses.min()) * min(rate / 2**56, 32.0))
    expected = weights / weights.sum() * drawn.size
    found = np.bincount(drawn, minlength=losses.size)
    assert (found[expected < 1e-6] == 0).all()
    likely = expected >= 5
    if likely.sum() > 1:
        rest = [np.append(x[likely], x[~likely].sum() + 1e-9) for x in (found, expected)]
        squares = ((rest[0] - rest[1]) ** 2 / np.maximum(rest[1], 1)).sum()
        assert stats.chi2.sf(squares, likely.sum()) > 1e-6


def test_many_candidates_with_one_far_ahead():
    losses = np.full(100_000, 1000)
    losses[4711] = 0
    assert (draw(losses, 1 << 56, RandomWords(KEY), 3) == 4711).all()


# ---- scores ---------------------------------------------------------------------------------


# A user is in every slot so far; sums over slots change by slots times the change of one.
@given(
    st.data(),
    st.sampled_from(MODES),
    st.booleans(),
    st.sampled_from([0, 50]),
)
@settings(max_examples=60)
def test_no_user_changes_a_loss_by_more_than_its_price_allows(data, mode, reweighted, total):
    bins, slots = 4, data.draw(st.integers(1, 4))
    text = f"dpi:pool=30:precision=20:mode={mode}:queries={reweighted}:total={total}"
    machine = infinite_mechanism(text, bins, 1.0)
    cells = st.lists(st.integers(0, 60), min_size=bins, max_size=bins)
    shares = np.array([0.4, 0.3, 0.2, 0.1])
    pool = with_top(queries(bins), shares)
    empty = np.zeros(0, np.int64)
    sums = [[empty, empty], [empty, empty]]
    for _ in range(slots):
        counts = np.array(data.draw(cells), dtype=np.int64)
        neighbour = counts.copy()
        neighbour[data.draw(st.integers(0, bins - 1))] += 1
        query = pool[data.draw(st.integers(0, len(pool) - 1))] if reweighted else None
        for world, row in zip(sums, (counts, neighbour), strict=True):
            world[0] = machine._summed(world[0], machine._losses(row, query))
            world[1] = machine._summed(world[1], machine._badly_answered(pool, row, shares))
    rounds = slots if mode == "cumulative" else 1
    units = 1 << 40
    for which, width in ((0, 2 if reweighted else 1), (1, SCALE)):
        change = int(np.abs(sums[0][which] - sums[1][which]).max())
        rate = machine._rate(units, rounds, width)
        assert 2 * change * rate <= units << 16


def test_the_pool_is_public_and_complete():
    pool = synopses(5, 200, 40, seed=3)
    assert (pool.sum(axis=1) == 40).all()
    assert (pool == synopses(5, 200, 40, seed=3)).all()
    assert not (pool == synopses(5, 200, 40, seed=4)).all()
    assert pool.mean() == pytest.approx(8)
    with pytest.raises(ConfigurationError, match="smaller pool"):
        synopses(1000, 10**6, 10, seed=0)


@pytest.mark.parametrize("bins", [1, 2, 7, 100, 1000])
def test_queries_have_coefficients_within_the_scale(bins):
    pool = with_top(queries(bins), np.arange(bins) / max(bins - 1, 1))
    assert (pool >= 0).all()
    assert (pool <= SCALE).all()
    assert (pool == SCALE).all(axis=1).any()  # the sum of all bins
    assert pool[-1].argmax() == bins - min(bins, 10)


# ---- orders ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(spending_orders.ORDERS))
def test_no_order_takes_a_term_twice(name):
    order, taken, terms = spending_orders.order(name, 7, 1e-4), (), []
    for slot in range(3000):
        term, taken = order.take(slot, taken)
        terms.append(term)
    assert len(set(terms)) == len(terms)
    assert min(terms) >= 1
    assert sum(end - first for first, end in taken) == len(terms)
    assert len(taken) < 2000


# Golden: of terms 1, 1/4, 1/9, ..., those nearest to the sample that are left.
def test_algorithm_3_takes_the_nearest_term_that_is_left(monkeypatch):
    samples = {0: 0.26, 1: 0.26, 2: 0.9, 3: 0.2, 4: 0.9}
    monkeypatch.setattr(
        spending_orders, "_uniform", lambda seed, slot: 1 - math.exp(-samples[slot])
    )
    order, taken, terms = spending_orders.Exponential(0, 1.0), (), []
    for slot in samples:
        term, taken = order.take(slot, taken)
        terms.append(term)
    assert terms == [2, 3, 1, 4, 5]
    assert taken == ((1, 6),)


# With the published Lambda nearly nothing is ever spent.
@pytest.mark.slow
def test_algorithm_3_with_its_own_rate_saves_the_budget_for_nobody():
    done = simulate_infinite(
        "dpi", np.full((1000, 4), 9), 2.0, KEY, pool=10, precision=10, order="exponential"
    )
    assert 0 < done.spent.sum() < 1e-4 * 2.0


def test_algorithm_4_draws_from_its_three_queues():
    order, taken, terms = spending_orders.Ranges(3), (), []
    for slot in range(60):
        term, taken = order.take(slot, taken)
        terms.append(term)
    assert sorted(t for t in terms if t <= 10) == list(range(1, 11))
    assert 11 in terms
    assert 1001 in terms


@pytest.mark.parametrize(
    "text",
    [
        *("dpi:mode=both", "dpi:precision=0", "dpi:draws=0", "dpi:order=x", "dpi:scale=0"),
        *("dpi:total=-1", "dpi:pool=0", "dpi:p=1"),
    ],
)
def test_what_does_not_fit_is_refused(text):
    with pytest.raises(ConfigurationError):
        infinite_mechanism(text, 3, 1.0)


# With a lot of budget the draw is the nearest synopsis; cumulative, that of the mean of all slots.
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reweighted", [False, True])
def test_a_rich_draw_is_a_good_synopsis(mode, reweighted):
    table = np.array([[600, 300, 80, 20]] * 3)
    done = simulate_infinite(
        *("dpi", table, 1000.0, KEY), pool=2000, precision=20, mode=mode, queries=reweighted
    )
    pool = synopses(4, 2000, 20, 0) / 20
    best = np.abs(pool - table[0] / 1000).sum(axis=1).min()
    assert np.abs(done.released - table[0] / 1000).sum(axis=1) == pytest.approx(best, abs=0.11)
    assert done.spent.sum() <= 1000


def test_several_draws_share_the_budget():
    one, four = (
        simulate_infinite("dpi", [[5, 5]] * 4, 1.0, KEY, pool=9, precision=3, draws=m)
        for m in (1, 4)
    )
    assert one.spent.tolist() == four.spent.tolist()
    assert not (one.released == four.released).all()
