"""The first shares of the queries in each user's budget: planned from public facts.

The error of a query is the mean squared error of a cell, in squares of what one event may add. For
a share a, it is assumed to be

    N (1 + N / c) ** -0.7,    N = 2 (D / (a e)) ** 2

where N is the noise of a budget that is spread evenly over slots, e is a user's mean budget for a
slot (E divided by the number of slots that a window meets), D is the number of events that a user
may change, and c is the number of events in a cell. If the noise is smaller than the random
variation of counts, the error is N. If it is larger, the adaptive mechanism saves budget and uses
earlier releases. The power was fitted to the logs of its errors on 32 streams: steady, wandering,
jumping and daily counts of 30 and 1000 in a cell, with windows of 2 to 168 slots. The formula
differs from these errors by a factor of about 3.

The number of events is not known, and neither is the power with which an error falls as the share
grows. It was 0.6 to 2, where 2 is the power before a stream has settled. So several rates of events
are considered (`RATES`), a query whose share becomes smaller is assumed to lose as much as
possible, and one whose share becomes larger to gain as little as possible. The planned shares have
the smallest weighted error relative to that of an even split, on average over the rates, provided
that they are no worse for any of the rates. Without a certain gain, the split is even. Later plans
use the errors of answers: see `replanning.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.core.budgets import Requirements, Units, to_epsilon
from streamveil.mechanisms.core.records import ADD_REMOVE, Lifetime, Requirement
from streamveil.mechanisms.queries.bounds import set_aside
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.windows import sensitivity_of

POWER = 0.7
FALLS, RISES = 2.0, 0.6
"""Largest power of the share with which an error may grow, and smallest one to fall with."""
RATES = (0.001, 0.01, 0.1, 1.0)
"""Possible numbers of events of a user in a base slot, all equally likely."""
STEPS = 1 << 16
"""Planned shares are multiples of 1 / `STEPS`, rounded down: all machines get the same."""
PARTS = 32
"""Steps in which even shares and the best ones are mixed."""
EVEN = 0.25
"""A query gets at least this part of an even share."""


def plan_shares(
    query_set: QuerySet,
    requirements: Requirements,
    sizes: npt.NDArray[np.int64],
    *,
    adjacency: str = ADD_REMOVE,
) -> tuple[Floats, Units]:
    """Divide each user's budget among queries. Shares that are given do not change.

    Args:
        query_set: the queries, with weights and shares.
        requirements: of each class, windows in base slots, K of them.
        sizes: public number of users of each class, shape (K,).
        adjacency: what neighbouring streams differ in.

    Returns:
        Shares of the queries, shape (Q,), which add up to 1 at most; and units of each query
        and class, int64, shape (Q, K), which add up to each class's budget at most, less what a
        look at bounds costs.
    """
    shares = [query.fixed_share for query in query_set]
    open_ones = [q for q, share in enumerate(shares) if not share]
    rest = 1 - sum(shares, Fraction(0))
    if len(open_ones) == 1:
        shares[open_ones[0]] = rest
    elif open_ones:
        even = np.array([float(share or rest / len(open_ones)) for share in shares])
        model = Expected.of(query_set, requirements, sizes, adjacency)
        errors = model.at(even) * np.array([[query.weight] for query in query_set])
        planned = _no_worse(errors / errors.sum(axis=0), even, open_ones)[open_ones]
        steps = np.floor(planned * STEPS).astype(np.int64).tolist()
        for q, number in zip(open_ones, steps, strict=True):
            shares[q] = Fraction(number, STEPS)
    budgets = (requirements.budgets - set_aside(query_set, requirements, sizes)).tolist()
    table = [[int(share * units) for units in budgets] for share in shares]
    return np.array([float(share) for share in shares]), np.array(table, np.int64)


@dataclass(frozen=True, eq=False)
class Expected:
    """The model of all queries' errors."""

    noise: Floats
    """N at a share of 1, shape (Q, 1)."""
    events: Floats
    """c, shape (Q, rates)."""

    @classmethod
    def of(
        cls,
        query_set: QuerySet,
        requirements: Requirements,
        sizes: npt.NDArray[np.int64],
        adjacency: str,
    ) -> Expected:
        """Of public facts: see :func:`plan_shares`."""
        people = np.maximum(sizes, 1)  # requirements of empty classes count, too
        epsilons = to_epsilon(requirements.budgets)
        noise, events = [], []
        for query in query_set:
            slots = [_most_slots(one, query) for one in requirements]
            budget = np.average(epsilons / slots, weights=people)
            sensitivity = sensitivity_of(query, adjacency, lifetime=requirements.forever)
            changed = sensitivity / query.measure.sensitivity
            noise.append([2 * (changed / budget) ** 2])
            most = query.max_contributions
            seen = most * -np.expm1(-np.array(RATES) * query.cut.mean / most)
            events.append(people.sum() * seen / query.domain.bins)
        return cls(np.array(noise), np.array(events))

    def at(self, shares: Floats) -> Floats:
        """Errors at shares (Q,), shape (Q, rates)."""
        noise = self.noise / shares[:, None] ** 2
        errors: Floats = noise * (1 + noise / self.events) ** -POWER
        return errors


def _most_slots(requirement: Requirement, query: Query) -> int:
    """Slots over which a budget is spread: as many of each query where it is for a lifetime."""
    if isinstance(requirement, Lifetime):
        return 1
    return query.cut.most_in(requirement.window)


def _no_worse(errors: Floats, even: Floats, some: list[int]) -> Floats:
    """Shares of the least mean error that is no more than that of even ones at any rate: (Q,).

    Args:
        errors: with even shares, shape (Q, rates).
        even: shares without a plan, shape (Q,).
        some: numbers of the queries whose shares are planned.
    """
    best = even.copy()
    best[some] = surest(errors.mean(axis=1)[some], even[some], EVEN * even[some])
    for part in np.linspace(1, 0, PARTS, endpoint=False).tolist():
        shares: Floats = even + part * (best - even)
        if (feared(errors.T, shares / even) <= errors.sum(axis=0)).all():
            return shares
    return even


def feared(errors: Floats, ratios: Floats) -> Floats:
    """Sum of errors (..., Q) when shares become so many times as large, (Q,): all that may be."""
    found: Floats = (errors * ratios ** -np.where(ratios < 1, FALLS, RISES)).sum(axis=-1)
    return found


def surest(
    errors: Floats, now: Floats, least: Floats, falls: Floats | float = FALLS, rises: float = RISES
) -> Floats:
    """Shares with the least sum of errors that is sure.

    Args:
        errors: weighted ones at the shares of now, shape (Q,).
        now: shares, shape (Q,); what comes out adds up to the same.
        least: what each keeps, at most what it has now.
        falls: power of the share with which an error is feared to grow where the share falls, of
            all or each.
        rises: and to fall where it rises; less than `falls`.
    """

    def earning(log: float) -> Floats:
        """Shares at which the last bit of each earns so much, in logs, or which stay."""
        less, more = (
            now * np.exp((np.log(power * errors / now) - log) / (power + 1))
            for power in (falls, rises)
        )
        return np.maximum(np.where(less < now, less, np.maximum(more, now)), least)

    earned = np.log(errors / now)
    low, high = earned.min() - _BEYOND, earned.max() + _BEYOND
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if earning(middle).sum() > now.sum() else (low, middle)
    shares = earning(high)
    found: Floats = shares * (now.sum() / shares.sum())
    return found


_BEYOND, _HALVINGS = 20.0, 60
