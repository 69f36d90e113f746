"""Public synopses: distributions that are made without any data, from a public seed."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.randomness.noise import RandomWords, digest, uniform

# 256 MB of synopses.
_MAX_CELLS = 1 << 26


@lru_cache(maxsize=4)
def synopses(bins: int, size: int, precision: int, seed: int) -> npt.NDArray[np.int32]:
    """Synopses in units of 1 / precision: int32, each summing to `precision`, shape (size, bins).

    As in Algorithm 2 of DPI, each synopsis is a multinomial sample of `precision` items over equal
    bins; the number of bins, the precision and the seed are public, and data has no part in them.

    Raises ConfigurationError for sizes that are not positive or do not fit into memory.
    """
    if min(bins, size, precision) < 1 or size * bins > _MAX_CELLS:
        raise ConfigurationError(
            f"a pool of {size} synopses of {bins} bins and precision {precision} is empty or has "
            f"more than {_MAX_CELLS} cells: give a smaller pool"
        )
    words = RandomWords(digest(b"synopses", b"%d %d %d %d" % (bins, size, precision, seed)))
    pool = np.empty((size, bins), dtype=np.int32)
    for row in pool:
        row[:] = np.bincount(uniform(precision, bins, words), minlength=bins)
    pool.setflags(write=False)
    return pool
