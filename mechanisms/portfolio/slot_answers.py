"""What is published of a question for one of its slots."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from streamveil.mechanisms.core.records import Slots, format_duration
from streamveil.mechanisms.portfolio.answers import Answer
from streamveil.mechanisms.portfolio.fusing import parts_of
from streamveil.mechanisms.portfolio.questions import Portfolio, Question
from streamveil.mechanisms.portfolio.times import TimeSum, about
from streamveil.mechanisms.portfolio.trees import levels_of
from streamveil.mechanisms.portfolio.usual import Usual
from streamveil.mechanisms.protocol import Observed, SlotRelease

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, kw_only=True)
class SlotAnswer:
    """Figures of a question for one of its slots, or longer times: safe to show to anyone."""

    question: str
    """Its name."""
    slot: int
    """Number of the slot, in slots of the question; of a longer time in times of its length."""
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
    """As in :class:`SlotRelease`; a longer time is published if one of its slots was, and else has
    the status of the last one."""
    published_slot: int | None
    """As in :class:`SlotRelease`, in slots of the question; None of a longer time."""
    epsilon: float
    """Largest budget that it cost anybody: nothing for a longer time."""
    mechanism: str

    @property
    def length(self) -> str:
        """Of the slot or the longer time, such as 1h."""
        return format_duration(self.end - self.start)

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

    @classmethod
    def of(
        cls,
        release: SlotRelease,
        slot: int,
        question: Question,
        portfolio: Portfolio,
        usual: Usual | None = None,
    ) -> SlotAnswer:
        """What the released cells of a question's histogram answer, with what is usual of it."""
        return cls._of(
            *(question, portfolio.slots_of(question), slot),
            answer_of(question, release.values, release.stderr, usual, release.unshrunk),
            release.status,
            release.published_slot,
            release.epsilon,
        )

    @classmethod
    def of_time(
        cls,
        told: TimeSum,
        question: Question,
        portfolio: Portfolio,
        usual: Usual | None = None,
    ) -> SlotAnswer:
        """What the slots of a longer time that were added up answer together.

        Args:
            told: their sums.
            question: what was asked.
            portfolio: it is a question of.
            usual: what is usual of ratios, after that slot.
        """
        return cls._of(
            *(question, portfolio.of_length(told.slots * question.slots), told.number),
            figures_of(told, question, portfolio, usual),
            told.status,
        )

    @classmethod
    def _of(
        cls,
        question: Question,
        slots: Slots,
        number: int,
        figures: Answer,
        status: str,
        published_slot: int | None = None,
        epsilon: float = 0.0,
    ) -> SlotAnswer:
        """Figures of a slot by its number, or of a longer time."""
        return cls(
            question=question.name,
            slot=number,
            start=slots.start(number),
            end=slots.end(number),
            labels=question.tree.labels(question.domain),
            levels=levels_of(question.tree.above(question.domain.bins)),
            figures=figures,
            status=status,
            published_slot=published_slot,
            epsilon=epsilon,
            mechanism=question.mechanism,
        )


def figures_of(
    told: TimeSum, question: Question, portfolio: Portfolio, usual: Usual | None = None
) -> Answer:
    """The figures of a longer time alone: see :meth:`SlotAnswer.of_time`."""
    # What was observed lately is of its slots, whichever of them.
    found = question.statistic.answer(
        told.counts, told.variances, usual and replace(usual.settled(), own=1.0)
    )
    words = about(question, portfolio, told)
    if not words:
        return found
    notes = [f"{note}; {words}" if note else words for note in found.notes.ravel().tolist()]
    return replace(found, notes=np.array(notes).reshape(found.notes.shape))


def answer_of(
    question: Question,
    counts: npt.ArrayLike,
    stderr: npt.ArrayLike,
    usual: Usual | None = None,
    unshrunk: Observed | None = None,
) -> Answer:
    """The figures of one slot, of bins and groups that add up.

    Args:
        question: what was asked.
        counts: released cells, shape (cells,).
        stderr: of them, NaN where nothing is known, shape (cells,).
        usual: what is usual of ratios; None in the first slot, and for other statistics.
        unshrunk: the cells before they were shrunk, if they were.
    """
    if usual and question.tree.levels:
        # What groups tell of their bins is in these counts, and not in what was observed of each.
        usual = usual.settled()
    return question.statistic.answer(*parts_of(question, counts, stderr, unshrunk), usual)
