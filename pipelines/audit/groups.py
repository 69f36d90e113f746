"""How large groups of users are: as one that tells most."""

from __future__ import annotations

import numpy as np

from streamveil.pipelines.audit.canaries import Canaries
from streamveil.pipelines.audit.runs import Transcript, published
from streamveil.pipelines.audit.worlds import BINS

# Loss of a canary that tells most per guess.
_TELLING, _TELLING_OF_WINDOWS = 2.0, 3.0
# The same where canaries in all bins that are gone again would make a mechanism publish soon.
_TELLING_AND_GONE = 1.0


def group_of_window(epsilon: float, people: int) -> tuple[int, int]:
    """Users of a canary of a window with such a budget, of so many: as of `groups_of_slots`."""
    users = min(max(1, round(_TELLING_OF_WINDOWS / epsilon)), max(1, people))
    return users, users


def groups_of_slots(
    kind: str, seen: Transcript, plan: Canaries, people: int, saves_up: bool
) -> tuple[int, int]:
    """Users of a canary that shows in publications, and of one that shows in looks.

    Args:
        kind: `worlds.SLOTS` or `worlds.BINS`.
        seen: a run on trial.
        plan: where its canaries could be.
        people: users of their class.
        saves_up: whether the mechanism saves budget for later slots.
    """
    slots = np.unique(plan.first)
    spent, told = seen.spent[slots, plan.class_index], published(seen)[slots]
    telling, found = _TELLING_AND_GONE if kind == BINS and saves_up else _TELLING, []
    for which in (told, ~told):
        costs = spent[which & (spent > 0)]
        wanted = round(telling / float(np.median(costs))) if costs.size else 1
        found.append(min(max(1, wanted), max(1, people)))
    return found[0], found[0 if kind == BINS else 1]
