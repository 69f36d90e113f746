"""BigQuery: releases, revisions and statistics as rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.io.gcp.bigquery import BigQueryDisposition, WriteToBigQuery
from apache_beam.io.gcp.bigquery_tools import RetryStrategy
from apache_beam.pvalue import PCollection

from streamveil.io.optional import require_google
from streamveil.io.per_record import PER_RECORD_SCHEMA, per_record_object
from streamveil.io.releases import release_row, release_schema
from streamveil.io.revisions import revision_row, revision_schema
from streamveil.mechanisms.core.records import (
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
    """Schema of a table of releases, as Beam and the BigQuery API take it.

    The columns of WriteReleases: lists are repeated, `diagnostics` is a repeated record of `name`
    and `value`; with `bins` there is also a repeated column of the names of the bins, with `shares`
    one of the shares.
    """
    fields = [_field(column) for column in release_schema(shares=shares)]
    return {"fields": [*fields, _BINS] if bins else fields}


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


def method_of(settings: Mapping[str, str]) -> dict[str, str]:
    """The argument of Beam's WriteToBigQuery that a setting stands for.

    Raises ConfigurationError for a method that is none.
    """
    method = settings.get("method")
    if method is not None and method not in METHODS:
        raise ConfigurationError(f"method={method} is none of {', '.join(METHODS)}")
    return {} if method is None else {"method": method}


@dataclass(eq=False)
class _WriteRowsToBigQuery(beam.PTransform):
    table: str
    """`PROJECT.DATASET.TABLE`."""
    _: KW_ONLY
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of Beam's WriteToBigQuery, such as `method`, `triggering_frequency` or
    `additional_bq_parameters`, or in place of what is chosen here."""

    def __post_init__(self) -> None:
        """Check the name."""
        super().__init__()
        require_google("google.cloud.bigquery", f"writing to BigQuery ({self.table})")
        parts = self.table.rsplit(".", 2)
        if len(parts) != 3 or not all(parts):
            raise ConfigurationError(
                f"table {self.table!r} is not one of BigQuery: write PROJECT.DATASET.TABLE"
            )

    def _write(self, rows: PCollection[dict[str, Any]], schema: dict[str, Any]) -> Any:
        """The last step."""
        arguments = {
            "schema": schema,
            "create_disposition": BigQueryDisposition.CREATE_IF_NEEDED,
            "write_disposition": BigQueryDisposition.WRITE_APPEND,
            "insert_retry_strategy": RetryStrategy.RETRY_ON_TRANSIENT_ERROR,
            **self.arguments,
        }
        project, dataset, table = self.table.rsplit(".", 2)
        written = rows | "Write" >> WriteToBigQuery(f"{project}:{dataset}.{table}", **arguments)
        try:
            failed = written.failed_rows_with_errors
        except AttributeError:  # load jobs, which fail as a whole
            return written
        failed | "RefuseFailed" >> beam.Map(_refuse_failed, self.table)
        return written


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
class WriteReleasesToBigQuery(_WriteRowsToBigQuery):
    """Appends each release as a row; the table is made if it is not there.

    Columns are those of :func:`bigquery_schema`, values those of :func:`bigquery_row`. A runner
    that tries again may append a release twice, both alike: tell them by `slot`. Raises
    ConfigurationError at construction for a malformed name and without the extra `gcp`.
    """

    _: KW_ONLY
    labels: Sequence[str] | None = None
    """Names of the bins, put into every row; no such column without."""
    shares: bool = False
    """Whether releases have them: those of one budget forever."""

    def expand(self, releases: PCollection[Release]) -> Any:
        """Build the steps: convert, write; gives Beam's WriteResult."""
        convert = beam.Map(bigquery_row, self.labels).with_output_types(dict[str, Any])
        rows = releases | "Convert" >> convert
        return self._write(rows, bigquery_schema(bins=self.labels is not None, shares=self.shares))


@dataclass(eq=False)
class WriteRevisionsToBigQuery(_WriteRowsToBigQuery):
    """Appends each revision as a row; the table is made if it is not there.

    Columns are those of WriteRevisions, and `bins` if there are labels. A runner that tries again
    may append a revision twice, both alike: tell them by `slot`. Raises ConfigurationError at
    construction for a malformed name and without the extra `gcp`.
    """

    _: KW_ONLY
    labels: Sequence[str] | None = None
    """Names of the bins, put into every row; no such column without."""

    def expand(self, revisions: PCollection[Revision]) -> Any:
        """Build the steps: convert, write; gives Beam's WriteResult."""
        convert = beam.Map(_revision, self.labels).with_output_types(dict[str, Any])
        fields = [_field(column) for column in revision_schema()]
        schema = {"fields": fields if self.labels is None else [*fields, _BINS]}
        return self._write(revisions | "Convert" >> convert, schema)


def _revision(revision: Revision, labels: Sequence[str] | None) -> dict[str, Any]:
    """As :func:`bigquery_row`, of a revision."""
    row = revision_row(revision)
    row["stderr"] = [] if None in row["stderr"] else row["stderr"]
    return row if labels is None else {**row, "bins": list(labels)}


@dataclass(eq=False)
class WritePerRecordToBigQuery(_WriteRowsToBigQuery):
    """Appends each :class:`PerRecordRow` as a row; the table is made if it is not there.

    Columns are those of WritePerRecord. A runner that tries again may append a row twice, both
    alike: tell them by `key` and `end`. Raises ConfigurationError at construction for a malformed
    name and without the extra `gcp`.
    """

    def expand(self, rows: PCollection[PerRecordRow]) -> Any:
        """Build the steps: convert, write; gives Beam's WriteResult."""
        convert = beam.Map(per_record_object).with_output_types(dict[str, Any])
        fields = [_field(column) for column in PER_RECORD_SCHEMA]
        return self._write(rows | "Convert" >> convert, {"fields": fields})
