"""A fault of the machine costs no file: it is waited for, then the run stops, and may go on."""

import contextlib
import ctypes
import datetime as dt
import errno
import io
import os
import resource
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamveil.io import filesystems, read_table
from streamveil.io.faults import fault_in_reading, is_memory_short
from streamveil.mechanisms import ConfigurationError
from streamveil.mechanisms.core.records import MachineFault
from streamveil.pipelines.console.errors import may_pass
from streamveil.pipelines.main import main
from streamveil.pipelines.state_runs import follow

NOBODY = 65534
JAN_1 = dt.datetime(2024, 1, 1, 8, tzinfo=dt.timezone.utc)


@pytest.fixture
def quickly(monkeypatch):
    """Runs that wait for a machine for a short while only."""
    monkeypatch.setattr(follow, "_WAITS", (0.05,) * 3)


class Stream:
    """A followed folder with a file for each of two days, and runs in processes of their own."""

    def __init__(self, job):
        self.job, self.folder = job, Path(job.folder)
        os.unlink(job.path("events.csv"))
        (self.folder / "in").mkdir()
        job.lines("u1,A,2024-01-01T08:00:00Z", "u2,B,2024-01-01T09:30:00Z", name="in/1.csv")
        job.lines("u3,B,2024-01-02T00:00:00Z", name="in/2.csv")
        job.write("clock", "2024-01-03T00:00:00Z")
        self.flags = {**job.kept(), "clock_file": job.path("clock"), "end": "2024-01-03"}

    def path(self, name):
        return self.folder / name

    def run(self, before=None, **flags):
        """Exit code and words of a run; `before` happens in its process, and may fail it."""
        resume = True if (self.folder / "state" / "manifest.json").exists() else None
        given = {"follow": "100ms", "resume": resume, **self.flags, **flags}
        log = self.folder / "log"
        child = os.fork()
        if child == 0:
            code = 70
            try:
                handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(handle, 1)
                os.dup2(handle, 2)
                sys.stdout = sys.stderr = io.TextIOWrapper(os.fdopen(1, "wb", closefd=False))
                if before is not None:
                    before()
                code = main(self.job.arguments(**given))
                sys.stdout.flush()
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return code, log.read_text()

    def rows(self, name):
        paths = sorted(self.folder.glob(f"{name}-????????.jsonl"))
        return [row for path in paths for row in read_table(str(path)).to_pylist()]

    def stopped(self, *words, code=1, before=None, **flags):
        """A run that stops in these words, and loses nothing: the next one releases all."""
        found, said = self.run(before, **flags)
        assert found == code, said
        assert "Traceback" not in said
        last = said.splitlines()[-1]
        assert last.startswith("streamveil release: ")
        assert not [word for word in words if word not in last], said
        assert "unreadable file" not in said
        assert self.rows("out") == []
        return said

    def whole(self):
        """All is released, and nothing is a dead letter."""
        code, said = self.run()
        assert code == 0, said
        assert [row["counts"] for row in self.rows("out")] == [[1, 1, 0], [0, 1, 0]]
        assert self.rows("rejected") == []


@pytest.fixture
def stream(job, quickly):
    return Stream(job)


def failing_open(number, times, name="2.csv"):
    """In a run: opening a file fails so many times."""

    def before():
        opened = filesystems.open_to_read

        def fail(path):
            nonlocal times
            if path.endswith(name) and times:
                times -= 1
                raise OSError(number, os.strerror(number), path)
            return opened(path)

        filesystems.open_to_read = fail

    return before


@pytest.mark.slow
@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EMFILE, errno.EACCES])
def test_a_fault_that_passes_is_waited_for(stream, number):
    code, said = stream.run(failing_open(number, times=3))
    assert code == 0, said
    assert f"2.csv could not be read from line 1 on: {os.strerror(number)}" in said
    assert "trying again in" in said
    stream.whole()


PLAIN = {"follow": None, "state": None, "clock_file": None, "resume": None}


@pytest.mark.parametrize("flags", [{}, {"follow": None}, PLAIN])
def test_a_fault_that_stays_stops_the_run_before_the_slot_closes(stream, flags):
    words = "2.csv could not be read from line 1 on: Input/output error: look after its disk, and"
    stream.stopped(words, before=failing_open(errno.EIO, times=10**6), **flags)
    stream.whole()


def as_nobody():
    os.setegid(NOBODY)
    os.seteuid(NOBODY)


@pytest.fixture
def owned(job, quickly):
    """A stream of another user, who may not read what its mode forbids."""
    folder = Path(tempfile.mkdtemp())  # above pytest's own folders there is one of root's alone
    made = type(job)(folder)
    for name in ("users.csv", "events.csv"):
        shutil.copy(job.path(name), folder)
    yield Stream(made)
    shutil.rmtree(folder)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.mark.slow
@needs_root
@pytest.mark.parametrize("forbidden", ["in/2.csv", "in", "deep"])
def test_what_may_not_be_read_for_a_moment_is_not_lost(owned, forbidden):
    stream = owned
    if forbidden == "deep":
        (stream.path("in") / "deep").mkdir()
        stream.path("in/2.csv").rename(stream.path("in/deep/2.csv"))
        stream.path("in/other").mkdir(mode=0)
        stream.path("in/1.csv").rename(stream.path("in/deep/1.csv"))
        stream.flags["input"] = stream.job.path("in/d*/*.csv")
        forbidden = "in/deep"
    for path in [stream.folder, *stream.folder.rglob("*")]:
        os.chown(path, NOBODY, NOBODY)
    path = stream.path(forbidden)
    os.chown(path, 0, 0)
    path.chmod(0o600)
    stream.stopped("Permission denied: let this user read it", before=as_nobody)

    def restore():
        time.sleep(0.1)
        path.chmod(0o755)

    thread = threading.Thread(target=restore)
    thread.start()
    code, said = stream.run(lambda: (setattr(follow, "_WAITS", (0.1,) * 50), as_nobody()))
    thread.join()
    assert code == 0, said
    stream.whole()


@pytest.mark.slow
def test_short_memory_is_no_fault_of_a_file(stream):
    long = pa.array(["A" * 1000] * 500_000)
    events = pa.table({"user": ["u3"] * len(long), "value": long, "time": [JAN_1] * len(long)})
    pq.write_table(events, stream.path("in/3.parquet"), use_dictionary=["user", "time"])
    stream.flags |= {"input": stream.job.path("in/*"), "other": "long", "domain": "A,B"}
    stream.flags["max_rejected"] = 1

    def limited():
        begun = follow.Follow._start
        pa.set_memory_pool(pa.system_memory_pool())  # others have reserved much before
        ctypes.CDLL(None).malloc_trim(0)  # nor may what earlier tests let go of be enough

        def start(self):
            found = begun(self)
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
            return found

        follow.Follow._start = start

    said = stream.stopped("out of memory", before=limited)
    assert "cannot be read" not in said
    code, said = stream.run()
    assert code == 0, said
    assert stream.rows("rejected") == []
    assert stream.rows("out")[0]["counts"] == [1, 1, 1]


def test_too_few_open_files_stop_a_run(stream):
    def limited():
        begun = follow.Follow._start

        def start(self):
            found = begun(self)
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            free = os.open(os.devnull, os.O_RDONLY)  # the lowest number that is
            os.close(free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, most))
            return found

        follow.Follow._start = start

    stream.stopped("Too many open files", before=limited)
    stream.whole()


def test_a_file_that_is_damaged_is_a_dead_letter_still(stream):
    with stream.path("in/2.csv.gz").open("wb") as file:
        file.write(b"\x1f\x8b no gzip")
    stream.flags["input"] = stream.job.path("in/*")
    code, said = stream.run()
    assert code == 0, said
    assert [row["reason"] for row in stream.rows("rejected")] == ["unreadable file"]


def test_a_damaged_length_in_avro_takes_no_memory(tmp_path):
    schema = pa.schema([("user", pa.string())])
    path = str(tmp_path / "a.avro")
    files_of = pa.RecordBatch.from_pydict({"user": ["u"] * 50}, schema=schema)
    from streamveil.io import write_table
    from streamveil.io.avro import read_avro

    write_table(path, schema, [files_of])
    data = bytearray(Path(path).read_bytes())
    at = data.rindex(data[-16:], 0, -16) + 16  # of the only block: its records, then its length
    Path(path).write_bytes(data[: at + 1] + b"\xfe\xff\xff\xff\xff\xff\xff\x7f" + data[at + 2 :])
    with pytest.raises(ConfigurationError, match="cannot be read"):
        list(read_avro(path, ["user"], lambda *_: None))


def test_what_a_killed_stream_has_begun_of_its_card_is_removed_at_the_next_start(stream):
    assert stream.run(end="2024-01-02")[0] == 0
    begun = stream.job.write(f".out.jsonl.card.json.{'0a' * 16}.part", "{}")
    stream.whole()
    assert not os.path.exists(begun)


# ---- a full disk -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "flags"),
    [(errno.ENOSPC, {}), (errno.EDQUOT, {"follow": None}), (errno.EIO, {}), (errno.EROFS, {})],
)
def test_a_disk_that_refuses_a_commit_is_a_failure_and_no_refusal(stream, number, flags):
    def before():
        def hook(event, arguments):
            if event == "open" and str(arguments[0]).endswith("manifest.json.part"):
                raise OSError(number, os.strerror(number), str(arguments[0]))

        begun = follow.Follow._pass

        def after(self, *given):
            sys.addaudithook(hook)
            return begun(self, *given)

        follow.Follow._pass = after

    stream.stopped("cannot be committed", os.strerror(number), before=before, **flags)
    stream.whole()


@needs_root
def test_a_full_disk_ends_with_1(stream):
    place = stream.path("disk")
    place.mkdir()
    if os.system(f"mount -t tmpfs -o size=200k tmpfs {place} 2>/dev/null"):
        pytest.skip("nothing can be mounted here")
    try:
        flags = {name: str(place / f"{name}.jsonl") for name in ("output", "ledger", "rejected")}
        flags["state"] = str(place / "state")
        stream.flags |= flags
        code, said = stream.run(end="2024-01-02")
        assert code == 0, said
        filler = place / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 512)
        stream.flags["resume"] = True
        code, said = stream.run()
        assert code == 1, said
        assert "No space left on device" in said.splitlines()[-1]
        filler.unlink()
        code, said = stream.run()
        assert code == 0, said
        assert len(list(place.glob("output-*.jsonl"))) == 2
    finally:
        os.system(f"umount {place}")


# ---- what is whose fault -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (MemoryError(), True),
        (pa.ArrowMemoryError("malloc of size 4096 failed"), True),
        (pa.ArrowMemoryError(f"malloc of size {1 << 60} failed"), False),
        (RuntimeError("can't start new thread"), True),
        (OSError(errno.EIO, "Input/output error"), True),
        (OSError(errno.EACCES, "Permission denied"), True),
        (OSError(errno.EISDIR, "Is a directory"), False),
        (OSError("Couldn't deserialize thrift"), False),
        (ValueError("not enough values"), False),
        (ConnectionResetError("reset"), True),
    ],
)
def test_faults_of_reading(error, passing):
    assert (fault_in_reading(error) is not None) is passing


def test_what_may_pass():
    caused = ConfigurationError("pass 3 cannot be committed")
    caused.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    assert may_pass(caused)
    for error in (
        MachineFault("x"),
        MemoryError(),
        RuntimeError("OSError: [Errno 24] Too many open files [while running 'Read']"),
        RuntimeError("pyarrow.lib.ArrowMemoryError: malloc of size 5 failed"),
    ):
        assert may_pass(error)
    for error in (ConfigurationError("[Errno 5] in a record"), ValueError("x")):
        assert not may_pass(error)
    assert not is_memory_short(OSError(errno.ENOENT, "out of memory.csv"))
