"""A query set on events: how far its answers are from the truth, with planned and with even shares.

Cases are the figures of each query, and all queries together by their weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.engine.stream.unprotected_queries import ExactQuery
from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.core.budgets import Requirements, Units
from streamveil.mechanisms.queries.answers import Answer
from streamveil.mechanisms.queries.bounds import set_aside
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.query_stream import QueryStream
from streamveil.mechanisms.queries.simulated import (
    QuerySimulation,
    answers_of,
    simulate_query_set,
    times_of,
)
from streamveil.mechanisms.randomness.noise import NoiseSource
from streamveil.pipelines.evaluation.choose import FAIR_COVERAGE, NOMINAL_COVERAGE
from streamveil.pipelines.evaluation.comparison_table import (
    Column,
    ComparisonTable,
    Family,
    Measure,
    Run,
    Task,
    noise_key,
)

PLANNED, EVEN = "planned", "even"
ALL, TOGETHER = "all queries", "together"
_OF_FIGURES = ("error", "coverage", "answered")


@dataclass(frozen=True, eq=False)
class AskedEvents:
    """Counts of real events for each query, the same for each seed; only the noise differs."""

    name: str
    query_set: QuerySet
    requirements: Requirements
    sizes: Integers
    """Users of each class, shape (K,)."""
    adjacency: str
    planned: Units
    """Of each query and class at first, shape (Q, K): they are planned again from answers."""
    first_slot: int
    """Base slot with which all begins."""
    path: str
    """File of arrays: for each query by its number `counts0` and `figures0`, as `ExactQuery`
    has them, and `longer0_1` of its second longer time. Processes read it for themselves."""
    about: str = ""
    guessed: int | None = None
    """The class whose size is only a guess: see :class:`Population`."""

    def units(self, shares: str) -> Units:
        """Of each query and class, with shares of a kind."""
        if shares == PLANNED:
            return self.planned
        number = len(self.query_set.queries)
        left = self.requirements.budgets - set_aside(self.query_set, self.requirements, self.sizes)
        return np.tile(left // number, (number, 1))


class Asked(Family):
    """A case is a figure of a query; what is compared are kinds of shares."""

    columns = (
        Column("stream", str, "events"),
        Column("query", str, "query"),
        Column("figure", str, "figure"),
        Column("mechanism", str, "shares"),
        *(Column("users", int), Column("slots", int), Column("bins", int), Column("seeds", int)),
    )
    measures: tuple[Measure, ...] = (
        Measure(
            "weighted",
            "weighted error",
            "weight times the mean squared error for kept events, which planned shares minimize",
            "events²",
        ),
        Measure(
            "error",
            "error",
            "root mean squared difference of released and true figure, in its own unit",
            "own unit",
        ),
        Measure("coverage", "coverage", "share of true figures within their intervals of 90%"),
        Measure("answered", "answered", "share of figures that are not empty"),
        Measure("share", "share", "of each user's budget"),
        Measure(
            "window_use", "window use", "largest share of a budget spent in a window: at most 1"
        ),
    )
    log = ("weighted", "error")
    wide = ("weighted",)
    limits = {"window_use": 1.0, "coverage": NOMINAL_COVERAGE}
    title = "A query set on events"
    template = "queries.html.jinja"

    def check(self, source: AskedEvents, setting: tuple[Any, ...], kinds: Sequence[str]) -> None:
        """Raise ConfigurationError for what a query or its mechanism cannot do."""
        for kind in kinds:
            QueryStream(
                *(source.query_set, source.requirements, source.sizes, source.units(kind)),
                NoiseSource(noise_key(0)),
                adjacency=source.adjacency,
                guessed=source.guessed,
            )

    def run(self, task: Task) -> list[Run]:
        """Do a task: answer all queries with each kind of shares.

        Raises BudgetExceeded when a filter refuses.
        """
        source: AskedEvents = task.source
        with np.load(source.path) as file:
            exact = {
                query.name: ExactQuery(
                    file[f"counts{q}"],
                    file[f"figures{q}"],
                    tuple(file[f"longer{q}_{t}"] for t in range(len(query.times))),
                )
                for q, query in enumerate(source.query_set)
            }
        by_kind = (runs_of(source, exact, kind, task.seed) for kind in task.mechanisms)
        return [run for same in zip(*by_kind, strict=True) for run in same]

    def advice(self, comparison: ComparisonTable) -> list[str]:
        """What planning the shares is worth, and which intervals hold too few true figures."""
        low = [
            f"{self.label(row.case)}, {row.mechanism} shares: coverage is "
            f"{row.means['coverage']:.2g} (nominal {NOMINAL_COVERAGE:g}): intervals are too narrow"
            ", or many events are dropped, which true values include"
            for row in comparison.rows
            if row.means["coverage"] < FAIR_COVERAGE
        ]
        return [*self._worth(comparison), *low]

    def _worth(self, comparison: ComparisonTable) -> list[str]:
        found = {
            row.mechanism: row.means["weighted"] for row in comparison.rows if row.case[1] == ALL
        }
        if EVEN not in found:
            return []
        return [
            f"weighted error of all queries: {found[PLANNED] / found[EVEN]:.2f} of that of even "
            "shares"
        ]

    def findings(self, comparison: ComparisonTable) -> Mapping[str, Any]:
        """How many queries there are, and what planning is worth."""
        names = {row.case[1] for row in comparison.rows} - {ALL}
        return {"queries": len(names), "worth": self.advice(comparison)}


FoundScores = tuple[str, dict[str, float]]
"""The name of an additional case of a query, and its scores."""


def runs_of(
    source: AskedEvents,
    exact: Mapping[str, ExactQuery],
    kind: str,
    seed: int,
    more: Callable[[Query, Sequence[Floats], Floats], Iterable[FoundScores]] | None = None,
) -> list[Run]:
    """Answer all queries with a kind of shares, and score the answers.

    Args:
        source: the queries and their events.
        exact: the exact answers, by the name of the query.
        kind: kind of shares.
        seed: seed of the noise.
        more: returns additional cases of a query. Its arguments are the values and the ends of
            their intervals, each of shape (slots, nodes, outputs), and the exact values.
    """
    done = simulate_query_set(
        source.query_set,
        {name: one.counts for name, one in exact.items()},
        *(source.requirements, source.sizes, noise_key(seed)),
        shares=None if kind == PLANNED else source.units(kind),
        adjacency=source.adjacency,
        guessed=source.guessed,
        first_slot=source.first_slot,
    )
    use = max(
        float(spent) / asked.epsilon
        for entry in done.entries
        for asked, spent in zip(entry.classes, entry.spent_in_window.tolist(), strict=True)
    )
    facts = {"stream": source.name, "mechanism": kind, "users": int(source.sizes.sum())}
    parts = (done.last_shares / source.requirements.budgets).min(axis=1).tolist()
    runs, total = [], 0.0
    for query, share in zip(source.query_set, parts, strict=True):
        found = exact[query.name]
        weighted = query.weight * _squares(query, found.counts, done.counts(query.name))
        total += weighted
        own = {"query": query.name, "bins": query.domain.bins}
        common = {"weighted": weighted, "share": share, "window_use": math.nan}
        for figure, slots, scores in _scores(source, query, done, found):
            case = {**facts, **own, "slots": slots, "figure": figure}
            runs.append(Run(case, seed, {**common, **scores}))
        if more is not None:
            asked = done.releases[query.name][: len(found.figures)]
            values = _values_of(list(answers_of(query, asked)))
            unknown = {**dict.fromkeys(_OF_FIGURES, math.nan), "window_use": math.nan}
            for name, scores in more(query, values, found.figures):
                of_run = {**facts, **own, "slots": len(asked), "figure": name}
                unweighed = {"weighted": math.nan, "share": share, **unknown}
                runs.append(Run(of_run, seed, {**unweighed, **scores}))
    own = {
        "query": ALL,
        "figure": TOGETHER,
        "slots": sum(len(one.figures) for one in exact.values()),
        "bins": sum(query.domain.bins for query in source.query_set),
    }
    unknown = dict.fromkeys(_OF_FIGURES, math.nan)
    figures = {"weighted": total, **unknown, "share": sum(parts), "window_use": use}
    return [*runs, Run({**facts, **own}, seed, figures)]


def _squares(query: Query, counts: Integers, released: Integers) -> float:
    """Mean squared error of cells, in squares of what one event may add.

    Args:
        query: what was asked.
        counts: of each slot, class and cell.
        released: of each slot and cell.
    """
    apart = (released - counts.sum(axis=1)) / query.measure.sensitivity
    return float((apart**2).mean())


def _scores(
    source: AskedEvents, query: Query, done: QuerySimulation, exact: ExactQuery
) -> Iterator[tuple[str, int, dict[str, float]]]:
    """Of each figure, by slot and by longer time: name, how many there are, and its scores."""
    # The last releases may be of nothing asked.
    asked = done.releases[query.name][: len(exact.figures)]
    answers = list(answers_of(query, asked))
    for figure, scores in _scores_of(query, answers, exact.figures).items():
        yield figure, len(answers), scores
    first = query.cut.of(source.first_slot)
    longer = times_of(query, source.query_set, asked, first)
    for (slots, results), true in zip(longer.items(), exact.longer, strict=True):
        length = source.query_set.of_length(slots).text
        if results:
            for figure, scores in _scores_of(query, results, true[: len(results)]).items():
                yield f"{figure} by {length}", len(results), scores


def _scores_of(
    query: Query, answers: Sequence[Answer], true: Floats
) -> dict[str, dict[str, float]]:
    """How far figures are from what is true, shape (slots, nodes, outputs), by figure."""
    return scores_of(query, _values_of(answers), true)


def _values_of(answers: Sequence[Answer]) -> list[Floats]:
    """Values and the ends of their intervals, each of shape (slots, nodes, outputs)."""
    names = ("values", "low", "high")
    return [np.array([getattr(answer, name) for answer in answers]) for name in names]


def scores_of(query: Query, results: Sequence[Floats], true: Floats) -> dict[str, dict[str, float]]:
    """The scores of a query, by result.

    Args:
        query: the query.
        results: values and the ends of their intervals, each of shape (slots, nodes, outputs).
        true: exact values, of the same shape.
    """
    values, low, high = results
    found = {}
    for o, name in enumerate(query.statistic.outputs):
        known_at, apart = np.isfinite(values[..., o]), values[..., o] - true[..., o]
        ends = low[..., o], true[..., o], high[..., o]
        known = np.isfinite(ends).all(axis=0)
        inside = (ends[0] <= ends[1]) & (ends[1] <= ends[2])
        found[name] = {
            "error": math.sqrt(_mean(apart[np.isfinite(apart)] ** 2)),
            "coverage": _mean(inside[known]),
            "answered": _mean(known_at),
        }
    return found


def _mean(values: npt.NDArray[Any]) -> float:
    """NaN of nothing."""
    return float(values.mean()) if values.size else math.nan
