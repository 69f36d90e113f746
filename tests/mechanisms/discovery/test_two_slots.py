"""Two discovery slots together, of which the second has no keys that the first one found.

All that is published of both is enumerated, with and without what a user did in a window.
"""

import itertools
import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamveil.mechanisms.core.budgets import to_epsilon
from streamveil.mechanisms.core.records import ADD_REMOVE, REPLACE
from streamveil.mechanisms.discovery.deltas import to_delta
from streamveil.mechanisms.discovery.price import Draw
from streamveil.mechanisms.discovery.truncated_noise import TruncatedNoise

KEYS = "abc"
LENGTH = 2
NOISE = TruncatedNoise(1 << 39, 3)
PMF = {y: math.exp(-abs(y) / 2) for y in range(-200, NOISE.bound + 1)}


def chance(count):
    """The probability that a key with this count is found."""
    found = sum(p for y, p in PMF.items() if count + y > NOISE.bound)
    return found / sum(PMF.values()) if count else 0.0


CHANCES = {count: chance(count) for count in range(12)}


def found_in(slot, listed, draw, ranks, others):
    """The sets of keys that are found in a discovery slot, with their probabilities.

    Args:
        slot: the user's keys in each base slot.
        listed: keys that were found before.
        draw: how the user's keys are drawn.
        ranks: the keys in the order in which they are drawn.
        others: for each key, how many other users have it.
    """
    pools = slot if draw.by_base_slot else [set().union(*slot)]
    taken = {key for pool in pools for key in [one for one in ranks if one in pool - listed][:1]}
    free = [key for key in KEYS if key not in listed]
    for some in itertools.product([False, True], repeat=len(free)):
        each = [CHANCES[others[key] + (key in taken)] for key in free]
        odds = math.prod(p if yes else 1 - p for yes, p in zip(some, each, strict=True))
        if odds:
            yield frozenset(itertools.compress(free, some)), odds


def published(slots, draw, ranks, others):
    """What is published of both slots, with its probabilities."""
    first, second = slots[:LENGTH], slots[LENGTH:]
    return {
        (one, two): p * q
        for one, p in found_in(first, frozenset(), draw, ranks[0], others[0])
        for two, q in found_in(second, one, draw, ranks[1], others[1])
    }


def excess(left, right, epsilon):
    """The smallest delta with left <= exp(epsilon) * right + delta, over all events."""
    return sum(max(p - math.exp(epsilon) * right.get(v, 0.0), 0.0) for v, p in left.items())


keys = st.lists(st.sets(st.sampled_from(KEYS)), min_size=2 * LENGTH, max_size=2 * LENGTH)
counts = st.fixed_dictionaries({key: st.integers(0, 6) for key in KEYS})
NONE = dict.fromkeys(KEYS, 0)


@pytest.mark.parametrize("by_base_slot", [False, True])
@pytest.mark.parametrize("adjacency", [ADD_REMOVE, REPLACE])
@settings(max_examples=150, deadline=None)
@given(keys, keys, *(st.permutations(KEYS),) * 2, counts, counts, *(st.integers(0, 3),) * 2)
@example([set(), {"a"}, {"b"}, set()], [set()] * 4, "abc", "abc", NONE, NONE, 1, 2)
def test_a_window_over_two_slots_keeps_epsilon_and_delta(
    adjacency, by_base_slot, mine, other, ranks, again, counts, later, first, window
):
    window += 1
    draw = Draw(LENGTH, 1, by_base_slot, adjacency == REPLACE)
    left, right = (
        published(slots, draw, (ranks, again), (counts, later))
        for slots in (
            mine,
            [
                one if not first <= at < first + window else other[at] if draw.replaced else set()
                for at, one in enumerate(mine)
            ],
        )
    )
    epsilon = draw.in_window(draw.changed, window) * float(to_epsilon(NOISE.unit))
    delta = draw.in_window(draw.removed, window) * to_delta(NOISE.tail(1))
    for one, two in ((left, right), (right, left)):
        assert excess(one, two, epsilon) <= delta * (1 + 1e-9)


@pytest.mark.parametrize("charged", [1, 2])
def test_a_window_that_is_charged_for_one_of_two_slots_is_found(charged):
    left = published([set(), {"a"}, {"b"}, set()], Draw(LENGTH, 1), (KEYS, KEYS), (NONE, NONE))
    delta = charged * to_delta(NOISE.tail(1))
    assert (excess(left, {(frozenset(), frozenset()): 1.0}, 4.0) <= delta) == (charged == 2)
