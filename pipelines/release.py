"""`streamveil release`: events from files or a stream, private releases to a file or a stream."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from streamveil.io import is_endless, is_stream, requirement_changes_of
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.pipelines.flags import is_true
from streamveil.pipelines.jobs import (
    EventOptions,
    Job,
    JobOptions,
    following_of,
    given_by,
    in_time,
    run_and_tell,
)
from streamveil.pipelines.logs import tell
from streamveil.pipelines.options import add_release_options
from streamveil.pipelines.plan_texts import about_least_total, about_limits
from streamveil.pipelines.plans import histogram_plan_of, is_dynamic
from streamveil.pipelines.values import check_required, check_revisions, dialect_of
from streamveil.transforms import PrivateHistograms


class ReleaseOptions(PipelineOptions):
    """What only this command can, beside `JobOptions`: no option may be in two classes."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        add_release_options(parser)


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
        transform = transform_of(given, own)
        check_revisions(own, transform.mechanism)
        job = cls(
            given.input,
            given.output,
            transform,
            given.ledger,
            given.rejected,
            given.summary,
            dialect_of(given),
            given.layout,
            own.revisions,
            given.card,
            bool(own.state),
            own.requirement_changes,
        )
        job.check()
        if not is_true("resume", own.resume):  # which goes on with what was chosen
            transform.check_look()
        return in_time(job, options)

    def check(self) -> None:
        """Look at the places before anything runs; raises ConfigurationError."""
        if self.requirement_changes:
            self._check_changes(self.requirement_changes)
        super().check()

    def _check_changes(self, location: str) -> None:
        requirement_changes_of(location)
        if is_stream(location) and not is_endless(self.input):
            raise ConfigurationError(
                f"--requirement_changes={location} does not end, but --input={self.input} does: "
                "give both from files or both from streams"
            )

    @property
    def _inputs(self) -> list[str | None]:
        return [self.input, self.requirement_changes]

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
    def _changes_requirements(self) -> bool:
        return self.requirement_changes is not None

    @property
    def _shares(self) -> bool:
        return self.transform.population.requirements.forever

    @property
    def _dynamic(self) -> bool:
        return is_dynamic(self.transform, self.requirement_changes)


def transform_of(given: Any, own: Any) -> PrivateHistograms:
    """The transform that these options ask for. Raises ConfigurationError."""
    return histogram_plan_of(given, own, PrivateHistograms, allowed_lateness=given.allowed_lateness)


def tell_before(transform: PrivateHistograms) -> None:
    """Say what follows from public facts, before anything is read."""
    told = about_least_total(transform)
    if told is not None:
        tell(*told)
    tell_limits(transform)


def tell_limits(transform: PrivateHistograms) -> None:
    """Say how presence is limited, where that is not what was asked for."""
    told = about_limits(transform)
    if told is not None:
        tell(told)


# What only some runs need is imported by them: a run begins sooner.
def main(options: PipelineOptions, dry: str = "false") -> int:
    """Run the command, or if `dry` only tell what it would do; returns the exit code."""
    given = given_by(options, EventOptions, JobOptions)
    own = options.view_as(ReleaseOptions)
    following = following_of(given, own)
    if own.questions:
        from streamveil.pipelines import questions

        given.questions, given.page = own.questions, own.page
        return questions.main(given, options, dry, following)
    if is_true("dry_run", dry):
        from streamveil.pipelines.dry_run import preview

        job = ReleaseJob.of(options)
        tell_limits(job.transform)
        card = job.card.plan if own.state is None else ()
        preview(job.input, job.transform, job.places, job.dialect, own.state, card)
        return 0
    if following is not None:
        from streamveil.pipelines.follow import follow

        check_required("release", given)
        transform = transform_of(given, own)
        if not following.resume:
            transform.check_look(following.most_slots)
        tell_before(transform)
        follow(
            "release",
            given,
            transform,
            following,
            options,
            own.requirement_changes,
            own.revisions,
        )
        return 0
    job = ReleaseJob.of(options)
    tell_before(job.transform)
    run_and_tell(job, options, "streamveil release")
    return 0
