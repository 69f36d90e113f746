"""What windows reach of longer slots, and what a user in a part of one can change."""

import numpy as np
import pytest

from streamveil.mechanisms import Categories, ConfigurationError
from streamveil.mechanisms.core.records import ADD_REMOVE, REPLACE
from streamveil.mechanisms.queries.queries import Query
from streamveil.mechanisms.queries.windows import sensitivity_of

PLACE = ("place",)
PLACES = Categories(("cafe", "park"))


# Two events of a user, of which one counts. Without the one in the window the other one takes its
# place: in a slot of which the window has a part, a count goes and another one comes.
def test_what_takes_the_place_of_an_event_counts_too():
    query = Query("day", slots=24, value=PLACE, domain=PLACES)
    with_both, without = np.array([1, 0]), np.array([0, 1])
    assert np.abs(with_both - without).sum() == sensitivity_of(query, ADD_REMOVE) == 2


@pytest.mark.parametrize(
    ("query", "adjacency", "expected"),
    [
        (Query("hour", value=PLACE, domain=PLACES, max_contributions=3), ADD_REMOVE, 3),
        (Query("hour", value=PLACE, domain=PLACES, max_contributions=3), REPLACE, 6),
        (Query("day", slots=24, value=PLACE, domain=PLACES, max_contributions=3), ADD_REMOVE, 6),
        (Query("day", slots=24, value=PLACE, domain=PLACES, max_contributions=3), REPLACE, 6),
        (Query("total", slots=24, max_contributions=3), ADD_REMOVE, 3),
        (Query("total", slots=24, max_contributions=3), REPLACE, 6),
    ],
)
def test_sensitivity(query, adjacency, expected):
    assert sensitivity_of(query, adjacency) == expected


def test_another_adjacency_is_refused():
    with pytest.raises(ConfigurationError, match="'swap' is unknown: choose add_remove or replace"):
        sensitivity_of(Query("hour"), "swap")
