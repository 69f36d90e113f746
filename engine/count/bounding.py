"""Contribution bounding: at most a fixed number of a user's events in a slot, in whatever order.

By default the events that are kept are drawn: each set of that many of a user's events in a slot is
as likely as any other, so that the shares of the bins are to be expected as they are among all
events. The draw is a function of a key, of user and slot, and of how many events the user has there
in each bin. So it looks at that user's events only, and neither their order nor how they came in
batches has any part in it. It is made once, when all of a slot is there: until then events of one
bin are counted, not dropped.

Who asks only where a user was at all keeps `distinct` bins: an event in a bin comes before a repeat
of it, then the bins by a pseudo-random rank that depends on user, slot and bin alone. Bounding the
parts of an input first never changes what that keeps of the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.records import DISTINCT, KEEPS, UNIFORM, ConfigurationError
from streamveil.mechanisms.randomness.noise import KEY_BYTES, Words, keyed_words

# Of groups of no more events, on average, a line of all of them is sooner counted than searched.
_FEW_EVENTS = 4

EVERYTHING = 1 << 62
"""More than any user has events."""

Naming = Callable[[Integers], npt.NDArray[np.uint64]]
"""Gives a number of each of some groups of like events, by row."""


@dataclass(frozen=True)
class Bounding:
    """How many events of a user in a slot count, and which.

    Raises ConfigurationError for a rule that is not one of `KEEPS`.
    """

    most: int
    keep: str = UNIFORM
    key: bytes = field(default=bytes(KEY_BYTES), repr=False)
    """Secret of the draws, 32 bytes. No guarantee rests on it."""
    once: bool = False
    """Whether of a user's events in a slot and bin one alone counts, before any are drawn."""

    def __post_init__(self) -> None:
        """Check the rule."""
        if self.keep not in KEEPS:
            raise ConfigurationError(f"keep {self.keep!r} is unknown: choose {' or '.join(KEEPS)}")

    def __call__(
        self, visits: npt.NDArray[np.integer], repeats: Integers, visitor: Naming, rank: Naming
    ) -> Integers:
        """Number of events to keep of each group of like events.

        Args:
            visits: the user and slot of each group as one number, ascending, shape (n,).
            repeats: events in the group, that is in the same bin, 1 or more, shape (n,). The groups
                of a visit are in order of their bins.
            visitor: gives a number that distinguishes user and slot from all others.
            rank: gives the pseudo-random rank of user, slot and bin; the groups of one visit have
                different ranks.

        Returns:
            int64, shape (n,), at most `repeats`; the sum over a visit is at most `most`.
        """
        if self.once:
            repeats = np.minimum(repeats, 1)
        if self.keep == DISTINCT:
            return bound_distinct(visits, repeats, self.most, rank)

        def draw(rows: Integers, draws: Integers) -> Words:
            return keyed_words(self.key, visitor(rows), draws.astype(np.uint64))

        return bound_uniform(visits, repeats, self.most, draw)


def draw_one(visits: npt.NDArray[np.integer], naming: Naming, key: bytes) -> Integers | None:
    """Row of the one event that is kept of each visit, where one is: what `bound_uniform` draws.

    Args:
        visits: the user and slot of each event as one number, ascending, shape (n,). The events of
            a visit are in order of their bins.
        naming: gives a number that distinguishes user and slot from all others.
        key: secret of the draws, 32 bytes.

    Returns:
        int64, one for each visit, ascending; None where a first word of some visit is not fair, so
        that it takes another draw.
    """
    rows, lengths = runs(visits)
    crowded = np.flatnonzero(lengths > 1)
    if not len(crowded):
        return rows
    words = keyed_words(key, naming(rows[crowded]), np.zeros(len(crowded), np.uint64))
    places, fair = _places(words, lengths[crowded])
    rows[crowded] += places
    return rows if fair.all() else None


def bound_uniform(
    visits: npt.NDArray[np.integer],
    repeats: Integers,
    most: int,
    draw: Callable[[Integers, Integers], Words],
) -> Integers:
    """Number of events to keep of each group, drawn from all of a visit without replacement.

    Args:
        visits: as in :class:`Bounding`.
        repeats: as there.
        most: events to keep of a visit, 1 or more.
        draw: gives uniform words, of the visit that begins in some rows, by the number of the draw.

    Returns:
        int64, shape (n,): exactly `most` of a visit with more events, all of any other.
    """
    groups, lengths, totals = _crowded(visits, repeats, most)
    if not len(groups):
        return repeats
    starts = groups[np.cumsum(lengths) - lengths]
    # Those to keep are drawn or those to drop, whichever are fewer: at least every second draw then
    # finds an event that was not drawn before.
    dropping = totals - most < most
    drawn = _drawn(totals, np.where(dropping, totals - most, most), partial(_of, draw, starts))
    there = repeats[groups]
    ends = np.cumsum(there)  # the events of crowded visits stand in line, group by group
    if ends[-1] > _FEW_EVENTS * len(groups):
        drawn = np.searchsorted(ends, drawn, side="right")
    elif ends[-1] > len(groups):  # else each group is one event
        line = np.zeros(ends[-1], np.int64)
        line[ends[:-1]] = 1  # where the next group begins
        drawn = np.cumsum(line)[drawn]
    chosen = np.bincount(drawn, minlength=len(groups))
    if dropping.any():
        chosen = np.where(np.repeat(dropping, lengths), there - chosen, chosen)
    kept = repeats.copy()
    kept[groups] = chosen
    return kept


def _crowded(
    visits: npt.NDArray[np.integer], repeats: Integers, most: int
) -> tuple[Integers, Integers, Integers]:
    """Rows of all groups of visits with more events than that; groups and events of each visit."""
    # Only visits of more than one event may have too many.
    same = visits[1:] == visits[:-1]
    shared = repeats > 1
    shared[1:] |= same
    shared[:-1] |= same
    some = np.flatnonzero(shared)
    starts, lengths = runs(visits[some])
    # From sums up to their ends: several times faster than `reduceat` of short runs.
    totals = np.diff(np.cumsum(repeats[some])[starts + lengths - 1], prepend=0)
    many = totals > most
    if not many.any():
        return some[:0], lengths[:0], totals[:0]
    return some[np.repeat(many, lengths)], lengths[many], totals[many]


def _of(
    draw: Callable[[Integers, Integers], Words], starts: Integers, at: Integers, draws: Integers
) -> Words:
    return draw(starts[at], draws)


def _drawn(
    totals: Integers, wanted: Integers, draw: Callable[[Integers, Integers], Words]
) -> Integers:
    """Draw `wanted` of `totals` things each, all sets alike likely; the things stand in line.

    Returns the places of those drawn, ascending.
    """
    first = np.cumsum(totals) - totals
    if (wanted == 1).all():  # the usual case needs no sorting
        places, fair = _places(draw(np.arange(len(totals)), np.zeros_like(totals)), totals)
        if fair.all():
            return first + places
    tried = np.zeros(len(totals), np.int64)
    some, missing, taken = np.arange(len(totals)), wanted, np.zeros(0, np.int64)
    whole = []
    while len(some):  # those of which things are missing: fewer and fewer
        at = np.repeat(some, missing)
        places, fair = _places(draw(at, tried[at] + _positions(missing)), totals[at])
        tried[some] += missing
        taken = np.unique(np.concatenate((taken, (first[at] + places)[fair])))
        has = np.searchsorted(first[some], taken, side="right") - 1
        missing = wanted[some] - np.bincount(has, minlength=len(some))
        done = missing == 0
        whole.append(taken[done[has]])
        some, missing, taken = some[~done], missing[~done], taken[~done[has]]
    return np.sort(np.concatenate(whole)) if whole else taken


def _places(words: Words, sizes: Integers) -> tuple[Integers, npt.NDArray[np.bool_]]:
    """A place below each size, and which of them are exactly as likely as any other.

    The last (2**64 mod size) words would make some places likelier than others.
    """
    size = sizes.astype(np.uint64)
    last = ~np.uint64(0)
    fair = words <= last - size
    doubtful = np.flatnonzero(~fair)
    fair[doubtful] = words[doubtful] <= last - (np.uint64(0) - size[doubtful]) % size[doubtful]
    return (words % size).astype(np.int64), fair


def bound_distinct(
    visits: npt.NDArray[np.integer],
    repeats: Integers,
    most: int,
    rank: Naming,
) -> Integers:
    """Number of events to keep of each group: different bins before repeats of one.

    Arguments and result are those of :class:`Bounding`.
    """
    kept = np.minimum(repeats, most)
    crowded, lengths, _ = _crowded(visits, kept, most)
    if not len(crowded):
        return kept
    if most == 1:  # the usual case needs no sorting: of each visit the lowest rank stays
        scores = rank(crowded)
        starts = np.cumsum(lengths) - lengths
        kept[crowded] = scores == np.repeat(np.minimum.reduceat(scores, starts), lengths)
        return kept
    # One row for each event of the crowded visits; the n-th of a group is its n-th repeat.
    sizes = kept[crowded]
    row = np.repeat(np.arange(len(crowded)), sizes)
    repeat = _positions(sizes)
    order = np.lexsort((rank(crowded)[row], repeat, visits[crowded][row]))
    row = row[order]
    _, lengths = runs(visits[crowded][row])
    kept[crowded] = np.bincount(row[_positions(lengths) < most], minlength=len(crowded))
    return kept


def _positions(lengths: Integers) -> Integers:
    """0, 1, 2, ... within each of some consecutive runs."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)


def mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Scramble 64-bit integers one to one (the finaliser of SplitMix64)."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def runs(values: npt.NDArray[Any]) -> tuple[Integers, Integers]:
    """Starts and lengths of the runs of equal neighbours."""
    if not len(values):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    begins = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=begins[1:])
    starts = np.flatnonzero(begins)
    lengths = np.empty_like(starts)
    np.subtract(starts[1:], starts[:-1], out=lengths[:-1])
    lengths[-1] = len(values) - starts[-1]
    return starts, lengths
