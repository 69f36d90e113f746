"""What a release of histograms is made of, on any host: public facts, and how they are used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from streamveil.engine.count.bounding import Bounding
from streamveil.engine.count.counter import Counter
from streamveil.engine.count.event_codes import Layout
from streamveil.engine.description import (
    Description,
    Facts,
    classes_of,
    data_of,
    facts_of_domain,
    facts_of_limit,
    promised,
)
from streamveil.engine.encode.event_mapper import Columns, DomainMap, EventMapper
from streamveil.engine.guarantees import guarantee_to_users
from streamveil.engine.messages import Message
from streamveil.engine.plan_kinds import PlanKind
from streamveil.engine.slot_clock import SlotClock
from streamveil.engine.stream.central_plan import CentralPlan
from streamveil.engine.stream.configuration import Configuration
from streamveil.engine.stream.drivers import is_joined, one_driver
from streamveil.engine.stream.guessed_users import GuessedUsers
from streamveil.engine.stream.noise_keys import NoiseKey, SameKey
from streamveil.engine.stream.plan_checks import (
    check_first_slot,
    check_last_slot,
    check_limit,
    check_look,
    check_resume,
    check_shards,
    check_test_mode,
    refuse_endless_look,
    take_public,
)
from streamveil.engine.stream.release_slots import Publish, ReleaseConfig
from streamveil.engine.stream.steps import Steps
from streamveil.mechanisms.core.domains import Domain
from streamveil.mechanisms.core.identity import encoded
from streamveil.mechanisms.core.parameter_checks import (
    MAX_REJECTED,
    check_range,
    share,
    whole,
)
from streamveil.mechanisms.core.records import (
    ADD_REMOVE,
    NO_NOISE,
    REPLACE,
    UNIFORM,
    ConfigurationError,
    LedgerEntry,
    Release,
    Revision,
    Slots,
    check_shares,
)
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.core.wording import opt
from streamveil.mechanisms.driver.saved_state import (
    BINS,
    CHANGING,
    COLUMNS,
    KEEP,
    LIMIT,
    REQUIREMENTS,
    SLOTS,
    STREAM,
    TEST_MODE,
    USERS,
    Parts,
    of_parts,
)
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.presence.choice import Auto, Look
from streamveil.mechanisms.presence.limits import check_prices, expected_sizes, limits_of, priced
from streamveil.mechanisms.protocol import Population
from streamveil.mechanisms.registry import DEFAULT, DYNAMIC_MECHANISMS, check_revise, only_dynamic

if TYPE_CHECKING:
    from streamveil.engine.count.changes import ChangeMapper
    from streamveil.engine.count.limit_choice import LimitChoice
    from streamveil.engine.count.shards import ShardLogic

HISTOGRAMS = "histogram"
"""Name of the stream."""


@dataclass(eq=False)
class HistogramPlan(CentralPlan):
    """A private histogram per slot, of a bounded input or a stream: see :class:`PrivateHistograms`.

    Raises ConfigurationError at construction for options that do not fit.
    """

    plan_kind: ClassVar[Literal[PlanKind.HISTOGRAMS]] = PlanKind.HISTOGRAMS
    RECORDS: ClassVar[tuple[type, type, type]] = Release, LedgerEntry, Revision
    """Types of a result, of an entry of the ledger and of a revision."""

    registry: Registry
    """The public table of users and requirements. A mapping user -> (window, epsilon) is taken as
    well, and a table of pandas, Polars or Arrow with columns of these names."""
    domain: Domain
    """The public bins; a list of values is taken as well."""
    slots: Slots
    """How time is cut; a length such as `1d` is taken as well."""
    columns: Columns
    """Which columns hold user, value and time."""
    mechanism: str = DEFAULT
    """A name of `MECHANISMS`, of `DYNAMIC_MECHANISMS` where requirements change, or of
    `INFINITE_MECHANISMS` with one budget forever."""
    max_contributions: int = 1
    """Events of a user that count in a slot. Which of more do is decided by that user's events
    alone."""
    keep: str = UNIFORM
    """Which of more events than that: `uniform`, drawn so that all are as likely; `distinct`, those
    in different bins before repeats of a bin."""
    adjacency: str = ADD_REMOVE
    """What neighbouring inputs differ in, for one user and any w consecutive slots: `add_remove`,
    all of that user's events added or removed; `replace`, any of them replaced, which doubles the
    sensitivity and so the noise."""
    noise_key: NoiseKey | None = field(default=None, repr=False)
    """32 secret bytes, or a picklable way to get them, which is asked here and by every worker;
    fresh ones when None."""
    first_slot: int | None = None
    """First slot to release; events before it are rejected."""
    last_slot: int | None = None
    """Last slot to release; events after it are rejected."""
    shards: int = 1
    """Parts into which the users of a busy slot are split while counting."""
    longest_window: int | None = None
    """The longest window that a change of requirement may ask for, in slots: public. The longest
    of the registry when None."""
    max_rejected: float = MAX_REJECTED
    """Share of the events of a bounded input, from 0 to 1, that may be rejected, or were late
    before they came here. If more are, or none is counted, the run fails before anything is
    released. With 1 and a range of slots nothing fails. What is beyond `max_contributions` is not
    among them."""
    may_be_empty: bool = False
    """Whether a bounded input without any event is quiet, rather than lost."""
    resume: bytes | None = field(default=None, repr=False)
    """The state of an earlier run, whose users' ledgers go on in this one; `first_slot` must be
    the slot that came next there, and all options of the release must be the same, the registry
    too: what it said when the stream began. Users who join, leave or ask for something else are
    changes, which an earlier run need not have had."""

    changing: bool = False
    """Whether requirements change in a stream that goes on from state to state, in this run or a
    later one. What goes on from such a state does so in any case."""
    revise: int = 0
    """How many slots later every slot is revised, for `revisions`, which costs no budget; 0 for
    never. Of mechanisms `adaptive` can."""
    limit: Limit | Auto | Sequence[Limit] | None = None
    """In how many slots a user counts: then these may cost more, and noise is less. See
    `mechanisms/presence/limits.py`; the guarantee stays what it is. Events in other slots are left
    out of the counts. One for all classes is left out where it does not pay, and classes of which
    the registry says `max_slots` have their own; or one for each class; or :class:`Auto`, to choose
    them from a public rate, or by a private look at a bounded input. Where requirements change it
    is one for all, in slots of a block of the longest window, and the stream is `changing` from
    its first slot on: see `mechanisms/presence/changing.py`. The mechanism is one of `MECHANISMS`
    then, as with a `Lifetime`."""
    keeps: bool = True
    """Whether a bounded input gives its state at the end, for a run that goes on from there."""
    ends: bool = True
    """Whether the stream ends with the last slot: then the slots that are still to be revised are
    revised with what there is. A run that is gone on from leaves them to the one that goes on."""
    test_mode: bool = False
    """Whether exact counts are released in place of private ones, for pipelines under development:
    NOT private. No state is given, and none is taken."""

    def __post_init__(self) -> None:
        """Refuse at once what cannot work."""
        take_public(self)
        self.columns = Columns.of(self.columns)
        self._key = SameKey.of(self.noise_key)
        self.max_contributions = whole("max_contributions", self.max_contributions)
        self.shards = whole("shards", self.shards)
        if self.adjacency not in (ADD_REMOVE, REPLACE):
            raise ConfigurationError(
                f"adjacency {self.adjacency!r} is unknown: choose {ADD_REMOVE} or {REPLACE}"
            )
        self.max_rejected = share("max_rejected", self.max_rejected)
        self.bounding()
        self._looks: list[Look | None] = []
        check_range(self.slots, self.first_slot, self.last_slot)
        DomainMap(self.domain, self.columns.value)
        check_revise(self.mechanism, self.revise)
        check_test_mode(self)
        self._take_changes()
        self.limits = self._limits_of_classes()
        if self.limits is not None:
            asked, units = self._known.classes, self.population.sensitivity
            check_prices(self.limits, asked, self.adjacency, units)
        check_shares(self.population.requirements, self.population.sensitivity)
        ledgers: Any = self.ledgers(self.layout(bounded=True), self._dynamic).make()
        if self.resume is not None and isinstance(self.limit, Auto) and self.limits is not None:
            ledgers = ledgers.gone_on(self.resume)
            self.limits = ledgers.limits
        self._kept: list[Message] = []
        self._resumes = self.resume is not None
        if self.resume is not None:
            self._go_on(ledgers, self.resume)

    def _go_on(self, ledgers: Any, state: bytes) -> None:
        """Go on from a state. Raises ConfigurationError for one of another configuration."""
        if self.limits and self._dynamic and not is_joined(state):
            self._check_calendars()
        check_resume(ledgers.next_slot(ledgers.decode(state)), self.first_slot)
        if not self.limits and not is_joined(state):
            return
        self._kept = ledgers.kept(state)
        for message in self._kept:
            check_shards(message.shards, 2, self.shards)

    def restarted(self, state: bytes) -> bytes:
        """The state of an earlier run, for `resume`, with the whole budget granted once more.

        That spends it AGAIN: see :meth:`ReleaseStream.restart`. Raises ConfigurationError where
        budgets are for windows, which come back by themselves.
        """
        ledgers = self._ledgers_for_ever()
        return bytes(ledgers.encode(ledgers.restart(ledgers.decode(state))))

    def restarts(self, state: bytes) -> int:
        """How often the whole budget was granted again, up to the state of an earlier run.

        Raises ConfigurationError where budgets are for windows.
        """
        ledgers = self._ledgers_for_ever()
        return int(ledgers.decode(state).filter.restarts)

    def _ledgers_for_ever(self) -> Any:
        if self.limits is not None:
            raise ConfigurationError(
                f"where users count in a limited number of slots ({opt.max_slots}), no budget can "
                f"be granted again ({opt.restart_budget}): each user has one, and uses it up by "
                f"being present"
            )
        if not self.population.requirements.forever:
            raise ConfigurationError(
                f"only a lifetime budget can be granted again ({opt.restart_budget}): budgets "
                "over windows renew by themselves"
            )
        return self.ledgers(self.layout(bounded=True)).make()

    def _limits_of_classes(self) -> tuple[Limit, ...] | None:
        """The limit of each class; None where nobody has any."""
        known = self.registry
        check_limit(self.limit, known.classes.forever)
        if self.limit is None and not any(known.max_slots):
            return None
        if only_dynamic(self.mechanism):
            raise ConfigurationError(
                f"mechanism {self.mechanism!r} does not support a participation limit "
                f"({opt.max_slots}, or a column max_slots of the table): choose another "
                "mechanism, or leave the limit out"
            )
        if self._dynamic:
            self._known = known = self._up_to_longest()
        if isinstance(self.limit, Auto):
            return self._limits_to_choose(self.limit)
        if self.limit is None or isinstance(self.limit, Limit):
            own, asked = known.max_slots, known.classes
            return limits_of(self.limit, own, asked, self.adjacency, known.named)
        if len(self.limit) != len(known.classes):
            raise ConfigurationError(
                f"there are {len(self.limit)} limits for {len(known.classes)} classes: give one "
                "for each, or one for all"
            )
        return tuple(self.limit)

    def _check_calendars(self) -> None:
        """Refuse that requirements begin to change where blocks would be others from then on."""
        if self._known is not self.registry:
            raise ConfigurationError(
                "this stream began without changes of requirements, and with its participation "
                f"limit ({opt.max_slots}) they are only possible if every user's window is the "
                f"longest allowed one, {self._horizon} slots here, and no user in the table asks "
                "for more epsilon than the default requirement: leave out the changes and give "
                "the table that it started with, or start a stream in another folder, which "
                "spends the users' budgets again"
            )

    def _limits_to_choose(self, auto: Auto) -> tuple[Limit, ...] | None:
        """Those that are known before anybody looks at users; and whom to look at."""
        known, adjacency = self._known, self.adjacency
        looks = auto.looks(known.max_slots, known.classes, adjacency)
        if self.resume is None and auto.rate is None and any(looks):
            self._looks = self._long_enough(looks)
            looks = self._looks
        return auto.limits(looks, known.max_slots, known.classes, adjacency, known.named)

    def _long_enough(self, looks: list[Look | None]) -> list[Look | None]:
        """Those over windows that are no longer than the range; all of them if none is."""
        slots = self._range
        if slots is None:
            return looks
        shorter = [look and (look if look.requirement.window <= slots else None) for look in looks]
        return shorter if any(shorter) else looks

    def check_look(self, slots_per_pass: int | None = None) -> None:
        """Refuse a range that is too short to look at users in: see :func:`check_look`."""
        windows = [look.requirement.window for look in self._looks if look]
        if windows:
            check_look(windows, self._range, self.ends, slots_per_pass)

    @property
    def looks(self) -> Sequence[Look | None]:
        """At which classes a run will look to choose their limits; none where all are known."""
        return tuple(self._looks)

    @property
    def population(self) -> Population:
        """The public facts that the mechanism steers by."""
        sensitivity = self.max_contributions * (2 if self.adjacency == REPLACE else 1)
        known = self._known
        asked, sizes = known.classes, known.sizes
        if self.limits is not None:
            sizes = expected_sizes(asked, sizes)
            asked = priced(self.limits, asked, self.adjacency)
        return Population(
            asked,
            sizes,
            self.domain.bins,
            sensitivity,
            self.slots.length,
            joined=self.limits is not None and self._dynamic,
            guessed=known.guessed,
        )

    def describe(self) -> Description:
        """What is promised to whom; of a limit that a run will choose, all that it may be."""
        limited = self.limits is not None
        guarantee = guarantee_to_users(forever=self._known.classes.forever, limited=limited)
        limits = self._limits_stated or [{} for _ in self._known.classes]
        classes = classes_of(self._known, limits)
        data = {
            **data_of(self.columns, self.slots),
            "domain": facts_of_domain(self.domain),
            "keep": self.keep,
            "max_contributions": self.max_contributions,
        }
        promise = promised(guarantee, self.adjacency, classes=classes)
        return Description(promise, data, self.mechanism)

    @property
    def _limits_stated(self) -> list[Facts]:
        """In how many slots the users of each class count; none without limits."""
        limits = self.limits or ()
        looks = self._looks or [None] * len(limits)
        epsilons = [one.epsilon for one in self._known.classes] if limits else []
        return [
            {"limits": [facts_of_limit(limit, look, None, epsilon)]}
            for limit, look, epsilon in zip(limits, looks, epsilons, strict=True)
        ]

    def bounding(self) -> Bounding:
        """Which events of a user in a slot count, with the secret of the draws."""
        return Bounding(self.max_contributions, self.keep, self._key.derived("bounding"))

    @property
    def context(self) -> Parts:
        """What the counts mean, beyond :attr:`population`: the noise is bound to all of it."""
        return {
            STREAM: encoded(HISTOGRAMS),
            BINS: self.domain.identity(),
            SLOTS: self.slots.identity(),
            COLUMNS: self.columns.identity(),
            "adjacency": encoded(self.adjacency),
            "contributions of a user in a slot": encoded(self.max_contributions),
            USERS: self._known.identity(),
            **({} if self.keep == UNIFORM else {KEEP: encoded(self.keep)}),
            **self._limit_facts,
            **({CHANGING: encoded(True)} if self.limits and self._dynamic else {}),
            **({TEST_MODE: encoded(True)} if self.test_mode else {}),
        }

    @property
    def _limit_facts(self) -> Parts:
        if self.limits is None:
            return {}
        if isinstance(self.limit, Auto):  # whatever is chosen
            asked = encoded(self._known.classes)
            return {LIMIT: encoded(self.limit), REQUIREMENTS: asked}
        return {LIMIT: encoded(self.limits)}

    def event_mapper(self, dynamic: bool = False) -> EventMapper:
        """What maps batches of events; `dynamic` if requirements change."""
        return EventMapper(
            self.columns,
            self.slots,
            self.domain,
            self.registry,
            self._key.derived("strangers"),
            self.first_slot,
            self.last_slot,
            dynamic,
        )

    def change_mapper(self) -> ChangeMapper:
        """What maps batches of changes of requirements, with the users as events have them."""
        return self._mapper_of_changes(self.slots, self.population.sensitivity)

    def shard_logic(
        self, layout: Layout, clock: SlotClock, *, changes: bool, keeps: bool
    ) -> ShardLogic:
        """How shards count where that depends on the slots before: `changes` if some may come."""
        common: dict[str, Any] = {
            "layout": layout,
            "clock": clock,
            "change_mapper": self.change_mapper if changes else None,
            "first_slot": self.first_slot,
            "last_slot": self.last_slot,
            "stream": HISTOGRAMS,
            "keeps": keeps,
            "resumed": self._resumes,
        }
        if self.limits is None:
            from streamveil.engine.count.changing_requirements import ChangingRequirements

            return ChangingRequirements(
                registry=self.registry, longest_window=self._horizon, **common
            )
        from streamveil.engine.count.participants import ParticipationLimits

        return ParticipationLimits(
            registry=self._known,
            limits=self.limits,
            adjacency=self.adjacency,
            make_key=partial(self._key.derived, "presence"),
            **common,
        )

    def layout(self, bounded: bool) -> Layout:
        """How codes of events are laid out, of a bounded input or of a stream."""
        return Layout.choose(self._known, self.domain.bins, self.shards, timely=not bounded)

    def ledgers(self, layout: Layout, changing: bool = False) -> Configuration:
        """What is released and how it is accounted for."""
        by_cohort = changing and self.limits is None
        if by_cohort and self.mechanism.partition(":")[0] not in DYNAMIC_MECHANISMS:
            raise ConfigurationError(
                f"mechanism {self.mechanism!r} is for requirements that never change: choose one "
                f"of {', '.join(DYNAMIC_MECHANISMS)} ({opt.mechanism}), or leave out the changes"
            )
        presence = None
        if self.limits is not None:
            from streamveil.mechanisms.driver.present_stream import Presence

            asked = self._known.classes
            presence = Presence(self.limits, asked, self.adjacency, moving=changing)
        return Configuration(
            self.mechanism,
            self.population,
            layout,
            self._key,
            HISTOGRAMS,
            self.context,
            changing,
            self.longest_window,
            self._known.default_class,
            self.revise,
            presence,
            self.test_mode,
            self._known.unknown,
        )

    def steps(
        self,
        *,
        bounded: bool,
        changes: bool,
        lateness: int = 0,
        on_workers: HistogramPlan | None = None,
    ) -> Steps:
        """How events become releases.

        Args:
            bounded: whether the input ends.
            changes: whether changes of requirements come with it.
            lateness: how long slots of an unbounded input stay open, in microseconds.
            on_workers: the plan without what workers need not have; the same when None.

        Raises ConfigurationError for what such an input cannot have.
        """
        self.check_look()
        changes = changes or self._dynamic
        self.check_changes(changes=changes, bounded=bounded)
        layout = self.layout(bounded)
        clock = SlotClock(self.slots, 0 if bounded else lateness)
        by_user = changes or self.limits is not None
        on_workers = on_workers or self
        logic = choice = None
        if by_user:
            keeps = bounded and self.keeps_state(changes=changes)
            logic = on_workers.shard_logic(layout, clock, changes=changes, keeps=keeps)
            choice = self.limit_choice(logic)
        if choice is not None and not bounded:
            refuse_endless_look()
        return Steps(
            stream=HISTOGRAMS,
            bounded=bounded,
            layout=layout,
            clock=clock,
            first_slot=self.first_slot,
            last_slot=self.last_slot,
            make_mapper=partial(on_workers.event_mapper, changes),
            counter=on_workers.counter(layout, by_user=by_user),
            config=self.release_config(layout, clock, changes=changes),
            shard_logic=logic,
            limit_choice=choice,
            kept=self._kept,
        )

    def check_changes(self, *, changes: bool, bounded: bool) -> None:
        """Refuse changes of requirements that cannot be followed. Raises ConfigurationError."""
        if not changes:
            return
        if self.limits is not None and not self._dynamic:
            raise ConfigurationError(
                "requirements change, and presence is limited: declare this from the first slot "
                "on (changing=True)"
            )
        check_first_slot(self.first_slot)
        if bounded and self.limits is not None:
            check_last_slot(self.last_slot)

    def keeps_state(self, *, changes: bool) -> bool:
        """Whether a bounded input gives its state; one without the users' cohorts would be none."""
        return self.keeps and (not changes or self._dynamic) and not self.test_mode

    def counter(self, layout: Layout, *, by_user: bool) -> Counter:
        """What counts events; `by_user` if that depends on the slots before."""
        return Counter(self._known, layout, self.bounding, HISTOGRAMS, by_user, self.max_rejected)

    def limit_choice(self, logic: ShardLogic) -> LimitChoice | None:
        """What chooses participation limits from a bounded input; None where all are known."""
        if not any(self._looks):
            return None
        from streamveil.engine.count.limit_choice import LimitChoice
        from streamveil.engine.count.participants import ParticipationLimits

        assert isinstance(logic, ParticipationLimits)
        identity = of_parts(self.context)
        return LimitChoice(logic, self._looks, self._key, identity, self.test_mode)

    def release_config(self, layout: Layout, clock: SlotClock, *, changes: bool) -> ReleaseConfig:
        """What the release stage is made of."""
        guessed = GuessedUsers.of(self._known)
        mechanism = NO_NOISE if self.test_mode else self.mechanism
        publish = Publish(self.slots, mechanism, guessed, self.max_contributions)
        return ReleaseConfig(
            partial(one_driver, self.ledgers(layout, changes)),
            clock,
            publish,
            self.first_slot,
            self.last_slot,
            self.resume,
            keeps=self.keeps_state(changes=changes),
            emit_rest=publish.rest if self.revise else None,
            tells_booked=True,
            ends=self.ends,
        )
