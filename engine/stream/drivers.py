"""What takes the slots of a stream in order, from what shards tell of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

from streamveil.engine.messages import Message
from streamveil.mechanisms.core.records import DynamicLedgerEntry, LedgerEntry, Revised
from streamveil.mechanisms.protocol import SlotRelease

JOINED = b"j"
"""What the state of a stream whose requirements may change begins with."""

S = TypeVar("S")
Counted = TypeVar("Counted")
Out = TypeVar("Out", covariant=True)


def is_joined(state: bytes) -> bool:
    """Whether the bytes of a state are those of a stream whose requirements may change."""
    return state.startswith(JOINED)


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
