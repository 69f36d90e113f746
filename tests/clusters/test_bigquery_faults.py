"""Faults of BigQuery and of the way to it: nothing is lost, doubled or half-written by them.

Requests go through the proxy of the other tests of services, which fails, to the fake.
"""

import csv
import datetime as dt
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip("google.cloud.bigquery", reason="the extra gcp is not installed")

from streamveil.io import bigquery_tables, read_table
from streamveil.pipelines.main import main
from tests.clusters.bigquery_server import error
from tests.clusters.conftest import BIGQUERY_EVENTS
from tests.clusters.fault_proxy import FOREVER, Fault, FaultProxy
from tests.clusters.free_ports import free_ports
from tests.clusters.stores import CAFES, fake_account, release_of

pytestmark = pytest.mark.slow

TABLE, RELEASES = "a-project.stats.trips", "a-project.stats.releases"
INPUT = f"bigquery:{TABLE}"
# Runs the command in a new process whose BigQuery client connects to the server in argument 1.
STREAM = """
import sys
from apache_beam.io.gcp.internal.clients.bigquery import BigqueryV2
from streamveil.pipelines.main import main
BigqueryV2.BASE_URL = sys.argv[1] + "/bigquery/v2/"
sys.exit(main(sys.argv[2:]))
"""
STREAMED = f"bigquery:{RELEASES}?method=STREAMING_INSERTS"
PAGES, JOBS, RESULTS, TOKEN = "/data", "/jobs", "/queries/", "/token"


def events():
    for user, place, time_ in csv.reader(BIGQUERY_EVENTS.splitlines()[1:]):
        yield user, place, dt.datetime.fromisoformat(f"{time_[:-1]}+00:00")


@pytest.fixture
def proxy(bigquery, monkeypatch, tmp_path):
    bigquery.fill(TABLE, {"user": "STRING", "place": "STRING", "time": "TIMESTAMP"}, events())
    bigquery.page = 50
    (port,) = free_ports(1)
    proxy = FaultProxy(bigquery.url.removeprefix("http://"), port)
    account = tmp_path / "account.json"
    account.write_text(json.dumps(fake_account(proxy.url)))
    monkeypatch.setenv("BIGQUERY_EMULATOR_HOST", proxy.url)
    yield proxy
    proxy.stop()


def flags(output="table.parquet", **changed):
    given = {"input": INPUT, "output": output, "default_requirement": "3,1,40", **CAFES}
    given["layout"] = "rows"
    return release_of({**given, **changed})


def released(path="table.parquet"):
    return read_table(path).select(["slot", "counts"]).to_pylist()


@pytest.fixture
def truth(bigquery):
    """What the same events release from a file."""
    assert main(flags("file.parquet", input="events.csv")) == 0
    return released("file.parquet")


def says(status, reason, **changed):
    """A fault that is an answer of Google's."""
    body = json.dumps(error(status, reason, f"{reason} of the test")[1]).encode()
    return Fault(str(status), body=body, **changed)


PASSING = {
    "jobs 503": says(503, "backendError", path=JOBS, times=2),
    "jobs 429": says(429, "rateLimitExceeded", path=JOBS, times=2),
    "jobs 403 rate": says(403, "rateLimitExceeded", path=JOBS, times=2),
    "jobs reset": Fault("reset", path=JOBS, times=2),
    "jobs reset in write": Fault("reset_in_write", path=JOBS, times=1),
    "jobs answer lost": Fault("lose_answer", path=JOBS, times=1, after=1),
    "results 500": says(500, "internalError", path=RESULTS, times=2),
    "results lost": Fault("lose_answer", path=RESULTS, times=1),
    "results cut off": Fault("truncate", path=RESULTS, times=1),
    "table 502": Fault("502", path="/tables/anon[^/]*[?]", times=1),
    "pages 503": says(503, "backendError", path=PAGES, times=2, after=1),
    "pages reset": Fault("reset", path=PAGES, times=2, after=1),
    "pages reset in the middle": Fault("reset_in_read", path=PAGES, times=2, after=1),
    "pages cut off": Fault("truncate", path=PAGES, times=2),
    "pages lost": Fault("lose_answer", path=PAGES, times=1, after=2),
    "pages slow": Fault("slow", path=PAGES, times=2, seconds=0.5),
    "token 503": Fault("503", path=TOKEN, times=1),
}


@pytest.mark.parametrize("fault", PASSING)
def test_what_passes_changes_nothing(proxy, truth, fault):
    fault = PASSING[fault]
    fault.hits = 0
    proxy.faults = [fault]
    assert main(flags()) == 0
    assert proxy.struck()
    assert released() == truth


def test_a_server_that_comes_back_is_waited_for(proxy, truth):
    proxy.stop()
    threading.Timer(0.7, proxy.start).start()
    assert main(flags()) == 0
    assert released() == truth


def test_a_job_that_fails_is_run_again(bigquery, proxy, truth):
    bigquery.failing_jobs = [("jobBackendError", "try it again")]
    assert main(flags()) == 0
    assert released() == truth


CREDENTIALS = "give credentials that are valid and may do this, and run it again"
QUOTA = "wait until its quota lets it, or have that raised, and run it again"
WAY = "look whether the service and the way to it are up, and run it again"
LASTING = {
    "jobs 503": (says(503, "backendError", path=JOBS), WAY),
    "jobs 429": (Fault("429", path=JOBS), WAY),
    "jobs denied": (says(403, "accessDenied", path=JOBS), CREDENTIALS),
    "expired": (says(401, "authError", path=JOBS), CREDENTIALS),
    "jobs quota": (says(403, "quotaExceeded", path=JOBS), QUOTA),
    "pages denied": (says(403, "accessDenied", path=PAGES, after=1), CREDENTIALS),
    "pages 500": (says(500, "internalError", path=PAGES, after=1), WAY),
    "pages reset": (Fault("reset_in_read", path=PAGES, after=1), WAY),
    "pages shortened": (Fault("shorten", path=PAGES, after=1), WAY),
    "token denied": (Fault("400", path=TOKEN, body=b'{"error": "invalid_grant"}'), CREDENTIALS),
}


@pytest.mark.parametrize("fault", LASTING)
def test_what_lasts_ends_the_run_and_writes_nothing(proxy, capsys, monkeypatch, fault):
    monkeypatch.setattr(bigquery_tables, "PATIENCE", 0.5)
    fault, remedy = LASTING[fault]
    fault.hits = 0
    proxy.faults = [fault]
    assert main(flags(ledger="ledger.parquet")) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"{INPUT} could not be read: BigQuery says: " in said
    assert remedy in said
    assert not [name for name in os.listdir() if "parquet" in name]


def test_a_server_that_is_away(proxy, capsys, monkeypatch):
    monkeypatch.setattr(bigquery_tables, "PATIENCE", 0.5)
    proxy.stop()
    assert main(flags()) == 1
    assert WAY in capsys.readouterr().err.splitlines()[-1]


def test_a_server_that_is_killed_while_it_is_read(proxy, capsys, monkeypatch):
    monkeypatch.setattr(bigquery_tables, "PATIENCE", 0.5)
    stop = threading.Thread(target=proxy.stop)
    proxy.faults = [Fault("reset", path=PAGES, after=1, times=1, call=stop.start)]
    assert main(flags()) == 1
    assert WAY in capsys.readouterr().err.splitlines()[-1]
    assert not os.path.exists("table.parquet")


@pytest.mark.parametrize(
    ("reason", "code", "words"),
    [
        ("quotaExceeded", 1, QUOTA),
        ("accessDenied", 1, CREDENTIALS),
        ("invalidQuery", 2, "check the query"),
        ("notFound", 2, "check the name"),
    ],
)
def test_a_job_that_fails(bigquery, proxy, capsys, monkeypatch, reason, code, words):
    monkeypatch.setattr(bigquery_tables, "PATIENCE", 0.5)
    bigquery.failing_jobs = [(reason, f"{reason} of the test")] * 9
    assert main(flags()) == code
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"{reason} of the test" in said
    assert words in said


def test_a_table_that_goes_while_it_is_read(bigquery, proxy, capsys):
    def drop(body):
        bigquery.schemas.pop(TABLE, None)

    bigquery.before_job = drop
    assert main(flags()) == 2
    assert "Not found: Table" in capsys.readouterr().err.splitlines()[-1]


def test_rows_that_do_not_come_are_missed(bigquery, proxy, capsys, monkeypatch):
    """A last page that comes too early."""

    def cut(method, path, body, answer=bigquery.answer):
        status, found = answer(method, path, body)
        if PAGES in path:
            found.pop("pageToken", None)
        return status, found

    monkeypatch.setattr(bigquery, "answer", cut)
    assert main(flags()) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert "BigQuery gave 50 rows of 200 that it has: nothing is released by this" in said


def test_a_run_that_is_killed_leaves_nothing(proxy, truth):
    proxy.faults = [Fault("slow", path=PAGES, seconds=20.0)]
    command = [sys.executable, "-m", "streamveil", *flags()]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        end = time.monotonic() + 60
        while not proxy.struck():
            assert time.monotonic() < end
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    assert not os.path.exists("table.parquet")
    proxy.reset()
    assert main(flags()) == 0
    assert released() == truth
    assert not [name for name in os.listdir() if ".part" in name or ".claim" in name]


@pytest.mark.parametrize(("sent", "ledgers"), [(0, 0), (1, 1)], ids=["before", "between"])
def test_rows_of_a_run_that_is_killed_are_those_of_the_next(bigquery, proxy, truth, sent, ledgers):
    """It is killed before the first table, or between the two."""
    ledger = "a-project.stats.ledger"
    given = flags(STREAMED, ledger=f"bigquery:{ledger}?method=STREAMING_INSERTS", card="card.json")
    proxy.faults = [Fault("reset", path="insertAll", after=sent)]
    command = [sys.executable, "-c", STREAM, proxy.url, *given]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        end = time.monotonic() + 60
        while not proxy.struck():
            assert time.monotonic() < end
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert not bigquery.rows.get(RELEASES)
    proxy.reset()
    assert main(given) == 0
    rows = sorted((int(row["slot"]), row["counts"]) for row in bigquery.rows[RELEASES])
    assert rows == [(one["slot"], one["counts"]) for one in truth]
    found = [json.dumps(row, sort_keys=True) for row in bigquery.rows[ledger]]
    assert len(found) == (ledgers + 1) * len(set(found)) == (ledgers + 1) * len(truth)


STREAMING = {
    "503": says(503, "backendError", path="insertAll", times=2),
    "429": says(429, "rateLimitExceeded", path="insertAll", times=2),
    "reset": Fault("reset", path="insertAll", times=2),
    "reset in write": Fault("reset_in_write", path="insertAll", times=1),
    "answer lost": Fault("lose_answer", path="insertAll", times=2),
    "answer cut off": Fault("truncate", path="insertAll", times=1),
}


@pytest.mark.parametrize("fault", STREAMING)
def test_streamed_rows_arrive_once(bigquery, proxy, truth, fault):
    fault = STREAMING[fault]
    fault.hits = 0
    proxy.faults = [fault]
    assert main(flags(STREAMED, card="card.json")) == 0
    assert proxy.struck()
    rows = sorted((int(row["slot"]), row["counts"]) for row in bigquery.rows[RELEASES])
    assert rows == [(one["slot"], one["counts"]) for one in truth]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (says(403, "quotaExceeded", path="/tables/releases[?]"), QUOTA),
        (says(403, "accessDenied", path="/tables/releases[?]"), CREDENTIALS),
        (says(401, "authError", path="/tables/releases[?]"), CREDENTIALS),
        (Fault("503", path="/tables/releases[?]", times=FOREVER), WAY),
    ],
    ids=["quota", "denied", "expired", "503"],
)
def test_a_table_that_cannot_be_looked_at_stops_the_run_before(
    proxy, bigquery, capsys, monkeypatch, fault, words
):
    monkeypatch.setattr(bigquery_tables, "PATIENCE", 0.5)
    fault.hits = 0
    proxy.faults = [fault]
    assert main(flags(STREAMED, card="card.json")) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"bigquery:{RELEASES} could not be looked at: BigQuery says: " in said
    assert words in said
    assert RELEASES not in bigquery.rows
