"""Ledgers of requirements that change, recounted: is there a past that explains every row?

A row of such a ledger is about users with the same history and has no name that lasts. So all
histories are kept that users may have who stand in a row, who have left since, or who were never
there; each row must go on from one of them, by its own sums, and then the promises that were open
must hold. What an honest run wrote always has such a past.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.budgets import Units
from streamveil.pipelines.cards.recount import SMALLEST, shown

_ENDED = np.iinfo(np.int64).max // 2
MOST_HISTORIES = 20_000
"""More are not followed; then what a window ahead may cost is no longer checked."""


@dataclass(frozen=True)
class Row:
    """What a slot cost users with one history; epsilons in units."""

    slot: int
    back: int
    back_cap: int
    ahead: int
    ahead_cap: int
    spent: int
    in_window: int
    infeasible: bool

    @property
    def name(self) -> str:
        """Words for it."""
        return (
            f"slot {self.slot} of the ledger, for users who ask for {shown(self.back_cap)} over "
            f"{self.back} slots back and {shown(self.ahead_cap)} over {self.ahead} ahead"
        )


class Histories:
    """All pasts that users may have before a slot."""

    def __init__(self, horizon: int, first_slot: int, *, changes: bool) -> None:
        """Nobody was there before the first slot; no window is longer than the horizon.

        With `changes` users may come, leave and come back.
        """
        self._horizon = horizon
        self._slot = first_slot
        self._changes = changes
        self._caps: Units = np.full((1, horizon), _ENDED)
        """Of the window that each slot opened, shape (N, W), slot s at column s % W."""
        self._ends: Units = np.zeros((1, horizon), np.int64)
        self._since: Units = np.zeros((1, horizon), np.int64)
        """Spent from each slot on."""
        self._forgotten: int | None = None
        """Slots before this one may be booked for more than they cost."""

    def forget_before(self, slot: int) -> None:
        """From here on, windows that reach back so far may say more than was spent."""
        self._forgotten = slot

    @property
    def too_many(self) -> bool:
        """Whether there are more than can be followed."""
        return len(self._caps) > MOST_HISTORIES

    def take(self, rows: Sequence[Row]) -> Iterator[str]:
        """Go on with all rows of the next slot, and tell what is wrong with them."""
        parts = [self._after(0, None)] if self._changes else []
        for row in rows:
            yield from _wrong_by_itself(row)
            goes_on = self._goes_on(row)
            if not goes_on.any():
                yield (
                    f"{row.name}: {shown(row.in_window)} as spent_backward follows from no rows "
                    f"before it: {SMALLEST}"
                )
                continue
            caps, ends, since = self._after(row.spent, row)
            kept = goes_on & ((caps - since).min(axis=1) >= 0)
            if not kept.any():
                yield (
                    f"{row.name}: with the {shown(row.spent)} of this slot a window that was "
                    "promised before is overspent: do not publish more of this stream before it "
                    "is known whether ledger or card is wrong"
                )
                kept = goes_on
            parts.append((caps[kept], ends[kept], since[kept]))
        self._slot += 1
        self._become(parts)

    def _goes_on(self, row: Row) -> npt.NDArray[np.bool_]:
        """Which histories a row may go on from, shape (N,)."""
        first = row.slot - row.back + 1
        before = self._since[:, first % self._horizon] if row.back > 1 else 0
        sums = np.broadcast_to(before + row.spent, len(self._caps))
        same: npt.NDArray[np.bool_] = sums == row.in_window
        if self._forgotten is not None and first < self._forgotten:
            same = sums <= row.in_window
        return same

    def _after(self, spent: int, row: Row | None) -> tuple[Units, Units, Units]:
        """Every history with one slot more; without a row, that of those who are not there."""
        caps, ends, since = self._caps.copy(), self._ends.copy(), self._since.copy()
        at = self._slot % self._horizon
        caps[:, at] = _ENDED if row is None else row.ahead_cap
        ends[:, at] = self._slot if row is None else self._slot + row.ahead
        since[:, at] = 0
        caps[ends <= self._slot] = _ENDED
        since += spent
        return caps, ends, since

    def _become(self, parts: Sequence[tuple[Units, Units, Units]]) -> None:
        some = int(self._changes or not parts)  # or nobody can come any more
        none = np.zeros((some, self._horizon), np.int64)
        found = [
            np.concatenate(one) for one in zip((none + _ENDED, none, none), *parts, strict=True)
        ]
        found[1] = np.where(found[0] == _ENDED, 0, found[1])
        every = np.unique(np.concatenate(found, axis=1), axis=0)
        self._caps, self._ends, self._since = np.split(every, 3, axis=1)


def _wrong_by_itself(row: Row) -> Iterator[str]:
    over = row.in_window > row.back_cap
    if over and row.spent:
        yield (
            f"{row.name}: the window back cost {shown(row.in_window)}, which is more, and the slot "
            f"{shown(row.spent)} of it: do not publish more of this stream before it is known "
            "whether ledger or card is wrong"
        )
    if over != row.infeasible:
        yield (
            f"{row.name}: infeasible is {str(row.infeasible).lower()}, and the window back cost "
            f"{shown(row.in_window)}: {SMALLEST}"
        )
