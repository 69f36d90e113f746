"""What the release stage drives for a portfolio: one stream in base slots, of all questions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from streamveil.engine import metrics
from streamveil.engine.count.bounds_choice import bounds_from
from streamveil.engine.count.query_counter import PortfolioLayout, histograms_of
from streamveil.engine.messages import LEDGER, Message, Output, several_from_bytes, several_to_bytes
from streamveil.engine.stream.guessed_users import GuessedUsers
from streamveil.engine.stream.saved_queries import Saved
from streamveil.mechanisms.core.budgets import Requirements, Units
from streamveil.mechanisms.driver.saved_state import Parts
from streamveil.mechanisms.portfolio.bounds import AutoBounds, bounds_of, with_bounds
from streamveil.mechanisms.portfolio.portfolio_stream import PortfolioState, PortfolioStream
from streamveil.mechanisms.portfolio.slot_answers import SlotAnswer
from streamveil.mechanisms.portfolio.times import TimeSum
from streamveil.mechanisms.protocol import SlotRelease
from streamveil.mechanisms.randomness.noise import NoiseKeys, NoiseSource

_PROGRESS = logging.getLogger("streamveil.progress")

_LOGGER = logging.getLogger("streamveil")

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Counts = Mapping[int, Integers]
"""By number of each question with events, its histogram by class: shape (K, size)."""


@dataclass(frozen=True)
class PortfolioLedgers:
    """What makes the driver on a worker: public, but for the key."""

    layout: PortfolioLayout
    requirements: Requirements
    sizes: Integers
    shares: Units
    adjacency: str
    noise_key: Callable[[], NoiseKeys]
    stream: str
    context: Parts
    replan: bool
    """Whether shares are planned again from answers."""
    guessed: int | None
    """The class whose size is only a guess."""

    def make(self) -> PortfolioDriver:
        """Make it. Raises ConfigurationError for questions that do not fit."""
        noise = NoiseSource(self.noise_key(), self.stream)
        stream = PortfolioStream(
            self.layout.portfolio,
            self.requirements,
            self.sizes,
            self.shares,
            noise,
            adjacency=self.adjacency,
            context=self.context,
            guessed=self.guessed,
            replan=self.replan,
        )
        return PortfolioDriver(stream, self.layout, self, noise.sealing_key)

    def under(self, bounds: Floats) -> PortfolioLedgers:
        """The same under bounds that were chosen, shape (looks, 2)."""
        portfolio = with_bounds(self.layout.portfolio, bounds)
        return replace(self, layout=replace(self.layout, portfolio=portfolio))


@dataclass(frozen=True)
class PortfolioDriver:
    """Takes base slots in order; the counts of one are histograms of the questions due with it."""

    stream: PortfolioStream
    layout: PortfolioLayout
    ledgers: PortfolioLedgers
    key: bytes = field(repr=False)
    """Of the checksum of its states."""

    def chosen(self, choice: Message) -> PortfolioDriver:
        """The same under bounds that were chosen."""
        return self.ledgers.under(bounds_from(choice.payload)).make()

    def tell_chosen(self) -> None:
        """Say the bounds, which are public, in the log and as names of counters."""
        for question in self.layout.portfolio:
            asked = question.statistic
            if isinstance(asked, AutoBounds):
                told = f"{question.name}: {asked.lower:g} to {asked.upper:g}"
                metrics.count(f"{metrics.BOUNDS_PREFIX}{metrics.OF_QUESTION}{told}", 1)
                _LOGGER.info("bounds of question %s, chosen by a private look", told)

    @property
    def parts(self) -> int:
        """Shards of all questions, each of which tells every base slot of a stream."""
        return self.layout.parts

    @property
    def quiet(self) -> Counts:
        """Counts of a slot without events."""
        return {}

    def start(self) -> PortfolioState:
        """State before the first base slot."""
        return self.stream.start()

    def encode(self, state: PortfolioState, kept: Iterable[Message] = ()) -> bytes:
        """Bytes of the state, as of :class:`Saved`.

        With it go events of slots that are not over, in any order.
        """
        messages = sorted(message.to_bytes() for message in kept)
        written = several_to_bytes(self.stream.pack(state), *messages)
        bounds = bounds_of(self.layout.portfolio)
        saved = Saved(self.ledgers.shares, bounds, self.stream.keeper.write(written))
        return saved.sealed(self.key)

    def decode(self, data: bytes) -> PortfolioState:
        """State of bytes. Raises ConfigurationError for that of another configuration."""
        return self.stream.unpack(self._parts(data)[0])

    def kept(self, data: bytes) -> list[Message]:
        """Events of slots that were not over, of the bytes of a state."""
        return list(map(Message.from_bytes, self._parts(data)[1:]))

    def _parts(self, data: bytes) -> list[bytes]:
        return several_from_bytes(self.stream.keeper.read(Saved.read(data, self.key).state))

    def slots(self, block: int, parts: Iterable[Message]) -> Iterator[tuple[int, Counts | None]]:
        """A base slot with what came of it; None if that is nothing."""
        yield block, histograms_of(parts, self.layout) or None

    def release(
        self, state: PortfolioState, slot: int, counted: Counts
    ) -> tuple[PortfolioState, dict[int, SlotRelease]]:
        """Release all questions that are due with the next base slot, whether anybody was there."""
        due = self.stream.due(slot)
        nothing = {
            q: np.zeros((self.layout.classes, self.layout.measures[q].size), np.int64)
            for q in due
            if q not in counted
        }
        return self.stream.release(state, slot, {**counted, **nothing})

    def next_slot(self, state: PortfolioState) -> int | None:
        """The base slot that comes next."""
        return state.next_slot


@dataclass(frozen=True)
class PublishAnswers:
    """Gives what is answered of the questions that are due and, on the side, what that cost."""

    last_slot: int | None = None
    """Last base slot that is asked about: slots of questions that begin after it are not told."""
    ends: bool = True
    """Whether the stream ends there: longer times that are not over are told in part then."""
    guessed: GuessedUsers | None = None
    """What is assumed of the number of users, if it is only assumed."""

    def __call__(
        self,
        driver: PortfolioDriver,
        state: PortfolioState,
        slot: int,
        releases: Mapping[int, SlotRelease],
        at: int,
    ) -> Iterator[Output]:
        """A `SlotAnswer` and a `PortfolioEntry` of each, and a `SlotAnswer` of longer times."""
        metrics.observe(metrics.WINDOW_USE, int(np.ceil(state.filter.use() * 1e6)))
        _PROGRESS.info("released slot %d", slot, extra={"slots": 1})
        for entry, (q, release) in zip(
            driver.stream.entries(state, releases), releases.items(), strict=True
        ):
            if self.last_slot is not None and entry.first_base_slot > self.last_slot:
                continue
            question = driver.layout.portfolio.questions[q]
            metrics.count(metrics.SLOTS_PREFIX + release.status, 1)
            of_question = f"{release.status}{metrics.OF_QUESTION}{question.name}"
            metrics.count(metrics.SLOTS_PREFIX + of_question, 1)
            if self.guessed is not None:
                self.guessed.check(release, question.sensitivity)
            told = SlotAnswer.of(
                *(release, slot // question.slots, question, driver.layout.portfolio),
                state.usual[q],
            )
            yield Output(told, at=at)
            yield Output(entry, LEDGER, at)
            last = self.last_slot is not None and entry.last_base_slot >= self.last_slot
            for one in state.times[q]:
                if one.ended or (last and self.ends):
                    yield self._time(driver, state, q, one, at)

    def rest(self, driver: PortfolioDriver, state: PortfolioState, at: int) -> Iterator[Output]:
        """A `SlotAnswer` of each longer time in which an input without a range ends."""
        if self.last_slot is None:
            for q, sums in enumerate(state.times):
                for one in sums:
                    if one.unfinished:
                        yield self._time(driver, state, q, one, at)

    def _time(
        self, driver: PortfolioDriver, state: PortfolioState, q: int, told: TimeSum, at: int
    ) -> Output:
        portfolio = driver.layout.portfolio
        answer = SlotAnswer.of_time(told, portfolio.questions[q], portfolio, state.usual[q])
        return Output(answer, at=at)
