"""Where the counts of a comparison come from: a named stream, or counts of real events on disk.

Both are small enough to be sent to another process, and give the counts slot by slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.records import ADD_REMOVE, Requirement
from streamveil.mechanisms.protocol import Population, population_of
from streamveil.pipelines.sample_data.streams import (
    BINS,
    INFINITE_STREAMS,
    infinite_stream,
    make_stream,
    population,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from streamveil.engine.stream.histogram_plan import HistogramPlan


class SlotCounts(NamedTuple):
    """What a slot is counted as, and what it really was."""

    counts: Integers
    """Within the users' bound, which mechanisms see: int64, shape (K, d), K classes."""
    events: Integers
    """Every event in a bin, whoever it is of: int64, shape (d,)."""


@dataclass(frozen=True)
class Synthetic:
    """A named stream, drawn anew for each seed."""

    name: str
    users: int
    slots: int
    about: str = ""

    def population(self, epsilon: float, window: int) -> Population:
        """Users spread evenly over nine requirements: the public facts with E and w.

        Raises ConfigurationError for a requirement out of range.
        """
        requirements, sizes = population(epsilon, window, self.users)
        first = next(make_stream(self.name, sizes, 1, 0))
        return population_of(requirements, sizes, first.shape[1])

    def slots_of(self, epsilon: float, window: int, seed: int) -> Iterator[SlotCounts]:
        """The stream of a seed, in which nobody is beyond the bound."""
        _, sizes = population(epsilon, window, self.users)
        for counts in make_stream(self.name, sizes, self.slots, seed):
            yield SlotCounts(counts, counts.sum(axis=0))


@dataclass(frozen=True)
class Drawn:
    """A stream of `INFINITE_STREAMS`, drawn anew for each seed."""

    name: str
    length: int
    events: int | None = None
    """Of a slot; those of the stream if None."""
    sensitivity: int = 1

    @property
    def about(self) -> str:
        """What the stream is like, and how many events a slot has."""
        stream = INFINITE_STREAMS[self.name]
        events = stream.events if self.events is None else self.events
        return f"{stream.about}; {number_of(events, 'event')} a slot"

    @property
    def shape(self) -> tuple[int, int]:
        """Slots and bins."""
        return self.length, BINS

    def slots(self, seed: int) -> Iterator[SlotCounts]:
        """The stream of a seed, in which nobody is beyond the bound."""
        random = np.random.default_rng(seed)
        for counts in infinite_stream(self.name, self.length, random, self.events):
            yield SlotCounts(counts[None], counts)


@dataclass(frozen=True)
class Bound:
    """What a bound on the events of a user in a slot leaves out of a stream."""

    most: int
    """Events that count of each user in a slot."""
    events: int
    """All that could count."""
    beyond: int
    """Those of them beyond the bound."""
    errors: Mapping[int, float] = field(default_factory=dict)
    """By bound: expected mean square of what it leaves out of a bin and slot. `most` and all powers
    of two are there, but for those that leave nothing out."""


@dataclass(frozen=True, eq=False)
class Original:
    """Events that were counted."""

    plan: HistogramPlan
    """What counted them."""
    read: Callable[[], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, eq=False)
class Counted:
    """Counts of real events, the same for each seed; only the noise differs."""

    name: str
    path: str
    """File of NumPy's own format: counts by slot, class and bin, any integers, shape (T, K, d).
    It is mapped into memory, so that processes share it and need none of their own."""
    events_path: str
    """The same of every event, whoever it is of and however many the user has: shape (T, d)."""
    requirements: tuple[Requirement, ...]
    """Requirement of each class as counted, K of them."""
    sizes: Integers
    """Users of each class, shape (K,)."""
    sensitivity: int = 1
    """How much one user can change a slot's histogram in L1."""
    bound: Bound | None = None
    """What the users' bound leaves out; None where it is not known."""
    slot_length: int | None = None
    """Length of a slot in microseconds; None where it is not known."""
    about: str = ""
    visits_path: str | None = None
    """File of users by block, as `data.Visitors` writes it; None if it is not needed."""
    adjacency: str = ADD_REMOVE
    """What neighbouring inputs differ in."""
    guessed: int | None = None
    """The class whose size is only a guess: see :class:`Population`."""
    original: Original | None = None
    """The events; None in other processes, which need the counts alone."""

    def __getstate__(self) -> dict[str, Any]:
        """Send it to another process without the events."""
        return {**self.__dict__, "original": None}

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
        classes, place = self.classes_in(epsilon, window)
        sizes = np.zeros(len(classes), dtype=np.int64)
        np.add.at(sizes, place, self.sizes)
        public = population_of(classes, sizes, self.shape[1], self.sensitivity)
        guessed = None if self.guessed is None else int(place[self.guessed])
        return replace(public, slot_length=self.slot_length, guessed=guessed)

    @property
    def shape(self) -> tuple[int, int]:
        """Slots and bins."""
        slots, _, bins = np.load(self.path, mmap_mode="r").shape
        return slots, bins

    def slots_of(self, epsilon: float, window: int, seed: int) -> Iterator[SlotCounts]:
        """The counts, whatever the seed."""
        classes, place = self.classes_in(epsilon, window)
        for counts, events in self.slots():
            merged = np.zeros((len(classes), len(events)), dtype=np.int64)
            np.add.at(merged, place, counts)
            yield SlotCounts(merged, events)

    def slots(self, seed: int = 0) -> Iterator[SlotCounts]:
        """The counts, in the classes as counted, whatever the seed."""
        counts = np.load(self.path, mmap_mode="r")
        events = np.load(self.events_path, mmap_mode="r")
        for table, every in zip(counts, events, strict=True):
            yield SlotCounts(table.astype(np.int64), every.astype(np.int64))

    def classes_in(self, epsilon: float, window: int) -> tuple[list[Requirement], Integers]:
        """Distinct scaled requirements, sorted, and where each class is among them."""
        asked = scaled(self.requirements, epsilon, window)
        classes = sorted(set(asked))
        return classes, np.array([classes.index(one) for one in asked], dtype=np.int64)


Source = Synthetic | Counted
"""Counts by class, in those of `population`."""
Histograms = Drawn | Counted
"""Counts in which all users are alike."""


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
