"""How an audit goes on, how long, and which classes it looks at."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol

from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.protocol import Population
from streamveil.pipelines.audit.findings import Check, Findings, asked_of
from streamveil.pipelines.audit.options import DEFAULT_CONFIDENCE, DEFAULT_RUNS
from streamveil.pipelines.audit.replay import Stage, replayed

LEAST_RUNS = 4
VERDICT_CONFIDENCE = 0.999
"""Of a verdict, at least: one audit in a thousand convicts a configuration that is honest."""
# Part of the seconds for replays.
REPLAYING = 0.3
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


@dataclass(frozen=True)
class Extent:
    """How long an audit goes on, and how sure its bounds are.

    Raises ConfigurationError for one that would not end, or too soon.
    """

    runs: int | None = DEFAULT_RUNS
    """Rounds; None for as many as `seconds` allow."""
    seconds: float | None = None
    """To stop after, about; `LEAST_RUNS` are made in any case."""
    seed: int = 0
    """The same one gives the same audit, but for where `seconds` stop it."""
    confidence: float = DEFAULT_CONFIDENCE
    """Probability, at least, that no bound is above the truth; a verdict has `VERDICT_CONFIDENCE`
    or, if it is larger, this one."""
    done: Callable[[int], object] = lambda _: None
    """Called after each round with how many are done, and after each run of it."""

    def __post_init__(self) -> None:
        """Check all of it."""
        if self.runs is None and self.seconds is None:
            raise ConfigurationError("an audit must end: give runs, or seconds")
        if self.runs is not None and self.runs < LEAST_RUNS:
            raise ConfigurationError(f"runs is {self.runs}: an audit needs {LEAST_RUNS} or more")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise ConfigurationError(f"seconds is {self.seconds:g}: give a number above 0")
        if not 0 < self.confidence < 1:
            raise ConfigurationError(
                f"confidence is {self.confidence:g}: give a share such as 0.95"
            )


USUAL = Extent()
"""Where nothing else is said."""


def found_by(
    audit: Rounds,
    name: str,
    extent: Extent,
    *,
    own: bool,
    notes: Iterable[str],
    too_short: Mapping[str, int] = MappingProxyType({}),
    stages: Iterable[Stage] | None = None,
) -> Findings:
    """Go on for so many rounds, or about so many seconds.

    Args:
        audit: what goes on.
        name: of what is audited.
        extent: how long.
        own: whether canaries were put beside a real stream.
        notes: of what was not audited.
        too_short: as of `Findings`.
        stages: worlds to be replayed, if any: a part of the seconds is theirs.
    """
    started, number = time.monotonic(), 0
    found = None
    if stages is not None:
        until = math.inf if extent.seconds is None else started + REPLAYING * extent.seconds
        found = replayed(stages, until)
    while number != extent.runs:
        audit.round(number, extent.done)
        number += 1
        extent.done(number)
        over = extent.seconds is not None and time.monotonic() - started > extent.seconds
        if over and number >= LEAST_RUNS:
            break
    taken = time.monotonic() - started
    verdict = max(extent.confidence, VERDICT_CONFIDENCE)
    checks = tuple(
        replace(shown, surely=sure.times)
        for shown, sure in zip(
            audit.checks(1 - extent.confidence), audit.checks(1 - verdict), strict=True
        )
    )
    return Findings(
        *(name, extent.confidence, verdict, audit.runs, audit.slots, taken, checks),
        audit.overspent,
        own=own,
        notes=(*notes, *(_longer(*one) for one in too_short.items())),
        too_short=too_short,
        replayed=found,
    )


def _longer(what: str, slots: int) -> str:
    return (
        f"no guesses about {what}: these need {slots:,} slots, and the input has fewer: give it as "
        "many or more (--end may be later than the last event), or leave --input out for worst "
        "cases"
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
