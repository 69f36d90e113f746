"""What lives tell of their canaries: every number of a life, beside what is usual in its place."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamveil.pipelines.audit.learned_odds import LearnedOdds

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Sight:
    """What one run shows of its canaries, in lives of which each begins anew."""

    values: Floats
    """Numbers in which each may show, NaN where nothing is told: shape (lives, places, numbers)."""
    there: Flags
    """The coins, shape (lives, places)."""


class LifeOdds:
    """What numbers tell of a canary of any place, learnt from some runs."""

    def __init__(self, sights: Sequence[Sight]) -> None:
        values = np.concatenate([one.values for one in sights])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of what was never told
            self._usual = np.nan_to_num(np.nanmedian(values, axis=0))
        self._odds = LearnedOdds(self._beside(values), surely=False)
        coins = np.concatenate([one.there for one in sights])
        self._odds.learn(self._beside(values), coins.reshape(-1))

    def scores(self, sight: Sight) -> Floats:
        """Score of each canary of a run, above 0 where it was likelier there: shape (n,)."""
        return self._odds.scores(self._beside(sight.values))

    def _beside(self, values: Floats) -> Floats:
        """Numbers of all canaries, less what is usual: shape (n, numbers)."""
        return (values - self._usual).reshape(-1, values.shape[2])
