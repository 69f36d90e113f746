"""Files of answers are all written, or none; what is not known is null."""

import json
import os

import apache_beam as beam
import numpy as np
import pytest

from streamveil.io import WriteAnswers, answer_schema, read_table
from streamveil.io.answers import answer_json, answers_batch
from streamveil.io.folder import answer_file
from streamveil.io.kafka import answer_record
from streamveil.mechanisms.core.domains import Categories
from streamveil.mechanisms.core.records import Slots
from streamveil.mechanisms.portfolio.questions import Portfolio, Question
from streamveil.mechanisms.portfolio.slot_answers import SlotAnswer
from streamveil.mechanisms.portfolio.statistics import Mean, TopK
from streamveil.mechanisms.portfolio.times import sums_at_start
from streamveil.mechanisms.protocol import Lasting, SlotRelease

PLACES = Question("places", value=("place",), domain=Categories(("a", "b")))
ALL = Question("all", slots=24)
PORTFOLIO = Portfolio(Slots.of("1h"), (PLACES, ALL))


def answer(question, slot, counts, stderr):
    size = len(counts)
    made = SlotRelease(
        *(np.array(counts), "published", slot, 0.5, np.full(size, float(stderr))),
        spent=np.zeros(1, np.int64),
    )
    return SlotAnswer.of(made, slot, question, PORTFOLIO)


ANSWERS = [
    answer(PLACES, 1, [3, 4], 1),
    answer(PLACES, 0, [1, 2], np.nan),
    answer(ALL, 0, [9], 1),
]


def write(folder, number):
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        made = pipeline | "Answers" >> beam.Create(ANSWERS)
        done = pipeline | "Done" >> beam.Create([number])
        (made, done) | WriteAnswers(str(folder), PORTFOLIO)


def test_each_question_has_its_file(tmp_path):
    write(tmp_path / "new" / "folder", 3)
    rows = read_table(str(tmp_path / "new" / "folder" / "places.parquet")).to_pylist()
    assert [(row["slot"], row["bin"], row["value"]) for row in rows] == [
        (0, "a", 1.0),
        (0, "b", 2.0),
        (1, "a", 3.0),
        (1, "b", 4.0),
    ]
    assert rows[0]["stderr"] is None
    assert rows[0]["low"] is None
    (row,) = read_table(str(tmp_path / "new" / "folder" / "all.parquet")).to_pylist()
    assert (row["bin"], row["statistic"], row["value"]) == ("all", "count", 9.0)


def test_what_is_not_whole_is_not_written(tmp_path):
    with pytest.raises(Exception, match="3 answers came to be written, and 4 should"):
        write(tmp_path / "answers", 4)
    assert not os.path.exists(tmp_path / "answers")


def test_longer_times_come_after_their_slots_with_names_of_their_own(tmp_path):
    asked = Question("places", value=("place",), domain=Categories(("a", "b")), times=(2,))
    portfolio = Portfolio(Slots.of("1h"), (asked,))
    (sums,), told = sums_at_start(asked), []
    for slot in range(2):
        told.append(answer(asked, slot, [3, slot], 1))
        counts, known = np.array([[3.0], [slot]]), np.ones((2, 1))
        sums = sums.after(slot, counts, known, Lasting(known, known), "published")
    told.append(SlotAnswer.of_time(sums, asked, portfolio))
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        made = pipeline | "Answers" >> beam.Create(told[::-1])
        done = pipeline | "Done" >> beam.Create([3])
        (made, done) | WriteAnswers(str(tmp_path), portfolio)
    rows = read_table(str(tmp_path / "places.parquet")).to_pylist()
    assert [(row["length"], row["slot"], row["value"]) for row in rows[::2]] == [
        *(("1h", 0, 3.0), ("1h", 1, 3.0), ("2h", 0, 6.0)),
    ]
    assert rows[-1]["stderr"] == pytest.approx(2.0)  # errors are alike
    assert len({answer_file(one)[0] for one in told}) == 3
    assert [answer_record(one)[0] for one in told[1:]] == [b"places/1h/1", b"places/2h/0"]
    line = json.loads(answer_json(told[-1]))
    assert (line["length"], line["slot"], line["end"]) == ("2h", 0, "1970-01-01T02:00:00Z")
    assert line["figures"][1]["value"] == 1.0


def test_some_statistics_have_more_columns():
    mean = Question("mean", statistic=Mean("x", 0, 1))
    top = Question("top", value=("place",), domain=Categories(("a", "b", "c")), statistic=TopK(2))
    assert answer_schema(mean).names[-1] == "clipping"
    made = answers_batch([answer(top, 0, [5, 1, 9], 1)], answer_schema(top)).to_pylist()
    assert [(row["bin"], row["rank"]) for row in made] == [("a", 2), ("b", None), ("c", 1)]
    assert made[1]["chance"] is None
    assert 0.9 < made[2]["chance"] <= 1
