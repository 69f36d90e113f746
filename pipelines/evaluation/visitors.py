"""Where each user is, kept to compare participation limits and never published."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.engine.count.changes import stranger_keys
from streamveil.engine.count.event_codes import MEMBERS, Layout, Visits, read_codes


@dataclass
class Visitors:
    """Takes who is where, of the events that count, while they are counted."""

    class_of: npt.NDArray[np.int32]
    """Class of each registered user, and last of all others."""
    parts: list[tuple[Any, ...]] = field(default_factory=list)
    """Of each block the kind of users, and slots, users, bins and kept events of its groups."""

    def add(self, kind: int, visits: Visits, layout: Layout) -> None:
        """Take a block."""
        slots, users, bins = read_codes(kind, visits.codes, layout)
        names = users if kind == MEMBERS else stranger_keys(visits.strangers)[users]
        some = visits.kept > 0
        slots = slots + visits.block * layout.block
        self.parts.append((kind, slots[some], names[some], bins[some], visits.kept[some]))

    def write(self, path: str, first: int, last: int) -> None:
        """Write those of a range of slots, users by number."""
        members = len(self.class_of) - 1
        strangers = [part[2] for part in self.parts if part[0] != MEMBERS]
        names = np.unique(np.concatenate([np.zeros(0, "S16"), *strangers]))
        rows = [np.zeros((4, 0), np.int64)]
        for kind, slots, users, bins, kept in self.parts:
            numbers = users if kind == MEMBERS else members + np.searchsorted(names, users)
            inside = (slots >= first) & (slots <= last)
            rows.append(np.stack([slots - first, numbers, bins, kept])[:, inside])
        class_of = np.append(self.class_of[:-1], np.full(len(names), self.class_of[-1]))
        np.savez(path, rows=np.concatenate(rows, axis=1), class_of=class_of)
