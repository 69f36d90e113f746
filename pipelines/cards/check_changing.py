"""Whether rows of a ledger keep what was promised where requirements change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from streamveil.mechanisms.core.budgets import to_units
from streamveil.pipelines.cards.card_writer import FIGURES
from streamveil.pipelines.cards.check_input import numbers, units
from streamveil.pipelines.cards.histories import Histories, Row
from streamveil.pipelines.cards.recount import Account

Record = Mapping[str, Any]
Tables = Sequence[tuple[str, pa.Table]]


def changing_faults(
    card: Record, accounts: Sequence[Account], tables: Tables, notices: list[str]
) -> Iterator[str]:
    """Rows of users whose requirements change, after those of classes that did not yet."""
    rows = [row for path, table in tables for row in _rows(path, table)]
    yield from _in_force(card, tables)
    before = [_row_of(one, at) for one in accounts for at in range(len(one.spent))]
    every = sorted([*before, *rows], key=lambda row: row.slot)
    horizon = max(max(row.back, row.ahead) for row in every)
    changes = bool(card["promise"].get("requirements_change"))
    pasts = Histories(horizon, every[0].slot, changes=changes)
    for slot, some in groupby(every, key=lambda row: row.slot):
        if accounts and slot == rows[0].slot:
            longest = max(one.requirement.window for one in accounts)
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
    stated = {tuple(one[name] for name in FIGURES) for one in _figures(card)}
    found = {
        tuple(row.values()) for _, table in tables for row in table.select(FIGURES).to_pylist()
    }
    for figures in sorted(found - stated):
        yield (
            f"the ledger has {dict(zip(FIGURES, figures, strict=True))} in force, of which the "
            "card says nothing of it: restore the card that belongs to it"
        )
    for figures in sorted(stated - found):
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


def _row_of(account: Account, at: int) -> Row:
    """A row of a class whose requirement has not changed so far."""
    one, cap = account.requirement, account.cap
    spent, in_window = int(account.spent[at]), int(account.in_window[at])
    return Row(int(account.first[at]), one.window, cap, one.window, cap, spent, in_window, False)


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
        slot, back, back_cap, ahead, ahead_cap, spent, in_window = figures
        broken = str(flag).lower() == "true"
        yield Row(slot, back, back_cap, ahead, ahead_cap, spent, in_window, broken)
