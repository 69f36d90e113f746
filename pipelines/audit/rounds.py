"""How long an audit goes on, and which classes it looks at."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.protocol import Population
from streamveil.pipelines.audit.findings import asked_of

LEAST_RUNS = 4
# More classes are not audited one by one.
MOST_CLASSES = 4


class Rounds(Protocol):
    """What goes on in rounds, each of some runs."""

    def round(self, number: int, done: Callable[[int], object]) -> None:
        """Run every kind of world once for each class; `done` is called after each run."""


def check_extent(runs: int | None, seconds: float | None, confidence: float) -> None:
    """Raise ConfigurationError for an audit that would not end, or too soon."""
    if runs is None and seconds is None:
        raise ConfigurationError("an audit must end: give runs, or seconds")
    if runs is not None and runs < LEAST_RUNS:
        raise ConfigurationError(f"runs is {runs}: an audit needs {LEAST_RUNS} or more")
    if seconds is not None and seconds <= 0:
        raise ConfigurationError(f"seconds is {seconds:g}: give more than 0")
    if not 0 < confidence < 1:
        raise ConfigurationError(f"confidence is {confidence:g}: give a share such as 0.95")


def rounds(
    audit: Rounds, runs: int | None, seconds: float | None, done: Callable[[int], object]
) -> float:
    """Go on for so many rounds, or about so many seconds; returns how many it took."""
    started, number = time.monotonic(), 0
    while number != runs:
        audit.round(number, done)
        number += 1
        done(number)
        over = seconds is not None and time.monotonic() - started > seconds
        if over and number >= LEAST_RUNS:
            break
    return time.monotonic() - started


def watched(population: Population) -> list[int]:
    """Classes that canaries are of: all, or of many those that differ most and the largest."""
    if len(population.requirements) <= MOST_CLASSES:
        return list(range(len(population.requirements)))
    shares = population.requirements.shares
    return sorted({int(shares.argmin()), int(shares.argmax()), int(population.sizes.argmax())})


def left_out(population: Population, classes: Sequence[int]) -> Iterator[str]:
    """What no canary was of."""
    known = len(population.requirements)
    if len(classes) < known:
        told = "; ".join(asked_of(population.requirements[k]) for k in classes)
        yield (
            f"canaries are of {len(classes)} of {known:,} classes: {told}; of the others only "
            "charges are checked"
        )
