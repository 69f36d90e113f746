"""What a window costs, against an enumeration of all patterns of keys of one user."""

import itertools
import math

import pytest

from streamveil.mechanisms.core.records import ADD_REMOVE, REPLACE
from streamveil.mechanisms.discovery.price import Draw, cheapest_draw

KEYS = (0, 1, 2)
SUBSETS = [frozenset(some) for n in range(4) for some in itertools.combinations(KEYS, n)]
DRAWS = [
    Draw(length, places, by_base_slot)
    for length in (1, 2, 3)
    for places in (1, 2)
    for by_base_slot in (False, True)
]


def drawn(draw, slots, ranks):
    """Keys of a user that are counted in a discovery slot, of the keys in its base slots."""
    pools = slots if draw.by_base_slot else [frozenset().union(*slots)]
    return {key for pool in pools for key in sorted(pool, key=ranks.index)[: draw.places]}


def neighbours(slots, length):
    """Pairs of inputs of a discovery slot that a window tells apart, and what it covers."""
    for first, last in itertools.combinations(range(length + 1), 2):
        rest = [() if first <= at < last else one for at, one in enumerate(slots)]
        yield last - first, [frozenset(one) for one in rest]


@pytest.mark.parametrize("draw", DRAWS)
def test_all_patterns_of_a_discovery_slot(draw):
    """In both directions, for every secret: no more keys change than is paid for, and as many."""
    most = {covered: [0, 0, 0] for covered in range(1, draw.length + 1)}
    for slots in itertools.product(SUBSETS, repeat=draw.length):
        for covered, rest in neighbours(slots, draw.length):
            for ranks in itertools.permutations(KEYS):
                whole, part = drawn(draw, slots, ranks), drawn(draw, rest, ranks)
                found = len(whole ^ part), len(whole - part), len(part - whole)
                most[covered] = [max(pair) for pair in zip(most[covered], found, strict=True)]
    for covered, (changed, goes, comes) in most.items():
        assert changed <= draw.changed[covered]
        assert max(goes, comes) <= draw.removed[covered]
        if draw.changed[covered] <= len(KEYS):
            assert changed == draw.changed[covered]
        if draw.removed[covered] <= len(KEYS):
            assert goes == draw.removed[covered]


@pytest.mark.parametrize("draw", [Draw(2, 1, False, True), Draw(2, 1, True, True)])
def test_replaced_events(draw):
    for slots in itertools.product(SUBSETS, repeat=2):
        for other in itertools.product(SUBSETS, repeat=2):
            for covered in (1, 2):
                inputs = slots, (*other[:covered], *slots[covered:])
                for ranks in itertools.permutations(KEYS):
                    one, two = (drawn(draw, some, ranks) for some in inputs)
                    assert len(one ^ two) <= draw.changed[covered]
                    assert max(len(one - two), len(two - one)) <= draw.removed[covered]


def test_partial_slots_charged_once_are_found():
    """The mutant that charges a partly covered slot as many keys as a whole one."""
    draw = Draw(2, 1)
    whole, part = [frozenset({0}), frozenset({1})], [frozenset(), frozenset({1})]
    changed = drawn(draw, whole, (0, 1, 2)) ^ drawn(draw, part, (0, 1, 2))
    assert len(changed) > draw.places
    assert len(changed) == draw.changed[1]


@pytest.mark.parametrize("draw", [*DRAWS, Draw(4, 3), Draw(3, 2, True, True)])
@pytest.mark.parametrize("window", range(1, 12))
def test_the_price_of_a_window_is_that_of_the_worst_one(draw, window):
    for amounts in (draw.changed, draw.removed):
        sums = []
        for start in range(draw.length):
            met = [0] * (window // draw.length + 2)
            for base_slot in range(start, start + window):
                met[base_slot // draw.length] += 1
            sums.append(sum(int(amounts[covered]) for covered in met))
        assert draw.in_window(amounts, window) == max(sums)


@pytest.mark.parametrize("window", range(1, 20))
@pytest.mark.parametrize("length", range(1, 9))
def test_a_window_meets_so_many_discovery_slots(window, length):
    most = math.ceil((window - 1) / length) + 1
    assert Draw(length, 1).in_window(Draw(length, 1).removed, window) == most


def test_the_cheaper_draw_is_chosen():
    weekly = cheapest_draw(7, 7, 1, ADD_REMOVE)
    assert weekly == Draw(7, 1)
    assert weekly.in_window(weekly.changed, 7) == 4
    many = cheapest_draw(7, 7, 4, ADD_REMOVE)
    assert many == Draw(7, 1, True)
    assert many.in_window(many.changed, 7) == 7
    short = cheapest_draw(2, 2, 1, ADD_REMOVE)
    assert short == Draw(2, 1, True)
    daily = cheapest_draw(1, 7, 2, ADD_REMOVE)
    assert daily.in_window(daily.changed, 7) == 14
    replaced = cheapest_draw(7, 7, 1, REPLACE)
    assert replaced.in_window(replaced.changed, 7) == 4
