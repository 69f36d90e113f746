"""What a portfolio was answered, ready to be drawn: figures by slot, and budgets by base slot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.mechanisms.core.budgets import Requirements, to_epsilon
from streamveil.mechanisms.core.records import ADD_REMOVE, Requirement, Slots, format_duration
from streamveil.mechanisms.portfolio.bounds import set_aside
from streamveil.mechanisms.portfolio.questions import Portfolio, Question
from streamveil.mechanisms.portfolio.windows import sensitivity_of
from streamveil.pipelines.report import day_edges

if TYPE_CHECKING:
    from streamveil.engine.stream.query_plan import QueryPlan


Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class QuestionFigures:
    """The answers to a question, as arrays of shape (slots, bins, figures); NaN for none."""

    question: Question
    slots: Slots
    """How time is cut for it."""
    edges: npt.NDArray[np.datetime64]
    """Start of every slot and the end of the last one, shape (slots + 1,)."""
    values: Floats
    low: Floats
    """Lower ends of the intervals of 90 %."""
    high: Floats
    """Upper ends."""
    true: Floats | None = None
    """What is true, of all events: for demonstrations on public data only."""

    @classmethod
    def of(
        cls, question: Question, slots: Slots, table: pa.Table, true: Floats | None = None
    ) -> QuestionFigures:
        """Of the table of a question, as `WriteAnswers` writes it: its rows of this length."""
        own = pc.equal(table["length"], format_duration(slots.length))
        table = table.filter(own)
        shape = (-1, len(question.tree.labels(question.domain)), len(question.statistic.outputs))
        values, low, high = (
            table[name].to_numpy().astype(np.float64).reshape(shape)
            for name in ("value", "low", "high")
        )
        step = shape[1] * shape[2]
        starts, ends = (
            table[name].to_numpy()[::step].astype("datetime64[us]") for name in ("start", "end")
        )
        edges = day_edges(np.append(starts, ends[-1:]), slots)
        return cls(question, slots, edges, values, low, high, true)

    @property
    def labels(self) -> tuple[str, ...]:
        """Of the bins, then of the groups above them."""
        return self.question.tree.labels(self.question.domain)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the figures, such as p50 and p90."""
        return self.question.statistic.outputs

    @property
    def counts(self) -> bool:
        """Whether events or users are counted."""
        return self.question.statistic.column is None

    @property
    def from_zero(self) -> bool:
        """Whether charts of it begin at 0: counts, and how far numbers spread."""
        return self.counts or self.question.statistic.name in ("sum", "variance", "stddev")

    @cached_property
    def best(self) -> list[int]:
        """Bins, the largest counts first; of other figures those with the narrowest intervals."""
        if not len(self.values):
            return list(range(self.values.shape[1]))
        with np.errstate(invalid="ignore"):
            if self.counts:
                key = -np.nansum(self.values[..., 0], axis=0)
            else:
                key = np.nan_to_num(self.high - self.low, nan=np.inf)[..., 0].mean(axis=0)
        return [int(j) for j in np.argsort(key, kind="stable")]

    @property
    def covered(self) -> float:
        """Share of all intervals that hold what is true; NaN where it is not known."""
        if self.true is None:
            return math.nan
        known = np.isfinite(self.low) & np.isfinite(self.high) & np.isfinite(self.true)
        held = (self.low <= self.true) & (self.true <= self.high)
        return float(held[known].mean()) if known.any() else math.nan

    @property
    def error(self) -> Floats:
        """Median distance from what is true, by figure; NaN where it is not known."""
        if self.true is None:
            return np.full(len(self.outputs), np.nan)
        away = np.abs(self.values - self.true).reshape(-1, len(self.outputs))
        return np.array([np.median(one[np.isfinite(one)]) for one in away.T])


class BudgetUse(NamedTuple):
    """What a class of users spent, in the window that ends with every base slot."""

    requirement: Requirement
    users: int
    by_question: Floats
    """Share of the budget, shape (questions, base slots)."""
    aside: float = 0.0
    """Share that a look at bounds cost, in every window."""

    @property
    def together(self) -> Floats:
        """Of all questions, and of what they looked for, shape (base slots,)."""
        total: Floats = self.by_question.sum(axis=0) + self.aside
        return total


@dataclass(frozen=True, eq=False)
class AnswersReport:
    """Everything that a page of a portfolio shows. Losses are raw, all else is public."""

    portfolio: Portfolio
    figures: Mapping[str, QuestionFigures]
    """By the name of the question."""
    shares: Mapping[str, float]
    """Of everybody's budget."""
    ledger: pa.Table
    """As `WritePortfolioLedger` writes it; no columns where none was kept."""
    lost: Mapping[str, Any]
    """`figures` of the run's `QuestionsSummary`."""
    longer: Mapping[str, Sequence[QuestionFigures]] = field(default_factory=dict)
    """By the name of the question, one for each of its longer times."""

    def bounds_of(self, question: Question) -> Sequence[float] | None:
        """Those that the run chose for a question, as far as its counters say so."""
        return self.lost["questions"].get(question.name, {}).get("bounds")

    @classmethod
    def of(
        cls,
        portfolio: Portfolio,
        tables: Mapping[str, pa.Table],
        shares: Mapping[str, float],
        ledger: pa.Table,
        lost: Mapping[str, Any],
        true: Mapping[str, Floats] | None = None,
    ) -> AnswersReport:
        """Of the tables of a run, by the name of the question.

        Args:
            portfolio: what was asked.
            tables: the answers.
            shares: as the fields, as are `ledger` and `lost`.
            ledger: see there.
            lost: see there.
            true: what is true, as of :class:`QuestionFigures`, by question; for demonstrations.
        """
        true = true or {}
        figures, longer = {}, {}
        for question in portfolio:
            name, table = question.name, tables[question.name]
            slots = portfolio.slots_of(question)
            figures[name] = QuestionFigures.of(question, slots, table, true.get(name))
            longer[name] = [
                QuestionFigures.of(question, portfolio.of_length(one), table)
                for one in question.times
            ]
        return cls(portfolio, figures, shares, ledger, lost, longer)

    @cached_property
    def base_edges(self) -> npt.NDArray[np.datetime64]:
        """Start of every base slot that an answer is of, and the end of the last."""
        base = self.portfolio.base
        first, last = self._range
        starts = base.origin + base.length * np.arange(first, last + 2)
        return day_edges(starts.astype("datetime64[us]"), base)

    @cached_property
    def _range(self) -> tuple[int, int]:
        first, last = (self._column(f"{end}_base_slot") for end in ("first", "last"))
        return int(first.min()), int(last.max())

    def _column(self, name: str) -> npt.NDArray[Any]:
        column: npt.NDArray[Any] = self.ledger[name].to_numpy()
        return column

    @cached_property
    def largest_use(self) -> dict[Requirement, float]:
        """Largest share of its budget that each class spent in a window, the largest first."""
        if not self.ledger.num_rows:
            return {}
        classes = self.ledger.group_by(["window", "epsilon"], use_threads=False)
        most = classes.aggregate([("spent_in_window", "max")])
        found = {
            Requirement(int(row["window"]), float(row["epsilon"])): row["spent_in_window_max"]
            / row["epsilon"]
            for row in most.to_pylist()
        }
        return dict(sorted(found.items(), key=lambda one: (-one[1], one[0])))

    def use_of(self, requirement: Requirement) -> BudgetUse:
        """What the class spent. What base slots s to e cost counts in all windows that meet them.

        Raises KeyError for a class that the ledger has not.
        """
        window, epsilon = requirement.window, requirement.epsilon
        own = (self._column("window") == window) & (self._column("epsilon") == epsilon)
        if not own.any():
            raise KeyError(requirement)
        first, last = self._range
        number = {question.name: q for q, question in enumerate(self.portfolio)}
        asked = [number[name] for name in self.ledger["question"].filter(pa.array(own)).to_pylist()]
        changes = np.zeros((len(number), last - first + 2))
        begins = self._column("first_base_slot")[own] - first
        over = np.minimum(self._column("last_base_slot")[own] - first + window, last - first + 1)
        spent = self._column("spent")[own] / epsilon
        np.add.at(changes, (asked, begins), spent)
        np.subtract.at(changes, (asked, over), spent)
        users = int(self._column("users")[own][0])
        aside = self._aside[requirement]
        return BudgetUse(requirement, users, np.cumsum(changes, axis=1)[:, :-1], aside)

    @cached_property
    def _aside(self) -> dict[Requirement, float]:
        """Share of its budget that each class paid for looks at bounds, which are no answers."""
        classes = self.ledger.select(["window", "epsilon", "users"]).group_by(
            ["window", "epsilon", "users"], use_threads=False
        )
        rows = classes.aggregate([]).to_pylist()
        asked = Requirements(Requirement(row["window"], row["epsilon"]) for row in rows)
        sizes = np.array([row["users"] for row in rows], np.int64)
        paid = to_epsilon(set_aside(self.portfolio, asked, sizes))
        return {one: float(cost / one.epsilon) for one, cost in zip(asked, paid, strict=True)}


def shares_of(plan: QueryPlan) -> dict[str, float]:
    """Share of everybody's budget, by question."""
    parts = (plan.units / plan.registry.classes.budgets).min(axis=1)
    names = (question.name for question in plan.portfolio)
    return dict(zip(names, parts.tolist(), strict=True))


def meets_parts(question: Question) -> bool:
    """Whether a window may hold a part of a slot, which takes noise for twice as many events."""
    return sensitivity_of(question, ADD_REMOVE) > question.sensitivity
