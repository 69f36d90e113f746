"""A real Prometheus: it takes the figures, and what dashboard and alerts ask of it has answers."""

import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from streamveil.engine import metrics
from streamveil.mechanisms.core.records import Slots
from streamveil.pipelines.monitoring.metrics import RAW, samples
from streamveil.pipelines.monitoring.metrics_export import Exports
from streamveil.pipelines.monitoring.status import Released, Status
from streamveil.pipelines.reports.summary import Summary
from tests.clusters.free_ports import free_ports

pytestmark = pytest.mark.prometheus

DASHBOARDS = Path(__file__).parents[2] / "docs" / "dashboards"
FATES = (
    *(metrics.EVENTS_COUNTED, metrics.EVENTS_BOUNDED_AWAY),
    *(metrics.EVENTS_LATE, metrics.REJECTED_PREFIX + "null user"),
)


def growing():
    """A stream in which everything happens all the time."""
    now, start = time.time_ns() // 1000, time.monotonic()
    slots, slot = Slots.of("1s"), int(now // 1_000_000)

    def read():
        done = int(10 * (time.monotonic() - start))
        released = Released(slots, 0, slot, slot, None).after(slot, {"published": done}, 0.5)
        totals = Summary({metrics.EVENTS_READ: 4 * done, **dict.fromkeys(FATES, done)})
        return samples(RAW, Status(since=now, released=released, totals=totals, passes=done))

    return read


class Prometheus:
    def __init__(self, port):
        self.url = f"http://127.0.0.1:{port}/api/v1"

    def __call__(self, query):
        """What an expression gives now; None while nobody answers."""
        asked = urllib.parse.urlencode({"query": query})
        try:
            with urllib.request.urlopen(f"{self.url}/query?{asked}", timeout=10) as answer:
                found = json.load(answer)
        except ConnectionError:
            return None
        except urllib.error.URLError as error:
            if isinstance(error.reason, ConnectionError):
                return None
            raise
        assert found["status"] == "success", found
        return found["data"]["result"]

    def await_answer(self, query):
        until = time.monotonic() + 60
        while time.monotonic() < until:
            found = self(query)
            if found:
                return found
            time.sleep(0.1)
        raise AssertionError(f"no answer to {query}")


@pytest.fixture(scope="module")
def programs(request):
    return Path(request.config.getoption("--prometheus_home")) / "usr" / "bin"


@pytest.fixture(scope="module")
def prometheus(programs, tmp_path_factory):
    """One that fetches a growing stream every 200 ms, and knows the alerts."""
    folder = tmp_path_factory.mktemp("prometheus")
    port, figures = free_ports(2)
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
        f"rule_files: [{DASHBOARDS / 'alerts.yaml'}]\n"
        "scrape_configs:\n"
        "  - job_name: streamveil\n"
        f"    static_configs: [{{targets: ['127.0.0.1:{figures}']}}]\n"
    )
    with Exports(("127.0.0.1", figures), group=RAW).open(growing()):
        process = subprocess.Popen(
            [
                programs / "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            found = Prometheus(port)
            found.await_answer("increase(streamveil_passes_total[1m]) > 0")
            yield found
        finally:
            process.kill()
            process.wait()


def expressions():
    panels = json.loads((DASHBOARDS / "grafana.json").read_text())["panels"]
    return [
        pytest.param(target["expr"], id=panel["title"])
        for panel in panels
        for target in panel.get("targets", ())
    ]


@pytest.mark.parametrize("expression", expressions())
def test_every_panel_has_an_answer(prometheus, expression):
    query = expression.replace("$instance", ".*").replace("$__rate_interval", "1m")
    found = prometheus.await_answer(query)
    assert all(float(each["value"][1]) >= 0 for each in found)


def test_the_stream_is_up(prometheus):
    (found,) = prometheus('up{job="streamveil"}')
    assert found["value"][1] == "1"


def test_alerts_fire_when_they_should(programs, tmp_path):
    for path in (DASHBOARDS / "alerts.yaml", Path(__file__).with_name("alerts_test.yaml")):
        shutil.copy(path, tmp_path)
    for what in ("check", "test"):
        name = "alerts.yaml" if what == "check" else "alerts_test.yaml"
        done = subprocess.run(
            [programs / "promtool", what, "rules", name],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
