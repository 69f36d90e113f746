"""Jobs as pipelines of Beam: source, transform and sinks, for a runner."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import apache_beam as beam
from apache_beam.options.pipeline_options import (
    DebugOptions,
    GoogleCloudOptions,
    PipelineOptions,
    StandardOptions,
)

from streamveil.engine.messages import LEDGER, REVISIONS
from streamveil.io import WriteRejected, is_stream, requirement_changes_of, source_of
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.wording import opt
from streamveil.pipelines.jobs.endless import never_ends, ways_to_stream
from streamveil.pipelines.jobs.job import Job
from streamveil.pipelines.options.beam_flags import FlinkOptions
from streamveil.pipelines.runners.job_servers import BATCH_ONLY
from streamveil.transforms.release_plan import QueryOutputs

if TYPE_CHECKING:
    from streamveil.pipelines.jobs.record_job import PerRecordJob

J = TypeVar("J", bound=Any)

# What Dataflow calls the mode, as an experiment or as an option of the service.
AT_LEAST_ONCE = "streaming_mode_at_least_once"


def build(job: Job[Any], pipeline: beam.Pipeline) -> None:
    """Compose the pipeline of a job whose plan is a transform."""
    transform: Any = job.plan
    source = source_of(job.input, transform.columns.names, dialect=job.dialect)
    read = [pipeline | "ReadEvents" >> source]
    batches: Any = read[0].batches
    if job.requirement_changes:
        changes = requirement_changes_of(job.requirement_changes)
        read.append(pipeline | "ReadRequirementChanges" >> changes)
        batches = batches, read[1].batches
    outputs = batches | type(transform).__name__ >> transform
    collections = _collections(outputs)
    for tag, written in job.results.items():
        results, number = collections[tag]
        whole = results if is_stream(written.place) else (results, number)
        _ = whole | written.name >> written.sink()
    if job.rejected:
        letters = [*(one.rejected for one in read), outputs.rejected]
        every = letters | "Rejected" >> beam.Flatten()
        _ = every | "WriteRejected" >> WriteRejected(job.rejected)


def _collections(outputs: QueryOutputs) -> dict[str | None, tuple[Any, Any]]:
    """Outputs by the tag that the engine gives them, each with how many there are."""
    return {
        None: (outputs.results, outputs.done),
        REVISIONS: (outputs.revisions, outputs.revised),
        LEDGER: (outputs.ledger, outputs.booked),
    }


def build_per_record(job: PerRecordJob, pipeline: beam.Pipeline) -> None:
    """The same for statistics that protect each record."""
    source = source_of(job.input, job.columns, silent=True, dialect=job.dialect)
    events = pipeline | "ReadEvents" >> source
    transform: Any = job.plan
    rows = events.batches | type(transform).__name__ >> transform
    if not is_stream(job.output):
        number = [transform.number_of_rows]
        rows = (rows, pipeline | "Number" >> beam.Create(number, reshuffle=False))
    _ = rows | job.written.name >> job.written.sink()


def streaming(job: J, options: PipelineOptions) -> J:
    """The job as a runner runs it that streams, and slots settle.

    Raises ConfigurationError where the runner would not stream, or might release a slot twice.
    """
    standard, flink = options.view_as(StandardOptions), options.view_as(FlinkOptions)
    if standard.runner in (None, "FnApiRunner"):
        raise never_ends(job)
    if standard.runner == "SparkRunner":
        raise ConfigurationError(
            f"{opt.input}={job.input} is unbounded, and {BATCH_ONLY}: {ways_to_stream(job)}"
        )
    asked = list(options.view_as(DebugOptions).experiments or [])
    asked += options.view_as(GoogleCloudOptions).dataflow_service_options or []
    if AT_LEAST_ONCE in asked:
        raise ConfigurationError(
            f"{AT_LEAST_ONCE} would let Dataflow release a slot more than once: leave it out"
        )
    if flink.checkpointing_mode not in (None, "EXACTLY_ONCE"):
        raise ConfigurationError(
            f"--checkpointing_mode={flink.checkpointing_mode} would let Flink count events twice: "
            "leave it out, or write EXACTLY_ONCE"
        )
    concurrent = flink.num_concurrent_checkpoints
    if concurrent is not None and concurrent > 1:
        raise ConfigurationError(
            f"--num_concurrent_checkpoints={concurrent} would let Flink release a slot twice and "
            "differently, since it does not say which of several checkpoints it has ended: leave "
            "it out, or write 1"
        )
    if flink.allow_non_restored_state:
        raise ConfigurationError(
            "--allow_non_restored_state would let Flink drop the users' ledgers, and the stream "
            "spend their budgets again: leave it out, and use the version of streamveil that "
            "wrote the savepoint"
        )
    standard.streaming = True
    interval = flink.checkpointing_interval or 0
    if interval <= 0:
        if standard.runner == "FlinkRunner":
            raise ConfigurationError(
                "--checkpointing_interval is missing: without checkpoints a failure would "
                "restart the stream and spend its budgets again; give milliseconds, such as "
                "--checkpointing_interval=10000"
            )
        return job
    if flink.finish_bundle_before_checkpointing is None:
        flink.finish_bundle_before_checkpointing = True
    return replace(job, plan=replace(job.plan, settle=1000 * interval))
