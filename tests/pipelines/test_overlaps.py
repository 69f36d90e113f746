"""Outputs inside the input's pattern: the next run would read its own results as events."""

import os

import pytest

from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.pipelines.plans.overlaps import refuse_in_input

TAKEN = [
    ("in/*.jsonl", "in/out.jsonl"),
    ("./in/*", "in/out.parquet"),
    ("*.jsonl", "out.jsonl"),
    ("in/../in/*.json*", "in/out.jsonl"),
    ("in/*/*.parquet", "in/answers/places.parquet"),
    ("in/**", "in/a/b/out.csv"),
    ("i?/[n-p]*.csv", "in/out.csv"),
    ("link/*.csv", "in/out.csv"),
    ("in/*.csv", "link/out.csv"),
    ("in", "in/deep/out.csv"),
    ("in/", "link/out.csv"),
    ("link", "in/out.csv"),
    ("li*", "in/out.csv"),
    ("watch:in/*.json", "folder:in"),
    ("in/*.csv", "elsewhere/target.csv"),
]
APART = [
    ("in/*.csv", "in/out.jsonl"),
    ("in/*.csv", "out.csv"),
    ("in/*.csv", "in/deep/out.csv"),
    ("in", "inner/out.csv"),
    ("in", "in/_results/out.csv"),
    ("in/events.csv", "in/out.csv"),
    ("gs://b/in/*.csv", "in/out.csv"),
    ("in/*.csv", "gs://b/in/out.csv"),
    ("kafka:host:9092/topic", "in/out.csv"),
]


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "events.csv").write_text("user\n")
    (tmp_path / "link").symlink_to("in")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "in" / "latest.csv").symlink_to(tmp_path / "elsewhere" / "target.csv")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize(("pattern", "output"), TAKEN)
def test_what_the_input_takes_in_is_refused(place, pattern, output, absolute):
    if absolute and ":" not in output:
        output = str(place / output)
    with pytest.raises(ConfigurationError, match="would be written where the input") as refused:
        refuse_in_input([None, pattern], [None, "other.json", output])
    assert "\n" not in str(refused.value)
    assert output in str(refused.value)


@pytest.mark.parametrize(("pattern", "output"), APART)
def test_what_it_does_not_take_in_is_not(place, pattern, output):
    refuse_in_input([pattern], [output])


OUTPUTS = {
    "output": {"output": "in/out.csv"},
    "ledger": {"ledger": "in/ledger.csv"},
    "dead letters": {"rejected": "in/bad.csv"},
    "card": {"output": "in/out.parquet", "input": "in/*.[cj]s*"},
}


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("flags", OUTPUTS.values(), ids=OUTPUTS.keys())
def test_every_output_of_a_run_is_looked_at(job, flags, kept):
    os.makedirs(job.path("in"))
    job.lines("u1,A,2024-01-01T08:00:00Z", name="in/events.csv")
    paths = {name: job.path(path) for name, path in ({"input": "in/*.csv"} | flags).items()}
    state = {"state": job.path("state"), "start": "2024-01-01"} if kept else {}
    outcome = job(**(paths | state))
    assert outcome.code == 2
    assert "would be written where the input" in outcome.err
    assert outcome.err.count("\n") == 1
    assert sorted(os.listdir(job.path("in"))) == ["events.csv"]


def test_answers_in_the_input_are_refused(job):
    os.makedirs(job.path("in"))
    job.lines("u1,A,2024-01-01T08:00:00Z", name="in/events.csv")
    asked = job.write("q.yaml", "slot: 1d\nqueries: [{name: all}]\n")
    none = dict.fromkeys(("value_column", "domain", "slot"))
    for pattern, output in (("in/*", "in"), ("in/**", "in/answers"), ("in", "in/answers")):
        places = {"input": job.path(pattern), "output": job.path(output)}
        job.refused("would be written where the input", queries=asked, **(none | places))


@pytest.mark.parametrize("pattern", ["in", "in/*", "in/**"])
def test_a_state_in_the_input_is_refused_and_not_made(job, pattern):
    os.makedirs(job.path("in"))
    job.lines("u1,A,2024-01-01T08:00:00Z", name="in/events.csv")
    flags = {"state": job.path("in/state"), "start": "2024-01-01", "input": job.path(pattern)}
    outcome = job(**flags)
    assert outcome.code == 2
    assert f"--state={flags['state']} would be written where the input" in outcome.err
    assert os.listdir(job.path("in")) == ["events.csv"]
