"""Clusters on this machine, started when a test needs them and stopped when all is done."""

import json
import subprocess
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "flink.sh"


@dataclass(frozen=True)
class Flink:
    """A cluster of Flink with Beam's job server, and workers in the process that launches."""

    work: Path
    job_endpoint: str
    flink_master: str = ""

    @property
    def flags(self):
        """What makes a command run there."""
        return (
            "--runner=PortableRunner",
            f"--job_endpoint={self.job_endpoint}",
            "--environment_type=LOOPBACK",
        )

    def cancel(self):
        """Cancel all jobs of a cluster of several processes."""
        for job in self._ask("/jobs")["jobs"]:
            if job["status"] == "RUNNING":
                self._ask(f"/jobs/{job['id']}?mode=cancel", "PATCH")

    def _ask(self, path, method="GET"):
        request = urllib.request.Request(f"http://{self.flink_master}{path}", method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or "null")


@pytest.fixture(scope="session")
def flink_home(request):
    """What `flink.sh install` filled."""
    return Path(request.config.getoption("--flink_home")).resolve()


def start(home, work, how, *arguments):
    command = [SCRIPT, how, home, work, *arguments]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        yield Flink(work, **dict(line.split("=", 1) for line in done.stdout.split()))
    finally:
        subprocess.run([SCRIPT, "stop", work], check=True)


@pytest.fixture(scope="session")
def flink(flink_home, tmp_path_factory):
    """A job manager, a task manager with six slots, and a job server."""
    yield from start(flink_home, tmp_path_factory.mktemp("flink"), "start", "1", "6")


@pytest.fixture(scope="session")
def embedded_flink(flink_home, tmp_path_factory):
    """A job server that is a cluster by itself."""
    yield from start(flink_home, tmp_path_factory.mktemp("flink"), "embedded")


@pytest.fixture(scope="session")
def flags_of(flags_of, request):
    """The flags that choose a runner or a cluster, by its name."""

    def flags(name):
        if name != "flink":
            return flags_of(name)
        return [*request.getfixturevalue("flink").flags, "--parallelism=2"]

    return flags
