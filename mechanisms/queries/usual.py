"""The prior of ratios, such as means, for each node: learnt from earlier slots.

Few events with much noise show nothing about a ratio. So the ratio of a slot is shrunk towards the
recent ratio of its node, this one towards the ratio of the node over a long time, this one towards
that of all nodes together, and that one towards a constant. So as soon as anything is known, a
result is hardly worse than a constant, and the result of a slot with enough events is hardly
changed.

A ratio may change for good, as when a product is replaced by another one. So the recent ratio is
that of about 33 slots, but if the last 7 slots or so are clearly apart from these, it is theirs.

The prior is learnt from what a mechanism observed, and not from forecasts. Errors of observations
are independent of each other, and the parts of one histogram are of the same slots. Forecasts
follow each part at a different speed, so ratios of forecasts mean nothing.

Each step of shrinkage is the best linear estimate of a ratio with the mean and the variance of the
prior. The parts are events times ratio plus noise, which is linear in the ratio, so nothing is
divided by a number of events that may be 0. It is a function of released numbers, and costs no
privacy.

The prior of a slot does not contain what was observed of this slot alone. Apart from the prior, the
result uses only this observation: forecasts of parts lag together, so their errors are not those of
a ratio. Only after groups and bins were reconciled, released counts are used, because groups
improve the counts of their bins. If nothing was observed of a slot alone, forecasts move a result,
but its variance is that of slots around the prior. For shares below edges, whose errors allow for
that lag, forecasts show how far the shares moved, and nothing about the chance of a slot's own
numbers.

How much slots differ is learnt, too: from how far observations are from the prior, by more than
noise explains, for all nodes together. Each ratio of a result has a number of its own, as far as
its data show more than those of all ratios: a distribution that shifts changes most in its middle,
and its mean changes more than the shares of its parts suggest.

A revised slot is shrunk towards the prior from all other slots, those before and those after it. It
uses what was observed of it alone: its first result, with what came later. Its revised counts only
give the number of events. They are used as ratios only if nothing was observed, as forecasts are:
they are smoothed part by part, so their ratios lag where forecasts do. Results from them alone had
smaller errors in calm streams, but their coverage was 0.6 where numbers moved within a window.

The memory does not grow with the stream: six numbers for each part of each node, two for each
ratio, the observation of the last slot, and those of slots that are still to be revised.

Sources: B. Efron, C. Morris, "Stein's estimation rule and its competitors" (1973); of variances by
moments, R. DerSimonian, N. Laird, "Meta-analysis in clinical trials" (1986).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.protocol import Observed

Shifts = tuple[Floats | float, Floats | float]

# Weight of a slot one slot later: in the long-term average, the recent one and the newest one.
KEEP = (0.999, 0.97, 0.85)
# Variances are fractions of the largest possible variance of single numbers with this mean. This
# one is that of the prior before anything is known.
BEFORE = 0.1
# Of single numbers, which adds to the variance of ratios of few events: 1 if each is either 0 or 1.
SCATTER = 0.25
# As a fraction of that: of recent averages around long-term averages.
LATELY = 0.015
# An average that is further from the one before than this many standard errors shows that ratios
# changed for good. The newest average counts only then.
CHANGED = 2.5
# Of a slot around the recent average: the prior value, and the smallest estimate.
DIFFER, LEAST_DIFFER = 0.12, 0.0003
# Standard errors that are added to it, because an estimate that is too small costs more coverage
# than one that is too large. The second number is for forecasts of shares, whose errors are only
# known from observed slots, which may all be of one hour of the day.
UNSURE, UNSURE_AHEAD = 0.3, 1.0
# Of nodes around all nodes together: the prior value, and the smallest and largest estimate.
APART, LEAST_APART, MOST_APART = 0.06, 4e-4, 0.3
# The largest total variance of a slot.
MOST_SPREAD = 0.9
# For these variances, ratios are taken to be at least this far from 0 and from 1.
LEAST_INSIDE = 0.01
# Correlation of the errors of forecasts of intervals on one side of an edge: estimates that follow
# a stream lag behind it together where its distribution moves.
TOGETHER = 0.15
# Rounds in which variances are estimated, each with weights from the last estimates.
_ROUNDS = 4
# The smallest variance that is distinguished from 0, and the smallest divisor.
_SURE, _TINY = 1e-12, 1e-150


@dataclass(frozen=True, eq=False)
class RatioSums:
    """Weighted sufficient statistics of ratios: arrays (nodes, ratios), or (nodes, 1) for all."""

    events: Floats
    totals: Floats
    """Sum over the events of their values."""
    noise: Floats
    noise_once: Floats
    noise_twice: Floats
    """Variances of sums over the events: of 1, with `totals`, and of `totals`."""

    @classmethod
    def of(cls, counts: Floats, variances: Floats, each: Floats) -> RatioSums:
        """Sums if events of each part have the values `each`.

        Args:
            counts: shape (nodes, parts).
            variances: of these.
            each: shape (parts, ratios), or (nodes, parts, ratios).
        """
        return cls(
            counts.sum(axis=1, keepdims=True),
            _summed(counts, each),
            variances.sum(axis=1, keepdims=True),
            _summed(variances, each),
            _summed(variances, each**2),
        )

    @classmethod
    def below(cls, counts: Floats, variances: Floats, together: float = 0.0) -> RatioSums:
        """Ratios are the shares of events in the first part, the first two, and so on.

        Args:
            counts: shape (nodes, parts), one part more than there are ratios.
            variances: of these.
            together: correlation of the errors of parts on one side of an edge.
        """
        below = _running(variances, together)[:, :-1]
        above = _running(variances[:, ::-1], together)[:, ::-1][:, 1:]
        total = counts.sum(axis=1, keepdims=True)
        return cls(total, np.cumsum(counts, axis=1)[:, :-1], below + above, below, below)

    @classmethod
    def shares(cls, counts: Floats, variances: Floats) -> RatioSums:
        """Ratios are the shares of events in each part: see :meth:`of`."""
        total, noise = (one.sum(axis=1, keepdims=True) for one in (counts, variances))
        return cls(total, counts, noise, variances, variances)

    def everywhere(self) -> RatioSums:
        """All nodes together."""
        return RatioSums(*(one.sum(axis=0, keepdims=True) for one in vars(self).values()))

    def raised(self, more: Floats | float) -> RatioSums:
        """The sums after `more` was added to the ratios."""
        return replace(self, totals=self.totals + more * self.events)

    def away(self, ratio: Floats) -> Floats:
        """Sum over the events of the differences of their values from a ratio."""
        return self.totals - ratio * self.events

    def error(self, ratio: Floats) -> Floats:
        """Variance of that."""
        found = self.noise_twice - 2 * ratio * self.noise_once + ratio**2 * self.noise
        return np.maximum(found, 0.0)


@dataclass(frozen=True, eq=False)
class Ratios:
    """The ratios of a statistic, to learn how much slots differ in them."""

    sums_of: Callable[[Floats, Floats, Floats], RatioSums]
    """From counts of parts, their variances and the usual share of each, all (nodes, parts)."""
    scatter: float = SCATTER
    """Variance of single numbers, as a fraction of the largest possible one."""
    unknown: float = BEFORE
    """Variance of the prior before anything is known, as the same fraction."""


@dataclass(frozen=True, eq=False)
class Seen:
    """The observation of a slot that is still to be revised: fields as in :class:`Usual`."""

    last: Observed | None
    own: float

    SCHEMA: ClassVar[state_codec.Schema] = state_codec.record_schema(
        "Seen", slot="long", own="double", last={"type": "array", "items": "bytes"}
    )

    def record(self, slot: int) -> dict[str, Any]:
        """Avro record of it, and of the slot that it is of."""
        last = () if self.last is None else (self.last.counts, self.last.variances)
        return {"slot": slot, "own": self.own, "last": [_bytes(one) for one in last]}

    @classmethod
    def read(cls, record: Mapping[str, Any], shape: tuple[int, ...]) -> Seen:
        """The observation in a record, of (nodes, parts)."""
        if not record["last"]:
            return cls(None, record["own"])
        counts, variances = (np.frombuffer(one, "<f8").reshape(shape) for one in record["last"])
        return cls(Observed(counts, variances), record["own"])


@dataclass(frozen=True, eq=False)
class Usual:
    """Sums over the slots so far, weighted by how sure each was: shape (memories, nodes, parts)."""

    ratios: Ratios
    """For which it is learnt how much slots differ."""
    parts: Floats
    noise: Floats
    """Variances of the parts."""
    apart: Floats
    """Sum of the squared differences of slots from the prior, less noise, weighted by precision:
    shape (ratios,)."""
    precision: Floats
    """Sum of these weights: the precision of `differ` without its prior value."""
    last: Observed | None = None
    """The observation of the last slot alone, if there is one."""
    own: float = 1.0
    """Part of the last slot in its observation: 1 / n in a mean of n slots, and 0 without an
    observation."""

    @classmethod
    def start(cls, nodes: int, parts: int, ratios: Ratios) -> Usual:
        """Before the first slot."""
        nothing = np.zeros((len(KEEP), nodes, parts))
        size = ratios.sums_of(nothing[0], nothing[0], nothing[0]).totals.shape[1]
        return cls(ratios, nothing, nothing, np.zeros(size), np.zeros(size))

    def grown(self, origin: Integers) -> Usual:
        """The same averages after nodes were added. Nothing is known about new nodes.

        Args:
            origin: for each node, its earlier number, or -1 for a new node, shape (nodes,).
        """

        def by_node(before: Floats) -> Floats:
            return np.where((origin < 0)[:, None], 0.0, before[..., origin, :])

        known = self.settled()
        return replace(known, parts=by_node(known.parts), noise=by_node(known.noise))

    @property
    def shares(self) -> Floats:
        """Of each part over a long time, shape (nodes, parts)."""
        long = np.maximum(self.parts[0], 0.0)
        return long / np.maximum(long.sum(axis=1, keepdims=True), _TINY)

    def differ(self, unsure: float = UNSURE) -> Floats:
        """Variance of ratios of a slot around the prior, as a fraction of the largest possible one.

        Shape (ratios,). The estimate from all ratios together is the prior value for each.

        Args:
            unsure: number of its standard errors that are added.
        """
        first = self.ratios.scatter * DIFFER
        found = (self.apart.mean() + 1 / first) / (self.precision.mean() + 1 / first**2)
        found = max(found, self.ratios.scatter * LEAST_DIFFER)
        known = self.precision + 1 / found**2
        each = (self.apart + 1 / found) / known + unsure / np.sqrt(known)
        return np.maximum(each, self.ratios.scatter * LEAST_DIFFER)

    def after(self, observed: Iterable[Observed]) -> Usual:
        """With one more slot.

        Args:
            observed: what the mechanism observed with it, if anything: parts, (nodes, parts).
        """
        known, keep = self.settled(), np.array(KEEP)[:, None, None]
        known = replace(
            known,
            parts=keep * known.parts,
            noise=keep**2 * known.noise,
            apart=KEEP[0] * known.apart,
            precision=KEEP[0] * known.precision,
            own=0.0,
        )
        for one in observed:
            known = known.settled()._with(one)
        return known if known.own == 1 else known.settled()

    def _with(self, observed: Observed) -> Usual:
        apart, precision = self._apart(observed)
        return replace(
            self,
            apart=self.apart + apart,
            precision=self.precision + precision,
            last=observed,
            own=1 / observed.slots,
        )

    def _apart(self, observed: Observed) -> tuple[Floats | float, Floats | float]:
        """What an observation adds to `apart` and `precision`: nothing before anything is known."""
        known = self.ratios.sums_of(self.parts[0], self.noise[0], self.shares)
        if not (known.events > 0).all():
            return 0.0, 0.0
        usual = np.clip(known.totals / known.events, 0.0, 1.0)
        seen = self.ratios.sums_of(observed.counts, observed.variances, self.shares)
        events = np.maximum(seen.events, 0.0)
        error = seen.error(usual) + events**2 * (known.error(usual) / known.events**2)
        most = events**2 * usual * (1 - usual) / observed.slots
        error += self.ratios.scatter * most / np.maximum(events, 1.0)
        beyond = seen.away(usual) ** 2 - error
        weight = 1 / (2 * np.maximum(error + self.differ() * most, _TINY) ** 2)
        # An unusual slot is unusual in many of its nodes, so they count as one.
        return (weight * most * beyond).mean(axis=0), (weight * most**2).mean(axis=0)

    def settled(self) -> Usual:
        """With the observation of the last slot in the sums, as those of other slots are."""
        if self.last is None:
            return self
        parts, noise = _settled(self.last)
        return replace(self, parts=self.parts + parts, noise=self.noise + noise, last=None)

    @property
    def seen(self) -> Seen:
        """The observation of the last slot."""
        return Seen(self.last, self.own)

    def of_earlier(self, seen: Seen, later: int) -> Usual:
        """The prior for an earlier slot, from the slots before and after it.

        Args:
            seen: of that slot, when it was the last one.
            later: how many slots came after it.
        """
        known = self.settled()
        if seen.last is not None:
            (parts, noise), keep = _settled(seen.last), np.array(KEEP)[:, None, None] ** later
            noise = np.maximum(known.noise - keep**2 * noise, 0.0)
            known = replace(known, parts=known.parts - keep * parts, noise=noise)
        return replace(known, last=seen.last, own=seen.own)

    def encode(self) -> bytes:
        """Bytes of it."""
        last = [self.last.counts, self.last.variances] if self.last else []
        sums = np.stack([*self.parts, *self.noise, *last])
        numbers = [self.apart, self.precision, np.array([self.own]), sums.ravel()]
        return np.concatenate(numbers).astype("<f8").tobytes()

    def decode(self, data: bytes, averages: int = len(KEEP)) -> Usual:
        """What was encoded, of the same shape.

        Args:
            data: what :meth:`encode` returned.
            averages: how many it has; nothing is known of the others.
        """
        numbers, size = np.frombuffer(data, "<f8").astype(np.float64), len(self.precision)
        apart, precision, own = np.split(numbers[: 2 * size + 1], [size, 2 * size])
        sums = numbers[2 * size + 1 :].reshape(-1, *self.parts.shape[1:])
        *kept, last = np.split(sums, [averages, 2 * averages])
        unknown = np.zeros((len(KEEP) - averages, *self.parts.shape[1:]))
        parts, noise = (np.concatenate([one, unknown]) for one in kept)
        seen = Observed(*last) if len(last) else None
        return Usual(self.ratios, parts, noise, apart, precision, seen, float(own[0]))

    def pulled(
        self,
        counts: Floats,
        variances: Floats,
        each: Floats,
        before: Floats,
        whole: float = 1.0,
        number: int = 0,
        shifts: Shifts = (0.0, 0.0),
    ) -> tuple[Floats, Floats]:
        """A ratio of a slot that is among those so far, and its variance: (nodes, 1).

        Args:
            counts: estimate of each part: (nodes, parts).
            variances: of them, NaN where nothing is known.
            each: values of events in each part, from 0 to 1: shape (parts, 1), or
                (nodes, parts, 1).
            before: the ratio that is assumed before anything is known: shape (1,).
            whole: what an event adds to all parts.
            number: of the ratio among those of `ratios`.
            shifts: by how much it is expected to be below the prior, and by how much the data of
                the slot are expected to be below it: shape (nodes, 1).
        """
        ratio, doubt = self._pulled(
            lambda counts, variances, _: RatioSums.of(counts / whole, variances / whole**2, each),
            *(counts, variances, before, self.differ()[number], shifts),
        )
        return np.clip(ratio, 0.0, 1.0), doubt

    def expected(self, each: Floats, before: Floats, whole: float = 1.0) -> tuple[Floats, Floats]:
        """The prior of the first ratio and the variance of slots around it: see :meth:`pulled`."""
        known = [
            RatioSums.of(parts / whole, noise / whole**2, each)
            for parts, noise in zip(self.parts, self.noise, strict=True)
        ]
        ratio, _ = _usual(known, before, self.ratios)
        return ratio, self.differ()[0] * _most(ratio)

    def below(self, counts: Floats, variances: Floats, before: Floats) -> tuple[Floats, Floats]:
        """Shares of events in the first part, the first two, and so on: see :meth:`pulled`."""
        differ = self.differ(UNSURE if self.own == 1 else UNSURE_AHEAD)
        return self._pulled(RatioSums.below, counts, variances, before, differ, lagging=True)

    def _pulled(
        self,
        ratios_of: Callable[[Floats, Floats, float], RatioSums],
        counts: Floats,
        variances: Floats,
        before: Floats,
        differ: Floats,
        shifts: Shifts = (0.0, 0.0),
        *,
        lagging: bool = False,
    ) -> tuple[Floats, Floats]:
        known = [ratios_of(*sums, 0.0) for sums in zip(self.parts, self.noise, strict=True)]
        slot = ratios_of(counts, variances, TOGETHER)
        seen = ratios_of(self.last.counts, self.last.variances, 0.0) if self.last else None
        ratio, doubt = _usual(known, before, self.ratios)
        ratio = np.maximum(ratio - shifts[0], 0.0)
        slot, seen = slot.raised(shifts[1]), seen and seen.raised(shifts[1])
        return _pulled(ratio, doubt, slot, seen, self.ratios.scatter, differ, self.own, lagging)


def first(counts: Floats, variances: Floats, ratios: Ratios) -> Usual:
    """The prior after one slot, whose observation is its release; variances may be NaN."""
    nodes, parts = counts.shape
    start = Usual.start(nodes, parts, ratios)
    known = np.isfinite(variances).all()
    return start.after([Observed(counts, variances)]) if known else start


def _bytes(numbers: Floats) -> bytes:
    return numbers.astype("<f8").tobytes()


def _settled(seen: Observed) -> tuple[Floats, Floats]:
    """What an observation of a slot alone adds to the sums of parts and of their noise."""
    weight = 1 / np.maximum(seen.variances.sum(axis=1, keepdims=True), _SURE)
    return weight * seen.counts, weight**2 * seen.variances


def _usual(known: list[RatioSums], before: Floats, ratios: Ratios) -> tuple[Floats, Floats]:
    """The recent averages of ratios and their variances, (nodes, ratios).

    Args:
        known: sums over the slots so far: long-term, recent and newest.
        before: the ratios that are assumed before anything is known.
        ratios: which they are.
    """
    long, lately, newest = known
    ratio = np.atleast_2d(before)
    ratio, doubt = _pull(ratio, ratios.unknown * _most(ratio), 0.0, long.everywhere())
    ratio, doubt = _pull(ratio, _between_nodes(ratio, long), doubt, long)
    usual_spread = LATELY * ratios.scatter * _most(ratio)
    for average, spread in (lately, usual_spread), (newest, np.zeros_like(usual_spread)):
        spread = _unless_changed(spread, ratio, doubt, average)
        ratio, doubt = _pull(ratio, spread, doubt, average)
    return ratio, doubt


def _unless_changed(spread: Floats, ratio: Floats, doubt: Floats, average: RatioSums) -> Floats:
    """The variance of an average around a ratio: this spread, unless the average is clearly apart.

    Args:
        spread: the variance that is usual.
        ratio: what was known before the slots of the average.
        doubt: variance of that.
        average: sums over these slots.
    """
    squared = np.maximum(average.events, 0.0) ** 2
    apart = average.away(ratio) ** 2
    unsure = average.error(ratio) + squared * doubt
    changed = apart > CHANGED**2 * (unsure + squared * spread)
    return np.where(changed, (apart - unsure) / np.maximum(squared, _TINY), spread)


def _pulled(
    ratio: Floats,
    doubt: Floats,
    slot: RatioSums,
    seen: RatioSums | None,
    scatter: float,
    apart: Floats,
    own: float,
    lagging: bool,
) -> tuple[Floats, Floats]:
    """Ratios of a slot and their variances: see :meth:`Usual.pulled`.

    Args:
        ratio: what is expected of them.
        doubt: variance of that.
        slot: forecast or estimates of this slot.
        seen: the observation of this slot alone, which is then not a part of the prior.
        scatter: variance of single numbers.
        apart: variance of slots.
        own: part of the slot in its observation.
        lagging: whether the error of `slot` allows for forecasts of parts that lag together; else
            the variance of a forecast ratio is that of slots around the prior.
    """
    most = _most(ratio)
    moved, chance = apart * most, scatter / np.maximum(slot.events, 1.0) * most
    if seen is not None:
        spread, events = np.minimum(moved + chance + doubt, MOST_SPREAD * most), slot.events
        found, _ = _pull(ratio, spread, 0.0, seen, events)
        found, both = _pull(ratio, spread, 0.0, seen, events, np.clip(found, 0.0, 1.0))
        return found, both
    if own == 1:
        found, both = _pull(ratio, moved + chance, doubt, slot)
        return found, both
    # Forecasts, and means of many slots, show how a stream moves. But they are as far from this
    # slot as the prior is, and show nothing about the chance of its single numbers.
    moves = moved if lagging else moved + chance
    events = np.maximum(slot.events, 0.0)
    slot = replace(slot, noise_twice=slot.noise_twice + (1 - own) * moves * events**2)
    found, both = _pull(ratio, moves, doubt, slot)
    return found, both + chance if lagging else moves + doubt


def _pull(
    toward: Floats,
    spread: Floats,
    doubt: Floats | float,
    slot: RatioSums,
    events: Floats | None = None,
    near: Floats | None = None,
) -> tuple[Floats, Floats]:
    """The best linear estimate of ratios, and its variance.

    Args:
        toward: mean of the ratios before anything is known of them, shape (nodes, ratios).
        spread: their variance around it.
        doubt: variance of that mean itself.
        slot: sums of these ratios.
        events: how many there are, if more is known of that than `slot` has.
        near: where the ratios are, as far as their errors depend on it.
    """
    events = np.maximum(slot.events if events is None else events, 0.0)
    error = slot.error(toward if near is None else near)
    gain = events * spread / np.maximum(events**2 * spread + error, _TINY)
    left = 1 - gain * events
    return toward + gain * slot.away(toward), left * spread + left**2 * doubt


def _between_nodes(usual: Floats, nodes: RatioSums) -> Floats:
    """Variance between nodes, by the method of moments, shape (1, ratios).

    Nodes are weighted by the precision of their differences. The more nodes differ, the more equal
    are these weights.
    """
    squared, error, most = np.maximum(nodes.events, 0.0) ** 2, nodes.error(usual), _most(usual)
    beyond = nodes.away(usual) ** 2 - error
    first = found = APART * most
    for _ in range(_ROUNDS):
        weight = squared / (2 * np.maximum(error + squared * found, _TINY) ** 2)
        sums, known = (weight * beyond).sum(axis=0), (weight * squared).sum(axis=0)
        found = np.maximum((sums + 1 / first) / (known + 1 / first**2), LEAST_APART * most)
    return np.minimum(found, MOST_APART * most)


def _most(ratio: Floats) -> Floats:
    """The largest variance of numbers from 0 to 1 with this mean."""
    inside = np.clip(ratio, LEAST_INSIDE, 1 - LEAST_INSIDE)
    return inside * (1 - inside)


def _summed(values: Floats, each: Floats) -> Floats:
    """Sums over parts, (nodes, ratios), of numbers (nodes, parts) times the values of events."""
    found: Floats = np.matmul(values[:, None, :], each)[:, 0, :]
    return found


def _running(variances: Floats, together: float) -> Floats:
    """Variances of the sums of the first, the first two, ... of some counts."""
    apart = np.cumsum(variances, axis=1)
    alike = np.cumsum(np.sqrt(variances), axis=1) ** 2
    return np.asarray((1 - together) * apart + together * alike)
