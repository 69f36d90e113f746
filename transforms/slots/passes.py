"""The events of one pass, as a step: see :class:`PassSplit`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import apache_beam as beam
import pyarrow as pa

from streamveil.engine.encode.event_mapper import Columns
from streamveil.engine.encode.passes import Pass, PassSplit
from streamveil.engine.messages import REJECTED, WAITING
from streamveil.mechanisms.core.records import Slots
from streamveil.transforms.on_beam import emitted


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
        step = PassSplit(self.current, self.columns, self.slots, self.again)
        split = batches | "Split" >> beam.ParDo(_SplitByPassFn(step)).with_outputs(
            REJECTED, WAITING, main="batches"
        )
        for output in (split.batches, split[REJECTED], split[WAITING]):
            output.element_type = pa.RecordBatch
        return PassEvents(split.batches, split[REJECTED], split[WAITING])


class _SplitByPassFn(beam.DoFn):
    def __init__(self, split: PassSplit) -> None:
        self._split = split

    def process(self, element: pa.RecordBatch) -> Iterator[Any]:
        return map(emitted, self._split.split(element))
