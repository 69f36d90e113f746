"""Whether releases alone show a cost beyond what the card promises, where there is no ledger.

A release says the largest budget that its publication cost anybody, which is less than the ledger
would tell: what a slot cost that published nothing is not in it, nor which class paid. So this
finds some of what a ledger would show, and clears nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from streamveil.mechanisms.core.budgets import Units, to_units
from streamveil.pipelines.cards.promises import LOCAL
from streamveil.pipelines.cards.read import Read, numbers, units
from streamveil.pipelines.cards.recount import shown
from streamveil.pipelines.cards.registry_form import largest_epsilon
from streamveil.pipelines.guarantees import INFINITE

Record = Mapping[str, Any]


def row_faults(card: Record, read: Read) -> Iterator[str]:
    """What the releases of a stream say that they cannot have cost, by the card."""
    for path, table in read.of("releases"):
        if "epsilon" not in table.column_names:
            continue
        told = (numbers(path, table, "published_slot"), units(path, table, "epsilon"))
        yield from _publications(card, path, *told)


def _publications(card: Record, path: str, published: Units, costs: Units) -> Iterator[str]:
    """Of each publication what it cost, which every release that repeats it says again."""
    known = published >= 0
    slots, first = np.unique(published[known], return_index=True)
    costs_of = costs[known][first]
    other = np.flatnonzero(costs[known] != costs_of[np.searchsorted(slots, published[known])])
    if other.size:
        at = int(published[known][other[0]])
        yield f"{path}: two releases say different costs of the publication of slot {at}"
    if card["promise"].get("requirements_change"):  # to what nobody knew at the launch
        return
    most = int(to_units(largest_epsilon(card["promise"])))
    if any("limit" in one for one in card["promise"]["classes"]):
        # A sum says what it cost whoever was in all of its slots, and nobody counts in all.
        most *= max(one["window"] or 1 for one in card["promise"]["classes"])
    dear = np.flatnonzero(costs_of > most)
    if dear.size:
        yield (
            f"{path}: the publication of slot {slots[dear[0]]} says epsilon "
            f"{shown(costs_of[dear[0]])}, and the card promises no more than {shown(most)} to "
            "anybody: one of the two was changed, or is of another stream"
        )
        return
    yield from _windows(card, path, slots, costs_of)


def _windows(card: Record, path: str, slots: Units, costs: Units) -> Iterator[str]:
    """Whether publications that a window paid for alone cost more than all classes together have.

    A publication is paid for from the slot after the one before it on; of the first one that is
    there nobody knows since when.
    """
    promise = card["promise"]
    if promise["guarantee"] == LOCAL:
        return
    classes = promise["classes"]
    if any("limit" in one for one in classes) or len(slots) < 2:
        return
    most = int(to_units(sum(one["epsilon"] for one in classes)))
    window = min(one["window"] or 0 for one in classes)
    if promise["guarantee"] == INFINITE:
        most *= 1 + promise["granted_again"]
    total = np.concatenate([np.zeros(1, np.int64), np.cumsum(costs)])
    ends = slots[:-1] + window if window else np.full(len(slots) - 1, slots[-1])
    sums = total[np.searchsorted(slots, ends, "right")] - total[1:-1]
    over = np.flatnonzero(sums > most)
    if over.size:
        at = int(over[0])
        yield (
            f"{path}: the publications from slot {slots[at + 1]} on say to have cost "
            f"{shown(sums[at])} within {window or 'all'} slots, and the card promises no more than "
            f"{shown(most)} to all classes together: one of the two was changed, or is of another "
            "stream"
        )
