"""Mechanisms on their way through a stream, side by side: each is given the counts of every slot.

All take a slot at the same time, so that a stream is drawn once for them and never held in memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.records import ConfigurationError, Revised
from streamveil.mechanisms.core.wording import opt
from streamveil.mechanisms.driver.stream import RunningStream
from streamveil.mechanisms.local.client.population import Devices
from streamveil.mechanisms.local.protocol import LocalMechanism, Users, rest_of
from streamveil.mechanisms.local.server.last_publication import as_counts, revised_counts
from streamveil.mechanisms.protocol import Population, SlotRelease
from streamveil.mechanisms.randomness.noise import NoiseSource, derived_key
from streamveil.mechanisms.registry import LOCAL_MECHANISMS, MECHANISMS, local_mechanism
from streamveil.mechanisms.simulation import run_slot
from streamveil.pipelines.evaluation.sources import SlotCounts
from streamveil.pipelines.evaluation.window_use import DeviceCharges


class Meter(Protocol):
    """What adds up the figures of one run slot by slot."""

    def add(self, true: Integers, counted: Integers, release: SlotRelease) -> None:
        """Add the next slot.

        Args:
            true: every event, before any protection, int64, shape (d,).
            counted: those within the users' bound, all classes together, int64, shape (d,).
            release: what was made of these.
        """


@dataclass
class Lane:
    """A mechanism on its way."""

    driver: RunningStream | Local
    meter: Meter
    seconds: float = 0.0
    """CPU seconds that it has taken."""


def drive(slots: Iterable[SlotCounts], lanes: Sequence[Lane]) -> int:
    """Release all slots in every lane; gives how many there are."""
    number = 0
    for number, (counts, events) in enumerate(slots, 1):
        counted = counts.sum(axis=0)
        for lane in lanes:
            started = time.process_time()
            release = lane.driver.release(number - 1, counts)
            lane.seconds += time.process_time() - started
            lane.meter.add(events, counted, release)
    return number


class Local:
    """A local mechanism and a device for every user, their values made up from counts.

    A stream tells how many users of a class have a value, not who: that is drawn anew in every
    slot. Who is not among the counts reports that there is no event.

    Args:
        name: of the mechanism, with options.
        public: the population.
        key: 32 bytes from which all randomness follows, so the same key gives the same values to
            every mechanism.
        revise: how many slots later a slot is revised; 0 for never.
    """

    def __init__(self, name: str, public: Population, key: bytes, revise: int = 0) -> None:
        users = local_users(public)
        self._sizes = public.sizes
        self._mechanism: LocalMechanism[Any] = local_mechanism(name, users, revise=revise)
        self._state = self._mechanism.start()
        users = self._mechanism.users
        self._devices = Devices(users, derived_key(key, "devices"))
        self._source = NoiseSource(key, "server")
        self._values = np.random.default_rng(list(derived_key(key, "values")))
        self._charges = DeviceCharges(users)

    @property
    def window_use(self) -> float:
        """Largest share of a budget that any user spent in any window so far."""
        return self._charges.fullest

    def release(self, slot: int, counts: Integers) -> SlotRelease:
        """Release the next slot as a pipeline does, but for `spent`: it is left out."""
        random = self._source.slot(slot, b"")
        self._state, release, asks = run_slot(
            self._mechanism, self._state, slot, self._drawn(counts), self._devices, random
        )
        self._charges.begin()
        for ask in asks:
            self._charges.add(ask)
        users, classes = int(self._sizes.sum()), len(self._sizes)
        return as_counts(release, users, np.zeros(classes, np.int64))

    def rest(self) -> tuple[Revised, ...]:
        """Revise the slots that are still to be revised after the last one."""
        return tuple(map(revised_counts, rest_of(self._mechanism, self._state)))

    def _drawn(self, counts: Integers) -> Integers:
        """A value for every user, shape (n,), of counts by class and bin."""
        filled = np.minimum(np.cumsum(counts, axis=1), self._sizes[:, None])
        symbols = np.diff(filled, axis=1, prepend=0, append=self._sizes[:, None])
        order = np.arange(symbols.shape[1])
        return np.concatenate([self._values.permutation(np.repeat(order, row)) for row in symbols])


def is_local(name: str) -> bool:
    """Whether a mechanism, given with its options, asks devices.

    `lbu` and `plbu` do not: those of `MECHANISMS` have the same error, from the counts alone.
    """
    plain = name.split(":")[0]
    return plain in LOCAL_MECHANISMS and plain not in MECHANISMS


def local_users(public: Population) -> Users:
    """Users class by class; the last symbol is that there is no event.

    Raises ConfigurationError where users have more than one event in a slot.
    """
    if public.sensitivity != 1:
        raise ConfigurationError(
            f"a device reports one value a slot: for local mechanisms leave "
            f"{opt.max_contributions} and {opt.adjacency} at their defaults"
        )
    class_of = np.repeat(np.arange(len(public.sizes), dtype=np.int32), public.sizes)
    return Users(public.requirements, class_of, public.bins + 1)
