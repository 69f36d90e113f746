"""The filter of requirements that change: refuses exactly what overspends a window."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.mechanisms import BudgetExceeded, ConfigurationError
from streamveil.mechanisms.accounting.changing_filter import ChangingFilter

PROPERTY = settings(max_examples=80)
UNIT = 2**40
HORIZON = 7

# What a ledger asks for in a slot, small figures so that borders are met; nothing: it has left.
ASKED = st.one_of(
    st.just((0, 0, 0, 0)),
    st.tuples(st.integers(1, 7), st.integers(1, 9), st.integers(1, 7), st.integers(1, 9)),
)


def allowed(history, asked):
    """Most that a ledger may spend in the next slot, by adding everything up."""
    t = len(history)
    back, back_cap, _, ahead_cap = asked
    rooms = [ahead_cap] if asked[2] else []
    for u, ((_, _, ahead, cap), _) in enumerate(history):
        if ahead and t <= u + ahead - 1:
            rooms.append(cap - sum(spent for _, spent in history[u:]))
    behind = back_cap - sum(spent for _, spent in history[max(0, t - back + 1) :])
    return max(0, min([*rooms, behind]))


# On any history, the most that brute force allows is accepted and one unit more is refused; cut
# anywhere, forked, merged and written, it goes on the same.
@PROPERTY
@given(
    slots=st.lists(st.tuples(ASKED, ASKED, st.integers(0, 3)), min_size=1, max_size=25),
    seed=st.integers(0, 2**32),
)
def test_it_refuses_what_brute_force_refuses(slots, seed):
    random = np.random.default_rng(seed)
    books = ChangingFilter(HORIZON)
    books.regroup(np.array([-1, -1]))
    histories = [[], []]
    for first, second, kind in slots:
        most = [
            allowed(history, one) for history, one in zip(histories, (first, second), strict=True)
        ]
        asked = np.array([first, second])
        spend = np.array([m if kind else int(random.integers(0, m + 1)) for m in most])
        for k in range(2):
            more = spend.copy()
            more[k] = most[k] + 1
            with pytest.raises(BudgetExceeded, match=r"requested .* remaining .* difference"):
                ChangingFilter.decode(books.encode(), HORIZON).charge(more, asked)
        books.charge(spend, asked)
        for history, one, s in zip(histories, (first, second), spend.tolist(), strict=True):
            history.append((one, s))
        looking_back = [
            sum(s for _, s in history[max(0, len(history) - one[0]) :])
            for history, one in zip(histories, (first, second), strict=True)
        ]
        assert books.in_window(asked).tolist() == looking_back
        if kind == 2:
            books = ChangingFilter.decode(books.encode(), HORIZON)
        if kind == 3:
            parents = random.integers(0, 2, 2)
            books.regroup(parents)
            histories = [list(histories[p]) for p in parents]


def test_a_refusal_names_what_was_asked_for():
    books = ChangingFilter(4, ledgers=1)
    asked = np.array([[2, UNIT, 3, 2 * UNIT]])
    books.charge(np.array([UNIT]), asked)
    with pytest.raises(
        BudgetExceeded, match="1 over 2 slots back and 2 over 3 slots ahead"
    ) as back:
        books.charge(np.array([UNIT]), asked)
    assert "requested 1 epsilon, remaining 0 in a window looking back, difference 1" in str(
        back.value
    )
    with pytest.raises(ValueError, match="none negative"):
        books.charge(np.array([-1]), asked)


# A requirement may come that is broken already: then nothing may be spent, and nothing is refused.
def test_what_was_broken_before_costs_nothing_more():
    books = ChangingFilter(4, ledgers=1)
    books.charge(np.array([9]), np.array([[1, 9, 4, 9]]))
    strict = np.array([[3, 2, 1, 5]])
    with pytest.raises(BudgetExceeded):
        books.charge(np.array([1]), strict)
    books.charge(np.array([0]), strict)
    books.charge(np.array([0]), strict)
    assert books.in_window(strict).tolist() == [9]
    books.charge(np.array([0]), np.array([[3, 2, 1, 5]]))
    with pytest.raises(BudgetExceeded, match="3"):
        books.charge(np.array([3]), strict)


def test_too_many_histories_are_refused():
    with pytest.raises(ConfigurationError, match=r"33 histories .*\(--longest_window\)"):
        ChangingFilter(1 << 20).regroup(np.full(33, -1))


def test_what_is_assumed_to_be_spent_before_the_first_slot_counts():
    """Until the window that looks back has left it behind."""
    books, asked = ChangingFilter(3, 1), np.array([[3, 10, 3, 100]])
    books.assume(np.array([8]))
    with pytest.raises(BudgetExceeded):
        books.charge(np.array([3]), asked)
    books.charge(np.array([2]), asked)
    with pytest.raises(BudgetExceeded):
        books.charge(np.array([1]), asked)
    books.charge(np.array([0]), asked)
    books.charge(np.array([8]), asked)
