"""What a change of requirement may do where presence is limited: for all ways to be there or not.

The promises are those of requirements that change. Where (w, E) is in force ahead in slot t, what
is removed of the w slots from t on changes the releases by E, whatever is asked for later; where it
is in force back, what is removed of the w slots up to t does. A slot costs c = E / ((j + 2) m).
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest

SLOTS = 13
WAYS = np.arange(1 << SLOTS)
BITS = WAYS[:, None] >> np.arange(SLOTS) & 1


class Asked(NamedTuple):
    """A requirement and its limit."""

    window: int
    epsilon: float
    max_slots: int
    blocks: int

    @property
    def length(self):
        return -(-self.window // self.blocks)

    @property
    def block_price(self):
        return self.epsilon / (self.blocks + 2)


class Block(NamedTuple):
    """Slots of a user's calendar, how many count, and what each may cost."""

    begin: int
    end: int
    most: int
    price: float


class Life(NamedTuple):
    """What is the case in each slot of a user."""

    blocks: list
    ahead: list
    back: list


def own_blocks(one, begin, end):
    """Its blocks from a slot on; the last is cut."""
    return [
        Block(slot, min(slot + one.length, end), one.max_slots, one.block_price / one.max_slots)
        for slot in range(begin, end, one.length)
    ]


def worst(blocks, start, window):
    """The most that neighbours differ by if the events of some slots are removed."""
    counted, price = np.zeros_like(BITS), np.zeros(SLOTS)
    for block in blocks:
        inside = slice(max(block.begin, 0), max(min(block.end, SLOTS), 0))
        here = BITS[:, inside]
        counted[:, inside] = here & (here.cumsum(axis=1) <= block.most)
        price[inside] = block.price
    removed = sum(1 << slot for slot in range(max(start, 0), min(start + window, SLOTS)))
    return float(((counted != counted[WAYS & ~removed]) @ price).max())


def broken(life):
    """Slots in which a promise ahead, and one back, is not kept."""
    ahead = [
        t
        for t, one in enumerate(life.ahead)
        if t + one.window <= SLOTS and worst(life.blocks, t, one.window) > one.epsilon + 1e-9
    ]
    back = [
        t
        for t, one in enumerate(life.back)
        if worst(life.blocks, t - one.window + 1, one.window) > one.epsilon + 1e-9
    ]
    return ahead, back


def at_once(before, after, at, phase):
    """The old block is cut, and blocks of the new kind begin."""
    blocks = own_blocks(before, -phase, at) + own_blocks(after, at, SLOTS)
    asked = [before] * at + [after] * (SLOTS - at)
    return Life(blocks, asked, asked)


def at_the_end_of_a_block(before, after, at, phase):
    """The new requirement is in force from the end of the block on, and so is its calendar."""
    end = -phase
    while end < at:
        end += before.length
    blocks = own_blocks(before, -phase, end) + own_blocks(after, end, SLOTS)
    asked = [before] * end + [after] * (SLOTS - end)
    return Life(blocks, asked, asked)


def with_those_that_reach_here(changes, phase):
    """A block is as long as the longest, and as dear as the cheapest, of those that reach it.

    These are the requirement in force ahead, and each that was in as many slots before as the
    longest window has. One is in force ahead from the first block on that begins after it was
    requested, and back as soon as nothing before that is within the longest window.
    """
    longest = max(one.window for _, one in changes)
    blocks, begin, ahead = [], -phase, []
    while begin < SLOTS:
        now = [one for at, one in changes if at <= max(begin, 0)][-1]
        since = max(begin, 0)
        reaching = {now, *ahead[max(since - longest + 1, 0) : since]}
        length = max(one.length for one in reaching)
        price = min(one.block_price for one in reaching) / now.max_slots
        blocks.append(Block(begin, begin + length, now.max_slots, price))
        ahead += [now] * (min(begin + length, SLOTS) - since)
        begin += length
    back = [ahead[max(t - longest + 1, 0)] for t in range(SLOTS)]
    return Life(blocks, ahead, back)


BASE = Asked(4, 1.0, 1, 2)
OTHERS = [
    Asked(6, 1.0, 1, 2),
    BASE._replace(epsilon=3.0),
    BASE._replace(epsilon=0.2),
    Asked(2, 1.0, 1, 2),
    Asked(5, 1.0, 1, 1),
    Asked(5, 2.0, 2, 2),
    Asked(3, 0.5, 2, 1),
]


@pytest.mark.parametrize("phase", [0, 1])
@pytest.mark.parametrize("one", [BASE, *OTHERS])
def test_without_a_change_both_promises_are_kept(one, phase):
    assert broken(with_those_that_reach_here([(0, one)], phase)) == ([], [])


def test_a_block_that_is_cut_breaks_promises_even_for_next_to_no_change():
    """Windows then have part in one block too many."""
    before = Asked(6, 1.0, 1, 2)
    ahead, back = broken(at_once(before, before._replace(epsilon=0.999), 4, 0))
    assert ahead
    assert back


def test_at_the_end_of_a_block_who_asks_for_less_privacy_breaks_the_promise_ahead():
    before = Asked(5, 1.0, 1, 1)
    for laxer in (before._replace(epsilon=3.0), Asked(2, 1.0, 1, 2)):
        ahead, _ = broken(at_the_end_of_a_block(before, laxer, 5, 0))
        assert ahead
        assert max(ahead) < 5  # promised before, and whatever is asked for later


def test_at_the_end_of_a_block_who_asks_for_more_privacy_breaks_the_promise_back():
    for stricter in (BASE._replace(epsilon=0.2), Asked(6, 1.0, 1, 2)):
        _, back = broken(at_the_end_of_a_block(BASE, stricter, 5, 0))
        assert back
        assert min(back) >= 6


PAIRS = [(before, after) for before in [BASE, *OTHERS] for after in OTHERS]


@pytest.mark.parametrize(
    ("before", "after"),
    [pytest.param(*pair, marks=pytest.mark.slow) for pair in PAIRS[3:]] + PAIRS[:3],
)
def test_with_all_whose_windows_reach_a_block_both_promises_are_kept(before, after):
    for phase in range(before.length):
        life = with_those_that_reach_here([(0, before), (4, after)], phase)
        assert broken(life) == ([], [])
        assert all(one.end == other.begin for one, other in pairwise(life.blocks))


@pytest.mark.slow
@pytest.mark.parametrize("middle", OTHERS)
@pytest.mark.parametrize("last", OTHERS)
def test_so_they_are_if_several_changes_follow_each_other(middle, last):
    for at in (3, 5):
        life = with_those_that_reach_here([(0, BASE), (2, middle), (at, last)], 1)
        assert broken(life) == ([], [])
