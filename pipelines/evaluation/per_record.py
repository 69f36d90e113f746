"""Statistics under per-record privacy side by side: how far each mechanism is from the truth.

Cases are data and a statistic of them. A draw is data made anew with a seed; each mechanism
releases its statistic of it some times, with fresh noise. The mean of all runs is reported with the
trimmed mean that papers print: the trimmed one leaves out the worst and the best fifth of the runs,
however bad they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.per_record.budget_functions import BudgetFunction
from streamveil.mechanisms.randomness.noise import NoiseSource
from streamveil.mechanisms.registry import PER_RECORD_MECHANISMS, statistic
from streamveil.pipelines.evaluation.comparison_table import (
    Column,
    ComparisonTable,
    Family,
    Measure,
    Run,
    Task,
    noise_key,
)

TRIMMED = 0.2
"""Share of the runs that the trimmed mean leaves out on either side."""
FAILED = 100.0
"""An error in percent above which a release tells nothing."""

TRUTHS: Mapping[str, Callable[[Floats], float]] = {
    "count": lambda values: float(len(values)),
    "sum": lambda values: float(values.sum()),
    "max": lambda values: float(values.max(initial=0.0)),
    "distinct": lambda values: float(len(np.unique(values))),
}


@dataclass(frozen=True)
class Data:
    """Values of records and their budgets, to release each statistic of them again and again."""

    name: str
    draw: Callable[[int], Floats]
    """Values of the records by seed; the same for every seed where they are real."""
    budget: BudgetFunction
    about: str
    """What it is, for people."""
    runs: int
    """Releases of each draw."""


class PerRecord(Family):
    """A case is data and a statistic."""

    columns = (
        Column("data", str, "data"),
        Column("statistic", str, "statistic"),
        Column("mechanism", str, "mechanism"),
        *(Column("records", int), Column("seeds", int), Column("runs", int)),
    )
    measures = (
        Measure(
            "trimmed",
            "trimmed error %",
            "mean error without the best and the worst 20% of runs",
            "%",
        ),
        Measure("error", "error %", "mean error of all runs", "%"),
        Measure(
            "failed", "runs > 100 %", "share of runs with an error above 100%, in percent", "%"
        ),
        Measure("seconds", "seconds", "CPU seconds of one release", "CPU"),
    )
    log = wide = ("trimmed", "error")
    undrawn = ("failed", "seconds")
    title = "Per-record privacy compared"
    template = "per_record.html.jinja"

    def check(self, source: Data, setting: tuple[Any, ...], mechanisms: Sequence[str]) -> None:
        """Raise ConfigurationError for a wrong option or bounds."""
        (kind,) = setting
        for name in mechanisms_of(kind, mechanisms):
            statistic(kind, name, source.budget.bounds, budget=source.budget)

    def run(self, task: Task) -> list[Run]:
        """Do a task: one draw, released so many times by each mechanism of the statistic."""
        data, (kind,) = task.source, task.setting
        values = data.draw(task.seed)
        budgets = data.budget(values)
        usable = np.sort(values[data.budget.bounds.usable(values, budgets)])
        found = []
        for name in mechanisms_of(kind, task.mechanisms):
            made = statistic(kind, name, data.budget.bounds, budget=data.budget)
            (part,) = made.tally(values, budgets, np.zeros(len(values), np.int64), 1)
            source = NoiseSource(noise_key(task.seed, "per-record"), f"{data.name} {kind} {name}")
            started = time.process_time()
            estimates = np.array(
                [made.release(part, source.slot(run, b"")).estimate for run in range(data.runs)]
            )
            seconds = (time.process_time() - started) / data.runs
            facts = {"data": data.name, "statistic": kind, "mechanism": name}
            sizes = {"records": len(usable), "runs": data.runs}
            errors = errors_of(kind, estimates, usable)
            figures = {**figures_of(errors), "seconds": seconds}
            found.append(Run({**facts, **sizes}, task.seed, figures, errors))
        return found

    def findings(self, comparison: ComparisonTable) -> Mapping[str, Any]:
        """How often each draw was released."""
        return {"runs": comparison.rows[0].facts["runs"]}


def mechanisms_of(kind: str, names: Sequence[str]) -> list[str]:
    """Those of the mechanisms, given with options, that compute a statistic; all without any."""
    known = PER_RECORD_MECHANISMS[kind]
    return [n for n in names if n.split(":")[0] in known] if names else list(known)


def errors_of(kind: str, estimates: Floats, values: Floats) -> Floats:
    """Errors in percent: of the true value, or, for max, the share of the records above.

    Args:
        kind: the statistic.
        estimates: of it, shape (runs,).
        values: that count, ascending, shape (n,).
    """
    if kind == "max":
        above = len(values) - np.searchsorted(values, estimates, side="right")
        return 100.0 * above / max(len(values), 1)
    truth = TRUTHS[kind](values)
    return 100.0 * np.abs(estimates - truth) / truth if truth else np.full(len(estimates), np.nan)


def figures_of(errors: Floats) -> dict[str, float]:
    """All measures but the seconds, of the errors of all runs, shape (runs,)."""
    return {
        "trimmed": trimmed_mean(errors),
        "error": float(errors.mean()),
        "failed": 100.0 * float((errors > FAILED).mean()),
    }


def trimmed_mean(errors: Floats) -> float:
    """Mean without the least and the greatest fifth."""
    left_out = int(TRIMMED * len(errors))
    return float(np.sort(errors)[left_out : len(errors) - left_out].mean())
