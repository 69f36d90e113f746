"""The rules of presence written out, for all ways to be there or not in a few slots.

A way to be there is an integer: bit t says whether the user has events in slot t. So is what counts
of it; tables hold that for all integers below 2**slots.
"""

import numpy as np


def calendar(slots, window, max_slots, blocks, phase):
    """What rule 1 lets count: in each block the first few slots with events."""
    length = -(-window // blocks)
    ways = np.arange(1 << slots)
    counts = np.zeros_like(ways)
    for slot in range(slots):
        if slot == 0 or (slot + phase) % length == 0:
            used = np.zeros_like(ways)
        there = (ways >> slot & 1) & (used < max_slots)
        counts |= there << slot
        used += there
    return counts


def first(table, in_life):
    """The first few slots of those in a table."""
    left, used = table.copy(), np.zeros_like(table)
    for slot in range(int(table.max()).bit_length()):
        there = left >> slot & 1
        left &= ~(np.where(used < in_life, 0, there) << slot)
        used += there
    return left


def sliding(slots, window, max_slots, kept_only):
    """At most so many slots of the last w: of those kept (unsound), or kept or not."""
    ways = np.arange(1 << slots)
    counts = np.zeros_like(ways)
    for slot in range(slots):
        before = (counts if kept_only else ways) >> max(slot - window + 1, 0)
        before &= (1 << min(window - 1, slot)) - 1
        counts |= (ways >> slot & (np.bitwise_count(before) < max_slots)) << slot
    return counts


def removed(table, start, window):
    """The most slots that differ if the events of a window are removed, of any way to be there."""
    ways = np.arange(len(table))
    return int(np.bitwise_count(table ^ table[ways & ~mask(start, window)]).max())


def thinned(table, start, window):
    """The most slots that differ if the events of some slots of a window are removed."""
    ways, inside = np.arange(len(table)), mask(start, window)
    some = np.unique(ways & inside)
    return max(int(np.bitwise_count(table ^ table[ways & ~away]).max()) for away in some)


def replaced(table, start, window):
    """The most units that differ if they are replaced: one for each input that counts in a slot
    of the window, one for each slot outside in which one counts and the other does not."""
    ways = np.arange(len(table))
    inside = mask(start, window)
    most = 0
    for other in np.unique(ways & inside):
        beside = table[ways & ~inside | other]
        there = np.bitwise_count(table & inside) + np.bitwise_count(beside & inside)
        most = max(most, int((there + np.bitwise_count((table ^ beside) & ~inside)).max()))
    return most


def mask(start, window):
    """The slots of a window."""
    return ((1 << window) - 1) << start
