"""Hosts a step of the engine on an unbounded input: with state, and a timer in event time."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import cached_property
from typing import Any

import apache_beam as beam
from apache_beam.coders import FastPrimitivesCoder
from apache_beam.transforms.userstate import (
    BagStateSpec,
    ReadModifyWriteStateSpec,
    TimerSpec,
    on_timer,
)
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp

from streamveil.engine.stream_step import StreamStep
from streamveil.transforms.on_beam import Message, MessageCoder, emitted
from streamveil.transforms.slots.state_fence import Fence, Fenced


class InTime(Fenced, beam.DoFn):
    """Takes messages through a step as they come, and again when the time comes that it waits for.

    Input: (key, message), in any order, in the global window, which never closes, so Beam itself
    never drops any as late. Output: what the step gives.

    State, per key: what :class:`KeyState` says; `progress` is the cell that is fenced, where a
    step uses it. Timer `close`, in event time: armed by the step, and by nothing else, so a stream
    that is drained comes to its end.

    Args:
        step: what is done. It is pickled, and may keep with it what it makes once.
    """

    WAITING = BagStateSpec("waiting", MessageCoder())
    CHANGES = BagStateSpec("changes", MessageCoder())
    PROGRESS = ReadModifyWriteStateSpec("progress", FastPrimitivesCoder())
    STATE = ReadModifyWriteStateSpec("state", FastPrimitivesCoder())
    TAKEN = ReadModifyWriteStateSpec("taken", FastPrimitivesCoder())
    CLOSE = TimerSpec("close", beam.TimeDomain.WATERMARK)

    def __init__(self, step: StreamStep) -> None:
        self.step = step
        self._fence = Fence()

    def process(
        self,
        element: tuple[Any, Message],
        at: Any = beam.DoFn.TimestampParam,
        waiting: Any = beam.DoFn.StateParam(WAITING),
        changes: Any = beam.DoFn.StateParam(CHANGES),
        progress: Any = beam.DoFn.StateParam(PROGRESS),
        state: Any = beam.DoFn.StateParam(STATE),
        taken: Any = beam.DoFn.StateParam(TAKEN),
        close: Any = beam.DoFn.TimerParam(CLOSE),
    ) -> Iterator[Any]:
        """A message comes."""
        key, message = element
        kept = _Kept(self._fence, key, waiting, changes, progress, state, taken, close)
        micros = None if at >= GlobalWindow().max_timestamp() else at.micros
        yield from map(emitted, self.step.take(key, message, micros, kept))

    @on_timer(CLOSE)
    def _close(
        self,
        key: Any = beam.DoFn.KeyParam,
        waiting: Any = beam.DoFn.StateParam(WAITING),
        changes: Any = beam.DoFn.StateParam(CHANGES),
        progress: Any = beam.DoFn.StateParam(PROGRESS),
        state: Any = beam.DoFn.StateParam(STATE),
        taken: Any = beam.DoFn.StateParam(TAKEN),
        close: Any = beam.DoFn.TimerParam(CLOSE),
    ) -> Iterator[Any]:
        kept = _Kept(self._fence, key, waiting, changes, progress, state, taken, close)
        yield from map(emitted, self.step.close(key, kept))


class _Kept:
    """The cells and the timer of a key, as Beam gives them, and its progress through the fence."""

    def __init__(
        self,
        fence: Fence,
        key: Hashable,
        waiting: Any,
        changes: Any,
        progress: Any,
        state: Any,
        taken: Any,
        timer: Any,
    ) -> None:
        self.waiting, self.changes, self.state, self.taken = waiting, changes, state, taken
        self._fence, self._key, self._progress, self._timer = fence, key, progress, timer

    @cached_property
    def progress(self) -> Any:
        return self._fence.cell(self._key, self._progress)

    @property
    def now(self) -> int:
        return int(Timestamp.now().micros)

    def close_at(self, at: int) -> None:
        self._timer.set(Timestamp(micros=at))
