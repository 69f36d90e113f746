"""Made-up requirements for comparing mechanisms: users spread over nine classes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.records import ConfigurationError, Requirement


def population(
    epsilon: float, window: int, users: int
) -> tuple[list[Requirement], npt.NDArray[np.int64]]:
    """Spread users evenly over the budgets E, 4/3 E, 5/3 E and the windows w/3, 2w/3, w.

    Windows are rounded up to whole slots, and classes that become equal are merged.

    Args:
        epsilon: budget E of the strictest users.
        window: longest window w, in slots.
        users: how many there are.

    Returns:
        (requirements, sizes): K distinct requirements, sorted, and int64 of shape (K,).

    Raises:
        ConfigurationError: for a requirement out of range, or fewer users than classes.
    """
    budgets = [epsilon * part / 3 for part in (3, 4, 5)]
    windows = [math.ceil(window * part / 3) for part in (1, 2, 3)]
    asked = sorted(Requirement(w, e) for w, e in itertools.product(windows, budgets))
    if users < len(asked):
        raise ConfigurationError(
            f"{users} users are too few for {len(asked)} kinds of requirements: give more"
        )
    # The remainder goes to the first kinds.
    each = [users // len(asked) + (i < users % len(asked)) for i in range(len(asked))]
    classes = sorted(set(asked))
    sizes = np.zeros(len(classes), dtype=np.int64)
    np.add.at(sizes, [classes.index(one) for one in asked], each)
    return classes, sizes
