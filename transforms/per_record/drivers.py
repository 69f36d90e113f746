"""What the release stage drives for each key: panes in order, each with its part.

A record is in one pane, and of each pane noise is added to the part once: so its loss is that of
one release, however many windows the pane is in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from streamveil.mechanisms import state as state_bytes
from streamveil.mechanisms.noise import NoiseSource, SlotNoise, digest
from streamveil.mechanisms.per_record.protocol import (
    Additive,
    Noisy,
    Part,
    PerRecordRelease,
    Statistic,
)
from streamveil.transforms.per_record.wire import part_of
from streamveil.transforms.wire import array_from_bytes, array_to_bytes

S = TypeVar("S")


class Windows(Protocol[S]):
    """How panes make windows."""

    @property
    def statistic(self) -> Statistic:
        """What is released of a window."""

    def start(self) -> S:
        """State before the first pane."""

    def encode(self, state: S) -> bytes:
        """Bytes of the state."""

    def decode(self, data: bytes) -> S:
        """State of bytes."""

    def release(self, state: S, part: Part, noise: SlotNoise) -> tuple[S, PerRecordRelease | None]:
        """The window that ends with the next pane; None while there are too few panes for it."""


@dataclass(frozen=True)
class Fixed:
    """A window is a pane."""

    statistic: Statistic

    def start(self) -> None:
        """There is no state."""

    def encode(self, state: None) -> bytes:
        """There is no state."""
        return b""

    def decode(self, data: bytes) -> None:
        """There is no state."""

    def release(
        self, state: None, part: Part, noise: SlotNoise
    ) -> tuple[None, PerRecordRelease | None]:
        """The pane."""
        return None, self.statistic.release(part, noise)


@dataclass(frozen=True)
class SlidingTotal:
    """A window is the last `panes` panes: the noise of each, once drawn, is added up."""

    statistic: Additive
    panes: int

    def start(self) -> tuple[Noisy, ...]:
        """No pane yet."""
        return ()

    def encode(self, state: tuple[Noisy, ...]) -> bytes:
        """Totals and variances of the panes that are in the next window as well."""
        return array_to_bytes(np.array(state, np.float64))

    def decode(self, data: bytes) -> tuple[Noisy, ...]:
        """State of bytes."""
        return tuple(Noisy(*pane) for pane in array_from_bytes(data))

    def release(
        self, state: tuple[Noisy, ...], part: Part, noise: SlotNoise
    ) -> tuple[tuple[Noisy, ...], PerRecordRelease | None]:
        """The sum of the panes."""
        window = (*state, self.statistic.noisy(part, noise))
        if len(window) < self.panes:
            return window, None
        total = Noisy(*(np.sum(figures, axis=0) for figures in zip(*window, strict=True)))
        return window[1:], self.statistic.estimate(total)


@dataclass(frozen=True)
class SlidingMax:
    """A window is the last `panes` panes, each released once: the largest of their maxima."""

    statistic: Statistic
    panes: int

    def start(self) -> tuple[PerRecordRelease, ...]:
        """No pane yet."""
        return ()

    def encode(self, state: tuple[PerRecordRelease, ...]) -> bytes:
        """Releases of the panes that are in the next window as well."""
        return array_to_bytes(np.array([astuple(pane) for pane in state], np.float64))

    def decode(self, data: bytes) -> tuple[PerRecordRelease, ...]:
        """State of bytes."""
        return tuple(PerRecordRelease(*pane) for pane in array_from_bytes(data).tolist())

    def release(
        self, state: tuple[PerRecordRelease, ...], part: Part, noise: SlotNoise
    ) -> tuple[tuple[PerRecordRelease, ...], PerRecordRelease | None]:
        """The largest maximum; what is left out is so at most by the worst pane."""
        window = (*state, self.statistic.release(part, noise))
        if len(window) < self.panes:
            return window, None
        largest = max(window, key=lambda pane: pane.estimate)
        return window[1:], PerRecordRelease(
            largest.estimate,
            largest.stderr,
            max(pane.epsilon_tau for pane in window),
            float(np.max([pane.dropped_bound for pane in window])),
        )


class KeyState(NamedTuple, Generic[S]):
    """Where a key is."""

    next_pane: int | None
    """None before the first."""
    history: bytes
    """Digest of all panes so far, to which the noise of windows that outlive a pane is bound."""
    windows: S


@dataclass(frozen=True)
class KeyDriver(Generic[S]):
    """Drives the windows of one key: a `SlotDriver` of `transforms/ledgers.py`."""

    SCHEMAS = {
        1: {
            "type": "record",
            "name": "PerRecord",
            "fields": [
                {"name": "next_pane", "type": ["null", "long"]},
                {"name": "history", "type": "bytes"},
                {"name": "windows", "type": "bytes"},
            ],
        }
    }

    key: str | None
    windows: Windows[S]
    source: NoiseSource

    @property
    def block(self) -> int:
        """Panes come one by one."""
        return 1

    @property
    def parts(self) -> int:
        """A pane of an input without end comes in one."""
        return 1

    @property
    def quiet(self) -> Part:
        """The part of no record."""
        return self.windows.statistic.add(())

    def start(self) -> KeyState[S]:
        """State before the first pane."""
        return KeyState(None, b"", self.windows.start())

    def encode(self, state: KeyState[S]) -> bytes:
        """Bytes of the state, with a version."""
        record = state._asdict() | {"windows": self.windows.encode(state.windows)}
        return state_bytes.pack(self.SCHEMAS, record)

    def decode(self, data: bytes) -> KeyState[S]:
        """State of bytes."""
        _, record = state_bytes.unpack(self.SCHEMAS, data)
        return KeyState(
            record["next_pane"], record["history"], self.windows.decode(record["windows"])
        )

    def slots(self, block: int, parts: Iterable[bytes]) -> Iterator[tuple[int, Part]]:
        """The part of all records of a pane."""
        some = [part for part in map(part_of, parts) if part is not None]
        yield block, self.windows.statistic.add(some)

    def release(
        self, state: KeyState[S], slot: int, counted: Part
    ) -> tuple[KeyState[S], PerRecordRelease | None]:
        """Release the window that ends with the next pane."""
        history = digest(state.history, b"%d" % slot, array_to_bytes(counted))
        noise = self.source.slot(slot, digest(repr(self.key).encode(), history))
        windows, released = self.windows.release(state.windows, counted, noise)
        return KeyState(slot + 1, history, windows), released

    def next_slot(self, state: KeyState[S]) -> int | None:
        """The pane that comes next."""
        return state.next_pane
