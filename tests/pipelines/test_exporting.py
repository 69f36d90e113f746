"""Figures where Prometheus fetches them and OpenTelemetry's collectors get them."""

import http.server
import re
import socket
import struct
import sys
import threading
import urllib.error
import urllib.request
from types import SimpleNamespace

import pytest

from streamveil.engine import metrics
from streamveil.mechanisms.core.records import STATUSES, ConfigurationError, Slots
from streamveil.pipelines.monitoring.metrics import figures_of, samples
from streamveil.pipelines.monitoring.metrics_export import Exports
from streamveil.pipelines.monitoring.status import Released, Status
from streamveil.pipelines.reports.summary import Summary
from tests.clusters.free_ports import free_ports

SAMPLE = re.compile(r'(\w+)(?:\{\w+="(?:[^"\\]|\\.)*"\})? \S+')


def options(**given):
    usual = {"metrics_port": None, "otlp_endpoint": None, "metrics": None, "follow": "1s"}
    return SimpleNamespace(**{**usual, **given})


def read(group):
    """Figures that are all there."""
    done = Released(Slots.of("1h"), 0, 5, 7, None, {**dict.fromkeys(STATUSES, 0), STATUSES[0]: 2})
    counted = {metrics.EVENTS_READ: 9, metrics.REJECTED_PREFIX + 'a "null"\nuser': 4}
    now = Status(since=0, released=done, totals=Summary(counted), state_bytes=17)
    return lambda: samples(group, now)


def fetch(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=600) as page:
        return page.read().decode()


@pytest.mark.slow
@pytest.mark.parametrize("group", ["public", "raw"])
def test_prometheus_fetches_the_figures_of_the_group_and_no_others(group):
    exports = Exports.of(options(metrics_port=str(*free_ports(1)), metrics=group))
    with exports.open(read(group)):
        page = fetch(exports.address[1])
    found = {match[1] for match in map(SAMPLE.match, page.splitlines()) if match}
    assert found == {figure.full_name for figure in figures_of(group)}
    assert f'streamveil_slots_released_total{{status="{STATUSES[0]}"}} 2.0' in page
    assert ("streamveil_state_bytes 17.0" in page) == (group == "raw")
    for figure in figures_of(group):
        kind = "counter" if figure.is_total else "gauge"
        assert f"# TYPE {figure.full_name} {kind}\n" in page
    with pytest.raises(urllib.error.URLError):
        fetch(exports.address[1])


def test_a_port_that_is_taken_is_reported():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        exports = Exports.of(options(metrics_port=str(held.getsockname()[1])))
        with (
            pytest.raises(ConfigurationError, match="--metrics_port: nothing can listen on 127"),
            exports.open(read("public")),
        ):
            pass


def test_a_client_that_goes_away_leaves_no_traceback(capsys, until):
    exports = Exports.of(options(metrics_port=str(*free_ports(1))))
    with exports.open(read("public")):
        for asked in (b"\x16\x03\x01\r\n\r\n", b"GET /metrics HTTP/1.0\r\nX: " + b"a" * 70_000):
            with socket.create_connection(exports.address) as client:
                client.sendall(asked + b"\r\n\r\n")
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        until(lambda: not any("request" in each.name for each in threading.enumerate()))
        assert "streamveil_slot_length_seconds" in fetch(exports.address[1])
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.many
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize("group", ["public", "raw"])
def test_where_figures_are_is_reported_and_who_may_read_raw_ones(capsys, host, group):
    (port,) = free_ports(1)
    with Exports((host, port), group=group).open(read(group)):
        pass
    printed = capsys.readouterr().out
    assert printed.startswith(f"{group} metrics are at {host}:{port}, /metrics")
    assert printed.count("\n") == 1
    assert ("without a password" in printed) == (host == "0.0.0.0" and group == "raw")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9464", ("127.0.0.1", 9464)),
        ("0.0.0.0:9464", ("0.0.0.0", 9464)),
        ("[::]:9464", ("::", 9464)),
    ],
)
def test_a_port_is_of_this_machine_alone_unless_more_is_said(text, address):
    assert Exports.of(options(metrics_port=text)).address == address


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"metrics_port": "http"}, "--metrics_port=http is not a port: write for example 9464"),
        ({"metrics_port": "65536"}, "is not a port"),
        ({"metrics_port": "0"}, "is not a port"),
        ({"metrics_port": "9464", "follow": None}, "--follow"),
        ({"metrics": "raw"}, "--metrics=raw selects metrics but not where"),
        ({"otlp_endpoint": "localhost:4318"}, "is not a URL"),
    ],
)
def test_what_makes_no_sense_is_refused(given, words):
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        Exports.of(options(**given))


@pytest.mark.parametrize(
    ("given", "module"),
    [
        ({"metrics_port": "9464"}, "prometheus_client"),
        ({"otlp_endpoint": "http://localhost:4318"}, "opentelemetry.sdk.metrics"),
    ],
)
def test_what_is_not_installed_is_reported_with_its_extra(monkeypatch, given, module):
    monkeypatch.setitem(sys.modules, module, None)
    exports = Exports.of(options(**given))
    (option,) = given
    with (
        pytest.raises(ConfigurationError) as caught,
        exports.open(read("public")),
    ):
        pass
    assert str(caught.value).startswith(f"--{option} needs ")
    assert "pip install '.[ops]'" in str(caught.value)
    assert "\n" not in str(caught.value)


# ---- OpenTelemetry -----------------------------------------------------------------------------


class Collector(http.server.BaseHTTPRequestHandler):
    """Takes what is sent, as OpenTelemetry's collector does."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.taken.append((self.path, body))
        self.send_response(self.server.answer)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def collector():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        server.taken, server.answer = [], 200
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def last_sent(collector):
    """The resource and the metrics of the last message."""
    service = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
    path, body = collector.taken[-1]
    assert path == "/v1/metrics"
    (resource,) = service.ExportMetricsServiceRequest.FromString(body).resource_metrics
    (scope,) = resource.scope_metrics
    return resource.resource, {metric.name: metric for metric in scope.metrics}


@pytest.mark.slow
@pytest.mark.parametrize("group", ["public", "raw"])
def test_opentelemetry_is_sent_the_figures_of_the_group_at_the_end_at_the_latest(collector, group):
    endpoint = f"http://127.0.0.1:{collector.server_port}/"
    exports = Exports.of(options(otlp_endpoint=endpoint, metrics=group, follow=None))
    with exports.open(read(group)):
        pass
    resource, sent = last_sent(collector)
    assert set(sent) == {f"streamveil.{each.name}" for each in figures_of(group)}
    for figure in figures_of(group):
        metric = sent[f"streamveil.{figure.name}"]
        assert metric.WhichOneof("data") == ("sum" if figure.is_total else "gauge")
        assert metric.description == figure.about
    points = sent["streamveil.slots_released"].sum.data_points
    found = {point.attributes[0].value.string_value: point.as_int for point in points}
    assert found[STATUSES[0]] == 2
    attributes = {each.key: each.value.string_value for each in resource.attributes}
    assert attributes == {"service.name": "streamveil"}


@pytest.mark.slow
def test_the_service_has_the_name_that_opentelemetry_is_given(collector, monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "taxis")
    exports = Exports.of(options(otlp_endpoint=f"http://127.0.0.1:{collector.server_port}"))
    with exports.open(read("public")):
        pass
    resource, _ = last_sent(collector)
    assert [each.value.string_value for each in resource.attributes] == ["taxis"]


def test_a_switch_that_turns_opentelemetry_off_is_reported(monkeypatch):
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    exports = Exports.of(options(otlp_endpoint="http://127.0.0.1:1"))
    with (
        pytest.raises(ConfigurationError, match="OTEL_SDK_DISABLED switches OpenTelemetry off"),
        exports.open(read("public")),
    ):
        pass


@pytest.mark.slow
def test_figures_that_do_not_arrive_are_reported_once_with_the_place(
    collector, monkeypatch, caplog, until
):
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "20")
    collector.answer = 404
    url = f"http://127.0.0.1:{collector.server_port}"
    with_password = url.replace("//", "//me:secret@")
    with caplog.at_level("INFO"), Exports(endpoint=with_password).open(read("public")):
        until(lambda: len(collector.taken) > 2)
        collector.answer = 200
        number = len(collector.taken)
        until(lambda: len(collector.taken) > number + 2)
    messages = [record.getMessage() for record in caplog.records if record.name == "streamveil"]
    (line,) = messages
    assert line.startswith(f"--otlp_endpoint: metrics do not arrive at {url}/v1/metrics")
