"""What is usual of each node: what the slots so far tell of its ratios, such as means.

Few events beside much noise tell nothing of a ratio. So the ratio of a slot is pulled towards the
one of its node lately, this one towards that of its node over a long time, this one towards that of
all nodes together, and that one towards what could be thought before anything was known. So a
figure is hardly worse than one that never changes, as soon as anything is known, and where a slot
tells enough it stays what it is.

What is usual is learnt from what a mechanism observed, before its forecasts had any part in it:
errors of these observations have nothing to do with each other, and parts of one histogram are of
the same slots. Forecasts follow each part at a speed of its own, so their ratios are of nothing.

Each pull is the best linear estimate of a ratio that has the mean and variance of what is usual:
the parts are events times ratio plus noise, which is linear in the ratio, so nothing is divided by
a number of events that may be 0. It is a function of released numbers, and costs no privacy.

What was observed of a slot alone is no part of what is usual before it, and is all that is known of
it beside that: forecasts of parts lag together, so their errors are not those of a ratio. Only
where groups and bins were brought to agree, released counts have what the groups tell of
their bins. Where nothing was observed of a slot alone, forecasts move a figure, but no more is
known of it than how far slots are from what is usual; of shares below edges, whose errors allow for
that lag, forecasts tell how far they moved, and nothing of the chance of a slot's own numbers.

By how much slots differ is learnt, too: from how far what was observed lies from what was usual
before, beyond its noise, of all nodes together. Each ratio that figures are made of has a number of
its own, as far as it tells more than that of all: a distribution that moves as a whole moves most
in its middle, and its mean more than the shares of its parts would tell.

A slot that is revised is pulled towards what is usual by all other slots, those before and those
after it, with what was observed of it alone: its first figure, with what came later. Its revised
counts only say how many events there are, and stand in where nothing was observed, as forecasts do:
they are smoothed part by part, so ratios of them lag where forecasts do. Figures made of these
alone had less error in calm streams, and intervals held 0.6 where numbers moved within a window.

What is remembered does not grow with the stream: four numbers for each part of each node, two for
each ratio, what was observed of the last slot, and of slots that are still to be revised.

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

# What a slot counts one slot later: over a long time, and lately.
KEEP = (0.999, 0.97)
# Variances are in parts of what that of single numbers with this mean is at most. Of what may be
# thought before anything is known.
BEFORE = 0.1
# Of single numbers: ratios of few events differ so much the more. Where they are in a part or not
# it is 1.
SCATTER = 0.25
# In parts of that: of what is usual lately around what is over a long time.
LATELY = 0.015
# Of a slot around that, as it is thought at first, and the least that is believed.
DIFFER, LEAST_DIFFER = 0.12, 0.0003
# So many standard errors of it are added: too little holds less than too much does. The more so of
# forecasts of shares: all that is known of their errors rests on slots that were observed, which
# may be of one hour of the day.
UNSURE, UNSURE_AHEAD = 0.3, 1.0
# Of nodes around all together, as it is thought at first, and the least and most that is believed.
APART, LEAST_APART, MOST_APART = 0.06, 4e-4, 0.3
# The most that a slot is believed to differ, all in all.
MOST_SPREAD = 0.9
# No ratio is believed to be nearer to the ends of what is possible when such variances are
# computed.
LEAST_INSIDE = 0.01
# Correlation of the errors of forecasts of intervals on one side of an edge: estimates that follow
# a stream lag behind it together where its distribution moves.
TOGETHER = 0.15
# How often variances are found anew, each time by weights from the last ones.
_ROUNDS = 4
# Least variance that is distinguished from 0, and what numbers are divided by at least.
_SURE, _TINY = 1e-12, 1e-150


@dataclass(frozen=True, eq=False)
class RatioSums:
    """What parts tell of some ratios: arrays of shape (nodes, ratios), or (nodes, 1) for all."""

    events: Floats
    beside: Floats
    """Sum over the events of what each stands for."""
    noise: Floats
    noise_once: Floats
    noise_twice: Floats
    """Variances of sums over the events: of 1, with `beside`, and of `beside`."""

    @classmethod
    def of(cls, counts: Floats, variances: Floats, each: Floats) -> RatioSums:
        """What an event in a part stands for is `each`.

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
        """With ratios that are so much larger."""
        return replace(self, beside=self.beside + more * self.events)

    def away(self, ratio: Floats) -> Floats:
        """Sum over the events of how far from a ratio they are."""
        return self.beside - ratio * self.events

    def error(self, ratio: Floats) -> Floats:
        """Variance of that."""
        found = self.noise_twice - 2 * ratio * self.noise_once + ratio**2 * self.noise
        return np.maximum(found, 0.0)


@dataclass(frozen=True, eq=False)
class Ratios:
    """Which ratios are made of parts, to learn by how much slots differ in them."""

    sums_of: Callable[[Floats, Floats, Floats], RatioSums]
    """From counts of parts, their variances and the usual share of each, all (nodes, parts)."""
    scatter: float = SCATTER
    """Variance of single numbers, in parts of what it is at most."""
    unknown: float = BEFORE
    """Of what may be thought before anything is known, in the same parts."""


@dataclass(frozen=True, eq=False)
class Seen:
    """What was observed with a slot that is still to be revised: as of :class:`Usual`."""

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
        """What was observed, of (nodes, parts), by a record."""
        if not record["last"]:
            return cls(None, record["own"])
        counts, variances = (np.frombuffer(one, "<f8").reshape(shape) for one in record["last"])
        return cls(Observed(counts, variances), record["own"])


@dataclass(frozen=True, eq=False)
class Usual:
    """Sums over the slots so far, weighted by how sure each was: shape (memories, nodes, parts)."""

    ratios: Ratios
    """By how much slots differ in these is learnt."""
    parts: Floats
    noise: Floats
    """Variances of the parts."""
    apart: Floats
    """Sum of how far slots were from what was usual, beyond noise, weighted by how sure that is:
    shape (ratios,)."""
    precision: Floats
    """Sum of these weights: the precision with which `differ` is known, but for what was thought
    at first."""
    last: Observed | None = None
    """What was observed of the last slot alone, if anything."""
    own: float = 1.0
    """Part of the last slot in what was observed with it: of a mean of n slots one in n, and none
    where nothing was observed."""

    @classmethod
    def start(cls, nodes: int, parts: int, ratios: Ratios) -> Usual:
        """Before the first slot."""
        nothing = np.zeros((len(KEEP), nodes, parts))
        size = ratios.sums_of(nothing[0], nothing[0], nothing[0]).beside.shape[1]
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
        """Variance of ratios of a slot around what is usual, in parts of the most it could be.

        Those of all ratios together are what is thought of each before it is known: (ratios,).

        Args:
            unsure: so many standard errors of it are added.
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
        usual = np.clip(known.beside / known.events, 0.0, 1.0)
        seen = self.ratios.sums_of(observed.counts, observed.variances, self.shares)
        events = np.maximum(seen.events, 0.0)
        error = seen.error(usual) + events**2 * (known.error(usual) / known.events**2)
        most = events**2 * usual * (1 - usual) / observed.slots
        error += self.ratios.scatter * most / np.maximum(events, 1.0)
        beyond = seen.away(usual) ** 2 - error
        weight = 1 / (2 * np.maximum(error + self.differ() * most, _TINY) ** 2)
        # What is unusual in a slot is so in many nodes of it: they tell as much as one.
        return (weight * most * beyond).mean(axis=0), (weight * most**2).mean(axis=0)

    def settled(self) -> Usual:
        """With what was observed of the last slot alone in the sums, as that of others is."""
        if self.last is None:
            return self
        parts, noise = _settled(self.last)
        return replace(self, parts=self.parts + parts, noise=self.noise + noise, last=None)

    @property
    def seen(self) -> Seen:
        """What was observed with the last slot."""
        return Seen(self.last, self.own)

    def of_earlier(self, seen: Seen, later: int) -> Usual:
        """What is usual of an earlier slot, by the slots before and after it.

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

    def decode(self, data: bytes) -> Usual:
        """What was encoded, of the same shape."""
        numbers, size = np.frombuffer(data, "<f8").astype(np.float64), len(self.precision)
        apart, precision, own = np.split(numbers[: 2 * size + 1], [size, 2 * size])
        sums = numbers[2 * size + 1 :].reshape(-1, *self.parts.shape[1:])
        parts, noise, last = np.split(sums, [len(KEEP), 2 * len(KEEP)])
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
            each: what an event in a part stands for, from 0 to 1: shape (parts, 1), or
                (nodes, parts, 1).
            before: what was thought of the ratio before anything was known: shape (1,).
            whole: what an event adds to all parts.
            number: of the ratio among those of `ratios`.
            shifts: by how much it is expected to be below what is usual, and by how much what is
                known of the slot is expected to be below it: shape (nodes, 1).
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
    """What is usual after one slot that was observed as it is released; variances may be NaN."""
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
    """What is usual lately, and the variance of that, (nodes, ratios).

    Args:
        known: what the slots so far tell, over a long time and lately.
        before: what was thought of the ratios before anything was known.
        ratios: which they are.
    """
    long, lately = known
    ratio = np.atleast_2d(before)
    ratio, doubt = _pull(ratio, ratios.unknown * _most(ratio), 0.0, long.everywhere())
    ratio, doubt = _pull(ratio, _between_nodes(ratio, long), doubt, long)
    return _pull(ratio, LATELY * ratios.scatter * _most(ratio), doubt, lately)


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
        seen: what was observed of this one alone, which is not in what is usual then.
        scatter: variance of single numbers.
        apart: variance of slots.
        own: part of the slot in what was observed with it.
        lagging: whether the error of `slot` allows for forecasts of parts that lag together; else
            no more is known of a ratio that was forecast than how far slots are from what is usual.
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
    # Forecasts, and means of many slots, tell how a stream moves, but are as far from this slot as
    # what is usual; and of what its single numbers happen to be they tell nothing.
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
    """Variance of what is usual of single nodes, by moments, shape (1, ratios).

    Nodes count by how sure it is how far they are, which is the more alike the more they differ.
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
    """Sums over parts, (nodes, ratios), of values (nodes, parts) times what they stand for."""
    found: Floats = np.matmul(values[:, None, :], each)[:, 0, :]
    return found


def _running(variances: Floats, together: float) -> Floats:
    """Variances of the sums of the first, the first two, ... of some counts."""
    apart = np.cumsum(variances, axis=1)
    alike = np.cumsum(np.sqrt(variances), axis=1) ** 2
    return np.asarray((1 - together) * apart + together * alike)
