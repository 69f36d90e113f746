import gzip
import json
import logging
import random

import apache_beam as beam
import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamveil.engine.messages import REJECTED
from streamveil.io import (
    UNREADABLE,
    CsvDialect,
    ReadEvents,
    check_events,
    delimited,
    lines,
    match_files,
    parquet,
    read_events,
    read_part,
    split_file,
    write_table,
)
from streamveil.io.events import UNPARSABLE, file_outputs, lenient_file_outputs, lenient_outputs
from streamveil.mechanisms.core.event_tallies import EventTally
from streamveil.mechanisms.core.records import LOST_METADATA, ConfigurationError, MachineFault

COLUMNS = ("user", "value")
ROWS = [(f"u{i % 7}", ["a", "b,c", 'd"e', "line\nbreak", "é", ""][i % 6]) for i in range(500)]
FORMATS = ("parquet", "avro", "csv", "jsonl")


def table_of(rows=ROWS):
    users, values = zip(*rows, strict=True)
    return pa.table({"noise": list(range(len(rows))), "user": users, "value": values})


def write(path, table=None):
    table = table_of() if table is None else table
    write_table(str(path), table.schema, table.to_batches())
    return str(path)


def read(path, columns=COLUMNS):
    """Rows as (row, *columns), the batches, and the rejected lines of one file."""
    rejected, batches = [], []
    for part in split_file(str(path), columns):
        batches += read_part(part, columns, lambda *line: rejected.append(line))
    rows = [
        (row["__row__"], *(row[name] for name in columns))
        for batch in batches
        for row in batch.to_pylist()
    ]
    return rows, batches, rejected


def run(pipeline, pattern, columns=COLUMNS):
    """What the PTransform gives: sets of good rows and of rejected ones."""
    good, bad = [], []
    with pipeline:
        events = pipeline | ReadEvents(pattern, columns=columns)
        # In-process workers: what is appended here is seen below.
        _ = events.batches | "Good" >> beam.Map(_append, Sink.of("good"))
        _ = events.rejected | "Bad" >> beam.Map(_append, Sink.of("bad"))
    good, bad = Sink.take("good"), Sink.take("bad")
    return good, bad


class Sink:
    kept: dict[str, list] = {}

    @classmethod
    def of(cls, name):
        cls.kept[name] = []
        return name

    @classmethod
    def take(cls, name):
        return cls.kept.pop(name)


def _append(batch, name):
    Sink.kept[name].append(batch)


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(lines, "BLOCK_BYTES", 100)


def with_lines(rows):
    return [(number, *row) for number, row in rows]


@pytest.mark.parametrize("silent", [False, True])
def test_batches_that_are_counted_add_up(tmp_path, new_pipeline, silent):
    """Where one with rows is missing, those that are there say so."""
    write(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("user,value\nu1,a\none,too,many\nu2,b\n")
    (tmp_path / "c.csv").write_text("user,value\n")
    found = {}
    for counted in (False, True):
        with new_pipeline() as pipeline:
            source = ReadEvents(
                str(tmp_path / "*.csv"), columns=COLUMNS, silent=silent, counted=counted
            )
            _ = (pipeline | source).batches | beam.Map(_append, Sink.of(counted))
        found[counted] = Sink.take(counted)
    tallies = [EventTally.of_bytes(batch.schema.metadata[LOST_METADATA]) for batch in found[True]]
    assert sum(one.messages for one in tallies) == 0
    pairs = zip(found[True], tallies, strict=True)
    assert {one.messages for batch, one in pairs if batch.num_rows} == {-1}
    assert sum(one.read for one in tallies) == (0 if silent else 1)
    rows = [
        sorted(str(row) for batch in found[counted] for row in batch.to_pylist())
        for counted in (False, True)
    ]
    assert rows[0] == rows[1]
    assert len(rows[0]) == len(ROWS) + 2


@pytest.mark.parametrize("name", [f"events.{f}" for f in FORMATS])
def test_every_format_gives_the_rows_written(tmp_path, name):
    path = write(tmp_path / name)
    check_events(path, COLUMNS)
    rows, batches, rejected = read(path)
    assert rejected == []
    assert [row[1:] for row in rows] == ROWS
    assert batches[0].schema.names == ["user", "value", "__row__"]
    assert batches[0].schema.field("__row__").type == pa.int64()
    assert batches[0].schema.metadata == {b"streamveil.source": path.encode()}
    if name.endswith(("parquet", "avro")):
        assert [row[0] for row in rows] == list(range(len(ROWS)))
    else:  # a value with a line break takes two lines of a CSV file
        wide = name.endswith("csv")
        number, expected = (2, []) if wide else (1, [])
        for _, value in ROWS:
            expected.append(number)
            number += 1 + (wide and "\n" in value)
        assert [row[0] for row in rows] == expected


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_small_blocks_and_gzip_change_nothing(tmp_path, kind, small_blocks):
    path = write(tmp_path / f"events.{kind}")
    zipped = tmp_path / f"zipped.{kind}.gz"
    zipped.write_bytes(gzip.compress((tmp_path / f"events.{kind}").read_bytes()))
    rows, batches, rejected = read(zipped)
    assert rows == read(path)[0]
    assert [row[1:] for row in rows] == ROWS
    assert rejected == []
    assert len(batches) > 10


def test_the_transform_reads_all_files_and_logs_progress(tmp_path, caplog, new_pipeline):
    for kind in FORMATS:
        write(tmp_path / f"part.{kind}")
    (tmp_path / "bad.csv").write_bytes(b"value,user\n1,x\n2\n\xff,y\n3,z\n")
    pattern = [str(tmp_path / "part.*"), str(tmp_path / "*.csv")]
    with caplog.at_level(logging.INFO, "streamveil.progress"):
        good, bad = run(new_pipeline(), pattern)
    rows = sorted((r["user"], r["value"]) for batch in good for r in batch.to_pylist())
    assert rows == sorted(ROWS * 4 + [("x", "1"), ("z", "3")])
    assert pa.Table.from_batches(bad).to_pylist() == [
        {
            "source": str(tmp_path / "bad.csv"),
            "row": row,
            "reason": reason,
            "detail": detail,
            "record": record,
        }
        for row, reason, detail, record in [
            (3, "unparsable", "1 field where the header has 2", "2"),
            (4, "not UTF-8", "not UTF-8", "\ufffd,y"),
        ]
    ]
    logged = [r for r in caplog.records if r.name == "streamveil.progress"]
    assert sum(r.events for r in logged) == len(rows) + 2


# Parquet


def test_row_groups_are_split_joined_and_numbered(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "BATCH_ROWS", 100)
    path = str(tmp_path / "events.parquet")
    with pq.ParquetWriter(path, table_of().schema) as writer:
        start = 0
        for size in (30, 30, 30, 250, 10, 150):
            writer.write_table(table_of().slice(start, size))
            start += size
    parts = split_file(path, COLUMNS)
    assert [(p.groups, p.first_row) for p in parts] == [
        ((0, 1, 2), 0),
        ((3,), 90),
        ((4,), 340),
        ((5,), 350),
    ]
    rows, batches, _ = read(path)
    assert rows == [(i, *row) for i, row in enumerate(ROWS)]
    assert [b.num_rows for b in batches] == [90, 100, 100, 50, 10, 100, 50]


def test_dictionaries_only_where_values_repeat(tmp_path):
    table = pa.table(
        {
            "user": [f"user-{i}" for i in range(20_000)],
            "value": [f"value-{i % 9}" for i in range(20_000)],
            "number": range(20_000),
        }
    )
    path = write(tmp_path / "events.parquet", table)
    columns = ("number", "value", "user")
    assert [p.dictionaries for p in split_file(path, columns)] == [("value",)]
    (batch,) = read(path, columns)[1]
    assert batch.schema.types[:3] == [
        pa.int64(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.string(),
    ]
    assert batch.select(columns).to_pylist() == table.select(columns).to_pylist()


def test_a_table_without_rows_gives_none(tmp_path):
    for kind in ("parquet", "avro", "csv"):
        path = write(tmp_path / f"none.{kind}", table_of().slice(0, 0))
        check_events(path, COLUMNS)
        assert read(path)[0] == []


# CSV


def csv(tmp_path, data):
    path = tmp_path / "events.csv"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return read(path)


@pytest.mark.parametrize("block", [1 << 20, 8])
def test_csv_lines_nulls_and_bad_rows(tmp_path, monkeypatch, block):
    monkeypatch.setattr(lines, "BLOCK_BYTES", block)
    rows, _, rejected = csv(
        tmp_path,
        b"\xef\xbb\xbfvalue,x,user,x\r\n1,,u,\r\n\r\n2,3\r\n"
        b',,"",4\n"a\n\nb",,"say ""hi""",\n5,6,7,8,9\n\n\xff,,u,\n6,,5" pipe,\nz,,007,',
    )
    assert rows == [
        (2, "u", "1"),
        (5, "", None),
        (6, 'say "hi"', "a\n\nb"),
        (12, '5" pipe', "6"),
        (13, "007", "z"),
    ]
    assert rejected == [
        (4, "2 fields where the header has 4", b"2,3\r\n"),
        (9, "5 fields where the header has 4", b"5,6,7,8,9\n"),
        (11, "not UTF-8", b"\xff,,u,\n"),
    ]


def test_csv_with_an_open_quote_loses_one_line(tmp_path):
    rows, _, rejected = csv(tmp_path, 'user,value\na,1\nb,"2\nc,3\nd,4\n')
    assert rows == [(2, "a", "1"), (4, "c", "3"), (5, "d", "4")]
    assert rejected == [(3, "a quoted field does not end", b'b,"2\n')]


def test_csv_quotes_that_do_not_close_swallow_nobody(tmp_path):
    rows = [f"u{i},A{i}" for i in range(2000)]
    stray = ['u,"A', 'x,"A', '"y,B', 'z,"A']
    for index, line in enumerate(stray):
        rows.insert(200 * index + 7, line)
    rows.insert(950, 'q,"p\nu,A"')
    found, _, rejected = csv(tmp_path, "\n".join(["user,value", *rows]) + "\n")
    assert [user for _, user, _ in found if user != "q"] == [f"u{i}" for i in range(2000)]
    assert [value for _, user, value in found if user == "q"] == ["p\nu,A"]
    assert [line[1:] for line in rejected] == [
        ("a quoted field does not end", f"{line}\n".encode()) for line in stray
    ]


@pytest.mark.parametrize("block", [1 << 20, 64, 9])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("broken", ["", 'x,"stray', "only one"])
def test_csv_lines_of_a_quoted_field_are_no_rows(tmp_path, monkeypatch, caplog, block, end, broken):
    """A note forged events of other people, by lines that look like theirs."""
    monkeypatch.setattr(lines, "BLOCK_BYTES", block)
    note = end.join(['dear ""all""', "u2,B", "u3,B", "", "u4,C", 'u5,""D""', ""])
    text = end.join(["user,value", "u0,A", f'u1,"{note}"', "u6,A", broken, '"u7","A"', "u8,"])
    rows, _, rejected = csv(tmp_path, text)
    assert [row[1:] for row in rows] == [
        ("u0", "A"),
        ("u1", note.replace('""', '"')),
        ("u6", "A"),
        ("u7", "A"),
        ("u8", None),
    ]
    assert [row[0] for row in rows] == [2, 3, 10, 12, 13]
    assert [line[0] for line in rejected] == ([11] if broken else [])
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 1
    assert (
        "line 3 begins a quoted field that goes on to line 9; 3 of the lines in it" in messages[0]
    )


def test_csv_a_long_note_forges_no_rows_either(tmp_path):
    """Above 1 MiB the lines of a quoted field were rows again."""
    rows, _, rejected = csv(tmp_path, 'user,value\na,"' + "u1,B\n" * 300_000 + 'end"\nb,1\n')
    assert [(user, value[-3:]) for _, user, value in rows] == [("a", "end"), ("b", "1")]
    assert rejected == []


def test_csv_names_of_columns_may_go_over_lines(tmp_path):
    rows, _, rejected = csv(tmp_path, '"a\nnote",user,value\nx,u1,A\n"y\nz",u2,B\n')
    assert rows == [(3, "u1", "A"), (4, "u2", "B")]
    assert rejected == []


@pytest.mark.parametrize("other", ["c,3", '"c",3', '"c","3"', '"c\nd",3', '"c,"",",3'])
def test_csv_one_stray_quote_before_rows_of_every_writing(tmp_path, other):
    text = f"user,value\na,1\n{other}\n{other}\nz,9\n"
    want = [row[1:] for row in csv(tmp_path, text)[0]]
    assert len(want) == 4
    stray = text.replace("a,1\n", 'a,1\nb,"2\n')
    rows, _, rejected = csv(tmp_path, stray)
    assert [row[1:] for row in rows] == want
    assert rejected == [(3, "a quoted field does not end", b'b,"2\n')]


def test_csv_long_fields_whatever_else_is_there(tmp_path):
    """Above 131,072 characters a row was read or not, by what else was in its block."""
    long = "x" * 200_000
    for other in ("b,2", 'b,"2', 'b,"2\n3"', "b,\xff"):
        text = f'user,value\na,{long}\n{other}\nc,"{long}"\n'
        rows, _, _ = csv(tmp_path, text.encode("latin-1"))
        assert {("a", long), ("c", long)} <= {row[1:] for row in rows}


def test_csv_a_row_over_too_many_lines_is_one_bad_line(tmp_path, monkeypatch):
    monkeypatch.setattr(delimited, "MAX_BYTES_OVER_LINES", 1000)
    good, long = '"' + "p\n" * 300 + '"', '"' + "p\n" * 600 + '"'
    rows, _, rejected = csv(tmp_path, f"user,value\na,{good}\nb,{long}\nc,3\n")
    assert [row[1] for row in rows] == ["a", "c"]
    assert rejected[0][1:] == ("a quoted field does not end", b'b,"p\n')


def test_csv_with_line_ends_of_two_returns(tmp_path):
    rows, _, rejected = csv(tmp_path, 'user,value\r\r\na,1\r\r\nb,"2\n3"\r\r\n')
    assert [row[1:] for row in rows] == [("a", "1"), ("b", "2\n3")]
    assert rejected == []


@pytest.mark.parametrize("delimiter", [";", "\t", "|", " ", "^", "]"])
def test_csv_of_another_delimiter_without_a_header(tmp_path, delimiter):
    path = tmp_path / "u.data"
    lines = [["a", "1,5", "x"], ["b", f'"{delimiter}"', "y"], ["c", "3"], ["d", '"4\n5"', "z"]]
    path.write_text("\n".join(map(delimiter.join, lines)) + "\n")
    dialect = CsvDialect(delimiter, ("user", "value", "more"), any_name=True)
    check_events(str(path), COLUMNS, dialect=dialect)
    ((batch, rejected),) = read_events(str(path), COLUMNS, dialect=dialect)
    assert batch.column("user").to_pylist() == ["a", "b", "d"]
    assert batch.column("value").to_pylist() == ["1,5", delimiter, "4\n5"]
    assert batch.column("__row__").to_pylist() == [1, 2, 4]
    assert rejected.column("detail").to_pylist() == ["2 fields where the header has 3"]


def test_csv_with_a_bare_carriage_return_in_a_row(tmp_path):
    rows, _, rejected = csv(tmp_path, "user,value\na,1\nb\r,2\nc,3\n")
    assert rows == [(2, "a", "1"), (4, "c", "3")]
    assert [line[0] for line in rejected] == [3]


def test_csv_agrees_with_itself_whatever_the_blocks(tmp_path, monkeypatch):
    source = random.Random(1)
    pieces = ["a", "1", ",", ",", ",", "\n", "\n", "\r\n", '"x"', '"p\nq"', "é", "\n\n"]
    for _ in range(30):
        text = "user,value\n" + "".join(source.choices(pieces, k=60))
        monkeypatch.setattr(lines, "BLOCK_BYTES", 1 << 20)
        rows, _, rejected = csv(tmp_path, text)
        monkeypatch.setattr(lines, "BLOCK_BYTES", 9)
        again, _, rejected_again = csv(tmp_path, text)
        assert (rows, rejected) == (again, rejected_again)


# JSON Lines


def jsonl(tmp_path, *rows, columns=COLUMNS):
    path = tmp_path / "events.jsonl"
    texts = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    path.write_bytes(b"\n".join(texts))
    return read(path, columns)


def test_json_columns_are_text(tmp_path):
    rows, batches, rejected = jsonl(
        tmp_path,
        {"user": 1, "value": 1, "time": "2024-01-01 00:00:00", "other": [1, {"x": 2}]},
        b"",
        {"user": 2, "value": 2.5, "time": "2024-01-01", "other": "of another type"},
        {"user": None},
        columns=("time", "user", "value", "absent"),
    )
    assert rejected == []
    assert set(batches[0].schema.types[:4]) == {pa.string()}
    assert rows == [
        (1, "2024-01-01 00:00:00", "1", "1", None),
        (3, "2024-01-01", "2", "2.5", None),
        (4, None, None, None, None),
    ]


def test_json_with_bad_lines_and_mixed_types(tmp_path):
    bad = [b"oops", b"[1]", b'{"user": "\xff"}', b'{"user": "\\ud800"}', b'{"user": true}']
    bad += [b'{"value": [1]}', b'{"user": {}}', b'{"user": 1', b'"text"', b"[" * 5000]
    rows, _, rejected = jsonl(
        tmp_path, {"user": "a", "value": 1}, *bad, b"  ", {"user": 7, "value": 2**70}
    )
    assert rows == [(1, "a", "1"), (6, "true", None), (13, "7", str(2**70))]
    assert [line[0] for line in rejected] == [2, 3, 4, 5, *range(7, 12)]
    assert "not JSON" in rejected[0][1]
    assert rejected[1][1] == "not a JSON object"
    assert "UTF-8" in rejected[2][1]
    assert rejected[4][1] == "'value' is a list, not a string, a number or a boolean"


def test_json_whole_numbers_among_strings_have_one_text(tmp_path):
    users = ["7", 7, 7.0, b"7.00", b"70e-1", "7.0", 7.5, -0.0, 1e20, 10**20, 2**1100, None]
    lines = (
        b'{"user": %s}' % user if isinstance(user, bytes) else {"user": user} for user in users
    )
    rows, _, rejected = jsonl(tmp_path, *lines)
    assert rejected == []
    big = str(10**20)
    assert [row[1] for row in rows] == [
        *["7"] * 5, "7.0", "7.5", "0", big, big, str(2**1100), None
    ]  # fmt: skip


def test_json_rows_do_not_hang_on_their_block(tmp_path, small_blocks):
    values = [*range(20), *[0.5] * 20, *["x"] * 20, *range(20)]
    rows, batches, rejected = jsonl(tmp_path, *({"user": "u", "value": v} for v in values))
    assert rejected == []
    assert [row[2] for row in rows] == list(map(str, values))
    assert [row[0] for row in rows] == list(range(1, 81))
    assert len(batches) > 10


def test_a_last_line_of_two_bytes_is_not_blank(tmp_path):
    """A carriage return and a letter were lost without a word."""
    (tmp_path / "x.csv").write_bytes(b"user,value\n\r\na,b\n\n\rX")
    ((batch, rejected),) = read_events(str(tmp_path / "x.csv"), ("user", "value"))
    assert batch["__row__"].to_pylist() == [3]
    assert rejected.column("row").to_pylist() == [5]
    assert rejected.column("detail").to_pylist() == ["a carriage return inside a row"]


# Avro


def test_avro_types(tmp_path):
    kinds = {
        "user": ["null", "int"],
        "value": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]},
        "again": ["Kind", "null"],
        "time": {"type": "long", "logicalType": "timestamp-millis"},
        "record": {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int"}]},
    }
    schema = {
        "type": "record",
        "name": "Event",
        "fields": [{"name": name, "type": kind} for name, kind in kinds.items()],
    }
    row = {"user": 5, "value": "A", "again": "B", "time": 1_700_000_000_123, "record": {"x": 1}}
    path = tmp_path / "events.avro"
    with path.open("wb") as handle:
        fastavro.writer(handle, schema, [row, {**row, "user": None, "again": None}])
    rows, (batch,), _ = read(path, ("time", "user", "value", "again"))
    assert [str(t) for t in batch.schema.types[:3]] == ["timestamp[us, tz=UTC]", "int64", "string"]
    assert batch["time"].cast(pa.int64())[0].as_py() == 1_700_000_000_123_000
    assert [r[2:] for r in rows] == [(5, "A", "B"), (None, "A", None)]
    with pytest.raises(ConfigurationError, match=r"column 'record' has the Avro type"):
        read(path, ("record",))


# What is refused


@pytest.mark.parametrize("kind", FORMATS)
def test_a_missing_column_is_named(tmp_path, kind):
    path = write(tmp_path / f"events.{kind}")
    with pytest.raises(ConfigurationError) as error:
        check_events(path, ("user", "when"))
    for word in (path, "'when'", "'noise', 'user', 'value'"):
        assert word in str(error.value)


@pytest.mark.parametrize("kind", FORMATS)
def test_an_empty_file_is_refused(tmp_path, kind):
    path = tmp_path / f"events.{kind}"
    path.write_bytes(b"")
    with pytest.raises(ConfigurationError, match=r"events\.\w+: the file is empty"):
        check_events(str(path), COLUMNS)


def test_names_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigurationError, match=r"no file matches .*none.*: check"):
        match_files(str(tmp_path / "none-*.csv"))
    with pytest.raises(ConfigurationError, match="cannot be listed"):
        match_files("nowhere://bucket/x.csv")
    with pytest.raises(ConfigurationError, match="no file pattern"):
        match_files([])
    for name in ("events.txt", "events.txt.gz", "events"):
        (tmp_path / name).write_text("x")
        with pytest.raises(ConfigurationError, match=r"\.parquet, \.avro, \.csv, \.jsonl"):
            check_events(str(tmp_path / name), COLUMNS)
    with pytest.raises(ConfigurationError, match="must be a list"):
        ReadEvents("x.csv", columns="user")
    with pytest.raises(ConfigurationError, match="__row__"):
        ReadEvents("x.csv", columns=["__row__"])


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("x.parquet", b"PAR1 and no footer"),
        ("x.avro", b"no magic here"),
        ("x.csv", b"\nuser,value\n"),
        ("x.csv", b"\xff\xfe,\n"),
        ("x.jsonl", b'[{"user": 1,\n"value": 2}]\n'),
        ("x.csv.gz", b"user,value\n"),
        ("x.csv", b"user,value,user\n"),
    ],
)
def test_a_file_that_is_not_of_its_format_is_refused(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigurationError, match=name):
        check_events(str(tmp_path / name), COLUMNS)


@pytest.mark.slow
def test_a_file_cut_in_the_middle_is_refused_by_check_or_by_read(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "BLOCK_BYTES", 1000)
    source = np.random.default_rng(0)
    table = table_of([(f"u{i}", str(i)) for i in source.integers(0, 10**9, 20_000)])
    for kind in FORMATS:
        data = (tmp_path / write(tmp_path / f"whole.{kind}", table)).read_bytes()
        if kind in ("csv", "jsonl"):
            data, kind = gzip.compress(data), kind + ".gz"
        path = tmp_path / f"cut.{kind}"
        path.write_bytes(data[: len(data) // 2])
        if kind == "parquet":
            with pytest.raises(ConfigurationError, match="cut"):
                check_events(str(path), COLUMNS)
            continue
        check_events(str(path), COLUMNS)
        with pytest.raises(ConfigurationError, match=r"cut.*from (line|row) \d+ on.*complete"):
            read(path)


def test_a_parquet_file_spoilt_inside_is_refused_with_its_row(tmp_path):
    path = write(tmp_path / "x.parquet")
    data = bytearray((tmp_path / "x.parquet").read_bytes())
    chunk = pq.read_metadata(path).row_group(0).column(1)
    start = chunk.dictionary_page_offset
    data[start : start + chunk.total_compressed_size] = bytes(chunk.total_compressed_size)
    (tmp_path / "x.parquet").write_bytes(data)
    check_events(path, COLUMNS)
    with pytest.raises(ConfigurationError, match=r"x\.parquet.*from row 0 on"):
        read(path)


# ---- read without a runner ---------------------------------------------------------------------


def rows_and_letters(outputs):
    """Rows of all batches, and (file, row, reason) of all dead letters."""
    rows, letters = [], []
    for value, tag, _ in outputs:
        found = value.to_pylist()
        if tag == REJECTED:
            letters += [(row["source"].split("/")[-1], row["row"], row["reason"]) for row in found]
        else:
            assert tag is None
            rows += [tuple(row[name] for name in COLUMNS) for row in found]
    return rows, letters


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """A pattern of files: one with a bad line, one that breaks off, an empty one and a good one."""
    monkeypatch.setattr(lines, "BLOCK_BYTES", 1000)
    (tmp_path / "a.csv").write_text("user,value\nu1,a\none,too,many\n")
    source = np.random.default_rng(0)
    table = table_of([(f"u{i}", str(i)) for i in source.integers(0, 10**9, 20_000)])
    data = gzip.compress((tmp_path / write(tmp_path / "b.csv", table)).read_bytes())
    (tmp_path / "b.csv").unlink()
    (tmp_path / "b.csv.gz").write_bytes(data[: len(data) // 2])
    (tmp_path / "c.csv").write_text("")
    (tmp_path / "d.csv").write_text("user,value\nu2,b\n")
    return str(tmp_path / "*.csv*")


def test_what_cannot_be_read_to_its_end_is_a_dead_letter_after_its_events(broken):
    rows, letters = rows_and_letters(lenient_outputs(broken, COLUMNS))
    assert letters == [
        ("a.csv", 3, UNPARSABLE),
        ("b.csv.gz", None, UNREADABLE),
        ("c.csv", None, UNREADABLE),
    ]
    assert 100 < len(rows) < 20_002
    assert (rows[0], rows[-1]) == (("u1", "a"), ("u2", "b"))
    assert rows_and_letters(lenient_outputs(broken, COLUMNS, silent=True)) == (rows, [])


def test_silence_is_about_records_and_not_about_files(tmp_path, broken):
    path = str(tmp_path / "a.csv")
    rows = [("u1", "a")]
    assert rows_and_letters(file_outputs(path, COLUMNS)) == (rows, [("a.csv", 3, UNPARSABLE)])
    assert rows_and_letters(file_outputs(path, COLUMNS, silent=True)) == (rows, [])
    with pytest.raises(ConfigurationError, match=r"b\.csv\.gz.*from line"):
        rows_and_letters(file_outputs(str(tmp_path / "b.csv.gz"), COLUMNS, silent=True))


def test_a_file_that_is_gone_is_no_dead_letter(tmp_path):
    path = str(tmp_path / "gone.csv")
    for silent in (False, True):
        with pytest.raises(MachineFault, match=r"gone\.csv was there, and is not now"):
            rows_and_letters(lenient_file_outputs(path, 10, COLUMNS, silent=silent))
