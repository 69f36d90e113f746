"""Canaries of devices: spans of slots in which a device has one of two sequences of values.

Every device is a canary by itself, and again in each of its spans, by a fair coin of its own: its
values are those of one sequence or of the other, which differ in every slot. A device perturbs by
itself, so the coins of others and of earlier spans tell nothing more of one than is known anyway.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Flags, Floats, Integers
from streamveil.pipelines.audit.guesses import Guesses

Random = np.random.Generator


@dataclass(eq=False)
class Spans:
    """Some devices of one class, slot by slot."""

    users: npt.NDArray[np.int32]
    """Ascending, shape (m,)."""
    length: int
    """Slots of a span."""
    every: int
    """Slots from the beginning of a span to that of the next one."""
    random: Random
    """Where coins and phases are drawn from."""
    values: Integers = field(init=False)
    """What each has in this slot, shape (m,); -1 outside its spans."""
    _found: list[tuple[Floats, Flags, Floats]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        """No span has begun; every phase is as likely, so spans meet all slots of a schedule."""
        number = self.users.size
        self._phase = self.random.integers(0, self.every, number)
        self._begun = np.zeros(number, np.bool_)
        self._coins = np.zeros(number, np.bool_)
        self._scores, self._charges = np.zeros(number), np.zeros(number)
        self._pairs = np.zeros((2, number), np.int64)
        self._inside = np.zeros(number, np.bool_)
        self.values = np.full(number, -1)

    def open(self, slot: int, pairs: Integers) -> None:
        """Begin a slot, with what each has by either sequence, shape (2, m)."""
        at = (slot + self._phase) % self.every
        new = np.flatnonzero(at == 0)
        self._coins[new] = self.random.random(new.size) < 0.5
        self._scores[new] = self._charges[new] = 0.0
        self._begun[new] = True
        self._inside = self._begun & (at < self.length)
        self._last = self._begun & (at == self.length - 1)
        self._pairs = pairs
        self.values = np.where(self._inside, np.where(self._coins, *pairs), -1)

    def asked(self, users: npt.NDArray[np.int32]) -> tuple[Integers, Integers]:
        """Which of some users are in a span now: their places among those, and here."""
        here = np.searchsorted(self.users, users)
        mine = here < self.users.size
        mine[mine] = self.users[here[mine]] == users[mine]
        mine[mine] = self._inside[here[mine]]
        return np.flatnonzero(mine), here[mine]

    def pairs(self, here: Integers) -> Integers:
        """What devices have by either sequence, shape (2, ...)."""
        return self._pairs[:, here]

    def note(self, here: Integers, scores: Floats, charge: float) -> None:
        """Note what reports tell in favour of the first sequence, each place once.

        Args:
            here: places of devices.
            scores: log-likelihood ratios.
            charge: epsilon that each was charged.
        """
        self._scores[here] += scores
        self._charges[here] += charge

    def close(self) -> None:
        """End a slot, and spans with it; who was not asked in one was no canary."""
        ended = np.flatnonzero(self._last & (self._charges > 0))
        if ended.size:
            self._found.append((self._scores[ended], self._coins[ended], self._charges[ended]))

    def guesses(self, most: int) -> Guesses:
        """About all spans that ended, or so many of them, drawn at random."""
        nothing = (np.zeros(0), np.zeros(0, np.bool_), np.zeros(0))
        parts = [np.concatenate(part) for part in zip(nothing, *self._found, strict=True)]
        if parts[0].size > most:
            kept = self.random.choice(parts[0].size, most, replace=False)
            parts = [part[kept] for part in parts]
        scores, there, charges = parts
        return Guesses.of(scores, there, charges)
