"""How a run ends that is stopped, or that a disk refuses: in one line, nothing half written."""

import errno
import os
import signal
import time
from functools import partial

import pytest

from streamveil.mechanisms import ConfigurationError
from streamveil.pipelines.commands import release
from streamveil.pipelines.console.errors import refused_by_disk
from streamveil.pipelines.console.signals import ending, stopping
from streamveil.pipelines.jobs.run_with_card import _removed
from streamveil.pipelines.outputs.output_locks import claimed

DIGITS = "0123456789abcdef" * 2


def stopped(action, log, number):
    """Exit code of a process that gets a signal when it has done that, and what it said."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.signal(number, signal.SIG_DFL)  # it is ignored where tests run under nohup
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT), 2)
            with ending(action):
                os.write(write, b".")
                while True:  # a signal just before signal.pause() would be lost
                    time.sleep(0.05)
        finally:
            os._exit(70)
    os.close(write)
    os.read(read, 1)
    os.close(read)
    os.kill(child, number)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), log.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_removes_what_a_batch_has_begun_and_says_so(tmp_path, monkeypatch, number):
    monkeypatch.setattr("sys.stderr", os.fdopen(2, "w", closefd=False))
    begun = tmp_path / f".out.csv.{DIGITS}.part"
    other = tmp_path / f".out.csv.gz.{DIGITS}.part"
    whole = tmp_path / "ledger.csv"
    for path in (begun, other, whole):
        path.write_text("x")
    files = [str(tmp_path / "out.csv"), str(whole)]
    code, text = stopped(partial(_removed, files, files), tmp_path / "log", number)
    assert code == 128 + number
    assert text == (
        f"streamveil: stopped by {number.name}: removed 1 unfinished file; whole, and kept: "
        f"{whole}\n"
    )
    assert not begun.exists()
    assert other.exists()
    assert whole.exists()


def test_two_runs_at_a_time_do_not_write_one_output(job):
    ledger = job.path("ledger.csv")
    with claimed([ledger]):
        job.refused(f"{ledger}: another run is writing this output now", ledger=ledger)
    job.done(ledger=ledger)
    assert not list(job.folder.glob(".*"))
    with pytest.raises(ConfigurationError, match="exists already"), claimed([ledger]):
        pytest.fail("another run wrote it since it was checked")


def test_what_a_killed_run_claimed_is_free_again(tmp_path):
    output = str(tmp_path / "out.csv")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        with claimed([output]):
            os.write(write, b".")
            signal.pause()
    os.read(read, 1)
    with pytest.raises(ConfigurationError, match="another run"), claimed([output]):
        pytest.fail("two runs write it")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    for end in (read, write):
        os.close(end)
    with claimed([output]):
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())


def killed(action):
    """Let a process do that, and kill it then."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        with action():
            os.write(write, b".")
            signal.pause()
    os.read(read, 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(read)
    os.close(write)


def test_what_killed_runs_left_in_the_folder_is_removed_at_the_next_start(job):
    killed(lambda: claimed([job.path("other.csv"), job.path("out.jsonl")]))
    left = [f".other.csv.{DIGITS}.part", f".out.jsonl.card.json.{DIGITS}.part"]
    old = f".sum.json.{DIGITS}.part"
    foreign = [".other.csv.part", "mine.part", ".notes.claim", f".new.json.{DIGITS}.part"]
    for name in (*left, old, *foreign):
        job.write(name, "x")
    os.utime(job.path(old), (0, 0))
    before = {p.name for p in job.folder.iterdir()}
    assert {".other.csv.claim", ".out.jsonl.claim"} < before
    job.done(ledger=job.path("ledger.jsonl"))
    after = {p.name for p in job.folder.iterdir() if p.name.startswith(".")}
    assert after == set(foreign) - {"mine.part"}
    assert job.path("mine.part")


def test_what_a_running_run_claims_and_has_begun_stays(job):
    begun = job.write(f".other.csv.{DIGITS}.part", "x")
    card = job.write(f".other.csv.card.json.{DIGITS}.part", "x")
    for path in (begun, card):
        os.utime(path, (0, 0))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        with claimed([job.path("other.csv")]):
            for path in (begun, card):  # which cleaned up when it began
                job.write(os.path.basename(path), "x")
                os.utime(path, (0, 0))
            os.write(write, b".")
            signal.pause()
    os.read(read, 1)
    try:
        job.done()
        assert os.path.exists(job.path(".other.csv.claim"))
        assert os.path.exists(begun)
        assert os.path.exists(card)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(read)
        os.close(write)


def test_a_run_that_outlives_its_terminal_is_not_stopped_by_it():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        for held in (ending(str), stopping()):
            with held:
                assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with stopping() as stopped_within:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stopped_within(1)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space", "/d/x"), "/d/x: No space left on device: make room"),
        (OSError(errno.EROFS, "Read-only"), "a disk: Read-only file system: mount"),
        (
            RuntimeError(
                "OSError: [Errno 28] No space left on device: '/d/x' [while running 'Write']"
            ),
            "/d/x: No space left on device: make room",
        ),
        (RuntimeError("IOError: [Errno 5] Input/output error\nmore"), "Input/output error: look"),
        (OSError(errno.EFBIG, "Too large", "/d/x"), "/d/x: File too large: raise the limit"),
        (OSError(errno.ESTALE, "Stale", "/d/x"), "Stale file handle: mount its disk again"),
    ],
)
def test_what_has_a_remedy_is_one_line(job, monkeypatch, error, words):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(release, "run_and_tell", fail)
    outcome = job()
    assert outcome.code == 1
    assert outcome.err.startswith("streamveil release: failed: ")
    assert words in outcome.err
    assert outcome.err.count("\n") == 1
    assert outcome.log == ""


def test_other_errors_keep_their_traceback():
    assert refused_by_disk(ValueError("[Errno 2] No such file")) is None
    assert refused_by_disk(ConfigurationError("no")) is None
    outer = ValueError("outer")
    outer.__cause__ = OSError(errno.EDQUOT, "quota", "/d/x")
    assert "make room" in str(refused_by_disk(outer))
