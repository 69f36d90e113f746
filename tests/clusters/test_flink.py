"""Beam's Flink runner: a cluster inside the job server, a real one, and one that is killed."""

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc

from streamveil.mechanisms.records import format_time
from streamveil.pipelines.flink import FlinkOptions
from streamveil.pipelines.main import main

pytestmark = pytest.mark.flink

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SECOND = 1_000_000
STREAMING = ("--parallelism=1", "--checkpointing_interval=1000")
BUNDLES = ("--finish_bundle_before_checkpointing=true", "--max_bundle_time_mills=100")


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
        *(f"--requirements={tmp_path}/users.csv", f"--noise_key_file={tmp_path}/key"),
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
    assert main([*given, f"--output={tmp_path}/there.csv", *embedded_flink.flags]) == 0
    assert (tmp_path / "there.csv").read_bytes() == (tmp_path / "here.csv").read_bytes()


def test_our_flags_of_flink_are_those_of_the_job_server(embedded_flink):
    with grpc.insecure_channel(embedded_flink.job_endpoint) as channel:
        service = beam_job_api_pb2_grpc.JobServiceStub(channel)
        told = service.DescribePipelineOptions(beam_job_api_pb2.DescribePipelineOptionsRequest())
    kinds = {option.name: option.type for option in told.options}
    kind_of = beam_job_api_pb2.PipelineOptionType
    numbers = [name for name in kinds if kinds[name] == kind_of.INTEGER]
    switches = [name for name in kinds if kinds[name] == kind_of.BOOLEAN]
    ours = PipelineOptions([]).view_as(FlinkOptions).get_all_options(current_only=True)
    assert set(ours) <= set(kinds)
    for name in ours:
        flag = {True: f"--{name}=7", False: f"--{name}=true"}[name in numbers]
        value = getattr(PipelineOptions([flag]).view_as(FlinkOptions), name)
        assert value == (7 if name in numbers else True if name in switches else "true")


def test_a_watched_folder_into_a_folder(flink, tables, tmp_path):
    """In real time, by the clock, from the command line."""
    first = int(time.time()) // 2 * 2 + 26  # time enough to start
    slots, arrives = 4, tmp_path / "in"
    arrives.mkdir()
    command = [
        *(sys.executable, "-m", "streamveil.pipelines.main", "release"),
        *(f"--input=watch:{arrives}/*.csv", f"--output=folder:{tmp_path}/out", "--slot=2s"),
        *(f"--start={format_time(first * SECOND)}", "--allowed_lateness=20s"),
        *(f"--end={format_time((first + 2 * slots) * SECOND)}", *tables),
        *(*flink.flags, *STREAMING, *BUNDLES),
    ]
    text = events([(first + i % 8) * SECOND for i in range(10)])
    (tmp_path / "part").write_text(text)
    (tmp_path / "part").rename(arrives / "a.csv")
    log = tmp_path / "log"
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as running:
        try:
            until = time.monotonic() + 150
            while len(list(tmp_path.glob("out/release-*.json"))) < slots:
                assert running.poll() is None, log.read_text()
                assert time.monotonic() < until, log.read_text()
                time.sleep(0.2)
        finally:
            flink.cancel()
            running.kill()
    rows = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("out/*.json"))]
    assert [row["slot"] for row in rows] == [first // 2 + i for i in range(slots)]
    assert [row["counts"] for row in rows] == [[2, 2], [1, 1], [2, 0], [1, 1]]


@pytest.fixture(scope="module")
def drill():
    sys.path.insert(0, str(BENCHMARKS))  # as if it were run
    spec = importlib.util.spec_from_file_location("flink_drill", BENCHMARKS / "flink_drill.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["flink_drill"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_a_killed_task_manager_loses_and_doubles_nothing(drill, flink_home, tmp_path):
    killed = drill.run_drill(flink_home, tmp_path, kills=1, seed=1)
    figures = killed.check()
    assert killed.faults == []
    assert figures["kills"] == figures["restores"] == 1
    assert figures["slots"] > 10
    assert figures["overspent"] == figures["given again otherwise"] == 0
