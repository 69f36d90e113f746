"""What an operator sees of a running stream: a file, metrics, and now and then a line."""

import dataclasses
import errno
import json
import socket
import stat

import pytest

from streamveil.engine import metrics
from streamveil.engine.encode.passes import Pass
from streamveil.io import Snapshot, StateFolder
from streamveil.mechanisms.core.records import STATUSES, ConfigurationError, Slots
from streamveil.pipelines.console import progress
from streamveil.pipelines.monitoring.metrics import (
    PUBLIC,
    PUBLIC_FIGURES,
    RAW,
    RAW_FIGURES,
    samples,
)
from streamveil.pipelines.monitoring.metrics_export import Exports
from streamveil.pipelines.monitoring.monitor import monitored
from streamveil.pipelines.monitoring.status import Released, Status
from streamveil.pipelines.reports.summary import Summary

HOUR = 3_600_000_000
SECOND = 1_000_000
HOURS = Slots.of("1h")
LATENESS = 60 * SECOND


def status(next_slot, clock, last_slot=None, **known):
    done = Released(HOURS, LATENESS, 5, next_slot, last_slot)
    return Status(since=0, released=done, clock=clock, **known)


def values(group, now):
    return {figure.full_name: dict(found) for figure, found in samples(group, now)}


# ---- how far it is -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clock", "backlog", "lag"),
    [
        (8 * HOUR + LATENESS - 1, 0, 0),
        (8 * HOUR + LATENESS, 1, 0),
        (9 * HOUR + LATENESS - 1, 1, HOUR - 1),
        (10 * HOUR + LATENESS + 7, 3, 2 * HOUR + 7),
    ],
)
def test_lag_and_backlog_begin_when_a_slot_closes(clock, backlog, lag):
    now = status(7, clock)
    assert (now.backlog, now.lag) == (backlog, lag)


def test_a_stream_has_no_backlog_beyond_its_end():
    assert status(7, 100 * HOUR, last_slot=8).backlog == 2
    assert status(9, 100 * HOUR, last_slot=8).backlog == 0
    assert status(9, 100 * HOUR, last_slot=8).lag == 0


def test_the_record_says_which_slots():
    now = status(7, 10 * HOUR + LATENESS, waits_for="its marker")
    record = now.record()
    assert record["last_released"] == {
        "slot": 6,
        "start": "1970-01-01T06:00:00Z",
        "end": "1970-01-01T07:00:00Z",
        "closes": "1970-01-01T07:01:00Z",
    }
    assert record["oldest_open"]["slot"] == 7
    assert (record["lag_seconds"], record["backlog_slots"]) == (7200, 3)
    assert record["waits_for"] == "its marker"
    assert record["last_error"] is None
    assert status(5, 0).record()["last_released"] is None
    assert status(9, 0, last_slot=8).record()["oldest_open"] is None
    assert Status(since=0).record()["oldest_open"] is None


def test_a_sentence_for_each_case():
    assert "closes 1970-01-01T08:01:00Z" in status(7, 0).sentence
    late = status(7, 9 * HOUR + LATENESS, waits_for="it waits for its marker").sentence
    assert "2 closed slots not released" in late
    assert "for 3,600 seconds: it waits for its marker" in late
    assert "nothing is left" in status(9, 0, last_slot=8).sentence


# ---- which figures are public ------------------------------------------------------------------


def summary(published, **events):
    counted = {metrics.SLOTS_PREFIX + STATUSES[0]: published, **events}
    return Summary(counted, 0.5)


def after(*summaries):
    """What is known after passes of one slot each."""
    done, totals = Released(HOURS, LATENESS, 5, 5), Summary.total(summaries)
    for n, each in enumerate(summaries):
        done = done.after(6 + n, each.statuses, each.largest_window_use)
    return Status(since=0, released=done, totals=totals, state_bytes=len(totals.counters))


def test_public_figures_are_those_of_releases_and_ledger_alone():
    """Whatever is known beside them moves no public figure, and what they say moves some."""
    one = after(summary(1), summary(1))
    other = after(
        summary(1, **{metrics.EVENTS_READ: 9, metrics.EVENTS_LATE: 4}),
        summary(1, **{metrics.EVENTS_COUNTED: 3, metrics.REJECTED_PREFIX + "null user": 2}),
    )
    other = dataclasses.replace(
        other, delay=5, waits_for="x", error="y", failed=3, passes=8, since=1, looked=2, clock=3
    )
    assert values(PUBLIC, one) == values(PUBLIC, other)
    moved = {name for name, found in values(RAW, one).items() if found != values(RAW, other)[name]}
    assert {"streamveil_events_read_total", "streamveil_events_rejected_total"} <= moved
    assert not moved & values(PUBLIC, one).keys()
    assert values(PUBLIC, one) != values(PUBLIC, after(summary(1), summary(0)))
    assert values(PUBLIC, one) != values(PUBLIC, after(summary(1)))


def test_public_figures_do_not_tell_which_slots_a_pass_took():
    """That depends on how long the one before took, and so on how many events there were."""
    one = two = Released(HOURS, LATENESS, 5, 5)
    for next_slot, uses in ((6, [0.5]), (8, [0.4, 0.3])):
        one = one.after(next_slot, {STATUSES[0]: len(uses)}, max(uses))
    for next_slot, uses in ((7, [0.5, 0.4]), (8, [0.3])):
        two = two.after(next_slot, {STATUSES[0]: len(uses)}, max(uses))
    assert one == two


def test_what_public_figures_are_made_of():
    """A new field must be as public as a release: think before you add it here."""
    assert [each.name for each in dataclasses.fields(Released)] == [
        *("slots", "lateness", "first_slot", "next_slot", "last_slot"),  # options, and releases
        *("statuses", "window_use"),  # of releases, and of the ledger
    ]


def test_names_are_unique_and_every_figure_has_words():
    figures = [*PUBLIC_FIGURES, *RAW_FIGURES]
    assert len({each.full_name for each in figures}) == len(figures)
    assert all(each.about for each in figures)
    assert values(PUBLIC, Status(since=0)) == {}


# ---- what is written ---------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    with StateFolder.held(str(tmp_path / "state")) as held:
        yield held


@pytest.fixture
def clock(monkeypatch):
    """Seconds of the monotonic clock, and the time that closes slots."""

    class Clock:
        seconds = 0.0
        now = 6 * HOUR + LATENESS

        def monotonic(self):
            return self.seconds

        def __call__(self):
            return self.now

    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


def status_of(folder):
    return json.loads((folder.path / "status.json").read_text())


def begin(monitor):
    monitor.begun(Snapshot(5, 5, "c0ffee"), HOURS, LATENESS, None)


def test_the_file_follows_the_run(folder, clock):
    with monitored(folder, clock, Exports()) as monitor:
        assert status_of(folder)["condition"] == "starting"
        begin(monitor)
        assert (status_of(folder)["condition"], status_of(folder)["backlog_slots"]) == (
            "running",
            1,
        )
        clock.now += 3 * SECOND
        monitor.passed(Pass(5, 5, 5), summary(1, **{metrics.EVENTS_LATE: 4}))
        monitor.looked()
        now = status_of(folder)
        assert (now["late"], now["slots"], now["passes"], now["backlog_slots"]) == (4, 1, 1, 0)
        assert now["release_delay_seconds"] == 3
        assert now["oldest_open"]["slot"] == 6
        assert now["looked_at"] is not None
        assert stat.S_IMODE((folder.path / "status.json").stat().st_mode) == 0o600
    assert status_of(folder)["condition"] == "ended"
    assert status_of(folder)["last_error"] is None


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConfigurationError("the disk\nis full"), "the disk\\nis full"),
        (OSError("Traceback\n  of Java\nno such host"), "no such host"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_the_last_error_stays_in_the_file(folder, clock, error, words):
    def fail():
        with monitored(folder, clock, Exports()) as monitor:
            begin(monitor)
            raise error

    with pytest.raises(type(error)):
        fail()
    now = status_of(folder)
    assert (now["condition"], now["last_error"]["message"]) == ("failed", words)


def test_an_export_that_cannot_begin_is_a_failure_of_the_run(folder, clock):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        exports = Exports(address=held.getsockname())
        with pytest.raises(ConfigurationError), monitored(folder, clock, exports):
            pass
    now = status_of(folder)
    assert now["condition"] == "failed"
    assert now["last_error"]["message"].startswith("--metrics_port: nothing can listen on")


def test_a_name_that_is_no_text_is_reported_all_the_same(folder, clock):
    name = b"events-\xff.csv".decode(errors="surrogateescape")
    with monitored(folder, clock, Exports()) as monitor:
        begin(monitor)
        monitor.looked(f"it waits for {name}")
        assert status_of(folder)["waits_for"] == f"it waits for {name}"


def test_an_error_that_the_run_survives_is_reported(folder, clock):
    with monitored(folder, clock, Exports()) as monitor:
        begin(monitor)
        monitor.failed(ConfigurationError("one bad file"))
        assert status_of(folder)["condition"] == "running"
        assert status_of(folder)["last_error"]["message"] == "one bad file"


def test_a_file_that_cannot_be_written_is_reported_once_and_stops_nothing(
    folder, clock, monkeypatch, caplog
):
    full = OSError(errno.ENOSPC, "No space left on device", "status.json")

    def tell(_):
        raise full

    with monitored(folder, clock, Exports()) as monitor:
        begin(monitor)
        with monkeypatch.context() as patch:
            patch.setattr(folder, "tell", tell)
            monitor.looked()
            monitor.looked()
        monitor.looked()
    (line,) = [record.getMessage() for record in caplog.records]
    why = "status.json: No space left on device: fix that"
    assert line.startswith(f"the status of the run cannot be written: {why}")


def test_what_has_the_name_of_the_file_is_named(folder, clock, caplog):
    (folder.path / "status.json").mkdir()
    with monitored(folder, clock, Exports()) as monitor:
        begin(monitor)
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"{folder.path / 'status.json'}: " in line


def test_a_line_says_now_and_then_that_it_lives(folder, clock, capsys):
    with monitored(folder, clock, Exports()) as monitor:
        begin(monitor)
        for seconds in (0.5, 59, 61, 62, 100, 121, 122):
            clock.seconds = seconds
            monitor.looked()
            clock.now += 1
        clock.seconds = 170
        monitor.passed(Pass(5, 5, 5), summary(1))  # has a line of its own
        clock.seconds = 190
        monitor.looked()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("alive: 1 closed slot not released") for line in lines)
