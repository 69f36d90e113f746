"""The local setting played through: raw events in, releases out, and no raw value at the server."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import NamedTuple

import apache_beam as beam
import pyarrow as pa
from apache_beam.typehints import KV

from streamveil.mechanisms.domains import Domain
from streamveil.mechanisms.local.registry import LOCAL_DEFAULT
from streamveil.mechanisms.records import LedgerEntry, Release, Slots
from streamveil.mechanisms.users import Registry
from streamveil.transforms.bins import DomainMap
from streamveil.transforms.checks import check_range, lateness, settling, whole
from streamveil.transforms.clock import Clock
from streamveil.transforms.closing import Asked, Counted, count_events
from streamveil.transforms.counting import Layout
from streamveil.transforms.edge import EdgeConfiguration, _EdgeAtOnceFn, _EdgeInTimeFn
from streamveil.transforms.gathering import VisitCounter
from streamveil.transforms.keys import NoiseKey, SameKey
from streamveil.transforms.mapping import Columns, EventMapper
from streamveil.transforms.release import (
    LEDGER,
    ReleaseConfig,
    _ReleaseAtOnceFn,
    _ReleaseInTimeFn,
)
from streamveil.transforms.server import LocalSetting
from streamveil.transforms.settling import settled

_STREAM = "local histogram"
_BY_STREAM = KV[str, bytes]


class Collected(NamedTuple):
    """What the local setting gives."""

    releases: beam.PCollection[Release]
    """One for each slot: safe to publish."""
    ledger: beam.PCollection[LedgerEntry]
    """One for each slot: for every class, what the slot and the window that ends with it cost the
    user of the class whom they cost most. Public as well."""
    rejected: beam.PCollection[pa.RecordBatch]
    """Dead letters, of `REJECTED_SCHEMA`: raw data, for the operator only."""


@beam.typehints.with_input_types(pa.RecordBatch)
@dataclass(eq=False)
class CollectHistograms(beam.PTransform):
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
    odometers of its own, and one key is for one input.

    A user's symbol in a slot is one bin: of several events one counts, chosen by a rule that looks
    only at that user's events. `counts` are estimated shares times the number of users.

    Raises:
        ConfigurationError: at construction for options that do not fit, such as a registry with a
            requirement for users outside it; when the pipeline runs as :class:`PrivateHistograms`.
        ValueError: when applied to a windowed or triggered input.
    """

    registry: Registry
    """The public table of users and requirements. All users are in it."""
    domain: Domain
    """The public bins."""
    slots: Slots
    """How time is cut."""
    columns: Columns
    """Which columns hold user, value and time."""
    mechanism: str = LOCAL_DEFAULT
    """A name of `LOCAL_MECHANISMS`."""
    noise_key: NoiseKey | None = field(default=None, repr=False)
    """As in :class:`PrivateHistograms`; server and devices get keys that are derived from it."""
    first_slot: int | None = None
    """First slot to release; events before it are rejected."""
    last_slot: int | None = None
    """Last slot to release; events after it are rejected."""
    shards: int = 1
    """Parts into which the users of a busy slot are split on their way to the edge."""
    allowed_lateness: int | str = 0
    """How long a slot of an input without end stays open: microseconds, or text such as `10m`."""
    heartbeat: beam.PTransform | None = None
    """What opens the slots of an input without end, as in :class:`PrivateHistograms`."""
    settle: int | str | beam.PTransform | None = None
    """As in :class:`PrivateHistograms`."""

    def __post_init__(self) -> None:
        """Refuse at once what cannot work."""
        super().__init__()
        self.shards = whole("shards", self.shards)
        self.allowed_lateness = lateness(self.allowed_lateness)
        self.settle = settling(self.settle)
        check_range(self.slots, self.first_slot, self.last_slot)
        DomainMap(self.domain, self.columns.value)
        self._key = SameKey.of(self.noise_key)
        self.setting.server()

    @property
    def setting(self) -> LocalSetting:
        """What server and devices agree on."""
        context = (_STREAM, self.domain, self.slots, self.columns, self.registry.fingerprint)
        return LocalSetting(
            self.mechanism,
            self.registry,
            self.domain.bins,
            self._key,
            _STREAM,
            repr(context).encode(),
        )

    def event_mapper(self) -> EventMapper:
        """What maps batches of events as this transform does."""
        return EventMapper(
            self.columns,
            self.slots,
            self.domain,
            self.registry,
            self._key.of_strangers(),
            self.first_slot,
            self.last_slot,
        )

    def expand(self, batches: beam.PCollection[pa.RecordBatch]) -> Collected:
        """Build the pipeline: batches -> visits -> tallies -> releases."""
        visits = self._visits(batches)
        edge = EdgeConfiguration(self.setting, visits.layout)
        counts = visits.counts
        if not visits.bounded:
            counts = settled(counts, [_STREAM], self.settle)
        events = (counts, *visits.ticks) | "AddTicks" >> beam.Flatten()
        if visits.bounded:
            tallies = (
                events
                | "GatherVisits" >> beam.GroupByKey()
                | "Edge"
                >> beam.ParDo(_EdgeAtOnceFn(self._staged(edge, visits))).with_output_types(
                    _BY_STREAM
                )
            )
            crossing = tallies | "GatherTallies" >> beam.GroupByKey()
            server = _ReleaseAtOnceFn(ReleaseConfig(self.setting, visits.clock))
        else:
            tallies = events | "Edge" >> beam.ParDo(
                _EdgeInTimeFn(self._staged(edge, visits))
            ).with_output_types(_BY_STREAM)
            # Slots come in any order, so the server must know the first.
            crossing = (tallies, *visits.ticks) | "AddStart" >> beam.Flatten()
            server = _ReleaseInTimeFn(ReleaseConfig(self.setting, visits.clock))
        released = crossing | "Server" >> beam.ParDo(server).with_outputs(LEDGER, main="releases")
        released.releases.element_type = Release
        released[LEDGER].element_type = LedgerEntry
        rejected = visits.rejected | "AllRejected" >> beam.Flatten()
        return Collected(released.releases, released[LEDGER], rejected)

    def _staged(self, edge: EdgeConfiguration, visits: Counted) -> ReleaseConfig:
        return ReleaseConfig(edge, visits.clock, self.first_slot, self.last_slot)

    def _visits(self, batches: beam.PCollection[pa.RecordBatch]) -> Counted:
        """Batches -> codes -> visits of registered users."""
        bounded = batches.is_bounded
        layout = Layout.choose(self.registry, self.domain.bins, self.shards, timely=not bounded)
        on_workers = copy.copy(self)
        on_workers.heartbeat = None  # it may hold parts of the pipeline
        return count_events(
            batches,
            on_workers.event_mapper,
            VisitCounter(self.registry, layout, 1, _STREAM, dynamic=False),
            Clock(self.slots, 0 if bounded else int(self.allowed_lateness)),
            Asked(self.first_slot, self.last_slot),
            self.heartbeat,
            bounded=bounded,
        )
