"""`streamveil collect`: the local setting played through, events in, releases out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.pipelines.flags import is_true
from streamveil.pipelines.foreign import LOCAL_SAYING, NOT_LOCAL, NOT_LOCAL_RELEASE
from streamveil.pipelines.jobs import (
    EventOptions,
    Job,
    JobOptions,
    following_of,
    given_by,
    in_time,
    refuse_options,
    run_and_tell,
)
from streamveil.pipelines.plans import local_plan_of
from streamveil.pipelines.release import ReleaseOptions
from streamveil.pipelines.values import check_required, check_revisions, dialect_of
from streamveil.transforms import CollectHistograms

_REFUSED: dict[type[PipelineOptions], Mapping[str, str]] = {
    JobOptions: NOT_LOCAL,
    ReleaseOptions: NOT_LOCAL_RELEASE,
}


@dataclass(frozen=True)
class CollectJob(Job[CollectHistograms]):
    """One run: what to read, how devices report, where to write."""

    command = "collect"


def job_of(options: PipelineOptions) -> CollectJob:
    """Read and check all options and the public tables; nothing is run yet.

    Raises ConfigurationError for anything missing or wrong.
    """
    given, own = _given(options), options.view_as(ReleaseOptions)
    transform = transform_of(given, own)
    check_revisions(own, transform.mechanism, local=True)
    job = CollectJob(
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
    )
    job.check()
    return in_time(job, options)


def _given(options: PipelineOptions) -> Any:
    refuse_options(options, _REFUSED, LOCAL_SAYING)
    own = options.view_as(ReleaseOptions)
    if own.longest_window is not None and not own.state:
        raise ConfigurationError(
            f"--longest_window={own.longest_window} is about users whose requirements change: give "
            "--state as well, or leave it out"
        )
    given = given_by(options, EventOptions, JobOptions)
    check_required("collect", given)
    return given


def transform_of(given: Any, own: Any) -> CollectHistograms:
    """The transform that these options ask for. Raises ConfigurationError."""
    return local_plan_of(given, own, CollectHistograms, allowed_lateness=given.allowed_lateness)


def main(options: PipelineOptions, dry: str = "false") -> int:
    """Run the command, or if `dry` only tell what it would do; returns the exit code."""
    if is_true("dry_run", dry):
        from streamveil.pipelines.dry_run import preview

        job = job_of(options)
        state = options.view_as(ReleaseOptions).state
        card = job.card.plan if state is None else ()
        preview(job.input, job.transform, job.places, job.dialect, state, card)
        return 0
    given, own = _given(options), options.view_as(ReleaseOptions)
    following = following_of(given, own)
    if following is not None:
        from streamveil.pipelines.follow import follow

        transform = replace(transform_of(given, own), longest_window=own.longest_window)
        follow("collect", given, transform, following, options, revisions=own.revisions)
        return 0
    run_and_tell(job_of(options), options, "streamveil collect")
    return 0
