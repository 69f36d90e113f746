"""Whether the ledger keeps what the card promises, and books every slot that was released."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from streamveil.pipelines.cards.check_changing import changing_faults, device_faults
from streamveil.pipelines.cards.check_costs import cost_faults
from streamveil.pipelines.cards.check_questions import question_faults
from streamveil.pipelines.cards.check_windows import by_class, window_faults
from streamveil.pipelines.cards.promises import LOCAL
from streamveil.pipelines.cards.read import Fault, Read, kinds_of, numbers
from streamveil.pipelines.cards.recount import ClassLedger
from streamveil.pipelines.cards.writing import FIGURES

Record = Mapping[str, Any]
Tables = Sequence[tuple[str, pa.Table]]


def ledger_faults(card: Record, read: Read, notices: list[str]) -> Iterator[str]:
    """What is wrong with the ledger, or between it and the releases."""
    tables = read.of("ledger")
    if not tables:
        if any("ledger" in run["files"] for run in card["runs"]):
            yield "the ledger has no row that can be read: bring back the one that the run wrote"
        return
    if "questions" in card["data"]:
        yield from question_faults(card, read)
        return
    changed = [one for one in tables if FIGURES[0] in one[1].column_names]
    fixed = [one for one in tables if FIGURES[0] not in one[1].column_names]
    yield from _booked(card, tables)
    if card["promise"]["guarantee"] == LOCAL and card["promise"].get("requirements_change"):
        yield from device_faults(card, fixed)
        return
    ledgers: list[ClassLedger] = []
    if fixed:
        ledgers = by_class(card, fixed)
        yield from window_faults(card, ledgers)
    if changed:
        yield from changing_faults(card, ledgers, changed, notices)
    yield from cost_faults(read, tables)


def _booked(card: Record, tables: Tables) -> Iterator[str]:
    """Whether every released slot has its rows, and no other has any."""
    runs = [run for run in card["runs"] if "ledger" in kinds_of(run)]
    wanted = {slot for run in runs for slot in range(run["first_slot"], run["last_slot"] + 1)}
    found: set[int] = set()
    for path, table in tables:
        slots = numbers(path, table, "slot")
        if (np.diff(slots) < 0).any():
            raise Fault(f"{path}: slots are not in order: restore the ledger that the run wrote")
        twice = found & set(slots.tolist())
        if twice:
            raise Fault(f"{path}: slot {min(twice)} is in an earlier file of the ledger as well")
        found |= set(slots.tolist())
    missing, strange = sorted(wanted - found), sorted(found - wanted)
    if missing:
        yield (
            f"slot {missing[0]} was released, and the ledger has no row of it: nobody can tell "
            "what it cost; restore the ledger that the run wrote"
        )
    if strange:
        yield (
            f"the ledger books slot {strange[0]}, which no run of the card released: bring back "
            "the card and the releases that belong to it"
        )
