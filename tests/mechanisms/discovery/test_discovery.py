"""Discovery slot by slot: what is found, what it is bound to, and what it costs."""

import numpy as np
import pytest

from streamveil.mechanisms import BudgetExceeded
from streamveil.mechanisms.core.budgets import to_units
from streamveil.mechanisms.discovery.deltas import delta_units
from streamveil.mechanisms.discovery.discovery import Discovery
from streamveil.mechanisms.discovery.discovery_filter import DiscoveryFilter
from streamveil.mechanisms.discovery.key_draw import Pairs
from streamveil.mechanisms.discovery.price import Draw
from streamveil.mechanisms.discovery.terms import DiscoveryTerms
from streamveil.mechanisms.randomness.noise import NoiseKeys

SECRET = NoiseKeys(bytes(range(32)))
WINDOWS = np.array([2])
BUDGETS, DELTAS = to_units([2.0]), np.array([delta_units(1e-6)])
DRAWS = (Draw(2, 1),)
TERMS = DiscoveryTerms.of(DRAWS, WINDOWS, BUDGETS, DELTAS, np.array([500]))
DIGESTS = np.random.default_rng(8).integers(0, 1 << 63, (300, 2)).astype(np.uint64)
HALF = TERMS.users_for_half_chance


def discovery(secret=SECRET, context=b"", **options):
    books = DiscoveryFilter(WINDOWS, BUDGETS, DELTAS, DRAWS)
    return Discovery(TERMS, books, secret, context, **options)


def pairs(users_of, order=None):
    """Each key with so many users of its own."""
    keys = np.repeat(np.arange(len(users_of)), users_of)
    users = np.arange(2 * len(keys), dtype=np.uint64).reshape(-1, 2)
    at = np.arange(len(keys)) if order is None else order.permutation(len(keys))
    zeros = np.zeros(len(keys), np.int64)
    return Pairs(users[at], zeros, zeros, keys[at], DIGESTS[: len(users_of)])


def test_popular_keys_are_found_and_rare_ones_are_not():
    found = discovery().find(0, pairs([10 * HALF, 1, 0, 10 * HALF, 2]))
    assert sorted(found) == [0, 3]


def test_half_of_the_keys_with_half_a_chance_are_found():
    found = discovery().find(0, pairs([HALF] * 300))
    assert 110 < len(found) < 200


def test_the_same_slot_in_another_order_gives_the_same():
    users_of = [HALF] * 50
    first = discovery().find(0, pairs(users_of))
    again = discovery().find(0, pairs(users_of, np.random.default_rng(1)))
    assert again.tolist() == first.tolist()


@pytest.mark.parametrize(
    "other",
    [
        lambda users_of: discovery(context=b"another query").find(0, pairs(users_of)),
        lambda users_of: discovery(NoiseKeys(bytes(32))).find(0, pairs(users_of)),
        lambda users_of: discovery().find(1, pairs(users_of)),
        lambda users_of: discovery().find(0, pairs([*users_of, 1])),
    ],
)
def test_noise_is_independent_of_other_slots_queries_secrets_and_counts(other):
    users_of = [HALF] * 50
    same = set(discovery().find(0, pairs(users_of)))
    found = set(other(users_of))
    assert len(found ^ same) > 10


def test_a_slot_has_the_noise_key_of_its_last_base_slot():
    old, new = bytes(range(32)), bytes(32)
    counts = pairs([HALF] * 50)
    rotated, later, before, after = (
        discovery(keys).find(0, counts).tolist()
        for keys in (
            NoiseKeys(old, ((1, new),)),
            NoiseKeys(old, ((2, new),)),
            NoiseKeys(old),
            NoiseKeys(new),
        )
    )
    assert rotated == after != before
    assert later == before


def test_no_users_find_nothing_and_cost_the_same():
    made = discovery()
    assert not made.find(0, pairs([])).size
    with pytest.raises(ValueError, match="slot 0 is charged after slot 0"):
        made.find(0, pairs([]))


def test_the_filter_is_asked_before_anything_is_published():
    books = DiscoveryFilter(WINDOWS, BUDGETS // 2, DELTAS, DRAWS)
    made = Discovery(TERMS, books, SECRET)
    made.find(0, pairs([HALF]))
    with pytest.raises(BudgetExceeded, match="discovery of keys in slot 1 refused"):
        made.find(1, pairs([HALF]))


def test_a_sample_finds_its_part_of_the_keys():
    found = discovery(sample=0.3).find(0, pairs([3 * HALF] * 200))
    assert 35 < len(found) < 90


@pytest.mark.parametrize("lowered", [0, 2])
@pytest.mark.parametrize("size", [100_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_keys_of_one_user_are_found_as_rarely_as_promised(monkeypatch, size, lowered):
    """The audit; a threshold that is too low by 2 users is convicted."""
    delta = 0.01
    deltas = np.array([delta_units(delta)])
    terms = DiscoveryTerms.of(DRAWS, WINDOWS, BUDGETS, deltas, np.array([size]))
    books = DiscoveryFilter(WINDOWS, BUDGETS, deltas, DRAWS)
    numbers = np.arange(size)
    digests = np.random.default_rng(5).integers(0, 1 << 63, (size, 2)).astype(np.uint64)
    users = np.column_stack([numbers, numbers]).astype(np.uint64)
    zeros = np.zeros(size, np.int64)
    made = Discovery(terms, books, SECRET)
    draw = terms.noise.draw
    if lowered:
        step = lowered * int(terms.weights[0])  # the same as a lower threshold
        monkeypatch.setattr(type(terms.noise), "draw", lambda self, *drawn: step + draw(*drawn))
    found = len(made.find(0, Pairs(users, zeros, zeros, numbers, digests)))
    # A window meets two slots, and has the probability delta for both together.
    most = size * delta / 2
    assert most / 4 < found
    assert (found > most + 5 * most**0.5) == (lowered > 0)
