"""Whether rows of a ledger keep what was promised where requirements change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from streamveil.mechanisms.core.budgets import to_units
from streamveil.mechanisms.core.records import Requirement
from streamveil.pipelines.cards.histories import Histories, Row
from streamveil.pipelines.cards.read import floats, numbers, units
from streamveil.pipelines.cards.recount import ClassLedger, wrong_local
from streamveil.pipelines.cards.writing import FIGURES

Record = Mapping[str, Any]
Tables = Sequence[tuple[str, pa.Table]]


def changing_faults(
    card: Record, ledgers: Sequence[ClassLedger], tables: Tables, notices: list[str]
) -> Iterator[str]:
    """Rows of users whose requirements change, after those of classes that did not yet."""
    rows = [row for path, table in tables for row in _rows(path, table)]
    yield from _in_force(card, tables)
    before = [_row_of(ledger, at) for ledger in ledgers for at in range(len(ledger.slots))]
    every = sorted([*before, *rows], key=lambda row: row.slot)
    horizon = max(max(row.back, row.ahead) for row in every)
    changes = bool(card["promise"].get("requirements_change"))
    pasts = Histories(horizon, every[0].slot, changes=changes)
    for slot, some in groupby(every, key=lambda row: row.slot):
        if ledgers and slot == rows[0].slot:
            longest = max(ledger.requirement.window for ledger in ledgers)
            pasts.forget_before(slot - longest)
        yield from pasts.take(list(some))
        if pasts.too_many:
            notices.append(
                f"from slot {slot} on users may have so many histories that windows of changing "
                "requirements were not recounted"
            )
            return


def _in_force(card: Record, tables: Tables) -> Iterator[str]:
    """Whether the card says what the rows say is in force."""
    told = {tuple(one[name] for name in FIGURES) for one in _figures(card)}
    found = {
        tuple(row.values()) for _, table in tables for row in table.select(FIGURES).to_pylist()
    }
    for figures in sorted(found - told):
        yield (
            f"the ledger has {dict(zip(FIGURES, figures, strict=True))} in force, of which the "
            "card says nothing: bring back the card that belongs to it"
        )
    for figures in sorted(told - found):
        yield (
            f"the card says that {dict(zip(FIGURES, figures, strict=True))} was in force, of which "
            "the ledger has no row: bring back the ledger that belongs to it"
        )
    if card["promise"].get("requirements_change"):
        return
    promised = {
        (one["window"], int(to_units(one["epsilon"]))) for one in card["promise"]["classes"]
    }
    for back, cap, ahead, more in sorted(found):
        both = {(back, int(to_units(float(cap)))), (ahead, int(to_units(float(more))))}
        if not both <= promised:
            yield (
                f"the ledger keeps epsilon {cap:g} over {back} slots, which the card promises to "
                "nobody, and it says nothing of requirements that change"
            )


def _figures(card: Record) -> list[Record]:
    return [one for one in card["promise"].get("in_force", ()) if FIGURES[0] in one]


def _row_of(ledger: ClassLedger, at: int) -> Row:
    """A row of a class whose requirement has not changed so far."""
    one, cap = ledger.requirement, ledger.cap
    spent, told = int(ledger.spent[at]), int(ledger.in_window[at])
    slot = int(ledger.slots[at])
    return Row(slot, one.window, cap, one.window, cap, spent, told, False)


_CHANGED = (
    ("slot", numbers),
    ("window_backward", numbers),
    ("epsilon_backward", units),
    ("window_forward", numbers),
    ("epsilon_forward", units),
    ("spent", units),
    ("spent_backward", units),
)


def _rows(path: str, table: pa.Table) -> Iterator[Row]:
    columns = np.column_stack([read(path, table, name) for name, read in _CHANGED])
    infeasible = table.column("infeasible").to_pylist()
    for figures, flag in zip(columns.tolist(), infeasible, strict=True):
        slot, back, back_cap, ahead, ahead_cap, spent, told = figures
        broken = str(flag).lower() == "true"
        yield Row(slot, back, back_cap, ahead, ahead_cap, spent, told, broken)


def device_faults(card: Record, tables: Tables) -> Iterator[str]:
    """Users of the local setting whose requirements change: their classes come and go."""
    stated = [*card["promise"]["classes"], *card["promise"].get("in_force", ())]
    known = {(one["window"], one["epsilon"]) for one in stated}
    columns = [
        np.concatenate([read(path, table, name) for path, table in tables])
        for name, read in (
            ("slot", numbers),
            ("window", numbers),
            ("epsilon", floats),
            ("spent", units),
            ("spent_in_window", units),
        )
    ]
    for slot, window, epsilon, spent, told in zip(*(c.tolist() for c in columns), strict=True):
        if (window, epsilon) not in known:
            yield (
                f"slot {slot} of the ledger has users with epsilon {epsilon:g} over {window} "
                "slots, and the card promises that to nobody"
            )
            return
        one = ClassLedger(
            Requirement(window, epsilon), np.array([slot]), np.array([spent]), np.array([told])
        )
        faults = list(wrong_local(one, changes=True, at_once=True))
        if faults:
            yield faults[0]
            return
