"""A folder of releases: each written once, whole, and never changed."""

import dataclasses
import json
import os
import threading
from functools import partial

import apache_beam as beam
import numpy as np
import pytest

from streamveil.io import (
    RESULT_SCHEMA,
    WriteReleasesToFolder,
    per_record_sink_of,
    release_messages,
    sink_of,
)
from streamveil.io.folder import write_once
from streamveil.io.jsonlines import json_text
from streamveil.io.per_record import per_record_object
from streamveil.io.releases import release_row
from streamveil.io.tables import read_json_files
from streamveil.io.tidy import ROWS
from streamveil.mechanisms.core.records import PerRecordRow, Slots

LABELS = ["a", "b"]


def to_folder(path):
    return WriteReleasesToFolder(str(path), messages=release_messages(LABELS))


@pytest.fixture
def write_on(pipeline_on):
    """Write results by a sink, on a runner."""

    def write_on(runner, results, sink):
        with pipeline_on(runner) as pipeline:
            _ = pipeline | beam.Create(results) | sink

    return write_on


@pytest.fixture
def write(write_on, usual_runner):
    """The same on the usual runner."""
    return partial(write_on, usual_runner)


def test_a_file_for_each_release_in_the_order_of_slots(write_on, some_releases, tmp_path, runner):
    folder = tmp_path / "new" / "releases"
    write_on(runner, some_releases[::-1], sink_of(f"folder:{folder}", LABELS, layout=ROWS))
    files = sorted(folder.iterdir())
    assert [path.read_bytes() for path in files] == [
        json_text(release_row(release)).encode() + b"\n" for release in some_releases
    ]
    assert files[1].name == "release-19700101T010000.000000Z.json"


def test_names_sort_as_slots_do(write, some_releases, tmp_path):
    slots = Slots.of("500ms")
    wanted = [-86_400_001, -2, -1, 0, 1, 10, 200, 86_400_000]
    releases = [
        dataclasses.replace(some_releases[0], slot=slot, start=slots.start(slot)) for slot in wanted
    ]
    write(releases, to_folder(tmp_path))
    files = [path.read_text().splitlines() for path in sorted(tmp_path.iterdir())]
    assert [len(lines) for lines in files] == [len(LABELS)] * len(wanted)
    assert [json.loads(line)["slot"] for line, _ in files] == wanted


def test_a_file_has_the_rows_of_a_tidy_file(write, some_releases, tmp_path):
    berlin = release_messages(LABELS, zone="Europe/Berlin")
    write(some_releases, WriteReleasesToFolder(str(tmp_path), messages=berlin))
    files = sorted(tmp_path.iterdir())
    assert files[1].name == "release-19700101T010000.000000Z.json"  # in UTC: sorted, in order
    rows = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    assert list(rows[0]) == RESULT_SCHEMA.names
    assert [(row["slot"], row["key"]) for row in rows[:3]] == [(0, "a"), (0, "b"), (1, "a")]
    assert rows[2]["start"] == "1970-01-01T02:00:00+01:00"
    assert read_json_files(list(map(str, files))).num_rows == len(rows)


def test_what_is_there_stays_as_it_is(write, some_releases, tmp_path):
    write(some_releases, to_folder(tmp_path))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    write(some_releases, to_folder(tmp_path))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_a_second_different_release_of_a_slot_stops_the_job(write, some_releases, tmp_path):
    write(some_releases, to_folder(tmp_path))
    before = sorted((path.name, path.read_bytes()) for path in tmp_path.iterdir())
    other = dataclasses.replace(some_releases[1], counts=np.array([7, 7]))
    with pytest.raises(Exception, match="slot 1 was released before"):
        write([other], to_folder(tmp_path))
    assert sorted((path.name, path.read_bytes()) for path in tmp_path.iterdir()) == before


def test_of_many_that_write_one_file_one_wins(tmp_path):
    path, won = tmp_path / "file", []
    ready = threading.Barrier(8)

    def run(data):
        ready.wait()
        if write_once(str(path), data):
            won.append(data)

    writers = [threading.Thread(target=run, args=(bytes([i]) * 100_000,)) for i in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert won == [path.read_bytes()]
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path):
    (tmp_path / "folder").touch()
    with pytest.raises(OSError, match="folder"):
        write_once(str(tmp_path / "folder" / "file"), b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_name_is_given_to_what_outlives_the_loss_of_power(tmp_path, monkeypatch):
    """Else an empty file may be left of a release, which is refused forever as another one."""
    path, lasting = tmp_path / "file", []
    fsync, link = os.fsync, os.link

    def synced(handle):
        fsync(handle)
        lasting.append(os.path.getsize(handle) if os.path.isfile(handle) else os.listdir(handle))

    def linked(temporary, name):
        lasting.append("named")
        link(temporary, name)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", linked)
    assert write_once(str(path), b"release")
    assert lasting == [7, "named", ["file"]]
    assert write_once(str(path), b"release")  # the one before may have died as soon as it was named
    assert lasting[3:] == [["file"]]


def test_rows_under_per_record_privacy(write, tmp_path):
    day = 86_400_000_000
    row = PerRecordRow("a/b", 0, day, "sum", "prdp", 1.0, 2.0, 0.5, float("nan"))
    rows = [
        row,
        dataclasses.replace(row, key="b"),
        dataclasses.replace(row, key=None, start=None, end=None),
    ]
    sink = f"folder:{tmp_path}"
    write(rows, per_record_sink_of(sink))
    write(rows, per_record_sink_of(sink))
    assert sorted(path.read_bytes() for path in tmp_path.iterdir()) == sorted(
        json_text(per_record_object(row)).encode() + b"\n" for row in rows
    )
    with pytest.raises(Exception, match="key 'a/b' in the window that ends"):
        write([dataclasses.replace(row, estimate=3.0)], per_record_sink_of(sink))
