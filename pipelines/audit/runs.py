"""Runs in memory: the exact driver, filter and noise of a pipeline, slot by slot, without Beam."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.budgets import Units, to_epsilon
from streamveil.mechanisms.driver.stream import ReleaseStream
from streamveil.mechanisms.protocol import Population, SlotRelease
from streamveil.mechanisms.randomness.noise import NoiseSource
from streamveil.mechanisms.registry import mechanism

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Driver(Protocol):
    """What is audited: counts of one slot after the other in, releases out."""

    def price(self) -> Units:
        """The most that the next slot can cost a user of each class, shape (K,): public."""

    def release(self, slot: int, counts: Integers) -> SlotRelease:
        """Release the next slot of counts, int64, shape (K, d)."""


MakeDriver = Callable[[str, Population, bytes], Driver]
"""Makes a driver of a mechanism with its options, the public facts and a noise key of 32 bytes."""


class Exact:
    """A mechanism as a pipeline drives it: with its noise and its filter."""

    def __init__(self, text: str, population: Population, key: bytes) -> None:
        self._stream = ReleaseStream(mechanism(text, population), NoiseSource(key))
        self._state = self._stream.start()

    def price(self) -> Units:
        """See :class:`Driver`."""
        return self._stream.price(self._state)

    def release(self, slot: int, counts: Integers) -> SlotRelease:
        """See :class:`Driver`. Raises BudgetExceeded when the filter refuses."""
        self._state, release = self._stream.release(self._state, slot, counts)
        return release


@dataclass(frozen=True, eq=False)
class Transcript:
    """All that one run showed: public."""

    population: Population
    releases: list[SlotRelease]
    prices: Floats
    """What each slot could have cost before it was released, epsilon, shape (T, K)."""

    @property
    def spent(self) -> Floats:
        """What each slot was charged, epsilon, shape (T, K)."""
        return to_epsilon(np.stack([one.spent for one in self.releases]))


def run(
    make: MakeDriver, text: str, population: Population, key: bytes, counts: Integers
) -> Transcript:
    """Release all slots of counts, int64, shape (T, K, d)."""
    driver = make(text, population, key)
    releases, prices = [], []
    for slot, table in enumerate(counts):
        prices.append(to_epsilon(driver.price()))
        releases.append(driver.release(slot, table))
    return Transcript(population, releases, np.stack(prices))
