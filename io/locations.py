"""Where events come from and releases go to, as one text: a file, or KIND:PLACE for a stream."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qsl

import apache_beam as beam

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
    WriteReleases,
    WriteRevisedAnswers,
    WriteRevisions,
)
from streamveil.io.files import Columns
from streamveil.io.folder import WriteReleasesToFolder
from streamveil.io.formats import CsvDialect
from streamveil.io.kafka import ReadKafkaEvents, WriteReleasesToKafka
from streamveil.io.ledgers import ledger_form
from streamveil.io.messages import READING_SETTINGS, reading_of
from streamveil.io.places import SINKS, SOURCES, TABLES, is_endless, is_stream
from streamveil.io.pubsub import ReadPubSubEvents, WriteReleasesToPubSub
from streamveil.io.requirement_changes import change_columns
from streamveil.io.result_messages import (
    PER_RECORD_MESSAGES,
    ResultMessages,
    answer_messages,
    release_messages,
    revised_answer_messages,
    revision_messages,
)
from streamveil.io.tables import TableForm
from streamveil.io.tidy import TIDY, answers_form, revised_answers_form
from streamveil.io.watch import WatchEvents
from streamveil.mechanisms.core.local_days import zone_of
from streamveil.mechanisms.core.records import CHANGE_COLUMNS, ConfigurationError
from streamveil.mechanisms.core.wording import opt
from streamveil.mechanisms.queries.queries import QuerySet

Texts = dict[str, str]


@dataclass(frozen=True)
class _Kind:
    place: str
    """Pattern of what follows the colon; its groups name the parts."""
    build: Callable[[Texts, Texts, Mapping[str, Any]], beam.PTransform]
    """Makes the transform of the parts, the settings, and its arguments by keyword."""
    settings: tuple[str, ...] | None = ()
    """Names that may be set after a question mark; None for any."""


def _read_kafka(at: Texts, settings: Texts, given: Mapping[str, Any]) -> ReadKafkaEvents:
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


def _read_pubsub(at: Texts, settings: Texts, given: Mapping[str, Any]) -> ReadPubSubEvents:
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


def _sinks(messages: ResultMessages, table: Callable[..., beam.PTransform]) -> dict[str, _Kind]:
    """What writes results of a kind to streams, and to tables by `table`."""
    return {
        "bigquery": _table(table),
        "pubsub": _Kind(
            _TOPIC,
            lambda at, *_: WriteReleasesToPubSub(at["topic"], messages=messages),
        ),
        "kafka": _Kind(
            _KAFKA,
            lambda at, settings, _: WriteReleasesToKafka(
                at["servers"], at["topic"], messages=messages, producer_config=settings
            ),
            settings=None,
        ),
        "folder": _Kind(
            "(?P<path>.+)",
            lambda at, *_: WriteReleasesToFolder(at["path"], messages=messages),
        ),
    }


def _table(write: Callable[..., beam.PTransform]) -> _Kind:
    return _Kind(
        "(?P<table>[^/?]+)",
        lambda at, settings, _: write(at["table"], **table_settings(settings)),
        settings=TABLE_SETTINGS,
    )


def _rows_to_table(form: TableForm) -> Callable[..., beam.PTransform]:
    """What writes the rows of a form to a table."""
    return partial(WriteItemsToBigQuery, schema=form.schema, convert=form.convert)


def source_of(
    location: str,
    columns: Columns,
    flag: str = "--input",
    silent: bool = False,
    dialect: CsvDialect | None = None,
) -> beam.PTransform:
    """Make a transform that reads events from a location. The outputs are :class:`Events`.

    Args:
        location: the place of the events. Give a file or glob, a BigQuery table or query,
            `pubsub:projects/P/subscriptions/S` or `pubsub:projects/P/topics/T`,
            `kafka:HOST:PORT/TOPIC`, or `watch:GLOB`. You may add settings after a `?`, written
            NAME=VALUE and separated by `&`. The settings of Pub/Sub are the arguments of
            ReadPubSubEvents. The settings of Kafka are those of the Kafka consumer, and
            `timestamp_policy`.
        columns: the columns to read.
        flag: name of the option from which the location comes. Error messages show this name.
        silent: if true, events that cannot be read are dropped without dead letters, as per-record
            privacy requires.
        dialect: the form of CSV files, for example their delimiter and column names.

    Raises:
        ConfigurationError: if the form of the location is unknown, or if the location needs an
            extra that is not installed.
    """
    if not is_endless(location):
        return ReadEvents(location, columns=columns, silent=silent, dialect=dialect, counted=True)
    given: dict[str, Any] = {"columns": columns, "silent": silent}
    if location.startswith("watch:"):
        given["dialect"] = dialect
    elif dialect is not None and dialect.any_name:
        raise ConfigurationError(
            f"{flag}={location} has no CSV files: leave out {opt.delimiter} and {opt.columns}"
        )
    return _stream(_SOURCES, {**TABLES, **SOURCES}, location, flag, given)


def requirement_changes_of(location: str, flag: str = "--requirement_changes") -> beam.PTransform:
    """Make a transform that reads changes of requirements. The outputs are :class:`Events`.

    The batches have a column `user` and one or both of the columns `slot` and `time`. The new
    requirement is in the columns `window_backward`, `epsilon_backward`, `window_forward` and
    `epsilon_forward` (see :class:`DynamicRequirement`). The transform does not check the values.

    Raises:
        ConfigurationError: if the location is not valid, as for :func:`source_of`, or if columns
            are missing, as for :func:`change_columns`.
    """
    columns = CHANGE_COLUMNS if is_endless(location) else change_columns(location)
    return source_of(location, columns, flag)


def sink_of(
    location: str,
    labels: Sequence[str],
    flag: str = "--output",
    *,
    shares: bool = False,
    layout: str = TIDY,
    zone: str | None = None,
) -> beam.PTransform:
    """Make a transform that writes releases to a location.

    Args:
        location: where to write the releases. Give a file, `bigquery:P.DATASET.TABLE`,
            `pubsub:projects/P/topics/T`, `folder:PATH`, or `kafka:HOST:PORT/TOPIC`. You may add
            settings after a `?`. The settings of Kafka are those of the Kafka producer. The
            settings of BigQuery are `method` and `add_columns`. The value of `method` is FILE_LOADS
            or STREAMING_INSERTS. For unbounded inputs, the default is STREAMING_INSERTS. If
            `add_columns` is true, columns that are missing in an existing table are added. The
            default of `add_columns` is false.
        labels: the keys.
        flag: name of the option from which the location comes. Error messages show this name.
        shares: whether releases also contain each key's fraction of the total count.
        layout: with `tidy`, the output has a row for each slot and key. With `rows`, it has a row
            for each slot.
        zone: time zone of the times in the layout `tidy`. If None, the times are in UTC. The time
            zone does not affect BigQuery tables, because BigQuery stores times without a time zone.

    Raises:
        ConfigurationError: if the form of the location is unknown, or if the location needs an
            extra that is not installed.
    """
    if not is_stream(location):
        return WriteReleases(location, labels=labels, shares=shares, layout=layout, zone=zone)
    messages = release_messages(labels, shares=shares, layout=layout, zone=zone)
    table = partial(WriteReleasesToBigQuery, labels=labels, shares=shares, layout=layout)
    return _stream(_sinks(messages, table), SINKS, location, flag)


def revision_sink_of(
    location: str,
    labels: Sequence[str],
    flag: str = "--revisions",
    *,
    layout: str = TIDY,
    zone: str | None = None,
) -> beam.PTransform:
    """Make a transform that writes revisions. The arguments are those of :func:`sink_of`."""
    if not is_stream(location):
        return WriteRevisions(location, labels=labels, layout=layout, zone=zone)
    messages = revision_messages(labels, layout=layout, zone=zone)
    table = partial(WriteRevisionsToBigQuery, labels=labels, layout=layout)
    return _stream(_sinks(messages, table), SINKS, location, flag)


def answer_sink_of(location: str, query_set: QuerySet, flag: str = "--output") -> beam.PTransform:
    """Make a transform that writes the results of a query set.

    The location has one of the forms that :func:`sink_of` accepts, but instead of a file you give a
    folder. One file for each query is written to this folder.
    """
    if not is_stream(location):
        return WriteAnswers(location, query_set)
    if location.partition(":")[0] not in SINKS:
        raise ConfigurationError(
            f"{flag}={location} does not accept query results: name a folder, or "
            f"{', '.join(SINKS.values())}"
        )
    messages = answer_messages(zone_of(query_set.base))
    return _stream(_sinks(messages, _rows_to_table(answers_form())), SINKS, location, flag)


def revised_answer_sink_of(
    location: str, flag: str = "--revisions", *, zone: str | None = None
) -> beam.PTransform:
    """Make a transform that writes the revisions of a query set. See :func:`sink_of`.

    If the location is a file, the revisions of all queries are written to this file. `zone` is the
    time zone of the times in the file.
    """
    if not is_stream(location):
        return WriteRevisedAnswers(location, zone=zone)
    table = _rows_to_table(revised_answers_form())
    return _stream(_sinks(revised_answer_messages(zone), table), SINKS, location, flag)


def ledger_sink_of(location: str, flag: str = "--ledger", *, dynamic: bool = False) -> Any:
    """Make a transform that writes the ledger to a file or to a BigQuery table.

    If the location is a file, apply the transform to a tuple of two PCollections, the ledger
    entries and the number of entries. If the location is a table, apply the transform to the ledger
    entries alone. Set `dynamic` to true if requirements may change.
    """
    if not is_stream(location):
        return WriteLedger(location, dynamic=dynamic)
    kinds = {"bigquery": _table(_rows_to_table(ledger_form(dynamic)))}
    return _stream(kinds, {"bigquery": SINKS["bigquery"]}, location, flag)


def per_record_sink_of(location: str, flag: str = "--output") -> beam.PTransform:
    """Make a transform that writes per-record results.

    The arguments are those of :func:`sink_of`.
    """
    if not is_stream(location):
        return WritePerRecord(location)
    return _stream(_sinks(PER_RECORD_MESSAGES, WritePerRecordToBigQuery), SINKS, location, flag)


def _stream(
    kinds: Mapping[str, _Kind],
    forms: Mapping[str, str],
    location: str,
    flag: str,
    given: Mapping[str, Any] = MappingProxyType({}),
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
            f"{flag}={location}: {text!r} are not settings: write NAME=VALUE&NAME=VALUE"
        ) from None
