"""How an audit goes on, how long, and which classes it looks at."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.protocol import Population
from streamveil.pipelines.audit.findings import Check, Findings, asked_of

LEAST_RUNS = 4
# More classes are not audited one by one.
MOST_CLASSES = 4


class Rounds(Protocol):
    """What goes on in rounds, each of some runs."""

    runs: int
    """Made so far."""
    slots: int
    """Of all of these together."""
    overspent: float
    """Largest charge of a window in parts of its budget."""

    def round(self, number: int, done: Callable[[int], object]) -> None:
        """Run every kind of world once for each class; `done` is called after each run."""

    def checks(self, flakiness: float) -> Iterator[Check]:
        """What was found; a bound is above the truth with this probability at most."""


def check_extent(runs: int | None, seconds: float | None, confidence: float) -> None:
    """Raise ConfigurationError for an audit that would not end, or too soon."""
    if runs is None and seconds is None:
        raise ConfigurationError("an audit must end: give runs, or seconds")
    if runs is not None and runs < LEAST_RUNS:
        raise ConfigurationError(f"runs is {runs}: an audit needs {LEAST_RUNS} or more")
    if seconds is not None and not 0 < seconds < math.inf:
        raise ConfigurationError(f"seconds is {seconds:g}: give a number above 0")
    if not 0 < confidence < 1:
        raise ConfigurationError(f"confidence is {confidence:g}: give a share such as 0.95")


def found_by(
    audit: Rounds,
    name: str,
    runs: int | None,
    seconds: float | None,
    confidence: float,
    done: Callable[[int], object],
    *,
    own: bool,
    notes: Iterable[str],
) -> Findings:
    """Go on for so many rounds, or about so many seconds.

    Args:
        audit: what goes on.
        name: of what is audited.
        runs: rounds; None for as many as `seconds` allow.
        seconds: to stop after, about; `LEAST_RUNS` are made in any case.
        confidence: probability, at least, that no bound is above the truth.
        done: called after each round with how many are done, and after each run of it.
        own: whether canaries were put beside a real stream.
        notes: of what was not audited.
    """
    started, number = time.monotonic(), 0
    while number != runs:
        audit.round(number, done)
        number += 1
        done(number)
        over = seconds is not None and time.monotonic() - started > seconds
        if over and number >= LEAST_RUNS:
            break
    taken = time.monotonic() - started
    checks = tuple(audit.checks(1 - confidence))
    return Findings(
        name, confidence, audit.runs, audit.slots, taken, checks, audit.overspent, own, tuple(notes)
    )


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
