"""The edge of a simulated local setting: it plays all devices, and only tallies leave it.

Whom the server asks follows from the key and from the tallies alone, so the edge runs the server
as well and answers both rounds of a slot at once: there is no way back from the server to the
edge, and the pipeline needs none.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from streamveil.engine.count.event_codes import MEMBERS, Layout, Visits, read_codes
from streamveil.engine.messages import Kind, Message, Output
from streamveil.engine.stream.local_server import LocalSetting, Transcript
from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.identity import encoded
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.driver.saved_state import KIND, Keeper
from streamveil.mechanisms.local.client.population import Devices
from streamveil.mechanisms.local.protocol import LocalRelease
from streamveil.mechanisms.local.stream import LocalStream, LocalStreamState
from streamveil.mechanisms.randomness.noise import NoiseKeys, NoiseSource

Symbols = npt.NDArray[np.int32]


@dataclass(frozen=True)
class PlayedDevicesConfig:
    """What makes the edge on a worker."""

    setting: LocalSetting
    layout: Layout

    def make(self) -> PlayedDevices:
        """The devices and a server like the real one."""
        keys = self.setting.noise_key().derived("local devices")
        return PlayedDevices(self.setting.name, self.setting.server(), keys, self.layout)


@dataclass(frozen=True, eq=False)
class PopulationMoves:
    """Who comes, leaves or asks for something else from the next slot on: public."""

    before: Registry
    """The users until then, the first ones of those after; so with the classes."""
    users: Symbols
    """Positions of those who move, ascending, each once, shape (c,)."""
    classes: Symbols
    """The new class of each, or `rota.AWAY` for one who leaves, shape (c,)."""


@dataclass
class PlayedState:
    """What the edge remembers: the devices' filters are theirs, the rest is public."""

    server: LocalStreamState
    devices: Devices


@dataclass(frozen=True)
class PlayedDevices:
    """Drives the devices of all users, who report one symbol each in a slot."""

    SCHEMAS = {1: state_codec.record_schema("Edge", server="bytes", devices="bytes")}

    name: str
    """Of the stream."""
    stream: LocalStream
    device_keys: NoiseKeys
    layout: Layout

    @cached_property
    def keeper(self) -> Keeper:
        """Of states; what they hold says for which configuration it is."""
        return Keeper(NoiseSource(self.device_keys, self.name), {KIND: encoded("edge")})

    @property
    def parts(self) -> int:
        """Shards, each of which emits its visits."""
        return self.layout.parts

    @property
    def quiet(self) -> Symbols:
        """No user had an event: the last symbol says so."""
        users = self.stream.users
        return np.full(users.class_of.size, users.symbols - 1, np.int32)

    def start(self) -> PlayedState:
        """State before the first slot."""
        server = self.stream.start()
        devices = Devices(self.stream.users, self.device_keys, server.filter.longest)
        return PlayedState(server, devices)

    def encode(self, state: PlayedState) -> bytes:
        """Bytes of the state, with a version."""
        server, devices = self.stream.encode(state.server), state.devices.encode()
        written = state_codec.pack(self.SCHEMAS, {"server": server, "devices": devices})
        return self.keeper.write(written)

    def decode(self, data: bytes) -> PlayedState:
        """State of bytes. Raises ConfigurationError for bytes that were changed."""
        _, record = state_codec.unpack(self.SCHEMAS, self.keeper.read(data))
        server = self.stream.decode(record["server"])
        ledger = server.filter
        devices = Devices.decode(record["devices"], ledger.users, self.device_keys, ledger.longest)
        return PlayedState(server, devices)

    def remembering(self, state: PlayedState, longest_window: int) -> PlayedState:
        """The same, that will follow changes of windows so long.

        Whom a stream asked follows from its state, so what ledger and devices had forgotten of
        these slots comes back, and is checked against what they remember.
        """
        if state.server.filter.longest is None:
            asks = self.stream.asked(state.server, longest_window)
            state.server.filter.remember(longest_window, asks)
            state.devices.remember(longest_window, asks)
        return state

    def changed(self, state: PlayedState, moves: PopulationMoves) -> PlayedState:
        """Let users come, leave or ask for something else from the next slot on.

        See :meth:`LocalStream.change`.
        """
        server = self.stream.change(state.server, moves.users, moves.classes)
        assert server.next_slot is not None
        state.devices.change(server.next_slot, server.filter.users)
        return PlayedState(server, state.devices)

    def slots(self, block: int, parts: Iterable[Message]) -> Iterator[tuple[int, Symbols | None]]:
        """Every user's symbol in the slots of a block, None where nobody had an event."""
        codes = [visits.codes for visits in map(Visits.of, parts) if len(visits.codes)]
        every = np.sort(np.concatenate(codes)) if codes else np.zeros(0, self.layout.dtype)
        slots, users, bins = read_codes(MEMBERS, every, self.layout)
        edges = np.searchsorted(slots, np.arange(self.layout.block + 1))
        for i, (start, end) in enumerate(itertools.pairwise(edges.tolist())):
            symbols = None
            if end > start:
                symbols = self.quiet
                symbols[users[start:end]] = bins[start:end]
            yield block * self.layout.block + i, symbols

    def release(
        self, state: PlayedState, slot: int, counted: Symbols
    ) -> tuple[PlayedState, Transcript]:
        """Answer all that the server asks in the next slot.

        Raises BudgetExceeded when a device refuses.
        """
        server, ask = self.stream.begin(state.server, slot)
        tallies = []
        while True:
            tallies.append(state.devices.report(ask, counted))
            server, answer = self.stream.take(server, tallies[-1])
            if isinstance(answer, LocalRelease):
                return PlayedState(server, state.devices), Transcript(tuple(tallies))
            ask = answer

    def rest(self, state: PlayedState) -> None:
        """Note that the server revises the rest of the slots: the stream ends."""
        self.stream.rest(state.server)

    def next_slot(self, state: PlayedState) -> int | None:
        """The slot that comes next."""
        return state.server.next_slot


def emit_to_server(
    edge: PlayedDevices, state: PlayedState, slot: int, transcript: Transcript, at: int
) -> Iterator[Output]:
    """All that a slot tells the server, in one part: its transcript."""
    message = Message(Kind.COUNTS, slot, payload=transcript.to_bytes())
    yield Output((edge.name, message), at=at)


def end_at_server(edge: PlayedDevices, state: PlayedState, at: int) -> Iterator[Output]:
    """The server foresees the end of the stream as well, so no message is sent."""
    edge.rest(state)
    return iter(())
