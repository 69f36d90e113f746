"""Beam sinks of results: each writes one file, or a file for each question, whole or not at all."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindows

import streamveil.io.coders  # noqa: F401 - batches travel as Arrow writes them
from streamveil.io.answers import PORTFOLIO_LEDGER_FORM, write_answers
from streamveil.io.events import REJECTED_SCHEMA
from streamveil.io.formats import output_format_of
from streamveil.io.per_record import PER_RECORD_FORM
from streamveil.io.releases import ledger_form, release_form
from streamveil.io.revisions import revision_form
from streamveil.io.tables import TableForm, write_table
from streamveil.io.tidy import ROWS
from streamveil.mechanisms.core.records import (
    ConfigurationError,
)
from streamveil.mechanisms.portfolio.questions import Portfolio
from streamveil.mechanisms.portfolio.slot_answers import SlotAnswer

# In the metadata of a batch on its way to a table: how many items the table is of; and how many the
# batch is of, if not of its rows.
_NUMBER, _ITEMS = b"streamveil.number", b"streamveil.items"
_ANY_NUMBER = -1


@dataclass(eq=False)
class WriteTable(beam.PTransform):
    """Writes record batches to one file under exactly that name; gives its path when it is there.

    Input: the batches, or a tuple of them and of one number: how many rows there must be. When a
    step has failed, a runner may go on for a while without what that step was given; with the
    number such a table is never written.

    The format goes by the name: .parquet, .avro, .csv, or .jsonl, .json and .ndjson. One worker
    writes it all, so it is for results, not for events. Without any batch the table is empty.
    Raises ConfigurationError at construction for an unknown format, and ValueError when applied
    to an unbounded or a windowed PCollection, which would never be one table; when the pipeline
    runs, RuntimeError where the number of rows is another.
    """

    path: str
    schema: pa.Schema
    """Schema of every batch; Parquet and Avro files keep its metadata."""
    _: KW_ONLY
    sort_by: str | tuple[str, ...] | None = None
    """Columns to sort the rows by, which gathers them in memory; None writes them as they come."""
    private: bool = False
    """Whether the file is for its owner alone, as :func:`write_table` makes it."""

    def __post_init__(self) -> None:
        """Check the name and the columns."""
        super().__init__()
        output_format_of(self.path)
        keys = (self.sort_by,) if isinstance(self.sort_by, str) else self.sort_by or ()
        for key in keys:
            if key not in self.schema.names:
                raise ConfigurationError(
                    f"{self.path}: the table has no column {key!r} to sort by; its columns are "
                    f"{', '.join(self.schema.names)}"
                )
        self._keys = tuple(keys)

    def expand(
        self,
        inputs: PCollection[pa.RecordBatch] | tuple[PCollection[pa.RecordBatch], PCollection[int]],
    ) -> PCollection[str]:
        """Build the steps: bring all batches to one worker and write."""
        batches, number = inputs if isinstance(inputs, tuple) else (inputs, None)
        if not batches.is_bounded:
            raise ValueError(f"{self.path}: an unbounded PCollection cannot be written as one file")
        if not isinstance(batches.windowing.windowfn, GlobalWindows):
            raise ValueError(
                f"{self.path}: a windowed PCollection cannot be written as one file: put it into "
                "GlobalWindows first"
            )
        keyed = tuple[int, pa.RecordBatch]
        if number is None:
            number = batches.pipeline | "AnyNumber" >> beam.Create([_ANY_NUMBER], reshuffle=False)
        # Nothing would be written without an element: one empty batch is always there.
        empty = number | "Seed" >> beam.Map(_empty, self.schema).with_output_types(keyed)
        return (
            (batches | "Key" >> beam.Map(_for_one_worker).with_output_types(keyed), empty)
            | "Join" >> beam.Flatten()
            | "Gather" >> beam.GroupByKey()
            | "Write"
            >> beam.ParDo(
                _WriteFn(self.path, self.schema, self._keys, self.private)
            ).with_output_types(str)
        )


def _for_one_worker(item: Any) -> tuple[int, Any]:
    return 0, item


def _empty(number: int, schema: pa.Schema) -> tuple[int, pa.RecordBatch]:
    """A batch that says how many items there must be of the table."""
    batch = pa.RecordBatch.from_pylist([], schema)
    return _for_one_worker(batch.replace_schema_metadata({_NUMBER: str(number)}))


def _whole_table(path: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches; raises RuntimeError at their end where some are missing."""
    number, came = None, 0
    for batch in batches:
        metadata = batch.schema.metadata or {}
        if _NUMBER in metadata:
            number = int(metadata[_NUMBER])
        came += int(metadata.get(_ITEMS, batch.num_rows))
        yield batch
    if number not in (_ANY_NUMBER, came):
        should = "nobody says how many" if number is None else number
        raise RuntimeError(
            f"{path}: {came} results came to be written, and {should} should: a step before this "
            "failed or was lost, and the runner went on, so the file is not written. See the first "
            "error in the runner's log, and run again"
        )


class _WriteFn(beam.DoFn):
    """Writes all batches of the one key."""

    def __init__(self, path: str, schema: pa.Schema, keys: tuple[str, ...], private: bool) -> None:
        self._path = path
        self._schema = schema
        self._keys = keys
        self._private = private

    def process(self, element: tuple[int, Iterable[pa.RecordBatch]]) -> Iterator[str]:
        batches = _whole_table(self._path, element[1])
        write_table(self._path, self._schema, batches, sort_by=self._keys, private=self._private)
        yield self._path


@dataclass(eq=False)
class _WriteItems(beam.PTransform):
    """Writes items to one file, some of them in a batch.

    Input: items, or a tuple of them and of their number, as of WriteTable, whatever rows they have.
    """

    path: str
    form: TableForm

    def __post_init__(self) -> None:
        """Be a PTransform."""
        super().__init__()

    def expand(
        self, inputs: PCollection[Any] | tuple[PCollection[Any], PCollection[int]]
    ) -> PCollection[str]:
        """Build the steps: batch, convert, write."""
        form = self.form
        items, *number = inputs if isinstance(inputs, tuple) else (inputs,)
        batches = (
            items
            | "Batch" >> beam.BatchElements(min_batch_size=form.batch, max_batch_size=form.batch)
            | "Convert" >> beam.Map(_converted, form).with_output_types(pa.RecordBatch)
        )
        table = (batches, *number) if number else batches
        return table | "Write" >> WriteTable(self.path, form.schema, sort_by=form.sort_by)


def _converted(items: Sequence[Any], form: TableForm) -> pa.RecordBatch:
    return _of_items(form.convert(items), len(items))


def _of_items(batch: pa.RecordBatch, items: int) -> pa.RecordBatch:
    """The batch with its number of items, by which WriteTable checks that none is missing."""
    return batch.replace_schema_metadata({_ITEMS: str(items)})


class _WriteResults(beam.PTransform):
    """Writes results of one kind to one file: see the classes below.

    Input: results, or a tuple of them and of their number. Raises ConfigurationError at
    construction for a path or a form that cannot be.
    """

    path: str

    def __post_init__(self) -> None:
        """Check the name and the form."""
        super().__init__()
        output_format_of(self.path)
        self.form()

    @abstractmethod
    def form(self) -> TableForm:
        """How results become rows."""

    def expand(
        self, inputs: PCollection[Any] | tuple[PCollection[Any], PCollection[int]]
    ) -> PCollection[str]:
        """Build the steps: batch, convert, write."""
        return inputs | "Write" >> _WriteItems(self.path, self.form())


@dataclass(eq=False)
class WriteReleases(_WriteResults):
    """Writes releases to one file, sorted by slot; gives its path. See WriteTable.

    Input: releases, or a tuple of them and of their number, which the outputs of the transforms
    have as `done`: then what is not whole, because a step failed, is never written.

    Columns: slot int64, start and end timestamp[us, UTC], counts list<int64>, status string,
    published_slot int64 or null, epsilon double, stderr list<double or null>, mechanism string,
    alarm bool, diagnostics map<string, double or null>; with `shares` also shares list<double>. In
    the layout `tidy`, with a row for each bin: slot int64, start timestamp[us, UTC], bin string,
    count double (not rounded), low and high double or null (see :func:`tidy_batch`), status string;
    a CSV file has a quote before a bin that a spreadsheet would run as a formula.
    """

    path: str
    _: KW_ONLY
    labels: Sequence[str] | None = None
    """Names of the bins, kept in the metadata of a Parquet or Avro file."""
    shares: bool = False
    """Whether releases have them: those of one budget forever."""
    layout: str = ROWS
    """`rows`, one for each release, or `tidy`, one for each release and bin."""

    def form(self) -> TableForm:
        """How they become rows."""
        return release_form(self.path, self.labels, shares=self.shares, layout=self.layout)


@dataclass(eq=False)
class WriteRevisions(_WriteResults):
    """Writes revisions to one file, sorted by slot; gives its path. See WriteTable.

    Input: revisions, or a tuple of them and of their number, as of WriteReleases.

    Columns: slot int64, start and end timestamp[us, UTC], revised_slot int64 (the last slot whose
    release is in it) and revised_at timestamp[us, UTC] (when that one ended), counts list<int64>,
    stderr list<double or null>, mechanism string. In the layout `tidy` those of releases, with
    revised_at in place of status.
    """

    path: str
    _: KW_ONLY
    labels: Sequence[str] | None = None
    """Names of the bins, kept in the metadata of a Parquet or Avro file."""
    layout: str = ROWS
    """As of WriteReleases."""

    def form(self) -> TableForm:
        """How they become rows."""
        return revision_form(self.path, self.labels, layout=self.layout)


@dataclass(eq=False)
class WriteLedger(_WriteResults):
    """Writes what every slot cost every class, sorted by slot and class; gives the path.

    Input: entries, or a tuple of them and of their number, as of WriteReleases.

    Columns: slot int64, window int64 (null: the whole stream), epsilon double, users int64 (public
    size of the class; 0 for the whole stream, where it is not asked for), spent double (in the
    slot), spent_in_window double (in the window that ends with it).

    Where requirements change, `dynamic`, a row is a ledger: slot int64, window_backward int64,
    epsilon_backward double, window_forward int64, epsilon_forward double, users int64, spent
    double (in the slot), spent_backward double (in the window that ends with it), infeasible bool
    (that is more than asked for, for earlier slots spent it).
    """

    path: str
    dynamic: bool = False

    def form(self) -> TableForm:
        """How they become rows."""
        return ledger_form(self.dynamic)


@dataclass(eq=False)
class WriteRejected(beam.PTransform):
    """Writes rejected events, batches of REJECTED_COLUMNS, as they come; gives the path.

    They are raw data: on a local filesystem the file is for its owner alone.
    """

    path: str

    def __post_init__(self) -> None:
        """Check the name."""
        super().__init__()
        output_format_of(self.path)

    def expand(self, batches: PCollection[pa.RecordBatch]) -> PCollection[str]:
        """Build the step: write."""
        return batches | "Write" >> WriteTable(self.path, REJECTED_SCHEMA, private=True)


@dataclass(eq=False)
class WritePerRecord(_WriteResults):
    """Writes rows to one file, sorted by window and key; gives its path. See WriteTable.

    Input: rows, or a tuple of them and of their number, as of WriteTable.

    Columns: key string or null, start and end timestamp[us, UTC] or null, statistic string,
    mechanism string, estimate double, epsilon_tau double, stderr and dropped_bound double or null.
    """

    path: str

    def form(self) -> TableForm:
        """How they become rows."""
        return PER_RECORD_FORM


@dataclass(eq=False)
class WriteAnswers(beam.PTransform):
    """Writes the answers to each question to NAME.parquet in a folder; gives the paths.

    Input: a tuple of answers and of their number, the `done` of `PrivateAnswers`. All files are
    written, sorted by the end of slots, or none; a longer time comes after its last slot.

    Columns: slot int64, start and end timestamp[us, UTC], length string (of the slot, such as 1h,
    or of a longer time, in which `slot` is then counted), bin string (`all` without a domain; a
    group's name), level int64 (0 for bins, 1 for groups of bins, and so on), statistic string (such
    as count, mean or p95), value, stderr, low and high double or null (the interval of 90 %),
    status string, note string or null (what is to be said of the figure); of statistics of bounded
    numbers clipping double or null (by how much the figure would be larger without the bounds); of
    the top k rank int64 or null, and chance double (that of the rank).
    """

    folder: str
    portfolio: Portfolio
    prefix: str = ""
    """Of the names of the files."""

    def __post_init__(self) -> None:
        """Be a PTransform."""
        super().__init__()

    def expand(self, inputs: tuple[PCollection[SlotAnswer], PCollection[int]]) -> PCollection[str]:
        """Build the steps: gather, write."""
        answers, number = inputs
        keyed = tuple[int, Any]
        return (
            (
                answers | "Key" >> beam.Map(_for_one_worker).with_output_types(keyed),
                number | "KeyNumber" >> beam.Map(_for_one_worker).with_output_types(keyed),
            )
            | "Join" >> beam.Flatten()
            | "Gather" >> beam.GroupByKey()
            | "Write"
            >> beam.ParDo(
                _WriteAnswersFn(self.folder, self.portfolio, self.prefix)
            ).with_output_types(str)
        )


@dataclass(eq=False)
class _WriteAnswersFn(beam.DoFn):
    """Writes all answers, which have come with their number."""

    folder: str
    portfolio: Portfolio
    prefix: str

    def process(self, element: tuple[int, Iterable[Any]]) -> Iterator[str]:
        numbers: list[int] = []
        answers: list[SlotAnswer] = []
        for item in element[1]:
            if isinstance(item, SlotAnswer):
                answers.append(item)
            else:
                numbers.append(item)
        if numbers != [len(answers)]:
            raise RuntimeError(
                f"{self.folder}: {len(answers)} answers came to be written, and "
                f"{numbers[0] if numbers else 'nobody says how many'} should: a step before this "
                "failed or was lost, and the runner went on, so nothing is written. See the first "
                "error in the runner's log, and run again"
            )
        yield from write_answers(self.folder, self.portfolio, answers, self.prefix)


@dataclass(eq=False)
class WritePortfolioLedger(_WriteResults):
    """Writes what every answer cost every class, sorted by base slot and question; gives the path.

    Input: a tuple of entries and of their number, the `booked` of `PrivateAnswers`.

    Columns: question string, first_base_slot and last_base_slot int64 (of the question's slot),
    window int64 (in base slots), epsilon double, users int64 (public size of the class), spent
    double (by the answer), spent_in_window double (by all questions in the window of base slots
    that ends with the last one).
    """

    path: str

    def form(self) -> TableForm:
        """How they become rows."""
        return PORTFOLIO_LEDGER_FORM
