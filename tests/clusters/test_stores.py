"""Files on object stores: all commands read and write them, whatever the service does meanwhile.

Servers that speak the real protocols run beside the tests; a proxy between fails as networks and
services do. An output is whole or absent, and a run that failed can be run again.
"""

import gc
import json
import re
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from streamveil.io import read_domain, read_table, write_table
from streamveil.io.folder import write_once
from streamveil.io.tables import write_text
from streamveil.mechanisms.core.records import MachineFault
from streamveil.pipelines.main import main
from tests.clusters.fault_proxy import Fault
from tests.clusters.stores import CAFES, GCS, HDFS, S3, Azure, release_of, running

KINDS = {"s3": S3, "gcs": GCS, "azure": Azure, "hdfs": HDFS}
ALL = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in KINDS]
OUTPUTS = {
    "output": "releases.csv",
    "ledger": "ledger.csv",
    "rejected": "rejected.jsonl",
    "card": "releases.card.json",
}
USERS, DAYS = 40, 5
EVENTS = "user,place,time\n" + "".join(
    f"u{i % USERS},{'cafe' if i % 3 else 'park'},2024-05-0{1 + i // USERS}T10:00:00Z\n"
    for i in range(USERS * DAYS)
)
REQUIREMENTS = "user,window,epsilon\n" + "".join(f"u{i},3,1\n" for i in range(USERS))
QUERIES = """
slot: 1d
queries:
  - name: places
    by: place
    keys: [cafe, park]
"""
INPUTS = {
    "events.csv": EVENTS,
    "requirements.csv": REQUIREMENTS,
    "places.txt": "cafe\npark\n",
    "queries.yaml": QUERIES,
    "key": "k" * 40,
}


@pytest.fixture(scope="module")
def stores(request, tmp_path_factory):
    """The stores of this module, each started when a test first needs it."""
    with ExitStack() as stack:
        found = {}

        def store(name):
            if name not in found:
                home = Path(request.config.getoption(f"--{name}_home")).resolve()
                work = tmp_path_factory.mktemp(name)
                made = stack.enter_context(running(KINDS[name], home, work))
                for file, text in INPUTS.items():
                    made.put(f"{made.root}/in/{file}", text)
                found[name] = made
            return found[name]

        yield store


@pytest.fixture
def store(stores, request, monkeypatch, tmp_path):
    """A store whose clients wait for less than a second in all before they give up."""
    found = stores(request.param)
    found.proxy.reset()
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    _hurry(monkeypatch)
    yield found
    found.proxy.reset()


def _hurry(monkeypatch):
    """Let clients try as often as they do, but not wait for so long."""
    from apache_beam.io.gcp import gcsio
    from apache_beam.utils import retry
    from google.api_core.retry import Retry
    from google.cloud.storage.retry import _should_retry

    monkeypatch.setattr("streamveil.io.hdfs.WAITS", [0.01] * 4)
    with suppress(ImportError):
        from azure.storage.blob._shared.policies import ExponentialRetry

        monkeypatch.setattr(ExponentialRetry, "get_backoff_time", lambda self, settings: 0.01)
    monkeypatch.setattr(retry.Clock, "sleep", lambda self, seconds: time.sleep(0.01))
    quick = Retry(predicate=_should_retry, initial=0.01, maximum=0.05, timeout=0.5)
    monkeypatch.setattr(gcsio.gcsio_retry, "get_retry", lambda options: quick)
    monkeypatch.setattr(gcsio, "DEFAULT_RETRY", quick)


def release_flags(store, folder, **changed):
    given = {
        "input": f"{store.root}/in/events.csv",
        "requirements": f"{store.root}/in/requirements.csv",
        **CAFES,
        **{option: f"{folder}/{name}" for option, name in OUTPUTS.items()},
        **changed,
    }
    return [*release_of(given), *store.flags]


def outputs_of(store, folder):
    """What there is of each output; None where it is absent."""
    return {name: store.get(f"{folder}/{name}") for name in OUTPUTS.values()}


@pytest.fixture
def expected(store):
    """What a run writes that nothing disturbs."""
    if not hasattr(store, "expected"):
        folder = store.folder()
        assert main(release_flags(store, folder)) == 0
        store.expected = outputs_of(store, folder)
        assert None not in store.expected.values()
        assert store.expected["rejected.jsonl"] == b""
    return store.expected


@pytest.mark.parametrize("store", ALL, indirect=True)
def test_every_command_reads_and_writes_there(store, capsys):
    folder = store.folder()
    given = {
        "domain": f"{store.root}/in/places.txt",
        "noise_key": f"file:{store.root}/in/key",
        "summary": f"{folder}/summary.json",
    }
    assert main([*release_flags(store, folder, **given), "--dry_run"]) == 0
    assert store.names(folder) == []
    assert main(release_flags(store, folder, **given)) == 0
    assert f"wrote {folder}/releases.csv" in capsys.readouterr().out
    names = ["ledger.csv", "rejected.jsonl", "releases.card.json", "releases.csv", "summary.json"]
    assert [name.rpartition("/")[2] for name in store.names(folder)] == names

    card = [f"--card={folder}/releases.card.json", *store.flags]
    assert main(["card", *card]) == 0
    check = [f"--releases={folder}/releases.csv", f"--ledger={folder}/ledger.csv"]
    assert main(["card", "--check", *card, *check]) == 0
    store.put(f"{folder}/ledger.csv2", store.get(f"{folder}/ledger.csv") + b"\n")
    changed = [f"--ledger={folder}/ledger.csv2", f"--releases={folder}/releases.csv"]
    assert main(["card", "--check", *card, *changed]) == 1

    plan = [f"--queries={store.root}/in/queries.yaml", "--rate=40", *store.flags]
    assert main(["plan", *plan, f"--requirements={store.root}/in/requirements.csv"]) == 0
    events = [f"--input={store.root}/in/events.csv", "--user_column=user", "--value_column=place"]
    events += ["--time_column=time", "--slot=1d", f"--domain={store.root}/in/places.txt"]
    some = ["--mechanisms=pba", "--seeds=1", "--processes=1", f"--output={folder}/table.csv"]
    assert main(["evaluate", *events, "--default_requirement=3,1,40", *some, *store.flags]) == 0
    assert b"pba" in store.get(f"{folder}/table.csv")
    assert main(release_flags(store, folder, **given)) == 2
    assert "exists already and is never overwritten" in capsys.readouterr().err


@pytest.mark.parametrize("store", ALL, indirect=True)
@pytest.mark.parametrize("kind", ["parquet", "avro", "jsonl"])
def test_every_format_comes_back_as_from_a_local_file(store, kind, tmp_path):
    folder = store.folder()
    names = {"output": f"releases.{kind}", "ledger": f"ledger.{kind}"}
    for place in (folder, str(tmp_path)):
        there = {option: f"{place}/{name}" for option, name in names.items()}
        there |= {"rejected": f"{place}/rejected.jsonl", "card": f"{place}/card.json"}
        assert main(release_flags(store, place, **there)) == 0
    for name in names.values():
        assert read_table(f"{folder}/{name}").equals(read_table(str(tmp_path / name)))


@pytest.mark.parametrize("store", ALL, indirect=True)
def test_queries_a_folder_and_a_glob(store, capsys):
    folder = store.folder()
    day = [line for line in EVENTS.splitlines() if "05-01" in line or "user" in line]
    store.put(f"{folder}/in/a.csv", "\n".join(day) + "\n")
    store.put(f"{folder}/in/b.csv", "\n".join(day) + "\n")
    flags = [
        f"--input={folder}/in/*.csv",
        f"--requirements={store.root}/in/requirements.csv",
        *("--user_column=user", "--time_column=time", "--start=2024-05-01", "--end=2024-05-02"),
        *("--max_contributions=2", *store.flags),
    ]
    asked = f"--queries={store.root}/in/queries.yaml"
    flags_of_queries = [flag for flag in flags if "max_contributions" not in flag]
    assert main(["release", *flags_of_queries, asked, f"--output={folder}/answers"]) == 0
    assert any("places" in name for name in store.names(f"{folder}/answers"))

    more = ["--value_column=place", "--slot=1d", "--domain=cafe,park", f"--card={folder}/c.json"]
    for _ in range(2):  # what is there already, and the same, stays
        assert main(["release", *flags, *more, f"--output=folder:{folder}/days"]) == 0
    assert [name.rpartition("/")[2] for name in store.names(f"{folder}/days")] == [
        "release-20240501T000000.000000Z.json"
    ]
    assert f"{2 * USERS} events read" in capsys.readouterr().out


@pytest.mark.parametrize("store", ALL, indirect=True)
def test_a_runner_writes_the_same(store, expected):
    folder = store.folder()
    lines = EVENTS.splitlines()
    for name, some in (("a", lines[1:90]), ("b", lines[90:])):
        store.put(f"{folder}/in/{name}.csv", "\n".join([lines[0], *some]) + "\n")
    flags = release_flags(store, folder, input=f"{folder}/in/*.csv")
    assert main([*flags, "--runner=FnApiRunner"]) == 0
    found = outputs_of(store, folder)
    assert found["releases.csv"] == expected["releases.csv"]
    assert found["ledger.csv"] == expected["ledger.csv"]


NUMBERS = pa.schema([("number", pa.int64())])


def numbers(batches):
    """Batches of 4 MB each, which do not compress."""
    draw = np.random.default_rng(1)
    for _ in range(batches):
        yield pa.record_batch([draw.integers(0, 1 << 62, 1 << 19)], schema=NUMBERS)


@pytest.mark.parametrize("store", ALL, indirect=True)
def test_a_file_of_several_parts_is_whole(store):
    FileSystems.set_options(PipelineOptions(store.flags))
    folder = store.folder()
    for _ in range(2):  # one that is there is replaced
        write_table(f"{folder}/large.parquet", NUMBERS, numbers(5))
    assert [name.rpartition("/")[2] for name in store.names(folder)] == ["large.parquet"]
    assert read_table(f"{folder}/large.parquet").equals(pa.Table.from_batches(numbers(5)))


@pytest.mark.parametrize("store", ALL, indirect=True)
def test_a_file_whose_writing_fails_leaves_nothing(store):
    FileSystems.set_options(PipelineOptions(store.flags))
    folder = store.folder()

    def failing():
        yield from numbers(3)
        raise KeyError("the source failed")

    with pytest.raises(KeyError):
        write_table(f"{folder}/large.parquet", NUMBERS, failing())
    assert store.names(folder) == []


@pytest.mark.parametrize("store", ALL, indirect=True)
def test_what_is_not_there_is_named(store, capsys):
    folder = store.folder()
    for option in ("input", "requirements"):
        assert main(release_flags(store, folder, **{option: f"{folder}/none.csv"})) == 2
        said = capsys.readouterr().err
        assert f"{folder}/none.csv" in said
        assert said.count("\n") == 1
    elsewhere = f"{store.root}2/in/events.csv"
    assert main(release_flags(store, folder, input=elsewhere)) == 2
    said = capsys.readouterr().err
    assert f"no file matches '{elsewhere}'" in said
    assert said.count("\n") == 1
    assert store.names(folder) == []


@pytest.mark.parametrize("store", ALL, indirect=True)
def test_a_state_folder_there_is_refused(store, capsys):
    folder = store.folder()
    flags = [flag for flag in release_flags(store, folder) if "--rejected" not in flag]
    assert main([*flags, f"--state={folder}/state"]) == 2
    said = capsys.readouterr().err
    assert f"{folder}/state" in said
    assert "local folder" in said


@pytest.mark.parametrize("store", ALL, indirect=True)
def test_functions_of_python_reach_it_before_any_pipeline(store, monkeypatch):
    import streamveil as sv

    FileSystems.set_options(PipelineOptions(store.flags))
    for _ in range(2):  # the first run must not take the options away
        found = sv.release(
            f"{store.root}/in/events.csv",
            user="user",
            value="place",
            time="time",
            slot="1d",
            domain=f"{store.root}/in/places.txt",
            requirements=f"{store.root}/in/requirements.csv",
        )
    assert len(found["count"]) == DAYS
    if store.name == "s3":
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.proxy.url)
        monkeypatch.setattr(FileSystems, "_pipeline_options", None)
        assert read_domain(f"{store.root}/in/places.txt").labels == ("cafe", "park")


LOOK = {  # requests by what they are for, as method and path
    "s3": ("HEAD|GET", r"/in/events.csv$"),
    "gcs": ("HEAD|GET", r"/storage/v1/b/bucket/o.*(events.csv|in%2F)"),
    "azure": ("HEAD|GET", r"/in/events.csv$|comp=list.*in%2Fevents.csv"),
    "hdfs": ("GET", r"/in/events.csv.*op=(GETFILE|LIST)STATUS"),
}
READ = {
    "s3": ("GET", r"/bucket/in/events.csv$"),
    "gcs": ("GET", r"/download/.*in(/|%2F)events.csv"),
    "azure": ("GET", r"/in/events.csv$"),
    "hdfs": ("GET", r"/@.*/in/events.csv.*op=OPEN"),
}
BEGIN = {
    "s3": ("POST", r"\.releases\.csv\..*[?]uploads"),
    "gcs": ("POST", r"/upload/.*uploadType=resumable$"),
    "azure": ("PUT", r"\.releases\.csv\."),
    "hdfs": ("PUT", r"^/webhdfs.*\.releases\.csv\..*op=CREATE"),
}
WRITE = {
    "s3": ("PUT", r"\.releases\.csv\..*partNumber="),
    "gcs": ("PUT", r"/upload/.*upload_id="),
    "azure": BEGIN["azure"],
    "hdfs": ("PUT", r"^/@.*\.releases\.csv\..*op=CREATE"),
}
END = {**WRITE, "s3": ("POST", r"\.releases\.csv\..*[?]uploadId=")}
RENAME = {
    "s3": ("PUT", r"/releases\.csv$"),
    "gcs": ("POST", r"/batch/"),
    "azure": ("PUT", r"/releases\.csv$"),
    "hdfs": ("PUT", r"\.releases\.csv\..*op=RENAME"),
}
DELETE = {
    "s3": ("POST", r"[?]delete"),
    "gcs": ("POST", r"/batch/"),
    "azure": ("DELETE", r"\.releases\.csv\."),
}


def xml(code, message):
    text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return text.encode()


def of_name_node(exception, message):
    said = {"exception": exception, "message": message}
    return json.dumps({"RemoteException": said}).encode()


FORBIDDEN = {
    "s3": xml("AccessDenied", "Access Denied"),
    "gcs": xml("AccessDenied", "Access Denied"),
    "azure": xml("AuthorizationFailure", "This request is not authorized."),
    "hdfs": of_name_node("AccessControlException", "Permission denied: user=someone"),
}
EXPIRED = {
    "s3": xml("ExpiredToken", "The provided token has expired."),
    "gcs": b"",
    "azure": xml("AuthenticationFailed", "Server failed to authenticate the request."),
    "hdfs": of_name_node("InvalidToken", "token (for someone) is expired"),
}
STANDBY = {
    "hdfs": of_name_node("StandbyException", "Operation category READ is not supported"),
}
EXPIRED_STATUS = {"s3": "400", "gcs": "401", "azure": "403", "hdfs": "403"}
GONE = {
    "s3": xml("NoSuchBucket", "The bucket does not exist"),
    "gcs": xml("NoSuchBucket", "The bucket does not exist"),
    "azure": xml("ContainerNotFound", "The specified container does not exist."),
}


@dataclass
class Case:
    """A fault, and what must come of it."""

    name: str
    faults: dict
    """By the name of a store, those that it has."""
    says: str | None
    """What the message has; None where the run ends well in spite of it."""
    either: bool
    """Whether it may also end well: the client may try again or not."""


def case(name, at, how, says=None, either=False, body=None, only=None, **fault):
    """The same fault of all stores, or `only` of some; `how` and `body` may differ by store."""

    def of(store):
        method, path = at[store]
        own = how if isinstance(how, str) else how[store]
        said = {} if body is None else {"body": body[store]}
        return [{"how": own, "method": method, "path": path, **said, **fault}]

    return Case(name, {store: of(store) for store in only or at}, says, either)


EVERYWHERE = dict.fromkeys(KINDS, (".*", ".*"))
OBJECTS = ["s3", "gcs", "azure"]
CREDENTIALS = "give credentials that are valid and may do this"
LATER = "look whether the service and the way to it are up"
ACTIVE = "name the active name node (--hdfs_host)"
CASES = [
    case("reset once while looking", LOOK, "reset", times=1),
    case("reset for ever while looking", LOOK, "reset", LATER),
    case("reset once in mid-read", READ, "reset_in_read", times=1),
    case("reset for ever in mid-read", READ, "reset_in_read", LATER),
    case("truncated once", READ, "truncate", times=1),
    case("truncated for ever", READ, "truncate", LATER),
    case("shortened once", READ, "shorten", "", either=True, times=1),
    case("shortened for ever", READ, "shorten", "", either=True),
    case("reset once in mid-write", WRITE, "reset_in_write", times=1),
    case("reset for ever in mid-write", WRITE, "reset_in_write", LATER),
    case("reset as a write begins", BEGIN, "reset", LATER),
    case("answer lost of a write", WRITE, "lose_answer", "", either=True, times=1),
    case("answer lost as a write ends", END, "lose_answer", "", either=True, times=1),
    case("answer lost of a rename", RENAME, "lose_answer", "", either=True, times=1),
    case("answer lost of a delete", DELETE, "lose_answer", only=["azure"], times=1),
    case("503 twice", READ, "503", times=2),
    case("503 for ever", READ, "503", LATER),
    case("503 in a write", WRITE, "503", times=1),
    case("503 once as it renames", RENAME, "503", only=["azure", "hdfs"], times=1),
    case("429 once", READ, "429", only=["s3", "gcs", "hdfs"], times=1),
    case("429 once", READ, "429", LATER, only=["azure"], times=1),  # which says 503 when it is busy
    case("429 for ever in a write", BEGIN, "429", LATER),
    case("500 once while looking", LOOK, "500", times=1),
    case("502 once while looking", LOOK, "502", times=1),
    case("reading is forbidden", READ, "403", CREDENTIALS, body=FORBIDDEN),
    case("looking is forbidden", LOOK, "403", CREDENTIALS, body=FORBIDDEN),
    case("writing is forbidden", BEGIN, "403", CREDENTIALS, body=FORBIDDEN),
    case("renaming is forbidden", RENAME, "403", CREDENTIALS, body=FORBIDDEN),
    case("deleting is forbidden", DELETE, "403", CREDENTIALS, only=["s3", "azure"]),
    case("deleting is forbidden", DELETE, "403", CREDENTIALS, only=["gcs"], after=1),
    Case(
        "credentials expire before the run",
        {
            "s3": [{"path": "/in/", "how": "400", "body": EXPIRED["s3"]}],
            "gcs": [
                {"path": "/token", "how": "400", "body": b'{"error": "invalid_grant"}'},
                {"path": "/storage/", "how": "401"},
            ],
            "azure": [{"how": "403", "body": EXPIRED["azure"]}],
            "hdfs": [{"how": "403", "body": EXPIRED["hdfs"]}],
        },
        "",
        False,
    ),
    case("credentials expire in mid-run", WRITE, EXPIRED_STATUS, CREDENTIALS, body=EXPIRED),
    case("there are no credentials", LOOK, "401", CREDENTIALS, only=["azure", "hdfs"]),
    case("the bucket is gone when it writes", BEGIN, "404", "", body=GONE, only=OBJECTS),
    case("slow in everything", EVERYWHERE, "slow", seconds=0.02),
    case(
        "a name node on standby once",
        LOOK,
        "403",
        only=["hdfs"],
        times=1,
        body=STANDBY,
    ),
    case(
        "a name node on standby",
        EVERYWHERE,
        "403",
        ACTIVE,
        only=["hdfs"],
        body=STANDBY,
    ),
    case(
        "a name node says to come again",
        RENAME,
        "403",
        only=["hdfs"],
        times=1,
        body={"hdfs": of_name_node("RetriableException", "NameNode still not started")},
    ),
    case(
        "no data node is found",
        {"hdfs": ("GET", r"^/webhdfs.*op=OPEN")},
        "403",
        LATER,
        body={"hdfs": of_name_node("IOException", "Failed to find datanode, suggest to check")},
    ),
    case(
        "a gateway answers in its own words",
        LOOK,
        "504",
        LATER,
        only=["hdfs"],
        body={"hdfs": b'{"error": "no route"}'},
    ),
]


def check_failed(store, said, folder, expected, says):
    """That a failed run named service, place and remedy, and left nothing half-written."""
    lines = [line for line in said.splitlines() if line.startswith("streamveil release: failed:")]
    assert len(lines) == 1, said
    assert "Traceback" not in said
    assert store.root in lines[0]
    assert store.service in lines[0]
    assert says in lines[0]
    for name, content in outputs_of(store, folder).items():
        if name != "releases.card.json":
            assert content in (None, expected[name]), name


@pytest.mark.parametrize(
    ("store", "case"),
    [
        pytest.param(name, case, marks=getattr(pytest.mark, name), id=f"{case.name}-{name}")
        for case in CASES
        for name in case.faults
    ],
    indirect=["store"],
)
def test_a_fault_of_the_service(store, expected, case, capfd):
    folder = store.folder()
    store.proxy.faults = [Fault(**one) for one in case.faults[store.name]]
    code = main(release_flags(store, folder))
    said = capfd.readouterr().err
    assert store.proxy.struck(), "the fault never struck"
    if code == 0 and (case.says is None or case.either):
        assert outputs_of(store, folder) == expected
        return
    assert case.says is not None, said
    assert code == 1, said
    check_failed(store, said, folder, expected, case.says)
    seen = len(store.proxy.seen)
    gc.collect()
    assert len(store.proxy.seen) == seen, "what failed was tried again as it was forgotten"


OLD = b"what was there before\n"


@pytest.mark.parametrize("store", ALL, indirect=True)
def test_a_file_that_could_not_be_replaced_stays(store):
    FileSystems.set_options(PipelineOptions(store.flags))
    path = f"{store.folder()}/releases.csv"
    store.put(path, OLD)
    method, pattern = RENAME[store.name]
    store.proxy.faults = [Fault(how="403", method=method, path=pattern)]
    with pytest.raises(MachineFault, match=re.escape(f"{path} could not be written")):
        write_text(path, "what is there now")
    assert store.get(path) == OLD


@pytest.mark.parametrize("how", ["403", "503", "reset"])
@pytest.mark.parametrize("store", ALL, indirect=True)
def test_an_output_that_cannot_be_looked_up_is_not_replaced(store, how, capfd):
    folder = store.folder()
    store.put(f"{folder}/releases.csv", OLD)
    looks = {"hdfs": r"/releases.csv.*op=GETFILESTATUS", "gcs": r"/o[/?].*releases.csv"}
    store.proxy.faults = [
        Fault(how=how, method="HEAD|GET", path=looks.get(store.name, r"/releases.csv$"))
    ]
    assert main(release_flags(store, folder)) == 1
    said = capfd.readouterr().err
    assert f"{folder}/releases.csv cannot be looked up: {store.service} says" in said
    assert store.get(f"{folder}/releases.csv") == OLD


@pytest.mark.parametrize("store", [ALL[2]], indirect=True)
def test_what_is_being_copied_is_not_deleted(store):
    FileSystems.set_options(PipelineOptions(store.flags))
    path = f"{store.folder()}/card.json"
    pending = {"x-ms-copy-status": "pending"}
    store.proxy.faults = [
        Fault("say", "PUT", r"/card.json$", headers=pending),
        Fault("say", "HEAD", r"/card.json$", headers=pending, times=1),
    ]
    write_text(path, "whole")
    assert store.get(path) == b"whole"
    seen = [method for method, place in store.proxy.seen if "card.json" in place]
    assert seen == ["PUT", "PUT", "HEAD", "HEAD", "DELETE"]


@pytest.mark.parametrize(("first", "same"), [(OLD, False), (b"mine", True)])
@pytest.mark.parametrize("store", ALL[2:], indirect=True)
def test_of_two_that_write_one_file_the_first_wins(store, first, same):
    FileSystems.set_options(PipelineOptions(store.flags))
    folder = store.folder()
    path = f"{folder}/slot.json"
    rename = {"azure": r"/slot.json$", "hdfs": r"slot.json.*op=RENAME"}[store.name]
    other = Fault("say", "PUT", rename, times=1, call=lambda: store.put(path, first))
    store.proxy.faults = [other]
    assert write_once(path, b"mine") == same
    assert store.get(path) == first
    assert [name.rpartition("/")[2] for name in store.names(folder)] == ["slot.json"]


@pytest.mark.parametrize("store", ALL[:3], indirect=True)
def test_a_bucket_to_write_to_is_not_there(store, capfd):
    missing = f"{store.root}2"
    assert main(release_flags(store, missing)) == 1
    said = capfd.readouterr().err.splitlines()[-1]
    assert f"{missing}/releases" in said
    assert f"{store.service} says" in said
    assert "make what is not there, or name another" in said


@pytest.mark.parametrize("store", [ALL[2]], indirect=True)
def test_another_account_key_is_refused(store, capfd):
    folder = store.folder()
    wrong = [flag.replace("AccountKey=E", "AccountKey=F") for flag in store.flags]
    assert wrong != list(store.flags)
    flags = [flag for flag in release_flags(store, folder) if flag not in store.flags]
    assert main([*flags, *wrong]) == 1
    said = capfd.readouterr().err.splitlines()[-1]
    assert "Azure Blob Storage says: " in said
    assert CREDENTIALS in said
    assert store.names(folder) == []


def forbid_writing(store, folder):
    store.admin.makedirs(folder)


def forbid_reading(store, _):
    store.admin.set_permission("/bucket/in/events.csv", "600")
    store.admin.set_owner("/bucket/in/events.csv", store.admin_name)
    return lambda: store.admin.set_owner("/bucket/in/events.csv", "someone")


def enter_safe_mode(store, _):
    store.command("safe_mode ENTER")
    return lambda: store.command("safe_mode LEAVE")


def set_quota(store, folder):
    store.client.makedirs(folder)
    store.command(f"quota {folder} 1000")


def stop_data_node(store, _):
    store.command("stop_data_node")
    return lambda: store.command("start_data_node")


SAFE_MODE = "wait until the name node has left its safe mode"


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (forbid_writing, CREDENTIALS),
        (forbid_reading, CREDENTIALS),
        (enter_safe_mode, SAFE_MODE),
        (set_quota, "make room there, or raise the quota"),
        (stop_data_node, LATER),
    ],
)
@pytest.mark.parametrize("store", ALL[3:], indirect=True)
def test_a_cluster_of_hdfs_refuses(store, expected, break_it, says, capfd):
    folder = store.folder()
    mend = break_it(store, folder.removeprefix("hdfs:/"))
    try:
        assert main(release_flags(store, folder)) == 1
        check_failed(store, capfd.readouterr().err, folder, expected, says)
    finally:
        if mend:
            mend()
    again = store.folder()
    assert main(release_flags(store, again)) == 0
    assert outputs_of(store, again) == expected


@pytest.mark.parametrize("store", ALL, indirect=True)
def test_connections_are_refused(store, expected, capfd):
    folder = store.folder()
    store.proxy.stop()
    assert main(release_flags(store, folder)) == 1
    check_failed(store, capfd.readouterr().err, folder, expected, LATER)


@pytest.mark.parametrize("kind", ALL)
def test_the_server_is_killed_as_it_is_written_to(kind, request, monkeypatch, tmp_path, capfd):
    home = Path(request.config.getoption(f"--{kind}_home")).resolve()
    with running(KINDS[kind], home, tmp_path) as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        _hurry(monkeypatch)
        store.put(f"{store.root}/in/events.csv", EVENTS)
        store.put(f"{store.root}/in/requirements.csv", REQUIREMENTS)
        store.proxy.faults = [Fault(how="reset", path=WRITE[kind][1], call=store.kill)]
        folder = store.folder()
        assert main(release_flags(store, folder)) == 1
        said = capfd.readouterr().err
        line = said.splitlines()[-1]
        assert f"{folder}/releases.csv could not be written: {store.service} says" in line
        assert "Whether these were is not known" in line
        assert "Traceback" not in said


@pytest.mark.parametrize("store", ALL, indirect=True)
def test_the_run_is_killed_as_it_writes(store, expected):
    folder = store.folder()
    store.proxy.faults = [Fault(how="slow", path=WRITE[store.name][1], seconds=60.0)]
    run = store.launch(*release_flags(store, folder))
    end = time.monotonic() + 120.0
    while not store.proxy.struck():
        assert run.poll() is None, run.stdout.read()
        assert time.monotonic() < end, "it never wrote"
        time.sleep(0.05)
    run.kill()
    run.wait()
    assert not {name.rpartition("/")[2] for name in store.names(folder)} & set(OUTPUTS.values())
    store.proxy.reset()
    assert main(release_flags(store, folder)) == 0
    assert outputs_of(store, folder) == expected
