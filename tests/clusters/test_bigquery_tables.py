"""What else goes to tables of BigQuery than releases, and tables that do not take it."""

import pytest

pytest.importorskip("google.cloud.bigquery", reason="the extra gcp is not installed")

from streamveil.io import read_table
from streamveil.io.bigquery import bigquery_schema
from streamveil.pipelines.main import main
from tests.clusters.stores import CAFES, release_of

pytestmark = pytest.mark.slow

RELEASES, LEDGER = "a-project.stats.releases", "a-project.stats.ledger"
STREAMED = "?method=STREAMING_INSERTS"
QUERY_SET = """
slot: 1d
queries:
  - {name: visits, by: place, keys: [cafe, park], every: 1d}
"""


def flags(**changed):
    given = {
        "input": "events.csv",
        "output": f"bigquery:{RELEASES}{STREAMED}",
        "ledger": f"bigquery:{LEDGER}{STREAMED}",
        "card": "card.json",
        "default_requirement": "3,1,40",
        "layout": "rows",
        **CAFES,
    }
    return release_of({name: value for name, value in {**given, **changed}.items() if value})


def plain(rows, like):
    """Rows as they are in a file, in an order of their own."""
    return sorted((tuple(row.get(name) for name in like) for row in rows), key=repr)


def test_a_ledger_goes_to_a_table(bigquery, capsys):
    assert main(flags()) == 0
    assert f"wrote bigquery:{LEDGER}{STREAMED}" in capsys.readouterr().out
    assert main(flags(output="r.parquet", ledger="ledger.parquet", card=None)) == 0
    rows = read_table("ledger.parquet").to_pylist()
    assert plain(bigquery.rows[LEDGER], rows[0]) == plain(rows, rows[0])
    assert {field["mode"] for field in bigquery.schemas[LEDGER]["fields"]} == {
        "REQUIRED",
        "NULLABLE",
    }


def test_answers_go_to_a_table(bigquery):
    with open("queries.yaml", "w") as file:
        file.write(QUERY_SET)
    given = {name: CAFES[name] for name in ("user_column", "time_column", "start", "end")}
    shared = {"input": "events.csv", "queries": "queries.yaml", "default_requirement": "3,1,40"}
    table = {"output": f"bigquery:{RELEASES}{STREAMED}", "ledger": f"bigquery:{LEDGER}{STREAMED}"}
    assert main(release_of({**shared, **given, **table, "card": "card.json"})) == 0
    files = {"output": "answers", "ledger": "ledger.parquet"}
    assert main(release_of({**shared, **given, **files})) == 0
    rows = read_table("answers/visits.parquet").to_pylist()
    names = ("slot", "key", "statistic", "value", "status")
    assert plain(bigquery.rows[RELEASES], names) == plain(rows, names)
    assert {row["query"] for row in bigquery.rows[RELEASES]} == {"visits"}
    booked = read_table("ledger.parquet").to_pylist()
    assert plain(bigquery.rows[LEDGER], booked[0]) == plain(booked, booked[0])


def fields(**changed):
    """Columns of releases; None takes one away."""
    whole = {one["name"]: one for one in bigquery_schema(bins=True)["fields"]}
    return {"fields": [one for one in {**whole, **changed}.values() if one]}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (
            {"alarm": None, "bins": None},
            f"no column 'alarm', 'bins', which this run writes: add what is missing, ALTER TABLE "
            f"`{RELEASES}` ADD COLUMN alarm BOOL, ADD COLUMN bins ARRAY<STRING>, or let load",
        ),
        (
            {"epsilon": {"name": "epsilon", "type": "STRING", "mode": "NULLABLE"}},
            "the column 'epsilon' is STRING there, and this run writes FLOAT64",
        ),
        (
            {"counts": {"name": "counts", "type": "INTEGER", "mode": "NULLABLE"}},
            "the column 'counts' is INT64 there, and this run writes ARRAY<INT64>",
        ),
        (
            {"night": {"name": "night", "type": "DATE", "mode": "REQUIRED"}},
            "the column 'night' is REQUIRED there, and this run leaves it empty",
        ),
        (
            {"published_slot": {"name": "published_slot", "type": "INT64", "mode": "REQUIRED"}},
            "the column 'published_slot' is REQUIRED there, and this run leaves it empty",
        ),
    ],
)
def test_a_table_that_does_not_take_the_rows_is_refused_before(bigquery, capsys, changed, why):
    bigquery.schemas[RELEASES], bigquery.rows[RELEASES] = fields(**changed), []
    assert main(flags()) == 2
    assert why in capsys.readouterr().err.splitlines()[-1]
    assert LEDGER not in bigquery.schemas  # nothing was begun


def test_a_table_with_more_columns_takes_them(bigquery):
    more = {"name": "note", "type": "STRING", "mode": "NULLABLE"}
    relaxed = {"name": "slot", "type": "INT64"}
    bigquery.schemas[RELEASES] = fields(note=more, slot=relaxed)
    bigquery.rows[RELEASES], bigquery.inserted[RELEASES] = [], set()
    for one in bigquery.schemas[RELEASES]["fields"]:
        one.setdefault("mode", "NULLABLE")
    assert main(flags()) == 0
    assert len(bigquery.rows[RELEASES]) == 5


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"ledger": "pubsub:projects/p/topics/t"}, "--ledger=pubsub:projects/p/topics/t"),
        (
            {"ledger": f"bigquery:{RELEASES}"},
            ("is given for two kinds of rows: name a table for each"),
        ),
        ({"ledger": "bigquery:ledger"}, "is not one of BigQuery: write PROJECT.DATASET.TABLE"),
        ({"rejected": f"bigquery:{LEDGER}"}, "bigquery:"),
        ({"summary": f"bigquery:{LEDGER}"}, "bigquery:"),
        ({"card": f"bigquery:{LEDGER}"}, "bigquery:"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_goes_to_no_table_is_refused_in_a_line(bigquery, capsys, changed, why):
    assert main(flags(**changed)) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert why in said
    assert bigquery.rows == {}
