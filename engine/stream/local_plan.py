"""What a release in the local model is made of, on any host, with devices that are played."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from streamveil.engine.count.bounding import Bounding
from streamveil.engine.count.counter import VisitCounter
from streamveil.engine.count.event_codes import Layout
from streamveil.engine.description import (
    Description,
    classes_of,
    data_of,
    facts_of_domain,
    promised,
)
from streamveil.engine.encode.event_mapper import Columns, DomainMap, EventMapper
from streamveil.engine.guarantees import ANY, LOCAL_EVENTS
from streamveil.engine.messages import Kind, Message
from streamveil.engine.plan_kinds import PlanKind
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
from streamveil.mechanisms.core.parameter_checks import MAX_REJECTED, check_range, share, whole
from streamveil.mechanisms.core.records import UNIFORM, Slots
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.driver.saved_state import BINS, COLUMNS, KEEP, SLOTS, STREAM, USERS
from streamveil.mechanisms.registry import LOCAL_DEFAULT, check_revise

LOCAL = "local histogram"
"""Name of the stream."""


def slots_sent(slots: int) -> tuple[str, Message]:
    """Tells the server how many slots the devices sent, so that it notices a missing one."""
    return LOCAL, Message(Kind.WHOLE, payload=b"%d" % slots)


@dataclass(eq=False)
class LocalPlan:
    """A histogram per slot from the reports of users' devices: see :class:`CollectHistograms`.

    Raises ConfigurationError at construction for options that do not fit.
    """

    plan_kind: ClassVar[Literal[PlanKind.LOCAL]] = PlanKind.LOCAL
    test_mode: ClassVar[bool] = False

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
    keep: str = UNIFORM
    """Which of several events of a user in a slot is the symbol, as there."""
    max_rejected: float = MAX_REJECTED
    """As there."""
    may_be_empty: bool = False
    """As there."""
    resume: bytes | None = field(default=None, repr=False)
    """The state of an earlier run over the slots before `first_slot`, with the same options."""
    longest_window: int | None = None
    """The longest window that a user may ask for, in slots, where `moves` may come: None where
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
        take_public(self)
        refuse_limits(self.registry)
        self.columns = Columns.of(self.columns)
        self.shards = whole("shards", self.shards)
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
            STREAM: encoded(LOCAL),
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
            LOCAL,
            context,
            self.begun,
            self.longest_window,
            self.revise,
        )

    def describe(self) -> Description:
        """What is promised to whom: every user's device keeps a filter for its requirement."""
        data = {
            **data_of(self.columns, self.slots),
            "domain": facts_of_domain(self.domain),
            "keep": self.keep,
            "max_contributions": 1,
        }
        classes = classes_of(self.registry, [{} for _ in self.registry.classes])
        return Description(promised(LOCAL_EVENTS, ANY, classes=classes), data, self.mechanism)

    def bounding(self) -> Bounding:
        """Which event of a user in a slot is the symbol, with the secret of the draw."""
        return Bounding(1, self.keep, self._key.derived("bounding"))

    def event_mapper(self) -> EventMapper:
        """What maps batches of events."""
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

    def edge_config(self, layout: Layout, clock: SlotClock) -> ReleaseConfig:
        """What the stage of the devices is made of."""
        edge = PlayedDevicesConfig(self.setting, layout)
        return ReleaseConfig(
            partial(one_driver, edge),
            clock,
            emit_to_server,
            self.first_slot,
            self.last_slot,
            self._edge_resume,
            keeps=True,
            emit_rest=end_at_server if self.revise else None,
            ends=self.ends,
        )

    def server_config(self, clock: SlotClock) -> ReleaseConfig:
        """What the stage of the server is made of."""
        publish = Publish(self.slots, self.mechanism)
        return ReleaseConfig(
            partial(one_driver, self.setting),
            clock,
            publish,
            last_slot=self.last_slot,
            resume=self._server_resume,
            emit_rest=publish.rest if self.revise else None,
            ends=self.ends,
        )

    def layout(self, bounded: bool) -> Layout:
        """How codes of events are laid out, of a bounded input or of a stream."""
        return Layout.choose(self.registry, self.domain.bins, self.shards, timely=not bounded)

    def counter(self, layout: Layout) -> VisitCounter:
        """What tells the devices who was where."""
        return VisitCounter(
            self.registry,
            layout,
            self.bounding,
            LOCAL,
            by_user=False,
            max_rejected=self.max_rejected,
        )
