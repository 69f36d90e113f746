"""The input files of a stream: what is there, and is there still when it was read."""

import os

import pytest

from streamveil.io import Snapshot
from streamveil.mechanisms import ConfigurationError, Slots
from streamveil.pipelines.state_runs.input_files import Incoming, InputMissing


@pytest.fixture
def incoming(tmp_path):
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("user,value,time\n")
    return Incoming(str(tmp_path / "*.csv"))


def look(incoming):
    return incoming.look(Snapshot(0, 0, "c0ffee"), Slots.of("1h"))


def test_what_was_read_must_be_there_still(incoming, tmp_path):
    found = look(incoming)
    paths = list(found.events)
    incoming.refuse_moved(found, paths)
    (tmp_path / "b.csv").unlink()
    incoming.refuse_moved(found, paths[:1])
    with pytest.raises(InputMissing, match=r"b\.csv disappeared while it was read"):
        incoming.refuse_moved(found, paths)


def test_what_was_read_must_not_have_been_written_to(incoming, tmp_path):
    found = look(incoming)
    with (tmp_path / "a.csv").open("a") as file:
        file.write("ann,cafe,1970-01-01T00:00Z\n")
    incoming.refuse_moved(found, [str(tmp_path / "b.csv")])
    with pytest.raises(ConfigurationError, match=r"a\.csv was written to while it was read"):
        incoming.refuse_moved(found, list(found.events))


def test_a_pipe_among_the_files_keeps_nobody_waiting(incoming, tmp_path):
    os.mkfifo(tmp_path / "p.csv")
    found = look(incoming)
    assert found.read(str(tmp_path / "p.csv"), None, True).size == 0
