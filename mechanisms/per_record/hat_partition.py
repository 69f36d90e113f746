"""The hat partition: a record lies between two nodes, and is counted in part at each.

Nodes are budgets e_0 < e_1 < ..., about a factor `base` apart; the total of node j gets Laplace
noise of scale 1 / e_j. A record of budget E between e_j and e_(j+1) puts the weight
w = (E - e_j) / (e_(j+1) - e_j) on the right one and 1 - w on the left one. That costs it
(1 - w) e_j + w e_(j+1) = E: its whole budget, where the domain of a budget wastes up to half of it.

Which nodes to sum up is decided on noisy totals alone, so it is free: see :func:`gap_select`.
"""

from __future__ import annotations

import math

import numpy as np

from streamveil.mechanisms.core.arrays import Floats, Integers


def hat_weights(budgets: Floats, nodes: Floats) -> tuple[Integers, Floats, Floats]:
    """Where records lie between nodes.

    Args:
        budgets: shape (n,), each at least nodes[0]; those above the last node lie at it.
        nodes: rising, shape (K + 1,), at least two.

    Returns:
        The left node of each record from 0 to K - 1, its weight there and on the next one, both
        from 0 to 1: shape (n,) each.
    """
    budgets, nodes = np.asarray(budgets, np.float64), np.asarray(nodes, np.float64)
    left = np.clip(np.searchsorted(nodes, budgets, side="right") - 1, 0, len(nodes) - 2)
    low, high = nodes[left], nodes[left + 1]
    right = np.clip((budgets - low) / (high - low), 0, 1)
    return left, 1 - right, right


def gap_select(
    noisy: Floats,
    nodes: Floats,
    base: float,
    beta0: float = 0.02,
    slope: float = 1.5,
    beta_far: float = 1e-6,
) -> Integers:
    """The lowest node that surely holds something: the sum from there up is what is released.

    Nodes are taken from the highest budget down. One is accepted if its total reaches its noise
    scale times min(ln(1 / (2 beta0)) + slope * g * ln(base), ln((K + 1) / (2 beta_far))), where g
    is its distance to the last accepted one, at first to K + 1: what follows accepted nodes closely
    is likely to be data, and what is wrongly accepted far away would cost much noise.

    Args:
        noisy: totals with noise, shape (..., K + 1).
        nodes: one divided by the scale of each one's noise, rising, shape (..., K + 1).
        base: ratio of neighbouring nodes.
        beta0: probability that noise alone is accepted next to an accepted node, before `slope`.
        slope: how fast that falls with the distance.
        beta_far: the least that it falls to, for all nodes together.

    Returns:
        The lowest accepted node, or the top one if none is: shape (...).
    """
    noisy, nodes = np.asarray(noisy, np.float64), np.asarray(nodes, np.float64)
    count = noisy.shape[-1]
    near, far = math.log(1 / (2 * beta0)), math.log(count / (2 * beta_far))
    last = np.full(noisy.shape[:-1], count)
    for j in range(count - 1, -1, -1):
        reach = np.minimum(near + slope * math.log(base) * (last - j), far)
        last = np.where(noisy[..., j] >= reach / nodes[..., j], j, last)
    return np.minimum(last, count - 1)
