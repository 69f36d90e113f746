import csv
import datetime as dt
import json
import math
import os
import stat
import subprocess
import sys

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.transforms.window import FixedWindows

from streamveil.io import WriteTable, check_output, read_table, write_table
from streamveil.mechanisms.core.records import ConfigurationError

FORMATS = ("parquet", "avro", "csv", "jsonl", "json", "ndjson")
UTC = dt.timezone.utc
SCHEMA = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False),
        pa.field("x", pa.float64()),
        pa.field("text", pa.string()),
        pa.field("time", pa.timestamp("us", tz="UTC")),
        pa.field("list", pa.list_(pa.int64())),
        pa.field("map", pa.map_(pa.string(), pa.float64())),
    ],
    metadata={"streamveil.test": "kept"},
)
ROWS = [
    {
        "n": n,
        "x": n / 4,
        "text": ['a "quoted", text', "", None, "two\nlines"][n % 4],
        "time": dt.datetime(2024, 3, 31, n, tzinfo=UTC) + dt.timedelta(microseconds=n),
        "list": [n, -n],
        "map": None if n == 4 else [(f"k{i}", i / 2) for i in range(n % 3)],
    }
    for n in range(10)
]


def batches():
    return [pa.RecordBatch.from_pylist(ROWS[i : i + 3], SCHEMA) for i in (6, 0, 3, 9)]


def names_in(path):
    return sorted(entry.name for entry in path.iterdir())


def test_every_format_gives_back_the_rows_sorted(tmp_path, new_pipeline):
    with new_pipeline() as pipeline:
        source = pipeline | beam.Create(batches())
        for kind in FORMATS:
            path = str(tmp_path / f"out.{kind}")
            _ = source | kind >> WriteTable(path, SCHEMA, sort_by="n")
    assert names_in(tmp_path) == sorted(f"out.{kind}" for kind in FORMATS)
    for kind in FORMATS:
        table = read_table(str(tmp_path / f"out.{kind}"))
        if kind == "csv":  # an object might be meant as text, as in the dead letters
            assert table["map"].to_pylist()[1:5] == [
                '{"k0":0.0}',
                '{"k0":0.0,"k1":0.5}',
                "{}",
                None,
            ]
            maps = pa.array([row["map"] for row in ROWS], SCHEMA.field("map").type)
            table = table.set_column(SCHEMA.get_field_index("map"), "map", maps)
        assert table.to_pylist() == ROWS
        assert table.schema.types == SCHEMA.types
    for kind in ("parquet", "avro"):
        assert read_table(str(tmp_path / f"out.{kind}")).schema.metadata == SCHEMA.metadata
    assert pq.read_metadata(tmp_path / "out.parquet").num_row_groups == 1
    with (tmp_path / "out.csv").open(newline="") as handle:
        rows = list(csv.reader(handle))
    assert rows[0] == SCHEMA.names
    assert rows[2] == ["1", "0.25", "", "2024-03-31T01:00:00.000001Z", "[1,-1]", '{"k0":0.0}']
    with (tmp_path / "out.jsonl").open() as handle:
        assert json.loads(handle.readline())["time"] == "2024-03-31T00:00:00Z"


def test_the_path_comes_when_the_file_is_there_and_empty_is_a_table_too(tmp_path, new_pipeline):
    def check(path):
        assert read_table(path).num_rows == 0

    with new_pipeline() as pipeline:
        for kind in FORMATS:
            source = pipeline | f"None {kind}" >> beam.Create([])
            path = str(tmp_path / f"out.{kind}")
            done = source | kind >> WriteTable(path, SCHEMA)
            _ = done | f"Check {kind}" >> beam.Map(check)
    assert len(names_in(tmp_path)) == len(FORMATS)
    assert (tmp_path / "out.csv").read_text() == "n,x,text,time,list,map\n"
    for kind in ("parquet", "avro"):
        schema = read_table(str(tmp_path / f"out.{kind}")).schema
        assert (schema.types, schema.metadata) == (SCHEMA.types, SCHEMA.metadata)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_failing_write_leaves_nothing_and_a_second_one_replaces(tmp_path, kind):
    path = tmp_path / f"out.{kind}"

    def failing():
        yield batches()[0]
        raise RuntimeError("lost")

    with pytest.raises(RuntimeError, match="lost"):
        write_table(str(path), SCHEMA, failing())
    with pytest.raises(TypeError, match="schema"):
        write_table(str(path), SCHEMA, [pa.record_batch({"n": [1]})])
    assert names_in(tmp_path) == []
    for _ in range(2):
        write_table(str(path), SCHEMA, batches()[1:2])
        rows = read_table(str(path)).drop_columns("map").to_pylist()
        assert rows == [{k: v for k, v in row.items() if k != "map"} for row in ROWS[:3]]
    assert names_in(tmp_path) == [path.name]


# It is not even readable while it is written, before it has its name.
@pytest.mark.parametrize("umask", [0o000, 0o022])
@pytest.mark.parametrize("kind", FORMATS)
def test_a_private_file_was_never_readable_by_others(tmp_path, kind, umask):
    modes = set()

    def look():
        modes.update(stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir())

    def watched():
        yield from batches()
        look()

    path = tmp_path / f"out.{kind}"
    path.touch(0o600)
    before = os.umask(umask)
    try:
        write_table(str(path), SCHEMA, watched(), private=True)
        look()
    finally:
        os.umask(before)
    assert modes == {0o600}
    assert names_in(tmp_path) == [path.name]
    write_table(str(path), SCHEMA, batches())
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~before  # others are as before


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="Linux counts threads there")
@pytest.mark.parametrize(("kind", "most"), [("csv", 2), ("parquet", 0), ("jsonl", 0)])
def test_to_read_a_table_leaves_no_thread_that_holds_its_file(tmp_path, kind, most):
    path = str(tmp_path / f"table.{kind}")
    schema = pa.schema([(f"n{i}", pa.int64()) for i in range(8)])
    write_table(path, schema, [pa.record_batch([[1, 2]] * 8, schema=schema)])
    program = """if True:
        import os, sys
        import pyarrow as pa
        from streamveil.io import read_table
        pa.set_cpu_count(8)
        before = set(os.listdir("/proc/self/task"))
        assert read_table(sys.argv[1]).num_rows == 2
        print(len(set(os.listdir("/proc/self/task")) - before))"""
    done = subprocess.run(
        [sys.executable, "-c", program, path], capture_output=True, text=True, check=True
    )
    # Of CSV one thread reads ahead in a copy in memory, and one waits for signals.
    assert int(done.stdout) <= most


def test_what_json_lacks_becomes_null(tmp_path):
    schema = pa.schema([("x", pa.float64()), ("list", pa.list_(pa.float64()))])
    batch = pa.RecordBatch.from_pylist([{"x": math.nan, "list": [1.0, math.inf]}], schema)
    write_table(str(tmp_path / "out.jsonl"), schema, [batch])
    assert (tmp_path / "out.jsonl").read_text() == '{"x":null,"list":[1.0,null]}\n'


def test_outputs_that_are_refused(tmp_path):
    (tmp_path / "there.csv").write_text("x")
    check_output(str(tmp_path / "new.csv"))
    for name, words in {
        "there.csv": "exists already .* delete it",
        "no/such/x.csv": "not a directory",
        "x.txt": r"known by this name.*\.parquet",
        "x.csv.gz": "known by this name",
    }.items():
        with pytest.raises(ConfigurationError, match=words):
            check_output(str(tmp_path / name))
    with pytest.raises(ConfigurationError, match="cannot be looked up"):
        check_output("nowhere://bucket/x.csv")
    with pytest.raises(ConfigurationError, match="known by this name"):
        WriteTable("x.txt", SCHEMA)
    with pytest.raises(ConfigurationError, match="no column 'm'"):
        WriteTable("x.csv", SCHEMA, sort_by="m")
    with pytest.raises(ConfigurationError, match="is not a valid name in Avro"):
        write_table(str(tmp_path / "x.avro"), pa.schema([("a b", pa.int64())]), [])
    for kind in (pa.duration("s"), pa.map_(pa.int64(), pa.float64())):
        with pytest.raises(ConfigurationError, match="cannot be written to Avro"):
            write_table(str(tmp_path / "x.avro"), pa.schema([("a", kind)]), [])
    assert names_in(tmp_path) == ["there.csv"]


# A runner may go on when a step has failed, without what that step was given.
@pytest.mark.slow
@pytest.mark.parametrize("rows", [0, 10])
@pytest.mark.parametrize("number", [None, 0, 9, 10, 11])
@pytest.mark.parametrize("sort_by", [None, "n"])
def test_a_table_of_which_rows_are_missing_is_not_written(tmp_path, rows, number, sort_by):
    path = str(tmp_path / "out.csv")

    def write():
        with beam.Pipeline("FnApiRunner") as pipeline:
            source = pipeline | beam.Create(batches() if rows else [])
            numbers = pipeline | "Number" >> beam.Create([] if number is None else [number])
            _ = (source, numbers) | WriteTable(path, SCHEMA, sort_by=sort_by)

    if number == rows or (number is None and not rows):
        write()
    else:
        should = "an unknown number" if number is None else number
        with pytest.raises(
            Exception, match=f"{rows} results arrived .* {should} were expected: an earlier step"
        ):
            write()
    assert names_in(tmp_path) == (["out.csv"] if number == rows else [])


def test_only_one_bounded_table_can_be_written():
    pipeline = beam.Pipeline()
    source = pipeline | beam.Create(batches())
    with pytest.raises(ValueError, match="windowed"):
        source | beam.WindowInto(FixedWindows(1)) | WriteTable("x.csv", SCHEMA)
    source.is_bounded = False
    with pytest.raises(ValueError, match="unbounded"):
        source | "Unbounded" >> WriteTable("x.csv", SCHEMA)
