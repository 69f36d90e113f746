"""Simulations of mechanisms of all families on counts in memory, without Beam."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.budgets import Requirements, Units, asked_units, to_epsilon
from streamveil.mechanisms.core.cohorts import Moves
from streamveil.mechanisms.core.records import (
    ConfigurationError,
    Requirement,
    Revised,
    as_requirement,
    check_shares,
    leave_shares,
)
from streamveil.mechanisms.driver.dynamic_stream import CohortCounts, DynamicStream
from streamveil.mechanisms.driver.stream import RunningStream
from streamveil.mechanisms.local.algorithms.report_groups import AWAY
from streamveil.mechanisms.local.algorithms.rotation import Rotation
from streamveil.mechanisms.local.client.population import Devices
from streamveil.mechanisms.local.protocol import Ask, LocalMechanism, LocalRelease, Users, rest_of
from streamveil.mechanisms.protocol import Setting, SlotRelease, population_of
from streamveil.mechanisms.randomness.noise import NoiseSource, SlotNoise, derived_key
from streamveil.mechanisms.registry import (
    dynamic_mechanism,
    infinite_mechanism,
    local_mechanism,
    mechanism,
    with_options,
)

S = TypeVar("S")

# Requirements by slot and user; None leaves.
Changes = Mapping[int, Mapping[int, Requirement | tuple[int, float] | None]]


@dataclass(frozen=True, eq=False)
class Simulation:
    """The results of :func:`simulate` and :func:`simulate_dynamic`.

    In the shapes of arrays, T is the number of slots, K is the number of requirement classes, and d
    is the number of bins.
    """

    released: npt.NDArray[np.int64]
    """Private counts, shape (T, d)."""
    status: npt.NDArray[np.str_]
    """`published`, `predicted`, `skipped` or `nullified`, shape (T,)."""
    spent: npt.NDArray[np.float64]
    """Epsilon that each slot spent from the budget of each class, shape (T, K)."""
    epsilon: npt.NDArray[np.float64]
    """Threshold of the publication that each slot releases or repeats, shape (T,)."""
    stderr: npt.NDArray[np.float64]
    """Expected standard error, shape (T, d)."""
    estimates: npt.NDArray[np.float64]
    """`released` before rounding, shape (T, d)."""
    alarm: npt.NDArray[np.bool_]
    """Whether the mechanism detected a level shift in each slot, shape (T,)."""
    revised: npt.NDArray[np.int64] | None = None
    """Smoothed and rounded estimate of each slot, shape (T, d), or None if it was not requested."""
    revised_stderr: npt.NDArray[np.float64] | None = None
    """Expected standard error of `revised`, shape (T, d)."""
    revised_estimates: npt.NDArray[np.float64] | None = None
    """`revised` before rounding, shape (T, d)."""


@dataclass(frozen=True, eq=False)
class InfiniteSimulation:
    """The results of :func:`simulate_infinite` for T slots and d bins."""

    released: npt.NDArray[np.float64]
    """Released distributions, shape (T, d)."""
    counts: npt.NDArray[np.int64]
    """Released distributions times their totals, or zeros if there is no total, shape (T, d)."""
    status: npt.NDArray[np.str_]
    """`published` or `skipped`, shape (T,)."""
    spent: npt.NDArray[np.float64]
    """Epsilon that each slot spent from every user's budget. The sum is at most epsilon. Shape
    (T,)."""
    age: npt.NDArray[np.int64]
    """Number of slots since the distribution was last measured, or since the start, shape (T,)."""


@dataclass(frozen=True, eq=False)
class LocalSimulation:
    """The results of :func:`simulate_local` for T slots, n users and d bins."""

    released: npt.NDArray[np.float64]
    """Estimated frequencies, shape (T, d)."""
    status: npt.NDArray[np.str_]
    """`published`, `predicted`, `skipped` or `nullified`, shape (T,)."""
    stderr: npt.NDArray[np.float64]
    """Expected standard error, shape (T, d)."""
    asks: tuple[tuple[Ask, ...], ...]
    """The requests in each of T slots, each with the users who receive it and the budget that it
    spends."""
    users: Users
    """The users, in the order of their requirements."""
    class_of: tuple[npt.NDArray[np.int32], ...]
    """Class of each user in each of T slots, each of shape (n,). It changes with requirements."""
    revised: npt.NDArray[np.float64] | None = None
    """Smoothed estimate of each slot, shape (T, d), or None if it was not requested."""
    revised_stderr: npt.NDArray[np.float64] | None = None
    """Expected standard error of `revised`, shape (T, d)."""

    @cached_property
    def spent(self) -> npt.NDArray[np.float64]:
        """The epsilon that each slot spent from each user's budget, shape (T, n).

        The array needs `8 * T * n` bytes of memory.
        """
        spent = np.zeros((len(self.asks), self.users.class_of.size))
        for row, asks, class_of in zip(spent, self.asks, self.class_of, strict=True):
            for ask in asks:
                row[ask.users] += to_epsilon(ask.epsilons)[class_of[ask.users]]
        return spent


def simulate(
    name: str,
    counts: npt.ArrayLike,
    requirements: Sequence[Requirement | tuple[int, float]],
    sizes: npt.ArrayLike,
    key: bytes,
    *,
    sensitivity: int = 1,
    revise: int = 0,
) -> Simulation:
    """Run a mechanism on counts in memory, slot by slot.

    Args:
        name: name of the mechanism, such as `adaptive` or `pba`. You may add options, written
            NAME:OPTION=VALUE. For example, with `adaptive:cycle=auto` the mechanism searches for
            cycles of 7 and 24 slots.
        counts: number of events for each slot, requirement class and bin, int, shape (T, K, d).
        requirements: requirement of each of the K classes.
        sizes: public number of users of each class, shape (K,).
        key: the noise key, which consists of 32 secret bytes. Two calls with the same key and
            counts give the same results.
        sensitivity: the most by which one user can change the histogram of a slot (L1 sensitivity).
        revise: number of slots after which the mechanism also makes a smoothed estimate of each
            slot. With 0, there are no smoothed estimates.

    Returns:
        The private counts, their standard errors, and the privacy budget that each slot spent.

    Raises:
        ConfigurationError: if the mechanism is unknown, requirements or sizes are out of range, or
            `revise` is above 0 and the mechanism does not support revisions.
        ValueError: if `counts` does not have the shape (T, K, d), or if the key does not consist of
            32 bytes.

    Example:
        >>> result = simulate("uniform", np.full((4, 1, 2), 5), [(2, 1.0)], [10], bytes(32))
        >>> result.released.shape, float(result.spent[0, 0])
        ((4, 2), 0.5)
    """
    table = _checked(counts, len(requirements))
    bins = table.shape[2]
    population = population_of([as_requirement(r) for r in requirements], sizes, bins, sensitivity)
    check_shares(population.requirements, sensitivity)
    stream = RunningStream(mechanism(name, population, revise=revise), key)
    releases = [stream.release(slot, counted) for slot, counted in enumerate(table)]
    rest = stream.rest() if revise else None
    return _simulation(releases, [release.spent for release in releases], rest)


def simulate_dynamic(
    name: str,
    counts: npt.ArrayLike,
    requirements: npt.ArrayLike,
    sizes: npt.ArrayLike,
    key: bytes,
    *,
    sensitivity: int = 1,
    revise: int = 0,
) -> Simulation:
    """Run a mechanism on counts in memory, with requirements that change from slot to slot.

    Args:
        name: the mechanism, as a name in `DYNAMIC_MECHANISMS`. You may add options, written
            NAME:OPTION=VALUE:OPTION=VALUE.
        counts: number of events for each slot, requirement class and bin, int, shape (T, K, d).
        requirements: the numbers window_backward, epsilon_backward, window_forward and
            epsilon_forward of each class in each slot (see :class:`DynamicRequirement`), shape (T,
            K, 4). If requirements do not change, the shape (K, 4) is sufficient. Four zeros mean
            that the users of the class have left.
        sizes: public number of users of each class, shape (K,).
        key: the noise key, which consists of 32 secret bytes. Two calls with the same key and
            counts give the same results.
        sensitivity: the most by which one user can change the histogram of a slot (L1 sensitivity).
        revise: number of slots after which the mechanism also makes a smoothed estimate of each
            slot. With 0, there are no smoothed estimates.

    Raises:
        ConfigurationError: as :func:`simulate`.
        ValueError: if :func:`simulate` would raise this error, or if a requirement class has no
            users.
    """
    people = np.asarray(sizes, dtype=np.int64)
    if (people < 1).any():
        raise ValueError(f"sizes are {people.tolist()}: give every class 1 user or more")
    table = _checked(counts, len(people))
    slots, classes, bins = table.shape
    asked = np.asarray(requirements, np.float64)
    if asked.shape not in ((classes, 4), (slots, classes, 4)):
        raise ValueError(
            f"requirements have shape {asked.shape}; give ({classes} classes, 4), or "
            f"({slots} slots, {classes} classes, 4)"
        )
    units = asked_units(asked.reshape(-1, 4)).reshape(asked.shape)
    windows, epsilons = asked[..., [0, 2]], asked[..., [1, 3]]
    little = ~leave_shares(epsilons, windows, sensitivity)
    check_shares(map(Requirement, windows[little], epsilons[little]), sensitivity)
    units = np.broadcast_to(units, (slots, classes, 4))
    horizon = int(units[:, :, [0, 2]].max(initial=1))
    stream = DynamicStream(
        dynamic_mechanism(name, Setting(bins, horizon, sensitivity), revise=revise),
        units[0],
        people,
        NoiseSource(key),
    )
    state, cohorts = stream.start(), np.arange(classes)
    bin_of, releases, spent = np.tile(np.arange(bins), classes), [], []
    for slot, counted in enumerate(table):
        moving = (units[slot] != units[max(slot - 1, 0)]).any(axis=1)
        children = np.where(moving, (slot + 1) * classes + np.arange(classes), cohorts)
        moves = Moves(cohorts[moving], children[moving], people[moving], units[slot][moving])
        cohorts = children
        cells = CohortCounts(np.repeat(cohorts, bins), bin_of, counted.reshape(-1))
        state, release = stream.release(state, slot, cells, moves)
        releases.append(release)
        spent.append(release.spent[state.interned.ledgers_of(cohorts)])
    return _simulation(releases, spent, stream.rest(state) if revise else None)


def simulate_infinite(
    name: str,
    counts: npt.ArrayLike,
    epsilon: float,
    key: bytes,
    *,
    sensitivity: int = 1,
    **options: bool | float | int | str,
) -> InfiniteSimulation:
    """Run a mechanism on counts in memory. All slots share one lifetime budget.

    Args:
        name: a name in `INFINITE_MECHANISMS`, such as `gated`.
        counts: number of events for each slot and bin, int, shape (T, d).
        epsilon: the lifetime budget of each user.
        key: the noise key, which consists of 32 secret bytes. Two calls with the same key and
            counts give the same results.
        sensitivity: the most by which one user can change the histogram of a slot (L1 sensitivity).
        options: options of the mechanism by name, for example `p=1.5`.

    Raises:
        ConfigurationError: if the mechanism or an option is unknown, or if the value of an option
            is out of range.
        ValueError: if `counts` contains numbers that are not whole or does not have the shape (T,
            d), or if the key does not consist of 32 bytes.
    """
    table = np.asarray(counts)
    if table.ndim != 2 or not np.issubdtype(table.dtype, np.integer):
        raise ValueError(
            f"counts are {table.dtype} of shape {table.shape}; give whole numbers, (slots, bins)"
        )
    text = with_options(name, options)
    mechanism = infinite_mechanism(text, table.shape[1], epsilon, sensitivity=sensitivity)
    stream = RunningStream(mechanism, key)
    rows = table.astype(np.int64)[:, None]
    releases = [stream.release(slot, row) for slot, row in enumerate(rows)]
    return InfiniteSimulation(
        np.array([release.shares for release in releases]).reshape(table.shape),
        np.array([release.counts for release in releases]).reshape(table.shape),
        np.array([release.status for release in releases], dtype=np.str_),
        to_epsilon(np.array([release.spent.sum() for release in releases])),
        np.array([release.diagnostics["age"] for release in releases], dtype=np.int64),
    )


def simulate_local(
    name: str,
    values: npt.ArrayLike,
    bins: int,
    requirements: Sequence[Requirement | tuple[int, float] | None],
    key: bytes,
    *,
    changes: Changes | None = None,
    revise: int = 0,
    **options: bool | float | int | str,
) -> LocalSimulation:
    """Run a local differential privacy mechanism in memory, with one device for each user.

    Args:
        name: a name in `LOCAL_MECHANISMS`, such as `plpa+`.
        values: for each slot and user, the number of the bin that contains the user's value, from 0
            to bins - 1, shape (T, n).
        bins: number of bins d, at least 2.
        requirements: the requirement of each of the n users. Give None for a user who joins later.
        key: the noise key, which consists of 32 secret bytes. Two calls with the same key and
            values give the same results.
        changes: the changes of requirements. For each slot with changes, map the number of the slot
            to a mapping user -> new requirement. Give None for a user who leaves. Only some
            mechanisms, such as `rotation`, support changes.
        revise: number of slots after which the mechanism also makes a smoothed estimate of each
            slot. With 0, there are no smoothed estimates.
        options: options of the mechanism by name, for example `project=True`.

    Raises:
        ConfigurationError: if the mechanism or an option is unknown, requirements are out of range,
            there are too few users for the length of their windows, or the mechanism does not
            support changes or `revise`.
        ValueError: if `values` contains anything but whole numbers from 0 to bins - 1 or does not
            have the shape (T, n), if `bins` is below 2, or if the key does not consist of 32 bytes.
    """
    if not isinstance(key, (bytes, bytearray)):
        raise ConfigurationError(f"the key is a {type(key).__name__}: give 32 bytes")
    asked_for = _by_slot(requirements, changes)
    users = _population(requirements, asked_for, bins)
    table = _checked_values(values, users)
    mechanism = local_mechanism(with_options(name, options), users, revise=revise)
    if asked_for and (not isinstance(mechanism, Rotation) or mechanism.users.asked):
        raise ConfigurationError(
            f"{mechanism.name} does not follow requirements that change: use the mechanism "
            "rotation, without turns"
        )
    source = NoiseSource(key)
    longest = users.classes.longest if asked_for else None
    users = mechanism.users
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
    revised = [one for release in releases for one in release.revisions]
    revised += rest_of(mechanism, state)
    return LocalSimulation(
        np.array([release.frequencies for release in releases]).reshape(shape),
        np.array([release.status for release in releases], dtype=np.str_),
        np.array([release.stderr for release in releases]).reshape(shape),
        tuple(asks),
        users,
        tuple(followed),
        *(
            np.array([getattr(one, what) for one in revised]).reshape(shape)
            for what in ("frequencies", "stderr")
            if revise
        ),
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
        state: its state.
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


def _checked(counts: npt.ArrayLike, classes: int) -> npt.NDArray[np.int64]:
    table = np.asarray(counts)
    if table.ndim != 3 or table.shape[1] != classes:
        raise ValueError(f"counts have shape {table.shape}; give (slots, {classes} classes, bins)")
    if not np.issubdtype(table.dtype, np.integer):
        raise ValueError(f"counts are {table.dtype}; give whole numbers")
    return table.astype(np.int64)


def _simulation(
    releases: Sequence[SlotRelease],
    spent: Sequence[Units],
    rest: Sequence[Revised] | None,
) -> Simulation:
    """With what is still to be revised after the last slot; None if nothing is revised."""

    def column(name: str) -> list[Any]:
        return [getattr(release, name) for release in releases]

    released = np.array(column("counts"))
    revised: list[Any] = []
    if rest is not None:
        rows = [one for release in releases for one in release.revisions] + list(rest)
        revised = [
            np.array([one.counts for one in rows]).reshape(released.shape),
            np.array([one.stderr for one in rows]).reshape(released.shape),
            np.array([one.values for one in rows]).reshape(released.shape),
        ]
    return Simulation(
        released,
        np.array(column("status")),
        to_epsilon(np.array(spent)),
        np.array(column("epsilon")),
        np.array(column("stderr")),
        np.array(column("values")),
        np.array(column("alarm")),
        *revised,
    )


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
    classes = Requirements(sorted(every))
    number = {requirement: k for k, requirement in enumerate(classes)}
    class_of = np.zeros(len(requirements), np.int32)
    for user, one in enumerate(requirements):
        wanted_first = first.get(user) if one is None else as_requirement(one)
        if wanted_first is None:
            raise ConfigurationError(f"user {user} never comes: leave the user out")
        class_of[user] = number[wanted_first]
    return Users(classes, class_of, int(bins))


def _checked_values(values: npt.ArrayLike, users: Users) -> npt.NDArray[np.int64]:
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
