"""Runs in memory: the exact driver, filter and noise of a pipeline, slot by slot, without Beam."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.core.budgets import Units, to_epsilon
from streamveil.mechanisms.core.cohorts import Moves
from streamveil.mechanisms.core.records import PUBLISHED
from streamveil.mechanisms.driver.dynamic_stream import CohortCounts, DynamicStream
from streamveil.mechanisms.driver.stream import RunningStream
from streamveil.mechanisms.protocol import Population, SlotRelease
from streamveil.mechanisms.registry import mechanism
from streamveil.pipelines.audit.clock import check_clock

Public: TypeAlias = Mapping[str, Any]
"""All that is public of a slot: `prices` before it and `releases`, by the number of each stream of
which a slot ends, and whatever else there is."""


class Exact(RunningStream):
    """A mechanism as a pipeline drives it: with its noise and its filter."""

    def __init__(self, text: str, population: Population, key: bytes, revise: int = 0) -> None:
        super().__init__(mechanism(text, population, revise=revise), key)


MakeDriver = Callable[[str, Population, bytes], RunningStream]
"""Makes a driver of a mechanism with its options, the public facts and a noise key of 32 bytes."""


def public(driver: RunningStream, counts: Integers) -> Iterator[tuple[int, Public]]:
    """All that is public of a run, slot by slot, and what is revised at its end.

    Args:
        driver: before its first slot.
        counts: int64, shape (T, K, d).
    """
    for slot, table in enumerate(counts):
        price = driver.price()
        yield slot, {"prices": {0: price}, "releases": {0: driver.release(slot, table)}}
    yield len(counts), {"revisions": driver.rest()}


def public_of_columns(
    stream: DynamicStream,
    counts: Integers,
    asked: Units,
    cohorts: Integers,
    moves: dict[int, Moves],
) -> Iterator[tuple[int, Public]]:
    """The same of requirements that change; `asked` is what each column of counts asks for.

    Args:
        stream: before its first slot.
        counts: int64, shape (T, C, d).
        asked: what users of each column ask for at first, shape (C, 4).
        cohorts: which one they are of at first, shape (C,).
        moves: by slot, of users of columns who make up cohorts of their own, of the same numbers.
    """
    state = stream.start()
    for slot, table in enumerate(counts):
        now = moves.get(slot, Moves.none())
        cohorts, asked = cohorts.copy(), asked.copy()
        cohorts[now.children], asked[now.children] = now.children, now.requirements
        columns, bins = np.nonzero(table)
        cells = CohortCounts(cohorts[columns], bins, table[columns, bins])
        price = stream.price(state, slot, now)[state.interned.ledgers_of(cohorts)]
        state, release = stream.release(state, slot, cells, now)
        release = replace(release, spent=release.spent[state.interned.ledgers_of(cohorts)])
        yield slot, {"prices": {0: price}, "releases": {0: release}, "asked": asked}


def published_in(played: Iterable[tuple[int, Public]]) -> list[Public]:
    """All that is public of a run that goes on while there is time.

    Raises TimeOver, or BudgetExceeded when a filter refuses.
    """
    found = []
    for _, outputs in played:
        check_clock()
        found.append(outputs)
    return found


@dataclass(frozen=True, eq=False)
class Transcript:
    """All that one stream showed in a run: public."""

    releases: list[SlotRelease]
    sizes: Integers
    """Users of each column of counts, shape (K,)."""
    sensitivity: int
    """By how much one of them can change a slot."""

    @cached_property
    def spent(self) -> Floats:
        """What each slot was charged, epsilon, shape (T, K)."""
        return to_epsilon(np.stack([one.spent for one in self.releases]))

    @property
    def published(self) -> npt.NDArray[np.bool_]:
        """Which slots published something, shape (T,)."""
        return np.array([one.status == PUBLISHED for one in self.releases], dtype=bool)


def releases_of(outputs: Sequence[Public], q: int = 0) -> list[SlotRelease]:
    """Those of a stream, slot by slot, from all that is public of a run."""
    return [one["releases"][q] for one in outputs if q in one.get("releases", ())]


def spent_of(outputs: Sequence[Public], q: int = 0) -> Units:
    """Units that each slot of a stream was charged, shape (T, K)."""
    return np.stack([one.spent for one in releases_of(outputs, q)])


def fullest_asked(asked: Units, spent: Units) -> float:
    """Largest charge of a window that was asked for, in parts of what was asked for.

    Args:
        asked: what each column asks for in each slot, as of :class:`DynamicRequirement`, (T, C, 4).
        spent: what each slot cost it, whole units, (T, C).

    A window that looks back counts where its last slot costs anything.
    """
    slots, columns = spent.shape
    until = np.concatenate([np.zeros((1, columns), np.int64), spent.cumsum(axis=0)])
    at, who = np.arange(slots)[:, None], np.arange(columns)
    back, back_most, ahead, ahead_most = np.moveaxis(asked, 2, 0)
    before = until[at + 1, who] - until[np.maximum(at + 1 - back, 0), who]
    after = until[np.minimum(at + ahead, slots), who] - until[at, who]
    looking_back = np.where(spent > 0, before / np.maximum(back_most, 1), 0.0)
    looking_ahead = np.where(ahead > 0, after / np.maximum(ahead_most, 1), 0.0)
    return float(max(looking_back.max(), looking_ahead.max()))
