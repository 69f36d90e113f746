"""What the release stage drives: a stream of counts by class, or by cohort where they change.

Both have one face, so that the steps which wait for slots need not know which it is. The local
setting and per-record privacy have drivers of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from streamveil.engine import metrics
from streamveil.engine.count.chosen_limits import choice_message, limits_from
from streamveil.engine.count.event_codes import (
    BlockCounts,
    Layout,
    ShardCounts,
    slot_tables,
    slots_beyond,
)
from streamveil.engine.count.participants import thawed_counters
from streamveil.engine.messages import (
    Kind,
    Message,
    compressed,
    expanded,
    several_from_bytes,
    several_to_bytes,
)
from streamveil.mechanisms.adaptive.thawing import thawed
from streamveil.mechanisms.core.budgets import to_epsilon
from streamveil.mechanisms.core.cohorts import Moves
from streamveil.mechanisms.core.records import DynamicLedgerEntry, LedgerEntry, Revised
from streamveil.mechanisms.driver.dynamic_stream import CohortCounts, DynamicState, DynamicStream
from streamveil.mechanisms.driver.life_stream import LifeStream
from streamveil.mechanisms.driver.present_stream import Presence, PresentState, PresentStream
from streamveil.mechanisms.driver.saved_state import CHANGING, Parts
from streamveil.mechanisms.driver.stream import ReleaseStream, StreamState
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.presence.kept_share import Beyond
from streamveil.mechanisms.presence.limits import EVERYBODY, block_length, priced
from streamveil.mechanisms.protocol import Mechanism, Population, Setting, SlotRelease
from streamveil.mechanisms.randomness.noise import NoiseKeys, NoiseSource, digest
from streamveil.mechanisms.registry import dynamic_mechanism, mechanism, only_dynamic

# What the state of a stream whose requirements may change begins with.
_JOINED = b"j"

Integers = npt.NDArray[np.int64]
S = TypeVar("S")
Counted = TypeVar("Counted")
Out = TypeVar("Out", covariant=True)


def is_joined(state: bytes) -> bool:
    """Whether the bytes of a state are those of a stream whose requirements may change."""
    return state.startswith(_JOINED)


class SlotDriver(Protocol[S, Counted, Out]):
    """Takes slots in order, each once, from what shards tell of them."""

    @property
    def parts(self) -> int:
        """From how many shards a slot of an unbounded input comes."""

    @property
    def quiet(self) -> Counted:
        """Counts of a slot without events."""

    def start(self) -> S:
        """State before the first slot."""

    def encode(self, state: S) -> bytes:
        """Bytes of the state."""

    def decode(self, data: bytes) -> S:
        """State of bytes."""

    def slots(self, block: int, parts: Iterable[Message]) -> Iterator[tuple[int, Counted | None]]:
        """Add up all that came of a block: its slots in order, None where nothing came."""

    def release(self, state: S, slot: int, counted: Counted) -> tuple[S, Out]:
        """Release the next slot."""

    def next_slot(self, state: S) -> int | None:
        """The slot that comes next, None before the first."""


class Ledgers(SlotDriver[S, Counted, SlotRelease], Protocol[S, Counted]):
    """A stream of releases over counts, with what they cost."""

    def use(self, state: S) -> float:
        """Largest share of anybody's window that is spent, from 0 to 1."""

    def entry(self, state: S, slot: int, release: SlotRelease) -> LedgerEntry | DynamicLedgerEntry:
        """What the slot just released cost everybody."""

    def rest(self, state: S) -> tuple[Revised, ...]:
        """Revise the slots that are still to be revised: the stream ends."""


Driver = SlotDriver[Any, Any, Any]
DriverOf = Callable[[Any], Driver]
"""Gives the driver of a key."""


class MakesDriver(Protocol):
    """What makes a driver on a worker."""

    def make(self) -> Any:
        """A :class:`SlotDriver`; :class:`Ledgers` where releases are made."""


def one_driver(source: MakesDriver) -> DriverOf:
    """The same driver for every key, where there is one stream."""
    driver = source.make()
    return lambda key: driver


@dataclass(frozen=True)
class Configuration:
    """What makes the ledgers on a worker: public, but for the key."""

    mechanism: str
    population: Population
    layout: Layout
    noise_key: Callable[[], NoiseKeys]
    stream: str = ""
    context: Parts = field(default_factory=dict)
    """What the counts mean, so that the noise of streams with the same counts is independent."""
    changing: bool = False
    """Whether counts come by cohort, with who moved."""
    longest_window: int | None = None
    """The longest window that may be asked for; the longest of the population when None."""
    default_class: int | None = None
    """Class of users outside the registry."""
    revise: int = 0
    """How many slots later a slot is revised; 0 for never."""
    presence: Presence | None = None
    """Where users count in a few slots only; the population asks for what one of these may cost."""

    def make(self) -> Ledgers[Any, Any]:
        """Make them. Raises ConfigurationError for a mechanism that does not fit."""
        noise = NoiseSource(self.noise_key(), self.stream)
        fixed = None
        if not only_dynamic(self.mechanism):
            if self.presence is not None:
                limits = self.presence.limits
                before = self._unchanging if self.presence.moving else None
                return ByPresence(self._present, self.layout, limits, before)
            made = mechanism(self.mechanism, self.population, revise=self.revise)
            fixed = ByClass(made, noise, self.layout, self.context)
            if not self.changing:
                return fixed
        stream = DynamicStream(
            dynamic_mechanism(self.mechanism, self._setting, revise=self.revise),
            self.population.requirements.as_changing,
            self.population.sizes,
            noise,
            default=self.default_class,
            context=self.context,
        )
        return ByCohort(stream, self.layout, self.changing, fixed)

    def _present(self, limits: tuple[Limit, ...]) -> PresentStream:
        """The stream where users count in so many slots."""
        assert self.presence is not None
        asked, adjacency = self.presence.requirements, self.presence.adjacency
        population = replace(self.population, requirements=priced(limits, asked, adjacency))
        made = LifeStream if asked.forever else PresentStream
        return made(
            mechanism(self.mechanism, population, revise=self.revise),
            NoiseSource(self.noise_key(), self.stream),
            self.context,
            replace(self.presence, limits=limits),
        )

    def _unchanging(self) -> ByPresence:
        """The same as long as nobody changed."""
        assert self.presence is not None
        before = replace(
            self,
            population=replace(self.population, joined=False),
            context={name: one for name, one in self.context.items() if name != CHANGING},
            presence=replace(self.presence, moving=False),
        )
        return ByPresence(before._present, self.layout, self.presence.limits)

    @property
    def _setting(self) -> Setting:
        population = self.population
        longest = population.requirements.longest
        return Setting(
            population.bins,
            self.longest_window or longest,
            population.sensitivity,
            population.slot_length,
        )


class ByClass(ReleaseStream):
    """Fixed requirements: counts are BlockCounts, then tables of shape (K, d)."""

    def __init__(
        self,
        mechanism: Mechanism[Any],
        noise: NoiseSource,
        layout: Layout,
        context: Parts,
    ) -> None:
        super().__init__(mechanism, noise, context=context)
        self.layout = layout

    @property
    def parts(self) -> int:
        """Shards, of which each tells its counts."""
        return self.layout.parts

    @property
    def quiet(self) -> Integers:
        """Nobody was there."""
        return np.zeros((self.layout.classes, self.layout.bins), dtype=np.int64)

    def slots(self, block: int, parts: Iterable[Message]) -> Iterator[tuple[int, Integers | None]]:
        """Tables of a block of slots."""
        for slot, table in slot_tables(block, map(BlockCounts.of, parts), self.layout):
            yield slot, table if table.any() else None

    def next_slot(self, state: StreamState) -> int | None:
        """The slot that comes next."""
        return state.next_slot

    def use(self, state: StreamState) -> float:
        """Largest share of any class's window that is spent."""
        return state.filter.use()

    def entry(self, state: StreamState, slot: int, release: SlotRelease) -> LedgerEntry:
        """What the slot cost every class."""
        population = self.mechanism.population
        return LedgerEntry(
            slot,
            population.requirements,
            population.sizes,
            to_epsilon(release.spent),
            to_epsilon(state.filter.in_window),
        )


class _PresentCounts(NamedTuple):
    """Counts of a slot, and what does not count."""

    counts: Integers
    beyond: Beyond


class ByPresence:
    """Users count in a few slots only: counts are BlockCounts, with what does not count.

    Args:
        make: gives the stream under the limit of each class.
        layout: how counts are coded.
        limits: of each class; where they are to be chosen, as long as they are not.
        fixed: where users may move from class to class, gives what may have released the slots
            before, when nobody could.
    """

    def __init__(
        self,
        make: Callable[[tuple[Limit, ...]], PresentStream],
        layout: Layout,
        limits: tuple[Limit, ...],
        fixed: Callable[[], ByPresence] | None = None,
    ) -> None:
        self.layout = layout
        self.stream, self.limits = make(limits), limits
        self._make, self._fixed = make, fixed

    def chosen(self, choice: Message) -> ByPresence:
        """The same under limits that were chosen."""
        return ByPresence(self._make, self.layout, limits_from(choice), self._fixed)

    def tell_chosen(self) -> None:
        """Count the users under each of the limits that were chosen: all of it is public."""
        population, asked = self.stream.mechanism.population, self.stream.asked
        for size, limit, one in zip(population.sizes, self.limits, asked, strict=True):
            if limit.chosen:
                whole = 1 if limit.is_none else block_length(one.window, limit.blocks)
                most = 1 if limit.is_none else limit.max_slots
                metrics.count(f"{metrics.LIMITED_PREFIX}{most} of {whole}", int(size))

    @property
    def _choices(self) -> list[Message]:
        """What the state keeps of limits that were chosen, if they were."""
        return [choice_message(self.limits)] if any(one.chosen for one in self.limits) else []

    @property
    def parts(self) -> int:
        """Shards, of which each tells its counts."""
        return self.layout.parts

    @property
    def quiet(self) -> _PresentCounts:
        """Nobody was there."""
        nothing = np.zeros((self.layout.classes, self.layout.bins), np.int64)
        return _PresentCounts(nothing, Beyond.none())

    def start(self) -> PresentState:
        """State before the first slot."""
        state = self.stream.start()
        if not self._choices:
            return state
        # Were other limits chosen, the same counts would draw other noise.
        history = digest(state.stream.history, b"chosen limits", self._choices[0].payload)
        return replace(state, stream=replace(state.stream, history=history))

    def encode(self, state: PresentState, kept: Iterable[Message] = ()) -> bytes:
        """Bytes of the state; with it goes what shards keep of who counted, in any order."""
        written = self.stream.pack(state)
        messages = (*kept, *self._choices)
        parts = several_to_bytes(written, *sorted(message.to_bytes() for message in messages))
        joined = b"" if self._fixed is None else _JOINED
        return joined + self.stream.keeper.write(compressed(parts))

    def decode(self, data: bytes) -> PresentState:
        """State of bytes, also of those that were written while nobody could change."""
        if self._fixed is not None and not is_joined(data):
            return self.stream.thawed(self._fixed().decode(data))
        return self.stream.unpack(self._parts(data)[0])

    def kept(self, data: bytes) -> list[Message]:
        """What each shard kept, of the bytes of a state."""
        if self._fixed is not None and not is_joined(data):
            return [
                thawed_counters(one, self.layout.key(one.shard)[0])
                for one in self._fixed().kept(data)
            ]
        return [one for one in self._messages(data) if one.kind is Kind.KEPT]

    def gone_on(self, data: bytes) -> ByPresence:
        """The same under the limits that were chosen before a state was written."""
        made = [one for one in self._messages(data) if one.kind is Kind.CHOICE]
        return self.chosen(made[0]) if made else self

    def _messages(self, data: bytes) -> list[Message]:
        return list(map(Message.from_bytes, self._parts(data)[1:]))

    def _parts(self, data: bytes) -> list[bytes]:
        if self._fixed is not None:
            data = data.removeprefix(_JOINED)
        return several_from_bytes(expanded(self.stream.keeper.read(data)))

    def slots(
        self, block: int, parts: Iterable[Message]
    ) -> Iterator[tuple[int, _PresentCounts | None]]:
        """Tables of a block of slots, and what does not count."""
        counted = list(map(BlockCounts.of, parts))
        tables = slot_tables(block, counted, self.layout)
        for (slot, table), beyond in zip(tables, slots_beyond(counted, self.layout), strict=True):
            some = table.any() or len(beyond.events)
            yield slot, _PresentCounts(table, beyond) if some else None

    def release(
        self, state: PresentState, slot: int, counted: _PresentCounts
    ) -> tuple[PresentState, SlotRelease]:
        """Release the next slot."""
        return self.stream.release(state, slot, *counted)

    def rest(self, state: PresentState) -> tuple[Revised, ...]:
        """Revise the slots that are still to be revised: the stream ends."""
        return self.stream.rest(state)

    def next_slot(self, state: PresentState) -> int | None:
        """The slot that comes next."""
        return state.stream.next_slot

    def use(self, state: PresentState) -> float:
        """Largest share of any class's budget that is spent."""
        return float(state.stream.filter.use())

    def entry(self, state: PresentState, slot: int, release: SlotRelease) -> LedgerEntry:
        """What the slot cost whoever of a class counted in it."""
        booked = state.stream.filter
        sizes = self.stream.mechanism.population.sizes
        sizes = np.where(sizes == EVERYBODY, 0, sizes)  # as the registry says of them
        spent = to_epsilon(release.spent)
        return LedgerEntry(slot, booked.requirements, sizes, spent, to_epsilon(booked.in_window))


@dataclass(frozen=True, eq=False)
class _SlotCounts:
    """Counts of a slot and who moved before it."""

    counts: CohortCounts
    moves: Moves


@dataclass(frozen=True)
class ByCohort:
    """Requirements that change: counts by cohort, one slot at a time.

    If nobody can change, they still come as BlockCounts by class, and classes are the cohorts.
    """

    stream: DynamicStream
    layout: Layout
    joined: bool
    """Whether counts come by cohort, with who moved."""
    fixed: ReleaseStream | None = None
    """What may have released the slots before, over requirements that did not change yet."""

    @property
    def parts(self) -> int:
        """Shards, of which each tells its counts."""
        return self.layout.parts

    @property
    def quiet(self) -> _SlotCounts:
        """Nobody was there, and nobody moved."""
        nothing = np.zeros(0, np.int64)
        return _SlotCounts(CohortCounts(nothing, nothing, nothing), Moves.none())

    def start(self) -> DynamicState:
        """State before the first slot."""
        return self.stream.start()

    def encode(self, state: DynamicState, kept: Iterable[Message] = ()) -> bytes:
        """Bytes of the state, compressed: many ledgers have much in common.

        With them goes what shards keep, in any order.
        """
        written = self.stream.pack(state)
        if not self.joined:
            return self.stream.keeper.write(compressed(written))
        parts = several_to_bytes(written, *sorted(message.to_bytes() for message in kept))
        return _JOINED + self.stream.keeper.write(compressed(parts))

    def decode(self, data: bytes) -> DynamicState:
        """State of bytes, also of those that were written while nobody could change."""
        if is_joined(data):
            return self.stream.unpack(self._parts(data)[0])
        if self.joined and self.fixed is not None:
            return thawed(self.fixed, self.fixed.decode(data), self.stream)
        return self.stream.unpack(expanded(self.stream.keeper.read(data)))

    def kept(self, data: bytes) -> list[Message]:
        """What each shard kept, of the bytes of a state."""
        return list(map(Message.from_bytes, self._parts(data)[1:]))

    def _parts(self, data: bytes) -> list[bytes]:
        return several_from_bytes(expanded(self.stream.keeper.read(data.removeprefix(_JOINED))))

    def slots(
        self, block: int, parts: Iterable[Message]
    ) -> Iterator[tuple[int, _SlotCounts | None]]:
        """Counts and moves of all shards in a slot; or of a block of slots without moves."""
        if self.joined:
            yield block, self._of_shards(list(map(ShardCounts.of, parts)))
            return
        for slot, table in slot_tables(block, map(BlockCounts.of, parts), self.layout):
            classes, bins = np.nonzero(table)
            counts = CohortCounts(classes, bins, table[classes, bins])
            yield slot, _SlotCounts(counts, Moves.none()) if len(classes) else None

    def _of_shards(self, shards: list[ShardCounts]) -> _SlotCounts | None:
        if not any(len(one.counts) or len(one.moves.users) for one in shards):
            return None
        places, bins = np.divmod(
            np.concatenate([one.cells for one in shards]), np.int64(self.layout.bins)
        )
        sizes = [len(one.cells) for one in shards]
        before = np.cumsum([0, *(len(one.cohorts) for one in shards)])[:-1]
        cohorts = np.concatenate([one.cohorts for one in shards])
        counts = np.concatenate([one.counts for one in shards])
        moves = (tuple(vars(one.moves).values()) for one in shards)
        return _SlotCounts(
            CohortCounts(cohorts[places + np.repeat(before, sizes)], bins, counts),
            Moves(*map(np.concatenate, zip(*moves, strict=True))),
        )

    def release(
        self, state: DynamicState, slot: int, counted: _SlotCounts
    ) -> tuple[DynamicState, SlotRelease]:
        """Release the next slot."""
        return self.stream.release(state, slot, counted.counts, counted.moves)

    def rest(self, state: DynamicState) -> tuple[Revised, ...]:
        """Revise the slots that are still to be revised: the stream ends."""
        return self.stream.rest(state)

    def next_slot(self, state: DynamicState) -> int | None:
        """The slot that comes next."""
        return state.next_slot

    def use(self, state: DynamicState) -> float:
        """Largest share of any window looking back that is spent, but for those broken before."""
        return state.filter.use(state.interned.asked)

    def entry(self, state: DynamicState, slot: int, release: SlotRelease) -> DynamicLedgerEntry:
        """What the slot cost every ledger with users."""
        sizes = state.interned.sizes
        some = sizes > 0
        asked = state.interned.asked[some]
        spent = state.filter.in_window(state.interned.asked)[some]
        figures = asked.astype(np.float64)
        figures[:, [1, 3]] = to_epsilon(asked[:, [1, 3]])
        return DynamicLedgerEntry(
            slot,
            figures,
            sizes[some],
            to_epsilon(release.spent[some]),
            to_epsilon(spent),
            spent > asked[:, 1],
        )
