"""Pub/Sub up to its client library, which is replaced as Beam's own tests replace it."""

import json
import time
from concurrent.futures import Future
from unittest import mock

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.testing.test_utils import PullResponseMessage, create_pull_response

from streamveil.io import ReadPubSubEvents, WriteReleases, WriteReleasesToPubSub
from streamveil.mechanisms.core.records import ConfigurationError

pytest.importorskip("google.cloud.pubsub", reason="the extra gcp is not installed")

SUBSCRIPTION = "projects/a-project/subscriptions/events"
TOPIC = "projects/a-project/topics/events"
NAMES = ("user", "value")


def message(text, seconds, **attributes):
    return PullResponseMessage(text, attributes, seconds, 0, "ack")


@pytest.fixture
def subscriber():
    """A client whose `pulls` are given one by one, then nothing."""
    with mock.patch("google.cloud.pubsub.SubscriberClient") as client:
        client.pulls = []
        client.return_value.pull.side_effect = lambda **_: create_pull_response(
            client.pulls.pop(0) if client.pulls else []
        )
        yield client


@pytest.mark.parametrize("place", [{"subscription": SUBSCRIPTION}, {"topic": TOPIC}])
@pytest.mark.parametrize("attribute", [None, "time"])
def test_events_are_read_from_pubsub(subscriber, keep, until, caplog, place, attribute):
    now = int(time.time())
    subscriber.pulls = [
        [
            message(b'{"user":"a","value":1}', now + 50, time="2024-05-01T00:00:09Z"),
            message(b'{"user":"b","value":"2"}', now + 60, time="1714521604000"),
            message(b"no", now + 70, time="2024-05-01T00:00:10Z"),
        ],
        [message(b'{"value":"3","user":"c"}', now + 80, time="2024-05-01T00:00:20Z")],
    ]
    options = PipelineOptions(["--streaming"])
    pipeline = beam.Pipeline(runner=BundleBasedDirectRunner(), options=options)
    events = pipeline | ReadPubSubEvents(**place, columns=NAMES, timestamp_attribute=attribute)
    warned = [r.getMessage() for r in caplog.records if r.name == "streamveil"]
    assert [("timestamp_attribute=time" in told) for told in warned] == [True] * bool(attribute)
    assert not events.batches.is_bounded
    assert not events.rejected.is_bounded
    batches, rejected = keep(events.batches, "batches"), keep(events.rejected, "rejected")
    running = pipeline.run()
    until(lambda: len(batches) == 2 and rejected)
    running.cancel()
    rows = [[(row["user"], row["value"]) for row in batch.to_pylist()] for batch, _ in batches]
    assert sorted(rows) == [[("a", "1"), ("b", "2")], [("c", "3")]]
    first, second = sorted(time for _, time in batches)
    times = (now + 50, now + 80) if attribute is None else (1714521604, 1714521620)
    assert (first, second) == times
    source = f"pubsub:{next(iter(place.values()))}"
    assert batches[0][0].schema.metadata == {b"streamveil.source": source.encode()}
    ((letter,),) = [batch.to_pylist() for batch, _ in rejected]
    assert (letter["source"], letter["reason"]) == (source, "unparsable")
    assert letter["record"] == "no"


def test_the_id_label_is_handed_to_the_runner(subscriber):
    pipeline = beam.Pipeline(
        runner=BundleBasedDirectRunner(), options=PipelineOptions(["--streaming"])
    )
    _ = pipeline | ReadPubSubEvents(subscription=SUBSCRIPTION, columns=NAMES, id_label="id")
    with pytest.raises(NotImplementedError, match="id_label"):  # as Beam says of this runner
        pipeline.run().wait_until_finish()


def test_a_release_is_the_message_that_the_file_has_as_a_line(
    some_releases, tmp_path, pipeline_on, runner
):
    sent = []

    def publish(topic, data, **_):
        sent.append((topic, data))
        done = Future()
        done.set_result("id")
        return done

    with mock.patch("google.cloud.pubsub.PublisherClient") as client:
        client.return_value.topic_path = "projects/{}/topics/{}".format
        client.return_value.publish.side_effect = publish
        with pipeline_on(runner) as pipeline:
            releases = pipeline | beam.Create(some_releases)
            _ = releases | WriteReleasesToPubSub(TOPIC)
    with pipeline_on(runner) as pipeline:
        _ = pipeline | beam.Create(some_releases) | WriteReleases(str(tmp_path / "r.jsonl"))
    lines = (tmp_path / "r.jsonl").read_bytes().splitlines()
    assert sorted(sent) == sorted((TOPIC, line) for line in lines)
    assert len(lines) == len(some_releases)
    assert all(json.loads(line)["slot"] >= 0 for line in lines)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({}, ["Either a topic or subscription", "projects/PROJECT/subscriptions/NAME"]),
        ({"topic": TOPIC, "subscription": SUBSCRIPTION}, ["Only one of topic or subscription"]),
        ({"topic": "events"}, ["events", "projects/PROJECT/topics/NAME"]),
        ({"subscription": TOPIC}, [TOPIC, "projects/PROJECT/subscriptions/NAME"]),
        ({"topic": TOPIC, "columns": ()}, ["columns ()", "one name or more"]),
    ],
)
def test_bad_names_are_refused(names, words):
    with pytest.raises(ConfigurationError) as refused:
        ReadPubSubEvents(**{"columns": NAMES, **names})
    assert all(word in str(refused.value) for word in words)


def test_a_bad_topic_is_refused():
    with pytest.raises(ConfigurationError, match="projects/PROJECT/topics/NAME"):
        WriteReleasesToPubSub("releases")
