"""Pub/Sub by its own protocol: Google's client libraries against the server they are tested with.

Slots are closed by a file, except where real time is what is tested.
"""

import contextlib
import csv
import datetime as dt
import io
import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner

from streamveil.io import Outbox, ReadPubSubEvents
from streamveil.mechanisms.core.records import ConfigurationError
from tests.clusters.pubsub_server import HOST, PROJECT, Proxy, Server

pytestmark = pytest.mark.pubsub

EVENTS, RESULTS = f"pubsub:{PROJECT}/subscriptions/events", f"pubsub:{PROJECT}/topics/releases"
BEGIN = dt.datetime(2024, 5, 1, tzinfo=dt.timezone.utc)
DAY = dt.timedelta(days=1)
FIRST = 19844  # the slot of that day
# So much that whatever is published is exact, and each event of a user counts.
EXACT = {"default_requirement": "1,4000", "max_contributions": "9"}
OK, UNAVAILABLE = 0, 14


@pytest.fixture
def server(request, monkeypatch):
    server = Server(request.config.getoption("--pubsub_server"))
    server.start()
    monkeypatch.setenv(HOST, server.address)
    yield server
    server.kill()


class Stream:
    """A stream from the subscription, with its state, as a user runs it."""

    def __init__(self, folder, server, command="release"):
        self.folder, self.server, self.command = folder, server, command
        self.flags = {
            "input": EVENTS,
            "output": RESULTS,
            "state": self.path("state"),
            "clock_file": self.path("clock"),
            "rejected": self.path("rejected.jsonl"),
            "ledger": self.path("ledger.csv"),
            "user_column": "user",
            "value_column": "place",
            "time_column": "time",
            "slot": "1d",
            "start": "2024-05-01",
            "domain": "a,b",
            **EXACT,
        }
        self.clock(0)

    def path(self, name):
        return str(self.folder / name)

    def clock(self, slot, hours=0.0):
        """Let it be the beginning of that slot, counted from the first."""
        when = BEGIN + slot * DAY + dt.timedelta(hours=hours)
        part = Path(self.path("clock.part"))
        part.write_text(when.isoformat())
        part.rename(self.path("clock"))

    def arguments(self, **flags):
        given = {**self.flags, **flags}
        if os.path.exists(self.path("state/pass-00000001")) or self.passes():
            given.setdefault("resume", "true")
        return [
            self.command,
            *(f"--{name}={value}" for name, value in given.items() if value is not None),
        ]

    def passes(self):
        manifest = Path(self.path("state/manifest.json"))
        return json.loads(manifest.read_text())["passes"] if manifest.exists() else 0

    def run(self, at=None, **flags):
        """Run it in this process, at the beginning of a slot; gives the code and what it said."""
        from streamveil.pipelines.main import main

        if at is not None:
            self.clock(at)
        said = io.StringIO()
        handler = logging.StreamHandler(said)
        logging.getLogger().addHandler(handler)
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                try:
                    code = main(self.arguments(**flags))
                except SystemExit as stop:
                    code = stop.code
        finally:
            logging.getLogger().removeHandler(handler)
        return code, said.getvalue()

    def launch(self, **flags):
        """Run it as a process of its own."""
        command = [sys.executable, "-m", "streamveil", *self.arguments(**flags)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def done(self, at=None, **flags):
        code, said = self.run(at, **flags)
        assert code == 0, said
        return said

    def key(self):
        """The place of a noise key."""
        path = Path(self.path("key"))
        path.write_text("5e" * 32)
        path.chmod(0o600)
        return f"file:{path}"

    def kept(self):
        """Messages in the inbox, and files that wait to be published."""
        import pyarrow.parquet as pq

        files = sorted(Path(self.path("state/inbox")).glob("*.parquet"))
        rows = [row for file in files for row in pq.read_table(file).column("data").to_pylist()]
        return rows, sorted(os.listdir(self.path("state/outbox")))

    def letters(self):
        found = []
        for path in sorted(self.folder.glob("rejected-*.jsonl")):
            found += [json.loads(line) for line in path.read_text().splitlines()]
        return found

    def check_budgets(self):
        """No window of a class has spent more than it may."""
        for path in self.folder.glob("ledger-*.csv"):
            with open(path) as file:
                for row in csv.DictReader(file):
                    assert float(row["spent_in_window"]) <= float(row["epsilon"]), row


@pytest.fixture
def stream(tmp_path, server):
    return Stream(tmp_path, server)


def event(user, place="a", slot=0, hour=1.0):
    when = BEGIN + slot * DAY + dt.timedelta(hours=hour)
    return {"user": user, "place": place, "time": when.isoformat()}


def counts_of(message):
    return [round(row["value"]) for row in message["rows"]]


def counts(messages):
    """Counts by slot from the first; a release that came twice must be alike."""
    found = {}
    for one in messages:
        released = counts_of(one)
        assert found.setdefault(one["slot"] - FIRST, released) == released
    return found


def alike(rows):
    found = defaultdict(set)
    for row in rows:
        found[row["slot"]].add(json.dumps(row, sort_keys=True))
    assert all(len(each) == 1 for each in found.values())
    return counts(rows)


# ---- what it does ------------------------------------------------------------------------------


def test_a_subscription_to_a_topic(stream, server):
    """Run by run: out of order, before its slot, twice, late, before the stream, poison."""
    server.send(event("u1"), event("u2", "b"), event("u3", "b", slot=1), event("u0", slot=-1))
    server.send(b'[{"user":"u4","place":"a",\n"time":"2024-05-01T03:00:00Z"}]', b"\xff\xfe\0{")
    said = stream.done(at=1)
    assert f"wrote {RESULTS}" in said
    assert "5 events read: 3 counted, 2 rejected, 0 late" in said
    assert "1 wait for a later slot" in said
    server.send(event("u5", slot=2), event("u6", slot=1), event("late", slot=0), b"[{")
    server.send(event("u7", slot=1), event("u7", slot=1))
    stream.done(at=3)
    assert alike(server.results()) == {0: [2, 1], 1: [3, 1], 2: [1, 0]}
    reasons = Counter(letter["reason"] for letter in stream.letters())
    once = "unparsable", "not UTF-8", "outside the released slots", "late"
    assert reasons == dict.fromkeys(once, 1)
    assert stream.kept()[1] == []
    assert "nothing to do" in stream.done(at=3)
    stream.check_budgets()


@pytest.mark.parametrize("kind", ["json", "jsonl", "arrow", "avro"])
def test_formats_of_messages(stream, server, kind):
    import fastavro
    import pyarrow as pa

    rows = [event(f"u{number}", "ab"[number % 2]) for number in range(5)]
    if kind == "json":
        message = json.dumps(rows, indent=1).encode()
    elif kind == "jsonl":
        message = b"\n".join(json.dumps(row).encode() for row in rows)
    elif kind == "arrow":
        table, sink = pa.Table.from_pylist(rows), io.BytesIO()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        message = sink.getvalue()
    else:
        fields = [{"name": name, "type": "string"} for name in ("user", "place", "time")]
        schema = {"type": "record", "name": "event", "fields": fields}
        sink = io.BytesIO()
        fastavro.writer(sink, schema, rows)
        message = sink.getvalue()
    server.send(message, message[:-7], b"")
    said = stream.done(at=1, input=f"{EVENTS}?message_format={kind}")
    whole = [5, 4] if kind == "jsonl" else [3, 2]  # of which a part is whole lines
    assert alike(server.results())[0] == whole, said
    assert {letter["reason"] for letter in stream.letters()} == {"unparsable"}


@pytest.mark.parametrize("poison", [b"", b"\0\0\0\0", b"\xef\xbb\xbf{}", b"\xfe\xff\0{", b"{}"])
def test_no_first_message_changes_how_others_are_read(stream, server, poison):
    server.send(poison)
    server.send(event("u1"), event("u2", "b"))
    stream.done(at=1)
    assert alike(server.results()) == {0: [1, 1]}
    assert len(stream.letters()) == 1


def test_results_are_those_of_files(stream, server, tmp_path):
    """With the same key: a stream from Pub/Sub, and one over a file with the same events."""
    rows = [event(f"u{number % 7}", "ab"[number % 2], number % 3) for number in range(40)]
    server.send(*rows)
    flags = {"noise_key": stream.key(), "default_requirement": "3,1", "max_contributions": "1"}
    stream.done(at=3, layout="rows", **flags)
    (tmp_path / "files").mkdir()
    other = Stream(tmp_path / "files", server)
    Path(other.path("in.jsonl")).write_text("".join(json.dumps(row) + "\n" for row in rows))
    places = {"input": other.path("in.jsonl"), "output": other.path("out.jsonl")}
    other.done(at=3, layout="rows", **places, **flags)
    lines = Path(other.path("out-00000001.jsonl")).read_text().splitlines()
    assert sorted(server.results(), key=lambda row: row["slot"]) == [
        json.loads(line) for line in lines
    ]


def test_files_and_revisions_beside_a_topic(stream, server):
    flags = {"revisions": RESULTS, "revise": "1", "output": stream.path("out.jsonl")}
    server.send(event("u1"))
    stream.done(at=3, default_requirement="3,1", mechanism="adaptive", **flags)
    assert Path(stream.path("out-00000001.jsonl")).read_text().count("\n") == 3 * 2
    assert {row["slot"] - FIRST for row in server.results()} == {0, 1}


def test_the_card_says_where_results_went(stream, server, tmp_path):
    from streamveil.pipelines.main import main

    server.send(event("u1"), event("u2"))
    stream.done(at=1)
    stream.done(at=2)
    (run,) = json.loads(Path(stream.path("state.card.json")).read_text())["runs"]
    assert (run["streams"], run["passes"]) == ({"releases": "pubsub"}, [1, 2])
    exported = tmp_path / "exported.jsonl"
    exported.write_text("".join(json.dumps(row) + "\n" for row in server.results()))
    card = stream.path("state.card.json")
    assert main(["card", card, "--check", f"--releases={exported}"]) == 0


@pytest.mark.parametrize("guarantee", ["user", "infinite"])
def test_one_budget_forever(stream, server, guarantee):
    flags = {"default_requirement": None, "max_contributions": None}
    flags |= {"guarantee": guarantee, "epsilon": "4000", "ledger": None}
    if guarantee == "user":
        flags["max_slots"] = "2"
    server.send(event("u1"), event("u2", "b"))
    code, said = stream.run(at=2, **flags)
    assert code == 0, said
    assert len(server.results()) == 2


def test_collect(tmp_path, server):
    stream = Stream(tmp_path, server, "collect")
    server.send(event("u1"), event("u2", "b"))
    users = tmp_path / "users.csv"
    users.write_text("user,window,epsilon\nu1,2,1\nu2,2,1\n")
    stream.done(at=2, default_requirement=None, max_contributions=None, requirements=users)
    assert sorted(row["slot"] - FIRST for row in server.results()) == [0, 1]


def test_queries(stream, server, tmp_path):
    queries = tmp_path / "queries.yaml"
    queries.write_text("slot: 1d\nqueries:\n  - name: visits\n    by: place\n    keys: [a, b]\n")
    server.send(event("u1"), event("u2", "b"), event("u3", slot=1))
    names = ("value_column", "slot", "domain", "max_contributions")
    code, said = stream.run(
        at=1,
        queries=queries,
        output=stream.path("answers"),
        **dict.fromkeys(names),
    )
    assert code == 0, said
    assert any(tmp_path.glob("answers/visits-00000001*"))


def test_a_run_without_a_runner_is_refused_with_both_ways(stream):
    names = ("state", "clock_file", "rejected", "ledger")
    code, said = stream.run(**dict.fromkeys(names))
    assert code == 2
    assert "give --state=FOLDER and --follow=10s, or give --runner=DataflowRunner" in said
    assert "BundleBasedDirectRunner, which forgets what was spent when it ends" in said


def test_a_dry_run_reads_no_message(stream, server):
    server.send(event("u1"))
    assert EVENTS in stream.done(at=1, dry_run="true")
    stream.done(at=1)
    assert alike(server.results()) == {0: [1, 0]}


# ---- redelivery, restarts, kills ---------------------------------------------------------------


def test_redelivered_messages_count_once(stream, server):
    """The acknowledgement fails; the messages come again, to another run."""
    server.send(event("u1"), event("u2", "b"), event("u1"))
    server.fail("Acknowledge", UNAVAILABLE, times=1)
    code, said = stream.run(at=1)
    assert (code, stream.passes()) == (1, 0)
    assert "UNAVAILABLE" in said
    assert len(stream.kept()[0]) == 3
    server.send(event("u3", "b"))
    stream.done(at=1)
    assert alike(server.results()) == {0: [2, 2]}
    assert len(stream.kept()[0]) == 4


def test_what_cannot_come_again_is_removed(stream, server, monkeypatch):
    from streamveil.io import inbox

    for slot in range(3):
        server.send(event("u1", slot=slot), event("u2", slot=slot + 1))
        stream.done(at=slot + 1)
    assert len(stream.kept()[0]) == 6
    monkeypatch.setattr(inbox, "_MAY_RETURN", -1.0)
    server.send(event("u1", slot=3))
    stream.done(at=4)
    assert len(stream.kept()[0]) == 1  # the newest, so that no name is given twice
    stream.done(at=5)
    assert alike(server.results()) == {0: [1, 0], 1: [2, 0], 2: [2, 0], 3: [2, 0], 4: [0, 0]}


def test_what_pubsub_never_heard_is_removed_in_the_end(stream, server):
    server.send(event("u1"))
    stream.done(at=1)
    first = Path(stream.path("state/inbox/000000000001.parquet"))
    first.with_suffix(".acknowledged").unlink()
    server.send(event("u2", slot=1))
    stream.done(at=2)
    assert first.exists()
    month = time.time() - 33 * 86400
    os.utime(first, (month, month))
    left = first.with_name("000000000000.acknowledged")
    left.touch()
    stream.done(at=3)
    assert not first.exists()
    assert not left.exists()
    assert alike(server.results()) == {0: [1, 0], 1: [1, 0], 2: [0, 0]}


def test_a_killed_run_publishes_again(stream, server, wait_until):
    """Killed while the topic takes its results: they come twice, both alike."""
    server.send(event("u1"), event("u2", "b"))
    server.fail("Publish", OK, times=1, seconds=4)
    stream.clock(1)
    run = stream.launch(follow="1s")
    wait_until("the pass", lambda: stream.passes() == 1 and stream.kept()[1])
    time.sleep(1)  # the request is on its way
    run.kill()
    run.wait()
    assert stream.kept()[1] == ["releases-00000001.jsonl"]
    stream.done()
    rows = server.results(4)
    assert (len(rows), alike(rows)) == (2, {0: [1, 1]})
    assert stream.kept()[1] == []


# What a run does when it dies: a method, and whether it dies before or after it.
MOMENTS = [
    ("streamveil.io.inbox.Inbox._write", "before"),
    ("streamveil.io.inbox.Inbox._write", "after"),
    ("streamveil.io.inbox.Inbox._heard", "before"),
    ("streamveil.io.inbox.Inbox._heard", "after"),
    ("streamveil.io.inbox.Inbox.receive", "after"),
    ("streamveil.io.snapshot.StateFolder._write", "after"),
    ("streamveil.io.snapshot.StateFolder._publish", "before"),
    ("streamveil.io.snapshot.StateFolder.commit", "after"),
    ("streamveil.io.outbox.Outbox._send", "before"),
    ("streamveil.io.outbox.Outbox._send", "after"),
    ("streamveil.io.outbox.Outbox.publish", "after"),
]
DYING = """
import os, sys
from importlib import import_module

place, when = sys.argv[1:3]
module, owner, name = place.rsplit(".", 2)
owner = getattr(import_module(module), owner)
method, calls = getattr(owner, name), int(sys.argv[3])


def dying(*args, **kwargs):
    global calls
    calls -= 1
    if calls == 0 and when == "before":
        os._exit(9)
    found = method(*args, **kwargs)
    if calls == 0:
        os._exit(9)
    return found


setattr(owner, name, dying)
from streamveil.pipelines.main import main

sys.exit(main(sys.argv[4:]))
"""


@pytest.mark.parametrize(("place", "when"), MOMENTS)
def test_a_run_that_dies_at_a_moment(stream, server, place, when):
    """What it had taken and what it had released is there, once."""
    server.send(event("u1"), event("u2", "b"), event("u1", slot=1))
    stream.done(at=1)
    server.send(event("u3", slot=1), event("u4", "b", slot=1))
    stream.clock(2)
    calls = "2" if place.endswith("Outbox.publish") else "1"
    command = [sys.executable, "-c", DYING, place, when, calls, *stream.arguments()]
    died = subprocess.run(command, check=False, capture_output=True, text=True)
    assert died.returncode == 9, died.stderr
    server.send(event("u5", "b", slot=2))
    stream.done(at=3)
    rows = server.results()
    assert alike(rows) == {0: [1, 1], 1: [2, 1], 2: [0, 1]}
    assert len(rows) == 3 + (place.endswith("_send") and when == "after")
    stream.check_budgets()


def test_kills_at_random_moments(stream, server):
    """Nothing is lost, doubled or overspent, whenever a run dies."""
    chance, slots = random.Random(0), 8
    expected, number = defaultdict(lambda: [0, 0]), 0
    end = (BEGIN + slots * DAY).date().isoformat()
    run = None
    for slot in range(slots):
        for _ in range(25):
            of, place = slot + chance.randrange(2), chance.randrange(2)
            server.send(event(f"u{number}", "ab"[place], of))
            number += 1
            expected[of][place] += 1
        stream.clock(slot + 1)
        if run is None or run.poll() is not None:
            run = stream.launch(follow="1s", end=end)
        time.sleep(chance.uniform(2, 9))
        run.kill()
        run.wait()
        run = None
    stream.done(end=end)
    rows = server.results(12)  # those of killed pulls come again
    assert alike(rows) == {slot: expected[slot] for slot in range(slots)}
    stream.check_budgets()


def test_a_stop_signal_ends_it_well(stream, server, wait_until):
    server.send(event("u1"))
    stream.clock(1)
    run = stream.launch(follow="30s")
    wait_until("the pass", lambda: stream.passes() == 1)
    run.send_signal(signal.SIGTERM)
    said = run.communicate(timeout=60)[0].decode()
    assert run.returncode == 0, said
    assert "stopped by a signal" in said
    assert alike(server.results()) == {0: [1, 0]}


# ---- faults ------------------------------------------------------------------------------------

PASSES = {"UNAVAILABLE": 14, "RESOURCE_EXHAUSTED": 8, "INTERNAL": 13, "ABORTED": 10, "UNKNOWN": 2}
STAYS = {
    "PERMISSION_DENIED": (7, "grant the account roles/pubsub."),
    "NOT_FOUND": (5, "create it"),
    "UNAUTHENTICATED": (16, "give credentials that have not expired"),
    "FAILED_PRECONDITION": (9, "look at its state"),
    "INVALID_ARGUMENT": (3, "check its name"),
}
FAULTS = [
    *((call, name, code, 1, "") for call in ("Pull", "Acknowledge", "Publish")
      for name, code in PASSES.items()),
    *((call, name, code, 2, remedy) for call in ("Pull", "Acknowledge", "Publish")
      for name, (code, remedy) in STAYS.items()),
    ("Pull", "DEADLINE_EXCEEDED", 4, 1, ""),
]  # fmt: skip


@pytest.mark.parametrize(("call", "name", "number", "exit_code", "remedy"), FAULTS)
def test_a_fault_of_the_service(stream, server, call, name, number, exit_code, remedy):
    """It is reported in a line; a later run goes on, and nothing is lost or doubled."""
    server.send(event("u1"), event("u2", "b"))
    server.fail(call, number)
    code, said = stream.run(at=1)
    assert code == exit_code, said
    (line,) = [each for each in said.splitlines() if name in each][-1:]
    place = RESULTS if call == "Publish" else EVENTS
    for words in (place, f"{HOST}={server.address}", "injected by the test", remedy):
        assert words in line
    if call == "Publish":
        assert stream.kept()[1] == ["releases-00000001.jsonl"]
    else:
        assert stream.passes() == 0
    server.mend()
    stream.done(at=1)
    stream.done(at=2)
    assert alike(server.results()) == {0: [1, 1], 1: [0, 0]}
    stream.check_budgets()


@pytest.mark.parametrize("call", ["Pull", "Acknowledge", "Publish"])
def test_a_following_run_outlives_what_passes(stream, server, call):
    server.send(event("u1"), event("u2", "b"))
    server.fail(call, UNAVAILABLE, times=2)
    said = stream.done(at=1, follow="1s", end="2024-05-02")
    assert "no slot is closed by this; trying again in 1 s" in said
    assert alike(server.results()) == {0: [1, 1]}


def test_missing_input_may_be_waited_for(stream, server, wait_until):
    server.send(event("u1"))
    server.fail("Pull", 7)
    stream.clock(1)
    run = stream.launch(follow="1s", end="2024-05-02", missing_input="wait")
    try:
        status = Path(stream.path("state/status.json"))
        wait_until(
            "the wait", lambda: status.exists() and "PERMISSION_DENIED" in status.read_text()
        )
        server.mend()
        said = run.communicate(timeout=120)[0].decode()
    finally:
        run.kill()
    assert run.returncode == 0, said
    assert "slots wait: the input is missing" in said
    assert alike(server.results()) == {0: [1, 0]}


def test_missing_input_may_be_ignored(stream, server):
    server.send(event("u1"))
    server.fail("Pull", UNAVAILABLE)
    assert "released without it" in stream.done(at=1, missing_input="ignore")
    server.mend()
    stream.done(at=2)
    assert alike(server.results()) == {0: [0, 0], 1: [0, 0]}
    assert [letter["reason"] for letter in stream.letters()] == ["late"]


def test_a_slow_service_is_waited_for(stream, server):
    server.send(event("u1"), event("u2", "b"))
    server.fail("Pull", OK, times=2, seconds=3)
    stream.done(at=1)
    assert alike(server.results()) == {0: [1, 1]}


def test_silence_is_no_quiet_time(stream, server, monkeypatch):
    """A server that does not answer: its messages must not be missed."""
    monkeypatch.setattr("streamveil.io.inbox._PATIENCE", 1.0)
    server.send(event("u1"))
    server.process.send_signal(signal.SIGSTOP)
    try:
        code, said = stream.run(at=1)
    finally:
        server.process.send_signal(signal.SIGCONT)
    assert (code, stream.passes()) == (1, 0)
    assert f"{EVENTS} at {HOST}={server.address} cannot be reached: DEADLINE_EXCEEDED" in said
    stream.done(at=1)
    assert alike(server.results()) == {0: [1, 0]}


def test_connection_refused(stream, server, monkeypatch):
    monkeypatch.setenv(HOST, "localhost:1")
    server.send(event("u1"))
    code, said = stream.run(at=1)
    assert (code, stream.passes()) == (1, 0)
    assert f"{EVENTS} at {HOST}=localhost:1 cannot be reached: UNAVAILABLE" in said
    assert "look after the network" in said
    monkeypatch.setenv(HOST, server.address)
    stream.done(at=1)
    assert alike(server.results()) == {0: [1, 0]}


@pytest.mark.parametrize("after", [0, 100, 5_000, 60_000])
def test_a_connection_reset_in_mid_answer(stream, server, monkeypatch, after):
    proxy = Proxy(server.port)
    monkeypatch.setenv(HOST, proxy.address)
    text = "x" * 1000
    server.send(*({**event(f"u{number}", "ab"[number % 2]), "more": text} for number in range(90)))
    proxy.left = after
    said = stream.done(at=1, follow="1s", end="2024-05-02")
    assert proxy.resets, said
    proxy.close()
    assert alike(server.results()) == {0: [45, 45]}


def test_a_server_killed_and_restarted(stream, server, wait_until):
    """The run outlives it, with what it had taken; this server forgets all else."""
    server.send(event("u1"), event("u2", "b", slot=1))
    stream.clock(0, hours=2)
    run = stream.launch(follow="1s", end="2024-05-03")
    try:
        inbox = Path(stream.path("state/inbox"))
        wait_until("messages", lambda: any(inbox.glob("*.acknowledged")))
        server.kill()
        stream.clock(1)
        time.sleep(3)
        assert stream.passes() == 0
        server.start()
        server.send(event("u3", slot=0), event("u4", slot=1))
        wait_until("the pass", lambda: stream.passes() == 1)
        stream.clock(2)
        said = run.communicate(timeout=120)[0].decode()
    finally:
        run.kill()
    assert run.returncode == 0, said
    assert alike(server.results()) == {0: [2, 0], 1: [1, 1]}


def test_a_subscription_deleted_while_it_runs(stream, server, wait_until):
    server.send(event("u1"))
    stream.clock(1)
    run = stream.launch(follow="1s")
    wait_until("the pass", lambda: stream.passes() == 1)
    place = f"{PROJECT}/subscriptions/events"
    server.subscriber.delete_subscription(subscription=place)
    said = run.communicate(timeout=60)[0].decode()
    assert run.returncode == 2
    assert f"the input is missing: {EVENTS}" in said
    assert "NOT_FOUND" in said
    assert "create it, or name one that is there" in said
    server.subscribe("events")
    server.send(event("u2", slot=1))
    stream.done(at=2)
    assert alike(server.results()) == {0: [1, 0], 1: [1, 0]}


def test_no_topic_for_results(stream, server):
    server.send(event("u1"))
    topic = f"{PROJECT}/topics/none"
    code, said = stream.run(at=1, output=f"pubsub:{topic}")
    assert (code, stream.passes()) == (2, 1)
    for words in (topic, "NOT_FOUND", "create it", "wait in", "resumes with --resume"):
        assert words in said
    server.publisher.create_topic(name=topic)
    server.subscribe("none")
    stream.done(at=1, output=f"pubsub:{topic}")
    assert stream.kept()[1] == []


def test_a_result_that_no_topic_takes(server, tmp_path):
    topic = f"{PROJECT}/topics/releases"
    outbox = Outbox.opened({"releases": topic}, tmp_path)
    waiting = tmp_path / "outbox" / "releases-00000001.jsonl"
    waiting.write_bytes(b"x" * 10_000_001 + b"\n")
    words = f"pubsub:{topic} does not take a result: .*move its file away.*wait in"
    with pytest.raises(ConfigurationError, match=words):
        outbox.publish()
    assert waiting.exists()


@pytest.mark.parametrize("content", [None, "{}", "no"])
def test_no_credentials(stream, monkeypatch, tmp_path, content):
    monkeypatch.delenv(HOST)
    file = tmp_path / "credentials.json"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    code, said = stream.run(at=1)
    assert (code, stream.passes()) == (2, 0)
    (line,) = [each for each in said.splitlines() if EVENTS in each][-1:]
    assert str(file) in line
    assert "give credentials that have not expired" in line


def test_a_full_disk_loses_no_message(stream, server, monkeypatch):
    import errno

    server.send(event("u1"))
    rename = os.rename

    def full(source, target):
        if "/inbox/" in str(target):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        rename(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", full)
        code, said = stream.run(at=1)
    assert (code, stream.passes()) == (1, 0), said
    assert "make room" in said
    stream.done(at=1)
    assert alike(server.results()) == {0: [1, 0]}


# ---- with a runner that streams ----------------------------------------------------------------


def test_a_stream_on_a_runner(tmp_path, server, wait_until):
    """In real time, on BundleBasedDirectRunner: each slot once, nothing lost while it runs."""
    stream = Stream(tmp_path, server)
    begin = int(time.time()) + 40  # when it is up, on a machine that is busy
    begin += begin % 2
    names = ("state", "clock_file", "rejected", "ledger")
    run = stream.launch(
        **dict.fromkeys(names),
        runner="BundleBasedDirectRunner",
        slot="2s",
        start=dt.datetime.fromtimestamp(begin, dt.timezone.utc).isoformat(),
        allowed_lateness="10s",
    )
    sent, end = 0, begin + 8
    try:
        while time.time() < begin:
            time.sleep(0.1)
        while (now := time.time()) < end:
            when = dt.datetime.fromtimestamp(now, dt.timezone.utc).isoformat()
            server.send({"user": f"u{sent}", "place": "a", "time": when})
            sent += 1
            if sent == 5:
                server.send(b"poison")
            time.sleep(0.1)
        released, wanted = {}, set(range(begin // 2, begin // 2 + 5))

        def all_released():  # they come in any order, and some may come again
            released.update((one["slot"], counts_of(one)) for one in server.results(1))
            return wanted <= released.keys()

        wait_until("releases", all_released)
    finally:
        run.kill()
        said = run.communicate()[0].decode()
    assert min(released) == min(wanted), said
    assert sum(counts[0] for counts in released.values()) == sent


def test_files_to_a_topic(tmp_path, server):
    stream = Stream(tmp_path, server)
    Path(stream.path("in.jsonl")).write_text(
        "".join(json.dumps(event(f"u{number}", "ab"[number % 2])) + "\n" for number in range(9))
    )
    names = ("state", "clock_file", "rejected", "ledger")
    flags = {**dict.fromkeys(names), "input": stream.path("in.jsonl"), "end": "2024-05-03"}
    flags["noise_key"] = stream.key()
    said = stream.done(**flags)
    assert f"wrote {RESULTS}" in said
    rows = server.results()
    assert alike(rows) == {0: [5, 4], 1: [0, 0]}
    stream.done(**{**flags, "output": stream.path("out.jsonl")})
    lines = Path(stream.path("out.jsonl")).read_text().splitlines()
    flat = [{**one, **row} for one in rows for row in one["rows"]]
    for one in flat:
        one.pop("rows")
    assert sorted(map(set, flat), key=sorted) == sorted(
        (set(json.loads(each)) for each in lines), key=sorted
    )


READ = defaultdict(list)


def note(element, name, time=beam.DoFn.TimestampParam):
    READ[name].append((element, float(time)))


@pytest.mark.parametrize("attribute", [None, "time"])
def test_events_are_read(server, wait_until, caplog, attribute):
    READ.clear()
    place = f"{PROJECT}/subscriptions/events"
    at = "2024-05-01T00:00:09Z"
    begun = time.time()
    server.send(b'{"user":"a","value":1}', b"no", time=at)
    options = PipelineOptions(["--streaming"])
    pipeline = beam.Pipeline(runner=BundleBasedDirectRunner(), options=options)
    events = pipeline | ReadPubSubEvents(
        subscription=place, columns=("user", "value"), timestamp_attribute=attribute
    )
    warned = [r.getMessage() for r in caplog.records if r.name == "streamveil"]
    assert [("timestamp_attribute=time" in line) for line in warned] == [True] * bool(attribute)
    assert not events.batches.is_bounded
    _ = events.batches | "Batches" >> beam.Map(note, "batches")
    _ = events.rejected | "Rejected" >> beam.Map(note, "rejected")
    running = pipeline.run()
    wait_until("events", lambda: READ["batches"] and READ["rejected"])
    running.cancel()
    ((batch, when),) = READ["batches"]
    assert [(row["user"], row["value"]) for row in batch.to_pylist()] == [("a", "1")]
    assert batch.schema.metadata == {b"streamveil.source": f"pubsub:{place}".encode()}
    assert when == 1714521609 if attribute else begun - 60 < when < time.time() + 60
    ((letter, _),) = READ["rejected"]
    assert [(row["reason"], row["record"]) for row in letter.to_pylist()] == [("unparsable", "no")]
