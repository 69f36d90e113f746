"""`streamveil release` from and to streams: what runs, and what is refused before it does."""

import pytest

from streamveil.pipelines.beam_flags import FlinkOptions
from streamveil.pipelines.release import ReleaseJob

SUBSCRIPTION = "pubsub:projects/a-project/subscriptions/events"
TOPIC = "pubsub:projects/a-project/topics/releases"
WATCHED = {"input": "watch:in/*.csv", "output": "folder:out"}


@pytest.fixture
def google():
    pytest.importorskip("google.cloud.pubsub", reason="the extra gcp is not installed")


@pytest.mark.parametrize(
    ("flag", "remedy"),
    [("output", "write to bigquery:"), ("ledger", "leave it out"), ("rejected", "leave it out")],
)
def test_a_file_does_not_end_with_a_stream(job, google, flag, remedy):
    path = job.path("x.jsonl")
    flags = {"input": SUBSCRIPTION, "output": TOPIC, flag: path}
    job.refused(f"--{flag}={path}", f"--input={SUBSCRIPTION} does not end", remedy, **flags)


PASSES = {"state": "state", "slot": "1d", "start": "2024-01-01"}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"input": "kafka:h:9/t"}, ["input kafka:h:9/t is not files", "pubsub: for --input"]),
        ({"output": "folder:x"}, ["folder:x is not files", "pubsub: for --input"]),
        ({"ledger": TOPIC}, [f"ledger {TOPIC} is not files"]),
        ({"rejected": TOPIC}, [f"rejected {TOPIC} is not files"]),
        ({"requirement_changes": SUBSCRIPTION}, [f"requirement_changes {SUBSCRIPTION}"]),
        (
            {"input": "pubsub:projects/a-project/topics/events"},
            ["reads a subscription", "is a topic: create a subscription of it"],
        ),
        ({"input": f"{SUBSCRIPTION}?id_label=id"}, ["id_label=id means nothing", "leave it out"]),
        (
            {"input": f"{SUBSCRIPTION}?timestamp_attribute=at"},
            ["timestamp_attribute=at means nothing", "by the clock"],
        ),
        ({"input": f"{SUBSCRIPTION}?speed=1"}, ["there is no setting 'speed'"]),
        ({"output": "pubsub:x"}, ["--output=pubsub:x: write pubsub:projects/PROJECT/topics/NAME"]),
        ({"output": TOPIC, "layout": "tidy"}, ["--layout=tidy is for files"]),
        ({"output": TOPIC, "follow": "1s", "serve": "1"}, ["--serve shows files", "leave it out"]),
    ],
)
def test_what_passes_do_not_read_or_write(job, google, monkeypatch, tmp_path, flags, words):
    monkeypatch.chdir(tmp_path)
    job.refused(*words, **{**PASSES, **flags})
    assert not (tmp_path / "state" / "manifest.json").exists()


def test_a_state_cannot_be_where_no_witness_can(job, google, monkeypatch, tmp_path):
    monkeypatch.setattr("streamveil.pipelines.follow.may_hold_files", lambda _: False)
    state = tmp_path / "inner" / "state"
    state.parent.mkdir()
    words = (f"--state={state}", "may not write the witness", "name a folder")
    job.refused(*words, **{**PASSES, "state": str(state), "output": TOPIC})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("inbox/000000000001.parquet", ["has messages of Pub/Sub", "--input=pubsub: as before"]),
        ("outbox/releases-00000001.jsonl", ["is not published yet", "no topic is given"]),
    ],
)
def test_messages_are_not_left_behind(job, google, tmp_path, name, words):
    left = tmp_path / "state" / name
    left.parent.mkdir(parents=True)
    left.write_bytes(b"x")
    job.lines("u1,A,2024-01-01T00:00:00Z")
    job.refused(str(left), *words, **{**PASSES, "state": str(tmp_path / "state")})
    assert left.exists()


@pytest.mark.parametrize("chosen", [(), ("--runner=FnApiRunner",)])
def test_a_stream_needs_a_runner(job, google, chosen):
    outcome = job(*chosen, input="watch:in/*.csv", output=TOPIC)
    assert outcome.code == 2
    for word in ("--input=watch:in/*.csv does not end", "give --runner", "FlinkRunner"):
        assert word in outcome.message


def test_a_stream_of_pubsub_is_told_of_state(job, google):
    ways = ("give --state=FOLDER and --follow=10s, or give --runner=DataflowRunner", "forgets what")
    job.refused(*ways, input=SUBSCRIPTION, output=TOPIC)


def test_a_stream_on_spark_is_refused(job, google):
    words = ("--input=watch:in/*.csv does not end", "issues/20396", "give --runner", "FlinkRunner")
    job.refused(*words, runner="SparkRunner", input="watch:in/*.csv", output=TOPIC)


@pytest.mark.parametrize("chosen", ["FlinkRunner", "PortableRunner"])
def test_slots_settle_where_there_are_checkpoints(job, chosen):
    flags = ("--checkpointing_interval=2500", "--num_concurrent_checkpoints=1")
    flags = (f"--runner={chosen}", *flags, "--unaligned_checkpoint_enabled")
    given, execution = job.asked(*flags, **WATCHED)
    assert ReleaseJob.of(given, execution).plan.settle == 2_500_000
    assert execution.options.view_as(FlinkOptions).finish_bundle_before_checkpointing


def test_slots_of_a_bounded_input_need_not_settle(job):
    job.lines("u1,A,2024-01-01T00:00:00Z")
    flags = ("--runner=FlinkRunner", "--checkpointing_interval=2500")
    assert ReleaseJob.of(*job.asked(*flags)).plan.settle is None


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"runner": "FlinkRunner"}, ["--checkpointing_interval is missing", "=10000"]),
        (
            {"runner": "PortableRunner", "checkpointing_mode": "AT_LEAST_ONCE"},
            ["--checkpointing_mode=AT_LEAST_ONCE", "twice", "EXACTLY_ONCE"],
        ),
        (
            {"runner": "FlinkRunner", "checkpointing_interval": 9, "num_concurrent_checkpoints": 2},
            ["--num_concurrent_checkpoints=2", "twice and differently", "leave it out"],
        ),
        (
            {
                "runner": "FlinkRunner",
                "checkpointing_interval": 9,
                "allow_non_restored_state": True,
            },
            ["--allow_non_restored_state", "drop the users' ledgers", "leave it out"],
        ),
    ],
)
def test_a_stream_that_might_be_released_twice_is_refused(job, flags, words):
    job.refused(*words, **flags, **WATCHED)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"input": "pubsub:events"}, ["--input=pubsub:events", "subscriptions/NAME"]),
        ({"input": "folder:p"}, ["--input=folder:p", "name a file", "kafka:HOST"]),
        ({"input": "bigquery:t"}, ["bigquery:t is no table", "write bigquery:PROJECT"]),
        ({"output": "watch:x"}, ["--output=watch:x", "name a file", "bigquery:PROJECT"]),
        ({"output": "kafka:h/t"}, ["--output=kafka:h/t", "kafka:HOST:PORT/TOPIC"]),
    ],
)
def test_a_place_that_is_none(job, flags, words):
    job.refused(*words, **flags)


def test_help_names_the_places(toolbox):
    out = " ".join(toolbox.run("release", "--help").out.split())
    for form in ("watch:GLOB", "kafka:HOST:PORT/TOPIC", "bigquery:PROJECT.DATASET.TABLE"):
        assert form in out
