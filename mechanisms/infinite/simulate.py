"""A mechanism for ever without Beam: the code that the pipeline runs, on counts in memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.units import to_epsilon
from streamveil.mechanisms.driver.stream import ReleaseStream
from streamveil.mechanisms.infinite.registry import infinite_mechanism
from streamveil.mechanisms.randomness.noise import NoiseSource
from streamveil.mechanisms.registry import with_options


@dataclass(frozen=True, eq=False)
class InfiniteSimulation:
    """What a simulated stream released and spent."""

    released: npt.NDArray[np.float64]
    """Released distributions, shape (T, d)."""
    counts: npt.NDArray[np.int64]
    """Released distributions times their totals; zeros without a total, shape (T, d)."""
    status: npt.NDArray[np.str_]
    """`published` or `skipped`, shape (T,)."""
    spent: npt.NDArray[np.float64]
    """Epsilon that each slot cost everybody, summing to at most epsilon, shape (T,)."""
    age: npt.NDArray[np.int64]
    """Slots since the last one that the distribution is measured on, or from the beginning
    on while there is none, shape (T,)."""


def simulate_infinite(
    name: str,
    counts: npt.ArrayLike,
    epsilon: float,
    key: bytes,
    *,
    sensitivity: int = 1,
    **options: bool | float | int | str,
) -> InfiniteSimulation:
    """Run a mechanism with one budget over a whole stream.

    Args:
        name: a key of `INFINITE_MECHANISMS`, such as `gated`.
        counts: events by slot and bin, whole numbers, shape (T, d).
        epsilon: what all releases together may cost anybody.
        key: 32 secret bytes; the same key and counts give the same result.
        sensitivity: how much one user can change a slot's histogram in L1.
        options: those of the mechanism, such as p=1.5.

    Raises:
        ConfigurationError: for an unknown name or option, or a value out of range.
        ValueError: for counts that are not (T, d) whole numbers, or a key that is not 32 bytes.
    """
    table = np.asarray(counts)
    if table.ndim != 2 or not np.issubdtype(table.dtype, np.integer):
        raise ValueError(
            f"counts are {table.dtype} of shape {table.shape}; give whole numbers, (slots, bins)"
        )
    text = with_options(name, options)
    mechanism = infinite_mechanism(text, table.shape[1], epsilon, sensitivity=sensitivity)
    stream = ReleaseStream(mechanism, NoiseSource(key))
    state, releases = stream.start(), []
    for slot, row in enumerate(table.astype(np.int64)):
        state, release = stream.release(state, slot, row[None])
        releases.append(release)
    return InfiniteSimulation(
        np.array([release.shares for release in releases]).reshape(table.shape),
        np.array([release.counts for release in releases]).reshape(table.shape),
        np.array([release.status for release in releases], dtype=np.str_),
        to_epsilon(np.array([release.spent.sum() for release in releases])),
        np.array([release.diagnostics["age"] for release in releases], dtype=np.int64),
    )
