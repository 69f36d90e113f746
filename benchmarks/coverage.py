"""How often intervals of 90 % of the figures of a query set hold the truth, and errors of figures.

python benchmarks/coverage.py

Streams are in `_numbers.py`. Each statistic is asked alone, of one bin, with the whole budget, on
counts in memory. The truth is that of the numbers as they are, without bounds.
"""

from __future__ import annotations

import statistics
from typing import Any

from _measure import begin, measure_case, parser, save, table

EPSILONS = (0.1, 0.3, 1.0, 3.0)
FIGURES = ("count", "distinct", "sum", "mean", "variance", "stddev", "p50", "p95")
QUANTILES = (0.5, 0.95)
# Slots until something is known.
FIRST = 10


def main() -> None:
    from _numbers import STREAMS

    options = parser(__doc__)
    add = options.add_argument
    add("--seeds", type=int, nargs="+", default=[4, 5, 6, 7])
    add("--streams", nargs="*", choices=STREAMS, default=list(STREAMS), help="those to measure")
    add("--epsilons", type=float, nargs="+", default=list(EPSILONS))
    add("--slots", type=int, help="of each stream, at most (default: all that there are)")
    given = options.parse_args()
    about = "; ".join(f"{name}: {STREAMS[name].about}" for name in given.streams)
    columns = ["stream", "E", *FIGURES]
    runs = {
        (name, epsilon): [
            measure_case(
                "coverage.py",
                {"name": name, "epsilon": epsilon, "seed": seed, "slots": given.slots},
                1,
            ).answers[0]
            for seed in given.seeds
        ]
        for name in given.streams
        for epsilon in given.epsilons
    }
    seeds = f"{len(given.seeds)} seeds, from the {FIRST + 1}th slot on"
    held = table(
        f"Share of intervals of 90 % that hold the truth, {seeds}",
        columns,
        f"{about}. Budgets of flights and drawn-delays are for 7 days, others for 24 hours. Where "
        "noise hides nearly all, what is usual is as wrong in all slots of a run: see the next "
        "table.",
    )
    for asked, each in runs.items():
        held.add(*asked, *(statistics.fmean(one) for one in _by_figure("held", each)))
    tables = [held]
    if len(given.seeds) > 1:
        apart = table(f"Standard deviation of these shares between seeds, {seeds}", columns)
        for asked, each in runs.items():
            apart.add(*asked, *(statistics.stdev(one) for one in _by_figure("held", each)))
        tables.append(apart)
    errors = table(f"Root mean squared errors of figures of clipped numbers, {seeds}", columns)
    for asked, each in runs.items():
        squares = [[error**2 for error in one] for one in _by_figure("error", each)]
        errors.add(*asked, *(statistics.fmean(one) ** 0.5 for one in squares))
    tables.append(errors)
    kept = {"seeds": given.seeds, "streams": given.streams, "epsilons": given.epsilons}
    kept |= {"slots": given.slots} if given.slots else {}
    save(given.results, "coverage", kept, tables)


def _by_figure(which: str, runs: list[dict[str, Any]]) -> list[list[float]]:
    """Of each figure what all runs found of it."""
    return [[run[which][figure] for run in runs] for figure in FIGURES]


def run(name: str, epsilon: float, seed: int, slots: int | None) -> dict[str, Any]:
    """One stream with one budget: of each figure the share of intervals, and the error."""
    import numpy as np
    from _numbers import STREAMS

    import streamveil as sv
    from streamveil.mechanisms.core.records import Requirement
    from streamveil.mechanisms.queries import statistics as asked
    from streamveil.mechanisms.queries.simulated import answers_of, simulate_query_set

    stream = STREAMS[name]
    several = min(slots or stream.slots, stream.slots)
    numbers = list(stream.drawn(np.random.default_rng([seed, len(name)]), several))
    bounds = ("number", stream.lower, stream.upper)
    quantiles = asked.Quantiles("number", stream.edges, QUANTILES)
    kinds: list[list[Any]] = [
        *([asked.Count()], [asked.DistinctUsers()], [asked.Sum(*bounds)], [asked.Mean(*bounds)]),
        *([asked.Variance(*bounds), asked.StandardDeviation(*bounds)], [quantiles]),
    ]
    truth = {
        **dict.fromkeys(("count", "users"), len),
        **{"sum": np.sum, "mean": np.mean, "variance": np.var, "stddev": np.std},
        **{
            label: lambda one, share=share: np.quantile(one, share, method="inverted_cdf")
            for label, share in zip(quantiles.outputs, QUANTILES, strict=True)
        },
    }
    found: dict[str, Any] = {"held": {}, "error": {}}
    for alike in kinds:
        # What is released is the same for all that have the same parts.
        cells = [
            np.bincount(alike[0].steps(one), minlength=len(alike[0].weights)) @ alike[0].weights
            for one in numbers
        ]
        query = sv.Query("asked", statistic=alike[0])
        released = simulate_query_set(
            sv.QuerySet(base=sv.Slots.of("1h"), queries=[query]),
            {"asked": np.array(cells, np.int64)[:, None]},
            [Requirement(stream.window, epsilon)],
            [stream.people],
            np.random.default_rng([seed, 99]).bytes(32),
        ).releases["asked"]
        for statistic in alike:
            query = sv.Query("asked", statistic=statistic)
            results = list(answers_of(query, released))[FIRST:]
            for place, output in enumerate(statistic.outputs):
                low, high, value = (
                    np.array([getattr(one, end)[0, place] for one in results])
                    for end in ("low", "high", "values")
                )
                true = np.array([truth[output](one) for one in numbers[FIRST:]], np.float64)
                clipped = true
                if statistic.column and output not in quantiles.outputs:
                    inside = [np.clip(one, stream.lower, stream.upper) for one in numbers[FIRST:]]
                    clipped = np.array([truth[output](one) for one in inside])
                label = "distinct" if output == "users" else output
                found["held"][label] = float(((low <= true) & (true <= high)).mean())
                found["error"][label] = float(np.sqrt(np.nanmean((value - clipped) ** 2)))
    return found


if __name__ == "__main__":
    begin(main, run)
