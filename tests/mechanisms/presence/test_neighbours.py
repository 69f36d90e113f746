"""What any path of prices charges for the slots in which two neighbours differ: at most E."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms.core.budgets import to_units
from streamveil.mechanisms.core.records import ADD_REMOVE, REPLACE, Requirement
from streamveil.mechanisms.presence import Counters, Limit
from streamveil.mechanisms.presence.calendars import Rules
from streamveil.mechanisms.presence.limits import terms

KEY = bytes(range(32))
SLOTS, WINDOW, PEOPLE = 30, 10, 5
ASKED = Requirement(WINDOW, 1.0)


@st.composite
def limits(draw):
    """Rule 1, rule 2 or both; also where rule 1 gains nothing."""
    blocks = draw(st.integers(1, 3))
    in_block = draw(st.none() | st.integers(1, 2))
    in_life = draw(st.integers(1, 6) if in_block is None else st.none() | st.integers(1, 6))
    return Limit(in_block, blocks, in_life)


def table(there, limit, adjacency, cuts, restart):
    """Which of the visits count, decided batch by batch; (users, slots), of both."""
    users, slots = np.nonzero(there)
    rules = Rules.of([limit], [ASKED], adjacency)
    counters, last, counted = Counters(rules, KEY, users), 0, np.zeros_like(there)
    for cut in [*cuts, SLOTS]:
        rows = np.flatnonzero((slots >= last) & (slots < cut))
        here = users[rows], slots[rows]
        counted[here] = counters.layers(*here, np.zeros(len(rows), np.int64), cut) == 0
        counters.skip(cut)
        last = cut
        if restart:
            arrays = counters.arrays()
            counters = Counters(rules, KEY, users)
            counters.resume(arrays)
    return counted


def charged(limit, adjacency, wishes, restart):
    """Units that slots cost: so many times an equal share, if the last door lets them pass."""
    agreed = terms([limit], [ASKED], adjacency)
    budget = int(to_units(ASKED.epsilon)) - agreed.aside[0]
    door, prices = agreed.unspent(), []
    for wish in wishes:
        price = np.minimum(np.int64(wish * budget / agreed.most[0]), door.left()[0])
        door.charge(np.array([price]))
        prices.append(price)
        if restart:
            door = agreed.decode(door.encode())
    return np.array(prices), budget


@st.composite
def paths(draw):
    """What is wished for slot by slot: as it comes, always as much, or rarely a lot."""
    wish = st.sampled_from([0.0, 0.5, 1.0, 2.0, 99.0])
    if draw(st.booleans()):
        return draw(st.lists(wish, min_size=SLOTS, max_size=SLOTS))
    every, wishes = draw(st.sampled_from([1, WINDOW, WINDOW + 1, WINDOW + 2])), np.zeros(SLOTS)
    wishes[draw(st.integers(0, every - 1)) :: every] = 1.0 if every == 1 else draw(wish)
    return wishes.tolist()


# The prices are adversarial: whatever the door lets pass, however much it is at once. Events that
# come late are dropped before anybody asks who is there; so are those of the neighbours.
@settings(max_examples=80, deadline=None)
@given(
    limits(),
    st.sampled_from([0.4, 1.0]),
    st.sets(st.tuples(st.integers(0, PEOPLE - 1), st.integers(0, SLOTS - 1)), max_size=30),
    st.randoms(use_true_random=False),
    paths(),
    st.sets(st.integers(1, SLOTS - 1), max_size=6),
    st.booleans(),
    st.sampled_from([ADD_REMOVE, REPLACE]),
)
def test_no_path_charges_more_for_what_neighbours_differ_in(
    limit, share, late, random, wishes, cuts, restart, adjacency
):
    there = np.array([[random.random() < share for _ in range(SLOTS)] for _ in range(PEOPLE)])
    for one in late:
        there[one] = False
    prices, budget = charged(limit, adjacency, wishes, restart)
    cuts = sorted(cuts)
    counts = table(there, limit, adjacency, cuts, restart).astype(int)
    for start in range(1 - WINDOW, SLOTS):
        window = slice(max(start, 0), start + WINDOW)
        other = there.copy()
        other[:, window] = False
        if adjacency == REPLACE:  # by visits in other slots of the window
            other[:, window] = np.roll(there[:, window], 1, axis=1)
        less = table(other, limit, adjacency, cuts, restart).astype(int)
        units = np.abs(counts - less)
        scale = 1
        if adjacency == REPLACE:  # where both count, the events may be others
            units[:, window], scale = (counts + less)[:, window], 2
        assert (units @ prices).max() <= scale * budget
