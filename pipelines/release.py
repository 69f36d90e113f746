"""`streamveil release`: events from files or a stream, private releases to a file or a stream."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

from streamveil.io import (
    SINK_FORMS,
    StateFolder,
    WriteLedger,
    WriteRejected,
    check_events,
    check_outputs,
    is_stream,
    requirement_changes_of,
    sink_of,
    source_of,
)
from streamveil.mechanisms.records import ConfigurationError
from streamveil.mechanisms.registry import DEFAULT, DYNAMIC_MECHANISMS, MECHANISMS, only_dynamic
from streamveil.pipelines.follow import Follow, Following, add_follow_options
from streamveil.pipelines.inputs import REQUIRED, Inputs, add_input_options, registry_of
from streamveil.pipelines.keys import noise_key
from streamveil.pipelines.launch import Summary, run
from streamveil.transforms import PrivateHistograms


class ReleaseOptions(PipelineOptions):
    """The options of the main job; Beam's own pass through beside them."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        add_input_options(parser)
        add = parser.add_argument
        add(
            "--output",
            metavar="PLACE",
            help=f"releases: a file, .parquet, .avro, .jsonl or .csv; {SINK_FORMS}",
        )
        add(
            "--mechanism",
            default=DEFAULT,
            metavar="NAME",
            help=f"{', '.join(MECHANISMS)} (default {DEFAULT}); where requirements change "
            f"{', '.join(DYNAMIC_MECHANISMS)}",
        )
        add(
            "--requirement_changes",
            metavar="PLACE",
            help="changes of requirements, from files or a stream as --input: columns user, slot "
            "or time, window_backward, epsilon_backward, window_forward, epsilon_forward; without "
            "the four figures the user leaves",
        )
        add(
            "--longest_window",
            type=int,
            metavar="N",
            help="longest window, in slots, that a change may ask for; public (default: the "
            "longest of the requirements)",
        )
        add("--ledger", metavar="FILE", help="what every slot cost every class of users")
        add(
            "--noise_key_file",
            metavar="FILE",
            help="32 or more secret bytes; the same key on the "
            "same input gives the same releases (default: fresh randomness)",
        )
        add(
            "--shards",
            type=int,
            default=1,
            metavar="N",
            help="split the users of a busy slot among so many workers (default 1)",
        )
        add(
            "--allowed_lateness",
            default="0s",
            metavar="LENGTH",
            help="how long a slot of a stream without end, or with --state, stays open for late "
            "events: 30s, 10m, 2h (default 0s)",
        )
        add_follow_options(parser)


@dataclass(frozen=True)
class ReleaseJob:
    """One run of the main job: what to read, how to count, where to write."""

    input: str
    output: str
    transform: PrivateHistograms
    ledger: str | None = None
    rejected: str | None = None
    requirement_changes: str | None = None

    @classmethod
    def of(cls, options: PipelineOptions) -> ReleaseJob:
        """Read and check all options and the public tables; nothing is run yet.

        Raises ConfigurationError for anything missing or wrong.
        """
        given = options.view_as(ReleaseOptions)
        job = cls(
            given.input,
            given.output,
            _transform_of(given),
            given.ledger,
            given.rejected,
            given.requirement_changes,
        )
        job.check()
        if is_stream(job.input):
            _stream_with(options, job.input)
        return job

    @property
    def files(self) -> list[str]:
        """All files that the run writes."""
        given = [place for place in (self.output, self.ledger, self.rejected) if place]
        return [place for place in given if not is_stream(place)]

    def check(self) -> None:
        """Look at the places before anything runs; raises ConfigurationError."""
        self._source()
        self._sink()
        if self.requirement_changes:
            self._check_changes(self.requirement_changes)
        if is_stream(self.input):
            self._refuse_files()
        check_outputs(self.files)
        if not is_stream(self.input):
            check_events(self.input, self.transform.columns.names)

    def _source(self) -> beam.PTransform:
        return source_of(self.input, self.transform.columns.names)

    def _sink(self) -> beam.PTransform:
        return sink_of(self.output, self.transform.domain.labels)

    def _check_changes(self, location: str) -> None:
        requirement_changes_of(location)
        if is_stream(location) and not is_stream(self.input):
            raise ConfigurationError(
                f"--requirement_changes={location} does not end, but --input={self.input} does: "
                "give both from files or both from streams"
            )

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
        inputs, rejected = events.batches, [events.rejected]
        if self.requirement_changes:
            changes = pipeline | "ReadRequirementChanges" >> requirement_changes_of(
                self.requirement_changes
            )
            inputs = (events.batches, changes.batches)
            rejected.append(changes.rejected)
        outputs = inputs | "PrivateHistograms" >> self.transform
        outputs.releases | "WriteReleases" >> self._sink()
        if self.ledger:
            dynamic = bool(self.requirement_changes) or only_dynamic(self.transform.mechanism)
            outputs.ledger | "WriteLedger" >> WriteLedger(self.ledger, dynamic=dynamic)
        if self.rejected:
            letters = (*rejected, outputs.rejected) | "Rejected" >> beam.Flatten()
            letters | "WriteRejected" >> WriteRejected(self.rejected)

    def run(self, options: PipelineOptions, title: str = "streamveil release") -> Summary:
        """Run the job to its end."""
        try:
            summary = run(self.build, options, title)
            for path in self.files:
                if not FileSystems.exists(path):
                    raise RuntimeError(f"the runner is done, but {path} was not written")
            return summary
        except Exception as error:
            whole = [path for path in self.files if FileSystems.exists(path)]
            if not whole:
                raise
            raise RuntimeError(
                f"{error}. These were whole before that and are kept: {', '.join(whole)}. Move "
                "them away before the next run, which spends the budget again unless it has the "
                "same noise key"
            ) from error


def _transform_of(given: Any) -> PrivateHistograms:
    for name in ("input", "output", *REQUIRED):
        if not getattr(given, name):
            raise ConfigurationError(f"--{name} is missing: see streamveil release --help")
    registry = registry_of(given)
    if registry is None:
        raise ConfigurationError(
            "--requirements is missing: give the table of users, or --default_requirement"
        )
    if given.longest_window is not None and not given.requirement_changes:
        raise ConfigurationError(
            f"--longest_window={given.longest_window} is about changes: give "
            "--requirement_changes as well, or leave it out"
        )
    return Inputs.of(given).transform(
        registry,
        given.mechanism,
        noise_key(given.noise_key_file),
        given.shards,
        given.longest_window,
        given.allowed_lateness,
    )


def main(options: PipelineOptions) -> int:
    """Run the command; returns the exit code."""
    given = options.view_as(ReleaseOptions)
    following = Following.of(given)
    if following is not None:
        outputs = {"releases": given.output, "ledger": given.ledger, "rejected": given.rejected}
        wanted = {kind: path for kind, path in outputs.items() if path}
        if given.requirement_changes:
            raise ConfigurationError(
                f"--requirement_changes={given.requirement_changes} does not go with --state: who "
                "asks for what is not kept between runs; leave one of them out"
            )
        transform = _transform_of(given)
        with StateFolder.held(following.state, create=not following.resume) as folder:
            Follow(given.input, wanted, transform, following, folder).run(options)
        return 0
    job = ReleaseJob.of(options)
    summary = job.run(options)
    print(summary.text(dead_letters=job.rejected))
    for path in dict.fromkeys([job.output, *job.files]):
        print(f"wrote {path}")
    return 0


def _stream_with(options: PipelineOptions, location: str) -> None:
    """Tell Beam that the input does not end; refuse to run it in this process."""
    standard = options.view_as(StandardOptions)
    if standard.runner in (None, "FnApiRunner"):
        raise ConfigurationError(
            f"--input={location} does not end, and without --runner the pipeline runs in this "
            "process, which waits for the end: give --runner, such as FlinkRunner or "
            "DataflowRunner, or BundleBasedDirectRunner to try Pub/Sub on this machine"
        )
    standard.streaming = True
