"""Bounds of numbers that nobody knows: chosen by one private look, before the first slot.

Of each user one event is drawn from all that the first run reads of what is asked about: the
sample. Its numbers are counted between public edges, the powers of 2, and
released with noise. From the answer follow a lower and an upper bound, which are public from then
on.

Guarantee: the answer to one look differs in distribution by at most a factor exp(2 rate / 2**40)
between streams that differ in what one user did in any base slots; with `looks` of them, the
answers to all by at most exp(`set_aside`), for a user of a class that pays, and for others not at
all.
Sensitivity: which event of a user is drawn depends on that user's events alone. So at most one cell
loses an event and one gains one, also where the user's events in some base slots are removed and
one of other slots takes the place: 2 in L1. Users of classes that do not pay are not in the sample.
Proof: discrete Laplace noise of `rate` units on each cell costs 2 rate; `rate` is what is set aside
over 2 looks, rounded down. What is set aside is so for good: whatever the window, the releases that
meet it cost what is left at most, so with the look all of a user's budget is not exceeded.

Classes pay for the same noise. Those with less budget than it costs are left out: which, follows
from public sizes, so that users times budget is most.

The choice: a cell is believed in whose answer noise makes anywhere in one of 10,000 looks. From
there the next cells are believed in, one after another or up to four together, whose sums noise
makes in one of a hundred looks. So noise does not choose tails that are far off and empty, which
would cost much more than what is clipped. Of what is believed 0.5 %
are cut off on each side, for the sake of single numbers that are far off. Zeros are no part of that
percentage, or a column of zeros with a few amounts would have all amounts cut off.

Nothing is chosen where a bound would be an end of the edges, rather than follow from the numbers:
where they are so large, or so close to 0, that the cells say no more of them.
Source: our own, after ApproxBounds of Google's differential privacy library (Wilson et al.,
"Differentially private SQL with bounded user contribution", 2020), which believes in single cells.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.core.budgets import UNITS_PER_EPSILON, Requirements, Units
from streamveil.mechanisms.core.identity import Form, Identified
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.queries.answers import Answer
from streamveil.mechanisms.queries.discovered import declared, discovery_budgets
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.statistics import (
    Mean,
    Quantiles,
    StandardDeviation,
    Sum,
    Variance,
    even_edges,
)
from streamveil.mechanisms.queries.usual import Ratios, Usual
from streamveil.mechanisms.randomness.noise import RandomWords, discrete_laplace

Bounded = Sum | Mean | Variance | StandardDeviation

KINDS: Mapping[str, type[Bounded]] = {
    kind.IDENTITY.tag.removeprefix("statistic "): kind for kind in get_args(Bounded)
}
"""What has a lower and an upper bound, by name."""
QUANTILES = "quantiles"
"""Their outer edges are chosen, with even intervals between."""

LOOK = 20
"""One in so many units of a budget is set aside for the look."""
LEFT = 100
"""At least 1 / `LEFT` of a budget must be left for results."""
POWERS = np.arange(-240, 249)
"""Of 2, from 6e-73 to 5e74: nearly as far as ranges can be computed with."""
EDGES = np.concatenate([-(2.0 ** POWERS[::-1]), [0.0], 2.0**POWERS])
"""Of the cells: there is one more of these, below the first edge and above the last."""
CELLS = len(EDGES) + 1
_PADDED = np.concatenate([EDGES[:1], EDGES, EDGES[-1:]])  # numbers beyond count as the last edges
_SIZES = np.maximum(np.abs(_PADDED[:-1]), np.abs(_PADDED[1:]))
_LEAST = float(EDGES[EDGES > 0].min())
_FEW = "found too few numbers in column {column!r} to choose bounds by"
_LARGE = f"found numbers beyond {EDGES[-1]:.0e} in column {{column!r}}, too large to compute with"
_SMALL = f"found no numbers in column {{column!r}} but 0 and what is closer to it than {_LEAST:.0e}"
FALSE, NEAR_FALSE = 1e-4, 1e-2
"""How often noise makes a cell anywhere, and a tail next to those that are believed in."""
FURTHER = 4
"""Cells that are looked at together."""
NEAR = 8
"""What is so many times smaller than the largest numbers is not looked at for itself."""
CUT = 0.005
"""Of what is believed, so much is cut off on each side."""
ENOUGH = 60
"""Events that must be believed in, in scales of the noise: with fewer it may hide a tenth."""
ZERO = 5
"""A bound so many times closer to 0 than the other one is 0: ranges are a quarter wider at most."""
DIGITS = 2
"""Of a bound."""


@dataclass(frozen=True)
class AutoBounds(Identified):
    """A statistic of numbers within bounds that are to be chosen, or were.

    Raises ConfigurationError as the statistic does.
    """

    IDENTITY = Form(
        "statistic with chosen bounds", ("name", "column", "lower", "upper"), {"quantiles": ()}
    )

    name: str
    """As in files of queries: sum, mean, variance, stddev or quantiles."""
    column: str
    """Of numbers."""
    lower: float | None = None
    """None until it is chosen, as the other one."""
    upper: float | None = None
    quantiles: tuple[float, ...] = ()
    """Of quantiles, the shares."""

    def __post_init__(self) -> None:
        """Check the fields."""
        if self.name not in (*KINDS, QUANTILES):
            able = ", ".join((*KINDS, QUANTILES))
            raise ConfigurationError(f"bounds cannot be chosen for {self.name!r}, but for {able}")
        if (self.lower is None) != (self.upper is None):
            raise ConfigurationError("one of lower and upper is given: give both, or neither")
        _ = self._any  # refuses what does not fit

    @property
    def chosen(self) -> bool:
        """Whether the bounds are known."""
        return self.lower is not None

    @cached_property
    def _any(self) -> Bounded | Quantiles:
        """The statistic, within any bounds where they are not known yet."""
        bounds = 0.0, 1.0
        if self.lower is not None and self.upper is not None:
            bounds = self.lower, self.upper
        if self.name == QUANTILES:
            return Quantiles(self.column, even_edges(*bounds), self.quantiles)
        return KINDS[self.name](self.column, *bounds)

    @property
    def _made(self) -> Bounded | Quantiles:
        if not self.chosen:
            raise ValueError(f"the bounds of {self.column} are not chosen yet")
        return self._any

    @property
    def once(self) -> bool:
        """Each event counts."""
        return self._any.once

    @property
    def weights(self) -> Integers:
        """What an event of each step adds to each part, whatever the bounds are."""
        return self._any.weights

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the figures."""
        return self._any.outputs

    def steps(self, numbers: Floats) -> Integers:
        """Step of each number. Raises ValueError before bounds are chosen."""
        return self._made.steps(numbers)

    @property
    def ratios(self) -> Ratios | None:
        """What figures are made of."""
        return self._any.ratios

    @property
    def summed(self) -> bool:
        """Whether the figure is a sum of parts."""
        return self._any.summed

    def answer(self, counts: Floats, variances: Floats, usual: Usual | None = None) -> Answer:
        """The figures. Raises ValueError before bounds are chosen."""
        return self._made.answer(counts, variances, usual)


class _Cells(Quantiles):
    """In which cell of a look a number is; there is no histogram of these by bin."""

    @property
    def weights(self) -> Integers:
        """One for each cell."""
        return np.ones((CELLS, 1), np.int64)


class NoBoundsError(ValueError):
    """Why no bounds follow from a look, in words about its column `{column}`."""


@dataclass(frozen=True)
class Look:
    """The numbers that one or more queries ask about."""

    sample: Query
    """All events that these are about: its statistic counts them by cell."""
    names: tuple[str, ...]
    """Of the queries."""


def looks_at(query_set: QuerySet) -> tuple[Look, ...]:
    """What is to be looked at, or was: once for queries about the same events and column."""
    found: dict[tuple[object, ...], list[Query]] = {}
    for query in query_set:
        if isinstance(query.statistic, AutoBounds):
            column = query.statistic.column
            # Whatever keys were discovered, these are the same events.
            domain = declared(query).domain
            same = (column, query.value, domain.identity(), query.where)
            found.setdefault(same, []).append(query)
    return tuple(
        Look(
            Query(
                f"look-{number}",
                value=some[0].value,
                domain=some[0].domain,
                statistic=_Cells(some[0].statistic.column or "", tuple(EDGES.tolist())),
                where=some[0].where,
            ),
            tuple(one.name for one in some),
        )
        for number, some in enumerate(found.values())
    )


def are_known(query_set: QuerySet) -> bool:
    """Whether no bounds are to be chosen any more."""
    return all(map(is_known, query_set))


def is_known(query: Query) -> bool:
    """Whether it has bounds, or needs none."""
    return not isinstance(query.statistic, AutoBounds) or query.statistic.chosen


def with_bounds(query_set: QuerySet, bounds: Floats) -> QuerySet:
    """The query set under bounds that were chosen, shape (looks, 2)."""
    chosen = {
        name: pair
        for look, pair in zip(looks_at(query_set), bounds.tolist(), strict=True)
        for name in look.names
    }
    return replace(
        query_set,
        queries=tuple(
            replace(one, statistic=_under(one.statistic, *chosen[one.name]))
            if one.name in chosen
            else one
            for one in query_set
        ),
    )


def _under(statistic: Any, lower: float, upper: float) -> AutoBounds:
    return replace(statistic, lower=lower, upper=upper)


def bounds_of(query_set: QuerySet) -> Floats:
    """Those that were chosen: shape (looks, 2)."""
    by_name = {one.name: one.statistic for one in query_set}
    found = [by_name[look.names[0]] for look in looks_at(query_set)]
    pairs = [(one.lower, one.upper) for one in found if isinstance(one, AutoBounds)]
    return np.array(pairs, np.float64).reshape(-1, 2)


def paying(requirements: Requirements, sizes: Integers) -> tuple[npt.NDArray[np.bool_], int]:
    """Classes whose users are in the sample, shape (K,), and the units that each of them pays."""
    budgets = requirements.budgets
    people = [int(sizes[budgets >= budget].sum()) for budget in budgets.tolist()]
    worth = [n * budget for n, budget in zip(people, budgets.tolist(), strict=True)]
    least = int(budgets[worth.index(max(worth))])
    return budgets >= least, least // LOOK


def set_aside(query_set: QuerySet, requirements: Requirements, sizes: Integers) -> Units:
    """Units of each class's budget that no release may spend, shape (K,).

    They are for looks and for the discovery of keys, and 0 without these.
    """
    aside = discovery_budgets(query_set, requirements)
    if looks_at(query_set):
        classes, units = paying(requirements, sizes)
        aside += np.where(classes, units, 0)
        if (requirements.budgets - aside < requirements.budgets // LEFT).any():
            raise ConfigurationError(
                "discovering keys and choosing bounds (bounds: auto) would leave less than 1 % of "
                "the budget for results: give the discovery a smaller share, or give "
                "bounds: [LOW, HIGH]"
            )
    return aside


def rate_of(looks: int, units: int) -> int:
    """Units that an event of the sample costs in each look.

    Raises ConfigurationError for a budget that is too small to ask anything.
    """
    rate = units // (2 * looks)
    if not rate:
        raise ConfigurationError(
            "the budget is too small to choose bounds by: ask for more epsilon, or give bounds: "
            "[LOW, HIGH]"
        )
    return rate


def answer(cells: Integers, rate: int, words: RandomWords) -> Integers:
    """Cells of one look with noise, shape (CELLS,)."""
    return cells + discrete_laplace(rate, len(cells), words)


def choice(cells: Integers, rate: int) -> tuple[float, float]:
    """The bounds that follow from an answer.

    Raises NoBoundsError if too few events stand out from noise, or a bound would be one of the
    outer edges, or all numbers are as good as 0: functions of the answer alone, as bounds are.
    """
    scale = UNITS_PER_EPSILON / rate
    seen = np.flatnonzero(cells > scale * math.log(CELLS / (2 * FALSE)))
    if not len(seen):
        raise NoBoundsError(_FEW)
    first, last = _grown(cells / scale, int(seen[0]), int(seen[-1]))
    believed = np.maximum(cells[first : last + 1], 0)
    if believed.sum() < ENOUGH * scale:
        raise NoBoundsError(_FEW)
    edges = _PADDED[first : last + 2]
    cut = CUT * believed[_SIZES[first : last + 1] > _LEAST].sum()
    below, above = _outer(-edges[::-1], believed[::-1], cut), _outer(edges, believed, cut)
    largest = max(below, above)
    if largest >= EDGES[-1]:
        raise NoBoundsError(_LARGE)
    if largest <= _LEAST:
        raise NoBoundsError(_SMALL)
    if -below * ZERO < above:
        below = max(below, 0.0)
    if -above * ZERO < below:
        above = max(above, 0.0)
    return 0.0 - _rounded_up(below), _rounded_up(above)


def _grown(cells: Floats, first: int, last: int) -> tuple[int, int]:
    """The first and the last cell, with the tails next to them: of an answer in scales of noise.

    The next cells are those whose numbers are not below an eighth of the largest ones so far.
    """
    while True:
        largest = max(-_PADDED[first], _PADDED[last + 1])
        near = np.flatnonzero(largest < _SIZES * NEAR)
        above, below = near[near > last], near[near < first][::-1]
        more = _seen(cells[above]), _seen(cells[below])
        if not any(more):
            return first, last
        last = int(above[more[0] - 1]) if more[0] else last
        first = int(below[more[1] - 1]) if more[1] else first


def _seen(tail: Floats) -> int:
    """How many of the next cells together hold more than noise makes, as few as do; else 0."""
    sums = np.cumsum(tail[:FURTHER])
    more = np.flatnonzero(sums > _MADE[: len(sums)])
    return int(more[0]) + 1 if len(more) else 0


def _made(cells: int) -> float:
    """What the sum of so many draws of noise of scale 1 exceeds that often, at most."""
    seldom = math.log(2 * FURTHER / NEAR_FALSE)
    powers = np.linspace(0.01, 0.99, 99)  # Chernoff's bound, by the powers of e to take
    bound = ((seldom - cells * np.log1p(-(powers**2))) / powers).min()
    return seldom - math.log(2) if cells == 1 else float(bound)


_MADE = np.array([_made(cells) for cells in range(1, FURTHER + 1)])


def _outer(edges: Floats, believed: Integers, cut: float) -> float:
    """The number above which so many of the events lie, if they lie evenly in each cell."""
    below = np.concatenate([[0], np.cumsum(believed)])
    return float(np.interp(below[-1] - cut, below, edges))


def _rounded_up(number: float) -> float:
    """The next number of so few digits."""
    if not number:
        return 0.0
    unit = math.floor(math.log10(abs(number))) - DIGITS + 1
    return float(f"{math.ceil(number / 10.0**unit)}e{unit}")
