"""How an audit goes on, how long, and which classes it looks at."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.protocol import Population
from streamveil.pipelines.audit.clock import TimeOver, stopping_at
from streamveil.pipelines.audit.findings import Check, Findings, asked_of
from streamveil.pipelines.audit.guesses import Doubt
from streamveil.pipelines.audit.options import DEFAULT_CONFIDENCE, DEFAULT_RUNS
from streamveil.pipelines.audit.replay import Stage, replayed

LEAST_RUNS = 4
VERDICT_CONFIDENCE = 0.999
"""Of a verdict, at least: one audit in a thousand convicts a configuration that is honest."""
# Part of the seconds for replays; and until when the fewest of them may go on.
REPLAYING, REPLAYING_AT_MOST = 0.3, 0.7
# Part of the seconds that is left for bounds until it is known how long these take; and what they
# may take beside what they took of fewer guesses.
BOUNDS, LONGER = 0.1, 1.3
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

    def checks(self, doubt: Doubt) -> Iterator[Check]:
        """What was found; of `LEAST_RUNS` rounds or more."""


@dataclass(frozen=True)
class Extent:
    """How long an audit goes on, and how sure its bounds are.

    Raises ConfigurationError for one that would not end, or too soon.
    """

    runs: int | None = DEFAULT_RUNS
    """Rounds; None for as many as `seconds` allow."""
    seconds: float | None = None
    """To stop after, whatever is done by then."""
    seed: int = 0
    """The same one gives the same audit, but for where `seconds` stop it."""
    confidence: float = DEFAULT_CONFIDENCE
    """Probability, at least, that no bound is above the truth; a verdict has `VERDICT_CONFIDENCE`
    or, if it is larger, this one."""
    done: Callable[[int], object] = lambda _: None
    """Called after each round with how many are done, and after each run of it."""
    began: float | None = None
    """When the seconds began, by `time.monotonic`; None for when the audit does. Whatever was done
    since then, one half of them is left for the audit."""

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
    """Go on for so many rounds, or so many seconds.

    Args:
        audit: what goes on.
        name: of what is audited.
        extent: how long.
        own: whether canaries were put beside a real stream.
        notes: of what was not audited.
        too_short: as of `Findings`.
        stages: worlds to be replayed, if any: the first part of the seconds is theirs.
    """
    schedule = _Schedule.of(extent)
    found = None
    if stages is not None:
        with stopping_at(schedule.after(REPLAYING_AT_MOST)):
            found = replayed(stages, schedule.after(REPLAYING))
    verdict = max(extent.confidence, VERDICT_CONFIDENCE)
    doubt = Doubt(1 - extent.confidence, 1 - verdict)
    rounds, checks = _in_rounds(audit, extent, schedule, doubt)
    few = () if rounds >= LEAST_RUNS else (_too_few(rounds, extent),)
    return Findings(
        *(name, extent.confidence, verdict, audit.runs, audit.slots),
        time.monotonic() - schedule.began,
        checks,
        audit.overspent,
        own=own,
        notes=(*notes, *(_longer(*one) for one in too_short.items()), *few),
        too_short=too_short,
        replayed=found,
        rounds=rounds,
        asked_seconds=extent.seconds,
    )


@dataclass(frozen=True)
class _Schedule:
    """Moments by `time.monotonic`."""

    began: float
    end: float

    @classmethod
    def of(cls, extent: Extent) -> _Schedule:
        now, seconds = time.monotonic(), math.inf if extent.seconds is None else extent.seconds
        began = now if extent.began is None else extent.began
        return cls(began, max(began + seconds, now + seconds / 2))

    def after(self, part: float) -> float:
        """After such a part of the seconds."""
        return self.began + part * (self.end - self.began)


def _in_rounds(
    audit: Rounds, extent: Extent, schedule: _Schedule, doubt: Doubt
) -> tuple[int, tuple[Check, ...]]:
    """Make rounds while there is time for more, and for the bounds of their guesses.

    How long bounds take is measured when the fewest rounds are made: these are kept where no other
    run is made.
    """
    number, runs, until = 0, 0, schedule.after(1 - BOUNDS)
    checks: tuple[Check, ...] = ()
    try:
        while number != extent.runs:
            with stopping_at(until):
                audit.round(number, extent.done)
            number += 1
            extent.done(number)
            if math.isinf(schedule.end):
                continue
            if number == LEAST_RUNS:
                begun, runs = time.monotonic(), audit.runs
                checks = tuple(audit.checks(doubt))
                each = LONGER * (time.monotonic() - begun) / LEAST_RUNS
            if number >= LEAST_RUNS:
                until = schedule.end - each * (number + 2)
                if time.monotonic() > until:
                    break
    except TimeOver:
        pass
    if number >= LEAST_RUNS and audit.runs != runs:
        checks = tuple(audit.checks(doubt))
    return number, checks


def _too_few(rounds: int, extent: Extent) -> str:
    return (
        f"no guesses: {rounds} of {LEAST_RUNS} rounds were made when the time was over: give more "
        f"than --seconds={extent.seconds:g}"
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
