"""Rows and schemas of BigQuery; tests/clusters speak to a server."""

import math

import pytest

from streamveil.io import WriteReleasesToBigQuery, bigquery_schema, release_schema
from streamveil.io.bigquery import bigquery_row
from streamveil.io.bigquery_tables import table_named
from streamveil.mechanisms.core.records import ConfigurationError

pytest.importorskip("google.cloud.bigquery", reason="the extra gcp is not installed")

TABLE = "a-project.stats.releases"
LABELS = ["a", "é"]


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


@pytest.mark.parametrize("table", ["releases", "stats.releases", "a..b", ""])
def test_a_table_has_three_names(table):
    with pytest.raises(ConfigurationError, match=r"PROJECT\.DATASET\.TABLE"):
        WriteReleasesToBigQuery(table, labels=LABELS)


@pytest.mark.parametrize(
    ("place", "table"),
    [
        ("select-prod.stats.events", "select-prod.stats.events"),
        ("with-data.stats.events?as_of=2024-05-02", "with-data.stats.events"),
        ("-- SELECT\n a.b.c", "-- SELECT\n a.b.c"),
        ("/**/" * 2000 + "a.b.c", "/**/" * 2000 + "a.b.c"),
        ("SELECT 1", None),
        ("-- all\n/* of * May */ (WITH a AS (SELECT 1) SELECT * FROM a)", None),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_query_begins_with_select_or_with_after_comments(place, table):
    assert table_named(f"bigquery:{place}") == table
