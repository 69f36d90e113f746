"""Longer times of a question, such as the days of hours: what its slots in them add up to.

The figures of a longer time are a function of what was told of the slots inside, and cost nothing.
Counts are added up as they were told, so all tables agree, over times and groups alike, and no sum
errs more than its slots together. A sum of distinct users counts a user once in each slot.

Errors of slots in a row are alike where a mechanism goes on with what it published: the sum of n
slots may then err n times as much as one, and not the root of n times. So a release says how much
of the error of its slot may last, and how much of what has lasted so far is still there (`Lasting`
in `protocol.py`). With c the covariance of the sum's error and the part of the last slot's that
may last, slot t with variance v, of which the share p may last, and k of what lasted before, adds

    variance += v + 2 k c        c = k c + p v

Of a mechanism that does not say, a count that is published anew has a new error, and any other
repeats that of the last publication.

Share of counts within their interval of 90 %, of slots and of sums over 24 slots, and of these if
errors of slots were taken for independent; and the error of sums in parts of what is told of it.
Streams of `evaluate` and of `benchmarks/_visits.py`, 400 slots, two noise keys together:

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

Where the slots' own intervals are too wide, as those of hours of flights, so are those of sums.

Counts are not rounded: sums of many small ones would be too low.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.records import PUBLISHED, SKIPPED, STATUSES, format_duration
from streamveil.mechanisms.portfolio.fusing import parts_of
from streamveil.mechanisms.portfolio.questions import Portfolio, Question
from streamveil.mechanisms.portfolio.trees import ROOT, parents_of
from streamveil.mechanisms.protocol import Lasting, SlotRelease

Floats = npt.NDArray[np.float64]

_HEAD = struct.Struct("<5q")


@dataclass(frozen=True, eq=False)
class TimeSum:
    """What the slots of a longer time add up to so far; arrays of shape (nodes, parts)."""

    slots: int
    """Slots of the question in a time."""
    counts: Floats
    variances: Floats
    """Of the counts; NaN where nothing is known of a slot."""
    alike: Floats
    """Covariance of their errors and the part of the last slot's that may last."""
    last: int = -1
    """Slot that was added last."""
    added: int = 0
    """How many were added."""
    status: str = SKIPPED
    """Of the last of them; `published` if one of them was."""

    @classmethod
    def start(cls, slots: int, nodes: int, parts: int) -> TimeSum:
        """Before any slot."""
        return cls(slots, *np.zeros((3, nodes, parts)))

    @property
    def number(self) -> int:
        """Of the time, in times of this length."""
        return self.last // self.slots

    @property
    def ended(self) -> bool:
        """Whether the last slot of the time was added."""
        return self.added > 0 and (self.last + 1) % self.slots == 0

    @property
    def unfinished(self) -> bool:
        """Whether a slot was added, and others are still to come."""
        return self.added > 0 and not self.ended

    def after(
        self, slot: int, counts: Floats, variances: Floats, lasting: Lasting, status: str
    ) -> TimeSum:
        """With one more slot, the next one: of the same time, or the first of another.

        Args:
            slot: its number.
            counts: told of it, shape (nodes, parts).
            variances: of them.
            lasting: of them, arrays of the same shape.
            status: of its release.
        """
        so_far = self
        if self.added and slot // self.slots != self.number:
            so_far = TimeSum.start(self.slots, *counts.shape)
        # Errors are no more than alike: a sum never errs more than its slots together.
        most = np.sqrt(so_far.variances * variances)
        kept = np.minimum(lasting.kept * so_far.alike, most)
        return TimeSum(
            self.slots,
            so_far.counts + counts,
            so_far.variances + variances + 2 * kept,
            kept + lasting.part * variances,
            slot,
            so_far.added + 1,
            PUBLISHED if so_far.added and so_far.status == PUBLISHED else status,
        )

    def encode(self) -> bytes:
        """Bytes of the sums."""
        status, parts = STATUSES.index(self.status), self.counts.shape[1]
        # Below 0 where counts are floats: versions before that wrote whole ones.
        head = _HEAD.pack(self.slots, self.last, self.added, status, -parts)
        return head + np.stack([self.counts, self.variances, self.alike]).astype("<f8").tobytes()

    @classmethod
    def decode(cls, data: bytes) -> TimeSum:
        """Sums of bytes."""
        slots, last, added, status, parts = _HEAD.unpack_from(data)
        sums = np.frombuffer(data[_HEAD.size :], "<f8").reshape(3, -1, abs(parts))
        counts, variances, alike = sums.astype(np.float64)
        if parts > 0:
            counts = sums[0].view("<i8").astype(np.float64)
        return cls(slots, counts, variances, alike, last, added, STATUSES[status])


def sums_at_start(question: Question) -> tuple[TimeSum, ...]:
    """One for each longer time of a question."""
    shape = len(question.tree.labels(question.domain)), question.measure.parts
    return tuple(TimeSum.start(one // question.slots, *shape) for one in question.times)


def sums_of(written: list[bytes], question: Question) -> tuple[TimeSum, ...]:
    """Those of a state: a time that the question did not have yet begins with the next slot."""
    known = {one.slots: one for one in map(TimeSum.decode, written)}
    return tuple(known.get(one.slots, one) for one in sums_at_start(question))


def sums_after(
    sums: tuple[TimeSum, ...], question: Question, slot: int, release: SlotRelease
) -> tuple[TimeSum, ...]:
    """Those of a question with one more slot, the next one."""
    if not sums:
        return sums
    parts = parts_of(question, release.values, release.stderr, release.unshrunk)
    lasting = lasting_of(question, release)
    return tuple(one.after(slot, *parts, lasting, release.status) for one in sums)


def lasting_of(question: Question, release: SlotRelease) -> Lasting:
    """Of the nodes of a question, arrays of shape (nodes, parts), from a release of its cells.

    What lies between bins and top has the mean of its bins.
    """
    told = release.lasting
    if told is None:
        anew = release.status == PUBLISHED
        told = Lasting(np.full(release.counts.shape, 0.0 if anew else 1.0), np.ones(()))
    kept, part = (
        _of_nodes(question, np.broadcast_to(one, told.kept.shape)) for one in (told.kept, told.part)
    )
    return Lasting(kept, part)


def _of_nodes(question: Question, cells: Floats) -> Floats:
    measured = cells.reshape(-1, question.measure.parts)
    bins = question.domain.bins
    if not question.tree.levels:
        return measured
    above = question.tree.above(bins)
    parents = parents_of(above)
    found = np.zeros((len(parents), measured.shape[1]))
    np.add.at(found, above, measured[:bins, None])
    found /= np.bincount(above.ravel(), minlength=len(parents))[:, None]
    found[parents == ROOT] = measured[bins:]
    return found


def about(question: Question, portfolio: Portfolio, told: TimeSum) -> str:
    """What is to be said of the figures of a longer time in words, or nothing."""
    slot = format_duration(portfolio.slots_of(question).length)
    words = []
    if told.added < told.slots:
        words.append(f"a part of the time: {told.added} of its {told.slots} slots of {slot}")
    if question.statistic.once:
        words.append(f"users of each slot of {slot}, added up: who is in two counts twice")
    return "; ".join(words)
