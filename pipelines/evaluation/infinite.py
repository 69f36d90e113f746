"""Mechanisms with one budget for a whole stream side by side.

Cases are a stream and a budget. What is compared are released distributions with each slot's own,
of every event. Mechanisms with a horizon get the length of the stream, which nobody knows of a
stream without end: they are marked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.core.budgets import to_units
from streamveil.mechanisms.driver.stream import RunningStream
from streamveil.mechanisms.protocol import Mechanism, SlotRelease
from streamveil.mechanisms.registry import INFINITE_MECHANISMS, infinite_mechanism, parse
from streamveil.pipelines.evaluation.comparison_table import (
    Case,
    Column,
    ComparisonTable,
    Family,
    Measure,
    Row,
    Run,
    Task,
    noise_key,
)
from streamveil.pipelines.evaluation.drivers import Lane, drive
from streamveil.pipelines.evaluation.sources import Histograms, SlotCounts

NO_DATA = "constant"
"""What needs no data to err as it does."""
MILLION = 1e6


class Infinite(Family):
    """A case is a stream with its budget; no mechanism is advised, but some are worth nothing."""

    columns = (
        Column("stream", str, "stream"),
        Column(
            "epsilon", float, "epsilon", "epsilon {:g}", axis="budget of the whole stream, epsilon"
        ),
        Column("mechanism", str, "mechanism"),
        Column("infinite", bool, unless="not infinite"),
        *(Column("slots", int), Column("bins", int), Column("seeds", int)),
    )
    measures = (
        Measure(
            "mse_millionths",
            "MSE x 1e6",
            "mean squared error of a bin's share, in millionths",
            "millionths",
        ),
        Measure(
            "kl", "KL divergence", "of the true distribution from the released one, in nats", "nats"
        ),
        Measure("age", "age", "mean slots since the one that a release is measured on", "slots"),
        Measure("spent", "budget spent", "share of the budget spent at the end: at most 1"),
        Measure("seconds", "seconds", "CPU seconds that the mechanism took", "CPU"),
    )
    log = ("mse_millionths", "kl")
    wide = ("mse_millionths",)
    undrawn = ("seconds",)
    limits = {"spent": 1.0}
    title = "Lifetime budgets compared"
    template = "infinite.html.jinja"
    over_slots = True

    def check(
        self, source: Histograms, setting: tuple[Any, ...], mechanisms: Sequence[str]
    ) -> None:
        """Raise ConfigurationError for an unknown mechanism or option, or a budget out of range."""
        for name in mechanisms:
            _made(name, source, *setting)

    def run(self, task: Task) -> list[Run]:
        """Do a task: a run of each mechanism. Raises BudgetExceeded when a filter refuses."""
        source, (epsilon,), key = task.source, task.setting, noise_key(task.seed)
        meters = [ShareMeter() for _ in task.mechanisms]
        lanes = [
            Lane(RunningStream(_made(name, source, epsilon), key), meter)
            for name, meter in zip(task.mechanisms, meters, strict=True)
        ]
        # All users are alike.
        drive(
            (
                SlotCounts(counts.sum(axis=0, keepdims=True), e)
                for counts, e in source.slots(task.seed)
            ),
            lanes,
        )
        slots, bins = source.shape
        return [
            Run(
                {
                    **{"stream": source.name, "epsilon": epsilon, "mechanism": name},
                    **{"infinite": not is_finite(name), "slots": slots, "bins": bins},
                },
                task.seed,
                {**meter.figures(epsilon), "seconds": lane.seconds},
                np.array(meter.course),
            )
            for name, lane, meter in zip(task.mechanisms, lanes, meters, strict=True)
        ]

    def advice(self, comparison: ComparisonTable) -> list[str]:
        """What errs no less than what knows no data: a line for each case where something does."""
        return [
            f"{self.label(case)}: no better than {NO_DATA}, which knows no data: {', '.join(names)}"
            for case, names in worthless(comparison.rows).items()
            if names
        ]

    def findings(self, comparison: ComparisonTable) -> Mapping[str, Any]:
        """What is worth nothing, and what ends."""
        rows, labels = comparison.rows, comparison.labels
        return {
            "worthless": {labels[case]: names for case, names in worthless(rows).items()},
            "no_data": NO_DATA,
            "ending": [
                name for name in dict.fromkeys(r.mechanism for r in rows) if is_finite(name)
            ],
            "budgets": [
                f"{epsilon:g}" for epsilon in dict.fromkeys(r.facts["epsilon"] for r in rows)
            ],
        }


def is_finite(name: str) -> bool:
    """Whether a mechanism, given with its options, ends at a horizon."""
    return INFINITE_MECHANISMS[name.split(":")[0]].finite


def _made(name: str, source: Histograms, epsilon: float) -> Mechanism[object]:
    """A mechanism for a stream; one with a horizon has it where the stream ends."""
    slots, bins = source.shape
    _, options = parse(name, INFINITE_MECHANISMS)
    if is_finite(name) and "slots" not in options:
        name = f"{name}:slots={slots}"
    return infinite_mechanism(name, bins, epsilon, sensitivity=source.sensitivity)


class ShareMeter:
    """Adds up the figures of one run slot by slot."""

    def __init__(self) -> None:
        self._spent = self._ages = 0
        self._divergences: list[float] = []
        self.course: list[float] = []
        """Mean squared error of each slot, in millionths; NaN without events."""

    def add(self, true: Integers, counted: Integers, release: SlotRelease) -> None:
        """Add the next slot: see :class:`drivers.Meter`."""
        self._spent += int(release.spent.sum())
        self._ages += int(release.diagnostics["age"])
        self.course.append(squared_error(true, release) if true.any() else math.nan)
        if true.any():
            self._divergences.append(divergence(true, release))

    def figures(self, epsilon: float) -> dict[str, float]:
        """All measures but the seconds of all slots so far; NaN where no slot has an event."""
        known = [error for error in self.course if not math.isnan(error)]
        return {
            "mse_millionths": float(np.mean(known)) if known else math.nan,
            "kl": float(np.mean(self._divergences)) if known else math.nan,
            "age": self._ages / len(self.course),
            "spent": self._spent / to_units(epsilon),
        }


def squared_error(true: Integers, release: SlotRelease) -> float:
    """Mean over bins of the squared error of a share, in millionths.

    Args:
        true: counts with an event or more, int64, shape (d,).
        release: what was made of them.
    """
    return MILLION * float(((shares_of(release) - true / true.sum()) ** 2).mean())


def divergence(true: Integers, release: SlotRelease) -> float:
    """Kullback-Leibler divergence of the true distribution from the released one, in nats.

    It would have no bound where the release has a share of 0, so every bin of the release has half
    an event more, of as many as the slot has. Shapes as for `squared_error`.
    """
    events = int(true.sum())
    estimated = (events * shares_of(release) + 0.5) / (events + 0.5 * true.size)
    shares, estimated = true[true > 0] / events, estimated[true > 0]
    return float((shares * np.log(shares / estimated)).sum())


def shares_of(release: SlotRelease) -> Floats:
    """The released distribution, float64, shape (d,)."""
    assert release.shares is not None  # mechanisms forever have one
    return release.shares


def worthless(rows: Sequence[Row]) -> dict[Case, list[str]]:
    """By case, mechanisms whose error is not below that of what knows no data.

    It is not below where the difference is less than two standard errors of the mechanism. Cases
    without `NO_DATA` are left out.
    """
    error = Infinite.measures[0].name
    return {
        idle.case: [
            row.mechanism
            for row in rows
            if row.case == idle.case
            and row.mechanism != NO_DATA
            and not row.means[error] + 2 * np.nan_to_num(row.errors[error]) < idle.means[error]
        ]
        for idle in rows
        if idle.mechanism == NO_DATA
    }
