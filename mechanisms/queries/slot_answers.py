"""What is published of a query for one of its slots."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.arrays import Floats, Integers
from streamveil.mechanisms.core.records import NO_NOISE, TEST, Slots
from streamveil.mechanisms.core.tidy import REVISED
from streamveil.mechanisms.protocol import Observed, SlotRelease, SlotRevision
from streamveil.mechanisms.queries.answers import Answer, with_common_error
from streamveil.mechanisms.queries.discovered import discovered_keys
from streamveil.mechanisms.queries.fusing import parts_of
from streamveil.mechanisms.queries.limits import SCALED_BY
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.statistics import TopK
from streamveil.mechanisms.queries.times import TimeSum, about
from streamveil.mechanisms.queries.trees import levels_of
from streamveil.mechanisms.queries.usual import Usual

OF_WHAT_COUNTS = "of the events that count, without those beyond max_slots"
"""Note of ratios under a participation limit."""
COUNTED = ("count", "users")
"""Figures that are never below 0."""


@dataclass(frozen=True, eq=False, kw_only=True)
class SlotAnswer:
    """Figures of a query for one of its slots, or longer times: safe to show to anyone."""

    query: str
    """Its name."""
    slot: int
    """Number of the slot, in slots of the query; of a longer time in times of its length."""
    start: int
    """Start of the slot, microseconds since the epoch."""
    end: int
    """First microsecond after the slot."""
    labels: tuple[str, ...]
    """Of the bins, then of the groups above them."""
    levels: Integers
    """Of each label: 0 for a bin, 1 for a group of bins, and so on; shape (labels,)."""
    figures: Answer
    """Arrays of shape (labels, outputs)."""
    status: str
    """As in :class:`SlotRelease`, or `revised`; a longer time is published if one of its slots was,
    and else has the status of the last one."""
    published_slot: int | None
    """As in :class:`SlotRelease`, in slots of the query; None of a longer time."""
    epsilon: float
    """Largest budget that it cost anybody: nothing for a longer time or a revision."""
    mechanism: str
    length: str
    """Of the slot or the longer time, such as 1h; a day of a calendar is 1d and a month is 1mo,
    however long they are."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the figures, such as p50 and p95."""
        return self.figures.outputs

    @property
    def values(self) -> Floats:
        """Shape (labels, outputs), NaN where there is none."""
        return self.figures.values

    @property
    def stderr(self) -> Floats:
        """Expected standard errors, of the same shape."""
        return self.figures.stderr

    @property
    def low(self) -> Floats:
        """Lower ends of the intervals of 90 %."""
        return self.figures.low

    @property
    def high(self) -> Floats:
        """Upper ends."""
        return self.figures.high

    @property
    def interval(self) -> tuple[Floats, Floats]:
        """Ends of the intervals as they are published, each of shape (labels, outputs).

        No count, of events or users, is below 0, so neither end of its interval is. NaN where
        nothing is known.
        """
        least = np.where([output in COUNTED for output in self.outputs], 0.0, -np.inf)
        low, high = (
            np.maximum(np.where(np.isfinite(end), end, np.nan), least)
            for end in (self.low, self.high)
        )
        return low, high

    @classmethod
    def of(
        cls,
        release: SlotRelease,
        slot: int,
        query: Query,
        query_set: QuerySet,
        usual: Usual | None = None,
    ) -> SlotAnswer:
        """What the released cells of a query's histogram answer, with what is usual of it."""
        figures = answer_of(
            *(query, release.values, release.stderr, usual),
            *(release.unshrunk, release.common),
        )
        factor = f"{release.diagnostics.get(SCALED_BY, 1.0):.3g}"
        if factor != "1" and query.statistic.ratios is None:
            figures = noted(figures, f"scaled by {factor} for what is beyond max_slots")
        return cls._of(
            *(query, query_set.slots_of(query), slot),
            figures,
            release.status,
            release.published_slot,
            release.epsilon,
        )

    @classmethod
    def of_revision(
        cls,
        revision: SlotRevision,
        revised_slot: int,
        query: Query,
        query_set: QuerySet,
        usual: Usual | None = None,
    ) -> RevisedAnswer:
        """What a query answers of one of its slots by what was learnt since.

        The function is that of :meth:`of`, of the cells as they are revised. It costs no budget,
        and is as private as the answers: the cells are made of releases up to `revised_slot` alone
        (`adaptive/revisions.py`), and so is what is usual. True counts have no part in either.

        Args:
            revision: of the cells of the slot.
            revised_slot: the last slot of the query that was released.
            query: what was asked.
            query_set: it is a query of.
            usual: what is usual of ratios of that slot (:meth:`Usual.of_earlier`).
        """
        slots = query_set.slots_of(query)
        figures = answer_of(
            *(query, revision.values, revision.stderr, usual),
            *(revision.unshrunk, revision.common),
        )
        answer = cls._of(query, slots, revision.slot, figures, REVISED)
        return RevisedAnswer(
            **vars(answer), revised_slot=revised_slot, revised_at=slots.end(revised_slot)
        )

    @classmethod
    def of_time(
        cls,
        total: TimeSum,
        query: Query,
        query_set: QuerySet,
        usual: Usual | None = None,
    ) -> SlotAnswer:
        """What the slots of a longer time that were added up answer together.

        Args:
            total: their sums.
            query: what was asked.
            query_set: it is a query of.
            usual: what is usual of ratios, after that slot.
        """
        length = query.times[query.longer.index(total.cut)]
        return cls._of(
            *(query, query_set.of_length(length), total.number),
            figures_of(total, query, query_set, usual),
            total.status,
        )

    @classmethod
    def _of(
        cls,
        query: Query,
        slots: Slots,
        number: int,
        figures: Answer,
        status: str,
        published_slot: int | None = None,
        epsilon: float = 0.0,
    ) -> SlotAnswer:
        """Figures of a slot by its number, or of a longer time."""
        return cls(
            query=query.name,
            slot=number,
            start=slots.start(number),
            end=slots.end(number),
            labels=query.tree.labels(query.domain),
            levels=levels_of(query.tree.above(query.domain.bins)),
            figures=figures,
            status=status,
            published_slot=published_slot,
            epsilon=epsilon,
            mechanism=NO_NOISE if status == TEST else query.mechanism,
            length=slots.text,
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class RevisedAnswer(SlotAnswer):
    """Figures of a slot that are published for the second and last time: safe to show to anyone.

    The first ones stay as they are.
    """

    revised_slot: int
    """The last slot of the query whose release they take into account."""
    revised_at: int
    """The end of that one, microseconds since the epoch."""


def figures_of(
    total: TimeSum, query: Query, query_set: QuerySet, usual: Usual | None = None
) -> Answer:
    """The figures of a longer time alone: see :meth:`SlotAnswer.of_time`."""
    # What was observed lately is of its slots, whichever of them.
    settled = usual and replace(usual.settled(), own=1.0)
    found = _answered(query, total.counts, total.variances, settled)
    return noted(_limited(found, query, total.common), about(query, query_set, total))


def noted(found: Answer, words: str) -> Answer:
    """The same figures, of each of which these words are said as well; perhaps none."""
    if not words:
        return found
    notes = [f"{note}; {words}" if note else words for note in found.notes.ravel().tolist()]
    return replace(found, notes=np.array(notes).reshape(found.notes.shape))


def _limited(found: Answer, query: Query, common: float) -> Answer:
    """Figures of cells that were scaled by a factor with this error, which ratios are not of."""
    if not common:
        return found
    if query.statistic.ratios is None:
        return with_common_error(found, common)
    return noted(found, OF_WHAT_COUNTS)


def answer_of(
    query: Query,
    counts: npt.ArrayLike,
    stderr: npt.ArrayLike,
    usual: Usual | None = None,
    unshrunk: Observed | None = None,
    common: float = 0.0,
) -> Answer:
    """The figures of one slot, of bins and groups that add up.

    Args:
        query: what was asked.
        counts: released cells, shape (cells,).
        stderr: of them, NaN where nothing is known, shape (cells,).
        usual: what is usual of ratios; None in the first slot, and for other statistics.
        unshrunk: the cells before they were shrunk, if they were.
        common: relative error of the factor that all cells were scaled by, not in `stderr`.
    """
    if usual and query.tree.levels:
        # What groups tell of their bins is in these counts, and not in what was observed of each.
        usual = usual.settled()
    found = _answered(query, *parts_of(query, counts, stderr, unshrunk), usual)
    return _limited(found, query, common)


def _answered(query: Query, counts: Floats, variances: Floats, usual: Usual | None) -> Answer:
    """The results from counts. If keys are discovered, `top` ranks only the listed keys."""
    keys = discovered_keys(query)
    if keys is not None and isinstance(query.statistic, TopK):
        return query.statistic.among(len(keys.values), counts, variances)
    return query.statistic.answer(counts, variances, usual)
