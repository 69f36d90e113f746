"""Where events come from and releases go to, as one text: a file, or KIND:PLACE for a stream."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

import apache_beam as beam
import pyarrow as pa

from streamveil.io.answers import ANSWERS_SCHEMA, PORTFOLIO_LEDGER_FORM, answer_json, answers_batch
from streamveil.io.bigquery import (
    TABLE_SETTINGS,
    WriteItemsToBigQuery,
    WritePerRecordToBigQuery,
    WriteReleasesToBigQuery,
    WriteRevisionsToBigQuery,
    table_settings,
)
from streamveil.io.event_sources import ReadEvents
from streamveil.io.file_sinks import (
    WriteAnswers,
    WriteLedger,
    WritePerRecord,
    WritePortfolioLedger,
    WriteReleases,
    WriteRevisions,
)
from streamveil.io.files import Columns
from streamveil.io.folder import WriteReleasesToFolder, answer_file, per_record_file, revision_file
from streamveil.io.formats import CsvDialect
from streamveil.io.kafka import (
    ReadKafkaEvents,
    WriteReleasesToKafka,
    answer_record,
    per_record_record,
    revision_record,
)
from streamveil.io.messages import READING_SETTINGS, reading_of
from streamveil.io.per_record import per_record_json
from streamveil.io.places import SINKS, SOURCES, TABLES, is_endless, is_stream
from streamveil.io.pubsub import ReadPubSubEvents, WriteReleasesToPubSub
from streamveil.io.releases import ledger_form
from streamveil.io.requirement_changes import change_columns
from streamveil.io.revisions import revision_json
from streamveil.io.tables import TableForm
from streamveil.io.tidy import ROWS
from streamveil.io.watch import WatchEvents
from streamveil.mechanisms.core.records import CHANGE_COLUMNS, ConfigurationError
from streamveil.mechanisms.portfolio.questions import Portfolio

Texts = dict[str, str]


@dataclass(frozen=True)
class _Kind:
    place: str
    """Pattern of what follows the colon; its groups name the parts."""
    build: Callable[[Texts, Texts, dict[str, Any]], beam.PTransform]
    """Makes the transform of the parts, the settings, and its arguments by keyword."""
    settings: tuple[str, ...] | None = ()
    """Names that may be set after a question mark; None for any."""


def _read_kafka(at: Texts, settings: Texts, given: dict[str, Any]) -> ReadKafkaEvents:
    client = dict(settings)
    policy = client.pop("timestamp_policy", ReadKafkaEvents.timestamp_policy)
    reading = reading_of(client)
    return ReadKafkaEvents(
        at["servers"],
        [at["topic"]],
        consumer_config=client,
        timestamp_policy=policy,
        **reading,
        **given,
    )


def _read_pubsub(at: Texts, settings: Texts, given: dict[str, Any]) -> ReadPubSubEvents:
    names: dict[str, Any] = {**at, **settings}
    return ReadPubSubEvents(**reading_of(names), **names, **given)


_KAFKA = r"(?P<servers>[^/?]+:\d+)/(?P<topic>[^/?]+)"
_TOPIC = r"(?P<topic>projects/[^/?]+/topics/[^/?]+)"

_SOURCES = {
    "pubsub": _Kind(
        rf"(?P<subscription>projects/[^/?]+/subscriptions/[^/?]+)|{_TOPIC}",
        _read_pubsub,
        settings=("timestamp_attribute", "id_label", *READING_SETTINGS),
    ),
    "kafka": _Kind(
        _KAFKA,
        _read_kafka,
        settings=None,
    ),
    "watch": _Kind(
        "(?P<glob>.+)",  # a question mark in it is part of the glob
        lambda at, _, given: WatchEvents(at["glob"], **given),
    ),
}
_SINKS = {
    "bigquery": _Kind(
        "(?P<table>[^/?]+)",
        lambda at, settings, given: WriteReleasesToBigQuery(
            at["table"], **table_settings(settings), **given
        ),
        settings=TABLE_SETTINGS,
    ),
    "pubsub": _Kind(
        _TOPIC,
        lambda at, *_: WriteReleasesToPubSub(at["topic"]),
    ),
    "kafka": _Kind(
        _KAFKA,
        lambda at, settings, _: WriteReleasesToKafka(
            at["servers"], at["topic"], producer_config=settings
        ),
        settings=None,
    ),
    "folder": _Kind(
        "(?P<path>.+)",
        lambda at, *_: WriteReleasesToFolder(at["path"]),
    ),
}


def _written_as(
    to_json: Callable[[Any], bytes],
    to_record: Callable[[Any], Any],
    to_file: Callable[[Any], Any],
) -> dict[str, _Kind]:
    """The sinks of releases, for what else is to be written in these forms; but for BigQuery's."""
    return {
        "pubsub": replace(
            _SINKS["pubsub"],
            build=lambda at, *_: WriteReleasesToPubSub(at["topic"], to_json=to_json),
        ),
        "kafka": replace(
            _SINKS["kafka"],
            build=lambda at, settings, _: WriteReleasesToKafka(
                at["servers"], at["topic"], producer_config=settings, to_record=to_record
            ),
        ),
        "folder": replace(
            _SINKS["folder"],
            build=lambda at, *_: WriteReleasesToFolder(at["path"], to_file=to_file),
        ),
    }


_REVISION_SINKS = {
    "bigquery": replace(
        _SINKS["bigquery"],
        build=lambda at, settings, given: WriteRevisionsToBigQuery(
            at["table"], **table_settings(settings), **given
        ),
    ),
    **_written_as(revision_json, revision_record, revision_file),
}


def _rows_to_bigquery(schema: pa.Schema, convert: Callable[[list[Any]], pa.RecordBatch]) -> _Kind:
    """The sink of rows of that schema."""
    return replace(
        _SINKS["bigquery"],
        build=lambda at, settings, _: WriteItemsToBigQuery(
            at["table"], **table_settings(settings), schema=schema, convert=convert
        ),
    )


_ANSWER_SINKS = {
    "bigquery": _rows_to_bigquery(ANSWERS_SCHEMA, partial(answers_batch, schema=ANSWERS_SCHEMA)),
    **_written_as(answer_json, answer_record, answer_file),
}
_PER_RECORD_SINKS = {
    "bigquery": replace(
        _SINKS["bigquery"],
        build=lambda at, settings, _: WritePerRecordToBigQuery(
            at["table"], **table_settings(settings)
        ),
    ),
    **_written_as(per_record_json, per_record_record, per_record_file),
}


def source_of(
    location: str,
    columns: Columns,
    flag: str = "--input",
    silent: bool = False,
    dialect: CsvDialect | None = None,
) -> beam.PTransform:
    """The transform that reads events there, with :class:`Events` as outputs.

    `location` is a file or glob, a table or a query of BigQuery as of ReadEvents,
    `pubsub:projects/P/subscriptions/S` or `.../topics/T`, `kafka:HOST:PORT/TOPIC` or `watch:GLOB`.
    After `?` follow settings, NAME=VALUE with `&` between them: of ReadPubSubEvents, or
    `timestamp_policy` of ReadKafkaEvents, how both read messages, and what Kafka's own consumer
    knows. `silent` and `dialect` are those of ReadEvents. Raises ConfigurationError, which names
    the flag, for anything else and for what is not installed.
    """
    if not is_endless(location):
        return ReadEvents(location, columns=columns, silent=silent, dialect=dialect, counted=True)
    given: dict[str, Any] = {"columns": columns, "silent": silent}
    if location.startswith("watch:"):
        given["dialect"] = dialect
    elif dialect is not None and dialect.any_name:
        raise ConfigurationError(
            f"{flag}={location} has no CSV files: leave out --delimiter and --columns"
        )
    return _stream(_SOURCES, {**TABLES, **SOURCES}, location, flag, given)


def requirement_changes_of(location: str, flag: str = "--requirement_changes") -> beam.PTransform:
    """The transform that reads changes there, with :class:`Events` as outputs.

    `location` is one that `source_of` knows. The batches have the columns `user`, `slot` or `time`
    or both, and the four figures of a dynamic requirement; the rows are not checked here. Raises
    ConfigurationError as `source_of` and :func:`change_columns` do.
    """
    columns = CHANGE_COLUMNS if is_endless(location) else change_columns(location)
    return source_of(location, columns, flag)


def sink_of(
    location: str,
    labels: Sequence[str],
    flag: str = "--output",
    *,
    shares: bool = False,
    layout: str = ROWS,
) -> beam.PTransform:
    """The transform that writes releases there; `labels` name the bins.

    `shares` and `layout` are those of WriteReleases, the latter for files only.

    `location` is a file, `bigquery:P.DATASET.TABLE`, `pubsub:projects/P/topics/T`, `folder:PATH` or
    `kafka:HOST:PORT/TOPIC`, with settings of the Kafka producer after `?`, of BigQuery `method`,
    FILE_LOADS or STREAMING_INSERTS (default: the latter for an input without an end), and
    `add_columns`, true or false (default). Raises ConfigurationError, which names the flag, for
    anything else and for what is not installed.
    """
    if not is_stream(location):
        return WriteReleases(location, labels=labels, shares=shares, layout=layout)
    if layout != ROWS:
        raise ConfigurationError(
            f"--layout={layout} is for files, and {flag}={location} takes one release at a time: "
            f"leave it out, or write to a file"
        )
    return _stream(_SINKS, SINKS, location, flag, {"labels": labels, "shares": shares})


def revision_sink_of(
    location: str, labels: Sequence[str], flag: str = "--revisions", *, layout: str = ROWS
) -> beam.PTransform:
    """The same for revisions; the layout is of a file, as above."""
    if not is_stream(location):
        return WriteRevisions(location, labels=labels, layout=layout)
    return _stream(_REVISION_SINKS, SINKS, location, flag, {"labels": labels})


def answer_sink_of(location: str, portfolio: Portfolio, flag: str = "--output") -> beam.PTransform:
    """The same for answers to questions; but a place that is no stream is a folder of files."""
    if not is_stream(location):
        return WriteAnswers(location, portfolio)
    kinds = {name: form for name, form in SINKS.items() if name in _ANSWER_SINKS}
    if location.partition(":")[0] not in kinds:
        raise ConfigurationError(
            f"{flag}={location} does not take answers to questions: name a folder, or "
            f"{', '.join(kinds.values())}"
        )
    return _stream(_ANSWER_SINKS, kinds, location, flag, {})


def ledger_sink_of(location: str, flag: str = "--ledger", *, dynamic: bool = False) -> Any:
    """The transform that writes what every slot cost: to a file, or to a table of BigQuery.

    A file takes a tuple of entries and of their number, a table the entries alone. `dynamic` is
    that of WriteLedger.
    """
    if not is_stream(location):
        return WriteLedger(location, dynamic=dynamic)
    return _ledger_table(location, flag, ledger_form(dynamic))


def portfolio_ledger_sink_of(location: str, flag: str = "--ledger") -> Any:
    """The same of what answers to questions cost."""
    if not is_stream(location):
        return WritePortfolioLedger(location)
    return _ledger_table(location, flag, PORTFOLIO_LEDGER_FORM)


def _ledger_table(location: str, flag: str, form: TableForm) -> beam.PTransform:
    kinds = {"bigquery": _rows_to_bigquery(form.schema, form.convert)}
    return _stream(kinds, {"bigquery": SINKS["bigquery"]}, location, flag, {})


def per_record_sink_of(location: str, flag: str = "--output") -> beam.PTransform:
    """The same for rows of statistics under per-record privacy."""
    if not is_stream(location):
        return WritePerRecord(location)
    return _stream(_PER_RECORD_SINKS, SINKS, location, flag, {})


def _stream(
    kinds: Mapping[str, _Kind],
    forms: Mapping[str, str],
    location: str,
    flag: str,
    given: dict[str, Any],
) -> beam.PTransform:
    name, _, rest = location.partition(":")
    if name not in kinds:
        known = ", ".join(forms.values())
        raise ConfigurationError(f"{flag}={location}: name a file, or {known}")
    kind = kinds[name]
    match = re.fullmatch(rf"(?:{kind.place})(?:[?](?P<settings>.+))?", rest)
    if not match:
        raise ConfigurationError(f"{flag}={location}: write {forms[name]}")
    at = {part: text for part, text in match.groupdict().items() if text is not None}
    settings = _settings(at.pop("settings"), location, flag) if "settings" in at else {}
    for setting in settings:
        if kind.settings is not None and setting not in kind.settings:
            known = ", ".join(kind.settings) or "none"
            raise ConfigurationError(
                f"{flag}={location}: there is no setting {setting!r} here; there are: {known}"
            )
    try:
        return kind.build(at, settings, given)
    except ConfigurationError as error:
        if "@" in settings.get("schema_registry", ""):  # a password, which is not to be logged
            location = location.partition("?")[0]
        raise ConfigurationError(f"{flag}={location}: {error}") from error


def _settings(text: str, location: str, flag: str) -> Texts:
    try:
        return dict(parse_qsl(text, strict_parsing=True))
    except ValueError:
        raise ConfigurationError(
            f"{flag}={location}: {text!r} are no settings: write NAME=VALUE&NAME=VALUE"
        ) from None
