"""The server of the local setting: tallies of reports in, one release a slot out, in order.

It is driven by the release stage, like counts: see `engine/stream/drivers.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from streamveil.engine.messages import Message, arrays_to_bytes, integers_from_bytes
from streamveil.mechanisms.core.budgets import to_epsilon
from streamveil.mechanisms.core.records import ConfigurationError, LedgerEntry, Revised
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.core.wording import opt
from streamveil.mechanisms.driver.saved_state import Parts
from streamveil.mechanisms.local.protocol import LocalRelease, Tally, Users
from streamveil.mechanisms.local.server.last_publication import as_counts, revised_counts
from streamveil.mechanisms.local.stream import LocalStream, LocalStreamState
from streamveil.mechanisms.local.tokens import Tokens
from streamveil.mechanisms.protocol import SlotRelease
from streamveil.mechanisms.randomness.noise import NoiseKeys, NoiseSource
from streamveil.mechanisms.registry import local_mechanism


@dataclass(frozen=True)
class LocalSetting:
    """What the server and those who play the devices agree on: public, but for the key."""

    mechanism: str
    registry: Registry
    bins: int
    noise_key: Callable[[], NoiseKeys]
    name: str
    """Of the stream, which randomness is bound to."""
    context: Parts = field(default_factory=dict)
    """What the bins mean, to which randomness is bound as well."""
    begun: int | None = None
    """How many users of the registry, the first ones, are in the stream from its beginning; None
    for all."""
    longest_window: int | None = None
    """The longest window that a user may ask for, in slots; None while nobody changes."""
    revise: int = 0
    """How many slots later a slot is revised; 0 for never."""

    def __post_init__(self) -> None:
        """Refuse users who cannot be known.

        Raises ConfigurationError.
        """
        if self.registry.default_class is not None:
            raise ConfigurationError(
                f"there is a requirement for users outside the table ({opt.default_requirement}), "
                f"but in local mode the server must know which users it can ask: list every user "
                f"in the table of requirements"
            )

    @property
    def users(self) -> Users:
        """The population. A device reports one of the bins, or last that there was no event."""
        registry = self.registry
        return Users(registry.classes, registry.class_of, self.bins + 1, self.begun)

    def server(self) -> LocalStream:
        """The server's side. Raises ConfigurationError for a mechanism that does not fit."""
        noise = NoiseSource(self.noise_key().derived("local server"), self.name)
        mechanism = local_mechanism(self.mechanism, self.users, revise=self.revise)
        return LocalStream(
            mechanism, noise, context=self.context, longest_window=self.longest_window
        )

    def tokens(self) -> Tokens:
        """What ties reports to assignments."""
        return Tokens(self.noise_key().derived("local tokens"), self.name)

    def make(self) -> Server:
        """The driver of the server stage."""
        return Server(self.server())


@dataclass(frozen=True, eq=False)
class Transcript:
    """The tallies of a slot's rounds, in order. Whoever sees them learns what reports tell."""

    tallies: tuple[Tally, ...]

    def to_bytes(self) -> bytes:
        """Supports and reports of each round: the size is that of classes and symbols."""
        arrays = (
            array.astype(np.int64)
            for tally in self.tallies
            for array in (tally.supports, tally.reports)
        )
        return arrays_to_bytes(*arrays)

    @classmethod
    def from_bytes(cls, data: bytes) -> Transcript:
        """The transcript."""
        arrays = integers_from_bytes(data)
        return cls(tuple(map(Tally, arrays[::2], arrays[1::2])))


@dataclass(frozen=True)
class Server:
    """Drives the server by transcripts of one slot each."""

    stream: LocalStream

    @property
    def parts(self) -> int:
        """A slot has one transcript."""
        return 1

    @property
    def quiet(self) -> None:
        """No transcript, of which :meth:`release` makes nothing."""
        return None

    def start(self) -> LocalStreamState:
        """State before the first slot."""
        return self.stream.start()

    def encode(self, state: LocalStreamState) -> bytes:
        """Bytes of the state."""
        return self.stream.encode(state)

    def decode(self, data: bytes) -> LocalStreamState:
        """State of bytes."""
        return self.stream.decode(data)

    def slots(
        self, block: int, parts: Iterable[Message]
    ) -> Iterator[tuple[int, Transcript | None]]:
        """The transcript of a slot. Raises ValueError for two of them."""
        (message,) = parts
        yield block, Transcript.from_bytes(message.payload)

    def release(
        self, state: LocalStreamState, slot: int, counted: Transcript | None
    ) -> tuple[LocalStreamState, SlotRelease]:
        """Release the next slot.

        Raises ValueError without a transcript, or for one with other rounds than asked.
        """
        if counted is None:
            raise ValueError(f"slot {slot} has no transcript: the edge must report every slot")
        state, _ = self.stream.begin(state, slot)
        for number, tally in enumerate(counted.tallies, start=1):
            state, answer = self.stream.take(state, tally)
            if isinstance(answer, LocalRelease) and number == len(counted.tallies):
                return state, self.counted(state, answer)
        raise ValueError(
            f"slot {slot} was reported in {len(counted.tallies)} rounds and asked in another number"
        )

    def counted(self, state: LocalStreamState, release: LocalRelease) -> SlotRelease:
        """Frequencies scaled up to all users there are."""
        users = int(self.stream.sizes(state).sum())
        return as_counts(release, users, state.filter.spent_by_class())

    def rest(self, state: LocalStreamState) -> tuple[Revised, ...]:
        """Revise the slots that are still to be revised: the stream ends."""
        return tuple(map(revised_counts, self.stream.rest(state)))

    def next_slot(self, state: LocalStreamState) -> int | None:
        """The slot that comes next."""
        return state.next_slot

    def use(self, state: LocalStreamState) -> float:
        """Largest share of anybody's window that is spent."""
        return state.filter.use()

    def entry(self, state: LocalStreamState, slot: int, release: SlotRelease) -> LedgerEntry:
        """What the slot cost every class: the user of it whom it cost most."""
        in_window = state.filter.spent_in_window()
        return LedgerEntry(
            slot,
            self.stream.users.promised,
            self.stream.sizes(state),
            to_epsilon(release.spent),
            to_epsilon(in_window),
        )
