"""A card that does not know all that was released, filled in from what is there.

That is one of a stream, or of a job that was handed over. What its runs released comes as one run:
nobody can tell which slot was the last before a stream was launched again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow.compute as pc

from streamveil.mechanisms.core.records import Slots, format_duration, format_time, parse_time
from streamveil.pipelines.cards.facts import STREAM
from streamveil.pipelines.cards.promises import PER_RECORD
from streamveil.pipelines.cards.read import Fault, Read, kinds_of, numbers, slots_of
from streamveil.pipelines.cards.writing import ANSWERS, FIGURES

Record = Mapping[str, Any]
Span = tuple[int, int]


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
    """First and last slot, and their times; of questions also what was answered."""
    slots, more = slots_of(card["data"]), {}
    if "questions" in card["data"]:
        more["answered"] = whole.get("answered") or _answered(card, read)
        spans = list(_base_spans(card, more["answered"]))
    elif card["promise"]["guarantee"] == PER_RECORD:
        spans = list(_times(read, slots))
    else:
        spans = [_ends(path, table) for path, table in read.of("releases")]
    if not spans:
        raise Fault("no slot of the card is among what was released: name what belongs to it")
    begun, planned = card["runs"][0].get("first_slot"), card["runs"][-1].get("last_slot")
    first = min(a for a, _ in spans) if begun is None else begun
    last = max(b for _, b in spans)
    if planned is not None:
        last = min(last, planned) if whole.get("open") else planned
    times = {"start": format_time(slots.start(first)), "end": format_time(slots.end(last))}
    return {"first_slot": first, "last_slot": last, **times, **more}


def _ends(path: str, table: Any) -> Span:
    found = numbers(path, table, "slot")
    return int(found.min()), int(found.max())


def _times(read: Read, slots: Slots) -> Iterator[Span]:
    """Of statistics of records, which have times and no slots."""
    for _, table in read.of("releases"):
        starts, ends = (table.column(name).to_pylist() for name in ("start", "end"))
        first, last = min(map(parse_time, starts)), max(map(parse_time, ends))
        yield slots.index(first), slots.index(last - 1)


def _answered(card: Record, read: Read) -> dict[str, list[int]]:
    """The first and the last slot of each question that has an answer."""
    base = slots_of(card["data"])
    found = {}
    for one in card["data"]["questions"]:
        length = format_duration(one["slots"] * base.length)
        for path, table in read.of(f"{ANSWERS}{one['name']}"):
            own = table.filter(pc.equal(table["length"], length))
            if own.num_rows:
                found[one["name"]] = list(_ends(path, own))
    return found


def _base_spans(card: Record, answered: Mapping[str, Any]) -> Iterator[Span]:
    sizes = {one["name"]: one["slots"] for one in card["data"]["questions"]}
    for name, (first, last) in answered.items():
        yield first * sizes[name], (last + 1) * sizes[name] - 1


def is_endless(card: Record) -> bool:
    """Whether the input of its runs had no end, so that they could not write a ledger."""
    return bool(card["data"].get("range") == STREAM)
