"""`sv.answers` gives what `streamveil release --questions` writes."""

import json
from pathlib import Path

import pytest
import yaml

import streamveil as sv
from streamveil.io import read_table

QUESTIONS = """\
base_slot: 1d
questions:
  - {name: places, value: value, domain: [A, B, C]}
  - {name: users, slot: 2d, statistic: distinct, share: 0.25}
  - {name: most, value: value, domain: [A, B, C], slot: 3d, statistic: top, k: 2}
"""


@pytest.fixture
def same(job, asked):
    """What the command wrote, and what to ask a call for to have the same."""
    job.flags = {
        **{name: job.flags[name] for name in ("input", "requirements", "noise_key")},
        **{name: job.flags[name] for name in ("user_column", "time_column", "summary")},
        "questions": job.write("questions.yaml", QUESTIONS),
        "output": job.path("answers"),
        "ledger": job.path("ledger.parquet"),
    }
    job.done()
    given = {name: asked[name] for name in ("user", "time", "requirements", "noise_key")}
    return given | {"questions": job.path("questions.yaml")}


def test_answers_ledger_and_figures_are_those_of_the_command(job, same):
    found = sv.answers(job.path("events.csv"), **same)
    assert list(found) == ["places", "users", "most"]
    for name in found:
        assert found[name].to_arrow().equals(read_table(job.path(f"answers/{name}.parquet")))
    assert found.ledger.equals(read_table(job.path("ledger.parquet")))
    assert found.summary == json.loads(Path(job.path("summary.json")).read_text())
    together = found.to_arrow()
    assert together.num_rows == sum(found[name].to_arrow().num_rows for name in found)
    assert together.column_names[:2] == ["question", "slot"]


def test_questions_in_memory(job, same):
    found = sv.answers(job.path("events.csv"), **same)
    mapping = yaml.safe_load(QUESTIONS)
    for questions in (mapping, found.portfolio, Path(same["questions"])):
        again = sv.answers(read_table(job.path("events.csv")), **{**same, "questions": questions})
        assert again.to_arrow().equals(found.to_arrow())


def test_how_results_show_themselves(job, same):
    found = sv.answers(job.path("events.csv"), **same)
    assert "places: count of 3 bins in 11 slots" in str(found)
    assert "events read" in found.text
    assert {"rank", "chance"} <= set(found["most"].to_pandas().columns)
    assert found["users"][0].outputs == ("users",)
    assert "<table>" in found._repr_html_()
    with pytest.raises(KeyError, match="there is no question 'none': choose of places, users"):
        found["none"]


def test_wrong_arguments_are_named_as_in_python(job, same):
    with pytest.raises(sv.ConfigurationError, match=r"^questions: .*none\.yaml"):
        sv.answers(job.path("events.csv"), **{**same, "questions": "none.yaml"})
    with pytest.raises(sv.ConfigurationError, match="the questions: questions is missing"):
        sv.answers(job.path("events.csv"), **{**same, "questions": {"base_slot": "1d"}})
    with pytest.raises(sv.ConfigurationError, match="requirements is missing"):
        sv.answers(job.path("events.csv"), **{**same, "requirements": None})
    with pytest.raises(TypeError, match="data is of type int"):
        sv.answers(3, **same)


def test_what_is_in_a_group_adds_up_to_it(job, same):
    """Of bins, districts and the whole, although what lies between was not measured."""
    levels = [{"east": ["A", "B"], "west": ["C"]}, "all"]
    bins = {"value": "value", "domain": ["A", "B", "C"], "levels": levels}
    parts = {"base_slot": "1d", "questions": [{"name": "parts", **bins}]}
    found = sv.answers(job.path("events.csv"), **{**same, "questions": parts})["parts"]
    assert found[0].labels == ("A", "B", "C", "east", "west", "all")
    for answer in found:
        a, b, c, east, west, everything = answer.values[:, 0]
        assert (a + b, c, east + west) == (east, west, everything)
        assert min(a, b, c) >= 0
    assert found.to_arrow().num_rows == 6 * len(found)


def test_a_bad_line_is_told_once_where_bounds_are_chosen(tmp_path):
    """The bounds are chosen by a look at all events, before they are counted."""
    lines = [f"u{i},2024-01-0{1 + i % 4},{60 + i % 40}" for i in range(800)]
    text = "\n".join(["user,time,speed", *lines, "one,line,of,too,many", "another,of,such,lines"])
    (tmp_path / "events.csv").write_text(text)
    speed = {"name": "speed", "statistic": "mean", "column": "speed", "bounds": "auto"}
    found = sv.answers(
        tmp_path / "events.csv",
        questions={"base_slot": "1d", "questions": [speed]},
        user="user",
        time="time",
        requirements={f"u{i}": (2, 20.0) for i in range(800)},
        noise_key=bytes(range(32)),
    )
    assert found.rejected.num_rows == 2
    assert (found.summary["read"], found.summary["rejected"]) == (802, {"unparsable": 2})
