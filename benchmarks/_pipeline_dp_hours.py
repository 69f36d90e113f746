"""Hourly figures of numbers as PipelineDP's user would ask for them, where it is installed.

Run by delays.py as `python _pipeline_dp_hours.py --case=JSON`.
"""

from __future__ import annotations

import importlib.metadata
import json

import numpy as np
import pipeline_dp
from _measure import asked_case


def hours(
    path: str, output: str, lower: float, upper: float, percentile: int | None, epsilon: float
) -> None:
    """Write the mean, or a percentile, of every hour; each hour costs `epsilon`."""
    with np.load(path) as file:
        length = int(file["length"])
        events = zip(*(file[name].tolist() for name in ("users", "hours", "numbers")), strict=True)
    # Somebody may be in all hours, of which each costs the same part of the budget.
    budget = pipeline_dp.NaiveBudgetAccountant(total_epsilon=epsilon * length, total_delta=1e-9)
    metrics = pipeline_dp.Metrics
    parameters = pipeline_dp.AggregateParams(
        noise_kind=pipeline_dp.NoiseKind.LAPLACE,
        metrics=[metrics.MEAN if percentile is None else metrics.PERCENTILE(percentile)],
        max_partitions_contributed=length,
        max_contributions_per_partition=1,
        min_value=lower,
        max_value=upper,
    )
    extractors = pipeline_dp.DataExtractors(
        privacy_id_extractor=lambda row: row[0],
        partition_extractor=lambda row: row[1],
        value_extractor=lambda row: row[2],
    )
    engine = pipeline_dp.DPEngine(budget, pipeline_dp.LocalBackend())
    result = engine.aggregate(
        list(events), parameters, extractors, public_partitions=list(range(length))
    )
    budget.compute_budgets()
    found = np.full(length, np.nan)
    for hour, figures in result:
        found[hour] = figures[0]
    np.save(output, found)


if __name__ == "__main__":
    case = asked_case()
    if case:
        hours(**case)
    print(json.dumps({"pipeline-dp": importlib.metadata.version("pipeline-dp")}))
