"""Rows of per-record statistics: to files and back, and as messages."""

import json
import math

import apache_beam as beam
import pytest

from streamveil.io import WritePerRecord, per_record_sink_of, read_per_record
from streamveil.io.per_record import PER_RECORD_SCHEMA
from streamveil.io.pubsub import WriteReleasesToPubSub
from streamveil.io.result_messages import PER_RECORD_MESSAGES
from streamveil.mechanisms.core.records import ConfigurationError, PerRecordRow

DAY = 86_400_000_000
ROWS = [
    PerRecordRow("b", DAY, 2 * DAY, "sum", "hat:base=4", -1.5, 2.25, 0.5, 7.0),
    PerRecordRow("a", DAY, 2 * DAY, "sum", "hat:base=4", 1e15, 2.25, 0.5, 7.0),
    PerRecordRow("a", 0, DAY, "sum", "hat:base=4", 3.0, math.nan, 1e-7, math.nan),
]
ALL_TIMES = PerRecordRow(None, None, None, "max", "framework", 12.0, math.nan, 0.25, 3.0)
FORMATS = ("parquet", "avro", "csv", "jsonl")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, new_pipeline):
    path = tmp_path_factory.mktemp("out")
    with new_pipeline() as pipeline:
        rows = pipeline | "Rows" >> beam.Create(ROWS)
        whole = pipeline | "Whole" >> beam.Create([ALL_TIMES])
        for kind in FORMATS:
            _ = rows | f"Write {kind}" >> WritePerRecord(f"{path}/rows.{kind}")
            _ = whole | f"Write whole {kind}" >> WritePerRecord(f"{path}/whole.{kind}")
    return path


@pytest.mark.parametrize("kind", FORMATS)
def test_rows_read_back_by_window_and_key(folder, kind):
    assert repr(read_per_record(f"{folder}/rows.{kind}")) == repr([ROWS[2], ROWS[1], ROWS[0]])
    assert repr(read_per_record(f"{folder}/whole.{kind}")) == repr([ALL_TIMES])


def test_a_message_is_a_line_of_the_file(folder):
    with open(folder / "rows.jsonl", "rb") as file:
        assert PER_RECORD_MESSAGES.message(ROWS[2]) == file.readline().rstrip(b"\n")
    message = json.loads(PER_RECORD_MESSAGES.message(ALL_TIMES))
    assert list(message) == PER_RECORD_SCHEMA.names
    assert message["start"] is message["stderr"] is None


def test_keys_of_kafka_tell_rows_apart():
    keys = [json.loads(PER_RECORD_MESSAGES.record(row)[0]) for row in (*ROWS, ALL_TIMES)]
    assert keys[0] == ["b", "1970-01-03T00:00:00Z"]
    assert keys[-1] == [None, None]
    assert len({tuple(key) for key in keys}) == len(keys)


def test_sinks_go_by_the_place():
    assert isinstance(per_record_sink_of("x.csv"), WritePerRecord)
    sink = per_record_sink_of("pubsub:projects/project/topics/rows")
    assert isinstance(sink, WriteReleasesToPubSub)
    assert json.loads(sink.messages.message(ALL_TIMES))["estimate"] == 12.0
    assert per_record_sink_of("bigquery:p.d.t").table == "p.d.t"
    with pytest.raises(ConfigurationError, match="--output=watch:x"):
        per_record_sink_of("watch:x")
