"""Sources and sinks for events, requirements and results, in files, streams and tables."""

from typing import TYPE_CHECKING

from streamveil.mechanisms.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from streamveil.io.bigquery import (
        WritePerRecordToBigQuery,
        WriteReleasesToBigQuery,
        WriteRevisionsToBigQuery,
        bigquery_schema,
        check_sinks,
    )
    from streamveil.io.coders import RecordBatchCoder
    from streamveil.io.datasets import DATASETS
    from streamveil.io.domain import read_domain
    from streamveil.io.ends import ends_of
    from streamveil.io.event_sources import Events, ReadEvents, ReadTable
    from streamveil.io.events import (
        REJECTED_SCHEMA,
        UNREADABLE,
        check_events,
        read_events,
        read_part,
        split_file,
    )
    from streamveil.io.file_sinks import (
        WriteAnswers,
        WriteLedger,
        WritePerRecord,
        WriteRejected,
        WriteReleases,
        WriteRevisedAnswers,
        WriteRevisions,
        WriteTable,
    )
    from streamveil.io.files import Stamp, is_in_folder, label_of, list_files, match_files
    from streamveil.io.folder import AlreadyReleasedError, WriteReleasesToFolder
    from streamveil.io.formats import CsvDialect
    from streamveil.io.inbox import Inbox, inbox_outputs
    from streamveil.io.kafka import ReadKafkaEvents, WriteReleasesToKafka
    from streamveil.io.ledgers import LEDGER_SCHEMA, read_ledger
    from streamveil.io.locations import (
        answer_sink_of,
        ledger_sink_of,
        per_record_sink_of,
        requirement_changes_of,
        revised_answer_sink_of,
        revision_sink_of,
        sink_of,
        source_of,
    )
    from streamveil.io.memory import event_table, is_table, table_of
    from streamveil.io.outbox import Outbox
    from streamveil.io.per_record import PER_RECORD_SCHEMA, read_per_record
    from streamveil.io.places import SINK_FORMS, SOURCE_FORMS, is_endless, is_stream
    from streamveil.io.public import read_public
    from streamveil.io.pubsub import ReadPubSubEvents, WriteReleasesToPubSub
    from streamveil.io.queries import queries_of, read_queries
    from streamveil.io.releases import BINS_METADATA, read_releases, read_state, release_schema
    from streamveil.io.requirement_changes import change_columns
    from streamveil.io.requirements import read_requirements, requirements_of
    from streamveil.io.result_files import answer_files, make_folder
    from streamveil.io.result_messages import (
        ResultMessages,
        answer_messages,
        release_messages,
        revised_answer_messages,
        revision_messages,
    )
    from streamveil.io.revisions import read_revisions, revision_schema
    from streamveil.io.schema_registry import SchemaRegistry
    from streamveil.io.snapshot import InputFile, Snapshot, StateFolder
    from streamveil.io.tables import (
        check_output,
        check_outputs,
        check_place,
        read_table,
        write_table,
        write_text,
    )
    from streamveil.io.tidy import (
        ANSWERS_SCHEMA,
        LAYOUTS,
        RESULT_SCHEMA,
        answer_schema,
        answers_batch,
    )
    from streamveil.io.users import TableChanges, UserTable
    from streamveil.io.watch import WatchEvents
    from streamveil.io.witness import refuse_witness, witness_of

__all__ = [
    "ANSWERS_SCHEMA",
    "BINS_METADATA",
    "DATASETS",
    "LAYOUTS",
    "LEDGER_SCHEMA",
    "PER_RECORD_SCHEMA",
    "REJECTED_SCHEMA",
    "RESULT_SCHEMA",
    "SINK_FORMS",
    "SOURCE_FORMS",
    "UNREADABLE",
    "AlreadyReleasedError",
    "CsvDialect",
    "Events",
    "Inbox",
    "InputFile",
    "Outbox",
    "ReadEvents",
    "ReadKafkaEvents",
    "ReadPubSubEvents",
    "ReadTable",
    "RecordBatchCoder",
    "ResultMessages",
    "SchemaRegistry",
    "Snapshot",
    "Stamp",
    "StateFolder",
    "TableChanges",
    "UserTable",
    "WatchEvents",
    "WriteAnswers",
    "WriteLedger",
    "WritePerRecord",
    "WritePerRecordToBigQuery",
    "WriteRejected",
    "WriteReleases",
    "WriteReleasesToBigQuery",
    "WriteReleasesToFolder",
    "WriteReleasesToKafka",
    "WriteReleasesToPubSub",
    "WriteRevisedAnswers",
    "WriteRevisions",
    "WriteRevisionsToBigQuery",
    "WriteTable",
    "answer_files",
    "answer_messages",
    "answer_schema",
    "answer_sink_of",
    "answers_batch",
    "bigquery_schema",
    "change_columns",
    "check_events",
    "check_output",
    "check_outputs",
    "check_place",
    "check_sinks",
    "ends_of",
    "event_table",
    "inbox_outputs",
    "is_endless",
    "is_in_folder",
    "is_stream",
    "is_table",
    "label_of",
    "ledger_sink_of",
    "list_files",
    "make_folder",
    "match_files",
    "per_record_sink_of",
    "queries_of",
    "read_domain",
    "read_events",
    "read_ledger",
    "read_part",
    "read_per_record",
    "read_public",
    "read_queries",
    "read_releases",
    "read_requirements",
    "read_revisions",
    "read_state",
    "read_table",
    "refuse_witness",
    "release_messages",
    "release_schema",
    "requirement_changes_of",
    "requirements_of",
    "revised_answer_messages",
    "revised_answer_sink_of",
    "revision_messages",
    "revision_schema",
    "revision_sink_of",
    "sink_of",
    "source_of",
    "split_file",
    "table_of",
    "witness_of",
    "write_table",
    "write_text",
]

__getattr__, __dir__ = lazy_names(__name__)
