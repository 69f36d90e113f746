"""BigQuery as an input: what Google's client sends over HTTP, how rows are read, and what fails."""

import csv
import datetime as dt
import logging
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("google.cloud.bigquery", reason="the extra gcp is not installed")

import streamveil as sv
from streamveil.io import check_events, read_events, read_table
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.pipelines.main import main
from tests.calls import arguments
from tests.clusters.conftest import BIGQUERY_EVENTS
from tests.clusters.stores import CAFES, release_of

pytestmark = pytest.mark.slow

TABLE = "a-project.stats.trips"
INPUT = f"bigquery:{TABLE}"
QUERY = f"""bigquery:-- early trips /*
/* all columns */ SELECT user, place, time FROM `{TABLE}` WHERE time < TIMESTAMP '2024-05-06' -- May
"""
TYPES = {"user": "STRING", "place": "STRING", "time": "TIMESTAMP"}
UTC = dt.timezone.utc
NOON = dt.datetime(2024, 5, 1, 12, tzinfo=UTC)


def rows():
    found = csv.reader(BIGQUERY_EVENTS.splitlines()[1:])
    return [
        (user, place, dt.datetime.fromisoformat(f"{time[:-1]}+00:00"))
        for user, place, time in found
    ]


@pytest.fixture
def trips(bigquery):
    bigquery.fill(TABLE, TYPES, rows())
    return bigquery


def flags(place=INPUT, output="table.parquet", **changed):
    given = {"input": place, "output": output, "default_requirement": "3,1,40", **CAFES}
    files = {"ledger": f"ledger-{output}", "rejected": f"rejected-{output}", "layout": "rows"}
    return release_of({**given, **files, **changed})


def released(path):
    return read_table(path).select(["slot", "counts"]).to_pylist()


def jobs(server):
    """Jobs that were asked for, those among them that only look at columns."""
    asked = (path.partition("?")[0] for method, path in server.seen if method == "POST")
    return len([path for path in asked if path.endswith("/jobs")])


@pytest.fixture
def truth(bigquery):
    """What the same events release from a file."""
    assert main(flags("events.csv", "file.parquet")) == 0
    return released("file.parquet")


@pytest.mark.parametrize("beams", [(), ("--runner=FnApiRunner",)], ids=["here", "FnApiRunner"])
@pytest.mark.parametrize("place", [INPUT, QUERY], ids=["table", "query"])
def test_it_is_released_as_the_same_events_of_a_file(trips, truth, place, beams):
    trips.page = 7
    assert main([*flags(place), *beams]) == 0
    assert released("table.parquet") == truth
    assert read_table("ledger-table.parquet") == read_table("ledger-file.parquet")
    assert jobs(trips) == 2  # one that is not run, to see the columns, and one that reads


def test_python_reads_it_too(trips, truth):
    options = {name: CAFES[name] for name in ("slot", "start", "end")}
    made = sv.release(
        INPUT,
        user="user",
        value="place",
        time="time",
        domain=["cafe", "park"],
        run=sv.RunOptions(default_requirement=(3, 1, 40)),
        **options,
    )
    assert [release.counts.tolist() for release in made["count"]] == [
        row["counts"] for row in truth
    ]


def test_every_command_that_takes_events_reads_it(trips, capsys):
    events = [f"--{name}={value}" for name, value in CAFES.items()]
    given = [f"--input={INPUT}", *events, "--default_requirement=3,1,40"]
    assert main(["release", "--dry_run", "--output=none.parquet", *given]) == 0
    assert "sample:   the first 200 records" in capsys.readouterr().out
    assert main(["collect", *given[:-1], "--output=c.parquet", "--requirements=people.csv"]) == 2
    with open("people.csv", "w") as file:
        file.write("user,window,epsilon\n" + "".join(f"u{i},3,1\n" for i in range(40)))
    assert main(["collect", *given[:-1], "--output=c.parquet", "--requirements=people.csv"]) == 0
    assert main(["evaluate", *given, "--mechanisms=uniform", "--seeds=1", "--output=e.csv"]) == 0
    assert "trips" in Path("e.csv").read_text()
    assert main(["audit", *given, "--mechanism=uniform", "--runs=20"]) == 0
    record = ["--statistic=count", "--budget=inverse:3", "--value_max=9", "--epsilon_max=1"]
    trips.fill(TABLE, {"n": "INTEGER"}, [(i,) for i in range(9)])
    columns = ["--value_column=n", "--output=r.csv"]
    assert main(["per-record", f"--input={INPUT}", *record, *columns]) == 0


COLUMNS = {
    "text": "STRING",
    "whole": "INTEGER",
    "number": "FLOAT",
    "exact": "NUMERIC",
    "large": "BIGNUMERIC",
    "truth": "BOOLEAN",
    "at": "TIMESTAMP",
    "clock": "DATETIME",
    "day": "DATE",
}


def test_types_are_those_of_the_table_whatever_its_rows_hold(bigquery):
    full = (
        *("7", 1 << 62, float("-inf"), Decimal("1.5"), Decimal("2.25"), True),
        *(NOON, dt.datetime(2024, 5, 1, 12), dt.date(2024, 5, 1)),
    )
    for some in ([full], [(None,) * 9], [full, (None,) * 9]):
        bigquery.fill(TABLE, COLUMNS, some)
        (batch, letters), *_ = read_events(INPUT, list(COLUMNS))
        assert letters is None
        assert [str(field.type) for field in batch.schema][:9] == [
            *("string", "int64", "double", "decimal128(38, 9)", "decimal256(76, 38)", "bool"),
            *("timestamp[us, tz=UTC]", "timestamp[us]", "date32[day]"),
        ]
        expected = [dict(zip(COLUMNS, row, strict=True)) for row in some]
        assert batch.drop_columns(["__row__"]).to_pylist() == expected
        assert batch["__row__"].to_pylist() == list(range(len(some)))


@pytest.mark.parametrize("column", COLUMNS)
def test_a_column_of_each_type_is_a_user_or_a_value_as_in_parquet(bigquery, column):
    full = {
        **{"text": "7", "whole": 7, "number": 7.0, "exact": Decimal("7"), "large": Decimal("7")},
        **{"truth": True, "at": NOON, "clock": NOON.replace(tzinfo=None), "day": NOON.date()},
    }
    bigquery.fill(TABLE, {column: COLUMNS[column], "time": "TIMESTAMP"}, [(full[column], NOON)] * 9)
    batch, _ = next(read_events(INPUT, [column, "time"]))
    table = pa.Table.from_batches([batch.drop_columns(["__row__"])])
    options = {
        **{"user": column, "value": column, "time": "time", "domain": ["7", "true", "2024-05-01"]},
        **{"default_requirement": (1, 1, 9), "slot": "1d", "start": "2024-05-01"},
        "max_rejected": 1,
    }
    outcomes = []
    for data in (INPUT, table):
        try:
            made = sv.release(data, **arguments(options))
            outcomes.append([release.counts.tolist() for release in made["count"]])
        except ConfigurationError as error:
            outcomes.append(str(error).removeprefix(f"{INPUT}: ").removeprefix("data: "))
    assert outcomes[0] == outcomes[1]


def test_one_record_does_not_change_how_others_are_read(trips, truth):
    trips.rows[TABLE] += [
        {"user": None, "place": "cafe", "time": NOON},
        {"user": "u1", "place": "elsewhere", "time": NOON},
        {"user": "u1", "place": "cafe", "time": None},
    ]
    assert main(flags()) == 0
    assert released("table.parquet") == truth
    letters = read_table("rejected-table.parquet").to_pylist()
    assert [letter["row"] for letter in letters] == [200, 201, 202]
    assert {letter["source"] for letter in letters} == {INPUT}


@pytest.mark.parametrize("place", [INPUT, QUERY], ids=["table", "query"])
def test_what_is_read_is_one_snapshot(trips, truth, place, caplog, monkeypatch):
    """Rows that come while it is read are not of it, and it is said as of when it was read."""
    trips.page = 7

    def changing(method, path, body, answer=trips.answer):
        if "/data" in path:  # the pages of what the query job found
            trips.rows[TABLE] = trips.rows[TABLE][50:]
        return answer(method, path, body)

    monkeypatch.setattr(trips, "answer", changing)
    with caplog.at_level(logging.INFO, "streamveil"):
        assert main(flags(place)) == 0
    assert released("table.parquet") == truth
    assert "read as of 2024-05-01T21:46:40Z, 200 rows, by the job" in caplog.text


def test_a_table_is_read_as_it_was(trips, truth):
    trips.earlier[TABLE] = (1714600000_000000, trips.rows[TABLE])
    trips.rows[TABLE] = trips.rows[TABLE][:20]
    assert main(flags(f"{INPUT}?as_of=2024-05-01T20:00:00Z")) == 0
    assert released("table.parquet") == truth
    assert main(flags(f"{INPUT}?as_of=2024-05-03", "later.parquet")) == 0
    assert released("later.parquet") != truth


def test_parts_are_whole(bigquery, monkeypatch):
    from streamveil.io import bigquery_tables

    monkeypatch.setattr(bigquery_tables, "_PART_ROWS", 64)
    bigquery.page = 10
    bigquery.fill(TABLE, {"n": "INTEGER"}, [(i,) for i in range(200)])
    batches = [batch for batch, _ in read_events(INPUT, ["n"])]
    assert [n for batch in batches for n in batch["n"].to_pylist()] == list(range(200))
    assert [n for batch in batches for n in batch["__row__"].to_pylist()] == list(range(200))


@pytest.mark.parametrize(
    ("place", "why"),
    [
        (
            "bigquery:trips",
            ("is neither a BigQuery table nor a query: write bigquery:PROJECT.DATASET"),
        ),
        ("bigquery:p.d.t?since=1", "is neither a BigQuery table nor a query"),
        (f"{INPUT}?as_of=noon", "as_of: time 'noon' is not ISO 8601"),
        ("bigquery:a-project.stats.none", "Not found: Table a-project.stats.none: check the name"),
        (f"bigquery:SELECT usr FROM `{TABLE}`", "BigQuery says: "),
        (
            f"bigquery:SELECT user, place FROM `{TABLE}`",
            "what the query gives has no column 'time'",
        ),
        ("bigquery:DROP TABLE x", "is neither a BigQuery table nor a query"),
    ],
)
def test_a_place_that_is_wrong_is_one_line(trips, capsys, place, why):
    assert main(flags(place)) == 2
    (said,) = capsys.readouterr().err.splitlines()[-1:]
    assert why in said
    assert len(said) < 400


@pytest.mark.parametrize(
    ("kind", "mode", "why"),
    [
        ("RECORD", "NULLABLE", "of type RECORD, which is not read: give a query that makes text"),
        ("STRING", "REPEATED", "of type REPEATED STRING"),
        ("BYTES", "NULLABLE", "CAST(place AS STRING) AS place"),
        ("GEOGRAPHY", "NULLABLE", "of type GEOGRAPHY"),
    ],
)
def test_a_column_that_is_not_read_is_refused(bigquery, kind, mode, why):
    types = {"user": "STRING", "place": kind}
    bigquery.fill(TABLE, types, [], modes={"place": mode})
    check_events(INPUT, ["user"])
    with pytest.raises(ConfigurationError, match="bigquery:SELECT") as refusal:
        check_events(INPUT, ["user", "place"])
    assert why in str(refusal.value)


@pytest.mark.parametrize(
    "changed",
    [
        {"requirements": INPUT, "requirement_columns": "user,window,epsilon"},
        {"domain": INPUT},
        {"rejected": INPUT},
        {"summary": INPUT},
        {"card": INPUT},
        {"requirement_changes": INPUT},
        {"output": INPUT},
        {"delimiter": ";"},
        {"state": "state"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_where_it_is_not_taken_it_is_refused_in_a_line(trips, capsys, changed):
    assert main(flags(**changed)) == 2
    (said,) = capsys.readouterr().err.splitlines()[-1:]
    assert "bigquery:a-project.stats.trips" in said
