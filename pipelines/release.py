"""`streamveil release`: events from files, private releases to a file."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from streamveil.io import (
    ReadEvents,
    WriteLedger,
    WriteRejected,
    WriteReleases,
    check_events,
    check_output,
    read_domain,
    read_requirements,
)
from streamveil.mechanisms.records import (
    ConfigurationError,
    Requirement,
    Slots,
    check_shares,
    parse_time,
)
from streamveil.mechanisms.registry import MECHANISMS
from streamveil.mechanisms.users import Registry
from streamveil.pipelines.keys import noise_key
from streamveil.pipelines.launch import Summary, run
from streamveil.transforms import ADD_REMOVE, REPLACE, Columns, PrivateHistograms
from streamveil.transforms.times import UNITS

DEFAULT_MECHANISM = "pba"


class ReleaseOptions(PipelineOptions):
    """The options of the main job; Beam's own pass through beside them."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add(
            "--input",
            metavar="FILES",
            help="events: a file or glob of .parquet, .avro, .csv or "
            ".jsonl (text also .gz), on any filesystem of Beam",
        )
        add("--output", metavar="FILE", help="releases: .parquet, .avro, .jsonl or .csv")
        add("--user_column", metavar="NAME", help="column of the user id")
        add(
            "--value_column",
            metavar="NAME",
            help="column of the value, or LONGITUDE,LATITUDE columns for a grid",
        )
        add("--time_column", metavar="NAME", help="column of the event time")
        add(
            "--time_zone",
            metavar="ZONE",
            default="UTC",
            help="zone of times without an offset (default UTC)",
        )
        add("--time_unit", choices=UNITS, help="unit of times given as numbers")
        add("--slot", metavar="LENGTH", help="length of a slot: 1d, 1h, 5m, 60s")
        add(
            "--origin",
            metavar="TIME",
            default="1970-01-01T00:00:00Z",
            help="start of slot 0 (default 1970-01-01T00:00:00Z)",
        )
        add(
            "--start",
            metavar="TIME",
            help="release from the slot that holds this time; events "
            "before it are rejected (default: from the first slot with an event)",
        )
        add(
            "--end",
            metavar="TIME",
            help="release up to the slot before this time; events after "
            "it are rejected (default: to the last slot with an event)",
        )
        add(
            "--domain",
            metavar="BINS",
            help="a file with one value a line, a list A,B,C, "
            "edges:0,10,20 for numbers, or grid:WEST,SOUTH,EAST,NORTH,COLUMNS,ROWS",
        )
        add("--requirements", metavar="FILE", help="table with the columns user, window, epsilon")
        add(
            "--default_requirement",
            metavar="WINDOW,EPSILON,USERS",
            help="requirement of users outside the table, and the public number of them",
        )
        add(
            "--mechanism",
            default=DEFAULT_MECHANISM,
            metavar="NAME",
            help=f"{', '.join(MECHANISMS)} (default {DEFAULT_MECHANISM})",
        )
        add(
            "--max_contributions",
            type=int,
            default=1,
            metavar="N",
            help="events of a user that count in a slot (default 1)",
        )
        add(
            "--adjacency",
            choices=(ADD_REMOVE, REPLACE),
            default=ADD_REMOVE,
            help="what one user may change in a window: all of that user's events added or "
            "removed (add_remove, the default), or any of them replaced (replace, twice the noise)",
        )
        add(
            "--rejected",
            metavar="FILE",
            help="dead letters: the raw record, why, and where it "
            "stood; raw data, never to be published",
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


@dataclass(frozen=True)
class ReleaseJob:
    """One run of the main job: what to read, how to count, where to write."""

    input: str
    output: str
    transform: PrivateHistograms
    ledger: str | None = None
    rejected: str | None = None

    @classmethod
    def of(cls, options: PipelineOptions) -> ReleaseJob:
        """Read and check all options and the public tables; nothing is run yet.

        Raises ConfigurationError for anything missing or wrong.
        """
        given = options.view_as(ReleaseOptions)
        for name in (
            "input",
            "output",
            "user_column",
            "value_column",
            "time_column",
            "slot",
            "domain",
        ):
            if not getattr(given, name):
                raise ConfigurationError(f"--{name} is missing: see streamveil release --help")
        if not (given.requirements or given.default_requirement):
            raise ConfigurationError(
                "--requirements is missing: give the table of users, or --default_requirement"
            )
        columns = Columns(
            given.user_column,
            tuple(given.value_column.split(",")),
            given.time_column,
            given.time_zone,
            given.time_unit,
        )
        slots = Slots.of(given.slot)
        slots = Slots(slots.length, _time("origin", given.origin))
        default = _default_requirement(given.default_requirement)
        if given.requirements:
            registry = read_requirements(given.requirements, default=default)
        else:
            registry = Registry.of(default=default)
        transform = PrivateHistograms(
            registry=registry,
            domain=read_domain(given.domain),
            slots=slots,
            columns=columns,
            mechanism=given.mechanism,
            max_contributions=given.max_contributions,
            adjacency=given.adjacency,
            noise_key=noise_key(given.noise_key_file),
            first_slot=None if given.start is None else slots.index(_time("start", given.start)),
            last_slot=None if given.end is None else slots.index(_time("end", given.end) - 1),
            shards=given.shards,
        )
        job = cls(given.input, given.output, transform, given.ledger, given.rejected)
        job.check()
        return job

    @property
    def outputs(self) -> list[str]:
        """All files that the run writes."""
        return [path for path in (self.output, self.ledger, self.rejected) if path]

    def check(self) -> None:
        """Look at the files before anything runs; raises ConfigurationError."""
        places = [path if "://" in path else os.path.realpath(path) for path in self.outputs]
        for path, place in zip(self.outputs, places, strict=True):
            if places.count(place) > 1:
                raise ConfigurationError(f"two outputs are named {path}: name them apart")
            check_output(path)
        check_events(self.input, self.transform.columns.names)

    def build(self, pipeline: beam.Pipeline) -> None:
        """Compose source, transform and sinks."""
        events = pipeline | "ReadEvents" >> ReadEvents(
            self.input, columns=self.transform.columns.names
        )
        outputs = events.batches | "PrivateHistograms" >> self.transform
        labels = self.transform.domain.labels
        outputs.releases | "WriteReleases" >> WriteReleases(self.output, labels=labels)
        if self.ledger:
            outputs.ledger | "WriteLedger" >> WriteLedger(self.ledger)
        if self.rejected:
            rejected = (events.rejected, outputs.rejected) | "Rejected" >> beam.Flatten()
            rejected | "WriteRejected" >> WriteRejected(self.rejected)

    def run(self, options: PipelineOptions, title: str = "streamveil release") -> Summary:
        """Run the job to its end."""
        try:
            summary = run(self.build, options, title)
            for path in self.outputs:
                if not FileSystems.exists(path):
                    raise RuntimeError(f"the runner is done, but {path} was not written")
            return summary
        except Exception as error:
            whole = [path for path in self.outputs if FileSystems.exists(path)]
            if not whole:
                raise
            raise RuntimeError(
                f"{error}. These were whole before that and are kept: {', '.join(whole)}. Move "
                "them away before the next run, which spends the budget again unless it has the "
                "same noise key"
            ) from error


def main(options: PipelineOptions) -> int:
    """Run the command; returns the exit code."""
    job = ReleaseJob.of(options)
    summary = job.run(options)
    print(summary.text(dead_letters=job.rejected))
    for path in job.outputs:
        print(f"wrote {path}")
    return 0


def _default_requirement(text: str | None) -> tuple[Requirement, int] | None:
    if text is None:
        return None
    try:
        window, epsilon, users = (float(part) for part in text.split(","))
        if not users.is_integer():
            raise ValueError
    except ValueError:
        raise ConfigurationError(
            f"--default_requirement={text} is not WINDOW,EPSILON,USERS: write for example "
            "7,1.0,5000 for 5000 users with epsilon 1 over 7 slots"
        ) from None
    try:
        requirement = Requirement(window, epsilon)  # type: ignore[arg-type]
        check_shares([requirement])
        return requirement, int(users)
    except ConfigurationError as error:
        raise ConfigurationError(f"--default_requirement={text}: {error}") from None


def _time(option: str, text: str) -> int:
    try:
        return parse_time(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"--{option}: {error}") from None
