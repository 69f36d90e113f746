"""The local setting played through: raw events in, releases out, and no raw value at the server."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from apache_beam.typehints import KV

from streamveil.engine.count.bounding import Bounding
from streamveil.engine.count.counter import VisitCounter
from streamveil.engine.count.event_codes import Layout
from streamveil.engine.count.loss_limit import LossLimit
from streamveil.engine.encode.event_mapper import Columns, DomainMap, EventMapper
from streamveil.engine.messages import DONE, LEDGER, REVISED, REVISIONS, STATE, Kind
from streamveil.engine.slot_clock import SlotClock
from streamveil.engine.stream.drivers import one_driver
from streamveil.engine.stream.local_server import LocalSetting
from streamveil.engine.stream.noise_keys import NoiseKey, SameKey
from streamveil.engine.stream.plan_checks import check_resume, refuse_limits, take_public
from streamveil.engine.stream.played_devices import (
    PlayedDevices,
    PlayedDevicesConfig,
    PlayedState,
    PopulationMoves,
    emit_to_server,
    end_at_server,
)
from streamveil.engine.stream.release_slots import Publish, ReleaseConfig
from streamveil.mechanisms.core.domains import Domain
from streamveil.mechanisms.core.identity import encoded
from streamveil.mechanisms.core.parameter_checks import (
    MAX_REJECTED,
    check_range,
    lateness,
    share,
    whole,
)
from streamveil.mechanisms.core.records import (
    UNIFORM,
    LedgerEntry,
    Release,
    Revision,
    Slots,
)
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.driver.saved_state import BINS, COLUMNS, KEEP, SLOTS, STREAM, USERS
from streamveil.mechanisms.registry import LOCAL_DEFAULT, check_revise
from streamveil.transforms.checks import check_heartbeat, settling
from streamveil.transforms.counting.count_events import Asked, Counted, count_events
from streamveil.transforms.counting.loss_limit import refuse_loss
from streamveil.transforms.on_beam import Message
from streamveil.transforms.release.release_steps import _ReleaseAtEndFn, _ReleaseInTimeFn
from streamveil.transforms.release_rows import WithRows
from streamveil.transforms.row_batches import as_batches
from streamveil.transforms.slots.checkpoint_hold import settled

_STREAM = "local histogram"
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


def _all_told(slots: int) -> tuple[str, Message]:
    """The word of the edge that the server was told of so many slots, which are all."""
    return _STREAM, Message(Kind.WHOLE, payload=b"%d" % slots)


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
    filters of its own, and one key is for one input.

    A user's symbol in a slot is one bin: of several events one counts, chosen by a rule that looks
    only at that user's events. `counts` are estimated shares times the number of users.

    Raises:
        ConfigurationError: at construction for options that do not fit, such as a registry with a
            requirement for users outside it; when the pipeline runs as :class:`PrivateHistograms`.
        ValueError: when applied to a windowed or triggered input.
    """

    registry: Registry
    """The public table of users and requirements, or what is taken for one, as there. All users are
    in it."""
    domain: Domain
    """The public bins, as there."""
    slots: Slots
    """How time is cut, as there."""
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
    """How long a slot of an unbounded input stays open: microseconds, or text such as `10m`."""
    heartbeat: beam.PTransform | None = None
    """What opens the slots of an unbounded input, as in :class:`PrivateHistograms`."""
    settle: int | str | beam.PTransform | None = None
    """As in :class:`PrivateHistograms`."""
    keep: str = UNIFORM
    """Which of several events of a user in a slot is the symbol, as there."""
    max_rejected: float = MAX_REJECTED
    """As there."""
    may_be_empty: bool = False
    """As there."""
    resume: bytes | None = field(default=None, repr=False)
    """The state of an earlier run over the slots before `first_slot`, with the same options."""
    longest_window: int | None = None
    """The longest window that anybody may ask for, in slots, where `moves` may come: None where
    there are none."""
    begun: int | None = None
    """How many users of the registry, the first ones, are in the stream from its beginning, with
    the first classes; None for all. The others joined later, so their class there says nothing."""
    moves: PopulationMoves | None = field(default=None, repr=False)
    """Who comes, leaves or asks for something else since `resume` was written, where users after
    that are those of `registry`. For the mechanism `rotation`."""
    revise: int = 0
    """How many slots later every slot is revised, for `revisions`, of reports that were made
    anyway; 0 for never. Of mechanisms `rotation` can."""
    ends: bool = True
    """Whether the stream ends with the last slot, as in :class:`PrivateHistograms`."""

    def __post_init__(self) -> None:
        """Refuse at once what cannot work."""
        super().__init__()
        take_public(self)
        check_heartbeat(self.heartbeat)
        refuse_limits(self.registry)
        self.columns = Columns.of(self.columns)
        self.shards = whole("shards", self.shards)
        self.allowed_lateness = lateness(self.allowed_lateness)
        self.settle = settling(self.settle)
        check_range(self.slots, self.first_slot, self.last_slot)
        DomainMap(self.domain, self.columns.value)
        self.max_rejected = share("max_rejected", self.max_rejected)
        self._key = SameKey.of(self.noise_key)
        self.bounding()
        check_revise(self.mechanism, self.revise, local=True)
        server = self.setting.server()
        if self.longest_window is not None:
            server.start()  # refuses one that is shorter than a window of the table
        self._edge_resume: bytes | None = None
        self._server_resume: bytes | None = None
        self._away: npt.NDArray[np.int32] | None = None
        if self.resume is not None:
            edge = self._edge(self.setting)
            state = self._resumed(edge, self.resume)
            check_resume(edge.next_slot(state), self.first_slot)
            self._edge_resume = edge.encode(state)
            self._server_resume = server.encode(state.server)
            self._away = edge.stream.away(state.server)

    def _edge(self, setting: LocalSetting) -> PlayedDevices:
        return PlayedDevicesConfig(setting, self.layout(bounded=True)).make()

    def _resumed(self, edge: PlayedDevices, written: bytes) -> PlayedState:
        """The state that was written, remembering enough and after the moves."""
        moves = self.moves
        before = edge if moves is None else self._edge(self._setting(moves.before))
        state = before.decode(written)
        if self.longest_window is not None:
            state = before.remembering(state, self.longest_window)
        return state if moves is None else edge.changed(state, moves)

    @property
    def setting(self) -> LocalSetting:
        """What server and devices agree on."""
        return self._setting(self.registry)

    def _setting(self, registry: Registry) -> LocalSetting:
        """The same over a table of users as it was, or is now."""
        users = registry.identity()
        if self.begun not in (None, len(registry.users)):
            users += encoded(self.begun)
        context = {
            STREAM: encoded(_STREAM),
            BINS: self.domain.identity(),
            SLOTS: self.slots.identity(),
            COLUMNS: self.columns.identity(),
            USERS: users,
            **({} if self.keep == UNIFORM else {KEEP: encoded(self.keep)}),
        }
        return LocalSetting(
            self.mechanism,
            registry,
            self.domain.bins,
            self._key,
            _STREAM,
            context,
            self.begun,
            self.longest_window,
            self.revise,
        )

    def bounding(self) -> Bounding:
        """Which event of a user in a slot is the symbol, with the secret of the draw."""
        return Bounding(1, self.keep, self._key.derived("bounding"))

    def event_mapper(self) -> EventMapper:
        """What maps batches of events as this transform does."""
        return EventMapper(
            self.columns,
            self.slots,
            self.domain,
            self.registry,
            self._key.derived("strangers"),
            self.first_slot,
            self.last_slot,
            away=self._away,
        )

    def expand(self, events: beam.PCollection[Any]) -> Collected:
        """Build the pipeline: events -> batches -> visits -> tallies -> releases."""
        batches = as_batches(events, self.columns.names, self.event_mapper)
        visits = self._visits(batches)
        edge = PlayedDevicesConfig(self.setting, visits.layout)
        counts, ticks = visits.counts, visits.ticks
        if visits.bounded:
            ticks = (*ticks, refuse_loss(visits.tallies, LossLimit.of(self), _STREAM))
        else:
            counts = settled(counts, [_STREAM], self.settle)
        told = (counts, *ticks) | "AddTicks" >> beam.Flatten()
        if visits.bounded:
            answered = (
                told
                | "GatherVisits" >> beam.GroupByKey()
                | "Edge"
                >> beam.ParDo(_ReleaseAtEndFn(self._staged(edge, visits))).with_outputs(
                    STATE, DONE, REVISED, main="tallies"
                )
            )
            answered.tallies.element_type = _BY_STREAM
            state = answered[STATE]
            answered[DONE].element_type = answered[REVISED].element_type = int
            word = answered[DONE] | "TellServer" >> beam.Map(_all_told).with_output_types(
                _BY_STREAM
            )
            crossing = (
                (answered.tallies, word)
                | "AddWord" >> beam.Flatten()
                | "GatherTallies" >> beam.GroupByKey()
            )
            server: beam.DoFn = _ReleaseAtEndFn(self._serving(visits))
        else:
            tallies = told | "Edge" >> beam.ParDo(
                _ReleaseInTimeFn(self._staged(edge, visits))
            ).with_output_types(_BY_STREAM)
            state = batches.pipeline | "NoState" >> beam.Create([])
            # Slots come in any order, so the server must know the first.
            crossing = (tallies, *visits.ticks) | "AddStart" >> beam.Flatten()
            server = _ReleaseInTimeFn(self._serving(visits))
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

    def _staged(self, edge: PlayedDevicesConfig, visits: Counted) -> ReleaseConfig:
        return ReleaseConfig(
            partial(one_driver, edge),
            visits.clock,
            emit_to_server,
            self.first_slot,
            self.last_slot,
            self._edge_resume,
            keeps=True,
            emit_rest=end_at_server if self.revise else None,
            ends=self.ends,
        )

    def _serving(self, visits: Counted) -> ReleaseConfig:
        publish = Publish(self.slots, self.mechanism)
        return ReleaseConfig(
            partial(one_driver, self.setting),
            visits.clock,
            publish,
            last_slot=self.last_slot,
            resume=self._server_resume,
            emit_rest=publish.rest if self.revise else None,
            ends=self.ends,
        )

    def layout(self, bounded: bool) -> Layout:
        """How codes of events are laid out, of a bounded input or of a stream."""
        return Layout.choose(self.registry, self.domain.bins, self.shards, timely=not bounded)

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
            VisitCounter(
                self.registry,
                layout,
                on_workers.bounding,
                _STREAM,
                by_user=False,
                max_rejected=self.max_rejected,
            ),
            SlotClock(self.slots, 0 if bounded else int(self.allowed_lateness)),
            Asked(self.first_slot, self.last_slot),
            self.heartbeat,
            bounded=bounded,
        )
