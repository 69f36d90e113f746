"""Statistics under per-record privacy side by side: how far each mechanism is from the truth.

A draw is data made anew with a seed; each mechanism releases its statistic of it some times, with
fresh noise. The mean of all runs is told beside the trimmed mean that papers print: the trimmed
one leaves out the worst and the best fifth of the runs, however bad they are.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.per_record.protocol import Bounds, Floats
from streamveil.mechanisms.randomness.noise import KEY_BYTES, NoiseSource
from streamveil.mechanisms.registry import PER_RECORD_MECHANISMS, statistic
from streamveil.pipelines.evaluation.measures import Measure

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


MEASURES = (
    Measure("trimmed", "trimmed error %", "mean error without the best and the worst 20 % of runs"),
    Measure("error", "error %", "mean error of all runs"),
    Measure("failed", "runs > 100 %", "share of runs with an error above 100 %, in percent"),
    Measure("seconds", "seconds", "CPU seconds of one release"),
)


class Budget(Protocol):
    """A budget function with its bounds."""

    @property
    def bounds(self) -> Bounds:
        """Public bounds of values and budgets."""

    def __call__(self, values: Floats) -> Floats:
        """Budgets of values."""


@dataclass(frozen=True)
class Data:
    """Values of records and their budgets."""

    name: str
    draw: Callable[[int], Floats]
    """Values of the records by seed; the same for every seed where they are real."""
    budget: Budget
    about: str
    """What it is, for people."""


@dataclass(frozen=True)
class PerRecordRun:
    """A mechanism on one draw, released again and again."""

    data: str
    statistic: str
    mechanism: str
    seed: int
    records: int
    errors: npt.NDArray[np.float64]
    """In percent, one for each run: of the true value, or, for max, the share of the records that
    lie above the estimate."""
    seconds: float
    """CPU seconds of a run."""

    @property
    def figures(self) -> dict[str, float]:
        """`MEASURES` by name."""
        return {
            "trimmed": trimmed_mean(self.errors),
            "error": float(self.errors.mean()),
            "failed": 100.0 * float((self.errors > FAILED).mean()),
            "seconds": self.seconds,
        }


def trimmed_mean(errors: npt.NDArray[np.float64]) -> float:
    """Mean without the least and the greatest fifth."""
    left_out = int(TRIMMED * len(errors))
    return float(np.sort(errors)[left_out : len(errors) - left_out].mean())


def mechanisms_of(kind: str, names: Sequence[str]) -> list[str]:
    """Those of the mechanisms, given with options, that compute a statistic; all without any."""
    known = PER_RECORD_MECHANISMS[kind]
    return [n for n in names if n.split(":")[0] in known] if names else list(known)


def run_data(
    data: Data, kinds: Sequence[str], names: Sequence[str], seed: int, runs: int
) -> Iterator[PerRecordRun]:
    """Release each statistic of one draw by each mechanism so many times.

    Raises ConfigurationError for a wrong name, option or bounds.
    """
    values = data.draw(seed)
    budgets = data.budget(values)
    bounds = data.budget.bounds
    cells = np.zeros(len(values), np.int64)
    usable = np.sort(values[bounds.usable(values, budgets)])
    for kind in kinds:
        truth = TRUTHS[kind](usable)
        for name in mechanisms_of(kind, names):
            made = statistic(kind, name, bounds, budget=data.budget)
            (part,) = made.tally(values, budgets, cells, 1)
            source = NoiseSource(evaluation_key(seed), f"{data.name} {kind} {name}")
            started = time.process_time()
            estimates = np.array(
                [made.release(part, source.slot(run, b"")).estimate for run in range(runs)]
            )
            seconds = (time.process_time() - started) / runs
            errors = _rank_errors(estimates, usable) if kind == "max" else _errors(estimates, truth)
            yield PerRecordRun(data.name, kind, name, seed, len(usable), errors, seconds)


def _errors(estimates: Floats, truth: float) -> Floats:
    return 100.0 * np.abs(estimates - truth) / truth if truth else np.full(len(estimates), np.nan)


def _rank_errors(estimates: Floats, ordered: Floats) -> Floats:
    above = len(ordered) - np.searchsorted(ordered, estimates, side="right")
    return 100.0 * above / max(len(ordered), 1)


def evaluation_key(seed: int) -> bytes:
    """The noise key of a seed: known to everybody, so never for a release that protects anyone."""
    return hashlib.blake2b(b"per-record evaluate %d" % seed, digest_size=KEY_BYTES).digest()


@dataclass(frozen=True)
class PerRecordResult:
    """All runs of one mechanism on one statistic of one data set."""

    data: str
    statistic: str
    mechanism: str
    records: int
    """Records that count, of the first draw."""
    seeds: int
    runs: int
    """With every seed."""
    means: Mapping[str, float]
    """Mean over seeds of each of `MEASURES`, by name."""
    errors: Mapping[str, float]
    """Standard error of each mean, NaN with fewer than two seeds."""

    @property
    def case(self) -> tuple[str, str]:
        """What the row is compared on."""
        return self.data, self.statistic


def results_of(runs: Sequence[PerRecordRun]) -> list[PerRecordResult]:
    """Sum the runs up, in their order."""
    groups: dict[tuple[str, str, str], list[PerRecordRun]] = {}
    for run in runs:
        groups.setdefault((run.data, run.statistic, run.mechanism), []).append(run)
    return [
        PerRecordResult(
            *key, group[0].records, len(group), len(group[0].errors), *_means_and_errors(group)
        )
        for key, group in groups.items()
    ]


def _means_and_errors(group: Sequence[PerRecordRun]) -> tuple[dict[str, float], dict[str, float]]:
    figures = [run.figures for run in group]
    means, errors = {}, {}
    for name, *_ in MEASURES:
        values = np.array([one[name] for one in figures])
        means[name] = float(values.mean())
        several = len(values) > 1
        errors[name] = float(values.std(ddof=1)) / math.sqrt(len(values)) if several else math.nan
    return means, errors
