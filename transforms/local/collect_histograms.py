"""The local setting played through: raw events in, releases out, and no raw value at the server."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam.typehints import KV

from streamveil.engine.count.loss_limit import LossLimit
from streamveil.engine.messages import DONE, LEDGER, REVISED, REVISIONS, STATE
from streamveil.engine.slot_clock import SlotClock
from streamveil.engine.stream.local_plan import LOCAL, LocalPlan, slots_sent
from streamveil.engine.stream.release_in_time import ReleaseInTime
from streamveil.engine.stream.release_slots import release_at_end
from streamveil.engine.stream.steps import CountSteps
from streamveil.mechanisms.core.records import LedgerEntry, Release, Revision
from streamveil.transforms.at_end import AtEnd
from streamveil.transforms.counting.count_events import count_events
from streamveil.transforms.counting.loss_limit import refuse_loss
from streamveil.transforms.in_time import InTime
from streamveil.transforms.on_beam import Message
from streamveil.transforms.release_plan import QueryOutputs
from streamveil.transforms.row_batches import as_batches
from streamveil.transforms.slots.checkpoint_hold import settled
from streamveil.transforms.stream_options import StreamOptions

_BY_STREAM = KV[str, Message]


@dataclass(eq=False)
class CollectHistograms(StreamOptions, LocalPlan, beam.PTransform):
    """Release a count by key and slot under local differential privacy, from simulated devices.

    The input is a bounded or unbounded PCollection of events, in the form that
    :class:`PrivateQueries` accepts. The output is :class:`QueryOutputs`.

    The pipeline has two stages. The first stage simulates a device for each user in the
    requirements table. Each device adds noise to its reports. The second stage plays the server,
    and receives only the sums of these noisy reports. If a device is selected for a slot, it always
    reports, even if its user had no event in the slot. Therefore, the existence of a report does
    not reveal whether the user had an event.

    **Guarantee.** The reports satisfy personalised w-event *local* differential privacy. Take a
    user with budget epsilon over a window of w slots. If the user's events in any w consecutive
    slots are removed, or replaced by any other events, then the joint distribution of all reports
    about these slots changes by a factor of at most exp(epsilon).

    **Limits of the guarantee.** The requirements, the keys and the range of slots are public. Dead
    letters, counters and logs are not protected. The privacy losses of separate runs add up. If you
    repeat a run on the same input, use the same noise key, so that the repeated run gives the same
    reports.

    Each user contributes at most one event per slot. The choice of this event depends only on this
    user's events. The released `counts` are the estimated frequencies of the keys, multiplied by
    the number of users.

    Raises:
        ConfigurationError: when you make the transform, if options are not valid, for example if
            there is a requirement for unregistered users. When the pipeline runs, this error is
            raised for the same reasons as by :class:`PrivateQueries`.
        ValueError: when you apply the transform to a PCollection that has windows or triggers.
    """

    def expand(self, events: beam.PCollection[Any]) -> QueryOutputs:
        """Build the pipeline."""
        batches = as_batches(events, self.columns.names, self.event_mapper)
        steps = self._steps(bounded=batches.is_bounded)
        visits = count_events(batches, steps, self.heartbeat)
        edge = self.edge_config(steps.layout, steps.clock)
        serving = self.server_config(steps.clock)
        counts, ticks = visits.counts, visits.ticks
        if steps.bounded:
            ticks = (*ticks, refuse_loss(visits.tallies, LossLimit.of(self), LOCAL))
        else:
            counts = settled(counts, [LOCAL], self.settle)
        counts_and_ticks = (counts, *ticks) | "AddTicks" >> beam.Flatten()
        if steps.bounded:
            answered = (
                counts_and_ticks
                | "GatherVisits" >> beam.GroupByKey()
                | "Edge"
                >> beam.ParDo(AtEnd(partial(release_at_end, edge))).with_outputs(
                    STATE, DONE, REVISED, main="tallies"
                )
            )
            answered.tallies.element_type = _BY_STREAM
            state = answered[STATE]
            answered[DONE].element_type = answered[REVISED].element_type = int
            word = answered[DONE] | "TellServer" >> beam.Map(slots_sent).with_output_types(
                _BY_STREAM
            )
            crossing = (
                (answered.tallies, word)
                | "AddWord" >> beam.Flatten()
                | "GatherTallies" >> beam.GroupByKey()
            )
            server: beam.DoFn = AtEnd(partial(release_at_end, serving))
        else:
            tallies = counts_and_ticks | "Edge" >> beam.ParDo(
                InTime(ReleaseInTime(edge))
            ).with_output_types(_BY_STREAM)
            state = batches.pipeline | "NoState" >> beam.Create([])
            # Slots come in any order, so the server must know the first.
            crossing = (tallies, *visits.ticks) | "AddStart" >> beam.Flatten()
            server = InTime(ReleaseInTime(serving))
        released = crossing | "Server" >> beam.ParDo(server).with_outputs(
            LEDGER, REVISIONS, DONE, REVISED, main="releases"
        )
        released.releases.element_type = Release
        released[LEDGER].element_type = LedgerEntry
        released[REVISIONS].element_type = Revision
        released[DONE].element_type = released[REVISED].element_type = int
        rejected = visits.rejected | "AllRejected" >> beam.Flatten()
        state.element_type = tuple[int, bytes]
        done, revised = (released[tag] if steps.bounded else None for tag in (DONE, REVISED))
        return QueryOutputs(
            *(released.releases, released[LEDGER], rejected, state, released[REVISIONS]),
            *(done, done, revised),
        ).of_counts(self.domain.labels)

    def _steps(self, *, bounded: bool) -> CountSteps:
        """From batches to the visits of registered users."""
        layout = self.layout(bounded)
        on_workers = copy.copy(self)
        on_workers.heartbeat = None  # it may hold parts of the pipeline
        # Nor is the state for them.
        on_workers.resume = on_workers._edge_resume = on_workers._server_resume = None
        on_workers.moves = None
        return CountSteps(
            stream=LOCAL,
            bounded=bounded,
            layout=layout,
            clock=SlotClock(self.slots, 0 if bounded else int(self.allowed_lateness)),
            first_slot=self.first_slot,
            last_slot=self.last_slot,
            make_mapper=on_workers.event_mapper,
            counter=on_workers.counter(layout),
        )
