"""A mechanism without Beam: the code that the pipeline runs, on counts in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.accounting.schedule import asked_units
from streamveil.mechanisms.core.cohorts import Moves
from streamveil.mechanisms.core.records import (
    Requirement,
    as_requirement,
    check_shares,
    leave_shares,
)
from streamveil.mechanisms.core.units import Units, to_epsilon
from streamveil.mechanisms.driver.dynamic_stream import CohortCounts, DynamicStream
from streamveil.mechanisms.driver.stream import ReleaseStream
from streamveil.mechanisms.protocol import Setting, SlotRelease, population_of
from streamveil.mechanisms.randomness.noise import NoiseSource
from streamveil.mechanisms.registry import dynamic_mechanism, mechanism


@dataclass(frozen=True, eq=False)
class Simulation:
    """What a simulated stream released and spent."""

    released: npt.NDArray[np.int64]
    """Private counts, shape (T, d)."""
    status: npt.NDArray[np.str_]
    """`published`, `predicted`, `skipped` or `nullified`, shape (T,)."""
    spent: npt.NDArray[np.float64]
    """Epsilon that each slot cost each class, shape (T, K)."""
    epsilon: npt.NDArray[np.float64]
    """Threshold of the publication repeated in each slot, shape (T,)."""
    stderr: npt.NDArray[np.float64]
    """Expected standard error, shape (T, d)."""
    alarm: npt.NDArray[np.bool_]
    """Where the mechanism saw a jump, shape (T,)."""


def simulate(
    name: str,
    counts: npt.ArrayLike,
    requirements: Sequence[Requirement | tuple[int, float]],
    sizes: npt.ArrayLike,
    key: bytes,
    *,
    sensitivity: int = 1,
) -> Simulation:
    """Run a mechanism over a whole stream.

    Args:
        name: mechanism, such as `pba`.
        counts: events by slot, class and bin, integers, shape (T, K, d).
        requirements: requirement of each class, K of them.
        sizes: public number of users of each class, shape (K,).
        key: 32 secret bytes; the same key and counts give the same result.
        sensitivity: how much one user can change a slot's histogram in L1.

    Raises:
        ConfigurationError: for an unknown name, requirements or sizes out of range.
        ValueError: for counts that are not (T, K, d), or a key that is not 32 bytes.
    """
    table = _checked(counts, len(requirements))
    bins = table.shape[2]
    population = population_of([as_requirement(r) for r in requirements], sizes, bins, sensitivity)
    check_shares(population.requirements, sensitivity)
    stream = ReleaseStream(mechanism(name, population), NoiseSource(key))
    state, releases = stream.start(), []
    for slot, counted in enumerate(table):
        state, release = stream.release(state, slot, counted)
        releases.append(release)
    return _simulation(releases, [release.spent for release in releases])


def simulate_dynamic(
    name: str,
    counts: npt.ArrayLike,
    requirements: npt.ArrayLike,
    sizes: npt.ArrayLike,
    key: bytes,
    *,
    sensitivity: int = 1,
) -> Simulation:
    """Run a mechanism over requirements that change over a whole stream.

    Args:
        name: mechanism, a key of `DYNAMIC_MECHANISMS`.
        counts: events by slot, class and bin, integers, shape (T, K, d).
        requirements: what each class asks for in each slot: window_backward, epsilon_backward,
            window_forward, epsilon_forward, shape (T, K, 4), or (K, 4) if nothing changes; zeros
            for a class whose users have left.
        sizes: public number of users of each class, shape (K,).
        key: 32 secret bytes; the same key and counts give the same result.
        sensitivity: how much one user can change a slot's histogram in L1.

    Raises as :func:`simulate` does, and ValueError for a class without users.
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
        dynamic_mechanism(name, Setting(bins, horizon, sensitivity)),
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
    return _simulation(releases, spent)


def _checked(counts: npt.ArrayLike, classes: int) -> npt.NDArray[np.int64]:
    table = np.asarray(counts)
    if table.ndim != 3 or table.shape[1] != classes:
        raise ValueError(f"counts have shape {table.shape}; give (slots, {classes} classes, bins)")
    if not np.issubdtype(table.dtype, np.integer):
        raise ValueError(f"counts are {table.dtype}; give whole numbers")
    return table.astype(np.int64)


def _simulation(releases: Sequence[SlotRelease], spent: Sequence[Units]) -> Simulation:
    def column(name: str) -> list[Any]:
        return [getattr(release, name) for release in releases]

    return Simulation(
        np.array(column("counts")),
        np.array(column("status")),
        to_epsilon(np.array(spent)),
        np.array(column("epsilon")),
        np.array(column("stderr")),
        np.array(column("alarm")),
    )
