"""What each class of users has spent in its current window, from the newest ledger of a stream."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streamveil.mechanisms.core.records import Slots, format_time
from streamveil.pipelines.reports.history import Files, tables

CLASSES_SHOWN = 20
LEDGER = "ledger"


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
        """For the page: the classes that came nearest to their limits; None before any.

        Classes that differ in a limit alone are shown as one, with the most that any has spent.
        Where requirements change, a class is what is asked of the past.
        """
        if not self._newest:
            return None
        past = "_backward" if "spent_backward" in self._newest[0] else ""
        spent = defaultdict[Any, float](float)
        users = defaultdict[Any, Counter[Any]](Counter)  # all are in the rows of each query
        for row in self._newest:
            asked = row[f"window{past}"], row[f"epsilon{past}"]
            spent[asked] = max(spent[asked], row["spent_backward" if past else "spent_in_window"])
            users[asked][row.get("query")] += row["users"]
        shown = [
            {
                "window": asked[0],
                "epsilon": asked[1],
                "users": max(users[asked].values()),
                "spent": cost,
                "share": cost / asked[1],
            }
            for asked, cost in spent.items()
        ]
        shown.sort(key=lambda one: -one["share"])
        slot = self._newest[0][_slot_column(self._newest[0])]
        return {
            "until": format_time(self._slots.end(slot)),
            "length": self._slots.text,
            "classes": len(shown),
            "shown": shown[:CLASSES_SHOWN],
        }


def _newest(table: pa.Table) -> list[dict[str, Any]]:
    slots = table[_slot_column(table.column_names)]
    rows: list[dict[str, Any]] = table.filter(pc.equal(slots, pc.max(slots))).to_pylist()
    return rows


def _slot_column(names: Any) -> str:
    """Of queries the base slot that an answer ends with."""
    return "last_base_slot" if "last_base_slot" in names else "slot"
