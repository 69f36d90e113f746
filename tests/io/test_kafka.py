"""Kafka up to Beam's connector: a real expansion service, which offers another transform in its
place, since the connector itself is written in Java and wants a broker."""

import json
from concurrent import futures

import apache_beam as beam
import grpc
import pytest
from apache_beam.coders import RowCoder
from apache_beam.io.kafka import ReadFromKafka, WriteToKafka
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import (
    beam_artifact_api_pb2_grpc,
    beam_expansion_api_pb2_grpc,
    external_transforms_pb2,
)
from apache_beam.runners.portability.expansion_service import ExpansionServiceServicer
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from streamveil.io import ReadKafkaEvents, WriteReleasesToKafka, release_messages
from streamveil.io.jsonlines import json_text
from streamveil.io.kafka import _value
from streamveil.io.releases import release_row
from streamveil.mechanisms.core.records import ConfigurationError

NAMES = ("user", "value")
SERVICE = "sdks:java:io:expansion-service:shadowJar"  # what Beam calls it
RECORDS = [
    (b"k", b'{"user":"a","value":1}'),
    (b"", b'{"user":"b","value":"2"}'),
    (b"k", b"no"),
    (b"k", b""),
]


class _Connector(beam.PTransform):
    """Stands where the Java transform would, and notes the settings that it was asked for."""

    asked: dict = {}
    written: list = []

    def __init__(self, payload):
        super().__init__()
        asked = external_transforms_pb2.ExternalConfigurationPayload.FromString(payload)
        type(self).asked = RowCoder(asked.schema).decode(asked.payload)._asdict()


@beam.PTransform.register_urn(ReadFromKafka.URN_WITHOUT_METADATA, None)
class _Read(_Connector):
    def expand(self, pbegin):
        return pbegin | beam.Create(RECORDS).with_output_types(tuple[bytes, bytes])

    @staticmethod
    def from_runner_api_parameter(_, payload, __):
        return _Read(payload)


@beam.PTransform.register_urn(WriteToKafka.URN, None)
class _Write(_Connector):
    def expand(self, records):
        return records | beam.Map(_note)

    @staticmethod
    def from_runner_api_parameter(_, payload, __):
        return _Write(payload)


def _note(record):
    _Connector.written.append(record)


@pytest.fixture(scope="module")
def service():
    server = grpc.server(futures.ThreadPoolExecutor())
    servicer = ExpansionServiceServicer()
    beam_expansion_api_pb2_grpc.add_ExpansionServiceServicer_to_server(servicer, server)
    beam_artifact_api_pb2_grpc.add_ArtifactRetrievalServiceServicer_to_server(
        servicer.artifact_service(), server
    )
    port = server.add_insecure_port("localhost:0")
    server.start()
    yield f"localhost:{port}"
    server.stop(None)


def test_events_are_read_from_records(service, keep):
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        events = pipeline | ReadKafkaEvents(
            "h1:9092,h2:9092",
            ["a", "b"],
            columns=NAMES,
            consumer_config={"group.id": "g"},
            expansion_service=service,
            arguments={"max_num_records": 4},
        )
        batches, rejected = keep(events.batches, "batches"), keep(events.rejected, "rejected")
    rows = [(r["user"], r["value"]) for batch, _ in batches for r in batch.to_pylist()]
    assert sorted(rows) == [("a", "1"), ("b", "2")]
    source = "kafka:h1:9092,h2:9092/a,b"
    assert batches[0][0].schema.metadata == {b"streamveil.source": source.encode()}
    letters = [row for batch, _ in rejected for row in batch.to_pylist()]
    assert {row["source"] for row in letters} == {source}
    assert sorted(row["record"] for row in letters) == ["", "no"]
    asked = _Read.asked
    assert asked["consumer_config"] == {"bootstrap.servers": "h1:9092,h2:9092", "group.id": "g"}
    assert asked["topics"] == ["a", "b"]
    assert asked["max_num_records"] == 4
    assert asked["timestamp_policy"] == "LogAppendTime"
    assert asked["value_deserializer"].endswith("ByteArrayDeserializer")


def test_producers_times_are_used_on_request_only_with_a_warning(service, caplog):
    for policy in ("LogAppendTime", "ProcessingTime", "CreateTime"):
        pipeline = beam.Pipeline(runner=FnApiRunner())
        assert not caplog.records
        _ = pipeline | ReadKafkaEvents(
            "h:9092", ["t"], columns=NAMES, timestamp_policy=policy, expansion_service=service
        )
        assert _Read.asked["timestamp_policy"] == policy
    (record,) = (r for r in caplog.records if r.name == "streamveil")
    for words in ("kafka:h:9092/t: with timestamp_policy=CreateTime", "take LogAppendTime"):
        assert words in record.getMessage()


def test_a_record_without_a_value_is_no_event():
    assert _value((None, None)) == b""


@pytest.mark.parametrize("layout", ["tidy", "rows"])
def test_releases_are_written_under_their_slot(service, some_releases, layout):
    messages = release_messages(["a", "b"], layout=layout)
    _Connector.written.clear()
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        _ = (
            pipeline
            | beam.Create(some_releases)
            | WriteReleasesToKafka(
                "h:9092",
                "t",
                messages=messages,
                producer_config={"acks": "all"},
                expansion_service=service,
            )
        )
    assert sorted(_Connector.written) == [
        (str(release.slot).encode(), messages.message(release)) for release in some_releases
    ]
    last = json.loads(max(_Connector.written)[1])
    if layout == "rows":
        assert json_text(last) == json_text(release_row(some_releases[2]))
        assert last["mechanism"] == "pba"
    else:
        assert (last["query"], last["slot"], last["status"]) == ("count", 2, "skipped")
        assert [(row["key"], row["value"]) for row in last["rows"]] == [("a", 2.0), ("b", -2.0)]
    assert _Write.asked["producer_config"] == {"bootstrap.servers": "h:9092", "acks": "all"}
    assert _Write.asked["topic"] == "t"


@pytest.mark.parametrize("home", [None, "/nowhere"])
def test_without_java_the_remedy_is_named(monkeypatch, service, some_releases, home):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    if home:
        monkeypatch.setenv("JAVA_HOME", home)

    def read(pipeline):
        return pipeline | ReadKafkaEvents("h:9092", ["t"], columns=NAMES)

    def write(pipeline):
        return (
            pipeline
            | beam.Create(some_releases)
            | WriteReleasesToKafka("h:9092", "t", messages=release_messages(["a", "b"]))
        )

    for apply in (read, write):
        with pytest.raises(ConfigurationError) as refused:
            apply(beam.Pipeline(runner=FnApiRunner()))
        for word in (
            "kafka:h:9092/t",
            "install a Java runtime",
            "--beam_services",
            home or "PATH",
        ):
            assert word in str(refused.value)
        options = PipelineOptions([f"--beam_services={json.dumps({SERVICE: service})}"])
        with beam.Pipeline(runner=FnApiRunner(), options=options) as pipeline:
            apply(pipeline)  # needs none here


@pytest.mark.parametrize("named", [True, False])
def test_an_expansion_service_that_is_not_there(named):
    options = PipelineOptions([f"--beam_services={json.dumps({SERVICE: 'localhost:1'})}"])
    read = ReadKafkaEvents(
        "h:9092", ["t"], columns=NAMES, expansion_service="localhost:1" if named else None
    )
    with (
        pytest.raises(ConfigurationError, match=r"kafka:h:9092/t: .* cannot be set up"),
        beam.Pipeline(runner=FnApiRunner(), options=options) as pipeline,
    ):
        _ = pipeline | read


@pytest.mark.parametrize("topics", ["t", []])
def test_topics_are_a_list(topics):
    with pytest.raises(ConfigurationError, match="a list of one Kafka topic or more"):
        ReadKafkaEvents("h:9092", topics, columns=NAMES)


def test_an_unknown_policy_is_refused():
    with pytest.raises(ConfigurationError, match=r"'Createtime' is unknown: .* LogAppendTime"):
        ReadKafkaEvents("h:9092", ["t"], columns=NAMES, timestamp_policy="Createtime")
