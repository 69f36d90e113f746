"""What an audit found: claims, lower bounds and what it could have seen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from streamveil.mechanisms.core.records import Lifetime, Requirement
from streamveil.pipelines.audit.replay import Replayed

CHARGE, SHARE, WINDOW, LIFE = "charge", "share", "window", "life"
REPORT, BUDGET = "report", "budget"
"""What a bound is of: what slots were charged, what a query may cost in a window, all that a
window may cost, or all slots there will ever be; what reports of a device were charged; or the
budget of a record."""
TOGETHER = "all queries"


@dataclass(frozen=True)
class About:
    """The texts with which a kind of audit describes its findings."""

    attack: str
    """Who guessed what from which data. The page continues with the number of runs."""
    whose: str
    """Heading of the first column of the table."""
    unit: str
    """What runs are made of."""
    charged: str
    """What the sum of charges is taken over."""
    meanings: tuple[tuple[str, str], ...]
    """Notes about parts and claims."""


@dataclass(frozen=True)
class Check:
    """One bound: of a class, a part of what is released, and a claim."""

    query: str
    """Name of the query, or `TOGETHER`; empty without queries."""
    requirement: Requirement
    """Of the class of the canaries."""
    part: str
    """What the canaries met: publications, looks, bins, windows, lives or what is left out."""
    claim: str
    """`CHARGE`, `SHARE`, `WINDOW` or `LIFE`."""
    claimed: float
    """Epsilon of the claim: of one user, in the middle of all guesses."""
    guesses: int
    right: int
    times: float
    """So many times the claim is lost at least, at the confidence of the findings."""
    reached: float
    """The same as a point estimate, without any confidence."""
    visible: float
    """The smallest violation that would have been seen, four times in five; infinite for none."""
    subject: str = ""
    """Whose loss it is, where that is not a user's with the requirement."""
    surely: float = 0.0
    """As `times`, at the confidence of a verdict (`Findings.verdict_confidence`)."""

    @property
    def violated(self) -> bool:
        """Whether more is lost than was claimed, at the confidence of a verdict."""
        return self.surely > 1.0

    @property
    def epsilon(self) -> float:
        """Lower bound of a user's loss."""
        return self.times * self.claimed


@dataclass(frozen=True)
class Findings:
    """All bounds of an audit; together they are wrong with probability 1 - confidence at most.

    One honest configuration in twenty has a bound above its claim at a confidence of .95. So a
    verdict has a confidence of its own.
    """

    mechanism: str
    confidence: float
    """Of the lower bounds that are shown."""
    verdict_confidence: float
    """Of the verdict, and so of the exit code."""
    runs: int
    slots: int
    """Released, in all runs."""
    seconds: float
    checks: tuple[Check, ...]
    overspent: float
    """Largest charge of any window, or life, in parts of its budget: exact, above 1 a violation."""
    own: bool = False
    """Whether canaries were put beside counts of the user's own."""
    notes: tuple[str, ...] = ()
    """What was not looked at."""
    too_short: Mapping[str, int] = field(default_factory=dict)
    """Of what there are no guesses, as the user's own stream is too short, and slots it needs."""
    replayed: Replayed | None = None
    """What replays found; None where they are not made."""
    about: About | None = None
    """How it is described; None for one stream or many queries about it."""
    rounds: int = 0
    """Of guesses, that came to an end."""
    asked_seconds: float | None = None
    """After which it had to stop; None for an audit that made so many rounds."""

    @property
    def violated(self) -> bool:
        """Whether anything loses more than it claims."""
        broken = self.replayed is not None and bool(self.replayed.violation)
        return broken or self.overspent > 1.0 or any(one.violated for one in self.checks)

    @property
    def covered(self) -> bool:
        """Whether anything was guessed, or a violation found: else the verdict would be empty.

        Replays take the noise on trust, so without guesses a part of every claim is not tested.
        """
        return self.violated or any(one.guesses for one in self.checks)

    @property
    def worst(self) -> Check:
        """The check that proves most, beside what it claims, where there were guesses."""
        return max(self.checks, key=lambda one: one.times)

    @property
    def coverage(self) -> str:
        """What was looked at by guesses, and in which time."""
        unit = "slot" if self.about is None else self.about.unit
        of = "" if self.asked_seconds is None else f" of {self.asked_seconds:g}"
        whole = "1 whole round" if self.rounds == 1 else f"{self.rounds:,} whole rounds"
        return (
            f"guesses: {whole}, {self.runs:,} runs of {self.slots:,} {unit}s, in "
            f"{self.seconds:.0f}{of} seconds; charges of a {self.span} reached "
            f"{self.overspent:.1%} of its budget"
        )

    @property
    def visible(self) -> float:
        """The smallest violation of all noise that would have been seen by one of the checks.

        As if what was claimed were kept: see :func:`bounds.visible_from`.
        """
        return min((one.visible for one in self.checks), default=float("inf"))

    @property
    def span(self) -> str:
        """What has a budget: a window, a life, or a record."""
        if self.about is not None:
            return self.about.charged
        for_ever = any(isinstance(one.requirement, Lifetime) for one in self.checks)
        return "life" if for_ever else "window"

    @property
    def sentence(self) -> str:
        """The verdict in one line."""
        if self.overspent > 1.0:
            return (
                f"VIOLATION: {self.mechanism} charged {_above(self.overspent)} the budget of a "
                f"{self.span}"
            )
        needed = max(self.too_short.values(), default=0)
        if any(one.violated for one in self.checks):
            worst = max(self.checks, key=lambda one: one.surely)
            sure = f"at {self.verdict_confidence:.6g} confidence"
            of = _CLAIMED[worst.claim]
            return (
                f"VIOLATION: {self.mechanism} tells at least {worst.surely:.3g} times {of} of a "
                f"{worst.subject or f'user with {asked_of(worst.requirement)}'}, {sure}"
                f"{_of_query(worst)}: {worst.right:,} of {worst.guesses:,} guesses right"
            )
        if self.replayed is not None and self.replayed.violation:
            return f"VIOLATION: {self.mechanism}, by {self.replayed.sentence}"
        if not self.covered:
            replayed = self.replayed is not None and self.replayed.slots
            by_replay = ", though replay found no violation" if replayed else ""
            return f"nothing was tested in {self.mechanism}{by_replay}: give it more time"
        worst = self.worst
        beyond = ", which is too little confidence for a verdict" if worst.times > 1 else ""
        return (
            f"no violation found in {self.mechanism}: it tells at least {worst.times:.3g} times "
            f"what it claims, at {self.confidence:.6g} confidence{beyond}; "
            f"{seen_from(self.visible, needed)}"
        )


def _above(times: float) -> str:
    """How often a budget was charged, which is too often."""
    return f"{times:.3g} times" if times > 1.005 else "more than"


def asked_of(requirement: Requirement) -> str:
    """A requirement as people read it."""
    if isinstance(requirement, Lifetime):
        return f"epsilon = {requirement.epsilon:g} forever"
    return f"w = {requirement.window}, epsilon = {requirement.epsilon:g}"


def named(check: Check) -> str:
    """Whose loss a bound is of."""
    asked = check.subject or asked_of(check.requirement)
    return f"{check.query}: {asked}" if check.query else asked


def seen_from(visible: float, slots: int = 0) -> str:
    """Which violation would have been seen, of an input that needs so many slots if any."""
    if math.isinf(visible):
        longer = f", and an input of {slots:,} slots or more" if slots else ""
        return f"no violation would have been seen: give it more time{longer}"
    return f"a violation of {visible:.2f} times would have been seen, four times in five"


_CLAIMED = {
    CHARGE: "what its slots were charged",
    SHARE: "the query's share of a window's budget",
    WINDOW: "a window's budget",
    REPORT: "what its reports were charged",
    BUDGET: "the budget",
    LIFE: "the budget of a life",
}


def _of_query(check: Check) -> str:
    if check.query in ("", TOGETHER):
        return f", by {check.query}" if check.query else ""
    return f", by query {check.query!r}"
