"""The job graph of Dataflow: built, staged in a bucket and posted, as far as that needs no Google.

The service is a fake that takes the request and runs nothing, in `dataflow_server.py`; the bucket
is the emulator of Google Cloud Storage. What was staged is run here by FnApiRunner.
"""

import hashlib
import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("google.cloud.dataflow_v1beta3", reason="the extra gcp is not installed")

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability import python_urns
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from streamveil.pipelines import flex
from streamveil.pipelines.main import main
from tests.clusters.dataflow_server import DataflowServer
from tests.clusters.stores import CAFES, GCS, KEY, running

pytestmark = [pytest.mark.gcs, pytest.mark.slow]

IMAGE = "europe-docker.pkg.dev/project/repository/streamveil:1"
EVENTS = "user,place,time,fare\n" + "".join(
    f"u{i % 40},{'cafe' if i % 3 else 'park'},2024-05-0{1 + i // 40}T10:00:00Z,{i % 9}\n"
    for i in range(200)
)
TABLE = "user,window,epsilon\n" + "".join(f"u{i},3,1\n" for i in range(40))
QUERIES = "slot: 1d\nqueries: [{name: out, by: place, keys: [cafe, park]}]\n"
SUBSCRIPTION, TOPIC = (
    "projects/project-1/subscriptions/events",
    "projects/project-1/topics/releases",
)
BATCH, STREAMING = 1, 2
RECORDS = {
    **{name: CAFES[name] for name in ("time_column", "slot", "start", "end")},
    **{"statistic": "sum", "budget": "inverse:1", "value_column": "fare"},
    **{"value_max": "9", "epsilon_max": "1"},
}
USERS = {**CAFES, "default_requirement": "3,1,40"}
ASKED = {name: USERS[name] for name in ("user_column", "time_column", "start", "end")}
ASKED["default_requirement"] = "3,1,40"
STREAM = {"input": f"pubsub:{SUBSCRIPTION}", "output": f"pubsub:{TOPIC}", "end": None}
JOBS = {
    "release": ("release", USERS),
    "dynamic": ("release", {**USERS, "mechanism": "dpbd"}),
    "infinite": ("release", {**CAFES, "guarantee": "infinite", "epsilon": "2"}),
    "collect": ("collect", {**CAFES, "requirements": "{}/users.csv"}),
    "per-record": ("per-record", RECORDS),
    "queries": ("release", {**ASKED, "queries": "{}/queries.yaml", "output": "{}/answers"}),
}
STREAMS = {
    "release": ("release", {**USERS, **STREAM}),
    "infinite": ("release", {**CAFES, **STREAM, "guarantee": "infinite", "epsilon": "2"}),
    "per-record": ("per-record", {**RECORDS, **STREAM}),
}


@pytest.fixture(scope="module")
def bucket(request, tmp_path_factory):
    home = Path(request.config.getoption("--gcs_home")).resolve()
    with running(GCS, home, tmp_path_factory.mktemp("gcs")) as store:
        yield store


class Dataflow:
    """A project with a bucket, a noise key, and events there."""

    def __init__(self, bucket):
        self.bucket, self.server, self.folder = bucket, DataflowServer(), bucket.folder()
        bucket.put(f"{self.folder}/events.csv", EVENTS)
        bucket.put(f"{self.folder}/users.csv", TABLE)
        bucket.put(f"{self.folder}/queries.yaml", QUERIES)
        bucket.put(f"{self.folder}/key", KEY)

    def given(self, **options):
        """Options of a command, with all that Dataflow wants."""
        every = {
            "input": "{}/events.csv",
            "output": "{}/out.csv",
            "card": "{}/card.json",
            "noise_key": "file:{}/key",
            "runner": "DataflowRunner",
            "project": "project-1",
            "region": "europe-west4",
            "job_name": "streamveil-1",
            "temp_location": "{}/temp",
            "staging_location": "{}/staging",
            "dataflow_endpoint": self.server.endpoint,
            "sdk_container_image": IMAGE,
            "labels": "team=statistics",
            "experiments": "disable_logging_submission_environment",
            "max_num_workers": "2",
            "machine_type": "n2-standard-2",
            "service_account_email": "worker@project-1.iam.gserviceaccount.com",
            **options,
        }
        return [
            f"--{name}={value.format(self.folder)}"
            for name, value in every.items()
            if value is not None
        ]

    def graph(self):
        """The job that was created, and the pipeline that it names, as it was staged."""
        ((project, region, job),) = self.server.created
        assert (project, region) == ("project-1", "europe-west4")
        return job, self.staged(job)

    def staged(self, job):
        options = job["environment"]["sdkPipelineOptions"]["options"]
        data = self.bucket.get(options["pipelineUrl"])
        assert hashlib.sha256(data).hexdigest() == options["pipelineProtoHash"]
        assert KEY.encode() not in data  # workers read it where it is
        return beam_runner_api_pb2.Pipeline.FromString(data)

    def work(self, job):
        """Run what was staged on a runner of this process, in place of Dataflow's workers."""
        pipeline = self.staged(job)
        for environment in pipeline.components.environments.values():
            environment.urn, environment.payload = python_urns.EMBEDDED_PYTHON, b""
        FnApiRunner().run_via_runner_api(pipeline, PipelineOptions([])).wait_until_finish()

    def results(self):
        """The names of what was released, and their content."""
        names = self.bucket.names(self.folder)
        made = [name for name in names if name == "out.csv" or name.startswith("answers/out.")]
        return {name: self.bucket.get(f"{self.folder}/{name}") for name in made}


@pytest.fixture
def dataflow(bucket, monkeypatch, tmp_path):
    from apache_beam.runners.dataflow import dataflow_runner
    from apache_beam.utils import retry

    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    quick = SimpleNamespace(sleep=lambda seconds: time.sleep(0.01), time=time.time)
    monkeypatch.setattr(dataflow_runner, "time", quick)  # it looks at a job every five seconds
    monkeypatch.setattr(retry.Clock, "sleep", lambda self, seconds: time.sleep(0.01))
    bucket.proxy.reset()
    project = Dataflow(bucket)
    yield project
    project.server.close()


def check_request(job, kind, options):
    """What the request says of a job beside its graph."""
    assert job["name"] == "streamveil-1"
    assert job["type"] == kind
    assert job["labels"] == {"team": "statistics"}
    environment = job["environment"]
    assert environment["version"]["job_type"] == f"FNAPI_{'STREAMING' if kind == 2 else 'BATCH'}"
    assert environment["serviceAccountEmail"] == "worker@project-1.iam.gserviceaccount.com"
    assert {"use_runner_v2", "use_portable_job_submission"} <= set(environment["experiments"])
    assert ("enable_streaming_engine" in environment["experiments"]) is (kind == STREAMING)
    assert "streaming_mode_at_least_once" not in environment["experiments"]
    (pool,) = environment["workerPools"]
    assert pool["workerHarnessContainerImage"] == IMAGE
    assert {one["containerImage"] for one in pool["sdkHarnessContainerImages"]} == {IMAGE}
    assert (pool["machineType"], pool["autoscalingSettings"]) == (
        "n2-standard-2",
        {"maxNumWorkers": 2},
    )
    sent = environment["sdkPipelineOptions"]["options"]
    wanted = {name: value for name, value in options.items() if value and "{}" not in value}
    assert {name: str(sent[name]).removesuffix(".0") for name in wanted} == wanted
    assert KEY not in json.dumps(job)


def steps_of(pipeline):
    """The DoFns with state and those with timers, by the names of their steps."""
    stateful, timed = set(), set()
    for step in pipeline.components.transforms.values():
        if step.spec.urn == "beam:transform:pardo:v1":
            payload = beam_runner_api_pb2.ParDoPayload.FromString(step.spec.payload)
            stateful |= {step.unique_name} if payload.state_specs else set()
            timed |= {step.unique_name} if payload.timer_family_specs else set()
    return stateful, timed


def of_urn(pipeline, urn):
    return [step for step in pipeline.components.transforms.values() if step.spec.urn == urn]


@pytest.mark.parametrize("name", JOBS)
def test_what_was_staged_of_files_releases_what_this_machine_does(dataflow, name, capfd):
    command, options = JOBS[name]
    here = {"runner": "FnApiRunner", "card": None, **options}
    other = Dataflow(dataflow.bucket)
    other.server.close()
    assert main([command, *other.given(**here)]) == 0, capfd.readouterr().err
    dataflow.server.work = dataflow.work
    assert main([command, *dataflow.given(**options)]) == 0, capfd.readouterr().err
    job, pipeline = dataflow.graph()
    check_request(job, BATCH, options)
    assert pipeline.root_transform_ids
    assert dataflow.results() == other.results()
    assert dataflow.results()
    assert dataflow.bucket.get(f"{dataflow.folder}/card.json")


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_staged_with_its_state_timers_and_places(dataflow, name, capfd):
    command, options = STREAMS[name]
    dataflow.server.states = ["JOB_STATE_RUNNING", "JOB_STATE_DRAINED"]
    assert main([command, *dataflow.given(**options)]) == 0, capfd.readouterr().err
    job, pipeline = dataflow.graph()
    check_request(job, STREAMING, options)
    stateful, timed = steps_of(pipeline)
    assert timed
    assert timed <= stateful
    (read,) = of_urn(pipeline, "beam:transform:pubsub_read:v1")
    source = beam_runner_api_pb2.PubSubReadPayload.FromString(read.spec.payload)
    assert source.subscription == SUBSCRIPTION
    (write,) = of_urn(pipeline, "beam:transform:pubsub_write:v1")
    assert beam_runner_api_pb2.PubSubWritePayload.FromString(write.spec.payload).topic == TOPIC


@pytest.mark.parametrize("name", ["release-batch", "release-streaming", "queries", "per-record"])
def test_a_flex_template_launches_the_same_job(dataflow, monkeypatch, name, capfd):
    """As Dataflow's launcher does: it names a file for the job, which it submits itself."""
    monkeypatch.setenv(flex.NAME_VARIABLE, name)
    monkeypatch.setenv(flex.IMAGE_VARIABLE, IMAGE)
    jobs = {**JOBS, "release-batch": JOBS["release"], "release-streaming": STREAMS["release"]}
    _, options = jobs[name]
    given = {**options, "sdk_container_image": None, "template_location": "{}/launch/job_object"}
    assert flex.launch(dataflow.given(**given)) == 0, capfd.readouterr().err
    assert "handed over" in capfd.readouterr().out
    assert dataflow.server.created == []
    job = json.loads(dataflow.bucket.get(f"{dataflow.folder}/launch/job_object"))
    kind = STREAMING if name == "release-streaming" else BATCH
    assert job["type"] == f"JOB_TYPE_{'STREAMING' if kind == STREAMING else 'BATCH'}"
    check_request({**job, "type": kind}, kind, options)
    assert dataflow.staged(job).root_transform_ids


def test_what_the_workers_counted_is_reported(dataflow, capfd):
    dataflow.server.work = dataflow.work
    dataflow.server.counters = {"events_read": 200, "events_accepted": 200}
    assert main(["release", *dataflow.given(**USERS)]) == 0
    assert "200 events read" in capfd.readouterr().out


POST, JOB = ("POST", "/jobs"), ("GET", "/job-1")
NEVER = 99
REFUSED = [
    ((*POST, 400, "INVALID_ARGUMENT"), 2, ["Dataflow refuses the job", "correct that"]),
    ((*POST, 409, "ALREADY_EXISTS"), 2, ["Dataflow refuses the job", "ALREADY_EXISTS"]),
    ((*POST, 401, "UNAUTHENTICATED"), 1, ["not handed to Dataflow", "give credentials"]),
    ((*POST, 403, "PERMISSION_DENIED"), 1, ["not handed to Dataflow", "give credentials"]),
    ((*POST, 404, "NOT_FOUND"), 1, ["not handed to Dataflow", "make what is not there"]),
    ((*POST, 429, "RESOURCE_EXHAUSTED"), 1, ["not handed to Dataflow", "RESOURCE_EXHAUSTED"]),
    ((*POST, 500, "INTERNAL"), 1, ["whether Dataflow has the job streamveil-1 is not known"]),
    ((*POST, 503, "UNAVAILABLE"), 1, ["whether Dataflow has the job streamveil-1", "UNAVAILABLE"]),
    ((*JOB, 401, "UNAUTHENTICATED"), 1, ["job-1", "lost from sight", "may still run there"]),
    ((*JOB, 403, "PERMISSION_DENIED"), 1, ["job-1", "europe-west4, project project-1"]),
    ((*JOB, 429, "RESOURCE_EXHAUSTED"), 1, ["job-1", "see that it has ended before you start"]),
    ((*JOB, 503, "UNAVAILABLE"), 1, ["job-1", "lost from sight", "may still run there"]),
    (("GET", "/messages", 403, "PERMISSION_DENIED"), 1, ["job-1", "may still run there"]),
]


@pytest.mark.parametrize(("fault", "code", "words"), REFUSED, ids=lambda one: str(one)[:40])
def test_what_the_service_fails_is_reported_in_one_line(dataflow, fault, code, words, capfd):
    dataflow.server.failures = [(*fault, False)] * NEVER
    dataflow.server.states = ["JOB_STATE_RUNNING"] * 3 + ["JOB_STATE_DONE"]
    assert main(["release", *dataflow.given(**USERS)]) == code
    said = capfd.readouterr().err.strip().splitlines()[-1]
    assert [word for word in words if word not in said] == [], said
    assert dataflow.results() == {}


@pytest.mark.parametrize(
    ("state", "messages", "words"),
    [
        ("FAILED", [("ERROR", "Workflow failed.")], ["job-1", "ended FAILED: Workflow failed."]),
        ("FAILED", [], ["job-1", "Dataflow does not say why", "see its log"]),
        (
            "FAILED",
            [("ERROR", "Traceback (most recent call last):\n  File x\nKeyError: 'a'")],
            ["ended FAILED: KeyError: 'a'"],
        ),
        ("CANCELLED", [], ["was cancelled there", "see what it has released"]),
    ],
)
def test_a_job_that_ends_badly_is_reported_in_one_line(dataflow, state, messages, words, capfd):
    dataflow.server.states = ["JOB_STATE_RUNNING", "JOB_STATE_RUNNING", f"JOB_STATE_{state}"]
    dataflow.server.messages = messages
    assert main(["release", *dataflow.given(**USERS)]) == 1
    said = capfd.readouterr().err.strip().splitlines()[-1]
    assert [word for word in words if word not in said] == [], said


def test_errors_of_workers_come_as_they_were(dataflow, capfd):
    dataflow.server.states = ["JOB_STATE_RUNNING", "JOB_STATE_RUNNING", "JOB_STATE_FAILED"]
    raised = "streamveil.mechanisms.core.records.InputLost: 9 of 9 events were rejected or late"
    dataflow.server.messages = [("ERROR", f"Traceback (most recent call last):\n{raised}\n")]
    assert main(["release", *dataflow.given(**USERS)]) == 3
    said = capfd.readouterr().err.strip().splitlines()[-1]
    assert said == "streamveil release: 9 of 9 events were rejected or late"


@pytest.mark.parametrize("state", ["DRAINED", "UPDATED"])
def test_a_stream_that_is_ended_on_purpose_has_not_failed(dataflow, state, capfd):
    """Whatever starts a failed run again would release its slots a second time."""
    dataflow.server.states = ["JOB_STATE_RUNNING", f"JOB_STATE_{state}"]
    assert main(["release", *dataflow.given(**{**USERS, **STREAM})]) == 0


def test_a_request_whose_answer_is_lost_is_the_same_when_it_is_tried_again(dataflow, capfd):
    """Dataflow knows it by its id, and makes no second job."""
    dataflow.server.failures = [(*POST, 503, "UNAVAILABLE", True)]
    dataflow.server.states = ["JOB_STATE_CANCELLED"]
    assert main(["release", *dataflow.given(**USERS)]) == 1
    (_, _, first), (_, _, second) = dataflow.server.created
    assert first == second
    assert first["clientRequestId"]


def test_counters_that_cannot_be_had_fail_no_job_that_is_done(dataflow, capfd):
    dataflow.server.work = dataflow.work
    dataflow.server.failures = [("GET", "/metrics", 403, "PERMISSION_DENIED", False)]
    assert main(["release", *dataflow.given(**USERS)]) == 0
    assert "warning: what the job counted is not known" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (
            {"dataflow_endpoint": "http://localhost:9"},
            1,
            ["Dataflow says", "localhost", "is not known"],
        ),
        (
            {"staging_location": "gs://nowhere/x"},
            2,
            ["--staging_location=gs://nowhere/x", "make it"],
        ),
        ({"temp_location": "gs://nowhere/x"}, 2, ["--temp_location=gs://nowhere/x", "make it"]),
        ({"template_location": "gs://nowhere/x"}, 2, ["--template_location=gs://nowhere/x"]),
        ({"project": None}, 2, ["needs --project too"]),
        ({"temp_location": None, "staging_location": None}, 2, ["needs --temp_location too"]),
    ],
    ids=lambda one: str(one)[:40],
)
def test_what_is_not_there_is_named(dataflow, options, code, words, capfd):
    assert main(["release", *dataflow.given(**USERS, **options)]) == code
    said = capfd.readouterr().err.strip().splitlines()[-1]
    assert [word for word in words if word not in said] == [], said
    assert dataflow.server.created == []
