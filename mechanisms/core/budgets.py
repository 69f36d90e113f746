"""Exact budgets: privacy loss as whole units of 2**-40 epsilon, and what classes ask for in them.

Every conversion and every division rounds down, so a sum of what was handed out never exceeds
what was asked for. Budgets are int64: at most 2**12 epsilon is 2**52 units.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import overload

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.records import (
    ConfigurationError,
    DynamicRequirement,
    Lifetime,
    Requirement,
    valid_epsilons,
    valid_windows,
)

Units = npt.NDArray[np.int64]

UNIT_BITS = 40
UNITS_PER_EPSILON = 1 << UNIT_BITS


@overload
def to_units(epsilon: float) -> int: ...
@overload
def to_units(epsilon: npt.NDArray[np.float64] | Sequence[float]) -> Units: ...
def to_units(epsilon: float | npt.NDArray[np.float64] | Sequence[float]) -> int | Units:
    """Whole units in epsilon, rounded down; of every element of an array.

    Scaling by a power of two is exact in binary.
    """
    if isinstance(epsilon, (float, int)):
        return math.floor(math.ldexp(epsilon, UNIT_BITS))
    scaled = np.ldexp(np.asarray(epsilon, np.float64), UNIT_BITS)
    units: Units = np.floor(scaled).astype(np.int64)
    return units


def to_epsilon(units: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Epsilon as float64 of an array of units, for people to read; never decides a budget."""
    return np.ldexp(np.asarray(units, dtype=np.float64), -UNIT_BITS)


class Requirements(tuple[Requirement, ...]):
    """What each class asks for, K of them: checked when a :class:`Requirement` was made."""

    @classmethod
    def of(cls, requirements: Iterable[Requirement]) -> Requirements:
        """Those requirements; the same if they are some already."""
        return requirements if isinstance(requirements, cls) else cls(requirements)

    def __reduce__(self) -> tuple[type[Requirements], tuple[tuple[Requirement, ...]]]:
        """Pickle without the columns, which would come back writable."""
        return Requirements, (tuple(self),)

    @cached_property
    def windows(self) -> npt.NDArray[np.int64]:
        """Slots w of each class, shape (K,)."""
        return _read_only(np.array([one.window for one in self], dtype=np.int64))

    @cached_property
    def budgets(self) -> Units:
        """E of each class in units, rounded down, shape (K,)."""
        return _read_only(to_units([one.epsilon for one in self]))

    @property
    def shares(self) -> Units:
        """E / w of each class in units, rounded down, shape (K,): what every slot may spend."""
        return self.budgets // self.windows

    @property
    def longest(self) -> int:
        """The longest window, in slots."""
        return max(one.window for one in self)

    @property
    def forever(self) -> bool:
        """Whether all ask for one budget over the whole stream, and none over windows.

        Raises ConfigurationError where some do and others do not.
        """
        lives = sum(isinstance(one, Lifetime) for one in self)
        if 0 < lives < len(self):
            raise ConfigurationError(
                "some requirements are for windows and others for the whole stream: release them "
                "as two streams"
            )
        return lives > 0

    @property
    def strictest(self) -> Requirements:
        """The smallest budget over the longest window in every class's name."""
        one = Requirement(self.longest, min(one.epsilon for one in self))
        return Requirements((one,) * len(self))

    @property
    def as_changing(self) -> Units:
        """The same looking back and ahead (`cohorts.Moves.requirements`), shape (K, 4)."""
        return np.column_stack((self.windows, self.budgets, self.windows, self.budgets))


def _read_only(values: Units) -> Units:
    """Mechanisms and the filters that check them read the same: nobody can write it."""
    values.flags.writeable = False
    return values


def asked_units(requirements: npt.ArrayLike) -> Units:
    """Requirements (w_B, E_B, w_F, E_F) as (n, 4) int64, epsilons in units, rounded down.

    Raises ValueError for another shape, ConfigurationError for figures out of range; a row of
    zeros is a user who has left.
    """
    figures = np.asarray(requirements, dtype=np.float64)
    if figures.ndim != 2 or figures.shape[1] != 4:
        raise ValueError(
            f"requirements have shape {figures.shape}; give (n, 4): window_backward, "
            "epsilon_backward, window_forward, epsilon_forward"
        )
    windows, epsilons = figures[:, [0, 2]], figures[:, [1, 3]]
    good = (valid_windows(windows) & valid_epsilons(epsilons)).all(axis=1)
    bad = np.flatnonzero(~good & (figures != 0).any(axis=1))
    if bad.size:
        DynamicRequirement(*figures[bad[0]].tolist())  # says what is wrong
    asked = np.empty(figures.shape, np.int64)
    asked[:, [0, 2]] = windows
    asked[:, [1, 3]] = to_units(epsilons)
    return asked
