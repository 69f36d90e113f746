"""Portfolios on counts in memory: what a run releases and spends, without Beam."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.budgets import Requirements, Units
from streamveil.mechanisms.core.records import (
    ADD_REMOVE,
    ConfigurationError,
    Requirement,
    as_requirement,
)
from streamveil.mechanisms.portfolio.answers import Answer
from streamveil.mechanisms.portfolio.fusing import observed_parts
from streamveil.mechanisms.portfolio.portfolio_stream import (
    PortfolioEntry,
    PortfolioStream,
    usual_at_start,
)
from streamveil.mechanisms.portfolio.questions import Portfolio, Question
from streamveil.mechanisms.portfolio.shares import plan_shares
from streamveil.mechanisms.portfolio.slot_answers import answer_of, figures_of
from streamveil.mechanisms.portfolio.times import sums_after, sums_at_start
from streamveil.mechanisms.protocol import SlotRelease
from streamveil.mechanisms.randomness.noise import NoiseSource

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PortfolioSimulation:
    """What a simulated portfolio released and spent."""

    releases: Mapping[str, tuple[SlotRelease, ...]]
    """Of each question by name, one for each of its slots."""
    entries: tuple[PortfolioEntry, ...]
    """What each release cost, in the order of releases."""
    shares: Units
    """Units of each question and class at first, shape (Q, K)."""
    last_shares: Units
    """In the end."""

    def counts(self, question: str) -> Counts:
        """Released histograms of a question, shape (slots, cells)."""
        return np.array([release.counts for release in self.releases[question]])


def simulate_portfolio(
    portfolio: Portfolio,
    counts: Mapping[str, npt.ArrayLike],
    requirements: Sequence[Requirement | tuple[int, float]],
    sizes: npt.ArrayLike,
    key: bytes,
    *,
    shares: Units | None = None,
    adjacency: str = ADD_REMOVE,
    guessed: int | None = None,
    first_slot: int = 0,
) -> PortfolioSimulation:
    """Run a portfolio over whole streams.

    Args:
        portfolio: what is asked.
        counts: by the name of each question its bounded histograms by slot, class and cell of its
            measure, whole numbers, shape (slots, K, cells). They are those of the slots that end
            with `first_slot` or later, as many as the longest of all streams holds.
        requirements: of each class, K of them, windows in base slots.
        sizes: public number of users of each class, shape (K,).
        key: 32 secret bytes; the same key and counts give the same result.
        shares: units of each question and class, int64, shape (Q, K), for good; if None they are
            planned, and planned again from what is released.
        adjacency: what neighbouring streams differ in.
        guessed: the class whose size is only a guess; None if all are known.
        first_slot: base slot with which the streams begin.

    Raises:
        ConfigurationError: for what a question or its mechanism cannot do, or counts of other
            questions.
        ValueError: for counts of another shape or length, or a key that is not 32 bytes.
    """
    asked = Requirements([as_requirement(one) for one in requirements])
    people = np.asarray(sizes, np.int64)
    replan = shares is None
    if shares is None:
        _, shares = plan_shares(portfolio, asked, people, adjacency=adjacency)
    stream = PortfolioStream(
        *(portfolio, asked, people, shares, NoiseSource(key)),
        adjacency=adjacency,
        guessed=guessed,
        replan=replan,
    )
    tables = _checked(portfolio, counts, len(asked), first_slot)
    state = stream.start()
    releases: dict[str, list[SlotRelease]] = {question.name: [] for question in portfolio}
    entries: list[PortfolioEntry] = []
    firsts = [first_slot // question.slots for question in portfolio]
    for base_slot in range(first_slot, _end(portfolio, tables, first_slot)):
        told = {
            q: tables[q][base_slot // portfolio.questions[q].slots - firsts[q]]
            for q in stream.due(base_slot)
        }
        state, released = stream.release(state, base_slot, told)
        entries += stream.entries(state, released)
        for q, release in released.items():
            releases[portfolio.questions[q].name].append(release)
    found = {name: tuple(each) for name, each in releases.items()}
    last = state.plan.caps if state.plan else shares
    return PortfolioSimulation(found, tuple(entries), shares, last)


def answers_of(
    question: Question,
    releases: Sequence[SlotRelease],
    some: Collection[int] | None = None,
) -> Iterator[Answer]:
    """The figures of slots in a row, as a run tells them.

    Args:
        question: what was asked.
        releases: of each slot from the first on.
        some: slots of which to tell; all if None.
    """
    usual = usual_at_start(question)
    for slot, release in enumerate(releases):
        usual = usual and usual.after(observed_parts(question, release))
        if some is None or slot in some:
            yield answer_of(question, release.values, release.stderr, usual, release.unshrunk)


def times_of(
    question: Question, portfolio: Portfolio, releases: Iterable[SlotRelease], first: int
) -> dict[int, list[Answer]]:
    """The figures of longer times that are over, as a run tells them, by their base slots.

    Args:
        question: what was asked.
        portfolio: it is a question of.
        releases: of its slots in a row.
        first: number of the first slot.
    """
    usual, sums = usual_at_start(question), sums_at_start(question)
    found: dict[int, list[Answer]] = {longer: [] for longer in question.times}
    for slot, release in enumerate(releases, first):
        usual = usual and usual.after(observed_parts(question, release))
        sums = sums_after(sums, question, slot, release)
        for longer, one in zip(question.times, sums, strict=True):
            if one.ended:
                found[longer].append(figures_of(one, question, portfolio, usual))
    return found


def _checked(
    portfolio: Portfolio, counts: Mapping[str, npt.ArrayLike], classes: int, first_slot: int
) -> list[Counts]:
    names = [question.name for question in portfolio]
    if set(counts) != set(names):
        raise ConfigurationError(
            f"counts are of the questions {', '.join(counts)}; the portfolio asks "
            f"{', '.join(names)}: give those of each"
        )
    tables = []
    for question in portfolio:
        table, size = np.asarray(counts[question.name]), question.measure.size
        if table.ndim != 3 or table.shape[1:] != (classes, size):
            raise ValueError(
                f"counts of question {question.name!r} have shape {table.shape}; give (slots, "
                f"{classes} classes, {size} cells)"
            )
        if not np.issubdtype(table.dtype, np.integer):
            raise ValueError(
                f"counts of question {question.name!r} are {table.dtype}; give whole numbers"
            )
        tables.append(table.astype(np.int64))
    end = _end(portfolio, tables, first_slot)
    for question, table in zip(portfolio, tables, strict=True):
        slots = end // question.slots - first_slot // question.slots
        if len(table) != slots:
            raise ValueError(
                f"counts of question {question.name!r} are of {len(table)} slots; "
                f"{end - first_slot} base slots have {slots}"
            )
    return tables


def _end(portfolio: Portfolio, tables: Sequence[Counts], first_slot: int) -> int:
    """The base slot after those that the longest stream covers."""
    covered = zip(portfolio, tables, strict=True)
    return max(
        (first_slot // question.slots + len(table)) * question.slots for question, table in covered
    )
