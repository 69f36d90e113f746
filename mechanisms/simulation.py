"""A mechanism without Beam: the code that the pipeline runs, on counts in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.budgets import to_epsilon
from streamveil.mechanisms.mechanism import population_of
from streamveil.mechanisms.noise import NoiseSource
from streamveil.mechanisms.records import Requirement, as_requirement, check_shares
from streamveil.mechanisms.registry import mechanism
from streamveil.mechanisms.stream import ReleaseStream


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
    table = np.asarray(counts)
    if table.ndim != 3 or table.shape[1] != len(requirements):
        raise ValueError(
            f"counts have shape {table.shape}; give (slots, {len(requirements)} classes, bins)"
        )
    if not np.issubdtype(table.dtype, np.integer):
        raise ValueError(f"counts are {table.dtype}; give whole numbers")
    table = table.astype(np.int64)
    slots, classes, bins = table.shape
    population = population_of([as_requirement(r) for r in requirements], sizes, bins, sensitivity)
    check_shares(population.requirements, sensitivity)
    stream = ReleaseStream(mechanism(name, population), NoiseSource(key))
    state = stream.start()
    released = np.empty((slots, bins), dtype=np.int64)
    status = np.empty(slots, dtype="<U9")
    spent = np.empty((slots, classes), dtype=np.int64)
    epsilon = np.empty(slots)
    stderr = np.empty((slots, bins))
    alarm = np.empty(slots, dtype=bool)
    for slot in range(slots):
        state, release = stream.release(state, slot, table[slot])
        released[slot], status[slot], spent[slot] = release.counts, release.status, release.spent
        epsilon[slot], stderr[slot] = release.epsilon, release.stderr
        alarm[slot] = release.alarm
    return Simulation(released, status, to_epsilon(spent), epsilon, stderr, alarm)
