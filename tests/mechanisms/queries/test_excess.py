"""Which keys leave a stream: those without events do, and those with many do not."""

import numpy as np
import pytest

from streamveil.mechanisms import NoiseSource, Population, ReleaseStream, Requirement
from streamveil.mechanisms.queries.discovered import Excess
from streamveil.mechanisms.registry import mechanism

WEEK = 7
RATES = np.repeat([0, 20, 50, 400], [20, 10, 10, 1])
"""Events of each key a day, after a first week with at least 60. The last bin is `unlisted`."""


def left(name, epsilon, seed):
    """Which keys leave after the first week with these rates, shape (keys,)."""
    random = np.random.default_rng(seed)
    people = Population((Requirement(WEEK, epsilon),), np.array([1000]), len(RATES))
    stream = ReleaseStream(mechanism(name, people), NoiseSource(seed.to_bytes(32, "big")))
    state, excess = stream.start(), Excess(None, np.zeros(len(RATES)))
    for day in range(2 * WEEK):
        rates = RATES if day >= WEEK else np.maximum(RATES, 60)
        state, release = stream.release(state, day, random.poisson(rates)[None])
        cells = (one.reshape(-1, 1) for one in (release.values, release.stderr))
        excess = excess.after(day // WEEK, *cells)
    return excess.low(1, len(RATES) - 1)


@pytest.mark.parametrize("name", ["adaptive", "pba", "ba"])
@pytest.mark.parametrize(("epsilon", "dead", "alive"), [(0.8, 0.5, 0.3), (3.2, 0.8, 0.0)])
def test_most_keys_without_events_leave_within_a_week(name, epsilon, dead, alive):
    found = np.mean([left(name, epsilon, seed) for seed in range(4)], axis=0)
    assert found[RATES[:-1] == 0].mean() > dead
    assert found[RATES[:-1] == 20].mean() <= alive
    assert found[RATES[:-1] == 50].mean() <= 0.05


def test_a_key_stays_while_its_error_is_unknown():
    excess = Excess(None, np.zeros(2)).after(0, np.zeros((2, 1)), np.array([[np.nan], [1.0]]))
    assert excess.low(0, 2).tolist() == [False, True]


def test_only_the_last_discovery_slot_counts():
    one, many = np.ones((1, 1)), np.full((1, 1), 9.0)
    excess = Excess(None, np.zeros(1)).after(0, many, one).after(1, one, many)
    assert excess.low(1, 1).tolist() == [True]
    assert excess.low(2, 1).tolist() == [False]  # nothing was released in it


def test_new_bins_have_no_excess():
    excess = Excess(3, np.array([1.0, -2.0])).grown(np.array([-1, 1]))
    assert excess.record() == {"slot": 3, "by_bin": [0.0, -2.0]}
