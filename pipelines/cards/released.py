"""A card that does not know all that was released, filled in from what is there.

That is one of a stream, or of a job that was handed over. What its runs released comes as one run:
nobody can tell which slot was the last before a stream was launched again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamveil.mechanisms.core.records import Slots, parse_time
from streamveil.pipelines.cards.card_writer import FIGURES
from streamveil.pipelines.cards.check_input import Fault, Read, numbers
from streamveil.pipelines.cards.claims import (
    Span,
    answered,
    base_span,
    facts_of_span,
    kinds_of,
    queries_of,
    slots_of,
    spans_of,
)

Record = Mapping[str, Any]


def as_released(card: Record, read: Read) -> Record:
    """The card with its runs as one, of the slots that were found; itself where it knows them.

    The first slot is as the card says, if it does, and so is the last one of a run that has ended.

    Raises Fault where nothing was released.
    """
    runs = card["runs"]
    if not any(map(_is_unsure, runs)):
        return card
    whole: dict[str, Any] = {
        "streamveil": runs[-1]["streamveil"],
        "files": {kind: {} for run in runs for kind in kinds_of(run)},
        **{name: runs[-1][name] for name in ("open", "answered") if name in runs[-1]},
    }
    if read.of("ledger"):
        whole["files"]["ledger"] = {}
    if not any(read.of(kind) for kind in whole["files"]):
        raise Fault(
            "nothing that was released is there, so nothing was compared: check it again once the "
            "first slot is released"
        )
    if "slot" in card["data"]:
        whole |= _slots(card, read, whole)
    return {**card, "promise": _promise(card, read, whole), "runs": [whole]}


def _promise(card: Record, read: Read, whole: Record) -> Record:
    """With what users have asked for since the launch, which the ledger alone knows."""
    promise: Record = card["promise"]
    asked = [table for _, table in read.of("ledger") if FIGURES[0] in table.column_names]
    if not (whole.get("open") and asked):
        return promise
    rows = {tuple(row.values()) for table in asked for row in table.select(FIGURES).to_pylist()}
    return {**promise, "in_force": [dict(zip(FIGURES, row, strict=True)) for row in sorted(rows)]}


def _is_unsure(run: Record) -> bool:
    return bool(run.get("open") or run.get("streams"))


def _slots(card: Record, read: Read, whole: Record) -> dict[str, Any]:
    """First and last slot, and their times; of queries also what was answered."""
    data = card["data"]
    slots, queries = slots_of(data), queries_of(data)
    if "answered" in whole:
        spans = {
            one.kind: whole["answered"][one.name]
            for one in queries
            if one.name in whole["answered"]
        }
    else:
        results = {one.kind: read.of(one.kind) for one in queries}
        for path, table in (each for some in results.values() for each in some):
            numbers(path, table, "slot")  # or it is no file of the run
        spans = spans_of(
            data, {kind: [table for _, table in some] for kind, some in results.items()}
        )
    found = base_span(data, spans) if queries else _times(read, slots)
    if found is None:
        raise Fault("no slot of the card is among what was released: name what belongs to it")
    begun, planned = card["runs"][0].get("first_slot"), card["runs"][-1].get("last_slot")
    first, last = found[0] if begun is None else begun, found[1]
    if planned is not None:
        last = min(last, planned) if whole.get("open") else planned
    return {**facts_of_span(slots, first, last), **answered(data, spans)}


def _times(read: Read, slots: Slots) -> Span | None:
    """Of statistics of records, which have times and no slots."""
    tables = [table for _, table in read.of("releases")]
    starts, ends = (
        [parse_time(one) for table in tables for one in table.column(name).to_pylist()]
        for name in ("start", "end")
    )
    return (slots.index(min(starts)), slots.index(max(ends) - 1)) if starts else None
