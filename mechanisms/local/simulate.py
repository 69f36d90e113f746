"""A local mechanism and all its devices without Beam, on values in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.budgets import to_epsilon
from streamveil.mechanisms.local.devices import Devices
from streamveil.mechanisms.local.protocol import Ask, LocalMechanism, LocalRelease, Users
from streamveil.mechanisms.local.registry import local_mechanism
from streamveil.mechanisms.noise import NoiseSource, SlotNoise, derived_key
from streamveil.mechanisms.records import ConfigurationError, Requirement, as_requirement

S = TypeVar("S")


@dataclass(frozen=True, eq=False)
class LocalSimulation:
    """What a simulated stream released and spent."""

    released: npt.NDArray[np.float64]
    """Estimated frequencies, shape (T, d)."""
    status: npt.NDArray[np.str_]
    """`published`, `predicted`, `skipped` or `nullified`, shape (T,)."""
    stderr: npt.NDArray[np.float64]
    """Expected standard error, shape (T, d)."""
    asks: tuple[tuple[Ask, ...], ...]
    """Whom each slot asked at what price, of T slots."""
    users: Users
    """The population: users in the order of their requirements."""

    @cached_property
    def spent(self) -> npt.NDArray[np.float64]:
        """Epsilon that each slot cost each user, shape (T, n): 8 T n bytes from the first use."""
        spent = np.zeros((len(self.asks), self.users.class_of.size))
        for row, asks in zip(spent, self.asks, strict=True):
            for ask in asks:
                row[ask.users] += to_epsilon(ask.epsilons)[self.users.class_of[ask.users]]
        return spent


def simulate_local(
    name: str,
    values: npt.ArrayLike,
    bins: int,
    requirements: Sequence[Requirement | tuple[int, float]],
    key: bytes,
    **options: bool | float | int | str,
) -> LocalSimulation:
    """Run a local mechanism over a whole stream, with a device for every user.

    Args:
        name: mechanism, such as `plpa+`.
        values: bin of each user in each slot, whole numbers from 0 to bins - 1, shape (T, n).
        bins: number of bins d, 2 or more.
        requirements: requirement of each user, n of them.
        key: 32 secret bytes; the same key and values give the same result.
        options: those of the mechanism, such as project=True.

    Raises:
        ConfigurationError: for an unknown name or option, requirements out of range, or windows
            that leave nobody to ask.
        ValueError: for values that are not (T, n) whole numbers from 0 to bins - 1, fewer than 2
            bins, or a key that is not 32 bytes.
    """
    if not isinstance(key, (bytes, bytearray)):
        raise ConfigurationError(f"the key is a {type(key).__name__}: give 32 bytes")
    users = _population(requirements, bins)
    table = _checked(values, users)
    text = ":".join([name, *(f"{option}={value}" for option, value in options.items())])
    mechanism = local_mechanism(text, users)
    source = NoiseSource(key)
    devices = Devices(users, derived_key(key, "devices"))
    state, releases, asks = mechanism.start(), [], []
    for slot, row in enumerate(table):
        random = source.slot(slot, b"server")
        state, release, asked = run_slot(mechanism, state, slot, row, devices, random)
        releases.append(release)
        asks.append(asked)
    shape = (len(releases), users.symbols)
    return LocalSimulation(
        np.array([release.frequencies for release in releases]).reshape(shape),
        np.array([release.status for release in releases], dtype=np.str_),
        np.array([release.stderr for release in releases]).reshape(shape),
        tuple(asks),
        users,
    )


def run_slot(
    mechanism: LocalMechanism[S],
    state: S,
    slot: int,
    values: npt.NDArray[np.int64],
    devices: Devices,
    random: SlotNoise,
) -> tuple[S, LocalRelease, tuple[Ask, ...]]:
    """Run one slot: the server asks and devices answer until there is a release.

    Args:
        mechanism: the server.
        state: its state, consumed.
        slot: the next slot.
        values: symbol of each user, shape (n,).
        devices: all users' devices.
        random: the server's randomness of the slot.

    Returns:
        (state, release, what was asked).
    """
    state, ask = mechanism.begin(state, slot, random)
    asked = [ask]
    while True:
        state, answer = mechanism.take(state, devices.report(asked[-1], values), random)
        if isinstance(answer, LocalRelease):
            return state, answer, tuple(asked)
        asked.append(answer)


def _population(requirements: Sequence[Any], bins: int) -> Users:
    if isinstance(bins, bool) or not isinstance(bins, (int, np.integer)) or bins < 2:
        raise ConfigurationError(f"bins is {bins!r}: give a whole number of bins, 2 or more")
    wanted = [as_requirement(requirement) for requirement in requirements]
    classes = tuple(sorted(set(wanted)))
    number = {requirement: k for k, requirement in enumerate(classes)}
    return Users(classes, np.array([number[r] for r in wanted], np.int32), int(bins))


def _checked(values: npt.ArrayLike, users: Users) -> npt.NDArray[np.int64]:
    table = np.asarray(values)
    n = users.class_of.size
    if table.ndim != 2 or table.shape[1] != n:
        raise ConfigurationError(
            f"values have shape {table.shape}; give (slots, {n} users), one requirement each"
        )
    if not np.issubdtype(table.dtype, np.integer):
        raise ConfigurationError(f"values are {table.dtype}; give whole numbers")
    if table.size and (table.min() < 0 or table.max() >= users.symbols):
        raise ConfigurationError(
            f"values are from {table.min()} to {table.max()}; give bins from 0 to "
            f"{users.symbols - 1}"
        )
    return table
