"""What a window of base slots reaches of a query, whose slots are longer.

A user asks for a budget in any w consecutive base slots: neighbouring streams differ in what the
user did in these. They meet some slots of the query (`cuts.py` has how many at most), and of these
the first and the last one in part.

Sensitivity. Where a window has all of a slot, the user's events there are all added or removed, and
the slot's histogram changes by at most what a user may count for, D. Where it has a part, the user
may have events outside, and if not all of them may count, others take the place of those that are
removed: what was counted goes, at most D, and what takes its place comes, at most D again. So a
query with slots of several base slots has twice the sensitivity, as it has where events are
replaced. A histogram of one cell only goes from one number up to D to another one: it has not.
Where the budget is for a lifetime, neighbouring streams differ in all events of a user, so that no
slot is met in part.
"""

from __future__ import annotations

from streamveil.mechanisms.core.records import ADD_REMOVE, REPLACE, ConfigurationError
from streamveil.mechanisms.queries.queries import Query

_ADJACENCIES = (ADD_REMOVE, REPLACE)


def sensitivity_of(query: Query, adjacency: str, *, lifetime: bool = False) -> int:
    """How much the events of a user in a window can change the histogram of a slot in L1.

    Or, with `lifetime`, all events of a user. Raises ConfigurationError for an unknown adjacency.
    """
    if adjacency not in _ADJACENCIES:
        raise ConfigurationError(
            f"adjacency {adjacency!r} is unknown: choose {' or '.join(_ADJACENCIES)}"
        )
    in_part = query.cut.longest > 1 and query.measure.size > 1 and not lifetime
    return query.sensitivity * (2 if in_part or adjacency == REPLACE else 1)
