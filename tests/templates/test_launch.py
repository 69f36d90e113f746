"""Flex templates launched as Dataflow's launcher does it, with its flags."""

import json
import runpy
import sys
from pathlib import Path

import jsonschema
import pytest

from streamveil.io import read_per_record, read_releases, read_table
from streamveil.pipelines.flex import IMAGE_VARIABLE, NAME_VARIABLE, TEMPLATES
from streamveil.pipelines.main import main as command_line

LAUNCH = Path(__file__).parents[2] / "templates" / "launch.py"
IMAGE = "europe-docker.pkg.dev/project/repository/streamveil:1"
EVENTS = """user,place,time,fare
ann,cafe,2024-05-01T09:12:00Z,3
bob,park,2024-05-01T09:30:00Z,4.5
cho,cafe,2024-05-02T08:45:00Z,2
"""
REQUIREMENTS = """user,window,epsilon
ann,7,1.0
bob,7,2.0
cho,3,1.0
"""
QUERIES = """slot: 1d
queries: [{name: out, by: place, keys: [cafe, park]}]
"""
STREAM = "pubsub:projects/project/subscriptions/events"
TOPIC = "pubsub:projects/project/topics/releases"
COMMON = {
    "user_column": "user",
    "value_column": "place",
    "time_column": "time",
    "slot": "1d",
    "start": "2024-05-01",
    "end": "2024-05-03",
    "domain": "cafe,park",
    "allowed_lateness": "0s",
}


@pytest.fixture
def parameters(tmp_path):
    """The parameters of each template, on files of this machine."""
    (tmp_path / "events.csv").write_text(EVENTS)
    (tmp_path / "users.csv").write_text(REQUIREMENTS)
    (tmp_path / "queries.yaml").write_text(QUERIES)
    files = {"input": str(tmp_path / "events.csv"), "output": str(tmp_path / "out.jsonl")}
    counts = {**COMMON, **files, "layout": "rows"}
    users = {"requirements": str(tmp_path / "users.csv")}
    times = {name: COMMON[name] for name in ("time_column", "slot", "start", "end")}
    record = {"statistic": "sum", "budget": "inverse:1", "value_column": "fare"}
    return {
        "release-batch": {**counts, **users},
        "release-streaming": {**COMMON, **users, "input": STREAM, "output": TOPIC},
        "collect": {**counts, **users},
        "per-record": {**files, **times, **record, "value_max": "9", "epsilon_max": "1"},
        "queries": {
            **{name: COMMON[name] for name in ("user_column", "time_column", "start", "end")},
            **{**files, **users, "output": str(tmp_path / "answers")},
            "queries": str(tmp_path / "queries.yaml"),
        },
        "infinite": {**counts, "epsilon": "1"},
        "user": {**counts, "epsilon": "1", "max_slots": "2"},
    }


@pytest.fixture
def launch(tmp_path, monkeypatch, parameters):
    """Run the file that the image names, in its environment, on parameters and runner flags."""

    def run(name, *flags):
        monkeypatch.setenv(NAME_VARIABLE, name)
        monkeypatch.setenv(IMAGE_VARIABLE, IMAGE)
        # Without credentials: no service is asked for anything.
        monkeypatch.setenv("NO_GCE_CHECK", "true")
        given = [f"--{parameter}={value}" for parameter, value in parameters[name].items()]
        monkeypatch.setattr(sys, "argv", [str(LAUNCH), *given, *flags])
        with pytest.raises(SystemExit) as stopped:
            runpy.run_path(str(LAUNCH), run_name="__main__")
        return stopped.value.code

    return run


@pytest.fixture
def to_dataflow(tmp_path):
    """What the launcher adds, with places of this machine for those of Google Cloud."""
    staged = tmp_path / "staged"
    staged.mkdir()
    return [
        "--runner=DataflowRunner",
        "--project=project-1",
        "--region=europe-west4",
        "--job_name=streamveil-1",
        f"--staging_location={staged}",
        f"--temp_location={staged}",
        f"--template_location={staged / 'job_object'}",
        '--labels={"team": "statistics"}',
        # The second saves a listing of all packages.
        "--experiments=use_network_tags=private,disable_logging_submission_environment",
        "--num_workers=1",
        "--max_num_workers=2",
        "--machine_type=n2-standard-2",
        # Only here: a service on this machine, which nobody serves.
        "--dataflow_endpoint=http://localhost:24001",
        "--no_auth",
    ]


@pytest.mark.many
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_launch_writes_the_job_and_its_card_and_ends(
    name, launch, to_dataflow, tmp_path, capsys, pytestconfig
):
    card = tmp_path / "card.json"
    assert launch(name, *to_dataflow, f"--card={card}") == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    assert "\nhanded over" in f"\n{out}"
    assert f"wrote {card}" in out
    job = json.loads((tmp_path / "staged" / "job_object").read_text())
    streams = name == "release-streaming"
    assert job["type"] == ("JOB_TYPE_STREAMING" if streams else "JOB_TYPE_BATCH")
    pool = job["environment"]["workerPools"][0]
    images = {image["containerImage"] for image in pool["sdkHarnessContainerImages"]}
    assert {pool["workerHarnessContainerImage"], *images} == {IMAGE}
    options = job["environment"]["sdkPipelineOptions"]["options"]
    assert options[{"per-record": "budget", "queries": "queries"}.get(name, "domain")]
    assert not (tmp_path / "out.jsonl").exists()
    record = json.loads(card.read_text())
    schema = pytestconfig.rootpath / "pipelines" / "cards" / "card.schema.json"
    jsonschema.Draft202012Validator(json.loads(schema.read_text())).validate(record)
    (run,) = record["runs"]
    assert run["open"]
    assert run.get("streams", {}) == ({"releases": "pubsub"} if streams else {})
    assert [set(file) for file in run["files"].values()] == ([] if streams else [{"name"}])


@pytest.mark.slow
def test_the_card_of_a_launch_is_checked_against_what_the_job_wrote(
    launch, to_dataflow, parameters, tmp_path, capsys
):
    """On a runner of this machine, in place of Dataflow."""
    ledger = tmp_path / "ledger.jsonl"
    parameters["release-batch"] |= {"ledger": str(ledger)}
    card = tmp_path / "card.json"
    assert launch("release-batch", *to_dataflow, f"--card={card}") == 0
    assert launch("release-batch", "--runner=FnApiRunner") == 0
    capsys.readouterr()
    assert command_line(["card", "--check", str(card)]) == 0
    printed = capsys.readouterr()
    assert "no window" in printed.out
    assert printed.err.count("has no digest") == 2
    rows = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join(rows[:-1]))
    assert command_line(["card", "--check", str(card)]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TEMPLATES if name != "release-streaming"])
def test_a_launch_with_a_local_runner_releases(name, launch, tmp_path, capsys):
    assert launch(name, "--runner=FnApiRunner") == 0, capsys.readouterr().err
    if name == "queries":
        assert read_table(str(tmp_path / "answers" / "out.parquet")).num_rows == 4
        return
    path = str(tmp_path / "out.jsonl")
    rows = read_per_record(path) if name == "per-record" else read_releases(path)
    assert len(rows) == 2
    if name == "infinite":
        assert all(row.shares is not None for row in rows)


@pytest.mark.slow
def test_a_job_discovers_keys_that_the_card_of_its_launch_cannot_name(
    launch, to_dataflow, parameters, tmp_path, capsys, pytestconfig
):
    (tmp_path / "queries.yaml").write_text(QUERIES.replace("[cafe, park]", "discover"))
    visits = "".join(f"u{user},cafe,2024-05-01T09:12:00Z,3\n" for user in range(30))
    (tmp_path / "events.csv").write_text(EVENTS + visits)
    del parameters["queries"]["requirements"]
    ledger = str(tmp_path / "answers" / "ledger.csv")
    parameters["queries"] |= {"budget": "4000/7d", "delta": "1e-3", "ledger": ledger}
    card, own = (tmp_path / "answers" / name for name in ("card.json", "own.json"))
    assert launch("queries", *to_dataflow, f"--card={card}") == 0, capsys.readouterr().err
    record = json.loads(card.read_text())
    schema = pytestconfig.rootpath / "pipelines" / "cards" / "card.schema.json"
    jsonschema.Draft202012Validator(json.loads(schema.read_text())).validate(record)
    assert record["data"]["queries"][0]["domain"]["discovered"]["found"] is False
    assert launch("queries", "--runner=FnApiRunner", f"--card={own}") == 0, capsys.readouterr().err
    keys = set(read_table(str(tmp_path / "answers" / "out.parquet"))["key"].to_pylist())
    assert keys == {"cafe", "unlisted"}
    assert json.loads(own.read_text())["data"]["queries"][0]["domain"]["values"] == ["cafe"]
    for path in (card, own):
        assert command_line(["card", "--check", str(path)]) == 0, capsys.readouterr().out


def test_a_parameter_that_is_none_stops_the_launch(launch, to_dataflow, tmp_path, capsys):
    assert launch("release-batch", *to_dataflow, "--default_requirment=7,1.0,10") == 2
    assert "default_requirement" in capsys.readouterr().err
    assert not (tmp_path / "staged" / "job_object").exists()


@pytest.mark.parametrize("flag", ["--experiments", "--dataflow_service_options"])
def test_at_least_once_is_refused(flag, launch, to_dataflow, tmp_path, capsys):
    mode = "streaming_mode_at_least_once"
    assert launch("release-streaming", *to_dataflow, f"{flag}={mode}") == 2
    assert mode in capsys.readouterr().err
    assert not (tmp_path / "staged" / "job_object").exists()
