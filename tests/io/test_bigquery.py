"""BigQuery up to its client, which Beam lets a test replace."""

import json
import math
import types

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from streamveil.io import WriteReleasesToBigQuery, bigquery_schema, release_schema
from streamveil.io.bigquery import bigquery_row
from streamveil.mechanisms.core.records import ConfigurationError

pytest.importorskip("google.cloud.bigquery", reason="the extra gcp is not installed")
from apache_beam.io.gcp.internal.clients import bigquery as api

TABLE = "a-project.stats.releases"
LABELS = ["a", "é"]


class Client:
    """What Beam asks of the service: tables, inserted rows, load jobs. Workers are in-process."""

    rows: list = []
    created: list = []
    loaded: list = []
    there = True

    def __init__(self):
        self.tables = types.SimpleNamespace(Get=self.get_table, Insert=self.create_table)
        self.jobs = types.SimpleNamespace(Insert=self.load, Get=self.job)

    def get_table(self, request):
        if not Client.there:
            from apitools.base.py.exceptions import HttpNotFoundError

            raise HttpNotFoundError({"status": "404"}, "", "")
        return api.Table(
            tableReference=api.TableReference(
                projectId=request.projectId, datasetId=request.datasetId, tableId=request.tableId
            )
        )

    def create_table(self, request):
        Client.created.append(request.table)
        Client.there = True
        return request.table

    def insert_rows_json(self, table, json_rows, **_):
        Client.rows.extend((table, row) for row in json_rows)
        return []

    def load(self, request, **_):
        load = request.job.configuration.load
        for path in load.sourceUris:
            with open(path) as file:
                Client.rows += [(load.sourceFormat, json.loads(line)) for line in file]
        return self.job(None)

    def job(self, _):
        reference = api.JobReference(projectId="a-project", jobId="job", location="EU")
        return api.Job(jobReference=reference, status=api.JobStatus(state="DONE"))


@pytest.fixture
def client(monkeypatch):
    """A service without rows. Beam asks a machine of Google for its job, if it is on one."""
    monkeypatch.setattr("apache_beam.io.gcp.gce_metadata_util.fetch_dataflow_job_id", str)
    Client.rows, Client.created, Client.there = [], [], True
    return Client()


def names(fields):
    return [(field["name"], field["type"], field["mode"]) for field in fields]


def test_the_schema_is_that_of_the_releases():
    fields = bigquery_schema()["fields"]
    assert [field["name"] for field in fields] == release_schema().names
    assert names(fields) == [
        ("slot", "INTEGER", "REQUIRED"),
        ("start", "TIMESTAMP", "REQUIRED"),
        ("end", "TIMESTAMP", "REQUIRED"),
        ("counts", "INTEGER", "REPEATED"),
        ("status", "STRING", "REQUIRED"),
        ("published_slot", "INTEGER", "NULLABLE"),
        ("epsilon", "FLOAT", "REQUIRED"),
        ("stderr", "FLOAT", "REPEATED"),
        ("mechanism", "STRING", "REQUIRED"),
        ("alarm", "BOOLEAN", "REQUIRED"),
        ("diagnostics", "RECORD", "REPEATED"),
    ]
    assert names(fields[-1]["fields"]) == [
        ("name", "STRING", "REQUIRED"),
        ("value", "FLOAT", "NULLABLE"),
    ]
    bins = bigquery_schema(bins=True)["fields"]
    assert bins[:-1] == fields
    assert names(bins[-1:]) == [("bins", "STRING", "REPEATED")]


def test_a_row_has_no_nan_and_no_null_in_a_repeated_column(some_releases):
    before, _, after = [bigquery_row(release, LABELS) for release in some_releases]
    assert before["stderr"] == []
    assert before["published_slot"] is None
    assert after == {
        "slot": 2,
        "start": "1970-01-01T02:00:00Z",
        "end": "1970-01-01T03:00:00Z",
        "counts": [2, -2],
        "status": "skipped",
        "published_slot": 1,
        "epsilon": 0.5,
        "stderr": [1.5, 2.0],
        "mechanism": "pba",
        "alarm": False,
        "diagnostics": [{"name": "gap", "value": 0.25}, {"name": "é", "value": None}],
        "bins": LABELS,
    }
    assert math.isnan(some_releases[2].diagnostics["é"])
    assert set(bigquery_row(some_releases[0])) == set(release_schema().names)


@pytest.mark.parametrize("there", [True, False])
def test_rows_are_inserted_and_the_table_is_made(client, some_releases, pipeline_on, runner, there):
    Client.there = there
    name = f"{runner}_{there}"  # Beam remembers the tables that it knows
    with pipeline_on(runner) as pipeline:
        _ = (
            pipeline
            | beam.Create(some_releases)
            | WriteReleasesToBigQuery(
                f"a-project.stats.{name}",
                labels=LABELS,
                arguments={"method": "STREAMING_INSERTS", "test_client": client},
            )
        )
    assert sorted(Client.rows, key=lambda row: row[1]["slot"]) == [
        (f"a-project.stats.{name}", bigquery_row(release, LABELS)) for release in some_releases
    ]
    if there:
        assert Client.created == []
        return
    (table,) = Client.created
    assert (table.tableReference.datasetId, table.tableReference.tableId) == ("stats", name)
    made = [(field.name, field.type, field.mode) for field in table.schema.fields]
    assert made == names(bigquery_schema(bins=True)["fields"])


def test_rows_are_loaded_from_a_file_of_json(client, some_releases, tmp_path):
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        _ = (
            pipeline
            | beam.Create(some_releases)
            | WriteReleasesToBigQuery(
                TABLE,
                arguments={
                    "method": "FILE_LOADS",
                    "custom_gcs_temp_location": str(tmp_path),
                    "test_client": client,
                    "validate": False,
                },
            )
        )
    assert sorted(Client.rows, key=lambda row: row[1]["slot"]) == [
        ("NEWLINE_DELIMITED_JSON", bigquery_row(release)) for release in some_releases
    ]


@pytest.mark.parametrize("table", ["releases", "stats.releases", "a..b", ""])
def test_a_table_has_three_names(table):
    with pytest.raises(ConfigurationError, match=r"PROJECT\.DATASET\.TABLE"):
        WriteReleasesToBigQuery(table)
