"""`streamveil collect`: the local setting played through, events in, releases out."""

from __future__ import annotations

import argparse
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

from streamveil.io import is_stream
from streamveil.mechanisms.local.registry import LOCAL_DEFAULT, LOCAL_MECHANISMS
from streamveil.mechanisms.records import ConfigurationError
from streamveil.pipelines.inputs import Inputs, add_event_options
from streamveil.pipelines.jobs import (
    Job,
    add_output_options,
    required_registry,
    run_and_tell,
    stream_with,
)
from streamveil.pipelines.keys import noise_key
from streamveil.transforms import ADD_REMOVE, CollectHistograms

# Options of `release` that have no meaning here: their one value, and why.
_NOT_LOCAL: dict[str, tuple[Any, str]] = {
    "max_contributions": (1, "a device reports one value in a slot"),
    "adjacency": (ADD_REMOVE, "one guarantee covers events added, removed and replaced"),
    "default_requirement": (None, "the server must know whom it can ask: list every user"),
    "requirement_changes": (None, "requirements do not change in a run of collect"),
    "longest_window": (None, "requirements do not change in a run of collect"),
    "state": (None, "a run of collect keeps no state for a later one"),
    "resume": (None, "a run of collect keeps no state for a later one"),
    "follow": (None, "a run of collect keeps no state for a later one"),
    "clock_file": (None, "a run of collect keeps no state for a later one"),
}


class CollectOptions(PipelineOptions):
    """The options of the local setting; Beam's own pass through beside them."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        add_event_options(parser)
        add_output_options(parser)
        parser.add_argument(
            "--mechanism",
            default=LOCAL_DEFAULT,
            metavar="NAME",
            help=f"{', '.join(LOCAL_MECHANISMS)} (default {LOCAL_DEFAULT})",
        )
        for name, (only, _) in _NOT_LOCAL.items():
            parser.add_argument(
                f"--{name}", default=only, nargs="?", const="true", help=argparse.SUPPRESS
            )


def job_of(options: PipelineOptions) -> Job[CollectHistograms]:
    """Read and check all options and the public tables; nothing is run yet.

    Raises ConfigurationError for anything missing or wrong.
    """
    given = options.view_as(CollectOptions)
    for name, (only, why) in _NOT_LOCAL.items():
        value = getattr(given, name)
        if str(value) != str(only):
            raise ConfigurationError(
                f"--{name}={value} is for streamveil release: in the local setting {why}"
            )
    transform = Inputs.of(given).local_transform(
        required_registry("collect", given),
        given.mechanism,
        noise_key(given.noise_key_file),
        given.shards,
        given.allowed_lateness,
    )
    job = Job(given.input, given.output, transform, given.ledger, given.rejected)
    job.check()
    if is_stream(job.input):
        stream_with(options, job.input)
    return job


def main(options: PipelineOptions) -> int:
    """Run the command; returns the exit code."""
    run_and_tell(job_of(options), options, "streamveil collect")
    return 0
