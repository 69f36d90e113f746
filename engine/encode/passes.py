"""Which events a pass takes when a stream is released pass by pass, a range of slots in each.

A file is read for the first time in the pass after it appears, and again in every pass that holds
slots of it that were not due before. Each of its events is judged in just one of these passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamveil.engine import metrics
from streamveil.engine.encode.dead_letters import (
    losses_of,
    naming_source,
    rejected_rows,
    source_of,
    tally_of,
    with_tally,
)
from streamveil.engine.encode.event_mapper import Columns, slots_of
from streamveil.engine.messages import REJECTED, WAITING, Output
from streamveil.mechanisms.core.event_tallies import LATE, EventTally
from streamveil.mechanisms.core.records import Slots

# A slot is null where the source could not be read to its end.
WAITING_SCHEMA = pa.schema([("source", pa.string()), ("slot", pa.int64())])


@dataclass(frozen=True)
class Pass:
    """The slots that one run releases of a longer stream."""

    stream_start: int
    """First slot of the stream."""
    first_slot: int
    """First slot that is not released yet."""
    last_slot: int
    """Last slot that this run releases."""


@dataclass(frozen=True)
class PassSplit:
    """Splits batches into events of a pass, late ones, and those of later passes."""

    current: Pass
    columns: Columns
    slots: Slots
    again: bool = False
    """Whether an earlier pass read these sources: what was not waiting then was judged there."""

    def split(self, batch: pa.RecordBatch) -> Iterator[Output]:
        """Split a batch, and count its events that are late or wait.

        Args:
            batch: events, which say what was lost on the way to them.

        Yields:
            Dead letters of the late events (`REJECTED`), the first slot of a later pass
            (`WAITING`, of `WAITING_SCHEMA`) and the events of this pass, which say what was lost.
            Rows before the stream or without a time are among these, unless an earlier pass had
            them. What would be empty is left out, but a batch without rows stays.

        Raises:
            ConfigurationError: for a column of times that is missing or of another type.
        """
        if not batch.num_rows:  # it may have no columns
            yield Output(batch)
            return
        current = self.current
        with naming_source(batch):
            slots, bad_times = slots_of(batch, self.columns, self.slots)
        timed = np.ones(len(slots), bool)
        timed[list(bad_times)] = False
        ahead = timed & (slots > current.last_slot)
        take = timed & (slots >= current.first_slot) & ~ahead
        lost = tally_of(batch)
        if not self.again:
            take |= ~timed | (slots < current.stream_start)
            late = ~take & ~ahead
            if late.any():
                letters = self._late(batch, late)
                yield Output(letters, REJECTED)
                lost = EventTally.total([lost, EventTally(letters.num_rows, losses_of(letters))])
        if ahead.any():
            metrics.count(metrics.EVENTS_WAITING, int(ahead.sum()))
            row = {"source": source_of(batch), "slot": int(slots[ahead].min())}
            yield Output(pa.RecordBatch.from_pylist([row], WAITING_SCHEMA), WAITING)
        if take.any() or lost.read:
            taken = batch if take.all() else batch.filter(pa.array(take))
            yield Output(with_tally(taken, lost))

    def _late(self, batch: pa.RecordBatch, late: npt.NDArray[np.bool_]) -> pa.RecordBatch:
        """Dead letters of the late rows, which are counted."""
        rows = np.flatnonzero(late).tolist()
        metrics.count(metrics.EVENTS_READ, len(rows))
        metrics.count(metrics.EVENTS_LATE, len(rows))
        return rejected_rows(batch, dict.fromkeys(rows, LATE), self._detail)

    def _detail(self, reason: str, record: dict[str, Any]) -> str:
        name = self.columns.time
        return f"{name} is {record[name]}, in a slot that was released before"
