"""From events to private releases: the one transform that a user drops between source and sink."""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import apache_beam as beam
import pyarrow as pa

from streamveil.engine.count.loss_limit import LossLimit
from streamveil.engine.messages import DONE, LEDGER, REVISED, REVISIONS, STATE
from streamveil.engine.slot_clock import SlotClock
from streamveil.engine.stream.histogram_plan import HISTOGRAMS, HistogramPlan
from streamveil.engine.stream.release_in_time import ReleaseInTime
from streamveil.engine.stream.release_slots import release_at_end
from streamveil.mechanisms.core.records import (
    CHANGE_COLUMNS,
    ConfigurationError,
    DynamicLedgerEntry,
    LedgerEntry,
    Release,
    Revision,
)
from streamveil.transforms.at_end import AtEnd
from streamveil.transforms.counting.count_events import Asked, Counted, count_events
from streamveil.transforms.counting.count_shards import CountShards
from streamveil.transforms.counting.limit_choice import ChooseLimits
from streamveil.transforms.counting.loss_limit import refuse_loss
from streamveil.transforms.in_time import InTime
from streamveil.transforms.release_rows import WithRows
from streamveil.transforms.row_batches import as_batches
from streamveil.transforms.slots.checkpoint_hold import settled
from streamveil.transforms.stream_options import StreamOptions

_LOGGER = logging.getLogger("streamveil")


class _Outputs(NamedTuple):
    releases: beam.PCollection[Release]
    """One for each slot: safe to publish."""
    ledger: beam.PCollection[LedgerEntry] | beam.PCollection[DynamicLedgerEntry]
    """One for each slot: what it cost every class, or every ledger where requirements change;
    public as well."""
    rejected: beam.PCollection[pa.RecordBatch]
    """Dead letters, of `io.REJECTED_SCHEMA`: raw data, for the operator only."""
    state: beam.PCollection[tuple[int, bytes]]
    """Of a bounded input: the slot that comes next and what a run that goes on from there takes
    as `resume`. The largest slot counts. It is private: it holds a digest of the true counts. Where
    changes are given, only a transform that is `changing` tells it."""
    revisions: beam.PCollection[Revision]
    """With `revise` one for each slot, so many slots later: safe to publish."""


class Outputs(WithRows, _Outputs):
    """What :class:`PrivateHistograms` gives, and `rows` of the releases."""

    revised: beam.PCollection[int] | None = None
    """Of a bounded input how many revisions there are, as `done` has it of the releases."""


@dataclass(eq=False)
class PrivateHistograms(StreamOptions, HistogramPlan, beam.PTransform):
    """Release a private histogram per slot, keeping every user's requirement.

    Input: a PCollection of events with at least the columns named in `columns`, bounded or not, in
    the global window: Arrow record batches (pyarrow.RecordBatch), rows with a schema (beam.Row or
    a NamedTuple) or dictionaries (see :mod:`streamveil.transforms.row_batches`); or a tuple of
    such events and changes of requirements, with the columns of `io.requirement_changes`. Output:
    :class:`Outputs`.

    Guarantee: (w, E)-event personalised differential privacy. For every user with requirement
    (w, E), the joint distribution of all releases of any w consecutive slots changes by at most a
    factor exp(E) when all of that user's events in them are added or removed
    (`adjacency="add_remove"`) or any of them replaced by others (`"replace"`). This holds for one
    run: each run starts a ledger of its own, so runs over adjacent slots add up in the windows
    that span them, and runs over the same slots add up entirely. The registry, the domain, the
    slots and the range of slots are taken as public. Rejected events, counters and logs are raw
    and not covered. With `resume` the ledgers of an earlier run go on.

    If the registry is of one `Lifetime(epsilon)`, the guarantee is epsilon-differential privacy for
    all that a user ever contributes, in however many slots. With a `limit` for a life neighbours
    differ in all of it, the mechanism is one of `MECHANISMS`, and the users outside the table need
    not be numbered: 0. Without one it is one of `INFINITE_MECHANISMS`; releases then have `shares`,
    the released distribution, and say among their diagnostics how old it is and what is left of the
    budget.

    Where requirements change, from the slot on from which a change applies: for every slot t with
    the requirement (w_B, E_B, w_F, E_F) in force, the factor is exp(E_F) over the w_F slots from t
    on, whatever is asked for later, and exp(E_B) over the w_B slots up to t, unless earlier slots
    had spent more before it was asked for; then slot t reveals nothing about that user. Changes
    are taken as public. With a `limit`, what applies from a slot on is in force from the user's
    next block on, and looking back a longest window later: see `mechanisms/presence/changing.py`.

    Without `first_slot` and `last_slot` the range of a bounded input runs from the first to the
    last slot with an accepted event, which then counts as public too.

    The range of an unbounded input runs from `first_slot`, or else from the first slot that the
    heartbeat emits, to the last one that it emits. Every slot in it, busy or quiet, is released
    once, when the watermark of events and heartbeat has passed its end by `allowed_lateness`. That
    moment is the event time of the release. Events that come after it are rejected as late.

    Raises:
        ConfigurationError: at construction for options that do not fit; when applied, for fields
            of rows that are missing or of a wrong type; when the pipeline runs, for such columns
            of record batches. A bounded input fails before anything
            is released; in an unbounded one, slots that were released before the fault stay
            released.
        InputLost: when the pipeline runs, for a bounded input of which no event is counted, or more
            is lost than `max_rejected`.
        ValueError: when applied to a windowed or triggered input, which cannot be accounted for.
    """

    def expand(
        self,
        inputs: beam.PCollection[Any] | tuple[beam.PCollection[Any], beam.PCollection[Any]],
    ) -> Outputs:
        """Build the pipeline: events -> batches -> codes -> counts -> releases."""
        events, changes = inputs if isinstance(inputs, tuple) else (inputs, None)
        self.check_look()
        batches = as_batches(events, self.columns.names, self.event_mapper)
        if changes is None and self._dynamic:
            changes = batches.pipeline | "NoChanges" >> beam.Create([], reshuffle=False)
            changes.element_type = pa.RecordBatch
        if changes is not None:
            changes = as_batches(
                changes,
                CHANGE_COLUMNS,
                self.change_mapper,
                what="changes",
                optional=("slot", "time"),
            )
        counted = self._count(batches, changes)
        config = self.release_config(counted.layout, counted.clock, changes=changes is not None)
        told = counted.counts
        if not counted.bounded:
            told = settled(told, [HISTOGRAMS], self.settle)
        ticks = counted.ticks
        if counted.bounded:
            ticks = (*ticks, refuse_loss(counted.tallies, LossLimit.of(self), HISTOGRAMS))
        counts = (told, *ticks) | "AddTicks" >> beam.Flatten()
        releasing: beam.DoFn = InTime(ReleaseInTime(config))
        if counted.bounded:
            counts |= "GatherCounts" >> beam.GroupByKey()
            releasing = AtEnd(partial(release_at_end, config))
        released = counts | "ReleaseSlots" >> beam.ParDo(releasing).with_outputs(
            LEDGER, STATE, REVISIONS, DONE, REVISED, main="releases"
        )
        released.releases.element_type = Release
        released[LEDGER].element_type = LedgerEntry
        released[REVISIONS].element_type = Revision
        released[STATE].element_type = tuple[int, bytes]
        released[DONE].element_type = released[REVISED].element_type = int
        rejected = counted.rejected | "AllRejected" >> beam.Flatten()
        outputs = Outputs(
            released.releases, released[LEDGER], rejected, released[STATE], released[REVISIONS]
        )
        done, revised = (released[tag] if counted.bounded else None for tag in (DONE, REVISED))
        outputs.revised = revised
        return outputs.completed(self.domain.labels, done)

    def _by_shard(
        self,
        counted: Counted,
        changes: beam.PCollection[pa.RecordBatch] | None,
        on_workers: PrivateHistograms,
    ) -> Counted:
        """(shard, Visits) become (stream, counts), slot by slot: see :class:`CountShards`."""
        bounded = counted.bounded
        keeps = bounded and self.keeps_state(changes=changes is not None)
        logic = on_workers.shard_logic(
            counted.layout, counted.clock, changes=changes is not None, keeps=keeps
        )
        looks, choice = self.limit_choice(logic), None
        if looks is not None:
            if not bounded:
                raise ConfigurationError(
                    "max_slots=auto looks at users before anything is released, so the input must "
                    "end: release it pass by pass (--state), or say max_slots, or auto and the "
                    "share of the slots in which users are there, such as auto:0.05"
                )
            choice = ChooseLimits(looks, counted.tallies, LossLimit.of(self))
        starts = None if bounded else counted.ticks[0]
        by_shard = counted.counts | "CountShards" >> CountShards(
            logic, starts, self._kept, choice, changes
        )
        return counted._replace(
            counts=by_shard.counts,
            rejected=(*counted.rejected, *by_shard.rejected),
            tallies=(*counted.tallies, *by_shard.tallies) if bounded else (),
        )

    def _count(
        self,
        batches: beam.PCollection[pa.RecordBatch],
        changes: beam.PCollection[pa.RecordBatch] | None,
    ) -> Counted:
        """Batches -> codes -> counts, by class or, where requirements change, by cohort."""
        bounded = batches.is_bounded
        dynamic = changes is not None
        if changes is not None:
            bounded &= changes.is_bounded
        self.check_changes(changes=dynamic, bounded=bounded)
        layout = self.layout(bounded)
        on_workers = copy.copy(self)
        on_workers.heartbeat = None  # it may hold parts of the pipeline
        on_workers.resume, on_workers._kept = None, []  # nor is the state for them
        counted = count_events(
            batches,
            partial(on_workers.event_mapper, dynamic),
            on_workers.counter(layout, by_user=dynamic or self.limits is not None),
            SlotClock(self.slots, 0 if bounded else int(self.allowed_lateness)),
            Asked(self.first_slot, self.last_slot),
            self.heartbeat,
            bounded=bounded,
        )
        if changes is None and self.limits is None:
            return counted
        return self._by_shard(counted, changes, on_workers)
