"""What every step needs of Beam: a coder for the engine's messages, and counters.

Steps take `Message` and `metrics` from here, so that a worker that loads a step has both.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from apache_beam import coders
from apache_beam.metrics import Metrics
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from streamveil.engine import metrics
from streamveil.engine.messages import Message, Output

__all__ = ["Message", "MessageCoder", "emitted", "metrics"]


class MessageCoder(coders.Coder):
    """Codes a message as its bytes."""

    encode = staticmethod(Message.to_bytes)
    decode = staticmethod(Message.from_bytes)

    def is_deterministic(self) -> bool:
        """Equal messages have equal bytes."""
        return True

    def to_type_hint(self) -> type:
        """The type that is coded."""
        return Message

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


coders.registry.register_coder(Message, MessageCoder)


def emitted(output: Output) -> Any:
    """An output of the engine as a DoFn yields it."""
    value = output.value
    if output.at is not None:
        value = TimestampedValue(value, Timestamp(micros=output.at))
    return value if output.tag is None else TaggedOutput(output.tag, value)


# Slot after slot counts under the same names.
_counter, _distribution = lru_cache(Metrics.counter), lru_cache(Metrics.distribution)


class _BeamMetrics:
    """Counts in the metrics of the step that a worker takes."""

    def count(self, name: str, amount: int) -> None:
        _counter(metrics.METRICS_NAMESPACE, name).inc(amount)

    def observe(self, name: str, value: int) -> None:
        _distribution(metrics.METRICS_NAMESPACE, name).update(value)

    def show(self, name: str, value: int) -> None:
        Metrics.gauge(metrics.METRICS_NAMESPACE, name).set(value)


metrics.record_with(_BeamMetrics())
