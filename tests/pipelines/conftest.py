"""What the tests of the command line share: a folder of files, and the command run on them."""

import contextlib
import datetime as dt
import io
import json
import logging
import math
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamveil.io import read_table, write_table
from streamveil.pipelines.main import main
from streamveil.pipelines.options.command_table import COMMANDS
from streamveil.pipelines.options.execution import Execution
from tests.clusters.stores import fake_account
from tests.pipelines.secret_manager_server import SecretManagerServer

DAY = dt.timedelta(days=1)
NEW_YEAR = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)
# So much that whatever is published is exact.
EXACT = 4000.0

EVENT_SCHEMA = pa.schema(
    [("user", pa.string()), ("value", pa.string()), ("time", pa.timestamp("us", "UTC"))]
)


@pytest.fixture(autouse=True)
def no_progress(monkeypatch):
    """A slow machine must not add lines to what a command prints."""
    monkeypatch.setattr("streamveil.pipelines.console.progress._SECONDS_BETWEEN_LINES", math.inf)


@dataclass(frozen=True)
class Outcome:
    """What a command gave back and showed."""

    code: int
    out: str
    err: str
    """What it printed to stderr itself."""
    log: str
    """What it and Beam logged, which a person sees on stderr as well."""

    @property
    def message(self):
        """The last thing on stderr, of which a person reads one."""
        return self.err.strip()


def run(*arguments):
    """Run `streamveil` in this process."""
    out, err, log = io.StringIO(), io.StringIO(), io.StringIO()
    handler = logging.StreamHandler(log)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = main(list(arguments))
            except SystemExit as stop:
                code = stop.code
    finally:
        logging.getLogger().removeHandler(handler)
    return Outcome(code, out.getvalue(), err.getvalue(), log.getvalue())


class Job:
    """A folder with events and requirements, and `streamveil release` or another on them."""

    def __init__(self, folder: Path, command: str = "release"):
        self.folder = folder
        self.command = command
        self.flags = {
            "input": self.path("events.csv"),
            "output": self.path("out.jsonl"),
            "user_column": "user",
            "value_column": "value",
            "time_column": "time",
            "slot": "1d",
            "domain": "A,B,C",
            "requirements": self.path("users.csv"),
            "layout": "rows",  # which tells more of a slot; tests of tidy files leave it out
        }

    def path(self, name):
        return str(self.folder / name)

    def write(self, name, content):
        """A file of text, bytes, or an Arrow table as Parquet; gives its path."""
        path = self.folder / name
        if isinstance(content, pa.Table):
            pq.write_table(content, path)
        elif isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content, encoding="utf-8")
        return str(path)

    def events(self, rows, name="events.csv"):
        """(user, value, datetime) rows, in the format of the name."""
        users, values, times = zip(*rows, strict=True) if rows else ((), (), ())
        batch = pa.RecordBatch.from_pydict(
            {"user": users, "value": values, "time": times}, schema=EVENT_SCHEMA
        )
        write_table(self.path(name), EVENT_SCHEMA, [batch])
        return self.path(name)

    def lines(self, *lines, name="events.csv"):
        """A CSV file of events, line by line as written here."""
        return self.write(name, "\n".join(("user,value,time", *lines)) + "\n")

    def requirements(self, table, name="users.csv"):
        """A table user -> (window, epsilon)."""
        rows = [f"{user},{window},{epsilon}" for user, (window, epsilon) in table.items()]
        return self.write(name, "\n".join(("user,window,epsilon", *rows)) + "\n")

    def key(self, content="5e" * 32, name="key"):
        """The place of a key in a file that only its owner reads."""
        path = Path(self.write(name, content))
        path.chmod(0o600)
        return f"file:{path}"

    def kept(self):
        """Flags of a job that reads the files of a folder and keeps its state."""
        return {
            "input": self.path("in/*.csv"),
            "state": self.path("state"),
            "start": "2024-01-01",
            "ledger": self.path("ledger.jsonl"),
            "rejected": self.path("rejected.jsonl"),
            "noise_key": self.key(),
        }

    def arguments(self, *extra, **flags):
        """Command line; a flag that is None is left out."""
        given = {**self.flags, **flags}
        if given.get("queries") and "layout" not in flags:
            given.pop("layout", None)  # which their results do not have
        named = [f"--{name}={value}" for name, value in given.items() if value is not None]
        return [self.command, *named, *extra]

    def asked(self, *extra, **flags):
        """Its options as they are read, and how it runs."""
        request = COMMANDS[self.command].request(self.arguments(*extra, **flags)[1:])
        given, others = request.read(), request.others
        return given, Execution.of(others)

    def __call__(self, *extra, **flags):
        return run(*self.arguments(*extra, **flags))

    def done(self, *extra, **flags):
        """Run it; it must work."""
        outcome = self(*extra, **flags)
        assert outcome.code == 0, outcome.err + outcome.log
        assert outcome.err == ""
        return outcome

    def refused(self, *words, code=2, **flags):
        """Run it; it must say why it cannot work in these words, and leave nothing behind."""
        before = self.files()
        outcome = self(**flags)
        assert outcome.code == code, outcome
        assert "Traceback" not in outcome.err
        assert outcome.message.startswith(f"streamveil {self.command}: ")
        missing = [word for word in words if word.lower() not in outcome.message.lower()]
        assert not missing, outcome.message
        assert self.files() == before
        assert "wrote" not in outcome.out
        return outcome

    def files(self):
        """Every file there, hidden ones too, with its content, but for what only tells of runs."""
        return {
            os.path.join(base, name): Path(base, name).read_bytes()
            for base, _, names in os.walk(self.folder)
            for name in names
            if name != "status.json"
        }

    def rows(self, name="out.jsonl"):
        """Rows of an output as dictionaries; lists are lists in all formats."""
        return read_table(self.path(name)).to_pylist()

    def counts(self, name="out.jsonl"):
        """Released counts by the start of their slot."""
        return {row["start"]: row["counts"] for row in self.rows(name)}

    def json_rows(self, name):
        """Rows of a JSON Lines output, as they stand there."""
        text = Path(self.path(name)).read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]


def true_counts(rows, bins="ABC", length=DAY, origin=NEW_YEAR):
    """Brute force: counts of the slots that have events, by the start of the slot."""
    cells = Counter((origin + (time - origin) // length * length, value) for _, value, time in rows)
    return {start: [cells[start, b] for b in bins] for start, _ in cells}


@pytest.fixture
def job(tmp_path):
    """A job whose events and requirements are fine, one user of each window from 1 to 3."""
    made = Job(tmp_path)
    made.requirements({f"u{w}": (w, EXACT) for w in (1, 2, 3)})
    made.lines(
        "u1,A,2024-01-01T08:00:00Z",
        "u2,B,2024-01-01T09:30:00Z",
        "u3,B,2024-01-02T00:00:00Z",
        "u1,C,2024-01-03T23:59:59.999999Z",
    )
    return made


@pytest.fixture
def noisy(job):
    """A job whose releases are mostly noise."""
    job.requirements({f"u{u}": (1, 1.0) for u in range(200)})
    job.lines(*(f"u{u},{'ABC'[u % 3]},2024-01-0{d}" for u in range(200) for d in (1, 2, 3)))
    return job


@pytest.fixture(scope="session")
def google_account(tmp_path_factory):
    """A file with a service account of Google, which signs its tokens itself."""
    pytest.importorskip("google.auth", reason="the extra gcp is not installed")
    path = tmp_path_factory.mktemp("google") / "account.json"
    path.write_text(json.dumps(fake_account("http://127.0.0.1:1")))
    return path


@pytest.fixture
def secret_manager(monkeypatch, google_account):
    """A Secret Manager on this machine, to which Google's own client is led."""
    pytest.importorskip("google.cloud.secretmanager", reason="the extra gcp is not installed")
    server = SecretManagerServer("c0ffee" * 10 + "beef")
    server.lead(monkeypatch)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(google_account))
    monkeypatch.setattr("streamveil.io.secret_manager.FIRST_WAIT", 0.05)
    yield server
    server.close()


@pytest.fixture(scope="session")
def toolbox():
    """What tests need of this file, which they cannot import."""
    return Tools


class Tools:
    """Names for tests."""

    Job = Job
    run = staticmethod(run)
    true_counts = staticmethod(true_counts)
    NEW_YEAR = NEW_YEAR
    DAY = DAY
    EXACT = EXACT
