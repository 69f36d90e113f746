"""`streamveil collect`: the local setting played through, events in, releases out."""

from __future__ import annotations

from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

from streamveil.mechanisms.local.registry import LOCAL_DEFAULT
from streamveil.pipelines.follow import FOLLOW_OPTIONS
from streamveil.pipelines.inputs import Inputs
from streamveil.pipelines.jobs import (
    EventOptions,
    Job,
    JobOptions,
    check_required,
    given_by,
    in_time,
    refuse_options,
    required_registry,
    run_and_tell,
)
from streamveil.pipelines.keys import noise_key
from streamveil.pipelines.release import ReleaseOptions
from streamveil.transforms import CollectHistograms

_STATELESS = "a run of collect keeps no state for a later one"
_CONSTANT = "requirements do not change in a run of collect"

# Options that have no meaning here, and why.
NOT_LOCAL: dict[type[PipelineOptions], dict[str, str]] = {
    JobOptions: {
        "max_contributions": "a device reports one value in a slot",
        "adjacency": "one guarantee covers events added, removed and replaced",
        "default_requirement": "the server must know whom it can ask: list every user",
    },
    ReleaseOptions: {
        **dict.fromkeys(("requirement_changes", "longest_window"), _CONSTANT),
        **dict.fromkeys(("guarantee", "epsilon"), "every user has a requirement over windows"),
        **dict.fromkeys(FOLLOW_OPTIONS, _STATELESS),
    },
}


def job_of(options: PipelineOptions) -> Job[CollectHistograms]:
    """Read and check all options and the public tables; nothing is run yet.

    Raises ConfigurationError for anything missing or wrong.
    """
    refuse_options(options, NOT_LOCAL, "is for streamveil release: in the local setting")
    given = given_by(options, EventOptions, JobOptions)
    check_required("collect", given)
    job = Job(given.input, given.output, transform_of(given), given.ledger, given.rejected)
    job.check()
    return in_time(job, options)


def transform_of(given: Any) -> CollectHistograms:
    """The transform that these options ask for, whatever is read and written.

    Raises ConfigurationError.
    """
    registry, inputs = required_registry("collect", given), Inputs.of(given)
    return inputs.local_transform(
        registry,
        LOCAL_DEFAULT if given.mechanism is None else given.mechanism,
        noise_key(given.noise_key, inputs.slots),
        given.shards,
        given.allowed_lateness,
    )


def main(options: PipelineOptions) -> int:
    """Run the command; returns the exit code."""
    run_and_tell(job_of(options), options, "streamveil collect")
    return 0
