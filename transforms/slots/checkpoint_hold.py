"""What is closed waits until the runner has committed it: a checkpoint is the point of no return.

A runner that goes back to a checkpoint plays what came after it again, and by a clock that has gone
on: an event that was in time may now be late. A slot that had been released by then would be
released again, of other events, and its users would pay twice. So what a slot closed with is kept
until it is in a checkpoint. From there on it stays what it is, and so does all that is made of it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder, TupleCoder
from apache_beam.transforms.periodicsequence import PeriodicImpulse
from apache_beam.transforms.userstate import BagStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import GlobalWindow, GlobalWindows
from apache_beam.utils.timestamp import Timestamp

from streamveil.engine.messages import Kind
from streamveil.transforms.on_beam import Message, MessageCoder

# A runner may tell of a checkpoint every bundle that has ended, also those behind its barrier, as
# Flink's does. So a commit says nothing of what came behind the barriers of checkpoints that were
# not announced yet. If the runner takes one checkpoint at a time, those are two at most: the one
# under way, and the one before it, whose end may still be on its way here. The third commit is of
# one whose barrier came later. What a checkpoint that is not aligned keeps of what was on its way
# here comes again as it was, so there it is no worse.
COMMITS = 3

# By the name of what waits, how often its bundles were committed. Of the process, not of a DoFn:
# the runner keeps a DoFn for each bundle that waits for its commit. Names are drawn where something
# is closed, so what is closed again after a restart has another.
_commits: dict[bytes, int] = {}


@dataclass(eq=False)
class Settle(beam.PTransform):
    """Hold back (key, message) until the runner has committed that they are there.

    For inputs without end, on runners that go back to checkpoints and tell bundles of commits
    (`DoFn.BundleFinalizerParam`), such as Flink's, with one checkpoint at a time. What still waits
    when the input ends, or the pipeline is drained, is let go then; where commits are never
    announced, so is everything.
    """

    keys: Sequence[Any]
    """All keys."""
    pulse: beam.PTransform
    """Applied to the pipeline, it gives an element whenever it is time to look."""

    def __post_init__(self) -> None:
        """Be a PTransform."""
        super().__init__()

    def expand(self, closed: beam.PCollection[tuple[Any, Message]]) -> beam.PCollection[Any]:
        """Build the steps: add pulses, hold back."""
        kind = closed.element_type
        pulses = (
            closed.pipeline
            | "Pulse" >> self.pulse
            | "PulseIntoOne" >> beam.WindowInto(GlobalWindows())
            | "ToKeys" >> beam.FlatMap(_pulses, tuple(self.keys)).with_output_types(kind)
        )
        return (
            (closed, pulses)
            | "AddPulse" >> beam.Flatten()
            | "HoldBack" >> beam.ParDo(_SettleFn()).with_output_types(kind)
        )


def settled(
    closed: beam.PCollection[tuple[Any, Message]],
    keys: Sequence[Any],
    every: int | beam.PTransform | None,
) -> beam.PCollection[tuple[Any, Message]]:
    """What is closed, held back where checkpoints are so many microseconds apart, or are pulses."""
    if every is None:
        return closed
    if isinstance(every, int):  # by default a sequence starts when Beam was imported
        every = PeriodicImpulse(start_timestamp=Timestamp.now(), fire_interval=every / 1e6)
    return closed | "Settle" >> Settle(keys, every)


def _pulses(pulse: Any, keys: Iterable[Any]) -> Iterator[tuple[Any, Message]]:
    for key in keys:
        yield key, Message(Kind.PULSE)


class _SettleFn(beam.DoFn):
    """(key, message) to the same, later.

    State, per key: what waits, each with a random name. Timer `end`, in event time,
    for the end of the input: lets all go.
    """

    WAITING = BagStateSpec("waiting", TupleCoder([BytesCoder(), MessageCoder()]))
    END = TimerSpec("end", beam.TimeDomain.WATERMARK)

    def process(
        self,
        element: tuple[Any, Message],
        waiting: Any = beam.DoFn.StateParam(WAITING),
        end: Any = beam.DoFn.TimerParam(END),
        bundle: Any = beam.DoFn.BundleFinalizerParam,
    ) -> Iterator[tuple[Any, Message]]:
        key, message = element
        if message.kind is not Kind.PULSE:
            waiting.add((uuid.uuid4().bytes, message))
            end.set(GlobalWindow().max_timestamp())
        held: list[tuple[bytes, Message]] = []
        free: list[tuple[bytes, Message]] = []
        for item in waiting.read():
            committed = _commits.get(item[0], 0) >= COMMITS
            (free if committed else held).append(item)
        if free:
            waiting.clear()
            for item in held:
                waiting.add(item)
        for name, _ in held:
            bundle.register(partial(_committed, name, _commits.get(name, 0)))
        for name, message in free:
            _commits.pop(name)
            yield key, message

    @on_timer(END)
    def _let_go(
        self,
        key: Any = beam.DoFn.KeyParam,
        waiting: Any = beam.DoFn.StateParam(WAITING),
    ) -> Iterator[tuple[Any, Message]]:
        for name, message in waiting.read():
            _commits.pop(name, None)
            yield key, message
        waiting.clear()


def _committed(name: bytes, before: int) -> None:
    """A bundle is committed that found something waiting, which had `before` commits then."""
    if _commits.get(name, 0) == before:
        _commits[name] = before + 1
