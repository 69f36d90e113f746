"""Revisions in files, folders and messages."""

import json
import math

import apache_beam as beam
import numpy as np
import pytest

from streamveil.io import (
    RESULT_SCHEMA,
    WriteRevisions,
    read_revisions,
    read_table,
    revision_schema,
    revision_sink_of,
)
from streamveil.io.bigquery import WriteRevisionsToBigQuery
from streamveil.io.jsonlines import json_text
from streamveil.io.result_messages import revision_messages
from streamveil.io.revisions import revision_row
from streamveil.io.tidy import revised_schema
from streamveil.mechanisms.core.records import ConfigurationError, Revised, Revision, Slots

LABELS = ("=1+2", "cafe")
DAY = Slots.of("1d")


def revision(slot, counts, stderr, at):
    return Revision.of(Revised(slot, np.array(counts), np.array(stderr)), at, DAY, "adaptive")


REVISIONS = [revision(1, [3, 4], [1.5, 2.0], 8), revision(0, [0, 0], [math.nan] * 2, 7)]


def write(sink, revisions=REVISIONS):
    with beam.Pipeline(runner="BundleBasedDirectRunner") as pipeline:
        pipeline | beam.Create(revisions) | sink


@pytest.mark.parametrize("ending", ["parquet", "avro", "csv", "jsonl"])
def test_every_format_gives_them_back_in_order(tmp_path, ending):
    path = str(tmp_path / f"revisions.{ending}")
    write(WriteRevisions(path, labels=LABELS, layout="rows"))
    found = read_revisions(path)
    for one, other in zip(found, REVISIONS[::-1], strict=True):
        assert (one.slot, one.start, one.end) == (other.slot, other.start, other.end)
        assert (one.revised_slot, one.revised_at) == (other.revised_slot, DAY.end(other.slot + 7))
        assert one.mechanism == "adaptive"
        np.testing.assert_array_equal(one.counts, other.counts)
        np.testing.assert_array_equal(one.stderr, other.stderr)
    assert read_table(path).column_names == revision_schema().names


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_tidy_table_has_a_row_for_each_slot_and_bin(tmp_path, ending):
    path = str(tmp_path / f"revisions.{ending}")
    write(WriteRevisions(path, labels=LABELS))
    rows = read_table(path).to_pylist()
    assert list(rows[0]) == [*RESULT_SCHEMA.names, "revised_at"]
    assert [(int(row["slot"]), row["key"].lstrip("'"), int(row["value"])) for row in rows] == [
        *((0, "=1+2", 0), (0, "cafe", 0), (1, "=1+2", 3), (1, "cafe", 4))
    ]
    assert {(row["query"], row["status"]) for row in rows} == {("count", "revised")}
    assert str(rows[0]["revised_at"])[:10] == "1970-01-09"
    if ending == "parquet":
        assert rows[0]["low"] is None
        assert rows[3]["high"] == pytest.approx(4 + 1.645 * 2)


def test_a_folder_has_a_file_for_each(tmp_path):
    write(revision_sink_of(f"folder:{tmp_path}", LABELS, layout="rows"))
    names = [f"revision-1970010{day}T000000.000000Z.json" for day in (1, 2)]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    wide = json_text(revision_row(REVISIONS[0])).encode() + b"\n"
    assert (tmp_path / names[1]).read_bytes() == wide
    name, what, lines = revision_messages(LABELS).file(REVISIONS[0])
    assert (name, what) == (names[1], "the revision of slot 1")
    rows = list(map(json.loads, lines.splitlines()))
    assert [(row["key"], row["value"], row["status"]) for row in rows] == [
        *(("=1+2", 3.0, "revised"), ("cafe", 4.0, "revised"))
    ]
    assert list(rows[0]) == revised_schema().names


def test_a_message_has_the_columns_of_a_file():
    key, value = revision_messages(LABELS, layout="rows").record(REVISIONS[1])
    assert key == b"0"
    row = json.loads(value)
    assert list(row) == revision_schema().names
    assert row["stderr"] == [None, None]
    assert row["revised_at"] == "1970-01-09T00:00:00Z"


def test_a_message_of_tidy_rows_has_what_they_have_in_common_once():
    key, value = revision_messages(LABELS).record(REVISIONS[1])
    assert key == b"0"
    message = json.loads(value)
    common = ("query", "slot", "start", "end", "status", "revised_at")
    assert list(message) == [*common, "rows"]
    assert (message["query"], message["revised_at"]) == ("count", "1970-01-09T00:00:00Z")
    assert [list(row) for row in message["rows"]] == [
        [name for name in revised_schema().names if name not in common]
    ] * 2
    assert message["rows"][0]["stderr"] is None


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        ({}, revised_schema().names),
        ({"layout": "rows"}, [*revision_schema().names, "bins"]),
    ],
)
def test_bigquery_takes_rows_of_its_schema(monkeypatch, chosen, names):
    given = {}

    def kept(self, rows):
        given.update(self._schema)
        return rows | beam.Map(lambda row: given.setdefault("row", row))

    monkeypatch.setattr(WriteRevisionsToBigQuery, "_write", kept)
    with beam.Pipeline(runner="BundleBasedDirectRunner") as pipeline:
        pipeline | beam.Create(REVISIONS) | revision_sink_of("bigquery:p.d.t", LABELS, **chosen)
    assert [field["name"] for field in given["fields"]] == names


def test_another_place_is_refused():
    with pytest.raises(ConfigurationError, match=r"--revisions=kafka:nowhere: write kafka:HOST"):
        revision_sink_of("kafka:nowhere", LABELS)
    with pytest.raises(ConfigurationError, match=r"out.xls"):
        revision_sink_of("out.xls", LABELS)


def test_what_is_not_whole_is_never_written(tmp_path):
    path = tmp_path / "revisions.jsonl"
    pipeline = beam.Pipeline(runner="BundleBasedDirectRunner")
    number = pipeline | "Number" >> beam.Create([3])
    _ = (pipeline | beam.Create(REVISIONS), number) | WriteRevisions(str(path), labels=LABELS)
    with pytest.raises(RuntimeError, match="2 results arrived to be written, and 3 were expected"):
        pipeline.run().wait_until_finish()
    assert not path.exists()
