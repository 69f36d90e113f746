"""Own mechanisms: a base mechanism of the framework around any function of the records kept.

Guarantee: whatever the function M promises. It must be private, with the budget that it is given,
under adding or removing one value; and it must not fail, warn, log or take long for some values.

Replays: M gets words that are a function of the key and of the input, so that a bundle which is run
twice gives the same estimate twice. A mechanism that draws its own randomness, as those of OpenDP
do, gives another one; that is harmless only where at most one of them is ever seen.

A median by OpenDP:

>>> import numpy as np
>>> import opendp.prelude as dp
>>> from streamveil.mechanisms import NoiseSource
>>> from streamveil.mechanisms.per_record import Framework, Inverse, Own
>>> dp.enable_features("contrib")
>>> space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.symmetric_distance()
>>> candidates = [1000.0 * i for i in range(101)]
>>> def median(values, epsilon, beta, words):
...     made = dp.binary_search_chain(
...         lambda scale: dp.m.make_private_quantile(
...             *space, dp.max_divergence(), candidates, alpha=0.5, scale=scale
...         ),
...         d_in=1,
...         d_out=epsilon,
...     )
...     return made(values.tolist())
>>> budget = Inverse(1e4, 1e9, 10.0)
>>> framework = Framework("median", budget.bounds, Own(median), budget)
>>> values = np.repeat([20e3, 40e3, 50e3], 4000)
>>> part = framework.tally(values, budget(values), np.zeros(12_000, np.int64), 1)[0]
>>> noise = NoiseSource(bytes(32)).slot(0, b"")
>>> framework.release(part, noise).estimate
40000.0
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.per_record import sparse
from streamveil.mechanisms.per_record.framework import Kept
from streamveil.mechanisms.per_record.laplace import fine_epsilon
from streamveil.mechanisms.per_record.protocol import Part
from streamveil.mechanisms.randomness.noise import RandomWords, SlotNoise


class Measurement(Protocol):
    """A private estimate of values: M."""

    def __call__(self, values: Floats, epsilon: float, beta: float, words: RandomWords, /) -> float:
        """Estimate from values.

        Args:
            values: rising, float64, shape (m,), from 0 to `value_max`; m is private.
            epsilon: budget, public.
            beta: probability that a promise of accuracy may fail with.
            words: randomness to use.
        """


@dataclass(frozen=True)
class Own(sparse.ByValue):
    """Runs a function on the values of the records kept, each as often as it occurs."""

    measurement: Measurement

    def release(self, part: Part, kept: Kept, noise: SlotNoise) -> tuple[float, float]:
        """Estimate; its error is unknown: see `Base.release`."""
        rows = sparse.kept(part, kept.first)
        values = np.repeat(sparse.code_floats(rows[:, sparse.CODE]), rows[:, sparse.COUNT])
        words = noise.words("own mechanism")
        estimate = self.measurement(values, fine_epsilon(kept.budget), kept.beta, words)
        return float(estimate), math.nan
