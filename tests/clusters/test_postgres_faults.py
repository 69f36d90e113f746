"""Faults of PostgreSQL and of the way to it, met by the recipes of docs/how-to/postgresql.md.

Connections go through a proxy, which fails, to a real server. Whatever happens, a recipe releases
all rows of one moment or none, and a run with the same key once more gives the same releases.
"""

import errno
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import streamveil as sv
from streamveil.mechanisms.core.records import MachineFault
from tests.clusters.postgres_server import wait_for_end
from tests.clusters.tcp_proxy import Cut, TcpProxy
from tests.clusters.test_postgres import path_of, recipe

pytestmark = pytest.mark.postgres

KEY = "7" * 32
LANGUAGES = ("python", "sh")
DATABASE = "faults"
ROWS = 4000
# Some 40 MB on their way, of which the driver hands on 16 MB at a time.
TRIPS = f"""
    CREATE TABLE public.numbered AS
        SELECT number, rpad('u' || number, 10000, '.') AS rider,
            CASE number % 3 WHEN 0 THEN 'park' ELSE 'cafe' END AS station,
            timestamptz '2024-05-01Z' + number * interval '40 s' AS begun,
            timestamptz '2024-05-01Z' + number * interval '40 s'
                + number % 1500 * interval '1 s' AS ended
        FROM generate_series(1, {ROWS}) number;
"""
VIEW = """
    CREATE SCHEMA {role};
    CREATE VIEW {role}.trips AS SELECT rider, {station} AS station, begun, ended FROM numbered;
    ALTER ROLE {role} SET search_path = {role}, public;
"""
STARTED = 20_000_000
"""Bytes that came before it strikes: the driver has handed on a batch, and waits for more."""
AT = 3400
"""Row at which a statement fails."""
PAGE = 8192
"""Bytes of a page of a table's file."""


def view(station):
    """SQL by which a role sees trips with another column of stations."""
    return VIEW.replace("{station}", station)


@dataclass
class Fault:
    """What goes wrong."""

    says: str
    """What the error says, as a pattern."""
    sql: str = ""
    """Run first, with `{role}` as the name of the role of this fault."""
    cut: Cut | None = None
    act: str = ""
    """Name of a function of the server that is called when so many bytes have come."""
    environment: dict = field(default_factory=dict)
    role: str = ""
    database: str = DATABASE
    readable: bool = True
    """Whether the role may read every table."""


PASSWORD = "ALTER ROLE {role} PASSWORD 'secret';"
GIVEN = {"PGPASSWORD": "secret"}
GONE = "server closed the connection unexpectedly|Connection reset by peer"
BEFORE = {
    "refused": Fault("Connection refused"),
    "reset at once": Fault(GONE, cut=Cut("reset")),
    "closed at once": Fault(GONE, cut=Cut("close")),
    "reset while it logs in": Fault(GONE, cut=Cut("reset", after=100)),
    "closed while it logs in": Fault(GONE, cut=Cut("close", after=100)),
    "no answer": Fault("timeout expired", cut=Cut("stall")),
    "shutting down": Fault("the database system is shutting down"),
    "too many connections": Fault(
        "too many connections for role", "ALTER ROLE {role} CONNECTION LIMIT 0;"
    ),
    "too many connections to the database": Fault(
        'too many connections for database "crowded"',
        "CREATE DATABASE crowded CONNECTION LIMIT 0;",
        database="crowded",
    ),
    "database closed": Fault(
        "not currently accepting connections",
        "CREATE DATABASE closed ALLOW_CONNECTIONS false;",
        database="closed",
    ),
    "no such database": Fault('database "nowhere" does not exist', database="nowhere"),
    "database not allowed": Fault(
        'permission denied for database "private"',
        "CREATE DATABASE private; REVOKE CONNECT ON DATABASE private FROM PUBLIC;",
        database="private",
    ),
    "no such role": Fault('role "nobody" does not exist', role="nobody"),
    "role may not log in": Fault("is not permitted to log in", "ALTER ROLE {role} NOLOGIN;"),
    "host not allowed": Fault("pg_hba.conf rejects connection", role="rejected"),
    "no password": Fault("no password supplied", PASSWORD, role="asked_1"),
    "wrong password": Fault(
        "password authentication failed",
        PASSWORD,
        role="asked_2",
        environment={"PGPASSWORD": "other"},
    ),
    "expired password": Fault(
        "password authentication failed",
        PASSWORD + "ALTER ROLE {role} VALID UNTIL '2024-01-01';",
        role="asked_3",
        environment=GIVEN,
    ),
    "no TLS": Fault(
        "SSL was required|SSL support is not compiled in", environment={"PGSSLMODE": "require"}
    ),
    "no such table": Fault(
        'relation "trips" does not exist', "ALTER ROLE {role} SET search_path = pg_catalog;"
    ),
    "no such column": Fault(
        'column "ended" does not exist',
        "CREATE SCHEMA {role}; ALTER ROLE {role} SET search_path = {role};"
        "CREATE TABLE {role}.trips (rider text, station text, begun timestamptz);",
    ),
    "table not allowed": Fault("permission denied for view trips", readable=False),
    "rows hidden by a policy": Fault(
        "query would be affected by row-level security policy",
        "CREATE SCHEMA {role}; ALTER ROLE {role} SET search_path = {role};"
        "CREATE TABLE {role}.trips AS SELECT * FROM numbered LIMIT 9;"
        "ALTER TABLE {role}.trips ENABLE ROW LEVEL SECURITY;"
        "CREATE POLICY parks ON {role}.trips USING (station = 'park');",
    ),
    "table locked": Fault(
        "canceling statement due to lock timeout",
        "CREATE SCHEMA {role}; CREATE TABLE {role}.trips AS SELECT * FROM numbered LIMIT 9;"
        "ALTER ROLE {role} SET search_path = {role}; ALTER ROLE {role} SET lock_timeout = '200ms';",
    ),
}
SLEEP = f"CASE number WHEN {AT} THEN pg_sleep(60)::text ELSE station END"
DURING = {
    "reset": Fault(GONE, cut=Cut("reset", after=STARTED)),
    "closed": Fault(GONE, cut=Cut("close", after=STARTED)),
    "backend terminated": Fault(
        f"terminating connection due to administrator command|{GONE}", act="terminate"
    ),
    "statement cancelled": Fault("canceling statement due to user request", act="cancel"),
    "backend killed": Fault(GONE, act="kill_backend"),
    "server killed": Fault(GONE, act="kill"),
    "server down at once": Fault(
        f"terminating connection due to immediate shutdown|{GONE}", act="quit"
    ),
    "server down": Fault(
        f"terminating connection due to administrator command|{GONE}", act="interrupt"
    ),
    "division by zero": Fault(
        "division by zero", view(f"CASE 1 / (number - {AT}) WHEN 9 THEN 'none' ELSE station END")
    ),
    "damaged page": Fault(
        "invalid page in block",
        "CREATE SCHEMA {role}; CREATE TABLE {role}.trips AS SELECT * FROM numbered;"
        "ALTER ROLE {role} SET search_path = {role};",
        role="damaged",
    ),
    "statement timeout": Fault(
        "canceling statement due to statement timeout",
        view(SLEEP) + "ALTER ROLE {role} SET statement_timeout = '1500ms';",
    ),
    "transaction timeout": Fault(
        "terminating connection due to transaction timeout",
        view(SLEEP) + "ALTER ROLE {role} SET transaction_timeout = '1500ms';",
    ),
    "disk of the server full": Fault(
        "temporary file size exceeds",
        "CREATE SCHEMA {role}; ALTER ROLE {role} SET search_path = {role}, public;"
        "CREATE VIEW {role}.trips AS SELECT * FROM numbered ORDER BY rider DESC;"
        "ALTER ROLE {role} SET work_mem = '64kB'; ALTER ROLE {role} SET temp_file_limit = '99kB';",
    ),
}
FAULTS = BEFORE | DURING
# Where so many bytes need not have come.
ANY_TIME = {"disk of the server full", "statement timeout", "transaction timeout"}


class Acts:
    """What is done to a server while it sends rows."""

    def __init__(self, server):
        self.server = server
        self.done = 0

    def __call__(self, name):
        if not self.done:
            self.done += 1
            getattr(self, name)()

    def cancel(self):
        self._tell("pg_cancel_backend")

    def terminate(self):
        self._end_reader(lambda: self._tell("pg_terminate_backend"))

    def kill_backend(self):
        self._end_reader(lambda: os.kill(self._reader(), signal.SIGKILL))

    def kill(self):
        self._end_reader(lambda: self.server.signal(signal.SIGKILL))

    def quit(self):
        self._end_reader(lambda: self.server.signal(signal.SIGQUIT))

    def interrupt(self):
        self._end_reader(lambda: self.server.signal(signal.SIGINT))

    def _end_reader(self, act):
        """Do what ends the process that sends rows, before any more of them get through."""
        reader = self._reader()
        act()
        wait_for_end(reader)

    def _reader(self):
        return int(self.server.ask(READERS, DATABASE))

    def _tell(self, function):
        assert self.server.ask(f"SELECT {function}(pid) FROM ({READERS})", DATABASE) == "t"

    def write(self):
        """Change the table: rows that are new, gone, and moved to its end."""
        self.server.ask(
            "INSERT INTO changing.trips SELECT number, rider || 'new', station, begun, ended"
            "    FROM changing.trips WHERE number % 7 = 0;"
            "DELETE FROM changing.trips WHERE number % 7 = 1;"
            "UPDATE changing.trips SET rider = rider || 'too' WHERE number % 7 = 2;",
            DATABASE,
        )


READERS = "SELECT pid FROM pg_stat_activity WHERE usename = 'reader' AND query LIKE 'COPY%'"


@pytest.fixture(scope="module")
def server(postgres):
    """A server with trips, and a role for each fault."""
    for at, fault in enumerate(FAULTS.values()):
        fault.role = fault.role or (f"role_{at}" if fault.sql or not fault.readable else "reader")
    roles = {fault.role for fault in FAULTS.values()} | {"reader", "changing"}
    made = "".join(f"CREATE ROLE {role} LOGIN;" for role in roles - {"nobody"})
    unreadable = {fault.role for fault in FAULTS.values() if not fault.readable} | {"nobody"}
    made += f"GRANT pg_read_all_data TO {', '.join(roles - unreadable)};"
    rules = postgres.data / "pg_hba.conf"
    asked = ",".join(role for role in roles if role.startswith("asked_"))
    rules.write_text(
        f"host all rejected all reject\nhost all {asked} all scram-sha-256\n{rules.read_text()}"
    )
    postgres.ask(f"{made} CREATE DATABASE {DATABASE};")
    postgres.ask(
        TRIPS + "CREATE VIEW trips AS SELECT rider, station, begun, ended FROM numbered;", DATABASE
    )
    postgres.ask(
        "CREATE SCHEMA changing; ALTER ROLE changing SET search_path = changing;", DATABASE
    )
    for fault in FAULTS.values():
        postgres.ask(fault.sql.replace("{role}", fault.role), DATABASE)
    damage(postgres)
    return postgres


def damage(server):
    """Overwrite a page, late in the table `damaged.trips`, as a bad disk may."""
    server.ask("VACUUM FREEZE damaged.trips; CHECKPOINT;", DATABASE)
    path = server.ask("SELECT pg_relation_filepath('damaged.trips')", DATABASE)
    with (server.data / path).open("r+b") as file:
        pages = file.seek(0, os.SEEK_END) // PAGE
        file.seek(pages * 7 // 8 * PAGE + PAGE // 2)
        file.write(b"damaged" * 9)
    pid = server.pid
    server.signal(signal.SIGINT)  # it forgets the page that it has in memory
    wait_for_end(pid)
    server.wait()


@pytest.fixture(scope="module")
def way(server):
    """The proxy between recipes and the server."""
    proxy = TcpProxy(server.address)
    yield proxy
    proxy.stop()


@pytest.fixture
def proxy(server, way, monkeypatch, tmp_path):
    """The same, whole again, with the folder and the variables of a run."""
    server.wait()
    way.reset()
    for name in ("work", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setenv("PATH", path_of(server))
    monkeypatch.setenv("STREAMVEIL_NOISE_KEY", KEY)
    yield way
    way.reset()


def asked(server, proxy, language, role="reader", database=DATABASE):
    """A recipe, to a server behind the proxy; it waits for an answer no longer than must be."""
    text = recipe(language, server.url(role, database, proxy.address))
    assert "connect_timeout=10" in text
    return text.replace("connect_timeout=10", "connect_timeout=2")


def command(text, language):
    return [sys.executable, "-c", text] if language == "python" else ["bash", "-c", text]


def run(text, language, **changed):
    return subprocess.run(command(text, language), capture_output=True, text=True, **changed)


OUTPUTS = {"python": "trips-releases.csv", "sh": "seconds-of-trips.csv"}
CARD = "seconds-of-trips.csv.card.json"


def left():
    """Files that a run leaves, with its temporary ones."""
    return {path.name for folder in ("work", "tmp") for path in Path("..", folder).iterdir()}


@pytest.fixture(scope="module")
def truth(server, way, tmp_path_factory):
    """What the recipes release where nothing happens."""
    found = {}
    for language in LANGUAGES:
        folder = tmp_path_factory.mktemp("truth")
        environment = {**os.environ, "PATH": path_of(server), "STREAMVEIL_NOISE_KEY": KEY}
        done = run(asked(server, way, language), language, cwd=folder, env=environment)
        assert done.returncode == 0, done.stderr
        found[language] = (folder / OUTPUTS[language]).read_text()
    return found


def released_by(server, proxy, language, **changed):
    """What a recipe releases that comes to its end."""
    text = asked(server, proxy, language, **changed)
    if language == "python":
        exec(compile(text, "recipe", "exec"), {})
    else:
        done = run(text, language)
        assert done.returncode == 0, done.stderr
        assert f"{ROWS:,} events read: {ROWS:,} counted" in done.stdout + done.stderr
    assert set(os.listdir()) - {CARD} == {OUTPUTS[language]}
    return Path(OUTPUTS[language]).read_text()


@contextmanager
def suffering(server, proxy, name):
    """Let a fault happen."""
    fault = FAULTS[name]
    cut = fault.cut
    acts = Acts(server)
    if name in DURING and cut is None:
        call = (lambda: acts(fault.act)) if fault.act else None
        cut = Cut("slow", after=STARTED, call=call)
    proxy.reset(cut)
    if name == "refused":
        proxy.stop()
    held = None
    if name == "shutting down":
        held = session(server, "BEGIN")
        server.signal(signal.SIGTERM)  # it waits for who is there
        while server.takes_connections():
            time.sleep(0.01)
    elif name == "table locked":
        held = session(server, f"BEGIN; LOCK TABLE {fault.role}.trips")
    try:
        yield fault
    finally:
        if held is not None:
            held.communicate()
    if cut is not None and name not in ANY_TIME:
        assert proxy.struck
    assert acts.done == bool(fault.act)


def session(server, statements):
    """A session of psql that stays until its input ends."""
    held = subprocess.Popen(
        [server.tools / "psql", "--quiet", "--no-psqlrc", server.url(database=DATABASE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    held.stdin.write(f"{statements};\n\\echo begun\n")
    held.stdin.flush()
    assert held.stdout.readline() == "begun\n"
    return held


@pytest.mark.parametrize("name", FAULTS)
def test_python_releases_nothing(server, proxy, truth, monkeypatch, name):
    from adbc_driver_postgresql import dbapi

    with suffering(server, proxy, name) as fault:
        for variable, value in fault.environment.items():
            monkeypatch.setenv(variable, value)
        text = asked(server, proxy, "python", fault.role, fault.database)
        given = {}
        with pytest.raises(dbapi.Error if name in BEFORE else MachineFault) as caught:
            exec(compile(text, "recipe", "exec"), given)
    said = str(caught.value)
    assert re.search(fault.says, said)
    if name in DURING:
        assert said.startswith("data could not be read to its end: [libpq] ")
        assert said.endswith(": fix that, open it anew, and run it again")
        assert "\n" not in said
        assert re.search(fault.says, str(caught.value.__cause__))
    assert "releases" not in given
    assert not left()
    if name in DURING:
        proxy.reset()
        server.wait()
        assert released_by(server, proxy, "python") == truth["python"]


@pytest.mark.parametrize("name", FAULTS)
def test_a_shell_releases_nothing(server, proxy, name):
    with suffering(server, proxy, name) as fault:
        text = asked(server, proxy, "sh", fault.role, fault.database)
        done = run(text, "sh", env={**os.environ, **fault.environment}, stdin=subprocess.DEVNULL)
    assert done.returncode in (1, 2)  # of psql
    assert re.search(fault.says, done.stderr)
    assert "read:" not in done.stdout + done.stderr
    assert not left()


def test_a_reader_that_broke_off_gives_no_part(server, proxy):
    """Whoever tries the same reader again has none of the rows that came."""
    text = asked(server, proxy, "python")
    reader, call = "cursor.fetch_record_batch()", "    releases = "
    assert text.count(reader) == text.count(call) == 1
    text = text.replace(reader, "reader").replace(call, f"    reader = {reader}\n{call}")
    again = text[text.index(call) : text.index("releases.to_pandas")]
    given = {}
    proxy.reset(Cut("close", after=STARTED))
    with pytest.raises(MachineFault):
        exec(compile(text, "recipe", "exec"), given)
    assert proxy.struck == 1
    with pytest.raises((MachineFault, sv.InputLost)):
        exec(compile(f"if True:\n{again}", "again", "exec"), given)
    assert "releases" not in given


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_slow_way_changes_nothing(server, proxy, truth, language):
    proxy.reset(Cut("slow", seconds=0.003))
    assert released_by(server, proxy, language) == truth[language]
    assert proxy.struck > 100


@pytest.mark.parametrize("language", LANGUAGES)
def test_rows_that_change_while_they_are_read(server, proxy, truth, language):
    """What is released is the table as it was when the statement began."""
    server.ask(
        "DROP TABLE IF EXISTS changing.trips;"
        "CREATE TABLE changing.trips AS SELECT * FROM numbered;",
        DATABASE,
    )
    acts = Acts(server)
    proxy.reset(Cut("slow", after=STARTED, call=lambda: acts("write")))
    assert released_by(server, proxy, language, role="changing") == truth[language]
    assert acts.done
    if language == "python":  # and it did change
        proxy.reset()
        assert released_by(server, proxy, language, role="changing") != truth[language]


def wait_for_files(expected):
    """Wait until these CSV files are left: the subshell cleans up behind the shell."""
    end = time.monotonic() + 10
    while (found := [path.name for path in Path("..").rglob("*.csv*")]) != expected:
        assert time.monotonic() < end, found
        time.sleep(0.05)


def children(pid):
    return map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def killing(who, pid):
    """Kill a run of that pid, or a part of it."""
    if who == "psql":
        (subshell,) = children(pid)
        (pid,) = children(subshell)
    if who in ("shell", "psql"):
        os.kill(pid, signal.SIGKILL)
    else:
        os.killpg(pid, signal.SIGTERM if who == "stopped" else signal.SIGKILL)


@pytest.mark.parametrize(
    ("language", "who", "code"),
    [
        ("python", "all", -signal.SIGKILL),
        ("sh", "all", -signal.SIGKILL),
        ("sh", "stopped", -signal.SIGTERM),
        ("sh", "psql", 128 + signal.SIGKILL),
        ("sh", "shell", -signal.SIGKILL),  # the rest goes on, beside the next run
    ],
)
def test_a_run_that_is_killed_is_run_again(server, proxy, truth, language, who, code):
    connections = 2 if language == "python" else 1  # of one run
    proxy.reset(Cut("stall", after=STARTED, times=connections))
    text = asked(server, proxy, language)
    with subprocess.Popen(command(text, language), start_new_session=True) as begun:
        try:
            while not proxy.struck:
                assert begun.poll() is None
                time.sleep(0.01)
            killing(who, begun.pid)
            assert begun.wait(60) == code
            expected = ["trips.csv"] if code == -signal.SIGKILL and language == "sh" else []
            wait_for_files(expected)
            if code == -signal.SIGKILL:
                assert released_by(server, proxy, language) == truth[language]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(begun.pid, signal.SIGKILL)


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_a_script_around_it_ends_where_it_fails(server, proxy, shell):
    """With what the script itself has to do at its end."""
    proxy.stop()
    text = f"set -e\ntrap 'echo unlocked' EXIT\n{asked(server, proxy, 'sh')}\necho published\n"
    done = subprocess.run([shell, "-c", text], capture_output=True, text=True)
    assert done.returncode in (1, 2)
    assert "Connection refused" in done.stderr
    assert done.stdout == "unlocked\n"
    assert not left()


def test_any_shell_that_is_stopped_leaves_no_rows(server, proxy):
    """Of some no trap for the end runs at a signal."""
    proxy.reset(Cut("stall", after=STARTED, times=1))
    text = asked(server, proxy, "sh")
    with subprocess.Popen(["sh", "-c", text], start_new_session=True) as begun:
        while not proxy.struck:
            assert begun.poll() is None
            time.sleep(0.01)
        os.killpg(begun.pid, signal.SIGTERM)
        begun.wait(60)
    wait_for_files([])


def full(monkeypatch, tmp_path):
    """Let the file of psql be on a full disk."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "mktemp").write_text(
        f'#!/bin/sh\nfolder=$({shutil.which("mktemp")} "$@") &&'
        ' ln -s /dev/full "$folder/trips.csv" && echo "$folder"\n'
    )
    (tools / "mktemp").chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=os.pathsep)


@pytest.mark.parametrize("rows", [ROWS, 0])
@pytest.mark.parametrize("settings", ["", "\\set FETCH_COUNT 1000\n"])
def test_a_full_disk_under_psql(server, proxy, monkeypatch, tmp_path, rows, settings):
    full(monkeypatch, tmp_path)
    (tmp_path / "settings").write_text(settings)
    monkeypatch.setenv("PSQLRC", str(tmp_path / "settings"))
    text = asked(server, proxy, "sh")
    assert "FROM trips)" in text
    done = run(text.replace("FROM trips)", f"FROM trips LIMIT {rows})"), "sh")
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "read:" not in done.stdout + done.stderr
    assert not left()


@pytest.mark.parametrize("ignored", [True, False])
def test_a_limit_of_file_sizes_under_psql(server, proxy, ignored):
    """psql gets an error, or is killed."""

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (STARTED, resource.RLIM_INFINITY))

    done = run(asked(server, proxy, "sh"), "sh", preexec_fn=limit, restore_signals=not ignored)
    assert done.returncode == (1 if ignored else 128 + signal.SIGXFSZ)
    assert ("File too large" if ignored else "File size limit exceeded") in done.stderr
    assert "read:" not in done.stdout + done.stderr
    assert not left()


def test_a_full_disk_under_the_releases(server, proxy, truth):
    """The releases of another run stay."""
    Path(OUTPUTS["python"]).write_text("of yesterday")
    part = Path(f"{OUTPUTS['python']}.{os.getpid()}.part")
    part.symlink_to("/dev/full")
    text = asked(server, proxy, "python")
    with pytest.raises(OSError, match="No space left") as caught:
        exec(compile(text, "recipe", "exec"), {})
    assert caught.value.errno == errno.ENOSPC
    assert Path(OUTPUTS["python"]).read_text() == "of yesterday"
    part.unlink()
    assert released_by(server, proxy, "python") == truth["python"]


def test_settings_of_a_user_change_nothing(server, proxy, truth, monkeypatch, tmp_path):
    settings = "\\set FETCH_COUNT 1000\n\\timing on\n\\set ECHO all\n\\pset null none\n"
    (tmp_path / "settings").write_text(settings)
    monkeypatch.setenv("PSQLRC", str(tmp_path / "settings"))
    assert released_by(server, proxy, "sh") == truth["sh"]
