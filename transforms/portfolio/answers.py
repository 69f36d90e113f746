"""From events to the private answers of a portfolio: one pass, one budget, many questions."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import apache_beam as beam
import pyarrow as pa

from streamveil.engine.count.loss_limit import LossLimit
from streamveil.engine.encode.query_mapper import slices_of
from streamveil.engine.messages import BOOKED, DONE, LEDGER, REVISED, STATE
from streamveil.engine.slot_clock import SlotClock
from streamveil.engine.stream.query_plan import QUERIES, QueryPlan
from streamveil.engine.stream.release_in_time import ReleaseInTime
from streamveil.engine.stream.release_slots import release_at_end
from streamveil.mechanisms.portfolio.portfolio_stream import PortfolioEntry
from streamveil.mechanisms.portfolio.slot_answers import SlotAnswer
from streamveil.transforms.at_end import AtEnd
from streamveil.transforms.counting.count_events import Asked, Counted, count_events
from streamveil.transforms.counting.loss_limit import refuse_loss
from streamveil.transforms.in_time import InTime
from streamveil.transforms.portfolio.bounds_choice import ChooseBounds
from streamveil.transforms.row_batches import as_batches
from streamveil.transforms.slots.checkpoint_hold import settled
from streamveil.transforms.stream_options import StreamOptions


class Answers(NamedTuple):
    """What :class:`PrivateAnswers` gives."""

    answers: beam.PCollection[SlotAnswer]
    """One for each slot of each question: safe to publish."""
    ledger: beam.PCollection[PortfolioEntry]
    """One for each of these: what it cost every class; public as well."""
    rejected: beam.PCollection[pa.RecordBatch]
    """Dead letters, of `io.REJECTED_SCHEMA`: raw data, for the operator only. An event that several
    questions cannot read is one of the first of them."""
    state: beam.PCollection[tuple[int, bytes]]
    """Of a bounded input, unless its end cuts the last slot of a question off: the base slot that
    comes next and what a run that goes on from there takes as `resume`. It is private."""
    done: beam.PCollection[int] | None
    """Of a bounded input one element, once all is released: how many answers there are. None for an
    input without end."""
    booked: beam.PCollection[int] | None
    """The same for entries of the ledger: longer times have none."""


@dataclass(eq=False)
class PrivateAnswers(StreamOptions, QueryPlan, beam.PTransform):
    """Answer all questions of a portfolio from one pass over the events.

    Input: as of :class:`PrivateHistograms`, with the columns that :func:`columns_for` names.
    Output: :class:`Answers`.

    Guarantee: (w, E)-event personalised differential privacy of all answers together. For every
    user with requirement (w, E), the joint distribution of all answers to all questions whose slots
    meet any w consecutive base slots changes by at most a factor exp(E) when all of that user's
    events in these base slots are added or removed (`adjacency="add_remove"`) or any of them
    replaced by others (`"replace"`). What is public, what is raw and what a run is are as in
    :class:`PrivateHistograms`; the questions are public.

    With `first_slot` and `last_slot` events in these base slots count. Base slots run on to the end
    of all questions' slots that hold one of them: these, and the first ones, may be in part.
    Without them the range is that of the events. A longer time of a question (`times`) is answered
    with the slot that ends it, and at the end of the stream as far as it goes.

    A slot of a question in an unbounded input is answered when the watermark has passed its end by
    `allowed_lateness`. An event may so come too late for one question and not for another.

    Raises:
        ConfigurationError: at construction for options that do not fit, with the name of the
            question; else as :class:`PrivateHistograms`.
        InputLost, ValueError: as there.
    """

    def expand(self, events: beam.PCollection[Any]) -> Answers:
        """Build the pipeline: events -> batches -> codes -> histograms -> answers."""
        batches = as_batches(events, self.columns.names, self.event_mapper)
        counted = self._count(batches)
        config = self.release_config(counted.layout, counted.clock)
        told = counted.counts
        releasing: beam.DoFn
        if counted.bounded:
            word = refuse_loss(counted.tallies, LossLimit.of(self), QUERIES)
            counts = (told, *counted.ticks, word) | "AddTicks" >> beam.Flatten()
            counts |= "GatherCounts" >> beam.GroupByKey()
            releasing = AtEnd(partial(release_at_end, config))
        else:
            told = settled(told, [QUERIES], self.settle)
            counts = (told, *counted.ticks) | "AddTicks" >> beam.Flatten()
            releasing = InTime(ReleaseInTime(config))
        released = counts | "ReleaseSlots" >> beam.ParDo(releasing).with_outputs(
            LEDGER, STATE, DONE, BOOKED, REVISED, main="answers"
        )
        released.answers.element_type = SlotAnswer
        released[LEDGER].element_type = PortfolioEntry
        released[STATE].element_type = tuple[int, bytes]
        released[DONE].element_type = released[BOOKED].element_type = int
        rejected = counted.rejected | "AllRejected" >> beam.Flatten()
        return Answers(
            released.answers,
            released[LEDGER],
            rejected,
            released[STATE],
            *(released[tag] if counted.bounded else None for tag in (DONE, BOOKED)),
        )

    def _count(self, batches: beam.PCollection[pa.RecordBatch]) -> Counted:
        """Batches -> codes -> histograms by class."""
        bounded = batches.is_bounded
        self.check(bounded=bounded)
        on_workers = copy.copy(self)
        on_workers.heartbeat = None  # it may hold parts of the pipeline
        on_workers.resume = None  # nor is the state for them
        slices = batches | "SliceBatches" >> beam.FlatMap(slices_of)
        slices.element_type = pa.RecordBatch
        choice, chosen = self.bounds_choice(on_workers), None
        if choice is not None:
            chosen = slices | "LookAtNumbers" >> ChooseBounds(choice, LossLimit.of(self))
        counted = count_events(
            slices,
            on_workers.event_mapper,
            on_workers.counter(bounded),
            SlotClock(self.slots, 0 if bounded else int(self.allowed_lateness)),
            Asked(self.first_slot, self.end),
            self.heartbeat,
            bounded=bounded,
            chosen=chosen and chosen.bounds,
            kept=self.kept(bounded),
        )
        if chosen is None:
            return counted
        return counted._replace(
            ticks=(*counted.ticks, chosen.told), tallies=(*counted.tallies, chosen.tallies)
        )
