"""A statistic from its released parts: a value, its standard error and an interval of 90 %.

All of this is post-processing: floats are fine. The errors of the parts of a node are assumed to be
independent, except for the parts on one side of a quantile. Means and variances are shrunk towards
the prior of their node (`usual.py`), which also gives their errors. If nothing is known, the
interval covers nearly all values between the bounds.

The effect of clamping is extrapolated. Events outside the bounds have parts of their own, so their
share is known. How far outside they are is not known. It is taken from the exponential distribution
with this mean and this share outside the bound. Tails may be heavier, so the standard error of the
extrapolation is as large as the extrapolation itself. For a variance, more is known: the spread of
the numbers inside the bounds. So lighter and heavier tails are weighted by how well they fit to
this spread, and the standard error is the difference between them.

Values are those of clamped numbers, but standard errors and intervals are about the numbers without
clamping. An interval contains its value. If most of the probability is then on one side of the
value, the interval lies on that side. A quantile is the median of its distribution, as if it were
hardly ever outside the edges. Its interval contains the points where the share of events below
differs from the quantile by less than the error of this share. Quantiles outside the first or last
edge are reported as that edge, with a note. Their intervals reach outside, into a tail as steep as
the outer interval. Between edges, events are assumed to follow a smooth curve, as far as the shares
at the edges do. As far as they do not, the distance of the curve from a straight line is added to
the error, and events may be anywhere between the edges.

Sources: J. Pickands, "Statistical inference using extreme order statistics" (1975), of tails; R. S.
Woodruff, "Confidence intervals for medians and other position measures" (1952).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Flags, Floats, Integers
from streamveil.mechanisms.core.tidy import NINETY_PERCENT
from streamveil.mechanisms.queries.usual import Shifts, Usual

UNKNOWN = "nothing is known yet"
EMPTY = "no events to speak of"
FEW = "so few events, or none, that the noise may be as large as their number"
BEYOND = "beyond the edges"
TAILS = "about {} of the numbers are beyond the bounds: wrong if they are far beyond"
MAYBE = "up to {} of the numbers may be beyond the bounds: wrong if they are far beyond"

# Places of the parts of a variance: down, between, up, below and above.
HALVES = np.array([0, 0.5, 1, 0, 1])
# From this share on, a note says that numbers may be outside the bounds, by an unknown distance.
NEGLIGIBLE = 0.005
# With fewer events, there is no ratio.
LEAST_EVENTS = 0.5
# Standard deviation of how far outside a bound numbers are, as a fraction of the extrapolation:
# tails may be heavier than exponential ones, or bounded.
DOUBT = 1.0
# Standard deviation of how far apart numbers within a bound are, in parts of that, beside what the
# tail beyond it would tell if all had its shape: 0.05 of distributions with one tail, and 0.26 of
# those with two.
BODIES = 0.1
# Standard deviation of where in an interval its median is, in parts of its width, if it held all.
SHAPELESS = 0.19
# Standard deviation of whole numbers around what a curve tells, which edges halfway between them
# are put for.
WHOLE = 12**-0.5
# How likely a quantile is beyond the edges, in parts of what shares below these tell alone: edges
# are put where numbers are expected.
OUTSIDE = 0.1
# As many edges count as much as that, when the edges of a query tell how smooth numbers are: it
# is thought of one interval, and an edge tells of two.
THOUGHT = 0.5
# How many times its scale a tail begins above the mean at least, however much is beyond the bound.
LEAST_STEEP = 0.5
_TINY = 1e-12
# Shapes of tails, from bounded ones to those beyond which the largest number is most of what is
# hidden; none is 0, by which would be divided.
_SHAPES = np.linspace(-0.25, 1 / 3, 16)
# Share of slots in which a number may lie farther out than is reckoned with, and points of the way
# there, by logs of the share that is beyond them.
RARE = 0.05
_PASSED = (np.arange(32) + 0.5) / 32
_NORMAL = NormalDist()
# Of an interval that begins so many standard deviations below its middle: how many it must reach
# beyond it to hold 90 %.
_BEGINS = np.linspace(NINETY_PERCENT, 6.0, 50)
_ENDS = np.array([_NORMAL.inv_cdf(0.9 + _NORMAL.cdf(-begin)) for begin in _BEGINS])
# The least share of events, and standard error of one, that is computed with.
_LEAST_SHARE, _LEAST_SPREAD = 1e-12, 1e-9
# Distances at which tails are drawn, in parts of that over which they fall to a part in e; and the
# least by which logs of shares must fall over an interval to tell that.
_TAIL, _STEADY = np.linspace(0.1, 12.0, 60), 0.1
# Points of an interval at which a curve through its edges is drawn.
_FINE = 16
# Of a normal distribution: standard deviations from the middle, and what is there and below.
_SPAN = 8.0
_AWAY = np.linspace(-_SPAN, _SPAN, 801)
_SHARE_BELOW = np.array([_NORMAL.cdf(away) for away in _AWAY])
_WEIGHTS = np.exp(-(_AWAY**2) / 2) / np.exp(-(_AWAY**2) / 2).sum()


@dataclass(frozen=True, eq=False)
class Answer:
    """Figures of one slot: arrays of shape (nodes, outputs)."""

    outputs: tuple[str, ...]
    """Names of the figures, such as p50 and p95."""
    values: Floats
    """NaN where there is none; of numbers that are clipped to their bounds, where they have any."""
    stderr: Floats
    """Expected standard error, with that of rounding to quanta and of clipping; NaN: not known."""
    low: Floats
    """Lower end of the interval of 90 %."""
    high: Floats
    """Upper end."""
    clipping: Floats
    """By how much the figure would be larger without the bounds, as far as can be known."""
    notes: npt.NDArray[np.str_]
    """What is to be said of a figure in words, or nothing."""
    ranks: Integers | None = None
    """Of top k: 1 for the largest, 0 for those that are not among the k; shape (nodes,)."""
    chances: Floats | None = None
    """Of top k: that those before it are larger and those after it smaller, shape (nodes,)."""
    order: float | None = None
    """Of top k: the chance that the k are these, in this order."""


def with_common_error(found: Answer, common: float) -> Answer:
    """Figures that are sums, all of which were scaled by a factor with this relative error."""
    if not common:
        return found
    more = np.square(found.values * common)
    low, high = (
        found.values + side * np.sqrt(np.square(found.values - end) + NINETY_PERCENT**2 * more)
        for side, end in ((-1, found.low), (1, found.high))
    )
    return replace(found, stderr=np.sqrt(np.square(found.stderr) + more), low=low, high=high)


@dataclass(frozen=True, eq=False)
class Bounds:
    """Where the parts of numbers are."""

    lower: float
    upper: float
    """Numbers are clipped to these."""
    quantum: float
    """Numbers are rounded to multiples of it."""
    whole: float
    """What an event adds to all parts together."""
    before: Floats
    """Share of each part before anything is known, shape (parts,)."""


class _Marks(NamedTuple):
    """What is to be said of a node in words, arrays of shape (nodes,); the first that holds is."""

    unknown: Flags
    empty: Flags
    """There are no events."""
    few: Flags
    """There are so few events that they may be none."""


@dataclass(frozen=True, eq=False)
class _Tails:
    """What is thought to be below and above the bounds; arrays of shape (nodes, 2)."""

    share: Floats
    """Of the events."""
    excess: Floats
    """Mean distance from the bound."""
    distance: Floats
    """Of the bound from the mean."""
    error: Floats
    """Standard error of the share."""
    events: Floats
    """Of which this is a share, (nodes, 1)."""

    @property
    def shift(self) -> Floats:
        """Of the mean, shape (nodes,)."""
        moved: Floats = (self.share * self.excess) @ np.array([-1.0, 1.0])
        return moved

    @property
    def notes(self) -> npt.NDArray[np.str_]:
        """What is to be said of numbers beyond the bounds, or nothing: shape (nodes,)."""
        share, error = self.share.sum(axis=1), np.sqrt((self.error**2).sum(axis=1))
        least, most = share - NINETY_PERCENT * error, share + NINETY_PERCENT * error
        words = [
            [text.format(_percent(part)) for part in parts.tolist()]
            for text, parts in ((TAILS, share), (MAYBE, most))
        ]
        sure, may_be = (least > 0) & (share >= NEGLIGIBLE), most >= NEGLIGIBLE
        return np.select([sure, may_be], [np.array(one, str) for one in words], "")

    @property
    def doubt_of_mean(self) -> Floats:
        """Variance of `shift`."""
        model = (DOUBT * self.share * self.excess) ** 2
        single = self.share * 2 * self.excess**2 / self.events
        return np.asarray(((self.error * self.excess) ** 2 + model + single).sum(axis=1))

    def spread(self, variance: Floats, noise: Floats) -> tuple[Floats, Floats]:
        """What is missing to the mean squared distance from the mean, and the variance of that.

        Tails are generalized Pareto distributions of many shapes, each as likely as `_likely` says.

        Args:
            variance: of numbers within the bounds, shape (nodes,).
            noise: variance of that.
        """
        likely, begins = self._likely(variance, noise)
        near, fallen = self.distance[..., None], -np.log(_some(self.share))[..., None]
        scale = near / begins * np.exp(_SHAPES * fallen)
        each = 2 * scale / (1 - _SHAPES) * (near + scale / (1 - 2 * _SHAPES))
        known = (likely * each).sum(axis=-1)
        shape = (likely * (each - known[..., None]) ** 2).sum(axis=-1)
        # Of single numbers, but for those farther out than one slot in twenty has any.
        most = np.log(np.maximum(self.share * self.events, 1.0) / RARE)[..., None, None]
        passed = most * _PASSED
        far = scale[..., None] * np.expm1(_SHAPES[:, None] * passed) / _SHAPES[:, None]
        squares = (far * (2 * near[..., None] + far)) ** 2 * np.exp(-passed)
        single = (likely * (squares.mean(axis=-1) * most[..., 0])).sum(axis=-1)
        doubt = (self.error * known) ** 2 + self.share**2 * shape
        doubt += self.share * single / self.events
        return (self.share * known).sum(axis=1) - self.shift**2, doubt.sum(axis=1)

    def _likely(self, variance: Floats, noise: Floats) -> tuple[Floats, Floats]:
        """How likely shapes are, and `begins` of `_within`: both (nodes, 2, shapes).

        If all numbers had one, mean and share beyond the bound would tell how far apart those
        within it are: the nearer that is to how far they are, the likelier it is.
        """
        away, begins = _within(self.share)
        seen = self.distance / np.sqrt(np.maximum(variance, _TINY))[:, None]
        part = noise / np.maximum(4 * variance**2, _TINY)
        unsure = _within(self.share + self.error)[0] - away
        error = unsure**2 + (seen**2 * (BODIES**2 + part[:, None]))[..., None]
        apart = (away - seen[..., None]) ** 2 / np.maximum(error, _TINY)
        likely = np.exp((apart.min(axis=-1, keepdims=True) - apart) / 2)
        return likely / likely.sum(axis=-1, keepdims=True), begins


def _percent(share: float) -> str:
    """Of one digit, such as 4 % or 0.5 %."""
    return f"{float(f'{100 * min(share, 1.0):.1g}'):g} %"


def _some(share: Floats) -> Floats:
    """Of events beyond a bound, where a tail is begun there."""
    return np.clip(share, _TINY, np.exp(-1 - LEAST_STEEP))


def _within(share: Floats) -> tuple[Floats, Floats]:
    """How far a bound is from the mean of the numbers within it, if tails have these shapes.

    Args:
        share: beyond it.

    Returns that in their standard deviations, and in scales of where the tail begins, both of the
    shape of `share` with a further dimension for `_SHAPES`.
    """
    fallen = -np.log(_some(share))[..., None]
    mean, twice = (np.expm1(power * fallen) / power for power in (_SHAPES - 1, 2 * _SHAPES - 1))
    begins = np.expm1(_SHAPES * fallen) / _SHAPES - mean
    return begins / np.sqrt(2 * (twice - mean) / _SHAPES - mean**2), begins


def of_counts(output: str, counts: Floats, variances: Floats) -> Answer:
    """The counts themselves, of shape (nodes, 1); neither end of their intervals is below 0."""
    found = _answer(output, counts[:, 0], variances[:, 0])
    return replace(found, low=np.maximum(found.low, 0.0), high=np.maximum(found.high, 0.0))


def of_sum(output: str, counts: Floats, variances: Floats, ends: Floats, bounds: Bounds) -> Answer:
    """A sum.

    Args:
        output: its name.
        counts: parts, shape (nodes, parts); those of what is below and above the bounds are last.
        variances: of them.
        ends: number that a part stands for, shape (parts,).
        bounds: where parts are.
    """
    events = np.maximum(counts.sum(axis=1), 0.0) / bounds.whole
    variance = variances @ ends**2 / bounds.whole**2 + (events * bounds.quantum) ** 2 / 12
    value = counts @ ends / bounds.whole
    place = value / np.maximum(events, LEAST_EVENTS)
    tails = _tails(counts, variances, np.clip(place, bounds.lower, bounds.upper), bounds)
    bias, doubt = tails.shift * events, tails.doubt_of_mean * events**2
    found = _answer(output, value, variance, clipping=bias, doubt=doubt, more=tails.notes)
    # No sum of numbers from 0 on is below 0, whatever noise says, and none of others above it.
    least, most = (0.0 if bounds.lower >= 0 else -np.inf), (0.0 if bounds.upper <= 0 else np.inf)
    values, low, high = (np.clip(one, least, most) for one in (found.values, found.low, found.high))
    return replace(found, values=values, low=low, high=high)


def of_mean(
    output: str, counts: Floats, variances: Floats, each: Floats, bounds: Bounds, usual: Usual
) -> Answer:
    """A mean, pulled towards what is usual.

    Args:
        output: its name.
        counts: parts, shape (nodes, parts); those of what is below and above the bounds are last.
        variances: of them.
        each: share of the range that a part stands for, shape (parts,).
        bounds: where parts are.
        usual: of the slots so far, this one among them.
    """
    width = bounds.upper - bounds.lower
    share, variance = _pulled(usual, counts, variances, each[:, None], bounds)
    value = bounds.lower + width * share
    tails = _tails(counts, variances, value, bounds, usual)
    return _answer(
        output,
        value,
        width**2 * variance + bounds.quantum**2 / 12,
        clipping=tails.shift,
        doubt=tails.doubt_of_mean,
        more=tails.notes,
        possible=(bounds.lower, bounds.upper),
        marks=_marks(counts, variances, bounds.whole),
    )


def of_variance(
    output: str,
    counts: Floats,
    variances: Floats,
    bounds: Bounds,
    usual: Usual,
    *,
    root: bool = False,
) -> Answer:
    """A variance, or its root: parts are down, between, up, below and above. See `of_mean`."""
    width = bounds.upper - bounds.lower
    halves = HALVES[:, None]
    mean, error = _pulled(usual, counts, variances, halves, bounds)
    place = bounds.lower + width * mean
    before = np.tensordot(bounds.before, halves, (0, 0))
    expected, apart = (one[:, 0] for one in usual.expected(halves, before, bounds.whole))
    # Around the mean of this slot those of all lie further apart than around their own: by how far
    # it is from theirs, and by how far these are from each other.
    further = 4 * ((mean - expected) ** 2 + apart)[:, None]
    # The noise of the slot is in its mean, too, which follows it: measured distances are too small.
    nearer = 4 * error[:, None]
    share, variance = _pulled(usual, counts, variances, squares(mean), bounds, 1, (further, nearer))
    most = width**2 / 4
    means, noise = most * share, most**2 * variance + (bounds.quantum**2 / 12) ** 2
    tails = _tails(counts, variances, place, bounds, usual)
    hidden, doubt = tails.spread(means, noise)
    found = _answer(
        output,
        means,
        noise,
        clipping=hidden,
        doubt=doubt,
        more=tails.notes,
        possible=(0.0, most),
        marks=_marks(counts, variances, bounds.whole),
    )
    found = replace(found, low=np.maximum(found.low, 0.0))
    return _root(found) if root else found


def squares(mean: Floats) -> Floats:
    """What an event in each part adds to the squared distance from means, of the most it can be.

    Args:
        mean: of each node, as a share of the range, shape (nodes,).

    Returns an array of shape (nodes, parts, 1).
    """
    at = mean[:, None]
    down, between, up = 4 * at**2, 4 * (at**2 - at), 4 * (1 - at) ** 2
    return np.stack([down, between, up, down, up], axis=1)


def of_quantiles(
    outputs: tuple[str, ...],
    counts: Floats,
    variances: Floats,
    edges: Floats,
    quantiles: Floats,
    before: Floats,
    usual: Usual,
) -> Answer:
    """Quantiles, pulled towards what is usual.

    Args:
        outputs: their names.
        counts: below the edges, in each interval between them, and above them: (nodes, parts).
        variances: of them.
        edges: rising.
        quantiles: shares of events.
        before: share below each edge before anything is known.
        usual: of the slots so far, this one among them.
    """
    below, doubt = usual.below(counts, variances, before)
    # Noise may make intervals negative: half way between the curves that never fall.
    up = np.maximum.accumulate(below, axis=1)
    down = np.minimum.accumulate(below[:, ::-1], axis=1)[:, ::-1]
    curve, spread = (up + down) / 2, np.sqrt(np.maximum(doubt, 0.0))
    rough = _rough(curve, spread, edges)
    events = np.maximum(counts.sum(axis=1), LEAST_EVENTS)
    marks = _marks(counts, variances, 1.0)
    answers = [
        _quantile(output, curve, spread, rough, events, marks, edges, float(quantile))
        for output, quantile in zip(outputs, quantiles, strict=True)
    ]
    names = ("values", "stderr", "low", "high", "clipping", "notes")
    values, stderr, low, high, clipping, notes = (
        np.hstack([getattr(one, name) for one in answers]) for name in names
    )
    order = np.argsort(quantiles)
    for one in (values, low, high):
        one[:, order] = np.maximum.accumulate(one[:, order], axis=1)
    return Answer(outputs, values, stderr, low, high, clipping, notes)


def of_top(output: str, counts: Floats, variances: Floats, k: int, ranked: int) -> Answer:
    """The k nodes with the largest counts, and how likely they are.

    Args:
        output: name of the counts.
        counts: of all nodes, shape (nodes, 1).
        variances: of the same shape, NaN where nothing is known.
        k: the largest number of nodes that get a rank.
        ranked: number of the nodes, from the first one, that can get a rank.
    """
    found = of_counts(output, counts, variances)
    means = np.nan_to_num(counts[:, 0])
    spreads = np.sqrt(np.maximum(np.nan_to_num(variances[:, 0], nan=np.inf), _TINY))
    order = np.argsort(-means[:ranked], kind="stable")
    first, rest = order[:k], order[k:]
    ranks = np.zeros(len(means), np.int64)
    ranks[first] = np.arange(1, len(first) + 1)
    chances, together = np.full(len(means), np.nan), np.nan
    if ranked and np.isfinite(spreads[:ranked]).all():
        together = _chance_of_order(means, spreads, first, rest)
        for place, node in enumerate(first):
            chances[node] = _chance_of_place(means, spreads, order, place)
    return replace(found, ranks=ranks, chances=chances, order=together)


def _answer(
    output: str,
    value: Floats,
    variance: Floats,
    *,
    clipping: Floats | None = None,
    doubt: Floats | float = 0.0,
    more: npt.NDArray[np.str_] | str = "",
    possible: tuple[float, float] = (-np.inf, np.inf),
    marks: _Marks | None = None,
) -> Answer:
    """One figure of all nodes; all arrays have shape (nodes,).

    Args:
        output: its name.
        value: of clipped numbers.
        variance: of it.
        clipping: what is missing to the figure without bounds.
        doubt: variance of that.
        more: what else is to be said of the figures.
        possible: the least and the most that clipped numbers can have.
        marks: where nothing is known, and there are no or few events; never for what is 0 then,
            which is published even where its error is not known.
    """
    clipping = np.zeros_like(value) if clipping is None else clipping
    unknown = np.isnan(variance)
    nowhere = np.zeros_like(unknown)
    said = marks or _Marks(unknown, nowhere, nowhere)
    half = NINETY_PERCENT * np.sqrt(variance)
    down, up = (np.minimum(half, np.abs(end - value)) for end in possible)
    beyond = NINETY_PERCENT**2 * doubt
    low, high = _interval(value, np.sqrt(down**2 + beyond), np.sqrt(up**2 + beyond), clipping)
    stderr = np.sqrt(variance + clipping**2 + doubt)
    notes = np.select([*said], [UNKNOWN, EMPTY, FEW], np.broadcast_to(more, value.shape))
    missing = said.empty | said.unknown if marks else nowhere
    return _masked(output, (value, stderr, low, high, clipping), missing, notes)


def _masked(
    output: str, figures: Sequence[Floats], missing: Flags, notes: npt.NDArray[np.str_]
) -> Answer:
    """One figure of all nodes, those of `Answer` in order: nothing where it is missing."""
    values, stderr, low, high, clipping = (
        np.where(missing, np.nan, one)[:, None] for one in figures
    )
    return Answer((output,), values, stderr, low, high, clipping, notes[:, None])


def _interval(value: Floats, down: Floats, up: Floats, shift: Floats) -> tuple[Floats, Floats]:
    """Around value + shift, from `down` below it to `up` above, but with the value in it."""
    toward = np.where(shift > 0, down, up) / NINETY_PERCENT
    begins = np.abs(shift) / np.maximum(toward, _TINY)
    part = np.interp(begins, _BEGINS, _ENDS) / NINETY_PERCENT
    low = np.minimum(value + shift - np.where(shift < 0, part, 1.0) * down, value)
    high = np.maximum(value + shift + np.where(shift > 0, part, 1.0) * up, value)
    return low, high


def _pulled(
    usual: Usual,
    counts: Floats,
    variances: Floats,
    each: Floats,
    bounds: Bounds,
    number: int = 0,
    shifts: Shifts = (0.0, 0.0),
) -> tuple[Floats, Floats]:
    """A ratio to events, and its variance, (nodes,): see :meth:`Usual.pulled`."""
    before = np.tensordot(bounds.before, each, (0, each.ndim - 2))
    value, variance = usual.pulled(counts, variances, each, before, bounds.whole, number, shifts)
    return value[:, 0], variance[:, 0]


def _marks(counts: Floats, variances: Floats, whole: float) -> _Marks:
    """What is to be said of parts to which an event adds so much in all."""
    total, error = counts.sum(axis=1), np.sqrt(variances.sum(axis=1))
    most = total + NINETY_PERCENT * error
    return _Marks(np.isnan(error), most < LEAST_EVENTS * whole, most >= 2 * total)


def _tails(
    counts: Floats, variances: Floats, mean: Floats, bounds: Bounds, usual: Usual | None = None
) -> _Tails:
    """What is beyond the bounds, (nodes,) being the means."""
    events = np.maximum(counts.sum(axis=1, keepdims=True) / bounds.whole, LEAST_EVENTS)
    share, error = (
        _own_shares(counts, variances, bounds)
        if usual is None
        else _usual_shares(counts, variances, bounds, usual)
    )
    distance = np.abs(np.array([bounds.lower, bounds.upper]) - mean[:, None])
    steep = np.maximum(-np.log(np.maximum(share, _TINY)) - 1, LEAST_STEEP)
    return _Tails(share, distance / steep, distance, error, events)


def _usual_shares(
    counts: Floats, variances: Floats, bounds: Bounds, usual: Usual
) -> tuple[Floats, Floats]:
    """Of events below and above the bounds, and standard errors: pulled as figures are."""
    parts = np.eye(counts.shape[1])[-2:, :, None]
    found = [_pulled(usual, counts, variances, each, bounds) for each in parts]
    share, variance = (np.stack(one, axis=1) for one in zip(*found, strict=True))
    return share, np.sqrt(np.maximum(variance, 0.0))


def _own_shares(counts: Floats, variances: Floats, bounds: Bounds) -> tuple[Floats, Floats]:
    """The same where nothing is usual.

    The share of a node is believed as far as its error allows; the rest is the share of all nodes.
    """
    total = np.maximum(counts.sum(axis=1), LEAST_EVENTS * bounds.whole)[:, None]
    own, error = np.maximum(counts[:, -2:], 0.0) / total, variances[:, -2:] / total**2
    every = np.maximum(counts[:, -2:], 0.0).sum(axis=0) / total.sum()
    belief = (
        every**2 / np.maximum(every**2 + error, _TINY) if len(counts) > 1 else np.ones_like(own)
    )
    share = np.clip(belief * own + (1 - belief) * every, 0.0, 1.0)
    return share, np.sqrt(belief * error)


def _root(found: Answer) -> Answer:
    """The same of the square root of a figure that is never below 0."""
    value = np.sqrt(found.values)
    low, high = (np.sqrt(np.maximum(end, 0.0)) for end in (found.low, found.high))
    clipping = np.sqrt(np.maximum(found.values + found.clipping, 0.0)) - value
    most, least = found.values + found.stderr, np.maximum(found.values - found.stderr, 0.0)
    stderr = (np.sqrt(most) - np.sqrt(least)) / 2
    return Answer(found.outputs, value, stderr, low, high, clipping, found.notes)


def _quantile(
    output: str,
    curve: Floats,
    spread: Floats,
    rough: Floats,
    events: Floats,
    marks: _Marks,
    edges: Floats,
    quantile: float,
) -> Answer:
    """One quantile of all nodes: see `_between`."""
    nodes = zip(curve, spread, rough.tolist(), events.tolist(), strict=True)
    found = [_between(*node, edges, quantile) for node in nodes]
    value, low, high = np.array(found).T
    outside = (quantile < curve[:, 0]) | (quantile > curve[:, -1])
    stderr = (high - low) / (2 * NINETY_PERCENT)
    clipping = np.where(outside, np.nan, 0.0)
    notes = np.select([*marks, outside], [UNKNOWN, EMPTY, FEW, BEYOND], "")
    missing = marks.unknown | marks.empty
    return _masked(output, (value, stderr, low, high, clipping), missing, notes)


def _between(
    curve: Floats, spread: Floats, rough: float, events: float, edges: Floats, quantile: float
) -> tuple[float, float, float]:
    """A quantile, and the ends of its interval.

    Args:
        curve: share of events below each edge.
        spread: standard error of it.
        rough: see `_rough`.
        events: how many there are.
        edges: of intervals.
        quantile: the share that is looked for.
    """
    smooth, fine = _smooth(curve, edges), _finer(edges)
    there = _at(smooth, fine, quantile)
    if fine[0] < there < fine[-1]:
        place = int(np.searchsorted(fine, there))
        fine, smooth = np.insert(fine, place, there), np.insert(smooth, place, quantile)
    chance = np.sqrt(_scattered(smooth, fine, curve, edges) / events)
    doubt = np.hypot(np.interp(fine, edges, spread), chance)
    fine, smooth, doubt = _with_tails(fine, smooth, doubt, curve, edges)
    scores = _scores(smooth, doubt, quantile)
    low, middle, high = np.interp([-NINETY_PERCENT, 0.0, NINETY_PERCENT], scores, fine)
    value = _inside(scores, fine, edges)
    least, most = min(low, edges[0]), max(high, edges[-1])
    # How far beyond the edges it is, is as uncertain as how far numbers are beyond bounds.
    under, over = (DOUBT * max(gap, 0.0) for gap in (edges[0] - middle, middle - edges[-1]))
    place = min(max(int(np.searchsorted(edges, value)), 1), len(edges) - 1)
    width, held = edges[place] - edges[place - 1], curve[place] - curve[place - 1]
    below = np.clip((quantile - curve[place - 1]) / max(held, _TINY), 0.0, 1.0)
    # Of an outer interval nothing beside it tells at which of its ends events are; nor of the one
    # next to it how steep the curve is where they meet.
    inner = 2 < place < len(edges) - 2
    away = np.hypot(_at(curve, edges, quantile) - value, width * _shapeless(held, below))
    bent = NINETY_PERCENT * (rough if inner else 1.0) * away
    if (edges % 1 == 0.5).all():
        bent = np.hypot(bent, NINETY_PERCENT * WHOLE)
    low = max(value - np.hypot(value - low, bent), least) - NINETY_PERCENT * under
    high = min(value + np.hypot(high - value, bent), most) + NINETY_PERCENT * over
    return value, low, high


def _inside(scores: Floats, points: Floats, edges: Floats) -> float:
    """The middle of where a quantile may be, if it is hardly expected beyond the edges.

    Args:
        scores: of points, see `_scores`.
        points: with tails beyond the edges.
        edges: of intervals.
    """
    below, rest = (_NORMAL.cdf(score) for score in np.interp(edges[[0, -1]], points, scores))
    within, beyond = rest - below, OUTSIDE * (below + 1 - rest)
    middle = below + (within + beyond) / 2 - OUTSIDE * below
    if not below < middle < rest:
        return float(edges[0] if middle <= below else edges[-1])
    return float(np.clip(np.interp(_NORMAL.inv_cdf(middle), scores, points), edges[0], edges[-1]))


def _scattered(smooth: Floats, fine: Floats, curve: Floats, edges: Floats) -> Floats:
    """Variance of the share of events below points between edges, if there were one event.

    Events of an interval are below a point or above it by chance.
    """
    place = np.clip(np.searchsorted(edges, fine, side="right"), 1, len(edges) - 1)
    before, after = smooth - curve[place - 1], curve[place] - smooth
    found: Floats = np.maximum(before * after, 0.0) / np.maximum(before + after, _LEAST_SHARE)
    return found


def _shapeless(held: Floats, below: Floats) -> Floats:
    """Standard deviation of where in an interval a share of events lies, in parts of its width.

    Events may lie anywhere in it: the more of them the worse, and worst for a share half way
    between those at its edges.

    Args:
        held: share of events in the interval.
        below: how many of these are below the place that is looked for, as a share.
    """
    found: Floats = SHAPELESS * held**0.25 * (4 * below * (1 - below)) ** 0.7
    return found


def _rough(curve: Floats, spread: Floats, edges: Floats) -> Floats:
    """How far events lie from a smooth curve, in parts of what is thought of any: shape (nodes,).

    Of any it is thought that they may lie anywhere between edges, and that a smooth curve is as
    wrong as it is from a straight line. Without an edge the curve through those beside it tells of
    how many events are below it. How wrong that is, beyond noise, shows how smooth a distribution
    is in wider intervals than those that there are. No edge tells that it is worse than what is
    thought of any, which counts as much as `THOUGHT` edges: numbers that begin at once at an edge
    may be smooth elsewhere.

    Args:
        curve: share of events below each edge, shape (nodes, edges).
        spread: standard error of it.
        edges: of intervals.
    """
    if len(edges) < 5:
        return np.ones(len(curve))
    first, near, far, last = (slice(i, len(edges) - 4 + i) for i in (0, 1, 3, 4))
    width = edges[far] - edges[near]
    at = (edges[2:-2] - edges[near]) / width
    held = np.maximum(curve[:, far] - curve[:, near], _LEAST_SHARE)
    rises = [
        (curve[:, b] - curve[:, a]) / (edges[b] - edges[a])
        for a, b in ((first, near), (near, far), (far, last))
    ]
    widths = edges[near] - edges[first], width, edges[last] - edges[far]
    begin, end = (width * _slope(*widths[i : i + 2], *rises[i : i + 2]) for i in (0, 1))
    expected = held * at**2 * (3 - 2 * at) + begin * at * (1 - at) ** 2 - end * at**2 * (1 - at)
    found = curve[:, 2:-2] - curve[:, near]
    error = 1.5 * (spread[:, 2:-2] / held) ** 2
    anywhere = _shapeless(held, np.clip(found / held, 0.0, 1.0))
    most = np.maximum(anywhere**2 + (expected / held - at) ** 2, _TINY)
    weight = (most / (most + error)) ** 2
    beyond = np.minimum((((found - expected) / held) ** 2 - error) / most, 1.0)
    squared = (THOUGHT + (weight * beyond).sum(axis=1)) / (THOUGHT + weight.sum(axis=1))
    return np.sqrt(np.clip(squared, 0.0, 1.0))


def _scores(curve: Floats, spread: Floats, quantile: float) -> Floats:
    """By how many standard errors the share below each point is above a quantile's: rising.

    A quantile is below a point where the share of events below the point is larger than it. These
    shares are not bounded by 0 and 1: what noise takes from a tail it may have added elsewhere, and
    a share that is cut off at 1 would look certain.

    Args:
        curve: estimated share of events below each point.
        spread: standard error of it.
        quantile: the share that is looked for.
    """
    found = (curve - quantile) / np.maximum(spread, _LEAST_SPREAD)
    # Farther from the quantile, less may be known of shares.
    place = int(np.searchsorted(curve, quantile))
    found[:place] = np.minimum.accumulate(found[:place][::-1])[::-1]
    found[max(place - 1, 0) :] = np.maximum.accumulate(found[max(place - 1, 0) :])
    return found


def _finer(edges: Floats) -> Floats:
    """Edges, and points between them."""
    points = np.linspace(edges[:-1], edges[1:], _FINE, endpoint=False, axis=1)
    return np.append(points.reshape(-1), edges[-1])


def _with_tails(
    points: Floats, below: Floats, spread: Floats, curve: Floats, edges: Floats
) -> tuple[Floats, Floats, Floats]:
    """Points, shares of events below them and standard errors of these, with tails at both ends.

    Tails are exponential ones, that fall beyond the outer edges as they do in the interval there.
    Of a share that is not known, tails are known as little: all of one err by the same part of it.
    """
    down, up = (_tail(*outer) for outer in ((curve, edges), (1 - curve[::-1], -edges[::-1])))
    fallen = np.exp(-_TAIL)
    return (
        np.concatenate([(edges[0] - down * _TAIL)[::-1], points, edges[-1] + up * _TAIL]),
        np.concatenate([(curve[0] * fallen)[::-1], below, 1 - (1 - curve[-1]) * fallen]),
        np.concatenate([(spread[0] * fallen)[::-1], spread, spread[-1] * fallen]),
    )


def _tail(curve: Floats, edges: Floats) -> float:
    """Over what distance an exponential tail below the first edge falls to a part in e."""
    first, second = np.maximum(curve[:2], _LEAST_SHARE)
    return float((edges[1] - edges[0]) / max(np.log(second / first), _STEADY))


def _smooth(curve: Floats, edges: Floats) -> Floats:
    """A curve that rises between edges as it does beside them, at `_FINE` points of each interval.

    Cubic and never falling. Source: F. N. Fritsch, J. Butland, "A method for constructing local
    monotone piecewise cubic interpolants" (1984).
    """
    width = np.diff(edges)
    rise = np.diff(curve) / width
    slope = np.repeat(rise[:1], len(edges))
    if len(rise) > 1:
        slope[1:-1] = _slope(width[:-1], width[1:], rise[:-1], rise[1:])
        slope[0] = _end_slope(*width[:2], *rise[:2])
        slope[-1] = _end_slope(*width[:-3:-1], *rise[:-3:-1])
    at = np.linspace(0, 1, _FINE, endpoint=False)
    begin, end = (width * part for part in (slope[:-1], slope[1:]))
    found = (
        curve[:-1, None]
        + np.diff(curve)[:, None] * at**2 * (3 - 2 * at)
        + begin[:, None] * at * (1 - at) ** 2
        - end[:, None] * at**2 * (1 - at)
    )
    return np.maximum.accumulate(np.append(found.reshape(-1), curve[-1]))


def _slope(width: Floats, next_width: Floats, rise: Floats, next_rise: Floats) -> Floats:
    """Of a curve between two intervals, by their widths and how steeply it rises in each."""
    near, far = width + 2 * next_width, 2 * width + next_width
    both = (rise > 0) & (next_rise > 0)
    before, after = np.where(both, rise, 1.0), np.where(both, next_rise, 1.0)
    return np.where(both, (near + far) / (near / before + far / after), 0.0)


def _end_slope(width: float, next_width: float, rise: float, next_rise: float) -> float:
    """Of a curve at its end, whose last interval rises so steeply and the one beside it so."""
    slope = ((2 * width + next_width) * rise - width * next_rise) / (width + next_width)
    return min(max(slope, 0.0), 3 * rise)


def _at(curve: Floats, edges: Floats, share: float) -> float:
    """Where a curve that never falls reaches a share, straight between these edges."""
    place = int(np.searchsorted(curve, share))
    if place == 0:
        return float(edges[0])
    if place == len(edges):
        return float(edges[-1])
    part = (share - curve[place - 1]) / (curve[place] - curve[place - 1])
    return float(edges[place - 1] + part * (edges[place] - edges[place - 1]))


def _chance_of_place(means: Floats, spreads: Floats, order: Integers, place: int) -> float:
    """Chance that a count is below those before it in the order and above those after it."""
    node = order[place]
    points, weights = means[node] + spreads[node] * _AWAY, _WEIGHTS
    sides = np.where(np.arange(len(order)) < place, -1.0, 1.0)
    apart = np.abs(means[order] - means[node])
    doubtful = apart < _SPAN * (spreads[order] + spreads[node])
    doubtful[place] = False
    for other, side in zip(order[doubtful], sides[doubtful], strict=True):
        weights = weights * _below(side * (points - means[other]) / spreads[other])
    return float(weights.sum())


def _chance_of_order(means: Floats, spreads: Floats, first: Integers, rest: Integers) -> float:
    """Chance that counts fall in this order, and are all above the rest."""
    points = np.unique(means[first, None] + spreads[first, None] * _AWAY)
    below = np.ones(len(points))
    for other in rest[means[rest] + _SPAN * spreads[rest] > points[0]]:
        below = below * _below((points - means[other]) / spreads[other])
    for node in first[::-1]:
        shares = np.diff(_below((points - means[node]) / spreads[node]), prepend=0.0)
        middle = (below + np.concatenate([below[:1], below[:-1]])) / 2
        below = np.cumsum(shares * middle)
    return float(below[-1])


def _below(away: Floats) -> Floats:
    """Share of a normal distribution below so many standard deviations."""
    found: Floats = np.interp(away, _AWAY, _SHARE_BELOW)
    return found
