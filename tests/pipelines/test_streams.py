"""`streamveil release` from and to streams: what runs, and what is refused before it does."""

import json
import time
from concurrent.futures import Future
from unittest import mock

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import StandardOptions
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner

from streamveil.mechanisms.core.records import format_time
from streamveil.pipelines.launch import FlinkOptions, parse_flags
from streamveil.pipelines.release import ReleaseJob

SUBSCRIPTION = "pubsub:projects/a-project/subscriptions/events"
TOPIC = "pubsub:projects/a-project/topics/releases"
WATCHED = {"input": "watch:in/*.csv", "output": "folder:out"}


@pytest.fixture
def google():
    pytest.importorskip("google.cloud.pubsub", reason="the extra gcp is not installed")


@pytest.fixture
def published(google):
    """What is published, as (topic, object), with Google's client replaced."""
    sent = []

    def publish(topic, data, **_):
        sent.append((topic, json.loads(data)))
        done = Future()
        done.set_result("id")
        return done

    with mock.patch("google.cloud.pubsub.PublisherClient") as client:
        client.return_value.topic_path = "projects/{}/topics/{}".format
        client.return_value.publish.side_effect = publish
        yield sent


def test_files_to_a_topic(job, published):
    key = job.key()
    job.done(noise_key=key)
    outcome = job.done(noise_key=key, output=TOPIC)
    assert f"wrote {TOPIC}" in outcome.out
    topic = TOPIC.removeprefix("pubsub:")
    assert sorted(published, key=lambda sent: sent[1]["slot"]) == [
        (topic, row) for row in job.json_rows("out.jsonl")
    ]


def subscribed(job, published, ahead, until):
    """Run until two slots are released, the first of which begins so many seconds ahead.

    Gives the number of the first, and the time of the first look for messages.
    """
    from apache_beam.testing.test_utils import PullResponseMessage, create_pull_response

    second = 1_000_000
    first = int(time.time()) + ahead
    times = [first + part for part in (0.1, 0.2, 1.1)]
    records = [
        json.dumps({"user": user, "value": "A", "time": format_time(int(at * second))}).encode()
        for user, at in zip(("u1", "u2", "u1"), times, strict=True)
    ]
    looks = []

    def pull(**_):
        looks.append(time.time())
        now = int(looks[-1])
        sent = [*records, b"no"] if len(looks) == 1 else []
        return create_pull_response([PullResponseMessage(r, {}, now, 0, "ack") for r in sent])

    options = parse_flags(
        "release",
        job.arguments(
            "--runner=BundleBasedDirectRunner",
            input=SUBSCRIPTION,
            output=TOPIC,
            slot="1s",
            start=format_time(first * second),
            end=format_time((first + 2) * second),
        )[1:],
    )
    release = ReleaseJob.of(options)
    assert options.view_as(StandardOptions).streaming
    # This runner does not know the default one.
    release.transform.heartbeat = beam.Create([first, first + 1])
    with mock.patch("google.cloud.pubsub.SubscriberClient") as client:
        client.return_value.pull.side_effect = pull
        pipeline = beam.Pipeline(runner=BundleBasedDirectRunner(), options=options)
        release.build(pipeline)
        running = pipeline.run()
        until(lambda: len(published) >= 2)
        running.cancel()
    return first, looks[0]


@pytest.mark.slow
def test_a_subscription_to_a_topic(job, published, until):
    """In real time, by the clock: both slots are released as they end, the job goes on."""
    for ahead in (6, 60, 300):  # a busy machine takes more time to start
        published.clear()
        first, looked = subscribed(job, published, ahead, until)
        if looked < first:
            break
    assert [(row["slot"], row["counts"]) for _, row in published] == [
        (first, [2, 0, 0]),
        (first + 1, [1, 0, 0]),
    ]


@pytest.mark.parametrize(
    ("flag", "remedy"),
    [("output", "write to bigquery:"), ("ledger", "leave it out"), ("rejected", "leave it out")],
)
def test_a_file_does_not_end_with_a_stream(job, google, flag, remedy):
    path = job.path("x.jsonl")
    flags = {"input": SUBSCRIPTION, "output": TOPIC, flag: path}
    job.refused(f"--{flag}={path}", f"--input={SUBSCRIPTION} does not end", remedy, **flags)


@pytest.mark.parametrize("chosen", [(), ("--runner=FnApiRunner",)])
def test_a_stream_needs_a_runner(job, google, chosen):
    outcome = job(*chosen, input="watch:in/*.csv", output=TOPIC)
    assert outcome.code == 2
    for word in ("--input=watch:in/*.csv does not end", "give --runner", "FlinkRunner"):
        assert word in outcome.message


@pytest.mark.parametrize("chosen", ["FlinkRunner", "PortableRunner"])
def test_slots_settle_where_there_are_checkpoints(job, chosen):
    flags = ("--checkpointing_interval=2500", "--num_concurrent_checkpoints=1")
    flags = (f"--runner={chosen}", *flags, "--unaligned_checkpoint_enabled")
    options = parse_flags("release", job.arguments(*flags, **WATCHED)[1:])
    assert ReleaseJob.of(options).transform.settle == 2_500_000
    assert options.view_as(FlinkOptions).finish_bundle_before_checkpointing


def test_slots_of_a_bounded_input_need_not_settle(job):
    job.lines("u1,A,2024-01-01T00:00:00Z")
    flags = ("--runner=FlinkRunner", "--checkpointing_interval=2500")
    options = parse_flags("release", job.arguments(*flags)[1:])
    assert ReleaseJob.of(options).transform.settle is None


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
        ({"input": "bigquery:p.d.t"}, ["--input=bigquery:p.d.t", "name a file", "kafka:HOST"]),
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
