"""The end-to-end job as PipelineDP's user would write it, for an environment that has it.

A private count for each (slot, bin) over public partitions, on Beam, in this process; one
privacy unit is a user with one epsilon for the whole file (it knows no windows and no personal
requirements). Run by end_to_end.py as `python _pipeline_dp.py --case=JSON`.
"""

from __future__ import annotations

import importlib.metadata
import json

import apache_beam as beam
import pipeline_dp
from _measure import asked_case
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

HOUR = 3600


def count(path: str, output: str, values: list[str], first_slot: int, slots: int) -> None:
    """Count events per slot and value, one a user and slot at most, with noise."""
    budget = pipeline_dp.NaiveBudgetAccountant(total_epsilon=1.0, total_delta=1e-9)
    parameters = pipeline_dp.AggregateParams(
        noise_kind=pipeline_dp.NoiseKind.LAPLACE,
        metrics=[pipeline_dp.Metrics.COUNT],
        max_partitions_contributed=slots,  # a user is in one bin of each slot
        max_contributions_per_partition=1,
    )
    extractors = pipeline_dp.DataExtractors(
        privacy_id_extractor=lambda row: row["user"],
        partition_extractor=lambda row: (int(row["time"].timestamp()) // HOUR, row["value"]),
        value_extractor=lambda row: 0,
    )
    public = [(slot, value) for slot in range(first_slot, first_slot + slots) for value in values]
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        rows = pipeline | beam.io.ReadFromParquet(path, columns=["user", "value", "time"])
        engine = pipeline_dp.DPEngine(budget, pipeline_dp.BeamBackend())
        counts = engine.aggregate(rows, parameters, extractors, public_partitions=public)
        budget.compute_budgets()
        (
            counts
            | beam.Map(lambda pair: f"{pair[0][0]},{pair[0][1]},{pair[1].count}")
            | beam.io.WriteToText(output, shard_name_template="")
        )


if __name__ == "__main__":
    case = asked_case()
    if case:
        count(**case)
    version = importlib.metadata.version
    print(json.dumps({"pipeline-dp": version("pipeline-dp"), "beam": version("apache-beam")}))
