"""The table of a comparison of mechanisms with one budget for ever, as CSV or Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from streamveil.pipelines.evaluation.infinite import MEASURES, NO_DATA, InfiniteRun, is_finite
from streamveil.pipelines.evaluation.tables import (
    aligned,
    figures_of,
    means_and_errors,
    schema_of,
)

NOT_INFINITE = "not infinite"
ERROR = MEASURES[0].name


@dataclass(frozen=True)
class InfiniteRow:
    """All runs of one mechanism on one stream with one budget."""

    stream: str
    epsilon: float
    mechanism: str
    infinite: bool
    """Whether it goes on for ever."""
    slots: int
    bins: int
    seeds: int
    means: Mapping[str, float]
    """Mean over seeds of each of `MEASURES`, by name; seeds where it is NaN left out."""
    errors: Mapping[str, float]
    """Standard error of each mean, NaN with fewer than two seeds."""

    @property
    def case(self) -> tuple[str, float]:
        """What the row is compared on."""
        return self.stream, self.epsilon

    @property
    def label(self) -> str:
        """The mechanism, marked if it ends."""
        return self.mechanism if self.infinite else f"{self.mechanism} ({NOT_INFINITE})"


def rows_of(runs: Sequence[InfiniteRun]) -> list[InfiniteRow]:
    """Sum the runs up, by stream, budget and mechanism in their order."""
    groups: dict[tuple[str, float, str], list[InfiniteRun]] = {}
    for run in runs:
        groups.setdefault((*run.case, run.mechanism), []).append(run)
    return [
        InfiniteRow(
            *key,
            not is_finite(key[2]),
            group[0].slots,
            group[0].bins,
            len(group),
            *means_and_errors([run.measured for run in group], MEASURES),
        )
        for key, group in groups.items()
    ]


SCHEMA = schema_of(
    {
        "stream": pa.string(),
        "epsilon": pa.float64(),
        "mechanism": pa.string(),
        "infinite": pa.bool_(),
        "slots": pa.int64(),
        "bins": pa.int64(),
        "seeds": pa.int64(),
    },
    MEASURES,
)


def markdown(rows: Sequence[InfiniteRow]) -> str:
    """A table for people, aligned, with the figures rounded to what their noise allows."""
    titles = ["stream", "epsilon", "mechanism", *(measure.title for measure in MEASURES)]
    cells = [
        [row.stream, f"{row.epsilon:g}", row.label, *figures_of(row, MEASURES)] for row in rows
    ]
    return aligned(titles, cells, ("stream", "mechanism"))


def worthless(rows: Sequence[InfiniteRow]) -> dict[tuple[str, float], list[str]]:
    """By stream and budget, mechanisms whose error is not below that of what knows no data.

    It is not below where the difference is less than two standard errors of the mechanism. Cases
    without `NO_DATA` are left out.
    """
    found = {}
    for idle in rows:
        if idle.mechanism == NO_DATA:
            found[idle.case] = [
                row.mechanism
                for row in rows
                if row.case == idle.case
                and row.mechanism != NO_DATA
                and not _is_less(row, idle.means[ERROR])
            ]
    return found


def _is_less(row: InfiniteRow, error: float) -> bool:
    spread = row.errors[ERROR]
    return row.means[ERROR] + 2 * (0.0 if np.isnan(spread) else spread) < error


def advice(rows: Sequence[InfiniteRow]) -> str:
    """What to mind, for people: a line for each stream and budget where something is."""
    return "".join(
        f"{stream}, epsilon {epsilon:g}: no better than {NO_DATA}, which knows no data: "
        f"{', '.join(names)}\n"
        for (stream, epsilon), names in worthless(rows).items()
        if names
    )
