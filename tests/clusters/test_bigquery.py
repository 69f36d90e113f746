"""BigQuery by its own protocol: what Beam's and Google's clients send over HTTP, and how it fails.

The server is a fake of a few requests, in `bigquery_server.py`; load jobs read the emulator of
Google Cloud Storage.
"""

import json
import time
from pathlib import Path

import pytest

pytest.importorskip("google.cloud.bigquery", reason="the extra gcp is not installed")

from streamveil.io import read_table
from streamveil.pipelines.main import main
from tests.clusters.bigquery_server import BigQueryServer
from tests.clusters.stores import CAFES, GCS, KEY, fake_account, release_of, running

EVENTS = "user,place,time\n" + "".join(
    f"u{i % 40},{'cafe' if i % 3 else 'park'},2024-05-0{1 + i // 40}T10:00:00Z\n"
    for i in range(200)
)
TABLE = "a-project.stats.releases"


pytestmark = pytest.mark.slow


@pytest.fixture
def server(monkeypatch, tmp_path):
    """The fake, with the clients pointed to it, which wait for a moment where they try again."""
    from apache_beam.internal.gcp import auth
    from apache_beam.io.gcp import bigquery
    from apache_beam.io.gcp.internal.clients.bigquery import BigqueryV2
    from apache_beam.utils import retry

    server = BigQueryServer()
    account = tmp_path / "account.json"
    account.write_text(json.dumps(fake_account(server.url)))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(account))
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "a-project")
    monkeypatch.setenv("BIGQUERY_EMULATOR_HOST", server.url)
    monkeypatch.setenv("STREAMVEIL_NOISE_KEY", KEY)
    monkeypatch.setattr(BigqueryV2, "BASE_URL", f"{server.url}/bigquery/v2/")  # has no variable
    bigquery._KNOWN_TABLES.clear()  # which a process makes no second time
    monkeypatch.setattr(auth._Credentials, "_credentials_init", False)
    monkeypatch.setattr(retry.Clock, "sleep", lambda self, seconds: time.sleep(0.01))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "events.csv").write_text(EVENTS)
    yield server
    server.close()


def flags(output=f"bigquery:{TABLE}?method=STREAMING_INSERTS", **changed):
    given = {
        "input": "events.csv",
        "output": output,
        "default_requirement": "3,1,40",
        **CAFES,
        "card": "card.json",
        **changed,
    }
    return release_of(given)


def in_file(tmp_path):
    """Slots and counts as the same run writes them to a file."""
    path = tmp_path / "releases.parquet"
    if not path.exists():
        assert main(flags(str(path))) == 0
    found = read_table(str(path))
    return list(zip(found["slot"].to_pylist(), found["counts"].to_pylist(), strict=True))


def in_table(server):
    return sorted((int(row["slot"]), row["counts"]) for row in server.rows[TABLE])


def test_streamed_rows_arrive_once_in_a_table_that_is_made(server, tmp_path):
    assert main(flags()) == 0
    assert in_table(server) == in_file(tmp_path)
    fields = {field["name"]: field for field in server.schemas[TABLE]["fields"]}
    assert fields["counts"] == {"name": "counts", "type": "INTEGER", "mode": "REPEATED"}
    assert server.rows[TABLE][0]["bins"] == ["cafe", "park"]
    assert main(flags(start="2024-05-02")) == 0  # another run adds rows
    assert len(server.rows[TABLE]) == 9


@pytest.mark.parametrize(
    "failures",
    [
        [("insertAll", 503, "backendError", False)] * 2,
        [("insertAll", 500, "internalError", False)],
        [("insertAll", 503, "backendError", True)],  # the answer is lost, the rows are there
        [("tables/releases", 503, "backendError", False)],
        [("tables", 500, "internalError", False)],
    ],
    ids=lambda failures: f"{failures[0][1]} {failures[0][0]} {failures[0][3]}",
)
def test_a_fault_that_passes_loses_and_doubles_nothing(server, tmp_path, failures):
    server.failures = list(failures)
    assert main(flags()) == 0
    assert server.failures == []
    assert in_table(server) == in_file(tmp_path)


def test_a_row_that_is_not_taken_fails_the_run(server, capsys):
    fields = [{"name": "slot", "type": "INTEGER", "mode": "REQUIRED"}]
    server.schemas[TABLE], server.rows[TABLE] = {"fields": fields}, []
    server.inserted[TABLE] = set()
    assert main(flags()) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"{TABLE}: BigQuery does not take a row: no such field" in said
    assert "see that the table has the columns" in said
    assert server.rows[TABLE] == []


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [("tables", 403, "accessDenied"), ("insertAll", 403, "accessDenied")],
)
def test_what_is_not_allowed_is_said(server, capsys, path, status, reason):
    server.failures = [(path, status, reason, False)] * 50
    assert main(flags()) == 1
    said = capsys.readouterr().err
    assert "accessDenied of the test" in said.splitlines()[-1]
    assert server.rows.get(TABLE, []) == []


def test_a_dataset_that_is_not_there(server, capsys):
    server.datasets.clear()
    assert main(flags()) == 1
    assert "Not found: Dataset a-project:stats" in capsys.readouterr().err.splitlines()[-1]


def test_a_method_that_is_none(server, capsys):
    assert main(flags(f"bigquery:{TABLE}?method=FAST")) == 2
    assert "none of FILE_LOADS, STREAMING_INSERTS" in capsys.readouterr().err


@pytest.mark.gcs
def test_load_jobs_read_files_of_a_bucket(server, tmp_path, monkeypatch, request):
    home = Path(request.config.getoption("--gcs_home")).resolve()
    work = tmp_path / "gcs"
    work.mkdir()
    with running(GCS, home, work) as store:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", store.proxy.url)
        server.files = store.get
        given = {"temp_location": "gs://bucket/temp", "project": "a-project"}
        assert main(flags(f"bigquery:{TABLE}", **given)) == 0
        assert in_table(server) == in_file(tmp_path)
        assert len(server.jobs) == 1
