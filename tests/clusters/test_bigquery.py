"""BigQuery by its own protocol: what Beam's and Google's clients send over HTTP, and how it fails.

The server is a fake of a few requests, in `bigquery_server.py`; load jobs read the emulator of
Google Cloud Storage.
"""

from pathlib import Path

import pytest

pytest.importorskip("google.cloud.bigquery", reason="the extra gcp is not installed")

from streamveil.io import RESULT_SCHEMA, read_table
from streamveil.io.bigquery import _SchemaOf, bigquery_schema
from streamveil.mechanisms.core.records import MachineFault
from streamveil.pipelines.main import main
from tests.clusters.stores import CAFES, GCS, release_of, running

TABLE = "a-project.stats.releases"


pytestmark = pytest.mark.slow


def flags(output=f"bigquery:{TABLE}?method=STREAMING_INSERTS", **changed):
    given = {
        "input": "events.csv",
        "output": output,
        "default_requirement": "3,1,40",
        **CAFES,
        "card": "card.json",
        "layout": "rows",
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


def in_table(bigquery):
    return sorted((int(row["slot"]), row["counts"]) for row in bigquery.rows[TABLE])


def test_streamed_rows_arrive_once_in_a_table_that_is_made(bigquery, tmp_path):
    assert main(flags()) == 0
    assert in_table(bigquery) == in_file(tmp_path)
    fields = {field["name"]: field for field in bigquery.schemas[TABLE]["fields"]}
    assert fields["counts"] == {"name": "counts", "type": "INTEGER", "mode": "REPEATED"}
    assert bigquery.rows[TABLE][0]["bins"] == ["cafe", "park"]
    assert main(flags(start="2024-05-02")) == 0  # another run adds rows
    assert len(bigquery.rows[TABLE]) == 9


def test_a_table_is_tidy_unless_rows_are_wanted(bigquery, tmp_path):
    assert main(flags(layout="tidy")) == 0
    assert [field["name"] for field in bigquery.schemas[TABLE]["fields"]] == RESULT_SCHEMA.names
    rows = sorted(bigquery.rows[TABLE], key=lambda row: (int(row["slot"]), row["key"]))
    assert [(int(row["slot"]), row["key"], round(float(row["value"]))) for row in rows] == [
        (slot, key, count)
        for slot, counts in in_file(tmp_path)
        for key, count in zip(("cafe", "park"), counts, strict=True)
    ]


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
def test_a_fault_that_passes_loses_and_doubles_nothing(bigquery, tmp_path, failures):
    bigquery.failures = list(failures)
    assert main(flags()) == 0
    assert bigquery.failures == []
    assert in_table(bigquery) == in_file(tmp_path)


def test_a_row_that_is_not_taken_fails_the_run(bigquery, capsys):
    fields = [*bigquery_schema(bins=True)["fields"]]
    bigquery.schemas[TABLE], bigquery.rows[TABLE] = {"fields": fields}, []
    bigquery.inserted[TABLE] = set()
    bigquery.before_insert = lambda: fields.pop()  # a column goes when it was looked at
    assert main(flags()) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"{TABLE}: BigQuery does not take a row: no such field" in said
    assert f"If rows of this run are in bigquery:{TABLE} already, take them out before" in said
    assert "spends the budget again unless it has the same noise key" in said
    assert "see that the table has the columns" in said
    assert bigquery.rows[TABLE] == []


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [("tables", 403, "accessDenied"), ("insertAll", 403, "accessDenied")],
)
def test_what_is_not_allowed_is_said(bigquery, capsys, path, status, reason):
    bigquery.failures = [(path, status, reason, False)] * 50
    assert main(flags()) == 1
    said = capsys.readouterr().err
    assert "accessDenied of the test" in said.splitlines()[-1]
    assert bigquery.rows.get(TABLE, []) == []


def test_a_dataset_that_is_not_there(bigquery, capsys):
    bigquery.datasets.clear()
    assert main(flags()) == 2
    assert "Not found: Dataset a-project:stats" in capsys.readouterr().err.splitlines()[-1]


def test_a_method_that_is_none(bigquery, capsys):
    assert main(flags(f"bigquery:{TABLE}?method=FAST")) == 2
    assert "none of FILE_LOADS, STREAMING_INSERTS" in capsys.readouterr().err


@pytest.mark.gcs
def test_load_jobs_read_files_of_a_bucket(bigquery, tmp_path, monkeypatch, request):
    home = Path(request.config.getoption("--gcs_home")).resolve()
    work = tmp_path / "gcs"
    work.mkdir()
    with running(GCS, home, work) as store:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", store.proxy.url)
        bigquery.files = store.get
        given = {"temp_location": "gs://bucket/temp", "project": "a-project"}
        ledger = "a-project.stats.ledger"
        assert main(flags(f"bigquery:{TABLE}", ledger=f"bigquery:{ledger}", **given)) == 0
        assert in_table(bigquery) == in_file(tmp_path)
        assert len(bigquery.jobs) == 2
        assert len({row["slot"] for row in bigquery.rows[ledger]}) == 5
        # A load job has to name the columns as the table has them.
        change(bigquery)
        again = {"start": "2024-05-02", **given}
        assert main(flags(f"bigquery:{TABLE}", **again)) == 2
        assert main(flags(f"bigquery:{TABLE}?add_columns=true", **again)) == 0
        assert len(bigquery.rows[TABLE]) == 9
        assert [one["name"] for one in bigquery.schemas[TABLE]["fields"]][-2:] == ["note", "bins"]


def change(bigquery):
    """Make the table one without `bins`, with another column, and with one that may be empty."""
    table = bigquery.schemas[TABLE]
    kept = [one for one in table["fields"] if one["name"] != "bins"]
    note = {"name": "note", "type": "STRING", "mode": "NULLABLE", "maxLength": "10"}
    relaxed = [{**one, "mode": "NULLABLE"} if one["name"] == "slot" else one for one in kept]
    table["fields"] = [*relaxed, note]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ("add_columns=yes", "add_columns=yes is neither true nor false"),
        ("method=STREAMING_INSERTS&add_columns=true", "add_columns=true is for load jobs"),
    ],
)
def test_columns_are_added_by_load_jobs_alone(bigquery, capsys, settings, why):
    assert main(flags(f"bigquery:{TABLE}?{settings}")) == 2
    assert why in capsys.readouterr().err
    assert TABLE not in bigquery.schemas


def test_a_table_that_is_gone_when_it_is_loaded_is_no_wrong_option(bigquery):
    schema = _SchemaOf(TABLE, bigquery_schema()["fields"])
    assert schema(None) == bigquery_schema()
    bigquery.datasets.clear()
    with pytest.raises(MachineFault, match="Not found: Dataset"):
        schema(None)
