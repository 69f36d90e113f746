"""What is refused of a pipeline before anything runs."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
from apache_beam.transforms.trigger import AccumulationMode, DefaultTrigger
from apache_beam.transforms.window import GlobalWindows

from streamveil.mechanisms.core.parameter_checks import lateness
from streamveil.mechanisms.core.records import ConfigurationError


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
