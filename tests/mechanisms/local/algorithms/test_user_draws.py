"""Drawing and recycling users."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from streamveil.mechanisms.local.algorithms.user_draws import Pool
from streamveil.mechanisms.randomness.noise import RandomWords


def words(seed):
    return RandomWords(seed.to_bytes(32, "little"))


def test_users_come_back_after_the_gap():
    pool = Pool.of(4)
    pool.spend(np.array([1, 3], np.int32), 0)
    assert [pool.available(slot, 3).tolist() for slot in (0, 2, 3)] == [
        [0, 2], [0, 2], [0, 1, 2, 3]
    ]  # fmt: skip


# A user drawn but not spent stays.
def test_drawing_spends_nobody():
    pool = Pool.of(10)
    drawn = pool.draw(10, 0, 5, words(1))
    assert drawn.tolist() == list(range(10))
    assert pool.available(0, 5).size == 10
    with pytest.raises(ValueError, match="larger"):
        pool.draw(11, 0, 5, words(1))


@settings(max_examples=50)
@given(st.integers(1, 6), st.lists(st.integers(0, 4), min_size=1, max_size=20), st.integers(0, 99))
def test_nobody_reports_within_the_gap(gap, sizes, seed):
    pool, seen = Pool.of(4 * gap), []
    for slot, size in enumerate(sizes):
        drawn = pool.draw(size, slot, gap, words(100 * slot + seed))
        assert (np.diff(drawn) > 0).all()
        pool.spend(drawn, slot)
        pool = Pool.decode(pool.encode())
        seen.append(set(drawn.tolist()))
        recent = seen[-gap:]
        assert sum(map(len, recent)) == len(set().union(*recent))


# All pairs of five users are as likely: flakiness 1e-6.
@pytest.mark.slow
def test_draws_are_uniform():
    pool, counts = Pool.of(5), {}
    for seed in range(10_000):
        pair = tuple(pool.draw(2, 0, 1, words(seed)).tolist())
        counts[pair] = counts.get(pair, 0) + 1
    assert len(counts) == 10
    assert stats.chisquare(list(counts.values())).pvalue > 1e-6


def test_state_is_four_bytes_a_user():
    assert len(Pool.of(1000).encode()) == 4000
