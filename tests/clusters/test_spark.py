"""Beam's Spark runner: what it releases, what it refuses, and what of Spark may fail."""

import contextlib
import gzip
import http.server
import io
import os
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import grpc
import pytest

from streamveil.mechanisms.core.records import format_time
from streamveil.pipelines.main import main
from tests.clusters.tcp_proxy import Cut, TcpProxy

pytestmark = pytest.mark.spark

DAY = 86_400_000_000
LONG = {"end": "1990-01-01"}
"""Enough slots for a job to run for ten seconds, so that a test can interfere while it runs."""


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
        command = [sys.executable, "-m", "streamveil"]
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
    """What the command says of an error; threads of Beam write before, after and into its line."""
    messages = re.findall(r"streamveil release: .*", err)
    return messages[-1] if messages else ""


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
    assert "Traceback" not in err
    assert release.output.read_bytes() == expected
    assert out == said


def test_a_job_that_is_done_says_nothing_of_its_workers(spark, release):
    """Beam logs an error when the job server closes the connections of workers."""
    again = """if True:
        import sys
        from streamveil.pipelines.main import main
        for number in range(3):
            assert main([*sys.argv[1:], f"--output=out-{number}.csv"]) == 0
    """
    arguments = (one for one in release.arguments(*spark.flags) if "--output=" not in one)
    done = subprocess.run(
        [sys.executable, "-c", again, *arguments],
        cwd=release.folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


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
    assert f"the server of the job {cluster.job_endpoint} is lost" in said, err
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


@pytest.fixture
def proxy(spark):
    proxy = TcpProxy(spark.job_endpoint)
    yield proxy
    proxy.stop()
    proxy.sever()


@pytest.fixture
def by_proxy(proxy):
    """Flags by which a job goes to the job server through the proxy."""
    endpoint = f"--job_endpoint={proxy.address}"
    return ("--runner=SparkRunner", endpoint, "--environment_type=LOOPBACK")


@pytest.fixture
def meanwhile(spark, wait_until):
    """Do something once a job runs, while the test goes on."""
    threads, known = [], spark.states()

    def meanwhile(act):
        def wait():
            wait_until("the job", lambda: running(spark, known))
            act()

        threads.append(threading.Thread(target=wait))
        threads[-1].start()

    yield meanwhile
    for thread in threads:
        thread.join()


def running(spark, known):
    """Whether a new job has come so far that workers are at it."""
    new = [job for job in spark.states() if job not in known]
    return new and f"Running job {new[-1]}" in spark.log


PASSING = {
    "reset at the first byte": Cut("reset", times=1),
    "reset in the second connection": Cut("reset", first=1, times=1),
    "options cut off": Cut("close", after=500, times=1),
    "options reset": Cut("reset", after=10_000, first=1, times=1),
    "slow from it": Cut("slow", seconds=0.1),
    "slow to it": Cut("slow", upward=True, seconds=0.1),
    "counters cut off": Cut("close", after=30_000, first=1, times=1),
}


@pytest.mark.parametrize("fault", PASSING)
def test_what_passes_changes_nothing(proxy, by_proxy, release, run, fault):
    expected, _ = release.expected()
    proxy.reset(PASSING[fault])
    code, said = run(*by_proxy)
    assert code == 0, said
    assert proxy.struck
    assert release.output.read_bytes() == expected


def test_a_job_server_that_comes_back_is_waited_for(proxy, by_proxy, release, run):
    expected, _ = release.expected()
    proxy.stop()
    threading.Timer(1.0, proxy.start).start()
    assert run(*by_proxy)[0] == 0
    assert release.output.read_bytes() == expected


NOBODY = "no job server of Beam answers there within 2 seconds (--job_server_timeout): start it"
LOST = "see that it has ended before you start it again"
LASTING = {
    "reset": (Cut("reset"), NOBODY),
    "closed": (Cut("close"), NOBODY),
    "stalled": (Cut("stall"), NOBODY),
    "stalled in the options": (Cut("stall", after=500), NOBODY),
    "reset in the job": (Cut("reset", after=3000, upward=True, first=1), LOST),
    "cut off in the job": (Cut("close", after=40_000, upward=True, first=1), LOST),
    "stalled in the job": (
        Cut("stall", after=3000, upward=True, first=1),
        "did not take the job within 2 seconds (--job_server_timeout): look whether it and the "
        "way to it are up, and run it again",
    ),
}


@pytest.mark.parametrize("fault", LASTING)
def test_what_lasts_ends_the_run_and_writes_nothing(proxy, by_proxy, release, run, fault):
    cut, remedy = LASTING[fault]
    proxy.reset(cut)
    code, said = run("--job_server_timeout=2", *by_proxy, ledger=release.folder / "ledger.csv")
    assert code == 1
    assert proxy.struck
    assert proxy.address in said
    assert remedy in said
    assert release.files() == set()


@contextlib.contextmanager
def web_server():
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), http.server.BaseHTTPRequestHandler
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@contextlib.contextmanager
def another_service():
    with ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield port
        server.stop(None)


@pytest.mark.parametrize(
    ("serve", "code", "words"),
    [
        (web_server, 1, NOBODY),
        (another_service, 2, "the server there is not a Beam job server: correct the address"),
    ],
)
def test_what_answers_is_no_job_server(release, run, serve, code, words):
    with serve() as port:
        found, said = run(
            *("--runner=SparkRunner", "--environment_type=LOOPBACK", "--job_server_timeout=2"),
            f"--job_endpoint=127.0.0.1:{port}",
        )
    assert found == code
    assert f"--job_endpoint=127.0.0.1:{port}: {words}" in said
    assert release.files() == set()


WORKERS = {
    "no Docker": (
        ["--environment_type=DOCKER", "--environment_config=127.0.0.1:9/no/image"],
        2,
        ["starts no workers by --environment_type=DOCKER: ", "have Docker run there"],
    ),
    "no command": (
        ["--environment_type=PROCESS", '--environment_config={"command": "/nowhere/boot"}'],
        2,
        ["starts no workers by --environment_type=PROCESS: ", "name a command of that machine"],
    ),
    "no workers": (
        ["--environment_type=EXTERNAL", "--environment_config=127.0.0.1:9"],
        1,
        ["run it again"],
    ),
    "no place for artifacts": (
        ["--artifact_endpoint=127.0.0.1:9"],
        1,
        ["127.0.0.1:9", LOST],
    ),
}


@pytest.mark.parametrize("fault", WORKERS)
def test_workers_that_do_not_start(spark, release, run, fault):
    flags, expected, words = WORKERS[fault]
    code, said = run(*spark.flags, *flags)
    assert code == expected
    for word in (spark.job_endpoint, *words):
        assert word in said
    assert release.files() == set()


def test_a_connection_that_is_reset_ends_the_job(
    spark, proxy, by_proxy, release, run, meanwhile, wait_until
):
    """Its server has room for the next one then, which releases the same."""
    expected, _ = release.expected()
    meanwhile(proxy.sever)
    code, said = run(*by_proxy, **LONG, card=release.folder / "card.json")
    assert code == 1
    assert f"the connection to the job server {proxy.address} was lost (" in said
    assert "the job was cancelled there: run it again" in said
    assert release.files() == set()
    wait_until("its end", lambda: "RUNNING" not in spark.states().values())
    assert run(*by_proxy)[0] == 0
    assert release.output.read_bytes() == expected


def test_a_job_that_ends_well_unseen_is_done(
    spark, proxy, by_proxy, release, run, meanwhile, wait_until
):
    expected, _ = release.expected()
    known = spark.states()

    def done():
        return any(state == "DONE" for job, state in spark.states().items() if job not in known)

    def hide():
        proxy.hold()
        wait_until("its end", done)
        proxy.sever()

    meanwhile(hide)
    code, said = run(*by_proxy)
    assert code == 0, said
    assert release.output.read_bytes() == expected


def test_a_connection_that_stalls_ends_the_run(spark, proxy, by_proxy, release, meanwhile):
    """Whatever the job has written meanwhile is whole, and named."""
    expected, _ = release.expected()
    process = release.launch("--job_server_timeout=2", *by_proxy)
    meanwhile(proxy.hold)
    err, _, code = ended(process)
    assert code == 1, err
    said = message_in(err)
    for word in (proxy.address, "no answer within 2 seconds (--job_server_timeout)", LOST):
        assert word in said
    spark.cancel()
    assert release.files() <= {"out.csv"}
    if release.output.exists():
        assert release.output.read_bytes() == expected
        assert f"These were whole before that and are kept: {release.output}" in said


def test_a_job_that_is_cancelled_there(spark, release, run, meanwhile):
    meanwhile(spark.cancel)
    code, said = run(*spark.flags, **LONG)
    assert code == 1
    assert f"the job was cancelled at the job server {spark.job_endpoint}" in said
    assert "see what it has released before you start it again" in said
    assert release.files() == set()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_stopped_cancels_its_job(spark, release, run, wait_until, number, code):
    expected, _ = release.expected()
    known = spark.states()
    # Background jobs of a shell ignore it, and so do their children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    process = release.launch(*spark.flags, **LONG)
    wait_until("the job", lambda: running(spark, known))
    process.send_signal(number)
    err, _, found = ended(process)
    (state,) = (state for job, state in spark.states().items() if job not in known)
    assert state.startswith("CANCEL")
    assert found == code
    lines = [line for line in err.splitlines() if "events read" not in line]
    assert len(lines) == 1, err  # but for the progress, every five seconds
    assert release.files() == set()
    assert run(*spark.flags)[0] == 0
    assert release.output.read_bytes() == expected


def test_two_runs_at_once(spark, release, run, wait_until):
    expected, _ = release.expected()
    known = spark.states()
    process = release.launch(*spark.flags)
    wait_until("the job", lambda: running(spark, known))
    process.send_signal(signal.SIGSTOP)  # and its workers with it
    same, of_same = run(*spark.flags)
    code, said = run(*spark.flags, output=release.folder / "other.csv")
    process.send_signal(signal.SIGCONT)
    assert same == 2
    assert str(release.output) in of_same
    assert code == 1
    for word in (spark.job_endpoint, "one job at a time, and has another", "run it again"):
        assert word in said
    err, _, code = ended(process)
    assert code == 0, err
    assert release.output.read_bytes() == expected
    assert "other.csv" not in str(release.files())


def test_a_run_that_is_killed_leaves_nothing(start_spark, spark, release, run, wait_until):
    """Its job fails, or waits for its workers and keeps its job server from the next one."""
    expected, _ = release.expected()
    server = start_spark("embedded")
    process = release.launch(*server.flags)
    wait_until("the job", lambda: "Running job" in server.log)
    os.killpg(process.pid, signal.SIGKILL)
    ended(process)
    assert not release.output.exists()
    code, said = run(*server.flags)
    if code:
        assert code == 1
        for word in (server.job_endpoint, "one job at a time, and has another", "start it again"):
            assert word in said
        assert not release.output.exists()
        assert run(*spark.flags)[0] == 0
    assert release.output.read_bytes() == expected


def test_an_input_that_goes_while_the_job_starts(proxy, by_proxy, release, run):
    events = release.folder / "events.csv"
    gone = partial(events.unlink, missing_ok=True)
    proxy.reset(Cut("slow", after=3000, upward=True, first=1, call=gone))
    code, said = run(*by_proxy)
    assert proxy.struck
    assert code in (1, 2)
    assert "events.csv" in said
    assert release.files() == set()


def test_artifacts_that_the_job_server_cannot_keep(spark, release, run):
    """Workers in this process are sent none, so these are elsewhere."""
    elsewhere = ("--environment_type=EXTERNAL", "--environment_config=127.0.0.1:9")
    folder, away = spark.work / "artifacts", spark.work / "away"
    if folder.exists():
        folder.rename(away)
    folder.write_text("no folder")
    try:
        code, said = run("--job_server_timeout=5", *spark.flags, *elsewhere)
    finally:
        folder.unlink()
        if away.exists():
            away.rename(folder)
    assert code == 1
    for word in (spark.job_endpoint, "failed when it took the job", "--artifacts-dir"):
        assert word in said
    assert release.files() == set()


def test_a_job_server_of_too_little_memory(release, run, spark_home):
    jar = f"--spark_job_server_jar={spark_home / 'job-server.jar'}"
    code, said = run("--runner=SparkRunner", jar, "--job_server_jvm_properties=-Xmx100m")
    assert code == 2
    assert "memory" in said
    assert "--job_server_jvm_properties" in said
    assert release.files() == set()


@pytest.fixture(scope="module", autouse=True)
def without_master(spark_home, tmp_path_factory, run_spark):
    """A run on a job server whose master is not there: Spark gives up after a minute."""
    (folder := tmp_path_factory.mktemp("absent") / "run").mkdir()
    release, work = Release(folder), folder.parent / "spark"
    with run_spark(spark_home, work, "server", "spark://127.0.0.1:9") as server:
        process = release.launch(*server.flags)
        yield server, release, process
        process.kill()
        process.communicate()


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


def test_a_master_that_is_not_there(without_master):
    server, release, process = without_master
    err, _, code = ended(process)
    assert code == 1, err
    for word in (
        "says that Spark ended the job",
        server.job_endpoint,
        "--spark-master-url",
        "run it again",
    ):
        assert word in message_in(err)
    assert release.files() == set()
