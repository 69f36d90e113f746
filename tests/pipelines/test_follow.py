"""`streamveil release --state`: passes over one stream add up to one run, and say what is wrong."""

import contextlib
import datetime as dt
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

from streamveil.io import StateFolder, events, read_table
from streamveil.mechanisms import ConfigurationError
from streamveil.pipelines.monitoring.monitor import Monitor

pytestmark = pytest.mark.slow  # whole runs, pass after pass

UTC = dt.timezone.utc
USERS = {f"u{u}": (1 + u % 4, 0.5 + u % 2) for u in range(20)}


def day(n, hour=0):
    return dt.datetime(2024, 1, n, hour, tzinfo=UTC)


def visits(n, users=range(20)):
    return [(f"u{u}", "ABC"[(u * u + n) % 3], day(n, u)) for u in users if (u + n) % 3]


class Stream:
    """A job that keeps its state, with a clock that the test moves on."""

    def __init__(self, job):
        self.job = job
        self.folder = Path(job.folder)
        job.requirements(USERS)
        os.unlink(job.path("events.csv"))
        (self.folder / "in").mkdir()
        self.flags = {**job.kept(), "clock_file": job.path("clock")}

    def clock(self, time):
        beside = self.folder / "clock.new"  # whoever follows reads it at any time
        beside.write_text(time.isoformat())
        beside.replace(self.folder / "clock")

    def events(self, name, rows):
        self.job.events(rows, f"in/{name}")

    def flags_with(self, flags):
        resume = True if (self.folder / "state" / "manifest.json").exists() else None
        return {"resume": resume, **self.flags, **flags}

    def __call__(self, **flags):
        return self.job.done(**self.flags_with(flags))

    def refused(self, *words, **flags):
        return self.job.refused(*words, **self.flags_with(flags))

    def stopped(self, *words, **flags):
        """Run it; it must say why it stops in these words. What is committed stays."""
        outcome = self.job(**self.flags_with(flags))
        assert outcome.code == 2, outcome
        assert "Traceback" not in outcome.err
        missing = [word for word in words if word not in outcome.message]
        assert not missing, outcome.message

    def rows(self, name):
        """Rows of all numbered files, in order."""
        stem, extension = os.path.splitext(name)
        paths = sorted(self.folder.glob(f"{stem}-????????{extension}"))
        return [row for path in paths for row in read_table(str(path)).to_pylist()]

    def state_files(self):
        return sorted(str(p.relative_to(self.folder)) for p in (self.folder / "state").rglob("*"))


@pytest.fixture
def stream(job):
    return Stream(job)


def once(stream, pattern="in/*.csv", **flags):
    """Rows of one run over all of it: releases, ledger, dead letters."""
    job = stream.job
    names = ("once.jsonl", "once_ledger.jsonl", "once_rejected.jsonl")
    paths = dict(zip(("output", "ledger", "rejected"), map(job.path, names), strict=True))
    given = {**stream.flags, "state": None, "clock_file": None, **flags, **paths}
    job.done(**{**given, "input": job.path(pattern), "end": "2024-01-10"})
    return [job.rows(name) for name in names]


def letters(rows):
    return Counter((os.path.basename(r["source"]), r["row"], r["reason"]) for r in rows)


# ---- what is released --------------------------------------------------------------------------


@pytest.mark.parametrize("extension", ["jsonl", "csv", "parquet", "avro"])
def test_passes_add_up_to_one_run(stream, extension):
    flags = {
        flag: stream.job.path(f"{flag}.{extension}") for flag in ("output", "ledger", "rejected")
    }
    # Files that hold several days, days in several files, quiet days, bad events and a bad line.
    for name, days in (("a.csv", (1, 2, 5)), ("b.csv", (1, 6, 9)), ("c.csv", (2, 3, 6))):
        rows = [row for d in days for row in visits(d)]
        stream.events(name, [*rows, ("u1", "?", day(days[1])), ("nobody", "A", day(days[2]))])
    with (stream.folder / "in" / "a.csv").open("a") as file:
        file.write("no record\n")
    for d in (2, 4, 7, 10):
        stream.clock(day(d))
        stream(**flags)
    releases, ledger, rejected = once(stream)
    found = {name: stream.rows(f"{name}.{extension}") for name in flags}
    assert [row["slot"] for row in found["output"]] == [row["slot"] for row in releases]
    assert [row["status"] for row in found["output"]] == [row["status"] for row in releases]
    assert [row["counts"] for row in found["output"]] == [row["counts"] for row in releases]
    assert [row["spent_in_window"] for row in found["ledger"]] == [
        row["spent_in_window"] for row in ledger
    ]
    assert letters(found["rejected"]) == letters(rejected)
    assert len(rejected) == 7
    folder = "state/pass-00000004"
    kept = ("card.json", "manifest.json", "state.parquet", "users.parquet", "waiting.parquet")
    assert stream.state_files() == [
        *("state/manifest.json", folder),
        *(f"{folder}/{name}" for name in kept),
        "state/status.json",
    ]


def test_a_slot_closes_with_its_lateness_and_quiet_slots_too(stream):
    stream.clock(day(2))
    waiting = stream(allowed_lateness="90m")
    assert "nothing to do" in waiting.out
    stream.events("a.csv", visits(1))
    stream.clock(day(2, 1) + dt.timedelta(minutes=29, seconds=59))
    stream(allowed_lateness="90m")
    assert stream.rows("out.jsonl") == []
    stream.clock(day(2, 1) + dt.timedelta(minutes=30))
    stream(allowed_lateness="90m")
    assert [row["start"] for row in stream.rows("out.jsonl")] == [day(1)]
    stream.clock(day(5, 2))
    stream(allowed_lateness="90m")
    assert [row["start"] for row in stream.rows("out.jsonl")] == [day(d) for d in range(1, 5)]


def test_events_of_released_slots_are_late_and_others_of_their_file_count(stream):
    stream.events("a.csv", visits(1) + visits(2))
    stream.clock(day(2))
    stream()
    stream.events("b.csv", visits(1, range(5)) + visits(3))
    stream.events("b0.csv", [("u1", "A", day(1) - dt.timedelta(days=1))])
    stream.clock(day(10))
    outcome = stream()
    found = letters(stream.rows("rejected.jsonl"))
    late = len(visits(1, range(5)))
    assert f"{late} late" in outcome.out
    assert found == {
        **{("b.csv", row, "late"): 1 for row in range(2, 2 + late)},
        ("b0.csv", 2, "outside the released slots"): 1,
    }
    stream.events("b.csv", visits(3))
    assert stream.rows("out.jsonl") == once(stream)[0]


def test_the_end_may_move_on_and_what_lies_beyond_it_waits(stream):
    stream.events("a.csv", [row for d in range(1, 10) for row in visits(d)])
    stream.clock(day(10))
    for end in ("2024-01-03", "2024-01-03", "2024-01-07", "2024-01-10"):
        stream(end=end)
    assert stream.rows("out.jsonl") == once(stream)[0]
    assert stream.rows("rejected.jsonl") == []


# ---- what closes a slot ------------------------------------------------------------------------

MARKER = "marker:done/%Y-%m-%d.ok"
FILES = "files:in/%Y-%m-%d*.csv"


@pytest.fixture
def drops(stream, monkeypatch):
    """The stream in its folder, with a folder of markers."""
    monkeypatch.chdir(stream.folder)
    (stream.folder / "done").mkdir()
    return stream


def released(stream):
    return [row["start"] for row in stream.rows("out.jsonl")]


def mark(stream, n):
    (stream.folder / "done" / f"2024-01-{n:02}.ok").touch()


def test_a_drop_that_is_late_is_waited_for_with_markers(drops):
    """By the clock its slot was released as empty, and its events were late."""
    stream, flags = drops, {"close_by": MARKER}
    stream.events("1.csv", visits(1))
    mark(stream, 1)
    stream.clock(day(3, 12))
    outcome = stream(**flags)
    assert released(stream) == [day(1)]
    assert "2024-01-02T00:00:00Z waits for its marker done/2024-01-02.ok" in outcome.out
    outcome = stream(**flags)
    assert "nothing to do" not in outcome.out
    assert "waits for its marker" in outcome.out
    stream.events("3.csv", visits(3))
    mark(stream, 3)
    stream.clock(day(4))
    outcome = stream(**flags)
    assert released(stream) == [day(1)]
    assert "that of a later slot, done/2024-01-03.ok, is there" in outcome.out
    stream.events("2.csv", visits(2))
    mark(stream, 2)
    mark(stream, 4)  # not before its time is over
    outcome = stream(**flags)
    assert "waits" not in outcome.out
    assert stream.rows("rejected.jsonl") == []
    assert stream.rows("out.jsonl") == once(stream)[0][:3]


def test_a_file_of_a_later_slot_closes_those_before_it(drops):
    stream, flags = drops, {"close_by": FILES}
    stream.events("2024-01-01.csv", visits(1))
    stream.clock(day(3, 12))
    outcome = stream(**flags)
    assert released(stream) == []
    assert "2024-01-01T00:00:00Z waits for a file of a later slot, such as in/2024-01-02*.csv" in (
        outcome.out
    )
    stream.events("2024-01-09.csv", visits(9))  # from a broken clock: its time has not come
    assert "waits" in stream(**flags).out
    stream.events("2024-01-03-early.csv", visits(3))
    stream(**flags)
    assert released(stream) == [day(1), day(2)]
    stream.clock(day(4))
    assert "such as in/2024-01-04*.csv" in stream(**flags).out
    stream.clock(day(10))
    stream(**flags)
    assert released(stream) == [day(d) for d in range(1, 9)]
    assert stream.rows("rejected.jsonl") == []


def test_when_a_slot_closes_does_not_hang_on_what_is_in_the_files(drops):
    """A file of nobody's events closes as any other does."""
    stream, flags = drops, {"close_by": FILES}
    stream.events("2024-01-01.csv", visits(1))
    stream.events("2024-01-02.csv", [])
    stream.clock(day(3))
    stream(**flags)
    assert released(stream) == [day(1)]


def test_names_tell_the_day_of_a_calendar(drops):
    """Days of Berlin begin on the day before in UTC; that of 31 March has 23 hours."""
    stream, flags = drops, {"close_by": MARKER, "start": "2024-03-30", "slot_zone": "Europe/Berlin"}
    stream.clock(dt.datetime(2024, 4, 5, tzinfo=UTC))
    (stream.folder / "done" / "2024-03-30.ok").touch()
    stream.events("a.csv", [("u1", "A", dt.datetime(2024, 3, 30, 9, tzinfo=UTC))])
    assert "the slot of 2024-03-31T00:00:00+01:00 waits for its marker done/2024-03-31.ok" in (
        stream(**flags).out
    )
    assert released(stream) == [dt.datetime(2024, 3, 29, 23, tzinfo=UTC)]
    for name in ("2024-03-31", "2024-04-01"):
        (stream.folder / "done" / f"{name}.ok").touch()
    assert "waits for its marker done/2024-04-02.ok" in stream(**flags).out
    assert [(at.day, at.hour) for at in released(stream)] == [(29, 23), (30, 23), (31, 22)]


def test_the_clock_alone_says_which_slots_no_file_came_for(stream):
    stream.events("a.csv", visits(1))
    stream.clock(day(2))
    words = "no input file has come since the slot of"
    assert words not in stream().log
    stream.clock(day(3))
    outcome = stream()
    assert f"{words} 2024-01-02T00:00:00Z began" in outcome.log
    assert "--close_by" in outcome.log
    stream.events("c.csv", visits(3))
    written = day(3, 22).timestamp()
    os.utime(stream.folder / "in" / "c.csv", (written, written))
    stream.clock(day(6))
    assert f"{words} 2024-01-04T00:00:00Z began, nor for the next 1:" in stream().log


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("files", ["--close_by=files is incomplete", "files:PATTERN"]),
        ("marker:done", ["--close_by=marker:done is incomplete"]),
        ("noon", ["clock, marker:PATTERN"]),
        ("marker:%H.ok", ["2024-01-01", "2024-01-02", "one name, 00.ok"]),
        ("files:in/%m-%d.csv", ["2024-01-01", "one name", "write the year"]),
    ],
)
def test_a_rule_that_cannot_tell_slots_apart_is_refused(stream, rule, words):
    stream.clock(day(2))
    stream.refused(*words, close_by=rule)
    assert stream.state_files() == [] or "state/manifest.json" not in stream.state_files()


# ---- files come and go -------------------------------------------------------------------------


def test_a_finished_file_is_not_read_again_and_may_go(stream):
    stream.events("a.csv", visits(1))
    stream.events("b.csv", visits(1) + visits(3))
    stream.clock(day(2))
    stream()
    (stream.folder / "in" / "a.csv").unlink()
    stream.clock(day(3))
    stream()
    manifest = (stream.folder / "state" / "manifest.json").read_text()
    assert "b.csv" in manifest
    assert "a.csv" not in manifest
    stream.events("a.csv", visits(1))
    assert stream.rows("out.jsonl") == once(stream)[0][:2]


def test_a_file_that_changed_after_it_was_read_is_refused(stream):
    stream.events("a.csv", visits(1))
    stream.clock(day(2))
    stream()
    path = stream.folder / "in" / "a.csv"
    whole = path.read_bytes()
    stream.clock(day(3))
    stream.events("a.csv", visits(1) + visits(2))
    stream.refused("a.csv", "bytes when it was read", "files of their own")
    path.write_bytes(whole.replace(b"B", b"A"))
    stream.refused("a.csv", "has changed since it was read", "with the same size")
    path.write_bytes(whole)
    stream.events("b.csv", visits(2))
    assert "a.csv was written again since it was read" in stream().log
    stream.clock(day(4))
    assert "was written again" not in stream().log
    assert stream.rows("out.jsonl") == once(stream)[0][:3]


# ---- input that is missing ---------------------------------------------------------------------


def test_input_that_is_missing_is_no_quiet_slot(stream):
    """A wrong path, a folder that is gone, events that wait in a file that is gone."""
    stream.clock(day(2))
    stream.stopped("no file matches --input", "--missing_input=wait")
    stream.stopped("no folder", "away", input=stream.job.path("away/*.csv"))
    stream.events("a.csv", visits(1))
    stream.events("c.csv", visits(2))
    stream()
    (stream.folder / "in" / "c.csv").rename(stream.folder / "c.csv")
    stream.clock(day(3))
    stream.refused("1 file with events that wait", "c.csv", "from 2024-01-02", "bring them back")
    waiting = stream(missing_input="wait")
    assert "slots wait: the input is missing: 1 file" in waiting.out
    assert "nothing to do" not in waiting.out
    (stream.folder / "c.csv").rename(stream.folder / "in" / "c.csv")
    stream()
    for path in (stream.folder / "in").iterdir():
        path.unlink()
    stream.clock(day(4))
    stream.stopped("no file matches --input")
    assert "--missing_input=ignore" in stream(missing_input="ignore").log
    assert released(stream) == [day(d) for d in (1, 2, 3)]
    assert stream.rows("rejected.jsonl") == []


def test_a_disk_that_is_not_mounted_any_more_is_missing(stream, monkeypatch):
    disk = str(stream.folder / "in")
    real = os.path.ismount
    monkeypatch.setattr(os.path, "ismount", lambda path: path == disk or real(path))
    stream.events("a.csv", visits(1))
    stream.clock(day(2))
    stream()
    monkeypatch.setattr(os.path, "ismount", real)  # the folder is there, and files of old are
    stream.clock(day(3))
    stream.refused("nothing is mounted at", disk, "mount it again")
    stream(missing_input="ignore")
    stream.clock(day(4))
    stream()
    assert released(stream) == [day(d) for d in (1, 2, 3)]


def test_following_waits_for_input_and_goes_on(stream, monkeypatch):
    stream.events("a.csv", visits(1))
    stream.clock(day(2))
    stream()
    path = stream.folder / "in" / "a.csv"
    path.rename(stream.folder / "a.csv")
    stream.clock(day(3))

    looked = Monitor.looked

    def look(self, waits_for=None):
        looked(self, waits_for)
        looks.append(waits_for)
        if len(looks) == 3:
            (stream.folder / "a.csv").rename(path)

    looks = []
    monkeypatch.setattr(Monitor, "looked", look)
    outcome = stream(follow="100ms", missing_input="wait", end="2024-01-03")
    assert outcome.out.count("slots wait: the input is missing") == 1
    assert stream.rows("out.jsonl") == once(stream)[0][:2]


def test_a_bad_file_is_a_dead_letter_and_following_goes_on(stream):
    """One that is no Parquet, one that was cut, an empty one: among good ones."""
    stream.flags["input"] = stream.job.path("in/*")
    stream.events("a.parquet", visits(1))
    stream.clock(day(3))
    whole = (stream.folder / "in" / "a.parquet").read_bytes()
    (stream.folder / "in" / "b.parquet").write_bytes(b"PAR1" + b"\0" * 900)
    (stream.folder / "in" / "c.parquet").write_bytes(whole[: len(whole) // 2])
    (stream.folder / "in" / "d.csv").write_text("")
    stream.events("e.csv", visits(2))
    stream.stopped("the file", end="2024-01-03")
    outcome = stream(follow="100ms", end="2024-01-03")
    assert "3 files could not be read" in outcome.out
    assert letters(stream.rows("rejected.jsonl")) == {
        (name, None, "unreadable file"): 1 for name in ("b.parquet", "c.parquet", "d.csv")
    }
    for name in ("b.parquet", "c.parquet", "d.csv"):
        (stream.folder / "in" / name).unlink()
    assert stream.rows("out.jsonl") == once(stream, "in/*")[0][:2]


def test_files_none_of_which_can_be_read_are_a_wrong_option(stream):
    stream.events("a.csv", visits(1))
    stream.events("b.csv", visits(1))
    stream.clock(day(2))
    stream.stopped("no column 'usr'", user_column="usr", follow="100ms", end="2024-01-02")


def test_a_file_that_cannot_be_read_again_is_not_left_out(stream, monkeypatch):
    """It was reported as good, and events of it wait: so this is no dead letter."""
    stream.events("a.csv", visits(1) + visits(2))
    stream.clock(day(2))
    stream()
    stream.events("b.csv", visits(2))
    stream.clock(day(3))
    refuse_to_read("a.csv", 0, monkeypatch)
    stream.stopped("the disk is bad", follow="100ms", end="2024-01-03")
    monkeypatch.undo()
    stream(follow="100ms", end="2024-01-03")
    assert stream.rows("out.jsonl") == once(stream)[0][:2]


def test_of_a_broken_file_what_was_read_counts_in_every_pass(stream, monkeypatch):
    stream.events("a.csv", visits(1))
    stream.clock(day(2))
    stream()
    stream.events("b.csv", visits(2) + visits(3))
    refuse_to_read("b.csv", 1, monkeypatch)
    for n in (3, 4):
        stream.clock(day(n))
        stream(follow="100ms", end=f"2024-01-0{n}")
    monkeypatch.undo()
    assert letters(stream.rows("rejected.jsonl")) == {("b.csv", None, "unreadable file"): 1}
    assert stream.rows("out.jsonl") == once(stream)[0][:3]


def refuse_to_read(name, batches, monkeypatch):
    """Let a disk refuse a file behind some batches."""
    read_part = events.read_part

    def read(part, *given):
        for number, batch in enumerate(read_part(part, *given)):
            if part.path.endswith(name) and number >= batches:
                break
            yield batch
        if part.path.endswith(name):
            raise ConfigurationError(f"{part.path}: the disk is bad")

    monkeypatch.setattr(events, "read_part", read)


def test_late_events_hold_no_slot_back_while_a_stream_is_followed(stream):
    """Nor do others that are lost: one user's record must not stop what is of all."""
    stream.events("a.csv", visits(1))
    stream.clock(day(2))
    stream()
    stream.events("b.csv", [("u1", "A", day(1)), ("nobody", "A", day(2))])
    stream.clock(day(3))
    assert stream.job(**stream.flags_with({})).code == 3
    outcome = stream(follow="100ms", end="2024-01-03")
    assert "rejected: no requirement 1\n" in outcome.out
    assert "warning: 2 of 2 events were rejected or late" in outcome.out
    assert released(stream) == [day(1), day(2)]


# ---- catching up -------------------------------------------------------------------------------


def test_a_gap_is_caught_up_in_passes_that_are_committed_each(stream):
    stream.events("a.csv", [row for d in range(1, 10) for row in visits(d)])
    stream.clock(day(10))
    outcome = stream(slots_per_pass=4)
    assert outcome.out.count("slots released") + outcome.out.count("slot released") == 3
    assert len(list(stream.folder.glob("out-0000000?.jsonl"))) == 3
    assert stream.rows("out.jsonl") == once(stream)[0]
    stream.refused("slots_per_pass", slots_per_pass=0)


def test_the_results_of_all_passes_are_listed_once_a_run_not_once_a_pass(stream, monkeypatch):
    """Of slots of two seconds they are a hundred thousand files after a day."""
    (stream.folder / "results").mkdir()
    stream.flags |= {
        flag: stream.job.path(f"results/{flag}.jsonl") for flag in ("output", "ledger", "rejected")
    }
    stream.events("a.csv", [row for d in range(1, 5) for row in visits(d)])
    listed, scandir = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda path=".": listed.append(str(path)) or scandir(path))
    times = []
    for d in (2, 5):  # one pass, three passes
        stream.clock(day(d))
        listed.clear()
        stream(slots_per_pass=1)
        times.append(listed.count(str(stream.folder / "results")))
    assert times[0] == times[1] > 0


def test_a_result_that_another_run_puts_there_meanwhile_is_refused(stream, monkeypatch):
    stream.events("a.csv", [row for d in range(1, 5) for row in visits(d)])
    stream.clock(day(5))
    passed = Monitor.passed

    def and_another_run_writes(*given):
        stream.job.write("out-00000002.jsonl", "something else\n")
        passed(*given)

    monkeypatch.setattr(Monitor, "passed", and_another_run_writes)
    stream.stopped("out-00000002.jsonl exists already", "is at pass 1:", slots_per_pass=1)
    assert (stream.folder / "out-00000002.jsonl").read_text() == "something else\n"


def test_a_clock_that_cannot_be_right_is_refused(stream):
    ahead = dt.datetime.now(UTC) + dt.timedelta(days=2)
    stream.events("a.csv", visits(1))
    stream.clock(ahead)
    stream.stopped("--clock_file", "2.0 days ahead of the clock of this machine")
    stream.clock(day(5))
    stream()
    stream.clock(day(2))
    stream.refused(
        "2024-01-02", "slots up to 2024-01-05T00:00:00Z are released", "the clock went back"
    )


# A pass that failed left its folder behind; mended, it is run again and gives what it would have.
def test_a_pass_that_failed_is_run_again(stream):
    stream.events("a.csv", visits(1))
    stream.clock(day(2))
    stream()
    stream.events("b.csv", visits(2))
    empty = stream.folder / "in" / "c.csv"
    empty.write_text("")
    stream.clock(day(10))
    outcome = stream.job(**stream.flags_with({}))
    assert outcome.code == 2
    assert "c.csv: the file is empty" in outcome.message
    assert "state/pass-00000002.part" in stream.state_files()
    empty.unlink()
    stream()
    assert stream.rows("out.jsonl") == once(stream)[0]


def test_names_with_brackets_are_names(stream, toolbox):
    stream.job.requirements({"u1": (1, toolbox.EXACT)})
    stream.events("[a].csv", [("u1", "B", day(1))])
    stream.events("a.csv", [("u1", "C", day(2))])
    stream.clock(day(3))
    stream(mechanism="pba")
    assert [row["counts"] for row in stream.rows("out.jsonl")] == [[0, 1, 0], [0, 0, 1]]


# ---- what is refused ---------------------------------------------------------------------------


def test_a_state_is_neither_begun_nor_gone_on_from_by_mistake(stream):
    stream.clock(day(2))
    empty = stream.job.folder / "empty"
    empty.mkdir()
    stream.refused("no state to resume", "newest backup", resume="true", state=empty)
    stream.refused("--state", "No such file", "newest backup", resume=True)
    stream.refused("--start is missing", start=None, state=empty)
    stream.events("a.csv", visits(1))
    stream()
    stream.refused("has the state of a stream", "--resume", resume=None)
    stream.refused("has the state of a stream", "--resume", resume="false")
    stream.refused("--start", "2024-01-01", start="2024-01-02")
    stream.refused("another configuration: the mechanism changed", mechanism="pba")
    stream.refused("another configuration: ", "the mechanism", mechanism="dpbd")
    stream.refused("another configuration: the slots changed", slot="2d")
    stream.refused("the choice of the events that are kept changed", keep="distinct")
    stream.refused("another configuration: the bins changed", domain="A,B")
    stream.refused("noise key", noise_key=stream.job.key("77" * 32, "other"))
    stream.refused("neither true nor false", resume="maybe")
    stream.clock(day(3))
    stream(start=None)
    # Slots begin at --start.
    stream.refused("another configuration: the slots changed", start="2024-01-01T12:00:00Z")


def test_other_slots_are_reported_as_such_also_before_the_first_release(stream):
    """Not as another start, which slots of another length have."""
    stream.clock(day(1))
    stream()
    begun = {"resume": True}
    stream.refused("the slots changed: --slot=2d", "of slot 1d", slot="2d", **begun)
    stream.refused("--slot_zone=Europe/Berlin", slot_zone="Europe/Berlin", **begun)
    stream.refused("--origin", origin="2024-01-01T06:00:00Z", **begun)
    stream.refused("--start is not in the slot that", start="2024-01-02", **begun)


# Two rows of the table exchange their users: who was promised 0.5 would be charged 1.5.
def test_a_state_is_not_gone_on_from_with_users_who_exchanged_classes(stream):
    stream.events("a.csv", visits(1))
    stream.clock(day(2))
    stream(mechanism="pba")
    first, second, *others = USERS
    exchanged = zip((second, first, *others), USERS.values(), strict=True)
    stream.job.requirements(dict(exchanged))
    stream.clock(day(3))
    stream.refused("another configuration: the table of users changed (2 users:", mechanism="pba")
    stream.job.requirements(USERS)
    stream(mechanism="pba")


# A key that no slot was released with can change; one that was used cannot, nor be left out.
def test_another_key_from_a_slot_on_that_is_not_released(stream):
    first, *others = (stream.job.key(name * 32, name) for name in ("5e", "aa", "bb", "cc"))

    def keys(*days):
        later = zip(others, days, strict=False)
        return ",".join([first, *(f"{key}@2024-01-{n:02}" for key, n in later if n)])

    stream.events("a.csv", [row for d in range(1, 10) for row in visits(d)])
    stream.clock(day(3))
    stream(noise_key=first)
    stream.refused("slot 19725", "2024-01-03", noise_key=keys(2))
    stream.clock(day(4))
    stream(noise_key=keys(5))
    stream.refused("slot 19726", "2024-01-04", noise_key=keys(3))
    stream.clock(day(6))
    stream(noise_key=keys(0, 4))
    for used in (first, keys(4), keys(0, 5), keys(0, 4, 5)):
        stream.refused("that the stream of", "has used", "--noise_key", noise_key=used)
    stream.refused("began with", noise_key=f"{others[2]},{others[1]}@2024-01-04")
    stream.clock(day(10))
    stream(noise_key=keys(0, 4, 8))
    assert stream.rows("out.jsonl") == once(stream, noise_key=keys(0, 4, 8))[0]


# As long as nothing was released, beginning again costs nothing.
def test_a_stream_that_failed_in_its_first_pass_may_begin_again(stream):
    stream.events("a.csv", visits(1))
    stream.clock(day(2))
    flags = {**stream.flags, "start": "2023-12-31", "noise_key": None}
    outcome = stream.job(**{**flags, "user_column": "usr"})
    assert outcome.code == 2
    assert "'usr'" in outcome.message
    assert "state/manifest.json" in stream.state_files()
    stream(resume=None)
    assert stream.rows("out.jsonl") == once(stream)[0][:1]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"state": None, "clock_file": None, "resume": True}, ["--resume", "--state"]),
        ({"state": None, "clock_file": None, "follow": "1s"}, ["--follow", "--state"]),
        ({"state": None}, ["--clock_file", "--state"]),
        ({"state": None, "clock_file": None, "close_by": "clock"}, ["--close_by", "--state"]),
        ({"follow": "0s"}, ["--follow", "above 0"]),
        ({"follow": "often"}, ["--follow", "often"]),
        ({"allowed_lateness": "1"}, ["--allowed_lateness"]),
        ({"clock_file": "none"}, ["--clock_file=none", "No such file"]),
        ({"clock_file": "users.csv"}, ["--clock_file"]),
        ({"input": "watch:in/*.csv"}, ["watch:in/*.csv", "is not files"]),
        ({"output": "kafka:broker:9092/topic"}, ["kafka:broker:9092/topic", "is not files"]),
        ({"output": "gs://bucket/out.csv"}, ["gs://bucket/out.csv", "filesystem"]),
        ({"state": "gs://bucket/state"}, ["not a local folder"]),
        ({"output": "/proc/out.csv"}, ["/proc/out.csv", "filesystem"]),
        ({"ledger": "out.jsonl"}, ["two outputs"]),
        ({"output": "missing/out.csv"}, ["is not a directory"]),
    ],
)
def test_options_that_do_not_fit_are_refused(stream, monkeypatch, flags, words):
    monkeypatch.chdir(stream.folder)
    stream.clock(day(2))
    (stream.folder / "state").mkdir()
    stream.flags["noise_key"] = stream.job.key()
    outcome = stream.job(**{**stream.flags, "output": "out.jsonl", **flags})
    assert outcome.code == 2
    assert all(word in outcome.message for word in words), outcome.message
    assert list(stream.folder.glob("out-*")) == []


def test_a_result_that_is_there_already_is_never_replaced(stream):
    stream.events("a.csv", visits(1))
    stream.clock(day(2))
    stream.job.write("out-00000001.jsonl", "something else\n")
    stream.refused("out-00000001.jsonl", "exists already")


def test_without_a_key_the_state_keeps_one(stream):
    stream.events("a.csv", visits(1))
    stream.flags["noise_key"] = None
    for d in (2, 5):
        stream.clock(day(d))
        outcome = stream()
    key = stream.folder / "state" / "noise.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert key.read_text() not in outcome.out + outcome.err + outcome.log
    stream.clock(day(10))
    stream()
    assert stream.rows("out.jsonl") == once(stream, noise_key=f"file:{key}")[0]


# ---- what happens to a folder -----------------------------------------------------------------


def test_one_run_at_a_time(stream):
    stream.clock(day(2))
    stream.events("a.csv", visits(1))
    stream()
    with StateFolder.held(str(stream.folder / "state")):
        stream.refused("in use by another run")


def put_back(stream, copy):
    shutil.rmtree(stream.folder / "state")
    shutil.copytree(copy, stream.folder / "state")


# Seen by what is beside the results: a witness, and the numbers of the results themselves.
def test_an_old_copy_of_the_folder_is_refused_as_long_as_anything_tells(stream):
    stream.events("a.csv", [row for d in range(1, 10) for row in visits(d)])
    for n in (1, 2, 3):
        stream.clock(day(n + 1))
        stream()
        shutil.copytree(stream.folder / "state", stream.folder / f"copy{n}")
    witness = stream.folder / ".out.jsonl.witness"
    put_back(stream, stream.folder / "copy1")
    stream.refused("out-00000002.jsonl exists already", "is at pass 1:", "old copy")
    seen = witness.read_bytes()
    witness.unlink()
    stream.refused("out-00000002.jsonl exists already")
    witness.write_bytes(seen)
    archive = stream.folder / "archive"
    archive.mkdir()
    for path in stream.folder.glob("*-0000000?.jsonl"):
        path.rename(archive / path.name)
    stream.refused("has seen pass 3", "knows of 1", "bring back the newest")
    stream.refused("has seen pass 3", output=stream.job.path("other.jsonl"))
    shutil.rmtree(stream.folder / "state")
    # Nothing is advised that releases a slot again: the longest window has four days.
    words = ("--start=2024-01-07T00:00:00Z or later", "if its users may ask for a longer window")
    stream.refused("up to 2024-01-04", "--resume", *words)
    # The newest copy, with the results of all passes moved away, goes on and has no complaint.
    put_back(stream, stream.folder / "copy3")
    stream.clock(day(5))
    assert "witness" not in stream().log
    # Nothing is left that could tell: that is said.
    witness.unlink()
    put_back(stream, stream.folder / "copy3")
    stream.refused("out-00000004.jsonl exists already")
    for path in stream.folder.glob("*-00000004.jsonl"):
        path.unlink()
    outcome = stream()
    assert "there is no high-water mark" in outcome.log
    for path in archive.glob("*.jsonl"):
        path.rename(stream.folder / path.name)
    assert stream.rows("out.jsonl") == once(stream)[0][:4]


def test_an_old_copy_is_refused_where_results_were_before_they_went_elsewhere(stream):
    stream.events("a.csv", [row for d in range(1, 10) for row in visits(d)])
    stream.clock(day(2))
    stream()
    shutil.copytree(stream.folder / "state", stream.folder / "copy")
    (stream.folder / "new").mkdir()
    elsewhere = {
        name: stream.job.path(f"new/{name}.jsonl") for name in ("output", "ledger", "rejected")
    }
    stream.clock(day(3))
    stream(**elsewhere)
    put_back(stream, stream.folder / "copy")
    stream.refused("has seen pass 2", "knows of 1 only", "old copy")


def test_no_manifest_or_an_older_one_keeps_the_ledgers(stream):
    stream.events("a.csv", [row for d in range(1, 10) for row in visits(d)])
    manifest = stream.folder / "state" / "manifest.json"
    manifests = []
    for n in (1, 2):
        stream.clock(day(n + 1))
        stream()
        manifests.append(manifest.read_bytes())
    stream.clock(day(10))
    for words in (["older", "is at pass 1:"], ["no manifest.json"]):
        manifest.write_bytes(manifests[0])
        if "no manifest.json" in words:
            manifest.unlink()
        for resume in (None, True):
            outcome = stream.refused("holds pass-00000002", "cp ", *words, resume=resume)
    command = outcome.message.partition("(")[2].partition(")")[0]
    subprocess.run(command.split(), check=True)
    assert manifest.read_bytes() == manifests[1]
    stream()
    assert stream.rows("out.jsonl") == once(stream)[0]


def test_a_damaged_key_in_the_folder_is_reported(stream):
    stream.events("a.csv", visits(1))
    stream.flags["noise_key"] = None
    stream.clock(day(2))
    stream()
    key = stream.folder / "state" / "noise.key"
    secret = key.read_text()
    stream.refused("began with", "give that one", noise_key=stream.job.key())
    for wrong, words in (
        (secret[:-1], "damaged or exchanged"),
        ("5e" * 32, "damaged or exchanged"),
        (secret[:9], "it holds 9 bytes"),
    ):
        key.write_text(wrong)
        stream.refused("noise", words, "backup")
    key.write_text(secret)
    key.chmod(0o644)
    stream.refused("can be read by every user", "600")
    key.unlink()
    stream.refused("noise.key is missing")


def test_two_streams_do_not_write_to_one_place(stream):
    stream.events("a.csv", visits(1))
    stream.clock(day(2))
    stream(
        output=stream.job.path("b.jsonl"),
        ledger=None,
        rejected=None,
        state=stream.job.path("b"),
        resume=None,
    )
    stream()
    stream.clock(day(3))
    (stream.folder / "b-00000001.jsonl").unlink()
    stream.refused("belongs to another stream", output=stream.job.path("b.jsonl"))
    stream()


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_state_and_dead_letters_are_for_their_owner_alone(stream, umask):
    stream.events("a.csv", [*visits(1), ("nobody", "A", day(1))])
    stream.clock(day(2))
    stream.flags["noise_key"] = None
    before = os.umask(umask)
    try:
        stream()
    finally:
        os.umask(before)
    modes = {
        str(path.relative_to(stream.folder)): stat.S_IMODE(path.stat().st_mode)
        for path in stream.folder.rglob("*")
    }
    state = {name: mode for name, mode in modes.items() if name.startswith("state")}
    assert set(state.values()) == {0o600, 0o700}
    assert state["state"] == state["state/pass-00000001"] == 0o700
    assert modes["rejected-00000001.jsonl"] == modes[".out.jsonl.witness"] == 0o600
    assert modes["out-00000001.jsonl"] == modes["ledger-00000001.jsonl"] == 0o666 & ~umask


# ---- a run that goes on ------------------------------------------------------------------------


def test_following_ends_with_the_end(stream):
    stream.events("a.csv", [row for d in range(1, 10) for row in visits(d)])
    stream.clock(day(30))
    stream(follow="1s", end="2024-01-10")
    assert stream.rows("out.jsonl") == once(stream)[0]


@pytest.fixture
def waits(monkeypatch):
    """The seconds that a run waited between looks; the machine's clock jumps over them."""
    begun, passed, waited = dt.datetime.now(UTC), dt.timedelta(), []

    @contextlib.contextmanager
    def stopping():
        def stopped_within(seconds):
            nonlocal passed
            passed += dt.timedelta(seconds=seconds)
            if seconds:
                waited.append(seconds)
            return len(waited) >= 20

        yield stopped_within

    def microseconds():
        return int((begun + passed).timestamp() * 1e6)

    monkeypatch.setattr("streamveil.pipelines.state_runs.follow.stopping", stopping)
    monkeypatch.setattr("streamveil.pipelines.state_runs.clocks._machine", microseconds)
    monkeypatch.setattr("streamveil.pipelines.state_runs.clocks._steady", microseconds)
    return waited


def following_now(stream, slots, **flags):
    """Follow a stream of slots of an hour by the machine's clock; gives the start of each slot."""
    hour = dt.timedelta(hours=1)
    start = dt.datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    starts = [start + n * hour for n in range(slots)]
    stream.events("a.csv", [("u1", "A", at) for at in starts])
    given = {"slot": "1h", "start": start.isoformat(), "end": (start + slots * hour).isoformat()}
    stream(**{**given, "clock_file": None, **flags})
    return starts


def test_following_looks_as_soon_as_a_slot_closes(stream, waits):
    starts = following_now(stream, 3, follow="40d", allowed_lateness="5m")
    assert released(stream) == starts
    to_the_first, *others = waits
    assert to_the_first < 3900
    assert others == [pytest.approx(3600)] * 2


def test_following_looks_for_what_a_slot_waits_for_at_its_interval(stream, waits, tmp_path):
    following_now(stream, 3, follow="50m", close_by=f"marker:{tmp_path}/%Y-%m-%dT%H")
    assert released(stream) == []
    assert waits[2:] == [50 * 60] * 18


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_pass_end(stream, number):
    stream.events("a.csv", visits(1))
    stream.clock(day(2))
    arguments = stream.job.arguments(follow="100ms", **stream.flags_with({}))
    command = [sys.executable, "-m", "streamveil", *arguments]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        for d in (2, 3):
            stream.events(f"{d}.csv", visits(d))
            stream.clock(day(d))
            while not (stream.folder / f"out-{d - 1:08d}.jsonl").exists():
                assert child.poll() is None, child.communicate()
                time.sleep(0.01)
        child.send_signal(number)
        out, _ = child.communicate(timeout=600)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 0, out
    assert "2024-01-01T00:00:00Z to 2024-01-02T00:00:00Z: 1 slot released" in out
    assert out.splitlines()[-1].startswith("stopped by a signal: ")
    stream.clock(day(10))
    stream()
    assert stream.rows("out.jsonl") == once(stream)[0]


# ---- what an operator sees --------------------------------------------------------------------


def status_of(stream):
    return json.loads((stream.folder / "state" / "status.json").read_text())


def test_the_status_says_what_became_of_the_run(stream):
    stream.events("a.csv", visits(1))
    stream.clock(day(3, 6))
    stream()
    status = status_of(stream)
    assert status["condition"] == "ended"
    assert status["last_released"]["start"] == "2024-01-02T00:00:00Z"
    assert status["oldest_open"]["start"] == "2024-01-03T00:00:00Z"
    assert (status["slots"], status["counted"], status["late"]) == (2, len(visits(1)), 0)
    assert (status["lag_seconds"], status["release_delay_seconds"]) == (0, 6 * 3600)
    assert status["state_bytes"] > 0
    stream.events("late.csv", [("u1", "A", day(1)), ("u1", "Z", day(4))])
    stream.clock(day(5))
    assert stream.job(**stream.flags_with({"max_rejected": 0})).code == 3
    status = status_of(stream)
    assert status["condition"] == "failed"
    assert "rejected or late" in status["last_error"]["message"]
    assert (status["backlog_slots"], status["lag_seconds"]) == (2, 24 * 3600)
    (stream.folder / "state" / "status.json").write_text("nonsense")
    stream.refused("--resume", resume=None)
    assert "--resume" in status_of(stream)["last_error"]["message"]
    (stream.folder / "state" / "status.json").unlink()
    stream(max_rejected=1)
    assert status_of(stream)["late"] == 1


@pytest.fixture
def fetched(monkeypatch):
    """The page for Prometheus as it was after every look, and the option for its port."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    pages, looked = [], Monitor.looked

    def look(self, *given):
        looked(self, *given)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
            pages.append(page.read().decode())

    monkeypatch.setattr(Monitor, "looked", look)
    return pages, port


def test_of_equal_releases_public_figures_are_equal_whatever_the_events(fetched, tmp_path, toolbox):
    pages, port = fetched
    rows = [row for d in range(1, 4) for row in visits(d)]
    more = [*rows, rows[0], rows[0], ("u1", "Z", day(2)), ("nobody", "A", day(2))]
    flags = {"follow": "1s", "end": "2024-01-04", "metrics_port": port}
    found = {}
    for name, visited in (("one", rows), ("other", more)):
        (tmp_path / name).mkdir()
        made = toolbox.Job(tmp_path / name)
        made.lines()
        other = Stream(made)
        other.clock(day(9))
        other.events("a.csv", visited)
        for group in ("public", "raw"):
            shutil.rmtree(other.folder / "state", ignore_errors=True)
            for path in (*other.folder.glob("*-0*"), *other.folder.glob(".*witness")):
                path.unlink()
            other(**flags, metrics=group)
            found[name, group] = pages[-1]
        found[name, "releases"] = other.rows("out.jsonl")
    assert found["one", "releases"] == found["other", "releases"]
    assert found["one", "public"] == found["other", "public"]
    assert "streamveil_oldest_open_slot" in found["one", "public"]
    assert found["one", "raw"] != found["other", "raw"]
    assert found["other", "raw"].startswith(found["other", "public"])


def test_that_releases_contradict_a_guess_is_said_in_one_pass(stream):
    for n in (1, 2, 3):
        stream.events(f"{n}.csv", visits(n))
    stream.clock(day(5))
    given = {"requirements": None, "default_requirement": "1,40,2", "slots_per_pass": 1}
    outcome = stream(end="2024-01-04", **given)
    text = outcome.out + outcome.err + outcome.log
    assert text.count("but --default_requirement names 2:") == 1
    assert all(sum(row["counts"]) > 2 for row in stream.rows("releases.jsonl"))
