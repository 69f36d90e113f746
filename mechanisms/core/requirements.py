"""Requirements in columns and exact units: what all that is decided about budgets starts from."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.records import (
    DynamicRequirement,
    Requirement,
    valid_epsilons,
    valid_windows,
)
from streamveil.mechanisms.core.units import Units, to_units


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
