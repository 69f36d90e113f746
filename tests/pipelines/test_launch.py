"""Flags, summaries and failures of a run."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import apache_beam as beam
import grpc
import pytest
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import (
    DebugOptions,
    PipelineOptions,
    S3Options,
    StandardOptions,
)
from apache_beam.runners.portability.fn_api_runner import worker_handlers
from apache_beam.utils import subprocess_server

from streamveil import io
from streamveil.engine.stream_step import StateWentBack
from streamveil.io import tables
from streamveil.mechanisms.accounting.window_filter import BudgetExceeded
from streamveil.mechanisms.core.records import ConfigurationError, MachineFault
from streamveil.pipelines.options import declarations
from streamveil.pipelines.options.beam_flags import check_flags
from streamveil.pipelines.options.command_table import COMMANDS
from streamveil.pipelines.options.evaluate_options import FORMATS
from streamveil.pipelines.options.execution import Execution
from streamveil.pipelines.plans.beam_transforms import STATISTICS
from streamveil.pipelines.plans.record_plans import RECORD_PLANS
from streamveil.pipelines.runners import job_servers, launch
from streamveil.pipelines.runners.launch import run

# ---- commands and flags ----------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_lists_every_flag_once(toolbox, command, flag):
    outcome = toolbox.run(command, flag)
    assert outcome.code == 0
    declared = COMMANDS[command].flags
    listed = re.findall(r"^  (?:-h, )?(--\w+)", outcome.out, re.MULTILINE)
    own = [name for name in listed if name != "--help"]
    assert len(own) == len(set(own))
    assert set(own) <= set(declared)
    assert ("filesystems" in outcome.out) == (command in ("audit", "card", "evaluate", "plan"))
    assert ("All Apache Beam options" in " ".join(outcome.out.split())) == (
        command not in ("audit", "card", "evaluate", "plan")
    )
    assert outcome.err == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_what_is_required_first_and_an_example_last(toolbox, command):
    """The example is whole: what it names there is, and nothing that is required is missing."""
    out = toolbox.run(command, "--help").out
    head, _, example = out.partition("\nexample:\n")
    sections = re.findall(r"^([a-z ]+):$", head, re.MULTILINE)
    required = COMMANDS[command].required
    assert sections[0] == "required" or not required
    assert len(sections) == len(set(sections))
    given = shlex.split(example.replace("\\\n", " "))
    assert given[:2] == ["streamveil", command]
    request = COMMANDS[command].request(given[2:])
    assert request.others == ()
    assert set(required) <= set(request.texts)


def test_help_of_the_contract(toolbox):
    out = toolbox.run("release", "--help").out
    for name in (
        *("input", "output", "user_column", "value_column", "time_column", "slot", "domain"),
        *("requirements", "default_requirement", "mechanism", "rejected", "ledger"),
        *("noise_key", "max_contributions", "adjacency", "origin", "start", "end"),
        *("time_zone", "time_unit"),
    ):
        assert f"--{name} " in out
    assert "pba, pbd, ba, bd" in out
    assert "WINDOW,EPSILON[,USERS]" in out
    # Neighbours are distinguished by full names: what is protected must not be guessed.
    plain = " ".join(out.split())
    assert "With add_remove (the default), all of one user's events in a window are added" in plain
    assert "With replace, any of these events are replaced by other events" in plain


@pytest.mark.parametrize("arguments", [["--help"], ["-h"]])
def test_help_of_all(toolbox, arguments):
    outcome = toolbox.run(*arguments)
    assert outcome.code == 0
    assert "release" in outcome.out
    assert "demo" in outcome.out


def test_no_command(toolbox):
    outcome = toolbox.run()
    assert outcome.code == 2
    assert "usage: streamveil COMMAND" in outcome.out + outcome.err


@pytest.mark.parametrize("command", ["releas", "Release", "--input=x"])
def test_unknown_command(toolbox, command):
    outcome = toolbox.run(command)
    assert outcome.code == 2
    hint = "see streamveil --help" if command[0] == "-" else "did you mean release?"
    assert outcome.err == f"streamveil: unknown command '{command}': {hint}\n"
    assert outcome.out == ""


def test_version(toolbox):
    outcome = toolbox.run("--version")
    assert outcome.code == 0
    assert outcome.out.strip()[0].isdigit()


WITHOUT_BEAM = """
import json, sys
from streamveil.pipelines.main import main
def code_of(arguments):
    try:
        return main(arguments)
    except SystemExit as stop:
        return stop.code
codes = [code_of(arguments) for arguments in json.load(sys.stdin)]
print(json.dumps([codes, "apache_beam" in sys.modules]), file=sys.__stdout__)
"""


def without_beam(commands):
    """Exit codes of commands that one process runs, whether it imported Beam, and what it said."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_BEAM],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        timeout=600,
    )
    codes, imported = json.loads(done.stdout.splitlines()[-1])
    return codes, imported, done.stderr.splitlines()


def test_help_does_not_wait_for_beam():
    commands = [["--help"], *([name, "--help"] for name in COMMANDS)]
    codes, imported, _ = without_beam(commands)
    assert codes == [0] * len(commands)
    assert not imported


def test_no_command_without_a_runner_waits_for_beam(job, toolbox):
    """Of a file, queries about it, a state that goes on, devices, and records."""
    job.write("queries.yaml", "slot: 1d\nqueries: [{name: all}]\n")
    asked = dict.fromkeys(("value_column", "slot", "domain"))
    asked |= {"queries": job.path("queries.yaml"), "output": job.path("answers")}
    state = {"state": job.path("state"), "start": "2024-01-01", "output": job.path("kept.jsonl")}
    sums = {"statistic": "count", "budget": "inverse:1", "budget_column": "fare", **RECORDS}
    (job.folder / "fares.csv").write_text("fare\n1\n2\n")
    local = toolbox.Job(job.folder, "collect").arguments(output=job.path("reports.jsonl"))
    record = {"input": job.path("fares.csv"), "output": job.path("sums.csv"), **sums}
    commands = [
        job.arguments(rejected=job.path("rejected.jsonl"), ledger=job.path("ledger.csv")),
        job.arguments("--dry_run", output=job.path("none.jsonl")),
        job.arguments(**asked),
        job.arguments(**state),
        job.arguments("--resume", **state),
        local,
        ["per-record", *(f"--{name}={value}" for name, value in record.items())],
    ]
    codes, imported, said = without_beam(commands)
    assert codes == [0] * len(commands), said
    assert not imported


PROGRAM = """
import json, sys
from streamveil.pipelines.main import program
code = program()
imported = {"apache_beam", "pandas", "tqdm"} & set(sys.modules)
print(json.dumps([code, sorted(imported)]), file=sys.__stdout__)
"""


def test_the_program_imports_neither_beam_nor_pandas(job):
    """pyarrow imports pandas where it can, which takes as long as the rest of a small release."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *job.arguments(ledger=job.path("ledger.csv"))],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [0, []], done.stderr


def test_results_in_a_folder_are_mentioned_when_the_rest_fails(job):
    """They are sent when the ledger is whole."""
    job.write("pub", "a file")
    flags = {"output": f"folder:{job.path('pub')}", "ledger": job.path("ledger.csv"), "card": None}
    outcome = job(**flags)
    assert outcome.code == 1
    assert f"What folder:{job.path('pub')} has of this run's results stays there" in outcome.message
    assert f"whole before that and are kept: {job.path('ledger.csv')}" in outcome.message
    assert "while running" not in outcome.message


def test_a_state_is_not_for_a_runner(job):
    words = ("--state=s is for passes in this process", "--runner=PrismRunner is for a runner")
    job.refused(*words, state="s", start="2024-01-01", runner="PrismRunner")


RECORDS = {"value_max": "9", "epsilon_max": "1"}

WRONG = {
    "input": ("nowhere.csv", "no file matches 'nowhere.csv'"),
    "requirements": ("nobody.csv", "no file matches 'nobody.csv'"),
    "output": (os.curdir, "exists already"),
    "user_column": ("", "--user_column is missing"),
    "domain": ("", "--domain is missing"),
    "slot": ("1yr", "slot length '1yr'"),
    "origin": ("yesterday", "--origin: time 'yesterday'"),
    "start": ("May", "--start: time 'May'"),
    "end": ("1900-01-01", "the range of slots is empty"),
    "time_zone": ("Europe/Paname", "'Europe/Paname' (--time_zone)"),
    "time_unit": ("h", "invalid choice"),
    "mechanism": ("laplace", "mechanism 'laplace' is unknown"),
    "max_contributions": ("two", "--max_contributions=two is not a whole number: write one"),
    "max_rejected": ("50%", "--max_rejected=50% is not a number: write one, such as 0.5"),
    "slot_zone": ("CEST", "time zone 'CEST' (--slot_zone)"),
    "shards": ("0", "shards is 0"),
    "allowed_lateness": ("soon", "allowed_lateness is 'soon'"),
    "default_requirement": ("7,inf,5", "inf is not a finite number"),
    "epsilon": ("1", "--guarantee=infinite"),
    "follow": ("1m", "--follow needs a folder for the state: --state"),
    "noise_key": ("5e5e5e", "is not the key but its place"),
    "metrics": ("raw", "--metrics needs a folder for the state"),
    "restart_budget": ("1", "give --state and --resume"),
    "resume": ("perhaps", "--resume=perhaps"),
}


@pytest.mark.parametrize(
    ("command", "old", "new"),
    [
        ("demo", "--demo_mechanism=bd", "--mechanism=bd"),
        ("demo", "--output_dir=x", "--output=x"),
        ("evaluate", "--mechanism=bd", "--mechanisms=bd"),
        ("evaluate", "--stream=sin", "--streams=sin"),
    ],
)
def test_other_names_of_options(command, old, new):
    given, same, none = (COMMANDS[command].request(one).read() for one in ([old], [new], []))
    assert given == same != none


def test_what_is_declared_without_beam_is_what_is_read_with_it():
    assert declarations.LAYOUTS == io.LAYOUTS
    assert tuple(io.DATASETS) == FORMATS
    assert tuple(STATISTICS) == tuple(RECORD_PLANS) == declarations.STATISTICS


@pytest.mark.slow
def test_a_missing_library_of_google_is_no_news(job):
    """Beam warns of it whenever it is imported, to people who have nothing to do with Google."""
    folder = job.folder / "hidden" / "apitools"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError('not installed')\n")
    arguments = job.arguments("--runner=FnApiRunner", "--dry_run")
    done = subprocess.run(
        [sys.executable, "-m", "streamveil", *arguments],
        env={**os.environ, "PYTHONPATH": str(folder.parent)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "not private" in done.stdout


# Options together, and what is wrong with them.
WRONG_TOGETHER = [
    ({"domain": "A,B,A"}, "the bin 'A' twice"),
    ({"domain": "edges:0,ten"}, "something that is not a number"),
    ({"domain": "grid:0,0,1,1,2,2"}, "a grid reads two columns (given: value)"),
    ({"value_column": "lon,lat"}, "the values of one column are counted (given: lon, lat)"),
    ({"domain": "A,B", "other": "A"}, "cannot be called 'A' (--other)"),
    ({"delimiter": ";;"}, "the delimiter ';;' (--delimiter)"),
    ({"columns": "user,,time"}, "are not names of their own"),
    ({"output": "out.xls"}, "out.xls: the format to write is not known"),
    ({"time_format": "%Q"}, "time format '%Q' (--time_format)"),
    ({"mechanism": "pbd:gate=1"}, "has no option 'gate'"),
    ({"requirement_columns": "id,days"}, "are not the names of three columns"),
    ({"summary": "nowhere/sum.json"}, "create it, or choose another path"),
    ({"noise_key": "env:A,env:B"}, "from when on is env:B the key?"),
    ({"guarantee": "infinite"}, "--epsilon is missing"),
    ({"guarantee": "infinite", "epsilon": "1"}, "--requirements="),
    ({"state": "s", "follow": "often"}, "--follow=often"),
    ({"state": "s", "close_by": "marker:done"}, "--close_by=marker:done is incomplete"),
    ({"state": "s", "slots_per_pass": "0"}, "slots_per_pass is 0"),
    ({"state": "s", "metrics_port": "9464"}, "is for a run with --follow"),
    ({"state": "s", "follow": "1s", "metrics_port": "x"}, "--metrics_port=x is not a port"),
    ({"state": "s", "otlp_endpoint": "here"}, "--otlp_endpoint=here is not a URL"),
    ({"state": "s", "metrics": "raw"}, "but not where to"),
]
SUM = {
    "input": "in.csv",
    "output": "out.csv",
    "statistic": "sum",
    "budget": "inverse:1",
    "value_column": "fare",
    "value_max": "9",
    "epsilon_max": "1",
}
WRONG_STATISTIC = [
    ({"statistic": "median"}, "--statistic=median is unknown"),
    ({"mechanism": "laplace"}, "mechanism 'laplace' is unknown"),
    ({"statistic": "max", "mechanism": "hat"}, "choose one of framework"),
    ({"value_column": None}, "--value_column is missing"),
    ({"epsilon_max": None}, "--epsilon_max is missing"),
    ({"budget": "inverse:0"}, "the scale must be above 0"),
    ({"budget": "cubic:1"}, "is not a budget function"),
    ({"budget": "table:b.csv"}, "--budget_column is missing"),
    ({"epsilon_min": "0.1"}, "--epsilon_min=0.1 is for --budget=table:FILE"),
    ({"window": "3"}, "--slot is missing"),
    ({"slot": "1d"}, "--time_column is missing"),
    ({"slot": "1d", "time_column": "t"}, "--start and --end are missing"),
    ({"start": "2024-01-01"}, "--start=2024-01-01 is about slots"),
    ({"key_column": "city"}, "--keys is missing"),
    ({"rejected": "letters.csv"}, "dropped silently"),
    ({"input": "in.csv"}, "no file matches 'in.csv'"),
]
WRONG_FLAGS = [
    (["collect", "--slot=1d"], "--input is missing"),
    (["per-record", "--statistic=count"], "--input is missing"),
    (["demo", "--mechanism=laplace"], "'laplace'"),
    (["evaluate"], "--streams is missing"),
    (["evaluate", "--streams=sinus"], "'sinus' is unknown"),
    (["evaluate", "--streams=sin", "--mechanisms=abp"], "'abp' is unknown"),
    (["evaluate", "--streams=sin", "--page=p.pdf"], "end the name in .html"),
    (["evaluate", "--per_record=zipf-5", "--runs=2"], "--runs=2"),
    (["collect", "--epsilon=1"], "support budgets over windows only"),
    (["collect", "--max_contributions=2"], "a device reports one"),
]


def test_what_is_wrong_is_reported_without_waiting_for_beam(job):
    """A slip of the pen costs no seconds; and each is reported in one line."""
    right = {"start": "2024-01-01"}
    cases = [
        *((job.arguments(**{**right, name: v}), words) for name, (v, words) in WRONG.items()),
        *((job.arguments(**{**right, **flags}), words) for flags, words in WRONG_TOGETHER),
        *(
            (["per-record", *(f"--{k}={v}" for k, v in {**SUM, **flags}.items() if v)], words)
            for flags, words in WRONG_STATISTIC
        ),
        *WRONG_FLAGS,
    ]
    codes, imported, said = without_beam([flags for flags, _ in cases])
    assert codes == [2] * len(cases)
    assert len(said) == len(cases)
    pairs = zip((words for _, words in cases), said, strict=True)
    assert [(words, line) for words, line in pairs if words not in line] == []
    assert not imported


@pytest.mark.parametrize(
    ("flag", "hint"),
    [
        ("--ouput=x", "did you mean --output?"),
        ("--mechansim=ba", "did you mean --mechanism?"),
        ("--max_contribution=2", "did you mean --max_contributions?"),
        ("--runnr=x", "did you mean --runner?"),
        ("--mech=bd", "did you mean --mechanism?"),
        ("--windw=3", "streamveil release --help"),
        ("--wholly_unknown=1", "streamveil release --help"),
        ("stray", "streamveil release --help"),
        ("-x", "streamveil release --help"),
    ],
)
def test_unknown_flag(job, flag, hint):
    before = job.files()
    outcome = job(flag)
    assert outcome.code == 2
    assert f"unknown option {flag}: " in outcome.message
    assert hint in outcome.message
    assert job.files() == before


@pytest.mark.parametrize(
    ("flags", "hint"),
    [
        (["demo", "--runnr=x"], "did you mean --runner?"),
        (["evaluate", "--streams=sin", "--seed=3"], "did you mean --seeds?"),
        (["evaluate", "--streams=sin", "--slot=100"], "or did you mean --slots?"),
        (["release", "--checkpoint_interval=1"], "did you mean --checkpointing_interval?"),
        (["release", "--runner", "PrismRunner", "--wholly_unknown=1"], "release --help"),
        (["release", "--slot=1d", "stray"], "unknown option stray"),
    ],
)
def test_unknown_flags_of_other_commands_and_of_beam(toolbox, flags, hint):
    outcome = toolbox.run(*flags)
    assert outcome.code == 2
    assert hint in outcome.message


def test_hint_is_no_other_thing(job):
    """Beam has hundreds of flags: one that sounds alike by chance leads astray."""
    assert "--region" not in job("--epsilon=1").message


def test_shortened_flags_are_unknown(job):
    outcome = job("--mech=bd")
    assert outcome.code == 2
    assert "--mech=bd" in outcome.message


def test_flag_without_its_value(job):
    outcome = job("--ledger")
    assert outcome.code == 2
    assert "--ledger" in outcome.message
    assert "expected one argument" in outcome.message


@pytest.mark.parametrize("flag", ["--max_contributions=2", "--slot=1h", "--ledger=x.csv"])
def test_flags_of_another_command_are_unknown(flag):
    """Taken and ignored, they would seem to have worked."""
    with pytest.raises(ConfigurationError, match="unknown option"):
        COMMANDS["demo"].request([flag]).read()


def test_flags_reach_beam_and_those_of_the_command_are_shown(caplog):
    own = ["--slot=1h", "--log_format=json", "--window=3", "--follow=1m"]
    runner = "--runner=SomeRunner"
    request = COMMANDS["release"].request([*own, "--dry_run", runner])
    execution = Execution.of([runner], request.shown)
    assert not execution.here
    assert execution.options.view_as(StandardOptions).runner == "SomeRunner"
    shown = execution.options.get_all_options(drop_default=True)
    assert {name: shown[name] for name in ("slot", "window", "follow")} == {
        "slot": "1h",
        "window": 3,
        "follow": "1m",
    }
    assert "log_format" not in shown
    assert "unparseable" not in caplog.text


@pytest.mark.parametrize(
    ("flag", "value"), [("", True), ("=true", True), ("=False", False)], ids=lambda case: str(case)
)
def test_flags_of_flink_reach_beam(flag, value):
    given = [f"--finish_bundle_before_checkpointing{flag}", "--checkpointing_interval=1000"]
    check_flags("release", given, ())
    known = Execution.of(given).options
    options = known.get_all_options(drop_default=True)
    assert options["finish_bundle_before_checkpointing"] is value
    assert options["checkpointing_interval"] == 1000


@pytest.mark.parametrize(
    ("flag", "reason"),
    [
        ("--finish_bundle_before_checkpointing=maybe", "'maybe' is neither true nor false"),
        ("--checkpointing_interval=soon", "is not a whole number: write one"),
        ("--checkpoint_interval=1", "did you mean --checkpointing_interval?"),
    ],
)
def test_wrong_flags_of_flink(job, flag, reason):
    outcome = job(flag)
    assert outcome.code == 2
    assert reason in outcome.message


@pytest.mark.parametrize(
    ("flags", "started"),
    [([], 0), (["--direct_num_workers=1"], 1), (["--experiments=a"], 1)],
    ids=lambda found: found[0] if found and isinstance(found, list) else None,
)
def test_only_flags_of_beam_start_a_runner(job, monkeypatch, flags, started):
    runners, make = [], launch._local_runner
    monkeypatch.setattr(launch, "_local_runner", lambda: runners.append(1) or make())
    job.done(*flags)
    assert len(runners) == started


def test_a_runner_of_this_process_sends_bundles_whole(job, monkeypatch):
    """Beam's own way loses what is added while a message waits: benchmarks/lost_bundles.py."""
    monkeypatch.setattr(worker_handlers, "DATA_BUFFER_TIME_LIMIT_MS", 1000)
    job.done()
    assert worker_handlers.DATA_BUFFER_TIME_LIMIT_MS == 1000  # no runner, nothing to set
    limits = []
    make = worker_handlers.data_plane.BeamFnDataServicer
    monkeypatch.setattr(
        worker_handlers.data_plane,
        "BeamFnDataServicer",
        lambda limit: limits.append(limit) or make(limit),
    )
    for written in ("out.jsonl", "out.jsonl.card.json"):
        os.remove(job.path(written))
    job.done("--direct_running_mode=multi_threading", "--direct_num_workers=2")
    assert limits == [0]


# ---- failures --------------------------------------------------------------------------------


def run_raising(error):
    def fail(_):
        raise error

    def build(pipeline):
        pipeline | beam.Create([1]) | "Fail" >> beam.Map(fail)

    return run(build, PipelineOptions([]), "test")


@pytest.mark.parametrize("kind", [ConfigurationError, BudgetExceeded, StateWentBack])
def test_errors_of_workers_come_as_they_were(kind):
    with pytest.raises(kind) as caught:
        run_raising(kind("the file x is wrong: mend it"))
    assert str(caught.value) == "the file x is wrong: mend it"


def test_errors_of_several_lines_come_whole():
    with pytest.raises(ConfigurationError, match=r"(?s)first.*second: mend it"):
        run_raising(ConfigurationError("first\nsecond: mend it"))


def test_other_errors_are_not_disguised():
    with pytest.raises(Exception, match="some bug") as caught:
        run_raising(ZeroDivisionError("some bug"))
    assert not isinstance(caught.value, (ConfigurationError, BudgetExceeded))


class Broken(grpc.RpcError):
    """What a call to a job server ends with."""

    def __init__(self, code):
        super().__init__("<of many\nlines\n>")
        self.code, self.details = (lambda: code), (lambda: "Socket closed")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            grpc.StatusCode.UNAVAILABLE,
            r"the server of the job localhost:1 is lost \(Socket closed\)",
        ),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "--job_server_timeout=7: .* give more seconds"),
    ],
)
def test_a_job_server_that_is_lost_is_reported_in_one_line(monkeypatch, code, words):
    class Result:
        def wait_until_finish(self):
            raise Broken(code)

    monkeypatch.setattr(launch, "started", lambda pipeline: Result())
    given = PipelineOptions(["--job_endpoint=localhost:1", "--job_server_timeout=7"])
    with pytest.raises(RuntimeError, match=rf"^{words}.* before you start it again$"):
        launch.run(lambda pipeline: None, given, "test")


NO_PIP = "disable_logging_submission_environment"  # saves a listing of all packages


@pytest.mark.parametrize(("workers", "listed"), [("LOOPBACK", False), ("DOCKER", True)])
def test_packages_are_listed_for_workers_elsewhere_alone(monkeypatch, workers, listed):
    experiments = []

    def start(pipeline):
        experiments.extend(pipeline.options.view_as(DebugOptions).experiments or [])
        raise MachineFault("not started")

    monkeypatch.setattr(launch, "started", start)
    given = PipelineOptions([f"--environment_type={workers}"])
    with pytest.raises(MachineFault):
        launch.run(lambda pipeline: None, given, "test")
    assert (NO_PIP not in experiments) == listed


@pytest.mark.slow
@pytest.mark.parametrize("chosen", ["FlinkRunner", "PrismRunner"])
def test_a_job_server_that_does_not_answer_is_named(job, chosen):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    given = {"job_endpoint": endpoint, "job_server_timeout": 1, "experiments": NO_PIP}
    outcome = job(runner=chosen, **given)
    assert outcome.code == 1
    for word in (f"--job_endpoint={endpoint}: no job server of Beam answers there", "start it"):
        assert word in outcome.message
    assert "out.jsonl" not in str(job.files())


@pytest.mark.slow
def test_a_long_wait_for_a_job_server_is_reported(job, monkeypatch):
    monkeypatch.setattr(job_servers, "_SILENT_SECONDS", 0.1)
    flags = {"job_endpoint": "127.0.0.1:1", "job_server_timeout": 1, "experiments": NO_PIP}
    outcome = job(runner="PortableRunner", **flags)
    waits, refused = outcome.err.splitlines()[-2:]
    assert waits.startswith("waiting for the job server 127.0.0.1:1, which does not answer")
    assert "127.0.0.1:1: no job server of Beam answers there within 1 seconds" in refused


@pytest.mark.parametrize("system", ["flink", "spark"])
def test_a_job_server_without_java_is_reported_in_one_line(job, system, monkeypatch):
    monkeypatch.setattr(subprocess_server.time, "sleep", lambda seconds: None)  # between its tries
    jar = job.write("server.jar", "")
    given = {f"{system}_job_server_jar": jar, "job_server_java_launcher": "/nowhere/java"}
    outcome = job(runner=f"{system.capitalize()}Runner", experiments=NO_PIP, **given)
    assert outcome.code == 2
    for word in ("job server does not start", "'/nowhere/java'", f"--{system}_job_server_jar=FILE"):
        assert word in outcome.message
    assert "out.jsonl" not in str(job.files())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "org.apache.spark.SparkException: Only one SparkContext should be running in this\n",
            "runs one job at a time, and has another: wait .* and run it again",
        ),
        (
            "java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.\nThis",
            "stopped SparkContext: look whether its master .* are up, and run it again",
        ),
    ],
)
def test_what_spark_says_of_itself_has_a_remedy(monkeypatch, text, words):
    class Result:
        def wait_until_finish(self):
            raise RuntimeError(f"Pipeline job-1 failed in state FAILED: {text}")

    monkeypatch.setattr(launch, "started", lambda pipeline: Result())
    given = PipelineOptions(["--job_endpoint=localhost:1"])
    with pytest.raises(MachineFault, match=rf"^the job server localhost:1 .*{words}$"):
        launch.run(lambda pipeline: None, given, "test")


def full_disk(name):
    """A writer that fails after a first part, for outputs whose name has that in it."""
    write_json = tables.write_json

    def write(handle, schema, batches):
        if name in schema.names:
            handle.write(b"half a li")
            raise OSError(28, "No space left on device")
        write_json(handle, schema, batches)

    return write


def test_failing_write_leaves_nothing(job, monkeypatch):
    monkeypatch.setattr(tables, "write_json", full_disk("published_slot"))
    before = job.files()
    outcome = job()
    assert outcome.code == 1
    assert "No space left on device" in outcome.message
    assert job.files() == before


@pytest.mark.parametrize("column", ["published_slot", "spent_in_window", "reason"])
def test_failing_write_of_one_output_is_reported_as_it_is(job, monkeypatch, column):
    """No message says that nothing was written while other outputs are there."""
    monkeypatch.setattr(tables, "write_json", full_disk(column))
    paths = [job.path(f"{name}.jsonl") for name in ("out", "ledger", "no")]
    outcome = job(ledger=paths[1], rejected=paths[2])
    assert outcome.code == 1
    assert "No space left on device" in outcome.message
    left = [path for path in paths if Path(path).exists()]
    assert len(left) < 3
    assert all(path in outcome.message for path in left), (left, outcome.message)


# Stops just before the output gets its name, says so, and waits for the end; interrupts are not
# ignored, as they are by what a shell has started in the background.
SLOW = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
def wait(*_):
    print("now", flush=True)
    time.sleep(600)
os.replace = wait
from streamveil.pipelines.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["kill", "interrupt"])
def test_stopped_in_the_middle(job, number):
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, *job.arguments()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "now\n"
    os.kill(process.pid, number)
    try:
        _, err = process.communicate(timeout=600)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        pytest.fail("an interrupt does not stop it")
    assert process.returncode != 0
    assert not Path(job.path("out.jsonl")).exists()
    if number == signal.SIGINT:
        traces = err.count("Traceback")
        assert traces == 0, err.strip().splitlines()[-1]
    # The same command works afterwards.
    job.done()
    assert len(job.rows()) == 3


def test_an_error_in_java_is_reported_by_its_causes(monkeypatch, job):
    trace = (
        "bundle failed: a.b.UserCodeException: java.io.IOException: not sent\n"
        "\tat a.b.C.d(C.java:1)\n"
        "Caused by: java.io.IOException: not sent\n"
        "Caused by: a.b.c.TimeoutException: Topic t not present\n"
        "\tat a.b.C.d(C.java:2)\n"
        "Caused by: a.b.c.TimeoutException: Topic t not present\n"
        "\t... 3 more\n"
    )

    def fail(options, dry):
        raise RuntimeError(trace)

    monkeypatch.setattr("streamveil.pipelines.commands.release.main", fail)
    outcome = job()
    assert outcome.code == 1
    assert outcome.message == (
        "streamveil release: failed: IOException: not sent; TimeoutException: Topic t not present"
    )


S3 = "http://localhost:1"


@pytest.mark.parametrize("flags", [[f"--s3_endpoint_url={S3}"], ["--s3_endpoint_url", S3]])
def test_options_of_filesystems_are_set_and_ask_for_no_runner(flags):
    assert Execution.of(flags).here
    assert FileSystems._pipeline_options.view_as(S3Options).s3_endpoint_url == S3
    assert Execution.of([*flags, "--runner=FnApiRunner"]).of_runner == ["--runner=FnApiRunner"]


@pytest.mark.parametrize("command", ["plan", "card", "evaluate", "audit"])
def test_commands_without_a_pipeline_take_options_of_filesystems_alone(command):
    request = COMMANDS[command].request([f"--s3_endpoint_url={S3}", *ENOUGH[command]])
    request.read()
    assert request.others == (f"--s3_endpoint_url={S3}",)
    with pytest.raises(ConfigurationError, match="unknown option --runner=FnApiRunner"):
        COMMANDS[command].request(["--runner=FnApiRunner", *ENOUGH[command]]).read()
    with pytest.raises(ConfigurationError, match="did you mean --s3_endpoint_url"):
        COMMANDS[command].request([f"--s3_endpoint={S3}", *ENOUGH[command]]).read()


ENOUGH = {
    "plan": ["--queries=s3://b/q.yaml", "--default_requirement=3,1"],
    "card": ["--card=s3://b/card.json"],
    "evaluate": ["--streams=sin"],
    "audit": ["--default_requirement=3,1,10"],
}
