"""Pub/Sub as far as no server is needed: the rest is in `tests/clusters/test_pubsub.py`."""

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner

from streamveil.io import ReadPubSubEvents, WriteReleasesToPubSub, release_messages
from streamveil.mechanisms.core.records import ConfigurationError

pytest.importorskip("google.cloud.pubsub", reason="the extra gcp is not installed")

SUBSCRIPTION = "projects/a-project/subscriptions/events"
TOPIC = "projects/a-project/topics/events"
NAMES = ("user", "value")


def test_the_id_label_is_handed_to_the_runner():
    pipeline = beam.Pipeline(
        runner=BundleBasedDirectRunner(), options=PipelineOptions(["--streaming"])
    )
    _ = pipeline | ReadPubSubEvents(subscription=SUBSCRIPTION, columns=NAMES, id_label="id")
    with pytest.raises(NotImplementedError, match="id_label"):  # as Beam says of this runner
        pipeline.run().wait_until_finish()


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
        WriteReleasesToPubSub("releases", messages=release_messages(["a"]))
