"""Which nodes of a statistic of single records are summed up follows from what is published."""

import numpy as np

from streamveil.mechanisms import NoiseSource
from streamveil.mechanisms.per_record import Bounds
from streamveil.mechanisms.per_record.protocol import Noisy
from streamveil.mechanisms.registry import statistic

SOURCE = NoiseSource(bytes(range(32)), "choice of nodes")


# The estimate is the same whatever totals the noise is on, and whatever else was released since.
def test_nodes_are_chosen_by_what_is_published():
    made = statistic("count", "hat", Bounds(0.2, 3.0, 10.0))
    cells = np.arange(3000) % 2
    parts = made.tally(np.ones(3000), np.where(cells, 2.5, 0.25), cells, 2)
    noisy = [made.noisy(part, SOURCE.slot(i, b"")) for i, part in enumerate(parts)]
    estimates = [made.estimate(one) for one in noisy]
    assert estimates[0].epsilon_tau != estimates[1].epsilon_tau
    for one, again in zip(estimates, noisy, strict=True):
        assert made.estimate(Noisy(again.totals.copy(), again.variances.copy())) == one
