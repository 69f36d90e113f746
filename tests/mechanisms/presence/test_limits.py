"""No window differs in more slots than it is priced for, by enumeration; and what is refused."""

import math

import numpy as np
import pytest

from streamveil.mechanisms.core.budgets import to_units
from streamveil.mechanisms.core.records import (
    ADD_REMOVE,
    REPLACE,
    ConfigurationError,
    Lifetime,
    Requirement,
)
from streamveil.mechanisms.presence import Limit, effective_window, effective_window_in_life
from streamveil.mechanisms.presence.choice import Look
from streamveil.mechanisms.presence.limits import (
    EVERY_SLOT,
    GAIN,
    LEAST,
    LOSS,
    block_length,
    check_prices,
    limits_of,
    priced,
    terms,
)
from tests.mechanisms.presence.all_ways import calendar, first, removed, replaced, sliding, thinned

CALENDARS = [
    (window, max_slots, blocks)
    for window in range(1, 9)
    for blocks in range(1, window + 2)
    for max_slots in range(1, block_length(window, blocks) + 2)
    if window + 2 * (block_length(window, blocks) - 1) <= 15
]


def worst(rule, most_slots, measure, tables=lambda table: table):
    """The most of a measure over all ways to be there and all phases."""
    window, _, blocks = rule
    length = block_length(window, blocks)
    return max(
        measure(tables(calendar(most_slots, *rule, phase)), length - 1, window)
        for phase in range(length)
    )


def bounded(window, max_slots, blocks, adjacency=ADD_REMOVE):
    """Whether the limit gains anything; else nothing is limited."""
    return effective_window(window, max_slots, blocks, adjacency) < window


@pytest.mark.parametrize("rule", CALENDARS)
def test_no_window_differs_in_more_slots_than_it_is_priced_for(rule):
    window, max_slots, blocks = rule
    length = block_length(window, blocks)
    found = worst(rule, window + 2 * (length - 1), removed)
    bound = (blocks + 2) * max_slots
    assert found <= bound
    if window >= (blocks - 1) * length + 2 * max_slots:
        assert found == bound
    if bounded(*rule):
        assert found <= effective_window(*rule) < window


@pytest.mark.parametrize("rule", [one for one in CALENDARS if one[0] <= 6])
def test_nor_does_one_whose_events_are_replaced(rule):
    window, max_slots, blocks = rule
    length = block_length(window, blocks)
    slots = min(window + 2 * (length - 1), 12)
    found = worst(rule, slots, replaced)
    bound = 2 * (blocks + 1) * max_slots
    assert found <= bound
    if window >= (blocks - 1) * length + 2 * max_slots and slots == window + 2 * (length - 1):
        assert found == bound
    if bounded(*rule, REPLACE):
        assert found <= 2 * effective_window(*rule, REPLACE) < 2 * window


@pytest.mark.parametrize("rule", [(6, 1, 2), (5, 1, 2), (4, 1, 1), (6, 2, 1), (6, 1, 3)])
def test_to_remove_some_slots_of_a_window_is_to_replace_it(rule):
    window, max_slots, blocks = rule
    found = worst(rule, window + 2 * (block_length(window, blocks) - 1), thinned)
    assert (blocks + 2) * max_slots < found <= 2 * (blocks + 1) * max_slots
    assert found / effective_window(*rule) <= 2
    assert found <= 2 * effective_window(*rule, REPLACE)  # so `replace` has it


def test_a_limit_that_gains_nothing_would_not_be_private_at_the_price_of_none():
    assert worst((5, 2, 1), 13, removed) == 6 > 5
    assert effective_window(5, 2, 1) == 5


@pytest.mark.parametrize("in_life", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize("rule", [(2, 1, 1), (2, 1, 2), (4, 1, 2), (4, 1, 1), (4, 2, 2)])
def test_both_rules_at_once_cost_more_than_the_one_for_windows(rule, in_life):
    window, max_slots, blocks = rule
    bound = effective_window_in_life(window, in_life, max_slots, blocks)
    assert bound == 2 * min((blocks + 1) * max_slots, in_life, window)
    slots = min(block_length(window, blocks) - 1 + 3 * window + 2, 15)
    assert worst(rule, slots, removed, lambda table: first(table, in_life)) <= bound
    if slots <= 12:
        assert worst(rule, slots, replaced, lambda table: first(table, in_life)) <= bound


@pytest.mark.slow
def test_that_more_is_needed():
    # w = 8 in two blocks of four, one slot in each: 3 slots lost, and as many gained at the end.
    assert worst((8, 1, 2), 20, removed, lambda table: first(table, 3)) == 6
    assert effective_window_in_life(8, 3, 1, 2) == 6 > effective_window(8, 1, 2) == 4


@pytest.mark.parametrize("in_life", [1, 2, 3, 4])
def test_a_window_under_a_limit_for_a_life_alone(in_life):
    every = np.arange(1 << 12)
    for window in range(1, 6):
        bound = effective_window_in_life(window, in_life)
        assert removed(first(every, in_life), 2, window) == bound == 2 * min(window, in_life)
        assert replaced(first(every, in_life), 2, window) == bound


def test_a_whole_life_differs_in_no_more_slots_than_its_limit():
    for in_life in range(1, 6):
        counts = np.bitwise_count(first(np.arange(1 << 12), in_life))
        assert counts.max() == in_life  # and nothing counts of a user who is not there


def test_a_limit_that_slides_is_not_private():
    """What is kept after a window depends on what was kept in it, and so on without end."""
    differ = [removed(sliding(slots, 4, 1, kept_only=True), 0, 4) for slots in range(5, 17)]
    assert differ[:1] == [2]
    assert differ[11 - 5] == 5
    assert differ[13 - 5] == 6
    assert differ == sorted(differ)
    assert differ[-1] > effective_window(400, 1, 2)  # what rule 1 asks for, however long the window
    table = sliding(16, 4, 1, kept_only=True)
    ways = np.arange(len(table))
    apart = table ^ table[ways & ~0b1111]
    assert int(apart.max()).bit_length() == 16  # the last slot


def test_one_that_counts_what_it_did_not_keep_is_private_and_mutes_whoever_is_always_there():
    for window in range(2, 6):
        for max_slots in range(1, window):
            table = sliding(3 * window, window, max_slots, kept_only=False)
            found = max(removed(table, start, window) for start in (0, window - 1, window))
            assert found <= 2 * max_slots
            assert int(table[-1]).bit_count() == max_slots  # of somebody who is always there


@pytest.mark.parametrize("epsilon", [1.0, 0.1, 3e-7, 4096.0])
@pytest.mark.parametrize("adjacency", [ADD_REMOVE, REPLACE])
def test_prices_are_exact_and_never_add_up_to_more_than_the_budget(epsilon, adjacency):
    asked = Requirement(100, epsilon)
    for limit in (Limit(2), Limit(3, 4), Limit(1, 1), Limit(2, 2, in_life=3), Limit(None, 2, 7)):
        price = limit.priced(asked, adjacency)
        units, slots = int(to_units(price.epsilon)), limit.slots(asked, adjacency)
        assert price.window == 1
        assert math.ldexp(units, -40) == price.epsilon
        kept = to_units(epsilon) // 20 if limit.applies(asked, adjacency) else 0
        assert units * slots <= to_units(epsilon) - kept < (units + 1) * slots


def test_a_price_for_a_life():
    asked = Lifetime(1.0)
    kept = to_units(1.0) // 20  # for the share that is kept
    price = (to_units(1.0) - kept) // 4
    assert Limit(None, in_life=4).priced(asked) == Requirement(1, math.ldexp(int(price), -40))
    assert Limit(None, in_life=4).slots(asked, REPLACE) == 4
    with pytest.raises(ConfigurationError, match="needs a limit for a life"):
        Limit(2).priced(asked)


def test_where_nothing_is_limited_the_requirement_is_kept_as_it_is():
    asked = Requirement(8, 1.0)
    assert Limit(2, 2).priced(asked) == asked
    assert Limit(2, 2).rule(asked)[:2] == (1, 1)
    assert Limit(2, 2).rule(Requirement(9, 1.0))[:2] == (5, 2)
    assert Limit(2, 2).rule(asked, REPLACE)[:2] == (4, 2)


def test_how_rarely_users_must_come_for_a_limit_to_help():
    over = Requirement(28, 1.0)
    limit = Limit(2)
    most = limit.most_present(over)
    assert most == pytest.approx(0.052, abs=0.001)
    # The rule by which a limit is chosen agrees: a little above that it chooses no limit.
    kept = 1 - (14 * most / (1 + 14 * most)) ** 2
    assert kept == pytest.approx(limit.kept_share_needed(over))
    assert (28 / 8) ** GAIN * kept**LOSS == pytest.approx(LEAST)
    assert Look(over).expected(most * 0.99) == limit
    assert Look(over).expected(most * 1.01).is_none
    with pytest.raises(ConfigurationError, match=r"at most 5\.2% of the slots, give at most max_s"):
        Limit(3).check(over)
    assert Limit(9).most_present(over) == 0  # a slot costs what it does without


def test_a_budget_too_small_for_its_slots_is_refused():
    with pytest.raises(ConfigurationError, match=r"leaves less than 2\*\*-40 for each"):
        Limit(20, 2).priced(Requirement(1000, 70 * 2.0**-40))


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        (Limit(25, 2), "saves nothing over 100 slots.*give at most max_slots=8"),
        (Limit(9, 2), "does not help over 100 slots.*1/36 of the budget.*give at most max_slots=8"),
        (Limit(1, 40), "does not help over 100 slots.*give fewer blocks, such as max_slots=1,2"),
        (Limit(9, 99), "saves nothing over 100 slots.*give fewer blocks, such as max_slots=8,2"),
    ],
)
def test_a_limit_that_does_not_pay_is_refused_in_words(limit, said):
    with pytest.raises(ConfigurationError, match=said):
        limit.check(Requirement(100, 1.0))


def test_one_that_pays_is_not():
    Limit(8, 2).check(Requirement(100, 1.0))
    Limit(8, 2).check(Lifetime(1.0))
    Limit(None, in_life=3).check(Requirement(2, 1.0))


@pytest.mark.parametrize(
    "wrong", [{"max_slots": 0}, {"max_slots": 1.5}, {"max_slots": 1, "blocks": 0}, {"in_life": 0}]
)
def test_what_is_no_whole_number_is_refused(wrong):
    with pytest.raises(ConfigurationError, match="give a whole number, 1 or more"):
        Limit(**{"max_slots": None, **wrong})


def test_a_limit_of_nothing_is_refused():
    with pytest.raises(ConfigurationError, match="is empty"):
        Limit(None)
    with pytest.raises(ConfigurationError, match="adjacency 'both' is unknown"):
        effective_window(10, 1, 2, "both")


# ---- of classes --------------------------------------------------------------------------------

LONG, MIDDLE, SHORT = Requirement(100, 1.0), Requirement(20, 1.0), Requirement(3, 2.0)


def test_a_limit_for_all_is_left_out_where_it_does_not_pay():
    assert limits_of(None, (), [LONG, SHORT]) is None
    # Over 20 slots, 8 of which can differ: it would gain something, but less than it leaves out.
    made = limits_of(Limit(2), (), [LONG, MIDDLE, SHORT])
    assert made == (Limit(2), EVERY_SLOT, EVERY_SLOT)
    assert priced(made, [LONG, MIDDLE, SHORT])[1:] == (MIDDLE, SHORT)
    door = terms(made, [LONG, MIDDLE, SHORT])
    assert (door.most, door.aside[1:]) == ((8, 20, 3), (0, 0))
    assert limits_of(Limit(2), (), [MIDDLE], REPLACE) == (Limit(2),)
    with pytest.raises(ConfigurationError, match=r"max_slots=2 in .* does not help over 20 slots"):
        limits_of(Limit(2), (), [SHORT, MIDDLE])


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ([LONG, LONG], r"at most max_slots=8; otherwise leave the limit out$"),
        (
            [MIDDLE, LONG],
            r"at most max_slots=8; .*the shortest, 20 slots, at most max_slots=1 does",
        ),
        ([MIDDLE, LONG, SHORT], r"at most max_slots=8; .*for the shortest, 3 slots, none does"),
    ],
)
def test_where_it_pays_for_nobody_the_shortest_window_is_mentioned_too(asked, said):
    with pytest.raises(ConfigurationError, match=said):
        limits_of(Limit(9), (), asked)


def test_a_price_too_small_for_the_noise_is_reported_in_what_was_asked_for():
    asked = [Requirement(100, 210 * 2.0**-40), Requirement(1, 4 * 2.0**-40)]
    limits = limits_of(Limit(8), (), asked)
    check_prices(limits, asked)
    said = r"epsilon 1.9\S* over 100 slots leaves .* for each of the 32 slots that can differ, at"
    with pytest.raises(ConfigurationError, match=said):
        check_prices(limits, asked, sensitivity=4)
    with pytest.raises(
        ConfigurationError, match=r"epsilon 1e-05 forever leaves .* 9,000,000 slots"
    ):
        check_prices([Limit(None, in_life=9_000_000)], [Lifetime(1e-5)])


def test_a_class_may_have_a_limit_of_its_own():
    asked = [LONG, LONG, MIDDLE]
    assert limits_of(None, (4, None, 1), asked) == (Limit(4), EVERY_SLOT, Limit(1))
    assert limits_of(Limit(2, 3), (4, None, 1), asked) == (Limit(4, 3), Limit(2, 3), Limit(1, 3))
    # It need not pay for anybody else; but whoever it is for.
    assert limits_of(Limit(9), (4, 1), [LONG, MIDDLE]) == (Limit(4), Limit(1))
    with pytest.raises(ConfigurationError, match=r"max_slots=9 in .* does not help over 100 slots"):
        limits_of(Limit(9), (None, 1), [LONG, MIDDLE])
    with pytest.raises(ConfigurationError, match=r"users with .*window=20.*at most max_slots=1;"):
        limits_of(Limit(2), (None, 2), [LONG, MIDDLE])


def test_a_limit_for_a_life_is_for_everybody():
    made = limits_of(Limit(2, 2, in_life=5), (), [LONG, SHORT])
    assert made == (Limit(2, 2, 5), Limit(None, 2, 5))
