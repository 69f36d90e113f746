"""What is refused of a pipeline, and asked of its runner, before anything runs."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import DebugOptions, PortableOptions
from apache_beam.transforms.trigger import AccumulationMode, DefaultTrigger
from apache_beam.transforms.window import GlobalWindows

from streamveil.mechanisms.core.arguments import refuse

TEN_YEARS = 10 * 365 * 86_400  # seconds; Beam takes no None here

# Read by Prism from the options of a job, also of one that comes by --job_endpoint; other runners
# do not know it.
NO_SPLITS = "prism_disable_sdf_split"


def check_heartbeat(heartbeat: Any) -> None:
    """Refuse what tells no slots. Raises ConfigurationError."""
    if not isinstance(heartbeat, (beam.PTransform, type(None))):
        refuse("heartbeat", heartbeat, "give a PTransform that tells slots, or None")


def refuse_windows(batches: beam.PCollection[Any], what: str = "events") -> None:
    """Refuse an input that cannot be accounted for. Raises ValueError."""
    windowing = batches.windowing
    if not isinstance(windowing.windowfn, GlobalWindows):
        raise ValueError(
            f"the {what} are in windows ({windowing.windowfn}): slots are cut from event times "
            "here, and every window would spend the whole budget; apply this before WindowInto"
        )
    default = isinstance(windowing.triggerfn, DefaultTrigger)
    if not default or windowing.accumulation_mode != AccumulationMode.DISCARDING:
        raise ValueError(
            f"the {what} have a trigger ({windowing.triggerfn}): a slot is released once; remove it"
        )


def keep_keys_whole(pipeline: beam.Pipeline) -> None:
    """Let Prism not split bundles: it then runs two bundles of one key at once.

    Both begin with the same state, and what one of them writes is lost. See
    docs/reference/runners.md.
    """
    pipeline.options.view_as(DebugOptions).add_experiment(NO_SPLITS)


def follow_to_the_end(pipeline: beam.Pipeline) -> None:
    """Let Beam follow the job for as long as it runs, on a server that it starts itself.

    On Prism Beam 2.77.0 gives up after `job_server_timeout`, 300 seconds, and Prism ends with it.
    A `job_endpoint` of the user's may be that of a server that never answers, so there the limit
    stays as it was given.
    """
    options = pipeline.options.view_as(PortableOptions)
    if not options.job_endpoint:
        options.job_server_timeout = TEN_YEARS
