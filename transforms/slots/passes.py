"""Which events a pass takes when a stream is released pass by pass, a range of slots in each.

A file is read for the first time in the pass after it appears, and again in every pass that holds
slots of its that were not in one before. Each of its events is judged in just one of these passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import pyarrow as pa

from streamveil.engine.encode.dead_letters import (
    losses_of,
    naming_source,
    rejected_rows,
    source_of,
    tally_of,
    with_tally,
)
from streamveil.engine.encode.event_mapper import Columns, slots_of
from streamveil.engine.messages import REJECTED, WAITING
from streamveil.mechanisms.core.event_tallies import LATE, EventTally
from streamveil.mechanisms.core.records import Slots
from streamveil.transforms.on_beam import metrics

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


class PassEvents(NamedTuple):
    """What :class:`SplitByPass` gives."""

    batches: beam.PCollection[pa.RecordBatch]
    """What the pass has to count or to reject; they say what was lost on the way to them."""
    rejected: beam.PCollection[pa.RecordBatch]
    """Dead letters of events whose slot was released before they came."""
    waiting: beam.PCollection[pa.RecordBatch]
    """Of `WAITING_SCHEMA`: a source with events of later slots, and the first such slot of a
    batch."""


@beam.typehints.with_input_types(pa.RecordBatch)
@dataclass(eq=False)
class SplitByPass(beam.PTransform):
    """Split what was read into events of this pass, late ones, and those of later passes.

    Rows before the stream or without a time stay in the batches, for :class:`PrivateHistograms` to
    reject, unless an earlier pass had them. Raises ConfigurationError, when the pipeline runs, for
    a column of times that is missing or of another type.
    """

    current: Pass
    columns: Columns
    slots: Slots
    again: bool = False
    """Whether an earlier pass read these sources: what was not waiting then was judged there."""

    def __post_init__(self) -> None:
        """Make it a transform."""
        super().__init__()

    def expand(self, batches: beam.PCollection[pa.RecordBatch]) -> PassEvents:
        """Build the step."""
        split = batches | "Split" >> beam.ParDo(
            _SplitByPassFn(self.current, self.columns, self.slots, self.again)
        ).with_outputs(REJECTED, WAITING, main="batches")
        for output in (split.batches, split[REJECTED], split[WAITING]):
            output.element_type = pa.RecordBatch
        return PassEvents(split.batches, split[REJECTED], split[WAITING])


class _SplitByPassFn(beam.DoFn):
    def __init__(self, current: Pass, columns: Columns, slots: Slots, again: bool) -> None:
        self._pass = current
        self._columns = columns
        self._slots = slots
        self._again = again

    def process(self, element: pa.RecordBatch) -> Iterator[Any]:
        if not element.num_rows:  # it may have no columns
            yield element
            return
        current = self._pass
        with naming_source(element):
            slots, bad_times = slots_of(element, self._columns, self._slots)
        timed = np.ones(len(slots), bool)
        timed[list(bad_times)] = False
        ahead = timed & (slots > current.last_slot)
        take = timed & (slots >= current.first_slot) & ~ahead
        lost = tally_of(element)
        if not self._again:
            take |= ~timed | (slots < current.stream_start)
            late = ~take & ~ahead
            if late.any():
                rows = np.flatnonzero(late).tolist()
                metrics.count(metrics.EVENTS_READ, len(rows))
                metrics.count(metrics.EVENTS_LATE, len(rows))
                letters = rejected_rows(element, dict.fromkeys(rows, LATE), self._detail)
                yield beam.pvalue.TaggedOutput(REJECTED, letters)
                lost = EventTally.total([lost, EventTally(len(rows), losses_of(letters))])
        if ahead.any():
            metrics.count(metrics.EVENTS_WAITING, int(ahead.sum()))
            row = {"source": source_of(element), "slot": int(slots[ahead].min())}
            waiting = pa.RecordBatch.from_pylist([row], WAITING_SCHEMA)
            yield beam.pvalue.TaggedOutput(WAITING, waiting)
        if take.any() or lost.read:
            taken = element if take.all() else element.filter(pa.array(take))
            yield with_tally(taken, lost)

    def _detail(self, reason: str, record: dict[str, Any]) -> str:
        name = self._columns.time
        return f"{name} is {record[name]}, in a slot that was released before"
