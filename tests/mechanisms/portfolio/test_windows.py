"""What windows reach of longer slots, and what a user in a part of one can change."""

import itertools

import numpy as np
import pytest

from streamveil.mechanisms import Categories, ConfigurationError
from streamveil.mechanisms.core.records import ADD_REMOVE, REPLACE
from streamveil.mechanisms.portfolio.questions import Question
from streamveil.mechanisms.portfolio.windows import due, question_window, sensitivity_of

PLACE = ("place",)
PLACES = Categories(("cafe", "park"))


# No window meets more, and some window as many.
def test_no_window_meets_more_slots():
    for window, slots in itertools.product(range(1, 60), range(1, 31)):
        starts = range(slots)
        met = [(start + window - 1) // slots - start // slots + 1 for start in starts]
        assert max(met) == question_window(window, slots)


def test_slots_end():
    assert [base for base in range(-4, 9) if due(3, base)] == [-4, -1, 2, 5, 8]
    assert all(due(1, base) for base in range(-3, 3))


# Two events of a user, of which one counts. Without the one in the window the other one takes its
# place: in a slot of which the window has a part, a count goes and another one comes.
def test_what_takes_the_place_of_an_event_counts_too():
    question = Question("day", slots=24, value=PLACE, domain=PLACES)
    with_both, without = np.array([1, 0]), np.array([0, 1])
    assert np.abs(with_both - without).sum() == sensitivity_of(question, ADD_REMOVE) == 2


@pytest.mark.parametrize(
    ("question", "adjacency", "expected"),
    [
        (Question("hour", value=PLACE, domain=PLACES, max_contributions=3), ADD_REMOVE, 3),
        (Question("hour", value=PLACE, domain=PLACES, max_contributions=3), REPLACE, 6),
        (Question("day", slots=24, value=PLACE, domain=PLACES, max_contributions=3), ADD_REMOVE, 6),
        (Question("day", slots=24, value=PLACE, domain=PLACES, max_contributions=3), REPLACE, 6),
        (Question("total", slots=24, max_contributions=3), ADD_REMOVE, 3),
        (Question("total", slots=24, max_contributions=3), REPLACE, 6),
    ],
)
def test_sensitivity(question, adjacency, expected):
    assert sensitivity_of(question, adjacency) == expected


def test_another_adjacency_is_refused():
    with pytest.raises(ConfigurationError, match="'swap' is unknown: choose add_remove or replace"):
        sensitivity_of(Question("hour"), "swap")
