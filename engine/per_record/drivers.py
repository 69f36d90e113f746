"""What the release stage drives for each key: panes in order, each with its part.

A record is in one pane, and of each pane noise is added to the part once: so its loss is that of
one release, however many windows the pane is in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from operator import itemgetter
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from streamveil.engine.messages import Message, array_from_bytes, array_to_bytes
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.driver.saved_state import Keeper
from streamveil.mechanisms.per_record.protocol import (
    Additive,
    Noisy,
    Part,
    PerRecordRelease,
    Statistic,
)
from streamveil.mechanisms.per_record.running import RunningState, RunningTotal
from streamveil.mechanisms.randomness.noise import NoiseSource, SlotNoise, digest

S = TypeVar("S")


class Windows(Protocol[S]):
    """How the panes of a key make windows."""

    @property
    def statistic(self) -> Statistic:
        """What is released of a window."""

    def start(self) -> S:
        """State before the first pane."""

    def encode(self, state: S) -> bytes:
        """Bytes of the state."""

    def decode(self, data: bytes) -> S:
        """State of bytes."""

    def release(self, state: S, pane: int, part: Part) -> tuple[S, PerRecordRelease | None]:
        """The window that ends with the next pane; None while there are too few panes for it."""


@dataclass(frozen=True)
class _OfPanes:
    """Windows of some panes: of each, something is kept until it is in no window any more."""

    statistic: Any
    source: NoiseSource
    panes: int

    def noise(self, pane: int, part: Part) -> SlotNoise:
        """Of one pane: a function of its number and its part."""
        return self.source.slot(pane, digest(array_to_bytes(part)))

    def start(self) -> tuple[Any, ...]:
        """No pane yet."""
        return ()

    def encode(self, state: tuple[Any, ...]) -> bytes:
        """What is kept of each pane, all figures."""
        return array_to_bytes(np.array(state, np.float64))


@dataclass(frozen=True)
class Panes(_OfPanes):
    """A window is a pane, or the last of several maxima, each released once, the largest."""

    statistic: Statistic

    def decode(self, data: bytes) -> tuple[tuple[float, ...], ...]:
        """Figures of bytes."""
        return tuple(map(tuple, array_from_bytes(data).tolist()))

    def release(
        self, state: tuple[tuple[float, ...], ...], pane: int, part: Part
    ) -> tuple[tuple[tuple[float, ...], ...], PerRecordRelease | None]:
        """The largest estimate; what is left out is at most what the worst pane leaves out."""
        released = self.statistic.release(part, self.noise(pane, part))
        window = (*state, astuple(released))
        if len(window) < self.panes:
            return window, None
        estimate, stderr, _, _ = max(window, key=itemgetter(0))
        _, _, epsilon_tau, dropped = np.max(window, axis=0).tolist()
        return window[1:], PerRecordRelease(estimate, stderr, epsilon_tau, dropped)


@dataclass(frozen=True)
class TotalsOfPanes(_OfPanes):
    """A window is the sum of the last panes, with the noise of each, once drawn."""

    statistic: Additive

    def decode(self, data: bytes) -> tuple[Noisy, ...]:
        """Totals of bytes."""
        return tuple(Noisy(*pane) for pane in array_from_bytes(data))

    def release(
        self, state: tuple[Noisy, ...], pane: int, part: Part
    ) -> tuple[tuple[Noisy, ...], PerRecordRelease | None]:
        """The sum of the panes."""
        window = (*state, self.statistic.noisy(part, self.noise(pane, part)))
        if len(window) < self.panes:
            return window, None
        total = Noisy(*(np.sum(figures, axis=0) for figures in zip(*window, strict=True)))
        return window[1:], self.statistic.estimate(total)


@dataclass(frozen=True)
class Running:
    """A window is all panes so far."""

    total: RunningTotal
    source: NoiseSource

    @property
    def statistic(self) -> Additive:
        """What is added up."""
        return self.total.statistic

    def start(self) -> RunningState:
        """State before the first pane."""
        return self.total.start()

    def encode(self, state: RunningState) -> bytes:
        """Bytes of the state."""
        return self.total.encode(state)

    def decode(self, data: bytes) -> RunningState:
        """State of bytes."""
        return self.total.decode(data)

    def release(
        self, state: RunningState, pane: int, part: Part
    ) -> tuple[RunningState, PerRecordRelease | None]:
        """The total with the records of one more pane."""
        return self.total.tick(state, part, self.source)


@dataclass(frozen=True)
class KeyState(Generic[S]):
    """Where a key is."""

    next_pane: int | None
    """None before the first."""
    windows: S


@dataclass(frozen=True)
class KeyDriver(Generic[S]):
    """Drives the windows of one key: a `SlotDriver` of `engine/stream/drivers.py`."""

    SCHEMAS = {
        1: state_codec.record_schema("PerRecord", next_pane=["null", "long"], windows="bytes")
    }

    key: str | None
    windows: Windows[S]
    keeper: Keeper

    @property
    def parts(self) -> int:
        """A pane of an unbounded input comes in one."""
        return 1

    @property
    def quiet(self) -> Part:
        """The part of no record."""
        return self.windows.statistic.add(())

    def start(self) -> KeyState[S]:
        """State before the first pane."""
        return KeyState(None, self.windows.start())

    def encode(self, state: KeyState[S]) -> bytes:
        """Bytes of the state, with a version."""
        record = {"next_pane": state.next_pane, "windows": self.windows.encode(state.windows)}
        return self.keeper.write(state_codec.pack(self.SCHEMAS, record))

    def decode(self, data: bytes) -> KeyState[S]:
        """State of bytes.

        Raises ConfigurationError for bytes that were changed, or of another plan.
        """
        _, record = state_codec.unpack(self.SCHEMAS, self.keeper.read(data))
        return KeyState(record["next_pane"], self.windows.decode(record["windows"]))

    def slots(self, block: int, parts: Iterable[Message]) -> Iterator[tuple[int, Part]]:
        """The part of all records of a pane."""
        some = [array_from_bytes(part.payload) for part in parts if part.payload]
        yield block, self.windows.statistic.add(some)

    def release(
        self, state: KeyState[S], slot: int, counted: Part
    ) -> tuple[KeyState[S], PerRecordRelease | None]:
        """Release the window that ends with the next pane."""
        windows, released = self.windows.release(state.windows, slot, counted)
        return KeyState(slot + 1, windows), released

    def next_slot(self, state: KeyState[S]) -> int | None:
        """The pane that comes next."""
        return state.next_pane
