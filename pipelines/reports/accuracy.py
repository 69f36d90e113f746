"""How far released counts are from the true ones: in single slots, and in sums over slots and bins.

Noise is too high in one slot and too low in the next, so it fades in a sum. Events that are dropped
are missing from every sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.records import MICROSECONDS, Slots
from streamveil.pipelines.reports.labels import slot_name

_SPANS = {"day": MICROSECONDS["d"], "week": 7 * MICROSECONDS["d"]}
BUSIEST = 10
"""Bins whose error is shown by itself, as that of the rare ones would hide it."""
TURN = 0.1
"""A rise or a fall of at least this part is one that a reader would look for."""


class Sums(NamedTuple):
    """Released sums beside true ones, over all bins of a kind and all spans of a length."""

    of: str
    """Of which bins."""
    span: str
    """Over what: `day`, `week`."""
    true: float
    """Mean of the true sums."""
    error: float
    """Mean absolute error of the released sums."""
    share: float
    """The error as a fraction of all true counts; NaN where there are no events."""
    noise: float
    """Error against the kept events, likewise."""
    dropped: float
    """Error that the dropped events make alone, likewise."""


class Turns(NamedTuple):
    """Changes of at least `TURN` from one span to the next."""

    number: int
    released: int
    """Those that go the same way in the releases."""
    revised: int | None
    """Those that go the same way in the revisions; None if there are none."""


@dataclass(frozen=True, eq=False)
class Accuracy:
    """Counts by slot and bin, released and true: arrays of shape (T, bins), one slot or more."""

    slots: Slots
    edges: npt.NDArray[np.datetime64]
    """Start of every slot and the end of the last one, shape (T + 1,)."""
    true: Floats
    """Every event in a bin, before any protection."""
    kept: Floats
    """Of these the events that noise was added to: of users with a requirement, and within the
    contribution bound."""
    released: Floats
    stderr: Floats
    """Standard error of each released count; NaN before a publication."""
    revised: Floats | None = None

    @cached_property
    def true_totals(self) -> Floats:
        """True count of every bin over all slots, shape (bins,)."""
        totals: Floats = self.true.sum(axis=0)
        return totals

    @cached_property
    def released_totals(self) -> Floats:
        """Released count of every bin over all slots, shape (bins,)."""
        totals: Floats = self.released.sum(axis=0)
        return totals

    @cached_property
    def busiest(self) -> list[int]:
        """All bins by falling true total; equal ones in their own order."""
        return [int(j) for j in np.argsort(-self.true_totals, kind="stable")]

    def totals_of(self, bins: Sequence[int], size: int) -> dict[str, Floats]:
        """Sums over bins and `size` slots in a row, by line, shape (T // size,).

        The lines are `true`, `kept`, `released` and, if there is one, `revised`.
        """
        lines = {"true": self.true, "kept": self.kept, "released": self.released}
        if self.revised is not None:
            lines["revised"] = self.revised
        chosen = list(bins)
        return {name: in_spans(one[:, chosen], size).sum(axis=1) for name, one in lines.items()}

    @property
    def absolute_error(self) -> Floats:
        """Distance of every released count from the true one, shape (T, bins)."""
        error: Floats = np.abs(self.released - self.true)
        return error

    @property
    def relative_error(self) -> float:
        """Sum of absolute errors over the sum of true counts; NaN where there are no events."""
        return self._relative(self.released, self.true)

    @property
    def revised_relative_error(self) -> float:
        """The same of the revised counts; NaN where there are none."""
        return math.nan if self.revised is None else self._relative(self.revised, self.true)

    def _relative(self, counts: Floats, other: Floats) -> float:
        total = float(self.true.sum())
        return float(np.abs(counts - other).sum()) / total if total else math.nan

    @property
    def dropped_share(self) -> float:
        """Fraction of all events that are dropped; NaN where there are no events."""
        total = float(self.true.sum())
        return 1 - float(self.kept.sum()) / total if total else math.nan

    @property
    def spans(self) -> dict[str, int]:
        """Slots of a slot and of every longer span that is there at least twice, by name."""
        length = self.slots.length
        longer = {
            name: span // length
            for name, span in _SPANS.items()
            if span > length and span % length == 0 and 2 * (span // length) <= len(self.true)
        }
        return {slot_name(self.slots): 1, **longer}

    @property
    def longest(self) -> tuple[str, int] | None:
        """Name and slots of the longest span; None if nothing is longer than a slot."""
        name, size = list(self.spans.items())[-1]
        return (name, size) if size > 1 else None

    def sums(self, noun: str) -> list[list[Sums]]:
        """Of busy bins, of rare ones, of each bin and of all together: for each, over every span.

        The last is of each bin where there is only one.

        Args:
            noun: what a bin is called, in the singular.
        """
        counts = (self.true, self.kept, self.released)
        rows = []
        for of, bins in self._kinds(noun).items():
            taken = [
                one.sum(axis=1, keepdims=True) if bins is None else one[:, bins] for one in counts
            ]
            rows.append(
                [
                    _sums(of, span, *(in_spans(one, size) for one in taken))
                    for span, size in self.spans.items()
                ]
            )
        return rows

    def _kinds(self, noun: str) -> dict[str, list[int] | None]:
        """Bins by what they are called; None for the sum of all of them."""
        bins = self.true.shape[1]
        kinds: dict[str, list[int] | None] = {}
        if bins >= 2 * BUSIEST:
            kinds[f"each of the {BUSIEST} busiest {noun}s"] = self.busiest[:BUSIEST]
            kinds[f"each of the {bins // 2:,} rarest {noun}s"] = self.busiest[-(bins // 2) :]
        kinds[f"each of {number_of(bins, noun)}"] = self.busiest
        if bins > 1:
            kinds[f"all {noun}s together"] = None
        return kinds

    def turns(self, size: int) -> Turns:
        """Changes of at least TURN from one span of so many slots to the next, of busy bins."""
        bins = self.busiest[:BUSIEST]
        true = in_spans(self.true[:, bins], size)
        change = np.diff(true, axis=0)
        large = (np.abs(change) >= TURN * true[:-1]) & (true[:-1] > 0)

        def same(counts: Floats) -> int:
            released = np.diff(in_spans(counts[:, bins], size), axis=0)
            return int((np.sign(released) == np.sign(change))[large].sum())

        revised = None if self.revised is None else same(self.revised)
        return Turns(int(large.sum()), same(self.released), revised)


def in_spans(counts: Floats, size: int) -> Floats:
    """Sums of so many slots in a row, shape (T // size, bins); slots left over are left out."""
    number = len(counts) // size
    added: Floats = counts[: number * size].reshape(number, size, -1).sum(axis=1)
    return added


def _sums(of: str, span: str, true: Floats, kept: Floats, released: Floats) -> Sums:
    total = float(true.sum())

    def part(one: Floats, other: Floats) -> float:
        return float(np.abs(one - other).sum()) / total if total else math.nan

    error = float(np.abs(released - true).mean())
    shares = part(released, true), part(released, kept), part(kept, true)
    return Sums(of, span, float(true.mean()), error, *shares)
