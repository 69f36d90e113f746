"""What each class of users has spent in its current window, from the newest ledger of a stream."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from streamveil.mechanisms.core.records import Slots, format_duration, format_time
from streamveil.pipelines.live.history import Files, tables

CLASSES_SHOWN = 20
LEDGER = "ledger"


class _Part(NamedTuple):
    window: int | None
    """None for the whole stream."""
    epsilon: float
    question: str | None
    users: int
    spent: float


class Budget:
    """The rows of the newest slot of a ledger of any kind."""

    def __init__(self, slots: Slots) -> None:
        """Of a stream whose windows are in these slots."""
        self._slots = slots
        self._newest: list[dict[str, Any]] = []

    def read(self, files: Files) -> list[str]:
        """Take the newest of these files that has rows; gives what cannot be read, and why."""
        unread = []
        for found in tables(files.get(LEDGER, ()), _newest):
            if not isinstance(found, str):
                self._newest = found
                break
            unread.append(found)
        return unread

    def record(self) -> dict[str, Any] | None:
        """For the page: the classes that came nearest to their limits; None before any."""
        if not self._newest:
            return None
        classes = defaultdict(list)
        for row in self._newest:
            part = _class_of(row)
            classes[part.window, part.epsilon].append(part)
        shown = sorted(map(_together, classes.values()), key=lambda one: -one["share"])
        slot = self._newest[0][_slot_column(self._newest[0])]
        return {
            "until": format_time(self._slots.end(slot)),
            "length": format_duration(self._slots.length),
            "classes": len(shown),
            "shown": shown[:CLASSES_SHOWN],
        }


def _newest(table: pa.Table) -> list[dict[str, Any]]:
    slots = table[_slot_column(table.column_names)]
    rows: list[dict[str, Any]] = table.filter(pc.equal(slots, pc.max(slots))).to_pylist()
    return rows


def _slot_column(names: Any) -> str:
    """Of questions the base slot that an answer ends with."""
    return "last_base_slot" if "last_base_slot" in names else "slot"


def _class_of(row: Mapping[str, Any]) -> _Part:
    """A row of any ledger; where requirements change, what is asked of the past."""
    past = "_backward" if "spent_backward" in row else ""
    return _Part(
        row[f"window{past}"],
        row[f"epsilon{past}"],
        row.get("question"),
        row["users"],
        row["spent_backward" if past else "spent_in_window"],
    )


def _together(parts: Sequence[_Part]) -> dict[str, Any]:
    """All of one requirement: classes that differ in a limit alone, answers to some questions."""
    users = Counter[Any]()
    for part in parts:
        users[part.question] += part.users
    spent = max(part.spent for part in parts)
    return {
        "window": parts[0].window,
        "epsilon": parts[0].epsilon,
        "users": max(users.values()),
        "spent": spent,
        "share": spent / parts[0].epsilon,
    }
