"""Tells an operator how a stream goes on: by a file, by figures, and now and then by a line."""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from streamveil.engine.encode.passes import Pass
from streamveil.io import Snapshot, StateFolder
from streamveil.mechanisms.core.records import ConfigurationError, Slots
from streamveil.pipelines.console.errors import in_one_line, reason_of
from streamveil.pipelines.console.logs import tell
from streamveil.pipelines.console.progress import Seldom
from streamveil.pipelines.monitoring.metrics import Sample, samples
from streamveil.pipelines.monitoring.metrics_export import Exports
from streamveil.pipelines.monitoring.status import ENDED, FAILED, RUNNING, Released, Status
from streamveil.pipelines.reports.summary import Summary

_LOGGER = logging.getLogger("streamveil")

_SECONDS_BETWEEN_SIGNS = 60.0


class Monitor:
    """What is known of one run of a stream; use :func:`monitored`."""

    def __init__(self, folder: StateFolder, clock: Callable[[], int]) -> None:
        """Of the stream in the folder, whose slots are closed by the clock, in microseconds."""
        self._folder = folder
        self._clock = clock
        self._signs = Seldom(_SECONDS_BETWEEN_SIGNS)
        self._unwritten: str | None = None
        self.status = Status(since=_now())
        self._tell()  # or what the last run left would be taken for this one's

    def begun(self, snapshot: Snapshot, slots: Slots, lateness: int, last_slot: int | None) -> None:
        """Tell where the run goes on: the slots of the stream, and microseconds till they close."""
        done = Released(slots, lateness, snapshot.first_slot, snapshot.next_slot, last_slot)
        self._tell(condition=RUNNING, released=done, clock=self._clock())

    def passing(self) -> None:
        """Tell that a pass begins."""
        self._tell(passing=_now())

    def passed(self, due: Pass, summary: Summary) -> None:
        """Tell of a pass that is committed."""
        before = self.status
        assert before.released is not None
        done = before.released.after(
            due.last_slot + 1, summary.statuses, summary.largest_window_use
        )
        self._signs.reset()  # the pass has a line of its own
        clock, now = self._clock(), _now()
        took = now - (now if before.passing is None else before.passing)
        self._tell(
            released=done,
            clock=clock,
            delay=max(clock - done.closing(due.last_slot), 0),
            passing=None,
            passed=now,
            longest=max(before.longest, took),
            passes=before.passes + 1,
            totals=Summary.total([before.totals, summary]),
        )

    def looked(self, waits_for: str | None = None) -> None:
        """Tell of a look for slots to release; `waits_for` is what the oldest open one lacks."""
        now = _now()
        self._tell(looked=now, passing=None, clock=self._clock(), waits_for=waits_for)
        if self._signs.is_time():
            tell(self.status.sentence)

    def failed(self, error: BaseException) -> None:
        """Tell of an error; the run may go on all the same."""
        ours = isinstance(error, ConfigurationError)
        self._tell(error=in_one_line(str(error)) if ours else reason_of(error), failed=_now())

    def ended(self, condition: str) -> None:
        """Tell that the run is over, and how."""
        self._tell(condition=condition)

    def _tell(self, **known: object) -> None:
        """Take down what is known, and write it to the folder, if that can be done."""
        self.status = dataclasses.replace(self.status, **known)  # type: ignore[arg-type]
        try:
            self.status = dataclasses.replace(self.status, state_bytes=self._folder.size)
            self._folder.tell(json.dumps(self.status.record(), indent=1) + "\n")
            self._unwritten = None
        except OSError as error:
            why = f"{error.filename2 or error.filename}: {error.strerror}"
            if why != self._unwritten:
                _LOGGER.warning(
                    "the status of the run cannot be written: %s: fix that, and do not trust the "
                    "file until then; nothing else depends on it",
                    why,
                )
            self._unwritten = why


@contextmanager
def monitored(folder: StateFolder, clock: Callable[[], int], exports: Exports) -> Iterator[Monitor]:
    """Tell of a run while the block lasts, and how it ends. Raises ConfigurationError."""
    monitor = Monitor(folder, clock)

    def read() -> Iterator[Sample]:
        return samples(exports.group, monitor.status)

    with ExitStack() as stack:  # what is collected hears of the end before it goes
        try:
            stack.enter_context(exports.open(read))
            yield monitor
        except BaseException as error:
            monitor.failed(error)
            monitor.ended(FAILED)
            raise
        monitor.ended(ENDED)


def _now() -> int:
    return time.time_ns() // 1000
