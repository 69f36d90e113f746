"""`streamveil release` on files of every format: the same events give the same counts."""

import datetime as dt
import json

import fastavro
import pandas as pd
import pyarrow as pa
import pytest

FORMATS = ("csv", "jsonl", "parquet", "avro")
START = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)
AVRO_TYPES = {bool: "boolean", str: "string", int: "long", float: "double"}


def written(job, rows, kind, name="typed"):
    """Rows as a file of a format, as its most common writer makes it."""
    path = job.path(f"{name}.{kind}")
    frame = pd.DataFrame(rows)
    if kind == "csv":
        frame.to_csv(path, index=False)
    elif kind == "jsonl":
        job.write(f"{name}.jsonl", "\n".join(map(json.dumps, rows)) + "\n")
    elif kind == "parquet":
        job.write(f"{name}.parquet", pa.Table.from_pylist(rows))
    else:
        kinds = {
            key: AVRO_TYPES[type(next(row[key] for row in rows if row[key] is not None))]
            for key in rows[0]
        }
        fields = [{"name": key, "type": ["null", each]} for key, each in kinds.items()]
        with open(path, "wb") as file:
            fastavro.writer(file, {"type": "record", "name": "r", "fields": fields}, rows)
    return path


def visits(number, **columns):
    """Rows of one user each, all on the first day."""
    return [
        {"user": f"u{row}", "time": "2024-01-01T10:00:00Z"}
        | {name: of(row) for name, of in columns.items()}
        for row in range(number)
    ]


def crowd(users):
    """Everybody by default, with noise that is none."""
    return {"requirements": None, "default_requirement": f"1,4000,{users}", "start": "2024-01-01"}


def answered(job, name):
    """The first count of a question, exactly."""
    return round(job.rows(f"out/{name}.parquet")[0]["value"])


# ---- booleans -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FORMATS)
def test_booleans_are_bins_in_every_format(job, kind):
    path = written(job, visits(9, value=lambda row: row % 3 == 0), kind)
    job.done(input=path, domain="True,false", **crowd(9))
    assert job.counts() == {START: [3, 6]}


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("where", ["false", '"False"', "[false]"])
def test_conditions_on_booleans_in_every_format(job, kind, where):
    rows = visits(9, robot=lambda row: row % 3 == 0, km=lambda row: row)
    asked = job.write(
        "q.yaml",
        "base_slot: 1d\nquestions:\n"
        f"  - {{name: people, where: {{robot: {where}}}}}\n"
        "  - {name: all}\n",
    )
    flags = dict.fromkeys(("value_column", "domain", "slot"))
    path = written(job, rows, kind)
    job.done(input=path, questions=asked, output=job.path("out"), **(crowd(9) | flags))
    assert answered(job, "people") == 6
    assert answered(job, "all") == 9
