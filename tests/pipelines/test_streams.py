"""`streamveil release` from and to streams: what runs, and what is refused before it does."""

import json

import pytest

from streamveil.pipelines.commands.release import job_of
from streamveil.pipelines.options.beam_flags import FlinkOptions

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
    job.refused(f"--{flag}={path}", f"--input={SUBSCRIPTION} is unbounded", remedy, **flags)


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
        ({"input": f"{SUBSCRIPTION}?id_label=id"}, ["id_label=id has no effect", "leave it out"]),
        (
            {"input": f"{SUBSCRIPTION}?timestamp_attribute=at"},
            ["timestamp_attribute=at has no effect", "by the clock"],
        ),
        ({"input": f"{SUBSCRIPTION}?speed=1"}, ["there is no setting 'speed'"]),
        ({"output": "pubsub:x"}, ["--output=pubsub:x: write pubsub:projects/PROJECT/topics/NAME"]),
        ({"output": TOPIC, "follow": "1s", "serve": "1"}, ["--serve shows files", "leave it out"]),
    ],
)
def test_what_passes_do_not_read_or_write(job, google, monkeypatch, tmp_path, flags, words):
    monkeypatch.chdir(tmp_path)
    job.refused(*words, **{**PASSES, **flags})
    assert not (tmp_path / "state" / "manifest.json").exists()


@pytest.mark.parametrize("layout", [None, "rows"])
def test_a_topic_takes_a_message_for_each_slot(job, google, monkeypatch, layout):
    """Releases go to a topic, and revisions of them to a file."""
    sent = []
    monkeypatch.setattr(
        "streamveil.io.outbox.Outbox._send", lambda self, topic, lines: sent.extend(lines)
    )
    flags = {**PASSES, "state": job.path("state"), "end": "2024-01-04", "layout": layout}
    later = {"revise": 1, "revisions": job.path("later.jsonl"), "max_rejected": 1}
    job.done(**flags, **later, output=TOPIC, mechanism="adaptive")
    messages = list(map(json.loads, sent))
    assert [one["slot"] for one in messages] == [19723, 19724, 19725]
    revised = job.rows("later-00000001.jsonl")
    if layout == "rows":
        assert [len(one["counts"]) for one in messages] == [3] * 3
        assert [(row["slot"], len(row["counts"])) for row in revised[:1]] == [(19723, 3)]
        return
    assert [[row["key"] for row in one["rows"]] for one in messages] == [["A", "B", "C"]] * 3
    assert {(one["query"], one["rows"][0]["statistic"]) for one in messages} == {("count", "count")}
    assert messages[0]["start"] == "2024-01-01T00:00:00Z"
    assert [(row["slot"], row["key"]) for row in revised[:4]] == [
        *((19723, "A"), (19723, "B"), (19723, "C"), (19724, "A"))
    ]


@pytest.mark.parametrize("layout", [None, "rows"])
def test_a_folder_takes_a_file_for_each_slot(job, layout):
    job.done(output=f"folder:{job.path('out')}", layout=layout, slot_zone="Europe/Berlin")
    (first, *_) = sorted((job.folder / "out").iterdir())
    rows = list(map(json.loads, first.read_text().splitlines()))
    if layout == "rows":
        assert [len(row["counts"]) for row in rows] == [3]
        assert rows[0]["start"].endswith("Z")
    else:
        assert [row["key"] for row in rows] == ["A", "B", "C"]
        assert {row["start"] for row in rows} == {"2024-01-01T00:00:00+01:00"}


def test_a_state_cannot_be_where_no_witness_can(job, google, monkeypatch, tmp_path):
    monkeypatch.setattr("streamveil.pipelines.state_runs.follow.may_hold_files", lambda _: False)
    state = tmp_path / "inner" / "state"
    state.parent.mkdir()
    words = (f"--state={state}", "cannot write the stream's high-water mark", "choose a folder")
    job.refused(*words, **{**PASSES, "state": str(state), "output": TOPIC})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("inbox/000000000001.parquet", ["has Pub/Sub messages", "--input=pubsub: as before"]),
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
    for word in ("--input=watch:in/*.csv is unbounded", "give --runner", "FlinkRunner"):
        assert word in outcome.message


def test_a_stream_of_pubsub_is_refused_without_a_state(job, google):
    ways = ("give --state=FOLDER and --follow=10s, or give --runner=DataflowRunner", "forgets what")
    job.refused(*ways, input=SUBSCRIPTION, output=TOPIC)


def test_a_stream_on_spark_is_refused(job, google):
    words = ("--input=watch:in/*.csv is unbounded", "issues/20396", "give --runner", "FlinkRunner")
    job.refused(*words, runner="SparkRunner", input="watch:in/*.csv", output=TOPIC)


@pytest.mark.parametrize("chosen", ["FlinkRunner", "PortableRunner"])
def test_slots_settle_where_there_are_checkpoints(job, chosen):
    flags = ("--checkpointing_interval=2500", "--num_concurrent_checkpoints=1")
    flags = (f"--runner={chosen}", *flags, "--unaligned_checkpoint_enabled")
    given, execution = job.asked(*flags, **WATCHED)
    assert job_of("release", given, execution).plan.settle == 2_500_000
    assert execution.options.view_as(FlinkOptions).finish_bundle_before_checkpointing


def test_slots_of_a_bounded_input_need_not_settle(job):
    job.lines("u1,A,2024-01-01T00:00:00Z")
    flags = ("--runner=FlinkRunner", "--checkpointing_interval=2500")
    assert job_of("release", *job.asked(*flags)).plan.settle is None


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
        (
            {"input": "bigquery:t"},
            ["bigquery:t is neither a BigQuery table", "write bigquery:PROJECT"],
        ),
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
