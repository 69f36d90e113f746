"""Whether every window of every class of users is within what the card promises."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from streamveil.mechanisms.core.budgets import Units
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.presence.limits import EVERY_SLOT, terms
from streamveil.pipelines.cards.promises import LOCAL, class_key, requirement_of
from streamveil.pipelines.cards.read import Fault, floats, numbers, units
from streamveil.pipelines.cards.recount import (
    ClassLedger,
    dearest_sums,
    life_sums,
    window_sums,
    wrong_local,
    wrong_sums,
)
from streamveil.pipelines.guarantees import INFINITE

Record = Mapping[str, Any]
Tables = Sequence[tuple[str, pa.Table]]
_WHOLE_WINDOW = "the window that ends with it"


def by_class(card: Record, tables: Tables) -> list[ClassLedger]:
    """The ledger of each class of the card. Raises Fault where it is of other classes."""
    classes = sorted(card["promise"]["classes"], key=class_key)
    columns = {
        name: np.concatenate([read(path, table, name) for path, table in tables])
        for name, read in (
            *((one, numbers) for one in ("slot", "window", "users")),
            ("epsilon", floats),
            *((one, units) for one in ("spent", "spent_in_window")),
        )
    }
    slots, first = np.unique(columns["slot"], return_index=True)
    size = len(classes)
    counts = np.diff(np.append(first, len(columns["slot"])))
    if (counts != size).any():
        slot, number = slots[(counts != size).argmax()], counts[(counts != size).argmax()]
        raise Fault(
            f"slot {slot} of the ledger has {number} classes of users, and the card promises to "
            f"{size}: one of them is of another stream, or a row was lost, added or doubled"
        )
    table = {name: column.reshape(-1, size) for name, column in columns.items()}
    for k, one in enumerate(classes):
        _refuse_other_class(one, slots, {name: column[:, k] for name, column in table.items()})
    return [
        ClassLedger(
            requirement_of(one), slots, table["spent"][:, k], table["spent_in_window"][:, k]
        )
        for k, one in enumerate(classes)
    ]


def _refuse_other_class(one: Record, slots: Units, told: Mapping[str, Any]) -> None:
    """Refuse rows that promise something else than the card, or to others."""
    window = -1 if one["window"] is None else one["window"]
    meant = {"window": window, "epsilon": one["epsilon"], "users": one["users"]}
    for name, value in meant.items():
        other = np.flatnonzero(told[name] != value)
        if other.size:
            raise Fault(
                f"slot {slots[other[0]]} of the ledger has {told[name][other[0]]:g} as {name} of "
                f"a class of which the card says {value:g}: one of the two was changed, or is of "
                "another stream"
            )


def window_faults(card: Record, ledgers: Sequence[ClassLedger]) -> Iterator[str]:
    """Whether every window of every class is within what the card promises."""
    classes = sorted(card["promise"]["classes"], key=class_key)
    if any("limit" in one for one in classes):
        yield from _limited(card, classes, ledgers)
        return
    guarantee = card["promise"]["guarantee"]
    for ledger in ledgers:
        if guarantee == LOCAL:
            at_once = "turns=" in card["mechanism"]
            yield from wrong_local(ledger, changes=False, at_once=at_once)
        elif guarantee == INFINITE:
            sums = life_sums(ledger.spent, ledger.slots, _grants(card))
            yield from wrong_sums(ledger, sums, "all slots of the budget")
        else:
            sums = window_sums(ledger.spent, ledger.requirement.window)
            yield from wrong_sums(ledger, sums, _WHOLE_WINDOW)


def _grants(card: Record) -> list[int]:
    """Slots from which on one budget forever was granted again. Raises Fault."""
    found, granted = [], 0
    for run in card["runs"]:
        now = run.get("granted_again", 0)
        if now > granted:
            found.append(run["first_slot"])
        granted = now
    told = card["promise"]["granted_again"]
    if granted != told or len(found) != told:
        raise Fault(
            f"the card says that the budget was granted again {told} times, and its runs tell of "
            f"{len(found)}: bring back the card that the run wrote"
        )
    return found


def _limited(
    card: Record, classes: Sequence[Record], ledgers: Sequence[ClassLedger]
) -> Iterator[str]:
    """Where users count in a few slots only; of a limit that the run chose any may be it."""
    spent = np.column_stack([ledger.spent for ledger in ledgers])
    moved = np.maximum.accumulate(spent, axis=1)
    adjacency = card["promise"]["adjacency"]
    for k, (one, ledger) in enumerate(zip(classes, ledgers, strict=True)):
        costs = [ledger.spent]
        if card["promise"].get("requirements_change"):
            costs.append(moved[:, k])  # who pays by a class may have been of any before it
        tries = [
            list(_wrong_limit(ledger, limit, costs, adjacency)) for limit in _limits(one["limit"])
        ]
        if all(tries):
            yield from min(tries, key=len)


def _limits(stated: Record) -> list[Limit]:
    """The limits that a class of a card may have."""
    most = stated["max_slots"]
    some = most if isinstance(most, list) else [most]
    if not some:
        raise Fault("the card does not say which limit on presence the run chose: bring it back")
    return [_limit(one, stated) for one in some]


def _limit(most: int | None, stated: Record) -> Limit:
    in_life = stated["in_life"]
    every = EVERY_SLOT.max_slots if in_life is None else None
    return Limit(every if most is None else most, stated["blocks"], in_life, stated["chosen"])


def _wrong_limit(
    ledger: ClassLedger, limit: Limit, costs: Sequence[Units], adjacency: str
) -> Iterator[str]:
    door = terms([limit], [ledger.requirement], adjacency)
    most, reach, aside = door.most[0], door.reach[0], door.aside[0]
    sums = [dearest_sums(cost, most, reach) + aside for cost in costs]
    agreed = sums[0]
    for other in sums[1:]:  # until somebody moves, classes pay for themselves alone
        agreed = np.where(agreed == ledger.in_window, agreed, other)
    yield from wrong_sums(
        ledger, agreed, f"the dearest {most} slots within reach, and what is aside,"
    )
