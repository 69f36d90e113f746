"""One text says where events come from and where releases go to."""

import sys

import pytest

from streamveil.io import (
    ReadEvents,
    ReadKafkaEvents,
    ReadPubSubEvents,
    WatchEvents,
    WriteReleases,
    WriteReleasesToBigQuery,
    WriteReleasesToKafka,
    WriteReleasesToPubSub,
    is_stream,
    sink_of,
    source_of,
)
from streamveil.mechanisms.core.records import ConfigurationError

NAMES = ("user", "value")
LABELS = ["a"]
SUBSCRIPTION = "projects/a-project/subscriptions/s"
TOPIC = "projects/a-project/topics/t"


def has_google():
    try:
        import google.cloud.bigquery
        import google.cloud.pubsub  # noqa: F401
    except ImportError:
        return False
    return True


google = pytest.mark.skipif(not has_google(), reason="the extra gcp is not installed")


@pytest.mark.parametrize(
    "path", ["x.csv", "./pubsub:x.csv", "gs://b/*.parquet", "C:\\x.csv", "a:b"]
)
def test_files_are_files(path):
    assert not is_stream(path)
    source, sink = source_of(path, NAMES), sink_of("out.csv", LABELS)
    assert type(source) is ReadEvents
    assert (source.file_pattern, source.columns) == (path, NAMES)
    assert type(sink) is WriteReleases
    assert (sink.path, sink.labels) == ("out.csv", LABELS)


@google
def test_pubsub():
    source = source_of(f"pubsub:{SUBSCRIPTION}", NAMES)
    assert type(source) is ReadPubSubEvents
    assert (source.subscription, source.topic, source.columns) == (SUBSCRIPTION, None, NAMES)
    source = source_of(f"pubsub:{TOPIC}?timestamp_attribute=at&id_label=id", NAMES)
    assert (source.subscription, source.topic) == (None, TOPIC)
    assert (source.timestamp_attribute, source.id_label) == ("at", "id")
    sink = sink_of(f"pubsub:{TOPIC}", LABELS)
    assert type(sink) is WriteReleasesToPubSub
    assert sink.topic == TOPIC


def test_kafka():
    source = source_of("kafka:h1:9092,h2:9093/t?group.id=g&auto.offset.reset=earliest", NAMES)
    assert source.timestamp_policy == "LogAppendTime"  # not what producers say
    assert type(source) is ReadKafkaEvents
    assert (source.bootstrap_servers, source.topics) == ("h1:9092,h2:9093", ["t"])
    assert source.consumer_config == {"group.id": "g", "auto.offset.reset": "earliest"}
    source = source_of("kafka:h:9092/t?timestamp_policy=CreateTime&group.id=g", NAMES)
    assert source.timestamp_policy == "CreateTime"
    assert source.consumer_config == {"group.id": "g"}
    sink = sink_of("kafka:h:9092/t?acks=all", LABELS)
    assert type(sink) is WriteReleasesToKafka
    assert (sink.bootstrap_servers, sink.topic) == ("h:9092", "t")
    assert sink.producer_config == {"acks": "all"}


@pytest.mark.parametrize(
    "location", [pytest.param(f"pubsub:{SUBSCRIPTION}", marks=google), "kafka:h:9092/t"]
)
def test_how_messages_are_read(location):
    source = source_of(location, NAMES)
    assert (source.message_format, source.max_field_bytes) == ("json", 65_536)
    source = source_of(f"{location}?message_format=arrow&max_field_bytes=1000", NAMES)
    assert (source.message_format, source.max_field_bytes) == ("arrow", 1000)
    parse = source._parse
    assert (parse.message_format, parse.max_field_bytes, parse.source) == ("arrow", 1000, location)
    if location.startswith("kafka"):
        assert source.consumer_config == {}


def test_watch():
    source = source_of("watch:/in/2024-??/*.csv", NAMES)
    assert type(source) is WatchEvents
    assert (source.file_pattern, source.columns) == ("/in/2024-??/*.csv", NAMES)


@google
def test_bigquery():
    sink = sink_of("bigquery:example.com:p.d.t", LABELS)
    assert type(sink) is WriteReleasesToBigQuery
    assert (sink.table, sink.labels) == ("example.com:p.d.t", LABELS)


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("pubsub:", ["projects/PROJECT/subscriptions/NAME"]),
        ("pubsub:events", ["projects/PROJECT/subscriptions/NAME"]),
        (f"pubsub://{TOPIC}", ["projects/PROJECT/topics/NAME"]),
        (f"pubsub:{TOPIC}?", ["projects/PROJECT/topics/NAME"]),
        (f"pubsub:{TOPIC}?speed=1", ["'speed'", "timestamp_attribute, id_label"]),
        (f"pubsub:{TOPIC}?id_label", ["'id_label'", "NAME=VALUE"]),
        ("kafka:h:9092/t?message_format=xml", ["'xml'", "json, jsonl, arrow, avro"]),
        ("kafka:h:9092/t?max_field_bytes=64k", ["'64k'", "such as 65536"]),
        ("kafka:h:9092/t?max_field_bytes=0", ["max_field_bytes 0", "1 or more"]),
        ("kafka:h/t", ["kafka:HOST:PORT/TOPIC"]),
        ("kafka:h:9092", ["kafka:HOST:PORT/TOPIC"]),
        ("kafka:h:9092/t/u", ["kafka:HOST:PORT/TOPIC"]),
        ("watch:", ["watch:GLOB"]),
        ("folder:p", ["name a file", "watch:GLOB", "bigquery:SELECT"]),
    ],
)
def test_sources_that_are_none(location, words):
    with pytest.raises(ConfigurationError) as refused:
        source_of(location, NAMES)
    assert str(refused.value).startswith(f"--input={location}: ")
    assert all(word in str(refused.value) for word in words)


@pytest.mark.parametrize(
    ("location", "words"),
    [
        (f"pubsub:{SUBSCRIPTION}", ["write pubsub:projects/PROJECT/topics/NAME"]),
        (f"pubsub:{TOPIC}?id_label=x", ["'id_label'", "none"]),
        ("kafka:h/t", ["kafka:HOST:PORT/TOPIC"]),
        ("bigquery:", ["bigquery:PROJECT.DATASET.TABLE"]),
        ("bigquery:p/d/t", ["bigquery:PROJECT.DATASET.TABLE"]),
        ("watch:*.csv", ["name a file", "bigquery:PROJECT.DATASET.TABLE"]),
        pytest.param("bigquery:d.t", ["'d.t'", "PROJECT.DATASET.TABLE"], marks=google),
    ],
)
def test_sinks_that_are_none(location, words):
    with pytest.raises(ConfigurationError) as refused:
        sink_of(location, LABELS, "--output")
    assert str(refused.value).startswith(f"--output={location}: ")
    assert all(word in str(refused.value) for word in words)


@pytest.mark.parametrize("module", ["google.cloud.pubsub", "google.cloud.bigquery"])
def test_what_is_not_installed_is_named(monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    kind = "bigquery:p.d.t" if "bigquery" in module else f"pubsub:{TOPIC}"
    with pytest.raises(ConfigurationError) as refused:
        sink_of(kind, LABELS)
    for word in (f"--output={kind}", "pip install '.[gcp]'"):
        assert word in str(refused.value)
