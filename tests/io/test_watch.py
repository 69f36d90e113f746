"""A watched folder, in real time: files appear while the pipeline runs."""

import os
import threading

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.utils.timestamp import Timestamp

from streamveil.io import WatchEvents, write_table
from streamveil.mechanisms.core.records import ConfigurationError

NAMES = ("user", "value")
FORMATS = ("parquet", "avro", "csv", "jsonl")
SECONDS = 15  # long enough for a slow machine to look twice


def put(folder, name, content):
    """A file that is whole when it comes into the folder: a glob sees names with a dot, too."""
    made = folder.parent / name
    if isinstance(content, pa.Table):
        write_table(str(made), content.schema, content.to_batches())
    else:
        made.write_text(content)
    made.rename(folder / name)


def rows_of(batches):
    return sorted((r["user"], r["value"]) for batch, _ in batches for r in batch.to_pylist())


@pytest.mark.slow
def test_files_are_read_once_as_they_appear(tmp_path, keep, until):
    folder = tmp_path / "watched"
    folder.mkdir()
    put(folder, "old[1].csv", "user,value\nold,A\n")
    pipeline = beam.Pipeline(runner=FnApiRunner())
    events = pipeline | WatchEvents(
        f"{folder}/*", columns=NAMES, interval=0.2, stop=Timestamp.now() + SECONDS
    )
    assert not events.batches.is_bounded
    batches, rejected = keep(events.batches, "batches"), keep(events.rejected, "rejected")
    running = threading.Thread(target=lambda: pipeline.run().wait_until_finish())
    running.start()
    until(lambda: batches)  # the pipeline is looking
    assert rows_of(batches) == [("old", "A")]
    for kind in FORMATS:
        put(folder, f"new.{kind}", pa.table({"user": [kind], "value": ["B"], "x": [1]}))
    put(folder, "bad.jsonl", '{"user":"last","value":"C"}\nno\n')
    put(folder, "empty.csv", "")
    put(folder, "other.csv", "name\nx\n")
    put(folder, "what.xyz", "?")
    put(folder, "torn.parquet", "PAR1")
    running.join()
    assert rows_of(batches) == sorted([("old", "A"), ("last", "C"), *((k, "B") for k in FORMATS)])
    assert {batch.schema.metadata[b"streamveil.source"].decode() for batch, _ in batches} == {
        str(folder / name)
        for name in ("old[1].csv", "bad.jsonl", *(f"new.{kind}" for kind in FORMATS))
    }
    letters = {
        os.path.basename(row["source"]): row for batch, _ in rejected for row in batch.to_pylist()
    }
    assert len(rejected) == len(letters) == 5
    assert (letters["bad.jsonl"]["reason"], letters["bad.jsonl"]["row"]) == ("unparsable", 2)
    for name, detail in {
        "empty.csv": "0 bytes",
        "other.csv": "no column 'user'",
        "what.xyz": "not known by its name",
        "torn.parquet": "cannot be read",
    }.items():
        letter = letters[name]
        assert (letter["reason"], letter["row"], letter["record"]) == ("unreadable file", None, "")
        assert detail in letter["detail"]


@pytest.mark.parametrize("interval", [0, -1.0, float("nan")])
def test_an_interval_is_above_0(interval):
    with pytest.raises(ConfigurationError, match="give more than 0"):
        WatchEvents("x/*.csv", columns=NAMES, interval=interval)


def test_a_folder_is_not_watched_in_vain(tmp_path):
    with pytest.raises(ConfigurationError, match=r"is a folder.*name the files in it, such as"):
        WatchEvents(str(tmp_path), columns=NAMES)
