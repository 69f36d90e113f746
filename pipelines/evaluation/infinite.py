"""Mechanisms with one budget for a whole stream side by side on the same counts.

What is compared are released distributions with each slot's own, of every event. Mechanisms with a
horizon are told the length of the stream, which nobody knows of a stream without end: they are
marked.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.units import to_units
from streamveil.mechanisms.driver.stream import ReleaseStream
from streamveil.mechanisms.protocol import Mechanism, SlotRelease
from streamveil.mechanisms.randomness.noise import NoiseSource
from streamveil.mechanisms.registry import (
    INFINITE_MECHANISMS,
    infinite_mechanism,
    parse,
)
from streamveil.pipelines.evaluation.compare import noise_key
from streamveil.pipelines.evaluation.infinite_streams import BINS, infinite_stream
from streamveil.pipelines.evaluation.measures import Measure
from streamveil.pipelines.evaluation.sources import Counted, SlotCounts

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

DEFAULT_MECHANISMS = tuple(INFINITE_MECHANISMS)
NO_DATA = "constant"
"""What needs no data to err as it does."""
MILLION = 1e6

MEASURES = (
    Measure("mse_millionths", "MSE x 1e6", "mean squared error of a bin's share, in millionths"),
    Measure("kl", "KL divergence", "of the true distribution from the released one, in nats"),
    Measure("age", "age", "mean slots since the one that a release is measured on"),
    Measure("spent", "budget spent", "share of the budget that is gone in the end: at most 1"),
    Measure("seconds", "seconds", "CPU seconds that the mechanism took"),
)


class Histograms(Protocol):
    """Counts to compare on."""

    @property
    def name(self) -> str:
        """What the stream is called in tables."""

    @property
    def shape(self) -> tuple[int, int]:
        """Slots and bins."""

    @property
    def sensitivity(self) -> int:
        """How much one user can change a slot's histogram in L1."""

    def slots(self, seed: int) -> Iterator[SlotCounts]:
        """One slot after the other, with all users in one class."""


@dataclass(frozen=True)
class Drawn:
    """A stream of `INFINITE_STREAMS`, drawn anew for each seed."""

    name: str
    length: int
    events: int | None = None
    """Of a slot; those of the stream if None."""
    sensitivity: int = 1

    @property
    def shape(self) -> tuple[int, int]:
        """Slots and bins."""
        return self.length, BINS

    def slots(self, seed: int) -> Iterator[SlotCounts]:
        """The stream of a seed, in which nobody is beyond the bound."""
        random = np.random.default_rng(seed)
        for counts in infinite_stream(self.name, self.length, random, self.events):
            yield SlotCounts(counts[None], counts)


@dataclass(frozen=True, eq=False)
class Summed:
    """Counts of real events, all users alike; the same for each seed."""

    counted: Counted

    @property
    def name(self) -> str:
        """What the events are called."""
        return self.counted.name

    @property
    def sensitivity(self) -> int:
        """As counted."""
        return self.counted.sensitivity

    @property
    def shape(self) -> tuple[int, int]:
        """Slots and bins."""
        slots, _, bins = np.load(self.counted.path, mmap_mode="r").shape
        return slots, bins

    def slots(self, seed: int) -> Iterator[SlotCounts]:
        """The counts, whatever the seed."""
        for table, events in self.counted.slots():
            yield SlotCounts(table.sum(axis=0, keepdims=True), events)


@dataclass(frozen=True)
class InfiniteTask:
    """What one process does at a time: a stream, a seed and a budget."""

    source: Histograms
    epsilon: float
    seed: int
    mechanisms: tuple[str, ...]
    """Names with options, see `infinite_mechanism`."""


@dataclass(frozen=True)
class InfiniteFigures:
    """The figures of one run; see `MEASURES`. NaN where no slot has an event."""

    mse_millionths: float
    kl: float
    age: float
    spent: float
    seconds: float


@dataclass(frozen=True, eq=False)
class InfiniteRun:
    """One mechanism over one whole stream."""

    stream: str
    epsilon: float
    mechanism: str
    seed: int
    slots: int
    bins: int
    measured: InfiniteFigures
    course: Floats
    """Mean squared error of each slot, in millionths; NaN without events, shape (T,)."""

    @property
    def case(self) -> tuple[str, float]:
        """What is compared with each other."""
        return self.stream, self.epsilon


def is_finite(name: str) -> bool:
    """Whether a mechanism, given with its options, ends at a horizon."""
    return INFINITE_MECHANISMS[name.split(":")[0]].finite


def infinite_tasks(
    sources: Sequence[Histograms],
    epsilons: Sequence[float],
    mechanisms: Sequence[str],
    seeds: int,
) -> list[InfiniteTask]:
    """Lay out a comparison and check all of it before anything runs.

    Raises ConfigurationError for an unknown mechanism or option, or a value out of range.
    """
    for source, epsilon, name in itertools.product(sources, epsilons, mechanisms):
        _made(name, source, epsilon)
    return [
        InfiniteTask(source, epsilon, seed, tuple(mechanisms))
        for source, seed, epsilon in itertools.product(sources, range(seeds), epsilons)
    ]


def run(task: InfiniteTask) -> list[InfiniteRun]:
    """Do a task: a run of each mechanism. Raises BudgetExceeded when a filter refuses."""
    source = task.source
    lanes = [_Lane(name, source, task.epsilon, task.seed) for name in task.mechanisms]
    for slot, counted in enumerate(source.slots(task.seed)):
        for lane in lanes:
            lane.take(slot, counted)
    return [
        InfiniteRun(
            source.name,
            task.epsilon,
            name,
            task.seed,
            *source.shape,
            lane.measured(task.epsilon),
            np.array(lane.course),
        )
        for name, lane in zip(task.mechanisms, lanes, strict=True)
    ]


def _made(name: str, source: Histograms, epsilon: float) -> Mechanism[object]:
    """A mechanism for a stream; one with a horizon has it where the stream ends."""
    slots, bins = source.shape
    _, options = parse(name, INFINITE_MECHANISMS)
    if is_finite(name) and "slots" not in options:
        name = f"{name}:slots={slots}"
    return infinite_mechanism(name, bins, epsilon, sensitivity=source.sensitivity)


@dataclass
class _Lane:
    """A mechanism on its way through a stream."""

    name: str
    source: Histograms
    epsilon: float
    seed: int
    seconds: float = 0.0
    spent: int = 0
    ages: int = 0
    divergences: list[float] = field(default_factory=list)
    course: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        made = _made(self.name, self.source, self.epsilon)
        self.stream = ReleaseStream(made, NoiseSource(noise_key(self.seed)))
        self.state = self.stream.start()

    def take(self, slot: int, counted: SlotCounts) -> None:
        started = time.process_time()
        self.state, release = self.stream.release(self.state, slot, counted.counts)
        self.seconds += time.process_time() - started
        self.spent += int(release.spent.sum())
        self.ages += int(release.diagnostics["age"])
        true = counted.events
        self.course.append(squared_error(true, release) if true.any() else math.nan)
        if true.any():
            self.divergences.append(divergence(true, release))

    def measured(self, epsilon: float) -> InfiniteFigures:
        known = [error for error in self.course if not math.isnan(error)]
        return InfiniteFigures(
            float(np.mean(known)) if known else math.nan,
            float(np.mean(self.divergences)) if known else math.nan,
            self.ages / len(self.course),
            self.spent / to_units(epsilon),
            self.seconds,
        )


def squared_error(true: Counts, release: SlotRelease) -> float:
    """Mean over bins of the squared error of a share, in millionths.

    Args:
        true: counts with an event or more, int64, shape (d,).
        release: what was made of them.
    """
    return MILLION * float(((shares_of(release) - true / true.sum()) ** 2).mean())


def divergence(true: Counts, release: SlotRelease) -> float:
    """Kullback-Leibler divergence of the true distribution from the released one, in nats.

    It would have no bound where the release has a share of 0, so every bin of the release has half
    an event more, of as many as the slot has. Shapes as for `squared_error`.
    """
    events = int(true.sum())
    told = (events * shares_of(release) + 0.5) / (events + 0.5 * true.size)
    shares, told = true[true > 0] / events, told[true > 0]
    return float((shares * np.log(shares / told)).sum())


def shares_of(release: SlotRelease) -> Floats:
    """The released distribution, float64, shape (d,)."""
    assert release.shares is not None  # mechanisms for ever have one
    return release.shares
