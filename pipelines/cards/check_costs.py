"""Whether what releases say of their cost agrees with the ledger, the promise and their noise.

A release says the largest budget that its publication cost a class. With a ledger it must be booked
there. Without one, what a slot cost that published nothing is not known, nor which class paid: so
publications can show a cost beyond the promise, and their silence proves nothing.

Whoever rewrites costs in releases and ledger, and digests in the card, still has the standard
errors there: noise for an epsilon has a variance that follows from it, and a count with that noise
has no smaller one. Mechanisms that publish what they drew say so in every publication. Others
draw counts towards earlier ones: of these the first publication of the stream is looked at.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from streamveil.engine.guarantees import INFINITE, LOCAL_EVENTS, USER, WINDOWS
from streamveil.mechanisms.core.budgets import Units, to_units
from streamveil.mechanisms.core.records import PUBLISHED, REPLACE
from streamveil.mechanisms.randomness.noise import laplace_variance
from streamveil.pipelines.cards.check_input import Fault, Read, column, floats, numbers, units
from streamveil.pipelines.cards.recount import shown
from streamveil.pipelines.cards.registry_form import largest_epsilon

Record = Mapping[str, Any]

AS_DRAWN = ("pba", "pbd", "ba", "bd", "uniform", "sample", "spas", "dpba", "dpbd")
"""Mechanisms that publish counts as they were drawn."""
# Errors are written with at least so many digits; and of a first publication that is drawn towards
# what was expected before, so much of the noise is left at least.
ROUNDING, FIRST = 1e-6, 0.4

_CHANGED = "one of the two was changed, or is of another stream"


class Said(NamedTuple):
    """What a release says of its cost."""

    path: str
    slot: int
    published: int
    """The slot of the publication; -1 before the first one."""
    epsilon: int
    """What that cost, units."""


def cost_faults(card: Record, read: Read) -> Iterator[str]:
    """Whether releases say to have cost no more than was booked, or promised without a ledger."""
    said = [one for path, table in read.of("releases") for one in _said(path, table)]
    costs: dict[int, int] = {}
    for one in said:
        if one.published < 0:
            continue
        if costs.setdefault(one.published, one.epsilon) != one.epsilon:
            yield (
                f"{one.path}: two releases say different costs of the publication of slot "
                f"{one.published}: slot {one.slot} says epsilon {shown(one.epsilon)}, and one "
                f"before it {shown(costs[one.published])}"
            )
            return
    if read.of("ledger"):
        yield from _beyond_ledger(said, read)
    elif costs:
        slots = sorted(costs)
        found = np.array(slots), np.array([costs[slot] for slot in slots], np.int64)
        yield from _beyond_promise(card, said[0].path, *found)


def _said(path: str, table: pa.Table) -> Iterator[Said]:
    if "epsilon" in table.column_names:
        columns = [
            read_(path, table, name).tolist()
            for name, read_ in (("slot", numbers), ("published_slot", numbers), ("epsilon", units))
        ]
        yield from (Said(path, *row) for row in zip(*columns, strict=True))


def _beyond_ledger(said: list[Said], read: Read) -> Iterator[str]:
    """A publication costs at most what was booked since the one before it, in a slot or several."""
    booked: dict[int, int] = {}
    for path, table in read.of("ledger"):
        slots, spent = numbers(path, table, "slot"), units(path, table, "spent")
        for slot, cost in zip(slots.tolist(), spent.tolist(), strict=True):
            booked[slot] = max(booked.get(slot, 0), cost)
    known, before = set(), min(booked, default=0)
    for one in said:
        since = sum(booked.get(s, 0) for s in range(min(before, one.slot), one.slot + 1))
        if one.published not in known and one.epsilon > since:
            yield (
                f"{one.path}: slot {one.slot} says epsilon {shown(one.epsilon)}, and the ledger "
                f"has booked {shown(since)} since the last publication: {_CHANGED}"
            )
            return
        if one.published >= 0:
            known.add(one.published)
            before = one.published


def _beyond_promise(card: Record, path: str, slots: Units, costs: Units) -> Iterator[str]:
    """Whether a publication cost more than a user was promised, or several more than all were."""
    promise = card["promise"]
    classes = promise["classes"]
    if promise.get("requirements_change"):  # to what nobody knew at the launch
        return
    most = int(to_units(largest_epsilon(promise)))
    limited = any("limits" in one for one in classes)
    if limited:
        # A sum says what it cost a user who was in all of its slots, and no user counts in all.
        most *= max(one["window"] or 1 for one in classes)
    dear = np.flatnonzero(costs > most)
    if dear.size:
        yield (
            f"{path}: the publication of slot {slots[dear[0]]} says epsilon "
            f"{shown(costs[dear[0]])}, and the card promises no more than {shown(most)} to "
            f"anybody: {_CHANGED}"
        )
    elif not limited and promise["guarantee"] != LOCAL_EVENTS and len(slots) > 1:
        yield from _windows(promise, path, slots, costs)


def _windows(promise: Record, path: str, slots: Units, costs: Units) -> Iterator[str]:
    """Whether publications that a window paid for alone cost more than all classes together have.

    A publication is paid for from the slot after the one before it on; of the first one that is
    there nobody knows since when.
    """
    classes = promise["classes"]
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
            f"{shown(most)} to all classes together: {_CHANGED}"
        )


# ---- noise -----------------------------------------------------------------------------------


def noise_faults(card: Record, read: Read) -> Iterator[str]:
    """The first publication with less noise than its epsilon asks for, of each file."""
    if card["promise"]["guarantee"] not in (WINDOWS, USER):
        return
    inputs = 2 if card["promise"]["adjacency"] == REPLACE else 1
    sensitivity = int(card["data"].get("max_contributions", 1)) * inputs
    first = _begins(read)
    for path, table in read.of("releases"):
        if not {"stderr", "epsilon", "published_slot", "mechanism"} <= set(table.column_names):
            first = False  # a tidy file has it, and says no epsilon
            continue
        for slot, epsilon, error, mechanism in _publications(path, table):
            drawn = mechanism.partition(":")[0] in AS_DRAWN
            if not (drawn or first):
                continue
            first = False
            noise = _noise(epsilon, sensitivity)
            if error < noise * (1 - ROUNDING if drawn else FIRST):
                yield (
                    f"{path}: slot {slot} says epsilon {epsilon:.6g} beside a standard error of "
                    f"{error:.4g}, and noise for that epsilon has one of {noise:.4g}: the release "
                    f"cost about {noise / max(error, 1e-12):.3g} times as much, or one of the two "
                    "was changed; restore the releases that the run wrote"
                )
                break


def _begins(read: Read) -> bool:
    """Whether the ledger begins with the stream: later, releases are drawn towards earlier ones."""
    for path, table in read.of("ledger"):
        if not {"slot", "spent", "spent_in_window"} <= set(table.column_names):
            return False
        slots = numbers(path, table, "slot")
        spent, within = floats(path, table, "spent"), floats(path, table, "spent_in_window")
        return bool(slots.size) and bool((spent == within)[slots == slots[0]].all())
    return False


def _publications(path: str, table: pa.Table) -> Iterator[tuple[int, float, float, str]]:
    """Slot, epsilon, largest standard error of a bin and mechanism of what was published anew."""
    slots, published = numbers(path, table, "slot"), numbers(path, table, "published_slot")
    epsilons, status = floats(path, table, "epsilon"), column(path, table, "status")
    mechanisms = column(path, table, "mechanism")
    errors: dict[int, tuple[float, float, str]] = {}
    for at, value in enumerate(column(path, table, "stderr")):
        slot = int(slots[at])
        if slot != published[at] or status[at] != PUBLISHED:
            continue
        largest = max(_errors(path, value), default=math.nan)
        if not math.isnan(largest):
            before = errors.get(slot, (0.0, 0.0, ""))
            error = max(before[1], largest)
            errors[slot] = float(epsilons[at]), error, str(mechanisms[at])
    for slot, values in sorted(errors.items()):
        yield slot, *values


def _errors(path: str, value: Any) -> list[float]:
    """Standard errors of a row: of a bin, or of all bins as a list."""
    try:
        found = json.loads(value) if isinstance(value, str) and value[:1] == "[" else value
        some = found if isinstance(found, list) else [found]
        return [float(one) for one in some if one not in (None, "")]
    except (TypeError, ValueError):
        raise Fault(f"{path}: the column stderr holds what is not a number") from None


def _noise(epsilon: float, sensitivity: int) -> float:
    """Standard deviation of the least noise that such a publication can have had."""
    return math.sqrt(laplace_variance(max(int(to_units(epsilon)) // sensitivity, 1)))
