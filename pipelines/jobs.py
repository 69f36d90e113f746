"""A run from events to releases, whichever transform is in between: places, sinks, refusals."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import (
    DebugOptions,
    GoogleCloudOptions,
    PipelineOptions,
    StandardOptions,
)

from streamveil.io import (
    SINK_FORMS,
    WriteLedger,
    WriteRejected,
    check_events,
    check_outputs,
    is_stream,
    sink_of,
    source_of,
)
from streamveil.mechanisms.infinite.registry import INFINITE_DEFAULT, INFINITE_MECHANISMS
from streamveil.mechanisms.local.registry import LOCAL_DEFAULT, LOCAL_MECHANISMS
from streamveil.mechanisms.per_record.registry import DEFAULTS, PER_RECORD_MECHANISMS
from streamveil.mechanisms.records import ConfigurationError
from streamveil.mechanisms.registry import DEFAULT, DYNAMIC_MECHANISMS, MECHANISMS
from streamveil.mechanisms.users import Registry
from streamveil.pipelines.flink import FlinkOptions
from streamveil.pipelines.inputs import (
    REQUIRED,
    add_event_options,
    add_histogram_options,
    registry_of,
)
from streamveil.pipelines.keys import ENVIRONMENT, PLACES
from streamveil.pipelines.launch import Summary, run
from streamveil.transforms import CollectHistograms, PrivateHistograms

# What Dataflow calls the mode, as an experiment or as an option of the service.
AT_LEAST_ONCE = "streaming_mode_at_least_once"
HANDED_OVER = "handed over: the job runs when it is submitted to Dataflow"

J = TypeVar("J", bound=Any)
Transform = TypeVar("Transform", PrivateHistograms, CollectHistograms)


class EventOptions(PipelineOptions):
    """What all commands share that make releases of events; no option may be in two classes."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        add_event_options(parser)
        _add_output_options(parser)


class JobOptions(PipelineOptions):
    """From events to one private histogram a slot; Beam's own options pass through beside these."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        add_histogram_options(parser)
        add = parser.add_argument
        add("--ledger", metavar="FILE", help="what every slot cost every class of users")
        add(
            "--shards",
            type=int,
            default=1,
            metavar="N",
            help="split the users of a busy slot among so many workers (default 1)",
        )


def given_by(options: PipelineOptions, *kinds: type[PipelineOptions]) -> argparse.Namespace:
    """The options of several classes, as parsed, in one place."""
    views = (options.view_as(kind).get_all_options(current_only=True) for kind in kinds)
    return argparse.Namespace(**{name: value for view in views for name, value in view.items()})


def _add_output_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where releases go and how they are made."""
    add = parser.add_argument
    add(
        "--output",
        metavar="PLACE",
        help=f"releases: a file, .parquet, .avro, .jsonl or .csv; {SINK_FORMS}",
    )
    add(
        "--mechanism",
        metavar="NAME",
        help=f"of release: {', '.join(MECHANISMS)} (default {DEFAULT}), where requirements change "
        f"{', '.join(DYNAMIC_MECHANISMS)}, with one budget for ever "
        f"{', '.join(INFINITE_MECHANISMS)} (default {INFINITE_DEFAULT}); of collect: "
        f"{', '.join(LOCAL_MECHANISMS)} (default "
        f"{LOCAL_DEFAULT}); of per-record: {_per_record_mechanisms()}",
    )
    add(
        "--noise_key",
        metavar="PLACE",
        help=f"where 32 or more secret bytes are: {PLACES}; the same key on the same input gives "
        "the same releases; PLACE,PLACE@TIME takes another key from the slot on that starts then "
        f"(default: the variable {ENVIRONMENT}, or else fresh randomness)",
    )
    add(
        "--allowed_lateness",
        default="0s",
        metavar="LENGTH",
        help="how long a slot stays open for late events where time closes it: 30s, 10m, 2h "
        "(default 0s)",
    )


def refuse_options(
    options: PipelineOptions,
    refused: Mapping[type[PipelineOptions], Mapping[str, str]],
    saying: str,
) -> None:
    """Raise ConfigurationError where an option is given that has no meaning here.

    Args:
        options: as they were given.
        refused: by class of options, why each is refused.
        saying: what stands between the option and the reason.
    """
    for kind, reasons in refused.items():
        given, usual = options.view_as(kind), PipelineOptions([]).view_as(kind)
        for name, why in reasons.items():
            value = getattr(given, name)
            if value != getattr(usual, name):
                raise ConfigurationError(f"--{name}={value} {saying} {why}")


def check_required(
    command: str, given: Any, names: Sequence[str] = ("input", "output", *REQUIRED)
) -> None:
    """Raise ConfigurationError where an option is missing that has no default."""
    for name in names:
        if not getattr(given, name):
            raise ConfigurationError(f"--{name} is missing: see streamveil {command} --help")


def required_registry(command: str, given: Any) -> Registry:
    """The table of requirements, when all of `REQUIRED` are there.

    Raises ConfigurationError.
    """
    check_required(command, given, REQUIRED)
    registry = registry_of(given)
    if registry is None:
        instead = ", or --default_requirement" if command == "release" else ""
        raise ConfigurationError(f"--requirements is missing: give the table of users{instead}")
    return registry


def _per_record_mechanisms() -> str:
    """By statistic, the default first."""
    return "; ".join(
        f"{kind}: {', '.join(sorted(known, key=lambda name: name != DEFAULTS[kind]))}"
        for kind, known in PER_RECORD_MECHANISMS.items()
    )


@dataclass(frozen=True)
class Job(Generic[Transform]):
    """What to read, how to count, where to write."""

    input: str
    output: str
    transform: Transform
    ledger: str | None = None
    rejected: str | None = None

    @property
    def files(self) -> list[str]:
        """All files that the run writes."""
        given = [place for place in (self.output, self.ledger, self.rejected) if place]
        return [place for place in given if not is_stream(place)]

    def check(self) -> None:
        """Look at the places before anything runs; raises ConfigurationError."""
        self._source()
        self._sink()
        if is_stream(self.input):
            self._refuse_files()
        check_outputs(self.files)
        if not is_stream(self.input):
            check_events(self.input, self.transform.columns.names)

    def _source(self) -> beam.PTransform:
        return source_of(self.input, self.transform.columns.names)

    def _sink(self) -> beam.PTransform:
        return sink_of(self.output, self.transform.domain.labels, shares=self._shares)

    def _refuse_files(self) -> None:
        for name in ("output", "ledger", "rejected"):
            path = getattr(self, name)
            if path in self.files:
                remedy = f"write to {SINK_FORMS}" if name == "output" else "leave it out"
                raise ConfigurationError(
                    f"--{name}={path}: a file is written when the input has ended, and --input="
                    f"{self.input} does not end: {remedy}"
                )

    def build(self, pipeline: beam.Pipeline) -> None:
        """Compose source, transform and sinks."""
        events = pipeline | "ReadEvents" >> self._source()
        outputs = events.batches | type(self.transform).__name__ >> self.transform
        self._write(outputs, [events.rejected])

    @property
    def _dynamic(self) -> bool:
        """Whether rows of the ledger are about requirements that change."""
        return False

    @property
    def _shares(self) -> bool:
        """Whether releases have shares."""
        return False

    def _write(self, outputs: Any, rejected: list[beam.PCollection]) -> None:
        """Compose the sinks; `rejected` are the dead letters of sources."""
        outputs.releases | "WriteReleases" >> self._sink()
        if self.ledger:
            outputs.ledger | "WriteLedger" >> WriteLedger(self.ledger, dynamic=self._dynamic)
        if self.rejected:
            letters = (*rejected, outputs.rejected) | "Rejected" >> beam.Flatten()
            letters | "WriteRejected" >> WriteRejected(self.rejected)

    def run(self, options: PipelineOptions, title: str) -> Summary:
        """Run the job to its end."""
        return run_whole(self.build, options, title, self.files)


def run_whole(
    build: Callable[[beam.Pipeline], None],
    options: PipelineOptions,
    title: str,
    files: Sequence[str],
) -> Summary:
    """Run a pipeline to its end; an error tells which of the files that it writes were whole."""
    try:
        summary = run(build, options, title)
        for path in files:
            if not summary.handed_over and not FileSystems.exists(path):
                raise RuntimeError(f"the runner is done, but {path} was not written")
        return summary
    except Exception as error:
        whole = [path for path in files if FileSystems.exists(path)]
        if not whole:
            raise
        raise RuntimeError(
            f"{error}. These were whole before that and are kept: {', '.join(whole)}. Move "
            "them away before the next run, which spends the budget again unless it has the "
            "same noise key"
        ) from error


def run_and_tell(job: Job[Any], options: PipelineOptions, title: str) -> None:
    """Run the job of a command and tell the operator what came of it."""
    summary = job.run(options, title)
    if summary.handed_over:
        print(HANDED_OVER)
        return
    print(summary.text(dead_letters=job.rejected))
    for path in dict.fromkeys([job.output, *job.files]):
        print(f"wrote {path}")


def in_time(job: J, options: PipelineOptions) -> J:
    """The job as it runs: where its input does not end, it streams, and slots settle.

    Raises ConfigurationError where the runner would not stream, or might release a slot twice.
    """
    if not is_stream(job.input):
        return job
    standard, flink = options.view_as(StandardOptions), options.view_as(FlinkOptions)
    if standard.runner in (None, "FnApiRunner"):
        raise ConfigurationError(
            f"--input={job.input} does not end, and without --runner the pipeline runs in this "
            "process, which waits for the end: give --runner, such as FlinkRunner or "
            "DataflowRunner, or to try it on this machine PrismRunner for Kafka and "
            "BundleBasedDirectRunner for Pub/Sub"
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
    standard.streaming = True
    interval = flink.checkpointing_interval or 0
    if interval <= 0:
        if standard.runner == "FlinkRunner":
            raise ConfigurationError(
                "--checkpointing_interval is missing: without checkpoints a failure would begin "
                "the stream anew, and spend its budgets again; give milliseconds, such as "
                "--checkpointing_interval=10000"
            )
        return job
    if flink.finish_bundle_before_checkpointing is None:
        flink.finish_bundle_before_checkpointing = True
    return replace(job, transform=replace(job.transform, settle=1000 * interval))
