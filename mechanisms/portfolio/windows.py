"""What a window of base slots reaches of a question, whose slots are longer.

Slot s of a question of r base slots is of base slots s r to (s + 1) r - 1. A user asks for a budget
in any w consecutive base slots: neighbouring streams differ in what the user did in these. They
meet at most ceil((w - 1) / r) + 1 slots of the question, and of these the first and the last one
in part.

Sensitivity. Where a window has all of a slot, the user's events there are all added or removed, and
the slot's histogram changes by at most what a user may count for, D. Where it has a part, the user
may have events outside, and if not all of them may count, others take the place of those that are
removed: what was counted goes, at most D, and what takes its place comes, at most D again. So a
question with slots of several base slots has twice the sensitivity, as it has where events are
replaced. A histogram of one cell only goes from one number up to D to another one: it has not.
"""

from __future__ import annotations

from streamveil.mechanisms.core.records import ADD_REMOVE, REPLACE, ConfigurationError
from streamveil.mechanisms.portfolio.questions import Question

_ADJACENCIES = (ADD_REMOVE, REPLACE)


def question_window(window: int, slots: int) -> int:
    """How many slots of a question a window meets at most.

    Args:
        window: base slots, w.
        slots: base slots in a slot of the question, r.
    """
    return -(-(window - 1) // slots) + 1


def due(slots: int, base_slot: int) -> bool:
    """Whether a slot of a question, of so many base slots, ends with a base slot."""
    return (base_slot + 1) % slots == 0


def sensitivity_of(question: Question, adjacency: str) -> int:
    """How much the events of a user in a window can change the histogram of a slot in L1.

    Raises ConfigurationError for an unknown adjacency.
    """
    if adjacency not in _ADJACENCIES:
        raise ConfigurationError(
            f"adjacency {adjacency!r} is unknown: choose {' or '.join(_ADJACENCIES)}"
        )
    in_part = question.slots > 1 and question.measure.size > 1
    return question.sensitivity * (2 if in_part or adjacency == REPLACE else 1)
