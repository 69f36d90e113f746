"""What error a query is going to have, without data: before there is any, or to choose epsilon.

A mechanism is simulated on streams that are assumed: as many events as are expected, in bins of
popularity 1 / rank. The logarithm of each bin's popularity is a Gaussian process of its own, with
covariance s**2 exp(-(k / t)**a) between slots that are k apart: a is 1 where nothing is known, as
of a walk that is drawn back, and 2 of a smooth curve. Around that counts vary by chance. Numbers of
a column lie evenly between their bounds or edges. What is simulated is remembered.

Nothing here is private, and nothing comes from events: the registry, the queries and what is
assumed are public.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.core.budgets import UNIT_BITS, Requirements, Units
from streamveil.mechanisms.core.parameter_checks import whole
from streamveil.mechanisms.core.records import (
    ADD_REMOVE,
    MAX_EPSILON,
    ConfigurationError,
    Requirement,
)
from streamveil.mechanisms.protocol import SlotRelease
from streamveil.mechanisms.queries.answers import Answer
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.query_stream import QueryStream
from streamveil.mechanisms.queries.shares import EVEN
from streamveil.mechanisms.queries.simulated import answers_of, times_of
from streamveil.mechanisms.queries.slot_answers import answer_of
from streamveil.mechanisms.randomness.noise import KEY_BYTES, NoiseSource

DRIFT = 0.05
"""Of a count from one slot to the next, where nothing is known."""
RATE = 0.1
"""Events of a user in a base slot, where nothing is known."""
# Streams that are simulated: more where one of them has few bins, and so tells little.
_SEEDS, _SEEDS_OF_FEW, _FEW = 2, 3, 9
# How far popularities wander where nothing is known, in logarithms, standard deviation.
_WANDERS = 0.5
# Rough and smooth processes: the least and the largest power, which is not quite 2 so that rounding
# leaves the covariance positive.
_ROUGH, _SMOOTH = 0.05, 1.98
# Bins beyond so many wander as others do, or memory would grow without end.
_PATHS = 1000
# Slots that are simulated, unless another number is asked for: windows, rollups, and the least and
# the most.
_WINDOWS, _ROLLUPS, _LEAST, _MOST = 2, 4, 60, 400
# Parts of a share at which errors are simulated to plan shares, and steps in which the budget is
# divided.
_PARTS, _STEPS = (0.25, 0.5, 1.0, 2.0, 4.0), 200
# Slots of which figures are computed, where that takes long.
_FIGURES = 40
# The least chance that a user is there: rarer ones are drawn as this.
_RARE = 1e-4
# Numbers between the bounds that are drawn from.
_NUMBERS = 16
# How near the error must come to the one that is wanted, and after how many tries at most.
_NEAR, _TRIES = 0.03, 10
_THOUSANDTH = 1e-3
_MOST_DRIFT = 10.0


@dataclass(frozen=True)
class Assumed:
    """What is thought of the events. Raises ConfigurationError for what cannot be."""

    rate: float
    """Events of all users in a base slot."""
    drift: float = DRIFT
    """By what part of itself a count changes from one slot of its query to the next, but for
    chance: root mean square."""
    long_drift: float | None = None
    """The same over the longest window. None for that of a walk: it grows as the root of the slots,
    up to 70 %."""
    chance: float | None = None
    """Variance of a count by chance, in parts of the count: 1 of rare users who come by themselves,
    0 of a timetable, or where the same users are there again. None for that of users who choose
    anew in each slot whether to come, and where: 1 less the share of all users in the bin."""

    def __post_init__(self) -> None:
        """Check the fields."""
        if not (math.isfinite(self.rate) and self.rate > 0):
            raise ConfigurationError(
                f"the rate is {self.rate:g}: give the number of events in a base slot, above 0"
            )
        if not 0 <= self.drift <= 1:
            raise ConfigurationError(
                f"the drift is {self.drift:g}: give the fraction by which a count changes from "
                "one slot of its query to the next, from 0 to 1, such as 0.05"
            )
        if self.long_drift is not None and not 0 <= self.long_drift <= _MOST_DRIFT:
            raise ConfigurationError(
                f"the long drift is {self.long_drift:g}: give the fraction by which a count "
                f"changes over a window, from 0 to {_MOST_DRIFT:g}, such as 0.3"
            )
        if self.chance is not None and not 0 <= self.chance <= 1:
            raise ConfigurationError(
                f"the chance is {self.chance:g}: give the variance of a count by chance as a "
                "fraction of the count, from 0 (a timetable) to 1 (independent users)"
            )


@dataclass(frozen=True)
class Expected:
    """The error that a query is expected to have in one of its slots."""

    cells: float
    """Mean squared error of a cell of its histogram, in squares of what an event may add: what
    `weight` weighs."""
    figures: tuple[float, ...]
    """Root mean squared error of each output of its statistic, in the figure's own unit; NaN where
    there are too few events for any."""
    rollups: tuple[tuple[float, ...], ...] = ()
    """The same of each rollup (`Query.times`); NaN of one that is longer than what is simulated."""

    @property
    def figure(self) -> float:
        """Of the output that errs most; NaN where there are too few events for any."""
        return max(self.figures)


def expected_error(
    query_set: QuerySet,
    number: int,
    requirements: Requirements,
    sizes: npt.NDArray[np.int64],
    units: Units,
    assumed: Assumed,
    *,
    adjacency: str = ADD_REMOVE,
    slots: int | None = None,
) -> Expected:
    """The error of a query that has a part of the budget.

    Args:
        query_set: what is asked.
        number: of the query.
        requirements: of each class, windows in base slots, K of them.
        sizes: public number of users of each class, shape (K,).
        units: of the query in each class, int64, shape (K,).
        assumed: what is thought of the events.
        adjacency: what neighbouring streams differ in.
        slots: of the query, how long the stream is; None for a few windows.

    Raises ConfigurationError for what the query or its mechanism cannot do.
    """
    query = query_set.queries[number]
    asked = tuple(
        Requirement(one.window, math.ldexp(part, -UNIT_BITS))
        for one, part in zip(requirements, units.tolist(), strict=True)
    )
    if slots is None:
        longest = max(query.cut.most_in(one.window) for one in asked)
        rolled_up = math.ceil(_ROLLUPS * max((one.mean for one in query.longer), default=0.0))
        slots = min(max(_WINDOWS * longest, rolled_up, _LEAST), _MOST)
    return _simulated(
        replace(query_set, queries=(replace(query, share=None, weight=1.0),)),
        asked,
        tuple(np.asarray(sizes).tolist()),
        assumed,
        adjacency,
        whole("slots", slots),
    )


def epsilon_factor(
    query_set: QuerySet,
    number: int,
    requirements: Requirements,
    sizes: npt.NDArray[np.int64],
    units: Units,
    assumed: Assumed,
    wanted: float,
    *,
    adjacency: str = ADD_REMOVE,
) -> float:
    """By what everybody's epsilon is to be multiplied for a query to have the error wanted.

    Its share of the budget stays. See :func:`expected_error`; `wanted` is an error of the output
    that errs most, in its own unit.

    Raises ConfigurationError for an error that no epsilon up to MAX_EPSILON gives, for one that a
    thousandth of the budget is enough for, and where there are too few events for any figure.
    """
    name = query_set.queries[number].name
    if not (math.isfinite(wanted) and wanted > 0):
        raise ConfigurationError(f"the wanted error is {wanted:g}: give a number above 0")
    largest = max(one.epsilon for one in requirements)

    def beyond(log: float) -> float:
        """Logarithm of the error there over the one that is wanted."""
        part = np.maximum(np.floor(units * math.exp(log)), 1).astype(np.int64)
        found = expected_error(
            query_set, number, requirements, sizes, part, assumed, adjacency=adjacency
        ).figure
        if math.isnan(found):
            raise ConfigurationError(
                f"query {name!r}: so few events give no estimate: assume a higher rate"
            )
        return math.log(max(found, 1e-12) / wanted)

    least, most = math.log(_THOUSANDTH), math.log(MAX_EPSILON / largest)
    log, here = 0.0, beyond(0.0)
    if abs(here) > _NEAR:  # what nothing gives is known at once
        end = most if here > 0 else least
        there = beyond(end)
        if (there > _NEAR) if here > 0 else (there < -_NEAR):
            log, here = end, there
    low, high = (-math.inf, 0.0), (math.inf, 0.0)  # too large an error, and too small a one
    for _ in range(_TRIES):
        if abs(here) <= _NEAR or (here > 0 and log >= most) or (here < 0 and log <= least):
            break
        low, high = ((log, here), high) if here > 0 else (low, (log, here))
        if math.isinf(low[0]) or math.isinf(high[0]):
            # Errors fall about as fast as epsilon grows, or more slowly: a step is hardly too long.
            step = math.copysign(max(1.5 * abs(here), 0.1), here)
            log = min(max(log + step, least), most)
        else:
            # As if it was a power between the two, but never too near to either.
            part = low[1] / (low[1] - high[1])
            log = low[0] + min(max(part, 0.1), 0.9) * (high[0] - low[0])
        here = beyond(log)
    if here > _NEAR and log >= most:
        raise ConfigurationError(
            f"query {name!r}: not even epsilon {MAX_EPSILON:g} gives an error of "
            f"{wanted:g}: what is assumed changes too much, or its numbers are rounded to more "
            "than that; ask for a larger error"
        )
    if here < -_NEAR and log <= least:
        raise ConfigurationError(
            f"query {name!r}: with a thousandth of its budget the error is still below "
            f"{wanted:g}: ask for a smaller one"
        )
    return math.exp(log)


def expected_shares(
    query_set: QuerySet,
    requirements: Requirements,
    sizes: npt.NDArray[np.int64],
    units: Units,
    assumed: Sequence[Assumed],
    *,
    adjacency: str = ADD_REMOVE,
) -> Floats:
    """Shares of the least weighted error, where more is known of the events than `plan_shares` has.

    Args:
        query_set: what is asked, with weights. Shares that are given stay as they are.
        requirements: of each class, windows in base slots, K of them.
        sizes: public number of users of each class, shape (K,).
        units: what is planned without knowing, int64, shape (Q, K).
        assumed: what is thought of the events of each query.
        adjacency: what neighbouring streams differ in.

    Returns:
        Shares of the queries, shape (Q,), which add up to 1 at most. Errors at shares that were
        not simulated are interpolated, as powers of the share. A quarter of an even part is the
        least that a query gets, whatever is assumed.
    """
    planned = units[:, 0] / requirements.budgets[0]
    open_ones = [q for q, query in enumerate(query_set) if query.share is None]
    curves = {}
    for q in open_ones:
        errors = [
            expected_error(
                *(query_set, q, requirements, sizes),
                np.maximum(units[q] * part, 1).astype(np.int64),
                assumed[q],
                adjacency=adjacency,
            ).cells
            for part in _PARTS
        ]
        falling = np.minimum.accumulate(np.maximum(errors, 1e-9))
        curves[q] = np.log(planned[q] * np.array(_PARTS)), np.log(falling)

    def error(q: int, share: float) -> float:
        weight = query_set.queries[q].weight
        return weight * math.exp(_between(math.log(share), *curves[q]))

    rest = planned[open_ones].sum()
    shares, step = planned.copy(), (1 - EVEN) * rest / _STEPS
    shares[open_ones] = EVEN * rest / max(len(open_ones), 1)
    for _ in range(_STEPS if open_ones else 0):
        earned = [error(q, shares[q]) - error(q, shares[q] + step) for q in open_ones]
        shares[open_ones[int(np.argmax(earned))]] += step
    return shares


def _between(x: float, xs: Floats, ys: Floats) -> float:
    """Linear between the points, and beyond them as between the last two."""
    i = int(np.clip(np.searchsorted(xs, x), 1, len(xs) - 1))
    slope = (ys[i] - ys[i - 1]) / (xs[i] - xs[i - 1])
    return float(ys[i] + slope * (x - xs[i]))


@lru_cache(maxsize=1024)
def _simulated(
    alone: QuerySet,
    requirements: tuple[Requirement, ...],
    sizes: tuple[int, ...],
    assumed: Assumed,
    adjacency: str,
    slots: int,
) -> Expected:
    """The error of one query that has all of the budget."""
    query, asked = alone.queries[0], Requirements(requirements)
    people, window = np.array(sizes, np.int64), query.cut.most_in(asked.longest)
    found, rolled_up = [], []
    seeds = _SEEDS_OF_FEW if query.domain.bins <= _FEW else _SEEDS
    for seed in range(seeds):
        stream: Any = QueryStream(
            alone,
            asked,
            people,
            asked.budgets[None],
            NoiseSource(seed.to_bytes(KEY_BYTES, "big")),
            adjacency=adjacency,
        ).streams[0]
        state, releases, counted = stream.start(), [], []
        random = np.random.default_rng(seed)
        drawn = assumed_counts(query, people, assumed, window, slots, random)
        for slot, counts in enumerate(drawn):
            state, release = stream.release(state, slot, counts)
            releases.append(release)
            counted.append(counts.sum(axis=0))
        found.append(squared_errors(query, np.array(counted), releases))
        rolled_up.append(rollup_errors(alone, np.array(counted), releases))
    cells = float(np.mean([each for each, _ in found]))
    figures = np.sqrt(np.mean([each for _, each in found], axis=0))
    rollups = np.sqrt(np.mean(rolled_up, axis=0)).tolist()
    return Expected(cells, tuple(figures.tolist()), tuple(map(tuple, rollups)))


def squared_errors(
    query: Query, counted: Integers, releases: Sequence[SlotRelease]
) -> tuple[float, Floats]:
    """How far releases of a query are from the truth.

    Args:
        query: what was asked.
        counted: true cells, shape (slots, cells).
        releases: of each of these slots.

    Returns:
        Mean squared error of a cell, in squares of what an event may add; and of each output of the
        statistic, in its own unit, shape (outputs,): NaN where there is nothing to compare.
    """
    released = np.array([one.counts for one in releases])
    apart = (released - counted) / query.measure.sensitivity
    cells = float((apart**2).mean())
    if query.statistic.column is None and not query.tree.levels:
        return cells, np.full(1, float(((released - counted).astype(np.float64) ** 2).mean()))
    some = np.unique(np.linspace(0, len(counted) - 1, _FIGURES).astype(np.int64))
    answers = answers_of(query, releases, some)
    return cells, _of_answers(query, answers, counted[some])


def rollup_errors(
    query_set: QuerySet, counted: Integers, releases: Sequence[SlotRelease]
) -> list[Floats]:
    """How far the rollups of a query are from the truth.

    Args:
        query_set: the query, alone.
        counted: true cells, shape (slots, cells).
        releases: of each of these slots, from slot 0 on.

    Returns:
        Mean squared errors of the outputs of each rollup: see :func:`squared_errors`.
    """
    (query,) = query_set.queries
    errors = []
    for cut, answers in zip(
        query.longer, times_of(query, query_set, releases, 0).values(), strict=True
    ):
        times = cut.numbers(np.arange(len(counted)))
        true = [counted[times == times[0] + number].sum(axis=0) for number in range(len(answers))]
        errors.append(_of_answers(query, answers, true))
    return errors


def _of_answers(query: Query, answers: Iterable[Answer], counted: Iterable[Integers]) -> Floats:
    """Mean squared error of each output, in its own unit: NaN where there is nothing to compare.

    Args:
        query: what was asked.
        answers: as they are released.
        counted: true cells of each.
    """
    errors = [
        (answer.values - answer_of(query, cells, np.zeros(len(cells))).values) ** 2
        for answer, cells in zip(answers, counted, strict=True)
    ]
    each = np.array(errors).reshape(-1, len(query.statistic.outputs))
    known = np.isfinite(each)
    total = np.where(known, each, 0).sum(axis=0)
    with np.errstate(invalid="ignore"):
        mean: Floats = total / known.sum(axis=0)
    return mean


def dropped_share(query: Query, sizes: npt.NDArray[np.int64], assumed: Assumed) -> float:
    """The fraction of events that contribution bounding drops, if all users have events alike.

    A query that counts a user once loses none by it.
    """
    if query.statistic.once:
        return 0.0
    slots, people = round(query.cut.mean), max(int(sizes.sum()), 1)
    return 1 - people * _kept_of_a_user(query, people, assumed) / (assumed.rate * slots)


def mean_count(query: Query, sizes: npt.NDArray[np.int64], assumed: Assumed) -> float:
    """The average count of a bin in a slot, of events or users that are kept."""
    people = max(int(sizes.sum()), 1)
    return people * _kept_of_a_user(query, people, assumed) / query.domain.bins


def _kept_of_a_user(query: Query, people: int, assumed: Assumed) -> float:
    """Events of a user that are kept in a slot, on average."""
    return _seen(assumed.rate / people, round(query.cut.mean), query.max_contributions)


def assumed_counts(
    query: Query,
    sizes: npt.NDArray[np.int64],
    assumed: Assumed,
    window: int,
    slots: int,
    random: np.random.Generator,
) -> Iterator[Integers]:
    """Draw a stream of a query: bounded histograms of one slot after the other.

    Args:
        query: what is asked.
        sizes: public number of users of each class, shape (K,).
        assumed: what is thought of the events.
        window: the longest, in slots of the query.
        slots: of the query.
        random: where they are drawn from: simulated, never noise of a release.

    Yields int64 of shape (K, cells).
    """
    measure, most = query.measure, query.max_contributions
    bins, people = len(measure.above), np.maximum(sizes, 1)
    everybody = most * people.sum()
    seen = _seen(assumed.rate / people.sum(), round(query.cut.mean), most) / most
    ranks = 1 / np.arange(1, bins + 1)
    usual = everybody * seen * ranks / ranks.sum()
    paths = _paths(assumed, window, slots, min(bins, _PATHS), random)
    numbers = _steps(query)
    chances = np.full(len(numbers), 1 / len(numbers))
    for path in paths:
        mean = usual * np.resize(path, bins)
        mean *= everybody / max(everybody, mean.sum())
        there = mean / everybody if assumed.chance is None else 1 - assumed.chance
        there = np.clip(there, _RARE, 1.0)
        by_class = people[:, None] / people.sum() * mean
        # Of whole users, whose number is right in total, each is there or not.
        users = np.diff(np.floor((by_class / there).cumsum() + 1e-9), prepend=0).astype(np.int64)
        events = random.binomial(users, np.broadcast_to(there, by_class.shape).reshape(-1))
        table = np.zeros((len(sizes), measure.size), np.int64)
        split = random.multinomial(events, chances)
        cell, number = np.nonzero(split)
        measure.add(cell, numbers[number], split[cell, number], table)
        yield table


def _paths(
    assumed: Assumed, window: int, slots: int, paths: int, random: np.random.Generator
) -> Floats:
    """Popularities in parts of what is usual, by slot: shape (slots, paths)."""
    drift, long_drift = assumed.drift, assumed.long_drift
    if long_drift is None or window == 1:
        spread, power = _WANDERS, 1.0
        lasts = max(1 - drift**2 / (2 * spread**2), 1e-12)
        time = math.inf if lasts == 1 else -1 / math.log(lasts)
    elif not long_drift:
        return np.ones((slots, paths))
    else:
        # Over a window half of what a popularity was is forgotten.
        spread, half = math.sqrt(math.log1p(long_drift**2)), math.log(2)
        ratio = 2 * half * (long_drift / max(drift, 1e-12)) ** 2
        power = min(max(math.log(ratio) / math.log(window), _ROUGH), _SMOOTH)
        time = window / half ** (1 / power)
    if not drift and long_drift is None:
        return np.ones((slots, paths))
    logs = spread * (_root(slots, time, power) @ random.standard_normal((slots, paths)))
    return np.exp(logs - spread**2 / 2)


@lru_cache(maxsize=8)
def _root(slots: int, time: float, power: float) -> Floats:
    """Cholesky factor of the covariance of a path, shape (slots, slots)."""
    apart = np.arange(slots)
    covariance = np.exp(-((apart / time) ** power))[np.abs(apart[:, None] - apart)]
    root: Floats = np.linalg.cholesky(covariance + 1e-8 * np.eye(slots))
    return root


def _steps(query: Query) -> npt.NDArray[np.int64]:
    """Steps that numbers are assumed to have: none is beyond the bounds."""
    statistic = query.statistic
    steps = query.measure.steps
    if statistic.column is None:
        return np.zeros(1, np.int64)
    if statistic.name == "quantiles":  # the first and the last one are of what is beyond
        return np.arange(1, steps - 1)
    return np.unique(np.linspace(0, steps - 3, _NUMBERS).astype(np.int64))


def _seen(chance: float, slots: int, most: int) -> float:
    """Events of a user that count in a slot of so many base slots, on average."""
    if chance >= 1:
        return min(chance * slots, most)
    total = 0.0
    for number in range(min(most, slots)):
        log = math.lgamma(slots + 1) - math.lgamma(number + 1) - math.lgamma(slots - number + 1)
        log += number * math.log(chance) + (slots - number) * math.log1p(-chance)
        total += (most - number) * math.exp(log)
    return min(most - total, chance * slots)
