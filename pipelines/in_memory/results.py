"""What a call releases: tables and figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from streamveil.io.answers import ANSWERS_SCHEMA, answer_schema, answers_batch
from streamveil.io.per_record import PER_RECORD_SCHEMA, per_record_batch
from streamveil.io.releases import release_schema, releases_to_batch
from streamveil.io.revisions import revision_schema, revisions_to_batch
from streamveil.io.tidy import (
    LAYOUTS,
    TIDY,
    TIDY_REVISION_SCHEMA,
    TIDY_SCHEMA,
    tidy_batch,
    tidy_revision_batch,
)
from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.records import (
    ConfigurationError,
    PerRecordRow,
    Release,
    Revision,
    format_time,
)
from streamveil.mechanisms.portfolio.slot_answers import SlotAnswer
from streamveil.pipelines.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from streamveil.mechanisms.portfolio.questions import Portfolio, Question

_MOST_LINES = 8
"""Bins or keys of a plot that names none."""


@dataclass(frozen=True, repr=False, eq=False)
class Releases(Result, Sequence[Release]):
    """Releases of all slots, in order: a sequence of :class:`Release`. All of them are public.

    `ledger` is public too; `rejected` and `summary` are raw.
    """

    releases: tuple[Release, ...]
    labels: tuple[str, ...]
    """Names of the bins."""
    ledger: pa.Table
    """What every slot cost every class of users, with the columns of `--ledger`."""
    rejected: pa.Table
    """Dead letters: what could not be counted, why, and where it stood. Raw: never publish it."""
    summary: Mapping[str, Any]
    """What became of the events: read, rejected by reason, beyond_bound, beyond_limit, late,
    counted, slots, statuses and largest_window_use, as `--summary` has it. Raw: never publish
    it."""
    text: str
    """The same in lines."""
    revisions: tuple[Revision, ...] = ()
    """With `revise` a :class:`Revision` of every slot, in order. Public as well."""
    card: Mapping[str, Any] = field(default_factory=dict)
    """What was promised, as the card beside a file of releases has it. Public as well."""

    def __len__(self) -> int:
        return len(self.releases)

    def __getitem__(self, index: Any) -> Any:
        return self.releases[index]

    def __iter__(self) -> Iterator[Release]:
        return iter(self.releases)

    def to_arrow(self, layout: str = TIDY) -> pa.Table:
        """The releases as a table.

        Args:
            layout: `tidy`, a row for each slot and bin, with slot, start, bin, count, low and high
                (where the count is likely to be, 90 %) and status; or `rows`, one for each slot, as
                WriteReleases has it.
        """
        if layout not in LAYOUTS:
            raise ConfigurationError(f"layout {layout!r} is unknown: choose {' or '.join(LAYOUTS)}")
        if layout == TIDY:
            batch = tidy_batch(self.releases, self.labels)
            return pa.Table.from_batches([batch], TIDY_SCHEMA)
        schema = release_schema(self.labels, shares=self.releases[0].shares is not None)
        return pa.Table.from_batches([releases_to_batch(self.releases, schema)], schema)

    def revisions_to_arrow(self, layout: str = TIDY) -> pa.Table:
        """The revisions as a table.

        Args:
            layout: as of :meth:`to_arrow`, with the columns of WriteRevisions.
        """
        if layout not in LAYOUTS:
            raise ConfigurationError(f"layout {layout!r} is unknown: choose {' or '.join(LAYOUTS)}")
        if layout == TIDY:
            schema = TIDY_REVISION_SCHEMA
            batch = tidy_revision_batch(self.revisions, self.labels) if self.revisions else None
        else:
            schema = revision_schema(self.labels)
            batch = revisions_to_batch(self.revisions, schema)
        return pa.Table.from_batches([batch] if batch else [], schema)

    def plot(self, bins: Sequence[str] | None = None, ax: Axes | None = None) -> Axes:
        """Draw a line for each bin, with the interval of 90 % around it; needs matplotlib.

        Args:
            bins: which; the largest, at most 8, when None.
            ax: where; a new figure when None.

        Returns:
            The axes.

        Raises:
            ConfigurationError: for a bin that there is not.
            ImportError: without matplotlib.
        """
        from streamveil.pipelines.in_memory.plots import draw

        return draw(self.to_arrow(), self._largest() if bins is None else self._known(bins), ax)

    def _largest(self) -> list[str]:
        totals = np.sum([release.values for release in self.releases], axis=0)
        largest = sorted(range(len(self.labels)), key=lambda i: -totals[i])[:_MOST_LINES]
        return [self.labels[i] for i in sorted(largest)]

    def _known(self, bins: Sequence[str]) -> list[str]:
        for label in bins:
            if label not in self.labels:
                raise ConfigurationError(
                    f"there is no bin {label!r}: choose of {', '.join(self.labels)}"
                )
        return list(bins)

    def __str__(self) -> str:
        first, last = self.releases[0], self.releases[-1]
        return (
            f"{number_of(len(self), 'release')} of {number_of(len(self.labels), 'bin')} by "
            f"{first.mechanism}, {format_time(first.start)} to {format_time(last.end)}\n{self.text}"
        )


@dataclass(frozen=True, repr=False, eq=False)
class QuestionAnswers(Result, Sequence[SlotAnswer]):
    """The answers to one question, in order of slots: a sequence of :class:`SlotAnswer`.

    A longer time (`times`) comes after its last slot; `length` of an answer says which it is.
    """

    question: Question
    answers: tuple[SlotAnswer, ...]

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, index: Any) -> Any:
        return self.answers[index]

    def to_arrow(self) -> pa.Table:
        """A row for each slot, bin and figure: the columns of WriteAnswers."""
        batch = answers_batch(self.answers, answer_schema(self.question))
        return pa.Table.from_batches([batch])

    def __str__(self) -> str:
        told = self.answers
        length = told[0].length if told else ""
        slots = [one for one in told if one.length == length]
        more = len(told) - len(slots)
        when = f", {format_time(told[0].start)} to {format_time(slots[-1].end)}" if told else ""
        longer = f" and {number_of(more, 'longer time')}" if more else ""
        return (
            f"{self.question.name}: {self.question.statistic.name} of "
            f"{number_of(self.question.domain.bins, 'bin')} in {number_of(len(slots), 'slot')}"
            f"{longer}{when}"
        )


@dataclass(frozen=True, repr=False, eq=False)
class Answers(Result, Mapping[str, QuestionAnswers]):
    """Answers to all questions of a portfolio, by the name of the question. They are public.

    `ledger` is public too; `rejected` and `summary` are raw.
    """

    portfolio: Portfolio
    """What was asked."""
    answers: tuple[SlotAnswer, ...]
    """Of all questions, in the order in which they were given."""
    ledger: pa.Table
    """What every answer cost every class of users, with the columns of WritePortfolioLedger."""
    rejected: pa.Table
    """Dead letters: what some question could not count, and why. Raw: never publish it."""
    summary: Mapping[str, Any]
    """What became of the events, as `--summary` has it. Raw: never publish it."""
    text: str
    """The same in lines."""
    card: Mapping[str, Any] = field(default_factory=dict)
    """What was promised, as the card beside a folder of answers has it. Public as well."""

    def __len__(self) -> int:
        return len(self.portfolio.questions)

    def __iter__(self) -> Iterator[str]:
        return (question.name for question in self.portfolio)

    def __getitem__(self, name: str) -> QuestionAnswers:
        for question in self.portfolio:
            if question.name == name:
                told = tuple(one for one in self.answers if one.question == name)
                return QuestionAnswers(question, told)
        raise KeyError(f"there is no question {name!r}: choose of {', '.join(self)}")

    def to_arrow(self) -> pa.Table:
        """All answers in one table: as of each question, with its name in `question`."""
        told = [answer for name in self for answer in self[name]]
        return pa.Table.from_batches([answers_batch(told, ANSWERS_SCHEMA)])

    def __str__(self) -> str:
        return "\n".join([*(str(self[name]) for name in self), self.text])


@dataclass(frozen=True, repr=False, eq=False)
class Statistics(Result, Sequence[PerRecordRow]):
    """Statistics that protect each record: one for each window and key, a :class:`PerRecordRow`."""

    rows: tuple[PerRecordRow, ...]
    summary: str
    """What was released, in lines: public, whatever the records were."""
    card: Mapping[str, Any] = field(default_factory=dict)
    """What was promised, as the card beside a file of statistics has it. Public as well."""

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def to_arrow(self) -> pa.Table:
        """A row for each, in order of window and key: see WritePerRecord."""
        batch = per_record_batch(self.rows)
        table = pa.Table.from_batches([batch], PER_RECORD_SCHEMA)
        return table.sort_by([(name, "ascending") for name in ("start", "end", "key")])

    def plot(self, keys: Sequence[str] | None = None, ax: Axes | None = None) -> Axes:
        """Draw a line for each key over the windows, a point where there is one; needs matplotlib.

        Args:
            keys: which; those of the largest estimates, at most 8, when None.
            ax: where; a new figure when None.

        Returns:
            The axes; bars are 1.645 standard errors long.

        Raises:
            ConfigurationError: for a key that there is not.
            ImportError: without matplotlib.
        """
        from streamveil.pipelines.in_memory.plots import draw_statistics

        largest: dict[str | None, float] = {}
        for row in self.rows:
            largest[row.key] = max(row.estimate, largest.get(row.key, row.estimate))
        for key in keys or ():
            if key not in largest:
                known = ", ".join(str(one) for one in largest)
                raise ConfigurationError(f"there is no key {key!r}: choose of {known}")
        chosen = sorted(largest, key=lambda key: -largest[key])[:_MOST_LINES]
        return draw_statistics(self.to_arrow(), chosen if keys is None else keys, ax)

    def __str__(self) -> str:
        return self.summary
