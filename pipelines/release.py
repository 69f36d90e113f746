"""`streamveil release`: events from files or a stream, private releases to a file or a stream."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from streamveil.io import StateFolder, is_stream, requirement_changes_of
from streamveil.mechanisms.infinite.registry import INFINITE_DEFAULT
from streamveil.mechanisms.records import ConfigurationError, Lifetime
from streamveil.mechanisms.registry import DEFAULT, only_dynamic
from streamveil.mechanisms.users import Registry
from streamveil.pipelines.follow import Follow, Following, add_follow_options
from streamveil.pipelines.guarantees import (
    INFINITE,
    add_guarantee_options,
    epsilons_of,
    is_infinite,
)
from streamveil.pipelines.inputs import REQUIRED, Inputs
from streamveil.pipelines.jobs import (
    EventOptions,
    Job,
    JobOptions,
    check_required,
    given_by,
    in_time,
    required_registry,
    run_and_tell,
)
from streamveil.pipelines.keys import noise_key
from streamveil.transforms import PrivateHistograms


class ReleaseOptions(PipelineOptions):
    """What only this command can, beside `JobOptions`: no option may be in two classes."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
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
        add_guarantee_options(parser)
        add_follow_options(parser)


@dataclass(frozen=True)
class ReleaseJob(Job[PrivateHistograms]):
    """One run of the main job: what to read, how to count, where to write."""

    requirement_changes: str | None = None

    @classmethod
    def of(cls, options: PipelineOptions) -> ReleaseJob:
        """Read and check all options and the public tables; nothing is run yet.

        Raises ConfigurationError for anything missing or wrong.
        """
        given = given_by(options, EventOptions, JobOptions)
        own = options.view_as(ReleaseOptions)
        check_required("release", given)
        job = cls(
            given.input,
            given.output,
            transform_of(given, own),
            given.ledger,
            given.rejected,
            own.requirement_changes,
        )
        job.check()
        return in_time(job, options)

    def check(self) -> None:
        """Look at the places before anything runs; raises ConfigurationError."""
        if self.requirement_changes:
            self._check_changes(self.requirement_changes)
        super().check()

    def _check_changes(self, location: str) -> None:
        requirement_changes_of(location)
        if is_stream(location) and not is_stream(self.input):
            raise ConfigurationError(
                f"--requirement_changes={location} does not end, but --input={self.input} does: "
                "give both from files or both from streams"
            )

    def build(self, pipeline: beam.Pipeline) -> None:
        """Compose source, transform and sinks."""
        if not self.requirement_changes:
            super().build(pipeline)
            return
        events = pipeline | "ReadEvents" >> self._source()
        changes = pipeline | "ReadRequirementChanges" >> requirement_changes_of(
            self.requirement_changes
        )
        outputs = (events.batches, changes.batches) | "PrivateHistograms" >> self.transform
        self._write(outputs, [events.rejected, changes.rejected])

    @property
    def _shares(self) -> bool:
        return self.transform.population.forever

    @property
    def _dynamic(self) -> bool:
        return bool(self.requirement_changes) or only_dynamic(self.transform.mechanism)


def transform_of(given: Any, own: Any) -> PrivateHistograms:
    """The transform that these options ask for, whatever is read and written.

    Raises ConfigurationError.
    """
    infinite = is_infinite(own)
    if infinite:
        registry, default = _one_class(given, own), INFINITE_DEFAULT
    else:
        registry, default = required_registry("release", given), DEFAULT
    if own.longest_window is not None and not own.requirement_changes:
        raise ConfigurationError(
            f"--longest_window={own.longest_window} is about changes: give "
            "--requirement_changes as well, or leave it out"
        )
    inputs = Inputs.of(given)
    return inputs.transform(
        registry,
        default if given.mechanism is None else given.mechanism,
        noise_key(given.noise_key, inputs.slots),
        given.shards,
        own.longest_window,
        given.allowed_lateness,
    )


def _one_class(given: Any, own: Any) -> Registry:
    """Everybody, with one budget for ever."""
    check_required("release", given, REQUIRED)
    for holder, names in (
        (given, ("requirements", "default_requirement")),
        (own, ("requirement_changes", "longest_window")),
    ):
        for name in names:
            if getattr(holder, name) is not None:
                raise ConfigurationError(
                    f"--{name}={getattr(holder, name)} is about windows: leave it out with "
                    f"--guarantee={INFINITE}, where everybody has the budget --epsilon for ever"
                )
    epsilons = epsilons_of(own.epsilon)
    if len(epsilons) > 1:
        raise ConfigurationError(
            f"--epsilon={own.epsilon} are several budgets: a release has one, which all users share"
        )
    return Registry.of(default=(Lifetime(epsilons[0]), 0))


def main(options: PipelineOptions) -> int:
    """Run the command; returns the exit code."""
    given = given_by(options, EventOptions, JobOptions)
    own = options.view_as(ReleaseOptions)
    following = Following.of(given, own)
    if following is not None:
        check_required("release", given)
        outputs = {"releases": given.output, "ledger": given.ledger, "rejected": given.rejected}
        wanted = {kind: path for kind, path in outputs.items() if path}
        if own.requirement_changes:
            raise ConfigurationError(
                f"--requirement_changes={own.requirement_changes} does not go with --state: who "
                "asks for what is not kept between runs; leave one of them out"
            )
        transform = transform_of(given, own)
        with StateFolder.held(following.state, create=not following.resume) as folder:
            Follow(given.input, wanted, transform, following, folder).run(options)
        return 0
    run_and_tell(ReleaseJob.of(options), options, "streamveil release")
    return 0
