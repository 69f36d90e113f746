"""Running mechanisms side by side on the same streams, in processes.

The unit of work is a task: one stream, one seed and one requirement (E, w). All mechanisms take
its slots at the same time, so that a stream is drawn once for them and never held in memory.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.accounting.window_filter import WindowFilter
from streamveil.mechanisms.core.records import ConfigurationError, check_shares
from streamveil.mechanisms.driver.stream import ReleaseStream
from streamveil.mechanisms.protocol import Population, SlotRelease
from streamveil.mechanisms.randomness.noise import KEY_BYTES, NoiseSource
from streamveil.mechanisms.registry import (
    LOCAL_MECHANISMS,
    MECHANISMS,
    local_mechanism,
    mechanism,
    parse,
)
from streamveil.pipelines.evaluation.local import LocalStream, is_local, local_users
from streamveil.pipelines.evaluation.measures import Measured, Meter
from streamveil.pipelines.evaluation.sources import Source
from streamveil.pipelines.evaluation.workers import all_results


@dataclass(frozen=True)
class Task:
    """What one process does at a time."""

    source: Source
    epsilon: float
    """Strictest budget E."""
    window: int
    """Longest window w, in slots."""
    seed: int
    mechanisms: tuple[str, ...]
    """Names with options, see `streamveil.mechanisms.protocol` and `local_mechanism`."""


@dataclass(frozen=True)
class Run:
    """One mechanism over one whole stream."""

    stream: str
    epsilon: float
    window: int
    mechanism: str
    seed: int
    users: int
    slots: int
    bins: int
    measured: Measured


def tasks(
    sources: Iterable[tuple[Source, Sequence[tuple[float, int]]]],
    mechanisms: Sequence[str],
    seeds: int,
) -> list[Task]:
    """Lay out a comparison and check all of it before anything runs.

    Args:
        sources: each with the (E, w) to run it under.
        mechanisms: names with options.
        seeds: how many streams and noises to draw of each.

    Raises:
        ConfigurationError: for an unknown mechanism or option, or a requirement out of range.
    """
    laid = []
    for source, asked in sources:
        for epsilon, window in asked:
            try:
                public = source.population(epsilon, window)
                WindowFilter(public.requirements)
                check_shares(public.requirements, public.sensitivity)
            except ConfigurationError as error:
                raise ConfigurationError(
                    f"stream {source.name} with E={epsilon:g} and w={window}: {error}"
                ) from None
            for name in mechanisms:
                parse(name, {**LOCAL_MECHANISMS, **MECHANISMS})  # a wrong name lists all of them
                if is_local(name):
                    local_mechanism(name, local_users(public))
                else:
                    mechanism(name, public)
        laid += [
            Task(source, epsilon, window, seed, tuple(mechanisms))
            for seed, (epsilon, window) in itertools.product(range(seeds), asked)
        ]
    return laid


def run(task: Task) -> list[Run]:
    """Do a task: a run of each mechanism. Raises BudgetExceeded when a filter refuses."""
    public = task.source.population(task.epsilon, task.window)
    key = noise_key(task.seed)
    lanes = [(_LocalLane if is_local(n) else _Lane)(n, public, key) for n in task.mechanisms]
    slots = 0
    stream = task.source.slots_of(task.epsilon, task.window, task.seed)
    for slots, (counts, events) in enumerate(stream, 1):
        counted = counts.sum(axis=0)
        for lane in lanes:
            started = time.process_time()
            release = lane.release(slots - 1, counts)
            lane.seconds += time.process_time() - started
            lane.meter.add(events, counted, release)
    return [
        Run(
            task.source.name,
            task.epsilon,
            task.window,
            name,
            task.seed,
            int(public.sizes.sum()),
            slots,
            public.bins,
            lane.measured(),
        )
        for name, lane in zip(task.mechanisms, lanes, strict=True)
    ]


class _Lane:
    """A mechanism on its way through a stream."""

    def __init__(self, name: str, public: Population, key: bytes) -> None:
        self.stream = ReleaseStream(mechanism(name, public), NoiseSource(key))
        self.state = self.stream.start()
        self.meter = Meter(public.requirements, int(public.sizes.sum()))
        self.seconds = 0.0

    def release(self, slot: int, counts: npt.NDArray[np.int64]) -> SlotRelease:
        self.state, release = self.stream.release(self.state, slot, counts)
        return release

    def measured(self) -> Measured:
        return self.meter.measured(self.seconds)


class _LocalLane:
    """The same with a mechanism that asks devices: users of a class spend at different times."""

    def __init__(self, name: str, public: Population, key: bytes) -> None:
        self.stream = LocalStream(name, public, key)
        self.meter = Meter(public.requirements, int(public.sizes.sum()))
        self.seconds = 0.0

    def release(self, slot: int, counts: npt.NDArray[np.int64]) -> SlotRelease:
        return self.stream.release(slot, counts)

    def measured(self) -> Measured:
        return replace(self.meter.measured(self.seconds), window_use=self.stream.window_use)


def noise_key(seed: int) -> bytes:
    """The noise key of a seed: known to everybody, so never for a release that protects anyone."""
    return hashlib.blake2b(b"streamveil evaluate %d" % seed, digest_size=KEY_BYTES).digest()


def run_all(
    todo: Sequence[Task], processes: int, done: Callable[[int], None] = lambda runs: None
) -> list[Run]:
    """Do all tasks; the runs come in the order of the tasks, whoever did them.

    Args:
        todo: the tasks.
        processes: how many at a time; with 1 they run in this process.
        done: called with the number of runs that were just finished.

    Raises:
        BudgetExceeded: when a filter refuses a release.
    """
    return all_results(run, todo, processes, done)
