"""What devices have in a slot, and what neighbours have in its place.

Worst cases are any two symbols: of devices that tell one event of a window two events, as these
tell most. Outside their canaries' spans such devices have no event, and others one symbol. Of a
stream of the user's own, values are drawn as they are spread in it, and neighbours have any others.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.local.protocol import Users


class Values:
    """Slot by slot.

    Args:
        users: the population, with what reports may cost.
        counts: of a stream of the user's own, shape (T, K, d); None for worst cases.
        people: of each class in that stream, shape (K,).
        length: slots of the run.
        random: where values are drawn from.
    """

    def __init__(
        self,
        users: Users,
        counts: Integers | None,
        people: Integers,
        length: int,
        random: np.random.Generator,
    ) -> None:
        self._users, self._counts, self._people, self._random = users, counts, people, random
        self._first = 0
        if counts is not None and len(counts) > length:
            self._first = int(random.integers(len(counts) - length + 1))
        self._now: Integers = np.zeros(0, np.int64)

    def begin(self, slot: int) -> None:
        """The next slot."""
        symbols = self._users.symbols
        if self._counts is None:
            self._now = np.full(self._users.class_of.size, symbols - 1)
            return
        # A stream that is shorter than a run is gone through again.
        table = self._counts[(self._first + slot) % len(self._counts)]
        self._now = np.empty(self._users.class_of.size, np.int64)
        for k, size in enumerate(self._users.sizes.tolist()):
            ends = np.cumsum(table[k]) / max(int(self._people[k]), 1)
            drawn = np.searchsorted(ends, self._random.random(size), side="right")
            self._now[self._users.class_of == k] = drawn

    def others(self) -> Integers:
        """What users have who are no canaries now, shape (n,)."""
        return self._now.copy()

    def pairs(self, users: npt.NDArray[np.int32]) -> Integers:
        """What some users have, or have in its place: different symbols, shape (2, m)."""
        symbols = self._users.symbols
        if self._counts is not None:
            one = self._now[users]
        else:
            # Two events, where devices tell one of a window and there are two kinds.
            symbols -= self._users.asked is not None and symbols > 2
            one = self._random.integers(0, symbols, users.size)
        other = (one + self._random.integers(1, symbols, users.size)) % symbols
        return np.stack([one, other])
