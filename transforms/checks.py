"""What is refused of a pipeline, and asked of its runner, before anything runs."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import DebugOptions, PortableOptions
from apache_beam.transforms.trigger import AccumulationMode, DefaultTrigger
from apache_beam.transforms.window import GlobalWindows

from streamveil.mechanisms.core.arguments import (
    domain_of,
    is_true,
    refuse,
    registry_of,
    slot_number,
    slots_of,
    text_of,
)
from streamveil.mechanisms.core.parameter_checks import lateness
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.user_table import Registry

TEN_YEARS = 10 * 365 * 86_400  # seconds; Beam takes no None here

# Read by Prism from the options of a job, also of one that comes by --job_endpoint; other runners
# do not know it.
NO_SPLITS = "prism_disable_sdf_split"


def take_public(transform: Any) -> None:
    """Bring what a transform of histograms was given of what is public to its own types.

    Raises ConfigurationError for what cannot be taken.
    """
    transform.registry = registry_of(transform.registry)
    transform.domain = domain_of(transform.domain)
    take_options(transform)
    transform.slots = slots_of(transform.slots)
    text_of(transform.mechanism, "mechanism", "give the name of a mechanism")


def refuse_limits(registry: Registry) -> None:
    """Refuse limits on presence where devices answer. Raises ConfigurationError."""
    if registry.max_slots:
        raise ConfigurationError(
            "the table of requirements has limits on presence (max_slots), which are for events "
            "that are counted in one place: leave the column out where devices answer"
        )


def take_options(transform: Any) -> None:
    """The same of what all transforms of streams have."""
    for name in ("first_slot", "last_slot"):
        setattr(transform, name, slot_number(getattr(transform, name), name))
    for name in ("may_be_empty", "changing", "keeps"):
        if hasattr(transform, name):
            setattr(transform, name, is_true(getattr(transform, name), name))
    if not isinstance(resume := getattr(transform, "resume", None), (bytes, type(None))):
        raise ConfigurationError(  # which shows no state: it is private
            f"resume is of type {type(resume).__name__}: give the bytes of a state, the second of "
            "what io.read_state gives"
        )
    if not isinstance(transform.heartbeat, (beam.PTransform, type(None))):
        refuse("heartbeat", transform.heartbeat, "give a PTransform that tells slots, or None")


def settling(every: int | str | beam.PTransform | None) -> int | beam.PTransform | None:
    """Microseconds between checkpoints; else as it was. Raises ConfigurationError."""
    if every is None or isinstance(every, beam.PTransform):
        return every
    micros = lateness(every, "settle")
    if not micros:
        raise ConfigurationError(
            f"settle is {every!r}: give the interval between the runner's checkpoints, such as "
            "10s, or None on a runner that never goes back"
        )
    return micros


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


def check_resume(following: int | None, first_slot: int | None) -> None:
    """Refuse to go on elsewhere than a state says. Raises ConfigurationError."""
    if following != first_slot:
        raise ConfigurationError(
            f"the run starts at slot {first_slot}, but slot {following} comes next after the state "
            "that it goes on from: start there"
        )


def keep_keys_whole(pipeline: beam.Pipeline) -> None:
    """Let Prism not split bundles: it then runs two bundles of one key at once.

    Both begin with the same state, and what one of them writes is lost. See docs/runners.md.
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
