"""The command line on Prism: what it cannot start or run is said plainly, errors of workers too."""

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


@pytest.mark.prism
@pytest.mark.parametrize("forever", [False, True], ids=["windows", "forever"])
def test_a_run_goes_on_from_the_state_of_the_last(prism, forever):
    budget = {"guarantee": "infinite", "epsilon": 2, "requirements": None} if forever else {}
    common = {"start": "2024-01-01", "noise_key": prism.key(), **budget}
    run(prism, end="2024-01-04", **common)
    state = {"state": prism.path("state"), "output": prism.path("part.jsonl")}
    for hour, more in (("02T12", ()), ("05T00", ("--resume",))):
        clock = prism.write("clock", f"2024-01-{hour}:00:00Z")
        run(prism, *more, end="2024-01-04", clock_file=clock, **state, **common)
    parts = [prism.json_rows(f"part-{number:08d}.jsonl") for number in (1, 2)]
    assert [len(part) for part in parts] == [1, 2]
    assert [*parts[0], *parts[1]] == prism.json_rows("out.jsonl")
