"""The nightly job of docs/how-to/bigquery.md, against the fake of BigQuery."""

import datetime as dt
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("google.cloud.bigquery", reason="the extra gcp is not installed")

from tests.clusters.bigquery_server import BigQueryServer
from tests.clusters.fault_proxy import Fault, FaultProxy
from tests.clusters.free_ports import free_ports
from tests.clusters.stores import KEY, fake_account

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs/how-to/bigquery.md"
TYPES = {"user": "STRING", "place": "STRING", "time": "TIMESTAMP"}
TRIPS = "my-project.trips.events"
RELEASES, LEDGER = "my-project.statistics.releases", "my-project.statistics.ledger"
DAYS = ("2024-05-01", "2024-05-02")


class Nights:
    """A folder with the job, and the service behind a proxy that fails."""

    def __init__(self, folder):
        self.server = BigQueryServer(["my-project.trips", "my-project.statistics"])
        (port,) = free_ports(1)
        self.proxy = FaultProxy(self.server.url.removeprefix("http://"), port)
        self.folder = folder
        self.server.fill(TRIPS, TYPES, [])
        (script,) = re.findall(r"```python nightly\n(.*?)```", PAGE.read_text(), re.DOTALL)
        self.server.location = "europe-west1"
        (folder / "nightly.py").write_text(script.replace('"US"', '"europe-west1"'))
        for name in ("events", "results"):
            (folder / name).mkdir()
        account = folder / "account.json"
        account.write_text(json.dumps(fake_account(self.proxy.url)))
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "GOOGLE_APPLICATION_CREDENTIALS": str(account),
            "GOOGLE_CLOUD_PROJECT": "my-project",
            "BIGQUERY_EMULATOR_HOST": self.proxy.url,
            "STREAMVEIL_NOISE_KEY": KEY,
        }

    def trips(self, day, number=60):
        """Put a day's partition in."""
        noon = dt.datetime.fromisoformat(f"{day}T12:00:00+00:00")
        self.server.rows[TRIPS] += [
            {"user": f"u{i % 40}", "place": "cafe" if i % 3 else "park", "time": noon}
            for i in range(number)
        ]

    def run(self, day):
        """Run the job in the night after a day; its exit code."""
        done = subprocess.run(**self.command(day), capture_output=True, text=True)
        self.said = done.stderr + done.stdout
        return done.returncode

    def command(self, day):
        later = dt.date.fromisoformat(day) + dt.timedelta(1)
        (self.folder / "clock").write_text(f"{later}T02:00:00Z")
        args = [sys.executable, "nightly.py", day, "--clock_file=clock"]
        return {"args": args, "cwd": self.folder, "env": self.environment}

    def killed(self, day, holds):
        """Kill the job and all that it started once that holds."""
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(**self.command(day), **quiet, start_new_session=True) as process:
            while not holds():
                assert process.poll() is None, "it ended before it was killed"
                time.sleep(0.005)
            os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL

    def tables(self):
        """What is in both tables, as far as they are there."""
        return [self.server.rows.get(name, []) for name in (RELEASES, LEDGER)]

    def close(self):
        self.proxy.stop()
        self.server.close()


@pytest.fixture
def nights(tmp_path):
    nights = Nights(tmp_path)
    yield nights
    nights.close()


def expect(nights, days):
    """Every slot of these days is in both tables once, and no window cost more than was asked."""
    releases, ledger = nights.tables()
    starts = sorted((row["start"][:10], row["key"]) for row in releases)
    assert starts == sorted((day, place) for day in days for place in ("cafe", "park"))
    assert len({row["slot"] for row in ledger}) == len(ledger) == len(days)
    assert all(row["spent_in_window"] <= 1 for row in ledger)


def test_each_night_is_appended_once_also_if_it_runs_again(nights):
    (nights.folder / "state").mkdir(mode=0o700)  # by a first run, killed before it did anything
    for number, day in enumerate(DAYS, 1):
        nights.trips(day)
        assert nights.run(day) == 0, nights.said
        assert "60 events read: 40 counted" in nights.said
        expect(nights, DAYS[:number])
        before = [list(rows) for rows in nights.tables()]
        nights.trips(day, 3)  # too late
        if number == 1:
            assert nights.run(day) == 0, nights.said
            assert nights.tables() == before


FAULTS = {
    "loading": Fault("403", path="/upload/", times=1 << 20),
    "answer lost": Fault("lose_answer", path="/upload/", times=1),
    "first table": Fault("reset_in_write", "PUT", "/upload/", times=1),
    "second table": Fault("reset_in_write", "PUT", "/upload/", after=1, times=1),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_night_that_failed_is_finished_by_the_next_run(nights, fault):
    nights.trips(DAYS[0])
    fault = FAULTS[fault]
    fault.hits = 0
    nights.proxy.faults = [fault]
    nights.run(DAYS[0])
    assert nights.proxy.struck()
    nights.proxy.reset()
    assert nights.run(DAYS[0]) == 0, nights.said
    expect(nights, DAYS[:1])


def test_a_load_job_that_failed_is_done_once_more(nights):
    nights.trips(DAYS[0])
    nights.server.before_job = lambda body: nights.server.failing_jobs.extend(
        [("backendError", "try it again")] if "load" in body["configuration"] else []
    )
    assert nights.run(DAYS[0]) == 1
    nights.server.before_job = None
    assert nights.run(DAYS[0]) == 0, nights.said
    expect(nights, DAYS[:1])


HELD = 3.0  # seconds until a request that is held up goes on, after the kill
UPLOAD = "PUT", "/upload/"
# When a night is killed: as such a request is held up, or once such a file is there.
MOMENTS = {
    "the query starts": Fault("slow", "POST", "v2/projects/[^/]*/jobs", seconds=HELD),
    "rows are read": Fault("slow", "GET", "/queries/|/data", seconds=HELD, after=1),
    "the partition is written": "events/*",
    "slots are released": "state/*",
    "slots are committed": "state/manifest.json",
    "the first upload": Fault("slow", *UPLOAD, seconds=HELD),
    "its answer comes": Fault("slow_answer", *UPLOAD, seconds=HELD),
    "the first is marked": "results/*.loaded",
    "the second upload": Fault("slow", *UPLOAD, seconds=HELD, after=1),
}
FIRST_IS_LOADED = ("its answer comes", "the first is marked", "the second upload")


def kill(nights, day, moment):
    what, before = MOMENTS[moment], len(nights.tables()[0])
    if isinstance(what, str):
        there = set(nights.folder.glob(what))
        nights.killed(day, lambda: set(nights.folder.glob(what)) - there)
    else:
        what.hits = 0
        nights.proxy.faults = [what]
        loaded = before + (what.how == "slow_answer")
        nights.killed(day, lambda: nights.proxy.struck() and len(nights.tables()[0]) >= loaded)
        nights.proxy.reset()
    assert (len(nights.tables()[0]) > before) is (moment in FIRST_IS_LOADED)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What is in both tables after each night."""
    nights = Nights(tmp_path_factory.mktemp("undisturbed"))
    found = []
    for day in DAYS:
        nights.trips(day)
        assert nights.run(day) == 0, nights.said
        found.append([list(rows) for rows in nights.tables()])
    nights.close()
    return found


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_night_that_was_killed_is_finished_by_the_next_run(nights, undisturbed, moment):
    nights.trips(DAYS[0])
    kill(nights, DAYS[0], moment)
    assert nights.run(DAYS[0]) == 0, nights.said
    expect(nights, DAYS[:1])
    assert nights.tables() == undisturbed[0]


def test_a_night_that_was_killed_again_and_again(nights, undisturbed):
    """The second one, which goes on with the state of the first."""
    nights.trips(DAYS[0])
    assert nights.run(DAYS[0]) == 0, nights.said
    nights.trips(DAYS[1])
    for moment in (*list(MOMENTS)[:4], "the first upload"):
        kill(nights, DAYS[1], moment)
    assert nights.run(DAYS[1]) == 0, nights.said
    expect(nights, DAYS)
    assert nights.tables() == undisturbed[1]
