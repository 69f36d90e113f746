"""Runs in memory: the exact driver, filter and noise of a pipeline, slot by slot, without Beam."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.budgets import Requirements, Units, asked_units, to_epsilon
from streamveil.mechanisms.core.cohorts import Moves
from streamveil.mechanisms.core.records import PUBLISHED
from streamveil.mechanisms.driver.dynamic_stream import CohortCounts, DynamicStream
from streamveil.mechanisms.driver.stream import RunningStream
from streamveil.mechanisms.protocol import Population, Setting, SlotRelease
from streamveil.mechanisms.randomness.noise import NoiseSource
from streamveil.mechanisms.registry import dynamic_mechanism, mechanism, only_dynamic
from streamveil.pipelines.audit.clock import check_clock

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


class Exact(RunningStream):
    """A mechanism as a pipeline drives it: with its noise and its filter."""

    def __init__(self, text: str, population: Population, key: bytes, revise: int = 0) -> None:
        super().__init__(mechanism(text, population, revise=revise), key)


class Unchanging:
    """The same for a mechanism whose requirements could change, and stay as they are."""

    def __init__(self, text: str, population: Population, key: bytes) -> None:
        asked = population.requirements
        setting = Setting(population.bins, asked.longest, population.sensitivity)
        both_ways = asked_units([[r.window, r.epsilon, r.window, r.epsilon] for r in asked])
        source = NoiseSource(key)
        made = dynamic_mechanism(text, setting)
        self._stream = DynamicStream(made, both_ways, population.sizes, source)
        self._state, self._slot, self._nobody = self._stream.start(), 0, Moves.none()

    def price(self) -> Units:
        """See :class:`Driver`."""
        return self._stream.price(self._state, self._slot, self._nobody)

    def release(self, slot: int, counts: Integers) -> SlotRelease:
        """See :class:`Driver`. Raises BudgetExceeded when the filter refuses."""
        cohorts, bins = np.nonzero(counts)
        cells = CohortCounts(cohorts, bins, counts[cohorts, bins])
        self._state, release = self._stream.release(self._state, slot, cells, self._nobody)
        self._slot = slot + 1
        return release


def exact(text: str, population: Population, key: bytes) -> Driver:
    """The driver of a pipeline for this mechanism."""
    return (Unchanging if only_dynamic(text) else Exact)(text, population, key)


@dataclass(frozen=True, eq=False)
class Transcript:
    """All that one run showed: public."""

    population: Population
    releases: list[SlotRelease]
    prices: Floats
    """What each slot could have cost before it was released, epsilon, shape (T, K)."""

    @cached_property
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
        check_clock()
        prices.append(to_epsilon(driver.price()))
        releases.append(driver.release(slot, table))
    return Transcript(population, releases, np.stack(prices))


def public(driver: Driver, counts: Integers) -> Iterator[tuple[int, Any]]:
    """All that is public of a run, slot by slot: what it may cost, the release, and what is left.

    Args:
        driver: before its first slot.
        counts: int64, shape (T, K, d).
    """
    for slot, table in enumerate(counts):
        price = driver.price()
        yield slot, {"price": price, "release": driver.release(slot, table)}
    if isinstance(driver, RunningStream):
        yield len(counts), {"revisions": driver.rest()}


def spent_of(published: Sequence[Mapping[str, Any]]) -> Units:
    """Units that each slot was charged, shape (T, K), from what :func:`public` gave."""
    return np.stack([one["release"].spent for one in published if "release" in one])


def published(seen: Transcript) -> npt.NDArray[np.bool_]:
    """Which slots published something, shape (T,)."""
    return np.array([one.status == PUBLISHED for one in seen.releases], dtype=bool)


def fullest(requirements: Requirements, charges: Sequence[tuple[int, Units]]) -> float:
    """Largest charge of a window in parts of its budget, of whole units.

    Args:
        requirements: of each class, K of them.
        charges: of each stream, how long its slots are, in slots of the requirements, and what each
            slot cost users of each class, shape (T, K).
    """
    end, most = max(slots * len(units) for slots, units in charges), 0.0
    for k, (window, budget) in enumerate(
        zip(requirements.windows.tolist(), requirements.budgets.tolist(), strict=True)
    ):
        # What slots s to e cost is in the windows that end with s to e + window - 1.
        changes = np.zeros(end + window + 1, np.int64)
        for slots, units in charges:
            first = np.arange(len(units)) * slots
            np.add.at(changes, first, units[:, k])
            np.subtract.at(changes, first + slots + window - 1, units[:, k])
        most = max(most, int(changes.cumsum().max()) / budget)
    return most
