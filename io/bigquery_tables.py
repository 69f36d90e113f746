"""BigQuery as a source: a table, or what a query gives, as it is at one time.

A query job reads the table once and writes what it found to a table of its own, which does not
change and which BigQuery drops after a day. That is read, in parts, by Google's client library.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from streamveil.io.cells import sound_batch
from streamveil.io.faults import fault_of_service, words_of
from streamveil.io.files import Columns, require_columns
from streamveil.io.lines import Reject
from streamveil.io.optional import require_google
from streamveil.io.places import TABLE_FORM, is_bigquery
from streamveil.mechanisms.core.number_text import number_of
from streamveil.mechanisms.core.records import (
    ConfigurationError,
    MachineFault,
    format_time,
    parse_time,
)

if TYPE_CHECKING:
    from google.cloud import bigquery

_LOGGER = logging.getLogger("streamveil")

_QUERY = re.compile(
    r"(?:\s|\(|--[^\n]*\n|#[^\n]*\n|/[*](?:[^*]|[*](?!/))*[*]/)*(SELECT|WITH)\b(?![-.])", re.I
)
_TABLE = re.compile(r"(?P<table>[^?`\s]+[.][^.?`\s]+[.][^.?`]+)(?:[?]as_of=(?P<as_of>[^&?]+))?")
_AS_OF = "as_of"

# Types of columns whose values are text, numbers, truths or times.
_READ = frozenset(
    {
        *("STRING", "INTEGER", "INT64", "FLOAT", "FLOAT64", "NUMERIC", "BIGNUMERIC"),
        *("BOOLEAN", "BOOL", "TIMESTAMP", "DATETIME", "DATE"),
    }
)

PATIENCE = 300.0
"""Seconds in which a request is tried again that fails by what may pass."""
FIRST_WAIT = 1.0
"""Seconds before that is done for the first time."""
_ONE_ANSWER = 60.0  # seconds for it
# Rows that one worker reads in one go.
_PART_ROWS = 1 << 18
_LONGEST_QUERY = 80


class Rows(NamedTuple):
    """Some rows of the table that a query job wrote."""

    project: str
    """That asks for them."""
    table: str
    """PROJECT.DATASET.TABLE."""
    fields: tuple[tuple[str, str], ...]
    """Its columns: names and types."""
    first: int
    number: int


@dataclass(frozen=True)
class _Source:
    """What is read."""

    source: str
    """What stands after FROM in a query."""
    project: str | None
    """Of the table; None for a query."""

    @classmethod
    def of(cls, location: str) -> _Source:
        """Read a location. Raises ConfigurationError."""
        place = location.partition(":")[2]
        if _QUERY.match(place):
            return cls(f"(\n{place.strip().rstrip(';')}\n)", None)
        found = _TABLE.fullmatch(place)
        if found is None:
            raise ConfigurationError(
                f"{location} is neither a BigQuery table nor a query: write {TABLE_FORM}"
            )
        table = f"`{found['table']}`"
        if found["as_of"]:
            as_of = format_time(_micros_of(location, found["as_of"]))
            table += f" FOR SYSTEM_TIME AS OF TIMESTAMP '{as_of}'"
        return cls(table, found["table"].rsplit(".", 2)[0])

    def select(self, columns: Columns = ()) -> str:
        """The query that gives these columns, or all."""
        names = ", ".join(f"`{name}`" for name in columns) or "*"
        return f"SELECT {names} FROM {self.source}"


def _micros_of(location: str, text: str) -> int:
    try:
        return parse_time(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"{location}: {_AS_OF}: {error}") from None


def label_of_table(location: str) -> str:
    """A location in one line, which is not too long."""
    text = " ".join(location.split())
    return text if len(text) <= _LONGEST_QUERY else f"{text[:_LONGEST_QUERY]}..."


def table_named(location: str) -> str | None:
    """PROJECT.DATASET.TABLE of a location, whatever its settings; None for a query."""
    place = location.partition(":")[2]
    return None if not is_bigquery(location) or _QUERY.match(place) else place.partition("?")[0]


def table_columns(location: str) -> list[str]:
    """Names of the columns of a table or of what a query gives, which is not run for that.

    Raises ConfigurationError and MachineFault.
    """
    return [field.name for field in _fields(location)]


def check_table(location: str, columns: Columns, remedy: str = "") -> None:
    """Look at the columns of a table or a query, which is not run for that.

    Raises:
        ConfigurationError: when it is not there, BigQuery does not understand the query, or one of
            the columns is missing or of a type that is not read.
        MachineFault: when BigQuery does not answer, or refuses this account.
    """
    fields = {field.name: field for field in _fields(location)}
    label = label_of_table(location)
    what = "the table" if table_named(location) else "what the query gives"
    require_columns(label, columns, list(fields), remedy, what=what)
    for name in columns:
        kind, mode = fields[name].field_type, fields[name].mode
        if kind in _READ and mode != "REPEATED":
            continue
        if mode == "REPEATED" or kind in ("RECORD", "STRUCT"):
            kind = f"REPEATED {kind}" if mode == "REPEATED" else kind
            query = f"bigquery:SELECT {name}.FIELD AS FIELD, ..."
        else:
            query = f"bigquery:SELECT CAST({name} AS STRING) AS {name}, ..."
        raise ConfigurationError(
            f"{label}: the column {name!r} is of type {kind}, which is not read: give a query that "
            f"makes text, a number or a time of it, such as {query}"
        )


def split_table(location: str, columns: Columns) -> list[Rows]:
    """Run the query that reads the columns, and cut what it gives into parts.

    Raises as :func:`check_table`.
    """
    source, label = _Source.of(location), label_of_table(location)
    with asking(label), client_of(source.project, label) as client:
        job = _done(client, source.select(columns))
        table = client.get_table(job.destination, retry=_retry(), timeout=_ONE_ANSWER)
        number = int(table.num_rows)
        _LOGGER.info(
            "%s: read as of %s, %s, by the job %s",
            label,
            job.started.strftime("%Y-%m-%dT%H:%M:%SZ") if job.started else "now",
            number_of(number, "row"),
            job.job_id,
        )
        fields = tuple((field.name, field.field_type) for field in table.schema)
        name = f"{table.project}.{table.dataset_id}.{table.table_id}"
        return [
            Rows(client.project, name, fields, first, min(_PART_ROWS, number - first))
            for first in range(0, number, _PART_ROWS)
        ]


def read_rows(label: str, part: Rows, columns: Columns, reject: Reject) -> Iterator[pa.RecordBatch]:
    """Read a part in batches of the named columns and `__row__`.

    Types are those of the table, whatever its rows hold. Raises as :func:`check_table`, and
    MachineFault where rows are missing.
    """
    from google.cloud import bigquery

    row, end = part.first, part.first + part.number
    with asking(label), client_of(part.project, label) as client:
        pages = client.list_rows(
            bigquery.TableReference.from_string(part.table),
            [bigquery.SchemaField(name, kind) for name, kind in part.fields],
            max_results=part.number,
            start_index=part.first,
            retry=_retry(),
            timeout=_ONE_ANSWER,
        )
        for batch in pages.to_arrow_iterable():
            if batch.num_rows:
                rows = np.arange(row, row + batch.num_rows)
                row += batch.num_rows
                arrays = [batch.column(name) for name in columns]
                yield sound_batch(label, columns, arrays, rows, reject)
    if row != end:
        raise MachineFault(
            f"{label}: BigQuery gave {number_of(row - part.first, 'row')} of {part.number:,} that "
            "it has: nothing is released by this; run it again"
        )


def fields_there(table: str) -> list[dict[str, Any]] | None:
    """The columns of a table to write to, as the API names them; None where it is to be made.

    Raises ConfigurationError where not even its dataset is there, and MachineFault.
    """
    project, dataset, _ = table.rsplit(".", 2)
    label = f"bigquery:{table}"
    with asking(label, "could not be looked at"), client_of(project, label) as client:
        from google.api_core.exceptions import NotFound

        try:
            found = client.get_table(table, retry=_retry(), timeout=_ONE_ANSWER)
        except NotFound:
            client.get_dataset(f"{project}.{dataset}", retry=_retry(), timeout=_ONE_ANSWER)
            return None
        return [field.to_api_repr() for field in found.schema]


def _fields(location: str) -> Sequence[bigquery.SchemaField]:
    """The columns of a table or of what a query gives, by a query that is not run."""
    source, label = _Source.of(location), label_of_table(location)
    with asking(label), client_of(source.project, label) as client:
        from google.cloud import bigquery

        dry = bigquery.QueryJobConfig(dry_run=True, use_query_cache=False)
        return _asked(client, source.select(), dry).schema or ()


def _asked(
    client: bigquery.Client, sql: str, config: bigquery.QueryJobConfig | None = None
) -> bigquery.QueryJob:
    """A query job that has started. The library's own tries of jobs would take ten minutes more."""
    retries = {"retry": _retry(), "job_retry": None}
    return client.query(sql, job_config=config, timeout=_ONE_ANSWER, **retries)


def _done(client: bigquery.Client, sql: str) -> bigquery.QueryJob:
    """A query job that is done; one that fails by what may pass is run again."""

    def run() -> bigquery.QueryJob:
        job = _asked(client, sql)
        job.result(max_results=0, retry=_retry(), job_retry=None)
        return job

    done: bigquery.QueryJob = _retry(jobs=True)(run)()
    return done


def _retry(*, jobs: bool = False) -> Any:
    """How often something is tried again: a request, or a job."""
    from google.cloud.bigquery.retry import DEFAULT_JOB_RETRY, DEFAULT_RETRY

    retry = DEFAULT_JOB_RETRY if jobs else DEFAULT_RETRY
    return retry.with_delay(initial=FIRST_WAIT).with_timeout(PATIENCE)


@contextlib.contextmanager
def client_of(project: str | None, label: str) -> Iterator[bigquery.Client]:
    """A client that pays by the project of --project, or what Google's library finds, or this one.

    Raises ConfigurationError where there is none, or the extra is not installed.
    """
    require_google("google.cloud.bigquery", label)
    import google.auth
    from apache_beam.internal.gcp import auth
    from apache_beam.options.pipeline_options import GoogleCloudOptions
    from google.cloud import bigquery

    from streamveil.io.remote_filesystems import given_options

    options = given_options()
    given = options.view_as(GoogleCloudOptions)
    credentials, found = google.auth.default(scopes=bigquery.Client.SCOPE)
    if given.impersonate_service_account:
        credentials = auth.get_service_credentials(options).get_google_auth_credentials()
    chosen = given.project or found or project
    if chosen is None:
        raise ConfigurationError(
            f"{label}: no project is set to pay for the query: give --project, or set "
            "GOOGLE_CLOUD_PROJECT"
        )
    client = bigquery.Client(project=chosen, credentials=credentials)
    with contextlib.closing(client):
        yield client


@contextlib.contextmanager
def asking(label: str, done: str = "could not be read") -> Iterator[None]:
    """Context in which what BigQuery refuses is an error of ours that names the table.

    That is a ConfigurationError for what is not there, and for a query that it does not understand;
    and a MachineFault for what may pass.
    """
    try:
        yield
    except (ConfigurationError, MachineFault):
        raise
    except Exception as error:
        from google.api_core import exceptions

        fault = fault_of_service(error, "bigquery:")
        if fault is None:
            raise
        if isinstance(error, exceptions.NotFound | exceptions.BadRequest):
            what = "name" if isinstance(error, exceptions.NotFound) else "query"
            raise ConfigurationError(
                f"{label}: BigQuery says: {words_of(error)}: check the {what}, and run it again"
            ) from error
        raise MachineFault(f"{label} {done}: {fault}") from error
