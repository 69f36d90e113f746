"""How an audit goes on, and how long."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.wording import opt
from streamveil.pipelines.audit.audits import Audit
from streamveil.pipelines.audit.clock import TimeOver, stopping_at
from streamveil.pipelines.audit.findings import Check, Findings
from streamveil.pipelines.audit.guesses import Doubt
from streamveil.pipelines.audit.replay import Stage, replayed
from streamveil.pipelines.options.audit_options import DEFAULT_CONFIDENCE, DEFAULT_RUNS

LEAST_RUNS = 4
VERDICT_CONFIDENCE = 0.999
"""Smallest confidence of a verdict. One audit in 1,000 is wrong about a correct mechanism."""
# Part of the seconds for replays; and until when the fewest of them may go on.
REPLAYING, REPLAYING_AT_MOST = 0.3, 0.7
# Part of the seconds that is left for bounds until it is known how long these take; and what they
# may take beside what they took of fewer guesses.
BOUNDS, LONGER = 0.1, 1.3
# Of seconds that are proposed, over what the fewest rounds seem to need.
MARGIN = 1.2


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


def found_by(audit: Audit, extent: Extent) -> Findings:
    """Go on for so many rounds, or so many seconds: replays have the first part of these."""
    schedule = _Schedule.of(extent)
    found, stages = None, audit.stages()
    if stages is not None:
        with stopping_at(schedule.after(REPLAYING_AT_MOST)):
            found = replayed(_second(stages, audit.whole_runs), schedule.after(REPLAYING))
    verdict = max(extent.confidence, VERDICT_CONFIDENCE)
    doubt = Doubt(1 - extent.confidence, 1 - verdict)
    rounds, checks = _in_rounds(audit, extent, schedule, doubt)
    few = () if rounds >= LEAST_RUNS else (_too_few(rounds, audit, extent.seconds or 0.0),)
    return Findings(
        *(audit.name, extent.confidence, verdict, audit.runs, audit.slots),
        time.monotonic() - schedule.began,
        checks,
        audit.overspent,
        own=audit.own,
        notes=(*audit.notes, *(_longer(*one) for one in audit.too_short.items()), *few),
        too_short=audit.too_short,
        replayed=found,
        about=audit.about,
        rounds=rounds,
        asked_seconds=extent.seconds,
    )


def _second(stages: Iterator[Stage], make: Callable[[], Stage | None]) -> Iterator[Stage]:
    """Stages of a stream, and whole runs behind the first of them."""
    for number, stage in enumerate(stages):
        yield stage
        whole = make() if not number else None
        if whole is not None:
            yield whole


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
    audit: Audit, extent: Extent, schedule: _Schedule, doubt: Doubt
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


def _too_few(rounds: int, audit: Audit, seconds: float) -> str:
    """The seconds that the fewest rounds need, estimated from the runs so far (at least one)."""
    each_round = max(len(audit.worlds), 1)
    enough = MARGIN * LEAST_RUNS * each_round * seconds / max(audit.runs, 1)
    step = 10.0 ** max(math.floor(math.log10(enough)) - 1, 0)
    made = "" if audit.runs else ", since not even one run ended"
    return (
        f"no guesses: {rounds} of {LEAST_RUNS} rounds were made when the time was over: give "
        f"{opt.seconds}={math.ceil(enough / step) * step:.0f} or more{made}"
    )


def _longer(what: str, slots: int) -> str:
    return (
        f"no guesses about {what}: these need {slots:,} slots, and the input has fewer: give it as "
        f"many or more ({opt.end} may be later than the last event), or leave {opt.input} out for "
        f"worst cases"
    )
