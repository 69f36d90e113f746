"""Streams to compare mechanisms for ever on: shares that stay, drift or jump.

The reference whose figures stand beside ours in `benchmarks/infinite.py` names its streams and no
more: exponents and steps of the drift are such that `constant` and `doubling` err about as they do
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]
Random = np.random.Generator

BINS = 100
JUMP = 200
"""Slots between jumps."""
# Standard deviation of a count around the mean of all, in roots of that mean.
_SPREAD = 0.62


@dataclass(frozen=True)
class InfiniteStream:
    """A stream that has a name."""

    draw: Callable[[Random, int, int], Iterator[Counts]]
    """Makes counts without end, int64, shape (d,), of random numbers, events a slot and bins."""
    events: int
    """Events of a slot unless others are asked for."""
    about: str


def infinite_stream(
    name: str, slots: int, random: Random, events: int | None = None, bins: int = BINS
) -> Iterator[Counts]:
    """Counts of one slot after the other, int64, shape (d,).

    Args:
        name: a key of `INFINITE_STREAMS`.
        slots: how many.
        random: where they are drawn from.
        events: in a slot, about; those of the stream if None.
        bins: number of bins d.
    """
    stream = INFINITE_STREAMS[name]
    drawn = stream.draw(random, stream.events if events is None else events, bins)
    for _ in range(slots):
        yield next(drawn)


def _even(random: Random, events: int, bins: int) -> Iterator[Counts]:
    mean = events / bins
    while True:
        drawn = random.normal(mean, _SPREAD * mean**0.5, bins)
        yield np.maximum(np.rint(drawn), 0).astype(np.int64)


def _drifting(exponent: float, step: float) -> Callable[[Random, int, int], Iterator[Counts]]:
    def draw(random: Random, events: int, bins: int) -> Iterator[Counts]:
        logs = _zipf(exponent, bins)
        while True:
            logs = logs + random.normal(0, step, bins)
            yield _drawn(random, events, logs)

    return draw


def _jumping(random: Random, events: int, bins: int) -> Iterator[Counts]:
    logs = _zipf(1.1, bins)
    while True:
        random.shuffle(logs)
        for _ in range(JUMP):
            yield _drawn(random, events, logs)


def _zipf(exponent: float, bins: int) -> npt.NDArray[np.float64]:
    """Logarithms of rank ** -exponent."""
    return -exponent * np.log(np.arange(1, bins + 1))


def _drawn(random: Random, events: int, logs: npt.NDArray[np.float64]) -> Counts:
    shares = np.exp(logs)
    return random.multinomial(events, shares / shares.sum())


INFINITE_STREAMS: Mapping[str, InfiniteStream] = {
    "even": InfiniteStream(_even, 10_000, "about equal counts"),
    "drifting": InfiniteStream(_drifting(0.95, 0.036), 10_000, "Zipf, drifting"),
    "jumping": InfiniteStream(_jumping, 10_000, f"Zipf, shuffled every {JUMP} slots"),
    "drifting-many": InfiniteStream(_drifting(1.2, 0.034), 1_000_000, "Zipf, drifting"),
}
