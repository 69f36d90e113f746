"""`--log_format`: every line of a run says when, how grave and by whom."""

import datetime as dt
import io
import json
import logging
import re
import sys
import threading
import warnings

import pytest

from streamveil.pipelines.console import logs
from streamveil.pipelines.console.logs import logging_as, tell, tell_aside
from streamveil.pipelines.main import main
from streamveil.pipelines.options.command_table import COMMANDS

LINE = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) (\w+) ([\w.]+): (.*)")


def say_all():
    tell("first\nsecond")
    tell("warning: look", logging.WARNING)
    tell_aside("1 event read")
    logging.getLogger("apache_beam.runners").warning("part %d", 7)
    try:
        raise ValueError("no\nnumber")
    except ValueError:
        logging.getLogger("streamveil").exception("it failed")
    warnings.warn("old option", stacklevel=1)


def test_bare_lines_for_a_person(capsys):
    with logging_as(None):
        tell("first\nsecond")
        tell_aside("1 event read")
    out = capsys.readouterr()
    assert (out.out, out.err) == ("first\nsecond\n", "1 event read\n")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("no_color", ["", "1"])
def test_warnings_have_colours_on_a_terminal(monkeypatch, no_color):
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr(sys, "stderr", Terminal())
    tell_aside("fine")
    tell_aside("look", logging.WARNING)
    tell_aside("no", logging.ERROR)
    coloured = "fine\n\x1b[33mlook\x1b[0m\n\x1b[31mno\x1b[0m\n"
    assert sys.stderr.getvalue() == ("fine\nlook\nno\n" if no_color else coloured)


@pytest.mark.filterwarnings("default")
def test_every_line_of_text_has_a_time_and_a_level(capsys):
    before = dt.datetime.now(dt.timezone.utc)
    with logging_as("text"):
        say_all()
    out = capsys.readouterr()
    assert out.out == ""
    found = [LINE.fullmatch(line) for line in out.err.splitlines()]
    assert all(found), out.err
    rows = [(each[2], each[3], each[4]) for each in found]
    assert rows[:4] == [
        ("INFO", "streamveil.result", "first"),
        ("INFO", "streamveil.result", "second"),
        ("WARNING", "streamveil.result", "warning: look"),
        ("INFO", "streamveil.run", "1 event read"),
    ]
    assert ("WARNING", "apache_beam.runners", "part 7") in rows
    assert ("ERROR", "streamveil", "Traceback (most recent call last):") in rows
    assert ("ERROR", "streamveil", "number") in rows
    assert any(name == "py.warnings" and "old option" in text for _, name, text in rows)
    for each in found:
        time = dt.datetime.fromisoformat(each[1].replace("Z", "+00:00"))
        assert abs(time - before) < dt.timedelta(minutes=5)


@pytest.mark.filterwarnings("default")
def test_every_line_of_json_is_an_object(capsys):
    with logging_as("json"):
        say_all()
    out = capsys.readouterr()
    assert out.out == ""
    records = [json.loads(line) for line in out.err.splitlines()]
    assert all({"time", "level", "logger", "message"} <= each.keys() for each in records)
    failed = next(each for each in records if each["message"] == "it failed")
    assert failed["level"] == "ERROR"
    assert failed["exception"].endswith("ValueError: no\nnumber")
    assert records[0]["message"] == "first"


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_what_python_itself_would_print_has_the_form_too(capsys, log_format):
    class Careless:
        def __del__(self):
            raise ValueError("in a destructor")

    def leave():
        sys.exit(3)

    def fail():
        raise KeyError("in a thread")

    with logging_as(log_format):
        for target in (leave, fail, Careless):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
        wrong = logging.LogRecord("beam", logging.WARNING, "", 0, "%d of %d", (1,), None)
        logging.getLogger().handlers[-1].handle(wrong)  # pytest's own ones would raise
    lines = capsys.readouterr().err.splitlines()
    if log_format == "json":
        messages = [json.loads(line)["message"] for line in lines]
    else:
        assert all(LINE.fullmatch(line) for line in lines), lines
        messages = [LINE.fullmatch(line)[4] for line in lines]
    assert "uncaught: KeyError('in a thread')" in messages
    assert "uncaught: ValueError('in a destructor')" in messages
    assert "%d of %d (1,)" in messages


def test_json_is_whole_where_stderr_takes_ascii_only():
    # Not logged: pytest's workers could not send what they capture.
    record = logging.makeLogRecord({"msg": "café \udce9", "levelno": logging.INFO})
    line = logs._Objects().format(record)
    assert line.isascii()
    assert json.loads(line)["message"] == "café \udce9"


def test_it_ends_with_the_block(capsys):
    with pytest.raises(KeyError), logging_as("json"):
        raise KeyError("stop")
    tell("plain")
    tell_aside("plain too")
    out = capsys.readouterr()
    assert (out.out, out.err) == ("plain\n", "plain too\n")
    assert logs.is_bare()


def test_the_form_is_known_whatever_else_is_wrong():
    request = COMMANDS["release"].request
    assert request(["--inputt=x", "--log_format=json", "--shards=none"]).log_format == "json"
    assert request(["--log_format=json", "--slot"]).log_format == "json"
    assert request(["--log_format", "text"]).log_format == "text"
    assert request(["--log_format=yaml"]).log_format is None
    assert request([]).log_format is None


def test_a_run_in_json_says_nothing_else(job):
    outcome = job(start="2024-01-01", end="2024-01-04", log_format="json")
    assert outcome.code == 0, outcome.err
    assert outcome.out == ""
    records = [json.loads(line) for line in outcome.err.splitlines()]
    messages = [each["message"] for each in records]
    assert any(each.startswith("events:") for each in messages)
    assert f"wrote {job.path('out.jsonl')}" in messages
    assert {each["level"] for each in records} <= {"INFO", "WARNING"}


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_refusal_is_one_line_of_the_form(job, log_format):
    outcome = job(inputt="x", log_format=log_format)
    assert outcome.code == 2
    assert len(outcome.err.splitlines()) == 1
    if log_format == "json":
        record = json.loads(outcome.err)
        assert (record["level"], record["logger"]) == ("ERROR", "streamveil.run")
        assert "--inputt" in record["message"]
    else:
        assert LINE.fullmatch(outcome.err.strip())[2] == "ERROR"


def test_another_form_is_refused(job):
    assert "--log_format" in job.refused("invalid choice", "yaml", log_format="yaml").message


def test_an_interrupt_while_modules_load_is_one_line(monkeypatch, capsys):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(logs, "logging_as", interrupted)
    assert main(["release"]) == 130
    assert capsys.readouterr().err == "streamveil release: interrupted\n"
