"""What every step needs of Beam: a coder for the engine's messages, and counters.

Steps take `Message` and `metrics` from here, so that a worker that loads a step has both.
"""

from __future__ import annotations

from functools import lru_cache

from apache_beam import coders
from apache_beam.metrics import Metrics

from streamveil.engine import metrics
from streamveil.engine.messages import Message

__all__ = ["Message", "MessageCoder", "metrics"]


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
