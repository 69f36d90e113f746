"""The command line on Prism: what it cannot start or run is said plainly, errors of workers too."""

import gzip

import pytest


@pytest.mark.parametrize("location", ["/nowhere/prism", "https://example.com/prism"])
def test_a_prism_that_is_not_there(job, location):
    job.refused(
        "Prism does not start",
        location,
        "--prism_location=/FOLDER/prism",
        runner="PrismRunner",
        prism_location=location,
        experiments="disable_prism_server_singleton",  # another test's would do
    )


@pytest.fixture
def prism(job, flags_of):
    """The job on Prism."""
    job.flags |= dict(flag.lstrip("-").split("=", 1) for flag in flags_of("prism"))
    return job


def run(prism, *extra, code=0, **flags):
    """Run it, and look at the exit code alone: workers of a failed job before may still print."""
    outcome = prism(*extra, **flags)
    assert outcome.code == code, outcome
    return outcome


@pytest.mark.prism
def test_the_summary_tells_all_that_it_does_in_this_process(prism):
    on_prism = run(prism, noise_key=prism.key(), output=prism.path("prism.jsonl"))
    here = run(prism, noise_key=prism.key(), runner=None, prism_location=None)
    assert "slots:    3 published" in here.out
    assert on_prism.out == here.out.replace("out.jsonl", "prism.jsonl")
    assert prism.counts("prism.jsonl") == prism.counts()


@pytest.mark.prism
def test_direct_runner_takes_the_prism_that_it_is_given(prism):
    outcome = run(prism, runner="DirectRunner")
    assert "PrismRunner: pipeline done!" in outcome.log
    assert len(prism.rows()) == 3


@pytest.mark.prism
def test_errors_of_workers_come_as_they_were(prism):
    prism.lines("u1,Z,2024-01-01T08:00:00Z")
    said = run(prism, code=3).err
    assert "streamveil release: the only event was rejected or late, no event was accepted" in said
    assert "out.jsonl" not in str(prism.files())


RANGE = {"start": "2024-01-01", "end": "2024-01-04"}
OF_RECORDS = {
    **dict.fromkeys(("user_column", "requirements", "domain")),
    **{"statistic": "sum", "budget": "sqrt:10", "value_column": "amount", "value_max": 100},
    **{"epsilon_max": 8, "key_column": "value", "keys": "A,B,C"},
}


@pytest.fixture
def commands(prism, toolbox, flags_of):
    """The job of each command on Prism, in one folder."""
    made = {"release": prism}
    for command in ("collect", "per-record"):
        made[command] = toolbox.Job(prism.folder, command)
        made[command].flags |= dict(flag.lstrip("-").split("=", 1) for flag in flags_of("prism"))
    made["per-record"].flags |= OF_RECORDS
    return made


# Prism drops what a step failed on, and goes on until the job is torn down.
@pytest.mark.prism
@pytest.mark.parametrize("flags", [RANGE, {}], ids=["range", "no range"])
@pytest.mark.parametrize("command", ["release", "collect"])
def test_what_is_left_of_a_lost_input_is_not_released(commands, command, flags):
    commands[command].lines(*["u1,A,2024-01-01T08:00:00Z"] * 3, *["u1,?,2024-01-02"] * 4)
    said = run(commands[command], code=3, ledger=commands[command].path("ledger.csv"), **flags).err
    assert "4 of 7 events were rejected or late" in said
    assert len(commands[command].files()) == 2  # events and users


@pytest.mark.prism
@pytest.mark.parametrize("command", ["release", "collect", "per-record"])
def test_what_is_left_of_an_unreadable_input_is_not_released(commands, command):
    """One file is fine, and one ends in the middle of what is compressed."""
    job = commands[command]
    lines = [f"u1,A,2024-01-0{1 + i % 3}T08:00:00Z,{i % 97}" for i in range(50_000)]
    text = "\n".join(("user,value,time,amount", *lines))
    job.write("events-1.csv", text)
    compressed = gzip.compress(text.encode())
    job.write("events-2.csv.gz", compressed[: len(compressed) // 2])
    layout = {"layout": None} if command == "per-record" else {}
    said = run(job, code=2, input=job.path("events-*"), **RANGE, **layout).err
    assert "events-2.csv.gz" in said
    assert "out.jsonl" not in str(job.files())


@pytest.mark.prism
def test_a_pipeline_that_prism_refuses(prism):
    said = run(
        prism,
        code=2,
        input="pubsub:projects/my-project/subscriptions/events",
        output="pubsub:projects/my-project/topics/releases",
    ).err
    for words in ("Prism refuses the pipeline", "beam:transform:pubsub_read", "another --runner"):
        assert words in said
