"""What can be asked about the events of a slot: counts, sums, means, quantiles.

Each statistic cuts an event into parts. Where numbers are asked about, an event adds as much as any
other, wherever its number lies: that costs no more privacy than the largest number does, and all
parts together tell how many events there are.

- Sum and mean: part `down` is for the lower end of the range, part `up` for the upper one. A number
  at the share t of the way adds 1 - t to the first and t to the second. With a noise variance of v
  on each the mean has one of ((1 - t)**2 + t**2) v (range / events)**2 at the mean share t. A part
  of weight w for the events, beside a sum around the midpoint, gives (1 + w)**2 (2 +
  (2 t - 1)**2 / w**2) / 4 in place of (1 - t)**2 + t**2: 2.4 to 3.2 times as much with the weight
  that is best over all t, w**3 = 1 / 6.
- Variance: three parts, (1 - t)**2, 2 t (1 - t) and t**2, whose sums tell those of 1, t and t**2.
- Numbers outside the range count as the nearer bound, in parts of their own, `below` and `above`:
  these tell what clipping may hide.
- Quantiles: a part for each interval, and one each for what is below and above all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from itertools import pairwise
from numbers import Real
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.core.domains import Edges
from streamveil.mechanisms.core.identity import Form, Identified
from streamveil.mechanisms.core.parameter_checks import finite_number, whole
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.queries import answers
from streamveil.mechanisms.queries.answers import Answer, Bounds
from streamveil.mechanisms.queries.usual import Ratios, RatioSums, Usual, first

SCALE = 1024
"""Quanta across the range of a sum or a mean."""
SCALE_OF_SQUARES = 256
"""Quanta across the range of a variance, whose parts are in squares of them."""
INTERVALS = 32
"""Of quantiles between two bounds."""
MEDIAN = (0.5,)
"""Shares of quantiles, where none are given."""
MOST_INTERVALS = 1 << 10
"""Of quantiles: what each adds to is a table of their square."""
ANY_SHARE = 1 / 3
"""Variance of a share if any is as likely, in parts of the largest that it could have."""
WIDEST = 1e75
"""The widest range: the square of a variance is still a float."""

# Parts of a mean at the lower end of the range, the upper one, and beyond these.
_SIDES = np.array([0.0, 1.0, 0.0, 1.0])
# Of more edges than this a number's interval is found sooner by halving.
_EDGES_TO_COMPARE = 32
# Bounds are taken to be so many times as far from 0 as numbers on that side of it usually are.
_WITHIN = 5.0
# Numbers of which what is thought before anything is known is computed.
_THOUGHT = 1000


def _mean(counts: Floats, variances: Floats, shares: Floats) -> RatioSums:
    return RatioSums.of(counts, variances, _SIDES[:, None])


def _spread(counts: Floats, variances: Floats, shares: Floats) -> RatioSums:
    mean = np.broadcast_to(answers.HALVES[:, None], (*shares.shape, 1))
    squares = answers.squares(shares @ answers.HALVES)
    return RatioSums.of(counts, variances, np.concatenate([mean, squares], axis=2))


def _below(counts: Floats, variances: Floats, shares: Floats) -> RatioSums:
    return RatioSums.below(counts, variances)


class Statistic(Protocol):
    """How events become whole numbers, and an estimate of these a figure."""

    @property
    def name(self) -> str:
        """As in files of queries."""

    @property
    def column(self) -> str | None:
        """The column of numbers that is asked about; None where events are counted."""

    @property
    def once(self) -> bool:
        """Whether of a user's events in a slot and bin one alone counts."""

    @property
    def weights(self) -> Integers:
        """What an event of each step adds to each part: see :class:`measures.Measure`."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the figures of each node."""

    def steps(self, numbers: Floats) -> Integers:
        """Step of each of some finite numbers, shape (n,)."""

    @property
    def ratios(self) -> Ratios | None:
        """What figures are made of where they are ratios, which are pulled towards what is usual.

        None where they are no ratios.
        """

    @property
    def summed(self) -> bool:
        """Whether a figure is a sum of several parts, of which none may be cut off at 0."""

    def answer(self, counts: Floats, variances: Floats, usual: Usual | None = None) -> Answer:
        """The figures of a slot.

        Args:
            counts: estimate of each part, shape (nodes, parts).
            variances: of them, NaN where nothing is known.
            usual: of ratios what is known of the slots so far, with this one; without it, as if
                this one were the first.
        """

    def identity(self) -> bytes:
        """See `mechanisms/core/identity.py`."""


class _Counted(Identified):
    """Events are counted, whatever they say."""

    @property
    def column(self) -> None:
        """No column is read."""

    @property
    def ratios(self) -> None:
        """Reported unchanged, slot by slot."""
        return None

    @property
    def summed(self) -> bool:
        """There is one part."""
        return False

    @property
    def once(self) -> bool:
        """Each event counts."""
        return False

    @property
    def weights(self) -> Integers:
        """One for each event."""
        return np.ones((1, 1), np.int64)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The count."""
        return ("count",)

    def steps(self, numbers: Floats) -> Integers:
        """All alike."""
        return np.zeros(len(numbers), np.int64)

    def answer(self, counts: Floats, variances: Floats, usual: Usual | None = None) -> Answer:
        """The counts."""
        return answers.of_counts(self.outputs[0], counts, variances)


@dataclass(frozen=True)
class Count(_Counted):
    """How many events there are."""

    IDENTITY = Form("statistic count", ())

    @property
    def name(self) -> str:
        """As in files of queries."""
        return "count"


@dataclass(frozen=True)
class DistinctUsers(_Counted):
    """How many users have an event there: at most one of each counts in a slot and bin.

    How many bins of a slot a user counts in is up to `max_contributions` of the query.
    """

    IDENTITY = Form("statistic distinct", ())

    @property
    def name(self) -> str:
        """As in files of queries."""
        return "distinct"

    @property
    def once(self) -> bool:
        """A user's further events in the bin do not count."""
        return True

    @property
    def outputs(self) -> tuple[str, ...]:
        """The number of users."""
        return ("users",)


@dataclass(frozen=True)
class TopK(_Counted):
    """The bins with the most events, and how likely that order is the true one.

    Raises ConfigurationError for a k that is no whole number from 1 on.
    """

    IDENTITY = Form("statistic top", ("k",))

    k: int
    """Bins to be named."""

    def __post_init__(self) -> None:
        """Check k."""
        object.__setattr__(self, "k", whole("k", self.k))

    @property
    def name(self) -> str:
        """As in files of queries."""
        return "top"

    def answer(self, counts: Floats, variances: Floats, usual: Usual | None = None) -> Answer:
        """The counts, with ranks."""
        return self.among(len(counts), counts, variances)

    def among(self, bins: int, counts: Floats, variances: Floats) -> Answer:
        """The counts, with ranks for the first `bins` bins only."""
        return answers.of_top(self.outputs[0], counts, variances, self.k, bins)


class _Ratio:
    """Figures are ratios to events: these are pulled towards what is usual."""

    @property
    def summed(self) -> bool:
        """A ratio of what cannot be negative."""
        return False

    def answer(self, counts: Floats, variances: Floats, usual: Usual | None = None) -> Answer:
        """The figures of a slot: see :class:`Statistic`."""
        return self._beside(counts, variances, usual or first(counts, variances, self.ratios))

    @property
    def ratios(self) -> Ratios:
        """The ratios that figures are made of."""
        raise NotImplementedError

    def _beside(self, counts: Floats, variances: Floats, usual: Usual) -> Answer:
        raise NotImplementedError


@dataclass(frozen=True)
class _Bounded(Identified):
    """Numbers of a column count as the nearer bound where they are outside.

    Raises ConfigurationError for bounds that are no finite numbers, the lower one below the upper.
    """

    column: str
    """Of numbers."""
    lower: float
    upper: float
    """Public bounds; numbers beyond them count as they do."""

    def __post_init__(self) -> None:
        """Check the fields."""
        check_column(self.column)
        lower, upper = (finite(name, getattr(self, name)) for name in ("lower", "upper"))
        if not lower < upper:
            raise ConfigurationError(
                f"lower is {lower:g} and upper is {upper:g}: give a lower bound below the upper one"
            )
        if not 1 / WIDEST <= upper - lower <= WIDEST:
            near = "too close together" if upper - lower < 1 else "too far apart"
            raise ConfigurationError(
                f"lower is {lower:g} and upper is {upper:g}: they are {near} to compute with; give "
                "bounds that most numbers are between"
            )
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)

    @property
    def once(self) -> bool:
        """Each event counts."""
        return False

    @property
    def range(self) -> tuple[float, float]:
        """The numbers of the first and the last quantum."""
        return self.lower, self.upper

    @property
    def quanta(self) -> int:
        """How many lie between these."""
        return SCALE

    @property
    def weights(self) -> Integers:
        """Of each quantum, then of what is below and above the bounds."""
        raise NotImplementedError

    @cached_property
    def bounds(self) -> Bounds:
        """As answers need them."""
        low, high = self.range
        weights = self.weights
        event = float(weights[0].sum())
        before = weights[self.steps(before_any(self.lower, self.upper))].mean(axis=0) / event
        return Bounds(self.lower, self.upper, (high - low) / self.quanta, event, before)

    def steps(self, numbers: Floats) -> Integers:
        """Quanta from the first one; then the two steps of what is below and above the bounds."""
        low, high = self.range
        share = np.clip(numbers, self.lower, self.upper)
        share -= low
        share /= high - low
        share *= self.quanta
        steps = np.rint(share, out=share).astype(np.int64)
        steps[numbers < self.lower] = self.quanta + 1
        steps[numbers > self.upper] = self.quanta + 2
        return steps


class _Linear(_Bounded):
    """Parts `down`, `up`, `below` and `above`: see the module."""

    @property
    def weights(self) -> Integers:
        """Of each quantum, and of what is outside."""
        step = np.arange(SCALE + 1)
        inside = np.stack([SCALE - step, step], axis=1)
        return _with_outside(inside, SCALE)

    @property
    def ends(self) -> Floats:
        """The number that each part stands for."""
        return np.array([*self.range, self.lower, self.upper])

    @property
    def added_up(self) -> npt.NDArray[np.bool_]:
        """Parts that make up most of a figure: those of the numbers farthest from 0."""
        far = np.abs(self.ends)
        return np.asarray(2 * far > far.max())


@dataclass(frozen=True)
class Sum(_Linear):
    """The sum of a column's numbers. Its range reaches to 0: what adds nothing costs nothing."""

    IDENTITY = Form("statistic sum", ("column", "lower", "upper"))

    @property
    def name(self) -> str:
        """As in files of queries."""
        return "sum"

    @property
    def ratios(self) -> None:
        """A sum of nothing is 0."""
        return None

    @property
    def summed(self) -> bool:
        """Of what numbers add at both ends of the range and beyond them."""
        return True

    @property
    def outputs(self) -> tuple[str, ...]:
        """The sum."""
        return ("sum",)

    @property
    def range(self) -> tuple[float, float]:
        """With 0."""
        return min(self.lower, 0.0), max(self.upper, 0.0)

    def answer(self, counts: Floats, variances: Floats, usual: Usual | None = None) -> Answer:
        """The sum."""
        return answers.of_sum("sum", counts, variances, self.ends, self.bounds)


@dataclass(frozen=True)
class Mean(_Ratio, _Linear):
    """The mean of a column's numbers."""

    IDENTITY = Form("statistic mean", ("column", "lower", "upper"))

    @property
    def name(self) -> str:
        """As in files of queries."""
        return "mean"

    @property
    def outputs(self) -> tuple[str, ...]:
        """The mean."""
        return ("mean",)

    @property
    def ratios(self) -> Ratios:
        """The mean."""
        return Ratios(_mean)

    def _beside(self, counts: Floats, variances: Floats, usual: Usual) -> Answer:
        return answers.of_mean("mean", counts, variances, _SIDES, self.bounds, usual)


class _Squared(_Bounded):
    """Parts `down`, `between`, `up`, `below` and `above`: see the module."""

    @property
    def ratios(self) -> Ratios:
        """The mean, and the mean squared distance from it."""
        return Ratios(_spread)

    @property
    def quanta(self) -> int:
        """Their squares must not become too large."""
        return SCALE_OF_SQUARES

    @property
    def weights(self) -> Integers:
        """Of each quantum, and of what is outside: squares, so that nothing is rounded."""
        up = np.arange(SCALE_OF_SQUARES + 1)
        down = SCALE_OF_SQUARES - up
        return _with_outside(np.stack([down**2, 2 * down * up, up**2], axis=1), SCALE_OF_SQUARES**2)


@dataclass(frozen=True)
class Variance(_Squared, _Ratio):
    """The mean squared distance of a column's numbers from their mean, of all events."""

    IDENTITY = Form("statistic variance", ("column", "lower", "upper"))

    @property
    def name(self) -> str:
        """As in files of queries."""
        return "variance"

    @property
    def outputs(self) -> tuple[str, ...]:
        """The variance."""
        return ("variance",)

    def _beside(self, counts: Floats, variances: Floats, usual: Usual) -> Answer:
        return answers.of_variance("variance", counts, variances, self.bounds, usual)


@dataclass(frozen=True)
class StandardDeviation(_Squared, _Ratio):
    """The square root of the variance."""

    IDENTITY = Form("statistic stddev", ("column", "lower", "upper"))

    @property
    def name(self) -> str:
        """As in files of queries."""
        return "stddev"

    @property
    def outputs(self) -> tuple[str, ...]:
        """The standard deviation."""
        return ("stddev",)

    def _beside(self, counts: Floats, variances: Floats, usual: Usual) -> Answer:
        return answers.of_variance("stddev", counts, variances, self.bounds, usual, root=True)


@dataclass(frozen=True)
class Quantiles(_Ratio, Identified):
    """Numbers below which given shares of a column's numbers lie.

    Raises ConfigurationError for edges that are not two or more rising finite numbers, or quantiles
    that are not one or more different numbers between 0 and 1.
    """

    IDENTITY = Form("statistic quantiles", ("column", "edges", "quantiles"))

    column: str
    """Of numbers."""
    edges: tuple[float, ...]
    """Of the intervals in which numbers are counted, one more than there are; the last interval
    holds its upper edge, too."""
    quantiles: tuple[float, ...] = MEDIAN
    """The shares."""

    def __post_init__(self) -> None:
        """Check the fields."""
        check_column(self.column)
        object.__setattr__(self, "edges", Edges(self.edges).edges)
        _check_intervals(len(self.edges) - 1)
        for low, high in pairwise(self.edges):
            if not 1 / WIDEST <= high - low <= WIDEST:
                near = "too close together" if high - low < 1 else "too far apart"
                raise ConfigurationError(
                    f"edges {low:g} and {high:g} are {near} to compute with: leave one out"
                )
        asked: Any = self.quantiles
        if isinstance(asked, (int, float)):
            asked = (asked,)
        if isinstance(asked, str) or not isinstance(asked, Iterable):
            raise ConfigurationError(f"quantiles are {asked!r}: list numbers between 0 and 1")
        shares = tuple(finite("quantile", share) for share in asked)
        if not shares:
            raise ConfigurationError("quantiles are empty: list at least one, such as 0.5")
        for share in shares:
            if not 0 < share < 1:
                raise ConfigurationError(
                    f"quantile {share:g} is not between 0 and 1: write 0.95 for 95 %"
                )
        object.__setattr__(self, "quantiles", shares)
        for share, name in zip(shares, self.outputs, strict=True):
            if self.outputs.count(name) > 1:
                raise ConfigurationError(
                    f"quantile {share:g} is listed twice, as {name}: list it once"
                )

    @property
    def name(self) -> str:
        """As in files of queries."""
        return "quantiles"

    @property
    def once(self) -> bool:
        """Each event counts."""
        return False

    @property
    def weights(self) -> Integers:
        """One for each event, in the part of its interval: below, the intervals, above."""
        return np.eye(len(self.edges) + 1, dtype=np.int64)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Such as p50 and p99.9."""
        return tuple(f"p{100 * share:.10g}" for share in self.quantiles)

    def steps(self, numbers: Floats) -> Integers:
        """The interval of each."""
        edges = np.array(self.edges)
        if len(edges) <= _EDGES_TO_COMPARE:
            passed = np.zeros(len(numbers), np.uint8)
            for edge in edges:
                passed += numbers >= edge
            steps: Integers = passed.astype(np.int64)
        else:
            steps = np.searchsorted(edges, numbers, side="right").astype(np.int64)
        steps[numbers == edges[-1]] -= 1
        return steps

    @property
    def ratios(self) -> Ratios:
        """Shares of events below edges."""
        return Ratios(_below, 1.0, ANY_SHARE)

    def _beside(self, counts: Floats, variances: Floats, usual: Usual) -> Answer:
        edges, quantiles = np.array(self.edges), np.array(self.quantiles)
        # Edges are put where numbers are expected. That numbers lie evenly between the outer ones
        # would put nearly all into the last of intervals that are spaced on a logarithmic scale.
        before = np.arange(1, len(edges) + 1) / (len(edges) + 1)
        return answers.of_quantiles(
            self.outputs, counts, variances, edges, quantiles, before, usual
        )


def before_any(lower: float, upper: float) -> Floats:
    """Numbers that are thought of before anything is known, but for their bounds, shape (n,).

    Where 0 is between the bounds, numbers on each side of it follow an exponential distribution,
    and the bounds are chosen so that few are beyond them; else they are anywhere between.
    """
    shares = (np.arange(_THOUGHT) + 0.5) / _THOUGHT
    if not lower <= 0 <= upper:
        return lower + (upper - lower) * shares
    far = -np.log(shares) / _WITHIN
    sides = [end * far for end in (lower, upper) if end]
    return np.clip(np.concatenate(sides), lower, upper)


def even_edges(lower: float, upper: float) -> tuple[float, ...]:
    """Edges of `INTERVALS` intervals between two bounds, all equally wide."""
    return tuple(np.linspace(lower, upper, INTERVALS + 1).tolist())


def log_edges(lower: float, upper: float, intervals: int) -> tuple[float, ...]:
    """Edges of intervals each of which is wider than the one before by the same factor.

    Raises ConfigurationError unless 0 < lower < upper and there is an interval.
    """
    lower, upper = finite("lower", lower), finite("upper", upper)
    if not 0 < lower < upper:
        raise ConfigurationError(
            f"log-spaced edges from {lower:g} to {upper:g}: give 0 < lower < upper, or list edges"
        )
    _check_intervals(whole("intervals", intervals))
    edges = np.geomspace(lower, upper, intervals + 1)
    edges[0], edges[-1] = lower, upper
    return Edges(tuple(edges.tolist())).edges


def _check_intervals(intervals: int) -> None:
    if intervals > MOST_INTERVALS:
        raise ConfigurationError(
            f"there are {intervals:,} intervals, and each takes noise of its own: give at most "
            f"{MOST_INTERVALS:,}"
        )


def check_column(column: Any) -> None:
    """Refuse what names no column. Raises ConfigurationError."""
    if not isinstance(column, str) or not column:
        raise ConfigurationError(f"column is {column!r}: name the column of numbers")


def finite(name: str, value: Any) -> float:
    """A finite number. Raises ConfigurationError."""
    number = finite_number(value)
    if number is None:
        number_like = isinstance(value, (Real, Decimal)) and not isinstance(value, bool)
        kind = "finite number" if number_like else "number"
        raise ConfigurationError(f"{name} is {value!r}: give a {kind}")
    return number


def _with_outside(inside: Integers, whole_event: int) -> Integers:
    """Weights with two more steps and parts, for what is below and above the bounds."""
    steps, parts = inside.shape
    weights = np.zeros((steps + 2, parts + 2), np.int64)
    weights[:steps, :parts] = inside
    weights[steps, parts] = weights[steps + 1, parts + 1] = whole_event
    return weights
