"""Rollups of a query, such as days of hourly slots: sums over the slots inside.

The results of a rollup are a function of the results of the slots inside, and cost nothing. Counts
are added up as they were published, so all tables agree, over rollups and groups alike, and the
error of a sum is no larger than the errors of its slots together. A sum of distinct users counts a
user once in each slot.

Errors of consecutive slots are correlated if a mechanism reuses what it published. The error of the
sum of n slots may then be n times that of one slot, and not the square root of n times. So a
release states which part of the error of its slot may last, and which part of earlier lasting
errors remains (`Lasting` in `protocol.py`). Let c be the covariance of the sum's error and the
lasting part of the last slot's error. A slot with variance v, of which the part p may last, and in
which the part k of earlier lasting errors remains, then adds

    variance += v + 2 k c        c = k c + p v

For a mechanism that does not state this, a newly published count has a new error, and any other
count repeats the error of the last publication.

The table contains the coverage of 90 % intervals for slots, for sums over 24 slots, and for these
sums if errors of slots were assumed to be independent; and the error of sums as a fraction of the
stated error. Streams of `evaluate` and of `benchmarks/_visits.py`, 400 slots, two noise keys
together:

    mechanism, stream           slots   sums    independent   error
    adaptive, city              0.92    0.89    0.34          1.02
    adaptive, city-sparse       0.93    0.92    0.37          0.99
    adaptive, sparse            0.90    0.91    0.39          0.76
    adaptive, present-5         0.94    0.93    0.38          0.88
    adaptive, flights           0.94    0.96    0.56          0.73
    adaptive, flights-hourly    0.99    1.00    0.86          0.21
    adaptive, ten streams       0.93    0.95    0.52          0.73
    uniform, city               0.90    0.90    0.90          0.99
    pba, city                   0.86    0.85    0.35          1.42

If the intervals of slots are too wide, as for hourly flights, so are those of sums.

Counts are not rounded, because sums of many small rounded counts would be too low.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.core.records import PUBLISHED, SKIPPED, STATUSES
from streamveil.mechanisms.protocol import Lasting, SlotRelease
from streamveil.mechanisms.queries.cuts import Cut, Months
from streamveil.mechanisms.queries.fusing import parts_of
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.trees import ROOT, parents_of

_HEAD = struct.Struct("<5qd")


@dataclass(frozen=True, eq=False)
class TimeSum:
    """The sum over the slots of a rollup so far; arrays of shape (nodes, parts)."""

    cut: Cut
    """The slots of the query in each period of the rollup."""
    counts: Floats
    variances: Floats
    """Of the counts; NaN if nothing is known about a slot."""
    alike: Floats
    """Covariance of their errors and the lasting part of the last slot's error."""
    last: int = -1
    """Slot that was added last."""
    added: int = 0
    """How many were added."""
    status: str = SKIPPED
    """Of the last of them; `published` if one of them was."""
    common: float = 0.0
    """The largest relative error of the factors that their counts were scaled by, which is not in
    the variances."""

    @classmethod
    def start(cls, cut: Cut, nodes: int, parts: int) -> TimeSum:
        """Before any slot."""
        return cls(cut, *np.zeros((3, nodes, parts)))

    @property
    def number(self) -> int:
        """Of the time, in times of this length."""
        return self.cut.of(self.last)

    @property
    def ended(self) -> bool:
        """Whether the last slot of the time was added."""
        return self.added > 0 and self.cut.due(self.last)

    @property
    def unfinished(self) -> bool:
        """Whether a slot was added, and others are still to come."""
        return self.added > 0 and not self.ended

    def after(
        self,
        slot: int,
        counts: Floats,
        variances: Floats,
        lasting: Lasting,
        status: str,
        common: float = 0.0,
    ) -> TimeSum:
        """With one more slot, the next one: of the same time, or the first of another.

        Args:
            slot: its number.
            counts: estimates for the slot, shape (nodes, parts).
            variances: of them.
            lasting: of them, arrays of the same shape.
            status: of its release.
            common: relative error of the factor that the counts were scaled by.
        """
        so_far = self
        if self.added and self.cut.of(slot) != self.number:
            so_far = TimeSum.start(self.cut, *counts.shape)
        # Errors are no more than alike: a sum never errs more than its slots together.
        most = np.sqrt(so_far.variances * variances)
        kept = np.minimum(lasting.kept * so_far.alike, most)
        return TimeSum(
            self.cut,
            so_far.counts + counts,
            so_far.variances + variances + 2 * kept,
            kept + lasting.part * variances,
            slot,
            so_far.added + 1,
            PUBLISHED if so_far.added and so_far.status == PUBLISHED else status,
            max(so_far.common, common),
        )

    def encode(self) -> bytes:
        """Bytes of the sums."""
        status, parts = STATUSES.index(self.status), self.counts.shape[1]
        head = _HEAD.pack(_tag(self.cut), self.last, self.added, status, parts, self.common)
        return head + np.stack([self.counts, self.variances, self.alike]).astype("<f8").tobytes()

    def read(self, data: bytes) -> TimeSum:
        """Sums of bytes, where slots are cut as in these."""
        _, last, added, status, parts, common = _HEAD.unpack_from(data)
        sums = np.frombuffer(data[_HEAD.size :], "<f8").reshape(3, -1, parts)
        counts, variances, alike = sums.astype(np.float64)
        return TimeSum(self.cut, counts, variances, alike, last, added, STATUSES[status], common)


def _tag(cut: Cut) -> int:
    """What tells the longer times of a query apart in a state: slots in one, or less than 0."""
    return -cut.months if isinstance(cut, Months) else cut.longest


def sums_at_start(query: Query) -> tuple[TimeSum, ...]:
    """One for each longer time of a query."""
    shape = len(query.tree.labels(query.domain)), query.measure.parts
    return tuple(TimeSum.start(one, *shape) for one in query.longer)


def sums_of(written: list[bytes], query: Query) -> tuple[TimeSum, ...]:
    """Those of a state: a time that the query did not have yet begins with the next slot."""
    known = {_HEAD.unpack_from(data)[0]: data for data in written}
    return tuple(
        one.read(known[tag]) if (tag := _tag(one.cut)) in known else one
        for one in sums_at_start(query)
    )


def sums_after(
    sums: tuple[TimeSum, ...], query: Query, slot: int, release: SlotRelease
) -> tuple[TimeSum, ...]:
    """Those of a query with one more slot, the next one."""
    if not sums:
        return sums
    parts = parts_of(query, release.values, release.stderr, release.unshrunk)
    lasting = lasting_of(query, release)
    return tuple(one.after(slot, *parts, lasting, release.status, release.common) for one in sums)


def lasting_of(query: Query, release: SlotRelease) -> Lasting:
    """Of the nodes of a query, arrays of shape (nodes, parts), from a release of its cells.

    What lies between bins and top has the mean of its bins.
    """
    lasting = release.lasting
    if lasting is None:
        anew = release.status == PUBLISHED
        lasting = Lasting(np.full(release.counts.shape, 0.0 if anew else 1.0), np.ones(()))
    kept, part = (
        _of_nodes(query, np.broadcast_to(one, lasting.kept.shape))
        for one in (lasting.kept, lasting.part)
    )
    return Lasting(kept, part)


def _of_nodes(query: Query, cells: Floats) -> Floats:
    measured = cells.reshape(-1, query.measure.parts)
    bins = query.domain.bins
    if not query.tree.levels:
        return measured
    above = query.tree.above(bins)
    parents = parents_of(above)
    found = np.zeros((len(parents), measured.shape[1]))
    np.add.at(found, above, measured[:bins, None])
    found /= np.bincount(above.ravel(), minlength=len(parents))[:, None]
    found[parents == ROOT] = measured[bins:]
    return found


def about(query: Query, query_set: QuerySet, total: TimeSum) -> str:
    """What is to be said of the figures of a longer time in words, or nothing."""
    slot = query_set.slots_of(query).text
    words, slots = [], total.cut.size(total.number)
    if total.added < slots:
        words.append(f"a part of the time: {total.added} of its {slots} slots of {slot}")
    if query.statistic.once:
        words.append(f"users of each slot of {slot}, added up: who is in two counts twice")
    return "; ".join(words)
