"""A local mechanism and all its devices without Beam, on values in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.records import ConfigurationError, Requirement, as_requirement
from streamveil.mechanisms.core.units import to_epsilon
from streamveil.mechanisms.local.algorithms.report_groups import AWAY
from streamveil.mechanisms.local.algorithms.rotation import Rotation
from streamveil.mechanisms.local.client.population import Devices
from streamveil.mechanisms.local.protocol import Ask, LocalMechanism, LocalRelease, Users
from streamveil.mechanisms.local.registry import local_mechanism
from streamveil.mechanisms.randomness.noise import NoiseSource, SlotNoise, derived_key
from streamveil.mechanisms.registry import with_options

S = TypeVar("S")

# Requirements by slot and user; None leaves.
Changes = Mapping[int, Mapping[int, Requirement | tuple[int, float] | None]]


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
    class_of: tuple[npt.NDArray[np.int32], ...]
    """Class of each user in each of T slots, each of shape (n,): it changes with requirements."""

    @cached_property
    def spent(self) -> npt.NDArray[np.float64]:
        """Epsilon that each slot cost each user, shape (T, n): 8 T n bytes from the first use."""
        spent = np.zeros((len(self.asks), self.users.class_of.size))
        for row, asks, class_of in zip(spent, self.asks, self.class_of, strict=True):
            for ask in asks:
                row[ask.users] += to_epsilon(ask.epsilons)[class_of[ask.users]]
        return spent


def simulate_local(
    name: str,
    values: npt.ArrayLike,
    bins: int,
    requirements: Sequence[Requirement | tuple[int, float] | None],
    key: bytes,
    *,
    changes: Changes | None = None,
    **options: bool | float | int | str,
) -> LocalSimulation:
    """Run a local mechanism over a whole stream, with a device for every user.

    Args:
        name: mechanism, such as `plpa+`.
        values: bin of each user in each slot, whole numbers from 0 to bins - 1, shape (T, n).
        bins: number of bins d, 2 or more.
        requirements: requirement of each user, n of them; None for one who comes later.
        key: 32 secret bytes; the same key and values give the same result.
        changes: by slot, what users ask for from it on: None leaves. For mechanisms that follow
            requirements that change, such as `rotation`.
        options: those of the mechanism, such as project=True.

    Raises:
        ConfigurationError: for an unknown name or option, requirements out of range, windows that
            leave nobody to ask, or changes that the mechanism does not follow.
        ValueError: for values that are not (T, n) whole numbers from 0 to bins - 1, fewer than 2
            bins, or a key that is not 32 bytes.
    """
    if not isinstance(key, (bytes, bytearray)):
        raise ConfigurationError(f"the key is a {type(key).__name__}: give 32 bytes")
    asked_for = _by_slot(requirements, changes)
    users = _population(requirements, asked_for, bins)
    table = _checked(values, users)
    mechanism = local_mechanism(with_options(name, options), users)
    if asked_for and not isinstance(mechanism, Rotation):
        raise ConfigurationError(
            f"{name} does not follow requirements that change: use the mechanism rotation"
        )
    source = NoiseSource(key)
    longest = max(r.window for r in users.classes) if asked_for else None
    devices = Devices(users, derived_key(bytes(key), "devices"), longest)
    state, class_of = mechanism.start(), users.class_of
    releases, asks, followed = [], [], []
    for slot, row in enumerate(table):
        random = source.slot(slot, b"server")
        if slot in asked_for and isinstance(mechanism, Rotation):
            who, what, class_of = _changed(asked_for[slot], users.classes, class_of)
            state = mechanism.change(state, slot, who, what, random)
            devices.change(slot, replace(users, class_of=class_of))
        state, release, asked = run_slot(mechanism, state, slot, row, devices, random)
        releases.append(release)
        asks.append(asked)
        followed.append(class_of)
    shape = (len(releases), users.symbols)
    return LocalSimulation(
        np.array([release.frequencies for release in releases]).reshape(shape),
        np.array([release.status for release in releases], dtype=np.str_),
        np.array([release.stderr for release in releases]).reshape(shape),
        tuple(asks),
        users,
        tuple(followed),
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


def _by_slot(
    requirements: Sequence[Any], changes: Changes | None
) -> dict[int, dict[int, Requirement | None]]:
    """Changes by slot and user, and who is away in the beginning."""
    found: dict[int, dict[int, Requirement | None]] = {}
    later = {user: None for user, wanted in enumerate(requirements) if wanted is None}
    if later:
        found[0] = dict(later)
    for slot, wanted in (changes or {}).items():
        asked = {user: None if one is None else as_requirement(one) for user, one in wanted.items()}
        if asked and not (min(asked) >= 0 and max(asked) < len(requirements)):
            raise ConfigurationError(
                f"slot {slot} has changes of users {min(asked)} to {max(asked)}: give users from "
                f"0 to {len(requirements) - 1}"
            )
        found[slot] = {**found.get(slot, {}), **asked}
    return found


def _changed(
    wanted: Mapping[int, Requirement | None],
    classes: tuple[Requirement, ...],
    class_of: npt.NDArray[np.int32],
) -> tuple[list[int], list[int], npt.NDArray[np.int32]]:
    """Users who change, their new classes or `AWAY`, and the class of everybody from now on.

    Who leaves keeps the class: it is in force until there is another one.
    """
    who = list(wanted)
    what = [AWAY if one is None else classes.index(one) for one in wanted.values()]
    after = class_of.copy()
    for user, k in zip(who, what, strict=True):
        after[user] = class_of[user] if k == AWAY else k
    return who, what, after


def _population(
    requirements: Sequence[Any], changes: Mapping[int, Mapping[int, Any]], bins: int
) -> Users:
    """Everybody who ever takes part, in the class of their first requirement."""
    if isinstance(bins, bool) or not isinstance(bins, (int, np.integer)) or bins < 2:
        raise ConfigurationError(f"bins is {bins!r}: give a whole number of bins, 2 or more")
    first: dict[int, Requirement] = {}
    every = {as_requirement(one) for one in requirements if one is not None}
    for _, wanted in sorted(changes.items()):
        for user, one in wanted.items():
            if one is not None:
                first.setdefault(user, one)
                every.add(one)
    classes = tuple(sorted(every))
    number = {requirement: k for k, requirement in enumerate(classes)}
    class_of = np.zeros(len(requirements), np.int32)
    for user, one in enumerate(requirements):
        wanted_first = first.get(user) if one is None else as_requirement(one)
        if wanted_first is None:
            raise ConfigurationError(f"user {user} never comes: leave the user out")
        class_of[user] = number[wanted_first]
    return Users(classes, class_of, int(bins))


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
