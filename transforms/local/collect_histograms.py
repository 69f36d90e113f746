"""The local setting played through: raw events in, releases out, and no raw value at the server."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import apache_beam as beam
import pyarrow as pa
from apache_beam.typehints import KV

from streamveil.engine.count.loss_limit import LossLimit
from streamveil.engine.messages import DONE, LEDGER, REVISED, REVISIONS, STATE
from streamveil.engine.slot_clock import SlotClock
from streamveil.engine.stream.local_plan import LOCAL, LocalPlan, slots_sent
from streamveil.engine.stream.release_in_time import ReleaseInTime
from streamveil.engine.stream.release_slots import release_at_end
from streamveil.mechanisms.core.records import LedgerEntry, Release, Revision
from streamveil.transforms.at_end import AtEnd
from streamveil.transforms.counting.count_events import Asked, Counted, count_events
from streamveil.transforms.counting.loss_limit import refuse_loss
from streamveil.transforms.in_time import InTime
from streamveil.transforms.on_beam import Message
from streamveil.transforms.release_rows import WithRows
from streamveil.transforms.row_batches import as_batches
from streamveil.transforms.slots.checkpoint_hold import settled
from streamveil.transforms.stream_options import StreamOptions

_BY_STREAM = KV[str, Message]


class _Collected(NamedTuple):
    releases: beam.PCollection[Release]
    """One for each slot: safe to publish."""
    ledger: beam.PCollection[LedgerEntry]
    """One for each slot: for every class, what the slot and the window that ends with it cost the
    user of the class whom they cost most. Public as well."""
    rejected: beam.PCollection[pa.RecordBatch]
    """Dead letters, of `io.REJECTED_SCHEMA`: raw data, for the operator only."""
    state: beam.PCollection[tuple[int, bytes]]
    """Of a bounded input, as :class:`PrivateHistograms` has it: what all devices and the server
    remember, in one."""
    revisions: beam.PCollection[Revision]
    """With `revise` one for each slot, so many slots later: safe to publish."""


class Collected(WithRows, _Collected):
    """What the local setting gives, and `rows` of the releases."""

    revised: beam.PCollection[int] | None = None
    """Of a bounded input how many revisions there are, as `done` has it of the releases."""


@dataclass(eq=False)
class CollectHistograms(StreamOptions, LocalPlan, beam.PTransform):
    """Release a histogram per slot from reports of devices, all of which are played here.

    Input: as :class:`PrivateHistograms` takes events, bounded or not. Output: :class:`Collected`.

    An edge stage holds the raw events, plays a device for every registered user, and tells the
    server stage tallies of perturbed reports: they are all that crosses. A device that is asked
    always reports, if only that its user had no event, so presence shows as little as values.

    Guarantee: (w, E)-event personalised *local* differential privacy. For every user with
    requirement (w, E), the joint distribution of all that crosses to the server about any w
    consecutive slots changes by at most a factor exp(E) when that user's events in them are any
    others, or none. The registry, the domain, the slots and the range of slots are public.
    Rejected events, counters and logs are raw. As with :class:`PrivateHistograms`, each run starts
    filters of its own, and one key is for one input.

    A user's symbol in a slot is one bin: of several events one counts, chosen by a rule that looks
    only at that user's events. `counts` are estimated shares times the number of users.

    Raises:
        ConfigurationError: at construction for options that do not fit, such as a registry with a
            requirement for users outside it; when the pipeline runs as :class:`PrivateHistograms`.
        ValueError: when applied to a windowed or triggered input.
    """

    def expand(self, events: beam.PCollection[Any]) -> Collected:
        """Build the pipeline: events -> batches -> visits -> tallies -> releases."""
        batches = as_batches(events, self.columns.names, self.event_mapper)
        visits = self._visits(batches)
        edge = self.edge_config(visits.layout, visits.clock)
        serving = self.server_config(visits.clock)
        counts, ticks = visits.counts, visits.ticks
        if visits.bounded:
            ticks = (*ticks, refuse_loss(visits.tallies, LossLimit.of(self), LOCAL))
        else:
            counts = settled(counts, [LOCAL], self.settle)
        told = (counts, *ticks) | "AddTicks" >> beam.Flatten()
        if visits.bounded:
            answered = (
                told
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
            tallies = told | "Edge" >> beam.ParDo(InTime(ReleaseInTime(edge))).with_output_types(
                _BY_STREAM
            )
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
        outputs = Collected(
            released.releases, released[LEDGER], rejected, state, released[REVISIONS]
        )
        done, revised = (released[tag] if visits.bounded else None for tag in (DONE, REVISED))
        outputs.revised = revised
        return outputs.completed(self.domain.labels, done)

    def _visits(self, batches: beam.PCollection[pa.RecordBatch]) -> Counted:
        """Batches -> codes -> visits of registered users."""
        bounded = batches.is_bounded
        layout = self.layout(bounded)
        on_workers = copy.copy(self)
        on_workers.heartbeat = None  # it may hold parts of the pipeline
        # Nor is the state for them.
        on_workers.resume = on_workers._edge_resume = on_workers._server_resume = None
        on_workers.moves = None
        return count_events(
            batches,
            on_workers.event_mapper,
            on_workers.counter(layout),
            SlotClock(self.slots, 0 if bounded else int(self.allowed_lateness)),
            Asked(self.first_slot, self.last_slot),
            self.heartbeat,
            bounded=bounded,
        )
