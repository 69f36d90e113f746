"""Devices that tell one event of a window only: what they could spend, by enumeration.

A device is asked in every slot and answers each time, so its silence tells nothing; that it has no
event is a vector without a 1. Everything is exact: prices are powers of two, ratios are fractions.
See docs/decisions/0016-devices.md.
"""

import itertools
from fractions import Fraction
from functools import cache

import pytest

NONE = 0
GAIN = 2  # exp(price) of a report


def first_of_blocks(events, length, most, phase):
    """What is told: in each block the first few events."""
    told, used = [], 0
    for slot, event in enumerate(events):
        if (slot + phase) % length == 0:
            used = 0
        told.append(event if event and used < most else NONE)
        used += event != NONE
    return told


def first_of_window(events, window, most):
    """What a device tells that keeps a sliding window of what it told: not private."""
    told = []
    for slot, event in enumerate(events):
        before = sum(one != NONE for one in told[max(slot - window + 1, 0) :])
        told.append(event if event and before < most else NONE)
    return told


def unary(bins, told, answer):
    """Probability of an answer, a bit for each bin; without an event all bits are like others."""
    low = Fraction(1, GAIN + 1)
    chance = Fraction(1)
    for bin_, bit in enumerate(answer, start=1):
        one = Fraction(1, 2) if bin_ == told else low
        chance *= one if bit else 1 - one
    return chance


def randomised(bins, told, answer):
    """The same of randomised response, where no event is a symbol like others."""
    return Fraction(GAIN if told == answer else 1, GAIN + bins)


@cache
def worst(oracle, bins, told, other):
    """The largest ratio of an answer's probabilities."""
    answers = range(bins + 1)
    if oracle is unary:
        answers = itertools.product((0, 1), repeat=bins)
    return max(oracle(bins, told, one) / oracle(bins, other, one) for one in answers)


def largest_ratio(rule, oracle, bins, slots, window, begin):
    """Of all that a server receives, over all pairs of inputs that differ in one window.

    Reports are drawn independently, so the largest ratio is a product of those of each slot.
    """
    largest = Fraction(1)
    for events in itertools.product(range(bins + 1), repeat=slots):
        told = rule(events)
        for others in itertools.product(range(bins + 1), repeat=window):
            changed = (*events[:begin], *others, *events[begin + window :])
            ratio = Fraction(1)
            for one, other in zip(told, rule(changed), strict=True):
                ratio *= worst(oracle, bins, one, other)
            largest = max(largest, ratio)
    return largest


def in_blocks(oracle, window, bins, blocks, most):
    """The largest over all phases of a calendar."""
    length = -(-window // blocks)
    return max(
        largest_ratio(
            lambda events, phase=phase: first_of_blocks(events, length, most, phase),
            *(oracle, bins, window + 2 * (length - 1), window, length - 1),
        )
        for phase in range(length)
    )


@pytest.mark.parametrize(
    ("window", "bins", "blocks", "most", "tight"),
    [
        *((2, 1, 1, 1, False), (2, 2, 1, 1, True), (3, 1, 1, 1, True)),
        *((3, 1, 1, 2, False), (3, 1, 2, 1, False), (4, 2, 2, 1, True)),
    ],
)
def test_a_window_costs_what_its_blocks_tell(window, bins, blocks, most, tight):
    found = in_blocks(unary, window, bins, blocks, most)
    bound = Fraction(GAIN) ** ((blocks + 1) * most)
    assert (found == bound) if tight else (1 < found < bound)


def test_to_tell_of_no_event_by_a_symbol_costs_twice_as_much():
    assert in_blocks(randomised, 3, 1, 1, 1) == Fraction(GAIN) ** 4


def test_a_counter_that_slides_is_not_private():
    found = [
        largest_ratio(
            lambda events: first_of_window(events, 3, 1), unary, 1, slots, window=3, begin=0
        )
        for slots in (4, 7, 10)
    ]
    assert found == sorted(set(found))
    assert found[-1] > Fraction(GAIN) ** 2  # what a block would cost, whatever comes after it


def test_one_report_in_a_window_costs_its_price():
    """Rotation: a turn in every window, event or not."""
    found = largest_ratio(
        lambda events: [event if slot % 3 == 1 else NONE for slot, event in enumerate(events)],
        *(randomised, 2, 6, 3, 1),
    )
    assert found == GAIN
