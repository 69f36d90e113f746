"""BigQuery: releases, revisions and statistics as rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

import apache_beam as beam
import pyarrow as pa
from apache_beam.io.gcp.bigquery import BigQueryDisposition, WriteToBigQuery
from apache_beam.io.gcp.bigquery_tools import RetryStrategy
from apache_beam.pvalue import PCollection

from streamveil.io.bigquery_tables import fields_there
from streamveil.io.jsonlines import json_rows
from streamveil.io.optional import require_google
from streamveil.io.per_record import PER_RECORD_SCHEMA, per_record_object
from streamveil.io.releases import release_form, release_row, release_schema
from streamveil.io.revisions import revision_form, revision_row, revision_schema
from streamveil.io.tables import TableForm
from streamveil.io.tidy import TIDY
from streamveil.mechanisms.core.records import (
    COUNT,
    ConfigurationError,
    MachineFault,
    PerRecordRow,
    Release,
    Revision,
)

_TYPES = {
    pa.int64(): "INTEGER",
    pa.float64(): "FLOAT",
    pa.string(): "STRING",
    pa.bool_(): "BOOLEAN",
}
_BINS = {"name": "bins", "type": "STRING", "mode": "REPEATED"}


def bigquery_schema(*, bins: bool = False, shares: bool = False) -> dict[str, Any]:
    """Return the schema of a BigQuery table for releases, with one row per slot (layout `rows`).

    The table has the same columns as the files that :class:`WriteReleases` writes. Lists become
    repeated fields, and `diagnostics` becomes a repeated record of `name` and `value`.

    Args:
        bins: whether the table has a repeated column that contains the keys.
        shares: whether the table has a repeated column with each key's fraction of the total count.
    """
    fields = [_field(column) for column in release_schema(shares=shares)]
    return {"fields": [*fields, _BINS] if bins else fields}


def _schema_of(columns: pa.Schema) -> dict[str, Any]:
    return {"fields": [_field(column) for column in columns]}


def _field(column: pa.Field) -> dict[str, Any]:
    mode = "NULLABLE" if column.nullable else "REQUIRED"
    kind = column.type
    if pa.types.is_map(kind):
        value = _field(kind.item_field)
        key = {"name": "name", "type": _TYPES[kind.key_type], "mode": "REQUIRED"}
        fields = [key, {**value, "name": "value"}]
        return {"name": column.name, "type": "RECORD", "mode": "REPEATED", "fields": fields}
    if pa.types.is_list(kind):
        kind, mode = kind.value_type, "REPEATED"
    type_name = "TIMESTAMP" if pa.types.is_timestamp(kind) else _TYPES[kind]
    return {"name": column.name, "type": type_name, "mode": mode}


def bigquery_row(release: Release, labels: Sequence[str] | None = None) -> dict[str, Any]:
    """Row of a release, of :func:`bigquery_schema`, with `bins` if there are labels.

    A repeated column of BigQuery holds no null: `stderr`, which is unknown before the first
    publication, is then empty. A diagnostic that is not finite is null.
    """
    row = release_row(release)
    row["stderr"] = [] if None in row["stderr"] else row["stderr"]
    row["diagnostics"] = [
        {"name": name, "value": value} for name, value in row["diagnostics"].items()
    ]
    return row if labels is None else {**row, "bins": list(labels)}


METHODS = ("FILE_LOADS", "STREAMING_INSERTS")
"""How rows get into a table: by files and load jobs, or one by one."""


_ONLY_LOADS = (
    "add_columns=true is for load jobs: BigQuery takes minutes until rows that are streamed may "
    "have a new column; add it by ALTER TABLE, and wait, or leave method away where the input ends"
)
TABLE_SETTINGS = ("method", "add_columns")
"""What can be set of a table to write to."""


def table_settings(settings: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of the transforms below that settings stand for.

    Raises ConfigurationError for a method that is none, for add_columns neither true nor false, and
    for adding columns where rows are streamed.
    """
    method, add = settings.get("method"), settings.get("add_columns", "false")
    if method is not None and method not in METHODS:
        raise ConfigurationError(f"method={method} is none of {', '.join(METHODS)}")
    if add not in ("true", "false"):
        raise ConfigurationError(f"add_columns={add} is neither true nor false")
    if add == "true" and method == "STREAMING_INSERTS":
        raise ConfigurationError(_ONLY_LOADS)
    return {"arguments": {"method": method} if method else {}, "add_columns": add == "true"}


@dataclass(eq=False)
class _WriteRowsToBigQuery(beam.PTransform):
    table: str
    """`PROJECT.DATASET.TABLE`."""
    _: KW_ONLY
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of Beam's WriteToBigQuery, such as `method`, `triggering_frequency` or
    `additional_bq_parameters`, or in place of what is chosen here."""
    add_columns: bool = False
    """Whether load jobs add the columns that a table lacks, as ones that may be empty."""

    def __post_init__(self) -> None:
        """Check the name."""
        super().__init__()
        require_google("google.cloud.bigquery", f"writing to BigQuery ({self.table})")
        parts = self.table.rsplit(".", 2)
        if len(parts) != 3 or not all(parts):
            raise ConfigurationError(
                f"table {self.table!r} is not one of BigQuery: write PROJECT.DATASET.TABLE"
            )

    @property
    def _schema(self) -> dict[str, Any]:
        """Of the rows."""
        raise NotImplementedError

    def check(self) -> None:
        """Look whether the table takes the rows, before anything is spent.

        Raises:
            ConfigurationError: for a dataset that is not there, and for a table that is there
                with other types, with a column that would stay empty and may not, or without one
                of the columns where none are to be added.
            MachineFault: when BigQuery does not answer, or refuses this account.
        """
        wanted, there = self._schema["fields"], fields_there(self.table)
        if there is not None:
            missing = _missing(wanted, there)
            if missing and not self.add_columns:
                _refuse_missing(self.table, missing)
            _refuse_misfit(self.table, wanted, there)

    def _write(self, rows: PCollection[dict[str, Any]]) -> Any:
        """The last step."""
        method = self.arguments.get("method", "DEFAULT")
        loads = method == "FILE_LOADS" or (method == "DEFAULT" and rows.is_bounded)
        schema = self._schema
        arguments = {
            "schema": _SchemaOf(self.table, schema["fields"]) if loads else schema,
            "create_disposition": BigQueryDisposition.CREATE_IF_NEEDED,
            "write_disposition": BigQueryDisposition.WRITE_APPEND,
            "insert_retry_strategy": RetryStrategy.RETRY_ON_TRANSIENT_ERROR,
            **self.arguments,
        }
        if self.add_columns:
            if not loads:
                raise ConfigurationError(f"bigquery:{self.table}: {_ONLY_LOADS}")
            more = dict(arguments.get("additional_bq_parameters") or {})
            more["schemaUpdateOptions"] = ["ALLOW_FIELD_ADDITION"]
            arguments["additional_bq_parameters"] = more
        project, dataset, table = self.table.rsplit(".", 2)
        written = rows | "Write" >> WriteToBigQuery(f"{project}:{dataset}.{table}", **arguments)
        try:
            failed = written.failed_rows_with_errors
        except AttributeError:  # load jobs, which fail as a whole
            return written
        failed | "RefuseFailed" >> beam.Map(_refuse_failed, self.table)
        return written


@dataclass(frozen=True)
class _SchemaOf:
    """The schema that a load job needs, which Beam asks a worker for.

    It is that of the table, and ours where the table is to be made: BigQuery refuses a load job
    with another schema than the table has, even where it lacks only a column that may be empty.
    """

    table: str
    wanted: Sequence[Mapping[str, Any]]

    def __call__(self, _: object) -> dict[str, Any]:
        """Look at the table; what this run writes and it lacks comes last, and may be empty.

        Raises MachineFault.
        """
        try:
            there = fields_there(self.table)
        except ConfigurationError as error:  # for which it is too late
            raise MachineFault(str(error)) from error
        if there is None:
            return {"fields": [dict(one) for one in self.wanted]}
        added = [
            {**one, "mode": "NULLABLE" if one["mode"] == "REQUIRED" else one["mode"]}
            for one in _missing(self.wanted, there)
        ]
        return {"fields": [*map(_known_to_beam, there), *added]}


def _known_to_beam(one: Mapping[str, Any]) -> dict[str, Any]:
    """A column with what Beam knows of columns, and lengths as numbers, not as the API's text."""
    kept = {name: one[name] for name in ("name", "type", "mode") if name in one}
    kept |= {name: int(one[name]) for name in ("maxLength", "precision", "scale") if name in one}
    if one.get("fields"):
        kept["fields"] = [_known_to_beam(part) for part in one["fields"]]
    return kept


def _missing(
    wanted: Sequence[Mapping[str, Any]], there: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """The columns that a table lacks."""
    known = {one["name"].lower() for one in there}
    return [one for one in wanted if one["name"].lower() not in known]


def _refuse_missing(table: str, missing: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a table that lacks columns. Raises ConfigurationError."""
    names = ", ".join(repr(one["name"]) for one in missing)
    more = ", ".join(f"ADD COLUMN {one['name']} {_sql_type(one)}" for one in missing)
    raise ConfigurationError(
        f"bigquery:{table}: the table has no column {names}, which this run writes: add what is "
        f"missing, ALTER TABLE `{table}` {more}, or let load jobs do it by ?add_columns=true after "
        "the table, or name another table"
    )


# What the API calls the types of BigQuery's SQL.
_NAMES = {"INTEGER": "INT64", "FLOAT": "FLOAT64", "BOOLEAN": "BOOL", "STRUCT": "RECORD"}


def _refuse_misfit(
    table: str, wanted: Sequence[Mapping[str, Any]], there: Sequence[Mapping[str, Any]]
) -> None:
    """Refuse a table whose columns do not take the rows. Raises ConfigurationError."""
    ours = {one["name"].lower(): one for one in wanted}
    for one in there:
        name = one["name"].lower()
        needed = one.get("mode") == "REQUIRED"
        if name in ours and _sql_type(ours[name]) != _sql_type(one):
            why = f"is {_sql_type(one)} there, and this run writes {_sql_type(ours[name])}"
        elif needed and (name not in ours or ours[name]["mode"] == "NULLABLE"):
            why = "is REQUIRED there, and this run leaves it empty"
        else:
            continue
        raise ConfigurationError(
            f"bigquery:{table}: the column {name!r} {why}: name another table, or leave it out and "
            "a new one is made"
        )


def _sql_type(one: Mapping[str, Any]) -> str:
    """The type of a column in BigQuery's SQL."""
    kind = _NAMES.get(one["type"], one["type"])
    if kind == "RECORD":
        parts = ", ".join(f"{part['name']} {_sql_type(part)}" for part in one["fields"])
        kind = f"STRUCT<{parts}>"
    return f"ARRAY<{kind}>" if one.get("mode") == "REPEATED" else kind


def _refuse_failed(failed: Any, table: str) -> None:
    """Fail where BigQuery did not take a row, which Beam would leave out."""
    errors = failed[2]
    first = errors[0] if errors else {}
    why = " ".join(str(first.get("message") or first.get("reason") or errors).split())
    raise MachineFault(
        f"{table}: BigQuery does not take a row: {why}: see that the table has the columns of "
        "bigquery_schema, and that this account may write to it, and run it again"
    )


@dataclass(eq=False)
class _WriteCountsToBigQuery(_WriteRowsToBigQuery):
    """Of results that have a count of each bin."""

    _: KW_ONLY
    labels: Sequence[str] | None = None
    """Names of the bins, which tidy rows need; in the layout `rows` they are put into every row,
    and there is no such column without."""
    layout: str = TIDY
    """As of WriteReleases."""
    query: str = COUNT
    """As of WriteReleases."""

    def __post_init__(self) -> None:
        """Check the name and the layout."""
        super().__post_init__()
        self._tidy()

    def expand(self, results: PCollection[Any]) -> Any:
        """Build the steps: convert, write; gives Beam's WriteResult."""
        if self.layout == TIDY:
            rows = beam.FlatMap(_rows_of, self._tidy().convert)
        else:
            rows = beam.Map(self._row, self.labels)
        return self._write(results | "Convert" >> rows.with_output_types(dict[str, Any]))

    @property
    def _schema(self) -> dict[str, Any]:
        return _schema_of(self._tidy().schema) if self.layout == TIDY else self._wide()

    def _tidy(self) -> TableForm:
        """The form of the layout. Raises ConfigurationError for one that cannot be."""
        raise NotImplementedError

    def _wide(self) -> dict[str, Any]:
        """Schema of the layout `rows`."""
        raise NotImplementedError

    _row: ClassVar[Callable[..., dict[str, Any]]]


@dataclass(eq=False)
class WriteReleasesToBigQuery(_WriteCountsToBigQuery):
    """Append the rows of each release to a BigQuery table, which is created if it does not exist.

    In the layout `tidy`, the table has one row for each slot and key, and the same columns as the
    files that :class:`WriteReleases` writes. In the layout `rows`, the table has one row for each
    slot, and the columns that :func:`bigquery_schema` lists. If a runner retries a step, the same
    rows may be appended twice. Rows with equal `slot` and `key` are duplicates.

    Raises:
        ConfigurationError: when you make the transform, if the name of the table is malformed, if
            the layout is `tidy` but you do not give the names of the keys (`labels`), or if the
            extra `gcp` is not installed.
    """

    _: KW_ONLY
    shares: bool = False
    """Whether releases have a distribution over the keys. See :class:`WriteReleases`."""
    _row = staticmethod(bigquery_row)

    def _tidy(self) -> TableForm:
        return release_form(self.labels, layout=self.layout, query=self.query)

    def _wide(self) -> dict[str, Any]:
        return bigquery_schema(bins=self.labels is not None, shares=self.shares)


def _revision(revision: Revision, labels: Sequence[str] | None) -> dict[str, Any]:
    """As :func:`bigquery_row`, of a revision."""
    row = revision_row(revision)
    row["stderr"] = [] if None in row["stderr"] else row["stderr"]
    return row if labels is None else {**row, "bins": list(labels)}


@dataclass(eq=False)
class WriteRevisionsToBigQuery(_WriteCountsToBigQuery):
    """Append the rows of each revision to a BigQuery table, which is created if it does not exist.

    A revision is a smoothed estimate of the counts of an earlier slot. The table has the same
    columns as the files that :class:`WriteRevisions` writes. In the layout `rows` (one row for each
    revision), the table also has a column `bins` if you give the names of the keys (`labels`). If a
    runner retries a step, the same rows may be appended twice. Rows with equal `slot` and `key` are
    duplicates.

    Raises:
        ConfigurationError: if :class:`WriteReleasesToBigQuery` would raise this error.
    """

    _row = staticmethod(_revision)

    def _tidy(self) -> TableForm:
        return revision_form(self.labels, layout=self.layout, query=self.query)

    def _wide(self) -> dict[str, Any]:
        fields = _schema_of(revision_schema())["fields"]
        return {"fields": fields if self.labels is None else [*fields, _BINS]}


@dataclass(eq=False)
class WritePerRecordToBigQuery(_WriteRowsToBigQuery):
    """Append each per-record result to a BigQuery table, which is created if it does not exist.

    The table has the same columns as the files that :class:`WritePerRecord` writes. If a runner
    retries a step, the same row may be appended twice. Rows with equal `key` and `end` are
    duplicates.

    Raises:
        ConfigurationError: when you make the transform, if the name of the table is malformed or
            the extra `gcp` is not installed.
    """

    def expand(self, rows: PCollection[PerRecordRow]) -> Any:
        """Convert the results to rows and write the rows. The output is Beam's WriteResult."""
        convert = beam.Map(per_record_object).with_output_types(dict[str, Any])
        return self._write(rows | "Convert" >> convert)

    @property
    def _schema(self) -> dict[str, Any]:
        return _schema_of(PER_RECORD_SCHEMA)


@dataclass(eq=False)
class WriteItemsToBigQuery(_WriteRowsToBigQuery):
    """Appends the rows of each item, such as an entry of a ledger; the table is made if need be.

    A runner that tries again may append rows twice, both alike. Raises ConfigurationError at
    construction for a malformed name and without the extra `gcp`.
    """

    _: KW_ONLY
    schema: pa.Schema
    """Of the rows."""
    convert: Callable[[list[Any]], pa.RecordBatch]
    """Makes rows of items."""

    def expand(self, items: PCollection[Any]) -> Any:
        """Build the steps: convert, write; gives Beam's WriteResult."""
        convert = beam.FlatMap(_rows_of, self.convert).with_output_types(dict[str, Any])
        return self._write(items | "Convert" >> convert)

    @property
    def _schema(self) -> dict[str, Any]:
        return _schema_of(self.schema)


def _rows_of(item: Any, convert: Callable[[list[Any]], pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    yield from json_rows(convert([item]))


def check_sinks(sinks: Iterable[beam.PTransform]) -> None:
    """Check that existing BigQuery tables have the schema of the results that will be written.

    Raises:
        ConfigurationError: if the schema of a table differs from the schema of the results, or if
            two kinds of results, such as releases and revisions, would be written to the same
            table.
    """
    tables = set()
    for sink in sinks:
        if isinstance(sink, _WriteRowsToBigQuery):
            if sink.table in tables:
                raise ConfigurationError(
                    f"bigquery:{sink.table} is given for two kinds of rows: name a table for each"
                )
            tables.add(sink.table)
            sink.check()
