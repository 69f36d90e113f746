"""Files of results made in this process: rows as results come, files when all are there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from streamveil.io.answers import stage_answers
from streamveil.io.formats import output_format_of
from streamveil.io.tables import TableForm, stage_table

if TYPE_CHECKING:
    from streamveil.mechanisms.portfolio.questions import Portfolio
    from streamveil.mechanisms.portfolio.slot_answers import SlotAnswer


class Results(Protocol):
    """Takes results of a kind, to keep them until all are there."""

    def add(self, result: Any) -> None:
        """Take one result."""


class Files(Results, Protocol):
    """Writes results to one file or several."""

    def write(self, block: ExitStack) -> None:
        """Write all that were taken; the files get their names when the block ends.

        Raises what writing does.
        """


@dataclass
class ResultFile:
    """One file, whole or not at all.

    Raises ConfigurationError at construction for an unknown format.

    >>> from streamveil.io.events import REJECTED_FORM
    >>> ResultFile("rejected.jsonl", REJECTED_FORM, private=True).path
    'rejected.jsonl'
    """

    path: str
    form: TableForm
    private: bool = False
    """Whether the file is for its owner alone, as :func:`write_table` makes it."""
    _waiting: list[Any] = field(default_factory=list, init=False, repr=False)
    _batches: list[pa.RecordBatch] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        """Check the name."""
        output_format_of(self.path)

    def add(self, result: Any) -> None:
        """Take one result; some of them at a time become rows, which take less memory."""
        self._waiting.append(result)
        if len(self._waiting) >= self.form.batch:
            self._convert()

    @property
    def empty(self) -> bool:
        """Whether nothing has come."""
        return not (self._waiting or self._batches)

    def _convert(self) -> None:
        if self._waiting:
            self._batches.append(self.form.convert(self._waiting))
            self._waiting.clear()

    def write(self, block: ExitStack) -> None:
        """Write the file, as :func:`stage_table` does."""
        self._convert()
        stage_table(
            block,
            self.path,
            self.form.schema,
            self._drained(),
            sort_by=self.form.sort_by,
            private=self.private,
        )

    def _drained(self) -> Iterator[pa.RecordBatch]:
        """The rows, each batch of which is let go."""
        self._batches.reverse()
        while self._batches:
            yield self._batches.pop()


@dataclass
class AnswerFiles:
    """A file for each question in a folder: all are whole, or none."""

    folder: str
    portfolio: Portfolio
    prefix: str = ""
    """Of the names of the files."""
    _answers: list[SlotAnswer] = field(default_factory=list, init=False, repr=False)

    def add(self, result: SlotAnswer) -> None:
        """Take one answer."""
        self._answers.append(result)

    def write(self, block: ExitStack) -> None:
        """Write the files, as :func:`stage_answers` does."""
        stage_answers(block, self.folder, self.portfolio, self._answers, self.prefix)
