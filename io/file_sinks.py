"""Beam sinks of results: each writes one file, or a file for each query, whole or not at all."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindows

import streamveil.io.coders  # noqa: F401 - batches travel as Arrow writes them
from streamveil.io.events import REJECTED_SCHEMA
from streamveil.io.formats import output_format_of
from streamveil.io.ledgers import ledger_form
from streamveil.io.per_record import PER_RECORD_FORM
from streamveil.io.releases import release_form
from streamveil.io.result_files import AnswerFiles, answer_files
from streamveil.io.revisions import revision_form
from streamveil.io.tables import TableForm, write_table
from streamveil.io.tidy import TIDY, is_quoted, revised_answers_form
from streamveil.mechanisms.core.records import COUNT, ConfigurationError
from streamveil.mechanisms.queries.queries import QuerySet
from streamveil.mechanisms.queries.slot_answers import SlotAnswer

# In the metadata of a batch on its way to a table: how many items the table is of; and how many the
# batch is of, if not of its rows.
_NUMBER, _ITEMS = b"streamveil.number", b"streamveil.items"
_ANY_NUMBER = -1


@dataclass(eq=False)
class WriteTable(beam.PTransform):
    """Write record batches to one file, whose name is exactly `path`. The output is the path.

    The input is a PCollection of batches, or a tuple of this PCollection and a second one, whose
    only element is the expected number of rows. If you give this number, an incomplete file is
    never written, even if a runner continues after a failed step. The ending of the path determines
    the format. The endings are .parquet, .avro, .csv, .jsonl, .json and .ndjson. One worker writes
    the whole file, so use this transform for results and not for events.

    Raises:
        ConfigurationError: at construction, if the format is unknown.
        ValueError: when you apply the transform to an unbounded or windowed PCollection.
        RuntimeError: when the pipeline runs, if the number of rows differs from the expected
            number.
    """

    path: str
    """Path of the file on any Beam filesystem."""
    schema: pa.Schema
    """Schema of every batch. Parquet and Avro files keep its metadata."""
    _: KW_ONLY
    sort_by: str | tuple[str, ...] | None = None
    """Columns by which the rows are sorted in memory. If None, the rows keep the order of
    arrival."""
    private: bool = False
    """Whether only the owner may read the file. See :func:`write_table`."""

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
        """Build the Beam steps that bring all batches to one worker and write the file."""
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
        should = "an unknown number" if number is None else number
        raise RuntimeError(
            f"{path}: {came} results arrived to be written, and {should} were expected: an "
            "earlier step failed or was lost and the runner continued, so the file is not "
            "written. See the first error in the runner's log, and run again"
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
        form = self.form()
        items, *number = inputs if isinstance(inputs, tuple) else (inputs,)
        batches = (
            items
            | "Batch" >> beam.BatchElements(min_batch_size=form.batch, max_batch_size=form.batch)
            | "Convert" >> beam.Map(_converted, form).with_output_types(pa.RecordBatch)
        )
        table = (batches, *number) if number else batches
        return table | "Write" >> WriteTable(self.path, form.schema, sort_by=form.sort_by)


def _converted(items: Sequence[Any], form: TableForm) -> pa.RecordBatch:
    """A batch with its number of items, so that WriteTable can check that no item is missing."""
    return form.convert(items).replace_schema_metadata({_ITEMS: str(len(items))})


@dataclass(eq=False)
class WriteReleases(_WriteResults):
    """Write the releases of one count to a file, sorted by slot.

    The input is a PCollection of releases, or a tuple of the outputs `results` and `done` of the
    transform that made the releases. If you give `done`, the file is written only after all
    releases have arrived. The output is the path. The file formats and the errors are the same as
    for :class:`WriteTable`.

    In the layout `tidy`, the file has a row for each slot and key. The columns are query, slot,
    start, end, key, statistic (`count`), value (not rounded), low, high, stderr and status, as in
    `RESULT_SCHEMA`. `low` and `high` are the ends of a 90 % confidence interval. In CSV files, a
    key that a spreadsheet would run as a formula begins with an added quote.

    In the layout `rows`, the file has a row for each slot, with the columns slot, start, end,
    counts (a list with one count per key), status, published_slot, epsilon, stderr (a list),
    mechanism, alarm and diagnostics (a map). If `shares` is true, the file also has a column shares
    (a list with each key's fraction of the total count).

    Example:
        >>> WriteReleases("releases.csv", labels=["cafe", "park"]).layout
        'tidy'
    """

    path: str
    """Path of the file on any Beam filesystem. The ending of the path sets the format."""
    _: KW_ONLY
    labels: Sequence[str] | None = None
    """The keys, in the order of the counts. They are required for the layout `tidy`. In the layout
    `rows`, a Parquet or Avro file stores them in its metadata."""
    shares: bool = False
    """Whether releases have a distribution over the keys. This is so if all slots share a lifetime
    budget."""
    layout: str = TIDY
    """`tidy` for a row per slot and key, or `rows` for a row per slot."""
    zone: str | None = None
    """Time zone of the times in the layout `tidy`, such as `Europe/Berlin`; None is UTC."""
    query: str = COUNT
    """Name of the query in the layout `tidy`."""

    def form(self) -> TableForm:
        """Return the schema of the file and the function that converts releases to rows."""
        return release_form(
            self.labels,
            shares=self.shares,
            layout=self.layout,
            zone=self.zone,
            query=self.query,
            quoted=is_quoted(self.path),
        )


@dataclass(eq=False)
class WriteRevisions(_WriteResults):
    """Write the revisions (smoothed estimates) of one count to a file. The output is the path.

    The input is a PCollection of revisions, or a tuple of the outputs `revisions` and `revised` of
    the transform that made the revisions. Rows are sorted by slot. In the layout `tidy`, the file
    has the columns that :class:`WriteReleases` writes and a column revised_at, which is the end of
    the last slot that the revision uses. The status of every row is `revised`. In the layout
    `rows`, the columns are slot, start, end, revised_slot (the last slot that the revision uses),
    revised_at, counts, stderr and mechanism.
    """

    path: str
    """Path of the file on any Beam filesystem."""
    _: KW_ONLY
    labels: Sequence[str] | None = None
    """The keys, in the order of the counts. They are required for the layout `tidy`."""
    layout: str = TIDY
    """`tidy` for a row per slot and key, or `rows` for a row per slot."""
    zone: str | None = None
    """Time zone of the times in the layout `tidy`, such as `Europe/Berlin`; None is UTC."""
    query: str = COUNT
    """Name of the query in the layout `tidy`."""

    def form(self) -> TableForm:
        """Return the schema of the file and the function that converts results to rows."""
        return revision_form(
            self.labels,
            layout=self.layout,
            zone=self.zone,
            query=self.query,
            quoted=is_quoted(self.path),
        )


@dataclass(eq=False)
class WriteLedger(_WriteResults):
    """Write the ledger, which lists the budget that each slot spent, to a file.

    The output is the path.

    The input is a PCollection of ledger entries, or a tuple of two outputs of the release
    transform, `ledger` and `booked` (for a single count, `ledger` and `done`). Rows are sorted by
    slot, query and requirement class.

    The columns are query (`count` for a single count), slot, first_base_slot, last_base_slot,
    window (in base slots; null for a lifetime budget), epsilon, users (public number of users in
    the class; 0 if unknown), spent and spent_in_window. `window` and `epsilon` are the requirement
    of the class. `spent` is the epsilon that the query spent in the slot. `spent_in_window` is the
    epsilon that all queries together spent in one window. For a single count, this window ends with
    the slot. For a query set, several windows overlap the slot, and `spent_in_window` is the
    spending in the window with the highest spending.

    If requirements may change (`dynamic` is true), the file has a row for each slot and each group
    of users whose requirements changed in the same way. The columns are slot, window_backward,
    epsilon_backward, window_forward, epsilon_forward, users, spent, spent_backward (the epsilon
    spent in the window that ends with the slot) and infeasible (true if earlier slots of the window
    have already spent more than the requirement allows).
    """

    path: str
    """Path of the file on any Beam filesystem."""
    dynamic: bool = False
    """Whether requirements change."""

    def form(self) -> TableForm:
        """Return the schema of the file and the function that converts results to rows."""
        return ledger_form(self.dynamic)


@dataclass(eq=False)
class WriteRejected(beam.PTransform):
    """Write dead letters (rejected events) to a file, in the order of arrival.

    The output is the path.

    Dead letters contain unprotected data, so never publish dead letters. On a local filesystem,
    only the owner of the file may read it.
    """

    path: str
    """Path of the file on any Beam filesystem."""

    def __post_init__(self) -> None:
        """Check the name."""
        super().__init__()
        output_format_of(self.path)

    def expand(self, batches: PCollection[pa.RecordBatch]) -> PCollection[str]:
        """Write the dead letters."""
        return batches | "Write" >> WriteTable(self.path, REJECTED_SCHEMA, private=True)


@dataclass(eq=False)
class WritePerRecord(_WriteResults):
    """Write per-record results to a file, sorted by window and key. The output is the path.

    The input is a PCollection of result rows, or a tuple of this PCollection and a second one,
    which contains only the expected number of rows. The columns of the file are key, start, end,
    statistic, mechanism, estimate, stderr, epsilon_tau and dropped_bound. The column epsilon_tau is
    a budget. Records with a smaller budget are left out of the estimate, partly or entirely. With
    high probability, the total of the records that are left out is at most dropped_bound.
    """

    path: str
    """Path of the file on any Beam filesystem."""

    def form(self) -> TableForm:
        """Return the schema of the file and the function that converts results to rows."""
        return PER_RECORD_FORM


@dataclass(eq=False)
class WriteAnswers(beam.PTransform):
    """Write each query's results to a file NAME.parquet in a folder (NAME is the query's name).

    The output is the paths.

    The input is a tuple of the outputs `results` and `done` of the release transform. Either all
    files are written or none. Rows are sorted by the end of the slot. The row of a rollup (a longer
    slot that adds up several slots) comes after the rows of the last slot that it covers.

    The first columns are those of `RESULT_SCHEMA`, which are query, slot, start, end, key (a key,
    the name of a group of keys, or `all`), statistic (such as count, mean or p95), value, low and
    high (a 90 % confidence interval), stderr and status.

    The columns after status are diagnostics. `length` is the length of the slot or of the rollup,
    such as 1h. For a rollup, the column `slot` counts rollups of this length. `level` is 0 for
    keys, 1 for groups of keys, and so on. `note` is a remark about the value, or null. For
    statistics with bounds, `clipping` is an estimate of how much larger the value would be without
    the bounds. For the statistic `top`, `rank` is the position of the key among the k largest
    counts, and `chance` is the probability that `rank` is the key's true position.
    """

    folder: str
    """The folder in which the files are written."""
    query_set: QuerySet
    """The query set whose results are written."""

    def __post_init__(self) -> None:
        """Be a PTransform."""
        super().__init__()

    def expand(self, inputs: tuple[PCollection[SlotAnswer], PCollection[int]]) -> PCollection[str]:
        """Gather and write the answers."""
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
            >> beam.ParDo(_WriteAnswersFn(self.folder, self.query_set)).with_output_types(str)
        )


@dataclass(eq=False)
class _WriteAnswersFn(beam.DoFn):
    """Writes all answers, which have come with their number."""

    folder: str
    query_set: QuerySet

    def process(self, element: tuple[int, Iterable[Any]]) -> Iterator[str]:
        numbers: list[int] = []
        files, came = AnswerFiles(self.folder, self.query_set), 0
        for item in element[1]:
            if isinstance(item, SlotAnswer):
                files.add(item)
                came += 1
            else:
                numbers.append(item)
        if numbers != [came]:
            raise RuntimeError(
                f"{self.folder}: {came} results arrived to be written, and "
                f"{numbers[0] if numbers else 'an unknown number'} were expected: an earlier "
                "step failed or was lost and the runner continued, so nothing is written. See "
                "the first error in the runner's log, and run again"
            )
        with ExitStack() as block:
            files.write(block)
        yield from answer_files(self.folder, self.query_set).values()


@dataclass(eq=False)
class WriteRevisedAnswers(_WriteResults):
    """Write the revisions (smoothed estimates) of all queries to one file, sorted by slot end.

    The output is the path. The input is a PCollection of revised results, or a tuple of the outputs
    `revisions` and `revised` of the release transform. The file has the columns that
    :class:`WriteRevisions` writes, followed by the columns length, level and note, which
    :class:`WriteAnswers` describes.
    """

    path: str
    """Path of the file on any Beam filesystem."""
    _: KW_ONLY
    zone: str | None = None
    """Time zone of the times in the layout `tidy`, such as `Europe/Berlin`; None is UTC."""

    def form(self) -> TableForm:
        """Return the schema of the file and the function that converts results to rows."""
        return revised_answers_form(self.zone, quoted=is_quoted(self.path))
