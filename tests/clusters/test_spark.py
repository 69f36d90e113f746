"""Beam's Spark runner: what it releases, what it refuses, and what of Spark may fail."""

import contextlib
import gzip
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from streamveil.mechanisms.core.records import format_time
from streamveil.pipelines.main import main

pytestmark = pytest.mark.spark

DAY = 86_400_000_000


class Release:
    """`streamveil release` of a folder's events, here or as a process of its own."""

    def __init__(self, folder):
        self.folder, self.output = folder, folder / "out.csv"
        (folder / "users.csv").write_text("user,window,epsilon\n" + "u,3,4\nv,2,1\n")
        (folder / "key").write_text("5e" * 32)
        (folder / "key").chmod(0o600)
        rows = [f"{'uv'[i % 2]},{'cafe' if i % 3 else 'park'}" for i in range(30)]
        self.write([f"{row},{format_time(i % 10 * DAY)}" for i, row in enumerate(rows)])

    def write(self, rows):
        (self.folder / "events.csv").write_text("\n".join(["user,place,time", *rows]) + "\n")

    def arguments(self, *flags, **options):
        given = {
            "input": self.folder / "events.csv",
            "output": self.output,
            "requirements": self.folder / "users.csv",
            "noise_key": f"file:{self.folder / 'key'}",
            "user_column": "user",
            "value_column": "place",
            "time_column": "time",
            "domain": "cafe,park",
            "slot": "1d",
            "start": "1970-01-01",
            "end": "1970-01-11",
            **options,
        }
        return ["release", *(f"--{name}={value}" for name, value in given.items()), *flags]

    def expected(self):
        """What is released without a runner, and what is said of it."""
        other = self.folder / "here.csv"
        with contextlib.redirect_stdout(io.StringIO()) as said:
            assert main(self.arguments(output=other)) == 0
        return other.read_bytes(), said.getvalue().replace("here.csv", "out.csv")

    def launch(self, *flags, **options):
        command = [sys.executable, "-m", "streamveil.pipelines.main"]
        return subprocess.Popen(
            [*command, *self.arguments(*flags, **options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def files(self):
        """Names of all that is there, beside what was there before."""
        names = {path.name for path in self.folder.iterdir() if path.is_file()}
        return names - {"events.csv", "users.csv", "key", "here.csv", "here.csv.card.json"}


def ended(process):
    """What it said in errors and in words, and its exit code."""
    out, err = process.communicate(timeout=240)
    return err, out, process.returncode


def message_in(err):
    """What the command says of an error; threads of Beam's may say more after it."""
    lines = [line for line in err.splitlines() if line.startswith("streamveil release: ")]
    return lines[-1] if lines else ""


@pytest.fixture
def release(tmp_path):
    (tmp_path / "run").mkdir()
    return Release(tmp_path / "run")


@pytest.fixture
def run(release, capfd):
    """Run it in this process; gives the exit code, and what it said of an error."""

    def run(*flags, **options):
        code = main(release.arguments(*flags, **options))
        return code, message_in(capfd.readouterr().err)

    return run


def test_a_job_server_that_beam_starts_releases_the_same(release, spark_home, monkeypatch):
    expected, said = release.expected()
    jar = f"--spark_job_server_jar={spark_home / 'job-server.jar'}"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    process = release.launch("--runner=SparkRunner", jar, "--spark_master_url=local[2]")
    err, out, code = ended(process)
    assert code == 0, err
    assert release.output.read_bytes() == expected
    assert out == said


@pytest.fixture(scope="module")
def cluster(spark_home, tmp_path_factory, run_spark):
    """A master, a worker and a job server."""
    with run_spark(spark_home, tmp_path_factory.mktemp("cluster"), "start") as servers:
        yield servers


def test_an_executor_of_a_cluster_that_is_killed_changes_no_byte(cluster, release, wait_until):
    """Spark runs again what it had, on another executor; steps are functions of their input.

    By the runner that names no system, which its job server knows.
    """
    expected, said = release.expected()
    process = release.launch("--runner=PortableRunner", *cluster.flags[1:])
    wait_until("its tasks", lambda: "Starting task 0" in cluster.log)
    for pid in executors(cluster):
        os.kill(pid, signal.SIGKILL)
    err, out, code = ended(process)
    assert code == 0, err
    assert "Command exited with code 137" in cluster.log
    assert release.output.read_bytes() == expected
    assert out == said


def executors(cluster):
    """Ids of the processes that run a cluster's tasks: each is in a folder of its own."""
    for folder in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if folder.readlink().is_relative_to(cluster.work / "executors"):
                yield int(folder.parent.name)


def test_a_job_server_that_is_killed_leaves_nothing(cluster, release, run, wait_until):
    """The last test of this cluster."""
    before = len(cluster.log)
    process = release.launch(*cluster.flags)
    wait_until("the job", lambda: "Running job" in cluster.log[before:])
    cluster.kill("jobserver")
    err, _, code = ended(process)
    assert code == 1, err
    said = message_in(err)
    assert f"the server of the job {cluster.job_endpoint} is lost" in said
    assert "see that it has ended before you start it again" in said
    assert release.files() == set()
    code, said = run("--job_server_timeout=2", *cluster.flags)
    assert code == 1
    for word in (cluster.job_endpoint, "no job server of Beam answers there", "start it"):
        assert word in said
    assert release.files() == set()


def test_errors_of_steps_come_as_they_were(spark, release, run):
    release.write(["u,cafe,1970-01-01", "u,?,1970-01-02", "v,?,1970-01-03"])
    code, said = run(*spark.flags)
    assert code == 3
    assert "2 of 3 events were rejected or late" in said
    assert release.files() == set()


def test_an_unreadable_file_releases_nothing(spark, release, run):
    whole = gzip.compress((release.folder / "events.csv").read_bytes() * 500)
    (release.folder / "events.csv").unlink()
    broken = release.folder / "events-2.csv.gz"
    broken.write_bytes(whole[: len(whole) // 2])
    code, said = run(*spark.flags, input=broken)
    assert code == 2
    assert "events-2.csv.gz" in said
    assert release.files() == {"events-2.csv.gz"}


def test_a_stream_is_refused_by_the_job_server_at_hand(spark, release, run):
    """Of a runner that names no system, only its server knows that it is Spark."""
    flags = ("--runner=PortableRunner", *spark.flags[1:], f"--card={release.folder}/card.json")
    given = {"input": f"watch:{release.folder}/*.csv", "output": f"folder:{release.folder}/out"}
    code, said = run(*flags, **given)
    assert code == 2
    for word in (f"--job_endpoint={spark.job_endpoint}", "of Spark", "20396", "Flink"):
        assert word in said


def test_a_run_that_is_killed_blocks_its_job_server(start_spark, spark, release, run, wait_until):
    """It waits for the workers of that run; another server goes on with the same output."""
    expected, _ = release.expected()
    server = start_spark("embedded")
    process = release.launch(*server.flags)
    wait_until("the job", lambda: "Running job" in server.log)
    os.killpg(process.pid, signal.SIGKILL)
    ended(process)
    assert not release.output.exists()
    code, said = run(*server.flags)
    assert code == 1
    for word in (server.job_endpoint, "one job at a time, and has another", "start it again"):
        assert word in said
    assert not release.output.exists()
    assert run(*spark.flags)[0] == 0
    assert release.output.read_bytes() == expected


def test_a_master_that_is_not_there(start_spark, release, run):
    """Spark gives up after a minute."""
    server = start_spark("server", "spark://127.0.0.1:9")
    code, said = run(*server.flags)
    assert code == 1
    for word in (
        "says that Spark ended the job",
        server.job_endpoint,
        "--spark-master-url",
        "run it again",
    ):
        assert word in said
    assert release.files() == set()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--job_server_java_launcher=/nowhere/java"], ["/nowhere/java", "Java 11 or 17"]),
        (["--spark_job_server_jar=/nowhere.jar"], ["/nowhere.jar", "--spark_job_server_jar=FILE"]),
        (["--spark_job_server_jar={events}"], ["does not start", "--job_endpoint=HOST:PORT"]),
    ],
)
def test_a_job_server_that_does_not_start(release, run, spark_home, flags, words):
    jar = f"--spark_job_server_jar={spark_home / 'job-server.jar'}"
    events = release.folder / "events.csv"
    code, said = run("--runner=SparkRunner", jar, *(flag.format(events=events) for flag in flags))
    assert code == 2
    for word in ("--runner=SparkRunner: Beam's job server does not start", *words):
        assert word in said
    assert release.files() == set()
