"""`streamveil release` on files of every format: the same events give the same counts."""

import bz2
import datetime as dt
import gzip
import json
import lzma
import os

import fastavro
import pandas as pd
import pyarrow as pa
import pytest
import yaml

import streamveil as sv
from streamveil.io import events
from streamveil.mechanisms.core.records import FAULT_COLUMN, QueryColumn
from streamveil.transforms import row_batches

FORMATS = ("csv", "jsonl", "parquet", "avro")
START = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)
DAY = dt.timedelta(days=1)
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
    """The first count of a query, exactly."""
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
        f"slot: 1d\nqueries:\n  - {{name: people, where: {{robot: {where}}}}}\n  - {{name: all}}\n",
    )
    flags = dict.fromkeys(("value_column", "domain", "slot"))
    path = written(job, rows, kind)
    job.done(input=path, queries=asked, output=job.path("out"), **(crowd(9) | flags))
    assert answered(job, "people") == 6
    assert answered(job, "all") == 9


@pytest.mark.parametrize("kind", FORMATS)
def test_booleans_are_numbers_in_every_format(job, kind):
    asked = job.write(
        "q.yaml",
        "slot: 1d\nqueries:\n"
        "  - {name: robots, statistic: sum, of: robot, bounds: [0, 1]}\n"
        "  - {name: people, where: {robot: {to: 0.5}}}\n",
    )
    flags = dict.fromkeys(("value_column", "domain", "slot"))
    path = written(job, visits(9, robot=lambda row: row % 3 == 0), kind)
    job.done(input=path, queries=asked, output=job.path("out"), **(crowd(9) | flags))
    assert answered(job, "robots") == 3
    assert answered(job, "people") == 6


# ---- how files are stored -------------------------------------------------------------------

TEXT = "user,value,time\nu1,A,2024-01-01T08:00:00Z\nu2,Bé,2024-01-01T09:00:00Z\n"
STORED = {
    "in.csv": TEXT.encode("utf-8-sig"),
    "wide.csv": TEXT.encode("utf-16"),
    "unmarked.csv": TEXT.encode("utf-16-be"),
    "in.csv.gz": gzip.compress(TEXT.encode()),
    "gzip.csv": gzip.compress(TEXT.encode()),
    "in.csv.bz2": bz2.compress(TEXT.encode()),
    "in.csv.XZ": lzma.compress(TEXT.encode("utf-16-le")),
    "in.csv.zst": pa.compress(TEXT.encode(), codec="zstd", asbytes=True) * 2,
    "a b [1].csv": TEXT.encode(),
    "[!x]*?.csv": TEXT.encode(),
}


@pytest.mark.parametrize(("name", "content"), STORED.items(), ids=STORED.keys())
def test_text_is_read_however_it_is_stored(job, name, content):
    job.done(input=job.write(name, content), domain="A,Bé", max_rejected="1")
    assert job.counts() == {START: [1, 1]}


REFUSED = {
    "in.csv": (b"PK\x03\x04rest", ["ZIP archive", "unpack it"]),
    "in.xlsx": (b"PK\x03\x04rest", ["save the sheet as CSV"]),
    "in.tsv": (TEXT.encode(), ["--delimiter=tab"]),
    "in.parquet.gz": (b"\x1f\x8b", ["compressed inside", "decompress this one"]),
    "in.parquet": (gzip.compress(b"PAR1"), ["compressed as a whole", "decompress it"]),
    "cut.csv.zst": (
        pa.compress(TEXT.encode(), codec="zstd", asbytes=True)[:-3],
        ["cannot be read from line 1 on", "Truncated"],
    ),
    "cut.csv.bz2": (bz2.compress(TEXT.encode())[:-3], ["cannot be read from line 1 on"]),
    "cut.csv": (TEXT.encode("utf-16")[:-1], ["cannot be read from line 1 on", "truncated"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_read_is_refused_with_what_helps(job, name):
    content, words = REFUSED[name]
    job.refused(name, *words, input=job.write(name, content))


# As the first record of a file without a header, which looks like the begin of another kind.
FIRST = {
    "utf-16-be": b"\0me,A,2024-01-01T08:00:00Z\n",
    "utf-16-le": b"m\0e,A,2024-01-01T08:00:00Z\n",
    "marked": b"\xff\xfeme,A,2024-01-01T08:00:00Z\n",
    "bzip2": b"BZh91AY&SY,A,2024-01-01T08:00:00Z\n",
}


@pytest.mark.parametrize("first", FIRST.values(), ids=FIRST.keys())
def test_the_first_record_of_a_file_does_not_say_how_it_is_stored(job, first):
    rest = "".join(f"u{row},B,2024-01-01T08:00:00Z\n" for row in range(3))
    path = job.write("in.csv", first + rest.encode())
    job.done(input=path, columns="user,value,time", **crowd(9))
    assert job.counts()[START][1] == 3


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32"])
def test_what_is_no_text_in_wide_characters_is_one_bad_line(job, encoding):
    rows = TEXT.splitlines(keepends=True)
    bad = {"utf-32": b"\xff\xff\xff\xff"}.get(encoding) or "\ud800".encode(
        encoding, "surrogatepass"
    )
    lines = [rows[0].encode(encoding), "u9,".encode(encoding.replace("32", "32-le"))]
    wide = [text.encode(encoding.replace("32", "32-le")) for text in (",2024-01-01\n", *rows[1:])]
    path = job.write("in.csv", b"".join([*lines, bad, *wide]))
    done = job.done(input=path, **(crowd(9) | {"domain": "A,Bé"}))
    assert job.counts() == {START: [1, 1]}
    assert "not UTF-8 1" in done.out


@pytest.mark.parametrize("codec", ["deflate", "snappy", "zstandard", "lz4", "bzip2", "xz"])
def test_codecs_of_avro(job, codec):
    rows = visits(5, value=lambda row: "A")
    fields = [{"name": name, "type": "string"} for name in rows[0]]
    with open(job.path("in.avro"), "wb") as file:
        fastavro.writer(file, {"type": "record", "name": "r", "fields": fields}, rows, codec)
    job.done(input=job.path("in.avro"), **crowd(5))
    assert job.counts() == {START: [5, 0, 0]}


def test_a_folder_is_all_files_in_it_that_say_a_format(job):
    for place in ("in/old", "in/.hidden", "in/_temporary"):
        os.makedirs(job.path(place))
    job.lines("u1,A,2024-01-01T08:00:00Z", name="in/a.csv")
    job.write("in/old/b.jsonl", '{"user":"u2","value":"B","time":"2024-01-01T08:00:00Z"}\n')
    for other in ("_SUCCESS", "readme.txt", ".c.csv", ".hidden/d.csv", "_temporary/e.csv"):
        job.write(f"in/{other}", "no events")
    for number, place in enumerate(("in", "in/")):
        out = job.path(f"out-{number}.jsonl")
        job.done(input=job.path(place), output=out)
        assert job.counts(f"out-{number}.jsonl") == {START: [1, 1, 0]}
    os.makedirs(job.path("none"))
    job.write("none/a.txt", "no events")
    job.refused("none", "no file whose name says a format", input=job.path("none"))


@pytest.mark.parametrize("kind", FORMATS)
def test_folders_of_partitions_are_columns(job, kind):
    """Of Hive and Spark: the names of folders say what the files leave out."""
    for day, value, users in ((1, "A", 3), (1, "b c", 2), (2, "A", 1)):
        folder = job.path(f"in/day=2024-01-0{day}/value={value.replace(' ', '%20')}")
        os.makedirs(folder)
        rows = [{"user": f"u{day}{value}{row}"} for row in range(users)]
        written(job, rows, kind, os.path.relpath(f"{folder}/part", job.path("")))
    os.makedirs(job.path("in/day=2024-01-02/value=__HIVE_DEFAULT_PARTITION__"))
    written(job, [{"user": "n"}], kind, "in/day=2024-01-02/value=__HIVE_DEFAULT_PARTITION__/part")
    flags = {"time_column": "day", "domain": "A,b c", "max_rejected": "0.5"}
    for number, place in enumerate(("in", "in/day=*")):
        out = job.path(f"out-{number}.jsonl")
        done = job.done(input=job.path(place), output=out, **(crowd(9) | flags))
        assert "null value 1" in done.out
        assert job.counts(f"out-{number}.jsonl") == {START: [3, 2], START + DAY: [1, 0]}


def test_a_record_with_the_key_of_a_folder_changes_no_other(job):
    os.makedirs(job.path("in/value=A"))
    rows = [{"user": f"u{row}", "time": "2024-01-01T10:00:00Z"} for row in range(4)]
    rows += [rows[0] | {"user": "own", "value": "B"}, rows[0] | {"user": "empty", "value": ""}]
    written(job, rows, "jsonl", "in/value=A/part")
    job.done(input=job.path("in"), **(crowd(9) | {"domain": "A,B"}))
    assert job.counts() == {START: [5, 1]}


# ---- files that change while they are read --------------------------------------------------


def grown(path):
    with open(path, "ab") as file:
        file.write(b"\n")


def truncated(path):
    os.truncate(path, os.path.getsize(path) - 1)


def swapped(path):
    """Another file of the same size takes its place, with the time of an older one."""
    with open(path, "rb") as file:
        content = file.read()
    with open(f"{path}.new", "wb") as file:
        file.write(content)
    os.utime(f"{path}.new", (1_700_000_000, 1_700_000_000))
    os.replace(f"{path}.new", path)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("change", [grown, truncated, swapped, os.unlink])
def test_a_file_that_changes_while_it_is_read_releases_nothing(job, monkeypatch, kind, change):
    path = written(job, visits(9, value=lambda row: "A"), kind)
    read = events._read

    def changing(part, *given):
        yield from read(part, *given)
        change(part.path)

    monkeypatch.setattr(events, "_read", changing)
    outcome = job(input=path, rejected=job.path("bad.csv"), **crowd(9))
    assert outcome.code == 2
    assert "disappeared" in outcome.err or "was written to while it was read" in outcome.err
    assert outcome.err.count("\n") == 1
    assert not os.path.exists(job.path("out.jsonl"))


# ---- names that are not UTF-8 ---------------------------------------------------------------


def test_names_that_are_not_text_are_read_in_a_folder(job):
    """They were a traceback, and stopped every restart of a followed stream."""
    os.makedirs(job.path("in"))
    folder = os.fsencode(job.path("in"))
    odd, cut = (folder + name for name in (b"/\xff\xfe.csv", b"/\xe9.parquet"))
    with open(odd, "wb") as file:
        lines = (
            "user,value,time",
            "u1,A,2024-01-01T08:00:00Z",
            "u2,B,2024-01-02T09:00:00Z",
            "u3,A",
        )
        file.write("\n".join(lines).encode())
    flags = {"input": job.path("in"), "start": "2024-01-01", "max_rejected": "1"}
    job.done(rejected=job.path("bad.parquet"), end="2024-01-03", **flags)
    assert job.counts() == {START: [1, 0, 0], START + DAY: [0, 1, 0]}
    (letter,) = job.rows("bad.parquet")
    assert letter["source"].endswith("in/\\udcff\\udcfe.csv")
    with open(cut, "wb") as file:
        file.write(b"PAR1")
    kept = {"state": job.path("state"), "output": job.path("kept.jsonl"), "noise_key": job.key()}
    kept |= {"rejected": job.path("bad.jsonl"), "follow": "100ms"}
    job.done(end="2024-01-02", **(flags | kept))
    job.done("--resume", end="2024-01-03", **(flags | kept))
    assert job.counts("kept-00000001.jsonl") == {START: [1, 0, 0]}
    assert job.counts("kept-00000002.jsonl") == {START + DAY: [0, 1, 0]}
    reasons = {(row["source"][-12:], row["reason"]) for row in job.rows("bad-00000001.jsonl")}
    assert reasons == {
        ("\\udcff\\udcfe.csv"[-12:], "unparsable"),
        ("dce9.parquet", "unreadable file"),
    }


@pytest.mark.parametrize("name", ["input", "output", "domain", "ledger", "state", "card"])
def test_an_option_that_is_not_text_is_refused_in_one_line(job, name):
    outcome = job.refused(f"--{name}=", "\\udcff is not UTF-8 text", **{name: job.path("\udcff")})
    assert outcome.err.count("\n") == 1


def test_a_folder_whose_name_is_not_text_is_refused_in_one_line(job, monkeypatch):
    os.makedirs(job.path("") + "/\udcff")
    monkeypatch.chdir(job.path("") + "/\udcff")
    outcome = job.refused("the working folder", "\\udcff is not UTF-8 text")
    assert outcome.err.count("\n") == 1


# ---- null values ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("null", [None, "none"])
def test_null_and_empty_values_are_the_same_in_every_format(job, kind, null):
    """Empty text was a value of `--other` in Parquet, and null in CSV."""
    rows = visits(6, value=lambda row: ["A", "", None, "x", "A", ""][row])
    path = written(job, rows, kind)
    flags = {"input": path, "domain": "A", "other": "rest", "null": null, "max_rejected": "1"}
    done = job.done(rejected=job.path("bad.jsonl"), **(crowd(6) | flags))
    if null:
        assert job.counts() == {START: [2, 1, 3]}
    else:
        assert job.counts() == {START: [2, 1]}
        assert "null value 3" in done.out


def test_null_values_in_memory_and_in_queries(job):
    rows = visits(6, value=lambda row: ["A", "", None, "x", "A", ""][row])
    given = {"start": "2024-01-01", "end": "2024-01-02"}
    columns = {"user": "user", "time": "time"}
    made = sv.release(
        pd.DataFrame(rows),
        **{"value": "value", "domain": ["A"], "slot": "1d", **columns, **given},
        run=sv.RunOptions(null="none", default_requirement="1,4000,6"),
    )
    assert [release.counts.tolist() for release in made["count"]] == [[2, 3]]
    asked = job.write(
        "q.yaml",
        "slot: 1d\nqueries:\n  - {name: places, by: value, keys: [A], other: rest, null: none}\n",
    )
    path = written(job, rows, "csv")
    flags = dict.fromkeys(("value_column", "domain", "slot"))
    job.done(input=path, queries=asked, output=job.path("out"), **(crowd(6) | flags))
    found = {row["key"]: round(row["value"]) for row in job.rows("out/places.parquet")}
    assert found == {"A": 2, "rest": 1, "none": 3}


# ---- queries --------------------------------------------------------------------------------

TAGS = ["A", ["A"], {"a": [1.5, True, None, "ü"]}, float("nan"), True, 7, "B"]
QUERIES = (
    "slot: 1d\nqueries:\n"
    "  - {name: all}\n"
    "  - {name: tags, by: tag, keys: [A, B], other: rest}\n"
    "  - {name: strict, by: tag, keys: [A, B, 'true', '7']}\n"
)


def test_what_one_query_cannot_read_is_counted_by_others(job):
    """A list under a column of one query made its event unparsable for all of them."""
    rows = visits(len(TAGS), tag=lambda row: TAGS[row])
    path = written(job, rows, "jsonl")
    asked = job.write("q.yaml", QUERIES)
    flags = dict.fromkeys(("value_column", "domain", "slot")) | {"rejected": job.path("bad.jsonl")}
    given = crowd(len(TAGS)) | flags
    job.done(input=path, queries=asked, output=job.path("out"), max_rejected="1", **given)
    assert answered(job, "all") == len(TAGS)
    found = {row["key"]: round(row["value"]) for row in job.rows("out/tags.parquet")}
    assert found == {"A": 1, "B": 1, "rest": 5}
    found = {row["key"]: round(row["value"]) for row in job.rows("out/strict.parquet")}
    assert found == {"A": 1, "B": 1, "true": 1, "7": 1}
    letters = [(letter["reason"], letter["detail"]) for letter in job.json_rows("bad.jsonl")]
    assert letters == [
        ("outside the domain (query strict, counted in others)", f"tag is {text}")
        for text in ('["A"]', '{"a":[1.5,true,null,"\\u00fc"]}', "NaN")
    ]
    # The user is of all of them.
    job.write("typed.jsonl", json.dumps(rows[0] | {"user": ["u0"]}) + "\n" + json.dumps(rows[1]))
    given |= {"rejected": job.path("users.jsonl")}
    job.done(input=path, queries=asked, output=job.path("users"), max_rejected="1", **given)
    (letter, _) = job.json_rows("users.jsonl")
    assert letter["reason"] == "unparsable"


def test_what_one_query_cannot_read_of_a_table_or_of_rows_is_counted_by_others():
    rows = visits(len(TAGS), tag=lambda row: TAGS[row])
    rows[3]["tag"] = object()
    rows.append({"user": ["u0"], "time": "2024-01-01T10:00:00Z", "tag": "A"})
    made = sv.release(
        pd.DataFrame(rows),
        yaml.safe_load(QUERIES),
        user="user",
        time="time",
        start="2024-01-01",
        end="2024-01-02",
        run=sv.RunOptions(default_requirement=f"1,4000,{len(TAGS)}", max_rejected=1.0),
    )
    found = {row["key"]: round(row["value"]) for row in made["tags"].to_arrow().to_pylist()}
    assert found == {"A": 1, "B": 1, "rest": 5}
    assert round(made["all"].to_arrow().to_pylist()[0]["value"]) == len(TAGS)
    batch = row_batches._batch(
        {"user": None, QueryColumn("tag"): None}, [(row["user"], row["tag"]) for row in rows]
    )
    assert batch.column("tag").to_pylist()[1] == "['A']"
    faults = batch.column(FAULT_COLUMN).to_pylist()
    assert [fault is None for fault in faults] == [True] * len(TAGS) + [False]
