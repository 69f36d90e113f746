"""What a release of a query set is made of, on any host: public facts, and how they are used."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar, Literal

import numpy as np

from streamveil.engine.count.bounding import Bounding
from streamveil.engine.count.bounds_choice import BoundsChoice, Sample, bounds_from
from streamveil.engine.count.counter import BlockKey
from streamveil.engine.count.query_counter import (
    PortfolioCounter,
    PortfolioLayout,
    going_on,
    pack_questions,
)
from streamveil.engine.encode.event_mapper import Columns
from streamveil.engine.encode.query_mapper import QuestionsMapper, columns_read
from streamveil.engine.messages import Message
from streamveil.engine.plan_kinds import PlanKind
from streamveil.engine.slot_clock import SlotClock
from streamveil.engine.stream.drivers import one_driver
from streamveil.engine.stream.guessed_users import GuessedUsers
from streamveil.engine.stream.noise_keys import NoiseKey, SameKey
from streamveil.engine.stream.plan_checks import check_resume, take_options
from streamveil.engine.stream.query_driver import PortfolioLedgers, PublishAnswers
from streamveil.engine.stream.release_slots import ReleaseConfig
from streamveil.engine.stream.saved_queries import Saved
from streamveil.mechanisms.core.arguments import is_true, refuse, registry_of
from streamveil.mechanisms.core.budgets import Units
from streamveil.mechanisms.core.identity import encoded
from streamveil.mechanisms.core.parameter_checks import MAX_REJECTED, check_range, share, whole
from streamveil.mechanisms.core.records import (
    ADD_REMOVE,
    UNIFORM,
    ConfigurationError,
    QueryColumn,
    Slots,
    format_duration,
    format_time,
)
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.driver.saved_state import COLUMNS, STREAM, USERS, Parts, of_parts
from streamveil.mechanisms.portfolio.bounds import are_known, looks_at, with_bounds
from streamveil.mechanisms.portfolio.questions import Portfolio, Question
from streamveil.mechanisms.portfolio.shares import plan_shares
from streamveil.mechanisms.randomness.noise import NoiseSource

QUERIES = "portfolio"
"""Name of the stream."""

_LOGGER = logging.getLogger("streamveil")


@dataclass(eq=False)
class QueryPlan:
    """Answers to many questions from one pass over the events: see :class:`PrivateAnswers`.

    Raises ConfigurationError at construction for options that do not fit.
    """

    plan_kind: ClassVar[Literal[PlanKind.QUERIES]] = PlanKind.QUERIES

    portfolio: Portfolio
    """What is asked."""
    registry: Registry
    """The public table of users and requirements, windows in base slots: see
    :class:`PrivateHistograms`."""
    columns: Columns
    """Which columns hold user and time, and as values all that questions read: see
    :func:`columns_for`."""
    shares: Units | None = None
    """Units of the budget for each question and class, for good, int64, shape (Q, K). When None
    they are planned by :func:`plan_shares`, from public facts alone, and again from answers."""
    adjacency: str = ADD_REMOVE
    """What neighbouring inputs differ in: see :class:`PrivateHistograms`."""
    noise_key: NoiseKey | None = field(default=None, repr=False)
    """32 secret bytes, or a picklable way to get them, which is asked here and by every worker;
    fresh ones when None."""
    first_slot: int | None = None
    """First base slot; events before it are rejected. An unbounded input needs one."""
    last_slot: int | None = None
    """Last base slot; events after it are rejected."""
    shards: int = 1
    """Parts into which the users of a busy slot are split while counting, by question."""
    max_rejected: float = MAX_REJECTED
    """Share of the events of a bounded input, from 0 to 1, that may be rejected: see
    :class:`PrivateHistograms`. An event that meets no question's conditions is no loss."""
    may_be_empty: bool = False
    """Whether a bounded input without any event is quiet, rather than lost."""
    resume: bytes | None = field(default=None, repr=False)
    """The state of an earlier run, whose users' ledgers go on in this one, as do slots that were
    not over; `first_slot` must be the base slot that came next there, and all else of the release
    the same."""
    ends: bool = True
    """Whether the stream ends with the last slot. Where a run goes on from this one, slots of
    questions that are not over then are answered there, and the state keeps their events."""
    units: Units = field(init=False, repr=False)
    """What each question may cost each class at first, shape (Q, K)."""

    def __post_init__(self) -> None:
        """Refuse at once what cannot work."""
        if not isinstance(self.portfolio, Portfolio):
            refuse("portfolio", self.portfolio, "give a Portfolio of questions")
        self.registry = registry_of(self.registry)
        if self.registry.max_slots:
            raise ConfigurationError(
                "the table of requirements has limits on presence (max_slots), which portfolios do "
                "not know yet: leave the column out"
            )
        take_options(self)
        self.ends = is_true(self.ends, "ends")
        self.columns = Columns.of(self.columns)
        self._check_columns()
        self._key = SameKey.of(self.noise_key)
        self.shards = whole("shards", self.shards)
        self.max_rejected = share("max_rejected", self.max_rejected)
        check_range(self.slots, self.first_slot, self.last_slot)
        saved = None
        if self.resume is not None:
            saved = Saved.read(self.resume, NoiseSource(self._key(), QUERIES).sealing_key)
            self.portfolio = saved.asked(self.portfolio)
        if self.shares is not None and not isinstance(self.shares, np.ndarray):
            refuse("shares", self.shares, "give an array of units, such as plan_shares makes")
        self.units = self._at_first(saved)
        driver = self.ledgers(self.layout(bounded=True)).make()
        if self.resume is not None:
            check_resume(driver.next_slot(driver.decode(self.resume)), self.first_slot)

    def _at_first(self, saved: Saved | None) -> Units:
        """What each question may cost each class at first: if planned, as the stream began."""
        if self.shares is not None:
            return self.shares
        known = self.registry
        size = len(self.portfolio.questions), len(known.classes)
        if saved is not None and saved.shares.shape == size:
            return saved.shares
        _, units = plan_shares(self.portfolio, known.classes, known.sizes, adjacency=self.adjacency)
        return units

    @property
    def slots(self) -> Slots:
        """How base slots cut time."""
        return self.portfolio.base

    def _check_columns(self) -> None:
        """Refuse columns among which one is missing that a question reads."""
        for question in self.portfolio:
            for name in columns_read(question):
                if name not in self.columns.names:
                    raise ConfigurationError(
                        f"question {question.name!r} reads the column {name!r}, which is not among "
                        f"the columns {', '.join(self.columns.names)}: name it as a value"
                    )

    def bounding(self) -> Bounding:
        """The secret of the draws; how many events are kept is up to each question."""
        return Bounding(1, UNIFORM, self._key.derived("bounding"))

    def counter(self, bounded: bool) -> PortfolioCounter:
        """What counts events for each question, of a bounded input or another."""
        return PortfolioCounter(
            self.registry,
            self.layout(bounded),
            self.bounding,
            QUERIES,
            by_user=False,
            max_rejected=self.max_rejected,
            pack=pack_questions,
            until=None if self.ends else self.last_slot,
        )

    def event_mapper(self, bounds: bytes | None = None) -> QuestionsMapper:
        """What maps batches of events, under bounds that were chosen."""
        asked = self.portfolio
        if bounds is not None:
            asked = with_bounds(asked, bounds_from(bounds))
        return self._mapper(asked)

    def trial_mapper(self) -> QuestionsMapper:
        """What maps a sample to see what would be lost; bounds that are not chosen yet are any."""
        looks = 0 if are_known(self.portfolio) else len(looks_at(self.portfolio))
        any_bounds = np.tile([0.0, 1.0], (looks, 1))
        return self._mapper(with_bounds(self.portfolio, any_bounds) if looks else self.portfolio)

    def _mapper(self, portfolio: Portfolio) -> QuestionsMapper:
        """What maps batches of events for some questions."""
        return QuestionsMapper(
            portfolio,
            self.columns,
            self.registry,
            self._key.derived("strangers"),
            self.first_slot,
            self.last_slot,
        )

    @property
    def context(self) -> Parts:
        """What the counts mean, beyond the questions: the noise is bound to all of it."""
        return {
            STREAM: encoded(QUERIES),
            COLUMNS: self.columns.identity(),
            USERS: self.registry.identity(),
        }

    @cached_property
    def end(self) -> int | None:
        """The last base slot: with which the last slot of any question ends, if the stream does."""
        if self.last_slot is None or not self.ends:
            return self.last_slot
        return max(_last_base_slot(question, self.last_slot) for question in self.portfolio)

    def layout(self, bounded: bool) -> PortfolioLayout:
        """How codes of events are laid out, of a bounded input or of a stream."""
        return PortfolioLayout.of(self.portfolio, self.registry, self.shards, timely=not bounded)

    def ledgers(self, layout: Any) -> PortfolioLedgers:
        """What is released and how it is accounted for."""
        asked = self.registry
        return PortfolioLedgers(
            layout,
            asked.classes,
            asked.sizes,
            self.units,
            self.adjacency,
            self._key,
            QUERIES,
            self.context,
            self.shares is None,
            asked.guessed,
        )

    def within(self, slot: int) -> list[str]:
        """Questions, and their longer times, of which no slot begins with a base slot: names."""
        return [one.name for one in self.portfolio if slot % one.slots] + [
            f"{one.name} by {format_duration(self.portfolio.of_length(longer).length)}"
            for one in self.portfolio
            for longer in one.times
            if slot % longer
        ]

    def kept(self, bounded: bool) -> list[tuple[BlockKey, Message]]:
        """Events of slots that were not over when the run before ended."""
        if self.resume is None:
            return []
        layout = self.layout(bounded)
        return list(going_on(self.ledgers(layout).make().kept(self.resume), layout))

    def _sample_key(self) -> bytes:
        """The secret of the draws of the sample from which bounds are chosen."""
        return self._key.derived("sample")

    @property
    def _identity(self) -> bytes:
        """Of all that shapes a look."""
        return of_parts({**self.context, "questions": encoded(self.portfolio)})

    def _tell_of_parts(self) -> None:
        """Say which questions' first and last slots are in the range in part, and stay so."""
        first = self.first_slot if self.resume is None else None
        last = self.last_slot if self.ends else None
        for end, verb, slot in (
            ("first", "starts", None if first is None else first),
            ("last", "ends", None if last is None else last + 1),
        ):
            if slot is None:
                continue
            names = self.within(slot)
            if names:
                _LOGGER.warning(
                    "the range %s at %s, within a slot of %s: of the %s slot of each a part counts",
                    verb,
                    format_time(self.slots.start(slot)),
                    ", ".join(names),
                    end,
                )

    def check(self, *, bounded: bool) -> None:
        """Refuse what a stream cannot do; say which slots are in the range in part."""
        if not bounded and not are_known(self.portfolio):
            raise ConfigurationError(
                "the input has no end, so there is nothing to look at before the first slot: give "
                "lower and upper in place of bounds: auto, or go on from the state of a run that "
                "chose them"
            )
        if not bounded and self.first_slot is None:
            raise ConfigurationError(
                "the input has no end, so the base slot with which it begins must be known: give "
                "--start"
            )
        self._tell_of_parts()

    def bounds_choice(self, on_workers: QueryPlan) -> BoundsChoice | None:
        """What chooses bounds from a bounded input; None where all are known.

        `on_workers` is the plan without what workers need not have.
        """
        if are_known(self.portfolio):
            return None
        sample = Sample(
            self.portfolio,
            self.registry,
            self.shards,
            on_workers._mapper,
            on_workers._sample_key,
        )
        return BoundsChoice(sample, self._key, self._identity, QUERIES, self.first_slot or 0)

    def release_config(self, layout: Any, clock: SlotClock) -> ReleaseConfig:
        """What the release stage is made of."""
        publish = PublishAnswers(self.last_slot, self.ends, GuessedUsers.of(self.registry))
        return ReleaseConfig(
            partial(one_driver, self.ledgers(layout)),
            clock,
            publish,
            self.first_slot,
            self.end,
            self.resume,
            keeps=self.end == self.last_slot,
            emit_rest=publish.rest,
            ends=self.ends,
            tells_booked=True,
        )


def columns_for(portfolio: Portfolio, user: str, time: str, **reading: Any) -> Columns:
    """Columns of user and time, and as values all that questions read, each once.

    What one question cannot read is no fault of the event for another.

    Args:
        portfolio: what is asked.
        user: column of the user.
        time: column of the time.
        reading: how times are read, as :class:`Columns` has it.
    """
    every = (name for question in portfolio for name in columns_read(question))
    names = dict.fromkeys(map(QueryColumn, every))
    return Columns(user, tuple(names) or (user,), time, **reading)


def _last_base_slot(question: Question, base_slot: int) -> int:
    """The base slot with which the slot of a question ends that holds a base slot."""
    return (base_slot // question.slots + 1) * question.slots - 1
