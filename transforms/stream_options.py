"""The options of an unbounded input, which all transforms of plans have."""

from __future__ import annotations

from dataclasses import dataclass

import apache_beam as beam

from streamveil.mechanisms.core.parameter_checks import lateness
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.transforms.checks import check_heartbeat


@dataclass(eq=False, kw_only=True)
class StreamOptions:
    """When the slots of an unbounded input close, beside what a plan says.

    It comes first among the bases of a transform, before the plan. Raises ConfigurationError at
    construction for options that do not fit.
    """

    allowed_lateness: int | str = 0
    """How long a slot of an unbounded input stays open for late events: microseconds, or text
    such as `10m`."""
    heartbeat: beam.PTransform | None = None
    """What opens the slots of an unbounded input: applied to the pipeline, it gives the number
    of each slot before that slot closes, data-independent. :class:`Heartbeat`, in real time, when
    None; then events more than a day ahead of the worker's clock are rejected."""
    settle: int | str | beam.PTransform | None = None
    """For an unbounded input on a runner that goes back to checkpoints, such as Flink's: the
    interval between them, in microseconds or as text such as `10s`. A slot is then released when
    what it closed with is in a checkpoint, so a restart can never release it again of other events.
    With a `heartbeat` of your own give a PTransform as well, with elements that say when to look.
    None on a runner that never goes back."""

    def __post_init__(self) -> None:
        """Refuse at once what cannot work."""
        beam.PTransform.__init__(self)
        super().__post_init__()  # type: ignore[misc]  # of the plan
        check_heartbeat(self.heartbeat)
        self.allowed_lateness = lateness(self.allowed_lateness)
        self.settle = _settling(self.settle)


def _settling(every: int | str | beam.PTransform | None) -> int | beam.PTransform | None:
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
