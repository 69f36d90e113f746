"""Servers of their own for tests, started by the scripts beside this file."""

import datetime as dt
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc

from tests.clusters.free_ports import free_ports
from tests.clusters.postgres_server import PostgresServer
from tests.clusters.schema_registry import SchemaRegistryServer

HERE = Path(__file__).parent
PATIENCE = 240.0
FLINK = HERE / "flink.sh"
SPARK = HERE / "spark.sh"


@pytest.fixture(scope="session")
def wait_until():
    """Wait for something that a server does in its own time; fail when it never comes."""

    def wait_until(what, holds):
        end = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < end, f"{what}: not within {PATIENCE:g} seconds"
            time.sleep(0.2)

    return wait_until


@dataclass(eq=False)
class Job:
    """`streamveil release`, as a user would launch it, on a Prism of its own."""

    process: subprocess.Popen
    port: int
    log: Path

    def counters(self):
        """Counters of the running job by name."""
        assert self.process.poll() is None, self.log.read_text()
        with grpc.insecure_channel(f"localhost:{self.port}") as channel:
            service = beam_job_api_pb2_grpc.JobServiceStub(channel)
            asked = beam_job_api_pb2.GetJobsRequest()
            counted = Counter()
            for job in service.GetJobs(asked, wait_for_ready=True, timeout=PATIENCE).job_info:
                request = beam_job_api_pb2.GetJobMetricsRequest(job_id=job.job_id)
                for metric in service.GetJobMetrics(request).metrics.committed:
                    if metric.urn == "beam:metric:user:sum_int64:v1":
                        counted[metric.labels["NAME"]] += varint(metric.payload)
        return counted

    def cancel(self):
        """Kill it with all that it started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self):
        """Exit code and log of a job that ends by itself."""
        code = self.process.wait(PATIENCE)
        return code, self.log.read_text()


def varint(payload):
    return sum((byte & 0x7F) << (7 * place) for place, byte in enumerate(payload))


class Kafka:
    """A broker and Beam's connector, with the clients that tests need."""

    def __init__(self, place, prism, work):
        self.place, self.prism, self.work = place, prism, work
        self.jobs, self.readers = [], {}

    def start(self):
        command = [HERE / "kafka.sh", "start", self.place, self.work / "kafka"]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        addresses = dict(line.split("=") for line in output.splitlines())
        self.broker, self.expansion = addresses["broker"], addresses["expansion"]

    def stop(self, *name):
        self.forget()
        subprocess.run([HERE / "kafka.sh", "stop", self.work / "kafka", *name], check=True)

    def kill(self, name):
        self.forget()
        subprocess.run([HERE / "kafka.sh", "kill", self.work / "kafka", name], check=True)

    def forget(self):
        """Read topics from the beginning again, since a restarted broker may have lost records."""
        while self.readers:
            self.readers.popitem()[1][0].close()

    def location(self, topic, settings=""):
        return f"kafka:{self.broker}/{topic}" + (f"?{settings}" if settings else "")

    def create(self, topic, partitions=1, **configs):
        from kafka import KafkaAdminClient
        from kafka.admin import NewTopic

        admin = KafkaAdminClient(bootstrap_servers=self.broker)
        admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=configs)])
        admin.close()

    def send(self, topic, records):
        """Send (time in milliseconds, value, partition); those of a partition in one batch."""
        from kafka import KafkaProducer

        producer = KafkaProducer(
            bootstrap_servers=self.broker, linger_ms=10_000, batch_size=1 << 20, acks="all"
        )
        for at, value, partition in records:
            producer.send(topic, value, key=b"k", timestamp_ms=at, partition=partition)
        producer.flush()
        producer.close()

    @contextmanager
    def producing(self, topic, rate, places):
        """Send `rate` events a second, each with the current time.

        The broker takes each event once, even if it is away for a while. Yields an object with
        `sent`, the number so far, and `rate`, which may be changed.
        """
        from kafka import KafkaProducer

        stream, stop = SimpleNamespace(sent=0, rate=rate), threading.Event()

        def produce():
            producer = KafkaProducer(
                bootstrap_servers=self.broker, linger_ms=5, reconnect_backoff_max_ms=1000
            )
            due, last = 0.0, time.monotonic()
            while not stop.wait(0.01):
                moment = time.monotonic()
                due, last = due + (moment - last) * stream.rate, moment
                while stream.sent < due and not stop.is_set():
                    now = dt.datetime.now(dt.timezone.utc).isoformat()
                    event = {
                        "user": f"u{stream.sent % 35}",
                        "place": places[stream.sent % len(places)],
                        "time": now,
                    }
                    producer.send(topic, json.dumps(event).encode())
                    stream.sent += 1
            producer.close()

        thread = threading.Thread(target=produce, daemon=True)
        thread.start()
        try:
            yield stream
        finally:
            stop.set()
            thread.join()

    def read(self, topic):
        """All (key, value) there are, in the order of the broker, of a topic's one partition."""
        from kafka import KafkaConsumer, TopicPartition

        only = TopicPartition(topic, 0)
        if topic not in self.readers:
            consumer = KafkaConsumer(bootstrap_servers=self.broker, auto_offset_reset="none")
            consumer.assign([only])
            consumer.seek_to_beginning(only)
            self.readers[topic] = consumer, []
        consumer, found = self.readers[topic]
        end = consumer.end_offsets([only])[only]
        while consumer.position(only) < end:
            for records in consumer.poll(1000).values():
                found += [(record.key, record.value) for record in records]
        return found[:]

    def launch(self, *flags):
        """Launch `streamveil release` with these flags, and Prism's if it is the runner."""
        (port,) = free_ports(1)
        log = self.work / f"job-{len(self.jobs)}.log"
        prism = (f"--prism_location={self.prism}", f"--job_port={port}")
        command = [sys.executable, "-m", "streamveil", "release", *flags, *prism]
        with log.open("w") as out:
            process = subprocess.Popen(
                command, stdout=out, stderr=out, cwd=self.work, start_new_session=True
            )
        self.jobs.append(Job(process, port, log))
        return self.jobs[-1]

    def close(self):
        for job in self.jobs:
            job.cancel()
        self.stop()


@pytest.fixture(scope="module")
def kafka(request, tmp_path_factory):
    """A broker, and Prism to run jobs on."""
    place = Path(request.config.getoption("--kafka_home")).resolve()
    prism = Path(request.config.getoption("--prism_location")).resolve()
    servers = Kafka(place, prism, tmp_path_factory.mktemp("kafka"))
    try:
        servers.start()
        yield servers
    finally:
        servers.close()


@pytest.fixture(scope="module")
def schema_registry(request, tmp_path_factory):
    """A registry of schemas, behind a proxy that can fail."""
    home = Path(request.config.getoption("--registry_home")).resolve()
    server = SchemaRegistryServer(home, tmp_path_factory.mktemp("registry"))
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def postgres(request, tmp_path_factory):
    """A PostgreSQL server."""
    home = Path(request.config.getoption("--postgres_home")).resolve()
    server = PostgresServer(home, tmp_path_factory.mktemp("postgres"))
    try:
        server.start()
        yield server
    finally:
        server.close()


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


@contextmanager
def running(kind, script, home, work, how, *arguments):
    """What a command of a script starts, meanwhile: Flink or Spark."""
    try:
        command = [script, how, home, work, *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        yield kind(work, **dict(line.split("=", 1) for line in done.stdout.split()))
    finally:
        subprocess.run([script, "stop", work], check=True)


@pytest.fixture(scope="session")
def flink(flink_home, tmp_path_factory):
    """A job manager, a task manager with six slots, and a job server."""
    work = tmp_path_factory.mktemp("flink")
    with running(Flink, FLINK, flink_home, work, "start", "1", "6") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def embedded_flink(flink_home, tmp_path_factory):
    """A job server that is a cluster by itself."""
    work = tmp_path_factory.mktemp("flink")
    with running(Flink, FLINK, flink_home, work, "embedded") as cluster:
        yield cluster


@dataclass(frozen=True)
class Spark:
    """Beam's job server of Spark, with workers in the process that launches."""

    work: Path
    job_endpoint: str
    spark_master: str = ""

    @property
    def flags(self):
        """What makes a command run there."""
        return (
            "--runner=SparkRunner",
            f"--job_endpoint={self.job_endpoint}",
            "--environment_type=LOOPBACK",
        )

    @property
    def log(self):
        """What the job server says."""
        return (self.work / "jobserver.log").read_text()

    def kill(self, name):
        """Kill one of its processes."""
        os.kill(int((self.work / f"{name}.pid").read_text()), signal.SIGKILL)

    def states(self):
        """States of its jobs, by their ids."""
        with self._service() as service:
            jobs = service.GetJobs(beam_job_api_pb2.GetJobsRequest(), timeout=30).job_info
        return {job.job_id: beam_job_api_pb2.JobState.Enum.Name(job.state) for job in jobs}

    def cancel(self):
        """Cancel its jobs that run."""
        running = [job for job, state in self.states().items() if state == "RUNNING"]
        with self._service() as service:
            for job in running:
                service.Cancel(beam_job_api_pb2.CancelJobRequest(job_id=job), timeout=30)
        return running

    @contextmanager
    def _service(self):
        with grpc.insecure_channel(self.job_endpoint) as channel:
            yield beam_job_api_pb2_grpc.JobServiceStub(channel)


@pytest.fixture(scope="session")
def spark_home(request):
    """What `spark.sh install` filled."""
    return Path(request.config.getoption("--spark_home")).resolve()


running_spark = partial(running, Spark, SPARK)


@pytest.fixture(scope="session")
def spark(spark_home, tmp_path_factory):
    """A job server in which Spark runs."""
    with running_spark(spark_home, tmp_path_factory.mktemp("spark"), "embedded") as server:
        yield server


@pytest.fixture(scope="session")
def run_spark():
    """What starts a Spark of a module's own."""
    return running_spark


@pytest.fixture
def start_spark(spark_home, tmp_path):
    """Start a Spark of a test's own, by a command of `spark.sh`."""
    with ExitStack() as started:
        yield lambda how, *arguments: started.enter_context(
            running_spark(spark_home, tmp_path / "spark", how, *arguments)
        )


@pytest.fixture(scope="session")
def flags_of(flags_of, request):
    """The flags that choose a runner or a cluster, by its name."""

    def flags(name):
        if name not in ("flink", "spark"):
            return flags_of(name)
        parallel = ["--parallelism=2"] if name == "flink" else []
        return [*request.getfixturevalue(name).flags, *parallel]

    return flags


BIGQUERY_EVENTS = "user,place,time\n" + "".join(
    f"u{i % 40},{'cafe' if i % 3 else 'park'},2024-05-0{1 + i // 40}T10:00:00Z\n"
    for i in range(200)
)


@pytest.fixture
def bigquery(monkeypatch, tmp_path):
    """A fake, with the clients pointed to it, which wait for a moment where they try again."""
    from apache_beam.internal.gcp import auth
    from apache_beam.io.filesystems import FileSystems
    from apache_beam.io.gcp import bigquery
    from apache_beam.io.gcp.internal.clients.bigquery import BigqueryV2
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.utils import retry

    from streamveil.io import bigquery_tables
    from tests.clusters.bigquery_server import BigQueryServer
    from tests.clusters.stores import KEY, fake_account

    server = BigQueryServer()
    account = tmp_path / "account.json"
    account.write_text(json.dumps(fake_account(server.url)))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(account))
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "a-project")
    monkeypatch.setenv("BIGQUERY_EMULATOR_HOST", server.url)
    monkeypatch.setenv("STREAMVEIL_NOISE_KEY", KEY)
    monkeypatch.setattr(BigqueryV2, "BASE_URL", f"{server.url}/bigquery/v2/")  # has no variable
    bigquery._KNOWN_TABLES.clear()  # which a process makes no second time
    monkeypatch.setattr(auth._Credentials, "_credentials_init", False)
    monkeypatch.setattr(retry.Clock, "sleep", lambda self, seconds: time.sleep(0.01))
    monkeypatch.setattr(bigquery_tables, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(bigquery_tables, "PATIENCE", 3.0)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "events.csv").write_text(BIGQUERY_EVENTS)
    FileSystems.set_options(PipelineOptions([]))
    yield server
    server.close()
