"""Portfolios on trial: what is asked of whom, and runs of all questions with the exact driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.budgets import Requirements, Units, to_epsilon
from streamveil.mechanisms.core.domains import Categories
from streamveil.mechanisms.core.records import ADD_REMOVE
from streamveil.mechanisms.portfolio.portfolio_stream import PortfolioStream
from streamveil.mechanisms.portfolio.questions import Portfolio, Question
from streamveil.mechanisms.portfolio.shares import plan_shares
from streamveil.mechanisms.portfolio.simulated import answers_of, times_of
from streamveil.mechanisms.portfolio.statistics import TopK
from streamveil.mechanisms.portfolio.trees import FLAT, Tree
from streamveil.mechanisms.protocol import Population, SlotRelease
from streamveil.mechanisms.randomness.noise import NoiseSource
from streamveil.pipelines.audit.clock import check_clock
from streamveil.pipelines.audit.runs import Transcript, fullest
from streamveil.pipelines.audit.worlds import LENGTH, crowd

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

# Slots of the longest question in a run, at least.
LONGEST = 4
# Counts of a question in a run of worst cases, of all slots, classes and cells: 128 MiB.
MOST_COUNTS = 1 << 24


@dataclass(frozen=True, eq=False)
class Asked:
    """A portfolio and whom it is asked about: all of it is public."""

    portfolio: Portfolio
    requirements: Requirements
    """Of each class, K of them, windows in base slots."""
    sizes: Integers
    """Users of each class, shape (K,)."""
    shares: Units
    """Of each question and class at first, shape (Q, K): they are planned again from answers."""
    adjacency: str = ADD_REMOVE
    guessed: int | None = None
    """The class whose size is only a guess, as of :class:`Population`."""

    @classmethod
    def of(
        cls,
        portfolio: Portfolio,
        requirements: Requirements,
        sizes: Integers,
        adjacency: str,
        guessed: int | None = None,
    ) -> Asked:
        """With the shares that a pipeline plans. Raises ConfigurationError."""
        _, shares = plan_shares(portfolio, requirements, sizes, adjacency=adjacency)
        return cls(portfolio, requirements, sizes, shares, adjacency, guessed)

    def stream(self, key: bytes) -> PortfolioStream:
        """As a pipeline drives it. Raises ConfigurationError for what a question cannot do."""
        return PortfolioStream(
            *(self.portfolio, self.requirements, self.sizes, self.shares, NoiseSource(key)),
            adjacency=self.adjacency,
            guessed=self.guessed,
            replan=True,
        )

    @property
    def round_trip(self) -> int:
        """Base slots after which slots of all questions begin together again."""
        return lcm(*(question.slots for question in self.portfolio))

    def widened(self, bins: int) -> Asked:
        """The same of worst cases: every question has so many bins, and there are users enough.

        Of questions that would take too much memory for a run there are fewer.
        """
        questions = tuple(of_bins(one, min(bins, self._most_bins(one))) for one in self.portfolio)
        wide = replace(self, portfolio=replace(self.portfolio, questions=questions))
        sizes = [
            crowd(stream.mechanism.population.requirements, self.sizes, bins)
            for stream in wide.stream(bytes(32)).streams
        ]
        return replace(wide, sizes=np.max(sizes, axis=0))

    def narrowed(self, bins: int) -> Asked:
        """The same of so many bins at most, which is soon run."""
        questions = tuple(
            of_bins(one, bins) if one.domain.bins > bins else one for one in self.portfolio
        )
        return replace(self, portfolio=replace(self.portfolio, questions=questions))

    def _most_bins(self, question: Question) -> int:
        """For which the counts of a run are not too many; two are needed to move events."""
        measure = of_bins(question, 2).measure
        trip = self.round_trip
        slots = max(LENGTH, LONGEST * trip, self.requirements.longest + 2 * trip) // question.slots
        return max(2, 2 * MOST_COUNTS // (slots * len(self.requirements) * measure.size))


def of_bins(question: Question, bins: int) -> Question:
    """The question about so many bins, each with a group of its own where it has groups."""
    if isinstance(question.statistic, TopK):
        bins = max(bins, question.statistic.k)
    labels = tuple(f"bin {number}" for number in range(bins))
    groups = Tree((tuple(f"group {number}" for number in range(bins)),))
    tree = groups if question.tree.levels else FLAT
    return replace(question, value=("bin",), domain=Categories(labels), tree=tree)


@dataclass(frozen=True, eq=False)
class Telling:
    """All that one run of a portfolio showed: public."""

    transcripts: tuple[Transcript, ...]
    """Of each question."""
    caps: tuple[Floats, ...]
    """What a window of its own could cost with each slot of a question, epsilon, shape (T, K)."""
    fullest: float
    """Largest charge of a window of all questions in parts of its budget, of whole units."""


def run_asked(asked: Asked, key: bytes, counts: Sequence[Integers]) -> Telling:
    """Release all slots of all questions.

    Args:
        asked: what of whom.
        key: 32 bytes.
        counts: of each question, int64, shape (T, K, cells), from base slot 0 on.

    Raises BudgetExceeded when a filter refuses.
    """
    stream, portfolio, questions = asked.stream(key), asked.portfolio, range(len(counts))
    releases: list[list[SlotRelease]] = [[] for _ in questions]
    prices: list[list[Floats]] = [[] for _ in questions]
    caps: list[list[Units]] = [[] for _ in questions]
    for _, told in public_of(stream, asked, counts):
        check_clock()
        for q, price in told["prices"].items():
            prices[q].append(to_epsilon(price))
            caps[q].append(told["caps"][q])
        for q, release in told["releases"].items():
            releases[q].append(release)
    populations: list[Population] = [one.mechanism.population for one in stream.streams]
    return Telling(
        tuple(Transcript(populations[q], releases[q], np.stack(prices[q])) for q in questions),
        tuple(to_epsilon(np.stack(each)) for each in caps),
        fullest(asked.requirements, list(_charges(portfolio, releases))),
    )


def public_of(
    stream: PortfolioStream, asked: Asked, counts: Sequence[Integers]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """All that is public of a run, base slot by base slot: arguments are those of `run_asked`."""
    state, done = stream.start(), [0] * len(counts)
    for base_slot in range(_base_slots(asked.portfolio, counts)):
        caps = state.plan.caps if state.plan else asked.shares
        prices = stream.price(state, base_slot)
        told = {q: counts[q][done[q]] for q in stream.due(base_slot)}
        state, released = stream.release(state, base_slot, told)
        for q in released:
            done[q] += 1
        yield (
            base_slot,
            {
                "prices": prices,
                "caps": caps,
                "releases": released,
                "ledger": stream.entries(state, released),
            },
        )


def answered(portfolio: Portfolio, published: Sequence[Mapping[str, Any]]) -> list[Any]:
    """All answers of a run, of slots and of longer times, from what :func:`public_of` gave."""
    found: list[Any] = []
    for q, question in enumerate(portfolio):
        releases = [one["releases"][q] for one in published if q in one["releases"]]
        found.append(list(answers_of(question, releases)))
        found.append(list(times_of(question, portfolio, releases, 0).items()))
    return found


def charged_of(asked: Asked, published: Sequence[Mapping[str, Any]]) -> float:
    """Largest charge of a window of all questions in parts of its budget, of whole units."""
    releases = [
        [one["releases"][q] for one in published if q in one["releases"]]
        for q in range(len(asked.portfolio.questions))
    ]
    return fullest(asked.requirements, list(_charges(asked.portfolio, releases)))


def _charges(
    portfolio: Portfolio, releases: Sequence[Sequence[SlotRelease]]
) -> Iterator[tuple[int, Units]]:
    """Of each question the base slots of one of its slots, and what each of these cost: (T, K)."""
    for question, some in zip(portfolio, releases, strict=True):
        yield question.slots, np.stack([one.spent for one in some])


def _base_slots(portfolio: Portfolio, counts: Sequence[Integers]) -> int:
    """In which all slots of all questions end."""
    return min(len(table) * one.slots for one, table in zip(portfolio, counts, strict=True))
