"""What the drills that kill a stream share: how its releases are checked."""

from __future__ import annotations

import collections
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from streamveil.io.jsonlines import json_text
from streamveil.io.releases import release_row
from streamveil.mechanisms.core.records import LedgerEntry, Release


def keep(release: Release, folder: str) -> None:
    """Keep what a sink is given as a file, every time that it is."""
    path = Path(folder, f"{release.slot:012}-{uuid.uuid4().hex}.json")
    part = path.with_suffix(".part")
    part.write_bytes(json_text(release_row(release)).encode())
    part.rename(path)


def keep_cost(entry: LedgerEntry, folder: str) -> None:
    """Keep what a slot cost users, of one class, every time that it is reported."""
    path = Path(folder, f"{entry.slot:012}-{uuid.uuid4().hex}.cost")
    part = path.with_suffix(".part")
    part.write_text(repr(float(entry.spent[0])))
    part.rename(path)


def costs(folder: Path) -> list[tuple[int, float]]:
    """By slot, in order, what it cost as reported: all that differs together.

    A release alone does not say that: what a sum of several slots cost is booked in each of them.
    """
    texts_of: dict[int, set[str]] = collections.defaultdict(set)
    for path in folder.glob("*.cost"):
        texts_of[slot_of(path)].add(path.read_text())
    return [(slot, sum(map(float, texts))) for slot, texts in sorted(texts_of.items())]


def kept(folder: Path) -> dict[int, collections.Counter[bytes]]:
    """By slot, what a sink was given and how often, in order."""
    found: dict[int, collections.Counter[bytes]] = collections.defaultdict(collections.Counter)
    for path in sorted(folder.glob("*.json")):
        found[slot_of(path)][path.read_bytes()] += 1
    return dict(found)


def slot_of(path: Path) -> int:
    """The slot of a file that :func:`keep` wrote."""
    return int(path.name.partition("-")[0])


def overspent(
    costs: Sequence[tuple[int, float]], window: int, epsilon: float
) -> list[tuple[int, int, float]]:
    """Windows of slots, given in order with what each spent, that cost more than was asked for.

    Gives (last slot, window, spent) of each.
    """
    found = []
    for last in range(len(costs)):
        total = sum(amount for _, amount in costs[max(0, last + 1 - window) : last + 1])
        if total > epsilon + 1e-9:
            found.append((costs[last][0], window, total))
    return found


def tell(figures: Mapping[str, Any], faults: Sequence[str]) -> int:
    """Print what came out; gives the exit code."""
    print(", ".join(f"{name} {number}" for name, number in figures.items()))
    for fault in faults:
        print(f"FAULT: {fault}")
    return 1 if faults else 0
