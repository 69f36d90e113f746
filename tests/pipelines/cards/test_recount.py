"""The arithmetics of a check, against brute force."""

import numpy as np
import pytest

from streamveil.mechanisms.core.budgets import to_units
from streamveil.mechanisms.core.records import ADD_REMOVE, REPLACE, Lifetime, Requirement
from streamveil.mechanisms.presence.limits import Limit, terms
from streamveil.mechanisms.queries.cuts import Months, cut_of
from streamveil.pipelines.cards.histories import Histories, Row
from streamveil.pipelines.cards.recount import (
    Account,
    dearest_sums,
    in_windows,
    months_met,
    reach_of,
    slots_met,
    window_sums,
    wrong_account,
)

SPENT = np.array([3, 0, 5, 2, 2, 0, 7, 1], np.int64)
SLOTS = np.arange(10, 18)


@pytest.mark.parametrize("window", [1, 2, 3, 8, 20])
def test_windows_add_up(window):
    expected = [sum(SPENT[max(0, t - window + 1) : t + 1]) for t in range(len(SPENT))]
    assert window_sums(SLOTS, SLOTS, SPENT, window).tolist() == expected


@pytest.mark.parametrize(("most", "reach"), [(1, 3), (2, 3), (3, 3), (2, 0), (9, 0)])
def test_the_dearest_slots_add_up(most, reach):
    expected = [
        sum(sorted(SPENT[max(0, t - reach + 1) if reach else 0 : t + 1])[-most:])
        for t in range(len(SPENT))
    ]
    assert dearest_sums(SPENT, most, reach).tolist() == expected


def test_a_granted_budget_begins_anew():
    account = account_of(Lifetime(1.0), SLOTS, SLOTS, SPENT, SPENT)
    found = in_windows(account, 0, [12, 16], 17)
    assert found.cost.tolist() == [3, 3, 5, 7, 9, 9, 7, 8]


@pytest.mark.parametrize("adjacency", [ADD_REMOVE, REPLACE])
@pytest.mark.parametrize("window", [1, 2, 5, 12, 30, 365])
@pytest.mark.parametrize("blocks", [1, 2, 3])
@pytest.mark.parametrize("chosen", [False, True])
def test_the_reach_of_a_limit_is_what_the_filter_of_the_run_goes_by(
    adjacency, window, blocks, chosen
):
    """It is worked out apart from it, so that a mistake in one of the two shows."""
    asked = Requirement(window, 0.7)
    for most in (1, 2, 7, 400):
        limit = Limit(most, blocks, chosen=chosen)
        shape = {"max_slots": most, "blocks": blocks, "in_life": None, "chosen": chosen}
        (door,) = zip(*astuple(limit, asked, adjacency), strict=True)
        assert reach_of(asked, adjacency, **shape) == door
    life = Limit(None, blocks, 9, chosen)
    shape = {"max_slots": None, "blocks": blocks, "in_life": 9, "chosen": chosen}
    (door,) = zip(*astuple(life, Lifetime(0.7), adjacency), strict=True)
    assert reach_of(Lifetime(0.7), adjacency, **shape) == door


def astuple(limit, requirement, adjacency):
    door = terms([limit], [requirement], adjacency)
    return door.most, door.reach, door.aside


def test_the_slots_that_a_window_meets_are_those_that_mechanisms_go_by():
    for window in range(1, 40):
        for slots in range(1, 12):
            assert slots_met(window, slots) == cut_of(slots).most_in(window)
    for window in (*range(1, 70), 365, 366, 367, 800, 1186, 2342, 3347):
        for months, per_day in ((1, 1), (1, 24), (3, 1), (7, 1), (11, 1), (12, 1), (13, 1)):
            found = months_met(window, months, per_day)
            assert found == Months(months, per_day).most_in(window)


def account_of(requirement, first, last, spent, in_window):
    query = np.zeros(len(first), np.int64)
    columns = (np.array(one, np.int64) for one in (last, first, last, spent, in_window))
    return Account(requirement, query, *columns, ["the ledger"], True)


def answers(*spans, spent=1):
    """Answers whose sums are right, in the order of their ends, over windows of 3."""
    rows = []
    for first, last in spans:
        so_far = [one for one in spans if one[1] <= last]
        fullest = max(
            sum(spent for a, b in so_far if a <= end and b > end - 3)
            for end in range(first, last + 1)
        )
        rows.append((first, last, spent, fullest))
    return list(zip(*rows, strict=True))


def wrong_answers(requirement, look, slots, until):
    account = account_of(requirement, *slots)
    return list(wrong_account(account, in_windows(account, look, [], until)))


def test_answers_of_several_base_slots_count_in_every_window_that_they_meet():
    made = answers((0, 0), (1, 1), (0, 1), (2, 2), (3, 3), (2, 3), (0, 6))
    enough = Requirement(3, 6 * 2.0**-40)
    assert wrong_answers(enough, 0, made, 6) == []
    (fault,) = wrong_answers(Requirement(3, 5 * 2.0**-40), 0, made, 6)
    assert "a window of all queries cost" in fault
    more = Requirement(3, 7 * 2.0**-40)
    assert "add up" in wrong_answers(more, 1, made, 6)[0]  # a look is in every window


E1 = int(to_units(1.0))


def row(slot, spent, in_window, window=3, cap=E1, ahead=None, infeasible=False):
    back, back_cap = window, cap
    ahead, ahead_cap = ahead or (window, cap)
    return Row(slot, back, back_cap, ahead, ahead_cap, spent, in_window, infeasible)


def wrong(*slots, changes=True):
    pasts = Histories(5, slots[0][0].slot, changes=changes)
    return [fault for rows in slots for fault in pasts.take(rows)]


def test_a_fork_goes_on_from_the_same_past():
    assert not wrong(
        [row(0, 4, 4)],
        [row(1, 2, 6), row(1, 0, 4, window=2)],
        [row(2, 1, 7), row(2, 3, 3, window=2)],
    )


def test_who_leaves_and_comes_back_has_spent_what_was_spent():
    assert not wrong([row(0, 4, 4), row(0, 1, 1)], [row(1, 1, 2)], [row(2, 1, 3), row(2, 2, 6)])


def test_a_sum_that_follows_from_no_past_is_reported():
    (fault,) = wrong([row(0, 4, 4)], [row(1, 2, 7)])
    assert "follows from no rows" in fault


def test_a_promise_ahead_holds_after_the_requirement_changed():
    half = E1 // 2
    slots = [row(0, half, half)], [row(1, half, E1, cap=2 * E1)], [row(2, 1, E1 + 1, cap=2 * E1)]
    (fault,) = wrong(*([one] for (one,) in slots))
    assert "was promised before is overspent" in fault


def test_a_window_back_that_is_overspent_is_reported_unless_nothing_is_added():
    assert "back cost" in wrong([row(0, E1 + 1, E1 + 1, ahead=(3, 2 * E1), infeasible=True)])[0]
    late = [[row(0, E1, E1)], [row(1, 0, E1, cap=E1 // 2, infeasible=True)]]
    assert not wrong(*late)
    assert "infeasible" in wrong(late[0], [row(1, 0, E1, cap=E1 // 2)])[0]
