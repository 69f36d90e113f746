"""Local mechanisms in a comparison: a device for every user, its values made up from counts.

A stream tells how many users of a class have a value, not who: that is drawn anew in every slot.
Who is not among the counts reports that there is no event.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.local.client.population import Devices
from streamveil.mechanisms.local.protocol import Ask, LocalMechanism, Users
from streamveil.mechanisms.protocol import Population, SlotRelease
from streamveil.mechanisms.randomness.noise import NoiseSource, derived_key
from streamveil.mechanisms.registry import LOCAL_MECHANISMS, MECHANISMS, local_mechanism
from streamveil.mechanisms.simulation import run_slot

Counts = npt.NDArray[np.int64]


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
            "a device reports one value a slot: for local mechanisms leave --max_contributions "
            "and --adjacency at their defaults"
        )
    class_of = np.repeat(np.arange(len(public.sizes), dtype=np.int32), public.sizes)
    return Users(public.requirements, class_of, public.bins + 1)


class LocalStream:
    """A local mechanism and the devices, driven by counts of classes.

    Args:
        name: of the mechanism, with options.
        public: the population.
        key: 32 bytes from which all randomness follows, so the same key gives the same values to
            every mechanism.
    """

    def __init__(self, name: str, public: Population, key: bytes) -> None:
        users = local_users(public)
        self._sizes = public.sizes
        self._mechanism: LocalMechanism[Any] = local_mechanism(name, users)
        self._state = self._mechanism.start()
        self._devices = Devices(users, derived_key(key, "devices"))
        self._source = NoiseSource(key, "server")
        self._values = np.random.default_rng(list(derived_key(key, "values")))
        self._use = WindowUse(users)

    @property
    def window_use(self) -> float:
        """Largest share of a budget that any user spent in any window so far."""
        return self._use.largest

    def release(self, slot: int, counts: Counts) -> SlotRelease:
        """Release the next slot: estimated counts of all users, rounded. `spent` is left out."""
        random = self._source.slot(slot, b"")
        self._state, release, asks = run_slot(
            self._mechanism, self._state, slot, self._drawn(counts), self._devices, random
        )
        self._use.add(slot, asks)
        users = int(self._sizes.sum())
        return SlotRelease(
            np.rint(users * release.frequencies[:-1]).astype(np.int64),
            release.status,
            release.published_slot,
            release.epsilon,
            np.hypot(users * release.stderr[:-1], 12**-0.5),
            spent=np.zeros(len(self._sizes), np.int64),
        )

    def _drawn(self, counts: Counts) -> Counts:
        """A value for every user, shape (n,), of counts by class and bin."""
        filled = np.minimum(np.cumsum(counts, axis=1), self._sizes[:, None])
        symbols = np.diff(filled, axis=1, prepend=0, append=self._sizes[:, None])
        order = np.arange(symbols.shape[1])
        return np.concatenate([self._values.permutation(np.repeat(order, row)) for row in symbols])


class WindowUse:
    """What users spent in their windows, added up anew from whom was asked for what."""

    def __init__(self, users: Users) -> None:
        self.largest = 0.0
        self._class_of = users.class_of
        self._windows = users.classes.windows
        self._caps = users.classes.budgets
        self._spent = np.zeros(users.class_of.size, np.int64)
        self._asks: dict[int, tuple[Ask, ...]] = {}

    def add(self, slot: int, asks: tuple[Ask, ...]) -> None:
        """Add what a slot asked; slots come one after the other."""
        for window in np.unique(self._windows).tolist():
            for ask in self._asks.get(slot - window, ()):
                classes = self._class_of[ask.users]
                over = self._windows[classes] == window
                self._spent[ask.users[over]] -= ask.epsilons[classes[over]]
        self._asks.pop(slot - int(self._windows.max()), None)
        self._asks[slot] = asks
        for ask in asks:
            classes = self._class_of[ask.users]
            self._spent[ask.users] += ask.epsilons[classes]
            share = self._spent[ask.users] / self._caps[classes]
            self.largest = max(self.largest, float(share.max(initial=0.0)))
