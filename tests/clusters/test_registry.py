"""Messages whose schemas are in a real registry, written by Confluent's own serialisers."""

import base64
import json
import signal
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that, equal_to

from streamveil.io import schema_registry as registries
from streamveil.io.framed_messages import FRAMED_KINDS
from streamveil.io.message_formats import read_framed_messages
from streamveil.io.messages import ParseMessages
from streamveil.io.schema_registry import SchemaRegistry, schemas_of
from streamveil.mechanisms.core.records import ConfigurationError, MachineFault
from streamveil.pipelines.console.errors import may_pass
from streamveil.pipelines.runners.launch import _plain_errors
from tests.clusters.fault_proxy import FOREVER, Fault
from tests.io.framed import FIELD, add, file_of, frame, message_class

pytestmark = pytest.mark.registry

NAMES = ("user", "value")
PLACE = file_of("shared/place.proto")
add(PLACE.message_type.add(name="Place"), "name", 1, FIELD.TYPE_STRING)
EVENTS = file_of(dependency=["shared/place.proto", "google/protobuf/timestamp.proto"])
add(EVENTS.message_type.add(name="Other"), "x", 1, FIELD.TYPE_INT32)
_EVENT = EVENTS.message_type.add(name="Outer").nested_type.add(name="Event")
add(_EVENT, "user", 1, FIELD.TYPE_STRING)
add(_EVENT, "where", 2, FIELD.TYPE_MESSAGE, type_name=".demo.Place")
add(_EVENT, "value", 3, FIELD.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp")
TIME = "2024-05-01T09:00:00Z"
VERSIONS = [
    {"type": "record", "name": "Event", "fields": [{"name": "user", "type": "string"}]},
    {
        "type": "record",
        "name": "Event",
        "fields": [
            {"name": "rider", "aliases": ["user"], "type": "string"},
            {"name": "value", "type": ["null", "long"], "default": None},
        ],
    },
]
JSON_SCHEMA = '{"type": "object", "title": "Event", "properties": {"user": {"type": "string"}}}'


@pytest.fixture
def quick(monkeypatch):
    """Try again a few times, and soon."""
    hurried = {"timeout": 1, "max.retries": 3, "retries.wait.ms": 10, "retries.max.wait.ms": 50}
    monkeypatch.setattr(registries, "RETRIES", hurried)
    monkeypatch.setattr(registries, "AGAIN_AFTER", 0.05)
    schemas_of.cache_clear()


@pytest.fixture(scope="module")
def written(schema_registry):
    """Messages of all formats and versions, and the rows that they hold."""
    first, second = (
        schema_registry.writer("avro", "avro", json.dumps(schema)) for schema in VERSIONS
    )
    kind = message_class("demo.Outer.Event", PLACE, EVENTS)
    event = kind(user="é", where={"name": "cafe"})
    event.value.FromJsonString(TIME)
    protobuf = schema_registry.writer("protobuf", "protobuf", kind)
    in_json = schema_registry.writer("json", "json", JSON_SCHEMA)
    return {
        "avro": (
            [first({"user": "a"}), second({"rider": "b", "value": 7})] * 2,
            [("a", None), ("b", "7")] * 2,
        ),
        "protobuf": ([protobuf(event), protobuf(kind(user="c"))], [("é", TIME), ("c", None)]),
        "json": ([in_json({"user": "a", "value": 7.0})], [("a", "7")]),
    }


def read(kind, messages, registry):
    """Rows in the order of the messages, and what is wrong with each other message."""
    bad, rows = {}, {}
    for parsed in read_framed_messages(
        kind, registry, messages, NAMES, lambda index, _, detail, __: bad.update({index: detail})
    ):
        for at, index in enumerate(parsed.messages.tolist()):
            rows[index] = tuple(array[at].as_py() for array in parsed.arrays)
    return [rows[index] for index in sorted(rows)], bad


def rows_of(batch):
    return [tuple(row[name] for name in NAMES) for row in batch.to_pylist()]


@pytest.mark.parametrize("kind", FRAMED_KINDS)
def test_messages_of_real_serialisers_are_read_and_each_schema_is_asked_for_once(
    schema_registry, written, quick, kind
):
    messages, rows = written[kind]
    schema_registry.proxy.reset()
    registry = SchemaRegistry(schema_registry.url)
    poison = [b"", b"{}", messages[0][:3], frame(10_000, b"x"), messages[0][:-1] + b"\xff\xff"]
    for _ in range(2):
        assert read(kind, messages, registry) == (rows, {})
        found, bad = read(kind, [*poison, *messages], registry)
        assert found == rows
        assert sorted(bad) == list(range(len(poison)))
        assert "the registry has no schema 10000" in bad[3]
    asked = [path for _, path in schema_registry.proxy.seen if "/schemas/ids/" in path]
    unknown = [path for path in asked if "/10000" in path]
    assert len(unknown) == 2
    assert len(asked) - 2 == len({message[1:5] for message in messages})


def test_source_text_that_other_clients_register_is_compiled(schema_registry, quick):
    place = 'syntax = "proto3"; package demo; message Place { string name = 1; }'
    events = """
        syntax = "proto3";
        package demo;
        import "shared/text.proto";
        import "google/protobuf/timestamp.proto";
        message Event { string user = 1; Place where = 2; google.protobuf.Timestamp value = 3; }
    """
    schema_registry.register("shared/text.proto", place, "PROTOBUF")
    needed = [{"name": "shared/text.proto", "subject": "shared/text.proto", "version": 1}]
    known = schema_registry.register("text", events, "PROTOBUF", needed)
    body = message_class("demo.Outer.Event", PLACE, EVENTS)(user="a", where={"name": "x"})
    messages = [frame(known, b"\0" + body.SerializeToString())]
    assert read("protobuf", messages, SchemaRegistry(schema_registry.url)) == ([("a", None)], {})


def test_a_schema_of_the_reader_is_taken_from_the_registry(schema_registry, written, quick):
    reader = {
        "type": "record",
        "name": "Event",
        "fields": [
            {"name": "user", "aliases": ["rider"], "type": "string"},
            {"name": "value", "type": "double", "default": 0.5},
        ],
    }
    known = schema_registry.register("reader", json.dumps(reader))
    older = frame(schema_registry.register("older", json.dumps(VERSIONS[0])), b"\x02a")
    registry = SchemaRegistry(schema_registry.url, reader_schema=known)
    assert read("avro", [older], registry) == ([("a", "0.5")], {})
    with pytest.raises(ConfigurationError, match="reader_schema=20000 cannot be read from"):
        read("avro", [older], SchemaRegistry(schema_registry.url, reader_schema=20_000))


# ---- faults -----------------------------------------------------------------------------------

SCHEMA, REFERENCE = "/schemas/ids/", "/subjects/shared"
LAGS = json.dumps({"error_code": 40403, "message": "Schema not found"}).encode()


@dataclass
class Case:
    """A fault of the registry, and what must come of it."""

    name: str
    given: dict = field(default_factory=dict)
    says: str | None = None
    """What the error has; None where all is read in spite of the fault."""
    kind: str = "avro"


def passing(how, times=1, path=SCHEMA, **given):
    return {"how": how, "times": times, "path": path, **given}


def lasting(how, path=SCHEMA, **given):
    return {"how": how, "times": FOREVER, "path": path, **given}


CASES = [
    Case("reset once", passing("reset")),
    Case("reset in mid-answer", passing("reset_in_read", 2)),
    Case("truncated", passing("truncate", 2)),
    Case("the answer is lost", passing("lose_answer", 2)),
    Case("429 for a while", passing("429", 3, body=b'{"error_code": 42901}')),
    Case("503 for a while", passing("503", 3)),
    Case("500 once", passing("500")),
    Case("502 once", passing("502")),
    Case("504 once", passing("504")),
    Case("408 once", passing("408")),
    Case("slow", passing("slow", seconds=0.5)),
    Case("slower than we wait", passing("slow", seconds=1.5)),
    Case("a node that lags", passing("404", 2, body=LAGS)),
    Case("a reference is reset", passing("reset", path=REFERENCE), kind="protobuf"),
    Case("a reference is 503", passing("503", 2, path=REFERENCE), kind="protobuf"),
    Case("a reference is truncated", passing("truncate", path=REFERENCE), kind="protobuf"),
    Case("json is reset", passing("reset"), kind="json"),
    Case("reset always", lasting("reset"), "look whether the registry and the way to it are up"),
    Case("truncated always", lasting("truncate"), "look whether the registry"),
    Case("cut short", lasting("shorten"), "look whether the registry"),
    Case("429 always", lasting("429", body=b'{"error_code": 42901, "message": "slow"}'), "429"),
    Case("503 always", lasting("503", body=b"Service Unavailable"), "503"),
    Case("500 always", lasting("500", body=b'{"error_code": 50001, "message": "store"}'), "store"),
    Case("hangs always", lasting("slow", seconds=1.5), "timed out"),
    Case("401", lasting("401", body=b'{"error_code": 40101}'), "give credentials that it takes"),
    Case("403", lasting("403", body=b"no"), "give credentials that it takes"),
    Case("not a registry", lasting("404", body=b"<html>no</html>"), "look at the address"),
    Case("a page in place of JSON", lasting("200", body=b"<html>log in</html>"), "look whether"),
    Case("JSON of another kind", lasting("200", body=b"[1]"), "look whether the registry"),
    Case("no answer", lasting("200", body=b""), "look whether the registry"),
    Case("a redirection", lasting("302"), "302"),
    Case("a reference is 500", lasting("500", path=REFERENCE), "500", kind="protobuf"),
    Case("a reference is 403", lasting("403", path=REFERENCE), "credentials", kind="protobuf"),
    Case("json is 503", lasting("503"), "503", kind="json"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_fault_of_the_registry_costs_no_message(schema_registry, written, quick, case):
    messages, rows = written[case.kind]
    proxy = schema_registry.proxy
    proxy.reset()
    proxy.faults = [Fault(**case.given)]
    registry = SchemaRegistry(schema_registry.url)
    if case.says is None:
        assert read(case.kind, messages, registry) == (rows, {})
    else:
        with pytest.raises(MachineFault) as failed:
            read(case.kind, messages, registry)
        text = str(failed.value)
        assert case.says in text
        assert text.startswith(f"schema registry {registry.url} says: ")
        assert text.endswith(", and run it again")
        assert "\n" not in text
        assert len(text) < 600
    assert proxy.struck() > 0
    proxy.reset()  # and once it has passed, nothing is left of it
    assert read(case.kind, messages, registry) == (rows, {})


def test_a_registry_that_refuses_or_hangs_fails_the_bundle_and_no_message(
    schema_registry, written, quick
):
    messages, rows = written["avro"]
    proxy = schema_registry.proxy
    proxy.reset()

    def run(url):
        schemas_of.cache_clear()
        with _plain_errors(quiet=True), beam.Pipeline(runner="FnApiRunner") as pipeline:
            parse = ParseMessages("s", NAMES, False, "avro", registry=SchemaRegistry(url))
            events = pipeline | beam.Create(messages) | parse
            assert_that(events.batches | beam.FlatMap(rows_of), equal_to(rows), "rows")
            assert_that(events.rejected, equal_to([]), "rejected")

    proxy.stop()
    for url, words in ((schema_registry.url, "Connection refused"), ("http://no.invalid", "says")):
        with pytest.raises(MachineFault, match=words) as failed:
            run(url)
        assert may_pass(failed.value)  # which is exit code 1
        assert "while running" not in str(failed.value)
    proxy.reset()
    schema_registry.signal(signal.SIGSTOP)
    try:
        with pytest.raises(MachineFault, match="timed out"):
            run(schema_registry.url)
        threading.Timer(1.5, schema_registry.signal, [signal.SIGCONT]).start()
        run(schema_registry.url)
    finally:
        schema_registry.signal(signal.SIGCONT)
    # One that is away is passed over where another one answers.
    assert read("avro", messages, SchemaRegistry(f"http://127.0.0.1:1,{schema_registry.url}")) == (
        rows,
        {},
    )


def test_credentials_go_to_the_registry_and_into_no_error(tmp_path, quick, capfd):
    schema = {"schema": json.dumps(VERSIONS[0])}
    login = "me:top:secret"

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            expected = f"Basic {base64.b64encode(login.encode()).decode()}"
            allowed = self.headers.get("Authorization") == expected
            content = json.dumps(schema if allowed else {"error_code": 40101}).encode()
            self.send_response(200 if allowed else 401)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    place = tmp_path / "login"
    try:
        place.write_text(f"{login}\n")
        messages = [frame(1, b"\x02a")]
        registry = SchemaRegistry(url, f"file:{place}")
        assert read("avro", messages, registry) == ([("a", None)], {})
        place.write_text("me:expired-secret")
        schemas_of.cache_clear()
        with pytest.raises(MachineFault, match="give credentials that it takes") as failed:
            read("avro", messages, registry)
        assert "secret" not in str(failed.value) + "".join(capfd.readouterr())
    finally:
        server.shutdown()
        server.server_close()


def test_unknown_ids_are_asked_for_twice_and_then_not_for_a_while(
    schema_registry, written, quick, monkeypatch
):
    messages, rows = written["avro"]
    proxy = schema_registry.proxy
    proxy.reset()
    registry = SchemaRegistry(schema_registry.url)
    unknown = [frame(30_000 + index, b"x") for index in range(20)]
    begun = time.monotonic()
    for _ in range(3):
        found, bad = read("avro", [*unknown, *messages], registry)
        assert (found, len(bad)) == (rows, len(unknown))
    assert time.monotonic() - begun < 30
    assert sum("/30" in path for _, path in proxy.seen) == 2 * len(unknown)
    monkeypatch.setattr(registries, "UNKNOWN_FOR", 0.0)
    read("avro", unknown, registry)
    assert sum("/30" in path for _, path in proxy.seen) == 4 * len(unknown)
