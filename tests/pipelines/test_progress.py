"""What a person sees while a pipeline runs."""

import fcntl
import io
import logging
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

from streamveil.pipelines.console import progress as module
from streamveil.pipelines.console.progress import progress, steps

LOGGER = logging.getLogger("streamveil.progress")


def tell(events=0, slots=0):
    LOGGER.info("counted", extra={"events": events, "slots": slots})


@pytest.fixture
def clock(monkeypatch):
    """Seconds since the start, to be set."""

    class Clock:
        now = 0.0

        def monotonic(self):
            return self.now

    made = Clock()
    monkeypatch.setattr(module, "time", made)
    monkeypatch.setattr(module, "_SECONDS_BETWEEN_LINES", 5.0)
    return made


def test_plain_lines_now_and_then(clock, capsys):
    with progress("job"):
        tell(events=1000)
        clock.now = 6
        tell(events=2_345_678)
        clock.now = 7
        tell(slots=1)
        clock.now = 13
        tell(slots=41)
    assert capsys.readouterr().err.splitlines() == [
        "job: 2,346,678 events read, 0 slots",
        "job: 2,346,678 events read, 42 slots",
    ]


def test_short_runs_say_nothing(clock, capsys):
    with progress("job"):
        tell(events=5)
        LOGGER.info("nothing to count")
    out = capsys.readouterr()
    assert (out.out, out.err) == ("", "")


def test_leaves_the_logger_as_it_was(capsys):
    before = LOGGER.level, LOGGER.propagate, list(LOGGER.handlers)

    def fail():
        with progress("job"):
            raise KeyError("stop")

    with pytest.raises(KeyError):
        fail()
    assert (LOGGER.level, LOGGER.propagate, list(LOGGER.handlers)) == before


def test_bar_on_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    with progress("job"):
        tell(events=100, slots=3)
        tell(slots=2)
    text = shown.getvalue()
    assert "job" in text
    assert " events" in text
    # The bar is wiped: the summary stands alone.
    assert not text.split("\r")[-1].strip()


def test_steps_towards_an_end(clock, capsys):
    with steps("job", 1200, "runs") as done:
        done(3)
        clock.now = 6
        done(1100)
        clock.now = 7
        done(97)
    assert capsys.readouterr().err.splitlines() == ["job: 1,103 of 1,200 runs"]


def test_steps_on_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    with steps("job", 12, "runs") as done:
        done(5)
    text = shown.getvalue()
    assert "job:" in text
    assert "/12" in text
    assert not text.split("\r")[-1].strip()


@pytest.mark.slow
def test_on_a_real_terminal(job):
    main, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("4H", 24, 100, 0, 0))
    command = [sys.executable, "-m", "streamveil"]
    with subprocess.Popen(
        [*command, *job.arguments("--start=2024-01-01", "--end=2024-01-04")],
        stdout=other,
        stderr=other,
        stdin=other,
    ) as process:
        os.close(other)
        shown = b""
        while True:
            try:
                part = os.read(main, 4096)
            except OSError:  # the other side closed the terminal
                break
            if not part:
                break
            shown += part
        assert process.wait(timeout=600) == 0
    os.close(main)
    text = shown.decode()
    assert "streamveil release" in text
    assert "events" in text
    # What stays when a terminal has followed every carriage return.
    left = [re.split(r"\r(?!$)", line.rstrip("\r"))[-1].strip() for line in text.split("\n")]
    assert any(line.startswith("events:") for line in left), left
    assert any(line.startswith("wrote ") for line in left), left
    assert "Traceback" not in text
    assert not [line for line in left if "WARNING" in line or "ERROR" in line], left


def test_nothing_but_the_summary_in_a_pipe(job):
    outcome = job.done(start="2024-01-01", end="2024-01-04")
    assert outcome.err == ""
    assert outcome.log == ""
    assert [line.split()[0] for line in outcome.out.splitlines()] == [
        "events:",
        "slots:",
        "budget:",
        "wrote",
        "wrote",
    ]


def test_range_from_the_events_is_warned_of(job):
    outcome = job.done()
    assert "start and end" in outcome.log
