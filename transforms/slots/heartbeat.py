"""What opens the slots of a stream that never ends: the passing of time, not its events."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.coders import VarIntCoder
from apache_beam.pvalue import PBegin
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.transforms.periodicsequence import PeriodicImpulse
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import GlobalWindows, TimestampedValue
from apache_beam.typehints import KV
from apache_beam.utils.timestamp import MAX_TIMESTAMP, Timestamp

from streamveil.engine.messages import FIRST_SLOT, Kind
from streamveil.mechanisms.core.records import ConfigurationError, Slots, format_time
from streamveil.mechanisms.core.wording import opt
from streamveil.transforms.checks import follow_to_the_end, keep_keys_whole
from streamveil.transforms.on_beam import Message

_LOGGER = logging.getLogger("streamveil")

# Catching up with more slots than this, one by one, is a mistyped start.
MOST_SLOTS_BEHIND = 10_000_000


@beam.typehints.with_output_types(int)
@dataclass(eq=False)
class Heartbeat(beam.PTransform):
    """Emit the number of each slot when the slot begins, in real time.

    Apply this transform to a pipeline. The emitted numbers open the slots of an unbounded input, so
    that slots without events are also released. The event time of a slot number is the start of the
    slot.

    Raises:
        ConfigurationError: when you apply the transform, if the slot `last` is before the slot
            `first`, or if more than 10,000,000 slots are in the past.
    """

    slots: Slots
    """The slots of the stream."""
    first: int | None = None
    """The first slot. If None, it is the slot in which the pipeline is launched. Past slots are
    emitted at once."""
    last: int | None = None
    """The last slot. If None, slots are emitted until the pipeline is drained."""

    def __post_init__(self) -> None:
        """Be a PTransform."""
        super().__init__()

    def expand(self, pbegin: PBegin) -> beam.PCollection[int]:
        """Emit the numbers."""
        slots, now = self.slots, self.slots.index(Timestamp.now().micros)
        first = now if self.first is None else self.first
        if now - first > MOST_SLOTS_BEHIND:
            raise ConfigurationError(
                f"the stream starts at {format_time(slots.start(first))} ({opt.start}), "
                f"{now - first} slots ago, more than {MOST_SLOTS_BEHIND}: start later or use "
                f"longer slots"
            )
        if self.last is not None and self.last < first:
            raise ConfigurationError(
                f"the stream ends at {format_time(slots.end(self.last))} ({opt.end}), before it "
                f"starts at {format_time(slots.start(first))}: give an earlier {opt.start}"
            )
        if self.first is None:
            _LOGGER.warning(
                "the stream starts at %s, with the slot of this moment: events from before are "
                f"late, so name an earlier {opt.start} where a backlog is to count",
                format_time(slots.start(first)),
            )
        if isinstance(pbegin.pipeline.runner, BundleBasedDirectRunner):
            return (
                pbegin
                | "Impulse" >> beam.Impulse()
                | "KeyImpulse" >> beam.WithKeys("").with_output_types(tuple[str, bytes])
                | "Beat" >> beam.ParDo(_BeatFn(slots, first, self.last))
            )
        stop = MAX_TIMESTAMP if self.last is None else Timestamp(micros=slots.end(self.last))
        return (
            pbegin
            | "Impulse"
            >> PeriodicImpulse(
                start_timestamp=Timestamp(micros=slots.start(first)),
                stop_timestamp=stop,
                fire_interval=slots.length / 1e6,
            )
            | "Slot" >> beam.Map(_nearest, slots)
        )


def open_slots(
    pipeline: beam.Pipeline,
    heartbeat: beam.PTransform | None,
    slots: Slots,
    first: int | None,
    last: int | None,
    stream: str,
) -> tuple[beam.PCollection[tuple[str, Message]], beam.PCollection[tuple[str, Message]]]:
    """That each slot of a stream is open, once, and which is the first, as a heartbeat emits them.

    In real time when the heartbeat is None. Every pipeline over an unbounded input has these.
    """
    keep_keys_whole(pipeline)
    follow_to_the_end(pipeline)
    opened = (
        pipeline
        | "Heartbeat" >> (heartbeat or Heartbeat(slots, first, last))
        | "HeartbeatIntoOne" >> beam.WindowInto(GlobalWindows())
        | "KeyByStream" >> beam.WithKeys(stream).with_output_types(tuple[str, int])
        | "OpenSlots"
        >> beam.ParDo(_OpenSlotsFn(first, last)).with_outputs(FIRST_SLOT, main="slots")
    )
    opened.slots.element_type = opened[FIRST_SLOT].element_type = KV[str, Message]
    return opened.slots, opened[FIRST_SLOT]


class _BeatFn(beam.DoFn):
    """The number of each slot as it begins, by a timer in real time.

    For the one runner that cannot run Beam's PeriodicImpulse (apache/beam issue 21103). Such timers
    hold no watermark back there, so a slot that the runner opens late may close at once. State:
    the slot that is next.
    """

    NEXT = ReadModifyWriteStateSpec("next", VarIntCoder())
    BEAT = TimerSpec("beat", TimeDomain.REAL_TIME)

    def __init__(self, slots: Slots, first: int, last: int | None) -> None:
        self._slots = slots
        self._first = first
        self._last = last

    def process(
        self,
        _: tuple[str, bytes],
        following: Any = beam.DoFn.StateParam(NEXT),
        beat: Any = beam.DoFn.TimerParam(BEAT),
    ) -> None:
        following.write(self._first)
        beat.set(self._start(self._first))

    @on_timer(BEAT)
    def beats(
        self,
        following: Any = beam.DoFn.StateParam(NEXT),
        beat: Any = beam.DoFn.TimerParam(BEAT),
    ) -> Iterator[Any]:
        slot = following.read()
        now = self._slots.index(Timestamp.now().micros)
        begun = now if self._last is None else min(now, self._last)
        for one in range(slot, begun + 1):
            yield TimestampedValue(one, self._start(one))
        if begun != self._last:
            following.write(begun + 1)
            beat.set(self._start(begun + 1))

    def _start(self, slot: int) -> Timestamp:
        return Timestamp(micros=self._slots.start(slot))


def _nearest(start: float, slots: Slots) -> int:
    """The slot that starts nearest to a time in seconds, whose fraction is rounded."""
    return slots.index(round(start * 1e6) + slots.length // 2)


class _OpenSlotsFn(beam.DoFn):
    """(stream, slot) as the heartbeat emits it to (stream, that it is open) of every slot, once.

    So a heartbeat may tell a slot twice or leave some out. On the side, once, (stream, which is
    the first). State, per stream: the slot opened last.
    """

    OPENED = ReadModifyWriteStateSpec("opened", VarIntCoder())

    def __init__(self, first: int | None, last: int | None) -> None:
        self._first = first
        self._last = last

    def process(
        self, element: tuple[str, int], opened: Any = beam.DoFn.StateParam(OPENED)
    ) -> Iterator[Any]:
        stream, slot = element
        if self._last is not None:
            slot = min(slot, self._last)
        before = opened.read()
        start = slot if self._first is None else self._first
        first = start if before is None else before + 1
        if slot < first:
            return
        opened.write(slot)
        if before is None:
            yield beam.pvalue.TaggedOutput(FIRST_SLOT, (stream, Message(Kind.START, first)))
        for one in range(first, slot + 1):
            yield stream, Message(Kind.OPEN, one)
