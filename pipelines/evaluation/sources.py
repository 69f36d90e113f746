"""Where the counts of a comparison come from: a named stream, or counts of real events on disk.

Both are small enough to be sent to another process, and give the counts slot by slot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.mechanism import Population
from streamveil.mechanisms.records import Requirement
from streamveil.pipelines.evaluation.populations import population
from streamveil.pipelines.evaluation.streams import make_stream

Counts = npt.NDArray[np.int64]


class Source(Protocol):
    """Counts to compare mechanisms on."""

    @property
    def name(self) -> str:
        """What the stream is called in tables."""

    def population(self, epsilon: float, window: int) -> Population:
        """The public facts when the strictest budget is `epsilon` and the longest window `window`.

        Raises ConfigurationError for a requirement out of range.
        """

    def tables(self, epsilon: float, window: int, seed: int) -> Iterator[Counts]:
        """Counts of one slot after the other: int64, shape (K, d), K classes of `population`."""


@dataclass(frozen=True)
class Synthetic:
    """A named stream, drawn anew for each seed."""

    name: str
    users: int
    slots: int

    def population(self, epsilon: float, window: int) -> Population:
        """Users spread evenly over nine requirements."""
        requirements, sizes = population(epsilon, window, self.users)
        first = next(make_stream(self.name, sizes, 1, 0))
        return Population(tuple(requirements), sizes, first.shape[1])

    def tables(self, epsilon: float, window: int, seed: int) -> Iterator[Counts]:
        """The stream of a seed."""
        _, sizes = population(epsilon, window, self.users)
        yield from make_stream(self.name, sizes, self.slots, seed)


@dataclass(frozen=True, eq=False)
class Counted:
    """Counts of real events, the same for each seed; only the noise differs."""

    name: str
    path: str
    """File of NumPy's own format: counts by slot, class and bin, any integers, shape (T, K, d).
    It is mapped into memory, so that processes share it and need none of their own."""
    requirements: tuple[Requirement, ...]
    """Requirement of each class as counted, K of them."""
    sizes: Counts
    """Users of each class, shape (K,)."""
    sensitivity: int = 1
    """How much one user can change a slot's histogram in L1."""

    @cached_property
    def epsilon(self) -> float:
        """Strictest budget as counted."""
        return min(one.epsilon for one in self.requirements)

    @cached_property
    def window(self) -> int:
        """Longest window as counted, in slots."""
        return max(one.window for one in self.requirements)

    def population(self, epsilon: float, window: int) -> Population:
        """The classes, scaled, and those that became equal merged."""
        classes, place = self._classes(epsilon, window)
        sizes = np.zeros(len(classes), dtype=np.int64)
        np.add.at(sizes, place, self.sizes)
        bins = np.load(self.path, mmap_mode="r").shape[2]
        return Population(tuple(classes), sizes, bins, self.sensitivity)

    def tables(self, epsilon: float, window: int, seed: int) -> Iterator[Counts]:
        """The counts, whatever the seed."""
        classes, place = self._classes(epsilon, window)
        counts = np.load(self.path, mmap_mode="r")
        for table in counts:
            merged = np.zeros((len(classes), counts.shape[2]), dtype=np.int64)
            np.add.at(merged, place, table.astype(np.int64))
            yield merged

    def _classes(self, epsilon: float, window: int) -> tuple[list[Requirement], Counts]:
        """Distinct scaled requirements, sorted, and where each class is among them."""
        asked = scaled(self.requirements, epsilon, window)
        classes = sorted(set(asked))
        return classes, np.array([classes.index(one) for one in asked], dtype=np.int64)


def scaled(requirements: Sequence[Requirement], epsilon: float, window: int) -> list[Requirement]:
    """Scale budgets so that the least is `epsilon`, and windows so that the longest is `window`.

    Windows are rounded up to whole slots.
    """
    least = min(one.epsilon for one in requirements)
    longest = max(one.window for one in requirements)
    return [
        Requirement(
            -(-one.window * window // longest),
            one.epsilon if epsilon == least else epsilon * (one.epsilon / least),
        )
        for one in requirements
    ]
