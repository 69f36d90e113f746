"""Hourly delays of flights: errors of their means and 95th percentiles beside PipelineDP's.

python benchmarks/delays.py [--pipeline_dp_python=PATH]

PipelineDP may live in an environment of its own: it needs pipeline-dp alone.
"""

from __future__ import annotations

import itertools
import math
import statistics
from pathlib import Path
from typing import Any

from _measure import add_pipeline_dp, begin, data_folder, measure_case, parser, save, table

# Requirement, public bounds and edges.
WINDOW, EPSILON, LOWER, UPPER = 24, 1.0, -30.0, 180.0
EDGES = (-30, -5, 5, 15, 30, 60, 120, 180)
MECHANISMS = ("adaptive", "adaptive:cycle=auto")
FIGURES = {
    "mean": {"statistic": "mean", "bounds": [LOWER, UPPER]},
    "p95": {"statistic": "quantiles", "edges": list(EDGES), "quantiles": [0.95]},
}
MUST = 5


def main() -> None:
    options = parser(__doc__)
    add = options.add_argument
    add("--seeds", type=int, nargs="+", default=[4, 5, 6, 7, 8])
    add("--days", type=int, default=28)
    add_pipeline_dp(options)
    given = options.parse_args()
    with data_folder(given.folder) as folder:
        found = delays(given, folder)
    kept = {name: getattr(given, name) for name in ("seeds", "days")}
    save(given.results, "delays", kept, [found])


def delays(given, folder: Path):
    """Squared errors of both."""
    found = table(
        f"Squared error of hourly delays of flights, {given.days} days, minutes squared",
        [
            *("figure", "mechanism", "ours", "PipelineDP", "its within the bounds", "times ours"),
            *("least of the seeds", "must", "variance of the truth", "by"),
        ],
        f"All flights, {LOWER:g} to {UPPER:g} minutes, one of an aircraft in an hour, "
        f"E = {EPSILON:g} over {WINDOW} hours for everybody, {len(given.seeds)} seeds. PipelineDP: "
        "one aggregation over all hours with public partitions and Laplace noise, whose budget is "
        "E / w for each hour; times ours: of its results cut to the bounds. The truth has the "
        "numbers cut to the bounds, of hours with flights; its variance is the error of whoever "
        "tells its mean in every hour. By formula: without the package its mean is that of a sum "
        "around the middle and a count, and there are no quantiles.",
    )
    for name, mechanism in itertools.product(FIGURES, MECHANISMS):
        runs = [_run(name, mechanism, given, seed, folder) for seed in given.seeds]
        ours, theirs, cut, spread = (
            statistics.fmean(run[key] for run in runs)
            for key in ("ours", "theirs", "cut", "variance")
        )
        least = min(run["cut"] / run["ours"] for run in runs)
        found.add(
            *(name, mechanism, ours, theirs, cut, cut / ours, least, MUST, spread, runs[0]["by"]),
        )
    return found


def _run(name: str, mechanism: str, given, seed: int, folder: Path) -> dict[str, Any]:
    case = {"days": given.days, "seed": seed}
    events, figures = folder / "events.npz", folder / "figures.npy"
    measure_case("delays.py", {"kind": "events", **case, "path": str(events)}, 1)
    asked = {"path": str(events), "output": str(figures), "lower": LOWER, "upper": UPPER}
    asked |= {"percentile": None if name == "mean" else 95, "epsilon": EPSILON / WINDOW}
    figures.unlink(missing_ok=True)
    try:
        measured = measure_case(
            "_pipeline_dp_hours.py", asked, 1, given.pipeline_dp_python
        ).answers[0]
        by = f"pipeline-dp {measured['pipeline-dp']}"
    except RuntimeError as error:
        if "No module named 'pipeline_dp'" not in str(error):
            raise
        by = "formula"
    case |= {"name": name, "mechanism": mechanism, "theirs": str(figures) if by[0] == "p" else None}
    return {**measure_case("delays.py", {"kind": "errors", **case}, 1).answers[0], "by": by}


def run_events(days: int, seed: int, path: str) -> dict[str, Any]:
    """Write the events that count: users, hours and numbers, and how many hours there are."""
    import numpy as np

    alike = _alike("mean", MECHANISMS[0], days, seed)
    users, hours, numbers = _events(alike, seed)
    np.savez(path, users=users, hours=hours, numbers=numbers, length=alike.length)
    return {"events": len(users)}


def run_errors(
    name: str, mechanism: str, days: int, seed: int, theirs: str | None
) -> dict[str, Any]:
    """Mean squared errors of an hourly figure; `theirs` is a file of PipelineDP's, if any."""
    import numpy as np

    from streamveil.mechanisms.core.budgets import Requirements
    from streamveil.mechanisms.queries.simulated import answers_of, simulate_query_set
    from streamveil.pipelines.evaluation.comparison_table import noise_key

    alike = _alike(name, mechanism, days, seed)
    (query,) = alike.query_set.queries
    _, hours, numbers = _events(alike, seed)
    by_hour = [numbers[hours == hour] for hour in range(alike.length)]
    known = np.array([len(one) > 0 for one in by_hour])
    true = np.array([_figure(name, one) for one in by_hour])[known]
    counts, requirements = alike.counts(query, seed), Requirements(alike.requirements)
    done = simulate_query_set(
        *(alike.query_set, {"q": counts}, requirements, alike.sizes, noise_key(seed)),
        shares=requirements.budgets[None],
    )
    ours = np.array([one.values[0, 0] for one in answers_of(query, done.releases["q"])])
    # Where nothing is known yet, the middle is as good as anything.
    ours = np.where(np.isfinite(ours), ours, (LOWER + UPPER) / 2)[known]
    estimates = np.load(theirs) if theirs else _by_formula(name, hours, numbers, alike.length, seed)
    other = estimates[known]
    return {
        "ours": float(((ours - true) ** 2).mean()),
        "theirs": float(((other - true) ** 2).mean()),
        "cut": float(((np.clip(other, LOWER, UPPER) - true) ** 2).mean()),
        "variance": float(true.var()),
    }


def _alike(name: str, mechanism: str, days: int, seed: int) -> Any:
    """The flights with one query, everybody with the same requirement."""
    from dataclasses import replace

    import numpy as np
    from _query_sets import stream

    from streamveil.mechanisms.core.records import Requirement

    flights = stream("flights", seed, days)
    hourly = {"name": "q", "of": "dep_delay", "mechanism": mechanism, **FIGURES[name]}
    return replace(
        flights,
        class_of=np.zeros_like(flights.class_of),
        requirements=(Requirement(WINDOW, EPSILON),),
        asked={"slot": "1h", "queries": [hourly]},
    )


def _events(alike: Any, seed: int) -> tuple[Any, Any, Any]:
    """Users, hours and clipped numbers of the events that count."""
    import numpy as np

    some, hours, _ = alike.bounded(alike.query_set.queries[0], seed)
    numbers = np.clip(alike.columns["dep_delay"][some], LOWER, UPPER)
    return alike.users[some], hours[some], numbers


def _figure(name: str, numbers: Any) -> float:
    import numpy as np

    if not len(numbers):
        return math.nan
    return float(numbers.mean() if name == "mean" else np.quantile(numbers, 0.95))


def _by_formula(name: str, hours: Any, numbers: Any, length: int, seed: int) -> Any:
    """A mean of noise like PipelineDP's, half of an hour's budget for each of sum and count."""
    import numpy as np

    if name != "mean":
        return np.full(length, math.nan)
    random, middle = np.random.default_rng(seed), (LOWER + UPPER) / 2
    half = EPSILON / WINDOW / 2
    count = np.bincount(hours, minlength=length) + random.laplace(0, 1 / half, length)
    total = np.bincount(hours, numbers - middle, minlength=length)
    total += random.laplace(0, (UPPER - middle) / half, length)
    return middle + total / np.maximum(count, 1)


def run(kind: str, **case: Any) -> dict[str, Any]:
    """One case in a process of its own."""
    return {"events": run_events, "errors": run_errors}[kind](**case)


if __name__ == "__main__":
    begin(main, run)
