"""Published data sets, in files that the tests write as they were published."""

import gzip

import pyarrow as pa
import pytest

from streamveil.io import DATASETS, REJECTED_SCHEMA, lines, read_events, write_table
from streamveil.io.datasets import FOURSQUARE_COLUMNS, TDRIVE_COLUMNS
from streamveil.mechanisms.core.records import ConfigurationError

TAXI = b"""\
1,2008-02-02 15:36:08,116.51172,39.92123
1,2008-02-02 15:46:08,116.51135,39.93883
"""
CHECK_IN = (
    "470\t49bbd6c0f964a520f4531fe3\t4bf58dd8d48988d127951735\tArts & Crafts Store\t"
    "40.719810375488535\t-74.00258103213994\t-240\tTue Apr 03 18:00:09 +0000 2012\n"
)
CAFE = (
    '979\t4a43c0aef964a520c6a61fe3\t4bf58dd8d48988d16d941735\tCaf\xe9 "A, B"\t'
    "40.606799581406435\t-74.04416981025437\t-240\tSat Feb 16 00:02:24 +0000 2013\n"
)


def read(pattern, columns, dataset):
    """All rows and all dead letters."""
    batches, rejected = [], []
    for batch, letters in read_events(str(pattern), columns, dataset):
        batches.append(batch)
        if letters is not None:
            assert letters.schema == REJECTED_SCHEMA
            rejected += letters.to_pylist()
    return [row for batch in batches for row in batch.to_pylist()], rejected


def write(path, data):
    path.write_bytes(data)
    return path


def test_tdrive(tmp_path):
    write(tmp_path / "1.txt", TAXI)
    write(tmp_path / "2.txt", b"")  # some taxis have no point
    write(tmp_path / "10.txt", TAXI.replace(b"1,", b"10,", 1).replace(b"\n", b"\r\n"))
    rows, rejected = read(tmp_path / "*.txt", TDRIVE_COLUMNS, "tdrive")
    assert [row["taxi"] for row in rows] == ["1", "1", "10", "1"]
    assert rows[0] == {
        **{"taxi": "1", "time": "2008-02-02 15:36:08"},
        **{"longitude": "116.51172", "latitude": "39.92123", "__row__": 1},
    }
    assert rows[3]["latitude"] == "39.93883"
    assert not rejected


def test_bad_lines_of_tdrive(tmp_path):
    bad = b"2,2008-02-02 15:36:08,116.5\n\n3\xff,2008-02-02 15:36:08,116.5,39.9\nx\n"
    path = write(tmp_path / "1.txt", TAXI + bad + TAXI)
    rows, rejected = read(path, ("taxi",), "tdrive")
    assert [row["__row__"] for row in rows] == [1, 2, 7, 8]
    assert [(one["row"], one["detail"]) for one in rejected] == [
        (3, "3 fields where a line has 4"),
        (5, "not UTF-8"),
        (6, "1 field where a line has 4"),
    ]
    assert [one["reason"] for one in rejected] == ["unparsable", "not UTF-8", "unparsable"]
    assert rejected[0]["record"] == "2,2008-02-02 15:36:08,116.5"
    assert rejected[0]["source"].endswith("1.txt")


def test_foursquare(tmp_path):
    path = write(tmp_path / "dataset_TSMC2014_NYC.txt", (CHECK_IN + CAFE).encode("latin-1"))
    rows, rejected = read(path, FOURSQUARE_COLUMNS, "foursquare")
    assert [list(row.values()) for row in rows] == [
        [
            *("470", "49bbd6c0f964a520f4531fe3", "4bf58dd8d48988d127951735"),
            *("Arts & Crafts Store", "40.719810375488535", "-74.00258103213994", "-240"),
            *("2012-04-03T18:00:09+00:00", 1),
        ],
        [
            *("979", "4a43c0aef964a520c6a61fe3", "4bf58dd8d48988d16d941735", 'Café "A, B"'),
            *("40.606799581406435", "-74.04416981025437", "-240"),
            *("2013-02-16T00:02:24+00:00", 2),
        ],
    ]
    assert not rejected


def test_foursquare_as_utf_8(tmp_path):
    path = write(tmp_path / "NYC.txt", CAFE.encode())
    rows, _ = read(path, ("category",), "foursquare")
    assert rows[0]["category"] == 'Café "A, B"'


def test_times_of_all_months_and_bad_ones(tmp_path):
    months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
    times = [f"Mon {month} 09 01:02:03 +0530 2012" for month in months]
    odd = ["Mon Foo 09 01:02:03 +0000 2012", "2012-04-03", ""]
    old = "Sat Feb 16 00:02:24 +0000 2013"
    path = write(tmp_path / "NYC.txt", "".join(CAFE.replace(old, t) for t in times + odd).encode())
    rows, rejected = read(path, ("time", "user"), "foursquare")
    assert [row["time"] for row in rows[:12]] == [
        f"2012-{month:02d}-09T01:02:03+05:30" for month in range(1, 13)
    ]
    # What is not a time stays what it is: whoever reads times rejects it.
    assert [row["time"] for row in rows[12:]] == ["2012-Foo-09T01:02:03+00:00", *odd[1:]]
    assert not rejected


def test_bad_lines_of_foursquare(tmp_path):
    path = write(tmp_path / "TKY.txt", (CHECK_IN + "1\t2\t3\n" + CAFE).encode("latin-1"))
    rows, rejected = read(path, ("user", "time"), "foursquare")
    assert [row["user"] for row in rows] == ["470", "979"]
    assert [(one["row"], one["detail"]) for one in rejected] == [(2, "3 fields where a line has 8")]


def test_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "BLOCK_BYTES", 50)
    path = write(tmp_path / "1.txt", TAXI * 20)
    rows, rejected = read(path, ("taxi",), "tdrive")
    assert [row["__row__"] for row in rows] == list(range(1, 41))
    assert not rejected


def test_compressed(tmp_path):
    path = write(tmp_path / "1.txt.gz", gzip.compress(TAXI))
    assert len(read(path, ("taxi",), "tdrive")[0]) == 2
    write(path, gzip.compress(TAXI)[:-4])
    with pytest.raises(ConfigurationError, match=r"1\.txt\.gz: the file cannot be read from line"):
        read(path, ("taxi",), "tdrive")


@pytest.mark.parametrize("dataset", sorted(DATASETS))
def test_unknown_column(tmp_path, dataset):
    path = write(tmp_path / "1.txt", TAXI)
    with pytest.raises(ConfigurationError, match="no column 'town'; its columns are "):
        read(path, ("town",), dataset)


def test_nothing_matches(tmp_path):
    with pytest.raises(ConfigurationError, match="no file matches"):
        read(tmp_path / "*.txt", ("taxi",), "tdrive")


def test_files_that_say_their_format(tmp_path):
    table = pa.table({"user": ["a", "b"], "value": ["x", "y"]})
    for name in ("1.csv", "2.parquet"):
        write_table(str(tmp_path / name), table.schema, table.to_batches())
    with open(tmp_path / "1.csv", "a") as file:
        file.write("one,two,three\n")
    rows, rejected = read(tmp_path / "*.*", ("value",), None)
    assert [row["value"] for row in rows] == ["x", "y", "x", "y"]
    assert [one["row"] for one in rejected] == [4]
