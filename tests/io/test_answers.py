"""Files of answers are all written, or none; what is not known is null."""

import json
import os

import apache_beam as beam
import numpy as np
import pytest

from streamveil.io import (
    ANSWERS_SCHEMA,
    RESULT_SCHEMA,
    WriteAnswers,
    answer_schema,
    read_table,
    revised_answer_sink_of,
)
from streamveil.io.bigquery import WriteItemsToBigQuery
from streamveil.io.result_messages import answer_messages, revised_answer_messages
from streamveil.io.tidy import answers_batch
from streamveil.mechanisms.core.domains import Categories
from streamveil.mechanisms.core.records import ConfigurationError, Slots
from streamveil.mechanisms.protocol import Lasting, SlotRelease, SlotRevision
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.slot_answers import SlotAnswer
from streamveil.mechanisms.queries.statistics import Count, DistinctUsers, Mean, Sum, TopK
from streamveil.mechanisms.queries.times import sums_at_start

PLACES = Query("places", value=("place",), domain=Categories(("a", "b")))
ALL = Query("all", slots=24)
QUERY_SET = QuerySet(Slots.of("1h"), (PLACES, ALL))


def answer(query, slot, counts, stderr):
    size = len(counts)
    made = SlotRelease(
        *(np.array(counts), "published", slot, 0.5, np.full(size, float(stderr))),
        spent=np.zeros(1, np.int64),
    )
    return SlotAnswer.of(made, slot, query, QUERY_SET)


ANSWERS = [
    answer(PLACES, 1, [3, 4], 1),
    answer(PLACES, 0, [1, 2], np.nan),
    answer(ALL, 0, [9], 1),
]


def write(folder, number):
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        made = pipeline | "Answers" >> beam.Create(ANSWERS)
        done = pipeline | "Done" >> beam.Create([number])
        (made, done) | WriteAnswers(str(folder), QUERY_SET)


def test_each_query_has_its_file(tmp_path):
    write(tmp_path / "new" / "folder", 3)
    rows = read_table(str(tmp_path / "new" / "folder" / "places.parquet")).to_pylist()
    assert [(row["slot"], row["key"], row["value"]) for row in rows] == [
        (0, "a", 1.0),
        (0, "b", 2.0),
        (1, "a", 3.0),
        (1, "b", 4.0),
    ]
    assert rows[0]["stderr"] is None
    assert rows[0]["low"] is None
    (row,) = read_table(str(tmp_path / "new" / "folder" / "all.parquet")).to_pylist()
    assert (row["key"], row["statistic"], row["value"]) == ("all", "count", 9.0)


def test_what_is_not_whole_is_not_written(tmp_path):
    with pytest.raises(Exception, match="3 results arrived to be written, and 4 were expected"):
        write(tmp_path / "answers", 4)
    assert not os.path.exists(tmp_path / "answers")


def test_longer_times_come_after_their_slots_with_names_of_their_own(tmp_path):
    asked = Query("places", value=("place",), domain=Categories(("a", "b")), times=(2,))
    query_set = QuerySet(Slots.of("1h"), (asked,))
    (sums,), answers = sums_at_start(asked), []
    for slot in range(2):
        answers.append(answer(asked, slot, [3, slot], 1))
        counts, known = np.array([[3.0], [slot]]), np.ones((2, 1))
        sums = sums.after(slot, counts, known, Lasting(known, known), "published")
    answers.append(SlotAnswer.of_time(sums, asked, query_set))
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        made = pipeline | "Answers" >> beam.Create(answers[::-1])
        done = pipeline | "Done" >> beam.Create([3])
        (made, done) | WriteAnswers(str(tmp_path), query_set)
    rows = read_table(str(tmp_path / "places.parquet")).to_pylist()
    assert [(row["length"], row["slot"], row["value"]) for row in rows[::2]] == [
        *(("1h", 0, 3.0), ("1h", 1, 3.0), ("2h", 0, 6.0)),
    ]
    assert rows[-1]["stderr"] == pytest.approx(2.0)  # errors are alike
    messages = answer_messages()
    assert len({messages.file(one)[0] for one in answers}) == 3
    assert [messages.record(one)[0] for one in answers[1:]] == [b"places/1h/1", b"places/2h/0"]
    line = json.loads(messages.message(answers[-1]))
    assert (line["length"], line["slot"], line["end"]) == ("2h", 0, "1970-01-01T02:00:00Z")
    assert line["rows"][1]["value"] == 1.0


def test_the_columns_of_results_come_first():
    for query in (PLACES, Query("mean", statistic=Mean("x", 0, 1))):
        schema = answer_schema(query)
        assert schema.names[: len(ANSWERS_SCHEMA)] == ANSWERS_SCHEMA.names
        assert schema.names[: len(RESULT_SCHEMA)] == RESULT_SCHEMA.names
    assert ANSWERS_SCHEMA.names[len(RESULT_SCHEMA) :] == ["length", "level", "note"]


@pytest.mark.parametrize("statistic", [Count(), DistinctUsers(), TopK(1)])
def test_no_interval_of_a_count_is_below_0(statistic):
    asked = Query("n", value=("place",), domain=PLACES.domain, statistic=statistic)
    low, high = answers_batch([answer(asked, 0, [-9, 1], 2)], RESULT_SCHEMA).to_pylist()
    assert (low["value"], low["low"], low["high"]) == (-9, 0, 0)
    assert (high["value"], high["low"]) == (1, 0)
    assert high["high"] == pytest.approx(1 + 1.645 * 2)


def test_an_interval_of_a_sum_may_be_below_0():
    asked = Query("n", statistic=Sum("x", -5, 5))
    (row,) = answers_batch([answer(asked, 0, [40, 0, 0, 0], 2)], RESULT_SCHEMA).to_pylist()
    assert row["low"] < row["value"] < 0


def test_some_statistics_have_more_columns():
    mean = Query("mean", statistic=Mean("x", 0, 1))
    top = Query("top", value=("place",), domain=Categories(("a", "b", "c")), statistic=TopK(2))
    assert answer_schema(mean).names[-1] == "clipping"
    made = answers_batch([answer(top, 0, [5, 1, 9], 1)], answer_schema(top)).to_pylist()
    assert [(row["key"], row["rank"]) for row in made] == [("a", 2), ("b", None), ("c", 1)]
    assert made[1]["chance"] is None
    assert 0.9 < made[2]["chance"] <= 1


def revised(query, slot, counts, at):
    made = SlotRevision(slot, np.array(counts), np.full(len(counts), 2.0))
    return SlotAnswer.of_revision(made, at, query, QUERY_SET)


REVISED_COLUMNS = [*RESULT_SCHEMA.names, "revised_at", "length", "level", "note"]
REVISED = [revised(ALL, 0, [9], 2), revised(PLACES, 1, [3, 4], 3), revised(PLACES, 0, [1, 2], 2)]


@pytest.mark.parametrize("ending", ["parquet", "avro", "csv", "jsonl"])
def test_revisions_of_all_queries_are_in_one_file(tmp_path, ending):
    path = str(tmp_path / f"revised.{ending}")
    with beam.Pipeline(runner="BundleBasedDirectRunner") as pipeline:
        number = pipeline | "Number" >> beam.Create([3])
        made = pipeline | "Revised" >> beam.Create(REVISED)
        _ = (made, number) | revised_answer_sink_of(path)
    rows = read_table(path).to_pylist()
    assert list(rows[0]) == REVISED_COLUMNS
    assert [(row["query"], int(row["slot"]), float(row["value"])) for row in rows] == [
        *(("places", 0, 1), ("places", 0, 2), ("places", 1, 3), ("places", 1, 4), ("all", 0, 9))
    ]
    assert {row["status"] for row in rows} == {"revised"}
    assert str(rows[0]["revised_at"])[:13].replace("T", " ") == "1970-01-01 03"
    assert float(rows[-1]["high"]) == pytest.approx(9 + 1.645 * 2)


def test_messages_and_files_of_revisions_say_when():
    one = REVISED[1]
    messages = revised_answer_messages()
    key, message = messages.record(one)
    assert key == b"places/1h/1"
    line = json.loads(message)
    assert (line["status"], line["revised_at"]) == ("revised", "1970-01-01T04:00:00Z")
    assert [row["value"] for row in line["rows"]] == [3.0, 4.0]
    assert "revised_at" not in json.loads(answer_messages().message(ANSWERS[0]))
    name, what, data = messages.file(one)
    assert name == "revision-19700101T010000.000000Z-places.1h.json"
    assert what == "the revision of slot 1 of query 'places'"
    rows = list(map(json.loads, data.splitlines()))
    assert [row["value"] for row in rows] == [3.0, 4.0]
    assert {row["revised_at"] for row in rows} == {line["revised_at"]}


def test_tables_take_revisions(monkeypatch):
    given = {}

    def kept(self, rows):
        given["fields"] = self._schema["fields"]
        return rows | beam.Map(lambda row: given.setdefault("row", row))

    monkeypatch.setattr(WriteItemsToBigQuery, "_write", kept)
    with beam.Pipeline(runner="BundleBasedDirectRunner") as pipeline:
        pipeline | beam.Create(REVISED) | revised_answer_sink_of("bigquery:p.d.t")
    assert [field["name"] for field in given["fields"]] == REVISED_COLUMNS


def test_another_place_of_revisions_is_refused():
    with pytest.raises(ConfigurationError, match=r"--revisions=kafka:nowhere: write kafka:HOST"):
        revised_answer_sink_of("kafka:nowhere")
    with pytest.raises(ConfigurationError, match=r"out.xls"):
        revised_answer_sink_of("out.xls")
