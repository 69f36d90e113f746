"""DP-SQLP, the anchor of `discovery.py`: user-level key selection and counts over a stream.

Written from Zhang et al., "Differentially Private Stream Processing at Scale" (2024),
arXiv 2303.18086. A user contributes at most `records` records. Each key has two binary trees over
the days, one of its distinct users and one of its records, with Gaussian noise in all nodes, and
prefix sums are estimated from all nodes below (Honaker). A key is selected on the first day on
which its noisy number of users reaches 1 plus a quantile of the noise of that day, with or without
new records, and its noisy prefix sums of records are published from then on. Epsilon is divided
evenly between both trees, and selection has two thirds of delta.

Where there is a choice, it is the one that selects more keys: the keys of a user compose as one
Gaussian mechanism with its exact delta, a selected key is not selected again, and it is known to
all later trees.

`each_window` is our addition, which gives it the guarantee over windows: all trees begin anew after
each window. A window meets two of these blocks in part, and in each of them up to `records` records
of a user go and as many others come.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

SELECTION_EPSILON, SELECTION_DELTA = 1 / 2, 2 / 3
"""Fractions of the budget, as published."""


@dataclass(frozen=True)
class Calibration:
    """The noise of both trees."""

    days: int
    """Leaves of a tree."""
    selection: float
    """Standard deviation of a node of the tree of users."""
    counts: float
    """Standard deviation of a node of the tree of records."""
    quantile: float
    """Standard deviations of a day's noise between 1 user and the threshold."""

    @classmethod
    def of(
        cls, epsilon: float, delta: float, days: int, records: int, *, each_window: bool
    ) -> Calibration:
        """For trees of so many days."""
        levels = days.bit_length()
        blocks, sides = (2, 2) if each_window else (1, 1)
        ours = SELECTION_EPSILON * epsilon
        half = SELECTION_DELTA * delta / 2  # for the Gaussian mechanism, and for thresholds
        fails = half / ((1 + math.exp(ours)) * blocks * records * days)
        apart = blocks * sides * levels
        return cls(
            days,
            _gaussian(math.sqrt(apart * records), ours, half),
            _gaussian(math.sqrt(apart) * records, epsilon - ours, (1 - SELECTION_DELTA) * delta),
            -NormalDist().inv_cdf(fails),
        )


def released(
    random: np.random.Generator,
    who: Integers,
    when: Integers,
    what: Integers,
    keys: int,
    noise: Calibration,
    records: int,
) -> tuple[npt.NDArray[np.bool_], Floats]:
    """Whether each key is selected, and its released number of events of each day.

    Args:
        random: of draws and noise.
        who: user of each record, shape (n,).
        when: day of each record from 0 on, shape (n,).
        what: key of each record, shape (n,).
        keys: number of all keys.
        noise: how much noise, and the days of a tree.
        records: of a user in each tree.

    Returns:
        Shape (keys,), and shape (keys, days), NaN before the key was selected.
    """
    days = int(when.max()) + 1
    selected, counts = np.zeros(keys, bool), np.full((keys, days), np.nan)
    for first in range(0, days, noise.days):
        last = min(first + noise.days, days)
        mine = np.flatnonzero((when >= first) & (when < last))
        mine = mine[_at_most(random, who[mine], records)]
        day = when[mine] - first
        shape = (keys, last - first)
        all_records = np.bincount(what[mine] * shape[1] + day, minlength=math.prod(shape))
        pairs = np.unique(np.column_stack([what[mine], who[mine], day]), axis=0)
        new = np.ones(len(pairs), bool)
        new[1:] = (pairs[1:, :2] != pairs[:-1, :2]).any(axis=1)
        fresh = np.bincount(pairs[new, 0] * shape[1] + pairs[new, 2], minlength=math.prod(shape))
        users = fresh.reshape(shape).cumsum(axis=1)
        spread = noise.selection * _deviations(shape[1])
        noisy = users + noise.selection * _prefix_noise(random, shape)
        over = (users > 0) & (noisy >= 1 + noise.quantile * spread)
        known = selected[:, None] | np.logical_or.accumulate(over, axis=1)
        sums = all_records.reshape(shape).cumsum(axis=1) + noise.counts * _prefix_noise(
            random, shape
        )
        daily = np.diff(sums, axis=1, prepend=0)
        counts[:, first:last] = np.where(known, daily, np.nan)
        selected = known[:, -1]
    return selected, counts


def _at_most(random: np.random.Generator, users: Integers, records: int) -> Integers:
    """Places of at most so many records of each user, drawn from all of them."""
    order = np.lexsort((random.random(len(users)), users))
    mine = users[order]
    starts = np.flatnonzero(np.concatenate([[True], mine[1:] != mine[:-1]]))
    rank = np.arange(len(mine)) - np.repeat(starts, np.diff([*starts, len(mine)]))
    return order[rank < records]


def _weights(levels: int) -> list[float]:
    """Variance of the best estimate of a node from all nodes below it, by level, in units."""
    found = [1.0]
    for _ in range(1, levels):
        found.append(1 / (1 + 1 / (2 * found[-1])))
    return found


def _prefix_noise(random: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """Noise of all prefix sums, where each node has standard deviation 1."""
    _, days = shape
    variances = _weights(days.bit_length())
    nodes = [random.standard_normal(shape)]
    for variance in variances[1:]:
        below = nodes[-1][:, : nodes[-1].shape[1] // 2 * 2]
        pairs = below[:, ::2] + below[:, 1::2]
        nodes.append(variance * random.standard_normal(pairs.shape) + (1 - variance) * pairs)
    sums = np.zeros(shape)
    for day in range(1, days + 1):
        at = 0
        for level in reversed(range(len(nodes))):
            if day >> level & 1:
                sums[:, day - 1] += nodes[level][:, at >> level]
                at += 1 << level
    return sums


def _deviations(days: int) -> Floats:
    """Standard deviations of the noise of prefix sums, where each node has 1."""
    variances = _weights(days.bit_length())
    return np.sqrt(
        [
            sum(variance for level, variance in enumerate(variances) if day >> level & 1)
            for day in range(1, days + 1)
        ]
    )


def _gaussian(sensitivity: float, epsilon: float, delta: float) -> float:
    """The least standard deviation with (epsilon, delta), exactly (Balle and Wang, 2018)."""

    def failed(deviation: float) -> float:
        half, rest = sensitivity / (2 * deviation), epsilon * deviation / sensitivity
        return _below(half - rest) - math.exp(epsilon) * _below(-half - rest)

    low, high = 0.0, sensitivity
    while failed(high) > delta:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if middle == 0 or failed(middle) > delta else (low, middle)
    return high


def _below(value: float) -> float:
    """The standard normal distribution function, exact far below 0."""
    return math.erfc(-value / math.sqrt(2)) / 2
