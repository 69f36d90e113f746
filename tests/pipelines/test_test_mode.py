"""`--test_mode`: exact results in files, each of them marked; what it refuses."""

import json
from pathlib import Path

import pytest

from streamveil.io import read_table
from streamveil.mechanisms.core.records import NO_NOISE, NOT_PRIVATE, TEST
from streamveil.pipelines.flex import TEMPLATES

QUERIES = """\
slot: 1d
queries:
  - {name: places, by: value, keys: [A, B, C]}
  - {name: users, statistic: distinct}
"""


@pytest.fixture
def queries(job):
    """The same events under two queries."""
    places = ("value_column", "domain", "slot")
    job.flags = {name: value for name, value in job.flags.items() if name not in places}
    job.flags |= {
        "queries": job.write("queries.yaml", QUERIES),
        "output": job.path("answers"),
        "ledger": job.path("ledger.jsonl"),
        "summary": job.path("summary.json"),
        "page": job.path("page.html"),
    }
    return job


def cards(job):
    return [path for path in job.files() if path.endswith("card.json")]


@pytest.mark.parametrize("flags", [(), ("--runner=FnApiRunner",)], ids=["here", "on Beam"])
@pytest.mark.parametrize("layout", ["tidy", "rows"])
def test_every_file_of_a_count_is_marked(job, layout, flags):
    job.requirements({f"u{w}": (w, 0.01) for w in (1, 2, 3)})
    made = job.done(
        *flags,
        "--test_mode",
        layout=layout,
        ledger=job.path("ledger.jsonl"),
        summary=job.path("summary.json"),
    )
    assert NOT_PRIVATE in made.log.splitlines()[0]
    assert "no card is written: in test mode nothing is promised" in made.out
    assert f"warning:  {NOT_PRIVATE}\n" in made.out
    assert "budget" not in made.out
    rows = job.rows()
    assert {row["status"] for row in rows} == {TEST}
    if layout == "rows":
        assert [row["counts"] for row in rows] == [[1, 1, 0], [0, 1, 0], [0, 0, 1]]
        assert {(row["mechanism"], row["epsilon"]) for row in rows} == {(NO_NOISE, 0)}
    else:
        assert [row["value"] for row in rows] == [1, 1, 0, 0, 1, 0, 0, 0, 1]
    for row in job.json_rows("ledger.jsonl"):
        assert row["epsilon"] == row["spent"] == row["spent_in_window"] == 0
    summary = json.loads(Path(job.path("summary.json")).read_text())
    assert summary["test_mode"] is True
    assert summary["statuses"] == {TEST: 3}
    assert cards(job) == []


@pytest.mark.parametrize("flags", [(), ("--runner=FnApiRunner",)], ids=["here", "on Beam"])
def test_every_file_of_queries_is_marked(queries, flags):
    queries.requirements({f"u{w}": (w, 0.01) for w in (1, 2, 3)})
    made = queries.done(*flags, "--test_mode=true")
    assert NOT_PRIVATE in made.log.splitlines()[0]
    assert "budget" not in made.out
    places, users = (read_table(queries.path(f"answers/{n}.parquet")) for n in ("places", "users"))
    assert places["value"].to_pylist() == [1, 1, 0, 0, 1, 0, 0, 0, 1]
    assert users["value"].to_pylist() == [2, 1, 1]
    assert {*places["status"].to_pylist(), *users["status"].to_pylist()} == {TEST}
    for row in queries.json_rows("ledger.jsonl"):
        assert row["epsilon"] == row["spent"] == row["spent_in_window"] == 0
    assert json.loads(Path(queries.path("summary.json")).read_text())["test_mode"] is True
    page = Path(queries.path("page.html")).read_text(encoding="utf-8")
    assert "<title>Test mode: 2 queries without noise</title>" in page
    assert "This page is not private.</strong> The run was in test mode" in page
    assert NO_NOISE in page
    for promise in (
        "privacy requirement, which is kept",
        "budget ε",
        "fresh noise",
        "may be published",
    ):
        assert promise not in page
    assert cards(queries) == []


def test_a_run_that_lost_its_input_is_marked(job):
    job.lines("u1,Z,2024-01-01")
    summary = job.path("summary.json")
    outcome = job("--test_mode", summary=summary)
    assert outcome.code == 3
    assert json.loads(Path(summary).read_text())["test_mode"] is True


def test_what_has_no_meaning_is_refused(job):
    for flags in ({}, {"resume": "true"}, {"follow": "1s"}, {"dry_run": "true"}):
        job.refused(
            *("--state=", "--test_mode", "leave one of them out"),
            **{**job.kept(), **flags, "layout": None, "test_mode": "true"},
        )
    assert not Path(job.path("state")).exists()
    job.refused("--resume needs the folder", test_mode="true", resume="true")
    job.refused("--restart_budget is for a stream", test_mode="true", restart_budget="1")
    job.refused("revise=2 (--revise)", test_mode="true", revise="2", revisions=job.path("r.csv"))
    job.refused("--card=", "--test_mode", test_mode="true", card=job.path("card.json"))
    job.refused("--test_mode=perhaps is neither true nor false", test_mode="perhaps")


def test_a_real_state_is_left_as_it_is(job):
    """Also by what would go on from it."""
    Path(job.path("in")).mkdir()
    job.lines("u1,A,2024-01-01T08:00:00Z", "u2,B,2024-01-02T08:00:00Z", name="in/events.csv")
    job.done(**job.kept(), clock_file=job.write("clock", "2024-01-03T00:00:00Z"))
    job.refused("--test_mode", **job.kept(), resume="true", test_mode="true")


def test_queries_refuse_a_state_too(queries):
    queries.flags["page"] = None
    queries.refused("--state=", "--test_mode", state=queries.path("state"), test_mode="true")


def test_results_of_a_real_run_are_not_replaced(job):
    job.done()
    job.refused("exists already", test_mode="true")
    Path(job.path("out.jsonl")).unlink()
    job.refused("is the card of private results", "--output", test_mode="true")


@pytest.mark.parametrize("command", ["collect", "per-record"])
def test_other_commands_have_none(job, command):
    job.command, job.flags = command, {}
    job.refused("--test_mode=true is", "without noise", test_mode="true")


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("ledger", [True, False])
def test_a_card_is_not_checked_against_results_of_test_mode(job, toolbox, ledger, ending):
    job.done(ledger=job.path("ledger.jsonl"))
    card = job.path("out.jsonl.card.json")
    names = {"output": f"tested.{ending}", "ledger": f"tested-ledger.{ending}"}
    tested = {name: job.path(file) for name, file in names.items()}
    job.done("--test_mode", **tested)
    name, path = ("ledger", tested["ledger"]) if ledger else ("releases", tested["output"])
    found = toolbox.run("card", card, "--check", f"--{name}={path}")
    assert found.code == 1
    lines = [line for line in found.err.splitlines() if "test mode" in line]
    assert lines == [
        f"streamveil card: {path} is of a run in test mode, whose results are not private: name "
        "the file that the run of the card wrote"
    ]
    assert len(found.err.splitlines()) == 1


def test_an_environment_does_not_switch_it_on(job, monkeypatch):
    for name in ("STREAMVEIL_TEST_MODE", "TEST_MODE", "test_mode"):
        monkeypatch.setenv(name, "true")
    job.done()
    assert TEST not in {row["status"] for row in job.rows()}
    assert len(cards(job)) == 1


def test_templates_have_it_off():
    for name, template in TEMPLATES.items():
        found = [one for one in template.metadata()["parameters"] if one["name"] == "test_mode"]
        if template.command != "release":
            assert not found, name
            continue
        assert found[0]["defaultValue"] == "false"
        assert found[0]["isOptional"] is True
        assert "--test_mode" not in " ".join(template.fixed)
