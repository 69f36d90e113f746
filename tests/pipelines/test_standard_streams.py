"""What standard input, output and error do to a run: a release that is done is no failure."""

import io
import os
import subprocess
import sys

import pytest

from streamveil.pipelines.main import main

NAMES = ("stdin", "stdout", "stderr")


@pytest.fixture
def shell():
    """Run a command in a process of its own, with these streams; None is for one that is closed."""

    def run(arguments, **streams):
        child = os.fork()
        if child == 0:
            code = 70
            try:
                _exchange([streams.get(name, os.devnull) for name in NAMES])
                code = main(arguments)
                for stream in filter(None, (sys.stdout, sys.stderr)):
                    stream.flush()  # as the interpreter does at its end
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    return run


def _exchange(places):
    """Put files, or nothing, in the place of the standard streams."""
    flags = os.O_RDWR | os.O_CREAT
    handles = [at if at is None or isinstance(at, int) else os.open(at, flags) for at in places]
    for number, (name, handle) in enumerate(zip(NAMES, handles, strict=True)):
        if handle is None:
            os.close(number)
            setattr(sys, name, None)
        else:
            os.dup2(handle, number)
            raw = os.fdopen(number, "wb" if number else "rb", closefd=False)
            setattr(sys, name, io.TextIOWrapper(raw, encoding="utf-8"))


def unread():
    """A pipe that nobody reads."""
    read, write = os.pipe()
    os.close(read)
    return write


CASES = {
    "full": {"stdout": "/dev/full"},
    "no errors": {"stderr": None},
    "no words": {"stdout": None},
    "nothing": {"stdin": None, "stdout": None, "stderr": None},
    "all full": {"stdout": "/dev/full", "stderr": "/dev/full"},
}


@pytest.mark.many
@pytest.mark.parametrize("case", [*CASES, "unread", "both unread"])
def test_what_is_released_is_done_whatever_becomes_of_its_words(job, shell, case):
    streams = CASES.get(case) or {"stdout": unread()}
    if case == "both unread":
        streams["stderr"] = streams["stdout"]
    log = job.folder / "log"
    assert shell(job.arguments(), **{"stderr": log, **streams}) == 0
    assert len(job.rows()) == 3
    said = log.read_text() if log.exists() else ""
    assert "Traceback" not in said
    message = (
        "streamveil: standard output cannot be written to (No space left on device); what was "
    )
    assert said == (f"{message}released stays\n" if case == "full" else "")


@pytest.mark.parametrize("command", ["collect", "per-record"])
def test_other_commands_that_release_are_done_as_well(job, shell, command):
    job.command = command
    flags = {}
    if command == "per-record":
        job.flags = {name: job.flags[name] for name in ("input", "output")}
        job.write("events.csv", "amount\n5\n7\n")
        flags = {"statistic": "sum", "value_column": "amount", "value_max": 10}
        flags |= {"budget": "inverse:10", "epsilon_max": 5}
    assert shell(job.arguments(**flags), stdout="/dev/full") == 0
    assert job.rows()
    os.unlink(job.path("out.jsonl"))
    assert shell(job.arguments(**flags), stderr=None) == 0


def test_a_stream_goes_on_when_nobody_reads_what_it_says(job, shell):
    (job.folder / "in").mkdir()
    os.rename(job.path("events.csv"), job.path("in/a.csv"))
    flags = {**job.kept(), "follow": "1s", "end": "2024-01-04", "clock_file": job.path("clock")}
    job.write("clock", "2024-01-05T00:00:00Z")
    assert shell(job.arguments(**flags), stdout=unread()) == 0
    assert len(list(job.folder.glob("out-*.jsonl"))) == 1


def test_what_a_command_does_for_its_words_alone_has_failed_without_them(job, shell):
    log = job.folder / "log"
    assert shell(job.arguments(dry_run="true"), stdout="/dev/full", stderr=log) == 1
    assert "standard output cannot be written to (No space left on device)" in log.read_text()
    assert shell(job.arguments(dry_run="true"), stdout=unread()) == 0


def test_an_error_keeps_its_exit_code_without_streams(job, shell):
    assert shell(job.arguments(domain=""), stdout=None, stderr=None) == 2


def test_names_that_a_stream_cannot_hold_are_spelled_out(job, monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert main(job.arguments(output=job.path("caf\u00e9.jsonl"))) == 0
    assert rb"caf\xe9.jsonl" in raw.getvalue()


@pytest.mark.slow
def test_a_pipe_of_a_shell_that_is_closed(job):
    command = [sys.executable, "-m", "streamveil", *job.arguments()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        run.stdout.close()
        said = run.stderr.read()
    assert run.returncode == 0
    assert b"Traceback" not in said
    assert job.rows()
