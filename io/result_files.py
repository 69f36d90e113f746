"""Files of results made in this process: rows as results come, files when all are there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from streamveil.io import filesystems
from streamveil.io.formats import output_format_of
from streamveil.io.tables import TableForm, stage_table
from streamveil.io.tidy import answer_schema, answers_batch
from streamveil.mechanisms.core.local_days import zone_of
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.wording import opt

if TYPE_CHECKING:
    from streamveil.mechanisms.queries.queries import QuerySet
    from streamveil.mechanisms.queries.slot_answers import SlotAnswer


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
    """A file for each query in a folder: all are whole, or none."""

    folder: str
    query_set: QuerySet
    prefix: str = ""
    """Of the names of the files."""
    _answers: dict[str, list[SlotAnswer]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Begin without answers."""
        self._answers = {query.name: [] for query in self.query_set}

    def add(self, result: SlotAnswer) -> None:
        """Take one answer."""
        self._answers[result.query].append(result)

    def write(self, block: ExitStack) -> None:
        """Write the files, in the order of the ends of slots; a longer time is after its last slot.

        Raises ConfigurationError for a folder that cannot be made.
        """
        make_folder(self.folder)
        paths = answer_files(self.folder, self.query_set, self.prefix)
        for query in self.query_set:
            in_order = sorted(self._answers.pop(query.name), key=lambda one: (one.end, -one.start))
            schema = answer_schema(query, zone_of(self.query_set.base))
            stage_table(block, paths[query.name], schema, [answers_batch(in_order, schema)])


def answer_files(folder: str, query_set: QuerySet, prefix: str = "") -> dict[str, str]:
    """Return a mapping from the name of each query to the path of its result file."""
    return {
        query.name: filesystems.join(folder, f"{prefix}{query.name}.parquet") for query in query_set
    }


def make_folder(folder: str) -> None:
    """Create the folder for the results of queries, if it does not exist.

    Raises:
        ConfigurationError: if the folder cannot be created, or if a file with the same name exists.
    """
    if "://" not in folder:
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"{folder}: the folder of the results cannot be made ({error.strerror}): choose "
                f"another one ({opt.output})"
            ) from None
