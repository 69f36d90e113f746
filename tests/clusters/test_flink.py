"""Beam's Flink runner: a cluster inside the job server, a real one, and one that is killed."""

import json
import random
import subprocess
import sys
import time

import grpc
import pyarrow.parquet as pq
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc

from streamveil.mechanisms.core.records import format_time
from streamveil.pipelines.main import main
from streamveil.pipelines.options.beam_flags import FlinkOptions

pytestmark = pytest.mark.flink

SECOND = 1_000_000
STREAMING = ("--parallelism=1", "--checkpointing_interval=1000")


@pytest.fixture
def tables(tmp_path):
    """Users who ask for so little privacy that counts are exact, and a key."""
    rows = [f"u{i},3,4000" for i in range(10)]
    (tmp_path / "users.csv").write_text("\n".join(["user,window,epsilon", *rows]) + "\n")
    (tmp_path / "key").write_text("5e" * 32)
    (tmp_path / "key").chmod(0o600)
    return (
        *("--user_column=user", "--value_column=place", "--time_column=time"),
        *("--domain=cafe,park", "--mechanism=pbd"),
        *(f"--requirements={tmp_path}/users.csv", f"--noise_key=file:{tmp_path}/key"),
    )


def events(times):
    """A file of one visit of each user to a place, at these times."""
    rows = [f"u{i},{'cafe' if i % 3 else 'park'},{format_time(at)}" for i, at in enumerate(times)]
    return "\n".join(["user,place,time", *rows]) + "\n"


def test_the_job_server_is_a_cluster_by_itself(embedded_flink, tables, tmp_path):
    days = range(0, 10 * 86_400 * SECOND, 86_400 * SECOND)
    (tmp_path / "events.csv").write_text(events(days))
    given = [
        *("release", f"--input={tmp_path}/events.csv", "--slot=2d", *tables),
        *("--start=1970-01-01", "--end=1970-01-11"),
    ]
    assert main([*given, f"--output={tmp_path}/here.csv"]) == 0
    flags = ("--runner=FlinkRunner", *embedded_flink.flags[1:])
    assert main([*given, f"--output={tmp_path}/there.csv", *flags]) == 0
    assert (tmp_path / "there.csv").read_bytes() == (tmp_path / "here.csv").read_bytes()


def test_our_flags_of_flink_are_those_of_the_job_server(embedded_flink):
    with grpc.insecure_channel(embedded_flink.job_endpoint) as channel:
        service = beam_job_api_pb2_grpc.JobServiceStub(channel)
        described = service.DescribePipelineOptions(
            beam_job_api_pb2.DescribePipelineOptionsRequest()
        )
    kinds = {option.name: option.type for option in described.options}
    kind_of = beam_job_api_pb2.PipelineOptionType
    numbers = [name for name in kinds if kinds[name] == kind_of.INTEGER]
    switches = [name for name in kinds if kinds[name] == kind_of.BOOLEAN]
    ours = PipelineOptions([]).view_as(FlinkOptions).get_all_options(current_only=True)
    assert set(ours) <= set(kinds)
    for name in ours:
        flag = {True: f"--{name}=7", False: f"--{name}=true"}[name in numbers]
        value = getattr(PipelineOptions([flag]).view_as(FlinkOptions), name)
        assert value == (7 if name in numbers else True if name in switches else "true")


def test_a_live_stream_on_a_busy_machine_neither_stalls_nor_doubles(
    embedded_flink, live_drill, tmp_path
):
    flags = (*embedded_flink.flags, *STREAMING, "--finish_bundle_before_checkpointing")
    wrong, said = live_drill.one_run(tmp_path, 30, 2, [*flags])
    assert not wrong, said


SLOTS = 4
CHANGES = "user,slot,time,window_backward,epsilon_backward,window_forward,epsilon_forward"
STREAMS = {
    "release": ("release",),
    "dynamic": ("release", "--mechanism=dpbd", "--requirement_changes={changes}"),
    "counts": ("per-record", "--statistic=count", "--value_column=amount", "--value_max=9"),
    "discovered": ("release", "--queries={queries}", "--delta=1e-3", "--budget=90/6s"),
}
DISCOVERED = """slot: 2s
queries: [{name: visits, by: place, keys: discover}]
"""


class Streams:
    """A folder that is watched, from now on, and commands that release what comes there."""

    def __init__(self, folder):
        self.folder = folder
        self.first = (int(time.time()) + 4) // 2
        draw = random.Random(1)
        rows = [
            f"u{draw.randrange(40)},{draw.choice(['cafe', 'park'])},{1 + i % 9},"
            + format_time(2 * SECOND * self.first + draw.randrange(2 * SLOTS * SECOND))
            for i in range(300)
        ]
        self.write("events/a.csv", "user,place,amount,time", rows)
        self.write("users.csv", "user,window,epsilon", [f"u{i},{1 + i % 3},2" for i in range(40)])
        changes = [f"u{i},{self.first + i % SLOTS},,2,1,2,1" for i in range(0, 40, 3)]
        self.write("changes/a.csv", CHANGES, changes)
        (folder / "queries.yaml").write_text(DISCOVERED)
        (folder / "key").write_text("5e" * 32)
        (folder / "key").chmod(0o600)

    def write(self, name, *lines):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join([lines[0], *lines[1]]) + "\n")

    def arguments(self, job, source, output):
        """Of a command that reads the events from files, or watches them."""
        name, *own = STREAMS[job]
        start, end = (format_time(2 * SECOND * slot) for slot in (self.first, self.first + SLOTS))
        given = [
            *(name, f"--input={source}{self.folder}/events/*.csv", f"--output={output}"),
            *("--time_column=time", f"--start={start}", f"--end={end}"),
            f"--noise_key=file:{self.folder}/key",
        ]
        changes, queries = f"{source}{self.folder}/changes/*.csv", f"{self.folder}/queries.yaml"
        given += [flag.format(changes=changes, queries=queries) for flag in own]
        if source or job != "discovered":  # a run with a state has its own option
            given.append("--allowed_lateness=30s")
        if job == "discovered":
            return [*given, "--user_column=user"]
        given.append("--slot=2s")
        if name == "per-record":
            return [*given, "--budget=inverse:20", "--epsilon_max=4"]
        given += ["--user_column=user", "--value_column=place", "--domain=cafe,park"]
        given.append("--layout=rows")  # which tells more of a slot
        return [*given, f"--requirements={self.folder}/users.csv"]


@pytest.fixture(scope="module")
def streamed(flink, tmp_path_factory):
    """Run all pipelines at once, in real time, until each has released all slots."""
    streams = Streams(tmp_path_factory.mktemp("streams"))
    running = []
    try:
        for job in STREAMS:
            out = f"folder:{streams.folder}/{job}"
            command = [
                *(sys.executable, "-m", "streamveil"),
                *(*streams.arguments(job, "watch:", out), *flink.flags, *STREAMING),
            ]
            log = (streams.folder / f"{job}.log").open("wb")
            with log:
                running.append(subprocess.Popen(command, stdout=log, stderr=log))
        until = time.monotonic() + 200
        while any(len(list(streams.folder.glob(f"{job}/*.json"))) < SLOTS for job in STREAMS):
            logs = "".join(path.read_text() for path in streams.folder.glob("*.log"))
            assert all(job.poll() is None for job in running), logs
            assert time.monotonic() < until, logs
            time.sleep(0.2)
        flink.cancel()
    finally:
        for job in running:
            job.kill()
            job.wait()
    return streams


@pytest.mark.parametrize("job", [job for job in STREAMS if job != "discovered"])
def test_a_watched_folder_is_released_as_its_files_are(streamed, job, tmp_path):
    """From the command line: of a stream the same bytes as of files, one file a slot."""
    assert main(streamed.arguments(job, "", f"{tmp_path}/out.jsonl")) == 0
    rows = [path.read_bytes() for path in sorted((streamed.folder / job).glob("*.json"))]
    assert b"".join(rows) == (tmp_path / "out.jsonl").read_bytes()
    assert len(rows) == SLOTS


def test_keys_of_a_watched_folder_are_those_of_passes_over_its_files(streamed, tmp_path):
    state = f"--state={tmp_path}/state"
    assert main([*streamed.arguments("discovered", "", f"{tmp_path}/out"), state]) == 0
    (file,) = (tmp_path / "out").rglob("visits*.parquet")
    passed = pq.read_table(file).to_pylist()
    lines = [path.read_text() for path in sorted((streamed.folder / "discovered").glob("*.json"))]
    rows = [json.loads(line) for text in lines for line in text.splitlines()]
    figures = "slot", "key", "value", "stderr", "low", "high", "status"
    assert [[row[name] for name in figures] for row in rows] == [
        [row[name] for name in figures] for row in passed
    ]
    assert {row["key"] for row in rows} == {"cafe", "park", "unlisted"}
    assert {row["key"] for row in rows if row["slot"] == streamed.first} == {"unlisted"}


@pytest.fixture(scope="module")
def drill_cluster(flink_drill, flink_home, tmp_path_factory):
    """A cluster on which one drill runs after another."""
    with flink_drill.Cluster.started(flink_home, tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


# By the clock other events are in time after a restart, so slots wait for checkpoints.
@pytest.mark.parametrize(("clock", "settle"), [(False, None), (True, "500ms")])
def test_a_killed_task_manager_loses_and_doubles_nothing(
    flink_drill, drill_cluster, tmp_path, clock, settle
):
    killed = flink_drill.Drill(tmp_path, clock, settle)
    killed.run(drill_cluster, 1, random.Random(1))
    figures = killed.check()
    assert killed.faults == []
    assert figures["kills"] == figures["restores"] == 1
    assert figures["slots"] > 10
    assert figures["overspent"] == figures["given again otherwise"] == 0
