"""Releases of a portfolio: a stream for each question, and the filter over all of them.

Guarantee: over any `window` consecutive base slots, the releases of all questions that meet them
differ in distribution by at most a factor exp(epsilon_k) for a user of class k.
Adjacency: streams that differ in what one user did in these base slots: all of it added or removed;
or replaced.
Sensitivity: of a question's histogram in one of its slots, as `windows.py` has it.
Proof: a question with share a of the budget has the requirement (`question_window`, a epsilon_k)
over its own slots, which its own stream keeps. The window meets at most so many of these. Shares
add up to 1 or less, each rounded down to whole units, and noise is independent by question: the
losses add up. The filter over all questions checks that on its own arithmetic.
Where shares are planned again, requirements of questions change: `replanning.py` has the proof.
Where bounds are chosen, what the look costs (`bounds.py`) is no part of what shares are of, and
counts in every window.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.budgets import UNIT_BITS, Requirements, Units, to_epsilon
from streamveil.mechanisms.core.identity import encoded
from streamveil.mechanisms.core.records import (
    ADD_REMOVE,
    ConfigurationError,
    Requirement,
    Revised,
    check_shares,
)
from streamveil.mechanisms.driver.saved_state import (
    KIND,
    NOTHING_MORE,
    REQUIREMENTS,
    SENSITIVITY,
    SLOTS,
    USERS,
    Keeper,
    Parts,
)
from streamveil.mechanisms.driver.stream import ReleaseStream, StreamState, check_order
from streamveil.mechanisms.portfolio.bounds import set_aside
from streamveil.mechanisms.portfolio.fusing import observed_parts
from streamveil.mechanisms.portfolio.portfolio_filter import PortfolioFilter
from streamveil.mechanisms.portfolio.questions import Portfolio, Question
from streamveil.mechanisms.portfolio.replanning import Plan, Replanning
from streamveil.mechanisms.portfolio.shares import RATES, Expected
from streamveil.mechanisms.portfolio.times import TimeSum, sums_after, sums_at_start, sums_of
from streamveil.mechanisms.portfolio.usual import Usual
from streamveil.mechanisms.portfolio.windows import due, question_window, sensitivity_of
from streamveil.mechanisms.protocol import Population, SlotRelease
from streamveil.mechanisms.randomness.noise import NoiseSource
from streamveil.mechanisms.registry import MECHANISMS, mechanism, parse

_LOG = logging.getLogger(__name__)

Counts = npt.NDArray[np.int64]

SHARES = "shares of the budget"
WEIGHTS = "weights or shares asked for"


@dataclass(frozen=True, eq=False)
class PortfolioEntry:
    """What one release of a question cost every class of users, as the filter booked it."""

    question: str
    """Its name."""
    first_base_slot: int
    last_base_slot: int
    classes: tuple[Requirement, ...]
    """Windows in base slots."""
    users: npt.NDArray[np.int64]
    """Public class sizes, shape (K,)."""
    spent: npt.NDArray[np.float64]
    """Epsilon, shape (K,)."""
    spent_in_window: npt.NDArray[np.float64]
    """Epsilon of all releases so far, of all questions, in the fullest window of each class that
    meets these base slots, shape (K,)."""


@dataclass
class PortfolioState:
    """All that a portfolio remembers between base slots."""

    questions: list[StreamState]
    """In the order of the portfolio."""
    filter: PortfolioFilter
    usual: list[Usual | None]
    """Of each question whose figures are ratios, what is usual of it."""
    times: list[tuple[TimeSum, ...]]
    """Of each question what its longer times add up to so far."""
    plan: Plan | None = None
    """The shares in force, where they are planned again."""
    next_slot: int | None = None
    """The base slot that is due next; None before the first."""


class PortfolioStream:
    """Releases what is due with each base slot, in order, each question's slot once.

    The noise of a question is bound to the question, and to all of its counts so far: see
    :class:`ReleaseStream`. State of one configuration is refused by another.

    Args:
        portfolio: what is asked.
        requirements: of each class, K of them, windows in base slots.
        sizes: public number of users of each class, shape (K,).
        shares: units of each question and class, int64, shape (Q, K): see `plan_shares`.
        noise: where randomness comes from; its slots are base slots.
        adjacency: what neighbouring streams differ in.
        context: everything else that shapes what is released, by name.
        revise: how many of its slots later a slot of a question is revised; 0 for never.
        guessed: as in :class:`Population`.
        replan: whether shares are planned again from what is released: see `replanning.py`.

    Raises ConfigurationError, with the question's name, for what a question or its mechanism cannot
    do, and for shares that are more than there is, or nothing.
    """

    SCHEMAS = {
        1: state_codec.record_schema(
            "Portfolio",
            next_slot=["null", "long"],
            filter="bytes",
            questions={"type": "array", "items": "bytes"},
            usual={"type": "array", "items": ["null", "bytes"]},
            times={"type": "array", "items": {"type": "array", "items": "bytes"}},
            plan=["null", Plan.SCHEMA],
        )
    }

    def __init__(
        self,
        portfolio: Portfolio,
        requirements: Requirements,
        sizes: npt.NDArray[np.int64],
        shares: Units,
        noise: NoiseSource,
        *,
        adjacency: str = ADD_REMOVE,
        context: Parts = NOTHING_MORE,
        revise: int = 0,
        guessed: int | None = None,
        replan: bool = False,
    ) -> None:
        self.portfolio = portfolio
        self.requirements = Requirements.of(requirements)
        self.sizes = sizes
        self._longest = max(question.slots for question in portfolio)
        self._aside = set_aside(portfolio, self.requirements, sizes)
        self._filter()  # refuses what cannot be accounted for
        _check_units(shares, portfolio, self.requirements, self._aside)
        self.streams = tuple(
            self._stream(question, units, noise, adjacency, context, revise, guessed)
            for question, units in zip(portfolio, shares, strict=True)
        )
        replanning = Replanning(
            portfolio,
            self.requirements,
            Expected.of(portfolio, self.requirements, sizes, adjacency, RATES),
            self.requirements.budgets - self._aside,
            shares,
            [stream.mechanism for stream in self.streams],
        )
        self._replanning = replanning if replan and replanning.able else None
        self._in_force: tuple[Plan | None, tuple[ReleaseStream, ...]] = None, self.streams
        parts = {
            KIND: encoded("portfolio"),
            REQUIREMENTS: encoded(self.requirements),
            USERS: encoded(sizes),
            SLOTS: encoded(portfolio.base),
            SENSITIVITY: encoded(adjacency),
            SHARES: encoded((shares, replan)),
            WEIGHTS: encoded(tuple((one.weight, one.share or 0.0) for one in portfolio)),
            **{
                f"question {question.name}": encoded((number, question))
                for number, question in enumerate(portfolio)
            },
            **context,
        }
        self.keeper = Keeper(noise, parts)

    def _stream(
        self,
        question: Question,
        units: Units,
        noise: NoiseSource,
        adjacency: str,
        context: Parts,
        revise: int,
        guessed: int | None,
    ) -> ReleaseStream:
        """The stream of a question over slots of its own, with its part of the budget."""
        try:
            check_mechanism(question)
            asked = Requirements(
                Requirement(
                    question_window(one.window, question.slots), math.ldexp(int(part), -UNIT_BITS)
                )
                for one, part in zip(self.requirements, units, strict=True)
            )
            sensitivity = sensitivity_of(question, adjacency)
            check_shares(asked, sensitivity)
            population = Population(
                asked,
                self.sizes,
                question.measure.size,
                sensitivity,
                self.portfolio.slots_of(question).length,
                quantum=question.measure.quantum,
                ratio=question.measure.parts if question.statistic.ratios else 0,
                summed=bool(question.times),
                graded=question.measure.graded,
                totals=question.measure.totals,
                guessed=guessed,
            )
            made = mechanism(question.mechanism, population, revise=revise)
        except ConfigurationError as error:
            raise ConfigurationError(f"question {question.name!r}: {error}") from error
        parts = {**context, "question": encoded(question)}
        return ReleaseStream(made, noise.of_slots(question.slots), context=parts)

    def _filter(self) -> PortfolioFilter:
        return PortfolioFilter(self.requirements, self._longest, self._aside)

    def start(self) -> PortfolioState:
        """State before the first base slot."""
        usual = [usual_at_start(question) for question in self.portfolio]
        times = [sums_at_start(question) for question in self.portfolio]
        plan = self._replanning.start() if self._replanning else None
        states = [stream.start() for stream in self.streams]
        return PortfolioState(states, self._filter(), usual, times, plan)

    def _under(self, plan: Plan | None) -> tuple[ReleaseStream, ...]:
        """The streams of the questions under a plan."""
        last, found = self._in_force
        if plan is None or plan.same(last):
            return found
        budgets = zip(self.streams, plan.caps, plan.pace, strict=True)
        found = tuple(stream.resized(caps, pace) for stream, caps, pace in budgets)
        self._in_force = plan, found
        return found

    def due(self, base_slot: int) -> tuple[int, ...]:
        """Numbers of the questions of which a slot ends with a base slot."""
        asked = enumerate(self.portfolio)
        return tuple(number for number, one in asked if due(one.slots, base_slot))

    def price(self, state: PortfolioState, base_slot: int) -> dict[int, Units]:
        """The most that a base slot can cost a user of each class, before its counts are known.

        Returns units by the number of each question that is due, shape (K,).
        """
        streams = self._under(state.plan)
        return {q: streams[q].price(state.questions[q]) for q in self.due(base_slot)}

    def release(
        self, state: PortfolioState, base_slot: int, counts: Mapping[int, Counts]
    ) -> tuple[PortfolioState, dict[int, SlotRelease]]:
        """Release all that is due with the next base slot.

        Args:
            state: after the base slots before.
            base_slot: the first one, or the one after the last.
            counts: by the number of each question that is due, its histogram by class over all base
                slots of its slot, int64, shape (K, size of its measure).

        Returns the state, and releases by question; their slots are those of the question.

        Raises:
            BudgetExceeded: when the filter of a question refuses, or the one over all of them;
                nothing of this base slot is released then.
            ValueError: for a base slot out of order, counts of other questions than those that are
                due, or counts that do not fit.
        """
        check_order(state.next_slot, base_slot)
        asked = self.due(base_slot)
        if set(counts) != set(asked):
            raise ValueError(
                f"with base slot {base_slot}, questions {list(asked)} are due; got counts of "
                f"{sorted(counts)}"
            )
        questions, releases, charges = list(state.questions), {}, []
        usual, times = list(state.usual), list(state.times)
        streams = self._under(state.plan)
        for q in asked:
            stream, (first, last) = streams[q], self._base_slots(q, base_slot)
            slot = last // self.portfolio.questions[q].slots
            questions[q], releases[q] = stream.release(questions[q], slot, counts[q])
            charges.append((first, last, releases[q].spent))
            known = usual[q]
            asking, told = self.portfolio.questions[q], releases[q]
            usual[q] = known and known.after(observed_parts(asking, told))
            times[q] = sums_after(times[q], asking, slot, told)
        state.filter.charge(base_slot, charges)
        plan = self._planned(state.plan, questions, releases)
        return PortfolioState(questions, state.filter, usual, times, plan, base_slot + 1), releases

    def _planned(
        self,
        plan: Plan | None,
        questions: list[StreamState],
        releases: Mapping[int, SlotRelease],
    ) -> Plan | None:
        """The plan for the next base slot; states of questions whose share changes are replaced."""
        if self._replanning is None or plan is None:
            return None
        cost = {q: questions[q].filter.in_window for q in releases}
        later = self._replanning.after(plan, releases, cost)
        if not later.same(plan):
            _LOG.info("shares of the budget: %s", self._replanning.told(later))
            for q, stream in enumerate(self._under(later)):
                caps, pace = later.caps[q], later.pace[q]
                if (caps != plan.caps[q]).any() or (pace != plan.pace[q]).any():
                    questions[q] = stream.taking_over(questions[q], caps, pace)
        return later

    def _base_slots(self, number: int, last: int) -> tuple[int, int]:
        """First and last base slot of the slot of a question that ends with the last one."""
        return last - self.portfolio.questions[number].slots + 1, last

    def entries(
        self, state: PortfolioState, releases: Mapping[int, SlotRelease]
    ) -> tuple[PortfolioEntry, ...]:
        """The ledger of what was released last: `state` and `releases` of :meth:`release`."""
        if state.next_slot is None:
            return ()
        last = state.next_slot - 1
        return tuple(
            PortfolioEntry(
                self.portfolio.questions[q].name,
                *self._base_slots(q, last),
                tuple(self.requirements),
                self.sizes,
                to_epsilon(release.spent),
                to_epsilon(state.filter.most(self.portfolio.questions[q].slots)),
            )
            for q, release in releases.items()
        )

    def rest(self, state: PortfolioState) -> dict[int, tuple[Revised, ...]]:
        """Revise the slots that are still to be revised, by question: the stream ends."""
        found = {
            q: stream.rest(one)
            for q, (stream, one) in enumerate(zip(self.streams, state.questions, strict=True))
        }
        return {q: revised for q, revised in found.items() if revised}

    def encode(self, state: PortfolioState) -> bytes:
        """Bytes of the state, readable by this and later versions."""
        return self.keeper.write(self.pack(state))

    def decode(self, data: bytes) -> PortfolioState:
        """State of bytes.

        Raises ConfigurationError for bytes that were changed, or that another configuration wrote:
        see :meth:`Keeper.read`.
        """
        return self.unpack(self.keeper.read(data))

    def pack(self, state: PortfolioState) -> bytes:
        """The state as a record, for whoever seals it together with more."""
        record: dict[str, Any] = {
            "next_slot": state.next_slot,
            "filter": state.filter.encode(),
            "questions": [
                stream.encode(one)
                for stream, one in zip(self._under(state.plan), state.questions, strict=True)
            ],
            "usual": [one and one.encode() for one in state.usual],
            "times": [[one.encode() for one in sums] for sums in state.times],
            "plan": state.plan and state.plan.record(),
        }
        return state_codec.pack(self.SCHEMAS, record)

    def unpack(self, data: bytes) -> PortfolioState:
        """The state of a record."""
        _, record = state_codec.unpack(self.SCHEMAS, data)
        plan = self._replanning.start().read(record["plan"]) if self._replanning else None
        return PortfolioState(
            [
                stream.decode(one)
                for stream, one in zip(self._under(plan), record["questions"], strict=True)
            ],
            PortfolioFilter.decode(record["filter"], self.requirements, self._longest),
            [
                one and one.decode(sums)
                for one, sums in zip(self.start().usual, record["usual"], strict=True)
            ],
            [
                sums_of(sums, question)
                for sums, question in zip(record["times"], self.portfolio, strict=True)
            ],
            plan,
            record["next_slot"],
        )


def usual_at_start(question: Question) -> Usual | None:
    """What is usual before the first slot; None of figures that are no ratios."""
    ratios = question.statistic.ratios
    if ratios is None:
        return None
    nodes = len(question.tree.labels(question.domain))
    return Usual.start(nodes, question.measure.parts, ratios)


def check_mechanism(question: Question) -> None:
    """Refuse a mechanism that draws lots for every unit, where an event adds more than one.

    Such a draw is private for any whole numbers, unit by unit. But it would take a thousand draws
    for an event's number, and keep some quanta of an event and others not.

    Raises ConfigurationError.
    """
    name, _ = parse(question.mechanism, MECHANISMS)
    if MECHANISMS[name].draws and question.statistic.weights.sum(axis=1).max() > 1:
        able = " or ".join(one.name for one in MECHANISMS.values() if not one.draws)
        raise ConfigurationError(
            f"mechanism {question.mechanism!r} draws lots for every unit of a count, and an event "
            f"adds many to a {question.statistic.name}: choose {able}"
        )


def _check_units(
    shares: Units, portfolio: Portfolio, requirements: Requirements, aside: Units
) -> None:
    """Refuse shares that are no amounts, are nothing, or are more than is not set aside."""
    questions = len(portfolio.questions)
    if shares.shape != (questions, len(requirements)) or shares.dtype != np.int64:
        raise ValueError(
            f"shares of {questions} questions and {len(requirements)} classes must be int64 units "
            f"of that shape; got {shares.dtype} of shape {shares.shape}"
        )
    if (shares <= 0).any():
        name = portfolio.questions[int((shares <= 0).any(axis=1).argmax())].name
        raise ConfigurationError(f"question {name!r} has no share of the budget: give it some")
    left = requirements.budgets - aside
    for row in shares:
        if (row > left).any():
            k = int((row > left).argmax())
            raise ConfigurationError(
                f"the questions' shares of the budget of {requirements[k]} are more than all of it"
                f"{', less what a look at bounds costs' if aside.any() else ''}"
            )
        left -= row
