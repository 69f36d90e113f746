"""What is asked of one stream of events: questions, and a portfolio of them.

All of it is public. Beam, files and clocks are not known here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

from streamveil.mechanisms.core.arguments import column_names, domain_of, refuse, slots_of, text_of
from streamveil.mechanisms.core.domains import Categories, Domain, check_value_columns
from streamveil.mechanisms.core.identity import Form, Identified
from streamveil.mechanisms.core.parameter_checks import finite_number, whole
from streamveil.mechanisms.core.records import (
    DISTINCT,
    KEEPS,
    UNIFORM,
    ConfigurationError,
    Slots,
    format_duration,
    format_time,
)
from streamveil.mechanisms.portfolio.conditions import Condition
from streamveil.mechanisms.portfolio.measures import Measure
from streamveil.mechanisms.portfolio.statistics import Count, Statistic, TopK
from streamveil.mechanisms.portfolio.trees import ALL, FLAT, Tree
from streamveil.mechanisms.registry import DEFAULT, parse

EVERYTHING = Categories((ALL,))
"""The one bin of a question without a domain."""

MOST_CELLS = 1 << 22
"""Of a question's histogram: more would not fit into the memory of a worker."""
LEAST_WEIGHT, MOST_WEIGHT = 1e-12, 1e12
"""Weights further apart are no floats any more where they meet squares of budgets."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


@dataclass(frozen=True)
class Question(Identified):
    """One statistic, by slot and bin.

    Raises ConfigurationError, with the question's name, for what does not fit.
    """

    IDENTITY = Form(
        "question",
        (
            *("name", "slots", "value", "domain", "statistic", "where", "tree"),
            *("mechanism", "max_contributions", "keep"),
        ),
        apart=("weight", "share", "times"),
    )

    name: str
    """Letters, digits, `-` and `_`, a letter or a digit first: files are called so."""
    slots: int = 1
    """Base slots in a slot of the question."""
    value: tuple[str, ...] = ()
    """Columns of the domain; none without one."""
    domain: Domain = EVERYTHING
    statistic: Statistic = field(default_factory=Count)
    where: tuple[Condition, ...] = ()
    """Which events are asked about: those that meet all conditions."""
    tree: Tree = FLAT
    """What is above the bins, and released as well."""
    times: tuple[int, ...] = ()
    """Base slots of each longer time of which figures are told as well, from those of its slots:
    see `times.py`. Each is a multiple of the one before, the first of `slots`."""
    mechanism: str = DEFAULT
    max_contributions: int = 1
    """Events of a user that count in a slot of the question."""
    keep: str = UNIFORM
    """Which of more: `uniform` or `distinct`."""
    weight: float = 1.0
    """How much a squared error of this question matters, in squares of what one event may add."""
    share: float | None = None
    """Of everybody's budget, above 0 and up to 1, as it is written; None to plan it."""

    def __post_init__(self) -> None:
        """Check all fields."""
        check_name(self.name)
        try:
            self._check()
        except ConfigurationError as error:
            raise ConfigurationError(f"question {self.name!r}: {error}") from None

    def _check(self) -> None:
        whole("slots", self.slots)
        whole("max_contributions", self.max_contributions)
        if self.keep not in KEEPS:
            raise ConfigurationError(f"keep {self.keep!r} is unknown: choose {' or '.join(KEEPS)}")
        object.__setattr__(self, "domain", domain_of(self.domain))
        if self.value:
            object.__setattr__(self, "value", column_names(self.value, "value"))
            if self.domain == EVERYTHING:
                raise ConfigurationError(
                    f"the domain of {', '.join(self.value)} is missing: give the public bins "
                    "(domain), or leave the value out to ask about all events"
                )
            check_value_columns(self.domain, self.value)
        elif self.domain != EVERYTHING:
            raise ConfigurationError(
                f"it has a domain of {self.domain.bins} bins, but no column that is in one of "
                "them: name the column (value)"
            )
        if isinstance(self.statistic, type) or not hasattr(self.statistic, "weights"):
            refuse("statistic", self.statistic, "give one, such as Count()")
        cells = self.domain.bins * self.statistic.weights.shape[1]
        if cells > MOST_CELLS:
            raise ConfigurationError(
                f"its histogram has {cells:,} cells, and at most {MOST_CELLS:,} can be counted: "
                "ask for fewer bins"
            )
        if not isinstance(self.tree, Tree):
            refuse("tree", self.tree, "give one, such as Tree.of(domain, levels)")
        if self.statistic.once and self.tree.levels and self.max_contributions > 1:
            raise ConfigurationError(
                "a user who is in two bins of a group would be two users of the group: leave "
                f"max_contributions={self.max_contributions} out, or the levels"
            )
        if self.keep == DISTINCT and self.statistic.column is not None:
            raise ConfigurationError(
                f"keep 'distinct' chooses by bins alone, and events differ in their "
                f"{self.statistic.column} as well: leave keep out, or ask for counts"
            )
        if isinstance(self.statistic, TopK):
            if self.tree.levels:
                raise ConfigurationError(
                    "the largest of bins and groups together would always be groups: leave the "
                    "levels out, or ask for them in a question of their own"
                )
            if self.statistic.k > self.domain.bins:
                raise ConfigurationError(
                    f"k is {self.statistic.k}, and there are {self.domain.bins} bins: give at most "
                    "as many"
                )
        self._check_times()
        conditions = tuple(self.where) if isinstance(self.where, Iterable) else (self.where,)
        for condition in conditions:
            if not isinstance(condition, Condition):
                refuse("where", condition, "give conditions, such as Condition('kind', ('car',))")
        object.__setattr__(self, "where", conditions)
        self.tree.labels(self.domain)
        self.tree.above(self.domain.bins)
        parse(text_of(self.mechanism, "mechanism", "give the name of a mechanism"))
        wanted = f"a number above 0, from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}"
        weight = _positive("weight", self.weight, LEAST_WEIGHT, MOST_WEIGHT, wanted)
        object.__setattr__(self, "weight", weight)
        if self.share is not None:
            wanted = "a number above 0 and at most 1, or none to plan it"
            object.__setattr__(self, "share", _positive("share", self.share, 0, 1, wanted))

    def _check_times(self) -> None:
        if not isinstance(self.times, Iterable) or isinstance(self.times, str):
            refuse("times", self.times, "list how many base slots each has")
        object.__setattr__(self, "times", tuple(whole("times", one) for one in self.times))
        below, called = self.slots, "the question's slot has"
        for longer in self.times:
            if longer <= below or longer % below:
                raise ConfigurationError(
                    f"times: {longer} base slots are not two or more times the {below} that "
                    f"{called}: give times from the shortest to the longest, each of whole ones of "
                    "the one before"
                )
            below, called = longer, "the time before has"

    @property
    def fixed_share(self) -> Fraction:
        """The share as it is written in decimals: 0 where it is to be planned.

        Ten times 0.1 is 1, which the sum of ten floats is not.
        """
        return Fraction(0) if self.share is None else Fraction(str(float(self.share)))

    @property
    def measure(self) -> Measure:
        """What an event adds to."""
        return Measure(self.statistic.weights, self.tree.measured(self.domain.bins))

    @property
    def sensitivity(self) -> int:
        """How much a user can change a slot's histogram in L1, added or removed."""
        return self.measure.sensitivity * self.max_contributions


@dataclass(frozen=True)
class Portfolio(Identified):
    """Questions that share everybody's budget.

    Raises ConfigurationError for an empty portfolio, a name twice, shares beyond 1 or without a
    rest for the questions that have none.
    """

    IDENTITY = Form("portfolio", ("base", "questions"))

    base: Slots
    """Base slots: windows of requirements are counted in these."""
    questions: tuple[Question, ...]

    def __post_init__(self) -> None:
        """Check the questions together."""
        object.__setattr__(self, "base", slots_of(self.base, "base"))
        if isinstance(self.questions, Question) or not isinstance(self.questions, Iterable):
            refuse("questions", self.questions, "give a list of questions")
        object.__setattr__(self, "questions", tuple(self.questions))
        if not self.questions:
            raise ConfigurationError("the portfolio has no questions: ask at least one")
        named: dict[str, str] = {}
        for question in self.questions:
            if not isinstance(question, Question):
                refuse("a question", question, "give a list of Question(name, ...)")
            other = named.setdefault(question.name.lower(), question.name)
            if other != question.name:
                raise ConfigurationError(
                    f"questions {other!r} and {question.name!r} differ in capitals only, which "
                    "some file systems do not tell apart: rename one"
                )
        if len(named) < len(self.questions):
            names = [question.name for question in self.questions]
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigurationError(f"two questions are called {twice!r}: rename one")
        self._check_shares()
        for question in self.questions:
            try:
                for slots in (question.slots, *question.times):
                    self.of_length(slots)
            except ConfigurationError as error:
                raise ConfigurationError(f"question {question.name!r}: {error}") from None

    def _check_shares(self) -> None:
        total = sum((question.fixed_share for question in self.questions), Fraction(0))
        if total > 1:
            raise ConfigurationError(
                f"the shares add up to {Decimal(total.numerator) / total.denominator}, more than "
                "the whole budget: make them 1 or less together"
            )
        unplanned = [question.name for question in self.questions if question.share is None]
        if total == 1 and unplanned:
            raise ConfigurationError(
                f"the shares add up to 1, which leaves nothing for question {unplanned[0]!r}: give "
                "it a share, and others less"
            )

    def __iter__(self) -> Iterator[Question]:
        return iter(self.questions)

    def slots_of(self, question: Question) -> Slots:
        """How time is cut for a question: its slot s is of base slots s * r to (s + 1) * r - 1."""
        return self.of_length(question.slots)

    def of_length(self, slots: int) -> Slots:
        """The same for slots or longer times of so many base slots."""
        return replace(self.base, length=self.base.length * slots)

    def check_range(self, first: int | None, last: int | None) -> None:
        """Refuse a range of base slots in which a question's first or last slot is not whole.

        Raises ConfigurationError.
        """
        for question in self.questions:
            for slot, verb in ((first, "start"), (None if last is None else last + 1, "end")):
                if slot is None or slot % question.slots == 0:
                    continue
                before = slot // question.slots * question.slots
                near, here, following = (
                    format_time(self.base.start(each))
                    for each in (before, slot, before + question.slots)
                )
                length = format_duration(self.slots_of(question).length)
                raise ConfigurationError(
                    f"question {question.name!r} has slots of {length}, and the range {verb}s at "
                    f"{here}, within one: {verb} at {near} or {following} (--{verb})"
                )


def check_name(name: Any) -> None:
    """Refuse a name of a question that no file can have. Raises ConfigurationError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"question name {name!r} cannot be that of a file: write at most 100 letters a to z, "
            "digits, '-' and '_', beginning with a letter or a digit"
        )


def _positive(name: str, value: Any, least: float, most: float, wanted: str) -> float:
    number = finite_number(value)
    if number is None or not (number > 0 and least <= number <= most):
        raise ConfigurationError(f"{name} is {value!r}: give {wanted}")
    return value if isinstance(value, (int, float)) else number
