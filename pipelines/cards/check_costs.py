"""Whether releases say to have cost no more than the ledger has booked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from streamveil.pipelines.cards.read import Read, numbers, units
from streamveil.pipelines.cards.recount import shown

Record = Mapping[str, Any]
Tables = Sequence[tuple[str, pa.Table]]


def cost_faults(read: Read, ledger: Tables) -> Iterator[str]:
    """Whether releases say to have cost no more than the ledger has booked.

    A publication costs at most what was booked since the one before it, in one slot or in several,
    which are then added up; whatever repeats it says the same.
    """
    costs: dict[int, int] = {}
    for path, table in ledger:
        slots, spent = numbers(path, table, "slot"), units(path, table, "spent")
        for slot, cost in zip(slots.tolist(), spent.tolist(), strict=True):
            costs[slot] = max(costs.get(slot, 0), cost)
    first: dict[int, int] = {}
    before = min(costs, default=0)
    for path, table in read.of("releases"):
        if "epsilon" not in table.column_names:
            continue
        columns = [read_(path, table, name) for name, read_ in _TOLD]
        for slot, published, epsilon in zip(*(c.tolist() for c in columns), strict=True):
            booked = sum(costs.get(s, 0) for s in range(min(before, slot), slot + 1))
            if published in first and first[published] != epsilon:
                yield (
                    f"{path}: slot {slot} says epsilon {shown(epsilon)} of the publication of "
                    f"slot {published}, which was {shown(first[published])}"
                )
                return
            if published not in first and epsilon > booked:
                yield (
                    f"{path}: slot {slot} says epsilon {shown(epsilon)}, and the ledger has "
                    f"booked {shown(booked)} since the last publication: one of the two was "
                    "changed, or is of another stream"
                )
                return
            if published >= 0:
                first.setdefault(published, epsilon)
                before = published


_TOLD = (("slot", numbers), ("published_slot", numbers), ("epsilon", units))
